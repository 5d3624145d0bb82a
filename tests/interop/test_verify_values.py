"""`ckpt-inspect verify` on values: NaN, weights that are not their rounded masters, and what it
must leave open; and on the files that real programs put beside a checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import damage as bad
from programs import BIN, GOLDEN, refuse, run, succeed, verify
from reading import DcpFolder, iteration_folder, load, model_file, rank_file

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

SOUND, DAMAGED, UNSUPPORTED = 0, 1, 4
TORCH = GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt"
DIST = GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt"


def said_of(document: dict, severity: str = "damage") -> list[str]:
    return [
        " ".join(found.get(part, "") for part in ("file", "key", "problem"))
        for found in document["findings"]
        if found["severity"] == severity
    ]


# --- NaN and infinity ----------------------------------------------------------------------------


def first_master_of_rank_1(root: Path) -> tuple[torch.Tensor, str]:
    """The master, and the name of the weight that it rounds to."""
    master = load(rank_file(root, 1))[0]["fp32_from_fp16_params"][0][0].data
    rounded = master.to(torch.bfloat16)
    model = load(model_file(root))["model"]
    fits = (n for n, w in model.items() if w is not None and torch.equal(w, rounded))
    return master, next(fits)


def set_bits(root: Path, master_bits: int, weight_bits: int, place: int = 17) -> str:
    """One element of rank 1's first master, and of its weight."""
    _, name = first_master_of_rank_1(root)

    def edit_master(optimizers: list) -> None:
        master = optimizers[0]["fp32_from_fp16_params"][0][0].data
        master.view(-1).view(torch.int32)[place] = torch.tensor(master_bits).to(torch.int32)

    def edit_weight(tree: dict) -> None:
        bits = tree["model"][name].view(-1).view(torch.int16)
        bits[place] = torch.tensor(weight_bits).to(torch.int16)

    bad.edit_rank(1, edit_master)(root)
    bad.edit_model(edit_weight)(root)
    return name


CPU_NAN, GPU_NAN, NEGATIVE_NAN, OTHER_NAN = 0x7FC0, 0x7FFF, 0xFFC0, 0xFF81
MASTER_NANS = (0x7FC00000, 0x7FFFFFFF, 0xFFC00000, 0x7F800001)


@pytest.mark.parametrize("weight_nan", [CPU_NAN, GPU_NAN, NEGATIVE_NAN, OTHER_NAN], ids=hex)
@pytest.mark.parametrize("master_nan", MASTER_NANS, ids=hex)
def test_a_nan_is_found_as_what_it_is_and_proves_the_name(
    master_nan: int, weight_nan: int, copied
) -> None:
    root = copied(TORCH)
    name = set_bits(root, master_nan, weight_nan)
    code, document = verify(root)
    assert code == DAMAGED
    of_master, of_weight = said_of(document)
    assert "layer_wise_optimizer_1.pt /0/fp32_from_fp16_params/0/0 1 value is NaN, at index 17" in (
        of_master
    )
    assert f"model_optim_rng.pt {name} 1 value is NaN, at index 17" in of_weight


def test_state_with_a_nan_is_converted_as_it_is(copied, tmp_path: Path) -> None:
    root = copied(TORCH)
    set_bits(root, 0x7FC00000, GPU_NAN)
    succeed("ckpt-convert", root, tmp_path / "dist", "--to", "torch_dist")
    code, document = verify(tmp_path / "dist")
    assert code == DAMAGED and all("1 value is NaN" in said for said in said_of(document))
    assert len(said_of(document)) == 2
    succeed("reshard", root, tmp_path / "dp4", "--dp", "4")
    assert run("ckpt-inspect", "diff", root, tmp_path / "dp4", "--logical").code in (0, 2)


@pytest.mark.parametrize(
    ("master_bits", "weight_bits"),
    [(0x7FC00000, 0x7F80), (0x7F800000, 0x7FC0), (0x7FC00000, 0x3F80), (0x3F800000, 0x7FFF)],
)
def test_a_nan_beside_a_number_is_not_equal(master_bits: int, weight_bits: int, copied) -> None:
    root = copied(TORCH)
    set_bits(root, master_bits, weight_bits)
    said = said_of(verify(root)[1])
    assert any("1 of " in p and "differ from the rounded fp32 master" in p for p in said), said


