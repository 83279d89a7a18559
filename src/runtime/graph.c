/*
 * Graphs: capture, replay, and the memory hooks around a capture.
 */
#include "weir/graph.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/thread.h"
#include "runtime/runtime.h"

enum { EMPTY, CAPTURING, CAPTURED };

/* CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE. */
enum { DOT_VERBOSE = 1 };

struct weir_graph {
  weir__object object; /* first, so that a weir__object * can be cast to a weir_graph * */
  weir__mutex lock;    /* guards the rest */
  int state;
  bool debug;   /* keep `description` for a debug dump */
  bool is_kept; /* keep `description`, and instantiate it later */

  /* The current or completed capture; valid unless EMPTY. */
  int device;
  weir_cu_stream stream;
  weir_capture_mode mode;
  weir__thread_id thread;
  weir_pool_id pool;
  unsigned hooks_version; /* hooks_version at the start of the capture */
  bool is_prepared;       /* the hook `begin` of weir_graph_hooks succeeded, and `end` has not been called */

  /* Valid when CAPTURED. */
  weir_cu_graph description; /* NULL without debug, or after a dump; valid if the graph is kept */
  weir_cu_graph_exec exec;   /* NULL before a kept graph is instantiated */
  size_t node_count;
};

static weir__mutex hooks_lock = WEIR__MUTEX_INIT;
static weir_graph_memory_hooks hooks; /* guarded by hooks_lock, as are the next three */
static weir_graph_hooks work_hooks;
static unsigned hooks_version; /* incremented with each change of the memory hooks */
static int active_captures;

static atomic_uint_fast64_t graph_pools;  /* number of pools created by captures */
static atomic_uint_fast64_t handle_pools; /* number of pools created by weir_graph_pool_handle */

weir_pool_id weir_graph_pool_handle(void) { return (weir_pool_id){0, ++handle_pools}; }

/* ---- Hooks ---- */

static weir_status check_no_captures(const char *caller, int active) {
  if (active == 0)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_STATE, "%s: %d capture%s active; end %s first", caller, active,
                    active == 1 ? " is" : "s are", active == 1 ? "it" : "them");
}

weir_status weir_graph_set_memory_hooks(const weir_graph_memory_hooks *new_hooks) {
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  weir_graph_memory_hooks copy = {0};
  if (new_hooks) {
    if (new_hooks->size < sizeof new_hooks->size)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: hooks->size is %zu; it is sizeof(weir_graph_memory_hooks)",
                        __func__, new_hooks->size);
    weir__copy_sized(&copy, sizeof copy, new_hooks, new_hooks->size);
  }
  weir__mutex_lock(&hooks_lock);
  int active = active_captures;
  if (active == 0) {
    hooks = copy;
    hooks_version++;
  }
  weir__mutex_unlock(&hooks_lock);
  return check_no_captures(__func__, active);
}

weir_status weir_graph_get_memory_hooks(weir_graph_memory_hooks *into) {
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  if (!into || into->size < sizeof into->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: hooks is NULL, or its size is not set", __func__);
  weir__mutex_lock(&hooks_lock);
  weir_graph_memory_hooks now = hooks;
  weir__mutex_unlock(&hooks_lock);
  now.size = into->size;
  weir__copy_sized(into, into->size, &now, sizeof now);
  return WEIR_OK;
}

weir_status weir_graph_set_hooks(const weir_graph_hooks *new_hooks) {
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  weir_graph_hooks copy = {0};
  if (new_hooks) {
    if (new_hooks->size < sizeof new_hooks->size)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: hooks->size is %zu; it is sizeof(weir_graph_hooks)", __func__,
                        new_hooks->size);
    weir__copy_sized(&copy, sizeof copy, new_hooks, new_hooks->size);
  }
  weir__mutex_lock(&hooks_lock);
  bool is_replaced = work_hooks.size != 0;
  int active = is_replaced ? active_captures : 0;
  if (active == 0)
    work_hooks = copy;
  weir__mutex_unlock(&hooks_lock);
  return check_no_captures(__func__, active);
}

static weir_graph_hooks get_work_hooks(void) {
  weir__mutex_lock(&hooks_lock);
  weir_graph_hooks now = work_hooks;
  weir__mutex_unlock(&hooks_lock);
  return now;
}

