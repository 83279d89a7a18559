/*
 * Collectives on GPUs: calls of libnccl, which is loaded at the first of them.
 *
 * Communicators are non-blocking where NCCL has that (2.14): a call that waits for other ranks then returns
 * ncclInProgress, and Weir polls until the time limit.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "src/libraries.h"
#include "src/nccl.h"

typedef int nccl_result;
enum {
  NCCL_SUCCESS = 0,
  NCCL_UNHANDLED_CUDA_ERROR = 1,
  NCCL_SYSTEM_ERROR = 2,
  NCCL_INTERNAL_ERROR = 3,
  NCCL_INVALID_ARGUMENT = 4,
  NCCL_INVALID_USAGE = 5,
  NCCL_REMOTE_ERROR = 6,
  NCCL_IN_PROGRESS = 7
};

/* The first fields of ncclConfig_t, in the layout of version 2.14; NCCL takes its defaults for later ones. */
typedef struct nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking;
} nccl_config;
enum { CONFIG_MAGIC = (int)0xcafebeef, CONFIG_VERSION = 21400 };

enum { STAT_SUSPENDABLE = 0, STAT_IS_SUSPENDED = 1, STAT_TOTAL = 3, SUSPEND_MEMORY = 1 };

/* name, whether it is required, parameters. */
#define NCCL_FUNCTIONS(X)                                                                                              \
  X(GetVersion, 1, (int *version))                                                                                     \
  X(GetUniqueId, 1, (weir_nccl_unique_id * id))                                                                        \
  X(CommInitRank, 1, (void **comm, int ranks, weir_nccl_unique_id id, int rank))                                       \
  X(CommInitRankConfig, 0, (void **comm, int ranks, weir_nccl_unique_id id, int rank, nccl_config *config))            \
  X(CommFinalize, 0, (void *comm))                                                                                     \
  X(CommDestroy, 1, (void *comm))                                                                                      \
  X(CommAbort, 1, (void *comm))                                                                                        \
  X(CommGetAsyncError, 1, (void *comm, nccl_result *error))                                                            \
  X(AllReduce, 1, (const void *, void *, size_t, int type, int op, void *comm, weir_cu_stream))                        \
  X(Reduce, 1, (const void *, void *, size_t, int type, int op, int root, void *comm, weir_cu_stream))                 \
  X(Broadcast, 1, (const void *, void *, size_t, int type, int root, void *comm, weir_cu_stream))                      \
  X(AllGather, 1, (const void *, void *, size_t, int type, void *comm, weir_cu_stream))                                \
  X(ReduceScatter, 1, (const void *, void *, size_t, int type, int op, void *comm, weir_cu_stream))                    \
  X(Send, 1, (const void *, size_t, int type, int peer, void *comm, weir_cu_stream))                                   \
  X(Recv, 1, (void *, size_t, int type, int peer, void *comm, weir_cu_stream))                                         \
  X(GroupStart, 1, (void))                                                                                             \
  X(GroupEnd, 1, (void))                                                                                               \
  X(CommSuspend, 0, (void *comm, int flags))                                                                           \
  X(CommResume, 0, (void *comm))                                                                                       \
  X(CommMemStats, 0, (void *comm, int stat, uint64_t *value))

static struct {
#define X(name, required, params) nccl_result(*name) params;
  NCCL_FUNCTIONS(X)
#undef X
  const char *(*GetErrorString)(nccl_result result);
  const char *(*GetLastError)(void *comm); /* NULL before 2.13 */
  bool is_loaded;
} nccl;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static weir_status load(const char *caller) {
  char reason[1400];
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&load_lock);
  if (!nccl.is_loaded) {
    void *library = weir__library_load("nccl", reason, sizeof reason);
    const char *missing = NULL;
    if (!library) {
      status = weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: %s", caller, reason);
    } else {
#define X(name, required, params)                                                                                      \
  *(void **)&nccl.name = dlsym(library, "nccl" #name);                                                                 \
  if ((required) && !nccl.name)                                                                                        \
    missing = missing ? missing : "nccl" #name;
      NCCL_FUNCTIONS(X)
#undef X
      *(void **)&nccl.GetErrorString = dlsym(library, "ncclGetErrorString");
      *(void **)&nccl.GetLastError = dlsym(library, "ncclGetLastError");
      if (!nccl.GetErrorString && !missing)
        missing = "ncclGetErrorString";
      if (missing)
        status = weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: libnccl has no %s: it is older than 2.7", caller, missing);
      nccl.is_loaded = !missing;
    }
  }
  pthread_mutex_unlock(&load_lock);
  return status;
}

