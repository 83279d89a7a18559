#!/usr/bin/env python3
"""A contestant of bench/all that is called from Python, and PyTorch's allocators called from C++.

    python_player.py torch LIBRARY     PyTorch, with the allocator that the environment selects; LIBRARY comes from
                                       --compile
    python_player.py cupy | cupy_weir  CuPy's pool, and CuPy on Weir
    python_player.py rmm               RMM's pool
    python_player.py weir              the Python package
    python_player.py --compile LIBRARY compiles torch_player.cpp against PyTorch

The requests on standard input are those of player.c. The modes of a pattern are these:

    NAME, pinned:NAME, entries:NAME   from C++, PyTorch only: device memory, pinned memory, device memory while the
                                      history is recorded
    py:pair_BYTES                     an array of so many bytes, created and deleted
    py:live_COUNT_BYTES               one of so many live arrays of random sizes is replaced
    py:threads_COUNT                  pairs of 4 KiB in so many threads, the wall time for each pair of all threads
    entries_py:..., stacks_py:...     the same while the history is recorded, without and with Python stacks
    call:NAME                         a call of the package, such as memory_stats
"""
import ctypes
import functools
import os
import random
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ENTRIES = 100_000
FRAMES = 10  # of a stack


class Absent(Exception):
    """The contestant cannot take part, for this reason."""


class Contestant:
    """Measures arrays of a package. A subclass provides empty(bytes), calls() and record(kind)."""

    def __init__(self):
        self.work = None

    def record(self, kind):
        """Begins to record the history ("entries", "stacks"), or ends it (None)."""
        raise Absent("has no history")

    def begin(self, pattern, warm, core):
        mode, _, name = pattern.rpartition(":")
        if mode == "call":
            call = self.calls().get(name)
            if not call:
                return 0
            stay_on(core)
            self.work = functools.partial(repeat, call)
            self.work(100)
            return 1
        if mode.removesuffix("py") not in ("", "entries_", "stacks_"):
            return 0
        if mode != "py":
            self.record(mode.removesuffix("_py"))
        kind, *numbers = name.split("_")
        numbers = [int(number) for number in numbers]
        stay_on(None if kind == "threads" else core)
        if kind == "pair":
            self.work = functools.partial(pairs, self.empty, numbers[0])
        elif kind == "live":
            self.work = Live(self.empty, *numbers).run
            self.work(min(warm, 20_000))
        elif kind == "threads":
            self.work = functools.partial(in_threads, self.empty, 4096, numbers[0])
        else:
            return 0
        self.work(1000)
        return 1

    def round(self, count):
        def deep(frames):
            return self.work(count) if frames == 0 else deep(frames - 1)

        return deep(FRAMES - 4)

    def end(self):
        self.work = None
        stay_on(None)
        try:
            self.record(None)
        except Absent:
            pass


def stay_on(core):
    os.sched_setaffinity(0, ALL_CORES if core is None or core < 0 else {core})


def repeat(call, count):
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count


def pairs(empty, size, count):
    begin = time.perf_counter_ns()
    for _ in range(count):
        empty(size)
    return (time.perf_counter_ns() - begin) / count


class Live:
    """Live arrays of random sizes. The choices are made in advance, so that they do not count."""

    def __init__(self, empty, live, most):
        source = random.Random(42)
        self.empty = empty
        self.blocks = [empty(source.randint(1, most)) for _ in range(live)]
        self.choices = [(source.randrange(live), source.randint(1, most)) for _ in range(1 << 14)]

    def run(self, count):
        empty, blocks, choices, left = self.empty, self.blocks, self.choices, count
        begin = time.perf_counter_ns()
        while left > 0:
            for i, size in choices[:left]:
                blocks[i] = None
                blocks[i] = empty(size)
            left -= len(choices)
        return (time.perf_counter_ns() - begin) / count


