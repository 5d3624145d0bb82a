"""What a verdict says must hold of all it speaks of: of both sides, of what was compared, of what
was written."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from programs import GOLDEN, run, succeed

DIST = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
DIFFERENT = 1


def saved(path: Path, **tensors: torch.Tensor) -> Path:
    torch.save(tensors, path)
    return path


def row_of(text: str, name: str) -> list[str]:
    (row,) = (line.split() for line in text.splitlines() if line.split()[:1] == [name])
    return row


def test_of_rows_with_nan_alone_no_distance_is_told(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.pt", w=torch.ones(3), v=torch.ones(3))
    b = saved(tmp_path / "b.pt", w=torch.tensor([1, math.nan, 1]), v=torch.tensor([1, math.nan, 3]))
    text = run("ckpt-inspect", "diff", a, b)
    assert text.code == DIFFERENT
    assert row_of(text.stdout, "/w")[1:4] == ["-", "-", "-"]
    assert row_of(text.stdout, "/v")[2:4] == ["2", "0.6667"]
    document = run("ckpt-inspect", "diff", a, b, "--json").json()["tensors"]["different"]
    values = {each["key"]: each["value"] for each in document}
    assert (values["/w"]["max_abs"], values["/w"]["norm"]) == (None, None)
    assert "max_ulp_distance" not in values["/w"]
    assert (values["/v"]["max_abs"], values["/v"]["nonfinite"]) == (2, 1)


def test_a_worst_tensor_that_is_missing_is_told_apart_from_the_distances(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.pt", **{"m.w": torch.ones(3), "m.gone": torch.ones(2)})
    b = saved(tmp_path / "b.pt", **{"m.w": torch.ones(3) * 2})
    summary = run("ckpt-inspect", "diff", a, b, "--summary").stdout
    assert "gone (missing/type)" in summary, summary
    saved(a, **{"m.w": torch.ones(3)})
    assert "(missing/type)" not in run("ckpt-inspect", "diff", a, b, "--summary").stdout


def test_verify_says_at_its_end_that_nothing_has_a_checksum(tmp_path: Path) -> None:
    save_file({"w": torch.ones(4)}, tmp_path / "w.safetensors")
    last = succeed("ckpt-inspect", "verify", tmp_path / "w.safetensors").stdout.splitlines()[-1]
    assert last.startswith("OK: 1 file") and last.endswith("; none of it has a checksum")
    assert "has a checksum" not in succeed("ckpt-inspect", "verify", DIST).stdout


def test_a_report_of_two_says_that_the_second_was_not_verified(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.pt", w=torch.ones(3))
    for name, value, verdict in (("b", math.nan, "differs from"), ("c", 1.0, "equal to")):
        b = saved(tmp_path / f"{name}.pt", w=torch.tensor([1.0, value, 1.0]))
        said = succeed("ckpt-inspect", "report", a, b, "-o", tmp_path / f"{name}.html").stdout
        words = " ".join(said.split())
        assert f"{a}: OK, 1 tensor" in words
        assert words.endswith(f"; {verdict} {b}, which was not verified"), words


def test_a_plain_result_is_no_training_checkpoint_of_megatron(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.pt", w=torch.ones(3))
    line = "a plain state dict: Megatron does not resume training from it"
    assert line in succeed("ckpt-convert", a, tmp_path / "dcp", "--to", "torch_dist").stdout
    assert line not in succeed("ckpt-convert", a, tmp_path / "w.safetensors").stdout
    assert line not in succeed("ckpt-convert", DIST, tmp_path / "torch", "--to", "torch").stdout
