/*
 * The entries of the driver table, with the contract of each. This file is a list that is included once for each use:
 * for the struct in driver.h, the symbols in cuda.c, the wrappers in fault.c, and the names of calls in messages. It
 * has no include guard on purpose.
 *
 *   WEIR_DRIVER_ENTRY(Name, Symbol, since, need, (parameters), (arguments))
 *   WEIR_DRIVER_ENTRY0(Name, Symbol, since, need)            for a call without arguments
 *
 * Name is CUDA's name without "cu". Symbol is the exported name in libcuda.so.1 whose signature this is, and `since`
 * the CUDA version (1000 * major + 10 * minor) that has it. REQUIRED entries are never NULL. An OPTIONAL entry is NULL
 * if the device does not support it: check before the call.
 *
 * Rules for every entry:
 * - It returns one of the WEIR_CU_* codes; outputs are written only on WEIR_CU_SUCCESS unless the entry says otherwise.
 * - It may be called from any thread. "The context" is the calling thread's current one (CtxSetCurrent); without one,
 *   entries that need it return INVALID_CONTEXT. Before Init every entry but DriverGetVersion, GetErrorName and
 *   GetErrorString returns NOT_INITIALIZED.
 * - For an invalid or destroyed handle the software device returns INVALID_HANDLE or INVALID_VALUE. NVIDIA's driver may
 *   crash instead: such a call is a bug in the caller in either case.
 * - A call marked [unsafe in capture] returns STREAM_CAPTURE_UNSUPPORTED, and invalidates the capture, if the thread's
 *   capture mode forbids it (ThreadExchangeStreamCaptureMode says when).
 * - Parameters have CUDA's types, so flags and ids of captures are unsigned long long; but what is size_t there is
 *   uint64_t here, since a table can be for a device with more memory than the host can address.
 * - Stream NULL, or WEIR_CU_STREAM_LEGACY, is the legacy default stream of the context; WEIR_CU_STREAM_PER_THREAD is
 *   the thread's own. A stream that was created without STREAM_NON_BLOCKING and the legacy stream wait for each other.
 * - A call that enqueues work returns before the work is done. An error of the work itself is returned by a later call.
 */

/* ---- The driver itself ---- */

/* Starts the driver; flags must be 0. May be called again. NO_DEVICE if the machine has none. */
WEIR_DRIVER_ENTRY(Init, cuInit, 2000, REQUIRED, (unsigned flags), (flags))

/* 1000 * major + 10 * minor of the newest CUDA that this driver supports. Allowed before Init. */
WEIR_DRIVER_ENTRY(DriverGetVersion, cuDriverGetVersion, 2020, REQUIRED, (int *version), (version))

/* The name of the constant, "CUDA_ERROR_OUT_OF_MEMORY". INVALID_VALUE, and *name NULL, for an unknown code. */
WEIR_DRIVER_ENTRY(GetErrorName, cuGetErrorName, 6000, REQUIRED, (weir_cu_result code, const char **name), (code, name))

/* The same as a sentence, "out of memory". */
WEIR_DRIVER_ENTRY(GetErrorString, cuGetErrorString, 6000, REQUIRED, (weir_cu_result code, const char **text),
                  (code, text))

/* ---- Devices ---- */

/* The number of devices. */
WEIR_DRIVER_ENTRY(DeviceGetCount, cuDeviceGetCount, 2000, REQUIRED, (int *count), (count))

/* The device of an ordinal in [0, count); INVALID_DEVICE otherwise. A device is a number and is not freed. */
WEIR_DRIVER_ENTRY(DeviceGet, cuDeviceGet, 2000, REQUIRED, (weir_cu_device * device, int ordinal), (device, ordinal))

/* A NUL-terminated name, cut to `size` bytes. */
WEIR_DRIVER_ENTRY(DeviceGetName, cuDeviceGetName, 2000, REQUIRED, (char *name, int size, weir_cu_device device),
                  (name, size, device))

/* 16 bytes that identify the device, or the MIG instance if it is one. */
WEIR_DRIVER_ENTRY(DeviceGetUuid, cuDeviceGetUuid_v2, 11040, REQUIRED, (weir_cu_uuid * uuid, weir_cu_device device),
                  (uuid, device))

/* "domain:bus:device.function" in hexadecimal; `size` should be at least 13. */
WEIR_DRIVER_ENTRY(DeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, REQUIRED, (char *id, int size, weir_cu_device device),
                  (id, size, device))

