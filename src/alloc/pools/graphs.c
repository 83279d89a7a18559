/*
 * The allocator that serves the runtime's graphs.
 */
#include <stdatomic.h>

#include "alloc/pools/pool.h"
#include "weir/graph.h"

static void release(void *context, int device, weir_pool_id id) { weir_pool_release(context, device, id); }

/* The allocator of the hooks, which must not outlive it. */
static _Atomic(weir_allocator *) of_graphs;

static void forget(weir_allocator *allocator) {
  if (atomic_compare_exchange_strong(&of_graphs, &(weir_allocator *){allocator}, NULL))
    weir_graph_set_memory_hooks(NULL);
}

weir_status weir_graph_use_allocator(weir_allocator *allocator) {
  weir_graph_memory_hooks hooks = {.size = sizeof hooks,
                                   .begin = weir__capture_begin,
                                   .end = weir__capture_end,
                                   .release = release,
                                   .context = allocator};
  weir_status status = allocator ? weir__allocator_check(__func__, allocator) : WEIR_OK;
  if (!status)
    status = weir_graph_set_memory_hooks(allocator ? &hooks : NULL);
  if (status)
    return status;
  if (allocator)
    atomic_store(&allocator->forget_graphs, forget);
  atomic_store(&of_graphs, allocator);
  return WEIR_OK;
}
