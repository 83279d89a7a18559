"""Pinned memory of the host."""

from __future__ import annotations

import threading

import pytest
import weir
from memory_tools import KIB, MIB, clean, settings, sleep_cycles


@pytest.fixture(autouse=True)
def cleaned():
    clean()
    yield
    clean()


def test_host_empty():
    buffer = weir.host_empty(1000)
    assert (buffer.is_host, buffer.is_pinned, buffer.owns_memory) == (True, True, True)
    assert (buffer.device, buffer.stream) == (-1, None)
    assert repr(buffer) == f"<weir.Buffer of 1000 bytes at {buffer.pointer:#x} of the host>"
    assert buffer.fill_(3).tobytes() == b"\3" * 1000
    with memoryview(buffer) as view:
        view[:] = bytes(1000)
    assert buffer.tobytes() == bytes(1000)
    other = weir.host_empty(1000).copy_(b"x" * 1000)
    assert buffer.copy_(other).tobytes() == b"x" * 1000
    assert weir.host_empty(16).fill_(0x01020304, width=4).tobytes() == bytes([4, 3, 2, 1]) * 4
    assert weir.host_empty(0).tobytes() == b""
    with pytest.raises(ValueError, match="Invalid memory size"):
        weir.host_empty(-1)
    with pytest.raises(TypeError):
        weir.host_empty("8")


def test_caching_pinned_memory():
    t = weir.host_empty(4)
    pointer = t.pointer
    del t
    t = weir.host_empty(4)
    assert t.pointer == pointer, "allocation not re-used"
    t.copy_(b"\1\0\0\0")
    device = weir.empty(4).zero_()
    weir._sleep(sleep_cycles(100))
    device.copy_(t, non_blocking=True)
    del t
    t = weir.host_empty(4)
    assert t.pointer != pointer, "allocation re-used too soon"
    assert device.tobytes() == b"\1\0\0\0"


def test_record_stream_by_hand():
    stream = weir.Stream()
    t = weir.host_empty(64)
    pointer = t.pointer
    with weir.stream(stream):
        weir._sleep(sleep_cycles(50))
    t[8:].record_stream(stream)
    del t
    assert weir.host_empty(64).pointer != pointer


def test_host_memory_stats():
    before = weir.host_memory_stats()
    buffers = [weir.host_empty(size) for size in [100, 3000, MIB + 1]]
    now = weir.host_memory_stats()
    moved = {key: now[key] - before[key] for key in now}
    rounded = 128 + 4096 + 2 * MIB
    assert moved["allocations.current"] == moved["active_requests.current"] == moved["num_host_alloc"] == 3
    assert moved["allocated_bytes.current"] == moved["active_bytes.current"] == rounded
    assert moved["host_alloc_time.count"] == 3
    del buffers
    now = weir.host_memory_stats()
    assert now["active_requests.current"] == before["active_requests.current"]
    assert now["allocated_bytes.current"] - before["allocated_bytes.current"] == rounded
    weir.host_empty_cache()
    now = weir.host_memory_stats()
    assert now["allocated_bytes.current"] == 0 and now["num_host_free"] - before["num_host_free"] == 3
    nested = weir.host_memory_stats_as_nested_dict()
    assert set(nested) == {
        "num_host_alloc", "num_host_free", "allocations", "active_requests", "allocated_bytes", "active_bytes",
        "host_alloc_time", "host_free_time",
    }  # fmt: skip
    assert set(nested["host_alloc_time"]) == {"total", "max", "min", "count", "avg"}
    assert list(now) == sorted(now)


def test_host_memory_stats_resets():
    buffer = weir.host_empty(64 * KIB)
    del buffer
    weir.reset_peak_host_memory_stats()
    weir.reset_accumulated_host_memory_stats()
    stats = weir.host_memory_stats()
    assert stats["active_bytes.peak"] == stats["active_bytes.current"] == 0
    assert stats["active_bytes.allocated"] == stats["num_host_alloc"] == 0


def test_pinned_memory_with_cudaregister():
    with settings(
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
        "pinned_use_cuda_host_register:False,pinned_num_register_threads:1",
    ):
        buffer = weir.host_empty(8 * MIB).fill_(5)
        device = weir.empty(8 * MIB).copy_(buffer, non_blocking=True)
        weir.synchronize()
        assert device.tobytes() == buffer.tobytes()
        threads = [threading.Thread(target=lambda: weir.host_empty(MIB).fill_(1)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del buffer
        weir.host_empty_cache()


def test_pinned_memory_empty_cache():
    for size in [512, MIB]:
        weir.host_empty(size)
    assert weir.host_memory_stats()["allocations.current"] == 2
    weir.host_empty_cache()
    assert weir.host_memory_stats()["allocations.current"] == 0
