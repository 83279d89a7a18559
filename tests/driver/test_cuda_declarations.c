/*
 * Compares the declarations of Weir with NVIDIA's headers, if they are installed: sizes, offsets, values, and the type
 * of every function. Nearly everything is checked at compile time.
 */
#include <stddef.h>
#include <stdio.h>

#include "weir/driver.h"

enum { WAIVED = 77 };

#if defined(__has_include)
#if __has_include(<cudaTypedefs.h>) && __has_include(<cudaProfilerTypedefs.h>)
/* Declares the old variants of functions too, under the names that the library exports. */
#define __CUDA_API_VERSION_INTERNAL
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>
#endif
#endif

#if !defined(CUDA_VERSION)
#define WAIVED_WHY "there is no cuda.h with its cudaTypedefs.h on the include path"
#elif CUDA_VERSION < 11040
#define WAIVED_WHY "cuda.h is older than CUDA 11.4, which has the first of the functions that we require"
#endif

#ifdef WAIVED_WHY

int main(void) {
  printf("waived: " WAIVED_WHY "\n");
  return WAIVED;
}

#else

#define SAME_TYPE(a, b) _Static_assert(__builtin_types_compatible_p(a, b), #a " is not " #b)
#define SAME_SHAPE(ours, theirs)                                                                                       \
  _Static_assert(sizeof(ours) == sizeof(theirs), "size of " #ours);                                                    \
  _Static_assert(_Alignof(ours) == _Alignof(theirs), "alignment of " #ours)
#define SAME_FIELD(ours, field, theirs, their_field)                                                                   \
  _Static_assert(offsetof(ours, field) == offsetof(theirs, their_field), "offset of " #ours "." #field);               \
  _Static_assert(sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->their_field), "size of " #ours "." #field)
#define SAME_VALUE(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)

/* ---- Types ---- */

SAME_TYPE(weir_cu_device, CUdevice);
SAME_TYPE(weir_cu_deviceptr, CUdeviceptr);
SAME_TYPE(weir_cu_mem_handle, CUmemGenericAllocationHandle);
SAME_TYPE(weir_cu_context, CUcontext);
SAME_TYPE(weir_cu_stream, CUstream);
SAME_TYPE(weir_cu_event, CUevent);
SAME_TYPE(weir_cu_graph, CUgraph);
SAME_TYPE(weir_cu_graph_exec, CUgraphExec);
SAME_TYPE(weir_cu_graph_node, CUgraphNode);
SAME_TYPE(weir_cu_mempool, CUmemoryPool);
SAME_TYPE(weir_cu_module, CUmodule);
SAME_TYPE(weir_cu_function, CUfunction);
SAME_TYPE(weir_cu_host_fn, CUhostFn);

SAME_SHAPE(weir_cu_uuid, CUuuid);
SAME_FIELD(weir_cu_uuid, bytes, CUuuid, bytes);

SAME_SHAPE(weir_cu_ipc_mem_handle, CUipcMemHandle);
SAME_FIELD(weir_cu_ipc_mem_handle, reserved, CUipcMemHandle, reserved);

SAME_SHAPE(weir_cu_ipc_event_handle, CUipcEventHandle);
SAME_FIELD(weir_cu_ipc_event_handle, reserved, CUipcEventHandle, reserved);

SAME_SHAPE(weir_cu_mem_location, CUmemLocation);
SAME_FIELD(weir_cu_mem_location, type, CUmemLocation, type);
SAME_FIELD(weir_cu_mem_location, id, CUmemLocation, id);

SAME_SHAPE(weir_cu_mem_prop, CUmemAllocationProp);
SAME_FIELD(weir_cu_mem_prop, type, CUmemAllocationProp, type);
SAME_FIELD(weir_cu_mem_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(weir_cu_mem_prop, location, CUmemAllocationProp, location);
SAME_FIELD(weir_cu_mem_prop, win32_metadata, CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(weir_cu_mem_prop, flags, CUmemAllocationProp, allocFlags);
SAME_FIELD(weir_cu_mem_prop, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_FIELD(weir_cu_mem_prop, flags.gpu_direct_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_FIELD(weir_cu_mem_prop, flags.usage, CUmemAllocationProp, allocFlags.usage);
SAME_FIELD(weir_cu_mem_prop, flags.reserved, CUmemAllocationProp, allocFlags.reserved);

SAME_SHAPE(weir_cu_mem_access, CUmemAccessDesc);
SAME_FIELD(weir_cu_mem_access, location, CUmemAccessDesc, location);
SAME_FIELD(weir_cu_mem_access, flags, CUmemAccessDesc, flags);

/* Later CUDA versions took max_size and usage out of the reserved bytes. */
SAME_SHAPE(weir_cu_mempool_props, CUmemPoolProps);
SAME_FIELD(weir_cu_mempool_props, type, CUmemPoolProps, allocType);
SAME_FIELD(weir_cu_mempool_props, handle_types, CUmemPoolProps, handleTypes);
SAME_FIELD(weir_cu_mempool_props, location, CUmemPoolProps, location);
SAME_FIELD(weir_cu_mempool_props, win32_attributes, CUmemPoolProps, win32SecurityAttributes);
#if CUDA_VERSION >= 12040
SAME_FIELD(weir_cu_mempool_props, max_size, CUmemPoolProps, maxSize);
#endif
#if CUDA_VERSION >= 13000
SAME_FIELD(weir_cu_mempool_props, usage, CUmemPoolProps, usage);
SAME_FIELD(weir_cu_mempool_props, reserved, CUmemPoolProps, reserved);
#endif

/* ---- Values ---- */

SAME_VALUE(WEIR_CU_STREAM_DEFAULT, CU_STREAM_DEFAULT);
SAME_VALUE(WEIR_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);

SAME_VALUE(WEIR_CU_EVENT_DEFAULT, CU_EVENT_DEFAULT);
SAME_VALUE(WEIR_CU_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
SAME_VALUE(WEIR_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(WEIR_CU_EVENT_INTERPROCESS, CU_EVENT_INTERPROCESS);

SAME_VALUE(WEIR_CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME_VALUE(WEIR_CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME_VALUE(WEIR_CU_MEMHOSTALLOC_WRITECOMBINED, CU_MEMHOSTALLOC_WRITECOMBINED);
SAME_VALUE(WEIR_CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME_VALUE(WEIR_CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_VALUE(WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

SAME_VALUE(WEIR_CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_VALUE(WEIR_CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(WEIR_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(WEIR_CU_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(WEIR_CU_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(WEIR_CU_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED);

SAME_VALUE(WEIR_CU_GRAPH_AUTO_FREE_ON_LAUNCH, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
SAME_VALUE(WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
SAME_VALUE(WEIR_CU_GRAPH_MEM_ATTR_USED_HIGH, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH);
SAME_VALUE(WEIR_CU_GRAPH_MEM_ATTR_RESERVED_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
SAME_VALUE(WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);

SAME_VALUE(WEIR_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(WEIR_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(WEIR_CU_HANDLE_NONE, 0);
SAME_VALUE(WEIR_CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(WEIR_CU_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME_VALUE(WEIR_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_VALUE(WEIR_CU_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(WEIR_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_VALUE(WEIR_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
SAME_VALUE(WEIR_CU_MEMPOOL_ATTR_USED_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH);

SAME_VALUE(WEIR_CU_POINTER_ATTR_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME_VALUE(WEIR_CU_POINTER_ATTR_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_VALUE(WEIR_CU_POINTER_ATTR_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME_VALUE(WEIR_CU_POINTER_ATTR_HOST_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER);
SAME_VALUE(WEIR_CU_POINTER_ATTR_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME_VALUE(WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(WEIR_CU_POINTER_ATTR_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_VALUE(WEIR_CU_POINTER_ATTR_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_VALUE(WEIR_CU_POINTER_ATTR_MAPPED, CU_POINTER_ATTRIBUTE_MAPPED);
SAME_VALUE(WEIR_CU_MEMORY_TYPE_HOST, CU_MEMORYTYPE_HOST);
SAME_VALUE(WEIR_CU_MEMORY_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE);

SAME_VALUE(WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_VALUE(WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
SAME_VALUE(WEIR_CU_ATTR_WARP_SIZE, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME_VALUE(WEIR_CU_ATTR_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME_VALUE(WEIR_CU_ATTR_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(WEIR_CU_ATTR_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME_VALUE(WEIR_CU_ATTR_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_VALUE(WEIR_CU_ATTR_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_VALUE(WEIR_CU_ATTR_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME_VALUE(WEIR_CU_ATTR_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME_VALUE(WEIR_CU_ATTR_PCI_DOMAIN_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_VALUE(WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME_VALUE(WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
SAME_VALUE(WEIR_CU_ATTR_MULTI_GPU_BOARD, CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD);
SAME_VALUE(WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_VALUE(WEIR_CU_ATTR_HOST_REGISTER_SUPPORTED, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
SAME_VALUE(WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_VALUE(WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME_VALUE(WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME_VALUE(WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
SAME_VALUE(WEIR_CU_FUNC_ATTR_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_VALUE(WEIR_CU_FUNC_ATTR_SHARED_SIZE, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME_VALUE(WEIR_CU_FUNC_ATTR_CONST_SIZE, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
SAME_VALUE(WEIR_CU_FUNC_ATTR_LOCAL_SIZE, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME_VALUE(WEIR_CU_FUNC_ATTR_NUM_REGS, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME_VALUE(WEIR_CU_FUNC_ATTR_PTX_VERSION, CU_FUNC_ATTRIBUTE_PTX_VERSION);
SAME_VALUE(WEIR_CU_FUNC_ATTR_BINARY_VERSION, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
SAME_VALUE(WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(WEIR_CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER);
SAME_VALUE(WEIR_CU_JIT_INFO_LOG_BUFFER_SIZE, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
SAME_VALUE(WEIR_CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER);
SAME_VALUE(WEIR_CU_JIT_ERROR_LOG_BUFFER_SIZE, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
#if CUDA_VERSION >= 12040
SAME_VALUE(WEIR_CU_HANDLE_FABRIC, CU_MEM_HANDLE_TYPE_FABRIC);
SAME_VALUE(WEIR_CU_ATTR_IPC_EVENT_SUPPORTED, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
SAME_VALUE(WEIR_CU_ATTR_HANDLE_FABRIC_SUPPORTED, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
#endif

/* Only success has no CUDA_ERROR_ prefix. */
#define CUDA_ERROR_SUCCESS CUDA_SUCCESS
#define X(code, name, text) SAME_VALUE(code, CUDA_ERROR_##name);
WEIR_CU_RESULT_MAP(X)
#undef X

/* ---- Functions ----
 *
 * The list of entries is expanded with CUDA's types instead of Weir's, and must yield CUDA's function types: that of
 * the given version (so `since` is right), and that of the exported name (so the symbol is right). */
#define weir_cu_result CUresult
#define weir_cu_uuid CUuuid
#define weir_cu_ipc_mem_handle CUipcMemHandle
#define weir_cu_ipc_event_handle CUipcEventHandle
#define weir_cu_mem_prop CUmemAllocationProp
#define weir_cu_mem_access CUmemAccessDesc
#define weir_cu_mempool_props CUmemPoolProps

/* The only entry that is not named after its function. */
#define PFN_cuGraphInstantiate_v11040 PFN_cuGraphInstantiateWithFlags_v11040

/* Weir has int where CUDA has an enum. These lists are compared with both: AS(theirs, ours). */
#define PARAMS_DeviceGetAttribute ~, (int *, AS(CUdevice_attribute, int), CUdevice)
#define PARAMS_PointerGetAttribute ~, (void *, AS(CUpointer_attribute, int), CUdeviceptr)
#define PARAMS_MemGetAllocationGranularity                                                                             \
  ~, (size_t *, const CUmemAllocationProp *, AS(CUmemAllocationGranularity_flags, int))
#define PARAMS_MemExportToShareableHandle                                                                              \
  ~, (void *, CUmemGenericAllocationHandle, AS(CUmemAllocationHandleType, int), unsigned long long)
#define PARAMS_MemImportFromShareableHandle                                                                            \
  ~, (CUmemGenericAllocationHandle *, void *, AS(CUmemAllocationHandleType, int))
#define PARAMS_MemPoolSetAttribute ~, (CUmemoryPool, AS(CUmemPool_attribute, int), void *)
#define PARAMS_MemPoolGetAttribute ~, (CUmemoryPool, AS(CUmemPool_attribute, int), void *)
#define PARAMS_StreamBeginCapture ~, (CUstream, AS(CUstreamCaptureMode, int))
#define PARAMS_StreamIsCapturing ~, (CUstream, AS(CUstreamCaptureStatus, int) *)
#define PARAMS_StreamGetCaptureInfo                                                                                    \
  ~, (CUstream, AS(CUstreamCaptureStatus, int) *, AS(cuuint64_t, unsigned long long) *, CUgraph *,                     \
      const CUgraphNode **, size_t *)
#define PARAMS_ThreadExchangeStreamCaptureMode ~, (AS(CUstreamCaptureMode, int) *)
#define PARAMS_DeviceGetGraphMemAttribute ~, (CUdevice, AS(CUgraphMem_attribute, int), void *)
#define PARAMS_ModuleLoadDataEx ~, (CUmodule *, const void *, unsigned, AS(CUjit_option, int) *, void **)
#define PARAMS_FuncGetAttribute ~, (int *, AS(CUfunction_attribute, int), CUfunction)
#define PARAMS_FuncSetAttribute ~, (CUfunction, AS(CUfunction_attribute, int), int)

/* The list PARAMS_name if it exists, else that of the entry. */
#define PARAMS(name, params) SECOND(PARAMS_##name, params, ~)
#define SECOND(...) SECOND_(__VA_ARGS__)
#define SECOND_(first, second, ...) second

#define SAME_FUNCTION(name, symbol, version, params)                                                                   \
  SAME_TYPE(CUresult(CUDAAPI *) params, PFN_cu##name##_v##version);                                                    \
  SAME_TYPE(__typeof__(&symbol), PFN_cu##name##_v##version)

#define AS(theirs, ours) theirs
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  SAME_FUNCTION(name, symbol, since, PARAMS(name, params));
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) SAME_FUNCTION(name, symbol, since, (void));
#include "weir/driver_entries.h"
#undef AS

#define AS(theirs, ours) ours
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  SAME_TYPE(CUresult(*) PARAMS(name, params), CUresult(*) params);
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)
#include "weir/driver_entries.h"
#undef AS

SAME_SHAPE(unsigned long long, cuuint64_t);
SAME_SHAPE(int, CUresult);
SAME_SHAPE(int, CUdevice_attribute);
SAME_SHAPE(int, CUpointer_attribute);
SAME_SHAPE(int, CUmemAllocationGranularity_flags);
SAME_SHAPE(int, CUmemAllocationHandleType);
SAME_SHAPE(int, CUmemPool_attribute);
SAME_SHAPE(int, CUstreamCaptureMode);
SAME_SHAPE(int, CUstreamCaptureStatus);
SAME_SHAPE(int, CUgraphMem_attribute);
SAME_SHAPE(int, CUjit_option);
SAME_SHAPE(int, CUfunction_attribute);

int main(void) {
  /* Pointers are not constant expressions. */
  if (WEIR_CU_STREAM_LEGACY != CU_STREAM_LEGACY || WEIR_CU_STREAM_PER_THREAD != CU_STREAM_PER_THREAD) {
    printf("the default streams are %p and %p, not %p and %p\n", (void *)CU_STREAM_LEGACY, (void *)CU_STREAM_PER_THREAD,
           (void *)WEIR_CU_STREAM_LEGACY, (void *)WEIR_CU_STREAM_PER_THREAD);
    return 1;
  }
  printf("%d functions are declared as in cuda.h of CUDA %d.%d\n", (int)WEIR_CALL_COUNT, CUDA_VERSION / 1000,
         CUDA_VERSION % 1000 / 10);
  return 0;
}

#endif
