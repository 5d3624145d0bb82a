"""Ways to damage a copy of a checkpoint, each a function of its root folder."""

from __future__ import annotations

import io
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from comparing import bytes_of
from reading import DcpFolder, iteration_folder, load, model_file, rank_file

Damage = Callable[[Path], None]
MOMENT = "optimizer.state.exp_avg.output_layer.weight"


def edit_file(path: Path, change: Callable[[object], None]) -> None:
    """Loads a torch.save file, changes the tree in place, saves it again."""
    tree = load(path)
    change(tree)
    torch.save(tree, path)


def edit_rank(rank: int, change: Callable[[list], None]) -> Damage:
    return lambda root: edit_file(rank_file(root, rank), change)


def edit_model(change: Callable[[dict], None]) -> Damage:
    return lambda root: edit_file(model_file(root), change)


def edit_args(**values: object) -> Damage:
    """Other arguments in the `torch` model file or in common.pt of torch_dist."""

    def damage(root: Path) -> None:
        common = iteration_folder(root) / "common.pt"
        path = common if common.exists() else model_file(root)
        edit_file(path, lambda tree: vars(tree["args"]).update(values))

    return damage


def view_duplicate_otherwise(tree: dict) -> None:
    """One tensor of rank 0's state in the model file: the same bytes, read by columns."""
    states = tree["optimizer"][0]["optimizer"]["state"]
    state = next(state for state in states.values() if state["momentum_buffer"].dim() == 2)
    rows, columns = state["momentum_buffer"].shape
    state["momentum_buffer"] = state["momentum_buffer"].as_strided((rows, columns), (1, rows))


def without_checksums(damage: Damage) -> Damage:
    """The same, but that torch.save states no CRC-32 in what it writes."""

    def run(root: Path) -> None:
        torch.serialization.set_crc32_options(False)
        try:
            damage(root)
        finally:
            torch.serialization.set_crc32_options(True)

    return run


def edit_metadata(change: Callable[[Metadata], None]) -> Damage:
    """Changes `.metadata` as PyTorch's own classes hold it."""

    def damage(root: Path) -> None:
        path = iteration_folder(root) / ".metadata"
        metadata = pickle.loads(path.read_bytes())
        change(metadata)
        path.write_bytes(pickle.dumps(metadata, protocol=4))

    return damage


def edit_entries(change: Callable[[MetadataIndex, object], object]) -> Damage:
    """Every entry of a torch_dist folder as `change` gives it back, laid out anew."""

    def damage(root: Path) -> None:
        folder = iteration_folder(root)
        metadata: Metadata = pickle.loads((folder / ".metadata").read_bytes())
        files: dict[str, list[MetadataIndex]] = {}
        for index, place in metadata.storage_data.items():
            files.setdefault(place.relative_path, []).append(index)
        for name, indices in files.items():
            stored = (folder / name).read_bytes()
            written = bytearray()
            for index in sorted(indices, key=lambda i: metadata.storage_data[i].offset):
                place = metadata.storage_data[index]
                entry = stored[place.offset:place.offset + place.length]
                value = torch.load(io.BytesIO(entry), weights_only=False)
                changed = change(index, value)
                if changed is not value:
                    new = io.BytesIO()
                    torch.save(changed, new)
                    entry = new.getvalue()
                metadata.storage_data[index] = replace(
                    place, offset=len(written), length=len(entry))
                written += entry
            (folder / name).write_bytes(bytes(written))
        (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))

    return damage


def truncate(path_of: Callable[[Path], Path], by: int) -> Damage:
    def damage(root: Path) -> None:
        path = path_of(root)
        path.write_bytes(path.read_bytes()[:-by])

    return damage


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    """Exactly one occurrence must be there."""
    content = path.read_bytes()
    assert content.count(old) == 1, (path, content.count(old))
    path.write_bytes(content.replace(old, new))


def flip_payload_bit(path: Path, tensor: torch.Tensor) -> None:
    """One bit of a stored tensor; the archive's CRC-32 no longer fits."""
    stored = bytes_of(tensor)
    replace_bytes(path, stored, stored[:100] + bytes([stored[100] ^ 1]) + stored[101:])


def flip_in_torch_file(root: Path) -> None:
    optimizers = load(rank_file(root, 1))
    momentum = optimizers[0]["optimizer"]["state"][0]["momentum_buffer"]
    flip_payload_bit(rank_file(root, 1), momentum)


def flip_in_distcp(root: Path) -> None:
    folder = DcpFolder(iteration_folder(root))
    place = next(p for i, p in folder.metadata.storage_data.items() if i.fqn == MOMENT)
    flip_payload_bit(folder.folder / place.relative_path, folder.tensor(MOMENT))


