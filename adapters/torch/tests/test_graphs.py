"""Graphs, their pools and checkpoints, and torch.compile with graphs."""
import gc

import harness
from harness import equal, raises

torch = harness.install()
MIB = 1 << 20


def pool_segments(pool):
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)]


def test_capture_and_replay():
    x = torch.zeros(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        z = (y * 2).sum()
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        equal(float(z), (value + 1) * 2 * (1 << 20))
    equal(len(pool_segments(graph.pool())) > 0, True)
    pool = graph.pool()
    del graph, y, z
    gc.collect()
    torch.cuda.empty_cache()
    equal(pool_segments(pool), [])


def test_shared_pool():
    pool = torch.cuda.graph_pool_handle()
    x = torch.ones(1 << 18, device="cuda")
    graphs = []
    for k in range(4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = x
            for _ in range(5):
                y = y * 2
        graphs.append((graph, y))
    for graph, y in graphs:
        graph.replay()
        equal(float(y[0]), 32.0)
    del graphs, y, graph


def test_memory_stays_after_the_graph():
    x = torch.full((1 << 20,), 3.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    equal(float(y[123]), 6.0)


def test_record_stream_in_capture():
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1 << 20, device="cuda")
    with torch.cuda.graph(graph):
        a = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a + 1
        a.record_stream(side)
        del a
        c = torch.empty(1 << 20, device="cuda").fill_(7)
        torch.cuda.current_stream().wait_stream(side)
        d = b + c
    graph.replay()
    equal(float(d.mean()), 10.0)


def test_events_before_a_capture_are_left_alone():
    stream = torch.cuda.Stream()
    x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
    x.record_stream(stream)
    del x  # waits for an event of the side stream
    graph = torch.cuda.CUDAGraph()
    y = torch.ones(100, device="cuda")
    with torch.cuda.graph(graph):
        z = y + torch.empty(100, device="cuda").fill_(1)
    graph.replay()
    equal(float(z.sum()), 200.0)


def test_make_graphed_callables():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
    sample = torch.randn(16, 64, device="cuda", requires_grad=True)
    plain = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
    plain.load_state_dict(model.state_dict())
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    x = torch.randn(16, 64, device="cuda")
    graphed(x).sum().backward()
    plain(x).sum().backward()
    for p, q in zip(graphed.parameters(), plain.parameters()):
        assert torch.allclose(p.grad, q.grad)


def test_empty_cache_during_capture_is_harmless():
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        x = torch.ones(1000, device="cuda")
        torch.cuda.empty_cache()
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    equal(float(x.sum()), 1000.0)


def test_failed_capture():
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            x = torch.ones(1000, device="cuda")
            x.cpu()  # not allowed in a capture
    except RuntimeError:
        pass
    torch.cuda.synchronize()
    del graph
    gc.collect()
    equal(float(torch.ones(10, device="cuda").sum()), 10.0)


def live(pool):
    blocks = [b for s in pool_segments(pool) for b in s["blocks"]]
    return [(b["address"], b["size"], b["state"]) for b in blocks if b["state"] != "inactive"]


def segments_of(pool):
    return {s["address"]: [(b["size"], b["state"]) for b in s["blocks"]] for s in pool_segments(pool)}


def cudagraphify(call, pool=None):
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        outputs = call()
    return graph, outputs


def test_checkpoint():
    for conf in ("expandable_segments:False", "expandable_segments:True"):
        torch._C._accelerator_setAllocatorSettings(conf)
        graph, outputs = cudagraphify(lambda: [torch.ones(n, device="cuda") for n in (1000, 4 * MIB, 3 * MIB)])
        pool, device = graph.pool(), outputs[0].device.index
        state = torch._C._cuda_getCheckpointState(device, pool)
        before, blocks = live(pool), segments_of(pool)
        addresses = {t.untyped_storage().data_ptr() for t in outputs}
        equal(torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses), True)
        equal(torch._C._cuda_checkPoolLiveAllocations(device, pool, set()), False)
        graph2, more = cudagraphify(lambda: [torch.ones(n, device="cuda") for n in (2000, 5 * MIB)], pool)
        assert live(pool) != before
        stale = [t.untyped_storage() for t in outputs + more]
        torch._C._cuda_setCheckpointPoolState(device, state, [s._cdata for s in stale], [])
        equal(live(pool), before, conf)
        if conf.endswith("False"):  # segments added later remain as free memory; the others are restored
            after = segments_of(pool)
            equal({address: after[address] for address in blocks}, blocks)
            assert len(after) > len(blocks), "the second graph needed segments of its own"
        # The stale tensors own nothing any more, and free nothing when they are destroyed.
        del stale, outputs, more
        gc.collect()
        equal(live(pool), before, conf)
        del graph, graph2, state
        gc.collect()


def make_two():
    return [torch.ones(n, device="cuda") for n in (1000, 3 * MIB + 5)]


def restore_it(device, state, tensors):
    torch._C._cuda_setCheckpointPoolState(device, state, [t.untyped_storage()._cdata for t in tensors], [])


def test_checkpoint_has_stacks():
    for context in ("all", "alloc", "state"):
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=context, stacks="python")
        graph, outputs = cudagraphify(make_two)
        pool, device = graph.pool(), outputs[0].device.index
        addresses = {t.untyped_storage().data_ptr() for t in outputs}
        state = torch._C._cuda_getCheckpointState(device, pool)
        restore_it(device, state, outputs)
        shot = torch.cuda.memory._snapshot()
        blocks = [b for s in shot["segments"] if tuple(s["segment_pool_id"]) == tuple(pool)
                  for b in s["blocks"] if b["state"] == "active_allocated"]
        equal({b["address"] for b in blocks}, addresses, context)
        for block in blocks:
            assert "restore_it" in [f["name"] for f in block["frames"]], (context, block)
            equal(block["requested_size"], block["size"], "a whole block is requested")
        entries = [e for e in shot["device_traces"][device]
                   if e.get("addr") in addresses and not e["action"].startswith("segment")]
        actions = [e["action"] for e in entries if e["addr"] == min(addresses)]
        equal(actions, ["alloc", "free_requested", "free_completed", "alloc"])
        for entry in entries:
            equal("frames" in entry, context != "state", context)
        for address in addresses if context != "state" else ():
            first, asked, done, again = ([f["name"] for f in e["frames"]] for e in entries if e["addr"] == address)
            assert "make_two" in first and "restore_it" in again and "make_two" not in again, context
            for freed in (asked, done):  # a free has its own stack only with "all"
                equal("restore_it" in freed, context == "all", context)
                equal("make_two" in freed, context != "all", context)
        del outputs, graph, state
        gc.collect()
        torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(None)


