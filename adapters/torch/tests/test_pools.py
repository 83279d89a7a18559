"""torch.cuda.MemPool, and Weir through CUDAPluggableAllocator."""
import gc
import os

import harness
from harness import equal, raises

torch = harness.install()
MIB = 1 << 20


def segments(pool):
    return torch.cuda.memory_snapshot(pool.id)


def test_pool():
    pool = torch.cuda.MemPool()
    equal(pool.use_count(), 1)
    with torch.cuda.use_mem_pool(pool):
        equal(pool.use_count(), 2)
        x = torch.ones(3 * MIB, device="cuda")
    equal(pool.use_count(), 1)
    outside = torch.ones(3 * MIB, device="cuda")
    equal([s["active_size"] for s in segments(pool)], [12 * MIB])
    del x
    torch.cuda.empty_cache()
    equal(len(segments(pool)), 1, "a pool in use keeps its memory")
    ident = pool.id
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_snapshot(ident), [])
    del outside


def pool_stats(pool):
    return {key: value for key, value in torch.cuda.memory_stats().items()
            if key.startswith("reserved_bytes_by_private_pools") and str(pool[1]) in key}


def test_statistics_of_a_pool():
    pool = torch.cuda.MemPool()
    ident = pool.id
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(3 * MIB, device="cuda")
    before = pool_stats(ident)
    if not before:
        raise harness.Waived("this PyTorch has no statistics of pools")
    peaks = [key for key in before if key.endswith(".peak") and before[key]]
    assert peaks, before
    del x, pool
    gc.collect()
    torch.cuda.empty_cache()
    after = pool_stats(ident)
    equal(set(after), set(before), "they outlive the pool")
    for key in after:
        if key.endswith(".current"):
            equal(after[key], 0, key)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    equal(set(pool_stats(ident).values()), {0})


def test_nested_pools():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        a = torch.ones(1000, device="cuda")
        with torch.cuda.use_mem_pool(inner):
            b = torch.ones(1000, device="cuda")
        c = torch.ones(1000, device="cuda")
    equal(sum(s["active_size"] for s in segments(outer)), 2 * 4096)
    equal(sum(s["active_size"] for s in segments(inner)), 4096)
    del a, b, c


def test_pool_ends_in_a_forked_child():
    """Its destructor must not throw."""
    import os

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.ones(1000, device="cuda")
    child = os.fork()
    if not child:
        del pool
        os._exit(0)
    equal(os.waitpid(child, 0)[1], 0)


def test_pool_ends_beside_another():
    first, second = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(first):
        torch.zeros(MIB, device="cuda")
    reserved = torch.cuda.memory_reserved()
    with torch.cuda.use_mem_pool(second):
        del first
        assert torch.cuda.memory_reserved() < reserved


def test_same_pool_twice():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        def again():
            with torch.cuda.use_mem_pool(pool):
                pass
        raises(RuntimeError, "already recording to mempool_id", again)


def test_only_this_thread():
    import threading

    pool, held = torch.cuda.MemPool(), []
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: held.append(torch.ones(1000, device="cuda")))
        thread.start()
        thread.join()
    equal(segments(pool), [])


def test_newest_scope_counts():
    """A graph in the scope of a thread takes its own pool, and a scope in a graph takes the scope's."""
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):  # the first graph, while it lives, makes PyTorch keep two tensors for the generator
        torch.empty(1000, device="cuda")
    outer, inner, graph = torch.cuda.MemPool(), torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    with torch.cuda.use_mem_pool(outer):
        x = torch.ones(1000, device="cuda")
        before = sum(s["active_size"] for s in segments(outer))
        with torch.cuda.graph(graph):
            y = torch.empty(3 * MIB, device="cuda")
            with torch.cuda.use_mem_pool(inner):
                z = torch.empty(3 * MIB, device="cuda")
            y.zero_()
            z.zero_()
        equal(sum(s["active_size"] for s in segments(outer)), before)
        w = torch.ones(1000, device="cuda")
        equal(sum(s["active_size"] for s in segments(outer)), before + 4096)
    equal(sum(s["active_size"] for s in segments(inner)), 12 * MIB)
    held = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(graph.pool())]
    equal(sum(s["active_size"] for s in held), 12 * MIB)
    graph.replay()
    torch.cuda.synchronize()
    equal(float(y.sum() + z.sum()), 0.0)
    del first
    del graph, w, x, y, z


