"""Ranges, marks and the profiler.

Names of PyTorch's test_cuda.py are kept where a test is its counterpart.
"""

from __future__ import annotations

import os
import threading

import pytest
from conftest import is_soft, run_python

import weir
from weir import nvtx, profiler


@pytest.fixture
def history():
    weir.memory._record_memory_history(context=None)
    yield
    weir.memory._record_memory_history(None)


def annotations():
    return [(a["name"], a["stage"]) for a in weir.memory._snapshot()["external_annotations"]]


def phases():
    return [e.get("phase", "") for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]


def test_nvtx():
    assert nvtx.range_push("foo") < 0  # no tool, no recording
    nvtx.mark("bar")
    assert nvtx.range_pop() < 0
    handle = nvtx.range_start("range_start")
    nvtx.range_end(handle)


def test_names():
    assert sorted(nvtx.__all__) == ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]
    assert sorted(profiler.__all__) == ["profile", "start", "stop"]
    assert weir.nvtx is nvtx and weir.profiler is profiler


def test_ranges_are_phases(history):
    assert nvtx.range_push("outer") == 0
    weir.buffer(512)
    with nvtx.range("inner {} {word}", 1, word="two"):
        weir.buffer(512)
    nvtx.mark("a moment")
    assert nvtx.range_pop() == 0
    weir.buffer(512)
    assert phases() == ["outer", "inner 1 two", ""]
    assert annotations() == [("outer", "START"), ("inner 1 two", "START"), ("inner 1 two", "END"), ("outer", "END")]
    marks = [e for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "user_defined"]
    assert [(m["user_metadata"], m["phase"]) for m in marks] == [("a moment", "outer")]


def test_range_as_decorator(history):
    @nvtx.range("a call")
    def call(fails):
        weir.buffer(512)
        if fails:
            raise KeyError("x")
        return 7

    assert call(False) == 7
    with pytest.raises(KeyError):
        call(True)
    weir.buffer(512)
    assert phases() == ["a call", "a call", ""]
    assert annotations() == 2 * [("a call", "START"), ("a call", "END")]


def test_range_across_threads(history):
    number = nvtx.range_start("across")
    assert number > 0
    thread = threading.Thread(target=nvtx.range_end, args=(number,))
    thread.start()
    thread.join()
    nvtx.range_end(number)  # has ended: nothing happens
    assert annotations() == [("across", "START"), ("across", "END")]


def test_ranges_of_a_stream(history):
    stream = weir.Stream()
    handle = nvtx._device_range_start("on a stream", stream.cuda_stream)
    nvtx._device_range_end(handle, stream.cuda_stream)
    other = nvtx._device_range_start("default stream")
    nvtx._device_range_end(other)
    weir.synchronize()
    assert sorted(annotations()) == sorted(
        [("on a stream", "START"), ("on a stream", "END"), ("default stream", "START"), ("default stream", "END")]
    )
    with pytest.raises(ValueError, match="ended already"):
        nvtx._device_range_end(handle, stream.cuda_stream)
    with pytest.raises(ValueError):
        nvtx._device_range_end(object())


def test_wrong_arguments():
    for function in nvtx.range_push, nvtx.range_start, nvtx.mark:
        for wrong in 3, None, b"bytes":
            with pytest.raises(TypeError, match="expected a str"):
                function(wrong)
    with pytest.raises(TypeError):
        nvtx.range_end("x")
    with pytest.raises(OverflowError):
        nvtx.range_end(-1)
    with pytest.raises(IndexError), nvtx.range("{}"):
        pass


def test_profiler():
    profiler.start()
    profiler.stop()
    with profiler.profile() as nothing:
        assert nothing is None
    with pytest.raises(AssertionError, match="does not need profiler initialization"):
        profiler.init("file")


@pytest.mark.skipif(not is_soft, reason="a GPU reports its work to its own tools")
def test_profiled_work(history):
    a, b = weir.buffer(4096), weir.buffer(4096)
    a.fill_(1)
    weir.synchronize()
    with profiler.profile():
        b.copy_(a)
        weir._sleep(1000)
        weir.synchronize()
    a.fill_(2)
    weir.synchronize()
    work = [w for w in weir.memory._snapshot()["external_annotations"] if w["stage"] == "WORK"]
    assert [(w["name"], w["kind"], w["bytes"]) for w in work] == [
        ("memcpy DtoD", "copy", "4096"),
        ("weir_spin", "kernel", "0"),
    ]
    assert int(work[0]["start_ns"]) + int(work[0]["duration_ns"]) <= int(work[1]["start_ns"])


def test_profile_stops_after_an_error(history):
    with pytest.raises(KeyError), profiler.profile():
        raise KeyError("x")
    weir.buffer(512).fill_(1)
    weir.synchronize()
    assert annotations() == []


def test_tool(tmp_path):
    """The tool gets ranges, and the memory of the process's allocator without a call."""
    tool = os.environ.get("WEIR_TEST_NVTX")
    if not tool:
        pytest.skip("WEIR_TEST_NVTX names no tool")
    log = tmp_path / "log"
    run_python(
        """
        import weir
        with weir.nvtx.range("allocates"):
            assert weir.nvtx.range_push("inner") == 1 and weir.nvtx.range_pop() == 1
            weir.nvtx.mark("now")
            a = weir.buffer(100)
        del a
        """,
        NVTX_INJECTION64_PATH=tool,
        WEIR_FAKE_NVTX_LOG=str(log),
    )
    assert log.read_text().splitlines() == [
        "push allocates",
        "push inner",
        "pop",
        "mark now",
        "initialize 1",
        "domain weir",
        "heap 2097152",
        "region 0 100",
        "pop",
        "unregister 0",
    ]


def test_import_starts_nothing():
    run_python(
        """
        import weir
        weir.nvtx.range_push("a")
        weir.nvtx.mark("b")
        weir.nvtx.range_pop()
        assert not weir.is_initialized()
        """
    )
