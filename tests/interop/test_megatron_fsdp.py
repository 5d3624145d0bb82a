"""Megatron's runs under FSDP2 (torch_dcp) and Megatron-FSDP (fsdp_dtensor): one state, as ZeRO-1's.

Expected is what PyTorch's own reader takes from the same files, and the weights of the live model.
"""

from __future__ import annotations

import argparse
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import reading  # noqa: F401  (classes that pickles of later releases name)
from parallel_sets import needs_sets
from programs import BIN, GOLDEN, refuse, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, MALFORMED, UNSUPPORTED = 1, 3, 4
MOMENTS = ("exp_avg", "exp_avg_sq")
LAYER = ("input_layernorm", "self_attention.linear_proj", "self_attention.linear_qkv",
         "pre_mlp_layernorm", "mlp.linear_fc1", "mlp.linear_fc2")
MODEL = ["embedding.word_embeddings.weight",
         *(f"decoder.layers.{i}.{name}.weight" for i in range(2) for name in LAYER),
         "decoder.final_layernorm.weight", "output_layer.weight"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    subprocess.run(["tar", "-xJf", GOLDEN / "megatron_fsdp.tar.xz", "-C", folder], check=True)
    return folder


def stored(run_folder: Path) -> dict:
    """Tensors, and lists of numbers, by PyTorch's reader."""
    iteration = run_folder / "ckpt/iter_0000002"
    metadata = dcp.FileSystemReader(iteration).read_metadata().state_dict_metadata
    state = {key: torch.empty(one.size, dtype=one.properties.dtype)
             for key, one in metadata.items() if isinstance(one, TensorStorageMetadata)}
    state |= {key: None for key in metadata if key.endswith(".params")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process
        dcp.load(state, checkpoint_id=iteration)
    return state


def own_name(name: str) -> str:
    return name.replace("module.", "")


def joined(halves: dict) -> dict:
    """fc1's gate and up in one."""
    return {name.removesuffix("_w"): torch.cat([value, halves[name[:-1] + "v"]])
            if name.endswith("_w") else value
            for name, value in halves.items() if not name.endswith("_v")}


def state_of_megatron_fsdp(raw: dict) -> dict:
    masters = joined({own_name(key.removeprefix("model.")): value
                      for key, value in raw.items() if key.startswith("model.")})
    state = {f"optimizer.state.fp32_param.{name}": value for name, value in masters.items()}
    for moment in MOMENTS:
        of_moment = joined({
            own_name(key.removeprefix("optimizer.state.")).removesuffix(f".{moment}"): value
            for key, value in raw.items()
            if key.startswith("optimizer.state.") and key.endswith(f".{moment}")})
        state |= {f"optimizer.state.{moment}.{name}": value for name, value in of_moment.items()}
    return state


def state_of_fsdp2(raw: dict) -> dict:
    state = {}
    for group, decays in enumerate((True, False)):
        names = [name for name in MODEL if name.endswith("norm.weight") != decays]
        numbers = raw[f"optimizer.optimizer.param_groups.{group}.params"]
        for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
            state[f"optimizer.state.fp32_param.{name}"] = raw[
                f"optimizer.fp32_from_fp16_params.{group}.{place}"]
            for moment in MOMENTS:
                state[f"optimizer.state.{moment}.{name}"] = raw[
                    f"optimizer.optimizer.state.{number}.{moment}"]
    return state


def expected(runs: Path, name: str) -> dict:
    raw = stored(runs / name)
    live = load_file(runs / name / "expected/live.safetensors")
    weights = {own_name(key).removeprefix("model."): value for key, value in live.items()}
    state = state_of_megatron_fsdp(raw) if name == "mfsdp" else state_of_fsdp2(raw)
    assert set(weights) == set(MODEL) and len(state) == 3 * len(MODEL)
    return weights | state


@pytest.mark.parametrize("name", ["mfsdp", "fsdp2"])
def test_every_tensor_is_what_the_run_had(name: str, runs: Path, tmp_path: Path) -> None:
    succeed("ckpt-convert", runs / name / "ckpt", tmp_path / "all.safetensors", "--to",
            "safetensors")
    found, wanted = load_file(tmp_path / "all.safetensors"), expected(runs, name)
    assert set(found) == set(wanted)
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype and torch.equal(found[key], value), key


@pytest.mark.parametrize("name", ["mfsdp", "fsdp2"])
@pytest.mark.parametrize("words", [
    ("--to", "torch_dist"), ("--to", "torch_dist", "--tp", "2", "--dp", "3"),
    ("--to", "torch", "--pp", "2"),
    ("--to", "torch_dist", "--optimizer-sharding", "dp_reshardable", "--dp", "2")],
    ids=lambda words: " ".join(words[1:]))
def test_results_are_the_same_state(name: str, words: tuple, runs: Path, tmp_path: Path) -> None:
    told = succeed("ckpt-convert", runs / name / "ckpt", tmp_path / "out", *words).stdout
    assert "every float32 master rounds to the weight of its parameter" in told
    assert "next training step: matches the source's, bit for bit" not in told  # summed otherwise
    succeed("ckpt-inspect", "verify", tmp_path / "out")
    assert "equal: 60 logical tensors" in succeed(
        "ckpt-inspect", "diff", runs / name / "ckpt", tmp_path / "out").stdout


def test_masters_of_numbers_are_checked(runs: Path) -> None:
    told = succeed("ckpt-inspect", "verify", runs / "fsdp2/ckpt")
    assert "30 masters match their weights" in told.stdout, told
    told = run("ckpt-inspect", "verify", runs / "mfsdp/ckpt")
    assert "the weights are stored as masters alone" in told.stdout, told


@pytest.mark.parametrize(("size", "told"), [(0, "everything was carried"),
                                            (24, "fp8 scales start anew")])
def test_extra_states_of_fsdp2_are_no_weights(size: int, told: str, runs: Path,
                                              tmp_path: Path) -> None:
    """TransformerEngine's modules keep them as bytes: none, or scales of fp8."""
    dcp_to_torch_save(runs / "fsdp2/ckpt/iter_0000002", tmp_path / "whole.pt")
    state = torch.load(tmp_path / "whole.pt", weights_only=False)
    extras = [key for key in state["model"] if key.endswith("_extra_state")]
    assert len(extras) == 9  # of local modules: objects
    state["model"] |= {key: torch.ones(size, dtype=torch.uint8) for key in extras}
    save(state, tmp_path / "ckpt")
    line = succeed("ckpt-convert", tmp_path / "ckpt", tmp_path / "out", "--to", "torch_dist").stdout
    assert told in line, line
    succeed("ckpt-inspect", "verify", tmp_path / "ckpt")
    told = run("ckpt-inspect", "diff", runs / "fsdp2/ckpt", tmp_path / "out").stdout
    assert "equal: 60" in told or "different: 0 of 60" in told, told  # args by another pickler


# --- written as Megatron-FSDP files it ---


def described(folder: Path) -> tuple[dict, dict]:
    metadata = dcp.FileSystemReader(folder / "iter_0000002").read_metadata()
    return {key: getattr(one, "size", None) for key, one in metadata.state_dict_metadata.items()}, \
        metadata.planner_data


def test_a_folder_of_its_own_has_the_same_entries(runs: Path, tmp_path: Path) -> None:
    source = runs / "mfsdp/ckpt"
    told = succeed("ckpt-convert", source, tmp_path / "out", "--to", "fsdp_dtensor").stdout
    assert "torch_dist -> fsdp_dtensor" in told and "everything was carried" in told, told
    assert described(tmp_path / "out") == described(source)
    before, after = stored(runs / "mfsdp"), {}
    (tmp_path / "run").mkdir()
    (tmp_path / "out").rename(tmp_path / "run/ckpt")
    after = stored(tmp_path / "run")
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_from_ranks_and_back(runs: Path, tmp_path: Path) -> None:
    succeed("ckpt-convert", runs / "fsdp2/ckpt", tmp_path / "ranks", "--to", "torch", "--tp", "2",
            "--pp", "2")
    told = succeed("ckpt-convert", tmp_path / "ranks", tmp_path / "fsdp", "--to", "fsdp_dtensor")
    assert "rng_state of 3 places in the model: the first one's is carried" in told.stdout
    assert "will differ from the source's" in told.stdout
    assert "different: 0 of 60 logical tensors" in run(
        "ckpt-inspect", "diff", runs / "fsdp2/ckpt", tmp_path / "fsdp").stdout


@pytest.mark.parametrize(("source", "words"), [
    (GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", "keeps Adam's state"),
    (GOLDEN / "trainers.tar.xz", "")])
def test_what_it_does_not_have_is_refused(source: Path, words: str, tmp_path: Path) -> None:
    codes = {UNSUPPORTED, MALFORMED}
    line = refuse(codes, "ckpt-convert", source, tmp_path / "out", "--to", "fsdp_dtensor")
    assert words in line and not (tmp_path / "out").exists()


def test_sizes_are_no_matter_of_it(runs: Path, tmp_path: Path) -> None:
    line = refuse(2, "ckpt-convert", runs / "mfsdp/ckpt", tmp_path / "out", "--to", "fsdp_dtensor",
                  "--dp", "4")
    assert "any number of data-parallel ranks" in line


# --- written as FSDP2 files it ---


def test_a_folder_of_fsdp2_has_the_same_entries(runs: Path, tmp_path: Path) -> None:
    """By way of ranks at other sizes; a real tree loads such results as it loads its own."""
    source = runs / "fsdp2/ckpt"
    succeed("ckpt-convert", source, tmp_path / "dist", "--to", "torch_dist", "--dp", "3")
    (tmp_path / "run").mkdir()
    told = succeed("ckpt-convert", tmp_path / "dist", tmp_path / "run/ckpt", "--to", "torch_dcp")
    assert "torch_dist -> torch_dcp" in told.stdout and "everything was carried" in told.stdout
    assert "loads no step count of Adam" in told.stdout and "no is_loading" in told.text, told
    assert described(tmp_path / "run/ckpt") == described(source)
    before, after = stored(runs / "fsdp2"), stored(tmp_path / "run")
    assert before.keys() == after.keys()
    for key, value in before.items():
        same = value == after[key] if key.endswith(".params") else torch.equal(value, after[key])
        assert same, key
    assert "equal: 60 logical tensors" in succeed("ckpt-inspect", "diff", source,
                                                  tmp_path / "run/ckpt").stdout
    assert "15 masters match their weights" in succeed("ckpt-inspect", "verify",
                                                       tmp_path / "run/ckpt").stdout
    told = run("ckpt-inspect", "can-load", tmp_path / "run/ckpt", "--target-megatron", "0.19")
    assert told.code == 1 and "unexpected keyword argument" in told.stdout, told


def test_whether_megatron_fsdp_loads_is_not_known(runs: Path) -> None:
    told = run("ckpt-inspect", "can-load", runs / "mfsdp/ckpt", "--target-megatron", "0.19")
    assert told.code == UNSUPPORTED and "fsdp_dtensor" in told.text, told


def test_ranks_of_a_model_become_fsdp2s(runs: Path, tmp_path: Path) -> None:
    succeed("ckpt-convert", runs / "mfsdp/ckpt", tmp_path / "ranks", "--to", "torch", "--tp", "2",
            "--pp", "2")
    told = succeed("ckpt-convert", tmp_path / "ranks", tmp_path / "out", "--to", "torch_dcp")
    assert "rng_state of 3 places in the model: the first one's is carried" in told.stdout
    sizes, paths = described(tmp_path / "out")
    wanted_sizes, wanted_paths = described(runs / "fsdp2/ckpt")
    assert (sizes, paths) == (wanted_sizes, wanted_paths)
    assert "different: 0 of 60 logical tensors" in run(
        "ckpt-inspect", "diff", runs / "mfsdp/ckpt", tmp_path / "out").stdout


def test_experts_of_two_ranks_become_those_of_one(tmp_path: Path) -> None:
    """Grouped ones, whose module keeps one object of all."""
    source = GOLDEN / "runs/instances_moe_torch_dist_2/ckpt"
    grouped = GOLDEN / "runs/zero1_hybrid_fully_reshardable_dp2/ckpt"
    for name, folder in (("moe", source), ("grouped", grouped)):
        succeed("ckpt-convert", folder, tmp_path / name, "--to", "torch_dcp")
        told = run("ckpt-inspect", "diff", folder, tmp_path / name).stdout
        assert "equal: " in told or "different: 0 of" in told, told
    groups = succeed("ckpt-inspect", "groups", tmp_path / "moe").stdout
    assert "is_expert_parallel True" not in groups and "RANK" not in groups, groups


@pytest.mark.parametrize(("source", "more", "words"), [
    ("lw_muon_bf16_torch_dist_dp2/ckpt", (), "keeps Adam's state"),
    ("mfsdp", ("--model-only",), "with the optimizer's state alone")])
def test_what_fsdp2_does_not_load_is_refused(source: str, more: tuple, words: str, runs: Path,
                                             tmp_path: Path) -> None:
    path = runs / "mfsdp/ckpt" if source == "mfsdp" else GOLDEN / source
    line = refuse(UNSUPPORTED, "ckpt-convert", path, tmp_path / "out", "--to", "torch_dcp", *more)
    assert words in line and not (tmp_path / "out").exists()


# --- what one process would save, by PyTorch's own writer ---


def arguments(**more: object) -> argparse.Namespace:
    return argparse.Namespace(
        num_layers=1, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, swiglu=True,
        add_bias_linear=False, normalization="RMSNorm", untie_embeddings_and_output_weights=True,
        tensor_model_parallel_size=1, pipeline_model_parallel_size=1, data_parallel_size=1,
        bf16=True, optimizer="adam", transformer_impl="local", use_megatron_fsdp=True,
        use_distributed_optimizer=True, ckpt_format="fsdp_dtensor", **more)


def small_state(**more: object) -> dict:
    torch.manual_seed(1)
    shapes = {"embedding.word_embeddings.weight": (64, 16),
              "decoder.layers.0.input_layernorm.weight": (16,),
              "decoder.layers.0.self_attention.linear_proj.weight": (16, 16),
              "decoder.layers.0.self_attention.linear_qkv.weight": (48, 16),
              "decoder.layers.0.pre_mlp_layernorm.weight": (16,),
              "decoder.layers.0.mlp.linear_fc1.weight_w": (24, 16),
              "decoder.layers.0.mlp.linear_fc1.weight_v": (24, 16),
              "decoder.layers.0.mlp.linear_fc2.weight": (16, 24),
              "decoder.final_layernorm.weight": (16,), "output_layer.weight": (64, 16)}
    group = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False,
             "is_decoupled_lr": False, "default_config": True, "max_lr": 0.01, "min_lr": 0.001,
             "lr": 0.005, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "step": 2}
    whole = {name.removesuffix("_w") for name in shapes if not name.endswith("_v")}
    return {
        "args": arguments(**more), "checkpoint_version": 3.0, "iteration": 2,
        "model": {f"module.{name}": torch.randn(shape) for name, shape in shapes.items()},
        "optimizer": {
            "state": {f"module.module.{name}": {m: torch.rand(shape) for m in MOMENTS}
                      for name, shape in shapes.items()},
            "param_to_group_meta": {
                f"module.module.{name}": group | (
                    {"wd_mult": 0.0, "weight_decay": 0.0} if "norm" in name else {})
                for name in whole}}}


def save(state: dict, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process
        dcp.save(state, checkpoint_id=folder)
    return folder


def test_an_imitation_is_read(tmp_path: Path) -> None:
    state = small_state()
    succeed("ckpt-convert", save(state, tmp_path / "ckpt"), tmp_path / "all.safetensors", "--to",
            "safetensors")
    found = load_file(tmp_path / "all.safetensors")
    halves = [state["model"][f"module.decoder.layers.0.mlp.linear_fc1.weight_{half}"]
              for half in "wv"]
    assert torch.equal(found["optimizer.state.fp32_param.decoder.layers.0.mlp.linear_fc1.weight"],
                       torch.cat(halves))
    assert torch.equal(found["decoder.layers.0.mlp.linear_fc1.weight"],
                       torch.cat(halves).bfloat16())


def test_steps_of_parameters_become_those_of_groups(tmp_path: Path) -> None:
    """As torch.optim.AdamW has them; Megatron's DistributedOptimizer keeps one for each group."""
    state, plain = small_state(), small_state()
    for one in state["optimizer"]["state"].values():
        one["step"] = torch.tensor(2.0)
    for group in state["optimizer"]["param_to_group_meta"].values():
        del group["step"]
    save(state, tmp_path / "ckpt"), save(plain, tmp_path / "plain")
    assert "step 2" in succeed("ckpt-inspect", tmp_path / "ckpt").stdout
    for name in ("ckpt", "plain"):
        succeed("ckpt-convert", tmp_path / name, tmp_path / f"{name}_out", "--to", "torch_dist")
    common = torch.load(tmp_path / "ckpt_out/common.pt", weights_only=False)
    assert {group["step"] for group in common["optimizer"]["optimizer"]["param_groups"]} == {2.0}
    assert "different: 0 of" in run("ckpt-inspect", "diff", tmp_path / "plain_out",
                                    tmp_path / "ckpt_out").stdout


def test_float32_runs_have_a_wrapper_less(tmp_path: Path) -> None:
    """As the real program saves one, without SwiGLU; with it, it does not save."""
    state = small_state()
    state["args"].bf16 = False
    line = refuse(UNSUPPORTED, "ckpt-convert", save(state, tmp_path / "gated"), tmp_path / "no",
                  "--to", "fsdp_dtensor")
    assert "args.swiglu" in line
    state["args"].swiglu = False
    for tensors in (state["model"], state["optimizer"]["state"]):
        for name in [name for name in tensors if name.endswith("_v")]:
            tensors[name[:-2]] = tensors.pop(name[:-1] + "w")
            del tensors[name]
    succeed("ckpt-convert", save(state, tmp_path / "ckpt"), tmp_path / "out", "--to",
            "fsdp_dtensor")
    keys = dcp.FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata
    assert {key for key in keys if "linear_proj" in key and not key.endswith("meta")} >= {
        "model.module.decoder.layers.0.self_attention.linear_proj.weight",
        "optimizer.state.module.module.decoder.layers.0.self_attention.linear_proj.weight.exp_avg"}


def test_a_float32_run_is_not_of_fsdp2(tmp_path: Path) -> None:
    """FP32Optimizer files no masters, and its state_dict() takes no is_loading."""
    state = small_state()
    state["args"].bf16 = False
    save(state, tmp_path / "ckpt")
    line = refuse(UNSUPPORTED, "ckpt-convert", tmp_path / "ckpt", tmp_path / "out", "--to",
                  "torch_dcp")
    assert "--bf16" in line


def without(state: dict, part: str, key: str) -> None:
    del (state["model"] if part == "model" else state["optimizer"][part])[key]


FC1 = "module.decoder.layers.0.mlp.linear_fc1.weight"


@pytest.mark.parametrize(("change", "code", "words"), [
    (lambda state: without(state, "model", FC1 + "_v"), MALFORMED, "_w"),
    (lambda state: without(state, "param_to_group_meta", "module." + FC1), MALFORMED, "is missing"),
    (lambda state: without(state, "state", "module.module.output_layer.weight"), MALFORMED,
     "output_layer.weight"),
    (lambda state: state["optimizer"]["param_to_group_meta"]["module." + FC1].update(lr=1.0),
     UNSUPPORTED, "differs from what another parameter of its group states"),
    (lambda state: [one.update(step=torch.tensor(float(i)))
                    for i, one in enumerate(state["optimizer"]["state"].values())],
     UNSUPPORTED, "counts other steps than other parameters"),
    (lambda state: next(iter(state["optimizer"]["state"].values())).update(
        step=torch.tensor(2.0)), MALFORMED, "step"),
    (lambda state: setattr(state["args"], "pipeline_model_parallel_size", 2), UNSUPPORTED,
     "pipeline_model_parallel_size"),
    (lambda state: state["model"].update({
        name: value.bfloat16() for name, value in state["model"].items()}), UNSUPPORTED,
     "is not a float32 master"),
    (lambda state: state["optimizer"].update(more=torch.zeros(2)), UNSUPPORTED, "is unknown"),
], ids=["half", "group", "state", "groups differ", "steps differ", "steps missing", "stages",
        "16-bit", "more"])
def test_what_does_not_fit_is_named(change, code: int, words: str, tmp_path: Path) -> None:
    state = small_state()
    change(state)
    folder = save(state, tmp_path / "ckpt")
    line = refuse(code, "ckpt-convert", folder, tmp_path / "out", "--to", "torch_dist")
    assert words in line, line
    assert not (tmp_path / "out").exists()
    assert run("ckpt-inspect", folder).code == 0  # the page says what is known


# Megatron compares a file's groups with the run's, and experts have some of their own above EP 1.
@pytest.mark.parametrize(("size", "own"), [(2, "groups of their own"), (1, "in one group")])
def test_groups_are_of_the_sources_experts(size: int, own: str, tmp_path: Path) -> None:
    source = GOLDEN / "runs/instances_moe_torch_2/ckpt"
    if size == 1:
        succeed("reshard", source, tmp_path / "source", "--ep", 1)
        source = tmp_path / "source"
    told = succeed("ckpt-convert", source, tmp_path / "out", "--to", "fsdp_dtensor").text
    assert f"experts are {own}" in told or f"experts have {own}" in told
    args = succeed("ckpt-inspect", "show", tmp_path / "out", "args").stdout
    assert f"expert_model_parallel_size: {size}" in args
    outcome = run("ckpt-inspect", "diff", source, tmp_path / "out")  # random states are one rank's
    assert "equal: 116" in outcome.text or "different: 0 of 116" in outcome.text


@needs_sets
def test_the_loss_scale_of_fp16_is_told_to_begin_anew(sets: Path, tmp_path: Path) -> None:
    told = succeed("ckpt-convert", sets / "par_do_adam_fp16_torch_tp2dp2/ckpt", tmp_path / "out",
                   "--to", "fsdp_dtensor").text
    assert "not carried: optimizer.0.grad_scaler: " in told
    assert "next training step: will differ" in told and "the loss scale begins anew" in told
