"""Functions that the tests about memory share."""

from __future__ import annotations

import contextlib
import ctypes.util
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import weir

KIB = 1024
MIB = 1024 * 1024

# The sizes that select the pool and the segment of a request.
MIN_BLOCK_SIZE = 512
SMALL_SIZE = 1 * MIB
SMALL_BUFFER = 2 * MIB
LARGE_BUFFER = 20 * MIB

has_native_stacks = ctypes.util.find_library("unwind") is not None


def clean() -> None:
    """Removes all cached memory, limits, recordings and changed settings."""
    gc.collect()
    weir.synchronize()
    weir.memory._record_memory_history(None)
    weir.memory._set_memory_metadata("")
    for device in range(weir.device_count()):
        weir.set_per_process_memory_limit(None, device)
        weir.set_per_process_memory_fraction(1.0, device)
    weir.empty_cache()
    weir.host_empty_cache()


@pytest.fixture(autouse=True)
def cleaned() -> Iterator[None]:
    """Cleans up before and after each test of a module that imports this."""
    clean()
    yield
    clean()


@contextlib.contextmanager
def settings(text: str, back: str) -> Iterator[None]:
    """Changes settings within a `with` block; `back` restores them."""
    weir.memory._set_allocator_settings(text)
    try:
        yield
    finally:
        weir.memory._set_allocator_settings(back)
        weir.empty_cache()


@contextlib.contextmanager
def history(*args: Any, **kwargs: Any) -> Iterator[None]:
    weir.memory._record_memory_history(*args, **kwargs)
    try:
        yield
    finally:
        weir.memory._record_memory_history(None)


def sleep_cycles(milliseconds: float) -> int:
    return int(weir.get_device_properties(0).clock_rate * milliseconds)


def filled(size: int, value: int = 1) -> weir.Buffer:
    return weir.buffer(size).fill_(value)


def blocks(snapshot: dict[str, Any] | list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for segment in snapshot["segments"] if isinstance(snapshot, dict) else snapshot:
        yield from segment["blocks"]


def block_of(buffer: weir.Buffer) -> dict[str, Any]:
    (found,) = [b for b in blocks(weir.memory_snapshot()) if b["address"] == buffer.pointer]
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.001)


# Of PyTorch's test_graph_memory_stats_and_use_result_after_destroy_graph: the size of a result, what a capture takes
# from the driver, what its result keeps, and the pool.
graph_sizes = pytest.mark.parametrize(
    "size, mallocs, malloc_bytes, kept_bytes, pool",
    [
        (512, 1, 2 * MIB, 2 * MIB, "small_pool"),
        (MIB, 2, 4 * MIB, 2 * MIB, "small_pool"),
        (MIB + 512, 1, 20 * MIB, 20 * MIB, "large_pool"),
        (10 * MIB - 512, 2, 40 * MIB, 20 * MIB, "large_pool"),
        (10 * MIB + 512, 3, 36 * MIB, 12 * MIB, "large_pool"),
    ],
)


def check_graph_memory(
    make: Callable[[], Any], clone: Callable[[Any], Any], is_same: Callable[[Any], bool], captured: list[int], kept: list[int], pool: str
) -> None:
    """Captures copies of what `make` returns, and checks the segments, their bytes, the active blocks and their bytes in a pool: after the
    capture, and once the graph is gone and its result is left."""
    stats = ("segment", "reserved_bytes", "active", "active_bytes")
    stream, graph = weir.Stream(), weir.CUDAGraph()

    def deltas() -> list[int]:
        now = weir.memory_stats()
        return [now[f"{stat}.{pool}.current"] - before[f"{stat}.{pool}.current"] for stat in stats]

    gc.collect()
    weir.empty_cache()
    stream.wait_stream(weir.current_stream())
    with weir.stream(stream):
        a = make()
        before = weir.memory_stats()
        graph.capture_begin()
        b = clone(a)
        for _ in range(5):
            b = clone(clone(b))  # a copy, and a result of it
        graph.capture_end()
    weir.current_stream().wait_stream(stream)
    gc.collect()
    for is_again in (False, True):
        assert deltas() == captured, deltas()
        graph.replay()
        assert is_same(b)
        if not is_again:
            weir.empty_cache()
    del graph
    gc.collect()
    weir.empty_cache()
    assert is_same(b)
    assert deltas() == kept