/* ---- Results ---- */

static weir_status status_of(nccl_result result) {
  switch (result) {
  case NCCL_SUCCESS:
    return WEIR_OK;
  case NCCL_UNHANDLED_CUDA_ERROR:
    return WEIR_ERROR_DRIVER;
  case NCCL_SYSTEM_ERROR:
    return WEIR_ERROR_SYSTEM;
  case NCCL_INVALID_ARGUMENT:
  case NCCL_INVALID_USAGE:
    return WEIR_ERROR_INVALID_ARGUMENT;
  case NCCL_REMOTE_ERROR:
    return WEIR_ERROR_REMOTE;
  case NCCL_IN_PROGRESS:
    return WEIR_ERROR_NOT_READY;
  default:
    return WEIR_ERROR_DRIVER;
  }
}

/* "NCCL Error 5: invalid usage", as PyTorch writes it, with the call and NCCL's own details. */
static void describe(nccl_result result, const char *call, char *text, size_t size) {
  const char *details = nccl.GetLastError ? nccl.GetLastError(NULL) : NULL;
  snprintf(text, size, "NCCL Error %d: %s in %s%s%.600s", result, nccl.GetErrorString(result), call,
           details && *details ? ": " : "", details ? details : "");
}

static weir_status fail(const char *caller, nccl_result result, const char *call) {
  char text[WEIR__NCCL_ERROR_SIZE];
  if (result == NCCL_SUCCESS)
    return WEIR_OK;
  describe(result, call, text, sizeof text);
  return weir__fail(status_of(result), "%s: %s", caller, text);
}

/* ---- Calls, while another thread may abort the communicator, which frees it ---- */

static nccl_result ask(weir_nccl_comm *comm, nccl_result *result) {
  pthread_mutex_lock(&comm->run_lock);
  nccl_result asked = comm->raw ? nccl.CommGetAsyncError(comm->raw, result) : NCCL_REMOTE_ERROR;
  pthread_mutex_unlock(&comm->run_lock);
  return asked;
}

/* Around a call on a communicator or, in a group, until the group has ended. Returns NULL if it has been aborted. */
static void *begin_call(weir_nccl_comm *comm) {
  pthread_mutex_lock(&comm->run_lock);
  void *raw = comm->raw;
  comm->calls += raw != NULL;
  pthread_mutex_unlock(&comm->run_lock);
  return raw;
}

static void end_call(weir_nccl_comm *comm) {
  pthread_mutex_lock(&comm->run_lock);
  comm->calls--;
  pthread_mutex_unlock(&comm->run_lock);
}

/* Waits for calls that are under way, but not for long: before NCCL 2.23 they may block until other ranks come, and
 * only the abort ends them. */
static void wait_for_calls(weir_nccl_comm *comm) {
  uint64_t deadline = weir__monotonic_ns() + 500000000;
  for (;;) {
    pthread_mutex_lock(&comm->run_lock);
    bool is_idle = !comm->calls;
    pthread_mutex_unlock(&comm->run_lock);
    if (is_idle || weir__monotonic_ns() >= deadline)
      return;
    weir__sleep_ns(100000);
  }
}

/* Waits for a call that is in progress on a communicator, which fails if the call does. */
static weir_status settle(const char *caller, weir_nccl_comm *comm, nccl_result result, const char *call) {
  uint64_t begin = weir__monotonic_ns(), pause_ns = 1000, next_ns = 0;
  char text[WEIR__NCCL_ERROR_SIZE];
  while (result == NCCL_IN_PROGRESS) {
    nccl_result asked = ask(comm, &result);
    weir__nccl_ask_interrupt(comm, &next_ns);
    if (comm->error)
      return weir__nccl_check_error(caller, comm);
    if (asked)
      result = asked;
    if (result != NCCL_IN_PROGRESS)
      break;
    if (weir__nccl_has_timed_out(comm, begin)) {
      snprintf(text, sizeof text, "rank %d of %d has waited %.3g s for other ranks in %s", comm->rank, comm->ranks,
               (double)comm->timeout_ns / 1e9, call);
      weir__nccl_set_error(comm, WEIR_ERROR_TIMEOUT, text);
      return weir__nccl_check_error(caller, comm);
    }
    weir__sleep_ns(pause_ns);
    pause_ns = pause_ns < 1000000 ? pause_ns * 2 : pause_ns;
  }
  if (!result)
    return WEIR_OK;
  describe(result, call, text, sizeof text);
  weir__nccl_set_error(comm, status_of(result), text); /* unless it was aborted, which is the reason then */
  return weir__nccl_check_error(caller, comm);
}

