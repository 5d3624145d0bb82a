"""Folders of NeMo 2: weights/ is the checkpoint; context/ beside it says what args would.

tests/golden/nemo.tar.xz: one model after three steps of NeMo's own trainer, by
scripts/golden/nemo_folders.py, on two data-parallel ranks and at TP 2 with PP 2, and the state that
the run had. nemo_experts.tar.xz: a model like DeepSeek's at EP 2 with Lightning's schedule, and
LoRA adapters.
"""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from damage import edit_file
from programs import BIN, GOLDEN, refuse, run, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, UNSUPPORTED = 1, 4
SETS = ["dp2", "tp2pp2"]
STATES = ("fp32_param", "exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nemo")
    subprocess.run(["tar", "-xJf", GOLDEN / "nemo.tar.xz", "-C", folder], check=True)
    return folder


@pytest.fixture
def folder(sets: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sets / "dp2/step=2", tmp_path / "step=2"))


def live_state(path: Path) -> dict[str, torch.Tensor]:
    return {f"optimizer.state.{key}" if key.split(".")[0] in STATES else key: value
            for key, value in load_file(path).items()}


@pytest.mark.parametrize("name", SETS)
def test_the_state_is_the_live_one(name: str, sets: Path, tmp_path: Path) -> None:
    made = tmp_path / "state.safetensors"
    succeed("ckpt-convert", sets / name / "step=2", made, "--to", "safetensors")
    found, wanted = load_file(made), live_state(sets / name / "live.safetensors")
    assert len(wanted) == 4 * 15 and set(found) == set(wanted)
    assert [key for key in wanted if not torch.equal(found[key].float(), wanted[key])] == []


# As T5Config states by default.
def test_an_encoder_without_stages_of_its_own_is_converted(folder: Path, tmp_path: Path) -> None:
    config = folder / "context/model.yaml"
    text = config.read_text().replace("parallel_split_rank: null", "parallel_split_rank: 0")
    text = text.replace("llm.gpt.model.base.local_layer", "llm.t5.model.t5.local_layer")
    config.write_text(text)
    succeed("ckpt-convert", folder, tmp_path / "made", "--to", "torch")
    config.write_text(text.replace("parallel_split_rank: 0", "parallel_split_rank: 1"))
    refuse(UNSUPPORTED, "ckpt-convert", folder, tmp_path / "other", "--to", "torch")


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_found_in_what_the_run_wrote(name: str, sets: Path) -> None:
    code, document = verify(sets / name / "step=2")
    assert (code, document["not_checked"]) == (0, [])


def test_what_is_stored_is_listed_under_its_own_keys(sets: Path) -> None:
    listed = succeed("ckpt-inspect", "ls", sets / "dp2/step=2").stdout
    assert "module.decoder.layers.mlp.linear_fc1.weight" in listed
    page = succeed("ckpt-inspect", sets / "tp2pp2/step=2").stdout
    assert "TP 2" in page and "PP 2" in page
    groups = succeed("ckpt-inspect", "groups", sets / "dp2/step=2").stdout
    assert "wd_mult" in groups or "weight_decay" in groups


def logical(path: Path) -> dict[str, str]:
    document = succeed("ckpt-inspect", "hash", path, "--logical", "--json").json()
    return {tensor["key"]: tensor["sha256"] for tensor in document["tensors"]}


RESULTS = [
    ("dp2", "reshard", "--dp 1"),
    ("dp2", "reshard", "--tp 2 --pp 2 --dp 1 --vocab-size 100"),
    ("tp2pp2", "reshard", "--tp 1 --pp 1 --dp 3 --vocab-size 100"),
    ("dp2", "ckpt-convert", "--to torch_dist"),
]


@pytest.mark.parametrize(("name", "program", "options"), RESULTS)
def test_a_result_is_a_folder_of_nemo_again(
    name: str, program: str, options: str, sets: Path, tmp_path: Path
) -> None:
    source, made = sets / name / "step=2", tmp_path / "made"
    context = shutil.copytree(sets / name / "step=2", tmp_path / "source") / "context"
    (context / "nemo_tokenizer").mkdir()
    (context / "nemo_tokenizer/tokenizer.model").write_bytes(bytes(range(256)))
    document = succeed(program, tmp_path / "source", made, *options.split(), "--verify", "--json")
    assert [lost for lost in document.json()["not_carried"] if not lost["changed"]] == []
    assert verify(made)[0] == 0
    for file in ("io.json", "nemo_tokenizer/tokenizer.model"):
        assert (made / "context" / file).read_bytes() == (context / file).read_bytes()
    old, new = (torch.load(folder / "weights/common.pt", weights_only=False)
                for folder in (source, made))
    assert str(new) == str(old) or settings(new) == settings(old)
    keys = stored_keys(made)
    assert set(keys) == set(stored_keys(source))
    assert not (made / "latest_checkpointed_iteration.txt").exists()


