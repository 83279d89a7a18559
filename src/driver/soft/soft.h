/*
 * The software device, inside: the model (model/model.h) with memory and threads below it.
 *
 * One lock guards everything. table.c takes it around every entry, and the only places that let go of it are those that
 * wait (engine.c) or run the program's own code: kernels, host functions, copies. A GPU's driver is not a place of
 * great parallelism; its engines are.
 *
 * Physical memory is offsets in one file per device, which is mapped where the program is to see it (memory.c). A
 * stream is a queue of pieces of work, and engine.c alone decides which runs next: worker threads ask it in one clock,
 * the test asks it in the other.
 */
#ifndef WEIR_SOFT_INTERNAL_H
#define WEIR_SOFT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver/model/model.h"

enum {
  SOFT_PAGE = 4096, /* what a plain allocation is rounded to */
  SOFT_MAX_WORKERS = 256
};

struct soft;

/* ---- Memory ---- */

/* A item of a device's memory: a range of a file. */
struct soft_extent {
  int fd;        /* the device's own file, or one of its own where it can be shared */
  bool own_file; /* the file goes with the extent */
  uint64_t offset, bytes;
};

struct soft_range {
  model_range r;
  struct soft_extent extent;   /* plain, pooled, ipc */
  unsigned opens;              /* ipc: how often */
  uint64_t ipc_inode;          /* ipc: which file, to find a second opening */
  bool exported;               /* plain: locked in the file, so that other processes see that it is still there */
  struct soft_stream *freeing; /* pooled: freed in this stream, which did not get there yet */
  struct soft_range *next;     /* pooled: in the pool */
  unsigned seen;               /* for walks */
};

struct soft_memory {
  model_memory m;
  struct soft_extent extent;
  uint64_t inode; /* of a shareable one, to recognise it when it comes back */
  int handle_types;
  struct soft_memory *same; /* an earlier handle of the same memory, which keeps the extent; counted in its mappings */
  unsigned long seen;       /* for walks */
};

struct soft_pool {
  model_pool p;
  struct soft_range *ranges;
};

/* Maps an extent at a new address, readable and writable. */
weir_cu_result weir__soft_map_extent(const struct soft_extent *extent, uint64_t bytes, uint64_t *base);

/* Other processes can no longer open it. */
void weir__soft_unexport(struct soft_range *range);

/* The range is free from here on. */
void weir__soft_release_range(struct soft *soft, struct soft_range *range);

void weir__soft_add_memory_hooks(model_hooks *hooks);
void weir__soft_add_pool_hooks(model_hooks *hooks);
void weir__soft_add_event_hooks(model_hooks *hooks);
void weir__soft_add_engine_hooks(model_hooks *hooks);
void weir__soft_add_ipc_hooks(model_hooks *hooks);

/* ---- Work ---- */

/* Becomes done once: the end of a item of work. Events, waits and joins refer to it. */
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

/* What a item of work of the kind MODEL_WORK_OTHER is. */
enum soft_sync {
  SOFT_RECORD,     /* nothing but its end */
  SOFT_WAIT,       /* for its signal */
  SOFT_WAIT_SHARED /* for an event of another process */
};

/* A item of work in a queue. */
struct soft_work {
  model_work w;
  enum soft_sync sync;
  uint64_t seq;                     /* the order in which all work was enqueued */
  uint64_t issued_ns;               /* when, in stepped time */
  struct soft_signal *end;          /* held: done when this is; NULL until something asks for it */
  struct soft_signal *signal;       /* wait: held */
  struct soft_shared_event *shared; /* record, wait_shared: held */
  uint64_t shared_count;
  struct soft_work *next;
};

/* A item that holds what `work` holds; NULL when the host has no memory. */
struct soft_work *weir__soft_work_new(const model_work *work);
struct soft_work *weir__soft_work_new_sync(enum soft_sync sync);
void weir__soft_work_free(struct soft *soft, struct soft_work *work);

