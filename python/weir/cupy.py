"""CuPy on Weir's memory.

    import cupy
    import weir
    import weir.cupy

    weir.cupy.install()
    x = cupy.arange(1 << 20)
    print(weir.memory_allocated())

Arrays that were made before keep the memory that they have. CuPy's current stream is the one that memory is allocated for; it
is used again on that stream in the stream's order. An array that another stream uses as well is told so by record_stream.
Streams that had memory are kept for good: make them once, and use them again.
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

# The handles that the driver has for its default streams.
_LEGACY = 1
_PER_THREAD = 2

_lock = threading.Lock()
_allocator: Any = None  # CuPy's object around our functions; guarded by the lock, like the next
_previous: Callable[[int], Any] | None = None  # what was there before install

# CuPy's streams that memory was allocated for or recorded on, by their handles. Weir gives the handles to the driver later, when
# memory is freed or given back, and the driver crashes on one whose stream is gone: CuPy destroys a stream with its last object.
_streams: dict[int, Any] = {}
_MANY_STREAMS = 1000


class _Thread(threading.local):
    """A mark for each thread. Unlike a thread's number it is never another's, as long as somebody has it."""

    def __init__(self) -> None:
        self.mark = object()


_thread = _Thread()

# Memory that the threads' own default streams use, and the mark of the thread. Their handle is one for all of them, so that such
# memory is allocated for the legacy stream and waits for the thread's when it is freed.
_threads: dict[int, object] = {}
_SEVERAL = object()  # in the place of a mark: more than one thread


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "weir.cupy needs CuPy, which cannot be imported here; pip install cupy-cuda13x (or the package for your CUDA) "
            f"installs it: {error}"
        ) from error
    return cupy


def _keep(cupy: Any, stream: Any) -> None:
    """Lets a stream of CuPy's live on. Those that CuPy only borrows have an owner of their own."""
    if not isinstance(stream, cupy.cuda.Stream):
        return
    _streams.setdefault(stream.ptr, stream)
    if len(_streams) == _MANY_STREAMS:
        warnings.warn(
            f"weir.cupy: {_MANY_STREAMS} streams of CuPy's have had memory, and are kept for good with what the driver holds for "
            "each; make a few streams once and use them again",
            RuntimeWarning,
            stacklevel=3,
        )


def _functions(cupy: Any) -> tuple[Callable[[int, int], int], Callable[[int, int], None]]:
    """What CuPy calls to allocate and to free. Names are looked up once: this is on the way of every array."""
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
            # Who catches CuPy's error catches ours; the text says where the memory is.
            allocated = weir.memory_allocated(device)
            raised = cupy_out_of_memory(size, allocated, 0)
            raised.args = (f"{raised} {error}",)
            raise raised from error
        if handle == _PER_THREAD:
            _threads[pointer] = _thread.mark
        return pointer

    def weir_free(pointer: int, device: int) -> None:
        # Called where an exception helps nobody. At the end of the interpreter all memory goes with the process.
        if is_finalizing():
            return
        if _threads:
            mark = _threads.pop(pointer, None)
            if mark is _thread.mark:
                record(pointer, _PER_THREAD)
            elif mark is not None:
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
                    f"weir.cupy: CuPy works on NVIDIA's driver, and Weir was started on '{_weir._driver_name()}'; unset "
                    "WEIR_DRIVER, or set it to cuda"
                )
            _allocator = cupy.cuda.PythonFunctionAllocator(*_functions(cupy))
        return _allocator


def malloc(size: int) -> cupy.cuda.MemoryPointer:
    """Memory of the current device for CuPy's current stream. An allocator as cupy.cuda.set_allocator takes it."""
    return (_allocator or _make()).malloc(size)


def install() -> None:
    """Lets CuPy allocate from Weir, in all threads, from now on. Does nothing where it does already."""
    global _previous
    _make()
    cupy = _cupy()
    with _lock:
        if cupy.cuda.get_allocator() is not malloc:
            previous = cupy.cuda.get_allocator()
            cupy.cuda.set_allocator(malloc)
            _previous = previous


def uninstall() -> None:
    """Lets CuPy allocate as before install. Arrays of Weir's memory live on, and give it back when they die."""
    global _previous
    cupy = _cupy()
    with _lock:
        if cupy.cuda.get_allocator() is malloc:
            cupy.cuda.set_allocator(_previous)
            _previous = None


def is_installed() -> bool:
    """Whether CuPy allocates from Weir now, in this thread."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and cupy.cuda.get_allocator() is malloc


@contextmanager
def using() -> Iterator[None]:
    """Lets this thread allocate from Weir within a with statement."""
    _make()
    with _cupy().cuda.using_allocator(malloc):
        yield


def record_stream(array: cupy.ndarray, stream: cupy.cuda.Stream | None = None) -> None:
    """Another stream uses the array too (the current one, if none is given): when the array dies, its memory is not used
    again before that stream got there. Arrays of other memory are refused with a ValueError."""
    cupy = _cupy()
    if stream is None:
        stream = cupy.cuda.get_current_stream()
    handle = stream.ptr
    memory = array.data.mem
    if not isinstance(memory, cupy.cuda.memory.PythonFunctionAllocatorMemory):
        raise ValueError("record_stream: the array's memory is not Weir's; it was made before weir.cupy.install()")
    if not memory.ptr:
        return
    if handle not in _streams and handle not in (_LEGACY, _PER_THREAD):
        _keep(cupy, stream)
    _weir._record_stream(memory.ptr, 0 if handle == _LEGACY else handle)
    # Weir asks the stream when the array dies, and then this handle means the stream of the thread in which it dies.
    if handle == _PER_THREAD and _threads.setdefault(memory.ptr, _thread.mark) is not _thread.mark:
        _threads[memory.ptr] = _SEVERAL
