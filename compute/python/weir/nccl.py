"""NCCL's collectives, as torch.cuda.nccl has them, and communicators between processes.

    import weir

    parts = [weir.ones(4, device=d) for d in range(weir.device_count())]
    weir.nccl.all_reduce(parts)                      # one rank for each device, in one process

    comm = weir.nccl.init_rank(ranks, uid, rank)     # in each process, with the uid of weir.nccl.unique_id()
    weir.nccl.all_reduce([array], comms=[comm])
    comm.synchronize()                               # raises if a rank failed

On GPUs libnccl is used. On the software device Weir has an implementation of its own, which checks that the calls of
all ranks match, and in which a rank that dies or is late is an error.
"""

from __future__ import annotations

import collections.abc
import contextlib
import threading
import warnings

import weir
from weir.compute import _compute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    Streams = Sequence[weir.Stream | None] | None
    Comms = Sequence[_compute._Communicator] | None

__all__ = ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"]

SUM = 0
PROD = 1
MAX = 2
MIN = 3
AVG = 4

Communicator = _compute._Communicator

# Communicators of one process, by their devices: made when they are first needed, and kept. The lock is held during
# calls on them, too, since those of different threads must not mix.
_communicators: dict[tuple[int, ...], list[Communicator]] = {}
_communicators_lock = threading.Lock()


def is_available(tensors: Sequence[Any]) -> bool:
    """Whether collectives can work on these arrays: contiguous, and each on a device of its own."""
    devices = set()
    for tensor in tensors:
        if not tensor.is_contiguous() or not tensor.is_cuda:
            return False
        device = tensor.get_device()
        if device in devices:
            return False
        devices.add(device)
    return True


def version() -> tuple[int, int, int]:
    """The version of NCCL; on the software device, that of the NCCL whose calls it has."""
    number = _compute._nccl_version()
    base = 1000 if number < 2900 else 10000  # before 2.9: 2.7.8 is 2708
    return number // base, number % base // 100, number % 100


def unique_id() -> bytes:
    """An id for a communicator that is to be created, to be sent to all of its ranks."""
    return _compute._nccl_unique_id()


def init_rank(num_ranks: int, uid: bytes, rank: int, *, timeout: float = 0.0) -> Communicator:
    """Creates one rank of a communicator on the current device, and waits for the others.

    A communicator that is dropped while its work waits for other ranks makes all of them fail after a second; its method
    `destroy` waits up to the time limit.

    Args:
        num_ranks: the number of ranks.
        uid: the id of `unique_id`, the same on all ranks.
        rank: the number of this rank.
        timeout: how long to wait for other ranks, in seconds. 0 is WEIR_NCCL_TIMEOUT, whose default is 600.
    """
    return _compute._nccl_init_rank(num_ranks, uid, rank, timeout)


class _Group(threading.local):
    """The group of a thread. Its calls are made when the outermost block ends, so their arrays are kept until then."""

    def __init__(self) -> None:
        self.depth = 0
        self.kept: list[Any] = []
        self.failure: BaseException | None = None  # the first exception of a block


