"""A resharded checkpoint is the one that Megatron writes of the same state for that many ranks."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from comparing import bytes_of, differences
from golden.cases import MEGATRON_CASES, Case
from programs import GOLDEN, logical_digest, refuse, run
from reading import DcpFolder, iteration_folder, load, load_torch_folder, model_file
from twins import twin_differences

RESHARDS = [
    (case, checkpoint_format, source, target)
    for case in MEGATRON_CASES
    for checkpoint_format in case.formats
    for source, target in itertools.permutations(case.dp_sizes, 2)
]


def reshard_id(value: object) -> str:
    return value.name if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(
    ("case", "checkpoint_format", "source", "target"), RESHARDS, ids=reshard_id
)
def test_generated_case_becomes_what_megatron_writes(
    case: Case, checkpoint_format: str, source: int, target: int, products, generated: Path
) -> None:
    """Values, groups, local indices, order, masters' attributes, args and duplicates."""
    start = generated / case.folder(checkpoint_format, source)
    made = products.reshard(start, target)
    theirs = generated / case.folder(checkpoint_format, target)
    assert twin_differences(made, theirs, through_torch_dist=False) == []
    assert logical_digest(made) == logical_digest(start)


@pytest.mark.parametrize("checkpoint_format", ["torch", "torch_dist"])
def test_a_chain_of_reshards_gives_the_start_back(
    checkpoint_format: str, products, generated: Path
) -> None:
    """DP 2 -> 4 -> 1 -> 3 -> 7 -> 2; the logical digest never changes on the way."""
    start = generated / f"gpt2l_{checkpoint_format}_dp2"
    digest, folder = logical_digest(start), start
    for dp_size in (4, 1, 3, 7, 2):
        folder = products.reshard(folder, dp_size)
        assert logical_digest(folder) == digest, dp_size
    assert twin_differences(folder, start, through_torch_dist=False) == []


@pytest.mark.parametrize("name", ["lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2"])
def test_a_chain_over_a_recorded_set_gives_the_start_back(name: str, products) -> None:
    start = folder = GOLDEN / name / "ckpt"
    digest = logical_digest(start)
    for dp_size in (4, 1, 3, 7, 31, 2):
        folder = products.reshard(folder, dp_size)
        assert logical_digest(folder) == digest, dp_size
    assert twin_differences(folder, start, through_torch_dist=False) == []


def named_state(root: Path, ownership: Path) -> dict[str, dict]:
    """Parameter name -> what an optimizer holds for it, by the owners that Megatron printed."""
    files = load_torch_folder(root)
    found = {}
    for name, place in json.loads(ownership.read_text()).items():
        optimizer = files[f"mp_rank_00/layer_wise_optimizer_{place['rank']}.pt"][place["optimizer"]]
        groups = optimizer["optimizer"]["param_groups"]
        position = groups[place["group"]]["params"].index(place["index"])
        found[name] = {
            "master": optimizer["fp32_from_fp16_params"][place["group"]][position],
            "state": optimizer["optimizer"]["state"][place["index"]],
        }
    return found


def without_values(value: object) -> object:
    """A tree with each tensor replaced by what is left of it without its numbers."""
    if isinstance(value, torch.Tensor):
        attributes = sorted(vars(value).items())
        return (type(value).__name__, str(value.dtype), tuple(value.shape), attributes)
    if isinstance(value, dict):
        return {key: without_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_values(item) for item in value]
    return value


def test_recorded_set_at_4_ranks_has_the_structure_that_megatron_wrote(products) -> None:
    """Structure from Megatron's own DP = 4 run, values from the set that was resharded."""
    source, theirs = (GOLDEN / f"lw_muon_bf16_torch_dp{dp_size}" for dp_size in (2, 4))
    made = products.reshard(source / "ckpt", 4)
    mine, others = load_torch_folder(made), load_torch_folder(theirs / "ckpt")
    assert list(mine) == list(others)
    for name in others:
        if "layer_wise_optimizer" in name:
            assert without_values(mine[name]) == without_values(others[name]), name
    expected = named_state(source / "ckpt", source / "expected/ownership.json")
    found = named_state(made, theirs / "expected/ownership.json")
    for name, state in expected.items():
        assert differences(found[name], state) == [], name
    model = mine["mp_rank_00/model_optim_rng.pt"]["model"]
    for name, state in found.items():
        assert bytes_of(state["master"].bfloat16()) == bytes_of(model[name]), name


