/*
 * Graphs that were captured, and their executable form.
 */
#include "driver/ledger/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lists of nodes ---- */

bool weir__ledger_nodes_add(ledger_nodes *nodes, weir_cu_graph_node node) {
  if (nodes->count == nodes->room) {
    size_t room = nodes->room == 0 ? 1 : nodes->room * 2;
    weir_cu_graph_node *items = realloc(nodes->items, room * sizeof *items);
    if (items == NULL)
      return false;
    nodes->items = items;
    nodes->room = room;
  }
  nodes->items[nodes->count++] = node;
  return true;
}

bool weir__ledger_nodes_copy(ledger_nodes *to, const ledger_nodes *from) {
  ledger_nodes copy = {0};
  for (size_t i = 0; i < from->count; i++) {
    if (!weir__ledger_nodes_add(&copy, from->items[i])) {
      weir__ledger_nodes_free(&copy);
      return false;
    }
  }
  weir__ledger_nodes_free(to);
  *to = copy;
  return true;
}

void weir__ledger_nodes_free(ledger_nodes *nodes) {
  if (nodes->items == NULL)
    return;
  free(nodes->items);
  *nodes = (ledger_nodes){0};
}

/* Hands a list out as the table's calls do: its length when `out` is NULL, else as much of it as has room. */
static void report(const ledger_nodes *nodes, weir_cu_graph_node *out, size_t *count) {
  if (out != NULL && *count < nodes->count) {
    memcpy(out, nodes->items, *count * sizeof *out);
    return;
  }
  if (out != NULL && nodes->count != 0)
    memcpy(out, nodes->items, nodes->count * sizeof *out);
  *count = nodes->count;
}

/* ---- Graphs ---- */

ledger_node *weir__ledger_node(const ledger *l, weir_cu_graph_node handle) {
  return weir__handles_get(&l->nodes, (uintptr_t)handle);
}

static ledger_graph *find_graph(const ledger *l, weir_cu_graph handle) {
  return weir__handles_get(&l->graphs, (uintptr_t)handle);
}

void weir__ledger_drop_graph(ledger *l, ledger_graph *graph) {
  for (size_t i = 0; i < graph->nodes.count; i++) {
    ledger_node *node = weir__ledger_node(l, graph->nodes.items[i]);
    weir__ledger_nodes_free(&node->behind);
    weir__handles_drop(&l->nodes, node);
  }
  weir__ledger_nodes_free(&graph->nodes);
  weir__handles_drop(&l->graphs, graph);
}

static void drop_exec(ledger *l, ledger_exec *exec) {
  free(exec->calls);
  weir__handles_drop(&l->execs, exec);
}

void weir__ledger_drop_context_graphs(ledger *l, ledger_device *device) {
  uint32_t index = 0;
  ledger_graph *graph;
  while ((graph = weir__handles_next(&l->graphs, &index)) != NULL)
    if (graph->device == device)
      weir__ledger_drop_graph(l, graph);
  index = 0;
  ledger_exec *exec;
  while ((exec = weir__handles_next(&l->execs, &index)) != NULL)
    if (exec->device == device)
      drop_exec(l, exec);
}

static weir_cu_result GraphGetNodes(weir_driver *self, weir_cu_graph graph, weir_cu_graph_node *nodes, size_t *count) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  const ledger_graph *g = find_graph(l, graph);
  if (g == NULL || count == NULL)
    return WEIR_CU_INVALID_VALUE;
  report(&g->nodes, nodes, count);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result GraphNodeGetDependencies(weir_driver *self, weir_cu_graph_node node, weir_cu_graph_node *nodes,
                                               size_t *count) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  const ledger_node *n = weir__ledger_node(l, node);
  if (n == NULL || count == NULL)
    return WEIR_CU_INVALID_VALUE;
  report(&n->behind, nodes, count);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result GraphDebugDotPrint(weir_driver *self, weir_cu_graph graph, const char *path, unsigned flags) {
  static const char *const names[] = {[LEDGER_NODE_COPY] = "MEMCPY",
                                      [LEDGER_NODE_FILL] = "MEMSET",
                                      [LEDGER_NODE_KERNEL] = "KERNEL",
                                      [LEDGER_NODE_HOST] = "HOST"};
  (void)flags;
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  const ledger_graph *g = find_graph(l, graph);
  if (g == NULL || path == NULL)
    return WEIR_CU_INVALID_VALUE;
  FILE *file = fopen(path, "w");
  if (file == NULL)
    return WEIR_CU_OPERATING_SYSTEM;
  fprintf(file, "digraph graph_%u {\n", g->head.link);
  for (size_t i = 0; i < g->nodes.count; i++) {
    const ledger_node *node = weir__ledger_node(l, g->nodes.items[i]);
    fprintf(file, "  node_%u [label=\"%zu %s\"];\n", node->head.link, i, names[node->kind]);
    for (size_t k = 0; k < node->behind.count; k++)
      fprintf(file, "  node_%u -> node_%u;\n", weir__ledger_node(l, node->behind.items[k])->head.link, node->head.link);
  }
  fprintf(file, "}\n");
  bool written = !ferror(file);
  written = fclose(file) == 0 && written;
  return written ? WEIR_CU_SUCCESS : WEIR_CU_OPERATING_SYSTEM;
}

