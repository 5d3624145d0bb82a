#!/usr/bin/env python3
"""Times the kernels on this GPU against yardsticks in the same process: copies of the same bytes,
torch's fused AdamW, cuBLAS, compiled Newton-Schulz. Medians after a warm-up; times of both sides of
every ratio are recorded.

usage: bench.py LIBRARY PART JSON      parts: see PARTS; appends its rows to the file JSON
"""
import json
import random
import statistics
import sys
import time
from ctypes import c_int32, c_void_p
from pathlib import Path

import torch
from kernels import (ADAM, BF16, BYTES, F8, F16, F32, LION, NO_STATS, NONE, QUINTIC, SPLIT, Library,
                     NewtonSchulz, Step, Tensors, make_group, pointer, stream)

REPEATS, WARMUPS = 25, 5
FLAT = 512 << 20  # elements of the large flat parameter
PEAK_BYTES_PER_S = 4.8e12  # of an H200, by its data sheet

MODES = {
    "fp32 gradients and states, bf16 parameter": (F32, F32, (F32, F32), BF16),
    "bf16 gradients, fp32 states, bf16 parameter": (BF16, F32, (F32, F32), BF16),
    "bf16 gradients, 16-bit remainders, fp32 states": (BF16, SPLIT, (F32, F32), NONE),
    "fp32 gradients, 16-bit remainders, fp32 states": (F32, SPLIT, (F32, F32), NONE),
    "fp32 gradients, bf16 states, bf16 parameter": (F32, F32, (BF16, BF16), BF16),
    "bf16 gradients, 16-bit remainders, bf16 states": (BF16, SPLIT, (BF16, BF16), NONE),
}


def times_ms(work, repeats=REPEATS):
    """Device times of single calls, in milliseconds."""
    for _ in range(WARMUPS):
        work()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
              for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


class Rows:
    """Results: one row per measurement."""

    def __init__(self):
        self.rows = []

    def add(self, name, ours, yardstick=None, goal=None, **more):
        """`ours`, `yardstick`: lists of milliseconds. The ratio is yardstick / ours."""
        row = {"name": name, "ms": statistics.median(ours), "min_ms": min(ours),
               "max_ms": max(ours), **more}
        if yardstick is not None:
            row["yardstick_ms"] = statistics.median(yardstick)
            row["ratio"] = row["yardstick_ms"] / row["ms"]
            row["goal"] = goal
        self.rows.append(row)
        print(format_row(row), flush=True)


def format_row(row):
    text = f"{row['name']:<66} {row['ms']:>10.4f} ms"
    if "gb_per_s" in row:
        text += f" {row['gb_per_s']:>7.0f} GB/s"
    if "tflop_per_s" in row:
        text += f" {row['tflop_per_s']:>7.0f} TFLOP/s"
    if "ratio" in row:
        text += f"  yardstick {row['yardstick_ms']:.4f} ms, ratio {row['ratio']:.3f}"
    if row.get("goal"):
        text += f", goal {row['goal']}: {'met' if row['ratio'] >= row['goal'] else 'MISSED'}"
    return text


def rate(bytes_moved, times):
    return bytes_moved / statistics.median(times) / 1e6


def mix_of(library, tensors):
    """Moves what an update of `tensors` moves, without its arithmetic."""
    grad, main, states, model = tensors.types
    counts = (c_int32 * 6)(BYTES[grad], BYTES[main], 2 if main == SPLIT else 0,
                           *[BYTES[s] for s in states], BYTES[model])
    places = (c_void_p * 6)(pointer(tensors.grad), pointer(tensors.main),
                            pointer(tensors.remainder), *map(pointer, tensors.states),
                            pointer(tensors.model))
    return lambda: library.call("sw_move_mix", counts, places, tensors.count, stream())


def bandwidth(library, rows):
    """What the memory and the matrix units of this GPU give."""
    count = 1 << 30
    a, b, c = (torch.ones(count, device="cuda") for _ in range(3))
    two = (c_void_p * 2)(a.data_ptr(), b.data_ptr())
    three = (c_void_p * 3)(a.data_ptr(), b.data_ptr(), c.data_ptr())
    times = times_ms(lambda: library.call("sw_copy", two, count, stream()))
    rows.add("copy of fp32", times, gb_per_s=rate(8 * count, times))
    times = times_ms(lambda: library.call("sw_triad", three, count, stream()))
    rows.add("triad of fp32", times, gb_per_s=rate(12 * count, times))
    times = times_ms(lambda: library.call("sw_read_only", a.data_ptr(), 4 * count, b.data_ptr(),
                                          stream()))
    rows.add("read only", times, gb_per_s=rate(4 * count, times))
    times = times_ms(lambda: a.copy_(b))
    rows.add("torch copy_", times, gb_per_s=rate(8 * count, times))
    del a, b, c
    for edge in (4096, 8192):
        x, y = (torch.randn(edge, edge, device="cuda").bfloat16() for _ in range(2))
        times = times_ms(lambda: x @ y)
        rows.add(f"cuBLAS bf16 {edge}", times,
                 tflop_per_s=2 * edge**3 / statistics.median(times) / 1e9)


