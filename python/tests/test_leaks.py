"""No leaks: many thousands of each object, and threads that create and destroy them."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
from conftest import is_long, is_sanitized, resident_bytes

import weir

pytestmark = pytest.mark.skipif(is_sanitized, reason="the sanitizer keeps freed memory")

CYCLES = 100_000 if is_long else 25_000
MAX_GROWTH = 42 * CYCLES  # bytes of the process, fewer than any object has


def cycle(make, count=CYCLES):
    """Creates and destroys objects, and returns the growth of the process since the first tenth.

    Python itself keeps some blocks now and then. A leak shows in every round, so one round without growth is enough.
    """
    for _ in range(count // 10):
        make()
    for _ in range(3):
        gc.collect()
        before, blocks = resident_bytes(), sys.getallocatedblocks()
        for _ in range(count):
            make()
        gc.collect()
        grown = sys.getallocatedblocks() - blocks
        if grown < max(count // 100, 20):
            return resident_bytes() - before
    pytest.fail(f"{grown} more blocks after {count} objects")


def fail(call):
    try:
        call()
    except Exception:
        pass
    else:
        pytest.fail("it did not fail")


def recorded():
    event = weir.Event()
    event.record()
    event.synchronize()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: weir.Stream(), id="Stream"),
        pytest.param(lambda: weir.ExternalStream(0), id="ExternalStream"),
        pytest.param(lambda: weir.Stream(priority=-1).priority, id="priority"),
        pytest.param(lambda: weir.Event(), id="Event"),
        pytest.param(lambda: weir.CUDAGraph(), id="CUDAGraph"),
        pytest.param(lambda: weir.Device("cuda:0"), id="Device"),
        pytest.param(lambda: str(weir.current_stream().device), id="device"),
        pytest.param(lambda: repr(weir.default_stream()), id="repr"),
        pytest.param(lambda: hash(weir.current_stream()) == weir.default_stream(), id="compare"),
        pytest.param(lambda: weir.current_stream().__cuda_stream__(), id="protocol"),
        pytest.param(lambda: weir.graph_pool_handle(), id="pool"),
        pytest.param(lambda: weir.mem_get_info(), id="mem_get_info"),
        pytest.param(lambda: weir.device(0).__enter__(), id="device-context"),
        pytest.param(lambda: fail(lambda: weir.Stream("cpu")), id="wrong-device"),
        pytest.param(lambda: fail(lambda: weir.Stream(stream_ptr="x")), id="wrong-pointer"),
        pytest.param(lambda: fail(lambda: weir.set_device(99)), id="no-such-device"),
        pytest.param(lambda: fail(lambda: weir.CUDAGraph().replay()), id="failed-replay"),
    ],
)
def test_objects(make):
    weir.init()
    assert cycle(make) < MAX_GROWTH


@pytest.mark.parametrize(
    ("make", "count"),
    [
        pytest.param(recorded, CYCLES // 5, id="recorded-event"),
        pytest.param(lambda: weir.get_device_properties(), CYCLES // 5, id="properties"),
        pytest.param(lambda: weir.current_stream()._as_parameter_, CYCLES // 5, id="ctypes"),
    ],
)
def test_slower_objects(make, count):
    weir.init()
    assert cycle(make, count) < MAX_GROWTH


def test_contexts():
    stream = weir.Stream()

    def enter():
        with weir.stream(stream), stream, weir.device(0):
            pass

    assert cycle(enter) < MAX_GROWTH


def test_graphs_that_captured():
    stream = weir.Stream()

    def capture():
        graph = weir.CUDAGraph()
        with weir.stream(stream):
            graph.capture_begin()
            weir._sleep(1)
            graph.capture_end()
        graph.replay()
        weir.synchronize()  # otherwise launches pile up on a busy machine, and the process grows

    assert cycle(capture, CYCLES // 50) < MAX_GROWTH


def test_reference_counts():
    stream, event = weir.Stream(), weir.Event()
    for thing, calls in (
        (stream, [stream.query, stream.synchronize, lambda: stream.wait_stream(stream), lambda: repr(stream)]),
        (event, [event.query, event.record, event.wait]),
        (event, [lambda: event.record(stream), lambda: stream.wait_event(event)]),
    ):
        for call in calls:
            before = sys.getrefcount(thing)
            for _ in range(100):
                call()
            assert sys.getrefcount(thing) == before
    before = sys.getrefcount(event)
    assert stream.record_event(event) is event
    assert sys.getrefcount(event) == before
    before = sys.getrefcount(None)
    for _ in range(1000):
        stream.synchronize()
        event.record(None)
        weir.current_stream(None)
    assert abs(sys.getrefcount(None) - before) < 200


def test_many_threads_make_and_drop():
    errors = []

    def work():
        try:
            for _ in range(500):
                event = weir.Event()
                event.record(weir.Stream())
                weir.CUDAGraph()
                event.query()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == []
