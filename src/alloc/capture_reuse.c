/*
 * Reuse, within one capture, of blocks that several streams used (graph_capture_record_stream_reuse).
 *
 * A capture has no events to query, but it has the graph. A freed block remembers the position of each of its streams:
 * the nodes that the stream's next node would depend on. Once all of them are ancestors of the next node of the block's
 * own stream, that node runs after every use, and the block may serve that stream again.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/arena.h"
#include "alloc/backend.h"
#include "alloc/events.h"

/* Appends the position of a capturing stream to a list of nodes. Returns false if the stream is not capturing, or is in
 * another capture than *capture, or if out of host memory. */
static bool add_position(weir_driver *driver, weir_cu_stream stream, unsigned long long *capture,
                         weir_cu_graph_node **nodes, size_t *count) {
  int status;
  unsigned long long id;
  const weir_cu_graph_node *tips;
  size_t tip_count;
  if (driver->StreamGetCaptureInfo(driver, stream, &status, &id, NULL, &tips, &tip_count) ||
      status != WEIR_CU_CAPTURE_STATUS_ACTIVE || (*capture && *capture != id))
    return false;
  *capture = id;
  weir_cu_graph_node *grown = realloc(*nodes, (*count + tip_count + 1) * sizeof *grown);
  if (!grown)
    return false;
  *nodes = grown;
  if (tip_count)
    memcpy(grown + *count, tips, tip_count * sizeof *grown);
  *count += tip_count;
  return true;
}

unsigned long long weir__capture_of(weir__heap *heap, weir_cu_stream stream) {
  weir_driver *driver = heap->allocator->driver;
  int status;
  unsigned long long id;
  if (!atomic_load(&heap->captures) || !weir__settings_of(heap)->graph_capture_record_stream_reuse ||
      driver->StreamGetCaptureInfo(driver, stream, &status, &id, NULL, NULL, NULL) ||
      status != WEIR_CU_CAPTURE_STATUS_ACTIVE)
    return 0;
  return id;
}

/* Takes no positions if a use began outside of the capture: the graph does not contain that work. */
void weir__capture_position_take(weir__heap *heap, const weir__block *block, weir__deferred *deferred) {
  weir_driver *driver = heap->allocator->driver;
  *deferred = (weir__deferred){.block = (weir__block *)block};
  if (!weir__settings_of(heap)->graph_capture_record_stream_reuse || heap->allocator->backend)
    return;
  weir_cu_stream stream = weir__block_arena(heap, block)->stream;
  bool ok = add_position(driver, stream, &deferred->capture, &deferred->positions, &deferred->count);
  for (const weir__use *use = weir__block_uses(block); use && ok; use = use->next)
    ok = add_position(driver, use->stream, &deferred->capture, &deferred->positions, &deferred->count) &&
         use->capture == deferred->capture;
  if (ok)
    return;
  free(deferred->positions);
  *deferred = (weir__deferred){.block = (weir__block *)block};
}

/* ---- Ancestors ---- */

typedef struct node_set {
  weir_cu_graph_node *slots;
  size_t mask, count;
} node_set;

static size_t slot_of(const node_set *set, weir_cu_graph_node node) {
  size_t i = (size_t)((uintptr_t)node * 0x9e3779b97f4a7c15u >> 20) & set->mask;
  while (set->slots[i] && set->slots[i] != node)
    i = (i + 1) & set->mask;
  return i;
}

/* 1 if added, 0 if present, -1 if out of host memory. */
static int set_add(node_set *set, weir_cu_graph_node node) {
  if (!set->slots || 2 * (set->count + 1) > set->mask + 1) {
    node_set grown = {.mask = set->slots ? 2 * set->mask + 1 : 63};
    grown.slots = calloc(grown.mask + 1, sizeof *grown.slots);
    if (!grown.slots)
      return -1;
    for (size_t i = 0; set->slots && i <= set->mask; i++)
      if (set->slots[i])
        grown.slots[slot_of(&grown, set->slots[i])] = set->slots[i];
    grown.count = set->count;
    free(set->slots);
    *set = grown;
  }
  size_t i = slot_of(set, node);
  if (set->slots[i])
    return 0;
  set->slots[i] = node;
  set->count++;
  return 1;
}

/* Collects all ancestors of the stream's next node, given the nodes it depends on: an iterative walk against the
 * dependencies. Takes ownership of `list`. Returns false if out of host memory or if the driver fails. */
static bool find_ancestors(weir_driver *driver, weir_cu_graph_node *list, size_t count, node_set *set) {
  size_t room = count + 1;
  bool ok = true;
  for (size_t i = 0; i < count && ok; i++)
    ok = set_add(set, list[i]) >= 0;
  while (count && ok) {
    weir_cu_graph_node node = list[--count];
    size_t more = 0;
    ok = driver->GraphNodeGetDependencies(driver, node, NULL, &more) == WEIR_CU_SUCCESS;
    if (!ok || !more)
      continue;
    if (count + 2 * more > room) {
      room = 2 * (count + 2 * more);
      weir_cu_graph_node *grown = realloc(list, room * sizeof *grown);
      if (!grown) {
        ok = false;
        break;
      }
      list = grown;
    }
    /* The dependencies are read behind the list; new ones move down to its end. */
    weir_cu_graph_node *found = list + count + more;
    ok = driver->GraphNodeGetDependencies(driver, node, found, &more) == WEIR_CU_SUCCESS;
    for (size_t i = 0; i < more && ok; i++) {
      int added = set_add(set, found[i]);
      ok = added >= 0;
      if (added > 0)
        list[count++] = found[i];
    }
  }
  free(list);
  return ok;
}

void weir__capture_positions_poll(weir__heap *heap, weir_cu_stream stream) {
  weir_driver *driver = heap->allocator->driver;
  unsigned long long capture = 0;
  weir_cu_graph_node *list = NULL;
  size_t count = 0;
  bool candidates = false;
  for (size_t i = 0; i < heap->deferred_count; i++)
    candidates |= heap->deferred[i].capture && weir__block_arena(heap, heap->deferred[i].block)->stream == stream;
  if (!candidates)
    return;
  if (!add_position(driver, stream, &capture, &list, &count)) {
    free(list);
    return;
  }
  node_set ancestors = {0};
  bool known = find_ancestors(driver, list, count, &ancestors);
  size_t kept = 0;
  for (size_t i = 0; i < heap->deferred_count; i++) {
    weir__deferred *deferred = &heap->deferred[i];
    bool passed = known && deferred->capture == capture && weir__block_arena(heap, deferred->block)->stream == stream;
    for (size_t k = 0; k < deferred->count && passed; k++)
      passed = ancestors.slots && ancestors.slots[slot_of(&ancestors, deferred->positions[k])];
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
    if (!weir__block_aside_of(block)->events)
      weir__arena_release(arena, block);
    weir__arena_unlock(arena);
  }
  heap->deferred_count = kept;
  free(ancestors.slots);
}
