"""Arrays and storages that multiprocessing sends to other processes."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import signal
import time
from multiprocessing import reduction

import pytest
import weir
from conftest import is_long, is_soft
from memory_tools import LARGE_BUFFER, cleaned, settings  # noqa: F401

TIMEOUT = 60
METHODS = ["spawn", "forkserver"] if is_long or not is_soft else ["forkserver"]  # the other tests spawn


def describe(array):
    return (str(array.device), array.dtype, tuple(array.shape), array.stride(), array.storage_offset(), array.tolist())


def work(inbox, outbox):
    """Carries out requests: (what, objects)."""
    kept = []
    for what, objects in iter(inbox.get, None):
        try:
            outbox.put((None, requests[what](kept, objects)))
        except Exception as error:
            outbox.put((repr(error), None))
        del objects


def storages(kept, objects):
    return [array.untyped_storage().data_ptr() for array in objects], objects[0].untyped_storage()._use_count()


def add_one(kept, objects):
    for array in objects:
        array += 1
        if array.is_cuda:
            weir.synchronize(array.device)


def keep(kept, objects):
    kept.extend(objects)
    return [array.untyped_storage().data_ptr() for array in kept]


def on_another_stream(kept, objects):
    stream = weir.Stream()
    stream.wait_stream(weir.current_stream())
    with weir.stream(stream):
        weir._sleep(20_000_000)
        for array in objects:
            array.record_stream(stream)
            array += 1
            objects = None
            del array


def send_on(kept, objects):
    with pytest.raises(RuntimeError, match="received from another process.*cloning before sending"):
        reduction.ForkingPickler.dumps(objects[0])
    return objects[0].clone().tolist()


def last_on_another_stream(kept, objects):
    arrays = [pickle.loads(message) for message in objects[:-1]]
    stream = weir.Stream()
    with weir.stream(stream):
        arrays.append(pickle.loads(objects[-1]))
    return stream.query(), len({array.data_ptr() for array in arrays})


requests = {
    "describe": lambda kept, objects: [describe(array) for array in objects],
    "storages": storages,
    "add": add_one,
    "keep": keep,
    "drop": lambda kept, objects: kept.clear(),
    "stream": on_another_stream,
    "typed": lambda kept, objects: [(s.dtype, s.tolist(), s.device.type) for s in objects],
    "untyped": lambda kept, objects: [(s.nbytes(), s.tolist()[:4], s.is_pinned()) for s in objects],
    "pinned": lambda kept, objects: [array.is_pinned() for array in objects],
    "send on": send_on,
    "last on another stream": last_on_another_stream,
    "sum": lambda kept, objects: objects[0].sum().item(),
    "loads": lambda kept, objects: pickle.loads(objects[0]).sum().item(),
    "memory": lambda kept, objects: weir.memory_allocated(),
}


class Worker:
    def __init__(self, method="spawn"):
        context = multiprocessing.get_context(method)
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=work, args=(self.inbox, self.outbox))
        self.process.start()

    def ask(self, what, *objects):
        self.inbox.put((what, objects))
        del objects
        return self.answer()

    def answer(self):
        error, result = self.outbox.get(timeout=TIMEOUT)
        assert error is None, error
        return result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self.inbox.put(None)
        self.process.join(TIMEOUT)
        for q in (self.inbox, self.outbox):
            q.close()
            q.join_thread()


@pytest.fixture(scope="module")
def worker():
    with Worker() as made:
        yield made


def ipc(name):
    return weir.memory_stats()[f"ipc.{name}"]


def wait_until(condition):
    for _ in range(600):
        weir.ipc_collect()
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(weir.memory_stats())


def all_ended():
    return ipc("references") == ipc("limbo_blocks") == 0


def array_of(*shape, dtype=weir.float32):
    count = 1
    for size in shape:
        count *= size
    return weir.arange(count, dtype=dtype, device="cuda").reshape(shape)


@pytest.mark.parametrize("method", METHODS)
def test_views(method):
    base = array_of(4, 6)
    views = [base, base.T, base[1:3, ::2], base[2], base[1, 3], base[:0], base[:1].expand(3, 6), base.view(weir.int32)]
    expected = [describe(view) for view in views]
    with Worker(method) as worker:
        assert worker.ask("describe", *views) == expected
        assert [worker.ask("describe", view) for view in views] == [[one] for one in expected]
        addresses, _ = worker.ask("storages", *views)
        assert len(set(addresses)) == 1
        worker.ask("add", base[1:3, ::2])
    changed = [[6 * i + j + (1 if i in (1, 2) and j % 2 == 0 else 0) for j in range(6)] for i in range(4)]
    assert base.tolist() == changed


DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128",
]  # fmt: skip


def test_types(worker):
    arrays = [weir.tensor([1, 0, 1], dtype=getattr(weir, name), device="cuda") for name in DTYPES]
    assert worker.ask("describe", *arrays) == [describe(array) for array in arrays]


def test_one_storage_of_several_messages(worker):
    """Arrays of one storage that are sent one by one share it in the receiver, too."""
    a = array_of(1000)
    first = worker.ask("keep", a)
    second = worker.ask("keep", a[500:])
    assert second == first * 2
    worker.ask("drop")
    # Not even a thousand messages leave more than a few references.
    worker.ask("keep", a)
    for _ in range(50):
        assert len(set(worker.ask("keep", a[1:]))) == 1
    weir.ipc_collect()
    assert ipc("references") <= 20
    worker.ask("drop")
    wait_until(lambda: ipc("references") == 0)
    assert ipc("limbo_blocks") == 0 and a.sum().item() == 499500


def test_storages(worker):
    a = array_of(5, dtype=weir.int16)
    assert worker.ask("typed", a.storage()) == [(weir.int16, [0, 1, 2, 3, 4], "cuda")]
    assert worker.ask("untyped", a.untyped_storage()) == [(10, [0, 0, 1, 0], False)]
    assert worker.ask("untyped", weir.UntypedStorage(0, device="cuda")) == [(0, [], False)]


def test_host_memory_is_copied(worker):
    host = weir.arange(6, dtype=weir.float32).reshape(2, 3)
    worker.ask("add", host)
    assert host.tolist() == [[0, 1, 2], [3, 4, 5]]
    views = [host, host.T, host[1, ::2]]
    assert worker.ask("describe", *views) == [describe(view) for view in views]
    assert len(set(worker.ask("storages", *views)[0])) == 1
    pinned = weir.ones(3, pin_memory=True)
    assert worker.ask("pinned", pinned) == [False] and worker.ask("describe", pinned) == [describe(pinned)]
    assert worker.ask("describe", weir.zeros(0, 3)) == [
        describe(weir.zeros(0, 3))
    ]


def test_the_sender_lets_go_at_once(worker):
    for conf in ("expandable_segments:False", "expandable_segments:True"):
        with settings(conf, "expandable_segments:False"):
            worker.ask("drop")
            for i in range(4):
                worker.inbox.put(("keep", (weir.full((LARGE_BUFFER // 4,), i, device="cuda"),)))
            for _ in range(4):
                kept = worker.answer()
            assert len(set(kept)) == 4
            wait_until(lambda: weir.memory_allocated() == 0)
            assert ipc("limbo_blocks") == 4
            worker.ask("drop")
            wait_until(all_ended)


def test_a_killed_receiver():
    with Worker() as worker:
        worker.ask("keep", weir.ones(LARGE_BUFFER // 4, device="cuda"), weir.ones(7, device="cuda"))
        wait_until(lambda: weir.memory_allocated() == 0)
        assert ipc("limbo_blocks") == 2
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.join(TIMEOUT)
        weir.ipc_collect()
        assert all_ended()


@pytest.mark.parametrize("by_queue", [False, True])
def test_events_order_the_hand_over(worker, by_queue):
    """The receiver waits for the work that is pending here. A queue pickles in a thread of its own."""
    with weir.stream(weir.Stream()):
        a = weir.zeros(1 << 16, device="cuda")
        with weir.stream(weir.Stream()) if not by_queue else contextlib.nullcontext():
            weir._sleep(100_000_000)
            a.fill_(5)
            begin = time.monotonic()
            sent = (a,) if by_queue else (bytes(reduction.ForkingPickler.dumps(a)),)
            assert by_queue or not weir.current_stream().query(), f"after {time.monotonic() - begin} s"
            worker.inbox.put(("sum" if by_queue else "loads", sent))
    assert worker.answer() == 5 * (1 << 16)


def test_many_messages(worker):
    """All but one of 17 messages are released, whose streams must have passed the events of the sender."""
    a = weir.zeros(1000, device="cuda")
    messages = [bytes(reduction.ForkingPickler.dumps(a)) for _ in range(16)]
    weir._sleep(500_000_000)
    messages.append(bytes(reduction.ForkingPickler.dumps(a)))
    assert worker.ask("last on another stream", *messages) == (True, 1)
    wait_until(lambda: ipc("references") == 0)


def test_release_waits_for_other_streams(worker):
    a = weir.zeros(1000, device="cuda")
    worker.ask("stream", a)
    wait_until(lambda: ipc("references") == 0)
    assert a.sum().item() == 1000


def add_to(connection, a, nested):
    a += 1
    nested["b"][0] *= 2
    weir.synchronize()
    connection.send((a.untyped_storage() is nested["a"].untyped_storage(), connection.recv().tolist()))
    connection.recv()


@pytest.mark.parametrize("method", METHODS)
def test_arguments_and_pipes(method):
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    a, b = array_of(3, 4), array_of(5)
    process = context.Process(target=add_to, args=(there, a, {"a": a[1], "b": [b]}))
    process.start()
    there.close()
    here.send(array_of(2))
    assert here.poll(TIMEOUT)
    is_same, back = here.recv()
    assert is_same and back == [0, 1]
    assert a.tolist() == [[4 * i + j + 1 for j in range(4)] for i in range(3)] and b.tolist() == [0, 2, 4, 6, 8]
    here.send(None)
    process.join(TIMEOUT)
    assert process.exitcode == 0


class Deadly:
    """Kills the process that unpickles it."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


