/*
 * Collectives of one thread: on the software device between four devices, in groups; on a GPU with one rank.
 */
#include "weir/compute/nccl.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/nccl_ranks.h"
#include "src/peers.h"
#include "support/length.h"
#include "support/runtime.h"
#include "tests/nccl_model.h"

enum { MAX_RANKS = 4, ROOM = 1 << 20 };

static int ranks; /* of the communicator: all devices of the test */
static weir_nccl_comm *comms[MAX_RANKS];
static weir_stream streams[MAX_RANKS];
static void *sends[MAX_RANKS], *recvs[MAX_RANKS];

static int setup(void **state) {
  if (runtime_setup_four(state))
    return -1;
  collect_messages(); /* failures are logged */
  int version;
  if (is_cuda() && weir_nccl_version(&version))
    waived("needs NCCL");
  ranks = is_cuda() ? 1 : 4; /* NCCL has one rank on a GPU, and the test machine may have one GPU */
  weir_nccl_options options;
  weir_nccl_options_init(&options);
  options.timeout_s = 30;
  assert_ok(weir_nccl_init_all(ranks, NULL, &options, comms));
  for (int i = 0; i < ranks; i++) {
    streams[i] = new_stream(i);
    sends[i] = device_memory(i, ROOM);
    recvs[i] = device_memory(i, ROOM);
  }
  return 0;
}

static int teardown(void **state) {
  for (int i = 0; i < ranks; i++) {
    weir_nccl_destroy(comms[i]);
    if (sends[i])
      free_device_memory(i, sends[i]);
    if (recvs[i])
      free_device_memory(i, recvs[i]);
    comms[i] = NULL;
    sends[i] = recvs[i] = NULL;
  }
  ranks = 0;
  return runtime_teardown(state);
}

static void upload(const operation *o) {
  void *host = malloc(ROOM);
  for (int i = 0; i < ranks; i++) {
    fill_send(o, i, host);
    if (send_count(o))
      assert_ok(weir_copy(sends[i], host, send_count(o) * weir_dtype_size(o->dtype), streams[i]));
  }
  free(host);
}

static void check(const operation *o, void *const *at) {
  void *host = malloc(ROOM);
  for (int i = 0; i < ranks; i++) {
    if (recv_count(o))
      assert_ok(weir_copy(host, at[i], recv_count(o) * weir_dtype_size(o->dtype), streams[i]));
    long wrong = first_wrong(o, i, host);
    if (wrong >= 0)
      print_error("kind %d, %s, op %d, count %zu, root %d: element %ld of rank %d is %g, not %g\n", o->kind,
                  weir_dtype_name(o->dtype), o->op, o->count, o->root, wrong, i,
                  load_element(o->dtype, host, (size_t)wrong), expected(o, i, (size_t)wrong));
    assert_int_equal(wrong, -1);
  }
  free(host);
}

static void enqueue_all(const operation *o, void *const *from, void *const *to) {
  assert_ok(weir_nccl_group_start());
  for (int i = 0; i < ranks; i++)
    assert_ok(enqueue(o, from[i], to[i], comms[i], streams[i]));
  assert_ok(weir_nccl_group_end());
}

static void synchronize_all(void) {
  for (int i = 0; i < ranks; i++)
    assert_ok(weir_nccl_synchronize(comms[i], streams[i]));
}

/* ---- Results ---- */

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = teardown)

TEST(every_type_and_operation) {
  for (int kind = 0; kind < COLLECTIVES; kind++)
    for (size_t t = 0; t < DTYPES; t++)
      for (int op = 0; op < 5; op++) {
        operation o = {(collective)kind, all_dtypes[t], (weir_nccl_op)op, 37, ranks - 1, ranks, 7};
        upload(&o);
        if (is_reduction(o.kind) && !has_reduction(o.dtype, o.op)) {
          assert_int_equal(enqueue(&o, sends[0], recvs[0], comms[0], streams[0]), WEIR_ERROR_NOT_SUPPORTED);
          continue;
        }
        enqueue_all(&o, sends, recvs);
        synchronize_all();
        check(&o, recvs);
      }
}

/* Counts that need several pieces, and none. */
TEST(random) {
  uint64_t random = 1;
  for (int round = 0; round < usual_or_long(60, 1000); round++) {
    operation o = random_operation(&random, ranks, ROOM / 16 / MAX_RANKS);
    upload(&o);
    enqueue_all(&o, sends, recvs);
    check(&o, recvs);
  }
  for (int i = 0; i < ranks; i++)
    assert_ok(weir_nccl_async_error(comms[i]));
}

