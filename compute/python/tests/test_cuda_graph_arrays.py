"""Tests of PyTorch's test_cuda.py that need typed arrays: graphs, matrix products, the memory of both.

Each test has the name and the assertions of the original. The software device gets smaller sizes where the original has
millions of elements.
"""

from __future__ import annotations

import gc
import threading
import warnings

import pytest
from conftest import is_soft
from memory_tools import check_graph_memory, cleaned, graph_sizes  # noqa: F401

import weir
from weir import _C

SMALL_BUFFER = 2097152
SHARING = ("Don't share", "via pool()", "via graph_pool_handle()")


def ones(*shape):
    return weir.ones(*shape, device="cuda")


def func_with_temps(t, val):
    x = t.clone() + val
    y = t.clone() + val
    return x + y


def first_pool(share_mem):
    """The arguments of capture_begin for the first graph."""
    return (weir.graph_pool_handle(),) if share_mem == "via graph_pool_handle()" else ()


# ---- Graphs ----


def test_graph_capture_simple():
    s = weir.Stream()
    with weir.stream(s):
        a = weir.full((1000,), 1, device="cuda")
        g = weir.CUDAGraph()
        weir.empty_cache()
        g.capture_begin()
        b = a
        for _ in range(10):
            b = b + 1
        g.capture_end()
    weir.current_stream().wait_stream(s)
    g.replay()
    assert b.sum().item() == 11000


def test_graph_capture_reset_recapture():
    s = weir.Stream()
    with weir.stream(s):
        a = weir.full((1000,), 1, device="cuda")
        g = weir.CUDAGraph()
        weir.empty_cache()
        g.capture_begin()
        b = a
        for _ in range(10):
            b = b + 1
        g.capture_end()
    weir.current_stream().wait_stream(s)
    g.replay()
    assert b.sum().item() == 11000
    g.reset()
    with weir.stream(s):
        g.capture_begin()
        b.fill_(2)
        for _ in range(10):
            b = b + 2
        g.capture_end()
    weir.current_stream().wait_stream(s)
    g.replay()
    assert b.sum().item() == 22000
    g.reset()
    del g


def test_graph_capture_oom():
    with pytest.raises(RuntimeError, match="out of memory"):
        with weir.graph(weir.CUDAGraph()):
            weir.zeros(2**40, device="cuda")


def test_graph_two_successive():
    size = 1000
    s = weir.Stream()
    for share_mem in SHARING:
        g0, g1 = weir.CUDAGraph(), weir.CUDAGraph()
        a = ones(size)
        s.wait_stream(weir.current_stream())
        with weir.stream(s):
            g0_args = first_pool(share_mem)
            g0.capture_begin(*g0_args)
            b = a.clone()
            for _ in range(5):
                b = func_with_temps(b, 1)
            g0.capture_end()
            g1.capture_begin(*((g0.pool(),) if share_mem == "via pool()" else g0_args))
            for _ in range(5):
                b = func_with_temps(b, 1)
            g1.capture_end()
        weir.current_stream().wait_stream(s)

        c = a.clone()
        for _ in range(2):
            c = func_with_temps(c, 3)
        g0.replay()
        for _ in range(2):
            c = func_with_temps(c, 3)
        g1.replay()
        for _ in range(2):
            c = func_with_temps(c, 3)
        assert b.sum().item() == size * 3070
        assert c.sum().item() == size * 442

        reserved = weir.memory_stats()["reserved_bytes.all.current"]
        if share_mem == "Don't share":
            reserved_no_sharing = reserved
        else:
            assert reserved_no_sharing - reserved == SMALL_BUFFER
        del a, b, c, g0, g1
        weir.synchronize()
        weir.empty_cache()


def test_graph_concurrent_replay():
    size = 10_000 if is_soft else 1_000_000
    s = weir.Stream()
    for share_mem in SHARING:
        g0, g1 = weir.CUDAGraph(), weir.CUDAGraph()
        s0, s1 = weir.Stream(), weir.Stream()
        a = ones(size)
        s.wait_stream(weir.current_stream())
        with weir.stream(s):
            g0_args = first_pool(share_mem)
            g0.capture_begin(*g0_args)
            b = a.clone()
            for _ in range(5):
                b = func_with_temps(b, 1)
            g0.capture_end()
            g1.capture_begin(*((g0.pool(),) if share_mem == "via pool()" else g0_args))
            c = a.clone()
            for _ in range(5):
                c = func_with_temps(c, 2)
            g1.capture_end()
        weir.synchronize()
        with weir.stream(s0):
            weir._sleep(1000000)
            s1.wait_stream(s0)
            g0.replay()
        with weir.stream(s1):
            g1.replay()
        weir.current_stream().wait_stream(s0)
        weir.current_stream().wait_stream(s1)
        if share_mem == "Don't share":
            assert b.sum().item() == size * 94
            assert c.sum().item() == size * 156
        elif not is_soft:
            # Graphs that share a pool use the same memory: concurrent replays corrupt each other. Whether they do
            # depends on the moment; on the software device with few processors they may run one after the other.
            assert b.sum().item() != size * 94
            assert c.sum().item() != size * 156
        del a, b, c, g0, g1
        weir.synchronize()
        weir.empty_cache()


