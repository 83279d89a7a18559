/*
 * A recording in a file that survives the process, however it ends.
 *
 * The file is mapped: a header, which stands alone, and behind it areas of three kinds: a log, checkpoints, and chunks
 * of entries, which belong to rings (record/ring.h). It grows by an area where one is needed, and each has all of its
 * disk space before it is used. A full disk stops the growth, and from there on the oldest entries make room. Readers
 * skip areas of a kind that they do not know, and what lies behind `file_bytes`.
 *
 * An entry is in the file as soon as its chunk counts it: nothing has to be written when the process dies. The log has
 * the meaning of the numbers in entries, and the settings. A record of the log is written before the first entry that
 * needs it.
 *
 * Chunks are reused. What is left of an old chunk's entries is not later than `dropped_until` of its device, and
 * readers skip it.
 *
 * Checkpoints keep what the dropped entries left behind: all segments and blocks of a device at one moment between two
 * entries. A device has a few of them, spread over the ring. A reader starts from the oldest checkpoint that is not
 * earlier than `dropped_until` and ignores the entries before it. Devices share the areas of checkpoints, and a new one
 * never overwrites the newest valid one of its device, so a process that is killed meanwhile leaves a usable file.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash_map.h"
#include "base/lock.h"
#include "base/system.h"
#include "base/thread.h"
#include "record/ring.h"

#define WEIR__RING_MAGIC "WEIRRING"

enum {
  WEIR__RING_VERSION = 4,
  WEIR__RING_OLDEST_VERSION = 3, /* that can be read: see offline/read/ring_v3.h */
  WEIR__RING_HEADER = 4096,
  WEIR__RING_DEVICES = 64,
  WEIR__RING_CHECKPOINTS = 5, /* the most of a device: one more than usually lie in the ring */
  WEIR__RING_ROOMS = 16       /* the most areas of checkpoints */
};

typedef struct weir__ring_file_device {
  _Atomic uint64_t dropped;       /* dropped entries */
  _Atomic uint64_t dropped_until; /* their latest time */
  _Atomic uint64_t cleared_until;
  uint64_t memory; /* of the device, in bytes */
} weir__ring_file_device;

/* The first page. Fields that are not atomic do not change once the magic is written, but those of the clock. It says
 * which process it is about without any area: a process id is used again, so there is the time of its start. */
typedef struct weir__ring_file_header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes; /* the first area begins behind it */
  uint32_t event_bytes, chunk_bytes;
  int32_t device_count;
  atomic_uint failure; /* the errno value with which the file could not grow; 0 if it always could */
  int64_t pid;
  uint64_t process_start; /* clock ticks since boot, as in /proc/PID/stat; 0 if not known */
  uint64_t pid_namespace; /* the inode of /proc/PID/ns/pid: elsewhere the process has another id; 0 if not known */
  int64_t rank;           /* -1 if there is none */
  char host[64];
  weir__clock_point first;
  weir__clock_point last[2];   /* written in turn, so that one of them is complete */
  atomic_uint newest;          /* the index of the later one */
  atomic_uint ended;           /* weir__ring_file_end */
  uint64_t max_bytes;          /* to which the file may grow */
  _Atomic uint64_t file_bytes; /* of the header and the complete areas */
  _Atomic uint64_t slots_at;   /* of the checkpoints, in the first of their areas; 0 if there is none */
  _Atomic uint64_t lost;       /* entries for which there was no chunk */
  _Atomic uint64_t log_lost;   /* records of the log for which there was no room */
  weir__ring_file_device devices[WEIR__RING_DEVICES];
  struct {
    _Atomic uint64_t bytes, peak;
  } outside[WEIR__RING_DEVICES]; /* memory that no allocator has; see weir_outside_memory_record */
} weir__ring_file_header;

_Static_assert(sizeof(weir__ring_file_header) <= WEIR__RING_HEADER, "the header is one page");

