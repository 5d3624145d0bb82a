"""States and paths off the beaten track: handled, or refused by name, never got wrong."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata

from golden.cases import UNCOMMON_CASES, Case
from programs import GOLDEN, hash_of, logical_digest, refuse, run, succeed
from reading import iteration_folder
from twins import twin_differences

UNSUPPORTED, NOT_FOUND = 4, 5


@pytest.mark.parametrize(
    ("program", "options", "made_format"),
    [
        ("ckpt-convert", ("--to", "torch"), "torch_dp2"),
        ("reshard", ("--dp", 1), "torch_dist_dp1"),
    ],
)
@pytest.mark.parametrize("case", UNCOMMON_CASES, ids=lambda case: case.name)
def test_uncommon_layout_is_got_right_or_refused_by_name(
    case: Case, program: str, options: tuple, made_format: str, generated: Path, tmp_path: Path
) -> None:
    source = generated / case.folder("torch_dist", 2)
    outcome = run(program, source, tmp_path / "made", *options)
    if outcome.code == 0:
        expected = generated / f"{case.name}_{made_format}"
        if made_format.startswith("torch_dist") and not case.avoid_prefix:
            # Written as Megatron has written it since, whose content_metadata says so.
            assert logical_digest(tmp_path / "made") == logical_digest(expected)
            return
        assert twin_differences(tmp_path / "made", expected) == []
        return
    line = refuse(UNSUPPORTED, program, source, tmp_path / "made", *options)
    assert ".metadata" in line or "common.pt" in line or "registers" in line, line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", UNCOMMON_CASES, ids=lambda case: case.name)
def test_uncommon_torch_folders_reshard_right_or_are_refused(
    case: Case, generated: Path, tmp_path: Path
) -> None:
    """The torch format does not know these layouts of keys, only that of experts."""
    source = generated / case.folder("torch", 2)
    outcome = run("reshard", source, tmp_path / "made", "--dp", 1)
    if outcome.code == 0:
        expected = generated / case.folder("torch", 1)
        assert twin_differences(tmp_path / "made", expected, through_torch_dist=False) == []
        return
    assert case.name == "gpt2l_moe" and outcome.code == UNSUPPORTED, outcome
    assert "num_experts" in outcome.stderr


NEWER_SETS = (
    "head_lw_muon_bf16_torch_dist_dp1",
    "head_lw_muon_bf16_torch_dist_dp2",
)


@pytest.mark.parametrize("name", NEWER_SETS)
@pytest.mark.parametrize(
    ("program", "options"), [("ckpt-convert", ("--to", "torch")), ("reshard", ("--dp", 4))]
)
def test_state_in_flat_buffers_beside_muon_is_carried(
    name: str, program: str, options: tuple, fixtures: Path, tmp_path: Path
) -> None:
    succeed(program, fixtures / name / "ckpt", tmp_path / "made", *options)
    assert logical_digest(tmp_path / "made") == logical_digest(fixtures / name / "ckpt")


RECORDED_PREFIX = {"": "model."} | {
    f"optimizer.state.{state}.": f"{state}."
    for state in ("fp32_param", "exp_avg", "exp_avg_sq", "momentum_buffer")
}


def test_common_state_in_the_store_and_masters_of_a_distributed_optimizer(
    fixtures: Path, tmp_path: Path
) -> None:
    """core 0.20-dev: every tensor under its canonical name is what Megatron held in memory."""
    folder = fixtures / "head_lw_muon_bf16_torch_dist_fully_reshardable_dp2"
    succeed("ckpt-convert", folder / "ckpt", tmp_path / "a.safetensors", "--to", "safetensors")
    carried = load_file(tmp_path / "a.safetensors")
    recorded = load_file(folder / "expected/state.safetensors")
    compared = 0
    for key, tensor in carried.items():
        prefix = next(p for p in reversed(RECORDED_PREFIX) if key.startswith(p))
        name = RECORDED_PREFIX[prefix] + key[len(prefix) :]
        if name in recorded:
            assert torch.equal(tensor, recorded[name]), key
            compared += 1
    assert compared == len(recorded)  # the shards of the other optimizer are recorded in parts


@pytest.mark.parametrize("size", [1, 2, 4])
def test_checkpoint_of_august_2026_in_the_layout_of_april(
    size: int, fixtures: Path, tmp_path: Path
) -> None:
    source = fixtures / "head_lw_muon_bf16_torch_dist_fully_reshardable_dp2/ckpt"
    logical = hash_of(source, "--logical")["digest"]
    succeed("reshard", source, tmp_path / "a", "--dp", size, "--target-megatron", "2026-04")
    assert (iteration_folder(tmp_path / "a") / "common.pt").is_file()
    assert hash_of(tmp_path / "a", "--logical")["digest"] == logical
    succeed("ckpt-convert", tmp_path / "a", tmp_path / "b", "--to", "torch")
    assert hash_of(tmp_path / "b", "--logical")["digest"] == logical


def stored(path: Path) -> tuple[dict, dict]:
    document = hash_of(path)
    assert all(not entry.get("file") for entry in document["tensors"] + document["objects"])
    return tuple(
        {entry["key"]: entry["sha256"] for entry in document[kind]}
        for kind in ("tensors", "objects")
    )


def test_layout_of_august_2026_is_written_as_megatron_writes_it(
    fixtures: Path, tmp_path: Path
) -> None:
    """Every tensor and object of the store, the common state included, is Megatron's own."""
    source = fixtures / "head_lw_muon_bf16_torch_dist_fully_reshardable_dp2/ckpt"
    succeed(
        "ckpt-convert", source, tmp_path / "a", "--to", "torch_dist", "--layout", "2026-08"
    )
    assert stored(tmp_path / "a") == stored(source)
    name = "metadata.json"
    ours, theirs = (iteration_folder(root) / name for root in (tmp_path / "a", source))
    assert ours.read_bytes() == theirs.read_bytes()
    assert not (iteration_folder(tmp_path / "a") / "common.pt").exists()


