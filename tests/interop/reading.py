"""Independent readers of checkpoint folders: torch.load and PyTorch's own metadata classes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from comparing import bytes_of, differences

with contextlib.suppress(ImportError):  # the classes that Megatron's pickles name
    import megatron.core.rerun_state_machine
    import megatron.core.transformer.enums

    class NamedMembers(type):
        """Members of an enumeration, which pickles call by name or by value."""

        def __getattr__(cls, name: str) -> object:
            if name.startswith("_") or name == "value":
                raise AttributeError(name)
            return cls(name)

    @dataclasses.dataclass(frozen=True)
    class OfLaterMegatron(metaclass=NamedMembers):
        """What pickles of core 0.20-dev name, and the released package does not have."""

        value: object

    if not hasattr(megatron.core.transformer.enums, "InferenceCudaGraphScope"):
        megatron.core.transformer.enums.InferenceCudaGraphScope = OfLaterMegatron


def iteration_folder(root: Path) -> Path:
    """The folder that the tracker of a checkpoint root names."""
    return root / f"iter_{int((root / 'latest_checkpointed_iteration.txt').read_text()):07d}"


def load(path: Path) -> object:
    return torch.load(path, weights_only=False)


def load_torch_folder(root: Path) -> dict[str, object]:
    """The objects of all files of a `torch` checkpoint, by their path in the iteration folder."""
    folder = iteration_folder(root)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): load(path) for path in files}


def model_file(root: Path) -> Path:
    return iteration_folder(root) / "mp_rank_00/model_optim_rng.pt"


def rank_file(root: Path, rank: int) -> Path:
    return iteration_folder(root) / f"mp_rank_00/layer_wise_optimizer_{rank}.pt"


class DcpFolder:
    """A folder with `.metadata`, read where PyTorch's own metadata classes place the entries."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.metadata: Metadata = FileSystemReader(folder).read_metadata()

    @functools.cached_property
    def common(self) -> dict:
        """In a file, or since core 0.19 an object of the store."""
        path = self.folder / "common.pt"
        return load(path) if path.exists() else self.object("common_state/shard_0_1")[0]

    def tensors(self) -> dict[str, TensorStorageMetadata]:
        return self._entries(TensorStorageMetadata)

    def objects(self) -> dict[str, BytesStorageMetadata]:
        return self._entries(BytesStorageMetadata)

    def _entries(self, kind: type) -> dict:
        entries = self.metadata.state_dict_metadata
        return {key: entry for key, entry in entries.items() if isinstance(entry, kind)}

    def _load(self, index: MetadataIndex) -> object:
        place = self.metadata.storage_data[index]
        assert not place.transform_descriptors
        with open(self.folder / place.relative_path, "rb") as file:
            file.seek(place.offset)
            stored = file.read(place.length)
        assert len(stored) == place.length
        return torch.load(io.BytesIO(stored), weights_only=False)

    def object(self, key: str) -> object:
        return self._load(MetadataIndex(key))

    def chunks(self, key: str) -> dict[tuple, torch.Tensor]:
        """(offsets, sizes) -> the stored tensor."""
        found = {}
        for chunk in self.tensors()[key].chunks:
            tensor = self._load(MetadataIndex(key, chunk.offsets))
            assert tensor.shape == chunk.sizes, (key, tensor.shape, chunk.sizes)
            found[tuple(chunk.offsets), tuple(chunk.sizes)] = tensor
        return found

    def tensor(self, key: str) -> torch.Tensor:
        """All chunks put together; they must cover the tensor without overlap."""
        entry = self.tensors()[key]
        whole = torch.empty(entry.size, dtype=entry.properties.dtype)
        covered = 0
        for (offsets, sizes), part in self.chunks(key).items():
            box = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
            whole[box] = part
            covered += part.numel()
        assert covered == whole.numel(), key
        return whole


def is_tight(tensor: torch.Tensor) -> bool:
    """Row-major, alone in a storage of its own size."""
    tensor_bytes = tensor.numel() * tensor.element_size()
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor_bytes


def metadata_differences(ours: DcpFolder, theirs: DcpFolder) -> list[str]:
    """Keys, shapes, properties and chunk boxes; the order of chunks has no meaning (formats.md)."""
    if set(ours.metadata.state_dict_metadata) != set(theirs.metadata.state_dict_metadata):
        mine, others = set(ours.metadata.state_dict_metadata), theirs.metadata.state_dict_metadata
        return [f".metadata: keys {sorted(mine - set(others))} | {sorted(set(others) - mine)}"]
    found = differences(ours.metadata.planner_data, theirs.metadata.planner_data, path="planner")
    for key, entry in theirs.tensors().items():
        mine = ours.tensors().get(key)
        if mine is None or (mine.size, mine.properties) != (entry.size, entry.properties):
            found.append(f"{key}: {mine} | {entry}")
    for index, place in theirs.metadata.storage_data.items():
        mine = next(i for i in ours.metadata.storage_data if i == index)
        mine_place = ours.metadata.storage_data[mine]
        if mine_place.transform_descriptors != place.transform_descriptors:
            found.append(f"{index}: {mine_place} | {place}")
    if ours.metadata.version != theirs.metadata.version:
        found.append(f"version: {ours.metadata.version} | {theirs.metadata.version}")
    return found


def payload_differences(ours: DcpFolder, theirs: DcpFolder) -> list[str]:
    """Chunk boxes and bytes, and the objects."""
    found = []
    for key in theirs.tensors():
        mine, others = ours.chunks(key), theirs.chunks(key)
        if set(mine) != set(others):
            found.append(f"{key}: chunks {sorted(mine)} | {sorted(others)}")
            continue
        for box, tensor in mine.items():
            # PyTorch keeps the strides of a view; only type, shape and row-major bytes matter.
            if tensor.dtype != others[box].dtype or bytes_of(tensor) != bytes_of(others[box]):
                found.append(f"{key} {box}: values differ")
            if not is_tight(tensor):
                found.append(f"{key} {box}: carries more than itself")
    for key in theirs.objects():
        found += differences(ours.object(key), theirs.object(key), path=key)
    return found


def dcp_differences(ours: DcpFolder, theirs: DcpFolder) -> list[str]:
    found = metadata_differences(ours, theirs)
    return found or payload_differences(ours, theirs)