static weir_status prepare(weir_graph *graph, weir_stream stream) {
  weir_graph_hooks now = get_work_hooks();
  weir_status status = now.begin ? now.begin(now.context, graph, stream) : WEIR_OK;
  graph->is_prepared = now.begin && !status;
  return status;
}

static void end_prepared(weir_graph *graph, bool captured) {
  if (!graph->is_prepared)
    return;
  graph->is_prepared = false;
  weir_graph_hooks now = get_work_hooks();
  if (now.end)
    now.end(now.context, graph, captured);
}

/* Until hooks_end the hooks cannot be replaced. */
static weir_status hooks_begin(weir_graph *graph) {
  weir__mutex_lock(&hooks_lock);
  weir_graph_memory_hooks now = hooks;
  graph->hooks_version = hooks_version;
  active_captures++;
  weir__mutex_unlock(&hooks_lock);

  weir_status status = WEIR_OK;
  if (now.begin)
    status = now.begin(now.context, graph->device, graph->pool, graph->stream);
  if (status) {
    weir__mutex_lock(&hooks_lock);
    active_captures--;
    weir__mutex_unlock(&hooks_lock);
  }
  return status;
}

static void hooks_end(const weir_graph *graph) {
  weir__mutex_lock(&hooks_lock);
  weir_graph_memory_hooks now = hooks;
  weir__mutex_unlock(&hooks_lock);
  if (now.end)
    now.end(now.context, graph->device, graph->pool);
  weir__mutex_lock(&hooks_lock);
  active_captures--;
  weir__mutex_unlock(&hooks_lock);
}

/* Hooks that were installed after the capture do not know its pool. */
static void hooks_release(const weir_graph *graph) {
  weir__mutex_lock(&hooks_lock);
  weir_graph_memory_hooks now = hooks;
  bool same = hooks_version == graph->hooks_version;
  weir__mutex_unlock(&hooks_lock);
  if (same && now.release)
    now.release(now.context, graph->device, graph->pool);
}

/* ---- Creating and destroying ---- */

static bool has_handle(weir__object *object) { return ((weir_graph *)object)->state != EMPTY; }

/* Ends the capture in the driver. If a failing call left the stream capturing, ends it again. */
static weir_cu_result end_driver_capture(const weir_graph *graph, weir_cu_graph *captured) {
  weir_driver *driver = weir__rt.driver;
  weir_cu_result result = driver->StreamEndCapture(driver, graph->stream, captured);
  int capturing;
  weir_cu_graph unwanted = NULL;
  if (result && !driver->StreamIsCapturing(driver, graph->stream, &capturing) &&
      capturing != WEIR_CU_CAPTURE_STATUS_NONE && !driver->StreamEndCapture(driver, graph->stream, &unwanted) &&
      unwanted)
    driver->GraphDestroy(driver, unwanted);
  return result;
}

/* Ends the current capture and discards the result. */
static weir_cu_result abandon_capture(weir_graph *graph) {
  weir_driver *driver = weir__rt.driver;
  weir_cu_graph captured = NULL;
  weir_cu_result result = end_driver_capture(graph, &captured);
  if (!result && captured)
    driver->GraphDestroy(driver, captured);
  hooks_end(graph);
  hooks_release(graph);
  graph->state = EMPTY;
  end_prepared(graph, false);
  return result;
}

/* Destroys a captured graph, and returns the first error. */
static weir_cu_result free_captured(weir_graph *graph) {
  weir_driver *driver = weir__rt.driver;
  weir_cu_result result = graph->exec ? driver->GraphExecDestroy(driver, graph->exec) : WEIR_CU_SUCCESS;
  if (graph->description) {
    weir_cu_result second = driver->GraphDestroy(driver, graph->description);
    if (!result)
      result = second;
  }
  graph->exec = NULL;
  graph->description = NULL;
  hooks_release(graph);
  graph->state = EMPTY;
  return result;
}

static void warn_about_capture(void) {
  weir__log(WEIR_LOG_WARN, "a graph was reset or destroyed during its capture; the capture is abandoned");
}

