"""The allocator from a program's view: statistics, limits, settings, out of memory."""

from __future__ import annotations

import random
import sys
import warnings

import pytest
import weir
from memory_tools import KIB, LARGE_BUFFER, MIB, cleaned, filled, settings, sleep_cycles  # noqa: F401


# ---- Allocating ----


def test_memory_allocation():
    before = weir.memory_allocated()
    address = weir.caching_allocator_alloc(1)
    assert address != 0
    assert weir.memory_allocated() == before + 512
    weir.caching_allocator_delete(address)
    assert weir.memory_allocated() == before


def test_allocation_on_device_and_stream(two_devices):
    stream = weir.Stream(device=1)
    address = weir.caching_allocator_alloc(3 * MIB, 1, stream)
    (segment,) = [s for s in weir.memory_snapshot() if s["device"] == 1]
    assert segment["stream"] == stream.cuda_stream
    assert segment["blocks"][0]["address"] == address
    assert weir.memory_allocated(1) == 3 * MIB and weir.memory_allocated(0) == 0
    weir.caching_allocator_delete(address)
    raw = weir.caching_allocator_alloc(3 * MIB, "cuda:1", stream.cuda_stream)
    assert raw == address
    weir.caching_allocator_delete(raw)


def test_allocation_of_nothing():
    assert weir.caching_allocator_alloc(0) == 0
    weir.caching_allocator_delete(0)
    buffer = weir.buffer(0)
    assert (buffer.pointer, len(buffer)) == (0, 0)
    assert buffer.fill_(1).tobytes() == b""


def test_caching_allocator_alloc_negative_size():
    with pytest.raises(ValueError, match="Invalid memory size: -1"):
        weir.caching_allocator_alloc(-1)
    with pytest.raises(ValueError, match="Invalid memory size: -5"):
        weir.buffer(-5)


def test_caching_allocator_alloc_wrong_stream():
    with pytest.raises(TypeError, match="Invalid type for stream argument, must be `weir.Stream` or `int`"):
        weir.caching_allocator_alloc(512, stream="no stream")


def test_delete_of_what_is_not_there():
    address = weir.caching_allocator_alloc(512)
    weir.caching_allocator_delete(address)
    with pytest.raises(ValueError, match="invalid device pointer"):
        weir.caching_allocator_delete(address)


def test_caching_allocator_enable():
    kept = weir.buffer(3 * MIB)
    weir.caching_allocator_enable(False)
    try:
        requested = weir.memory_stats()["requested_bytes.all.allocated"]
        uncached = weir.buffer(5 * MIB)
        uncached.fill_(3)
        assert uncached.tobytes() == b"\3" * (5 * MIB)
        assert weir.memory_stats()["requested_bytes.all.allocated"] == requested
        del uncached
    finally:
        weir.caching_allocator_enable(True)
    again = weir.buffer(3 * MIB)
    assert weir.memory_stats()["requested_bytes.all.allocated"] == requested + 3 * MIB
    del kept, again


def test_reuse_of_freed_memory():
    first = weir.buffer(3 * MIB)
    pointer = first.pointer
    del first
    assert weir.buffer(3 * MIB).pointer == pointer


# ---- Statistics ----


def test_memory_stats_keys():
    flat = weir.memory_stats()
    assert list(flat) == sorted(flat)
    stats = ["allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes"]
    stats += ["inactive_split_bytes", "requested_bytes"]
    metrics = ["current", "peak", "allocated", "freed"]
    for stat in stats:
        for pool in ["all", "small_pool", "large_pool"]:
            for metric in metrics:
                assert isinstance(flat[f"{stat}.{pool}.{metric}"], int)
    for stat in ["oversize_allocations", "oversize_segments"]:
        for metric in metrics:
            assert f"{stat}.{metric}" in flat
    for name in ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"]:
        assert flat[name] >= 0
    assert flat["num_oom_rejections"] == 0
    assert flat["max_split_size"] == -1


