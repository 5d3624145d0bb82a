"""shardwise-proof.json: what a conversion promises, and what verify makes of it later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from programs import GOLDEN, Outcome, damage_of, logical_digest, succeed, verify
from reading import iteration_folder

DIST = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
TORCH = GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"
NAME = "shardwise-proof.json"


def proof_of(root: Path) -> dict:
    return json.loads((root / NAME).read_text())


def reshard(source: Path, to: Path, *options: str) -> Outcome:
    return succeed("reshard", source, to, *options, "--json")


def counts(states: list[dict]) -> dict:
    return {(state["state"], state["experts"]): state["elements"] for state in states}


def elements_by_kind(root: Path) -> dict:
    """Of the tensors under their logical names, counted by another program: from the hashes."""
    found: dict = {}
    for tensor in succeed("ckpt-inspect", "hash", root, "--logical", "--json").json()["tensors"]:
        key = tensor["key"]
        kind = key.split(".")[2] if key.startswith("optimizer.state.") else "weight"
        elements = 1
        for size in tensor["shape"]:
            elements *= size
        found[kind, False] = found.get((kind, False), 0) + elements
    return found


@pytest.mark.parametrize("source", (DIST, TORCH), ids=("torch_dist", "torch"))
def test_each_element_of_each_state_is_counted_on_both_sides(source: Path, tmp_path: Path) -> None:
    report = reshard(source, tmp_path / "out", "--pp", "2").json()
    proof = proof_of(tmp_path / "out")
    assert counts(proof["source"]["states"]) == elements_by_kind(source)
    assert counts(proof["target"]["states"]) == elements_by_kind(tmp_path / "out")
    assert counts(report["conservation"]) == counts(proof["target"]["states"])
    assert proof["target"]["sizes"]["pipeline_parallel"] == 2
    assert [lost["what"] for lost in proof["not_carried"]] == [
        lost["what"] for lost in report["not_carried"]
    ]


def test_a_verified_result_promises_its_logical_hash_and_hands_it_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    reshard(TORCH, first, "--pp", "2", "--verify")
    assert proof_of(first)["logical_digest"] == logical_digest(first) == logical_digest(TORCH)
    reshard(first, second, "--dp", "3")
    assert proof_of(second)["logical_digest"] == logical_digest(second)
    code, document = verify(second)
    assert code == 0
    assert document["passed"]["promised_digest"]
    assert document["passed"]["promised_states"] == document["checked"]["promised_states"] > 0


def test_other_rows_of_the_vocabulary_promise_counts_alone(tmp_path: Path) -> None:
    reshard(DIST, tmp_path / "out", "--tp", "2", "--verify")
    proof = proof_of(tmp_path / "out")
    assert proof["logical_digest"] is None
    assert counts(proof["source"]["states"]) != counts(proof["target"]["states"])
    assert verify(tmp_path / "out")[0] == 0


def test_a_model_alone_promises_its_weights(tmp_path: Path) -> None:
    reshard(DIST, tmp_path / "out", "--dp", "1", "--model-only", "--verify")
    states = proof_of(tmp_path / "out")["target"]["states"]
    assert {state["state"] for state in states} == {"weight"}
    assert verify(tmp_path / "out")[0] == 0


def test_another_state_under_a_proof_is_found(tmp_path: Path) -> None:
    reshard(DIST, tmp_path / "mine", "--dp", "1", "--verify")
    shutil.copytree(GOLDEN / "gpt1l_tiny_torch_dist_dp2", tmp_path / "other")
    shutil.copy(tmp_path / "mine" / NAME, tmp_path / "other")
    code, document = verify(tmp_path / "other")
    assert code == 1
    damage = damage_of(document)
    assert any("weight the conversion wrote" in line for line in damage), damage
    assert any("logical_digest the conversion promised" in line for line in damage), damage


def test_another_logical_hash_than_the_promised_one_is_found(tmp_path: Path) -> None:
    reshard(TORCH, tmp_path / "out", "--dp", "1", "--verify")
    proof = proof_of(tmp_path / "out")
    proof["logical_digest"] = "0" * 64
    (tmp_path / "out" / NAME).write_text(json.dumps(proof))
    code, document = verify(tmp_path / "out")
    assert code == 1
    assert len(damage_of(document)) == 1
    assert verify(tmp_path / "out", "--quick")[0] == 0  # which reads no tensors


@pytest.mark.parametrize(
    "text",
    (
        "",
        "[]",
        "{}",
        "not JSON",
        '{"schema_version": 2}',
        '{"schema_version": 1, "target": {"states": [1]}, "logical_digest": null}',
        '{"schema_version": 1, "target": {"states": []}, "logical_digest": "short"}',
        '{"schema_version": 1, "target": {"states": [{"state": "a", "experts": false,'
        ' "tensors": -1, "elements": 0}]}, "logical_digest": null}',
        "[" * 100_000,
    ),
)
def test_a_proof_that_is_none_is_damage(text: str, tmp_path: Path) -> None:
    reshard(DIST, tmp_path / "out", "--dp", "1")
    (tmp_path / "out" / NAME).write_text(text)
    code, document = verify(tmp_path / "out")
    assert code == 1
    assert len(damage_of(document)) == 1


def test_a_conversion_that_changes_no_size_writes_megatrons_files_alone(tmp_path: Path) -> None:
    succeed("ckpt-convert", TORCH, tmp_path / "out", "--to", "torch_dist")
    assert not (tmp_path / "out" / NAME).exists()


def test_any_number_of_processes_promises_the_same(tmp_path: Path) -> None:
    reshard(DIST, tmp_path / "alone", "--dp", "3")
    for rank in range(3):
        reshard(DIST, tmp_path / "shared", "--dp", "3", "--rank", str(rank), "--world-size", "3")
    alone, shared = (tmp_path / name / NAME for name in ("alone", "shared"))
    assert alone.read_bytes() == shared.read_bytes()


def test_in_the_folder_where_no_root_is_written(tmp_path: Path) -> None:
    reshard(iteration_folder(DIST), tmp_path / "out", "--pp", "2", "--verify")
    assert proof_of(tmp_path / "out")["folder"] is None
    assert verify(tmp_path / "out")[1]["passed"]["promised_digest"]


def test_other_iterations_of_the_root_are_promised_nothing(tmp_path: Path) -> None:
    reshard(DIST, tmp_path / "out", "--dp", "1")
    iteration_folder(tmp_path / "out").rename(tmp_path / "out/iter_0000004")
    (tmp_path / "out/latest_checkpointed_iteration.txt").write_text("4")
    assert verify(tmp_path / "out")[1]["checked"]["promised_states"] == 0
