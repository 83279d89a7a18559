"""Memory that is shared between processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue

import pytest
import weir
from memory_tools import LARGE_BUFFER, MIB, cleaned, filled, settings  # noqa: F401


def in_child(function, *arguments):
    """Runs a function in a newly started process, and returns its result."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=answer, args=(answers, function, arguments))
    process.start()
    try:
        failed, result = answers.get(timeout=60)
    except queue.Empty:
        failed, result = True, "the child said nothing"
    process.join(60)
    answers.close()
    answers.join_thread()
    assert not failed, result
    assert process.exitcode == 0
    return result


def answer(answers, function, arguments):
    try:
        answers.put((False, function(*arguments)))
    except BaseException as error:
        answers.put((True, repr(error)))


def read_and_write(handle):
    buffer = weir.open_shared(handle)
    seen = buffer.tobytes()
    buffer.fill_(2)
    weir.synchronize()
    return os.getpid(), len(buffer), seen[:4], buffer.owns_memory


def open_often(handles):
    before = weir.memory_allocated()
    buffers = [weir.open_shared(handle) for handle in handles]
    values = [buffer.tobytes()[0] for buffer in buffers]
    pointers = {buffer.pointer for buffer in buffers}
    del buffers
    return values, len(pointers), weir.memory_allocated() - before


def test_share_and_open():
    buffer = filled(MIB, 1)
    handle = buffer.share()
    assert pickle.loads(pickle.dumps(handle)) == handle
    process, length, seen, owns = in_child(read_and_write, handle)
    assert process != os.getpid() and (length, seen, owns) == (MIB, b"\1" * 4, False)
    assert buffer.tobytes() == b"\2" * MIB


def test_share_a_part():
    buffer = filled(4096, 1)
    part = buffer[1024:2048]
    part.fill_(5)
    _, length, seen, _ = in_child(read_and_write, part.share())
    assert (length, seen) == (1024, b"\5" * 4)
    assert buffer.tobytes() == b"\1" * 1024 + b"\2" * 1024 + b"\1" * 2048


def test_several_of_one_segment():
    buffers = [filled(512, i) for i in range(5)]
    values, different, kept = in_child(open_often, [b.share() for b in buffers] + [buffers[0].share()])
    assert values == [0, 1, 2, 3, 4, 0] and different == 5 and kept == 0


def test_share_expandable():
    with settings("expandable_segments:True", "expandable_segments:False"):
        buffer = filled(LARGE_BUFFER, 1)
        _, length, seen, _ = in_child(read_and_write, buffer.share())
        assert (length, seen) == (LARGE_BUFFER, b"\1" * 4)
        assert buffer.tobytes() == b"\2" * LARGE_BUFFER
        del buffer


def test_what_cannot_be_shared():
    with pytest.raises(ValueError, match="only memory of empty"):
        weir.host_empty(8).share()
    with pytest.raises(ValueError, match="only memory of empty"):
        weir.empty(0).share()
    buffer = weir.empty(8)
    buffer.free()
    with pytest.raises(ValueError, match="was freed"):
        buffer.share()
    with pytest.raises(TypeError):
        weir.open_shared((0, "text", 8, 0))
    with pytest.raises((ValueError, RuntimeError)):
        weir.open_shared((0, b"no name", 8, 0))
    with pytest.raises((ValueError, RuntimeError)):
        weir.open_shared((9, bytes(66), 8, 0))
    with pytest.raises(ValueError):
        weir.open_shared((0, bytes(66), 8))
