"""Flat buffers of a DistributedOptimizer: what lies between parameters plays no part, and files
that contradict the layout of their run are refused by name, whatever they say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from damage import Damage, edit_args, edit_entries, edit_file, edit_metadata, edit_model
from parallel_sets import (
    DAMAGED,
    MALFORMED,
    NOT_FOUND,
    SOUND,
    UNSUPPORTED,
    expect_none,
    needs_sets,
    state_differences,
)
from programs import (
    BIN,
    GOLDEN,
    damage_of,
    logical_digest,
    refuse,
    run,
    run_bounded,
    succeed,
    verify,
)
from reading import iteration_folder, load

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
FILE = GOLDEN / "do_adam_bf16_torch_dp2"
BUCKETS = GOLDEN / "do_adam_bf16_torch_dist_dp_reshardable_dp2"
DTYPES = (torch.bfloat16, torch.float32)
BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32)" \
         ".bucket_idx_0"
SIZES = "optimizer.distributed.dp_group_idx_0.per_bucket_numel"


def flat_file(root: Path, rank: str = "00") -> Path:
    return iteration_folder(root) / f"mp_rank_{rank}/distrib_optim.pt"


def in_buffer(change: Callable[[dict], None]) -> Damage:
    return lambda root: edit_file(flat_file(root), lambda tree: change(tree[0][DTYPES]))


def in_object(name: str, value: object) -> Damage:
    """Another value in an object of dp_group_idx_0."""
    key = f"optimizer.distributed.dp_group_idx_0.{name}/shard_0_1"
    return edit_entries(lambda index, stored: [value] if index.fqn == key else stored)


# --- what lies between parameters ----------------------------------------------------------------


def places_of_params(recorded: Path) -> list[tuple[int, int]]:
    """[begin, end) of each parameter in the one bucket of the golden sets, in reverse order of
    registration: starts are multiples of 64."""
    model = [name for name in load(recorded)["model"] if not name.endswith("_extra_state")]
    shapes = load(recorded)["model"]
    places, next_start = [], 0
    for name in reversed(model):
        start = (next_start + 63) // 64 * 64
        next_start = start + shapes[name].numel()
        places.append((start, next_start))
    return places


PLACES = places_of_params(iteration_folder(FILE / "ckpt") / "mp_rank_00/model_optim_rng.pt")


def poison(buffer: torch.Tensor, first: int = 0) -> torch.Tensor:
    """NaN in every element that is no parameter's."""
    poisoned = torch.full_like(buffer, float("nan"))
    for begin, end in PLACES:
        begin, end = max(begin - first, 0), min(end - first, buffer.numel())
        if begin < end:
            poisoned[begin:end] = buffer[begin:end]
    return poisoned


def poison_file(buffer: dict) -> None:
    assert buffer["numel_unpadded"] == PLACES[-1][1]
    for state in ("param", "exp_avg", "exp_avg_sq"):
        buffer[state] = poison(buffer[state])


def poison_entry(index: MetadataIndex, stored: object) -> object:
    return poison(stored, index.offset[0]) if index.fqn.startswith(BUCKET) else stored


@pytest.mark.parametrize(("sample", "damage"), [
    (FILE, in_buffer(poison_file)), (BUCKETS, edit_entries(poison_entry))
], ids=["file", "buckets"])
def test_values_between_parameters_play_no_part(
    sample: Path, damage: Damage, copied, tmp_path: Path
) -> None:
    root = copied(sample / "ckpt")
    damage(root)
    before, after = tmp_path / "before.safetensors", tmp_path / "after.safetensors"
    succeed("ckpt-convert", sample / "ckpt", before, "--to", "safetensors")
    succeed("ckpt-convert", root, after, "--to", "safetensors")
    expect_none(state_differences(load_file(after), load_file(before)))
    assert not any(tensor.isnan().any() for tensor in load_file(after).values())
    assert logical_digest(root) == logical_digest(sample / "ckpt")
    code, document = verify(root)
    assert code == SOUND, damage_of(document)
    assert document["checked"]["masters"] == len(PLACES) or "dist" in sample.name


def test_both_containers_hold_one_state() -> None:
    assert logical_digest(FILE / "ckpt") == logical_digest(BUCKETS / "ckpt")


# --- files that contradict their run -------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    id: str
    sample: Path
    damage: Damage
    named: str  # regular expression of the error
    codes: tuple[int, ...] = (MALFORMED,)


def put(key: str, value: object) -> Callable[[dict], None]:
    return lambda buffer: buffer.update({key: value})


def other_key(tree: dict) -> None:
    tree[0] = {(torch.float16, torch.float32): tree[0][DTYPES]}