/* One of WEIR_CU_ATTR_*; INVALID_VALUE for an attribute that this driver does not have. */
WEIR_DRIVER_ENTRY(DeviceGetAttribute, cuDeviceGetAttribute, 2000, REQUIRED,
                  (int *value, int attribute, weir_cu_device device), (value, attribute, device))

/* The total memory of the device in bytes. Needs no context. */
WEIR_DRIVER_ENTRY(DeviceTotalMem, cuDeviceTotalMem_v2, 3020, REQUIRED, (uint64_t * bytes, weir_cu_device device),
                  (bytes, device))

/* *can is 1 if `device` can map memory of `peer`. It is 0 for a device and itself. */
WEIR_DRIVER_ENTRY(DeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, REQUIRED,
                  (int *can, weir_cu_device device, weir_cu_device peer), (can, device, peer))

/* ---- Contexts ---- */

/* The primary context of the device, created by the first retain. Each retain needs one release. Does not make it
 * current. */
WEIR_DRIVER_ENTRY(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, REQUIRED,
                  (weir_cu_context * context, weir_cu_device device), (context, device))

/* The last release destroys the context with everything in it. INVALID_CONTEXT if it is not retained. A thread whose
 * current context was destroyed gets CONTEXT_IS_DESTROYED. */
WEIR_DRIVER_ENTRY(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, REQUIRED, (weir_cu_device device),
                  (device))

/* *active is 1 while the context exists. Creates none. */
WEIR_DRIVER_ENTRY(DevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, REQUIRED,
                  (weir_cu_device device, unsigned *flags, int *active), (device, flags, active))

/* NULL if the thread has none. */
WEIR_DRIVER_ENTRY(CtxGetCurrent, cuCtxGetCurrent, 4000, REQUIRED, (weir_cu_context * context), (context))

/* NULL leaves the thread without a context. */
WEIR_DRIVER_ENTRY(CtxSetCurrent, cuCtxSetCurrent, 4000, REQUIRED, (weir_cu_context context), (context))

/* The device of the current context. */
WEIR_DRIVER_ENTRY(CtxGetDevice, cuCtxGetDevice, 2000, REQUIRED, (weir_cu_device * device), (device))

/* Waits for all work of the current context. STREAM_CAPTURE_UNSUPPORTED while a stream of it captures, in any mode. */
WEIR_DRIVER_ENTRY0(CtxSynchronize, cuCtxSynchronize, 2000, REQUIRED)

/* Lower numbers are more urgent: *least >= *greatest, such as 0 and -5. */
WEIR_DRIVER_ENTRY(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, REQUIRED, (int *least, int *greatest),
                  (least, greatest))

/* Lets the current context access memory of `peer`, in this direction only. PEER_ACCESS_ALREADY_ENABLED the second
 * time. */
WEIR_DRIVER_ENTRY(CtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, REQUIRED, (weir_cu_context peer, unsigned flags),
                  (peer, flags))

/* PEER_ACCESS_NOT_ENABLED if it was not enabled. */
WEIR_DRIVER_ENTRY(CtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, REQUIRED, (weir_cu_context peer), (peer))

/* ---- Plain memory ---- */

/* Free and total bytes of the current device; memory of other processes counts as used. */
WEIR_DRIVER_ENTRY(MemGetInfo, cuMemGetInfo_v2, 3020, REQUIRED, (uint64_t * free_bytes, uint64_t *total_bytes),
                  (free_bytes, total_bytes))

/* Memory of the current device, aligned for any type; 0 bytes is INVALID_VALUE. [unsafe in capture] */
WEIR_DRIVER_ENTRY(MemAlloc, cuMemAlloc_v2, 3020, REQUIRED, (weir_cu_deviceptr * pointer, uint64_t bytes),
                  (pointer, bytes))

/* Frees a pointer of MemAlloc or MemAllocAsync; any other is INVALID_VALUE, and 0 does nothing. Waits for the work
 * of the device first. [unsafe in capture] */
WEIR_DRIVER_ENTRY(MemFree, cuMemFree_v2, 3020, REQUIRED, (weir_cu_deviceptr pointer), (pointer))

/* The allocation or mapping that contains `pointer`; either output may be NULL. NOT_FOUND if there is none. */
WEIR_DRIVER_ENTRY(MemGetAddressRange, cuMemGetAddressRange_v2, 3020, REQUIRED,
                  (weir_cu_deviceptr * base, uint64_t *bytes, weir_cu_deviceptr pointer), (base, bytes, pointer))

/* ---- Host memory ---- */

