"""ckpt-inspect can-load of Megatron's checkpoints: the verdicts of the real code.

tests/can_load/pairs.jsonl has what load_checkpoint of several releases did with recorded sets and
other flags; tests/can_load/README.md says how it was run. No "loads" may be false, no verdict and
no message another one, and at most a tenth not known.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from parallel_sets import IS_LONG, PACKED, unpacked
from programs import BIN, GOLDEN, REPOSITORY, run

REPLAY = REPOSITORY / "tests/can_load/replay.py"
sys.path.insert(0, str(REPLAY.parent))
from run_pairs import with_flags  # noqa: E402

CHECKPOINT = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"


ARCHIVE = REPLAY.parent / "sets_of_releases.tar.xz"
SET = "par_v018_do_adam_dp_reshardable_dp2"


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    """Those that releases wrote, as they are in the repository."""
    folder = tmp_path_factory.mktemp("sets")
    subprocess.run(["tar", "-xf", ARCHIVE, "-C", folder], check=True)
    return folder


def replay(sets: Path, *words: str) -> None:
    done = subprocess.run([sys.executable, REPLAY, BIN, sets, *words], capture_output=True,
                          text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
def test_verdicts_are_those_of_the_real_code(sets: Path, tmp_path: Path) -> None:
    """Of the sets in the repository, and of those beside it where they are."""
    for folder in sets.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    if PACKED.is_dir():
        for folder in unpacked(tmp_path / "packed").iterdir():
            if not (tmp_path / folder.name).exists():
                (tmp_path / folder.name).symlink_to(folder)
    replay(tmp_path)


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
def test_a_launch_script_says_the_same_as_what_differs(sets: Path) -> None:
    """--launch with each pair's whole command line: the same verdicts and messages."""
    replay(sets, "--launch")


def launch(sets: Path, tmp_path: Path, text: str, *words: str):
    (tmp_path / "launch").write_text(text)
    return run("ckpt-inspect", "can-load", sets / SET / "ckpt", "--target-megatron", "0.18",
               "--launch", tmp_path / "launch", *words, "--json")


def command_line(sets: Path) -> str:
    argv = json.loads((sets / SET / "expected/run.json").read_text())["argv"]
    return shlex.join(with_flags(argv, {"save": None, "save_interval": None}))


