/*
 * Capture: a stream's work becomes nodes of a graph instead of being done.
 *
 * A stream that captures knows the nodes that its next one depends on (`at`). An event that is recorded in it takes a
 * copy of them, and a stream that waits for that event joins the capture with them. A capture can end when all that was
 * captured lies before the place where its first stream is.
 */
#include "driver/ledger/ledger.h"

#include <stdlib.h>

void weir__ledger_invalidate(ledger_capture *capture) { capture->invalid = true; }

ledger_capture *weir__ledger_capture(const ledger *l, unsigned long long id) {
  ledger_capture *capture = l->captures;
  while (capture != NULL && capture->id != id)
    capture = capture->next;
  return capture;
}

/* Its streams go back to doing things. The graph stays. */
static void close_capture(ledger *l, ledger_capture *capture) {
  for (ledger_stream *stream = capture->members; stream != NULL; stream = stream->member_next) {
    stream->capture = NULL;
    weir__ledger_nodes_free(&stream->at);
  }
  ledger_capture **link = &l->captures;
  while (*link != capture)
    link = &(*link)->next;
  *link = capture->next;
  free(capture);
}

void weir__ledger_abandon(ledger *l, ledger_capture *capture) {
  ledger_graph *graph = capture->graph;
  close_capture(l, capture);
  weir__ledger_drop_graph(l, graph);
}

/* ---- What a capture forbids ---- */

weir_cu_result weir__ledger_unsafe_in_capture(ledger *l) {
  if (l->capture_mode == WEIR_CU_CAPTURE_RELAXED)
    return WEIR_CU_SUCCESS;
  bool refused = false;
  for (ledger_capture *capture = l->captures; capture != NULL; capture = capture->next) {
    if (capture->mode == WEIR_CU_CAPTURE_RELAXED)
      continue;
    weir__ledger_invalidate(capture);
    refused = true;
  }
  return refused ? WEIR_CU_STREAM_CAPTURE_UNSUPPORTED : WEIR_CU_SUCCESS;
}

/* Whether a stream of the device takes part; of those that wait for the legacy stream, and it for them, when
 * `blocking`. */
static bool has_member(const ledger_capture *capture, const ledger_device *device, bool blocking) {
  for (const ledger_stream *stream = capture->members; stream != NULL; stream = stream->member_next) {
    bool counts = !blocking || (stream->flags & WEIR_CU_STREAM_NON_BLOCKING) == 0;
    if (stream->device == device && counts)
      return true;
  }
  return false;
}

static ledger_capture *blocking_capture(const ledger *l, const ledger_device *device) {
  ledger_capture *capture = l->captures;
  while (capture != NULL && !has_member(capture, device, true))
    capture = capture->next;
  return capture;
}

weir_cu_result weir__ledger_may_enqueue_slow(ledger *l, ledger_stream *stream) {
  if (stream->legacy) {
    ledger_capture *capture = blocking_capture(l, stream->device);
    if (capture == NULL)
      return WEIR_CU_SUCCESS;
    weir__ledger_invalidate(capture);
    return WEIR_CU_STREAM_CAPTURE_IMPLICIT;
  }
  bool invalid = stream->capture != NULL && stream->capture->invalid;
  return invalid ? WEIR_CU_STREAM_CAPTURE_INVALIDATED : WEIR_CU_SUCCESS;
}

weir_cu_result weir__ledger_may_not_capture(ledger *l, ledger_stream *stream) {
  weir_cu_result result = weir__ledger_may_enqueue(l, stream);
  if (result != WEIR_CU_SUCCESS || stream->capture == NULL)
    return result;
  weir__ledger_invalidate(stream->capture);
  return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
}

weir_cu_result weir__ledger_no_capture_on(ledger *l, const ledger_device *device) {
  bool refused = false;
  for (ledger_capture *capture = l->captures; capture != NULL; capture = capture->next) {
    if (!has_member(capture, device, false))
      continue;
    weir__ledger_invalidate(capture);
    refused = true;
  }
  return refused ? WEIR_CU_STREAM_CAPTURE_UNSUPPORTED : WEIR_CU_SUCCESS;
}