TEST(in_place) {
  for (int kind = 0; kind < COLLECTIVES; kind++) {
    operation o = {(collective)kind, WEIR_FLOAT32, WEIR_NCCL_SUM, 60000, 0, ranks, 5};
    void *to[MAX_RANKS], *from[MAX_RANKS];
    size_t bytes = o.count * sizeof(float);
    if (kind == ALL_GATHER) {
      o.count /= MAX_RANKS;
      bytes /= MAX_RANKS;
    } else if (kind == REDUCE_SCATTER) {
      o.count /= MAX_RANKS;
      bytes /= MAX_RANKS;
    }
    upload(&o);
    for (int i = 0; i < ranks; i++) {
      from[i] = to[i] = sends[i];
      if (kind == ALL_GATHER) {
        to[i] = recvs[i];
        from[i] = (char *)recvs[i] + (size_t)i * bytes;
        assert_ok(weir_copy_async(from[i], sends[i], bytes, streams[i]));
      } else if (kind == REDUCE_SCATTER) {
        to[i] = (char *)sends[i] + (size_t)i * bytes;
      }
    }
    enqueue_all(&o, from, to);
    check(&o, to);
  }
}

/* Sums of floats that depend on the order of additions. */
TEST(same_bits) {
  enum { N = 5000 };
  float *host = malloc(N * sizeof *host), *first = malloc(N * sizeof *first);
  uint64_t random = 3;
  for (int i = 0; i < ranks; i++) {
    for (int k = 0; k < N; k++)
      host[k] = (float)next_random(&random) / 1e10f;
    assert_ok(weir_copy(sends[i], host, N * sizeof *host, streams[i]));
  }
  for (int round = 0; round < 3; round++) {
    assert_ok(weir_nccl_group_start());
    for (int i = ranks; i-- > 0;)
      assert_ok(weir_nccl_all_reduce(sends[i], recvs[i], N, WEIR_FLOAT32, WEIR_NCCL_SUM, comms[i], streams[i]));
    assert_ok(weir_nccl_group_end());
    for (int i = 0; i < ranks; i++) {
      assert_ok(weir_copy(host, recvs[i], N * sizeof *host, streams[i]));
      if (!round && !i)
        memcpy(first, host, N * sizeof *host);
      assert_memory_equal(host, first, N * sizeof *host);
    }
  }
  free(host);
  free(first);
}

/* Each rank sends a different number of elements to each, itself included. */
TEST(all_to_all) {
  enum { UNIT = 3000 };
  int32_t *host = malloc(ROOM);
  for (int i = 0; i < ranks; i++) {
    for (int k = 0; k < 2 * ranks * ranks * UNIT; k++)
      host[k] = i * 1000000 + k;
    assert_ok(weir_copy(sends[i], host, (size_t)(2 * ranks * ranks * UNIT) * 4, streams[i]));
  }
  assert_ok(weir_nccl_group_start());
  for (int i = 0; i < ranks; i++)
    for (int k = 0; k < ranks; k++) {
      assert_ok(weir_nccl_send((int32_t *)sends[i] + k * ranks * UNIT, (size_t)((i + k) * UNIT), WEIR_INT32, k,
                               comms[i], streams[i]));
      assert_ok(weir_nccl_recv((int32_t *)recvs[i] + k * ranks * 2 * UNIT, (size_t)((i + k) * UNIT), WEIR_INT32, k,
                               comms[i], streams[i]));
    }
  assert_ok(weir_nccl_group_end());
  for (int i = 0; i < ranks; i++)
    for (int k = 0; k < ranks; k++) {
      int count = (i + k) * UNIT;
      if (!count)
        continue;
      assert_ok(weir_copy(host, (int32_t *)recvs[i] + k * ranks * 2 * UNIT, (size_t)count * 4, streams[i]));
      for (int j = 0; j < count; j++)
        assert_int_equal(host[j], k * 1000000 + i * ranks * UNIT + j);
    }
  free(host);
}

/* Several messages between the same two ranks, and a collective, in one group. */
TEST(mixed_group) {
  operation o = {ALL_REDUCE, WEIR_INT64, WEIR_NCCL_MAX, 100, 0, ranks, 9};
  upload(&o);
  int last = ranks - 1;
  char *from = (char *)sends[0] + ROOM / 2, *to = (char *)recvs[last] + ROOM / 2;
  assert_ok(weir_fill_async(from, 1, 300, streams[0]));
  assert_ok(weir_fill_async(from + 300, 2, 200, streams[0]));
  assert_ok(weir_nccl_group_start());
  assert_ok(weir_nccl_send(from, 300, WEIR_UINT8, last, comms[0], streams[0]));
  for (int i = 0; i < ranks; i++)
    assert_ok(enqueue(&o, sends[i], recvs[i], comms[i], streams[i]));
  assert_ok(weir_nccl_send(from + 300, 200, WEIR_UINT8, last, comms[0], streams[0]));
  assert_ok(weir_nccl_recv(to, 300, WEIR_UINT8, 0, comms[last], streams[last]));
  assert_ok(weir_nccl_recv(to + 300, 200, WEIR_UINT8, 0, comms[last], streams[last]));
  assert_ok(weir_nccl_group_end());
  check(&o, recvs);
  assert_filled(last, to, 1, 300);
  assert_filled(last, to + 300, 2, 200);
}

/* ---- Streams ---- */

/* Work of a communicator on different streams runs in the order of the calls, without synchronization by the host. */
TEST(streams_are_ordered) {
  if (is_cuda() && ranks == 1)
    WAIVE_TEST("with one rank, NCCL only copies, on the stream of the call");
  operation o = {ALL_REDUCE, WEIR_INT32, WEIR_NCCL_SUM, 50, 0, ranks, 3};
  upload(&o);
  weir_stream others[MAX_RANKS];
  for (int i = 0; i < ranks; i++)
    others[i] = new_stream(i);
  struct held *held = hold(streams[0]);
  enqueue_all(&o, sends, recvs);
  assert_ok(weir_nccl_group_start());
  for (int i = 0; i < ranks; i++) /* reads what the first wrote */
    assert_ok(weir_nccl_broadcast(recvs[i], (char *)recvs[i] + 4096, 50, WEIR_INT32, 0, comms[i], others[i]));
  assert_ok(weir_nccl_group_end());
  unblock(held);
  for (int i = 0; i < ranks; i++)
    assert_ok(weir_stream_synchronize(others[i]));
  void *copies[MAX_RANKS];
  for (int i = 0; i < ranks; i++)
    copies[i] = (char *)recvs[i] + 4096;
  check(&o, recvs);
  check(&o, copies);
}

TEST(capture) {
  operation o = {ALL_REDUCE, WEIR_FLOAT32, WEIR_NCCL_SUM, 1000, 0, ranks, 3};
  weir_graph *graph;
  weir_stream_scope scope;
  weir_event *begins, *ends[MAX_RANKS];
  assert_ok(weir_event_create(0, &begins));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_scope_enter(streams[0], &scope));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_event_record(begins, streams[0]));
  for (int i = 1; i < ranks; i++) /* the other streams join the capture */
    assert_ok(weir_event_wait(begins, streams[i]));
  enqueue_all(&o, sends, recvs);
  for (int i = 1; i < ranks; i++) {
    assert_ok(weir_event_create(0, &ends[i]));
    assert_ok(weir_event_record(ends[i], streams[i]));
    assert_ok(weir_event_wait(ends[i], streams[0]));
  }
  assert_ok(weir_graph_end_capture(graph));
  for (int round = 0; round < 3; round++) {
    o.seed++;
    upload(&o);
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_nccl_synchronize(comms[0], streams[0]));
    check(&o, recvs);
  }
  enqueue_all(&o, sends, recvs); /* outside of captures again */
  check(&o, recvs);
  for (int i = 0; i < ranks; i++)
    weir_nccl_destroy(comms[i]);
  if (is_soft()) { /* the communicator is gone: logged, and nothing else */
    collect_messages();
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_stream_synchronize(streams[0]));
    assert_int_equal(messages_with(WEIR_LOG_ERROR, "all_reduce of a communicator that was destroyed"), ranks);
  }
  memset(comms, 0, sizeof comms);
  assert_ok(weir_stream_scope_leave(&scope));
  weir_graph_destroy(graph);
  weir_event_destroy(begins);
  for (int i = 1; i < ranks; i++)
    weir_event_destroy(ends[i]);
}

/* ---- Errors ---- */

