"""Checkpoints of core 0.19, Megatron Bridge and Megatron-FSDP: what is no damage is not called so,
and what can be read and resharded is. ../shared/fixtures/newer and worlds; skipped without them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from parallel_sets import canonical_name, expect_none, recorded_state, state_differences
from programs import BIN, FIXTURES, damage_of, refuse, run, succeed, verify
from reading import iteration_folder

PACKED = [FIXTURES / name / "sets.tar.zst" for name in ("newer", "worlds")]
pytestmark = pytest.mark.skipif(
    not BIN.is_dir() or not all(path.is_file() for path in PACKED), reason="no newer sets")

DAMAGED, UNSUPPORTED = 1, 4
OSS_DIST, OSS_TORCH = "v019.oss.zero1.full.dp2", "v019.oss.zero1.torch.tp2etp1dp2"
BERT, VLM = "v019.bert.zero1.full.tp2dp2", "v019.vlm.zero1.full.tp2dp2"
T5 = "v019.t5.zero1.full.dp2"
# Layers of Mamba, attention, MLPs and experts; GatedDeltaNet with attention's output gate.
HYBRID, HYBRID_TP2 = "v019.hyb.zero1.full.dp2", "v019.hyb.zero1.full.tp2dp2"
DELTA, DELTA_TP2 = "v019.q3n.zero1.full.dp2", "v019.q3n.zero1.full.tp2dp2"
HYBRID_TORCH, DELTA_TORCH = "v019.hyb.zero1.torch.tp2dp2", "v019.q3n.zero1.torch.tp2dp2"
SEGMENTED = [HYBRID, HYBRID_TP2, HYBRID_TORCH, DELTA, DELTA_TP2, DELTA_TORCH]
FROZEN, FSDP = "v019.frozen.zero1.torch.dp2", "v019.mfsdp.dp1"
ADAM_DP2, ADAM_TP2 = "v019.gpt.adam.dist.dp2", "v0192.gpt.adam.dist.tp2"
BRIDGE = "v0192.gpt.zero1.full.tp2dp2.bridge"
FAULT = "v0192.n19.zero1.full.tp2dp2.fault"


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newer")
    for archive in PACKED:
        plain = subprocess.run(["zstd", "-dcq", "--long=27", archive], check=True,
                               capture_output=True).stdout
        subprocess.run(["tar", "-C", folder, "-xf", "-"], input=plain, check=True)
    return folder


def test_verify_finds_the_set_with_a_fault_and_no_other(newer: Path) -> None:
    sets = [path for path in sorted(newer.iterdir()) if (path / "ckpt").is_dir()]
    assert len(sets) > 20
    found = [path.name for path in sets if verify(path / "ckpt")[0] != 0]
    assert found == [FAULT]


BRIDGES = ["bridge_llama", "bridge_qwen3_moe", f"{BRIDGE}/ckpt"]


@pytest.mark.parametrize("name", BRIDGES)
def test_args_of_a_folder_of_bridge_are_its_configuration(
    name: str, newer: Path, tmp_path: Path
) -> None:
    code, document = verify(newer / name)
    assert (code, document["not_checked"]) == (0, [])
    root = Path(shutil.copytree(newer / name, tmp_path / "ckpt"))
    config = iteration_folder(root) / "run_config.yaml"
    text = config.read_text()
    config.write_text(re.sub("  num_layers: .", "  num_layers: 7", text))
    assert verify(root)[0] == DAMAGED
    config.write_text(text + "more: {a: 1}\n")
    code, document = verify(root)
    assert code == 0
    assert ["args against the model"] == [left["what"] for left in document["not_checked"]]
    refuse(UNSUPPORTED, "reshard", root, tmp_path / "made", "--dp", 3)
    config.write_text("model: {}\n")
    code, document = verify(root)
    assert code == DAMAGED
    assert any(finding.get("key") == "/args" for finding in document["findings"])


@pytest.mark.parametrize(
    "name", [OSS_DIST, OSS_TORCH, ADAM_DP2, ADAM_TP2, BERT, VLM, T5, FROZEN, *SEGMENTED])
def test_the_logical_state_is_the_live_one(name: str, newer: Path, tmp_path: Path) -> None:
    made = tmp_path / "state.safetensors"
    succeed("ckpt-convert", newer / name / "ckpt", made, "--to", "safetensors")
    expect_none(state_differences(load_file(made), recorded_state(newer / name)))


# Source, sizes.
RESHARDS = [
    (OSS_DIST, "--dp 1"),
    (OSS_DIST, "--dp 3"),
    (OSS_DIST, "--tp 2 --etp 1 --dp 2"),
    (OSS_DIST, "--pp 2 --dp 2"),
    (OSS_DIST, "--ep 2 --dp 2"),
    (OSS_DIST, "--tp 2 --ep 2 --etp 1 --dp 2"),
    (OSS_DIST, "--tp 2 --etp 1 --dp 2 --to torch"),
    (OSS_TORCH, "--tp 1 --dp 1"),
    (OSS_TORCH, "--dp 1"),
    (OSS_TORCH, "--tp 1 --pp 2 --dp 2"),
    (OSS_TORCH, "--tp 1 --ep 2 --dp 2"),
    (OSS_TORCH, "--ep 2 --etp 1 --dp 2"),
    (OSS_TORCH, "--dp 2 --to torch_dist"),
    (ADAM_DP2, "--dp 1"),
    (ADAM_DP2, "--tp 2 --dp 2"),
    (ADAM_DP2, "--pp 2 --to torch"),
    (ADAM_TP2, "--tp 1"),
    (ADAM_TP2, "--tp 4 --dp 2"),
    (BERT, "--dp 4"),
    (BERT, "--tp 1 --pp 2 --dp 1 --to torch"),
    (BERT, "--tp 4 --to torch_dist --optimizer-sharding dp_reshardable"),
    (VLM, "--dp 4"),
    (VLM, "--tp 1 --pp 2 --dp 1 --to torch"),
    (VLM, "--tp 4 --to torch_dist --optimizer-sharding dp_reshardable"),
    (T5, "--dp 1"),
    (T5, "--tp 2 --dp 1"),
    (T5, "--tp 4 --to torch"),
    (FROZEN, "--dp 1"),
    (FROZEN, "--tp 2 --pp 4 --dp 1"),
    (FROZEN, "--to torch_dist --optimizer-sharding dp_reshardable --pp 2"),
    (HYBRID, "--dp 1"),
    (HYBRID_TP2, "--tp 1 --pp 2 --vpp 2 --dp 1"),
    (HYBRID_TP2, "--ep 2 --etp 1 --to torch"),
    (HYBRID_TORCH, "--tp 1 --pp 4 --dp 1"),
    (HYBRID_TORCH, "--ep 2 --etp 1 --to torch_dist"),
    (HYBRID_TORCH, "--to torch_dist --optimizer-sharding layer_wise"),
    (DELTA, "--dp 3"),
    (DELTA_TP2, "--tp 1 --pp 2 --dp 1 --to torch"),
    (DELTA_TORCH, "--pp 2 --vpp 2 --dp 1"),
    (DELTA_TORCH, "--tp 1 --ep 2 --to torch_dist --optimizer-sharding dp_reshardable"),
    (BRIDGE, "--dp 1"),
    (BRIDGE, "--tp 1 --pp 2 --rng drop"),
]


def logical(root: Path) -> dict[str, str]:
    document = succeed("ckpt-inspect", "hash", root, "--logical", "--json").json()
    return {tensor["key"]: tensor["sha256"] for tensor in document["tensors"]}


@pytest.mark.parametrize(("name", "sizes"), RESHARDS, ids=lambda value: value.replace(" ", ""))
def test_reshards_keep_every_tensor(name: str, sizes: str, newer: Path, tmp_path: Path) -> None:
    source, made = newer / name / "ckpt", tmp_path / "made"
    options = sizes.split()
    program = "ckpt-convert" if "--to" in options else "reshard"
    succeed(program, source, made, *options, "--verify")
    assert verify(made)[0] == 0
    assert logical(made) == logical(source)


@pytest.mark.parametrize("name", BRIDGES)
def test_a_folder_of_bridge_is_written_back_with_what_lies_in_it(
    name: str, newer: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(newer / name, tmp_path / "ckpt"))
    tokenizer = iteration_folder(source) / "tokenizer" / "inner"
    tokenizer.mkdir(parents=True)
    (tokenizer / "vocab.json").write_text("{}")
    made = tmp_path / "made"
    options = ["--tp", 2, "--pp", 2, "--rng", "drop", "--verify"]
    document = succeed("reshard", source, made, *options, "--json").json()
    lost = {each["what"] for each in document["not_carried"]}
    assert lost <= {"rng_state", "rerun_state_machine"}
    assert logical(made) == logical(source)
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert {path for path in files if ".distcp" not in path.name} <= {
        path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    lines = [(iteration_folder(root) / "run_config.yaml").read_text().splitlines()
             for root in (source, made)]
    changed = {line for line in lines[1] if line not in lines[0]}
    assert {"  pipeline_model_parallel_size: 2"} <= changed <= {
        "  tensor_model_parallel_size: 2", "  pipeline_model_parallel_size: 2",
        "  expert_tensor_parallel_size: 2", "  sequence_parallel: true"}
    for path in ("latest_train_state.pt", f"{iteration_folder(source).name}/train_state.pt"):
        assert (made / path).read_bytes() == (source / path).read_bytes()


# Bridge goes on with the step of its own files.
@pytest.mark.parametrize("own", ["{iteration}/train_state.pt", "latest_train_state.pt"])
def test_a_file_of_bridge_from_another_save_is_found(
    own: str, newer: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(newer / BRIDGES[0], tmp_path / "ckpt"))
    path = root / own.format(iteration=iteration_folder(root).name)
    state = torch.load(path, weights_only=True)
    torch.save(state | {"step": torch.tensor(5, dtype=torch.int32)}, path)
    (found,) = damage_of(verify(root)[1])
    assert path.name in found and "step is 5, but " in found


@pytest.mark.parametrize(("name", "twin"), [(HYBRID, HYBRID_TP2), (DELTA, DELTA_TP2)])
def test_a_reshard_is_what_megatron_wrote_at_those_sizes(
    name: str, twin: str, newer: Path, tmp_path: Path
) -> None:
    succeed("reshard", newer / name / "ckpt", tmp_path / "made", "--tp", "2")
    made, theirs = stored_in(tmp_path / "made"), stored_in(newer / twin / "ckpt")
    counters = {key for key in theirs if key.startswith("rerun_state_machine_state/")}
    assert made.keys() == theirs.keys() - counters
    assert [key for key, value in made.items() if value and value != theirs[key]] == []
    assert len(made) > 250


@pytest.mark.parametrize("name", [BERT, T5, VLM, HYBRID, DELTA])
def test_a_result_of_another_dp_has_all_keys_of_the_source(
    name: str, newer: Path, tmp_path: Path
) -> None:
    succeed("reshard", newer / name / "ckpt", tmp_path / "made", "--dp", "1")
    made, source = stored_in(tmp_path / "made"), stored_in(newer / name / "ckpt")
    assert {key for key in source if not key.startswith("rerun_state_machine_state/")} == set(made)


def stored_in(root: Path) -> dict[str, tuple]:
    """Keys of tensors with what they hold, and of objects with nothing."""
    document = succeed("ckpt-inspect", "hash", root, "--json").json()
    tensors = {each["key"]: (each["shape"], each["sha256"]) for each in document["tensors"]}
    return tensors | dict.fromkeys((each["key"] for each in document["objects"]), ())


# Source, sizes, what is said.
REFUSED = [
    (OSS_DIST, "--tp 2", 2, "the experts have biases"),
    (OSS_DIST, "--tp 2 --etp 1 --dp 2 --to torch --target-megatron 2026-04", UNSUPPORTED,
     "no rank writes mp_rank_01/model_optim_rng.pt"),
    (FROZEN, "--to torch_dist", UNSUPPORTED, "2 of the 4 layers have it"),
    (T5, "--pp 2 --dp 1", 2, "Megatron cannot save a model with an encoder and a decoder"),
    (BRIDGE, "--to torch", UNSUPPORTED, "has no args, which `torch` files need"),
]


@pytest.mark.parametrize(("name", "sizes", "code", "said"), REFUSED)
def test_what_is_not_known_is_refused_by_name(
    name: str, sizes: str, code: int, said: str, newer: Path, tmp_path: Path
) -> None:
    options = sizes.split()
    program = "ckpt-convert" if "--to" in options else "reshard"
    assert said in refuse(code, program, newer / name / "ckpt", tmp_path / "made", *options)
    assert not (tmp_path / "made").exists()


# Frozen are the embedding and two layers of four; with two stages all that the first has.
def test_frozen_parameters_keep_their_weights_alone(newer: Path, tmp_path: Path) -> None:
    outcome = succeed("reshard", newer / FROZEN / "ckpt", tmp_path / "made", "--pp", 2, "--dp", 1)
    assert "13 parameters are frozen" in outcome.stderr
    lines = succeed("ckpt-inspect", "verify", tmp_path / "made").stdout
    assert "13 weights" in lines and "frozen parameters have none" in lines


# What a store has under two keys, and an optimizer once.
def test_two_names_of_one_tensor_hold_the_same(newer: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    succeed("reshard", newer / T5 / "ckpt", made, "--tp", 2, "--dp", 1)
    ours, theirs = stored_in(made), stored_in(newer / T5 / "ckpt")
    for key in ("output_layer.bias", "position_embeddings.weight"):
        assert ours[key] == theirs[key]
    states = {key for key in theirs if "optimizer.state." in key}
    assert {key: ours[key] for key in states} == {key: theirs[key] for key in states}


@pytest.mark.parametrize("file", ["model_optim_rng.pt", "distrib_optim.pt"])
def test_a_rank_folder_of_019_that_lost_a_file_is_damaged(
    file: str, newer: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(newer / OSS_TORCH / "ckpt", tmp_path / "ckpt"))
    (iteration_folder(root) / "mp_rank_01" / file).unlink()
    assert verify(root)[0] == DAMAGED
    assert run("reshard", root, tmp_path / "made", "--dp", "1").code in (3, 5)


def test_plain_tuples_of_megatron_fsdp_are_read_as_torch_reads_them(newer: Path) -> None:
    folder = newer / FSDP
    recorded = load_file(folder / "expected/state.safetensors")
    document = succeed("ckpt-inspect", "ls", folder / "ckpt", "--json").json()
    stored = {tensor["key"]: tensor["shape"] for tensor in document["tensors"]}
    for name, tensor in recorded.items():
        key = canonical_name(name)
        if not key.startswith("optimizer.") and f"model.module.{key}" in stored:
            assert stored[f"model.module.{key}"] == list(tensor.shape)
