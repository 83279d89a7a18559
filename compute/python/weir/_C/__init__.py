"""The functions of torch._C for CUDA, under their names there.

Programs written for torch.cuda sometimes call them directly. The package itself uses `weir._weir`.
"""

from __future__ import annotations

import functools

from weir import _lazy, _weir, memory
from weir.compute import _compute
from weir import get_arch_list
from weir.compute._settings import _set_allow_tf32 as _set_cublas_allow_tf32
from weir.nn import functional as _functional
from weir.compute._settings import set_float32_matmul_precision as _set_float32_matmul_precision
from weir._weir import *
from weir._weir import (
    _cuda_attach_out_of_memory_observer,
    _cuda_beginAllocateCurrentStreamToPool,
    _cuda_beginAllocateCurrentThreadToPool,
    _cuda_beginAllocateToPool,
    _cuda_changeCurrentAllocator,
    _cuda_checkPoolLiveAllocations,
    _cuda_CUDAAllocator,
    _cuda_CUDAAllocator_AllocatorState,
    _cuda_cudaCachingAllocator_enable,
    _cuda_cudaCachingAllocator_raw_delete,
    _cuda_cudaCachingAllocator_set_allocator_settings,
    _cuda_cudaHostAllocator,
    _cuda_customAllocator,
    _cuda_emptyCache,
    _cuda_endAllocateCurrentStreamToPool,
    _cuda_endAllocateToPool,
    _cuda_getAllocator,
    _cuda_getAllocatorBackend,
    _cuda_getCheckpointState,
    _cuda_getCompiledVersion,
    _cuda_getMemoryFraction,
    _cuda_getMemoryMetadata,
    _cuda_hostMemoryStats,
    _cuda_isHistoryEnabled,
    _cuda_record_memory_history,
    _cuda_record_memory_history_legacy,
    _cuda_releasePool,
    _cuda_resetAccumulatedHostMemoryStats,
    _cuda_resetPeakHostMemoryStats,
    _cuda_setMemoryMetadata,
    _CudaDeviceProperties,
    _current_device as _cuda_getDevice,
    _CUuuid,
    _device_count as _cuda_getDeviceCount,
    _get_device_properties,
    _get_sync_debug_mode as _cuda_get_sync_debug_mode,
    _host_emptyCache,
    _is_current_stream_capturing as _cuda_isCurrentStreamCapturing,
    _is_in_bad_fork as _cuda_isInBadFork,
)
from weir.compute._compute import (
    _cuda_clearCublasWorkspaces,
    _cuda_getCurrentBlasHandle,
    _cuda_record_untuned_enable,
    _cuda_record_untuned_is_enabled,
    _cuda_tunableop_enable,
    _cuda_tunableop_get_filename,
    _cuda_tunableop_get_max_tuning_duration,
    _cuda_tunableop_get_max_tuning_iterations,
    _cuda_tunableop_get_results,
    _cuda_tunableop_get_rotating_buffer_size,
    _cuda_tunableop_get_validators,
    _cuda_tunableop_is_enabled,
    _cuda_tunableop_read_file,
    _cuda_tunableop_set_filename,
    _cuda_tunableop_set_max_tuning_duration,
    _cuda_tunableop_set_max_tuning_iterations,
    _cuda_tunableop_set_numerical_check_tolerances,
    _cuda_tunableop_set_rotating_buffer_size,
    _cuda_tunableop_tuning_enable,
    _cuda_tunableop_tuning_is_enabled,
    _cuda_tunableop_write_file,
    _cuda_tunableop_write_file_on_exit,
    _get_cublas_allow_fp16_accumulation,
    _get_cublas_allow_tf32,
    _get_deterministic_algorithms,
    _get_deterministic_algorithms_warn_only,
    _get_float32_matmul_precision,
    _set_cublas_allow_bf16_reduced_precision_reduction,
    _set_cublas_allow_fp16_accumulation,
    _set_cublas_allow_fp16_reduced_precision_reduction,
    _set_deterministic_algorithms,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from weir.compute._storage import UntypedStorage

_CUDAPluggableAllocator = _cuda_CUDAAllocator
_has_cuda: bool = True
_has_magma: bool = False
_has_cudnn: bool = False


class _nn:
    """torch._C._nn: functions of torch.nn.functional, with numbers for the reduction."""

    binary_cross_entropy = staticmethod(_functional._cross_entropy)


# ---- Checks of arguments, with torch._C's texts ----


def _need_ints(what: str, *values: object) -> None:
    for value in values:
        if isinstance(value, (bool, _compute._Array)) or not hasattr(value, "__index__"):
            raise RuntimeError(f"invalid argument to {what}")


def _need_count(name: str, args: tuple[object, ...], expected: str) -> None:
    if len(args) != expected.count(",") + 1:
        given = ", ".join(type(value).__name__ for value in args)
        raise TypeError(
            f"{name} received an invalid combination of arguments - got ({given}), but expected ({expected})"
        )


def _of_device(function: Any, what: str) -> Any:
    """The function of one int, a device."""

    @functools.wraps(function)
    def call(device: int, /) -> Any:
        _need_ints(what, device)
        return function(device)

    return call


_cuda_setDevice = _of_device(_weir._set_device, "setDevice")
_cuda_exchangeDevice = _of_device(_weir._exchange_device, "exchangeDevice")
_cuda_maybeExchangeDevice = _of_device(_weir._maybe_exchange_device, "exchangeDevice")
_cuda_hasPrimaryContext = _of_device(_weir._has_primary_context, "has_primary_context")
_cuda_memoryStats = _of_device(_weir._cuda_memoryStats, "memory_allocated")
_cuda_resetAccumulatedMemoryStats = _of_device(
    _weir._cuda_resetAccumulatedMemoryStats, "reset_accumulated_memory_stats"
)
_cuda_resetPeakMemoryStats = _of_device(_weir._cuda_resetPeakMemoryStats, "reset_peak_memory_stats")


def _cuda_canDeviceAccessPeer(*args: int) -> bool:
    """Whether a device, the first argument, can access memory of another."""
    _need_count("can_device_peer_access", args, "int device, int peer_device")
    _need_ints("canDeviceAccessPeer", *args)
    return _weir._can_access_peer(*args)


def _cuda_cudaCachingAllocator_raw_alloc(*args: Any) -> int:
    """Allocates memory: its size, and the stream, as a number or an object."""
    _need_count("caching_allocator_alloc", args, "ssize_t size, intptr_t stream")
    return _weir._cuda_cudaCachingAllocator_raw_alloc(*args)


def _cuda_setMemoryFraction(*args: Any) -> None:
    """Limits the memory of a device, the second argument, to a fraction of it, the first."""
    _need_count("set_memory_fraction", args, "double fraction, int device")
    _weir._cuda_setMemoryFraction(*args)


def _cuda_cudaCachingAllocator_is_enabled() -> bool:
    """Whether freed memory is cached."""
    return _weir._is_caching()


def _cuda_allocationTraceback(data_ptr: int, /) -> list[dict[str, Any]] | None:
    """See weir.memory._allocation_traceback()."""
    return memory._allocation_traceback(data_ptr)


def _cuda_set_sync_debug_mode(debug_mode: int, /) -> None:
    """0: synchronizing calls are not reported, 1: they warn, 2: they are errors."""
    _need_ints("set_sync_debug_mode", debug_mode)
    if not 0 <= debug_mode <= 2:
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    _weir._set_sync_debug_mode(debug_mode)


# ---- Devices and streams ----


def _cuda_init() -> None:
    """Starts Weir."""
    _lazy._lazy_init()


def _cuda_getArchFlags() -> str | None:
    """Returns the architectures of Weir's device code, separated by spaces."""
    return " ".join(get_arch_list()) or None


def _triple(stream: _weir.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _cuda_getCurrentStream(device_index: int, /) -> tuple[int, int, int]:
    """Returns stream_id, device_index and device_type of a device's current stream."""
    _need_ints("getCurrentStream", device_index)
    return _triple(_weir._current_stream(device_index))


def _cuda_getCurrentRawStream(device_index: int, /) -> int:
    """Returns the CUstream of a device's current stream."""
    _need_ints("getCurrentStream", device_index)
    return _weir._current_stream(device_index).cuda_stream


def _cuda_getDefaultStream(device_index: int, /) -> tuple[int, int, int]:
    """Returns stream_id, device_index and device_type of a device's default stream."""
    _need_ints("getDefaultStream", device_index)
    return _triple(_weir._default_stream(device_index))


def _cuda_setStream(stream_id: int, device_index: int, device_type: int) -> None:
    """Makes the stream with these attributes of a Stream current."""
    _weir._set_stream(_weir.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def _cuda_synchronize() -> None:
    """Waits for all work on the current device."""
    _weir._synchronize(None)


def _cuda_ipc_collect() -> None:
    """See weir.ipc_collect()."""
    memory.ipc_collect()


def _cuda_sleep(cycles: int, /) -> None:
    """Keeps the current stream busy for a number of cycles of the device clock."""
    if isinstance(cycles, bool) or not isinstance(cycles, int):
        raise RuntimeError("torch.cuda._sleep(): expected 'int'")
    _weir._current_stream(None)._spin(cycles)


def _cuda_lock_mutex() -> None:
    """Acquires the lock of weir.memory._free_mutex()."""
    memory._free_lock.acquire()


def _cuda_unlock_mutex() -> None:
    """Releases the lock of weir.memory._free_mutex()."""
    memory._free_lock.release()


def _tensors_data_ptrs_at_indices_equal(tensors: list[Any], data_ptrs: list[int], indices: Iterable[int], /) -> bool:
    """Whether the arrays with these indices are at the given addresses."""
    return all(tensors[index].data_ptr() == data_ptrs[index] for index in indices)


def _cuda_get_cudnn_benchmark_limit() -> int:
    """Returns a flag of weir.backends.cudnn, which is kept without effect."""
    from weir.backends import cudnn

    limit: int = cudnn._values["benchmark_limit"]
    return limit


def _cuda_set_cudnn_benchmark_limit(limit: int, /) -> None:
    """Sets a flag of weir.backends.cudnn, which is kept without effect."""
    from weir.backends import cudnn

    cudnn._set_limit(limit)


# ---- Arrays ----

_jitted: dict[tuple[str, bool, int, tuple[str, ...]], Any] = {}


def _cuda_jiterator_compile_and_launch_kernel(
    code_string: str,
    kernel_name: str,
    return_by_ref: bool,
    num_outputs: int,
    tensors: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    /,
) -> Any:
    """Calls an elementwise function of C++ source, which is compiled once for each combination of types.

    The function is the last one in the source: `kernel_name` is ignored. See weir.jiterator.
    """
    if not isinstance(tensors, tuple):
        raise RuntimeError(f"tensors argument is expected to be a tuple, but got {type(tensors).__name__}")
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, _compute._Array):
            raise RuntimeError(f"{index} of input tensors tuple is not a Tensor")
    kwargs = kwargs or {}
    key = code_string, return_by_ref, num_outputs, tuple(kwargs)
    function = _jitted.get(key)
    if function is None:
        from weir import jiterator

        function = _jitted[key] = jiterator._create(code_string, return_by_ref, num_outputs, kwargs)
    return function(*tensors, **kwargs)


def _get_cublas_allow_fp16_reduced_precision_reduction() -> bool:
    """Whether partial sums of float16 may be added in 16 bits."""
    return _compute._get_cublas_allow_fp16_reduced_precision_reduction()[0]


def _get_cublas_allow_bf16_reduced_precision_reduction() -> bool:
    """Whether partial sums of bfloat16 may be added in 16 bits."""
    return _compute._get_cublas_allow_bf16_reduced_precision_reduction()[0]


def _cuda_memorySnapshot(mempool_id: tuple[int, int] | None = None, /) -> dict[str, Any]:
    """Returns a snapshot as a dict: of all memory, or of one pool without its history."""
    return _weir._cuda_memorySnapshot(None if mempool_id is None else (*mempool_id, False))


def _storage_Use_Count(storage_impl_ptr: int, /) -> int:
    """Returns the number of references to the memory of a storage, which is given as its `_cdata`: those of arrays, and
    that of the storage itself."""
    return _compute._storage_at(storage_impl_ptr)._use_count()


def _owner(item: Any) -> Any:
    """The storage with an address, or the Buffer itself."""
    return _compute._storage_at(item) if isinstance(item, int) else item


def _has_Standard_Deleter(storage_impl_ptr: Any, /) -> bool:
    """Whether a storage, which is given as its `_cdata`, frees memory of a device. Or a Buffer."""
    owner = _owner(storage_impl_ptr)
    return bool(owner._is_owner() if isinstance(owner, _compute._Storage) else _weir._has_Standard_Deleter(owner))


def _free_And_Remove_DeleterFn(storage_impl_ptr: Any, /) -> None:
    """Frees the memory of a storage, which is given as its `_cdata` and keeps the address. Or that of a Buffer."""
    owner = _owner(storage_impl_ptr)
    if not isinstance(owner, _compute._Storage):
        return _weir._free_And_Remove_DeleterFn(owner)
    if not owner._is_owner():
        raise TypeError("expected a storage that owns device memory")
    owner._set_owned(False)
    _weir._cuda_cudaCachingAllocator_raw_delete(owner.data_ptr())


def _cuda_setCheckpointPoolState(
    device: Any, state: Any, stale_storages_ptr: Iterable[Any], storages_to_add_deleters_to_ptr: Iterable[Any] = (), /
) -> None:
    """Restores a checkpoint of a pool. Stale storages, whose memory it frees, no longer own it, and the others own the
    memory that it allocates. Storages are given as their `_cdata`; Buffers are allowed too."""
    stale = [_owner(item) for item in stale_storages_ptr]
    new_owners = [_owner(item) for item in storages_to_add_deleters_to_ptr]
    _weir._cuda_setCheckpointPoolState(device, state, stale, new_owners)


def _construct_storage_from_data_pointer(data_ptr: int, device: Any, size: int, /) -> UntypedStorage:
    """Returns a storage over memory that is owned elsewhere."""
    array = _compute._array_borrow(None, data_ptr, device, False, _compute.uint8, (size,), None, False)
    return array.untyped_storage()


def _construct_CUDA_Tensor_From_Storage_And_Metadata(metadata: dict[str, Any], storage: _compute._Storage, /) -> Any:
    """Returns an array in a storage, with the dtype, size, stride and storage_offset of `metadata`."""
    return _compute._array_in_storage(
        storage, metadata["dtype"], metadata["storage_offset"], tuple(metadata["size"]), tuple(metadata["stride"])
    )


# ---- Collectives ----


def _nccl_version() -> int:
    """The version of NCCL: the major number times 2**32, the minor number times 2**16, and the patch."""
    from weir import nccl

    major, minor, patch = nccl.version()
    return major << 32 | minor << 16 | patch


def _nccl_version_suffix() -> bytes:
    """The rest of the version's text, which is empty."""
    return b""


def _nccl_unique_id() -> bytes:
    """An id for a communicator."""
    return _compute._nccl_unique_id()


def _nccl_init_rank(num_ranks: int, uid: bytes, rank: int, /) -> _compute._Communicator:
    """Creates one rank of a communicator."""
    return _compute._nccl_init_rank(num_ranks, uid, rank, 0.0)


def _nccl_all_reduce(inputs: Any, outputs: Any, op: int, streams: Any, comms: Any, /) -> None:
    """weir.nccl.all_reduce."""
    from weir import nccl

    nccl.all_reduce(inputs, outputs, op, streams, comms)


def _nccl_reduce(inputs: Any, output: Any, root: int, op: int, streams: Any, comms: Any, /) -> None:
    """weir.nccl.reduce."""
    from weir import nccl

    nccl.reduce(inputs, output, root, op, streams, comms)


def _nccl_broadcast(inputs: Any, root: int, streams: Any, comms: Any, /) -> None:
    """weir.nccl.broadcast."""
    from weir import nccl

    nccl.broadcast(inputs, root, streams, comms)


def _nccl_all_gather(inputs: Any, outputs: Any, streams: Any, comms: Any, /) -> None:
    """weir.nccl.all_gather."""
    from weir import nccl

    nccl.all_gather(inputs, outputs, streams, comms)


def _nccl_reduce_scatter(inputs: Any, outputs: Any, op: int, streams: Any, comms: Any, /) -> None:
    """weir.nccl.reduce_scatter."""
    from weir import nccl

    nccl.reduce_scatter(inputs, outputs, op, streams, comms)


def __getattr__(name: str) -> object:
    if name == "default_generators":  # set at the start
        import weir

        return weir.default_generators
    raise AttributeError(f"module 'weir._C' has no attribute {name!r}")
