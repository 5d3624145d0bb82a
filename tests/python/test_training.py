"""The training state, the same in every layout; what a rank has is what Megatron saved on it."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import shardwise as sw
from conftest import GOLDEN, MEGATRON

FOLDER = MEGATRON["torch"] / "iter_0000003/mp_rank_00"
NAME = "decoder.layers.0.mlp.linear_fc1.weight"


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal, tensors bit by bit; of objects what they hold."""
    if isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in b)
    if isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (sw.Inert, sw.Global)):
        return True  # an object: looked at by name below
    return bool(a == b)


def saved(name: str) -> Any:
    return torch.load(FOLDER / name, weights_only=False, map_location="cpu")


@pytest.mark.parametrize("layout", MEGATRON)
def test_each_parameter_has_its_weight_master_states_and_group(layout: str) -> None:
    with sw.open(MEGATRON[layout]) as checkpoint:
        params = checkpoint.params
        groups = checkpoint.optimizer.groups
    assert len(params) == 8 and sum(len(group["params"]) for group in groups) == 8
    param = params[NAME]
    assert param.name == NAME and param.shape == param.weight.shape
    assert param.master is not None and set(param.states) == {"momentum_buffer"}
    assert torch.equal(param.master.torch().bfloat16(), param.weight.torch())
    assert param.group is not None and param.group["rule"] == "Muon" and param.group["lr"] > 0
    assert NAME in param.group["params"] and param.group in groups


def test_both_layouts_have_the_same_training_state() -> None:
    with sw.open(MEGATRON["torch_dist"]) as a, sw.open(MEGATRON["torch"]) as b:
        assert list(a.params) == list(b.params)
        for name, param in a.params.items():
            other = b.params[name]
            assert torch.equal(param.weight.torch(), other.weight.torch())
            assert list(param.states) == list(other.states)
            for state, tensor in param.states.items():
                assert torch.equal(tensor.torch(), other.states[state].torch())


@pytest.mark.parametrize("layout", MEGATRON)
@pytest.mark.parametrize("dp", [0, 1])
def test_a_rank_has_what_megatron_saved_on_it(layout: str, dp: int) -> None:
    with sw.open(MEGATRON[layout]) as checkpoint:
        state = checkpoint.rank(tp=0, pp=0, dp=dp).state_dict()
    expected = saved("model_optim_rng.pt")
    assert same(state["model"], expected["model"])
    assert same(state["optimizer"], saved(f"layer_wise_optimizer_{dp}.pt"))
    assert state["iteration"] == 3 and state["args"].num_layers == expected["args"].num_layers
    assert state["args"].rank == dp and set(expected) <= set(state)


def test_a_rank_of_parts_of_tensors_equals_the_file_that_reshard_writes(tmp_path: Path) -> None:
    sw.reshard(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", tmp_path / "tp2", tp=2, dp=1)
    sw.convert(tmp_path / "tp2", tmp_path / "ranks", to="torch")
    with sw.open(tmp_path / "tp2") as checkpoint:
        state = checkpoint.rank(tp=1).state_dict()
        lazy = checkpoint.rank(tp=1).state_dict(framework="lazy")
    expected = torch.load(tmp_path / "ranks/iter_0000003/mp_rank_01/model_optim_rng.pt",
                          weights_only=False)
    assert same(state["model"], expected["model"])
    assert same(state["optimizer"], expected["optimizer"])
    for name, tensor in lazy["model"].items():
        if isinstance(tensor, sw.Tensor):
            assert torch.equal(tensor[-1:].torch(), expected["model"][name][-1:])
            assert tensor.shape == tuple(expected["model"][name].shape)


def test_places_that_are_not_there_are_refused_by_name() -> None:
    with sw.open(MEGATRON["torch"]) as checkpoint:
        with pytest.raises(sw.InvalidArgumentError, match="no rank at this place.* 2 ranks"):
            checkpoint.rank(tp=1).state_dict()
        with pytest.raises(sw.InvalidArgumentError, match="no such model chunk"):
            checkpoint.rank(vpp=1).state_dict()
        assert "model" in checkpoint.rank(vpp=0, ep=0, etp=0, cp=0).state_dict("numpy")
        with pytest.raises(sw.InvalidArgumentError, match="framework"):
            checkpoint.rank().state_dict("jax")


def test_flat_buffers_come_with_the_rank() -> None:
    source = GOLDEN / "do_adam_bf16_torch_dp2/ckpt"
    with sw.open(source) as checkpoint:
        state = checkpoint.rank(dp=1).state_dict()
        assert all(param.states for param in checkpoint.params.values())
    assert "distrib_optim" in state and "model" in state


def test_what_is_no_training_checkpoint_has_groups_at_most(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "a.pt")
    with sw.open(tmp_path / "a.pt") as checkpoint:
        with pytest.raises(sw.UnsupportedError):
            checkpoint.params
        group, = checkpoint.optimizer.groups
        assert group["lr"] == 0.5 and group["rule"] == "AdamW" and group["params"] == []
