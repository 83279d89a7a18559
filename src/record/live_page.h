/*
 * The live page: what a process says about its memory while it runs, in a file of shared memory.
 *
 * It is the header of a ring file (record/ring_file.h), which says whose it is, and two areas: one for requests of
 * other processes, and one with two copies of the accounts. A publisher writes the copies in turn, about once a second,
 * each under a higher sequence and with a checksum, as checkpoints are: a process that dies in the middle of writing
 * leaves the other copy whole.
 *
 * Page files lie in a folder that only the user can enter, one for each process: $XDG_RUNTIME_DIR/weir, else
 * /dev/shm/weir-UID, or the folder that WEIR_STATS_PAGE names. A process keeps a lock on its page, which the kernel
 * releases with the process, however it ends and in whatever namespace its id is valid. A page without that lock
 * belongs to a process that has ended, or that has closed all of its files: then its id and the time of its start
 * decide.
 *
 * What is read of a page was written by a process of the same user, and is checked all the same: a page may be stale,
 * cut off or forged.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record/ring_file.h"

/* What is counted for an account: name, whether it is a total that only rises, unit, and meaning. */
#define WEIR__PAGE_COUNTS(X)                                                                                           \
  X(ALLOCATED, allocated, false, "bytes", "Memory that the program has allocated and not freed")                       \
  X(REQUESTED, requested, false, "bytes", "The same without what rounding adds")                                       \
  X(RESERVED, reserved, false, "bytes", "Memory held from the driver")                                                 \
  X(WAITING, waiting, false, "bytes", "Memory that was freed and is still used by another stream")                     \
  X(SPLIT, split, false, "bytes", "Free memory in segments that are partly in use")                                    \
  X(PEAK_ALLOCATED, peak_allocated, false, "bytes", "The most memory allocated at a time, since the peaks were reset") \
  X(PEAK_RESERVED, peak_reserved, false, "bytes", "The most memory held at a time, since the peaks were reset")        \
  X(SOFT_LIMIT, soft_limit, false, "bytes", "The limit above which cached memory is given back")                       \
  X(HARD_LIMIT, hard_limit, false, "bytes", "The limit above which requests fail")                                     \
  X(OUTSIDE, outside, false, "bytes", "Memory of other libraries in the process, as far as it was reported")           \
  X(BLOCKS, blocks, false, "", "Allocated blocks")                                                                     \
  X(SEGMENTS, segments, false, "", "Segments held from the driver")                                                    \
  X(ALLOCATIONS, allocations, true, "", "Allocations")                                                                 \
  X(RATE, allocations_per_second, false, "", "Allocations in the last second")                                         \
  X(DRIVER_ALLOCATIONS, driver_allocations, true, "", "Segments that were obtained from the driver")                   \
  X(DRIVER_FREES, driver_frees, true, "", "Segments that were given back to the driver")                               \
  X(RETRIES, retries, true, "", "Requests that were tried again after cached memory was given back")                   \
  X(OOMS, ooms, true, "", "Requests that failed for lack of memory")

typedef enum weir__page_count {
#define X(id, ...) WEIR__PAGE_##id,
  WEIR__PAGE_COUNTS(X)
#undef X
      WEIR__PAGE_COUNT_COUNT
} weir__page_count;

typedef enum weir__page_row_kind { WEIR__PAGE_DEVICE, WEIR__PAGE_POOL, WEIR__PAGE_OTHER_POOLS } weir__page_row_kind;

/* An account. A count that is not known is absent: its bit is 0, and so is its number. */
typedef struct weir__page_row {
  uint32_t kind;      /* weir__page_row_kind */
  uint32_t device;    /* the index of a weir__page_device */
  uint32_t allocator; /* of the process, from 1 on: a process may have several */
  uint32_t known;     /* 1u << weir__page_count */
  uint64_t pool[2];   /* the id; {0, 0} for the default pool */
  char tag[64];       /* of the pool; "" if it has none */
  int64_t age_ms;     /* of the counts: how long before the copy was written they were read */
  uint64_t count[WEIR__PAGE_COUNT_COUNT];
} weir__page_row;

enum { WEIR__PAGE_SAMPLES = 60, WEIR__PAGE_WINDOW_MS = 5000 };

/* The levels of allocated bytes in a window of time, and the most that was reserved. */
typedef struct weir__page_sample {
  uint64_t least, most, reserved;
} weir__page_sample;

typedef struct weir__page_device {
  char name[64], uuid[48], bus[16]; /* bus: the PCI bus id */
  uint64_t total;                   /* bytes of memory */
  uint32_t is_shared;               /* other processes may have memory on it: a card of NVIDIA's */
  uint32_t sample_count;            /* complete windows, the newest last; at most WEIR__PAGE_SAMPLES */
  weir__page_sample samples[WEIR__PAGE_SAMPLES];
} weir__page_device;

enum { WEIR__PAGE_POOLS = 96, WEIR__PAGE_MAX_ROWS = 4096, WEIR__PAGE_MAX_BYTES = 16 << 20 };

