"""`ckpt-inspect hash` lists every stored tensor with the SHA-256 of PyTorch's own reading."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from comparing import dtype_name, sha256_of, tensors_in
from golden.cases import ALL_CASES, MEGATRON_CASES, Case
from golden.plain import PLAIN_CASES, SHARDED_CASE
from programs import BIN, GOLDEN, hash_of, logical_digest
from reading import DcpFolder, iteration_folder, load, load_torch_folder, model_file, rank_file

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

# Every folder of the shared fixtures that is a checkpoint; single files follow below.
RECORDED_SETS = (
    "lw_muon_bf16_torch_dp1 lw_muon_bf16_torch_dp2 lw_muon_bf16_torch_dp4 "
    "lw_muon_bf16_torch_dist_dp1 lw_muon_bf16_torch_dist_dp2 lw_muon_bf16_torch_dist_dp4 "
    "lw_muon_bf16_torch_dist_dp2_no_fully_parallel_save lw_muon_bf16_torch_dist_tp2dp2 "
    "lw_muon_bf16_fusedadam_layout_torch_dp2 lw_muon_bf16_fusedadam_layout_torch_dist_dp2 "
    "lw_muon_bf16_fusedadam_layout_torch_dist_dp4 adam_bf16_torch_dist_dp2 "
    "adam_fp32_torch_dist_dp2 muon_chained_bf16_torch_dist_dp2 lw_soap_bf16_torch_dp2 "
    "do_adam_bf16_torch_dist_dp_reshardable_dp2 do_adam_bf16_torch_dist_fully_reshardable_dp2 "
    "do_adam_bf16_torch_dp2 head_lw_muon_bf16_torch_dist_dp1 head_lw_muon_bf16_torch_dist_dp2 "
    "head_lw_muon_bf16_torch_dist_fully_reshardable_dp2 "
    "dcp_w2 dcp_w2_zstd dcp_w2_safetensors_fmt dcp_w2_multifile dcp_w2_threads2"
).split()
IN_REPOSITORY = ("lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2")
ZIP_FILES = (
    "zip.pt zip_proto4.pt zip_nocrc.pt zip_align4096.pt bare_tensor.pt empty_list.pt legacy.pt"
).split()


def entry(file: str, key: str, dtype: str, shape: tuple, sha256: str) -> tuple:
    return file, key, dtype, tuple(shape), sha256


def entry_of(file: str, key: str, tensor: torch.Tensor) -> tuple:
    return entry(file, key, dtype_name(tensor.dtype), tensor.shape, sha256_of(tensor))


def listed(entries: list[dict], file: str | None = None) -> Counter:
    """Tensors of a JSON document as a multiset: one saved twice is listed twice."""
    return Counter(
        entry(
            e.get("file", "") if file is None else file,
            e["key"],
            e["dtype"],
            e["shape"],
            e["sha256"],
        )
        for e in entries
    )


def listed_objects(document: dict) -> dict[str, Counter]:
    """The tensors in each object of a torch_dist folder (common.pt names its file)."""
    objects = [o for o in document["objects"] if o.get("file", "") == ""]
    return {o["key"]: listed(o.get("tensors", []), "") for o in objects}


def check_document(document: dict, checkpoint_format: str) -> None:
    assert document["schema_version"] == 1
    assert document["format"] == checkpoint_format
    assert len(document["digest"]) == 64
    for tensor in document["tensors"]:
        count = torch.Size(tensor["shape"]).numel()
        assert tensor["bytes"] == count * getattr(torch, tensor["dtype"]).itemsize, tensor


def manifest_entries(manifest: dict) -> Counter:
    """Entries of the checkpoint files (not of expected/); `file` as `hash` prints it."""
    entries: Counter = Counter()
    for name, tensors in manifest["tensors"].items():
        if name.startswith("ckpt/"):
            inner = name.removeprefix("ckpt/").removeprefix("iter_0000003/")
            entries += listed(tensors, file=inner)
    return entries


def check_against_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    document = hash_of(folder / "ckpt")
    check_document(document, "torch_dist" if any(folder.rglob(".metadata")) else "torch")
    assert listed(document["tensors"]) == manifest_entries(manifest)
    # Objects of a torch_dist folder: every one is listed, with the tensors that it holds.
    if "objects" in manifest:
        expected = {o["key"]: listed(o.get("tensors", []), "") for o in manifest["objects"]}
        assert listed_objects(document) == expected


@pytest.mark.parametrize("name", RECORDED_SETS)
def test_hash_equals_the_manifest(name: str, request) -> None:
    root = GOLDEN if name in IN_REPOSITORY else request.getfixturevalue("fixtures")
    check_against_manifest(root / name)


@pytest.mark.parametrize("name", ZIP_FILES)
def test_hash_of_a_torch_save_file_equals_the_manifest(name: str, fixtures: Path) -> None:
    folder = fixtures / "torch_save_variety"
    manifest = json.loads((folder / "manifest.json").read_text())
    document = hash_of(folder / name)
    check_document(document, "torch")
    assert listed(document["tensors"]) == listed(manifest["tensors"][name], "")


SAFETENSORS_FILES = (
    "safetensors_single/model.safetensors",
    "safetensors_single/nometa.safetensors",
    "safetensors_sharded/model-00001-of-00003.safetensors",
    "safetensors_sharded/model-00002-of-00003.safetensors",
    "safetensors_sharded/model-00003-of-00003.safetensors",
    "dcp_w2_hf_writer/ckpt/shard-00001-model-00001-of-00001.safetensors",
    "dcp_w2_hf_writer/ckpt/shard-00002-model-00001-of-00001.safetensors",
)


def safetensors_entries(folder: Path, name: str) -> Counter:
    manifest = json.loads((folder / "manifest.json").read_text())
    return listed(manifest["tensors"][name], "")


@pytest.mark.parametrize("name", SAFETENSORS_FILES)
def test_hash_of_a_safetensors_file_equals_the_manifest(name: str, fixtures: Path) -> None:
    folder, inner = name.split("/", 1)
    document = hash_of(fixtures / name)
    check_document(document, "safetensors")
    assert listed(document["tensors"]) == safetensors_entries(fixtures / folder, inner)


def test_hash_of_a_set_of_safetensors_files_equals_the_manifest(fixtures: Path) -> None:
    folder = fixtures / "safetensors_sharded"
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    expected = sum((safetensors_entries(folder, name) for name in files), Counter())
    assert listed(hash_of(folder)["tensors"]) == expected


def torch_folder_entries(root: Path) -> Counter:
    return Counter(
        entry_of(file, pointer, tensor)
        for file, tree in load_torch_folder(root).items()
        for pointer, tensor in tensors_in(tree)
    )


def dcp_entries(folder: DcpFolder) -> Counter:
    return Counter(entry_of("", key, folder.tensor(key)) for key in folder.tensors())


def object_entries(folder: DcpFolder) -> dict[str, Counter]:
    return {
        key: Counter(entry_of("", at, tensor) for at, tensor in tensors_in(folder.object(key)))
        for key in folder.objects()
    }


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_hash_of_generated_checkpoints_equals_torchs_reading(case: Case, generated: Path) -> None:
    for dp_size in case.dp_sizes:
        for checkpoint_format in case.formats:
            root = generated / case.folder(checkpoint_format, dp_size)
            document = hash_of(root)
            check_document(document, checkpoint_format)
            if checkpoint_format == "torch":
                assert listed(document["tensors"]) == torch_folder_entries(root), root.name
                continue
            folder = DcpFolder(iteration_folder(root))
            common = Counter(
                entry_of("common.pt", at, tensor) for at, tensor in tensors_in(folder.common)
            )
            assert listed(document["tensors"]) == dcp_entries(folder) + common, root.name
            assert listed_objects(document) == object_entries(folder)


@pytest.mark.parametrize("name", [*PLAIN_CASES, SHARDED_CASE])
def test_hash_of_plain_state_dicts_equals_torchs_reading(name: str, generated: Path) -> None:
    document = hash_of(generated / f"{name}.pt")
    check_document(document, "torch")
    tree = load(generated / f"{name}.pt")
    expected = Counter(entry_of("", at, tensor) for at, tensor in tensors_in(tree))
    assert listed(document["tensors"]) == expected

    folder = DcpFolder(generated / f"{name}_dcp")
    document = hash_of(generated / f"{name}_dcp")
    check_document(document, "torch_dist")
    assert listed(document["tensors"]) == dcp_entries(folder)
    assert listed_objects(document) == object_entries(folder)


@pytest.mark.parametrize("case", MEGATRON_CASES, ids=lambda case: case.name)
def test_logical_digest_is_one_for_all_formats_and_sizes(case: Case, generated: Path) -> None:
    digests = {
        case.folder(checkpoint_format, dp_size): logical_digest(
            generated / case.folder(checkpoint_format, dp_size)
        )
        for dp_size in case.dp_sizes
        for checkpoint_format in case.formats
    }
    assert len(set(digests.values())) == 1, digests


def test_logical_digests_of_different_states_differ(generated: Path) -> None:
    names = [case.folder(case.formats[-1], 2) for case in MEGATRON_CASES if 2 in case.dp_sizes]
    digests = {name: logical_digest(generated / name) for name in names}
    assert len(set(digests.values())) == len(names), digests


def change_master(root: Path) -> None:
    def nudge(optimizers: list) -> None:
        master = optimizers[1]["fp32_from_fp16_params"][1][0]
        master.data.view(torch.int32).view(-1)[0] += 1  # one unit in the last place

    edit(rank_file(root, 1), nudge)


def change_moment(root: Path) -> None:
    edit(
        rank_file(root, 1),
        lambda o: o[0]["optimizer"]["state"][0]["momentum_buffer"].view(-1)[0].neg_(),
    )


def change_weight_decay(root: Path) -> None:
    def set_decay(groups: list) -> None:
        groups[0]["weight_decay"] = 0.125

    edit(rank_file(root, 0), lambda o: set_decay(o[0]["optimizer"]["param_groups"]))
    edit(rank_file(root, 1), lambda o: set_decay(o[0]["optimizer"]["param_groups"]))
    edit(model_file(root), lambda o: set_decay(o["optimizer"][0]["optimizer"]["param_groups"]))


def change_scheduler(root: Path) -> None:
    edit(model_file(root), lambda o: o["opt_param_scheduler"].update(num_steps=48))


def change_an_argument(root: Path) -> None:
    edit(model_file(root), lambda o: setattr(o["args"], "clip_grad", 0.5))


def edit(path: Path, change) -> None:
    tree = load(path)
    change(tree)
    torch.save(tree, path)


def change_random_state(root: Path) -> None:
    edit(model_file(root), lambda o: o["rng_state"][0]["torch_rng_state"].view(-1)[9].add_(1))


def test_logical_digest_leaves_out_the_random_state_of_ranks(generated: Path, copied) -> None:
    """Another grid seeds its ranks anew, and is the same training state."""
    root = copied(generated / "gpt2l_torch_dp2")
    before = logical_digest(root)
    change_random_state(root)
    assert logical_digest(root) == before


@pytest.mark.parametrize(
    "change",
    [
        change_master,
        change_moment,
        change_weight_decay,
        change_scheduler,
        change_an_argument,
    ],
)
def test_logical_digest_sees_every_part_of_the_state(change, generated: Path, copied) -> None:
    root = copied(generated / "gpt2l_torch_dp2")
    before = logical_digest(root)
    edit(rank_file(root, 1), lambda tree: None)  # saving again without a change changes nothing
    assert logical_digest(root) == before
    change(root)
    assert logical_digest(root) != before
