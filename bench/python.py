#!/usr/bin/env python3
"""The cost of the Python package's calls in nanoseconds: PYTHONPATH=build/python bench/python.py [--json]

Prints the best of several rounds, without the cost of the loop. WEIR_DRIVER selects the device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import weir
from weir import _weir


def best(function, repeats: int, rounds: int = 9) -> float:
    def run(what) -> float:
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            what()
        return (time.perf_counter_ns() - begin) / repeats

    def nothing() -> None:
        pass

    loop = min(run(nothing) for _ in range(rounds))
    return max(min(run(function) for _ in range(rounds)) - loop, 0.0)


def pair(size: int) -> float:
    """Times an allocation and its release in a loop of plain statements."""
    buffer = weir.buffer
    times = []
    for _ in range(9):
        begin = time.perf_counter_ns()
        for _ in range(100_000):
            buffer(size)
        spent = time.perf_counter_ns() - begin
        begin = time.perf_counter_ns()
        for _ in range(100_000):
            pass
        times.append((spent - (time.perf_counter_ns() - begin)) / 100_000)
    return min(times)


def stack(frames: int) -> float:
    def deep(n: int) -> float:
        return min(_weir._time_frames(20_000) for _ in range(9)) if n == 0 else deep(n - 1)

    return deep(frames - _weir._gather_frames() - 2)


PAIRS = """
from weir import _weir
def deep(n):
    return [_weir._time_pairs(20_000) for _ in range(15)] if n == 0 else deep(n - 1)
def best(n):
    times = deep(n)
    return min(times)
import weir
weir.buffer(512)
print(best(10 - _weir._gather_frames() - 3))  # without the module, best, the list, and with the rest in deep
"""


def recorded(stacks: str | None) -> float:
    """Times an allocation of 512 bytes and its free, called from C under ten Python frames, in a process that records
    itself to a ring file (a small one in /dev/shm: the ring wraps around, and its pages are resident)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        env = dict(os.environ)
        if stacks:
            env.update(WEIR_RECORD=folder, WEIR_RECORD_MB="4", WEIR_RECORD_STACKS=stacks)
        command = [sys.executable, "-c", PAIRS]
        return min(float(subprocess.check_output(command, env=env)) for _ in range(3))


def import_time() -> float:
    """Times `import weir`, without the start of Python, in nanoseconds."""

    def run(code: str) -> float:
        begin = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter_ns() - begin

    return min(run("import weir") for _ in range(7)) - min(run("pass") for _ in range(7))


def measure() -> dict[str, tuple[float, float | None]]:
    """Returns, by name, the time of each measurement and its upper bound."""
    weir.buffer(4096)
    results: dict[str, tuple[float, float | None]] = {
        "buffer(4096) and its release": (pair(4096), 400),
        "buffer(4 MiB) and its release": (pair(4 << 20), None),
        "memory_stats()": (best(weir.memory_stats, 2000), 20_000),
        "memory_stats_as_nested_dict()": (best(weir.memory_stats_as_nested_dict, 2000), None),
        "memory_allocated()": (best(weir.memory_allocated, 5000), None),
        "a stack of 10 frames": (stack(10), 500),
        "a stack of 50 frames": (stack(50), None),
    }
    weir.memory._record_memory_history(context=None, max_entries=10_000)
    results["buffer(4096) and its release, history recorded"] = (pair(4096), None)
    weir.memory._record_memory_history(context="alloc", stacks="python", max_entries=10_000)
    results["the same with Python stacks"] = (pair(4096), None)
    weir.memory._record_memory_history(None)
    off = recorded(None)
    results["a pair from C"] = (off, None)
    results["added by a ring file without stacks"] = (recorded("none") - off, None)
    results["added by a ring file with stacks of 10 frames"] = (recorded("alloc") - off, 150)
    results["import weir"] = (import_time(), 30e6)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object of names and nanoseconds")
    parser.add_argument("--check", action="store_true", help="fail if a measurement exceeds its bound")
    options = parser.parse_args()
    results = measure()
    if options.json:
        print(json.dumps({name: round(spent, 1) for name, (spent, _) in results.items()}, indent=2))
    else:
        print(f"{weir.get_device_name()}, Python {sys.version.split()[0]}")
        for name, (spent, bound) in results.items():
            print(f"{name:<46} {spent:>12.0f} ns" + (f"   at most {bound:.0f}" if bound else ""))
    slow = [name for name, (spent, bound) in results.items() if bound and spent > bound]
    if options.check and slow:
        print("too slow: " + ", ".join(slow), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
