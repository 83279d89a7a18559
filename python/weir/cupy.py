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

An allocation is a C function (python/src/cupy.c) if CuPy's classes have the layout that it expects; why_not_c() says
whether they do. Otherwise, and for the default stream of a thread, it is a Python function.
"""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple, NoReturn

import weir
from weir import _weir

if TYPE_CHECKING:
    import cupy

__all__ = ["install", "is_installed", "malloc", "record_stream", "uninstall", "using", "why_not_c"]

# The handles that the driver uses for its default streams.
_LEGACY = 1
_PER_THREAD = 2

_lock = threading.Lock()
_allocator: Any = None  # the C allocator, or CuPy's object that wraps our functions; guarded by the lock, like the next
_function: Callable[[int], Any] | None = None  # its malloc, which CuPy calls
_why_not_c: str | None = None  # why the allocator is not in C
_previous: Callable[[int], Any] | None = None  # the allocator before install()

# CuPy's streams that memory was allocated for or recorded on, by handle. Weir passes the handles to the driver later,
# when memory is freed or released, and the driver crashes if the stream was destroyed. CuPy destroys a stream with its
# last object, so these references keep it alive.
_streams: dict[int, Any] = {}
_MANY_STREAMS = 1000


class _Thread(threading.local):
    """What is known about a thread."""

    def __init__(self) -> None:
        self.identity = object()  # unlike a thread id, it is not reused while there is a reference to it
        self.prepared: set[int] = set()  # the devices whose context was set; not used by the allocator in C


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


class _Functions(NamedTuple):
    """The functions of the allocator. CuPy calls the first two, unless its arrays are allocated in C."""

    malloc: Callable[[int, int], int]
    free: Callable[[int, int], None]
    prepare: Callable[[int], None]
    malloc_on: Callable[[int, int, int], int]
    keep: Callable[[int], bool]
    out_of_memory: Callable[[int, int, Exception], NoReturn]


def _functions(cupy: Any) -> _Functions:
    """Names are looked up once: every array takes this path unless it is allocated in C."""
    current_stream = cupy.cuda.get_current_stream
    cupy_out_of_memory = cupy.cuda.memory.OutOfMemoryError
    alloc = _weir._cuda_cudaCachingAllocator_raw_alloc
    delete = _weir._cuda_cudaCachingAllocator_raw_delete
    record = _weir._record_stream
    streams = _streams
    is_finalizing = sys.is_finalizing

    def prepare(device: int) -> None:
        # The CUDA runtime sets a context in this thread, as it does when CuPy's pool gets memory from it: other calls
        # of the runtime and of libraries expect one, and without it each allocation took more than a microsecond
        # longer. CuPy makes the same call before the first kernel of a thread. Weir can do without the context, so a
        # failure is ignored.
        try:
            cupy.cuda.runtime.memGetInfo()
        except cupy.cuda.runtime.CUDARuntimeError:
            pass
        _thread.prepared.add(device)

    def weir_malloc(size: int, device: int) -> int:
        if device not in _thread.prepared:
            prepare(device)
        stream = current_stream()
        handle = stream.ptr
        if handle not in streams and handle not in (_LEGACY, _PER_THREAD):
            _keep(cupy, stream)
        return malloc_on(size, device, handle)

    def malloc_on(size: int, device: int, handle: int) -> int:
        try:
            pointer = alloc(size, 0 if handle in (_LEGACY, _PER_THREAD) else handle, device)
        except weir.OutOfMemoryError as error:
            out_of_memory(size, device, error)
        if handle == _PER_THREAD:
            _threads[pointer] = _thread.identity
        return pointer

    def out_of_memory(size: int, device: int, error: Exception) -> NoReturn:
        # A handler for CuPy's error must catch ours too; the text explains where the memory is.
        raised = cupy_out_of_memory(size, weir.memory_allocated(device), 0)
        raised.args = (f"{raised} {error}",)
        raise raised from error

    def keep(handle: int) -> bool:
        stream = current_stream()
        if stream.ptr == handle:
            _keep(cupy, stream)
        return handle in streams

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

    return _Functions(weir_malloc, weir_free, prepare, malloc_on, keep, out_of_memory)


def _in_c(cupy: Any, functions: _Functions) -> Any:
    """Returns the C allocator, or a text that says why it cannot serve this CuPy."""
    try:
        from cupy_backends.cuda import stream as streams
    except ImportError as error:
        return str(error)
    return _weir._cupy_allocator(
        cupy.cuda.memory.BaseMemory,
        cupy.cuda.memory.MemoryPointer,
        cupy.cuda.device,
        streams,
        functions.prepare,
        functions.keep,
        functions.malloc_on,
        functions.free,
        functions.out_of_memory,
    )


def _make() -> Any:
    global _allocator, _function, _why_not_c
    with _lock:
        if _allocator is None:
            cupy = _cupy()
            weir.init()
            if _weir._driver_name() != "cuda":
                raise RuntimeError(
                    f"weir.cupy: CuPy needs NVIDIA's driver, but Weir was started with '{_weir._driver_name()}'; unset "
                    "WEIR_DRIVER, or set it to cuda"
                )
            functions = _functions(cupy)
            made = _in_c(cupy, functions)
            _why_not_c = made if isinstance(made, str) else None
            if _why_not_c is not None:
                made = cupy.cuda.PythonFunctionAllocator(functions.malloc, functions.free)
            _function = made.malloc
            _allocator = made
        return _allocator


def why_not_c() -> str | None:
    """Returns None if CuPy's allocations call C code, and otherwise why they call Python functions."""
    _make()
    return _why_not_c


