"""No leaks: many thousands of each object about memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest
import weir
from conftest import is_long, is_sanitized, is_soft, resident_bytes
from memory_tools import cleaned, history  # noqa: F401
from weir import _weir

pytestmark = pytest.mark.skipif(is_sanitized, reason="the sanitizer keeps freed memory")

CYCLES = 100_000 if is_long else 25_000


def fails(call):
    try:
        call()
    except Exception:
        return
    pytest.fail("it did not fail")


def shared_pool():
    with weir.use_mem_pool(POOL):
        weir.buffer(512)


KEPT = POOL = None


@pytest.fixture(scope="module", autouse=True)
def kept_objects():
    global KEPT, POOL
    KEPT, POOL = weir.buffer(4096), weir.MemPool()
    yield
    KEPT = POOL = None


CASES = {
    "buffer": lambda: weir.buffer(4096),
    "buffer with names": lambda: weir.buffer(4096, device=0, stream=None),
    "host_empty": lambda: weir.host_empty(64),
    "free": lambda: weir.buffer(64).free(),
    "view": lambda: KEPT[16:64][4:8],
    "memoryview": lambda: bytes(memoryview(KEPT)[:4]) if _weir._driver_name() == "soft" else None,
    "dlpack": lambda: KEPT.__dlpack__(),
    "dlpack versioned": lambda: KEPT.__dlpack__(max_version=(1, 0)),
    "from_dlpack": lambda: weir.from_dlpack(KEPT),
    "attributes": lambda: (KEPT.pointer, KEPT.stream, KEPT.device, repr(KEPT)),
    "raw": lambda: weir.caching_allocator_delete(weir.caching_allocator_alloc(100)),
    "memory_allocated": lambda: weir.memory_allocated(),
    "record_stream": lambda: KEPT.record_stream(weir.current_stream()),
    "fix_pages": lambda: (weir.fix_pages(KEPT), weir.fix_pages(KEPT.pointer)),
    "use_mem_pool": shared_pool,
    "phase": lambda: _weir._leave_phase(_weir._enter_phase("a phase")),
    "refused": lambda: fails(lambda: weir.buffer(-1)),
    "freed": lambda: fails(lambda: weir.caching_allocator_delete(12345)),
    "wrong keyword": lambda: fails(lambda: weir.buffer(8, wrong=1)),
    "wrong capsule": lambda: fails(lambda: weir.from_dlpack(3)),
}

# These take longer, so there are fewer repetitions.
SLOW_CASES = {
    "memory_stats": lambda: weir.memory_stats(),
    "memory_stats_as_nested_dict": lambda: weir.memory_stats_as_nested_dict(),
    "out of memory": lambda: fails(lambda: weir.buffer(1 << 45)),
    "fill and tobytes": lambda: KEPT.fill_(1).tobytes(),
    "MemPool": lambda: weir.MemPool(),
    "memory_snapshot": lambda: weir.memory_snapshot(),
    "host_memory_stats": lambda: weir.host_memory_stats(),
    "checkpoint": lambda: _weir._cuda_setCheckpointPoolState(0, _weir._cuda_getCheckpointState(0, POOL.id), [], []),
    "summary": lambda: weir.memory_summary(),
    "custom allocator": lambda: _weir._cuda_customAllocator(1, 2),
}


def check(make, cycles):
    for _ in range(cycles // 10):
        make()
    for _ in range(3):  # Python itself keeps some blocks now and then; a leak shows in every round
        gc.collect()
        memory, allocated, blocks = resident_bytes(), weir.memory_allocated(), sys.getallocatedblocks()
        for _ in range(cycles):
            make()
        gc.collect()
        assert weir.memory_allocated() == allocated
        grown = sys.getallocatedblocks() - blocks
        if grown < max(cycles // 100, 25):
            assert resident_bytes() - memory < max(cycles * 8, 1 << 20)
            return
    pytest.fail(f"{grown} more blocks after {cycles} cycles")


@pytest.mark.parametrize("name", CASES)
def test_cycles(name):
    check(CASES[name], CYCLES)


@pytest.mark.parametrize("name", SLOW_CASES)
def test_slow_cycles(name):
    check(SLOW_CASES[name], CYCLES // (25 if is_soft else 250))  # a GPU takes 0.1 s to run out of memory


def test_reference_counts():
    stream, device = weir.Stream(), weir.Device("cuda", 0)
    source = bytearray(64)

    def use():
        buffer = weir.buffer(64, device=device, stream=stream)
        buffer.copy_(source)
        buffer.copy_to(source)
        buffer.record_stream(stream)
        buffer.fill_(3)
        assert buffer.zero_() is buffer
        weir.memory_stats(device)
        assert sys.getrefcount(buffer) == 2

    use()
    before = [sys.getrefcount(o) for o in (stream, device, source, None, weir.Buffer)]
    for _ in range(1000):
        use()
    after = [sys.getrefcount(o) for o in (stream, device, source, None, weir.Buffer)]
    assert all(abs(a - b) < 50 for a, b in zip(after, before))


def test_tracemalloc():
    def use():
        with history(context="all", stacks="python", max_entries=10):
            weir.buffer(512)
            weir.memory._snapshot()
            weir.memory_stats()

    uses = 200 if is_long else 60
    for _ in range(20):
        use()
    gc.collect()
    tracemalloc.start(5)
    try:
        use()
        first = tracemalloc.take_snapshot()
        for _ in range(uses):
            use()
        gc.collect()
        growth = sum(s.size_diff for s in tracemalloc.take_snapshot().compare_to(first, "filename"))
    finally:
        tracemalloc.stop()
    assert growth < uses * 50


def test_recorded_stacks_do_not_keep_code():
    def use(i):
        exec(compile(f"weir.buffer({512 + i})", f"<made {i}>", "exec"), {"weir": weir})

    with history(context="all", stacks="python", max_entries=10):
        for i in range(2000):
            use(i % 50)
    gc.collect()
    blocks = sys.getallocatedblocks()
    with history(context="all", stacks="python", max_entries=10):
        for i in range(2000):
            use(i % 50)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 1000
