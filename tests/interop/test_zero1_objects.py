"""dp_zero_gather_scatter of Megatron-Core up to 0.14: all state of a DistributedOptimizer in one
object of each copy of the model. Made from the two golden sets that hold the same state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from damage import Damage, edit_args, edit_entries, edit_file, edit_metadata
from parallel_sets import (
    DAMAGED,
    SOUND,
    UNSUPPORTED,
    expect_none,
    needs_sets,
    state_differences,
)
from programs import BIN, damage_of, run, succeed, verify
from reading import iteration_folder, load
from test_zero1_flat import (
    BUCKET,
    BUCKETS,
    DTYPES,
    FILE,
    Fault,
    expect_refused,
    flat_file,
    lose,
    poison,
    put,
    rename,
)

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
COPY = "optimizer.distributed.dp_group_idx_0."


def as_objects(root: Path) -> None:
    """A dp_reshardable folder, its buckets and their sizes in one object."""
    gathered = load(flat_file(FILE / "ckpt"))

    def put_state(index: MetadataIndex, stored: object) -> object:
        return [gathered] if index.fqn == f"{COPY}per_bucket_numel/shard_0_1" else stored

    edit_entries(put_state)(root)
    for key in [f"{BUCKET}.{state}" for state in ("param", "exp_avg", "exp_avg_sq")]:
        lose(key)(root)
    lose(f"{COPY}per_bucket_numel_unpadded/shard_0_1")(root)
    rename(lambda key: key.replace("per_bucket_numel/", "param_state/"))(root)

    def say_so(common: dict) -> None:
        common["content_metadata"]["distrib_optim_sharding_type"] = "dp_zero_gather_scatter"
        common["optimizer"]["param_state_sharding_type"] = "dp_zero_gather_scatter"

    edit_file(iteration_folder(root) / "common.pt", say_so)
    edit_entries(lambda _, stored: stored)(root)  # without what is not named any more


def in_state(change: Callable[[dict], None]) -> Damage:
    """In the object that holds all state of dp_group_idx_0."""

    def damage(index: MetadataIndex, stored: object) -> object:
        if index.fqn != f"{COPY}param_state/shard_0_1":
            return stored
        changed = [dict(stored[0])]
        change(changed[0])
        return changed

    return edit_entries(damage)


def in_buffer(change: Callable[[dict], None]) -> Damage:
    return in_state(lambda state: change(state[0][DTYPES]))


def test_the_object_holds_the_state_of_the_file(copied, tmp_path: Path) -> None:
    root = copied(BUCKETS / "ckpt")
    as_objects(root)
    code, document = verify(root)
    assert code == SOUND, damage_of(document)
    assert document["checked"]["masters"] > 20 and document["not_checked"] == []
    made, expected = tmp_path / "made.safetensors", tmp_path / "expected.safetensors"
    succeed("ckpt-convert", root, made, "--to", "safetensors")
    succeed("ckpt-convert", FILE / "ckpt", expected, "--to", "safetensors")
    expect_none(state_differences(load_file(made), load_file(expected)))


def test_values_between_parameters_play_no_part(copied, tmp_path: Path) -> None:
    root = copied(BUCKETS / "ckpt")
    as_objects(root)
    in_buffer(lambda buffer: [buffer.update({state: poison(buffer[state])})
                              for state in ("param", "exp_avg", "exp_avg_sq")])(root)
    assert verify(root)[0] == SOUND
    made = tmp_path / "made.safetensors"
    succeed("ckpt-convert", root, made, "--to", "safetensors")
    assert not any(tensor.isnan().any() for tensor in load_file(made).values())


def over_itself(buffer: dict) -> None:
    """All elements in one place."""
    buffer["param"] = buffer["param"][:1].expand(buffer["param"].numel())


def beyond_storage(buffer: dict) -> None:
    """A view of twice its storage cannot be made by torch: the tensor says another size."""
    buffer["exp_avg_sq"] = torch.zeros(2 * buffer["exp_avg_sq"].numel())


def nan_moment(buffer: dict) -> None:
    buffer["exp_avg"] = buffer["exp_avg"].clone()
    buffer["exp_avg"][5] = float("nan")


def beside_a_bucket(metadata: Metadata) -> None:
    """A tensor of the model under a bucket's name."""
    key = "decoder.final_layernorm.weight"
    metadata.state_dict_metadata[f"{BUCKET}.param"] = metadata.state_dict_metadata.pop(key)
    for index in [index for index in metadata.storage_data if index.fqn == key]:
        place = metadata.storage_data.pop(index)
        metadata.storage_data[MetadataIndex(f"{BUCKET}.param", index.offset)] = place


