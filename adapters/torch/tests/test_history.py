"""Snapshots and history: entries, stacks and callbacks."""
import time

import harness
from harness import equal, raises

torch = harness.install()
MIB = 1 << 20


def record(enabled="all", **named):
    torch.cuda.memory._record_memory_history(enabled, **named)


def snapshot():
    return torch.cuda.memory._snapshot()


def actions(shot):
    return [e["action"] for e in shot["device_traces"][0]]


def names(frames):
    return [f["name"] for f in frames]


def block_of(shot, tensor):
    for segment in shot["segments"]:
        for block in segment["blocks"]:
            if block["address"] == tensor.untyped_storage().data_ptr() and block["state"] == "active_allocated":
                return segment, block
    raise AssertionError("the tensor's block is not in the snapshot")


def test_snapshot_tiles():
    kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (100, 5000, 3 * MIB, 40 * MIB)]
    gone = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    del gone
    shot = snapshot()
    for s in shot["segments"]:
        equal(sum(b["size"] for b in s["blocks"]), s["total_size"], "blocks cover the segment")
        at = s["address"]
        for b in s["blocks"]:
            equal(b["address"], at)
            at += b["size"]
        equal(sum(b["size"] for b in s["blocks"] if b["state"] == "active_allocated"), s["allocated_size"])
    for t in kept:
        block_of(shot, t)
    addresses = [s["address"] for s in shot["segments"]]
    equal(addresses, sorted(addresses))
    equal(sum(s["total_size"] for s in shot["segments"]), torch.cuda.memory_reserved())
    assert shot["allocator_settings"]["expandable_segments"] is False
    equal(len(shot["allocator_settings"]["roundup_power2_divisions"]), 16)


def outer_function():
    return torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")


