"""Helper functions of several modules."""

from __future__ import annotations

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Returns the index of a device that is given as an index, as "cuda:1", or as an object with `type` and `index`.

    An integer is returned unchanged. With `optional`, None and "cuda" without an index mean the current device. With
    `allow_cpu`, the host is accepted too, as -1.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if allow_cpu and (device == "cpu" or getattr(device, "type", None) == "cpu"):
        return -1
    index = _weir._parse_device(device)
    if index >= 0:
        return index
    if not optional:
        raise ValueError(f"Expected a device with a specified index or an integer, but got: {device}")
    return _weir._current_device()