def settings(common: dict) -> dict:
    """All of common.pt; settings of groups in any order."""
    return {key: str(common[key]) for key in common if key != "optimizer"} | {
        "optimizer": [
            {key: value for key, value in one.items() if key != "optimizer"}
            | {"groups": [sorted(map(str, group.items()))
                          for group in one["optimizer"]["param_groups"]]}
            for one in common["optimizer"]]}


def stored_keys(folder: Path) -> dict:
    return FileSystemReader(folder / "weights").read_metadata().state_dict_metadata


def test_state_of_other_sizes_is_filed_as_nemo_files_it(sets: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    succeed("reshard", sets / "dp2/step=2", made, *"--tp 2 --pp 2 --dp 1 --vocab-size 100".split())
    found, wanted = stored_keys(made), stored_keys(sets / "tp2pp2/step=2")
    shapes = {key: entry.size for key, entry in found.items() if hasattr(entry, "size")}
    assert shapes == {key: entry.size for key, entry in wanted.items() if hasattr(entry, "size")}
    whole = FileSystemReader(made / "weights").read_metadata().mcore_data
    assert set(whole) == {key for key in shapes if key.startswith("optimizer.")}
    fc1 = whole["optimizer.state.exp_avg.module.decoder.layers.mlp.linear_fc1.weight"]
    assert fc1 == {"nd_reformulated_orig_global_shape": (2, 48, 16)}
    assert "tensor_model_parallel_size: 2\n" in (made / "context/model.yaml").read_text()
    back = tmp_path / "back"
    succeed("reshard", made, back, *"--tp 1 --pp 1 --dp 2 --vocab-size 100".split(), "--verify")
    assert logical(back) == logical(sets / "dp2/step=2")


def test_rows_that_nemo_would_not_pad_to_are_refused(
    folder: Path, sets: Path, tmp_path: Path
) -> None:
    for source, size in ((folder, 2), (sets / "tp2pp2/step=2", 1)):
        said = refuse(UNSUPPORTED, "reshard", source, tmp_path / "out", "--tp", size)
        assert "config.vocab_size" in said, said
    config = folder / "context/model.yaml"
    preset = config.read_text().replace("\n  vocab_size: null", "\n  vocab_size: 112", 1)
    config.write_text(preset)
    succeed("reshard", folder, tmp_path / "preset", "--tp", 2, "--verify")
    assert stored_keys(tmp_path / "preset")["module.output_layer.weight"].size[0] == 112


def test_a_model_that_was_saved_alone_stays_nemos(folder: Path, tmp_path: Path) -> None:
    edit_file(folder / "weights/common.pt", lambda tree: tree.pop("optimizer"))
    metadata = folder / "weights/.metadata"
    read = pickle.loads(metadata.read_bytes())
    for stored in (read.state_dict_metadata, read.storage_data):
        for key in [key for key in stored if str(getattr(key, "fqn", key)).startswith("opt")]:
            del stored[key]
    metadata.write_bytes(pickle.dumps(read))
    succeed("reshard", folder, tmp_path / "made", "--dp", 1, "--verify")
    assert verify(tmp_path / "made")[0] == 0
    assert stored_keys(tmp_path / "made").keys() == read.state_dict_metadata.keys()
    said = refuse(UNSUPPORTED, "reshard", folder, tmp_path / "out", "--dp", 1, "--link")
    assert "cannot be linked" in said


@pytest.mark.parametrize(("name", "program", "options"), [
    ("dp2", "ckpt-convert", "--to torch_dist --optimizer-sharding fully_reshardable"),
    ("dp2", "ckpt-convert", "--to torch_dist --target-megatron 0.16"),
    ("dp2", "ckpt-convert", "--to torch --pp 2"),
    ("tp2pp2", "ckpt-convert", "--to torch --tp 1"),
    ("dp2", "ckpt-convert", "--to torch_dist --optimizer-sharding dp_reshardable --tp 2"),
])
def test_results_are_megatrons_and_keep_every_tensor(
    name: str, program: str, options: str, sets: Path, tmp_path: Path
) -> None:
    source, made = sets / name / "step=2", tmp_path / "made"
    document = succeed(program, source, made, *options.split(), "--verify", "--json").json()
    lost = {each["what"] for each in document["not_carried"]}
    assert "context" in lost
    assert verify(made)[0] == 0
    assert logical(made) == logical(source)
    assert "module." not in succeed("ckpt-inspect", "ls", made).stdout


def test_a_model_of_hugging_face_is_made_of_it(sets: Path, tmp_path: Path) -> None:
    succeed("ckpt-convert", sets / "tp2pp2/step=2", tmp_path / "hf", "--to", "huggingface")
    found = load_file(tmp_path / "hf/model.safetensors")
    live = load_file(sets / "tp2pp2/live.safetensors")
    gate, up = live["decoder.layers.1.mlp.linear_fc1.weight"].chunk(2)
    wanted = {
        "model.embed_tokens.weight": live["embedding.word_embeddings.weight"],
        "model.layers.1.mlp.gate_proj.weight": gate, "model.layers.1.mlp.up_proj.weight": up,
        "model.norm.weight": live["decoder.final_layernorm.weight"],
    }
    for key, value in wanted.items():
        assert torch.equal(found[key].float(), value), key
    assert len(found) == 3 + 9 * 2


# --- experts, schedules and adapters ---


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nemo_experts")
    subprocess.run(["tar", "-xJf", GOLDEN / "nemo_experts.tar.xz", "-C", folder], check=True)
    return folder


def test_the_state_of_experts_is_the_live_one(experts: Path, tmp_path: Path) -> None:
    made = tmp_path / "state.safetensors"
    source = experts / "deepseek_ep2/step=2"
    succeed("ckpt-convert", source, made, "--to", "safetensors")
    found, wanted = load_file(made), live_state(experts / "deepseek_ep2/live.safetensors")
    assert len(wanted) == 4 * 34 + 1 and set(found) == set(wanted)
    assert [key for key in wanted if not torch.equal(found[key].float(), wanted[key])] == []
    code, document = verify(source)
    assert (code, document["not_checked"]) == (0, [])


@pytest.mark.parametrize(("program", "options", "groups"), [
    ("reshard", "--ep 1 --dp 2", 2),
    ("reshard", "--ep 1 --pp 2 --dp 1", 2),
    ("reshard", "--tp 2 --ep 4 --dp 4 --vocab-size 28", 3),
    ("ckpt-convert", "--to torch_dist", 3),
])
def test_each_group_of_a_result_has_a_rate(
    program: str, options: str, groups: int, experts: Path, tmp_path: Path
) -> None:
    source, made, back = experts / "deepseek_ep2/step=2", tmp_path / "made", tmp_path / "back"
    report = succeed(program, source, made, *options.split(), "--verify", "--json").json()
    assert report["not_carried"] == []
    assert any("io.json" in warning for warning in report["warnings"]) == (program == "reshard")
    assert ("by their place" in str(report["continuation"])) == ("--pp" in options)
    (schedule,) = torch.load(made / "weights/common.pt", weights_only=False)["lr_schedulers"]
    assert schedule["base_lrs"] == [1e-3] * groups
    assert schedule["_last_lr"] == schedule["_last_lr"][:1] * groups
    succeed("reshard", made, back, *"--tp 1 --pp 1 --ep 2 --dp 2 --vocab-size 28".split())
    assert logical(made) == logical(back) == logical(source)
    assert set(stored_keys(back)) == set(stored_keys(source))


def test_rates_that_differ_between_groups_are_refused(experts: Path, tmp_path: Path) -> None:
    source = shutil.copytree(experts / "deepseek_ep2/step=2", tmp_path / "source")
    edit_file(source / "weights/common.pt",
              lambda tree: tree["lr_schedulers"][0]["base_lrs"].__setitem__(2, 1e-4))
    succeed("reshard", source, tmp_path / "made", "--ep", 2, "--dp", 4)
    said = refuse(UNSUPPORTED, "reshard", source, tmp_path / "out", "--ep", 1)
    assert "/lr_schedulers/0/base_lrs" in said, said


def test_stages_without_experts_are_refused(experts: Path, tmp_path: Path) -> None:
    source = shutil.copytree(experts / "deepseek_ep2/step=2", tmp_path / "source")
    said = refuse(UNSUPPORTED, "reshard", source, tmp_path / "out", "--pp", 2)
    assert "pipeline stage 0 has no experts" in said, said
    succeed("reshard", source, tmp_path / "made", "--pp", 2,
            "--optimizer-sharding", "fully_reshardable")
    # as NeMo saves one whose first stage has none
    edit_file(source / "weights/common.pt",
              lambda tree: tree["optimizer"].__setitem__(0, tree["optimizer"][0][0]))
    found = run("ckpt-inspect", "verify", source)
    assert found.code == DAMAGED and "first pipeline stage has no experts" in found.text, found


@pytest.mark.parametrize("options", [
    "--to torch", "--to torch_dist --optimizer-sharding fully_reshardable", "--to huggingface"])
def test_results_with_experts_are_those_of_other_programs(
    options: str, experts: Path, tmp_path: Path
) -> None:
    source, made = experts / "deepseek_ep2/step=2", tmp_path / "made"
    succeed("ckpt-convert", source, made, *options.split(), "--verify")
    if "huggingface" in options:
        found = load_file(made / "model.safetensors")
        live = load_file(experts / "deepseek_ep2/live.safetensors")
        name = "layers.1.mlp.experts.{}.down_proj.weight"
        wanted = "decoder.layers.1.mlp.experts.local_experts.{}.linear_fc2.weight"
        for i in range(4):
            assert torch.equal(found["model." + name.format(i)].float(), live[wanted.format(i)])
    else:
        assert logical(made) == logical(source)


def test_adapters_stay_adapters(experts: Path, tmp_path: Path) -> None:
    (source,) = (experts / "adapters").iterdir()
    assert verify(source)[0] == 0
    made = tmp_path / "made put=1.0-last"
    report = succeed("reshard", source, made, "--dp", 4, "--verify", "--json").json()
    assert report["not_carried"] == []
    metadata = "weights/adapter_metadata.json"
    assert (made / metadata).read_bytes() == (source / metadata).read_bytes()
    for form in ("huggingface", "torch"):
        refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "out", "--to", form)


