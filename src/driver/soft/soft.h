/*
 * The software device, inside.
 *
 * One lock guards everything. table.c takes it around every entry, so each weir__soft_<Name> below runs with it held, and
 * the only places that let go of it are those that wait (engine.c) or run the program's own code: kernels, host functions,
 * copies. A GPU's driver is not a place of great parallelism; its engines are.
 *
 * Handles are numbers, not pointers, so that one that was destroyed is recognised instead of followed (handle.c). Physical
 * memory is offsets in one file per device, which is mapped where the program is to see it (memory.c, virtual.c). A stream is
 * a queue of pieces of work, and engine.c alone decides which runs next: worker threads ask it in one clock, the test asks
 * it in the other.
 */
#ifndef WEIR_SOFT_INTERNAL_H
#define WEIR_SOFT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "base/rangemap.h"
#include "weir/soft.h"

enum {
  SOFT_PAGE = 4096,               /* what a plain allocation is rounded to */
  SOFT_GRANULE = 2 * 1024 * 1024, /* of virtual memory */
  SOFT_MAX_WORKERS = 256,
  SOFT_PRIORITY_GREATEST = -5
};

struct soft;

/* ---- Handles ---- */

enum soft_kind {
  SOFT_FREE,
  SOFT_CONTEXT,
  SOFT_STREAM,
  SOFT_EVENT,
  SOFT_GRAPH,
  SOFT_NODE,
  SOFT_EXEC,
  SOFT_MODULE,
  SOFT_FUNCTION,
  SOFT_POOL,
  SOFT_HANDLE, /* physical memory of MemCreate */
  SOFT_KINDS
};

struct soft_slot {
  void *object;
  uint32_t generation; /* of the handle that is, or was last, out */
  uint8_t kind;
};

/* 0 when the host has no memory. Never odd, so it cannot be taken for one of the two special streams. */
uintptr_t weir__soft_handle_new(struct soft *soft, enum soft_kind kind, void *object);

/* NULL for what is not a live handle of that kind. */
void *weir__soft_handle_get(const struct soft *soft, enum soft_kind kind, uintptr_t handle);
void weir__soft_handle_free(struct soft *soft, uintptr_t handle);

/* ---- Physical memory ---- */

/* A piece of a device's memory: a range of a file. */
struct soft_extent {
  int fd;        /* the device's own file, or one of its own where it can be shared */
  bool own_file; /* the file goes with the extent */
  bool charged;  /* counts against the device's capacity; imported memory does not */
  uint64_t offset, bytes;
  struct soft_device *device;
};

/* OUT_OF_MEMORY when the device is full. `shareable` gives it a file of its own. */
weir_cu_result weir__soft_extent_new(struct soft_device *device, uint64_t bytes, bool shareable,
                                     struct soft_extent *extent);
void weir__soft_extent_free(struct soft_extent *extent);

/* ---- Address space ---- */

enum soft_range_kind {
  SOFT_RANGE_PLAIN,      /* MemAlloc */
  SOFT_RANGE_CHUNK,      /* stream-ordered, see pool.c */
  SOFT_RANGE_HOST,       /* MemHostAlloc */
  SOFT_RANGE_REGISTERED, /* MemHostRegister */
  SOFT_RANGE_RESERVED,   /* MemAddressReserve */
  SOFT_RANGE_IPC         /* IpcOpenMemHandle */
};

struct soft_range {
  enum soft_range_kind kind;
  uint64_t base, bytes, id; /* bytes as asked for */
  uint64_t mapped_bytes;    /* bytes of address space, rounded up */
  struct soft_device *device;
  struct soft_extent extent; /* plain, chunk, ipc */
  weir__rangemap mappings;   /* reserved: -> struct soft_mapping */
  unsigned opens;            /* ipc: how often */
  uint64_t ipc_inode;        /* ipc: which file, to find a second opening */
  bool exported;             /* plain: locked in the file, for other processes to see that it is still there */
  struct soft_chunk *chunk;  /* chunk */
};

