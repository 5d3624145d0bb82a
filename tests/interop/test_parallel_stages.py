"""Stages with other numbers of layers than an even split gives: by the number of the first or last
stage, and by Megatron's layout string."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parallel_pairs import sizes
from parallel_sets import Reshards, expect_none, needs_sets, refuse_reshard
from parallel_twins import NAMES_OF_MODULES, Twins
from programs import logical_digest
from reading import iteration_folder, load

pytestmark = needs_sets
GPT = "par_lw_muon_torch_dp1"
LAYER = re.compile(r"decoder\.layers\.(\d+)\.")


def layers_of_chunks(root: Path) -> dict[str, list[int]]:
    """Folder and chunk -> how many layers it has, which are numbered from 0."""
    found = {}
    for path in sorted(iteration_folder(root).glob("*/model_optim_rng.pt")):
        tree = load(path)
        for key in (key for key in tree if re.fullmatch(r"model\d*", key)):
            numbers = {int(m[1]) for name in tree[key] if (m := LAYER.match(name))}
            assert numbers == set(range(len(numbers)))
            found[f"{path.parent.name}/{key}"] = len(numbers)
    return found


def args_of(root: Path) -> object:
    path = min(iteration_folder(root).glob("*/model_optim_rng.pt"))
    return load(path)["args"]


UNEVEN = (
    (sizes(pp=2), "--first-stage-layers 1",
     {"mp_rank_00_000/model": 1, "mp_rank_00_001/model": 3}),
    (sizes(pp=2), "--last-stage-layers 1",
     {"mp_rank_00_000/model": 3, "mp_rank_00_001/model": 1}),
    (sizes(pp=3), "--first-stage-layers 1 --last-stage-layers 1",
     {"mp_rank_00_000/model": 1, "mp_rank_00_001/model": 2, "mp_rank_00_002/model": 1}),
    (sizes(pp=3, dp=2), "--pipeline-layout Ett|t|tL",
     {"mp_rank_00_000/model": 2, "mp_rank_00_001/model": 1, "mp_rank_00_002/model": 1}),
    (sizes(pp=4), "--pipeline-layout E|tt|t|tL",
     {"mp_rank_00_000/model": 0, "mp_rank_00_001/model": 2, "mp_rank_00_002/model": 1,
      "mp_rank_00_003/model": 1}),
    (sizes(tp=2, pp=2, vpp=2), "--pipeline-layout Et|tt|t|L",
     {f"mp_rank_{tp:02}_{at}": n for tp in (0, 1) for at, n in
      (("000/model0", 1), ("000/model1", 1), ("001/model0", 2), ("001/model1", 0))}),
)


@pytest.mark.parametrize(
    ("target", "options", "expected"), UNEVEN, ids=lambda v: v if isinstance(v, str) else ""
)
def test_layers_are_where_the_options_say_and_come_back(
    target, options: str, expected: dict, sets: Path, reshards: Reshards
) -> None:
    start = sets / GPT / "ckpt"
    made = reshards.make(start, target, *options.split())
    assert layers_of_chunks(made.root) == expected
    assert logical_digest(made.root) == logical_digest(start)
    back = reshards.make(made.root, sizes()).root
    ignored = NAMES_OF_MODULES if made.says_not_carried("_metadata") else frozenset()
    expect_none(Twins(back, start, ignored=ignored).differences())


def test_args_say_how_layers_are_split(sets: Path, reshards: Reshards) -> None:
    start = sets / GPT / "ckpt"
    for target, options, _ in UNEVEN:
        args = args_of(reshards.make(start, target, *options.split()).root)
        words = options.split()
        given = dict(zip(words[::2], words[1::2], strict=True))
        first, last = (given.get(f"--{end}-stage-layers") for end in ("first", "last"))
        assert args.decoder_first_pipeline_num_layers == (int(first) if first else None)
        assert args.decoder_last_pipeline_num_layers == (int(last) if last else None)
        assert args.pipeline_model_parallel_layout == given.get("--pipeline-layout")
        chunks = target.vpp if target.vpp > 1 else None
        assert args.virtual_pipeline_model_parallel_size == chunks
    back = args_of(reshards.make(reshards.make(start, sizes(pp=2), "--first-stage-layers",
                                               "1").root, sizes()).root)
    assert back.decoder_first_pipeline_num_layers is None


@pytest.mark.parametrize("options", [UNEVEN[0][1], UNEVEN[3][1]])
def test_an_uneven_split_is_not_carried_to_other_stages(
    options: str, sets: Path, reshards: Reshards, tmp_path: Path
) -> None:
    """4 layers are even over 4 stages; over others they need to be told."""
    target = next(target for target, said, _ in UNEVEN if said == options)
    made = reshards.make(sets / GPT / "ckpt", target, *options.split()).root
    even = reshards.make(made, sizes(pp=4)).root
    assert set(layers_of_chunks(even).values()) == {1}
    assert args_of(even).decoder_first_pipeline_num_layers is None
    assert args_of(even).pipeline_model_parallel_layout is None
    line = refuse_reshard({2, 4}, made, tmp_path / "other", "--pp", "5" if target.pp == 3 else "3")
    assert "--pipeline-layout" in line or "--pp" in line


@pytest.mark.parametrize("options", [UNEVEN[0][1], UNEVEN[3][1]])
def test_an_uneven_split_stays_where_stages_stay(
    options: str, sets: Path, reshards: Reshards
) -> None:
    target, _, expected = next(row for row in UNEVEN if row[1] == options)
    made = reshards.make(sets / GPT / "ckpt", target, *options.split()).root
    outcome = reshards.run(made, "--dp", "3")
    assert outcome[1].code == 0, outcome[1]
    assert layers_of_chunks(outcome[0]) == expected
