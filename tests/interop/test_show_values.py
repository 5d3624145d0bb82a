"""Every slice that `show` prints is torch's: of random tensors, types and slices, in every format,
and of the training state's tensors, joined from what ranks hold."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parallel_sets import USAGE, needs_sets, recorded_state
from programs import GOLDEN, refuse, succeed

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *EIGHT_BITS, *INTEGERS, torch.bool, *COMPLEX)
SLICES_PER_TENSOR = 6


def random_tensor(chance: random.Random, dtype: torch.dtype) -> torch.Tensor:
    """Random bits, so that NaN, infinities, subnormals and extreme integers are among them."""
    shape = [chance.choice((1, 2, 3, 5, 8, 17)) for _ in range(chance.randrange(5))]
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def random_item(chance: random.Random, size: int) -> str:
    def bound() -> str:
        return chance.choice(("", str(chance.randint(-size - 2, size + 2))))

    if size > 0 and chance.random() < 0.3:
        return str(chance.randrange(-size, size))
    step = chance.choice(("", "", ":", ":2", ":3", f":{size + 1}"))
    return f"{bound()}:{bound()}{step}"


def random_slice(chance: random.Random, shape: tuple[int, ...]) -> str:
    """Basic indexing of a tensor of this shape, without brackets."""
    if not shape:
        return "..."
    items = [random_item(chance, size) for size in shape]
    if chance.random() < 0.4:  # some dimensions are left to an ellipsis, or out
        first = chance.randrange(len(items) + 1)
        last = chance.randrange(first, len(items) + 1)
        items[first:last] = ["..."] if chance.random() < 0.7 or last < len(items) else []
    return chance.choice((", ", ",")).join(items) or "..."


def sliced(tensor: torch.Tensor, text: str) -> torch.Tensor:
    return eval(f"tensor[{text}]", {"tensor": tensor})  # our own text


def typed(values: object, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A nested list of a document as the tensor that it was."""

    def element(value: object) -> object:
        if isinstance(value, list):
            return [element(each) for each in value]
        return (complex if dtype.is_complex else float)(value) if isinstance(value, str) else value

    if dtype.is_complex:
        wide = torch.complex128
    elif dtype.is_floating_point:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
    else:
        wide = dtype
    tensor = torch.tensor(element(values), dtype=wide).to(dtype)
    return tensor.reshape(shape) if tensor.numel() == 0 else tensor


def is_equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if expected.dtype.is_complex:
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
    if not expected.dtype.is_floating_point:
        return torch.equal(found, expected)
    found, expected = found.double(), expected.double()
    same_sign = torch.equal(torch.signbit(found)[~found.isnan()],
                            torch.signbit(expected)[~expected.isnan()])
    return torch.equal(found.nan_to_num(7e300, 8e300, -8e300),
                       expected.nan_to_num(7e300, 8e300, -8e300)) and same_sign


def check(path: Path, cases: list[tuple[str, torch.Tensor, str]]) -> None:
    """Key, tensor and slice of each; one command for all."""
    typed_keys = [f"{key}[{text}]" for key, _, text in cases]
    outcome = succeed("ckpt-inspect", "show", path, *typed_keys, "--values", "all", "--json")
    entries = outcome.json()["entries"]
    assert len(entries) == len(cases)
    for entry, (key, tensor, text) in zip(entries, cases, strict=True):
        expected = sliced(tensor, text)
        found = entry["tensor"]
        where = f"{key}[{text}] of {tensor.dtype} {list(tensor.shape)}"
        assert found["shape"] == list(expected.shape), where
        assert found["slice_of"] == list(tensor.shape), where
        assert is_equal(typed(found["values"], tensor.dtype, expected.shape), expected), where


def cases_of(chance: random.Random, state: dict[str, torch.Tensor],
             count: int = SLICES_PER_TENSOR) -> list[tuple[str, torch.Tensor, str]]:
    return [(key, tensor, random_slice(chance, tuple(tensor.shape)))
            for key, tensor in state.items() for _ in range(count)]


def random_state(chance: random.Random) -> dict[str, torch.Tensor]:
    state = {f"t{i}.{str(dtype).removeprefix('torch.')}": random_tensor(chance, dtype)
             for i, dtype in enumerate(DTYPES * 2)}
    wide = torch.arange(7 * 5000, dtype=torch.float32).reshape(7, 5000)
    state["wide"] = wide  # gaps that are skipped
    state["long"] = torch.arange(3 * 2000 * 4, dtype=torch.int32).reshape(3, 2000, 4)
    return state


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("legacy", (False, True), ids=("zip", "legacy"))
def test_slices_of_torch_files(seed: int, legacy: bool, tmp_path: Path) -> None:
    chance = random.Random(seed)
    state = random_state(chance)
    wide = state["wide"]
    views = {"transposed": wide.t(), "strided": wide[1:6:2, 3::7],
             "expanded": wide[:1].expand(4, -1)}
    path = tmp_path / "state.pt"
    torch.save({**state, **views}, path, _use_new_zipfile_serialization=not legacy)
    check(path, cases_of(chance, {**state, **views}))