def rename_metadata_key(metadata: Metadata) -> None:
    renamed = MOMENT.replace("output", "outqut")
    metadata.state_dict_metadata[renamed] = metadata.state_dict_metadata.pop(MOMENT)
    for index in [index for index in metadata.storage_data if index.fqn == MOMENT]:
        place = metadata.storage_data.pop(index)
        metadata.storage_data[replace(index, fqn=renamed)] = place


def grow_shape(metadata: Metadata) -> None:
    entry = metadata.state_dict_metadata[MOMENT]
    entry.size = torch.Size((entry.size[0] * 2, *entry.size[1:]))


def grow_chunk(metadata: Metadata) -> None:
    chunk = metadata.state_dict_metadata[MOMENT].chunks[0]
    metadata.state_dict_metadata[MOMENT].chunks[0] = replace(
        chunk, sizes=torch.Size((chunk.sizes[0] * 2, *chunk.sizes[1:]))
    )


def change_dtype(metadata: Metadata) -> None:
    entry = metadata.state_dict_metadata[MOMENT]
    entry.properties = replace(entry.properties, dtype=torch.int32)


def move_place(**change: object) -> Callable[[Metadata], None]:
    def damage(metadata: Metadata) -> None:
        for index, place in metadata.storage_data.items():
            if index.fqn == MOMENT:
                metadata.storage_data[index] = replace(place, **change)

    return damage


def point_into_other_entry(metadata: Metadata) -> None:
    """Starts within the entry of another tensor of the same shape and type."""
    master = MOMENT.replace("exp_avg", "fp32_param")
    other = next(index for index in metadata.storage_data if index.fqn == master)
    index = next(i for i in metadata.storage_data if i.fqn == MOMENT)
    place = metadata.storage_data[other]
    metadata.storage_data[index] = replace(place, offset=place.offset + 1)


def drop_chunk(metadata: Metadata) -> None:
    key = "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.bias"
    del metadata.state_dict_metadata[key].chunks[1]


def other_iteration(optimizers: list) -> None:
    """What rank 1 would have saved an iteration later."""
    for optimizer in optimizers:
        for state in optimizer["optimizer"]["state"].values():
            if "step" in state:
                state["step"] += 1
        for group in optimizer["fp32_from_fp16_params"]:
            for master in group:
                master.data.mul_(1.01)


def move_parameter(root: Path) -> None:
    """Rank 1's last Adam parameter goes to the end of rank 0's list: no deal gives these sizes."""
    giver, taker = load(rank_file(root, 1)), load(rank_file(root, 0))
    source, target = giver[1], taker[1]
    index = source["optimizer"]["param_groups"][1]["params"].pop()
    new_index = len(target["optimizer"]["state"])
    target["optimizer"]["param_groups"][1]["params"].append(new_index)
    target["optimizer"]["state"][new_index] = source["optimizer"]["state"].pop(index)
    master = source["fp32_from_fp16_params"][1].pop()
    target["fp32_from_fp16_params"][1].append(master)
    torch.save(giver, rank_file(root, 1))
    torch.save(taker, rank_file(root, 0))
    edit_file(model_file(root), lambda tree: tree.update(optimizer=taker))


def one_step_more(optimizers: list) -> None:
    optimizers[1]["optimizer"]["state"][0]["step"] += 1


def another_duplicate(tree: dict) -> None:
    tree["optimizer"][1]["optimizer"]["state"][0]["exp_avg"].view(-1)[0] += 1


def another_master(optimizers: list) -> None:
    """No longer rounds to any weight."""
    optimizers[0]["fp32_from_fp16_params"][0][0].data.view(-1)[0] += 1


def swap_masters(optimizers: list) -> None:
    """Two masters of one shape trade places: sizes still fit, the content does not."""
    masters = optimizers[1]["fp32_from_fp16_params"][1]
    masters[0].data, masters[1].data = masters[1].data.clone(), masters[0].data.clone()


def drop_member(path: Path, name_ends: str) -> None:
    """Rewrites a zip archive without one member."""
    kept = path.with_suffix(".kept")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(kept, "w") as target:
        for item in source.infolist():
            if not item.filename.endswith(name_ends):
                target.writestr(item, source.read(item))
    kept.replace(path)


def stale_rank(root: Path) -> None:
    shutil.copyfile(rank_file(root, 1), rank_file(root, 2))


def tracker(text: str) -> Damage:
    return lambda root: (root / "latest_checkpointed_iteration.txt").write_text(text)
