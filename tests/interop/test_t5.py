"""T5: an encoder beside the decoder, a weight under two keys, relative positions.

tests/golden/t5.tar.xz: core 0.19.0 on one rank, unsharded Adam, `torch`; two layers of an encoder,
which are frozen, and one of a decoder, of stand-ins for TransformerEngine's modules.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from damage import edit_args, edit_model
from programs import BIN, GOLDEN, damage_of, refuse, run, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

SOUND, DAMAGED, BAD_USAGE, UNSUPPORTED = 0, 1, 2, 4
DP2 = "--to torch_dist --optimizer-sharding {} --dp 2"
RESULTS = ["--to torch_dist", "--to torch --optimizer-sharding layer_wise",
           DP2.format("dp_reshardable"), DP2.format("fully_reshardable"), DP2.format("layer_wise")]


@pytest.fixture
def t5(tmp_path: Path) -> Path:
    subprocess.run(["tar", "-xJf", GOLDEN / "t5.tar.xz", "-C", tmp_path], check=True)
    return tmp_path / "t5/ckpt"


def require_sound(folder: Path) -> None:
    """Nothing but what is frozen has no master."""
    code, document = verify(folder)
    unproven = [left["what"] for left in document["not_proven"]]
    assert (code, document["not_checked"], len(unproven)) == (SOUND, [], 1)
    assert "weights, the first is 'encoder.layers." in unproven[0]


def logical(root: Path) -> dict[str, str]:
    document = succeed("ckpt-inspect", "hash", root, "--logical", "--json").json()
    return {tensor["key"]: tensor["sha256"] for tensor in document["tensors"]}


def test_a_frozen_encoder_is_no_damage(t5: Path) -> None:
    require_sound(t5)


@pytest.mark.parametrize("options", RESULTS)
def test_results_hold_the_same(options: str, t5: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    succeed("ckpt-convert", t5, made, *options.split())
    require_sound(made)
    assert logical(made) == logical(t5)


def test_a_lost_parameter_is_damage(t5: Path) -> None:
    edit_model(lambda tree: tree["optimizer"]["fp32_from_fp16_params"][0].pop())(t5)
    code, document = verify(t5)
    assert code == DAMAGED
    assert any("but the order of the model assigns it" in said for said in damage_of(document))


def test_layers_that_no_argument_states_are_refused(t5: Path, tmp_path: Path) -> None:
    edit_args(decoder_num_layers=3)(t5)
    line = refuse(UNSUPPORTED, "ckpt-convert", t5, tmp_path / "made", "--to", "torch_dist")
    assert "'decoder.layers.': has 1 layer," in line


def test_stages_are_refused_before_their_layers_are_counted(t5: Path, tmp_path: Path) -> None:
    edit_args(num_layers=3)(t5)
    outcome = run("reshard", t5, tmp_path / "made", "--pp", 2)
    assert outcome.code == BAD_USAGE and "an encoder and a decoder (T5)" in outcome.stderr