TEST(bad_arguments) {
  void *p = sends[0];
  weir_nccl_comm *comm = comms[0];
  weir_stream s = streams[0];
  assert_error_says(INVALID_ARGUMENT, "comm is NULL",
                    weir_nccl_all_reduce(p, p, 1, WEIR_FLOAT32, WEIR_NCCL_SUM, NULL, s));
  assert_error_says(INVALID_ARGUMENT, "dtype is 99",
                    weir_nccl_all_reduce(p, p, 1, (weir_dtype)99, WEIR_NCCL_SUM, comm, s));
  assert_error_says(INVALID_ARGUMENT, "op is 5", weir_nccl_all_reduce(p, p, 1, WEIR_INT8, (weir_nccl_op)5, comm, s));
  assert_error_says(INVALID_ARGUMENT, "rank 9 does not exist", weir_nccl_broadcast(p, p, 1, WEIR_INT8, 9, comm, s));
  assert_error_says(INVALID_ARGUMENT, "rank -1 does not exist", weir_nccl_send(p, 1, WEIR_INT8, -1, comm, s));
  assert_error_says(INVALID_ARGUMENT, "send is NULL", weir_nccl_all_gather(NULL, p, 1, WEIR_INT8, comm, s));
  assert_error_says(INVALID_ARGUMENT, "recv is NULL", weir_nccl_recv(NULL, 1, WEIR_INT8, 0, comm, s));
  assert_error_says(INVALID_ARGUMENT, "more than any memory",
                    weir_nccl_all_gather(p, p, SIZE_MAX / 2, WEIR_INT8, comm, s));
  assert_error_says(NOT_SUPPORTED, "NCCL cannot compute the sum of int16",
                    weir_nccl_all_reduce(p, p, 1, WEIR_INT16, WEIR_NCCL_SUM, comm, s));
  if (is_soft()) {
    int ordinary = 0;
    assert_error_says(INVALID_ARGUMENT, "stream is of device 1",
                      weir_nccl_all_reduce(p, p, 1, WEIR_INT8, WEIR_NCCL_SUM, comm, streams[1]));
    assert_error_says(INVALID_ARGUMENT, "not memory of a device",
                      weir_nccl_all_reduce(&ordinary, p, 1, WEIR_INT8, WEIR_NCCL_SUM, comm, s));
    assert_error_says(INVALID_ARGUMENT, "recv is memory of device 1",
                      weir_nccl_all_reduce(p, recvs[1], 1, WEIR_INT8, WEIR_NCCL_SUM, comm, s));
    assert_error_says(INVALID_ARGUMENT, "less than",
                      weir_nccl_all_reduce(p, p, ROOM * 100, WEIR_INT8, WEIR_NCCL_SUM, comm, s));
  }
  assert_error(BAD_STATE, weir_nccl_group_end());
  assert_ok(weir_nccl_async_error(comm)); /* none of them counts */
  int count, rank, device;
  assert_ok(weir_nccl_count(comm, &count));
  assert_ok(weir_nccl_rank(comm, &rank));
  assert_ok(weir_nccl_device(comms[ranks - 1], &device));
  assert_int_equal(count, ranks);
  assert_int_equal(rank, 0);
  assert_int_equal(device, ranks - 1);
  assert_error_says(INVALID_ARGUMENT, "comm is NULL", weir_nccl_count(NULL, &count));
}

