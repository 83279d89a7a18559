"""Streams."""

from __future__ import annotations

import ctypes
import pickle
import threading
import weakref
from types import SimpleNamespace

import pytest
from conftest import is_soft

import weir

NO_STREAM = [1.5, "0", b"0", [], object(), True]


def busy(stream, milliseconds=100):
    """Keeps a stream busy for a while."""
    stream._spin(int(milliseconds * weir.get_device_properties(stream.device).clock_rate))


def test_streams():
    default = weir.current_stream()
    user = weir.Stream()
    assert weir.default_stream() == default
    assert default != user
    assert default.cuda_stream == 0
    assert user.cuda_stream == user.native_handle != 0
    with weir.stream(user):
        assert weir.current_stream() == user
    assert weir.current_stream() == default
    assert user.query()
    memory = weir.buffer(5)
    memory.fill_(1)
    default.synchronize()
    assert default.query()


def test_stream_event_repr():
    stream = weir.current_stream()
    assert repr(stream) == "<weir.Stream device=cuda:0 cuda_stream=0x0>"
    other = weir.Stream()
    assert repr(other) == f"<weir.Stream device=cuda:0 cuda_stream={other.cuda_stream:#x}>"
    event = weir.Event()
    assert repr(event) == "<weir.Event uninitialized>"
    stream.record_event(event)
    assert repr(event) == f"<weir.Event {event.cuda_event:#x}>"


def test_generic_stream_event():
    stream = weir.Stream("cuda")
    assert stream.device_index == weir.current_device()
    same = weir.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
    assert stream.stream_id == same.stream_id and stream == same
    assert stream.stream_id != weir.current_stream().stream_id
    first, second = weir.Event(enable_timing=True), weir.Event(enable_timing=True)
    assert first.cuda_event == 0
    with weir.stream(same):
        weir.buffer(1000).fill_(1)
        assert weir.current_stream().stream_id == stream.stream_id
    first.record(stream)
    first.synchronize()
    assert first.query()
    busy(weir.current_stream(), 1)
    second.record()
    second.synchronize()
    assert second.query()
    assert first.cuda_event != second.cuda_event
    assert first.elapsed_time(second) > 0


def test_attributes():
    stream = weir.Stream()
    assert stream.device == weir.Device(0) and stream.device_index == 0 and stream.device_type == 1
    assert stream.stream_id % 2 == 1
    assert isinstance(stream._as_parameter_, ctypes.c_void_p) and stream._as_parameter_.value == stream.cuda_stream
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    assert weir.default_stream().__cuda_stream__() == (0, 0)
    assert stream.is_capturing() is False
    for name in ("device", "stream_id", "cuda_stream", "priority"):
        with pytest.raises(AttributeError):
            setattr(stream, name, 1)
    assert weakref.ref(stream)() is stream


def test_equality_and_hash():
    streams = [weir.Stream() for _ in range(33)]
    # The pool has 32 streams: the 33rd is the first again.
    assert len(set(streams)) == 32 and streams[0] == streams[32]
    assert hash(streams[0]) == hash(streams[32]) and not streams[0] != streams[32]
    assert streams[0] != streams[1] and not streams[0] == streams[1]
    for other in (None, 0, "stream", streams[0].cuda_stream, weir.Device(0)):
        assert streams[0] != other and not streams[0] == other
    with pytest.raises(TypeError):
        streams[0] < streams[1]
    assert {weir.default_stream(): 1}[weir.current_stream()] == 1


def test_equality_of_devices(two_devices):
    assert weir.default_stream(0) != weir.default_stream(1)
    assert weir.default_stream(1).device == weir.Device(1)
    assert weir.default_stream(1).cuda_stream == weir.default_stream(0).cuda_stream == 0


def test_priorities():
    least, greatest = weir.Stream.priority_range()
    assert least == 0 and greatest < 0
    assert weir.Stream().priority == 0
    assert weir.Stream(priority=greatest).priority == greatest
    assert weir.Stream(priority=-1).priority == -1
    assert weir.Stream(0, -1).priority == -1
    # Priorities outside of the range are clamped.
    assert weir.Stream(priority=5).priority == least
    assert weir.Stream(priority=greatest - 100).priority == greatest