def rename(change: Callable[[str], str]) -> Damage:
    def damage(metadata: Metadata) -> None:
        for key in list(metadata.state_dict_metadata):
            renamed = change(key)
            metadata.state_dict_metadata[renamed] = metadata.state_dict_metadata.pop(key)
        for index in list(metadata.storage_data):
            place = metadata.storage_data.pop(index)
            metadata.storage_data[replace(index, fqn=change(index.fqn))] = place

    return edit_metadata(damage)


def change_shape(elements: int) -> Damage:
    def damage(metadata: Metadata) -> None:
        metadata.state_dict_metadata[f"{BUCKET}.param"].size = torch.Size([elements])

    return edit_metadata(damage)


def move_chunk(by: int) -> Damage:
    """A chunk that covers some elements of its neighbour, and leaves others to nobody."""
    key = f"{BUCKET}.exp_avg"

    def damage(metadata: Metadata) -> None:
        entry = metadata.state_dict_metadata[key]
        chunk = entry.chunks[1]
        moved = torch.Size([chunk.offsets[0] + by])
        entry.chunks[1] = replace(chunk, offsets=moved)
        index = next(i for i in metadata.storage_data if i.fqn == key and i.offset == chunk.offsets)
        place = metadata.storage_data.pop(index)
        metadata.storage_data[replace(index, offset=moved)] = place

    return edit_metadata(damage)


def lose(key: str) -> Damage:
    def damage(metadata: Metadata) -> None:
        del metadata.state_dict_metadata[key]
        for index in [index for index in metadata.storage_data if index.fqn == key]:
            del metadata.storage_data[index]

    return edit_metadata(damage)


def without_group(tree: dict) -> None:
    tree["optimizer"]["optimizer"]["param_groups"].pop()


def empty_group(tree: dict) -> None:
    group = tree["optimizer"]["optimizer"]["param_groups"][0]
    group["params"] = []
    del group["step"]


def with_state(tree: dict) -> None:
    tree["optimizer"]["optimizer"]["state"] = {0: {"exp_avg": torch.ones(3)}}


def left_over(root: Path) -> None:
    other = iteration_folder(root) / "mp_rank_01"
    other.mkdir()
    (other / "distrib_optim.pt").write_bytes(flat_file(root).read_bytes())


