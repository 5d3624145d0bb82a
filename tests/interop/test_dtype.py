"""--dtype and --model-only: training loops' files and Megatron's models, as torch casts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from huggingface_sets import (
    ARGS,
    engine_names,
    megatron_model,
    tensors_of,
    unpack,
    write_checkpoint,
)
from programs import refuse, run, succeed

NOT_FOUND, USAGE, UNSUPPORTED = 5, 2, 4
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All 16-bit floats but NaN; of float32 all signs and exponents, and mantissas at ties."""
    if dtype != torch.float32:
        values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        return values[~values.isnan()]
    upper = torch.arange(2**9, dtype=torch.int64) << 23
    lower = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001,
                          0xFFFF, 0x17FFF, 0x18000, 0x18001, 0x7FFFFF])  # fmt: skip
    values = (upper[:, None] | lower).flatten().to(torch.int32).view(dtype)
    return values[~values.isnan()]


def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {"a.weight": torch.randn(300, 70, generator=generator),
            "a.norm": torch.randn(70, generator=generator),
            "steps": torch.arange(3)}  # fmt: skip


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("to", TYPES)
def test_values_are_those_of_torch_to_the_bit(source: str, to: str, tmp_path: Path) -> None:
    values = every_value(TYPES[source])
    torch.save({"w": values, "t": values[: len(values) // 8 * 8].view(8, -1).T}, tmp_path / "a.pt")
    done = succeed("ckpt-convert", tmp_path / "a.pt", tmp_path / "b.safetensors", "--to",
                   "safetensors", "--dtype", to)  # fmt: skip
    wanted = values.to(TYPES[to])
    found = load_file(tmp_path / "b.safetensors")
    assert torch.equal(found["w"], wanted)
    assert torch.equal(found["t"], wanted[: len(wanted) // 8 * 8].view(8, -1).T)
    assert found["w"].dtype == TYPES[to]
    too_large = int((wanted.isinf() & ~values.isinf()).sum())
    said = f"/w: {too_large} value" in done.stdout
    assert said == (too_large != 0), done
    assert ("in the requested types" in done.stdout) == (source != to), done


@pytest.mark.parametrize("to", ["torch", "torch_dist", "safetensors"])
def test_every_format_and_names_of_single_tensors(to: str, tmp_path: Path) -> None:
    torch.save(model(), tmp_path / "a.pt")
    target = tmp_path / {"torch": "b.pt", "torch_dist": "b"}.get(to, "b.safetensors")
    done = succeed("ckpt-convert", tmp_path / "a.pt", target, "--to", to, "--dtype", "bfloat16",
                   "--dtype", "*norm=float16", "--verify")  # fmt: skip
    assert "1 tensor of type int64: not changed" in done.stderr
    if to == "torch_dist":
        found = {key: torch.empty_like(value) for key, value in model().items()}
        found["a.weight"], found["a.norm"] = found["a.weight"].bfloat16(), found["a.norm"].half()
        dcp.load(found, checkpoint_id=target)
    else:
        found = torch.load(target) if to == "torch" else load_file(target)
    own = model()
    assert torch.equal(found["a.weight"], own["a.weight"].bfloat16())
    assert torch.equal(found["a.norm"], own["a.norm"].half())
    assert torch.equal(found["steps"], own["steps"])


def test_processes_write_the_same_bytes_and_count_once(tmp_path: Path) -> None:
    own = {f"w{i}": torch.randn(256, 333) * 40000 for i in range(6)}
    torch.save(own, tmp_path / "a.pt")
    order = ("ckpt-convert", tmp_path / "a.pt")
    options = ("--to", "torch", "--dtype", "float16", "--json")
    one = succeed(*order, tmp_path / "one.pt", *options).json()
    listed = {each["what"]: each["reason"] for each in one["not_carried"]}
    for key, tensor in own.items():
        assert listed[f"/{key}"].startswith(f"{int(tensor.half().isinf().sum())} values are")
    shared = [run(*order, tmp_path / "two.pt", *options, "--rank", str(rank), "--world-size", "3",
                  "--piece-size", "64K") for rank in range(3)]  # fmt: skip
    assert [each.code for each in shared] == [0, 0, 0], shared
    assert (tmp_path / "two.pt").read_bytes() == (tmp_path / "one.pt").read_bytes()
    parts = [each for process in shared for each in process.json()["not_carried"]]
    reasons = [each["reason"] for each in parts if "this process's part" in each["reason"]]
    counts = [int(reason.split()[0]) for reason in reasons]
    assert sum(counts) == sum(int(tensor.half().isinf().sum()) for tensor in own.values())


@pytest.mark.parametrize(("rule", "code", "said"), [
    ("int8", USAGE, "[GLOB=]TYPE"), ("=bfloat16", USAGE, "[GLOB=]TYPE"),
    ("a.weigth=bfloat16", NOT_FOUND, "a.weigth"), ("steps=bfloat16", USAGE, "no tensor of them"),
    ("nothing.*=bfloat16", NOT_FOUND, "nothing.*")])  # fmt: skip
def test_a_rule_that_changes_nothing_is_refused(
    rule: str, code: int, said: str, tmp_path: Path
) -> None:
    torch.save(model(), tmp_path / "a.pt")
    line = refuse(code, "ckpt-convert", tmp_path / "a.pt", tmp_path / "b.pt", "--to", "torch",
                  "--dtype", rule)  # fmt: skip
    assert said in line and not (tmp_path / "b.pt").exists()


# --- the model alone ---


def optimizer() -> dict:
    return {"state": {0: {"exp_avg": torch.zeros(300, 70)}}, "param_groups": [{"lr": 0.1}]}


LOOPS = {
    "lightning": {"epoch": 1, "pytorch-lightning_version": "2.6", "state_dict": model(),
                  "optimizer_states": [optimizer()], "callbacks": {"E": {"best": torch.ones(2)}}},
    "script": {"model": model(), "optimizer": optimizer(), "rng_state": torch.zeros(5)},
    "deepspeed": {"module": model(), "global_steps": 3},
    "wrapped": {"app": {"model": model(), "optim": optimizer()}},
    "bare": {**model(), "rng_state": torch.zeros(5)},
}  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
def test_the_model_of_a_training_loop_in_one_command(loop: str, tmp_path: Path) -> None:
    if loop in ("wrapped", "deepspeed"):
        dcp.save(LOOPS[loop], checkpoint_id=tmp_path / "a")
    else:
        torch.save(LOOPS[loop], tmp_path / "a")
    done = succeed("ckpt-convert", tmp_path / "a", tmp_path / "b.safetensors", "--to",
                   "safetensors", "--model-only", "--dtype", "bfloat16", "--verify")  # fmt: skip
    found = load_file(tmp_path / "b.safetensors")
    assert found.keys() == model().keys()
    for key, tensor in model().items():
        wanted = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert torch.equal(found[key], wanted), key
    for name in LOOPS[loop].get("app", LOOPS[loop]):
        kept = name in ("state_dict", "model", "module") or name in model()
        assert kept or name in done.stderr, (name, done)


UNKNOWN = {
    "two networks": {"generator": model(), "critic": model(), "opt": optimizer()},
    "two models": {"model": model(), "module": model()},
    "averages": {"model": model(), "ema": model()},
    "head beside": {"model": model(), "lm_head.weight": torch.ones(3)},
    "no model": {"optimizer": optimizer()},
}


@pytest.mark.parametrize("state", UNKNOWN)
def test_what_may_be_a_model_is_not_guessed(state: str, tmp_path: Path) -> None:
    torch.save(UNKNOWN[state], tmp_path / "a.pt")
    line = refuse(UNSUPPORTED, "ckpt-convert", tmp_path / "a.pt", tmp_path / "b.pt", "--to",
                  "torch", "--model-only")  # fmt: skip
    assert any(words in line for words in (
        "may be the model", "which of these is the model", "that may be its", "is a model: "))


# --- Megatron's ---


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = unpack(tmp_path_factory.mktemp("experts"))
    made = engine_names(megatron_model(folder, "qwen3_moe"))
    write_checkpoint(folder / "ckpt", made, ARGS["qwen3_moe"], "transformer_engine")
    return folder


def test_a_router_keeps_its_type_unless_it_is_named(experts: Path, tmp_path: Path) -> None:
    own = tensors_of(experts / "qwen3_moe_hf")
    order = ("ckpt-convert", experts / "ckpt")
    done = succeed(*order, tmp_path / "a", "--to", "huggingface", "--dtype", "bfloat16", "--verify")
    assert "2 tensors keep their type" in done.stderr and "mlp.gate.weight" in done.stderr
    found = tensors_of(tmp_path / "a")
    for key, tensor in own.items():
        kept = key.endswith(".mlp.gate.weight")
        assert torch.equal(found[key], tensor if kept else tensor.bfloat16()), key
    assert json.loads((tmp_path / "a/config.json").read_text())["dtype"] == "bfloat16"
    succeed(*order, tmp_path / "b", "--to", "huggingface", "--dtype", "bfloat16", "--dtype",
            "*.mlp.gate.weight=bfloat16")  # fmt: skip
    assert {tensor.dtype for tensor in tensors_of(tmp_path / "b").values()} == {torch.bfloat16}
    checked = ("ckpt-convert", "names", "check", experts / "ckpt")
    assert run(*checked, tmp_path / "a", "--dtype", "bfloat16").code == 0
    assert run(*checked, tmp_path / "a").code == 1


@pytest.mark.parametrize("to", ["torch", "torch_dist"])
def test_args_of_a_megatron_model_say_its_new_type(experts: Path, to: str, tmp_path: Path) -> None:
    succeed("ckpt-convert", experts / "ckpt", tmp_path / "a", "--to", to, "--model-only", "--dtype",
            "bfloat16", "--verify")  # fmt: skip
    file = next((tmp_path / "a").rglob("common.pt" if to == "torch_dist" else "model_optim_rng.pt"))
    assert torch.load(file, weights_only=False)["args"].params_dtype == torch.bfloat16
    done = succeed("ckpt-convert", tmp_path / "a", tmp_path / "b", "--to", "huggingface")
    found = tensors_of(tmp_path / "b")
    for key, tensor in tensors_of(experts / "qwen3_moe_hf").items():
        kept = key.endswith(".mlp.gate.weight")
        assert torch.equal(found[key], tensor if kept else tensor.bfloat16()), (key, done)


def test_weights_beside_their_masters_keep_their_type(generated: Path, tmp_path: Path) -> None:
    source = generated / "gpt5l_modern_torch_dist_dp4"
    for to in ("torch_dist", "safetensors"):
        line = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "a", "--to", to, "--dtype",
                      "float16")  # fmt: skip
        assert "masters" in line
    succeed("ckpt-convert", source, tmp_path / "a", "--to", "safetensors", "--model-only",
            "--dtype", "float32", "--verify")  # fmt: skip
    succeed("ckpt-convert", source, tmp_path / "b", "--to", "safetensors", "--model-only")
    widened, own = tensors_of(tmp_path / "a"), tensors_of(tmp_path / "b")
    assert widened.keys() == own.keys()
    assert all(torch.equal(widened[key], tensor.float()) for key, tensor in own.items())
    succeed("ckpt-convert", source, tmp_path / "c", "--to", "huggingface", "--weights", "master",
            "--dtype", "bfloat16", "--verify")  # fmt: skip
    succeed("ckpt-convert", source, tmp_path / "d", "--to", "huggingface")
    rounded, live = tensors_of(tmp_path / "c"), tensors_of(tmp_path / "d")
    assert all(torch.equal(rounded[key], tensor) for key, tensor in live.items())
