"""Arrays of several devices of one process, as torch.cuda.comm.

    import weir

    parts = weir.comm.scatter(batch, devices=[0, 1, 2, 3])
    whole = weir.comm.gather(parts, destination="cpu")

Work is enqueued on the current streams of the devices, which wait for each other. The host waits only for copies to its
memory, as in PyTorch, and for copies from memory that is not pinned. Complex numbers stay complex numbers, where PyTorch
returns their real and imaginary parts.
"""

from __future__ import annotations

import warnings

from weir.compute import _compute
from weir._utils import _get_device_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

__all__ = ["broadcast", "broadcast_coalesced", "reduce_add", "reduce_add_coalesced", "scatter", "gather"]


def broadcast(
    tensor: Any, devices: Iterable[Any] | None = None, *, out: Sequence[Any] | None = None
) -> tuple[Any, ...]:
    """Copies an array to devices, or into the arrays of `out`. Exactly one of the two is given.

    On its own device the result is the array itself.
    """
    if not ((devices is None) ^ (out is None)):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )
    if devices is not None:
        indices = [_get_device_index(d) for d in devices]
        copies = _compute._comm_broadcast(tensor, indices)
        own = tensor.get_device()
        return tuple(tensor if index == own else copy for index, copy in zip(indices, copies))
    outs = list(out or ())
    _compute._comm_broadcast_out(tensor, outs)
    return tuple(outs)


def broadcast_coalesced(tensors: Iterable[Any], devices: Iterable[Any], buffer_size: int = 10485760) -> tuple[Any, ...]:
    """Copies arrays, which are on the first of the devices, to all of them, in few copies.

    Returns:
        a tuple for each device; the first has the arrays themselves.
    """
    arrays, indices = list(tensors), [_get_device_index(d) for d in devices]
    flat = _compute._comm_broadcast_coalesced(arrays, indices, buffer_size)
    count = len(arrays)
    return (tuple(arrays), *(flat[i * count : (i + 1) * count] for i in range(1, len(indices))))


def reduce_add(inputs: Sequence[Any], destination: Any = None) -> Any:
    """Adds arrays of one shape, on the device of one of them; by default the current device."""
    arrays = list(inputs)
    for i, array in enumerate(arrays):  # C has the same checks; the exceptions are PyTorch's
        if not array.is_cuda:
            raise AssertionError(f"reduce_add expects all inputs to be on GPUs, but input {i} is on CPU")
        if array.shape != arrays[0].shape:
            got, expected = ("x".join(str(size) for size in each.shape) for each in (array, arrays[0]))
            raise ValueError(f"input {i} has invalid size: got {got}, but expected {expected}")
    return _compute._comm_reduce_add(arrays, _get_device_index(destination, optional=True))


def reduce_add_coalesced(
    inputs: Iterable[Iterable[Any]], destination: Any = None, buffer_size: int = 10485760
) -> tuple[Any, ...]:
    """Adds the arrays of all inputs one by one, in few steps. Each input has the arrays of one device."""
    lists = [list(arrays) for arrays in inputs]
    for arrays in lists[1:]:
        if len(arrays) != len(lists[0]):
            raise ValueError("all inputs must have the same number of arrays")
    flat = [array for arrays in lists for array in arrays]
    index = _get_device_index(destination, optional=True)
    return _compute._comm_reduce_add_coalesced(flat, len(lists), index, buffer_size)


def scatter(
    tensor: Any,
    devices: Iterable[Any] | None = None,
    chunk_sizes: Iterable[int] | None = None,
    dim: int = 0,
    streams: Iterable[Any] | None = None,
    *,
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """Splits an array along a dimension over devices, or over the arrays of `out`.

    Args:
        tensor: an array on the host or a device. A part on its own device is a view.
        devices: where the parts are to be.
        chunk_sizes: their sizes; by default they are as equal as possible.
        dim: the dimension.
        streams: a stream for each device, or None for the current one.
        out: arrays to write to, in place of `devices` and `chunk_sizes`.
    """
    given = None if streams is None else list(streams)
    if out is None:
        indices = [_get_device_index(d) for d in devices or ()]
        sizes = None if chunk_sizes is None else list(chunk_sizes)
        if sizes is not None and len(sizes) != len(indices):
            raise RuntimeError(
                "Expected devices and chunk_sizes to be of same length, but got "
                f"len(devices) = {len(indices)} and len(chunk_sizes) = {len(sizes)}"
            )
        return _compute._comm_scatter(tensor, indices, sizes, dim, given)
    if devices is not None:
        raise RuntimeError(f"'devices' must not be specified when 'out' is specified, but got devices={devices}")
    if chunk_sizes is not None:
        raise RuntimeError(
            f"'chunk_sizes' must not be specified when 'out' is specified, but got chunk_sizes={chunk_sizes}"
        )
    outs = list(out)
    _compute._comm_scatter_out(tensor, outs, dim, given)
    return tuple(outs)


def gather(tensors: Iterable[Any], dim: int = 0, destination: Any = None, *, out: Any = None) -> Any:
    """Joins arrays of devices along a dimension, on a device, on the host ("cpu"), or in `out`."""
    arrays = list(tensors)
    if out is None:
        if destination == -1:
            warnings.warn(
                "Using -1 to represent CPU tensor is deprecated. Please use a "
                'device object or string instead, e.g., "cpu".',
                FutureWarning,
                stacklevel=2,
            )
        return _compute._comm_gather(arrays, dim, _get_device_index(destination, allow_cpu=True, optional=True))
    if destination is not None:
        raise RuntimeError(
            f"'destination' must not be specified when 'out' is specified, but got destination={destination}"
        )
    _compute._comm_gather_out(arrays, dim, out)
    return out