/* ---- Creating ---- */

static weir_status version(const char *caller, int *number) {
  weir_status status = load(caller);
  int found;
  if (!status)
    status = fail(caller, nccl.GetVersion(&found), "ncclGetVersion");
  if (!status)
    *number = found;
  return status;
}

static weir_status get_unique_id(const char *caller, weir_nccl_unique_id *id) {
  weir_nccl_unique_id made;
  weir_status status = load(caller);
  if (!status)
    status = fail(caller, nccl.GetUniqueId(&made), "ncclGetUniqueId");
  if (!status)
    *id = made;
  return status;
}

static uint64_t free_bytes(int device) {
  uint64_t found = 0, total = 0;
  weir__on_device on;
  if (weir__compute_enter(__func__, device, &on))
    return 0;
  if (on.driver->MemGetInfo(on.driver, &found, &total))
    found = 0;
  weir__compute_leave(&on);
  return found;
}

static weir_status prepare(const char *caller, weir_nccl_comm *comm) {
  (void)comm;
  return load(caller);
}

/* NCCL takes the device that is current in the runtime API, which is that of the current context. */
static weir_status init_rank(const char *caller, weir_nccl_comm *comm) {
  weir__on_device on;
  weir_status status = weir__compute_enter(caller, comm->device, &on);
  if (status)
    return status;
  nccl_config config = {sizeof config, (unsigned)CONFIG_MAGIC, CONFIG_VERSION, 0};
  nccl_result result = nccl.CommInitRankConfig
                           ? nccl.CommInitRankConfig(&comm->raw, comm->ranks, comm->id, comm->rank, &config)
                           : nccl.CommInitRank(&comm->raw, comm->ranks, comm->id, comm->rank);
  weir__compute_leave(&on);
  return result == NCCL_IN_PROGRESS ? WEIR_OK : fail(caller, result, "ncclCommInitRank");
}

static weir_status join(const char *caller, weir_nccl_comm *const *comms, size_t count) {
  weir_status status = WEIR_OK;
  nccl_result result = NCCL_SUCCESS;
  for (size_t i = 0; i < count; i++)
    comms[i]->free_bytes = free_bytes(comms[i]->device);
  if (count > 1)
    status = fail(caller, nccl.GroupStart(), "ncclGroupStart");
  bool is_group = count > 1 && !status;
  for (size_t i = 0; i < count && !status; i++)
    status = init_rank(caller, comms[i]);
  if (is_group) {
    result = nccl.GroupEnd();
    if (!status && result != NCCL_IN_PROGRESS)
      status = fail(caller, result, "ncclGroupEnd");
  }
  for (size_t i = 0; i < count && !status; i++)
    if (comms[i]->raw)
      status = settle(caller, comms[i], NCCL_IN_PROGRESS, "ncclCommInitRank");
  for (size_t i = 0; i < count; i++) {
    uint64_t left = free_bytes(comms[i]->device);
    comms[i]->difference = comms[i]->free_bytes > left ? comms[i]->free_bytes - left : 0;
    if (status)
      weir__nccl_set_error(comms[i], status, weir_last_error());
  }
  return status;
}

/* ---- Collectives ---- */

/* NCCL's type, and how many of its elements one of Weir's is. Data that is only moved needs no type. */
static int type_of(weir_dtype dtype, bool is_reduction, size_t *factor) {
  enum { INT8 = 0, UINT8 = 1, INT32 = 2, INT64 = 4, FLOAT16 = 6, FLOAT32 = 7, FLOAT64 = 8, BFLOAT16 = 9 };
  *factor = 1;
  switch (dtype) {
  case WEIR_INT8:
    return INT8;
  case WEIR_INT32:
    return INT32;
  case WEIR_INT64:
    return INT64;
  case WEIR_FLOAT16:
    return FLOAT16;
  case WEIR_FLOAT32:
    return FLOAT32;
  case WEIR_FLOAT64:
    return FLOAT64;
  case WEIR_BFLOAT16:
    return BFLOAT16;
  case WEIR_COMPLEX64:
  case WEIR_COMPLEX128:
    *factor = 2;
    return dtype == WEIR_COMPLEX64 ? FLOAT32 : FLOAT64;
  case WEIR_INT16:
    *factor = is_reduction ? 1 : 2;
    return UINT8;
  case WEIR_UINT8:
  case WEIR_BOOL:
    break;
  }
  return UINT8;
}