def test_checkpoint_gives_deleters_back():
    graph, outputs = cudagraphify(lambda: [torch.ones(3 * MIB, device="cuda")])
    pool, device = graph.pool(), outputs[0].device.index
    state = torch._C._cuda_getCheckpointState(device, pool)
    pointer, metadata = outputs[0].untyped_storage().data_ptr(), outputs[0].untyped_storage().nbytes()
    storage = outputs[0].untyped_storage()
    assert torch._C._has_Standard_Deleter(storage._cdata)
    torch._C._cuda_setCheckpointPoolState(device, state, [storage._cdata], [])
    assert not torch._C._has_Standard_Deleter(storage._cdata)
    del outputs, storage
    fresh = torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(
        {"storage_offset": 0, "size": (3 * MIB,), "stride": (1,), "dtype": torch.float32,
         "device": torch.device("cuda", device)},
        torch._C._construct_storage_from_data_pointer(pointer, torch.device("cuda", device), metadata))
    torch._C._cuda_setCheckpointPoolState(device, state, [], [fresh.untyped_storage()._cdata])
    assert torch._C._has_Standard_Deleter(fresh.untyped_storage()._cdata)
    equal(sum(s["active_size"] for s in pool_segments(pool)) > 0, True)
    del fresh
    gc.collect()
    equal(sum(s["active_size"] for s in pool_segments(pool)), 0)
    del graph


def test_compile_reduce_overhead():
    try:
        import triton  # noqa: F401
    except ImportError:
        raise harness.Waived("Triton is not installed")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    for step in range(6):
        x = torch.randn(32, 64, device="cuda", requires_grad=True)
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(x)
        wanted = model(x)
        assert torch.allclose(got, wanted, atol=1e-4), step
        got.sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        wanted.sum().backward()
        for a, p in zip(grads, model.parameters()):
            assert torch.allclose(a, p.grad, atol=1e-3)
        model.zero_grad(set_to_none=True)
    from torch._inductor.cudagraph_trees import get_manager

    assert get_manager(0, create_if_none_exists=False) is not None, "graphs were recorded"
    torch._dynamo.reset()


def test_compile_context_in_history():
    try:
        import triton  # noqa: F401
    except ImportError:
        raise harness.Waived("Triton is not installed")
    torch._dynamo.reset()
    torch.cuda.memory._record_memory_history("all", context=None, compile_context=True)

    @torch.compile
    def call(x):
        return (x * 2).relu() @ x

    with torch.no_grad():
        call(torch.ones(256, 256, device="cuda"))
    texts = {e["compile_context"] for e in torch.cuda.memory._snapshot()["device_traces"][0]}
    torch._dynamo.reset()
    assert any(t != "N/A" for t in texts), texts


if __name__ == "__main__":
    harness.main(globals())
