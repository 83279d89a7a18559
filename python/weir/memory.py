"""Memory of devices and pinned memory of the host: buffers, counters, limits, pools, and the history of it all.

The names, arguments and keys are those of torch.cuda.memory. A Buffer stands where a tensor stands there.
"""

from __future__ import annotations

import sys
import warnings

from weir import _weir
from weir._lazy import is_initialized
from weir._utils import _get_device_index
from weir._weir import Buffer, OutOfMemoryError, empty, from_dlpack, host_empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any, Literal

    from weir.streams import Stream

    DeviceLike = int | str | _weir.Device | None
    PoolId = tuple[int, int]

__all__ = [
    "Buffer",
    "CUDAPluggableAllocator",
    "MemPool",
    "OutOfMemoryError",
    "attach_memory_tracker",
    "attach_oom_observer",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_enable",
    "change_current_allocator",
    "detach_memory_tracker",
    "detach_oom_observer",
    "empty",
    "empty_cache",
    "from_dlpack",
    "get_allocator_backend",
    "get_allocator_settings",
    "get_per_process_memory_fraction",
    "host_empty",
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_annotation",
    "memory_cached",
    "memory_phase",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "open_shared",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "set_per_process_memory_limit",
    "use_mem_pool",
]


def _index(device: DeviceLike) -> int:
    return _get_device_index(device, optional=True)


# ---- Plain addresses ----


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: Stream | int | None = None) -> int:
    """Allocates memory of a device for a stream, and returns its address.

    For programs that work with addresses; a Buffer (see empty) frees itself. Without a device the current one is meant,
    without a stream the device's current one. caching_allocator_delete frees it.
    """
    if stream is not None and not isinstance(stream, int) and not hasattr(stream, "cuda_stream"):
        raise TypeError(
            "Invalid type for stream argument, must be `weir.Stream` or `int` representing a pointer to a existing "
            "stream"
        )
    return _weir._cuda_cudaCachingAllocator_raw_alloc(size, stream, device)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees memory that caching_allocator_alloc gave."""
    _weir._cuda_cudaCachingAllocator_raw_delete(mem_ptr)


def caching_allocator_enable(value: bool = True) -> None:
    """Turns caching off or on again. While it is off, every allocation and every free goes to the driver."""
    if is_initialized():
        _weir._cuda_cudaCachingAllocator_enable(value)


# ---- Limits and settings ----


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Lets the process take at most this part, 0 to 1, of a device's memory. A request beyond it is out of memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _weir._cuda_setMemoryFraction(fraction, device)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The part of a device's memory that the process may take, 0 to 1."""
    return _weir._cuda_getMemoryFraction(device)


def set_per_process_memory_limit(nbytes: int | None, device: DeviceLike = None) -> None:
    """Lets the process take at most so many bytes of a device's memory; None: as many as there are."""
    _weir._set_memory_limit(nbytes, device)


def get_allocator_backend() -> str:
    """What the allocator stands on: "native", "cudaMallocAsync" or "pluggable"."""
    return _weir._cuda_getAllocatorBackend()


def get_allocator_settings() -> str:
    """The settings that are not at their default, as "expandable_segments:True"."""
    return _weir._allocator_settings()


def _set_allocator_settings(env: str) -> None:
    """Changes settings, as "max_split_size_mb:200,expandable_segments:True". ValueError for one that is none."""
    _weir._cuda_cudaCachingAllocator_set_allocator_settings(env)


def empty_cache() -> None:
    """Gives memory that is not in use back to the driver, so that other programs can have it."""
    _weir._cuda_emptyCache()