def test_history_all():
    begin = time.time()
    record("all", context="all", stacks="python")
    x = outer_function()
    address = x.data_ptr()
    del x
    torch.cuda.empty_cache()
    end = time.time()
    shot = snapshot()  # the first lookup of function names of a stack may take seconds
    equal(actions(shot), ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"])
    trace = shot["device_traces"][0]
    for entry in trace[:2]:
        assert "outer_function" in names(entry["frames"]), names(entry["frames"])
    for entry in trace[2:4]:
        assert "test_history_all" in names(entry["frames"]) and "outer_function" not in names(entry["frames"])
    equal(trace[1]["addr"], address)
    equal(trace[1]["size"], 3 * MIB)
    equal(trace[0]["size"], 20 * MIB)
    times = [e["time_us"] for e in trace]
    equal(times, sorted(times))
    assert begin - 1 < times[0] / 1e6 and times[-1] / 1e6 < end + 1, f"Unix time: {begin} to {end}, {times}"
    equal({e["compile_context"] for e in trace}, {"N/A"})
    # The snapshot itself is an entry of the next one.
    equal(actions(snapshot())[-1], "snapshot")


def test_history_contexts():
    cases = ("all", True, True), ("alloc", True, True), ("state", False, True), (None, False, False)
    for context, on_trace, on_block in cases:
        record(None)
        record("all", context=context, stacks="python")
        x = outer_function()
        shot = snapshot()
        entry = [e for e in shot["device_traces"][0] if e["action"] == "alloc"][-1]
        equal("frames" in entry, on_trace, f"context={context}, trace")
        _, block = block_of(shot, x)
        equal("outer_function" in names(block["frames"]), on_block, f"context={context}, block")
        del x
        entry = [e for e in snapshot()["device_traces"][0] if e["action"] == "free_completed"][-1]
        equal("frames" in entry, on_trace, f"context={context}, free")
        if context == "alloc":
            assert "outer_function" in names(entry["frames"]), "a free has the allocation's stack"


def test_history_state_keeps_one():
    record("state", context="all", stacks="python")
    x = [torch.empty(1000, device="cuda") for _ in range(5)]
    equal(len(snapshot()["device_traces"][0]), 1)
    _, block = block_of(snapshot(), x[0])
    assert block["frames"]


def test_cpp_stacks():
    record("all", context="all", stacks="all")
    x = outer_function()
    _, block = block_of(snapshot(), x)
    all_names = names(block["frames"])
    assert "outer_function" in all_names
    assert any("::" in n for n in all_names), all_names[:8]


def test_stack_of_a_segment():
    # Of a block that was not split: the others lose it, as in PyTorch's own allocator.
    record("all", context="all", stacks="python")

    def large():
        return torch.empty(12 << 20, dtype=torch.uint8, device="cuda")

    x = large()
    segment, _ = block_of(snapshot(), x)
    assert "large" in names(segment["frames"])


def test_max_entries():
    record("all", context=None, max_entries=10)
    for _ in range(20):
        torch.empty(1000, device="cuda")
    trace = snapshot()["device_traces"][0]
    equal(len(trace), 10)
    equal([e["action"] for e in trace][-1], "free_completed")


def test_clear_and_stop():
    record("all", context="alloc")
    x = torch.empty(1000, device="cuda")
    assert snapshot()["device_traces"][0]
    record("all", context="alloc", clear_history=True)
    equal(snapshot()["device_traces"][0], [])
    record(None)
    equal(snapshot()["device_traces"][0], [])
    equal(torch._C._cuda_isHistoryEnabled(), False)
    del x


def test_skip_actions():
    try:
        record("all", context=None, skip_actions=["free_requested", "free_completed"])
    except TypeError as error:
        raise harness.Waived(str(error))
    torch.empty(1000, device="cuda")
    assert not [a for a in actions(snapshot()) if a.startswith("free")]


def test_metadata_and_annotations():
    record("all", context=None)
    torch.cuda.memory._set_memory_metadata("layer 3")
    x = torch.empty(1000, device="cuda")
    equal(torch.cuda.memory._get_memory_metadata(), "layer 3")
    torch.cuda.memory._set_memory_metadata("")
    y = torch.empty(1000, device="cuda")
    trace = [e for e in snapshot()["device_traces"][0] if e["action"] == "alloc"]
    equal([e["user_metadata"] for e in trace], ["layer 3", ""])
    del x, y


def test_record_function_annotations():
    record("all", context=None, global_record_annotations=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities), torch.profiler.record_function("a step"):
        torch.empty(1000, device="cuda")
    notes = [a for a in snapshot()["external_annotations"] if a.get("name") == "a step"]
    equal([a["stage"] for a in notes], ["START", "END"])


def test_snapshot_of_a_pool_and_without_traces():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    y = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    equal(len(torch.cuda.memory_snapshot(pool.id)), 1)
    equal(len(pool.snapshot()), 1)
    equal(len(torch.cuda.memory_snapshot()), 2)
    equal(tuple(torch.cuda.memory_snapshot(pool.id)[0]["segment_pool_id"]), tuple(pool.id))
    equal(torch.cuda.memory_snapshot((0, 999)), [])
    torch.cuda.memory_snapshot(include_traces=False)
    del x, y, pool


def test_dump_can_be_read():
    import os
    import pickle
    import tempfile

    record("all", context="all")
    x = outer_function()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        shot = pickle.load(open(path, "rb"))
    from torch.cuda import _memory_viz

    assert "empty" not in _memory_viz.trace(shot)[:0]
    _memory_viz.segsum(shot)
    _memory_viz.trace_plot(shot)
    _memory_viz.segment_plot(shot)
    del x


def test_forward_frames():
    record("all", context="all", stacks="python")
    with torch.autograd.detect_anomaly(check_nan=False):
        w = torch.randn(1000, 1000, device="cuda", requires_grad=True)
        (w @ w).sum().backward()
    blocks = [b for s in snapshot()["segments"] for b in s["blocks"]]
    assert any("forward_frames" in b for b in blocks if b["state"] == "active_allocated")


def test_history_over_threads_is_consistent():
    import threading

    record("all", context=None, max_entries=1_000_000)

    def work():
        for _ in range(2000):
            torch.empty(1 << 16, device="cuda")

    threads = [threading.Thread(target=work) for _ in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    live = set()
    for e in snapshot()["device_traces"][0]:
        if e["action"] == "alloc":
            assert e["addr"] not in live, "allocated while it was live"
            live.add(e["addr"])
        elif e["action"] == "free_completed":
            assert e["addr"] in live, "freed while it was not live"
            live.remove(e["addr"])


def test_contexts_end_with_their_blocks():
    import gc
    import weakref

    # A Python frame keeps its code object alive; when nothing refers to the context any more, the code can be freed.
    record("all", context="alloc", stacks="python", max_entries=4)
    other = torch.empty(1000, device="cuda")  # a segment keeps the context of the allocation that required it
    space = {"torch": torch}
    exec("def one():\n  return torch.empty(1000, device='cuda')", space)
    x = space["one"]()
    code = weakref.ref(space["one"].__code__)
    del space
    gc.collect()
    assert code() is not None, "the block refers to it"
    del x
    for _ in range(10):
        torch.empty(1000, device="cuda")
    snapshot()  # frames of destroyed contexts are released when new ones are captured
    gc.collect()
    assert code() is None, "nothing refers to it"
    del other


if __name__ == "__main__":
    harness.main(globals())
