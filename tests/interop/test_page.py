"""What `ckpt-inspect PATH` counts, beside what PyTorch and Megatron would say of the same files."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from programs import succeed

HIDDEN, VOCAB, LAYERS = 8, 32, 4


def page(path: Path, *options: object) -> dict:
    return succeed("ckpt-inspect", path, "--json", *options).json()


def page_text(path: Path) -> list[str]:
    return succeed("ckpt-inspect", path).stdout.splitlines()


def layer(number: int) -> dict[str, list[int]]:
    """Shapes of a layer of the whole model; "|" after the name: split along that dimension."""
    name = f"decoder.layers.{number}."
    return {
        name + "input_layernorm.weight": [HIDDEN],
        name + "self_attention.linear_qkv.weight|0": [3 * HIDDEN, HIDDEN],
        name + "self_attention.linear_proj.weight|1": [HIDDEN, HIDDEN],
        name + "mlp.linear_fc1.weight|0": [4 * HIDDEN, HIDDEN],
        name + "mlp.linear_fc1.bias|0": [4 * HIDDEN],
        name + "mlp.linear_fc2.weight|1": [HIDDEN, 4 * HIDDEN],
        name + "mlp.linear_fc2.bias": [HIDDEN],
    }


def count(shapes: dict[str, list[int]]) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def save_ranks(
    root: Path, tensor: int, pipeline: int, tied: bool, extra: dict | None = None
) -> int:
    """A folder of format `torch` as Megatron's ranks write it; the model's number of parameters."""
    args = argparse.Namespace(
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
        context_parallel_size=1, expert_model_parallel_size=1, expert_tensor_parallel_size=1,
        data_parallel_size=1, world_size=tensor * pipeline, no_save_optim=True,
        untie_embeddings_and_output_weights=not tied)
    first = {"embedding.word_embeddings.weight|0": [VOCAB, HIDDEN]}
    last = {"decoder.final_layernorm.weight": [HIDDEN]}
    output = {"output_layer.weight|0": [VOCAB, HIDDEN]}
    stage_layers = LAYERS // pipeline
    for stage in range(pipeline):
        shapes = dict(extra or {})
        for number in range(stage_layers):
            shapes |= layer(number)
        shapes |= first if stage == 0 else {}
        shapes |= last if stage == pipeline - 1 else {}
        has_output = not tied or pipeline > 1  # tied, one stage: the embedding is used as it is
        shapes |= output if stage == pipeline - 1 and has_output else {}
        for rank in range(tensor):
            name = f"mp_rank_{rank:02}" + (f"_{stage:03}" if pipeline > 1 else "")
            model = {}
            for key, shape in shapes.items():
                plain, _, dimension = key.partition("|")
                part = list(shape)
                if dimension:
                    part[int(dimension)] //= tensor
                model[plain] = torch.randn(part, dtype=torch.bfloat16)
            folder = root / "iter_0000003" / name
            folder.mkdir(parents=True)
            torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 3, "model": model},
                       folder / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("3")
    whole = LAYERS * count(layer(0)) + count(first) + count(last)
    return whole + (0 if tied else count(output))


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_parts_and_copies_of_ranks_count_once(
    tmp_path: Path, tensor: int, pipeline: int, tied: bool
) -> None:
    expected = save_ranks(tmp_path / "ckpt", tensor, pipeline, tied)
    document = page(tmp_path / "ckpt")
    assert document["parameters"] == expected
    assert document["format_variant"] == "megatron"
    assert document["status"]["health"] == "complete"
    layers = document["modules"][0]
    assert layers["name"] == f"decoder.layers.0-{LAYERS - 1}"
    assert layers["parameters"] == LAYERS * count(layer(0))
    assert document["largest"][0]["shape"] == [4 * HIDDEN, HIDDEN]


def test_a_name_that_may_be_split_or_not_leaves_the_count_open(tmp_path: Path) -> None:
    save_ranks(tmp_path / "ckpt", 2, 1, False, {"decoder.mixer.in_proj.weight": [6, 6]})
    document = page(tmp_path / "ckpt")
    assert "parameters" not in document and "tensor parallelism" in document["uncounted_reason"]
    assert any("parameters not counted" in line for line in page_text(tmp_path / "ckpt"))


def test_a_missing_rank_folder_is_told(tmp_path: Path) -> None:
    save_ranks(tmp_path / "ckpt", 2, 1, False)
    folder = tmp_path / "ckpt/iter_0000003/mp_rank_01"
    (folder / "model_optim_rng.pt").unlink()
    folder.rmdir()
    assert page(tmp_path / "ckpt")["missing_files"] == ["mp_rank_01/model_optim_rng.pt"]
    assert "status     incomplete: mp_rank_01/model_optim_rng.pt is missing" in page_text(
        tmp_path / "ckpt")


def test_tied_weights_of_a_state_dict_count_once(tmp_path: Path) -> None:
    shared = torch.randn(VOCAB, HIDDEN)
    model = {"embed.weight": shared, "head.weight": shared, "norm.weight": torch.ones(4)}
    torch.save({"model": model}, tmp_path / "tied.pt")
    document = page(tmp_path / "tied.pt")
    assert document["parameters"] == VOCAB * HIDDEN + 4
    assert "format_variant" not in document


def test_optimizer_state_of_a_plain_dcp_folder_is_its_parameters(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    from torch.distributed.checkpoint.state_dict import get_state_dict
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    document = page(tmp_path / "dcp")
    assert document["format_variant"] == "dcp"
    assert document["parameters"] == sum(p.numel() for p in model.parameters())
    assert document["optimizer"]["states"] == ["exp_avg", "exp_avg_sq", "step"]
    assert document["optimizer"]["step"] == 1
    sizes = {module["name"]: module for module in document["modules"]}
    assert sizes["model.0"]["parameters"] == 15
    assert sizes["model.0"]["optimizer_bytes"] == 2 * 15 * 4 + 2 * 4  # moments and two step counts
    assert document["unnamed_optimizer_bytes"] == 0


def test_a_page_has_at_most_24_lines_of_80_columns(tmp_path: Path) -> None:
    weights = {
        f"part_{i}.layers.{n}.weight": torch.ones(i + 1, 2) for i in range(9) for n in range(3)}
    torch.save({"state_dict": weights}, tmp_path / "many.pt")
    lines = page_text(tmp_path / "many.pt")
    assert len(lines) <= 24 and max(map(len, lines[1:])) <= 80
