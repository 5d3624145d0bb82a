"""Which checkpoints are converted how, and what every command has to say about each result.

A result is checked by all commands at once: none may crash, each has one of its documented exit
codes, and what they say of one checkpoint may not contradict each other.
"""

from __future__ import annotations

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from programs import BIN, GOLDEN, RECORDED, Outcome

from json_schema import document_faults  # isort: skip  (programs knows its folder)

THREADS = 2
CONTAINERS = ("torch", "torch_dist", "safetensors")
SETTINGS_OF_STEPS = "lw_muon_bf16_torch_dp2"  # of the runs whose gradients are recorded

# What no user should read: words of our libraries, and of C++.
INTERNAL = re.compile(
    r"internal error|std::|_M_|vector|basic_string|bad_alloc|bad_optional|bad_variant|map::at"
    r"|json\.exception|\[json|terminate called|Assertion|c10::|at::native|Exception raised from"
    r"|invalid (unordered_)?map|stoul|stoi|lists the same chunk twice")


# --- sources ---

@dataclass(frozen=True)
class Source:
    name: str
    path: Path
    is_megatron: bool = True


def golden_sources() -> list[Source]:
    roots = sorted(path for path in (*GOLDEN.iterdir(), *(GOLDEN / "runs").iterdir())
                   if (path / "ckpt").is_dir())
    found = [Source(root.name, root / "ckpt") for root in roots]
    found += [Source(name, GOLDEN / "torch_save_zip" / name, False)
              for name in ("zip.pt", "legacy.pt", "bare_tensor.pt")]
    state = GOLDEN / SETTINGS_OF_STEPS / "expected/state.safetensors"
    return [*found, Source("state.safetensors", state, False)]


def recorded_sources() -> list[Source]:
    found = []
    for folder in sorted(RECORDED.iterdir()):
        is_known = (GOLDEN / folder.name).exists()
        if (folder / "ckpt").is_dir() and not is_known:
            found.append(Source(folder.name, folder / "ckpt", not folder.name.startswith("dcp_")))
    for name in ("safetensors_sharded/model.safetensors.index.json", "torch_save_variety/zip.pt"):
        found.append(Source(Path(name).parent.name, RECORDED / name, False))
    return found


# --- conversions ---

@dataclass(frozen=True)
class Conversion:
    program: str
    options: str
    suffix: str = ""

    @property
    def is_of_model(self) -> bool:
        return "--model-only" in self.options

    def __str__(self) -> str:
        return f"{self.program.removeprefix('ckpt-')} {self.options}{self.suffix}"


def convert(options: str, suffix: str = "") -> Conversion:
    return Conversion("ckpt-convert", options, suffix)


PLAIN = [convert("--to torch", ".pt"), convert("--to torch_dist"), convert("--to safetensors"),
         convert("--to safetensors", ".safetensors"), convert("--to torch_dist --zstd 3")]
_WHOLE = [
    *(convert(f"--to {container}") for container in CONTAINERS),
    convert("--to safetensors", ".safetensors"),
    convert("--to torch_dist --verify"),
    *(convert(f"--to torch_dist --optimizer-sharding {form}")
      for form in ("fully_reshardable", "dp_reshardable", "layer_wise")),
    *(convert(f"--to torch --optimizer-sharding {form}") for form in ("flat_file", "layer_wise")),
    *(convert(f"--to torch_dist --target-megatron {era}")
      for era in ("2026-04", "2026-08", "0.18")),
    convert("--to torch --target-megatron 2026-08"),
    *(Conversion("reshard", sizes) for sizes in
      ("--dp 1", "--dp 4", "--tp 2", "--pp 2", "--tp 2 --pp 2 --dp 2", "--tp 1 --pp 1 --ep 1")),
]
MEGATRON = [*_WHOLE, *(Conversion(each.program, f"{each.options} --model-only", each.suffix)
                       for each in _WHOLE if "--optimizer-sharding" not in each.options)]
