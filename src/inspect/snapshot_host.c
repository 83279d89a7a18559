/*
 * Pinned host memory in snapshots.
 */
#include <stdlib.h>

#include "alloc/host/host.h"
#include "base/thread.h"
#include "inspect/snapshot.h"

static weir_block_state state_of(const weir__host_item *item) {
  switch (item->state) {
  case WEIR__HOST_ALLOCATED:
    return WEIR_BLOCK_ACTIVE_ALLOCATED;
  case WEIR__HOST_WAITING:
  case WEIR__HOST_KEPT:
    return WEIR_BLOCK_ACTIVE_PENDING_FREE;
  default:
    return WEIR_BLOCK_INACTIVE;
  }
}

/* The blocks at one moment, sorted by address; NULL if out of host memory. Their number may grow between two looks. */
static weir__host_item *list_of(weir_host_allocator *host, size_t *count) {
  weir__host_item *items = NULL;
  for (size_t room = weir__host_list(host, NULL, 0) + 1;; room = *count) {
    weir__host_item *more = realloc(items, room * sizeof *items);
    if (!more)
      break;
    items = more;
    *count = weir__host_list(host, items, room);
    if (*count <= room)
      return items;
  }
  free(items);
  return NULL;
}

weir_status weir_snapshot_add_host(weir_snapshot *snapshot, weir_host_allocator *host) {
  WEIR__CHECK_ARGUMENT(snapshot);
  WEIR__CHECK_ARGUMENT(host);
  if (host->is_forked)
    return weir__bad_fork(__func__);
  size_t count = 0;
  weir__host_item *items = list_of(host, &count);
  weir_snapshot_segment *segments = calloc(count + 1, sizeof *segments);
  weir_snapshot_block *blocks = calloc(count + 1, sizeof *blocks);
  if (!items || !segments || !blocks) {
    free(items);
    free(segments);
    free(blocks);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the blocks", __func__);
  }
  for (size_t i = 0; i < count; i++) {
    weir_block_state state = state_of(&items[i]);
    uint64_t bytes = items[i].bytes;
    bool is_active = state != WEIR_BLOCK_INACTIVE;
    blocks[i] = (weir_snapshot_block){.size = sizeof *blocks,
                                      .address = items[i].address,
                                      .bytes = bytes,
                                      .requested = is_active ? bytes : 0,
                                      .state = (uint32_t)state};
    segments[i] = (weir_snapshot_segment){.size = sizeof *segments,
                                          .address = items[i].address,
                                          .bytes = bytes,
                                          .allocated = state == WEIR_BLOCK_ACTIVE_ALLOCATED ? bytes : 0,
                                          .active = is_active ? bytes : 0,
                                          .requested = is_active ? bytes : 0,
                                          .blocks = &blocks[i],
                                          .block_count = 1,
                                          .device = -1};
  }
  free(items);
  free(snapshot->host_segments);
  free(snapshot->host_blocks);
  snapshot->host_segments = segments;
  snapshot->host_blocks = blocks;
  snapshot->host_count = count;
  return WEIR_OK;
}
