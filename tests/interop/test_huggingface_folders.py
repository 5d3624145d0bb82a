"""Hugging Face folders beside a checkpoint: config.json in the place of args, and comparisons."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from huggingface_sets import (
    ARGS,
    engine_names,
    megatron_model,
    tensors_of,
    unpack,
    write_checkpoint,
)
from programs import refuse, run, succeed

UNSUPPORTED = 4
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gpt_oss", "gemma3_text")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY_ckpt, and FAMILY_verl/global_step_5/actor as verl's Megatron backend leaves it."""
    folder = unpack(tmp_path_factory.mktemp("folders"))
    for family in FAMILIES:
        model = megatron_model(folder, family)
        te = family != "qwen3"  # that has the names of Megatron's own modules
        write_checkpoint(folder / f"{family}_ckpt", engine_names(model) if te else model,
                         ARGS[family], "transformer_engine" if te else "local")  # fmt: skip
        succeed("ckpt-convert", folder / f"{family}_ckpt", folder / "store", "--to", "torch_dist")
        actor = folder / f"{family}_verl/global_step_5/actor"
        shutil.copytree(folder / "store/iter_0000002", actor / "dist_ckpt")
        shutil.rmtree(folder / "store")
        common = torch.load(actor / "dist_ckpt/common.pt", weights_only=False)
        kept = {"content_metadata": common["content_metadata"], "lr_scheduler": {"num_steps": 3}}
        torch.save(kept, actor / "dist_ckpt/common.pt")
        (actor / "huggingface").mkdir()
        shutil.copy(folder / f"{family}_hf/config.json", actor / "huggingface")
    return folder


def changed_config(folder: Path, to: Path, **fields: object) -> Path:
    to.mkdir()
    config = {**json.loads((folder / "config.json").read_text()), **fields}
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.parametrize("family", FAMILIES)
def test_what_verl_saves_is_exported_by_its_config(
    sets: Path, family: str, tmp_path: Path
) -> None:
    actor = sets / f"{family}_verl/global_step_5/actor"
    done = succeed("ckpt-convert", actor, tmp_path / "a", "--to", "huggingface", "--verify")
    assert "by config.json" in done.stdout
    own, found = tensors_of(sets / f"{family}_hf"), tensors_of(tmp_path / "a")
    assert found.keys() == own.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in own.items())
    config = json.loads((tmp_path / "a/config.json").read_text())
    ids = json.loads((actor / "huggingface/config.json").read_text())
    assert config["eos_token_id"] == ids["eos_token_id"]
    assert run("ckpt-convert", "names", "check", actor, sets / f"{family}_hf").code == 0
    # Of the shards alone, the folder is given.
    line = refuse(UNSUPPORTED, "ckpt-convert", actor / "dist_ckpt", tmp_path / "b", "--to",
                  "huggingface")  # fmt: skip
    assert "arg" in line
    succeed("ckpt-convert", actor / "dist_ckpt", tmp_path / "b", "--to", "huggingface",
            "--args-from", actor / "huggingface")  # fmt: skip
    assert (tmp_path / "a/model.safetensors").read_bytes() == (
        tmp_path / "b/model.safetensors").read_bytes()  # fmt: skip


