/*
 * What the files of the runtime share. One runtime stands in a process; everything here may be called from any thread.
 *
 * Locks, outermost first: the start lock (init.c), a graph's or an event's own, a device's, the lists' (init.c). No
 * lock but the first is held while code of the program runs, except the memory hooks of a capture, which run under
 * their graph's.
 */
#ifndef WEIR_RUNTIME_RUNTIME_H
#define WEIR_RUNTIME_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/call.h"
#include "driver/visible.h"
#include "weir/device.h"
#include "weir/stream.h"

/* How many priorities have a pool of streams, at most. PyTorch has four, whatever the device offers. */
enum { WEIR__PRIORITIES = 4 };

typedef struct weir__device {
  weir_cu_device handle;            /* the driver's number for it; set at the start */
  pthread_mutex_t lock;             /* held while something below is made for the first time */
  _Atomic(weir_cu_context) context; /* the primary context; NULL until the device is first used */
  atomic_int priorities;            /* pools there are, 1 to WEIR__PRIORITIES; 0 until someone asks */
  atomic_int least_priority;        /* the driver's number for pool 0 */
  _Atomic(weir_cu_stream) streams[WEIR__PRIORITIES][WEIR_STREAMS_PER_POOL]; /* NULL until its first use */
  atomic_uint next[WEIR__PRIORITIES]; /* whose turn it is, modulo the pool's size */
  weir_cu_module spin_module;         /* guarded by lock */
  _Atomic(weir_cu_function) spin;     /* NULL until first used */
  atomic_ullong peers;                /* bit p: memory of device p may be touched from here */
} weir__device;

typedef struct weir__runtime {
  weir_driver *driver; /* set at the start, as is device_count */
  int device_count;
  weir__device devices[WEIR_MAX_DEVICES];
} weir__runtime;

/* Valid between a successful weir__start and the shutdown. */
extern weir__runtime weir__rt;

/* How many devices there were when they were last counted, by the start or before it. A child of fork cannot count
 * them. */
extern atomic_int weir__last_device_count;

/* ---- Starting (init.c) ---- */

/* Starts the runtime unless it has, on behalf of the public call `caller`. First in every call that needs a device. */
weir_status weir__start(const char *caller);

/* First in every call that needs none. */
weir_status weir__check_fork(const char *caller);

/* Whether weir__rt may be used now: the runtime has started, or it is this thread that is just starting it. */
bool weir__is_running(void);

/* When the runtime has not started: keeps it from starting until weir__unblock_start, and tells the program's own
 * driver, which may be NULL. Otherwise false. */
bool weir__block_start(weir_driver **driver);
void weir__unblock_start(void);

/* A child of fork cannot use a driver that was started before, and NVIDIA's stays started for good: told of each one
 * whose Init succeeded. */
void weir__note_driver_init(const weir_driver *driver);

/* ---- What the program has_handle and the runtime has to end with itself: events and graphs ---- */

typedef struct weir__object weir__object;
struct weir__object {
  weir__object *next, *previous;      /* guarded by the lists' lock */
  atomic_bool expired;                /* the runtime that it belonged to has ended */
  void (*release)(weir__object *);    /* frees what the driver has_handle for it */
  bool (*has_handle)(weir__object *); /* whether the driver has_handle anything for it */
};

void weir__object_add(weir__object *object);
void weir__object_remove(weir__object *object);

/* Fails with WEIR_ERROR_INVALID_HANDLE for an object that outlived its runtime. `what` is "event" or "graph". */
weir_status weir__object_check(const char *caller, const weir__object *object, const char *what);

/* ---- Threads and devices (device.c) ---- */

typedef struct weir__thread {
  unsigned long epoch;               /* of the runtime that the rest is about */
  int device;                        /* the current one */
  bool context_is_stale;             /* the current context may belong to an earlier runtime */
  int64_t streams[WEIR_MAX_DEVICES]; /* ids of the current streams */
} weir__thread;

/* The calling thread's, as it is under the runtime that stands now. */
weir__thread *weir__thread_state(void);

/* Counts the ends of runtimes. */
extern atomic_ulong weir__epoch;

/* Starts the runtime and turns -1 into the current device. */
weir_status weir__resolve_device(const char *caller, int device, int *resolved);

/* Fails with WEIR_ERROR_INVALID_DEVICE. */
weir_status weir__no_such_device(const char *caller, int device, int count);

typedef struct weir__guard {
  int device;
  weir_cu_context previous;
} weir__guard;

/* Makes the context of a valid device, if need be, and makes it the thread's; between the two calls the driver works
 * on that device. Leaving restores the thread's context, but the context of its current device stays once it is set,
 * so that the program can call the driver by itself. */
weir_status weir__enter_device(const char *caller, int device, weir__guard *guard);
void weir__leave_device(const weir__guard *guard);

/* The same for cleaning up: no text on failure, and no context is made. False when the device has none. */
bool weir__try_enter_device(int device, weir__guard *guard);

/* The context of a valid device, made if need be. */
weir_status weir__device_context(const char *caller, int device, weir_cu_context *context);

/* Makes a valid device the thread's current one. Unless make_context is set, a device without a context stays
 * without. */
weir_status weir__set_device(const char *caller, int device, bool make_context);

void weir__device_init(weir__device *device, weir_cu_device handle);

/* Frees all that the runtime made on a device, and its context. */
void weir__device_end(weir__device *device);

/* ---- Which devices (visible.c) ---- */

/* Starts the driver. *count is the number of its devices, which may be 0 and is at most WEIR_MAX_DEVICES: device i of the
 * runtime is ordinal i of the driver. */
weir_status weir__init_driver(const char *caller, weir_driver *driver, int *count);

/* How many there will be when the runtime starts. `chosen` is the program's own driver, or NULL. */
weir_status weir__count_devices(const char *caller, weir_driver *chosen, int *count);

/* Whether a device has a primary context, which can only be another's, before the runtime starts. Starts no driver
 * but the program's own. */
weir_status weir__has_primary_context(const char *caller, weir_driver *chosen, int device, bool *has);

/* ---- Streams (stream.c) ---- */

/* Starts the runtime, checks the stream, enters its device, and finds the driver's stream. Leave with
 * weir__leave_device. */
weir_status weir__enter_stream(const char *caller, weir_stream stream, weir__guard *guard, weir_cu_stream *raw);

/* The thread's current stream on a valid device. */
weir_stream weir__current_stream(int device);

/* The sync debug mode has its say about the public call `caller`, which is about to wait. */
weir_status weir__check_sync(const char *caller);

/* ---- The spin kernel (spin.c) ---- */

/* The device has been entered. */
weir_status weir__spin(const char *caller, weir__device *device, weir_cu_stream raw, uint64_t cycles);

#endif
