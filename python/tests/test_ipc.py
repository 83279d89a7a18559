"""Memory that is shared between processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import queue
import signal
import time
import types
import weakref
from multiprocessing import reduction

import pytest
import weir
from conftest import run_python
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
    with pytest.raises(ValueError, match="only memory of buffer"):
        weir.host_empty(8).share()
    with pytest.raises(ValueError, match="only memory of buffer"):
        weir.buffer(0).share()
    buffer = weir.buffer(8)
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


# ---- Buffers that multiprocessing sends: memory of both processes ----


def consume(inbox, outbox):
    """Receives buffers, and says what is in them. Ends with None; keeps those that come with "keep"."""
    kept = []
    for what, buffer in iter(inbox.get, None):
        if what == "write":
            buffer.fill_(7)
        elif what == "keep":
            kept.append(buffer)
        elif what == "drop":
            kept.clear()
        outbox.put(None if buffer is None else (buffer.device, len(buffer), buffer.tobytes()[:4], buffer.readonly))
        del buffer
    kept.clear()


class Consumer:
    def __init__(self, method="spawn"):
        context = multiprocessing.get_context(method)
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=consume, args=(self.inbox, self.outbox))
        self.process.start()

    def ask(self, what, buffer=None):
        self.inbox.put((what, buffer))
        del buffer
        return self.outbox.get(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self.inbox.put(None)
        self.process.join(60)
        for q in (self.inbox, self.outbox):
            q.close()
            q.join_thread()


def ipc(name):
    return weir.memory_stats()[f"ipc.{name}"]


def wait_until_sent(count=1):
    """A queue pickles in a thread, and keeps the object until then."""
    for _ in range(600):
        if ipc("references") >= count and weir.memory_allocated() == 0:
            return
        time.sleep(0.01)
    raise AssertionError(weir.memory_stats())


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_queue(method):
    with Consumer(method) as consumer:
        for conf in ("expandable_segments:False", "expandable_segments:True"):
            with settings(conf, "expandable_segments:False"):
                send_and_collect(consumer)


def send_and_collect(consumer):
    buffer = filled(LARGE_BUFFER, 3)
    assert consumer.ask("write", buffer) == (0, LARGE_BUFFER, b"\7" * 4, False)
    assert buffer.tobytes() == b"\7" * LARGE_BUFFER
    assert consumer.ask("read", buffer[4:8]) == (0, 4, b"\7" * 4, False)
    del buffer
    for _ in range(600):  # the consumer destroys its buffer after it has answered
        weir.ipc_collect()
        if ipc("references") == 0:
            break
        time.sleep(0.01)
    assert ipc("references") == ipc("limbo_blocks") == weir.memory_stats()["active.all.current"] == 0


def test_freed_memory_lives_in_the_other_process():
    with Consumer() as consumer:
        assert consumer.ask("keep", filled(LARGE_BUFFER, 3)) == (0, LARGE_BUFFER, b"\3" * 4, False)
        wait_until_sent()
        assert weir.memory_allocated() == 0 and ipc("limbo_bytes") == LARGE_BUFFER
        assert weir.memory_stats()["active_bytes.all.current"] == LARGE_BUFFER
        other = filled(LARGE_BUFFER, 9)
        weir.ipc_collect()
        weir.empty_cache()
        assert ipc("limbo_blocks") == 1
        assert "Sent to other processes: 1 references, 1 blocks (20.00 MiB) in limbo" in weir.memory_summary()
        consumer.ask("drop")
        weir.ipc_collect()
        assert ipc("limbo_blocks") == ipc("lost_references") == 0
        del other


def test_killed_consumer():
    lost = ipc("lost_references")
    with Consumer() as consumer:
        for _ in range(3):
            consumer.ask("keep", filled(LARGE_BUFFER, 3))
        wait_until_sent(3)
        os.kill(consumer.process.pid, signal.SIGKILL)
        consumer.process.join(60)
        assert ipc("limbo_blocks") == 3
        weir.ipc_collect()
        assert ipc("limbo_blocks") == ipc("references") == 0 and ipc("lost_references") == lost + 3


def test_message_that_is_never_taken():
    code = """
        import multiprocessing
        import time

        import weir

        def ipc(name):
            return weir.memory_stats()[f"ipc.{name}"]

        def wait_for(name, value):
            for _ in range(600):
                weir.ipc_collect()
                if ipc(name) == value:
                    return
                time.sleep(0.01)
            raise AssertionError(weir.memory_stats())

        queue = multiprocessing.get_context("spawn").SimpleQueue()
        queue.put(weir.buffer(1 << 20))
        assert ipc("references") == ipc("limbo_blocks") == 1
        wait_for("references", 0)
        assert ipc("limbo_blocks") == 0 and ipc("lost_references") == 1 and weir.memory_allocated() == 0
        try:
            queue.get()
        except RuntimeError as error:
            print(error)
        """
    assert "expired" in run_python(code, WEIR_IPC_TIMEOUT="0.2").stdout


def test_many_consumers():
    consumers = [Consumer("forkserver") for _ in range(4)]
    buffer = filled(MIB, 3)
    for consumer in consumers:
        consumer.ask("keep", buffer)
    assert consumers[0].ask("write", buffer)[2] == b"\7" * 4
    assert all(consumer.ask("keep", buffer)[2] == b"\7" * 4 for consumer in consumers)
    del buffer
    for left in range(4, 0, -1):
        assert ipc("limbo_blocks") <= 1
        consumers[left - 1].__exit__()
        weir.ipc_collect()
        assert ipc("references") == 2 * (left - 1) or left == 1
    assert ipc("references") == 0


def produce(outbox, done):
    buffer = weir.buffer(LARGE_BUFFER).fill_(5)
    outbox.put(buffer)
    del buffer
    done.wait(60)


@pytest.mark.parametrize("killed", [False, True])
def test_producer_in_the_other_process(killed):
    context = multiprocessing.get_context("spawn")
    inbox, done = context.Queue(), context.Event()
    process = context.Process(target=produce, args=(inbox, done))
    process.start()
    buffer = inbox.get(timeout=60)
    assert buffer.tobytes() == b"\5" * LARGE_BUFFER and not buffer.owns_memory
    with pytest.raises(ValueError, match="received from another process"):
        reduction.ForkingPickler.dumps(buffer)
    if killed:
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        assert buffer.nbytes == LARGE_BUFFER
    part = buffer[:8]
    with pytest.raises(BufferError):
        buffer.free()
    del part
    buffer.free()
    done.set() if not killed else None
    process.join(60)
    inbox.close()
    inbox.join_thread()


def test_argument_of_a_process():
    """The arguments of a process are pickled by the thread that starts it."""
    buffer = filled(MIB, 1)
    assert in_child(first_bytes, buffer, buffer[16:24], weir.buffer(16, device=0).fill_(9)) == [b"\1", b"\1", b"\x09"]


def first_bytes(*buffers):
    return [buffer.tobytes()[:1] for buffer in buffers]


def test_order_of_work():
    """The other process reads after the work that is pending here, without a wait of this one."""
    with Consumer() as consumer:
        consumer.ask("drop")
        stream = weir.Stream()
        with weir.stream(stream):
            buffer = weir.buffer(MIB)
            weir._sleep(200_000_000)
            buffer.fill_(6)
            connection = consumer.inbox
            connection.put(("read", buffer))
        assert consumer.outbox.get(timeout=60)[2] == b"\6" * 4


def test_message_that_cannot_be_addressed(monkeypatch):
    """The other messages for processes that are being started are addressed nevertheless."""
    from weir import _messages

    addressed = []

    def set_receiver(name, receiver):
        if name == b"first":
            raise RuntimeError("cannot read /proc")
        addressed.append((name, receiver))

    class Process:
        pid = 12

    process = Process()
    monkeypatch.setattr(_messages, "_weir", types.SimpleNamespace(_set_receiver=set_receiver))
    _messages._pending.extend([(weakref.ref(process), b"first"), (weakref.ref(process), b"second")])
    try:
        _messages._watch()
    finally:
        _messages._pending.clear()
    assert addressed == [(b"second", 12)] and not _messages._is_watching


def to_itself(buffer):
    return pickle.loads(reduction.ForkingPickler.dumps(buffer))


def test_release_waits_for_streams():
    """For the current one, and for those of record_stream(), also of a part."""
    sent = filled(MIB, 1)
    streams = [weir.Stream() for _ in range(7)]
    for recorded in (streams[:1], streams, []):
        buffer = to_itself(sent)
        part = buffer[8:16]
        current = weir.Stream()
        for stream in recorded or [current]:
            with weir.stream(stream):
                weir._sleep(100_000_000)
                buffer.fill_(7)
            if recorded:
                part.record_stream(stream)
        with weir.stream(current):
            del part, buffer
        assert all(stream.query() for stream in recorded or [current])
    weir.ipc_collect()
    assert ipc("references") == 0


def test_release_in_sync_debug_mode():
    buffer = to_itself(filled(MIB, 1))
    weir.set_sync_debug_mode("error")
    try:
        del buffer
    finally:
        weir.set_sync_debug_mode("default")
    weir.ipc_collect()
    assert ipc("references") == 0


@pytest.mark.parametrize("on_its_stream", [False, True])
def test_captures(on_its_stream):
    """Refusals and releases leave a capture valid."""
    stream = weir.Stream()
    with weir.stream(stream if on_its_stream else weir.current_stream()):
        sent = filled(MIB, 1)
        message = reduction.ForkingPickler.dumps(sent)
        received = to_itself(sent)
    weir.synchronize()
    graph = weir.CUDAGraph()
    with weir.graph(graph, stream=stream):
        sent.fill_(2)
        with pytest.raises(RuntimeError, match="while its stream is being captured"):
            reduction.ForkingPickler.dumps(sent)
        with pytest.raises(RuntimeError, match="during a capture"):
            pickle.loads(message)
        del received
        sent.fill_(3)
    graph.replay()
    assert sent.tobytes()[:1] == b"\3"
    assert pickle.loads(message).tobytes()[:1] == b"\3"
    weir.ipc_collect()
    assert ipc("references") == 0


def test_plain_pickle_and_copies():
    buffer = weir.buffer(8)
    for action in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle"):
            action(buffer)


def test_what_cannot_be_sent():
    reduce = reduction.ForkingPickler.dumps
    for memory, text in ((weir.host_empty(8), "only memory of buffer"), (weir.buffer(0), "only memory of buffer")):
        with pytest.raises(ValueError, match=text):
            reduce(memory)
    arguments = weir._weir._send_buffer(weir.buffer(8))
    with pytest.raises(ValueError, match="smaller than the Buffer"):
        weir._weir._receive_buffer(arguments[0], arguments[1], 4096, 0, False)
    with pytest.raises(RuntimeError, match="received before"):
        weir._weir._receive_buffer(*arguments, False)
    assert weir._weir._receive_buffer(*weir._weir._send_buffer(filled(8, 4)), True).readonly
    own = to_itself(filled(8, 4))
    assert own.tobytes() == b"\4" * 8
    del own
    weir.ipc_collect()
    assert ipc("references") == 0


def test_collect_starts_nothing_wrong():
    assert run_python("import weir; print(weir.ipc_collect(), weir.memory_allocated())").stdout.split() == ["None", "0"]
