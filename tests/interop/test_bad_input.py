"""Damaged or unfit input: one clear line, the exit code of the contract, and no output."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import damage as bad
from programs import BIN, GOLDEN, logical_digest, refuse, run, succeed
from reading import iteration_folder, model_file, rank_file

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

SAMPLES = {name: GOLDEN / f"lw_muon_bf16_{name}_dp2" for name in ("torch", "torch_dist")}
CONVERT_TO_TORCH = ("ckpt-convert", "--to", "torch")
CONVERT_TO_TORCH_DIST = ("ckpt-convert", "--to", "torch_dist")
RESHARD = ("reshard", "--dp", "4")
USAGE, MALFORMED, UNSUPPORTED, NOT_FOUND = 2, 3, 4, 5


@dataclass(frozen=True)
class Row:
    """A sample, damaged, and what each command must say of it."""

    what: str
    sample: str
    damage: Callable[[Path], object]
    code: int | set[int]
    mentions: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = (CONVERT_TO_TORCH_DIST, RESHARD)


def torch_row(what: str, damage, code, *mentions: str, commands=None) -> Row:
    return Row(what, "torch", damage, code, mentions, commands or (CONVERT_TO_TORCH_DIST, RESHARD))


def dist_row(what: str, damage, code, *mentions: str, commands=None) -> Row:
    return Row(what, "torch_dist", damage, code, mentions, commands or (CONVERT_TO_TORCH, RESHARD))


RANK_1 = "layer_wise_optimizer_1.pt"
MODEL = "model_optim_rng.pt"
# A grid that the files are not of: damage, files that are missing, or what no rank could write.
WRONG_GRID = {MALFORMED, UNSUPPORTED, NOT_FOUND}

ROWS = (
    torch_row("truncated model file", bad.truncate(model_file, 300), MALFORMED, MODEL),
    torch_row("truncated rank file", bad.truncate(lambda r: rank_file(r, 1), 9), MALFORMED, RANK_1),
    torch_row("empty rank file", lambda r: rank_file(r, 1).write_bytes(b""), MALFORMED, RANK_1),
    torch_row("rank file is text", lambda r: rank_file(r, 1).write_text("{}"), MALFORMED, RANK_1),
    torch_row("archive without a storage", lambda r: bad.drop_member(rank_file(r, 1), "/data/3"),
              MALFORMED, RANK_1),
    torch_row("archive without data.pkl", lambda r: bad.drop_member(rank_file(r, 1), "data.pkl"),
              MALFORMED, RANK_1),
    torch_row("wrong CRC", bad.flip_in_torch_file, MALFORMED, RANK_1, "CRC"),
    torch_row("rank file missing", lambda r: rank_file(r, 1).unlink(), {MALFORMED, NOT_FOUND},
              RANK_1),
    torch_row("model file missing", lambda r: model_file(r).unlink(), {MALFORMED, NOT_FOUND},
              MODEL),
    torch_row("rank files of two iterations", bad.edit_rank(1, bad.other_iteration),
              {MALFORMED, UNSUPPORTED}, RANK_1),
    torch_row("stale extra rank file", bad.stale_rank, MALFORMED, "layer_wise_optimizer_2.pt"),
    torch_row("sizes that are no deal", bad.move_parameter, MALFORMED, "layer_wise_optimizer"),
    torch_row("unequal steps", bad.edit_rank(1, bad.one_step_more), UNSUPPORTED, "step",
              commands=(CONVERT_TO_TORCH_DIST,)),
    torch_row("duplicate of rank 0 differs", bad.edit_model(bad.another_duplicate), MALFORMED,
              MODEL),
    torch_row("duplicate of rank 0 has the same bytes in another order",
              bad.edit_model(bad.view_duplicate_otherwise), MALFORMED, MODEL),
    torch_row("duplicate of rank 0 differs, and states no checksums",
              bad.without_checksums(bad.edit_model(bad.another_duplicate)), MALFORMED, MODEL),
    torch_row("master that fits no weight", bad.edit_rank(1, bad.another_master), MALFORMED,
              RANK_1, "master"),
    torch_row("masters that traded places", bad.edit_rank(1, bad.swap_masters), MALFORMED, RANK_1,
              "master"),
    dist_row("a key in .metadata", bad.edit_metadata(bad.rename_metadata_key),
             {MALFORMED, UNSUPPORTED}, "layer.weight"),
    dist_row("a shape in .metadata", bad.edit_metadata(bad.grow_shape), MALFORMED, bad.MOMENT),
    dist_row("a chunk's size in .metadata", bad.edit_metadata(bad.grow_chunk), MALFORMED,
             bad.MOMENT),
    dist_row("a dtype in .metadata", bad.edit_metadata(bad.change_dtype),
             {MALFORMED, UNSUPPORTED}, bad.MOMENT),
    dist_row("an offset in .metadata", bad.edit_metadata(bad.move_place(offset=94175)), MALFORMED,
             bad.MOMENT),
    dist_row("an offset beyond the file", bad.edit_metadata(bad.move_place(offset=2**40)),
             MALFORMED, bad.MOMENT),
    dist_row("a length in .metadata", bad.edit_metadata(bad.move_place(length=5609)), MALFORMED,
             bad.MOMENT),
    dist_row("a huge length", bad.edit_metadata(bad.move_place(length=2**62)), MALFORMED,
             bad.MOMENT),
    dist_row("a file that is not there", bad.edit_metadata(bad.move_place(
        relative_path="__7_0.distcp")), {MALFORMED, NOT_FOUND}, "__7_0.distcp"),
    dist_row("a path out of the folder", bad.edit_metadata(bad.move_place(
        relative_path="../../../etc/passwd")), MALFORMED),
    dist_row("an entry inside another", bad.edit_metadata(bad.point_into_other_entry), MALFORMED,
             bad.MOMENT),
    dist_row("a chunk left out", bad.edit_metadata(bad.drop_chunk), MALFORMED, "linear_fc1.bias"),
    dist_row("wrong CRC", bad.flip_in_distcp, MALFORMED, ".distcp", "CRC"),
    dist_row("truncated .distcp", bad.truncate(
        lambda r: iteration_folder(r) / "__1_0.distcp", 100), MALFORMED, "__1_0.distcp"),
    dist_row("truncated .metadata", bad.truncate(
        lambda r: iteration_folder(r) / ".metadata", 50), MALFORMED, ".metadata"),
    dist_row("truncated common.pt", bad.truncate(
        lambda r: iteration_folder(r) / "common.pt", 50), MALFORMED, "common.pt"),
    dist_row("common.pt missing", lambda r: (iteration_folder(r) / "common.pt").unlink(),
             {MALFORMED, UNSUPPORTED, NOT_FOUND}, "common"),
    *(
        row(f"{name}={value}", bad.edit_args(**{name: value}), WRONG_GRID)
        for row in (torch_row, dist_row)
        for name, value in (
            ("tensor_model_parallel_size", 2),
            ("pipeline_model_parallel_size", 2),
            ("context_parallel_size", 2),
            ("expert_model_parallel_size", 2),
            ("virtual_pipeline_model_parallel_size", 2),
        )
        # torch_dist keeps the state of a context-parallel run whole.
        if (row, name) != (dist_row, "context_parallel_size")
    ),
)  # fmt: skip


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.sample}: {row.what}")
def test_damaged_checkpoint_is_refused(row: Row, copied, tmp_path: Path) -> None:
    root = copied(SAMPLES[row.sample] / "ckpt")
    row.damage(root)
    output = tmp_path / "output"
    output.mkdir()
    for program, *options in row.commands:
        line = refuse(row.code, program, root, output / "made", *options)
        for words in row.mentions:
            assert words in line, f"{words!r} is not in: {line}"
        assert left_over(output) == []


TRACKERS = (
    ("an iteration that is not there", "7", NOT_FOUND, "iter_0000007"),
    ("release, which is not there", "release", NOT_FOUND, "release"),
    ("no number", "three", MALFORMED, "latest_checkpointed_iteration.txt"),
    ("nothing", "", MALFORMED, "latest_checkpointed_iteration.txt"),
    ("a path", "../../../../etc", MALFORMED, "latest_checkpointed_iteration.txt"),
    ("a huge number", "9" * 30, {MALFORMED, NOT_FOUND}, ""),
)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(("what", "text", "code", "mention"), TRACKERS, ids=lambda v: str(v)[:40])
def test_tracker_must_name_an_iteration(what, text, code, mention, sample, copied, tmp_path):
    root = copied(SAMPLES[sample] / "ckpt")
    bad.tracker(text)(root)
    output = tmp_path / "output"
    output.mkdir()
    for program, *options in (RESHARD, CONVERT_TO_TORCH_DIST):
        assert mention in refuse(code, program, root, output / "made", *options)
        assert left_over(output) == []
    refuse(code, "ckpt-inspect", "hash", root)


@pytest.mark.parametrize("sample", SAMPLES)
def test_release_folder_opens(sample: str, copied) -> None:
    """`release` in the tracker is a folder of that name."""
    root = copied(SAMPLES[sample] / "ckpt")
    before = run("ckpt-inspect", "hash", root, "--json").json()
    iteration_folder(root).rename(root / "release")
    bad.tracker("release")(root)
    outcome = run("ckpt-inspect", "hash", root, "--json")
    assert outcome.code == 0, outcome
    assert outcome.json()["tensors"] == before["tensors"]


COMMANDS = (
    ("ckpt-inspect", "{missing}"),
    ("ckpt-inspect", "hash", "{missing}"),
    ("ckpt-inspect", "ls", "{missing}"),
    ("ckpt-convert", "{missing}", "{target}", "--to", "torch"),
    ("reshard", "{missing}", "{target}", "--dp", "2"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_missing_path_is_not_found(command: tuple, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    program, *arguments = (
        word.format(missing=missing, target=tmp_path / "made") for word in command
    )
    assert str(missing) in refuse(NOT_FOUND, program, *arguments)
    assert left_over(tmp_path) == []


USAGE_ERRORS = (
    ("reshard", "{source}", "{target}", "--dp", "0"),
    ("reshard", "{source}", "{target}", "--dp", "-1"),
    ("reshard", "{source}", "{target}", "--dp", "two"),
    ("reshard", "{source}", "{target}", "--dp", "99999999999999999999"),
    ("reshard", "{source}", "{target}"),
    ("reshard", "{source}", "--dp", "2"),
    ("ckpt-convert", "{source}", "{target}"),
    ("ckpt-convert", "{source}", "{target}", "--to", "hdf5"),
    ("ckpt-convert", "{source}", "{target}", "--to", "torch", "--dp", "0"),
    ("ckpt-convert", "{source}", "{target}", "--to", "torch", "--no-such-option"),
    ("ckpt-inspect", "hash"),
    ("ckpt-inspect", "hash", "{source}", "--no-such-option"),
)


@pytest.mark.parametrize("command", USAGE_ERRORS, ids=" ".join)
def test_usage_errors(command: tuple, tmp_path: Path) -> None:
    program, *arguments = (
        word.format(source=SAMPLES["torch"] / "ckpt", target=tmp_path / "made") for word in command
    )
    outcome = run(program, *arguments)
    assert outcome.code == USAGE, outcome
    assert outcome.stderr and outcome.stdout == "", outcome
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("kind", ["folder", "full folder", "file"])
@pytest.mark.parametrize("command", [CONVERT_TO_TORCH_DIST, RESHARD], ids=lambda c: c[0])
def test_existing_destination_is_refused_and_kept(command, kind: str, tmp_path: Path) -> None:
    target = tmp_path / "made"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        if kind == "full folder":
            (target / "mine").write_text("mine")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    program, *options = command
    line = refuse(NOT_FOUND, program, SAMPLES["torch"] / "ckpt", target, *options)
    assert str(target) in line
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_force_replaces_an_existing_destination(tmp_path: Path) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / "mine").write_text("mine")
    outcome = run("reshard", SAMPLES["torch"] / "ckpt", target, "--dp", "4", "--force")
    assert outcome.code == 0, outcome
    assert not (target / "mine").exists() and rank_file(target, 3).exists()
    assert left_over(tmp_path) == ["made"]


def test_destination_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    target = tmp_path / "no" / "folder" / "made"
    outcome = run("reshard", SAMPLES["torch"] / "ckpt", target, "--dp", "4")
    assert outcome.code in (0, NOT_FOUND), outcome
    assert (outcome.code == 0) == target.exists()


def test_errors_as_json(tmp_path: Path) -> None:
    outcome = run("ckpt-inspect", "hash", tmp_path / "nowhere", "--json")
    assert outcome.code == NOT_FOUND, outcome
    document = outcome.json()
    assert document["schema_version"] == 1
    assert "nowhere" in json.dumps(document["error"])


@pytest.mark.parametrize("command", [CONVERT_TO_TORCH, RESHARD], ids=lambda c: c[0])
def test_tensor_parallel_set_is_converted(
    command: tuple, fixtures: Path, tmp_path: Path
) -> None:
    program, *options = command
    source = fixtures / "lw_muon_bf16_torch_dist_tp2dp2/ckpt"
    succeed(program, source, tmp_path / "made", *options)
    assert logical_digest(tmp_path / "made") == logical_digest(source)


UNFIT_SETS = (
    "do_adam_bf16_torch_dp2",
    "do_adam_bf16_torch_dist_dp_reshardable_dp2",
    "do_adam_bf16_torch_dist_fully_reshardable_dp2",
    "head_lw_muon_bf16_torch_dist_dp2",
    "lw_soap_bf16_torch_dp2",
    "muon_chained_bf16_torch_dist_dp2",
    "adam_bf16_torch_dist_dp2",
)


@pytest.mark.parametrize("name", UNFIT_SETS)
def test_other_optimizers_are_refused_or_carried_but_never_crash(
    name: str, fixtures: Path, tmp_path: Path
) -> None:
    outcome = run("reshard", fixtures / name / "ckpt", tmp_path / "made", "--dp", "4")
    assert outcome.code in (0, MALFORMED, UNSUPPORTED), outcome
    assert (outcome.code == 0) == (tmp_path / "made").exists(), outcome
    if outcome.code != 0:
        assert left_over(tmp_path) == []


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_never_crash(seed: int, copied, tmp_path: Path) -> None:
    """Any byte of a small file: sound output or one line, never a crash or half an output."""
    chance = random.Random(seed)
    root = copied(SAMPLES["torch_dist" if seed % 2 else "torch"] / "ckpt")
    small = (".metadata", "common.pt") if seed % 2 else ("mp_rank_00/layer_wise_optimizer_1.pt",)
    output = tmp_path / "output"
    output.mkdir()
    for _ in range(12):
        path = iteration_folder(root) / chance.choice(small)
        content = path.read_bytes()
        place = chance.randrange(len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        command = (RESHARD, CONVERT_TO_TORCH, CONVERT_TO_TORCH_DIST)[chance.randrange(3)]
        program, *options = command
        outcome = run(program, root, output / "made", *options)
        where = f"{path.name} @{place}\n{outcome}"
        assert outcome.code in (0, MALFORMED, UNSUPPORTED, NOT_FOUND), where
        assert left_over(output) == (["made"] if outcome.code == 0 else []), where
        shutil.rmtree(output / "made", ignore_errors=True)
        path.write_bytes(content)


GRADS = SAMPLES["torch"] / "expected/init_and_grads.safetensors"


def lack_a_parameter(tensors: dict) -> str:
    del tensors["grad0.decoder.final_layernorm.bias"]
    return "decoder.final_layernorm.bias"


def wrong_shape(tensors: dict) -> str:
    key = "grad1.output_layer.weight"
    tensors[key] = tensors[key].t().contiguous()
    return "output_layer.weight"


def wrong_count(tensors: dict) -> str:
    key = "grad2.decoder.layers.1.mlp.linear_fc1.bias"
    tensors[key] = torch.cat([tensors[key], tensors[key]])
    return "decoder.layers.1.mlp.linear_fc1.bias"


@pytest.mark.skipif(not (BIN / "step-replay").exists(), reason="step-replay was not built")
@pytest.mark.parametrize("change", [lack_a_parameter, wrong_shape, wrong_count])
def test_gradients_must_fit_the_parameters(change, tmp_path: Path) -> None:
    tensors = load_file(GRADS)
    name = change(tensors)
    folder = tmp_path / "grads"
    folder.mkdir()
    save_file(tensors, folder / "grads.safetensors")
    target = tmp_path / "made"
    line = refuse(
        MALFORMED,
        "step-replay",
        "run",
        SAMPLES["torch"] / "ckpt",
        "--from-init",
        "--grads",
        folder / "grads.safetensors",
        "-o",
        target,
    )
    assert name in line
    assert left_over(tmp_path) == ["grads"]
