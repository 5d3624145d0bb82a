"""What tests of object stores share: samples, programs, results."""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile

from ceph import KEY, SECRET

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TOKEN = "FwoGZXIvYXdzEXAMPLETOKEN"
LONG = os.environ.get("SHARDWISE_LONG_TESTS") == "1"
BIN = STORE = WORK = None  # of test_remote.py

# A name in the bucket, and what is there.
FOLDERS = {
    "dist root": GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt",
    "ranks+%2f&": GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt",
}
FILE = GOLDEN / "torch_save_zip" / "zip.pt"


def environment(endpoint=None, **variables):
    """Of a user who has no other settings."""
    base = {"PATH": os.environ["PATH"], "HOME": str(WORK), "LC_ALL": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": endpoint or STORE.endpoint, "TMPDIR": str(WORK)}
    return {k: v for k, v in {**base, **variables}.items() if v is not None}


def run(*words, env=None):
    """Exit code, stdout and stderr of a program; no secret is ever in these."""
    done = subprocess.run([BIN / words[0], *map(str, words[1:])], env=env or environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          check=False)
    for secret in (SECRET, TOKEN):
        assert secret not in done.stdout + done.stderr, done
    return done.returncode, done.stdout, done.stderr


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes()
            for p in sorted(folder.rglob("*")) if p.is_file()}


def write_safetensors(path, count, rows):
    """Tensors of 4 KiB a row, of bytes that do not repeat."""
    numbers, size = random.Random(1), rows << 12
    header = {f"layer.{i}.weight": {"dtype": "I32", "shape": [rows, 1024],
                                    "data_offsets": [i * size, (i + 1) * size]}
              for i in range(count)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in header:
            file.write(numbers.randbytes(size))


class Fresh:
    """A folder for results."""

    def __enter__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(dir=WORK))
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path)