/* Page-locked host memory that devices can access; flags are WEIR_CU_MEMHOSTALLOC_*. [unsafe in capture] */
WEIR_DRIVER_ENTRY(MemHostAlloc, cuMemHostAlloc, 2020, REQUIRED, (void **pointer, uint64_t bytes, unsigned flags),
                  (pointer, bytes, flags))

/* Frees a pointer of MemHostAlloc, or NULL. Waits for the work of the device first. [unsafe in capture] */
WEIR_DRIVER_ENTRY(MemFreeHost, cuMemFreeHost, 2000, REQUIRED, (void *pointer), (pointer))

/* Page-locks memory of the program. HOST_MEMORY_ALREADY_REGISTERED if any of it is already. [unsafe in capture] */
WEIR_DRIVER_ENTRY(MemHostRegister, cuMemHostRegister_v2, 6050, REQUIRED,
                  (void *pointer, uint64_t bytes, unsigned flags), (pointer, bytes, flags))

/* Takes the address that was registered: INVALID_VALUE for an address inside, HOST_MEMORY_NOT_REGISTERED elsewhere.
 * [unsafe in capture] */
WEIR_DRIVER_ENTRY(MemHostUnregister, cuMemHostUnregister, 4000, REQUIRED, (void *pointer), (pointer))

/* The device address of page-locked memory; flags must be 0. */
WEIR_DRIVER_ENTRY(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, REQUIRED,
                  (weir_cu_deviceptr * device_pointer, void *pointer, unsigned flags), (device_pointer, pointer, flags))

/* One of WEIR_CU_POINTER_ATTR_* of `pointer`; INVALID_VALUE for ordinary host memory, which the driver does not
 * know. */
WEIR_DRIVER_ENTRY(PointerGetAttribute, cuPointerGetAttribute, 4000, REQUIRED,
                  (void *value, int attribute, weir_cu_deviceptr pointer), (value, attribute, pointer))

/* ---- Virtual memory ---- */

/* Reserves address space without memory. Like all virtual memory calls it needs no context and does not wait for
 * work. bytes is a multiple of 2 MiB, alignment 0 or a power of two, `wish` may be 0, flags are 0. More may be
 * reserved than the device has memory. */
WEIR_DRIVER_ENTRY(MemAddressReserve, cuMemAddressReserve, 10020, OPTIONAL,
                  (weir_cu_deviceptr * pointer, uint64_t bytes, uint64_t alignment, weir_cu_deviceptr wish,
                   unsigned long long flags),
                  (pointer, bytes, alignment, wish, flags))

/* Frees a whole reservation, in which nothing may be mapped. */
WEIR_DRIVER_ENTRY(MemAddressFree, cuMemAddressFree, 10020, OPTIONAL, (weir_cu_deviceptr pointer, uint64_t bytes),
                  (pointer, bytes))

/* Creates physical memory without an address; bytes is a multiple of the granularity, flags 0. */
WEIR_DRIVER_ENTRY(MemCreate, cuMemCreate, 10020, OPTIONAL,
                  (weir_cu_mem_handle * handle, uint64_t bytes, const weir_cu_mem_prop *prop, unsigned long long flags),
                  (handle, bytes, prop, flags))

/* Releases the handle. The memory is freed when its last mapping is gone. */
WEIR_DRIVER_ENTRY(MemRelease, cuMemRelease, 10020, OPTIONAL, (weir_cu_mem_handle handle), (handle))

/* Maps a whole handle (offset 0, the size of the handle; NOT_SUPPORTED otherwise) into reserved, unmapped address
 * space. An access before MemSetAccess is a fault. */
WEIR_DRIVER_ENTRY(MemMap, cuMemMap, 10020, OPTIONAL,
                  (weir_cu_deviceptr pointer, uint64_t bytes, uint64_t offset, weir_cu_mem_handle handle,
                   unsigned long long flags),
                  (pointer, bytes, offset, handle, flags))

/* Removes all mappings in the range, if any. INVALID_VALUE, and no change, if the range contains a part of a
 * mapping. */
WEIR_DRIVER_ENTRY(MemUnmap, cuMemUnmap, 10020, OPTIONAL, (weir_cu_deviceptr pointer, uint64_t bytes), (pointer, bytes))

/* Sets the access to a range that consists of whole mappings without gaps. */
WEIR_DRIVER_ENTRY(MemSetAccess, cuMemSetAccess, 10020, OPTIONAL,
                  (weir_cu_deviceptr pointer, uint64_t bytes, const weir_cu_mem_access *access, size_t count),
                  (pointer, bytes, access, count))

