/*
 * Captures are found by the calls that begin and end them.
 */
#include "captures.h"

#include <stdlib.h>
#include <unistd.h>

#include "real.h"
#include "served.h"

static pthread_key_t thread_key; /* set in threads that captured their own default stream */

/* The key of a capture: its first stream. The per-thread stream has one handle for all threads, and a key of its own
 * here. */
static const void *origin_of(weir_cu_stream stream) {
  static _Thread_local char own;
  if (stream != PER_THREAD)
    return stream;
  pthread_setspecific(thread_key, &own);
  return &own;
}

/* The index of an origin, or the number of origins if it is not there. */
static int find_origin(const preload_served *at, const void *origin) {
  int i = 0, count = atomic_load(&at->captures);
  while (i < count && at->origins[i] != origin)
    i++;
  return i;
}

/* Returns false without host memory. *is_new becomes true if it was not there. */
static bool add_capture(preload_served *at, const void *origin, bool *is_new) {
  pthread_mutex_lock(&at->origins_lock);
  int count = atomic_load(&at->captures);
  bool has_room = (size_t)count < at->origin_room;
  *is_new = find_origin(at, origin) == count;
  if (*is_new && !has_room) {
    size_t room = count ? 2 * (size_t)count : 8;
    const void **grown = realloc(at->origins, room * sizeof *grown);
    if (grown) {
      at->origins = grown;
      at->origin_room = room;
      has_room = true;
    }
  }
  if (*is_new && has_room) {
    at->origins[count] = origin;
    atomic_store(&at->captures, count + 1);
    weir_allocator_begin_capture(atomic_load(&at->allocator), preload_ordinal(at));
  }
  pthread_mutex_unlock(&at->origins_lock);
  return !*is_new || has_room;
}

/* The capture is over, if there was one. */
static void remove_capture(preload_served *at, const void *origin) {
  pthread_mutex_lock(&at->origins_lock);
  int i = find_origin(at, origin), count = atomic_load(&at->captures);
  if (i < count) {
    at->origins[i] = at->origins[count - 1];
    atomic_store(&at->captures, count - 1);
    weir_allocator_end_capture(atomic_load(&at->allocator), preload_ordinal(at));
  }
  pthread_mutex_unlock(&at->origins_lock);
}

void preload_captures_forget(const void *origin) {
  pthread_rwlock_rdlock(&preload_use_lock);
  for (int i = 0; i < atomic_load(&preload_device_count); i++)
    if (atomic_load(&preload_devices[i].captures))
      remove_capture(&preload_devices[i], origin);
  preload_leave();
}

static void end_thread(void *own) {
  if (atomic_load(&preload_has_driver))
    preload_captures_forget(own);
}

void preload_captures_prepare(void) {
  pthread_key_create(&thread_key, end_thread);
  for (int i = 0; i < PRELOAD_MAX_DEVICES; i++)
    pthread_mutex_init(&preload_devices[i].origins_lock, NULL);
}

/* A free that starts to wait for the device after the capture has begun would invalidate it. From now on none does. A
 * free that has already decided to wait gets the time to enter the driver, where it may stay. */
static void let_frees_in(const preload_served *at) {
  enum { STEP_US = 100, MAX_US = 10000 };
  for (int us = 0; us < MAX_US && atomic_load(&at->waiting); us += STEP_US)
    usleep(STEP_US);
}

/* Prepares for a capture on a device. Returns NULL if the device is not served. */
static preload_served *before_capture(weir_cu_stream stream, bool *is_new, weir_cu_result *result) {
  preload_served *at = preload_served_stream(stream);
  *result = WEIR_CU_SUCCESS;
  if (!at)
    return NULL;
  if (add_capture(at, origin_of(stream), is_new)) {
    let_frees_in(at);
    return at;
  }
  preload_leave();
  *result = WEIR_CU_OUT_OF_MEMORY;
  return NULL;
}

/* result is that of the driver. A stream that was captured before is still captured. */
static void after_begin(preload_served *at, weir_cu_stream stream, bool is_new, weir_cu_result result) {
  if (!at)
    return;
  if (result && is_new)
    remove_capture(at, origin_of(stream));
  preload_leave();
}

static weir_cu_result begin_capture(weir_cu_stream stream, int mode) {
  bool is_new = false;
  weir_cu_result result;
  preload_served *at = before_capture(stream, &is_new, &result);
  if (!result)
    result = REAL(cuStreamBeginCapture_v2, stream, mode);
  after_begin(at, stream, is_new, result);
  return result;
}

static weir_cu_result begin_capture_to_graph(weir_cu_stream stream, weir_cu_graph graph,
                                             const weir_cu_graph_node *nodes, const void *edges, size_t count,
                                             int mode) {
  bool is_new = false;
  weir_cu_result result;
  preload_served *at = before_capture(stream, &is_new, &result);
  if (!result)
    result = REAL(cuStreamBeginCaptureToGraph, stream, graph, nodes, edges, count, mode);
  after_begin(at, stream, is_new, result);
  return result;
}

/* A call that fails may have ended the capture too: the state of the stream shows it. */
static weir_cu_result end_capture(weir_cu_stream stream, weir_cu_graph *graph) {
  preload_served *at = preload_served_stream(stream);
  weir_cu_result result = REAL(cuStreamEndCapture, stream, graph);
  if (!at)
    return result;
  if (!result || !preload_is_captured(stream))
    remove_capture(at, origin_of(stream));
  preload_leave();
  return result;
}

weir_cu_result cuStreamBeginCapture_v2(weir_cu_stream stream, int mode) {
  return begin_capture(preload_named(stream, LEGACY), mode);
}

weir_cu_result cuStreamBeginCapture_v2_ptsz(weir_cu_stream stream, int mode) {
  return begin_capture(preload_named(stream, PER_THREAD), mode);
}

weir_cu_result cuStreamBeginCaptureToGraph(weir_cu_stream stream, weir_cu_graph graph, const weir_cu_graph_node *nodes,
                                           const void *edges, size_t count, int mode) {
  return begin_capture_to_graph(preload_named(stream, LEGACY), graph, nodes, edges, count, mode);
}

weir_cu_result cuStreamBeginCaptureToGraph_ptsz(weir_cu_stream stream, weir_cu_graph graph,
                                                const weir_cu_graph_node *nodes, const void *edges, size_t count,
                                                int mode) {
  return begin_capture_to_graph(preload_named(stream, PER_THREAD), graph, nodes, edges, count, mode);
}

weir_cu_result cuStreamEndCapture(weir_cu_stream stream, weir_cu_graph *graph) {
  return end_capture(preload_named(stream, LEGACY), graph);
}

weir_cu_result cuStreamEndCapture_ptsz(weir_cu_stream stream, weir_cu_graph *graph) {
  return end_capture(preload_named(stream, PER_THREAD), graph);
}