static void release(weir__object *object) {
  weir_graph *graph = (weir_graph *)object;
  weir__guard guard;
  bool entered = weir__try_enter_device(graph->device, &guard);
  if (graph->state == CAPTURING) {
    warn_about_capture();
    weir_cu_result result = abandon_capture(graph);
    if (result == WEIR_CU_STREAM_CAPTURE_WRONG_THREAD)
      weir__log(WEIR_LOG_WARN, "only the thread that began the capture can end it; its stream remains capturing");
  } else {
    free_captured(graph);
  }
  if (entered)
    weir__leave_device(&guard);
}

weir_status weir_graph_create(weir_graph **graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  weir_graph *created = calloc(1, sizeof *created);
  if (!created)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the graph", __func__);
  created->object.release = release;
  created->object.has_handle = has_handle;
  weir__mutex_init(&created->lock);
  weir__object_add(&created->object);
  *graph = created;
  return WEIR_OK;
}

void weir_graph_destroy(weir_graph *graph) {
  if (!graph || !weir__object_remove(__func__, &graph->object, "graph"))
    return;
  if (graph->state != EMPTY && weir__is_running())
    release(&graph->object);
  weir_graph_hooks now = get_work_hooks();
  if (now.destroy)
    now.destroy(now.context, graph);
  weir__mutex_destroy(&graph->lock);
  weir__object_free(&graph->object, "graph");
}

static weir_status check(const char *caller, const weir_graph *graph) {
  weir_status status = weir__check_fork(caller);
  return status ? status : weir__object_check(caller, &graph->object, "graph");
}

/* Locks a graph for a public call. Fails if the graph cannot be used. */
static weir_status lock(const char *caller, const weir_graph *graph) {
  weir_status status = check(caller, graph);
  if (!status)
    weir__mutex_lock((weir__mutex *)&graph->lock);
  return status;
}

static void unlock(const weir_graph *graph) { weir__mutex_unlock((weir__mutex *)&graph->lock); }

/* Unless the capture is relaxed, the driver lets only the thread that began it end it. */
static weir_status check_thread(const char *caller, const weir_graph *graph) {
  if (graph->mode == WEIR_CAPTURE_RELAXED || weir__thread_equal(graph->thread, weir__thread_self()))
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_CAPTURE,
                    "%s: another thread began the capture, and only that thread can end it; the capture continues",
                    caller);
}

/* ---- Capture ---- */

/* The device must have been entered, and the members that describe the capture must be set. */
static weir_status begin_capture(const char *caller, weir_graph *graph) {
  weir_driver *driver = weir__rt.driver;
  int capturing;
  weir_status status =
      WEIR__CALL_FOR(caller, driver, StreamGetCaptureInfo(driver, graph->stream, &capturing, NULL, NULL, NULL, NULL));
  if (status)
    return status;
  if (capturing != WEIR_CU_CAPTURE_STATUS_NONE)
    return weir__fail(WEIR_ERROR_CAPTURE, "%s: the current stream is already capturing", caller);

  status = hooks_begin(graph);
  if (status)
    return status;
  status = WEIR__CALL_FOR(caller, driver, StreamBeginCapture(driver, graph->stream, (int)graph->mode));
  if (status) {
    hooks_end(graph);
    hooks_release(graph);
    return status;
  }
  graph->state = CAPTURING;
  status =
      WEIR__CALL_FOR(caller, driver, StreamGetCaptureInfo(driver, graph->stream, &capturing, NULL, NULL, NULL, NULL));
  if (!status && capturing != WEIR_CU_CAPTURE_STATUS_ACTIVE)
    status =
        weir__fail(WEIR_ERROR_CAPTURE, "%s: the driver began the capture, but the stream is not capturing", caller);
  if (status)
    abandon_capture(graph);
  return status;
}

