#!/usr/bin/env python3
"""Which checkpoint is taken to which sizes: those that Megatron wrote of each family, and to sizes
that none of them has. Every pair is a row of a generated table.

usage: parallel_pairs.py [--update]     compares the tables with their pages, or rewrites them
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAIRS = Path(__file__).with_suffix(".md")
COMPATIBILITY = REPOSITORY / "docs/records/compatibility.md"
CONTAINERS = ("torch", "torch_dist")
AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


@dataclass(frozen=True)
class Sizes:
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1

    def __str__(self) -> str:
        said = [f"{axis.upper()}{self[axis]}" for axis in AXES if self[axis] > 1 and axis != "etp"]
        if self.etp != self.tp:
            said.append(f"ETP{self.etp}")
        return " ".join(said) or "one rank"

    def __getitem__(self, axis: str) -> int:
        return getattr(self, axis)

    @property
    def tag(self) -> str:
        return str(self).replace(" ", "").lower()

    @property
    def options(self) -> list[str]:
        """All of them, so that nothing is left to what args say."""
        return [word for axis in AXES for word in (f"--{axis}", str(self[axis]))]

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


def sizes(**given: int) -> Sizes:
    return Sizes(**{"etp": given.get("tp", 1), **given})


# What the recorded sets are called.
LAYOUTS = {
    "dp1": sizes(),
    "dp2": sizes(dp=2),
    "dp3": sizes(dp=3),
    "dp4": sizes(dp=4),
    "tp2": sizes(tp=2),
    "tp2dp2": sizes(tp=2, dp=2),
    "pp2dp2": sizes(pp=2, dp=2),
    "pp2vpp2dp2": sizes(pp=2, vpp=2, dp=2),
    "tp2pp2dp2": sizes(tp=2, pp=2, dp=2),
    "cp2dp2": sizes(cp=2, dp=2),
    "ep2dp2": sizes(ep=2, dp=4),
    "ep2pp2dp2": sizes(ep=2, pp=2, dp=2),
    "ep2tp2dp2": sizes(ep=2, tp=2, dp=2, etp=1),
}
DENSE = (sizes(dp=5), sizes(tp=2, pp=2, vpp=2), sizes(tp=2, cp=2, pp=2, dp=3))
DENSE_OF_4_LAYERS = (*DENSE, sizes(tp=2, pp=4), sizes(pp=4, cp=2, dp=2))
GPT = ("dp1", "dp4", "tp2dp2", "pp2dp2", "pp2vpp2dp2", "tp2pp2dp2")
OF_GPT = tuple(LAYOUTS[layout] for layout in GPT)
EXPERTS = (
    sizes(dp=5),
    sizes(ep=4, dp=4),
    sizes(ep=4, tp=2, dp=2, etp=1),
    sizes(ep=4, pp=2, cp=2, dp=2),
    sizes(ep=2, tp=2, cp=2, pp=2, dp=2, etp=1),
)
# Experts with biases cannot be shared over expert-tensor-parallel ranks.
EXPERTS_WITHOUT_BIASES = (
    *EXPERTS,
    sizes(ep=2, tp=2, dp=2),
    sizes(ep=2, etp=2, dp=4),
    sizes(tp=2, pp=2, vpp=2, cp=2, ep=4, etp=1),
)


@dataclass(frozen=True)
class Family:
    """Checkpoints of one model and one training run, whatever their sizes."""

    name: str
    what: str
    prefix: str
    layouts: tuple[str, ...]
    others: tuple[Sizes, ...]  # that no set has
    only_torch_dist: tuple[str, ...] = ()
    optimizer: str = "LayerWise"
    keeps_rows: bool = True  # no padding comes or goes with the tensor-parallel size


FAMILIES = (
    Family("gpt", "GPT, untied, biases", "par_lw_muon",
           GPT, (*DENSE_OF_4_LAYERS, sizes(dp=3)), ("cp2dp2",)),
    Family("gpt, batch of 24", "the same at DP3", "par_lw_muon", ("dp3",), OF_GPT),
    Family("blockwise", "the same, muon_tp_mode blockwise", "par_lw_muon_blockwise", ("tp2dp2",),
           (*OF_GPT, sizes(tp=2, pp=4))),
    Family("llama", "SwiGLU, RMSNorm, no biases", "par_lw_muon_llama",
           ("dp1", "tp2", "tp2dp2"), DENSE_OF_4_LAYERS),
    Family("tied", "tied embeddings", "par_lw_muon_tied",
           ("dp1", "pp2dp2", "pp2vpp2dp2"), DENSE_OF_4_LAYERS),
    Family("moe", "experts in all layers", "par_lw_muon_moe",
           ("dp1", "ep2dp2", "ep2pp2dp2", "ep2tp2dp2"), EXPERTS),
    Family("moef", "experts in some layers, a shared one, SwiGLU", "par_lw_muon_moef",
           ("dp1", "ep2dp2", "ep2pp2dp2", "ep2tp2dp2"), EXPERTS_WITHOUT_BIASES),
    Family("vpad", "padding depends on TP", "par_lw_muon_vpad", ("dp1", "tp2dp2"), (),
           keeps_rows=False),
    Family("fp16", "fp16 with a grad scaler", "par_adam_fp16", ("dp2", "tp2dp2"),
           (sizes(), sizes(dp=5), sizes(tp=2, pp=2), sizes(cp=2, dp=2), sizes(pp=2, dp=3)),
           optimizer="not sharded"),
)


@dataclass(frozen=True)
class Set:
    """A checkpoint that Megatron wrote."""

    family: Family
    container: str
    layout: str

    @property
    def name(self) -> str:
        return f"{self.family.prefix}_{self.container}_{self.layout}"

    @property
    def sizes(self) -> Sizes:
        return LAYOUTS[self.layout]


@dataclass(frozen=True)
class Pair:
    source: Set
    sizes: Sizes
    twin: Set | None  # what Megatron wrote at these sizes

    @property
    def id(self) -> str:
        return f"{self.source.name}-{self.sizes.tag}"


def sets_of(family: Family, container: str) -> list[Set]:
    more = family.only_torch_dist if container == "torch_dist" else ()
    return [Set(family, container, layout) for layout in (*family.layouts, *more)]


def all_sets() -> list[Set]:
    return [s for family in FAMILIES for container in CONTAINERS
            for s in sets_of(family, container)]


def can_hold(container: str, family: Family, target: Sizes) -> bool:
    """`torch` has no file of its own for each context-parallel rank of LayerWise, nor for each
    expert-tensor-parallel rank where these are more than tensor-parallel ones."""
    overwrites = target.cp > 1 and family.optimizer == "LayerWise"
    return container == "torch_dist" or not (overwrites or target.etp > target.tp)


def targets_of(family: Family, container: str) -> dict[Sizes, Set | None]:
    found: dict[Sizes, Set | None] = {s.sizes: s for s in sets_of(family, container)}
    others = {other: None for other in family.others if can_hold(container, family, other)}
    return others | found


def pairs_of(family: Family, container: str) -> list[Pair]:
    return [
        Pair(source, target, twin)
        for source in sets_of(family, container)
        for target, twin in targets_of(family, container).items()
        if target != source.sizes
    ]


def all_pairs() -> list[Pair]:
    return [pair for family in FAMILIES if family.keeps_rows for container in CONTAINERS
            for pair in pairs_of(family, container)]


# What is run every time: each family, container and axis at least once.
SAMPLE = (
    "par_lw_muon_torch_tp2pp2dp2-onerank",
    "par_lw_muon_torch_dp1-pp2vpp2dp2",
    "par_lw_muon_torch_pp2vpp2dp2-tp2pp4",
    "par_lw_muon_torch_dist_tp2dp2-pp2vpp2dp2",
    "par_lw_muon_torch_dist_cp2dp2-tp2pp2dp2",
    "par_lw_muon_torch_dist_pp2dp2-tp2pp2cp2dp3",
    "par_lw_muon_torch_dp3-tp2pp2dp2",
    "par_lw_muon_blockwise_torch_tp2dp2-pp2dp2",
    "par_lw_muon_llama_torch_tp2dp2-onerank",
    "par_lw_muon_llama_torch_dist_dp1-tp2dp2",
    "par_lw_muon_tied_torch_dp1-pp2dp2",
    "par_lw_muon_tied_torch_pp2vpp2dp2-onerank",
    "par_lw_muon_tied_torch_dist_pp2dp2-onerank",
    "par_lw_muon_moe_torch_dp1-tp2ep2dp2etp1",
    "par_lw_muon_moe_torch_ep2dp2-ep4dp4",
    "par_lw_muon_moe_torch_dist_ep2dp2-onerank",
    "par_lw_muon_moef_torch_ep2tp2dp2-pp2ep2dp2",
    "par_lw_muon_moef_torch_dist_dp1-pp2ep2dp2",
    "par_lw_muon_moef_torch_dist_ep2pp2dp2-tp2pp2vpp2cp2ep4etp1",
    "par_lw_muon_moef_torch_dist_ep2dp2-ep2dp4etp2",
    "par_adam_fp16_torch_tp2dp2-dp2",
    "par_adam_fp16_torch_dist_dp2-tp2dp2",
)


def row_of(family: Family, source: Set) -> str:
    targets = [target for target in targets_of(family, source.container) if target != source.sizes]
    twins = [str(p.sizes) for p in pairs_of(family, source.container)
             if p.source == source and p.twin]
    proven = ", ".join(twins) or "-"
    return (f"| {family.name} | {source.sizes} | `{source.container}` | {family.optimizer} | "
            f"{len(targets)} | {proven} |\n")


def table_of_rows() -> str:
    """For docs/records/compatibility.md: one row per family, sizes and container."""
    head = ("| family | sizes | container | optimizer | taken to | as Megatron wrote it at |\n"
            "|---|---|---|---|---|---|\n")
    return head + "".join(row_of(s.family, s) for s in all_sets())


def table_of_pairs() -> str:
    """For tests/interop/parallel_pairs.md: every pair that SHARDWISE_LONG_TESTS runs."""
    head = ("# Every change of sizes that is tested\n\n"
            f"`{Path(__file__).name} --update` writes this page, `test_parallel_matrix.py` runs it:"
            " there and back, and where\nMegatron wrote a set at those sizes the result is compared"
            " with it. Without SHARDWISE_LONG_TESTS only the pairs\nmarked x.\n\n"
            "| from | to | as Megatron wrote it | always |\n|---|---|---|---|\n")
    return head + "".join(
        f"| {pair.source.name} | {pair.sizes} | {pair.twin.name if pair.twin else '-'} | "
        f"{'x' if pair.id in SAMPLE else ''} |\n"
        for pair in all_pairs()
    )


def with_table(page: str, table: str, generator: str = Path(__file__).name) -> str:
    """The page with what lies between the generator's marks replaced."""
    begin, end = (f"<!-- {mark}: {generator} -->\n" for mark in ("begin", "end"))
    found = re.search(f"{re.escape(begin)}.*{re.escape(end)}", page, re.DOTALL)
    if not found:
        sys.exit(f"{COMPATIBILITY.name}: no marks for the table of {generator}")
    return page[: found.start()] + begin + table + end + page[found.end() :]


def pages() -> dict[Path, str]:
    page = COMPATIBILITY.read_text(encoding="utf-8")
    return {PAIRS: table_of_pairs(), COMPATIBILITY: with_table(page, table_of_rows())}


def compare_or_update(pages: dict[Path, str], arguments: list[str]) -> int:
    for path, text in pages.items():
        if arguments == ["--update"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(REPOSITORY)} is not generated: run scripts/update_docs")
    return 0


if __name__ == "__main__":
    sys.exit(compare_or_update(pages(), sys.argv[1:]))
