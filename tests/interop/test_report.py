"""Figures of `ckpt-inspect report` against PyTorch's: of a LayerWise and a ZeRO-1 checkpoint, of a
plain state dict; and of packed columns."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from parallel_sets import canonical_name
from programs import BIN, GOLDEN, refuse, run, succeed
from reading import DcpFolder, iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

LAYER_WISE = GOLDEN / "lw_muon_bf16_torch_dp2"
ZERO_1 = GOLDEN / "do_adam_bf16_torch_dist_fully_reshardable_dp2"

USAGE = 2
ALPHABET = "".join(chr(code) for code in range(32, 127) if chr(code) not in '"\\<>&')
CODES = 76843
LEVELS = (CODES - 2) // 2


class Digits:
    """docs/report.md, "The data"."""

    def __init__(self, text: str):
        self.digits = iter(text)

    def next(self) -> int:
        return ALPHABET.index(next(self.digits))

    def fixed(self, count: int) -> int:
        return sum(self.next() * 90**place for place in range(count))

    def count(self) -> int:
        number, weight = 0, 1
        while (digit := self.next()) >= 45:
            number += weight * (digit - 45)
            weight *= 45
        return number + weight * digit


def counts_of(column, count: int) -> list[int]:
    if isinstance(column, list):
        return column
    if "runs" in column:
        runs = column["runs"]
        return [value for value, times in zip(runs[::2], runs[1::2]) for _ in range(times)]
    digits = Digits(column["packed"])
    return [digits.count() for _ in range(count)]


def numbers_of(column, count: int) -> list[float | None]:
    if isinstance(column, list):
        return column
    digits, codes = Digits(column["packed"]), []
    while len(codes) < count:
        codes += divmod(digits.fixed(5), CODES)
    span = column["high"] - column["low"]

    def number(code: int) -> float | None:
        if code < 2:
            return [None, 0.0][code]
        size = math.exp(column["low"] + span * ((code - 2) % LEVELS) / (LEVELS - 1))
        return -size if code - 2 >= LEVELS else size

    return [number(code) for code in codes[:count]]


def names_of(column, count: int) -> list[str]:
    if isinstance(column, list):
        return column
    digits, names, before = Digits(column["packed"]), [], []
    for _ in range(count):
        shared, rest = divmod(digits.next(), 9)
        rest = digits.count() if rest == 8 else rest
        before = before[:shared] + [column["steps"][digits.count()] for _ in range(rest)]
        names.append(".".join(before))
    return names


def name_count(column, count: int) -> int:
    if isinstance(column, list):
        return len(column)
    if "runs" in column:
        return sum(column["runs"][1::2])
    digits, rows, names = Digits(column["packed"]), 0, 0
    while rows < count:
        rows += digits.count()
        names += 1
    return names


def rows_of(document: dict) -> dict[str, dict]:
    """Rows of the table by canonical names."""
    table = document["tensors"]
    count = table["count"]
    names_count = name_count(table["rows_of_names"], count)
    of_names = counts_of(table["rows_of_names"], names_count)
    names = names_of(table["names"], names_count)
    keys = [name for name, rows in zip(names, of_names) for _ in range(rows)]
    kinds = [table["kinds"][kind] for kind in counts_of(table["kind"], count)]
    rows = {}
    columns = {part: numbers_of(table[part], count)
               for part in ("min", "max", "mean", "std", "norm") if part in table}
    sparse = {part: dict(zip(table[part]["rows"], table[part]["counts"]))
              for part in ("zeros", "nan", "inf")}
    for row, (key, kind) in enumerate(zip(keys, kinds)):
        full = f"optimizer.state.{kind['state']}.{key}" if kind["state"] else key
        rows[full] = {part: column[row] for part, column in columns.items()}
        rows[full].update({part: counts.get(row, 0) for part, counts in sparse.items()})
        rows[full]["dtype"] = kind["dtype"]
    return rows


def check_row(row: dict, tensor: torch.Tensor, tolerance: float = 6e-5) -> None:
    numbers = tensor.double().flatten()
    finite = numbers[numbers.isfinite()]
    assert row["dtype"] == str(tensor.dtype).removeprefix("torch.")
    assert row["zeros"] == int((numbers == 0).sum())
    assert row["nan"] == int(numbers.isnan().sum())
    assert row["inf"] == int(numbers.isinf().sum())
    if finite.numel() == 0:
        assert row["min"] is None
        return
    known = numbers[~numbers.isnan()]  # an infinite end has no number in JSON
    largest = float(finite.abs().max())
    scaled = finite / (largest or 1.0)  # squares of what is tiny or huge are 0 or infinite
    expected = {"min": known.min(), "max": known.max(), "mean": finite.mean(),
                "std": scaled.std(correction=0) * largest, "norm": scaled.norm() * largest}
    for part, value in expected.items():
        if value.isinf():
            assert row.get(part) is None, part
        elif part in row:
            near = tolerance * abs(float(value)) + 1e-13 * largest
            assert row[part] == pytest.approx(float(value), abs=near), part


# What torch_dist calls otherwise than the model.
NAMES_IN_STORE = (
    ("optimizer.state.param.", "optimizer.state.fp32_param."),
    (".self_attention.linear_qkv.layer_norm_", ".input_layernorm."),
    (".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."),
)


def stored_state(root) -> dict[str, torch.Tensor]:
    """What PyTorch's metadata places in a torch_dist folder, each layer of a stack by its name."""
    folder = DcpFolder(iteration_folder(root))
    state = {}
    for key in folder.tensors():
        tensor = folder.tensor(key)
        for stored, name in NAMES_IN_STORE:
            key = key.replace(stored, name)
        if "decoder.layers." not in key:
            state[key] = tensor
            continue
        before, behind = key.split("decoder.layers.")
        for layer, part in enumerate(tensor):
            state[f"{before}decoder.layers.{layer}.{behind}"] = part
    return state


