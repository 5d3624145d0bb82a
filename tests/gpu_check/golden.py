#!/usr/bin/env python3
"""Replays the recorded optimizer steps of tests/golden/steps on the GPU and compares every state.
A dry run replays them by the kernels' CPU twins.

usage: golden.py LIBRARY FOLDER      exit 0: all within their bounds, 1: not, 77: no GPU
"""
import json
import struct
import sys
from pathlib import Path

import torch
from kernels import (ADAM, BF16, DECOUPLED, F32, INDEPENDENT, L2, LION, MUON, NONE, PALM, QUINTIC,
                     SCALE_MODES, SGD, Library, Step, Tensors, make_group)

# docs/optimizer.md, "Tolerances": of the largest element of each tensor.
ELEMENT_BOUND, MUON_FP32_BOUND, MUON_BF16_BOUND = 5e-7, 1e-5, 5e-4
LION_DECAYS = {"decoupled": DECOUPLED, "independent": INDEPENDENT, "l2": L2, "palm": PALM}

POLAR = [(8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250),
         (3.2856, -2.4153, 0.4853), (2.2779, -1.6198, 0.3985), (1.8726, -1.2307, 0.3585),
         (1.8564, -1.2132, 0.3568), (1.8750, -1.2500, 0.3750)]
CANS = [(8.4703, -25.1081, 18.6293), (4.1828, -3.1087, 0.5806), (3.9619, -2.9541, 0.5630),
        (3.2866, -2.4647, 0.5074), (2.2737, -1.6447, 0.4162)]
AOL = [(4.0098, -7.0585, 2.4635), (3.4585, -5.5479, 2.5959), (2.7573, -3.2939, 1.4254),
       (2.7215, -3.0494, 1.3169)]
SIMPLE = [(3.4445, -4.7750, 2.0315)]
DEEPSEEK = SIMPLE * 8 + [(2.0, -1.5, 0.5)] * 2
TABLES = {"simple": (SIMPLE, False), "quintic": (QUINTIC, False), "polar_express": (POLAR, True),
          "cans": (CANS, True), "aol": (AOL, False), "deepseekv4": (DEEPSEEK, True)}


def read_safetensors(path):
    """The tensors of a file of fp32 tensors, by name."""
    raw = path.read_bytes()
    header_bytes = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + header_bytes])
    header.pop("__metadata__", None)
    payload = bytearray(raw[8 + header_bytes:])
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32", name
        tensors[name] = torch.frombuffer(payload[begin:end], dtype=torch.float32)
    return tensors


def coefficients(kind, steps):
    table, repeats_last = TABLES[kind]
    return [table[min(i, len(table) - 1) if repeats_last else i % len(table)]
            for i in range(steps)]


def group_of(config):
    """The settings of a trace, its states and its bound."""
    if config["class"] in ("torch.optim.Adam", "torch.optim.AdamW"):
        decay = DECOUPLED if config["class"] == "torch.optim.AdamW" else L2
        group = make_group(ADAM, beta1=config["betas"][0], beta2=config["betas"][1],
                           eps=config["eps"], decay=decay)
        states, bound = ("exp_avg", "exp_avg_sq"), ELEMENT_BOUND
    elif config["class"] == "torch.optim.SGD":
        group = make_group(SGD, beta1=config["momentum"], decay=L2)
        states, bound = ("momentum_buffer",) if config["momentum"] else (), ELEMENT_BOUND
    elif config["class"] == "emerging_optimizers Lion":
        group = make_group(LION, beta1=config["betas"][0], beta2=config["betas"][1],
                           decay=LION_DECAYS[config["weight_decay_method"]])
        states, bound = ("exp_avg",), ELEMENT_BOUND
    else:
        is_bf16 = config["fp32_matmul_prec"] == "medium"
        group = make_group(
            MUON, beta1=config["momentum"], nesterov=int(config["nesterov"]),
            decay=DECOUPLED if config["use_decoupled_weight_decay"] else L2,
            ns_type=BF16 if is_bf16 else F32, extra_scale=config["extra_scale_factor"],
            scale_mode=SCALE_MODES[config["scale_mode"]],
            coefficients=coefficients(config["coefficient_type"], config["num_ns_steps"]))
        states, bound = ("momentum_buffer",), MUON_BF16_BOUND if is_bf16 else MUON_FP32_BOUND
    group.lr, group.weight_decay = config["lr"], config["weight_decay"]
    return group, states, bound


def replay(library, json_file):
    """The largest difference of any state after any step, of the tensor's largest element."""
    trace = json.loads(json_file.read_text())
    recorded = read_safetensors(json_file.with_suffix(".safetensors"))
    group, states, bound = group_of(trace["config"])
    params, tensors = [], {}
    for index, (name, shape) in enumerate(trace["params"].items()):
        count = recorded["init." + name].numel()
        types = tuple(F32 if i < len(states) else NONE for i in range(2))
        tensor = Tensors(count, F32, F32, types, NONE)
        tensor.main.copy_(recorded["init." + name])
        for state in tensor.states[:len(states)]:
            state.zero_()
        split = trace["config"].get("qkv_split_shapes") if name in trace["qkv_params"] else None
        rows, columns = shape if group.rule == MUON else (0, 0)
        params.append(tensor.param(0, index, rows, columns, split or (0, 0, 0)))
        tensors[name] = tensor
    step = Step(library, [group], params)
    worst, count = 0.0, 0
    while f"grad{count}.{next(iter(tensors))}" in recorded:
        for name, tensor in tensors.items():
            tensor.grad.copy_(recorded[f"grad{count}.{name}"])
        step.stats()
        step.update()
        for name, tensor in tensors.items():
            pairs = [("param", tensor.main)] + list(zip(states, tensor.states))
            for what, found in pairs:
                wanted = recorded[f"step{count}.{what}.{name}"].double()
                largest = wanted.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
                difference = ((found.cpu().double() - wanted).abs().max() / largest).item()
                worst = max(worst, difference) if difference == difference else float("nan")
                if worst != worst:
                    return worst, bound, count  # NaN: no bound holds it
        count += 1
    return worst, bound, count


def main():
    library = Library(sys.argv[1])
    if library.problem():
        print(f"SKIP: needs a GPU: {library.problem()}")
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = 0
    for json_file in sorted(Path(sys.argv[2]).glob("*.json")):
        if not json_file.with_suffix(".safetensors").exists():
            continue
        if not json_file.name.startswith(("adam_", "adamw_", "lion_", "muon_", "sgd_")):
            continue
        worst, bound, count = replay(library, json_file)
        is_good = count > 0 and worst <= bound
        failed += not is_good
        print(f"{'ok   ' if is_good else 'FAIL '} {json_file.stem}: {count} steps, "
              f"largest difference {worst:.2g}, bound {bound:.2g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
