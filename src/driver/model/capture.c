/*
 * Capture: a stream's work becomes nodes of a graph instead of being done. Which calls a capture forbids, and how it
 * ends, was read off NVIDIA's driver 580 where the documentation is silent.
 *
 * A stream that captures knows the nodes that its next one depends on (`at`). An event that is recorded in it takes a
 * copy of them, and a stream that waits for that event joins the capture with them. A capture can end when all that was
 * captured lies before the place where its first stream is.
 */
#include "driver/model/model.h"

#include <stdlib.h>

model_capture *weir__model_capture(const model *m, uint64_t id) {
  model_capture *capture = m->captures;
  while (capture && capture->id != id)
    capture = capture->next;
  return capture;
}

/* Its streams are as before. The graph stays. */
static void close_capture(model *m, model_capture *capture) {
  for (model_stream *stream = capture->members; stream; stream = stream->member_next) {
    stream->capture = NULL;
    weir__model_nodes_free(&stream->at);
  }
  model_capture **link = &m->captures;
  while (*link != capture)
    link = &(*link)->next;
  *link = capture->next;
  free(capture);
}

void weir__model_abandon(model *m, model_capture *capture) {
  model_graph *graph = capture->graph;
  close_capture(m, capture);
  weir__model_drop_graph(m, graph);
}

/* ---- What a capture forbids ---- */