TEST(bad_communicators) {
  weir_nccl_unique_id id;
  weir_nccl_comm *made;
  weir_nccl_options options;
  assert_ok(weir_nccl_get_unique_id(&id));
  weir_nccl_options_init(&options);
  assert_error_says(INVALID_ARGUMENT, "rank 2 of 2", weir_nccl_init_rank(&id, 2, 2, &options, &made));
  options.timeout_s = -1;
  assert_error_says(INVALID_ARGUMENT, "timeout_s is -1", weir_nccl_init_rank(&id, 1, 0, &options, &made));
  weir_nccl_options_init(&options);
  options.destroy_timeout_s = -1;
  assert_error_says(INVALID_ARGUMENT, "destroy_timeout_s is -1", weir_nccl_init_rank(&id, 1, 0, &options, &made));
  options.size = 0;
  assert_error_says(INVALID_ARGUMENT, "options.size is 0", weir_nccl_init_rank(&id, 1, 0, &options, &made));
  setenv("WEIR_NCCL_TIMEOUT", "soon", 1);
  assert_error_says(INVALID_ARGUMENT, "WEIR_NCCL_TIMEOUT=soon: expected a number",
                    weir_nccl_init_rank(&id, 1, 0, NULL, &made));
  setenv("WEIR_NCCL_TIMEOUT", "20", 1);
  assert_error_says(INVALID_ARGUMENT, "Duplicate GPU",
                    weir_nccl_init_all(2, (const int[]){0, 0}, NULL, (weir_nccl_comm *[2]){NULL}));
  assert_error(INVALID_ARGUMENT, weir_nccl_init_all(0, NULL, NULL, &made));
  if (is_soft()) {
    weir_nccl_unique_id bad = {{0}};
    assert_error_says(INVALID_ARGUMENT, "not one of weir_nccl_get_unique_id",
                      weir_nccl_init_rank(&bad, 1, 0, NULL, &made));
    assert_error_says(NOT_SUPPORTED, "300 ranks", weir_nccl_init_rank(&id, 300, 0, NULL, &made));
    assert_ok(weir_nccl_init_rank(&id, 1, 0, NULL, &made));
    weir_nccl_comm *again;
    assert_error_says(REMOTE, "all ranks have been created", weir_nccl_init_rank(&id, 1, 0, NULL, &again));
    weir_nccl_destroy(made);

    /* Two ranks of a group on one device. */
    assert_ok(weir_nccl_get_unique_id(&id));
    weir_nccl_comm *both[2];
    assert_ok(weir_nccl_group_start());
    assert_ok(weir_nccl_init_rank(&id, 2, 0, NULL, &both[0]));
    assert_ok(weir_nccl_init_rank(&id, 2, 1, NULL, &both[1]));
    assert_error_says(BAD_STATE, "has not ended", weir_nccl_async_error(both[0]));
    assert_error_says(INVALID_ARGUMENT, "Duplicate GPU detected : rank 1 and rank 0 both on device 0",
                      weir_nccl_group_end());
    assert_error_says(INVALID_ARGUMENT, "Duplicate GPU", weir_nccl_async_error(both[0]));
    weir_nccl_destroy(both[0]);
    weir_nccl_destroy(both[1]);

    /* A rank that does not come. */
    weir_nccl_options_init(&options);
    options.timeout_s = 0.1;
    assert_ok(weir_nccl_get_unique_id(&id));
    assert_error_says(TIMEOUT, "ranks 0 and 2 of 3 did not join within 0.1 s",
                      weir_nccl_init_rank(&id, 3, 1, &options, &made));
    assert_error_says(INVALID_ARGUMENT, "gives 2 ranks, and an earlier rank gave 3",
                      weir_nccl_init_rank(&id, 2, 0, &options, &made));
    assert_error_says(TIMEOUT, "ranks 0 and 2 of 3 did not join", weir_nccl_init_rank(&id, 3, 0, &options, &made));

    /* The last rank joins when the others have given up. */
    assert_ok(weir_nccl_get_unique_id(&id));
    assert_error(TIMEOUT, weir_nccl_init_rank(&id, 2, 0, &options, &made));
    assert_ok(weir_device_set_current(1));
    assert_error_says(TIMEOUT, "rank 1 of 2 did not join", weir_nccl_init_rank(&id, 2, 1, &options, &made));
    assert_ok(weir_device_set_current(0));
  }
  unsetenv("WEIR_NCCL_TIMEOUT");
}

/* The calls of a group are the parameters of one kernel. */
TEST(large_group) {
  NEED_SOFT("NCCL has no such limit");
  weir_nccl_unique_id id;
  weir_nccl_comm *comm;
  assert_ok(weir_nccl_get_unique_id(&id));
  assert_ok(weir_nccl_init_rank(&id, 1, 0, NULL, &comm));
  for (int count = 4096; count <= 4097; count++) {
    assert_ok(weir_nccl_group_start());
    for (int i = 0; i < count; i++)
      assert_ok(weir_nccl_all_reduce(sends[0], recvs[0], 1, WEIR_INT32, WEIR_NCCL_SUM, comm, streams[0]));
    if (count == 4096)
      assert_ok(weir_nccl_group_end());
    else
      assert_error_says(NOT_SUPPORTED, "4097 calls in a group; there may be up to 4096", weir_nccl_group_end());
    assert_ok(weir_nccl_synchronize(comm, streams[0]));
  }
  weir_nccl_destroy(comm);
}

static int interrupt_once(void *context) {
  int *calls = context;
  return ++*calls == 1;
}

