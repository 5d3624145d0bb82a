"""Instances that pickle writes in each of its ways; a reader that does not know the classes must
carry them unchanged."""

from __future__ import annotations

import argparse
import enum
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import torch

from golden.values import normal


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Settings:
    """State in __dict__, with a tensor inside and a list that two fields share."""

    rate: float = 0.5
    weights: torch.Tensor = field(default_factory=lambda: normal((3,), "settings"))
    names: list = field(default_factory=list)
    same_names: list = field(default_factory=list)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Settings)
            and self.rate == other.rate
            and torch.equal(self.weights, other.weights)
            and self.names == other.names
            and (self.names is self.same_names) == (other.names is other.same_names)
        )


class Slotted:
    """State as (None, slots)."""

    __slots__ = ("left", "right")

    def __init__(self, left: object, right: object):
        self.left, self.right = left, right

    def __eq__(self, other: object) -> bool:
        return (self.left, self.right) == (other.left, other.right)


class Reduced:
    """Rebuilt by a call, then given state by a method of its own."""

    def __init__(self, word: str):
        self.word, self.state = word, None

    def __reduce__(self) -> tuple:
        return Reduced, (self.word,), {"given": [1, 2, self.state]}

    def __setstate__(self, state: dict) -> None:
        self.state = state["given"][2]

    def __eq__(self, other: object) -> bool:
        return self.word == other.word and self.state == other.state


class NamedDict(dict):
    """A dictionary with attributes; pickled with items and state."""


def objects() -> dict:
    names = ["a", "b"]
    named = NamedDict(x=1)
    named.title = "with state"
    counts = defaultdict(list)
    counts["k"].append(3)
    return {
        "enum": [Colour.RED, Colour.RED],
        "dataclass": [Settings(names=names, same_names=names), Settings(0.25)],
        "slots": [Slotted(1, "two")],
        "reduced": [Reduced("word")],
        "namespace": argparse.Namespace(
            learning_rate=0.1, steps=[1, 2], dtype=torch.float16, named=named
        ),
        "collections": [counts, Counter("abca"), deque([1, 2], maxlen=5), frozenset({1})],
        "function": [torch.nn.functional.relu, len],
        "range": [range(3), slice(1, None, 2), bytearray(b"xyz")],
        "weight": normal((2, 2), "beside objects"),
    }
