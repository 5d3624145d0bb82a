"""ckpt-convert names learn: a table of names out of one model in both forms, by content."""

from __future__ import annotations

import json
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
from programs import Outcome, refuse, run, succeed
from test_huggingface_import import with_further_layer

USAGE, UNSUPPORTED, EXISTS = 2, 4, 5
LAYER = "decoder.layers.{}."


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("learned"))


def learn(checkpoint: Path, folder: Path, table: Path) -> Outcome:
    return run("ckpt-convert", "names", "learn", checkpoint, folder, "-o", table, "--json")


def learned(checkpoint: Path, folder: Path, table: Path) -> dict:
    """What was learned of a pair that is explained whole."""
    done = learn(checkpoint, folder, table)
    assert done.code == 0, done
    found = done.json()
    assert (found["whole"], found["not_explained"]) == (True, [])
    assert found["equal"] == len(tensors_of(folder))
    return found


def folder_of(to: Path, tensors: dict[str, torch.Tensor], config: dict) -> Path:
    to.mkdir()
    (to / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()},
              to / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    return to


def config_of(sets: Path, family: str) -> dict:
    return json.loads((sets / f"{family}_hf/config.json").read_text())


def other_weights(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {key: torch.randn(tensor.shape, generator=generator) for key, tensor in model.items()}


@pytest.mark.parametrize("family", ARGS)
def test_a_family_is_learned_whole_and_holds_for_other_weights_either_way(
    sets: Path, family: str, tmp_path: Path
) -> None:
    model, args = megatron_model(sets, family), ARGS[family]
    for form, names in (("local", model), ("transformer_engine", engine_names(model))):
        if (form == "local") == any("linear_qkv.layer_norm" in key for key in names):
            continue  # Gemma 3: of Bridge's own modules alone
        table = tmp_path / f"{form}.json"
        first = write_checkpoint(tmp_path / form, names, args, form)
        found = learned(first, sets / f"{family}_hf", table)
        assert (found["not_by_content"], found["ties"], found["left_out"]) == ([], [], [])
        later = write_checkpoint(tmp_path / f"{form}_later", other_weights(names), args, form)
        made = {}
        for name in (family, table):
            made[name] = tmp_path / f"{form}_{len(made)}"
            succeed("ckpt-convert", later, made[name], "--to", "huggingface", "--names", name)
        ours, built_in = made[table], made[family]
        weights = [folder / "model.safetensors" for folder in (ours, built_in)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        back = tmp_path / f"{form}_back"
        succeed("ckpt-convert", ours, back, "--to", "torch", "--names", table)
        state = torch.load(back / "release/mp_rank_00/model_optim_rng.pt", weights_only=False)
        wanted = other_weights(names)
        assert {key for key, tensor in state["model"].items() if tensor is not None} == set(wanted)
        assert all(torch.equal(state["model"][key], wanted[key]) for key in wanted)


def test_torch_dist_of_several_ranks_is_a_side_as_well(sets: Path, tmp_path: Path) -> None:
    folder = sets / "deepseek_v3_hf"
    succeed("ckpt-convert", folder, tmp_path / "one", "--to", "torch_dist", "--tp", 2, "--ep", 2,
            "--etp", 1)  # fmt: skip
    assert not learned(tmp_path / "one", folder, tmp_path / "a.json")["not_by_content"]
    succeed("ckpt-convert", tmp_path / "one", tmp_path / "out", "--to", "huggingface",
            "--names", tmp_path / "a.json")  # fmt: skip
    found, own = tensors_of(tmp_path / "out"), tensors_of(folder)
    assert all(torch.equal(found[key], own[key]) for key in own)


def test_layers_that_predict_further_tokens_stand_in_the_same_rows(
    sets: Path, tmp_path: Path
) -> None:
    more = with_further_layer(tensors_of(sets / "deepseek_v3_hf"))
    config = {**config_of(sets, "deepseek_v3"), "num_nextn_predict_layers": 1}
    folder = folder_of(tmp_path / "hf", more, config)
    succeed("ckpt-convert", folder, tmp_path / "first", "--to", "torch")
    table = tmp_path / "a.json"
    found = learned(tmp_path / "first", folder, table)
    assert found["not_by_content"] == []
    names = json.loads(table.read_text())["further_layers"]["names"]
    assert names == {"decoder.layers.{layer}.": ["mtp.layers.{mtp}.mtp_model_layer."]}
    assert "model.embed_tokens.weight, model.layers.{layer}.embed_tokens.weight" in (
        texts(found["ties"]))  # fmt: skip
    succeed("ckpt-convert", tmp_path / "first", tmp_path / "out", "--to", "huggingface",
            "--names", table)  # fmt: skip
    made = tensors_of(tmp_path / "out")
    assert made.keys() == more.keys()
    assert all(torch.equal(made[key], more[key]) for key in more)


def test_rows_that_hold_the_same_are_counted(sets: Path, tmp_path: Path) -> None:
    model, own = megatron_model(sets, "llama"), tensors_of(sets / "llama_hf")
    model["embedding.word_embeddings.weight"][100:] = 0
    own["model.embed_tokens.weight"] = model["embedding.word_embeddings.weight"].T
    first = write_checkpoint(tmp_path / "first", model, ARGS["llama"])
    folder = folder_of(tmp_path / "hf", own, config_of(sets, "llama"))
    found = texts(learned(first, folder, tmp_path / "a.json")["not_by_content"])
    assert list(found) == ["model.embed_tokens.weight"]
    assert "28 of its rows or columns hold what others hold" in found["model.embed_tokens.weight"]


def strange(model: dict[str, torch.Tensor], args: dict) -> dict[str, torch.Tensor]:
    """A qwen3_moe as nobody has it: heads dealt anew, joined, transposed, stacked, padded."""
    groups, head = args["num_query_groups"], args["kv_channels"]
    made = {"wte": model["embedding.word_embeddings.weight"][:121],
            "end.scale": model["decoder.final_layernorm.weight"] - 1,
            "logits.w": model["output_layer.weight"][:121]}  # fmt: skip
    for number in range(2):
        front, to = LAYER.format(number), f"blocks.{number}."
        qkv = model[front + "self_attention.linear_qkv.weight"].view(groups, -1, head, 32)
        made[to + "attn.kqv"] = torch.cat(
            [qkv[:, -2], qkv[:, :-2].transpose(0, 1).flatten(0, 1), qkv[:, -1]]).reshape(-1, 32)
        made[to + "attn.out"] = model[front + "self_attention.linear_proj.weight"].T
        made[to + "n1"] = model[front + "input_layernorm.weight"] - 1
        made[to + "n2"] = model[front + "pre_mlp_layernorm.weight"] + 1
        for one in "qk":
            made[to + f"attn.{one}n"] = model[front + f"self_attention.{one}_layernorm.weight"]
        made[to + "route"] = model[front + "mlp.router.weight"].T
        up, down = ([model[f"{front}mlp.experts.local_experts.{e}.linear_fc{n}.weight"]
                     for e in range(4)] for n in (1, 2))  # fmt: skip
        made[to + "moe.up"] = torch.stack([u[:16] for u in up])
        made[to + "moe.gate"] = torch.cat([u[16:] for u in up])
        for expert in range(4):
            made[to + f"moe.{expert}.down"] = down[expert].T
    return made


def test_a_model_that_no_table_knows_is_learned(sets: Path, tmp_path: Path) -> None:
    args = {**ARGS["qwen3_moe"], "vocab_size": 121, "make_vocab_size_divisible_by": 128}
    config = {"architectures": ["StrangeForCausalLM"], "model_type": "strange", "vocab_size": 121,
              "eps": 1e-6, "bound": -3, "names": ["a", None], "rope": {"base": 1e6}}  # fmt: skip
    model = megatron_model(sets, "qwen3_moe")
    first = write_checkpoint(tmp_path / "first", model, args)
    # Of a difference of halves the sum is not exact in float32, and then not explained.
    for key in model:
        if "norm" in key:
            model[key] = (model[key] * 64).round() / 64
    first = write_checkpoint(tmp_path / "exact", model, args)
    folder = folder_of(tmp_path / "hf", strange(model, args), config)
    found = learned(first, folder, tmp_path / "a.json")
    assert (found["rows"], found["not_by_content"]) == (13, [])
    later = other_weights(model)
    for key in later:
        if "norm" in key:
            later[key] = later[key].round()
    second = write_checkpoint(tmp_path / "second", later, args)
    succeed("ckpt-convert", second, tmp_path / "out", "--to", "huggingface", "--names",
            tmp_path / "a.json")  # fmt: skip
    made, wanted = tensors_of(tmp_path / "out"), strange(later, args)
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[key], wanted[key]) for key in wanted)
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert {key: written[key] for key in config} == config
    # Another model of the family is refused by the argument that differs.
    hot = write_checkpoint(tmp_path / "hot", later, {**args, "rotary_base": 500})
    line = refuse(UNSUPPORTED, "ckpt-convert", hot, tmp_path / "x", "--to", "huggingface",
                  "--names", tmp_path / "a.json")  # fmt: skip
    assert "rotary_base == 10000, found rotary_base = 500" in line


