"""What the programs make of a checkpoint with one fact changed, and whether that is right."""

from __future__ import annotations

import random
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import independent_reader
import independent_store
from one_fact import MUTATORS
from opened_checkpoint import opened
from programs import Outcome, run
from reading import iteration_folder

# Groups are told by what they say, not by their place.
WITHOUT_MEANING = {"groups_reversed"}
SOUND, DAMAGED, USAGE, MALFORMED, UNSUPPORTED = range(5)


@dataclass(frozen=True)
class Verdict:
    """Of one changed fact: what each program said, and what is wrong with that."""

    said: str
    faults: tuple[str, ...]


def args_of(root: Path) -> dict:
    return vars(opened(root).commons()[0]["args"])


class Subject:
    """A checkpoint, the sizes and the container that it is taken to, and what that needs."""

    def __init__(self, root: Path, work: Path):
        self.name, self.work = root.parent.name, work
        self.root = work / "source"  # as this Python pickles it: it spells enumerations its way
        shutil.copytree(root, self.fresh("source"), copy_function=shutil.copyfile)
        opened(self.root).save()
        args = args_of(root)
        ep = args.get("expert_model_parallel_size") or 1
        self.sizes = ["--dp", str(args["data_parallel_size"] + ep)]
        if args["tensor_model_parallel_size"] > 1 and ep == 1:
            self.sizes = ["--tp", "1", "--etp", "1"]
        self.is_torch = any(iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"))
        self.to = ["--to", "torch_dist" if self.is_torch else "torch"]
        self.strict = [] if self.reshard(self.root, ["--strict"]).code else ["--strict"]
        # What a conversion of the unchanged one drops, and lists, is no news.
        self.dropped = {}
        for name, outcome in (("resharded", self.reshard(self.root, self.strict)),
                              ("converted", self.convert(self.root))):
            if outcome.code == SOUND:
                self.dropped[name] = self.different(self.root, name)

    def reshard(self, source: Path, options: list[str]) -> Outcome:
        made = self.fresh("resharded")
        return run("reshard", source, made, *self.sizes, "--verify", *options)

    def convert(self, source: Path) -> Outcome:
        return run("ckpt-convert", source, self.fresh("converted"), *self.to)

    def fresh(self, name: str) -> Path:
        shutil.rmtree(self.work / name, ignore_errors=True)
        return self.work / name

    def judge(self, mutator: str, seed: int) -> Verdict | None:
        """None: there is no such fact to change."""
        mutant = self.fresh("mutant")
        shutil.copytree(self.root, mutant, copy_function=shutil.copyfile)
        loaded = opened(mutant)
        choice = random.Random(zlib.crc32(f"{seed} {self.name} {mutator}".encode()))
        what = MUTATORS[mutator](loaded, choice)
        if what is None:
            return None
        loaded.save()
        said, faults = self.look(mutant, what)
        if mutator not in WITHOUT_MEANING and "verify 0" in said and self.is_unseen(mutant):
            faults += ("verify and diff do not see it",)
        return Verdict(said, faults)

    def is_unseen(self, mutant: Path) -> bool:
        return run("ckpt-inspect", "diff", self.root, mutant, "-q").code == SOUND

    def look(self, mutant: Path, what: str) -> tuple[str, tuple[str, ...]]:
        verified = run("ckpt-inspect", "verify", mutant, "-q")
        made = {"resharded": self.reshard(mutant, self.strict), "converted": self.convert(mutant)}
        faults = []
        if verified.code not in (SOUND, DAMAGED):
            faults.append(f"verify ends with {verified.code}")
        for name, outcome in made.items():
            if outcome.code == SOUND:
                faults += self.carried(mutant, name, outcome)
            elif outcome.code not in (USAGE, MALFORMED, UNSUPPORTED):  # 2: sizes that args forbid
                faults.append(f"{name}: exit {outcome.code}: {outcome.stderr[:200]}")
            elif outcome.code == MALFORMED and verified.code == SOUND:
                faults.append(f"{name}: verify does not see {outcome.stderr[:300]}")
        codes = " ".join(f"{name} {outcome.code}" for name, outcome in made.items())
        return f"{what}: verify {verified.code} {codes}", tuple(faults)

    def different(self, source: Path, name: str) -> set[str]:
        outcome = run("ckpt-inspect", "diff", source, self.work / name, "--json")
        if outcome.code not in (SOUND, 1):
            return {str(outcome)}
        document = outcome.json()
        parts = (document["tensors"], document["objects"])
        return {row["key"] for part in parts for row in part["different"]}

    def carried(self, mutant: Path, name: str, outcome: Outcome) -> list[str]:
        """A result is the changed state, by `diff` and by the independent reader."""
        found = self.different(mutant, name) - self.dropped.get(name, set())
        found = {key for key in found if f"not carried: {key}" not in outcome.text}
        faults = [f"{name}: {sorted(found)[:3]} differ"] if found else []
        mine, theirs = digest_of(mutant), digest_of(self.work / name)
        if mine and theirs and mine != theirs and "rows of padding" not in outcome.text:
            faults.append(f"{name}: the independent reader gives another digest")
        return faults


def digest_of(root: Path) -> str | None:
    """None: a form that it does not know, or does not take."""
    is_store = (iteration_folder(root) / ".metadata").exists()
    reader = independent_store if is_store else independent_reader
    try:
        return independent_reader.digest(*reader.read(root))
    except Exception:  # it stops where something is wrong in a way of its own
        return None
