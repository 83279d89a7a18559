"""CuPy on Weir's memory.

    import cupy
    import weir
    import weir.cupy

    weir.cupy.install()
    x = cupy.arange(1 << 20)
    print(weir.memory_allocated())

Existing arrays keep their memory. Memory is allocated for CuPy's current stream, and reused on that stream in stream
order. If another stream uses an array too, call record_stream(). Streams that have had memory are never destroyed:
create streams once, and reuse them.
"""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator

import weir
from weir import _weir

if TYPE_CHECKING:
    import cupy

__all__ = ["install", "is_installed", "malloc", "record_stream", "uninstall", "using"]

# The handles that the driver uses for its default streams.
_LEGACY = 1
_PER_THREAD = 2

_lock = threading.Lock()
_allocator: Any = None  # CuPy's object that wraps our functions; guarded by the lock, like the next
_previous: Callable[[int], Any] | None = None  # the allocator before install()

# CuPy's streams that memory was allocated for or recorded on, by handle. Weir passes the handles to the driver later,
# when memory is freed or released, and the driver crashes if the stream was destroyed. CuPy destroys a stream with its
# last object, so these references keep it alive.
_streams: dict[int, Any] = {}
_MANY_STREAMS = 1000


class _Thread(threading.local):
    """Identifies a thread. Unlike a thread id, it is not reused while there is a reference to it."""

    def __init__(self) -> None:
        self.identity = object()


_thread = _Thread()

# Memory used by per-thread default streams, with the identity of the thread. All these streams have the same handle, so
# such memory is allocated for the legacy stream, and waits for the thread's stream when it is freed.
_threads: dict[int, object] = {}
_SEVERAL = object()  # instead of an identity: more than one thread


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "weir.cupy needs CuPy, which could not be imported; install it with pip install cupy-cuda13x (or the "
            f"package for your version of CUDA): {error}"
        ) from error
    return cupy


def _keep(cupy: Any, stream: Any) -> None:
    """Keeps a stream of CuPy alive. A stream that CuPy does not own is left to its owner."""
    if not isinstance(stream, cupy.cuda.Stream):
        return
    _streams.setdefault(stream.ptr, stream)
    if len(_streams) == _MANY_STREAMS:
        warnings.warn(
            f"weir.cupy: {_MANY_STREAMS} streams of CuPy have had memory; they are never destroyed, and the driver "
            "holds resources for each; create a few streams once and reuse them",
            RuntimeWarning,
            stacklevel=3,
        )


def _functions(cupy: Any) -> tuple[Callable[[int, int], int], Callable[[int, int], None]]:
    """The functions that CuPy calls to allocate and free. Names are looked up once: every array takes this path."""
    current_stream = cupy.cuda.get_current_stream
    cupy_out_of_memory = cupy.cuda.memory.OutOfMemoryError
    alloc = _weir._cuda_cudaCachingAllocator_raw_alloc
    delete = _weir._cuda_cudaCachingAllocator_raw_delete
    record = _weir._record_stream
    streams = _streams
    is_finalizing = sys.is_finalizing

    def weir_malloc(size: int, device: int) -> int:
        stream = current_stream()
        handle = stream.ptr
        try:
            if handle in streams:
                return alloc(size, handle, device)
            if handle not in (_LEGACY, _PER_THREAD):
                _keep(cupy, stream)
                return alloc(size, handle, device)
            pointer = alloc(size, 0, device)
        except weir.OutOfMemoryError as error:
            # A handler for CuPy's error must catch ours too; the text explains where the memory is.
            allocated = weir.memory_allocated(device)
            raised = cupy_out_of_memory(size, allocated, 0)
            raised.args = (f"{raised} {error}",)
            raise raised from error
        if handle == _PER_THREAD:
            _threads[pointer] = _thread.identity
        return pointer

    def weir_free(pointer: int, device: int) -> None:
        # An exception would be useless here. When the interpreter exits, all memory is released with the process.
        if is_finalizing():
            return
        if _threads:
            identity = _threads.pop(pointer, None)
            if identity is _thread.identity:
                record(pointer, _PER_THREAD)
            elif identity is not None:
                with cupy.cuda.Device(device):
                    cupy.cuda.runtime.deviceSynchronize()
        delete(pointer)

    return weir_malloc, weir_free


def _make() -> Any:
    global _allocator
    with _lock:
        if _allocator is None:
            cupy = _cupy()
            weir.init()
            if _weir._driver_name() != "cuda":
                raise RuntimeError(
                    f"weir.cupy: CuPy needs NVIDIA's driver, but Weir was started with '{_weir._driver_name()}'; unset "
                    "WEIR_DRIVER, or set it to cuda"
                )
            _allocator = cupy.cuda.PythonFunctionAllocator(*_functions(cupy))
        return _allocator


def malloc(size: int) -> cupy.cuda.MemoryPointer:
    """Allocates on the current device for CuPy's current stream. Can be passed to cupy.cuda.set_allocator()."""
    return (_allocator or _make()).malloc(size)


def install() -> None:
    """Makes CuPy allocate from Weir in all threads. Does nothing if it already does."""
    global _previous
    _make()
    cupy = _cupy()
    with _lock:
        if cupy.cuda.get_allocator() is not malloc:
            previous = cupy.cuda.get_allocator()
            cupy.cuda.set_allocator(malloc)
            _previous = previous


def uninstall() -> None:
    """Restores CuPy's allocator from before install(). Existing arrays keep Weir's memory until they are deleted."""
    global _previous
    cupy = _cupy()
    with _lock:
        if cupy.cuda.get_allocator() is malloc:
            cupy.cuda.set_allocator(_previous)
            _previous = None


def is_installed() -> bool:
    """Whether CuPy currently allocates from Weir in this thread."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and cupy.cuda.get_allocator() is malloc


@contextmanager
def using() -> Iterator[None]:
    """A context manager that makes CuPy allocate from Weir in this thread."""
    _make()
    with _cupy().cuda.using_allocator(malloc):
        yield


def record_stream(array: cupy.ndarray, stream: cupy.cuda.Stream | None = None) -> None:
    """Records that another stream uses an array; None for CuPy's current stream.

    When the array is deleted, its memory is not reused until that stream has finished the work submitted so far. Raises
    ValueError if the array's memory does not belong to Weir.
    """
    cupy = _cupy()
    if stream is None:
        stream = cupy.cuda.get_current_stream()
    handle = stream.ptr
    memory = array.data.mem
    if not isinstance(memory, cupy.cuda.memory.PythonFunctionAllocatorMemory):
        raise ValueError("record_stream: the array's memory is not Weir's; it was allocated before weir.cupy.install()")
    if not memory.ptr:
        return
    if handle not in _streams and handle not in (_LEGACY, _PER_THREAD):
        _keep(cupy, stream)
    _weir._record_stream(memory.ptr, 0 if handle == _LEGACY else handle)
    # Weir queries the stream when the array is deleted, and then this handle means the stream of the deleting thread.
    if handle == _PER_THREAD and _threads.setdefault(memory.ptr, _thread.identity) is not _thread.identity:
        _threads[memory.ptr] = _SEVERAL
