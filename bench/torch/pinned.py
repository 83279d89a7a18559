#!/usr/bin/env python3
"""Compares pinned host memory of PyTorch and of Weir through PyTorch's own interface, in one process.

    python3 bench/torch/pinned.py [--package build/torch] [--rounds 11] [--stall GIB]

A pair is an allocation and its free, from C++. Measurements alternate between the allocators; the times are medians,
and the ratio is the median of the ratios of neighbours. With --stall, one thread pins so much memory, while another
launches kernels: the table has the longest launch. Exits with 1 if a pair of one thread is less than 10 times as fast.
"""
import argparse
import ctypes
import os
import statistics
import sys
import tempfile
import threading
import time

from tools import HERE, PACKAGE, compile_library

GOAL = 10
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROWS = [  # name, way of pinned.cpp, threads, calls, bytes, goal
    ("pair, 512 bytes", 0, 1, 200_000, 512, GOAL),
    ("pair, 4 KiB", 0, 1, 200_000, 4 * KIB, GOAL),
    ("pair, 1 MiB", 0, 1, 200_000, MIB, GOAL),
    ("replace one of 100, 4 KiB", 1, 1, 200_000, 4 * KIB, 0),
    ("pair that a stream used, 4 KiB", 2, 1, 20_000, 4 * KIB, 0),
    ("pair, 4 KiB, 8 threads", 0, 8, 50_000, 4 * KIB, 0),
    ("pair, 64 KiB, 16 threads", 0, 16, 50_000, 64 * KIB, 0),
]


def load(folder):
    library = ctypes.CDLL(compile_library(os.path.join(HERE, "pinned.cpp"), os.path.join(folder, "libbench_pinned.so")))
    library.bench_pinned.restype = library.bench_pin_once.restype = ctypes.c_double
    library.bench_pinned.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_size_t]
    library.bench_pin_once.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def compare(library, allocators, row, rounds):
    name, way, threads, calls, size, goal = row
    times = []
    for _ in range(rounds):
        times.append([library.bench_pinned(address, way, threads, calls, size) for address in allocators.values()])
        if min(times[-1]) < 0:
            sys.exit(f"pinned.py: {name} failed")
    ratio = statistics.median(theirs / ours for theirs, ours in times)
    theirs, ours = (statistics.median(column) for column in zip(*times))
    met = ratio >= goal
    print(f"| {name} | {theirs:.1f} | {ours:.1f} | {ratio:.1f} | {'' if met else f'MISSED, goal {goal}'} |", flush=True)
    return met


def stall(torch, library, address, size):
    """Returns the seconds of the pinning, and those of the longest launch of another thread meanwhile."""
    done, longest = threading.Event(), [0.0]
    x = torch.zeros(1024, device="cuda")

    def launch():
        while not done.is_set():
            begin = time.perf_counter()
            x.add_(1)
            longest[0] = max(longest[0], time.perf_counter() - begin)
            time.sleep(0.0001)

    thread = threading.Thread(target=launch)
    thread.start()
    time.sleep(0.05)
    longest[0] = 0.0
    took = library.bench_pin_once(address, size)
    done.set()
    thread.join()
    torch.cuda.synchronize()
    return took, longest[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default=PACKAGE, help="the output folder of adapters/torch/build.py (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="the number of measurements (%(default)s)")
    parser.add_argument("--stall", type=float, default=0, metavar="GIB", help="also pin so much at once")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"waived: {error}")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("waived: there is no GPU")
        sys.exit(77)
    sys.path.insert(0, arguments.package)
    import weir_torch

    torch.zeros(1, device="cuda")
    adapter = weir_torch._load()
    adapter.weir_torch_as_host_allocator.restype = ctypes.c_void_p
    allocators = {"PyTorch": torch._C._cuda_cudaHostAllocator(), "Weir": adapter.weir_torch_as_host_allocator()}
    met = True
    with tempfile.TemporaryDirectory() as folder:
        library = load(folder)
        print(f"PyTorch {torch.__version__}; ns for each call\n\n| | PyTorch | Weir | ratio | |\n|---|---|---|---|---|")
        for row in ROWS:
            met &= compare(library, allocators, row, arguments.rounds)
        if arguments.stall:
            size = int(arguments.stall * GIB)
            print(f"\n| {arguments.stall:g} GiB at once | pinning, s | longest launch meanwhile, ms |\n|---|---|---|")
            for name, address in allocators.items():
                took, longest = stall(torch, library, address, size)
                print(f"| {name} | {took:.3f} | {longest * 1e3:.2f} |", flush=True)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
