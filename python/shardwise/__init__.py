"""Checkpoints of large training runs: open, read, convert, reshard, verify, compare.

    import shardwise as sw
    with sw.open("ckpt/") as c:
        print(c.format, c.iteration, len(c))

Nothing in a checkpoint is ever executed. docs/python.md has the tour.
"""
from ._checkpoint import Checkpoint, open
from ._core import __version__
from ._errors import (AlreadyExistsError, CorruptError, Error, InvalidArgumentError, IoError,
                      MissingKeyError, NotFoundError, UnsupportedError)
from ._tensor import Chunk, Tensor
from ._values import Global, Inert

__all__ = ["AlreadyExistsError", "Checkpoint", "Chunk", "CorruptError", "Error", "Global", "Inert",
           "InvalidArgumentError", "IoError", "MissingKeyError", "NotFoundError", "Tensor",
           "UnsupportedError", "__version__", "open"]