def test_nans_are_counted_and_the_first_is_told(copied) -> None:
    root = copied(TORCH)

    def edit(optimizers: list) -> None:
        momentum = optimizers[0]["optimizer"]["state"][0]["momentum_buffer"].view(-1)
        momentum[[5, 70, 255]] = float("nan")
        momentum[3] = float("-inf")

    bad.edit_rank(1, edit)(root)
    said = said_of(verify(root)[1])
    assert any("3 values are NaN, the first at index 5" in p for p in said), said
    assert any("1 value is infinite, at index 3" in p for p in said), said


def set_common_step(root: Path, value: float) -> None:
    def edit(tree: dict) -> None:
        states = [o["optimizer"].get("state", {}) for o in tree["optimizer"].values()]
        state = next(state for state in states if "common_step" in state)
        state["common_step"] = torch.tensor(value)

    bad.edit_file(iteration_folder(root) / "common.pt", edit)


@pytest.mark.parametrize(
    ("step", "shown"),
    [(float("nan"), "NaN"), (float("inf"), "inf"), (-1.0, "-1"), (2.5, "2.5")],
)
def test_a_common_step_that_counts_nothing_is_found(step: float, shown: str, copied) -> None:
    root = copied(DIST)
    set_common_step(root, step)
    code, document = verify(root)
    assert code == DAMAGED
    (problem,) = said_of(document)
    assert "common.pt" in problem
    assert problem.endswith(f"/state/common_step the common step has the step count {shown}")


# --- masters and weights by name -----------------------------------------------------------------


def save_named(folder: Path, change: Callable[[dict], None] = lambda state: None) -> Path:
    """Weights and state of a DistributedOptimizer under the names of fully_reshardable."""
    torch.manual_seed(5)
    state = {}
    for name, shape in (("decoder.a.weight", (4, 6, 5)), ("decoder.b.weight", (30,))):
        master = torch.randn(shape)
        state[name] = master.to(torch.bfloat16)
        state[f"optimizer.state.param.{name}"] = master
        state[f"optimizer.state.exp_avg.{name}"] = torch.randn(shape)
        state[f"optimizer.state.exp_avg_sq.{name}"] = torch.rand(shape)
    change(state)
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


A, B = "decoder.a.weight", "decoder.b.weight"
MASTER_A, MASTER_B = f"optimizer.state.param.{A}", f"optimizer.state.param.{B}"


def test_named_masters_are_compared(tmp_path: Path) -> None:
    code, document = verify(save_named(tmp_path / "sound"))
    assert code == SOUND and document["checked"]["masters"] == 2
    assert document["not_checked"] == [] and document["not_proven"] == []
    text = run("ckpt-inspect", "verify", tmp_path / "sound").stdout.splitlines()[-1]
    assert text.startswith("OK: ") and "not" not in text


def shift(state: dict) -> None:
    """What Megatron-Core 0.15 to 0.19 stores of parameters behind the first bucket (#5077)."""
    for kind in ("param", "exp_avg", "exp_avg_sq"):
        key = f"optimizer.state.{kind}.{A}"
        state[key] = torch.cat([torch.zeros(8), state[key].flatten()[:-8]]).reshape(4, 6, 5)


def test_state_that_was_stored_shifted_is_found(tmp_path: Path) -> None:
    code, document = verify(save_named(tmp_path / "fault", shift))
    assert code == DAMAGED
    (said,) = said_of(document)
    assert A in said and "differ from the rounded fp32 master" in said
    assert "5077" in document["findings"][0]["hint"]


def freeze(state: dict) -> None:
    for key in [key for key in state if key.endswith(B) and key != B]:
        del state[key]


def keep_float32(state: dict) -> None:
    state[B] = state[MASTER_B].clone()


def keep_remainders(state: dict) -> None:
    state[MASTER_B] = torch.arange(30, dtype=torch.int16)


def keep_flattened(state: dict) -> None:
    state[MASTER_A] = state[MASTER_A].reshape(4, 1, 30)


