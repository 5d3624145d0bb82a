"""What values of a pickle become that Python has nothing harmless for."""
from __future__ import annotations

from typing import Any, NamedTuple


class Global(NamedTuple):
    """The name of a class or function. It was not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Inert:
    """An object of a pickle that was not built: the class, and what would have built it.

    ``inert.NAME`` is the attribute NAME of the object's state, where that is a dict:
    ``load_file("model_optim_rng.pt")["args"].lr``. The fields have names of their own, which come
    first: ``cls`` (a `Global`, or another value that was to be called), ``args``, ``kwargs``,
    ``state``, ``elements`` (what would be appended) and ``items`` (what would be set by key).
    """

    cls: Any
    args: Any
    kwargs: Any
    state: Any
    elements: list[Any]
    items: dict[Any, Any]

    def __init__(self) -> None:
        self.cls = self.state = None
        self.args = ()
        self.kwargs = {}
        self.elements = []
        self.items = {}

    def __getattr__(self, name: str) -> Any:
        state = self.__dict__.get("state")
        if isinstance(state, dict) and name in state:
            return state[name]
        raise AttributeError(f"the state of this {self.__dict__.get('cls')} has no {name!r}")

    def __repr__(self) -> str:
        return f"<inert {self.cls}>"
