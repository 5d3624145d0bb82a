"""`ckpt-convert --repair`: what is wrong in a known way is mended while it is converted, what no
file holds is counted, and what is sound is left alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from damage import Damage, edit_entries, edit_file, edit_metadata
from parallel_sets import (
    DAMAGED,
    MALFORMED,
    SOUND,
    UNSUPPORTED,
    USAGE,
    expect_none,
    needs_sets,
    recorded_state,
    state_differences,
)
from programs import BIN, GOLDEN, damage_of, refuse, run, succeed, verify
from reading import iteration_folder, load
from zero1_sets import FAULTS

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
MASTER, MOMENTS = "optimizer.state.fp32_param.", ("exp_avg", "exp_avg_sq")
TWINS = [name.replace("_fault5077", "") for name in FAULTS]
MEND = ("--to", "safetensors", "--repair", "bucket-shift")


def common_file(root: Path) -> Path:
    return iteration_folder(root) / "common.pt"


# --- bucket-shift -------------------------------------------------------------------------------


def lost_on_rank(rank: dict) -> dict[str, torch.Tensor]:
    """Of each parameter of a rank whose copy is stored: the elements that no stored window covers.
    From the buffers that Megatron had: a window begins at the parameter's place with the padding of
    buckets, what it shows is the buffer without it."""
    split = {param["name"]: param["tp_dim"] for param in rank["params"]}
    shapes = {param["name"]: param["shape"] for param in rank["params"]}
    lost = {}
    for buffer in rank["grad_buffers"]:
        before, shift, compact_count = [], 0, 0
        for bucket in buffer["buckets"]:
            before.append(shift)
            shift += bucket["numel"] - bucket["numel_unpadded"]
            compact_count += bucket["numel_unpadded"]
        is_shown = torch.zeros(buffer["numel"], dtype=torch.bool)
        stored = [param for param in buffer["params"]
                  if split[param[0]] >= 0 or rank["tp"] == 0]
        for _, start, end, _ in stored:
            is_shown[start:min(end, compact_count)] = True
        for name, start, end, bucket in stored:
            own = is_shown[start - before[bucket]:end - before[bucket]]
            lost[name] = (~own if before[bucket] else torch.zeros_like(own)).view(shapes[name])
    return lost


def lost_elements(folder: Path) -> dict[str, torch.Tensor]:
    """The same of whole parameters."""
    ranks = json.loads((folder / "expected/ranks.json").read_text())
    first = sorted((rank for rank in ranks if rank["dp_cp"] == 0), key=lambda rank: rank["tp"])
    split = {param["name"]: param["tp_dim"] for rank in ranks for param in rank["params"]}
    parts: dict[str, list[torch.Tensor]] = {}
    for rank in first:
        for name, mask in lost_on_rank(rank).items():
            parts.setdefault(name, []).append(mask)
    return {name: torch.cat(masks, dim=max(split[name], 0)) for name, masks in parts.items()}


@needs_sets
@pytest.mark.parametrize("name", FAULTS)
def test_displaced_state_is_moved_back_and_no_element_is_wrong(
    name: str, sets: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made.safetensors"
    outcome = succeed("ckpt-convert", sets / name / "ckpt", made, *MEND, "--accept-loss", "--json")
    state, expected, lost = load_file(made), recorded_state(sets / name), lost_elements(sets / name)
    assert state.keys() == expected.keys()
    for param, mask in lost.items():
        assert torch.equal(state[param], expected[param])
        assert torch.equal(state[MASTER + param][~mask], expected[MASTER + param][~mask]), param
        assert torch.equal(state[MASTER + param][mask], expected[param][mask].float()), param
        for moment in MOMENTS:
            key = f"optimizer.state.{moment}.{param}"
            assert torch.equal(state[key][~mask], expected[key][~mask]), key
            assert not state[key][mask].any(), key
    counts = {param: int(mask.sum()) for param, mask in lost.items() if mask.any()}
    assert sum(counts.values()) == FAULTS[name][2]
    [repair] = outcome.json()["repairs"]
    assert (repair["kind"], repair["verdict"]) == ("bucket-shift", "mendable")
    assert repair["compared"] == repair["right"] == FAULTS[name][1]
    assert {one["parameter"]: one["elements"] for one in repair["lost"]} == counts
    listed = {item["what"] for item in outcome.json()["not_carried"] if not item["changed"]}
    for param, count in counts.items():
        assert f"{count} elements of {MASTER}{param} and of its moments" in listed
    assert outcome.json()["proven"]["masters"]


@needs_sets
@pytest.mark.parametrize("options", [
    ("ckpt-convert", "--to", "torch_dist"),
    ("ckpt-convert", "--to", "torch_dist", "--optimizer-sharding", "dp_reshardable", "--verify"),
    ("ckpt-convert", "--to", "torch"),
    ("reshard", "--tp", "1", "--dp", "4"),
], ids=" ".join)
def test_what_was_mended_is_written_in_every_form_and_remembers_its_losses(
    options: tuple[str, ...], sets: Path, tmp_path: Path
) -> None:
    source = sets / "par_do_adam_fully_reshardable_fault5077_tp2dp2/ckpt"
    mend = ("--repair", "bucket-shift", "--accept-loss")
    outcome = succeed(options[0], source, tmp_path / "made", *options[1:], *mend)
    assert "the state was repaired: bucket-shift" in outcome.stdout
    code, document = verify(tmp_path / "made")
    assert code == SOUND, damage_of(document)
    succeed("ckpt-convert", source, tmp_path / "a.safetensors", *MEND, "--accept-loss")
    succeed("ckpt-convert", tmp_path / "made", tmp_path / "b.safetensors", *MEND[:2])
    expect_none(state_differences(
        load_file(tmp_path / "b.safetensors"), load_file(tmp_path / "a.safetensors")))
    proof = json.loads((tmp_path / "made/shardwise-proof.json").read_text())
    lost = [int(item["what"].split()[0]) for item in proof["not_carried"]
            if "elements of optimizer.state" in item["what"]]
    assert sum(lost) == 1408


@needs_sets
@pytest.mark.parametrize("name", FAULTS)
def test_losses_must_be_accepted_and_are_counted_by_parameter(
    name: str, sets: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made.safetensors"
    line = refuse(MALFORMED, "ckpt-convert", sets / name / "ckpt", made, *MEND)
    for param, mask in lost_elements(sets / name).items():
        if mask.any():
            assert f"{int(mask.sum())} of {mask.numel()} of {param}" in line
    line = refuse(MALFORMED, "ckpt-convert", sets / name / "ckpt", made, *MEND[:2])
    assert "does not round to" in line
    assert not made.exists()
    refuse(UNSUPPORTED, "ckpt-convert", sets / name / "ckpt", made, *MEND, "--accept-loss",
           "--strict")


@needs_sets
@pytest.mark.parametrize("name", FAULTS)
def test_a_list_says_how_sure_it_is_and_writes_nothing(
    name: str, sets: Path, tmp_path: Path
) -> None:
    source = sets / name / "ckpt"
    found = {repair["kind"]: repair
             for repair in succeed("ckpt-convert", source, "--repair", "--json").json()["repairs"]}
    assert found["bucket-shift"]["verdict"] == "mendable"
    assert found["bucket-shift"]["right"] == FAULTS[name][1]
    assert sum(one["elements"] for one in found["bucket-shift"]["lost"]) == FAULTS[name][2]
    assert {found[kind]["verdict"] for kind in ("group-order", "common-state")} == {"sound"}
    text = succeed("ckpt-convert", source, tmp_path / "made", "--repair").stdout
    assert "--repair bucket-shift --accept-loss" in text
    assert list(tmp_path.iterdir()) == []


@needs_sets
@pytest.mark.parametrize(
    "name", [*TWINS, "par_do_adam_fully_reshardable_dp1",
             "par_do_adam_moe_fully_reshardable_ep2dp2",
             "par_do_adam_tied_fully_reshardable_pp2vpp2dp2", "par_v012_do_adam_fully_sharded_dp2",
             "par_do_adam_torch_dp2", "par_head_lw_muon_fully_reshardable_tp2dp2"]
)
def test_sound_state_has_nothing_to_mend_and_stays_as_it_is(
    name: str, sets: Path, tmp_path: Path
) -> None:
    source = sets / name / "ckpt"
    listed = succeed("ckpt-convert", source, "--repair", "--json").json()["repairs"]
    assert {repair["verdict"] for repair in listed} == {"sound"}
    made = tmp_path / "made.safetensors"
    outcome = succeed("ckpt-convert", source, made, "--to", "safetensors",
                      "--repair", "bucket-shift,group-order,common-state")
    assert outcome.stdout.count("nothing to repair") == 3
    expect_none(state_differences(load_file(made), recorded_state(sets / name)))


def scale(prefix: str, factor: float) -> Damage:
    """Tensors of these keys times a number, which rounds otherwise."""
    def change(index, stored: object) -> object:
        is_one = index.fqn.startswith(prefix) and isinstance(stored, torch.Tensor)
        return stored * factor if is_one else stored
    return edit_entries(change)


@needs_sets
def test_masters_that_a_shift_does_not_explain_are_not_moved(
    sets: Path, copied, tmp_path: Path
) -> None:
    root = copied(sets / "par_do_adam_fully_reshardable_fault5077_dp4/ckpt")
    scale("optimizer.state.param.decoder.layers.mlp", 1.01)(root)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a.safetensors", *MEND,
                  "--accept-loss")
    assert "less than 99.9 %" in line and not (tmp_path / "a.safetensors").exists()
    found = succeed("ckpt-convert", root, "--repair", "--json").json()["repairs"][1]
    assert found["verdict"] == "not_mendable" and found["right"] < found["compared"]
    assert not any("too far back" in problem for problem in damage_of(verify(root)[1]))


@needs_sets
@pytest.mark.parametrize("name", TWINS)
def test_weights_that_were_fp8_are_no_displaced_state(name: str, sets: Path, copied) -> None:
    root = copied(sets / name / "ckpt")
    scale("decoder.layers.mlp.linear_fc1.weight", 1.0625)(root)
    edit_file(common_file(root), lambda tree: setattr(tree["args"], "fp8_param_gather", True))
    code, document = verify(root)
    assert code == SOUND, damage_of(document)
    listed = succeed("ckpt-convert", root, "--repair", "--json").json()["repairs"]
    assert "mendable" not in {repair["verdict"] for repair in listed}


@needs_sets
@pytest.mark.parametrize("name", TWINS)
def test_frozen_parameters_are_no_displaced_state(name: str, sets: Path, copied) -> None:
    root = copied(sets / name / "ckpt")
    frozen = "embedding.position_embeddings.weight"

    def freeze(metadata) -> None:
        keys = [key for key in metadata.state_dict_metadata
                if key.startswith("optimizer.state.") and key.endswith(frozen)]
        assert len(keys) == 3
        for key in keys:
            del metadata.state_dict_metadata[key]
        for index in [index for index in metadata.storage_data if index.fqn in keys]:
            del metadata.storage_data[index]

    edit_metadata(freeze)(root)
    edit_entries(lambda _, stored: stored)(root)
    code, document = verify(root)
    assert code == SOUND, damage_of(document)


# --- group-order --------------------------------------------------------------------------------


def swap_decay(groups: list[dict]) -> None:
    one, other = groups[0], groups[1]
    assert one["wd_mult"] != other["wd_mult"]
    one["weight_decay"], other["weight_decay"] = other["weight_decay"], one["weight_decay"]


@needs_sets
def test_groups_with_each_others_decay_are_found_and_not_carried(
    sets: Path, copied, tmp_path: Path
) -> None:
    root = copied(sets / "par_v012_do_adam_fully_sharded_pp2dp2/ckpt")
    edit_file(common_file(root),
              lambda tree: swap_decay(tree["optimizer"]["optimizer"]["param_groups"]))
    code, document = verify(root)
    assert code == DAMAGED
    [problem] = damage_of(document)
    assert "have each other's weight_decay" in problem
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", *MEND[:2])
    assert "weight_decay" in line
    mended = succeed("ckpt-convert", root, tmp_path / "b.safetensors", "--to", "safetensors",
                     "--repair", "group-order")
    assert "repair group-order: 1 pair" in mended.stdout


def test_groups_get_their_own_decay_back(copied, tmp_path: Path) -> None:
    root = copied(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt")
    edit_file(common_file(root),
              lambda tree: swap_decay(tree["optimizer"][1]["optimizer"]["param_groups"]))
    refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "torch_dist")
    succeed("ckpt-convert", root, tmp_path / "a", "--to", "torch_dist", "--repair", "group-order",
            "--verify")
    groups = load(common_file(tmp_path / "a"))["optimizer"][1]["optimizer"]["param_groups"]
    assert all(bool(group["wd_mult"]) == bool(group["weight_decay"]) for group in groups)
    assert verify(tmp_path / "a")[0] == SOUND


# --- common-state -------------------------------------------------------------------------------


def without_common(root: Path) -> None:
    common_file(root).unlink()


def cut_common(root: Path) -> None:
    common_file(root).write_bytes(common_file(root).read_bytes()[:1000])


def without_optimizer(root: Path) -> None:
    edit_file(common_file(root), lambda tree: tree.pop("optimizer"))


@pytest.mark.parametrize("damage", [without_common, cut_common, without_optimizer])
def test_a_common_state_comes_from_another_checkpoint_of_the_run(
    damage: Damage, copied, tmp_path: Path
) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
    root = copied(source)
    damage(root)
    listed = succeed("ckpt-convert", root, "--repair", "--json").json()["repairs"]
    assert [repair["verdict"] for repair in listed] == [*["not_mendable"] * 3, "mendable"]
    assert "common.pt" in listed[3]["text"]
    refuse(USAGE, "ckpt-convert", root, tmp_path / "a", "--to", "torch", "--repair", "common-state")
    succeed("ckpt-convert", root, tmp_path / "a", "--to", "torch", "--repair", "common-state",
            "--like", source, "--verify")
    assert run("ckpt-inspect", "diff", tmp_path / "a", source).code == SOUND
    assert verify(tmp_path / "a")[0] == SOUND


def test_a_common_state_of_another_iteration_is_a_loss(copied, tmp_path: Path) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
    other = copied(source)
    edit_file(common_file(other), lambda tree: tree.update(iteration=2))
    root = tmp_path / "root"
    shutil.copytree(source, root)
    without_common(root)
    mend = ("--to", "torch", "--repair", "common-state", "--like", other)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", *mend)
    assert "is of iteration 2, expected 3" in line
    outcome = succeed("ckpt-convert", root, tmp_path / "a", *mend, "--accept-loss", "--json")
    assert any("iteration 3" in item["what"] for item in outcome.json()["not_carried"])


def test_a_common_state_of_another_model_is_refused(copied, tmp_path: Path) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
    other = copied(source)
    edit_file(common_file(other), lambda tree: setattr(tree["args"], "hidden_size", 32))
    root = tmp_path / "root"
    shutil.copytree(source, root)
    without_common(root)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "torch", "--repair",
                  "common-state", "--like", other, "--accept-loss")
    assert "args.hidden_size" in line and "is 32, but embedding.word_embeddings.weight" in line
    assert not (tmp_path / "a").exists()


@needs_sets
def test_zero1_takes_a_common_state_too(sets: Path, copied, tmp_path: Path) -> None:
    name = "par_do_adam_fully_reshardable_tp2dp2"
    root = copied(sets / name / "ckpt")
    without_common(root)
    made = tmp_path / "made.safetensors"
    succeed("ckpt-convert", root, made, "--to", "safetensors", "--repair",
            "common-state,bucket-shift", "--like", sets / name / "ckpt")
    expect_none(state_differences(load_file(made), recorded_state(sets / name)))


# --- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "named"), [
    (("--to", "torch", "--repair", "buckets-shift"), "did you mean 'bucket-shift'"),
    (("--to", "torch", "--repair", "bucket-shift,"), "is not a kind of repair"),
    (("--to", "torch", "--like", "x"), "--like needs --repair common-state"),
    ((), "--to is required"),
])
def test_wrong_usage_is_told(options: tuple, named: str, tmp_path: Path) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
    line = refuse(USAGE, "ckpt-convert", source, tmp_path / "a", *options)
    assert named in line


def test_a_plain_state_dict_has_nothing_of_megatron_to_mend(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, tmp_path / "a.pt")
    refuse(UNSUPPORTED, "ckpt-convert", tmp_path / "a.pt", tmp_path / "b.safetensors",
           "--to", "safetensors", "--repair", "bucket-shift")
