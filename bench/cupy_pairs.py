#!/usr/bin/env python3
"""Compares CuPy's own memory pool with Weir's memory under CuPy (weir.cupy).

    PYTHONPATH=build/python python3 bench/cupy_pairs.py [--quick] [--fresh]

A pair is cupy.cuda.alloc(bytes) and the release of its result. Each measurement alternates between the two allocators,
and the median of the ratios of neighbours is printed. Exits with 77 without CuPy or a GPU, and with 1 if Weir misses a
goal: at most 1.3 times the time of CuPy's pool with one thread, and less time than it with 16 threads.

Without --fresh, everything is measured in one process, in which CuPy's pool was used first. With --fresh, each
measurement has a process of its own, on one core, which does nothing else. Then there is also Weir without the call
that makes the CUDA runtime set its context in a thread (weir/cupy.py, prepare): it shows what that call saves.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # no CuPy, no driver, no device: each raises its own exception
    print(f"waived: {type(error).__name__}: {error}")
    sys.exit(77)

import weir
import weir.cupy

KIB, MIB = 1 << 10, 1 << 20
ONE_THREAD, MANY_THREADS = 1.3, 1.0  # the goals
THREADS = 16


def pairs(size, count):
    alloc = cupy.cuda.alloc
    for _ in range(count):
        alloc(size)


def replace(size, count):
    """Keeps 100 blocks allocated, and replaces the oldest each time."""
    alloc = cupy.cuda.alloc
    kept = [alloc(size) for _ in range(100)]
    for i in range(count):
        kept[i % 100] = alloc(size)


def arrays(size, count):
    empty = cupy.empty
    for _ in range(count):
        empty(size, dtype=cupy.uint8)


def one_thread(work, size, count):
    work(size, count // 20)
    begin = time.perf_counter()
    work(size, count)
    return (time.perf_counter() - begin) / count


def many_threads(function, size, count, streams):
    """Returns the time for a pair: the time until all threads are done, divided by the number of all pairs."""
    start, each = threading.Barrier(THREADS + 1), count // THREADS

    def run(stream):
        with cupy.cuda.using_allocator(function), stream:
            pairs(size, 100)
            start.wait()
            pairs(size, each)

    threads = [threading.Thread(target=run, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begin) / (each * THREADS)


def compare(name, measure, rounds, goal):
    """`measure` gets the allocator. Returns whether the goal is met."""
    with weir.cupy.using():
        weirs = cupy.cuda.get_allocator()
    pools = cupy.get_default_memory_pool().malloc
    measure(pools), measure(weirs)
    times = [(measure(pools), measure(weirs)) for _ in range(rounds)]
    ratio = statistics.median(weir_time / pool_time for pool_time, weir_time in times)
    pool_ns, weir_ns = (1e9 * statistics.median(column) for column in zip(*times))
    met = ratio <= goal
    print(f"{name:34} CuPy {pool_ns:8.0f} ns   Weir {weir_ns:8.0f} ns   ratio {ratio:5.2f}   "
          f"{'ok' if met else f'MISSED (goal {goal})'}", flush=True)
    return met


# ---- New processes ----

FRESH = {"pool": "CuPy's pool", "weir": "Weir", "no_context": "Weir without a context"}


def measure_fresh(kind, count):
    """In a new process: prints what was measured, as a line of JSON."""
    if kind == "no_context":
        cupy.cuda.runtime.memGetInfo = lambda: None
    if kind != "pool":
        weir.cupy.install()
    alloc, delete = (weir.cupy._weir._cuda_cudaCachingAllocator_raw_alloc,
                     weir.cupy._weir._cuda_cudaCachingAllocator_raw_delete)

    def calls_of(function):
        def calls(_, count):
            for _ in range(count):
                function()

        return calls

    cupy.cuda.alloc(4 * KIB)
    has_context = bool(cupy.cuda.driver.ctxGetCurrent())
    works = {"pair": pairs, "replace": replace, "empty": arrays,
             "device": calls_of(cupy.cuda.runtime.getDevice), "stream": calls_of(cupy.cuda.get_current_stream)}
    if kind != "pool":
        works["alone"] = calls_of(lambda: delete(alloc(4 * KIB, 0, 0)))
    times = {name: statistics.median(one_thread(work, 4 * KIB, count) for _ in range(5))
             for name, work in works.items()}
    before = weir.cupy._weir._cupy_slow_calls()
    pairs(4 * KIB, count)
    arrays(4 * KIB, count)
    slow = [now - then for now, then in zip(weir.cupy._weir._cupy_slow_calls(), before)]
    in_c = kind == "pool" or weir.cupy.why_not_c() is None
    print(json.dumps({"times": times, "has_context": has_context, "slow": slow, "in_c": in_c}))


def compare_fresh(quick):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the new processes inherit it
    rounds, count = (2, 10_000) if quick else (5, 50_000)
    found = {kind: [] for kind in FRESH}
    for _ in range(rounds):
        for kind, results in found.items():
            run = subprocess.run([sys.executable, __file__, "--measure", kind, str(count)], stdout=subprocess.PIPE,
                                 check=True, text=True)
            results.append(json.loads(run.stdout.splitlines()[-1]))
    print(f"new processes on core {min(os.sched_getaffinity(0))}, {rounds} of each kind, 4096 bytes:")
    met = True
    for name, title in (("pair", "pair"), ("replace", "replace one of 100"), ("empty", "cupy.empty"),
                        ("device", "query of the device"), ("stream", "query of the stream"),
                        ("alone", "Weir's functions, from Python")):
        times = {kind: [result["times"][name] for result in results] for kind, results in found.items()
                 if name in results[0]["times"]}
        columns = "   ".join(f"{FRESH[kind]} {1e9 * statistics.median(each):6.0f} ns" for kind, each in times.items())
        end = ""
        if name in ("pair", "replace", "empty"):
            ratio = statistics.median(weirs / pools for pools, weirs in zip(times["pool"], times["weir"]))
            end = f"   ratio {ratio:5.2f}   {'ok' if ratio <= ONE_THREAD else f'MISSED (goal {ONE_THREAD})'}"
            met &= ratio <= ONE_THREAD
        print(f"{title:30} {columns}{end}")
    for kind, results in found.items():
        contexts, in_c = sum(result["has_context"] for result in results), all(result["in_c"] for result in results)
        allocs, frees = (sum(result["slow"][i] for result in results) for i in (0, 1))
        print(f"{FRESH[kind]}: {contexts} of {rounds} processes had a context after the first allocation; "
              f"{allocs} slow allocations and {frees} slow frees in {2 * rounds * count} pairs"
              f"{'' if in_c else '; not in C'}")
        met &= kind == "no_context" or (in_c and allocs == frees == 0)
    return 0 if met else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--fresh", action="store_true", help="measure in new processes, on one core")
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "COUNT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure_fresh(arguments.measure[0], int(arguments.measure[1]))
        return 0
    if arguments.fresh:
        return compare_fresh(arguments.quick)
    quick = arguments.quick
    rounds, count = (3, 20_000) if quick else (11, 100_000)
    weir.init()
    reason = weir.cupy.why_not_c()
    print(f"CuPy {cupy.__version__}, Python {sys.version.split()[0]}; Weir's allocations are in "
          f"{'C' if reason is None else f'Python: {reason}'}")

    def single(work, size):
        def measure(allocator):
            with cupy.cuda.using_allocator(allocator):
                return one_thread(work, size, count)

        return measure

    met = True
    for size in (512, 4 * KIB, 3 * MIB):
        met &= compare(f"pair of {size} bytes", single(pairs, size), rounds, ONE_THREAD)
    met &= compare("replace one of 100, 4096 bytes", single(replace, 4 * KIB), rounds, ONE_THREAD)
    met &= compare("cupy.empty, 4096 bytes", single(arrays, 4 * KIB), rounds, ONE_THREAD)
    null, own = THREADS * [cupy.cuda.Stream.null], [cupy.cuda.Stream(non_blocking=True) for _ in range(THREADS)]
    for name, streams in (("the default stream", null), ("a stream each", own)):
        met &= compare(f"{THREADS} threads, {name}",
                       lambda allocator, streams=streams: many_threads(allocator, 4 * KIB, count, streams),
                       rounds, MANY_THREADS)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
