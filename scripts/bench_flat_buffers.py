"""What flat buffers of a DistributedOptimizer (dp_reshardable) cost: 10^6 segments named,
2 GB verified beside a LayerWise checkpoint of as many bytes, 2 GB taken to another form.

usage: bench_flat_buffers.py [--work DIR] [--programs DIR] [--repeat N] [--segments N] [--size SIZE]
                             [--only segments|verify|convert]

Segments: so many ranges of parameters in the buffers of masters and of both moments, each a chunk:
of experts at ETP8 EP2, whose parameters have eight ranges in each, and of a model of eight times as
many parameters on one rank. The files are sparse: nothing reads payload. "planned" is `reshard
--dry-run` to another data-parallel size, up to the first byte of payload, which is refused.
Verify: --size (as bench_checkpoint.py has it; 2g) of both layouts, read from a warm page cache, in
turn. Convert: from dp_reshardable at DP4 to fully_reshardable at TP2 DP2 and back, as
bench_sizes.py measures. Seconds are the median and minimum of --repeat runs; memory is ru_maxrss.
"""
import argparse
import io
import math
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_timing import Contestant, median, run

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden/do_adam_bf16_torch_dist_dp_reshardable_dp2/ckpt/iter_0000003"
PREFIX = "optimizer.distributed.dp_group_idx_0."
BUCKET = PREFIX + "gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0."
STATES = ("param", "exp_avg", "exp_avg_sq")
HIDDEN = 64
EXPERTS = 256
EXPERT_TENSOR_PARALLEL = 8
# Of a layer, in the order in which the model registers them; all sizes are multiples of 64, so that
# nothing lies between the parameters of a buffer.
LAYER = {
    "self_attention.linear_qkv.layer_norm_weight": (HIDDEN,),
    "self_attention.linear_qkv.layer_norm_bias": (HIDDEN,),
    "self_attention.linear_proj.weight": (HIDDEN, HIDDEN),
    "self_attention.linear_proj.bias": (HIDDEN,),
    "self_attention.linear_qkv.weight": (3 * HIDDEN, HIDDEN),
    "self_attention.linear_qkv.bias": (3 * HIDDEN,),
    "mlp.linear_fc1.layer_norm_weight": (HIDDEN,),
    "mlp.linear_fc1.layer_norm_bias": (HIDDEN,),
    "mlp.linear_fc1.weight": (HIDDEN, HIDDEN),
    "mlp.linear_fc1.bias": (HIDDEN,),
    "mlp.linear_fc2.weight": (HIDDEN, HIDDEN),
    "mlp.linear_fc2.bias": (HIDDEN,),
}
BEFORE = {"embedding.word_embeddings.weight": (HIDDEN, HIDDEN),
          "embedding.position_embeddings.weight": (HIDDEN, HIDDEN)}
BEHIND = {"decoder.final_layernorm.weight": (HIDDEN,), "decoder.final_layernorm.bias": (HIDDEN,),
          "output_layer.weight": (HIDDEN, HIDDEN)}


class Store:
    """One .distcp file and its .metadata, as PyTorch's DCP writes them."""

    def __init__(self, folder):
        from torch.distributed.checkpoint import metadata as dcp
        from torch.distributed.checkpoint.filesystem import _StorageInfo

        self.folder, self.dcp, self.place = folder, dcp, _StorageInfo
        self.entries, self.places, self.objects, self.end = {}, {}, b"", 0

    def add_object(self, key, value):
        import torch

        stored = io.BytesIO()
        torch.save([value], stored)
        index = self.dcp.MetadataIndex(key)
        self.entries[key] = self.dcp.BytesStorageMetadata()
        self.places[index] = self.place("__0_0.distcp", self.end, len(stored.getvalue()))
        self.objects += stored.getvalue()
        self.end += len(stored.getvalue())

    def add_tensor(self, key, dtype, shape, boxes):
        import torch

        size_of = {box: torch.Size(box[1]) for box in boxes}
        chunks = []
        for box in boxes:
            offsets = torch.Size(box[0])
            chunks.append(self.dcp.ChunkStorageMetadata(offsets, size_of[box]))
            length = 1500 + math.prod(box[1]) * dtype.itemsize
            index = self.dcp.MetadataIndex(key, offsets, None)
            self.places[index] = self.place("__0_0.distcp", self.end, length)
            self.end += length
        self.entries[key] = self.dcp.TensorStorageMetadata(
            self.dcp.TensorProperties(dtype), torch.Size(shape), chunks)

    def write(self):
        with open(self.folder / ".metadata", "wb") as file:
            pickle.dump(self.dcp.Metadata(self.entries, {}, self.places, self.dcp.StorageMeta()),
                        file)
        with open(self.folder / "__0_0.distcp", "wb") as file:
            file.write(self.objects)
            file.truncate(self.end)


