"""What `ckpt-inspect PATH` counts, beside what PyTorch and Megatron would say of the same files."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

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
    assert len(lines) <= 24 and max(map(len, lines[1:-1])) <= 80
    assert lines[-1].strip() == str(tmp_path / "many.pt")


def test_what_to_do_next_can_be_pasted(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "it's a $file.pt")
    word = page_text(tmp_path / "it's a $file.pt")[-1].strip()
    outcome = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, text=True)
    assert outcome.stdout == str(tmp_path / "it's a $file.pt")


WEIGHTS = {"0.weight": torch.ones(3, 2), "0.bias": torch.zeros(3)}
# What lies at the root beside the weights, and the line that says how far the run was.
RUNS = {
    "Lightning": (
        {"pytorch-lightning_version": "2.6.1", "epoch": 1, "global_step": 40},
        "Lightning 2.6.1; epoch 1, global_step 40"),
    "DeepSpeed": ({"ds_version": "0.19.8", "global_steps": 7}, "DeepSpeed 0.19.8; global_steps 7"),
    "a loop": ({"epoch": 3, "step": 12}, "epoch 3, step 12"),
    "numbers that are none": ({"epoch": "three", "step": -1, "global_step": 1.5}, None),
    "nothing": ({}, None),
}


def line_of(label: str, path: Path) -> str | None:
    """What stands behind the label, on its line and those that go on with it."""
    found = re.search(rf"^{label} *(.*(?:\n +.*)*)", "\n".join(page_text(path)), re.MULTILINE)
    return " ".join(found[1].split()) if found else None


@pytest.mark.parametrize("name", RUNS)
def test_a_page_says_who_wrote_it_and_how_far_it_was(name: str, tmp_path: Path) -> None:
    root, line = RUNS[name]
    torch.save({"state_dict": WEIGHTS, **root}, tmp_path / "a.ckpt")
    assert line_of("run", tmp_path / "a.ckpt") == line
    dcp.save({"model": WEIGHTS, **root}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert line_of("run", tmp_path / "dcp") == line
    trainer = page(tmp_path / "dcp").get("trainer", {})
    assert trainer.get("epoch") == (root.get("epoch") if line else None)


def test_a_page_of_the_trainer_says_so_however_long_its_log_is(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    log = [{"loss": float("nan"), "step": step} for step in range(50_000)]
    state = {"epoch": 0.25, "global_step": 300, "log_history": log}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "config.json").write_text(json.dumps({"transformers_version": "4.57.1"}))
    assert line_of("run", tmp_path) == (
        "Hugging Face Trainer (transformers 4.57.1); epoch 0.25, global_step 300 "
        "(trainer_state.json)")
    assert page(tmp_path)["trainer"] == {
        "name": "Hugging Face Trainer", "version": "transformers 4.57.1", "epoch": 0.25,
        "step": 300, "source": "trainer_state.json"}
    (tmp_path / "trainer_state.json").write_text("[1, {")
    assert line_of("run", tmp_path) is None


def test_what_is_no_parameter_is_not_counted(tmp_path: Path) -> None:
    tree = {
        "model": WEIGHTS, "ema": {name: value * 2 for name, value in WEIGHTS.items()},
        "loss": torch.tensor(0.5), "rng": torch.get_rng_state(), "cpu": torch.get_rng_state(),
        "random": {"cuda": torch.zeros(16, dtype=torch.uint8)},
    }
    torch.save(tree, tmp_path / "a.pt")
    document = page(tmp_path / "a.pt")
    assert document["parameters"] == 9
    kinds = {name: total["count"] for name, total in document["kinds"].items()}
    assert (kinds["model"], kinds["average"], kinds["rng_state"], kinds["progress"]) == (2, 2, 3, 1)
    assert line_of("types", tmp_path / "a.pt") == "float32 model, float32 moving average"
    torch.save({"ema": WEIGHTS}, tmp_path / "b.pt")
    assert page(tmp_path / "b.pt")["parameters"] == 9


def test_states_of_adafactor_are_not_the_models(tmp_path: Path) -> None:
    """torch's, in a DCP folder as torchtitan flattens it."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adafactor(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    dcp.save({**weights, **state}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    document = page(tmp_path / "dcp")
    assert document["parameters"] == 8
    assert document["optimizer"]["states"] == ["col_var", "row_var", "step", "variance"]


def test_a_tree_ends_with_what_the_bytes_are_for(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": 0.5,
            "ema": model.state_dict(), "rng": torch.get_rng_state()}
    tree["ema"] = {name: value.clone() for name, value in tree["ema"].items()}
    torch.save(tree, tmp_path / "a.pt")
    document = succeed("ckpt-inspect", "tree", tmp_path / "a.pt", "--json").json()
    uses = {use["use"]: (use["count"], use["bytes"]) for use in document["uses"]}
    assert uses.pop("objects")[1] == 0
    assert uses == {"random_states": (1, 5056), "moments": (4, 120), "weights": (2, 60),
                    "averages": (2, 60), "other_state": (2, 8)}
    assert sum(size for _, size in uses.values()) == document["tree"]["bytes"]
