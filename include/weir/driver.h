/*
 * The driver table: all calls that Weir makes to a device, with the names and rules of the CUDA driver API.
 *
 * Weir has four tables: NVIDIA's driver, the software device, the ledger, which counts memory and has none, and a
 * wrapper that makes calls of another table fail. A program can use its own (weir_use_driver).
 *
 * A table is an object: every entry takes its table as the first argument, so that a process can have several.
 *
 *     weir_cu_deviceptr p;
 *     weir_cu_result r = driver->MemAlloc(driver, &p, 2 << 20);
 *
 * The types have the layout of CUDA's, under names that do not collide with cuda.h: a CUstream is a weir_cu_stream
 * without a cast, and no CUDA header is needed.
 */
#ifndef WEIR_DRIVER_H
#define WEIR_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUresult, CUdevice, CUdeviceptr and the handles. */
typedef int weir_cu_result;
typedef int weir_cu_device;
typedef unsigned long long weir_cu_deviceptr;
typedef unsigned long long weir_cu_mem_handle;
typedef struct CUctx_st *weir_cu_context;
typedef struct CUstream_st *weir_cu_stream;
typedef struct CUevent_st *weir_cu_event;
typedef struct CUgraph_st *weir_cu_graph;
typedef struct CUgraphExec_st *weir_cu_graph_exec;
typedef struct CUgraphNode_st *weir_cu_graph_node;
typedef struct CUuserObject_st *weir_cu_user_object;
typedef struct CUmemPoolHandle_st *weir_cu_mempool;
typedef struct CUmod_st *weir_cu_module;
typedef struct CUfunc_st *weir_cu_function;
typedef void (*weir_cu_host_fn)(void *data);

/* CUuuid: the identity of a device. */
typedef struct weir_cu_uuid {
  char bytes[16];
} weir_cu_uuid;

/* CUipcMemHandle: memory that another process opens. */
typedef struct weir_cu_ipc_mem_handle {
  char reserved[64];
} weir_cu_ipc_mem_handle;

/* CUipcEventHandle: an event that another process opens. */
typedef struct weir_cu_ipc_event_handle {
  char reserved[64];
} weir_cu_ipc_event_handle;

/* The location of memory: type is WEIR_CU_LOCATION_DEVICE and id the device. */
typedef struct weir_cu_mem_location {
  int type;
  int id;
} weir_cu_mem_location;