weir_status weir_graph_begin_capture(weir_graph *graph, weir_pool_id pool, weir_capture_mode mode) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = check(__func__, graph);
  if (status)
    return status;
  if ((unsigned)mode > WEIR_CAPTURE_RELAXED)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: mode is %d; allowed are 0 (global), 1 (thread local) and 2 (relaxed)", __func__, (int)mode);
  if (pool.first != 0 && pool.second != 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: pool is {%" PRIu64 ", %" PRIu64 "}; at most one of the two numbers may be set", __func__,
                      pool.first, pool.second);
  status = weir__start(__func__);
  if (!status)
    status = lock(__func__, graph);
  if (status)
    return status;

  weir__guard guard;
  weir_stream stream = weir__current_stream(weir__thread_state()->device);
  if (graph->state == CAPTURING) {
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: this graph is being captured already", __func__);
  } else if (graph->state == CAPTURED) {
    status =
        weir__fail(WEIR_ERROR_BAD_STATE,
                   "%s: This weir_graph instance already owns a captured graph. To capture a new graph, create a new "
                   "instance or call weir_graph_reset()",
                   __func__);
  } else if (stream.id == 0) {
    status = weir__fail(WEIR_ERROR_CAPTURE,
                        "%s: CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "
                        "replay them on the default stream.)",
                        __func__);
  } else {
    graph->device = stream.device;
    graph->mode = mode;
    graph->thread = weir__thread_self();
    graph->pool = pool;
    status = weir__enter_stream(__func__, stream, &guard, &graph->stream);
  }
  if (!status) {
    if (pool.first == 0 && pool.second == 0)
      graph->pool.first = ++graph_pools;
    status = weir__fail_as(__func__, prepare(graph, stream));
    if (!status)
      status = begin_capture(__func__, graph);
    if (status)
      end_prepared(graph, false);
    weir__leave_device(&guard);
  }
  unlock(graph);
  return status;
}

/* The former instance is destroyed once there is a new one. */
static weir_status instantiate(const char *caller, weir_graph *graph, weir_cu_graph captured) {
  weir_driver *driver = weir__rt.driver;
  weir_cu_graph_exec exec, former = graph->exec;
  weir_status status =
      WEIR__CALL_FOR(caller, driver, GraphInstantiate(driver, &exec, captured, WEIR_CU_GRAPH_AUTO_FREE_ON_LAUNCH));
  if (status)
    return status;
  graph->exec = exec;
  return former ? WEIR__CALL_FOR(caller, driver, GraphExecDestroy(driver, former)) : WEIR_OK;
}

/* Instantiates the captured graph, unless it is kept. On failure the graph is destroyed. */
static weir_status finish(const char *caller, weir_graph *graph, weir_cu_graph captured) {
  weir_driver *driver = weir__rt.driver;
  size_t count = 0;
  weir_status status = WEIR__CALL_FOR(caller, driver, GraphGetNodes(driver, captured, NULL, &count));
  if (!status && !graph->is_kept)
    status = instantiate(caller, graph, captured);
  if (status) {
    driver->GraphDestroy(driver, captured);
    return status;
  }
  if (count == 0)
    weir__log(WEIR_LOG_WARN,
              "%s: The CUDA Graph is empty. This usually means that the graph was attempted to be captured "
              "on wrong device or stream.",
              caller);
  if (!graph->debug && !graph->is_kept) {
    driver->GraphDestroy(driver, captured);
    captured = NULL;
  }
  graph->description = captured;
  graph->node_count = count;
  return WEIR_OK;
}

static weir_status end_capture(const char *caller, weir_graph *graph) {
  weir__guard guard;
  weir_status status = weir__enter_device(caller, graph->device, &guard);
  if (status) {
    abandon_capture(graph);
    return status;
  }

  weir_stream current = weir__current_stream(weir__thread_state()->device);
  weir__guard current_guard;
  weir_cu_stream current_raw;
  status = weir__enter_stream(caller, current, &current_guard, &current_raw);
  if (!status) {
    weir__leave_device(&current_guard);
    if (current.device != graph->device || current_raw != graph->stream)
      status = weir__fail(WEIR_ERROR_CAPTURE, "%s: Capture must end on the same stream it began on.", caller);
  }
  if (status) {
    abandon_capture(graph);
    goto leave_device;
  }

  weir_cu_graph captured = NULL;
  weir_cu_result result = end_driver_capture(graph, &captured);
  status = weir__driver_status(weir__rt.driver, result, caller, "cuStreamEndCapture(driver, stream, &captured)");
  hooks_end(graph);
  graph->state = EMPTY;
  if (!status && !captured)
    status = weir__fail(WEIR_ERROR_CAPTURE, "%s: the driver returned no graph for the capture", caller);
  if (!status)
    status = finish(caller, graph, captured);
  if (!status)
    graph->state = CAPTURED;
  else
    hooks_release(graph);
  end_prepared(graph, status == WEIR_OK);

leave_device:
  weir__leave_device(&guard);
  return status;
}

