/*
 * Memory that the ranks of a communicator share on the software device, and waiting for other ranks.
 *
 * The memory is a file without a name (memfd) of the process that made the unique id; other processes open it through
 * /proc, and it is gone with the last of them, however they end. It has a slot for each rank, memory for staging the
 * data of each rank, and a mailbox for each ordered pair of ranks.
 *
 * A rank announces its steps by its phase, a number that only grows; a barrier is a step that waits until the phases of
 * all ranks are as large. Each rank has a bell, a word that others change when it may have something to do, and on
 * which it sleeps. It wakes up from time to time to look for ranks that have died.
 */
#pragma once

#include "src/nccl.h"

enum {
  WEIR__NCCL_STAGE_BYTES = 256 << 10, /* of each rank, twice: for its data and for its results */
  WEIR__NCCL_MAIL_BYTES = 64 << 10    /* of a message in a mailbox */
};

typedef struct weir__nccl_header {
  char magic[16];
  uint64_t secret[2];      /* also in the id */
  _Atomic uint32_t ranks;  /* 0 until the first rank comes */
  _Atomic uint32_t failed; /* set by the rank that writes the error */
  _Atomic uint32_t has_error;
  int32_t status;
  char text[WEIR__NCCL_ERROR_SIZE];
} weir__nccl_header;

typedef enum weir__nccl_presence {
  WEIR__NCCL_ABSENT,
  WEIR__NCCL_PRESENT,
  WEIR__NCCL_GONE /* it has left, and needs no other rank */
} weir__nccl_presence;

typedef struct weir__nccl_slot {
  _Atomic int32_t process; /* 0 until it is claimed */
  int32_t device;          /* valid once it is present */
  uint64_t started;        /* when the process started, as the system counts; 0 until it is present, or if not known */
  _Atomic uint32_t presence;
  _Atomic uint32_t bell, is_sleeping;
  _Atomic uint64_t phase;
  _Atomic uint64_t completed; /* number of works */
  weir__nccl_work current;    /* set ahead of the phase */
  _Atomic uint32_t is_busy;   /* with `current` */
} weir__nccl_slot;

typedef struct weir__nccl_mailbox {
  _Atomic uint64_t sent, taken; /* pieces so far */
  uint64_t count;               /* of the whole message, like the type: set ahead of its first piece */
  int32_t dtype;
} weir__nccl_mailbox;

struct weir__nccl_ranks {
  int file;
  int rank, ranks;
  unsigned char *base; /* of the mapped file */
  size_t bytes;
  weir__nccl_header *header;
  int *processes; /* descriptors of the processes of other ranks; -1 until needed */
  uint64_t phase; /* of this rank */
};

/* Called between any two steps that other ranks can see, if a test has set it: a rank may die at each of them. */
extern void (*weir__nccl_on_step)(void);
static inline void weir__nccl_step(void) {
  if (weir__nccl_on_step)
    weir__nccl_on_step();
}

weir__nccl_slot *weir__nccl_slot_of(const weir__nccl_ranks *ranks, int rank);
unsigned char *weir__nccl_stage_of(const weir__nccl_ranks *ranks, int rank);
unsigned char *weir__nccl_result_of(const weir__nccl_ranks *ranks, int rank);
weir__nccl_mailbox *weir__nccl_mailbox_of(const weir__nccl_ranks *ranks, int from, int to);
unsigned char *weir__nccl_mail_of(const weir__nccl_mailbox *mailbox);

/* Wakes up a rank, or all others. */
void weir__nccl_ring(const weir__nccl_ranks *ranks, int rank);
void weir__nccl_ring_all(const weir__nccl_ranks *ranks);

/* "all_reduce of 10 float32 (sum)". */
void weir__nccl_describe(const weir__nccl_work *work, char *text, size_t size);

/* What a rank waits for. */
typedef struct weir__nccl_wait {
  weir_nccl_comm *comm;
  bool is_of_program; /* a thread of the program waits, not one of the device */
  void *context;
  /* Whether the rank need not wait any more. Called often. */
  bool (*is_done)(void *context);
  /* Does what can be done meanwhile; true if that was anything. May be NULL. */
  bool (*progress)(void *context);
  /* Marks the ranks that it waits for. */
  void (*list_missing)(void *context, bool *is_missing);
} weir__nccl_wait;

/* Waits. On failure the error of the communicator is set, and that of the other ranks too. */
weir_status weir__nccl_await(const weir__nccl_wait *wait);
