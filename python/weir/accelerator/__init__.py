"""The names of torch.accelerator: devices, streams, memory and graphs without the name of a kind of device.

The accelerator is always "cuda". Devices are given by an index, or by a device or a text of that kind.
"""

from __future__ import annotations

import warnings

import weir
from weir import _weir
from weir.accelerator import random as random
from weir._device import synchronize as _synchronize
from weir.accelerator._utils import _get_device_index
from weir.accelerator.graphs import Graph
from weir.accelerator.memory import (
    empty_cache,
    empty_host_cache,
    get_memory_info,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from weir.accelerator._utils import DeviceLike

__all__ = [
    "Graph",
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "empty_host_cache",
    "get_device_capability",
    "get_memory_info",
    "is_available",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
]


def device_count() -> int:
    """Returns the number of devices, 0 if there are none."""
    return weir.device_count()


def is_available() -> bool:
    """Whether there is a device."""
    return weir.is_available()


def current_accelerator(check_available: bool = False) -> weir.Device | None:
    """Returns the kind of device, without an index; None if check_available is True and there is no device."""
    return None if check_available and not is_available() else weir.Device("cuda")


def current_device_index() -> int:
    """Returns the index of the current device."""
    return weir.current_device()


def set_device_index(device: DeviceLike, /) -> None:
    """Makes a device current. A negative index has no effect."""
    index = _get_device_index(device)
    if index >= 0:
        weir.set_device(index)


def current_device_idx() -> int:
    """The former name of current_device_index()."""
    warnings.warn("Use `current_device_index` instead.", FutureWarning, stacklevel=2)
    return current_device_index()


def set_device_idx(device: DeviceLike, /) -> None:
    """The former name of set_device_index()."""
    warnings.warn("Use `set_device_index` instead.", FutureWarning, stacklevel=2)
    set_device_index(device)


def get_device_capability(device: DeviceLike = None, /) -> dict[str, Any]:
    """Returns what a device can do: "supported_dtypes" is the set of the types of arrays."""
    weir.get_device_properties(_get_device_index(device, optional=True))  # an error if there is no such device
    integers = "bool", "uint8", "int8", "int16", "int32", "int64"
    floats = "float16", "bfloat16", "float32", "float64", "complex64", "complex128"
    return {"supported_dtypes": {getattr(weir, name) for name in (*integers, *floats)}}


def current_stream(device: DeviceLike = None, /) -> weir.Stream:
    """Returns the current stream of a device."""
    return weir.current_stream(_get_device_index(device, optional=True))


def set_stream(stream: weir.Stream) -> None:
    """Makes a stream the current one of its device, and its device current."""
    weir.set_device(stream.device_index)
    weir.set_stream(stream)


def synchronize(device: DeviceLike = None, /) -> None:
    """Waits for all work of a device. Has no effect before Weir has started."""
    if weir.is_initialized():
        _synchronize(_get_device_index(device, optional=True))


class device_index:
    """A context manager that makes a device current; None changes nothing."""

    def __init__(self, device: int | None, /) -> None:
        self.idx = device
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx is not None:
            self.prev_idx = _weir._exchange_device(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        if self.idx is not None:
            _weir._maybe_exchange_device(self.prev_idx)
