/*
 * Starting the runtime, and which driver it stands on.
 *
 * Nothing has to be started by hand: the first call that needs a device does it. Loading the library calls no driver.
 */
#ifndef WEIR_RUNTIME_H
#define WEIR_RUNTIME_H

#include "weir/driver.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0

/* "0.1.0", of the library that runs. */
const char *weir_version(void);

/* Starts the runtime: opens the driver, counts the devices, runs the queued calls. Does nothing when it has started. A
 * failed start leaves the runtime as it was, and may be tried again. */
weir_status weir_init(void);

/* 1 after a start that succeeded, in the process that made it. */
int weir_is_initialized(void);

/* 1 in a child that was forked after the runtime had started. */
int weir_is_in_bad_fork(void);

/* Puts the runtime on a driver of the program's choice instead of the one that WEIR_DRIVER names. Before the start only:
 * WEIR_ERROR_BAD_STATE later. The driver stays the caller's, and outlives the runtime. NULL takes the choice back. */
weir_status weir_use_driver(weir_driver *driver);

/* The driver that the runtime stands on; starts it if need be. For calls that Weir does not wrap. */
weir_status weir_get_driver(weir_driver **driver);

/* Ends the runtime and frees what it holds: its streams, its contexts, and the driver unless the program chose it.
 * Events and graphs that the program still has become invalid, and are only good for destroying. Allocators
 * (weir/alloc.h, weir/host.h) have to be destroyed before: while one is alive on a driver that the runtime would close,
 * this returns WEIR_ERROR_BAD_STATE with a text that lists them, and the runtime goes on as it was. Not while another
 * thread is in a call. A later call starts anew. */
weir_status weir_shutdown(void);

typedef weir_status (*weir_lazy_fn)(void *context);

/* Runs fn(context) at the start of the runtime, or now if it has started. `where` names the caller, as "file.c:12"; it is
 * copied. When a queued call fails the start fails with WEIR_ERROR_DEFERRED_CALL, and the text names it; the queue stays. */
weir_status weir_lazy_call(weir_lazy_fn fn, void *context, const char *where);
#define WEIR_LAZY_CALL(fn, context) weir_lazy_call((fn), (context), __FILE__ ":" WEIR__STRING(__LINE__))
#define WEIR__STRING(x) WEIR__STRING_(x)
#define WEIR__STRING_(x) #x

/* What happens when a call makes the host wait for a stream (stream synchronize, blocking copies). */
typedef enum weir_sync_debug { WEIR_SYNC_DEBUG_DEFAULT, WEIR_SYNC_DEBUG_WARN, WEIR_SYNC_DEBUG_ERROR } weir_sync_debug;
weir_status weir_sync_debug_set(weir_sync_debug mode);
weir_sync_debug weir_sync_debug_get(void);

/* "default", "warn" or "error" to the mode; WEIR_ERROR_INVALID_ARGUMENT for anything else. */
weir_status weir_sync_debug_parse(const char *text, weir_sync_debug *mode);

/* Starts and stops a profiler that is attached to the process. */
weir_status weir_profiler_start(void);
weir_status weir_profiler_stop(void);

#ifdef __cplusplus
}
#endif
#endif
