"""Float32 parameters among bf16 ones, which are what an optimizer steps: Megatron-LM's change 5929.

tests/golden/native_fp32.tar.xz: runs of d98e8a64dd, `native*` of scripts/golden/run. There a
DistributedOptimizer stores such a weight once more, as its master; other optimizers do not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from damage import Damage, edit_entries, edit_file, edit_metadata, edit_model
from parallel_sets import (
    DAMAGED,
    MALFORMED,
    SOUND,
    UNSUPPORTED,
    expect_none,
    load_canonical,
    state_differences,
)
from parallel_twins import NAMES_OF_MODULES, Twins
from programs import BIN, GOLDEN, damage_of, logical_digest, run, succeed, verify
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

FULLY = ("--to", "torch_dist", "--optimizer-sharding", "fully_reshardable")
FAMILIES = {
    "zero1": ("zero1_torch_dp2", "zero1_dp_reshardable_dp2", "zero1_fully_reshardable_dp2",
              "zero1_fully_reshardable_tp2dp2"),
    "adam": ("adam_torch_dp2",),
    "muon": ("torch_dp1", "torch_dp2"),
}
ZERO1 = FAMILIES["zero1"]
MASTER = "optimizer.state.fp32_param."
OF_RANKS = NAMES_OF_MODULES | {"/rng_state", "/rerun_state_machine", "/args/@sequence_parallel"}
ROUTER = "decoder.layers.mlp.router.weight"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    subprocess.run(["tar", "-xJf", GOLDEN / "native_fp32.tar.xz", "-C", folder], check=True)
    return folder


def expected(family: str, runs: Path) -> dict[str, torch.Tensor]:
    """As Megatron had it, each tensor once: it gives float32 parameters as their own masters."""
    state = dict(load_canonical(runs / f"{family}.safetensors"))
    for name in [name for name in state if name.startswith(MASTER)]:
        weight = state[name.removeprefix(MASTER)]
        if weight.dtype == torch.float32:
            assert torch.equal(state.pop(name), weight)
    return state


@pytest.mark.parametrize(("family", "name"), [
    (family, name) for family, names in FAMILIES.items() for name in names])
def test_the_state_is_that_of_the_run(
    family: str, name: str, runs: Path, tmp_path: Path
) -> None:
    made = tmp_path / "state.safetensors"
    succeed("ckpt-convert", runs / name, made, "--to", "safetensors")
    expect_none(state_differences(load_file(made), expected(family, runs)))
    code, document = verify(runs / name)
    assert (code, document["not_checked"], document["not_proven"]) == (SOUND, [], [])
    assert document["checked"]["masters"] == document["passed"]["masters"] > 0


@pytest.mark.parametrize("name", ZERO1)
def test_other_sizes_are_what_megatron_writes_at_them(
    name: str, runs: Path, tmp_path: Path
) -> None:
    made, theirs = tmp_path / "made", runs / "zero1_fully_reshardable_tp2dp2"
    succeed("ckpt-convert", runs / name, made, *FULLY, "--target-megatron", "2026-08",
            "--tp", 2, "--dp", 2, "--verify")
    assert verify(made)[0] == SOUND
    assert logical_digest(made) == logical_digest(runs / name) == logical_digest(theirs)
    expect_none(Twins(made, theirs, with_attributes=False, ignored=OF_RANKS,
                      without_keys=("rerun_state_machine", "rng_state/")).differences())


def test_rank_files_are_what_megatron_writes(runs: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    succeed("reshard", runs / "torch_dp1", made, "--dp", 2)
    expect_none(Twins(made, runs / "torch_dp2", ignored=NAMES_OF_MODULES).differences())
    back = tmp_path / "back"
    succeed("ckpt-convert", runs / "adam_torch_dp2", made / "dist", "--to", "torch_dist")
    succeed("ckpt-convert", made / "dist", back, "--to", "torch")
    assert logical_digest(back) == logical_digest(runs / "adam_torch_dp2")


def refused(code: int, *words: object) -> str:
    """The error and its hint."""
    outcome = run("ckpt-convert", *words)
    assert outcome.code == code, outcome
    return outcome.stderr


@pytest.mark.parametrize("words", [
    ("--to", "torch"), ("--to", "torch_dist", "--optimizer-sharding", "dp_reshardable")],
    ids=lambda words: words[-1])
def test_forms_that_megatron_does_not_load_are_refused(
    words: tuple, runs: Path, tmp_path: Path
) -> None:
    text = refused(UNSUPPORTED, runs / "zero1_fully_reshardable_dp2", tmp_path / "out", *words)
    assert "is float32, which Megatron saves" in text and "does not load" in text
    assert "--optimizer-sharding fully_reshardable" in text


def test_state_that_megatron_takes_for_anothers_is_refused(runs: Path, tmp_path: Path) -> None:
    source = runs / "swapped_fully_reshardable_dp2"
    code, document = verify(source)
    assert code == SOUND and damage_of(document) == []
    assert "file one's state as another's" in document["not_proven"][0]["reason"]
    assert "pre_mlp_layernorm.weight" in document["not_checked"][0]["reason"]
    text = refused(UNSUPPORTED, source, tmp_path / "out", *FULLY)
    assert "pre_mlp_layernorm.weight" in text and "the state of one parameter for that" in text
    assert "--model-only" in text
    succeed("ckpt-convert", source, tmp_path / "model", "--to", "torch_dist", "--model-only")
    # Nor is it written: unsharded, bf16 parameters come first.
    text = refused(UNSUPPORTED, runs / "adam_torch_dp2", tmp_path / "zero1", *FULLY)
    assert "takes the state of one parameter for that of another" in text
    assert "leave out --optimizer-sharding" in text


@pytest.mark.parametrize(("name", "release", "code", "text"), [
    ("zero1_fully_reshardable_dp2", "2026-08", 0, "continues"),
    ("zero1_fully_reshardable_dp2", "0.19", UNSUPPORTED, "before August 2026"),
    ("zero1_dp_reshardable_dp2", "2026-08", 1, "a view of a leaf Variable"),
    ("zero1_torch_dp2", "2026-08", 1, "a view of a leaf Variable"),
    ("adam_torch_dp2", "2026-08", 0, "continues")])
def test_can_load_says_what_megatron_did(
    name: str, release: str, code: int, text: str, runs: Path
) -> None:
    outcome = run("ckpt-inspect", "can-load", runs / name, "--target-megatron", release)
    assert outcome.code == code and text in outcome.text, outcome


# --- faults --------------------------------------------------------------------------------------


def in_store(state: str) -> Damage:
    def change(index: object, value: object) -> object:
        if index.fqn != f"optimizer.state.{state}.{ROUTER}":
            return value
        value = value.clone()
        value.view(-1)[3] += 1
        return value

    return edit_entries(change)


def in_buffer(root: Path) -> None:
    def change(tree: dict) -> None:
        [buffer] = [of_type for buffers in tree.values() if isinstance(buffers, dict)
                    for key, of_type in buffers.items() if key == (torch.float32, torch.float32)]
        buffer["param"][3] += 1

    edit_file(iteration_folder(root) / "mp_rank_00/distrib_optim.pt", change)


@pytest.mark.parametrize(("name", "damage", "param"), [
    ("zero1_fully_reshardable_dp2", in_store("param"), "mlp.router.weight"),
    ("zero1_torch_dp2", in_buffer, ""),
], ids=("torch_dist", "torch"))
def test_a_master_that_is_not_its_float32_weight_is_damage(
    name: str, damage: Callable, param: str, runs: Path, copied, tmp_path: Path
) -> None:
    root = copied(runs / name)
    damage(root)
    code, document = verify(root)
    assert code == DAMAGED
    [found] = [line for line in damage_of(document) if "differs from the weight" in line]
    assert param in found
    assert "differs from the weight" in refused(MALFORMED, root, tmp_path / "out", *FULLY)


def test_a_master_that_lacks_is_missed(runs: Path, copied, tmp_path: Path) -> None:
    root, key = copied(runs / "zero1_fully_reshardable_dp2"), f"optimizer.state.param.{ROUTER}"

    def drop(metadata: object) -> None:
        del metadata.state_dict_metadata[key]
        for index in [index for index in metadata.storage_data if index.fqn == key]:
            del metadata.storage_data[index]

    edit_metadata(drop)(root)
    text = refused(MALFORMED, root, tmp_path / "out", *FULLY)
    assert "optimizer.state.param.decoder.layers.0.mlp.router.weight" in text
    assert "is missing" in text


def test_a_precision_aware_optimizer_is_not_understood(runs: Path, copied, tmp_path: Path) -> None:
    root = copied(runs / "zero1_torch_dp2")
    edit_model(lambda tree: setattr(tree["args"], "use_precision_aware_optimizer", True))(root)
    text = refused(UNSUPPORTED, root, tmp_path / "out", *FULLY)
    assert "use_precision_aware_optimizer" in text and "--model-only" in text