def test_scope_that_another_thread_closes():
    import threading

    pool = torch.cuda.MemPool()
    scope = torch.cuda.use_mem_pool(pool)
    scope.__enter__()
    thread = threading.Thread(target=lambda: scope.__exit__(None, None, None))
    thread.start()
    thread.join()
    x = torch.ones(1000, device="cuda")
    equal(segments(pool), [])
    with torch.cuda.use_mem_pool(pool):
        y = torch.ones(1000, device="cuda")
    equal(sum(s["active_size"] for s in segments(pool)), 4096)
    del x, y


def test_threads_share_a_pool():
    import threading

    if os.environ.get("WEIR_TEST_NATIVE") == "1":
        raise harness.Waived("PyTorch refuses the second scope of a pool")
    if not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"):
        raise harness.Waived("this PyTorch has no scopes of threads")
    pool, held, failed = torch.cuda.MemPool(), [], []
    barrier = threading.Barrier(4)

    def work():
        try:
            with torch.cuda.use_mem_pool(pool):
                barrier.wait(60)
                held.append(torch.ones(1000, device="cuda"))
                barrier.wait(60)
            held.append(torch.ones(1000, device="cuda"))
        except Exception as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(failed, [])
    equal(sum(s["active_size"] for s in segments(pool)), 4 * 4096)
    held.clear()


def test_no_split():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        x = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    equal([len(s["blocks"]) for s in segments(pool)], [1, 1, 1])
    del x


def test_own_allocator():
    import weir_torch

    if os.environ.get("WEIR_TEST_NATIVE") == "1":
        raise harness.Waived("this test is about Weir")
    allocator = weir_torch.pluggable_allocator()
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((3 * MIB,), 5.0, device="cuda")
        y = torch.full((MIB,), 1.0, device="cuda")
    equal(float(x.sum()), 15.0 * MIB)
    equal(sorted(s["total_size"] for s in segments(pool)), [12 * MIB, 20 * MIB], "segments have the usual sizes")
    del y
    equal([s["is_expandable"] for s in segments(pool)], [False, False])
    del allocator
    gc.collect()
    equal(float(x.sum()), 15.0 * MIB)
    ident = pool.id
    del pool
    gc.collect()
    equal(float(x.sum()), 15.0 * MIB, "memory outlives its pool")
    del x
    gc.collect()
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_snapshot(ident), [])


def test_use_on_oom():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.03)
    pool = torch.cuda.MemPool(use_on_oom=True)
    bytes_ = int(total * 0.02)
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(bytes_, dtype=torch.uint8, device="cuda")
    address = x.data_ptr()
    del x
    y = torch.empty(bytes_, dtype=torch.uint8, device="cuda")
    equal(y.data_ptr(), address, "borrowed from the pool")
    del y, pool


def test_pool_not_used_without_use_on_oom():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.03)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(int(total * 0.02), dtype=torch.uint8, device="cuda")
    del x
    raises(torch.OutOfMemoryError, "", torch.empty, int(total * 0.02), dtype=torch.uint8, device="cuda")


def test_pool_with_expandable_segments():
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(3 * MIB, device="cuda")
    equal([s["is_expandable"] for s in segments(pool)], [True])
    del x, pool


def test_release_in_a_scope():
    # Memory that other streams used is released at once, even while a scope is open.
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        x.record_stream(side)
        del x
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")
        equal(sum(b["state"] == "active_pending_free" for s in segments(pool) for b in s["blocks"]), 0)


def test_pluggable_as_the_only_allocator():
    import subprocess
    import sys

    if os.environ.get("WEIR_TEST_NATIVE") == "1":
        raise harness.Waived("this test is about Weir")
    code = """
import torch, weir_torch
torch.cuda.memory.change_current_allocator(weir_torch.pluggable_allocator())
x = torch.arange(1000, device="cuda")
assert int(x.sum()) == 499500
s = torch.cuda.Stream()
with torch.cuda.stream(s):
    y = x * 2
x.record_stream(s)
del x
g = torch.cuda.CUDAGraph()
a = torch.ones(100, device="cuda")
with torch.cuda.graph(g):
    b = a + 1
g.replay()
assert float(b.sum()) == 200
torch.cuda.empty_cache()
m = torch.nn.Linear(100, 100).cuda()
m(torch.randn(10, 100, device="cuda")).sum().backward()
torch.cuda.synchronize()
assert int(y.sum()) == 999000
print("fine")
"""
    environment = dict(os.environ, WEIR_TORCH="0")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert "fine" in done.stdout and "weir: error" not in done.stderr, done.stdout + done.stderr


if __name__ == "__main__":
    harness.main(globals())
