/*
 * The public calls of collectives: checks, groups, and the list of communicators.
 */
#include "src/nccl.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/environment.h"
#include "weir/graph.h"
#include "weir/snapshot.h"
#include "weir/soft.h"

static const double default_timeout_s = 600, longest_timeout_s = 1e6;
enum { INTERRUPT_NS = 100000000 }; /* between two questions whether to go on waiting */

/* Communicators that have not been destroyed. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static weir_nccl_comm *live;
static unsigned long serial; /* of the latest */

/* ---- Names ---- */

const char *weir_nccl_op_name(weir_nccl_op op) {
  switch (op) {
#define X(number, name, text)                                                                                          \
  case number:                                                                                                         \
    return text;
    WEIR_NCCL_OP_MAP(X)
#undef X
  }
  return NULL;
}

const char *weir__nccl_kind_name(weir__nccl_kind kind) {
  switch (kind) {
#define X(number, name, text)                                                                                          \
  case number:                                                                                                         \
    return text;
    WEIR__NCCL_KIND_MAP(X)
#undef X
  }
  return "?";
}

/* ---- Errors ---- */

weir_status weir__nccl_set_error(weir_nccl_comm *comm, weir_status status, const char *text) {
  pthread_mutex_lock(&comm->lock);
  bool is_first = !comm->error;
  if (is_first) {
    snprintf(comm->error_text, sizeof comm->error_text, "%s", text);
    comm->error = status;
  }
  pthread_mutex_unlock(&comm->lock);
  if (is_first && status != WEIR_ERROR_BAD_STATE)
    weir__log(WEIR_LOG_ERROR, "the communicator of rank %d of %d has failed: %s", comm->rank, comm->ranks, text);
  return comm->error;
}

weir_status weir__nccl_check_error(const char *caller, weir_nccl_comm *comm) {
  weir_status error = comm->error;
  return error ? weir__fail(error, "%s: %s", caller, comm->error_text) : WEIR_OK;
}

bool weir__nccl_has_timed_out(const weir_nccl_comm *comm, uint64_t begin_ns) {
  return weir__monotonic_ns() - begin_ns >= comm->timeout_ns;
}

void weir__nccl_ask_interrupt(weir_nccl_comm *comm, uint64_t *next_ns) {
  uint64_t now = comm->interrupt ? weir__monotonic_ns() : 0;
  if (!comm->interrupt || comm->error || now < *next_ns)
    return;
  bool is_first = !*next_ns;
  *next_ns = now + INTERRUPT_NS;
  if (!is_first && comm->interrupt(comm->interrupt_context) && comm->backend->abort(__func__, comm))
    weir__log(WEIR_LOG_DEBUG, "a communicator could not be aborted: %s", weir__last_reason());
}

/* ---- Backends ---- */

static weir_status find_backend(const char *caller, const weir__nccl_backend **backend) {
  weir__on_device on;
  weir_status status = weir__compute_enter(caller, -1, &on);
  if (status)
    return status;
  *backend =
      weir__driver_can(on.driver, WEIR_DRIVER_NVIDIA) ? &weir__nccl_library
      : weir__driver_can(on.driver, WEIR_DRIVER_HOST_KERNELS) && weir__driver_can(on.driver, WEIR_DRIVER_HOST_ACCESS)
          ? &weir__nccl_soft
          : NULL;
  weir__compute_leave(&on);
  return *backend ? WEIR_OK
                  : weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the driver \"%s\" has no collectives", caller,
                               on.driver->name);
}

weir_status weir_nccl_version(int *version) {
  const weir__nccl_backend *backend;
  WEIR__CHECK_ARGUMENT(version);
  weir_status status = find_backend(__func__, &backend);
  return status ? status : backend->version(__func__, version);
}

weir_status weir_nccl_get_unique_id(weir_nccl_unique_id *id) {
  const weir__nccl_backend *backend;
  WEIR__CHECK_ARGUMENT(id);
  weir_status status = find_backend(__func__, &backend);
  return status ? status : backend->get_unique_id(__func__, id);
}