/* The unit of MemCreate's sizes for such memory: the minimum (option 0) or the recommended one (option 1). */
WEIR_DRIVER_ENTRY(MemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, OPTIONAL,
                  (uint64_t * bytes, const weir_cu_mem_prop *prop, int option), (bytes, prop, option))

/* Writes a shareable form of the handle to *shareable: an int for WEIR_CU_HANDLE_POSIX_FD, which the caller closes.
 * The
 * handle must have been created for that type. */
WEIR_DRIVER_ENTRY(MemExportToShareableHandle, cuMemExportToShareableHandle, 10020, OPTIONAL,
                  (void *shareable, weir_cu_mem_handle handle, int type, unsigned long long flags),
                  (shareable, handle, type, flags))

/* The counterpart. A POSIX fd is passed by value in the pointer, and the caller still has to close it. */
WEIR_DRIVER_ENTRY(MemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, OPTIONAL,
                  (weir_cu_mem_handle * handle, void *shareable, int type), (handle, shareable, type))

/* ---- Between processes ---- */

/* A handle for an allocation of MemAlloc, given by its first address, that another process can open. */
WEIR_DRIVER_ENTRY(IpcGetMemHandle, cuIpcGetMemHandle, 4010, REQUIRED,
                  (weir_cu_ipc_mem_handle * handle, weir_cu_deviceptr pointer), (handle, pointer))

/* Maps it here; flags must be WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS. Opening it again gives the same pointer, and
 * needs one more close. INVALID_CONTEXT in the process that created it. */
WEIR_DRIVER_ENTRY(IpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, REQUIRED,
                  (weir_cu_deviceptr * pointer, weir_cu_ipc_mem_handle handle, unsigned flags),
                  (pointer, handle, flags))

/* Undoes one IpcOpenMemHandle. The memory is unmapped with the last one. */
WEIR_DRIVER_ENTRY(IpcCloseMemHandle, cuIpcCloseMemHandle, 4010, REQUIRED, (weir_cu_deviceptr pointer), (pointer))

/* The event must have been created with EVENT_INTERPROCESS | EVENT_DISABLE_TIMING. */
WEIR_DRIVER_ENTRY(IpcGetEventHandle, cuIpcGetEventHandle, 4010, REQUIRED,
                  (weir_cu_ipc_event_handle * handle, weir_cu_event event), (handle, event))

/* The event follows all records of the first process, including later ones. Destroy it with EventDestroy. */
WEIR_DRIVER_ENTRY(IpcOpenEventHandle, cuIpcOpenEventHandle, 4010, REQUIRED,
                  (weir_cu_event * event, weir_cu_ipc_event_handle handle), (event, handle))

/* ---- Stream-ordered pools ---- */

/* Memory from the current pool of the stream's device, usable in the stream's order at once. In a capture it becomes
 * a node and the memory belongs to the graph. [unsafe in capture, for a stream outside the capture, as are all pool
 * calls] */
WEIR_DRIVER_ENTRY(MemAllocAsync, cuMemAllocAsync, 11020, OPTIONAL,
                  (weir_cu_deviceptr * pointer, uint64_t bytes, weir_cu_stream stream), (pointer, bytes, stream))

/* The same from a given pool. */
WEIR_DRIVER_ENTRY(MemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, OPTIONAL,
                  (weir_cu_deviceptr * pointer, uint64_t bytes, weir_cu_mempool pool, weir_cu_stream stream),
                  (pointer, bytes, pool, stream))

/* The memory becomes free when the stream reaches this point. */
WEIR_DRIVER_ENTRY(MemFreeAsync, cuMemFreeAsync, 11020, OPTIONAL, (weir_cu_deviceptr pointer, weir_cu_stream stream),
                  (pointer, stream))

/* The pool that each device has from the beginning. */
WEIR_DRIVER_ENTRY(DeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, OPTIONAL,
                  (weir_cu_mempool * pool, weir_cu_device device), (pool, device))

/* The pool that MemAllocAsync uses; the default one until DeviceSetMemPool. INVALID_VALUE for an invalid device. */
WEIR_DRIVER_ENTRY(DeviceGetMemPool, cuDeviceGetMemPool, 11020, OPTIONAL,
                  (weir_cu_mempool * pool, weir_cu_device device), (pool, device))

/* Makes a pool of the device the one that MemAllocAsync uses. */
WEIR_DRIVER_ENTRY(DeviceSetMemPool, cuDeviceSetMemPool, 11020, OPTIONAL, (weir_cu_device device, weir_cu_mempool pool),
                  (device, pool))

