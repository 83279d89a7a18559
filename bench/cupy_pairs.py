#!/usr/bin/env python3
"""Compares CuPy's own memory pool with Weir's memory under CuPy (weir.cupy), in one process.

    PYTHONPATH=build/python python3 bench/cupy_pairs.py [--quick]

A pair is cupy.cuda.alloc(bytes) and the release of its result. Each measurement alternates between the two allocators,
and the median of the ratios of neighbours is printed. Exits with 77 without CuPy or a GPU, and with 1 if Weir misses a
goal: at most 1.3 times the time of CuPy's pool with one thread, and less time than it with 16 threads.
"""
import argparse
import statistics
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    quick = parser.parse_args().quick
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
