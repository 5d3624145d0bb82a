#!/usr/bin/env python3
"""The progress line on terminals of 60, 80 and 120 columns: it is never wider than the terminal,
and nothing of it is left when something else is printed, also after an error and after a signal.

usage: progress.py BIN fast_clock.so
"""
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

from commands import GOLDEN, lay_out, programs, remove_outputs
from pty_screen import Screen, run_on_terminal, too_wide

PROGRESS = re.compile(r"\d%|s left|not started yet")

COMMANDS = [
    ("ckpt-convert", ["ckpt", "out", "--to", "torch", "--verify"], 0),
    ("ckpt-convert", ["ckpt", "out", "--to", "torch", "--verify", "-v"], 0),
    ("ckpt-convert", ["ckpt", "out", "--to", "safetensors", "--json"], 0),
    ("ckpt-convert", ["damaged", "out", "--to", "torch", "-j", "1"], 3),
    ("reshard", ["ckpt", "out", "--dp", "4"], 0),
    ("ckpt-inspect", ["verify", "ckpt"], 0),
    ("ckpt-inspect", ["hash", "ckpt"], 0),
    ("ckpt-inspect", ["diff", "ckpt", "torch"], 0),
    ("ckpt-inspect", ["diff", "ckpt", "model.pt"], 1),
    ("ckpt-inspect", ["verify", "damaged"], 1),
    ("step-replay", ["run", "torch", "--grads", "expected", "--from-init", "-o", "out"], 0),
]


def damage(folder):
    """A copy of a checkpoint with one byte of a tensor changed, which is found while copying."""
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", folder)
    data = max(folder.rglob("*.distcp"), key=lambda path: path.stat().st_size)
    data.chmod(0o644)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def write_big_file(path, count=8, tensor_bytes=8 << 20):
    """safetensors of zeros, with time for a signal while they are converted."""
    header = json.dumps({f"w{i}": {
        "dtype": "U8", "shape": [tensor_bytes],
        "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes]} for i in range(count)})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + count * tensor_bytes)


def signal_faults(stop, width, clock):
    """A signal while the line stands; where the work was faster, it is repeated."""
    def send_once_drawn(process, text):
        if PROGRESS.search(text) and not sent:
            sent.append(True)
            process.send_signal(stop)

    for _ in range(10):
        sent = []
        remove_outputs(pathlib.Path())
        command = ["ckpt-convert", "big.safetensors", "out", "--to", "torch_dist", "-j", "1"]
        printed, code = run_on_terminal(command, width, {"LD_PRELOAD": clock}, send_once_drawn)
        if code == 128 + stop:
            break
    else:
        yield f"exit code {code}: no signal came in time"
    for line in Screen(printed).lines:
        if PROGRESS.search(line):
            yield f"left of the progress: {line}"


def faults(command, code, width, clock):
    printed, found_code = run_on_terminal(command, width, {"LD_PRELOAD": clock})
    screen = Screen(printed)
    drawn = [line for line in screen.drawn if PROGRESS.search(line)]
    if found_code != code:
        yield f"exit code {found_code}, not {code}: {screen.text()}"
    if not drawn and code < 2:  # damage may be met before anything is drawn
        yield "no progress was drawn: the test proves nothing"
    for line in drawn:
        if len(line) >= width:
            yield f"{len(line)} columns of progress: {line}"
    is_document = "--json" in command  # whole lines, whatever the terminal
    for line in [] if is_document else too_wide(screen.lines, width):
        yield f"{len(line)} columns: {line}"
    for line in screen.lines:
        if PROGRESS.search(line):
            yield f"left of the progress: {line}"


def main():
    bin_folder, clock = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    failed = runs = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lay_out(folder)
        damage(folder / "damaged")
        write_big_file(folder / "big.safetensors")
        os.chdir(folder)
        for stop in (signal.SIGINT, signal.SIGTERM):
            runs += 1
            for fault in signal_faults(stop, 80, clock):
                failed += 1
                print(f"{stop.name}: {fault}")
        built = programs(pathlib.Path(bin_folder))
        for program, arguments, code in [row for row in COMMANDS if row[0] in built]:
            for width in (60, 80, 120):
                remove_outputs(folder)
                runs += 1
                for fault in faults([program, *arguments], code, width, clock):
                    failed += 1
                    print(f"{program} {' '.join(arguments)} at {width} columns: {fault}")
        os.chdir("/")
    print(f"{runs} runs, {failed} faults; {', '.join(programs(pathlib.Path(bin_folder)))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
