"""A second reader, written from docs/formats alone, gives the logical digest of what we reshard.

Results of every family at sizes that it was not written in: `torch` folders (LayerWise, and with
distrib_optim.pt), which independent_reader.py reads, and dp_reshardable (independent_store.py).
SHARDWISE_LONG_TESTS: all of them, else a sample, whose first rows need no checkpoint outside of the
repository.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import independent_reader
import independent_store
from opened_checkpoint import opened
from parallel_pairs import Sizes, sizes
from parallel_sets import IS_LONG, PACKED
from programs import BIN, GOLDEN, logical_digest, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

FLAT, BUFFERS, LAYER_WISE = "flat_file", "dp_reshardable", "layer_wise"
DENSE = (
    sizes(dp=3), sizes(dp=5), sizes(tp=2, dp=1), sizes(tp=2, dp=3), sizes(pp=2, dp=2),
    sizes(pp=4, dp=1), sizes(pp=2, vpp=2, dp=2), sizes(tp=2, pp=2, dp=2),
    sizes(tp=2, pp=2, vpp=2, dp=1), sizes(cp=2, dp=2),
)  # fmt: skip
EXPERTS = (
    sizes(dp=3), sizes(ep=2, dp=2), sizes(ep=4, dp=4), sizes(ep=2, tp=2, dp=2),
    sizes(ep=2, tp=2, etp=1, dp=2), sizes(ep=4, tp=2, etp=1, dp=2), sizes(ep=2, pp=2, dp=2),
    sizes(ep=2, tp=2, etp=1, pp=2, dp=2), sizes(tp=2, pp=2, dp=2),
)  # fmt: skip
WITH_BIASES = tuple(each for each in EXPERTS if each.etp == 1)  # ETP cannot share these
FAMILIES = {
    "par_do_adam_fully_reshardable_dp2": DENSE,
    "par_do_adam_llama_fully_reshardable_tp2dp2": DENSE,
    "par_do_adam_tied_fully_reshardable_pp2dp2": DENSE[2:9],
    "par_do_adam_moe_fully_reshardable_ep2dp2": WITH_BIASES,
    "par_do_adam_moef_fully_reshardable_ep2pp2dp2": EXPERTS,
    "par_do_adam_fp16_fully_reshardable_dp2": DENSE[1:4],
    "par_do_adam_vpad_fully_reshardable_dp1": DENSE[1:4],
    "par_lw_muon_torch_dist_dp4": DENSE[:9],
    "par_lw_muon_llama_torch_dist_tp2dp2": DENSE[:9],
    "par_lw_muon_tied_torch_dist_pp2dp2": DENSE[2:9],
    "par_lw_muon_moe_torch_dist_ep2dp2": WITH_BIASES,
    "par_lw_muon_moef_torch_dist_ep2pp2dp2": EXPERTS,
    "par_lw_muon_vpad_torch_dist_dp1": DENSE[1:4],
    "par_do_adam_torch_tp2dp2": DENSE[:6],
    "par_do_adam_torch_bucket7000_dp1": DENSE[1:9],
    "par_v012_do_adam_torch_tp2dp2": DENSE[1:6],
    "par_v014_do_adam_fully_sharded_pp2dp2": DENSE[1:6],
    "par_head_do_adam_fully_reshardable_tp2pp2dp2": DENSE[1:9],
    "par_head_lw_muon_torch_dist_tp2dp2": DENSE[1:9],
    "par_head_lw_muon_buckets_torch_dist_tp2dp2": DENSE[1:6],
    "par_lw_muon_torch_tp2pp2dp2": DENSE[:4],
}


@dataclass(frozen=True)
class Job:
    source: str
    sizes: Sizes
    form: str

    def __str__(self) -> str:
        return f"{self.source}-{self.sizes.tag}-{self.form}"


def jobs_of_sets() -> list[Job]:
    found = []
    for source, wanted in FAMILIES.items():
        # The stores of August have no common.pt, which independent_store.py reads.
        of_zero1 = (FLAT,) if "_head_" in source else (FLAT, BUFFERS)
        forms = (LAYER_WISE,) if "_lw_" in source else of_zero1
        found += [Job(source, each, form) for form in forms for each in wanted]
    return found


IN_THE_REPOSITORY = (
    Job("lw_muon_bf16_torch_dp4", sizes(dp=3), LAYER_WISE),
    Job("lw_muon_bf16_torch_dp2", sizes(tp=2, pp=2, dp=2), LAYER_WISE),
    Job("do_adam_bf16_torch_dp2", sizes(pp=2, dp=3), FLAT),
    Job("do_adam_bf16_torch_dist_dp_reshardable_dp2", sizes(tp=2, dp=2), BUFFERS),
)
SAMPLE = (
    Job("par_do_adam_tied_fully_reshardable_pp2dp2", sizes(pp=2, vpp=2, dp=2), BUFFERS),
    Job("par_do_adam_moef_fully_reshardable_ep2pp2dp2", sizes(ep=4, tp=2, etp=1, dp=2), FLAT),
    Job("par_do_adam_moe_fully_reshardable_ep2dp2", sizes(ep=2, pp=2, dp=2), BUFFERS),
    Job("par_lw_muon_moef_torch_dist_ep2pp2dp2", sizes(ep=2, tp=2, dp=2), LAYER_WISE),
)


def test_of_the_two_torch_forms_there_are_a_hundred_results() -> None:
    assert sum(job.form != BUFFERS for job in [*IN_THE_REPOSITORY, *jobs_of_sets()]) >= 100


@pytest.mark.parametrize("module", (independent_reader, independent_store))
def test_the_readers_share_nothing_with_others(module: object) -> None:
    own = {"torch", "independent_reader"} - {module.__name__}
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | own


def digest_of(root: Path, form: str) -> str:
    reader = independent_store if form == BUFFERS else independent_reader
    return independent_reader.digest(*reader.read(root))


def check(source: Path, job: Job, made: Path) -> None:
    """The result's digest, by both readers; the source's, where no row of padding came or went."""
    form = ("--to", "torch_dist" if job.form == BUFFERS else "torch")
    outcome = succeed("ckpt-convert", source, made, *form, "--optimizer-sharding", job.form,
                      *job.sizes.options)  # fmt: skip
    theirs = digest_of(made, job.form)
    assert theirs == logical_digest(made)
    if "rows of padding" not in outcome.text:
        assert theirs == logical_digest(source)


@pytest.mark.parametrize("job", IN_THE_REPOSITORY, ids=str)
def test_a_second_reader_agrees_on_results_of_recorded_runs(job: Job, tmp_path: Path) -> None:
    check(GOLDEN / job.source / "ckpt", job, tmp_path / "made")


@pytest.mark.parametrize("job", IN_THE_REPOSITORY, ids=str)
def test_both_readers_see_one_changed_element(job: Job, tmp_path: Path) -> None:
    made = tmp_path / "made"
    check(GOLDEN / job.source / "ckpt", job, made)
    before = digest_of(made, job.form)
    changed = opened(made)
    kind = "momentum_buffer" if job.form == LAYER_WISE else "exp_avg"
    # The file of data-parallel rank 0 is repeated in another.
    slot = next(slot for slot in changed.slots()
                if slot.kind == kind and not slot.file.endswith("optimizer_0.pt"))  # fmt: skip
    tensor = slot.tensor.clone()
    tensor.view(-1)[0] += 1
    slot.put(tensor)
    changed.trees = {name: tree for name, tree in changed.trees.items() if name == slot.file}
    changed.entries = {key: value for key, value in changed.entries.items() if key == slot.key}
    changed.save()  # not args, whose enumerations this Python spells its way
    assert before != digest_of(made, job.form) == logical_digest(made)


@pytest.mark.skipif(not PACKED.is_dir(), reason=f"{PACKED} is not there")
@pytest.mark.parametrize("job", jobs_of_sets() if IS_LONG else SAMPLE, ids=str)
def test_a_second_reader_agrees_on_results_of_sets(job: Job, sets: Path, tmp_path: Path) -> None:
    check(sets / job.source / "ckpt", job, tmp_path / "made")
