"""Every command of the programs, in a folder with the golden checkpoints under fitting names."""
import os
import pathlib
import shutil

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"

INSPECT = [
    (["ckpt-inspect", "ckpt"], 0),
    (["ckpt-inspect", "torch"], 0),
    (["ckpt-inspect", "model.pt"], 0),
    (["ckpt-inspect", "-v", "ckpt"], 0),
    (["ckpt-inspect", "ls", "ckpt"], 0),
    (["ckpt-inspect", "ls", "torch", "--sort", "size", "--limit", "5"], 0),
    (["ckpt-inspect", "show", "ckpt", "embedding.word_embeddings.weight"], 0),
    (["ckpt-inspect", "show", "ckpt", "common.pt:/args", "-v"], 0),
    (["ckpt-inspect", "show", "ckpt", "output_layer.weight[:3]", "--values", "40"], 0),
    (["ckpt-inspect", "show", "ckpt", "--stats"], 0),
    (["ckpt-inspect", "show", "ckpt", "--histogram", "*exp_avg.output_layer.weight"], 0),
    (["ckpt-inspect", "tree", "ckpt"], 0),
    (["ckpt-inspect", "tree", "torch"], 0),
    (["ckpt-inspect", "tree", "ckpt", "--sort", "size"], 0),
    (["ckpt-inspect", "verify", "ckpt"], 0),
    (["ckpt-inspect", "verify", "torch"], 0),
    (["ckpt-inspect", "hash", "ckpt"], 0),
    (["ckpt-inspect", "diff", "ckpt", "torch"], 0),
    (["ckpt-inspect", "diff", "ckpt", "other"], 1),
    (["ckpt-inspect", "diff", "ckpt", "other", "--top", "3", "--common"], 1),
    (["ckpt-inspect", "groups", "ckpt"], 0),
    (["ckpt-inspect", "groups", "torch"], 0),
    (["ckpt-inspect", "latest", "ckpt"], 0),
    (["ckpt-inspect", "lineage", "ckpt"], 0),
]
WRITE = [
    (["ckpt-convert", "ckpt", "out", "--to", "torch", "--verify", "-v"], 0),
    (["ckpt-convert", "ckpt", "out", "--to", "safetensors"], 0),
    (["ckpt-convert", "ckpt", "out", "--to", "safetensors", "--exclude", "optimizer.*"], 0),
    (["ckpt-convert", "model.pt", "out", "--to", "torch_dist", "--dry-run"], 0),
    (["reshard", "ckpt", "out", "--dp", "4", "--ownership", "balanced"], 0),
    (["reshard", "ckpt", "out", "--dp", "8", "--dry-run"], 0),
]
FAIL = [
    (["ckpt-inspect", "verfy", "ckpt"], 5),
    (["ckpt-inspect", "no-such-checkpoint-has-this-name"], 5),
    (["ckpt-inspect", "ls", "ckpt", "--sort", "siez"], 2),
    (["ckpt-inspect", "show", "ckpt", "embedding"], 5),
    (["ckpt-convert", "ckpt", "out", "--to", "torch", "--dp", "0"], 2),
    (["reshard", "ckpt", "out", "--dpp", "4"], 2),
]
REPLAY = [
    (["step-replay", "check", "traces/adamw_decoupled_b2_0.999.json",
      "traces/muon_split_qkv_nesterov.json"], 0),
    (["step-replay", "run", "torch", "--grads", "expected", "--from-init", "--expect", "torch",
      "-o", "out"], 0),
]


def programs(bin_folder):
    """Those that were built: step-replay needs LibTorch."""
    names = ("ckpt-inspect", "ckpt-convert", "reshard", "step-replay")
    return [name for name in names if (bin_folder / name).exists()]


def helps(bin_folder):
    """The command line of every --help."""
    subcommands = {
        "ckpt-inspect": "ls show tree verify hash diff groups latest lineage".split(),
        "ckpt-convert": ["names check"],
        "step-replay": "run check".split(),
    }
    for program in programs(bin_folder):
        yield [program, "--help"]
        for name in subcommands.get(program, ()):
            yield [program, *name.split(), "--help"]


def all_commands(bin_folder):
    rows = INSPECT + WRITE + FAIL + [(command, 0) for command in helps(bin_folder)]
    return rows + (REPLAY if "step-replay" in programs(bin_folder) else [])


def lay_out(folder):
    """Checkpoints under the names that the commands above, and the examples of --help, use."""
    folder.mkdir(parents=True, exist_ok=True)
    golden = {
        "ckpt": "lw_muon_bf16_torch_dist_dp2/ckpt",
        "torch": "lw_muon_bf16_torch_dp2/ckpt",
        "other": "gpt1l_tiny_torch_dist_dp2",
        "model.pt": "torch_save_zip/zip.pt",
        "expected": "lw_muon_bf16_torch_dp2/expected",
    }
    for name, source in golden.items():
        os.symlink(GOLDEN / source, folder / name)
    lay_out_traces(folder / "traces")


def lay_out_traces(folder):
    """The recorded traces, three of them also under shorter names."""
    folder.mkdir()
    shorter = {
        "adamw_decoupled_b2_0.999": "adamw",
        "muon_l2_nesterov": "muon_l2",
        "muon_split_qkv_nesterov": "muon_split_qkv",
    }
    for tensors in (GOLDEN / "steps").glob("*.safetensors"):
        for name in {tensors.stem, shorter.get(tensors.stem, tensors.stem)}:
            for suffix in (".json", ".safetensors"):
                source = tensors.with_name(tensors.stem + suffix)
                os.symlink(source, folder / (name + suffix))


def remove_outputs(folder):
    for name in ("out", "out.safetensors"):
        shutil.rmtree(folder / name, ignore_errors=True)
