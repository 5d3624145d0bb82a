"""Times liboptim's CPU optimizers side by side with PyTorch's, turn by turn on a quiet machine.

usage: bench_optim.py [--program build/bin/optim_bench] [--mparams N] [--threads T] [--repeat R]

Prints one JSON object: for each comparison the median seconds of each contestant, and the ratio to
ours turn by turn: median, lowest, highest (above 1: ours is faster). Of AdamW and of the whole step
all arithmetics take their turns in one run, in another order each time, with ratios of quarters,
too: on a busy machine the median of many turns says most. --processor-time counts what a process
used instead of the time on the clock.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import time

import torch

TENSORS = 25
ARITHMETICS = ["torch", "fused_adam", "transformer_engine", "fused"]
PARTS = ["adam", "step", "muon", "gram", "adaptive_muon", "soap", "ownership"]
MOMENTS = ["adamuon", "normuon", "namo"]
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
        return [float(text) for text in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(run):
    run()

    def turn():
        begin = now()
        run()
        return since(begin)
    return turn


def now():
    return time.perf_counter(), time.process_time()


def since(begin):
    """Seconds on the clock, and of the processor."""
    return [end - start for start, end in zip(begin, now(), strict=True)]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


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
        begin = now()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))).item()
        coefficient = 1.0 / (norm + 1e-6)
        if coefficient < 1:
            torch._foreach_mul_(grads, coefficient)
        optimizer.step()
        torch._foreach_copy_(model, [m.detach() for m in masters])
        return since(begin)
    turn()
    return turn


def torch_muon(size, dtype):
    param = torch.nn.Parameter((torch.randn(size, size) * 0.02).to(dtype))
    param.grad = (torch.randn(size, size) * 1e-3).to(dtype)
    return timed(torch.optim.Muon([param], lr=LEARNING_RATE).step)


def torch_soap_refresh(size):
    """What a power iteration with LAPACK's QR costs a matrix: emerging_optimizers' refresh, without
    what it checks around it."""
    def factor():
        grads = torch.randn(size, size)
        return grads @ grads.T / size

    factors = [factor(), factor()]
    bases = [torch.linalg.qr(torch.randn(size, size)).Q for _ in factors]
    exp_avg, exp_avg_sq = torch.randn(size, size) * 1e-3, torch.rand(size, size) * 1e-6

    def turn():
        nonlocal exp_avg, exp_avg_sq
        whole = bases[0] @ exp_avg @ bases[1].T
        for dim, (matrix, basis) in enumerate(zip(factors, list(bases), strict=True)):
            order = ((basis.T @ matrix) * basis.T).sum(1).argsort(descending=True)
            exp_avg_sq = exp_avg_sq.index_select(dim, order)
            bases[dim] = torch.linalg.qr(matrix @ basis[:, order]).Q
        exp_avg = bases[0].T @ whole @ bases[1]
    return timed(turn)


def turns(contestants, options, repeat):
    times = {name: [] for name in contestants}
    for _ in range(repeat):
        order = list(contestants.items())
        random.shuffle(order)
        for name, turn in order:
            times[name].append(turn()[1 if options.processor_time else 0])
    return times


def ratios(theirs, ours):
    """Median, lowest, highest; first and third quarter."""
    of_turns = sorted(their / our for their, our in zip(theirs, ours, strict=True))
    quarters = statistics.quantiles(of_turns, n=4)
    return [round(value, 3) for value in
            (statistics.median(of_turns), of_turns[0], of_turns[-1], quarters[0], quarters[2])]


def compare(options, kind, size, theirs, repeat, threads=None):
    ours = Ours(options.program, kind, size, threads or options.threads)
    times = turns({"ours": ours, **theirs}, options, repeat)
    ours.close()
    return {**{name: round(statistics.median(values), 5) for name, values in times.items()},
            **{f"{name}/ours": ratios(times[name], times["ours"]) for name in theirs}}


def compare_arithmetics(options, kind, size, theirs):
    ours = {name: Ours(options.program, f"{kind}:{name}", size, options.threads)
            for name in options.arithmetics}
    times = turns({**ours, **theirs}, options, options.repeat)
    for process in ours.values():
        process.close()
    return {**{name: round(statistics.median(values), 5) for name, values in times.items()},
            **{f"{their}/{our}": ratios(times[their], times[our])
               for our in ours for their in theirs}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/bin/optim_bench")
    parser.add_argument("--mparams", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--arithmetics", nargs="+", choices=ARITHMETICS, default=ARITHMETICS)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count = options.mparams * 1_000_000
    chosen = {options.only} if options.only else set(PARTS)
    result = {"processor": processor(), "threads": options.threads, "elements": count,
              "torch": torch.__version__,
              "seconds": "of the processor" if options.processor_time else "on the clock"}
    if "adam" in chosen:
        copy = Ours(options.program, "copy", count, options.threads)
        result["adamw"] = compare_arithmetics(options, "adam", count, {
            "torch_fused": torch_fused_adamw(count), "copy_of_the_same_mix": copy})
        copy.close()
    if "step" in chosen:
        result["whole_step"] = compare_arithmetics(options, "step", count,
                                                   {"torch_sequence": torch_whole_step(count)})
    for size in (2048, 4096) if "muon" in chosen else ():
        result[f"newton_schulz_{size}"] = compare(options, "muon", size, {
            "torch_muon_bf16": torch_muon(size, torch.bfloat16),
            "torch_muon_fp32": torch_muon(size, torch.float32)}, max(3, options.repeat // 2))
    for size, aspect in ((1024, 2), (1024, 4), (512, 8)) if "gram" in chosen else ():
        gram = Ours(options.program, f"gram:{aspect}", size, options.threads)
        result[f"gram_{size}x{aspect * size}"] = compare(
            options, f"newton_schulz:{aspect}", size, {"gram": gram}, options.repeat)
        gram.close()
    if "adaptive_muon" in chosen:
        moments = {f"adaptive_muon:{name}": Ours(options.program, f"adaptive_muon:{name}", 1024,
                                                 options.threads) for name in MOMENTS}
        result["adaptive_muon_1024"] = compare(options, "muon", 1024, moments, options.repeat)
    if "soap" in chosen:  # a matrix is one thread's work
        torch.set_num_threads(1)
        result["soap_refresh_2048"] = compare(options, "soap_refresh", 2048,
                                              {"torch_lapack": torch_soap_refresh(2048)},
                                              options.repeat, threads=1)
        torch.set_num_threads(options.threads)
    if "ownership" in chosen:
        result["ownership_100000"] = compare(options, "ownership", 100_000, {}, options.repeat)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
