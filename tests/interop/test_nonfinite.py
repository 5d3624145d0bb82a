"""NaN and infinities in every container, type and place, as verify and report take them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from programs import BIN, damage_of, run, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

# Bits of NaN, infinity and minus infinity; None: the type has no such value.
TYPES = {
    torch.float64: (0x7FF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000),
    torch.float32: (0x7FC00000, 0x7F800000, 0xFF800000),
    torch.bfloat16: (0xFFC1, 0x7F80, 0xFF80),
    torch.float16: (0x7E00, 0x7C00, 0xFC00),
    torch.complex64: (0x3F80000000000000 << 0 | 0x7FC00000, 0x7F800000, 0xFF80000000000000),
    torch.complex128: (0x7FF8 << 112, 0x7FF0 << 48, 0xFFF0 << 112),
    torch.float8_e4m3fn: (0xFF, None, None),
    torch.float8_e5m2: (0x7D, 0x7C, 0xFC),
    torch.float8_e4m3fnuz: (0x80, None, None),
    torch.float8_e5m2fnuz: (0x80, None, None),
    torch.float8_e8m0fnu: (0xFF, None, None),
}
VALUES = ("NaN", "inf", "-inf")
PLACES = ("model", "optimizer", "other")
CONTAINERS = ("torch", "dcp", "dcp_objects", "safetensors")
COUNT = 9  # elements, of which two are not finite
WITHOUT = {  # what a container cannot hold
    "safetensors": {torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz},
    "dcp": set(),
    "dcp_objects": set(),
    "torch": set(),
}


def tensor_with(dtype: torch.dtype, bits: int) -> torch.Tensor:
    """Ones, or what is near, with the bits at 3 and at 7."""
    size = dtype.itemsize
    if dtype == torch.float8_e8m0fnu:
        tensor = torch.full((COUNT,), 127, dtype=torch.uint8).view(dtype)
    else:
        tensor = torch.ones(COUNT, dtype=torch.float32).to(dtype)
    raw = tensor.view(torch.uint8).reshape(COUNT, size)
    for index in (3, 7):
        raw[index] = torch.tensor(list(bits.to_bytes(size, "little")), dtype=torch.uint8)
    return tensor


def sound(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(COUNT).to(dtype)


def save(folder: Path, container: str, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / container
    state = {
        "model": {"w": tensors["model"]},
        "optimizer": {"state": {0: {"exp_avg": tensors["optimizer"]}}, "param_groups": [{"lr": 1}]},
        "callbacks": {"best_score": tensors["other"]},
    }
    if container == "torch":
        torch.save(state, path)
    elif container.startswith("dcp"):
        if container == "dcp_objects":  # a tuple is not flattened, but pickled
            tensors = {place: (tensor,) for place, tensor in tensors.items()}
            state["model"]["w"] = tensors["model"]
            state["callbacks"]["best_score"] = tensors["other"]
        state["optimizer"]["state"] = {"w": {"exp_avg": tensors["optimizer"]}}
        dcp.save(state, checkpoint_id=path, no_dist=True)
    else:
        keys = {"model": "model.w", "optimizer": "optimizer.state.w.exp_avg",
                "other": "callbacks.best_score"}
        save_file({keys[place]: tensor for place, tensor in tensors.items()}, path)
    return path


ROWS = [
    (container, dtype, value, place)
    for container, dtype, value, place in itertools.product(CONTAINERS, TYPES, VALUES, PLACES)
    if TYPES[dtype][VALUES.index(value)] is not None and dtype not in WITHOUT[container]
]


def report_verdict(path: Path) -> dict:
    return json.loads(succeed("ckpt-inspect", "report", path, "--json").stdout)["verify"]


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_type_value_and_place_in(tmp_path, container):
    rows = [row for row in ROWS if row[0] == container]
    assert len(rows) > 50
    for number, (_, dtype, value, place) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        tensors = {each: sound() for each in PLACES}
        tensors[place] = tensor_with(dtype, TYPES[dtype][VALUES.index(value)])
        path = save(folder, container, tensors)
        case = f"{container} {dtype} {value} {place}"
        kind = "NaN" if value == "NaN" else "infinite"
        what = f"2 values are {kind}, the first at index 3"
        is_damage = place != "other"
        code, document = verify(path)
        assert code == (1 if is_damage else 0), (case, document)
        found = [each["problem"] for each in document["findings"]]
        assert found == [what], (case, document["findings"])
        assert document["sound"] is not is_damage, case
        if number % 7 == 0:  # one function is behind both
            page = report_verdict(path)
            assert page["sound"] is not is_damage and page["findings"] == document["findings"], case
        code, document = verify(path, "--allow-nonfinite", document["findings"][0]["key"])
        assert code == 0 and document["findings"] == [], (case, document["findings"])
        assert document["allowed_nonfinite"] == {"tensors": 1, "values": 2}, case


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_finite_is_sound(tmp_path, container):
    for number, dtype in enumerate(TYPES):
        if dtype in WITHOUT[container]:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        path = save(folder, container, {each: sound(dtype) for each in PLACES})
        code, document = verify(path)
        assert code == 0 and document["findings"] == [], (dtype, document["findings"])
        page = report_verdict(path)
        assert page["sound"] and not page["quick"], dtype


def test_the_verdict_says_what_was_allowed_and_which_glob_matches_nothing(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.full((4,), float("nan")), "b": torch.full((2,), float("inf"))}, path)
    outcome = run("ckpt-inspect", "verify", path)
    assert outcome.code == 1, outcome
    assert "4 values are NaN, the first at index 0" in " ".join(outcome.stdout.split()), outcome
    outcome = run("ckpt-inspect", "verify", path, "--allow-nonfinite", "a")
    assert outcome.code == 1 and "2 values are infinite" in outcome.stdout, outcome
    options = ("--allow-nonfinite", "*a", "--allow-nonfinite", "b", "--allow-nonfinite", "x.*")
    outcome = run("ckpt-inspect", "verify", path, *options)
    assert outcome.code == 0, outcome
    text = " ".join(outcome.stdout.split())
    assert "allowed: 6 NaN or infinite values in 2 tensors" in text, outcome
    assert "no key matches 'x.*' of --allow-nonfinite" in text, outcome


NAN, INF = float("nan"), float("inf")
CAUSAL = torch.full((8, 8), -INF).triu(1)
STORAGE = torch.tensor([1.0, NAN, 2.0, NAN, 3.0, NAN])
CASES = {
    # a state dict alone: everything in it is a model's, whatever it is called
    "plain": ({"w": torch.tensor([NAN])}, 1),
    "called score": ({"score.weight": torch.tensor([NAN, 1])}, 1),
    "called loss": ({"loss": {"weight": torch.tensor([NAN, 1])}}, 1),
    "integers": ({"w": torch.tensor([2**31 - 1, -1])}, 0),
    # masks
    "causal mask": ({"h.attn.bias": CAUSAL}, 0),
    "causal mask in 4 dimensions": ({"h.attn.bias": CAUSAL[None, None]}, 0),
    "mask": ({"attn_mask": torch.tensor([0, -INF, -INF])}, 0),
    "all of it": ({"masked_bias_mask": torch.tensor(-INF)}, 0),
    "mask with NaN": ({"attn_mask": torch.tensor([0, -INF, NAN])}, 1),
    "mask of both signs": ({"attn_mask": torch.tensor([INF, -INF, 0])}, 1),
    "mask with values": ({"attn_mask": torch.tensor([1, -INF, 0])}, 1),
    "a weight of zeros that overflowed": (
        {"w": torch.zeros(8, 8).index_fill(0, torch.tensor([0]), INF)}, 1),
    "a mask of an optimizer": (
        {"optimizer": {"state": {0: {"mask": torch.tensor([0, -INF])}}}}, 1),
    # beside a model
    "Lightning": (
        {"state_dict": {"w": torch.ones(2)}, "epoch": 1,
         "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(INF)}}}, 0),
    "a number": ({"model": {"w": torch.ones(2)}, "best": INF, "lowest": torch.tensor(INF)}, 0),
    "history": ({"model": {"w": torch.ones(2)}, "ema_loss_history": torch.tensor([INF, NAN])}, 0),
    "another model": ({"model": {"w": torch.ones(2)}, "teacher": {"w": torch.tensor([NAN])}}, 1),
    "the best model": ({"model": {"w": torch.ones(2)}, "best_model": {"w": torch.tensor(INF)}}, 1),
    "a model's loss": ({"model": {"loss": {"weight": torch.tensor([NAN])}}}, 1),
    "GAN": ({"generator": {"w": torch.tensor([NAN])}, "optimizerG": {"state": {}}}, 1),
    # elements of the tensor, not of its storage
    "a view beside NaN": ({"w": STORAGE[0::2]}, 0),
    "a view of NaN": ({"w": STORAGE[1::2]}, 1),
    "a range beside NaN": ({"w": STORAGE[0:1]}, 0),
    "transposed": ({"w": torch.tensor([[1.0, 2], [NAN, 3]]).t()}, 1),
    "shared": ({"a": STORAGE[2:3], "b": STORAGE[1:2]}, 1),
    "expanded": ({"w": torch.tensor([NAN]).expand(5)}, 1),
    "no elements": ({"w": torch.empty(0), "v": torch.empty(3, 0)}, 0),
    "no dimensions": ({"w": torch.tensor(NAN, dtype=torch.float64)}, 1),
}


@pytest.mark.parametrize("legacy", (False, True))
@pytest.mark.parametrize("name", CASES)
def test_what_is_a_finding(tmp_path, name, legacy):
    state, expected = CASES[name]
    path = tmp_path / "file.pt"
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    code, document = verify(path)
    assert code == expected, document["findings"]
    assert bool(damage_of(document)) is bool(expected)
    code, quick = verify(path, "--quick")
    assert code == 0 and any("no tensor data" in each["reason"] for each in quick["not_checked"])


@pytest.mark.parametrize("container", CONTAINERS)
def test_processes_add_up(tmp_path, container):
    tensors = {each: torch.ones(1 << 20) for each in PLACES}
    tensors["model"][5] = NAN
    tensors["optimizer"][7] = INF
    path = save(tmp_path, container, tensors)
    _, whole = verify(path)
    shares = [verify(path, "--rank", str(rank), "--world-size", "3", "--piece-size", "1M")
              for rank in range(3)]
    assert 1 in {code for code, _ in shares}
    assert sorted(damage_of(whole)) == sorted(itertools.chain(*(damage_of(d) for _, d in shares)))
    for counts in ("checked", "passed"):
        assert whole[counts]["tensors"] == sum(d[counts]["tensors"] for _, d in shares)


def test_values_of_a_selection_alone(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.full((4,), NAN), "b": torch.ones(4)}, path)
    assert verify(path)[0] == 1
    assert verify(path, "--exclude", "a")[0] == 0
    assert verify(path, "--include", "a")[0] == 1


def test_healthy_reports_are_sound(tmp_path):
    """Nothing that can be checked is left out of them; docs/report.md says what is green."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "loop.pt")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for name in ("loop.pt", "model.pt", "model.safetensors", "dcp"):
        page = report_verdict(tmp_path / name)
        assert page["sound"] and not page["quick"], name
        assert not page["findings"], (name, page["findings"])


def test_objects_of_a_compressed_folder(tmp_path):
    """Which is no file of its own: each process looks at its own objects."""
    torch.save({"a": (torch.full((4096,), NAN), 1), "b": (torch.ones(4096),)}, tmp_path / "a.pt")
    made = tmp_path / "dcp"
    succeed("ckpt-convert", tmp_path / "a.pt", made, "--to", "torch_dist", "--zstd", 1)
    code, document = verify(made)
    assert code == 1 and [each["key"] for each in document["findings"]] == ["a/0"], document
    shares = [verify(made, "--rank", rank, "--world-size", 2)[1] for rank in (0, 1)]
    assert sorted(itertools.chain(*map(damage_of, shares))) == damage_of(document)