@pytest.mark.parametrize(("fields", "said"), [
    ({"num_hidden_layers": 3}, "layers"), ({"num_key_value_heads": 4}, "linear_qkv"),
    ({"hidden_size": 64}, "shape"), ({"attention_bias": True}, "attention_bias"),
    ({"hidden_act": "gelu"}, "activation"), ({"architectures": ["XForCausalLM"]}, "architectures"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_parameters")])  # fmt: skip
def test_a_config_of_another_model_is_refused(
    sets: Path, fields: dict, said: str, tmp_path: Path
) -> None:
    actor = sets / "llama_verl/global_step_5/actor"
    other = changed_config(sets / "llama_hf", tmp_path / "other", **fields)
    line = refuse({3, UNSUPPORTED}, "ckpt-convert", actor, tmp_path / "a", "--to", "huggingface",
                  "--args-from", other)  # fmt: skip
    assert said in line


# Of Gemma 3 as its first releases have it, and what Megatron-Bridge does not compute.
FIRST_GEMMA = {
    "layer_types": None, "rope_parameters": None, "tie_word_embeddings": None,
    "sliding_window_pattern": 6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
OTHER_GEMMAS = (
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"hidden_activation": "gelu"}, "activation"),
    ({"tie_word_embeddings": False}, "tied embeddings"),
    ({**FIRST_GEMMA, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope scaling"),
    ({"layer_types": ["chunked_attention"] * 6}, "layer_types"),
)


def test_gemmas_config_of_either_form_is_followed(sets: Path, tmp_path: Path) -> None:
    actor, own = sets / "gemma3_text_verl/global_step_5/actor/dist_ckpt", sets / "gemma3_text_hf"
    command = ("ckpt-convert", actor, tmp_path / "hf", "--to", "huggingface", "--args-from")
    for number, (fields, said) in enumerate(OTHER_GEMMAS):
        other = changed_config(own, tmp_path / str(number), **fields)
        assert said in refuse(UNSUPPORTED, *command, other)
    done = succeed(*command, changed_config(own, tmp_path / "first", **FIRST_GEMMA))
    assert "does not know" not in done.stdout + done.stderr
    found = tensors_of(tmp_path / "hf")
    assert all(torch.equal(found[key], tensor) for key, tensor in tensors_of(own).items())
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["layer_types"] == json.loads((own / "config.json").read_text())["layer_types"]
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1000000, 10000)


def test_what_bridge_saves_is_exported_by_a_config(sets: Path, tmp_path: Path) -> None:
    source, own = sets / "gemma3_text_iter", sets / "gemma3_text_hf"
    succeed("ckpt-convert", source, tmp_path / "hf", "--to", "huggingface", "--verify",
            "--args-from", own)  # fmt: skip
    found, wanted = tensors_of(tmp_path / "hf"), tensors_of(own)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())


def test_a_model_that_sees_is_refused_by_its_key(sets: Path, tmp_path: Path) -> None:
    model = megatron_model(sets, "gemma3_text")
    model["vision_tower.embeddings.weight"] = torch.zeros(4, 4)
    write_checkpoint(tmp_path / "ckpt", model, ARGS["gemma3_text"])
    line = refuse(UNSUPPORTED, "ckpt-convert", tmp_path / "ckpt", tmp_path / "a", "--to",
                  "huggingface")  # fmt: skip
    assert "vision_tower.embeddings.weight" in line


def test_a_critics_value_head_is_named(sets: Path, tmp_path: Path) -> None:
    model = engine_names(megatron_model(sets, "llama"))
    model["output_layer.weight"] = torch.randn(1, 32)
    write_checkpoint(tmp_path / "ckpt", model, ARGS["llama"], "transformer_engine")
    line = refuse(UNSUPPORTED, "ckpt-convert", tmp_path / "ckpt", tmp_path / "a", "--to",
                  "huggingface")  # fmt: skip
    assert "output_layer.weight" in line


def test_hash_of_an_export_is_that_of_the_folder(sets: Path) -> None:
    for family in ("llama", "gpt_oss"):
        own, folder = sets / f"{family}_ckpt", sets / f"{family}_hf"
        quiet = [succeed("ckpt-inspect", "hash", path, "--quiet", *more).stdout
                 for path, more in ((own, ("--as", "huggingface")), (folder, ()))]  # fmt: skip
        assert quiet[0] == quiet[1]


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_diff_compares_a_checkpoint_with_its_export(
    sets: Path, family: str, tmp_path: Path
) -> None:
    source, folder = sets / f"{family}_ckpt", tmp_path / "hf"
    shutil.copytree(sets / f"{family}_hf", folder)
    for sides in ((source, folder), (folder, source)):
        done = run("ckpt-inspect", "diff", *sides)
        assert done.code == 0 and f"({family}, " in done.stderr, done
        assert run("ckpt-inspect", "diff", *sides, "--json").json()["names"] == "huggingface"
    tensors = tensors_of(folder)
    key = next(key for key in tensors if "down_proj" in key)
    tensors[key][..., 3, 2] += 1
    tensors["one.more"] = torch.ones(3)
    del tensors["model.norm.weight"]
    for file in folder.glob("*.safetensors"):
        file.unlink()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    done = run("ckpt-inspect", "diff", source, folder)
    assert done.code == 1
    for name in (key, "one.more", "model.norm.weight"):
        assert name in done.stdout, done
