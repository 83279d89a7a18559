/*
 * Graphs that were captured, their executable form, and the work in both.
 */
#include "driver/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

/* ---- Work ---- */

bool weir__model_work_copy(const model_work *work, model_work *copy) {
  *copy = *work;
  size_t bytes = work->kind == MODEL_WORK_KERNEL ? weir__model_params_bytes(work->as.kernel.kernel) : 0;
  if (bytes) {
    copy->as.kernel.params = malloc(bytes);
    if (!copy->as.kernel.params)
      return false;
    memcpy(copy->as.kernel.params, work->as.kernel.params, bytes);
  }
  if (work->kind == MODEL_WORK_FREE || work->kind == MODEL_WORK_ALLOC)
    work->as.memory.range->refs++;
  if (work->kind == MODEL_WORK_KERNEL && work->as.kernel.kernel->image)
    work->as.kernel.kernel->image->refs++;
  return true;
}

void weir__model_work_end(model *m, model_work *work) {
  if (work->kind == MODEL_WORK_COPY)
    free(work->as.copy.staged);
  if (work->kind == MODEL_WORK_KERNEL) {
    free(work->as.kernel.params);
    weir__model_image_unref(work->as.kernel.kernel->image);
  }
  if (work->kind == MODEL_WORK_FREE || work->kind == MODEL_WORK_ALLOC)
    weir__model_unref_range(m, work->as.memory.range);
}

/* ---- Lists of nodes ---- */

bool weir__model_nodes_add(model_nodes *nodes, weir_cu_graph_node node) {
  if (!WEIR__RESERVE(nodes->items, nodes->room, nodes->count + 1))
    return false;
  nodes->items[nodes->count++] = node;
  return true;
}

bool weir__model_nodes_copy(model_nodes *to, const model_nodes *from) {
  model_nodes copy = {.count = from->count};
  if (!WEIR__RESERVE(copy.items, copy.room, copy.count))
    return false;
  if (copy.count)
    memcpy(copy.items, from->items, copy.count * sizeof *copy.items);
  weir__model_nodes_free(to);
  *to = copy;
  return true;
}

void weir__model_nodes_clear(model_nodes *nodes) {
  free(nodes->items);
  *nodes = (model_nodes){0};
}

/* Fills `out` with as many handles as it has room for, or counts them. */
static weir_cu_result list_nodes(const model_nodes *nodes, weir_cu_graph_node *out, size_t *count) {
  if (!count)
    return WEIR_CU_INVALID_VALUE;
  size_t n = out && *count < nodes->count ? *count : nodes->count;
  if (out && n)
    memcpy(out, nodes->items, n * sizeof *out);
  *count = n;
  return WEIR_CU_SUCCESS;
}

/* ---- Graphs ---- */

static model_graph *find_graph(const model *m, weir_cu_graph handle) {
  return weir__handles_get(&m->graphs, (uintptr_t)handle);
}

void weir__model_drop_graph(model *m, model_graph *graph) {
  for (size_t i = 0; i < graph->nodes.count; i++) {
    model_node *node = weir__model_node(m, graph->nodes.items[i]);
    weir__model_work_end(m, &node->work);
    weir__model_nodes_free(&node->behind);
    weir__handles_drop(&m->nodes, node);
  }
  weir__model_nodes_free(&graph->nodes);
  weir__handles_drop(&m->graphs, graph);
}