@pytest.mark.parametrize("seed", range(3))
def test_slices_of_safetensors(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    state = {key: tensor.contiguous() for key, tensor in random_state(chance).items()
             if tensor.dtype not in (torch.complex64, torch.complex128, torch.float8_e4m3fnuz,
                                     torch.float8_e5m2fnuz)}
    path = tmp_path / "state.safetensors"
    save_file(state, path)
    check(path, cases_of(chance, state))


@pytest.mark.parametrize("seed", range(3))
def test_slices_of_dcp_folders(seed: int, tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    chance = random.Random(seed)
    state = random_state(chance)
    dcp.save(dict(state), checkpoint_id=tmp_path / "dcp", no_dist=True)
    check(tmp_path / "dcp", cases_of(chance, state))


def test_slices_of_dcp_tensors_in_several_chunks(generated: Path) -> None:
    whole = torch.load(generated / "plain_sharded.pt", weights_only=False)
    state = {key: tensor for key, tensor in flattened(whole).items()}
    for seed in range(10):
        check(generated / "plain_sharded_dcp", cases_of(random.Random(seed), state, 3))


def flattened(state: object, front: str = "") -> dict[str, torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return {front: state}
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items() if isinstance(state, dict) else ():
        found.update(flattened(value, f"{front}.{key}" if front else str(key)))
    return found


SETS = (
    "par_lw_muon_llama_torch_tp2dp2",  # rank files, SwiGLU rows of two ranks
    "par_lw_muon_torch_dist_tp2dp2",  # stacked over layers
    "par_lw_muon_moe_torch_ep2tp2dp2",
    "par_lw_muon_moe_torch_dist_ep2tp2dp2",  # stacked over layers and experts
    "par_do_adam_dp_reshardable_tp2dp2",  # flat buffers
    "par_do_adam_dp_reshardable_tp2pp2dp2",
    "par_do_adam_llama_torch_tp2dp2",  # distrib_optim.pt
    "par_do_adam_fully_reshardable_tp2dp2",
)


@needs_sets
@pytest.mark.parametrize("name", SETS)
def test_slices_of_the_training_state(name: str, sets: Path) -> None:
    state = recorded_state(sets / name)
    recorded = {key: tensor for key, tensor in state.items() if is_named(key)}
    assert len(recorded) > 20
    chance = random.Random(name)
    cases = cases_of(chance, recorded, 2)
    for start in range(0, len(cases), 200):
        check_logical(sets / name / "ckpt", cases[start : start + 200])


def is_named(key: str) -> bool:
    return not key.startswith("init.") and not key.endswith("_extra_state")


def check_logical(path: Path, cases: list[tuple[str, torch.Tensor, str]]) -> None:
    typed_keys = [f"{key}[{text}]" for key, _, text in cases]
    options = ("--logical", "--values", "all", "--json")
    entries = succeed("ckpt-inspect", "show", path, *typed_keys, *options).json()["entries"]
    for entry, (key, tensor, text) in zip(entries, cases, strict=True):
        assert entry["key"] == key
        expected = sliced(tensor, text)
        found = typed(entry["tensor"]["values"], tensor.dtype, expected.shape)
        assert is_equal(found, expected), f"{key}[{text}] of {list(tensor.shape)}"


@needs_sets
@pytest.mark.parametrize("name", SETS)
def test_what_the_page_names_is_shown(name: str, sets: Path) -> None:
    folder = sets / name / "ckpt"
    largest = succeed("ckpt-inspect", folder, "--json").json()["largest"]
    keys = [tensor["name"] for tensor in largest]
    assert keys
    entries = succeed("ckpt-inspect", "show", folder, *keys, "--json").json()["entries"]
    assert [(entry["key"], entry["tensor"]["shape"]) for entry in entries] == [
        (tensor["name"], tensor["shape"]) for tensor in largest]


@needs_sets
@pytest.mark.parametrize("name", SETS[:3])
def test_statistics_of_the_training_state_are_torchs(name: str, sets: Path) -> None:
    recorded = recorded_state(sets / name)
    options = ("--logical", "--stats", "--json")
    entries = succeed("ckpt-inspect", "show", sets / name / "ckpt", *options).json()["entries"]
    assert len(entries) > 20
    for entry in entries:
        found, values = entry["tensor"], recorded[entry["key"]].double()
        assert (found["min"], found["max"]) == (values.min().item(), values.max().item())
        assert found["norm"] == pytest.approx(values.norm().item(), rel=1e-12)
        assert found["std"] == pytest.approx(values.std(correction=0).item(), rel=1e-9, abs=1e-300)
        assert found["zeros"] == (values == 0).sum().item()


def test_text_shows_what_numpy_would(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(12).reshape(2, 2, 3)}, tmp_path / "w.pt")
    shown = succeed("ckpt-inspect", "show", tmp_path / "w.pt", "w", "--values", "all").stdout
    values = "\n".join(shown.splitlines()[2:])
    assert eval(values) == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


@pytest.mark.parametrize(("text", "says"), (
    ("64", "index 64"), ("-65", "index -65"), ("::0", "step 0"), ("::-1", "step -1"),
    ("0, 0, 0", "3 indices"), ("..., ...", "only one"), ("1:2:3:4", "start:stop:step"),
))
def test_a_slice_that_does_not_fit_is_a_usage_error(text: str, says: str) -> None:
    folder = GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"
    line = refuse(USAGE, "ckpt-inspect", "show", folder, f"output_layer.weight[{text}]")
    assert says in line
    assert "[64, 16]" in line


QUANTILED = (*FLOATS, *EIGHT_BITS, *INTEGERS, torch.bool)
EXACT = (torch.bfloat16, torch.float16, *EIGHT_BITS, torch.int8, torch.uint8, torch.bool)


def quantiles_of(tensor: torch.Tensor) -> list[float]:
    values = tensor.to(torch.float64).flatten()
    values = values[values.isfinite()].sort().values
    ranks = [max(1, -(-len(values) * percent // 100)) for percent in (1, 50, 99)]
    return [float(values[rank - 1]) for rank in ranks]


@pytest.mark.parametrize("dtype", QUANTILED, ids=str)
def test_quantiles_are_those_of_the_elements(dtype: torch.dtype, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    raw = torch.randint(0, 256, (40_000,), dtype=torch.uint8, generator=generator)
    tensors = {"bits": raw.view(dtype) if dtype != torch.bool else raw > 100}
    normal = torch.randn(5_000, generator=generator, dtype=torch.float64) * 100
    tensors["normal"] = normal.to(torch.float32).to(dtype)
    tensors["constant"] = torch.full((7,), 0.1, dtype=torch.float64).to(dtype)
    tensors["one"] = tensors["normal"][:1].clone()
    torch.save(tensors, tmp_path / "a.pt")
    tables = []
    for threads in (1, 3):
        outcome = succeed("ckpt-inspect", "show", tmp_path / "a.pt", "--stats", "--quantiles",
                          "--json", "-j", threads)  # fmt: skip
        tables.append(outcome.stdout)
        for entry in outcome.json()["entries"]:
            found = [entry["tensor"]["quantiles"][name] for name in ("p1", "p50", "p99")]
            wanted = quantiles_of(tensors[entry["key"].strip("/")])
            bound = 0 if dtype in EXACT or entry["key"] == "/constant" else 2**-11
            assert found == pytest.approx(wanted, rel=bound, abs=0), entry["key"]
    assert tables[0] == tables[1]


def test_long_tensors_have_quantiles_of_all_their_parts(tmp_path: Path) -> None:
    """Parts of 16 MiB are read by several threads."""
    tensor = torch.randn(12_000_000, generator=torch.Generator().manual_seed(2))
    save_file({"w": tensor, "empty": tensor[:0], "nan": torch.full((3,), math.nan)},
              tmp_path / "a.safetensors")  # fmt: skip
    options = ("--stats", "--quantiles", "--csv")
    rows = {}
    for threads in (1, 4):
        outcome = succeed("ckpt-inspect", "show", tmp_path / "a.safetensors", *options,
                          "-j", threads)  # fmt: skip
        lines = [line.split(",") for line in outcome.stdout.splitlines()]
        assert lines[0][-3:] == ["p1", "p50", "p99"]
        rows[threads] = {line[0]: line[-3:] for line in lines[1:]}
    assert rows[1] == rows[4]
    assert rows[1]["empty"] == rows[1]["nan"] == ["", "", ""]
    assert [float(each) for each in rows[1]["w"]] == pytest.approx(quantiles_of(tensor), rel=2**-11)
