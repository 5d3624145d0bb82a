"""The table of Megatron's arguments: that it has all, and that each has the outcome of its row.

The swarm changes one argument of one set at a time and converts it. With SHARDWISE_LONG_TESTS all
arguments of all sets, else some: those that rows call layouts or refuse, and a few others.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from opened_checkpoint import opened
from parallel_sets import IS_LONG, needs_sets
from programs import BIN, GOLDEN, REPOSITORY, Outcome, refusal_of, run, succeed

sys.path.insert(0, str(REPOSITORY / "tests/real"))
from list_arguments import arguments  # noqa: E402  (a folder beside this one)

TABLE = REPOSITORY / "libtraining/src/args/arguments.tsv"
# docs/arguments.md says which trees.
COUNTS = {"a": 581, "b": 637, "c": 645, "d": 703, "e": 770, "f": 822, "g": 886, "h": 931, "i": 823,
          "j": 983, "k": 263, "l": 391}
OF_PROVIDERS = "*"
UNSUPPORTED = 4


class Row(NamedTuple):
    name: str
    kind: str
    safe: str
    outcome: str
    options: str
    trees: str
    evidence: str


ROWS = {row.name: row for row in (
    Row(*line.split("\t")) for line in TABLE.read_text().splitlines())}
REFUSED = [row for row in ROWS.values() if row.kind == "refused" and row.safe != OF_PROVIDERS]


def test_every_tree_has_as_many_arguments_as_were_counted() -> None:
    assert Counter(letter for row in ROWS.values() for letter in row.trees) == COUNTS
    page = (REPOSITORY / "docs/arguments.md").read_text()
    counts = [int(count) for line in re.findall(r"^\| [a-l][^|]*\|.*\| ([\d, ]+) \|$", page, re.M)
              for count in line.split(", ")]
    assert counts == list(COUNTS.values())


@pytest.mark.parametrize("package", ["megatron.core"])
def test_the_installed_release_has_no_argument_that_the_table_lacks(package: str) -> None:
    found = find_spec("megatron")
    if found is None:
        pytest.skip("no Megatron")
    listed = arguments(Path(next(iter(found.submodule_search_locations))).parent / "megatron")
    of_core = {name for name, row in listed.items() if row.place.startswith("core/")}
    assert len(of_core) > 200
    assert of_core - {name for name, row in ROWS.items() if "e" in row.trees} == set()


def test_trees_that_are_at_hand_are_in_the_table() -> None:
    """SHARDWISE_MEGATRON_TREES: LETTER=FOLDER, separated by spaces."""
    for each in os.environ.get("SHARDWISE_MEGATRON_TREES", "").split():
        letter, _, folder = each.partition("=")
        named = {name for name, row in ROWS.items() if letter in row.trees}
        assert set(arguments(Path(folder))) == named, each


def test_rows_have_classes_evidence_and_outcomes() -> None:
    tree = r"v\d+|april|august|bridge|bridge_april|pull \d+"
    place = re.compile(rf"^(built: .+; )?read: ({tree}) \S+\.py:\d+")
    for row in ROWS.values():
        assert row.kind in ("layout", "step", "harmless", "refused"), row
        assert place.match(row.evidence), row
        assert bool(row.outcome) == (row.kind in ("layout", "refused")), row
        assert bool(row.safe) == (row.kind == "refused"), row


def test_models_that_are_built_differ_as_their_rows_say(tmp_path: Path) -> None:
    """With SHARDWISE_LONG_TESTS all fields, else some; of the Megatron-Core that is installed."""
    if find_spec("megatron") is None:
        pytest.skip("no Megatron")
    built = [name for name, row in ROWS.items() if re.match("built: [a-l]*e", row.evidence)]
    assert len(built) > 100
    fields = [] if IS_LONG else ["qk_layernorm", *random.sample(built, 5)]
    results = tmp_path / "results.json"
    command = (sys.executable, REPOSITORY / "tests/real/build_arguments.py", results, *fields)
    subprocess.run(command, check=True, timeout=600)
    found = json.loads(results.read_text())
    assert found["dense.control"][0]["differs"] == ["forward", "reshard", "shapes"]
    for key, outcomes in found.items():
        name = key.split(".")[1]
        for outcome in outcomes if name in built else ():
            differs = set() if outcome["problem"] else set(outcome["differs"])
            assert may_differ(ROWS[name], differs), (key, outcome, ROWS[name])


def may_differ(row: Row, differs: set[str]) -> bool:
    if row.kind in ("layout", "refused"):
        return True
    return differs <= ({"forward"} if row.kind == "step" else set())


class Copy:
    """A copy of a set, whose args can be changed and put back."""

    def __init__(self, source: Path, folder: Path):
        self.root = Path(shutil.copytree(source, folder, copy_function=shutil.copyfile))
        self.opened = opened(self.root)
        self.commons = self.opened.commons()
        self.opened.keep_commons()
        self.args = dict(vars(self.commons[0]["args"]))

    def changed(self, **values: object) -> Copy:
        before = [dict(vars(common["args"])) for common in self.commons]
        for common in self.commons:
            vars(common["args"]).update(values)
        self.opened.save()
        for common, args in zip(self.commons, before, strict=True):
            vars(common["args"]).clear()
            vars(common["args"]).update(args)
        return self


FIRST = GOLDEN / "do_adam_bf16_torch_dist_fully_reshardable_dp2"
HALF = ("--dp", "1")
# Other sizes for what half of the ranks do not ask: a store's keys hold whole tensors.
ASKED_BY = {"spec": ("--tp", "2")}
needs_programs = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")


@pytest.fixture
def first(tmp_path: Path) -> Copy:
    return Copy(FIRST / "ckpt", tmp_path / "set")


@needs_programs
def test_an_argument_that_is_not_in_the_table_is_told(first: Copy, tmp_path: Path) -> None:
    first.changed(no_such_argument=1)
    told = succeed("reshard", first.root, tmp_path / "made", *HALF)
    line = ("args has an argument that this version does not know (no_such_argument): whether they "
            "change the layout is not known")
    assert f"not proven: {line}" in " ".join(told.stdout.split())
    assert "element counts match" not in told.stdout
    strict = (*HALF, "--strict")
    assert line in refusal_of(run("reshard", first.root, tmp_path / "other", *strict), UNSUPPORTED)
    report = succeed("reshard", first.root, tmp_path / "third", *HALF, "--json").json()
    assert report["not_proven"] == [line]
    same = succeed("reshard", first.root, tmp_path / "same", "--dp", "2", "--strict")
    assert "no_such_argument" not in same.text


@needs_programs
def test_all_arguments_of_all_trees_are_known(first: Copy, tmp_path: Path) -> None:
    others = {name: None for name, row in ROWS.items()
              if name not in first.args and row.safe != OF_PROVIDERS}
    assert len(others) > 100
    for _ in range(20):
        outcome = run("reshard", first.changed(**others).root, tmp_path / "made", *HALF,
                      "--strict")
        if outcome.code == 0:
            break
        # Settings of the optimizer have types.
        del others[re.search(r"'args\.(\w+)': the value is not", outcome.stderr)[1]]
    assert outcome.code == 0, outcome


@needs_programs
def test_refused_arguments_are_refused_by_name(first: Copy, tmp_path: Path) -> None:
    assert len(REFUSED) > 30
    for row in REFUSED:
        first.changed(**{row.name: True if "False" in row.safe else 5})
        outcome = run("reshard", first.root, tmp_path / "made", *ASKED_BY.get(row.name, HALF))
        assert row.name in refusal_of(outcome, UNSUPPORTED), outcome
        is_bool = "False" in row.safe
        first.changed(**{row.name: False if is_bool else None})
        succeed("reshard", first.root, tmp_path / "made", *HALF, "--dry-run")


@needs_programs
def test_rows_of_the_users_answer_for_a_specification_of_ones_own(
    first: Copy, tmp_path: Path
) -> None:
    first.changed(spec=["somewhere", "layers"])
    rules = tmp_path / "rules.json"
    rules.write_text('{"schema_version": 1, "rules": []}')
    made = tmp_path / "made"
    assert run("reshard", first.root, made, *ASKED_BY["spec"]).code == UNSUPPORTED
    succeed("reshard", first.root, made, *ASKED_BY["spec"], "--model-rules", rules)
    succeed("reshard", first.root, tmp_path / "half", *HALF)


@needs_programs
@pytest.mark.parametrize("spec", [
    ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"],
    ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]])
def test_megatrons_own_stacks_of_hybrid_layers_are_known(
    spec: list[str], first: Copy, tmp_path: Path
) -> None:
    first.changed(spec=spec)
    succeed("reshard", first.root, tmp_path / "made", *ASKED_BY["spec"])


# Sizes of the change for each set of the swarm.
SWARM = {
    "par_do_adam_llama_fully_reshardable_tp2": ("--tp", "1"),
    "par_lw_muon_llama_torch_tp2dp2": ("--tp", "1"),
    "par_do_adam_moe_torch_ep2dp2": ("--ep", "1"),
    "par_head_do_adam_dp_reshardable_tp2dp2": ("--tp", "1"),
    "par_lw_muon_tied_torch_pp2vpp2dp2": ("--pp", "1"),
    "par_do_adam_dp_reshardable_tp2pp2dp2": ("--pp", "1", "--tp", "1"),
    "par_lw_muon_moef_torch_dist_ep2dp2": ("--ep", "1"),
    "par_lw_muon_torch_dist_tp2dp2": ("--tp", "1"),
    "par_adam_fp16_torch_tp2dp2": ("--tp", "1"),
    "par_adam_fp16_torch_dist_tp2dp2": ("--tp", "1"),
    "par_do_adam_llama_torch_tp2": ("--tp", "1"),
    "par_do_adam_moef_fully_reshardable_ep2tp2dp2": ("--ep", "1", "--tp", "1"),
    "par_do_adam_vpad_torch_tp2dp2": ("--tp", "1"),
    "par_head_lw_muon_torch_dist_tp2dp2": ("--tp", "1"),
    "par_v012_do_adam_torch_tp2dp2": ("--tp", "1"),
}
# What only args say, and say with right: how modules are called, what is tied, what is padding,
# and whose state it is. A changed one describes another checkpoint.
SAID_BY_ARGS_ALONE = {"transformer_impl", "untie_embeddings_and_output_weights", "vocab_size",
                      "padded_vocab_size", "make_vocab_size_divisible_by", "moe_grouped_gemm"}


def other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return sorted({value + 1, 2 * value} - {value})
    if isinstance(value, float):
        return [value + 1]
    if isinstance(value, str):
        return ["other", None]
    return [2, True] if value is None else []


def tensors_of(root: Path) -> dict[str, str]:
    document = succeed("ckpt-inspect", "hash", "--logical", root, "--json").json()
    return {tensor["key"]: tensor["sha256"] for tensor in document["tensors"]}


def of_sample(names: list[str], seed: int) -> list[str]:
    if IS_LONG:
        return names
    picked = random.Random(seed)
    telling = [name for name in names if ROWS[name].kind in ("layout", "refused")]
    others = [name for name in names if name not in telling]
    return picked.sample(telling, 6) + picked.sample(others, 2)


@needs_sets
@pytest.mark.parametrize("name", SWARM if IS_LONG else list(SWARM)[:4])
def test_an_argument_changed_alone_changes_nothing_in_silence(
    name: str, sets: Path, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SHARDWISE_SEED", random.randrange(1 << 30)))
    print(f"SHARDWISE_SEED={seed}")
    copy, made = Copy(sets / name / "ckpt", tmp_path / "set"), tmp_path / "made"
    succeed("reshard", copy.root, made, *SWARM[name])
    right, wrong = tensors_of(made), []
    for argument in of_sample([each for each in copy.args if each not in SAID_BY_ARGS_ALONE], seed):
        for value in other_values(copy.args[argument]):
            copy.changed(**{argument: value})
            outcome = run("reshard", copy.root, made, *SWARM[name], "--force")
            if fault := fault_of(outcome, argument, value, (copy.root, made, right)):
                wrong.append(fault)
    assert wrong == []


def fault_of(
    outcome: Outcome, argument: str, value: object, of: tuple[Path, Path, dict]
) -> str | None:
    """What is wrong with the outcome of a conversion with that value."""
    root, made, right = of
    if outcome.code not in (0, 2, 3, 4):
        return f"{argument}={value}: exit {outcome.code}\n{outcome}"
    row = ROWS[argument]
    if outcome.code != 0:
        is_named = row.kind in ("layout", "refused") or argument in outcome.text
        return None if is_named else f"{argument}={value}: {outcome}"
    if row.kind == "refused" and str(value) not in row.safe.split(", "):
        return f"{argument}={value}: not refused"
    is_told = argument in outcome.text or run("ckpt-inspect", "verify", root).code == 1
    return None if tensors_of(made) == right or is_told else f"{argument}={value}: in silence"