def texts(notes: list[dict]) -> dict[str, str]:
    return {note["key"]: note["problem"] for note in notes}


def test_constant_tensors_are_named_and_never_guessed(sets: Path, tmp_path: Path) -> None:
    model = megatron_model(sets, "qwen2")
    own = tensors_of(sets / "qwen2_hf")
    for side in (model, own):
        for key in side:
            if "norm" in key:
                side[key] = torch.ones_like(side[key])
            if "bias" in key:
                side[key] = torch.zeros_like(side[key])
    config = config_of(sets, "qwen2")
    folder = folder_of(tmp_path / "hf", own, config)
    first = write_checkpoint(tmp_path / "first", model, ARGS["qwen2"])
    said = texts(learned(first, folder, tmp_path / "a.json")["not_by_content"])
    layer = "model.layers.{layer}."
    assert {key: text.rsplit(": ", 1)[1] for key, text in said.items()} == {
        "model.norm.weight": "one value alone, the only one left of its shape",
        layer + "input_layernorm.weight": "one value alone, taken by its name",
        layer + "post_attention_layernorm.weight": "one value alone, taken by its name",
        **{layer + f"self_attn.{one}_proj.bias": "one value alone, taken by the rows of its weight"
           for one in "qkv"}}  # fmt: skip
    later = other_weights(model)
    made = []
    for name in ("qwen2", tmp_path / "a.json"):
        made.append(tmp_path / f"out{len(made)}")
        second = tmp_path / "second"
        if not second.exists():
            write_checkpoint(second, later, ARGS["qwen2"])
        succeed("ckpt-convert", second, made[-1], "--to", "huggingface", "--names", name)
    ours, built_in = ((folder / "model.safetensors").read_bytes() for folder in made)
    assert ours == built_in
    # Where names do not tell, both sides are named and neither is taken.
    renamed = {key.replace("input_layernorm", "a").replace("post_attention_layernorm", "b"): tensor
               for key, tensor in own.items()}  # fmt: skip
    done = learn(first, folder_of(tmp_path / "other", renamed, config), tmp_path / "b.json")
    assert done.code == 1, done
    problems = texts(done.json()["not_explained"])
    assert set(problems) == {f"{front}{name}" for number in "01" for front, name in (
        (f"model.layers.{number}.", "a.weight"), (f"model.layers.{number}.", "b.weight"),
        (LAYER.format(number), "input_layernorm.weight"),
        (LAYER.format(number), "pre_mlp_layernorm.weight"))}  # fmt: skip
    assert "content cannot tell" in problems["model.layers.0.a.weight"]
    assert "pre_mlp_layernorm" in problems["model.layers.0.a.weight"]


