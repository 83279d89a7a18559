"""Memory: device buffers, pinned host buffers, statistics, limits, pools and the allocation history.

The names, arguments and keys are those of torch.cuda.memory. Weir has a Buffer where PyTorch has a tensor.
"""

from __future__ import annotations

import os
import sys
import warnings
from _thread import allocate_lock

from weir import _messages, _weir
from weir._lazy import _lazy_init, is_initialized
from weir._utils import _get_device_index
from weir._weir import Buffer, OutOfMemoryError, buffer, from_dlpack, host_empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any, Literal

    from typing_extensions import Self

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
    "buffer",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "change_current_allocator",
    "detach_memory_tracker",
    "detach_oom_observer",
    "empty_cache",
    "fix_pages",
    "from_dlpack",
    "get_allocator_backend",
    "get_allocator_settings",
    "get_per_process_memory_fraction",
    "host_empty",
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "ipc_collect",
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


# ---- Raw addresses ----


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: Stream | int | None = None) -> int:
    """Allocates device memory, and returns its address. Free it with caching_allocator_delete().

    This is for programs that work with addresses. A Buffer (see buffer()) frees its memory automatically.

    Args:
        size: the number of bytes.
        device: the device; None for the current one.
        stream: the stream that uses the memory, a Stream or the address of a CUstream; None for the current one.
    """
    if stream is not None and not isinstance(stream, int) and not hasattr(stream, "cuda_stream"):
        raise TypeError(
            "Invalid type for stream argument, must be `weir.Stream` or `int` representing a pointer to a existing "
            "stream"
        )
    return _weir._cuda_cudaCachingAllocator_raw_alloc(size, stream, device)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees memory that caching_allocator_alloc() returned."""
    _weir._cuda_cudaCachingAllocator_raw_delete(mem_ptr)


def fix_pages(memory: Buffer | int) -> None:
    """Fixes the pages of allocated memory in place until they are returned to the driver.

    With moving_pages:True, free pages are mapped where they are needed. Pages that are registered with NCCL or a
    network card must not move, even after the memory is freed. Has no effect on memory that never moves.

    Args:
        memory: a Buffer on a device, or an address that caching_allocator_alloc() returned.
    """
    _weir._fix_pages(memory)


def caching_allocator_enable(value: bool = True) -> None:
    """Disables or enables caching. While it is disabled, every allocation and every free calls the driver."""
    if is_initialized():
        _weir._cuda_cudaCachingAllocator_enable(value)


class caching_allocator_disabled:
    """A context manager that disables caching: within its block every allocation and every free calls the driver."""

    def __enter__(self) -> None:
        self._was_caching = _weir._is_caching()
        caching_allocator_enable(False)

    def __exit__(self, *exc_info: object) -> None:
        caching_allocator_enable(self._was_caching)


# ---- Limits and settings ----


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the process to a fraction (0 to 1) of a device's memory. A request beyond it raises OutOfMemoryError."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _weir._cuda_setMemoryFraction(fraction, device)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """Returns the fraction (0 to 1) of a device's memory that the process may use."""
    return _weir._cuda_getMemoryFraction(device)


def set_per_process_memory_limit(nbytes: int | None, device: DeviceLike = None) -> None:
    """Limits the process to a number of bytes of a device's memory; None removes the limit."""
    _weir._set_memory_limit(nbytes, device)


def get_allocator_backend() -> str:
    """Returns the allocator's back end: "native", "cudaMallocAsync" or "pluggable"."""
    return _weir._cuda_getAllocatorBackend()


def get_allocator_settings() -> str:
    """Returns the settings that differ from their defaults, such as "expandable_segments:True"."""
    return _weir._allocator_settings()


class _InvalidSettings(ValueError, RuntimeError):
    """Settings that are invalid. PyTorch 2.4 raises RuntimeError for them, and 2.11 ValueError."""


