"""Wrong successes of conversions: what a target cannot hold is refused or listed, not dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from comparing import differences
from damage import edit_args, edit_model, edit_rank
from programs import BIN, GOLDEN, logical_digest, refuse, run, succeed
from reading import DcpFolder, iteration_folder, load_torch_folder, model_file, rank_file
from reading import load as load_file

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

SAMPLE = GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt"
TO_DIST = ("--to", "torch_dist")
UNSUPPORTED = 4


def in_all_files(change: Callable[[list], None]) -> Callable[[Path], None]:
    """Changes rank 0's and rank 1's optimizers, and the copy of rank 0's in the model file."""

    def damage(root: Path) -> None:
        edit_rank(0, change)(root)
        edit_rank(1, change)(root)
        edit_model(lambda tree: change(tree["optimizer"]))(root)

    return damage


def in_rank_0(change: Callable[[list], None]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        edit_rank(0, change)(root)
        edit_model(lambda tree: change(tree["optimizer"]))(root)

    return damage


# --- what torch_dist has no place for is refused before anything is written ---


def without_a_moment(ranks: list) -> None:
    del ranks[0]["optimizer"]["state"][1]["momentum_buffer"]


def with_a_further_state(ranks: list) -> None:
    state = ranks[0]["optimizer"]["state"][1]
    state["zzz"] = state["momentum_buffer"].clone()


def with_a_moment_of_doubles(ranks: list) -> None:
    state = ranks[0]["optimizer"]["state"][3]  # of a layer
    state["momentum_buffer"] = state["momentum_buffer"].double()


def one_layer_in_other_numbers(tree: dict) -> None:
    name = "decoder.layers.1.mlp.linear_fc2.bias"
    tree["model"][name] = tree["model"][name].half()


def without_a_bias_in_one_layer(tree: dict) -> None:
    del tree["model"]["decoder.layers.1.mlp.linear_fc1._extra_state"]


@dataclass(frozen=True)
class Row:
    what: str
    damage: Callable[[Path], None]
    mentions: tuple[str, ...]


UNSTACKABLE = (
    Row("a parameter lacks a state", in_rank_0(without_a_moment), ("none", "momentum_buffer")),
    Row("a parameter has one more", in_rank_0(with_a_further_state), ("zzz",)),
    Row("a state of another type", in_rank_0(with_a_moment_of_doubles), ("float64", "float32")),
    Row("a layer of another type", edit_model(one_layer_in_other_numbers), ("float16", "bfloat16")),
    Row("a layer lacks something", edit_model(without_a_bias_in_one_layer), ("1 of the 2 layers",)),
)


@pytest.mark.parametrize("row", UNSTACKABLE, ids=lambda row: row.what)
def test_layers_that_differ_are_not_stacked(row: Row, copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    row.damage(root)
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "made", *TO_DIST)
    assert all(mention in line for mention in row.mentions), line
    assert not (tmp_path / "made").exists()


def test_layers_behind_the_last_are_damage(copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    edit_args(num_layers=1)(root)
    line = refuse(3, "ckpt-convert", root, tmp_path / "made", *TO_DIST)
    assert "decoder.layers.1." in line and "does not have" in line
    assert not (tmp_path / "made").exists()


# --- the same on one rank, where parameters are numbered in the order of the model ---


def numbered_anew(optimizer: dict, kept: list[list[int]]) -> None:
    """Keeps these local indices of each group, and numbers on from 0."""
    inner = optimizer["optimizer"]
    states = [inner["state"][index] for group in kept for index in group]
    inner["state"] = dict(enumerate(states))
    position = 0
    for group, indices in zip(inner["param_groups"], kept, strict=True):
        group["params"] = list(range(position, position + len(indices)))
        position += len(indices)
    first = 0
    for number, masters in enumerate(optimizer["fp32_from_fp16_params"]):
        optimizer["fp32_from_fp16_params"][number] = [masters[i - first] for i in kept[number]]
        first += len(masters)


def without(optimizer: dict, dropped: set[int]) -> None:
    counts = [len(group["params"]) for group in optimizer["optimizer"]["param_groups"]]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    numbered_anew(optimizer, [
        [i for i in range(start, start + count) if i not in dropped]
        for start, count in zip(starts, counts, strict=True)])


FC1 = "decoder.layers.1.mlp.linear_fc1.weight"
FC1_INDEX = 7  # among Muon's: position embeddings, then four matrices of each layer


def without_fc1_in_layer_1(model: dict, optimizers: list) -> None:
    del model[FC1]
    without(optimizers[0], {FC1_INDEX})


def with_a_smaller_fc1_in_layer_1(model: dict, optimizers: list) -> None:
    model[FC1] = model[FC1][:60].clone()
    masters = optimizers[0]["fp32_from_fp16_params"][0]
    masters[FC1_INDEX] = masters[FC1_INDEX][:60].clone()
    state = optimizers[0]["optimizer"]["state"][FC1_INDEX]
    state["momentum_buffer"] = state["momentum_buffer"][:60].clone()


def without_layer_0(model: dict, optimizers: list) -> None:
    for name in [name for name in model if name.startswith("decoder.layers.0.")]:
        del model[name]
    without(optimizers[0], set(range(1, 5)))
    without(optimizers[1], set(range(2, 10)))  # behind the word embeddings and the output layer


# How the model is changed, what the refusal mentions, and whether verify takes it for whole.
HETEROGENEOUS = {
    "layer 1 lacks a weight": (without_fc1_in_layer_1, "1 of the 2 layers", False),
    "layer 1 is smaller": (with_a_smaller_fc1_in_layer_1, "a different shape", True),
    "layer 0 is missing": (without_layer_0, "1 of the 2 layers", True),
}


@pytest.fixture(scope="module")
def on_one_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("one") / "rank"
    succeed("reshard", SAMPLE, made, "--dp", "1")
    return made


@pytest.mark.parametrize("row", HETEROGENEOUS.values(), ids=HETEROGENEOUS)
def test_models_whose_layers_differ_stay_in_torch_files(
    row: tuple, on_one_rank: Path, copied, tmp_path: Path
) -> None:
    change, mention, whole = row
    root = copied(on_one_rank)
    model, optimizers = load_file(model_file(root)), load_file(rank_file(root, 0))
    change(model["model"], optimizers)
    model["optimizer"] = optimizers
    torch.save(model, model_file(root))
    torch.save(optimizers, rank_file(root, 0))
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "made", *TO_DIST)
    assert mention in line, line
    reshard = ("reshard", root, tmp_path / "dp2", "--dp", "2", "--strict")
    if whole:
        succeed(*reshard, "--verify")
    else:
        assert FC1 in refuse(3, *reshard, "--verify")
        succeed(*reshard)
    assert logical_digest(tmp_path / "dp2") == logical_digest(root)


@pytest.mark.parametrize(
    "args", [{"moe_layer_freq": [0, 1]}, {"moe_layer_freq": 2}, {"linear_attention_freq": 2}],
    ids=str,
)
def test_layers_that_args_call_different_have_keys_of_their_own(
    args: dict, copied, tmp_path: Path
) -> None:
    """As Megatron's TransformerBlock.sharded_state_dict files non-homogeneous layers."""
    root = copied(SAMPLE)
    edit_args(**args)(root)
    succeed("ckpt-convert", root, tmp_path / "made", *TO_DIST, "--verify")
    folder = DcpFolder(iteration_folder(tmp_path / "made"))
    model = load_file(model_file(root))["model"]
    name = "decoder.layers.1.mlp.linear_fc1.weight"
    assert torch.equal(folder.tensor(name), model[name])
    norm = "decoder.layers.1.input_layernorm.weight"  # under the name of the fused module
    fused = "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight"
    assert torch.equal(folder.tensor(fused), model[norm])
    assert "decoder.layers.1.mlp.linear_fc1._extra_state/shard_0_1" in folder.objects()
    assert not any(key.startswith("decoder.layers.mlp") for key in folder.tensors())
    assert logical_digest(tmp_path / "made") == logical_digest(root)
    succeed("ckpt-convert", tmp_path / "made", tmp_path / "back", "--to", "torch", "--verify")
    assert logical_digest(tmp_path / "back") == logical_digest(root)


# --- what optimizers say beside their state ---


def inner_extra(ranks: list) -> None:
    ranks[0]["optimizer"]["extra"] = {"seen": torch.arange(3), "by": "a plugin", "none": {}}


def outer_extra(value: object) -> Callable[[list], None]:
    return lambda ranks: ranks[1].update(extra=value)


def test_what_all_ranks_state_is_carried_both_ways(copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    in_all_files(inner_extra)(root)
    in_all_files(outer_extra([1, {}]))(root)
    succeed("ckpt-convert", root, tmp_path / "dist", *TO_DIST, "--verify")
    succeed("ckpt-convert", tmp_path / "dist", tmp_path / "back", "--to", "torch", "--verify")
    for rank in (0, 1):
        ours = load_file(rank_file(tmp_path / "back", rank))
        theirs = load_file(rank_file(root, rank))
        assert not differences(ours[0]["optimizer"]["extra"], theirs[0]["optimizer"]["extra"])
        assert ours[1]["extra"] == theirs[1]["extra"]


BY_RANK = {
    "each rank another": (outer_extra(1), outer_extra(2), "optimizer.1/extra"),
    "equal but for a tensor's values": (
        outer_extra(torch.zeros(4)), outer_extra(torch.ones(4)), "optimizer.1/extra"),
    "rank 0 alone": (outer_extra(1), None, "optimizer.1/extra"),
    "rank 1 alone": (None, outer_extra(2), "optimizer.1/extra"),
    "in the wrapped optimizer": (inner_extra, None, "optimizer.0/optimizer/extra"),
}


@pytest.mark.parametrize("rows", BY_RANK.values(), ids=BY_RANK)
def test_what_differs_by_rank_stays_with_its_rank_or_is_listed(
    rows: tuple, copied, tmp_path: Path
) -> None:
    on_rank_0, on_rank_1, name = rows
    root = copied(SAMPLE)
    if on_rank_0:
        in_rank_0(on_rank_0)(root)
    if on_rank_1:
        edit_rank(1, on_rank_1)(root)
    succeed("ckpt-convert", root, tmp_path / "same", "--to", "torch", "--verify", "--strict")
    assert not differences(
        {k: v for k, v in load_torch_folder(tmp_path / "same").items() if "layer_wise" in k},
        {k: v for k, v in load_torch_folder(root).items() if "layer_wise" in k})
    for program, options in (("ckpt-convert", TO_DIST), ("reshard", ("--dp", "3"))):
        outcome = succeed(program, root, tmp_path / program, *options)
        assert f"not carried: {name}: rank" in outcome.stdout, outcome
        line = refuse(UNSUPPORTED, program, root, tmp_path / "strict", *options, "--strict")
        assert not (tmp_path / "strict").exists(), line


def test_a_key_that_is_not_a_string_is_refused(copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    in_all_files(lambda ranks: ranks[0].update({5: "five"}))(root)
    line = refuse(UNSUPPORTED, "reshard", root, tmp_path / "made", "--dp", "3")
    assert "not a string" in line


# --- attributes of tensors ---


def mark(tensor: torch.Tensor) -> None:
    tensor.seen_by = "a plugin"


def test_attributes_of_tensors_are_kept_by_torch_and_listed_else(copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    key = "output_layer.weight"
    edit_model(lambda tree: mark(tree["model"][key]))(root)
    in_rank_0(lambda ranks: mark(ranks[0]["optimizer"]["state"][0]["momentum_buffer"]))(root)
    in_rank_0(lambda ranks: mark(ranks[0]["fp32_from_fp16_params"][0][0]))(root)
    succeed("reshard", root, tmp_path / "dp3", "--dp", "3", "--strict", "--verify")
    assert load_file(model_file(tmp_path / "dp3"))["model"][key].seen_by == "a plugin"
    ranks = [load_file(rank_file(tmp_path / "dp3", rank)) for rank in range(3)]
    kept = [m.seen_by for r in ranks for g in r[0]["fp32_from_fp16_params"] for m in g
            if hasattr(m, "seen_by")]
    assert kept == ["a plugin"]
    outcome = succeed("ckpt-convert", root, tmp_path / "dist", *TO_DIST, "-v")
    listed = [line for line in outcome.stdout.splitlines() if "attributes of" in line]
    assert len(listed) == 3 and all("seen_by" in line for line in listed), outcome
    assert not any("partition_dim" in line for line in listed), outcome
    refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "strict", *TO_DIST, "--strict")


def test_requires_grad_and_classes_of_tensors_are_listed(copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    key = "output_layer.weight"
    edit_model(lambda tree: tree["model"].update(
        {key: torch.nn.Parameter(tree["model"][key])}))(root)
    outcome = succeed("reshard", root, tmp_path / "made", "--dp", "3")
    assert f"not carried: requires_grad of {key}" in outcome.stdout, outcome


# --- moments of fewer bits, both ways ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_moments_of_any_float_go_there_and_back(dtype, copied, tmp_path: Path) -> None:
    def change(ranks: list) -> None:
        for optimizer in ranks:
            for state in optimizer["optimizer"]["state"].values():
                state.update({k: v.to(dtype) for k, v in state.items() if k != "step"})

    root = copied(SAMPLE)
    in_all_files(change)(root)
    succeed("ckpt-convert", root, tmp_path / "dist", *TO_DIST, "--verify")
    succeed("reshard", tmp_path / "dist", tmp_path / "dp3", "--dp", "3", "--verify")
    succeed("ckpt-convert", tmp_path / "dp3", tmp_path / "back", "--to", "torch", "--dp", "2",
            "--verify")
    assert logical_digest(tmp_path / "back") == logical_digest(root)


def test_moments_of_integers_are_refused(copied, tmp_path: Path) -> None:
    def change(ranks: list) -> None:
        state = ranks[0]["optimizer"]["state"][0]
        state["momentum_buffer"] = state["momentum_buffer"].int()

    root = copied(SAMPLE)
    in_rank_0(change)(root)
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "made", *TO_DIST)
    assert "integers" in line


# --- the result is looked at before it is published ---


def test_verify_refuses_to_publish_what_verify_finds(copied, tmp_path: Path) -> None:
    """A NaN in a moment is carried as it is, but not under --verify, which promises soundness."""
    def change(ranks: list) -> None:
        ranks[0]["optimizer"]["state"][0]["momentum_buffer"].view(-1)[0] = float("nan")

    root = copied(SAMPLE)
    in_rank_0(change)(root)
    assert run("ckpt-inspect", "verify", root).code == 1
    succeed("ckpt-convert", root, tmp_path / "carried", *TO_DIST)
    line = refuse(3, "ckpt-convert", root, tmp_path / "made", *TO_DIST, "--verify")
    assert "would not pass verify" in line and "momentum_buffer" in line
    assert not (tmp_path / "made").exists()


# --- step counts ---


def test_a_step_count_that_one_parameter_lacks_is_not_invented(copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    edit_rank(1, lambda ranks: ranks[1]["optimizer"]["state"][0].pop("step"))(root)
    line = refuse(3, "reshard", root, tmp_path / "made", "--dp", "3")
    assert "step" in line and "is missing" in line


def test_attributes_of_step_counts_are_listed(copied, tmp_path: Path) -> None:
    root = copied(SAMPLE)
    edit_rank(1, lambda ranks: mark(ranks[1]["optimizer"]["state"][0]["step"]))(root)
    outcome = succeed("reshard", root, tmp_path / "made", "--dp", "3")
    assert "not carried: attributes of optimizer.state.step." in outcome.stdout, outcome
    assert "seen_by" in outcome.stdout, outcome
    refuse(UNSUPPORTED, "reshard", root, tmp_path / "strict", "--dp", "3", "--strict")
