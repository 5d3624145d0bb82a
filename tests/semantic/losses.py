"""What a result lacks of what its source held, and whether the program said so.

A place is the way from the root to a value: the steps are keys of mappings, indices of lists and
names of attributes. A loss is a place where the result holds something else, or nothing.
"""

from __future__ import annotations

import argparse
import collections
import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch

from comparing import attributes, bytes_of, dtype_name, escaped


class StepKind(enum.Enum):
    KEY = enum.auto()
    INDEX = enum.auto()
    ATTRIBUTE = enum.auto()


@dataclass(frozen=True)
class Step:
    kind: StepKind
    name: object  # a key of a mapping may be anything that can be hashed

    def text(self, escape: bool) -> str:
        name = escaped(self.name) if escape else str(self.name)
        return f"@{name}" if self.kind is StepKind.ATTRIBUTE else name


Place = tuple[Step, ...]


def key_step(key: object) -> Step:
    return Step(StepKind.KEY, key)


class Aspect(enum.Enum):
    """Which part of a value is not as it was."""

    MISSING = "missing"
    TYPE = "type"  # its content is compared all the same
    KEY = "key"  # a key that is no string became one
    CONTENT = "content"
    REQUIRES_GRAD = "requires_grad"
    INVENTED = "invented"  # the source has nothing there: never to be excused
    ORDER = "order"
    SHARING = "sharing"


@dataclass(frozen=True)
class Loss:
    place: Place
    aspect: Aspect
    problem: str
    value: object = None  # what the source holds there, if it is missing

    def __str__(self) -> str:
        return f"{pointer(self.place) or '/'}: {self.aspect.value}: {self.problem}"


def pointer(place: Place) -> str:
    return "".join("/" + step.text(escape=True) for step in place)


def losses(expected: object, actual: object, place: Place = ()) -> Iterator[Loss]:
    """Strides, and whether a tensor is a Parameter, are not compared: no format keeps them."""
    if isinstance(expected, torch.Tensor):
        yield from tensor_losses(expected, actual, place)
    elif is_mapping(expected):
        yield from mapping_losses(expected, actual, place)
    elif isinstance(expected, (list, tuple)):
        yield from sequence_losses(expected, actual, place)
    elif type(expected) is not type(actual):
        yield Loss(place, Aspect.CONTENT, f"{shown(expected)} is now {shown(actual)}")
    elif isinstance(expected, argparse.Namespace):
        yield from attribute_losses(vars(expected), vars(actual), place)
    elif not same_leaf(expected, actual):
        yield Loss(place, Aspect.CONTENT, f"{shown(expected)} is now {shown(actual)}")


def tensor_losses(expected: torch.Tensor, actual: object, place: Place) -> Iterator[Loss]:
    if not isinstance(actual, torch.Tensor):
        yield Loss(place, Aspect.CONTENT, f"a tensor is now {shown(actual)}")
    elif content_of(expected) != content_of(actual):
        yield Loss(place, Aspect.CONTENT, f"{shown(expected)} is now {shown(actual)}")
    else:
        if kind_of(expected) != kind_of(actual):
            yield Loss(place, Aspect.TYPE, f"{kind_of(expected)} became {kind_of(actual)}")
        if expected.requires_grad != actual.requires_grad:
            yield Loss(place, Aspect.REQUIRES_GRAD, f"{expected.requires_grad} became its opposite")
        yield from attribute_losses(attributes(expected), attributes(actual), place)


def kind_of(tensor: torch.Tensor) -> str:
    name = type(tensor).__name__
    return "Tensor" if name == "Parameter" else name


def mapping_losses(expected: dict, actual: object, place: Place) -> Iterator[Loss]:
    if not is_mapping(actual):
        yield Loss(place, Aspect.CONTENT, f"a mapping is now {shown(actual)}")
        return
    if type(expected) is not type(actual):
        names = f"{type(expected).__name__} became {type(actual).__name__}"
        yield Loss(place, Aspect.TYPE, names)
    yield from item_losses(expected, actual, place)
    yield from attribute_losses(attributes(expected), attributes(actual), place)
    if isinstance(expected, collections.OrderedDict) and type(actual) is type(expected):
        common = [str(key) for key in actual if key in expected]
        if common != [str(key) for key in expected if key in actual]:
            yield Loss(place, Aspect.ORDER, "its keys are in another order")
    if isinstance(expected, collections.defaultdict) and type(actual) is type(expected):
        if expected.default_factory is not actual.default_factory:
            yield Loss(place, Aspect.TYPE, "another default_factory")


