"""`ckpt-inspect verify` finds what is damaged, says where, and is content with real files."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import damage as bad
from programs import BIN, GOLDEN, RECORDED, run, verify
from reading import iteration_folder, load, model_file, rank_file
from test_bad_input import ROWS, Row

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

SOUND, DAMAGED, MALFORMED, UNSUPPORTED = 0, 1, 3, 4
TORCH = GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt"
DIST = GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt"


def problems(document: dict, severity: str = "damage") -> list[str]:
    return [
        " ".join(found.get(part, "") for part in ("file", "key", "problem", "hint"))
        for found in document["findings"]
        if found["severity"] == severity
    ]


# --- what is sound -------------------------------------------------------------------------------


def checkpoints_of_fixtures() -> list[Path]:
    folders = sorted(RECORDED.glob("*/ckpt"))
    files = sorted(RECORDED.glob("torch_save_variety/*.pt"))
    return folders + files + sorted(RECORDED.glob("safetensors_*/*.safetensors"))


@pytest.mark.parametrize(
    "path", checkpoints_of_fixtures(), ids=lambda path: str(path.relative_to(RECORDED))
)
def test_what_real_writers_wrote_is_sound(path: Path) -> None:
    code, document = verify(path)
    if code == UNSUPPORTED:  # a layout that is refused by name
        assert document["error"]["problem"], document
        return
    assert code == SOUND, problems(document)
    assert document["sound"] is True
    for file in document["files"]:
        assert sum(file["labels"].values()) == file["bytes"], file
    assert document["bytes"]["unclaimed"] == 0
    assert verify(path, "--quick")[0] == SOUND


@pytest.mark.parametrize("root", [TORCH, DIST], ids=["torch", "torch_dist"])
def test_every_master_is_compared_and_every_state_looked_at(root: Path) -> None:
    checked = verify(root)[1]["checked"]
    assert checked["masters"] == 29  # in torch_dist, too: by chunk, which is by layer
    assert checked["groups"] >= 3 and checked["states"] > 40 and checked["checksums"] > 100


@pytest.mark.parametrize(
    "path", checkpoints_of_fixtures(), ids=lambda path: str(path.relative_to(RECORDED))
)
def test_what_verify_passes_is_equal_unless_it_says_unprotected(path: Path, tmp_path: Path) -> None:
    """Flips bits all over a copy: verify finds damage, or diff finds nothing, or the file has no
    checksums."""
    code, document = verify(path)
    if code == UNSUPPORTED:
        return
    copy = tmp_path / path.name
    if path.is_dir():
        shutil.copytree(path, copy, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(path, copy)
    unprotected = {f["path"] for f in document["files"] if f["labels"]["unprotected"]}
    found = 0
    parts = max(3, 40 // len(document["files"]))
    for file in document["files"]:
        damaged = copy if copy.is_file() else copy / file["path"]
        content = damaged.read_bytes()
        for part in range(parts):
            place = len(content) * (2 * part + 1) // (2 * parts)
            changed = bytearray(content)
            changed[place] ^= 1 << (place % 8)
            damaged.write_bytes(changed)
            is_found = run("ckpt-inspect", "verify", copy).code != SOUND
            found += is_found
            if not is_found and file["path"] not in unprotected:
                assert run("ckpt-inspect", "diff", path, copy).code == SOUND, (file["path"], place)
        damaged.write_bytes(content)
    all_unprotected = document["bytes"]["checksummed"] == 0
    assert found > 0 or all_unprotected


# --- damage of every kind ------------------------------------------------------------------------


CORRUPT_ROWS = [row for row in ROWS if row.code != UNSUPPORTED]


@pytest.mark.parametrize("row", CORRUPT_ROWS, ids=lambda row: row.what)
def test_what_cannot_be_converted_is_found(row: Row, copied) -> None:
    root = copied(GOLDEN / f"lw_muon_bf16_{row.sample}_dp2" / "ckpt")
    row.damage(root)
    code, document = verify(root)
    assert code in (DAMAGED, MALFORMED), document
    said = json.dumps(document)
    # Of what lies behind a file's end the file is named, not the first key there.
    is_behind = row.what in ("an offset beyond the file", "a huge length")
    words = ("truncated: ",) if is_behind and code == DAMAGED else row.mentions
    assert any(word in said for word in words) or not words, said


def set_nan(optimizers: list) -> None:
    optimizers[1]["optimizer"]["state"][0]["exp_avg"].view(-1)[1] = float("nan")


def set_infinite_master(optimizers: list) -> None:
    optimizers[0]["fp32_from_fp16_params"][0][0].data.view(-1)[0] = float("inf")


def set_negative(optimizers: list) -> None:
    optimizers[1]["optimizer"]["state"][1]["exp_avg_sq"].view(-1)[2] = -1e-9


def name_of_master(root: Path, rank: int) -> str:
    """The weight that rank's first Muon master rounds to."""
    master = load(rank_file(root, rank))[0]["fp32_from_fp16_params"][0][0]
    model = load(model_file(root))["model"]
    rounded = master.data.to(torch.bfloat16)
    return next(
        name
        for name, weight in model.items()
        if weight is not None and weight.shape == rounded.shape and torch.equal(weight, rounded)
    )


