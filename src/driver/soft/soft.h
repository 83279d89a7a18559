/*
 * The internals of the software device: the model (model/model.h) with memory and threads below it.
 *
 * One lock guards all state. table.c takes it around every entry. It is released only while a call waits (engine.c) and
 * while code of the program or a copy runs.
 *
 * Physical memory is a range of offsets in one file per device, which is mapped wherever the program is to see it
 * (memory.c). A stream is a queue of work items. engine.c alone decides which item runs next: in real time for its
 * worker threads, in stepped time for the thread that steps or waits.
 */
#pragma once

#include <stdatomic.h>

#include "base/thread.h"
#include "driver/model/model.h"

enum {
  SOFT_PAGE = 4096, /* granularity of MemAlloc */
  SOFT_MAX_WORKERS = 256,
  SOFT_KEPT = 64 /* kept ranges of a device, and one */
};

struct soft;

/* ---- Memory ---- */

/* Physical memory of a device: a range of a file. */
struct soft_extent {
  int fd;        /* the file of the device, or a separate file if the memory can be shared */
  bool own_file; /* close the file with the extent */
  uint64_t offset, bytes;
};

/* Free memory of the file of a device that stays mapped (memory.c). */
struct soft_kept {
  uint64_t base, offset, bytes;
};

struct soft_range {
  model_range r;
  struct soft_extent extent;   /* plain, pooled, ipc */
  unsigned opens;              /* ipc: number of times it is open */
  uint64_t ipc_inode;          /* ipc: identifies the file, so that a second opening finds this range */
  bool exported;               /* plain: locked in the file, which tells other processes that it has not been freed */
  struct soft_stream *freeing; /* pooled: the stream that has not yet reached the free */
  struct soft_range *next;     /* pooled: the next range of the pool */
  unsigned seen;               /* scratch of the consistency check */
};

struct soft_memory {
  model_memory m;
  struct soft_extent extent;
  uint64_t inode; /* of a shareable handle, to recognize it on import */
  int handle_types;
  struct soft_memory *same; /* an earlier handle of the same memory: owns the extent, counts this one as a mapping */
  unsigned long seen;       /* scratch of the consistency check */
};

struct soft_pool {
  model_pool p;
  struct soft_range *ranges;
};

/* Maps an extent, readable and writable, at an address of its choice. */
weir_cu_result weir__soft_map_extent(const struct soft_extent *extent, uint64_t bytes, uint64_t *base);

/* Returns kept memory to the host; and puts that off until the device has been idle for a second again. */
void weir__soft_return_kept(struct soft *soft);
void weir__soft_keep_longer(struct soft *soft);

/* Withdraws the range, so that no other process can open it. */
void weir__soft_unexport(struct soft_range *range);

/* Marks a pooled range as free. */
void weir__soft_release_range(struct soft *soft, struct soft_range *range);

void weir__soft_add_memory_hooks(model_hooks *hooks);
void weir__soft_add_pool_hooks(model_hooks *hooks);
void weir__soft_add_event_hooks(model_hooks *hooks);
void weir__soft_add_engine_hooks(model_hooks *hooks);
void weir__soft_add_ipc_hooks(model_hooks *hooks);

/* ---- Work ---- */

/* Set once, when a work item ends. Events and waits refer to it. */
struct soft_signal {
  unsigned refs;
  bool done;
  uint64_t time_ns;            /* when it was set */
  struct soft_stream *owner;   /* the stream that will set it; NULL afterwards */
  struct soft_stream *waiters; /* streams whose first item waits for it */
};

struct soft_signal *weir__soft_signal_new(void);                       /* NULL if out of host memory */
struct soft_signal *weir__soft_signal_ref(struct soft_signal *signal); /* `signal` may be NULL, here and below */
void weir__soft_signal_unref(struct soft_signal *signal);