def _set_allocator_settings(env: str) -> None:
    """Changes settings, such as "max_split_size_mb:200,expandable_segments:True". Raises ValueError if any is invalid.

    As in PyTorch 2.11, max_split_size_mb, max_non_split_rounding_mb, garbage_collection_threshold and
    roundup_power2_divisions have their defaults again unless `env` names them. All others keep their values.
    """
    try:
        _weir._cuda_cudaCachingAllocator_set_allocator_settings(env)
    except ValueError as error:
        raise _InvalidSettings(*error.args) from None


def empty_cache() -> None:
    """Releases cached memory to the driver, so that other programs can use it."""
    _weir._cuda_emptyCache()


# ---- Statistics ----


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Returns the statistics of a device by key, such as "allocated_bytes.all.current"; empty before Weir has started.

    Most keys have the form "{stat}.{pool}.{metric}":

    stat:   "allocation" (requests), "segment" (segments obtained from the driver), "active" (blocks that are
            allocated, or freed but still in use by a stream), "inactive_split" (free parts of segments in use), and
            "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes" (before
            rounding)
    pool:   "all", "small_pool", "large_pool"
    metric: "current", "peak", "allocated" and "freed" (totals since the start)

    "oversize_allocations.{metric}" and "oversize_segments.{metric}" cover blocks that max_split_size keeps from being
    split. "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free" and
    "num_oom_rejections" count events. "max_split_size" is a setting, -1 if there is no limit.
    "reserved_bytes_by_private_pools.0_1.{pool}.{metric}" is about the pool with the id (0, 1).

    "moving.pages_made", "moving.pages_moved", "moving.moved_bytes", "moving.pages_returned" (used again at an old
    address, without a driver call), "moving.aliases" (old mappings), "moving.aliases_peak" and
    "moving.aliases_unmapped" are about moving pages. "moving.unmovable_{reason}_bytes" is free memory that could not
    move when pages were last made; the reason is "partial", "fixed", "busy" or "pool". PyTorch does not have these.

    "ipc.references" counts the Buffers that other processes hold or have yet to receive. "ipc.limbo_blocks",
    "ipc.limbo_bytes" and "ipc.limbo_bytes_peak" are about memory that was freed here while others use it; it is active,
    and not allocated. "ipc.lost_references" counts those that ended because a process had ended, or a message expired.
    """
    return _weir._memory_stats_flat(device)


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """Returns the statistics of memory_stats() as nested dicts. The keys of private pools are ids such as (0, 1)."""
    return _weir._cuda_memoryStats(device)


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Resets the "allocated" and "freed" totals and the event counts of a device to 0."""
    _weir._cuda_resetAccumulatedMemoryStats(device)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Resets the peaks of a device to the current values."""
    _weir._cuda_resetPeakMemoryStats(device)


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """Deprecated: use reset_peak_memory_stats(), which resets all peaks."""
    warnings.warn(
        "weir.reset_max_memory_allocated now calls weir.reset_peak_memory_stats, which resets /all/ peak memory stats.",
        FutureWarning,
        stacklevel=2,
    )
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Deprecated: use reset_peak_memory_stats(), which resets all peaks."""
    warnings.warn(
        "weir.reset_max_memory_cached now calls weir.reset_peak_memory_stats, which resets /all/ peak memory stats.",
        FutureWarning,
        stacklevel=2,
    )
    reset_peak_memory_stats(device)


def _stat(device: DeviceLike, name: str) -> int:
    return _weir._memory_stat(device, name)


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the allocated bytes of a device."""
    return _stat(device, "allocated_bytes.all.current")


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the peak of memory_allocated() since the start or the last reset_peak_memory_stats()."""
    return _stat(device, "allocated_bytes.all.peak")


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes of a device that are held from the driver, allocated or cached."""
    return _stat(device, "reserved_bytes.all.current")


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the peak of memory_reserved() since the start or the last reset_peak_memory_stats()."""
    return _stat(device, "reserved_bytes.all.peak")


