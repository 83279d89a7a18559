/*
 * The rules of CUDA's driver API, for tables that have no GPU below: devices and contexts, address space and virtual
 * memory, streams, events, captures, graphs, pools and kernels. Each rule stands here once. weir__model_<Name> is the
 * entry <Name> of both such tables; what differs between them is in the hooks (model_hooks):
 *
 * - The software device (soft/) runs work on threads and has memory.
 * - The ledger (ledger/) keeps books only: work is done the moment it is enqueued.
 *
 * One thread is inside a model at a time: the software device locks around every entry, the ledger serves one thread.
 * Only hooks that wait, or that run code of the program, let other threads in meanwhile; they say so.
 *
 * Objects of the model start the larger objects of a table: a soft_stream begins with a model_stream.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "base/rangemap.h"
#include "base/slab.h"
#include "driver/model/handles.h"
#include "weir/soft.h"

enum {
  MODEL_GRANULARITY = 2 << 20, /* of virtual memory */
  MODEL_MAX_DEVICES = 64,      /* sets of devices are the bits of a word */
  MODEL_ORDERS = 26,           /* sizes of address slots: MODEL_GRANULARITY << order, up to 64 TiB */
  MODEL_PAGES_IN_TABLE = 512,
  MODEL_MAX_THREADS = 1024, /* of a block */
  MODEL_MAX_PARAMS = 64,    /* of a kernel */
  MODEL_LOWEST_PRIORITY = 0,
  MODEL_GREATEST_PRIORITY = -5
};

/* Where the model places ranges by itself, a region for each size of slots: above what Linux gives a process unless it
 * asks for more, so that a touch is a crash and no memory of the program lies there; below 2^53, so that JavaScript can
 * still count. */
#define MODEL_REGION ((uint64_t)1 << 48)
#define MODEL_SPACE_BEGIN ((uint64_t)1 << 48)
#define MODEL_SPACE_END (MODEL_SPACE_BEGIN + MODEL_ORDERS * MODEL_REGION)
_Static_assert(MODEL_SPACE_END <= (uint64_t)1 << 53, "see above");

/* The kinds of handles, from hooks->first_kind on. */
enum {
  MODEL_KIND_CONTEXT,
  MODEL_KIND_STREAM,
  MODEL_KIND_EVENT,
  MODEL_KIND_MEMORY,
  MODEL_KIND_POOL,
  MODEL_KIND_GRAPH,
  MODEL_KIND_NODE,
  MODEL_KIND_EXEC,
  MODEL_KIND_MODULE,
  MODEL_KIND_FUNCTION,
  MODEL_KIND_USER_OBJECT
};

typedef struct model model;
typedef struct model_device model_device;
typedef struct model_stream model_stream;
typedef struct model_event model_event;
typedef struct model_capture model_capture;
typedef struct model_graph model_graph;
typedef struct model_exec model_exec;
typedef struct model_pool model_pool;
typedef struct model_memory model_memory;
typedef struct model_mapping model_mapping;
typedef struct model_range model_range;

/* ---- Work ---- */

typedef enum model_work_kind {
  MODEL_WORK_COPY,
  MODEL_WORK_FILL,
  MODEL_WORK_KERNEL,
  MODEL_WORK_HOST,
  MODEL_WORK_ALLOC,  /* in graphs only: a range of the graph begins to be used */
  MODEL_WORK_FREE,   /* a range goes back to its pool; a range of a graph stays */
  MODEL_WORK_RECORD, /* in graphs only, as the next: of an external event */
  MODEL_WORK_WAIT,
  MODEL_WORK_OTHER /* of the table below; never in a graph */
} model_work_kind;

/* The kernels of a weir_soft_image. Modules and work with its kernels count as references. */
typedef struct model_image {
  size_t refs;
  size_t count;
  struct model_kernel *kernels;
  void (*release)(void *context);
  void *context;
} model_image;

/* A kernel that a module may have an entry for. */
typedef struct model_kernel {
  const char *name;
  weir_soft_kernel_fn function; /* NULL for one that spins for as many cycles as its only parameter says */
  int param_count;
  const size_t *param_bytes;
  unsigned shared_bytes; /* static shared memory */
  model_image *image;    /* that it belongs to; NULL if it was registered */
  struct model_kernel *next;
} model_kernel;

