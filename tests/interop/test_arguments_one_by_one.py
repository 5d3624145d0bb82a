"""Each argument that decides what a model is made of, changed alone.

Either `verify` names it, or it is listed here as one of which no tensor tells anything, and why.
What is converted by wrong arguments all the same is what is converted by the right ones; only rows
of the vocabulary may come and go, less than a multiple of padding, and what is left out is listed.
With SHARDWISE_LONG_TESTS every value of every argument in every set, else some of each.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from parallel_sets import IS_LONG, needs_sets
from programs import run, succeed, verify
from reading import iteration_folder, load

pytestmark = needs_sets
Args = argparse.Namespace
# With the sizes that they are resharded to.
SETS = {
    "par_lw_muon_torch_tp2dp2": ("--tp", "1"),
    "par_lw_muon_torch_dist_tp2pp2dp2": ("--tp", "1"),
    "par_lw_muon_moe_torch_ep2tp2dp2": ("--tp", "1", "--ep", "1"),
    "par_lw_muon_moef_torch_dist_ep2pp2dp2": ("--pp", "1"),
    "par_lw_muon_llama_torch_dist_tp2": ("--tp", "1"),
    "par_lw_muon_tied_torch_dist_pp2vpp2dp2": ("--pp", "1"),
    "par_lw_muon_vpad_torch_dist_tp2dp2": ("--tp", "1"),
    "par_do_adam_torch_tp2dp2": ("--tp", "1"),
    "par_do_adam_tied_torch_pp2dp2": ("--pp", "1"),
    "par_do_adam_llama_fully_reshardable_tp2dp2": ("--tp", "1"),
    "par_do_adam_dp_reshardable_tp2pp2dp2": ("--tp", "1"),
    "par_do_adam_moe_dp_reshardable_ep2tp2dp2": ("--tp", "1"),
    "par_v012_do_adam_moe_fully_sharded_ep2dp2": ("--ep", "1"),
}
CONVERTED = tuple(SETS) if IS_LONG else tuple(SETS)[4:7]
IS_VOCABULARY = ("word_embeddings.weight", "output_layer.weight")


def always(args: Args, value: object) -> bool:
    return True


def never(args: Args, value: object) -> bool:
    return False


def is_dense(args: Args, value: object) -> bool:
    return args.num_experts is None


def has_all_experts(args: Args, value: object) -> bool:
    return args.num_experts is not None and args.moe_layer_freq == 1


def has_same_experts(args: Args, value: object) -> bool:
    """A list that says of each layer what the number said."""
    return is_dense(args, value) or value == [1] * len(value if isinstance(value, list) else "")


def pads_as_much(args: Args, value: object) -> bool:
    """Less than a multiple is behind so many tokens and a NullTokenizer's own one, or a larger size
    would pad to these rows."""
    rows = args.padded_vocab_size
    tokens = value + (args.tokenizer_type == "NullTokenizer" and value < rows)
    multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    larger = args.make_vocab_size_divisible_by * 2  # two query groups
    return tokens <= rows and (rows - tokens < multiple or -(-tokens // larger) * larger == rows)


@dataclass(frozen=True)
class Argument:
    values: tuple = ()  # none: of numbers others nearby, of flags the other one
    # Where no tensor tells that it is wrong.
    is_undecided: Callable[[Args, object], bool] = never
    is_followed: bool = False  # and names or copies follow from it


ARGUMENTS = {
    "num_layers": Argument(),
    "mtp_num_layers": Argument((1, 3)),
    "hidden_size": Argument(),
    "num_attention_heads": Argument(),
    "num_query_groups": Argument(),
    "group_query_attention": Argument(),
    "kv_channels": Argument(),
    # Of a model of experts alone no layer has an MLP of this width.
    "ffn_hidden_size": Argument(is_undecided=has_all_experts),
    "moe_ffn_hidden_size": Argument(is_undecided=is_dense),
    "moe_shared_expert_intermediate_size": Argument((8, 24), is_undecided=is_dense),
    "moe_shared_expert_gate": Argument(
        is_undecided=lambda args, value: args.moe_shared_expert_intermediate_size is None),
    "num_experts": Argument((None, 2, 3, 8)),
    "moe_layer_freq": Argument((2, [1, 1], [0, 1, 1, 0], [1, 1, 1, 1]),
                               is_undecided=has_same_experts),
    # The local implementation of core 0.19 has experts one by one with either value.
    "moe_grouped_gemm": Argument(is_undecided=always),
    "moe_router_enable_expert_bias": Argument(is_undecided=is_dense),
    "add_bias_linear": Argument(),
    "add_qkv_bias": Argument(is_undecided=lambda args, value: args.add_bias_linear),
    "qk_layernorm": Argument(),
    "qk_l2_norm": Argument(is_undecided=always),  # has no weights
    "multi_latent_attention": Argument(),
    "is_hybrid_model": Argument(),
    "swiglu": Argument(),
    "quick_geglu": Argument(is_undecided=lambda args, value: args.swiglu),
    "squared_relu": Argument(is_undecided=always),  # a function has no weights
    "openai_gelu": Argument(is_undecided=always),
    "normalization": Argument(("LayerNorm", "RMSNorm")),
    "position_embedding_type": Argument(
        ("learned_absolute", "rope", "none"),
        is_undecided=lambda args, value: "learned_absolute" not in (args.position_embedding_type,
                                                                   value)),
    "max_position_embeddings": Argument(
        is_undecided=lambda args, value: args.position_embedding_type != "learned_absolute"),
    # Of a pipeline's last stage in rank files: a copy, or a matrix of its own that is equal.
    "untie_embeddings_and_output_weights": Argument(
        is_undecided=lambda args, value: value and args.pipeline_model_parallel_size > 1,
        is_followed=True),
    # The names of norms, which a store has the other way round; rank files tell.
    "transformer_impl": Argument(
        ("local", "transformer_engine"),
        is_undecided=lambda args, value: args.ckpt_format != "torch", is_followed=True),
    "padded_vocab_size": Argument(),
    "vocab_size": Argument((1, 30, 63, 64, 89, 91, 119, 129, 400), is_undecided=pads_as_much),
    # Rows may have been padded by hand; what it adds or leaves out is behind the tokens.
    "make_vocab_size_divisible_by": Argument(is_undecided=always),
    "softmax_type": Argument(("vanilla", "learnable")),
    "attention_output_gate": Argument(),
    "linear_attention_freq": Argument((2, [0, 1]), is_undecided=always),  # without such a layer
}


def values_of(argument: Argument, value: object) -> list:
    if argument.values:
        return [other for other in argument.values if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return sorted({value - 1, value + 1, 2 * value, 3 * value, value // 2} - {0, value})
    return [2, 8] if value is None else []


class Changed:
    """A set whose args are changed in all files that have them, one at a time."""

    def __init__(self, source: Path, folder: Path):
        self.root = Path(shutil.copytree(source, folder, copy_function=shutil.copyfile))
        iteration = iteration_folder(self.root)
        paths = [*iteration.glob("common.pt"), *iteration.glob("mp_rank_*/model_optim_rng.pt")]
        self.documents = {path: load(path) for path in paths}
        self.documents = {path: tree for path, tree in self.documents.items() if "args" in tree}
        self.args = next(iter(self.documents.values()))["args"]
        self.turn = list(SETS).index(source.parent.name) if source.parent.name in SETS else 0

    def cases(self) -> list[tuple[str, object]]:
        """Every third argument with one of its values, others in each set; or all."""
        found = []
        for number, (name, argument) in enumerate(ARGUMENTS.items()):
            turn = number + self.turn
            if name not in vars(self.args) or (turn % 3 and not IS_LONG):
                continue
            values = values_of(argument, getattr(self.args, name))
            first = turn // 3 % max(len(values), 1)
            found += [(name, value) for value in (values if IS_LONG else values[first:first + 1])]
        return found

    def put(self, name: str, value: object) -> None:
        for path, tree in self.documents.items():
            setattr(tree["args"], name, value)
            torch.save(tree, path)


@pytest.mark.parametrize("name", SETS)
def test_verify_names_each_argument_that_a_tensor_contradicts(
    name: str, sets: Path, tmp_path: Path
) -> None:
    changed = Changed(sets / name / "ckpt", tmp_path / "ckpt")
    silent = []
    for argument, value in changed.cases():
        right = getattr(changed.args, argument)
        is_undecided = ARGUMENTS[argument].is_undecided(changed.args, value)
        changed.put(argument, value)
        code, document = verify(changed.root)
        changed.put(argument, right)
        said = " ".join(f"{found['key']}: {found['problem']}" for found in document["findings"])
        is_named = code == 1 and f"args.{argument}" in said
        if not is_named and not (is_undecided and (code == 0 or ARGUMENTS[argument].is_followed)):
            silent.append(f"{argument} = {value}: exit {code}, {said}")
    assert silent == []
    assert verify(changed.root)[0] == 0


def tensors_of(root: Path) -> dict[str, tuple]:
    document = succeed("ckpt-inspect", "hash", "--logical", root, "--json").json()
    return {tensor["key"]: (tuple(tensor["shape"]), tensor["sha256"])
            for tensor in document["tensors"] if "rng_state" not in tensor["key"]}


def lies_of(report: dict, made: dict[str, tuple], source: dict[str, tuple],
            right: dict[str, tuple]) -> list[str]:
    """Tensors that are other ones than they should be, and what is not said of them."""
    reasons = {item["what"]: item["reason"] for item in report["not_carried"]}
    found = sorted(made.keys() ^ right.keys())
    for key in sorted(made.keys() & right.keys()):
        if made[key] in (right[key], source.get(key)):
            continue
        about = [reason for what, reason in reasons.items() if key.endswith(what)]
        change = source[key][0][0] - made[key][0][0]
        said = [f"{abs(change)} rows of padding", *["the largest value in them is"] * (change > 0)]
        is_listed = len(about) == 1 and all(text in about[0] for text in said)
        is_vocabulary = key.endswith(IS_VOCABULARY) and change < 64
        if not is_vocabulary or not is_listed or report["proven"]["equal_to_source"]:
            found.append(key)
    return found


@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_converted_by_a_wrong_argument_is_right(
    name: str, sets: Path, tmp_path: Path
) -> None:
    changed = Changed(sets / name / "ckpt", tmp_path / "ckpt")
    jobs = (("reshard", SETS[name]), ("ckpt-convert", ("--to", "safetensors")))
    source, right = tensors_of(changed.root), {}
    for program, options in jobs:
        made = tmp_path / f"right_{program}"
        succeed(program, changed.root, made, *options)
        right[program] = tensors_of(made)
    wrong = []
    for argument, value in changed.cases():
        before, about = getattr(changed.args, argument), ARGUMENTS[argument]
        if about.is_followed and about.is_undecided(changed.args, value):
            continue
        changed.put(argument, value)
        for program, options in jobs:
            made = tmp_path / "made"
            outcome = run(program, changed.root, made, *options, "--json")
            if outcome.code == 0:
                lies = lies_of(outcome.json(), tensors_of(made), source, right[program])
                wrong += [f"{program} {argument} = {value}: {lie}" for lie in lies]
            elif outcome.code not in (2, 3, 4):
                wrong.append(f"{program} {argument} = {value}: {outcome}")
            for path in tmp_path.glob("made*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        changed.put(argument, before)
    assert wrong == []


VOCABULARIES = (1, 30, 62, 63)


@pytest.mark.parametrize("words", VOCABULARIES)
@pytest.mark.parametrize("name", ("par_lw_muon_torch_tp2dp2", "par_do_adam_torch_tp2dp2",
                                  "par_lw_muon_llama_torch_dist_tp2"))
def test_a_vocabulary_that_args_get_wrong_drops_no_row(
    name: str, words: int, sets: Path, tmp_path: Path
) -> None:
    changed = Changed(sets / name / "ckpt", tmp_path / "ckpt")
    changed.put("vocab_size", words)
    refused = run("reshard", changed.root, tmp_path / "made", "--tp", "1", "--strict")
    assert refused.code == 3 and "args.vocab_size" in refused.stderr, refused
    assert "--vocab-size" in refused.stderr and not (tmp_path / "made").exists()
    # Nothing of the vocabulary changes.
    succeed("reshard", changed.root, tmp_path / "as_before", "--dp", "1")
    told = succeed("reshard", changed.root, tmp_path / "told", "--tp", "1", "--vocab-size", "120",
                   "--verify", "--json").json()
    assert "args.vocab_size" in {item["what"] for item in told["not_carried"]}
    assert not told["proven"]["equal_to_source"]
    assert verify(tmp_path / "told")[0] == 0
    made, right = tensors_of(tmp_path / "told"), tensors_of(changed.root)
    assert {key: value for key, value in made.items() if key.endswith(IS_VOCABULARY)} == {
        key: value for key, value in right.items() if key.endswith(IS_VOCABULARY)}


def test_rows_of_a_larger_size_are_no_contradiction(sets: Path, tmp_path: Path) -> None:
    """A run that began at TP 2 keeps padded_vocab_size when it goes on at TP 1."""
    changed = Changed(sets / "par_lw_muon_torch_dist_dp1" / "ckpt", tmp_path / "ckpt")
    changed.put("vocab_size", 90)  # 96 rows at TP 1, 128 at TP 2
    assert verify(changed.root)[0] == 0
    changed.put("vocab_size", 60)  # 64 at both
    assert verify(changed.root)[0] == 1


def test_where_padding_is_left_out_not_every_element_is_there(sets: Path, tmp_path: Path) -> None:
    source = sets / "par_lw_muon_vpad_torch_dist_tp2dp2" / "ckpt"
    text = succeed("reshard", source, tmp_path / "made", "--tp", "1", "--verify").text
    assert "32 rows of padding" in text and "the largest value in them is" in text
    assert "element counts match but for the rows left out" in text
    assert "equal to the source" not in text
