"""An opened checkpoint."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Union

from . import _core
from ._errors import MissingKeyError, NotFoundError
from ._tensor import Tensor

Path = Union[str, "os.PathLike[str]"]


class Checkpoint(Mapping[str, Any]):
    """What a checkpoint holds, by name. Made by `open`; read-only; safe to use from many threads.

    As a mapping it lists the tensors that are stored, in the order of the files; those that lie in
    rank files as FILE:KEY. ``c[name]`` also takes what ``ckpt-inspect show`` takes: other
    spellings of a key, objects (as Python values), values inside of torch.save files
    ("args.lr"), and names of the training state, joined from all ranks. Tensors are `Tensor`:
    nothing is read before their values are asked for.

    Closing forgets the files; tensors that were taken from it keep theirs open.
    """

    def __init__(self, core: _core.Checkpoint) -> None:
        self._opened: _core.Checkpoint | None = core

    @property
    def _core(self) -> _core.Checkpoint:
        if self._opened is None:
            raise ValueError("the checkpoint is closed")
        return self._opened

    def close(self) -> None:
        self._opened = None
        for name in ("_places", "args", "metadata"):
            self.__dict__.pop(name, None)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The file or folder that was opened."""
        return self._core.path

    @property
    def format(self) -> str:
        """"torch", "torch_dist" or "safetensors"."""
        return self._core.format

    @property
    def iteration(self) -> int | None:
        """The training iteration, where the checkpoint states one."""
        return self._core.iteration

    @cached_property
    def args(self) -> dict[str, Any] | None:
        """The arguments of the training run; None where the checkpoint has none."""
        args: dict[str, Any] | None = self._core.args
        return args

    @cached_property
    def metadata(self) -> Any:
        """What the format says beside tensors: ``__metadata__`` of safetensors (a dict of str),
        of a DCP folder what ``.metadata`` has beside its tensors; else an empty dict."""
        return self._core.metadata

    @property
    def objects(self) -> list[str]:
        """Names of what is no tensor. ``c[name]`` reads it."""
        return self._core.object_names

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._core.tensor_names)}

    def __getitem__(self, name: str) -> Any:
        core = self._core
        if not isinstance(name, str):
            raise TypeError("names of a checkpoint are str")
        place = self._places.get(name)
        if place is not None:
            return Tensor(core.tensor(place), name)
        try:
            found = core.find(name, Tensor)
        except NotFoundError as error:
            raise MissingKeyError(*error.__reduce__()[1]) from None  # type: ignore[misc]
        if len(found) != 1:
            raise MissingKeyError(f"'{name}' names {len(found)} values: {found[0][0]}, ...",
                                  key=name)
        return found[0][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        if self._opened is None:
            return "<shardwise.Checkpoint, closed>"
        return f"<shardwise.Checkpoint {self.path!r}: {self.format}, {len(self)} tensors>"


def open(path: Path, *, iteration: int | None = None,  # noqa: A001
         follow_links: bool = False) -> Checkpoint:
    """Opens a checkpoint; reads metadata alone, executes nothing.

    path: a checkpoint root, an iteration or DCP folder, a torch.save or safetensors file.
    iteration: of a root; default: the one that its tracker names.
    follow_links: follow links that lead out of the checkpoint's folder.

    Raises NotFoundError, CorruptError, UnsupportedError, IoError.
    """
    return Checkpoint(_core.open(os.fspath(path), iteration, follow_links))