struct soft_memory {
  struct soft_extent extent;
  unsigned refs;  /* the handle's, if it is out, and one of each mapping */
  unsigned seen;  /* for walks */
  uint64_t inode; /* of a shareable one, to recognise it when it comes back */
  int handle_types;
};

struct soft_mapping {
  struct soft_memory *memory;
  uint64_t base, bytes;
  uint64_t readable, writable; /* a bit for each device */
};

/* The range that holds all of [pointer, pointer + bytes), for use by `device`: INVALID_VALUE when it runs over an end, over
 * unmapped space, or over memory that the device has no access to. *range is NULL for host memory that is not known here. */
weir_cu_result weir__soft_check(struct soft *soft, const struct soft_device *device, uint64_t pointer, uint64_t bytes,
                                bool write, struct soft_range **range);

struct soft_range *weir__soft_range_new(struct soft *soft, enum soft_range_kind kind, uint64_t base, uint64_t bytes,
                                        uint64_t mapped_bytes, struct soft_device *device);
void weir__soft_range_free(struct soft *soft, struct soft_range *range);

/* Waits for the work of the range's device. The lock is away meanwhile: false when another thread freed the range. */
bool weir__soft_wait_for_range(struct soft *soft, const struct soft_range *range);

/* Other processes can no longer open it. */
void weir__soft_unexport(struct soft_range *range);

/* Maps an extent somewhere, readable and writable. */
weir_cu_result weir__soft_map_extent(const struct soft_extent *extent, uint64_t bytes, uint64_t *base);

/* ---- Work ---- */

/* Becomes done once: the end of a piece of work. Events, waits and joins refer to it. */
struct soft_signal {
  unsigned refs;
  bool done;
  uint64_t time_ns;            /* when it was done */
  struct soft_stream *owner;   /* in whose queue it is, until done */
  struct soft_stream *waiters; /* streams that stopped at a wait for it */
};

struct soft_signal *weir__soft_signal_new(void);                       /* NULL when the host has no memory */
struct soft_signal *weir__soft_signal_ref(struct soft_signal *signal); /* NULL is fine, here and below */
void weir__soft_signal_unref(struct soft_signal *signal);

enum soft_work_kind {
  SOFT_WORK_COPY,
  SOFT_WORK_FILL,
  SOFT_WORK_KERNEL,
  SOFT_WORK_SPIN,
  SOFT_WORK_HOST,
  SOFT_WORK_RECORD,      /* nothing but its end */
  SOFT_WORK_WAIT,        /* for its signal */
  SOFT_WORK_WAIT_SHARED, /* for an event of another process */
  SOFT_WORK_FREE,        /* a chunk goes back to its pool; one of a graph's stays */
  SOFT_WORK_ALLOC        /* in graphs only: where a chunk begins to be used */
};

/* A piece of work, in a queue or as the content of a graph's node. Plain data: copying one is memcpy plus references. */
struct soft_work {
  enum soft_work_kind kind;
  uint64_t seq;                     /* the order in which all work was enqueued */
  uint64_t issued_ns;               /* when, in stepped time */
  struct soft_signal *end;          /* held: done when this is; NULL while nobody asked */
  struct soft_device *device;       /* whose stream it was given to; a graph may hold work of several */
  struct soft_signal *signal;       /* wait: held */
  struct soft_shared_event *shared; /* record, wait_shared: held */
  uint64_t shared_count;
  union {
    struct {
      uint64_t to, from, bytes;
      void *staged; /* owned: what was read from pageable memory when the call was made */
    } copy;
    struct {
      uint64_t to, count;
      uint32_t value;
      unsigned width; /* 1 or 4 */
    } fill;
    struct {
      weir_soft_kernel function;
      unsigned grid[3], block[3], shared_bytes;
      int param_count;
      size_t *param_bytes;   /* the kernel's own */
      unsigned char *params; /* owned: the values, each aligned to 16 */
    } kernel;
    struct {
      uint64_t cycles;
    } spin;
    struct {
      weir_cu_host_fn fn;
      void *data;
    } host;
    struct {
      struct soft_chunk *chunk; /* held by count in graphs */
      uint64_t turn;
    } chunk;
  } as;
  struct soft_work *next;
};