def test_memory_stats_nested():
    buffer = weir.buffer(3 * MIB)
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        inside = weir.buffer(MIB)
    flat = weir.memory_stats()
    nested = weir.memory_stats_as_nested_dict()
    assert nested["reserved_bytes_by_private_pools"][pool.id]["all"]["current"] == 2 * MIB

    def flatten(prefix, tree):
        for key, value in tree.items():
            name = "_".join(map(str, key)) if isinstance(key, tuple) else key
            if isinstance(value, dict):
                yield from flatten(f"{prefix}{name}.", value)
            else:
                yield prefix + name, value

    assert dict(flatten("", nested)) == flat
    assert list(flat) == sorted(flat)
    del buffer, inside, pool


def test_memory_stats_move():
    """Each counter changes as documented over a thousand random allocations and frees."""
    before = weir.memory_stats()
    rng = random.Random(7)
    live, requested, freed = [], 0, 0
    for _ in range(1000):
        if live and rng.random() < 0.5:
            freed += len(live.pop(rng.randrange(len(live))))
        else:
            size = rng.choice([1, 511, 512, 513, 4 * KIB, 700 * KIB, MIB, MIB + 1, 3 * MIB])
            requested += size
            live.append(weir.buffer(size))
    now = weir.memory_stats()
    moved = {key: now[key] - before[key] for key in now if key in before}
    assert moved["allocation.all.current"] == len(live)
    assert moved["requested_bytes.all.allocated"] == requested
    assert moved["requested_bytes.all.freed"] == freed
    assert moved["requested_bytes.all.current"] == requested - freed
    for stat in ["allocation", "allocated_bytes", "reserved_bytes", "active", "requested_bytes", "segment"]:
        for metric in ["current", "allocated", "freed"]:
            parts = moved[f"{stat}.small_pool.{metric}"] + moved[f"{stat}.large_pool.{metric}"]
            assert moved[f"{stat}.all.{metric}"] == parts
        assert now[f"{stat}.all.peak"] >= now[f"{stat}.all.current"]
    rounded = sum(-(-len(b) // 512) * 512 for b in live)
    assert moved["allocated_bytes.all.current"] == rounded
    assert weir.memory_allocated() == before["allocated_bytes.all.current"] + rounded
    assert weir.memory_reserved() == now["reserved_bytes.all.current"] >= rounded


def test_peaks_and_sums():
    weir.reset_peak_memory_stats()
    weir.reset_accumulated_memory_stats()
    low = weir.max_memory_allocated()
    buffer = weir.buffer(8 * MIB)
    reserved = weir.memory_reserved()
    del buffer
    assert weir.max_memory_allocated() == low + 8 * MIB
    assert weir.memory_allocated() == low
    assert weir.max_memory_reserved() == reserved
    stats = weir.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 8 * MIB
    weir.empty_cache()
    weir.reset_peak_memory_stats()
    weir.reset_accumulated_memory_stats()
    assert weir.max_memory_allocated() == weir.memory_allocated()
    assert weir.max_memory_reserved() == weir.memory_reserved()
    stats = weir.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["num_device_alloc"] == 0


def test_counters_of_another_device(two_devices):
    buffer = weir.buffer(2 * MIB, device=1)
    assert weir.memory_allocated(1) == weir.memory_allocated("cuda:1") == weir.memory_allocated(weir.device(1)) == 2 * MIB
    assert weir.memory_stats(weir.Device("cuda", 1))["allocation.all.current"] == 1
    with weir.device(1):
        assert weir.memory_allocated() == 2 * MIB
    assert weir.memory_allocated() == 0
    assert buffer.device == 1


def test_deprecated_names_warn():
    weir.buffer(4 * MIB)
    with pytest.warns(FutureWarning, match="reset_max_memory_allocated now calls weir.reset_peak_memory_stats"):
        weir.reset_max_memory_allocated()
    with pytest.warns(FutureWarning, match="reset_max_memory_cached now calls weir.reset_peak_memory_stats"):
        weir.reset_max_memory_cached()
    with pytest.warns(FutureWarning, match="`weir.memory_cached` has been renamed to `weir.memory_reserved`") as seen:
        assert weir.memory_cached() == weir.memory_reserved()
    assert seen[0].filename == __file__
    with pytest.warns(FutureWarning, match="has been renamed to `weir.max_memory_reserved`"):
        assert weir.max_memory_cached() == weir.max_memory_reserved()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weir.memory._set_allocator_settings("max_split_size_mb:1024")
        weir.memory._set_allocator_settings("max_split_size_mb:999999")


def test_summary():
    buffer = weir.buffer(3 * MIB)
    full, short = weir.memory_summary(), weir.memory_summary(abbreviated=True)
    assert "memory summary, device ID 0" in full
    for name in ["Allocated memory", "Active allocs", "GPU reserved segments", "Oversize allocations"]:
        assert name in full and name in short
    assert full.count("from large pool") == 9 and "from large pool" not in short
    assert len(set(map(len, full.splitlines()))) == 1
    assert "3072 KiB" in full
    del buffer


def test_memory_info_and_processes():
    free, total = weir.mem_get_info()
    assert 0 < free <= total
    text = weir.list_gpu_processes()
    assert text.startswith("GPU:0") or "NVML" in text
    if weir.memory._weir._driver_name() == "soft":
        assert "software device" in text
        buffer = weir.buffer(64 * MIB)
        assert weir.mem_get_info()[0] == free - 64 * MIB
        assert weir.mem_get_info("cuda:0") == weir.mem_get_info(0)
        del buffer


# ---- Out of memory ----


def test_out_of_memory():
    buffer = weir.buffer(4 * KIB)
    text = r"Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of"
    with pytest.raises(weir.OutOfMemoryError, match=text):
        weir.buffer(1024 * 1024 * 1024 * 800000000)
    with pytest.raises(RuntimeError, match="Tried to allocate more than 1EB memory"):
        weir.buffer(1024 * 1024 * 1024 * 8000000000)
    # later requests work
    assert buffer.fill_(1).tobytes() == b"\1" * (4 * KIB)


def test_out_of_memory_retry():
    free, _ = weir.mem_get_info()
    size = int(free * 0.51)
    a = weir.buffer(size)
    ooms = weir.memory_stats()["num_ooms"]
    with pytest.raises(weir.OutOfMemoryError, match="Tried to allocate"):
        weir.buffer(size)
    assert weir.memory_stats()["num_ooms"] == ooms + 1
    del a
    b = weir.buffer(size)
    del b


@pytest.mark.parametrize("max_split_size_mb", [None, 1024])
def test_raises_oom(max_split_size_mb):
    if max_split_size_mb:
        weir.memory._set_allocator_settings(f"max_split_size_mb:{max_split_size_mb}")
        weir.empty_cache()
    try:
        with pytest.raises(weir.OutOfMemoryError):
            weir.buffer(1024 * 1024 * 1024 * 1024)
    finally:
        weir.memory._set_allocator_settings("max_split_size_mb:999999")


def test_notifies_oom():
    seen = []

    def observer(device, wanted, limit, free):
        seen.append((device, wanted, limit, free))

    weir.attach_oom_observer(observer)
    try:
        with pytest.raises(weir.OutOfMemoryError):
            weir.buffer(1024 * 1024 * 1024 * 1024)
    finally:
        weir.detach_oom_observer(observer)
    ((device, wanted, limit, free),) = seen
    assert (device, wanted) == (0, 1 << 40)
    assert limit == weir.mem_get_info()[1] and 0 < free <= limit
    with pytest.raises(weir.OutOfMemoryError):
        weir.buffer(1024 * 1024 * 1024 * 1024)
    assert len(seen) == 1


def test_observer_may_fail_and_may_allocate(monkeypatch):
    got = []

    def observer(*args):
        got.append(weir.buffer(512))
        raise ZeroDivisionError("an observer's own")

    unraised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: unraised.append(what.exc_type))
    weir.attach_oom_observer(observer)
    try:
        with pytest.raises(weir.OutOfMemoryError):
            weir.buffer(1 << 45)
    finally:
        weir.detach_oom_observer(observer)
    assert len(got) == 1 and unraised == [ZeroDivisionError]
    with pytest.raises(ValueError, match="not attached"):
        weir.detach_oom_observer(observer)


def test_set_per_process_memory_fraction():
    total = weir.get_device_properties(0).total_memory
    reserved = weir.memory_reserved()
    weir.set_per_process_memory_fraction(0.5)
    part = int(total * 0.499) - reserved
    part -= part % (2 * MIB)
    buffer = weir.buffer(part)
    del buffer
    weir.empty_cache()
    with pytest.raises(weir.OutOfMemoryError, match="out of memory"):
        weir.buffer(int(total * 0.5) + 2 * MIB)
    # the program continues
    assert filled(MIB, 9).tobytes() == b"\t" * MIB


def test_get_per_process_memory_fraction():
    assert weir.get_per_process_memory_fraction() == 1.0
    weir.set_per_process_memory_fraction(0.25)
    assert weir.get_per_process_memory_fraction() == 0.25
    assert weir.get_per_process_memory_fraction("cuda:0") == 0.25


def test_memory_fraction_refusals():
    with pytest.raises(TypeError, match="Invalid type for fraction argument, must be `float`"):
        weir.set_per_process_memory_fraction(1)
    with pytest.raises(ValueError, match="Invalid fraction value: 2.0. Allowed range: 0~1"):
        weir.set_per_process_memory_fraction(2.0)
    with pytest.raises(ValueError, match="Invalid fraction value: -0.1"):
        weir.set_per_process_memory_fraction(-0.1)
    with pytest.raises(ValueError, match="Invalid fraction value: nan"):
        weir.set_per_process_memory_fraction(float("nan"))


def test_memory_limit():
    weir.set_per_process_memory_limit(64 * MIB)
    with pytest.raises(weir.OutOfMemoryError, match="64.00 MiB allowed"):
        weir.buffer(70 * MIB)
    weir.set_per_process_memory_limit(None)
    weir.buffer(70 * MIB)


def test_caching_allocator_record_stream_oom():
    """Memory that waits for another stream is reclaimed before a request fails."""
    stream = weir.Stream()
    weir.set_per_process_memory_limit(100 * MIB)
    with weir.stream(stream):
        y = filled(16 * MIB, 0)
    for i in range(40):
        x = filled(16 * MIB, i)
        stream.wait_stream(weir.current_stream())
        with weir.stream(stream):
            y.copy_(x)
        x.record_stream(stream)
        del x
    weir.synchronize()
    assert y.tobytes() == bytes([39]) * (16 * MIB)


def test_throw_on_cudamalloc_oom():
    with settings("per_process_memory_fraction:0.125,throw_on_cudamalloc_oom:True",
                  "per_process_memory_fraction:1.0,throw_on_cudamalloc_oom:False"):
        before = weir.memory_stats()
        total = weir.get_device_properties(0).total_memory
        with pytest.raises(weir.OutOfMemoryError, match="preemptively rejected"):
            weir.buffer(total // 4)
        now = weir.memory_stats()
    assert now["num_oom_rejections"] == before["num_oom_rejections"] + 1
    assert now["num_ooms"] == before["num_ooms"]


# ---- Settings ----


def test_allocator_settings():
    def grown(size):
        before = weir.memory_stats()
        buffer = weir.buffer(size)
        now = weir.memory_stats()
        keys = ["allocated_bytes.all.current", "requested_bytes.all.current"]
        assert buffer.nbytes == size
        return tuple(now[key] - before[key] for key in keys)

    assert grown(4 * 50000) == (200192, 200000)
    with settings("roundup_power2_divisions:4", "roundup_power2_divisions:0"):
        assert grown(4 * 50000) == (229376, 200000)
    with settings("roundup_power2_divisions:8", "roundup_power2_divisions:0"):
        assert grown(4 * 50000) == (212992, 200000)
    with settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "roundup_power2_divisions:0"):
        assert grown(20 * MIB + 1)[0] == 20 * MIB + 512
    assert grown(4 * 50000) == (200192, 200000)


@pytest.mark.parametrize(
    "text",
    [
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "release_lock_on_cudamalloc:none",
        "pinned_num_register_threads:none",
        "pinned_num_register_threads:1024",
        "roundup_power2_divisions:[256:1,512:3]",
        "expandable_segments:yes",
    ],
)
def test_allocator_settings_refused(text):
    before = weir.get_allocator_settings()
    with pytest.raises(ValueError):
        weir.memory._set_allocator_settings(text)
    assert weir.get_allocator_settings() == before


def test_invalid_settings_are_a_runtime_error_too():
    with pytest.raises(RuntimeError, match="there is no key 'foo'"):
        weir.memory._set_allocator_settings("foo:1,bar:2")


def test_settings_that_begin_from_their_defaults():
    lasting = "large_segment_size_mb:30,expandable_segments:True"
    with settings("max_split_size_mb:200,max_non_split_rounding_mb:40,garbage_collection_threshold:0.5,"
                  "roundup_power2_divisions:4," + lasting, "large_segment_size_mb:20,expandable_segments:False"):
        assert "roundup_power2_divisions" in weir.get_allocator_settings()
        weir.memory._set_allocator_settings("max_split_size_mb:300, ")
        assert weir.get_allocator_settings() == "max_split_size_mb:300," + lasting
        weir.memory._set_allocator_settings("")
        assert weir.get_allocator_settings() == lasting
        weir.memory._set_allocator_settings("garbage_collection_threshold:0.5, roundup_power2_divisions:[256:1,>:2]")
        for text in ["max_split_size_mb:", "max_split_size_mb: ", ",", "roundup_power2_divisions:[256:1"]:
            with pytest.raises(ValueError) as error:
                weir.memory._set_allocator_settings(text)
            assert "default" not in str(error.value) and "garbage" not in str(error.value)
        assert "garbage_collection_threshold:0.5" in weir.get_allocator_settings()


def test_settings_are_shown():
    with settings("max_split_size_mb:200", "max_split_size_mb:999999"):
        assert "max_split_size_mb:200" in weir.get_allocator_settings()
        assert weir.memory_stats()["max_split_size"] == 200 * MIB
        assert weir.memory._snapshot()["allocator_settings"]["max_split_size"] == 200 * MIB


def test_expandable_segments():
    with settings("expandable_segments:True", "expandable_segments:False"):
        segments = weir.memory_stats()["segment.all.current"]
        small = weir.buffer(MIB // 2)
        buffers = [filled(LARGE_BUFFER, i) for i in range(4)]
        large = [s for s in weir.memory_snapshot() if s["segment_type"] == "large"]
        assert len(large) == 1 and large[0]["is_expandable"] and large[0]["total_size"] == 4 * LARGE_BUFFER
        assert weir.memory_stats()["segment.all.current"] == segments
        del buffers[1]
        weir.empty_cache()
        large = [s for s in weir.memory_snapshot() if s["segment_type"] == "large"]
        assert [s["total_size"] for s in large] == [LARGE_BUFFER, 2 * LARGE_BUFFER]
        for i, buffer in zip([0, 2, 3], buffers):
            assert buffer.tobytes() == bytes([i]) * LARGE_BUFFER
        del buffers, buffer, small


def test_backend_name():
    assert weir.get_allocator_backend() == "native"
    assert weir.memory._get_current_allocator().allocator().name() == "native"


# ---- Streams ----


def test_record_stream():
    source = bytes([1, 2, 3, 4])
    host = weir.host_empty(4).copy_(source)
    result = weir.buffer(4)
    stream = weir.Stream()
    pointer = None

    def perform_copy():
        nonlocal pointer
        with weir.stream(stream):
            tmp = weir.buffer(4).copy_(host, non_blocking=True)
            pointer = tmp.pointer
        weir.current_stream().wait_stream(stream)
        tmp.record_stream(weir.current_stream())
        weir._sleep(sleep_cycles(50))
        result.copy_(tmp)

    perform_copy()
    with weir.stream(stream):
        tmp2 = weir.buffer(4).zero_()
        assert tmp2.pointer != pointer, "allocation re-used to soon"
    assert result.tobytes() == source
    weir.current_stream().synchronize()
    with weir.stream(stream):
        tmp3 = weir.buffer(4)
        assert tmp3.pointer == pointer, "allocation not re-used"


def test_record_stream_on_shifted_view():
    stream_alloc, stream_record = weir.Stream(), weir.Stream()
    with weir.stream(stream_alloc):
        base = weir.buffer(400)
    view = base[200:]
    assert view.pointer == base.pointer + 200
    with weir.stream(stream_record):
        weir._sleep(sleep_cycles(50))
    view.record_stream(stream_record)
    pointer = base.pointer
    del base, view
    stream_alloc.synchronize()
    with weir.stream(stream_alloc):
        again = weir.buffer(400)
    assert again.pointer != pointer


def test_record_stream_by_address():
    stream = weir.Stream()
    address = weir.caching_allocator_alloc(3 * MIB)
    with weir.stream(stream):
        weir._sleep(sleep_cycles(50))
    weir.memory._weir._record_stream(address, stream)
    weir.caching_allocator_delete(address)
    assert weir.buffer(3 * MIB).pointer != address
    weir.synchronize()
    weir.buffer(1)
    assert weir.buffer(3 * MIB).pointer == address


# ---- Everything together ----


def test_allocator_fuzz():
    rng = random.Random(123)
    mem, total, c = [], 0, 0
    for _ in range(2000):
        while total >= 64 * MIB:
            v, x = mem.pop(rng.randrange(len(mem)))
            total -= len(x)
        (action,) = rng.choices(["alloc", "free", "empty"], weights=[1, 1 if mem else 0, 0.1])
        if action == "alloc":
            size = 4 * rng.randrange(1 * KIB, 1 * MIB)
            mem.append((c, weir.buffer(size).fill_(c, width=4)))
            c += 1
            total += size
        elif action == "free":
            v, x = mem.pop(rng.randrange(len(mem)))
            assert x[:4].tobytes() == x[-4:].tobytes() == v.to_bytes(4, "little")
            total -= len(x)
        else:
            weir.empty_cache()
    for v, x in mem:
        assert x.tobytes() == v.to_bytes(4, "little") * (len(x) // 4)


def test_caching_allocator_disabled():
    weir.empty_cache()
    with weir.memory.caching_allocator_disabled():
        reserved = weir.memory_reserved()
        block = weir.buffer(1 << 20)
        del block
        assert weir.memory_reserved() == reserved, "nothing is cached"
    block = weir.buffer(1 << 20)
    del block
    assert weir.memory_reserved() > reserved
    weir.caching_allocator_enable(False)
    with weir.memory.caching_allocator_disabled():
        pass
    assert not weir._weir._is_caching(), "as it was before"
    weir.caching_allocator_enable(True)


def test_allocation_traceback():
    def allocates():
        return weir.buffer(1 << 20)

    before = allocates()
    weir.memory._record_memory_history(context="alloc")
    try:
        block = allocates()
        frames = weir.memory._allocation_traceback(block.data_ptr())
        assert [frame["name"] for frame in frames[:2]] == ["allocates", "test_allocation_traceback"]
        assert frames[0]["filename"].endswith("test_memory.py") and frames[0]["line"] > 0
        assert weir.memory._allocation_traceback(before.data_ptr()) is None, "it was not recorded"
        assert weir.memory._allocation_traceback(4096) is None, "there is no such memory"
    finally:
        weir.memory._record_memory_history(None)
