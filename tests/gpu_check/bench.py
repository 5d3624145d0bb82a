#!/usr/bin/env python3
"""Times the kernels on this GPU against yardsticks in the same process: copies of the same bytes,
torch's fused AdamW, cuBLAS, compiled Newton-Schulz. Medians after a warm-up; times of both sides of
every ratio are recorded. With the library of the CPU twins everything is tried at sizes that a CPU
does in seconds, and the times mean nothing.

usage: bench.py LIBRARY PART JSON      parts: see PARTS; writes its rows to the file JSON, each as
                                       soon as it is known, beside those of other parts
"""
import random
import statistics
import sys
from ctypes import c_int32, c_void_p
from pathlib import Path

import kernels
import torch
from kernels import (ADAM, BF16, BYTES, F8, F16, F32, LION, MUON, NO_STATS, NONE, SPLIT, Library,
                     Step, Tensors, make_group, pointer, stream)
from measuring import REPEATS, WARMUPS, Rows, free_memory, sized, times_ms
from products import newton_schulz, symmetric_model
from yardsticks import torch_adam, torch_muon

FLAT = 512 << 20  # elements of the large flat parameter

MODES = {
    "fp32 gradients and states, bf16 parameter": (F32, F32, (F32, F32), BF16),
    "bf16 gradients, fp32 states, bf16 parameter": (BF16, F32, (F32, F32), BF16),
    "bf16 gradients, 16-bit remainders, fp32 states": (BF16, SPLIT, (F32, F32), NONE),
    "fp32 gradients, 16-bit remainders, fp32 states": (F32, SPLIT, (F32, F32), NONE),
    "fp32 gradients, bf16 states, bf16 parameter": (F32, F32, (BF16, BF16), BF16),
    "bf16 gradients, 16-bit remainders, bf16 states": (BF16, SPLIT, (BF16, BF16), NONE),
}


# Rows and columns of their matrices.
MUON_MODELS = {
    "24 layers of width 1024": [(3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096)] * 24,
    "4 layers of width 4096": [(12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)] * 4,
}


def flat():
    return sized(FLAT, 1 << 17)


def peak_gb_per_s():
    """Of this GPU's memory, as it says itself: both edges of the clock, all lanes of the bus."""
    if kernels.where == "cpu":
        return 1
    device = torch.cuda.get_device_properties()
    return 2 * device.memory_clock_rate * device.memory_bus_width // 8 / 1e6


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


