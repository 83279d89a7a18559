/*
 * What a recording does when it is replayed, to be compared with a copy of it.
 */
#pragma once

#include "offline/analyse/sha256.h"
#include "offline/read/recording.h"
#include "offline/replay/replay.h"

/* The behaviour of a recording: all its numbers, and the checked replay of every device with a history. */
typedef struct weir__behaviour {
  unsigned char numbers[WEIR__SHA256_SIZE];
  size_t device_count;
  struct weir__behaviour_device {
    int device;
    weir_status status; /* of the replay */
    weir__replay_report report;
  } * devices;
} weir__behaviour;

weir_status weir__behaviour_of(const weir__recording *recording, weir__behaviour *behaviour);
void weir__behaviour_free(weir__behaviour *behaviour);

/* Fails with WEIR_ERROR_BAD_DATA and says what differs. */
weir_status weir__behaviour_compare(const weir__behaviour *before, const weir__behaviour *after);