weir_status weir_graph_end_capture(weir_graph *graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  if (graph->state != CAPTURING)
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: this graph is not being captured", __func__);
  else
    status = check_thread(__func__, graph);
  if (!status)
    status = end_capture(__func__, graph);
  unlock(graph);
  return status;
}

/* ---- Using a captured graph ---- */

/* The graph is locked. */
static weir_status check_captured(const char *caller, const weir_graph *graph) {
  if (graph->state == CAPTURED)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_STATE, "%s: Called %s without a preceding successful capture.", caller, caller);
}

weir_status weir_graph_replay(weir_graph *graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  status = check_captured(__func__, graph);
  weir__guard guard;
  weir_cu_stream raw;
  weir_stream stream;
  if (!status) {
    stream = weir__current_stream(graph->device);
    status = weir__enter_stream(__func__, stream, &guard, &raw);
  }
  if (!status) {
    weir_graph_hooks now = get_work_hooks();
    status = graph->exec ? WEIR_OK : instantiate(__func__, graph, graph->description);
    if (!status && now.replay)
      status = weir__fail_as(__func__, now.replay(now.context, graph, stream));
    if (!status)
      status = WEIR__CALL(weir__rt.driver, GraphLaunch(weir__rt.driver, graph->exec, raw));
    weir__leave_device(&guard);
  }
  unlock(graph);
  return status;
}

weir_status weir_graph_reset(weir_graph *graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir__guard guard;
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  if (graph->state == CAPTURING)
    status = check_thread(__func__, graph);
  if (graph->state == EMPTY || status)
    goto unlock;
  status = weir__enter_device(__func__, graph->device, &guard);
  if (status)
    goto unlock;
  if (graph->state == CAPTURING) {
    warn_about_capture();
    abandon_capture(graph); /* an error was already reported to the call that caused it */
  } else {
    status = weir__driver_status(weir__rt.driver, free_captured(graph), __func__, "cuGraphExecDestroy(driver, exec)");
  }
  weir__leave_device(&guard);
unlock:
  unlock(graph);
  return status;
}

weir_status weir_graph_pool(const weir_graph *graph, weir_pool_id *pool) {
  WEIR__CHECK_ARGUMENT(graph);
  WEIR__CHECK_ARGUMENT(pool);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  if (graph->state != CAPTURING)
    status = check_captured(__func__, graph);
  if (!status)
    *pool = graph->pool;
  unlock(graph);
  return status;
}

weir_status weir_graph_node_count(const weir_graph *graph, size_t *count) {
  WEIR__CHECK_ARGUMENT(graph);
  WEIR__CHECK_ARGUMENT(count);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  status = check_captured(__func__, graph);
  if (!status)
    *count = graph->node_count;
  unlock(graph);
  return status;
}

weir_status weir_graph_enable_debug(weir_graph *graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  if (graph->state == EMPTY)
    graph->debug = true;
  else
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: the capture has begun; call this function before it", __func__);
  unlock(graph);
  return status;
}

weir_status weir_graph_keep(weir_graph *graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  if (graph->state != CAPTURED)
    graph->is_kept = true;
  else
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: the capture has ended; call this function before its end", __func__);
  unlock(graph);
  return status;
}

static weir_status check_kept(const char *caller, const weir_graph *graph) {
  if (graph->is_kept)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_STATE,
                    "%s: the graph is not kept; call weir_graph_keep before the end of the capture", caller);
}

weir_status weir_graph_instantiate(weir_graph *graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir__guard guard;
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  status = check_captured(__func__, graph);
  if (!status)
    status = check_kept(__func__, graph);
  if (!status)
    status = weir__enter_device(__func__, graph->device, &guard);
  if (!status) {
    status = instantiate(__func__, graph, graph->description);
    weir__leave_device(&guard);
  }
  unlock(graph);
  return status;
}