/* Kinds of MODEL_WORK_OTHER. */
enum soft_sync {
  SOFT_RECORD,     /* no work: only the end counts */
  SOFT_WAIT,       /* waits for its signal */
  SOFT_WAIT_SHARED /* waits for an event of another process */
};

/* A work item in the queue of a stream. */
struct soft_work {
  model_work w;
  enum soft_sync sync;
  uint64_t seq;                     /* position in the order in which all work was enqueued */
  uint64_t issued_ns;               /* time of the enqueueing, in stepped time */
  struct soft_signal *end;          /* set when this item ends, and referenced; NULL until it is asked for */
  struct soft_signal *signal;       /* wait: referenced */
  struct soft_shared_event *shared; /* record, wait_shared: referenced */
  uint64_t shared_count;
  struct soft_work *next;
};

/* An item that takes over what `work` owns. NULL if out of host memory. */
struct soft_work *weir__soft_work_new(const model_work *work);
struct soft_work *weir__soft_work_new_sync(enum soft_sync sync);
void weir__soft_work_free(struct soft *soft, struct soft_work *work);

static inline bool weir__soft_work_is(const struct soft_work *work, enum soft_sync sync) {
  return work->w.kind == MODEL_WORK_OTHER && work->sync == sync;
}

struct soft_stream {
  model_stream s;
  bool queued;               /* in the ready list */
  unsigned waits;            /* calls that wait for this stream, which is not freed meanwhile */
  struct soft_work *running; /* the item that runs now; no longer in the queue */
  struct soft_work *first, *last;
  unsigned long pending;                        /* items in the queue, plus the running one */
  uint64_t time_ns;                             /* when its latest item ended */
  struct soft_stream *next, **link;             /* in device->streams */
  struct soft_stream *next_ready, *next_waiter; /* in soft->ready; in a signal's waiters */
};

/* Enqueues a work item, preceded by the implicit waits between legacy and blocking streams. The queue owns the item,
 * even if this fails. The stream must not be capturing. */
weir_cu_result weir__soft_enqueue(struct soft *soft, struct soft_stream *stream, struct soft_work *work);

/* Enqueues a wait for a signal. Nothing is enqueued if it is NULL or set. */
weir_cu_result weir__soft_enqueue_wait(struct soft *soft, struct soft_stream *stream, struct soft_signal *signal);

weir_cu_result weir__soft_wait_signal(struct soft *soft, struct soft_signal *signal);
weir_cu_result weir__soft_wait_device(model *m, model_device *device);

/* Runs weir_guard (driver/kernels.h), without the lock. */
weir_cu_result weir__soft_guard(const weir_soft_launch *launch);

/* Notes in its slot that work of other streams, which they got before, uses the memory. */
void weir__soft_guard_look(const struct soft *soft, const struct soft_stream *stream, const struct soft_work *work);

/* Makes the kernels of the core known. */
weir_status weir__soft_add_kernels(struct soft *soft);

/* A stream other than `but`, which may be NULL, whose work accesses any of [base, base + bytes): work that is enqueued
 * or running, and was enqueued before number `before` of all work. NULL if there is none. */
const struct soft_stream *weir__soft_user_of(const struct soft *soft, const struct soft_stream *but, uint64_t before,
                                             uint64_t base, uint64_t bytes);

/* Whether work that is enqueued or running accesses any of [base, base + bytes). */
bool weir__soft_is_in_use(const struct soft *soft, uint64_t base, uint64_t bytes);

void weir__soft_engine_stop(struct soft *soft);
/* Sleeps before the state of another process is polled again. The lock is held, and released meanwhile. */
void weir__soft_pause(struct soft *soft);

/* The device clock: counted in stepped time, else the monotonic clock. */
uint64_t weir__soft_clock_ns(const struct soft *soft);

struct soft_exec {
  model_exec x;
  struct soft_signal *launched; /* set when the latest launch ends */
};