SCRIPTS = {
    "options alone": ("ARGS", 0, "continues"),
    "one command": ("torchrun --nproc-per-node=2 pretrain_gpt.py ARGS", 0, "continues"),
    "over lines, with comments": ("# a run\ntorchrun \\\n  --nproc_per_node 2 x.py \\\n"
                                  "  ARGS  # as before", 0, "continues"),
    "a text that is split": ('O="ARGS"\npython pretrain_gpt.py $O', 0, "continues"),
    "an array": ('O=(ARGS)\nO+=(--log-interval 7)\npython pretrain_gpt.py "${O[@]}"', 0,
                 "continues"),
    "in a word of another program": ('C="python a/pretrain_gpt.py ARGS"\n'
                                     'srun -l sh -c "cd /; ${C}" > log 2>&1', 0, "continues"),
    "behind a condition": ("if true; then\n X=--bf16\nfi\nexport A=b; python x.py ARGS", 0,
                           "continues"),
    "an empty array under a condition": ("if a; then E=(); fi; python x.py ARGS", 0, "continues"),
    "a value that does not matter": ("python x.py ARGS --log-interval $1", 0, "continues"),
    "other data": ("python x.py ARGS --data-path $DATA", 1, "next_step_differs"),
    "another rate": ("python x.py ARGS --lr 0.5", 1, "refuses"),
    "one rank": ("torchrun --nproc-per-node 1 x.py ARGS", 1, "next_step_differs"),
    "a rate that is not told": ("python x.py ARGS --lr $LR", 4, "$LR is not set in the file"),
    "a default of the script": ("python x.py ARGS --lr ${LR:-0.01}", 4, "$LR is not set"),
    "a program's answer": ("python x.py ARGS --lr $(best)", 4, "$(...) is not evaluated"),
    "set under a condition": ("if a; then LR=1; fi\npython x.py ARGS --lr $LR", 4,
                              "$LR is set under a condition, in line 1"),
    "arguments of the script": ('python x.py ARGS "$@"', 4, "$@ is not known before"),
    "an option of another trainer": ("python x.py ARGS --my-flag", 4, "what --my-flag is"),
    "an option of later releases": ("python x.py ARGS --muon-use-syrk", 1, "unrecognized arg"),
    "no number": ("python x.py ARGS --lr fast", 4, "what --lr is given"),
    "fewer processes than ranks": ("torchrun --nproc-per-node 3 x.py ARGS "
                                   "--tensor-model-parallel-size 2", 4, "the launch starts 3"),
    "two programs": ("python x.py ARGS\npython y.py ARGS", 2, "lines 1 and 2"),
    "no program": ("echo hello", 3, "starts a Python program"),
    "an open quote": ("python x.py '", 3, "a quote is not closed"),
    "an open array": ("A=(b\n", 3, "an array is not closed"),
    "nothing": ("", 3, "starts a Python program"),
    "bytes": ("\x01 python x.py ARGS", 3, "bytes that no text has"),
    "JSON of something else": ('{"a": 1}', 3, "has no num_layers"),
}


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
@pytest.mark.parametrize("text, code, says", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_read_as_a_shell_reads_it(sets: Path, tmp_path: Path, text: str, code: int,
                                              says: str) -> None:
    outcome = launch(sets, tmp_path, text.replace("ARGS", command_line(sets)))
    assert outcome.code == code, outcome
    assert says in json.dumps(outcome.json()), outcome


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
def test_yaml_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run_config.yaml").write_text("model: {}\n")
    outcome = run("ckpt-inspect", "can-load", CHECKPOINT, "--target-megatron", "0.18", "--launch",
                  tmp_path / "run_config.yaml")
    assert outcome.code == 4 and "a YAML file is not read" in outcome.stderr, outcome


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
@pytest.mark.parametrize("other, code, verdict", [
    ({}, 0, "continues"), ({"lr": 0.5}, 1, "refuses"), ({"train_iters": 20}, 1, "refuses"),
    ({"finetune": True}, 1, "next_step_differs"), ({"num_layers": 6}, 1, "refuses"),
    ({"save": "elsewhere", "log_interval": 7}, 0, "continues"),
    ({"world_size": 1}, 1, "next_step_differs"),
], ids=str)
@pytest.mark.parametrize("form", ["log", "json"])
def test_printed_arguments(sets: Path, tmp_path: Path, other: dict, code: int, verdict: str,
                           form: str) -> None:
    """As Megatron's _print_args has them, behind a logger's words; and as JSON."""
    shown = run("ckpt-inspect", "show", sets / SET / "ckpt", "args", "--json").json()
    args = shown["entries"][0]["object"]["$object"]["state"] | other

    def text(value: object) -> object:
        if not isinstance(value, dict):
            return value
        words = {"signal.Signals": "15",
                 "megatron.core.transformer.enums.AttnBackend": "AttnBackend.auto"}
        kind = value.get("$object", {}).get("class", "")
        return value.get("$global") or words.get(kind, "a scope")

    lines = [f"rank 0:   {name} {'.' * (48 - len(name))} {text(value)}"
             for name, value in sorted(args.items())]
    outcome = launch(sets, tmp_path, json.dumps(args) if form == "json" else "\n".join(lines))
    assert (outcome.code, outcome.json().get("verdict")) == (code, verdict), outcome


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
@pytest.mark.parametrize("arguments, code, verdict", [
    ([], 0, "continues"),
    (["--dp", "1"], 1, "next_step_differs"),
    (["--dp", "1", "--accept-next-step"], 0, "next_step_differs"),
    (["--arg", "no_load_optim"], 1, "next_step_differs"),
    (["--arg", "normalization=RMSNorm"], 1, "loads_wrong"),
    (["--arg", "lr=0.5"], 1, "refuses"),
    (["--arg", "ckpt_format=torch"], 1, "refuses"),
    (["--arg", "an_argument_of_next_year"], 4, "not_known"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_each_verdict_has_its_exit_code(arguments: list[str], code: int, verdict: str) -> None:
    outcome = run("ckpt-inspect", "can-load", CHECKPOINT, "--target-megatron", "2026-04",
                  *arguments, "--json")
    assert (outcome.code, outcome.json()["verdict"]) == (code, verdict), outcome


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
@pytest.mark.parametrize("words, failures, says", [
    ([], 0, None), (["--arg", "lr=0.5"], 1, "learning rate"),
    (["--arg", "next_year=1"], 1, "not known"),
    (["--dp", "1"], 1, "gradients: at other sizes"), (["--dp", "1", "--accept-next-step"], 0, None),
], ids=str)
def test_junit(tmp_path: Path, words: list[str], failures: int, says: str | None) -> None:
    file = tmp_path / "result.xml"
    run("ckpt-inspect", "can-load", CHECKPOINT, "--target-megatron", "2026-04", "--junit", file,
        *words)
    suite = ElementTree.parse(file).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", str(failures))
    assert suite[0].get("name") == str(CHECKPOINT)
    told = " ".join([suite[0][0].get("message"), suite[0][0].text or ""]) if failures else ""
    assert (says or "") in told


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
def test_bytes_that_ranks_read(sets: Path) -> None:
    """One rank alone reads every file once; tests/can_load/reads.jsonl has real loads by strace."""
    checkpoint = sets / SET / "ckpt"
    files = {path.name: path.stat().st_size for path in checkpoint.glob("iter_*/*")}
    data = sum(size for name, size in files.items() if name.endswith(".distcp"))
    ranks = run("ckpt-inspect", "can-load", checkpoint, "--target-megatron", "0.18", "--dp", "1",
                "--json").json()["ranks"]
    of_tensors = ranks[0]["read_bytes"] - files[".metadata"] - 3 * files["common.pt"]
    assert len(ranks) == 1
    assert 0.9 * data < of_tensors <= data  # objects are the rest
    model = run("ckpt-inspect", "can-load", checkpoint, "--target-megatron", "0.18", "--arg",
                "no_load_optim", "--json").json()["ranks"]
    assert [rank["read_bytes"] < ranks[0]["read_bytes"] / 3 for rank in model] == [True, True]


@pytest.mark.skipif(not (BIN / "step-replay").exists(), reason="step-replay was not built")
@pytest.mark.skipif(not PACKED.is_dir(), reason="the recorded sets are not there")
def test_where_it_continues_the_replayed_step_is_megatrons(tmp_path: Path) -> None:
    """Of sets with a recorded next step: what continues, step-replay takes to the same state; what
    a known fault of its writer displaced is said to be wrong, and does not get there."""
    sets = unpacked(tmp_path / "packed")
    verdicts = []
    every = 1 if IS_LONG else 9
    for expected in sorted(sets.glob("*/expected/next_state.safetensors"))[::every]:
        folder = expected.parents[1]
        recorded = json.loads((folder / "expected/run.json").read_text())
        release = "2026-08" if "_head_" in folder.name else "2026-04"
        said = run("ckpt-inspect", "can-load", folder / "ckpt", "--target-megatron", release,
                   "--json").json()["verdict"]
        replayed = run("step-replay", "run", folder / "ckpt", "--grads",
                       sets / f"family_{recorded['family']}/grads.safetensors", "--first",
                       recorded["iteration"], "--steps", 1, "--expect", expected)
        verdicts.append(said)
        if said in ("continues", "loads_wrong"):
            assert replayed.code == (0 if said == "continues" else 1), (folder.name, replayed)
    assert verdicts.count("continues") >= (44 if IS_LONG else 3), verdicts
