"""What `weir.cudart()` returns: calls of the CUDA runtime, under its names. They return a cudaError, and raise nothing."""

from __future__ import annotations

from enum import IntEnum

from weir import _weir

cudaError = IntEnum("cudaError", {name.lower(): code for name, code in _weir._error_names().items()})
cudaError.__doc__ = "What a call returned: cudaError.success is 0."


def _error(code: int) -> int:
    try:
        return cudaError(code)
    except ValueError:  # of a newer driver
        return code


def cudaGetErrorString(error: int) -> str:
    """The text of a code."""
    return _weir._error_string(int(error))


def cudaProfilerStart() -> int:
    """Starts a profiler that is attached to the process."""
    return _error(_weir._profiler_start())


def cudaProfilerStop() -> int:
    """Stops it."""
    return _error(_weir._profiler_stop())


def cudaHostRegister(ptr: int, size: int, flags: int) -> int:
    """Page-locks host memory that is there."""
    return _error(_weir._host_register(ptr, size, flags))


def cudaHostUnregister(ptr: int) -> int:
    """Takes cudaHostRegister back."""
    return _error(_weir._host_unregister(ptr))


def cudaStreamCreate(ptr: int) -> int:
    """Makes a stream, and writes its address to the address `ptr`."""
    return _error(_weir._stream_create(ptr))


def cudaStreamDestroy(stream: int) -> int:
    """Destroys a stream that cudaStreamCreate made."""
    return _error(_weir._stream_destroy(stream))


def cudaMemGetInfo(device: int) -> tuple[int, int]:
    """Bytes of a device that are free, and all."""
    return _weir._memory_info(device)
