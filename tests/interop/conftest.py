"""What the interoperability tests share: generated checkpoints, and what our programs make of them.

Environment:
    SHARDWISE_BIN        programs; default build/bin
    SHARDWISE_SHARED     real checkpoints; default ../shared beside the repository, whose tests are
                         skipped if it is absent
    SHARDWISE_GENERATED  a folder that scripts/make_golden.py wrote earlier; default: generated
                         once per run
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import parallel_sets
from programs import BIN, RECORDED, REPOSITORY, run

sys.path.insert(0, str(REPOSITORY / "scripts"))  # golden: the table of generated cases
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    # Megatron-Core warns of everything that a machine without a GPU lacks.
    config.addinivalue_line("filterwarnings", "ignore")
    logging.disable(logging.WARNING)  # PyTorch's DCP logs every step


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scripts/make_golden.py, all cases."""
    if "SHARDWISE_GENERATED" in os.environ:
        return Path(os.environ["SHARDWISE_GENERATED"]).resolve()
    out = tmp_path_factory.mktemp("generated")
    command = [sys.executable, str(REPOSITORY / "scripts/make_golden.py"), "--out", str(out)]
    subprocess.run(command, check=True, timeout=300)
    return out


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Small checkpoints that real programs wrote."""
    return RECORDED


class Products:
    """What our programs make, each command run once per session."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.made: dict[tuple[str, ...], Path] = {}

    def make(self, program: str, source: Path, *options: object) -> Path:
        """Runs `program source TARGET options...`; fails the test that needs it if that fails."""
        key = (program, str(source), *map(str, options))
        if key not in self.made:
            target = self.folder / f"{len(self.made):03d}"
            outcome = run(program, source, target, *options)
            if outcome.code != 0:
                pytest.fail(str(outcome))
            self.made[key] = target
        return self.made[key]

    def convert(self, source: Path, to: str) -> Path:
        return self.make("ckpt-convert", source, "--to", to)

    def reshard(self, source: Path, dp_size: int) -> Path:
        return self.make("reshard", source, "--dp", dp_size)


@pytest.fixture(scope="session")
def products(tmp_path_factory: pytest.TempPathFactory) -> Products:
    if not BIN.is_dir():
        pytest.skip(f"{BIN} is not there: build first, or set SHARDWISE_BIN")
    return Products(tmp_path_factory.mktemp("products"))


@pytest.fixture
def copied(tmp_path: Path):
    """copied(folder) -> a writable copy of it, alone in a folder of its own."""

    def copy(source: Path) -> Path:
        target = tmp_path / "damaged" / source.name
        shutil.copytree(source, target, copy_function=shutil.copyfile)
        return target

    return copy


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints that Megatron wrote at many parallel sizes."""
    return parallel_sets.unpacked(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="session")
def reshards(sets: Path, tmp_path_factory: pytest.TempPathFactory) -> parallel_sets.Reshards:
    return parallel_sets.Reshards(sets, tmp_path_factory.mktemp("resharded"))


@pytest.fixture(scope="session")
def aware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("precision_aware")
    command = [sys.executable, str(REPOSITORY / "scripts/make_golden.py"), "--precision-aware"]
    subprocess.run([*command, "--out", str(out)], check=True, timeout=300)
    return out