@pytest.mark.parametrize("method", METHODS)
def test_a_process_that_dies_before_it_has_its_arguments(method):
    a, b = array_of(1000), weir.buffer(1000)
    process = multiprocessing.get_context(method).Process(target=print, args=(Deadly(), a, b))
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode != 0
    del a, b, process
    wait_until(all_ended)
    assert weir.memory_allocated() == 0


def test_a_process_that_cannot_be_started():
    a, b = array_of(1000), weir.buffer(1000)
    process = multiprocessing.get_context("spawn").Process(target=print, args=(a, b, lambda: None))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        process.start()
    del a, b, process
    wait_until(all_ended)
    assert weir.memory_allocated() == 0


def produce(outbox, done):
    outbox.put(weir.full((1000,), 3, device="cuda"))
    done.wait(TIMEOUT)


def test_a_producer_in_another_process():
    context = multiprocessing.get_context("spawn")
    inbox, done = context.Queue(), context.Event()
    process = context.Process(target=produce, args=(inbox, done))
    process.start()
    a = inbox.get(timeout=TIMEOUT)
    assert a.sum().item() == 3000
    send_on([], [a])
    with pytest.raises(RuntimeError, match="not resizable"):
        storage = a.untyped_storage()
        storage.resize_(8)
    del a, storage
    done.set()
    process.join(TIMEOUT)
    assert process.exitcode == 0