def mixes(library, rows):
    """What the memory gives an update of each mode, and torch's fused AdamW."""
    for name, types in MODES.items():
        free_memory()
        tensors = Tensors(flat(), *types)
        times = times_ms(mix_of(library, tensors))
        rows.add(f"copy of the mix, {name}", times, gb_per_s=rate(tensors.bytes_moved(), times))
        del tensors
    free_memory()
    tensors = Tensors(flat() // 2, F32, F32, (F32, F32), NONE)
    times = times_ms(lambda: torch_adam(tensors, tensors.grad, tensors.states))
    rows.add("torch's fused AdamW, fp32", times, gb_per_s=rate(tensors.bytes_moved(), times))


def bandwidth(library, rows):
    """What the memory and the matrix units of this GPU give."""
    count = sized(1 << 30, 1 << 18)
    a, b, c = (torch.ones(count, device=kernels.where) for _ in range(3))
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
    mixes(library, rows)
    for edge in (4096, 8192):
        shape = [sized(edge, 256)] * 2
        x, y = (torch.randn(shape, device=kernels.where).bfloat16() for _ in range(2))
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
        tensors = Tensors(flat(), *types)
        step = update_only(library, [tensors.param()])
        ours = times_ms(step.update)
        moved = tensors.bytes_moved()
        yardstick = times_ms(mix_of(library, tensors))
        rows.add(f"AdamW, {name}", ours, yardstick, 0.95, gb_per_s=rate(moved, ours),
                 of_peak=rate(moved, ours) / peak_gb_per_s(), of_peak_goal=0.84)
        del tensors, step
        free_memory()
    tensor_lists(library, rows)


def mixed_counts(total, seed=7):
    """At least 1000 sizes from 1e3 to 1e7, log-uniform, the same in every run."""
    generator = random.Random(seed)
    counts = []
    while len(counts) < 1000 or sum(counts) < total:
        count = 10 ** generator.uniform(3, 6.2 if len(counts) < 1000 else 7)
        counts.append(sized(int(count), 1 << 13) or 1)
    return counts


def tensor_lists(library, rows):
    types = MODES["fp32 gradients and states, bf16 parameter"]
    counts = mixed_counts(flat() // 2)
    many = [Tensors(count, *types) for count in counts]
    step = update_only(library, [tensors.param() for tensors in many])
    ours = times_ms(step.update)
    one = Tensors(sum(counts), *types)
    one_update = update_only(library, [one.param()])
    rows.add(f"AdamW, {len(counts)} tensors of mixed sizes, against one flat", ours,
             times_ms(one_update.update), 0.90, gb_per_s=rate(one.bytes_moved(), ours))


def against_torch(library, rows):
    tensors = Tensors(flat() // 2, F32, F32, (F32, F32), BF16)
    step = update_only(library, [tensors.param()])
    ours = times_ms(step.update)

    def torch_update():
        torch_adam(tensors, tensors.grad, tensors.states)
        tensors.model.copy_(tensors.main)

    rows.add("AdamW against torch's fused AdamW and a cast", ours, times_ms(torch_update), 1.15)
    whole_step(library, rows, BF16, 1.5)
    whole_step(library, rows, F32, 1.3)
    scaled_states(library, rows, F8, "fp8")
    scaled_states(library, rows, F16, "fp16")


def whole_step(library, rows, grad_type, goal):
    """Statistics, clipping, AdamW, cast; Megatron's sequence of torch operations beside it."""
    tensors = Tensors(flat() // 2, grad_type, F32, (F32, F32), BF16)
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
    tensors = Tensors(flat() // 4, BF16, F32, (kind, kind), BF16)
    step = update_only(library, [tensors.param()])
    stored_max = 448.0 if kind == F8 else 65504.0 / 2
    dtype = torch.float8_e4m3fn if kind == F8 else torch.float16
    stored = [torch.randn_like(tensors.main).abs_().to(dtype) for _ in range(2)]
    scales = [torch.ones((), device=kernels.where) for _ in range(2)]

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
        tensors = Tensors(flat(), kind, F32, (F32, NONE), NONE)
        step = Step(library, [make_group(LION)], [tensors.param(0, 0)])
        moved = flat() * BYTES[kind]
        sink = torch.empty(4096, dtype=torch.int32, device=kernels.where)
        ours = times_ms(step.stats)
        yardstick = times_ms(lambda: library.call("sw_read_only", tensors.grad.data_ptr(), moved,
                                                  sink.data_ptr(), stream()))
        rows.add(f"gradient statistics, {name}", ours, yardstick, 0.93,
                 gb_per_s=rate(moved, ours))
        del tensors, step
        free_memory()


def muon(library, rows):
    """Norm, clipping, Muon, cast to the model's bf16: whole steps, as a trainer waits for them."""
    for name, shapes in MUON_MODELS.items():
        shapes = [(sized(r, 64), sized(c, 64)) for r, c in shapes]
        many = [Tensors(r * c, BF16, F32, (F32, NONE), BF16) for r, c in shapes]
        params = [tensors.param(0, i, *shapes[i]) for i, tensors in enumerate(many)]
        step = Step(library, [make_group(MUON, beta1=0.95, nesterov=1)], params)
        step.set_control(1.0, 1.0)

        def ours():
            step.stats()
            step.update()

        theirs = torch_muon(many, shapes)
        rows.add(f"Muon step of {name}, against torch's Muon", times_ms(ours, ahead_ms=0),
                 times_ms(theirs, ahead_ms=0), 1.15)
        del step, theirs, many
        free_memory()


def cpu_times_ms(step, behind=lambda: None):
    """What the host spends on queueing a step, `behind` work that the device is busy with."""
    times = []
    for _ in range(REPEATS + WARMUPS):
        synchronize()
        behind()
        times.append(step.queue_ms())
    synchronize()
    return times[WARMUPS:]


def synchronize():
    if kernels.where == "cuda":
        torch.cuda.synchronize()


def graph(library, rows):
    """CPU time of a step, launched and replayed."""
    counts = mixed_counts(sized(64 << 20, 1 << 13))
    many = [Tensors(count, BF16, F32, (F32, F32), BF16) for count in counts]
    params = [tensors.param(0, i) for i, tensors in enumerate(many)]
    step = Step(library, [make_group(ADAM)], params)
    launched = cpu_times_ms(step)
    step.capture()
    replayed = cpu_times_ms(step)
    rows.add("CPU time of a launched step", launched)
    rows.add("CPU time of a replayed step; goal 0.050 ms", replayed, cpu_goal_ms=0.050)
    if kernels.where == "cuda":  # a step that waited would take as long as the device is busy
        busy = cpu_times_ms(step, lambda: torch.cuda._sleep(100_000_000))
        rows.add("CPU time of a replayed step behind 0.05 s of other work", busy)


PARTS = {"bandwidth": bandwidth, "adam": adam, "against_torch": against_torch,
         "grad_statistics": grad_statistics, "newton_schulz": newton_schulz, "muon": muon,
         "symmetric_model": symmetric_model, "graph": graph}


def main():
    path, part, json_file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    library = Library(path)
    if library.problem():
        print(f"SKIP: needs a GPU: {library.problem()}")
        return 77
    torch.manual_seed(1)
    PARTS[part](library, Rows(json_file, part))
    return 0


if __name__ == "__main__":
    sys.exit(main())
