"""What Megatron-Core 0.15 and 0.16 wrote otherwise than the releases after them.

The files of other releases are changed to theirs here; real ones of both were read when this was
written (tests/can_load/make_sets.py makes them).
"""

from __future__ import annotations

import pickle
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from parallel_sets import needs_sets
from programs import BIN, GOLDEN, refuse, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
MODULE = "megatron.core.dist_checkpointing.strategies.torch"


def rewritten(root: Path, copy: Path, change: Callable[[Metadata], Metadata]) -> Path:
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    path = next(copy.glob("iter_*/.metadata"))
    path.write_bytes(pickle.dumps(change(pickle.loads(path.read_bytes()))))  # noqa: S301  (ours)
    return copy


def logical_hash(root: Path) -> str:
    return succeed("ckpt-inspect", "hash", root, "--logical").stdout


@pytest.mark.parametrize("name", ["lw_muon_bf16_torch_dist_dp2",
                                  "do_adam_bf16_torch_dist_dp_reshardable_dp2",
                                  "do_adam_bf16_torch_dist_fully_reshardable_dp2"])
def test_metadata_of_core_0_15(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of its own, with mcore_data."""
    module = types.ModuleType(MODULE)
    mcore_metadata = type("MCoreMetadata", (Metadata,), {"__module__": MODULE})
    module.MCoreMetadata = mcore_metadata
    for depth in range(1, MODULE.count(".") + 1):
        parent = MODULE.rsplit(".", depth)[0]
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, MODULE, module)

    def change(metadata: Metadata) -> Metadata:
        own = mcore_metadata(**vars(metadata))
        own.mcore_data = {key: {} for key in metadata.state_dict_metadata}
        return own

    root = GOLDEN / name / "ckpt"
    copy = rewritten(root, tmp_path / "ckpt", change)
    assert MODULE.encode() in next(copy.glob("iter_*/.metadata")).read_bytes()
    succeed("ckpt-inspect", "verify", copy)
    assert logical_hash(copy) == logical_hash(root)
    succeed("reshard", copy, tmp_path / "out", "--dp", "1")
    succeed("ckpt-inspect", "verify", tmp_path / "out")


def with_rng_of_data_ranks(root: Path, copy: Path, count: int) -> Path:
    """All but the first in a file of its own, with the bytes of the one that there is."""
    old = "rng_state/shard_0.0_1.1"

    def change(metadata: Metadata) -> Metadata:
        entry = metadata.state_dict_metadata.pop(old)
        place = metadata.storage_data.pop(MetadataIndex(old))
        folder = next(copy.glob("iter_*"))
        data = (folder / place.relative_path).read_bytes()
        for rank in range(count):
            key, file = f"rng_state/shard_0.0.{rank}_1.1.{count}", f"__{rank}_7.distcp"
            metadata.state_dict_metadata[key] = entry
            metadata.storage_data[MetadataIndex(key)] = place
            if rank > 0:
                (folder / file).write_bytes(data[place.offset:place.offset + place.length])
                metadata.storage_data[MetadataIndex(key)] = _StorageInfo(file, 0, place.length)
        return metadata

    return rewritten(root, copy, change)


@needs_sets
def test_random_states_of_core_0_16(sets: Path, tmp_path: Path) -> None:
    """Where experts are split, one of each data-parallel rank."""
    root = sets / "par_do_adam_moe_dp_reshardable_ep2dp2" / "ckpt"
    copy = with_rng_of_data_ranks(root, tmp_path / "ckpt", 4)
    succeed("ckpt-inspect", "verify", copy)
    succeed("reshard", copy, tmp_path / "out", "--ep", "1")
    succeed("ckpt-inspect", "verify", tmp_path / "out")
    wrong = with_rng_of_data_ranks(root, tmp_path / "wrong", 3)
    assert "rng_state" in refuse(3, "reshard", wrong, tmp_path / "none", "--ep", "1")