def memory_cached(device: DeviceLike = None) -> int:
    """Deprecated: use memory_reserved()."""
    warnings.warn("`weir.memory_cached` has been renamed to `weir.memory_reserved`", FutureWarning, stacklevel=2)
    return memory_reserved(device)


def max_memory_cached(device: DeviceLike = None) -> int:
    """Deprecated: use max_memory_reserved()."""
    warnings.warn(
        "`weir.max_memory_cached` has been renamed to `weir.max_memory_reserved`", FutureWarning, stacklevel=2
    )
    return max_memory_reserved(device)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns the statistics of a device as a table; if abbreviated, without the rows of the small and large pools."""
    return _weir._memory_summary(device, abbreviated)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the free and the total memory of a device in bytes. All processes share the free memory."""
    return _weir._mem_get_info(device)


def list_gpu_processes(device: DeviceLike = None) -> str:
    """Lists the processes that use memory of a device, as text. Only this process can use a software device."""
    index = _index(device)
    text = _weir._gpu_processes(index)
    if text is not None:
        return text
    if _weir._driver_name() == "soft":
        import os

        free, total = mem_get_info(index)
        used = (total - free) / (1024 * 1024)
        return f"GPU:{index} (software device)\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"
    return "NVIDIA's management library (NVML) is not available, or does not list the device"


# ---- Pinned host memory, shared memory ----


