"""ckpt-convert --to huggingface of models that Megatron-LM trained, in every filing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from huggingface_sets import ARGS, tensors_of
from name_tables import exported, read_table
from parallel_sets import needs_sets, recorded_state
from programs import GOLDEN, run

# Of the family `llama`: NullTokenizer has one token more than vocab_size, 7 rows are padding.
TRAINED = dict(
    ARGS["llama"], num_layers=4, ffn_hidden_size=96, vocab_size=121, layernorm_epsilon=1e-5
)
FORMS = (
    "do_adam_llama_dp_reshardable", "do_adam_llama_fully_reshardable", "do_adam_llama_torch",
    "lw_muon_llama_torch_dist", "lw_muon_llama_torch",
)  # fmt: skip


@needs_sets
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", ["dp1", "tp2", "tp2dp2"])
@pytest.mark.parametrize("weights", ["model", "master"])
def test_every_filing_gives_the_live_weights_and_masters(
    sets: Path, form: str, sizes: str, weights: str, tmp_path: Path
) -> None:
    source = sets / f"par_{form}_{sizes}"
    prefix = "" if weights == "model" else "optimizer.state.fp32_param."
    live = {
        name.removeprefix(prefix): tensor
        for name, tensor in recorded_state(source).items()
        if name.startswith(prefix or ("decoder.", "embedding.", "output_layer."))
    }
    done = run("ckpt-convert", source / "ckpt", tmp_path / "hf", "--to", "huggingface",
               "--weights", weights, "--verify")  # fmt: skip
    assert done.code == 0, done
    made, wanted = tensors_of(tmp_path / "hf"), exported(read_table("llama"), TRAINED, live)
    assert made.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert tensor.dtype == (torch.bfloat16 if weights == "model" else torch.float32)
        assert torch.equal(made[key], tensor), key


def test_a_model_saved_without_its_optimizer_has_its_live_weights(tmp_path: Path) -> None:
    source = GOLDEN / "no_save_optim_torch_dist_dp2"
    sizes = {"hidden_size": 16, "ffn_hidden_size": 24, "kv_channels": 4, "vocab_size": 61}
    done = run("ckpt-convert", source / "ckpt", tmp_path / "hf", "--to", "huggingface")
    assert done.code == 0, done
    live = load_file(source / "expected/state.safetensors")
    live = {name.removeprefix("model."): tensor for name, tensor in live.items()}
    made = tensors_of(tmp_path / "hf")
    wanted = exported(read_table("llama"), {**TRAINED, **sizes}, live)
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[key], wanted[key]) for key in wanted)
    masters = run("ckpt-convert", source / "ckpt", tmp_path / "masters", "--to", "huggingface",
                  "--weights", "master")  # fmt: skip
    assert masters.code == 4, masters
    assert "holds no float32 masters" in masters.stderr, masters
