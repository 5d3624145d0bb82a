"""Times liboptim's CPU optimizers side by side with PyTorch's, turn by turn on a quiet machine.

usage: bench_optim.py [--program build/bin/optim_bench] [--mparams N] [--threads T] [--repeat R]

Prints one JSON object: for each comparison the median seconds of each contestant, and the ratio to
ours turn by turn: median, lowest, highest (above 1: ours is faster).
"""
import argparse
import json
import statistics
import subprocess
import time

import torch

TENSORS = 25
LEARNING_RATE = 1e-3


class Ours:
    """An optim_bench process: it waits for its turn."""

    def __init__(self, program, kind, size, threads):
        self.process = subprocess.Popen([program, kind, str(size), str(threads)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{program} {kind} did not start")

    def __call__(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(run):
    run()

    def turn():
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    return turn


def tensors(count, scale):
    return [torch.randn(count // TENSORS) * scale for _ in range(TENSORS)]


def torch_fused_adamw(count):
    params = [torch.nn.Parameter(p) for p in tensors(count, 0.02)]
    for param, grad in zip(params, tensors(count, 1e-3)):
        param.grad = grad
    return timed(torch.optim.AdamW(params, lr=LEARNING_RATE, fused=True).step)


def torch_whole_step(count):
    """Norm, clipping, fused AdamW on fp32 masters, cast to bf16: what a Megatron-style loop calls.
    Gradients are made large again between the turns, so that each turn clips."""
    masters = [torch.nn.Parameter(p) for p in tensors(count, 0.02)]
    model = [p.detach().bfloat16() for p in masters]
    grads = tensors(count, 1e-1)
    for master, grad in zip(masters, grads):
        master.grad = grad
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, fused=True)

    def turn():
        torch._foreach_mul_(grads, 1.5)
        begin = time.perf_counter()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))).item()
        coefficient = 1.0 / (norm + 1e-6)
        if coefficient < 1:
            torch._foreach_mul_(grads, coefficient)
        optimizer.step()
        torch._foreach_copy_(model, [m.detach() for m in masters])
        return time.perf_counter() - begin
    turn()
    return turn


def torch_muon(size, dtype):
    param = torch.nn.Parameter((torch.randn(size, size) * 0.02).to(dtype))
    param.grad = (torch.randn(size, size) * 1e-3).to(dtype)
    return timed(torch.optim.Muon([param], lr=LEARNING_RATE).step)


def turns(contestants, repeat):
    times = {name: [] for name in contestants}
    for _ in range(repeat):
        for name, turn in contestants.items():
            times[name].append(turn())
    return times


def ratios(theirs, ours):
    of_turns = [their / our for their, our in zip(theirs, ours, strict=True)]
    return [round(value, 3) for value in
            (statistics.median(of_turns), min(of_turns), max(of_turns))]


def compare(options, kind, size, theirs, repeat):
    ours = Ours(options.program, kind, size, options.threads)
    times = turns({"ours": ours, **theirs}, repeat)
    ours.close()
    return {**{name: round(statistics.median(values), 5) for name, values in times.items()},
            **{f"{name}/ours": ratios(times[name], times["ours"]) for name in theirs}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/bin/optim_bench")
    parser.add_argument("--mparams", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--only", choices=["adam", "step", "muon", "ownership"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count = options.mparams * 1_000_000
    chosen = {options.only} if options.only else {"adam", "step", "muon", "ownership"}
    result = {"threads": options.threads, "elements": count, "torch": torch.__version__}
    if "adam" in chosen:
        copy = Ours(options.program, "copy", count, options.threads)
        result["adamw"] = compare(options, "adam", count, {
            "torch_fused": torch_fused_adamw(count), "copy_of_the_same_mix": copy}, options.repeat)
        copy.close()
    if "step" in chosen:
        result["whole_step"] = compare(options, "step", count,
                                       {"torch_sequence": torch_whole_step(count)}, options.repeat)
    for size in (2048, 4096) if "muon" in chosen else ():
        result[f"newton_schulz_{size}"] = compare(options, "muon", size, {
            "torch_muon_bf16": torch_muon(size, torch.bfloat16),
            "torch_muon_fp32": torch_muon(size, torch.float32)}, max(3, options.repeat // 2))
    if "ownership" in chosen:
        result["ownership_100000"] = compare(options, "ownership", 100_000, {}, options.repeat)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
