/*
 * The parts of an explanation: explain.c puts them together, explain_pins.c finds the blocks in the way, and
 * explain_remedies.c what would have helped.
 */
#pragma once

#include "alloc/replay_port.h"
#include "offline/analyse/explain.h"
#include "offline/replay/states.h"

/* Whether a request may get blocks of a segment. */
typedef struct weir__seeker {
  int64_t stream, pool[2];
  bool is_small;
} weir__seeker;

static inline bool weir__may_get(const weir__seeker *seeker, const weir__state_segment *segment) {
  return segment->stream == seeker->stream && segment->pool[0] == seeker->pool[0] &&
         segment->pool[1] == seeker->pool[1] && segment->is_small == seeker->is_small;
}

/* Fills in the pins of a request that failed. */
weir_status weir__find_pins(const weir__state *state, const weir__seeker *seeker, weir__explanation *explanation);

typedef struct weir__trial_options {
  const weir__recording *recording;
  const weir__replayer *replayer;
  const weir__explain_options *options;
  size_t event;    /* of the request */
  uint64_t memory; /* of the recording, as for weir__replayer_open; 0 if inferred */
  double fraction;
  uint64_t most;    /* what the device had for this process at the failure; UINT64_MAX if enough */
  bool was_rescued; /* a checked replay served it after waiting */
} weir__trial_options;

/* Fills in the trials, and how much memory would have been enough. */
weir_status weir__try_remedies(const weir__trial_options *options, weir__explanation *explanation);
