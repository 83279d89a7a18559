"""The history: entries, stacks, snapshots and callbacks."""

from __future__ import annotations

import gc
import inspect
import json
import os
import pickle
import sys
import threading
import weakref

import pytest
import weir
from memory_tools import MIB, SMALL_BUFFER, block_of, blocks, cleaned, has_native_stacks, history, settings  # noqa: F401
from weir import _weir

needs_native = pytest.mark.skipif(not has_native_stacks, reason="libunwind is not installed")


def only_native(frames):
    """Returns the native frames: of a C source, or of a program or library if the source is not known."""
    return [f for f in frames if not f["filename"].endswith(".py") and not f["filename"].startswith("<")]


# ---- Snapshots ----


def test_memory_snapshot():
    with history("state", stacks="python"):
        buffer = weir.buffer(311 * 411 * 4)
        snapshot = weir.memory._snapshot()
        (block,) = [b for b in blocks(snapshot) if b["requested_size"] == 311 * 411 * 4]
        assert block["frames"][0]["name"] == "test_memory_snapshot"
        assert block["address"] == buffer.pointer
        del buffer
        weir.memory._record_memory_history("all")
        buffer = weir.buffer(SMALL_BUFFER)
        del buffer
        weir.empty_cache()
        (trace, *_) = weir.memory._snapshot()["device_traces"]
        assert trace[-1]["action"] == "segment_free"


def test_snapshot_schema():
    with history(stacks="python"), weir.memory_phase("a phase"):
        buffer = weir.buffer(3 * MIB)
        stream = weir.Stream()
        buffer.record_stream(stream)
        with pytest.raises(weir.OutOfMemoryError):
            weir.buffer(1 << 45)
        snapshot = weir.memory._snapshot()
    parts = "segments device_traces allocator_settings external_annotations host_segments host_traces"
    assert list(snapshot) == parts.split()
    (segment,) = snapshot["segments"]
    assert set(segment) == {
        "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
        "segment_pool_id", "is_expandable", "frames", "blocks",
    }  # fmt: skip
    assert segment["segment_pool_id"] == (0, 0) and segment["segment_type"] == "large"
    assert (segment["allocated_size"], segment["requested_size"], segment["is_expandable"]) == (3 * MIB, 3 * MIB, False)
    assert [set(b) for b in segment["blocks"]] == [{"address", "size", "requested_size", "state", "frames"}] * 2
    assert [b["state"] for b in segment["blocks"]] == ["active_allocated", "inactive"]
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"] == 20 * MIB
    assert len(snapshot["device_traces"]) == weir.device_count()
    trace = snapshot["device_traces"][0]
    assert [e["action"] for e in trace] == ["segment_alloc", "alloc", "oom"]
    common = {"action", "size", "stream", "time_us", "compile_context", "user_metadata", "pool_id", "phase", "frames"}
    assert set(trace[0]) == common | {"addr", "reason"} and trace[0]["reason"] == "request"
    assert set(trace[1]) == common | {"addr", "phase_begins"} and set(trace[2]) == common | {"device_free"}
    assert trace[1]["compile_context"] == "N/A" and trace[1]["user_metadata"] == "" and trace[1]["phase"] == "a phase"
    assert set(trace[1]["frames"][0]) == {"name", "filename", "line"}
    settings = snapshot["allocator_settings"]
    assert settings["max_split_size"] == -1 and settings["expandable_segments"] is False
    assert list(settings["roundup_power2_divisions"]) == [str(1 << i) for i in range(16)]
    assert "PYTORCH_CUDA_ALLOC_CONF" in settings
    json.dumps(snapshot)


def test_snapshot_of_what_waits_for_a_stream():
    stream = weir.Stream()
    with weir.stream(stream):
        weir._sleep(10**8)
    buffer = weir.buffer(3 * MIB)
    buffer.record_stream(stream)
    del buffer
    states = [b["state"] for b in blocks(weir.memory_snapshot())]
    assert states == ["active_pending_free", "inactive"]
    assert weir.memory_allocated() == 0 and weir.memory_stats()["active_bytes.all.current"] == 3 * MIB
    weir.synchronize()
    weir.empty_cache()
    assert weir.memory_snapshot() == []


