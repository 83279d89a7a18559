#include "offline/analyse/levels.h"

#include "offline/analyse/summary.h"

weir_status weir__levels_begin(const weir__recording *recording, int device, weir__levels *levels) {
  weir__summary summary;
  weir_status status = weir__summarize(recording, device, &summary);
  if (!status)
    *levels = (weir__levels){(int64_t)summary.live_before, (int64_t)summary.reserved_before};
  return status;
}

/* Wraps around, since an invalid file may have any size. */
static void add(int64_t *level, uint64_t by) { *level = (int64_t)((uint64_t)*level + by); }

void weir__levels_move(weir__levels *levels, const weir__recording_entry *entry) {
  switch (entry->action) {
  case WEIR_TRACE_ALLOC:
    add(&levels->allocated, entry->size);
    break;
  case WEIR_TRACE_FREE_REQUESTED:
    add(&levels->allocated, 0 - entry->size);
    break;
  case WEIR_TRACE_SEGMENT_ALLOC:
  case WEIR_TRACE_SEGMENT_MAP:
    add(&levels->reserved, entry->size);
    break;
  case WEIR_TRACE_SEGMENT_FREE:
  case WEIR_TRACE_SEGMENT_UNMAP:
    add(&levels->reserved, 0 - entry->size);
    break;
  default:
    break;
  }
}