def test_graph_three_successive():
    size = 1000
    s = weir.Stream()
    for share_mem in SHARING:
        a = ones(size)
        g0, g1, g2 = weir.CUDAGraph(), weir.CUDAGraph(), weir.CUDAGraph()
        s.wait_stream(weir.current_stream())
        with weir.stream(s):
            g0_args = first_pool(share_mem)
            g0.capture_begin(*g0_args)
            b = a.clone()
            c = b + 1
            d = b + 2
            g0.capture_end()
            args = (g0.pool(),) if share_mem == "via pool()" else g0_args
            g1.capture_begin(*args)
            e = c + 3
            del c
            g1.capture_end()
            g2.capture_begin(*args)
            f = d + 4
            g2.capture_end()
        weir.current_stream().wait_stream(s)

        g0.replay()
        g1.replay()
        g2.replay()
        assert e.sum().item() == size * 5
        assert f.sum().item() == size * 7

        # g0, g2, g1 is only valid if they do not share a pool: f has the memory of c.
        g0.replay()
        g2.replay()
        g1.replay()
        assert e.sum().item() == size * (5 if share_mem == "Don't share" else 7 + 3)
        assert f.sum().item() == size * 7
        del a, b, d, e, f, g0, g1, g2
        weir.synchronize()
        weir.empty_cache()


def test_cuda_graph_allocator_propagates_stream():
    size = 3_000_000 if is_soft else 10_240_000  # a segment each
    x = weir.ones(size, device="cuda")
    y = weir.ones_like(x)
    existing_pools = {s["segment_pool_id"] for s in weir.memory_snapshot()}
    g = weir.CUDAGraph()
    s0, s1 = weir.Stream(), weir.Stream()
    s0.wait_stream(weir.current_stream())
    with weir.stream(s0):
        g.capture_begin()
        z = x + y
    with weir.stream(s1):
        s1.wait_stream(s0)
        w = z + y
    s0.wait_stream(s1)
    with weir.stream(s0):
        g.capture_end()
    found = [s["segment_pool_id"] for s in weir.memory_snapshot() if s["segment_pool_id"] not in existing_pools]
    assert len(found) == 2 and found[0] == found[1]
    del w, z


class Linear:
    """A layer, without gradients."""

    def __init__(self, inputs, outputs):
        self.weight = weir.randn(inputs, outputs, device="cuda") * 0.1
        self.__name__ = "linear"

    def __call__(self, x):
        return weir.matmul(x, self.weight).relu()


def test_graph_make_graphed_callables():
    """The graphed layers give what the layers give. Without gradients: there is no autograd."""
    sizes = (6, 8, 5, 2) if is_soft else (4096, 2048, 2048, 1024)
    layers = [Linear(*pair) for pair in zip(sizes, sizes[1:])]
    batch = 4
    xs = [weir.randn(batch, size, device="cuda") for size in sizes[:-1]]
    graphed = weir.make_graphed_callables(tuple(layers), tuple((x,) for x in xs))
    for _ in range(3):
        data = weir.randn(batch, sizes[0], device="cuda")
        expected, found = data, data
        for layer, graph in zip(layers, graphed):
            expected, found = layer(expected), graph(found)
        assert found.shape == (batch, sizes[-1]) and bool((found == expected).all())


def test_graph_make_graphed_callables_same_pool():
    """Two sets of graphs in one pool, replayed in the order of their capture."""
    layers = [Linear(8, 8) for _ in range(2)]
    x = weir.randn(4, 8, device="cuda")
    pool = weir.graph_pool_handle()
    graphed = [weir.make_graphed_callables(layer, (x.clone(),), pool=pool) for layer in layers]
    for _ in range(3):
        expected = layers[1](layers[0](x))
        assert bool((graphed[1](graphed[0](x)) == expected).all())