def make_stale(root: Path) -> str:
    """Rank 0, which writes the model, missed the all-gather of a weight that rank 1 owns."""
    name = name_of_master(root, 1)

    def edit(tree: dict) -> None:
        tree["model"][name].view(-1)[0] *= 1.5

    bad.edit_model(edit)(root)
    return name


def test_a_weight_that_was_not_gathered_is_told_with_its_owner(copied) -> None:
    root = copied(TORCH)
    name = make_stale(root)
    code, document = verify(root)
    assert code == DAMAGED
    (said,) = [p for p in problems(document) if "elements differ from the rounded fp32 master" in p]
    assert name in said and "rank 1 owns it" in said and "1 of " in said


def collide(optimizers: list) -> None:
    groups = optimizers[1]["optimizer"]["param_groups"]
    groups[1]["wd_mult"] = groups[0]["wd_mult"]


@pytest.mark.parametrize(
    "edit, mention",
    [
        (set_nan, "NaN"),
        (set_infinite_master, "1 value is infinite, at index 0"),
        (set_negative, "negative"),
        (bad.one_step_more, "step count"),
        (collide, "cannot distinguish it from group 0"),
    ],
)
def test_state_that_cannot_be_right_is_found(edit: Callable, mention: str, copied) -> None:
    root = copied(TORCH)
    for rank in (0, 1):
        bad.edit_rank(rank, edit)(root)
    duplicate = load(rank_file(root, 0))
    bad.edit_model(lambda tree: tree.update(optimizer=duplicate))(root)
    code, document = verify(root)
    assert code == DAMAGED
    assert any(mention in problem for problem in problems(document)), problems(document)


def test_all_damage_is_listed_not_the_first_alone(copied) -> None:
    root = copied(TORCH)
    bad.flip_in_torch_file(root)
    bad.edit_rank(0, set_nan)(root)
    said = problems(verify(root)[1])
    assert any("CRC-32" in p and "layer_wise_optimizer_1.pt" in p for p in said), said
    assert any("NaN" in p and "layer_wise_optimizer_0.pt" in p for p in said), said


# --- files that nothing names --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, severity",
    [
        ("__7_0.distcp", "damage"),
        (".metadata.tmp", "damage"),
        ("layer_wise_optimizer_1.pt", "damage"),
        ("mp_rank_00", "damage"),
        ("run_config.yaml", "note"),
        ("tokenizer", "note"),
    ],
)
def test_files_that_nothing_names_are_told(name: str, severity: str, copied) -> None:
    root = copied(DIST)
    stray = iteration_folder(root) / name
    if "." in name:
        stray.write_bytes(b"left over")
    else:
        stray.mkdir()
    code, document = verify(root)
    assert code == (DAMAGED if severity == "damage" else SOUND)
    (said,) = problems(document, severity)
    assert name in said


def test_what_an_old_megatron_left_in_the_root_is_a_note(copied) -> None:
    root = copied(DIST)
    shutil.copyfile(rank_file(TORCH, 1), root / "layer_wise_optimizer_1.pt")
    code, document = verify(root)
    assert code == SOUND
    assert "layer_wise_optimizer_1.pt" in problems(document, "note")[0]


def test_bytes_behind_the_last_entry_belong_to_nothing(copied) -> None:
    root = copied(DIST)
    path = iteration_folder(root) / "__1_0.distcp"
    path.write_bytes(path.read_bytes() + b"0123456789")
    code, document = verify(root)
    assert code == DAMAGED and document["bytes"]["unclaimed"] == 10
    assert "10 bytes" in problems(document)[0]


def test_a_file_that_metadata_names_and_that_is_missing_is_damage(copied) -> None:
    root = copied(DIST)
    (iteration_folder(root) / "__1_0.distcp").unlink()
    outcome = run("ckpt-inspect", "verify", root)
    assert outcome.code == DAMAGED and "iter_0000003/__1_0.distcp: is missing" in outcome.stdout


# --- checksums -----------------------------------------------------------------------------------


def write_manifest(folder: Path) -> None:
    """integrity.json as Megatron-Core 0.20 writes it."""
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = {"algorithm": "sha256", "files": files}
    (folder / "integrity.json").write_text(json.dumps(manifest, indent=2))


