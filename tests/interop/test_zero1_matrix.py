"""ZeRO-1 state from every form and size to every other, and back: the same tensors, the same bytes
of each real element, and what Megatron itself wrote in that form at those sizes.

zero1_pairs.md lists the pairs; SHARDWISE_LONG_TESTS runs all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import zero1_pairs
from parallel_sets import IS_LONG, Resharded, expect_none, needs_sets, recorded_state
from parallel_twins import NAMES_OF_MODULES, Twins, is_equal_state
from programs import hash_of, run, verify
from zero1_pairs import FLAT, Pair, all_pairs, sample

PAIRS = all_pairs() if IS_LONG else sample()
WITH_TWIN = [pair for pair in PAIRS if pair.twin]
WITH_BACK = [pair for pair in PAIRS if pair.back]
# Of Megatron 0.20-dev: counters of the old ranks, which a result starts anew.
COUNTERS_OF_RANKS = "rerun_state_machine"


def pair_id(value: object) -> str | None:
    return value.id if isinstance(value, Pair) else None


class Conversions:
    """What ckpt-convert makes of the sets, each once per session."""

    def __init__(self, sets: Path, folder: Path):
        self.sets, self.folder = sets, folder
        self.made: dict[tuple, Resharded] = {}

    def root(self, name: str) -> Path:
        return self.sets / name / "ckpt"

    def make(self, source: Path, *options: str) -> Resharded:
        key = (source, options)
        if key not in self.made:
            destination = self.folder / f"{len(self.made):05d}"
            outcome = run("ckpt-convert", source, destination, *options, "--json")
            if outcome.code != 0:
                pytest.fail(str(outcome))
            self.made[key] = Resharded(destination, outcome.json())
        return self.made[key]

    def there(self, pair: Pair) -> Resharded:
        return self.make(self.root(pair.source.name), *pair.form.options, *pair.sizes.options)

    def back(self, pair: Pair) -> Resharded:
        assert pair.back
        return self.make(self.there(pair).root, *pair.back)


def listed(made: Resharded) -> frozenset[str]:
    """Of what a report lists as not carried, the pointers that then differ."""
    names = NAMES_OF_MODULES if made.says_not_carried("_metadata") else frozenset()
    counters = {f"/{COUNTERS_OF_RANKS}"} if made.says_not_carried(COUNTERS_OF_RANKS) else set()
    return names | counters


@pytest.fixture(scope="module")
def conversions(sets: Path, tmp_path_factory: pytest.TempPathFactory) -> Conversions:
    return Conversions(sets, tmp_path_factory.mktemp("zero1"))


def logical_tensors(root: Path) -> list[tuple]:
    return sorted((t["key"], t["dtype"], tuple(t["shape"]), t["sha256"])
                  for t in hash_of(root, "--logical")["tensors"])


def test_pages_list_the_pairs_that_are_tested() -> None:
    for path, text in zero1_pairs.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run scripts/update_docs"


def test_the_sample_has_every_source_form_and_axis() -> None:
    pairs = sample()
    assert {p.source.name for p in pairs} == {p.source.name for p in all_pairs()}
    assert {(p.source.form, p.form) for p in pairs} == {(p.source.form, p.form)
                                                        for p in all_pairs()}
    for axis in zero1_pairs.sizes().__dataclass_fields__:
        assert any(p.sizes[axis] > p.source.sizes[axis] for p in pairs), axis
        assert any(p.sizes[axis] < p.source.sizes[axis] for p in pairs), axis


@needs_sets
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_another_form_keeps_every_logical_tensor(pair: Pair, conversions: Conversions) -> None:
    made = conversions.there(pair)
    assert logical_tensors(made.root) == logical_tensors(conversions.root(pair.source.name))


@needs_sets
@pytest.mark.parametrize("pair", WITH_BACK, ids=pair_id)
def test_the_way_back_gives_every_real_element_and_object(
    pair: Pair, conversions: Conversions
) -> None:
    """Against the source, read and written again in its own form and sizes alone by comparison of
    its files: gaps of flat buckets hold memory that nobody wrote."""
    back = conversions.back(pair)
    ignored = {"/rng_state"} | listed(conversions.there(pair)) | listed(back)
    twins = Twins(back.root, conversions.root(pair.source.name), with_attributes=False,
                  ignored=ignored, without_keys=(COUNTERS_OF_RANKS, "rng_state/"))
    expect_none(twins.differences())


@needs_sets
@pytest.mark.parametrize("pair", WITH_TWIN, ids=pair_id)
def test_another_form_gives_what_megatron_wrote_in_it(
    pair: Pair, conversions: Conversions, sets: Path
) -> None:
    """Files, keys, shapes, chunks, bucket sizes, groups, args; and values, if those are equal."""
    states = (recorded_state(sets / name) for name in (pair.source.name, pair.twin))
    made = conversions.there(pair)
    ignored = listed(made)
    if pair.form.container == "torch" and pair.source.form != FLAT:
        # torch_dist has neither, nor random states of each expert-parallel rank.
        ignored |= NAMES_OF_MODULES | {"/rng_state"}
    twins = Twins(made.root, conversions.root(pair.twin), is_equal_state(*states), ignored=ignored,
                  without_keys=(COUNTERS_OF_RANKS,))
    expect_none(twins.differences())


@needs_sets
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_what_is_made_is_sound(pair: Pair, conversions: Conversions) -> None:
    code, document = verify(conversions.there(pair).root)
    assert (code, document["sound"]) == (0, True), document["findings"]