# Of results; what a result is converted to is a result, too.
ONWARD = [*(convert(f"--to {container}") for container in CONTAINERS),
          convert("--to torch_dist --model-only"), Conversion("reshard", "--dp 1")]


@dataclass(frozen=True)
class Case:
    source: Source
    conversion: Conversion
    onward: Conversion | None = None

    def __str__(self) -> str:
        onward = f", {self.onward}" if self.onward else ""
        return f"{self.source.name}: {self.conversion}{onward}".replace(" ", "_")


def all_cases() -> list[Case]:
    cases = []
    for source in (*golden_sources(), *recorded_sources()):
        conversions = MEGATRON if source.is_megatron else PLAIN
        for number, conversion in enumerate(conversions):
            cases.append(Case(source, conversion))
            # Two of the ways onward, all of them in turn.
            cases += [Case(source, conversion, ONWARD[(number + offset) % len(ONWARD)])
                      for offset in (0, 2)]
    return cases


def sample() -> list[Case]:
    """Two conversions of each source, all of them in turn; one of the two results goes onward."""
    cases = []
    for conversions, is_megatron in ((MEGATRON, True), (PLAIN, False)):
        sources = [each for each in golden_sources() if each.is_megatron == is_megatron]
        for number, source in enumerate(sources):
            first, second = (conversions[(2 * number + i) % len(conversions)] for i in (0, 1))
            onward = ONWARD[number % len(ONWARD)] if is_megatron else None
            cases += [Case(source, first), Case(source, second, onward)]
    return cases


# --- commands ---

@dataclass(frozen=True)
class Check:
    program: str
    arguments: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    schema: str = ""  # of --json; empty: the command is run for what it prints

    @property
    def command(self) -> tuple[str, ...]:
        json_option = ("--json",) if self.schema else ()
        return (self.program, *self.arguments, *json_option)


def inspect(command: str, path: Path, codes: tuple[int, ...] = (0,), schema: str = "",
            more: tuple[str, ...] = ()) -> list[Check]:
    """A command for people, and for programs."""
    words = tuple(command.split()) if command else ()
    arguments = (*words, str(path), *more)
    checks = [Check("ckpt-inspect", arguments, codes)]
    return [*checks, Check("ckpt-inspect", arguments, codes, schema)] if schema else checks


def execute(command: tuple[str, ...]) -> Outcome:
    finished = subprocess.run([str(BIN / command[0]), *command[1:]], capture_output=True, text=True,
                              timeout=120, check=False)
    return Outcome(command, finished.returncode, finished.stdout, finished.stderr)


def faults_of_refusal(outcome: Outcome) -> list[str]:
    """What is refused says what works instead."""
    if outcome.code != 4 or "--json" in outcome.command or "hint: " in outcome.stderr:
        return []
    return [f"refused without a hint\n{outcome}"]


def faults_of_run(outcome: Outcome, codes: tuple[int, ...], schema: str = "") -> list[str]:
    found = faults_of_refusal(outcome)
    if outcome.code not in codes:
        found.append(f"exit {outcome.code}, not {codes}\n{outcome}")
    if INTERNAL.search(outcome.stderr):
        found.append(f"internal words\n{outcome}")
    if schema:
        document = outcome.json() if outcome.stdout else {}
        name = "error" if "error" in document else schema
        found += [f"{fault}\n{' '.join(outcome.command)}"
                  for fault in document_faults(name, document)]
    return found


