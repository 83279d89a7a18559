#!/usr/bin/env python3
"""Runs all tests of the adapter, each file in a process of its own, and prints passed, FAILED and waived.

    python3 adapters/torch/tests/run.py [--jobs N] [--timeout S] [FILE...]

WEIR_TORCH_PACKAGE is the output folder of build.py (default: build/torch).
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))


def run(path, timeout):
    begin = time.perf_counter()
    try:
        done = subprocess.run([sys.executable, "-u", path], capture_output=True, text=True, timeout=timeout)
        out, err, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        out, err = ((text or b"").decode(errors="replace") for text in (error.stdout, error.stderr))
        code = 124
    return os.path.basename(path), out, err, code, time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--jobs", type=int, default=max(4, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--timeout", type=float, default=240)
    arguments = parser.parse_args()
    files = arguments.files or sorted(glob.glob(os.path.join(HERE, "test_*.py")))
    total = {"passed": 0, "FAILED": 0, "waived": 0}
    with ThreadPoolExecutor(arguments.jobs) as workers:
        for name, out, err, code, seconds in workers.map(lambda path: run(path, arguments.timeout), files):
            for result in total:
                total[result] += len(re.findall(rf"^{result} ", out, re.M))
            finished = re.search(r"^total ", out, re.M)
            print(f"==== {name} ({seconds:.0f} s)")
            print(out, end="")
            if not finished:
                total["FAILED"] += 1
                begun = re.findall(r"^  begin  (\S+)", err, re.M)
                print(f"FAILED {name}: exit code {code}" + (f" in {begun[-1]}" if begun else ""))
            if code:
                lines = [line for line in err.splitlines() if not line.startswith("  begin  ")]
                print("\n".join("    | " + line for line in lines[-40:]))
            sys.stdout.flush()
    print("torch adapter: " + ", ".join(f"{count} {name}" for name, count in total.items()))
    sys.exit(1 if total["FAILED"] else 0)


if __name__ == "__main__":
    main()
