"""Layers of multi-token prediction leave behind those of the decoder, as DeepSeek's own files have
them. transformers computes none of them: names are those of Megatron-Bridge 0.6.2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from huggingface_sets import tensors_of
from name_tables import exported, read_table
from programs import GOLDEN, run

LAYERS = 4  # of the decoder
BRIDGE = {  # of the one behind them, beside those that any layer has
    "enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "final_layernorm": "shared_head.norm",
}  # fmt: skip
SOURCES = ("te_deep_torch_pp2", "te_deep_torch_dist_ep2pp2dp2")


@pytest.mark.parametrize("source", SOURCES)
def test_further_layers_have_the_live_weights(source: str, tmp_path: Path) -> None:
    folder = GOLDEN / "runs" / source
    table = {"schema_version": 1, "base": "deepseek_v3", "requires": {
        "epsilon of latent norms": None}}  # fmt: skip
    (tmp_path / "table.json").write_text(json.dumps(table))
    done = run("ckpt-convert", folder / "ckpt", tmp_path / "hf", "--to", "huggingface",
               "--names", tmp_path / "table.json")  # fmt: skip
    assert done.code == 0, done
    made = tensors_of(tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (LAYERS, 1)
    live = load_file(GOLDEN / "runs/te_deep_torch_pp2/expected/state.safetensors")
    live = {key.removeprefix("model."): t for key, t in live.items() if key.startswith("model.")}
    for name, other in BRIDGE.items():
        found = made[f"model.layers.{LAYERS}.{other}.weight"]
        assert torch.equal(found, live[f"mtp.layers.0.{name}.weight"]), name
    for copy, whole in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        assert torch.equal(made[f"model.layers.{LAYERS}.{copy}.weight"], made[f"{whole}.weight"])
    args = {**args_of(GOLDEN / "runs/te_deep_torch_pp2"), "norm_epsilon": 1e-6,
            "vocab_size": 29}  # NullTokenizer has one token more
    wanted = exported(read_table("deepseek_v3"), args, live)
    assert made.keys() == wanted.keys()
    assert not [key for key in wanted if not torch.equal(made[key], wanted[key])]


def args_of(folder: Path) -> dict:
    done = run("ckpt-inspect", "show", folder / "ckpt", "/args", "--json")
    assert done.code == 0, done
    return done.json()["entries"][0]["object"]["$object"]["state"]
