/*
 * A stand-in for libnccl with communicators of one rank, whose collectives copy at once. The test that loads it finds
 * the variables below, counts calls and makes them fail. FAKE_NCCL_OLD has the calls of version 2.7 only.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_nccl.h"

fake_nccl_state fake_nccl = {.fail_at = -1};

typedef struct unique_id {
  char bytes[128];
} unique_id;

typedef struct comm {
  int ranks, rank, is_suspended, groups;
} comm;

/* Each call begins with this. */
static int begin(const char *name) {
  snprintf(fake_nccl.last, sizeof fake_nccl.last, "%s", name);
  return fake_nccl.calls++ == fake_nccl.fail_at ? fake_nccl.fail_with : 0;
}
#define BEGIN()                                                                                                        \
  int failed = begin(__func__);                                                                                        \
  if (failed)                                                                                                          \
  return failed

static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static comm *grouped; /* of the last collective in a group, until its end */

static void during(const char *name) {
  if (fake_nccl.during)
    fake_nccl.during(name);
}

static int copy(comm *c, const void *send, void *recv, size_t count, int type, int op) {
  during("collective");
  if (fake_nccl.depth)
    grouped = c;
  fake_nccl.type = type;
  fake_nccl.op = op;
  fake_nccl.count = count;
  if (send && recv)
    memmove(recv, send, count * sizes[type]);
  return fake_nccl.pending ? 7 : 0;
}

int ncclGetVersion(int *version) {
  BEGIN();
  *version = 22907;
  return 0;
}

int ncclGetUniqueId(unique_id *id) {
  BEGIN();
  memset(id, 5, sizeof *id);
  return 0;
}

static int make(comm **made, int ranks, int rank) {
  *made = calloc(1, sizeof **made);
  **made = (comm){ranks, rank, 0, 0};
  fake_nccl.live++;
  if (fake_nccl.resized)
    fake_nccl.resized(1);
  return 0;
}

int ncclCommInitRank(comm **made, int ranks, unique_id id, int rank) {
  BEGIN();
  (void)id;
  return make(made, ranks, rank);
}

int ncclCommGetAsyncError(comm *c, int *error) {
  BEGIN();
  (void)c;
  *error = fake_nccl.async_error;
  if (fake_nccl.pending) {
    fake_nccl.pending -= fake_nccl.pending != -1; /* -1 stays */
    *error = 7;
  }
  return 0;
}

static int end(comm *c) {
  fake_nccl.live--;
  if (fake_nccl.resized)
    fake_nccl.resized(-1);
  free(c);
  return 0;
}

/* What fails here is gone all the same. */
int ncclCommDestroy(comm *c) {
  int failed = begin(__func__);
  end(c);
  return failed;
}

int ncclCommAbort(comm *c) {
  int failed = begin(__func__);
  end(c);
  return failed;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, comm *c, void *stream) {
  BEGIN();
  (void)stream;
  return copy(c, send, recv, count, type, op);
}

int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, comm *c, void *stream) {
  BEGIN();
  (void)stream, (void)root;
  return copy(c, send, recv, count, type, op);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, comm *c, void *stream) {
  BEGIN();
  (void)stream, (void)root;
  return copy(c, send, recv, count, type, -1);
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, comm *c, void *stream) {
  BEGIN();
  (void)stream;
  return copy(c, send, recv, count, type, -1);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, comm *c, void *stream) {
  BEGIN();
  (void)stream;
  return copy(c, send, recv, count, type, op);
}

static const void *sent;

int ncclSend(const void *send, size_t count, int type, int peer, comm *c, void *stream) {
  BEGIN();
  (void)c, (void)stream, (void)peer, (void)count, (void)type;
  sent = send;
  return 0;
}

int ncclRecv(void *recv, size_t count, int type, int peer, comm *c, void *stream) {
  BEGIN();
  (void)stream, (void)peer;
  return copy(c, sent, recv, count, type, -1);
}

int ncclGroupStart(void) {
  BEGIN();
  fake_nccl.depth++;
  return 0;
}

int ncclGroupEnd(void) {
  fake_nccl.depth--;
  during("end of group");
  if (grouped) /* NCCL writes to the communicators of the group */
    grouped->groups++;
  grouped = NULL;
  BEGIN();
  return fake_nccl.pending ? 7 : 0;
}

const char *ncclGetErrorString(int result) {
  return result == 2 ? "unhandled system error" : result == 5 ? "invalid usage" : "another error";
}

#ifndef FAKE_NCCL_OLD
typedef struct config {
  size_t size;
  unsigned magic, version;
  int blocking;
} config;

int ncclCommInitRankConfig(comm **made, int ranks, unique_id id, int rank, config *given) {
  BEGIN();
  (void)id;
  if (given->magic != 0xcafebeef || given->version < 21400 || given->blocking || given->size < sizeof *given)
    return 4;
  make(made, ranks, rank);
  return 7;
}

int ncclCommFinalize(comm *c) {
  BEGIN();
  (void)c;
  return 0;
}

int ncclCommSuspend(comm *c, int flags) {
  BEGIN();
  c->is_suspended = 1;
  return flags == 1 ? 0 : 4;
}

int ncclCommResume(comm *c) {
  BEGIN();
  c->is_suspended = 0;
  return 0;
}

int ncclCommMemStats(comm *c, int stat, uint64_t *value) {
  BEGIN();
  const uint64_t values[] = {100 << 20, (uint64_t)c->is_suspended, 28 << 20, 128 << 20};
  *value = values[stat];
  return 0;
}

const char *ncclGetLastError(comm *c) {
  (void)c;
  return "details of the failure";
}
#endif
