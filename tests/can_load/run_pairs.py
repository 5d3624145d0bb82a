#!/usr/bin/env python3
"""Lets a Megatron-LM tree load recorded checkpoints with other flags, and says what came of it.

usage: run_pairs.py TREE --source FOLDER --packages DIR... --sets DIR --out FILE [--only WORD...]

TREE names the rows of trials.py that are run; FOLDER is the unpacked source tree. One line of JSON
a pair is added to FILE, pairs that it has are left out. Ranks are processes with Gloo on this
machine; what is replaced for that is said in scripts/golden/run. The first run of a set, with its
own flags, must come before others: the step that it takes is what theirs are compared with.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from golden.run.launch import in_ranks  # noqa: E402
from trials import Trial, trials_of  # noqa: E402

OF_A_SAVE = {"save": None, "save_interval": None}
NOBODY = "no rank says why"  # they hang, or this machine has no memory left
SMALLER = 0.0625  # gradients of the step after the load: too small to be clipped, and exact


def with_flags(words: list[str], flags: dict) -> list[str]:
    """The command line with each option as told: None and False take it away."""
    words = list(words)
    for name, value in flags.items():
        option = "--" + name.replace("_", "-")
        while option in words:
            at = words.index(option)
            end = next((k for k in range(at + 1, len(words)) if words[k].startswith("--")),
                       len(words))
            del words[at:end]
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, *map(str, value if isinstance(value, list) else [value])]
    return words


def damaged(checkpoint: Path, copy: Path, files: tuple[str, ...]) -> Path:
    """A copy in which files are removed, cut short, flipped in one bit, renamed or written anew;
    numbers are hundredths of the file."""
    shutil.copytree(checkpoint, copy)
    for folder, _, names in os.walk(copy):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            os.chmod(path, 0o755)
    for change in files:
        verb, name, *words = change.split(" ")
        path = copy / name
        if verb == "remove":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif verb == "cut":
            os.truncate(path, path.stat().st_size * int(words[0]) // 100)
        elif verb == "flip":
            data = bytearray(path.read_bytes())
            data[len(data) * int(words[0]) // 100] ^= 1
            path.write_bytes(data)
        elif verb == "rename":
            path.rename(copy / words[0])
        else:
            assert verb == "write", change
            path.write_text(" ".join(words))
    return copy


def said_and_place(error: BaseException, tree: Path) -> tuple[str, str | None]:
    """What was raised, and the innermost line of the tree that raised it."""
    frames = list(traceback.extract_tb(error.__traceback__))
    if getattr(error, "failures", None):  # torch.distributed.checkpoint tells of all ranks
        error, trace = error.failures[min(error.failures)]
        frames += list(trace)
    inside = [f for f in frames if f.filename.startswith(f"{tree}/")]
    place = f"{Path(inside[-1].filename).relative_to(tree)}:{inside[-1].lineno}" if inside else None
    said = f"{type(error).__name__}: {error}"
    unsupported = re.search(r"Unsupported global: GLOBAL \S+", said)
    return f"{type(error).__name__}: {unsupported[0]}" if unsupported else said, place


class Watched:
    """Megatron's load_checkpoint, with random numbers that no checkpoint has before it."""

    def __init__(self):
        from megatron.training import training

        self.called, self.kept, self.real = False, None, training.load_checkpoint
        training.load_checkpoint = self

    def __call__(self, *values, **options):
        import numpy
        import torch

        def numbers():
            return [random.getstate(), str(numpy.random.get_state()),
                    torch.get_rng_state().tolist()]

        self.called = True
        random.seed(99)
        numpy.random.seed(99)
        torch.manual_seed(99)
        before = numbers()
        found = self.real(*values, **options)
        self.kept = before == numbers()
        return found


def is_padding(name: str, one, other, vocabulary: int) -> bool:
    """Whether the rows that both have are equal, and what only one has is no token's."""
    from golden.run.live_state import same_bits

    rows = min(len(one), len(other))
    return (bool(re.search(r"word_embeddings|output_layer", name)) and len(one) != len(other)
            and rows >= vocabulary and same_bits(one[:rows], other[:rows]))


def by_kind(expected: dict, found: dict, vocabulary: int) -> dict:
    """How many tensors of each kind are not equal, missing or not expected."""
    from golden.run.live_state import same_bits

    counts: dict[str, int] = {}
    for name in sorted(set(expected) | set(found)):
        kind = name.split(".")[0]
        if name in found and name in expected:
            if same_bits(expected[name], found[name]):
                continue
            if is_padding(name, expected[name], found[name], vocabulary):
                kind = "padding"
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def state_of(running):
    """Whole tensors, on rank 0; and what the ranks do not agree about."""
    from golden.run.live_state import LiveState, gathered

    live = LiveState(running.model, running.optimizer, running.args, running.parallel_state)
    whole, problems = gathered(live.pieces)
    return whole, sum("another replica" in problem for problem in problems)