def recorded_state() -> dict[str, torch.Tensor]:
    recorded = load_file(LAYER_WISE / "expected/state.safetensors")
    return {canonical_name(name): tensor for name, tensor in recorded.items()}


@pytest.mark.parametrize("folder, states", [(LAYER_WISE, recorded_state),
                                            (ZERO_1, lambda: stored_state(ZERO_1 / "ckpt"))])
def test_figures_of_a_training_state_are_torchs(folder, states):
    rows = rows_of(succeed("ckpt-inspect", "report", folder / "ckpt", "--json").json())
    state = states()
    missing = rows.keys() - state.keys()
    assert not missing
    for name, row in rows.items():
        check_row(row, state[name])


def special_numbers() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randn(7, 1311, generator=generator)
    wild = numbers.clone()
    wild[0, :5] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
    return {
        "layer.0.weight": numbers.bfloat16(), "layer.0.bias": numbers[0].half(),
        "far.mean": 1e6 + numbers, "wild": wild, "nothing but nan": torch.full((3,), math.nan),
        "double": numbers.double() * 1e-200, "count": torch.arange(-5, 2000),
        "transposed": numbers.t(), "every second": numbers[:, ::2], "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4), "tiny": numbers * 1e-42, "flags": numbers > 0,
    }


def test_figures_of_a_plain_state_dict_are_torchs(tmp_path):
    state = special_numbers()
    torch.save(state, tmp_path / "state.pt")
    rows = rows_of(succeed("ckpt-inspect", "report", tmp_path / "state.pt", "--json").json())
    assert rows.keys() == state.keys()
    for name, tensor in state.items():
        check_row(rows[name], tensor)


def test_packed_figures_are_torchs(tmp_path):
    generator = torch.Generator().manual_seed(6)
    state = {f"layers.{i % 97}.experts.{i // 97}.w{i % 3}":
             torch.randn(5, generator=generator) * 10.0 ** (i % 7 - 3) for i in range(10_500)}
    save_file(state, tmp_path / "many.safetensors")
    document = succeed("ckpt-inspect", "report", tmp_path / "many.safetensors", "--json").json()
    assert "packed" in document["tensors"]["min"]
    rows = rows_of(document)
    assert rows.keys() == state.keys()
    for name, tensor in list(state.items())[::50]:
        check_row(rows[name], tensor, 2e-3)


def test_updates_are_adams():
    document = succeed("ckpt-inspect", "report", ZERO_1 / "ckpt", "--json").json()
    recorded = {name: tensor.double() for name, tensor in stored_state(ZERO_1 / "ckpt").items()}
    table = document["tensors"]
    row = 0
    for name, rows, norm in zip(table["names"], table["rows_of_names"], table["update_norm"]):
        group = document["groups"][table["group"][row] - 1]["settings"]
        row += rows
        beta1, beta2 = group["betas"]["$tuple"]
        m = recorded[f"optimizer.state.exp_avg.{name}"] / (1 - beta1 ** group["step"])
        v = recorded[f"optimizer.state.exp_avg_sq.{name}"] / (1 - beta2 ** group["step"])
        w = recorded[f"optimizer.state.fp32_param.{name}"]
        update = group["lr"] * (m / (v.sqrt() + group["eps"]) + group["weight_decay"] * w)
        assert norm == pytest.approx(float(update.norm()), rel=6e-5), name


def test_a_report_of_what_is_no_checkpoint_leaves_no_file(tmp_path):
    refused = run("ckpt-inspect", "report", GOLDEN / "README.md", "-o", tmp_path / "page.html")
    assert refused.code == 3
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_or_the_checkpoint_itself_is_never_replaced(tmp_path: Path) -> None:
    checkpoint, pipe = tmp_path / "x.pt", tmp_path / "pipe"
    torch.save({"a": torch.ones(4)}, checkpoint)
    before = checkpoint.read_bytes()
    os.mkfifo(pipe)
    for output in (checkpoint, pipe, tmp_path):
        refuse(USAGE, "ckpt-inspect", "report", checkpoint, "-o", output, "--force")
    assert checkpoint.read_bytes() == before and pipe.is_fifo()


@pytest.mark.parametrize("text", ("[" * 130_000 + "]" * 130_000, "[1, 2]", "{"))
def test_a_proof_that_is_none_is_left_out(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000003"
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt/iter_0000003", folder,
                    copy_function=shutil.copyfile)
    (folder / "shardwise-proof.json").write_text(text)
    document = succeed("ckpt-inspect", "report", folder, "--json").json()
    assert document.get("proof") is None


def test_of_a_sample_nothing_is_said_to_be_zero_everywhere(tmp_path: Path) -> None:
    state = {f"optimizer.state.exp_avg.layers.{i}.weight": torch.ones(65_536) for i in range(4)}
    for tensor in state.values():
        tensor.view(-1, 2, 64)[:, 0] = 0
    save_file(state, tmp_path / "x.safetensors")
    document = succeed("ckpt-inspect", "report", tmp_path / "x.safetensors", "--sample", "1K",
                       "--json").json()
    assert "all_zero" not in json.dumps(document["tensors"])