/* How an area begins. */
typedef struct weir__ring_file_area {
  uint32_t kind; /* weir__ring_file_area_kind */
  uint32_t reserved;
  uint64_t bytes;        /* with this; a multiple of 64 */
  _Atomic uint64_t used; /* of a log: bytes of its records */
  uint64_t padding[5];
} weir__ring_file_area;

_Static_assert(sizeof(weir__ring_file_area) == 64, "chunks are aligned to cache lines");

typedef enum weir__ring_file_area_kind {
  WEIR__RING_LOG = 1,
  WEIR__RING_STATES, /* checkpoints */
  WEIR__RING_CHUNKS, /* as many as fit */
  WEIR__RING_AREAS,
  /* Of a live page, which has these two alone (live_page.h). */
  WEIR__RING_REQUESTS = WEIR__RING_AREAS,
  WEIR__RING_ACCOUNTS
} weir__ring_file_area_kind;

/* Records of other kinds are skipped. */
typedef enum weir__ring_file_kind {
  WEIR__RING_TEXT = 1, /* of weir__texts: texts, pools and contexts */
  WEIR__RING_STACK,    /* of weir__stacks */
  /* weir__ring_file_module, the path of the program or library that is mapped there, and, if it has a build ID, a 0 and
   * that ID. */
  WEIR__RING_MODULE,
  WEIR__RING_SETTINGS, /* the time from which on they hold, and all of them in the syntax of WEIR_ALLOC_CONF */
  WEIR__RING_LIMIT,    /* weir__ring_file_limit */
  WEIR__RING_TAG       /* weir__ring_file_tag, and the name of the tag */
} weir__ring_file_kind;

/* A record of the log; its bytes follow, padded to a multiple of 8. */
typedef struct weir__ring_file_record {
  uint32_t kind;
  uint32_t number; /* of a text or a stack: consecutive, from 1 on */
  uint32_t length; /* of the bytes */
  uint32_t reserved;
} weir__ring_file_record;

typedef struct weir__ring_file_module {
  uint64_t base;       /* added to the addresses in the file */
  uint64_t begin, end; /* where it is mapped */
} weir__ring_file_module;

typedef struct weir__ring_file_limit {
  uint64_t time;  /* from which on it holds */
  uint64_t bytes; /* that may be reserved; UINT64_MAX if there is no limit */
  int64_t device;
  double fraction; /* of the device's memory as which it was set; 0 if it was set in bytes. From version 4 on */
} weir__ring_file_limit;

/* A private pool that belongs to a tag. */
typedef struct weir__ring_file_tag {
  uint64_t time; /* from which on it does */
  uint64_t pool[2];
  int64_t device;
} weir__ring_file_tag;

/* ---- Checkpoints ---- */

/* The first area of checkpoints begins with WEIR__RING_CHECKPOINTS of these for each device. */
typedef struct weir__ring_file_slot {
  _Atomic uint64_t sequence; /* higher for later checkpoints; 0 if there is none, or it is being written */
  uint64_t at, bytes;        /* in the file; multiples of 8 */
  uint64_t checksum;         /* of the bytes and of these fields */
} weir__ring_file_slot;

/* How a checkpoint begins. It is followed by the settings in the syntax of WEIR_ALLOC_CONF, filled up to a multiple of
 * 8; by the private pools, each of them two numbers, in the order in which they were made; by the segments; and by the
 * blocks of all of these. */
typedef struct weir__ring_file_state {
  uint64_t time;          /* ticks: it includes all entries of the device up to here, and no later one */
  uint64_t settings_time; /* ticks: later changes of the settings are in the log */
  uint64_t limit;         /* bytes that may be reserved; UINT64_MAX if there is no limit */
  uint64_t peak_allocated, peak_reserved; /* bytes, since the beginning or the last reset */
  uint64_t pool_count, segment_count, block_count;
  uint32_t device;
  uint32_t conf_bytes;
} weir__ring_file_state;

typedef struct weir__ring_file_segment {
  uint64_t address, bytes; /* of an expandable segment: its whole reservation */
  uint64_t stream;
  uint64_t pool[2];
  uint64_t page; /* 0 if it is not expandable */
  uint32_t stack;
  uint32_t block_count; /* up to the last mapped page; 0 if none is mapped */
  uint32_t is_small;
  uint32_t reserved;
} weir__ring_file_segment;