/* What MemCreate creates: type is WEIR_CU_ALLOCATION_PINNED, handle_types a WEIR_CU_HANDLE_*. */
typedef struct weir_cu_mem_prop {
  int type;
  int handle_types;
  weir_cu_mem_location location;
  void *win32_metadata;
  struct {
    unsigned char compression;
    unsigned char gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
} weir_cu_mem_prop;

/* flags is a WEIR_CU_ACCESS_*. */
typedef struct weir_cu_mem_access {
  weir_cu_mem_location location;
  int flags;
} weir_cu_mem_access;

/* What MemPoolCreate creates. The fields mean the same as in weir_cu_mem_prop; max_size 0 is the default of the
 * driver. */
typedef struct weir_cu_mempool_props {
  int type;
  int handle_types;
  weir_cu_mem_location location;
  void *win32_attributes;
  uint64_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
} weir_cu_mempool_props;

/* Handles of the legacy default stream and of the default stream of the calling thread. */
#define WEIR_CU_STREAM_LEGACY ((weir_cu_stream)0x1)
#define WEIR_CU_STREAM_PER_THREAD ((weir_cu_stream)0x2)

enum {
  WEIR_CU_STREAM_DEFAULT = 0,
  WEIR_CU_STREAM_NON_BLOCKING = 1,

  WEIR_CU_EVENT_DEFAULT = 0,
  WEIR_CU_EVENT_BLOCKING_SYNC = 1,
  WEIR_CU_EVENT_DISABLE_TIMING = 2,
  WEIR_CU_EVENT_INTERPROCESS = 4,
  WEIR_CU_EVENT_RECORD_EXTERNAL = 1,
  WEIR_CU_EVENT_WAIT_EXTERNAL = 1,

  WEIR_CU_MEMHOSTALLOC_PORTABLE = 1,
  WEIR_CU_MEMHOSTALLOC_DEVICEMAP = 2,
  WEIR_CU_MEMHOSTALLOC_WRITECOMBINED = 4,

  WEIR_CU_MEMHOSTREGISTER_PORTABLE = 1,
  WEIR_CU_MEMHOSTREGISTER_DEVICEMAP = 2,

  WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,

  WEIR_CU_CAPTURE_GLOBAL = 0,
  WEIR_CU_CAPTURE_THREAD_LOCAL = 1,
  WEIR_CU_CAPTURE_RELAXED = 2,

  WEIR_CU_CAPTURE_STATUS_NONE = 0,
  WEIR_CU_CAPTURE_STATUS_ACTIVE = 1,
  WEIR_CU_CAPTURE_STATUS_INVALIDATED = 2,

  WEIR_CU_GRAPH_AUTO_FREE_ON_LAUNCH = 1,
  WEIR_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
  WEIR_CU_GRAPH_USER_OBJECT_MOVE = 1,

  WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT = 0,
  WEIR_CU_GRAPH_MEM_ATTR_USED_HIGH = 1,
  WEIR_CU_GRAPH_MEM_ATTR_RESERVED_CURRENT = 2,
  WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH = 3,

  WEIR_CU_LOCATION_DEVICE = 1,
  WEIR_CU_ALLOCATION_PINNED = 1,
  WEIR_CU_HANDLE_NONE = 0,
  WEIR_CU_HANDLE_POSIX_FD = 1,
  WEIR_CU_HANDLE_FABRIC = 8,
  WEIR_CU_ACCESS_NONE = 0,
  WEIR_CU_ACCESS_READ = 1,
  WEIR_CU_ACCESS_READWRITE = 3,
  WEIR_CU_GRANULARITY_MINIMUM = 0,
  WEIR_CU_GRANULARITY_RECOMMENDED = 1,

  WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
  WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
  WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
  WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
  WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT = 5,
  WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH = 6,
  WEIR_CU_MEMPOOL_ATTR_USED_CURRENT = 7,
  WEIR_CU_MEMPOOL_ATTR_USED_HIGH = 8,

  WEIR_CU_POINTER_ATTR_CONTEXT = 1,
  WEIR_CU_POINTER_ATTR_MEMORY_TYPE = 2, /* WEIR_CU_MEMORY_TYPE_* */
  WEIR_CU_POINTER_ATTR_DEVICE_POINTER = 3,
  WEIR_CU_POINTER_ATTR_HOST_POINTER = 4,
  WEIR_CU_POINTER_ATTR_BUFFER_ID = 7,
  WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL = 9,
  WEIR_CU_POINTER_ATTR_RANGE_START = 11,
  WEIR_CU_POINTER_ATTR_RANGE_SIZE = 12,
  WEIR_CU_POINTER_ATTR_MAPPED = 13,

  WEIR_CU_MEMORY_TYPE_HOST = 1,
  WEIR_CU_MEMORY_TYPE_DEVICE = 2,

  WEIR_CU_FUNC_ATTR_MAX_THREADS_PER_BLOCK = 0,
  WEIR_CU_FUNC_ATTR_SHARED_SIZE = 1, /* static shared memory in bytes */
  WEIR_CU_FUNC_ATTR_CONST_SIZE = 2,
  WEIR_CU_FUNC_ATTR_LOCAL_SIZE = 3, /* of a thread */
  WEIR_CU_FUNC_ATTR_NUM_REGS = 4,   /* of a thread; 0 on the software device */
  WEIR_CU_FUNC_ATTR_PTX_VERSION = 5,
  WEIR_CU_FUNC_ATTR_BINARY_VERSION = 6,
  WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE = 8,

  WEIR_CU_JIT_INFO_LOG_BUFFER = 3,
  WEIR_CU_JIT_INFO_LOG_BUFFER_SIZE = 4,
  WEIR_CU_JIT_ERROR_LOG_BUFFER = 5,
  WEIR_CU_JIT_ERROR_LOG_BUFFER_SIZE = 6,

  WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK = 1,
  WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK = 8,
  WEIR_CU_ATTR_WARP_SIZE = 10,
  WEIR_CU_ATTR_CLOCK_RATE = 13, /* kHz */
  WEIR_CU_ATTR_MULTIPROCESSOR_COUNT = 16,
  WEIR_CU_ATTR_INTEGRATED = 18,
  WEIR_CU_ATTR_PCI_BUS_ID = 33,
  WEIR_CU_ATTR_PCI_DEVICE_ID = 34,
  WEIR_CU_ATTR_L2_CACHE_SIZE = 38,
  WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR = 39,
  WEIR_CU_ATTR_UNIFIED_ADDRESSING = 41,
  WEIR_CU_ATTR_PCI_DOMAIN_ID = 50,
  WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR = 75,
  WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR = 76,
  WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
  WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
  WEIR_CU_ATTR_MULTI_GPU_BOARD = 84,
  WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  WEIR_CU_ATTR_HOST_REGISTER_SUPPORTED = 99,
  WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED = 102,
  WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED = 103,
  WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED = 110,
  WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED = 115,
  WEIR_CU_ATTR_IPC_EVENT_SUPPORTED = 125,
  WEIR_CU_ATTR_HANDLE_FABRIC_SUPPORTED = 128
};

/* The result codes: code, name, text. The names are CUDA's without CUDA_ or CUDA_ERROR_, the texts the driver's own. */
#define WEIR_CU_RESULT_MAP(X)                                                                                          \
  X(0, SUCCESS, "no error")                                                                                            \
  X(1, INVALID_VALUE, "invalid argument")                                                                              \
  X(2, OUT_OF_MEMORY, "out of memory")                                                                                 \
  X(3, NOT_INITIALIZED, "initialization error")                                                                        \
  X(4, DEINITIALIZED, "driver shutting down")                                                                          \
  X(34, STUB_LIBRARY, "CUDA driver is a stub library")                                                                 \
  X(46, DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable")                                       \
  X(100, NO_DEVICE, "no CUDA-capable device is detected")                                                              \
  X(101, INVALID_DEVICE, "invalid device ordinal")                                                                     \
  X(200, INVALID_IMAGE, "device kernel image is invalid")                                                              \
  X(201, INVALID_CONTEXT, "invalid device context")                                                                    \
  X(205, MAP_FAILED, "mapping of buffer object failed")                                                                \
  X(206, UNMAP_FAILED, "unmapping of buffer object failed")                                                            \
  X(208, ALREADY_MAPPED, "resource already mapped")                                                                    \
  X(211, NOT_MAPPED, "resource not mapped")                                                                            \
  X(214, ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                                                     \
  X(217, PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices")                            \
  X(218, INVALID_PTX, "a PTX JIT compilation failed")                                                                  \
  X(220, NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution")                             \
  X(226, CONTAINED, "Invalid access of peer GPU memory over nvlink or a hardware error")                               \
  X(222, UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.")                      \
  X(301, FILE_NOT_FOUND, "file not found")                                                                             \
  X(304, OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")                                     \
  X(400, INVALID_HANDLE, "invalid resource handle")                                                                    \
  X(401, ILLEGAL_STATE, "the operation cannot be performed in the present state")                                      \
  X(402, LOSSY_QUERY, "attempted introspection would be semantically lossy")                                           \
  X(500, NOT_FOUND, "named symbol not found")                                                                          \
  X(600, NOT_READY, "device not ready")                                                                                \
  X(700, ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                                  \
  X(701, LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")                                           \
  X(702, LAUNCH_TIMEOUT, "the launch timed out and was terminated")                                                    \
  X(704, PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                                                \
  X(705, PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled")                                                  \
  X(708, PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process")                                  \
  X(709, CONTEXT_IS_DESTROYED, "context is destroyed")                                                                 \
  X(710, ASSERT, "device-side assert triggered")                                                                       \
  X(712, HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped")                \
  X(713, HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")                      \
  X(714, HARDWARE_STACK_ERROR, "hardware stack error")                                                                 \
  X(715, ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")                                                \
  X(716, MISALIGNED_ADDRESS, "misaligned address")                                                                     \
  X(717, INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space")                              \
  X(718, INVALID_PC, "invalid program counter")                                                                        \
  X(719, LAUNCH_FAILED, "unspecified launch failure")                                                                  \
  X(721, TENSOR_MEMORY_LEAK, "tensor memory not completely freed")                                                     \
  X(800, NOT_PERMITTED, "operation not permitted")                                                                     \
  X(801, NOT_SUPPORTED, "operation not supported")                                                                     \
  X(802, SYSTEM_NOT_READY, "system not yet initialized")                                                               \
  X(803, SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination")                    \
  X(810, MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server")                                    \
  X(900, STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                               \
  X(901, STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")                        \
  X(902, STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")                      \
  X(903, STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")                             \
  X(904, STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                                                \
  X(905, STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")                          \
  X(906, STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream")      \
  X(907, CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")                    \
  X(908, STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread")      \
  X(911, EXTERNAL_DEVICE, "an async error has occured in external entity outside of CUDA")                             \
  X(999, UNKNOWN, "unknown error")

enum {
#define X(code, name, text) WEIR_CU_##name = code,
  WEIR_CU_RESULT_MAP(X)
#undef X
};

/* The table. driver_entries.h has the contract of each entry. New entries are optional and are
 * added at the end; the library uses one only if `size` says that the table has it. */
typedef struct weir_driver weir_driver;
struct weir_driver {
  size_t size;                        /* sizeof(weir_driver), so that entries can be added */
  const char *name;                   /* "cuda", "soft", "ledger", ... */
  void (*destroy)(weir_driver *self); /* ends the driver and frees the table; NULL if there is nothing to free */
  uint64_t capabilities;              /* WEIR_DRIVER_* bits */
#define WEIR__AND(...) , __VA_ARGS__
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  weir_cu_result (*name)(weir_driver * self WEIR__AND params);
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) weir_cu_result (*name)(weir_driver * self);
#include "weir/driver_entries.h"
};

/* Sets the size and leaves everything else zero: the first step in making a table of your own. */
static inline void weir_driver_init(weir_driver *driver) { WEIR__INIT(driver); }

/* What a table states about itself, in `capabilities`. The layers above check these and never the name. A table that
 * wraps another has the capabilities of the other. */
enum {
  /* Init reads CUDA_VISIBLE_DEVICES, and the table has only the devices that the variable leaves visible, in its
   * order. No layer above filters devices. */
  WEIR_DRIVER_FILTERS_VISIBLE = 1 << 0,
  /* A child that was forked after Init may open and use a table of its own. Without this bit the runtime refuses to
   * start in such a child, as NVIDIA's driver would. */
  WEIR_DRIVER_SURVIVES_FORK = 1 << 1,
  /* The devices are NVIDIA's: metrics and the processes that use a device come from its management library, by PCI
   * bus id, and other CUDA libraries can use the memory. */
  WEIR_DRIVER_NVIDIA = 1 << 2,
  /* The host can read and write device memory at its address. */
  WEIR_DRIVER_HOST_ACCESS = 1 << 3,
  /* An invalid or destroyed stream handle is WEIR_CU_INVALID_HANDLE. With NVIDIA's driver it is undefined behaviour. */
  WEIR_DRIVER_CHECKS_STREAMS = 1 << 4,
  /* Kernels are functions of the host: ModuleLoadData takes a weir_soft_image (weir/soft.h), and PTX only names
   * functions that were registered. */
  WEIR_DRIVER_HOST_KERNELS = 1 << 5,
  /* An access to memory that is not mapped is reported with its address, to guard mode. */
  WEIR_DRIVER_NAMES_FAULTS = 1 << 6
};

/* The numbers of the entries, for counting calls and making them fail. */
typedef enum weir_driver_call {
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) WEIR_CALL_##name,
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) WEIR_CALL_##name,
#include "weir/driver_entries.h"
  WEIR_CALL_COUNT
} weir_driver_call;

/* "cuMemAlloc", or NULL for an invalid number. */
const char *weir_driver_call_name(weir_driver_call call);

/* "CUDA_ERROR_OUT_OF_MEMORY" and "out of memory". Never NULL: there is a text for unknown codes. */
const char *weir_cu_result_name(weir_cu_result result);
const char *weir_cu_result_string(weir_cu_result result);

/* Loads NVIDIA's driver from libcuda.so.1. WEIR_ERROR_NO_DRIVER if that fails: weir_last_error() says what is
 * missing. */
weir_status weir_driver_open_cuda(weir_driver **driver);

/* Opens a driver by name: "cuda", "soft" (with weir_soft_options_from_env), or "auto", which is cuda if it has a
 * device and soft otherwise. NULL reads WEIR_DRIVER, whose default is "auto". */
weir_status weir_driver_open(const char *choice, weir_driver **driver);

/* Closes a driver of one of the open calls. NULL is allowed. */
void weir_driver_close(weir_driver *driver);

/* ---- The ledger: counts memory and has none, for replay ---- */

typedef struct weir_ledger_options {
  size_t size;    /* sizeof(weir_ledger_options) */
  int devices;    /* 1 */
  uint64_t bytes; /* memory of each device, 80 GiB */
  /* If set, chooses the address of each new allocation (MemAlloc) or reservation (MemAddressReserve). 0 leaves the
   * choice to the ledger. */
  weir_cu_deviceptr (*place)(void *context, weir_driver_call call, uint64_t bytes);
  void *place_context;
  /* If set, the ledger accepts stream handles that it did not create: a recording has the handles of its own
   * streams. An event that was recorded in such a stream has completed if this returns 1. */
  int (*is_done)(void *context, weir_cu_stream stream);
  void *is_done_context;
} weir_ledger_options;

/* Sets `size` and the defaults. */
static inline void weir_ledger_options_init(weir_ledger_options *options) {
  if (!options)
    return;
  WEIR__INIT(options);
  options->devices = 1;
  options->bytes = (uint64_t)80 << 30;
}

/* NULL options are the defaults. Work is complete when it is enqueued. A ledger is for one thread at a time. */
weir_status weir_driver_open_ledger(const weir_ledger_options *options, weir_driver **driver);

/* ---- Fault injection: a table that makes calls of another fail ---- */

/* Wraps `inner`, which the caller keeps. */
weir_status weir_driver_open_fault(weir_driver *inner, weir_driver **driver);

/* The nth call of this entry from now (1 is the next) fails with `result` and is not passed on. With `sticky`, all
 * calls of all entries fail from then on, as after a faulting kernel. A second rule for an entry replaces the first;
 * nth 0 removes it. */
weir_status weir_fault_nth(weir_driver *fault, weir_driver_call call, uint64_t nth, weir_cu_result result, int sticky);

/* The nth call of any entry from now fails, except GetError* and calls that destroy. */
weir_status weir_fault_nth_any(weir_driver *fault, uint64_t nth, weir_cu_result result);

/* Every call that can fail for lack of resources fails with probability per_million / 1e6. Equal seeds select equal
 * calls. 0 turns it off. */
weir_status weir_fault_random(weir_driver *fault, uint64_t seed, unsigned per_million, weir_cu_result result);

/* Removes all rules; the counts stay. */
weir_status weir_fault_clear(weir_driver *fault);

/* The number of calls of an entry, and of those that were made to fail. WEIR_CALL_COUNT means all entries. */
weir_status weir_fault_counts(weir_driver *fault, weir_driver_call call, uint64_t *calls, uint64_t *faults);

/* ---- Contexts: a table that asks the program for a context ---- */

/* Makes a context current for the calling thread, which has none. Returns 1, or 0 if there is to be none. */
typedef int (*weir_context_fn)(void *context);

/* Wraps `inner`, which the caller keeps. CtxGetCurrent of the table calls the provider in a thread without a context,
 * so that a library which shares the device, such as the CUDA runtime, can choose it. */
weir_status weir_driver_open_contexts(weir_driver *inner, weir_context_fn provide, void *context, weir_driver **driver);

/* ---- Timing: a table that counts and times the calls of another ---- */

/* Wraps `inner`, which the caller keeps. Costs two readings of the clock for each call. */
weir_status weir_driver_open_timing(weir_driver *inner, weir_driver **driver);

/* The number of calls of an entry, their total time on the host, and the longest of them. WEIR_CALL_COUNT means all
 * entries. Outputs may be NULL. Safe while other threads make calls. */
weir_status weir_timing_counts(weir_driver *timing, weir_driver_call call, uint64_t *calls, uint64_t *ns,
                               uint64_t *longest_ns);

#ifdef __cplusplus
}
#endif
#endif
