"""Tags: scopes, sleep and wake."""

from __future__ import annotations

import gc
import threading

import pytest
import weir
from memory_tools import MIB, clean


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    clean()


def test_scopes_nest():
    with weir.tag("outer") as outer:
        one = weir.buffer(MIB)
        with weir.tag("inner") as inner:
            two = weir.buffer(2 * MIB)
        three = weir.buffer(4 * MIB)
    four = weir.buffer(MIB)
    assert outer.info()["allocated_bytes"] == 5 * MIB
    assert inner.info()["allocated_bytes"] == 2 * MIB
    assert {"outer", "inner"} <= set(weir.tag_names())
    del one, two, three, four
    assert outer.info()["allocated_bytes"] == 0


def test_a_thread_does_not_inherit_a_scope():
    made = []
    with weir.tag("main"):
        thread = threading.Thread(target=lambda: made.append(weir.buffer(MIB)))
        thread.start()
        thread.join()
    assert weir.tag("main").info()["allocated_bytes"] == 0
    del made


def test_bytes_come_back():
    with weir.tag("weights") as weights:
        buffer = weir.buffer(3 * MIB)
    buffer.fill_(7)
    address, reserved = buffer.pointer, weir.memory_reserved()
    weights.prepare()
    weights.sleep()
    assert repr(weights) == "<weir.Tag 'weights' on device 0, asleep>"
    assert weir.memory_reserved() < reserved
    info = weights.info()
    assert (info["kept_bytes"], info["reserved_bytes"], info["allocated_bytes"]) == (3 * MIB, 0, 3 * MIB)
    with pytest.raises(RuntimeError, match="the tag 'weights' is asleep; wake it first"), weights:
        weir.buffer(MIB)
    with pytest.raises(RuntimeError, match="is asleep"):
        weights.sleep()
    weights.wake()
    assert buffer.pointer == address and buffer.tobytes() == b"\x07" * (3 * MIB)
    with pytest.raises(RuntimeError, match="is awake"):
        weights.wake()
    assert repr(weights) == "<weir.Tag 'weights' on device 0, awake>"


def test_discard():
    with weir.tag("cache") as cache:
        buffer = weir.buffer(3 * MIB)
    cache.sleep(keep=False)
    assert cache.info()["kept_bytes"] == 0
    cache.wake()
    buffer.fill_(1)
    assert buffer.tobytes()[-1] == 1


def test_free_while_asleep():
    with weir.tag("weights") as weights:
        buffer, kept = weir.buffer(3 * MIB), weir.buffer(3 * MIB)
    kept.fill_(9)
    weights.sleep()
    del buffer
    assert weights.info()["allocated_bytes"] == 3 * MIB
    weights.wake()
    assert kept.tobytes()[0] == 9


def test_out_of_memory_leaves_it_asleep():
    with weir.tag("weights") as weights:
        buffer = weir.buffer(64 * MIB)
    buffer.fill_(5)
    weights.sleep()
    weir.set_per_process_memory_limit(32 * MIB)
    try:
        with pytest.raises(weir.OutOfMemoryError, match="the tag 'weights' needs 64.00 MiB to wake"):
            weights.wake()
    finally:
        weir.set_per_process_memory_limit(None)
    weights.wake()
    assert buffer.tobytes()[:1] == b"\x05"


def test_refusals():
    with pytest.raises(ValueError, match="0 bytes"):
        weir.tag("")
    with pytest.raises((ValueError, weir.AcceleratorError, AssertionError, RuntimeError)):
        weir.tag("x", 99)
    tag = weir.tag("never entered")
    with pytest.raises(RuntimeError, match="not in the scope"):
        tag.__exit__(None, None, None)