UNPADDED = [{DTYPES: [9856]}]
FAULTS = (
    Fault("numel_unpadded too small", FILE, in_buffer(put("numel_unpadded", 9792)),
          r"distrib_optim\.pt.*numel_unpadded.*is 9792, expected 9856"),
    Fault("numel_unpadded beyond 2^62", FILE, in_buffer(put("numel_unpadded", 1 << 62)),
          r"numel_unpadded.*expected 9856"),
    Fault("numel_unpadded negative", FILE, in_buffer(put("numel_unpadded", -1)),
          r"numel_unpadded.*is -1, expected 9856"),
    Fault("a short tensor", FILE, in_buffer(put("exp_avg", torch.zeros(64))),
          r"exp_avg.*does not have the 9856 elements"),
    Fault("a tensor of two dimensions", FILE, in_buffer(put("param", torch.zeros(2, 4928))),
          r"param.*does not have the 9856 elements"),
    Fault("no masters", FILE, in_buffer(lambda buffer: buffer.pop("param")),
          r"there is no 'param'"),
    Fault("masters of 16 bits", FILE,
          in_buffer(lambda buffer: buffer.update(param=buffer["param"].bfloat16())),
          r"the masters are not float32, but bfloat16", (UNSUPPORTED,)),
    Fault("no state", FILE, in_buffer(lambda buffer: [buffer.pop(key) for key in (
        "param", "exp_avg", "exp_avg_sq")]), r"holds no state"),
    Fault("a state called like masters", FILE,
          in_buffer(lambda buffer: buffer.update(fp32_param=buffer["param"] + 1)),
          r"'fp32_param' is not a name of optimizer state"),
    Fault("a state called like two", FILE,
          in_buffer(lambda buffer: buffer.update({"exp_avg.decoder": buffer["exp_avg"]})),
          r"'exp_avg\.decoder' is not a name of optimizer state"),
    Fault("state beside the buffers", FILE, edit_model(with_state),
          r"/optimizer/optimizer/state.*beside its flat buffers", (UNSUPPORTED,)),
    Fault("no buffer", FILE, lambda root: edit_file(flat_file(root), lambda tree: tree.pop(0)),
          r"holds 0 buffers, expected 1"),
    Fault("a buffer too many", FILE,
          lambda root: edit_file(flat_file(root), lambda tree: tree.update({1: tree[0]})),
          r"holds 2 buffers, expected 1"),
    Fault("another buffer", FILE,
          lambda root: edit_file(flat_file(root), lambda tree: tree.update({1: tree.pop(0)})),
          r"/0.*this buffer is missing"),
    Fault("a buffer of another type", FILE, lambda root: edit_file(flat_file(root), other_key),
          r"is not of the type of the model's weights, bfloat16"),
    Fault("not coalesced", FILE, lambda root: edit_file(
        flat_file(root), lambda tree: tree.update(buckets_coalesced=False)),
        r"buckets_coalesced.*is not True", (UNSUPPORTED,)),
    Fault("a group missing", FILE, edit_model(without_group),
          r"holds 1 groups, but the model's parameters need 2"),
    Fault("a group that says it is empty", FILE, edit_model(empty_group),
          r"param_groups/0/params.*groups list none"),
    Fault("a file too many", FILE, left_over, r"mp_rank_01.*unexpected rank file"),
    Fault("no file", FILE, lambda root: flat_file(root).unlink(),
          r"distrib_optim\.pt.*missing", (MALFORMED, NOT_FOUND)),
    Fault("args of other sizes", FILE, edit_args(data_parallel_size=0), r"data_parallel_size"),
    Fault("args of other buckets", FILE,
          edit_args(overlap_grad_reduce=True, ddp_bucket_size=16),
          r"numel_unpadded.*is 9856, expected \d+"),
    Fault("a bucket size of 0", FILE, edit_args(overlap_grad_reduce=True, ddp_bucket_size=0),
          r"ddp_bucket_size.*is not a valid size"),
    Fault("sizes of buckets", BUCKETS, in_object("per_bucket_numel", [{DTYPES: [9984]}]),
          r"per_bucket_numel/.*buckets of \[9984\] elements, expected \[9856\]"),
    Fault("sizes of more buckets", BUCKETS,
          in_object("per_bucket_numel_unpadded", [{DTYPES: [4928, 4928]}]),
          r"per_bucket_numel_unpadded.*\[4928, 4928\] elements, expected \[9856\]"),
    Fault("a million buckets", BUCKETS,
          in_object("per_bucket_numel_unpadded", [{DTYPES: [0] * 10**6}]), r"expected \[9856\]"),
    Fault("negative sizes", BUCKETS, in_object("per_bucket_numel", [{DTYPES: [-9856]}]),
          r"not a number of elements"),
    Fault("sizes of another type", BUCKETS,
          in_object("per_bucket_numel", [{(torch.float16, torch.float32): [9856]}]),
          r"per_bucket_numel/.*is of buffers of \(torch\.float16, torch\.float32\), but"),
    Fault("buffers of an FSDP of Megatron's", BUCKETS, edit_args(use_custom_fsdp=True),
          r"use_custom_fsdp.*is set", (UNSUPPORTED,)),
    Fault("sizes of two buffers", BUCKETS, in_object("per_bucket_numel", UNPADDED * 2),
          r"is of 2 buffers, expected 1"),
    Fault("no list of sizes", BUCKETS, in_object("per_bucket_numel_unpadded", {DTYPES: 9856}),
          r"not a list of buffers"),
    Fault("no groups", BUCKETS, in_object("optimizer", {"param_groups": []}),
          r"holds 0 groups, but the model's parameters need 2"),
    Fault("no sizes", BUCKETS, lose(f"{SIZES}/shard_0_1"), r"per_bucket_numel/shard_0_1.*missing"),
    Fault("no moments", BUCKETS, lose(f"{BUCKET}.exp_avg"),
          r"there is no 'exp_avg' beside it, which the optimizer keeps"),
    Fault("no second moments", FILE, in_buffer(lambda buffer: buffer.pop("exp_avg_sq")),
          r"there is no 'exp_avg_sq' beside it, which the optimizer keeps"),
    Fault("another bucket", BUCKETS,
          rename(lambda key: key.replace("bucket_idx_0", "bucket_idx_7")),
          r"has no bucket 0 of buffer 0"),
    Fault("a bucket beyond all numbers", BUCKETS,
          rename(lambda key: key.replace("bucket_idx_0", "bucket_idx_4294967296")),
          r"not a key of a DistributedOptimizer"),
    Fault("a number that is written otherwise", BUCKETS,
          rename(lambda key: key.replace("bucket_idx_0.exp_avg_sq", "bucket_idx_00.exp_avg_sq")),
          r"bucket_idx_00\.exp_avg_sq.*is not a key of a DistributedOptimizer"),
    Fault("state beside the buckets", BUCKETS,
          in_object("optimizer", {"param_groups": [], "state": {0: 1}}),
          r"/state.*beside its flat buffers", (UNSUPPORTED,)),
    Fault("another model-parallel rank", BUCKETS,
          rename(lambda key: key.replace("dp_group_idx_0", "dp_group_idx_3")),
          r"nothing of model-parallel rank 0"),
    Fault("another optimizer", BUCKETS,
          rename(lambda key: key.replace("optimizer.dist", "chained_9.optimizer.dist")),
          r"common\.pt.*/optimizer.*is missing"),
    Fault("a larger bucket", BUCKETS, change_shape(1 << 40), r"9856|chunks|elements"),
    Fault("a chunk over another", BUCKETS, move_chunk(-8), r"exp_avg"),
    Fault("args of other buckets", BUCKETS,
          edit_args(overlap_grad_reduce=True, ddp_bucket_size=1000), r"expected \["),
)


