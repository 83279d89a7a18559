/*
 * Calls every entry of a table once, with zero for all arguments, and collects the results.
 */
#pragma once

#include "weir/driver.h"

/* results[call] is the result of the entry, or WEIR_CALL_ABSENT if it is NULL. */
enum { WEIR_CALL_ABSENT = -1 };

static inline void every_call(weir_driver *d, weir_cu_result results[WEIR_CALL_COUNT]) {
#define CALL(name, ...) results[WEIR_CALL_##name] = d->name != NULL ? d->name(__VA_ARGS__) : WEIR_CALL_ABSENT
  for (int call = 0; call < WEIR_CALL_COUNT; call++)
    results[call] = WEIR_CALL_ABSENT - 1; /* reveals an entry that is missing below */
  CALL(Init, d, 0);
  CALL(DriverGetVersion, d, NULL);
  CALL(GetErrorName, d, 0, NULL);
  CALL(GetErrorString, d, 0, NULL);
  CALL(DeviceGetCount, d, NULL);
  CALL(DeviceGet, d, NULL, 0);
  CALL(DeviceGetName, d, NULL, 0, 0);
  CALL(DeviceGetUuid, d, NULL, 0);
  CALL(DeviceGetPCIBusId, d, NULL, 0, 0);
  CALL(DeviceGetAttribute, d, NULL, 0, 0);
  CALL(DeviceTotalMem, d, NULL, 0);
  CALL(DeviceCanAccessPeer, d, NULL, 0, 0);
  CALL(DevicePrimaryCtxRetain, d, NULL, 0);
  CALL(DevicePrimaryCtxRelease, d, 0);
  CALL(DevicePrimaryCtxGetState, d, 0, NULL, NULL);
  CALL(CtxGetCurrent, d, NULL);
  CALL(CtxSetCurrent, d, NULL);
  CALL(CtxGetDevice, d, NULL);
  CALL(CtxSynchronize, d);
  CALL(CtxGetStreamPriorityRange, d, NULL, NULL);
  CALL(CtxEnablePeerAccess, d, NULL, 0);
  CALL(CtxDisablePeerAccess, d, NULL);
  CALL(MemGetInfo, d, NULL, NULL);
  CALL(MemAlloc, d, NULL, 0);
  CALL(MemFree, d, 0);
  CALL(MemGetAddressRange, d, NULL, NULL, 0);
  CALL(MemHostAlloc, d, NULL, 0, 0);
  CALL(MemFreeHost, d, NULL);
  CALL(MemHostRegister, d, NULL, 0, 0);
  CALL(MemHostUnregister, d, NULL);
  CALL(MemHostGetDevicePointer, d, NULL, NULL, 0);
  CALL(PointerGetAttribute, d, NULL, 0, 0);
  CALL(MemAddressReserve, d, NULL, 0, 0, 0, 0);
  CALL(MemAddressFree, d, 0, 0);
  CALL(MemCreate, d, NULL, 0, NULL, 0);
  CALL(MemRelease, d, 0);
  CALL(MemMap, d, 0, 0, 0, 0, 0);
  CALL(MemUnmap, d, 0, 0);
  CALL(MemSetAccess, d, 0, 0, NULL, 0);
  CALL(MemGetAllocationGranularity, d, NULL, NULL, 0);
  CALL(MemExportToShareableHandle, d, NULL, 0, 0, 0);
  CALL(MemImportFromShareableHandle, d, NULL, NULL, 0);
  CALL(IpcGetMemHandle, d, NULL, 0);
  CALL(IpcOpenMemHandle, d, NULL, (weir_cu_ipc_mem_handle){{0}}, 0);
  CALL(IpcCloseMemHandle, d, 0);
  CALL(IpcGetEventHandle, d, NULL, NULL);
  CALL(IpcOpenEventHandle, d, NULL, (weir_cu_ipc_event_handle){{0}});
  CALL(MemAllocAsync, d, NULL, 0, NULL);
  CALL(MemAllocFromPoolAsync, d, NULL, 0, NULL, NULL);
  CALL(MemFreeAsync, d, 0, NULL);
  CALL(DeviceGetDefaultMemPool, d, NULL, 0);
  CALL(DeviceGetMemPool, d, NULL, 0);
  CALL(DeviceSetMemPool, d, 0, NULL);
  CALL(MemPoolCreate, d, NULL, NULL);
  CALL(MemPoolDestroy, d, NULL);
  CALL(MemPoolSetAttribute, d, NULL, 0, NULL);
  CALL(MemPoolGetAttribute, d, NULL, 0, NULL);
  CALL(MemPoolTrimTo, d, NULL, 0);
  CALL(MemPoolSetAccess, d, NULL, NULL, 0);
  CALL(Memcpy, d, 0, 0, 0);
  CALL(MemcpyAsync, d, 0, 0, 0, NULL);
  CALL(MemcpyPeerAsync, d, 0, NULL, 0, NULL, 0, NULL);
  CALL(MemsetD8Async, d, 0, 0, 0, NULL);
  CALL(MemsetD32Async, d, 0, 0, 0, NULL);
  CALL(StreamCreateWithPriority, d, NULL, 0, 0);
  CALL(StreamDestroy, d, NULL);
  CALL(StreamQuery, d, NULL);
  CALL(StreamSynchronize, d, NULL);
  CALL(StreamWaitEvent, d, NULL, NULL, 0);
  CALL(LaunchHostFunc, d, NULL, NULL, NULL);
  CALL(StreamGetPriority, d, NULL, NULL);
  CALL(StreamGetFlags, d, NULL, NULL);
  CALL(StreamGetCtx, d, NULL, NULL);
  CALL(StreamBeginCapture, d, NULL, 0);
  CALL(StreamEndCapture, d, NULL, NULL);
  CALL(StreamIsCapturing, d, NULL, NULL);
  CALL(StreamGetCaptureInfo, d, NULL, NULL, NULL, NULL, NULL, NULL);
  CALL(ThreadExchangeStreamCaptureMode, d, NULL);
  CALL(EventCreate, d, NULL, 0);
  CALL(EventRecord, d, NULL, NULL);
  CALL(EventRecordWithFlags, d, NULL, NULL, 0);
  CALL(EventQuery, d, NULL);
  CALL(EventSynchronize, d, NULL);
  CALL(EventElapsedTime, d, NULL, NULL, NULL);
  CALL(EventDestroy, d, NULL);
  CALL(GraphInstantiate, d, NULL, NULL, 0);
  CALL(GraphLaunch, d, NULL, NULL);
  CALL(GraphUpload, d, NULL, NULL);
  CALL(GraphGetNodes, d, NULL, NULL, NULL);
  CALL(GraphNodeGetDependencies, d, NULL, NULL, NULL);
  CALL(GraphDebugDotPrint, d, NULL, NULL, 0);
  CALL(GraphDestroy, d, NULL);
  CALL(GraphExecDestroy, d, NULL);
  CALL(DeviceGetGraphMemAttribute, d, 0, 0, NULL);
  CALL(DeviceGraphMemTrim, d, 0);
  CALL(ModuleLoadData, d, NULL, NULL);
  CALL(ModuleLoadDataEx, d, NULL, NULL, 0, NULL, NULL);
  CALL(ModuleUnload, d, NULL);
  CALL(ModuleGetFunction, d, NULL, NULL, NULL);
  CALL(LaunchKernel, d, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL);
  CALL(FuncGetAttribute, d, NULL, 0, NULL);
  CALL(FuncSetAttribute, d, NULL, 0, 0);
  CALL(FuncGetParamInfo, d, NULL, 0, NULL, NULL);
  CALL(OccupancyMaxActiveBlocksPerMultiprocessor, d, NULL, NULL, 0, 0);
  CALL(ProfilerStart, d);
  CALL(ProfilerStop, d);
  CALL(UserObjectCreate, d, NULL, NULL, NULL, 0, 0);
  CALL(UserObjectRelease, d, NULL, 0);
  CALL(GraphRetainUserObject, d, NULL, NULL, 0, 0);
#undef CALL
}