/* Creates a pool on the device that props->location names. */
WEIR_DRIVER_ENTRY(MemPoolCreate, cuMemPoolCreate, 11020, OPTIONAL,
                  (weir_cu_mempool * pool, const weir_cu_mempool_props *props), (pool, props))

/* Allocations of the pool stay valid until they are freed. The default pool cannot be destroyed. */
WEIR_DRIVER_ENTRY(MemPoolDestroy, cuMemPoolDestroy, 11020, OPTIONAL, (weir_cu_mempool pool), (pool))

/* WEIR_CU_MEMPOOL_ATTR_*: an int for the three REUSE attributes, otherwise 64 bits. The HIGH attributes can only be
 * set to 0. */
WEIR_DRIVER_ENTRY(MemPoolSetAttribute, cuMemPoolSetAttribute, 11020, OPTIONAL,
                  (weir_cu_mempool pool, int attribute, void *value), (pool, attribute, value))
WEIR_DRIVER_ENTRY(MemPoolGetAttribute, cuMemPoolGetAttribute, 11020, OPTIONAL,
                  (weir_cu_mempool pool, int attribute, void *value), (pool, attribute, value))

/* Returns unused memory to the device while the pool holds more than `keep` bytes. */
WEIR_DRIVER_ENTRY(MemPoolTrimTo, cuMemPoolTrimTo, 11020, OPTIONAL, (weir_cu_mempool pool, uint64_t keep), (pool, keep))

/* Sets the access of other devices to the memory of the pool. */
WEIR_DRIVER_ENTRY(MemPoolSetAccess, cuMemPoolSetAccess, 11020, OPTIONAL,
                  (weir_cu_mempool pool, const weir_cu_mem_access *access, size_t count), (pool, access, count))

/* ---- Copies and fills ---- */

/* Copies in any direction, which follows from the addresses. Uses the legacy stream, and returns when the host
 * memory may be used again; for streams other than the legacy one, a copy to a device may not be complete then. */
WEIR_DRIVER_ENTRY(Memcpy, cuMemcpy, 4000, REQUIRED, (weir_cu_deviceptr to, weir_cu_deviceptr from, uint64_t bytes),
                  (to, from, bytes))

/* In the stream's order. Host memory must be page-locked for the copy to overlap with anything: pageable memory is read
 * before the call returns, and a copy to it is done when the call returns. */
WEIR_DRIVER_ENTRY(MemcpyAsync, cuMemcpyAsync, 4000, REQUIRED,
                  (weir_cu_deviceptr to, weir_cu_deviceptr from, uint64_t bytes, weir_cu_stream stream),
                  (to, from, bytes, stream))

/* Copies between two devices, with or without peer access. */
WEIR_DRIVER_ENTRY(MemcpyPeerAsync, cuMemcpyPeerAsync, 4000, REQUIRED,
                  (weir_cu_deviceptr to, weir_cu_context to_context, weir_cu_deviceptr from,
                   weir_cu_context from_context, uint64_t bytes, weir_cu_stream stream),
                  (to, to_context, from, from_context, bytes, stream))

/* Sets `count` bytes to a value, in the stream's order. */
WEIR_DRIVER_ENTRY(MemsetD8Async, cuMemsetD8Async, 3020, REQUIRED,
                  (weir_cu_deviceptr to, unsigned char value, uint64_t count, weir_cu_stream stream),
                  (to, value, count, stream))

/* `to` is aligned to 4, and `count` counts 32-bit words. */
WEIR_DRIVER_ENTRY(MemsetD32Async, cuMemsetD32Async, 3020, REQUIRED,
                  (weir_cu_deviceptr to, unsigned value, uint64_t count, weir_cu_stream stream),
                  (to, value, count, stream))

/* ---- Streams ---- */

/* Creates a stream of the current context. A priority out of range is moved into it. */
WEIR_DRIVER_ENTRY(StreamCreateWithPriority, cuStreamCreateWithPriority, 5050, REQUIRED,
                  (weir_cu_stream * stream, unsigned flags, int priority), (stream, flags, priority))

/* Returns at once; the work in the stream is still done. */
WEIR_DRIVER_ENTRY(StreamDestroy, cuStreamDestroy_v2, 4000, REQUIRED, (weir_cu_stream stream), (stream))

/* NOT_READY while there is work. [unsafe in capture; of a stream that captures itself, in any mode] */
WEIR_DRIVER_ENTRY(StreamQuery, cuStreamQuery, 2000, REQUIRED, (weir_cu_stream stream), (stream))

/* Waits for the work that is in it now. [unsafe in capture; of a stream that captures itself, in any mode] */
WEIR_DRIVER_ENTRY(StreamSynchronize, cuStreamSynchronize, 2000, REQUIRED, (weir_cu_stream stream), (stream))