/* ---- Ownership ---- */

static void unlist(weir_nccl_comm *comm) {
  pthread_mutex_lock(&list_lock);
  for (weir_nccl_comm **at = &live; *at; at = &(*at)->next)
    if (*at == comm) {
      *at = comm->next;
      break;
    }
  pthread_mutex_unlock(&list_lock);
}

/* Frees a communicator without waiting for its work. */
static void discard(weir_nccl_comm *comm) {
  unlist(comm);
  if (!comm->has_ended)
    comm->backend->end(comm);
  pthread_mutex_destroy(&comm->lock);
  pthread_mutex_destroy(&comm->run_lock);
  free(comm);
}

static weir_nccl_comm *hold(weir_nccl_comm *comm) {
  atomic_fetch_add_explicit(&comm->holders, 1, memory_order_relaxed);
  return comm;
}

static void end_comm(weir_nccl_comm *comm) {
  if (!comm->has_ended && !comm->is_finalized && !comm->error && comm->is_joined) {
    if (comm->timeout_ns > comm->destroy_timeout_ns)
      comm->timeout_ns = comm->destroy_timeout_ns;
    comm->is_ending = true;
    weir_status status = comm->backend->finalize("weir_nccl_destroy", comm);
    if (status)
      weir__nccl_set_error(comm, status, weir_last_error());
  }
  discard(comm);
}

static _Atomic(weir_nccl_comm *) deferred; /* to be ended after a capture; changed with list_lock */

static bool is_capturing(void) {
  int capturing;
  return !weir_current_stream_is_capturing(&capturing) && capturing;
}

static void defer(weir_nccl_comm *comm) {
  pthread_mutex_lock(&list_lock);
  comm->next_deferred = deferred;
  deferred = comm;
  pthread_mutex_unlock(&list_lock);
}

static void end_deferred(void) {
  if (!atomic_load_explicit(&deferred, memory_order_relaxed) || is_capturing())
    return;
  pthread_mutex_lock(&list_lock);
  weir_nccl_comm *first = deferred;
  deferred = NULL;
  pthread_mutex_unlock(&list_lock);
  for (weir_nccl_comm *comm = first, *next; comm; comm = next) {
    next = comm->next_deferred;
    if (comm->process == (int)getpid())
      end_comm(comm);
  }
}

/* The last holder destroys it: then the result is true. libnccl ends a communicator in a thread of its own, which would
 * invalidate a capture, such as that of a program whose garbage is collected meanwhile. */
static bool release(weir_nccl_comm *comm) {
  if (comm->process != (int)getpid() || atomic_fetch_sub_explicit(&comm->holders, 1, memory_order_acq_rel) > 1)
    return false;
  if (!comm->backend->ends_in_captures && is_capturing()) {
    defer(comm);
    return false;
  }
  end_comm(comm);
  return true;
}

/* ---- Groups ---- */

/* Of a thread; freed when the group ends. It holds its communicators until then, in case the program destroys them. */
typedef struct group {
  weir__nccl_call *calls;
  size_t call_count, call_room;
  weir_nccl_comm **inits; /* that are to be joined */
  size_t init_count, init_room;
  weir_status status; /* of the first call that failed */
  char text[WEIR__NCCL_ERROR_SIZE];
} group;

static _Thread_local int depth;
static _Thread_local group *current;

weir_status weir_nccl_group_start(void) {
  if (!current) {
    current = calloc(1, sizeof *current);
    if (!current)
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the group", __func__);
  }
  depth++;
  return WEIR_OK;
}

/* Notes that a call of the group failed. */
static weir_status note(weir_status status) {
  if (status && current && !current->status) {
    current->status = status;
    snprintf(current->text, sizeof current->text, "%s", weir_last_error());
  }
  return status;
}

