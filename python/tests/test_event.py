"""Events."""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import weakref

import pytest

import weir


def cycles(milliseconds):
    return int(milliseconds * weir.get_device_properties().clock_rate)


def test_events():
    stream = weir.current_stream()
    event = weir.Event(enable_timing=True)
    assert event.query()
    start = weir.Event(enable_timing=True)
    stream.record_event(start)
    weir._sleep(cycles(50))
    stream.record_event(event)
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert 40 < start.elapsed_time(event) < 5000
    assert event.elapsed_time(start) < 0
    assert event.elapsed_time(event) == 0


def test_record_and_wait_take_the_current_stream():
    stream = weir.Stream()
    event = weir.Event()
    stream._spin(cycles(100))
    with weir.stream(stream):
        event.record()
    assert not event.query()
    other = weir.Stream()
    with weir.stream(other):
        event.wait()
    assert not other.query()
    event.wait(stream=weir.Stream())
    event.record(stream=stream)
    stream.synchronize()
    assert event.query()


def test_an_event_that_was_never_recorded_is_done():
    event = weir.Event()
    assert event.query() and event.cuda_event == 0 and event.device is None
    event.synchronize()
    event.wait()
    weir.Stream().wait_event(event)


def test_attributes():
    event = weir.Event(enable_timing=True, blocking=True)
    event.record()
    assert event.device == weir.Device(0) and event.cuda_event != 0
    assert isinstance(event._as_parameter_, ctypes.c_void_p) and event._as_parameter_.value == event.cuda_event
    with pytest.raises(AttributeError):
        event.device = 1
    assert weakref.ref(event)() is event
    assert event == event and event != weir.Event()


def test_device_is_that_of_the_first_record(two_devices):
    event = weir.Event()
    event.record(weir.Stream(1))
    assert event.device == weir.Device(1)
    with pytest.raises((ValueError, RuntimeError), match="device"):
        event.record(weir.Stream(0))
    # Streams of another device can wait for it.
    weir.Stream(0).wait_event(event)
    event.synchronize()


def test_elapsed_time_needs_two_that_measure():
    timed, plain = weir.Event(True), weir.Event()
    with pytest.raises(ValueError):
        timed.elapsed_time(weir.Event(True))
    timed.record()
    with pytest.raises(ValueError):
        timed.elapsed_time(weir.Event(True))
    plain.record()
    weir.synchronize()
    for a, b in ((timed, plain), (plain, timed)):
        with pytest.raises(ValueError):
            a.elapsed_time(b)
    end = weir.Event(True)
    weir._sleep(cycles(100))
    end.record()
    with pytest.raises(weir.AcceleratorError) as caught:
        timed.elapsed_time(end)
    assert caught.value.error_code == 600
    end.synchronize()
    assert timed.elapsed_time(end) > 0


def test_flags():
    for timing in (False, True):
        for blocking in (False, True):
            weir.Event(timing, blocking).record()
            weir.Event(enable_timing=timing, blocking=blocking, interprocess=False).synchronize()
    with pytest.raises(ValueError):
        weir.Event(enable_timing=True, interprocess=True)
    with pytest.raises(TypeError):
        weir.Event(True, True, False, True, False)
    with pytest.raises(TypeError):
        weir.Event(unknown=True)


@pytest.mark.parametrize("wrong", [None, 1, 1.5, "event", object()])
def test_wrong_types(wrong):
    event = weir.Event(True)
    with pytest.raises(TypeError):
        event.elapsed_time(wrong)
    with pytest.raises(TypeError):
        weir.Event.from_ipc_handle(0, wrong)
    if wrong not in (None, 1):
        with pytest.raises(TypeError):
            event.record(wrong)
        with pytest.raises(TypeError):
            event.wait(wrong)


def test_ipc_handles():
    with pytest.raises(ValueError):
        weir.Event().ipc_handle()
    event = weir.Event(interprocess=True)
    handle = event.ipc_handle()
    assert isinstance(handle, bytes) and len(handle) == 64 and handle == event.ipc_handle()
    assert event.device == weir.Device(0)
    for wrong in (b"", bytes(63), bytes(65)):
        with pytest.raises(ValueError, match="64"):
            weir.Event.from_ipc_handle(0, wrong)
    with pytest.raises(weir.AcceleratorError):
        weir.Event.from_ipc_handle(99, handle)
    with pytest.raises(RuntimeError):
        weir.Event.from_ipc_handle(0, bytes(64))


