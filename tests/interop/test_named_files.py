"""Files that a user names beside a checkpoint: records of hashes, rules, settings, checkpoints.

A folder, a device or a pipe that nobody writes to in place of one is refused at once, by every
option that takes one; a record of hashes that contradicts itself is refused, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from programs import BIN, GOLDEN, refuse, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

MEGATRON = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
REPLAY = ("step-replay", "run", MEGATRON, "--grads")
OPTIONS = {
    "hash -c": ("ckpt-inspect", "hash", MEGATRON, "-c"),
    "hash --finish": ("ckpt-inspect", "hash", MEGATRON, "--finish"),
    "PATH": ("ckpt-inspect", "verify"),
    "diff B": ("ckpt-inspect", "diff", MEGATRON),
    "report B": ("ckpt-inspect", "report", MEGATRON, "-o", "OUT/page.html"),
    "reshard --model-rules": ("reshard", MEGATRON, "OUT/r", "--dp", "1", "--model-rules"),
    "convert --model-rules": (
        *("ckpt-convert", MEGATRON, "OUT/c", "--to", "torch", "--model-rules"),
    ),
    "reshard --sizes-from": ("reshard", MEGATRON, "OUT/r", "--sizes-from"),
    "convert --like": (
        *("ckpt-convert", "BROKEN", "OUT/c", "--to", "torch", "--repair", "common-state", "--like"),
    ),
    "--grads": REPLAY,
    "--config": (*REPLAY, MEGATRON, "--config"),
    "--expect": (*REPLAY, MEGATRON, "--expect"),
    "--bisect": (*REPLAY, MEGATRON, "--expect", MEGATRON, "--bisect"),
    "TRACE": ("step-replay", "check"),
}
KINDS = ("fifo", "device", "folder", "missing")


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Path:
    """What --like is looked at for: the common state is gone."""
    copy = tmp_path_factory.mktemp("broken") / "ckpt"
    shutil.copytree(MEGATRON, copy)
    next(copy.rglob("common.pt")).unlink()
    return copy


def arguments_of(option: str, folder: Path, broken: Path) -> list[str]:
    program, *arguments = OPTIONS[option]
    if not (BIN / program).exists():
        pytest.skip(f"{program} is not built")
    words = {"OUT": str(folder), "BROKEN": str(broken)}
    texts = [str(argument) for argument in arguments]
    return [program, *(re.sub("OUT|BROKEN", lambda word: words[word[0]], text) for text in texts)]


def in_place(kind: str, folder: Path) -> Path:
    path = folder / "named"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    return Path("/dev/zero") if kind == "device" else path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_no_file_is_refused_at_once(tmp_path, broken, option, kind):
    program, *arguments = arguments_of(option, tmp_path, broken)
    named = in_place(kind, tmp_path)
    # 4: what is no checkpoint by its kind alone
    refuse({4, 5}, program, *arguments, named)
    assert {path.name for path in tmp_path.iterdir()} <= {"named"}, "an output was left"


@pytest.mark.parametrize("option", ("hash -c", "reshard --model-rules", "--config"))
def test_a_pipe_with_a_writer_is_waited_for_until_a_signal(tmp_path, broken, option):
    program, *arguments = arguments_of(option, tmp_path, broken)
    reader, writer = os.pipe()
    command = [BIN / program, *arguments, f"/dev/fd/{reader}"]
    with subprocess.Popen(
        command, pass_fds=[reader], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as waiting:
        time.sleep(0.3)
        assert waiting.poll() is None, waiting.stderr.read()
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(20) in (-signal.SIGTERM, 143)
    os.close(reader)
    os.close(writer)


def test_an_endless_pipe_is_refused(tmp_path):
    arguments = (MEGATRON, "--model-rules", "/dev/stdin", tmp_path / "out", "--dp", "1")
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        outcome = subprocess.run(
            [BIN / "reshard", *map(str, arguments)],
            stdin=endless.stdout, capture_output=True, timeout=60, check=False,
        )
        endless.kill()
    assert outcome.returncode == 4 and b"is longer than" in outcome.stderr, outcome


# --- records of hashes ---


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A file with tensors and an object that holds one, and its records as text and as JSON."""
    folder = tmp_path_factory.mktemp("recorded")
    file = folder / "model.pt"
    state = {"a:b": torch.arange(3.0), "w": torch.ones(2, 2), "n": [1, torch.zeros(2)], "z": 7}
    torch.save(state, file)
    text = succeed("ckpt-inspect", "hash", file).stdout
    document = succeed("ckpt-inspect", "hash", file, "--json").stdout
    return file, text, document