def host_memory_stats() -> dict[str, int]:
    """Returns the statistics of pinned memory by key, such as "allocated_bytes.current"; empty before Weir has started.

    "allocations" and "allocated_bytes" cover all blocks held from the driver; "active_requests" and "active_bytes"
    those that are allocated, or freed but still in use by a stream. Each has "current", "peak", "allocated" and
    "freed". "num_host_alloc" and "num_host_free" count driver calls. "host_alloc_time" and "host_free_time" are their
    durations in microseconds: "total", "max", "min", "count", "avg". Sizes are rounded up to powers of two.
    """
    flat: dict[str, Any] = {}
    for name, value in host_memory_stats_as_nested_dict().items():
        if isinstance(value, dict):
            flat.update((f"{name}.{key}", number) for key, number in value.items())
        else:
            flat[name] = value
    return dict(sorted(flat.items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns the statistics of host_memory_stats() as nested dicts."""
    return _weir._cuda_hostMemoryStats()


def reset_accumulated_host_memory_stats() -> None:
    """Resets the totals and the durations of pinned memory to 0."""
    _weir._cuda_resetAccumulatedHostMemoryStats()


def reset_peak_host_memory_stats() -> None:
    """Resets the peaks of pinned memory to the current values."""
    _weir._cuda_resetPeakHostMemoryStats()


def host_empty_cache() -> None:
    """Releases cached pinned memory to the driver."""
    _weir._host_emptyCache()


def _host_allocator() -> int:
    """Returns the address of the weir_host_allocator from which pinned memory comes."""
    return _weir._cuda_cudaHostAllocator()


# The lock of _free_mutex().
_free_lock = allocate_lock()


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held it at the time of the fork.
    global _free_lock
    _free_lock = allocate_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class _free_mutex:
    """A context manager for work that must not run on two threads at once, such as the calls of a collective."""

    def __enter__(self) -> None:
        _free_lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _free_lock.release()


def open_shared(handle: tuple[int, bytes, int, int]) -> Buffer:
    """Opens memory that another process shared, and returns a Buffer. Takes the result of Buffer.share().

    The other process must keep the memory while it is used here. The work of the two processes is not ordered: use
    Event.ipc_handle(), or synchronize.
    """
    device, name, nbytes, offset = handle
    return _weir._open_shared(device, name, nbytes, offset)


def ipc_collect() -> None:
    """Frees memory that was sent to other processes and that they need no longer.

    A Buffer that is passed to another process by multiprocessing (a Queue, a Pipe, the arguments of a Process) is
    memory of both. If it is destroyed here first, its memory is not reused until the other process has destroyed its
    Buffer, or has ended. This call looks for such memory; so does every request for which there is no cached memory.
    """
    _weir._cuda_ipc_collect()


def _rebuild_buffer(device: int, name: bytes, nbytes: int, offset: int, readonly: bool) -> Buffer:
    return _weir._receive_buffer(device, name, nbytes, offset, readonly)


def _reduce_buffer(buffer: Buffer) -> tuple[Any, ...]:
    """Buffer.__reduce_ex__: sends the memory if multiprocessing pickles.

    Any other pickle, and a copy, has no receiver.
    """
    if not _messages.is_sending():
        raise TypeError("cannot pickle or copy a weir.Buffer: only multiprocessing can send it to another process")
    message = _weir._send_buffer(buffer)
    _messages.sent(message[1])
    return _rebuild_buffer, (*message, buffer.readonly)


# ---- Snapshots and history ----


def memory_snapshot(mempool_id: PoolId | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Returns the segments of all devices, or of one private pool, with their blocks.

    Args:
        mempool_id: the id of a MemPool; None for all segments.
        include_traces: False skips the recorded history, which is faster.
    """
    first, second = (0, 0) if mempool_id is None else mempool_id
    segments: list[dict[str, Any]] = _weir._cuda_memorySnapshot((first, second, include_traces))["segments"]
    return segments


def _record_memory_history(enabled: Literal["state", "all"] | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    """Starts, changes or stops the recording of the allocation history, which _snapshot() returns.

    Args:
        enabled: None stops recording; "state" records the stacks of allocated blocks; "all" also history entries.
        context: the stacks to record: None, "state" (of allocated blocks), "alloc" (also of history entries, where a
            free has the stack of its allocation), or "all" (where a free has its own).
        stacks: "python", or "all" for Python and native frames.
        max_entries: the number of history entries to keep per device; the oldest are dropped first.
        device: ignored; all devices are recorded.
        clear_history: discards existing history entries.
        compile_context: ignored; see _compile_context.
        global_record_annotations: makes memory_annotation() record the start and the end of its block.
        skip_actions: actions that are not recorded, such as ["free_requested"].

    If `enabled` is a bool, the other arguments are those of the older interface: record_context=True,
    trace_alloc_max_entries=1, trace_alloc_record_context=False, device=None, record_context_cpp=False, followed by the
    last four of the above.
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
        raise NotImplementedError("Weir has no FX graphs: augment_with_fx_traces must be False")


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Returns the state of all memory and the recorded history, in the format of PyTorch's snapshots.

    The dict has the keys "segments" (each with "blocks", which have "frames"), "device_traces" (a list of history
    entries for each device), "allocator_settings" and "external_annotations".
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

    The file is written atomically: it appears complete or not at all.
    """
    _refuse_fx(augment_with_fx_traces)
    _weir._dump_snapshot(filename, as_json)


def _save_segment_usage(
    filename: str | os.PathLike[str] = "output.svg", snapshot: dict[str, Any] | None = None
) -> None:
    """Draws the map of segments at the end of a snapshot: blocks by stack, and holes.

    Args:
        filename: the SVG file to write. It appears complete or not at all.
        snapshot: as _snapshot() returns it; None to take one now.
    """
    from weir import _memory_viz

    _memory_viz.save(_memory_viz.plot(_snapshot() if snapshot is None else snapshot, "segments", at="end"), filename)


def _save_memory_usage(
    filename: str | os.PathLike[str] = "output.svg", snapshot: dict[str, Any] | None = None
) -> None:
    """Draws memory over time, from the history of a snapshot; without a history, the map of its segments.

    Args:
        filename: the SVG file to write. It appears complete or not at all.
        snapshot: as _snapshot() returns it; None to take one now.
    """
    from weir import _memory_viz

    data = _snapshot() if snapshot is None else snapshot
    if _memory_viz._has_history(data):
        picture = _memory_viz.plot(data, "memory")
    else:
        picture = _memory_viz.plot(data, "segments", at="end", title="Memory in use")
    _memory_viz.save(picture, filename)


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """Returns the frames that allocated the memory at an address, innermost first; None if they were not recorded."""
    stack = _weir._stack_of(data_ptr)
    return _weir._resolve_stack(stack, True, True) if stack else None


def _set_memory_metadata(metadata: str) -> None:
    """Sets a text that later history entries of this thread have as "user_metadata"; "" for none."""
    _weir._cuda_setMemoryMetadata(metadata)


def _get_memory_metadata() -> str:
    """Returns the text that _set_memory_metadata() set last in this thread."""
    return _weir._cuda_getMemoryMetadata()


def _memory_metadata_supported() -> bool:
    """Whether history entries have the text of _set_memory_metadata(): with every back end of Weir."""
    return True


def _annotate_tensor(tensor: Any, metadata: str) -> None:
    """Adds an entry with a text to the history, about the memory of a Buffer or an Array that is on a device.

    Its "action" is "annotate", its "addr" and "size" are those of the allocation, also for a view, its "user_metadata"
    is the text, and it has the stack of this call. This has no effect while no history is recorded.
    """
    is_buffer = isinstance(tensor, _weir.Buffer)
    if not is_buffer and not hasattr(tensor, "untyped_storage"):
        raise TypeError(f"expected a Buffer or an Array, got {type(tensor).__name__}")
    if tensor.is_host if is_buffer else not tensor.is_cuda:
        raise ValueError(f"expected a CUDA tensor, got device {'cpu' if is_buffer else tensor.device}")
    _weir._cuda_annotateMemory(tensor if is_buffer else tensor.untyped_storage().data_ptr(), metadata)


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"expected a name as a str, got {type(name).__name__}")
    return name


class _Scope:
    """A context manager that sets a name of the calling thread, and restores the previous one at the end."""

    _enter: Callable[[str], int]
    _leave: Callable[[int], None]

    def __init__(self, name: str) -> None:
        self.name = _checked_name(name)
        self._before: list[int] = []

    def __enter__(self) -> Self:
        self._before.append(self._enter(self.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self._before.pop())


class memory_phase(_Scope):
    """A context manager that names the phase of the calling thread, such as "forward". Phases can be nested.

    History entries of the thread within the block have the name.
    """

    _enter = staticmethod(_weir._enter_phase)
    _leave = staticmethod(_weir._leave_phase)


class _compile_context(_Scope):
    """Like memory_phase, for the name of what is being compiled: "compile_context" in snapshots."""

    _enter = staticmethod(_weir._enter_compile_context)
    _leave = staticmethod(_weir._leave_compile_context)


class memory_annotation:
    """A context manager that adds the start and the end of its block to a snapshot's "external_annotations".

    This has no effect unless _record_memory_history(global_record_annotations=True) was called.
    """

    def __init__(self, name: str, **metadata: str) -> None:
        self._pairs = {"name": _checked_name(name), **metadata}

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
    """Registers a callback: tracker(action, device, address, bytes, stream, pool_id) for each action of the allocator.

    It is called whether or not the history is recorded, on the thread that causes the action, before that thread's call
    returns. The callback may allocate; its own actions are not reported. Its exceptions are printed and ignored.
    """
    _weir._attach_tracker(tracker)


def detach_memory_tracker(tracker: Callable[..., object]) -> None:
    """Removes a callback of attach_memory_tracker(). Raises ValueError if it is not attached."""
    _weir._detach_tracker(tracker)


def attach_oom_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Registers a callback: observer(device, bytes requested, bytes allowed, bytes free) before OutOfMemoryError."""
    _weir._cuda_attach_out_of_memory_observer(observer)


def detach_oom_observer(observer: Callable[..., object]) -> None:
    """Removes a callback of attach_oom_observer(). Raises ValueError if it is not attached."""
    _weir._detach_out_of_memory_observer(observer)


# ---- Pluggable allocators ----


class _CUDAAllocator:
    """An allocator for change_current_allocator() and MemPool."""

    def __init__(self, allocator: _weir._cuda_CUDAAllocator) -> None:
        self._allocator = allocator

    def allocator(self) -> _weir._cuda_CUDAAllocator:
        return self._allocator


class CUDAPluggableAllocator(_CUDAAllocator):
    """An allocator that calls functions of a shared library.

    Statistics, history and snapshots work as with Weir's own allocator. Optional functions are set on allocator(), by
    address: set_init_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn, set_record_stream_fn,
    set_begin_allocate_to_pool, set_end_allocate_to_pool_fn and set_release_pool.

    Args:
        path_to_so_file: the path of the shared library.
        alloc_fn_name: the name of void *alloc(size_t bytes, int device, CUstream stream), which returns NULL if it is
            out of memory.
        free_fn_name: the name of void free(void *pointer, size_t bytes, int device, CUstream stream).
    """

    def __init__(self, path_to_so_file: str | os.PathLike[str], alloc_fn_name: str, free_fn_name: str) -> None:
        import ctypes

        library = ctypes.CDLL(path_to_so_file if path_to_so_file is None else str(path_to_so_file))
        alloc = ctypes.cast(getattr(library, alloc_fn_name), ctypes.c_void_p).value
        free = ctypes.cast(getattr(library, free_fn_name), ctypes.c_void_p).value
        super().__init__(_weir._cuda_customAllocator(alloc or 0, free or 0))
        self._library = library


def change_current_allocator(allocator: _CUDAAllocator) -> None:
    """Sets the allocator of the process. Raises RuntimeError if Weir has already started."""
    _weir._cuda_changeCurrentAllocator(allocator.allocator())


def _get_current_allocator() -> _CUDAAllocator:
    """Returns the allocator of the process."""
    return _CUDAAllocator(_weir._cuda_getAllocator())


# ---- Pools ----


class MemPool(_weir._MemPool):
    """A private pool of memory, on the device that is current when the pool is created.

    Args:
        allocator: the source of its segments, such as CUDAPluggableAllocator(...).allocator(); None for the driver.
        use_on_oom: whether its free blocks may serve requests outside of the pool that would fail otherwise.
        no_split: whether each segment serves a single allocation.
        moving_pages: whether free pages move within the pool (the setting moving_pages). By default the pages of a
            pool stay, so its memory can be registered with NCCL or a network card. Pages that a graph was captured
            into never move.
    """

    def __new__(
        cls,
        allocator: _weir._cuda_CUDAAllocator | _CUDAAllocator | None = None,
        use_on_oom: bool = False,
        no_split: bool = False,
        *,
        moving_pages: bool = False,
    ) -> MemPool:
        if isinstance(allocator, _CUDAAllocator):
            allocator = allocator.allocator()
        return super().__new__(cls, allocator, True, use_on_oom, no_split, moving_pages)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Returns the segments of the pool, as memory_snapshot() does."""
        return memory_snapshot(self.id, include_traces)

    def __repr__(self) -> str:
        return f"<weir.MemPool {self.id} on device {self.device}>"


class use_mem_pool:
    """A context manager that makes the calling thread allocate from a pool. The innermost block takes precedence, also
    over a capture, and ends on the same thread.

    Args:
        pool: a MemPool.
        device: the device; None for the current one.
    """

    def __init__(self, pool: MemPool, device: DeviceLike = None) -> None:
        if not isinstance(pool, _weir._MemPool):
            raise TypeError(f"expected a weir.MemPool, got {type(pool).__name__}")
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
