"""A second reader of libtraining/src/model/names: what a table makes of a model's tensors and args.

It shares nothing with the library: expressions are Python's own, tensors are torch's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from programs import REPOSITORY

NAMES = REPOSITORY / "libtraining/src/model/names"
FAMILIES = sorted(
    path.stem for path in NAMES.glob("*.json") if '"architecture"' in path.read_text()
)


def frequency(freq: int | list, n: int) -> list[int]:
    return freq if isinstance(freq, list) else [int(i % freq == 0) for i in range(n)]


def window_layers(freq: int | list | None, n: int) -> list[bool]:
    if isinstance(freq, list):
        return [bool(value) for value in freq]
    return [freq is None or (i + 1) % freq != 0 for i in range(n)]


def leading(values: list[int]) -> int | None:
    zeros = values.count(0)
    return zeros if not any(values[:zeros]) else None


FUNCTIONS = {
    "first": lambda *values: next((v for v in values if v is not None), None),
    "frequency": frequency,
    "window_layers": window_layers,
    "where": lambda values, value: [i for i, v in enumerate(values) if v == value],
    "leading": leading,
    "pick": lambda values, yes, no: [yes if v else no for v in values],
}


def merged(base: Any, patch: Any) -> Any:
    """RFC 7386: null takes away, objects are merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def read_table(family: str) -> dict:
    table = json.loads((NAMES / f"{family}.json").read_text())
    return merged(read_table(table["base"]), table) if "base" in table else table


class Names(dict):
    """What an expression may name: a row of `let`, what is given, an argument; else None."""

    def __init__(self, table: dict, args: dict, given: dict):
        super().__init__()
        self.table, self.args, self.given = table, args, given

    def __missing__(self, name: str) -> Any:
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        if name in self.given:
            return self.given[name]
        if name in self.table["let"]:
            return self.value(self.table["let"][name])
        return self.args.get(name)

    def value(self, text: str, **more: int) -> Any:
        names = Names(self.table, self.args, {**self.given, **more})
        return eval(text, {"__builtins__": {}}, names)  # noqa: S307 (a table of ours)


def axes_of(pattern: str) -> list[list[str]]:
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w+", pattern)]


def rearranged(tensor: torch.Tensor, row: dict, names: Names) -> torch.Tensor:
    view = axes_of(row["view"])
    flat = [axis for group in view for axis in group]
    sizes = [[names.value(axis) for axis in group] for group in view]
    assert [torch.Size(group).numel() for group in sizes] == list(tensor.shape), (row, tensor.shape)
    tensor = tensor.reshape([size for group in sizes for size in group])
    for axis, span in row.get("slice", {}).items():
        begin, end = (names.value(side.strip()) for side in span.split(":"))
        tensor = tensor.narrow(flat.index(axis), begin, end - begin)
    target = axes_of(row.get("as", row["view"]))
    order = [axis for group in target for axis in group if axis in flat]
    tensor = tensor.permute([flat.index(axis) for axis in order])
    at = dict(zip(order, tensor.shape))
    shape = [torch.Size([at.get(axis, 1) for axis in group]).numel() for group in target]
    return tensor.reshape(shape)


def exported(table: dict, args: dict, model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The target's tensors. Fails where one has no source, or the model has more."""
    embedding = model["embedding.word_embeddings.weight"]
    given = {"vocabulary_rows": embedding.shape[0]}
    given["vocabulary"] = args.get("vocab_size") or embedding.shape[0]
    names, used, result = Names(table, args, given), set(), {}
    for name, needed in table["requires"].items():
        assert names.value(needed), f"{name}: {needed}"
    for target, row in table["tensors"].items():
        sources = row["from"] if isinstance(row["from"], list) else [row["from"]]
        layers = range(args["num_layers"]) if "{layer}" in target else [0]
        for layer in layers:
            if not names.value(row.get("when", "True"), layer=layer):
                continue
            experts = range(args["num_experts"]) if "{expert}" in sources[0] else [None]
            for expert in experts:
                numbers = {"{layer}": str(layer), "{expert}": str(expert)}
                key = next(k for k in (filled(s, numbers) for s in sources) if k in model)
                used.add(key)
                part = rearranged(model[key], row, names)
                result.setdefault(filled(target, numbers), []).append(part)
    assert not set(model) - used, f"no place for {set(model) - used}"
    return {name: torch.cat(parts).contiguous() for name, parts in result.items()}


def filled(text: str, numbers: dict[str, str]) -> str:
    for mark, number in numbers.items():
        text = text.replace(mark, number)
    return text


def config_of(table: dict, args: dict, vocabulary: int, dtype: str) -> dict:
    names = Names(table, args, {"vocabulary": vocabulary, "dtype": dtype})
    config = {key: names.value(text) for key, text in table["config"].items()}
    named = {"architectures": [table["architecture"]], "model_type": table["model_type"]}
    return {**named, **config}
