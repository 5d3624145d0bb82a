#!/usr/bin/env python3
"""Lists every argument of a tree of Megatron-LM or Megatron-Bridge, read from its source.

    list_arguments.py TREE...

One line for each: name, origin, default, file:line. Nothing of the tree is imported. Origins:
`config`, a field of TransformerConfig, of a class above or below it, or of a class by which newer
releases make command line arguments; `option`, of a command line; `set`, an attribute that the
training code gives to its args; `provider`, a field of Megatron-Bridge's model providers.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOTS = {"ModelParallelConfig", "TransformerConfig"}
# Folders whose options and attributes are the training script's.
OPTION_FOLDERS = ("training", "post_training", "rl")
# Options of programs of their own are not the training script's.
OWN_PROGRAM = "__main__"
SKIPPED = {"tests", "tools", "examples", "inference", "hf_pretrained"}


class Argument(NamedTuple):
    name: str
    origin: str
    default: str
    place: str


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not SKIPPED.intersection(relative.parts[:-1]):
            yield str(relative), ast.parse(path.read_text(errors="replace"))


def text(node: ast.expr | None) -> str:
    return "" if node is None else " ".join(ast.unparse(node).split())


def base_names(node: ast.ClassDef) -> set[str]:
    names = {text(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases}
    return {name.removeprefix("MCore") for name in names}


def fields(node: ast.ClassDef, origin: str, file: str) -> Iterator[Argument]:
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        if text(line.annotation).startswith("ClassVar"):
            continue
        yield Argument(line.target.id, origin, text(line.value), f"{file}:{line.lineno}")


def classes_of_arguments(trees: list[tuple[str, ast.Module]]) -> dict[str, str]:
    """The classes whose fields are arguments, with their origin."""
    found = dict.fromkeys(ROOTS, "config")
    classes = [(file, node) for file, tree in trees for node in ast.walk(tree)
               if isinstance(node, ast.ClassDef)]
    for _, tree in trees:
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and text(call.func) == "ArgumentGroupFactory":
                found.setdefault(text(call.args[0]), "config")
    while True:
        more = {node.name: "provider" if "bridge" in file else "config" for file, node in classes
                if node.name not in found and (base_names(node) & found.keys()
                                               or is_root(file, node))}
        if not more:
            return found
        found |= more


def is_root(file: str, node: ast.ClassDef) -> bool:
    """Of Bridge's providers, and of what newer releases build a model by."""
    in_models = "/models/" in file or file.startswith("models/")
    names = ("ModelProviderMixin", "GPTModelConfig", "HybridModelConfig", "ModelConfig")
    return (in_models and node.name in names) or node.name == "ModelProviderMixin"


def option_names(call: ast.Call) -> Iterator[str]:
    """The attribute that an add_argument makes: dest, else the first long option."""
    for keyword in call.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            yield keyword.value.value
            return
    options = [arg.value for arg in call.args
               if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    long = [name for name in options if name.startswith("--")]
    for name in long[:1] or options[:1]:
        yield name.lstrip("-").replace("-", "_")


def options(file: str, tree: ast.Module) -> Iterator[Argument]:
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.Constant) and node.value == OWN_PROGRAM for node in nodes):
        return
    for node in nodes:
        if isinstance(node, ast.Call) and text(node.func).endswith(".add_argument"):
            default = next((text(k.value) for k in node.keywords if k.arg == "default"), "")
            for name in option_names(node):
                yield Argument(name, "option", default, f"{file}:{node.lineno}")
        targets = node.targets if isinstance(node, ast.Assign) else ()
        for target in targets:
            is_args = isinstance(target, ast.Attribute) and text(target.value) == "args"
            if is_args:
                yield Argument(target.attr, "set", "", f"{file}:{node.lineno}")


def arguments(root: Path) -> dict[str, Argument]:
    """By name; where several say it, a field's place before an option's before an attribute's."""
    trees = list(modules(root))
    known = classes_of_arguments(trees)
    found: dict[str, Argument] = {}
    order = ["config", "provider", "option", "set"]
    for file, tree in trees:
        rows = [row for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
                and node.name in known for row in fields(node, known[node.name], file)]
        if any(f"megatron/{folder}/" in file for folder in OPTION_FOLDERS) and not (
                "bridge" in file):
            rows += options(file, tree)
        for row in rows:
            before = found.get(row.name)
            if before is None or order.index(row.origin) < order.index(before.origin):
                found[row.name] = row
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, nargs="+", help="a folder that holds megatron/")
    for tree in parser.parse_args().tree:
        for row in arguments(tree).values():
            print("\t".join((tree.name, *row)))


if __name__ == "__main__":
    main()