/* A piece of work, in a queue or in a node of a graph. weir__model_work_copy makes a copy with references of its own.
 * */
typedef struct model_work {
  model_work_kind kind;
  model_device *device;      /* of the stream that it was given to; a graph may hold work of several devices */
  struct model_users *users; /* of the executable that it is work of, counted in its refs; NULL if there are none */
  union {
    struct {
      uint64_t to, from, bytes;
      void *staged; /* owned: what was read from pageable memory when the call was made; NULL in graphs */
    } copy;
    struct {
      uint64_t to, count;
      uint32_t value;
      unsigned width; /* 1 or 4 */
    } fill;
    struct {
      const model_kernel *kernel;
      unsigned grid[3], block[3], shared_bytes;
      unsigned char *params; /* owned: the values, each aligned to 16 */
    } kernel;
    struct {
      weir_cu_host_fn fn;
      void *data;
    } host;
    struct {
      model_range *range; /* counted in its refs */
      uint64_t turn;      /* of the range when it was freed */
    } memory;
    weir_cu_event event; /* which may be destroyed before the graph */
  } as;
} model_work;

bool weir__model_work_copy(const model_work *work, model_work *copy); /* false if the host has no memory */
void weir__model_work_end(model *m, model_work *work);                /* drops what the work holds */

/* Drops a reference. NULL is allowed. */
void weir__model_image_unref(model_image *image);

/* The kernel of a name, or NULL. */
const model_kernel *weir__model_kernel(const model *m, const char *name);

/* Bytes of the parameters of a kernel, each aligned to 16. */
size_t weir__model_params_bytes(const model_kernel *kernel);

/* ---- Graphs and captures ---- */

/* What a program wants to know the end of: when the last reference is released, `destroy` is called. */
typedef struct model_user_object {
  weir__handle head;
  uint64_t refs; /* all of them, and those of the program */
  uint64_t owned;
  weir_cu_host_fn destroy;
  void *data;
} model_user_object;

/* References to an object, of a graph or of an executable. */
typedef struct model_use {
  model_user_object *object;
  uint64_t count;
} model_use;

/* The references of an executable, which the work of its launches shares. */
typedef struct model_users {
  size_t refs; /* the executable, and each piece of its work */
  size_t count;
  model_use uses[];
} model_users;

/* Nodes of a graph, by handle. */
typedef struct model_nodes {
  weir_cu_graph_node *items;
  size_t count, room;
} model_nodes;

typedef struct model_node {
  weir__handle head;
  model_graph *graph;
  model_work work;
  model_nodes behind; /* what it depends on */
  bool followed;      /* another node depends on it */
  uint32_t mark;      /* for walks */
} model_node;

struct model_graph {
  weir__handle head;
  model_device *device;
  model_nodes nodes; /* in the order of capture, so that every node stands behind those it depends on */
  bool open;         /* still being captured */
  uint32_t mark;
  model_use *uses; /* objects that it has references to */
  size_t use_count, use_room;
};

struct model_exec {
  weir__handle head;
  model_device *device;
  model_work *works; /* in order */
  size_t count;
  model_users *users; /* NULL if there are none */
};

/* A capture that was begun and has not ended. */
struct model_capture {
  uint64_t id;
  int mode;
  bool invalid;
  struct model_thread *thread; /* that began it; NULL once the thread is gone */
  model_graph *graph;
  model_stream *origin;
  model_stream *members; /* the origin and all that joined */
  model_capture *next;
};

/* ---- Streams and events ---- */

struct model_stream {
  weir__handle head;
  model_device *device;
  unsigned flags;
  int priority;
  bool is_default; /* the legacy stream of a device, or a thread's own: no program made it */
  bool is_legacy;
  bool dropped;           /* destroyed, but still has work */
  model_capture *capture; /* NULL unless the stream takes part in one; the next two are of the capture */
  model_stream *member_next;
  model_nodes at; /* what the stream's next node depends on */
};

struct model_event {
  weir__handle head;
  model_device *device;
  unsigned flags;
  bool recorded;    /* outside of a capture, at last */
  uint64_t capture; /* id of the capture in which it was recorded last; 0 if outside of any */
  model_nodes at;   /* where the capturing stream was */
};

