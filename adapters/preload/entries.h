/*
 * The driver functions that the preload library replaces. This list is included once for each use, so it has no include
 * guard.
 *
 *   ENTRY(symbol, name, since, stream, (parameters))
 *
 * symbol is the name that libcuda.so.1 exports, and name the one for cuGetProcAddress. since is the first CUDA version
 * (1000 * major + 10 * minor) in which the name means this symbol. stream distinguishes the two variants of a call that
 * takes a stream: LEGACY and PER_THREAD state the meaning of the stream NULL; ANY has no variants.
 */

/* ---- Lookup ---- */

ENTRY(cuGetProcAddress, cuGetProcAddress, 11030, ANY, (const char *name, void **function, int version, uint64_t flags))
ENTRY(cuGetProcAddress_v2, cuGetProcAddress, 12000, ANY,
      (const char *name, void **function, int version, uint64_t flags, int *status))

/* ---- Memory ---- */

ENTRY(cuMemGetInfo_v2, cuMemGetInfo, 3020, ANY, (size_t * free_bytes, size_t *total_bytes))
ENTRY(cuMemAlloc_v2, cuMemAlloc, 3020, ANY, (weir_cu_deviceptr * pointer, size_t bytes))
ENTRY(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, ANY,
      (weir_cu_deviceptr * pointer, size_t *pitch, size_t width, size_t height, unsigned element))
ENTRY(cuMemFree_v2, cuMemFree, 3020, ANY, (weir_cu_deviceptr pointer))
ENTRY(cuMemAllocAsync, cuMemAllocAsync, 11020, LEGACY,
      (weir_cu_deviceptr * pointer, size_t bytes, weir_cu_stream stream))
ENTRY(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, PER_THREAD,
      (weir_cu_deviceptr * pointer, size_t bytes, weir_cu_stream stream))
ENTRY(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, LEGACY,
      (weir_cu_deviceptr * pointer, size_t bytes, weir_cu_mempool pool, weir_cu_stream stream))
ENTRY(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, PER_THREAD,
      (weir_cu_deviceptr * pointer, size_t bytes, weir_cu_mempool pool, weir_cu_stream stream))
ENTRY(cuMemFreeAsync, cuMemFreeAsync, 11020, LEGACY, (weir_cu_deviceptr pointer, weir_cu_stream stream))
ENTRY(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, PER_THREAD, (weir_cu_deviceptr pointer, weir_cu_stream stream))

/* ---- Calls that affect whether memory may be used ---- */

ENTRY(cuMemPoolCreate, cuMemPoolCreate, 11020, ANY, (weir_cu_mempool * pool, const weir_cu_mempool_props *props))
ENTRY(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, ANY,
      (weir_cu_mempool pool, const weir_cu_mem_access *access, size_t count))
ENTRY(cuMemPoolDestroy, cuMemPoolDestroy, 11020, ANY, (weir_cu_mempool pool))
ENTRY(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, ANY, (weir_cu_context peer, unsigned flags))
ENTRY(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, ANY, (weir_cu_ipc_mem_handle * handle, weir_cu_deviceptr pointer))
ENTRY(cuStreamDestroy_v2, cuStreamDestroy, 4000, ANY, (weir_cu_stream stream))
ENTRY(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, LEGACY, (weir_cu_stream stream, int mode))
ENTRY(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010, PER_THREAD, (weir_cu_stream stream, int mode))
ENTRY(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030, LEGACY,
      (weir_cu_stream stream, weir_cu_graph graph, const weir_cu_graph_node *nodes, const void *edges, size_t count,
       int mode))
ENTRY(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, 12030, PER_THREAD,
      (weir_cu_stream stream, weir_cu_graph graph, const weir_cu_graph_node *nodes, const void *edges, size_t count,
       int mode))
ENTRY(cuStreamEndCapture, cuStreamEndCapture, 10000, LEGACY, (weir_cu_stream stream, weir_cu_graph *graph))
ENTRY(cuStreamEndCapture_ptsz, cuStreamEndCapture, 10000, PER_THREAD, (weir_cu_stream stream, weir_cu_graph *graph))
ENTRY(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, ANY, (weir_cu_device device))
ENTRY(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, ANY, (weir_cu_device device))

/* ---- Memory that the driver serves, which may need cached memory to be released, or is counted ---- */

ENTRY(cuMemCreate, cuMemCreate, 10020, ANY,
      (weir_cu_mem_handle * handle, size_t bytes, const weir_cu_mem_prop *prop, unsigned long long flags))
ENTRY(cuMemRelease, cuMemRelease, 10020, ANY, (weir_cu_mem_handle handle))
ENTRY(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, ANY,
      (weir_cu_mem_handle * handle, void *address))
ENTRY(cuMemMap, cuMemMap, 10020, ANY,
      (weir_cu_deviceptr pointer, size_t bytes, size_t offset, weir_cu_mem_handle handle, unsigned long long flags))
ENTRY(cuMemUnmap, cuMemUnmap, 10020, ANY, (weir_cu_deviceptr pointer, size_t bytes))
ENTRY(cuMemAllocManaged, cuMemAllocManaged, 6000, ANY, (weir_cu_deviceptr * pointer, size_t bytes, unsigned flags))
ENTRY(cuArrayCreate_v2, cuArrayCreate, 3020, ANY, (void **array, const void *description))
ENTRY(cuArray3DCreate_v2, cuArray3DCreate, 3020, ANY, (void **array, const void *description))
ENTRY(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, ANY,
      (void **array, const void *description, unsigned levels))

#undef ENTRY
