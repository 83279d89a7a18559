"""What several modules need."""

from __future__ import annotations

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The number of a device that is given as a number, as "cuda:1", or as an object with type and index.

    A number comes back as it is. None, or "cuda" without a number, is the current device where `optional` is True. With
    `allow_cpu` the host is a device too, -1.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    idx = getattr(device, "idx", None)
    if isinstance(idx, int):  # a weir.device
        return idx
    if allow_cpu and (device == "cpu" or getattr(device, "type", None) == "cpu"):
        return -1
    index = _weir._parse_device(device)
    if index >= 0:
        return index
    if not optional:
        raise ValueError(f"Expected a device with a specified index or an integer, but got: {device}")
    return _weir._current_device()