/* ---- Memory ---- */

typedef enum model_range_kind {
  MODEL_RANGE_PLAIN,       /* MemAlloc */
  MODEL_RANGE_POOLED,      /* MemAllocAsync */
  MODEL_RANGE_HOST,        /* MemHostAlloc */
  MODEL_RANGE_REGISTERED,  /* MemHostRegister */
  MODEL_RANGE_RESERVATION, /* MemAddressReserve */
  MODEL_RANGE_IPC,         /* IpcOpenMemHandle */
  MODEL_RANGE_BLOCKED,     /* a slot that cannot be used, since a range was placed over it */
  MODEL_RANGE_KINDS
} model_range_kind;

/* A piece of a reservation's page table: the mapping of each page, or NULL. */
typedef struct model_page_table {
  model_mapping *pages[MODEL_PAGES_IN_TABLE];
} model_page_table;

/* A range of addresses in use. */
struct model_range {
  weir__handle head;    /* of the slot; unused in a range that was placed */
  uint64_t base, bytes; /* bytes as asked for */
  uint64_t room;        /* bytes of address space, at least `bytes` */
  uint64_t id;          /* never the same twice */
  model_device *device; /* NULL for a reservation */
  model_range_kind kind;
  int order; /* of the slot; -1 for a range that was placed */
  union {
    struct {            /* POOLED */
      model_pool *pool; /* NULL if it belongs to a graph, or to work in progress */
      uint64_t turn;    /* counts its uses, so that an old free does not hit a new use */
      unsigned refs;    /* pieces of work that name it, in queues and in graphs */
      bool idle;        /* handed out to no caller */
    };
    struct {                     /* RESERVATION */
      model_page_table **tables; /* NULL until something is mapped */
      unsigned long mappings;
    };
  };
};

/* The range that a call asks for. */
typedef struct model_request {
  model_range_kind kind;
  model_device *device; /* NULL for a reservation */
  uint64_t bytes;
  uint64_t alignment; /* a power of two, or 0 */
  uint64_t wish;      /* the address that the caller prefers; 0 for any */
} model_request;

/* What MemCreate makes. It lives until it is released and no longer mapped. */
struct model_memory {
  weir__handle head;
  model_device *device;
  uint64_t bytes;
  unsigned long mappings;
  bool released;
  bool imported; /* another process, or another handle, pays for it */
};

struct model_mapping {
  uint64_t base, bytes;
  model_memory *memory;
  uint64_t id;
  uint64_t readers, writers; /* devices that may, by bit */
};

struct model_pool {
  weir__handle head;
  model_device *device;
  uint64_t max_bytes;               /* the most that it may hold; 0 if it has no limit of its own */
  uint64_t used, used_high;         /* handed out */
  uint64_t reserved, reserved_high; /* held from the device */
  uint64_t threshold;               /* may keep that much when work is waited for */
  int reuse[3];                     /* the REUSE attributes, remembered only */
  bool destroyed;                   /* lives on until all that it handed out is back */
};

/* ---- Kernels ---- */

typedef struct model_function {
  weir__handle head;
  struct model_module *module;
  const model_kernel *kernel;
  unsigned max_dynamic_bytes;  /* of a launch */
  struct model_function *next; /* in the module */
} model_function;

typedef struct model_module {
  weir__handle head;
  model_device *device;
  char *text;         /* PTX; NULL for an image */
  model_image *image; /* NULL for PTX */
  model_function *functions;
} model_module;

/* ---- The whole ---- */

struct model_device {
  int ordinal;
  int physical;                         /* its number among all devices, CUDA_VISIBLE_DEVICES apart */
  unsigned retains;                     /* of the primary context, which exists while this is not 0 */
  uint32_t generation;                  /* counts its contexts */
  uint64_t used;                        /* physical bytes in use */
  uint64_t peers;                       /* devices whose memory the context may touch, by bit */
  weir_cu_result error;                 /* set by a broken kernel: every call of the context answers it */
  model_stream *legacy;                 /* while there is a context */
  model_pool *default_pool, *pool;      /* made on first use */
  uint64_t graph_used, graph_used_high; /* memory of ranges that belong to graphs */
};