# ---- Counters ----


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """The counters of a device, by names such as "allocated_bytes.all.current"; empty before Weir has started.

    "{stat}.{pool}.{metric}", of

    stat:   "allocation" (requests), "segment" (allocations of the driver), "active" (blocks in use, or freed and
            still needed by a stream), "inactive_split" (free parts of segments), and "allocated_bytes",
            "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes" (what was asked for before it
            was rounded)
    pool:   "all", "small_pool", "large_pool"
    metric: "current", "peak", "allocated" and "freed" (sums since the start)

    "oversize_allocations.{metric}" and "oversize_segments.{metric}" are of what max_split_size leaves whole.
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free" and
    "num_oom_rejections" count events; "max_split_size" is a setting, -1 for none.
    "reserved_bytes_by_private_pools.0_1.{pool}.{metric}" is of the pool (0, 1).
    """
    return _weir._memory_stats_flat(device)


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """What memory_stats has, as dicts in dicts. Private pools are there by their ids, as (0, 1)."""
    return _weir._cuda_memoryStats(device)


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the "allocated" and "freed" sums of a device, and its counts of events, to 0."""
    _weir._cuda_resetAccumulatedMemoryStats(device)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Lets the peaks of a device begin at what is now."""
    _weir._cuda_resetPeakMemoryStats(device)


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """Deprecated: reset_peak_memory_stats, which resets all peaks."""
    warnings.warn(
        "weir.reset_max_memory_allocated now calls weir.reset_peak_memory_stats, which resets /all/ peak memory stats.",
        FutureWarning,
        stacklevel=2,
    )
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Deprecated: reset_peak_memory_stats, which resets all peaks."""
    warnings.warn(
        "weir.reset_max_memory_cached now calls weir.reset_peak_memory_stats, which resets /all/ peak memory stats.",
        FutureWarning,
        stacklevel=2,
    )
    reset_peak_memory_stats(device)


def _stat(device: DeviceLike, name: str) -> int:
    return _weir._memory_stat(device, name)


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of a device that buffers have now."""
    return _stat(device, "allocated_bytes.all.current")


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that buffers had, since the start or the last reset_peak_memory_stats."""
    return _stat(device, "allocated_bytes.all.peak")


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of a device that are taken from the driver now, in use or not."""
    return _stat(device, "reserved_bytes.all.current")


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that were taken from the driver, since the start or the last reset_peak_memory_stats."""
    return _stat(device, "reserved_bytes.all.peak")


def memory_cached(device: DeviceLike = None) -> int:
    """Deprecated: memory_reserved."""
    warnings.warn("`weir.memory_cached` has been renamed to `weir.memory_reserved`", FutureWarning, stacklevel=2)
    return memory_reserved(device)


def max_memory_cached(device: DeviceLike = None) -> int:
    """Deprecated: max_memory_reserved."""
    warnings.warn(
        "`weir.max_memory_cached` has been renamed to `weir.max_memory_reserved`", FutureWarning, stacklevel=2
    )
    return max_memory_reserved(device)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The counters of a device as a table; abbreviated, without the lines of the small and the large pool."""
    return _weir._memory_summary(device, abbreviated)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Bytes of a device that are free for every process, and how many it has."""
    return _weir._mem_get_info(device)


def list_gpu_processes(device: DeviceLike = None) -> str:
    """The processes that have memory of a device, as a text. A software device is this process's alone, and says so."""
    index = _index(device)
    text = _weir._gpu_processes(index)
    if text is not None:
        return text
    if _weir._driver_name() == "soft":
        import os

        free, total = mem_get_info(index)
        used = (total - free) / (1024 * 1024)
        return f"GPU:{index} (software device)\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"
    return "the driver's management library (NVML) is not there, or does not know the device"


# ---- Pinned memory of the host, memory of other processes ----