def item_losses(expected: dict, actual: dict, place: Place) -> Iterator[Loss]:
    theirs = {identity(key): (key, value) for key, value in actual.items()}
    for key, value in expected.items():
        at = (*place, key_step(key))
        found = theirs.pop(identity(key), None)
        if found is None and not isinstance(key, str):
            found = theirs.pop(identity(str(key)), None)
            if found is not None:
                yield Loss(at, Aspect.KEY, f"{key!r} became a string")
        if found is None:
            yield Loss(at, Aspect.MISSING, f"{shown(value)} is missing", value)
        else:
            yield from losses(value, found[1], at)
    for key, value in theirs.values():
        yield Loss((*place, key_step(key)), Aspect.INVENTED, f"{shown(value)} was not there")


def attribute_losses(expected: dict, actual: dict, place: Place) -> Iterator[Loss]:
    for name in sorted(set(expected) | set(actual), key=str):
        at = (*place, Step(StepKind.ATTRIBUTE, name))
        if name not in expected:
            yield Loss(at, Aspect.INVENTED, f"{shown(actual[name])} was not there")
        elif name not in actual:
            yield Loss(at, Aspect.MISSING, f"{shown(expected[name])} is missing", expected[name])
        else:
            yield from losses(expected[name], actual[name], at)


def sequence_losses(expected, actual, place: Place) -> Iterator[Loss]:
    if type(expected) is not type(actual):
        yield Loss(place, Aspect.CONTENT, f"{shown(expected)} is now {shown(actual)}")
        return
    for index, value in enumerate(expected):
        at = (*place, Step(StepKind.INDEX, index))
        is_hole = index < len(actual) and actual[index] is None and value is not None
        if index >= len(actual) or is_hole:
            yield Loss(at, Aspect.MISSING, f"{shown(value)} is missing", value)
        else:
            yield from losses(value, actual[index], at)
    if len(actual) > len(expected):
        more = len(actual) - len(expected)
        yield Loss(place, Aspect.INVENTED, f"{more} more elements than there were")


def is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def identity(key: object) -> tuple:
    """True is not 1, and NaN is itself."""
    return type(key).__name__, repr(key)


def content_of(tensor: torch.Tensor) -> tuple:
    return tensor.dtype, tuple(tensor.shape), bytes_of(tensor)


def same_leaf(expected: object, actual: object) -> bool:
    if isinstance(expected, float):
        return struct.pack("<d", expected) == struct.pack("<d", actual)
    if isinstance(expected, complex):
        return repr(expected) == repr(actual)
    if isinstance(expected, (numpy.ndarray, numpy.generic)):
        same_type = expected.dtype == actual.dtype and expected.shape == actual.shape
        return same_type and expected.tobytes() == actual.tobytes()
    if isinstance(expected, (torch.TypedStorage, torch.UntypedStorage)):
        return expected.tolist() == actual.tolist() and str(expected.dtype) == str(actual.dtype)
    if isinstance(expected, collections.deque):
        return not list(losses(list(expected), list(actual)))
    return expected == actual or bool(attributes(expected)) and not list(
        attribute_losses(attributes(expected), attributes(actual), ())
    )


def shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}{list(value.shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"


def separated(expected: object, actual: object) -> Iterator[list[Loss]]:
    """For each storage that tensors shared and no longer share: the loss at each of its places."""
    after = {pointer(place): tensor for place, tensor in placed_tensors(actual)}
    for places in storages(expected).values():
        now = [after[pointer(place)] for place in places if pointer(place) in after]
        if len({tensor.untyped_storage().data_ptr() for tensor in now}) > 1:
            yield [Loss(place, Aspect.SHARING, "has a storage of its own now") for place in places]


def storages(value: object) -> dict[int, list[Place]]:
    """The places of tensors that share a storage, by its address."""
    by_address: dict[int, list[Place]] = {}
    for place, tensor in placed_tensors(value):
        if tensor.untyped_storage().nbytes():
            by_address.setdefault(tensor.untyped_storage().data_ptr(), []).append(place)
    return {address: places for address, places in by_address.items() if len(places) > 1}


def placed_tensors(value: object, place: Place = ()) -> Iterator[tuple[Place, torch.Tensor]]:
    """Those that a state dict holds by its mappings and lists: what DCP flattens."""
    if isinstance(value, torch.Tensor):
        yield place, value
    elif is_mapping(value):
        for key, item in value.items():
            yield from placed_tensors(item, (*place, key_step(key)))
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from placed_tensors(item, (*place, Step(StepKind.INDEX, index)))
