"""How fast ckpt-convert average and merge-adapter are beside raw copies of the bytes they move.

usage: bench_combine.py FOLDER LAYERS [--rounds N] [--warm] [--bin BIN]

Makes three Hugging Face folders of Llama's shape (hidden 4096) of random bfloat16 in FOLDER, and an
adapter of rank 16 for all linear layers. Then, in turn: bench_raw_copy.py copies one folder and
bench_raw_read.py reads the two others, and the mean of the three is written; the copy alone, and
the adapter merged into the first. Prints the seconds, and the raw ones by ours, of each round.
"""
import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from bench_export import REPOSITORY, make, prepare, timed
from safetensors import safe_open
from safetensors.torch import save_file

RANK = 16


def write_adapter(base, to):
    tensors = {}
    for file in base.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for key in opened.keys():
                if not key.endswith("proj.weight"):
                    continue
                rows, columns = opened.get_slice(key).get_shape()
                module = "base_model.model." + key.removesuffix(".weight")
                tensors[f"{module}.lora_A.weight"] = torch.randn(RANK, columns)
                tensors[f"{module}.lora_B.weight"] = torch.randn(rows, RANK)
    to.mkdir()
    save_file(tensors, to / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "fan_in_fan_out": False}
    (to / "adapter_config.json").write_text(json.dumps(config))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("layers", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--bin", type=Path, default=REPOSITORY / "build/bin")
    options = parser.parse_args()
    convert = options.bin / "ckpt-convert"
    sources = [options.folder / f"hf{number}" for number in range(3)]
    for source in sources:
        if source.exists():
            continue
        made = options.folder / "made"
        make(made, "llama", options.layers, 1)
        subprocess.run([convert, made, source, "--to", "huggingface", "-q"], check=True)
        shutil.rmtree(made)
    adapter, target = options.folder / "adapter", options.folder / "target"
    if not adapter.exists():
        write_adapter(sources[0], adapter)
    copy = [sys.executable, REPOSITORY / "scripts/bench_raw_copy.py", sources[0], target]
    read = [sys.executable, REPOSITORY / "scripts/bench_raw_read.py"]
    ours = {"average": [convert, "average", "-o", target, *sources, "-q"],
            "merge": [convert, "merge-adapter", sources[0], adapter, "-o", target, "-q"]}
    for _ in range(options.rounds):
        for name, command in ours.items():
            moved = sources if name == "average" else sources[:1]
            found = {"raw": 0.0}
            for source in moved:
                prepare(source, options.warm)
            found["raw"] += float(timed(copy)[2])
            shutil.rmtree(target)
            for source in moved[1:]:
                found["raw"] += float(timed([*read, source])[2])
            for source in moved:
                prepare(source, options.warm)
            found[name], found["MiB"], _ = timed(command)
            shutil.rmtree(target)
            found["ratio"] = found["raw"] / found[name]
            print({key: round(value, 3) for key, value in found.items()}, flush=True)


if __name__ == "__main__":
    main()