/* ---- What a capture collects ---- */

static weir_cu_result add_node(ledger *l, ledger_stream *stream, ledger_node_kind kind, weir_cu_host_fn fn,
                               void *data) {
  ledger_graph *graph = stream->capture->graph;
  ledger_node *node = weir__handles_make(&l->nodes);
  if (node == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  weir_cu_graph_node handle = (weir_cu_graph_node)(uintptr_t)weir__handle_of(&l->nodes, node);
  ledger_nodes at = {0};
  if (!weir__ledger_nodes_add(&at, handle))
    goto drop_node;
  if (!weir__ledger_nodes_add(&graph->nodes, handle))
    goto free_at;

  node->kind = kind;
  node->fn = fn;
  node->data = data;
  node->behind = stream->at;
  stream->at = at;
  for (size_t i = 0; i < node->behind.count; i++)
    weir__ledger_node(l, node->behind.items[i])->followed = true;
  return WEIR_CU_SUCCESS;

free_at:
  weir__ledger_nodes_free(&at);
drop_node:
  weir__handles_drop(&l->nodes, node);
  return WEIR_CU_OUT_OF_MEMORY;
}

weir_cu_result weir__ledger_enqueue(ledger *l, ledger_stream *stream, ledger_node_kind kind, weir_cu_host_fn fn,
                                    void *data) {
  weir_cu_result result = weir__ledger_may_enqueue(l, stream);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (stream->capture != NULL)
    return add_node(l, stream, kind, fn, data);
  l->clock++;
  if (fn != NULL)
    fn(data);
  return WEIR_CU_SUCCESS;
}

static bool among(const ledger_nodes *nodes, weir_cu_graph_node node) {
  for (size_t i = 0; i < nodes->count; i++)
    if (nodes->items[i] == node)
      return true;
  return false;
}

weir_cu_result weir__ledger_join(ledger_capture *capture, ledger_stream *stream, const ledger_nodes *at) {
  if (stream->legacy) {
    /* The legacy stream cannot be captured, and what it would wait for never runs. */
    weir__ledger_invalidate(capture);
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture != NULL && stream->capture != capture) {
    weir__ledger_invalidate(capture);
    weir__ledger_invalidate(stream->capture);
    return WEIR_CU_STREAM_CAPTURE_MERGE;
  }
  if (capture->invalid)
    return WEIR_CU_INVALID_VALUE;
  for (size_t i = 0; i < at->count; i++)
    if (!among(&stream->at, at->items[i]) && !weir__ledger_nodes_add(&stream->at, at->items[i]))
      return WEIR_CU_OUT_OF_MEMORY;
  if (stream->capture == NULL) {
    stream->capture = capture;
    stream->member_next = capture->members;
    capture->members = stream;
  }
  return WEIR_CU_SUCCESS;
}

/* Whether all that was captured comes before the place where the first stream is: it waits for every last node. */
static bool joined(const ledger *l, const ledger_capture *capture) {
  size_t last = 0, awaited = 0;
  const ledger_nodes *all = &capture->graph->nodes, *at = &capture->origin->at;
  for (size_t i = 0; i < all->count; i++)
    last += !weir__ledger_node(l, all->items[i])->followed;
  for (size_t i = 0; i < at->count; i++)
    awaited += !weir__ledger_node(l, at->items[i])->followed;
  return last == awaited;
}

/* ---- The entries ---- */

static weir_cu_result StreamBeginCapture(weir_driver *self, weir_cu_stream stream, int mode) {
  ledger *l = weir__ledger_of(self);
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (mode < WEIR_CU_CAPTURE_GLOBAL || mode > WEIR_CU_CAPTURE_RELAXED)
    return WEIR_CU_INVALID_VALUE;
  if (s->legacy)
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  if (s->capture != NULL)
    return WEIR_CU_ILLEGAL_STATE;

  ledger_capture *capture = malloc(sizeof *capture);
  if (capture == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  ledger_graph *graph = weir__handles_make(&l->graphs);
  if (graph == NULL) {
    free(capture);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  graph->device = s->device;
  graph->open = true;
  *capture = (ledger_capture){
      .id = ++l->last_capture, .mode = mode, .graph = graph, .origin = s, .members = s, .next = l->captures};
  l->captures = capture;
  s->capture = capture;
  s->member_next = NULL;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result StreamEndCapture(weir_driver *self, weir_cu_stream stream, weir_cu_graph *graph) {
  ledger *l = weir__ledger_of(self);
  if (graph != NULL)
    *graph = NULL;
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  ledger_capture *capture = s->capture;
  if (capture == NULL)
    return WEIR_CU_ILLEGAL_STATE;
  if (graph == NULL)
    return WEIR_CU_INVALID_VALUE;
  if (capture->origin != s) {
    weir__ledger_invalidate(capture);
    return WEIR_CU_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->invalid || !joined(l, capture)) {
    result = capture->invalid ? WEIR_CU_STREAM_CAPTURE_INVALIDATED : WEIR_CU_STREAM_CAPTURE_UNJOINED;
    weir__ledger_abandon(l, capture);
    return result;
  }
  capture->graph->open = false;
  *graph = (weir_cu_graph)(uintptr_t)weir__handle_of(&l->graphs, capture->graph);
  close_capture(l, capture);
  return WEIR_CU_SUCCESS;
}

/* For the calls that ask about a stream's capture. */
static weir_cu_result look_at(ledger *l, weir_cu_stream stream, ledger_stream **s, int *status) {
  weir_cu_result result = weir__ledger_stream(l, stream, s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (status == NULL)
    return WEIR_CU_INVALID_VALUE;
  if ((*s)->legacy && blocking_capture(l, (*s)->device) != NULL)
    return WEIR_CU_STREAM_CAPTURE_IMPLICIT;
  const ledger_capture *capture = (*s)->capture;
  *status = capture == NULL    ? WEIR_CU_CAPTURE_STATUS_NONE
            : capture->invalid ? WEIR_CU_CAPTURE_STATUS_INVALIDATED
                               : WEIR_CU_CAPTURE_STATUS_ACTIVE;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result StreamIsCapturing(weir_driver *self, weir_cu_stream stream, int *status) {
  ledger_stream *s;
  return look_at(weir__ledger_of(self), stream, &s, status);
}

/* Of a stream that does not capture, or whose capture is invalid, only the status is written. */
static weir_cu_result StreamGetCaptureInfo(weir_driver *self, weir_cu_stream stream, int *status,
                                           unsigned long long *id, weir_cu_graph *graph,
                                           const weir_cu_graph_node **dependencies, size_t *count) {
  ledger *l = weir__ledger_of(self);
  ledger_stream *s;
  weir_cu_result result = look_at(l, stream, &s, status);
  if (result != WEIR_CU_SUCCESS || *status != WEIR_CU_CAPTURE_STATUS_ACTIVE)
    return result;
  if (id != NULL)
    *id = s->capture->id;
  if (graph != NULL)
    *graph = (weir_cu_graph)(uintptr_t)weir__handle_of(&l->graphs, s->capture->graph);
  if (dependencies != NULL)
    *dependencies = s->at.items;
  if (count != NULL)
    *count = s->at.count;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result ThreadExchangeStreamCaptureMode(weir_driver *self, int *mode) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (mode == NULL || *mode < WEIR_CU_CAPTURE_GLOBAL || *mode > WEIR_CU_CAPTURE_RELAXED)
    return WEIR_CU_INVALID_VALUE;
  int before = l->capture_mode;
  l->capture_mode = *mode;
  *mode = before;
  return WEIR_CU_SUCCESS;
}

void weir__ledger_add_captures(weir_driver *table) {
  table->StreamBeginCapture = StreamBeginCapture;
  table->StreamEndCapture = StreamEndCapture;
  table->StreamIsCapturing = StreamIsCapturing;
  table->StreamGetCaptureInfo = StreamGetCaptureInfo;
  table->ThreadExchangeStreamCaptureMode = ThreadExchangeStreamCaptureMode;
}
