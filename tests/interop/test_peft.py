"""ckpt-convert --to peft of adapters that Megatron-Bridge filed, and back."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemReader

from huggingface_sets import tensors_of, unpack
from programs import GOLDEN, refuse, run, succeed

USAGE, UNSUPPORTED = 2, 4
FAMILIES = {"llama": "llama", "llama_tp2": "llama", "llama_canonical": "llama",
            "llama_canonical_tp2": "llama", "qwen2": "qwen2", "qwen3_moe": "qwen3_moe",
            "deepseek_v3": "deepseek_v3"}  # fmt: skip


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = unpack(tmp_path_factory.mktemp("peft"))
    with tarfile.open(GOLDEN / "huggingface/adapters.tar.xz") as adapters:
        adapters.extractall(folder / "adapters")
    return folder


def require_same(found: Path, wanted: Path) -> None:
    ours, theirs = tensors_of(found), tensors_of(wanted)
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        assert ours[key].dtype == tensor.dtype, key
        assert torch.equal(ours[key], tensor), key
    assert (json.loads((found / "adapter_config.json").read_text())
            == json.loads((wanted / "adapter_config.json").read_text()))  # fmt: skip


def stored_in(folder: Path) -> dict[str, torch.Tensor]:
    """The adapter's tensors, as PyTorch reads them."""
    known = FileSystemReader(folder).read_metadata().state_dict_metadata
    made = {key: torch.empty(value.size) for key, value in known.items()
            if ".adapter." in key and not key.startswith("optimizer.")}  # fmt: skip
    dcp.load(made, checkpoint_id=folder, no_dist=True)
    return made


@pytest.mark.parametrize("case", FAMILIES)
def test_an_adapter_leaves_as_bridges_own_export_and_comes_back(
    sets: Path, case: str, tmp_path: Path
) -> None:
    source, wanted = sets / f"adapters/{case}/iter_0000002", sets / f"adapters/{case}_peft"
    done = succeed("ckpt-convert", source, tmp_path / "out", "--to", "peft", "--verify")
    family = FAMILIES[case]
    assert f"torch_dist -> peft ({family}, " in done.stdout
    require_same(tmp_path / "out", wanted)
    base = sets / f"{family}_hf"
    done = succeed("ckpt-convert", wanted, tmp_path / "back", "--to", "torch_dist", "--args-from",
                   base, "--verify")  # fmt: skip
    assert f"peft ({family}, " in done.stdout
    succeed("ckpt-convert", tmp_path / "back", tmp_path / "again", "--to", "peft")
    require_same(tmp_path / "again", wanted)
    found, own = stored_in(tmp_path / "back/release"), stored_in(source)
    if case.endswith("canonical_tp2"):  # Bridge's rows of gate and up are in another order
        own = stored_in(sets / "adapters/llama_canonical/iter_0000002")
        assert {key: tensor.shape for key, tensor in found.items()} == {
            key: tensor.shape for key, tensor in own.items()}  # fmt: skip
        return
    # Experts come back under the name of grouped ones, which Bridge's default is.
    own = {key.replace(".experts.experts.", ".experts."): tensor for key, tensor in own.items()}
    assert found.keys() == own.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in own.items())
    assert run("ckpt-inspect", "verify", tmp_path / "back").code == 0


def adapter(sets: Path, to: Path, keep: str = "", **fields: object) -> Path:
    source = sets / "adapters/llama_canonical_peft"
    config = {**json.loads((source / "adapter_config.json").read_text()), **fields}
    to.mkdir()
    (to / "adapter_config.json").write_text(json.dumps(config))
    tensors = load_file(source / "adapter_model.safetensors")
    save_file({key: tensor for key, tensor in tensors.items() if keep in key},
              to / "adapter_model.safetensors")  # fmt: skip
    return to


def test_what_bridge_has_no_place_for_is_refused_by_name(sets: Path, tmp_path: Path) -> None:
    base = ("--args-from", sets / "llama_hf")
    whole = adapter(sets, tmp_path / "whole")
    rows = (
        (whole, ("--to", "torch", *base), USAGE, "--to torch_dist --args-from FOLDER"),
        (whole, ("--to", "torch_dist", "--tp", 2, *base), USAGE, "leave out --tp"),
        (adapter(sets, tmp_path / "q", "q_proj"), base, UNSUPPORTED,
         "k_proj.weight': is not in the adapter, and Bridge adapts all of linear_qkv"),
        (adapter(sets, tmp_path / "one", "layers.0."), base, UNSUPPORTED, "layers.1."),
        (adapter(sets, tmp_path / "alpha", alpha_pattern={"o_proj": 3}), base, UNSUPPORTED,
         "has a different rank or alpha from others"),
        (adapter(sets, tmp_path / "part", lora_alpha=2.5), base, UNSUPPORTED, "not a whole number"),
        (adapter(sets, tmp_path / "dora", use_dora=True), base, UNSUPPORTED, "use_dora"),
        (adapter(sets, tmp_path / "flip", fan_in_fan_out=True), base, UNSUPPORTED, ""),
    )  # fmt: skip
    for source, options, code, said in rows:
        if "--to" not in options:
            options = ("--to", "torch_dist", *options)
        done = run("ckpt-convert", source, tmp_path / "x", *options)
        assert done.code == code, (said, done.stderr)
        assert said in done.stderr, done.stderr
        assert not (tmp_path / "x").exists()


def test_without_its_base_an_adapter_keeps_its_own_names(sets: Path, tmp_path: Path) -> None:
    source = adapter(sets, tmp_path / "adapter")
    succeed("ckpt-convert", source, tmp_path / "x", "--to", "torch_dist")
    listed = json.loads(succeed("ckpt-inspect", "ls", tmp_path / "x", "--json").stdout)
    names = load_file(source / "adapter_model.safetensors").keys()
    assert {tensor["key"] for tensor in listed["tensors"]} == names


def test_what_peft_has_no_place_for_is_refused_by_name(sets: Path, tmp_path: Path) -> None:
    own = sets / "adapters/llama/iter_0000002"
    config = (own / "run_config.yaml").read_text()
    rows = (
        ("peft.lora.LoRA", "peft.dora.DoRA", 'is "megatron.bridge.peft.dora.DoRA"; LoRA and'),
        ("\npeft:", "\nother:", "'peft': is not there"),
        ("  alpha: 6", "  alpha: many", "'peft.alpha': is not a number"),
    )
    for number, (before, after, said) in enumerate(rows):
        source = tmp_path / str(number) / "iter_0000002"
        shutil.copytree(own, source)
        assert before in config
        (source / "run_config.yaml").write_text(config.replace(before, after))
        line = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "x", "--to", "peft")
        assert said in line, line
    whole = GOLDEN / "gpt1l_tiny_torch_dist_dp2"
    line = refuse(UNSUPPORTED, "ckpt-convert", whole, tmp_path / "x", "--to", "peft")
    assert "run_config.yaml 'peft': is not there" in line
