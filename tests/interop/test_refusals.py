"""A refusal says what a checkpoint is called, and which commands work on it: they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import damage as bad
from programs import BIN, GOLDEN, run
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED = 4
SAMPLES = {name: GOLDEN / f"lw_muon_bf16_{name}_dp2" / "ckpt" for name in ("torch", "torch_dist")}
ZERO_1 = {"use_layer_wise_distributed_optimizer": False, "use_distributed_optimizer": True}

# args -> what torch_dist is called
KINDS = (
    (ZERO_1, "a DistributedOptimizer (ZeRO-1) checkpoint"),
    ({**ZERO_1, "tensor_model_parallel_size": 2}, "(ZeRO-1) checkpoint with TP 2"),
)


def changed(copied, sample: str, args: dict) -> Path:
    root = copied(SAMPLES[sample])
    bad.edit_args(**args)(root)
    return root


def check_refusal(outcome, kind: str) -> list[str]:
    """The commands that the hint names."""
    assert outcome.code == UNSUPPORTED, outcome
    error, hint = outcome.stderr.splitlines()
    assert kind in error + hint, outcome
    assert "expected" in error or "supported" in error, outcome
    named = re.match(r"hint: ckpt-inspect ((?:\w+, )+\w+ and \w+) work on ", hint)
    assert named, outcome
    return re.findall(r"\w+", named[1].replace(" and ", " "))


@pytest.mark.parametrize("args, kind", KINDS, ids=lambda value: str(value)[:60])
def test_a_refusal_names_the_kind_and_the_commands_that_work(args, kind, copied, tmp_path) -> None:
    root = changed(copied, "torch_dist", args)
    for command in (
        ("ckpt-convert", root, tmp_path / "out", "--to", "torch"),
        ("reshard", root, tmp_path / "out", "--dp", "4"),
    ):
        named = check_refusal(run(*command), kind)
        assert not (tmp_path / "out").exists()
    for name in named:
        key = ["decoder.final_layernorm.weight"] if name == "show" else []
        other = [root] if name == "diff" else []
        outcome = run("ckpt-inspect", name, root, *other, *key)
        assert outcome.code == 0, outcome


def test_a_state_that_is_not_a_tensor_is_refused(copied, tmp_path: Path) -> None:
    def list_beside_the_tensors(tree: list) -> None:
        state = tree[0]["optimizer"]["state"]
        state[next(iter(state))]["preconditioners"] = [1, 2]

    root = changed(copied, "torch", {"optimizer": "soap"})
    bad.edit_rank(1, list_beside_the_tensors)(root)
    outcome = run("reshard", root, tmp_path / "out", "--dp", "4")
    check_refusal(outcome, "a LayerWise (soap) checkpoint")
    assert "not a tensor; expected tensors and a step count" in outcome.stderr


def test_names_across_formats_are_refused_with_what_works(copied) -> None:
    root = changed(copied, "torch_dist", ZERO_1)
    outcome = run("ckpt-inspect", "hash", "--logical", root)
    assert outcome.code == UNSUPPORTED and "(ZeRO-1) checkpoint" in outcome.stderr, outcome
    assert "hint: ckpt-inspect hash without --logical" in outcome.stderr, outcome
    assert run("ckpt-inspect", "hash", root).code == 0


def test_a_backend_that_is_not_read_is_named(copied) -> None:
    root = copied(SAMPLES["torch_dist"])
    backend = iteration_folder(root) / "metadata.json"
    backend.write_text('{"sharded_backend": "zarr", "sharded_backend_version": 1}')
    outcome = run("ckpt-inspect", "ls", root)
    assert outcome.code == UNSUPPORTED, outcome
    assert "'zarr'; expected 'torch_dist'" in outcome.stderr and "hint: " in outcome.stderr
