"""Ranges and marks for profilers, with the functions of torch.cuda.nvtx.

A tool such as Nsight Systems gets them through NVTX. While memory history is recorded, a range is also the phase of its
thread, and part of the recording, on a GPU and on the software device.
"""

from __future__ import annotations

from contextlib import contextmanager

from weir.compute import _compute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


def range_push(msg: str) -> int:
    """Begins a range of this thread, inside those that are open, and returns its depth: 0 for the outermost.

    The result is negative if neither a tool nor a recording gets the range.
    """
    return _compute._nvtx_range_push(msg)


def range_pop() -> int:
    """Ends the innermost range of this thread, and returns its depth; negative if no range is open."""
    return _compute._nvtx_range_pop()


def range_start(msg: str) -> int:
    """Begins a range that any thread may end, and returns its number for range_end."""
    return _compute._nvtx_range_start(msg)


def range_end(range_id: int) -> None:
    """Ends a range of range_start."""
    _compute._nvtx_range_end(range_id)


def mark(msg: str) -> None:
    """Marks a moment."""
    _compute._nvtx_mark(msg)


def _device_range_start(msg: str, stream: int = 0) -> object:
    """Begins a range when the work that a stream has now is done. Returns a handle for _device_range_end.

    `stream` is the raw handle of a stream of the current device.
    """
    return _compute._nvtx_device_range_start(msg, stream)


def _device_range_end(range_handle: object, stream: int = 0) -> None:
    """Ends a range of _device_range_start when the work that a stream has now is done."""
    _compute._nvtx_device_range_end(range_handle, stream)


@contextmanager
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:
    """A range around a `with` block, or around each call of a decorated function.

    The arguments are those of `msg.format()`.
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