def update_only(library, params):
    """A step whose statistics cover nothing, so that its update can be timed alone."""
    for param in params:
        param.stats_index = NO_STATS
    return Step(library, [make_group(ADAM)], params)


def adam(library, rows):
    for name, types in MODES.items():
        tensors = Tensors(FLAT, *types)
        step = update_only(library, [tensors.param()])
        ours = times_ms(step.update)
        moved = tensors.bytes_moved()
        yardstick = times_ms(mix_of(library, tensors))
        rows.add(f"AdamW, {name}", ours, yardstick, 0.95, gb_per_s=rate(moved, ours),
                 of_peak=rate(moved, ours) * 1e9 / PEAK_BYTES_PER_S, of_peak_goal=0.84)
        del tensors, step
        torch.cuda.empty_cache()
    tensor_lists(library, rows)


def mixed_counts(total, seed=7):
    """At least 1000 sizes from 1e3 to 1e7, log-uniform, the same in every run."""
    generator = random.Random(seed)
    counts = []
    while len(counts) < 1000 or sum(counts) < total:
        counts.append(int(10 ** generator.uniform(3, 6.2 if len(counts) < 1000 else 7)))
    return counts


def tensor_lists(library, rows):
    types = MODES["fp32 gradients and states, bf16 parameter"]
    counts = mixed_counts(FLAT // 2)
    many = [Tensors(count, *types) for count in counts]
    step = update_only(library, [tensors.param() for tensors in many])
    ours = times_ms(step.update)
    flat = Tensors(sum(counts), *types)
    flat_update = update_only(library, [flat.param()])
    rows.add(f"AdamW, {len(counts)} tensors of mixed sizes, against one flat", ours,
             times_ms(flat_update.update), 0.90, gb_per_s=rate(flat.bytes_moved(), ours))


def against_torch(library, rows):
    count = FLAT // 2
    tensors = Tensors(count, F32, F32, (F32, F32), BF16)
    step = update_only(library, [tensors.param()])
    ours = times_ms(step.update)
    step_counts = [torch.ones((), device="cuda")]

    def torch_update():
        torch._fused_adamw_([tensors.main], [tensors.grad], [tensors.states[0]],
                            [tensors.states[1]], [], step_counts, lr=1e-3, beta1=0.9, beta2=0.95,
                            weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
        tensors.model.copy_(tensors.main)

    rows.add("AdamW against torch's fused AdamW and a cast", ours, times_ms(torch_update), 1.15)
    whole_step(library, rows, BF16, 1.5)
    whole_step(library, rows, F32, 1.3)
    scaled_states(library, rows, F8, "fp8")
    scaled_states(library, rows, F16, "fp16")


def torch_adam(tensors, grad, states):
    torch._fused_adamw_([tensors.main], [grad], [states[0]], [states[1]], [],
                        [torch.ones((), device="cuda")], lr=1e-3, beta1=0.9, beta2=0.95,
                        weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)


def whole_step(library, rows, grad_type, goal):
    """Statistics, clipping, AdamW, cast; Megatron's sequence of torch operations beside it."""
    count = FLAT // 2
    tensors = Tensors(count, grad_type, F32, (F32, F32), BF16)
    step = Step(library, [make_group(ADAM)], [tensors.param(0, 0)])
    step.set_control(1.0, 1.0)

    def ours():
        step.stats()
        step.update()

    def torch_step():
        grad = tensors.grad.float()  # an alias where it is fp32 already
        norm = torch.linalg.vector_norm(grad)
        grad.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        torch_adam(tensors, grad, tensors.states)
        tensors.model.copy_(tensors.main)

    name = "bf16" if grad_type == BF16 else "fp32"
    rows.add(f"whole step, {name} gradients, against torch operations", times_ms(ours),
             times_ms(torch_step), goal)


def scaled_states(library, rows, kind, name):
    """One fused step against unscaling to fp32, AdamW, and scaling back."""
    count = FLAT // 4
    tensors = Tensors(count, BF16, F32, (kind, kind), BF16)
    step = update_only(library, [tensors.param()])
    stored_max = 448.0 if kind == F8 else 65504.0 / 2
    dtype = torch.float8_e4m3fn if kind == F8 else torch.float16
    stored = [torch.randn(count, device="cuda").abs_().to(dtype) for _ in range(2)]
    scales = [torch.ones((), device="cuda") for _ in range(2)]

    def torch_step():
        states = [s.float().mul_(scale) for s, scale in zip(stored, scales)]
        torch_adam(tensors, tensors.grad.float(), states)
        for i, state in enumerate(states):
            scales[i] = state.abs().amax() / stored_max
            stored[i].copy_(state.div_(scales[i]))
        tensors.model.copy_(tensors.main)

    rows.add(f"AdamW with {name} states against unscale, fp32, rescale", times_ms(step.update),
             times_ms(torch_step), 2.5)


def grad_statistics(library, rows):
    for kind, name in ((F32, "fp32"), (BF16, "bf16")):
        tensors = Tensors(FLAT, kind, F32, (F32, NONE), NONE)
        step = Step(library, [make_group(LION)], [tensors.param(0, 0)])
        moved = FLAT * BYTES[kind]
        sink = torch.empty(4096, dtype=torch.int32, device="cuda")
        ours = times_ms(step.stats)
        yardstick = times_ms(lambda: library.call("sw_read_only", tensors.grad.data_ptr(), moved,
                                                  sink.data_ptr(), stream()))
        rows.add(f"gradient statistics, {name}", ours, yardstick, 0.93,
                 gb_per_s=rate(moved, ours))
        del tensors, step
        torch.cuda.empty_cache()


def torch_newton_schulz(x):
    """The reference's steps, tall matrices transposed; x is normalised bf16, 2-D."""
    is_tall = x.size(0) > x.size(1)
    x = x.mT if is_tall else x
    for a, b, c in QUINTIC:
        gram = x @ x.mT
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def torch_batched_newton_schulz(x):
    for a, b, c in QUINTIC:
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def random_batch(ns):
    values = torch.randn_like(ns.iterate, dtype=torch.float32)
    values /= values.flatten(1).norm(dim=1)[:, None, None]
    ns.iterate.copy_(values)
    return ns.iterate.clone()


def newton_schulz(library, rows):
    for edge, batch in ((512, 64), (768, 32), (1024, 16)):
        ns = NewtonSchulz(library, edge, edge, batch)
        x = random_batch(ns)
        ours = times_ms(ns.run)
        single = list(x.unbind())
        loop = times_ms(lambda: [torch_newton_schulz(matrix) for matrix in single])
        bmm = times_ms(lambda: torch_batched_newton_schulz(x))
        name = f"Newton-Schulz, {batch} of {edge} x {edge}"
        rows.add(f"{name}, against a loop", ours, loop, 3.0)
        rows.add(f"{name}, against bmm", ours, bmm, 1.15)
    compiled = torch.compile(torch_newton_schulz)
    for shape in ((4096, 4096), (4096, 11008), (8192, 28672), (11008, 4096)):
        ns = NewtonSchulz(library, *shape, 1)
        x = random_batch(ns)[0]
        ours = times_ms(ns.run)
        edge, length = min(shape), max(shape)
        flop = 5 * (4 * edge * edge * length + 2 * edge**3)
        rows.add(f"Newton-Schulz, {shape[0]} x {shape[1]}, against compiled torch", ours,
                 times_ms(lambda: compiled(x)), None,
                 tflop_per_s=flop / statistics.median(ours) / 1e9)
        del ns, x
        torch.cuda.empty_cache()


def graph(library, rows):
    """CPU time of a step: what the host spends on queueing it, launched and replayed."""
    many = [Tensors(count, BF16, F32, (F32, F32), BF16) for count in mixed_counts(64 << 20)]
    params = [tensors.param(0, i) for i, tensors in enumerate(many)]

    def cpu_times_ms(step):
        times = []
        for _ in range(REPEATS + WARMUPS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            step.set_rates(1e-3, 0.1)
            step.set_control(1.0, 1.0)
            step.stats()
            step.update()
            times.append(1e3 * (time.perf_counter() - begin))
        torch.cuda.synchronize()
        return times[WARMUPS:]

    step = Step(library, [make_group(ADAM)], params)
    launched = cpu_times_ms(step)
    step.capture()
    replayed = cpu_times_ms(step)
    rows.add("CPU time of a launched step, ctypes included", launched)
    rows.add("CPU time of a replayed step, ctypes included; goal 0.050 ms", replayed,
             cpu_goal_ms=0.050)


PARTS = {"bandwidth": bandwidth, "adam": adam, "against_torch": against_torch,
         "grad_statistics": grad_statistics, "newton_schulz": newton_schulz, "graph": graph}


def main():
    path, part, json_file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    library = Library(path)
    if library.problem():
        print(f"SKIP: needs a GPU: {library.problem()}")
        return 77
    rows = Rows()
    torch.manual_seed(1)
    PARTS[part](library, rows)
    results = json.loads(json_file.read_text()) if json_file.exists() else {}
    results["device"] = torch.cuda.get_device_name()
    results["torch"] = torch.__version__
    results.setdefault("parts", {})[part] = rows.rows
    json_file.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
