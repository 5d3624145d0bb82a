"""Runs a command line as a user sees it: stdout is a terminal without colour, of 80 columns if
nothing else is said."""
import dataclasses
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "terminal"))
from pty_screen import parts_printed

STARTED = ".out.shardwise-partial/content"  # what a run that writes `out` has begun to fill
MEMORY = re.compile(r"about [0-9.]+ [KMGT]i?B of memory")  # differs from machine to machine


@dataclasses.dataclass
class Printed:
    lines: list  # stdout, then stderr
    exit_code: int


def without_capabilities(command):
    """Root may read everything; without its capabilities it is refused as other users are."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]


def shown(text, folder):
    text = text.decode("utf-8", "backslashreplace").replace("\r\n", "\n").replace(folder, "HERE")
    text = MEMORY.sub("about 24.0 MiB of memory", text)
    return [line.rstrip() for line in text.splitlines()]


def start(command, place, output, errors):
    environment = {"PATH": f"{place.programs}:{os.environ['PATH']}", "HOME": place.folder,
                   "LC_ALL": "C.UTF-8", "TERM": "xterm", "NO_COLOR": "1"}
    return subprocess.Popen(command, cwd=place.folder, env=environment, stdin=subprocess.DEVNULL,
                            stdout=output, stderr=errors)


@dataclasses.dataclass
class Place:
    folder: str
    programs: str  # the folder of the programs
    columns: int = 80

    def run(self, command_line, while_running=lambda process: None, as_user=False):
        terminal, output = pty.openpty()
        fcntl.ioctl(output, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self.columns, 0, 0))
        with tempfile.TemporaryFile() as errors:
            command = ["bash", "-c", command_line]
            process = start(without_capabilities(command) if as_user else command, self, output,
                            errors)
            while_running(process)
            text = b"".join(parts_printed(terminal, process))
            os.close(output)
            os.close(terminal)
            errors.seek(0)
            lines = shown(text, self.folder) + shown(errors.read(), self.folder)
        return Printed(lines, process.returncode)

    def end(self, command_line, ending):
        """As `run`, ended by a signal as soon as something is written to `out`."""
        def send(process):
            while process.poll() is None and not os.path.exists(f"{self.folder}/{STARTED}"):
                time.sleep(0.0005)
            process.send_signal(ending)

        for _ in range(10):  # a run may be faster than we are
            printed = self.run(f"exec {command_line}", send)
            if printed.exit_code != 0:
                break
            shutil.rmtree(f"{self.folder}/out")
        return printed
