"""Optimizer files that liboptim's LayerWiseDistributedOptimizer reads and writes itself.

Megatron-Core's own writes its files; ours loads them (save_state_dict_to_file and
load_state_dict_from_file), shows what it holds by name, and saves; Megatron-Core's loads those.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from comparing import bytes_of
from golden.values import master_of, state_of
from programs import BIN, REPOSITORY
from reading import iteration_folder, rank_file

CASES = (("gpt2l", 1), ("gpt2l", 2), ("gpt2l", 4), ("gpt5l_modern", 2), ("gpt5l_modern", 4))
STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def model_of(root: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in model order."""
    state = torch.load(
        iteration_folder(root) / "mp_rank_00/model_optim_rng.pt", weights_only=False
    )
    return {
        name: tuple(value.shape)
        for name, value in state["model"].items()
        if isinstance(value, torch.Tensor)
    }


@pytest.fixture(scope="session")
def passed_on(generated: Path, tmp_path_factory) -> dict[tuple[str, int], Path]:
    """For each case a checkpoint whose optimizer files ours read and wrote."""
    program = BIN / "state_client"
    if not program.exists():
        pytest.skip("state_client was not built: it needs LibTorch")
    made = {}
    for case, size in CASES:
        source = generated / f"{case}_torch_dp{size}"
        target = tmp_path_factory.mktemp("passed_on") / source.name
        shutil.copytree(source, target)
        for rank in range(size):
            rank_file(target, rank).unlink()
        lines = [" ".join([name, *map(str, shape)]) for name, shape in model_of(source).items()]
        (target / "model.txt").write_text("\n".join(lines))
        folders = [rank_file(root, 0).parent for root in (source, target)]
        command = [program, target / "model.txt", *folders, str(size)]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert finished.returncode == 0, finished.stderr
        made[case, size] = target
    return made


@pytest.mark.parametrize(("case", "size"), CASES)
def test_ours_reads_every_value_that_megatron_wrote(case, size, passed_on) -> None:
    root = passed_on[case, size]
    folder = rank_file(root, 0).parent
    owned = []
    for name, shape in model_of(root).items():
        found = sorted(folder.glob(f"*.{name}.master"))
        assert len(found) == 1, f"{name} has {len(found)} owners"
        owned.append(found[0])
        assert found[0].read_bytes() == bytes_of(master_of(case, name, shape, False)), name
        kinds = [kind for kind in STATES if found[0].with_suffix(f".{kind}").exists()]
        assert kinds in (["exp_avg", "exp_avg_sq"], ["momentum_buffer"]), name
        for kind in kinds:
            expected = bytes_of(state_of(case, name, shape, kind))
            assert found[0].with_suffix(f".{kind}").read_bytes() == expected, f"{name} {kind}"
    assert sorted(owned) == sorted(folder.glob("*.master"))


@pytest.fixture(scope="session")
def restored(passed_on, generated: Path, tmp_path_factory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("restored")
    jobs = [
        {"name": f"{case} {size}", "kind": "restore", "world": size, "folder": str(root),
         "format": "torch", "case": case}
        for (case, size), root in passed_on.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(REPOSITORY / "tests/interop/megatron_client.py")]
    command += [str(folder / "jobs.json"), str(folder / "results.json")]
    subprocess.run(command, check=True, timeout=200, capture_output=True)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(("case", "size"), CASES)
def test_megatron_reads_every_value_that_ours_wrote(case, size, restored) -> None:
    assert restored[f"{case} {size}"] == []
