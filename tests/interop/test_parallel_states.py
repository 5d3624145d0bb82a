"""What is read of a checkpoint at any parallel sizes is what Megatron had in memory, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_pairs import Set, all_sets
from parallel_sets import check_logical_state, needs_sets
from programs import logical_digest

pytestmark = needs_sets
NAMES = [s.name for s in all_sets()] + [
    "par_lw_muon_torch_dist_tp2dp2_to_dp1",
    "par_lw_muon_torch_dist_tp2dp2_to_pp2dp2",
    "par_lw_muon_vpad_torch_dist_dp1_to_tp2dp2",
    "par_lw_muon_vpad_torch_dist_tp2dp2_to_dp1",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_logical_state_is_that_of_the_live_objects(
    name: str, sets: Path, tmp_path: Path
) -> None:
    check_logical_state(sets / name, tmp_path)


def in_both_containers() -> list[tuple[Set, Set]]:
    torch = {(s.family.name, s.layout): s for s in all_sets() if s.container == "torch"}
    dist = [s for s in all_sets() if s.container == "torch_dist"]
    return [(torch[s.family.name, s.layout], s) for s in dist
            if (s.family.name, s.layout) in torch]


@pytest.mark.parametrize("both", in_both_containers(), ids=lambda both: both[0].name)
def test_one_state_has_one_logical_hash_in_both_containers(
    both: tuple[Set, Set], sets: Path
) -> None:
    assert len({logical_digest(sets / s.name / "ckpt") for s in both}) == 1