def test_dump_snapshot(tmp_path):
    with history(stacks="python"):
        buffer = weir.buffer(1234)
        before = weir.memory._snapshot()
        weir.memory._dump_snapshot(tmp_path / "a.pickle")
        weir.memory._dump_snapshot(str(tmp_path / "a.json"), as_json=True)
    with open(tmp_path / "a.pickle", "rb") as file:
        dumped = pickle.load(file)
    assert dumped["segments"] == before["segments"]
    assert [e["action"] for e in dumped["device_traces"][0]] == ["segment_alloc", "alloc", "snapshot"]
    with open(tmp_path / "a.json") as file:
        loaded = json.load(file)
    assert loaded["segments"][0]["blocks"] == before["segments"][0]["blocks"]
    with pytest.raises(OSError):
        weir.memory._dump_snapshot(tmp_path / "no folder" / "a.pickle")
    with pytest.raises(NotImplementedError):
        weir.memory._dump_snapshot(tmp_path / "b.pickle", augment_with_fx_traces=True)
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.pickle"]
    del buffer


def test_dump_snapshot_replaces_only_files(tmp_path):
    target, link, fifo = tmp_path / "target.pickle", tmp_path / "link.pickle", tmp_path / "fifo"
    target.touch(mode=0o600)
    target.chmod(0o604)
    link.symlink_to("target.pickle")
    weir.memory._dump_snapshot(link)
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o604
    with open(target, "rb") as file:
        assert "segments" in pickle.load(file)
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    weir.memory._dump_snapshot(fifo)
    assert "segments" in pickle.loads(os.read(reader, 65536)) and fifo.is_fifo()
    os.close(reader)
    assert sorted(os.listdir(tmp_path)) == ["fifo", "link.pickle", "target.pickle"]


def test_dump_snapshot_default_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weir.memory._dump_snapshot()
    assert os.listdir(tmp_path) == ["dump_snapshot.pickle"]


@pytest.mark.parametrize("context", [False, pytest.param(True, marks=needs_native)])
def test_pickled_snapshot(context):
    def run():
        buffer = weir.buffer(311 * 411 * 4)
        return buffer, pickle.loads(_weir._memory_snapshot_pickled())

    with history(True, context, 10, trace_alloc_record_context=context, record_context_cpp=context):
        buffer, memory = run()
    (block,) = [b for b in blocks(memory) if b["requested_size"] == 311 * 411 * 4]
    assert block["state"] == "active_allocated"
    if context:
        assert only_native(block["frames"]) and "run" in [f["name"] for f in block["frames"]]
    last = memory["device_traces"][0][-1]
    assert (last["action"], last["size"]) == ("alloc", 311 * 411 * 4)
    del buffer


@pytest.mark.parametrize("what, message", [
    (1, "Expected tuple or None"),
    ((1, 2, True, 4), "Expected tuple of size 2 or 3"),
    ((1,), "Expected tuple of size 2 or 3"),
    (("a", 2), "mempool_id elements must be integers"),
    ((0, 0, 1), "include_traces must be a boolean"),
])  # fmt: skip
def test_snapshot_arguments(what, message):
    with pytest.raises(TypeError, match=message):
        _weir._cuda_memorySnapshot(what)


# ---- Which stacks are recorded ----


@pytest.mark.parametrize("context, stacks", [
    pytest.param("all", "all", marks=needs_native), ("all", "python"), (None, "python"),
])  # fmt: skip
def test_memory_plots(context, stacks):
    with history("all", context=context, stacks=stacks):

        def run():
            x = weir.buffer(128 * 128 * 4)
            y = weir.buffer(128 * 128 * 4).copy_(x)
            return y

        run()
        snapshot = weir.memory._snapshot()
    text = json.dumps(snapshot)
    assert ("test_memory_plots" in text) == (context is not None)
    native = [f for e in snapshot["device_traces"][0] for f in only_native(e.get("frames", []))]
    assert bool(native) == (stacks == "all")
    assert str(128 * 128 * 4) in text