def in_threads(empty, size, threads, count):
    each, start = max(1, count // threads), threading.Barrier(threads + 1)

    def run():
        pairs(empty, size, 100)
        start.wait()
        pairs(empty, size, each)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter_ns()
    for worker in workers:
        worker.join()
    return (time.perf_counter_ns() - begin) / (each * threads)


class Torch(Contestant):
    def __init__(self, library):
        super().__init__()
        import torch

        if not torch.cuda.is_available():
            raise Absent("PyTorch finds no GPU")
        wanted, found = os.environ.get("WEIR_TORCH") == "1", False
        if wanted:
            import weir_torch

            weir_torch.install()
            found = weir_torch.is_installed()
        if wanted != found:
            raise Absent("Weir is not installed as PyTorch's allocator")
        self.torch, self.version, self.has_weir = torch, torch.__version__, wanted
        torch.empty(1, device="cuda")
        backend = torch.cuda.get_allocator_backend()
        if ("cudaMallocAsync" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")) != (backend == "cudaMallocAsync"):
            raise Absent(f"PyTorch's allocator is {backend}")
        self.is_async = backend == "cudaMallocAsync"
        device, byte, empty = torch.device("cuda", 0), torch.uint8, torch.empty
        self.empty = lambda size: empty(size, dtype=byte, device=device)
        self.library = ctypes.CDLL(library)
        self.library.bench_begin.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_void_p]
        self.library.bench_round.argtypes, self.library.bench_round.restype = [ctypes.c_long], ctypes.c_double
        self.native = False  # a pattern of the library

    def host_allocator(self):
        if not self.has_weir:
            return self.torch._C._cuda_cudaHostAllocator()
        import weir_torch

        adapter = weir_torch._load()
        adapter.weir_torch_as_host_allocator.restype = ctypes.c_void_p
        return adapter.weir_torch_as_host_allocator()

    def record(self, kind):
        record = self.torch.cuda.memory._record_memory_history
        if kind is None:
            if not self.is_async:
                record(None)
            return
        if self.is_async:
            raise Absent("cudaMallocAsync has no history")
        record("all", context="alloc" if kind == "stacks" else None, stacks="python", max_entries=ENTRIES)

    def begin(self, pattern, warm, core):
        mode, _, name = pattern.rpartition(":")
        self.native = mode in ("", "pinned", "entries")
        if not self.native:
            return super().begin(pattern, warm, core)
        if mode == "entries":
            self.record("entries")
        return self.library.bench_begin(name.encode(), warm, core, self.host_allocator() if mode == "pinned" else None)

    def round(self, count):
        return self.library.bench_round(count) if self.native else super().round(count)

    def end(self):
        if self.native:
            self.library.bench_end()
        super().end()
        self.torch.cuda.empty_cache()

    def calls(self):
        cuda, event = self.torch.cuda, self.torch.cuda.Event()
        return {"memory_allocated": cuda.memory_allocated, "memory_stats": cuda.memory_stats, "stream": cuda.Stream,
                "event_record": event.record, "current_stream": cuda.current_stream, "synchronize": cuda.synchronize}


class Weir(Contestant):
    def __init__(self):
        super().__init__()
        import weir

        weir.init()
        self.weir, self.version, self.empty = weir, weir.__version__, weir.buffer
        weir.buffer(4096)

    def record(self, kind):
        record = self.weir.memory._record_memory_history
        if kind is None:
            record(None)
        else:
            record(context="alloc" if kind == "stacks" else None, stacks="python", max_entries=ENTRIES)

    def end(self):
        super().end()
        self.weir.empty_cache()

    def calls(self):
        weir, event = self.weir, self.weir.Event()
        return {"memory_allocated": weir.memory_allocated, "memory_stats": weir.memory_stats, "stream": weir.Stream,
                "event_record": event.record, "current_stream": weir.current_stream, "synchronize": weir.synchronize}


class CuPy(Contestant):
    def __init__(self, on_weir=False):
        super().__init__()
        import cupy

        cupy.cuda.runtime.getDeviceCount()
        if on_weir:
            import weir.cupy

            weir.cupy.install()
        self.cupy, self.version = cupy, cupy.__version__
        empty, byte = cupy.empty, cupy.uint8
        self.empty = lambda size: empty(size, dtype=byte)
        self.empty(4096)

    def end(self):
        super().end()
        self.cupy.get_default_memory_pool().free_all_blocks()

    def calls(self):
        cuda, pool = self.cupy.cuda, self.cupy.get_default_memory_pool()
        event, device = cuda.Event(), cuda.Device()
        return {"memory_allocated": pool.used_bytes, "stream": functools.partial(cuda.Stream, non_blocking=True),
                "event_record": event.record, "current_stream": cuda.get_current_stream,
                "synchronize": device.synchronize}


class Rmm(Contestant):
    def __init__(self):
        super().__init__()
        import rmm

        rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30))
        self.version, make = rmm.__version__, rmm.DeviceBuffer
        self.empty = lambda size: make(size=size)
        self.empty(4096)

    def calls(self):
        return {}


KINDS = {"torch": Torch, "weir": Weir, "cupy": CuPy, "cupy_weir": functools.partial(CuPy, True), "rmm": Rmm}


def serve(answers, kind, arguments):
    def answer(text):
        print(text, file=answers, flush=True)

    try:
        contestant = KINDS[kind](*arguments)
    except ImportError as error:
        return answer(f"absent not installed: {error}")
    except Exception as error:  # no driver, no device, another library: each package raises its own exceptions
        return answer("absent " + " ".join(f"{type(error).__name__}: {error}".removeprefix("Absent: ").split())[:300])
    answer(f"ready {contestant.version}")
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "begin":
                result = contestant.begin(words[1], int(words[2]), int(words[3]))
            elif words[0] == "round":
                result = contestant.round(int(words[1]))
            else:
                contestant.end()
                result = 1
        except Absent as error:
            print(error, file=sys.stderr)
            result = 0
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            result = -1 if words[0] == "round" else 0
        answer(f"{result:.6f}")


def main():
    if sys.argv[1] == "--compile":
        sys.path.insert(0, os.path.join(os.path.dirname(HERE), "torch"))
        import tools

        tools.compile_library(os.path.join(HERE, "torch_player.cpp"), sys.argv[2],
                              include=os.path.join(tools.ROOT, "bench"))
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print is not an answer
    serve(answers, sys.argv[1], sys.argv[2:])
    os._exit(0)  # without the packages' own teardown


ALL_CORES = os.sched_getaffinity(0)
if __name__ == "__main__":
    main()
