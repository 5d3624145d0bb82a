from collections.abc import Callable
from pathlib import Path
from typing import Any

__version__: str

class Tensor:
    key: str
    file: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    chunks: list[tuple[tuple[int, ...], tuple[int, ...], str, int, int]]
    def read_into(self, dims: tuple[tuple[int, int, int], ...], buffer: Any, /) -> None: ...

class Checkpoint:
    format: str
    iteration: int | None
    path: str
    tensor_names: list[str]
    object_names: list[str]
    args: Any
    metadata: Any
    def tensor(self, index: int, /) -> Tensor: ...
    def find(self, name: str, tensor: Callable[[Tensor], Any], /) -> list[tuple[str, Any]]: ...
    def document(self, tensor: Callable[[Tensor], Any], /) -> Any: ...

def open(path: str | Path, iteration: int | None, follow_links: bool, /) -> Checkpoint: ...
