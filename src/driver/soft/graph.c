/*
 * Graphs: what a capture made, and what is launched of it.
 *
 * A launch puts copies of all pieces into the stream, one behind the other. A GPU may run independent nodes at the same time,
 * and may as well not.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver/soft/soft.h"

void weir__soft_graph_free(struct soft *soft, struct soft_graph *graph) {
  for (size_t i = 0; i < graph->count; i++) {
    struct soft_node *node = graph->nodes[i];
    weir__soft_handle_free(soft, node->handle);
    weir__soft_work_free(node->work);
    free(node->from);
    free(node);
  }
  weir__soft_handle_free(soft, graph->handle);
  free(graph->nodes);
  free(graph);
}

void weir__soft_exec_free(struct soft *soft, struct soft_exec *exec) {
  while (exec->first) {
    struct soft_work *work = exec->first;
    exec->first = work->next;
    weir__soft_work_free(work);
  }
  weir__soft_signal_unref(exec->launched);
  weir__soft_handle_free(soft, exec->handle);
  free(exec);
}

/* Appends copies of a list to *last, which stays where the list ends. false: no host memory, and nothing was appended. */
static bool copy_list(const struct soft_work *from, struct soft_work **first) {
  struct soft_work **last = first;
  *first = NULL;
  for (; from; from = from->next) {
    *last = weir__soft_work_copy(from);
    if (!*last) {
      while (*first) {
        struct soft_work *work = *first;
        *first = work->next;
        weir__soft_work_free(work);
      }
      return false;
    }
    last = &(*last)->next;
  }
  return true;
}

