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
    location: tuple[str, int] | None
    def read_into(self, dims: tuple[tuple[int, int, int], ...], buffer: Any, /) -> None: ...

class Checkpoint:
    format: str
    iteration: int | None
    path: str
    tensor_names: list[str]
    object_names: list[str]
    args: Any
    metadata: Any
    training: Training
    groups: list[dict[str, Any]]
    def place(self, name: str, /) -> int: ...
    def tensor(self, index: int, /) -> Tensor: ...
    def find(self, name: str, tensor: Callable[[Tensor], Any], /) -> list[tuple[str, Any]]: ...
    def document(self, tensor: Callable[[Tensor], Any], /) -> Any: ...

class Training:
    params: list[tuple[str, Tensor, Tensor | None, dict[str, Tensor], int, int]]
    def rank(self, place: dict[str, int], tensor: Callable[..., Any], /) -> dict[str, Any]: ...

def open(path: str | Path, iteration: int | None, follow_links: bool, /) -> Checkpoint: ...
def run(program: str, words: list[bytes], on_progress: Callable[[str, int, int], object] | None,
        /) -> tuple[int, str, list[str]]: ...