def expect_refused(fault: Fault, root: Path, tmp_path: Path) -> None:
    """By a conversion, by name; verify finds it, or says what it did not check."""
    made = tmp_path / "state.safetensors"
    outcome = run_bounded("ckpt-convert", root, made, "--to", "safetensors")
    assert outcome.code in fault.codes, outcome
    assert re.search(fault.named, outcome.stderr), outcome
    assert not made.exists()
    code, document = verify(root)
    assert code in (DAMAGED, *fault.codes) or document["not_checked"], document


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.sample.name[14:]}: {fault.id}")
def test_what_contradicts_the_run_is_refused_by_name(
    fault: Fault, copied, tmp_path: Path
) -> None:
    root = copied(fault.sample / "ckpt")
    fault.damage(root)
    expect_refused(fault, root, tmp_path)


def swap_in_buffer(buffer: dict) -> None:
    """Two parameters of one size change places, as another order of the buffer would have it."""
    sizes = [(begin, end - begin) for begin, end in PLACES]
    (one, size), (other, _) = [place for place in sizes if place[1] == 1024][:2]
    for state in ("param", "exp_avg", "exp_avg_sq"):
        first = buffer[state][one:one + size].clone()
        buffer[state][one:one + size] = buffer[state][other:other + size]
        buffer[state][other:other + size] = first


def test_parameters_in_each_others_place_are_found_by_their_masters(
    copied, tmp_path: Path
) -> None:
    root = copied(FILE / "ckpt")
    in_buffer(swap_in_buffer)(root)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "made", "--to", "safetensors")
    assert "does not round to the model's weight" in line
    code, document = verify(root)
    assert code == DAMAGED
    assert len(damage_of(document)) == 2


@needs_sets
def test_copies_of_tensor_parallel_ranks_must_be_equal(sets: Path, copied, tmp_path: Path) -> None:
    root = copied(sets / "par_do_adam_torch_tp2dp2/ckpt")

    def another_norm(tree: dict) -> None:
        # The last layer norm comes first but for the output layer, which is split.
        buffer = tree[0][DTYPES]["exp_avg"]
        buffer[2048:2080] += 1

    edit_file(flat_file(root, "01"), another_norm)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "made", "--to", "safetensors")
    assert "of which it should be a copy" in line and "exp_avg" in line


@needs_sets
def test_flat_buffers_beside_muon_are_resharded(sets: Path, tmp_path: Path) -> None:
    source = sets / "par_head_lw_muon_torch_dist_tp2dp2/ckpt"
    succeed("reshard", source, tmp_path / "made", "--tp", "1", "--dp", "3")
    assert logical_digest(tmp_path / "made") == logical_digest(source)


@pytest.mark.parametrize("sample", [FILE, BUCKETS], ids=["file", "buckets"])
def test_the_model_alone_is_carried(sample: Path, tmp_path: Path) -> None:
    made = tmp_path / "model.safetensors"
    succeed("ckpt-convert", sample / "ckpt", made, "--to", "safetensors", "--model-only")
    recorded = load_file(sample / "expected/state.safetensors")
    expected = {name.removeprefix("model."): value for name, value in recorded.items()}
    expect_none(state_differences(load_file(made), expected))
    succeed("ckpt-convert", sample / "ckpt", tmp_path / "root", "--to", "torch", "--model-only")
    assert run("ckpt-inspect", "verify", tmp_path / "root").code == SOUND


@pytest.mark.parametrize("sample", [FILE, BUCKETS], ids=["file", "buckets"])
def test_every_inspection_names_the_parameters(sample: Path) -> None:
    assert "DistributedOptimizer (ZeRO-1)" in succeed("ckpt-inspect", sample / "ckpt").stdout
    groups = succeed("ckpt-inspect", "groups", sample / "ckpt").stdout
    assert "decoder.layers.1.mlp.linear_fc2.weight" in groups
    other = BUCKETS if sample == FILE else FILE
    assert run("ckpt-inspect", "diff", sample / "ckpt", other / "ckpt").code == SOUND