static weir_cu_result GraphDestroy(weir_driver *self, weir_cu_graph graph) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_graph *g = find_graph(l, graph);
  if (g == NULL || g->open)
    return WEIR_CU_INVALID_VALUE;
  weir__ledger_drop_graph(l, g);
  return WEIR_CU_SUCCESS;
}

/* ---- Executables ---- */

static bool collect_calls(const ledger *l, const ledger_graph *graph, ledger_exec *exec) {
  exec->calls = malloc((graph->nodes.count + 1) * sizeof *exec->calls);
  if (exec->calls == NULL)
    return false;
  for (size_t i = 0; i < graph->nodes.count; i++) {
    const ledger_node *node = weir__ledger_node(l, graph->nodes.items[i]);
    if (node->fn != NULL)
      exec->calls[exec->call_count++] = (ledger_host_call){node->fn, node->data};
  }
  return true;
}

static weir_cu_result GraphInstantiate(weir_driver *self, weir_cu_graph_exec *exec, weir_cu_graph graph,
                                       unsigned long long flags) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  weir_cu_result result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  const ledger_graph *g = find_graph(l, graph);
  if (exec == NULL || g == NULL || g->open || (flags & ~(unsigned long long)WEIR_CU_GRAPH_AUTO_FREE_ON_LAUNCH) != 0)
    return WEIR_CU_INVALID_VALUE;
  ledger_exec *x = weir__handles_make(&l->execs);
  if (x == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  x->device = g->device;
  x->nodes = g->nodes.count;
  if (!collect_calls(l, g, x)) {
    drop_exec(l, x);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *exec = (weir_cu_graph_exec)(uintptr_t)weir__handle_of(&l->execs, x);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result find_launch(ledger *l, weir_cu_graph_exec exec, weir_cu_stream stream, ledger_exec **x) {
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  *x = weir__handles_get(&l->execs, (uintptr_t)exec);
  return *x != NULL ? weir__ledger_may_not_capture(l, s) : WEIR_CU_INVALID_VALUE;
}

static weir_cu_result GraphLaunch(weir_driver *self, weir_cu_graph_exec exec, weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  ledger_exec *x;
  weir_cu_result result = find_launch(l, exec, stream, &x);
  if (result != WEIR_CU_SUCCESS)
    return result;
  l->clock += x->nodes;
  for (size_t i = 0; i < x->call_count; i++)
    x->calls[i].fn(x->calls[i].data);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result GraphUpload(weir_driver *self, weir_cu_graph_exec exec, weir_cu_stream stream) {
  ledger_exec *x;
  return find_launch(weir__ledger_of(self), exec, stream, &x);
}

static weir_cu_result GraphExecDestroy(weir_driver *self, weir_cu_graph_exec exec) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  weir_cu_result result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  ledger_exec *x = weir__handles_get(&l->execs, (uintptr_t)exec);
  if (x == NULL)
    return WEIR_CU_INVALID_VALUE;
  drop_exec(l, x);
  return WEIR_CU_SUCCESS;
}

/* Graphs of the ledger hold no memory. */
static weir_cu_result DeviceGetGraphMemAttribute(weir_driver *self, weir_cu_device device, int attribute, void *value) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (weir__ledger_device(l, device) == NULL)
    return WEIR_CU_INVALID_DEVICE;
  bool known = attribute >= WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT && attribute <= WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH;
  if (!known || value == NULL)
    return WEIR_CU_INVALID_VALUE;
  *(uint64_t *)value = 0;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceGraphMemTrim(weir_driver *self, weir_cu_device device) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  return weir__ledger_device(l, device) != NULL ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_DEVICE;
}

void weir__ledger_add_graphs(weir_driver *table) {
  table->GraphInstantiate = GraphInstantiate;
  table->GraphLaunch = GraphLaunch;
  table->GraphUpload = GraphUpload;
  table->GraphGetNodes = GraphGetNodes;
  table->GraphNodeGetDependencies = GraphNodeGetDependencies;
  table->GraphDebugDotPrint = GraphDebugDotPrint;
  table->GraphDestroy = GraphDestroy;
  table->GraphExecDestroy = GraphExecDestroy;
  table->DeviceGetGraphMemAttribute = DeviceGetGraphMemAttribute;
  table->DeviceGraphMemTrim = DeviceGraphMemTrim;
}