def test_recorded_torch_dist_set_keeps_every_tensor_and_object(products) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
    before = DcpFolder(iteration_folder(source))
    for dp_size in (1, 4, 31):
        after = DcpFolder(iteration_folder(products.reshard(source, dp_size)))
        assert after.metadata.state_dict_metadata.keys() == (
            before.metadata.state_dict_metadata.keys()
        )
        for key in before.tensors():
            assert bytes_of(after.tensor(key)) == bytes_of(before.tensor(key)), key
        for key in before.objects():
            assert differences(after.object(key), before.object(key)) == [], key


def test_resharded_torch_dist_has_optimizer_chunks_in_the_owners_files(
    products, generated: Path
) -> None:
    """`__{rank}_*.distcp` holds what that rank owns, as where Megatron saves at that size."""

    def owners(root: Path) -> dict:
        return {
            (index.fqn, index.offset): place.relative_path.split("_")[2]
            for index, place in DcpFolder(iteration_folder(root)).metadata.storage_data.items()
            if index.fqn.startswith("optimizer.")
        }

    for name in ("gpt2l", "gpt5l_modern"):
        made = products.reshard(generated / f"{name}_torch_dist_dp2", 4)
        assert owners(made) == owners(generated / f"{name}_torch_dist_dp4"), name


def test_args_say_the_new_sizes(products, generated: Path) -> None:
    made = load(model_file(products.reshard(generated / "gpt2l_torch_dp2", 7)))["args"]
    assert (made.data_parallel_size, made.world_size, made.inprocess_active_world_size) == (7, 7, 7)
    folder = DcpFolder(
        iteration_folder(products.reshard(generated / "gpt2l_torch_dist_dp2", 7))
    )
    sizes = folder.common["args"]
    assert (sizes.data_parallel_size, sizes.world_size) == (7, 7)


def test_states_of_ranks_are_not_carried_to_another_size_and_that_is_said(
    generated: Path, tmp_path: Path
) -> None:
    source = generated / "gpt2l_rerun_torch_dist_dp2"
    outcome = run("reshard", source, tmp_path / "made", "--dp", 4)
    assert outcome.code == 0, outcome
    assert "rerun_state_machine" in outcome.text, outcome
    folder = DcpFolder(iteration_folder(tmp_path / "made"))
    assert "rerun_state_machine" not in folder.common
    assert not any(key.startswith("rerun_state_machine") for key in folder.objects())
    assert "rerun_state_machine" in refuse(
        4, "reshard", source, tmp_path / "strict", "--dp", 4, "--strict"
    )
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize("checkpoint_format", ["torch", "torch_dist"])
def test_random_state_of_each_rank_is_not_carried_to_another_size(
    checkpoint_format: str, generated: Path, tmp_path: Path
) -> None:
    source = generated / f"gpt2l_rng_per_rank_{checkpoint_format}_dp2"
    outcome = run("reshard", source, tmp_path / "made", "--dp", 4)
    assert outcome.code == 0, outcome
    assert "rng_state" in outcome.text, outcome
    assert "rng_state" in refuse(
        4, "reshard", source, tmp_path / "strict", "--dp", 4, "--strict"
    )
    assert not (tmp_path / "strict").exists()


def test_the_same_size_again_carries_everything(generated: Path, products) -> None:
    for name in ("gpt2l_rng_per_rank_torch_dp2", "gpt2l_rerun_torch_dist_dp2"):
        source = generated / name
        made = products.reshard(source, 2)
        assert twin_differences(made, source, through_torch_dist=False) == []


def test_masters_that_fit_several_weights_are_listed_and_refused_under_strict(
    generated: Path, tmp_path: Path
) -> None:
    """Biases of zero fit each other: the deal places them, their content does not prove it."""
    source = generated / "gpt2l_fresh_torch_dp2"
    outcome = run("reshard", source, tmp_path / "made", "--dp", 4)
    assert outcome.code == 0, outcome
    assert "decoder.layers.0.self_attention.linear_proj.bias" in outcome.text, outcome
    assert "embedding.word_embeddings.weight" not in outcome.text, outcome
    line = refuse(4, "reshard", source, tmp_path / "strict", "--dp", 4, "--strict")
    assert "bias" in line or "layernorm" in line, line
    assert not (tmp_path / "strict").exists()