class SmallGradients:
    def __init__(self, path: Path):
        from golden.run.training import StoredValues

        self.stored = StoredValues(path)

    def gradient(self, step, name, shape):
        import torch

        if f"grad{step}.{name}" not in self.stored.tensors:
            return torch.full(shape, 0.0009765625)
        stored = self.stored.gradient(step, name, shape)
        if stored.shape != torch.Size(shape):  # of another model
            return torch.full(shape, 0.0009765625)
        return stored * SMALLER


def load_here(trial: Trial, run: dict, words: list[str], tree: Path, folder: Path) -> None:
    """One rank. Leaves loaded.pt (rank 0) or error.RANK in `folder`."""
    import torch
    import torch.distributed as dist
    from golden.run.training import Run

    watched, stage = Watched(), "start"
    try:
        running = Run(words)
        stage = "step"
        state, disagreeing = state_of(running)
        args = running.args
        found = {"state": state, "disagreeing": disagreeing, "called": watched.called,
                 "kept": watched.kept, "iteration": int(args.iteration),
                 "samples": int(args.consumed_train_samples)}
        if dist.get_rank() == 0:
            torch.save(found, folder / "loaded.pt")
        told = running.step(SmallGradients(Path(run["grads"])), run["iteration"])
        for chunk in running.model:
            if getattr(chunk.ddp_config, "overlap_param_gather", False):
                chunk.start_param_sync(force_sync=True)  # what the next forward pass would do
        after, _ = state_of(running)
        if dist.get_rank() == 0:
            found |= {"after": after, "lr": sorted(set(told["lr_per_group"])), "ok": told["ok"],
                      "weight_decay": sorted(set(told["weight_decay_per_group"]))}
            torch.save(found, folder / "loaded.pt")
        dist.barrier()
    except BaseException as error:
        (folder / f"error.{os.environ['RANK']}").write_text(
            json.dumps([stage, *said_and_place(error, tree)]))
        raise


def printed(text: str) -> str:
    """What a rank said before it ended by sys.exit()."""
    text = re.sub(r"\x1b\[\d*m", "", text)
    lines = text.split("\nTraceback")[0].strip().splitlines() or [""]
    says = re.search(r"could not load the checkpoint\n([^\n]*)", text)
    usage = [line for line in lines if re.match(r"\S+: error: ", line)]
    if not says:
        return usage[-1] if usage else lines[-1]
    unsupported = re.search(r"Unsupported global: GLOBAL \S+", text)
    return "could not load the checkpoint: " + (unsupported or says)[0 if unsupported else 1]


def refusal(folder: Path, ranks: list[int]) -> tuple[str, str, str | None]:
    """Stage, message, place: of the rank whose own it is, not that another one has gone."""
    errors = []
    for path in sorted(folder.glob("error.*"), key=lambda path: int(path.suffix[1:])):
        rank = int(path.suffix[1:])
        stage, said, place = json.loads(path.read_text())
        if said.startswith("SystemExit"):
            said = printed((folder / f"rank{rank}.log").read_text(errors="replace")) or said
        errors.append((bool(re.search("onnection closed|Connection reset|Broken pipe", said)),
                       rank, stage, said, place))
    if not errors:
        return "start", f"{NOBODY}: ranks {ranks} were ended", None
    return min(errors)[2:]


