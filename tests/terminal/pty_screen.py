"""Runs a command on a terminal of a given width and renders what a person would see there."""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

POLL_SECONDS = 0.01
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Screen:
    """The lines of a terminal that is never full: carriage returns, line ends, erasing to the end.

    Lines longer than `width` are kept as they are, for a test to find.
    """

    def __init__(self, text):
        self.lines = [""]
        self.column = 0
        self.drawn = []  # every state of a line that was redrawn in place
        text = COLOUR.sub("", text)
        at = 0
        while at < len(text):
            if text.startswith("\x1b[K", at):
                self.lines[-1] = self.lines[-1][: self.column]
                at += 3
                continue
            self.take(text[at])
            at += 1

    def take(self, character):
        if character == "\n":
            self.lines.append("")
            self.column = 0
        elif character == "\r":
            if self.lines[-1]:
                self.drawn.append(self.lines[-1])
            self.column = 0
        else:
            line = self.lines[-1]
            self.lines[-1] = line[: self.column] + character + line[self.column + 1:]
            self.column += 1

    def text(self):
        return "\n".join(self.lines)


def parts_printed(parent, process):
    """What `process` prints on a terminal, until it ends. Our end of its side has to stay open.

    Linux may answer EIO to who waits while the last writer writes and closes (n_tty_read asks for
    input first, and then whether the other side is closed): the last lines would be lost.
    """
    os.set_blocking(parent, False)
    has_ended = False
    while not has_ended:
        has_ended = process.poll() is not None
        try:
            while part := os.read(parent, 1 << 16):
                yield part
        except BlockingIOError:
            select.select([parent], [], [], POLL_SECONDS)


def run_on_terminal(command, width, environment=None, on_output=None):
    """(what was printed on stdout and stderr, both the terminal; exit code)

    `on_output(process, text)` is called after each part, with all that was printed so far.
    """
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    surroundings = {"PATH": os.environ["PATH"], "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    surroundings.update(environment or {})
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child,
        env={name: value for name, value in surroundings.items() if value is not None})
    printed = b""
    for part in parts_printed(parent, process):
        printed += part
        if on_output:
            on_output(process, printed.decode("utf-8", "replace"))
    os.close(child)
    os.close(parent)
    code = process.wait(timeout=120)
    return printed.decode("utf-8").replace("\r\n", "\n"), code


def too_wide(lines, width):
    """Lines wider than the terminal. One word alone may be: a path that can be copied."""
    return [line for line in lines if len(line) > width and len(line.split()) > 1]
