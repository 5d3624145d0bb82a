"""ckpt-convert of a Hugging Face folder to Megatron's formats: names read backwards, args made."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from huggingface_sets import ARGS, engine_names, megatron_model, tensors_of, unpack
from programs import GOLDEN, refuse, run, succeed

MOE = ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss")
USAGE, CORRUPT, UNSUPPORTED = 2, 3, 4
LAYER = "model.layers.1."


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = unpack(tmp_path_factory.mktemp("huggingface"))
    (folder / "local.json").write_text('{"transformer_impl": "local"}')
    return folder


def imported(source: Path, to: Path, form: str, *options: object) -> dict:
    """What a `torch` import holds; nothing of a torch_dist one."""
    succeed("ckpt-convert", source, to, "--to", form, *options)
    assert (to / "latest_checkpointed_iteration.txt").read_text() == "release"
    if form == "torch_dist":
        return {}
    return torch.load(to / "release/mp_rank_00/model_optim_rng.pt", weights_only=False)


def require_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key


def weights(state: dict) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in state["model"].items() if tensor is not None}


def require_round_trip(folder: Path, tmp_path: Path, *sizes: object) -> str:
    """Through torch_dist at one size and another; what the import said."""
    done = succeed("ckpt-convert", folder, tmp_path / "one", "--to", "torch_dist", "--verify")
    succeed("reshard", tmp_path / "one", tmp_path / "many", "--pp", 2, "--dp", 2, *sizes)
    for name in ("one", "many"):
        succeed("ckpt-convert", tmp_path / name, tmp_path / f"{name}_hf", "--to", "huggingface")
        require_same(tensors_of(tmp_path / f"{name}_hf"), tensors_of(folder))
    config = json.loads((folder / "config.json").read_text())
    made = json.loads((tmp_path / "many_hf/config.json").read_text())
    assert made["architectures"] == config["architectures"]
    stated = {key for key, value in config.items() if value is not None and key in made}
    assert {key for key in stated if made[key] != config[key]} <= {
        "bos_token_id", "eos_token_id", "pad_token_id"}  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("family", ARGS)
def test_a_folder_comes_back_from_torch_dist_at_other_sizes(
    sets: Path, family: str, tmp_path: Path
) -> None:
    experts = ["--ep", 2, "--etp", 1] if family in MOE else []
    said = require_round_trip(sets / f"{family}_hf", tmp_path, "--tp", 2, *experts)
    assert f"huggingface ({family}, " in said
    assert "-> torch_dist" in said
    assert run("ckpt-convert", "names", "check", tmp_path / "many", sets / f"{family}_hf",
               "--names", family).code == 0  # fmt: skip
    assert run("ckpt-inspect", "verify", tmp_path / "one").code == 0


@pytest.mark.parametrize("family", ARGS)
def test_the_model_is_megatron_bridges_to_the_bit_and_args_describe_it(
    sets: Path, family: str, tmp_path: Path
) -> None:
    model, folder = megatron_model(sets, family), sets / f"{family}_hf"
    state = imported(folder, tmp_path / "engine", "torch")
    require_same(weights(state), engine_names(model))
    args = vars(state["args"])
    for name, value in ARGS[family].items():
        wanted = list(value) if isinstance(value, tuple) else value
        if name in OF_THE_RUN or wanted in (None, 0, 1, "none", "vanilla", "softmax", [0, 1]):
            continue
        assert args[name] == wanted, name
    assert (args["params_dtype"], state["iteration"]) == (torch.float32, 0)
    assert (state["checkpoint_version"], args["tensor_model_parallel_size"]) == (3.0, 1)
    if family == "gemma3_text":  # of Bridge's own modules
        return
    local = imported(folder, tmp_path / "local", "torch", "--args-from", sets / "local.json")
    require_same(weights(local), model)
    assert list(weights(local)) == list(model), "the order in which Megatron registers them"


OF_THE_RUN = (
    "num_query_groups", "layernorm_epsilon", "make_vocab_size_divisible_by", "padded_vocab_size",
    "rope_scaling_factor", "moe_router_load_balancing_type", "query_pre_attn_scalar",
    "moe_ffn_hidden_size", "window_attn_skip_freq")  # fmt: skip


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_next"])
def test_what_was_exported_comes_back(family: str, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "huggingface/logits.tar.xz") as sets:
        members = [one for one in sets.getmembers() if one.name.startswith(f"./{family}/")]
        sets.extractall(tmp_path, members)
    succeed("ckpt-convert", tmp_path / family / "ckpt", tmp_path / "hf", "--to", "huggingface")
    said = require_round_trip(tmp_path / "hf", tmp_path)
    assert ("norms: rounded where 1 is taken off" in said) == (family == "qwen3_next")


def rewritten(folder: Path, to: Path, tensors: dict[str, torch.Tensor], **fields: object) -> Path:
    """The folder with these tensors, and fields of config.json."""
    to.mkdir()
    config = {**json.loads((folder / "config.json").read_text()), **fields}
    (to / "config.json").write_text(json.dumps(config))
    kept = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(kept, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_a_vocabulary_is_padded_with_zeros_as_megatron_pads_it(sets: Path, tmp_path: Path) -> None:
    own = tensors_of(sets / "llama_hf")
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        own[key] = own[key][:121].bfloat16()
    own = {key: tensor.bfloat16() for key, tensor in own.items()}
    folder = rewritten(sets / "llama_hf", tmp_path / "hf", own, vocab_size=121, dtype="bfloat16")
    state = imported(folder, tmp_path / "torch", "torch")
    for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert state["model"][key].shape == (128, 32)
        assert not state["model"][key][121:].any()
    args = state["args"]
    assert (args.vocab_size, args.padded_vocab_size, args.bf16) == (121, 128, True)
    assert args.params_dtype == torch.bfloat16
    require_round_trip(folder, tmp_path, "--tp", 2)
    (tmp_path / "args.json").write_text('{"make_vocab_size_divisible_by": 50}')
    state = imported(folder, tmp_path / "a", "torch", "--args-from", tmp_path / "args.json")
    assert state["model"]["output_layer.weight"].shape == (150, 32)


def with_further_layer(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """DeepSeek-V3 with a layer of multi-token prediction, and copies as its own files have them."""
    further = {key.replace(LAYER, "model.layers.2."): tensor + 1
               for key, tensor in own.items() if key.startswith(LAYER)}  # fmt: skip
    front = "model.layers.2."
    norms = {f"{front}{name}.weight": torch.randn(32)
             for name in ("enorm", "hnorm", "shared_head.norm")}  # fmt: skip
    copies = {f"{front}embed_tokens.weight": own["model.embed_tokens.weight"].clone(),
              f"{front}shared_head.head.weight": own["lm_head.weight"].clone()}  # fmt: skip
    return {**own, **further, **norms, **copies, f"{front}eh_proj.weight": torch.randn(32, 64)}


def test_further_layers_are_those_that_the_folder_has(sets: Path, tmp_path: Path) -> None:
    family, own = sets / "deepseek_v3_hf", tensors_of(sets / "deepseek_v3_hf")
    more = with_further_layer(own)
    folder = rewritten(family, tmp_path / "hf", more, num_nextn_predict_layers=1)
    (tmp_path / "round").mkdir()
    said = require_round_trip(folder, tmp_path / "round", "--ep", 2)
    assert "model.layers.2.embed_tokens.weight: the same as model.embed_tokens.weight" in said
    more["model.layers.2.shared_head.head.weight"][3, 3] += 1
    folder = rewritten(family, tmp_path / "other", more, num_nextn_predict_layers=1)
    line = refuse(UNSUPPORTED, "ckpt-convert", folder, tmp_path / "x", "--to", "torch_dist")
    assert "'model.layers.2.shared_head.head.weight': differs from lm_head.weight" in line
    folder = rewritten(family, tmp_path / "none", own, num_nextn_predict_layers=1)
    done = succeed("ckpt-convert", folder, tmp_path / "y", "--to", "torch")
    assert "num_nextn_predict_layers: the folder has no layers that predict" in done.stdout


def test_what_megatron_has_once_may_stand_in_the_folder_twice(sets: Path, tmp_path: Path) -> None:
    own = tensors_of(sets / "llama_hf")
    own["lm_head.weight"] = own["model.embed_tokens.weight"].clone()
    own["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    folder = rewritten(sets / "llama_hf", tmp_path / "hf", own, tie_word_embeddings=True)
    done = succeed("ckpt-convert", folder, tmp_path / "a", "--to", "torch", "--verify")
    assert "lm_head.weight: the same as model.embed_tokens.weight" in done.stdout
    assert "inv_freq: angles" in done.stdout
    own["lm_head.weight"][0, 0] += 1
    folder = rewritten(sets / "llama_hf", tmp_path / "other", own, tie_word_embeddings=True)
    line = refuse(UNSUPPORTED, "ckpt-convert", folder, tmp_path / "b", "--to", "torch")
    assert "'lm_head.weight': differs from model.embed_tokens.weight" in line


CHANGES = (
    ({f"{LAYER}self_attn.q_proj.bias": torch.zeros(32)}, "q_proj.bias': has no place"),
    ({f"{LAYER}self_attn.v_proj.weight": None}, "v_proj.weight': is not in the folder"),
    ({f"{LAYER}mlp.up_proj.weight": torch.zeros(60, 32)}, "has the shape [60, 32], by config.json"),
    ({f"{LAYER}self_attn.k_proj.weight": torch.zeros(16, 32).half()}, "is of type float32, but"),
    ({"model.norm.weight": None}, "model.norm.weight': is not in the folder"),
)  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), CHANGES)
def test_a_tensor_too_many_too_few_or_of_another_shape_or_type_is_refused(
    sets: Path, changes: dict, said: str, tmp_path: Path
) -> None:
    tensors = {**tensors_of(sets / "llama_hf"), **changes}
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    folder = rewritten(sets / "llama_hf", tmp_path / "hf", kept)
    assert said in refuse(UNSUPPORTED, "ckpt-convert", folder, tmp_path / "a", "--to", "torch_dist")
    assert not (tmp_path / "a").exists()


OTHER_CONFIGS = (
    ("llama", {"attention_bias": True}, "attention_bias"),
    ("llama", {"hidden_act": "gelu"}, "activation"),
    ("llama", {"architectures": ["XForCausalLM"]}, "architectures"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_parameters"),
    ("llama", {"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight"),
    ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scores"),
    ("deepseek_v3", {"rms_norm_eps": 1e-5}, "epsilon of latent norms"),
    ("gpt_oss", {"layer_types": ["full_attention"] * 2}, "layer_types"),
)


@pytest.mark.parametrize(("family", "fields", "said"), OTHER_CONFIGS)
def test_a_config_that_args_do_not_give_again_is_refused(
    sets: Path, family: str, fields: dict, said: str, tmp_path: Path
) -> None:
    own = sets / f"{family}_hf"
    folder = rewritten(own, tmp_path / "hf", tensors_of(own), **fields)
    line = refuse(UNSUPPORTED, "ckpt-convert", folder, tmp_path / "a", "--to", "torch_dist")
    assert said in line


def test_options_do_what_they_say(sets: Path, tmp_path: Path) -> None:
    folder = sets / "llama_hf"
    (tmp_path / "args.json").write_text('{"num_layers": 4}')
    rows = (
        (["--args-from", tmp_path / "args.json"], UNSUPPORTED, "but config.json makes it 2"),
        (["--rename", "a=b"], USAGE, "--rename"),
        (["--tokenizer-from", folder], USAGE, "--tokenizer-from"),
        (["--names", "gpt2"], UNSUPPORTED, "gpt2"),
        (["--names", "qwen2"], UNSUPPORTED, "k_proj.bias"),
    )
    for options, code, said in rows:
        line = refuse(code, "ckpt-convert", folder, tmp_path / "a", "--to", "torch_dist", *options)
        assert said in line
    own = tensors_of(folder)
    extra = rewritten(folder, tmp_path / "hf", {**own, "visual.own": torch.zeros(3)})
    done = succeed("ckpt-convert", extra, tmp_path / "b", "--to", "torch", "--exclude", "visual.*")
    assert "left out by --include/--exclude: 1 key" in done.stdout
    # A run of which config.json says nothing; at other sizes; in another type.
    (tmp_path / "local.json").write_text('{"transformer_impl": "local", "seed": 7}')
    imported(folder, tmp_path / "like", "torch", "--args-from", tmp_path / "local.json")
    state = imported(folder, tmp_path / "c", "torch", "--args-from", tmp_path / "like",
                     "--dtype", "bfloat16")  # fmt: skip
    bridge = megatron_model(sets, "llama")
    require_same(weights(state), {key: tensor.bfloat16() for key, tensor in bridge.items()})
    assert (state["args"].seed, state["args"].params_dtype) == (7, torch.bfloat16)
    succeed("ckpt-convert", folder, tmp_path / "d", "--to", "torch", "--tp", 2, "--pp", 2)
    assert len(list((tmp_path / "d/release").iterdir())) == 4


def test_a_folder_in_parts_is_one_and_its_own_names_can_be_kept(sets: Path, tmp_path: Path) -> None:
    args = ("--to", "huggingface", "--shard-size", "20K")
    imported(sets / "qwen3_hf", tmp_path / "a", "torch_dist")
    succeed("ckpt-convert", tmp_path / "a", tmp_path / "parts", *args)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    (tmp_path / "round").mkdir()
    require_round_trip(tmp_path / "parts", tmp_path / "round")
    own = tensors_of(sets / "qwen3_hf")
    succeed("ckpt-convert", sets / "qwen3_hf", tmp_path / "plain", "--to", "torch_dist",
            "--names", "none")  # fmt: skip
    succeed("ckpt-convert", tmp_path / "plain", tmp_path / "b.safetensors", "--to", "safetensors")
    (tmp_path / "back").mkdir()
    shutil.move(tmp_path / "b.safetensors", tmp_path / "back")
    require_same(tensors_of(tmp_path / "back"), own)
    succeed("ckpt-convert", sets / "qwen3_hf", tmp_path / "plain.pt")
    require_same(torch.load(tmp_path / "plain.pt"), own)