def test_memory_of_another_library(worker):
    """It is copied: the allocator cannot send it."""
    owner = weir.ones(16, dtype=weir.uint8, device="cuda")
    a = weir.compute._compute._array_borrow(owner, owner.data_ptr(), "cuda", False, weir.uint8, (16,), None, False)
    assert weir.compute._compute._storage_is_foreign(a.untyped_storage())
    assert worker.ask("untyped", a.untyped_storage()) == [(16, [1] * 4, False)]


def test_the_same_process():
    a = array_of(4)
    message = reduction.ForkingPickler.dumps((a, a[2:]))
    b, c = pickle.loads(message)
    assert b.untyped_storage() is c.untyped_storage() is a.untyped_storage() and c.tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="received before"):
        pickle.loads(message)
    message = reduction.ForkingPickler.dumps(a)
    del a, b, c
    a = pickle.loads(message)
    assert a.tolist() == [0, 1, 2, 3] and weir.memory_allocated() == 0 and ipc("limbo_blocks") == 1
    del a
    weir.ipc_collect()
    assert all_ended()


def test_pickle_and_copies_still_copy():
    a = array_of(4)
    for b in (pickle.loads(pickle.dumps(a)), copy.deepcopy(a), pickle.loads(pickle.dumps(a.untyped_storage()))._bytes()):
        assert b.data_ptr() != a.data_ptr()
    assert ipc("references") == 0


def test_bad_messages():
    device, name, nbytes = weir.compute._compute._storage_send(array_of(4).untyped_storage())
    with pytest.raises(RuntimeError, match="was expected; the memory has"):
        weir.compute._compute._storage_receive(device, name, 1 << 20)
    with pytest.raises(RuntimeError, match="received before"):
        weir.compute._compute._storage_receive(device, name, nbytes)
    for bad in (b"", name[:50], bytes(len(name))):
        with pytest.raises(ValueError, match="handle"):
            weir.compute._compute._storage_receive(device, bad, nbytes)
    with pytest.raises(TypeError):
        weir.compute._compute._storage_send(array_of(4))
    for storage in (weir.UntypedStorage(4), weir.UntypedStorage(0, device="cuda")):
        with pytest.raises(NotImplementedError, match="only device memory"):
            weir.compute._compute._storage_send(storage)
    weir.ipc_collect()
    assert all_ended()


@pytest.mark.skipif(not is_soft, reason="needs two devices")
def test_the_other_device(worker):
    a = weir.arange(3, device="cuda:1")
    assert worker.ask("describe", a)[0][0] == "cuda:1"
    worker.ask("add", a)
    assert a.tolist() == [1, 2, 3]


def test_not_during_a_capture():
    a = array_of(4)
    graph = weir.CUDAGraph()
    with weir.graph(graph):
        a += 1
        with pytest.raises(RuntimeError, match="captured"):
            reduction.ForkingPickler.dumps(a)  # the capture goes on
    graph.replay()
    assert a.tolist() == [1, 2, 3, 4] and ipc("references") == 0
