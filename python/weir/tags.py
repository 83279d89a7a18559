"""Tags: names on memory, such as "weights". A tag can sleep: its memory goes to other uses of the device, its addresses
stay, and its bytes come back when it wakes."""

from __future__ import annotations

from weir import _weir
from weir._utils import _get_device_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    DeviceLike = int | str | _weir.Device | None

__all__ = ["Tag", "tag", "tag_names"]


class Tag:
    """A tag of one device. As a context manager: what the calling thread allocates within has the tag, and keeps it
    wherever it is freed. Scopes nest, and the innermost one counts.

    Args:
        name: its name, of 1 to 63 bytes. Objects of the same name and device stand for the same tag.
        device: the device; None for the current one.
    """

    def __init__(self, name: str, device: DeviceLike = None) -> None:
        self.name = name
        self.device = _get_device_index(device, optional=True)
        _weir._tag_info(self.device, name)

    def __enter__(self) -> Tag:
        _weir._tag_begin(self.device, self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _weir._tag_end(self.device, self.name)

    def sleep(self, *, keep: bool = True) -> None:
        """Returns the memory of the tag to the device; all addresses stay. Waits for the work that was submitted to the
        device before. Until wake() no work may use the memory.

        Args:
            keep: whether the bytes of live memory are copied to the host, and come back. Otherwise they are lost.
        """
        _weir._tag_sleep(self.device, self.name, keep)

    def wake(self) -> None:
        """Gives the tag memory again and copies back what it kept. If the device has too little memory, it raises
        OutOfMemoryError and the tag is asleep as before."""
        _weir._tag_wake(self.device, self.name)

    def prepare(self) -> None:
        """Pins as much host memory as a sleep would need now: the larger part of the time of a first sleep."""
        _weir._tag_prepare(self.device, self.name)

    def info(self) -> dict[str, Any]:
        """Returns what the tag holds: its state ("awake", "asleep"), the id of its own pool, how many pools it has, and
        bytes: reserved, allocated, asleep, kept in host memory, copied ever, and pinned for all tags of the device."""
        return _weir._tag_info(self.device, self.name)

    def __repr__(self) -> str:
        return f"<weir.Tag '{self.name}' on device {self.device}, {self.info()['state']}>"


def tag(name: str, device: DeviceLike = None) -> Tag:
    """Returns the tag of that name, which is created if there is none. Use it in a with statement:

        with weir.tag("weights"):
            weights = weir.buffer(1 << 30)
        weir.tag("weights").sleep()
        weir.tag("weights").wake()
    """
    return Tag(name, device)


def tag_names(device: DeviceLike = None) -> list[str]:
    """Returns the names of the tags of a device, in the order of their creation."""
    return _weir._tag_names(_get_device_index(device, optional=True))
