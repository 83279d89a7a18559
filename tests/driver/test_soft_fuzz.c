/*
 * Every entry of the table, in random order with random arguments: NULL, garbage, valid, stale and mismatched handles,
 * and sizes at every boundary. Only memory that the program itself must provide is valid. Nothing may crash, every
 * result is known, outputs are written only on success, and the device can be closed at the end.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB, DEVICES = 3, CALLS = 5000, KEPT = 12 };

/* ---- Arguments ---- */

static bool rarely(void) { return soft_random(16) == 0; }

enum kind {
  CONTEXT,
  STREAM,
  EVENT,
  GRAPH,
  NODE,
  EXEC,
  MODULE,
  FUNCTION,
  POOL,
  MEMORY,
  USER_OBJECT,
  POINTER,
  RESERVED,
  MAPPED,
  KINDS
};

/* Handles of each kind that calls returned, valid or stale; the oldest are dropped. */
static struct kept {
  uint64_t values[KEPT];
  unsigned count;
} kept[KINDS];

static void keep(enum kind kind, uint64_t value) { kept[kind].values[kept[kind].count++ % KEPT] = value; }
#define KEEP(kind, value) keep(kind, (uint64_t)(value))

static uint64_t pick(enum kind kind) {
  unsigned count = kept[kind].count;
  return count ? kept[kind].values[soft_random(count < KEPT ? count : KEPT)] : 0;
}

static uint64_t handle(enum kind wanted) {
  switch (soft_random(12)) {
  case 0:
    return 0;
  case 1:
    return 1 + soft_random(2);
  case 2:
    return soft_random(UINT64_MAX);
  case 3:
    return soft_random(4) << 28 | soft_random(64) << 4;
  case 4:
    return pick((enum kind)soft_random(POINTER));
  default:
    return pick(wanted);
  }
}

#define CONTEXT_ARG ((weir_cu_context)handle(CONTEXT))
#define STREAM_ARG (soft_random(6) ? (weir_cu_stream)handle(STREAM) : NULL)
#define EVENT_ARG ((weir_cu_event)handle(EVENT))
#define GRAPH_ARG ((weir_cu_graph)handle(GRAPH))
#define NODE_ARG ((weir_cu_graph_node)handle(NODE))
#define EXEC_ARG ((weir_cu_graph_exec)handle(EXEC))
#define MODULE_ARG ((weir_cu_module)handle(MODULE))
#define FUNCTION_ARG ((weir_cu_function)handle(FUNCTION))
#define USER_OBJECT_ARG ((weir_cu_user_object)handle(USER_OBJECT))
#define POOL_ARG ((weir_cu_mempool)handle(POOL))
#define MEMORY_ARG ((weir_cu_mem_handle)handle(MEMORY))

static size_t any_size(void) {
  static const size_t sizes[] = {
      0,       1,     2,     3,     4,        100,      4095,       4096,       4097,       G - 1,
      G,       G + 1, 2 * G, 3 * G, 16 * MIB, 32 * MIB, 1ull << 40, 1ull << 47, 1ull << 63, SIZE_MAX - 4095,
      SIZE_MAX};
  return sizes[soft_random(sizeof sizes / sizeof *sizes)];
}

static size_t whole_granules(void) { return soft_random(4) ? (size_t)G : any_size(); }

static char own_memory[64 * 1024]; /* memory of the program, for copies and registrations */

/* An address: of device memory, of freed device memory, or invalid. */
static weir_cu_deviceptr any_address(void) {
  static const int64_t offsets[] = {0, 0, 0, 0, 1, 4, 4096, G, -1, G - 1, 2 * G};
  uint64_t base = pick(POINTER);
  switch (soft_random(8)) {
  case 0:
    return 0;
  case 1:
    return soft_random(UINT64_MAX);
  case 2:
    return (uintptr_t)own_memory;
  default:
    return base + (uint64_t)offsets[soft_random(sizeof offsets / sizeof *offsets)];
  }
}

/* The same, mostly in reserved space. */
static weir_cu_deviceptr reserved_address(void) {
  return rarely() ? any_address() : pick(soft_random(2) ? RESERVED : MAPPED);
}