/* All calls of a group are of one backend. */
static weir_status end_group(const char *caller, const group *g) {
  if (g->status) {
    for (size_t i = 0; i < g->init_count; i++)
      weir__nccl_set_error(g->inits[i], g->status, g->text);
    return weir__fail(g->status, "%s: a call in the group failed: %s", caller, g->text);
  }
  weir_status status = WEIR_OK;
  if (g->init_count) {
    status = g->inits[0]->backend->join(caller, g->inits, g->init_count);
    for (size_t i = 0; i < g->init_count; i++)
      g->inits[i]->is_joined = !status;
  }
  if (!status && g->call_count)
    status = g->calls[0].comm->backend->submit(caller, g->calls, g->call_count);
  return status;
}

weir_status weir_nccl_group_end(void) {
  if (!depth)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: there is no group; call weir_nccl_group_start first", __func__);
  if (--depth)
    return WEIR_OK;
  group *g = current;
  current = NULL;
  weir_status status = end_group(__func__, g);
  char *error = status ? strdup(weir_last_error()) : NULL;
  bool has_destroyed = false;
  for (size_t i = 0; i < g->call_count; i++)
    has_destroyed |= release(g->calls[i].comm);
  for (size_t i = 0; i < g->init_count; i++)
    has_destroyed |= release(g->inits[i]);
  if (error && has_destroyed) /* which may have set another one */
    weir__fail(status, "%s", error);
  free(error);
  free(g->calls);
  free(g->inits);
  free(g);
  return status;
}

/* ---- Communicators ---- */

void weir_nccl_options_init(weir_nccl_options *options) {
  if (options)
    *options = (weir_nccl_options){.size = sizeof *options};
}

static weir_status check_seconds(const char *caller, const char *name, double seconds) {
  return seconds >= 0 && seconds <= longest_timeout_s
             ? WEIR_OK
             : weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is %g; expected 0, or up to %g seconds", caller, name,
                          seconds, longest_timeout_s);
}

static weir_status read_timeout(const char *caller, double *seconds) {
  char text[WEIR__TEXT_SIZE];
  double by_default = default_timeout_s;
  if (*seconds == 0 && !weir__compute_env_number(WEIR__ENV_NCCL_TIMEOUT, &by_default))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s", caller,
                      weir__compute_env_expected(WEIR__ENV_NCCL_TIMEOUT, text));
  if (*seconds == 0)
    *seconds = by_default;
  return check_seconds(caller, "timeout_s", *seconds);
}

/* Reports the memory of communicators; see weir_outside_memory_add. NCCL is asked each time, as it allocates memory
 * when it is first needed. */
static void report_memory(void *context, int device, weir_outside_memory_fn report, void *report_context) {
  (void)context;
  pthread_mutex_lock(&list_lock);
  for (weir_nccl_comm *comm = live; comm; comm = comm->next) {
    weir_nccl_memory memory;
    weir_nccl_memory_init(&memory);
    if (comm->device != device || comm->has_ended || !comm->is_joined || comm->process != (int)getpid() ||
        comm->backend->get_memory(__func__, comm, &memory) || !memory.device_bytes)
      continue;
    char owner[96];
    snprintf(owner, sizeof owner, "NCCL communicator %lu, rank %d of %d%s", comm->serial, comm->rank, comm->ranks,
             memory.is_suspended ? ", suspended" : "");
    report(report_context,
           &(weir_outside_memory){sizeof(weir_outside_memory), owner, memory.device_bytes, memory.is_exact});
  }
  pthread_mutex_unlock(&list_lock);
}

