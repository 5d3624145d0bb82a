"""The generator is a true oracle: its folders are structured as those that Megatron-LM wrote."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy
import pytest
import torch

from golden.cases import MEGATRON_CASES
from programs import GOLDEN
from reading import DcpFolder, iteration_folder, load_torch_folder

# (recorded set, generated case): the same model, optimizer layout and number of ranks.
TORCH_PAIRS = (
    ("lw_muon_bf16_torch_dp1", "gpt2l_torch_dp1"),
    ("lw_muon_bf16_torch_dp2", "gpt2l_torch_dp2"),
    ("lw_muon_bf16_torch_dp4", "gpt2l_torch_dp4"),
    ("lw_muon_bf16_fusedadam_layout_torch_dp2", "gpt2l_fused_torch_dp2"),
)
TORCH_DIST_PAIRS = (
    ("lw_muon_bf16_torch_dist_dp1", "gpt2l_torch_dist_dp1"),
    ("lw_muon_bf16_torch_dist_dp2", "gpt2l_torch_dist_dp2"),
    ("lw_muon_bf16_torch_dist_dp4", "gpt2l_torch_dist_dp4"),
    ("lw_muon_bf16_fusedadam_layout_torch_dist_dp2", "gpt2l_fused_torch_dist_dp2"),
    ("lw_muon_bf16_fusedadam_layout_torch_dist_dp4", "gpt2l_fused_torch_dist_dp4"),
    ("lw_muon_bf16_torch_dist_dp2_no_fully_parallel_save", "gpt2l_one_writer_torch_dist_dp2"),
)


def skeleton(value: object) -> object:
    """A value tree without the numbers of its tensors and random-number states."""
    if isinstance(value, torch.Tensor):
        storage_bytes = value.untyped_storage().nbytes()
        layout = (str(value.dtype), tuple(value.shape), value.stride(), storage_bytes)
        return ("tensor", type(value).__name__, layout, sorted(vars(value).items()))
    if isinstance(value, numpy.ndarray):
        return ("array", str(value.dtype), value.shape)
    if isinstance(value, dict):
        items = [(key, skeleton(item)) for key, item in value.items()]
        return (type(value).__name__, items, skeleton(getattr(value, "__dict__", None)))
    if isinstance(value, tuple) and len(value) > 600:  # Mersenne Twister state
        return ("tuple", len(value))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [skeleton(item) for item in value])
    if isinstance(value, argparse.Namespace):
        return [(key, repr(item)) for key, item in vars(value).items() if key != "save"]
    return repr(value)


def recorded(name: str, request: pytest.FixtureRequest) -> Path:
    """A set that the repository has, else one of the shared fixtures."""
    return (GOLDEN if (GOLDEN / name).is_dir() else request.getfixturevalue("fixtures")) / name


@pytest.mark.parametrize(("name", "case"), TORCH_PAIRS)
def test_torch_structure_is_megatrons(name, case, generated, request) -> None:
    theirs = load_torch_folder(recorded(name, request) / "ckpt")
    ours = load_torch_folder(generated / case)
    assert list(ours) == list(theirs)
    for file in theirs:
        assert skeleton(ours[file]) == skeleton(theirs[file]), file


def places(folder: DcpFolder) -> list[tuple]:
    """Where entries lie, in order; pickled random numbers have lengths that depend on the seed."""
    return [
        (index.fqn, index.offset, index.index, place.relative_path, place.transform_descriptors)
        + (() if index.fqn.startswith("rng_state/") else (place.length,))
        for index, place in folder.metadata.storage_data.items()
    ]


@pytest.mark.parametrize(("name", "case"), TORCH_DIST_PAIRS)
def test_torch_dist_structure_is_megatrons(name, case, generated, request) -> None:
    theirs = iteration_folder(recorded(name, request) / "ckpt")
    ours = iteration_folder(generated / case)
    assert sorted(p.name for p in ours.iterdir()) == sorted(p.name for p in theirs.iterdir())
    assert (ours / "metadata.json").read_bytes() == (theirs / "metadata.json").read_bytes()
    mine, megatrons = DcpFolder(ours), DcpFolder(theirs)
    # Keys, shapes, chunks in their order, and every entry's file and length.
    assert list(mine.metadata.state_dict_metadata.items()) == list(
        megatrons.metadata.state_dict_metadata.items()
    )
    assert places(mine) == places(megatrons)
    assert skeleton(mine.common) == skeleton(megatrons.common)
    for key in megatrons.objects():
        assert skeleton(mine.object(key)) == skeleton(megatrons.object(key)), key


def bf16_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.bfloat16().contiguous().view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("case", MEGATRON_CASES, ids=lambda case: case.name)
def test_each_master_rounds_to_its_weight_and_twins_hold_one_state(case, generated) -> None:
    """What the oracle promises: all folders of a case carry the same bits under the same names."""
    states = []
    for dp_size in case.dp_sizes:
        folder = DcpFolder(iteration_folder(generated / case.folder("torch_dist", dp_size)))
        state = {key: folder.tensor(key) for key in folder.tensors()}
        for key in [key for key in state if not key.startswith("optimizer.")]:
            master = state[f"optimizer.state.fp32_param.{key}"]
            assert bf16_bytes(master) == bf16_bytes(state[key]), key
        states.append(state)
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for key, tensor in state.items():
            assert torch.equal(tensor, states[0][key]), key
    if "torch" in case.formats:
        for dp_size in case.dp_sizes:
            check_torch_twin(generated / case.folder("torch", dp_size), states[0])


def check_torch_twin(root: Path, state: dict[str, torch.Tensor]) -> None:
    """The multiset of masters and moments over all rank files is that of torch_dist."""

    def kind_of(key: str) -> str:
        return key.split(".")[2]

    def signature(kind: str, tensor: torch.Tensor) -> tuple:
        return kind, tuple(tensor.shape), tensor.contiguous().numpy().tobytes()

    files = load_torch_folder(root)
    found = []
    for name, optimizers in files.items():
        for optimizer in optimizers if "layer_wise" in name else ():
            groups = optimizer["fp32_from_fp16_params"]
            found += [signature("fp32_param", t) for group in groups for t in group]
            for values in optimizer["optimizer"]["state"].values():
                found += [signature(k, t) for k, t in values.items() if k != "step"]
    model = files["mp_rank_00/model_optim_rng.pt"]["model"]
    layers = 1 + max(int(k.split(".")[2]) for k in model if k.startswith("decoder.layers."))
    expected = []
    for key, tensor in state.items():
        if key.startswith("optimizer."):
            stacked = ".layers." in key
            parts = [tensor[layer] for layer in range(layers)] if stacked else [tensor]
            expected += [signature(kind_of(key), part) for part in parts]
    assert sorted(found) == sorted(expected)


def test_recorded_owners_follow_from_the_deal(request, generated) -> None:
    """Masters of the recorded sets lie where ownership.json says, and generated ones at the same
    place: the generator's deal is the one that Megatron-LM made."""
    for dp_size in (2, 4):
        theirs = recorded(f"lw_muon_bf16_torch_dp{dp_size}", request)
        owners = json.loads((theirs / "expected/ownership.json").read_text())
        files = load_torch_folder(generated / f"gpt2l_torch_dp{dp_size}")
        model = files["mp_rank_00/model_optim_rng.pt"]["model"]
        for name, place in owners.items():
            optimizer = files[f"mp_rank_00/layer_wise_optimizer_{place['rank']}.pt"][
                place["optimizer"]
            ]
            groups = optimizer["optimizer"]["param_groups"]
            position = groups[place["group"]]["params"].index(place["index"])
            master = optimizer["fp32_from_fp16_params"][place["group"]][position]
            assert bf16_bytes(master) == bf16_bytes(model[name]), name
