/*
 * Collectives by libnccl, with a stand-in for it, on a software device that claims to be NVIDIA's.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/libraries.h"
#include "support/runtime.h"
#include "tests/fake_nccl.h"
#include "weir/compute/nccl.h"

static fake_nccl_state *fake;
static int is_old; /* the library of this process has the calls of 2.7 only */

static int setup(void **state) {
  if (is_cuda())
    waived("uses a stand-in for NCCL");
  if (runtime_setup(state))
    return -1;
  collect_messages();
  d->capabilities |= WEIR_DRIVER_NVIDIA;
  const char *path = is_old ? WEIR_TEST_NCCL_OLD : WEIR_TEST_NCCL;
  setenv("WEIR_NCCL_LIBRARY", path, 1);
  setenv("WEIR_NVML_LIBRARY", "/nowhere", 1);
  void *library = dlopen(path, RTLD_NOW);
  assert_non_null(library);
  fake = dlsym(library, "fake_nccl");
  assert_non_null(fake);
  *fake = (fake_nccl_state){.fail_at = -1};
  return 0;
}

static int teardown(void **state) {
  assert_int_equal(fake->live, 0);
  assert_int_equal(fake->depth, 0);
  return runtime_teardown(state);
}

static int role(int argc, char **argv) {
  (void)argv;
  is_old = argc > 1;
  return RUN_TESTS;
}

FIXTURE(.role = role, .prepare = runtime_need_device, .setup = setup, .teardown = teardown)

static weir_nccl_comm *make_comm(double timeout_s) {
  weir_nccl_comm *comm;
  weir_nccl_options options;
  weir_nccl_options_init(&options);
  options.timeout_s = timeout_s;
  assert_ok(weir_nccl_init_all(1, NULL, &options, &comm));
  return comm;
}

TEST(types) {
  static const struct {
    weir_dtype dtype;
    int reduced, moved; /* NCCL's types */
    size_t factor;
  } types[] = {{WEIR_UINT8, 1, 1, 1},      {WEIR_INT8, 0, 0, 1},    {WEIR_INT16, -1, 1, 2},
               {WEIR_INT32, 2, 2, 1},      {WEIR_INT64, 4, 4, 1},   {WEIR_FLOAT16, 6, 6, 1},
               {WEIR_FLOAT32, 7, 7, 1},    {WEIR_FLOAT64, 8, 8, 1}, {WEIR_COMPLEX64, 7, 7, 2},
               {WEIR_COMPLEX128, 8, 8, 2}, {WEIR_BOOL, 1, 1, 1},    {WEIR_BFLOAT16, 9, 9, 1}};
  weir_nccl_comm *comm = make_comm(5);
  weir_stream stream = new_stream(0);
  char *memory = device_memory(0, 4096);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    assert_ok(weir_nccl_broadcast(memory, memory + 2048, 10, types[i].dtype, 0, comm, stream));
    assert_int_equal(fake->type, types[i].moved);
    assert_int_equal(fake->count, 10 * types[i].factor);
    if (types[i].reduced < 0) {
      assert_error(NOT_SUPPORTED,
                   weir_nccl_all_reduce(memory, memory, 10, types[i].dtype, WEIR_NCCL_SUM, comm, stream));
      continue;
    }
    assert_ok(weir_nccl_all_reduce(memory, memory, 10, types[i].dtype, WEIR_NCCL_SUM, comm, stream));
    assert_int_equal(fake->type, types[i].reduced);
    assert_int_equal(fake->op, types[i].dtype == WEIR_BOOL ? WEIR_NCCL_MAX : WEIR_NCCL_SUM);
  }
  int version = 0;
  assert_ok(weir_nccl_version(&version));
  assert_int_equal(version, 22907);
  assert_non_null(weir_nccl_raw(comm));
  weir_nccl_destroy(comm);
  free_device_memory(0, memory);
}

/* Everything once. */
static weir_status use_all(char *memory, weir_stream stream) {
  weir_nccl_comm *comm = NULL;
  weir_nccl_memory info;
  weir_nccl_memory_init(&info);
  int version;
  weir_status status = weir_nccl_version(&version);
  if (!status)
    status = weir_nccl_init_all(1, NULL, NULL, &comm);
  if (status)
    return status;
  status = weir_nccl_all_reduce(memory, memory, 1, WEIR_INT32, WEIR_NCCL_SUM, comm, stream);
  if (!status)
    status = weir_nccl_reduce(memory, memory, 1, WEIR_INT32, WEIR_NCCL_PROD, 0, comm, stream);
  if (!status)
    status = weir_nccl_broadcast(memory, memory, 1, WEIR_INT32, 0, comm, stream);
  if (!status)
    status = weir_nccl_all_gather(memory, memory, 1, WEIR_INT32, comm, stream);
  if (!status)
    status = weir_nccl_reduce_scatter(memory, memory, 1, WEIR_INT32, WEIR_NCCL_AVG, comm, stream);
  if (!status)
    status = weir_nccl_group_start();
  if (!status) {
    status = weir_nccl_send(memory, 1, WEIR_INT32, 0, comm, stream);
    if (!status)
      status = weir_nccl_recv(memory + 4, 1, WEIR_INT32, 0, comm, stream);
    weir_status ended = weir_nccl_group_end();
    status = status ? status : ended;
  }
  if (!status)
    status = weir_nccl_synchronize(comm, stream);
  if (!status)
    status = weir_nccl_get_memory(comm, &info);
  if (!status && !is_old)
    status = weir_nccl_suspend(comm);
  if (!status && !is_old)
    status = weir_nccl_resume(comm);
  if (!status)
    status = weir_nccl_finalize(comm);
  weir_nccl_destroy(comm);
  return status;
}

/* Every call of NCCL fails once. Only the end of a communicator can do without. */
TEST(failing_calls) {
  weir_stream stream = new_stream(0);
  char *memory = device_memory(0, 4096);
  assert_ok(use_all(memory, stream));
  int calls = fake->calls;
  assert_in_range(calls, 15, 100);
  for (int n = 0; n < calls; n++) {
    *fake = (fake_nccl_state){.fail_at = n, .fail_with = 2};
    clear_last_error();
    weir_status status = use_all(memory, stream);
    if (!status) { /* ncclCommDestroy */
      assert_int_equal(n, calls - 1);
      assert_int_equal(messages_with(WEIR_LOG_ERROR, "could not be destroyed"), 1);
      continue;
    }
    assert_int_equal(status, WEIR_ERROR_SYSTEM);
    assert_non_null(strstr(weir_last_error(), "NCCL Error 2: unhandled system error in nccl"));
    if (!is_old)
      assert_non_null(strstr(weir_last_error(), ": details of the failure"));
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->depth, 0);
  }
  *fake = (fake_nccl_state){.fail_at = -1};
  free_device_memory(0, memory);
}

/* Other ranks that do not come, in calls that do not block. */
TEST(timeouts) {
  if (is_old)
    WAIVE_TEST("the calls of this version block");
  weir_nccl_comm *comm = make_comm(30);
  weir_stream stream = new_stream(0);
  char *memory = device_memory(0, 4096);
  fake->pending = 20;
  assert_ok(weir_nccl_all_reduce(memory, memory, 1, WEIR_INT32, WEIR_NCCL_SUM, comm, stream));
  assert_int_equal(fake->pending, 0);
  weir_nccl_destroy(comm);
  comm = make_comm(0.05);
  fake->pending = -1;
  assert_error_says(TIMEOUT, "rank 0 of 1 has waited 0.05 s for other ranks in ncclAllReduce",
                    weir_nccl_all_reduce(memory, memory, 1, WEIR_INT32, WEIR_NCCL_SUM, comm, stream));
  assert_error_says(TIMEOUT, "in ncclAllReduce", weir_nccl_async_error(comm));
  weir_nccl_destroy(comm);
  assert_string_equal(fake->last, "ncclCommAbort");
  weir_nccl_options options;
  weir_nccl_options_init(&options);
  options.timeout_s = 0.05;
  assert_error_says(TIMEOUT, "in ncclCommInitRank", weir_nccl_init_all(1, NULL, &options, &comm));

  /* A stream that does not end. */
  fake->pending = 0;
  comm = make_comm(0.05);
  struct held *held = hold(stream);
  assert_error_says(TIMEOUT, "has waited 0.05 s for its stream", weir_nccl_synchronize(comm, stream));
  unblock(held);
  weir_nccl_destroy(comm);
  free_device_memory(0, memory);
}

TEST(async_error) {
  weir_nccl_comm *comm = make_comm(5);
  assert_ok(weir_nccl_async_error(comm));
  fake->async_error = 6;
  assert_error_says(REMOTE, "NCCL Error 6", weir_nccl_async_error(comm));
  fake->async_error = 0;
  assert_error_says(REMOTE, "NCCL Error 6", weir_nccl_async_error(comm)); /* it stays */
  assert_ok(weir_nccl_abort(comm));                                       /* ends work that waits for the other rank */
  assert_string_equal(fake->last, "ncclCommAbort");
  assert_int_equal(fake->live, 0);
  assert_ok(weir_nccl_abort(comm));
  assert_error_says(REMOTE, "NCCL Error 6", weir_nccl_finalize(comm));
  assert_ok(weir_nccl_abort(comm));
  weir_nccl_destroy(comm);
  comm = make_comm(5);
  assert_ok(weir_nccl_abort(comm));
  assert_int_equal(fake->live, 0);
  assert_error_says(REMOTE, "rank 0 has aborted", weir_nccl_async_error(comm));
  weir_nccl_destroy(comm);
}

/* ---- Abort by another thread ---- */

static weir_nccl_comm *aborted;
static pthread_t aborting;
static enum { NOT_ABORTED, ABORTING, ABORTED, ABORT_FAILED } _Atomic abort_state;
static bool blocks; /* the call returns only when the communicator has been aborted */

static void *abort_it(void *unused) {
  (void)unused;
  atomic_store(&abort_state, ABORTING);
  atomic_store(&abort_state, weir_nccl_abort(aborted) ? ABORT_FAILED : ABORTED);
  return NULL;
}

static void abort_during(const char *name) {
  if (strcmp(name, blocks ? "collective" : "end of group") != 0 || atomic_load(&abort_state) != NOT_ABORTED)
    return;
  assert_int_equal(pthread_create(&aborting, NULL, abort_it, NULL), 0);
  while (atomic_load(&abort_state) < (blocks ? ABORTED : ABORTING))
    usleep(1000);
  if (blocks)
    return;
  usleep(50000); /* it has time to free the communicator, and does not */
  assert_int_equal(atomic_load(&abort_state), ABORTING);
}

/* A call of a group uses its communicators until the group has ended. A call that does not return is ended. */
TEST(abort_meanwhile) {
  weir_stream stream = new_stream(0);
  char *memory = device_memory(0, 4096);
  for (int i = 0; i < 2; i++) {
    blocks = i == 1;
    atomic_store(&abort_state, NOT_ABORTED);
    aborted = make_comm(5);
    fake->during = abort_during;
    weir_status status;
    if (blocks) {
      status = weir_nccl_all_reduce(memory, memory, 1, WEIR_INT32, WEIR_NCCL_SUM, aborted, stream);
    } else {
      assert_ok(weir_nccl_group_start());
      for (int k = 0; k < 2; k++)
        assert_ok(weir_nccl_all_reduce(memory, memory, 1, WEIR_INT32, WEIR_NCCL_SUM, aborted, stream));
      status = weir_nccl_group_end();
    }
    (void)status; /* what was submitted before the abort may have succeeded */
    fake->during = NULL;
    assert_int_equal(pthread_join(aborting, NULL), 0);
    assert_int_equal(atomic_load(&abort_state), ABORTED);
    assert_int_equal(fake->live, 0);
    assert_error_says(REMOTE, "rank 0 has aborted", weir_nccl_async_error(aborted));
    weir_nccl_destroy(aborted);
  }
  free_device_memory(0, memory);
}

static void count_memory(void *context, const weir_outside_memory *memory) {
  assert_true(memory->bytes && memory->size == sizeof *memory);
  ++*(int *)context;
}

/* The summary of device 0 has a line with this text; NULL means that no communicator is in it. */
static void check_books(const char *text) {
  weir_allocator *allocator;
  static char summary[16384];
  size_t length;
  int count = 0, elsewhere = 0;
  assert_ok(weir_default_allocator(&allocator));
  assert_ok(weir_allocator_summary(allocator, 0, WEIR_SUMMARY_FULL, summary, sizeof summary, &length));
  assert_int_equal(length, strlen(summary));
  assert_ok(weir_outside_memory_visit(0, count_memory, &count));
  assert_int_equal(count, text ? 1 : 0);
  if (!text) {
    assert_null(strstr(summary, "NCCL"));
    return;
  }
  const char *line = strstr(summary, "| NCCL communicator ");
  assert_non_null(line);
  assert_non_null(strstr(line, text));
  assert_ok(weir_outside_memory_visit(1, count_memory, &elsewhere));
  assert_int_equal(elsewhere, 0);
}

static void *taken[2];
static int taken_count;

/* The memory that a communicator of the stand-in has. */
static void take_memory(int change) {
  if (change > 0)
    taken[taken_count++] = device_memory(0, 64 << 20);
  else
    free_device_memory(0, taken[--taken_count]);
}

/* An older library does not report its memory: it is the difference that the creation makes. */
TEST(memory_by_difference) {
  fake->resized = take_memory;
  weir_nccl_comm *comms[2];
  weir_nccl_memory memory;
  weir_nccl_memory_init(&memory);
  comms[0] = make_comm(5);
  assert_ok(weir_nccl_get_memory(comms[0], &memory));
  if (is_old) {
    assert_int_equal(memory.device_bytes, 64 << 20);
    assert_false(memory.is_exact);
    check_books(", rank 0 of 1: 64.00 MiB (estimated)");
  } else {
    assert_int_equal(memory.device_bytes, 128 << 20); /* the library is believed */
    check_books(", rank 0 of 1: 128.00 MiB");
  }
  /* A line for each. */
  comms[1] = make_comm(5);
  weir_allocator *allocator;
  static char summary[16384];
  size_t length;
  assert_ok(weir_default_allocator(&allocator));
  assert_ok(weir_allocator_summary(allocator, 0, WEIR_SUMMARY_FULL, summary, sizeof summary, &length));
  const char *first = strstr(summary, "| NCCL communicator ");
  assert_non_null(first);
  assert_non_null(strstr(first + 1, "| NCCL communicator "));
  weir_nccl_destroy(comms[0]);
  check_books(is_old ? ", rank 0 of 1: 64.00 MiB (estimated)" : ", rank 0 of 1: 128.00 MiB");
  weir_nccl_destroy(comms[1]);
  check_books(NULL);
  assert_int_equal(taken_count, 0);
}

/* Summaries ask for the memory while another thread aborts. */
static void *abort_on_thread(void *comm) {
  weir_nccl_abort(comm);
  return NULL;
}

TEST(memory_of_an_aborted_one) {
  for (int i = 0; i < 200; i++) {
    weir_nccl_comm *comm = make_comm(5);
    int count = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, abort_on_thread, comm), 0);
    for (int k = 0; k < 20; k++)
      assert_ok(weir_outside_memory_visit(0, count_memory, &count));
    assert_int_equal(pthread_join(thread, NULL), 0);
    weir_nccl_destroy(comm);
  }
}

/* Two ranks in one thread: each call fails once, and both ranks have failed then. */
static weir_status use_two(char *memory, const weir_stream *streams, weir_status *errors) {
  weir_nccl_comm *comms[2] = {NULL};
  weir_status status = weir_nccl_init_all(2, NULL, NULL, comms);
  errors[0] = errors[1] = WEIR_OK;
  if (status)
    return status;
  status = weir_nccl_group_start();
  for (int i = 0; i < 2 && !status; i++)
    status = weir_nccl_all_reduce(memory, memory, 1, WEIR_INT32, WEIR_NCCL_SUM, comms[i], streams[i]);
  weir_status ended = weir_nccl_group_end();
  status = status ? status : ended;
  for (int i = 0; i < 2; i++)
    errors[i] = weir_nccl_async_error(comms[i]);
  for (int i = 0; i < 2; i++)
    weir_nccl_destroy(comms[i]);
  return status;
}

TEST(failing_calls_of_two_ranks) {
  NEED_TWO_DEVICES();
  weir_stream streams[] = {new_stream(0), new_stream(1)};
  char *memory = device_memory(0, 4096);
  weir_status errors[2];
  assert_ok(use_two(memory, streams, errors));
  int calls = fake->calls, in_work = 0;
  for (int n = 0; n < calls; n++) {
    *fake = (fake_nccl_state){.fail_at = n, .fail_with = 2};
    if (use_two(memory, streams, errors) && errors[0]) {
      assert_int_equal(errors[1], WEIR_ERROR_SYSTEM);
      in_work++;
    }
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->depth, 0);
  }
  assert_in_range(in_work, 4, 6); /* the start, two collectives and the end of the group */
  *fake = (fake_nccl_state){.fail_at = -1};
  free_device_memory(0, memory);
}

TEST(memory) {
  weir_nccl_comm *comm = make_comm(5);
  weir_nccl_memory memory;
  weir_nccl_memory_init(&memory);
  assert_ok(weir_nccl_get_memory(comm, &memory));
  assert_int_equal(memory.is_exact, !is_old);
  if (!is_old) {
    assert_int_equal(memory.device_bytes, 128 << 20);
    assert_int_equal(memory.suspendable_bytes, 100 << 20);
    check_books(", rank 0 of 1: 128.00 MiB");
    assert_int_equal(memory.is_suspended, 0);
    assert_ok(weir_nccl_suspend(comm));
    assert_ok(weir_nccl_get_memory(comm, &memory));
    assert_int_equal(memory.is_suspended, 1);
    check_books(", rank 0 of 1, suspended: 28.00 MiB");
    assert_ok(weir_nccl_resume(comm));
  } else {
    assert_int_equal(memory.device_bytes, 0); /* the stand-in takes none */
    assert_error_says(NOT_SUPPORTED, "older than 2.29.7", weir_nccl_suspend(comm));
  }
  weir_nccl_destroy(comm);
  check_books(NULL);
}

/* NCCL ends a communicator in a thread of its own, whose calls would invalidate the capture. */
TEST(end_during_a_capture) {
  weir_stream stream, before;
  assert_ok(weir_stream_create(0, 0, &stream));
  assert_ok(weir_stream_get_current(0, &before));
  assert_ok(weir_stream_set_current(stream));
  weir_nccl_comm *comm = make_comm(1);
  weir_graph *graph;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  weir_nccl_destroy(comm);
  assert_int_equal(fake->live, 1);
  assert_ok(weir_graph_end_capture(graph));
  weir_nccl_destroy(make_comm(1)); /* the next creation ends it */
  assert_int_equal(fake->live, 0);
  weir_graph_destroy(graph);
  assert_ok(weir_stream_set_current(before));
}

TEST(shutdown) {
  weir_nccl_comm *comm = make_comm(5);
  shut_down_clean();
  assert_int_equal(fake->live, 0);
  assert_error(BAD_STATE, weir_nccl_async_error(comm));
  weir_nccl_destroy(comm);
}

/* The functions of a library are found once in a process. */
TEST(old_library) {
  if (is_old)
    skip();
  pid_t child = fork();
  if (!child) {
    execl("/proc/self/exe", "test", "old", NULL);
    _exit(99);
  }
  assert_int_equal(child_outcome(child), 0);
}
