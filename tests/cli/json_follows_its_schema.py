#!/usr/bin/env python3
"""Every --json document is one JSON document that its schema in docs/schema describes.

usage: json_follows_its_schema.py BIN

Runs a list of commands, and looks at all documents that the tests beside it expect.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from json_schema import SCHEMAS, describing_schemas, document_faults

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
TORCH = str(GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt")
TORCH_DP4 = str(GOLDEN / "lw_muon_bf16_torch_dp4" / "ckpt")
DIST = str(GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt")
LLAMA = str(GOLDEN / "no_save_optim_torch_dist_dp2" / "ckpt")
BARE_TENSOR = str(GOLDEN / "torch_save_zip" / "bare_tensor.pt")
RECORD = str(ROOT / "tests" / "cli" / "inspect" / "hash_json.stdout")
FILE = str(GOLDEN / "torch_save_zip" / "zip.pt")

EXPECTED = str(GOLDEN / "lw_muon_bf16_torch_dp2" / "expected")
STATE = f"{EXPECTED}/state.safetensors"

ASKED_FOR = "JSON:" + json.dumps({"tensors": [
    {"key": f"model.{name}", "dtype": dtype, "shape": shape}
    for name, dtype, shape in (("emb.weight", "bfloat16", [12, 8]), ("out.weight", "float32", [2]),
                               ("none", "float64", []))]})

# Of the recorded GPT model: names that differ in one word.
LAYER = "decoder.layers.{layer}."
VIEWS = {
    "input_layernorm.weight": "h", "input_layernorm.bias": "h",
    "self_attention.linear_proj.weight": "h k", "self_attention.linear_proj.bias": "h",
    "self_attention.linear_qkv.weight": "(three h) k", "self_attention.linear_qkv.bias": "(three h)",
    "pre_mlp_layernorm.weight": "h", "pre_mlp_layernorm.bias": "h",
    "mlp.linear_fc1.weight": "f h", "mlp.linear_fc1.bias": "f",
    "mlp.linear_fc2.weight": "h f", "mlp.linear_fc2.bias": "h",
}
TABLE = "JSON:" + json.dumps({
    "schema_version": 1, "architecture": "GPT", "model_type": "gpt",
    "let": {"h": "hidden_size", "k": "h", "f": "ffn_hidden_size", "three": "3"},
    "tensors": {
        "init.embedding.word_embeddings.weight":
            {"from": "embedding.word_embeddings.weight", "view": "vocabulary_rows h"},
        "init.embedding.position_embeddings.weight":
            {"from": "embedding.position_embeddings.weight", "view": "max_position_embeddings h"},
        **{f"init.{LAYER}{name}": {"from": LAYER + name, "view": view}
           for name, view in VIEWS.items()},
        "init.decoder.final_layernorm.weight":
            {"from": "decoder.final_layernorm.weight", "view": "h"},
        "init.decoder.final_layernorm.bias":
            {"from": "decoder.final_layernorm.bias", "view": "h"},
        "init.output_layer.weight":
            {"from": "output_layer.weight", "view": "vocabulary_rows h"},
    },
})

# schema, exit code, command; "OUT" is a path that does not exist, "JSON:TEXT" a file of TEXT.
CASES = (
    ("summary", 0, ["ckpt-inspect", TORCH]),
    ("summary", 0, ["ckpt-inspect", DIST]),
    ("summary", 0, ["ckpt-inspect", FILE]),
    ("summary", 0, ["ckpt-inspect", STATE]),
    ("ls", 0, ["ckpt-inspect", "ls", TORCH]),
    ("ls", 0, ["ckpt-inspect", "ls", DIST, "--sort", "size", "--limit", "3"]),
    ("ls", 0, ["ckpt-inspect", "ls", FILE, "--include", "nothing"]),
    ("show", 0, ["ckpt-inspect", "show", DIST, "rng_state/shard_0.0_1.1",
                 "embedding.word_embeddings.weight", "common.pt:/args"]),
    ("show", 0, ["ckpt-inspect", "show", FILE, "", "/dtypes/complex64", "/dtypes/float8_e8m0fnu"]),
    ("show", 0, ["ckpt-inspect", "show", DIST, "embedding.word_embeddings.weight[0:4, :8]"]),
    ("show", 0, ["ckpt-inspect", "show", TORCH, "*.output_layer.weight[0]", "--values", "all"]),
    ("show", 0, ["ckpt-inspect", "show", TORCH, "--stats"]),
    ("show", 0, ["ckpt-inspect", "show", TORCH, "--logical", "*fc1*", "--histogram"]),
    ("error", 2, ["ckpt-inspect", "show", DIST, "embedding.word_embeddings.weight[::0]"]),
    ("hash", 0, ["ckpt-inspect", "hash", TORCH]),
    ("hash", 0, ["ckpt-inspect", "hash", DIST]),
    ("hash", 0, ["ckpt-inspect", "hash", DIST, "--logical"]),
    ("hash", 0, ["ckpt-inspect", "hash", DIST, "--rank", "1", "--world-size", "2"]),
    ("diff", 0, ["ckpt-inspect", "diff", TORCH, DIST]),
    ("hash", 0, ["ckpt-inspect", "hash", DIST, "--include", "decoder.*"]),
    ("diff", 1, ["ckpt-inspect", "diff", TORCH, TORCH_DP4]),
    ("diff", 1, ["ckpt-inspect", "diff", TORCH, TORCH_DP4, "--summary"]),
    ("diff", 1, ["ckpt-inspect", "diff", TORCH, TORCH_DP4, "--limit", "1", "--exclude", "*.bias"]),
    ("diff", 1, ["ckpt-inspect", "diff", FILE, DIST]),
    ("diff", 1, ["ckpt-inspect", "diff", TORCH, DIST, "--common"]),
    ("diff", 1, ["ckpt-inspect", "diff", TORCH, TORCH_DP4, "--top", "3"]),
    ("names_check", 1, ["ckpt-convert", "names", "check", DIST,
                        f"{EXPECTED}/init_and_grads.safetensors", "--names", TABLE]),
    ("names_learn", 0, ["ckpt-convert", "names", "learn", LLAMA, f"EXPORT:{LLAMA}", "-o", "OUT"]),
    ("conversion", 0, ["ckpt-convert", DIST, "OUT", "--to", "huggingface", "--names", TABLE]),
    ("verify", 0, ["ckpt-inspect", "verify", TORCH]),
    ("verify", 0, ["ckpt-inspect", "verify", DIST, "--quick"]),
    ("verify", 1, ["ckpt-inspect", "verify", DIST, "--require-checksums"]),
    ("verify", 0, ["ckpt-inspect", "verify", FILE]),
    ("verify", 0, ["ckpt-inspect", "verify", TORCH, "--rank", "0", "--world-size", "3"]),
    ("groups", 0, ["ckpt-inspect", "groups", TORCH]),
    ("groups", 0, ["ckpt-inspect", "groups", DIST, "--limit", "3"]),
    ("tree", 0, ["ckpt-inspect", "tree", DIST]),
    ("tree", 0, ["ckpt-inspect", "tree", FILE, "--depth", "2"]),
    ("tree", 0, ["ckpt-inspect", "tree", DIST, "--sort", "size"]),
    ("latest", 0, ["ckpt-inspect", "latest", DIST]),
    ("can_load", 1, ["ckpt-inspect", "can-load", FILE, "--expect-keys", ASKED_FOR]),
    ("can_resume", 1, ["ckpt-inspect", "can-load", DIST, "--target-megatron", "0.16", "--arg",
                       "lr=1"]),
    ("can_resume", 1, ["ckpt-inspect", "can-load", DIST, "--target-megatron", "0.16", "--tp", "2"]),
    ("prune", 0, ["ckpt-inspect", "prune", DIST, "--keep-last", "1", "--dry-run"]),
    ("lineage", 0, ["ckpt-inspect", "lineage", DIST]),
    ("lineage", 0, ["ckpt-inspect", "lineage", TORCH, "--quick"]),
    ("error", 5, ["ckpt-inspect", "lineage", str(GOLDEN / "steps")]),
    ("report", 0, ["ckpt-inspect", "report", TORCH]),
    ("report", 0, ["ckpt-inspect", "report", DIST, "--sample", "4K"]),
    ("report", 0, ["ckpt-inspect", "report", FILE, "-o", "OUT"]),
    ("report", 0, ["ckpt-inspect", "report", TORCH, TORCH_DP4, "--rtol", "0.1"]),
    ("report", 0, ["ckpt-inspect", "report", TORCH, TORCH]),
    ("hash_check", 0, ["ckpt-inspect", "hash", BARE_TENSOR, "-c", RECORD]),
    ("hash_check", 0, ["ckpt-inspect", "hash", BARE_TENSOR, "-c", RECORD, "--rank", "0",
                       "--world-size", "2"]),
    ("hash_check", 1, ["ckpt-inspect", "hash", FILE, "-c", RECORD]),
    ("error", 2, ["ckpt-inspect"]),
    ("error", 3, ["ckpt-inspect", __file__]),
    ("error", 5, ["ckpt-inspect", "latest", str(GOLDEN / "steps")]),
    ("error", 5, ["ckpt-inspect", "show", TORCH, "no such key"]),
    ("conversion", 0, ["ckpt-convert", TORCH, "OUT", "--to", "torch_dist"]),
    ("conversion", 0, ["ckpt-convert", FILE, "OUT", "--to", "torch_dist", "--dry-run"]),
    ("conversion", 0, ["ckpt-convert", FILE, "OUT", "--to", "torch_dist", "--verify"]),
    ("clean", 0, ["ckpt-convert", FILE, "OUT", "--to", "torch_dist", "--clean"]),
    ("conversion", 0, ["reshard", TORCH, "OUT", "--dp", "4"]),
    ("repairs", 0, ["ckpt-convert", TORCH, "OUT", "--to", "torch_dist", "--repair"]),
    ("error", 2, ["reshard", TORCH, "OUT", "--dp", "0"]),
)
# step-replay needs LibTorch: builds without it have no such program.
STEPS = str(GOLDEN / "steps")
REPLAY = ["step-replay", "run", TORCH, "--grads", EXPECTED]
REPLAY_CASES = (
    ("replay_run", 0, [*REPLAY, "--from-init"]),
    ("replay_run", 0, [*REPLAY, "--from-init", "--dp", "3", "--spawn", "2", "-o", "OUT"]),
    ("replay_run", 1, [*REPLAY, "--from-init", "--expect", STATE, "--atol", "0"]),
    ("replay_run", 1, [*REPLAY, "--from-init", "--steps", "1", "--expect", STATE]),
    ("replay_bisect", 1, [*REPLAY, "--from-init", "--steps", "1", "--expect", STATE,
                          "--bisect", 'JSON:{"lr": 0.02, "clip_grad": 0.5}']),
    ("replay_record", 0, ["step-replay", "record", TORCH, "--grads", EXPECTED, "--steps", "1",
                          "-o", "OUT"]),
    ("replay_check", 0, ["step-replay", "check", f"{STEPS}/muon_l2_nesterov.json",
                         f"{STEPS}/adamw_decoupled_b2_0.95.json"]),
    ("replay_check", 1, ["step-replay", "check", f"{STEPS}/muon_quintic_ns7.json", "--atol", "0"]),
    ("replay_check", 0, ["step-replay", "check", f"{STEPS}/lion_l2.json"]),
    ("error", 4, [*REPLAY, "--device", "cuda"]),
    ("error", 5, [*REPLAY, "--spawn", "2", "--expect", "nowhere"]),
)

def file_of(word, folder, bin_folder):
    if word.startswith("EXPORT:"):  # a Hugging Face folder of that checkpoint
        path = f"{folder}/exported"
        subprocess.run([bin_folder / "ckpt-convert", word.removeprefix("EXPORT:"), path, "--to",
                        "huggingface"], capture_output=True, check=True)
        return path
    if word.startswith("JSON:"):
        path = pathlib.Path(folder) / "input.json"
        path.write_text(word.removeprefix("JSON:"))
        return str(path)
    return word if word != "OUT" else f"{folder}/out"


def command_faults(schema_name, exit_code, command, bin_folder):
    with tempfile.TemporaryDirectory() as folder:
        words = [file_of(word, folder, bin_folder) for word in command]
        program = bin_folder / words[0]
        if not program.exists():
            return [f"{program} is not built"]
        result = subprocess.run([program, *words[1:], "--json"], capture_output=True)
    if result.returncode != exit_code:
        return [f"exit code {result.returncode} instead of {exit_code}: {result.stdout[:500]}"]
    document = json.loads(result.stdout.decode("utf-8"))
    stated = {f"{words[0]}: warning: {text}" for text in document.get("warnings", [])}
    said = [line for line in result.stderr.decode("utf-8").splitlines() if line not in stated]
    if said:
        return [f"stderr: {said[:5]}"]
    return list(document_faults(schema_name, document))


def documents_in(text):
    """The JSON documents among the lines that a test expects: from a lone { to a lone }."""
    lines = []
    for line in text.splitlines():
        if line == "{" or lines:
            lines.append(line)
        if line == "}" and lines:
            yield "\n".join(lines)
            lines = []


def expected_faults():
    """What is wrong with documents that the tests in the folders here expect on stdout."""
    for path in sorted(pathlib.Path(__file__).parent.glob("*/*.stdout")):
        for text in documents_in(path.read_text()):
            document = json.loads(text)
            if not describing_schemas(document):
                yield f"{path.name}: no schema describes {text[:200]}"


def read(path):
    return json.loads(path.read_text())


def input_faults():
    """What is wrong with files that the programs read and the repository holds."""
    model = pathlib.Path(__file__).parents[2] / "libtraining/src/model"
    for name, files in (
        ("model_rules", [model / "model_rules.json"]),
        ("name_table", sorted((model / "names").glob("*.json"))),
    ):
        for path in files:
            found = document_faults(f"input/{name}", dict(sorted(read(path).items())))
            yield from (f"{path.name}: {fault}" for fault in found)


def main():
    bin_folder = pathlib.Path(sys.argv[1])
    failed = 0
    has_replay = (bin_folder / "step-replay").exists()
    cases = CASES + (REPLAY_CASES if has_replay else ())
    for schema_name, exit_code, command in cases:
        found = command_faults(schema_name, exit_code, command, bin_folder)
        shown = " ".join(command).replace(str(GOLDEN), "GOLDEN")
        print(f"{'ok' if not found else 'FAILED'}: {schema_name}: {shown}")
        print("\n".join(f"  {fault}" for fault in found[:20]), end="\n" if found else "")
        failed += bool(found)
    for fault in (*expected_faults(), *input_faults()):
        print(f"FAILED: {fault}")
        failed += 1
    tested = {schema_name for schema_name, _, _ in CASES + REPLAY_CASES}
    untested = {path.stem for path in SCHEMAS.glob("*.json")} - tested
    for name in sorted(untested):
        print(f"FAILED: no case tests docs/schema/{name}.json")
    return 1 if failed or untested else 0


if __name__ == "__main__":
    sys.exit(main())