def test_a_folder_that_nemo_marks_as_unfinished_is_damaged(folder: Path) -> None:
    folder.with_name("step=2-unfinished").touch()
    found = run("ckpt-inspect", "verify", folder)
    assert found.code == DAMAGED and "step=2-unfinished" in found.text, found


# --- what is wrong with it ---


def test_the_optimizer_of_a_recipe_is_not_in_the_configuration(
    folder: Path, sets: Path, tmp_path: Path
) -> None:
    config = folder / "context/model.yaml"
    text = re.sub(r"\noptim:\n(  .*\n)+", "\noptim: null\n", config.read_text())
    assert "adam_beta1" not in text
    config.write_text(text)
    succeed("reshard", folder, tmp_path / "made", "--pp", 2, "--verify")
    assert logical(tmp_path / "made") == logical(sets / "dp2/step=2")


@pytest.mark.parametrize(("before", "after", "code", "said"), [
    ("num_layers: 2", "num_layers: 3", DAMAGED, "layers"),
    ("hidden_size: 16", "hidden_size: 24", DAMAGED, "hidden_size"),
    ("num_layers: 2", "layers: 2", 0, "config.num_layers"),
    ("hidden_size: 16", "hidden_size: {a: 1}", 0, "model.yaml"),
])
def test_a_configuration_that_is_not_of_it_is_found(
    before: str, after: str, code: int, said: str, folder: Path, tmp_path: Path
) -> None:
    config = folder / "context/model.yaml"
    text = config.read_text()
    assert text.count(f"\n  {before}\n") == 1
    config.write_text(text.replace(f"\n  {before}\n", f"\n  {after}\n"))
    found = run("ckpt-inspect", "verify", folder)
    assert found.code == code and said in found.text, found
    refuse({DAMAGED, 3, UNSUPPORTED}, "reshard", folder, tmp_path / "out", "--dp", 4)
    assert not (tmp_path / "out").exists()


def test_state_of_another_parameter_is_found(folder: Path, tmp_path: Path) -> None:
    edit_file(folder / "weights/common.pt",
              lambda tree: tree["optimizer"][0]["optimizer"]["param_groups"].pop())
    found = run("ckpt-inspect", "verify", folder)
    assert found.code == DAMAGED and "holds 1 groups" in found.text, found


def test_a_file_that_is_missing_is_named(folder: Path) -> None:
    (folder / "weights/__1_0.distcp").unlink()
    found = run("ckpt-inspect", "verify", folder)
    assert found.code != 0 and "__1_0.distcp" in found.text, found


def test_without_its_configuration_it_is_a_store_without_args(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "context/model.yaml").unlink()
    assert "module.decoder" in succeed("ckpt-inspect", "ls", folder).stdout
    refusal = refuse(UNSUPPORTED, "reshard", folder, tmp_path / "out", "--dp", 4)
    assert "without training arguments" in refusal


def test_weights_without_context_are_no_such_folder(folder: Path) -> None:
    shutil.rmtree(folder / "context")
    assert "holds no checkpoint" in refuse({UNSUPPORTED, 5}, "ckpt-inspect", folder)
