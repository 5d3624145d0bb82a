"""Folders of Meta's torch_checkpointing (metadata.pkl) are one state, faults are named.

The sets are by the package itself (0.1.1, torch 2.11), on four ranks, FSDP2 over two by tensor
parallelism of two (scripts/golden/rank_metadata.py); version 1.0 of metadata.pkl and shards of
other classes are made of them, as distributed_metadata.py reads and default_metadata.py has them.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from programs import BIN, GOLDEN, refuse, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, CORRUPT, UNSUPPORTED = 1, 3, 4
NAMES = ("torch", "safetensors")


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    subprocess.run(["tar", "-xJf", GOLDEN / "torch_checkpointing.tar.xz", "-C", folder], check=True)
    return folder


def wanted(sets: Path, name: str) -> dict[str, torch.Tensor]:
    return {key.replace("optimizer.", "optimizer.state.", 1): value
            for key, value in load_file(sets / name / "whole.safetensors").items()}


def check_state(folder: Path, expected: dict, made: Path) -> None:
    succeed("ckpt-convert", folder, made, "--to", "safetensors")
    found = load_file(made)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == value.dtype and torch.equal(found[key], value), key


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_the_live_one(name: str, sets: Path, tmp_path: Path) -> None:
    folder = sets / name / "step-3"
    check_state(folder, wanted(sets, name), tmp_path / "all.safetensors")
    page = succeed("ckpt-inspect", folder).stdout
    assert "torch_checkpointing 2.0, files of 4 ranks" in page and "AdamW" in page
    assert succeed("ckpt-inspect", "verify", folder).stdout.count("OK: ") == 1


def test_other_formats_have_the_same_state_and_what_ranks_have_of_their_own(
    sets: Path, tmp_path: Path
) -> None:
    succeed("ckpt-convert", sets / "torch/step-3", tmp_path / "all.pt", "--to", "torch")
    tree = torch.load(tmp_path / "all.pt", weights_only=True)
    assert tree["train"] == {"step": 3, "rank": 0}
    assert tree["optimizer"]["param_groups"][0]["lr"] == 1e-2
    assert [tree["ranks"][rank] for rank in (1, 2, 3)] == [{"/train/rank": n} for n in (1, 2, 3)]
    succeed("ckpt-convert", sets / "torch/step-3", tmp_path / "dcp", "--to", "torch_dist")
    expected = wanted(sets, "torch")
    state = {key: torch.zeros_like(value) for key, value in expected.items()}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert all(torch.equal(state[key], value) for key, value in expected.items())


def test_files_that_metadata_does_not_name_are_listed(sets: Path, tmp_path: Path) -> None:
    told = succeed("ckpt-convert", sets / "safetensors/step-3", tmp_path / "x.safetensors",
                   "--to", "safetensors", "-v").stdout
    assert all(f"not carried: progress_{rank}.json" in told for rank in range(4))


# --- other metadata ------------------------------------------------------------------------------

def edit(change: Callable[[dict], dict | None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "metadata.pkl"
        tree = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps(change(tree) or tree))

    return damage


def as_version_1(tree: dict) -> dict:
    paths, files = {}, {rank: {} for rank in range(tree["world_size"])}
    for item, of_item in tree["metadata"].items():
        for path, groups in of_item["nested_path_to_metadata"].items():
            paths[json.dumps([item, *json.loads(path)], separators=(",", ":"))] = groups
        for rank, layout in of_item["rank_to_layout_info"].items():
            files[rank][item] = layout
    return {"metadata": paths, "world_size": tree["world_size"], "version": "1.0",
            "rank_to_layout_info_mappings": files}


@pytest.mark.parametrize("name", NAMES)
def test_version_1_is_the_same_state(name: str, sets: Path, tmp_path: Path) -> None:
    shutil.copytree(sets / name / "step-3", tmp_path / "in")
    edit(as_version_1)(tmp_path / "in")
    check_state(tmp_path / "in", wanted(sets, name), tmp_path / "all.safetensors")
    assert "torch_checkpointing 1.0" in succeed("ckpt-inspect", tmp_path / "in").stdout


# Of each rank: where shards begin in the whole and in its tensor, and their sizes.
ONE_EACH = [[((0, 0), (0, 0), (4, 5))], [((4, 0), (0, 0), (3, 5))]]
SEVERAL = [[((4, 0), (0, 0), (2, 5)), ((0, 0), (2, 1), (2, 3)), ((0, 3), (5, 4), (2, 2))],
           [((6, 0), (2, 0), (1, 5)), ((2, 0), (0, 0), (2, 5))]]
SHARDS = {"one each": ONE_EACH, "several, with padding": SEVERAL}


def at(offsets: tuple, sizes: tuple) -> tuple:
    return tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))


def local_shards(folder: Path, shards: list) -> torch.Tensor:
    """Tensors of a class of one's own, which states where its shards lie: two ranks, uneven."""
    whole = torch.arange(35, dtype=torch.float32).reshape(7, 5)
    folder.mkdir()
    groups = []
    for rank, own in enumerate(shards):
        ends = [[begin + size for begin, size in zip(inside, sizes, strict=True)]
                for _, inside, sizes in own]
        local = torch.full([max(end) for end in zip(*ends, strict=True)], -1.0)
        for begin, inside, sizes in own:
            local[at(inside, sizes)] = whole[at(begin, sizes)]
        save_file({"w": local}, folder / f"m{rank}.safetensors")
        data = {"global_shape": [7, 5], "global_offsets": [list(one[0]) for one in own],
                "local_offsets": [list(one[1]) for one in own],
                "local_sizes": [list(one[2]) for one in own], "dtype": "torch.float32"}
        groups.append({"sharding_metadata": {"type": "default_tensor_v1", "data": data},
                       "ranks": (rank,)})
    layouts = {rank: {"file_path": f"m{rank}.safetensors",
                      "serialization_format": {"type": "SafetensorsSerialization"}}
               for rank in (0, 1)}
    item = {"nested_path_to_metadata": {'["w"]': groups}, "rank_to_layout_info": layouts}
    tree = {"metadata": {"model": item}, "world_size": 2, "version": "2.0"}
    (folder / "metadata.pkl").write_bytes(pickle.dumps(tree))
    return whole