static inline bool weir__soft_work_is(const struct soft_work *work, enum soft_sync sync) {
  return work->w.kind == MODEL_WORK_OTHER && work->sync == sync;
}

struct soft_stream {
  model_stream s;
  bool queued;               /* in the ready list */
  unsigned waits;            /* calls that wait for it, and keep it */
  struct soft_work *running; /* the item that is being done, outside of the queue */
  struct soft_work *first, *last;
  unsigned long pending;                        /* pieces in the queue, the running one included */
  uint64_t time_ns;                             /* when its last item was done */
  struct soft_stream *next, **link;             /* in device->streams */
  struct soft_stream *next_ready, *next_waiter; /* in soft->ready; in a signal's waiters */
};

/* Enqueues a item of work, which is owned by the queue from here on, whatever the result: the implicit waits between
 * legacy and blocking streams come first. Not for streams that capture. */
weir_cu_result weir__soft_enqueue(struct soft *soft, struct soft_stream *stream, struct soft_work *work);

/* A wait for a signal, which may be NULL or done: nothing is enqueued then. */
weir_cu_result weir__soft_enqueue_wait(struct soft *soft, struct soft_stream *stream, struct soft_signal *signal);

weir_cu_result weir__soft_wait_signal(struct soft *soft, struct soft_signal *signal);
weir_cu_result weir__soft_wait_device(model *m, model_device *device);

void weir__soft_engine_stop(struct soft *soft);
/* The device clock: counted in stepped time, else the monotonic clock. */
uint64_t weir__soft_clock_ns(const struct soft *soft);

struct soft_exec {
  model_exec x;
  struct soft_signal *launched; /* the end of the last launch */
};

struct soft_event {
  model_event e;
  struct soft_signal *signal;       /* of the last record, if that was not in a capture */
  struct soft_shared_event *shared; /* interprocess */
  uint64_t shared_count;            /* of the last record of this process */
  bool imported;
};

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

/* ---- Devices, threads, the whole ---- */

struct soft_device {
  model_device d;
  int fd;            /* the file that is its memory; -1 until first used */
  uint64_t file_end; /* offsets below were handed out; a file has more of them than a process can use up */
  struct soft_stream *streams;
};

struct soft_thread {
  model_thread t;
  struct soft *soft;
  struct soft_thread *next;
};

struct soft {
  model m; /* first: a model * of a soft is a soft * */
  model_hooks hooks;
  weir_soft_options options;
  pthread_mutex_t lock;
  pthread_cond_t work;    /* there is something in `ready`, or the end has come */
  pthread_cond_t changed; /* a item of work was done */
  pthread_cond_t stop;    /* the end has come, or a device broke: wakes those that only let time pass */
  pthread_key_t thread_key;
  struct soft_thread *threads;
  atomic_bool stopping; /* also read without the lock */
  struct soft_device devices[WEIR_SOFT_MAX_DEVICES];

  struct soft_stream *ready; /* can go on, the most urgent first */
  unsigned ready_count, workers, idle_workers;
  uint64_t next_seq;
  pthread_t worker_ids[SOFT_MAX_WORKERS];
  uint64_t now_ns; /* in stepped time: the latest end of any item */
};

static inline struct soft_device *weir__soft_device_of(const struct soft_stream *stream) {
  return (struct soft_device *)stream->s.device;
}

/* The device behind a table of weir_driver_open_soft. For any other table NULL is returned and the last error set. */
struct soft *weir__soft_of(weir_driver *driver, const char *caller);

/* Makes the calling thread the one that is inside the model. false when the host has no memory. */
bool weir__soft_enter_thread(struct soft *soft);

/* Counts and follows everything, and ends the process with a message when something is wrong. The lock is held. */
void weir__soft_is_valid(struct soft *soft);

/* The end of a call: lets go of the lock. Where expensive checks are built in, all is checked first. */
void weir__soft_leave(struct soft *soft);

#endif
