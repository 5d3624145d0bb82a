#!/usr/bin/env python3
"""Plants faults in copies of the kernels' sources, one at a time, and expects the tests that run
them on the CPU to fail: what the tests would not notice is printed, and the exit code is 1.

usage: mutants.py --compiler CXX --root ROOT --library LIB --objects O... [--folder F] [--name N]
A handful by default; all with SHARDWISE_LONG_TESTS set.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UPDATE, MUON, STATS = "updates_on_the_cpu", "muon_on_the_cpu", "statistics_on_the_cpu"
LION = f"{UPDATE}/lion*:{UPDATE}/tails*:{UPDATE}/tensors*"
SCALED = f"{UPDATE}/many*:{UPDATE}/sgd*"
TILES = f"{MUON}/products_by*:{MUON}/tiles*"
TRAVERSAL = "traversal.cuh"
TAIL = "for (; first < piece.count; first += kRun * kChunkThreads) {"
TAIL_VECTORS = "piece.is_aligned ? piece.count / N * N : 0;"
CHUNKS = "for (uint32_t c = blockIdx.x; c < count; c += gridDim.x) visit"
ONE_CHUNK = "if (const uint32_t c = blockIdx.x; c < count) visit"

# Of mirrored_product.cu: name, is it one of the handful, text, what replaces it
HOPPER = (
    ("products do not wait for their stage", True,
     "    sm90::barrier_wait(stage.barrier(places.full), stage.parity);\n", ""),
    ("loads do not wait until a stage is read", True,
     "      sm90::barrier_wait(stage.barrier(places.empty), stage.parity ^ 1);\n", ""),
    ("a stage is free while products read it", True, "    sm90::products_wait<1>();\n", ""),
    ("the stage of this step is free, not that before", False,
     "    if (step > 0) arrive(before);\n    before = stage.barrier(places.empty);",
     "    before = stage.barrier(places.empty);\n    if (step > 0) arrive(before);"),
    ("one warp says for all that a stage is read", False,
     "kReaders = kOwn * kWarps;", "kReaders = kOwn;"),
    ("one warpgroup says for both that a stage is read", False,
     "kReaders = kOwn * kWarps;", "kReaders = kWarps;"),
    ("sums are not waited for", False, "  sm90::products_wait<0>();\n", ""),
    ("no fence before products", False, "  sm90::products_fence();\n", ""),
    ("no fence behind barriers", False, "    sm90::barrier_init_fence();\n", ""),
    ("barriers are used before they are there", False, "  }\n  __syncthreads();\n", "  }\n"),
    ("warpgroups do not take turns", True,
     "    sm90::barrier_wait(places.turns + walk.group * kBarrierBytes, walk.turn_parity);\n", ""),
    ("warpgroups wait for their own turn", False,
     "arrive(places.turns + (walk.group ^ 1) * kBarrierBytes)",
     "arrive(places.turns + walk.group * kBarrierBytes)"),
    ("a ring's second turn is its first", False,
     "      number = 0;\n      parity ^= 1;", "      number = 0;"),
    ("stages that are passed over do not turn the ring", False,
     "    parity ^= static_cast<uint32_t>(turns) & 1U;\n", ""),
    ("the other's stages are not passed over", False,
     "    if (kAlone) walk.stage.pass_over(walk.steps);  // the other warpgroup's\n", ""),
    ("half of the bytes are expected", False,
     "barrier_arrive_expect(full, R::kStageBytes)", "barrier_arrive_expect(full, kPanelBytes)"),
    ("both warpgroups multiply the first panel", False, "from + panel,", "from,"),
    ("a step through rows is one through columns", False,
     "kColumns ? kStepDepth * 128 : kStepDepth * 2", "kStepDepth * 2"),
    ("64 rows lie as close as eight lines", False,
     "uint64_t{kPieceBytes >> 4} << 16", "uint64_t{kAtom >> 4} << 16"),
    ("eight lines lie as far as 64 rows", False,
     "uint64_t{kAtom >> 4} << 32", "uint64_t{kPieceBytes >> 4} << 32"),
    ("operands are not swizzled", False, "uint64_t{1} << 62;", "uint64_t{0} << 62;"),
    ("the first product adds to what was there", False, "accumulates || i > 0", "true"),
    ("later products forget the first", False, "accumulates || i > 0", "accumulates"),
    ("tail of the sum is lost", False, "(p.depth + kDepth - 1) / kDepth", "p.depth / kDepth"),
    ("stages do not begin where the swizzle repeats", False,
     "(first + kAtom - 1) / kAtom * kAtom", "first"),
    ("shared memory is too small", False, "    kAtom + kRingBytes +", "    kRingBytes +"),
    ("all matrices are the first", False, "turn.matrix * p.edge * p.edge", "0 * p.edge"),
    ("second turn of a block is dropped", False, "number < count; number += stride",
     "number < count; number += count"),
)
HALF_TILE = (
    ("what is staged is read before it is there", False,
     "  stage_sums(h, sums);\n  sync_warpgroup();", "  stage_sums(h, sums);"),
    ("what is staged is overwritten before it is read", False,
     "  sync_warpgroup();  // what is staged is read\n", ""),
    ("the addend is used before it is there", False,
     "    stage_addend(h);\n    sync_warpgroup();", "    stage_addend(h);"),
    ("warpgroups wait for each other at one barrier", False,
     "sm90::sync_threads<2, kWarpgroup>", "sm90::sync_threads<1, kWarpgroup>"),
    ("rows are not stored", False, "  store_rows(h);\n", ""),
    ("columns are not stored", False, "  store_columns(h);\n", ""),
    ("rows below the diagonal are stored, too", False, "h.is_diagonal ? at - column : 0", "0"),
    ("columns above the diagonal are stored, too", False,
     "h.is_diagonal ? column - h.row - first : kVector", "kVector"),
    ("rows go past the edge", False, "    if (at >= h.edge) break;\n", ""),
    ("columns go past the edge", False, "    if (column >= h.edge) break;\n", ""),
)

# name, is it one of the handful, file, source that is compiled, tests, text, what replaces it
MUTANTS = (
    ("update: tail is lost", True, TRAVERSAL, "update_lion.cu", LION,
     TAIL, TAIL.replace("first < piece.count", "first < taken")),
    ("update: tail has a wrong stride", False, TRAVERSAL, "update_lion.cu", LION,
     TAIL, TAIL.replace("kChunkThreads)", "kChunkThreads + 1)")),
    ("update: tail overlaps the vectors", False, TRAVERSAL, "update_lion.cu", LION,
     "kRun == 1 ? taken + thread", "kRun == 1 ? taken - 1 + thread"),
    ("update: second turn of a block is dropped", True, TRAVERSAL, "update_lion.cu", LION,
     CHUNKS, ONE_CHUNK),
    ("update: second turn of a thread is dropped", False, TRAVERSAL, "update_lion.cu", LION,
     "first += kUnroll * kStride) {", "first += kChunkElements) {"),
    ("update: vectors where nothing is aligned", True, TRAVERSAL, "update_lion.cu", LION,
     TAIL_VECTORS, "piece.count / N * N;"),
    ("update: last vector goes past the end", False, TRAVERSAL, "update_lion.cu", LION,
     TAIL_VECTORS, "piece.is_aligned ? (piece.count + N - 1) / N * N : 0;"),
    ("update: second vector in flight is stored over the first", False, TRAVERSAL,
     "update_lion.cu", LION, "work.use(vectors[u], first + u * kStride);",
     "work.use(vectors[u], first);"),
    ("update: a skipped step is done", False, "update_kernel.cuh", "update_lion.cu", LION,
     "update_kernel(const TensorTable table, const RuleScalars* scalars, const StepControl* "
     "control) {\n  if (control->skip != 0) return;",
     "update_kernel(const TensorTable table, const RuleScalars* scalars, const StepControl* "
     "control) {"),
    ("update: all tensors have the first group's scalars", False, "update_kernel.cuh",
     "update_lion.cu", LION, "group(c.scalars[slot.group])", "group(c.scalars[0])"),
    ("update: all tensors of types at run time have the first group's scalars", False,
     "update_kernel.cuh", "update_lion.cu", LION, "c.scalars[slot_for(first).group]",
     "c.scalars[0]"),
    ("update: types at run time begin at the tensor's first element", False, "update_kernel.cuh",
     "update_sgd.cu", f"{UPDATE}/tensors*", "return c.piece.begin + first;", "return first;"),
    ("update: no copy for the model from single elements", False, "values.cuh",
     "update_lion.cu", LION, "  model.store(to, first, 2);",
     "  if (N > 1) model.store(to, first, 2);"),
    ("update: no copy for the model", False, "update_kernel.cuh", "update_sgd.cu", f"{UPDATE}/sgd*",
     "    store_model(types.model(), values.param, slot.model, place);\n", ""),
    ("largest: each warp's first thread alone", False, "update_kernel.cuh", "update_lion.cu", LION,
     "__reduce_max_sync(0xFFFFFFFFU, work.absmax[i])", "work.absmax[i]"),
    ("largest: no parameter where decay adds it to the gradient", False, "update_kernel.cuh",
     "update_lion.cu", LION, "is_scaled(types.main()) || scalars[slot.group].l2 != 0",
     "is_scaled(types.main())"),
    ("largest: no state where only the master is scaled", False, "update_kernel.cuh",
     "update_lion.cu", LION, "return is_scaled(types.main()) || is_scaled(types.state(s));",
     "return is_scaled(types.state(s));"),
    ("scales: magnitudes are not forgotten", False, "multi_tensor_update.cu",
     "multi_tensor_update.cu", SCALED, "    scale.absmax_bits = 0;\n", ""),
    ("scales: second block does the first one's work", False, "multi_tensor_update.cu",
     "multi_tensor_update.cu", SCALED, "blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x"),
    ("words: second pair of bytes lands on the first", False, "values.cuh", "update_lion.cu", LION,
     "encode_two(type, values.at[i + 2], values.at[i + 3]) << 16",
     "encode_two(type, values.at[i + 2], values.at[i + 3])"),
    ("words: second half lands on the first", False, "values.cuh", "update_sgd.cu",
     f"{UPDATE}/sgd*", "words[i / 2] | bits << 16", "words[i / 2] | bits"),
    ("statistics: tail is lost", False, TRAVERSAL, "grad_stats.cu", STATS,
     TAIL, TAIL.replace("first < piece.count", "first < taken")),
    ("statistics: vectors in flight are taken twice", False, TRAVERSAL, "grad_stats.cu",
     STATS, "first += kUnroll * kStride) {", "first += kStride) {"),
    ("statistics: a thread takes other elements where they are not aligned", False, TRAVERSAL,
     "grad_stats.cu", STATS, "for_single<Work::kKeepsOrder ? N : 1>", "for_single<1>"),
    ("statistics: a thread's tail begins too early", False, TRAVERSAL, "grad_stats.cu", STATS,
     "(taken - first + kStride - 1) / kStride * kStride", "(taken - first) / kStride * kStride"),
    ("statistics: barrier behind the warps' sums is missing", True, "stats_sums.cuh",
     "grad_stats.cu", STATS, "= stats;\n  __syncthreads();", "= stats;"),
    ("statistics: barrier before the next sums is missing", False, "stats_sums.cuh",
     "grad_stats.cu", STATS, "  __syncthreads();  // the last call's sums are read\n", ""),
    ("statistics: half a warp is not added", False, "stats_sums.cuh", "grad_stats.cu", STATS,
     "int width = 16;", "int width = 8;"),
    ("statistics: only as many chunks as a warp has lanes", False, "grad_stats.cu",
     "grad_stats.cu", STATS, "c < chunk_count; c += threads", "c < chunk_count; c += chunk_count"),
    ("statistics: a long tensor's chunks are added by each warp", False, "grad_stats.cu",
     "grad_stats.cu", STATS, "thread, is_long ? kChunkThreads : 32)", "thread, 32)"),
    ("statistics: tensors that do not count, count", False, "grad_stats.cu", "grad_stats.cu", STATS,
     "    if (slot.stats_index == kNoStats) continue;\n", ""),
    ("control: barrier before it is read is missing", False, "prepare_step.cu", "prepare_step.cu",
     STATS, "  __syncthreads();\n  if (request.control->skip", "  if (request.control->skip"),
    ("control: tensors behind the 256th are lost", False, "prepare_step.cu", "prepare_step.cu",
     STATS, "i < request.tensor_count; i += kControlThreads",
     "i < request.tensor_count; i += request.tensor_count"),
    ("control: groups behind the 256th are lost", True, "prepare_step.cu", "prepare_step.cu", STATS,
     "i < request.group_count; i += kControlThreads",
     "i < request.group_count; i += request.group_count"),
    ("sources: groups behind the 256th are lost", False, "prepare_step.cu", "prepare_step.cu",
     STATS, "g < request.group_count; g += kControlThreads",
     "g < request.group_count; g += request.group_count"),
    ("sources: a scale is taken where none was named", False, "prepare_step.cu", "prepare_step.cu",
     STATS, "from.loss_scale != nullptr) {", "true) {"),
    ("rates: second launch writes where the first did", False, "prepare_step.cu",
     "prepare_step.cu", STATS, "rates_kernel, groups + first,", "rates_kernel, groups,"),
    ("mirror: barrier behind the tile's load is missing", True, "symmetric.cu",
     "symmetric.cu", f"{MUON}/mirrors*",
     "    __syncthreads();\n    for (int i = threadIdx.y", "    for (int i = threadIdx.y"),
    ("mirror: barrier before the next matrix is missing", False, "symmetric.cu",
     "symmetric.cu", f"{MUON}/mirrors*", "    __syncthreads();  // the tile is read\n", ""),
    ("mirror: last rows of a tile are lost", False, "symmetric.cu", "symmetric.cu",
     f"{MUON}/mirrors*", "int64_t row = first_column + threadIdx.x, column = first_row + i;\n"
     "      if (row < r.edge && column < r.edge)",
     "int64_t row = first_column + threadIdx.x, column = first_row + i;\n"
     "      if (row < r.edge && column + 1 < r.edge)"),
    ("muon: tail is lost", False, TRAVERSAL, "muon.cu", MUON,
     TAIL, TAIL.replace("first < piece.count", "first < taken")),
    ("muon: vectors where nothing is aligned", False, TRAVERSAL, "muon.cu", MUON,
     TAIL_VECTORS, "piece.count / N * N;"),
    ("muon: second turn of a block is dropped", False, TRAVERSAL, "muon.cu", MUON,
     CHUNKS, ONE_CHUNK),
    ("muon: a part is stored as if it were a weight", False, "muon.cu", "muon.cu", MUON,
     "if (matrix.part_rows == matrix.group_rows) return piece.begin + first;",
     "return piece.begin + first;"),
    ("muon: a part's later chunks begin in its first row", False, "muon.cu", "muon.cu", MUON,
     "static_cast<uint32_t>(c.piece.begin / c.matrix.columns)", "0"),
    ("muon: a part's later chunks begin in its first column", False, "muon.cu", "muon.cu", MUON,
     "static_cast<uint32_t>(c.piece.begin % c.matrix.columns)", "0"),
    ("muon: no parameter where decay adds it to the gradient", False, "muon.cu", "muon.cu", MUON,
     "if (chunk.factors.scalars.l2 != 0) v.param.get(main, e.param);", ""),
    ("muon: momentum is used before it is rounded", False, "muon.cu", "muon.cu", MUON,
     "    decode(kMomentum, v.momentum, values.momentum);\n", ""),
    ("muon: norms of matrices behind the eighth are lost", False, "muon.cu", "muon.cu", MUON,
     "(blockIdx.x * kChunkThreads + threadIdx.x) / 32", "threadIdx.x / 32"),
    ("products: a cubic step multiplies by what was there before", False, "newton_schulz.cc",
     "newton_schulz.cc", MUON, "buffers_of_update(current, step)", "current"),
    ("products: iterates do not take turns", False, "newton_schulz.cc", "newton_schulz.cc", MUON,
     "    std::swap(current.iterate, current.next);\n", ""),
    ("products: promise more alignment than offsets have", False, "products.cc",
     "products.cc", MUON, " | offset * bytes | 256", " | 256"),
    ("products: blocks are not mirrored", False, "products.cc", "products.cc",
     MUON, "return mirror_blocks(mirror, stream) == cudaSuccess", "return mirror.block > 0"),
    ("sums: the last elements are lost", False, "symmetric.cu", "symmetric.cu", MUON,
     "  if (element < r.count) combine_some", "  if (element < vectors) combine_some"),
    ("gram: steps of a pass begin with the first one's multiple", False, "newton_schulz.cc",
     "newton_schulz.cc", MUON, "      identity_ *= k.a;\n", ""),
    ("gram: the first factor is overwritten", False, "newton_schulz.cc", "newton_schulz.cc",
     MUON,
     "      if (i == 0) std::swap(at_.factor, at_.polynomial);  // it is the first factor\n", ""),
    ("gram: factors do not take turns", False, "newton_schulz.cc", "newton_schulz.cc",
     MUON, "    std::swap(at_.factor, at_.spare);\n", ""),
    ("gram: passes begin with the same coefficients", False, "newton_schulz.cc",
     "newton_schulz.cc", MUON, "    coefficients += length;\n", ""),
    ("products: tiles know one iterate", False, "products.cc", "products.cc",
     TILES, "for (const NewtonSchulzBuffers& each : {buffers, swapped})",
     "for (const NewtonSchulzBuffers& each : {buffers, buffers})"),
    ("products: tiles take columns for rows", False, "products.cc",
     "products.cc", TILES, "? FactorOrder::Columns : FactorOrder::Rows",
     "? FactorOrder::Rows : FactorOrder::Rows"),
) + tuple((f"tiles: {name}", is_one, "mirrored_product.cu", "mirrored_product.cu", "mirrored_on*",
           text, replacement) for name, is_one, text, replacement in HOPPER + HALF_TILE)


def planted(sources, mutant, folder):
    """A copy of the sources with this fault."""
    name, _, file, _, _, text, replacement = mutant
    copy = folder / "mutated"
    shutil.copytree(sources, copy)
    original = (copy / file).read_text(encoding="utf-8")
    if original.count(text) != 1:
        sys.exit(f"{name}: its text is {original.count(text)} times in {file}, expected once")
    (copy / file).write_text(original.replace(text, replacement), encoding="utf-8")
    return copy


def run(mutant, options, folder):
    """What happened to it: how the tests noticed, or None."""
    _, _, _, source, tests, _, _ = mutant
    root = Path(options.root)
    copy = planted(root / "kernels/src", mutant, folder)
    compiled, program = folder / "mutant.o", folder / "mutant"
    subprocess.run(
        [options.compiler, "-std=c++20", "-O1", "-w", "-Wno-psabi", "-ffp-contract=off", "-isystem",
         str(root / "tests/kernels/emulation/cuda"), f"-I{root}/tests",
         f"-I{root}/kernels/include", "-x", "c++", "-c", str(copy / source), "-o", str(compiled)],
        check=True)
    subprocess.run(
        [options.compiler, str(compiled), *options.objects, options.library,
         "-lboost_unit_test_framework", "-o", str(program)], check=True)
    filters = [f"--run_test={test}" for test in tests.split(":")]
    try:
        result = subprocess.run([str(program), *filters, "--log_level=nothing"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "does not end"
    return None if result.returncode == 0 else f"exit code {result.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("compiler", "root", "library"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--objects", nargs="+", required=True)
    parser.add_argument("--folder", help="for temporary files")
    parser.add_argument("--name", default="", help="only mutants whose names have this in them")
    options = parser.parse_args()
    takes_all = os.environ.pop("SHARDWISE_LONG_TESTS", None) is not None or options.name
    chosen = [mutant for mutant in MUTANTS
              if options.name in mutant[0] and (takes_all or mutant[1])]
    survivors = 0
    for mutant in chosen:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            end = run(mutant, options, Path(folder))
        survivors += end is None
        print(f"{mutant[0]}: {end or 'NOT NOTICED'}", flush=True)
    # All texts are looked for in every run, so that a change of the sources cannot outdate them.
    for mutant in MUTANTS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            planted(Path(options.root) / "kernels/src", mutant, Path(folder))
    print(f"{len(chosen) - survivors} of {len(chosen)} faults noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