weir_cu_result weir__soft_GraphInstantiate(struct soft *soft, weir_cu_graph_exec *exec, weir_cu_graph graph,
                                           unsigned long long flags) {
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  struct soft_graph *g = weir__soft_handle_get(soft, SOFT_GRAPH, (uintptr_t)graph);
  if (!exec || !g || flags & ~11ull)
    return WEIR_CU_INVALID_VALUE;
  if (g->device->error)
    return g->device->error;
  struct soft_exec *e = calloc(1, sizeof *e);
  if (!e)
    return WEIR_CU_OUT_OF_MEMORY;
  e->device = g->device;
  e->handle = weir__soft_handle_new(soft, SOFT_EXEC, e);
  if (!e->handle) {
    free(e);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  struct soft_work **last = &e->first;
  for (size_t i = 0; i < g->count; i++) {
    *last = weir__soft_work_copy(g->nodes[i]->work);
    if (!*last) {
      weir__soft_exec_free(soft, e);
      return WEIR_CU_OUT_OF_MEMORY;
    }
    last = &(*last)->next;
  }
  *exec = (weir_cu_graph_exec)e->handle;
  return WEIR_CU_SUCCESS;
}

/* Memory that a graph names may have gone since its capture. */
static weir_cu_result check_list(struct soft *soft, const struct soft_work *work) {
  struct soft_range *range;
  for (; work; work = work->next) {
    weir_cu_result r = WEIR_CU_SUCCESS;
    if (work->kind == SOFT_WORK_COPY) {
      r = weir__soft_check(soft, work->device, work->as.copy.to, work->as.copy.bytes, true, &range);
      if (!r)
        r = weir__soft_check(soft, work->device, work->as.copy.from, work->as.copy.bytes, false, &range);
    } else if (work->kind == SOFT_WORK_FILL) {
      uint64_t bytes = work->as.fill.count * work->as.fill.width;
      r = weir__soft_check(soft, work->device, work->as.fill.to, bytes, true, &range);
      if (!range)
        r = WEIR_CU_INVALID_VALUE;
    }
    if (r)
      return r;
  }
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_GraphLaunch(struct soft *soft, weir_cu_graph_exec exec, weir_cu_stream stream) {
  struct soft_exec *e = weir__soft_handle_get(soft, SOFT_EXEC, (uintptr_t)exec);
  if (!e)
    return WEIR_CU_INVALID_VALUE;
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (s->capture) {
    weir__soft_invalidate(s->capture);
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (s->is_legacy && (r = weir__soft_implicit(soft, s->device)))
    return r;
  if ((r = check_list(soft, e->first)))
    return r;
  struct soft_work *list;
  if (!copy_list(e->first, &list))
    return WEIR_CU_OUT_OF_MEMORY;
  if (e->launched && !e->launched->done && e->launched->owner != s)
    r = weir__soft_enqueue_wait(soft, s, e->launched);
  while (list) {
    struct soft_work *work = list;
    list = work->next;
    if (r)
      weir__soft_work_free(work);
    else
      r = weir__soft_enqueue(soft, s, work);
  }
  weir__soft_signal_unref(e->launched);
  weir_cu_result marked = weir__soft_mark(s, &e->launched);
  return r ? r : marked;
}

weir_cu_result weir__soft_GraphUpload(struct soft *soft, weir_cu_graph_exec exec, weir_cu_stream stream) {
  struct soft_stream *s;
  if (!weir__soft_handle_get(soft, SOFT_EXEC, (uintptr_t)exec))
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r || !s->capture)
    return r;
  weir__soft_invalidate(s->capture);
  return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
}

/* Fills `out` with as many handles as it has room for, or counts them. */
static weir_cu_result list_nodes(struct soft_node *const *nodes, size_t total, weir_cu_graph_node *out, size_t *count) {
  if (!count)
    return WEIR_CU_INVALID_VALUE;
  size_t n = out && *count < total ? *count : total;
  for (size_t i = 0; out && i < n; i++)
    out[i] = (weir_cu_graph_node)nodes[i]->handle;
  *count = n;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_GraphGetNodes(struct soft *soft, weir_cu_graph graph, weir_cu_graph_node *nodes,
                                        size_t *count) {
  struct soft_graph *g = weir__soft_handle_get(soft, SOFT_GRAPH, (uintptr_t)graph);
  return g ? list_nodes(g->nodes, g->count, nodes, count) : WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__soft_GraphNodeGetDependencies(struct soft *soft, weir_cu_graph_node node,
                                                   weir_cu_graph_node *nodes, size_t *count) {
  struct soft_node *n = weir__soft_handle_get(soft, SOFT_NODE, (uintptr_t)node);
  return n ? list_nodes(n->from, n->from_count, nodes, count) : WEIR_CU_INVALID_VALUE;
}

static const char *work_name(enum soft_work_kind kind) {
  switch (kind) {
  case SOFT_WORK_COPY:
    return "MEMCPY";
  case SOFT_WORK_FILL:
    return "MEMSET";
  case SOFT_WORK_HOST:
    return "HOST";
  case SOFT_WORK_FREE:
    return "MEM_FREE";
  case SOFT_WORK_ALLOC:
    return "MEM_ALLOC";
  default:
    return "KERNEL";
  }
}

weir_cu_result weir__soft_GraphDebugDotPrint(struct soft *soft, weir_cu_graph graph, const char *path, unsigned flags) {
  (void)flags; /* they ask for more detail than there is */
  struct soft_graph *g = weir__soft_handle_get(soft, SOFT_GRAPH, (uintptr_t)graph);
  if (!g || !path)
    return WEIR_CU_INVALID_VALUE;
  FILE *file = fopen(path, "w");
  if (!file)
    return WEIR_CU_OPERATING_SYSTEM;
  fprintf(file, "digraph dot {\n");
  for (size_t i = 0; i < g->count; i++) {
    fprintf(file, "\"%p\" [label=\"%zu: %s\"];\n", (void *)g->nodes[i]->handle, i, work_name(g->nodes[i]->work->kind));
    for (size_t k = 0; k < g->nodes[i]->from_count; k++)
      fprintf(file, "\"%p\" -> \"%p\";\n", (void *)g->nodes[i]->from[k]->handle, (void *)g->nodes[i]->handle);
  }
  fprintf(file, "}\n");
  bool failed = ferror(file);
  return fclose(file) || failed ? WEIR_CU_OPERATING_SYSTEM : WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_GraphDestroy(struct soft *soft, weir_cu_graph graph) {
  struct soft_graph *g = weir__soft_handle_get(soft, SOFT_GRAPH, (uintptr_t)graph);
  if (!g)
    return WEIR_CU_INVALID_VALUE;
  for (const struct soft_capture *c = soft->captures; c; c = c->next)
    if (c->graph == g)
      return WEIR_CU_INVALID_VALUE;
  weir__soft_graph_free(soft, g);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_GraphExecDestroy(struct soft *soft, weir_cu_graph_exec exec) {
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  struct soft_exec *e = weir__soft_handle_get(soft, SOFT_EXEC, (uintptr_t)exec);
  if (!e)
    return WEIR_CU_INVALID_VALUE;
  weir__soft_exec_free(soft, e);
  return WEIR_CU_SUCCESS;
}
