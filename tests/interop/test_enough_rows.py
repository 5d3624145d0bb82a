"""A refusal for want of a model rule prints the row that would be enough: with it, it works."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from damage import edit_metadata
from programs import BIN, GOLDEN, refusal_of, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED = 4
SOURCE = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
MODULES = {  # of torch_dist's keys: another name, and what the placeholders of the row stand for
    "mlp.linear_fc2.weight": ("mlp.fc9.weight", {"SPLIT": "columns"}),
    "self_attention.linear_proj.weight": ("self_attention.out9.weight", {"SPLIT": "columns"}),
    "decoder.final_layernorm.weight": ("decoder.norm9.weight",
                                       {"SPLIT": "replicated", "PART": "final"}),
}


def renamed(old: str, new: str):
    def change(metadata) -> None:
        entries, places = metadata.state_dict_metadata, metadata.storage_data
        metadata.state_dict_metadata = {
            key.replace(old, new): entry for key, entry in entries.items()}
        metadata.storage_data = {replace(index, fqn=index.fqn.replace(old, new)): place
                                 for index, place in places.items()}

    return change


@pytest.mark.parametrize("module", MODULES)
def test_the_row_in_the_hint_is_enough(module: str, copied, tmp_path: Path) -> None:
    other, known = MODULES[module]
    root, made, rules = copied(SOURCE), tmp_path / "made", tmp_path / "rules.json"
    edit_metadata(renamed(module, other))(root)
    command = ("ckpt-convert", root, made, "--to", "torch", "--tp", 2)
    outcome = run(*command)
    refusal_of(outcome, UNSUPPORTED)
    text = re.search(r'--model-rules for it: ({"part".*?})', outcome.stderr).group(1)
    for placeholder, meaning in known.items():
        assert placeholder in text, text
        text = text.replace(placeholder, meaning)
    rules.write_text(json.dumps({"schema_version": 1, "rules": [json.loads(text)]}))
    succeed(*command, "--model-rules", rules)
    succeed("ckpt-inspect", "verify", made)
