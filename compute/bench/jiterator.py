#!/usr/bin/env python3
"""The cost of a jiterator call from Python: PYTHONPATH=build/python compute/bench/jiterator.py [--json]

Prints the time of a cached call on the host, and that of a bare cuLaunchKernel from C, in nanoseconds. On a GPU the call
should take at most 1500 ns more than the launch. WEIR_DRIVER selects the device.
"""

from __future__ import annotations

import argparse
import json
import time

import weir
from weir.compute import _compute
from weir.jiterator import _create_jit_fn

LIMIT = 1500  # nanoseconds above a bare launch
BATCH = 200  # calls before the stream is waited for, so that its queue does not fill


def best(function, *args, **keywords) -> float:
    times = []
    for _ in range(40):
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            function(*args, **keywords)
        times.append((time.perf_counter_ns() - begin) / BATCH)
        weir.synchronize()
    return min(times)


def measure() -> dict[str, float]:
    code = "template <typename T> T scaled_sum(T x, T y, T alpha) { return x + alpha * y; }"
    function = _create_jit_fn(code, alpha=1.0)
    x = weir.ones(1024, device="cuda")
    rows = weir.ones(8, 128, device="cuda")
    begin = time.perf_counter_ns()
    function(x, x)
    weir.synchronize()
    first = time.perf_counter_ns() - begin
    return {
        "first call": first,
        "bare launch": _compute._time_launches(BATCH),
        "cached call": best(function, x, x),
        "cached call with a scalar": best(function, x, x, alpha=2.0),
        "cached call with broadcasting": best(function, rows, rows[0]),
        "x + y": best(x.__add__, x),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object of names and nanoseconds")
    arguments = parser.parse_args()
    results = measure()
    added = results["cached call"] - results["bare launch"]
    if arguments.json:
        print(json.dumps({**results, "added": added}))
    else:
        for name, value in results.items():
            print(f"{name:32} {value:12.0f} ns")
        print(f"{'added by Python and Weir':32} {added:12.0f} ns (at most {LIMIT} on a GPU)")
    return 0 if added <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