/* A communicator that has not been joined, in the list. */
static weir_status make_comm(const char *caller, const weir_nccl_unique_id *id, int ranks, int rank,
                             const weir_nccl_options *given, weir_nccl_comm **comm) {
  const weir__nccl_backend *backend;
  weir_nccl_options options;
  weir_nccl_options_init(&options);
  if (given && !given->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: options.size is 0; call weir_nccl_options_init", caller);
  if (given)
    memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: rank %d of %d ranks; expected a rank from 0 to ranks - 1",
                      caller, rank, ranks);
  int device;
  end_deferred();
  weir_status status = read_timeout(caller, &options.timeout_s);
  if (!status)
    status = check_seconds(caller, "destroy_timeout_s", options.destroy_timeout_s);
  if (options.destroy_timeout_s == 0)
    options.destroy_timeout_s = options.timeout_s;
  if (!status)
    status = find_backend(caller, &backend);
  if (!status)
    status = weir_device_get_current(&device);
  if (status)
    return weir__fail_as(caller, status);
  weir_nccl_comm *made = calloc(1, sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the communicator", caller);
  *made = (weir_nccl_comm){.backend = backend,
                           .id = *id,
                           .ranks = ranks,
                           .rank = rank,
                           .device = device,
                           .timeout_ns = (uint64_t)(options.timeout_s * 1e9),
                           .destroy_timeout_ns = (uint64_t)(options.destroy_timeout_s * 1e9),
                           .interrupt = options.interrupt,
                           .interrupt_context = options.interrupt_context,
                           .process = (int)getpid(),
                           .holders = 1};
  pthread_mutex_init(&made->lock, NULL);
  pthread_mutex_init(&made->run_lock, NULL);
  status = backend->prepare(caller, made);
  if (status) {
    free(made);
    return status;
  }
  if (weir_outside_memory_add(report_memory, NULL))
    weir__log(WEIR_LOG_DEBUG, "memory of communicators is not in summaries");
  pthread_mutex_lock(&list_lock);
  made->serial = ++serial;
  made->next = live;
  live = made;
  pthread_mutex_unlock(&list_lock);
  *comm = made;
  return WEIR_OK;
}

weir_status weir_nccl_init_rank(const weir_nccl_unique_id *id, int ranks, int rank, const weir_nccl_options *options,
                                weir_nccl_comm **comm) {
  WEIR__CHECK_ARGUMENT(id);
  WEIR__CHECK_ARGUMENT(comm);
  weir_nccl_comm *made;
  if (current && !WEIR__RESERVE(current->inits, current->init_room, current->init_count + 1))
    return note(weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the group", __func__));
  weir_status status = note(make_comm(__func__, id, ranks, rank, options, &made));
  if (status)
    return status;
  if (current) {
    current->inits[current->init_count++] = hold(made);
  } else {
    status = made->backend->join(__func__, &made, 1);
    made->is_joined = !status;
  }
  if (status)
    discard(made);
  else
    *comm = made;
  return status;
}

weir_status weir_nccl_init_all(int count, const int *devices, const weir_nccl_options *options,
                               weir_nccl_comm **comms) {
  WEIR__CHECK_ARGUMENT(comms);
  if (count < 1 || count > WEIR_MAX_DEVICES)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: count is %d; expected 1 to %d", __func__, count,
                      WEIR_MAX_DEVICES);
  if (current)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: not allowed in a group", __func__);
  for (int i = 0; devices && i < count; i++)
    for (int k = 0; k < i; k++)
      if (devices[i] == devices[k])
        return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                          "%s: Duplicate GPU detected : rank %d and rank %d both on device %d", __func__, i, k,
                          devices[i]);
  weir_nccl_unique_id id;
  weir_nccl_comm *made[WEIR_MAX_DEVICES];
  int ready = 0;
  weir_status status = weir_nccl_get_unique_id(&id);
  for (; ready < count && !status; ready += !status) {
    weir__on_device on;
    status = weir__compute_enter(__func__, devices ? devices[ready] : ready, &on);
    if (status)
      break;
    status = make_comm(__func__, &id, count, ready, options, &made[ready]);
    weir__compute_leave(&on);
  }
  if (!status)
    status = made[0]->backend->join(__func__, made, (size_t)count);
  for (int i = 0; i < ready; i++)
    if (status) {
      discard(made[i]);
    } else {
      made[i]->is_joined = true;
      comms[i] = made[i];
    }
  return weir__fail_as(__func__, status);
}

