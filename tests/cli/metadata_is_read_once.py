#!/usr/bin/env python3
"""The page about a checkpoint opens each metadata file once, and reads at most 1.2 of its bytes.

usage: metadata_is_read_once.py CKPT_INSPECT GOLDEN     GOLDEN: a folder of checkpoints
Exits with 77, which CTest counts as skipped, where strace cannot trace.
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

METADATA = ("latest_checkpointed_iteration.txt", ".metadata", "metadata.json", "common.pt")
SETS = ("lw_muon_bf16_torch_dist_dp2", "do_adam_bf16_torch_dist_dp_reshardable_dp2",
        "do_adam_bf16_torch_dist_fully_reshardable_dp2", "lw_muon_bf16_torch_dp2",
        "v012_do_adam_fully_sharded_dp2")
BYTES_READ_MAX = 1.2
SKIPPED = 77
OPENED = re.compile(r"^open(?:at2?)?\(.* = \d+<(?P<path>[^>]*)>$")
READ = re.compile(r"^p?readv?(?:64)?\(\d+<(?P<path>[^>]*)>.* = (?P<bytes>\d+)$")


def system_calls(log):
    """The calls of all threads, each whole: another thread's may come between its two halves."""
    begun = {}
    for line in log.read_text(errors="replace").splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[thread] = call.removesuffix("<unfinished ...>")
            continue
        resumed = re.match(r"^<\.\.\. \w+ resumed>(.*)$", call)
        yield begun.pop(thread, "") + resumed[1] if resumed else call


def traced(command, log):
    calls = "trace=open,openat,openat2,read,pread64,readv,preadv"
    done = subprocess.run(["strace", "-f", "-y", "-e", calls, "-o", log, *command],
                          capture_output=True, check=False)
    opens, count_bytes = collections.Counter(), collections.Counter()
    for call in system_calls(log):
        if opened := OPENED.match(call):
            opens[opened["path"]] += 1
        elif read := READ.match(call):
            count_bytes[read["path"]] += int(read["bytes"])
    return done.returncode, opens, count_bytes


def faults_of(checkpoint, inspect, log):
    code, opens, count_bytes = traced([inspect, checkpoint], log)
    faults = [] if code == 0 else [f"{checkpoint}: exit code {code}"]
    files = [path for path in sorted(checkpoint.rglob("*")) if path.name in METADATA]
    if not files:
        faults.append(f"{checkpoint}: no metadata file")
    for path in files:
        name = str(path.resolve())
        if opens[name] != 1:
            faults.append(f"{name}: opened {opens[name]} times")
        if count_bytes[name] > BYTES_READ_MAX * path.stat().st_size:
            faults.append(f"{name}: {count_bytes[name]} of {path.stat().st_size} bytes read")
    return faults


def can_trace(log):
    try:
        return traced(["true"], log)[0] == 0
    except FileNotFoundError:
        return False


def main(inspect, golden):
    with tempfile.TemporaryDirectory(prefix="shardwise-reads-") as folder:
        log = pathlib.Path(folder) / "calls"
        if not can_trace(log):
            return SKIPPED
        faults = [fault for name in SETS
                  for fault in faults_of(pathlib.Path(golden) / name / "ckpt", inspect, log)]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
