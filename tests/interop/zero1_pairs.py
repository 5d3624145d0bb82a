"""Which ZeRO-1 checkpoint is taken to which form and sizes: those that Megatron wrote of each
family, and sizes that none of them has. zero1_pairs.md lists them, and
docs/records/compatibility.md has a row for each source.

usage: zero1_pairs.py [--update]     compares the tables with their pages, or rewrites them
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from parallel_pairs import (
    COMPATIBILITY,
    DENSE_OF_4_LAYERS,
    EXPERTS,
    EXPERTS_WITHOUT_BIASES,
    LAYOUTS,
    Sizes,
    compare_or_update,
    sizes,
    with_table,
)

PAIRS = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Form:
    """What --to and --optimizer-sharding ask for."""

    container: str
    sharding: str | None = None  # None: as the source has it

    @property
    def options(self) -> list[str]:
        asked = ["--optimizer-sharding", self.sharding] if self.sharding else []
        return ["--to", self.container, *asked]

    def __str__(self) -> str:
        return self.sharding or self.container


FULLY = Form("torch_dist", "fully_reshardable")
BUCKETS = Form("torch_dist", "dp_reshardable")
FLAT = Form("torch", "flat_file")
DEALT = Form("torch_dist", "layer_wise")
FORMS = (FULLY, BUCKETS, FLAT)
# What the sets are called, by form.
GPT = ("dp1", "dp2", "dp4", "cp2dp2", "tp2dp2", "pp2dp2", "pp2vpp2dp2", "tp2pp2dp2")
OF_EXPERTS = ("dp1", "ep2dp2", "ep2pp2dp2", "ep2tp2dp2")
OF_HEAD = ("dp1", "tp2dp2", "pp2dp2", "tp2pp2dp2")


def in_forms(prefix: str, layouts: tuple[str, ...], forms: tuple[Form, ...] = FORMS) -> dict:
    tags = {FULLY: "fully_reshardable", BUCKETS: "dp_reshardable", FLAT: "torch"}
    return {(form, layout): f"{prefix}_{tags[form]}_{layout}"
            for form in forms for layout in layouts}


@dataclass(frozen=True)
class Family:
    """Checkpoints of one model and one training run, whatever their form and sizes."""

    name: str
    sets: dict[tuple[Form, str], str]
    others: tuple[Sizes, ...]  # that no set has
    forms: tuple[Form, ...] = FORMS  # that they are taken to
    readable_only: tuple[str, ...] = ()  # of Megatrons whose form nothing writes

    def __hash__(self) -> int:
        return hash(self.name)


DENSE = (*DENSE_OF_4_LAYERS, sizes(dp=3))
FAMILIES = (
    Family("gpt", in_forms("par_do_adam", GPT), DENSE, (*FORMS, DEALT)),
    Family("gpt, batch of 24", in_forms("par_do_adam", ("dp3",)), (sizes(tp=2, dp=2), sizes(dp=2))),
    Family("gpt, other buckets", {(FLAT, "dp1"): "par_do_adam_torch_bucket7000_dp1"},
           (sizes(dp=4), sizes(tp=2, pp=2))),
    Family("gpt, written by one rank",
           in_forms("par_do_adam_fully_reshardable_mem_efficient", ("dp4", "tp2dp2"), ()) | {
               (FULLY, layout): f"par_do_adam_fully_reshardable_mem_efficient_{layout}"
               for layout in ("dp4", "tp2dp2")},
           (sizes(pp=2, dp=2),)),
    Family("llama", in_forms("par_do_adam_llama", ("dp1", "tp2", "tp2dp2")), DENSE),
    Family("tied", in_forms("par_do_adam_tied", ("dp1", "pp2dp2", "pp2vpp2dp2")), DENSE),
    Family("moe", in_forms("par_do_adam_moe", OF_EXPERTS), EXPERTS, (*FORMS, DEALT)),
    Family("moef", in_forms("par_do_adam_moef", OF_EXPERTS, (FULLY, FLAT)),
           EXPERTS_WITHOUT_BIASES),
    Family("fp16", in_forms("par_do_adam_fp16", ("dp2", "tp2dp2")),
           (sizes(), sizes(dp=5), sizes(tp=2, pp=2), sizes(cp=2, dp=2))),
    Family("core 0.20-dev", in_forms("par_head_do_adam", OF_HEAD, (FULLY, BUCKETS)), DENSE),
    Family("core 0.20-dev, beside Muon",
           {(FULLY, layout): f"par_head_lw_muon_fully_reshardable_{layout}" for layout in OF_HEAD} |
           {(BUCKETS, layout): f"par_head_lw_muon_torch_dist_{layout}" for layout in OF_HEAD},
           DENSE, (FULLY, BUCKETS)),
    Family("core 0.20-dev, beside Muon, buckets",
           {(BUCKETS, layout): f"par_head_lw_muon_buckets_torch_dist_{layout}"
            for layout in ("dp4", "tp2dp2", "pp2dp2")},
           DENSE, (FULLY, BUCKETS)),
    Family("0.12", in_forms("par_v012_do_adam", ("dp2", "tp2dp2"), (FLAT,)), DENSE,
           readable_only=tuple(
               f"par_v012_do_adam_fully_sharded_{layout}"
               for layout in ("dp1", "dp2", "dp4", "tp2dp2", "pp2dp2", "tp2pp2dp2"))),
    Family("0.12, llama", {}, DENSE, readable_only=(
        "par_v012_do_adam_llama_fully_sharded_dp2", "par_v012_do_adam_llama_fully_sharded_tp2dp2")),
    Family("0.12, moe", {}, EXPERTS,
           readable_only=("par_v012_do_adam_moe_fully_sharded_ep2dp2",)),
    Family("0.12, tied", {}, DENSE,
           readable_only=("par_v012_do_adam_tied_fully_sharded_pp2dp2",)),
    Family("0.14", {}, DENSE, readable_only=tuple(
        f"par_v014_do_adam_fully_sharded_{layout}" for layout in ("dp2", "tp2dp2", "pp2dp2"))),
    Family("0.14, llama", {}, DENSE,
           readable_only=("par_v014_do_adam_llama_fully_sharded_tp2dp2",)),
    Family("0.14, moef", {}, EXPERTS_WITHOUT_BIASES,
           readable_only=("par_v014_do_adam_moef_fully_sharded_ep2dp2",)),
)


@dataclass(frozen=True)
class Source:
    family: Family
    name: str
    layout: str
    form: Form | None  # None: one that nothing writes

    @property
    def sizes(self) -> Sizes:
        return LAYOUTS[self.layout]


@dataclass(frozen=True)
class Pair:
    source: Source
    form: Form
    sizes: Sizes
    twin: str | None  # what Megatron wrote in this form at these sizes

    @property
    def id(self) -> str:
        return f"{self.source.name}-{self.form}-{self.sizes.tag}"

    @property
    def back(self) -> list[str] | None:
        """Options for the way back; None: to a form that nothing writes."""
        form = self.source.form
        # Rank files do not say which of the two wrote them.
        is_of_august = self.form == FLAT and self.source.family.name.startswith("core 0.20-dev")
        era = ["--target-megatron", "2026-08"] if is_of_august else []
        return form and [*form.options, *self.source.sizes.options, *era]


def sources_of(family: Family) -> list[Source]:
    written = [Source(family, name, layout, form) for (form, layout), name in family.sets.items()]
    read = [Source(family, name, name.rsplit("_", 1)[1], None) for name in family.readable_only]
    return written + read


def can_hold(form: Form, target: Sizes) -> bool:
    """`torch` has no folder for each expert-tensor-parallel rank where these are more than
    tensor-parallel ones."""
    return form.container == "torch_dist" or target.etp <= target.tp


def pairs_of(source: Source) -> list[Pair]:
    family = source.family
    known = {s.sizes for s in sources_of(family)}
    found = []
    for form in family.forms:
        for target in sorted(known | set(family.others), key=str):
            is_same = (form, target) == (source.form, source.sizes)
            twin = next((name for (of, layout), name in family.sets.items()
                         if (of, LAYOUTS[layout]) == (form, target)), None)
            if not is_same and can_hold(form, target):
                found.append(Pair(source, form, target, twin))
    return found


def all_pairs() -> list[Pair]:
    return [pair for family in FAMILIES for source in sources_of(family)
            for pair in pairs_of(source)]


# What is run every time.
SAMPLE_EVERY = 29


def sample() -> list[Pair]:
    """Some of all, but each source to some form and sizes."""
    pairs = all_pairs()
    chosen = pairs[::SAMPLE_EVERY]
    seen = {pair.source.name for pair in chosen}
    for pair in pairs:
        if pair.source.name not in seen:
            seen.add(pair.source.name)
            chosen.append(pair)
    return chosen


def table_of_rows() -> str:
    """For docs/records/compatibility.md."""
    head = ("| family | sizes | form | taken to forms | taken to | as Megatron wrote it |\n"
            "|---|---|---|---|---|---|\n")
    lines = []
    for family in FAMILIES:
        for source in sources_of(family):
            pairs = pairs_of(source)
            twins = sum(1 for pair in pairs if pair.twin)
            forms = ", ".join(str(form) for form in family.forms)
            form = source.form or source.name.split("adam_")[-1].rsplit("_", 1)[0]
            lines.append(f"| {family.name} | {source.sizes} | {form} | {forms} | {len(pairs)} | "
                         f"{twins or '-'} |\n")
    return head + "".join(lines)


def table_of_pairs() -> str:
    head = ("# Every change of form and sizes of ZeRO-1 state that is tested\n\n"
            f"`{Path(__file__).name} --update` writes this page, `test_zero1_matrix.py` runs it: "
            "there and back, and where\nMegatron wrote a set in that form at those sizes, the "
            "result is compared with it. Without SHARDWISE_LONG_TESTS\nonly one of "
            f"{SAMPLE_EVERY}.\n\n| from | form | to sizes | as Megatron wrote it |\n"
            "|---|---|---|---|\n")
    lines = []
    for family in FAMILIES:
        for source in sources_of(family):
            for form in family.forms:
                pairs = [pair for pair in pairs_of(source) if pair.form == form]
                targets = ", ".join(str(pair.sizes) for pair in pairs)
                twins = ", ".join(str(pair.sizes) for pair in pairs if pair.twin)
                lines.append(f"| {source.name} | {form} | {targets} | {twins or '-'} |\n")
    return head + "".join(lines)


def pages() -> dict[Path, str]:
    page = COMPATIBILITY.read_text(encoding="utf-8")
    return {PAIRS: table_of_pairs(),
            COMPATIBILITY: with_table(page, table_of_rows(), Path(__file__).name)}


if __name__ == "__main__":
    sys.exit(compare_or_update(pages(), sys.argv[1:]))