static nccl_result call_nccl(const weir__nccl_call *call, void *comm, weir_cu_stream raw, const char **name) {
  size_t factor;
  int type = type_of(call->dtype, weir__nccl_is_reduction(call->kind), &factor);
  size_t count = call->count * factor;
  int op = call->dtype == WEIR_BOOL && call->op == WEIR_NCCL_SUM ? WEIR_NCCL_MAX : (int)call->op;
  switch (call->kind) {
  case WEIR__NCCL_ALL_REDUCE:
    *name = "ncclAllReduce";
    return nccl.AllReduce(call->send, call->recv, count, type, op, comm, raw);
  case WEIR__NCCL_REDUCE:
    *name = "ncclReduce";
    return nccl.Reduce(call->send, call->recv, count, type, op, call->peer, comm, raw);
  case WEIR__NCCL_BROADCAST:
    *name = "ncclBroadcast";
    return nccl.Broadcast(call->send, call->recv, count, type, call->peer, comm, raw);
  case WEIR__NCCL_ALL_GATHER:
    *name = "ncclAllGather";
    return nccl.AllGather(call->send, call->recv, count, type, comm, raw);
  case WEIR__NCCL_REDUCE_SCATTER:
    *name = "ncclReduceScatter";
    return nccl.ReduceScatter(call->send, call->recv, count, type, op, comm, raw);
  case WEIR__NCCL_SEND:
    *name = "ncclSend";
    return nccl.Send(call->send, count, type, call->peer, comm, raw);
  case WEIR__NCCL_RECV:
    break;
  }
  *name = "ncclRecv";
  return nccl.Recv(call->recv, count, type, call->peer, comm, raw);
}

/* A failing call leaves the ranks in different states, so the communicator has failed. In a group the call is under way
 * until its end. */
static weir_status submit_one(const char *caller, const weir__nccl_call *call, bool in_group, bool *is_underway) {
  weir_cu_stream raw;
  weir__on_device on;
  const char *name = "a call on it";
  *is_underway = false;
  weir_status status = weir_stream_raw(call->stream, &raw);
  if (!status)
    status = weir__compute_enter(caller, call->comm->device, &on);
  if (status)
    return weir__fail_as(caller, status);
  void *comm = begin_call(call->comm);
  *is_underway = comm != NULL;
  nccl_result result = comm ? call_nccl(call, comm, raw, &name) : NCCL_REMOTE_ERROR;
  weir__compute_leave(&on);
  if (in_group && result == NCCL_IN_PROGRESS)
    return WEIR_OK;
  if (!in_group && *is_underway)
    end_call(call->comm);
  return settle(caller, call->comm, result, name);
}

static weir_status submit(const char *caller, const weir__nccl_call *calls, size_t count) {
  bool is_underway;
  if (count == 1)
    return submit_one(caller, calls, false, &is_underway);
  char text[WEIR__NCCL_ERROR_SIZE];
  nccl_result result = nccl.GroupStart();
  weir_status status = fail(caller, result, "ncclGroupStart");
  size_t made = 0; /* calls, of which the last one may not be under way */
  for (is_underway = true; made < count && !status; made++)
    status = submit_one(caller, &calls[made], true, &is_underway);
  if (!result)
    result = nccl.GroupEnd();
  for (size_t i = 0; i < made; i++)
    if (i + 1 < made || is_underway)
      end_call(calls[i].comm);
  for (size_t i = 0; i < count && !status; i++)
    status = settle(caller, calls[i].comm, result, "ncclGroupEnd");
  /* None of the group's communicators can be used after a failure of one. */
  if (status)
    snprintf(text, sizeof text, "%s", weir__last_reason());
  for (size_t i = 0; i < count && status; i++)
    weir__nccl_set_error(calls[i].comm, status, text);
  return status;
}

/* ---- The end ---- */

