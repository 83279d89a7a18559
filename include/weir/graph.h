/*
 * Graphs: work that is captured from a stream once and launched many times.
 */
#ifndef WEIR_GRAPH_H
#define WEIR_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "weir/driver.h"
#include "weir/pool.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_graph weir_graph;

/* Which unsafe calls (such as cuMemAlloc) a capture forbids. */
typedef enum weir_capture_mode {
  WEIR_CAPTURE_GLOBAL,       /* those of any thread */
  WEIR_CAPTURE_THREAD_LOCAL, /* those of this thread */
  WEIR_CAPTURE_RELAXED       /* none */
} weir_capture_mode;

/* Creates an empty graph. */
weir_status weir_graph_create(weir_graph **graph);

/* Resets the graph and frees it. NULL is allowed. */
void weir_graph_destroy(weir_graph *graph);

/* A new id for a pool that several graphs share. */
weir_pool_id weir_graph_pool_handle(void);

/* Captures the work of the current stream, which must not be the default stream. pool {0, 0} gives the graph a pool
 * of its own. */
weir_status weir_graph_begin_capture(weir_graph *graph, weir_pool_id pool, weir_capture_mode mode);

/* Call it before the end of the capture: weir_graph_end_capture then keeps the driver's graph, which the program may
 * change, and leaves its instantiation to weir_graph_instantiate or to the first replay. */
weir_status weir_graph_keep(weir_graph *graph);

/* Ends what weir_graph_keep began: instantiates a captured graph, if that was not done, and destroys the driver's
 * graph. It is then as if it had not been kept, also in its next capture. If the instantiation fails, it is kept. */
weir_status weir_graph_finish(weir_graph *graph);

/* Makes what weir_graph_replay launches of a kept graph; again after the graph was changed. After an error the former
 * one stays. */
weir_status weir_graph_instantiate(weir_graph *graph);

/* The handles of the driver, which stay the graph's own: of a kept graph, and of what replays launch. Each is NULL if
 * there is none. Either output may be NULL. */
weir_status weir_graph_raw(const weir_graph *graph, weir_cu_graph *kept, weir_cu_graph_exec *exec);

/* Ends the capture, on the stream on which it began. Logs a warning if nothing was captured. After an error the
 * graph is empty. */
weir_status weir_graph_end_capture(weir_graph *graph);

/* Launches the graph on the current stream. */
weir_status weir_graph_replay(weir_graph *graph);

/* Empties the graph, so that it can capture again. */
weir_status weir_graph_reset(weir_graph *graph);

/* The pool of the most recent capture. */
weir_status weir_graph_pool(const weir_graph *graph, weir_pool_id *pool);

/* The number of nodes that the most recent capture recorded. */
weir_status weir_graph_node_count(const weir_graph *graph, size_t *count);

/* Call it before the capture: keeps the description of the graph for weir_graph_debug_dump. */
weir_status weir_graph_enable_debug(weir_graph *graph);

/* Writes the graph as DOT text to a file. Works once, because the description is freed then, unless the graph is
 * kept. */
weir_status weir_graph_debug_dump(weir_graph *graph, const char *path);

/* Whether work of a stream, or of the current stream, is being captured. */
weir_status weir_stream_is_capturing(weir_stream stream, int *capturing);
weir_status weir_current_stream_is_capturing(int *capturing);

/* The driver's number of the capture that the work of a stream belongs to; 0 if it is not being captured, or if its
 * capture is invalid. The streams of a capture have the same number, and no later capture has it again. */
weir_status weir_stream_capture_id(weir_stream stream, unsigned long long *id);

/* Functions of an allocator that the runtime calls around a capture, so that its allocations come from a pool of
 * their own. `begin` is called before the driver's capture starts, with its stream; `end` after it, also if it
 * failed; `release` when the graph no longer needs the pool. If begin fails, so does the capture.
 * weir_graph_use_allocator sets them. */
typedef struct weir_graph_memory_hooks {
  size_t size; /* sizeof(weir_graph_memory_hooks) */
  weir_status (*begin)(void *context, int device, weir_pool_id pool, weir_cu_stream stream);
  void (*end)(void *context, int device, weir_pool_id pool);
  void (*release)(void *context, int device, weir_pool_id pool);
  void *context;
} weir_graph_memory_hooks;

/* Sets `size` and makes the rest zero. */
static inline void weir_graph_memory_hooks_init(weir_graph_memory_hooks *hooks) { WEIR__INIT(hooks); }

/* NULL removes them. WEIR_ERROR_BAD_STATE during a capture. */
weir_status weir_graph_set_memory_hooks(const weir_graph_memory_hooks *hooks);

/* The current hooks; all functions are NULL if there are none. Initialize hooks with weir_graph_memory_hooks_init. */
weir_status weir_graph_get_memory_hooks(weir_graph_memory_hooks *hooks);

/* Lets the allocator serve the runtime's graphs: allocations during a capture come from the graph's pool. NULL ends
 * this. */
weir_status weir_graph_use_allocator(weir_allocator *allocator);

/* Functions of a library above the runtime that prepares captures and replays, as random generators do
 * (weir/compute/random.h). They run under the lock of the graph, so they must not call it; any of them may be NULL. */
typedef struct weir_graph_hooks {
  size_t size; /* sizeof(weir_graph_hooks) */
  /* Before the capture and before the memory hooks, so that work and allocations here are not part of it. If it
   * fails, so does the capture. */
  weir_status (*begin)(void *context, weir_graph *graph, weir_stream stream);
  /* Once after each successful begin; captured is 0 if the capture failed or was abandoned. */
  void (*end)(void *context, weir_graph *graph, int captured);
  /* Before each launch, with its stream. If it fails, the graph is not launched. */
  weir_status (*replay)(void *context, weir_graph *graph, weir_stream stream);
  /* When the graph is destroyed, after its last end. */
  void (*destroy)(void *context, weir_graph *graph);
  void *context;
} weir_graph_hooks;

/* Sets `size` and makes the rest zero. */
static inline void weir_graph_hooks_init(weir_graph_hooks *hooks) { WEIR__INIT(hooks); }

/* NULL removes them. Replacing or removing hooks during a capture is WEIR_ERROR_BAD_STATE. */
weir_status weir_graph_set_hooks(const weir_graph_hooks *hooks);

#ifdef __cplusplus
}
#endif
#endif
