"""Faults that users had with checkpoints of many ranks, each made from a sound one: functions of
its root folder, and what a report must name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from damage import Damage, edit_file
from reading import iteration_folder


@dataclass(frozen=True)
class Fault:
    id: str
    source: str
    damage: Damage
    named: str  # regular expression of what is said to be wrong, and where


def folder_of(root: Path, rank: str) -> Path:
    return iteration_folder(root) / f"mp_rank_{rank}"


def in_model(rank: str, change: Callable[[dict], None]) -> Damage:
    return lambda root: edit_file(folder_of(root, rank) / "model_optim_rng.pt", change)


def in_rank(rank: str, number: int, change: Callable[[list], None]) -> Damage:
    """A rank's optimizer file, and its copy in the model file if that rank wrote it."""

    def damage(root: Path) -> None:
        folder = folder_of(root, rank)
        edit_file(folder / f"layer_wise_optimizer_{number}.pt", change)
        first = min(folder.glob("layer_wise_optimizer_*.pt"), key=lambda path: path.name)
        if first.name == f"layer_wise_optimizer_{number}.pt":
            edit_file(folder / "model_optim_rng.pt", lambda tree: change(tree["optimizer"]))

    return damage


def save_again(root: Path) -> None:
    """Every model file as this Python pickles it: it spells enumerations in a way of its own."""
    for path in iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"):
        edit_file(path, lambda tree: None)


# --- an expert's state is missing ----------------------------------------------------------------


def lose_momentum(index: int) -> Callable[[list], None]:
    def change(optimizers: list) -> None:
        del optimizers[0]["optimizer"]["state"][index]

    return change


def lose_parameter(index: int, group: int) -> Callable[[list], None]:
    """Its state, its master and its index: what is left is numbered anew."""

    def change(optimizers: list) -> None:
        muon = optimizers[0]
        states, groups = muon["optimizer"]["state"], muon["optimizer"]["param_groups"]
        position = groups[group]["params"].index(index)
        del muon["fp32_from_fp16_params"][group][position]
        muon["optimizer"]["state"] = {
            number - (number > index): state for number, state in states.items() if number != index
        }
        for settings in groups:
            kept = [number for number in settings["params"] if number != index]
            settings["params"] = [number - (number > index) for number in kept]

    return change


MOMENTUM_OF_EXPERTS = (
    "optimizer.state.momentum_buffer.decoder.layers.mlp.experts.experts.linear_fc2.weight"
)


def lose_chunk(key: str, offsets: tuple[int, ...]) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        chunks = metadata.state_dict_metadata[key].chunks
        (lost,) = [chunk for chunk in chunks if tuple(chunk.offsets) == offsets]
        chunks.remove(lost)
        del metadata.storage_data[MetadataIndex(key, lost.offsets)]

    return change


def lose_key(key: str) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        del metadata.state_dict_metadata[key]
        for index in [index for index in metadata.storage_data if index.fqn == key]:
            del metadata.storage_data[index]

    return change


# --- layers are in another order -----------------------------------------------------------------


def swap_layers(part: str, one: int, other: int) -> Callable[[dict], None]:
    """Two layers of a stage's model trade places; the optimizer does not follow."""

    def change(tree: dict) -> None:
        model = tree["model"]
        a, b = f"decoder.layers.{one}.{part}", f"decoder.layers.{other}.{part}"
        model[a], model[b] = model[b], model[a]

    return change


def swap_stages(part: str) -> Damage:
    """The first layers of two stages, as a model split otherwise would have them."""

    def damage(root: Path) -> None:
        paths = [folder_of(root, rank) / "model_optim_rng.pt" for rank in ("00_000", "00_001")]
        key = f"decoder.layers.0.{part}"
        weights = []
        for path in paths:
            edit_file(path, lambda tree: weights.append(tree["model"][key]))
        for path, weight in zip(paths, reversed(weights), strict=True):
            edit_file(path, lambda tree, weight=weight: tree["model"].update({key: weight}))

    return damage


def swap_stacked_layers(key: str) -> Callable[[Metadata], None]:
    """Layers 0 and 1 of a tensor that is stacked over layers."""

    def change(metadata: Metadata) -> None:
        places = metadata.storage_data
        for index in [i for i in places if i.fqn == key and i.offset[0] == 0]:
            other = MetadataIndex(key, torch.Size((1, *index.offset[1:])))
            places[index], places[other] = places[other], places[index]

    return change


# --- copies, files, iterations -------------------------------------------------------------------


def stale_model_copy(tree: dict) -> None:
    tree["model"]["output_layer.weight"].data[3] += 1


def stale_copy_and_master(root: Path) -> None:
    """The last stage's copy as it was a step ago: it agrees with its own master."""
    path = folder_of(root, "00_001")
    shape = None

    def in_copy(tree: dict) -> None:
        nonlocal shape
        weight = tree["model"]["output_layer.weight"]
        shape = weight.shape
        weight.data[3] = 1.5

    def in_masters(optimizers: list) -> None:
        for optimizer in optimizers:
            for masters in optimizer["fp32_from_fp16_params"]:
                for master in masters:
                    if master.shape == shape:
                        master.data[3] = 1.5

    edit_file(path / "model_optim_rng.pt", in_copy)
    for rank in (0, 1):
        in_rank("00_001", rank, in_masters)(root)


def stale_moment(root: Path) -> None:
    """Only the state of the last stage's copy."""

    def change(optimizers: list) -> None:
        for state in optimizers[1]["optimizer"]["state"].values():
            if state["exp_avg"].dim() == 2 and len(state["exp_avg"]) == 128:
                state["exp_avg"].data[3] += 1

    for rank in (0, 1):
        in_rank("00_001", rank, change)(root)


def swap_files(one: str, other: str) -> Damage:
    def damage(root: Path) -> None:
        a, b = (iteration_folder(root) / f"mp_rank_{name}" for name in (one, other))
        kept = a.with_name("kept")
        a.rename(kept)
        b.rename(a)
        kept.rename(b)

    return damage


def copy_file(one: str, other: str) -> Damage:
    def damage(root: Path) -> None:
        folder = iteration_folder(root)
        shutil.copyfile(folder / f"mp_rank_{one}", folder / f"mp_rank_{other}")

    return damage


def an_iteration_later(optimizers: list) -> None:
    for optimizer in optimizers:
        for group in optimizer["optimizer"]["param_groups"]:
            if "step" in group:
                group["step"] += 1
        for masters in optimizer["fp32_from_fp16_params"]:
            for master in masters:
                master.data.mul_(1.01)


def only_later_steps(optimizers: list) -> None:
    for group in optimizers[1]["optimizer"]["param_groups"]:
        if "step" in group:
            group["step"] += 1


def other_iteration(tree: dict) -> None:
    tree["iteration"] += 1
