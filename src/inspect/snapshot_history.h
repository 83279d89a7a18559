/*
 * What the recorder of an allocator tells a snapshot.
 */
#ifndef WEIR_INSPECT_SNAPSHOT_HISTORY_H
#define WEIR_INSPECT_SNAPSHOT_HISTORY_H

#include "inspect/snapshot.h"
#include "record/recorder.h"

typedef struct weir__recorded {
  weir_allocator *allocator;
  weir__recorder *history;
  uint64_t *cuts;                 /* ticks, for each device: events are told up to there */
  weir__annotation **annotations; /* copies, once they are asked for */
  size_t annotation_count, annotation_room;
  bool is_gathered;
  weir__recorded_pair *pairs; /* of the annotation that was told last */
} weir__recorded;

/* A source that reads an allocator's recorder. false: no host memory. The end is for weir__recorded_clear. */
bool weir__recorded_begin(weir__recorded *recorded, weir_allocator *allocator, weir__history_source *source);
void weir__recorded_clear(weir__recorded *recorded);

#endif
