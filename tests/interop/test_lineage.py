"""`lineage`: norms are torch's, and what stopped moving, became NaN or is all zero is named at the
first iteration at which it did."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from parallel_sets import NOT_FOUND, load_canonical, needs_sets
from programs import GOLDEN, refuse, succeed

SOURCE = GOLDEN / "lw_muon_bf16_torch_dp2"
STOPPED = "decoder.layers.1.mlp.linear_fc1.weight"
ZEROED = "optimizer.state.exp_avg.output_layer.weight"
BROKEN = "decoder.layers.0.mlp.linear_fc2.weight"


def chunks_of(folder: Path, *keys: str, logical: bool = True) -> dict[str, list[dict]]:
    options = ("--logical",) if logical else ()
    outcome = succeed("ckpt-inspect", "show", folder, *keys, *options, "--json")
    return {f"{entry.get('file', '')}:{entry['key']}": entry["tensor"]["chunks"]
            for entry in outcome.json()["entries"]}


def patch(folder: Path, chunks: list[dict], change) -> None:
    """`change`: from the bytes of a storage to those that take their place."""
    for chunk in chunks:
        path = folder / chunk["file"]
        content = bytearray(path.read_bytes())
        start, end = chunk["offset_bytes"], chunk["offset_bytes"] + chunk["bytes"]
        content[start:end] = change(bytes(content[start:end]))
        assert len(content) == path.stat().st_size
        path.write_bytes(content)


def moved(raw: bytes) -> bytes:
    """The lowest bit of each float32, which is lost in its bfloat16 weight."""
    return bytes(byte ^ (i % 4 == 0) for i, byte in enumerate(raw))


def add_iteration(root: Path, number: int, before: Path) -> Path:
    """As `before`, one step later: every master moves but one."""
    folder = root / f"iter_{number:07d}"
    shutil.copytree(before, folder)
    for file in folder.glob("mp_rank_*/model_optim_rng.pt"):
        state = torch.load(file, weights_only=False)
        torch.save(state | {"iteration": number}, file)
    for chunks in chunks_of(folder, "*/step", logical=False).values():
        patch(folder, chunks, lambda raw: struct.pack("<f", number) * (len(raw) // 4))
    for key, chunks in chunks_of(folder, "optimizer.state.fp32_param.*").items():
        if not key.endswith(STOPPED):
            patch(folder, chunks, moved)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lineage") / "root"
    first = root / "iter_0000003"
    shutil.copytree(SOURCE / "ckpt/iter_0000003", first)
    second = add_iteration(root, 4, first)
    (chunks,) = chunks_of(second, ZEROED).values()
    patch(second, chunks, lambda raw: bytes(len(raw)))
    third = add_iteration(root, 5, second)
    (chunks,) = chunks_of(third, BROKEN).values()
    patch(third, chunks, lambda raw: raw[:-4] + b"\xc0\x7f\x80\x7f")
    (root / "iter_0000006").mkdir()
    return root


def lineage(root: Path, *options: str) -> dict:
    return succeed("ckpt-inspect", "lineage", root, "--json", *options).json()


def test_what_happened_is_told_at_its_first_iteration(root: Path) -> None:
    events = lineage(root)["events"]
    folders = [Path(event.pop("path")).name for event in events]
    assert folders == ["iter_0000004", "iter_0000004", "iter_0000005"]
    assert events == [
        {"kind": "zero_moment", "iteration": 4, "key": ZEROED},
        {"kind": "stopped", "iteration": 4, "since": 3,
         "key": f"optimizer.state.fp32_param.{STOPPED}"},
        {"kind": "not_finite", "iteration": 5, "key": BROKEN, "elements": 2},
    ]


def test_norms_are_torchs(root: Path) -> None:
    row = lineage(root)["iterations"][0]
    state = load_canonical(SOURCE / "expected/state.safetensors")
    weights = [v for k, v in state.items() if not k.startswith("optimizer.state.")]
    assert row["norms"]["weights"] == pytest.approx(norm_of(weights), rel=1e-12)
    for name, norm in row["norms"]["states"].items():
        front = f"optimizer.state.{name}."
        tensors = [v for k, v in state.items() if k.startswith(front)]
        assert norm == pytest.approx(norm_of(tensors), rel=1e-12), name
    modules = {module["module"]: module["norms"]["weights"] for module in row["modules"]}
    layer = [v for k, v in state.items() if k.startswith("decoder.layers.1.")]
    assert modules["decoder.layers.1"] == pytest.approx(norm_of(layer), rel=1e-12)


def norm_of(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def test_rows_tell_step_rate_and_what_is_wrong(root: Path) -> None:
    rows = lineage(root)["iterations"]
    assert [row["iteration"] for row in rows] == [3, 4, 5, 6]
    assert [row["complete"] for row in rows] == [True, True, True, False]
    assert [row.get("step") for row in rows] == [3, 4, 5, None]
    assert rows[0]["learning_rates"] == pytest.approx([0.008145], rel=1e-3)
    assert "holds no checkpoint" in rows[3]["problem"]


def larger(raw: bytes) -> bytes:
    weights = torch.frombuffer(bytearray(raw), dtype=torch.bfloat16) * 1024
    return bytes(weights.view(torch.uint8).tolist())


def test_where_weights_grew_is_told(tmp_path: Path) -> None:
    first = tmp_path / "root/iter_0000003"
    shutil.copytree(SOURCE / "ckpt/iter_0000003", first)
    second = add_iteration(tmp_path / "root", 4, first)
    said = succeed("ckpt-inspect", "lineage", tmp_path / "root").stdout
    assert "have grown" not in said, said
    for key in (STOPPED, BROKEN):
        (chunks,) = chunks_of(second, key).values()
        patch(second, chunks, larger)
    said = succeed("ckpt-inspect", "lineage", tmp_path / "root").stdout
    (line,) = (line for line in said.splitlines() if "have grown" in line)
    assert line.startswith("iteration 4: weights of decoder.layers."), line
    assert "so have those of 1 more module (--verbose)" in " ".join(said.split()), said


def test_a_renamed_iteration_is_told_and_not_read(tmp_path: Path) -> None:
    shutil.copytree(SOURCE / "ckpt/iter_0000003", tmp_path / "iter_0000007")
    (row,) = lineage(tmp_path)["iterations"]
    assert (row["health"], row["complete"], "norms" in row) == ("renamed", False, False)
    assert "the state is from iteration 3, but the folder's name says 7" in row["problem"]


@pytest.mark.parametrize("command", ("lineage", "latest"))
def test_a_link_out_of_the_root_is_named(command: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(SOURCE / "ckpt/iter_0000003", root / "iter_0000003")
    shutil.copytree(SOURCE / "ckpt/iter_0000003", tmp_path / "elsewhere")
    (root / "iter_0000009").symlink_to(tmp_path / "elsewhere")
    outcome = succeed("ckpt-inspect", command, root, "--json")
    assert outcome.json()["elsewhere"] == ["iter_0000009"]
    assert "iter_0000009 is a link that leads out of the root" in outcome.stderr
    shutil.rmtree(root / "iter_0000003")
    line = refuse(NOT_FOUND, "ckpt-inspect", command, root)
    assert "links that lead out of it" in line


@needs_sets
@pytest.mark.parametrize("target", ("2026-04", "2026-08"))
def test_the_loss_scale_is_the_grad_scalers(target: str, sets: Path, tmp_path: Path) -> None:
    """In common.pt, and in the store since core 0.19."""
    source = sets / "par_do_adam_fp16_fully_reshardable_dp2/ckpt"
    options = ("--to", "torch_dist", "--target-megatron", target)
    succeed("ckpt-convert", source, tmp_path / "root", *options)
    (row,) = lineage(tmp_path / "root")["iterations"]
    common = torch.load(next(source.glob("iter_*/common.pt")), weights_only=False)
    assert row["loss_scale"] == float(common["optimizer"]["grad_scaler"]["scale"])


def test_quick_reads_no_tensor(root: Path) -> None:
    document = lineage(root, "--quick")
    assert document["events"] == []
    assert all("norms" not in row for row in document["iterations"])
    assert [row.get("step") for row in document["iterations"]] == [3, 4, 5, None]


WEIGHTS = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def save_safetensors(folder: Path, number: int) -> None:
    folder.mkdir(parents=True)
    save_file({"w.weight": WEIGHTS + number}, folder / "model.safetensors", {"format": "pt"})


def save_trainer(folder: Path, number: int) -> None:
    save_safetensors(folder, number)
    state = {"epoch": number / 8, "global_step": number, "log_history": [{"loss": math.nan}]}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def save_titan(folder: Path, number: int) -> None:
    """As torchtitan: the state dict of the model, and the flattened one of its optimizer."""
    state = {
        "w.weight": WEIGHTS + number,
        "state.w.weight.exp_avg": WEIGHTS.neg() - 1,
        "state.w.weight.step": torch.tensor(float(number)),
        "param_groups.w.weight.lr": 0.5,
        "step": torch.tensor(number, dtype=torch.int32),
    }
    dcp.save(state, checkpoint_id=folder, no_dist=True)


def save_deepspeed(folder: Path, number: int) -> None:
    folder.mkdir(parents=True)
    torch.save({"module": {"w.weight": WEIGHTS}}, folder / "mp_rank_00_model_states.pt")


def save_verl(folder: Path, number: int) -> None:
    (folder / "actor").mkdir(parents=True)
    torch.save({"w.weight": WEIGHTS + number}, folder / "actor/model_world_size_1_rank_0.pt")


# How folders are called, what is saved in them, and what a row then says.
NAMINGS = {
    "transformers": ("checkpoint-{}", save_trainer, ("complete", True)),
    "Accelerate": ("checkpoint_{}", save_safetensors, ("complete", False)),
    "epochs": ("epoch_{}", save_safetensors, ("complete", False)),
    "steps": ("step_{}", save_safetensors, ("complete", False)),
    "torchtitan": ("step-{}", save_titan, ("complete", True)),
    "DeepSpeed": ("global_step{}", save_deepspeed, ("unsupported", False)),
    "verl": ("global_step_{}", save_verl, ("complete", False)),
}


@pytest.mark.parametrize("name", NAMINGS)
def test_roots_of_other_programs_are_sorted_by_number(name: str, tmp_path: Path) -> None:
    form, save, (health, has_step) = NAMINGS[name]
    numbers = [2, 9, 10, 100]
    for number in (10, 9, 100, 2):
        save(tmp_path / form.format(number), number)
    rows = lineage(tmp_path)["iterations"]
    assert [row["iteration"] for row in rows] == numbers
    assert [Path(row["path"]).name for row in rows] == [form.format(n) for n in numbers]
    assert [row["health"] for row in rows] == [health] * 4
    assert [row.get("step") for row in rows] == (numbers if has_step else [None] * 4)
    if health == "complete":
        wanted = [float((WEIGHTS + n).norm()) for n in numbers]
        assert [row["norms"]["weights"] for row in rows] == pytest.approx(wanted)


@pytest.mark.parametrize("name", ("transformers", "torchtitan"))
def test_a_folder_that_counts_other_steps_is_renamed(name: str, tmp_path: Path) -> None:
    form, save, _ = NAMINGS[name]
    save(tmp_path / form.format(7), 5)
    (row,) = lineage(tmp_path)["iterations"]
    assert (row["health"], row["complete"]) == ("renamed", False)
    assert "from step 5" in row["problem"] and "the folder's name says 7" in row["problem"]


def test_what_stopped_is_told_of_other_folders_too(tmp_path: Path) -> None:
    for number in (3, 4):
        save_titan(tmp_path / f"step-{number}", number)
    assert lineage(tmp_path)["events"] == []
    shutil.rmtree(tmp_path / "step-4")
    state = {"w.weight": WEIGHTS + 3, "state.w.weight.exp_avg": WEIGHTS + 1,
             "state.w.weight.step": torch.tensor(4.0), "step": torch.tensor(4)}
    dcp.save(state, checkpoint_id=tmp_path / "step-4", no_dist=True)
    (event,) = lineage(tmp_path)["events"]
    assert (event["kind"], event["key"], event["since"]) == ("stopped", "w.weight", 3)
    assert Path(event["path"]).name == "step-4"
    text = succeed("ckpt-inspect", "lineage", tmp_path).stdout
    assert "step-4: w.weight is what it was at step-3" in text


def test_a_folder_without_iterations_is_not_found(tmp_path: Path) -> None:
    line = refuse(NOT_FOUND, "ckpt-inspect", "lineage", tmp_path)
    assert "no iteration folders" in line
