"""A model that FSDP's ranks, DCP or torch.save hold becomes a Hugging Face folder.

As verl's own merger does: the weights under transformers' names, config.json and the tokenizer that
lie beside. transformers loads the folder, and every tensor is the model's.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from programs import BIN, refuse, succeed
from test_rank_files_for_other_ranks import in_processes

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED = 4
RANKS = 3


def llama(**more: object) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=37, hidden_size=12, intermediate_size=22, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, **more))


def save_rank(rank: int, count: int, folder: Path) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    net = fully_shard(llama(), mesh=init_device_mesh("cpu", (count,), mesh_dim_names=("fsdp",)))
    optimizer = {"state": {}, "param_groups": []}
    for kind, value in (("model", net.state_dict()), ("optim", optimizer), ("extra_state", {})):
        torch.save(value, folder / f"{kind}_world_size_{count}_rank_{rank}.pt")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As verl leaves it."""
    logging.disable(logging.WARNING)
    folder = tmp_path_factory.mktemp("actor")
    in_processes(RANKS, save_rank, folder)
    beside = folder / "huggingface"
    llama().config.save_pretrained(beside)
    config = json.loads((beside / "config.json").read_text())
    config["architectures"] = ["LlamaForCausalLM"]
    (beside / "config.json").write_text(json.dumps(config))
    (beside / "tokenizer.json").write_text("{}")
    (beside / "modeling_own.py").write_text("# code of the model's own")
    (beside / "model.safetensors").write_text("weights of another time")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": RANKS}))
    return folder


def require_loaded(folder: Path, dtype: torch.dtype = torch.float32) -> None:
    from transformers import AutoModelForCausalLM

    net, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True)
    assert not any(info.values()), info
    wanted = llama().to(dtype).state_dict()
    found = net.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_transformers_loads_what_ranks_of_verl_saved(saved: Path, tmp_path: Path) -> None:
    told = succeed("ckpt-convert", saved, tmp_path / "hf", "--to", "huggingface", "--verify",
                   "--shard-size", 4000, "-v").text
    assert "torch -> huggingface (llama, LlamaForCausalLM, by config.json)" in told
    assert "left out: optim, extra_state" in told
    assert "not carried: weights in huggingface: a checkpoint of its own" in told
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert names >= {"config.json", "tokenizer.json", "modeling_own.py",
                     "model.safetensors.index.json"}
    require_loaded(tmp_path / "hf")
    again = tmp_path / "rounded"
    succeed("ckpt-convert", tmp_path / "hf", again, "--to", "huggingface", "--dtype", "bfloat16",
            "--dtype", "lm_head.weight=float32")
    assert load_file(again / "model.safetensors")["lm_head.weight"].dtype == torch.float32
    require_loaded(again, torch.bfloat16)


def as_file(folder: Path) -> Path:
    path = folder / "last.ckpt"
    torch.save({"epoch": 3, "state_dict": llama().state_dict()}, path)
    return path


def as_dcp(folder: Path) -> Path:
    dcp.save({"app": {"model": llama().state_dict()}}, checkpoint_id=folder / "step")
    return folder / "step"


@pytest.mark.parametrize("save", [as_file, as_dcp])
def test_a_folder_that_is_named_says_what_the_model_is(
    save: Callable[[Path], Path], saved: Path, tmp_path: Path
) -> None:
    source, command = save(tmp_path), ("--to", "huggingface")
    error = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "hf", *command)
    assert "without config.json" in error
    succeed("ckpt-convert", source, tmp_path / "hf", *command, "--args-from",
            saved / "huggingface", "--tokenizer-from", saved / "huggingface")
    require_loaded(tmp_path / "hf")


def changed(change: Callable[[dict], None]) -> dict:
    state = dict(llama().state_dict())
    change(state)
    return state


