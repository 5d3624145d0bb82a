"""Optimizers as training loops save them: FSDP and DCP, torch.save, Lightning, Hugging Face."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from programs import BIN, refuse, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

NOT_FOUND = 5

# get_state_dict() of an FSDP module, in one process: the optimizer nested, and flattened.
SAVE_FSDP = """
import os, sys
os.environ.update(RANK="0", WORLD_SIZE="1")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh

store = "file://" + sys.argv[1] + "/store"
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.AdamW(
    [
        {"params": [model[0].weight], "weight_decay": 0.1},
        {"params": [model[0].bias, *model[1].parameters()], "weight_decay": 0.0},
    ],
    lr=1e-3,
)
for _ in range(2):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
for flatten in (False, True):
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    state, optimizer_state = get_state_dict(model, optimizer, options=options)
    tree = {"model": state, "optimizer": optimizer_state}
    if flatten:
        tree = {"app": {"model": state, "optim": optimizer_state}}
    dcp.save(tree, checkpoint_id=sys.argv[1] + ("/flat" if flatten else "/nested"))
os._exit(0)  # beside other programs, torch has ended in std::terminate at exit
"""


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    subprocess.run([sys.executable, "-c", SAVE_FSDP, folder], check=True, timeout=300)
    return folder


def kinds_of(path: Path) -> dict[str, int]:
    tensors = succeed("ckpt-inspect", "ls", path, "--json").json()["tensors"]
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor["kind"]] = counts.get(tensor["kind"], 0) + 1
    return counts


def groups_of(path: Path) -> list[dict]:
    return succeed("ckpt-inspect", "groups", path, "--json").json()["groups"]


def summary_of(groups: list[dict]) -> list[tuple]:
    keys = ("lr", "weight_decay", "step")
    return [(g["parameters"], *(g["settings"][key] for key in keys)) for g in groups]


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_the_state_of_fsdp_is_the_optimizers(form: str, fsdp: Path) -> None:
    assert kinds_of(fsdp / form) == {"model": 4, "optimizer_state": 12}


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_the_groups_of_fsdp_have_their_settings(form: str, fsdp: Path) -> None:
    """Flattened ones are stored for each parameter, and told as the groups that they were."""
    groups = groups_of(fsdp / form)
    assert summary_of(groups) == [(1, 1e-3, 0.1, 2), (3, 1e-3, 0.0, 2)]
    assert {g["file"] for g in groups} == {"app.optim" if form == "flat" else "optimizer"}
    assert "params" not in groups[0]["settings"]
    text = succeed("ckpt-inspect", "groups", fsdp / form).stdout
    assert "(0.9, 0.999)" in text


def test_a_rank_of_fsdp_has_all_of_its_state(fsdp: Path) -> None:
    ranks = {form: succeed("ckpt-inspect", "groups", fsdp / form, "--json").json()["ranks"]
             for form in ("nested", "flat")}  # fmt: skip
    assert ranks["nested"] == ranks["flat"]
    assert ranks["flat"][0]["elements"] == 2 * (12 + 3 + 3 + 3) + 4


def stepped_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}], lr=0.5
    )
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def trees() -> dict[str, object]:
    model, optimizer = stepped_optimizer()
    weights, state = model.state_dict(), optimizer.state_dict()
    return {
        "a training loop": {"model": weights, "optimizer": state, "epoch": 1},
        "another name": {"model_state_dict": weights, "optimizer_state_dict": state},
        "torchtitan": {"model": weights, "optim": state},
        "Lightning": {
            "epoch": 0, "global_step": 1, "pytorch-lightning_version": "2.4.0",
            "state_dict": weights, "optimizer_states": [state], "lr_schedulers": [], "loops": {},
        },
        "optimizer.pt of Hugging Face's trainer": state,
        "an application's": {"app": {"model": weights, "optim": state}},
        "a name of its own": {"net": weights, "adamw": state},
    }  # fmt: skip


@pytest.mark.parametrize("name", list(trees()))
def test_the_groups_of_a_training_loop(name: str, tmp_path: Path) -> None:
    torch.save(trees()[name], tmp_path / "a.pt")
    assert summary_of(groups_of(tmp_path / "a.pt")) == [(1, 0.5, 0.01, 1), (1, 0.5, 0.0, 1)]


@pytest.mark.parametrize("name", [name for name in trees() if name != "a name of its own"])
def test_the_state_of_a_training_loop_is_the_optimizers(name: str, tmp_path: Path) -> None:
    torch.save(trees()[name], tmp_path / "a.pt")
    counts = kinds_of(tmp_path / "a.pt")
    assert counts.pop("optimizer_state") == 6
    assert counts in ({"model": 2}, {})


def names_of(path: Path) -> tuple[str, list[tuple]]:
    document = succeed("ckpt-inspect", "groups", path, "--json").json()
    rows = [(row["key"], row["group"], tuple(row["shape"])) for row in document["parameters"]]
    return document["names"], rows


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_parameters_of_fsdp_are_counted_once_and_named(form: str, fsdp: Path) -> None:
    source, rows = names_of(fsdp / form)
    assert source == "param_groups"
    assert sorted(rows) == [("0.bias", 1, (3,)), ("0.weight", 0, (3, 4)), ("1.bias", 1, (3,)),
                            ("1.weight", 1, (3,))]
    document = succeed("ckpt-inspect", "groups", fsdp / form, "--json").json()
    assert [rank["parameters"] for rank in document["ranks"]] == [4]
    assert [group["elements"] for group in document["groups"]] == [12, 9]
    assert "unnamed_reason" not in document


def transformer() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Embedding(7, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 9),
        torch.nn.Linear(9, 4), torch.nn.BatchNorm1d(4))  # fmt: skip


def save_stepped(path: Path, model: torch.nn.Module, groups: list, **tree: object) -> None:
    optimizer = torch.optim.AdamW(groups, lr=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **tree}, path)


def by_dims(model: torch.nn.Module, named: bool = False) -> list[dict]:
    """Matrices decay, the others do not."""
    parameters = list(model.named_parameters())
    pick = (lambda each: each) if named else (lambda each: each[1])
    return [{"params": [pick(each) for each in parameters if each[1].ndim > 1]},
            {"params": [pick(each) for each in parameters if each[1].ndim == 1],
             "weight_decay": 0.0}]  # fmt: skip


@pytest.mark.parametrize("one_group", (True, False))
def test_numbers_get_the_names_that_only_the_order_of_the_model_gives(
    one_group: bool, tmp_path: Path
) -> None:
    model = transformer()
    groups = [{"params": list(model.parameters())}] if one_group else by_dims(model)
    save_stepped(tmp_path / "a.pt", model, groups, loss=torch.tensor(0.5))
    names = {id(value): name for name, value in model.named_parameters()}
    wanted = [(names[id(value)], i, tuple(value.shape))
              for i, group in enumerate(groups) for value in group["params"]]  # fmt: skip
    assert names_of(tmp_path / "a.pt") == ("model_order", wanted)


def test_names_that_the_groups_have_count_before_all_else(tmp_path: Path) -> None:
    model = transformer()
    groups = by_dims(model, named=True)
    groups[1]["params"].reverse()  # which no order of the model tells
    wanted = [name for group in groups for name, _ in group["params"]]
    save_stepped(tmp_path / "a.pt", model, groups)
    source, rows = names_of(tmp_path / "a.pt")
    assert source == "param_names"
    assert [row[0] for row in rows] == wanted
    text = succeed("ckpt-inspect", "groups", tmp_path / "a.pt")
    assert "param_names" in text.stderr and "param_names" not in text.stdout


# Optimizers whose parameters nothing names for certain, and why.
def swapped(model: torch.nn.Module) -> list[dict]:
    """Two groups that could be each other's: weight and bias of a norm have one shape."""
    parameters = list(model.parameters())
    return [{"params": parameters[0:2]}, {"params": parameters[2:], "lr": 0.1}]