/* A copy of `work` with references of its own; NULL when the host has no memory. */
struct soft_work *weir__soft_work_copy(const struct soft_work *work);
void weir__soft_work_free(struct soft_work *work);

struct soft_stream {
  uintptr_t handle; /* 0 for legacy and per-thread streams, and once destroyed */
  struct soft_device *device;
  unsigned flags;
  int priority;
  bool is_legacy, queued, dropped; /* queued: in the ready list; dropped: goes when its work is done */
  unsigned waits;                  /* calls that wait for it, and keep it */
  struct soft_work *running;       /* the piece that is being done, outside of the queue */
  struct soft_work *first, *last;
  unsigned long pending;                        /* pieces in the queue, the running one included */
  uint64_t time_ns;                             /* when its last piece was done */
  struct soft_stream *next, **link;             /* in device->streams */
  struct soft_stream *next_ready, *next_waiter; /* in soft->ready; in a signal's waiters */
  struct soft_capture *capture;                 /* set while it captures */
  struct soft_node **tips;                      /* nodes that the next one depends on */
  size_t tip_count;
};

/* Enqueues a piece of work, which is owned by the queue from here on, whatever the result: the implicit waits between legacy
 * and blocking streams come first. Not for streams that capture. */
weir_cu_result weir__soft_enqueue(struct soft *soft, struct soft_stream *stream, struct soft_work *work);

/* Empty work of a kind; NULL when the host has no memory. */
struct soft_work *weir__soft_work_new(enum soft_work_kind kind);

/* A wait for a signal, which may be NULL or done: nothing is enqueued then. */
weir_cu_result weir__soft_enqueue_wait(struct soft *soft, struct soft_stream *stream, struct soft_signal *signal);

/* The end of all that is in the stream now, held for the caller; *signal is NULL when there is nothing. */
weir_cu_result weir__soft_mark(struct soft_stream *stream, struct soft_signal **signal);

/* Wait for the work that is there now. In stepped time they run it. What a broken device answers is the result. */
weir_cu_result weir__soft_wait_stream(struct soft *soft, struct soft_stream *stream);
weir_cu_result weir__soft_wait_signal(struct soft *soft, struct soft_signal *signal);
weir_cu_result weir__soft_wait_device(struct soft *soft, struct soft_device *device);

/* Whether a stream has work, for the legacy stream also in the streams that it waits for. */
bool weir__soft_is_busy(const struct soft *soft, const struct soft_stream *stream);

struct soft_stream *weir__soft_stream_new(struct soft *soft, struct soft_device *device, unsigned flags, int priority);

/* Frees it, at once or when its work is done. A capture that loses one of its streams can no longer end well; without its
 * first stream it ends here. */
void weir__soft_stream_drop(struct soft *soft, struct soft_stream *stream);
void weir__soft_engine_stop(struct soft *soft);
uint64_t weir__soft_now(const struct soft *soft);

/* ---- Capture and graphs ---- */

struct soft_node {
  uintptr_t handle;
  struct soft_graph *graph;
  struct soft_work *work;
  struct soft_node **from; /* what it depends on */
  size_t from_count;
  uint32_t mark; /* for walks */
};

struct soft_graph {
  uintptr_t handle;
  struct soft_device *device;
  struct soft_node **nodes; /* in the order of capture, which is a topological one */
  size_t count, room;
  uint32_t mark;
};

struct soft_exec {
  uintptr_t handle;
  struct soft_device *device;
  struct soft_work *first;      /* templates, in order */
  struct soft_signal *launched; /* the end of the last launch */
};

struct soft_capture {
  uint64_t id;
  int mode, status;
  struct soft_thread *thread; /* that began it; NULL when it is gone */
  struct soft_stream *origin;
  struct soft_graph *graph;
  struct soft_capture *next;
};