/* A communicator that calls can use. */
static weir_status check_comm(const char *caller, weir_nccl_comm *comm) {
  if (!comm)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: comm is NULL", caller);
  if (comm->process != (int)getpid())
    return weir__fail(WEIR_ERROR_BAD_FORK, "%s: the communicator belongs to process %d, which forked this one", caller,
                      comm->process);
  if (comm->has_ended)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the runtime of the communicator has been shut down", caller);
  if (!comm->is_joined && !comm->error)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the group that creates the communicator has not ended", caller);
  return WEIR_OK;
}

static weir_status check_usable(const char *caller, weir_nccl_comm *comm) {
  weir_status status = check_comm(caller, comm);
  if (!status)
    status = weir__nccl_check_error(caller, comm);
  if (!status && comm->is_finalized)
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: the communicator has been finalized", caller);
  return status;
}

static weir_status check_not_suspended(const char *caller, const weir_nccl_comm *comm) {
  return comm->is_suspended
             ? weir__fail(WEIR_ERROR_BAD_STATE, "%s: the communicator is suspended; resume it first", caller)
             : WEIR_OK;
}

static weir_status check_no_group(const char *caller) {
  return current ? weir__fail(WEIR_ERROR_BAD_STATE, "%s: not allowed in a group", caller) : WEIR_OK;
}

weir_status weir_nccl_finalize(weir_nccl_comm *comm) {
  weir_status status = check_no_group(__func__);
  if (!status)
    status = check_usable(__func__, comm);
  if (status)
    return status;
  status = comm->backend->finalize(__func__, comm);
  if (!status)
    status = weir__nccl_check_error(__func__, comm);
  comm->is_finalized = !status;
  return status;
}

void weir_nccl_destroy(weir_nccl_comm *comm) {
  if (comm)
    release(comm);
  end_deferred();
}

weir_status weir_nccl_abort(weir_nccl_comm *comm) {
  weir_status status = check_comm(__func__, comm);
  return status ? status : comm->backend->abort(__func__, comm); /* also with an error: its work may still be waiting */
}

weir_status weir_nccl_async_error(weir_nccl_comm *comm) {
  weir_status status = check_comm(__func__, comm);
  return status ? status : comm->backend->async_error(__func__, comm);
}

/* In stepped time only a call that waits makes progress. Where the driver cannot say, as when it is wrapped, it may
 * be. */
static bool is_stepped(weir_stream stream) {
  weir_driver *driver;
  weir_cu_stream raw;
  return weir_get_driver(&driver) || weir_stream_raw(stream, &raw) ||
         weir_soft_step(driver, raw, 0, NULL) != WEIR_ERROR_BAD_STATE;
}

weir_status weir_nccl_synchronize(weir_nccl_comm *comm, weir_stream stream) {
  weir_status status = check_comm(__func__, comm);
  if (status)
    return status;
  bool is_limited = comm->backend->has_limited_work;
  if (is_limited && (!comm->interrupt || is_stepped(stream))) {
    status = weir_stream_synchronize(stream);
    return status ? weir__fail_as(__func__, status) : weir__nccl_check_error(__func__, comm);
  }
  uint64_t begin = weir__monotonic_ns(), pause_ns = 1000, next_ns = 0;
  while ((status = weir_stream_query(stream)) == WEIR_ERROR_NOT_READY) {
    weir__nccl_ask_interrupt(comm, &next_ns);
    status = weir_nccl_async_error(comm);
    if (status)
      return weir__fail_as(__func__, status);
    if (!is_limited && weir__nccl_has_timed_out(comm, begin)) {
      char text[128];
      snprintf(text, sizeof text, "rank %d has waited %.3g s for its stream", comm->rank,
               (double)comm->timeout_ns / 1e9);
      weir__nccl_set_error(comm, WEIR_ERROR_TIMEOUT, text);
      comm->backend->abort(__func__, comm);
      return weir__nccl_check_error(__func__, comm);
    }
    weir__sleep_ns(pause_ns);
    pause_ns = pause_ns < 1000000 ? pause_ns * 2 : pause_ns;
  }
  return status ? weir__fail_as(__func__, status) : weir_nccl_async_error(comm);
}

weir_status weir_nccl_count(const weir_nccl_comm *comm, int *ranks) {
  WEIR__CHECK_ARGUMENT(comm);
  WEIR__CHECK_ARGUMENT(ranks);
  *ranks = comm->ranks;
  return WEIR_OK;
}

weir_status weir_nccl_rank(const weir_nccl_comm *comm, int *rank) {
  WEIR__CHECK_ARGUMENT(comm);
  WEIR__CHECK_ARGUMENT(rank);
  *rank = comm->rank;
  return WEIR_OK;
}

weir_status weir_nccl_device(const weir_nccl_comm *comm, int *device) {
  WEIR__CHECK_ARGUMENT(comm);
  WEIR__CHECK_ARGUMENT(device);
  *device = comm->device;
  return WEIR_OK;
}

void *weir_nccl_raw(const weir_nccl_comm *comm) { return comm ? comm->raw : NULL; }

/* ---- Collectives ---- */

static weir_status check_call(const weir__nccl_call *call) {
  const char *caller = call->caller;
  weir_status status = check_usable(caller, call->comm);
  if (!status)
    status = check_not_suspended(caller, call->comm);
  if (status)
    return status;
  if (!weir_dtype_size(call->dtype))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: dtype is %d, which is not a type", caller, (int)call->dtype);
  if (!weir_nccl_op_name(call->op))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: op is %d, which is not an operation", caller, (int)call->op);
  if (weir__nccl_is_reduction(call->kind) && !weir__nccl_can_reduce(call->dtype, call->op))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: NCCL cannot compute the %s of %s", caller,
                      weir_nccl_op_name(call->op), weir_dtype_name(call->dtype));
  bool has_peer =
      call->kind == WEIR__NCCL_REDUCE || call->kind == WEIR__NCCL_BROADCAST || weir__nccl_is_mail(call->kind);
  if (has_peer && (call->peer < 0 || call->peer >= call->comm->ranks))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: rank %d does not exist: the communicator has %d", caller,
                      call->peer, call->comm->ranks);
  if (call->stream.device != call->comm->device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the stream is of device %d, and the communicator of device %d",
                      caller, call->stream.device, call->comm->device);
  bool is_peer = call->peer == call->comm->rank;
  bool has_send = call->kind != WEIR__NCCL_RECV && (call->kind != WEIR__NCCL_BROADCAST || is_peer);
  bool has_recv = call->kind != WEIR__NCCL_SEND && (call->kind != WEIR__NCCL_REDUCE || is_peer);
  if (call->count && ((has_send && !call->send) || (has_recv && !call->recv)))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", caller, has_send && !call->send ? "send" : "recv");
  if (call->count > SIZE_MAX / 16 / (size_t)call->comm->ranks)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: count is %zu, which is more than any memory has", caller,
                      call->count);
  return WEIR_OK;
}