/* Later work of the stream waits for the event's last record before this call, if there was one; flags 0. In a
 * capture it joins the stream to the event's capture; an event that was recorded outside is
 * STREAM_CAPTURE_ISOLATION, one of another capture STREAM_CAPTURE_MERGE. With WEIR_CU_EVENT_WAIT_EXTERNAL, which is
 * INVALID_VALUE outside of a capture, the wait is a node: each launch waits for the last record before it. */
WEIR_DRIVER_ENTRY(StreamWaitEvent, cuStreamWaitEvent, 3020, REQUIRED,
                  (weir_cu_stream stream, weir_cu_event event, unsigned flags), (stream, event, flags))

/* Calls fn(data) on a thread of the driver when the stream reaches this point. fn must not make driver calls. */
WEIR_DRIVER_ENTRY(LaunchHostFunc, cuLaunchHostFunc, 10000, REQUIRED,
                  (weir_cu_stream stream, weir_cu_host_fn fn, void *data), (stream, fn, data))

/* The priority, the flags and the context of a stream. */
WEIR_DRIVER_ENTRY(StreamGetPriority, cuStreamGetPriority, 5050, REQUIRED, (weir_cu_stream stream, int *priority),
                  (stream, priority))
WEIR_DRIVER_ENTRY(StreamGetFlags, cuStreamGetFlags, 5050, REQUIRED, (weir_cu_stream stream, unsigned *flags),
                  (stream, flags))
WEIR_DRIVER_ENTRY(StreamGetCtx, cuStreamGetCtx, 9020, REQUIRED, (weir_cu_stream stream, weir_cu_context *context),
                  (stream, context))

/* From here on the stream's calls become nodes of a graph. mode is WEIR_CU_CAPTURE_*. STREAM_CAPTURE_UNSUPPORTED for
 * the legacy stream, ILLEGAL_STATE for a stream that captures already. */
WEIR_DRIVER_ENTRY(StreamBeginCapture, cuStreamBeginCapture_v2, 10010, REQUIRED, (weir_cu_stream stream, int mode),
                  (stream, mode))

/* On the stream that began it, and the thread that began it unless it is relaxed (STREAM_CAPTURE_UNMATCHED,
 * STREAM_CAPTURE_WRONG_THREAD); every stream that joined has been joined back (STREAM_CAPTURE_UNJOINED); an invalidated
 * capture ends with STREAM_CAPTURE_INVALIDATED. *graph is NULL on error. */
WEIR_DRIVER_ENTRY(StreamEndCapture, cuStreamEndCapture, 10000, REQUIRED, (weir_cu_stream stream, weir_cu_graph *graph),
                  (stream, graph))

/* WEIR_CU_CAPTURE_STATUS_* of a stream. For the legacy stream: STREAM_CAPTURE_IMPLICIT while a blocking stream
 * captures. */
WEIR_DRIVER_ENTRY(StreamIsCapturing, cuStreamIsCapturing, 10000, REQUIRED, (weir_cu_stream stream, int *status),
                  (stream, status))

/* The same with the capture's number, its graph, and the nodes that the stream's next node would depend on. Every
 * output but status may be NULL. The array belongs to the driver, until the next call on the stream. */
WEIR_DRIVER_ENTRY(StreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030, REQUIRED,
                  (weir_cu_stream stream, int *status, unsigned long long *id, weir_cu_graph *graph,
                   const weir_cu_graph_node **dependencies, size_t *count),
                  (stream, status, id, graph, dependencies, count))

/* Swaps the calling thread's capture mode with *mode. A call that is [unsafe in capture] is refused
 * - in GLOBAL, the default: while this thread has a capture that is not RELAXED, or any thread a GLOBAL one;
 * - in THREAD_LOCAL: while this thread has a capture that is not RELAXED;
 * - in RELAXED: never. */
WEIR_DRIVER_ENTRY(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, REQUIRED, (int *mode),
                  (mode))

/* ---- Events ---- */

/* Creates an event of the context; flags are WEIR_CU_EVENT_*. */
WEIR_DRIVER_ENTRY(EventCreate, cuEventCreate, 2000, REQUIRED, (weir_cu_event * event, unsigned flags), (event, flags))

/* Records the present position of the stream. INVALID_HANDLE unless event and stream are of one context. */
WEIR_DRIVER_ENTRY(EventRecord, cuEventRecord, 2000, REQUIRED, (weir_cu_event event, weir_cu_stream stream),
                  (event, stream))

