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


def all_but(places: int | list, n: int) -> int | list[int]:
    dense = places if isinstance(places, list) else range(places)
    layers = [int(i not in dense) for i in range(n)]
    return layers if 0 in layers else 1


FUNCTIONS = {
    "first": lambda *values: next((v for v in values if v is not None), None),
    "frequency": frequency,
    "window_layers": window_layers,
    "where": lambda values, value: [i for i, v in enumerate(values) if v == value],
    "leading": leading,
    "pick": lambda values, yes, no: [yes if v else no for v in values],
    "all_but": lambda places, n: all_but(places or 0, n),
    "letters": lambda text: [letter for letter in text if letter != "|"],
    "named": lambda values, names: [names.get(value) for value in values],
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
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|[\w+]+", pattern)]


def taken_rows(tensor: torch.Tensor, part: dict, names: Names) -> torch.Tensor:
    if "rows" not in part:
        return tensor
    begin, end, count = (names.value(side.strip()) for side in part["rows"].split(":"))
    assert len(tensor) == count, (part, tensor.shape)
    return tensor[begin:end]


def rearranged(tensor: torch.Tensor, part: dict, names: Names) -> torch.Tensor:
    """With a dimension for each axis of the target."""
    tensor = taken_rows(tensor, part, names)
    view = axes_of(part["view"])
    flat = [axis for group in view for axis in group]
    sizes = [[names.value(axis) for axis in group] for group in view]
    assert [torch.Size(group).numel() for group in sizes] == list(tensor.shape), (
        part, tensor.shape)  # fmt: skip
    tensor = tensor.reshape([size for group in sizes for size in group])
    for axis, span in part.get("slice", {}).items():
        begin, end = (names.value(side.strip()) for side in span.split(":"))
        tensor = tensor.narrow(flat.index(axis), begin, end - begin)
    order = [axis.rstrip("+") for group in axes_of(part["as"]) for axis in group]
    tensor = tensor.permute([flat.index(axis) for axis in order if axis in flat])
    for place, axis in enumerate(order):
        if axis not in flat:
            tensor = tensor.unsqueeze(place)
    return tensor


def parts_of(row: dict) -> list[dict]:
    parts = [merged(row, part) for part in row.get("parts", [{}])]
    for part in parts:
        part.setdefault("as", part["view"])
    return parts


def joined(pieces: list[torch.Tensor], row: dict) -> torch.Tensor:
    """Pieces by expert, and for each by part."""
    target = axes_of(parts_of(row)[0]["as"])
    flat = [axis for group in target for axis in group]
    along = next((place for place, axis in enumerate(flat) if axis.endswith("+")), 0)
    count = len(row.get("parts", [{}]))
    experts = [torch.cat(pieces[i : i + count], along) for i in range(0, len(pieces), count)]
    whole = torch.cat(experts, flat.index("experts")) if len(experts) > 1 else experts[0]
    sizes = iter(whole.shape)
    return whole.reshape([torch.Size([next(sizes) for _ in group]).numel() for group in target])


def marks(text: str, table: dict, layer: int, args: dict) -> list[str]:
    """What a name may be in a layer, where those behind the decoder's have other names."""
    further = table.get("further_layers", {})
    written = [text]
    if layer >= args["num_layers"]:
        for name, others in further["names"].items():
            if name in text:
                written = [text.replace(name, other) for other in others]
    numbers = {"{layer}": str(layer), "{mtp}": str(layer - args["num_layers"])}
    return [filled(one, numbers) for one in written]


def layers_of(target: str, row: dict, table: dict, names: Names) -> list[int]:
    count = names["num_layers"]
    more = names.value(table.get("further_layers", {}).get("count", "0"))
    if "{mtp}" in str(row):
        return list(range(count, count + more))
    return list(range(count + more)) if "{layer}" in target else [0]


def exported(table: dict, args: dict, model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The target's tensors. Fails where one has no source, or the model has more."""
    embedding = model["embedding.word_embeddings.weight"]
    given = {"vocabulary_rows": embedding.shape[0]}
    given["vocabulary"] = args.get("vocab_size") or embedding.shape[0]
    names, used, result = Names(table, args, given), set(), {}
    for name, needed in table["requires"].items():
        assert names.value(needed), f"{name}: {needed}"

    def piece(part: dict, layer: int, expert: int) -> torch.Tensor:
        sources = part["from"] if isinstance(part["from"], list) else [part["from"]]
        keys = [filled(name, {"{expert}": str(expert)})
                for source in sources for name in marks(source, table, layer, args)]  # fmt: skip
        key = next(key for key in keys if key in model)
        used.add(key)
        return rearranged(model[key], part, names)

    for target, row in table["tensors"].items():
        parts = parts_of(row)
        is_of_experts = "{expert}" in str(parts[0]["from"])
        experts = range(args["num_experts"]) if is_of_experts else [0]
        for layer in layers_of(target, row, table, names):
            if not names.value(row.get("when", "True"), layer=layer):
                continue
            of_layer = filled(target, {"{layer}": str(layer)})
            by_expert = [[piece(part, layer, e) for part in parts] for e in experts]
            added = names.value(row.get("add", "0"), layer=layer)
            if "{expert}" not in target:
                by_expert = [[one for pieces in by_expert for one in pieces]]
            for expert, pieces in enumerate(by_expert):
                made = joined(pieces, row).contiguous()
                whole = (made.float() + added).to(made.dtype) if added else made
                result[of_layer.replace("{expert}", str(expert))] = whole
    assert not set(model) - used, f"no place for {set(model) - used}"
    return result


def filled(text: str, numbers: dict[str, str]) -> str:
    for mark, number in numbers.items():
        text = text.replace(mark, number)
    return text


def config_of(table: dict, args: dict, vocabulary: int, dtype: str) -> dict:
    names = Names(table, args, {"vocabulary": vocabulary, "dtype": dtype})
    config = {key: names.value(text) for key, text in table["config"].items()}
    named = {"architectures": [table["architecture"]], "model_type": table["model_type"]}
    return {**named, **config}


# Ways in which a table is wrong. A change says whether the family has such a row.
def swapped(first: str, second: str):
    def change(table: dict) -> bool:
        rows, needed = table["tensors"], set(table["requires"].values())
        used = [k for k, row in rows.items() if f"not {row.get('when')}" not in needed]
        pairs = [(k, k.replace(first, second)) for k in used if k.replace(first, second) in rows]
        pairs = [(one, other) for one, other in pairs if one != other]
        for one, other in pairs:
            rows[one], rows[other] = rows[other], rows[one]
        return bool(pairs)

    return change


def rewritten(field: str, old: str, new: str):
    def change(table: dict) -> bool:
        changed = False
        for row in table["tensors"].values():
            fields = row[field] if isinstance(row.get(field), list) else [row.get(field) or ""]
            made = [text.replace(old, new) for text in fields]
            if made != fields:
                row[field], changed = made if isinstance(row[field], list) else made[0], True
        return changed

    return change


def rewritten_parts(old: str, new: str):
    """Exchanges two texts in the parts of rows."""

    def change(table: dict) -> bool:
        changed = False
        for row in table["tensors"].values():
            text = json.dumps(row.get("parts", []))
            first, second = f'"{old}', f'"{new}'
            made = text.replace(first, "#").replace(second, first).replace("#", second)
            if made != text:
                row["parts"], changed = json.loads(made), True
        return changed

    return change


def without_sum(table: dict) -> bool:
    rows = [row for row in table["tensors"].values() if row.get("add") == "norm_offset"]
    if not any("offset - 1" in str(row) for row in table["tensors"].values()):
        return False  # 0 of a model without
    for row in rows:
        del row["add"]
    return bool(rows)


MUTATIONS = {
    "q and k swapped": swapped("q_proj", "k_proj"),
    "k and v swapped": swapped("k_proj", "v_proj"),
    "gate and up swapped": swapped("gate_proj", "up_proj"),
    "w1 and w3 swapped": swapped(".w1.", ".w3."),
    "heads before query groups": rewritten("view", "(groups qkv head)", "(qkv groups head)"),
    "rows of a head permuted": rewritten("view", "qkv head)", "head qkv)"),
    "latent rows permuted": rewritten("view", "(heads kv_up) kv", "(heads #) kv"),
    "gate and up not interleaved": rewritten("as", "block two)", "two block)"),
    "transposed": rewritten("as", "experts moe_ffn hidden", "experts hidden moe_ffn"),
    "transposed projection": rewritten("view", "hidden (heads", "(heads hidden) head #"),
    "decay and step swapped": swapped(".A_log", ".dt_bias"),
    "query and gate swapped": rewritten_parts("0:queries", "queries:2 * queries"),
    "query and key swapped": rewritten_parts("0:key_ends", "key_ends:query_key_ends"),
    "beta and alpha swapped": rewritten_parts("gate_ends:beta_ends", "beta_ends:in_rows"),
    "value and gate swapped": rewritten_parts("query_key_ends:value_ends", "value_ends:gate_ends"),
    "norm without its offset": without_sum,
    "norm with an offset": rewritten("add", "norm_offset - 1", "norm_offset"),
    "norms behind layers swapped": swapped("post_attention", "post_feedforward"),
    "norms of the MLP swapped": swapped("pre_feedforward", "post_feedforward"),
    "decay and skip swapped": swapped(".A_log", ".D"),
    "norms swapped": swapped("input_layernorm", "post_attention_layernorm"),
    "q and k norms swapped": swapped("q_norm", "k_norm"),
    "embedding and head swapped": swapped("model.embed_tokens", "lm_head"),
}