def edited_text(text: str, edit: str) -> str:
    lines = text.splitlines(keepends=True)  # the titles, rows, the digest
    objects = [i for i, line in enumerate(lines) if "  object " in line]
    assert objects and objects[0] > 2 and len(lines) - 1 > objects[-1], text
    first, last = 1, objects[-1]
    if edit == "hash":
        lines[first] = "0" * 64 + lines[first][64:]
    elif edit == "hash of an object":
        lines[last] = "0" * 64 + lines[last][64:]
    elif edit == "type":
        lines[first] = lines[first].replace("float32", "int32", 1)
    elif edit == "no type":
        lines[first] = lines[first].replace("float32", "float31", 1)
    elif edit == "shape":
        lines[first] = lines[first].replace("[", "[1, ", 1)
    elif edit == "no shape":
        lines[first] = lines[first].replace("[", "[x", 1)
    elif edit == "name":
        lines[last] = lines[last].rstrip("\n") + "x\n"
    elif edit == "missing":
        del lines[first]
    elif edit == "missing object":
        del lines[last]
    elif edit == "twice":
        lines.insert(first, lines[first])
    elif edit == "digest":
        lines[-1] = "0" * 64 + lines[-1][64:]
    elif edit == "two outputs":
        lines += lines
    elif edit == "sorted":
        lines.sort()
    return "".join(lines)


TEXT_EDITS = {
    "none": (0, "equal: 0 of"),
    "sorted": (0, "equal: 0 of"),
    "hash": (3, "line {digest}: the digest is"),
    "hash of an object": (3, "line {digest}: the digest is"),
    "type": (3, "line {digest}: the digest is"),
    "no type": (3, "line 2: 'float31' is not a type"),
    "shape": (3, "line {digest}: the digest is"),
    "no shape": (3, "line 2: '[x"),
    "name": (3, "line {digest}: the digest is"),
    "missing": (3, "line {less}: the digest is"),
    "missing object": (3, "line {less}: the digest is"),
    "twice": (3, "line 3: the row of"),
    "digest": (3, "line {digest}: the digest is"),
    "two outputs": (3, "a second digest"),
}


@pytest.mark.parametrize("edit", TEXT_EDITS)
def test_rows_and_digest_of_a_text_both_decide(recorded, tmp_path, edit):
    file, text, _ = recorded
    code, says = TEXT_EDITS[edit]
    record = tmp_path / "record"
    record.write_text(edited_text(text, edit))
    outcome = run("ckpt-inspect", "hash", file, "-c", record)
    lines = len(text.splitlines())
    assert outcome.code == code, outcome
    assert says.format(digest=lines, less=lines - 1) in outcome.text, outcome


def change_row(document: dict, edit: str) -> None:
    row = document["tensors"][0]
    if edit == "hash":
        row["sha256"] = "0" * 64
    elif edit == "no hash":
        row["sha256"] = "0" * 63
    elif edit == "hash is a number":
        row["sha256"] = 0
    elif edit == "type":
        row["dtype"] = "int32"
    elif edit == "shape":
        row["shape"] = [1, *row["shape"]]
    elif edit == "name":
        row["key"] += "x"
    elif edit == "missing":
        del document["tensors"][0]
    elif edit == "twice":
        document["tensors"].append(row)
    elif edit == "no object":
        del document["objects"][0]
    elif edit == "digest":
        document["digest"] = "0" * 64


