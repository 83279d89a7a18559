/*
 * Graphs: work captured once from a stream and launched as one, many times.
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

/* What other threads may do during a capture. */
typedef enum weir_capture_mode {
  WEIR_CAPTURE_GLOBAL,       /* no unsafe call from any thread */
  WEIR_CAPTURE_THREAD_LOCAL, /* none from this thread */
  WEIR_CAPTURE_RELAXED       /* anything */
} weir_capture_mode;

weir_status weir_graph_create(weir_graph **graph);

/* Resets it first. NULL is allowed. */
void weir_graph_destroy(weir_graph *graph);

/* A new pool id to share between graphs. */
weir_pool_id weir_graph_pool_handle(void);

/* Captures what is put into the current stream, which must not be the default one. pool {0, 0}: a pool of its own. */
weir_status weir_graph_capture_begin(weir_graph *graph, weir_pool_id pool, weir_capture_mode mode);

/* On the stream on which it began. Warns when nothing was captured. After an error the graph is as if never captured. */
weir_status weir_graph_capture_end(weir_graph *graph);

/* Puts all of it into the current stream. */
weir_status weir_graph_replay(weir_graph *graph);

/* Forgets what was captured, so that it can be captured anew. */
weir_status weir_graph_reset(weir_graph *graph);

/* The pool of the last capture. */
weir_status weir_graph_pool(const weir_graph *graph, weir_pool_id *pool);

weir_status weir_graph_node_count(const weir_graph *graph, size_t *count);

/* Keeps the description after the capture, for weir_graph_debug_dump. Before the capture. */
weir_status weir_graph_enable_debug(weir_graph *graph);

/* Writes it as DOT text to a file. Once only: the description is freed then. */
weir_status weir_graph_debug_dump(weir_graph *graph, const char *path);

weir_status weir_stream_is_capturing(weir_stream stream, int *capturing);
weir_status weir_current_stream_is_capturing(int *capturing);

/* Called around captures by whoever owns memory: a capture's allocations go to a pool of their own. `begin` comes before the
 * driver's capture starts, with its stream; `end` after it, failed or not; `release` when the graph lets go of the pool. A
 * begin that fails stops the capture. The allocator sets these; a program seldom does. */
typedef struct weir_graph_memory_hooks {
  size_t size; /* sizeof(weir_graph_memory_hooks) */
  weir_status (*begin)(void *context, int device, weir_pool_id pool, weir_cu_stream stream);
  void (*end)(void *context, int device, weir_pool_id pool);
  void (*release)(void *context, int device, weir_pool_id pool);
  void *context;
} weir_graph_memory_hooks;

void weir_graph_memory_hooks_init(weir_graph_memory_hooks *hooks);

/* NULL removes them. Not while a capture is under way: WEIR_ERROR_BAD_STATE. */
weir_status weir_graph_set_memory_hooks(const weir_graph_memory_hooks *hooks);

/* The hooks that are set; all functions are NULL if there are none. Initialize hooks with weir_graph_memory_hooks_init. */
weir_status weir_graph_get_memory_hooks(weir_graph_memory_hooks *hooks);

#ifdef __cplusplus
}
#endif
#endif
