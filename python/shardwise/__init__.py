"""Checkpoints of large training runs: open, read, convert, reshard, verify, compare.

    import shardwise as sw
    with sw.open("ckpt/") as c:
        print(c.format, c.iteration, len(c))

Nothing in a checkpoint is ever executed. docs/python.md has the tour.
"""
import typing as _typing

from ._checkpoint import Checkpoint, load_file, open
from ._commands import (CheckpointWarning, Records, convert, diff, hash, reshard, stats, summary,
                        verify)
from ._core import __version__
from ._errors import (AlreadyExistsError, CorruptError, Error, InvalidArgumentError, IoError,
                      MissingKeyError, NotFoundError, UnsupportedError)
from ._tensor import Chunk, Tensor
from ._training import Optimizer, Param, Rank
from ._values import Global, Inert

if _typing.TYPE_CHECKING:
    from . import torch

__all__ = ["AlreadyExistsError", "Checkpoint", "CheckpointWarning", "Chunk", "CorruptError",
           "Error", "Global", "Inert", "InvalidArgumentError", "IoError", "MissingKeyError",
           "NotFoundError", "Optimizer", "Param", "Rank", "Records", "Tensor", "UnsupportedError",
           "__version__", "convert", "diff", "hash", "load_file", "open", "reshard", "stats",
           "summary", "torch", "verify"]


def __getattr__(name: str) -> _typing.Any:  # torch is imported when it is used
    if name == "torch":
        import importlib
        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
