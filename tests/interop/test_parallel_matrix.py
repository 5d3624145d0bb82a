"""From the sizes of every set to those of every other set of its family and to sizes that none has,
and back: the same state, the same objects, and what Megatron itself wrote at those sizes.

The pairs are listed in parallel_pairs.md, which also says which of them are always run.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import parallel_pairs
from parallel_pairs import SAMPLE, Pair, all_pairs
from parallel_sets import PAIRS, Reshards, expect_none, needs_sets, recorded_state
from parallel_twins import NAMES_OF_MODULES, Twins, files_of_optimizer_chunks, is_equal_state
from programs import hash_of, logical_digest, verify

WITH_TWIN = [pair for pair in PAIRS if pair.twin]
DIST_WITH_OWNERS = [pair for pair in WITH_TWIN if pair.source.container == "torch_dist"
                    and pair.source.family.optimizer == "LayerWise"]


def pair_id(value: object) -> str | None:
    return value.id if isinstance(value, Pair) else None


def test_pages_list_the_pairs_that_are_tested() -> None:
    for path, text in parallel_pairs.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run scripts/update_docs"


def test_the_sample_has_every_family_container_and_axis() -> None:
    pairs = {pair.id: pair for pair in all_pairs()}
    assert set(SAMPLE) <= set(pairs)
    sample = [pairs[name] for name in SAMPLE]
    assert {(p.source.family.name, p.source.container) for p in sample} >= {
        (p.source.family.name, p.source.container) for p in pairs.values() if p.twin
    }
    for axis in parallel_pairs.AXES:
        assert any(p.sizes[axis] > p.source.sizes[axis] for p in sample), axis
        assert any(p.sizes[axis] < p.source.sizes[axis] for p in sample), axis


@needs_sets
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_a_change_of_sizes_keeps_the_logical_state(pair: Pair, reshards: Reshards) -> None:
    made = reshards.there(pair)
    assert logical_digest(made.root) == logical_digest(reshards.root(pair.source))


def stored(root: Path) -> tuple[Counter, dict[tuple, str]]:
    """Every stored tensor; every object by file and key."""
    document = hash_of(root)
    tensors = Counter(
        (t.get("file"), t["key"], t["dtype"], tuple(t["shape"]), t["sha256"])
        for t in document["tensors"]
    )
    return tensors, {(o.get("file"), o["key"]): o["sha256"] for o in document["objects"]}


# What a report may list as not carried, and the keys that then may differ.
CHANGED = {"rng_state": re.compile(".*rng_state.*"), "_metadata": re.compile(r"/model\d*")}


@needs_sets
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_the_way_back_gives_every_tensor_and_object(pair: Pair, reshards: Reshards) -> None:
    there, back = reshards.there(pair), reshards.back(pair)
    tensors, objects = stored(reshards.root(pair.source))
    found_tensors, found_objects = stored(back.root)
    listed = [keys for what, keys in CHANGED.items()
              if there.says_not_carried(what) or back.says_not_carried(what)]

    def is_listed(key: str) -> bool:
        return any(keys.fullmatch(key) for keys in listed)

    different = (tensors - found_tensors) + (found_tensors - tensors)
    assert sorted(t[:2] for t in different if not is_listed(t[1])) == []
    assert objects.keys() == found_objects.keys()
    assert [key for key in objects
            if objects[key] != found_objects[key] and not is_listed(key[1])] == []


@needs_sets
@pytest.mark.parametrize("pair", WITH_TWIN, ids=pair_id)
def test_a_change_of_sizes_gives_what_megatron_wrote_at_them(
    pair: Pair, reshards: Reshards, sets: Path
) -> None:
    """Files, groups, indices, order, shapes, chunks, args; and values, where those are equal."""
    states = (recorded_state(sets / s.name) for s in (pair.source, pair.twin))
    made = reshards.there(pair)
    ignored = NAMES_OF_MODULES if made.says_not_carried("_metadata") else frozenset()
    twins = Twins(made.root, reshards.root(pair.twin), is_equal_state(*states), ignored=ignored)
    expect_none(twins.differences())


@needs_sets
@pytest.mark.parametrize("pair", DIST_WITH_OWNERS, ids=pair_id)
def test_optimizer_chunks_lie_in_the_files_of_their_owners(pair: Pair, reshards: Reshards) -> None:
    made, theirs = (files_of_optimizer_chunks(root)
                    for root in (reshards.there(pair).root, reshards.root(pair.twin)))
    assert made == theirs


@needs_sets
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_what_is_made_is_sound(pair: Pair, reshards: Reshards) -> None:
    code, document = verify(reshards.there(pair).root)
    assert (code, document["sound"]) == (0, True), document["findings"]
