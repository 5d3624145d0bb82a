"""The programs' commands as functions: the same options, the same JSON."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import shardwise as sw
from conftest import MEGATRON

BIN = Path(os.environ.get("SHARDWISE_BIN", Path(sw.__file__).resolve().parents[2] / "build/bin"))
DIST, RANKS = MEGATRON["torch_dist"], MEGATRON["torch"]


def printed(*words: object) -> Any:
    return json.loads(subprocess.run([BIN / "ckpt-inspect", *map(str, words), "--json"],
                                     capture_output=True, check=True).stdout)


def test_reports_are_the_documents_that_the_program_prints() -> None:
    assert sw.verify(DIST).report == printed("verify", DIST)
    assert sw.hash(DIST, logical=True).report == printed("hash", DIST, "--logical")
    assert sw.diff(DIST, RANKS, rtol=0.5).report == printed("diff", DIST, RANKS, "--rtol", 0.5)
    assert sw.stats(DIST, "*.weight").report == printed("show", DIST, "*.weight", "--stats")
    assert sw.summary(DIST) == printed(DIST)


def test_records_are_rows_of_the_reports(tmp_path: Path) -> None:
    hashes = sw.hash(DIST, include=["*linear_fc1*", "*linear_fc2*"])
    assert {"key", "dtype", "shape", "bytes", "sha256"} <= set(hashes[0])
    assert len(hashes.digest) == 64
    assert sw.hash(DIST, logical=True).digest == sw.hash(RANKS, logical=True).digest
    rows = sw.stats(DIST, "*linear_fc1*", logical=True, sort="norm")
    assert [row["norm"] for row in rows] == sorted((row["norm"] for row in rows), reverse=True)
    assert all({"min", "max", "mean", "std", "zeros", "nan", "key"} <= set(row) for row in rows)
    torch.save({"w": torch.tensor([1.0, float("-inf")])}, tmp_path / "inf.pt")
    assert sw.stats(tmp_path / "inf.pt")[0]["min"] == float("-inf")


def test_differences_and_damage_are_records_and_no_exceptions(tmp_path: Path) -> None:
    for name, value in (("a.pt", 1.0), ("b.pt", 2.0)):
        torch.save({"w": torch.full((3,), value), "same": torch.ones(2)}, tmp_path / name)
    different = sw.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not different.ok and [row["key"] for row in different] == ["/w"]
    assert sw.diff(tmp_path / "a.pt", tmp_path / "a.pt").ok
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.find(b"\x00\x00\x80\x3f")] ^= 1
    (tmp_path / "bad.pt").write_bytes(content)
    findings = sw.verify(tmp_path / "bad.pt")
    assert not findings.ok and findings and "file" in findings[0]
    assert sw.verify(tmp_path / "a.pt").ok and not sw.verify(tmp_path / "a.pt")


def test_convert_and_reshard_take_the_programs_options(tmp_path: Path) -> None:
    report = sw.convert(DIST, tmp_path / "torch", to="torch")
    assert report["outcome"] == "published" and report["target_format"] == "torch"
    assert sw.diff(DIST, tmp_path / "torch").ok
    report = sw.reshard(DIST, tmp_path / "dp4", dp=4, verify=True)
    assert report["target_grid"]["data_parallel"] == 4 and report["proven"]["values"]
    assert sw.hash(DIST, logical=True).digest == sw.hash(tmp_path / "dp4", logical=True).digest
    weights = tmp_path / "w.safetensors"
    sw.convert(DIST, weights, include=["decoder.*", "embedding.*"],
               rename={"decoder": "blocks"}, dtype={"*": "float32"},
               model_only=True)
    with sw.open(weights) as checkpoint:
        assert {name.split(".")[0] for name in checkpoint} == {"blocks", "embedding"}
        assert {tensor.dtype for tensor in checkpoint.values()} == {"float32"}
    with pytest.raises(sw.AlreadyExistsError):
        sw.convert(DIST, weights)
    assert sw.convert(DIST, weights, dry_run=True, force=True)["outcome"] == "planned"


@pytest.mark.parametrize("call, match", [
    (lambda: sw.reshard(DIST, "x", dpp=4), "did you mean '--dp'"),
    (lambda: sw.verify(DIST, json=True), "for the command line alone"),
    (lambda: sw.convert(DIST, "x"), "--to is required"),
    (lambda: sw.stats(DIST, limit="x"), "unknown option"),
    (lambda: sw.reshard(DIST, "x", dp=-1), "not a whole number"),
], ids=range(5))
def test_wrong_usage_is_an_invalid_argument(call: Any, match: str) -> None:
    with pytest.raises(sw.InvalidArgumentError, match=match):
        call()


def test_progress_is_told_and_what_it_raises_stops_the_work(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    sw.convert(DIST, tmp_path / "a", "torch", progress=lambda *of: told.append(of))
    assert told[-1][1] == told[-1][2] > 0 and {step for step, _, _ in told} >= {"writing"}

    def fail(*_: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        sw.convert(DIST, tmp_path / "b", "torch", progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert sw.hash(DIST, progress=True).digest == sw.hash(DIST).digest


def test_warnings_of_the_programs_are_warnings() -> None:
    with pytest.warns(sw.CheckpointWarning, match="matches no key"):
        sw.hash(DIST, include=["*.weight", "*nothing*"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sw.hash(DIST)


def test_a_summary_and_its_page(tmp_path: Path) -> None:
    with sw.open(DIST) as checkpoint:
        assert checkpoint.summary()["parameters"] == 124
        page = checkpoint._repr_html_()
    assert "<th>parameters</th><td>124</td>" in page and "complete" in page
    hostile = tmp_path / "<b>.pt"
    torch.save({"w": torch.ones(1)}, hostile)
    with sw.open(hostile) as checkpoint:
        assert "<b>" not in checkpoint._repr_html_()
    with pytest.raises(ValueError, match="closed"):
        checkpoint.summary()
    shutil.rmtree(tmp_path)