class Result:
    """What a conversion wrote, and what all commands say of it."""

    def __init__(self, path: Path, source: Path, scratch: Path):
        self.path, self.source, self.scratch = path, source, scratch
        self.is_root = (path / "latest_checkpointed_iteration.txt").is_file()
        self.outcomes: dict[tuple[str, ...], Outcome] = {}
        self.faults: list[str] = []

    def keys(self) -> tuple[str, ...]:
        listed = execute(("ckpt-inspect", "ls", str(self.path), "--json"))
        entries = [*listed.json().get("tensors", []), *listed.json().get("objects", [])]
        names = [f"{entry['file']}:{entry['key']}" if entry.get("file") else entry["key"]
                 for entry in entries]
        return (names[0], names[-1]) if names else ()

    def checks(self) -> list[Check]:
        path, is_root = self.path, self.is_root
        of_root = (0,) if is_root else (5,)
        record = self.scratch / "record.txt"
        record.write_text(execute(("ckpt-inspect", "hash", str(path))).stdout, encoding="utf-8")
        checks = [
            *inspect("", path, schema="summary"), *inspect("ls", path, schema="ls"),
            *inspect("tree", path, schema="tree"),
            *inspect("groups", path, (0, 5), schema="groups"),
            *inspect("verify", path, schema="verify"), *inspect("verify --quick", path),
            *inspect("hash", path, schema="hash"),
            *inspect("hash --logical", path, (0, 4), schema="hash"),
            *inspect("hash", path, (0,), "hash_check", ("-c", str(record))),
            *inspect("diff", self.source, (0, 1), "diff", (str(path),)),
            *inspect("diff", path, (0,), "", (str(path),)),
            *inspect("latest", path, of_root, schema="latest"),
            *inspect("lineage", path, of_root, schema="lineage"),
            Check("ckpt-inspect", ("report", str(path), "-o", str(path) + ".html")),
            Check("ckpt-inspect", ("report", str(path)), schema="report"),
        ]
        for key in self.keys():
            checks += inspect("show", path, (0,), "show", (key,))
        nowhere = str(self.scratch / "nowhere")
        for container in CONTAINERS:
            checks.append(Check("ckpt-convert", (str(path), nowhere, "--to", container,
                                                 "--dry-run"), (0, 4), "conversion"))
        checks.append(Check("ckpt-convert", (str(path), nowhere, "--repair"), (0, 4)))
        checks += [Check("reshard", (str(path), nowhere, *sizes.split(), "--dry-run"), (0, 2, 4))
                   for sizes in ("--dp 1", "--tp 2", "--pp 2 --model-only")]
        return [*checks, *self.steps()]

    def steps(self) -> list[Check]:
        grads = GOLDEN / SETTINGS_OF_STEPS / "expected/init_and_grads.safetensors"
        if "lw_muon_bf16_torch" not in str(self.source):
            return []
        arguments = ("run", str(self.path), "--grads", str(grads), "--from-init", "--expect",
                     str(self.path))
        codes = (0, 1, 3, 4)  # 3: padding of the vocabulary for TP 2, which the gradients lack
        return [Check("step-replay", arguments, codes),
                Check("step-replay", arguments, codes, "replay_run")]

    def check(self) -> None:
        checks = self.checks()
        with ThreadPoolExecutor(THREADS) as pool:
            outcomes = list(pool.map(execute, [check.command for check in checks]))
        for check, outcome in zip(checks, outcomes, strict=True):
            self.faults += faults_of_run(outcome, check.codes, check.schema)
            if check.schema and outcome.code in (0, 1) and outcome.stdout:
                self.outcomes[check.command[1:-1]] = outcome
        self.check_agreement()

    def document(self, *command: str) -> dict:
        known = self.outcomes.get(command)
        return known.json() if known else {}

    def check_agreement(self) -> None:
        """Verify is sound (its exit code is checked): nothing else may say otherwise."""
        path = str(self.path)
        health = self.document(path).get("status", {}).get("health")
        if health not in ("complete", "files_present"):
            self.faults.append(f"the page says {health}: {self.document(path).get('status')}")
        if not self.document("report", path).get("verify", {}).get("sound"):
            self.faults.append("the report does not say that it is sound")
        for row in self.document("lineage", path).get("iterations", []):
            if not row["complete"]:
                self.faults.append(f"lineage: {json.dumps(row)}")