static weir_status finalize(const char *caller, weir_nccl_comm *comm) {
  if (!nccl.CommFinalize)
    return WEIR_OK; /* ncclCommDestroy does it */
  void *raw = begin_call(comm);
  nccl_result result = raw ? nccl.CommFinalize(raw) : NCCL_REMOTE_ERROR;
  if (raw)
    end_call(comm);
  return settle(caller, comm, result, "ncclCommFinalize");
}

static weir_status abort_comm(const char *caller, weir_nccl_comm *comm) {
  char text[64];
  snprintf(text, sizeof text, "rank %d has aborted the communicator", comm->rank);
  weir__nccl_set_error(comm, WEIR_ERROR_REMOTE, text);
  pthread_mutex_lock(&comm->run_lock);
  void *raw = comm->raw;
  comm->raw = NULL; /* the call frees it */
  pthread_mutex_unlock(&comm->run_lock);
  if (!raw)
    return WEIR_OK;
  wait_for_calls(comm);
  return fail(caller, nccl.CommAbort(raw), "ncclCommAbort");
}

static weir_status async_error(const char *caller, weir_nccl_comm *comm) {
  nccl_result result = NCCL_SUCCESS;
  if (comm->error)
    return weir__nccl_check_error(caller, comm);
  nccl_result asked = ask(comm, &result);
  if (comm->error) /* aborted meanwhile */
    return weir__nccl_check_error(caller, comm);
  if (asked)
    return fail(caller, asked, "ncclCommGetAsyncError");
  return result == NCCL_IN_PROGRESS ? WEIR_OK : settle(caller, comm, result, "its work");
}

/* NCCL's memory manager may be turned off: then the difference remains. */
static nccl_result read_memory(weir_nccl_comm *comm, weir_nccl_memory *memory) {
  uint64_t is_suspended = 0, total = 0;
  nccl_result result = nccl.CommMemStats(comm->raw, STAT_TOTAL, &total);
  if (result == NCCL_INVALID_USAGE)
    return NCCL_SUCCESS;
  if (!result)
    result = nccl.CommMemStats(comm->raw, STAT_SUSPENDABLE, &memory->suspendable_bytes);
  if (!result)
    result = nccl.CommMemStats(comm->raw, STAT_IS_SUSPENDED, &is_suspended);
  memory->is_suspended = is_suspended != 0;
  if (is_suspended && total >= memory->suspendable_bytes)
    total -= memory->suspendable_bytes; /* NCCL's total includes what it has released */
  memory->device_bytes = total;
  memory->is_exact = 1;
  return result;
}

/* Any thread may ask, for a summary, while another one aborts the communicator, which frees its memory. */
static weir_status get_memory(const char *caller, weir_nccl_comm *comm, weir_nccl_memory *memory) {
  nccl_result result = NCCL_SUCCESS;
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&comm->run_lock);
  if (comm->raw) {
    memory->device_bytes = comm->difference;
    if (nccl.CommMemStats)
      result = read_memory(comm, memory);
    status = fail(caller, result, "ncclCommMemStats");
  }
  pthread_mutex_unlock(&comm->run_lock);
  return status;
}

static weir_status suspend(const char *caller, weir_nccl_comm *comm, bool resume) {
  if (!nccl.CommSuspend || !nccl.CommResume)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: libnccl has no ncclCommSuspend: it is older than 2.29.7", caller);
  void *raw = begin_call(comm);
  nccl_result result = !raw ? NCCL_REMOTE_ERROR : resume ? nccl.CommResume(raw) : nccl.CommSuspend(raw, SUSPEND_MEMORY);
  if (raw)
    end_call(comm);
  return settle(caller, comm, result, resume ? "ncclCommResume" : "ncclCommSuspend");
}

/* A communicator that has failed cannot be destroyed in order: that would wait for its work. */
static void end(weir_nccl_comm *comm) {
  if (!comm->raw)
    return;
  nccl_result result = comm->error ? nccl.CommAbort(comm->raw) : nccl.CommDestroy(comm->raw);
  if (result)
    weir__log(WEIR_LOG_ERROR, "rank %d of %d could not be destroyed: %s", comm->rank, comm->ranks,
              nccl.GetErrorString(result));
  comm->raw = NULL;
}

const weir__nccl_backend weir__nccl_library = {
    .version = version,
    .get_unique_id = get_unique_id,
    .prepare = prepare,
    .join = join,
    .submit = submit,
    .finalize = finalize,
    .abort = abort_comm,
    .async_error = async_error,
    .get_memory = get_memory,
    .suspend = suspend,
    .end = end,
};
