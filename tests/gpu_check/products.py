"""Times of Newton-Schulz and its symmetric products, in each way that they can be computed: parts
newton_schulz and symmetric_model of bench.py."""
import statistics

import kernels
import torch
from kernels import TILES_ALONE, TILES_IN_PAIRS, NewtonSchulz
from measuring import free_memory, sized, times_ms
from yardsticks import torch_batched_newton_schulz, torch_newton_schulz

# Edge, depth and number of matrices of symmetric products.
SYMMETRIC = ((256, 256, 64), (512, 512, 8), (512, 512, 64), (512, 2048, 16), (768, 768, 32),
             (1024, 1024, 1), (1024, 1024, 4), (1024, 1024, 16), (1024, 4096, 4), (1536, 1536, 8),
             (2048, 2048, 1), (2048, 2048, 4), (2048, 8192, 1), (3072, 3072, 1), (4096, 4096, 1),
             (4096, 4096, 4), (4096, 11008, 1), (5120, 5120, 1), (6144, 6144, 1), (8192, 8192, 1),
             (8192, 28672, 1))

# Where NewtonSchulz.model() has them, and their names; other blocks are the second there.
WAYS = {0: (0, "whole"), TILES_ALONE: (2, "alone"), TILES_IN_PAIRS: (3, "in pairs")}


def random_batch(ns):
    values = torch.randn_like(ns.iterate, dtype=torch.float32)
    values /= values.flatten(1).norm(dim=1)[:, None, None]
    ns.iterate.copy_(values)
    return ns.iterate.clone()


def compiled_times(x):
    """Of compiled torch, or None where torch cannot compile here."""
    if kernels.where == "cpu":
        return times_ms(lambda: torch_newton_schulz(x))
    try:
        compiled = torch.compile(torch_newton_schulz, dynamic=False)
        return times_ms(lambda: compiled(x))
    except Exception as error:  # no Triton, no host compiler: the other rows are worth having
        print(f"torch.compile does not work here: {error!r}", flush=True)
        return None


def newton_schulz(library, rows):
    for edge, batch in ((512, 64), (768, 32), (1024, 16)):
        name = f"Newton-Schulz, {batch} of {edge} x {edge}"
        edge, batch = sized(edge, 64), sized(batch, 8)
        ns = NewtonSchulz(library, edge, edge, batch)
        x = random_batch(ns)
        ours = times_ms(ns.run, lambda: ns.iterate.copy_(x))
        single = list(x.unbind())
        rows.add(f"{name}, against a loop", ours,
                 times_ms(lambda: [torch_newton_schulz(matrix) for matrix in single],
                          ahead_ms=0), 3.0)
        rows.add(f"{name}, against bmm", ours,
                 times_ms(lambda: torch_batched_newton_schulz(x)), 1.15)
        in_full(library, rows, name, (edge, edge, batch), ours)
        by_tiles(library, rows, name, (edge, edge, batch), ours)
    for shape in ((4096, 4096), (4096, 11008), (8192, 28672), (11008, 4096)):
        name = f"Newton-Schulz, {shape[0]} x {shape[1]}"
        shape = [sized(length, 256) for length in shape]
        ns = NewtonSchulz(library, *shape, 1)
        x = random_batch(ns)
        ours = times_ms(ns.run, lambda: ns.iterate.copy_(x))
        edge, length = min(shape), max(shape)
        flop = 5 * (4 * edge * edge * length + 2 * edge**3)
        rows.add(f"{name}, against compiled torch", ours, compiled_times(x[0]), None,
                 tflop_per_s=flop / statistics.median(ours) / 1e9)
        in_full(library, rows, name, (*shape, 1), ours)
        by_tiles(library, rows, name, (*shape, 1), ours)
        del ns, x
        free_memory()


def in_full(library, rows, name, shape, in_blocks):
    """The same without blocks: whether computing half of each symmetric product pays."""
    ns = NewtonSchulz(library, *shape, block=0)
    x = random_batch(ns)
    rows.add(f"{name}, as a step does it, against products in full", in_blocks,
             times_ms(ns.run, lambda: ns.iterate.copy_(x)), None)


def by_tiles(library, rows, name, shape, as_a_step):
    """Our own kernel for all symmetric products: the whole iteration against what a step does,
    which chooses for each, and one product against cuBLASLt's whole one."""
    whole = NewtonSchulz(library, *shape, block=0)
    random_batch(whole)
    whole_gram = times_ms(whole.gram)
    del whole
    for block, deal in ((TILES_ALONE, "tiles alone"), (TILES_IN_PAIRS, "tiles in pairs")):
        try:
            ns = NewtonSchulz(library, *shape, block=block)
        except RuntimeError as error:  # not Hopper
            print(f"{name}, {deal}: {error}", flush=True)
            return
        x = random_batch(ns)
        rows.add(f"{name}, {deal}, against as a step does it",
                 times_ms(ns.run, lambda: ns.iterate.copy_(x)), as_a_step)
        rows.add(f"{name}, gram alone, {deal}, against cuBLASLt in full", times_ms(ns.gram),
                 whole_gram)


def symmetric_model(library, rows):
    """A symmetric product by each way that plan_symmetric() chooses from, beside its model."""
    for edge, depth, batch in SYMMETRIC:
        edge, depth, batch = sized(edge, 256), sized(depth, 256), sized(batch, 64) or 1
        half = (edge // 2 + 127) // 128 * 128
        third = (edge // 3 + 127) // 128 * 128
        blocks = {0, half, third, half // 2} if edge >= 1024 else {0, half}
        calls = max(1, min(sized(50, 50), int(3e11 / (edge * edge * depth * batch))))
        for block in sorted(blocks) + [TILES_ALONE, TILES_IN_PAIRS]:
            try:
                ns = NewtonSchulz(library, edge, depth, batch, block=block)
            except RuntimeError as error:  # not Hopper
                print(f"{edge} x {depth}: {error}", flush=True)
                continue
            random_batch(ns)
            modelled, tile = ns.model(max(block, 0))
            at, name = WAYS.get(block, (1, block))
            times = times_ms(lambda: [ns.gram() for _ in range(calls)], ahead_ms=0.03 * calls)
            rows.add(f"gram of {batch} x {edge} x {depth}, {name}", [t / calls for t in times],
                     model_ms=modelled[at], tile=tile, shape=[edge, depth, batch], block=block)