def test_equal_tensors_are_named_and_told_apart_by_numbers_alone(
    sets: Path, tmp_path: Path
) -> None:
    model, own = megatron_model(sets, "qwen3_moe"), tensors_of(sets / "qwen3_moe_hf")
    for side, front in ((model, "local_experts."), (own, "mlp.experts.")):
        for key in side:  # experts that all began as one
            for number in "123":
                if f"{front}{number}." in key:
                    side[key] = side[key.replace(f"{front}{number}.", f"{front}0.")].clone()
    first = write_checkpoint(tmp_path / "first", model, ARGS["qwen3_moe"])
    folder = folder_of(tmp_path / "hf", own, config_of(sets, "qwen3_moe"))
    found = learned(first, folder, tmp_path / "a.json")
    experts = "model.layers.{layer}.mlp.experts.{expert}."
    assert set(texts(found["not_by_content"])) == {
        experts + f"{one}_proj.weight" for one in ("gate", "up", "down")}  # fmt: skip
    assert any(experts + "up_proj.weight" in key for key in texts(found["ties"]))
    # Embeddings that are tied in values alone.
    model["output_layer.weight"] = model["embedding.word_embeddings.weight"].clone()
    own["lm_head.weight"] = own["model.embed_tokens.weight"].clone()
    first = write_checkpoint(tmp_path / "tied", model, ARGS["qwen3_moe"])
    folder = folder_of(tmp_path / "tied_hf", own, config_of(sets, "qwen3_moe"))
    done = learn(first, folder, tmp_path / "b.json")
    assert done.code == 1, done
    problems = texts(done.json()["not_explained"])
    assert set(problems) == {"lm_head.weight", "model.embed_tokens.weight", "output_layer.weight",
                             "embedding.word_embeddings.weight"}  # fmt: skip
    both = "embedding.word_embeddings.weight, output_layer.weight"
    assert f"of several tensors, which are equal: {both}" in problems["lm_head.weight"]
    assert both in texts(done.json()["ties"])