/* For copies: an address outside of the device must be valid for `bytes`. */
static weir_cu_deviceptr copy_address(size_t *bytes) {
  weir_cu_deviceptr address = soft_random(3) ? any_address() : reserved_address(), base;
  size_t size;
  int type;
  if (d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address) == WEIR_CU_SUCCESS &&
      d->PointerGetAttribute(d, &base, WEIR_CU_POINTER_ATTR_RANGE_START, address) == WEIR_CU_SUCCESS &&
      d->PointerGetAttribute(d, &size, WEIR_CU_POINTER_ATTR_RANGE_SIZE, address) == WEIR_CU_SUCCESS)
    return address;
  if (*bytes > sizeof own_memory)
    *bytes = sizeof own_memory;
  return (uintptr_t)own_memory;
}

static int any_int(void) {
  static const int ints[] = {-1,        0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 75, 99, 128, 1000000, -2147483647 - 1,
                             2147483647};
  return ints[soft_random(sizeof ints / sizeof *ints)];
}
static int any_device(void) { return rarely() ? any_int() : (int)soft_random(DEVICES); }
/* Mostly below `good`. */
static unsigned any_flags(unsigned good) {
  return rarely() ? (unsigned)soft_random(UINT32_MAX) : (unsigned)soft_random(good);
}
static unsigned long long any_flags64(void) { return rarely() ? soft_random(UINT64_MAX) : 0; }

static void nothing(void *data) { (void)data; }

/* Outputs are placed here on a known pattern, so that writes are detected. */
static union {
  unsigned char bytes[256];
  uint64_t words[32];
} out[4];

#define OUT(i, type) (rarely() ? NULL : (type *)(void *)&out[i])

static weir_cu_mem_prop any_prop(void) {
  return (weir_cu_mem_prop){.type = soft_random(8) ? WEIR_CU_ALLOCATION_PINNED : any_int(),
                            .handle_types = soft_random(2)   ? 0
                                            : soft_random(2) ? WEIR_CU_HANDLE_POSIX_FD
                                                             : any_int(),
                            .location = {soft_random(8) ? WEIR_CU_LOCATION_DEVICE : any_int(), any_device()}};
}

static weir_cu_mem_access any_access(void) {
  return (weir_cu_mem_access){{soft_random(8) ? WEIR_CU_LOCATION_DEVICE : any_int(), any_device()},
                              soft_random(4) ? WEIR_CU_ACCESS_READWRITE : any_int()};
}

/* Completes the work that uses memory before it is freed, as a correct program does. */
static void settle(void) { soft_step_all(); }

/* ---- Calls ---- */