JSON_EDITS = {
    "none": (0, "equal: 0 of"),
    "hash": (3, "/digest: the digest is"),
    "no hash": (3, "/tensors/0: has no SHA-256"),
    "hash is a number": (3, "/tensors/0: has no SHA-256"),
    "type": (3, "/digest: the digest is"),
    "shape": (3, "/digest: the digest is"),
    "name": (3, "/digest: the digest is"),
    "missing": (3, "/digest: the digest is"),
    "twice": (3, "is there twice"),
    "no object": (3, "/digest: the digest is"),
    "digest": (3, "/digest: the digest is"),
}


@pytest.mark.parametrize("edit", JSON_EDITS)
def test_rows_and_digest_of_a_document_both_decide(recorded, tmp_path, edit):
    file, _, text = recorded
    code, says = JSON_EDITS[edit]
    document = json.loads(text)
    change_row(document, edit)
    record = tmp_path / "record.json"
    record.write_text(json.dumps(document))
    outcome = run("ckpt-inspect", "hash", file, "-c", record)
    assert outcome.code == code, outcome
    assert says in outcome.text, outcome


@pytest.mark.parametrize("edit", ("hash", "missing", "twice"))
def test_a_row_of_a_tensor_in_an_object_decides_too(tmp_path, edit):
    """No digest covers it: its object's hash does."""
    document = succeed("ckpt-inspect", "hash", MEGATRON, "--json").json()
    inner = next(entry["tensors"] for entry in document["objects"] if entry["tensors"])
    if edit == "hash":
        inner[0]["sha256"] = "0" * 64
    elif edit == "missing":
        del inner[0]
    else:
        inner.append(inner[0])
    record = tmp_path / "record.json"
    record.write_text(json.dumps(document))
    outcome = run("ckpt-inspect", "hash", MEGATRON, "-c", record)
    assert outcome.code == (3 if edit == "twice" else 1), outcome
    assert "equal" not in outcome.stdout, outcome


def test_the_record_of_another_checkpoint_is_different_not_corrupt(recorded, tmp_path):
    file, text, document = recorded
    others = ("torch_save_zip/zip.pt", "lw_muon_bf16_torch_dp2/ckpt", MEGATRON)
    for other in (GOLDEN / name for name in others):
        for options in ((), ("--json",)):
            record = tmp_path / "record"
            record.write_text(succeed("ckpt-inspect", "hash", other, *options).stdout)
            outcome = run("ckpt-inspect", "hash", file, "-c", record)
            assert outcome.code == 1, outcome
            assert outcome.stdout.splitlines()[-1].startswith("different: "), outcome


def test_names_that_are_not_utf8_are_found_in_both_records(tmp_path):
    """And names that look like the escapes of such."""
    file = tmp_path / "model.pt"
    keys = "half \ud800| blank|it's|a\"b|a\\b|tab\t|c1 \x85|(root)|a:b|a b".split("|")
    torch.save({key: torch.full((1,), float(i)) for i, key in enumerate(keys)}, file)
    for options in ((), ("--json",)):
        record = tmp_path / "record"
        record.write_text(succeed("ckpt-inspect", "hash", file, *options).stdout)
        outcome = run("ckpt-inspect", "hash", file, "-c", record)
        assert outcome.code == 0 and "equal: 0 of 10" in outcome.stdout, outcome


def test_a_changed_checkpoint_is_told_by_key(recorded, tmp_path):
    file, text, _ = recorded
    record = tmp_path / "record"
    record.write_text(text)
    changed = tmp_path / "model.pt"
    shutil.copy(file, changed)
    torch.save({**torch.load(file), "w": torch.zeros(2, 2)}, changed)
    outcome = run("ckpt-inspect", "hash", changed, "-c", record)
    assert outcome.code == 1, outcome
    assert "changed  /w" in outcome.stdout and "different: 1 of" in outcome.stdout, outcome
