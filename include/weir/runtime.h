/*
 * Starting and ending the runtime, and the choice of its driver.
 *
 * The first call that needs a device starts the runtime. Loading the library makes no driver call.
 */
#ifndef WEIR_RUNTIME_H
#define WEIR_RUNTIME_H

#include "weir/driver.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of these headers. */
#define WEIR_VERSION_MAJOR 1
#define WEIR_VERSION_MINOR 0
#define WEIR_VERSION_PATCH 0

/* The version of the running library, such as "1.0.0". */
const char *weir_version(void);

/* Starts the runtime: opens the driver, counts the devices, runs the queued calls. Does nothing if it has started.
 * After a failed start the runtime is as before, and the start may be repeated. */
weir_status weir_init(void);

/* 1 after a successful start, in the process that made it. */
int weir_is_initialized(void);

/* 1 in a child that was forked after the start of the runtime. */
int weir_is_in_bad_fork(void);

/* Selects a driver in place of the one that WEIR_DRIVER names. WEIR_ERROR_BAD_STATE after the start. The caller
 * keeps the driver, which must outlive the runtime. NULL undoes the selection. */
weir_status weir_use_driver(weir_driver *driver);

/* The driver of the runtime, which is started if it has not been: for calls that Weir does not wrap. */
weir_status weir_get_driver(weir_driver **driver);

/* Ends the runtime and frees its streams, its contexts, the process default allocator (weir/memory.h), and the
 * driver unless the program selected it. Events and graphs that the program still has become invalid and can only be
 * destroyed. Other allocators (weir/alloc.h, weir/host.h) must be destroyed before: while one is alive on a driver
 * that the runtime would close, or while memory of the process default is allocated, this returns
 * WEIR_ERROR_BAD_STATE with a text that lists them, and changes nothing. No other thread may be inside a call. A
 * later call starts the runtime again. */
weir_status weir_shutdown(void);

typedef weir_status (*weir_lazy_fn)(void *context);

/* Calls fn(context) at the start of the runtime, or now if it has started. `where` names the caller, as "file.c:12",
 * and is copied. If a queued call fails, the start fails with WEIR_ERROR_DEFERRED_CALL, the text names the call, and
 * the queue is kept. */
weir_status weir_lazy_call(weir_lazy_fn fn, void *context, const char *where);
#define WEIR_LAZY_CALL(fn, context) weir_lazy_call((fn), (context), __FILE__ ":" WEIR__STRING(__LINE__))
#define WEIR__STRING(x) WEIR__STRING_(x)
#define WEIR__STRING_(x) #x

/* Calls fn(context) at every shutdown of the runtime, before the contexts are released: on the thread that shuts it
 * down, the last one added first. fn may call the driver, and must not start or shut down the runtime. */
typedef void (*weir_shutdown_fn)(void *context);
weir_status weir_shutdown_hook_add(weir_shutdown_fn fn, void *context);

/* Removes what was added last with this function and context. WEIR_ERROR_INVALID_ARGUMENT if nothing was. */
weir_status weir_shutdown_hook_remove(weir_shutdown_fn fn, void *context);

/* The sync debug mode: whether a call that makes the host wait for a stream (weir_stream_synchronize, blocking
 * copies) is allowed, logs a warning, or fails. */
typedef enum weir_sync_debug { WEIR_SYNC_DEBUG_DEFAULT, WEIR_SYNC_DEBUG_WARN, WEIR_SYNC_DEBUG_ERROR } weir_sync_debug;
weir_status weir_set_sync_debug(weir_sync_debug mode);
weir_sync_debug weir_get_sync_debug(void);

/* Start and stop a profiler that is attached to the process. */
weir_status weir_profiler_start(void);
weir_status weir_profiler_stop(void);

#ifdef __cplusplus
}
#endif
#endif