static weir_cu_result call_device(weir_driver_call call) {
  switch (call) {
  case WEIR_CALL_Init:
    return d->Init(d, any_flags(2));
  case WEIR_CALL_DriverGetVersion:
    return d->DriverGetVersion(d, OUT(0, int));
  case WEIR_CALL_GetErrorName: {
    const char *text;
    return d->GetErrorName(d, any_int(), rarely() ? NULL : &text);
  }
  case WEIR_CALL_GetErrorString: {
    const char *text;
    return d->GetErrorString(d, any_int(), rarely() ? NULL : &text);
  }
  case WEIR_CALL_DeviceGetCount:
    return d->DeviceGetCount(d, OUT(0, int));
  case WEIR_CALL_DeviceGet:
    return d->DeviceGet(d, OUT(0, int), any_device());
  case WEIR_CALL_DeviceGetName:
    return d->DeviceGetName(d, OUT(0, char), (int)soft_random(60) - 3, any_device());
  case WEIR_CALL_DeviceGetUuid:
    return d->DeviceGetUuid(d, OUT(0, weir_cu_uuid), any_device());
  case WEIR_CALL_DeviceGetPCIBusId:
    return d->DeviceGetPCIBusId(d, OUT(0, char), (int)soft_random(60) - 3, any_device());
  case WEIR_CALL_DeviceGetAttribute:
    return d->DeviceGetAttribute(d, OUT(0, int), any_int(), any_device());
  case WEIR_CALL_DeviceTotalMem:
    return d->DeviceTotalMem(d, OUT(0, size_t), any_device());
  case WEIR_CALL_DeviceCanAccessPeer:
    return d->DeviceCanAccessPeer(d, OUT(0, int), any_device(), any_device());
  case WEIR_CALL_DevicePrimaryCtxRetain: {
    weir_cu_context *context = OUT(0, weir_cu_context);
    weir_cu_result r = d->DevicePrimaryCtxRetain(d, context, any_device());
    if (!r) {
      KEEP(CONTEXT, *context);
      d->CtxSetCurrent(d, *context);
    }
    return r;
  }
  case WEIR_CALL_DevicePrimaryCtxRelease:
    settle();
    return rarely() ? d->DevicePrimaryCtxRelease(d, any_device()) : WEIR_CU_SUCCESS;
  case WEIR_CALL_DevicePrimaryCtxGetState:
    return d->DevicePrimaryCtxGetState(d, any_device(), OUT(0, unsigned), OUT(1, int));
  case WEIR_CALL_CtxGetCurrent:
    return d->CtxGetCurrent(d, OUT(0, weir_cu_context));
  case WEIR_CALL_CtxSetCurrent:
    return d->CtxSetCurrent(d, rarely() ? NULL : CONTEXT_ARG);
  case WEIR_CALL_CtxGetDevice:
    return d->CtxGetDevice(d, OUT(0, int));
  case WEIR_CALL_CtxSynchronize:
    return d->CtxSynchronize(d);
  case WEIR_CALL_CtxGetStreamPriorityRange:
    return d->CtxGetStreamPriorityRange(d, OUT(0, int), OUT(1, int));
  case WEIR_CALL_CtxEnablePeerAccess:
    return d->CtxEnablePeerAccess(d, CONTEXT_ARG, any_flags(1));
  case WEIR_CALL_CtxDisablePeerAccess:
    return d->CtxDisablePeerAccess(d, CONTEXT_ARG);
  case WEIR_CALL_ProfilerStart:
    return d->ProfilerStart(d);
  case WEIR_CALL_ProfilerStop:
    return d->ProfilerStop(d);
  default:
    return -1;
  }
}

static weir_cu_result keep_pointer(weir_cu_result r, const uint64_t *pointer) {
  if (!r)
    KEEP(POINTER, *pointer);
  return r;
}

