"""ckpt-convert --to huggingface: models of both forms, from every kind of Megatron folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from huggingface_sets import (
    ARGS,
    engine_names,
    megatron_model,
    tensors_of,
    unpack,
    write_checkpoint,
)
from name_tables import exported, read_table
from programs import refuse, run, succeed

MOE = ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY_hf, FAMILY_megatron.pt, FAMILY_ckpt, and FAMILY_te: with TransformerEngine's names."""
    folder = unpack(tmp_path_factory.mktemp("huggingface"))
    for family, args in ARGS.items():
        model = megatron_model(folder, family)
        write_checkpoint(folder / f"{family}_ckpt", model, args)
        write_checkpoint(folder / f"{family}_te", engine_names(model), args, "transformer_engine")
    return folder


def export(source: Path, destination: Path, *options: object) -> dict[str, torch.Tensor]:
    done = run("ckpt-convert", source, destination, "--to", "huggingface", "--verify", *options)
    assert done.code == 0, done
    return tensors_of(destination)


def require_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("family", ARGS)
def test_every_tensor_is_the_original_s_to_the_bit(sets: Path, family: str, tmp_path: Path) -> None:
    own = tensors_of(sets / f"{family}_hf")
    names = ["--names", family] if family == "mistral" else []  # without a window: a llama, too
    require_same(export(sets / f"{family}_ckpt", tmp_path / "local", *names), own)
    names += ["--shard-size", "20K"]
    require_same(export(sets / f"{family}_te", tmp_path / "engine", *names), own)
    index = json.loads((tmp_path / "engine/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == own.keys()


@pytest.mark.parametrize("family", ARGS)
def test_parallel_sizes_do_not_matter(sets: Path, family: str, tmp_path: Path) -> None:
    names = ["--names", family] if family == "mistral" else []
    sizes = ["--pp", "2", "--dp", "2", *(["--ep", "2"] if family in MOE else [])]
    tensor = ["--tp", "2", *(["--etp", "1"] if family in MOE else [])]
    of_ranks = sizes if family == "gpt_oss" else ["--tp", "2", *sizes]  # biases forbid ETP 2
    for name, to in (("ranks", ["torch", *of_ranks]), ("store", ["torch_dist", *tensor, *sizes])):
        made = run("ckpt-convert", sets / f"{family}_te", tmp_path / name, "--to", *to)
        assert made.code == 0, made
    export(sets / f"{family}_te", tmp_path / "one", *names)
    for source in ("ranks", "store"):
        export(tmp_path / source, tmp_path / f"{source}_hf", *names)
        for file in sorted((tmp_path / "one").iterdir()):
            assert (tmp_path / f"{source}_hf" / file.name).read_bytes() == file.read_bytes(), file


@pytest.mark.parametrize("weights", ["model", "master"])
def test_a_training_state_has_the_logits_of_megatron_core(
    generated: Path, weights: str, tmp_path: Path
) -> None:
    """Llama with tied embeddings, under a LayerWise optimizer; its weights are rounded masters."""
    for source in ("torch_dp2", "torch_dist_dp4"):
        export(generated / f"gpt5l_modern_{source}", tmp_path / source, "--weights", weights)
    config = json.loads((tmp_path / "torch_dp2/config.json").read_text())
    assert config["dtype"] == ("float32" if weights == "master" else "bfloat16")
    require_same(*(tensors_of(tmp_path / one) for one in ("torch_dp2", "torch_dist_dp4")))
    if weights == "master":
        return
    command = [sys.executable, Path(__file__).with_name("megatron_logits.py"), "gpt5l_modern"]
    done = subprocess.run(
        [*command, tmp_path / "torch_dp2"], capture_output=True, text=True, check=True, timeout=60
    )
    difference, largest = map(float, done.stdout.split())
    assert difference < 1e-5 * largest


@pytest.mark.parametrize("family", ARGS)
def test_transformers_opens_it_and_has_the_same_logits(
    sets: Path, family: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    names = ["--names", family] if family == "mistral" else []
    export(sets / f"{family}_ckpt", tmp_path / "hf", *names)
    ids = torch.arange(1, 33).view(1, -1) * 5 % 128
    logits = []
    for folder in (tmp_path / "hf", sets / f"{family}_hf"):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
        )
        assert not any(report.values()), report
        with torch.no_grad():
            logits.append(model.eval()(ids).logits)
    assert torch.equal(*logits)


def without_latent_queries(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    kept = {key: tensor for key, tensor in model.items() if ".linear_q_" not in key}
    for layer in range(2):
        attention = f"decoder.layers.{layer}.self_attention"
        del kept[f"{attention}.q_layernorm.weight"]
        kept[f"{attention}.linear_q_proj.weight"] = torch.randn(48, 32)
    return kept


def with_dense_first_layer(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first = "decoder.layers.0.mlp."
    dense = {f"{first}linear_fc1.weight": (128, 32), f"{first}linear_fc2.weight": (32, 64)}
    kept = {key: tensor for key, tensor in model.items() if not key.startswith(first)}
    return {**kept, **{key: torch.randn(shape) for key, shape in dense.items()}}


def without_output(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in model.items() if key != "output_layer.weight"}


# Models beside those of the sets: family, other arguments, change of the tensors, fields of config.
VARIANTS = (
    ("llama", {"untie_embeddings_and_output_weights": False}, without_output,
     {"tie_word_embeddings": True}),
    ("llama", {"use_rope_scaling": True}, dict, {"model_type": "llama"}),
    ("mistral", {"window_size": (7, 0)}, dict, {"model_type": "mistral", "sliding_window": 8}),
    ("mixtral", {"window_size": (7, 0)}, dict, {"sliding_window": 8}),
    ("qwen3_moe", {"moe_layer_freq": [0, 1]}, with_dense_first_layer, {"mlp_only_layers": [0]}),
    ("qwen3_moe", {"moe_router_pre_softmax": True}, dict, {"norm_topk_prob": False}),
    ("deepseek_v3", {"q_lora_rank": None}, without_latent_queries, {"q_lora_rank": None}),
    ("deepseek_v3", {"moe_router_num_groups": 2, "moe_router_topk": 4, "moe_router_group_topk": 2},
     dict, {"n_group": 2, "topk_group": 2}),
    ("deepseek_v3", {"rope_type": "yarn", "rotary_scaling_factor": 4.0}, dict, {}),
    ("gpt_oss", {"window_attn_skip_freq": [1, 1]}, dict,
     {"layer_types": ["sliding_attention"] * 2}),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_transformers_opens_variants_without_a_missing_or_unexpected_key(
    sets: Path, number: int, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    family, changes, change, fields = VARIANTS[number]
    args, model = {**ARGS[family], **changes}, change(megatron_model(sets, family))
    made = export(write_checkpoint(tmp_path / "ckpt", model, args), tmp_path / "hf")
    require_same(made, exported(read_table(family), args, model))
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert {key: config[key] for key in fields} == fields
    opened, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values()), report
    with torch.no_grad():
        assert opened(torch.arange(1, 33).view(1, -1)).logits.isfinite().all()


# What Megatron computes and the architecture does not: argument, value, the condition that says so.
UNFIT = (
    ("llama", "normalization", "LayerNorm", "norm"),
    ("llama", "swiglu", False, "activation"),
    ("llama", "squared_relu", True, "activation"),
    ("llama", "activation_func_clamp_value", 7.0, "clamped activation"),
    ("llama", "add_bias_linear", True, "bias"),
    ("llama", "rotary_percent", 0.5, "rope"),
    ("llama", "rotary_interleaved", True, "rope"),
    ("llama", "position_embedding_type", "learned_absolute", "position"),
    ("llama", "rotary_seq_len_interpolation_factor", 4, "rope interpolation"),
    ("llama", "seq_len_interpolation_factor", 2.0, "rope interpolation"),
    ("qwen3", "rope_scaling", True, "rope scaling"),
    ("qwen2", "use_rope_scaling", True, "rope scaling"),
    ("llama", "qk_l2_norm", True, "qk l2 norm"),
    ("llama", "softmax_type", "off-by-one", "attention sinks"),
    ("llama", "use_mup", True, "attention scale"),
    ("mixtral", "moe_router_pre_softmax", True, "softmax"),
    ("mixtral", "moe_router_score_function", "sigmoid", "scores"),
    ("mixtral", "moe_router_load_balancing_type", "sinkhorn", "routing"),
    ("mixtral", "moe_router_load_balancing_type", ["aux_loss", "quantile"], "routing"),
    ("qwen3_moe", "moe_router_topk_scaling_factor", 2.0, "scale of scores"),
    ("qwen3_moe", "moe_expert_capacity_factor", 1.0, "dropped tokens"),
    ("deepseek_v3", "moe_router_group_topk", 4, "groups of experts"),
    ("deepseek_v3", "moe_shared_expert_gate", True, "shared experts"),
    ("deepseek_v3", "moe_layer_freq", [1, 0], "dense layers"),
    ("qwen3_moe", "mtp_num_layers", 1, "prediction of several tokens"),
    ("deepseek_v3", "norm_epsilon", 1e-5, "epsilon of latent norms"),
    ("gpt_oss", "glu_linear_offset", 0.0, "clamped activation"),
    ("gpt_oss", "window_size", None, "window"),
    ("gpt_oss", "mscale", 0.5, "scale of rope"),
    ("gemma3_text", "query_pre_attn_scalar", None, "attention scale"),
    ("gemma3_text", "rotary_base_local", None, "bases of rope"),
    ("gemma3_text", "layernorm_zero_centered_gamma", False, "norm"),
    ("gemma3_text", "openai_gelu", False, "activation"),
)


@pytest.mark.parametrize(("family", "argument", "value", "condition"), UNFIT)
def test_what_the_architecture_does_not_compute_is_refused(  # noqa: PLR0913
    sets: Path, family: str, argument: str, value: object, condition: str, tmp_path: Path
) -> None:
    args = {**ARGS[family], argument: value}
    if argument == "moe_router_group_topk":
        args["moe_router_num_groups"] = 4
    if argument == "mtp_num_layers":  # its layer is missing, too
        args["mtp_num_layers"] = None
        (tmp_path / "args.json").write_text('{"mtp_num_layers": 1}')
    more = ["--args-from", tmp_path / "args.json"] if (tmp_path / "args.json").exists() else []
    model = megatron_model(sets, family)
    if argument == "moe_layer_freq":  # the model has its dense layer there, too
        model = {re.sub(r"(?<=layers\.)[01]", lambda n: str(1 - int(n[0])), k): v
                 for k, v in model.items()}  # fmt: skip
    source = write_checkpoint(tmp_path / "ckpt", model, args)
    for names in ("auto", family):
        done = run("ckpt-convert", source, tmp_path / "hf", "--to", "huggingface",
                   "--names", names, *more)  # fmt: skip
        assert done.code == 4, done
        assert not (tmp_path / "hf").exists()
        shown = f"{family} ({condition})" if names == "auto" else f"{family}, {condition}:"
        assert shown in done.stderr, done


def refused(source: Path, tmp_path: Path, *options: object) -> tuple[int, str]:
    done = run("ckpt-convert", source, tmp_path / "hf", "--to", "huggingface", *options)
    assert not (tmp_path / "hf").exists(), done
    return done.code, done.stderr


def test_a_tensor_too_many_too_few_or_of_another_shape_is_refused_by_its_key(
    sets: Path, tmp_path: Path
) -> None:
    layer = "decoder.layers.1.self_attention"
    changes = {
        f"{layer}.linear_proj.bias": torch.zeros(32),
        f"{layer}.linear_proj.weight": None,
        f"{layer}.linear_qkv.weight": torch.zeros(64, 16),
        "decoder.final_layernorm.weight": torch.ones(16),
    }
    for number, (key, tensor) in enumerate(changes.items()):
        model = {**megatron_model(sets, "llama"), key: tensor}
        model = {name: kept for name, kept in model.items() if kept is not None}
        source = write_checkpoint(tmp_path / str(number), model, ARGS["llama"])
        code, text = refused(source, tmp_path)
        assert code == 4, text
        assert f"'{key}'" in text, text


def test_weights_of_eight_bits_are_refused_and_lists_of_balancing_are_read(
    sets: Path, tmp_path: Path
) -> None:
    model = {k: v.to(torch.float8_e4m3fn) for k, v in megatron_model(sets, "llama").items()}
    source = write_checkpoint(tmp_path / "fp8", model, ARGS["llama"])
    code, text = refused(source, tmp_path)
    assert code == 4, text
    assert "float8_e4m3fn" in text, text
    args = {**ARGS["mixtral"], "moe_router_load_balancing_type": ["seq_aux_loss"]}
    source = write_checkpoint(tmp_path / "list", megatron_model(sets, "mixtral"), args)
    require_same(export(source, tmp_path / "mixtral"), tensors_of(sets / "mixtral_hf"))


def test_rows_that_are_cut_are_told_and_vocab_size_says_how_many(
    sets: Path, tmp_path: Path
) -> None:
    args = {**ARGS["llama"], "vocab_size": 120, "make_vocab_size_divisible_by": 128,
            "tokenizer_type": "NullTokenizer"}  # fmt: skip
    source = write_checkpoint(tmp_path / "ckpt", megatron_model(sets, "llama"), args)
    told = ("7 rows of padding behind the vocabulary are cut: 128 -> 121 rows (vocabulary 120, "
            "and NullTokenizer's end token)")
    convert = ("ckpt-convert", source, tmp_path / "cut", "--to", "huggingface")
    for options in (("--dry-run",), ()):
        document = succeed(*convert, "--json", *options, "--force").json()
        changed = {each["what"]: each["reason"] for each in document["not_carried"]
                   if each["changed"]}
        assert changed == {"embedding.word_embeddings.weight": told, "output_layer.weight": told}
    text = succeed(*convert, "--force", "-q").stdout
    assert told.replace(" ", "") in "".join(text.split()), text
    compared = succeed("ckpt-inspect", "diff", source, tmp_path / "cut")
    assert f"output_layer.weight: {told}" in compared.stderr, compared

    given = export(source, tmp_path / "given", "--vocab-size", "124")
    assert given["lm_head.weight"].shape[0] == 124
    for size in ("119", "129"):
        refuse({2, 4}, *convert[:2], tmp_path / "none", *convert[3:], "--vocab-size", size)


def test_padding_is_cut_and_options_do_what_they_say(sets: Path, tmp_path: Path) -> None:
    own = tensors_of(sets / "llama_hf")
    args = {**ARGS["llama"], "vocab_size": 121, "make_vocab_size_divisible_by": 128}
    source = write_checkpoint(tmp_path / "ckpt", megatron_model(sets, "llama"), args)
    cut = export(source, tmp_path / "cut", "--weights", "master")  # it has none
    assert json.loads((tmp_path / "cut/config.json").read_text())["vocab_size"] == 121
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        own[key] = own[key][:121].clone()
    require_same(cut, own)

    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "config.json").write_text('{"eos_token_id": [7, 8], "hidden_size": 1}')
    (tokenizer / "private.txt").write_text("not copied")
    export(source, tmp_path / "with", "--tokenizer-from", tokenizer)
    config = json.loads((tmp_path / "with/config.json").read_text())
    assert (config["eos_token_id"], config["bos_token_id"]) == ([7, 8], None)
    assert config["hidden_size"] == 32
    generation = json.loads((tmp_path / "with/generation_config.json").read_text())
    assert generation["eos_token_id"] == [7, 8]
    assert sorted(file.name for file in (tmp_path / "with").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]  # fmt: skip

    table = {
        "schema_version": 1,
        "base": "llama",
        "architecture": "OwnForCausalLM",
        "model_type": "own",
        "config": {"mlp_bias": None, "rope_theta": "rotary_base * 2"},
        "tensors": {"model.norm.weight": None, "norm.weight": {
            "from": "decoder.final_layernorm.weight", "view": "hidden"}},
    }  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps(table))
    made = export(source, tmp_path / "own", "--names", tmp_path / "own.json")
    assert torch.equal(made["norm.weight"], own["model.norm.weight"])
    config = json.loads((tmp_path / "own/config.json").read_text())
    assert config["rope_theta"] == 20000
    assert "mlp_bias" not in config


def test_options_that_cannot_be_followed_are_refused(sets: Path, tmp_path: Path) -> None:
    source = sets / "llama_ckpt"
    (tmp_path / "args.json").write_text('{"rotary_base": 500000}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "table.json").write_text('{"schema_version": 1, "tensor": {}}')
    (tmp_path / "empty").mkdir()
    rows = (
        (["--names", "gpt2"], 4, "deepseek_v3, gemma3_text, glm4_moe, gpt_oss, llama, mistral"),
        (["--names", tmp_path / "table.json"], 3, "'tensor': is not a field that is known"),
        (["--names", tmp_path / "none.json"], 5, "none.json"),
        (["--args-from", tmp_path / "args.json"], 4, "is 500000, but args say 10000"),
        (["--args-from", tmp_path / "list.json"], 3, "list.json: is not a JSON object"),
        (["--tokenizer-from", tmp_path / "empty"], 5, "tokenizer"),
        (["--include", "decoder.*"], 2, "--include"),
        (["--tp", "2"], 2, "parallel sizes"),
        (["--shard-size", "x"], 2, "--shard-size"),
    )
    for options, wanted, part in rows:
        code, text = refused(source, tmp_path, *options)
        assert code == wanted, text
        assert part in text, text
    plain = sets / "llama_megatron.pt"
    assert refused(plain, tmp_path)[0] == 4
    done = run("ckpt-convert", source, tmp_path / "x", "--to", "torch", "--names", "llama")
    assert done.code == 2, done


@pytest.mark.parametrize("family", ARGS)
def test_names_check_says_whether_a_table_explains_a_pair(
    sets: Path, family: str, tmp_path: Path
) -> None:
    pair = (sets / f"{family}_te", sets / f"{family}_hf", "--names", family)
    own = tensors_of(sets / f"{family}_hf")
    done = run("ckpt-convert", "names", "check", *pair, "--json")
    assert done.code == 0, done
    assert (done.json()["equal"], done.json()["differences"]) == (len(own), [])

    changed = {**own, "model.own": torch.zeros(1)}
    changed["model.norm.weight"] = own["model.norm.weight"] + 1
    projection = "model.layers.0.self_attn.o_proj.weight"
    changed[projection] = own[projection].bfloat16()
    changed["model.embed_tokens.weight"] = own["model.embed_tokens.weight"][:8].clone()
    del changed["model.layers.0.input_layernorm.weight"]
    save_file(changed, tmp_path / "model.safetensors")
    done = run("ckpt-convert", "names", "check", pair[0], tmp_path, *pair[2:])
    assert done.code == 1, done
    *lines, last = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        projection,
        "model.norm.weight",
        "model.own",
    ]
    assert last.startswith(f"equal: {len(own) - 4} tensors, different: 5")