/* What a driver knows of a thread. */
typedef struct model_thread {
  model_device *current; /* whose context is current; NULL if none is */
  uint32_t generation;   /* of that context */
  int capture_mode;
  weir_cu_stream streams[MODEL_MAX_DEVICES]; /* its own default streams, made on first use; they may be gone */
} model_thread;

/* What differs between tables. A hook may be NULL where its comment says what that means. */
typedef struct model_hooks {
  unsigned first_kind; /* of its handles; a history of one table that is replayed on the other has handles of both */
  const char *device_name;
  unsigned char uuid[16]; /* byte 3 becomes the physical number of the device */
  int clock_khz, capability_major, capability_minor;
  bool shares; /* memory and events with other processes */
  size_t stream_size, event_size, exec_size, memory_size, range_size, pool_size;

  /* Backs a new PLAIN, HOST, RESERVATION or POOLED range: charges the device, chooses the address and adds the range
   * with weir__model_add_range. */
  weir_cu_result (*new_range)(model *m, const model_request *request, model_range **range);
  /* Takes back what new_range gave. The model drops the range. */
  void (*end_range)(model *m, model_range *range);

  /* Backs memory, maps it, sets the access of a mapping, and undoes these. NULL if there is nothing to do. */
  weir_cu_result (*new_memory)(model *m, model_memory *memory, int handle_types);
  void (*end_memory)(model *m, model_memory *memory);
  weir_cu_result (*map)(model *m, const model_mapping *mapping);
  weir_cu_result (*protect)(model *m, const model_mapping *mapping, uint64_t readers, uint64_t writers);
  weir_cu_result (*unmap)(model *m, uint64_t base, uint64_t bytes);

  /* Pools: a range for use in the stream's order; giving it back in the stream's order, or at once if `stream` is NULL;
   * giving unused memory back to the device until `keep` bytes are held; the end of the context, when every range has
   * to go. */
  weir_cu_result (*pool_alloc)(model *m, model_pool *pool, model_stream *stream, uint64_t bytes, model_range **range);
  weir_cu_result (*pool_free)(model *m, model_range *range, model_stream *stream);
  void (*pool_trim)(model *m, model_pool *pool, uint64_t keep);
  void (*pool_close)(model *m, model_pool *pool);

  /* Does, or enqueues, a piece of work that is no part of a capture. Owns what the work holds, whatever the result. */
  weir_cu_result (*run)(model *m, model_stream *stream, model_work *work);
  weir_cu_result (*launch)(model *m, model_exec *exec, model_stream *stream);
  /* Reads pageable memory for a copy that is enqueued. NULL if there is nothing to read. */
  weir_cu_result (*stage)(model_work *work);

  /* Whether work of the stream is under way (of the blocking streams too, for the legacy stream). NULL if it never
   * is. */
  bool (*is_busy)(model *m, const model_stream *stream);
  /* Wait, and answer the error of a broken device. Other threads may run meanwhile. */
  weir_cu_result (*wait_stream)(model *m, model_stream *stream);
  weir_cu_result (*wait_device)(model *m, model_device *device);

  /* A stream begins; it is destroyed, and has to go with weir__model_free_stream, now or when its work is done. Events:
   * begin, end, forget the last record. NULL if there is nothing to do. */
  void (*new_stream)(model *m, model_stream *stream);
  void (*drop_stream)(model *m, model_stream *stream);
  weir_cu_result (*new_event)(model *m, model_event *event);
  void (*end_event)(model *m, model_event *event);
  void (*forget_record)(model_event *event);
  void (*end_exec)(model_exec *exec);

  /* Events outside of captures. `elapsed` gets two events that were recorded. */
  weir_cu_result (*record)(model *m, model_event *event, model_stream *stream, weir_cu_stream handle);
  bool (*was_recorded)(const model_event *event); /* also by another process. NULL if event->recorded tells */
  weir_cu_result (*query)(model *m, model_event *event);
  weir_cu_result (*wait_event)(model *m, model_event *event);
  weir_cu_result (*stream_wait)(model *m, model_stream *stream, model_event *event);
  weir_cu_result (*elapsed)(model *m, model_event *start, model_event *end, float *milliseconds);

  /* The entries that share something with another process. NULL if they are NOT_SUPPORTED. */
  weir_cu_result (*MemExportToShareableHandle)(model *m, void *shareable, weir_cu_mem_handle handle, int type,
                                               unsigned long long flags);
  weir_cu_result (*MemImportFromShareableHandle)(model *m, weir_cu_mem_handle *handle, void *shareable, int type);
  weir_cu_result (*IpcGetMemHandle)(model *m, weir_cu_ipc_mem_handle *handle, weir_cu_deviceptr pointer);
  weir_cu_result (*IpcOpenMemHandle)(model *m, weir_cu_deviceptr *pointer, weir_cu_ipc_mem_handle handle,
                                     unsigned flags);
  weir_cu_result (*IpcCloseMemHandle)(model *m, weir_cu_deviceptr pointer);
  weir_cu_result (*IpcGetEventHandle)(model *m, weir_cu_ipc_event_handle *handle, weir_cu_event event);
  weir_cu_result (*IpcOpenEventHandle)(model *m, weir_cu_event *event, weir_cu_ipc_event_handle handle);
} model_hooks;