/* The call is refused when the thread's capture mode forbids it: STREAM_CAPTURE_UNSUPPORTED, captures invalidated. */
weir_cu_result weir__soft_unsafe(struct soft *soft);

/* Every call that uses the legacy stream: STREAM_CAPTURE_IMPLICIT when a blocking stream of the device captures. */
weir_cu_result weir__soft_implicit(struct soft *soft, const struct soft_device *device);

void weir__soft_invalidate(struct soft_capture *capture);

/* Enqueues, or makes a node of it when the stream captures. Owns `work` from here on. */
weir_cu_result weir__soft_submit(struct soft *soft, struct soft_stream *stream, struct soft_work *work);

/* The capture goes; its streams are as before. Frees the graph unless *graph takes it. */
void weir__soft_capture_end(struct soft *soft, struct soft_capture *capture, struct soft_graph **graph);
void weir__soft_graph_free(struct soft *soft, struct soft_graph *graph);
void weir__soft_exec_free(struct soft *soft, struct soft_exec *exec);

struct soft_event {
  uintptr_t handle;
  struct soft_device *device;
  unsigned flags;
  struct soft_signal *signal; /* of the last record, when that was not in a capture */
  uint64_t capture_id;        /* of the capture in which it was last recorded, else 0 */
  struct soft_node **tips;    /* what the recording stream's next node would have depended on */
  size_t tip_count;
  struct soft_shared_event *shared; /* interprocess */
  uint64_t shared_count;            /* of the last record of this process */
  bool imported;
};
void weir__soft_event_free(struct soft *soft, struct soft_event *event);

/* What processes share of an event: two counters, `done` follows `recorded`, and the process that recorded last. */
struct soft_shared_page {
  _Atomic uint64_t recorded, done;
  _Atomic int recorder;
};
struct soft_shared_event {
  unsigned refs;
  int fd;
  struct soft_shared_page *page;
};
struct soft_shared_event *weir__soft_shared_event_new(void); /* NULL when the host cannot */
void weir__soft_shared_event_unref(struct soft_shared_event *shared);

/* Whether the record of that number was reached, or never will be, because its process is gone. */
bool weir__soft_shared_event_done(const struct soft_shared_event *shared, uint64_t count);

/* ---- Stream-ordered pools ---- */

struct soft_chunk {
  struct soft_pool *pool; /* NULL: belongs to graphs */
  struct soft_range *range;
  uint64_t bytes;              /* physical */
  uint64_t turn;               /* counts its uses, so that an old free does not hit a new one */
  bool in_use;                 /* handed out, and not freed */
  struct soft_stream *freeing; /* freed in this stream, which did not get there yet */
  unsigned refs;               /* pieces of work that name it, in queues and in graphs */
  unsigned seen;               /* for walks */
  struct soft_chunk *next;     /* in the pool */
};

struct soft_pool {
  uintptr_t handle;
  struct soft_device *device;
  bool is_default, destroyed;
  struct soft_chunk *chunks;
  uint64_t reserved, reserved_high, used, used_high, threshold;
  int reuse[3];
  struct soft_pool *next; /* in device->pools */
};

/* At a synchronization: pools give back what is free beyond their threshold. */
void weir__soft_pools_settle(struct soft *soft, struct soft_device *device);
void weir__soft_pools_close(struct soft *soft, struct soft_device *device);

/* MemFree and the queue: a chunk is free from here on. */
void weir__soft_chunk_release(struct soft *soft, struct soft_chunk *chunk);

/* A piece of work no longer names the chunk. The last one frees it, when it is a graph's. */
void weir__soft_chunk_unref(struct soft_chunk *chunk);

/* ---- Kernels ---- */

struct soft_kernel {
  char *name;
  weir_soft_kernel function; /* NULL: the spin kernel */
  int param_count;
  size_t *param_bytes;
  struct soft_kernel *next;
};

struct soft_function {
  uintptr_t handle;
  struct soft_module *module;
  struct soft_kernel *kernel;
  struct soft_function *next;
};

