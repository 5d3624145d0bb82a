"""State dicts as people write them and as nobody does: legal Python trees, saved by torch.save.

Nested mappings of all kinds, lists, tuples, objects; tensors that share storages, are views, have
attributes; keys of any type and text; empty containers; several references to one container.
"""

from __future__ import annotations

import argparse
import collections
import random
from collections.abc import Callable

import numpy
import torch

from checks import check_hash, look_at
from comparing import tensors_in
from oracles import contents, read_torch_save
from plain_conversions import through_torch_dist, to_safetensors, to_torch
from session import Session

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
    torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
TEXT_KEYS = (
    "a", "b", "weight", "a.b", "", "/", "~", "~1", "0", "1", "a/b", "\x1b[31mred\x1b[0m",
    "new\nline", "tab\t", "\u202e", "\u043a\u043b\u044e\u0447", "\ud800", "x" * 300, "..", ".",
    "@x", "\x00", "\x7f", "\x9b31m", "w:FILE", "*", "[0]", "None", "True",
)  # fmt: skip
OTHER_KEYS = (
    0, 1, -1, True, None, 1.5, float("nan"), float("inf"), -0.0, (1, 2), ("a", ("b",)), b"bytes",
    10**30, 2**63, frozenset([1]), torch.float32, (), 1e16, 1e-5,
)  # fmt: skip
ELEMENT_COUNTS = (0, 1, 2, 7, 16, 33, 100)
DEPTH = 4


class NamedTensor(torch.Tensor):
    """A subclass that the pickle names and PyTorch makes again."""


