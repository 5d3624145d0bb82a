"""Changes anywhere in a tree of dicts, lists, tensors and numbers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

import torch

NAN = float("nan")


def nodes(value: object, holder: object = None, key: object = None, path: tuple = ()) -> Iterator:
    """(holder, key, value, path) of everything below the root."""
    if holder is not None:
        yield holder, key, value, path
    items: Iterator = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = enumerate(value)
    for name, item in items:
        yield from nodes(item, value, name, (*path, str(name)))


def change_tensor(choice: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    changed = choice.choice(TENSOR_CHANGES)(tensor.detach().clone())
    if choice.random() < 0.1:
        changed.note = choice.choice([1, {"a": []}])
    return changed


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() and tensor.is_floating_point():
        tensor.view(-1)[0] = NAN
    return tensor


TENSOR_CHANGES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor.double(),
    lambda tensor: tensor.to(torch.bfloat16),
    lambda tensor: tensor.reshape(-1),
    lambda tensor: tensor[:-1] if tensor.dim() and tensor.shape[0] > 1 else tensor,
    lambda tensor: tensor.t() if tensor.dim() == 2 else tensor,
    with_nan,
    lambda tensor: tensor * 1.0000001 if tensor.is_floating_point() else tensor,
    torch.zeros_like,
    lambda tensor: tensor.unsqueeze(0),
    lambda tensor: torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor,
)


def delete(choice: random.Random, everything: list) -> str:
    holder, key, _, path = choice.choice(everything)
    holder.pop(key)
    return f"delete {path}"


def replace_by_another(choice: random.Random, everything: list) -> str:
    holder, key, _, path = choice.choice(everything)
    _, _, value, source = choice.choice(everything)
    holder[key] = copy.deepcopy(value)
    return f"{path} becomes {source}"


def add_beside(choice: random.Random, everything: list) -> str:
    holder, _, value, path = choice.choice(everything)
    if isinstance(holder, dict):
        holder["zz"] = copy.deepcopy(choice.choice((value, {}, [], {"empty": {}})))
    else:
        holder.append(copy.deepcopy(value))
    return f"one more beside {path}"


def put_junk(choice: random.Random, everything: list) -> str:
    holder, key, _, path = choice.choice(everything)
    holder[key] = choice.choice((None, 0, -1, 1e400, "x", [], {}, True, 2**70, torch.ones(3)))
    return f"{path} = {holder[key]!r}"


def swap_alike(choice: random.Random, everything: list) -> str:
    holder, key, value, path = choice.choice(everything)
    alike = [n for n in everything if type(n[2]) is type(value) and len(n[3]) == len(path)]
    other_holder, other_key, other, other_path = choice.choice(alike)
    holder[key], other_holder[other_key] = other, value
    return f"swap {path} and {other_path}"


def change_number(choice: random.Random, everything: list) -> str:
    numbers = [n for n in everything if type(n[2]) in (int, float)]
    if not numbers:
        return "nothing"
    holder, key, value, path = choice.choice(numbers)
    holder[key] = value + 1
    return f"{path} + 1"


def reorder(choice: random.Random, everything: list) -> str:
    mappings = [n for n in everything if isinstance(n[2], dict) and len(n[2]) > 1]
    if not mappings:
        return "nothing"
    _, _, value, path = choice.choice(mappings)
    items = list(value.items())
    choice.shuffle(items)
    value.clear()
    value.update(items)
    return f"reorder {path}"


def change_a_tensor(choice: random.Random, everything: list) -> str:
    tensors = [n for n in everything if isinstance(n[2], torch.Tensor)]
    if not tensors:
        return "nothing"
    holder, key, value, path = choice.choice(tensors)
    holder[key] = change_tensor(choice, value)
    return f"{path} becomes {holder[key].dtype} {tuple(holder[key].shape)}"


ANYWHERE = (
    delete, replace_by_another, add_beside, put_junk, swap_alike, change_number, reorder,
    change_a_tensor, change_a_tensor, change_a_tensor,
)  # fmt: skip


def change_tree(choice: random.Random, tree: object, name: str) -> str:
    return f"{name}: {choice.choice(ANYWHERE)(choice, list(nodes(tree)))}"
