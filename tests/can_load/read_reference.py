#!/usr/bin/env python3
"""Rows of pairs.jsonl from the table of megatron_reshards.md: pairs that the real code ran in April
and core 0.20-dev, before run_pairs.py could run them again.

usage: read_reference.py megatron_reshards.md SETS
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

TREES = {"seed": "april", "fixed": "april_5077", "head": "august"}
ROW = re.compile(r"\| (seed|fixed|head) \| (\S+) -> (\S+)(?: (\w+)=(\S+))? \| (.+) \|$")
OPTION_OF = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
             "vpp": "num_virtual_stages_per_pipeline_rank", "cp": "context_parallel_size",
             "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size"}
# ep4 has four replicas, and experts at TP 2 are not split.
IMPLIED = {"ep4": {"dp": 4}, "ep2dp2": {"dp": 4}, "ep2tp2dp2": {"etp": 1}}
NO_BUCKETS = {"overlap_grad_reduce": False, "ddp_bucket_size": None}


def sizes_of(layout: str) -> dict:
    sizes = {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", layout)}
    return sizes | IMPLIED.get(layout, {})


def world_of(sizes: dict) -> int:
    return sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1) * sizes.get("dp", 1)


def flags_to(layout: str, own: dict) -> dict:
    """What a run at this layout says otherwise than the one that wrote the set."""
    to, flags = sizes_of(layout), {}
    for name, option in OPTION_OF.items():
        usual = None if name in ("vpp", "etp") else 1
        before, after = own.get(name) or usual, to.get(name, usual)
        if before != after:
            flags[option] = after
    if world_of(own) != world_of(to):
        flags["world_size"] = world_of(to)
    with_sequence = [s.get("ep", 1) > 1 and s.get("tp", 1) > 1 for s in (own, to)]
    if with_sequence[0] != with_sequence[1]:
        flags["sequence_parallel"] = with_sequence[1]
    if layout == "dp3":
        flags |= {"global_batch_size": 24, "use_checkpoint_opt_param_scheduler": True}
    return flags


def further(name: str | None, value: str | None) -> dict:
    if name == "other_bucket":
        return NO_BUCKETS if value == "None" else {"ddp_bucket_size": int(value)}
    if name == "other_fmt":
        return {"ckpt_format": value, "auto_detect_ckpt_format": True}
    return NO_BUCKETS if name == "other_extra" else {}


def outcome(text: str) -> dict:
    found = {"result": "equal", "message": None, "differing": {}}
    if text.startswith("LOADS"):
        count = int(re.search(r"(\d+) tensors", text)[1])
        return found | {"result": "loads_differently", "differing": {"all": count}}
    if text.startswith("refuses: "):
        return found | {"result": "refuses", "message": text.removeprefix("refuses: ")[:300]}
    assert text.startswith("equal"), text
    return found


def rows(table: str, sets: Path) -> list[dict]:
    found = []
    for line in table.splitlines():
        match = ROW.match(line)
        if not match:
            continue
        tree, name, layout, option, value, text = match.groups()
        run = json.loads((sets / name / "expected/run.json").read_text())
        flags = flags_to(layout, run["parallel"]) | further(option, value)
        found.append({"tree": TREES[tree], "set": name, "flags": flags, **outcome(text),
                      "raised_at": None, "next_step": None, "from": "source"})
    return found


def write(path: Path, pairs: list[dict]) -> None:
    def key(pair):
        return pair["tree"], pair["set"], json.dumps(pair["flags"]), json.dumps(pair.get("files"))

    lines = [json.dumps(pair, separators=(",", ":")) for pair in sorted(pairs, key=key)]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    found = rows(Path(sys.argv[1]).read_text(), Path(sys.argv[2]))
    write(Path(__file__).with_name("pairs.jsonl"), found)
    print(len(found), "pairs")
