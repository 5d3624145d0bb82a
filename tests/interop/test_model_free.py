"""Checkpoints of models that no rule knows: half of the keys are renamed at random."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import Metadata

from comparing import bytes_of, differences
from damage import edit_file, edit_metadata
from parallel_pairs import Sizes, sizes
from parallel_sets import (
    IS_LONG, UNSUPPORTED, expect_none, needs_sets, recorded_state, sizes_of_args,
    state_differences,
)
from programs import run, succeed
from reading import DcpFolder, iteration_folder, load

pytestmark = needs_sets
SEEDS = range(10 if IS_LONG else 2)
OPTIMIZER = re.compile(r"(optimizer\.state\.[a-z_0-9]+\.)?(.+)")
LAYER = re.compile(r"(decoder\.layers\.(?:\d+\.)?)?(.+)")


class Renaming:
    """One new name for a parameter wherever it occurs: its weight, its states, all its layers. What
    stands before it, the number of its layer included, is kept."""

    def __init__(self, parameters: set[str], seed: int):
        dice = random.Random(seed)
        rests = sorted({LAYER.fullmatch(name)[2] for name in parameters})
        chosen = dice.sample(rests, k=(len(rests) + 1) // 2)
        self.names = {rest: f"m{dice.randbytes(4).hex()}.x" for rest in chosen}

    def __call__(self, key: str) -> str:
        states, name = OPTIMIZER.fullmatch(key).groups()
        layers, rest = LAYER.fullmatch(name).groups()
        return f"{states or ''}{layers or ''}{self.names.get(rest, rest)}"


def rename_index(new_name: Callable[[str], str]) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        entries, places = metadata.state_dict_metadata, metadata.storage_data
        metadata.state_dict_metadata = {new_name(key): entry for key, entry in entries.items()}
        metadata.storage_data = {
            replace(index, fqn=new_name(index.fqn)): place for index, place in places.items()
        }

    return change


def parameters_of(folder: DcpFolder) -> set[str]:
    return {key for key in folder.tensors() if not key.startswith("optimizer.")}


TARGETS = (
    ("par_lw_muon_torch_dist_tp2pp2dp2", sizes()),
    ("par_lw_muon_torch_dist_tp2pp2dp2", sizes(tp=2, dp=3)),
    ("par_lw_muon_torch_dist_dp4", sizes(pp=4, dp=2)),
    ("par_lw_muon_torch_dist_pp2vpp2dp2", sizes(pp=2, dp=5)),
    ("par_lw_muon_llama_torch_dist_tp2dp2", sizes(pp=2, vpp=2, dp=2)),
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("source, target", TARGETS, ids=str)
def test_torch_dist_of_an_unknown_model_goes_to_other_sizes_and_back(
    source: str, target: Sizes, seed: int, sets: Path, copied, reshards
) -> None:
    root = copied(sets / source / "ckpt")
    renaming = Renaming(parameters_of(DcpFolder(iteration_folder(root))), seed)
    edit_metadata(rename_index(renaming))(root)
    before = DcpFolder(iteration_folder(root))
    made = reshards.make(root, target).root
    back = reshards.make(made, sizes_of(before)).root
    for folder in (DcpFolder(iteration_folder(path)) for path in (made, back)):
        assert folder.tensors().keys() == before.tensors().keys()
        for key in before.tensors():
            assert bytes_of(folder.tensor(key)) == bytes_of(before.tensor(key)), key
    expect_none(differences(DcpFolder(iteration_folder(back)).common, before.common))
    assert sizes_of(DcpFolder(iteration_folder(made))) == target


def sizes_of(folder: DcpFolder) -> Sizes:
    return sizes_of_args(folder.common["args"])


def model_files(root: Path) -> list[Path]:
    return sorted(iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"))


def rename_model(root: Path, new_name: Callable[[str], str]) -> None:
    """In every model file, in place: the order is what gives masters their names."""

    def change(tree: dict) -> None:
        for key in [key for key in tree if re.fullmatch(r"model\d*", key)]:
            model = tree[key]
            entries = list(model.items())
            model.clear()
            model.update((new_name(name), value) for name, value in entries)

    for path in model_files(root):
        edit_file(path, change)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_of_unknown_experts_are_not_guessed(
    seed: int, sets: Path, copied, tmp_path: Path
) -> None:
    root = copied(sets / "par_lw_muon_moe_torch_dist_ep2dp2" / "ckpt")
    edit_metadata(rename_index(Renaming(parameters_of(DcpFolder(iteration_folder(root))), seed)))(
        root
    )
    outcome = run("reshard", root, tmp_path / "made", "--pp", 2, "--dp", 2)
    assert outcome.code == UNSUPPORTED, outcome
    assert "--model-rules" in outcome.stderr, outcome


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "source",
    ["par_lw_muon_torch_dp4", "par_lw_muon_torch_tp2dp2", "par_lw_muon_torch_tp2pp2dp2"],
)
def test_torch_files_of_an_unknown_model_have_order_and_splits(
    source: str, seed: int, sets: Path, copied, tmp_path: Path
) -> None:
    """Names come from the order of the model, splits from what masters say of themselves. Which
    optimizer an embedding belongs to, or an expert's group, its name alone tells: such are
    refused with what would be enough."""
    root, expected = copied(sets / source / "ckpt"), recorded_state(sets / source)
    renaming = Renaming({name for name in expected if not name.startswith("optimizer.")}, seed)
    rename_model(root, renaming)
    made, flat = tmp_path / "made", tmp_path / "state.safetensors"
    outcome = run("ckpt-convert", root, made, "--to", "torch_dist")
    if outcome.code != 0:
        assert outcome.code == UNSUPPORTED, outcome
        assert "--model-rules" in outcome.stderr, outcome
        return
    succeed("ckpt-convert", made, flat, "--to", "safetensors")
    renamed = {renaming(name): value for name, value in expected.items()}
    expect_none(state_differences(load_file(flat), renamed))


def test_renaming_leaves_half_of_the_names(sets: Path) -> None:
    names = {name for name in recorded_state(sets / "par_lw_muon_torch_dp4")
             if not name.startswith("optimizer.")}
    renaming = Renaming(names, 0)
    kept = [name for name in names if renaming(name) == name]
    assert 0.2 < len(kept) / len(names) < 0.8
    assert load(model_files(sets / "par_lw_muon_torch_dp4/ckpt")[0])["model"].keys() >= names
    assert len({renaming(name) for name in names}) == len(names)
