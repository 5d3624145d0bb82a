"""Arguments that the model contradicts.

Whether linear_fc1 is gate and up is read from the matrices, GeGLU as SwiGLU, whatever args say;
counts of layers and experts number the parameters of ranks: nothing is converted by wrong ones.
With SHARDWISE_LONG_TESTS each argument of each set is changed alone, else some of some sets.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from damage import edit_file
from parallel_sets import IS_LONG, check_logical_state, needs_sets
from programs import logical_digest, refuse, run, succeed, verify
from reading import iteration_folder, load

pytestmark = needs_sets
GATED = ("par_lw_muon_llama_torch_tp2dp2", "par_lw_muon_llama_torch_dist_dp1",
         "par_do_adam_llama_dp_reshardable_tp2", "par_do_adam_llama_torch_tp2")
PLAIN = ("par_lw_muon_torch_tp2dp2", "par_do_adam_fully_reshardable_tp2dp2")
GEGLU = {"swiglu": False, "quick_geglu": True}


def with_args(source: Path, tmp_path: Path, **values: object) -> Path:
    """The set, with other arguments in every file that has them."""
    folder = Path(shutil.copytree(source, tmp_path / "set", copy_function=shutil.copyfile))
    for path in files_of_args(folder / "ckpt"):
        edit_file(path, lambda tree: vars(tree["args"]).update(values))
    return folder


def files_of_args(root: Path) -> list[Path]:
    iteration = iteration_folder(root)
    return [*iteration.glob("common.pt"), *iteration.glob("mp_rank_*/model_optim_rng.pt")]


@pytest.mark.parametrize("name", GATED)
def test_quick_geglu_is_gated(name: str, sets: Path, tmp_path: Path) -> None:
    folder = with_args(sets / name, tmp_path, **GEGLU)
    assert verify(folder / "ckpt")[0] == 0
    check_logical_state(folder, tmp_path)


@pytest.mark.parametrize(("name", "values", "problem"), (
    *((name, {"swiglu": False}, "args.swiglu: is not set, but linear_fc1 has two rows for each "
       "column of linear_fc2, as a gated linear unit") for name in GATED),
    *((name, {"swiglu": True}, "args.swiglu: is True, but linear_fc1 has one row for each column "
       "of linear_fc2") for name in PLAIN),
))
def test_args_that_the_matrices_contradict_are_found_and_not_followed(
    name: str, values: dict, problem: str, sets: Path, tmp_path: Path
) -> None:
    folder = with_args(sets / name, tmp_path, **values)
    check_logical_state(folder, tmp_path)
    code, document = verify(folder / "ckpt")
    assert code == 1
    assert problem in [f"{found['key']}: {found['problem']}" for found in document["findings"]]


@pytest.mark.parametrize("values", ({"swiglu": False}, GEGLU), ids=("no flag", "geglu"))
def test_halves_are_cut_apart_where_only_the_matrices_tell(
    values: dict, sets: Path, tmp_path: Path
) -> None:
    whole, cut = (sets / f"par_lw_muon_llama_torch_dist_{sizes}" for sizes in ("dp1", "tp2"))
    folder = with_args(whole, tmp_path, **values)
    made = tmp_path / "made"
    succeed("reshard", folder / "ckpt", made, "--tp", "2")
    assert logical_digest(made) == logical_digest(folder / "ckpt")
    shutil.copytree(whole / "expected", tmp_path / "made_set/expected")
    made.rename(tmp_path / "made_set/ckpt")
    check_logical_state(tmp_path / "made_set", tmp_path)
    assert chunk_shapes(tmp_path / "made_set/ckpt") == chunk_shapes(cut / "ckpt")


@pytest.mark.parametrize(("name", "arg", "stated", "has"), (
    ("par_do_adam_torch_tp2pp2dp2", "num_layers", 8, "6 decoder layers"),
    ("par_lw_muon_tied_torch_pp2vpp2dp2", "num_layers", 8, "7 decoder layers"),
    ("par_lw_muon_moe_torch_ep2tp2dp2", "num_experts", 8, "4 experts"),
))
def test_wrong_numbers_of_layers_and_experts_are_refused(
    name: str, arg: str, stated: int, has: str, sets: Path, tmp_path: Path
) -> None:
    root = with_args(sets / name, tmp_path, **{arg: stated}) / "ckpt"
    problem = f"is {stated}, but the model has {has}"
    made = tmp_path / "made"
    for program, options in (("reshard", ("--tp", "1")), ("reshard", ("--dp", "3")),
                             ("ckpt-convert", ("--to", "torch_dist")),
                             ("ckpt-convert", ("--to", "safetensors"))):
        line = refuse(3, program, root, made, *options)
        assert f"'args.{arg}': {problem}" in line, line
        assert not made.exists()
    assert verify(root)[0] == 1


def chunk_shapes(root: Path) -> set[tuple]:
    """Offsets and sizes of the chunks of linear_fc1, as .metadata has them."""
    from torch.distributed.checkpoint import FileSystemReader
    entries = FileSystemReader(iteration_folder(root)).read_metadata().state_dict_metadata
    return {(key, tuple(chunk.offsets), tuple(chunk.sizes)) for key, entry in entries.items()
            if "linear_fc1.weight" in key for chunk in entry.chunks}


# What is asked of args when a checkpoint is read: by it names, places and cuts are decided.
ASKED = (
    "account_for_embedding_in_pipeline_split", "context_parallel_size", "data_parallel_size",
    "decoder_first_pipeline_num_layers", "expert_model_parallel_size", "ffn_hidden_size",
    "expert_tensor_parallel_size", "group_query_attention", "hidden_size", "moe_grouped_gemm",
    "moe_layer_freq", "mtp_num_layers", "num_attention_heads", "num_experts", "num_layers",
    "num_query_groups", "optimizer", "padded_vocab_size", "pipeline_model_parallel_size", "rank",
    "quick_geglu", "swiglu", "tensor_model_parallel_size", "use_distributed_optimizer",
    "use_tp_pp_dp_mapping", "virtual_pipeline_model_parallel_size", "world_size",
)
# What only args tell: the names of TransformerEngine's layers, which torch_dist has without them;
# that the copy of the embeddings on the last stage is no matrix of its own.
TOLD_BY_ARGS_ALONE = ("transformer_impl", "untie_embeddings_and_output_weights")
SOME = ("par_do_adam_llama_torch_tp2", "par_lw_muon_moe_torch_ep2tp2dp2",
        "par_lw_muon_tied_torch_pp2vpp2dp2", "par_do_adam_dp_reshardable_tp2pp2dp2")


def other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return sorted({value - 1, value + 1, 2 * value} - {-1, value})
    return [2, True] if value is None else []


def tensors_of(root: Path) -> dict | None:
    """Hashes of what is read; None where it is refused."""
    outcome = run("ckpt-inspect", "hash", "--logical", root, "--json")
    if outcome.code != 0:
        return None
    return {tensor["key"]: tensor["sha256"] for tensor in outcome.json()["tensors"]}


def sets_of_args(sets: Path) -> list[Path]:
    if not IS_LONG:
        return [sets / name for name in SOME]
    return [path for path in sorted(sets.glob("par_*")) if tensors_of(path / "ckpt") is not None]


def test_no_argument_alone_changes_what_is_read_unless_verify_says_so(
    sets: Path, tmp_path: Path
) -> None:
    silent = []
    for source in sets_of_args(sets):
        folder = with_args(source, tmp_path / source.name)
        silent += silent_lies(folder / "ckpt")
    assert silent == []


def silent_lies(root: Path) -> list[str]:
    documents = {path: load(path) for path in files_of_args(root)}
    documents = {path: tree for path, tree in documents.items() if "args" in tree}
    told, found = tensors_of(root), []
    names = vars(next(iter(documents.values()))["args"]) if documents else ()
    for name in names if IS_LONG else [name for name in names if name in ASKED]:
        if name in TOLD_BY_ARGS_ALONE:
            continue
        before = {path: getattr(tree["args"], name) for path, tree in documents.items()}
        for value in other_values(next(iter(before.values()))):
            set_arg(documents, name, dict.fromkeys(documents, value))
            read = tensors_of(root)
            if read not in (None, told) and run("ckpt-inspect", "verify", root).code != 1:
                found.append(f"{root.parent.name} {name}: {value}")
        set_arg(documents, name, before)
    return found


def set_arg(documents: dict, name: str, values: dict) -> None:
    for path, tree in documents.items():
        setattr(tree["args"], name, values[path])
        torch.save(tree, path)
