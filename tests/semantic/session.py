"""Runs our programs on one case and keeps what they did wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from listing import has_surrogate
from programs import BIN, ERROR_LINE, Outcome

TIMEOUT_S = 60
EXIT_CODES = range(6)
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
INTERNAL_WORDS = re.compile(r"std::|bad_alloc|vector::|AddressSanitizer|runtime error:")


@dataclass(frozen=True)
class Finding:
    kind: str  # of case: state_dict, opcode, dcp, megatron
    seed: int
    case: str  # what was made, in words
    rule: str  # which rule was broken
    detail: str

    def __str__(self) -> str:
        text = f"{self.kind} {self.seed}: {self.rule}\n  case: {self.case}\n  {self.detail}"
        lines = (ascii(line)[1:-1] for line in text.splitlines())
        return "\n".join(lines)

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=True)


@dataclass
class Session:
    """One case: what is tested lies in `source`, what the programs make in `work`."""

    kind: str
    seed: int
    work: Path
    source: Path
    case: str = ""
    findings: list[Finding] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # "ckpt-inspect verify 0", for the counts
    made: int = 0
    last: Outcome | None = None

    def report(self, rule: str, detail: object) -> None:
        finding = Finding(self.kind, self.seed, self.case, rule, str(detail)[:1200])
        self.findings.append(finding)

    def run(self, program: str, *arguments: object) -> Outcome:
        """Checks what every command promises, whatever it is given."""
        command = (str(BIN / program), *map(str, arguments))
        finished = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
        texts = [out.decode(errors="surrogateescape") for out in (finished.stdout, finished.stderr)]
        outcome = Outcome(command, finished.returncode, *texts)
        self.last = outcome
        self.ended.append(f"{program} {subcommand(program, arguments)} {outcome.code}")
        self.check_promises(outcome, "--json" in arguments)
        return outcome

    def check_promises(self, outcome: Outcome, is_json: bool) -> None:
        if outcome.code not in EXIT_CODES:
            self.report("exits with 0 to 5", outcome)
        if CONTROL_CHARACTER.search(outcome.text) or has_surrogate(outcome.text):
            self.report("prints no control characters, and UTF-8", outcome)
        if INTERNAL_WORDS.search(outcome.stderr):
            self.report("speaks of the checkpoint, not of its own parts", outcome)
        if outcome.code >= 2 and not is_refusal(outcome):
            self.report("one error line, at most one hint", outcome)
        if is_json and outcome.code in (0, 1) and not is_one_document(outcome.stdout):
            self.report("prints JSON", outcome)

    def place(self, name: str) -> Path:
        """A path in the work folder where nothing is yet."""
        self.made += 1
        return self.work / f"{self.made:02d}_{name}"

    def convert(self, program: str, source: Path, name: str, *options: object) -> Made | None:
        """Runs `program source DESTINATION options... --json`; None where it refuses."""
        destination = self.place(name)
        outcome = self.run(program, source, destination, *options, "--json")
        staged = [path for path in self.work.iterdir() if "partial" in path.name]
        if staged:
            self.report("leaves no staging", [path.name for path in staged])
            for path in staged:
                shutil.rmtree(path)
        if outcome.code == 0:
            if not destination.exists():
                self.report("what exits 0 has published", outcome)
                return None
            return Made(destination, outcome, json.loads(outcome.stdout))
        if destination.exists():
            self.report("publishes nothing where it fails", outcome)
        return None

    def convert_strictly_or_not(
        self, program: str, source: Path, name: str, *options: object
    ) -> Made | None:
        """Under --strict, or as it comes where that is refused."""
        strict = self.convert(program, source, f"strict_{name}", *options, "--strict")
        return strict or self.convert(program, source, name, *options)


@dataclass(frozen=True)
class Made:
    """The result of a conversion that exited 0."""

    path: Path
    outcome: Outcome
    report: dict


def subcommand(program: str, arguments: tuple) -> str:
    if program == "ckpt-inspect" and "/" not in str(arguments[0]):
        return str(arguments[0])
    if "--to" in arguments:
        return f"--to {arguments[arguments.index('--to') + 1]}"
    return ""


def is_refusal(outcome: Outcome) -> bool:
    """One error line and at most one hint, behind what was printed before; or a JSON document."""
    if "--json" in outcome.command:
        return is_one_document(outcome.stdout) and "error" in outcome.json()
    lines = outcome.stderr.splitlines()
    errors = [line for line in lines if ERROR_LINE.match(line)]
    hints = [line for line in lines if line.lstrip().startswith("hint: ")]
    return len(errors) == 1 and len(hints) <= 1 and len(lines) == 1 + len(hints)


def is_one_document(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