/* A copy of the accounts: this, the devices, and the rows, each device row before those of its pools. */
typedef struct weir__page_copy {
  int64_t unix_ns; /* when it was written */
  uint32_t device_count, row_count;
  uint32_t period_ms;    /* how often it is written */
  uint32_t is_recording; /* an allocator keeps a history */
} weir__page_copy;

/* The area WEIR__RING_ACCOUNTS begins with two of these, each for a copy; see weir__ring_file_checksum. */
typedef struct weir__ring_file_slot weir__page_slot;

typedef enum weir__page_record_state {
  WEIR__PAGE_RECORD_IDLE,
  WEIR__PAGE_RECORD_BEING_ASKED,
  WEIR__PAGE_RECORD_ASKED,
  WEIR__PAGE_RECORD_RUNS,
  WEIR__PAGE_RECORD_REFUSED,
  WEIR__PAGE_RECORD_DONE,    /* by time, or because it was asked to stop */
  WEIR__PAGE_RECORD_SHORTAGE /* a request failed for lack of memory */
} weir__page_record_state;

enum { WEIR__PAGE_RECORD_PATH = 1024 };

/* The area WEIR__RING_REQUESTS: what another process of the user asks of this one. The other one claims it by setting
 * `state` from idle to being asked, fills in the rest, and sets it to asked; once it has read the outcome, it sets
 * idle. */
typedef struct weir__page_requests {
  struct {
    _Atomic uint32_t state; /* weir__page_record_state */
    _Atomic uint32_t stop;  /* 1 asks for the end */
    uint32_t seconds;       /* 0: until the process runs out of memory, or is asked to stop */
    uint32_t context;       /* weir_history_context */
    uint64_t bytes;         /* to which the file may grow */
    char path[WEIR__PAGE_RECORD_PATH];
    char refusal[128]; /* why it cannot be done */
  } record;
} weir__page_requests;

/* ---- Writing ---- */

typedef struct weir__live_page {
  char *path;
  char *map;
  size_t bytes;
  int descriptor; /* holds the lock; -1 if it was lost */
  weir__file_id identity;
  weir__ring_file_header *header;
  weir__page_requests *requests;
  weir__page_slot *slots;
  uint64_t room; /* bytes of a copy */
  uint64_t sequence;
} weir__live_page;

/* The folders in which pages of this user may lie, the one for new pages first: at most two. Returns their number, 0 if
 * pages are turned off. */
enum { WEIR__PAGE_FOLDERS = 2, WEIR__PAGE_PATH = 512 };
int weir__live_page_folders(char folders[WEIR__PAGE_FOLDERS][WEIR__PAGE_PATH]);

/* Creates the page of this process, and removes those of processes that have ended. NULL with the reason in *why, an
 * errno value; EPERM if the folder is not this user's alone. */
weir__live_page *weir__live_page_create(const char *folder, int devices, size_t rows, const char *host, int64_t rank,
                                        int *why);

/* Writes a copy. Rows that have no room are left out. */
void weir__live_page_write(weir__live_page *page, weir__page_copy copy, const weir__page_device *devices,
                           const weir__page_row *rows);

/* Removes the file. */
void weir__live_page_delete(weir__live_page *page);

/* In the child of a fork: forgets the page, which is the parent's. */
void weir__live_page_abandon(weir__live_page *page);

/* ---- Reading ---- */

typedef enum weir__page_life {
  WEIR__PAGE_ALIVE,
  WEIR__PAGE_ENDED,    /* the process has ended without removing it */
  WEIR__PAGE_STARTING, /* nothing was written yet */
  WEIR__PAGE_INVALID   /* not a page of this version, or damaged */
} weir__page_life;

/* A page at one moment. */
typedef struct weir__page_view {
  weir__page_life life;
  const char *fault; /* of an invalid page: a sentence part */
  char path[WEIR__PAGE_PATH];
  int64_t pid, rank;
  uint64_t process_start;
  bool is_elsewhere; /* its id is of another namespace: a container */
  char host[64];
  weir__page_copy copy;
  weir__page_device *devices; /* in `data`, as the rows are */
  weir__page_row *rows;
  void *data;
} weir__page_view;

/* Reads one page file. weir__page_view_clear frees what it holds. */
void weir__page_read(const char *path, weir__page_view *view);
void weir__page_view_clear(weir__page_view *view);

/* Checks and copies what a page file's bytes say, apart from the life of the process. `data` has whole words. */
void weir__page_parse(const void *data, size_t size, weir__page_view *view);

/* Calls `visit` for each page file of the folders, at most `most` of them. */
typedef void (*weir__page_visit_fn)(void *context, const char *path);
size_t weir__pages_visit(size_t most, weir__page_visit_fn visit, void *context);

/* ---- Requests to another process ---- */

typedef struct weir__page_mailbox {
  char *map;
  size_t bytes;
  weir__page_requests *requests;
} weir__page_mailbox;

/* Maps the requests of a page, to be written. false if it is no page, or not this user's. */
bool weir__page_mailbox_open(const char *path, weir__page_mailbox *mailbox);
void weir__page_mailbox_close(weir__page_mailbox *mailbox);