/* Makes a captured graph as finish() leaves one that is not kept: with a description only for debugging. */
static weir_status end_keeping(const char *caller, weir_graph *graph) {
  weir_driver *driver = weir__rt.driver;
  weir__guard guard;
  weir_status status = weir__enter_device(caller, graph->device, &guard);
  if (status)
    return status;
  if (!graph->exec)
    status = instantiate(caller, graph, graph->description);
  if (!status) {
    graph->is_kept = false;
    if (!graph->debug) {
      weir_cu_graph kept = graph->description;
      graph->description = NULL;
      status = WEIR__CALL_FOR(caller, driver, GraphDestroy(driver, kept));
    }
  }
  weir__leave_device(&guard);
  return status;
}

weir_status weir_graph_finish(weir_graph *graph) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  status = check_kept(__func__, graph);
  if (!status && graph->state == CAPTURED)
    status = end_keeping(__func__, graph);
  else if (!status)
    graph->is_kept = false;
  unlock(graph);
  return status;
}

weir_status weir_graph_raw(const weir_graph *graph, weir_cu_graph *kept, weir_cu_graph_exec *exec) {
  WEIR__CHECK_ARGUMENT(graph);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  status = check_captured(__func__, graph);
  if (!status && kept)
    *kept = graph->is_kept ? graph->description : NULL;
  if (!status && exec)
    *exec = graph->exec;
  unlock(graph);
  return status;
}

/* The graph is locked. */
static weir_status dump(const char *caller, weir_graph *graph, const char *path) {
  weir_driver *driver = weir__rt.driver;
  if (!graph->description)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the description of the graph is not available: %s", caller,
                      graph->debug ? "it was dumped before, which frees it"
                                   : "call weir_graph_enable_debug before the capture");
  if (!driver->GraphDebugDotPrint)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the driver \"%s\" cannot write graphs as text", caller,
                      driver->name);
  weir__guard guard;
  weir_status status = weir__enter_device(caller, graph->device, &guard);
  if (status)
    return status;
  status = WEIR__CALL_FOR(caller, driver, GraphDebugDotPrint(driver, graph->description, path, DOT_VERBOSE));
  if (!status && !graph->is_kept) {
    driver->GraphDestroy(driver, graph->description);
    graph->description = NULL;
  }
  weir__leave_device(&guard);
  return status;
}

weir_status weir_graph_debug_dump(weir_graph *graph, const char *path) {
  WEIR__CHECK_ARGUMENT(graph);
  WEIR__CHECK_ARGUMENT(path);
  weir_status status = lock(__func__, graph);
  if (status)
    return status;
  status = check_captured(__func__, graph);
  if (!status)
    status = dump(__func__, graph, path);
  unlock(graph);
  return status;
}

/* ---- Querying the capture state ---- */

static weir_status is_capturing(const char *caller, weir_stream stream, int *capturing) {
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(caller, stream, &guard, &raw);
  if (status)
    return status;
  int found;
  status = WEIR__CALL_FOR(caller, weir__rt.driver, StreamIsCapturing(weir__rt.driver, raw, &found));
  weir__leave_device(&guard);
  if (!status)
    *capturing = found != WEIR_CU_CAPTURE_STATUS_NONE;
  return status;
}

weir_status weir_stream_is_capturing(weir_stream stream, int *capturing) {
  WEIR__CHECK_ARGUMENT(capturing);
  return is_capturing(__func__, stream, capturing);
}

weir_status weir_stream_capture_id(weir_stream stream, unsigned long long *id) {
  WEIR__CHECK_ARGUMENT(id);
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  int capturing;
  unsigned long long found = 0;
  weir_driver *driver = weir__rt.driver;
  status = WEIR__CALL(driver, StreamGetCaptureInfo(driver, raw, &capturing, &found, NULL, NULL, NULL));
  weir__leave_device(&guard);
  if (!status)
    *id = capturing == WEIR_CU_CAPTURE_STATUS_ACTIVE ? found : 0;
  return status;
}

/* Without a context no stream captures; none is created for the query. */
weir_status weir_current_stream_is_capturing(int *capturing) {
  WEIR__CHECK_ARGUMENT(capturing);
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  int device = weir__is_running() ? weir__thread_state()->device : -1;
  if (device == -1 || !weir__rt.devices[device].context) {
    *capturing = 0;
    return WEIR_OK;
  }
  return is_capturing(__func__, weir__current_stream(device), capturing);
}
