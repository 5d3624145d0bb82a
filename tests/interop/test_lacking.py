"""What the rest of a checkpoint shows that it had and that is not in it, is damage."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from damage import edit_file, edit_metadata
from programs import GOLDEN, succeed, verify
from reading import iteration_folder
from test_zero1_objects import as_objects

LAYER_WISE = GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"
LAYER_WISE_DIST = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
RESHARDABLE = GOLDEN / "do_adam_bf16_torch_dist_fully_reshardable_dp2/ckpt"
RANKS = GOLDEN / "runs/te_grouped_fp8_torch_ep2tp2dp2/ckpt"
DEEP_DIST = GOLDEN / "runs/te_deep_torch_dist_ep2pp2dp2/ckpt"
RANKS_DIST = GOLDEN / "runs/te_grouped_fp8_torch_dist_ep2tp2dp2/ckpt"


def damages(root: Path) -> list[str]:
    code, document = verify(root)
    assert code == 1
    return [f"{finding.get('key', '')}: {finding['problem']}" for finding in document["findings"]
            if finding["severity"] == "damage"]


def copy_of(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "ckpt", copy_function=shutil.copyfile))


def without_keys(root: Path, is_lost) -> None:
    def change(metadata) -> None:
        for key in [key for key in metadata.state_dict_metadata if is_lost(key)]:
            del metadata.state_dict_metadata[key]
        for index in [index for index in metadata.storage_data if is_lost(index.fqn)]:
            del metadata.storage_data[index]

    edit_metadata(change)(root)


@pytest.mark.parametrize("state", ("exp_avg_sq", "momentum_buffer"))
def test_a_moment_of_every_parameter_in_rank_files(state: str, tmp_path: Path) -> None:
    root = copy_of(LAYER_WISE, tmp_path)

    def change(optimizers: list) -> None:
        for optimizer in optimizers:
            for kept in optimizer["optimizer"]["state"].values():
                kept.pop(state, None)

    for path in iteration_folder(root).glob("mp_rank_*/layer_wise_optimizer_*.pt"):
        edit_file(path, change)
    for path in iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"):  # repeats rank 0's
        edit_file(path, lambda tree: change(tree["optimizer"]))
    assert any(f"optimizer.state.{state}." in text and "no parameter of this optimizer" in text
               for text in damages(root))


def test_a_moment_of_every_parameter_in_a_store(tmp_path: Path) -> None:
    root = copy_of(LAYER_WISE_DIST, tmp_path)
    without_keys(root, lambda key: key.startswith("optimizer.state.exp_avg_sq."))
    assert any("no parameter of this optimizer" in text for text in damages(root))


def test_the_random_state_of_one_rank_file(tmp_path: Path) -> None:
    root = copy_of(RANKS, tmp_path)
    edit_file(sorted(iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"))[1],
              lambda state: state.pop("rng_state"))
    assert "/rng_state: is missing, although other rank files have it" in damages(root)


def test_the_random_state_of_one_rank_in_a_store(tmp_path: Path) -> None:
    root = copy_of(RANKS_DIST, tmp_path)
    without_keys(root, lambda key: key.startswith("rng_state/shard_0.1_"))
    assert "rng_state: 1 of 2 random states are missing" in damages(root)


def test_the_common_state_of_a_store(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    succeed("ckpt-convert", LAYER_WISE_DIST, root, "--to", "torch_dist", "--target-megatron",
            "2026-08")
    assert verify(root)[0] == 0
    without_keys(root, lambda key: key.startswith("common_state/"))
    assert any("the common state is missing" in text for text in damages(root))


STORES = {
    "layer_wise": LAYER_WISE_DIST,
    "fully_reshardable": RESHARDABLE,
    "dp_reshardable": GOLDEN / "do_adam_bf16_torch_dist_dp_reshardable_dp2/ckpt",
    "fully_sharded_model_space": GOLDEN / "v012_do_adam_fully_sharded_dp2/ckpt",
    "dp_zero_gather_scatter": GOLDEN / "do_adam_bf16_torch_dist_dp_reshardable_dp2/ckpt",
}


@pytest.mark.parametrize("key", ("args", "iteration", "checkpoint_version", "opt_param_scheduler"))
@pytest.mark.parametrize("store", STORES)
def test_a_key_of_the_common_state(store: str, key: str, tmp_path: Path) -> None:
    root = copy_of(STORES[store], tmp_path)
    if store == "dp_zero_gather_scatter":
        as_objects(root)
    edit_file(iteration_folder(root) / "common.pt", lambda state: state.pop(key))
    assert any(text.startswith(f"/{key}: is missing") for text in damages(root))


@pytest.mark.parametrize("key", ("args", "iteration", "checkpoint_version", "opt_param_scheduler"))
@pytest.mark.parametrize("name", ("lw_muon_bf16_torch_dp2", "do_adam_bf16_torch_dp2"))
def test_a_key_of_a_rank_file(name: str, key: str, tmp_path: Path) -> None:
    root = copy_of(GOLDEN / name / "ckpt", tmp_path)
    for path in iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"):
        edit_file(path, lambda state: state.pop(key))
    assert any(text.startswith(f"/{key}: is missing") for text in damages(root))


# What Megatron Bridge writes beside a checkpoint instead of args.
BRIDGE = "_target_: megatron.bridge.training.config.ConfigContainer\nmodel: {}\n"


@pytest.mark.parametrize(("config", "lost", "found"), (
    (None, ("args",), ["/args"]),
    ("model: {}\n", ("args",), ["/args"]),
    (BRIDGE, ("args",), []),
    (BRIDGE, ("args", "iteration"), ["/iteration"]),
    (BRIDGE, ("args", "opt_param_scheduler"), ["/opt_param_scheduler"]),
))
def test_of_megatron_bridge_args_are_no_loss(
    config: str | None, lost: tuple[str, ...], found: list[str], tmp_path: Path
) -> None:
    root = copy_of(RESHARDABLE, tmp_path)
    edit_file(iteration_folder(root) / "common.pt", lambda state: [state.pop(key) for key in lost])
    if config:
        (iteration_folder(root) / "run_config.yaml").write_text(config)
    code, document = verify(root)
    keys = [finding["key"] for finding in document["findings"] if finding["severity"] == "damage"]
    assert (keys, code) == (found, 1 if found else 0)
    assert bool(config == BRIDGE) == any(
        left["what"] == "args against the model" for left in document["not_checked"])


@pytest.mark.parametrize(("arg", "problem"), (
    ("num_layers", "but the model has 2 decoder layers"),
    ("hidden_size", "but embedding.word_embeddings.weight has 16 columns"),
    ("padded_vocab_size", "but embedding.word_embeddings.weight has 64 rows"),
))
def test_an_argument_that_the_model_contradicts(arg: str, problem: str, tmp_path: Path) -> None:
    root = copy_of(LAYER_WISE, tmp_path)
    stated = []

    def change(state: dict) -> None:
        setattr(state["args"], arg, getattr(state["args"], arg) + 1)
        stated.append(getattr(state["args"], arg))

    for path in iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"):
        edit_file(path, change)
    assert f"args.{arg}: is {stated[0]}, {problem}" in damages(root)


def test_a_setting_of_a_group_that_is_nan(tmp_path: Path) -> None:
    root = copy_of(LAYER_WISE_DIST, tmp_path)

    def change(state: dict) -> None:
        optimizers = state["optimizer"].values()
        next(iter(optimizers))["optimizer"]["param_groups"][0]["lr"] = float("nan")

    edit_file(iteration_folder(root) / "common.pt", change)
    assert any(text.endswith("param_groups/0/lr: is NaN") for text in damages(root))


SOUND = sorted([*GOLDEN.glob("*/ckpt"), *GOLDEN.glob("runs/*/ckpt")])


@pytest.mark.parametrize("root", SOUND, ids=[root.parent.name for root in SOUND])
def test_sound_checkpoints_lack_nothing(root: Path) -> None:
    assert verify(root)[0] == 0


# Layers that are not alike have keys of their own.
LOST_OF_ONE_LAYER = (
    ("decoder.layers.2.self_attention.linear_proj.weight", "layer 0 has it"),
    ("decoder.layers.1.mlp.shared_experts.linear_fc2.weight", "layer 2 has it"),
    ("decoder.layers.0.mlp.linear_fc2.weight",
     "layer 0 has decoder.layers.0.mlp.linear_fc1.weight"),
    ("decoder.layers.1.mlp.router.weight", "layer 2 has it"),
)
# Of a store, which stacks layers, all layers lose it.
LOST_OF_STORES = (
    ("self_attention.linear_proj.weight", "has decoder.layers.0.self_attention.linear_qkv.weight"),
    ("self_attention.linear_qkv.weight", "has decoder.layers.0.self_attention.linear_proj.weight"),
    ("mlp.linear_fc1.weight", "has decoder.layers.0.mlp.linear_fc2.weight"),
    ("mlp.linear_fc2.bias", "has decoder.layers.0.mlp.linear_fc1.bias"),
    ("input_layernorm.weight", "has decoder.layers.0.self_attention.linear_qkv.weight"),
    ("pre_mlp_layernorm.bias", "has decoder.layers.0.pre_mlp_layernorm.weight"),
)
LOST_AROUND_LAYERS = (
    ("decoder.final_layernorm.weight", "the layers have norms"),
    ("embedding.word_embeddings.weight", "a GPT model has it"),
    ("embedding.position_embeddings.weight",
     "args.position_embedding_type says that it is learned"),
    ("output_layer.weight", "args.untie_embeddings_and_output_weights says that it is not the "
     "embeddings' weight"),
)
STORED_AS = {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
             "pre_mlp_layernorm.bias": "mlp.linear_fc1.layer_norm_bias"}


@pytest.mark.parametrize(("lost", "problem"), LOST_OF_ONE_LAYER)
def test_a_parameter_of_one_layer_with_its_states(lost: str, problem: str, tmp_path: Path) -> None:
    root = copy_of(DEEP_DIST, tmp_path)
    without_keys(root, lambda key: key == lost or key.endswith(f".{lost}"))
    assert f"{lost}: is missing from the model: {problem}" in damages(root)


@pytest.mark.parametrize(("lost", "problem"), LOST_OF_STORES)
def test_a_parameter_of_layers_with_its_states(lost: str, problem: str, tmp_path: Path) -> None:
    root = copy_of(LAYER_WISE_DIST, tmp_path)
    without_keys(root, lambda key: key.endswith(f"decoder.layers.{STORED_AS.get(lost, lost)}"))
    assert (f"decoder.layers.0.{lost}: is missing from the model: layer 0 {problem}"
            in damages(root))


@pytest.mark.parametrize(("lost", "problem"), LOST_AROUND_LAYERS)
def test_a_parameter_around_layers_with_its_states(lost: str, problem: str,
                                                   tmp_path: Path) -> None:
    root = copy_of(LAYER_WISE_DIST, tmp_path)
    without_keys(root, lambda key: key == lost or key.endswith(f".{lost}"))
    assert f"{lost}: is missing from the model: {problem}" in damages(root)


def test_nothing_is_missed_around_the_layers_of_another_model(tmp_path: Path) -> None:
    root = copy_of(LAYER_WISE_DIST, tmp_path)

    def renamed(key: str) -> str:
        return key.replace("decoder.final_layernorm.", "decoder.final_norm.")  # as Mamba has it

    def change(metadata) -> None:
        entries = metadata.state_dict_metadata
        metadata.state_dict_metadata = {renamed(key): entries[key] for key in entries}
        metadata.storage_data = {replace(index, fqn=renamed(index.fqn)): place
                                 for index, place in metadata.storage_data.items()}

    edit_metadata(change)(root)
    assert not any("is missing from the model" in finding["problem"]
                   for finding in verify(root)[1]["findings"])