@pytest.mark.parametrize("context", ["alloc", "all", "state"])
def test_memory_plots_free_stack(context):
    with history(context=context, stacks="python"):
        x = None

        def thealloc():
            nonlocal x
            x = weir.buffer(3 * 4 * 4)

        def thefree():
            nonlocal x
            del x

        thealloc()
        thefree()
        text = json.dumps(weir.memory._snapshot())
    assert ("thefree" in text) == (context == "all")
    assert ("thealloc" in text) == (context != "state")


def test_memory_plots_history_context():
    x = None

    def should_capture1():
        nonlocal x
        x = weir.buffer(4 * 4 * 4)

    def should_not_capture():
        nonlocal x
        x = weir.buffer(3 * 4 * 4)

    def should_capture2():
        nonlocal x
        x = weir.buffer(4 * 4 * 4)

    with history(context="all", stacks="python"):
        should_capture1()
        weir.memory._record_memory_history(context=None)
        should_not_capture()
        weir.memory._record_memory_history(context="all", stacks="python")
        should_capture2()
        text = json.dumps(weir.memory._snapshot())
    assert "should_capture1" in text
    assert "should_not_capture" not in text
    assert "should_capture2" in text


@pytest.mark.parametrize("context", ["alloc", "all", "state"])
def test_memory_plots_free_segment_stack(context):
    with history(context=context, stacks="python"):
        x = weir.buffer(3 * 4 * 4)
        del x
        weir.empty_cache()
        text = json.dumps(weir.memory._snapshot())
    assert ("empty_cache" in text) == (context == "all")


