"""What planning a reshard of a very large model costs: metadata, placement, plan, no payload.

usage: bench_planning.py [--work DIR] [--programs DIR] [--repeat N] [--finer N ...] [--keep]

The model has the shapes of DeepSeek-V3: 671 B parameters, 61 layers of which 3 are dense, MLA, 256
experts and a shared one. It is a LayerWise torch_dist checkpoint of core 0.18-dev, as 8192 ranks
write it at TP8 PP16 EP64 ETP1 DP64: keys of layers that are not stacked, chunks per tensor-parallel
rank and expert, masters and moments, an object per module and expert. `reshard --dry-run` plans it
for TP4 PP8 EP32 ETP1 DP64; both have uneven stages by a layout string. --finer N cuts each expert
into N finer ones of the same size together, so that there are about N times as many chunks.

The .distcp files are sparse but for their objects, whose bytes a plan reads (random states and
what modules keep beside their parameters). Prints seconds, processor time and the peak of resident
memory (ru_maxrss). Needs 5 KB of disk for each expert of each layer and, to generate, 1.2 KB of
memory for each chunk.
"""
import argparse
import copy
import io
import pickle
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench_timing import Contestant, median, run

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "tests/golden/lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003"

LAYERS, DENSE_LAYERS, EXPERTS = 61, 3, 256
HIDDEN, FFN, EXPERT_FFN, VOCABULARY = 7168, 18432, 2048, 129280
HEADS, Q_LORA, KV_LORA = 128, 1536, 512
TP, PP, EP, DP = 8, 16, 64, 64
LAYERS_OF_STAGES = [3] + [4] * 14 + [2]
SOURCE_LAYOUT, TARGET_LAYOUT = "Et*3|(t*4|)*14ttL", "Et*7|(t*8|)*6t*6L"
TARGET = ["--tp", "4", "--pp", "8", "--ep", "32", "--etp", "1", "--dp", "64",
          "--pipeline-layout", TARGET_LAYOUT]
ENTRY_BYTES_BESIDE = 1245  # of a torch.save archive, about