@pytest.mark.parametrize(
    ("change", "how", "what", "reason"),
    [
        (freeze, "not_proven", f"weight '{B}'", "frozen parameters have none"),
        (keep_remainders, "not_checked", f"master '{MASTER_B}'", "remainders"),
        (keep_flattened, "not_checked", f"master '{MASTER_A}'", "flattened"),
    ],
)
def test_what_need_not_be_a_rounded_master_is_left_open(
    change: Callable, how: str, what: str, reason: str, tmp_path: Path
) -> None:
    code, document = verify(save_named(tmp_path / "ckpt", change))
    assert code == SOUND, said_of(document)
    (left,) = (left for left in document[how] if left["what"] == what)
    assert reason in left["reason"]
    verdict = run("ckpt-inspect", "verify", tmp_path / "ckpt").stdout.splitlines()[-1]
    assert how.replace("_", " ") + ": " in verdict and what in verdict


def test_a_master_of_a_float32_weight_is_its_copy(tmp_path: Path) -> None:
    code, document = verify(save_named(tmp_path / "ckpt", keep_float32))
    assert code == SOUND and document["passed"]["masters"] == document["checked"]["masters"] == 2

    def differ(state: dict) -> None:
        keep_float32(state)
        state[B].view(-1)[7].mul_(1 + 2**-23)

    code, document = verify(save_named(tmp_path / "other", differ))
    assert code == DAMAGED and "1 of 30 elements differ" in said_of(document)[0]


def change_weight(state: dict) -> None:
    state[A].view(-1)[7] *= 1.5


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, DAMAGED),
        ("mixed_precision:\n  fp8_param: true\n", SOUND),
        ("mixed_precision:\n  fp8_param: false\n", DAMAGED),
        ("mixed_precision:\n  fp8_params: true\n", DAMAGED),
        ("ddp:\n  fp8_param_gather: true\n", SOUND),
        ("optimizer:\n  use_precision_aware_optimizer: true\n", SOUND),
    ],
)
def test_weights_of_a_bridge_run_in_fp8_are_not_proven(
    config: str | None, expected: int, tmp_path: Path
) -> None:
    folder = save_named(tmp_path / "ckpt", change_weight)
    if config is not None:
        (folder / "run_config.yaml").write_text(config)
    code, document = verify(folder)
    assert code == expected, said_of(document)
    left = [left["what"] for left in document["not_proven"]]
    assert left == ([f"weight '{A}'"] if expected == SOUND else [])


def make_stale(root: Path) -> None:
    _, name = first_master_of_rank_1(root)

    def edit(tree: dict) -> None:
        tree["model"][name].view(-1)[0] *= 1.5

    bad.edit_model(edit)(root)


@pytest.mark.parametrize(
    "setting", ["fp8_param_gather", "fp4_param", "use_precision_aware_optimizer"]
)
def test_weights_of_a_run_in_fp8_are_not_proven(setting: str, copied) -> None:
    root = copied(TORCH)
    make_stale(root)
    assert verify(root)[0] == DAMAGED
    bad.edit_args(**{setting: True})(root)
    code, document = verify(root)
    assert code == SOUND, said_of(document)
    (left,) = document["not_proven"]
    assert setting in left["reason"]


# --- files beside --------------------------------------------------------------------------------

BESIDE = (
    ("run_config.yaml", "the configuration of a Megatron Bridge run"),
    ("train_state.pt", "the progress of a Megatron Bridge run"),
    ("tokenizer/tokenizer.json", "the tokenizer's files"),
    ("context/io.json", "NeMo's description"),
    ("modelopt_state/common.pt", "ModelOpt"),
    ("wgrads/mp_rank_00.pt", "gradients"),
    ("mp_rank_00/train_dataloader_dprank000.pt", "the data loader state"),
    ("notes.txt", "not part of the checkpoint"),
    ("folder/notes.txt", "a folder that is not part of the checkpoint"),
)