weir_cu_result weir__model_GraphGetNodes(model *m, weir_cu_graph graph, weir_cu_graph_node *nodes, size_t *count) {
  const model_graph *g = find_graph(m, graph);
  return g ? list_nodes(&g->nodes, nodes, count) : WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__model_GraphNodeGetDependencies(model *m, weir_cu_graph_node node, weir_cu_graph_node *nodes,
                                                    size_t *count) {
  const model_node *n = weir__model_node(m, node);
  return n ? list_nodes(&n->behind, nodes, count) : WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__model_GraphDebugDotPrint(model *m, weir_cu_graph graph, const char *path, unsigned flags) {
  static const char *const names[] = {
      [MODEL_WORK_COPY] = "MEMCPY", [MODEL_WORK_FILL] = "MEMSET",     [MODEL_WORK_KERNEL] = "KERNEL",
      [MODEL_WORK_HOST] = "HOST",   [MODEL_WORK_ALLOC] = "MEM_ALLOC", [MODEL_WORK_FREE] = "MEM_FREE"};
  (void)flags; /* they ask for more detail than there is */
  const model_graph *g = find_graph(m, graph);
  if (!g || !path)
    return WEIR_CU_INVALID_VALUE;
  FILE *file = fopen(path, "w");
  if (!file)
    return WEIR_CU_OPERATING_SYSTEM;
  fprintf(file, "digraph dot {\n");
  for (size_t i = 0; i < g->nodes.count; i++) {
    const model_node *node = weir__model_node(m, g->nodes.items[i]);
    fprintf(file, "\"%p\" [label=\"%zu: %s\"];\n", (void *)g->nodes.items[i], i, names[node->work.kind]);
    for (size_t k = 0; k < node->behind.count; k++)
      fprintf(file, "\"%p\" -> \"%p\";\n", (void *)node->behind.items[k], (void *)g->nodes.items[i]);
  }
  fprintf(file, "}\n");
  bool failed = ferror(file);
  return fclose(file) || failed ? WEIR_CU_OPERATING_SYSTEM : WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_GraphDestroy(model *m, weir_cu_graph graph) {
  model_graph *g = find_graph(m, graph);
  if (!g || g->open)
    return WEIR_CU_INVALID_VALUE;
  weir__model_drop_graph(m, g);
  return WEIR_CU_SUCCESS;
}

/* ---- Executables ---- */

static model_exec *find_exec(const model *m, weir_cu_graph_exec handle) {
  return weir__handles_get(&m->execs, (uintptr_t)handle);
}

void weir__model_drop_exec(model *m, model_exec *exec) {
  if (m->hooks->end_exec)
    m->hooks->end_exec(exec);
  for (size_t i = 0; i < exec->count; i++)
    weir__model_work_end(m, &exec->works[i]);
  free(exec->works);
  weir__handles_drop(&m->execs, exec);
}

weir_cu_result weir__model_GraphInstantiate(model *m, weir_cu_graph_exec *exec, weir_cu_graph graph,
                                            unsigned long long flags) {
  weir_cu_result r = weir__model_unsafe(m);
  if (r)
    return r;
  const model_graph *g = find_graph(m, graph);
  /* The flags are those to free memory at a launch, to upload, and to use the priorities of nodes. */
  if (!exec || !g || g->open || flags & ~11ull)
    return WEIR_CU_INVALID_VALUE;
  if (g->device->error)
    return g->device->error;
  model_exec *x = weir__handles_make(&m->execs);
  if (!x)
    return WEIR_CU_OUT_OF_MEMORY;
  x->device = g->device;
  x->works = malloc((g->nodes.count + 1) * sizeof *x->works);
  while (x->works && x->count < g->nodes.count &&
         weir__model_work_copy(&weir__model_node(m, g->nodes.items[x->count])->work, &x->works[x->count]))
    x->count++;
  if (!x->works || x->count < g->nodes.count) {
    weir__model_drop_exec(m, x);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *exec = (weir_cu_graph_exec)(uintptr_t)weir__handle_of(&m->execs, x);
  return WEIR_CU_SUCCESS;
}

/* Memory that a graph names may have gone since its capture. */
static weir_cu_result check_memory(const model *m, const model_work *work) {
  model_range *range;
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (work->kind == MODEL_WORK_COPY) {
    r = weir__model_check(m, work->device, work->as.copy.to, work->as.copy.bytes, true, &range);
    if (!r)
      r = weir__model_check(m, work->device, work->as.copy.from, work->as.copy.bytes, false, &range);
  } else if (work->kind == MODEL_WORK_FILL) {
    uint64_t bytes = work->as.fill.count * work->as.fill.width;
    r = weir__model_check(m, work->device, work->as.fill.to, bytes, true, &range);
    if (!range)
      r = WEIR_CU_INVALID_VALUE;
  }
  return r;
}

static weir_cu_result enter_launch(model *m, weir_cu_graph_exec exec, weir_cu_stream stream, model_stream **s) {
  if (!find_exec(m, exec))
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = weir__model_stream(m, stream, s);
  if (r || (r = weir__model_refuse_capture(m, *s)))
    return r;
  return weir__model_implicit(m, *s);
}

weir_cu_result weir__model_GraphLaunch(model *m, weir_cu_graph_exec exec, weir_cu_stream stream) {
  model_stream *s;
  weir_cu_result r = enter_launch(m, exec, stream, &s);
  model_exec *x = find_exec(m, exec);
  for (size_t i = 0; !r && i < x->count; i++)
    r = check_memory(m, &x->works[i]);
  return r ? r : m->hooks->launch(m, x, s);
}

weir_cu_result weir__model_GraphUpload(model *m, weir_cu_graph_exec exec, weir_cu_stream stream) {
  model_stream *s;
  return enter_launch(m, exec, stream, &s);
}

weir_cu_result weir__model_GraphExecDestroy(model *m, weir_cu_graph_exec exec) {
  weir_cu_result r = weir__model_unsafe(m);
  if (r)
    return r;
  model_exec *x = find_exec(m, exec);
  if (!x)
    return WEIR_CU_INVALID_VALUE;
  weir__model_drop_exec(m, x);
  return WEIR_CU_SUCCESS;
}
