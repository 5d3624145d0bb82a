#!/usr/bin/env python3
"""Every --json document is one JSON document that its schema in docs/schema describes.

usage: json_follows_its_schema.py BIN

Checks the keywords that our schemas use; one that it does not know is an error.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs" / "schema"
GOLDEN = ROOT / "tests" / "golden"
TORCH = str(GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt")
TORCH_DP4 = str(GOLDEN / "lw_muon_bf16_torch_dp4" / "ckpt")
DIST = str(GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt")
BARE_TENSOR = str(GOLDEN / "torch_save_zip" / "bare_tensor.pt")
RECORD = str(ROOT / "tests" / "cli" / "inspect" / "hash_json.stdout")
FILE = str(GOLDEN / "torch_save_zip" / "zip.pt")

# schema, exit code, command; "OUT" is a path that does not exist.
CASES = (
    ("summary", 0, ["ckpt-inspect", TORCH]),
    ("summary", 0, ["ckpt-inspect", DIST]),
    ("summary", 0, ["ckpt-inspect", FILE]),
    ("ls", 0, ["ckpt-inspect", "ls", TORCH]),
    ("ls", 0, ["ckpt-inspect", "ls", DIST, "--sort", "size", "--limit", "3"]),
    ("ls", 0, ["ckpt-inspect", "ls", FILE, "--include", "nothing"]),
    ("show", 0, ["ckpt-inspect", "show", DIST, "rng_state/shard_0.0_1.1",
                 "embedding.word_embeddings.weight", "common.pt:/args"]),
    ("show", 0, ["ckpt-inspect", "show", FILE, "", "/dtypes/complex64", "/dtypes/float8_e8m0fnu"]),
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
    ("verify", 0, ["ckpt-inspect", "verify", TORCH]),
    ("verify", 0, ["ckpt-inspect", "verify", DIST, "--quick"]),
    ("verify", 1, ["ckpt-inspect", "verify", DIST, "--require-checksums"]),
    ("verify", 0, ["ckpt-inspect", "verify", FILE]),
    ("verify", 0, ["ckpt-inspect", "verify", TORCH, "--rank", "0", "--world-size", "3"]),
    ("groups", 0, ["ckpt-inspect", "groups", TORCH]),
    ("groups", 0, ["ckpt-inspect", "groups", DIST, "--limit", "3"]),
    ("tree", 0, ["ckpt-inspect", "tree", DIST]),
    ("tree", 0, ["ckpt-inspect", "tree", FILE, "--depth", "2"]),
    ("latest", 0, ["ckpt-inspect", "latest", DIST]),
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
    ("error", 2, ["reshard", TORCH, "OUT", "--dp", "0"]),
)
# step-replay needs LibTorch: builds without it have no such program.
EXPECTED = str(GOLDEN / "lw_muon_bf16_torch_dp2" / "expected")
STATE = f"{EXPECTED}/state.safetensors"
STEPS = str(GOLDEN / "steps")
REPLAY = ["step-replay", "run", TORCH, "--grads", EXPECTED]
REPLAY_CASES = (
    ("replay_run", 0, [*REPLAY, "--from-init"]),
    ("replay_run", 0, [*REPLAY, "--from-init", "--dp", "3", "--spawn", "2", "-o", "OUT"]),
    ("replay_run", 1, [*REPLAY, "--from-init", "--expect", STATE, "--atol", "0"]),
    ("replay_check", 0, ["step-replay", "check", f"{STEPS}/muon_l2_nesterov.json",
                         f"{STEPS}/adamw_decoupled_b2_0.95.json"]),
    ("replay_check", 1, ["step-replay", "check", f"{STEPS}/muon_quintic_ns7.json", "--atol", "0"]),
    ("replay_check", 0, ["step-replay", "check", f"{STEPS}/lion_l2.json"]),
    ("error", 4, [*REPLAY, "--device", "cuda"]),
    ("error", 5, [*REPLAY, "--spawn", "2", "--expect", "nowhere"]),
)

TYPES = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "boolean": bool,
}


def check_type(value, name, _, where):
    is_right = isinstance(value, TYPES[name])
    if isinstance(value, bool):
        is_right = name == "boolean"
    yield from [] if is_right else [f"{where}: is no {name}"]


def check_properties(value, properties, schema, where):
    for key, item in value.items():
        if key in properties:
            yield from faults(item, properties[key], f"{where}/{key}")
        elif schema.get("additionalProperties") is False:
            yield f"{where}: '{key}' is not in the schema"


def check_additional(value, additional, schema, where):
    for key, item in value.items():
        if isinstance(additional, dict) and key not in schema.get("properties", {}):
            yield from faults(item, additional, f"{where}/{key}")


def check_required(value, required, _, where):
    yield from (f"{where}: '{key}' is missing" for key in required if key not in value)


def check_items(value, items, _, where):
    for index, item in enumerate(value):
        yield from faults(item, items, f"{where}/{index}")


def check_one_of(value, choices, _, where):
    fitting = sum(not list(faults(value, choice, where)) for choice in choices)
    yield from [] if fitting == 1 else [f"{where}: fits {fitting} of {len(choices)} choices"]


def fails(is_wrong, text):
    return lambda value, wanted, _, where: (
        [f"{where}: {value!r} {text} {wanted!r}"] if is_wrong(value, wanted) else [])


definitions = {}  # of the schema that is being checked


def check_reference(value, reference, _, where):
    prefix = "#/$defs/"
    assert reference.startswith(prefix), reference
    yield from faults(value, definitions[reference.removeprefix(prefix)], where)


KEYWORDS = {
    "$ref": check_reference,
    "type": check_type,
    "properties": check_properties,
    "additionalProperties": check_additional,
    "required": check_required,
    "items": check_items,
    "oneOf": check_one_of,
    "enum": fails(lambda value, wanted: value not in wanted, "is not among"),
    "const": fails(lambda value, wanted: value != wanted, "is not"),
    "minimum": fails(lambda value, wanted: value < wanted, "is below"),
    "pattern": fails(lambda value, wanted: not re.search(wanted, value), "does not match"),
}
NOTES = {"$schema", "$defs", "title", "description"}


def faults(value, schema, where):
    # The type first: the other keywords rely on it.
    for keyword in sorted(schema, key=lambda word: word != "type"):
        if keyword in NOTES:
            continue
        found = list(KEYWORDS[keyword](value, schema[keyword], schema, where))
        yield from found
        if found and keyword == "type":
            return


def document_faults(schema_name, exit_code, command, bin_folder):
    with tempfile.TemporaryDirectory() as folder:
        words = [word if word != "OUT" else f"{folder}/out" for word in command]
        program = bin_folder / words[0]
        if not program.exists():
            return [f"{program} is not built"]
        result = subprocess.run([program, *words[1:], "--json"], capture_output=True)
    if result.returncode != exit_code:
        return [f"exit code {result.returncode} instead of {exit_code}: {result.stdout[:500]}"]
    if result.stderr:
        return [f"stderr: {result.stderr[:500]}"]
    document = json.loads(result.stdout.decode("utf-8"))
    keys = list(document)
    sorted_faults = [] if keys == sorted(keys) else ["keys are not sorted"]
    schema = json.loads((SCHEMAS / f"{schema_name}.json").read_text())
    definitions.clear()
    definitions.update(schema.get("$defs", {}))
    return sorted_faults + list(faults(document, schema, ""))


def main():
    bin_folder = pathlib.Path(sys.argv[1])
    failed = 0
    has_replay = (bin_folder / "step-replay").exists()
    cases = CASES + (REPLAY_CASES if has_replay else ())
    for schema_name, exit_code, command in cases:
        found = document_faults(schema_name, exit_code, command, bin_folder)
        shown = " ".join(command).replace(str(GOLDEN), "GOLDEN")
        print(f"{'ok' if not found else 'FAILED'}: {schema_name}: {shown}")
        print("\n".join(f"  {fault}" for fault in found[:20]), end="\n" if found else "")
        failed += bool(found)
    tested = {schema_name for schema_name, _, _ in CASES + REPLAY_CASES}
    untested = {path.stem for path in SCHEMAS.glob("*.json")} - tested
    for name in sorted(untested):
        print(f"FAILED: no case tests docs/schema/{name}.json")
    return 1 if failed or untested else 0


if __name__ == "__main__":
    sys.exit(main())
