"""Checkpoints in several files, or in one with an optimizer beside the model, and what may have
happened to them since: a part missing or cut, a flipped bit, files beside, values that are not
finite, keys of other types.

What is expected is known from how the case was made: a damage is found and named by its file, what
is sound stays so, and what a conversion leaves behind is listed.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from checks import check_content, check_reads
from oracles import read_torch_save
from session import Session

OTHER_VALUES = (None, 1, "text", [1, 2.5], {"k": (1, "x")}, float("-inf"), b"bytes", True)
KEYS = (0, 1, 7, -1, 2**40, True, None, 1.5, (0, "a"), b"k", "0", "w")
NUMBERS = (float("nan"), float("inf"), float("-inf"))
NEEDED, BESIDE = "needed", "beside"


@dataclass
class Case:
    """What was written, and what must be said of it."""

    choice: random.Random
    path: Path  # what the programs are given
    files: dict[Path, str] = field(default_factory=dict)  # needed to read the checkpoint, or beside
    damaged: list[Path] = field(default_factory=list)  # verify finds it and names it
    is_cut: bool = False  # a needed part is gone or too short
    nonfinite: list[str] = field(default_factory=list)  # keys
    words: str = ""

    def add(self, path: Path, role: str, write: Callable[[Path], object]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        self.files[path] = role


def weights(choice: random.Random) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(choice.randrange(2**31))
    dtype = choice.choice((torch.float32, torch.bfloat16, torch.float16, torch.float64))
    shapes = [(choice.randint(1, 40), choice.randint(1, 40)) for _ in range(choice.randint(1, 4))]
    named = {f"layers.{i}.weight": shape for i, shape in enumerate(shapes)}
    named["norm.bias"] = (choice.randint(1, 64),)
    return {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in named.items()
    }


def optimizer_state(model: dict[str, torch.Tensor]) -> dict:
    """What an optimizer of PyTorch says of itself after a step: the keys are numbers."""
    parameters = [torch.nn.Parameter(tensor.float()) for tensor in model.values()]
    made = torch.optim.AdamW(parameters, lr=0.01)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.5)
    made.step()
    return made.state_dict()


def save(value: object) -> Callable[[Path], None]:
    return lambda path: torch.save(value, path)


def trainer_folder(case: Case, model: dict, optimizer: dict) -> None:
    """As Trainer of transformers and Accelerate leave it."""
    is_accelerate = case.choice.random() < 0.4
    ending = "bin" if is_accelerate else "pt"
    if case.choice.random() < 0.5:
        in_shards(case, model)
    else:
        write = lambda path: save_file(model, path, metadata={"format": "pt"})  # noqa: E731
        case.add(case.path / "model.safetensors", NEEDED, write)
    scheduler = {"last_epoch": 1, "_last_lr": [0.01], "base_lrs": [0.1]}
    case.add(case.path / f"optimizer.{ending}", BESIDE, save(optimizer))
    case.add(case.path / f"scheduler.{ending}", BESIDE, save(scheduler))
    random_state = {"cpu": torch.get_rng_state(), "python": random.Random(1).getstate()}
    if is_accelerate:
        case.add(case.path / "random_states_0.pkl", BESIDE, save(random_state))
    else:
        case.add(case.path / "rng_state.pth", BESIDE, save(random_state))
        text = json.dumps({"global_step": 1, "log_history": []})
        case.add(case.path / "trainer_state.json", BESIDE, lambda path: path.write_text(text))


def in_shards(case: Case, model: dict) -> None:
    names = list(model)
    count = case.choice.randint(1, len(names))
    files = [f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]
    shard = {name: files[i % count] for i, name in enumerate(names)}
    for file in sorted(set(shard.values())):
        part = {name: model[name] for name in names if shard[name] == file}
        case.add(case.path / file, NEEDED, lambda path, part=part: save_file(part, path))
    total = sum(tensor.nbytes for tensor in model.values())
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": shard})
    (case.path / "model.safetensors.index.json").write_text(index)


def dcp_folder(case: Case, model: dict, optimizer: dict) -> None:
    writer = dcp.FileSystemWriter(case.path, thread_count=case.choice.randint(1, 3))
    state = {"model": model, "optimizer": optimizer, "epoch": 3}
    dcp.save(state, storage_writer=writer, no_dist=True)
    case.files = {path: NEEDED for path in sorted(case.path.glob("*.distcp"))}


def one_file(case: Case, model: dict, optimizer: dict) -> None:
    other = {case.choice.choice(KEYS): case.choice.choice(OTHER_VALUES) for _ in range(3)}
    by_key = {key: torch.ones(2) * i for i, key in enumerate(case.choice.sample(KEYS, 4))}
    state = {"model": model, "optimizer": optimizer, "other": other, "by_key": by_key}
    if case.choice.random() < 0.5:
        state["best_score"] = torch.tensor(case.choice.choice(NUMBERS[1:]))
    case.add(case.path, NEEDED, save(state))


FORMS = (trainer_folder, trainer_folder, dcp_folder, one_file, one_file)


def put_nonfinite(case: Case, model: dict, optimizer: dict) -> None:
    number = case.choice.choice(NUMBERS)
    if case.choice.random() < 0.5:
        key = case.choice.choice(list(model))
        tensor = model[key]
    else:
        index = case.choice.choice(list(optimizer["state"]))
        name = case.choice.choice(("exp_avg", "exp_avg_sq"))
        key, tensor = f"{index}.{name}", optimizer["state"][index][name]
    tensor.view(-1)[case.choice.randrange(tensor.numel())] = number
    case.nonfinite.append(key)
    case.words = f"{number} in {key}"


def one_of(case: Case) -> tuple[Path, str]:
    path = case.choice.choice(sorted(case.files))
    return path, case.files[path]


def remove_a_file(case: Case) -> None:
    path, role = one_of(case)
    if path == case.path:
        return
    path.unlink()
    del case.files[path]
    case.is_cut = role == NEEDED
    # Not every loop has a scheduler; without trainer_state.json it may be another loop's folder.
    if path.name not in ("scheduler.bin", "trainer_state.json"):
        case.damaged.append(path)
    case.words = f"{path.name} removed"


def cut_a_file(case: Case) -> None:
    path, role = one_of(case)
    content = path.read_bytes()
    kept = case.choice.choice((0, 1, 100, len(content) // 2, len(content) - 1))
    path.write_bytes(content[: min(kept, len(content) - 1)])
    case.damaged.append(path)
    case.is_cut = role == NEEDED
    case.words = f"{path.name} cut to {kept} of {len(content)} bytes"


def flip_in_a_tensor(case: Case) -> None:
    """Of a file that has checksums: in the middle of its first long storage."""
    zips = [path for path in sorted(case.files) if path.read_bytes()[:2] == b"PK"]
    if not zips:
        return
    path = case.choice.choice(zips)
    content = bytearray(path.read_bytes())
    at = content.find(b"/data/0", content.find(b"data.pkl"))
    if at < 0 or path.suffix == ".distcp":
        return
    at = (at // 64 + 2) * 64  # the payload begins at a multiple of 64
    content[at] ^= 1 << case.choice.randrange(8)
    path.write_bytes(content)
    case.damaged.append(path)
    case.words = f"{path.name}: bit flipped at {at}"


def put_a_file_beside(case: Case) -> None:
    if not case.path.is_dir():
        return
    names = ("extra.pt", "notes.txt", "ema.safetensors", "sub/state.pt", "log.csv")
    name = case.choice.choice(names)
    path = case.path / name
    writers = {
        ".pt": save({"ema": torch.ones(3), 0: [1]}),
        ".txt": lambda path: path.write_text("a note"),
        ".csv": lambda path: path.write_text("step,loss\n1,2\n"),
        ".safetensors": lambda path: save_file({"ema": torch.ones(3)}, path),
    }
    case.add(path, BESIDE, writers[path.suffix])
    case.words = f"{name} beside"


CHANGES = (remove_a_file, cut_a_file, cut_a_file, flip_in_a_tensor, put_a_file_beside)


def make(session: Session, choice: random.Random) -> Case:
    form = choice.choice(FORMS)
    case = Case(choice, session.source.with_suffix(".pt") if form is one_file else session.source)
    model = weights(choice)
    optimizer = optimizer_state(model)
    if choice.random() < 0.25:
        put_nonfinite(case, model, optimizer)
    form(case, model, optimizer)
    if not case.nonfinite and choice.random() < 0.7:
        choice.choice(CHANGES)(case)
    session.case = f"{form.__name__}: {case.words or 'sound'}"
    return case


def run(session: Session, choice: random.Random) -> None:
    session.source.mkdir()
    case = make(session, choice)
    check_verdict(session, case)
    check_page(session, case)
    check_conversion(session, case)


def check_verdict(session: Session, case: Case) -> None:
    outcome = session.run("ckpt-inspect", "verify", case.path)
    said = " ".join(outcome.text.split())
    if case.damaged or case.nonfinite:
        if outcome.code not in (1, 3) and not is_gone(case):
            session.report("verify finds what is wrong", outcome)
    elif outcome.code != 0 and case.files:
        session.report("verify finds no fault in what is sound", outcome)
    for path in case.damaged:
        if outcome.code == 1 and path != case.path and path.name not in said:
            session.report("verify names the file", f"{path.name}\n{outcome}")
    for key in case.nonfinite:
        if outcome.code == 1 and key not in said.replace("/", "."):
            session.report("verify names the tensor", f"{key}\n{outcome}")


def is_gone(case: Case) -> bool:
    """Nothing is left that says what the folder holds: it is no checkpoint."""
    needed = [path for path, role in case.files.items() if role == NEEDED and path.exists()]
    return case.is_cut and len(needed) <= 1


def check_page(session: Session, case: Case) -> None:
    outcome = session.run("ckpt-inspect", case.path)
    said = " ".join(outcome.text.split())
    if case.is_cut and outcome.code == 0 and "incomplete" not in said:
        session.report("the page calls a cut checkpoint incomplete", outcome)
    if not case.damaged and outcome.code == 0 and "incomplete" in said:
        session.report("the page calls what is there complete", outcome)


def check_conversion(session: Session, case: Case) -> None:
    made = session.convert("ckpt-convert", case.path, "new.pt", "--to", "torch")
    if case.is_cut and made is not None:
        session.report("a cut checkpoint is not converted", made.outcome)
    if made is None:
        is_refused = session.last is not None and "two keys of one mapping" in session.last.text
        if not case.damaged and not is_refused:
            session.report("what is sound converts", session.last)
        return
    said = [loss["what"] for loss in made.report["not_carried"]]
    for path, role in case.files.items():
        if role == BESIDE and not any(path.name in what for what in said):
            session.report("what lies beside is listed", f"{path.name}\n{said}")
    if case.path.is_dir():
        return
    read = check_reads(session, made, lambda: read_torch_save(made.path))
    if read is not None:
        check_content(session, made, read_torch_save(case.path), read)
    check_renamed(session, case)


def check_renamed(session: Session, case: Case) -> None:
    """One key gets another name; all others keep theirs, with their types."""
    options = ("--to", "torch", "--rename", "model=renamed", "--verify")
    if case.nonfinite or case.damaged:
        return
    made = session.convert("ckpt-convert", case.path, "renamed.pt", *options)
    if made is None:
        return
    read = check_reads(session, made, lambda: read_torch_save(made.path))
    if read is None:
        return
    expected = read_torch_save(case.path)
    if "renamed" in read:
        read["model"] = read.pop("renamed")
    check_content(session, made, expected, read)
