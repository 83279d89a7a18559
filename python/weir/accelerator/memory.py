"""The names of torch.accelerator.memory."""

from __future__ import annotations

from weir import memory as _memory
from weir._lazy import is_initialized
from weir.accelerator._utils import _get_device_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weir.accelerator._utils import DeviceLike

__all__ = [
    "empty_cache",
    "empty_host_cache",
    "get_memory_info",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def empty_cache() -> None:
    """Releases cached memory to the driver. Has no effect before Weir has started."""
    if is_initialized():
        _memory.empty_cache()


def empty_host_cache() -> None:
    """Releases cached pinned memory."""
    _memory.host_empty_cache()


def memory_stats(device_index: DeviceLike = None, /) -> dict[str, int]:
    """Returns the statistics of a device by key, as weir.memory_stats(); empty before Weir has started."""
    return _memory.memory_stats(_get_device_index(device_index, optional=True)) if is_initialized() else {}


def memory_allocated(device_index: DeviceLike = None, /) -> int:
    """Returns the allocated bytes of a device."""
    return memory_stats(device_index).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device_index: DeviceLike = None, /) -> int:
    """Returns the most bytes that were allocated on a device since the last reset_peak_memory_stats()."""
    return memory_stats(device_index).get("allocated_bytes.all.peak", 0)


def memory_reserved(device_index: DeviceLike = None, /) -> int:
    """Returns the bytes that are held from the driver on a device."""
    return memory_stats(device_index).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device_index: DeviceLike = None, /) -> int:
    """Returns the most bytes that were held from the driver since the last reset_peak_memory_stats()."""
    return memory_stats(device_index).get("reserved_bytes.all.peak", 0)


def reset_accumulated_memory_stats(device_index: DeviceLike = None, /) -> None:
    """Sets the totals "allocated" and "freed" of a device to 0."""
    _memory.reset_accumulated_memory_stats(_get_device_index(device_index, optional=True))


def reset_peak_memory_stats(device_index: DeviceLike = None, /) -> None:
    """Sets the peaks of a device to the current values."""
    _memory.reset_peak_memory_stats(_get_device_index(device_index, optional=True))


def get_memory_info(device_index: DeviceLike = None, /) -> tuple[int, int]:
    """Returns the free and the total bytes of a device."""
    return _memory.mem_get_info(_get_device_index(device_index, optional=True))
