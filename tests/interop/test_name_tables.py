"""The tables by which models leave as Hugging Face folders, read by a second reader."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from huggingface_sets import ARGS, megatron_model, tensors_of, unpack
from name_tables import FAMILIES, MUTATIONS, config_of, exported, read_table
from test_huggingface_logits import NEW


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("huggingface"))


# What a run's args do not say, or a class has by default.
NOT_OF_ARGS = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version",
               "max_window_layers", "_name_or_path")  # fmt: skip


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_every_table_has_a_model() -> None:
    assert FAMILIES == sorted([*ARGS, *NEW])


@pytest.mark.parametrize("family", ARGS)
def test_a_table_explains_its_model_to_the_bit(sets: Path, family: str) -> None:
    made = exported(read_table(family), ARGS[family], megatron_model(sets, family))
    assert same(made, tensors_of(sets / f"{family}_hf"))


@pytest.mark.parametrize("family", ARGS)
def test_a_config_says_what_the_model_s_own_says(sets: Path, family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    made = config_of(read_table(family), ARGS[family], 128, "float32")
    (tmp_path / "config.json").write_text(json.dumps(made))
    ours, own = (AutoConfig.from_pretrained(f).to_dict() for f in (tmp_path, sets / f"{family}_hf"))
    for one in (ours, own):
        for key in NOT_OF_ARGS:
            one.pop(key, None)
        one["head_dim"] = one.get("head_dim") or 8
        rope = one["rope_parameters"]
        one["rope_parameters"] = {k: v for k, v in rope.items() if v is not None}
    assert ours == own


@pytest.mark.parametrize("family", ARGS)
def test_a_wrong_table_is_noticed(sets: Path, family: str) -> None:
    model, wanted = megatron_model(sets, family), tensors_of(sets / f"{family}_hf")
    tried = 0
    for name, change in MUTATIONS.items():
        table = copy.deepcopy(read_table(family))
        if not change(table):
            continue
        tried += 1
        try:
            made = exported(table, ARGS[family], model)
        except Exception:  # noqa: BLE001 (a shape or a key that is not there)
            continue
        assert not same(made, wanted), name
    assert tried >= 5


@pytest.mark.parametrize("family", ARGS)
@pytest.mark.parametrize("mark", ["layers.{layer}", "{expert}"])
def test_tensors_under_another_number_are_noticed(sets: Path, family: str, mark: str) -> None:
    model = megatron_model(sets, family)
    one, other = (mark.replace("{layer}", n).replace("{expert}", f"experts.{n}.") for n in "01")
    if not any(one in key for key in model):
        pytest.skip("a dense model")
    moved = {}
    for key, tensor in model.items():
        there = key.replace(one, other) if one in key else key.replace(other, one)
        moved[there if there in model and model[there].shape == tensor.shape else key] = tensor
    made = exported(read_table(family), ARGS[family], moved)
    assert not same(made, tensors_of(sets / f"{family}_hf"))