static weir_cu_result call_memory(weir_driver_call call) {
  weir_cu_deviceptr *pointer = OUT(0, weir_cu_deviceptr), base;
  weir_cu_mem_prop prop = any_prop();
  weir_cu_result r;
  switch (call) {
  case WEIR_CALL_MemGetInfo:
    return d->MemGetInfo(d, OUT(0, size_t), OUT(1, size_t));
  case WEIR_CALL_MemAlloc:
    return keep_pointer(d->MemAlloc(d, pointer, any_size()), (uint64_t *)pointer);
  case WEIR_CALL_MemFree:
    settle();
    return d->MemFree(d, any_address());
  case WEIR_CALL_MemGetAddressRange:
    return d->MemGetAddressRange(d, pointer, OUT(1, size_t), any_address());
  case WEIR_CALL_MemHostAlloc:
    return keep_pointer(d->MemHostAlloc(d, (void **)pointer, any_size() % (64 * MIB), any_flags(8)),
                        (uint64_t *)pointer);
  case WEIR_CALL_MemFreeHost:
    settle();
    return d->MemFreeHost(d, (void *)(uintptr_t)any_address());
  case WEIR_CALL_MemHostRegister: {
    size_t at = soft_random(sizeof own_memory), bytes = soft_random(sizeof own_memory - at);
    r = d->MemHostRegister(d, rarely() ? NULL : own_memory + at, bytes, any_flags(4));
    if (!r)
      KEEP(POINTER, (uintptr_t)own_memory + at);
    return r;
  }
  case WEIR_CALL_MemHostUnregister:
    settle();
    return d->MemHostUnregister(d, (void *)(uintptr_t)any_address());
  case WEIR_CALL_MemHostGetDevicePointer:
    return d->MemHostGetDevicePointer(d, pointer, (void *)(uintptr_t)any_address(), any_flags(1));
  case WEIR_CALL_PointerGetAttribute:
    return d->PointerGetAttribute(d, OUT(0, void), any_int(), any_address());
  case WEIR_CALL_MemAddressReserve: {
    size_t bytes = whole_granules(), alignment = soft_random(2) ? 0 : any_size();
    weir_cu_deviceptr wish = soft_random(2) ? 0 : any_address();
    r = d->MemAddressReserve(d, pointer, bytes, alignment, wish, any_flags64());
    if (!r)
      KEEP(RESERVED, *pointer);
    return r;
  }
  case WEIR_CALL_MemAddressFree:
    settle();
    return d->MemAddressFree(d, reserved_address(), whole_granules());
  case WEIR_CALL_MemCreate: {
    weir_cu_mem_handle *made = OUT(0, weir_cu_mem_handle);
    r = d->MemCreate(d, made, whole_granules(), rarely() ? NULL : &prop, any_flags64());
    if (!r)
      KEEP(MEMORY, *made);
    return r;
  }
  case WEIR_CALL_MemRelease:
    settle();
    return d->MemRelease(d, MEMORY_ARG);
  case WEIR_CALL_MemMap:
    base = reserved_address();
    r = d->MemMap(d, base, whole_granules(), rarely() ? any_size() : 0, MEMORY_ARG, any_flags64());
    if (!r)
      KEEP(MAPPED, base);
    return r;
  case WEIR_CALL_MemUnmap:
    settle();
    return d->MemUnmap(d, reserved_address(), whole_granules());
  case WEIR_CALL_MemSetAccess: {
    weir_cu_mem_access access[] = {any_access(), any_access()};
    settle();
    base = soft_random(4) ? pick(MAPPED) : reserved_address();
    return d->MemSetAccess(d, base, whole_granules(), rarely() ? NULL : access, soft_random(3));
  }
  case WEIR_CALL_MemGetAllocationGranularity:
    return d->MemGetAllocationGranularity(d, OUT(0, size_t), rarely() ? NULL : &prop, any_int());
  case WEIR_CALL_MemExportToShareableHandle: {
    int *fd = OUT(0, int);
    r = d->MemExportToShareableHandle(d, fd, MEMORY_ARG, soft_random(4) ? WEIR_CU_HANDLE_POSIX_FD : any_int(),
                                      any_flags64());
    weir_cu_mem_handle again;
    if (!r) {
      if (!d->MemImportFromShareableHandle(d, &again, (void *)(intptr_t)*fd, WEIR_CU_HANDLE_POSIX_FD))
        KEEP(MEMORY, again);
      close(*fd);
    }
    return r;
  }
  case WEIR_CALL_MemImportFromShareableHandle:
    return d->MemImportFromShareableHandle(d, OUT(0, weir_cu_mem_handle), (void *)(intptr_t)any_int(),
                                           soft_random(4) ? WEIR_CU_HANDLE_POSIX_FD : any_int());
  default:
    return -1;
  }
}

