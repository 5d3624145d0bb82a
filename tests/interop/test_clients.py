"""Real clients, not our own reader: torch.load, PyTorch's DCP, and Megatron-Core 0.16.1 itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from comparing import CONVERSION_MAY_CHANGE, bytes_of, differences
from programs import GOLDEN, REPOSITORY
from reading import DcpFolder, iteration_folder, load, rank_file

# Changed by a reshard to what Megatron would have written.
RESHARD_CHANGES = CONVERSION_MAY_CHANGE | {
    "/args/@data_parallel_size",
    "/args/@world_size",
    "/args/@inprocess_active_world_size",
}


@dataclass(frozen=True)
class Made:
    """A folder that our programs make: a conversion or reshard of a generated case."""

    case: str
    source_format: str
    source_dp: int
    to: str | None = None  # convert
    dp_size: int | None = None  # reshard

    @property
    def name(self) -> str:
        what = f"to_{self.to}" if self.to else f"to_dp{self.dp_size}"
        return f"{self.case}_{self.source_format}_dp{self.source_dp}_{what}"

    @property
    def format(self) -> str:
        return self.to or self.source_format

    @property
    def world(self) -> int:
        return self.dp_size or self.source_dp

    def source(self, generated: Path) -> Path:
        return generated / f"{self.case}_{self.source_format}_dp{self.source_dp}"

    def path(self, products, generated: Path) -> Path:
        source = self.source(generated)
        if self.to:
            return products.convert(source, self.to)
        return products.reshard(source, self.dp_size)


TORCH_DIST = (
    Made("gpt2l", "torch", 2, to="torch_dist"),
    Made("gpt5l_modern", "torch", 4, to="torch_dist"),
    Made("gpt12l", "torch", 3, to="torch_dist"),
    Made("gpt3l_qk_norm", "torch", 1, to="torch_dist"),
    Made("gpt2l_tied", "torch", 2, to="torch_dist"),
    Made("gpt2l_fused", "torch", 4, to="torch_dist"),
    Made("gpt2l_rng_per_rank", "torch", 2, to="torch_dist"),
    Made("gpt2l", "torch_dist", 2, dp_size=4),
    Made("gpt2l", "torch_dist", 4, dp_size=1),
    Made("gpt2l", "torch_dist", 1, dp_size=31),
    Made("gpt5l_modern", "torch_dist", 2, dp_size=4),
    Made("gpt12l", "torch_dist", 2, dp_size=3),
    Made("gpt2l_fused", "torch_dist", 4, dp_size=2),
    Made("gpt2l_fresh", "torch_dist", 2, dp_size=4),
)
TORCH = (
    Made("gpt2l", "torch_dist", 2, to="torch"),
    Made("gpt5l_modern", "torch_dist", 4, to="torch"),
    Made("gpt12l", "torch_dist", 2, to="torch"),
    Made("gpt3l_qk_norm", "torch_dist", 3, to="torch"),
    Made("gpt2l_tied", "torch_dist", 1, to="torch"),
    Made("gpt2l_fused", "torch_dist", 2, to="torch"),
    Made("gpt2l", "torch", 2, dp_size=4),
    Made("gpt2l", "torch", 4, dp_size=1),
    Made("gpt2l", "torch", 2, dp_size=31),
    Made("gpt2l", "torch", 31, dp_size=3),
    Made("gpt5l_modern", "torch", 2, dp_size=4),
    Made("gpt12l", "torch", 2, dp_size=3),
    Made("gpt2l_fused", "torch", 1, dp_size=4),
    Made("gpt2l_fresh", "torch", 2, dp_size=4),
)
WORLDS = (1, 2, 4)


def name_of(made: object) -> str:
    return made.name if isinstance(made, Made) else str(made)


def jobs_of(made: Made, folder: Path, generated: Path) -> list[dict]:
    restore = {
        "name": f"restore {made.name}",
        "kind": "restore",
        "world": made.world,
        "folder": str(folder),
        "format": made.format,
        "case": made.case,
    }
    if made.format == "torch":
        return [restore]
    iteration = str(iteration_folder(folder))
    # The state as Megatron wrote it in torch_dist, whatever we started from.
    expected = iteration_folder(generated / f"{made.case}_torch_dist_dp{made.source_dp}")
    jobs = [restore]
    for world in WORLDS:
        load_job = {
            "name": f"load {made.name} {world}",
            "kind": "load",
            "world": world,
            "folder": iteration,
            "expected": str(expected),
            "ignored": sorted(RESHARD_CHANGES if made.dp_size else CONVERSION_MAY_CHANGE),
        }
        strict = load_job | {"name": f"strict {made.name} {world}", "kind": "strict"}
        jobs += [load_job, strict]
    return jobs


CONTROL = "control: a state that is not the case's"


def control_job(generated: Path) -> dict:
    """Must report problems: without it, "no problem" would prove nothing."""
    return {
        "name": CONTROL,
        "kind": "restore",
        "world": 2,
        "folder": str(generated / "gpt2l_fresh_torch_dp2"),
        "format": "torch",
        "case": "gpt2l",
    }


@pytest.fixture(scope="session")
def megatron(products, generated: Path, tmp_path_factory) -> dict[str, list[str]]:
    """The problems of all jobs, by name; a folder that could not be made has no jobs."""
    jobs = [control_job(generated)]
    for made in (*TORCH_DIST, *TORCH):
        try:
            folder = made.path(products, generated)
        except pytest.fail.Exception:
            continue  # the test of this folder fails when it asks for it
        jobs += jobs_of(made, folder, generated)
    folder = tmp_path_factory.mktemp("megatron")
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(REPOSITORY / "tests/interop/megatron_client.py")]
    command += [str(folder / "jobs.json"), str(folder / "results.json")]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return json.loads((folder / "results.json").read_text())


def test_a_wrong_state_is_noticed(megatron: dict) -> None:
    assert any("master" in problem for problem in megatron[CONTROL])


@pytest.mark.parametrize("made", (*TORCH_DIST, *TORCH), ids=name_of)
def test_megatrons_own_optimizer_restores_every_value(made, megatron, products, generated) -> None:
    made.path(products, generated)
    assert megatron[f"restore {made.name}"] == []


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("made", TORCH_DIST, ids=name_of)
def test_megatron_loads_every_key(made, world: int, megatron, products, generated) -> None:
    made.path(products, generated)
    assert megatron[f"load {made.name} {world}"] == []
    assert megatron[f"strict {made.name} {world}"] == []


@pytest.mark.parametrize("made", TORCH, ids=name_of)
def test_torch_load_reads_rank_files_with_weights_only(made, products, generated) -> None:
    folder = made.path(products, generated)
    for rank in range(made.world):
        optimizers = torch.load(rank_file(folder, rank), weights_only=True)
        assert differences(optimizers, load(rank_file(folder, rank))) == []
    assert not rank_file(folder, made.world).exists()


@pytest.mark.parametrize("made", TORCH_DIST, ids=name_of)
def test_pytorch_dcp_loads_every_tensor(made, products, generated) -> None:
    folder = iteration_folder(made.path(products, generated))
    expected = DcpFolder(
        iteration_folder(generated / f"{made.case}_torch_dist_dp{made.source_dp}")
    )
    wanted = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in expected.tensors().items()
    }
    dcp.load(wanted, checkpoint_id=folder, no_dist=True)
    for key, tensor in wanted.items():
        assert bytes_of(tensor) == bytes_of(expected.tensor(key)), key


def test_pytorchs_converter_accepts_what_we_write_of_a_recorded_set(products, tmp_path) -> None:
    made = products.convert(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt", "torch_dist")
    dcp_to_torch_save(iteration_folder(made), tmp_path / "flat.pt")
    flat = torch.load(tmp_path / "flat.pt", weights_only=False)
    theirs = DcpFolder(iteration_folder(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"))
    assert flat.keys() == theirs.metadata.state_dict_metadata.keys()
    for key in theirs.tensors():
        assert bytes_of(flat[key]) == bytes_of(theirs.tensor(key)), key
