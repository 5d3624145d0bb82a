"""Rows of --model-rules that disagree with Megatron's own modules: what contradicts the arguments
of the run is refused, what nothing can prove is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parallel_sets import needs_sets
from programs import logical_digest, refuse, succeed

pytestmark = needs_sets
CORRUPT = 3
# Buffers of a distributed optimizer say nothing of how tensor-parallel ranks share a parameter.
FLAT = "par_do_adam_torch_tp2dp2"
FC1, PROJ, QKV = (
    "mlp.linear_fc1.weight", "self_attention.linear_proj.weight", "self_attention.linear_qkv.weight"
)


def rules_file(folder: Path, name: str, split: str) -> Path:
    path = folder / "rules.json"
    row = {"part": "layer", "name": name, "split": split}
    path.write_text(json.dumps({"schema_version": 1, "rules": [row]}))
    return path


@pytest.mark.parametrize(
    ("name", "split", "found"),
    [(PROJ, "rows", "rows"), (QKV, "columns", "columns"), (FC1, "columns", "columns")],
)
def test_parts_joined_along_the_wrong_axis_are_refused(
    name: str, split: str, found: str, sets: Path, tmp_path: Path
) -> None:
    rules = rules_file(tmp_path, name, split)
    made = tmp_path / "made"
    line = refuse(
        CORRUPT, "ckpt-convert", sets / FLAT / "ckpt", made, "--to", "torch_dist",
        "--model-rules", rules,
    )
    assert "args.hidden_size" in line, line
    assert name in line and found in line, line
    assert not made.exists()


def test_another_split_of_a_known_module_is_told(sets: Path, tmp_path: Path) -> None:
    """Halves of a gated matrix and rows of a plain one have the same shapes."""
    source = sets / "par_do_adam_llama_torch_tp2dp2" / "ckpt"
    told = succeed(
        "ckpt-convert", source, tmp_path / "made", "--to", "torch_dist",
        "--model-rules", rules_file(tmp_path, FC1, "rows"),
    )
    assert f"'{FC1}' is split as 'rows'" in told.stderr, told
    assert "'gated_rows'" in told.stderr, told


def test_rows_that_say_what_megatron_does_change_nothing(sets: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    told = succeed(
        "ckpt-convert", sets / FLAT / "ckpt", made, "--to", "torch_dist",
        "--model-rules", rules_file(tmp_path, PROJ, "columns"),
    )
    assert "is split as" not in told.stderr, told
    assert logical_digest(made) == logical_digest(sets / FLAT / "ckpt")