/* Blocks are adjacent, from the segment's address on. */
typedef struct weir__ring_file_block {
  uint32_t units; /* of WEIR__UNIT bytes */
  uint32_t extra; /* in use: the stack; free: its age, in searches of its pool */
  uint64_t rest;  /* what was requested, and in the lowest two bits the weir__block_status */
} weir__ring_file_block;

_Static_assert(sizeof(weir__ring_file_slot) == 32 && sizeof(weir__ring_file_state) == 72 &&
                   sizeof(weir__ring_file_segment) == 64 && sizeof(weir__ring_file_block) == 16,
               "they have no padding");

/* The checksum of a checkpoint. `length` is a multiple of 8. */
static inline uint64_t weir__ring_file_checksum(uint64_t sequence, uint64_t at, const void *bytes, uint64_t length) {
  uint64_t sum = 0xcbf29ce484222325u, word;
  const uint64_t prime = 0x9e3779b97f4a7c15u;
  sum = (sum ^ sequence) * prime;
  sum = (sum ^ at) * prime;
  sum = (sum ^ length) * prime;
  for (uint64_t i = 0; i + sizeof word <= length; i += sizeof word) {
    memcpy(&word, (const char *)bytes + i, sizeof word);
    sum = ((sum ^ word) * prime) ^ sum >> 29;
  }
  return sum;
}

/* ---- The file of a process ---- */

/* Called, with locks held, when a chunk begins and its device needs a checkpoint; it may only pass that on. Urgent:
 * soon the oldest valid checkpoint will be too old for the entries that are left. */
typedef void (*weir__ring_file_due)(void *context, int device, bool is_urgent);

typedef struct weir__ring_file {
  char *path;
  char *map;                               /* the file, and address space up to the most bytes that it may have */
  size_t bytes;                            /* of these */
  weir__ring_file_header *header;          /* in the map */
  atomic_uint texts_logged, stacks_logged; /* numbers up to these are in the log, or the log is full */
  weir__lock lock;                         /* guards what follows, and the log */
  int descriptor;                          /* to grow the file; -1 in the child of a fork */
  weir__file_id identity;
  struct {
    uint64_t bytes, most;       /* of all areas of the kind */
    weir__ring_file_area *last; /* NULL if there is none yet */
  } areas[WEIR__RING_AREAS];
  uint64_t chunks_most;               /* chunks that the file may have */
  uint64_t fresh;                     /* chunks that were given out */
  uint64_t fresh_in_last;             /* of these, in the last area */
  uint64_t taken[WEIR__RING_DEVICES]; /* chunks of each device */
  uint64_t next_sequence;
  weir__hash_map modules;              /* the hashes of those that are in the log */
  uint64_t clock_at;                   /* ticks: when the clock is to be read again */
  unsigned long long loads;            /* weir__images_loaded when modules were last logged */
  uint64_t since[WEIR__RING_DEVICES];  /* chunks that a device began since its last checkpoint */
  uint64_t blocks[WEIR__RING_DEVICES]; /* that the device had then */
  uint64_t interval;                   /* chunks between checkpoints; 0 for a fraction of the ring. Tests set it */
  weir__ring_file_due due;             /* NULL if there are no checkpoints */
  void *due_context;
  atomic_bool is_due[WEIR__RING_DEVICES]; /* a checkpoint was asked for and not begun */
  weir__mutex checkpoint_lock;            /* guards what follows; taken before all locks of the allocator */
  struct weir__ring_file_place {
    uint64_t sequence, at, bytes; /* as in the slot */
    uint64_t time;                /* of the state */
  } places[WEIR__RING_DEVICES][WEIR__RING_CHECKPOINTS];
  uint64_t next_checkpoint; /* its sequence */
  struct {
    uint64_t at, end;
  } rooms[WEIR__RING_ROOMS]; /* where checkpoints may lie */
  size_t room_count;
  char *draft; /* where a checkpoint is assembled */
  size_t draft_room;
  bool has_warned;                            /* that a checkpoint did not fit */
  atomic_bool warns_of_failure, warns_of_log; /* weir__ring_file_warn has something to say */
} weir__ring_file;

