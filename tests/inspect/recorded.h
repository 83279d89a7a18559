/*
 * A recorder for tests: a source of snapshots with plain arrays.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "inspect/snapshot.h"

typedef struct recorded_frame {
  uintptr_t address; /* 0 for a frame of a language runtime */
  const char *function, *file;
  int line;
} recorded_frame;

typedef struct recorded_stack {
  const recorded_frame *frames;
  size_t count;
} recorded_stack;

typedef struct recorded_pair {
  const char *key, *value;
} recorded_pair;

typedef struct recorded_annotation {
  const recorded_pair *pairs;
  size_t pair_count;
  int device;
  int64_t time_us;
} recorded_annotation;

typedef struct recorded {
  const weir__entry *events; /* of device 0 */
  size_t event_count;
  uint64_t dropped;
  const recorded_stack *stacks; /* [0] is none */
  const weir_pool_id *pools;    /* [0] is {0, 0} */
  const weir__recorded_context *contexts;
  const recorded_annotation *annotations;
  size_t annotation_count;
  uint32_t block_stack, segment_stack; /* of all of them */
  void (*while_copying)(int device);   /* called for each block, and at the cut */
  int cuts;
  uint64_t active; /* the value of the last cut */
} recorded;

static inline uint32_t recorded_block_stack(void *context, int device, uint64_t address) {
  const recorded *r = context;
  (void)address;
  if (r->while_copying)
    r->while_copying(device);
  return r->block_stack;
}

static inline uint32_t recorded_segment_stack(void *context, const struct weir__segment *segment) {
  (void)segment;
  return ((recorded *)context)->segment_stack;
}

static inline void recorded_cut(void *context, int device, uint64_t active) {
  recorded *r = context;
  r->cuts++;
  r->active = active;
  if (r->while_copying)
    r->while_copying(device);
}

static inline weir_status recorded_events(void *context, int device, weir__entry **events, size_t *count,
                                          uint64_t *dropped) {
  const recorded *r = context;
  if (device != 0 || !r->event_count)
    return WEIR_OK;
  *events = malloc(r->event_count * sizeof **events);
  if (!*events)
    return WEIR_ERROR_HOST_OUT_OF_MEMORY;
  memcpy(*events, r->events, r->event_count * sizeof **events);
  *count = r->event_count;
  *dropped = r->dropped;
  return WEIR_OK;
}

static inline void recorded_frames(void *context, uint32_t stack, weir_snapshot *to) {
  const recorded_stack *s = &((recorded *)context)->stacks[stack];
  for (const recorded_frame *f = s->frames; f < s->frames + s->count; f++)
    weir__snapshot_add_frame(to, f->address, f->function, f->file, f->line);
}

static inline weir_pool_id recorded_pool(void *context, uint32_t number) {
  return ((recorded *)context)->pools[number];
}

static inline weir__recorded_context recorded_context(void *context, uint32_t number) {
  return ((recorded *)context)->contexts[number];
}

static inline void recorded_annotations(void *context, weir_snapshot *to) {
  const recorded *r = context;
  for (size_t i = 0; i < r->annotation_count; i++) {
    const recorded_annotation *a = &r->annotations[i];
    weir__snapshot_add_annotation(to, a->device, a->time_us);
    for (size_t k = 0; k < a->pair_count; k++)
      weir__snapshot_add_pair(to, a->pairs[k].key, a->pairs[k].value);
  }
}

static inline weir__history_source recorded_source(recorded *r) {
  return (weir__history_source){.context = r,
                                .block_stack = recorded_block_stack,
                                .segment_stack = recorded_segment_stack,
                                .cut = recorded_cut,
                                .events = recorded_events,
                                .frames = recorded_frames,
                                .pool = recorded_pool,
                                .texts = recorded_context,
                                .annotations = recorded_annotations};
}