_group = _Group()


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Enqueues the calls in the block together: those of several ranks of a thread, or several messages.

    If the block, or one that is nested in it, raises an exception, none of its calls is made."""
    _compute._nccl_group_start()
    _group.depth += 1
    try:
        try:
            yield
        except BaseException as error:
            if _group.failure is None:
                _group.failure = error
            _compute._nccl_group_fail()
            # The group ends either way. Its error is the one that is raised here already.
            with contextlib.suppress(Exception):
                _compute._nccl_group_end()
            raise
        try:
            _compute._nccl_group_end()
        except Exception:
            if _group.failure is None:
                raise
            # A nested block raised an exception, which the program has handled.
            kind = type(_group.failure).__name__
            raise RuntimeError(
                f"no call of the group was made: a nested block raised an exception ({kind}: {_group.failure})"
            ) from _group.failure
    finally:
        _group.depth -= 1
        if not _group.depth:
            _group.kept.clear()
            _group.failure = None


def _call(
    kind: str, send: Any, recv: Any, count: int, dtype: Any, op: int, peer: int, comm: Communicator, stream: Any
) -> None:
    """`send` and `recv` are arrays, or None."""
    if _group.depth:
        _group.kept += (send, recv, stream)
    start = 0 if send is None else send.data_ptr()
    _compute._nccl_call(kind, start, 0 if recv is None else recv.data_ptr(), count, dtype, op, peer, comm, stream)


def _list_of(inputs: Any) -> list[weir.Array]:
    if not isinstance(inputs, collections.abc.Container) or isinstance(inputs, weir.Array):
        raise TypeError("Inputs should be a collection of tensors")
    tensors: list[weir.Array] = list(inputs)  # type: ignore[call-overload]
    for i, tensor in enumerate(tensors):
        _check_type(tensor, f" at {i}")
    return tensors


def _check_type(tensor: Any, place: str = "") -> None:
    if not isinstance(tensor, weir.Array):
        raise TypeError(f"expected Tensor{place} (got {type(tensor).__name__})")


def _check_writable(tensor: Any) -> None:
    if tensor is not None and tensor.readonly:
        raise ValueError("the array is read-only")


def _check_one(tensor: Any, dtype: Any) -> None:
    if not tensor.is_cuda:
        raise RuntimeError("input and output elements have to be cuda dense Tensors")
    if tensor.dtype != dtype:
        raise RuntimeError("all inputs and outputs must be of the same Tensor dtype")
    if not tensor.is_contiguous():
        raise RuntimeError("all inputs and outputs have to be contiguous")


def _check_inputs(inputs: Sequence[Any], outputs: Sequence[Any], input_factor: int, output_factor: int) -> None:
    """Entries of `outputs` may be None."""
    if not inputs:
        raise RuntimeError("input sequence can't be empty")
    if len(inputs) != len(outputs):
        raise RuntimeError(
            "inputs and outputs sequences have to be of the same length, but got input of length "
            f"{len(inputs)} and output of length {len(outputs)}"
        )
    numel, dtype = inputs[0].numel(), inputs[0].dtype
    devices = set()
    for tensor, output in zip(inputs, outputs, strict=True):
        _check_one(tensor, dtype)
        if tensor.numel() != numel:
            raise RuntimeError("all inputs must have the same number of elements")
        if output is not None:
            _check_one(output, dtype)
            if tensor.get_device() != output.get_device():
                raise RuntimeError("input and output must be on the same device")
            if output.numel() * output_factor != numel * input_factor:
                raise RuntimeError("output must be of size input_size * size_multiplier")
        if tensor.get_device() in devices:
            raise RuntimeError("inputs must be on unique devices")
        devices.add(tensor.get_device())


def _run(
    kind: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    count: int,
    op: int,
    root: int,
    streams: Streams,
    comms: Comms,
) -> None:
    if streams is not None and len(streams) != len(inputs):
        raise RuntimeError("number of streams is not equal to number of inputs")
    if comms is not None and len(comms) != len(inputs):
        raise RuntimeError("number of communicators is not equal to number of inputs")
    if comms is not None:
        for tensor, comm in zip(inputs, comms, strict=True):
            _check_device(tensor, comm)
        _enqueue(kind, inputs, outputs, count, op, root, streams, comms)
        return
    devices = tuple(tensor.get_device() for tensor in inputs)
    with _communicators_lock:
        if devices not in _communicators:
            _communicators[devices] = _compute._nccl_init_all(list(devices), 0.0)
        try:
            _enqueue(kind, inputs, outputs, count, op, root, streams, _communicators[devices])
        except BaseException:
            # A communicator that has failed stays so; the next call makes new ones.
            if any(_has_failed(comm) for comm in _communicators[devices]):
                del _communicators[devices]
            raise


def _has_failed(comm: Communicator) -> bool:
    try:
        comm.check()
    except Exception:  # its type depends on the error
        return True
    return False


def _check_device(tensor: Any, comm: Communicator) -> None:
    if tensor.get_device() != comm.device:
        raise RuntimeError(f"the array is on cuda:{tensor.get_device()}, and the communicator on cuda:{comm.device}")


def _enqueue(
    kind: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    count: int,
    op: int,
    root: int,
    streams: Streams,
    comms: Sequence[Communicator],
) -> None:
    for output in outputs:
        _check_writable(output)
    with group():
        for i, (tensor, output, comm) in enumerate(zip(inputs, outputs, comms, strict=True)):
            _call(kind, tensor, output, count, tensor.dtype, op, root, comm, None if streams is None else streams[i])


def all_reduce(
    inputs: Sequence[Any],
    outputs: Sequence[Any] | None = None,
    op: int = SUM,
    streams: Streams = None,
    comms: Comms = None,
) -> None:
    """Combines the inputs of all ranks into each output; by default in place.

    Args:
        inputs: an array for each rank that this thread drives.
        outputs: arrays of the same sizes on the same devices.
        op: SUM, PROD, MAX, MIN or AVG.
        streams: a stream for each, or None for the current one.
        comms: communicators. Without them, the inputs are all ranks.
    """
    inputs = _list_of(inputs)
    outputs = inputs if outputs is None else _list_of(outputs)
    _check_inputs(inputs, outputs, 1, 1)
    _run("all_reduce", inputs, outputs, inputs[0].numel(), op, 0, streams, comms)


def reduce(
    inputs: Sequence[Any],
    output: Any = None,
    root: int = 0,
    op: int = SUM,
    streams: Streams = None,
    comms: Comms = None,
    *,
    outputs: Sequence[Any] | None = None,
) -> None:
    """Combines the inputs of all ranks into one output, that of the root; by default in place.

    A list of outputs, of which only that of the root is used, is deprecated, as in PyTorch.
    """
    inputs = _list_of(inputs)
    if outputs is not None:
        if output is not None:
            raise ValueError(
                "'output' and 'outputs' can not be both specified. 'outputs' is deprecated in "
                "favor of 'output', taking in a single output tensor. The signature of reduce is: "
                "reduce(inputs, output=None, root=0, op=SUM, streams=None, comms=None)."
            )
        output = outputs
    if comms is None and not 0 <= root < len(inputs):
        raise RuntimeError("invalid root")
    # The place of the root among the inputs of this thread, if it is there.
    at = root if comms is None else next((i for i, comm in enumerate(comms) if comm.rank == root), -1)
    if not isinstance(output, weir.Array) and isinstance(output, collections.abc.Sequence):
        warnings.warn(
            "nccl.reduce with an output tensor list is deprecated. Please specify a single output tensor.",
            FutureWarning,
            stacklevel=2,
        )
        output = output[at] if at >= 0 else None
    if output is None and 0 <= at < len(inputs):
        output = inputs[at]
    if at >= 0:
        _check_type(output)
    ends = [output if i == at else None for i in range(len(inputs))]
    _check_inputs(inputs, ends, 1, 1)
    _run("reduce", inputs, ends, inputs[0].numel(), op, root, streams, comms)


def broadcast(inputs: Sequence[Any], root: int = 0, streams: Streams = None, comms: Comms = None) -> None:
    """Copies the array of the root to all others, in place."""
    inputs = _list_of(inputs)
    if comms is None and not 0 <= root < len(inputs):
        raise RuntimeError("invalid root")
    _check_inputs(inputs, inputs, 1, 1)
    _run("broadcast", inputs, inputs, inputs[0].numel(), SUM, root, streams, comms)


def _rank_count(inputs: Sequence[Any], comms: Comms) -> int:
    return len(inputs) if not comms else comms[0].ranks


def all_gather(inputs: Sequence[Any], outputs: Sequence[Any], streams: Streams = None, comms: Comms = None) -> None:
    """Writes the inputs of all ranks, one after the other, to each output."""
    inputs, outputs = _list_of(inputs), _list_of(outputs)
    _check_inputs(inputs, outputs, _rank_count(inputs, comms), 1)
    _run("all_gather", inputs, outputs, inputs[0].numel(), SUM, 0, streams, comms)


def reduce_scatter(
    inputs: Sequence[Any], outputs: Sequence[Any], op: int = SUM, streams: Streams = None, comms: Comms = None
) -> None:
    """Combines the inputs of all ranks, and writes each rank's part of the result to its output."""
    inputs, outputs = _list_of(inputs), _list_of(outputs)
    ranks = _rank_count(inputs, comms)
    _check_inputs(inputs, outputs, 1, ranks)
    _run("reduce_scatter", inputs, outputs, inputs[0].numel() // ranks, op, 0, streams, comms)


def send(tensor: Any, peer: int, comm: Communicator, stream: Any = None) -> None:
    """Sends an array to another rank, which receives it by `recv`. Several messages at once need a `group`."""
    _check_type(tensor)
    _check_one(tensor, tensor.dtype)
    _check_device(tensor, comm)
    _call("send", tensor, None, tensor.numel(), tensor.dtype, SUM, peer, comm, stream)


def recv(tensor: Any, peer: int, comm: Communicator, stream: Any = None) -> None:
    """Receives an array of the same size and type from another rank."""
    _check_type(tensor)
    _check_one(tensor, tensor.dtype)
    _check_device(tensor, comm)
    _check_writable(tensor)
    _call("recv", None, tensor, tensor.numel(), tensor.dtype, SUM, peer, comm, stream)