static weir_status make_call(const weir__nccl_call *call) {
  weir_status status = check_call(call);
  if (status)
    return note(status);
  if (!current)
    return call->comm->backend->submit(call->caller, call, 1);
  if (!WEIR__RESERVE(current->calls, current->call_room, current->call_count + 1))
    return note(weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the group", call->caller));
  current->calls[current->call_count++] = *call;
  hold(call->comm);
  return WEIR_OK;
}

weir_status weir_nccl_all_reduce(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_op op,
                                 weir_nccl_comm *comm, weir_stream stream) {
  return make_call(&(weir__nccl_call){__func__, comm, WEIR__NCCL_ALL_REDUCE, send, recv, count, dtype, op, -1, stream});
}

weir_status weir_nccl_reduce(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_op op, int root,
                             weir_nccl_comm *comm, weir_stream stream) {
  return make_call(&(weir__nccl_call){__func__, comm, WEIR__NCCL_REDUCE, send, recv, count, dtype, op, root, stream});
}

weir_status weir_nccl_broadcast(const void *send, void *recv, size_t count, weir_dtype dtype, int root,
                                weir_nccl_comm *comm, weir_stream stream) {
  return make_call(
      &(weir__nccl_call){__func__, comm, WEIR__NCCL_BROADCAST, send, recv, count, dtype, WEIR_NCCL_SUM, root, stream});
}

weir_status weir_nccl_all_gather(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_comm *comm,
                                 weir_stream stream) {
  return make_call(
      &(weir__nccl_call){__func__, comm, WEIR__NCCL_ALL_GATHER, send, recv, count, dtype, WEIR_NCCL_SUM, -1, stream});
}

weir_status weir_nccl_reduce_scatter(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_op op,
                                     weir_nccl_comm *comm, weir_stream stream) {
  return make_call(
      &(weir__nccl_call){__func__, comm, WEIR__NCCL_REDUCE_SCATTER, send, recv, count, dtype, op, -1, stream});
}

weir_status weir_nccl_send(const void *send, size_t count, weir_dtype dtype, int peer, weir_nccl_comm *comm,
                           weir_stream stream) {
  return make_call(
      &(weir__nccl_call){__func__, comm, WEIR__NCCL_SEND, send, NULL, count, dtype, WEIR_NCCL_SUM, peer, stream});
}

weir_status weir_nccl_recv(void *recv, size_t count, weir_dtype dtype, int peer, weir_nccl_comm *comm,
                           weir_stream stream) {
  return make_call(
      &(weir__nccl_call){__func__, comm, WEIR__NCCL_RECV, NULL, recv, count, dtype, WEIR_NCCL_SUM, peer, stream});
}

/* ---- Memory ---- */

void weir_nccl_memory_init(weir_nccl_memory *memory) {
  if (memory)
    *memory = (weir_nccl_memory){.size = sizeof *memory};
}

weir_status weir_nccl_get_memory(weir_nccl_comm *comm, weir_nccl_memory *memory) {
  WEIR__CHECK_ARGUMENT(memory);
  if (!memory->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: memory.size is 0; call weir_nccl_memory_init", __func__);
  weir_status status = check_comm(__func__, comm);
  weir_nccl_memory found;
  weir_nccl_memory_init(&found);
  if (!status)
    status = comm->backend->get_memory(__func__, comm, &found);
  if (status)
    return status;
  found.size = memory->size < sizeof found ? memory->size : sizeof found;
  memcpy(memory, &found, found.size);
  return WEIR_OK;
}

static weir_status set_suspended(const char *caller, weir_nccl_comm *comm, bool is_suspended) {
  weir_status status = check_usable(caller, comm);
  if (!status)
    status = comm->backend->suspend(caller, comm, !is_suspended);
  if (!status)
    comm->is_suspended = is_suspended;
  return status;
}

weir_status weir_nccl_suspend(weir_nccl_comm *comm) { return set_suspended(__func__, comm, true); }
weir_status weir_nccl_resume(weir_nccl_comm *comm) { return set_suspended(__func__, comm, false); }

/* ---- The end of the runtime ---- */

void weir__nccl_end(void) {
  pthread_mutex_lock(&list_lock);
  for (weir_nccl_comm *comm = live; comm; comm = comm->next) {
    if (comm->has_ended || comm->process != (int)getpid())
      continue;
    weir__nccl_set_error(comm, WEIR_ERROR_BAD_STATE, "the runtime has been shut down");
    comm->backend->end(comm);
    comm->has_ended = true;
  }
  pthread_mutex_unlock(&list_lock);
  weir__nccl_soft_end();
}
