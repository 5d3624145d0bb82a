"""ckpt-inspect can-load: PyTorch itself does what it says, on random models and state dicts.

Each pair is a state dict and the model that is to take it, which lacks tensors, has others, other
shapes or other types. The verdict, the message and which values arrive are PyTorch's own. The seed
of a pair is in its name.
"""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from programs import BIN, REPOSITORY, Outcome, run

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

Tensors = dict[str, torch.Tensor]
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
CHANGES = ["none", "missing", "unexpected", "shape", "wider", "narrower", "object", "number",
           "counter"]
EXIT = {"loads": 0, "rounds": 1, "leaves_out": 1, "refuses": 1, "not_known": 4}


class Bag(torch.nn.Module):
    """A model with these tensors."""

    def __init__(self, tensors: Tensors):
        super().__init__()
        for name, tensor in tensors.items():
            part: torch.nn.Module = self
            *path, last = name.split(".")
            for step in path:
                if not hasattr(part, step):
                    part.add_module(step, torch.nn.Module())
                part = getattr(part, step)
            part.register_buffer(last, tensor)


def list_tensors(tensors: Tensors, path: Path) -> Path:
    rows = [{"key": k, "dtype": str(v.dtype), "shape": list(v.shape)} for k, v in tensors.items()]
    path.write_text(json.dumps({"tensors": rows}))
    return path


def make_pair(seed: int) -> tuple[dict, Tensors]:
    """What is stored, and the model's own tensors, filled with -1."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    stored: dict = {}
    model: Tensors = {}
    for number in range(dice.randint(1, 6)):
        key = f"layer{number // 2}.weight{number}"
        shape = [dice.randint(1, 4) for _ in range(dice.randint(0, 3))]
        dtype = dice.choice(TYPES)
        stored[key] = torch.rand(shape).add(0.1).to(dtype)  # -1 is none of them
        model[key] = torch.full(shape, -1, dtype=dtype)
    for change in dice.choices(CHANGES, k=dice.randint(0, 2)):
        apply_change(change, dice.choice(list(stored)), stored, model)
    return stored, model


def apply_change(change: str, key: str, stored: dict, model: Tensors) -> None:
    if key not in model or not torch.is_tensor(stored.get(key)):
        return
    if change == "missing":
        del stored[key]
    elif change == "unexpected":
        stored[key + "_else"] = torch.ones(2)
    elif change == "shape":
        model[key] = torch.full([*model[key].shape, 2], -1, dtype=model[key].dtype)
    elif change == "wider":
        model[key] = model[key].double()
    elif change == "narrower":
        model[key] = model[key].to(torch.bfloat16)
    elif change == "object":
        stored[key] = 7
    elif change == "number":
        stored[key], model[key] = torch.rand(1), torch.tensor(-1.0)
    elif change == "counter":
        model["norm.num_batches_tracked"] = torch.tensor(-1)


def what_torch_does(load, stored: dict, model: Tensors) -> tuple[str, str]:
    """(verdict, message)"""
    try:
        load()
    except BaseException as error:  # noqa: BLE001  (DCP's is none of Exception)
        return "refuses", str(error)
    exact = True
    for key, tensor in model.items():
        if (tensor == -1).any():
            return "leaves_out", ""
        exact = exact and torch.equal(tensor.double().reshape(-1), stored[key].double().reshape(-1))
    return ("loads" if exact else "rounds"), ""


def normal(message: str) -> str:
    """Without what only PyTorch knows: the model's class, the type of an object."""
    message = message.replace("loading state_dict for Bag:", "loading state_dict:")
    message = message.replace(" but received <class 'int'>", "")
    return message.strip()


