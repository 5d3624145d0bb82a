"""docs/python.md is true."""
from __future__ import annotations

import argparse
import doctest
from pathlib import Path

import torch

from conftest import MEGATRON

PAGE = Path(__file__).resolve().parents[2] / "docs/python.md"


def test_the_page_runs(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(3, 4)}, "args": argparse.Namespace(lr=0.25)},
               tmp_path / "file.pt")
    names = {"CKPT": str(MEGATRON["torch_dist"]), "FILE": str(tmp_path / "file.pt"),
             "OUT": str(tmp_path)}
    fenced = PAGE.read_text().replace("```", "")
    test = doctest.DocTestParser().get_doctest(fenced, names, PAGE.name, str(PAGE), 0)
    outcome = doctest.DocTestRunner().run(test)
    assert outcome.attempted > 15 and outcome.failed == 0