def test_checkpoint_of_april_in_the_layout_of_august_2026(fixtures: Path, tmp_path: Path) -> None:
    april = fixtures / "lw_muon_bf16_torch_dist_dp2/ckpt"
    august = fixtures / "head_lw_muon_bf16_torch_dist_fully_reshardable_dp2/ckpt"
    succeed(
        "ckpt-convert", april, tmp_path / "a", "--to", "torch_dist", "--layout", "2026-08"
    )
    ours, theirs = stored(tmp_path / "a"), stored(august)
    assert [sorted(part) for part in ours] == [sorted(part) for part in theirs]

    def logical_tensors(root: Path) -> dict:
        return {t["key"]: t["sha256"] for t in hash_of(root, "--logical")["tensors"]}

    assert logical_tensors(tmp_path / "a") == logical_tensors(april)
    line = refuse(
        UNSUPPORTED, "ckpt-convert", april, tmp_path / "b", "--to", "torch", "--layout", "2026-08"
    )
    assert "from 0.18 on writes no `torch` checkpoints of LayerWise" in line


def test_common_state_in_both_places_is_refused(fixtures: Path, tmp_path: Path) -> None:
    source = fixtures / "head_lw_muon_bf16_torch_dist_fully_reshardable_dp2/ckpt/iter_0000003"
    common = fixtures / "lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003/common.pt"
    target = tmp_path / "iter_0000003"
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    target.chmod(0o755)
    shutil.copyfile(common, target / "common.pt")
    line = refuse(3, "reshard", target, tmp_path / "made", "--dp", 1)
    assert "common.pt" in line and "store" in line


