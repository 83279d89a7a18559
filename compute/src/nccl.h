/*
 * What the files of the collectives share. nccl.c has the public calls and groups, which a backend carries out:
 * nccl_library.c with libnccl, nccl_soft.c with kernels of the software device that use nccl_ranks.c.
 */
#pragma once

#include <stdatomic.h>

#include "src/compute.h"
#include "weir/compute/nccl.h"
#include "weir/event.h"

/* number, name, text. */
#define WEIR__NCCL_KIND_MAP(X)                                                                                         \
  X(0, ALL_REDUCE, "all_reduce")                                                                                       \
  X(1, REDUCE, "reduce")                                                                                               \
  X(2, BROADCAST, "broadcast")                                                                                         \
  X(3, ALL_GATHER, "all_gather")                                                                                       \
  X(4, REDUCE_SCATTER, "reduce_scatter")                                                                               \
  X(5, SEND, "send")                                                                                                   \
  X(6, RECV, "recv")

typedef enum weir__nccl_kind {
#define X(number, name, text) WEIR__NCCL_##name = number,
  WEIR__NCCL_KIND_MAP(X)
#undef X
} weir__nccl_kind;

const char *weir__nccl_kind_name(weir__nccl_kind kind);

static inline bool weir__nccl_is_reduction(weir__nccl_kind kind) {
  return kind == WEIR__NCCL_ALL_REDUCE || kind == WEIR__NCCL_REDUCE || kind == WEIR__NCCL_REDUCE_SCATTER;
}
static inline bool weir__nccl_is_mail(weir__nccl_kind kind) {
  return kind == WEIR__NCCL_SEND || kind == WEIR__NCCL_RECV;
}

/* A call of the program. */
typedef struct weir__nccl_call {
  const char *caller;
  weir_nccl_comm *comm;
  weir__nccl_kind kind;
  const void *send;
  void *recv;
  size_t count;
  weir_dtype dtype;
  weir_nccl_op op;
  int peer; /* root or peer; -1 where there is none */
  weir_stream stream;
} weir__nccl_call;

/* Backends. `prepare` and `join` create a rank: join waits for the others, for several ranks of a thread at once. If
 * join fails, the communicators stay, with that error, until `end`. */
typedef struct weir__nccl_backend {
  bool has_limited_work; /* work on the device ends by itself when the time limit has passed */
  bool ends_in_captures; /* a rank can end during a capture, which stays valid */
  weir_status (*version)(const char *caller, int *version);
  weir_status (*get_unique_id)(const char *caller, weir_nccl_unique_id *id);
  weir_status (*prepare)(const char *caller, weir_nccl_comm *comm);
  weir_status (*join)(const char *caller, weir_nccl_comm *const *comms, size_t count);
  /* All calls of a group, or one. */
  weir_status (*submit)(const char *caller, const weir__nccl_call *calls, size_t count);
  weir_status (*finalize)(const char *caller, weir_nccl_comm *comm);
  weir_status (*abort)(const char *caller, weir_nccl_comm *comm);
  weir_status (*async_error)(const char *caller, weir_nccl_comm *comm);
  weir_status (*get_memory)(const char *caller, weir_nccl_comm *comm, weir_nccl_memory *memory);
  weir_status (*suspend)(const char *caller, weir_nccl_comm *comm, bool resume);
  /* Frees what the backend has of it, after a finalize or with an error set. */
  void (*end)(weir_nccl_comm *comm);
} weir__nccl_backend;

extern const weir__nccl_backend weir__nccl_library, weir__nccl_soft;

enum { WEIR__NCCL_ERROR_SIZE = 1024 };

struct weir_nccl_comm {
  const weir__nccl_backend *backend;
  weir_nccl_unique_id id;
  unsigned long serial; /* its number in this process, for summaries */
  int ranks, rank, device;
  _Atomic uint64_t timeout_ns; /* its destruction may lower it */
  uint64_t destroy_timeout_ns;
  atomic_bool is_ending; /* it is being destroyed */
  struct weir_nccl_comm *next_deferred;
  int (*interrupt)(void *context);
  void *interrupt_context;
  int process;
  atomic_bool is_joined, is_suspended, has_ended; /* atomic: summaries of other threads read them */
  bool is_finalized;
  atomic_size_t holders; /* the program, until it destroys it, and what groups that have not ended are to do with it */
  pthread_mutex_t lock;  /* guards the error */
  _Atomic weir_status error;
  char error_text[WEIR__NCCL_ERROR_SIZE]; /* written once, before `error` */
  struct weir_nccl_comm *next;            /* in the list of live communicators */

