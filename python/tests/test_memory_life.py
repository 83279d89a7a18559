"""Threads, forks and the end of the interpreter while memory is allocated."""

from __future__ import annotations

import gc
import sys
import threading
import time

import pytest
import weir
from conftest import is_long, run_python
from memory_tools import MIB, cleaned, history  # noqa: F401


# ---- Threads ----


def run_threads(functions, seconds=1.5 if is_long else 0.4):
    """Runs each function repeatedly on a thread of its own, and raises the first error."""
    stop, errors = threading.Event(), []

    def again(function):
        try:
            while not stop.is_set():
                function()
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=again, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_free_in_one_thread_while_another_gathers_a_stack():
    """One thread holds the GIL when it frees; the other needs it during an allocation."""
    handed = []

    def gives():
        def fresh():
            handed.append(weir.buffer(4096))

        exec(compile("fresh()", f"<{time.monotonic_ns()}>", "exec"), {"fresh": fresh})  # a stack never seen before

    def frees():
        while handed:
            handed.pop()

    with history(context="all", stacks="python", max_entries=1000):
        run_threads([gives, gives, frees, frees, lambda: weir.memory_stats()])


def test_trackers_and_threads():
    count = 0

    def tracker(*entry):
        nonlocal count
        count += 1

    weir.attach_memory_tracker(tracker)
    try:
        run_threads([lambda: weir.buffer(512), lambda: weir.buffer(3 * MIB), weir.empty_cache, weir.memory._snapshot])
    finally:
        weir.detach_memory_tracker(tracker)
    assert count > 0


def test_recording_is_switched_while_threads_allocate():
    def switch():
        weir.memory._record_memory_history(context="all", stacks="python", max_entries=100)
        weir.buffer(512)
        weir.memory._snapshot()
        weir.memory._record_memory_history(None)

    run_threads([switch, lambda: weir.buffer(512), lambda: weir.buffer(MIB), gc.collect])


def test_functions_of_python_under_the_allocator():
    """A pluggable allocator that needs the GIL, while other threads allocate and free."""
    import ctypes

    from weir import _weir

    libc = ctypes.CDLL(None)
    libc.aligned_alloc.restype, libc.aligned_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def alloc(size, device, stream):
        return libc.aligned_alloc(2 * MIB, size)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def free(pointer, size, device, stream):
        libc.free(pointer)

    address = [ctypes.cast(function, ctypes.c_void_p).value for function in (alloc, free)]
    allocator = _weir._cuda_customAllocator(*address)

    def uses_a_pool():
        pool = weir.MemPool(allocator)
        with weir.use_mem_pool(pool):
            weir.buffer(512), weir.buffer(3 * MIB)

    run_threads([uses_a_pool, uses_a_pool, lambda: weir.buffer(512), lambda: weir.buffer(3 * MIB)])


def test_buffers_cross_threads():
    buffers = [weir.buffer(512) for _ in range(1000)]
    before = weir.memory_allocated()

    def drop():
        while True:
            try:
                buffers.pop()
            except IndexError:
                return

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert weir.memory_allocated() == before - 1000 * 512


def test_other_threads_run_during_a_wait():
    """The GIL is released while waiting for the device."""
    count = 0
    done = threading.Event()

    def counts():
        nonlocal count
        while not done.is_set():
            count += 1

    thread = threading.Thread(target=counts)
    buffer = weir.buffer(512)
    weir._sleep(int(weir.get_device_properties(0).clock_rate * 100))
    buffer.fill_(1)
    thread.start()
    buffer.tobytes()
    seen = count
    done.set()
    thread.join()
    assert seen > 1000


# ---- The end of the interpreter ----


@pytest.mark.parametrize("code", [
    "buffer = weir.buffer(4096)",
    "import builtins; builtins.kept = weir.buffer(4096)",
    "class A: pass\na = A(); a.me = a; a.buffer = weir.buffer(4096)",
    "import sys; sys.kept = [weir.buffer(4096), weir.host_empty(64), weir.MemPool()]",
    "view = weir.buffer(4096)[10:20]",
    "capsule = weir.buffer(4096).__dlpack__()",
    "weir.memory._record_memory_history(stacks='python'); buffer = weir.buffer(4096)",
    "weir.attach_memory_tracker(print); buffer = weir.buffer(8)",
    "weir.attach_memory_tracker(lambda *e: weir.buffer(8)); import builtins; builtins.kept = weir.buffer(8)",
    "import threading, time\n"
    "threading.Thread(target=lambda: [weir.buffer(8) for _ in iter(int, 1)], daemon=True).start(); time.sleep(0.2)",
    "weir.memory._record_memory_history(stacks='python')\nimport threading, time\n"
    "threading.Thread(target=lambda: [weir.buffer(8) for _ in iter(int, 1)], daemon=True).start(); time.sleep(0.2)",
    "weir.buffer(8); raise SystemExit(0)",
    "import atexit; atexit.register(lambda: weir.buffer(16).fill_(1).tobytes()); weir.buffer(8)",
    "def f():\n  yield weir.buffer(64)\ng = f(); next(g)",
    "pool = weir.MemPool()\nwith weir.use_mem_pool(pool): kept = weir.buffer(8)\ndel pool",
])  # fmt: skip
def test_exit_with_memory_in_hand(code):
    result = run_python("import weir\n" + code)
    assert result.stderr == ""