/* Fills in a header that is all zero: of this process, for a file that may grow to so many bytes. */
void weir__ring_file_describe(weir__ring_file_header *header, uint64_t bytes, int devices, const char *host,
                              int64_t rank);

/* Creates `path`, which must not exist, as a header that may grow to so many bytes. On failure returns NULL, with an
 * errno value in *why. */
weir__ring_file *weir__ring_file_create(const char *path, uint64_t bytes, int devices, const char *host, int64_t rank,
                                        int *why);

/* How a recording ended. Other threads may be recording at the exit of a process, so their last operations may be
 * incomplete, as they may be if it was killed. */
typedef enum weir__ring_file_end { WEIR__RING_KILLED, WEIR__RING_CLOSED, WEIR__RING_EXITED } weir__ring_file_end;

/* Closes the recording; the file stays. `file` may be NULL. */
void weir__ring_file_close(weir__ring_file *file);

/* Notes that recording has ended, in a process that runs on, with the file open. */
void weir__ring_file_stop(weir__ring_file *file);

/* Notes that the process exits. */
void weir__ring_file_note_exit(weir__ring_file *file);

/* In the child of a fork: puts private memory in the place of the file, so that the child cannot write to it. */
bool weir__ring_file_detach(weir__ring_file *file);

/* Logs what went wrong since the last call: a file that cannot grow, a log that is full. Called without locks. */
void weir__ring_file_warn(weir__ring_file *file);

/* How many entries there is room for, if the file can grow. */
uint64_t weir__ring_file_capacity(const weir__ring_file *file);

/* A chunk that was never used, for a device; NULL if there is none left for it. */
weir__chunk *weir__ring_file_chunk(weir__ring_file *file, int device);

/* Begins a chunk of a device: it has no entries, and is later than all that began before. The device keeps at most
 * `most` chunks. */
void weir__ring_file_begin(weir__ring_file *file, weir__chunk *chunk, int device, uint64_t most);

/* Continues a chunk with another writer: from here on it is later than all others, with all its entries. */
void weir__ring_file_resume(weir__ring_file *file, weir__chunk *chunk);

/* Logs settings, or the limit of a device, that hold from now on. Changes are recorded as long as the log has room. */
void weir__ring_file_log_settings(weir__ring_file *file, const char *conf);
void weir__ring_file_log_limit(weir__ring_file *file, int device, uint64_t bytes, double fraction);

/* Logs that a new pool belongs to a tag. */
void weir__ring_file_log_tag(weir__ring_file *file, int device, uint64_t first, uint64_t second, const char *name);

/* Logs all texts and stacks that existed before the call and are not in the log yet. */
void weir__ring_file_sync(weir__ring_file *file);

/* The state of a device with this many blocks was copied: from here on chunks count towards the next checkpoint. */
void weir__ring_file_cut(weir__ring_file *file, int device, uint64_t blocks);

/* Writes a checkpoint of a device, the state and what follows it in one piece, in place of the oldest ones. The
 * checkpoint_lock is held. false if there is no room for it. */
bool weir__ring_file_put(weir__ring_file *file, int device, const weir__ring_file_state *state, uint64_t bytes);

/* The size of the largest checkpoint that fits. */
uint64_t weir__ring_file_room(const weir__ring_file *file);

/* Logs what an entry with these numbers needs before it is written. `pool` is 0 if it is not interned. */
static inline void weir__ring_file_need(weir__ring_file *file, uint32_t stack, uint32_t context, uint32_t pool) {
  unsigned texts = atomic_load_explicit(&file->texts_logged, memory_order_acquire);
  if (context > texts || pool > texts || stack > atomic_load_explicit(&file->stacks_logged, memory_order_acquire))
    weir__ring_file_sync(file);
}