static weir_cu_result call_ipc_and_pools(weir_driver_call call) {
  weir_cu_deviceptr *pointer = OUT(0, weir_cu_deviceptr);
  weir_cu_ipc_mem_handle memory;
  weir_cu_ipc_event_handle event;
  for (size_t i = 0; i < sizeof memory; i++)
    memory.reserved[i] = event.reserved[i] = (char)soft_random(256);
  switch (call) {
  case WEIR_CALL_IpcGetMemHandle:
    return d->IpcGetMemHandle(d, OUT(0, weir_cu_ipc_mem_handle), any_address());
  case WEIR_CALL_IpcOpenMemHandle:
    return d->IpcOpenMemHandle(d, pointer, memory, any_flags(2));
  case WEIR_CALL_IpcCloseMemHandle:
    settle();
    return d->IpcCloseMemHandle(d, any_address());
  case WEIR_CALL_IpcGetEventHandle:
    return d->IpcGetEventHandle(d, OUT(0, weir_cu_ipc_event_handle), EVENT_ARG);
  case WEIR_CALL_IpcOpenEventHandle:
    return d->IpcOpenEventHandle(d, OUT(0, weir_cu_event), event);
  case WEIR_CALL_MemAllocAsync:
    return keep_pointer(d->MemAllocAsync(d, pointer, any_size(), STREAM_ARG), (uint64_t *)pointer);
  case WEIR_CALL_MemAllocFromPoolAsync:
    return keep_pointer(d->MemAllocFromPoolAsync(d, pointer, any_size(), POOL_ARG, STREAM_ARG), (uint64_t *)pointer);
  case WEIR_CALL_MemFreeAsync:
    settle();
    return d->MemFreeAsync(d, any_address(), STREAM_ARG);
  case WEIR_CALL_DeviceGetDefaultMemPool:
  case WEIR_CALL_DeviceGetMemPool: {
    weir_cu_mempool *pool = OUT(0, weir_cu_mempool);
    weir_cu_result r = call == WEIR_CALL_DeviceGetMemPool ? d->DeviceGetMemPool(d, pool, any_device())
                                                          : d->DeviceGetDefaultMemPool(d, pool, any_device());
    if (!r)
      KEEP(POOL, *pool);
    return r;
  }
  case WEIR_CALL_DeviceSetMemPool:
    return d->DeviceSetMemPool(d, any_device(), POOL_ARG);
  case WEIR_CALL_MemPoolCreate: {
    weir_cu_mem_prop prop = any_prop();
    weir_cu_mempool_props props = {.type = prop.type, .handle_types = prop.handle_types, .location = prop.location};
    weir_cu_mempool *pool = OUT(0, weir_cu_mempool);
    weir_cu_result r = d->MemPoolCreate(d, pool, rarely() ? NULL : &props);
    if (!r)
      KEEP(POOL, *pool);
    return r;
  }
  case WEIR_CALL_MemPoolDestroy:
    settle();
    return d->MemPoolDestroy(d, POOL_ARG);
  case WEIR_CALL_MemPoolSetAttribute: {
    uint64_t value = soft_random(2) ? 0 : any_size();
    return d->MemPoolSetAttribute(d, POOL_ARG, any_int(), rarely() ? NULL : &value);
  }
  case WEIR_CALL_MemPoolGetAttribute:
    return d->MemPoolGetAttribute(d, POOL_ARG, any_int(), OUT(0, void));
  case WEIR_CALL_MemPoolTrimTo:
    settle();
    return d->MemPoolTrimTo(d, POOL_ARG, any_size());
  case WEIR_CALL_MemPoolSetAccess: {
    weir_cu_mem_access access[] = {any_access(), any_access()};
    return d->MemPoolSetAccess(d, POOL_ARG, rarely() ? NULL : access, soft_random(3));
  }
  default:
    return -1;
  }
}

static weir_cu_result call_work(weir_driver_call call) {
  size_t bytes = any_size();
  weir_cu_deviceptr to = copy_address(&bytes), from = copy_address(&bytes);
  uint64_t cycles = any_size();
  void *params[] = {&cycles};
  switch (call) {
  case WEIR_CALL_Memcpy:
    return d->Memcpy(d, to, from, bytes);
  case WEIR_CALL_MemcpyAsync:
    return d->MemcpyAsync(d, to, from, bytes, STREAM_ARG);
  case WEIR_CALL_MemcpyPeerAsync:
    return d->MemcpyPeerAsync(d, to, CONTEXT_ARG, from, CONTEXT_ARG, bytes, STREAM_ARG);
  case WEIR_CALL_MemsetD8Async:
    return d->MemsetD8Async(d, any_address(), (unsigned char)cycles, any_size(), STREAM_ARG);
  case WEIR_CALL_MemsetD32Async:
    return d->MemsetD32Async(d, any_address(), (unsigned)cycles, any_size() / 4, STREAM_ARG);
  case WEIR_CALL_LaunchHostFunc:
    return d->LaunchHostFunc(d, STREAM_ARG, rarely() ? NULL : nothing, NULL);
  case WEIR_CALL_ModuleLoadData: {
    weir_cu_module *module = OUT(0, weir_cu_module);
    weir_cu_result r = d->ModuleLoadData(d, module, rarely() ? NULL : rarely() ? "no" : spin_ptx);
    if (!r)
      KEEP(MODULE, *module);
    return r;
  }
  case WEIR_CALL_ModuleLoadDataEx: {
    weir_cu_module *module = OUT(0, weir_cu_module);
    weir_cu_result r = d->ModuleLoadDataEx(d, module, rarely() ? NULL : rarely() ? "no" : spin_ptx, 0, NULL, NULL);
    if (!r)
      KEEP(MODULE, *module);
    return r;
  }
  case WEIR_CALL_FuncGetAttribute:
    return d->FuncGetAttribute(d, OUT(0, int), (int)any_flags(12), FUNCTION_ARG);
  case WEIR_CALL_FuncSetAttribute:
    return d->FuncSetAttribute(d, FUNCTION_ARG, (int)any_flags(12), (int)any_flags(300 << 10));
  case WEIR_CALL_FuncGetParamInfo:
    return d->FuncGetParamInfo(d, FUNCTION_ARG, any_flags(2), OUT(0, size_t), OUT(1, size_t));
  case WEIR_CALL_OccupancyMaxActiveBlocksPerMultiprocessor:
    return d->OccupancyMaxActiveBlocksPerMultiprocessor(d, OUT(0, int), FUNCTION_ARG, (int)any_flags(1100),
                                                        any_flags(300 << 10));
  case WEIR_CALL_ModuleUnload:
    return d->ModuleUnload(d, MODULE_ARG);
  case WEIR_CALL_ModuleGetFunction: {
    weir_cu_function *function = OUT(0, weir_cu_function);
    weir_cu_result r = d->ModuleGetFunction(d, function, MODULE_ARG,
                                            rarely()   ? NULL
                                            : rarely() ? "other"
                                                       : "weir_spin");
    if (!r)
      KEEP(FUNCTION, *function);
    return r;
  }
  case WEIR_CALL_LaunchKernel: {
    unsigned one = rarely() ? any_flags(2000) : 1;
    return d->LaunchKernel(d, FUNCTION_ARG, 1, one, 1, one, 1, 1, any_flags(100), STREAM_ARG, rarely() ? NULL : params,
                           rarely() ? params : NULL);
  }
  default:
    return -1;
  }
}