def test_query_and_synchronize():
    stream = weir.Stream()
    busy(stream)
    assert not stream.query()
    stream.synchronize()
    assert stream.query()


def test_wait_stream():
    first, second = weir.Stream(), weir.Stream()
    memory = weir.buffer(1 << 16)
    busy(first)
    with weir.stream(first):
        memory.fill_(1)
    second.wait_stream(first)
    with weir.stream(second):
        memory.fill_(2)
    assert not second.query()
    second.synchronize()
    assert first.query()
    assert set(memory.tobytes()) == {2}


def test_wait_and_record_event():
    first, second = weir.Stream(), weir.Stream()
    busy(first)
    event = first.record_event()
    assert isinstance(event, weir.Event)
    mine = weir.Event()
    assert first.record_event(mine) is mine and first.record_event(event=mine) is mine
    second.wait_event(event)
    assert not second.query() and not event.query()
    second.synchronize()
    assert event.query()


def test_contexts():
    outer, inner = weir.Stream(), weir.Stream()
    with weir.stream(outer):
        with weir.stream(None):
            assert weir.current_stream() == outer
        with weir.stream(inner):
            assert weir.current_stream() == inner
            with weir.stream(weir.default_stream()):
                assert weir.current_stream() == weir.default_stream()
            assert weir.current_stream() == inner
        assert weir.current_stream() == outer
        with pytest.raises(KeyError):
            with weir.stream(inner):
                raise KeyError
        assert weir.current_stream() == outer
    assert weir.current_stream() == weir.default_stream()
    assert isinstance(weir.stream(outer), weir.StreamContext)
    assert weir.StreamContext(outer).stream is outer


def test_streams_are_contexts():
    outer, inner = weir.Stream(), weir.Stream()
    with outer as entered:
        assert entered is outer and weir.current_stream() == outer
        with inner:
            assert weir.current_stream() == inner
            with outer:
                assert weir.current_stream() == outer
            assert weir.current_stream() == inner
        assert weir.current_stream() == outer
    assert weir.current_stream() == weir.default_stream()
    with pytest.raises(RuntimeError, match="has not entered"):
        outer.__exit__(None, None, None)


def test_contexts_across_devices(two_devices):
    here, there = weir.Stream(0), weir.Stream(1)
    before = weir.Stream(1)
    weir.set_stream(before)
    weir.set_stream(here)
    for context in (weir.stream(there), there):
        assert weir.current_device() == 0
        with context:
            assert weir.current_device() == 1
            assert weir.current_stream() == there
            assert weir.current_stream(0) == here
        assert weir.current_device() == 0
        assert weir.current_stream() == here
        assert weir.current_stream(1) == before
        assert weir.current_stream("cuda:1") == before


def test_set_stream():
    stream = weir.Stream()
    weir.set_stream(None)
    assert weir.current_stream() == weir.default_stream()
    weir.set_stream(stream)
    assert weir.current_stream() == stream
    weir.set_stream(weir.default_stream())


def test_each_thread_has_its_own():
    stream = weir.Stream()
    seen = []
    with weir.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(weir.current_stream()))
        thread.start()
        thread.join()
    assert seen == [weir.default_stream()]


def test_external_streams():
    cudart = weir.cudart()
    pointer = ctypes.c_uint64()
    assert cudart.cudaStreamCreate(ctypes.addressof(pointer)) == 0
    external = weir.ExternalStream(pointer.value)
    assert isinstance(external, weir.Stream)
    assert external.cuda_stream == pointer.value and external.device == weir.Device(0)
    assert external == weir.get_stream_from_external(pointer.value, 0) == weir.Stream(stream_ptr=pointer.value)
    assert external == weir.ExternalStream(pointer.value, device="cuda:0")
    assert external != weir.Stream()
    memory = weir.buffer(64)
    with weir.stream(external):
        assert weir.current_stream() == external
        memory.fill_(9)
    external.record_event().synchronize()
    assert external.query()
    assert set(memory.tobytes()) == {9}
    del memory
    assert cudart.cudaStreamDestroy(pointer.value) == 0
    assert weir.ExternalStream(0) == weir.default_stream()