struct soft_module {
  uintptr_t handle;
  struct soft_device *device;
  char *text;
  struct soft_function *functions;
};
void weir__soft_module_free(struct soft *soft, struct soft_module *module);

/* ---- Devices, threads, the whole ---- */

struct soft_device {
  struct soft *soft;
  int ordinal;
  int physical;      /* its number among all devices, CUDA_VISIBLE_DEVICES apart */
  int fd;            /* the file that is its memory; -1 until first used */
  uint64_t file_end; /* offsets below were handed out; a file has more of them than a process can use up */
  uint64_t used;     /* bytes of capacity */
  unsigned retains;
  uintptr_t context;    /* 0 while there is none */
  weir_cu_result error; /* set by a broken kernel; every call of the context answers it then */
  uint64_t peers;       /* a bit for each device whose memory it may touch */
  struct soft_stream *streams;
  struct soft_stream *legacy;
  struct soft_pool *pools, *default_pool, *pool;
  uint64_t graph_used, graph_used_high; /* memory of chunks that belong to graphs */
};

/* What the driver knows of a thread. */
struct soft_thread {
  struct soft *soft;
  uintptr_t context;
  int capture_mode;
  struct soft_stream *streams[WEIR_SOFT_MAX_DEVICES]; /* its own default streams, made when used */
  struct soft_thread *next;
};

struct soft {
  weir_driver table; /* first, so that a table is a soft */
  weir_soft_options options;
  pthread_mutex_t lock;
  pthread_cond_t work;    /* there is something in `ready`, or the end has come */
  pthread_cond_t changed; /* a piece of work was done */
  pthread_cond_t stop;    /* the end has come, or a device broke: wakes those that only let time pass */
  pthread_key_t thread_key;
  struct soft_thread *threads;
  bool initialized;
  atomic_bool stopping; /* also read without the lock */
  int device_count;     /* devices that CUDA_VISIBLE_DEVICES leaves; 0 until Init */
  struct soft_device devices[WEIR_SOFT_MAX_DEVICES];

  struct soft_slot *slots;
  size_t slot_count, slot_room, free_slot; /* free_slot: one behind a slot that is free, else 0 */
  unsigned long live[SOFT_KINDS];

  weir__rangemap space; /* addresses -> struct soft_range */
  uint64_t next_id;
  unsigned long range_counts[SOFT_RANGE_IPC + 1], mapping_count;

  struct soft_stream *ready; /* can go on, the most urgent first */
  unsigned ready_count, workers, idle_workers;
  uint64_t next_seq;
  pthread_t worker_ids[SOFT_MAX_WORKERS];
  uint64_t now_ns; /* in stepped time: the latest end of any piece */

  struct soft_capture *captures;
  uint64_t next_capture;
  struct soft_kernel *kernels;
};

/* The soft behind a table; NULL, and the last error set, for a table of another kind. */
struct soft *weir__soft_of(weir_driver *driver, const char *who);

/* The calling thread; table.c has made sure that it is known. */
struct soft_thread *weir__soft_thread(struct soft *soft);

/* The device of the current context; INVALID_CONTEXT, CONTEXT_IS_DESTROYED, or the error that broke it. */
weir_cu_result weir__soft_current(struct soft *soft, struct soft_device **device);

/* A stream by its handle, the special ones included. *stream is set also where its context is broken, which is the result. */
weir_cu_result weir__soft_stream_get(struct soft *soft, weir_cu_stream handle, struct soft_stream **stream);

/* Counts and follows everything, and ends the process with a message when something is wrong. The lock is held. */
void weir__soft_is_valid(struct soft *soft);

/* The end of a call: lets go of the lock. Where expensive checks are built in, all is checked first. */
void weir__soft_leave(struct soft *soft);

/* The table's functions, with the lock held. */
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  weir_cu_result weir__soft_##name(struct soft *soft WEIR__AND params);
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) weir_cu_result weir__soft_##name(struct soft *soft);
#include "weir/driver_entries.h"

#endif