def test_exit_by_an_exception():
    result = run_python("import weir\nbuffer = weir.buffer(64)\n1 / 0", check=False)
    assert result.returncode == 1 and result.stderr.count("Traceback") == 1 and "ZeroDivisionError" in result.stderr


# ---- Fork and spawn ----


def test_fork_before_the_start():
    run_python("""
        import os, weir
        child = os.fork()
        if child == 0:
            buffer = weir.buffer(512).fill_(3)
            os._exit(0 if buffer.tobytes() == b"\\3" * 512 else 1)
        assert os.waitpid(child, 0)[1] == 0
        weir.buffer(8)
    """)


def test_fork_after_the_start():
    """A child cannot use or free the parent's memory."""
    result = run_python("""
        import gc, os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import weir
        buffer, host, pool = weir.buffer(512), weir.host_empty(64), weir.MemPool()
        shown = weir.memory_allocated()
        child = os.fork()
        if child == 0:
            del buffer, host, pool
            gc.collect()
            for call in [lambda: weir.buffer(8), lambda: weir.buffer(8, device=0), lambda: weir.host_empty(8),
                         weir.MemPool, lambda: weir.caching_allocator_alloc(8), weir.memory._snapshot]:
                try:
                    call()
                except RuntimeError as error:
                    assert "Cannot re-initialize CUDA in forked subprocess" in str(error), error
                else:
                    os._exit(3)
            assert weir.memory_stats() == {} and weir.memory_allocated() == 0
            weir.empty_cache()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert weir.memory_allocated() == shown
        assert buffer.fill_(2).tobytes() == b"\\2" * 512
    """)
    assert result.stderr == ""


def test_fork_while_threads_allocate():
    run_python("""
        import os, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import weir
        buffer = weir.buffer(512)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                weir.buffer(3 << 20)
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        for _ in range(20):
            child = os.fork()
            if child == 0:
                del buffer
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        [t.join() for t in threads]
    """)


def test_multiprocessing_spawn():
    run_python("""
        import multiprocessing, weir
        weir.buffer(8)
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert pool.map(len, [[1], [1, 2]]) == [1, 2]
    """)


# ---- The start ----


def test_import_touches_no_device():
    run_python("""
        import sys, weir
        assert not weir.is_initialized()
        assert weir.memory_stats() == {} and weir.memory_stats_as_nested_dict() == {}
        assert weir.memory_allocated() == weir.max_memory_allocated() == weir.memory_reserved() == 0
        assert weir.host_memory_stats() == {}
        weir.empty_cache(); weir.host_empty_cache(); weir.caching_allocator_enable(False)
        assert not weir.memory._weir._cuda_isHistoryEnabled()
        assert not weir.is_initialized()
        for heavy in ["ctypes", "typing", "inspect", "pickle", "asyncio"]:
            assert heavy not in sys.modules or heavy in BEFORE, heavy
        weir.buffer(8)
        assert weir.is_initialized()
    """.replace("import sys, weir", "import sys; BEFORE = set(sys.modules); import weir"))


def test_settings_of_the_environment():
    run_python(
        """
        import weir
        weir.buffer(8)
        assert "max_split_size_mb:100" in weir.get_allocator_settings()
        assert abs(weir.get_per_process_memory_fraction() - 0.5) < 1e-9
        """,
        WEIR_ALLOC_CONF="max_split_size_mb:100,per_process_memory_fraction:0.5",
    )
    result = run_python("import weir; weir.buffer(8)", check=False, WEIR_ALLOC_CONF="no_such_key:1")
    assert result.returncode == 1 and "no_such_key" in result.stderr


def test_no_caching_of_the_environment():
    run_python(
        """
        import weir
        weir.buffer(8 << 20)
        assert weir.memory_stats()["allocation.all.allocated"] == 0
        """,
        WEIR_NO_MEMORY_CACHING="1",
    )