# A model of other names or shapes than config.json's is not written under its name.
@pytest.mark.parametrize(("change", "problem"), [
    (lambda state: state.pop("model.norm.weight"),
     "model.norm.weight': is not in the folder, and LlamaForCausalLM needs it"),
    (lambda state: state.update({"value.weight": torch.ones(2)}),
     "value.weight': has no place in LlamaForCausalLM"),
    (lambda state: state.update({"lm_head.weight": torch.ones(37, 11)}), "lm_head.weight"),
    (lambda state: state.update({"base_model.model.x.lora_A.default.weight": torch.ones(2)}),
     "adapter of PEFT"),
])
def test_another_model_is_refused(
    change: Callable[[dict], None], problem: str, saved: Path, tmp_path: Path
) -> None:
    torch.save({"model": changed(change)}, tmp_path / "a.pt")
    assert problem in refuse(UNSUPPORTED, "ckpt-convert", tmp_path / "a.pt", tmp_path / "hf",
                             "--to", "huggingface", "--args-from", saved / "huggingface")


# A running model has experts in one tensor, which save_pretrained() takes apart. So is done
# here; its own names load, too.
def test_experts_are_taken_apart(tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    net = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=37, hidden_size=12, intermediate_size=22, num_hidden_layers=2, head_dim=6,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=6))
    net.save_pretrained(tmp_path / "theirs")
    torch.save({"model": net.state_dict()}, tmp_path / "a.pt")
    command = ("ckpt-convert", tmp_path / "a.pt", tmp_path / "ours", "--to", "huggingface",
               "--args-from", tmp_path / "theirs", "--verify")
    assert "experts are taken apart" in succeed(*command).text
    ours, theirs = (load_file(tmp_path / each / "model.safetensors")
                    for each in ("ours", "theirs"))
    assert ours.keys() == theirs.keys() and len(ours) > len(net.state_dict())
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    succeed(*command, "--force", "--dtype", "bfloat16", "--dtype", "*.gate_proj.weight=float32")
    rounded = load_file(tmp_path / "ours/model.safetensors")
    for key, value in theirs.items():
        kept = key.endswith(".gate_proj.weight")
        assert torch.equal(rounded[key], value if kept else value.bfloat16()), key
    succeed(*command, "--force", "--names", "none")
    again = Qwen3MoeForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).state_dict()
    assert all(torch.equal(again[key], value) for key, value in net.state_dict().items())


# torchtitan's keys are not nested: rules choose the model's.
def test_rules_choose_keys(saved: Path, tmp_path: Path) -> None:
    state = llama().state_dict()
    flat = {f"state.{key}.exp_avg": value for key, value in state.items()} | {
        f"model.{key}": value for key, value in state.items()}
    dcp.save(flat, checkpoint_id=tmp_path / "step-2")
    command = ("ckpt-convert", tmp_path / "step-2", tmp_path / "hf", "--to", "huggingface",
               "--args-from", saved / "huggingface")
    assert "do not say what the model is" in refuse(UNSUPPORTED, *command)
    succeed(*command, "--include", "model.*", "--rename", "model=")
    require_loaded(tmp_path / "hf")


# The actor's folder of a step is found, with and without a slash.
@pytest.mark.parametrize("end", ["", "/"])
def test_a_step_of_verl_is_its_actor(end: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "global_step_6/actor")
    step = f"{tmp_path}/global_step_6{end}"
    succeed("ckpt-convert", step, tmp_path / "hf", "--to", "huggingface")
    require_loaded(tmp_path / "hf")


# An architecture that no table has: its names are carried, and that they were not compared is told.
def test_names_that_were_not_compared_are_told(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.json").write_text('{"architectures": ["OwnModel"], "dtype": "float16"}')
    torch.save({"head.weight": torch.ones(2, 3)}, tmp_path / "a.pt")
    command = ("ckpt-convert", tmp_path / "a.pt", tmp_path / "hf", "--to", "huggingface",
               "--args-from", tmp_path / "own")
    assert "no table is built in for OwnModel" in refuse(UNSUPPORTED, *command, "--strict")
    told = succeed(*command).text
    assert "not compared with the architecture's: no table is built in for OwnModel" in told
    assert "weights are float32, config.json says float16" in told
    assert load_file(tmp_path / "hf/model.safetensors")["head.weight"].tolist() == [[1] * 3] * 2