def put(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".pt":
        torch.save({"step": 3, "seen": torch.arange(4)}, path)
    else:
        path.write_text("x: y\n")


@pytest.mark.parametrize("root", [TORCH, DIST], ids=["torch", "torch_dist"])
@pytest.mark.parametrize(("name", "what"), BESIDE, ids=lambda text: text.replace("/", " "))
def test_what_lies_beside_is_told_and_no_damage(
    name: str, what: str, root: Path, copied, tmp_path: Path
) -> None:
    copy = copied(root)
    put(iteration_folder(copy) / name)
    code, document = verify(copy)
    assert code == SOUND, said_of(document)
    is_read = root == TORCH and name.startswith("mp_rank_00")  # as the archive that it is
    notes = said_of(document, "note")
    assert len(notes) == (0 if is_read else 1)
    assert is_read or what in notes[0]
    target = "torch_dist" if root == TORCH else "torch"
    made = succeed("ckpt-convert", copy, tmp_path / "made", "--to", target, "--json").json()
    assert any(what in lost["reason"] for lost in made["not_carried"]), made["not_carried"]
    line = refuse(UNSUPPORTED, "reshard", copy, tmp_path / "strict", "--dp", "2", "--strict")
    assert name.split("/")[0] in line


def test_a_rank_folder_with_anything_but_data_loaders_is_left_over(copied) -> None:
    root = copied(DIST)
    folder = iteration_folder(root)
    put(folder / "mp_rank_00/train_dataloader_dprank000.pt")
    put(folder / "mp_rank_00/model_optim_rng.pt")
    code, document = verify(root)
    assert code == DAMAGED and "mp_rank_00" in said_of(document)[0]


def test_what_lies_in_a_root_is_told(copied) -> None:
    root = copied(DIST)
    put(root / "progress.txt")
    put(root / "other.txt")
    code, document = verify(root)
    assert code == SOUND
    notes = said_of(document, "note")
    assert any("progress.txt" in note and "Megatron's log" in note for note in notes)
    assert any("other.txt" in note and "not part of an iteration" in note for note in notes)


# --- frozen parameters of a LayerWise checkpoint in torch_dist -----------------------------------


def save_frozen(
    folder: Path, name: str, kinds: tuple[str, ...], dtype: torch.dtype = torch.bfloat16
) -> Path:
    """The golden torch_dist folder, written again without these states of a parameter, whose
    weight is of this type."""
    golden = DcpFolder(iteration_folder(DIST))
    dropped = {f"optimizer.state.{kind}.{name}" for kind in kinds}
    state = {key: golden.tensor(key) for key in golden.tensors() if key not in dropped}
    state |= {key: golden.object(key) for key in golden.objects()}
    state[name] = state[name].to(dtype)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(state, checkpoint_id=folder, no_dist=True, planner=planner)
    for file in ("common.pt", "metadata.json"):
        shutil.copyfile(golden.folder / file, folder / file)
    return folder


FROZEN = "output_layer.weight"


def test_a_frozen_parameter_of_a_layer_wise_checkpoint_is_not_proven(tmp_path: Path) -> None:
    folder = save_frozen(tmp_path / "frozen", FROZEN, ("fp32_param", "exp_avg", "exp_avg_sq"))
    code, document = verify(folder)
    assert code == SOUND, said_of(document)
    assert [left["what"] for left in document["not_proven"]] == [f"weight '{FROZEN}'"]
    assert document["not_checked"] == []
    made, back = tmp_path / "made", tmp_path / "back"
    for source, target, container in ((folder, made, "torch"), (made, back, "torch_dist")):
        outcome = succeed("ckpt-convert", source, target, "--to", container, "--verify")
        assert f"1 parameters are frozen ('{FROZEN}' is the first)" in outcome.stderr
        assert succeed("ckpt-inspect", "diff", folder, target).stdout.count("equal:") == 1


# As Megatron saves a parameter that is float32 among 16-bit ones since core 0.19.
def test_a_float32_parameter_is_its_own_master(tmp_path: Path) -> None:
    folder = save_frozen(tmp_path / "native", FROZEN, ("fp32_param",), torch.float32)
    code, document = verify(folder)
    assert (code, document["not_proven"], document["not_checked"]) == (SOUND, [], [])
    succeed("reshard", folder, tmp_path / "made", "--dp", 1, "--verify")
    assert "equal:" in succeed("ckpt-inspect", "diff", folder, tmp_path / "made").stdout
    succeed("ckpt-convert", folder, tmp_path / "torch", "--to", "torch", "--verify")
    assert "equal:" in succeed("ckpt-inspect", "diff", folder, tmp_path / "torch").stdout


@pytest.mark.parametrize("kinds", [("fp32_param",), ("exp_avg", "exp_avg_sq")])
def test_a_parameter_that_lacks_a_part_of_its_state_is_damage(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    code, document = verify(save_frozen(tmp_path / "part", FROZEN, kinds))
    assert code == DAMAGED and FROZEN in said_of(document)[0]