UNNAMED = {
    "groups of equal shapes": (lambda model: swapped(model), "in no order, or in several"),
    "a part of the model": (lambda model: list(model.parameters())[:3], "in no order"),
    "another order": (lambda model: list(model.parameters())[::-1], "in no order"),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_numbers_stay_numbers_where_nothing_proves_a_name(name: str, tmp_path: Path) -> None:
    groups, why = UNNAMED[name]
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 5))
    save_stepped(tmp_path / "a.pt", model, groups(model))
    source, rows = names_of(tmp_path / "a.pt")
    assert source == "numbers"
    assert [row[0] for row in rows] == [str(i) for i in range(len(rows))]
    assert why in succeed("ckpt-inspect", "groups", tmp_path / "a.pt").stderr


def test_numbers_without_a_shape_or_a_model_stay_numbers(tmp_path: Path) -> None:
    model = transformer()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.save({"model": model.state_dict(), "optimizer": plain.state_dict()}, tmp_path / "sgd.pt")
    outcome = succeed("ckpt-inspect", "groups", tmp_path / "sgd.pt")
    assert "no state that tells their shapes" in outcome.stderr
    save_stepped(tmp_path / "a.pt", model, list(model.parameters()))
    torch.save(torch.load(tmp_path / "a.pt")["optimizer"], tmp_path / "alone.pt")
    outcome = succeed("ckpt-inspect", "groups", tmp_path / "alone.pt")
    assert "their file holds no model" in outcome.stderr


