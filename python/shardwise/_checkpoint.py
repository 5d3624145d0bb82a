"""An opened checkpoint."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Union

from . import _commands, _core
from ._errors import MissingKeyError, NotFoundError, UnsupportedError
from ._page import page
from ._tensor import Tensor
from ._training import Optimizer, Param, Rank, maker, params_of

Path = Union[str, "os.PathLike[str]"]


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # a name from a file that is not UTF-8
        return False
    return True


class Checkpoint(Mapping[str, Any]):
    """What a checkpoint holds, by name. Made by `open`; read-only; safe to use from many threads.

    As a mapping it lists the tensors that are stored, in the order of the files; those that lie in
    rank files as FILE:KEY. ``c[name]`` also takes what ``ckpt-inspect show`` takes: other
    spellings of a key, objects (as Python values), values inside of torch.save files
    ("args.lr"), and names of the training state, joined from all ranks. Tensors are `Tensor`:
    nothing is read before their values are asked for.

    Closing forgets the files; tensors that were taken from it keep theirs open.
    """

    def __init__(self, core: _core.Checkpoint, source: dict[str, Any],
                 mmap: bool = False) -> None:
        self._maps = mmap
        self._opened: _core.Checkpoint | None = core
        self._source = source  # what open() was told

    @property
    def _live(self) -> _core.Checkpoint:
        if self._opened is None:
            raise ValueError("the checkpoint is closed")
        return self._opened

    def close(self) -> None:
        self._opened = None
        for name in ("_places", "_training", "_state", "args", "metadata"):
            self.__dict__.pop(name, None)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The file or folder that was opened."""
        return self._live.path

    @property
    def format(self) -> str:
        """"torch", "torch_dist" or "safetensors"."""
        return self._live.format

    @property
    def iteration(self) -> int | None:
        """The training iteration, where the checkpoint states one."""
        return self._live.iteration

    @cached_property
    def args(self) -> dict[str, Any] | None:
        """The arguments of the training run; None where the checkpoint has none."""
        args: dict[str, Any] | None = self._live.args
        return args

    @cached_property
    def metadata(self) -> Any:
        """What the format says beside tensors: ``__metadata__`` of safetensors (a dict of str),
        of a DCP folder what ``.metadata`` has beside its tensors; else an empty dict."""
        return self._live.metadata

    @cached_property
    def _training(self) -> _core.Training:
        return self._live.training

    @cached_property
    def _state(self) -> tuple[dict[str, Param], Optimizer]:
        groups = self._live.groups
        for group in groups:
            group["params"] = []
        return params_of(self._training, groups), Optimizer(groups)

    @property
    def params(self) -> dict[str, Param]:
        """The training state by parameter, in the model's order, whatever the layout and the sizes.

        Raises UnsupportedError for what is no training checkpoint of Megatron's.
        """
        return self._state[0]

    @property
    def optimizer(self) -> Optimizer:
        """The stored parameter groups. Those of Megatron's checkpoints know their parameters."""
        try:
            return self._state[1]
        except UnsupportedError:
            return Optimizer([{**group, "params": []} for group in self._live.groups])

    def rank(self, tp: int = 0, pp: int = 0, dp: int | None = None, vpp: int | None = None, *,
             ep: int | None = None, etp: int | None = None, cp: int | None = None) -> Rank:
        """One rank of the run that wrote the checkpoint, by its place in Megatron's grid.

        Of several ranks that have the given coordinates the first is taken. vpp: of the rank's
        model chunks this one alone.
        """
        given = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp, "cp": cp}
        return Rank(self._training, {key: at for key, at in given.items() if at is not None}, vpp)

    def summary(self) -> dict[str, Any]:
        """The checkpoint at a glance: the document of ``ckpt-inspect PATH --json``."""
        self._live  # not of a closed one
        return _commands.summary(**self._source)

    def _repr_html_(self) -> str:
        return page(self.summary())

    @property
    def objects(self) -> list[str]:
        """Names of entries that are not tensors. ``c[name]`` reads it."""
        return self._live.object_names

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._live.tensor_names)}

    def __getitem__(self, name: str) -> Any:
        core = self._live
        if not isinstance(name, str):
            raise TypeError("names of a checkpoint are str")
        is_utf8 = name.isascii() or _is_utf8(name)
        place = core.place(name) if is_utf8 else -1
        if place < 0:
            place = self._places.get(name, -1)
        if place >= 0:
            return Tensor(core.tensor(place), name, maps=self._maps)
        if not is_utf8:
            raise MissingKeyError(f"{name!r} is in no checkpoint", key=name)
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
         follow_links: bool = False, mmap: bool = False) -> Checkpoint:
    """Opens a checkpoint; reads metadata alone, executes nothing.

    path: a checkpoint root, an iteration or DCP folder, a torch.save or safetensors file.
    iteration: of a root; default: the one that its tracker names.
    follow_links: follow links that lead out of the checkpoint's folder.
    mmap: stored tensors that lie in a file as in memory are mapped, copy on write, instead of read:
        at no cost until elements are used, as safetensors and ``torch.load(mmap=True)`` do it. The
        files must stay as they are: where one is cut off, using the tensor ends the process.

    Raises NotFoundError, CorruptError, UnsupportedError, IoError.
    """
    source = {"path": os.path.abspath(path), "iteration": iteration, "follow_links": follow_links}
    return Checkpoint(_core.open(os.fspath(path), iteration, follow_links), source, mmap)


def load_file(path: Path, framework: str = "torch") -> Any:
    """A torch.save file as `torch.load` gives it, without executing anything.

    Also what ``weights_only`` refuses: objects become `Inert`, classes `Global`, with all that the
    file says of them. Tensors that share a storage in the file are copies of their own here; a
    tensor that is there twice is one object.
    framework: what tensors become: "torch", "numpy", or "lazy" for `Tensor`, which are read when
        they are used. safetensors files give a dict of tensors.

    Raises CorruptError, UnsupportedError (sparse and quantised tensors), NotFoundError, IoError;
    TypeError for "numpy" with a type that numpy has not.
    """
    core = _core.open(os.fspath(path), None, False)
    make = maker(framework)
    if core.format == "safetensors":
        return {name: make(core.tensor(place)) for place, name in enumerate(core.tensor_names)}
    return core.document(make)
