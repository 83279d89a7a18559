from __future__ import annotations

import weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    DeviceLike = Union[weir.Device, str, int, None]


def _get_device_index(device: DeviceLike, optional: bool = False) -> int:
    """The index of a device. With `optional`, a device without one is the current device."""
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = weir.Device(device)
    index = None
    if isinstance(device, weir.Device):
        if device.type != "cuda":
            raise ValueError(f"{device.type} doesn't match the current accelerator cuda.")
        index = device.index
    if index is None:
        if not optional:
            raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
        return weir.current_device()
    return index
