"""Random states of a result: seeded as Megatron seeds a fresh start at those sizes, kept, dropped;
never half of them."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy
import pytest
import torch

from comparing import bytes_of, differences
from parallel_pairs import LAYOUTS, Sizes, sizes
from parallel_sets import Reshards, needs_sets
from reading import DcpFolder, iteration_folder, load

pytestmark = needs_sets
SEED = {"gpt": 1234, "moe": 1235}


def seeded(seed: int, tp: int, pp: int, ep: int, etp: int) -> dict:
    """megatron/training/initialize.py and core/tensor_parallel/random.py, as numbers."""
    seed += 100 * pp
    return {
        "random_rng_state": random.Random(seed).getstate(),
        "np_rng_state": numpy.random.RandomState(seed).get_state(),
        "torch_rng_state": torch.Generator().manual_seed(seed).get_state(),
        "cuda_rng_state": (seed, 0),
        "rng_tracker_states": {
            "data-parallel-rng": (seed, 0),
            "model-parallel-rng": (seed + 2718 + tp, 0),
            "expert-parallel-rng": (seed + 1024 + 100 * ep + etp, 0),
        },
    }


def seed_and_offset(state: torch.Tensor) -> tuple[int, int]:
    return struct.unpack("<QQ", bytes_of(state))


def expect_seeded(state: dict, expected: dict) -> None:
    assert list(state) == list(expected)
    assert state["random_rng_state"] == expected["random_rng_state"]
    for mine, theirs in zip(state["np_rng_state"], expected["np_rng_state"], strict=True):
        assert numpy.array_equal(mine, theirs)
    assert bytes_of(state["torch_rng_state"]) == bytes_of(expected["torch_rng_state"])
    assert seed_and_offset(state["cuda_rng_state"]) == expected["cuda_rng_state"]
    trackers = {name: seed_and_offset(of) for name, of in state["rng_tracker_states"].items()}
    assert list(trackers.items()) == list(expected["rng_tracker_states"].items())


def states_of_torch(root: Path) -> dict[str, dict]:
    folder = iteration_folder(root)
    files = {path.parent.name: load(path) for path in folder.glob("*/model_optim_rng.pt")}
    return {name: tree["rng_state"] for name, tree in files.items()}


def states_of_torch_dist(root: Path) -> dict[str, dict]:
    folder = DcpFolder(iteration_folder(root))
    keys = [key for key in folder.objects() if key.startswith("rng_state/")]
    return {key.removeprefix("rng_state/"): folder.object(key) for key in keys}


def test_each_rank_folder_gets_the_seeds_of_its_coordinates(
    sets: Path, reshards: Reshards
) -> None:
    made = reshards.make(sets / "par_lw_muon_torch_dp1/ckpt", sizes(tp=2, pp=2, dp=2)).root
    states = states_of_torch(made)
    assert len(states) == 4
    for tp in (0, 1):
        for pp in (0, 1):
            (state,) = states[f"mp_rank_{tp:02}_{pp:03}"]
            expect_seeded(state, seeded(SEED["gpt"], tp, pp, 0, tp))


def test_experts_have_seeds_of_their_own(sets: Path, reshards: Reshards) -> None:
    made = reshards.make(sets / "par_lw_muon_moe_torch_dp1/ckpt", LAYOUTS["ep2pp2dp2"]).root
    states = states_of_torch(made)
    assert len(states) == 4
    for pp in (0, 1):
        for ep in (0, 1):
            (state,) = states[f"mp_rank_00_{pp:03}_{ep:03}"]
            expect_seeded(state, seeded(SEED["moe"], 0, pp, ep, 0))


@pytest.mark.parametrize("target", [sizes(tp=2, pp=2), sizes(pp=4, dp=2)], ids=str)
def test_torch_dist_has_one_state_per_stage_and_tensor_parallel_rank(
    target: Sizes, sets: Path, reshards: Reshards
) -> None:
    states = states_of_torch_dist(
        reshards.make(sets / "par_lw_muon_torch_dist_dp4/ckpt", target).root
    )
    assert states.keys() == {
        f"shard_{pp}.{tp}_{target.pp}.{target.tp}"
        for pp in range(target.pp) for tp in range(target.tp)
    }
    for name, state in states.items():
        pp, tp = map(int, name.split("_")[1].split("."))
        expect_seeded(state[0][0], seeded(SEED["gpt"], tp, pp, 0, tp))


@pytest.mark.parametrize("name", ["par_lw_muon_torch_tp2dp2", "par_lw_muon_torch_dist_tp2dp2"])
def test_the_new_seeds_are_listed(name: str, sets: Path, reshards: Reshards) -> None:
    made = reshards.make(sets / name / "ckpt", sizes(pp=2))
    assert made.says_not_carried("rng_state")


def test_random_states_are_kept_where_they_can_be(sets: Path, reshards: Reshards) -> None:
    source = sets / "par_lw_muon_torch_tp2dp2/ckpt"
    kept = reshards.make(source, sizes(tp=2, dp=4), "--rng", "keep")
    assert not kept.says_not_carried("rng_state")
    before = states_of_torch(source)
    for name, (state,) in states_of_torch(kept.root).items():
        for device in ("torch_rng_state", "cuda_rng_state"):
            assert bytes_of(state[device]) == bytes_of(before[name][0][device]), name


def test_ranks_that_had_no_random_state_get_that_of_the_first(
    sets: Path, reshards: Reshards
) -> None:
    source = sets / "par_lw_muon_torch_dist_dp1/ckpt"
    made = reshards.make(source, sizes(pp=2), "--rng", "keep")
    assert made.says_not_carried("rng_state")
    (kept,) = states_of_torch_dist(source).values()
    for state in states_of_torch_dist(made.root).values():
        assert differences(state, kept) == []


@pytest.mark.parametrize("container", ["torch", "torch_dist"])
def test_random_states_are_dropped_whole(container: str, sets: Path, reshards: Reshards) -> None:
    source = sets / f"par_lw_muon_{container}_tp2dp2" / "ckpt"
    made = reshards.make(source, sizes(pp=2, dp=2), "--rng", "drop")
    assert made.says_not_carried("rng_state")
    if container == "torch":
        files = iteration_folder(made.root).glob("*/model_optim_rng.pt")
        assert all("rng_state" not in load(path) for path in files)
    else:
        assert states_of_torch_dist(made.root) == {}
