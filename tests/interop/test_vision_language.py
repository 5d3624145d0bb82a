"""A LLaVA as pretrain_vlm.py builds it, by args that say other things of its language model.

tests/golden/pretrain_vlm.tar.xz: core 0.19.0's model_provider with local layers, one vision layer
(args.num_layers) and two of language (args.decoder_num_layers), an output layer that
args.untie_embeddings_and_output_weights denies, and plain Adam. Random states are zeroed and
moments replaced by the number of their parameter, to be small.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from damage import edit_args
from programs import BIN, GOLDEN, damage_of, logical_digest, refuse, succeed, verify
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vlm")
    subprocess.run(["tar", "-xJf", GOLDEN / "pretrain_vlm.tar.xz", "-C", folder], check=True)
    return folder / "pretrain_vlm"


def keys_of(path: Path) -> set[str]:
    document = succeed("ckpt-inspect", "ls", path, "--json").json()
    return {tensor["key"] for tensor in document["tensors"]}


def test_what_is_stored_says_that_the_output_layer_is_untied(vlm: Path, tmp_path: Path) -> None:
    assert verify(vlm)[0] == 0
    made = tmp_path / "model.safetensors"
    succeed("ckpt-convert", vlm, made, "--to", "safetensors", "--model-only")
    assert "language_model.output_layer.weight" in keys_of(made)


def test_layers_that_args_have_and_the_model_lacks_are_found(vlm: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(vlm, tmp_path / "other"))
    edit_args(decoder_num_layers=7)(other)
    code, document = verify(other)
    assert code == 1
    assert any("the model has 2 decoder layers" in found for found in damage_of(document))


def test_torch_dist_has_norms_of_local_layers_under_their_own_names(
    vlm: Path, tmp_path: Path
) -> None:
    """llava_spec.py has no sharded_state_dict_keys_map, GPT's local layers have one."""
    succeed("ckpt-convert", vlm, tmp_path / "made", "--to", "torch_dist")
    norms = {key for key in keys_of(tmp_path / "made")
             if "norm" in key and not key.startswith("optimizer.") and key.endswith("weight")}
    assert norms == {
        *(f"{part}_model.decoder.layers.{norm}_layernorm.weight"
          for part in ("language", "vision") for norm in ("input", "pre_mlp")),
        "language_model.decoder.final_layernorm.weight"}
    assert verify(tmp_path / "made")[0] == 0


def test_stages_divide_the_layers_of_the_language_model(vlm: Path, tmp_path: Path) -> None:
    succeed("reshard", vlm, tmp_path / "pp2", "--pp", 2)
    second = keys_of(iteration_folder(tmp_path / "pp2") / "mp_rank_00_001/model_optim_rng.pt")
    layers = {key.split("layers.")[1].split(".")[0] for key in second if "model.decoder.lay" in key}
    assert layers == {"0"}
    assert not any(key.startswith("/model/vision") for key in second)
    assert verify(tmp_path / "pp2")[0] == 0
    assert logical_digest(tmp_path / "pp2") == logical_digest(vlm)
    said = refuse(2, "reshard", vlm, tmp_path / "pp4", "--pp", 4)
    assert "2 layers cannot be divided evenly over 4" in said


def test_stages_put_together_number_the_state_as_one_stage_does(vlm: Path, tmp_path: Path) -> None:
    """A stage registers the vision model behind its language layers."""
    untied = Path(shutil.copytree(vlm, tmp_path / "untied"))
    edit_args(untie_embeddings_and_output_weights=True)(untied)  # which torch_dcp asks for
    succeed("reshard", untied, tmp_path / "pp2", "--pp", 2)
    for name, source in (("one", untied), ("two", tmp_path / "pp2")):
        succeed("ckpt-convert", source, tmp_path / name, "--to", "torch_dcp")
    assert logical_digest(tmp_path / "one") == logical_digest(tmp_path / "two")


def test_no_export_of_a_part_of_the_model(vlm: Path, tmp_path: Path) -> None:
    said = refuse(4, "ckpt-convert", vlm, tmp_path / "made", "--to", "huggingface")
    assert "'embedding.word_embeddings.weight': is below 'language_model.'" in said
