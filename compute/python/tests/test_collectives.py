"""weir.nccl and weir.comm, with arrays of several software devices and processes."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time

import pytest

import weir
from memory_tools import sleep_cycles
from weir import comm, nccl
from weir.compute import _compute

needs_two = pytest.mark.skipif(weir.device_count() < 2, reason="needs two devices")
is_soft = os.environ["WEIR_DRIVER"] == "soft"


def arrays(values, dtype=weir.float32):
    return [weir.tensor(value, dtype=dtype, device=f"cuda:{i}") for i, value in enumerate(values)]


def lists(tensors):
    return [tensor.tolist() for tensor in tensors]


# ---- nccl ----


def test_version_and_id():
    assert nccl.version() >= (2, 7, 0)
    assert nccl.is_available([weir.zeros(2, device="cuda")]) and not nccl.is_available([weir.zeros(2)])
    assert len(nccl.unique_id()) == 128
    with pytest.raises(RuntimeError, match=r"invalid unique_id \(expected 128 bytes, got 3\)"):
        nccl.init_rank(1, b"abc", 0)


@needs_two
def test_all_reduce():
    inputs = arrays([[1, 2], [10, 20]])
    outputs = arrays([[0, 0], [0, 0]])
    assert nccl.is_available(inputs)
    nccl.all_reduce(inputs, outputs)
    assert lists(outputs) == [[11, 22], [11, 22]]
    assert lists(inputs) == [[1, 2], [10, 20]]
    nccl.all_reduce(inputs, op=nccl.MAX)
    assert lists(inputs) == [[10, 20], [10, 20]]


@needs_two
def test_reduce_and_broadcast():
    inputs = arrays([[1, 2], [10, 20]], weir.int64)
    output = weir.zeros(2, dtype=weir.int64, device="cuda:1")
    nccl.reduce(inputs, output, root=1)
    assert output.tolist() == [11, 22]
    with pytest.warns(FutureWarning, match="output tensor list is deprecated"):
        nccl.reduce(inputs, outputs=[inputs[0], output], root=1, op=nccl.PROD)
    assert output.tolist() == [10, 40]
    with pytest.raises(ValueError, match="can not be both specified"):
        nccl.reduce(inputs, output, outputs=[output])
    nccl.broadcast(inputs, root=1)
    assert lists(inputs) == [[10, 20], [10, 20]]
    with pytest.raises(RuntimeError, match="invalid root"):
        nccl.broadcast(inputs, root=2)


@needs_two
def test_gather_and_scatter():
    inputs = arrays([[1, 2], [10, 20]], weir.float16)
    outputs = arrays([[0] * 4, [0] * 4], weir.float16)
    nccl.all_gather(inputs, outputs)
    assert lists(outputs) == [[1, 2, 10, 20]] * 2
    nccl.reduce_scatter(outputs, inputs, op=nccl.AVG)
    assert lists(inputs) == [[1, 2], [10, 20]]


@needs_two
def test_streams():
    inputs = arrays([[1.0], [2.0]])
    streams = [weir.Stream(device=0), weir.Stream(device=1)]
    for stream in streams:
        stream.wait_stream(weir.current_stream(stream.device))
    nccl.all_reduce(inputs, streams=streams)
    for stream in streams:
        stream.synchronize()
    assert lists(inputs) == [[3], [3]]
    with pytest.raises(RuntimeError, match="number of streams is not equal"):
        nccl.all_reduce(inputs, streams=streams[:1])
    with pytest.raises(RuntimeError, match="number of communicators is not equal"):
        nccl.all_reduce(inputs, comms=[])


@needs_two
def test_checks():
    inputs = arrays([[1, 2], [10, 20]])
    with pytest.raises(TypeError, match="Inputs should be a collection of tensors"):
        nccl.all_reduce(inputs[0])
    with pytest.raises(RuntimeError, match="input sequence can't be empty"):
        nccl.all_reduce([])
    with pytest.raises(RuntimeError, match="have to be of the same length, but got input of length 2 and output of"):
        nccl.all_reduce(inputs, inputs[:1])
    with pytest.raises(RuntimeError, match="cuda dense Tensors"):
        nccl.all_reduce([weir.zeros(2, device="cpu")])
    with pytest.raises(RuntimeError, match="unique devices"):
        nccl.all_reduce([inputs[0], inputs[0]])
    with pytest.raises(RuntimeError, match="same number of elements"):
        nccl.all_reduce([inputs[0], weir.zeros(3, device="cuda:1")])
    with pytest.raises(RuntimeError, match="same Tensor dtype"):
        nccl.all_reduce([inputs[0], weir.zeros(2, device="cuda:1", dtype=weir.int32)])
    with pytest.raises(RuntimeError, match="size_multiplier"):
        nccl.all_gather(inputs, inputs)
    assert not nccl.is_available([inputs[0], inputs[0]])


@needs_two
def test_types_of_inputs():
    inputs = arrays([[1, 2], [3, 4]])
    with pytest.raises(TypeError, match=r"expected Tensor at 1 \(got Buffer\)"):
        nccl.all_reduce([inputs[0], weir.buffer(8)])
    with pytest.raises(TypeError, match=r"expected Tensor \(got Buffer\)"):
        nccl.reduce(inputs, weir.buffer(8))
    nccl.all_reduce(tuple(inputs))
    assert lists(inputs) == [[4, 6]] * 2


@needs_two
def test_threads_without_communicators():
    # The communicators that are made for lists of arrays are shared by all threads.
    wrong = []

    def work(thread):
        for i in range(60):
            inputs = [weir.full((100 + 37 * thread + i,), float(d + 1), device=d) for d in range(2)]
            nccl.all_reduce(inputs)
            for d in range(2):
                weir.synchronize(d)
            wrong.extend(value for array in inputs for value in array.tolist() if value != 3)

    threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_two
def test_failed_communicators_are_replaced():
    inputs = arrays([[1, 2], [3, 4]])
    nccl.all_reduce(inputs)
    assert lists(inputs) == [[4, 6]] * 2  # an abort ends work that is under way
    nccl._communicators[0, 1][0].abort()
    with pytest.raises(RuntimeError, match="has aborted"):
        nccl.all_reduce(inputs)
    nccl.all_reduce(inputs)
    assert lists(inputs) == [[8, 12]] * 2


@needs_two
@pytest.mark.skipif(not is_soft, reason="NCCL does not compare the calls of the ranks")
def test_failed_communicators_are_replaced_whatever_the_error():
    inputs = arrays([[1, 2], [3, 4]])
    nccl.all_reduce(inputs)
    first, second = nccl._communicators[0, 1]
    nccl.all_reduce(inputs[:1], comms=[first])
    nccl.all_reduce([inputs[1][:1]], comms=[second])
    with pytest.raises(ValueError, match="the ranks' calls differ"):
        second.synchronize()
    inputs = arrays([[1, 2], [3, 4]])
    with pytest.raises(RuntimeError, match="the ranks' calls differ"):
        nccl.all_reduce(inputs)
    nccl.all_reduce(inputs)
    assert lists(inputs) == [[4, 6]] * 2


@needs_two
def test_array_of_another_device():
    one = nccl.init_rank(1, nccl.unique_id(), 0)
    array = weir.ones(2, device="cuda:1")
    for call in (
        lambda: nccl.all_reduce([array], comms=[one]),
        lambda: nccl.send(array, 0, one),
        lambda: nccl.recv(array, 0, one),
    ):
        with pytest.raises(RuntimeError, match="the array is on cuda:1, and the communicator on cuda:0"):
            call()
    one.destroy()


def rank_of(rank, uid, results):
    try:
        communicator = nccl.init_rank(2, uid, rank, timeout=20)
        array = weir.tensor([1.0 + rank, 2.0], device="cuda:0")
        nccl.all_reduce([array], comms=[communicator])
        other = weir.zeros(2, device="cuda:0")
        with nccl.group():
            nccl.send(array, 1 - rank, communicator)
            nccl.recv(other, 1 - rank, communicator)
        for output in (None, weir.zeros(2, device="cuda:0") if rank == 1 else None):
            nccl.reduce([other if output is None else array], output, root=1, comms=[communicator])
            other = other if output is None else output
        communicator.synchronize()
        results.put((rank, communicator.rank, communicator.ranks, array.tolist(), other.tolist()))
        communicator.destroy()
    except BaseException as error:  # noqa: BLE001
        results.put((rank, repr(error)))


@pytest.mark.skipif(not is_soft, reason="NCCL refuses two ranks on one GPU")
def test_processes():
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    uid = nccl.unique_id()
    processes = [spawn.Process(target=rank_of, args=(rank, uid, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert found == [(0, 0, 2, [3, 4], [3, 4]), (1, 1, 2, [3, 4], [6, 8])]


@pytest.mark.skipif(not is_soft, reason="tests the software device")
def test_missing_rank():
    with pytest.raises(RuntimeError, match="rank 1 of 2 did not join within 0.1 s"):
        nccl.init_rank(2, nccl.unique_id(), 0, timeout=0.1)


class SignalError(Exception):
    pass


@pytest.fixture
def alarm():
    """A signal whose handler raises an exception, 50 ms after a call."""

    def handle(number, frame):
        raise SignalError

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.signal(signal.SIGALRM, before)


@needs_two
@pytest.mark.skipif(not is_soft, reason="tests the software device")
def test_signals_end_waits(alarm):
    alarm()
    with pytest.raises(SignalError):
        nccl.init_rank(2, nccl.unique_id(), 0, timeout=100)
    with pytest.raises(SignalError), nccl.group():
        nccl.init_rank(2, nccl.unique_id(), 0, timeout=100)
        alarm()
    first, second = _compute._nccl_init_all([0, 1], 100.0)
    nccl.all_reduce([weir.ones(4, device=0)], comms=[first])
    alarm()
    with pytest.raises(SignalError):
        first.synchronize()
    with pytest.raises(RuntimeError, match="rank 0 has aborted the communicator"):
        second.check()


def test_communicator():
    one = nccl.init_rank(1, nccl.unique_id(), 0)
    assert isinstance(one, nccl.Communicator)
    assert repr(one) == f"<weir.nccl.Communicator: rank 0 of 1, cuda:{weir.current_device()}>"
    assert (one.rank, one.ranks, one.device) == (0, 1, weir.current_device())
    assert one.memory()["is_exact"] in (True, False)
    one.check()
    one.abort()
    with pytest.raises(RuntimeError, match="rank 0 has aborted"):
        one.check()
    one.destroy()
    assert repr(one) == "<weir.nccl.Communicator: destroyed>"
    with pytest.raises(RuntimeError, match="has been destroyed"):
        one.check()


@needs_two
def test_names_of_torch_c():
    major, minor, _ = nccl.version()
    assert weir._C._nccl_version() >> 16 == major << 16 | minor
    assert weir._C._nccl_version_suffix() == b""
    inputs, outputs = arrays([[1, 2], [3, 4]]), arrays([[0] * 4] * 2)
    weir._C._nccl_all_reduce(inputs, inputs, nccl.SUM, None, None)
    assert lists(inputs) == [[4, 6]] * 2
    weir._C._nccl_all_gather(inputs, outputs, None, None)
    assert lists(outputs) == [[4, 6, 4, 6]] * 2
    weir._C._nccl_reduce_scatter(outputs, inputs, nccl.SUM, None, None)
    assert lists(inputs) == [[8, 12]] * 2
    weir._C._nccl_reduce(inputs, inputs[1], 1, nccl.SUM, None, None)
    weir._C._nccl_broadcast(inputs, 1, None, None)
    assert lists(inputs) == [[16, 24]] * 2
    weir._C._nccl_init_rank(1, weir._C._nccl_unique_id(), 0).destroy()


# ---- comm ----


@needs_two
def test_broadcast():
    source = weir.arange(6, device="cuda:1")
    results = comm.broadcast(source, devices=(0, "cuda:1"))
    assert [result.get_device() for result in results] == [0, 1]
    assert lists(results) == [list(range(6))] * 2
    assert results[1] is source
    outs = (weir.zeros(6, device="cuda:0", dtype=weir.int64),)
    assert comm.broadcast(source, out=outs)[0] is outs[0]
    assert outs[0].tolist() == list(range(6))
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out' must be specified"):
        comm.broadcast(source)
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out' must be specified"):
        comm.broadcast(source, devices=(0,), out=outs)
    with pytest.raises(RuntimeError, match="to be CUDA tensors, but output tensor at index 0 has device"):
        comm.broadcast(source, out=[weir.zeros(6, device="cpu")])


@needs_two
def test_coalesced():
    sources = [weir.ones(3, device="cuda:0"), weir.arange(4, device="cuda:0"), weir.full((2, 2), 5.0, device="cuda:0")]
    here, there = comm.broadcast_coalesced(sources, devices=[0, 1])
    assert all(mine is source for mine, source in zip(here, sources)) and lists(there) == lists(sources)
    assert [t.get_device() for t in there] == [1, 1, 1]
    sums = comm.reduce_add_coalesced([here, there], destination=1)
    assert lists(sums) == [[2] * 3, [0, 2, 4, 6], [[10, 10], [10, 10]]]
    assert comm.reduce_add([here[0], there[0]], 0).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="reduce_add expects destination to be on the same GPU"):
        comm.reduce_add([there[0]], 0)
    with pytest.raises(AssertionError, match="reduce_add expects all inputs to be on GPUs, but input 1 is on CPU"):
        comm.reduce_add([here[0], here[0].cpu()], 0)
    with pytest.raises(ValueError, match="input 1 has invalid size: got 1x3, but expected 3"):
        comm.reduce_add([here[0], there[0].reshape(1, 3)], 0)
    with pytest.raises(RuntimeError, match=r"All tensors must be on devices\[0\]: 1"):
        comm.broadcast_coalesced(sources, devices=[1, 0])


@needs_two
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:1"])
def test_scatter_and_gather(device):
    source = weir.arange(12, device=device).view(6, 2)
    parts = comm.scatter(source, devices=[0, 1], chunk_sizes=(1, 5))
    assert [part.get_device() for part in parts] == [0, 1]
    assert parts[1].tolist() == source[1:].tolist()
    for destination in ["cpu", 0, 1]:
        whole = comm.gather(parts, destination=destination)
        assert whole.tolist() == source.tolist()
        assert whole.is_cuda == (destination != "cpu")
    outs = [weir.zeros(6, 1, dtype=weir.int64, device=f"cuda:{i}") for i in range(2)]
    comm.scatter(source, dim=-1, out=outs)
    assert outs[1].tolist() == source[:, 1:].tolist()
    back = weir.zeros(6, 2, dtype=weir.int64, device="cuda:1")
    assert comm.gather(outs, dim=1, out=back) is back
    assert back.tolist() == source.tolist()
    streams = [weir.Stream(device=0), None]
    parts = comm.scatter(source, devices=[0, 1], streams=streams)
    streams[0].synchronize()
    assert parts[0].tolist() == source[:3].tolist()
    with pytest.raises(RuntimeError, match=r"len\(devices\) = 2 and len\(chunk_sizes\) = 1"):
        comm.scatter(source, devices=[0, 1], chunk_sizes=(6,))
    with pytest.raises(RuntimeError, match="'devices' must not be specified when 'out' is specified"):
        comm.scatter(source, devices=[0, 1], out=outs)
    with pytest.raises(RuntimeError, match="'destination' must not be specified when 'out' is specified"):
        comm.gather(outs, dim=1, destination=0, out=back)


def test_communicator_that_is_dropped_in_a_group():
    before = weir.memory_summary()
    unique_id = nccl.unique_id()
    with nccl.group():
        nccl.init_rank(1, unique_id, 0)  # the group holds it until it ends
        assert "rank 0 of 1" not in weir.memory_summary()
    assert weir.memory_summary() == before


def test_communicator_that_is_destroyed_during_a_call():
    communicator = nccl.init_rank(1, nccl.unique_id(), 0)
    stream = weir.Stream()
    with weir.stream(stream):
        weir._sleep(sleep_cycles(200))
    thread = threading.Thread(target=communicator.synchronize, args=(stream,))
    thread.start()
    time.sleep(0.05)
    communicator.destroy()  # ends when the call does
    assert "destroyed" in repr(communicator)
    with pytest.raises(RuntimeError, match="the communicator has been destroyed"):
        communicator.check()
    thread.join()
    assert stream.query()


@needs_two
@pytest.mark.skipif(not is_soft, reason="NCCL has a rank for each GPU")
def test_communicator_that_is_dropped_with_work():
    """It does not wait up to the time limit of 600 s, and the other rank is told."""
    communicators = _compute._nccl_init_all([0, 1], 0.0)
    nccl.all_reduce([weir.ones(4, device=0)], comms=communicators[:1])
    begin = time.monotonic()
    del communicators[0]
    assert time.monotonic() - begin < 30
    with pytest.raises(RuntimeError, match="rank 0 was destroyed while it waited for rank 1 in operation 1"):
        communicators[0].check()


def test_temporary_arrays_in_a_group():
    """The calls are made when the group ends, and their arrays live until then."""
    communicator = nccl.init_rank(1, nccl.unique_id(), 0)
    a, first, second = weir.ones(1024, device=0), weir.zeros(1024, device=0), weir.zeros(1024, device=0)
    with nccl.group():
        nccl.send(a * 2, 0, communicator)
        nccl.send(a * 3, 0, communicator)
        nccl.recv(first, 0, communicator)
        nccl.recv(second, 0, communicator)
    communicator.synchronize()
    assert (first[0].item(), second[0].item()) == (2, 3)


def test_group_that_raises():
    """None of its calls is made, and the communicator can still be used."""
    communicator = nccl.init_rank(1, nccl.unique_id(), 0)
    a, b = weir.ones(4, device=0), weir.zeros(4, device=0)
    with pytest.raises(KeyError), nccl.group():
        nccl.all_reduce([a], [b], comms=[communicator])
        raise KeyError
    communicator.synchronize()
    assert b.tolist() == [0] * 4
    nccl.all_reduce([a], [b], comms=[communicator])
    assert b.tolist() == [1] * 4


def nested_block_that_raises():
    with nccl.group():
        raise KeyError("inner")


def test_group_with_a_nested_block_that_raises():
    communicator = nccl.init_rank(1, nccl.unique_id(), 0)
    a, b = weir.ones(4, device=0), weir.zeros(4, device=0)
    with pytest.raises(RuntimeError, match=r"a nested block raised an exception \(KeyError: 'inner'\)"), nccl.group():
        nccl.all_reduce([a], [b], comms=[communicator])
        with contextlib.suppress(KeyError):
            nested_block_that_raises()
    communicator.synchronize()
    assert b.tolist() == [0] * 4
    with nccl.group():  # a later group is not affected
        nccl.all_reduce([a], [b], comms=[communicator])
    assert b.tolist() == [1] * 4


@needs_two
def test_stream_of_another_device():
    parts = arrays([[1.0], [2.0]])
    stream = weir.Stream(device=0)
    with pytest.raises(ValueError, match="the stream belongs to device cuda:0, but cuda:1 was requested"):
        nccl.all_reduce(parts, streams=[stream, stream])
    assert lists(parts) == [[1], [2]]
    nccl.all_reduce(parts)
    assert lists(parts) == [[3], [3]]


@pytest.mark.skipif(not is_soft, reason="with one rank, libnccl only copies on the stream of the call")
def test_order_behind_work_before_a_capture():
    communicator = nccl.init_rank(1, nccl.unique_id(), 0)
    early, late, captured = weir.Stream(), weir.Stream(), weir.Stream()
    source, x, y, z = weir.ones(4, device=0), *(weir.zeros(4, device=0) for _ in range(3))
    weir.synchronize()
    with weir.stream(early):
        weir._sleep(sleep_cycles(50))
        nccl.all_reduce([source], [x], comms=[communicator])
    graph = weir.CUDAGraph()
    with weir.stream(captured):
        graph.capture_begin(capture_error_mode="thread_local")
        nccl.all_reduce([source], [z], comms=[communicator])
        graph.capture_end()
    with weir.stream(late):
        nccl.all_reduce([x], [y], comms=[communicator])
    late.synchronize()
    assert y.tolist() == [1] * 4


def test_communicator_that_ends_during_a_capture():
    communicator = nccl.init_rank(1, nccl.unique_id(), 0)
    a, b = weir.ones(4, device=0), weir.zeros(4, device=0)
    nccl.all_reduce([a], comms=[communicator])
    graph = weir.CUDAGraph()
    with weir.graph(graph):
        del communicator
        b.copy_(a)
    graph.replay()
    assert b.tolist() == [1] * 4


def read_only(array):
    class ReadOnly:
        __cuda_array_interface__ = {
            "shape": tuple(array.shape),
            "typestr": "<f4",
            "data": (array.data_ptr(), True),
            "version": 3,
        }

    return weir.asarray(ReadOnly())


def test_read_only_arrays():
    memory, one = weir.zeros(4, device=0), weir.ones(4, device=0)
    fixed = read_only(memory)
    communicator = nccl.init_rank(1, nccl.unique_id(), 0)
    for write in (
        lambda: comm.broadcast(one, out=[fixed]),
        lambda: comm.scatter(one, out=[fixed]),
        lambda: nccl.all_reduce([one], outputs=[fixed], comms=[communicator]),
        lambda: nccl.recv(fixed, 0, communicator),
    ):
        with pytest.raises(ValueError, match="the array is read-only"):
            write()
    assert memory.tolist() == [0] * 4
    for same in (comm.broadcast(fixed, [0])[0], comm.scatter(fixed, [0])[0], comm.reduce_add([fixed], 0)):
        assert same.readonly
    assert not comm.broadcast(one, [0])[0].readonly


def test_many_parts():
    parts = comm.scatter(weir.arange(70, device=0), devices=[0] * 70)
    assert [part.tolist() for part in parts] == [[i] for i in range(70)]


@pytest.mark.skipif(not is_soft, reason="the files of the software device")
def test_ids_that_failed_are_closed():
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="did not join within 0.05 s"):
            nccl.init_rank(2, nccl.unique_id(), 0, timeout=0.05)
    assert count() <= before + 1
