#!/usr/bin/env python3
"""Measures what a recording with Python stacks adds to an allocation under PyTorch: one command, a table in Markdown.

    python3 bench/torch/stacks.py [--package build/torch] [--frames 10] [--rounds 5] [--json]

Each way of recording has its own processes, which alternate, and the best of their rounds counts. A pair is an
allocation of 512 bytes and its free, through PyTorch's allocator interface from C++, called with the GIL held from
nested Python functions; the other column is torch.empty() at the same depth. The added time is the difference to the
same allocator without recording. PyTorch records with _record_memory_history and Python stacks; Weir with WEIR_RECORD
and WEIR_RECORD_STACKS=alloc to a file of 16 MiB in /dev/shm, so that the ring wraps around and its pages are resident.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile

from tools import HERE, PACKAGE, compile_library, environment

WAYS = {  # name: (uses Weir, recording)
    "PyTorch, off": (False, None),
    "PyTorch, no stacks": (False, "plain"),
    "PyTorch, Python stacks": (False, "python"),
    "Weir, off": (True, None),
    "Weir, ring file": (True, "none"),
    "Weir, ring file with Python stacks": (True, "alloc"),
    "Weir, with native frames": (True, "alloc,native"),
}
PAIRS = 20_000


def compile_pairs(folder):
    return compile_library(os.path.join(HERE, "stacks.cpp"), os.path.join(folder, "libbench_stacks.so"))


def measure(path, history, frames):
    """Runs in a process of its own: prints the best times of a pair and of torch.empty()."""
    import time

    import torch

    torch.empty(128, device="cuda")
    if history == "plain":
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=100_000)
    elif history == "python":
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=100_000)
    call = ctypes.PyDLL(path).bench_pairs
    call.argtypes, call.restype = [ctypes.c_long, ctypes.c_size_t], ctypes.c_double

    def pairs():
        return call(PAIRS, 512)

    def empties():
        empty = torch.empty
        begin = time.perf_counter_ns()
        for _ in range(PAIRS):
            empty(128, device="cuda")
        return (time.perf_counter_ns() - begin) / PAIRS

    def deep(n, function):
        return function() if n == 0 else deep(n - 1, function)

    def depth():
        frame, count = sys._getframe(), 0
        while frame:
            frame, count = frame.f_back, count + 1
        return count

    best = []
    for function in (pairs, empties):
        level = max(0, frames - deep(0, depth))
        best.append(min(deep(level, function) for _ in range(15)))
    print(json.dumps(best), flush=True)
    os._exit(0)


def run(way, path, package, frames):
    weir, history = WAYS[way]
    env = environment(package, weir)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if weir and history:
            env.update(WEIR_RECORD=folder, WEIR_RECORD_MB="16", WEIR_RECORD_STACKS=history)
        command = [sys.executable, __file__, "--measure", path, history or "off", str(frames)]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"stacks.py: {way}: exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--measure":
        measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default=PACKAGE, help="the output folder of adapters/torch/build.py (%(default)s)")
    parser.add_argument("--frames", type=int, default=10, help="the number of Python frames (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="the number of processes for each way (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print nanoseconds of pairs and of torch.empty() as JSON")
    arguments = parser.parse_args()
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        path = compile_pairs(folder)
        for _ in range(arguments.rounds):
            for way in WAYS:
                found = run(way, path, os.path.abspath(arguments.package), arguments.frames)
                best[way] = [min(pair) for pair in zip(best.get(way, found), found)]
    if arguments.json:
        print(json.dumps(best, indent=1))
        return
    print(f"Stacks of {arguments.frames} Python frames; ns, the best of {arguments.rounds} processes\n")
    print("| recording | pair | added | torch.empty | added |\n|---|---|---|---|---|")
    for way, found in best.items():
        off = best[way.split(",")[0] + ", off"]
        print(f"| {way} | {found[0]:.0f} | {found[0] - off[0]:.0f} | {found[1]:.0f} | {found[1] - off[1]:.0f} |")


if __name__ == "__main__":
    main()