  /* In the library, guards what it says; on the software device, one kernel of the communicator runs at a time. */
  pthread_mutex_t run_lock;

  /* The library's. */
  void *raw;           /* ncclComm_t; NULL once it was aborted. Guarded by run_lock */
  int calls;           /* of NCCL that are under way with it; guarded by run_lock */
  uint64_t free_bytes; /* of the device before the creation */
  uint64_t difference; /* of free memory by the creation */

  /* The software device's. */
  struct weir__nccl_ranks *shared;
  uint64_t number;                 /* by which kernels find it */
  unsigned references;             /* of the program and of running kernels; guarded by the lock of the registry */
  bool has_work;                   /* outside of captures: */
  weir_event *last;                /* behind the latest of it ... */
  weir_stream last_stream;         /* ... and its stream */
  unsigned long long last_capture; /* the latest one that has work of it, or 0 */
  weir_event *captured;            /* behind the latest work there ... */
  weir_stream captured_stream;     /* ... and its stream */
};

/* Sets the error of a communicator, unless it has one. Returns its error. */
weir_status weir__nccl_set_error(weir_nccl_comm *comm, weir_status status, const char *text);

/* Whether a wait for other ranks that began at this time of weir__monotonic_ns has exceeded the time limit. */
bool weir__nccl_has_timed_out(const weir_nccl_comm *comm, uint64_t begin_ns);

/* Called by a thread of the program while it waits: asks from time to time whether the wait is to end, and aborts the
 * communicator in that case. `*next_ns` is when it asks again, at first 0. */
void weir__nccl_ask_interrupt(weir_nccl_comm *comm, uint64_t *next_ns);

/* Fails with the error of a communicator, or returns WEIR_OK. */
weir_status weir__nccl_check_error(const char *caller, weir_nccl_comm *comm);

/* "ranks 0, 1 and 3", "rank 2". */
void weir__nccl_list_ranks(const bool *is_in, int ranks, char *text, size_t size);

/* ---- Arithmetic ---- */

/* out[i] = op over sources of source[i], in their order. `out` may be one of the sources. */
void weir__nccl_combine(weir_dtype dtype, weir_nccl_op op, const void *const *sources, int source_count, size_t count,
                        void *out);

/* Whether there is such a reduction. */
bool weir__nccl_can_reduce(weir_dtype dtype, weir_nccl_op op);

/* ---- Ranks of the software device (nccl_ranks.c) ---- */

/* Memory that the ranks of a communicator share, as one of them sees it. */
typedef struct weir__nccl_ranks weir__nccl_ranks;

/* A collective in the parameters of a kernel. */
typedef struct weir__nccl_work {
  uint64_t comm; /* the number of the communicator */
  uint64_t send, recv, count;
  int32_t kind, dtype, op, peer;
} weir__nccl_work;

weir_status weir__nccl_ranks_new_id(const char *caller, weir_nccl_unique_id *id);

/* Claims the place of a rank. */
weir_status weir__nccl_ranks_claim(const char *caller, weir_nccl_comm *comm, weir__nccl_ranks **ranks);

/* Waits until all ranks have claimed their places, until a deadline of weir__monotonic_ns. */
weir_status weir__nccl_ranks_join(const char *caller, weir_nccl_comm *comm);

/* Carries out the works of a batch, which are those of one communicator. Sets the communicator's error on failure. */
void weir__nccl_ranks_run(weir_nccl_comm *comm, const weir__nccl_work *works, size_t count);

/* Looks for failures of other ranks, and sets the communicator's error if there is one. */
void weir__nccl_ranks_check(weir_nccl_comm *comm);

/* Makes all ranks fail, unless they have failed already. */
void weir__nccl_ranks_fail(weir_nccl_comm *comm, weir_status status, const char *text);

/* Says that this rank needs no other any more, and frees its view of the memory. */
void weir__nccl_ranks_leave(weir__nccl_ranks *ranks);

uint64_t weir__nccl_ranks_bytes(const weir__nccl_ranks *ranks);

/* Closes the files of ids of this process. */
void weir__nccl_ranks_end(void);

/* Called at the shutdown of the runtime, after the communicators have ended. */
void weir__nccl_soft_end(void);
