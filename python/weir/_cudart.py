"""The module that `weir.cudart()` returns: functions of the CUDA runtime, which return a cudaError and never raise."""

from __future__ import annotations

from enum import IntEnum

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_make_enum: Any = IntEnum
cudaError = _make_enum("cudaError", {name.lower(): code for name, code in _weir._error_names().items()})
cudaError.__doc__ = "The result of a CUDA runtime call; cudaError.success is 0."


def _error(code: int) -> int:
    try:
        error: int = cudaError(code)
        return error
    except ValueError:  # a code of a newer driver
        return code


def cudaGetErrorString(error: int) -> str:
    """Returns the message of an error code."""
    return _weir._error_string(int(error))


def cudaProfilerStart() -> int:
    """Starts the profiler that is attached to the process."""
    return _error(_weir._profiler_start())


def cudaProfilerStop() -> int:
    """Stops the profiler that is attached to the process."""
    return _error(_weir._profiler_stop())


def cudaHostRegister(ptr: int, size: int, flags: int) -> int:
    """Page-locks existing host memory."""
    return _error(_weir._host_register(ptr, size, flags))


def cudaHostUnregister(ptr: int) -> int:
    """Unlocks host memory that cudaHostRegister page-locked."""
    return _error(_weir._host_unregister(ptr))


def cudaStreamCreate(ptr: int) -> int:
    """Creates a stream, and stores its handle at the address `ptr`."""
    return _error(_weir._stream_create(ptr))


def cudaStreamDestroy(stream: int) -> int:
    """Destroys a stream that cudaStreamCreate created."""
    return _error(_weir._stream_destroy(stream))


def cudaMemGetInfo(device: int) -> tuple[int, int]:
    """Returns the free and the total memory of a device, in bytes."""
    return _weir._memory_info(device)