/* A wait for a rank that does not come ends when the program asks for it. */
TEST(interrupt) {
  NEED_SOFT("NCCL has one rank on a GPU");
  weir_nccl_unique_id id;
  weir_nccl_comm *made;
  weir_nccl_options options;
  int calls = 0;
  weir_nccl_options_init(&options);
  options.timeout_s = 100;
  options.interrupt = interrupt_once;
  options.interrupt_context = &calls;
  assert_ok(weir_nccl_get_unique_id(&id));
  assert_error_says(REMOTE, "rank 0 has aborted", weir_nccl_init_rank(&id, 2, 0, &options, &made));
  assert_int_equal(calls, 1);
}

/* A group with a call that failed enqueues nothing. */
TEST(failed_group) {
  operation o = {ALL_REDUCE, WEIR_INT32, WEIR_NCCL_SUM, 10, 0, ranks, 1};
  upload(&o);
  assert_ok(weir_nccl_group_start());
  assert_ok(weir_nccl_group_start());
  assert_ok(enqueue(&o, sends[0], recvs[0], comms[0], streams[0]));
  assert_error(INVALID_ARGUMENT, weir_nccl_send(sends[0], 1, WEIR_INT8, 77, comms[0], streams[0]));
  assert_ok(weir_nccl_group_end());
  assert_error_says(INVALID_ARGUMENT, "a call in the group failed: weir_nccl_send: rank 77", weir_nccl_group_end());
  assert_error(BAD_STATE, weir_nccl_group_end());
  enqueue_all(&o, sends, recvs); /* all ranks are as before */
  check(&o, recvs);
}

/* A group holds the communicators that it creates or uses until it ends. */
TEST(destroyed_in_a_group) {
  weir_nccl_unique_id id;
  weir_nccl_comm *comm;
  assert_ok(weir_nccl_get_unique_id(&id));
  assert_ok(weir_nccl_group_start());
  assert_ok(weir_nccl_init_rank(&id, 1, 0, NULL, &comm));
  weir_nccl_destroy(comm);
  assert_ok(weir_nccl_group_end());

  assert_ok(weir_nccl_get_unique_id(&id));
  assert_ok(weir_nccl_init_rank(&id, 1, 0, NULL, &comm));
  int seven = 7, result = 0;
  assert_cu(d->Memcpy(d, (uintptr_t)sends[0], (uintptr_t)&seven, sizeof seven));
  assert_cu(d->Memcpy(d, (uintptr_t)recvs[0], (uintptr_t)&result, sizeof result));
  assert_ok(weir_nccl_group_start());
  assert_ok(weir_nccl_all_reduce(sends[0], recvs[0], 1, WEIR_INT32, WEIR_NCCL_SUM, comm, streams[0]));
  weir_nccl_destroy(comm);
  assert_ok(weir_nccl_group_end());
  assert_ok(weir_stream_synchronize(streams[0]));
  assert_cu(d->Memcpy(d, (uintptr_t)&result, (uintptr_t)recvs[0], sizeof result));
  assert_int_equal(result, 7);

  /* A failure of the group is reported as such. */
  assert_ok(weir_nccl_get_unique_id(&id));
  assert_ok(weir_nccl_group_start());
  assert_ok(weir_nccl_init_rank(&id, 1, 0, NULL, &comm));
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_nccl_init_rank(&id, 1, 5, NULL, &comm));
  weir_nccl_destroy(comm);
  assert_error_says(INVALID_ARGUMENT, "a call in the group failed", weir_nccl_group_end());
}

/* What NCCL leaves undefined. In a group of all ranks the calls meet in one kernel. */
TEST(mismatches) {
  NEED_SOFT("NCCL does not check it");
  assert_ok(weir_nccl_group_start());
  for (int i = 0; i < ranks; i++)
    assert_ok(
        weir_nccl_all_reduce(sends[i], recvs[i], i == 2 ? 11 : 10, WEIR_FLOAT32, WEIR_NCCL_SUM, comms[i], streams[i]));
  assert_ok(weir_nccl_group_end());
  for (int i = 0; i < ranks; i++) {
    assert_error_says(INVALID_ARGUMENT,
                      "the ranks' calls differ in operation 1: all_reduce of 10 float32 (sum) on ranks 0, 1 and 3; "
                      "all_reduce of 11 float32 (sum) on rank 2",
                      weir_nccl_synchronize(comms[i], streams[i]));
    assert_error_says(INVALID_ARGUMENT, "differ in operation 1", weir_nccl_async_error(comms[i]));
    assert_error_says(INVALID_ARGUMENT, "differ in operation 1",
                      weir_nccl_all_reduce(sends[i], recvs[i], 1, WEIR_INT8, WEIR_NCCL_SUM, comms[i], streams[i]));
  }
}

