/*
 * What the tests of WEIR_RECORD share: an allocator on a ledger that is recorded to a file, and the files.
 */
#ifndef WEIR_TEST_RECORDING_H
#define WEIR_TEST_RECORDING_H

#include "offline/recording.h"
#include "support/alloc.h"
#include "weir/log.h"

extern weir_driver *ledger;
extern weir_allocator *recorded;

typedef struct recording {
  unsigned long long bytes;                             /* of the device */
  int (*is_done)(void *context, weir_cu_stream stream); /* of the ledger; NULL: its own */
  const char *conf;                                     /* NULL: none */
  const char *folder, *mb, *stacks;                     /* WEIR_RECORD and its two; NULL: not set */
  int devices;                                          /* 0: one */
} recording;

void open_recording(const recording *how);
void close_recording(void); /* also where none is open */

/* All files of a folder go. */
void remove_files(const char *folder);

/* What a file has; the test fails where it cannot be read. */
weir__recording *load_recording(const char *path);

/* A sink for messages that counts warnings, and keeps the last. */
extern _Atomic int warnings;
extern char warning[512];
void count_warning(void *context, weir_log_level level, const char *message);

#endif