FAULTS = (
    Fault("numel_unpadded too small", BUCKETS, in_buffer(put("numel_unpadded", 9792)),
          r"param_state/shard_0_1/.*numel_unpadded.*is 9792, expected 9856"),
    Fault("numel_unpadded beyond 2^62", BUCKETS, in_buffer(put("numel_unpadded", 1 << 62)),
          r"numel_unpadded.*expected 9856"),
    Fault("a short tensor", BUCKETS, in_buffer(put("exp_avg", torch.zeros(64))),
          r"param_state.*exp_avg.*does not have the 9856 elements"),
    Fault("a long tensor", BUCKETS, in_buffer(beyond_storage),
          r"exp_avg_sq.*does not have the 9856 elements"),
    Fault("two dimensions", BUCKETS, in_buffer(put("param", torch.zeros(2, 4928))),
          r"param.*does not have the 9856 elements"),
    Fault("no masters", BUCKETS, in_buffer(lambda buffer: buffer.pop("param")),
          r"there is no 'param'"),
    Fault("no second moments", BUCKETS, in_buffer(lambda buffer: buffer.pop("exp_avg_sq")),
          r"there is no 'exp_avg_sq' beside it"),
    Fault("masters of 16 bits", BUCKETS,
          in_buffer(lambda buffer: buffer.update(param=buffer["param"].bfloat16())),
          r"masters are .*bfloat16|masters are not float32", (UNSUPPORTED,)),
    Fault("a number for a tensor", BUCKETS, in_buffer(put("exp_avg", 3)),
          r"param_state.*exp_avg.*is not a tensor"),
    Fault("masters in one element", BUCKETS, in_buffer(over_itself), r"does not round to"),
    Fault("not coalesced", BUCKETS, in_state(lambda state: state.update(buckets_coalesced=False)),
          r"buckets_coalesced.*is not True", (UNSUPPORTED,)),
    Fault("no buffer", BUCKETS, in_state(lambda state: state.pop(0)),
          r"holds 0 buffers, expected 1"),
    Fault("another type", BUCKETS,
          in_state(lambda state: state.update(
              {0: {(torch.float16, torch.float32): state[0][DTYPES]}})),
          r"is not of the type of the model's weights, bfloat16"),
    Fault("no object", BUCKETS, lose(f"{COPY}param_state/shard_0_1"),
          r"per_bucket_numel_unpadded/shard_0_1.*is missing"),
    Fault("no groups", BUCKETS, lose(f"{COPY}optimizer/shard_0_1"),
          r"optimizer/shard_0_1.*is missing"),
    Fault("another copy", BUCKETS, rename(lambda key: key.replace("idx_0.p", "idx_7.p")),
          r"optimizer\.distributed\.dp_group_idx_\d.*(missing|not of a model-parallel rank)"),
    Fault("beside a bucket", BUCKETS, edit_metadata(beside_a_bucket),
          r"but the optimizer's state is in flat buffers"),
    Fault("args of other buckets", BUCKETS,
          edit_args(overlap_grad_reduce=True, ddp_bucket_size=16), r"numel_unpadded.*is 9856"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_what_contradicts_the_run_is_refused_by_name(
    fault: Fault, copied, tmp_path: Path
) -> None:
    root = copied(fault.sample / "ckpt")
    as_objects(root)
    fault.damage(root)
    expect_refused(fault, root, tmp_path)


def test_values_that_cannot_be_are_found_in_objects(copied) -> None:
    root = copied(BUCKETS / "ckpt")
    as_objects(root)
    in_buffer(nan_moment)(root)
    code, document = verify(root)
    assert code == DAMAGED
    assert ["1 value is NaN" in problem for problem in damage_of(document)] == [True]


def test_moments_in_the_storage_of_masters_are_found(copied) -> None:
    root = copied(BUCKETS / "ckpt")
    as_objects(root)
    in_buffer(lambda buffer: buffer.update(exp_avg_sq=buffer["param"]))(root)
    code, document = verify(root)
    assert code == DAMAGED
    assert any("negative" in problem for problem in damage_of(document))


@needs_sets
@pytest.mark.parametrize("layout", ["dp2", "tp2dp2"])
def test_the_state_is_written_in_a_form_of_today(layout: str, sets: Path, tmp_path: Path) -> None:
    source = sets / f"par_v012_do_adam_dp_zero_{layout}/ckpt"
    succeed("ckpt-convert", source, tmp_path / "a", "--to", "torch_dist")
    assert run("ckpt-inspect", "diff", tmp_path / "a", source).code == SOUND
    assert verify(tmp_path / "a")[0] == SOUND