class TreeMaker:
    def __init__(self, choice: random.Random):
        self.choice = choice
        self.tensors: list[torch.Tensor] = []
        self.containers: list[object] = []

    def state_dict(self) -> dict:
        tree = {f"root{i}": self.value(DEPTH) for i in range(self.choice.randint(1, 4))}
        return collections.OrderedDict(tree) if self.chance(0.1) else tree

    def chance(self, probability: float) -> bool:
        return self.choice.random() < probability

    def value(self, depth: int) -> object:
        if self.containers and self.chance(0.05):
            return self.choice.choice(self.containers)  # a second reference
        if depth <= 0 or self.chance(0.4):
            return self.tensor() if self.chance(0.6) else self.choice.choice(self.leaves())()
        makers = [self.mapping] * 8 + [self.list_of_values] * 3 + [self.tuple_of_values]
        return self.choice.choice([*makers, self.namespace])(depth)

    def leaves(self) -> list[Callable[[], object]]:
        simple = (
            None, 1, 2.5, "s", "\x1b[2J", b"\x00\xff", True, 10**40, -(2**63), float("nan"), -0.0,
            1j, {1, 2}, frozenset(), bytearray(b"x"), range(3), slice(1, 2), torch.float32,
            torch.Size([1, 2]), torch.device("cpu"), numpy.float32(1), int, "\ud800", torch.strided,
            torch.contiguous_format, 2**64, Ellipsis,
        )  # fmt: skip
        makers: list[Callable[[], object]] = [lambda item=item: item for item in simple]
        makers += [lambda: numpy.arange(3), lambda: numpy.zeros((2, 0))]
        makers += [lambda: collections.Counter("aab")]
        makers += [lambda: collections.deque([1, self.tensor()])]
        return makers

    def mapping(self, depth: int) -> dict:
        classes = (dict, dict, dict, collections.OrderedDict, list)
        chosen = self.choice.choice(classes)
        made = collections.defaultdict(list) if chosen is list else chosen()
        for _ in range(self.size()):
            made[self.key()] = self.value(depth - 1)
        if isinstance(made, collections.OrderedDict) and self.chance(0.4):
            made._metadata = self.choice.choice([{"v": 1}, {}, collections.OrderedDict()])
        self.containers.append(made)
        return made

    def list_of_values(self, depth: int) -> list:
        made = [self.value(depth - 1) for _ in range(self.size())]
        self.containers.append(made)
        return made

    def tuple_of_values(self, depth: int) -> tuple:
        return tuple(self.value(depth - 1) for _ in range(self.size()))

    def namespace(self, depth: int) -> argparse.Namespace:
        return argparse.Namespace(**{f"k{i}": self.value(depth - 1) for i in range(self.size())})

    def size(self) -> int:
        return self.choice.choice((0, 1, 1, 2, 3, 5))

    def key(self) -> object:
        return self.choice.choice(TEXT_KEYS if self.chance(0.85) else OTHER_KEYS)

    def tensor(self) -> torch.Tensor:
        if self.tensors and self.chance(0.3):
            made = self.choice.choice(self.tensors)
        else:
            dtype, count = self.choice.choice(DTYPES), self.choice.choice(ELEMENT_COUNTS)
            made = random_tensor(self.choice, dtype, count)
            self.tensors.append(made)
        for _ in range(self.choice.randint(0, 4)):
            made = self.choice.choice(VIEWS)(made, self.choice)
        if made.is_floating_point() and self.chance(0.1):
            made = self.trainable(made)
        if self.chance(0.06):
            made = made.detach()
            made.partition_dim = self.choice.choice([0, 1, {"a": [1]}, torch.ones(2)])
        if self.chance(0.02):
            made = made.detach().as_subclass(NamedTensor)
        return made

    def trainable(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.chance(0.4):
            return tensor.detach().clone().requires_grad_()
        return torch.nn.Parameter(tensor.detach(), requires_grad=self.chance(0.5))


def random_tensor(choice: random.Random, dtype: torch.dtype, count: int) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([choice.random() < 0.5 for _ in range(count)], dtype=dtype)
    if count == 0:
        return torch.empty(0, dtype=dtype)
    content = bytearray(choice.randbytes(count * dtype.itemsize))
    return torch.frombuffer(content, dtype=dtype).clone()


def halved(tensor: torch.Tensor, _: random.Random) -> torch.Tensor:
    can = tensor.is_contiguous() and tensor.numel() and tensor.numel() % 2 == 0
    return tensor.reshape(2, -1) if can else tensor


def from_somewhere(tensor: torch.Tensor, choice: random.Random) -> torch.Tensor:
    return tensor[choice.randint(0, tensor.shape[0]) :] if tensor.dim() else tensor


def every_few(tensor: torch.Tensor, choice: random.Random) -> torch.Tensor:
    return tensor[:: choice.randint(1, 3)] if tensor.dim() else tensor


def one_row(tensor: torch.Tensor, choice: random.Random) -> torch.Tensor:
    return tensor[choice.randrange(tensor.shape[0])] if tensor.dim() and tensor.shape[0] else tensor


def overlapping(tensor: torch.Tensor, choice: random.Random) -> torch.Tensor:
    can = tensor.dim() == 1 and tensor.is_contiguous() and tensor.numel() > 3
    return tensor[choice.randint(0, 1) :].unfold(0, 2, 1) if can else tensor


VIEWS: tuple[Callable[[torch.Tensor, random.Random], torch.Tensor], ...] = (
    halved,
    from_somewhere,
    every_few,
    one_row,
    overlapping,
    lambda tensor, _: tensor.t() if tensor.dim() == 2 else tensor,
    lambda tensor, choice: tensor.unsqueeze(choice.randint(0, tensor.dim())),
    lambda tensor, choice: tensor.expand(choice.randint(0, 3), *tensor.shape),
    lambda tensor, _: tensor.movedim(0, -1) if tensor.dim() else tensor,
)


def run(session: Session, choice: random.Random) -> None:
    tree = TreeMaker(choice).state_dict()
    zipped = not choice.random() < 0.15
    protocol = choice.choice((2, 2, 2, 3, 4, 5))
    session.case = f"protocol {protocol}{'' if zipped else ', before zip archives'}"
    try:
        form = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": zipped}
        torch.save(tree, session.source, **form)
        source = read_torch_save(session.source)
    except Exception as problem:
        session.case = f"torch cannot: {type(problem).__name__}"
        return
    check_hash(session, contents(source))
    check_diff_with_itself(session)
    verified = check_verdict(session, source)
    look_at(session, choice)
    through_torch_dist(session, source, verified)
    to_torch(session, source, verified)
    to_safetensors(session, source)


def check_verdict(session: Session, source: object) -> int:
    """verify finds no fault in what torch.save wrote but values that are not finite."""
    verified = session.run("ckpt-inspect", "verify", session.source).code
    if verified == 1 and not all(map(is_finite, (tensor for _, tensor in tensors_in(source)))):
        allowed = ("verify", session.source, "--allow-nonfinite", "*")
        if session.run("ckpt-inspect", *allowed).code == 0:
            return verified
    if verified not in (0, 4):
        session.report("verify finds no fault in what torch.save wrote", session.ended[-1])
    return verified


def is_finite(tensor: torch.Tensor) -> bool:
    if tensor.is_complex():
        return bool(torch.view_as_real(tensor.to(torch.complex128)).isfinite().all())
    return not tensor.is_floating_point() or bool(tensor.double().isfinite().all())


def check_diff_with_itself(session: Session) -> None:
    outcome = session.run("ckpt-inspect", "diff", session.source, session.source)
    if outcome.code not in (0, 4):
        session.report("a file equals itself", outcome)