static void mismatch(const char *text, const operation *one, const operation *others) {
  weir_nccl_comm *pair[2];
  assert_ok(weir_nccl_init_all(2, NULL, NULL, pair));
  assert_ok(weir_nccl_group_start());
  assert_ok(enqueue(one, sends[0], recvs[0], pair[0], streams[0]));
  assert_ok(enqueue(others, sends[1], recvs[1], pair[1], streams[1]));
  assert_ok(weir_nccl_group_end());
  assert_error_says(INVALID_ARGUMENT, text, weir_nccl_synchronize(pair[0], streams[0]));
  assert_error_says(INVALID_ARGUMENT, text, weir_nccl_synchronize(pair[1], streams[1]));
  weir_nccl_destroy(pair[0]);
  weir_nccl_destroy(pair[1]);
}

TEST(kinds_of_mismatch) {
  NEED_SOFT("NCCL does not check it");
  operation a = {ALL_REDUCE, WEIR_FLOAT32, WEIR_NCCL_SUM, 10, 0, 2, 0}, b = a;
  b.dtype = WEIR_INT32;
  mismatch("all_reduce of 10 float32 (sum) on rank 0; all_reduce of 10 int32 (sum) on rank 1", &a, &b);
  b = a;
  b.op = WEIR_NCCL_AVG;
  mismatch("(sum) on rank 0; all_reduce of 10 float32 (avg) on rank 1", &a, &b);
  b.kind = ALL_GATHER;
  mismatch("all_reduce of 10 float32 (sum) on rank 0; all_gather of 10 float32 on rank 1", &a, &b);
  a.kind = b.kind = BROADCAST;
  b.root = 1;
  mismatch("from rank 0 on rank 0; broadcast of 10 float32 from rank 1 on rank 1", &a, &b);
  a.count = 0; /* even without data */
  mismatch("broadcast of 0 float32", &a, &b);

  weir_nccl_comm *pair[2];
  assert_ok(weir_nccl_init_all(2, NULL, NULL, pair));
  assert_ok(weir_nccl_group_start());
  assert_ok(weir_nccl_send(sends[0], 8, WEIR_INT32, 1, pair[0], streams[0]));
  assert_ok(weir_nccl_recv(recvs[1], 4, WEIR_INT64, 0, pair[1], streams[1]));
  assert_ok(weir_nccl_group_end());
  assert_error_says(INVALID_ARGUMENT, "send of 8 int32 to rank 1 on rank 0, recv of 4 int64 from rank 0 on rank 1",
                    weir_nccl_synchronize(pair[0], streams[0]));
  weir_nccl_destroy(pair[0]);
  weir_nccl_destroy(pair[1]);
}

TEST(abort) {
  assert_ok(weir_nccl_abort(comms[ranks - 1]));
  char text[64];
  snprintf(text, sizeof text, "rank %d has aborted the communicator", ranks - 1);
  for (int i = 0; i < ranks; i++) {
    assert_error_says(REMOTE, text, weir_nccl_async_error(comms[i]));
    assert_error_says(REMOTE, text,
                      weir_nccl_all_reduce(sends[i], recvs[i], 1, WEIR_INT8, WEIR_NCCL_SUM, comms[i], streams[i]));
    assert_error(REMOTE, weir_nccl_finalize(comms[i]));
  }
  assert_ok(weir_nccl_abort(comms[ranks - 1]));
}

TEST(finalize) {
  operation o = {ALL_REDUCE, WEIR_INT32, WEIR_NCCL_SUM, 10, 0, ranks, 1};
  upload(&o);
  enqueue_all(&o, sends, recvs);
  for (int i = 0; i < ranks; i++)
    assert_ok(weir_nccl_finalize(comms[i]));
  check(&o, recvs);
  assert_error_says(BAD_STATE, "has been finalized", weir_nccl_send(sends[0], 1, WEIR_INT8, 0, comms[0], streams[0]));
  assert_error(BAD_STATE, weir_nccl_finalize(comms[0]));
}

/* The end of the runtime ends communicators, which can then only be destroyed. */
TEST(shutdown) {
  NEED_SOFT("the runtime on a GPU is not restarted");
  for (int i = 0; i < ranks; i++) {
    free_device_memory(i, sends[i]);
    free_device_memory(i, recvs[i]);
    sends[i] = recvs[i] = NULL;
  }
  shut_down_clean();
  assert_error_says(BAD_STATE, "shut down", weir_nccl_async_error(comms[0]));
}

