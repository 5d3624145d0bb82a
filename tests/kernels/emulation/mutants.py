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
CHUNKS = "for (uint32_t c = blockIdx.x; c < {0}chunk_count; c += gridDim.x) {{\n    {1}"

# name, is it one of the handful, file, source that is compiled, tests, text, what replaces it
MUTANTS = (
    ("update: tail is lost", True, "update_kernel.cuh", "update_lion.cu", LION,
     "i < end; i += kUpdateThreads) {\n    StoredElement e",
     "i < vector_end; i += kUpdateThreads) {\n    StoredElement e"),
    ("update: tail has a wrong stride", False, "update_kernel.cuh", "update_lion.cu", LION,
     "i < end; i += kUpdateThreads) {\n    StoredElement e",
     "i < end; i += kUpdateThreads + 1) {\n    StoredElement e"),
    ("update: tail overlaps the vectors", False, "update_kernel.cuh", "update_lion.cu", LION,
     "int64_t i = vector_end + threadIdx.x; i < end; i += kUpdateThreads) {\n    StoredElement e",
     "int64_t i = vector_end - 1 + threadIdx.x; i < end; i += kUpdateThreads) {\n"
     "    StoredElement e"),
    ("update: second turn of a block is dropped", True, "update_kernel.cuh", "update_lion.cu", LION,
     CHUNKS.format("table.", "const Chunk chunk = table.chunks[c];\n    const TensorSlot slot = "
                   "table.slots[chunk.slot];\n    const UpdateValues"),
     "if (const uint32_t c = blockIdx.x; c < table.chunk_count) {\n    const Chunk chunk = "
     "table.chunks[c];\n    const TensorSlot slot = table.slots[chunk.slot];\n"
     "    const UpdateValues"),
    ("update: second turn of a thread is dropped", False, "update_kernel.cuh", "update_lion.cu",
     LION, "first += kUnroll * kStride", "first += kChunkElements"),
    ("update: vectors where nothing is aligned", True, "update_kernel.cuh", "update_lion.cu", LION,
     "slot.is_aligned ? begin + (end - begin) / N * N : begin;\n  StoredVector",
     "begin + (end - begin) / N * N;\n  StoredVector"),
    ("update: last vector goes past the end", False, "update_kernel.cuh", "update_lion.cu", LION,
     "begin + (end - begin) / N * N : begin;\n  StoredVector",
     "begin + (end - begin + N - 1) / N * N : begin;\n  StoredVector"),
    ("update: second vector in flight is stored over the first", False, "update_kernel.cuh",
     "update_lion.cu", LION, "updated.store(types, slot, first + u * kStride);",
     "updated.store(types, slot, first);"),
    ("update: a skipped step is done", False, "update_kernel.cuh", "update_lion.cu", LION,
     "if (control->skip != 0) return;\n  const Types types", "const Types types"),
    ("update: all tensors have the first group's scalars", False, "update_kernel.cuh",
     "update_lion.cu", LION, "scalars[slot.group]};", "scalars[0]};"),
    ("update: no copy for the model from single elements", False, "update_kernel.cuh",
     "update_lion.cu", LION, "store_one(slot.model, i, 2, e.model);", ";"),
    ("largest: tail is lost", False, "update_kernel.cuh", "update_lion.cu", LION,
     "i < end; i += kUpdateThreads) {\n      keep", "i < vector_end; i += kUpdateThreads) {\n"
     "      keep"),
    ("largest: each warp's first thread alone", False, "update_kernel.cuh", "update_lion.cu", LION,
     "__reduce_max_sync(0xFFFFFFFFU, absmax[i])", "absmax[i]"),
    ("largest: second turn of a block is dropped", False, "update_kernel.cuh", "update_lion.cu",
     LION, CHUNKS.format("table.", "const Chunk chunk = table.chunks[c];\n    const TensorSlot "
                         "slot = table.slots[chunk.slot];\n    const RuleScalars group"),
     "if (const uint32_t c = blockIdx.x; c < table.chunk_count) {\n    const Chunk chunk = "
     "table.chunks[c];\n    const TensorSlot slot = table.slots[chunk.slot];\n"
     "    const RuleScalars group"),
    ("scales: magnitudes are not forgotten", False, "multi_tensor_update.cu",
     "multi_tensor_update.cu", SCALED, "    scale.absmax_bits = 0;\n", ""),
    ("scales: second block does the first one's work", False, "multi_tensor_update.cu",
     "multi_tensor_update.cu", SCALED, "blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x"),
    ("words: second byte lands on the first", False, "packed.cuh", "update_lion.cu", LION,
     "bits << (i % 4 * 8)", "bits"),
    ("statistics: tail is lost", False, "grad_stats.cu", "grad_stats.cu", STATS,
     "for (; first < end; first += kStride)", "for (; first < vector_end; first += kStride)"),
    ("statistics: vectors in flight are taken twice", False, "grad_stats.cu", "grad_stats.cu",
     STATS, "    first += kVectorsInFlight * kStride;", "    first += kStride;"),
    ("statistics: barrier behind the warps' sums is missing", True, "stats_sums.cuh",
     "grad_stats.cu", STATS, "= stats;\n  __syncthreads();", "= stats;"),
    ("statistics: barrier before the next sums is missing", False, "stats_sums.cuh",
     "grad_stats.cu", STATS, "  __syncthreads();  // the last call's sums are read\n", ""),
    ("statistics: half a warp is not added", False, "stats_sums.cuh", "grad_stats.cu", STATS,
     "int width = 16;", "int width = 8;"),
    ("statistics: only as many chunks as a warp has lanes", False, "grad_stats.cu",
     "grad_stats.cu", STATS, "c < chunk_count; c += 32", "c < chunk_count; c += chunk_count"),
    ("statistics: tensors that do not count, count", False, "grad_stats.cu", "grad_stats.cu", STATS,
     "  if (slot.stats_index == kNoStats) return;\n", ""),
    ("control: barrier before it is read is missing", False, "step_control.cu", "step_control.cu",
     STATS, "  __syncthreads();\n  if (request.control->skip", "  if (request.control->skip"),
    ("control: tensors behind the 256th are lost", False, "step_control.cu", "step_control.cu",
     STATS, "i < request.tensor_count; i += kControlThreads",
     "i < request.tensor_count; i += request.tensor_count"),
    ("control: groups behind the 256th are lost", True, "step_control.cu", "step_control.cu", STATS,
     "i < request.group_count; i += kControlThreads",
     "i < request.group_count; i += request.group_count"),
    ("rates: second launch writes where the first did", False, "step_control.cu",
     "step_control.cu", STATS, "rates_kernel, groups + first,", "rates_kernel, groups,"),
    ("mirror: barrier behind the tile's load is missing", True, "mirror_blocks.cu",
     "mirror_blocks.cu", f"{MUON}/mirrors*",
     "    __syncthreads();\n    for (int i = threadIdx.y", "    for (int i = threadIdx.y"),
    ("mirror: barrier before the next matrix is missing", False, "mirror_blocks.cu",
     "mirror_blocks.cu", f"{MUON}/mirrors*", "    __syncthreads();  // the tile is read\n", ""),
    ("mirror: last rows of a tile are lost", False, "mirror_blocks.cu", "mirror_blocks.cu",
     f"{MUON}/mirrors*", "int64_t row = first_column + threadIdx.x, column = first_row + i;\n"
     "      if (row < r.edge && column < r.edge)",
     "int64_t row = first_column + threadIdx.x, column = first_row + i;\n"
     "      if (row < r.edge && column + 1 < r.edge)"),
    ("muon: tail is lost", False, "muon.cu", "muon.cu", MUON,
     "const int64_t last = first + kVector < work.end ? first + kVector : work.end;",
     "const int64_t last = first + kVector < work.end ? first + kVector : first;"),
    ("muon: vectors where nothing is aligned", False, "muon.cu", "muon.cu", MUON,
     "if (work.matrix.is_aligned && first", "if (first"),
    ("muon: momentum's second turn of a block is dropped", False, "muon.cu", "muon.cu", MUON,
     CHUNKS.format("r.", "const Work work = work_on(r, r.chunks[c]);\n    ElementSums"),
     "if (const uint32_t c = blockIdx.x; c < r.chunk_count) {\n"
     "    const Work work = work_on(r, r.chunks[c]);\n    ElementSums"),
    ("muon: direction's second turn of a block is dropped", False, "muon.cu", "muon.cu", MUON,
     CHUNKS.format("r.", "const Chunk chunk"),
     "if (const uint32_t c = blockIdx.x; c < r.chunk_count) {\n    const Chunk chunk"),
    ("muon: update's second turn of a block is dropped", False, "muon.cu", "muon.cu", MUON,
     CHUNKS.format("r.", "const Work work = work_on(r, r.chunks[c]);\n    for_neighbours"),
     "if (const uint32_t c = blockIdx.x; c < r.chunk_count) {\n"
     "    const Work work = work_on(r, r.chunks[c]);\n    for_neighbours"),
    ("muon: a part is stored as if it were a weight", False, "muon.cu", "muon.cu", MUON,
     "visit(Neighbours{i, place_in_weight(work.matrix, i), 1});", "visit(Neighbours{i, i, 1});"),
    ("muon: momentum is used before it is rounded", False, "muon.cu", "muon.cu", MUON,
     "        e.momentum = decode(type, encode(type, e.momentum));\n", ""),
    ("muon: norms of matrices behind the eighth are lost", False, "muon.cu", "muon.cu", MUON,
     "(blockIdx.x * kThreads + threadIdx.x) / 32", "threadIdx.x / 32"),
    ("products: a cubic step multiplies by what was there before", False, "newton_schulz.cc",
     "newton_schulz.cc", MUON, "buffers_of_update(current, step)", "current"),
    ("products: iterates do not take turns", False, "newton_schulz.cc", "newton_schulz.cc", MUON,
     "    std::swap(current.iterate, current.next);\n", ""),
    ("products: promise more alignment than offsets have", False, "newton_schulz.cc",
     "newton_schulz.cc", MUON, " | offset * bytes | 256", " | 256"),
    ("products: blocks are not mirrored", False, "newton_schulz.cc", "newton_schulz.cc", MUON,
     "|| blocks.size() == 1) return", "|| !blocks.empty()) return"),
)


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
        [options.compiler, "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-isystem",
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
