#!/usr/bin/env python3
"""Steps random problems with a real emerging_optimizers and with Shardwise, and compares them.

usage: compare_emerging_optimizers.py TREE RELEASE STEP_REPLAY [--problems N] [--seed N]

TREE has the package (a site-packages folder), RELEASE is 0.2 or 0.3, STEP_REPLAY the program.
Each problem has random shapes, gradients and constructor options; the real optimizer's steps
become a trace, which `step-replay check` replays, each step from its own state before. Needs
torch, safetensors and absl-py. Prints a table and exits with 1 if a problem is outside its
tolerance.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # one function is compiled otherwise
if not hasattr(typing, "override"):  # before Python 3.12; a mark without effect
    typing.override = lambda function: function


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree")
    parser.add_argument("release", choices=["0.2", "0.3"])
    parser.add_argument("step_replay")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def soap_options(release, choose):
    options = {
        "betas": [0.9, choose.choice([0.95, 0.99])], "shampoo_beta": choose.choice([0.9, 0.95]),
        "eps": choose.choice([1e-8, 1e-3]), "nesterov": choose.random() < 0.5,
        "weight_decay_method": choose.choice(
            ["decoupled", "independent", "l2"] + (["palm"] if release == "0.3" else [])),
        "correct_bias": choose.random() < 0.7, "use_eigh": choose.random() < 0.4,
        "power_iter_steps": choose.randint(1, 3), "use_kl_shampoo": choose.random() < 0.5,
        "max_update_rms": choose.choice([0.0, 0.0, 0.3]),
        "correct_shampoo_beta_bias": choose.choice([None, True, False]),
        "fp32_matmul_prec": choose.choice(["highest", "high"]),
        "qr_fp32_matmul_prec": choose.choice(["highest", "high"])}
    if release == "0.2":
        options.update({
            "precondition_frequency": choose.randint(1, 3),
            "adam_warmup_steps": choose.choice([0, 0, 2]),
            "use_adaptive_criteria": choose.random() < 0.4,
            "adaptive_update_tolerance": choose.choice([1e-7, 1e-2])})
    return options


def adaptive_muon_options(release, choose):
    methods = ["adamuon", "normuon"] + (["namo"] if release == "0.3" else [])
    method = choose.choice(methods)
    decays = (["decoupled", "independent"] + (["palm"] if release == "0.3" else [])
              + ([] if method == "namo" else ["l2"]))
    return {
        "momentum": choose.choice([0.9, 0.95]), "nesterov": choose.random() < 0.5,
        "weight_decay_method": choose.choice(decays), "fp32_matmul_prec": "highest",
        "coefficient_type": choose.choice(["simple", "quintic", "polar_express", "aol"]),
        "num_ns_steps": choose.randint(3, 7), "extra_scale_factor": choose.choice([1.0, 0.2]),
        "scale_mode": choose.choice(["spectral", "unit_rms_norm", "shape_scaling"]),
        "moment2_method": method, "beta2": choose.choice([0.95, 0.99]), "eps": 1e-8}


def record(folder, name, kind, options, choose):
    """The real optimizer's steps as a trace."""
    import torch
    from safetensors.torch import save_file
    from emerging_optimizers.orthogonalized_optimizers.adaptive_muon import AdaptiveMuon
    from emerging_optimizers.soap.soap import SOAP
    torch.set_num_threads(1)  # as step-replay: eigenvectors of LAPACK depend on it
    torch.manual_seed(choose.randint(0, 2**31))
    shapes = {f"w{i}": [choose.randint(1, 48), choose.randint(1, 48)] for i in range(2)}
    params = {key: torch.nn.Parameter(torch.randn(shape)) for key, shape in shapes.items()}
    tensors = {f"init.{key}": value.detach().clone() for key, value in params.items()}
    rates = {"lr": 0.01, "weight_decay": choose.choice([0.0, 0.1])}
    real = dict(options)
    if "betas" in real:
        real["betas"] = tuple(real["betas"])
    optimizer = {"SOAP": SOAP, "AdaptiveMuon": AdaptiveMuon}[kind](
        list(params.values()), **rates, **real)
    scalars = {}
    for step in range(6):
        for key, param in params.items():
            grad = torch.randn(shapes[key]) * 0.3
            tensors[f"grad{step}.{key}"] = grad
            param.grad = grad.clone()
        optimizer.step()
        for key, param in params.items():
            tensors[f"step{step}.param.{key}"] = param.detach().clone()
            for state, value in optimizer.state[param].items():
                if torch.is_tensor(value):
                    # As a checkpoint that was saved and loaded has them: the real optimizer keeps
                    # QR's bases transposed in memory, where products round otherwise.
                    optimizer.state[param][state] = value = value.contiguous()
                    tensors[f"step{step}.{state}.{key}"] = value.clone().contiguous()
                else:
                    scalars[f"step{step}.{state}.{key}"] = value
    config = {"class": f"emerging_optimizers {kind}", **rates, **options}
    trace = {"name": name, "config": config, "scalars": scalars, "params": shapes,
             "qkv_params": []}
    (folder / f"{name}.json").write_text(json.dumps(trace), encoding="utf-8")
    save_file(tensors, folder / f"{name}.safetensors")


def main():
    args = parse_args()
    sys.path.insert(0, args.tree)
    choose = random.Random(args.seed)
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for kind, make in (("SOAP", soap_options), ("AdaptiveMuon", adaptive_muon_options)):
            names = []
            for number in range(args.problems):
                names.append(f"{kind}_{number}")
                record(folder, names[-1], kind, make(args.release, choose), choose)
            for extra in ([], ["--from-recorded-state"]):
                found = subprocess.run(
                    [args.step_replay, "check", "--json", "--emerging-optimizers", args.release,
                     *extra, *[folder / f"{name}.json" for name in names]],
                    check=False, capture_output=True, text=True)
                if found.returncode not in (0, 1):
                    sys.exit(found.stderr)
                traces = json.loads(found.stdout)["traces"]
                outside = [trace for trace in traces if not trace["passed"]]
                worst = max(trace["worst"]["max_scaled"] for trace in traces)
                equal = sum(trace["worst"]["max_scaled"] == 0 for trace in traces)
                start = "recorded state" if extra else "own state"
                print(f"{kind:13} {args.release} from {start:14}: {len(traces)} problems, "
                      f"{equal} bit for bit, {len(outside)} outside, worst {worst:.2e}")
                for trace in outside:
                    print(f"  {trace['name']}: {trace['worst']}")
                    print("   ", (folder / f"{trace['name']}.json").read_text()[:700])
                failed += len(outside)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
