"""`ckpt-convert` takes a checkpoint of any parallel sizes, keeps them, and gives what Megatron has
written of the same state in the other container."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from comparing import CONVERSION_MAY_CHANGE
from parallel_pairs import FAMILIES, Set, all_sets
from parallel_sets import expect_none, needs_sets
from parallel_twins import NAMES_OF_MODULES, Twins
from programs import logical_digest, succeed

pytestmark = needs_sets
# torch_dist has one random state for all expert-parallel ranks.
LOST_RANDOM_STATES = frozenset(f"/rng_state{at}/rng_tracker_states" for at in ("/0", "/0/0"))


def in_the_other_container() -> list[tuple[Set, Set]]:
    found = {(s.family.name, s.layout, s.container): s for s in all_sets()}
    pairs = itertools.product(found.values(), ("torch", "torch_dist"))
    return [(s, found[s.family.name, s.layout, to]) for s, to in pairs
            if to != s.container and (s.family.name, s.layout, to) in found]


@pytest.mark.parametrize("source, theirs", in_the_other_container(), ids=lambda s: s.name)
def test_a_set_becomes_what_megatron_wrote_in_the_other_container(
    source: Set, theirs: Set, sets: Path, products
) -> None:
    start = sets / source.name / "ckpt"
    made = products.convert(start, theirs.container)
    ignored = CONVERSION_MAY_CHANGE | NAMES_OF_MODULES
    if source.sizes.ep > 1:
        ignored |= LOST_RANDOM_STATES
    twins = Twins(made, sets / theirs.name / "ckpt", with_attributes=False, ignored=ignored)
    expect_none(twins.differences())
    assert logical_digest(made) == logical_digest(start)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_model_alone_can_be_taken(family, sets: Path, tmp_path: Path) -> None:
    source = Set(family, "torch", family.layouts[-1])
    made = tmp_path / "model"
    succeed("ckpt-convert", sets / source.name / "ckpt", made, "--to", "torch_dist", "--model-only")
    listed = succeed("ckpt-inspect", "hash", made, "--logical", "--json").json()["tensors"]
    keys = {tensor["key"] for tensor in listed}
    assert "embedding.word_embeddings.weight" in keys
    assert not any(key.startswith("optimizer.") for key in keys)
