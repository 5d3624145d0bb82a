"""How Muon's parameters lie in Megatron's buffers (use_layer_wise_param_layout, and
layer_wise_param_layout of its change 5479) decides who owns them, and nothing else that is stored.

Runs by the trees of 0.20-dev (d98e8a64dd) and of change 5479 (098780bb9b), whose default is the
decoupled layout, on four ranks, with small buckets: scripts/golden/run, `layouts_*`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parallel_sets import check_logical_state
from programs import BIN, GOLDEN, refuse, run, succeed
from reading import DcpFolder, iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

LAYOUTS = ("decoupled", "padded", "august", "legacy")
ROWS = "momentum_buffer"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    subprocess.run(["tar", "-xJf", GOLDEN / "layer_wise_layouts.tar.xz", "-C", folder], check=True)
    return folder


def owners(root: Path) -> dict[str, str]:
    """Of each of Muon's parameters, by layer: the file of the rank that wrote its momentum."""
    places = DcpFolder(iteration_folder(root)).metadata.storage_data
    return {f"{index.fqn} {tuple(index.offset)}": place.relative_path
            for index, place in places.items() if ROWS in index.fqn}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_state_is_that_of_the_run(name: str, runs: Path, tmp_path: Path) -> None:
    check_logical_state(runs / name, tmp_path)
    assert run("ckpt-inspect", "verify", runs / name / "ckpt").code == 0


def test_owners_differ_and_the_state_does_not(runs: Path) -> None:
    decoupled, padded = (owners(runs / name / "ckpt") for name in ("decoupled", "padded"))
    assert decoupled.keys() == padded.keys() and decoupled != padded
    assert "0 of 72 logical tensors" in run("ckpt-inspect", "diff", runs / "decoupled/ckpt",
                                            runs / "padded/ckpt").stdout


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_sizes_have_the_same_state(name: str, runs: Path, tmp_path: Path) -> None:
    told = succeed("reshard", runs / name / "ckpt", tmp_path / "out", "--dp", 3, "--pp", 3).stdout
    assert "does not know" not in told
    succeed("ckpt-inspect", "verify", tmp_path / "out")
    same = succeed("ckpt-inspect", "diff", runs / name / "ckpt", tmp_path / "out").stdout
    assert "equal: 72 logical tensors" in same


FAULTS = {
    "a rank's file is missing": lambda root: (root / "__3_0.distcp").unlink(),
    "files are swapped": lambda root: [
        (root / a).rename(root / b) for a, b in
        (("__1_0.distcp", "x"), ("__2_0.distcp", "__1_0.distcp"), ("x", "__2_0.distcp"))],
    "a file is cut": lambda root: (root / "__2_0.distcp").write_bytes(
        (root / "__2_0.distcp").read_bytes()[:-300]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_by_name(fault: str, runs: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", runs / "decoupled/ckpt", tmp_path / "in"], check=True)
    FAULTS[fault](iteration_folder(tmp_path / "in"))
    found = run("ckpt-inspect", "verify", tmp_path / "in")
    assert found.code in (1, 3) and ".distcp" in found.text, found
    assert ".distcp" in refuse({3, 5}, "reshard", tmp_path / "in", tmp_path / "out", "--dp", 2)
