"""One fact at a time: a state of one parameter is gone, all of its states, or every count of steps.

In each layout, for a sample of the parameters (SHARDWISE_LONG_TESTS: for all of them), and with
the other sets of ../shared where they are there: `verify` says so or names what is not proven,
and no conversion that succeeds calls the result whole. Other wrong values are at the end.
"""

from __future__ import annotations

import collections
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from damage import edit_entries, edit_file
from parallel_sets import needs_sets
from programs import GOLDEN, Outcome, run
from reading import iteration_folder, load

SOUND, DAMAGED, USAGE, MALFORMED, UNSUPPORTED = range(5)
IS_LONG = bool(os.environ.get("SHARDWISE_LONG_TESTS"))
SEED = 39
SAMPLED = 2  # parameters of a set

TORCH = ("lw_muon_bf16_torch_dp4", "lw_soap_bf16_torch_dp2", "do_adam_bf16_torch_dp2",
         "runs/te_grouped_fp8_torch_ep2tp2dp2", "runs/te_deep_torch_pp2")
DIST = ("lw_muon_bf16_torch_dist_dp2", "do_adam_bf16_torch_dist_fully_reshardable_dp2",
        "do_adam_bf16_torch_dist_dp_reshardable_dp2", "v012_do_adam_fully_sharded_dp2",
        "runs/core018_dp_reshardable_dp1")
# Also of layouts that no golden has: optimizers that no rank shares.
SHARED_TORCH = ("par_adam_fp16_torch_dp2", "par_adam_fp16_torch_tp2dp2", "par_lw_muon_torch_pp2dp2",
                "par_lw_muon_torch_tp2dp2", "par_lw_muon_moe_torch_ep2dp2",
                "par_do_adam_torch_tp2pp2dp2")
SHARED_DIST = ("par_adam_fp16_torch_dist_dp2", "par_lw_muon_torch_dist_tp2dp2",
               "par_head_lw_muon_buckets_torch_dist_tp2dp2")


# --- rank files ---