def malloc(size: int) -> cupy.cuda.MemoryPointer:
    """Allocates on the current device for CuPy's current stream. Can be passed to cupy.cuda.set_allocator()."""
    return (_allocator or _make()).malloc(size)


def _is_ours(allocator: Any) -> bool:
    return allocator is malloc or (_function is not None and allocator == _function)


def install() -> None:
    """Makes CuPy allocate from Weir in all threads. Does nothing if it already does."""
    global _previous
    _make()
    cupy = _cupy()
    with _lock:
        if not _is_ours(cupy.cuda.get_allocator()):
            previous = cupy.cuda.get_allocator()
            cupy.cuda.set_allocator(_function)
            _previous = previous


def uninstall() -> None:
    """Restores CuPy's allocator from before install(). Existing arrays keep Weir's memory until they are deleted."""
    global _previous
    cupy = _cupy()
    with _lock:
        if _is_ours(cupy.cuda.get_allocator()):
            cupy.cuda.set_allocator(_previous)
            _previous = None


def is_installed() -> bool:
    """Whether CuPy currently allocates from Weir in this thread."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and _is_ours(cupy.cuda.get_allocator())


@contextmanager
def using() -> Iterator[None]:
    """A context manager that makes CuPy allocate from Weir in this thread."""
    _make()
    with _cupy().cuda.using_allocator(_function):
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
    in_c = _why_not_c is None and _allocator is not None and _allocator.owns(memory)
    if not in_c and not isinstance(memory, cupy.cuda.memory.PythonFunctionAllocatorMemory):
        raise ValueError("record_stream: the array's memory is not Weir's; it was allocated before weir.cupy.install()")
    if not memory.ptr:
        return
    if handle not in _streams and handle not in (_LEGACY, _PER_THREAD):
        _keep(cupy, stream)
    _weir._record_stream(memory.ptr, 0 if handle == _LEGACY else handle)
    # Weir queries the stream when the array is deleted, and then this handle means the stream of the deleting thread.
    if handle == _PER_THREAD and in_c:
        _allocator.free_slowly(memory)
    if handle == _PER_THREAD and _threads.setdefault(memory.ptr, _thread.identity) is not _thread.identity:
        _threads[memory.ptr] = _SEVERAL
