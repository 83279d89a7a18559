"""Counts the bytes that a side stream reads too late, because `record_stream` was dropped: one JSON line for each case.

    WEIR_TORCH=0 python3 record_stream_scopes.py    # PyTorch's own allocator
    WEIR_TORCH=1 python3 record_stream_scopes.py

In each case a side stream copies a tensor after a delay; the tensor is freed, and memory of the same size is filled with
something else. With `record_stream`, none of the copied bytes may be of the second tensor."""
import argparse
import json
import threading

import torch

MIB = 1 << 20
SIZE = 64 * MIB
CYCLES = 400_000_000


class Elsewhere:
    """Runs a context manager on another thread, so that it is open while this one works."""

    def __init__(self, context):
        self.context, self.entered, self.done = context, threading.Event(), threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.entered.wait()

    def run(self):
        with self.context():
            self.entered.set()
            self.done.wait()

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def pool():
    return torch.cuda.use_mem_pool(torch.cuda.MemPool())


class Capture:
    def __init__(self, mode):
        self.mode, self.graph, self.stream = mode, torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def __enter__(self):
        self.scope = torch.cuda.stream(self.stream)
        self.scope.__enter__()
        self.graph.capture_begin(capture_error_mode=self.mode)
        torch.zeros(16, device="cuda")

    def __exit__(self, *_):
        self.graph.capture_end()
        self.scope.__exit__(None, None, None)


class OwnCapture(Capture):
    """A capture by this thread, while it works on another stream."""

    def __enter__(self):
        super().__enter__()
        self.main = torch.cuda.stream(torch.cuda.default_stream())
        self.main.__enter__()

    def __exit__(self, *_):
        self.main.__exit__(None, None, None)
        super().__exit__()


def wrong_bytes(place, side, frees_inside=True):
    """How many of the copied bytes are not those of the first tensor."""
    main = torch.cuda.current_stream()
    b = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    a = torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda")
    side.wait_stream(main)
    with place():
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
            b.copy_(a)
        a.record_stream(side)
        if frees_inside:
            del a
    if not frees_inside:
        del a
    c = torch.full((SIZE,), 2, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    wrong = int((b != 1).sum())
    del b, c
    return wrong


def stale_entry(side):
    """A use in a pool and a free outside of it; the next use of the same block is outside, its free in a pool."""
    wrong_bytes(pool, side, frees_inside=False)
    b = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    a = torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        b.copy_(a)
    a.record_stream(side)
    with pool():
        del a
    torch.full((SIZE,), 2, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return int((b != 1).sum())


def pool_ends_beside_another(side):
    """Not a count: PyTorch 2.11 ends the process with an assertion."""
    first, second = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(first):
        torch.zeros(MIB, device="cuda")
    with torch.cuda.use_mem_pool(second):
        torch.zeros(MIB, device="cuda")
        del first
    return 0


CASES = {
    "own pool": lambda side: wrong_bytes(pool, side),
    "own pool, freed outside": lambda side: wrong_bytes(pool, side, frees_inside=False),
    "pool of another thread": lambda side: wrong_bytes(lambda: Elsewhere(pool), side),
    "capture of another thread, relaxed": lambda side: wrong_bytes(lambda: Elsewhere(lambda: Capture("relaxed")), side),
    "capture of another thread, thread local": lambda side: wrong_bytes(lambda: Elsewhere(lambda: Capture("thread_local")), side),
    "own capture of another stream": lambda side: wrong_bytes(lambda: OwnCapture("relaxed"), side),
    "stale entry": stale_entry,
    "pool ends beside another": pool_ends_beside_another,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help="cases to run; default: all")
    arguments = parser.parse_args()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # loading a kernel at its first use may wait for the device
        torch.cuda._sleep(1000)
        torch.zeros(16, dtype=torch.uint8, device="cuda").copy_(torch.ones(16, dtype=torch.uint8, device="cuda"))
    int((torch.full((16,), 1, dtype=torch.uint8, device="cuda") != 1).sum())
    torch.cuda.synchronize()
    for case in arguments.cases:
        print(json.dumps({"case": case, "wrong_bytes": CASES[case](side), "bytes": SIZE}), flush=True)


if __name__ == "__main__":
    main()