struct soft_event {
  model_event e;
  struct soft_signal *signal;       /* of the latest record, unless that was captured */
  struct soft_shared_event *shared; /* interprocess */
  uint64_t shared_count;            /* number of the latest record by this process */
  bool imported;
};

/* The part of an event that processes share: numbers of the latest record and of the latest one reached, and the
 * process of the latest record. */
struct soft_shared_page {
  _Atomic uint64_t recorded, done;
  _Atomic int recorder;
};
struct soft_shared_event {
  unsigned refs;
  int fd;
  struct soft_shared_page *page;
};
struct soft_shared_event *weir__soft_shared_event_new(void); /* NULL if the system refuses */
void weir__soft_shared_event_unref(struct soft_shared_event *shared);

/* WEIR_CU_SUCCESS if the record with this number was reached, WEIR_CU_NOT_READY if not yet, and WEIR_CU_EXTERNAL_DEVICE
 * if it never will be because its process has exited: then what it was to announce is not valid. */
weir_cu_result weir__soft_shared_event_query(const struct soft_shared_event *shared, uint64_t count);

/* Visits every live object of a handle table: FOR_EACH_HANDLE(model_graph, graph, &m->graphs) { ... }. */
#define FOR_EACH_HANDLE(type, object, table)                                                                           \
  for (uint32_t object##_index = 0, object##_done = 0; !object##_done; object##_done = 1)                              \
    for (type * object; (object = weir__handles_next((table), &object##_index));)

/* ---- Devices and threads ---- */

struct soft_device {
  model_device d;
  int fd;            /* the file that backs its memory; -1 until first used */
  uint64_t file_end; /* offsets below were handed out; they are used again only while they are kept */
  uint64_t window;   /* the address of offset 0 if the whole file were mapped in one piece; 0 until first used */
  struct soft_kept kept[SOFT_KEPT]; /* the oldest first; no two can be joined */
  int kept_count;
  uint64_t kept_bytes;
  struct soft_stream *streams;
};

struct soft_thread {
  model_thread t;
  struct soft *soft;
  struct soft_thread *next;
};

struct soft {
  model m; /* first, so that a model * can be cast to a soft * */
  model_hooks hooks;
  weir_soft_options options;
  weir__mutex lock;
  weir__cond work;    /* `ready` is not empty, or the device stops */
  weir__cond changed; /* a work item ended */
  weir__cond stop;    /* the device stops, or a context broke: ends waits for time to pass */
  weir__thread_key thread_key;
  struct soft_thread *threads;
  atomic_bool stopping; /* also read without the lock */
  struct soft_device devices[WEIR_SOFT_MAX_DEVICES];

  struct soft_stream *ready; /* streams that can run, sorted by priority */
  unsigned ready_count, workers, idle_workers;
  uint64_t next_seq;
  weir__thread_id worker_ids[SOFT_MAX_WORKERS];
  uint64_t kept_until_ns;      /* when an idle worker returns kept memory; 0 if there is none */
  uint64_t now_ns;             /* the clock of stepped time: the latest end of any item */
  unsigned long unmaps_in_use; /* of memory that work in a stream accesses */
  uint64_t profile_base_ns;    /* the real time at which stepped time was 0, as profiled work states it; 0 if unset */
};

static inline struct soft_device *weir__soft_device_of(const struct soft_stream *stream) {
  return (struct soft_device *)stream->s.device;
}

/* The device behind a table of weir_driver_open_soft. For any other table NULL is returned and the last error set. */
struct soft *weir__soft_of(weir_driver *driver, const char *caller);

/* Makes the calling thread the current one of the model. False if out of host memory. */
bool weir__soft_enter_thread(struct soft *soft);

/* Checks the consistency of the whole device, and aborts with a message if it is corrupt. The lock is held. */
void weir__soft_is_valid(struct soft *soft);

/* Releases the lock at the end of a call, after the consistency check if expensive checks are built in. */
void weir__soft_leave(struct soft *soft);
