/*
 * What would have served a request that failed, found by replays.
 */
#pragma once

#include "offline/analyse/explain.h"

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
