"""Displaced state (Megatron's issue 5077) of a golden checkpoint, made by this test's own account
of buffers: found, refused, and mended but for what no window shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from damage import edit_entries, edit_file
from parallel_sets import DAMAGED, MALFORMED
from programs import BIN, GOLDEN, damage_of, refuse, succeed, verify
from reading import iteration_folder, load
from test_zero1_repair import MASTER, MEND, MOMENTS, common_file

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
GOLDEN_STATE = GOLDEN / "do_adam_bf16_torch_dist_fully_reshardable_dp2/ckpt"
BUCKET_SIZE, PADDING = 600, 128  # lcm(DP 2, 128)
# Begin and end with padding, and by how much the values lie before it.
Window = tuple[int, int, int]


def windows_of(sizes: dict[str, int]) -> dict[str, Window]:
    """Of parameters in their order: where a buffer of several buckets has them."""
    windows: dict[str, Window] = {}
    begin, place, compact = 0, 0, 0
    for name in reversed(sizes):
        start = -(-place // 64) * 64
        place = start + sizes[name]
        windows[name] = (start, place, begin - compact)
        if place - begin >= BUCKET_SIZE:
            compact += place - begin
            begin = place = -(-place // PADDING) * PADDING
    return windows


def displace(windows: dict[str, Window], state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What is stored of a state of all parameters: what their windows show of the buffer without
    padding."""
    compact = torch.zeros(max(end - shift for _, end, shift in windows.values()))
    for name, (start, end, shift) in windows.items():
        compact[start - shift:end - shift] = state[name].flatten()
    stored = {}
    for name, (start, end, _) in windows.items():
        shown = torch.zeros(end - start)
        part = compact[start:end]
        shown[:part.numel()] = part
        stored[name] = shown.reshape(state[name].shape)
    return stored


def displaced_golden(root: Path, tmp_path: Path) -> tuple[dict, dict[str, Window]]:
    """Damages a copy of the golden checkpoint as several buckets would have; its state before."""
    succeed("ckpt-convert", root, tmp_path / "sound.safetensors", "--to", "safetensors")
    sound = load_file(tmp_path / "sound.safetensors")
    model = load(iteration_folder(GOLDEN / "do_adam_bf16_torch_dp2/ckpt")
                 / "mp_rank_00/model_optim_rng.pt")["model"]
    sizes = {name: value.numel() for name, value in model.items()
             if not name.endswith("_extra_state")}
    windows = windows_of(sizes)
    stored = {ours: displace(windows, {name: sound[f"optimizer.state.{theirs}.{name}"]
                                       for name in sizes})
              for ours, theirs in (("param", "fp32_param"), ("exp_avg",) * 2, ("exp_avg_sq",) * 2)}

    def change(index, value: object) -> object:
        if not index.fqn.startswith("optimizer.state."):
            return value
        state, name = index.fqn.removeprefix("optimizer.state.").split(".", 1)
        name = name.replace(".layers.", f".layers.{index.offset[0]}.").replace(
            "self_attention.linear_qkv.layer_norm", "input_layernorm").replace(
            "mlp.linear_fc1.layer_norm", "pre_mlp_layernorm").replace(
            "layernorm_", "layernorm.")
        return stored[state][name].reshape(value.shape)

    edit_entries(change)(root)
    edit_file(common_file(root), lambda tree: vars(tree["args"]).update(
        overlap_grad_reduce=True, ddp_bucket_size=BUCKET_SIZE))
    return sound, windows


def test_a_golden_checkpoint_with_displaced_state_is_found_and_mended(
    copied, tmp_path: Path
) -> None:
    root = copied(GOLDEN_STATE)
    sound, windows = displaced_golden(root, tmp_path)
    code, document = verify(root)
    assert code == DAMAGED
    assert any("too far back" in problem for problem in damage_of(document))
    made = tmp_path / "made.safetensors"
    refuse(MALFORMED, "ckpt-convert", root, made, *MEND)
    outcome = succeed("ckpt-convert", root, made, *MEND, "--accept-loss", "--json", "--verify")
    mended = load_file(made)
    is_shown = torch.zeros(max(end for _, end, _ in windows.values()), dtype=torch.bool)
    compact_count = max(end - shift for _, end, shift in windows.values())
    for start, end, _ in windows.values():
        is_shown[start:min(end, compact_count)] = True
    lost_count = 0
    for name, (start, end, shift) in windows.items():
        lost = ~is_shown[start - shift:end - shift] & (shift != 0)
        lost_count += int(lost.sum())
        master, weight = f"{MASTER}{name}", sound[name].flatten().float()
        expected = torch.where(lost, weight, sound[master].flatten())
        assert torch.equal(mended[master].flatten(), expected), name
        for moment in MOMENTS:
            key = f"optimizer.state.{moment}.{name}"
            expected = torch.where(lost, torch.zeros(()), sound[key].flatten())
            assert torch.equal(mended[key].flatten(), expected), key
    assert lost_count > 0
    [repair] = outcome.json()["repairs"]
    assert sum(one["elements"] for one in repair["lost"]) == lost_count
