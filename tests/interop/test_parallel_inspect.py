"""`groups`, `diff` and `hash --logical` at every parallel size: who owns what is what Megatron
recorded, and one state is one state whatever the sizes that it was saved at."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from parallel_pairs import Set, all_sets
from parallel_sets import DAMAGED, Reshards, needs_sets, recorded_state
from parallel_twins import is_equal_state
from programs import logical_digest, run, succeed

pytestmark = needs_sets


@pytest.mark.parametrize("source", all_sets(), ids=lambda s: s.name)
def test_owners_are_those_that_megatron_recorded(source: Set, sets: Path) -> None:
    """World ranks; a parameter of several tensor-parallel ranks has an owner in each."""
    recorded = json.loads((sets / source.name / "expected/ranks.json").read_text())
    expected = {(rank["rank"], owned["name"], owned["optimizer"], owned["group"])
                for rank in recorded for owned in rank["owned"]}
    document = succeed("ckpt-inspect", "groups", sets / source.name / "ckpt", "--json").json()
    found = {(p["rank"], p["key"], p["optimizer"], p["group"]) for p in document["parameters"]}
    assert sorted(found - expected)[:3] == []
    assert sorted(expected - found)[:3] == []


def same_states(sets: Path) -> list[list[Set]]:
    """Sets of one family whose live objects were equal to the bit."""
    found: list[list[Set]] = []
    for source in all_sets():
        state = recorded_state(sets / source.name)
        group = next((g for g in found if g[0].family == source.family and is_equal_state(
            recorded_state(sets / g[0].name), state)), None)
        if group:
            group.append(source)
        else:
            found.append([source])
    return found


def test_sets_of_one_state_have_one_logical_hash(sets: Path) -> None:
    groups = same_states(sets)
    assert max(map(len, groups)) >= 13
    for group in groups:
        digests = {s.name: logical_digest(sets / s.name / "ckpt") for s in group}
        assert len(set(digests.values())) == 1, digests


PAIRS = (
    ("par_lw_muon_torch_tp2pp2dp2", "par_lw_muon_torch_dist_pp2vpp2dp2"),
    ("par_lw_muon_torch_pp2vpp2dp2", "par_lw_muon_torch_dp1"),
    ("par_lw_muon_tied_torch_pp2dp2", "par_lw_muon_tied_torch_dist_dp1"),
    ("par_lw_muon_moe_torch_ep2tp2dp2", "par_lw_muon_moe_torch_dist_dp1"),
    ("par_adam_fp16_torch_tp2dp2", "par_adam_fp16_torch_dist_dp2"),
)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_equal_states_do_not_differ(one: str, other: str, sets: Path) -> None:
    outcome = run("ckpt-inspect", "diff", sets / one / "ckpt", sets / other / "ckpt")
    assert outcome.code == 0, outcome


def test_different_states_differ_by_name(sets: Path) -> None:
    """SwiGLU at TP2: four tensors of the last step, as the rows of fc1 stand in another order."""
    one, other = "par_lw_muon_llama_torch_tp2dp2", "par_lw_muon_llama_torch_dist_dp1"
    outcome = run("ckpt-inspect", "diff", sets / one / "ckpt", sets / other / "ckpt", "--json")
    assert outcome.code == DAMAGED
    states = [recorded_state(sets / name) for name in (one, other)]
    expected = {name for name in states[0] if not is_equal_state(
        {name: states[0][name]}, {name: states[1][name]})}
    found = {tensor["key"] for tensor in outcome.json()["tensors"]["different"]}
    assert found == expected
    assert len(found) == 4


@pytest.mark.parametrize("name", ["par_lw_muon_torch_tp2pp2dp2", "par_lw_muon_torch_dist_dp4"])
def test_a_chain_of_reshards_ends_where_it_began(
    name: str, sets: Path, reshards: Reshards
) -> None:
    sources = {s.name: s for s in all_sets()}
    root = sets / name / "ckpt"
    digest = logical_digest(root)
    layouts = [s.sizes for s in all_sets() if s.family is sources[name].family
               and s.container == sources[name].container]
    for target in (*itertools.chain(layouts, reversed(layouts)), sources[name].sizes):
        root = reshards.make(root, target).root
        assert logical_digest(root) == digest, target
