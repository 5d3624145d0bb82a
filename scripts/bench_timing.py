"""Runs contestants one after the other under equal conditions, and keeps what each run took."""
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


# Who is terminated removes the gigabytes that were written for it, as who ends does.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@dataclass
class Contestant:
    name: str
    command: list
    source: Path = None
    output: Path = None
    reports_seconds: bool = False  # its last line of output is the time that counts


def files_of(path):
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def size_of(path):
    return sum(file.stat().st_size for file in files_of(path))


def warm(path):
    buffer = bytearray(4 << 20)
    for name in files_of(path):
        with open(name, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cool(path):
    """Nothing of the files is left in the page cache."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:  # not root: these files at least
        for name in files_of(path):
            descriptor = os.open(name, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


TOUCH = ("import mmap, sys; count = int(sys.argv[1]) << 30\n"
         "memory = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
         "memory.madvise(mmap.MADV_HUGEPAGE)\n"
         "memory[::mmap.PAGESIZE] = b'1' * (count // mmap.PAGESIZE)")


def touch(count_gib):
    """Lets the host of a virtual machine lend so much memory now, which it may have taken back when
    it was freed, and not in the middle of what is timed. In a process of its own: whoever is
    started later by one that had much memory is said to have had it, too."""
    if count_gib > 0:
        subprocess.run([sys.executable, "-c", TOUCH, str(count_gib)], check=True)


def remove(path):
    if path is None:
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run(contestant):
    """Seconds, CPU-seconds, peak resident bytes and bytes read of one run, as the kernel accounts
    them."""
    began = time.perf_counter()
    process = subprocess.Popen([str(word) for word in contestant.command],
                               stdout=subprocess.PIPE if contestant.reports_seconds else
                               subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    output = process.stdout.read() if contestant.reports_seconds else None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    seconds = time.perf_counter() - began
    account = dict(line.split(": ") for line in
                   Path(f"/proc/{process.pid}/io").read_text().splitlines())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{contestant.name} failed: {' '.join(map(str, contestant.command))}")
    if contestant.reports_seconds:
        seconds = float(output.split()[-1])
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime,
            "peak_bytes": usage.ru_maxrss * 1024,
            "bytes_read": int(account["rchar"]), "bytes_from_disk": int(account["read_bytes"])}


def interleave(title, contestants, cold, options):
    """Rounds of all contestants, each round begun by the next one, as memory that one of them has
    freed slows down or speeds up who follows; each starts after the same idle time. Appends to the
    results."""
    for number in range(options.repeat):
        first = number % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            remove(contestant.output)
            (cool if cold else warm)(contestant.source)
            time.sleep(options.settle)
            if cold:  # what is in the page cache might have to go
                touch(options.touch)
            result = {"title": title, "cold": cold, "name": contestant.name,
                      "source_bytes": size_of(contestant.source), **run(contestant)}
            remove(contestant.output)
            print(f"  {title}, {'cold' if cold else 'warm'}, {contestant.name}: "
                  f"{result['seconds']:.3f} s", file=sys.stderr)
            with open(options.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")


def read_results(path):
    """{(title, cold): {contestant: [results]}} in the order of the file."""
    groups = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        group = groups.setdefault((result["title"], result["cold"]), {})
        group.setdefault(result["name"], []).append(result)
    return groups


def median(results, field="seconds"):
    return statistics.median(result[field] for result in results)


def cpu_text(results, gigabytes):
    """CPU-seconds per GB, and their parts: user and system."""
    whole, user, system = (median(results, f"{part}_seconds") / gigabytes
                           for part in ("cpu", "user", "system"))
    return f"{whole:.2f} ({user:.2f} + {system:.2f})"


def print_table(title, cold, group):
    """Ours is the first contestant; the others are compared with its run of the same round."""
    gigabytes = next(iter(group.values()))[0]["source_bytes"] / 1e9
    ours = next(iter(group.values()))
    print(f"\n### {title}, {gigabytes:.2f} GB, {'cold' if cold else 'warm'}\n")
    print("| | median | fastest | slowest | runs | ours is faster by "
          "| CPU-s per GB (user + system) | peak memory |\n|---|---|---|---|---|---|---|---|")
    for name, results in group.items():
        seconds = [result["seconds"] for result in results]
        ratios = [b["seconds"] / a["seconds"] for a, b in zip(ours, results)]
        faster = "" if results is ours else (f"{statistics.median(ratios):.2f} "
                                             f"({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {name} | {median(results):.2f} s | {min(seconds):.2f} s | {max(seconds):.2f} s | "
              f"{len(seconds)} | {faster} | {cpu_text(results, gigabytes)} | "
              f"{max(result['peak_bytes'] for result in results) / 1e6:.0f} MB |")
