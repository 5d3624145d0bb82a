"""Checkpoints that training programs write go through every command and conversion, and back.

The program that wrote one loads what became of it, and takes the step that it would have taken.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist

import real_programs
from programs import BIN, damage_of, run, succeed, verify
from real_programs import PROGRAMS, is_installed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

# Commands that read one checkpoint -> exit codes that they may have on a plain one.
COMMANDS = {
    (): {0},
    ("ls",): {0},
    ("tree",): {0},
    ("show", "--stats"): {0},
    ("hash",): {0},
    ("hash", "--logical"): {0},
    ("verify",): {0},
    ("verify", "--quick"): {0},
    ("groups",): {0, 4, 5},
    ("lineage",): {0, 4, 5},
    ("latest",): {4, 5},
}

# (file, container): it lacks something that loading asks for; that has to be listed.
LACKING = {("scheduler.pt", "torch_dist")}  # lr_lambdas, a list of empty mappings
# What a container has no place for. All else has to be carried.
NO_PLACE = ("becomes a dict", "an empty mapping")


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    real_programs.quiet()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Saved:
    """What a program saved, and the parameters after its next step."""

    def __init__(self, name: str, folder: Path):
        self.program = PROGRAMS[name]
        self.folder = folder
        folder.mkdir()
        if name == "HfTrainer":
            folder.rmdir()  # it is renamed into its place
        self.end = self.program.save(folder)

    def check_resumes(self, folder: Path) -> None:
        found = self.program.resume(folder)
        assert found.keys() == self.end.keys()
        different = [name for name in found if not found[name].equal(self.end[name])]
        assert not different, f"the next step from {folder} is another one"

    def copy(self, folder: Path) -> Path:
        shutil.copytree(self.folder, folder)
        return folder


@pytest.fixture(scope="module", params=PROGRAMS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    if not is_installed(PROGRAMS[request.param]):
        pytest.skip(f"not installed: {PROGRAMS[request.param].needs}")
    return Saved(request.param, tmp_path_factory.mktemp(request.param) / "saved")


def check_commands(path: Path, out: Path) -> None:
    for command, codes in COMMANDS.items():
        outcome = run("ckpt-inspect", *command[:1], path, *command[1:])
        assert outcome.code in codes, outcome
    succeed("ckpt-inspect", "report", path, "-o", out, "--force")
    succeed("ckpt-inspect", "diff", path, path)
    code, document = verify(path)
    assert code == 0 and not damage_of(document), document


def same(a: object, b: object) -> bool:
    """Equal to the bit and of the same types, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.equal(b)
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and numpy.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            type(key) is type(other) and same(a[key], b[other])
            for key, other in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b) or vars_of(a) == vars_of(b) is not None


def vars_of(value: object) -> object:
    return getattr(value, "__dict__", None)


def load(path: Path) -> object:
    return torch.load(path, weights_only=False)


def convert(source: Path, target: Path, *options: object) -> list[dict]:
    """What the program lists as changed or not carried."""
    document = succeed("ckpt-convert", source, target, *options, "--verify", "--json").json()
    return document["not_carried"]


def losses_of(listed: list[dict]) -> list[dict]:
    """What is gone; not what is the same in another form."""
    return [
        each
        for each in listed
        if not each["changed"] and not any(reason in each["reason"] for reason in NO_PLACE)
    ]


def test_every_command_takes_what_a_program_saved(saved: Saved, tmp_path: Path) -> None:
    for name in saved.program.files:
        check_commands(saved.folder / name, tmp_path / "report.html")
    if hasattr(saved.program, "weights"):
        check_commands(saved.folder / saved.program.weights, tmp_path / "report.html")
        check_commands(saved.folder, tmp_path / "report.html")


def test_a_program_resumes_from_its_own_checkpoint(saved: Saved) -> None:
    saved.check_resumes(saved.folder)


@pytest.mark.parametrize("way", ["torch", "torch_dist", "renamed"])
def test_a_program_resumes_from_what_was_converted_and_back(
    way: str, saved: Saved, tmp_path: Path
) -> None:
    folder = saved.copy(tmp_path / "resumed")
    for name in saved.program.files:
        path, back = saved.folder / name, folder / name
        listed = convert_and_back(path, back, way, tmp_path)
        assert listed or same(load(path), load(back)), f"{name}: a change is not listed"
        assert not losses_of(listed)
        check_commands(back, tmp_path / "report.html")
        if (name, way) in LACKING:
            assert listed
            shutil.copyfile(path, back)
    saved.check_resumes(folder)


def convert_and_back(path: Path, back: Path, way: str, work: Path) -> list[dict]:
    """Writes `back`, which is there, from `path`, and returns what was listed on the way."""
    suffix = "" if way == "torch_dist" else path.suffix  # which names a kind of file
    between = work / f"between_{path.stem}{suffix}"
    there, again = ["--to", way], ["--to", "torch"]
    if way == "renamed":
        key = next(iter(load(path)))
        there = ["--to", "torch", "--rename", f"{key}=kept"]
        again += ["--rename", f"kept={key}"]
    listed = convert(path, between, *there)
    check_commands(between, work / "report.html")
    return listed + convert(between, back, *again, "--force")


@pytest.fixture(scope="module")
def of_fsdp2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp2")
    arguments = (folder, str(BIN / "ckpt-convert"))
    torch.multiprocessing.spawn(real_programs.run_of_fsdp2, arguments, nprocs=2)
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_fsdp2_resumes_from_a_dcp_folder_that_was_a_file(rank: int, of_fsdp2: Path) -> None:
    equal = (of_fsdp2 / f"equal_{rank}.json").read_text()
    assert equal == '{"dcp": true, "back": true}'


def test_the_file_of_a_dcp_folder_is_what_pytorch_makes_of_it(
    of_fsdp2: Path, tmp_path: Path
) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(of_fsdp2 / "dcp", tmp_path / "wanted.pt")
    assert same(load(of_fsdp2 / "file.pt"), load(tmp_path / "wanted.pt"))


def test_every_command_takes_what_fsdp2_saved(of_fsdp2: Path, tmp_path: Path) -> None:
    for name in ("dcp", "file.pt", "back"):
        check_commands(of_fsdp2 / name, tmp_path / "report.html")
    for kind in ("model", "optim"):
        for rank in (0, 1):
            path = of_fsdp2 / f"{kind}_world_size_2_rank_{rank}.pt"
            check_commands(path, tmp_path / "report.html")
            said = " ".join(succeed("ckpt-inspect", path).text.split())
            assert f"this file holds part {rank + 1} of 2" in said
            assert f"shard {rank + 1} of 2, one of 2 files; the others are beside it" in said
