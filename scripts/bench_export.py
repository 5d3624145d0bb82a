"""How fast ckpt-convert --to huggingface is beside a raw durable copy of the same bytes.

usage: bench_export.py FOLDER SHAPE LAYERS [--stages N] [--rounds N] [--warm] [--dtype TYPE]
                       [--back] [--bin BIN]

SHAPE: llama (hidden 4096) or gpt_oss (as gpt-oss-20b, whose experts are transposed). Makes a model
of random bfloat16 in FOLDER/source, one file for each of N stages; then, in turn, copies it with
bench_raw_copy.py and exports it. Prints the seconds and the ratio of each round, and the program's
resident memory. Without --warm the page cache forgets the source before each. --back: of the way
back, from what is exported first to torch_dist.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests/interop"))
from huggingface_sets import DENSE, SINKS  # noqa: E402

SHAPES = {
    "llama": dict(DENSE, hidden_size=4096, num_attention_heads=32, num_query_groups=8,
                  kv_channels=128, ffn_hidden_size=14336, vocab_size=32000,
                  padded_vocab_size=32000),
    "gpt_oss": dict(SINKS, hidden_size=2880, num_attention_heads=64, num_query_groups=8,
                    kv_channels=64, ffn_hidden_size=2880, moe_ffn_hidden_size=2880,
                    num_experts=32, moe_router_topk=4, vocab_size=201088,
                    padded_vocab_size=201088, window_size=(127, 0)),
}  # fmt: skip


def layer(shape, number):
    args = Namespace(**SHAPES[shape])
    hidden, head = args.hidden_size, args.kv_channels
    heads, qkv = args.num_attention_heads, args.num_attention_heads + 2 * args.num_query_groups
    front = f"decoder.layers.{number}."
    sizes = {"self_attention.linear_proj.weight": (hidden, heads * head)}
    if args.add_bias_linear:
        sizes["self_attention.linear_proj.bias"] = (hidden,)
    sizes["self_attention.linear_qkv.layer_norm_weight"] = (hidden,)
    sizes["self_attention.linear_qkv.weight"] = (qkv * head, hidden)
    if shape == "llama":
        sizes["mlp.linear_fc1.layer_norm_weight"] = (hidden,)
        sizes["mlp.linear_fc1.weight"] = (2 * args.ffn_hidden_size, hidden)
        sizes["mlp.linear_fc2.weight"] = (hidden, args.ffn_hidden_size)
        return {front + name: size for name, size in sizes.items()}
    sizes["self_attention.linear_qkv.bias"] = (qkv * head,)
    sizes["self_attention.core_attention.softmax_offset"] = (heads,)
    sizes["pre_mlp_layernorm.weight"] = (hidden,)
    sizes["mlp.router.weight"] = (args.num_experts, hidden)
    sizes["mlp.router.bias"] = (args.num_experts,)
    for linear, rows, columns in (("fc1", 2 * args.moe_ffn_hidden_size, hidden),
                                  ("fc2", hidden, args.moe_ffn_hidden_size)):
        for expert in range(args.num_experts):
            sizes[f"mlp.experts.linear_{linear}.weight{expert}"] = (rows, columns)
        for expert in range(args.num_experts):
            sizes[f"mlp.experts.linear_{linear}.bias{expert}"] = (rows,)
    return {front + name: size for name, size in sizes.items()}


def make(folder, shape, layers, stages):
    args = dict(SHAPES[shape], num_layers=layers)
    sizes = dict.fromkeys(("tensor_model_parallel_size", "context_parallel_size",
                           "expert_model_parallel_size", "data_parallel_size"), 1)
    stated = Namespace(**sizes, pipeline_model_parallel_size=stages, world_size=stages,
                       virtual_pipeline_model_parallel_size=None, iteration=1,
                       transformer_impl="transformer_engine", ckpt_format="torch",
                       params_dtype=torch.bfloat16, bf16=True, seq_length=32,
                       consumed_train_samples=0, moe_grouped_gemm=shape == "gpt_oss", **args)
    vocabulary = (args["vocab_size"], args["hidden_size"])
    each = layers // stages
    for stage in range(stages):
        named = {"embedding.word_embeddings.weight": vocabulary} if stage == 0 else {}
        for number in range(each):
            named.update(layer(shape, number))
        if stage == stages - 1:
            named["decoder.final_layernorm.weight"] = vocabulary[1:]
            named["output_layer.weight"] = vocabulary
        model = {name: torch.empty(size, dtype=torch.int16).random_(0x3800, 0x3F80)
                 .view(torch.bfloat16) for name, size in named.items()}
        place = "mp_rank_00" if stages == 1 else f"mp_rank_00_{stage:03d}"
        (folder / "iter_0000001" / place).mkdir(parents=True)
        torch.save({"args": stated, "checkpoint_version": 3.0, "iteration": 1, "model": model},
                   folder / "iter_0000001" / place / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("1")


def files_of(source):
    return [file for file in source.rglob("*") if file.suffix in (".pt", ".safetensors")]


def prepare(source, warm):
    os.sync()
    for file in files_of(source):
        with file.open("rb") as opened:
            if warm:
                while opened.read(16 << 20):
                    pass
            else:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# In a process of its own: a child's memory counts from that of who starts it.
TIMED = """
import os, sys, time
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - began, usage.ru_maxrss / 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def timed(command):
    ran = subprocess.run([sys.executable, "-S", "-c", TIMED, *map(str, command)], check=True,
                         stdout=subprocess.PIPE, text=True)  # fmt: skip
    *out, figures = ran.stdout.splitlines()
    seconds, mebibytes = map(float, figures.split())
    return seconds, mebibytes, "".join(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("layers", type=int)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--dtype")
    parser.add_argument("--back", action="store_true")
    parser.add_argument("--bin", type=Path, default=REPOSITORY / "build/bin")
    options = parser.parse_args()
    source, target = options.folder / "source", options.folder / "target"
    if not source.exists():
        make(source, options.shape, options.layers, options.stages)
    container = "huggingface"
    if options.back:
        trained, source = source, options.folder / "source_hf"
        if not source.exists():
            subprocess.run([options.bin / "ckpt-convert", trained, source, "--to", container, "-q"],
                           check=True)  # fmt: skip
        container = "torch_dist"
    size = sum(file.stat().st_size for file in files_of(source))
    export = [options.bin / "ckpt-convert", source, target, "--to", container, "-q"]
    export += ["--dtype", options.dtype] if options.dtype else []
    copy = [sys.executable, REPOSITORY / "scripts/bench_raw_copy.py", source, target]
    rounds = []
    for _ in range(options.rounds):
        found = {}
        for name, command in (("copy", copy), ("export", export)):
            prepare(source, options.warm)
            seconds, mebibytes, out = timed(command)
            found[name] = float(out) if name == "copy" else seconds
            shutil.rmtree(target)
        found["ratio"] = found["copy"] / found["export"]
        found["MiB"] = mebibytes
        rounds.append(found)
        print({name: round(value, 3) for name, value in found.items()}, flush=True)
    spread = {name: [round(pick(each[name] for each in rounds), 3) for pick in (min, max)]
              for name in rounds[0]}
    print(json.dumps({"bytes": size, "warm": options.warm, **spread}))


if __name__ == "__main__":
    main()
