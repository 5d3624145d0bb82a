"""Every class of hostile input of docs/security.md, given to the programs as a user would: an error
of one line that says where, or the documented acceptance, in bounded time and memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hostile import archives, files, folders, pickles
from hostile.row import Row
from programs import BIN, REPOSITORY, refusal_of, run_bounded

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

ROWS = [*pickles.rows(), *archives.rows(), *folders.rows(), *files.rows()]
# P1 to P9 and so on; what a command alone cannot show, a test in C++ does and has it in its name.
GROUPS = {"P": 9, "Z": 9, "D": 11, "S": 5, "F": 5, "R": 1}
CLASSES = {f"{group}{i + 1}" for group, count in GROUPS.items() for i in range(count)}
KNOWN_VULNERABILITIES = (
    "CVE-2025-32434 CVE-2026-24747 CVE-2026-24150 CVE-2026-24151 CVE-2026-24152 CVE-2026-31214 "
    "CVE-2025-10155 CVE-2025-10156 CVE-2025-10157 ZDI-CAN-31759 ZDI-CAN-32834 GHSA-ppvg-47fv-5f4w "
    "GHSA-h6w6-rm56-8m58"
).split()


def classes_in_cpp() -> set[str]:
    """From names such as BOOST_AUTO_TEST_CASE(F2_F5_a_source_that_changes)."""
    names = re.findall(r"TEST_CASE\((\w+)", "".join(
        path.read_text() for path in (REPOSITORY / "tests").rglob("*_test.cc")))
    return {word for name in names for word in name.split("_") if word in CLASSES}


def test_every_class_and_every_known_vulnerability_has_a_row() -> None:
    rows = {row.name.split()[0] for row in ROWS}
    assert rows | classes_in_cpp() == CLASSES
    named = {word.rstrip(",") for row in ROWS for word in row.name.split()}
    assert set(KNOWN_VULNERABILITIES) <= named, set(KNOWN_VULNERABILITIES) - named
    page = (REPOSITORY / "docs/security.md").read_text()
    assert {c for c in CLASSES if not re.search(rf"^\| {c} \|", page, re.M)} == set()



@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_hostile_input(row: Row, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    path = row.make(folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # where code that ran would leave its mark
    command, *arguments = row.command
    if command == "convert":
        outcome = run_bounded("ckpt-convert", path, tmp_path / "made", *arguments)
        assert not (tmp_path / "made").exists()
    else:
        outcome = run_bounded("ckpt-inspect", command, path, *arguments)
    if row.code in (0, 1):
        assert outcome.code == row.code, outcome
        said = outcome.stdout
    else:
        said = refusal_of(outcome, row.code)
    for words in row.says:
        assert words in said, outcome
    assert all(c.isprintable() or c == "\n" for c in outcome.text), outcome
    assert os.listdir() == []