def host_memory_stats() -> dict[str, int]:
    """The counters of pinned memory, by names such as "allocated_bytes.current"; empty before Weir has started.

    "allocations" and "allocated_bytes" are of blocks that are held, in use or not; "active_requests" and "active_bytes"
    of those in use, or freed and still needed by a stream; each with "current", "peak", "allocated" and "freed".
    "num_host_alloc" and "num_host_free" count calls of the driver, and "host_alloc_time" and "host_free_time" have the
    microseconds that they took: "total", "max", "min", "count", "avg". Sizes are rounded up to powers of two.
    """
    flat = {}
    for name, value in host_memory_stats_as_nested_dict().items():
        if isinstance(value, dict):
            flat.update((f"{name}.{key}", number) for key, number in value.items())
        else:
            flat[name] = value
    return dict(sorted(flat.items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """What host_memory_stats has, as dicts in a dict."""
    return _weir._cuda_hostMemoryStats()


def reset_accumulated_host_memory_stats() -> None:
    """Sets the sums of pinned memory's counters, and its times, to 0."""
    _weir._cuda_resetAccumulatedHostMemoryStats()


def reset_peak_host_memory_stats() -> None:
    """Lets the peaks of pinned memory's counters begin at what is now."""
    _weir._cuda_resetPeakHostMemoryStats()


def host_empty_cache() -> None:
    """Gives pinned memory that is not in use back to the driver."""
    _weir._host_emptyCache()


def open_shared(handle: tuple[int, bytes, int, int]) -> Buffer:
    """A Buffer of the memory that another process named by Buffer.share().

    That process keeps it as long as it is used here. Nothing orders the work of the two processes: Event.ipc_handle()
    does, or waiting.
    """
    device, name, nbytes, offset = handle
    return _weir._open_shared(device, name, nbytes, offset)


# ---- Snapshots and history ----


def memory_snapshot(mempool_id: PoolId | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of all devices, or of one private pool, with their blocks.

    Args:
        mempool_id: the id of a MemPool, or None for all segments.
        include_traces: with False, what was recorded is not looked at, which is quicker.
    """
    first, second = (0, 0) if mempool_id is None else mempool_id
    return _weir._cuda_memorySnapshot((first, second, include_traces))["segments"]


def _record_memory_history(enabled: Literal["state", "all"] | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    """Begins, changes or ends recording of what the allocator does; _snapshot() has it then.

    Args:
        enabled: None ends it; "state" keeps who asked for the blocks that are in use; "all" keeps all events too.
        context: which stacks are kept: None, "state" (of blocks in use), "alloc" (and of events; those of a free have
        the stack
            of the allocation), "all" (and frees have their own).
        stacks: "python", or "all" for native frames behind Python's.
        max_entries: so many events are kept of each device; the oldest go first.
        device: not used; all devices are recorded.
        clear_history: forgets what was recorded before.
        compile_context: not needed; see _compile_context.
        global_record_annotations: memory_annotation() is to note its begin and end.
        skip_actions: events that are not kept, such as ["free_requested"].

    A bool for `enabled` stands for the arguments of old: record_context=True, trace_alloc_max_entries=1,
    trace_alloc_record_context=False, device=None, record_context_cpp=False and the last four of the above.
    """
    if isinstance(enabled, bool):
        _record_memory_history_legacy(enabled, *args, **kwargs)
    else:
        _record_memory_history_impl(enabled, *args, **kwargs)


def _record_memory_history_impl(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    _weir._cuda_record_memory_history(
        enabled, context, stacks, max_entries, clear_history, compile_context, global_record_annotations, skip_actions
    )


# inspect.signature() shows these arguments.
_record_memory_history.__wrapped__ = _record_memory_history_impl  # type: ignore[attr-defined]


def _record_memory_history_legacy(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: DeviceLike = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    _weir._cuda_record_memory_history_legacy(
        enabled,
        record_context,
        trace_alloc_max_entries,
        trace_alloc_record_context,
        record_context_cpp,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions,
    )


def _refuse_fx(augment_with_fx_traces: bool) -> None:
    if augment_with_fx_traces:
        raise NotImplementedError("there are no FX graphs here: augment_with_fx_traces is False")


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Where all memory is, and what was recorded, as PyTorch's snapshots have it.

    A dict of "segments" (with "blocks", and those with "frames"), "device_traces" (a list of events for each device),
    "allocator_settings" and "external_annotations".
    """
    _refuse_fx(augment_with_fx_traces)
    return _weir._cuda_memorySnapshot(None)


def _dump_snapshot(
    filename: str | os.PathLike[str] = "dump_snapshot.pickle",
    augment_with_fx_traces: bool = False,
    *,
    as_json: bool = False,
) -> None:
    """Writes a snapshot to a file, for PyTorch's viewer and for the program `weir`.

    The file is there whole, or not at all.
    """
    _refuse_fx(augment_with_fx_traces)
    _weir._dump_snapshot(filename, as_json)


def _set_memory_metadata(metadata: str) -> None:
    """A text that every event carries from now on, as "user_metadata"; "" for none."""
    _weir._cuda_setMemoryMetadata(metadata)


def _get_memory_metadata() -> str:
    """The text that _set_memory_metadata set last."""
    return _weir._cuda_getMemoryMetadata()


class memory_phase:
    """What the thread is doing, as "forward": its events carry the name inside of the block. Phases nest."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a name is a str, not {type(name).__name__}")
        self.name = name
        self._before: list[int] = []

    def __enter__(self) -> memory_phase:
        self._before.append(_weir._enter_phase(self.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _weir._leave_phase(self._before.pop())


class _compile_context:
    """The same for what a compiler is compiling, which snapshots have as "compile_context"."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a name is a str, not {type(name).__name__}")
        self.name = name
        self._before: list[int] = []

    def __enter__(self) -> _compile_context:
        self._before.append(_weir._enter_compile_context(self.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _weir._leave_compile_context(self._before.pop())


class memory_annotation:
    """Notes the begin and the end of a block, with the time, among a snapshot's "external_annotations".

    Nothing is noted unless _record_memory_history(global_record_annotations=True) asked for it.
    """

    def __init__(self, name: str, **metadata: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a name is a str, not {type(name).__name__}")
        self._pairs = {"name": name, **metadata}

    def _note(self, stage: str) -> None:
        if _weir._wants_annotations():
            _weir._record_annotation({**self._pairs, "stage": stage})

    def __enter__(self) -> memory_annotation:
        self._note("START")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._note("END")


def attach_memory_tracker(tracker: Callable[[str, int, int, int, int, PoolId], object]) -> None:
    """Calls tracker(action, device, address, bytes, stream, pool_id) for every event, recorded or not.

    It is called by the thread that causes the event, before its call returns, and may allocate: of that it is not told.
    What it raises is shown and goes no further.
    """
    _weir._attach_tracker(tracker)


def detach_memory_tracker(tracker: Callable[..., object]) -> None:
    """Ends what attach_memory_tracker began. ValueError when it is not attached."""
    _weir._detach_tracker(tracker)


def attach_oom_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Calls observer(device, bytes wanted, bytes allowed, bytes free) before out of memory is raised."""
    _weir._cuda_attach_out_of_memory_observer(observer)


def detach_oom_observer(observer: Callable[..., object]) -> None:
    """Ends what attach_oom_observer began. ValueError when it is not attached."""
    _weir._detach_out_of_memory_observer(observer)


# ---- Allocators of the program's own ----


class _CUDAAllocator:
    """An allocator, as change_current_allocator and MemPool take it."""

    def __init__(self, allocator: _weir._cuda_CUDAAllocator) -> None:
        self._allocator = allocator

    def allocator(self) -> _weir._cuda_CUDAAllocator:
        return self._allocator


class CUDAPluggableAllocator(_CUDAAllocator):
    """An allocator of a shared library's functions.

    Counters, history and snapshots work over it as they do over Weir's own. Functions that are optional are set on
    allocator(), by their addresses: set_init_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn,
    set_record_stream_fn, set_begin_allocate_to_pool, set_end_allocate_to_pool_fn and set_release_pool.

    Args:
        path_to_so_file: the library.
        alloc_fn_name: void *alloc(size_t bytes, int device, CUstream stream); NULL is out of memory.
        free_fn_name: void free(void *pointer, size_t bytes, int device, CUstream stream).
    """

    def __init__(self, path_to_so_file: str | os.PathLike[str], alloc_fn_name: str, free_fn_name: str) -> None:
        import ctypes

        library = ctypes.CDLL(path_to_so_file if path_to_so_file is None else str(path_to_so_file))
        alloc = ctypes.cast(getattr(library, alloc_fn_name), ctypes.c_void_p).value
        free = ctypes.cast(getattr(library, free_fn_name), ctypes.c_void_p).value
        super().__init__(_weir._cuda_customAllocator(alloc, free))
        self._library = library


def change_current_allocator(allocator: _CUDAAllocator) -> None:
    """Makes it the process's allocator. RuntimeError once Weir has started."""
    _weir._cuda_changeCurrentAllocator(allocator.allocator())


def _get_current_allocator() -> _CUDAAllocator:
    """The process's allocator."""
    return _CUDAAllocator(_weir._cuda_getAllocator())


# ---- Pools ----


class MemPool(_weir._MemPool):
    """Memory that is kept apart, of the device that is current when it is made.

    Args:
        allocator: where its segments come from, as CUDAPluggableAllocator(...).allocator(); None: from the driver.
        use_on_oom: its free blocks serve others before a request outside of it fails.
        no_split: each segment serves one allocation.
    """

    def __new__(
        cls,
        allocator: _weir._cuda_CUDAAllocator | _CUDAAllocator | None = None,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> MemPool:
        if isinstance(allocator, _CUDAAllocator):
            allocator = allocator.allocator()
        return super().__new__(cls, allocator, True, use_on_oom, no_split)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Its segments, as memory_snapshot has them."""
        return memory_snapshot(self.id, include_traces)

    def __repr__(self) -> str:
        return f"<weir.MemPool {self.id} of device {self.device}>"


class use_mem_pool:
    """Inside of the block the thread's allocations come from a pool. Blocks nest: the innermost counts.

    Args:
        pool: a MemPool.
        device: of which device; the current one if none is named.
    """

    def __init__(self, pool: MemPool, device: DeviceLike = None) -> None:
        if not isinstance(pool, _weir._MemPool):
            raise TypeError(f"a MemPool is expected, not {type(pool).__name__}")
        self._pool = pool
        self._device = device
        self._entered: list[int] = []

    def __enter__(self) -> None:
        index = _index(self._device)
        _weir._cuda_beginAllocateCurrentThreadToPool(index, self._pool.id)
        self._entered.append(index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        index = self._entered.pop()
        _weir._cuda_endAllocateToPool(index, self._pool.id)
        _weir._cuda_releasePool(index, self._pool.id)