struct model {
  weir_driver table; /* first: a weir_driver * of a model is a model * */
  const model_hooks *hooks;
  bool ready;         /* Init was called */
  bool takes_foreign; /* a stream that was not made here stands for the legacy one */
  bool is_profiled;   /* between ProfilerStart and ProfilerStop */
  int device_count;
  uint64_t bytes;         /* memory of each device */
  uint64_t context_bytes; /* what a context takes of it */
  model_device *devices[MODEL_MAX_DEVICES];
  model_thread *thread; /* that is inside the model. A hook that lets other threads in restores it. */
  uint64_t last_id;     /* of ranges and mappings */

  weir__handles slots[MODEL_ORDERS]; /* ranges that the model placed, by size of their slot */
  weir__rangemap placed;             /* ranges with an address of the table's */
  weir__slab placed_slab, mapping_slab, table_slab;

  weir__handles streams, events, memories, pools, graphs, nodes, execs, modules, functions, user_objects;

  model_capture *captures; /* the newest first */
  uint64_t last_capture;
  model_kernel *kernels;
};

/* Fills all but what the hooks say and the table's name, capabilities and entries. */
void weir__model_init(model *m, const model_hooks *hooks, uint64_t bytes);

/* Ends what the program left behind, and frees all but the model and its devices. No work is under way. */
void weir__model_end(model *m);

static inline uint64_t weir__model_bit(const model_device *device) { return (uint64_t)1 << device->ordinal; }

/* The device whose context is current; INVALID_CONTEXT, CONTEXT_IS_DESTROYED, or the error that broke it, where *device
 * is set too. */
static inline weir_cu_result weir__model_context(model *m, model_device **device) {
  const model_thread *thread = m->thread;
  model_device *current = thread->current;
  if (!current)
    return WEIR_CU_INVALID_CONTEXT;
  if (!current->retains || current->generation != thread->generation)
    return WEIR_CU_CONTEXT_IS_DESTROYED;
  *device = current;
  return current->error;
}

/* The device of a number, or NULL. */
static inline model_device *weir__model_device(const model *m, int number) {
  return number >= 0 && number < m->device_count ? m->devices[number] : NULL;
}

/* The handle of one of a device's contexts, by generation; of the one that exists. */
static inline weir_cu_context weir__model_context_handle(const model *m, const model_device *device,
                                                         uint32_t generation) {
  uint64_t tag = (uint64_t)(m->hooks->first_kind + MODEL_KIND_CONTEXT) << WEIR__HANDLE_KIND_SHIFT;
  return (weir_cu_context)(uintptr_t)weir__handle_pack(tag, generation, (uint32_t)device->ordinal);
}
static inline weir_cu_context weir__model_context_of(const model *m, const model_device *device) {
  return weir__model_context_handle(m, device, device->generation);
}

/* The device of a context that exists, or NULL. */
model_device *weir__model_device_of(const model *m, weir_cu_context context);

weir_cu_uuid weir__model_uuid(const model *m, int physical);

/* ---- range.c ---- */

