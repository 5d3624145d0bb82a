"""Checkpoints as Megatron-LM writes them under Generalized Tensor Parallelism (its change 4967).

An imitation: no such run is possible without TransformerEngine and its GPUs. It follows the source
of core 0.20-dev (d98e8a64dd): gtp_remat_shard_dim0 pads the rows of each tensor-parallel part,
make_tp_sharded_tensor_for_checkpoint describes every shard with its padding as real rows (issue
7168), apply_swiglu_sharded_factory halves each shard of a gated fc1 (7161). The last is Megatron's
own, as the installed package has it. `load_shifted` is what such a run takes from a checkpoint
without padding. Flat buckets of dp_reshardable, which GTP cuts, too, stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import shutil
from pathlib import Path

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from damage import edit_args
from reading import DcpFolder, iteration_folder

ROWS, COLUMNS = 0, 1  # the axis that tensor-parallel ranks cut
AXIS = {"word_embeddings.weight": ROWS, "output_layer.weight": ROWS, "linear_qkv.weight": ROWS,
        "linear_fc1.weight": ROWS, "linear_proj.weight": COLUMNS, "linear_fc2.weight": COLUMNS}


@dataclasses.dataclass(frozen=True)
class Gtp:
    tensor: int
    size: int  # gtp_weight_remat_size
    alignment: int = 16  # GTP_CONFIG.pad_for_alignment
    is_gated: bool = True
    noise: bool = False  # TransformerEngine initializes padding, too; local modules pad with zeros
    shifted: bool = False


def axis_of(key: str) -> int | None:
    return next((axis for name, axis in AXIS.items() if key.endswith(name)), None)


def is_gated(key: str, gtp: Gtp) -> bool:
    return gtp.is_gated and "linear_fc1" in key


def parts_of(layer: torch.Tensor, key: str, gtp: Gtp) -> list[torch.Tensor]:
    """What tensor-parallel ranks hold."""
    if axis_of(key) == COLUMNS:
        return list(layer.chunk(gtp.tensor, 1))
    halves = layer.chunk(2) if is_gated(key, gtp) else [layer]
    return [torch.cat(own) for own in zip(*(half.chunk(gtp.tensor) for half in halves))]


def padded(part: torch.Tensor, key: str, gtp: Gtp) -> torch.Tensor:
    alignment = gtp.alignment * gtp.size
    missing = -len(part) % alignment
    fill = torch.zeros(missing, part.shape[1], dtype=part.dtype)
    is_weight = "exp_avg" not in key and "momentum" not in key
    if gtp.noise and is_weight and "vocab" not in key and "embedding" not in key:
        fill += 0.5  # the same in bf16 and in float32
    return torch.cat([part, fill])


def shards_of(part: torch.Tensor, gtp: Gtp) -> list[torch.Tensor]:
    return list(part.chunk(gtp.size))


def described(key: str, shards: list[list[torch.Tensor]], gtp: Gtp,
              before: tuple) -> list[ShardedTensor]:
    """[tensor-parallel rank][GTP rank]: by make_tp_sharded_tensor_for_checkpoint."""
    made, n = [], len(before)
    for t, of_rank in enumerate(shards):
        for g, shard in enumerate(of_rank):
            if axis_of(key) == ROWS:
                offsets = [(n, t * gtp.size + g, gtp.tensor * gtp.size)]
            else:
                offsets = [(n + 1, t, gtp.tensor), (n, g, gtp.size)]
            one = ShardedTensor.from_rank_offsets(
                key, shard.contiguous(), *before, *offsets, replica_id=(0, 0, 0),
                prepend_axis_num=n)
            if is_gated(key, gtp):
                factory = apply_swiglu_sharded_factory(one, before)
                made += factory.build()
            else:
                made.append(one)
    return made


def read_box(whole: torch.Tensor, one: ShardedTensor) -> torch.Tensor:
    """A shard as a load takes it from a tensor of fewer rows: what is not there stays zero."""
    taken = torch.zeros(one.local_shape, dtype=whole.dtype)
    offset = one.global_offset[one.prepend_axis_num:]
    begin = [min(o, s) for o, s in zip(offset, whole.shape)]
    end = [min(o + n, s) for o, n, s in zip(offset, one.local_shape, whole.shape)]
    box = tuple(slice(b, e) for b, e in zip(begin, end))
    taken[tuple(slice(0, e - b) for b, e in zip(begin, end))] = whole[box]
    return taken


def sharded(key: str, whole: torch.Tensor, gtp: Gtp) -> list[ShardedTensor]:
    is_stacked = whole.dim() == 3
    layers = whole if is_stacked else whole[None]
    made = []
    for i, layer in enumerate(layers):
        before = ((0, i, len(layers)),) if is_stacked else ()
        shards = [shards_of(padded(part, key, gtp), gtp) for part in parts_of(layer, key, gtp)]
        of_layer = described(key, shards, gtp, before)
        if gtp.shifted:
            for one in of_layer:
                one.data = read_box(layer, one)
        made += of_layer
    return made


def write(root: Path, to: Path, gtp: Gtp) -> Path:
    """A torch_dist checkpoint of `gtp.tensor` ranks, as a run under GTP has it."""
    shutil.copytree(root, to, copy_function=shutil.copyfile)
    folder = iteration_folder(to)
    source = DcpFolder(iteration_folder(root))
    metadata, entries = copy.deepcopy(source.metadata), source.metadata.storage_data
    metadata.storage_data, name, written = {}, "__0_0.distcp", bytearray()

    def put(index: MetadataIndex, content: bytes, like: object) -> None:
        metadata.storage_data[index] = dataclasses.replace(
            like, relative_path=name, offset=len(written), length=len(content))
        written.extend(content)

    for index, place in entries.items():
        if axis_of(index.fqn) is None:
            stored = (source.folder / place.relative_path).read_bytes()
            put(index, stored[place.offset:place.offset + place.length], place)
    for key, entry in source.tensors().items():
        if axis_of(key) is None:
            continue
        pieces, chunks = sharded(key, source.tensor(key), gtp), []
        for number, one in enumerate(pieces):
            data = one.data.reshape(*[1] * one.prepend_axis_num, *one.data.shape)
            content, offset = io.BytesIO(), torch.Size(one.global_offset)
            torch.save(data.clone(), content)
            chunks.append(ChunkStorageMetadata(offset, torch.Size(data.shape)))
            put(MetadataIndex(key, offset, number), content.getvalue(), place)
        size = torch.Size(pieces[0].global_shape)
        metadata.state_dict_metadata[key] = TensorStorageMetadata(entry.properties, size, chunks)
    for path in [*folder.glob("*.distcp"), *to.glob("shardwise-proof.json")]:
        path.unlink()
    (folder / name).write_bytes(bytes(written))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))
    edit_args(gtp_weight_remat_size=gtp.size, expert_gtp_weight_remat_size=1,
              tensor_parallel_num_weight_shards=gtp.size * gtp.tensor,
              expert_tensor_parallel_num_weight_shards=1)(to)
    return to
