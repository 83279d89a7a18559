/*
 * A snapshot without what people would not show: names, paths and remarks become hashes. Numbers stay as they are, so
 * that a replay decides the same; that is not believed but checked.
 */
#ifndef WEIR_OFFLINE_REDACT_H
#define WEIR_OFFLINE_REDACT_H

#include <stdbool.h>

#include "offline/recording.h"
#include "offline/replay.h"
#include "offline/sha256.h"

typedef struct weir__redact_options {
  const char *salt;    /* equal texts get equal hashes in all files with it; NULL: a random one, used once */
  bool keep_functions; /* names of functions stay */
} weir__redact_options;

/* What was hidden: different texts, and what was left out. */
typedef struct weir__redaction {
  size_t functions, files, remarks, annotations, settings;
} weir__redaction;

/* In place. */
weir_status weir__redact(weir__recording *snapshot, const weir__redact_options *options, weir__redaction *redaction);

/* How a snapshot behaves: all its numbers, and the checked replay of every device that has a history. */
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

/* WEIR_ERROR_BAD_DATA, with what differs. */
weir_status weir__behaviour_compare(const weir__behaviour *before, const weir__behaviour *after);

typedef struct weir__redact_report {
  weir__redaction hidden;
  size_t left_out; /* keys that were not understood, of those that the reader has counted */
  size_t devices, events, allocations, differences; /* of the checked replays: the same of both */
  size_t unchecked;                                 /* devices whose history cannot be replayed, before as after */
} weir__redact_report;

/* Reads `from`, writes `to`, reads that again and compares. Where anything fails or differs there is no `to`. */
weir_status weir__redact_file(const char *from, const char *to, const weir__redact_options *options,
                              weir__redact_report *report);

#endif