/* Physical memory of a device: all of it or nothing. */
static inline bool weir__model_take_bytes(const model *m, model_device *device, uint64_t bytes) {
  if (bytes > m->bytes - device->used)
    return false;
  device->used += bytes;
  return true;
}

/* A new range at `address`; at an address of the model's choice if that is 0. INVALID_VALUE if it overlaps a range in
 * use, OUT_OF_MEMORY if there is no address or the host has no memory. */
weir_cu_result weir__model_add_range(model *m, const model_request *request, uint64_t address, uint64_t room,
                                     model_range **range);

/* Ends its mappings and its backing, and drops it. */
void weir__model_free_range(model *m, model_range *range);

/* The range that holds `address`, or NULL. */
model_range *weir__model_find_range(const model *m, uint64_t address);

/* A range that has an address in common with [address, address + bytes), or NULL. */
model_range *weir__model_overlap(const model *m, uint64_t address, uint64_t bytes);

/* Calls `visit` for every range in use. It may drop the range. */
void weir__model_each_range(model *m, void (*visit)(model *m, model_range *range, void *data), void *data);

/* The range that begins at `address`, or NULL. */
static inline model_range *weir__model_range_at(const model *m, uint64_t address) {
  model_range *range = weir__model_find_range(m, address);
  return range && range->base == address ? range : NULL;
}

/* ---- memory.c, virtual.c ---- */

/* The range that holds all of [address, address + bytes), for use by the device: INVALID_VALUE if that runs over an
 * end, over space that is not mapped, or over memory that the device has no access to. *range is NULL for memory of the
 * host that is not known here. */
weir_cu_result weir__model_check(const model *m, const model_device *device, uint64_t address, uint64_t bytes,
                                 bool write, model_range **range);

/* Waits for the work of the range's device. Other threads may run meanwhile: false if one of them freed the range. */
bool weir__model_wait_for_busy(model *m, const model_range *range);
static inline bool weir__model_wait_for_range(model *m, const model_range *range) {
  return !m->hooks->is_busy || weir__model_wait_for_busy(m, range);
}

/* Ends what is mapped in a reservation, and its page table. */
void weir__model_end_reservation(model *m, model_range *reservation);

/* What is mapped at an address inside of a reservation, or NULL. */
static inline model_mapping *weir__model_mapping(const model_range *reservation, uint64_t address) {
  uint64_t page = (address - reservation->base) / MODEL_GRANULARITY;
  if (!reservation->tables)
    return NULL;
  const model_page_table *table = reservation->tables[page / MODEL_PAGES_IN_TABLE];
  return table ? table->pages[page % MODEL_PAGES_IN_TABLE] : NULL;
}

/* The first mapping at or behind *at and before `end`, or NULL; *at moves behind it. */
model_mapping *weir__model_next_mapping(const model_range *reservation, uint64_t *at, uint64_t end);

/* The memory of a handle that was not released, or NULL. */
static inline model_memory *weir__model_memory(const model *m, weir_cu_mem_handle handle) {
  model_memory *memory = weir__handles_get(&m->memories, handle);
  return memory && !memory->released ? memory : NULL;
}

/* Frees memory that was released and is not mapped. */
void weir__model_drop_memory(model *m, model_memory *memory);

/* ---- pool.c ---- */

/* The device's pools return what they hold above their thresholds: work was waited for. NULL stands for all
 * devices. */
void weir__model_settle_pools(model *m, const model_device *device);

/* Ends a pool that was destroyed and holds nothing any more. */
void weir__model_drop_pool(model *m, model_pool *pool);

/* A piece of work no longer names the range. The last one frees it, if it belongs to no pool. */
void weir__model_unref_range(model *m, model_range *range);

/* Books of a pool: a range was handed out, or memory was taken from the device. */
static inline void weir__model_pool_use(model_pool *pool, uint64_t bytes) {
  pool->used += bytes;
  if (pool->used > pool->used_high)
    pool->used_high = pool->used;
}
static inline void weir__model_pool_reserve(model_pool *pool, uint64_t bytes) {
  pool->reserved += bytes;
  if (pool->reserved > pool->reserved_high)
    pool->reserved_high = pool->reserved;
}
void weir__model_end_pools(model *m, model_device *device);

/* ---- stream.c, event.c ---- */