def test_streams_of_other_libraries():
    stream = weir.Stream()
    event = weir.Event()
    for other in (
        SimpleNamespace(cuda_stream=stream.cuda_stream),
        SimpleNamespace(__cuda_stream__=lambda: (0, stream.cuda_stream)),
        SimpleNamespace(__cuda_stream__=(0, stream.cuda_stream)),
        stream.cuda_stream,
    ):
        event.record(other)
        event.wait(other)
    event.synchronize()


@pytest.mark.parametrize("wrong", NO_STREAM)
def test_wrong_types(wrong):
    stream, event = weir.Stream(), weir.Event()
    for call in (weir.stream, weir.StreamContext, weir.set_stream, stream.wait_stream, stream.wait_event):
        with pytest.raises(TypeError):
            call(wrong)
    for call in (event.record, event.wait, weir.ExternalStream, weir.get_stream_from_external):
        with pytest.raises(TypeError):
            call(wrong)
    with pytest.raises(TypeError):
        stream.record_event(wrong)
    for name in ("stream_ptr", "priority", "stream_id"):
        if wrong is not True:
            with pytest.raises(TypeError):
                weir.Stream(**{name: wrong, "device_type": 1} if name == "stream_id" else {name: wrong})


def test_wrong_values():
    with pytest.raises(TypeError):
        weir.Stream(0, 0, 0)
    with pytest.raises(TypeError):
        weir.Stream(unknown=1)
    with pytest.raises(OverflowError):
        weir.Stream(priority=2**40)
    for wrong in (
        {"stream_id": 0, "device_index": 99, "device_type": 1},
        {"stream_id": 0, "device_index": 0, "device_type": 7},
        {"stream_id": 99999, "device_index": 0, "device_type": 1},
    ):
        with pytest.raises((ValueError, weir.AcceleratorError)):
            weir.Stream(**wrong)
    with pytest.raises(OverflowError):
        weir.ExternalStream(2**70)
    with pytest.raises(OverflowError):
        weir.Stream()._spin(-1)
    with pytest.raises(TypeError):
        weir._sleep("long")
    with pytest.raises(TypeError):
        weir.Stream().wait_stream(None)


def test_no_pickle():
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(weir.Stream())


def test_subclass():
    class Named(weir.Stream):
        def __new__(cls, name, **kwargs):
            self = super().__new__(cls, **kwargs)
            self.name = name
            return self

    stream = Named("side", priority=-1)
    assert stream.name == "side" and stream.priority == -1
    with weir.stream(stream):
        assert weir.current_stream() == stream


@pytest.mark.skipif(not is_soft, reason="a failed device does not recover")
def test_streaming_order():
    """The streaming backwards tests rely on this: streams that wait for each other see each other's memory."""
    default, side, ambient = weir.current_stream(), weir.Stream(), weir.Stream()
    memory, copy = weir.buffer(1 << 12), weir.buffer(1 << 12)
    for _ in range(20):
        memory.fill_(0)
        side.wait_stream(default)
        with weir.stream(side):
            busy(side, 1)
            memory.fill_(2)
        ambient.wait_stream(side)
        with weir.stream(ambient):
            copy.copy_(memory)
            assert weir.current_stream() == ambient
        default.wait_stream(ambient)
        assert weir.current_stream() == default
        assert set(copy.tobytes()) == {2}


def test_streams_from_many_threads():
    errors = []

    def work():
        try:
            for _ in range(200):
                stream = weir.Stream()
                with weir.stream(stream):
                    assert weir.current_stream() == stream
                    event = stream.record_event()
                    weir.Stream().wait_event(event)
                stream.synchronize()
                assert event.query()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == []
