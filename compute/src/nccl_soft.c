/*
 * Collectives on the software device: kernels that meet in shared memory (nccl_run.c).
 *
 * Each communicator's calls become one launch, on the stream of its first call; other streams of a group wait for it. A
 * kernel waits for those of the other ranks, so they need to run at the same time. If all ranks of a communicator are
 * in one group, they are one launch instead, in which each rank has a thread: that works in stepped time too.
 *
 * Kernels have a copy of their parameters and know the communicator by its number, so a captured collective can be
 * launched again at any time, even after the communicator has gone.
 */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/nccl.h"
#include "weir/graph.h"
#include "weir/soft.h"

/* The calls of NCCL that this has. */
enum { SOFT_VERSION = 22809 };

/* ---- Communicators by number ---- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the registry and references */
static weir_nccl_comm **registry;
static size_t registered, registry_room;
static uint64_t next_number;

static weir_status enter_registry(const char *caller, weir_nccl_comm *comm) {
  pthread_mutex_lock(&registry_lock);
  bool is_added = WEIR__RESERVE(registry, registry_room, registered + 1);
  if (is_added) {
    comm->number = ++next_number;
    comm->references = 1;
    registry[registered++] = comm;
  }
  pthread_mutex_unlock(&registry_lock);
  return is_added ? WEIR_OK
                  : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the communicator", caller);
}

/* With a reference; NULL if it has been destroyed. */
static weir_nccl_comm *find_comm(uint64_t number) {
  weir_nccl_comm *found = NULL;
  pthread_mutex_lock(&registry_lock);
  for (size_t i = 0; i < registered && !found; i++)
    if (registry[i]->number == number)
      found = registry[i];
  if (found)
    found->references++;
  pthread_mutex_unlock(&registry_lock);
  return found;
}

static void drop_comm(weir_nccl_comm *comm) {
  pthread_mutex_lock(&registry_lock);
  comm->references--;
  pthread_mutex_unlock(&registry_lock);
}

/* Takes it out of the registry, and waits for kernels that use it, which end at once: the communicator has an error, or
 * its work is done. */
static void leave_registry(weir_nccl_comm *comm) {
  pthread_mutex_lock(&registry_lock);
  for (size_t i = 0; i < registered; i++)
    if (registry[i] == comm)
      registry[i] = registry[--registered];
  if (!registered) {
    free(registry);
    registry = NULL;
    registry_room = 0;
  }
  while (comm->references > 1) {
    pthread_mutex_unlock(&registry_lock);
    sched_yield();
    pthread_mutex_lock(&registry_lock);
  }
  pthread_mutex_unlock(&registry_lock);
}

/* ---- Kernels ---- */

/* The first parameter of a kernel. */
typedef struct batch {
  uint64_t count;
  weir__nccl_work works[];
} batch;

static const size_t room_of[] = {1, 8, 64, 512, 4096};
enum { SIZES = WEIR_COUNT_OF(room_of) };
#define BATCH_BYTES(room) (sizeof(batch) + (room) * sizeof(weir__nccl_work))

/* The works of one communicator. */
typedef struct share {
  const weir__nccl_work *works;
  size_t count;
} share;

static void *run_share(void *argument) {
  const share *s = argument;
  weir_nccl_comm *comm = find_comm(s->works[0].comm);
  if (!comm) {
    weir__log(WEIR_LOG_ERROR, "a graph has launched %s of a communicator that was destroyed",
              weir__nccl_kind_name((weir__nccl_kind)s->works[0].kind));
    return NULL;
  }
  if (!comm->error)
    weir__nccl_ranks_run(comm, s->works, s->count);
  drop_comm(comm);
  return NULL;
}

/* A thread that cannot be started fails its rank, so that the others do not wait for it. */
static void fail_share(const share *s) {
  weir_nccl_comm *comm = find_comm(s->works[0].comm);
  if (comm) {
    weir__nccl_ranks_fail(comm, WEIR_ERROR_SYSTEM, "no thread could be started for a rank");
    drop_comm(comm);
  }
}

/* The works of a communicator are next to each other. */
static weir_cu_result run_batch(const weir_soft_launch *launch) {
  const batch *b = launch->params[0];
  share shares[WEIR_NCCL_MAX_SOFT_RANKS];
  pthread_t threads[WEIR_NCCL_MAX_SOFT_RANKS];
  bool is_started[WEIR_NCCL_MAX_SOFT_RANKS] = {false};
  size_t count = 0;
  for (size_t i = 0; i < b->count; i++)
    if (i && b->works[i].comm == b->works[i - 1].comm)
      shares[count - 1].count++;
    else
      shares[count++] = (share){&b->works[i], 1};
  for (size_t i = 1; i < count; i++) {
    is_started[i] = !pthread_create(&threads[i], NULL, run_share, &shares[i]);
    if (!is_started[i])
      fail_share(&shares[i]);
  }
  if (count > 0)
    run_share(&shares[0]);
  for (size_t i = 1; i < count; i++)
    if (is_started[i])
      pthread_join(threads[i], NULL);
  return WEIR_CU_SUCCESS;
}

/* A kernel for each size. That of one call has its addresses as parameters too, by which the software device knows what
 * memory it uses. */
static const size_t param_bytes[SIZES][3] = {{BATCH_BYTES(1), sizeof(uint64_t), sizeof(uint64_t)},
                                             {BATCH_BYTES(8)},
                                             {BATCH_BYTES(64)},
                                             {BATCH_BYTES(512)},
                                             {BATCH_BYTES(4096)}};
static const char *const kernel_names[SIZES] = {"weir_nccl_1", "weir_nccl_8", "weir_nccl_64", "weir_nccl_512",
                                                "weir_nccl_4096"};

static weir_soft_entry entries[SIZES];
static const weir_soft_entry *entry_list[SIZES];
static const weir_soft_image image = {
    .magic = WEIR_SOFT_IMAGE_MAGIC, .size = sizeof(weir_soft_image), .begin = entry_list, .end = entry_list + SIZES};

static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER; /* guards entries and modules */
static weir_cu_module modules[WEIR_MAX_DEVICES];
static weir_cu_function functions[WEIR_MAX_DEVICES][SIZES];

static weir_status load_kernels(const char *caller, int device) {
  weir__on_device on;
  weir_status status = weir__compute_enter(caller, device, &on);
  if (status)
    return status;
  weir_driver *driver = on.driver;
  weir_cu_module module = NULL;
  pthread_mutex_lock(&modules_lock);
  for (size_t i = 0; i < SIZES; i++) {
    entries[i] = (weir_soft_entry){kernel_names[i], run_batch, i ? 1 : 3, param_bytes[i], 0, 0};
    entry_list[i] = &entries[i];
  }
  if (!modules[device]) {
    status = WEIR__CALL_FOR(caller, driver, ModuleLoadData(driver, &module, &image));
    for (size_t i = 0; i < SIZES && !status; i++)
      status =
          WEIR__CALL_FOR(caller, driver, ModuleGetFunction(driver, &functions[device][i], module, kernel_names[i]));
    if (!status)
      modules[device] = module;
    else if (module)
      driver->ModuleUnload(driver, module);
  }
  pthread_mutex_unlock(&modules_lock);
  weir__compute_leave(&on);
  return status;
}

void weir__nccl_soft_end(void) {
  pthread_mutex_lock(&modules_lock);
  for (int device = 0; device < WEIR_MAX_DEVICES; device++) {
    if (modules[device])
      weir__compute_unload(device, modules[device]);
    modules[device] = NULL;
  }
  pthread_mutex_unlock(&modules_lock);
  weir__nccl_ranks_end();
}

/* ---- Creating and destroying ---- */

static weir_status version(const char *caller, int *number) {
  (void)caller;
  *number = SOFT_VERSION;
  return WEIR_OK;
}

static weir_status prepare(const char *caller, weir_nccl_comm *comm) {
  if (comm->ranks > WEIR_NCCL_MAX_SOFT_RANKS)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: %d ranks; the software device has collectives of up to %d", caller,
                      comm->ranks, WEIR_NCCL_MAX_SOFT_RANKS);
  weir_status status = load_kernels(caller, comm->device);
  if (!status)
    status = weir_event_create(0, &comm->last);
  if (!status)
    status = weir_event_create(0, &comm->captured);
  if (!status)
    status = enter_registry(caller, comm);
  if (!status) {
    status = weir__nccl_ranks_claim(caller, comm, &comm->shared);
    if (status)
      leave_registry(comm);
  }
  if (status) {
    weir_event_destroy(comm->last);
    weir_event_destroy(comm->captured);
  }
  return weir__fail_as(caller, status);
}

static weir_status join(const char *caller, weir_nccl_comm *const *comms, size_t count) {
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < count; i++) {
    weir_status one = weir__nccl_ranks_join(caller, comms[i]);
    status = status ? status : one;
  }
  return status;
}

/* ---- Submitting ---- */

static weir_status check_memory(const weir__nccl_call *call, const char *name, const void *pointer, uint64_t count) {
  weir_driver *driver;
  weir_status status = weir_get_driver(&driver);
  uint64_t at = (uintptr_t)pointer, bytes = count * weir_dtype_size(call->dtype), start = 0, length = 0;
  if (status || !bytes)
    return status;
  weir_cu_result r = driver->PointerGetAttribute(driver, &start, WEIR_CU_POINTER_ATTR_RANGE_START, at);
  if (!r)
    r = driver->PointerGetAttribute(driver, &length, WEIR_CU_POINTER_ATTR_RANGE_SIZE, at);
  if (r == WEIR_CU_INVALID_VALUE)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is %p, which is not memory of a device", call->caller, name,
                      pointer);
  /* Memory of another device would not be ordered with the work of the stream. */
  int device = call->comm->device;
  unsigned type = 0;
  if (!r)
    r = driver->PointerGetAttribute(driver, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, at);
  if (!r && type == WEIR_CU_MEMORY_TYPE_DEVICE)
    r = driver->PointerGetAttribute(driver, &device, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, at);
  if (!r && device != call->comm->device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: %s is memory of device %d, and the communicator is on device %d", call->caller, name, device,
                      call->comm->device);
  /* Memory that consists of several mappings, as in an expandable segment, is checked at both ends. */
  if (!r && at + bytes > start + length) {
    r = driver->PointerGetAttribute(driver, &start, WEIR_CU_POINTER_ATTR_RANGE_START, at + bytes - 1);
    if (r == WEIR_CU_INVALID_VALUE)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is %p, where there are less than %" PRIu64 " bytes",
                        call->caller, name, pointer, bytes);
  }
  return weir__driver_status(driver, r, call->caller, "cuPointerGetAttribute");
}

static weir_status check_call(const weir__nccl_call *call) {
  uint64_t ranks = (uint64_t)call->comm->ranks;
  bool is_peer = call->comm->rank == call->peer;
  weir_status status = WEIR_OK;
  if (call->kind != WEIR__NCCL_RECV && (call->kind != WEIR__NCCL_BROADCAST || is_peer))
    status =
        check_memory(call, "send", call->send, call->count * (call->kind == WEIR__NCCL_REDUCE_SCATTER ? ranks : 1));
  if (!status && call->kind != WEIR__NCCL_SEND && (call->kind != WEIR__NCCL_REDUCE || is_peer))
    status = check_memory(call, "recv", call->recv, call->count * (call->kind == WEIR__NCCL_ALL_GATHER ? ranks : 1));
  return status;
}

static weir_status get_capture(const char *caller, weir_stream stream, unsigned long long *id) {
  weir_driver *driver;
  weir_cu_stream raw;
  int state;
  *id = 0;
  weir_status status = weir_get_driver(&driver);
  if (!status)
    status = weir_stream_raw(stream, &raw);
  if (!status)
    status = WEIR__CALL_FOR(caller, driver, StreamGetCaptureInfo(driver, raw, &state, id, NULL, NULL, NULL));
  if (!status && state == WEIR_CU_CAPTURE_STATUS_NONE)
    *id = 0;
  return weir__fail_as(caller, status);
}

/* The calls that one launch carries out, those of a communicator next to each other. */
typedef struct launch {
  const weir__nccl_call **calls;
  size_t count;
  unsigned long long capture; /* of the stream of the first call; 0 if it does not capture */
} launch;

/* The latest call of a communicator determines the stream that later work follows. */
static bool is_last_of_comm(const launch *l, size_t i) {
  return i + 1 == l->count || l->calls[i + 1]->comm != l->calls[i]->comm;
}

static bool is_new_stream(const launch *l, size_t i) {
  for (size_t k = 0; k < i; k++)
    if (weir_stream_equal(l->calls[k]->stream, l->calls[i]->stream))
      return false;
  return true;
}

/* The first stream waits for the other streams of the launch, and for earlier work of the communicators. Work in a
 * capture is only ordered after work in the same capture. */
static weir_status wait_before(const launch *l) {
  weir_stream first = l->calls[0]->stream;
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < l->count && !status; i++) {
    const weir_nccl_comm *comm = l->calls[i]->comm;
    bool has_work = l->capture ? comm->last_capture == l->capture : comm->has_work;
    if (is_last_of_comm(l, i) && has_work &&
        !weir_stream_equal(l->capture ? comm->captured_stream : comm->last_stream, first))
      status = weir_event_wait(l->capture ? comm->captured : comm->last, first);
    if (!status && i && is_new_stream(l, i))
      status = weir_stream_wait_stream(first, l->calls[i]->stream);
  }
  return status;
}

static weir_status wait_after(const launch *l) {
  weir_stream first = l->calls[0]->stream;
  weir_status status = WEIR_OK;
  for (size_t i = 1; i < l->count && !status; i++)
    if (is_new_stream(l, i))
      status = weir_stream_wait_stream(l->calls[i]->stream, first);
  for (size_t i = 0; i < l->count && !status; i++) {
    weir_nccl_comm *comm = l->calls[i]->comm;
    if (!is_last_of_comm(l, i))
      continue;
    status = weir_event_record(l->capture ? comm->captured : comm->last, l->calls[i]->stream);
    if (l->capture) {
      comm->captured_stream = l->calls[i]->stream;
      comm->last_capture = l->capture;
    } else {
      comm->last_stream = l->calls[i]->stream;
      comm->has_work = true;
    }
  }
  return status;
}

static weir_status launch_kernel(const char *caller, const launch *l) {
  size_t size = 0;
  while (size < SIZES && room_of[size] < l->count)
    size++;
  if (size == SIZES)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: %zu calls in a group; there may be up to %zu", caller, l->count,
                      room_of[SIZES - 1]);
  batch *b = calloc(1, BATCH_BYTES(room_of[size]));
  if (!b)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the launch", caller);
  b->count = l->count;
  for (size_t i = 0; i < l->count; i++) {
    const weir__nccl_call *call = l->calls[i];
    b->works[i] = (weir__nccl_work){.comm = call->comm->number,
                                    .send = (uintptr_t)call->send,
                                    .recv = (uintptr_t)call->recv,
                                    .count = call->count,
                                    .kind = (int32_t)call->kind,
                                    .dtype = (int32_t)call->dtype,
                                    .op = (int32_t)call->op,
                                    .peer = call->peer};
  }
  void *params[] = {b, &b->works[0].send, &b->works[0].recv};
  weir_stream stream = l->calls[0]->stream;
  weir_cu_stream raw;
  weir__on_device on;
  weir_status status = weir__compute_enter(caller, stream.device, &on);
  if (!status) {
    weir_driver *driver = on.driver;
    status = weir_stream_raw(stream, &raw);
    if (!status)
      status = WEIR__CALL_FOR(
          caller, driver, LaunchKernel(driver, functions[stream.device][size], 1, 1, 1, 1, 1, 1, 0, raw, params, NULL));
    weir__compute_leave(&on);
  }
  free(b);
  return status;
}

/* Once a kernel was launched, a failure leaves the ranks in different states. */
static weir_status perform(const char *caller, launch *l) {
  weir_status status = get_capture(caller, l->calls[0]->stream, &l->capture);
  if (!status)
    status = wait_before(l);
  if (!status)
    status = launch_kernel(caller, l);
  if (status)
    return weir__fail_as(caller, status);
  status = wait_after(l);
  if (status)
    for (size_t i = 0; i < l->count; i++)
      if (is_last_of_comm(l, i))
        weir__nccl_ranks_fail(l->calls[i]->comm, status, weir_last_error());
  return weir__fail_as(caller, status);
}

static bool is_same_id(const weir_nccl_comm *a, const weir_nccl_comm *b) {
  return !memcmp(&a->id, &b->id, sizeof a->id);
}

/* Whether a group has calls of all ranks of a communicator, on streams that are all in one capture or in none. */
static weir_status is_complete(const char *caller, const weir__nccl_call *calls, size_t count, size_t first,
                               bool *complete) {
  const weir_nccl_comm *comm = calls[first].comm;
  bool has_rank[WEIR_NCCL_MAX_SOFT_RANKS] = {false};
  unsigned long long capture, other;
  int ranks = 0;
  *complete = false;
  weir_status status = get_capture(caller, calls[first].stream, &capture);
  for (size_t i = first; i < count && !status; i++) {
    if (!is_same_id(calls[i].comm, comm))
      continue;
    status = get_capture(caller, calls[i].stream, &other);
    if (!status && other != capture)
      return WEIR_OK;
    ranks += !has_rank[calls[i].comm->rank];
    has_rank[calls[i].comm->rank] = true;
  }
  *complete = !status && ranks > 1 && ranks == comm->ranks;
  return status;
}

/* Launches the calls of the communicator of call `first`, and of its other ranks if all are in the group. */
static weir_status submit_from(const char *caller, const weir__nccl_call *calls, size_t count, size_t first,
                               bool *is_done, const weir__nccl_call **chosen) {
  const weir_nccl_comm *comm = calls[first].comm;
  bool is_whole;
  weir_status status = is_complete(caller, calls, count, first, &is_whole);
  launch l = {.calls = chosen};
  for (int rank = is_whole ? 0 : comm->rank; !status && rank < comm->ranks; rank++) {
    for (size_t i = first; i < count; i++)
      if (!is_done[i] && calls[i].comm->rank == rank &&
          (is_whole ? is_same_id(calls[i].comm, comm) : calls[i].comm == comm)) {
        is_done[i] = true;
        chosen[l.count++] = &calls[i];
      }
    if (!is_whole)
      break;
  }
  return status || l.count == 0 ? status : perform(caller, &l);
}

static weir_status submit(const char *caller, const weir__nccl_call *calls, size_t count) {
  bool *is_done = calloc(count, sizeof *is_done);
  const weir__nccl_call **chosen = malloc(count * sizeof *chosen);
  weir_status status = WEIR_OK;
  if (!is_done || !chosen)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for %zu calls", caller, count);
  for (size_t i = 0; i < count && !status; i++)
    status = check_call(&calls[i]);
  for (size_t i = 0; i < count && !status; i++)
    if (!is_done[i])
      status = submit_from(caller, calls, count, i, is_done, chosen);
  free(is_done);
  free(chosen);
  return status;
}

/* ---- The end of work ---- */

/* A capture does not forbid to wait for work outside of it. */
static weir_status finalize(const char *caller, weir_nccl_comm *comm) {
  weir_driver *driver;
  weir_status status = weir_get_driver(&driver);
  if (status)
    return weir__fail_as(caller, status);
  int mode = weir__compute_relax(driver);
  status = weir_event_synchronize(comm->last);
  weir__compute_restore(driver, mode);
  return weir__fail_as(caller, status);
}

static weir_status abort_comm(const char *caller, weir_nccl_comm *comm) {
  char text[64];
  (void)caller;
  snprintf(text, sizeof text, "rank %d has aborted the communicator", comm->rank);
  weir__nccl_ranks_fail(comm, WEIR_ERROR_REMOTE, text);
  return WEIR_OK;
}

static weir_status async_error(const char *caller, weir_nccl_comm *comm) {
  weir__nccl_ranks_check(comm);
  return weir__nccl_check_error(caller, comm);
}

static weir_status get_memory(const char *caller, weir_nccl_comm *comm, weir_nccl_memory *memory) {
  (void)caller;
  memory->host_bytes = weir__nccl_ranks_bytes(comm->shared);
  memory->is_suspended = comm->is_suspended;
  memory->is_exact = 1;
  return WEIR_OK;
}

static weir_status suspend(const char *caller, weir_nccl_comm *comm, bool resume) {
  (void)caller;
  (void)comm;
  (void)resume;
  return WEIR_OK;
}

static void end(weir_nccl_comm *comm) {
  leave_registry(comm);
  weir__nccl_ranks_leave(comm->shared);
  weir_event_destroy(comm->last);
  weir_event_destroy(comm->captured);
}

const weir__nccl_backend weir__nccl_soft = {
    .has_limited_work = true,
    .ends_in_captures = true,
    .version = version,
    .get_unique_id = weir__nccl_ranks_new_id,
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
