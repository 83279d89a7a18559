/*
 * What the files of the runtime share. A process has one runtime; every function here may be called from any thread.
 *
 * Lock order, outermost first: the start lock (init.c), the lock of a graph or an event, the lock of a device, the lock
 * of the lists (init.c). While code of the program runs, only the start lock may be held, and the lock of a graph while
 * its hooks run.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/thread.h"
#include "driver/call.h"
#include "driver/visible.h"
#include "weir/device.h"
#include "weir/stream.h"

/* The maximum number of stream pools per device, one per priority, as in PyTorch. */
enum { WEIR__PRIORITIES = 4 };

typedef struct weir__device {
  weir_cu_device handle;            /* the device in the driver; set when the runtime starts */
  weir__mutex lock;                 /* held while a member below is created */
  _Atomic(weir_cu_context) context; /* the primary context; NULL until first used */
  atomic_int priorities;            /* number of pools, 1 to WEIR__PRIORITIES; 0 until queried */
  atomic_int least_priority;        /* the driver priority of pool 0 */
  _Atomic(weir_cu_stream) streams[WEIR__PRIORITIES][WEIR_STREAMS_PER_POOL]; /* NULL until first used */
  atomic_uint next[WEIR__PRIORITIES]; /* round-robin index, modulo the size of the pool */
  weir_cu_module spin_module;         /* guarded by lock */
  _Atomic(weir_cu_function) spin;     /* NULL until first used */
  atomic_ullong peers;                /* bit p is set if peer access to device p is enabled */
} weir__device;

typedef struct weir__runtime {
  weir_driver *driver; /* both are set when the runtime starts */
  int device_count;
  weir__device devices[WEIR_MAX_DEVICES];
} weir__runtime;

/* Valid from a successful weir__start to the shutdown. */
extern weir__runtime weir__rt;

/* The latest known number of devices. The child of a fork returns it, as it cannot count devices. */
extern atomic_int weir__last_device_count;

/* ---- Starting (init.c) ---- */

/* Starts the runtime if necessary, for the public call `caller`. Every call that needs a device begins with it. */
weir_status weir__start(const char *caller);

/* Fails after a fork. Every call that needs no device begins with it. */
weir_status weir__check_fork(const char *caller);

/* Whether weir__rt may be used: the runtime runs, or the calling thread is starting it. */
bool weir__is_running(void);

/* If the runtime is stopped, returns true, prevents it from starting until weir__unblock_start, and sets *driver to the
 * driver that the program chose, or NULL. */
bool weir__block_start(weir_driver **driver);
void weir__unblock_start(void);

/* Called after each successful Init. A driver that does not survive a fork makes the runtime unusable in later
 * children, even after a shutdown. */
void weir__note_driver_init(const weir_driver *driver);

/* ---- Events and graphs, which belong to the program and end with the runtime ---- */

typedef struct weir__object weir__object;
struct weir__object {
  weir__object *next, **link;         /* guarded by the lock of the lists */
  atomic_bool expired;                /* the runtime that it belongs to was shut down */
  void (*release)(weir__object *);    /* destroys the handles of the driver */
  bool (*has_handle)(weir__object *); /* whether it has any */
  atomic_bool destroyed;              /* by the program; kept under guard, so that a later use is recognized */
  uint32_t stack;                     /* of that */
};

void weir__object_add(weir__object *object);

/* Destroying an object, which is the first member of what weir__object_free frees, or keeps for some time under guard.
 * weir__object_remove is false if it was destroyed before. */
bool weir__object_remove(const char *caller, weir__object *object, const char *what);
void weir__object_free(weir__object *object, const char *what);

/* Fails with WEIR_ERROR_INVALID_HANDLE if the runtime of the object was shut down, or if it was destroyed. `what` is
 * "event" or "graph". */
weir_status weir__object_check(const char *caller, const weir__object *object, const char *what);

/* ---- Threads and devices (device.c) ---- */

typedef struct weir__thread {
  unsigned epoch;        /* epoch that the other members belong to */
  short device;          /* the current device */
  bool context_is_stale; /* the current context may belong to an earlier runtime */
  bool is_starting;      /* it starts the runtime, and may use it already, as deferred calls do. Of any epoch */
  int64_t streams[WEIR_MAX_DEVICES]; /* ids of the current streams */
} weir__thread;

/* The state of the calling thread. It is reset when the runtime was shut down since the last call. */
weir__thread *weir__thread_state(void);

/* Incremented at each shutdown. */
extern atomic_uint weir__epoch;

/* Starts the runtime and replaces -1 by the current device. */
weir_status weir__resolve_device(const char *caller, int device, int *resolved);

/* Starts the runtime and checks a device number, without the special case -1. */
weir_status weir__check_device(const char *caller, int device);

/* Fails with WEIR_ERROR_INVALID_DEVICE. */
weir_status weir__no_such_device(const char *caller, int device, int count);

typedef struct weir__guard {
  int device;
  weir_cu_context previous;
} weir__guard;

/* Makes the context of a valid device current, and creates it if necessary. Between the two calls the driver works on
 * that device. Leaving restores the former context, except that the context of the current device stays, so that the
 * program can call the driver itself. */
weir_status weir__enter_device(const char *caller, int device, weir__guard *guard);
void weir__leave_device(const weir__guard *guard);

/* weir__resolve_device and weir__enter_device. The number of the device is in guard->device. */
weir_status weir__resolve_and_enter(const char *caller, int device, weir__guard *guard);

/* For cleaning up: sets no last error and creates no context. False if the device has none. */
bool weir__try_enter_device(int device, weir__guard *guard);

/* The context of a valid device, created if necessary. */
weir_status weir__device_context(const char *caller, int device, weir_cu_context *context);

/* Makes a valid device the current one. Unless make_context is set, no context is created. */
weir_status weir__set_device(const char *caller, int device, bool make_context);

void weir__device_init(weir__device *device, weir_cu_device handle);

/* Destroys everything that the runtime created on a device, and releases its context. */
void weir__device_end(weir__device *device);

/* ---- Which devices (visible.c) ---- */

/* Initializes the driver. *count is the number of its devices, at most WEIR_MAX_DEVICES, and may be 0. Device i of the
 * runtime is ordinal i of the driver. */
weir_status weir__init_driver(const char *caller, weir_driver *driver, int *count);

/* The number of devices that the runtime will have once started. `chosen` is the driver that the program chose, or
 * NULL. */
weir_status weir__count_devices(const char *caller, weir_driver *chosen, int *count);

/* Whether other code has created the primary context of a device, before the runtime starts. Initializes no driver but
 * the chosen one. */
weir_status weir__has_primary_context(const char *caller, weir_driver *chosen, int device, bool *has);

/* ---- Streams (stream.c) ---- */

/* Starts the runtime, checks the stream, enters its device, and finds the handle of the driver. Leave with
 * weir__leave_device. */
weir_status weir__enter_stream(const char *caller, weir_stream stream, weir__guard *guard, weir_cu_stream *raw);

/* The current stream of the calling thread on a valid device. */
weir_stream weir__current_stream(int device);

/* Applies the sync debug mode to the public call `caller`, which is about to synchronize. */
weir_status weir__check_sync(const char *caller);

/* ---- The spin kernel (spin.c) ---- */

/* The device must have been entered. */
weir_status weir__spin(const char *caller, weir__device *device, weir_cu_stream raw, uint64_t cycles);