weir_cu_result weir__model_unsafe_in_capture(model *m) {
  const model_thread *thread = m->thread;
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (thread->capture_mode == WEIR_CU_CAPTURE_RELAXED)
    return r;
  for (model_capture *c = m->captures; c; c = c->next) {
    bool mine = c->thread == thread && c->mode != WEIR_CU_CAPTURE_RELAXED;
    bool global = thread->capture_mode == WEIR_CU_CAPTURE_GLOBAL && c->mode == WEIR_CU_CAPTURE_GLOBAL;
    if (!mine && !global)
      continue;
    c->invalid = true;
    r = WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  return r;
}

/* Whether a stream of the device takes part; with `blocking`, one that waits for the legacy stream and it for them. */
static bool has_member(const model_capture *capture, const model_device *device, bool blocking) {
  for (const model_stream *stream = capture->members; stream; stream = stream->member_next)
    if (stream->device == device && !(blocking && stream->flags & WEIR_CU_STREAM_NON_BLOCKING))
      return true;
  return false;
}

/* Invalidates the captures that streams of the device take part in; `refusal` if there are any. */
static weir_cu_result refuse(model *m, const model_device *device, bool blocking, weir_cu_result refusal) {
  weir_cu_result r = WEIR_CU_SUCCESS;
  for (model_capture *c = m->captures; c; c = c->next)
    if (has_member(c, device, blocking)) {
      c->invalid = true;
      r = refusal;
    }
  return r;
}

weir_cu_result weir__model_implicit_in_capture(model *m, const model_stream *stream) {
  return refuse(m, stream->device, true, WEIR_CU_STREAM_CAPTURE_IMPLICIT);
}

weir_cu_result weir__model_no_capture_on(model *m, const model_device *device) {
  return refuse(m, device, false, WEIR_CU_STREAM_CAPTURE_UNSUPPORTED);
}

weir_cu_result weir__model_refuse_capture(model *m, model_stream *stream) {
  (void)m;
  if (!stream->capture)
    return WEIR_CU_SUCCESS;
  stream->capture->invalid = true;
  return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
}

/* ---- What a capture collects ---- */

static weir_cu_result add_node(model *m, model_stream *stream, const model_work *work) {
  model_graph *graph = stream->capture->graph;
  if (stream->capture->invalid)
    return WEIR_CU_STREAM_CAPTURE_INVALIDATED;
  model_node *node = weir__handles_make(&m->nodes);
  if (!node)
    return WEIR_CU_OUT_OF_MEMORY;
  weir_cu_graph_node handle = (weir_cu_graph_node)(uintptr_t)weir__handle_of(&m->nodes, node);
  model_nodes at = {0};
  if (!weir__model_nodes_add(&at, handle) || !weir__model_nodes_add(&graph->nodes, handle)) {
    weir__model_nodes_free(&at);
    weir__handles_drop(&m->nodes, node);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  node->graph = graph;
  node->work = *work;
  node->behind = stream->at;
  stream->at = at;
  for (size_t i = 0; i < node->behind.count; i++)
    weir__model_node(m, node->behind.items[i])->followed = true;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_submit(model *m, model_stream *stream, model_work *work) {
  work->device = stream->device;
  weir_cu_result r = stream->capture ? add_node(m, stream, work) : weir__model_implicit(m, stream);
  if (r)
    weir__model_work_end(m, work);
  return r || stream->capture ? r : m->hooks->run(m, stream, work);
}

static bool is_among(const model_nodes *nodes, weir_cu_graph_node node) {
  for (size_t i = 0; i < nodes->count; i++)
    if (nodes->items[i] == node)
      return true;
  return false;
}

weir_cu_result weir__model_join(model_capture *capture, model_stream *stream, const model_nodes *at) {
  if (stream->is_legacy) {
    /* The legacy stream cannot be captured, and what it would wait for never runs. */
    capture->invalid = true;
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture && stream->capture != capture) {
    capture->invalid = stream->capture->invalid = true;
    return WEIR_CU_STREAM_CAPTURE_MERGE;
  }
  if (capture->invalid)
    return WEIR_CU_INVALID_VALUE;
  for (size_t i = 0; i < at->count; i++)
    if (!is_among(&stream->at, at->items[i]) && !weir__model_nodes_add(&stream->at, at->items[i]))
      return WEIR_CU_OUT_OF_MEMORY;
  if (!stream->capture) {
    stream->capture = capture;
    stream->member_next = capture->members;
    capture->members = stream;
  }
  return WEIR_CU_SUCCESS;
}

static size_t count_last(const model *m, const model_nodes *nodes) {
  size_t count = 0;
  for (size_t i = 0; i < nodes->count; i++)
    count += !weir__model_node(m, nodes->items[i])->followed;
  return count;
}

/* ---- Beginning and ending ---- */

weir_cu_result weir__model_StreamBeginCapture(model *m, weir_cu_stream stream, int mode) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  if (s->is_legacy)
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  if (mode < WEIR_CU_CAPTURE_GLOBAL || mode > WEIR_CU_CAPTURE_RELAXED)
    return WEIR_CU_INVALID_VALUE;
  if (s->capture)
    return WEIR_CU_ILLEGAL_STATE;
  model_capture *capture = malloc(sizeof *capture);
  model_graph *graph = capture ? weir__handles_make(&m->graphs) : NULL;
  if (!graph) {
    free(capture);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  graph->device = s->device;
  graph->open = true;
  *capture = (model_capture){.id = ++m->last_capture,
                             .mode = mode,
                             .thread = m->thread,
                             .graph = graph,
                             .origin = s,
                             .members = s,
                             .next = m->captures};
  m->captures = capture;
  s->capture = capture;
  s->member_next = NULL;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_StreamEndCapture(model *m, weir_cu_stream stream, weir_cu_graph *graph) {
  model_stream *s;
  if (graph)
    *graph = NULL;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  model_capture *capture = s->capture;
  if (!capture)
    return WEIR_CU_ILLEGAL_STATE;
  if (!graph)
    return WEIR_CU_INVALID_VALUE;
  if (capture->origin != s) {
    capture->invalid = true;
    return WEIR_CU_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != WEIR_CU_CAPTURE_RELAXED && capture->thread != m->thread)
    r = WEIR_CU_STREAM_CAPTURE_WRONG_THREAD;
  else if (capture->invalid)
    r = WEIR_CU_STREAM_CAPTURE_INVALIDATED;
  else if (count_last(m, &capture->graph->nodes) != count_last(m, &s->at))
    r = WEIR_CU_STREAM_CAPTURE_UNJOINED; /* a last node is there that the first stream does not wait for */
  if (r) {
    weir__model_abandon(m, capture);
    return r;
  }
  capture->graph->open = false;
  *graph = (weir_cu_graph)(uintptr_t)weir__handle_of(&m->graphs, capture->graph);
  close_capture(m, capture);
  return WEIR_CU_SUCCESS;
}

/* ---- Asking ---- */

/* For the calls that ask about a stream's capture. */
static weir_cu_result look_at(model *m, weir_cu_stream stream, int *status, model_stream **s) {
  weir_cu_result r = weir__model_stream(m, stream, s);
  if (r)
    return r;
  if (!status)
    return WEIR_CU_INVALID_VALUE;
  for (const model_capture *c = (*s)->is_legacy ? m->captures : NULL; c; c = c->next)
    if (has_member(c, (*s)->device, true))
      return WEIR_CU_STREAM_CAPTURE_IMPLICIT;
  const model_capture *capture = (*s)->capture;
  *status = !capture           ? WEIR_CU_CAPTURE_STATUS_NONE
            : capture->invalid ? WEIR_CU_CAPTURE_STATUS_INVALIDATED
                               : WEIR_CU_CAPTURE_STATUS_ACTIVE;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_StreamIsCapturing(model *m, weir_cu_stream stream, int *status) {
  model_stream *s;
  return look_at(m, stream, status, &s);
}

/* Of a stream that does not capture, or whose capture is invalid, only the status is written. */
weir_cu_result weir__model_StreamGetCaptureInfo(model *m, weir_cu_stream stream, int *status, unsigned long long *id,
                                                weir_cu_graph *graph, const weir_cu_graph_node **dependencies,
                                                size_t *count) {
  model_stream *s;
  weir_cu_result r = look_at(m, stream, status, &s);
  if (r || *status != WEIR_CU_CAPTURE_STATUS_ACTIVE)
    return r;
  if (id)
    *id = s->capture->id;
  if (graph)
    *graph = (weir_cu_graph)(uintptr_t)weir__handle_of(&m->graphs, s->capture->graph);
  if (dependencies)
    *dependencies = s->at.items;
  if (count)
    *count = s->at.count;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_ThreadExchangeStreamCaptureMode(model *m, int *mode) {
  model_thread *thread = m->thread;
  if (!mode || *mode < WEIR_CU_CAPTURE_GLOBAL || *mode > WEIR_CU_CAPTURE_RELAXED)
    return WEIR_CU_INVALID_VALUE;
  int old = thread->capture_mode;
  thread->capture_mode = *mode;
  *mode = old;
  return WEIR_CU_SUCCESS;
}