static void in_child(void *data) {
  (void)data;
  child_assert(weir_nccl_async_error(comms[0]) == WEIR_ERROR_BAD_FORK);
  child_assert(weir_nccl_abort(comms[0]) == WEIR_ERROR_BAD_FORK);
  weir_nccl_destroy(comms[0]);
}

TEST(fork) {
  NEED_SOFT("NVIDIA's driver does not survive a fork");
  in_process(in_child, NULL);
  assert_ok(weir_nccl_async_error(comms[0]));
}

/* The process id of a rank that has died may be that of another process when the others first look at it. */
TEST(reused_process_id) {
  NEED_SOFT("NCCL looks for dead ranks itself");
  pid_t other = fork();
  assert_true(other >= 0);
  if (!other) {
    pause();
    _exit(0);
  }
  weir__nccl_slot *slot = weir__nccl_slot_of(comms[0]->shared, 1);
  uint64_t started;
  assert_true(weir__peer_start_time(other, &started));
  slot->process = (int32_t)other;
  slot->started = started;
  assert_ok(weir_nccl_async_error(comms[0]));
  slot->started = started - 1;
  char text[64];
  snprintf(text, sizeof text, "rank 1 has died (process %d)", (int)other);
  assert_error_says(REMOTE, text, weir_nccl_async_error(comms[2]));
  kill(other, SIGKILL);
  assert_int_equal(child_outcome(other), -SIGKILL);
}

TEST(memory) {
  weir_nccl_memory memory;
  memory.size = 0;
  assert_error(INVALID_ARGUMENT, weir_nccl_get_memory(comms[0], &memory));
  weir_nccl_memory_init(&memory);
  assert_ok(weir_nccl_get_memory(comms[0], &memory));
  if (is_soft()) {
    assert_int_equal(memory.device_bytes, 0);
    assert_true(memory.host_bytes >= 4 * 512 << 10);
    assert_ok(weir_nccl_suspend(comms[0]));
    assert_ok(weir_nccl_get_memory(comms[0], &memory));
    assert_int_equal(memory.is_suspended, 1);
    assert_error_says(BAD_STATE, "resume it first",
                      weir_nccl_all_reduce(sends[0], recvs[0], 1, WEIR_INT32, WEIR_NCCL_SUM, comms[0], streams[0]));
    assert_ok(weir_nccl_resume(comms[0]));
    assert_ok(weir_nccl_get_memory(comms[0], &memory));
    assert_int_equal(memory.is_suspended, 0);
  } else {
    print_message("NCCL's communicator of one rank: %llu bytes on the device, %s\n",
                  (unsigned long long)memory.device_bytes, memory.is_exact ? "exact" : "by difference");
  }
}

/* ---- Failing driver calls ---- */

static weir_status scenario(void) {
  weir_nccl_comm *pair[2] = {NULL};
  weir_stream pair_streams[2];
  void *memory[2] = {NULL}; /* pinned, and not from the table with faults */
  weir_nccl_options options;
  weir_nccl_options_init(&options);
  options.timeout_s = 20;
  weir_status status = weir_nccl_init_all(2, NULL, &options, pair);
  for (int i = 0; i < 2 && !status; i++) {
    status = weir_stream_create(i, 0, &pair_streams[i]);
    if (!status)
      assert_cu(soft->MemHostAlloc(soft, &memory[i], 4096, WEIR_CU_MEMHOSTALLOC_PORTABLE));
  }
  for (int round = 0; round < 2 && !status; round++) {
    status = weir_nccl_group_start();
    for (int i = 0; i < 2 && !status; i++)
      status = weir_nccl_all_reduce(memory[i], memory[i], 100, WEIR_INT32, WEIR_NCCL_SUM, pair[i], pair_streams[i]);
    weir_status ended = weir_nccl_group_end();
    status = status ? status : ended;
  }
  for (int i = 0; i < 2 && !status; i++)
    status = weir_nccl_finalize(pair[i]);
  only_giving_back();
  for (int i = 0; i < 2; i++) {
    weir_nccl_destroy(pair[i]);
    if (memory[i])
      assert_cu(soft->MemFreeHost(soft, memory[i]));
  }
  return status;
}

TEST_SETUP(failing_calls, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("calls of NVIDIA's driver are not made to fail");
  collect_messages();
  sweep_faults(scenario);
}