/* A stream by its handle. NULL and the two constants are default streams of the current context. *stream is set also
 * where its context is broken, which is the result. */
weir_cu_result weir__model_stream(model *m, weir_cu_stream handle, model_stream **stream);

static inline weir_cu_stream weir__model_stream_handle(const model *m, const model_stream *stream) {
  return (weir_cu_stream)(uintptr_t)weir__handle_of(&m->streams, stream);
}

model_stream *weir__model_new_stream(model *m, model_device *device, unsigned flags, int priority);

/* Destroys it. A capture that loses one of its streams can no longer end well; one that loses its origin ends here. */
void weir__model_drop_stream(model *m, model_stream *stream);
void weir__model_free_stream(model *m, model_stream *stream);

static inline model_event *weir__model_event(const model *m, weir_cu_event handle) {
  return weir__handles_get(&m->events, (uintptr_t)handle);
}
void weir__model_drop_event(model *m, model_event *event);
void weir__model_drop_module(model *m, model_module *module);

/* ---- capture.c, graph.c ---- */

/* For a call that is marked [unsafe in capture]. */
weir_cu_result weir__model_unsafe_in_capture(model *m);
static inline weir_cu_result weir__model_unsafe(model *m) {
  return m->captures ? weir__model_unsafe_in_capture(m) : WEIR_CU_SUCCESS;
}

/* For a call that uses a stream outside of a capture: refuses the legacy stream while a blocking stream captures. */
weir_cu_result weir__model_implicit_in_capture(model *m, const model_stream *stream);
static inline weir_cu_result weir__model_implicit(model *m, const model_stream *stream) {
  return m->captures && stream->is_legacy ? weir__model_implicit_in_capture(m, stream) : WEIR_CU_SUCCESS;
}

/* For a call that cannot be captured: a capturing stream refuses. */
weir_cu_result weir__model_refuse_capture(model *m, model_stream *stream);

/* For a call that waits for everything of a device: refuses while one of its streams captures. */
weir_cu_result weir__model_no_capture_on(model *m, const model_device *device);

/* A piece of work: a node if the stream captures, else hooks->run. Owns what the work holds, whatever the result. */
weir_cu_result weir__model_submit(model *m, model_stream *stream, model_work *work);

/* Whether the work of a node is a record of an event or a wait for one. A launch does these with the next function, at
 * their place among the other works; weir__model_GraphLaunch has looked that the event still exists. */
static inline bool weir__model_is_of_event(const model_work *work) {
  return work->kind == MODEL_WORK_RECORD || work->kind == MODEL_WORK_WAIT;
}
weir_cu_result weir__model_launch_event(model *m, const model_work *work, model_stream *stream);

/* The capture of an id, if it has not ended. */
model_capture *weir__model_capture(const model *m, uint64_t id);

/* Makes the stream wait for where `at` was taken; a stream that does not capture joins. */
weir_cu_result weir__model_join(model_capture *capture, model_stream *stream, const model_nodes *at);

/* Forgets a capture, and its graph with it. */
void weir__model_abandon(model *m, model_capture *capture);

bool weir__model_nodes_add(model_nodes *nodes, weir_cu_graph_node node);
bool weir__model_nodes_copy(model_nodes *to, const model_nodes *from);
void weir__model_nodes_clear(model_nodes *nodes);
static inline void weir__model_nodes_free(model_nodes *nodes) {
  if (nodes->items)
    weir__model_nodes_clear(nodes);
}
static inline model_node *weir__model_node(const model *m, weir_cu_graph_node handle) {
  return weir__handles_get(&m->nodes, (uintptr_t)handle);
}
void weir__model_drop_graph(model *m, model_graph *graph);
void weir__model_drop_exec(model *m, model_exec *exec);

/* ---- The entries. Init was called before all but the four that may come first. ---- */

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  weir_cu_result weir__model_##name(model *m WEIR__AND params);
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) weir_cu_result weir__model_##name(model *m);
#include "weir/driver_entries.h"

/* Whether a call is refused before Init. */
static inline bool weir__model_needs_init(weir_driver_call call) {
  return call != WEIR_CALL_Init && call != WEIR_CALL_DriverGetVersion && call != WEIR_CALL_GetErrorName &&
         call != WEIR_CALL_GetErrorString;
}
