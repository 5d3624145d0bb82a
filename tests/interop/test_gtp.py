"""Rows as Megatron-LM stores them under GTP (its issues 7168 and 7161), found and laid out anew.

Expected is the state of the run that the imitation (gtp_writer.py) was made of.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import gtp_writer
from damage import edit_args, edit_entries
from gtp_writer import Gtp
from programs import BIN, GOLDEN, refuse, run, succeed
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, CORRUPT, UNSUPPORTED = 1, 3, 4
SOURCE = GOLDEN / "runs/core018_fully_reshardable_dp1/ckpt"
PADDED, HALVED = "(issue 7168 of Megatron-LM)", "cut in shards of GTP (7161)"
MENDABLE = {"zeros": Gtp(2, 2), "values": Gtp(2, 2, noise=True), "aligned": Gtp(2, 2, 1),
            "of 32": Gtp(2, 2, 32), "one rank": Gtp(1, 4, 1), "only padding": Gtp(1, 8)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gtp")
    succeed("reshard", SOURCE, folder / "plain2", "--tp", 2, "--dp", 1)
    shutil.copytree(SOURCE, folder / "plain1")
    for name, gtp in {**MENDABLE, "shifted": Gtp(2, 2, shifted=True)}.items():
        gtp_writer.write(folder / f"plain{gtp.tensor}", folder / name, gtp)
    return folder


@pytest.mark.parametrize("name", MENDABLE)
def test_repair_gives_the_state_without_gtp(name: str, runs: Path, tmp_path: Path) -> None:
    found = run("ckpt-inspect", "verify", runs / name)
    assert found.code == DAMAGED and HALVED in found.stdout, found
    assert (PADDED in found.stdout) == (MENDABLE[name].alignment != 1)
    assert "args." not in found.stdout  # args are right, rows are not
    refusal = refuse(CORRUPT, "ckpt-convert", runs / name, tmp_path / "no", "--to", "torch_dist")
    assert HALVED in refusal
    assert "gtp-rows: can be repaired" in succeed("ckpt-convert", runs / name, "--repair").stdout
    told = succeed("reshard", runs / name, tmp_path / "out", "--repair", "gtp-rows", "--tp", 1)
    assert "every float32 master rounds to the weight" in told.stdout
    succeed("ckpt-inspect", "verify", tmp_path / "out")
    plain = runs / f"plain{MENDABLE[name].tensor}"
    assert "0 of 52 logical tensors" in run("ckpt-inspect", "diff", tmp_path / "out", plain).stdout


def test_rows_that_a_load_has_shifted_are_named_and_not_mended(runs: Path, tmp_path: Path) -> None:
    found = run("ckpt-inspect", "verify", runs / "shifted")
    assert found.code == DAMAGED and "got rows of their neighbour" in found.stdout, found
    listed = succeed("ckpt-convert", runs / "shifted", "--repair").stdout
    assert "gtp-rows: cannot be repaired: embedding.word_embeddings.weight and 19 more" in listed
    refusal = refuse(CORRUPT, "reshard", runs / "shifted", tmp_path / "out", "--repair",
                     "gtp-rows", "--accept-loss", "--tp", 1)
    assert "take a checkpoint from before that load" in refusal
    assert not (tmp_path / "out").exists()


def test_flat_buckets_are_refused_and_their_weights_repaired(tmp_path: Path) -> None:
    source = GOLDEN / "runs/core018_dp_reshardable_tp2dp2/ckpt"
    root = gtp_writer.write(source, tmp_path / "in", Gtp(2, 2))
    words = ("--repair", "gtp-rows", "--tp", 1)
    refusal = refuse(UNSUPPORTED, "reshard", root, tmp_path / "no", *words)
    assert "gtp_weight_remat_size" in refusal and "flat buffers" in refusal
    assert "flat buffers" in run("ckpt-inspect", "verify", root).text
    succeed("reshard", root, tmp_path / "out", *words, "--model-only")
    succeed("reshard", source, tmp_path / "plain", "--tp", 1, "--model-only")
    told = run("ckpt-inspect", "diff", tmp_path / "out", tmp_path / "plain").stdout
    assert "different: 0 of" in told, told


def test_rank_files_with_flat_buffers_are_refused_with_what_works(tmp_path: Path) -> None:
    root = Path(shutil.copytree(GOLDEN / "do_adam_bf16_torch_dp2/ckpt", tmp_path / "in"))
    edit_args(gtp_weight_remat_size=2)(root)
    words = ("--to", "torch_dist", "--model-only", "--repair", "gtp-rows")
    told = run("ckpt-convert", root, tmp_path / "out", *words[:2])
    assert told.code == UNSUPPORTED and "save in torch_dist" in told.stderr, told
    told = run("ckpt-convert", root, tmp_path / "out", *words)
    assert told.code == UNSUPPORTED and "save in torch_dist" in told.stderr, told


def moments_in_padding(root: Path) -> None:
    first = "optimizer.state.exp_avg.output_layer.weight"
    edit_entries(lambda index, value: value + 1 if index.fqn == first else value)(root)


def one_chunk_of_fc1(root: Path) -> None:
    path = iteration_folder(root) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    key = "decoder.layers.mlp.linear_fc1.weight"
    entry = metadata.state_dict_metadata[key]
    gone = entry.chunks[3].offsets
    kept = [chunk for chunk in entry.chunks if chunk.offsets != gone]
    metadata.state_dict_metadata[key] = TensorStorageMetadata(entry.properties, entry.size, kept)
    metadata.storage_data = {index: place for index, place in metadata.storage_data.items()
                             if (index.fqn, index.offset) != (key, gone)}
    path.write_bytes(pickle.dumps(metadata, protocol=4))


def truncated(root: Path) -> None:
    path = iteration_folder(root) / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-400])


FAULTS = {
    "vocabulary not stated": (edit_args(padded_vocab_size=None), UNSUPPORTED,
                              "how many of them are padding is not known"),
    "other heads": (edit_args(num_attention_heads=32), UNSUPPORTED, "linear_qkv.weight"),
    "another size of GTP": (edit_args(gtp_weight_remat_size=4), UNSUPPORTED, "is not known"),
    "moments in padding": (moments_in_padding, CORRUPT, "which padding does not have"),
    "a shard is missing": (one_chunk_of_fc1, {CORRUPT, UNSUPPORTED}, "linear_fc1"),
    "truncated": (truncated, CORRUPT, "truncated"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_by_name(fault: str, runs: Path, tmp_path: Path) -> None:
    damage, code, words = FAULTS[fault]
    shutil.copytree(runs / "zeros", tmp_path / "in")
    damage(tmp_path / "in")
    refusal = refuse(code, "reshard", tmp_path / "in", tmp_path / "out", "--tp", 1, "--repair",
                     "gtp-rows")
    assert words in refusal
    assert not (tmp_path / "out").exists()