static weir_cu_result call_streams(weir_driver_call call) {
  weir_cu_stream *stream = OUT(0, weir_cu_stream);
  weir_cu_event *event = OUT(0, weir_cu_event);
  weir_cu_result r;
  switch (call) {
  case WEIR_CALL_StreamCreateWithPriority:
    r = d->StreamCreateWithPriority(d, stream, any_flags(2), any_int());
    if (!r)
      KEEP(STREAM, *stream);
    return r;
  case WEIR_CALL_StreamDestroy:
    return d->StreamDestroy(d, STREAM_ARG);
  case WEIR_CALL_StreamQuery:
    return d->StreamQuery(d, STREAM_ARG);
  case WEIR_CALL_StreamSynchronize:
    return d->StreamSynchronize(d, STREAM_ARG);
  case WEIR_CALL_StreamWaitEvent:
    return d->StreamWaitEvent(d, STREAM_ARG, EVENT_ARG, any_flags(1));
  case WEIR_CALL_StreamGetPriority:
    return d->StreamGetPriority(d, STREAM_ARG, OUT(0, int));
  case WEIR_CALL_StreamGetFlags:
    return d->StreamGetFlags(d, STREAM_ARG, OUT(0, unsigned));
  case WEIR_CALL_StreamGetCtx:
    return d->StreamGetCtx(d, STREAM_ARG, OUT(0, weir_cu_context));
  case WEIR_CALL_StreamBeginCapture:
    return d->StreamBeginCapture(d, STREAM_ARG, soft_random(2) ? WEIR_CU_CAPTURE_RELAXED : any_int());
  case WEIR_CALL_StreamIsCapturing:
    return d->StreamIsCapturing(d, STREAM_ARG, OUT(0, int));
  case WEIR_CALL_StreamGetCaptureInfo: {
    const weir_cu_graph_node **nodes = OUT(3, const weir_cu_graph_node *);
    int *status = OUT(0, int);
    weir_cu_graph *graph = OUT(2, weir_cu_graph);
    size_t count = 0;
    r = d->StreamGetCaptureInfo(d, STREAM_ARG, status, OUT(1, unsigned long long), graph, nodes, &count);
    if (!r && *status == WEIR_CU_CAPTURE_STATUS_ACTIVE) {
      if (nodes && count)
        KEEP(NODE, (*nodes)[soft_random(count)]);
      if (graph)
        KEEP(GRAPH, *graph);
    }
    return r;
  }
  case WEIR_CALL_ThreadExchangeStreamCaptureMode: {
    int mode = soft_random(2) ? WEIR_CU_CAPTURE_RELAXED : any_int();
    return d->ThreadExchangeStreamCaptureMode(d, rarely() ? NULL : &mode);
  }
  case WEIR_CALL_EventCreate:
    r = d->EventCreate(d, event, any_flags(8));
    if (!r)
      KEEP(EVENT, *event);
    return r;
  case WEIR_CALL_EventRecord:
    return d->EventRecord(d, EVENT_ARG, STREAM_ARG);
  case WEIR_CALL_EventRecordWithFlags:
    return d->EventRecordWithFlags(d, EVENT_ARG, STREAM_ARG, any_flags(1));
  case WEIR_CALL_EventQuery:
    return d->EventQuery(d, EVENT_ARG);
  case WEIR_CALL_EventSynchronize:
    return d->EventSynchronize(d, EVENT_ARG);
  case WEIR_CALL_EventElapsedTime: {
    weir_cu_event start = EVENT_ARG, end = soft_random(2) ? start : EVENT_ARG;
    return d->EventElapsedTime(d, OUT(0, float), start, end);
  }
  case WEIR_CALL_EventDestroy:
    return d->EventDestroy(d, EVENT_ARG);
  default:
    return -1;
  }
}

