"""What other programs write is refused by its name, with what to do; nothing of it is half-read."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch.package import PackageExporter

from programs import BIN, GOLDEN, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED, MALFORMED = 4, 3
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def script(path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), path)


def exported(path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(1, 3),))
    torch.export.save(program, path)


def package(path: Path) -> None:
    with PackageExporter(path) as exporter:
        exporter.save_pickle("model", "model.pkl", {"w": torch.zeros(3)})


def nemo(path: Path) -> None:
    folder = path.parent / "model"
    folder.mkdir()
    (folder / "model_config.yaml").write_text("target: model\n")
    torch.save({"w": torch.zeros(3)}, folder / "model_weights.ckpt")
    with tarfile.open(path, "w") as archive:
        archive.add(folder, arcname=".")


def tar_gz(path: Path) -> None:
    inner = path.parent / "inner.pt"
    torch.save({"w": torch.zeros(3)}, inner)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, arcname="inner.pt")


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("notes.txt", "nothing" * 100)


def torch_shards(path: Path) -> None:
    for number in (1, 2):
        shard = {f"layer{number}.weight": torch.zeros(3)}
        torch.save(shard, path.parent / f"pytorch_model-0000{number}-of-00002.bin")
    names = {f"layer{n}.weight": f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)}
    path.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": names}))


def deepspeed(path: Path) -> None:
    step = path / "global_step10"
    step.mkdir(parents=True)
    (path / "latest").write_text("global_step10")
    (path / "zero_to_fp32.py").write_text("")
    torch.save({"module": {"w": torch.zeros(3)}}, step / "mp_rank_00_model_states.pt")


def orbax(path: Path) -> None:
    path.mkdir()
    for name in ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"):
        (path / name).write_text("{}")


def tensorflow(path: Path) -> None:
    path.mkdir()
    for name in ("checkpoint", "model.ckpt.index", "model.ckpt.data-00000-of-00001"):
        (path / name).write_text("")


ROWS: dict[str, tuple[Callable[[Path], object], str]] = {
    "model.gguf": (lambda p: p.write_bytes(b"GGUF\3\0\0\0" + bytes(16)), "GGUF"),
    "arrays.npz": (lambda p: numpy.savez(p, w=numpy.zeros(3)), "NumPy archive"),
    "packed.npz": (lambda p: numpy.savez_compressed(p, w=numpy.zeros(3)), "NumPy archive"),
    "array.npy": (lambda p: numpy.save(p, numpy.zeros(3)), "NumPy array"),
    "script.pt": (script, "TorchScript"),
    "exported.pt2": (exported, "torch.export"),
    "package.pt": (package, "torch.package"),
    "model.nemo": (nemo, "NeMo"),
    "model.tar.gz": (tar_gz, "gzip"),
    "model.pt.gz": (lambda p: p.write_bytes(gzip.compress(b"w" * 99)), "gzip"),
    "notes.zip": (other_zip, "zip archive that torch.save did not write"),
    "plain.pt": (lambda p: p.write_bytes(pickle.dumps({"w": 1})), "Python pickle"),
    "page.safetensors": (lambda p: p.write_text("<!DOCTYPE html>\n<html></html>"), "HTML"),
    "pointer.bin": (
        lambda p: p.write_text(LFS_POINTER),
        "Git LFS pointer",
    ),
    "weights.h5": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64)), "HDF5"),
    "config.json": (lambda p: p.write_text('{"hidden_size": 16}'), "without a weight_map"),
    "pytorch_model.bin.index.json": (torch_shards, "several torch.save files"),
    "deepspeed": (deepspeed, "DeepSpeed"),
    "orbax": (orbax, "Orbax"),
    "tensorflow": (tensorflow, "TensorFlow"),
}  # fmt: skip

COMMANDS = (
    lambda p, out: ("ckpt-inspect", p),
    lambda p, out: ("ckpt-inspect", "verify", p),
    lambda p, out: ("ckpt-convert", p, out, "--to", "torch"),
    lambda p, out: ("reshard", p, out, "--dp", "2"),
)


def check_refusal(command: tuple, name: str) -> None:
    outcome = run(*command)
    assert outcome.code == UNSUPPORTED and outcome.stdout == "", outcome
    error, hint = outcome.stderr.splitlines()
    assert name in error and "; expected " in error, outcome
    assert hint.startswith("hint: "), outcome


@pytest.mark.parametrize("file", ROWS)
def test_foreign_input_is_called_by_its_name(file: str, tmp_path: Path) -> None:
    make, name = ROWS[file]
    path = tmp_path / file
    make(path)
    for command in COMMANDS:
        check_refusal(command(path, tmp_path / "out"), name)
        assert not (tmp_path / "out").exists()


def test_what_is_inside_a_foreign_folder_opens_as_the_hint_says(tmp_path: Path) -> None:
    deepspeed(tmp_path / "ds")
    check_refusal(("ckpt-inspect", "ls", tmp_path / "ds" / "global_step10"), "DeepSpeed")
    states = tmp_path / "ds" / "global_step10" / "mp_rank_00_model_states.pt"
    assert "/module/w" in succeed("ckpt-inspect", "ls", states).stdout
    (tmp_path / "hf").mkdir()
    torch_shards(tmp_path / "hf" / "pytorch_model.bin.index.json")
    check_refusal(("ckpt-inspect", "ls", tmp_path / "hf"), "pytorch_model.bin.index.json")
    shard = tmp_path / "hf" / "pytorch_model-00001-of-00002.bin"
    assert "layer1.weight" in succeed("ckpt-inspect", "ls", shard).stdout


def test_a_folder_with_safetensors_beside_torch_shards_opens(tmp_path: Path) -> None:
    torch_shards(tmp_path / "pytorch_model.bin.index.json")
    save_file({"w": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert "w" in succeed("ckpt-inspect", "ls", tmp_path).stdout


@pytest.mark.parametrize("legacy", (False, True), ids=("zip", "legacy"))
def test_every_cut_of_a_torch_save_file_is_damage(legacy: bool, tmp_path: Path) -> None:
    whole = tmp_path / "whole.pt"
    torch.save({"w": torch.arange(9)}, whole, _use_new_zipfile_serialization=not legacy)
    succeed("ckpt-inspect", "ls", whole)
    content = whole.read_bytes()
    for size in {0, 1, 2, 10, 40, len(content) // 2, len(content) - 1}:
        (tmp_path / "cut.pt").write_bytes(content[:size])
        outcome = run("ckpt-inspect", "ls", tmp_path / "cut.pt")
        assert outcome.code == MALFORMED, f"cut after {size} bytes: {outcome}"


def test_a_pointer_among_the_files_of_a_checkpoint_is_called_so(tmp_path: Path) -> None:
    for sample, file in (
        ("lw_muon_bf16_torch_dist_dp2", "iter_0000003/common.pt"),
        ("lw_muon_bf16_torch_dist_dp2", "iter_0000003/.metadata"),
        ("lw_muon_bf16_torch_dp2", "iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt"),
    ):
        root = tmp_path / "ckpt"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(GOLDEN / sample / "ckpt", root, copy_function=shutil.copyfile)
        (root / file).write_text(LFS_POINTER)
        check_refusal(("ckpt-inspect", "ls", root), "Git LFS pointer")