class Sets:
    """Recorded checkpoints, and the step after each as the first run of a set took it."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.cache = folder, cache
        cache.mkdir(parents=True, exist_ok=True)

    def run(self, name: str) -> dict:
        run = json.loads((self.folder / name / "expected/run.json").read_text())
        return run | {"grads": str(self.folder / f"family_{run['family']}/grads.safetensors")}

    def expected(self, name: str) -> dict:
        from safetensors.torch import load_file

        return load_file(self.folder / name / "expected/state.safetensors")

    def step_file(self, name: str) -> Path:
        """Sets of one state share it."""
        hashes = hashlib.sha256()
        for key, value in sorted(self.expected(name).items()):
            hashes.update(f"{key} {value.shape}".encode() + value.float().numpy().tobytes())
        return self.cache / f"{hashes.hexdigest()[:16]}.pt"


def replicas(run: dict, flags: dict) -> int:
    sizes = run["parallel"]
    tp = flags.get("tensor_model_parallel_size", sizes["tp"])
    pp = flags.get("pipeline_model_parallel_size", sizes["pp"])
    return flags.get("world_size", run["world"]) // (tp * pp)


def next_step(found: dict, file: Path, own: bool, run: dict, counts: list[int]) -> dict:
    """Against the step that the set's first run took. A mean over three ranks is not exact, so
    that sizes 3 and 2 are not compared."""
    import torch

    if "after" not in found:
        return {"next_step": None}
    if own and not file.exists():
        torch.save({k: found[k] for k in ("after", "lr", "weight_decay", "iteration")}, file)
    if not file.exists() or counts[0] != counts[1] and any(n & (n - 1) for n in counts):
        return {"next_step": None}
    first, also = torch.load(file), {}
    for name in ("lr", "weight_decay"):
        if first[name] != found[name]:
            also[name] = found[name]
    differing = by_kind(first["after"], found["after"], run["vocabulary"])
    same = not differing.keys() - {"padding"}
    return {"next_step": "equal" if same else "differs", **({"also": also} if also else {})}


def outcome(trial: Trial, sets: Sets, folder: Path, failed: list[int]) -> dict:
    import torch

    stage, said, place = refusal(folder, failed) if failed else ("", None, None)
    if failed and stage == "start":
        return {"result": "refuses", "message": said[:300], "raised_at": place,
                "differing": {}, "next_step": None}
    found, run = torch.load(folder / "loaded.pt"), sets.run(trial.set)
    run["vocabulary"] = max(run["model"]["vocab"], trial.flags.get("vocab_size") or 0)
    differing = by_kind(sets.expected(trial.set), found["state"], run["vocabulary"])
    if found["disagreeing"]:
        differing["replicas"] = found["disagreeing"]
    result = {"result": "loads_differently" if differing else "equal", "message": None,
              "raised_at": None, "differing": differing}
    if failed:  # the load went well
        return result | {"message": said[:300], "raised_at": place, "next_step": "fails"}
    counts = [replicas(run, {}), replicas(run, trial.flags)]
    own = not trial.flags and not trial.files and not differing
    result |= next_step(found, sets.step_file(trial.set), own, run, counts)
    also = result.pop("also", {})
    if found["kept"] or not found["called"]:
        also["random_numbers"] = "not loaded"
    if found["iteration"] != run["iteration"]:
        also["iteration"] = found["iteration"]
    if found["ok"] is False:
        also["step"] = "skipped"
    return result | ({"also": also} if also else {})


def run_trial(trial: Trial, sets: Sets, tree: Path) -> dict:
    run = sets.run(trial.set)
    checkpoint = sets.folder / trial.set / "ckpt"
    with tempfile.TemporaryDirectory(prefix="can_load") as scratch:
        folder = Path(scratch)
        if trial.files:
            checkpoint = damaged(checkpoint, folder / "ckpt", trial.files)
        flags = {k: v for k, v in trial.flags.items() if k != "world_size"}
        words = with_flags(run["argv"], OF_A_SAVE)
        words = with_flags([*words, "--load", str(checkpoint)], flags)
        os.chdir(folder)
        world = trial.flags.get("world_size", run["world"])
        failed = in_ranks(world, lambda _rank: load_here(trial, run, words, tree, folder),
                          folder, timeout_s=90)
        found = outcome(trial, sets, folder, failed)
        if keep := os.environ.get("KEEP_LOGS"):
            for log in folder.glob("rank*.log"):
                shutil.copy(log, Path(keep) / log.name)
        os.chdir("/")
    text = (found["message"] or "").replace(str(checkpoint), "CKPT").replace(scratch, "TMP")
    found["message"] = text.replace(f"{tree}/", "") or None
    return {"tree": trial.tree, "set": trial.set, "flags": trial.flags,
            **({"files": list(trial.files)} if trial.files else {}), **found, "from": "run"}


def key_of(row: dict) -> str:
    return json.dumps([row["tree"], row["set"], row["flags"], list(row.get("files", ()))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--packages", type=Path, nargs="+", default=[])
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[""])
    words = parser.parse_args()
    from golden.run.write_case import import_tree

    tree = words.source.resolve()
    import_tree(tree, [p.resolve() for p in words.packages], False)
    with contextlib.suppress(ImportError):  # once, not in each rank
        import megatron.core.tokenizers.text  # noqa: F401
    sets = Sets(words.sets.resolve(), words.out.resolve().parent / "steps")
    out = words.out.resolve()
    known = set(map(key_of, map(json.loads, out.read_text().splitlines()))) if (
        out.exists()) else set()
    for trial in trials_of(words.tree):
        row = {"tree": trial.tree, "set": trial.set, "flags": trial.flags, "files": trial.files}
        if key_of(row) in known or not any(word in key_of(row) for word in words.only):
            continue
        with contextlib.suppress(KeyboardInterrupt):
            row = run_trial(trial, sets, tree)
            if (row["message"] or "").startswith(NOBODY):
                print(f"not recorded: {key_of(row)}: {row['message']}", flush=True)
                continue
            with out.open("a") as file:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
            print(json.dumps({k: v for k, v in row.items() if k not in ("tree", "from")}),
                  flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