def test_parameters_of_other_step_counts_are_told(tmp_path: Path) -> None:
    _, optimizer = stepped_optimizer()
    state = optimizer.state_dict()
    state["param_groups"] = [{**state["param_groups"][0], "params": [0, 1]}]
    state["state"][1]["step"] = torch.tensor(7.0)
    torch.save({"optimizer": state}, tmp_path / "a.pt")
    text = succeed("ckpt-inspect", "groups", tmp_path / "a.pt").stdout
    assert "(1, 7)" in text


def test_an_error_about_the_only_file_names_it(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pt")
    line = refuse(NOT_FOUND, "ckpt-inspect", "groups", tmp_path / "weights.pt")
    assert f"{tmp_path}/weights.pt: has no parameter groups" in line
    outcome = subprocess.run(
        [BIN / "ckpt-inspect", "groups", "weights.pt"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "error: weights.pt: has no parameter groups" in outcome.stderr


def test_keys_and_globs_of_a_conversion_have_any_spelling(tmp_path: Path) -> None:
    tree = {"state_dict": {"0.weight": torch.ones(2), "0.bias": torch.zeros(2)}, "epoch": 3}
    torch.save(tree, tmp_path / "a.pt")

    def made(*options: str) -> set[str]:
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors"
        succeed("ckpt-convert", tmp_path / "a.pt", target, "--to", "safetensors", *options)
        return {t["key"] for t in succeed("ckpt-inspect", "ls", target, "--json").json()["tensors"]}

    both = {"state_dict.0.weight", "state_dict.0.bias"}
    assert made("--include", "/state_dict/*") == both
    assert made("--include", "/state_dict/0.weight") == {"state_dict.0.weight"}
    assert made("--exclude", "state_dict/0/weight") == {"state_dict.0.bias"}
    assert made("--rename", "/state_dict=") == {"0.weight", "0.bias"}
    assert made("--rename", "state_dict/0=/net/first") == {"net.first.weight", "net.first.bias"}
    line = refuse(NOT_FOUND, "ckpt-convert", tmp_path / "a.pt", tmp_path / "no", "--to", "torch",
                  "--rename", "state_dcit=x")  # fmt: skip
    assert "state_dcit" in line
    outcome = run("ckpt-convert", tmp_path / "a.pt", tmp_path / "no", "--to", "torch",
                  "--include", "epoch", "--include", "state_dict.0.wieght")  # fmt: skip
    assert outcome.code == NOT_FOUND and "did you mean 'state_dict.0.weight'?" in outcome.stderr


@pytest.mark.parametrize("to", ["torch", "torch_dist"])
def test_a_rename_inside_a_step_keeps_a_key_whole(to: str, tmp_path: Path) -> None:
    """A state dict's keys have dots in them: the front may end at one."""
    tree = {"state_dict": {"0.weight": torch.ones(2), "1.weight": torch.zeros(2)}}
    torch.save(tree, tmp_path / "a.pt")
    succeed("ckpt-convert", tmp_path / "a.pt", tmp_path / "b", "--to", to,
            "--rename", "state_dict.0=first")  # fmt: skip
    succeed("ckpt-convert", tmp_path / "b", tmp_path / "c.pt", "--to", "torch")
    loaded = torch.load(tmp_path / "c.pt")
    assert torch.equal(loaded["first"]["weight"], torch.ones(2))
    assert torch.equal(loaded["state_dict"]["1.weight"], torch.zeros(2))
