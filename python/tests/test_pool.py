"""Private pools and their checkpoints."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading

import pytest
import weir
from memory_tools import LARGE_BUFFER, MIB, MIN_BLOCK_SIZE, SMALL_BUFFER, SMALL_SIZE, clean, filled, settings
from weir import _weir


def pool_segments(pool_id):
    return [s for s in weir.memory_snapshot() if s["segment_pool_id"] == pool_id]


def all_pool_segments():
    return [s for s in weir.memory_snapshot() if s["segment_pool_id"] != (0, 0)]


def live_blocks(pool_id):
    return sum(b["state"] == "active_allocated" for s in pool_segments(pool_id) for b in s["blocks"])


@pytest.fixture(autouse=True)
def no_segments_are_left():
    clean()
    before = len(all_pool_segments())
    yield
    clean()
    assert len(all_pool_segments()) == before


# ---- MemPool ----


def test_mempool_id():
    first, second = weir.MemPool().id, weir.MemPool().id
    assert first[0] == second[0] == 0
    assert second[1] == first[1] + 1
    assert weir.graph_pool_handle()[1] == second[1] + 1


def test_mempool_attributes(two_devices):
    pool = weir.MemPool()
    assert (pool.use_count(), pool.device, pool.allocator) == (1, 0, None)
    assert repr(pool) == f"<weir.MemPool {pool.id} on device 0>"
    with weir.use_mem_pool(pool):
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    with weir.device(1):
        assert weir.MemPool().device == 1


def test_pool_id_in_snapshot():
    pool = weir.MemPool()
    outside = weir.buffer(MIB)
    with weir.use_mem_pool(pool):
        inside = weir.buffer(MIB)
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id and segment["blocks"][0]["address"] == inside.pointer
    (default,) = pool_segments((0, 0))
    assert default["blocks"][0]["address"] == outside.pointer
    assert weir.memory_snapshot((0, 10**9)) == []


def test_mempool_empty_cache():
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        inside = weir.buffer(MIB)
    del inside
    assert len(pool.snapshot()) == 1
    weir.empty_cache()
    assert len(pool.snapshot()) == 1, "a pool that is held keeps its memory"
    pool_id = pool.id
    del pool
    assert pool_segments(pool_id) == []


def test_mempool_memory_outlives_the_pool():
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        inside = filled(MIB, 5)
    pool_id = pool.id
    del pool
    gc.collect()
    assert inside.tobytes() == b"\5" * MIB
    assert live_blocks(pool_id) == 1
    del inside
    weir.empty_cache()
    assert pool_segments(pool_id) == []


def test_mempool_is_used_again():
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        pointer = weir.buffer(MIB).pointer
    assert weir.buffer(MIB).pointer != pointer
    with weir.use_mem_pool(pool):
        assert weir.buffer(MIB).pointer == pointer


def test_nested_mempool():
    outer, inner = weir.MemPool(), weir.MemPool()
    with weir.use_mem_pool(outer):
        a = weir.buffer(MIB)
        with weir.use_mem_pool(inner):
            b = weir.buffer(MIB)
        c = weir.buffer(MIB)
    assert live_blocks(outer.id) == 2 and live_blocks(inner.id) == 1
    del a, b, c


def test_threads_use_one_mempool():
    pool = weir.MemPool()
    ready = threading.Barrier(4)
    kept = []

    def use_pool():
        with weir.use_mem_pool(pool):
            ready.wait()  # all four are inside
            kept.append(weir.buffer(MIB))
            ready.wait()
        kept.append(weir.buffer(MIB))

    threads = [threading.Thread(target=use_pool) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert live_blocks(pool.id) == 4 and len(kept) == 8 and pool.use_count() == 1
    kept.clear()


@pytest.mark.parametrize("graph_first", [True, False])
def test_mempool_and_graph(graph_first):
    """A thread's pool comes before a capture, whichever began first. Other threads allocate in the graph's pool."""
    pool, graph, stream = weir.MemPool(), weir.CUDAGraph(), weir.Stream()
    theirs = []

    def backward():
        with weir.stream(stream):
            theirs.append(weir.buffer(MIB))

    capture = weir.graph(graph, stream=stream, capture_error_mode="thread_local")
    scopes = [capture, weir.use_mem_pool(pool)] if graph_first else [weir.use_mem_pool(pool), capture]
    with scopes[0], scopes[1]:
        mine = filled(MIB, 1)
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    assert live_blocks(pool.id) == 1 and live_blocks(graph.pool()) == 1
    graph.replay()
    weir.synchronize()
    del mine, theirs[:], capture, scopes, graph
    weir.synchronize()


def test_use_mem_pool_ends_with_an_exception():
    pool = weir.MemPool()
    with pytest.raises(ZeroDivisionError):
        with weir.use_mem_pool(pool):
            raise ZeroDivisionError
    outside = weir.buffer(MIB)
    assert pool.snapshot() == [] and pool.use_count() == 1
    del outside


def test_use_mem_pool_refusals():
    with pytest.raises(TypeError, match="expected a weir.MemPool"):
        weir.use_mem_pool((0, 1))
    with pytest.raises(TypeError):
        weir.MemPool(3)
    with pytest.raises((RuntimeError, ValueError)):
        _weir._cuda_endAllocateToPool(0, (0, 10**6))
    with pytest.raises((RuntimeError, ValueError)):
        _weir._cuda_releasePool(0, (0, 10**6))
    with pytest.raises(TypeError):
        _weir._cuda_beginAllocateToPool(0, 12)


def test_mempool_ctx_multithread():
    """Only the thread inside of the block allocates from the pool."""
    pool = weir.MemPool()
    inside, done = threading.Event(), threading.Event()
    other = []

    def allocate():
        inside.wait(20)
        other.append(weir.buffer(3 * MIB))
        done.set()

    thread = threading.Thread(target=allocate)
    thread.start()
    with weir.use_mem_pool(pool):
        mine = weir.buffer(3 * MIB)
        inside.set()
        assert done.wait(20)
    thread.join()
    assert live_blocks(pool.id) == 1
    assert other[0].pointer not in [b["address"] for s in pool.snapshot() for b in s["blocks"]]
    del mine


def test_mempool_multithread():
    pools = []

    def work():
        pool = weir.MemPool()
        for _ in range(20):
            with weir.use_mem_pool(pool):
                buffer = filled(MIB, 1)
            del buffer
        pools.append((pool.id, len(pool.snapshot())))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({pool_id for pool_id, _ in pools}) == 4
    assert [count for _, count in pools] == [1] * 4


def test_mempool_emptycache_multithread():
    errors = []

    def work():
        try:
            for _ in range(20):
                pool = weir.MemPool()
                with weir.use_mem_pool(pool):
                    buffer = weir.buffer(3 * MIB)
                weir.empty_cache()
                del buffer, pool
                weir.empty_cache()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_mempool_no_split():
    pool = weir.MemPool(no_split=True)
    with weir.use_mem_pool(pool):
        kept = [weir.buffer(MIB) for _ in range(3)]
    assert [len(s["blocks"]) for s in pool.snapshot()] == [1, 1, 1]
    split = weir.MemPool()
    with weir.use_mem_pool(split):
        more = [weir.buffer(MIB) for _ in range(2)]
    assert [len(s["blocks"]) for s in split.snapshot()] == [2]
    del kept, more


def test_mempool_use_on_oom():
    """Free memory of the pool serves requests outside of it before they fail."""
    lends, keeps = weir.MemPool(use_on_oom=True), weir.MemPool()
    with weir.use_mem_pool(keeps):
        weir.buffer(40 * MIB)
    with weir.use_mem_pool(lends):
        pointer = weir.buffer(40 * MIB).pointer
    weir.set_per_process_memory_limit(weir.memory_reserved())
    lent = weir.buffer(40 * MIB)
    assert lent.pointer == pointer
    with pytest.raises(weir.OutOfMemoryError):
        weir.buffer(40 * MIB)
    del lent


def test_deleted_mempool_not_used_on_oom():
    pool = weir.MemPool(use_on_oom=True)
    with weir.use_mem_pool(pool):
        buffer = weir.buffer(40 * MIB)
    del pool
    weir.set_per_process_memory_limit(weir.memory_reserved())
    with pytest.raises(weir.OutOfMemoryError):
        weir.buffer(40 * MIB)
    del buffer


def test_mempool_oom_recovery_releases_cached_blocks():
    weir.set_per_process_memory_limit(100 * MIB)
    weir.buffer(80 * MIB)  # is now cached
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        inside = weir.buffer(80 * MIB)
    assert live_blocks(pool.id) == 1
    del inside


def test_limits_of_mempools():
    pool, other = weir.MemPool(), weir.MemPool()
    assert pool.reserved_bytes() == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    pool.set_limits(40 << 20)
    with weir.use_mem_pool(pool):
        first = weir.buffer(30 << 20)
        with pytest.raises(weir.OutOfMemoryError) as caught:
            weir.buffer(30 << 20)
        assert str(pool.id[1]) in str(caught.value)
    with weir.use_mem_pool(other):  # and the default pool have no limit
        kept = weir.buffer(60 << 20), weir.buffer(60 << 20)
    held = pool.reserved_bytes()
    assert 30 << 20 <= held["current"] == held["peak"] == held["allocated"] <= 40 << 20 and held["freed"] == 0
    pool.set_limits()  # none
    with weir.use_mem_pool(pool):
        second = weir.buffer(30 << 20)
    assert pool.reserved_bytes()["current"] >= 60 << 20
    del first, second, kept
    pool.set_limits(hard=None, soft=10 << 20)
    with weir.use_mem_pool(pool):
        third = weir.buffer(1 << 20)
    for hard, soft in ((1 << 20, 2 << 20), (-1, None), ("1", None)):
        with pytest.raises((ValueError, OverflowError, TypeError)):
            pool.set_limits(hard, soft)
    del third


def test_reserved_bytes_by_private_pools():
    pool = weir.MemPool()
    key = f"reserved_bytes_by_private_pools.0_{pool.id[1]}"
    with weir.use_mem_pool(pool):
        small, large = weir.buffer(512), weir.buffer(3 * MIB)
    stats = weir.memory_stats()
    assert stats[f"{key}.small_pool.current"] == 2 * MIB
    assert stats[f"{key}.large_pool.current"] == 20 * MIB
    assert stats[f"{key}.all.current"] == stats[f"{key}.all.peak"] == 22 * MIB
    del small, large


def test_dead_pools_are_not_in_memory_stats():
    before = set(weir.memory_stats())
    for _ in range(200):
        pool = weir.MemPool()
        with weir.use_mem_pool(pool):
            weir.buffer(512)
        del pool
        weir.empty_cache()
    assert set(weir.memory_stats()) <= before


def test_mempool_expandable():
    with settings("expandable_segments:True", "expandable_segments:False"):
        pool = weir.MemPool()
        with weir.use_mem_pool(pool):
            buffers = [weir.buffer(LARGE_BUFFER) for _ in range(3)]
        (segment,) = pool.snapshot()
        assert segment["is_expandable"] and segment["total_size"] == 3 * LARGE_BUFFER
        del buffers, pool


def test_snapshot_include_traces():
    weir.memory._record_memory_history(stacks="python")
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        buffer = weir.buffer(MIB)
    (with_traces,) = pool.snapshot()
    (without,) = pool.snapshot(include_traces=False)
    for key in ["address", "total_size", "allocated_size", "segment_pool_id", "stream"]:
        assert with_traces[key] == without[key]
    assert len(_weir._cuda_memorySnapshot((0, 0, True))["device_traces"][0]) > 0
    assert all(not trace for trace in _weir._cuda_memorySnapshot((0, 0, False))["device_traces"])
    del buffer


def test_mempool_with_functions():
    """Segments of the pool come from functions of the program."""
    libc = ctypes.CDLL(None)
    libc.aligned_alloc.restype, libc.aligned_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    calls = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def alloc(size, device, stream):
        calls.append(("alloc", size, device))
        return libc.aligned_alloc(2 * MIB, size)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def free(pointer, size, device, stream):
        calls.append(("free", size, device))
        libc.free(pointer)

    def address(function):
        return ctypes.cast(function, ctypes.c_void_p).value

    allocator = _weir._cuda_customAllocator(address(alloc), address(free))
    assert allocator.name() == "pluggable"
    pool = weir.MemPool(allocator)
    assert pool.allocator is allocator
    del allocator
    with weir.use_mem_pool(pool):
        a, b = weir.buffer(MIB), weir.buffer(3 * MIB)
    assert sorted(calls) == [("alloc", 2 * MIB, 0), ("alloc", 20 * MIB, 0)]
    assert live_blocks(pool.id) == 2
    weir.buffer(MIB)
    assert len(calls) == 2
    del a, b, pool
    gc.collect()
    assert sorted(calls[2:]) == [("free", 2 * MIB, 0), ("free", 20 * MIB, 0)]


def test_mempool_functions_out_of_memory():
    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def alloc(size, device, stream):
        return None

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def free(pointer, size, device, stream):
        raise AssertionError("there is nothing to free")

    address = [ctypes.cast(function, ctypes.c_void_p).value for function in (alloc, free)]
    pool = weir.MemPool(_weir._cuda_customAllocator(*address))
    with weir.use_mem_pool(pool):
        with pytest.raises(weir.OutOfMemoryError):
            weir.buffer(MIB)
    outside = weir.buffer(MIB)
    del outside


# ---- Checkpoints ----


def cudagraphify(fn, pool=None):
    weir.synchronize()
    stream = weir.Stream()
    stream.wait_stream(weir.current_stream())
    with weir.stream(stream):
        fn()
    stream.synchronize()
    weir.current_stream().wait_stream(stream)
    weir.synchronize()
    graph = weir.CUDAGraph()
    with weir.graph(graph, stream=stream, pool=pool):
        outputs = fn()
    return graph, outputs


def plus(a, b):
    """Imitates a sum: returns a new buffer of the size of its inputs."""
    return weir.buffer(len(a)).copy_(b)


def check_state(before, after):
    by_address = {s["address"]: s for s in after}
    for old in before:
        new = by_address[old["address"]]
        for field in ["device", "total_size", "allocated_size", "active_size", "segment_type", "segment_pool_id"]:
            assert old[field] == new[field]
        assert [(b["size"], b["state"]) for b in old["blocks"]] == [(b["size"], b["state"]) for b in new["blocks"]]


def check_function(fn, pool=None):
    graph, outputs = cudagraphify(fn, pool)
    pool_id = graph.pool()
    before = pool_segments(pool_id)
    state = _weir._cuda_getCheckpointState(0, pool_id)
    _weir._cuda_setCheckpointPoolState(0, state, [], [])
    check_state(before, pool_segments(pool_id))
    del outputs


def test_simple():
    def foo():
        x = filled(SMALL_SIZE * 8, 0)
        x = plus(x, x)
        x1 = plus(plus(filled(SMALL_SIZE), filled(SMALL_SIZE)), filled(SMALL_SIZE))
        y = plus(filled(SMALL_SIZE), x1)
        z = filled(SMALL_SIZE)
        return x, y, z

    check_function(foo)


def test_allocated_in_middle_of_segment():
    def foo():
        small = [filled(MIN_BLOCK_SIZE) for _ in range(11)]
        return small[5].fill_(2)

    check_function(foo)


def test_multiple_middle_allocations():
    def foo():
        small = [filled(MIN_BLOCK_SIZE) for _ in range(11)]
        return small[5], small[8]

    check_function(foo)


def test_middle_allocations_contiguous():
    def foo():
        small = [filled(MIN_BLOCK_SIZE) for _ in range(11)]
        return small[5], small[6]

    check_function(foo)


def test_additional_free_following_checkpoint():
    def foo():
        return (filled(MIN_BLOCK_SIZE),)

    graph, outputs = cudagraphify(foo)
    pool_id = graph.pool()
    before = pool_segments(pool_id)
    state = _weir._cuda_getCheckpointState(0, pool_id)
    graph2, outputs2 = cudagraphify(foo, pool_id)
    _weir._cuda_setCheckpointPoolState(0, state, list(outputs2), [])
    assert not outputs2[0].owns_memory
    del outputs2
    check_state(before, pool_segments(pool_id))
    assert live_blocks(pool_id) == 1
    del outputs, graph, graph2


def test_additional_free_error():
    def foo():
        return (filled(MIN_BLOCK_SIZE),)

    graph, outputs = cudagraphify(foo)
    state = _weir._cuda_getCheckpointState(0, graph.pool())
    graph2, outputs2 = cudagraphify(foo, graph.pool())
    with pytest.raises(RuntimeError, match="being manually freed must be passed"):
        _weir._cuda_setCheckpointPoolState(0, state, [], [])
    # the memory is released nevertheless: its owners must drop it explicitly
    with pytest.raises(ValueError, match="invalid device pointer"):
        outputs2[0].free()
    del outputs, graph, graph2


def test_tensor_dies_after_checkpoint():
    def foo():
        return filled(MIN_BLOCK_SIZE), filled(MIN_BLOCK_SIZE)

    graph, outputs = cudagraphify(foo)
    pool_id = graph.pool()
    state = _weir._cuda_getCheckpointState(0, pool_id)
    pointers = [output.pointer for output in outputs]
    del outputs
    _weir._cuda_setCheckpointPoolState(0, state, [], [])
    assert live_blocks(pool_id) == 2
    weir.caching_allocator_delete(pointers[0])
    assert live_blocks(pool_id) == 1
    weir.caching_allocator_delete(pointers[1])
    assert live_blocks(pool_id) == 0
    del graph


def test_assigning_back_deleter_fns_to_tensor():
    input = filled(1)

    def foo():
        outputs = weir.buffer(SMALL_BUFFER), weir.buffer(SMALL_BUFFER), weir.buffer(LARGE_BUFFER)
        for output in outputs:
            output[:1].copy_(input)
        return outputs

    graph, outputs = cudagraphify(foo)
    pool_id = graph.pool()
    graph.replay()
    assert [output[:1].tobytes() for output in outputs] == [b"\1"] * 3
    state = _weir._cuda_getCheckpointState(0, pool_id)
    shapes = [(output.pointer, output.device, len(output)) for output in outputs]
    assert live_blocks(pool_id) == 3
    del outputs
    assert live_blocks(pool_id) == 0
    again = [_weir._buffer_from_data_pointer(*shape) for shape in shapes]
    assert [buffer[:1].tobytes() for buffer in again] == [b"\1"] * 3
    input.fill_(2)
    graph.replay()
    assert [buffer[:1].tobytes() for buffer in again] == [b"\2"] * 3
    _weir._cuda_setCheckpointPoolState(0, state, [], [again[0], again[1]])
    assert live_blocks(pool_id) == 3
    again[0] = None
    assert live_blocks(pool_id) == 2
    again[1] = None
    assert live_blocks(pool_id) == 1
    # the third was not passed, and owns nothing
    again[2] = None
    assert live_blocks(pool_id) == 1
    weir.caching_allocator_delete(shapes[2][0])
    assert live_blocks(pool_id) == 0
    del graph


def test_resnet():
    """The allocations of a ResNet-50 on one image of 3 x 255 x 255, in float32: the outputs of its layers."""
    stages = ((64, 256, 64, 3), (128, 512, 32, 4), (256, 1024, 16, 6), (512, 2048, 8, 3))

    def foo():
        x = filled(3 * 255 * 255 * 4)
        x = plus(filled(64 * 128 * 128 * 4), filled(64 * 128 * 128 * 4))
        x = filled(64 * 64 * 64 * 4)
        for width, out, side, blocks in stages:
            for block in range(blocks):
                y = filled(width * side * side * 4)  # 1 x 1, 3 x 3, 1 x 1, each with its normalization
                y = plus(y, y)
                workspace = weir.buffer(width * 9 * side * side)
                y = plus(y, filled(width * side * side * 4))
                del workspace
                y = filled(out * side * side * 4)
                if block == 0:
                    x = filled(out * side * side * 4)  # the projection
                x = plus(x, y)
        return (plus(filled(1000 * 4), filled(1000 * 4)),)

    check_function(foo)


def test_checkpoint_refusals():
    with pytest.raises((RuntimeError, ValueError), match="pool"):
        _weir._cuda_getCheckpointState(0, (0, 10**6))
    with pytest.raises(TypeError):
        _weir._cuda_setCheckpointPoolState(0, "state", [], [])
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        owner = weir.buffer(512)
    state = _weir._cuda_getCheckpointState(0, pool.id)
    with pytest.raises(TypeError, match="expected a weir.Buffer"):
        _weir._cuda_setCheckpointPoolState(0, state, [1], [])
    with pytest.raises(RuntimeError, match="must not own memory already"):
        _weir._cuda_setCheckpointPoolState(0, state, [], [owner])
    del owner


def test_check_pool_live_allocations():
    pool = weir.graph_pool_handle()
    graph, outputs = cudagraphify(lambda: filled(16), pool=pool)

    def check(live):
        return _weir._cuda_checkPoolLiveAllocations(0, pool, live)

    assert check({outputs.pointer})
    assert not check({outputs.pointer, 0})
    assert not check(set())
    del outputs
    assert check(set())
    with pytest.raises(TypeError):
        check({"a"})
    del graph


def test_allocate_in_thread_to_pool():
    pool = weir.graph_pool_handle()
    graph, outputs = cudagraphify(lambda: weir.buffer(16).fill_(1), pool=pool)
    device = outputs.device
    del outputs

    @contextlib.contextmanager
    def use_pool_on_this_stream():
        weir.synchronize()
        stream = weir.Stream()
        stream.wait_stream(weir.current_stream())
        with weir.stream(stream):
            _weir._cuda_beginAllocateCurrentStreamToPool(device, pool)
            try:
                yield
            finally:
                _weir._cuda_endAllocateCurrentStreamToPool(device, pool)
                _weir._cuda_releasePool(device, pool)

    assert len(pool_segments(pool)) == 1

    def alloc_three():
        a, b = weir.buffer(LARGE_BUFFER), weir.buffer(LARGE_BUFFER)
        c = weir.buffer(LARGE_BUFFER)
        del a, b, c

    def use_pool():
        with use_pool_on_this_stream():
            for _ in range(10):
                alloc_three()
        alloc_three()

    def no_pool():
        for _ in range(10):
            a, b = weir.buffer(LARGE_BUFFER), weir.buffer(LARGE_BUFFER)
            del a, b

    threads = [threading.Thread(target=use_pool), threading.Thread(target=no_pool)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pool_segments(pool)) == 4
    del graph
    weir.synchronize()
    gc.collect()
    weir.empty_cache()
    assert len(pool_segments(pool)) == 0


def test_buffers_without_an_owner():
    buffer = weir.buffer(512)
    assert _weir._has_Standard_Deleter(buffer)
    before = weir.memory_allocated()
    pointer = buffer.pointer
    _weir._free_And_Remove_DeleterFn(buffer)
    assert weir.memory_allocated() == before - 512 and buffer.pointer == pointer
    assert not _weir._has_Standard_Deleter(buffer)
    with pytest.raises(TypeError):
        _weir._free_And_Remove_DeleterFn(buffer)
    with pytest.raises(TypeError):
        _weir._has_Standard_Deleter(1)