/* With flags 0 it is EventRecord. With WEIR_CU_EVENT_RECORD_EXTERNAL, which is INVALID_VALUE outside of a capture, the
 * record is a node of the graph: each launch records the event. */
WEIR_DRIVER_ENTRY(EventRecordWithFlags, cuEventRecordWithFlags, 11010, REQUIRED,
                  (weir_cu_event event, weir_cu_stream stream, unsigned flags), (event, stream, flags))

/* SUCCESS if the stream has passed the last record, or there was none; otherwise NOT_READY. CAPTURED_EVENT if it was
 * recorded in a capture. [unsafe in capture] */
WEIR_DRIVER_ENTRY(EventQuery, cuEventQuery, 2000, REQUIRED, (weir_cu_event event), (event))

/* Waits until EventQuery would return SUCCESS, with the same errors. [unsafe in capture] */
WEIR_DRIVER_ENTRY(EventSynchronize, cuEventSynchronize, 2000, REQUIRED, (weir_cu_event event), (event))

/* INVALID_HANDLE if either was not recorded or has timing off, NOT_READY if either has not completed. */
WEIR_DRIVER_ENTRY(EventElapsedTime, cuEventElapsedTime, 2000, REQUIRED,
                  (float *milliseconds, weir_cu_event start, weir_cu_event end), (milliseconds, start, end))

/* Returns at once; pending waits for the event are not affected. */
WEIR_DRIVER_ENTRY(EventDestroy, cuEventDestroy_v2, 4000, REQUIRED, (weir_cu_event event), (event))

/* ---- Graphs ---- */

/* Creates an executable graph; the graph may be destroyed after that. [unsafe in capture] */
WEIR_DRIVER_ENTRY(GraphInstantiate, cuGraphInstantiateWithFlags, 11040, REQUIRED,
                  (weir_cu_graph_exec * exec, weir_cu_graph graph, unsigned long long flags), (exec, graph, flags))

/* Enqueues the graph, which may be empty. Two launches of one executable never overlap. STREAM_CAPTURE_UNSUPPORTED
 * for a stream that captures. */
WEIR_DRIVER_ENTRY(GraphLaunch, cuGraphLaunch, 10000, REQUIRED, (weir_cu_graph_exec exec, weir_cu_stream stream),
                  (exec, stream))

/* Prepares the launch without launching. */
WEIR_DRIVER_ENTRY(GraphUpload, cuGraphUpload, 11010, OPTIONAL, (weir_cu_graph_exec exec, weir_cu_stream stream),
                  (exec, stream))

/* With nodes NULL, *count becomes the number of nodes. Otherwise up to *count nodes are written, and *count is their
 * number. */
WEIR_DRIVER_ENTRY(GraphGetNodes, cuGraphGetNodes, 10000, REQUIRED,
                  (weir_cu_graph graph, weir_cu_graph_node *nodes, size_t *count), (graph, nodes, count))

/* The same for the direct dependencies of a node. */
WEIR_DRIVER_ENTRY(GraphNodeGetDependencies, cuGraphNodeGetDependencies, 10000, REQUIRED,
                  (weir_cu_graph_node node, weir_cu_graph_node *nodes, size_t *count), (node, nodes, count))

/* Writes the graph as DOT text to the file `path`. */
WEIR_DRIVER_ENTRY(GraphDebugDotPrint, cuGraphDebugDotPrint, 11030, OPTIONAL,
                  (weir_cu_graph graph, const char *path, unsigned flags), (graph, path, flags))

/* Destroys the graph. What was instantiated from it stays. */
WEIR_DRIVER_ENTRY(GraphDestroy, cuGraphDestroy, 10000, REQUIRED, (weir_cu_graph graph), (graph))

/* A launch in progress is completed. [unsafe in capture] */
WEIR_DRIVER_ENTRY(GraphExecDestroy, cuGraphExecDestroy, 10000, REQUIRED, (weir_cu_graph_exec exec), (exec))

/* Memory that graphs of the device hold: WEIR_CU_GRAPH_MEM_ATTR_*, 64 bits. */
WEIR_DRIVER_ENTRY(DeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, 11040, OPTIONAL,
                  (weir_cu_device device, int attribute, void *value), (device, attribute, value))

/* Returns unused memory of graphs to the device. */
WEIR_DRIVER_ENTRY(DeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, OPTIONAL, (weir_cu_device device), (device))

/* ---- Kernels ---- */

/* `image` is PTX text (NUL-terminated) or a binary for the device; INVALID_IMAGE for anything else. */
WEIR_DRIVER_ENTRY(ModuleLoadData, cuModuleLoadData, 2000, REQUIRED, (weir_cu_module * module, const void *image),
                  (module, image))

