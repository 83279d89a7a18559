/*
 * Capture: calls on a stream become nodes of a graph. Which calls a capture forbids, and how it ends, was read off NVIDIA's
 * driver 580 where the documentation is silent.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/soft/soft.h"

void weir__soft_invalidate(struct soft_capture *capture) { capture->status = WEIR_CU_CAPTURE_STATUS_INVALIDATED; }

weir_cu_result weir__soft_unsafe(struct soft *soft) {
  const struct soft_thread *thread = weir__soft_thread(soft);
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (thread->capture_mode == WEIR_CU_CAPTURE_RELAXED)
    return r;
  for (struct soft_capture *c = soft->captures; c; c = c->next) {
    bool mine = c->thread == thread && c->mode != WEIR_CU_CAPTURE_RELAXED;
    bool everyones = thread->capture_mode == WEIR_CU_CAPTURE_GLOBAL && c->mode == WEIR_CU_CAPTURE_GLOBAL;
    if (!mine && !everyones)
      continue;
    weir__soft_invalidate(c);
    r = WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  return r;
}

static bool is_implicit(const struct soft_stream *stream) {
  return stream->capture && !(stream->flags & WEIR_CU_STREAM_NON_BLOCKING);
}

weir_cu_result weir__soft_implicit(struct soft *soft, const struct soft_device *device) {
  (void)soft;
  weir_cu_result r = WEIR_CU_SUCCESS;
  for (struct soft_stream *s = device->streams; s; s = s->next)
    if (is_implicit(s)) {
      weir__soft_invalidate(s->capture);
      r = WEIR_CU_STREAM_CAPTURE_IMPLICIT;
    }
  return r;
}

/* ---- Nodes ---- */

static struct soft_node *node_new(struct soft *soft, struct soft_graph *graph, struct soft_work *work,
                                  struct soft_node *const *from, size_t count) {
  if (graph->count == graph->room) {
    size_t room = graph->room ? 2 * graph->room : 16;
    struct soft_node **nodes = realloc(graph->nodes, room * sizeof *nodes);
    if (!nodes)
      return NULL;
    graph->nodes = nodes;
    graph->room = room;
  }
  struct soft_node *node = calloc(1, sizeof *node);
  if (!node)
    return NULL;
  node->from = count ? malloc(count * sizeof *node->from) : NULL;
  node->handle = count && !node->from ? 0 : weir__soft_handle_new(soft, SOFT_NODE, node);
  if (!node->handle) {
    free(node->from);
    free(node);
    return NULL;
  }
  if (count)
    memcpy(node->from, from, count * sizeof *node->from);
  node->from_count = count;
  node->graph = graph;
  node->work = work;
  graph->nodes[graph->count++] = node;
  return node;
}

weir_cu_result weir__soft_submit(struct soft *soft, struct soft_stream *stream, struct soft_work *work) {
  weir_cu_result r = WEIR_CU_SUCCESS;
  work->device = stream->device;
  if (!stream->capture) {
    if (stream->is_legacy)
      r = weir__soft_implicit(soft, stream->device);
    if (!r)
      return weir__soft_enqueue(soft, stream, work);
  } else if (stream->capture->status == WEIR_CU_CAPTURE_STATUS_INVALIDATED)
    r = WEIR_CU_STREAM_CAPTURE_INVALIDATED;
  else {
    struct soft_node **tips = realloc(stream->tips, (stream->tip_count + 1) * sizeof *tips);
    if (tips)
      stream->tips = tips;
    struct soft_node *node =
        tips ? node_new(soft, stream->capture->graph, work, stream->tips, stream->tip_count) : NULL;
    if (node) {
      stream->tips[0] = node;
      stream->tip_count = 1;
      return WEIR_CU_SUCCESS;
    }
    r = WEIR_CU_OUT_OF_MEMORY;
  }
  weir__soft_work_free(work);
  return r;
}

/* ---- Beginning and ending ---- */

weir_cu_result weir__soft_StreamBeginCapture(struct soft *soft, weir_cu_stream stream, int mode) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (s->is_legacy)
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  if (mode < WEIR_CU_CAPTURE_GLOBAL || mode > WEIR_CU_CAPTURE_RELAXED)
    return WEIR_CU_INVALID_VALUE;
  if (s->capture)
    return WEIR_CU_ILLEGAL_STATE;
  struct soft_capture *capture = calloc(1, sizeof *capture);
  struct soft_graph *graph = calloc(1, sizeof *graph);
  uintptr_t handle = capture && graph ? weir__soft_handle_new(soft, SOFT_GRAPH, graph) : 0;
  if (!handle) {
    free(capture);
    free(graph);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  graph->handle = handle;
  graph->device = s->device;
  *capture = (struct soft_capture){.id = ++soft->next_capture,
                                   .mode = mode,
                                   .status = WEIR_CU_CAPTURE_STATUS_ACTIVE,
                                   .thread = weir__soft_thread(soft),
                                   .origin = s,
                                   .graph = graph,
                                   .next = soft->captures};
  soft->captures = capture;
  s->capture = capture;
  s->tip_count = 0;
  return WEIR_CU_SUCCESS;
}