def test_metadata_is_per_thread():
    seen = []

    def work():
        seen.append(weir.memory._get_memory_metadata())
        weir.memory._set_memory_metadata("other")
        seen.append(weir.memory._get_memory_metadata())
        weir.buffer(512)

    with history(context="all", stacks="python"):
        weir.memory._set_memory_metadata("main")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        x = weir.buffer(512)
        allocs = [e["user_metadata"] for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
        weir.memory._set_memory_metadata("")
    assert seen == ["", "other"] and allocs == ["other", "main"]
    del x


def test_memory_plots_metadata():
    with history(context="all", stacks="python"):
        weir.memory._set_memory_metadata("metadata test")
        assert weir.memory._get_memory_metadata() == "metadata test"
        x = weir.buffer(3 * 4 * 4)
        weir.memory._set_memory_metadata("")
        y = weir.buffer(3 * 4 * 4)
        allocs = [e["user_metadata"] for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert allocs == ["metadata test", ""]
    del x, y


@needs_native
def test_memory_snapshot_with_cpp():
    with history("state", stacks="all"):
        x = weir.buffer(311 * 411 * 4)
        frames = block_of(x)["frames"]
    assert frames[0]["name"] == "test_memory_snapshot_with_cpp"
    assert len(only_native(frames)) > 3 and only_native(frames)[-1]["name"] == "_start"


def test_memory_snapshot_skip_actions():
    def actions(**keywords):
        with history(stacks="python", **keywords):
            weir.buffer(512)
            return {e["action"] for e in weir.memory._snapshot()["device_traces"][0]}

    assert actions() >= {"alloc", "free_requested", "free_completed"}
    assert actions(skip_actions=["free_requested"]) & {"alloc", "free_requested", "free_completed"} == {
        "alloc",
        "free_completed",
    }
    assert "alloc" not in actions(skip_actions=["alloc", "free_completed"])
    with pytest.raises(ValueError, match="Unknown TraceEntry action: nothing"):
        actions(skip_actions=["nothing"])
    with pytest.raises(TypeError):
        actions(skip_actions=[3])
    with pytest.raises(TypeError):
        actions(skip_actions=3)


def test_max_entries_and_clear():
    def kept():
        return len(weir.memory._snapshot()["device_traces"][0])

    with history(context=None, max_entries=10):
        for _ in range(20):
            weir.buffer(512)
        assert kept() == 10  # the snapshot's own entry is added after the ring was read
        assert weir.memory._snapshot()["device_traces"][0][-1]["action"] == "snapshot" and kept() == 10
        info = _weir._history_info(0)
        assert info["kept"] == 10 and info["dropped"] > 0
        weir.memory._record_memory_history(context=None, max_entries=10, clear_history=True)
        assert kept() == 0
    assert kept() == 0


def test_history_arguments():
    for arguments, message in [
        (("nothing",), "expected state to be 'state', 'all', or None"),
        (("all", "nothing"), "expected context to be 'state', 'alloc', 'all', or None"),
        (("all", "all", "nothing"), "expected stacks to be 'python', or 'all'"),
        (("all", "all", "python", -1), "max_entries must not be negative"),
    ]:
        with pytest.raises(ValueError, match=message):
            weir.memory._record_memory_history(*arguments)
    with pytest.raises(TypeError):
        weir.memory._record_memory_history(3)
    with pytest.raises(TypeError):
        weir.memory._record_memory_history(max_entries="many")
    with pytest.raises(TypeError):
        weir.memory._record_memory_history(no_such_argument=1)
    assert not _weir._cuda_isHistoryEnabled()


def test_signature_of_record_memory_history():
    parameters = inspect.signature(weir.memory._record_memory_history).parameters
    assert list(parameters)[:5] == ["enabled", "context", "stacks", "max_entries", "device"]
    assert [p.default for p in parameters.values()][:5] == ["all", "all", "all", sys.maxsize, None]


def test_legacy_arguments():
    with history(True, True, trace_alloc_max_entries=5, trace_alloc_record_context=True):
        assert _weir._cuda_isHistoryEnabled()
        for _ in range(10):
            weir.buffer(512)
        (trace, *_) = weir.memory._snapshot()["device_traces"]
        assert len(trace) == 5 and trace[-1]["frames"][0]["name"] == "test_legacy_arguments"
    with history(True, False):
        x = weir.buffer(512)
        (trace, *_) = weir.memory._snapshot()["device_traces"]  # the default is one entry
        assert [entry["action"] for entry in trace] == ["alloc"] and trace[0]["size"] == 512
        assert block_of(x)["frames"] == []
    weir.memory._record_memory_history(False)
    assert not _weir._cuda_isHistoryEnabled()
    del x


# ---- Python stacks ----


def frames_of(buffer):
    return [(os.path.basename(f["filename"]), f["line"], f["name"]) for f in block_of(buffer)["frames"]]


def line():
    return sys._getframe(1).f_lineno


def test_file_line_and_function():
    def inner():
        return weir.buffer(512), line()

    def outer():
        return (
            inner(),
            line(),
        )

    with history("state", stacks="python"):
        (buffer, at_inner), at_outer = outer()
        frames = frames_of(buffer)
    assert frames[0] == ("test_history.py", at_inner, "inner")
    assert frames[1] == ("test_history.py", at_outer - 1, "outer")
    assert frames[2][0] == "test_history.py" and frames[2][2] == "test_file_line_and_function"


def test_memory_snapshot_script():
    """A function that was compiled at run time, without a file, is the innermost frame of its allocations."""
    script = {"weir": weir}
    exec(compile("def foo():\n    return weir.buffer(311 * 411 * 4)\n", "<script>", "exec"), script)
    with history("state", stacks="python"):
        x = script["foo"]()
        found = [b for b in blocks(weir.memory._snapshot()) if b["requested_size"] == 311 * 411 * 4]
    assert len(found) == 1 and found[0]["address"] == x.pointer
    assert found[0]["frames"][0] == {"name": "foo", "filename": "<script>", "line": 2}
    assert found[0]["frames"][1]["name"] == "test_memory_snapshot_script"


@needs_native
def test_direct_traceback():
    """A stack captured on request, without an allocation: Python frames, and native frames."""

    def asks():
        _weir._mark_memory_history("here")

    with history(context="all", stacks="all"):
        asks()
        (event,) = weir.memory._snapshot()["device_traces"][0]
    names = [f["name"] for f in event["frames"]]
    assert names[:2] == ["asks", "test_direct_traceback"]
    assert os.path.basename(event["frames"][0]["filename"]) == "test_history.py"
    native = only_native(event["frames"])
    assert len(native) > 3 and native[-1]["name"] == "_start"
    assert any("_weir" in f["filename"] or f["filename"].endswith(".c") for f in native)


def test_memory_profiler_viz():
    """Memory over time as JSON: the place and the category of each allocation. Phases are the categories."""
    with history(stacks="python"):
        with weir.memory_phase("activation"):
            x = weir.buffer(128 * 128 * 4)
        with weir.memory_phase("gradient"):
            y = weir.buffer(128 * 128 * 4).copy_(x)
            del x
        text = json.dumps(weir.memory._snapshot())
    events = [e for e in json.loads(text)["device_traces"][0] if e["action"] in ("alloc", "free_completed")]
    assert [(e["action"], e["size"], e["phase"]) for e in events] == [
        ("alloc", 65536, "activation"),
        ("alloc", 65536, "gradient"),
        ("free_completed", 65536, "gradient"),
    ]
    assert all(e["time_us"] for e in events)
    assert "test_history.py" in text and "test_memory_profiler_viz" in text
    del y


def test_same_code_at_two_lines():
    def make():
        first = weir.buffer(512)
        second = weir.buffer(512)
        return first, second

    with history("state", stacks="python"):
        for _ in range(3):
            first, second = make()
            assert frames_of(second)[0][1] == frames_of(first)[0][1] + 1


def test_generators_and_lambdas():
    def generate():
        yield weir.buffer(512), line()
        yield from [(weir.buffer(512), line())]

    with history("state", stacks="python"):
        for buffer, at in generate():
            frames = frames_of(buffer)
            assert frames[0] == ("test_history.py", at, "generate")
            assert frames[1][2] == "test_generators_and_lambdas"
        buffers = list(map(lambda size: weir.buffer(size), [512, 600]))
        assert [frames_of(b)[0][2] for b in buffers] == ["<lambda>"] * 2
        (listed,) = [weir.buffer(512) for _ in range(1)]
        assert frames_of(listed)[0][2] in ("<listcomp>", "test_generators_and_lambdas")


def test_coroutines():
    import asyncio

    async def inner():
        await asyncio.sleep(0)
        return weir.buffer(512)

    async def outer():
        return await inner()

    with history("state", stacks="python"):
        names = [name for _, _, name in frames_of(asyncio.run(outer()))]
    assert names[:2] == ["inner", "outer"]


def test_code_that_is_made_at_run_time():
    with history("state", stacks="python"):
        for i in range(50):
            scope = {"weir": weir}
            exec(compile("\n" * i + "def made():\n  return weir.buffer(512)\n", f"made-{i}.py", "exec"), scope)
            buffer = scope["made"]()
            assert frames_of(buffer)[0] == (f"made-{i}.py", i + 2, "made")
            del scope


def test_names_that_are_not_ascii():
    with history("state", stacks="python"):
        scope = {"weir": weir}
        exec(compile("def größe():\n  return weir.buffer(512)\n", "Ümläut.py", "exec"), scope)
        assert frames_of(scope["größe"]())[0] == ("Ümläut.py", 2, "größe")


def test_methods_callbacks_and_c_functions():
    class Thing:
        def __init__(self):
            self.buffer = weir.buffer(512)

        def __del__(self):
            kept.append(weir.buffer(700))

    kept = []
    with history("state", stacks="python"):
        thing = Thing()
        assert [f[2] for f in frames_of(thing.buffer)][:2] == ["__init__", "test_methods_callbacks_and_c_functions"]
        del thing
        assert frames_of(kept[0])[0][2] == "__del__"
        ordered = sorted([3, 1, 2], key=lambda n: (kept.append(weir.buffer(512)), n)[1])
        assert ordered == [1, 2, 3]
        assert [f[2] for f in frames_of(kept[-1])][:2] == ["<lambda>", "test_methods_callbacks_and_c_functions"]


def test_deep_recursion():
    def deep(n):
        return weir.buffer(512) if n == 0 else deep(n - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3000)
    try:
        with history("state", stacks="python"):
            names = [name for _, _, name in frames_of(deep(900))]
    finally:
        sys.setrecursionlimit(limit)
    assert names.count("deep") == 901
    assert "test_deep_recursion" in names


def test_threads_have_their_own_stacks():
    found, barrier = {}, threading.Barrier(4)

    def work(n):
        def one():
            return weir.buffer(512 * (n + 1))

        barrier.wait(20)
        for _ in range(200):
            found[n] = one()

    with history("state", stacks="python"):
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n in range(4):
            names = [name for _, _, name in frames_of(found[n])]
            assert names[:2] == ["one", "work"] and "test_threads_have_their_own_stacks" not in names


def test_code_is_released():
    def make():
        scope = {"weir": weir}
        exec("def once():\n  return weir.buffer(512)\n", scope)
        scope["once"]()
        return weakref.ref(scope["once"].__code__)

    with history("state", stacks="python"):
        code = make()
        gc.collect()
        assert code() is not None
    assert code() is None


# ---- Metadata, phases and annotations ----


def test_phases_and_compile_contexts():
    with history(context=None):
        with weir.memory_phase("forward"):
            a = weir.buffer(512)
            with weir.memory_phase("attention"), weir.memory._compile_context("0/1"):
                b = weir.buffer(512)
            c = weir.buffer(512)
        d = weir.buffer(512)
        events = [e for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert [e.get("phase", "") for e in events] == ["forward", "attention", "forward", ""]
    assert [e["compile_context"] for e in events] == ["N/A", "0/1", "N/A", "N/A"]
    with pytest.raises(TypeError):
        weir.memory_phase(3)
    with pytest.raises(TypeError):
        weir.memory._compile_context(None)
    del a, b, c, d


def test_the_beginnings_of_phases():
    with history(context=None):
        for _ in range(3):
            with weir.memory_phase("step"):
                with weir.memory_phase("forward"):
                    a, b = weir.buffer(512), weir.buffer(512)
                c = weir.buffer(512)
        events = [e for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert [e.get("phase_begins", False) for e in events] == [True, False, True] * 3
    assert [e["phase"] for e in events] == ["forward", "forward", "step"] * 3
    del a, b, c


def test_phases_are_of_a_thread():
    def other():
        weir.buffer(700)

    with history(context=None):
        with weir.memory_phase("mine"):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            weir.buffer(512)
        events = [e for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert [(e["size"], e.get("phase", "")) for e in events] == [(700, ""), (512, "mine")]


def test_annotations():
    with history(context=None, global_record_annotations=True):
        with weir.memory_annotation("step", number="3"):
            weir.buffer(512)
        notes = weir.memory._snapshot()["external_annotations"]
    assert [(n["name"], n["number"], n["stage"], n["device"]) for n in notes] == [
        ("step", "3", "START", 0),
        ("step", "3", "END", 0),
    ]
    assert notes[0]["time_us"] <= notes[1]["time_us"]
    with history(context=None):
        with weir.memory_annotation("step"):
            weir.buffer(512)
        assert weir.memory._snapshot()["external_annotations"] == []
    with pytest.raises(TypeError):
        weir.memory_annotation(3)
    with pytest.raises(TypeError, match="a dict of str to str"):
        _weir._record_annotation({"a": 1})
    with pytest.raises(ValueError, match="at most 64 pairs"):
        _weir._record_annotation({str(i): "" for i in range(65)})


def test_marks():
    with history(context=None):
        _weir._mark_memory_history("before eval")
        (event,) = weir.memory._snapshot()["device_traces"][0]
    assert event["action"] == "user_defined" and event["user_metadata"] == "before eval"


# ---- Callbacks ----


def test_tracker():
    seen = []

    def tracker(action, device, address, size, stream, pool):
        seen.append((action, device, address, size, stream, pool))

    weir.attach_memory_tracker(tracker)
    try:
        buffer = weir.buffer(1000)
        pointer = buffer.pointer
        del buffer
        weir.empty_cache()
    finally:
        weir.detach_memory_tracker(tracker)
    assert [(action, size) for action, _, _, size, _, _ in seen] == [
        ("segment_alloc", 2 * MIB),
        ("alloc", 1000),
        ("free_requested", 1000),
        ("free_completed", 1000),
        ("segment_free", 2 * MIB),
    ]
    assert {entry[2] for entry in seen} == {pointer} and {entry[5] for entry in seen} == {(0, 0)}
    weir.buffer(1000)
    assert len(seen) == 5
    with pytest.raises(ValueError, match="not attached"):
        weir.detach_memory_tracker(tracker)
    with pytest.raises(TypeError):
        weir.attach_memory_tracker(3)


def test_tracker_may_allocate_and_fail(monkeypatch):
    seen, raised = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: raised.append(what.exc_type))

    def allocates(*entry):
        seen.append(weir.buffer(512))

    def fails(*entry):
        raise ValueError("a tracker's own")

    weir.attach_memory_tracker(allocates)
    weir.attach_memory_tracker(fails)
    try:
        kept = weir.buffer(3 * MIB)
    finally:
        weir.detach_memory_tracker(allocates)
        weir.detach_memory_tracker(fails)
    assert len(seen) == 2 and raised == [ValueError] * 2
    del kept


def test_tracker_and_an_exception_under_way():
    """A buffer that is destroyed while an exception propagates does not disturb the exception."""

    def tracker(*entry):
        try:
            {}["nothing"]
        except KeyError:
            pass

    def fails():
        buffer = weir.buffer(512)
        assert buffer
        raise ZeroDivisionError("mine")

    weir.attach_memory_tracker(tracker)
    try:
        with pytest.raises(ZeroDivisionError, match="mine"):
            fails()
    finally:
        weir.detach_memory_tracker(tracker)


def test_expandable_segments_are_recorded():
    with settings("expandable_segments:True", "expandable_segments:False"), history(stacks="python"):
        weir.buffer(3 * MIB)
        weir.empty_cache()
        actions = [e["action"] for e in weir.memory._snapshot()["device_traces"][0]]
    assert actions == ["segment_map", "alloc", "free_requested", "free_completed", "segment_unmap"]


def test_annotated_tensors():
    block, before = weir.buffer(3000), weir.buffer(512)
    weir.memory._annotate_tensor(block, "nothing is recorded")
    assert weir.memory._memory_metadata_supported() is True
    with history(context="all", stacks="python"):
        weir.memory._set_memory_metadata("of the thread")
        weir.memory._annotate_tensor(block[1000:2000], "a view")
        weir.memory._annotate_tensor(before, "second")
        weir.memory._set_memory_metadata("")
        entries = weir.memory._snapshot()["device_traces"][0]
    marks = [entry for entry in entries if entry["action"] == "annotate"]
    assert [(e["addr"], e["size"], e["user_metadata"]) for e in marks] == [
        (block.pointer, 3000, "a view"),
        (before.pointer, 512, "second"),
    ]
    assert "test_annotated_tensors" in [frame["name"] for frame in marks[0]["frames"]]
    with pytest.raises(ValueError, match="expected a CUDA tensor, got device cpu"):
        weir.memory._annotate_tensor(weir.host_empty(10), "host")
    with pytest.raises(TypeError, match="expected a Buffer or an Array, got int"):
        weir.memory._annotate_tensor(3, "address")
    block.free()
    with pytest.raises(ValueError, match="no live allocation found"):
        weir.memory._annotate_tensor(block, "freed")


def test_host_segments(tmp_path):
    device, kept, dropped = weir.buffer(100), weir.host_empty(5000), weir.host_empty(100_000)
    address = dropped.pointer
    del dropped
    assert weir.memory._snapshot()["host_segments"] == []  # nothing is recorded
    with history(context=None):
        snapshot = weir.memory._snapshot()
        weir.memory._dump_snapshot(tmp_path / "host.pickle")
    found = {segment["address"]: segment for segment in snapshot["host_segments"]}
    used, free = found[kept.pointer], found[address]
    assert list(used) == list(snapshot["segments"][0])
    size = used["total_size"]
    assert size >= 5000 and used["allocated_size"] == used["active_size"] == used["requested_size"] == size
    assert (used["device"], used["stream"], used["segment_type"], used["segment_pool_id"]) == (-1, 0, "small", (0, 0))
    assert used["is_expandable"] is False and used["frames"] == []
    assert [(b["address"], b["size"], b["state"]) for b in used["blocks"]] == [(kept.pointer, size, "active_allocated")]
    assert free["allocated_size"] == free["active_size"] == 0 and free["blocks"][0]["state"] == "inactive"
    assert pickle.loads((tmp_path / "host.pickle").read_bytes())["host_segments"] == snapshot["host_segments"]
    assert "pinned host memory" in str(weir.summary(tmp_path / "host.pickle"))
    del kept, device
    weir.accelerator.empty_host_cache()
    with history(context=None):
        assert address not in [segment["address"] for segment in weir.memory._snapshot()["host_segments"]]
