/*
 * Graphs that were captured, their executable form, and the work in both.
 */
#include "driver/model/model.h"

#include <limits.h>
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
  if (work->users)
    work->users->refs++;
  return true;
}

static void unref_object(model *m, model_user_object *object, uint64_t count) {
  object->refs -= count;
  if (object->refs)
    return;
  weir_cu_host_fn destroy = object->destroy;
  void *data = object->data;
  weir__handles_drop(&m->user_objects, object);
  destroy(data);
}

static void unref_users(model *m, model_users *users) {
  if (!users || --users->refs)
    return;
  for (size_t i = 0; i < users->count; i++)
    unref_object(m, users->uses[i].object, users->uses[i].count);
  free(users);
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
  unref_users(m, work->users);
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
  for (size_t i = 0; i < graph->use_count; i++)
    unref_object(m, graph->uses[i].object, graph->uses[i].count);
  free(graph->uses);
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
      [MODEL_WORK_COPY] = "MEMCPY",         [MODEL_WORK_FILL] = "MEMSET",     [MODEL_WORK_KERNEL] = "KERNEL",
      [MODEL_WORK_HOST] = "HOST",           [MODEL_WORK_ALLOC] = "MEM_ALLOC", [MODEL_WORK_FREE] = "MEM_FREE",
      [MODEL_WORK_RECORD] = "EVENT_RECORD", [MODEL_WORK_WAIT] = "EVENT_WAIT"};
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
  unref_users(m, exec->users);
  weir__handles_drop(&m->execs, exec);
}

/* The executable's own references to the objects of a graph. False if out of host memory. */
static bool copy_users(const model_graph *graph, model_users **users) {
  *users = NULL;
  if (!graph->use_count)
    return true;
  *users = malloc(sizeof **users + graph->use_count * sizeof *graph->uses);
  if (!*users)
    return false;
  **users = (model_users){.refs = 1, .count = graph->use_count};
  for (size_t i = 0; i < graph->use_count; i++) {
    (*users)->uses[i] = graph->uses[i];
    graph->uses[i].object->refs += graph->uses[i].count;
  }
  return true;
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
  bool has_users = copy_users(g, &x->users);
  while (has_users && x->works && x->count < g->nodes.count &&
         weir__model_work_copy(&weir__model_node(m, g->nodes.items[x->count])->work, &x->works[x->count])) {
    if ((x->works[x->count].users = x->users))
      x->users->refs++;
    x->count++;
  }
  if (!has_users || !x->works || x->count < g->nodes.count) {
    weir__model_drop_exec(m, x);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *exec = (weir_cu_graph_exec)(uintptr_t)weir__handle_of(&m->execs, x);
  return WEIR_CU_SUCCESS;
}

/* Memory and events that a graph names may have gone since its capture. */
static weir_cu_result check_work(const model *m, const model_work *work) {
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
  } else if (weir__model_is_of_event(work) && !weir__model_event(m, work->as.event)) {
    r = WEIR_CU_INVALID_HANDLE;
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
    r = check_work(m, &x->works[i]);
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

/* ---- User objects ---- */

static model_user_object *find_object(const model *m, weir_cu_user_object handle) {
  return weir__handles_get(&m->user_objects, (uintptr_t)handle);
}

weir_cu_result weir__model_UserObjectCreate(model *m, weir_cu_user_object *object, void *data, weir_cu_host_fn destroy,
                                            unsigned count, unsigned flags) {
  if (!object || !destroy || !count || count > INT_MAX || flags != WEIR_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return WEIR_CU_INVALID_VALUE;
  model_user_object *o = weir__handles_make(&m->user_objects);
  if (!o)
    return WEIR_CU_OUT_OF_MEMORY;
  o->refs = o->owned = count;
  o->destroy = destroy;
  o->data = data;
  *object = (weir_cu_user_object)(uintptr_t)weir__handle_of(&m->user_objects, o);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_UserObjectRelease(model *m, weir_cu_user_object object, unsigned count) {
  model_user_object *o = find_object(m, object);
  if (!o || !count || count > o->owned)
    return WEIR_CU_INVALID_VALUE;
  o->owned -= count;
  unref_object(m, o, count);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_GraphRetainUserObject(model *m, weir_cu_graph graph, weir_cu_user_object object,
                                                 unsigned count, unsigned flags) {
  model_graph *g = find_graph(m, graph);
  model_user_object *o = find_object(m, object);
  bool moves = flags == WEIR_CU_GRAPH_USER_OBJECT_MOVE;
  if (!g || !o || !count || count > INT_MAX || (flags && !moves) || (moves && count > o->owned))
    return WEIR_CU_INVALID_VALUE;
  if (!WEIR__RESERVE(g->uses, g->use_room, g->use_count + 1))
    return WEIR_CU_OUT_OF_MEMORY;
  g->uses[g->use_count++] = (model_use){o, count};
  if (moves)
    o->owned -= count;
  else
    o->refs += count;
  return WEIR_CU_SUCCESS;
}