def test_a_manifest_protects_what_has_no_checksum(copied) -> None:
    root = copied(DIST)
    folder = iteration_folder(root)
    assert verify(folder, "--require-checksums")[0] == DAMAGED
    write_manifest(folder)
    code, document = verify(folder, "--require-checksums")
    assert code == SOUND, problems(document)
    assert document["bytes"]["unprotected"] == 0
    metadata = folder / "metadata.json"
    metadata.write_text(metadata.read_text().replace(" ", "  "))
    code, document = verify(folder)
    assert code == DAMAGED and "SHA-256" in problems(document)[0]
    (folder / "common.pt").unlink()
    code, document = verify(folder)
    assert code == DAMAGED and any("but it is missing" in p for p in problems(document))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"algorithm": "sha256"}',
        '{"algorithm": "sha256", "files": {"common.pt": "00"}}',
        '{"algorithm": "sha256", "files": {"common.pt": "%s"}}' % ("A" * 64),
        '{"algorithm": "sha256", "files": {"a": "%s", "a": "%s"}}' % ("0" * 64, "1" * 64),
        '{"algorithm": "crc32", "files": {}}',
    ],
)
def test_a_manifest_that_is_none_is_damage(text: str, copied) -> None:
    folder = iteration_folder(copied(DIST))
    (folder / "integrity.json").write_text(text)
    code, document = verify(folder)
    assert code == DAMAGED and "integrity.json" in problems(document)[0]


def test_the_copy_of_rank_0s_state_is_compared_by_what_the_archives_state(copied) -> None:
    """One bit of the copy's payload, its stated CRC-32 as before: who reads no tensor cannot see
    it, and who compares checksums does."""
    root = copied(TORCH)
    momentum = load(rank_file(root, 0))[0]["optimizer"]["state"][0]["momentum_buffer"]
    bad.flip_payload_bit(model_file(root), momentum)
    assert run("ckpt-inspect", "groups", root).code == SOUND
    assert verify(root, "--quick")[0] == SOUND
    code, document = verify(root)
    assert code == DAMAGED
    (said,) = problems(document)
    assert "model_optim_rng.pt" in said and "CRC-32" in said


def test_what_has_no_checksum_is_counted_and_can_be_refused(fixtures: Path) -> None:
    path = fixtures / "torch_save_variety" / "zip_nocrc.pt"
    code, document = verify(path)
    assert code == SOUND and document["bytes"]["unprotected"] > 1000
    code, document = verify(path, "--require-checksums")
    assert code == DAMAGED and "have no checksum" in problems(document)[0]


@pytest.mark.parametrize("threads", ["1", "3", "8"])
def test_threads_change_nothing(threads: str, copied) -> None:
    root = copied(TORCH)
    bad.flip_in_torch_file(root)
    bad.edit_rank(0, set_nan)(root)
    assert verify(root, "-j", threads) == verify(root, "-j", "2")


# --- several processes ---------------------------------------------------------------------------


def verify_in_shares(path: Path, size: int, *options: str) -> list[tuple[int, dict]]:
    shares = [("--rank", str(rank), "--world-size", str(size)) for rank in range(size)]
    return [verify(path, *share, *options) for share in shares]


def large_archive(path: Path) -> dict[str, int]:
    """Above what is read at once; the place of some bytes of it."""
    torch.manual_seed(1)
    tensors = {f"w{i}": torch.randn(512, 512) for i in range(6)}
    tensors["small"] = torch.randn(1000)
    torch.save(tensors, path)
    content = path.read_bytes()
    places = {name: content.index(bad.bytes_of(tensor)) for name, tensor in tensors.items()}
    return places | {"directory": content.rindex(b"PK\x01\x02") + 20}


@pytest.mark.parametrize("name", ["w0", "w3", "w5", "small", "directory"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_damage_in_an_archive_that_is_cut_is_one_processes(
    name: str, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "large.pt"
    places = large_archive(path)
    sound = verify_in_shares(path, size, "--piece-size", "1M")
    assert [code for code, _ in sound] == [SOUND] * size
    assert sum(bool(document["files"]) for _, document in sound) > 1
    assert sum(document["checked"]["checksums"] for _, document in sound) == (
        verify(path)[1]["checked"]["checksums"]
    )
    content = bytearray(path.read_bytes())
    content[places[name] + 1] ^= 4
    path.write_bytes(content)
    damaged = verify_in_shares(path, size, "--piece-size", "1M")
    codes = sorted(code for code, _ in damaged)
    if name == "directory":  # opening the file reads it
        assert codes in ([MALFORMED] * size, [SOUND] * (size - 1) + [DAMAGED])
    else:
        assert codes == [SOUND] * (size - 1) + [DAMAGED]


def test_a_torch_file_that_is_no_archive_is_one_processes(tmp_path: Path) -> None:
    path = tmp_path / "legacy.pt"
    tensors = {f"w{i}": torch.randn(256, 256) for i in range(4)}
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    shares = verify_in_shares(path, 3, "--piece-size", "64K")
    files = [file for _, document in shares for file in document["files"]]
    assert [code for code, _ in shares] == [SOUND] * 3
    assert [file["bytes"] for file in files] == [path.stat().st_size]
    assert sum(files[0]["labels"].values()) == path.stat().st_size
