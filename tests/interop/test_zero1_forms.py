"""What the options about forms of ZeRO-1 state do, and refuse. test_zero1_matrix.py goes through
the forms and sizes themselves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from parallel_sets import UNSUPPORTED, USAGE, needs_sets
from programs import GOLDEN, logical_digest, refuse, succeed
from reading import DcpFolder, iteration_folder, load, load_torch_folder

FLAT, BUCKETS, NAMED = (
    GOLDEN / name / "ckpt"
    for name in ("do_adam_bf16_torch_dp2", "do_adam_bf16_torch_dist_dp_reshardable_dp2",
                 "do_adam_bf16_torch_dist_fully_reshardable_dp2")
)
MUON = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
MUON_IN_TORCH = GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"

# Source, options, what the message says.
IMPOSSIBLE = [
    (NAMED, "--to torch --optimizer-sharding fully_reshardable",
     "torch checkpoints cannot be written as fully_reshardable"),
    (FLAT, "--to torch --optimizer-sharding dp-reshardable",
     "torch checkpoints cannot be written as dp_reshardable"),
    (FLAT, "--to torch_dist --optimizer-sharding flat_file",
     "torch_dist checkpoints cannot be written as flat_file"),
    (MUON, "--to torch_dist --optimizer-sharding fully_reshardable",
     "the state of muon cannot be written as fully_reshardable"),
    (MUON, "--to torch_dist --optimizer-sharding dp_reshardable",
     "the state of muon cannot be written as dp_reshardable"),
    (MUON_IN_TORCH, "--to torch --optimizer-sharding flat_file",
     "the state of muon cannot be written as flat_file"),
    (MUON, "--to torch --target-megatron 2026-08",
     "Megatron-Core from 0.18 on writes no `torch` checkpoints of LayerWise optimizers"),
    (FLAT, "--to torch --optimizer-sharding layer_wise --cp 2",
     "Megatron cannot store this grid in format torch"),
]


@pytest.mark.parametrize(("source", "options", "problem"), IMPOSSIBLE)
def test_what_no_megatron_has_is_refused(
    source: Path, options: str, problem: str, tmp_path: Path
) -> None:
    line = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "made", *options.split())
    assert problem in line
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("form", ["fully_sharded_model_space", "dp_zero_gather_scatter", "zero1"])
def test_forms_that_nobody_writes_any_more_are_not_offered(form: str, tmp_path: Path) -> None:
    line = refuse(USAGE, "ckpt-convert", NAMED, tmp_path / "made", "--to", "torch_dist",
                  "--optimizer-sharding", form)
    assert "fully_reshardable, dp_reshardable, flat_file, layer_wise" in line


@pytest.mark.parametrize("source", [MUON, MUON_IN_TORCH], ids=["torch_dist", "torch"])
def test_a_bucket_size_of_state_without_flat_buffers_is_a_usage_error(
    source: Path, tmp_path: Path
) -> None:
    line = refuse(USAGE, "reshard", source, tmp_path / "made", "--dp", 1, "--bucket-size", 64)
    assert "--bucket-size" in line and "layer_wise" in line


@pytest.mark.parametrize("size", ["0", "-1", "64k", "all"])
def test_a_bucket_size_is_a_number_of_elements(size: str, tmp_path: Path) -> None:
    line = refuse(USAGE, "reshard", FLAT, tmp_path / "made", "--dp", 1, f"--bucket-size={size}")
    assert "is not a number of elements, 'none' or 'default'" in line


def elements_of_buckets(root: Path) -> list[int]:
    """Of the first buffer of the first copy, padding counted."""
    folder = DcpFolder(iteration_folder(root))
    key = next(key for key in folder.objects() if key.endswith("per_bucket_numel/shard_0_1"))
    (sizes,) = folder.object(key)[0][0].values()
    return sizes


def in_buckets(source: Path, made: Path, *options: object) -> Path:
    succeed("ckpt-convert", source, made, "--to", "torch_dist", "--optimizer-sharding",
            "dp_reshardable", *options)
    return made


def test_bucket_sizes_cut_buffers_where_megatron_cuts_them(tmp_path: Path) -> None:
    one = elements_of_buckets(in_buckets(FLAT, tmp_path / "one", "--bucket-size", "none"))
    assert len(one) == 1
    small = elements_of_buckets(in_buckets(FLAT, tmp_path / "small", "--bucket-size", 1000))
    assert len(small) > 2 and all(size >= 1000 and size % 128 == 0 for size in small[:-1])
    default = elements_of_buckets(in_buckets(FLAT, tmp_path / "many", "--bucket-size", "default"))
    assert default == one  # 40e6 elements are more than the model has
    padded = in_buckets(FLAT, tmp_path / "padded", "--bucket-size", 1000, "--pad-buckets")
    assert all(size % 65536 == 0 for size in elements_of_buckets(padded))


def test_args_say_how_buffers_are_cut(tmp_path: Path) -> None:
    made = in_buckets(FLAT, tmp_path / "made", "--bucket-size", 1000, "--pad-buckets")
    args = DcpFolder(iteration_folder(made)).common["args"]
    assert (args.ddp_bucket_size, args.ddp_num_buckets) == (1000, None)
    assert args.overlap_grad_reduce and args.ddp_pad_buckets_for_high_nccl_busbw
    one = in_buckets(made, tmp_path / "one", "--bucket-size", "none")
    assert not DcpFolder(iteration_folder(one)).common["args"].overlap_grad_reduce


def tensors_of(root: Path) -> dict[str, bytes]:
    document = succeed("ckpt-inspect", "hash", root, "--logical", "--json").json()
    return {tensor["key"]: tensor["sha256"] for tensor in document["tensors"]}


@pytest.mark.parametrize("source", [FLAT, BUCKETS, NAMED], ids=["file", "buckets", "names"])
def test_other_buckets_hold_the_same_state(source: Path, tmp_path: Path) -> None:
    expected = tensors_of(source)
    for size in ("1", "64", "1000", "none"):
        made = in_buckets(source, tmp_path / size, "--bucket-size", size, "--dp", 3)
        assert tensors_of(made) == expected
        file = tmp_path / f"{size}_file"
        succeed("ckpt-convert", made, file, "--to", "torch", "--dp", 5)
        assert tensors_of(file) == expected


def test_gaps_of_flat_buffers_are_zeros(tmp_path: Path) -> None:
    """Every element between two parameters, in both containers."""
    made = in_buckets(NAMED, tmp_path / "buckets", "--bucket-size", "none")
    folder = DcpFolder(iteration_folder(made))
    key = next(key for key in folder.tensors() if key.endswith("bucket_idx_0.param"))
    succeed("ckpt-convert", made, tmp_path / "file", "--to", "torch")
    (state,) = load(iteration_folder(tmp_path / "file") / "mp_rank_00/distrib_optim.pt")[0].values()
    assert torch.equal(folder.tensor(key), state["param"])
    gaps = sum(1 for chunk in folder.chunks(key).values() if not chunk.any())
    assert gaps > 0 or state["param"].numel() == sum(
        chunk.numel() for chunk in folder.chunks(key).values() if chunk.any())


def test_the_default_keeps_the_form_that_the_source_has(tmp_path: Path) -> None:
    forms = {NAMED: "fully_reshardable", BUCKETS: "dp_reshardable"}
    for source, form in forms.items():
        made = tmp_path / form
        succeed("reshard", source, made, "--dp", 4)
        content = DcpFolder(iteration_folder(made)).common["content_metadata"]
        assert content["distrib_optim_sharding_type"] == form
    succeed("reshard", FLAT, tmp_path / "file", "--dp", 4)
    assert "mp_rank_00/distrib_optim.pt" in load_torch_folder(tmp_path / "file")


@needs_sets
def test_the_default_keeps_the_layout_of_august(sets: Path, tmp_path: Path) -> None:
    source = sets / "par_head_lw_muon_torch_dist_tp2dp2/ckpt"
    succeed("reshard", source, tmp_path / "made", "--tp", 1)
    keys = DcpFolder(iteration_folder(tmp_path / "made")).metadata.state_dict_metadata
    assert "common_state/shard_0_1" in keys
    assert any(key.startswith("chained_1.optimizer.distributed.dp_group_idx_0.") for key in keys)
    assert any(key.startswith("chained_0.optimizer.state.momentum_buffer.") for key in keys)


@needs_sets
def test_the_half_beside_muon_changes_alone(sets: Path, tmp_path: Path) -> None:
    source = sets / "par_head_lw_muon_torch_dist_tp2dp2/ckpt"
    succeed("ckpt-convert", source, tmp_path / "named", "--to", "torch_dist",
            "--optimizer-sharding", "fully_reshardable")
    keys = DcpFolder(iteration_folder(tmp_path / "named")).metadata.state_dict_metadata
    assert not any("dp_group_idx" in key or key.startswith("chained_") for key in keys)
    assert logical_digest(tmp_path / "named") == logical_digest(source)


def test_muon_goes_to_august_and_back(tmp_path: Path) -> None:
    for form in ("fully_reshardable", "dp_reshardable"):
        there, back = tmp_path / form, tmp_path / f"{form}_back"
        succeed("ckpt-convert", MUON, there, "--to", "torch_dist", "--target-megatron", "2026-08",
                "--optimizer-sharding", form)
        succeed("ckpt-convert", there, back, "--to", "torch_dist", "--target-megatron", "2026-04")
        assert tensors_of(back) == tensors_of(MUON) == tensors_of(there)
        assert (iteration_folder(back) / "common.pt").exists()


def test_state_of_adam_is_dealt_by_parameters_and_back(tmp_path: Path) -> None:
    succeed("ckpt-convert", NAMED, tmp_path / "dealt", "--to", "torch", "--optimizer-sharding",
            "layer_wise")
    files = load_torch_folder(tmp_path / "dealt")
    assert {f"mp_rank_00/layer_wise_optimizer_{rank}.pt" for rank in (0, 1)} < set(files)
    succeed("ckpt-convert", tmp_path / "dealt", tmp_path / "back", "--to", "torch_dist",
            "--optimizer-sharding", "fully_reshardable")
    assert logical_digest(tmp_path / "back") == logical_digest(NAMED)


@needs_sets
def test_names_are_linked_at_any_size(sets: Path, tmp_path: Path) -> None:
    source = sets / "par_do_adam_fully_reshardable_dp4/ckpt"
    made = tmp_path / "made"
    report = succeed("reshard", source, made, "--tp", 2, "--pp", 2, "--dp", 1, "--link",
                     "--json").json()
    assert report["linked_bytes"] > 0
    copied = tmp_path / "copied"
    succeed("reshard", source, copied, "--tp", 2, "--pp", 2, "--dp", 1)
    assert logical_digest(made) == logical_digest(copied) == logical_digest(source)


def test_flat_buffers_cannot_be_linked(tmp_path: Path) -> None:
    line = refuse(UNSUPPORTED, "reshard", BUCKETS, tmp_path / "made", "--dp", 1, "--link")
    assert "cannot be linked" in line and "flat" in line
    line = refuse(UNSUPPORTED, "reshard", NAMED, tmp_path / "made", "--dp", 1, "--link",
                  "--optimizer-sharding", "dp_reshardable")
    assert "cannot be linked" in line


def bytes_of_files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("options", [
    ("--to", "torch", "--dp", 3),
    ("--to", "torch_dist", "--optimizer-sharding", "dp_reshardable", "--dp", 3,
     "--bucket-size", 1000),
    ("--to", "torch_dist", "--optimizer-sharding", "fully_reshardable", "--dp", 3),
], ids=["file", "buckets", "names"])
@pytest.mark.parametrize("source", [FLAT, BUCKETS, NAMED], ids=["file", "buckets", "names"])
def test_processes_and_threads_write_the_same_bytes(
    source: Path, options: tuple, tmp_path: Path
) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    succeed("ckpt-convert", source, alone, *options, "-j", 1)
    for rank in range(3):
        succeed("ckpt-convert", source, shared, *options, "-j", 4, "--rank", rank,
                "--world-size", 3)
    assert bytes_of_files(alone) == bytes_of_files(shared)


@pytest.mark.parametrize(("release", "is_in_store"), [
    ("0.16", False), ("0.16.1", False), ("0.17.0", False), ("0.18.2", False), ("2026-04", False),
    ("0.18-dev", False),
    ("0.19", True), ("2026-08", True), ("0.20-dev", True),
])
def test_a_release_names_the_layout_that_it_loads(
    release: str, is_in_store: bool, tmp_path: Path
) -> None:
    succeed("ckpt-convert", NAMED, tmp_path / "made", "--to", "torch_dist",
            "--target-megatron", release)
    assert (iteration_folder(tmp_path / "made") / "common.pt").exists() != is_in_store


@pytest.mark.parametrize(("release", "problem"), [
    ("0.15", "does not load args of later Megatrons"),
    ("0.14", "is not a release of Megatron-Core from 0.16 to 0.20-dev"),
    *((text, "is not a release of Megatron-Core")
      for text in ("0.16.1.2", "0.16.x", "0.1", "1.0", "2026", "2026-04.1")),
])
def test_a_release_whose_layout_is_not_written_is_a_usage_error(
    release: str, problem: str, tmp_path: Path
) -> None:
    line = refuse(USAGE, "ckpt-convert", NAMED, tmp_path / "made", "--to", "torch_dist",
                  "--target-megatron", release)
    assert problem in line


@needs_sets
def test_args_of_classes_that_april_lacks_are_left_out_and_listed(
    sets: Path, tmp_path: Path
) -> None:
    source = sets / "par_head_do_adam_dp_reshardable_tp2dp2/ckpt"
    report = succeed("ckpt-convert", source, tmp_path / "made", "--to", "torch_dist",
                     "--target-megatron", "2026-04", "--json").json()
    assert any(lost["what"] == "args.inference_cuda_graph_scope"
               for lost in report["not_carried"])
    args = load(iteration_folder(tmp_path / "made") / "common.pt")["args"]
    assert not hasattr(args, "inference_cuda_graph_scope")
    succeed("ckpt-convert", source, tmp_path / "kept", "--to", "torch_dist")
    kept = DcpFolder(iteration_folder(tmp_path / "kept")).common["args"]
    assert hasattr(kept, "inference_cuda_graph_scope")


# Source, destination, options: of what has no optimizer state.
WITHOUT_FORM = [
    (NAMED, "made", "--to torch --model-only --optimizer-sharding layer_wise"),
    (NAMED, "made", "--to torch_dist --model-only --bucket-size 64"),
    (NAMED, "made.safetensors", "--to safetensors --optimizer-sharding layer_wise"),
    (NAMED, "made.safetensors", "--to safetensors --target-megatron 2026-08"),
    (GOLDEN / "torch_save_zip/zip.pt", "made", "--to torch_dist --optimizer-sharding layer_wise"),
    (GOLDEN / "torch_save_zip/zip.pt", "made", "--to torch_dist --pad-buckets"),
]


@pytest.mark.parametrize(("source", "made", "options"), WITHOUT_FORM)
def test_options_that_would_have_no_effect_are_usage_errors(
    source: Path, made: str, options: str, tmp_path: Path
) -> None:
    line = refuse(USAGE, "ckpt-convert", source, tmp_path / made, *options.split())
    assert "no optimizer state whose form could be chosen" in line


def test_adam_that_is_dealt_by_parameters_is_warned_of(tmp_path: Path) -> None:
    outcome = succeed("ckpt-convert", NAMED, tmp_path / "made", "--to", "torch_dist",
                      "--optimizer-sharding", "layer_wise")
    assert "no Megatron run has a LayerWise optimizer for Adam alone" in outcome.stderr


def test_one_bucket_switches_off_what_needs_several(tmp_path: Path) -> None:
    made = in_buckets(NAMED, tmp_path / "made", "--bucket-size", "none")
    args = DcpFolder(iteration_folder(made)).common["args"]
    assert not args.overlap_grad_reduce and not args.overlap_param_gather


def test_muon_beside_a_distributed_optimizer_sums_its_norm_anew(tmp_path: Path) -> None:
    report = succeed("ckpt-convert", MUON, tmp_path / "made", "--to", "torch_dist",
                     "--target-megatron", "2026-08", "--json").json()
    assert report["continuation"] == {"next_step": "order_of_sums", "reasons": []}
