"""examples/cluster by the engines themselves: a Slurm of one node, Open MPI, torchrun."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from programs import BIN, GOLDEN, REPOSITORY, run, succeed

EXAMPLES = REPOSITORY / "examples/cluster"
SOURCE = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
LLAMA = GOLDEN / "no_save_optim_torch_dist_dp2/ckpt"
PIECES = ("--to", "torch_dist", "--piece-size", "4K")  # small, so that each process has some

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
needs_slurm = pytest.mark.skipif(
    not all(map(shutil.which, ("srun", "slurmctld", "slurmd"))) or os.geteuid() != 0
    or not Path("/usr/sbin/munged").exists(),
    reason="needs Slurm and munge (Debian: slurm-wlm, munge), and root")
CONFIGURATION = """ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 \
ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def programs_first(**more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **more}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Slurm:
    """One node, whose daemons belong to this test."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = programs_first(SLURM_CONF=str(folder / "slurm.conf"))

    def start(self) -> None:
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir()
        shutil.chown(self.folder / "munge", "munge", "munge")
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        shutil.chown(key, "munge", "munge")
        self.call("runuser", "-u", "munge", "--", "/usr/sbin/munged", "--force",
                  f"--key-file={key}", f"--socket={self.folder}/munge/socket",
                  f"--pid-file={self.folder}/munge/pid", f"--log-file={self.folder}/munge/log",
                  f"--seed-file={self.folder}/munge/seed")
        text = CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=self.folder,
                                    ports=(free_port(), free_port()))
        (self.folder / "slurm.conf").write_text(
            text.replace("munge.socket", "munge/socket"))
        for daemon in ("slurmctld", "slurmd"):
            self.call(daemon, "-f", self.folder / "slurm.conf")
        self.wait_for(lambda: "idle" in self.call("sinfo", "-h", "-o", "%T"))

    def stop(self) -> None:
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            file = self.folder / name
            if file.exists():
                subprocess.run(["kill", file.read_text().strip()], check=False)

    def call(self, *words: object) -> str:
        done = subprocess.run(list(map(str, words)), env=self.environment, capture_output=True,
                              text=True, timeout=60, check=False, cwd=self.folder)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    @staticmethod
    def wait_for(what) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, "Slurm does not get there"
            time.sleep(0.1)

    def submit(self, *words: object) -> str:
        return self.call("sbatch", "--parsable", "--output=%j.log", *words).strip()

    def result(self, job: str) -> tuple[str, str]:
        """How it ended, and what it said."""
        def state() -> str:
            shown = self.call("scontrol", "show", "job", job, "--oneliner")
            return shown.split("JobState=")[1].split()[0]

        self.wait_for(lambda: state() not in ("PENDING", "RUNNING", "COMPLETING"))
        return state(), (self.folder / f"{job}.log").read_text()


@pytest.fixture(scope="module")
def slurm():
    # munged runs as another user, who cannot enter the folders of pytest.
    with tempfile.TemporaryDirectory(
            prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        started = Slurm(folder)
        try:
            started.start()
            yield started
        finally:
            started.stop()


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    succeed("ckpt-convert", SOURCE, folder / "out", *PIECES)
    return folder / "out"


def assert_same_files(one: Path, other: Path) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*") if path.is_file()}

    assert files(one) == files(other)


@needs_slurm
def test_four_tasks_of_slurm(slurm: Slurm, alone: Path, tmp_path: Path) -> None:
    job = slurm.submit("--nodes=1", "--ntasks-per-node=4", EXAMPLES / "convert.sbatch", SOURCE,
                       tmp_path / "out", *PIECES)
    state, said = slurm.result(job)
    assert state == "COMPLETED", said
    assert_same_files(tmp_path / "out", alone)


@needs_slurm
def test_a_killed_task_and_the_job_again(slurm: Slurm, alone: Path, tmp_path: Path) -> None:
    """One of four never runs; the same job again writes its part, and publishes."""
    once = tmp_path / "one_dies.sh"
    once.write_text('#!/bin/bash\n[ "$SLURM_PROCID" = 2 ] && kill -9 $$\nexec ckpt-convert "$@"\n')
    once.chmod(0o755)
    slurm.call("chmod", "755", tmp_path)
    batch = tmp_path / "batch"
    batch.write_text(f"#!/bin/bash\nsrun --kill-on-bad-exit=0 {once} \"$@\"\n")
    words = (SOURCE, tmp_path / "out", *PIECES, "--distributed")
    state, said = slurm.result(slurm.submit("--ntasks=4", batch, *words))
    assert state == "FAILED" and not (tmp_path / "out").exists(), said
    state, said = slurm.result(slurm.submit("--nodes=1", "--ntasks-per-node=4",
                                            EXAMPLES / "convert.sbatch", *words[:-1]))
    assert state == "COMPLETED", said
    assert_same_files(tmp_path / "out", alone)


@needs_slurm
def test_the_nightly_check(slurm: Slurm, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "ckpt", copy_function=shutil.copyfile)
    words = (EXAMPLES / "verify_nightly.sbatch", tmp_path / "ckpt", tmp_path)
    assert slurm.result(slurm.submit(*words))[0] == "COMPLETED"
    assert ElementTree.parse(tmp_path / "verify.xml").getroot()[0].get("failures") == "0"
    data = max((tmp_path / "ckpt").rglob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert slurm.result(slurm.submit(*words))[0] == "FAILED"
    assert ElementTree.parse(tmp_path / "verify.xml").getroot()[0].get("failures") != "0"


@needs_slurm
def test_each_export_until_slurm_ends_it(slurm: Slurm, tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    for iteration in (400, 500, 1000):
        shutil.copytree(next(LLAMA.glob("iter_*")), root / f"iter_{iteration:07}",
                        copy_function=shutil.copyfile)
    (root / "latest_checkpointed_iteration.txt").write_text("1000")
    job = slurm.submit(EXAMPLES / "export_each.sbatch", root, tmp_path / "out")
    slurm.wait_for(lambda: (tmp_path / "out/iter_0001000").exists())
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    slurm.result(job)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["iter_0000500", "iter_0001000"]
    assert run("ckpt-inspect", "verify", tmp_path / "out/iter_0001000", "-q").code == 0


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun (Debian: openmpi-bin)")
def test_four_processes_of_mpi(alone: Path, tmp_path: Path) -> None:
    options = "--oversubscribe" + (" --allow-run-as-root" if os.geteuid() == 0 else "")
    done = subprocess.run(
        [EXAMPLES / "convert_mpi.sh", SOURCE, tmp_path / "out", *PIECES],
        env=programs_first(PROCESSES="4", MPI_OPTIONS=options), capture_output=True, text=True,
        timeout=120, check=False)
    assert done.returncode == 0, done
    assert_same_files(tmp_path / "out", alone)


def test_four_processes_of_torchrun(alone: Path, tmp_path: Path) -> None:
    environment = programs_first(PROCESSES="4", RENDEZVOUS=f"localhost:{free_port()}")
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run([EXAMPLES / "convert_torchrun.sh", SOURCE, tmp_path / "out", *PIECES],
                          env=environment, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done
    assert_same_files(tmp_path / "out", alone)
