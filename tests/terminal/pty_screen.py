"""Runs a command on a terminal of a given width and renders what a person would see there."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

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
    os.close(child)
    printed = b""
    while True:
        try:
            part = os.read(parent, 1 << 16)
        except OSError:  # the program has closed the terminal
            break
        if not part:
            break
        printed += part
        if on_output:
            on_output(process, printed.decode("utf-8", "replace"))
    os.close(parent)
    code = process.wait(timeout=120)
    return printed.decode("utf-8").replace("\r\n", "\n"), code


def too_wide(lines, width):
    """Lines wider than the terminal. One word alone may be: a path that can be copied."""
    return [line for line in lines if len(line) > width and len(line.split()) > 1]