def test_pickle_is_for_events_that_are_shared():
    with pytest.raises(TypeError, match="interprocess=True"):
        pickle.dumps(weir.Event())


def child_waits(event, started, answers):
    weir.synchronize()
    answers.put(event.query())
    started.set()
    event.synchronize()
    answers.put(event.query())
    weir.current_stream().wait_event(event)
    weir.synchronize()


@pytest.mark.parametrize("by", ["pickle", "handle"])
def test_events_between_processes(by):
    context = multiprocessing.get_context("spawn")
    started, answers = context.Event(), context.Queue()
    event = weir.Event(interprocess=True)
    event.record()
    weir.synchronize()
    if by == "pickle":
        process = context.Process(target=child_waits, args=(event, started, answers))
    else:
        process = context.Process(target=child_waits_by_handle, args=(event.ipc_handle(), started, answers))
    stream = weir.Stream()
    stream._spin(cycles(1000))
    event.record(stream)
    process.start()
    # The child starts long before the stream is done, unless the machine is very busy: then it sees only the end.
    assert started.wait(60)
    first, second = answers.get(timeout=60), answers.get(timeout=60)
    assert second is True
    process.join(60)
    assert process.exitcode == 0
    assert event.query() and first in (True, False)


def child_waits_by_handle(handle, started, answers):
    child_waits(weir.Event.from_ipc_handle(0, handle), started, answers)


def test_waiting_lets_other_threads_go_on():
    import threading

    event = weir.Event()
    seen = []
    weir._sleep(cycles(200))
    event.record()
    thread = threading.Thread(target=lambda: (event.synchronize(), seen.append("done")))
    thread.start()
    steps = 0
    while not seen:
        steps += 1
    thread.join()
    assert steps > 100


def test_a_device_in_place_of_the_flags():
    """torch.Event takes a device first, torch.cuda.Event whether it measures time."""
    event = weir.Event("cuda:0", enable_timing=True)
    assert event.device == weir.Device("cuda", 0) == weir.Event(device="cuda").device
    assert event.event_id == event.cuda_event == 0
    event.record()
    assert event.event_id == event.cuda_event != 0 and weir.Event().device is None
    end = weir.Event(weir.Device("cuda", 0), enable_timing=True)
    end.record()
    end.synchronize()
    assert event.elapsed_time(end) >= 0
    with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
        event.elapsed_time(weir.Event("cuda"))
    for wrong in ("cpu", "nonsense", 1.5):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            weir.Event(wrong)


def test_external_events():
    stream, other, side = weir.Stream(), weir.Stream(), weir.Stream()
    gate, done = weir.Event(external=True), weir.Event(True, external=True)
    start = weir.Event(enable_timing=True)
    source, target = weir.buffer(100).fill_(1), weir.buffer(100).fill_(0)
    graph = weir.CUDAGraph()
    gate.record(other)
    weir.synchronize()
    with weir.graph(graph, stream=stream):
        gate.wait()
        target.copy_(source)
        done.record()
    assert graph.node_count() == 3 and done.query()
    with pytest.raises((ValueError, weir.AcceleratorError)):
        start.elapsed_time(done)  # no launch has recorded it
    for value in (5, 6):
        start.record(other)
        other._spin(cycles(30))
        with weir.stream(other):
            source.fill_(value)
        gate.record(other)
        with weir.stream(stream):
            graph.replay()
        assert not done.query()
        side.wait_event(done)
        side.synchronize()
        assert done.query() and target.tobytes() == bytes([value]) * 100
        assert start.elapsed_time(done) > 20
    join = weir.Event(external=False)
    with weir.stream(stream):
        graph.reset()
        graph.capture_begin()
        join.record()
        side.wait_event(join)
        assert side.is_capturing()
        stream.wait_stream(side)
        with pytest.warns(UserWarning, match="empty"):
            graph.capture_end()