def test_iteration_option_opens_what_the_tracker_does_not_name(
    generated: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    first, second = (generated / name for name in ("gpt2l_torch_dp2", "gpt2l_fresh_torch_dp2"))
    shutil.copytree(second, root)
    shutil.copytree(iteration_folder(first), root / "iter_0000003")
    assert hash_of(root)["digest"] == hash_of(second)["digest"]
    assert hash_of(root, "--iteration", "3")["digest"] == hash_of(first)["digest"]
    assert hash_of(root / "iter_0000003")["digest"] == hash_of(first)["digest"]
    refuse(NOT_FOUND, "ckpt-inspect", "hash", root, "--iteration", "4")


def test_paths_may_hold_any_letters(tmp_path: Path) -> None:
    source = tmp_path / "a b\u00fc'\U0001f600" / "-ckpt"
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt", source)
    target = tmp_path / "new\u4f60 folder"
    outcome = run("ckpt-convert", source, target, "--to", "torch_dist")
    assert outcome.code == 0, outcome
    assert twin_differences(target, GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt") == []


def test_a_folder_reached_by_a_link_is_the_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt")
    expected = hash_of(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt")
    assert hash_of(link)["digest"] == expected["digest"]


def test_a_destination_inside_the_source_is_refused(copied) -> None:
    root = copied(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt")
    before = sorted(root.rglob("*"))
    outcome = run("reshard", root, root / "iter_0000003/made", "--dp", 4)
    assert outcome.code in (2, 5), outcome
    assert sorted(root.rglob("*")) == before


def test_manifest_of_hashes_is_written_and_holds(tmp_path: Path) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"
    for options in ((), ("--zstd", 1)):
        made = tmp_path / f"made{len(options)}"
        succeed("ckpt-convert", source, made, "--to", "torch_dist", "--integrity", *options)
        folder = iteration_folder(made)
        manifest = json.loads((folder / "integrity.json").read_text())
        assert manifest == {
            "algorithm": "sha256",
            "files": {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in folder.iterdir()
                if path.name != "integrity.json"
            },
        }
        succeed("ckpt-inspect", "verify", made)
    line = refuse(2, "ckpt-convert", source, tmp_path / "b", "--to", "torch", "--integrity")
    assert "integrity.json" in line


@pytest.mark.parametrize(
    "name",
    ["dcp_w2_zstd/ckpt", "dcp_w2_safetensors_fmt/ckpt", "torch_save_variety/legacy.pt",
     "safetensors_sharded", "dcp_w2_hf_writer/ckpt"],
)  # fmt: skip
def test_forms_without_checksums_are_sound_and_said_to_be_unprotected(
    name: str, fixtures: Path
) -> None:
    assert succeed("ckpt-inspect", "verify", fixtures / name)
    outcome = run("ckpt-inspect", "verify", fixtures / name, "--require-checksums")
    assert outcome.code == 1, outcome


# --- sizes and offsets of .metadata ---


def of_chunks(kind: type) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        for tensor in metadata.state_dict_metadata.values():
            tensor.chunks = [ChunkStorageMetadata(kind(chunk.offsets), kind(chunk.sizes))
                             for chunk in tensor.chunks]

    return change


def of_tensors(kind: type) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        for tensor in metadata.state_dict_metadata.values():
            tensor.size = kind(tensor.size)

    return change


def of_places(kind: type) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        for index in metadata.storage_data:
            object.__setattr__(index, "offset", kind(index.offset))

    return change


# What is changed, and whether torch and we read it: the same for both.
SIZES = [(of_chunks, tuple, True), (of_chunks, list, True), (of_chunks, str, False),
         (of_tensors, tuple, True), (of_tensors, list, False),
         (of_places, tuple, True), (of_places, list, False)]


@pytest.mark.parametrize(("where", "kind", "is_read"), SIZES)
def test_sizes_in_metadata_are_read_where_torch_reads_them(
    where: Callable, kind: type, is_read: bool, tmp_path: Path
) -> None:
    """Megatron-FSDP writes plain tuples for torch.Size."""
    state = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.tensor(3.0)}
    folder = tmp_path / "ckpt"
    dcp.save(state, checkpoint_id=str(folder), no_dist=True)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    expected = hash_of(folder)
    where(kind)(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    loaded = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    try:
        dcp.load(loaded, checkpoint_id=str(folder), no_dist=True)
    except CheckpointException:
        assert not is_read
    else:
        assert is_read and all(torch.equal(loaded[key], state[key]) for key in state)
    if is_read:
        assert hash_of(folder) == expected
        succeed("ckpt-inspect", "verify", folder)
    else:
        assert "a size or offset" in refuse(3, "ckpt-inspect", "hash", folder)
