"""DeepSpeed's ZeRO checkpoints are one state dict in fp32, and faults are found by file.

Samples here are imitations: what DeepSpeed 0.19.8 saves, by its source (runtime/zero, utils/
zero_to_fp32.py). ../shared/fixtures/worlds has real ones; skipped without them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from programs import BIN, FIXTURES, refuse, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, MALFORMED, UNSUPPORTED = 1, 3, 4
PACKED = FIXTURES / "worlds" / "sets.tar.zst"
SHAPES = {"words.weight": (7, 3), "up.weight": (5, 3), "up.bias": (5,), "scale": (1,)}
GROUPS = [["words.weight", "up.weight"], ["up.bias", "scale"]]
STEP = 4.0


class Address:
    """deepspeed.utils.tensor_fragment.fragment_address"""

    def __init__(self, numel: int, start: int):
        self.numel, self.start = numel, start


Address.__name__ = Address.__qualname__ = "fragment_address"
Address.__module__ = "deepspeed.utils.tensor_fragment"


def values(name: str, factor: float) -> torch.Tensor:
    count = torch.tensor(SHAPES[name]).prod().item()
    start = sum(ord(letter) for letter in name)
    return (torch.arange(count, dtype=torch.float32) + start).mul(factor).view(SHAPES[name])


def padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    return torch.cat([tensor, torch.zeros(-tensor.numel() % multiple)])


def partitions(factor: float, group: list[str], ranks: int, stage: int) -> list[torch.Tensor]:
    flat = [values(name, factor).flatten() for name in group]
    if stage == 3:  # each parameter is cut
        parts = [padded(each, ranks).chunk(ranks) for each in flat]
        return [torch.cat([part[rank] for part in parts]) for rank in range(ranks)]
    return list(padded(torch.cat(flat), 2 * ranks).chunk(ranks))


def mapping(group: list[str], rank: int, length: int) -> dict[str, Address]:
    found, offset = {}, 0
    for name in group:
        count = values(name, 1).numel()
        first, last = max(offset, rank * length), min(offset + count, (rank + 1) * length)
        if first < last:
            found[name] = Address(last - first, first - rank * length)
        offset += count
    return found


def model_state(stage: int, ranks: int) -> dict:
    module = {name: values(name, 1.5).bfloat16() if stage < 3 else torch.zeros(0).bfloat16()
              for name in SHAPES}
    return {
        "module": module | {"table": torch.tensor([0.1, 0.7]).bfloat16()},
        "buffer_names": ["table"],
        "param_shapes": [{name: torch.Size(SHAPES[name]) for name in group} for group in GROUPS],
        "frozen_param_shapes": None, "frozen_param_fragments": None,
        "shared_params": {"head.weight": "words.weight"}, "optimizer": None,
        "global_steps": int(STEP), "dp_world_size": ranks, "ds_version": "0.19.8",
    }


def optimizer_state(stage: int, ranks: int, rank: int) -> dict:
    parts = {factor: [partitions(factor, group, ranks, stage)[rank] for group in GROUPS]
             for factor in (1.5, 2, 3)}
    base = {
        "state": {i: {"step": torch.tensor(STEP), "exp_avg": parts[2][i],
                      "exp_avg_sq": parts[3][i]} for i in range(len(GROUPS))},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": i / 10,
                          "params": [i]} for i in range(len(GROUPS))],
    }
    if stage == 3:
        return {"zero_stage": stage, "partition_count": ranks, "optimizer_state_dict": base,
                "fp32_flat_groups": parts[1.5]}
    lengths = [sum(values(name, 1).numel() for name in group) for group in GROUPS]
    whole = [part.numel() for part in parts[1.5]]
    own = [part[:max(0, length - rank * part.numel())]  # without padding
           for part, length in zip(parts[1.5], lengths, strict=True)]
    return {"zero_stage": stage, "partition_count": [ranks] * len(GROUPS),
            "base_optimizer_state": base, "single_partition_of_fp32_groups": own,
            "param_slice_mappings": [mapping(group, rank, length)
                                     for group, length in zip(GROUPS, whole, strict=True)]}


OPTIMIZER = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
MODEL = "zero_pp_rank_{}_mp_rank_00_model_states.pt"


def save(root: Path, stage: int, ranks: int) -> Path:
    folder = root / "global_step4"
    folder.mkdir(parents=True)
    (root / "latest").write_text(folder.name)
    names = [MODEL.format(rank) for rank in range(ranks)] if stage == 3 else [
        "mp_rank_00_model_states.pt"]
    for name in names:
        torch.save(model_state(stage, ranks), folder / name)
    for rank in range(ranks):
        torch.save({"optimizer_state_dict": optimizer_state(stage, ranks, rank)},
                   folder / OPTIMIZER.format(rank))
    return folder


@pytest.fixture(autouse=True)
def deepspeed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("deepspeed", "deepspeed.utils", "deepspeed.utils.tensor_fragment"):
        module = types.ModuleType(name)
        module.fragment_address = Address
        monkeypatch.setitem(sys.modules, name, module)


def wanted() -> dict[str, torch.Tensor]:
    """What zero_to_fp32.py makes of it."""
    state = {"table": torch.tensor([0.1, 0.7]).bfloat16().float()}
    state |= {name: values(name, 1.5) for name in SHAPES}
    return state | {"head.weight": state["words.weight"]}


def check_equal(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


@pytest.mark.parametrize(("stage", "ranks"), [(1, 1), (1, 3), (2, 4), (3, 2), (3, 5)])
def test_zero_is_one_state_in_fp32(stage: int, ranks: int, tmp_path: Path) -> None:
    save(tmp_path / "ds", stage, ranks)
    assert verify(tmp_path / "ds")[0] == 0
    lost = succeed("ckpt-convert", tmp_path / "ds", tmp_path / "out.pt", "--to", "torch",
                   "--verify", "--json").json()["not_carried"]
    left_out = [each["what"] for each in lost if "weights of mp_rank_00" in each["what"]]
    assert len(left_out) == (0 if stage == 3 else 1)
    made = torch.load(tmp_path / "out.pt", weights_only=True)
    optimizer, rest = made.pop("optimizer"), made.pop("deepspeed")
    check_equal(made, wanted())
    assert optimizer["state"].keys() == SHAPES.keys()
    for name, state in optimizer["state"].items():
        check_equal(state, {"step": torch.tensor(STEP), "exp_avg": values(name, 2),
                            "exp_avg_sq": values(name, 3)})
    assert [group["params"] for group in optimizer["param_groups"]] == GROUPS
    assert rest["global_steps"] == STEP
    page = succeed("ckpt-inspect", tmp_path / "ds").stdout
    assert f"DeepSpeed ZeRO-{stage}" in page and f"step {STEP:.0f}" in page
    succeed("ckpt-convert", tmp_path / "ds", tmp_path / "m.safetensors", "--to", "safetensors",
            "--model-only")
    check_equal(load_file(tmp_path / "m.safetensors"), wanted())


def edited(path: Path, edit: Callable[[dict], object]) -> None:
    state = torch.load(path, weights_only=False)
    edit(state["optimizer_state_dict"])
    torch.save(state, path)


def swap(first: Path, second: Path) -> None:
    between = first.with_suffix(".between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


# Stage, what happens to three ranks' files, of which file it is said, what.
FAULTS: dict[str, tuple[int, Callable[[Path], object], str, str]] = {
    "missing": (1, lambda f: (f / OPTIMIZER.format(1)).unlink(), OPTIMIZER.format(1),
                "is missing"),
    "last missing": (3, lambda f: (f / OPTIMIZER.format(2)).unlink(), OPTIMIZER.format(2),
                     "is missing"),
    "model missing": (3, lambda f: (f / MODEL.format(1)).unlink(), MODEL.format(1), "is missing"),
    "one too many": (2, lambda f: shutil.copyfile(f / OPTIMIZER.format(0),
                                                  f / OPTIMIZER.format(3)),
                     OPTIMIZER.format(3), "is one too many"),
    "swapped": (1, lambda f: swap(f / OPTIMIZER.format(0), f / OPTIMIZER.format(1)),
                OPTIMIZER.format(0), "another rank saved it"),
    "swapped in ZeRO-3": (3, lambda f: swap(f / OPTIMIZER.format(0), f / OPTIMIZER.format(1)),
                          OPTIMIZER.format(1), f"was saved as {OPTIMIZER.format(0)}"),
    "cut": (3, lambda f: (f / OPTIMIZER.format(0)).write_bytes(
        (f / OPTIMIZER.format(0)).read_bytes()[:2000]), OPTIMIZER.format(0), "truncated"),
    "another save": (3, lambda f: edited(
        f / OPTIMIZER.format(2), lambda s: s["optimizer_state_dict"]["state"][0]["step"].add_(1)),
        OPTIMIZER.format(2), "is of another save"),
    "shorter": (3, lambda f: edited(
        f / OPTIMIZER.format(1), lambda s: s["fp32_flat_groups"].__setitem__(0, torch.zeros(3))),
        OPTIMIZER.format(1), "has "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_the_name_of_its_file(fault: str, tmp_path: Path) -> None:
    stage, change, file, said = FAULTS[fault]
    change(save(tmp_path / "ds", stage, 3))
    code, document = verify(tmp_path / "ds")
    assert code == DAMAGED
    assert any(each["file"] == file and said in each["problem"]
               for each in document["findings"]), document["findings"]
    refuse(MALFORMED, "ckpt-convert", tmp_path / "ds", tmp_path / "out.pt", "--to", "torch")
    assert not (tmp_path / "out.pt").exists()


def change_models(folder: Path, change: Callable[[dict], object]) -> None:
    for path in folder.glob("*mp_rank_00_model_states.pt"):
        state = torch.load(path, weights_only=False)
        change(state)
        torch.save(state, path)


# What the model's files say, the exit code, what is said of it.
COUNTS = {
    "of another save": ({"global_steps": 2}, DAMAGED,
                        "global_steps is 2, but the optimizer has taken 4 steps"),
    "skipped": ({"global_steps": 4, "skipped_steps": 1}, 0, ""),  # a step made the state
    "of a later save": ({"global_steps": 9}, DAMAGED, "global_steps is 9, but"),
    "all skipped": ({"global_steps": 6, "skipped_steps": 2}, 0, "the state is from step 6"),
}


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("case", COUNTS)
def test_steps_of_model_and_optimizer_are_compared(case: str, stage: int, tmp_path: Path) -> None:
    stated, code, said = COUNTS[case]
    change_models(save(tmp_path / "ds", stage, 2), lambda state: state.update(stated))
    found, document = verify(tmp_path / "ds")
    assert found == code and said in str(document["findings"] + document["not_proven"]), document


def test_masters_are_compared_with_the_weights_of_the_model(tmp_path: Path) -> None:
    folder = save(tmp_path / "ds", 2, 3)
    document = verify(tmp_path / "ds")[1]
    assert document["checked"]["masters"] == document["passed"]["masters"] == 4
    change_models(folder, lambda state: state["module"]["up.weight"].view(-1)[7:].mul_(2))
    code, document = verify(tmp_path / "ds")
    assert code == DAMAGED and [
        (each["file"], each["key"], each["problem"]) for each in document["findings"]] == [
        ("mp_rank_00_model_states.pt", "/module/up.weight",
         "8 of 15 elements differ from the rounded fp32 master, the first at index 7")]


@pytest.mark.parametrize("name", [
    "mp_rank_01_model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt",
    "layer_02-model_states.pt"])
def test_other_parallelism_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "ds", 1, 2)
    torch.save({}, folder / name)
    assert name in refuse(UNSUPPORTED, "ckpt-inspect", "ls", tmp_path / "ds")


@pytest.mark.skipif(not PACKED.is_file(), reason="no worlds")
def test_real_checkpoints_are_what_zero_to_fp32_makes_of_them(tmp_path: Path) -> None:
    plain = subprocess.run(["zstd", "-dcq", PACKED], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", tmp_path, "-xf", "-"], input=plain, check=True)
    fp32 = torch.load(tmp_path / "deepspeed_zero1_fp32" / "pytorch_model.bin")
    for name in ("zero1", "zero1_universal", "zero3", "zero3_universal"):
        folder, made = tmp_path / f"deepspeed_{name}", tmp_path / f"{name}.safetensors"
        assert verify(folder)[0] == 0, name
        succeed("ckpt-convert", folder, made, "--to", "safetensors", "--model-only")
        found = load_file(made)
        if "zero3" not in name:
            check_equal(found, dict(fp32))
            continue
        universal = tmp_path / "deepspeed_zero3_universal" / "zero"
        check_equal(found, {
            key: torch.load(universal / key / "fp32.pt").detach().view(value.shape)
            for key, value in fp32.items()})


def test_frozen_parameters_keep_their_type(tmp_path: Path) -> None:
    folder = save(tmp_path, 2, 2)
    path, frozen = folder / "mp_rank_00_model_states.pt", torch.tensor([0.25, 0.5]).bfloat16()
    tree = torch.load(path, weights_only=False)
    tree |= {"frozen_param_shapes": {"still": frozen.shape},
             "frozen_param_fragments": {"still": frozen}}
    torch.save(tree, path)
    succeed("ckpt-convert", folder, tmp_path / "made.safetensors", "--to", "safetensors")
    found = load_file(tmp_path / "made.safetensors")["still"]
    assert found.dtype == torch.bfloat16 and torch.equal(found, frozen)


def test_it_does_not_differ_from_the_file_that_is_made_of_it(tmp_path: Path) -> None:
    folder = save(tmp_path, 2, 2)
    succeed("ckpt-convert", folder, tmp_path / "made.pt", "--to", "torch")
    said = succeed("ckpt-inspect", "diff", folder, tmp_path / "made.pt").stdout
    assert said.startswith("equal: ")
