"""Models of more than one kind of layer in Megatron-FSDP's folders (fsdp_dtensor).

tests/golden/megatron_fsdp_models.tar.xz: written by Megatron-FSDP itself, on one CPU, of core
0.19.0 and (mtp_2026_08) of main on 22 August 2026; gradients are random. What is written is to
have the entries of these files; both trees loaded such results, and saved the same tensors again.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from programs import BIN, GOLDEN, refuse, run, succeed
from reading import DcpFolder
from test_megatron_fsdp import described, save, state_of_megatron_fsdp, stored

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

MALFORMED = 3
MODELS = ["gdn", "geglu", "mamba", "mtp", "mtp_2026_08", "t5"]
INNER = "mtp.layers.0.mtp_model_layer."
RENAMED = "mtp.layers.0.transformer_layer."
OTHER_NAMES = {"position_embeddings.weight": "embedding.position_embeddings.weight",
               "output_layer.bias": "lm_head.output_layer.bias"}  # of T5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    archive = GOLDEN / "megatron_fsdp_models.tar.xz"
    subprocess.run(["tar", "-xJf", archive, "-C", folder], check=True)
    return folder


def expected(run_folder: Path) -> dict:
    """What PyTorch reads, under the model's names, and each tensor once."""
    state = {key.replace(RENAMED, INNER): value
             for key, value in state_of_megatron_fsdp(stored(run_folder)).items()}
    masters = "optimizer.state.fp32_param."
    if masters + "output_layer.bias" in state:
        for name, first in OTHER_NAMES.items():
            other = state.pop(masters + name)
            assert torch.equal(other, state[masters + first])
    weights = {key.removeprefix(masters): value.bfloat16()
               for key, value in state.items() if key.startswith(masters)}
    return state | weights


def same_tensors(folder: Path, other: Path) -> None:
    before, after = stored(folder), stored(other)
    assert before.keys() == after.keys()
    for key, value in before.items():  # random states are seeded anew at TP 2
        assert key.startswith("rng_state.") or torch.equal(after[key], value), key


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_read(name: str, runs: Path, tmp_path: Path) -> None:
    succeed("ckpt-convert", runs / name / "ckpt", tmp_path / "all.safetensors", "--to",
            "safetensors")
    found, wanted = load_file(tmp_path / "all.safetensors"), expected(runs / name)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype and torch.equal(found[key], value), key


@pytest.mark.parametrize("words", [("--to", "torch_dist"), ("--to", "torch", "--tp", "2")],
                         ids=lambda words: words[1])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_has_its_entries(
    name: str, words: tuple, runs: Path, tmp_path: Path
) -> None:
    source = runs / name / "ckpt"
    succeed("ckpt-convert", source, tmp_path / "made", *words)
    succeed("ckpt-inspect", "verify", tmp_path / "made")
    (tmp_path / "run").mkdir()
    succeed("ckpt-convert", tmp_path / "made", tmp_path / "run/ckpt", "--to", "fsdp_dtensor")
    assert described(tmp_path / "run/ckpt") == described(source)
    same_tensors(runs / name, tmp_path / "run")


@pytest.mark.parametrize(("name", "release", "as_written_by"), [
    ("mtp", "0.20-dev", "mtp_2026_08"), ("mtp_2026_08", "0.19", "mtp")])
def test_layers_of_mtp_are_named_for_a_release(
    name: str, release: str, as_written_by: str, runs: Path, tmp_path: Path
) -> None:
    told = succeed("ckpt-convert", runs / name / "ckpt", tmp_path / "own", "--to", "fsdp_dtensor")
    assert f"--target-megatron {release}" in told.text, told
    told = succeed("ckpt-convert", runs / name / "ckpt", tmp_path / "out", "--to",
                   "fsdp_dtensor", "--target-megatron", release)
    assert "multi-token prediction" not in told.text, told

    def inner_keys(folder: Path) -> set[str]:  # of a layer whose norms are called the same
        return {key for key in described(folder)[0]
                if "mtp" in key and key.endswith((".mlp.linear_fc2.weight", "qkv.weight.exp_avg",
                                                  ".mlp.linear_fc2.weight.lr"))}

    assert inner_keys(tmp_path / "out") == inner_keys(runs / as_written_by / "ckpt") != set()
    assert "equal: " in succeed("ckpt-inspect", "diff", runs / name / "ckpt",
                                tmp_path / "out").stdout


