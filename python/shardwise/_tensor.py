"""Tensors that are read when their values are asked for."""
from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _core

if TYPE_CHECKING:
    import torch

# torch's names of element types that numpy has under the same name.
_NUMPY = {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
          "uint32", "uint64", "bool", "complex64", "complex128"}


class Chunk(NamedTuple):
    """A stored box of a tensor.

    offsets, sizes: of the box, in elements of the whole tensor.
    file: where it is stored. offset_bytes, nbytes: of the entry of that file that holds it.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    offset_bytes: int
    nbytes: int


class _Dim(NamedTuple):
    """The indices of one stored dimension: start, start + step, ... An integer index drops it."""

    start: int
    step: int
    length: int
    is_dropped: bool = False


def _taken(dim: _Dim, index: Any) -> _Dim:
    if isinstance(index, slice):
        start, stop, step = index.indices(dim.length)
        if step < 1:
            raise IndexError("the step of a slice is 1 or more")
        count = len(range(start, stop, step))
        return _Dim(dim.start + start * dim.step if count else 0,
                    dim.step * step if count > 1 else 1, count)
    number = operator.index(index)
    if not -dim.length <= number < dim.length:
        raise IndexError(f"index {number} is out of range for a dimension of size {dim.length}")
    return _Dim(dim.start + number % dim.length * dim.step, 1, 1, True)


def _sliced(dims: tuple[_Dim, ...], index: Any) -> tuple[_Dim, ...]:
    given = list(index) if isinstance(index, tuple) else [index]
    left = sum(not dim.is_dropped for dim in dims)
    dots = [place for place, part in enumerate(given) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one ellipsis")
    if not dots:
        dots, given = [len(given)], [*given, Ellipsis]
    if len(given) - 1 > left:
        raise IndexError(f"{len(given) - 1} indices for a tensor of {left} dimensions")
    given[dots[0]:dots[0] + 1] = [slice(None)] * (left - len(given) + 1)
    rest = iter(given)
    return tuple(dim if dim.is_dropped else _taken(dim, next(rest)) for dim in dims)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's type for torch's name of one. Raises TypeError where numpy has none."""
    if name in _NUMPY:
        return np.dtype(name)
    try:
        import ml_dtypes
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise TypeError(f"numpy has no {name}: install ml_dtypes, which adds bfloat16 and the "
                        "float8 types, or take .torch()") from None
    return dtype


class Tensor:
    """A tensor of a checkpoint, or a part of one, of which nothing was read yet.

    ``t[2:4, :8]`` is a part, as numpy and torch slice: integers, slices with steps of 1 and more,
    one ellipsis. ``np.asarray(t)``, ``t.numpy()``, ``t.torch()`` and DLPack consumers read the
    elements that the part has, into memory that is theirs. Safe to read from many threads.
    """

    __slots__ = ("_core", "_dims", "_key", "_maps")

    def __init__(self, core: _core.Tensor, key: str | None = None,
                 dims: tuple[_Dim, ...] | None = None, maps: bool = False) -> None:
        self._maps = maps
        self._core = core
        self._key = core.key if key is None else key
        self._dims = tuple(_Dim(0, 1, size) for size in core.shape) if dims is None else dims

    @property
    def key(self) -> str:
        """The name under which it was found."""
        return self._key

    @property
    def dtype(self) -> str:
        """torch's name of the element type, such as "bfloat16"."""
        return self._core.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in elements."""
        return tuple(dim.length for dim in self._dims if not dim.is_dropped)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements in memory."""
        return self.size * self._core.itemsize

    @property
    def chunks(self) -> list[Chunk]:
        """Where the whole tensor is stored, also of a part."""
        return [Chunk(*chunk) for chunk in self._core.chunks]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self._core, self._key, _sliced(self._dims, index), self._maps)

    def _mapped(self) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """The bytes of the whole tensor in its file, where that can be mapped."""
        location = self._core.location if self._maps and self.size else None
        if location is None or location[1] % self._core.itemsize:
            return None
        count = math.prod(self._core.shape) * self._core.itemsize
        mapped: np.ndarray[Any, np.dtype[np.uint8]] = np.memmap(
            location[0], np.uint8, "c", location[1], (count,)).view(np.ndarray)
        return mapped

    def _part(self) -> tuple[Any, ...]:
        """The index by which the whole tensor has this part."""
        part = [dim.start if dim.is_dropped else
                slice(dim.start, dim.start + dim.length * dim.step, dim.step)
                for dim in self._dims]
        return *part, ...  # a view also where all are numbers

    def _read(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        buffer = np.empty(self.nbytes, np.uint8)
        self.read_into(buffer)
        return buffer

    def read_into(self, buffer: Any) -> None:
        """Reads the elements, row-major and little-endian, into writable, contiguous memory.

        buffer: `nbytes` bytes, as Python's buffer protocol gives them: a bytearray, a numpy array.
        Raises InvalidArgumentError for another size, CorruptError, IoError.
        """
        self._core.read_into(tuple(dim[:3] for dim in self._dims), buffer)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Reads it: an array of this shape that owns its memory.

        Raises TypeError for bfloat16 and float8 without ml_dtypes, and for complex32.
        """
        dtype = numpy_dtype(self.dtype)
        mapped = self._mapped()
        if mapped is not None:
            part: np.ndarray[Any, Any] = mapped.view(dtype).reshape(self._core.shape)[self._part()]
            return part
        return self._read().view(dtype).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the elements are in a file: reading makes an array of them")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def torch(self) -> torch.Tensor:
        """Reads it: a torch.Tensor on the CPU, of this shape and type. Needs torch."""
        import torch
        dtype = getattr(torch, self.dtype)
        if not self.size:
            return torch.empty(self.shape, dtype=dtype)
        mapped = self._mapped()
        if mapped is not None:
            whole: torch.Tensor = torch.from_numpy(mapped).view(dtype).view(self._core.shape)
            return whole[self._part()]
        # numpy's memory: large pages make it five times as quick to fill as torch's.
        made: torch.Tensor = torch.from_numpy(self._read()).view(dtype).view(self.shape)
        return made

    def __dlpack__(self, **options: Any) -> Any:
        made = self.numpy() if self.dtype in _NUMPY else self.torch()
        return made.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU

    def __repr__(self) -> str:
        return f"<shardwise.Tensor {self._key!r} {self.dtype} {list(self.shape)}>"
