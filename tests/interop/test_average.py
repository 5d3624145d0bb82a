"""ckpt-convert average: the mean of models, beside torch's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from huggingface_sets import tensors_of, unpack
from programs import GOLDEN, refuse, succeed

USAGE, UNSUPPORTED = 2, 4


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY_N: three models of one config.json."""
    folder = unpack(tmp_path_factory.mktemp("average"))
    for family, dtype in (("llama", torch.float32), ("qwen3_moe", torch.bfloat16)):
        own = tensors_of(folder / f"{family}_hf")
        for number in range(3):
            generator = torch.Generator().manual_seed(number)
            noisy = {key: (tensor + torch.randn(tensor.shape, generator=generator)).to(dtype)
                     for key, tensor in own.items()}  # fmt: skip
            made = folder / f"{family}_{number}"
            made.mkdir()
            save_file(noisy, made / "model.safetensors", metadata={"format": "pt"})
            shutil.copy(folder / f"{family}_hf/config.json", made)
            (made / "tokenizer.json").write_text("{}")
    return folder


def mean(folders: list[Path], weights: list[float]) -> dict[str, torch.Tensor]:
    """As a script of torch would: in float32, source by source, rounded once."""
    models = [tensors_of(folder) for folder in folders]
    made = {}
    for key, first in models[0].items():
        total = weights[0] * first.float()
        for weight, model in zip(weights[1:], models[1:], strict=True):
            total += weight * model[key].float()
        made[key] = (total / sum(weights)).to(first.dtype)
    return made


def require_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 2, 3], [0.25, -0.5, 2]])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_folders_have_the_mean_of_torch(
    sets: Path, family: str, weights: list, tmp_path: Path
) -> None:
    sources = [sets / f"{family}_{number}" for number in range(3)]
    given = [] if weights == [1, 1, 1] else ["--weights", ",".join(map(str, weights))]
    done = succeed("ckpt-convert", "average", "-o", tmp_path / "mean", *sources, *given, "--verify")
    assert "as in the average of 3 sources" in done.stdout, done
    require_same(tensors_of(tmp_path / "mean"), mean(sources, weights))
    for file in ("config.json", "tokenizer.json"):
        assert (tmp_path / "mean" / file).read_bytes() == (sources[0] / file).read_bytes()


def test_megatrons_may_lie_in_different_layouts(sets: Path, tmp_path: Path) -> None:
    forms = (["torch_dist"], ["torch", "--tp", 2, "--ep", 2, "--etp", 1],
             ["torch_dist", "--pp", 2])  # fmt: skip
    sources = [sets / f"qwen3_moe_{number}" for number in range(3)]
    for number, (source, form) in enumerate(zip(sources, forms, strict=True)):
        succeed("ckpt-convert", source, tmp_path / str(number), "--to", *form)
    made = [tmp_path / str(number) for number in range(3)]
    done = succeed("ckpt-convert", "average", "-o", tmp_path / "mean", *made, "--verify")
    assert "torch_dist -> torch_dist" in done.stdout
    succeed("ckpt-convert", tmp_path / "mean", tmp_path / "hf", "--to", "huggingface")
    require_same(tensors_of(tmp_path / "hf"), mean(sources, [1, 1, 1]))


def test_a_run_s_steps_lose_their_optimizer_and_keep_their_args(tmp_path: Path) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
    done = succeed("ckpt-convert", "average", "-o", tmp_path / "mean", source, source)
    assert "the optimizer state" in done.stdout
    for name in (source, tmp_path / "mean"):
        succeed("ckpt-convert", name, tmp_path / f"{name.name}.safetensors", "--model-only")
    require_same(load_file(tmp_path / "mean.safetensors"), load_file(tmp_path / "ckpt.safetensors"))
    assert (tmp_path / "mean/latest_checkpointed_iteration.txt").read_text() == "3"


def test_what_does_not_belong_together_is_refused_by_name(sets: Path, tmp_path: Path) -> None:
    first = sets / "llama_0"
    own = tensors_of(first)
    key, norm = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
    changes = (
        ({key: own[key][:32].clone()}, {}, f"'{key}': has the shape [32, 32], but in"),
        ({key: own[key].half()}, {}, f"'{key}': is of type float16, but in"),
        ({norm: None}, {}, f"'{norm}': is missing"),
        ({"model.own": torch.ones(1)}, {}, "'model.own': is not in"),
        ({}, {"architectures": ["MistralForCausalLM"]}, "'config.json/architectures'"),
        ({}, {"rms_norm_eps": 1e-5}, "'config.json/rms_norm_eps': is 1e-05"),
    )
    for number, (tensors, fields, said) in enumerate(changes):
        other = tmp_path / str(number)
        other.mkdir()
        kept = {name: tensor for name, tensor in {**own, **tensors}.items() if tensor is not None}
        save_file(kept, other / "model.safetensors")
        config = {**json.loads((first / "config.json").read_text()), **fields}
        (other / "config.json").write_text(json.dumps(config))
        line = refuse(UNSUPPORTED, "ckpt-convert", "average", "-o", tmp_path / "x", first, other)
        assert said in line, line
    torch.save(own, tmp_path / "plain.pt")
    megatron = tmp_path / "megatron"
    succeed("ckpt-convert", first, megatron, "--to", "torch_dist")
    (tmp_path / "eps.json").write_text("{}")
    rows = (
        ([first], USAGE, "at least two"),
        ([first, first, "--weights", "1"], USAGE, "--weights has 1 numbers for 2 sources"),
        ([first, first, "--weights", "1,-1"], USAGE, "--weights do not add up"),
        ([first, tmp_path / "plain.pt"], UNSUPPORTED, "is neither a training checkpoint"),
        ([first, megatron], UNSUPPORTED, "is a checkpoint of Megatron, but"),
        ([megatron, first], UNSUPPORTED, "is not a checkpoint of Megatron, as"),
    )
    for words, code, said in rows:
        assert said in refuse(code, "ckpt-convert", "average", "-o", tmp_path / "x", *words)
    succeed("ckpt-convert", "average", "-o", tmp_path / "one.safetensors",
            first / "model.safetensors", sets / "llama_1/model.safetensors")  # fmt: skip
    require_same(load_file(tmp_path / "one.safetensors"), mean([first, sets / "llama_1"], [1, 1]))


def test_whole_numbers_must_be_equal(tmp_path: Path) -> None:
    for number in range(2):
        save_file({"a": torch.full((3,), float(number)), "steps": torch.tensor([7])},
                  tmp_path / f"{number}.safetensors")  # fmt: skip
    words = ("average", "-o", tmp_path / "mean.safetensors")
    succeed("ckpt-convert", *words, tmp_path / "0.safetensors", tmp_path / "1.safetensors")
    found = load_file(tmp_path / "mean.safetensors")
    assert (found["a"].tolist(), found["steps"].tolist()) == ([0.5] * 3, [7])
    save_file({"a": torch.ones(3), "steps": torch.tensor([8])}, tmp_path / "2.safetensors")
    line = refuse(UNSUPPORTED, "ckpt-convert", *words[:2], tmp_path / "x.safetensors",
                  tmp_path / "0.safetensors", tmp_path / "2.safetensors")  # fmt: skip
    assert "'steps': is of type int64, which has no mean" in line
