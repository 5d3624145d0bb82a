"""The programs' commands as functions: the same options as keywords, the same JSON as values."""
from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

from . import _core
from ._errors import InvalidArgumentError

Path = Union[str, "os.PathLike[str]"]
Progress = Optional[Union[bool, Callable[[str, int, int], object]]]
_OF_THE_COMMAND_LINE = {"json", "quiet", "verbose", "progress", "no-progress", "color", "help",
                        "version", "csv"}


class CheckpointWarning(UserWarning):
    """What the programs print as a warning."""


class Records(list[dict[str, Any]]):
    """Rows with named columns: ``pandas.DataFrame(records)`` is a table.

    report: the whole document that the program prints under --json; docs/schema describes it.
    ok: whether all is well: undamaged of `verify`, equal of `diff`.
    """

    def __init__(self, rows: list[dict[str, Any]], report: dict[str, Any], ok: bool = True) -> None:
        super().__init__(rows)
        self.report = report
        self.ok = ok

    @property
    def digest(self) -> str:
        """Of `hash`: one digest of everything, 64 hexadecimal digits."""
        digest: str = self.report["digest"]
        return digest


def _words(options: dict[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        option = name.rstrip("_").replace("_", "-")
        if option in _OF_THE_COMMAND_LINE:
            raise InvalidArgumentError(f"{name}= is for the command line alone")
        if value is None or value is False:
            continue
        if isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items()]
        for each in value if isinstance(value, (list, tuple)) else [value]:
            given = each if isinstance(each, (str, int, float)) else os.fspath(each)
            words.append(f"--{option}" if each is True else f"--{option}={given}")
    return words


class _Bar:
    """A bar of tqdm's for each step; nothing where tqdm is not installed."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.step = ""
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]
            self.make: Any = tqdm
        except ImportError:
            self.make = None

    def __call__(self, step: str, done: int, total: int) -> None:
        if self.make is None:
            return
        if step != self.step:
            self.close()
            self.step = step
            self.bar = self.make(desc=step, total=total, unit="B", unit_scale=True)
        self.bar.total = total
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _run(command: str, paths: list[Path], options: dict[str, Any],
         progress: Progress = None) -> tuple[int, dict[str, Any]]:
    program, _, name = command.partition(" ")
    words = [*([name] if name else []), "--json", *_words(options), "--",
             *(os.fspath(path) for path in paths)]
    bar = _Bar() if progress is True else None
    try:
        told = bar or (progress if callable(progress) else None)
        code, text, messages = _core.run(program, [os.fsencode(word) for word in words], told)
    finally:
        if bar:
            bar.close()
    for message in messages:
        if message.startswith("warning: "):
            warnings.warn(message.removeprefix("warning: "), CheckpointWarning, stacklevel=3)
    document: dict[str, Any] = json.loads(text)
    return code, document


def convert(source: Path, destination: Path, to: str | None = None, *, progress: Progress = None,
            **options: Any) -> dict[str, Any]:
    """Rewrites a checkpoint in another format. The destination is complete, or not there.

    to: "torch", "torch_dist", "safetensors" or "huggingface"; default: what the destination's
        name says.
    progress: True for tqdm's bar, where that is installed, or a function of (step, done bytes,
        total bytes); what that raises stops the work.
    options: those of ckpt-convert, with underscores: ``dp=4, tp=2, model_only=True,
        include=["*.weight"], rename={"model": ""}, dtype="bfloat16", dry_run=True, force=True,
        strict=True, verify=True, threads=8``.

    Returns the report of --json: "outcome", "not_carried", "proven", ... KeyboardInterrupt stops
    it and leaves nothing behind. Raises AlreadyExistsError, UnsupportedError (also under
    ``strict``), CorruptError, InvalidArgumentError, NotFoundError, IoError.
    """
    return _run("ckpt-convert", [source, destination], {"to": to, **options}, progress)[1]


def reshard(source: Path, destination: Path, *, progress: Progress = None,
            **options: Any) -> dict[str, Any]:
    """Rewrites a Megatron checkpoint for other parallel sizes.

    options: those of reshard: ``tp=2, pp=1, dp=4, cp=1, ep=1, etp=1, link=True, ...``, and what
        `convert` takes of a conversion. What is not given stays as the source has it.

    Returns and raises as `convert`.
    """
    return _run("reshard", [source, destination], options, progress)[1]


def verify(path: Path, *, progress: Progress = None, **options: Any) -> Records:
    """Checks structure, every checksum and the optimizer's state; reads every byte once.

    options: those of ckpt-inspect verify: ``quick=True, iteration=3, allow_nonfinite=[...]``.

    Returns a record for each finding; ``ok`` where nothing is damaged. Damage is no exception.
    """
    code, report = _run("ckpt-inspect verify", [path], options, progress)
    return Records(report["findings"], report, code == 0)


def hash(path: Path, *, logical: bool = False, progress: Progress = None,  # noqa: A001
         **options: Any) -> Records:
    """SHA-256 of each tensor and object, and one ``digest`` of the whole.

    logical: by the names of the training state, so that the same state has the same hashes in
        every format and at every data-parallel size.
    options: those of ckpt-inspect hash: ``include=["*.weight"], as_="huggingface", ...``.

    Returns a record for each tensor (key, dtype, shape, bytes, sha256), then for each object.
    """
    _, report = _run("ckpt-inspect hash", [path], {"logical": logical, **options}, progress)
    return Records([*report["tensors"], *report["objects"]], report)


def diff(a: Path, b: Path, *, progress: Progress = None, **options: Any) -> Records:
    """What differs between two checkpoints, whatever their formats and parallel sizes.

    options: those of ckpt-inspect diff: ``rtol=1e-3, atol=0.0, keys_only=True, include=[...]``.

    Returns a record for each tensor and object that differs; ``ok`` where none does.
    """
    code, report = _run("ckpt-inspect diff", [a, b], options, progress)
    lists = (report.get(kind, {}).get("different", []) for kind in ("tensors", "objects"))
    return Records([row for rows in lists for row in rows], report, code == 0)


def stats(path: Path, *keys: str, progress: Progress = None, **options: Any) -> Records:
    """Statistics of tensors: min, max, mean, std and norm over finite elements, and counts.

    keys: keys, globs or slices as ``ckpt-inspect show`` takes them; without one: all tensors.
    options: ``logical=True, iteration=3, sort="norm", include=[...], exclude=[...]``.

    Returns a record for each tensor: key, dtype, shape, elements, zeros, nan, inf, min, max, ...
    """
    _, report = _run("ckpt-inspect show", [path, *keys], {"stats": True, **options}, progress)
    rows = []
    for entry in report["entries"]:
        row = {**entry, **entry["tensor"]}
        for end in ("min", "max"):
            if end in row and isinstance(row[end], str):  # infinities, which JSON has none of
                row[end] = float(row[end])
        del row["tensor"], row["chunks"]
        rows.append(row)
    return Records(rows, report)


def summary(path: Path, **options: Any) -> dict[str, Any]:
    """A checkpoint at a glance: the document of ``ckpt-inspect PATH --json``."""
    return _run("ckpt-inspect", [path], options)[1]
