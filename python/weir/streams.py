"""Streams and events."""

from __future__ import annotations

from weir import _weir
from weir._device import device as _device_context
from weir._utils import _get_device_index
from weir._weir import Event, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "set_stream",
    "stream",
]


class ExternalStream(Stream):
    """A stream that was created elsewhere. Its creator keeps ownership, and must keep it alive while it is used here.

    Args:
        stream_ptr: the address of the CUstream.
        device: the device of the stream; None for the current one.
    """

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        return super().__new__(cls, device=_index(device), stream_ptr=stream_ptr, **kwargs)


def _index(device: Any) -> Any:
    return None if device is None else _get_device_index(device, optional=True)


def current_stream(device: Any = None) -> Stream:
    """Returns the calling thread's current stream on a device."""
    return _weir._current_stream(_index(device))


def default_stream(device: Any = None) -> Stream:
    """Returns the default stream of a device."""
    return _weir._default_stream(_index(device))


def get_stream_from_external(data_ptr: int, device: Any = None) -> Stream:
    """Returns a Stream for a CUstream that was created elsewhere. See ExternalStream."""
    return Stream(_index(device), stream_ptr=data_ptr)


def set_stream(stream: Stream | None) -> None:
    """Makes a stream and its device current. None is ignored. Prefer `with weir.stream(...)`."""
    if stream is not None:
        _weir._set_stream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """Makes the stream with these attributes of a Stream current."""
    _weir._set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


class StreamContext:
    """A context manager that makes a stream and its device current. None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"expected a weir.Stream or None, got {type(stream).__name__}")
        self.stream = stream
        self.src_prev_stream: Stream | None = None
        self.dst_prev_stream: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self.src_prev_stream = current_stream()
        if self.src_prev_stream.device_index != self.stream.device_index:
            with _device_context(self.stream.device_index):
                self.dst_prev_stream = current_stream()
        set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_stream(self.dst_prev_stream)
        set_stream(self.src_prev_stream)
        self.src_prev_stream = self.dst_prev_stream = None


def stream(stream: Stream | None) -> StreamContext:
    """Returns a context manager that makes a stream and its device current: `with weir.stream(s): ...`."""
    return StreamContext(stream)
