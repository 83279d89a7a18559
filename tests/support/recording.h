/*
 * An allocator on a ledger that is recorded with WEIR_RECORD, and the recorded files.
 */
#pragma once

#include "offline/read/recording.h"
#include "support/alloc.h"
#include "weir/log.h"

extern weir_driver *ledger;
extern weir_allocator *recorded;

typedef struct recording {
  unsigned long long bytes;                             /* memory of the device */
  int (*is_done)(void *context, weir_cu_stream stream); /* of the ledger; NULL for the default */
  const char *conf;                                     /* NULL for the defaults */
  /* WEIR_RECORD, WEIR_RECORD_MB and WEIR_RECORD_STACKS; not set if NULL. */
  const char *folder, *mb, *stacks;
  int devices; /* 0 means 1 */
} recording;

void open_recording(const recording *how);
void close_recording(void); /* does nothing if none is open */

/* Allocates and frees `count` small blocks. */
void record_pairs(int count);

/* ---- A temporary folder for the files of a program ---- */

extern char folder[];

/* The setup and teardown of the group. */
int make_folder(void **state);
int remove_folder(void **state);

/* The teardown of each test: closes the recording and the log sink, and removes all files. */
int recording_teardown(void **state);
void remove_files(void);

/* A path in the folder, valid until the next call. */
const char *path_in(const char *name);

/* The path of a file whose name contains `part`, valid until the next call; NULL if there is none. Fails if there are
 * several. */
const char *find_file(const char *part);

/* Loads a file, or fails. */
weir__recording *load_recording(const char *path);

/* ---- Messages ---- */

/* A log sink that counts warnings and keeps the last one. */
extern _Atomic int warnings;
extern char warning[512];
void count_warning(void *context, weir_log_level level, const char *message);
