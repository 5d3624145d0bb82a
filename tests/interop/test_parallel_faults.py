"""Faults that users had with checkpoints of many ranks: `verify` finds them by name, and nothing is
made of what they damaged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import parallel_damage as bad
from damage import edit_file, edit_metadata
from parallel_damage import MOMENTUM_OF_EXPERTS, Fault
from parallel_pairs import Sizes
from parallel_sets import (
    DAMAGED,
    MALFORMED,
    SOUND,
    UNSUPPORTED,
    needs_sets,
    recorded_state,
    refuse_reshard,
    state_differences,
)
from programs import damage_of, refuse, succeed, verify
from reading import iteration_folder, load

pytestmark = needs_sets

MOE, MOE_DIST = "par_lw_muon_moe_torch_ep2dp2", "par_lw_muon_moe_torch_dist_ep2dp2"
PP2, PP2_DIST = "par_lw_muon_torch_pp2dp2", "par_lw_muon_torch_dist_pp2dp2"
TIED, TP2 = "par_lw_muon_tied_torch_pp2dp2", "par_lw_muon_torch_tp2dp2"
TP2PP2, FP16 = "par_lw_muon_torch_tp2pp2dp2", "par_adam_fp16_torch_tp2dp2"
EXPERT = r"decoder\.layers\.0\.mlp\.experts\.local_experts\.3\.linear_fc2\.weight"
LAYERS = r"decoder\.layers\.[01]\.mlp\.linear_fc2\.weight"
TIED_NAMES = r"(embedding\.word_embeddings|output_layer)\.weight"

FAULTS = (
    # Rank 1 owns that expert's weight as index 3, in the group of experts.
    Fault("momentum of an expert", MOE, bad.in_rank("00_001", 1, bad.lose_momentum(3)), EXPERT),
    Fault("master of an expert", MOE, bad.in_rank("00_001", 1, bad.lose_parameter(3, 1)),
          EXPERT + r"|mp_rank_00_001/layer_wise_optimizer_1\.pt"),
    Fault("chunk of an expert", MOE_DIST,
          edit_metadata(bad.lose_chunk(MOMENTUM_OF_EXPERTS, (0, 3, 0, 0))),
          re.escape(MOMENTUM_OF_EXPERTS)),
    Fault("state of all experts", MOE_DIST, edit_metadata(bad.lose_key(MOMENTUM_OF_EXPERTS)),
          r"local_experts\.0\.linear_fc2\.weight.*has no optimizer state"),
    Fault("masters of all experts", MOE_DIST,
          edit_metadata(bad.lose_key(MOMENTUM_OF_EXPERTS.replace("momentum_buffer", "fp32_param"))),
          r"fp32_param.*experts.*linear_fc2\.weight|experts.*linear_fc2\.weight.*master"),
    Fault("layers of a stage", PP2,
          bad.in_model("00_000", bad.swap_layers("mlp.linear_fc2.weight", 0, 1)), LAYERS),
    Fault("layers of two stages", PP2, bad.swap_stages("mlp.linear_fc2.weight"),
          r"decoder\.layers\.[02]\.mlp\.linear_fc2\.weight"),
    Fault("stacked layers", PP2_DIST,
          edit_metadata(bad.swap_stacked_layers("decoder.layers.mlp.linear_fc2.weight")),
          r"decoder\.layers\.([01]\.)?mlp\.linear_fc2\.weight"),
    Fault("stacked layers of the masters", PP2_DIST,
          edit_metadata(bad.swap_stacked_layers(
              "optimizer.state.fp32_param.decoder.layers.mlp.linear_fc2.weight")),
          r"decoder\.layers\.([01]\.)?mlp\.linear_fc2\.weight"),
    Fault("copy in the model", TIED, bad.in_model("00_001", bad.stale_model_copy), TIED_NAMES),
    Fault("copy and its master", TIED, bad.stale_copy_and_master, TIED_NAMES),
    Fault("moment of the copy", TIED, bad.stale_moment, "exp_avg.*" + TIED_NAMES),
    Fault("files of two data-parallel ranks", TP2,
          bad.swap_files("00/layer_wise_optimizer_0.pt", "00/layer_wise_optimizer_1.pt"),
          r"mp_rank_00/layer_wise_optimizer_[01]\.pt"),
    Fault("files of two tensor-parallel ranks", TP2,
          bad.swap_files("00/layer_wise_optimizer_1.pt", "01/layer_wise_optimizer_1.pt"),
          r"mp_rank_0[01]/layer_wise_optimizer_1\.pt|mp_rank_0[01]/.*decoder\.layers"),
    Fault("folders of two tensor-parallel ranks", TP2PP2, bad.swap_files("00_001", "01_001"),
          r"mp_rank_0[01]_001"),
    Fault("folders of two stages", TP2PP2, bad.swap_files("00_000", "00_001"),
          r"mp_rank_00_00[01]"),
    Fault("models of two expert ranks", MOE,
          bad.swap_files("00_000/model_optim_rng.pt", "00_001/model_optim_rng.pt"),
          r"mp_rank_00_00[01]|local_experts"),
    Fault("file of another rank", TP2,
          bad.copy_file("01/layer_wise_optimizer_0.pt", "01/layer_wise_optimizer_1.pt"),
          r"mp_rank_01/layer_wise_optimizer_[01]\.pt"),
    Fault("rank of a later iteration", TP2PP2,
          bad.in_rank("01_001", 1, bad.an_iteration_later),
          r"mp_rank_01_001/layer_wise_optimizer_1\.pt|decoder\.layers\.[23]"),
    Fault("steps of a later iteration", TP2PP2, bad.in_rank("01_001", 1, bad.only_later_steps),
          r"step"),
    Fault("model of a later iteration", TP2, bad.in_model("01", bad.other_iteration),
          r"mp_rank_01.*iteration|iteration.*mp_rank_01"),
    Fault("no sharding: folders of two ranks", FP16, bad.swap_files("00", "01"), r"mp_rank_0[01]"),
    Fault("no sharding: model of another rank", FP16,
          bad.copy_file("00/model_optim_rng.pt", "01/model_optim_rng.pt"), r"mp_rank_0[01]"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id.replace(" ", "_"))
def test_the_fault_is_found_by_name_and_not_resharded(
    fault: Fault, sets: Path, copied, tmp_path: Path
) -> None:
    root = copied(sets / fault.source / "ckpt")
    bad.save_again(root)
    fault.damage(root)
    code, document = verify(root)
    assert code == DAMAGED, document
    said = damage_of(document)
    assert any(re.search(fault.named, line) for line in said), said
    line = refuse_reshard(MALFORMED, root, tmp_path / "made", *Sizes().options)
    assert re.search(fault.named, line), line


@pytest.mark.parametrize("source", sorted({fault.source for fault in FAULTS}))
def test_without_the_fault_it_is_sound(source: str, sets: Path, copied) -> None:
    root = copied(sets / source / "ckpt")
    bad.save_again(root)
    assert verify(root)[0] == SOUND


NOT_ALL = (
    ("mp_rank_01_001", "this file of the checkpoint is missing"),
    ("mp_rank_01_001/layer_wise_optimizer_1.pt", "this file of the checkpoint is missing"),
    ("mp_rank_00_001/model_optim_rng.pt", "this file of the checkpoint is missing"),
)


@pytest.mark.parametrize(("lost", "problem"), NOT_ALL)
def test_a_file_that_is_missing_is_named(
    lost: str, problem: str, sets: Path, copied, tmp_path: Path
) -> None:
    root = copied(sets / TP2PP2 / "ckpt")
    path = iteration_folder(root) / lost
    path.rename(tmp_path / "lost")
    code, document = verify(root)
    assert code == DAMAGED
    assert any(lost in line and problem in line for line in damage_of(document))
    line = refuse_reshard(MALFORMED, root, tmp_path / "made", *Sizes().options)
    assert lost in line and problem in line


def test_a_folder_of_a_run_with_more_ranks_is_named(sets: Path, copied, tmp_path: Path) -> None:
    root = copied(sets / TP2PP2 / "ckpt")
    folder = iteration_folder(root)
    shutil.copytree(folder / "mp_rank_01_001", folder / "mp_rank_02_001")
    code, document = verify(root)
    assert code == DAMAGED
    assert any("mp_rank_02_001" in line for line in damage_of(document))
    line = refuse_reshard(MALFORMED, root, tmp_path / "made", *Sizes().options)
    assert "mp_rank_02_001" in line


OVERWRITTEN = "par_lw_muon_torch_cp2dp2"


def test_what_context_parallel_ranks_overwrote_is_found_and_not_carried(
    sets: Path, tmp_path: Path
) -> None:
    root = sets / OVERWRITTEN / "ckpt"
    code, document = verify(root)
    assert code == DAMAGED
    assert "context-parallel ranks overwrote" in json.dumps(document["findings"])
    made = tmp_path / "made"
    for line in (refuse_reshard(MALFORMED, root, made, *Sizes().options),
                 refuse(MALFORMED, "ckpt-convert", root, made, "--to", "torch_dist")):
        assert "context-parallel ranks overwrote each other's file" in line


def lost_params(document: dict, file: str) -> set[str]:
    return {found["key"] for found in document["findings"]
            if found["severity"] == "note" and "are lost" in found["problem"]
            and found["file"].endswith(file)}


def owned(root: Path, data_rank: int, context_rank: int) -> set[str]:
    ranks = json.loads((root / "expected/ranks.json").read_text())
    rank = next(r for r in ranks if (r["dp"], r["cp"]) == (data_rank, context_rank))
    return {param["name"] for param in rank["owned"]}


def test_the_parameters_whose_state_was_overwritten_are_named(sets: Path) -> None:
    root = sets / OVERWRITTEN
    document = verify(root / "ckpt")[1]
    # The first file is one rank's, whole; the second was written by both at once.
    assert lost_params(document, "optimizer_0.pt") == owned(root, 0, 1)
    assert lost_params(document, "optimizer_1.pt") == owned(root, 1, 0) | owned(root, 1, 1)
    left = load(iteration_folder(root / "ckpt") / "mp_rank_00/layer_wise_optimizer_0.pt")
    masters = [master for part in left for group in part["fp32_from_fp16_params"]
               for master in group]
    state = recorded_state(root)
    expected = [state[f"optimizer.state.fp32_param.{name}"] for name in owned(root, 0, 0)]
    assert len(masters) == len(expected)
    for master in masters:
        assert any(master.shape == one.shape and master.equal(one) for one in expected)


def test_the_parameters_of_readable_files_that_were_overwritten_are_named(
    sets: Path, tmp_path: Path
) -> None:
    """Each file is one rank's, as where the ranks wrote one after the other."""
    root = tmp_path / "root"
    shutil.copytree(sets / "par_lw_muon_torch_dp4/ckpt", root)
    folder = iteration_folder(root) / "mp_rank_00"
    for file, rank in ((0, 1), (1, 2)):  # data-parallel ranks 1 and 2 of the four
        shutil.copy(folder / f"layer_wise_optimizer_{rank}.pt", tmp_path / f"{file}.pt")
    for old in folder.glob("layer_wise_optimizer_*.pt"):
        old.unlink()
    for file in (0, 1):
        shutil.copy(tmp_path / f"{file}.pt", folder / f"layer_wise_optimizer_{file}.pt")
    sizes = {"context_parallel_size": 2, "data_parallel_size": 2}
    edit_file(folder / "model_optim_rng.pt", lambda tree: vars(tree["args"]).update(sizes))
    code, document = verify(root)
    assert code == DAMAGED
    origin = sets / "par_lw_muon_torch_dp4"
    assert lost_params(document, "optimizer_0.pt") == owned(origin, 0, 0)
    assert lost_params(document, "optimizer_1.pt") == owned(origin, 3, 0)


def test_of_what_context_parallel_ranks_overwrote_the_model_is_whole(
    sets: Path, tmp_path: Path
) -> None:
    made = tmp_path / "model.safetensors"
    succeed("ckpt-convert", sets / OVERWRITTEN / "ckpt", made, "--to", "safetensors",
            "--model-only")
    model = {name: value for name, value in recorded_state(sets / OVERWRITTEN).items()
             if not name.startswith("optimizer.")}
    assert state_differences(load_file(made), model) == []


def test_such_a_checkpoint_is_not_written(sets: Path, tmp_path: Path) -> None:
    """LayerWise in torch has no file for each context-parallel rank."""
    line = refuse_reshard(UNSUPPORTED, sets / "par_lw_muon_torch_dp4/ckpt", tmp_path / "made",
                          "--cp", "2", "--dp", "2")
    assert "both write mp_rank_00/layer_wise_optimizer_0.pt" in line