@dataclass
class Param:
    key: str  # in torch_dist
    shape: tuple
    split: str = "whole"  # or "rows", "columns", "gated", over the tensor-parallel ranks
    stage: int = 0
    expert_count: int = 0  # of stacked experts: the leading axis
    is_of_muon: bool = False
    is_buffer: bool = False

    def boxes(self, index):
        """[(offsets, sizes)] of a tensor-parallel rank, or of an expert."""
        if self.expert_count:
            rows = self.shape[0] // (2 if self.split == "gated" else 1)
            return [((index, begin, 0), (1, rows, self.shape[1]))
                    for begin in range(0, self.shape[0], rows)]
        zeros = (0,) * len(self.shape)
        if self.split == "whole":
            return [(zeros, self.shape)] if index == 0 else []
        if self.split == "columns":
            columns = self.shape[1] // TP
            return [((0, index * columns), (self.shape[0], columns))]
        sections = 2 if self.split == "gated" else 1
        rows = self.shape[0] // sections // TP
        return [((begin + index * rows,) + zeros[1:], (rows,) + self.shape[1:])
                for begin in range(0, self.shape[0], self.shape[0] // sections)]

    def global_shape(self):
        return (self.expert_count, *self.shape) if self.expert_count else self.shape


def stage_of(layer):
    for stage, count in enumerate(LAYERS_OF_STAGES):
        if layer < count:
            return stage
        layer -= count


def attention(layer):
    own = layer + "self_attention."
    return [
        Param(layer + "input_layernorm.weight", (HIDDEN,)),
        Param(own + "linear_proj.weight", (HIDDEN, HEADS * 128), "columns"),
        Param(own + "linear_q_down_proj.weight", (Q_LORA, HIDDEN)),
        Param(own + "linear_q_up_proj.layer_norm_weight", (Q_LORA,)),
        Param(own + "linear_q_up_proj.weight", (HEADS * 192, Q_LORA), "rows"),
        Param(own + "linear_kv_down_proj.weight", (KV_LORA + 64, HIDDEN)),
        Param(own + "linear_kv_up_proj.layer_norm_weight", (KV_LORA,)),
        Param(own + "linear_kv_up_proj.weight", (HEADS * 256, KV_LORA), "rows"),
    ]


def dense_mlp(layer):
    own = layer + "mlp."
    return [
        Param(own + "linear_fc1.layer_norm_weight", (HIDDEN,)),
        Param(own + "linear_fc1.weight", (2 * FFN, HIDDEN), "gated"),
        Param(own + "linear_fc2.weight", (HIDDEN, FFN), "columns"),
    ]


def moe(layer, finer):
    own, experts, ffn = layer + "mlp.", EXPERTS * finer, EXPERT_FFN // finer
    return [
        Param(layer + "pre_mlp_layernorm.weight", (HIDDEN,)),
        Param(own + "router.weight", (experts, HIDDEN)),
        Param(own + "router.expert_bias", (experts,), is_buffer=True),
        Param(own + "experts.experts.linear_fc1.weight", (2 * ffn, HIDDEN), "gated",
              expert_count=experts),
        Param(own + "experts.experts.linear_fc2.weight", (HIDDEN, ffn), expert_count=experts),
        Param(own + "shared_experts.linear_fc1.weight", (2 * EXPERT_FFN, HIDDEN), "gated"),
        Param(own + "shared_experts.linear_fc2.weight", (HIDDEN, EXPERT_FFN), "columns"),
    ]


def params_of_model(finer):
    params = [Param("embedding.word_embeddings.weight", (VOCABULARY, HIDDEN), "rows")]
    for number in range(LAYERS):
        layer = f"decoder.layers.{number}."
        own = attention(layer)
        own += dense_mlp(layer) if number < DENSE_LAYERS else moe(layer, finer)
        for param in own:
            param.stage = stage_of(number)
            param.is_of_muon = len(param.shape) == 2
        params += own
    last = {"stage": PP - 1}
    params.append(Param("decoder.final_layernorm.weight", (HIDDEN,), **last))
    params.append(Param("output_layer.weight", (VOCABULARY, HIDDEN), "rows", **last))
    return params


@dataclass
class Store:
    """What .metadata says, and how long the files are."""
    entries: dict = field(default_factory=dict)
    places: dict = field(default_factory=dict)
    lengths: dict = field(default_factory=dict)  # of files, by rank
    contents: list = field(default_factory=list)  # (rank, offset, bytes) of objects
    turn: int = 0

    def holder(self, stage, part, is_expert):
        """One of the data-parallel ranks that have it, each in its turn."""
        self.turn += 1
        first = stage * TP * DP + part
        return (first + EP * (self.turn % (TP * DP // EP)) if is_expert
                else first + TP * (self.turn % DP))

    def claim(self, rank, length):
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        offset = self.lengths.get(rank, 0)
        self.lengths[rank] = offset + length
        return offset, _StorageInfo(f"__{rank}_0.distcp", offset, length)

    def add_tensor(self, prefix, param, dtype):
        import torch
        from torch.distributed.checkpoint import metadata as dcp
        key, chunks = prefix + param.key, []
        parts = param.expert_count or TP
        for index in range(parts):
            for offsets, sizes in param.boxes(index):
                box = torch.Size(offsets), torch.Size(sizes)
                part = index // (parts // EP) if param.expert_count else index
                rank = self.holder(param.stage, part, param.expert_count > 0)
                length = box[1].numel() * dtype.itemsize + ENTRY_BYTES_BESIDE
                chunks.append(dcp.ChunkStorageMetadata(*box))
                self.places[dcp.MetadataIndex(key, box[0], None)] = self.claim(rank, length)[1]
        self.entries[key] = dcp.TensorStorageMetadata(
            dcp.TensorProperties(dtype), torch.Size(param.global_shape()), chunks)

    def add_object(self, key, rank, content):
        from torch.distributed.checkpoint import metadata as dcp
        offset, place = self.claim(rank, len(content))
        self.entries[key] = dcp.BytesStorageMetadata()
        self.places[dcp.MetadataIndex(key)] = place
        self.contents.append((rank, offset, content))

    def write(self, folder):
        from torch.distributed.checkpoint import metadata as dcp
        with open(folder / ".metadata", "wb") as file:
            pickle.dump(dcp.Metadata(self.entries, None, self.places, dcp.StorageMeta()), file)
        by_rank = {}
        for rank, offset, content in self.contents:
            by_rank.setdefault(rank, []).append((offset, content))
        for rank, length in self.lengths.items():
            with open(folder / f"__{rank}_0.distcp", "wb") as file:
                file.truncate(length)
                for offset, content in by_rank.get(rank, []):
                    file.seek(offset)
                    file.write(content)


def add_objects(params, store):
    """Before the tensors, as Megatron's ranks write them: what each module keeps, all None; and
    random states, all the sample's."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    archive = io.BytesIO()
    torch.save([None], archive)
    for param in params:
        module, _, name = param.key.rpartition(".")
        if not name == "weight" or ".linear_" not in param.key:
            continue
        count = param.expert_count or 1
        for index in range(count):
            part = index // (count // EP) if param.expert_count else 0
            rank = store.holder(param.stage, part, param.expert_count > 0)
            store.add_object(f"{module}._extra_state/shard_{index}_{count}", rank,
                             archive.getvalue())
    places = FileSystemReader(SAMPLE).read_metadata().storage_data
    place = next(place for index, place in places.items() if index.fqn.startswith("rng_state/"))
    with open(SAMPLE / place.relative_path, "rb") as file:
        file.seek(place.offset)
        content = file.read(place.length)
    for pp in range(PP):
        for tp in range(TP):
            store.add_object(f"rng_state/shard_{pp}.{tp}_{PP}.{TP}", pp * TP * DP + tp, content)


def write_common(folder, finer):
    """The sample's, of this model and these sizes, with a group of Muon for the experts."""
    import megatron.core.transformer.enums  # noqa: F401  classes that args have
    import torch
    common = torch.load(SAMPLE / "common.pt", weights_only=False)
    vars(common["args"]).update(
        num_layers=LAYERS, hidden_size=HIDDEN, ffn_hidden_size=FFN, num_attention_heads=HEADS,
        num_query_groups=HEADS, multi_latent_attention=True, q_lora_rank=Q_LORA,
        kv_lora_rank=KV_LORA, num_experts=EXPERTS * finer, moe_ffn_hidden_size=EXPERT_FFN // finer,
        moe_layer_freq=[0] * DENSE_LAYERS + [1] * (LAYERS - DENSE_LAYERS), moe_grouped_gemm=True,
        moe_shared_expert_intermediate_size=EXPERT_FFN, moe_router_enable_expert_bias=True,
        add_bias_linear=False, add_qkv_bias=False, swiglu=True, normalization="RMSNorm",
        position_embedding_type="rope", transformer_impl="transformer_engine",
        untie_embeddings_and_output_weights=True, vocab_size=VOCABULARY,
        padded_vocab_size=VOCABULARY, make_vocab_size_divisible_by=3232, sequence_parallel=True,
        tensor_model_parallel_size=TP, pipeline_model_parallel_size=PP,
        pipeline_model_parallel_layout=SOURCE_LAYOUT, expert_model_parallel_size=EP,
        expert_tensor_parallel_size=1, data_parallel_size=DP, world_size=TP * PP * DP,
        inprocess_active_world_size=TP * PP * DP)
    muon = common["optimizer"][0]["optimizer"]["param_groups"]
    muon.append({**copy.deepcopy(muon[0]), "is_expert_parallel": True})
    torch.save(common, folder / "common.pt")
    shutil.copy(SAMPLE / "metadata.json", folder)


def generate(root, finer):
    import torch
    folder = root / "iter_0000003"
    folder.mkdir(parents=True)
    params, store = params_of_model(finer), Store()
    add_objects(params, store)
    for param in params:
        store.add_tensor("", param, torch.float32 if param.is_buffer else torch.bfloat16)
        if param.is_buffer:
            continue
        states = ["momentum_buffer"] if param.is_of_muon else ["exp_avg", "exp_avg_sq"]
        for state in [*states, "fp32_param"]:
            store.add_tensor(f"optimizer.state.{state}.", param, torch.float32)
    write_common(folder, finer)
    store.write(folder)
    (root / "latest_checkpointed_iteration.txt").write_text("3")
    chunks = sum(len(getattr(entry, "chunks", ())) for entry in store.entries.values())
    objects = sum(not hasattr(entry, "chunks") for entry in store.entries.values())
    (root.parent / f"{root.name}.txt").write_text(f"{chunks} {objects}")


def plan(options, finer, work):
    root = work / f"finer_{finer}"
    if not root.exists():  # in a process of its own: Python keeps what it has allocated
        subprocess.run([sys.executable, __file__, "--generate", str(root), str(finer)], check=True)
    chunks, objects = map(int, (work / f"{root.name}.txt").read_text().split())
    contestant = Contestant("plan", [options.programs / "reshard", root, work / "none", *TARGET,
                                     "--dry-run", "--json"])
    results = [run(contestant) for _ in range(options.repeat)]
    seconds = [result["seconds"] for result in results]
    print(f"| {chunks:,} | {objects:,} | {median(results):.2f} s ({min(seconds):.2f} to "
          f"{max(seconds):.2f}) | {median(results, 'user_seconds'):.2f} + "
          f"{median(results, 'system_seconds'):.2f} s | "
          f"{max(result['peak_bytes'] for result in results) / 1e6:.0f} MB |", flush=True)
    if not options.keep:
        shutil.rmtree(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--programs", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--finer", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--keep", action="store_true", help="and use what an earlier run kept")
    parser.add_argument("--generate", nargs=2, metavar=("DIR", "FINER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        generate(Path(options.generate[0]), int(options.generate[1]))
        return
    print("| chunks | objects | plan | processor time | peak memory |\n|---|---|---|---|---|")
    if options.keep:
        options.work.mkdir(parents=True, exist_ok=True)
        for finer in options.finer:
            plan(options, finer, options.work)
        return
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        for finer in options.finer:
            plan(options, finer, Path(work))


if __name__ == "__main__":
    main()
