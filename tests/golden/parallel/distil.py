#!/usr/bin/env python3
"""Distils what Megatron-Core's ranks held (ranks.json, run.json of a recorded set) into one small
file per layout: what tests/optim/sharding compares with. Lists that ranks share are written once.

  distil.py SETS_FOLDER OUT_FOLDER [SET...]     all sets where none is named
"""

import json
import pathlib
import struct
import sys

KEPT = ("rank", "tp", "pp", "dp", "dp_cp", "cp", "ep", "etp", "edp")


def global_shapes(state: pathlib.Path) -> dict:
    """Of the model's parameters, from the header of a safetensors file."""
    with state.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    prefix = "model."
    return {k[len(prefix):]: v["shape"] for k, v in header.items() if k.startswith(prefix)}


def option(arguments: list, name: str):
    return arguments[arguments.index(name) + 1] if name in arguments else None


class Shared:
    """Values by their place in a list that holds each once."""

    def __init__(self):
        self.values, self.places = [], {}

    def place(self, value) -> int:
        text = json.dumps(value)
        if text not in self.places:
            self.places[text] = len(self.values)
            self.values.append(value)
        return self.places[text]


def distil_buffer(buffer: dict) -> dict:
    return {
        "chunk": buffer["chunk"],
        "is_expert": buffer["kind"] == "expert_parallel_buffers",
        "numel": buffer["numel"],
        "buckets": [[b["offset"], b["numel"], b["numel_unpadded"]] for b in buffer["buckets"]],
        "params": buffer["params"],
    }


def distil(folder: pathlib.Path) -> dict:
    run = json.loads((folder / "expected/run.json").read_text())
    ranks = json.loads((folder / "expected/ranks.json").read_text())
    arguments = [str(argument) for argument in run["argv"]]
    params, buffers = Shared(), Shared()
    bucket_size = option(arguments, "--ddp-bucket-size")
    return {
        "name": folder.name,
        "era": run["era"],
        "optimizer": run["optimizer"].split("(")[0],
        "sizes": run["parallel"],
        "model": run["model"],
        "overlap_grad_reduce": "--overlap-grad-reduce" in arguments,
        "bucket_size": int(bucket_size) if bucket_size else None,
        "shapes": global_shapes(folder / "expected/state.safetensors"),
        "ranks": [
            {key: rank[key] for key in KEPT if key in rank}
            | {
                "params": params.place(
                    [[p["name"], p["chunk"], p["local"], p["shape"]] for p in rank["params"]]
                ),
                "buffers": buffers.place([distil_buffer(b) for b in rank["grad_buffers"]]),
            }
            for rank in ranks
        ],
        "params": params.values,
        "buffers": buffers.values,
    }


def main() -> None:
    sets, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    names = sys.argv[3:] or sorted(p.parent.parent.name for p in sets.glob("*/expected/ranks.json"))
    names = [name for name in names if "_to_" not in name]  # resaved: their ranks say less
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        text = json.dumps(distil(sets / name), separators=(",", ":"))
        (out / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
