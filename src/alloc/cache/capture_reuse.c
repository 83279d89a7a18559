/*
 * Reuse, within one capture, of blocks that several streams used (graph_capture_record_stream_reuse).
 *
 * A capture has no events to query, but it has the graph. A freed block remembers the position of each of its streams:
 * the nodes that the stream's next node would depend on. Once all of them are ancestors of the next node of the block's
 * own stream, that node runs after every use, and the block may serve that stream again.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/uses.h"
#include "base/array.h"
#include "base/hash_map.h"

typedef struct node_list {
  weir_cu_graph_node *items;
  size_t count, room;
} node_list;

static uint64_t key_of(weir_cu_graph_node node) { return (uint64_t)(uintptr_t)node; }

/* Appends the position of a capturing stream to a list of nodes. Returns false if the stream is not capturing, or is in
 * another capture than *capture, or if out of host memory. */
static bool add_position(weir_driver *driver, weir_cu_stream stream, unsigned long long *capture, node_list *nodes) {
  int status;
  unsigned long long id;
  const weir_cu_graph_node *tips;
  size_t tip_count;
  if (driver->StreamGetCaptureInfo(driver, stream, &status, &id, NULL, &tips, &tip_count) ||
      status != WEIR_CU_CAPTURE_STATUS_ACTIVE || (*capture && *capture != id))
    return false;
  *capture = id;
  if (!WEIR__RESERVE(nodes->items, nodes->room, nodes->count + tip_count))
    return false;
  if (tip_count)
    memcpy(nodes->items + nodes->count, tips, tip_count * sizeof *tips);
  nodes->count += tip_count;
  return true;
}

unsigned long long weir__capture_of(weir__heap *heap, weir_cu_stream stream) {
  bool is_asked = atomic_load(&heap->captures) && weir__settings_of(heap)->graph_capture_record_stream_reuse;
  return is_asked ? weir__active_capture(heap->allocator->driver, stream) : 0;
}

/* Takes no positions if a use began outside of the capture: the graph does not contain that work. Nor
 * does it contain that of other processes. */
void weir__capture_position_take(weir__heap *heap, const weir__block *block, weir__deferred *deferred) {
  weir_driver *driver = heap->allocator->driver;
  *deferred = (weir__deferred){.block = (weir__block *)block};
  if (!weir__settings_of(heap)->graph_capture_record_stream_reuse || heap->allocator->backend ||
      (block->marks & WEIR__MARK_SENT))
    return;
  weir_cu_stream stream = weir__block_arena(heap, block)->stream;
  unsigned long long capture = 0;
  node_list nodes = {0};
  bool ok = add_position(driver, stream, &capture, &nodes);
  for (const weir__use *use = weir__block_uses(block); use && ok; use = use->next)
    ok = add_position(driver, use->stream, &capture, &nodes) && use->capture == capture;
  if (ok)
    *deferred = (weir__deferred){deferred->block, capture, nodes.items, nodes.count};
  else
    free(nodes.items);
}

/* ---- Ancestors ---- */

/* Collects all ancestors of the stream's next node, given the nodes it depends on: an iterative walk against the
 * dependencies, for which `list` is the stack. Returns false if out of host memory or if the driver fails. */
static bool find_ancestors(weir_driver *driver, node_list *list, weir__hash_map *ancestors) {
  bool ok = true;
  for (size_t i = 0; i < list->count && ok; i++)
    ok = weir__hash_map_put(ancestors, sizeof(uint64_t), key_of(list->items[i])) != NULL;
  while (list->count && ok) {
    weir_cu_graph_node node = list->items[--list->count];
    size_t more = 0;
    ok = driver->GraphNodeGetDependencies(driver, node, NULL, &more) == WEIR_CU_SUCCESS;
    if (!ok || !more)
      continue;
    if (!WEIR__RESERVE(list->items, list->room, list->count + 2 * more))
      return false;
    /* The dependencies are read behind the list; new ones move down to its end. */
    weir_cu_graph_node *found = list->items + list->count + more;
    ok = driver->GraphNodeGetDependencies(driver, node, found, &more) == WEIR_CU_SUCCESS;
    for (size_t i = 0; i < more && ok; i++) {
      size_t before = ancestors->count;
      ok = weir__hash_map_put(ancestors, sizeof(uint64_t), key_of(found[i])) != NULL;
      if (ancestors->count > before)
        list->items[list->count++] = found[i];
    }
  }
  return ok;
}

void weir__capture_positions_poll(weir__heap *heap, weir_cu_stream stream) {
  weir_driver *driver = heap->allocator->driver;
  unsigned long long capture = 0;
  node_list list = {0};
  bool candidates = false;
  for (size_t i = 0; i < heap->deferred_count; i++)
    candidates |= heap->deferred[i].capture && weir__block_arena(heap, heap->deferred[i].block)->stream == stream;
  if (!candidates)
    return;
  weir__hash_map ancestors = {0}; /* keys alone */
  bool known = add_position(driver, stream, &capture, &list) && find_ancestors(driver, &list, &ancestors);
  size_t kept = 0;
  for (size_t i = 0; i < heap->deferred_count; i++) {
    weir__deferred *deferred = &heap->deferred[i];
    bool passed = known && deferred->capture == capture && weir__block_arena(heap, deferred->block)->stream == stream;
    for (size_t k = 0; k < deferred->count && passed; k++)
      passed = weir__hash_map_find(&ancestors, sizeof(uint64_t), key_of(deferred->positions[k])) != NULL;
    if (!passed) {
      heap->deferred[kept++] = *deferred;
      continue;
    }
    weir__block *block = deferred->block;
    weir__arena *arena = weir__block_arena(heap, block);
    free(deferred->positions);
    weir__pending_add(heap, -1);
    weir__arena_lock(arena);
    weir__arena_drop_uses(arena, block);
    if (!weir__block_cold_of(block)->events)
      weir__arena_release(arena, block);
    weir__arena_unlock(arena);
  }
  heap->deferred_count = kept;
  weir__hash_map_clear(&ancestors);
  free(list.items);
}