def test_an_older_release_is_refused(runs: Path, tmp_path: Path) -> None:
    line = refuse(2, "ckpt-convert", runs / "mtp/ckpt", tmp_path / "out", "--to", "fsdp_dtensor",
                  "--target-megatron", "0.16")
    assert "is written as core 0.19 and 0.20-dev read it" in line


def test_tied_embeddings_are_not_of_fsdp2(runs: Path, tmp_path: Path) -> None:
    line = refuse(4, "ckpt-convert", runs / "t5/ckpt", tmp_path / "out", "--to", "torch_dcp")
    assert "--untie-embeddings-and-output-weights" in line


def nested(folder: Path) -> dict:
    """The state dict that PyTorch flattened, but random states; of args what is no enum."""
    file = DcpFolder(folder / "ckpt/iter_0000002")
    flat = {key: file.object(key) for key in file.objects()} | stored(folder)
    args = vars(flat["args"]).items()
    flat["args"] = argparse.Namespace(**{
        name: value for name, value in args
        if value is None or isinstance(value, (bool, int, float, str, list))})
    state: dict = {}
    for key, path in described(folder / "ckpt")[1].items():
        if key.startswith("rng_state."):
            continue
        inner = state
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
        inner[path[-1]] = flat[key]
    return state


SIZES = {"query": 8, "key": 8, "value": 16, "z": 16, "beta": 4, "alpha": 4}  # of in_proj's rows


def test_segments_of_rows_as_bridge_has_them(runs: Path, tmp_path: Path) -> None:
    """Megatron-LM stores GatedDeltaNet's rows whole, in all releases up to August 2026;
    Megatron-Bridge with its handle_gdn_in_state_dict in segments. An imitation of the latter."""
    state = nested(runs / "gdn")

    def split(tensors: dict) -> None:
        fused = (".in_proj.weight", ".conv1d.weight")
        for name in [name for name in tensors if name.endswith(fused)]:
            whole = tensors.pop(name)
            moments = whole if isinstance(whole, dict) else {"": whole}
            sizes = list(SIZES.items())[:3 if "conv1d" in name else 6]
            for moment, tensor in moments.items():
                for (segment, _), rows in zip(sizes, tensor.split([size for _, size in sizes])):
                    if moment:
                        tensors.setdefault(f"{name}.{segment}", {})[moment] = rows.clone()
                    else:
                        tensors[f"{name}.{segment}"] = rows.clone()

    split(state["model"]), split(state["optimizer"]["state"])
    assert sum(key.endswith(".in_proj.weight.beta") for key in state["model"]) == 1
    save(state, tmp_path / "ckpt")
    assert "different: 0 of" in run("ckpt-inspect", "diff", runs / "gdn/ckpt",
                                    tmp_path / "ckpt").stdout  # random states are not there
    succeed("ckpt-convert", tmp_path / "ckpt", tmp_path / "out", "--to", "torch_dist")
    del state["model"]["module.decoder.layers.0.self_attention.in_proj.weight.beta"]
    save(state, tmp_path / "less")
    line = refuse(MALFORMED, "ckpt-convert", tmp_path / "less", tmp_path / "no", "--to", "torch")
    assert "in_proj.weight" in line


def test_two_names_of_one_tensor_must_be_equal(runs: Path, tmp_path: Path) -> None:
    state = nested(runs / "t5")
    state["model"]["module.output_layer.bias"][3] += 1
    save(state, tmp_path / "ckpt")
    line = refuse(MALFORMED, "ckpt-convert", tmp_path / "ckpt", tmp_path / "out", "--to", "torch")
    assert "another name" in line


def test_units_that_megatron_does_not_split_stay_whole(runs: Path) -> None:
    """--quick-geglu: gated, and not --swiglu."""
    keys = described(runs / "geglu/ckpt")[0]
    assert keys["model.module.decoder.layers.0.mlp.linear_fc1.weight"] == (48, 16)