@pytest.mark.parametrize("shards", SHARDS)
def test_shards_of_other_classes_are_put_together(shards: str, tmp_path: Path) -> None:
    whole = local_shards(tmp_path / "in", SHARDS[shards])
    check_state(tmp_path / "in", {"model.w": whole}, tmp_path / "all.safetensors")


def placed_elsewhere(tree: dict) -> None:
    groups = tree["metadata"]["model"]["nested_path_to_metadata"]['["w"]']
    groups[1]["sharding_metadata"]["data"]["global_offsets"] = [[3, 0]]


def outside_of_its_tensor(tree: dict) -> None:
    groups = tree["metadata"]["model"]["nested_path_to_metadata"]['["w"]']
    groups[1]["sharding_metadata"]["data"]["local_offsets"] = [[1, 0]]


def outside(tree: dict) -> None:
    groups = tree["metadata"]["model"]["nested_path_to_metadata"]['["w"]']
    groups[1]["sharding_metadata"]["data"]["global_offsets"] = [[5, 0]]


@pytest.mark.parametrize(("change", "words"), [
    (placed_elsewhere, "model/w"), (outside, "outside"),
    (outside_of_its_tensor, "has another part on rank 1")])
def test_shards_that_overlap_or_lie_outside_are_corrupt(
    change: Callable, words: str, tmp_path: Path
) -> None:
    local_shards(tmp_path / "in", ONE_EACH)
    edit(change)(tmp_path / "in")
    made = tmp_path / "out"
    assert words in refuse(CORRUPT, "ckpt-convert", tmp_path / "in", made, "--to", "torch")


# --- faults --------------------------------------------------------------------------------------

def swap(one: str, other: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
        (folder / one).write_bytes(second)
        (folder / other).write_bytes(first)

    return damage


def of_another_save(folder: Path) -> None:
    path = folder / "optimizer_2.pt"
    tree = torch.load(path, weights_only=False)
    tree["param_groups"][0]["lr"] = 0.5
    torch.save(tree, path)


def without_a_part(folder: Path) -> None:
    path = folder / "model_3.pt"
    tree = torch.load(path, weights_only=False)
    del tree["up.weight"]
    torch.save(tree, path)


def of_other_files(name: str) -> Callable[[dict], None]:
    def change(tree: dict) -> None:
        layouts = tree["metadata"]["model"]["rank_to_layout_info"]
        layouts[1] = {"file_path": name, "serialization_format": {"type": "TorchSerialization"}}

    return change


FAULTS = {
    "missing": (lambda folder: (folder / "model_2.pt").unlink(), "model_2.pt"),
    "cut": (lambda folder: (folder / "model_1.pt").write_bytes(
        (folder / "model_1.pt").read_bytes()[:-900]), "model_1.pt"),
    "swapped": (swap("model_0.pt", "model_3.pt"), "model_0.pt"),
    "of another save": (of_another_save, "optimizer_2.pt"),
    "without a part": (without_a_part, "model_3.pt"),
    "other version": (edit(lambda tree: tree.update(version="3.0")), "1.0 and 2.0 are read"),
    "other shape": (edit(lambda tree: tree["metadata"]["model"]["nested_path_to_metadata"]
                         ['["up.weight"]'][0]["sharding_metadata"]["data"].update(
                             global_shape=[6, 22])), "up.weight"),
    "a file outside": (edit(of_other_files("../model_1.pt")), "../model_1.pt"),
    "fewer ranks": (edit(lambda tree: tree.update(world_size=3)), "ranks"),
    "another form": (edit(lambda tree: tree["metadata"]["model"]["nested_path_to_metadata"]
                          ['["seen"]'][0]["sharding_metadata"].update(type="Mine")), "'Mine'"),
    "no metadata": (lambda folder: (folder / "metadata.pkl").write_bytes(b"\x80\x04]."),
                    "metadata.pkl"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, sets: Path, tmp_path: Path) -> None:
    damage, words = FAULTS[fault]
    shutil.copytree(sets / "torch/step-3", tmp_path / "in")
    damage(tmp_path / "in")
    refusal = refuse({CORRUPT, UNSUPPORTED, 5}, "ckpt-convert", tmp_path / "in", tmp_path / "out",
                     "--to", "torch_dist")
    assert words in refusal
    found = run("ckpt-inspect", "verify", tmp_path / "in")
    assert found.code != 0 and words in found.text, found


def test_without_metadata_the_files_are_opened_one_by_one(sets: Path, tmp_path: Path) -> None:
    shutil.copytree(sets / "torch/step-3", tmp_path / "in",
                    ignore=shutil.ignore_patterns("metadata.pkl"))
    told = run("ckpt-inspect", tmp_path / "in").stderr
    assert "where torch_checkpointing wrote them, the folder's metadata.pkl is missing" in told