def test_memory_stats_of_multiple_generators_and_graphs():
    def get_memory_stats():
        stats = weir.memory_stats()
        return stats["active.all.current"], stats["active_bytes.all.current"]

    def simple_graph_task(graph):
        s = weir.Stream()
        with weir.stream(s):
            graph.capture_begin()
            weir.rand(1, device="cuda")
            graph.capture_end()
        weir.current_stream().wait_stream(s)
        graph.replay()

    def test(num_graphs, num_generators):
        baseline = get_memory_stats()
        graphs = [weir.CUDAGraph() for _ in range(num_graphs)]
        default_generator = weir.default_generators[0]
        generators = [default_generator.graphsafe_get_state()]
        for _ in range(1, num_generators):
            generators.append(default_generator.clone_state())
        for graph in graphs:
            for generator_state in generators:
                graph.register_generator_state(generator_state)
            simple_graph_task(graph)
        num_blocks, total_size = get_memory_stats()
        assert num_blocks - baseline[0] == 2 * num_generators
        assert total_size - baseline[1] == 2 * 512 * num_generators
        while graphs:
            graphs.pop()
        del graph
        gc.collect()
        weir.empty_cache()
        assert get_memory_stats() == baseline

    test(1, 1)
    test(3, 2)
    test(10, 20)


@graph_sizes
def test_graph_memory_stats_and_use_result_after_destroy_graph(size, mallocs, malloc_bytes, kept_bytes, pool):
    def make():
        return weir.full((size,), 6, dtype=weir.uint8, device="cuda")

    # The seed and the offset of the default generator take a block of 512 bytes each.
    blocks, extra = (3, 1024) if pool == "small_pool" else (1, 0)
    captured, kept = [mallocs, malloc_bytes, blocks, size + extra], [1, kept_bytes, 1, size]
    check_graph_memory(make, lambda x: x.clone(), lambda x: bool((x.cpu() == 6).all()), captured, kept, pool)


# ---- Matrix products ----


def test_cublas_workspace_explicit_allocation(monkeypatch):
    a = weir.randn(7, 7, device="cuda")
    default = 4096 * 8 * 1024 if weir.get_device_capability()[0] == 9 else 4096 * 2 * 1024 + 16 * 8 * 1024

    def check_workspace_size(inp):
        _C._cuda_clearCublasWorkspaces()
        start = weir.memory_stats()["active_bytes.all.allocated"]
        weir.matmul(inp, inp)
        finish = weir.memory_stats()["active_bytes.all.allocated"]
        return finish - start

    for config in ("", "-1"):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one warning per process
            assert abs(check_workspace_size(a) - default) < 524288
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":128:8:64:16:32:32")
    assert abs(check_workspace_size(a) - 3072 * 1024) < 524288
    _C._cuda_clearCublasWorkspaces()


def test_cublas_multiple_threads_same_device():
    size, test_iters = (32, 10) if is_soft else (1024, 100)
    num_threads, trials = 2, 3
    weight = ones(size, size)
    results, failures = {}, []
    barrier = threading.Barrier(num_threads)

    def worker(t):
        try:
            my_stream = weir.Stream()
            weir.synchronize()
            barrier.wait()
            with weir.stream(my_stream):
                for _ in range(test_iters):
                    results[t] = weir.mm(results[t], weight)
                    results[t].div_(float(size))
            weir.synchronize()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    for _ in range(trials):
        for t in range(num_threads):
            results[t] = ones(size, size)
        threads = [threading.Thread(target=worker, args=(t,)) for t in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        for t in range(num_threads):
            assert results[t].sum().item() == size * size


def test_repeat_graph_capture_cublas_workspace_memory():
    x, y, z = (128, 64, 16) if is_soft else (1024, 512, 64)
    a, b = weir.rand((x, y), device="cuda"), weir.rand((y, z), device="cuda")
    weir.mm(a, b)  # loads the library
    free_before, total = weir.mem_get_info()
    for _ in range(100):
        graph = weir.CUDAGraph()
        with weir.graph(graph):
            weir.mm(a, b)
        graph.replay()
    free_after, _ = weir.mem_get_info()
    assert (total - free_after) / 1e9 <= (total - free_before) / 1e9 + 0.1


def test_matmul_memory_use():
    def get_max_used():
        weir.synchronize()
        val = weir.max_memory_allocated()
        weir.reset_peak_memory_stats()
        return val

    a = weir.rand(1, 32, 32, device="cuda")
    b = weir.rand(24, 32, 1, device="cuda")
    get_max_used()
    weir.matmul(a, b)
    matmul_mem = get_max_used()
    a = a.expand(24, 32, 32)
    weir.matmul(a, b)
    matmul_expand_mem = get_max_used()
    weir.bmm(a, b)
    bmm_mem = get_max_used()
    assert matmul_expand_mem == matmul_mem
    assert bmm_mem == matmul_mem