def optimizers_in(tree: object) -> Iterator[dict]:
    """The wrapped optimizers of a rank file or a model file."""
    if isinstance(tree, dict):
        if "param_groups" in tree:
            yield tree
        else:
            for key, value in tree.items():
                if not isinstance(key, str) or key == "optimizer":
                    yield from optimizers_in(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from optimizers_in(value)


def states_in(tree: object) -> Iterator[dict]:
    """What is kept of each parameter, or, in a flat buffer, of all."""
    for optimizer in optimizers_in(tree):
        states = optimizer.get("state", {}).values()
        yield from (kept for kept in states if isinstance(kept, dict))
    yield from buffers_in(tree)


def buffers_in(tree: object) -> Iterator[dict]:
    if isinstance(tree, dict) and "numel_unpadded" in tree:
        yield tree
    elif isinstance(tree, dict) and "model" not in tree:
        for value in tree.values():
            yield from buffers_in(value)


def rank_files(root: Path) -> list[Path]:
    return sorted(iteration_folder(root).glob("mp_rank_*/*.pt"))


@dataclass(frozen=True)
class Slot:
    file: str  # under the iteration
    number: int  # of the states in it
    states: tuple[str, ...]


def tensors_of(kept: dict) -> tuple[str, ...]:
    return tuple(key for key, value in kept.items()
                 if isinstance(value, torch.Tensor) and value.dim() > 0 and key != "param")


def repeats(path: Path) -> bool:
    """Model files of a LayerWise optimizer repeat the state of one rank."""
    return path.name == "model_optim_rng.pt" and any(path.parent.glob("layer_wise_optimizer_*"))


def slots_of(root: Path) -> list[Slot]:
    return [Slot(str(path.relative_to(iteration_folder(root))), number, tensors_of(kept))
            for path in rank_files(root) if not repeats(path)
            for number, kept in enumerate(states_in(load(path))) if tensors_of(kept)]


def edit_files(root: Path, change: Callable[[Path, object], None]) -> None:
    """All are saved again: what ranks repeat must read the same."""
    for path in rank_files(root):
        tree = load(path)
        change(path, tree)
        torch.save(tree, path)


def lose_states(root: Path, slot: Slot, names: tuple[str, ...]) -> None:
    meant = iteration_folder(root) / slot.file
    held = list(states_in(load(meant)))[slot.number][slot.states[0]]

    def is_copy(path: Path, kept: list[dict]) -> bool:
        if path.parent != meant.parent or not repeats(path) or slot.number >= len(kept):
            return False
        other = kept[slot.number].get(slot.states[0])
        return other is not None and torch.equal(held, other)

    def change(path: Path, tree: object) -> None:
        kept = list(states_in(tree))
        if path != meant and not is_copy(path, kept):
            return
        own = kept[slot.number]
        for name in names if len(names) < len(slot.states) else list(own):
            if name not in ("param", "numel_unpadded"):
                del own[name]

    edit_files(root, change)


def lose_steps_of_files(root: Path) -> None:
    def change(tree: object) -> None:
        for optimizer in optimizers_in(tree):
            for group in optimizer["param_groups"]:
                group.pop("step", None)
            for kept in optimizer.get("state", {}).values():
                if isinstance(kept, dict):
                    kept.pop("step", None)

    edit_files(root, lambda path, tree: change(tree))


# --- the store ---


def store_keys(root: Path) -> dict[str, list[str]]:
    """The keys of states, by parameter or bucket."""
    metadata = pickle.loads((iteration_folder(root) / ".metadata").read_bytes())
    found = collections.defaultdict(list)
    for key in metadata.state_dict_metadata:
        for state in ("exp_avg_sq", "exp_avg", "momentum_buffer"):
            at = key.find(f".{state}.") if f".{state}." in key else key.find(f".{state}")
            is_whole = f".{state}." in key or key.endswith(f".{state}")
            if "optimizer" in key and at >= 0 and is_whole:
                found[key.replace(state, "", 1)].append(key)
                break
    return dict(found)


def lose_entries(root: Path, keys: list[str]) -> None:
    """Without their bytes, which would be found as unclaimed."""
    path = iteration_folder(root) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    for key in keys:
        del metadata.state_dict_metadata[key]
    for index in [index for index in metadata.storage_data if index.fqn in keys]:
        del metadata.storage_data[index]
    path.write_bytes(pickle.dumps(metadata, protocol=4))
    edit_entries(lambda index, value: value)(root)


def without_steps(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_steps(one) for key, one in value.items()
                if key not in ("step", "common_step")}
    if isinstance(value, list):
        return [without_steps(one) for one in value]
    return value


def lose_steps_of_store(root: Path) -> None:
    common = iteration_folder(root) / "common.pt"
    if common.exists():
        edit_file(common, lambda tree: tree.update(optimizer=without_steps(tree["optimizer"])))

    edit_entries(lambda index, value: value if isinstance(value, torch.Tensor)
                 or not ("optimizer" in index.fqn or "common_state" in index.fqn)
                 else without_steps(value))(root)


# --- what is said of it ---


def programs_on(root: Path, out: Path) -> tuple[Outcome, Outcome, Outcome]:
    """verify; a change of the data-parallel size; another container."""
    is_dist = (iteration_folder(root) / ".metadata").exists()
    to = "torch" if is_dist else "torch_dist"
    for folder in (out / "a", out / "b"):
        shutil.rmtree(folder, ignore_errors=True)
    return (run("ckpt-inspect", "verify", root, "--json"),
            run("reshard", root, out / "a", "--dp", "6"),
            run("ckpt-convert", root, out / "b", "--to", to))


def expect_named(said: tuple[Outcome, Outcome, Outcome], root: Path) -> str:
    """Damage that all refuse, or what is not proven and nobody calls whole."""
    verified, *made = said
    assert verified.code in (SOUND, DAMAGED), verified
    if verified.code == DAMAGED:
        for outcome in made:
            assert outcome.code in (MALFORMED, UNSUPPORTED), f"{verified}\n{outcome}"
        return "damage"
    reasons = [each["reason"] for each in verified.json()["not_proven"]]
    assert any("no optimizer state" in reason for reason in reasons), verified
    for outcome in made:
        assert outcome.code in (SOUND, MALFORMED, UNSUPPORTED), outcome
        if outcome.code == SOUND:
            assert "not proven: parameter" in outcome.stdout, outcome
            assert "element counts match" not in outcome.stdout, outcome
    strict = run("reshard", root, root.parent / "strict", "--dp", "6", "--strict")
    assert strict.code == UNSUPPORTED, strict
    return "not proven"


def sampled(items: list, name: str) -> list:
    if IS_LONG or len(items) <= SAMPLED:
        return items
    return random.Random(f"{SEED} {name}").sample(items, SAMPLED)


def check_states_of_files(source: Path, tmp_path: Path) -> None:
    counts: collections.Counter = collections.Counter()
    for slot in sampled(slots_of(source), source.parent.name):
        for names in [(state,) for state in slot.states] + [slot.states]:
            root = tmp_path / "ckpt"
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(source, root, copy_function=shutil.copyfile)
            lose_states(root, slot, names)
            said = programs_on(root, tmp_path)
            verdict = expect_named(said, root)
            counts[verdict] += 1
            if 0 < len(names) < len(slot.states):
                assert verdict == "damage", f"{slot} {names}"
                assert said[1].code == MALFORMED and names[0] in said[1].stderr, said[1]
    print(source.parent.name, dict(counts))


def check_states_of_store(source: Path, tmp_path: Path) -> None:
    counts: collections.Counter = collections.Counter()
    for keys in sampled(list(store_keys(source).values()), source.parent.name):
        for lost in [[key] for key in keys] + [keys]:
            root = tmp_path / "ckpt"
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(source, root, copy_function=shutil.copyfile)
            lose_entries(root, lost)
            verdict = expect_named(programs_on(root, tmp_path), root)
            assert verdict == "damage", lost
            counts[verdict] += 1
    print(source.parent.name, dict(counts))


def check_steps(source: Path, tmp_path: Path, lose: Callable[[Path], None]) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(source, root, copy_function=shutil.copyfile)
    lose(root)
    verified, resharded, _ = programs_on(root, tmp_path)
    assert verified.code == DAMAGED, verified
    problems = [found["problem"] for found in verified.json()["findings"]]
    assert any("step count" in problem or "step" in problem for problem in problems), verified
    if resharded.code == SOUND:
        assert "next training step: will differ" in resharded.stdout, resharded
        assert "there is no step count" in resharded.stdout, resharded
    else:
        assert resharded.code in (MALFORMED, UNSUPPORTED), resharded
    checked = run("reshard", root, tmp_path / "c", "--dp", "6", "--verify")
    assert checked.code in (MALFORMED, UNSUPPORTED), checked


@pytest.mark.parametrize("name", TORCH)
def test_states_of_rank_files(name: str, tmp_path: Path) -> None:
    check_states_of_files(GOLDEN / name / "ckpt", tmp_path)


@pytest.mark.parametrize("name", DIST)
def test_states_of_a_store(name: str, tmp_path: Path) -> None:
    check_states_of_store(GOLDEN / name / "ckpt", tmp_path)


@pytest.mark.parametrize("name", TORCH)
def test_step_counts_of_rank_files(name: str, tmp_path: Path) -> None:
    check_steps(GOLDEN / name / "ckpt", tmp_path, lose_steps_of_files)


@pytest.mark.parametrize("name", DIST)
def test_step_counts_of_a_store(name: str, tmp_path: Path) -> None:
    check_steps(GOLDEN / name / "ckpt", tmp_path, lose_steps_of_store)


@needs_sets
@pytest.mark.parametrize("name", SHARED_TORCH)
def test_rank_files_of_megatron(name: str, sets: Path, tmp_path: Path) -> None:
    check_states_of_files(sets / name / "ckpt", tmp_path)
    check_steps(sets / name / "ckpt", tmp_path / "steps", lose_steps_of_files)


@needs_sets
@pytest.mark.parametrize("name", SHARED_DIST)
def test_stores_of_megatron(name: str, sets: Path, tmp_path: Path) -> None:
    check_states_of_store(sets / name / "ckpt", tmp_path)
    check_steps(sets / name / "ckpt", tmp_path / "steps", lose_steps_of_store)


# --- other values that verify finds ---


def negate(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[3] = -1.0
    return changed


def negative_in_files(root: Path) -> None:
    slot = next(slot for slot in reversed(slots_of(root)) if "exp_avg_sq" in slot.states)

    def change(path: Path, tree: object) -> None:
        if path == iteration_folder(root) / slot.file:
            kept = list(states_in(tree))[slot.number]
            kept["exp_avg_sq"] = negate(kept["exp_avg_sq"])

    edit_files(root, change)


def negative_in_store(root: Path) -> None:
    keys = [key for names in store_keys(root).values() for key in names if "exp_avg_sq" in key]
    edit_entries(lambda index, value: negate(value) if index.fqn == keys[0] else value)(root)


@pytest.mark.parametrize("name", (*TORCH, *DIST))
def test_negative_second_moments_are_refused(name: str, tmp_path: Path) -> None:
    source = GOLDEN / name / "ckpt"
    root = tmp_path / "ckpt"
    shutil.copytree(source, root, copy_function=shutil.copyfile)
    (negative_in_store if name in DIST else negative_in_files)(root)
    for outcome in (run("ckpt-inspect", "verify", root), *programs_on(root, tmp_path)[1:]):
        is_verify = "verify" in outcome.command
        assert outcome.code in ((DAMAGED,) if is_verify else (MALFORMED, UNSUPPORTED)), outcome
        is_named = "negative" in outcome.text or "differ" in outcome.text  # from a copy
        assert is_named or outcome.code == UNSUPPORTED, outcome
    assert run("reshard", root, tmp_path / "c", "--dp", "6", "--model-only").code == SOUND


def test_a_missing_random_state_is_refused_where_it_would_be_kept(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(GOLDEN / "runs/te_grouped_fp8_torch_dist_ep2tp2dp2/ckpt", root,
                    copy_function=shutil.copyfile)
    lose_entries(root, ["rng_state/shard_0.1_1.2"])
    refused = run("reshard", root, tmp_path / "a", "--dp", "4")
    assert refused.code == MALFORMED and "1 of 2 random states" in refused.stderr, refused
    kept = run("reshard", root, tmp_path / "b", "--dp", "4", "--rng", "keep")
    assert kept.code == SOUND and "1 of 2 random states are missing" in kept.stdout, kept
    seeded = run("reshard", root, tmp_path / "c", "--tp", "1", "--etp", "1")
    assert seeded.code == SOUND and "seeded anew" in seeded.stdout, seeded


def test_a_missing_random_state_of_a_rank_file(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(GOLDEN / "runs/te_grouped_fp8_torch_ep2tp2dp2/ckpt", root,
                    copy_function=shutil.copyfile)
    last = sorted(iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"))[-1]
    edit_files(root, lambda path, tree: tree.pop("rng_state") if path == last else None)
    refused = run("reshard", root, tmp_path / "a", "--dp", "4")
    assert refused.code == MALFORMED and "random states" in refused.stderr, refused


def test_an_optimizer_without_a_step_may_have_no_state(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt", root, copy_function=shutil.copyfile)

    def change(path: Path, tree: object) -> None:
        for optimizer in optimizers_in(tree):
            optimizer["state"] = {}
            for group in optimizer["param_groups"]:
                group.pop("step", None)
        if isinstance(tree, dict) and "iteration" in tree:
            tree["iteration"] = 0

    edit_files(root, change)
    folder = iteration_folder(root)
    folder.rename(root / "iter_0000000")
    (root / "latest_checkpointed_iteration.txt").write_text("0")
    outcome = run("ckpt-inspect", "verify", root)
    assert outcome.code == SOUND and "has taken no step" in outcome.text, outcome
    made = run("reshard", root, tmp_path / "a", "--dp", "6", "--verify")
    assert made.code == SOUND, made