def check(outcome: Outcome, expected: tuple[str, str]) -> None:
    said = outcome.json()
    verdict, message = expected
    assert said["verdict"] == verdict, f"{outcome}\nPyTorch: {expected}"
    assert outcome.code == EXIT[verdict], outcome
    if said["loader"] == "dcp":  # a traceback ends with it
        assert said["message"] in message, expected
    else:
        assert normal(said["message"]) == normal(message), expected


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not_strict"])
@pytest.mark.parametrize("seed", range(40))
def test_load_state_dict(seed: int, strict: bool, tmp_path: Path) -> None:
    stored, model = make_pair(seed)
    if "norm.num_batches_tracked" in model:
        del model["norm.num_batches_tracked"]  # see test_what_keys_do_not_tell
    torch.save(stored, tmp_path / "model.pt")
    bag = Bag(model)
    listing = list_tensors(bag.state_dict(), tmp_path / "model.json")
    flags = [] if strict else ["--no-strict"]
    outcome = run("ckpt-inspect", "can-load", tmp_path / "model.pt", "--expect-keys", listing,
                  *flags, "--json")
    check(outcome, what_torch_does(lambda: bag.load_state_dict(stored, strict=strict), stored,
                                   bag.state_dict()))


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not_strict"])
@pytest.mark.parametrize("seed", range(20))
def test_dcp_load(seed: int, strict: bool, tmp_path: Path) -> None:
    stored, model = make_pair(seed)
    dcp.save(dict(stored), checkpoint_id=tmp_path / "dcp", no_dist=True)
    listing = list_tensors(model, tmp_path / "model.json")
    planner = dcp.DefaultLoadPlanner(allow_partial_load=not strict)
    flags = [] if strict else ["--no-strict"]
    outcome = run("ckpt-inspect", "can-load", tmp_path / "dcp", "--expect-keys", listing, *flags,
                  "--json")
    wanted = dict(model)  # an object takes the place of its tensor in here
    check(outcome, what_torch_does(
        lambda: dcp.load(wanted, checkpoint_id=tmp_path / "dcp", planner=planner, no_dist=True),
        stored, model))


ALL_TYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
             torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32,
             torch.float64]


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of a type of at most 16 bits; of larger ones those at their limits."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.itemsize <= 2:
        whole = torch.uint8 if dtype.itemsize == 1 else torch.int16
        count = 1 << 8 * dtype.itemsize
        values = torch.arange(count).to(whole).view(dtype)
        return values[~values.float().isnan()]
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        return torch.tensor([info.max, info.min, info.tiny, info.smallest_normal / 4, torch.inf,
                             1 + info.eps], dtype=dtype)
    info = torch.iinfo(dtype)
    return torch.tensor([info.min, info.max, info.max - 1], dtype=dtype)


def numbers(values: torch.Tensor) -> list[float | int]:
    """Python's, which compares whole numbers and others exactly."""
    return (values.double() if values.is_floating_point() else values).tolist()


def is_kept(values: torch.Tensor, to: torch.dtype) -> bool:
    return numbers(values.to(to)) == numbers(values)


def test_types_that_hold_every_value_of_others(tmp_path: Path) -> None:
    stored = {str(dtype): torch.zeros(2, dtype=dtype) for dtype in ALL_TYPES}
    torch.save(stored, tmp_path / "model.pt")
    for to in ALL_TYPES:
        listing = list_tensors({key: torch.zeros(2, dtype=to) for key in stored},
                               tmp_path / "model.json")
        said = run("ckpt-inspect", "can-load", tmp_path / "model.pt", "--expect-keys", listing,
                   "--json").json()
        rounded = {row["model"]["key"] for row in said["rounded"]}
        for dtype, key in zip(ALL_TYPES, stored, strict=True):
            assert (key not in rounded) == is_kept(every_value(dtype), to), f"{dtype} as {to}"


def test_what_keys_do_not_tell(tmp_path: Path) -> None:
    """Old state dicts have no num_batches_tracked: PyTorch asks them for their version."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    listing = list_tensors(model.state_dict(), tmp_path / "model.json")
    stored = {k: v for k, v in model.state_dict().items() if "num_batches" not in k}
    save_file(stored, tmp_path / "model.safetensors")
    model.load_state_dict(dict(stored))  # without a version: fine
    with pytest.raises(RuntimeError, match="num_batches_tracked"):
        versioned = model.state_dict()
        del versioned["0.num_batches_tracked"]
        model.load_state_dict(versioned)
    outcome = run("ckpt-inspect", "can-load", tmp_path / "model.safetensors", "--expect-keys",
                  listing, "--json")
    assert (outcome.code, outcome.json()["verdict"]) == (4, "not_known")


def test_the_lines_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs/before_you_start.md").read_text(encoding="utf-8")
    lines = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    exec(lines, {"model": model.to("meta")})  # noqa: S102  (ours)
    torch.save(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).state_dict(),
               "model.pt")
    outcome = run("ckpt-inspect", "can-load", "model.pt", "--expect-keys", "model.json")
    assert outcome.code == 0, outcome


def test_a_checkpoint_loads_into_its_own_listing(tmp_path: Path) -> None:
    """Of a DCP folder, and of what lies below a key of a torch.save file."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    listing = list_tensors(model.state_dict(), tmp_path / "model.json")
    torch.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "full.pt")
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for path, below in product(("full.pt", "dcp"), ([], ["--below", "model"])):
        outcome = run("ckpt-inspect", "can-load", tmp_path / path, "--expect-keys", listing, *below)
        assert outcome.code == (0 if below else 1), outcome
        assert ("--below model" in outcome.stderr) == (not below), outcome