def test_pairs_that_do_not_belong_together_are_refused(sets: Path, tmp_path: Path) -> None:
    model = megatron_model(sets, "llama")
    for number, (weights, folder) in enumerate((
        (other_weights(model), "llama_hf"), (model, "gpt_oss_hf"))):  # fmt: skip
        first = write_checkpoint(tmp_path / str(number), weights, ARGS["llama"])
        line = refuse(UNSUPPORTED, "ckpt-convert", "names", "learn", first, sets / folder, "-o",
                      tmp_path / "a.json")  # fmt: skip
        assert "is not the checkpoint's model: 0 of " in line
        assert not (tmp_path / "a.json").exists()


def test_what_differs_is_missing_or_too_much_is_named(sets: Path, tmp_path: Path) -> None:
    model, config = megatron_model(sets, "llama"), config_of(sets, "llama")
    first = write_checkpoint(tmp_path / "first", model, ARGS["llama"])
    layer = "model.layers.1."
    own = tensors_of(sets / "llama_hf")
    own[layer + "self_attn.o_proj.weight"][3, 4] += 1
    own[layer + "mlp.up_proj.weight"] = own[layer + "mlp.up_proj.weight"][torch.arange(63, -1, -1)]
    own["model.own"] = torch.randn(3, 5)
    own["steps"] = torch.tensor([7])
    del own[layer + "self_attn.k_proj.weight"]
    done = learn(first, folder_of(tmp_path / "hf", own, config), tmp_path / "a.json")
    assert done.code == 1, done
    problems = texts(done.json()["not_explained"])
    front = LAYER.format(1)
    assert set(problems) == {
        layer + "self_attn.o_proj.weight", layer + "mlp.up_proj.weight", "model.own", "steps",
        front + "self_attention.linear_proj.weight",
        front + "self_attention.linear_qkv.weight", front + "mlp.linear_fc1.weight"}  # fmt: skip
    assert "of type int64" in problems["steps"]
    assert "no tensor of the checkpoint" in problems["model.own"]
    assert "has other values" in problems[layer + "self_attn.o_proj.weight"]
    assert "1536 of its 2048 elements" in problems[front + "self_attention.linear_qkv.weight"]


def test_types_may_differ_where_values_do_not(sets: Path, tmp_path: Path) -> None:
    model = {key: tensor.bfloat16() for key, tensor in megatron_model(sets, "gpt_oss").items()}
    own = tensors_of(sets / "gpt_oss_hf")
    own = {key: tensor.bfloat16().float() for key, tensor in own.items()}
    first = write_checkpoint(tmp_path / "first", model, ARGS["gpt_oss"])
    folder = folder_of(tmp_path / "hf", own, config_of(sets, "gpt_oss"))
    assert learned(first, folder, tmp_path / "a.json")["not_by_content"] == []


def test_options_do_what_they_say(sets: Path, tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path / "first", megatron_model(sets, "llama"), ARGS["llama"])
    pair = (first, sets / "llama_hf")
    table = tmp_path / "a.json"
    succeed("ckpt-convert", "names", "learn", *pair, "-o", table)
    rows = (
        (["learn", *pair], USAGE, "-o FILE is required"),
        (["learn", *pair, "-o", table], EXISTS, "a.json"),
        (["learn", *pair, "-o", tmp_path / "b.json", "--names", "llama"], USAGE, "--names"),
        (["learn", *pair, "-o", sets / "llama_hf/model.safetensors", "--force"], USAGE, "belongs"),
        (["learn", *pair, "-o", tmp_path / "b.json", "--args-from", sets / "llama_hf"], USAGE,
         "is a folder, whose arguments a table"),
        (["check", *pair, "-o", table], USAGE, "-o and --force are for names learn"),
        (["learn", sets / "llama_hf", sets / "llama_hf", "-o", tmp_path / "b.json"], UNSUPPORTED,
         "is not a training checkpoint of Megatron"),
    )  # fmt: skip
    for arguments, code, said in rows:
        line = refuse(code, "ckpt-convert", "names", *arguments)
        assert said in line, line
    succeed("ckpt-convert", "names", "learn", *pair, "-o", table, "--force")
    assert run("ckpt-convert", "names", "check", *pair, "--names", table).code == 0
