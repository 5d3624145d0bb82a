"""Times of work on this GPU, and the rows that they become."""
import json
import statistics
import time

import kernels
import torch

REPEATS, WARMUPS = 25, 5
CYCLES_PER_MS = 2_000_000  # of the device, about


def sized(number, on_cpu_divided_by):
    """A size, or in a dry run what a CPU can do."""
    return number if kernels.where == "cuda" else number // on_cpu_divided_by


def free_memory():
    if kernels.where == "cuda":
        torch.cuda.empty_cache()


def times_ms(work, before=lambda: None, ahead_ms=0.2):
    """Device times of single calls, in milliseconds; `before` runs before each, not timed. The host
    queues a call while the device still waits for `ahead_ms`, so that short work is not timed by
    its launches; 0 where they are what a user waits for."""
    if kernels.where == "cpu":
        before()
        begin = time.perf_counter()
        work()
        return [1e3 * (time.perf_counter() - begin)]
    for _ in range(WARMUPS):
        before()
        work()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
              for _ in range(REPEATS)]
    for begin, end in events:
        before()
        if ahead_ms > 0:
            torch.cuda._sleep(int(ahead_ms * CYCLES_PER_MS))
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


class Rows:
    """Results: one row per measurement, in the file as soon as it is known."""

    def __init__(self, file, part):
        self.file, self.part, self.rows = file, part, []

    def save(self):
        results = json.loads(self.file.read_text()) if self.file.exists() else {}
        results["device"] = torch.cuda.get_device_name() if kernels.where == "cuda" else "dry run"
        results["torch"] = torch.__version__
        results.setdefault("parts", {})[self.part] = self.rows
        self.file.write_text(json.dumps(results, indent=2) + "\n")

    def add(self, name, ours, yardstick=None, goal=None, **more):
        """`ours`, `yardstick`: lists of milliseconds. The ratio is yardstick / ours."""
        if kernels.where == "cpu":
            self.rows.append({"name": name, "dry_run": True})
            self.save()
            print("tried:", name, flush=True)
            return
        row = {"name": name, "ms": statistics.median(ours), "min_ms": min(ours),
               "max_ms": max(ours), **more}
        if yardstick is not None:
            row["yardstick_ms"] = statistics.median(yardstick)
            row["ratio"] = row["yardstick_ms"] / row["ms"]
            row["goal"] = goal
        self.rows.append(row)
        self.save()
        print(format_row(row), flush=True)


def format_row(row):
    text = f"{row['name']:<66} {row['ms']:>10.4f} ms"
    if "gb_per_s" in row:
        text += f" {row['gb_per_s']:>7.0f} GB/s"
    if "of_peak" in row:
        text += f" ({row['of_peak']:.3f} of the memory's peak, goal {row['of_peak_goal']})"
    if "tflop_per_s" in row:
        text += f" {row['tflop_per_s']:>7.0f} TFLOP/s"
    if "model_ms" in row:
        text += f", by the model {row['model_ms']:.4f} ms"
    if "ratio" in row:
        text += f"  yardstick {row['yardstick_ms']:.4f} ms, ratio {row['ratio']:.3f}"
    if row.get("goal"):
        text += f", goal {row['goal']}: {'met' if row['ratio'] >= row['goal'] else 'MISSED'}"
    return text