static unsigned long destroyed;
static void count_destroyed(void *count) { ++*(unsigned long *)count; }

static weir_cu_result call_graphs(weir_driver_call call) {
  weir_cu_graph_node nodes[4];
  size_t count = soft_random(5);
  weir_cu_result r;
  switch (call) {
  case WEIR_CALL_StreamEndCapture: {
    weir_cu_graph graph = NULL; /* written also on failure */
    r = d->StreamEndCapture(d, STREAM_ARG, rarely() ? NULL : &graph);
    if (!r)
      KEEP(GRAPH, graph);
    return r;
  }
  case WEIR_CALL_GraphInstantiate: {
    weir_cu_graph_exec *exec = OUT(0, weir_cu_graph_exec);
    r = d->GraphInstantiate(d, exec, GRAPH_ARG, any_flags64());
    if (!r)
      KEEP(EXEC, *exec);
    return r;
  }
  case WEIR_CALL_UserObjectCreate: {
    weir_cu_user_object *object = OUT(0, weir_cu_user_object);
    r = d->UserObjectCreate(d, object, &destroyed, rarely() ? NULL : count_destroyed, (unsigned)soft_random(3),
                            rarely() ? 0 : WEIR_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (!r)
      KEEP(USER_OBJECT, *object);
    return r;
  }
  case WEIR_CALL_UserObjectRelease:
    return d->UserObjectRelease(d, USER_OBJECT_ARG, (unsigned)soft_random(3));
  case WEIR_CALL_GraphRetainUserObject:
    return d->GraphRetainUserObject(d, GRAPH_ARG, USER_OBJECT_ARG, (unsigned)soft_random(3), (unsigned)soft_random(2));
  case WEIR_CALL_GraphLaunch:
    return d->GraphLaunch(d, EXEC_ARG, STREAM_ARG);
  case WEIR_CALL_GraphUpload:
    return d->GraphUpload(d, EXEC_ARG, STREAM_ARG);
  case WEIR_CALL_GraphGetNodes:
    r = d->GraphGetNodes(d, GRAPH_ARG, nodes, rarely() ? NULL : &count);
    if (!r && count)
      KEEP(NODE, nodes[0]);
    return r;
  case WEIR_CALL_GraphNodeGetDependencies:
    r = d->GraphNodeGetDependencies(d, NODE_ARG, soft_random(2) ? nodes : NULL, rarely() ? NULL : &count);
    return r;
  case WEIR_CALL_GraphDebugDotPrint:
    return d->GraphDebugDotPrint(d, GRAPH_ARG,
                                 rarely()   ? NULL
                                 : rarely() ? "/nowhere/at/all"
                                            : "/dev/null",
                                 any_flags(8));
  case WEIR_CALL_GraphDestroy:
    return d->GraphDestroy(d, GRAPH_ARG);
  case WEIR_CALL_GraphExecDestroy:
    return d->GraphExecDestroy(d, EXEC_ARG);
  case WEIR_CALL_DeviceGetGraphMemAttribute:
    return d->DeviceGetGraphMemAttribute(d, any_device(), any_int(), OUT(0, void));
  case WEIR_CALL_DeviceGraphMemTrim:
    return d->DeviceGraphMemTrim(d, any_device());
  default:
    return -1;
  }
}

/* ---- The test ---- */

static unsigned long successes[WEIR_CALL_COUNT];

static void one_call(weir_driver_call call) {
  static weir_cu_result (*const groups[])(weir_driver_call) = {call_device, call_memory,  call_ipc_and_pools,
                                                               call_work,   call_streams, call_graphs};
  memset(out, 0xa5, sizeof out);
  weir_cu_result r = -1;
  for (size_t i = 0; i < sizeof groups / sizeof *groups && r == -1; i++)
    r = groups[i](call);
  const char *name;
  if (r == -1)
    fail_msg("%s is not called", weir_driver_call_name(call));
  if (d->GetErrorName(d, r, &name) != WEIR_CU_SUCCESS)
    fail_msg("%s answers %d", weir_driver_call_name(call), r);
  successes[call] += r == WEIR_CU_SUCCESS;
  for (size_t i = 0; r && i < sizeof out; i++)
    if (((unsigned char *)out)[i] != 0xa5)
      fail_msg("%s answers %s and writes something", weir_driver_call_name(call), name);
}

static void run(uint64_t seed) {
  soft_open(WEIR_SOFT_STEPPED, DEVICES, 32 * MIB);
  soft_seed(seed);
  memset(kept, 0, sizeof kept);
  for (int i = 0; i < DEVICES; i++)
    KEEP(CONTEXT, contexts[i]);
  for (int i = 0; i < CALLS; i++) {
    /* Calls with many preconditions get more attempts. Captures must be ended, or else all streams capture. */
    static const weir_driver_call favoured[] = {
        WEIR_CALL_StreamEndCapture, WEIR_CALL_StreamEndCapture, WEIR_CALL_StreamEndCapture,
        WEIR_CALL_MemMap,           WEIR_CALL_MemSetAccess,     WEIR_CALL_GraphInstantiate,
        WEIR_CALL_GraphLaunch,      WEIR_CALL_GraphGetNodes,    WEIR_CALL_MemsetD8Async,
        WEIR_CALL_MemcpyAsync,      WEIR_CALL_LaunchKernel,     WEIR_CALL_EventRecord,
        WEIR_CALL_StreamWaitEvent,  WEIR_CALL_MemAllocAsync,    WEIR_CALL_GraphNodeGetDependencies};
    one_call(soft_random(3) ? (weir_driver_call)soft_random(WEIR_CALL_COUNT)
                            : favoured[soft_random(sizeof favoured / sizeof *favoured)]);
    weir_soft_step(d, STREAM_ARG, soft_random(2), NULL);
    if (soft_random(64) == 0) {
      /* Restores a context and a relaxed mode, or else most calls fail. */
      weir_cu_context context;
      int mode = WEIR_CU_CAPTURE_RELAXED, device = (int)soft_random(DEVICES);
      assert_cu(d->DevicePrimaryCtxRetain(d, &context, device));
      assert_cu(d->CtxSetCurrent(d, context));
      assert_cu(d->ThreadExchangeStreamCaptureMode(d, &mode));
      KEEP(CONTEXT, context);
    }
  }
  weir_driver_close(d); /* whatever is left over */
  d = NULL;
}

FIXTURE(.teardown = soft_teardown)

TEST(any_call) {
  int rounds = 6;
  bool all = true;
  for (uint64_t seed = soft_first_seed(&rounds), i = 0; i < (uint64_t)rounds; i++, seed++)
    run(seed);
  soft_seed(0);
  if (rounds == 1)
    return;
  /* Most entries succeeded at least once. The others need a second process, or special memory. */
  for (int call = 0; call < WEIR_CALL_COUNT; call++)
    if (!successes[call] && call != WEIR_CALL_IpcOpenMemHandle && call != WEIR_CALL_IpcOpenEventHandle &&
        call != WEIR_CALL_IpcCloseMemHandle && call != WEIR_CALL_MemImportFromShareableHandle) {
      print_error("%s never succeeded\n", weir_driver_call_name((weir_driver_call)call));
      all = false;
    }
  assert_true(all);
}
