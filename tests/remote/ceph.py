"""A Ceph of one node with an S3 gateway, in memory, on this machine alone.

Debian's ceph-mon, ceph-osd, ceph-common and radosgw; up in some 13 seconds. As a program it runs
until its standard input is closed: ceph.py FOLDER PORT [GIBIBYTES].
"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

KEY, SECRET = "AKIDEXAMPLE", "secretsecret"
PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "ceph", "monmaptool", "ceph-authtool",
            "radosgw-admin")

CONF = """[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{mon}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
run dir = {work}/run
admin socket = $run_dir/$name.$pid.asok
pid file = {work}/run/$name.pid
log file = {work}/run/$name.log
keyring = {work}/keyring
[mon.a]
mon data = {work}/mon
[osd]
osd objectstore = memstore
memstore device bytes = {bytes}
osd data = {work}/osd
[client.rgw]
rgw data = {work}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw rados pool pg num min = 1
"""


def missing():
    """Why this machine cannot run one; empty where it can."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    return f"not installed: {', '.join(absent)}" if absent else ""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Ceph:
    """Starts when it is made; close() ends it."""

    def __init__(self, work, port=None, gibibytes=1):
        self.work, self.port = Path(work).resolve(), port or free_port()
        for name in ("mon", "osd", "rgw", "run"):
            (self.work / name).mkdir(parents=True)
        fsid, mon = str(uuid.uuid4()), free_port()
        (self.work / "ceph.conf").write_text(CONF.format(
            fsid=fsid, mon=mon, work=self.work, port=self.port,
            bytes=gibibytes << 30), encoding="ascii")
        try:
            self.start(fsid, mon)
        except BaseException:
            self.close()
            raise

    def run(self, *words, check=True):
        """Daemons keep what they were started with, so no pipe is theirs."""
        with open(self.work / "run/commands.log", "a+", encoding="utf-8") as log:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env={**os.environ, "CEPH_CONF": str(self.work / "ceph.conf")},
                                  timeout=60, check=False)
        if check and done.returncode:
            log = (self.work / "run/commands.log").read_text(encoding="utf-8")
            raise RuntimeError(f"{words[0]}: {log[-500:]}")

    def run_again(self, *words, attempts=30):
        """The monitor may not be ready, or not know of what was told just now ("wrong fsid")."""
        for attempt in range(1, attempts + 1):
            try:
                return self.run(*words)
            except RuntimeError:
                if attempt == attempts:
                    raise
                time.sleep(0.5)

    def start(self, fsid, mon):
        keyring, monmap = self.work / "keyring", self.work / "monmap"
        self.run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.",
                 "--cap", "mon", "allow *")
        self.run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{mon}]",
                 "--fsid", fsid, monmap)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self.run("ceph-mon", "-i", "a")
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", str(uuid.uuid4()), check=False)
        self.run_again("ceph", "osd", "new", (self.work / "osd/fsid").read_text().strip(), "0")
        self.run_again("ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default")
        self.run_again("ceph-osd", "-i", "0")
        self.run("radosgw", "-n", "client.rgw")
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.2)
        self.run_again("radosgw-admin", "-n", "client.rgw", "user", "create", "--uid", "t",
                       "--display-name", "t", "--access-key", KEY, "--secret", SECRET)

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        """Ends the processes that it started, by their ids."""
        pids = [int(file.read_text()) for file in (self.work / "run").glob("*.pid")
                if file.read_text().strip()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.work, ignore_errors=True)


if __name__ == "__main__":
    ceph = Ceph(sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["1"])[0]))
    print(ceph.endpoint, flush=True)
    try:
        sys.stdin.read()
    finally:
        ceph.close()