def begin_iteration(root, golden):
    """The iteration's folder, and the common state of a golden one to be changed."""
    import torch

    folder = root / GOLDEN.name
    folder.mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text("3")
    shutil.copyfile(golden / "metadata.json", folder / "metadata.json")
    return folder, torch.load(golden / "common.pt", weights_only=False)


def write_segments(root, segments):
    """In a process of its own: Python keeps what it has allocated."""
    import torch

    layers = (segments // 3 - len(BEFORE) - len(BEHIND)) // len(LAYER)
    folder, common = begin_iteration(root, GOLDEN)
    vars(common["args"]).update(
        num_layers=layers, encoder_num_layers=layers, hidden_size=HIDDEN, ffn_hidden_size=HIDDEN,
        kv_channels=HIDDEN // 2, padded_vocab_size=HIDDEN, vocab_size=HIDDEN,
        max_position_embeddings=HIDDEN, data_parallel_size=1, world_size=1)
    torch.save(common, folder / "common.pt")

    store = Store(folder)
    sizes = [math.prod(shape) for shape in BEFORE.values()]
    sizes += [math.prod(shape) for shape in LAYER.values()] * layers
    sizes += [math.prod(shape) for shape in BEHIND.values()]
    sizes.reverse()  # as buffers have them
    unpadded = sum(sizes)
    add_settings(store, unpadded)
    for name, shape in {**BEFORE, **BEHIND}.items():
        store.add_tensor(name, torch.bfloat16, shape, [((0,) * len(shape), shape)])
    for name, shape in LAYER.items():
        boxes = [((layer,) + (0,) * len(shape), (1, *shape)) for layer in range(layers)]
        store.add_tensor(f"decoder.layers.{name}", torch.bfloat16, (layers, *shape), boxes)
    boxes, begin = [], 0
    for size in sizes:
        boxes.append(((begin,), (size,)))
        begin += size
    for state in STATES:
        store.add_tensor(BUCKET + state, torch.float32, (unpadded,), boxes)
    store.write()
    print(f"{3 * len(sizes):,} segments of {len(sizes):,} parameters")


def add_settings(store, unpadded):
    import torch

    sys.path.insert(0, str(ROOT / "tests/interop"))
    from reading import DcpFolder

    golden = DcpFolder(GOLDEN)
    [groups] = golden.object(PREFIX + "optimizer/shard_0_1")
    store.add_object(PREFIX + "optimizer/shard_0_1", groups)
    padded = -(-unpadded // 128) * 128
    dtypes = (torch.bfloat16, torch.float32)
    store.add_object(PREFIX + "per_bucket_numel/shard_0_1", [{dtypes: [padded]}])
    store.add_object(PREFIX + "per_bucket_numel_unpadded/shard_0_1", [{dtypes: [unpadded]}])


def write_experts(root, segments, programs):
    """By our own reshard, of a small fully_reshardable model, so that Megatron's layout of buffers
    is not here once more; all of its payload is then left out."""
    layers = segments // (len(STATES) * EXPERT_TENSOR_PARALLEL * EXPERTS * 2)
    whole, split = root.with_name("whole"), root.with_name("split")
    write_whole_experts(whole, layers)
    sizes = ["--tp", "1", "--ep", "2", "--etp", str(EXPERT_TENSOR_PARALLEL), "--dp", "16"]
    subprocess.run([programs / "reshard", whole, split, *sizes,
                    "--optimizer-sharding", "dp_reshardable"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    write_sparse(split, root)
    shutil.rmtree(whole)
    shutil.rmtree(split)


def write_whole_experts(root, layers):
    import torch
    from torch.distributed import checkpoint as dcp

    sys.path.insert(0, str(ROOT / "tests/interop"))
    from reading import DcpFolder

    golden = GOLDEN.parents[2] / "do_adam_bf16_torch_dist_fully_reshardable_dp2/ckpt" / GOLDEN.name
    folder, common = begin_iteration(root, golden)
    hidden, ffn, rows = 8, 64, 64
    vars(common["args"]).update(
        num_layers=layers, encoder_num_layers=layers, hidden_size=hidden, ffn_hidden_size=ffn,
        kv_channels=hidden // 2, padded_vocab_size=rows, vocab_size=rows,
        max_position_embeddings=rows, num_experts=EXPERTS, moe_ffn_hidden_size=ffn,
        moe_layer_freq=1, expert_tensor_parallel_size=1, data_parallel_size=1, world_size=1)
    torch.save(common, folder / "common.pt")
    shapes = {"embedding.word_embeddings.weight": (rows, hidden),
              "embedding.position_embeddings.weight": (rows, hidden)}
    for name, shape in LAYER.items():
        if not name.startswith(("mlp.linear_fc1.weight", "mlp.linear_fc1.bias", "mlp.linear_fc2")):
            shape = tuple(size // HIDDEN * hidden for size in shape)
            shapes[f"decoder.layers.{name}"] = (layers, *shape)
    mlp = "decoder.layers.mlp."
    shapes |= {f"{mlp}router.weight": (layers, EXPERTS, hidden),
               f"{mlp}experts.experts.linear_fc1.weight": (layers, EXPERTS, ffn, hidden),
               f"{mlp}experts.experts.linear_fc2.weight": (layers, EXPERTS, hidden, ffn),
               "decoder.final_layernorm.weight": (hidden,),
               "decoder.final_layernorm.bias": (hidden,), "output_layer.weight": (rows, hidden)}
    stored = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        for state in STATES:
            stored[f"optimizer.state.{state}.{name}"] = torch.zeros(shape)
    rng = "rng_state/shard_0.0_1.1"
    stored[rng] = DcpFolder(golden).object(rng)
    dcp.save(stored, storage_writer=dcp.FileSystemWriter(folder, thread_count=1), no_dist=True,
             planner=dcp.DefaultSavePlanner(flatten_state_dict=False))


def write_sparse(source, root):
    """What a plan reads of a checkpoint: all but the bytes of tensors."""
    folder, own = root / GOLDEN.name, source / GOLDEN.name
    folder.mkdir(parents=True)
    shutil.copy(source / "latest_checkpointed_iteration.txt", root)
    for path in own.iterdir():
        if path.suffix != ".distcp":
            shutil.copy(path, folder)
            continue
        with open(folder / path.name, "wb") as file:
            file.truncate(path.stat().st_size)
    metadata = pickle.loads((own / ".metadata").read_bytes())
    ranges = 0
    for index, place in metadata.storage_data.items():
        if hasattr(metadata.state_dict_metadata[index.fqn], "chunks"):
            ranges += ".gbuf_idx_" in index.fqn
            continue
        with open(own / place.relative_path, "rb") as file:
            file.seek(place.offset)
            content = file.read(place.length)
        with open(folder / place.relative_path, "r+b") as file:
            file.seek(place.offset)
            file.write(content)
    print(f"{ranges:,} segments of experts at ETP{EXPERT_TENSOR_PARALLEL}")


def cells(results):
    return (f"{median(results):.2f} s | {min(result['seconds'] for result in results):.2f} s | "
            f"{max(result['peak_bytes'] for result in results) / 1e6:.0f} MB")


def measure_segments(options, work):
    root, inspect = work / "segments", options.programs / "ckpt-inspect"
    for model, data_parallel in (("experts", 32), ("segments", 4)):
        subprocess.run([sys.executable, __file__, f"--generate-{model}", str(root),
                        str(options.segments), "--programs", str(options.programs)], check=True)
        plan = [options.programs / "reshard", root, work / "none", "--dp", str(data_parallel),
                "--dry-run"]
        contestants = [Contestant("planned", ["sh", "-c", '"$@"; test $? = 3', "plan", *plan]),
                       Contestant("summary", [inspect, root, "--json"]),
                       Contestant("ls", [inspect, "ls", root, "--json"]),
                       Contestant("groups", [inspect, "groups", root, "--json"])]
        print("\ncommand | median | minimum | peak memory\n--- | --- | --- | ---")
        for contestant in contestants:
            print(f"{contestant.name} | {cells([run(contestant) for _ in range(options.repeat)])}",
                  flush=True)
        shutil.rmtree(root)


def write_flat(folder, size):
    """About as many bytes as bench_checkpoint.py writes of LayerWise, and the same model."""
    from bench_checkpoint import SIZES, megatron_case
    from golden import zero1

    case = zero1.PrecisionCase("flat", "for scripts/bench", store_param_remainders=False,
                               dp_sizes=(2,), shape=megatron_case(SIZES[size]).shape,
                               use_precision_aware_optimizer=False)
    zero1.write_all([case], folder, ("dp_reshardable",))


def write_layer_wise(folder, size):
    from bench_checkpoint import SIZES, write_megatron

    write_megatron(SIZES[size], folder)


def measure_verify(options, work):
    for kind in ("flat", "layer_wise"):
        subprocess.run([sys.executable, __file__, f"--generate-{kind.replace('_', '-')}",
                        str(work), options.size], check=True)
    roots = {"dp_reshardable": work / "flat_dp_reshardable_dp2/ckpt",
             "LayerWise": work / "lw_torch_dist_dp2"}
    bytes_of = {name: sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
                for name, root in roots.items()}
    inspect = options.programs / "ckpt-inspect"
    contestants = [Contestant(name, [inspect, "verify", root, "--json"])
                   for name, root in roots.items()]
    for root in roots.values():  # verify drops from the page cache what it brought there
        for path in root.rglob("*.distcp"):
            with open(path, "rb") as file:
                while file.read(1 << 20):
                    pass
    rounds = [[run(contestant) for contestant in contestants] for _ in range(options.repeat)]
    print("\nverify | bytes | median | minimum | peak memory\n--- | --- | --- | --- | ---")
    for contestant, results in zip(contestants, zip(*rounds)):
        print(f"{contestant.name} | {bytes_of[contestant.name] / 1e9:.2f} GB | {cells(results)}")
    rates = [[bytes_of[contestant.name] / result["seconds"]
              for contestant, result in zip(contestants, one)] for one in rounds]
    ratios = sorted(flat / layer_wise for flat, layer_wise in rates)
    print(f"\nbytes per second, dp_reshardable / LayerWise: {ratios[len(ratios) // 2]:.2f} "
          f"({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def measure_convert(options, work):
    import bench_sizes

    options.results = work / "results.jsonl"
    subprocess.run([sys.executable, __file__, "--generate-flat", str(work), options.size],
                   check=True)
    written = work / "flat_dp_reshardable_dp2/ckpt"
    names = ["--tp", "2", "--dp", "2", "--optimizer-sharding", "fully_reshardable"]
    buckets = ["--tp", "1", "--dp", "4", "--optimizer-sharding", "dp_reshardable"]
    sources = {}
    for name, words in (("dp_reshardable DP4", buckets), ("fully_reshardable TP2 DP2", names)):
        sources[name] = work / name.replace(" ", "_")
        subprocess.run(bench_sizes.reshard(options, written, sources[name], words), check=True)
    print(bench_sizes.HEAD)
    for (before, source), words, after in zip(sources.items(), (names, buckets),
                                              reversed(sources)):
        bench_sizes.contest(options, f"{before} to {after}", source, words, work)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--programs", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--size", default="2g")
    parser.add_argument("--only", choices=("segments", "verify", "convert"))
    parser.add_argument("--settle", type=float, default=1)
    parser.add_argument("--touch", type=int, default=0, help=argparse.SUPPRESS)
    for kind in ("segments", "experts", "flat", "layer-wise"):
        parser.add_argument(f"--generate-{kind}", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate_segments:
        write_segments(Path(options.generate_segments[0]), int(options.generate_segments[1]))
    elif options.generate_experts:
        write_experts(Path(options.generate_experts[0]), int(options.generate_experts[1]),
                      options.programs)
    elif options.generate_flat:
        write_flat(Path(options.generate_flat[0]), options.generate_flat[1])
    elif options.generate_layer_wise:
        write_layer_wise(Path(options.generate_layer_wise[0]), options.generate_layer_wise[1])
    else:
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            for name, measure in (("segments", measure_segments), ("verify", measure_verify),
                                  ("convert", measure_convert)):
                if options.only in (None, name):
                    measure(options, Path(work))


if __name__ == "__main__":
    main()
