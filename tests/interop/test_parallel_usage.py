"""Sizes on the command line of `reshard`: what is left out follows, what does not divide is
named."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_pairs import LAYOUTS, Sizes, sizes
from parallel_sets import UNSUPPORTED, USAGE, Reshards, needs_sets, refuse_reshard, sizes_of_args
from programs import hash_of, run, succeed
from reading import iteration_folder, load

pytestmark = needs_sets
GPT, GPT_DIST = "par_lw_muon_torch_tp2dp2", "par_lw_muon_torch_dist_tp2dp2"
VPP, MOE, MOE_TP2 = (
    "par_lw_muon_torch_dist_pp2vpp2dp2",
    "par_lw_muon_moef_torch_dist_dp1",
    "par_lw_muon_moef_torch_dist_ep2tp2dp2",
)
BIASES = "par_lw_muon_moe_torch_dist_dp1"

# Options, and what the error has to say: the number that does not divide, and the option.
NOT_DIVIDED = (
    (GPT, "--tp 3", ("3", "--tp")),  # 4 heads
    (GPT, "--tp 8", ("8", "--tp", "4")),
    (GPT, "--pp 3", ("3", "--pp", "4")),  # 4 layers
    (GPT, "--pp 2 --vpp 4", ("4", "--vpp")),
    (GPT, "--vpp 2", ("--vpp",)),  # of one stage
    (VPP, "--pp 4", ("--vpp", "2")),  # 4 layers in 8 chunks
    (GPT, "--ep 2", ("--ep", "2")),  # no experts
    (MOE, "--ep 3 --dp 3", ("3", "--ep", "4")),  # 4 experts
    (MOE, "--ep 4 --dp 2", ("4", "--ep", "2")),  # of 2 ranks
    (MOE, "--etp 2 --ep 4 --dp 4", ("--etp", "8", "4")),
    (GPT, "--world-size 5", ("5", "--world-size", "2")),
    (GPT, "--world-size 8 --dp 3", ("8", "--world-size")),
    (GPT, "--pp 2 --first-stage-layers 5", ("5", "--first-stage-layers", "4")),
    (GPT, "--pp 3 --first-stage-layers 1", ("3", "--pp")),  # 3 layers of 2 stages
    (GPT, "--pp 2 --pipeline-layout Et|tL", ("2", "--pipeline-layout", "4")),
    (GPT, "--pp 4 --pipeline-layout Ettt|tL", ("2", "--pipeline-layout", "4")),
    (BIASES, "--tp 2 --ep 2 --dp 2", ("2", "--etp", "biases")),
    (GPT, "--dp 0", ("--dp",)),
    (GPT, "--tp two", ("--tp", "two")),
)


@pytest.mark.parametrize(
    ("source", "options", "said"), NOT_DIVIDED, ids=lambda value: str(value).replace(" ", "_")
)
def test_what_does_not_divide_names_number_and_option(
    source: str, options: str, said: tuple[str, ...], sets: Path, tmp_path: Path
) -> None:
    line = refuse_reshard(USAGE, sets / source / "ckpt", tmp_path / "made", *options.split())
    assert [word for word in said if word not in line] == [], line


def test_no_size_at_all_is_a_usage_error(sets: Path, tmp_path: Path) -> None:
    line = refuse_reshard(USAGE, sets / GPT / "ckpt", tmp_path / "made")
    assert "--dp" in line or "--tp" in line


NOT_HELD = (
    (GPT, "--cp 2 --tp 1", "both write mp_rank_00/layer_wise_optimizer_0.pt"),
    (GPT, "--cp 2 --dp 1", "both write mp_rank_00/layer_wise_optimizer_0.pt"),
    (GPT, "--ownership lpt --tp 1", "ping-pong ownership"),
    ("par_lw_muon_moef_torch_dp1", "--ep 2 --etp 2 --dp 4", "both write mp_rank_00_000/"),
)


@pytest.mark.parametrize(("source", "options", "said"), NOT_HELD)
def test_what_torch_cannot_hold_is_refused(
    source: str, options: str, said: str, sets: Path, tmp_path: Path
) -> None:
    """Ranks of which two would write one file, and owners that Megatron would not deal."""
    line = refuse_reshard(UNSUPPORTED, sets / source / "ckpt", tmp_path / "made", *options.split())
    assert said in line


def sizes_of(root: Path) -> Sizes:
    folder = iteration_folder(root)
    args = load(folder / "common.pt")["args"]
    made = sizes_of_args(args)
    assert args.world_size == args.inprocess_active_world_size == made.world
    return made


FOLLOWING = (
    (GPT_DIST, "--tp 1", sizes(dp=2)),
    (GPT_DIST, "--pp 2", sizes(tp=2, pp=2, dp=2)),
    (GPT_DIST, "--world-size 8", sizes(tp=2, dp=4)),
    (GPT_DIST, "--world-size 8 --tp 1 --pp 2", sizes(pp=2, dp=4)),
    (GPT_DIST, "--world-size 8 --cp 2", sizes(tp=2, cp=2, dp=2)),
    (VPP, "--pp 1", sizes(dp=2)),
    (VPP, "--dp 3", sizes(pp=2, vpp=2, dp=3)),
    (VPP, "--vpp 1", sizes(pp=2, dp=2)),
    (MOE, "--tp 2 --ep 2 --dp 2", sizes(tp=2, ep=2, etp=2, dp=2)),  # ETP was TP
    (MOE_TP2, "--tp 1 --dp 4", sizes(ep=2, etp=1, dp=4)),  # ETP was not
    (GPT_DIST, "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2",
     sizes(pp=2, dp=2)),
    (GPT_DIST, "--context-parallel-size 2 --data-parallel-size 3", sizes(tp=2, cp=2, dp=3)),
    (MOE, "--expert-model-parallel-size 2 --expert-tensor-parallel-size 1 --dp 2",
     sizes(ep=2, dp=2)),
    (GPT_DIST, "--pp 2 --num-virtual-stages-per-pipeline-rank 2", sizes(tp=2, pp=2, vpp=2, dp=2)),
)


@pytest.mark.parametrize(
    ("source", "options", "expected"), FOLLOWING,
    ids=lambda value: str(value).replace(" ", "_"),
)
def test_sizes_that_are_not_given_follow(
    source: str, options: str, expected: Sizes, sets: Path, tmp_path: Path
) -> None:
    succeed("reshard", sets / source / "ckpt", tmp_path / "made", *options.split())
    assert sizes_of(tmp_path / "made") == expected


def test_sizes_are_taken_from_another_checkpoint(
    sets: Path, reshards: Reshards, tmp_path: Path
) -> None:
    source = sets / "par_lw_muon_moe_torch_dp1/ckpt"
    succeed("reshard", source, tmp_path / "made", "--sizes-from",
            sets / "par_lw_muon_moe_torch_dist_ep2tp2dp2/ckpt")
    made = reshards.make(source, LAYOUTS["ep2tp2dp2"]).root
    assert hash_of(tmp_path / "made") == hash_of(made)


def test_both_grids_are_printed_first(sets: Path, tmp_path: Path) -> None:
    outcome = run("reshard", sets / GPT / "ckpt", tmp_path / "made", "--tp", "1", "--pp", "4")
    assert outcome.code == 0, outcome
    lines = [line for line in outcome.text.splitlines() if line.strip()]
    old, new = (next(i for i, line in enumerate(lines) if f"TP {tp}" in line and f"PP {pp}" in line)
                for tp, pp in ((2, 1), (1, 4)))
    assert old < new < 6, outcome


def test_a_batch_that_does_not_divide_is_carried_with_a_warning(
    sets: Path, reshards: Reshards
) -> None:
    """8 sequences over 5 ranks."""
    report = reshards.make(sets / GPT_DIST / "ckpt", sizes(dp=5)).report
    assert any("global" in warning and "5" in warning for warning in report["warnings"])
