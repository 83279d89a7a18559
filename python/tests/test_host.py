"""Pinned host memory."""

from __future__ import annotations

import ctypes
import threading

import pytest
import weir
from memory_tools import KIB, MIB, cleaned, settings, sleep_cycles  # noqa: F401
from weir import _weir


def test_host_empty():
    buffer = weir.host_empty(1000)
    assert (buffer.is_host, buffer.is_pinned, buffer.owns_memory) == (True, True, True)
    assert (buffer.device, buffer.stream) == (-1, None)
    assert repr(buffer) == f"<weir.Buffer of 1000 bytes at {buffer.pointer:#x} on the host>"
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
    device = weir.buffer(4).zero_()
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


@pytest.fixture
def registered():
    with settings(
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
        "pinned_use_cuda_host_register:False,pinned_num_register_threads:1",
    ):
        assert "pinned_use_cuda_host_register:True" in weir.get_allocator_settings()
        assert "pinned_num_register_threads:8" in weir.get_allocator_settings()
        yield
        weir.host_empty_cache()


def use_registered_memory(value):
    plain = ctypes.create_string_buffer(80)
    assert not _weir._is_pinned(ctypes.addressof(plain))
    for nbytes in (8 * MIB, 64 * MIB):
        pinned = weir.host_empty(nbytes)
        assert pinned.is_pinned
        assert _weir._is_pinned(pinned.pointer) and _weir._is_pinned(pinned.pointer + nbytes - 1)
        pinned[:100].fill_(value)
        pinned[nbytes - 100 :].fill_(value)
        device = weir.buffer(200)
        device[:100].copy_(pinned[:100], non_blocking=True)
        device[100:].copy_(pinned[nbytes - 100 :], non_blocking=True)
        assert device.tobytes() == bytes([value]) * 200
        assert pinned[:100].tobytes() == pinned[nbytes - 100 :].tobytes() == bytes([value]) * 100


def test_pinned_memory_with_cudaregister(registered):
    before = weir.host_memory_stats()
    use_registered_memory(5)
    assert weir.host_memory_stats()["num_host_alloc"] - before["num_host_alloc"] == 2
    weir.synchronize()
    weir.host_empty_cache()
    assert weir.host_memory_stats()["allocations.current"] == 0


def test_pinned_memory_with_cudaregister_multithread(registered):
    done = []

    def work(number):
        use_registered_memory(number)
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == [0, 1, 2, 3]
    weir.synchronize()
    weir.host_empty_cache()
    assert weir.host_memory_stats()["allocations.current"] == 0


def test_pinned_memory_empty_cache():
    for size in [512, MIB]:
        weir.host_empty(size)
    assert weir.host_memory_stats()["allocations.current"] == 2
    weir.host_empty_cache()
    assert weir.host_memory_stats()["allocations.current"] == 0
