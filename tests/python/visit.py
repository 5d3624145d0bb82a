"""Opens each of the given checkpoints and takes all that Python can take of it. Prints a line for
each: the kind of exception, or "read". Another exception than those of the module ends it."""
from __future__ import annotations

import sys
from pathlib import Path

import shardwise as sw

READ_BYTES_MAX = 1 << 20
EXPECTED = (sw.Error, TypeError, MemoryError)  # TypeError: of types that numpy has not


def take(path: Path) -> None:
    with sw.open(path) as checkpoint:
        repr(checkpoint), checkpoint.args, checkpoint.metadata, checkpoint.optimizer
        for name in [*list(checkpoint)[:20], *checkpoint.objects[:20]]:
            try:
                value = checkpoint[name]
                if isinstance(value, sw.Tensor) and value.nbytes < READ_BYTES_MAX:
                    value.chunks, value.numpy(), value[..., :1] if value.ndim else value
            except EXPECTED:
                pass
        if len(checkpoint.objects) < 10_000:
            checkpoint._repr_html_()
    if path.is_file():
        sw.load_file(path, "lazy")


def visit(path: Path) -> str:
    try:
        take(path)
    except EXPECTED as error:
        str(error)
        return type(error).__name__
    return "read"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(visit(Path(argument)), flush=True)