/* The same with options of the PTX compiler, WEIR_CU_JIT_*: values[i] is the value of options[i] itself, or a
 * pointer to its buffer. The software device knows the error log, and ignores the others. */
WEIR_DRIVER_ENTRY(ModuleLoadDataEx, cuModuleLoadDataEx, 2010, REQUIRED,
                  (weir_cu_module * module, const void *image, unsigned count, int *options, void **values),
                  (module, image, count, options, values))

/* Waits for the work of the device. [unsafe in capture] */
WEIR_DRIVER_ENTRY(ModuleUnload, cuModuleUnload, 2000, REQUIRED, (weir_cu_module module), (module))

/* NOT_FOUND if the module has no kernel of that name. */
WEIR_DRIVER_ENTRY(ModuleGetFunction, cuModuleGetFunction, 2000, REQUIRED,
                  (weir_cu_function * function, weir_cu_module module, const char *name), (function, module, name))

/* params[i] points to the value of parameter i, read before the call returns; extra must be NULL. */
WEIR_DRIVER_ENTRY(LaunchKernel, cuLaunchKernel, 4000, REQUIRED,
                  (weir_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, weir_cu_stream stream, void **params,
                   void **extra),
                  (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, extra))

/* One of WEIR_CU_FUNC_ATTR_* of a kernel; INVALID_VALUE for an unknown one. */
WEIR_DRIVER_ENTRY(FuncGetAttribute, cuFuncGetAttribute, 2020, REQUIRED,
                  (int *value, int attribute, weir_cu_function function), (value, attribute, function))

/* Only WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE can be set on every device: a launch with more dynamic shared
 * memory is INVALID_VALUE. Its default is 48 KiB less the static shared memory. */
WEIR_DRIVER_ENTRY(FuncSetAttribute, cuFuncSetAttribute, 9000, REQUIRED,
                  (weir_cu_function function, int attribute, int value), (function, attribute, value))

/* Offset and size of a parameter; bytes may be NULL. INVALID_VALUE once index is not below the number of parameters. */
WEIR_DRIVER_ENTRY(FuncGetParamInfo, cuFuncGetParamInfo, 12040, OPTIONAL,
                  (weir_cu_function function, size_t index, size_t *offset, size_t *bytes),
                  (function, index, offset, bytes))

/* How many blocks of this many threads one multiprocessor can run at a time. */
WEIR_DRIVER_ENTRY(OccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050,
                  REQUIRED, (int *blocks, weir_cu_function function, int block_threads, size_t dynamic_bytes),
                  (blocks, function, block_threads, dynamic_bytes))

/* ---- Profiler ---- */

/* [unsafe in capture] */
WEIR_DRIVER_ENTRY0(ProfilerStart, cuProfilerStart, 4000, REQUIRED)
WEIR_DRIVER_ENTRY0(ProfilerStop, cuProfilerStop, 4000, REQUIRED)

/* ---- User objects. A table may end before these entries, as its size says ---- */

/* An object with `count` references, which the caller owns. When the last reference to it is released, by whichever
 * call or work holds it, destroy(data) is called once, on any thread. It must not call the driver, nor wait for a
 * thread that does. flags must be USER_OBJECT_NO_DESTRUCTOR_SYNC. INVALID_VALUE if count is 0 or above INT_MAX. */
WEIR_DRIVER_ENTRY(UserObjectCreate, cuUserObjectCreate, 11030, OPTIONAL,
                  (weir_cu_user_object * object, void *data, weir_cu_host_fn destroy, unsigned count, unsigned flags),
                  (object, data, destroy, count, flags))

/* Releases references that the caller owns. */
WEIR_DRIVER_ENTRY(UserObjectRelease, cuUserObjectRelease, 11030, OPTIONAL, (weir_cu_user_object object, unsigned count),
                  (object, count))

/* The graph, which may still be captured, gets references to an object: new ones or, with GRAPH_USER_OBJECT_MOVE, those
 * of the caller. It releases them when it is destroyed. An executable has references of its own to the objects that
 * its graph had when it was instantiated, and each launch has until its work is done. */
WEIR_DRIVER_ENTRY(GraphRetainUserObject, cuGraphRetainUserObject, 11030, OPTIONAL,
                  (weir_cu_graph graph, weir_cu_user_object object, unsigned count, unsigned flags),
                  (graph, object, count, flags))

#undef WEIR_DRIVER_ENTRY
#undef WEIR_DRIVER_ENTRY0