void weir__soft_capture_end(struct soft *soft, struct soft_capture *capture, struct soft_graph **graph) {
  for (int i = 0; i < soft->device_count; i++)
    for (struct soft_stream *s = soft->devices[i].streams; s; s = s->next)
      if (s->capture == capture) {
        s->capture = NULL;
        s->tip_count = 0;
      }
  struct soft_capture **at = &soft->captures;
  while (*at != capture)
    at = &(*at)->next;
  *at = capture->next;
  if (graph)
    *graph = capture->graph;
  else
    weir__soft_graph_free(soft, capture->graph);
  free(capture);
}

static size_t count_reached(struct soft_node *const *tips, size_t count, uint32_t mark) {
  size_t reached = 0;
  for (size_t i = 0; i < count; i++) {
    if (tips[i]->mark == mark)
      continue;
    tips[i]->mark = mark;
    reached++;
  }
  return reached;
}

/* Joined: every node is an ancestor of what the first stream would do next. Nodes stand in a topological order, so one pass
 * from the last to the first spreads the mark. */
static bool is_joined(const struct soft_capture *capture) {
  struct soft_graph *graph = capture->graph;
  uint32_t mark = ++graph->mark;
  size_t reached = count_reached(capture->origin->tips, capture->origin->tip_count, mark);
  for (size_t i = graph->count; i-- > 0;)
    if (graph->nodes[i]->mark == mark)
      reached += count_reached(graph->nodes[i]->from, graph->nodes[i]->from_count, mark);
  return reached == graph->count;
}

weir_cu_result weir__soft_StreamEndCapture(struct soft *soft, weir_cu_stream stream, weir_cu_graph *graph) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  struct soft_capture *capture = s->capture;
  if (!capture)
    return WEIR_CU_ILLEGAL_STATE;
  if (!graph)
    return WEIR_CU_INVALID_VALUE;
  *graph = NULL;
  if (capture->origin != s) {
    weir__soft_invalidate(capture);
    return WEIR_CU_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != WEIR_CU_CAPTURE_RELAXED && capture->thread != weir__soft_thread(soft))
    r = WEIR_CU_STREAM_CAPTURE_WRONG_THREAD;
  else if (capture->status == WEIR_CU_CAPTURE_STATUS_INVALIDATED)
    r = WEIR_CU_STREAM_CAPTURE_INVALIDATED;
  else if (!is_joined(capture))
    r = WEIR_CU_STREAM_CAPTURE_UNJOINED;
  if (r) {
    weir__soft_capture_end(soft, capture, NULL);
    return r;
  }
  struct soft_graph *made;
  weir__soft_capture_end(soft, capture, &made);
  *graph = (weir_cu_graph)made->handle;
  return WEIR_CU_SUCCESS;
}

/* ---- Asking ---- */

weir_cu_result weir__soft_StreamIsCapturing(struct soft *soft, weir_cu_stream stream, int *status) {
  return weir__soft_StreamGetCaptureInfo(soft, stream, status, NULL, NULL, NULL, NULL);
}

weir_cu_result weir__soft_StreamGetCaptureInfo(struct soft *soft, weir_cu_stream stream, int *status,
                                               unsigned long long *id, weir_cu_graph *graph,
                                               const weir_cu_graph_node **dependencies, size_t *count) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (!status)
    return WEIR_CU_INVALID_VALUE;
  if (s->is_legacy)
    for (const struct soft_stream *other = s->device->streams; other; other = other->next)
      if (is_implicit(other))
        return WEIR_CU_STREAM_CAPTURE_IMPLICIT;
  const struct soft_capture *capture = s->capture;
  *status = capture ? capture->status : WEIR_CU_CAPTURE_STATUS_NONE;
  if (*status != WEIR_CU_CAPTURE_STATUS_ACTIVE)
    return WEIR_CU_SUCCESS;
  if (dependencies) {
    /* Callers see handles: the stream keeps an array of them, in the upper half of its tips. */
    struct soft_node **tips = realloc(s->tips, (2 * s->tip_count + 1) * sizeof *tips);
    if (!tips)
      return WEIR_CU_OUT_OF_MEMORY;
    s->tips = tips;
    weir_cu_graph_node *handles = (weir_cu_graph_node *)(tips + s->tip_count);
    for (size_t i = 0; i < s->tip_count; i++)
      handles[i] = (weir_cu_graph_node)tips[i]->handle;
    *dependencies = handles;
  }
  if (id)
    *id = capture->id;
  if (graph)
    *graph = (weir_cu_graph)capture->graph->handle;
  if (count)
    *count = s->tip_count;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_ThreadExchangeStreamCaptureMode(struct soft *soft, int *mode) {
  struct soft_thread *thread = weir__soft_thread(soft);
  if (!mode || *mode < WEIR_CU_CAPTURE_GLOBAL || *mode > WEIR_CU_CAPTURE_RELAXED)
    return WEIR_CU_INVALID_VALUE;
  int old = thread->capture_mode;
  thread->capture_mode = *mode;
  *mode = old;
  return WEIR_CU_SUCCESS;
}
