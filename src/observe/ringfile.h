/*
 * A recording in a file that outlives the process, however that ends.
 *
 * The file is mapped, and has a fixed size: a header, a log and chunks of events, which are those of a tape
 * (observe/tape.h). An event is in the file as soon as its chunk counts it: nothing has to be written when the process dies.
 * The log has what numbers in events mean, and the settings. An entry of it is there before the first event that needs it.
 *
 * Chunks are used again; what an old one still has is not later than `dropped_until` of its device, and readers leave it away.
 */
#ifndef WEIR_OBSERVE_RINGFILE_H
#define WEIR_OBSERVE_RINGFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "observe/clock.h"
#include "observe/tape.h"

#define WEIR__RING_MAGIC "WEIRRING"

enum { WEIR__RING_VERSION = 2, WEIR__RING_HEADER = 4096, WEIR__RING_DEVICES = 64 };

typedef struct weir__ring_device {
  _Atomic uint64_t dropped;       /* events that went */
  _Atomic uint64_t dropped_until; /* their latest time */
  _Atomic uint64_t cleared_until;
  uint64_t memory; /* the device's, in bytes */
} weir__ring_device;

/* The first page. What is not atomic does not change once the magic is there. */
typedef struct weir__ring_header {
  char magic[8];
  uint32_t version;
  uint32_t event_bytes, chunk_bytes;
  int32_t device_count;
  uint64_t file_bytes;
  uint64_t log_at, log_bytes; /* behind the header */
  uint64_t chunks_at, chunk_count;
  int64_t pid;
  int64_t rank; /* -1: none */
  char host[64];
  weir__clock_point first;
  weir__clock_point last[2]; /* written in turn, so that one of them is whole */
  atomic_uint newest;        /* which of them is the later one */
  atomic_uint is_closed;     /* the recording ended by itself */
  _Atomic uint64_t log_used;
  _Atomic uint64_t lost;     /* events for which there was no chunk */
  _Atomic uint64_t log_lost; /* entries of the log for which there was no room */
  weir__ring_device devices[WEIR__RING_DEVICES];
} weir__ring_header;

_Static_assert(sizeof(weir__ring_header) <= WEIR__RING_HEADER, "the header is one page");

typedef enum weir__ring_kind {
  WEIR__RING_TEXT = 1, /* of weir__texts: texts, pools and contexts */
  WEIR__RING_STACK,    /* of weir__stacks */
  WEIR__RING_MODULE, /* weir__ring_module, the path of the program or library that is mapped there, and if it has a build ID,
                          a 0 and that */
  WEIR__RING_SETTINGS, /* a time, from which on they hold, and all of them in the syntax of WEIR_ALLOC_CONF */
  WEIR__RING_LIMIT     /* weir__ring_limit */
} weir__ring_kind;

/* An entry of the log; its bytes follow, filled up to a multiple of 8. */
typedef struct weir__ring_entry {
  uint32_t kind;
  uint32_t number; /* of a text or a stack: one more than that of the one before, from 1 on */
  uint32_t length; /* of the bytes */
  uint32_t reserved;
} weir__ring_entry;

typedef struct weir__ring_module {
  uint64_t base;       /* what is added to the addresses of the file */
  uint64_t begin, end; /* where it is mapped */
} weir__ring_module;

typedef struct weir__ring_limit {
  uint64_t time;  /* from which on it holds */
  uint64_t bytes; /* that may be reserved; UINT64_MAX: all */
  int64_t device;
} weir__ring_limit;

typedef struct weir__ringfile {
  char *path;
  char *map; /* the whole file */
  size_t bytes;
  weir__ring_header *header;               /* in the map */
  atomic_uint texts_logged, stacks_logged; /* numbers up to these are in the log, or there is no room for more */
  weir__lock lock;                         /* of what follows, and of the log */
  uint64_t fresh;                          /* chunks from here on were never used */
  uint64_t taken[WEIR__RING_DEVICES];      /* chunks of each device */
  uint64_t next_sequence;
  uint64_t clock_at;        /* ticks from which on the clock is to be read again */
  unsigned long long loads; /* of libraries, when modules were logged */
  uint64_t *modules;        /* hashes of those that are in the log */
  size_t module_count, module_room;
} weir__ringfile;

/* Makes `path`, which must not be there, with all of its bytes. NULL: it cannot, and *why is an errno. */
weir__ringfile *weir__ringfile_create(const char *path, uint64_t bytes, int devices, const char *host, int64_t rank,
                                      int *why);

/* The file stays. NULL is allowed. */
void weir__ringfile_close(weir__ringfile *file);

/* In the child of a fork: puts plain memory in the place of the file, so that nothing of the child gets there. */
bool weir__ringfile_detach(weir__ringfile *file);

/* Events that there is room for. */
uint64_t weir__ringfile_capacity(const weir__ringfile *file);

/* A chunk that was never used, for a device. NULL: there is none left for it. */
weir__chunk *weir__ringfile_chunk(weir__ringfile *file, int device);

/* A chunk begins: it has no events, and is later than those that began before it. */
void weir__ringfile_begin(weir__ringfile *file, weir__chunk *chunk);

/* A chunk goes on with another writer: it is later than all others from here on, with all that it has. */
void weir__ringfile_resume(weir__ringfile *file, weir__chunk *chunk);

/* From now on, these settings hold; and this limit of a device. Which ones held when is told as long as the log has room. */
void weir__ringfile_log_settings(weir__ringfile *file, const char *conf);
void weir__ringfile_log_limit(weir__ringfile *file, int device, uint64_t bytes);

/* Logs all texts and stacks that are not there yet. */
void weir__ringfile_sync(weir__ringfile *file);

/* An event with these numbers is about to be written; the pool's is 0 where it is not interned. */
static inline void weir__ringfile_need(weir__ringfile *file, uint32_t stack, uint32_t context, uint32_t pool) {
  unsigned texts = atomic_load_explicit(&file->texts_logged, memory_order_acquire);
  if (context > texts || pool > texts || stack > atomic_load_explicit(&file->stacks_logged, memory_order_acquire))
    weir__ringfile_sync(file);
}

#endif
