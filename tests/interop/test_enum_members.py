"""One member of an enum has two pickles: by name (Python 3.11) and by value (others)."""

from __future__ import annotations

import enum
import http
import shutil
import signal
from pathlib import Path

import pytest
import torch

from damage import edit_file
from programs import GOLDEN, hash_of, refuse, run, succeed, verify

MALFORMED = 3


class Level(enum.Enum):
    LOW = 1


class ByValue:
    """Pickles a member as Python 3.12 does."""

    def __init__(self, cls: type, value: object) -> None:
        self.call = cls, (value,)

    def __reduce__(self):
        return self.call


class ByName:
    """Pickles a member as Python 3.11 does."""

    def __init__(self, cls: type, name: str) -> None:
        self.call = getattr, (cls, name)

    def __reduce__(self):
        return self.call


# What two files say of one place, and what diff says of them: equal, may be one, or different.
SPELLINGS = [
    (ByValue(signal.Signals, 15), signal.SIGTERM, "equal"),
    (ByValue(signal.Signals, 15), ByName(signal.Signals, "SIGTERM"), "equal"),
    (signal.SIGINT, ByName(signal.Signals, "SIGINT"), "equal"),
    (ByValue(signal.Signals, 15), signal.SIGINT, "different"),
    (signal.SIGTERM, signal.SIGINT, "different"),
    (ByValue(signal.Signals, 15), ByValue(signal.Signals, 2), "different"),
    (ByValue(signal.Signals, 10), ByValue(signal.Signals, 2), "different"),
    (ByValue(signal.Signals, 10), ByValue(signal.Signals, 12), "different"),
    (ByValue(signal.Signals, 10), ByName(signal.Signals, "SIGUSR1"), "may"),  # 30 on macOS
    (ByValue(http.HTTPStatus, 200), ByName(http.HTTPStatus, "OK"), "may"),
    (ByValue(http.HTTPStatus, 200), ByValue(http.HTTPStatus, 404), "different"),
    (ByName(http.HTTPStatus, "OK"), ByName(http.HTTPStatus, "FOUND"), "different"),
    (ByValue(Level, 1), ByName(Level, "LOW"), "may"),
    (ByValue(Level, 1), ByName(http.HTTPStatus, "OK"), "different"),
    (ByValue(signal.Signals, 15), 15, "different"),
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda s: s[2])
def test_members_of_enums_by_value_and_by_name(spelling: tuple, tmp_path: Path) -> None:
    a, b, verdict = spelling
    for name, value in (("a", a), ("b", b)):
        torch.save({"args": {"exit_signal": value, "w": torch.ones(1)}}, tmp_path / f"{name}.pt")
    outcome = run("ckpt-inspect", "diff", tmp_path / "a.pt", tmp_path / "b.pt")
    assert outcome.code == (0 if verdict == "equal" else 1)
    assert ("may be one member" in outcome.stdout) == (verdict == "may")
    document = run("ckpt-inspect", "diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json").json()
    details = [place for each in document["objects"]["different"] for place in each["details"]]
    assert len(details) == outcome.code
    assert all(place.get("may_be_one", False) == (verdict == "may") for place in details)
    for options in ((), ("--logical",)):
        digests = [hash_of(tmp_path / f"{name}.pt", *options)["digest"] for name in "ab"]
        assert (digests[0] == digests[1]) == (verdict == "equal")


@pytest.mark.parametrize(("first", "other", "verdict"), [
    (ByValue(signal.Signals, 15), signal.SIGTERM, "equal"),
    (ByValue(http.HTTPStatus, 200), ByName(http.HTTPStatus, "OK"), "may"),
    (ByValue(http.HTTPStatus, 200), ByValue(http.HTTPStatus, 404), "different"),
    (ByValue(http.HTTPStatus, 200), ByName(signal.Signals, "SIGUSR1"), "different"),
], ids=("equal", "may", "value", "class"))
def test_two_rank_files_may_say_one_member_in_two_ways(
    first: object, other: object, verdict: str, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(GOLDEN / "runs/delta_torch_tp2dp2/ckpt", tmp_path / "ckpt"))
    for rank, member in enumerate((first, other)):
        edit_file(root / f"iter_0000002/mp_rank_0{rank}/model_optim_rng.pt",
                  lambda tree, member=member: setattr(tree["args"], "attention_backend", member))
    code, report = verify(root)
    told = [each["what"] for each in report["not_proven"]]
    assert (code, told) == (int(verdict == "different"),
                            ["args.attention_backend"] if verdict == "may" else [])
    if verdict == "different":
        assert "/args/@attention_backend" in refuse(
            MALFORMED, "reshard", root, tmp_path / "out", "--dp", "1")
        return
    made = succeed("reshard", root, tmp_path / "out", "--dp", "1")
    assert ("args.attention_backend" in made.stderr) == (verdict == "may")
    assert verify(tmp_path / "out")[0] == 0
