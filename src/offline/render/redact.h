/*
 * Removes confidential texts from a recording: names, paths and remarks become hashes. Numbers stay, so that a replay
 * makes the same decisions, which is checked.
 */
#ifndef WEIR_OFFLINE_RENDER_REDACT_H
#define WEIR_OFFLINE_RENDER_REDACT_H

#include <stdbool.h>

#include "offline/analyse/sha256.h"
#include "offline/read/recording.h"
#include "offline/replay/replay.h"

typedef struct weir__redact_options {
  const char *salt;    /* equal texts have equal hashes in all files with the same salt; NULL for a random one */
  bool keep_functions; /* names of functions stay */
} weir__redact_options;

/* The number of different texts that were hidden or left out. */
typedef struct weir__redaction {
  size_t functions, files, remarks, annotations, settings;
} weir__redaction;

/* In place. */
weir_status weir__redact(weir__recording *snapshot, const weir__redact_options *options, weir__redaction *redaction);

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

weir_status weir__behaviour_of(const weir__recording *snapshot, weir__behaviour *behaviour);
void weir__behaviour_free(weir__behaviour *behaviour);

/* Fails with WEIR_ERROR_BAD_DATA and says what differs. */
weir_status weir__behaviour_compare(const weir__behaviour *before, const weir__behaviour *after);

typedef struct weir__redact_report {
  weir__redaction hidden;
  size_t left_out;                                  /* keys that the reader did not understand */
  size_t devices, events, allocations, differences; /* of the checked replays, the same before and after */
  size_t unchecked;                                 /* devices whose history cannot be replayed, before as after */
} weir__redact_report;

/* Reads `from`, writes `to`, reads it back and compares. `to` is not created if anything fails or differs. */
weir_status weir__redact_file(const char *from, const char *to, const weir__redact_options *options,
                              weir__redact_report *report);

#endif
