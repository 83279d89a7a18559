/*
 * Collectives with a thread for each rank, on the software device.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/length.h"
#include "support/runtime.h"
#include "tests/nccl_model.h"
#include "weir/compute/nccl.h"

enum { RANKS = 4, ROOM = 1 << 20 };

static weir_nccl_unique_id id;
static double destroy_timeout_s;
static int wrong_ranks; /* the number of ranks that the last one gives, if not 0 */

/* A rank, in a thread of its own. */
typedef struct member {
  int rank, ranks;
  double timeout_s;
  weir_nccl_comm *comm;
  weir_stream stream;
  void *send, *recv, *host;
  weir_status (*body)(struct member *m);
  weir_status status;
  char text[1024];
} member;

static weir_status start_member(member *m) {
  weir_nccl_options options;
  weir_nccl_options_init(&options);
  options.timeout_s = m->timeout_s;
  options.destroy_timeout_s = destroy_timeout_s;
  weir_status status = weir_device_set_current(m->rank);
  if (!status)
    status = weir_stream_create(m->rank, 0, &m->stream);
  if (!status)
    status = weir_malloc(ROOM, m->stream, &m->send);
  if (!status)
    status = weir_malloc(ROOM, m->stream, &m->recv);
  if (!status)
    status = weir_nccl_init_rank(&id, wrong_ranks && m->rank == m->ranks - 1 ? wrong_ranks : m->ranks, m->rank,
                                 &options, &m->comm);
  return status;
}

static void *run_member(void *argument) {
  member *m = argument;
  m->host = malloc(ROOM);
  m->status = start_member(m);
  if (!m->status)
    m->status = m->body(m);
  if (m->status)
    snprintf(m->text, sizeof m->text, "%s", weir_last_error());
  weir_nccl_destroy(m->comm);
  weir_free(m->send);
  weir_free(m->recv);
  free(m->host);
  return NULL;
}

static member members[RANKS];

static void run_all(int count, int ranks, double timeout_s, weir_status (*body)(member *m)) {
  pthread_t threads[RANKS];
  assert_ok(weir_nccl_get_unique_id(&id));
  for (int i = 0; i < count; i++) {
    members[i] = (member){.rank = i, .ranks = ranks, .timeout_s = timeout_s, .body = body};
    assert_int_equal(pthread_create(&threads[i], NULL, run_member, &members[i]), 0);
  }
  for (int i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
}

static void expect_all(int count, weir_status status, const char *text) {
  for (int i = 0; i < count; i++) {
    if (members[i].status != status || (status && !strstr(members[i].text, text)))
      print_error("rank %d: %s: %s\n", i, weir_status_name(members[i].status), members[i].text);
    assert_int_equal(members[i].status, status);
    if (status)
      assert_non_null(strstr(members[i].text, text));
  }
}

static int setup(void **state) {
  int result = runtime_setup_four(state);
  collect_messages();
  return result;
}

static void prepare(void) {
  if (is_cuda()) {
    puts("waived: needs four GPUs; several ranks are tested on the software device");
    exit(WAIVED);
  }
  runtime_need_device();
}

FIXTURE(.prepare = prepare, .setup = setup, .teardown = runtime_teardown)

/* ---- Results ---- */

static weir_status random_work(member *m) {
  uint64_t random = 5;
  weir_status status = WEIR_OK;
  for (int round = 0; round < repetitions(60, 2000) && !status; round++) {
    operation o = random_operation(&random, m->ranks, ROOM / 16 / RANKS);
    fill_send(&o, m->rank, m->host);
    if (send_count(&o))
      status = weir_copy_async(m->send, m->host, send_count(&o) * weir_dtype_size(o.dtype), m->stream);
    if (!status)
      status = enqueue(&o, m->send, m->recv, m->comm, m->stream);
    if (!status && recv_count(&o))
      status = weir_copy(m->host, m->recv, recv_count(&o) * weir_dtype_size(o.dtype), m->stream);
    if (!status && first_wrong(&o, m->rank, m->host) >= 0)
      return weir_report_error(WEIR_ERROR_BAD_DATA, "test: a result is wrong");
  }
  return status ? status : weir_nccl_finalize(m->comm);
}

TEST(random) {
  run_all(RANKS, RANKS, 30, random_work);
  expect_all(RANKS, WEIR_OK, "");
  run_all(2, 2, 30, random_work);
  expect_all(2, WEIR_OK, "");
}

/* Data goes around in a ring, without a group: each rank but the first receives first. */
static weir_status ring(member *m) {
  int next = (m->rank + 1) % m->ranks, previous = (m->rank + m->ranks - 1) % m->ranks;
  weir_status status = weir_fill32_async(m->send, 1000, ROOM / 4, m->stream);
  for (int round = 0; round < 3 && !status; round++) {
    if (m->rank)
      status = weir_nccl_recv(m->recv, ROOM / 4, WEIR_INT32, previous, m->comm, m->stream);
    if (!status)
      status = weir_nccl_send(m->rank ? m->recv : m->send, ROOM / 4, WEIR_INT32, next, m->comm, m->stream);
    if (!status && !m->rank)
      status = weir_nccl_recv(m->recv, ROOM / 4, WEIR_INT32, previous, m->comm, m->stream);
  }
  if (!status)
    status = weir_copy(m->host, m->recv, ROOM, m->stream);
  for (int i = 0; i < ROOM / 4 && !status; i++)
    if (((int32_t *)m->host)[i] != 1000)
      status = weir_report_error(WEIR_ERROR_BAD_DATA, "test: the ring is wrong");
  return status;
}

TEST(ring) {
  run_all(RANKS, RANKS, 30, ring);
  expect_all(RANKS, WEIR_OK, "");
}

/* One rank has the message and the collective in a group, the other one after the other, in either order. */
static weir_status mixed(member *m) {
  weir_status status = WEIR_OK;
  for (int round = 0; round < 20 && !status; round++) {
    bool is_grouped = (round + m->rank) % 2;
    status = is_grouped ? weir_nccl_group_start() : WEIR_OK;
    if (!status && m->rank == 0)
      status = weir_nccl_send(m->send, 100000, WEIR_UINT8, 1, m->comm, m->stream);
    else if (!status)
      status = weir_nccl_recv(m->recv, 100000, WEIR_UINT8, 0, m->comm, m->stream);
    if (!status)
      status = weir_nccl_broadcast(m->send, m->send, 70000, WEIR_FLOAT32, 1, m->comm, m->stream);
    if (is_grouped) {
      weir_status ended = weir_nccl_group_end();
      status = status ? status : ended;
    }
  }
  return status ? status : weir_nccl_synchronize(m->comm, m->stream);
}

TEST(mixed) {
  run_all(2, 2, 20, mixed);
  expect_all(2, WEIR_OK, "");
}

/* Each thread captures its own rank's work: the graphs meet when they are launched. */
static weir_status captured(member *m) {
  weir_graph *graph;
  operation o = {ALL_REDUCE, WEIR_INT64, WEIR_NCCL_SUM, 5000, 0, m->ranks, 1};
  weir_status status = weir_graph_create(&graph);
  if (status)
    return status;
  status = weir_stream_set_current(m->stream);
  if (!status)
    status = weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_THREAD_LOCAL);
  if (!status) {
    status = enqueue(&o, m->send, m->recv, m->comm, m->stream);
    if (!status)
      status = weir_nccl_broadcast(m->recv, (char *)m->recv + ROOM / 2, 5000, WEIR_INT64, 1, m->comm, m->stream);
    weir_status ended = weir_graph_end_capture(graph);
    status = status ? status : ended;
  }
  for (int round = 0; round < 5 && !status; round++) {
    o.seed++;
    fill_send(&o, m->rank, m->host);
    status = weir_copy(m->send, m->host, 40000, m->stream);
    if (!status)
      status = weir_graph_replay(graph);
    if (!status && round % 2) /* and calls between the replays */
      status = weir_nccl_all_reduce(m->send, m->send, 1, WEIR_INT64, WEIR_NCCL_MAX, m->comm, m->stream);
    if (!status)
      status = weir_copy(m->host, (char *)m->recv + ROOM / 2, 40000, m->stream);
    if (!status && first_wrong(&o, m->rank, m->host) >= 0)
      status = weir_report_error(WEIR_ERROR_BAD_DATA, "test: a replay is wrong");
  }
  weir_graph_destroy(graph);
  return status;
}

TEST(capture) {
  run_all(RANKS, RANKS, 30, captured);
  expect_all(RANKS, WEIR_OK, "");
}

/* ---- Ranks that do not keep to the rules ---- */

static weir_status reduce_once(member *m, size_t count) {
  weir_status status = weir_nccl_all_reduce(m->send, m->recv, count, WEIR_FLOAT32, WEIR_NCCL_SUM, m->comm, m->stream);
  return status ? status : weir_nccl_synchronize(m->comm, m->stream);
}

static weir_status different_counts(member *m) {
  weir_status status = reduce_once(m, 5);
  return status ? status : reduce_once(m, m->rank == 1 ? 1000 : 100000);
}

TEST(different_counts) {
  run_all(3, 3, 30, different_counts);
  expect_all(3, WEIR_ERROR_INVALID_ARGUMENT,
             "differ in operation 2: all_reduce of 100000 float32 (sum) on ranks 0 and 2; all_reduce of 1000 float32 "
             "(sum) on rank 1");
}

/* Rank 2 makes one call less, and waits for the others to notice. */
static weir_status one_is_late(member *m) {
  weir_status status = reduce_once(m, 5);
  if (status || m->rank != 2)
    return status ? status : reduce_once(m, 5);
  while (!(status = weir_nccl_async_error(m->comm)))
    sched_yield();
  return status;
}

TEST(late_rank) {
  run_all(3, 3, 1, one_is_late);
  expect_all(3, WEIR_ERROR_TIMEOUT,
             "1 s for rank 2 in operation 2, all_reduce of 5 float32 (sum); rank 2 has completed 1");
}

static weir_status one_leaves(member *m) {
  weir_status status = reduce_once(m, 5);
  return status || m->rank == 1 ? status : reduce_once(m, 5);
}

TEST(rank_that_leaves) {
  run_all(3, 3, 30, one_leaves);
  assert_int_equal(members[1].status, WEIR_OK);
  members[1] = members[0];
  expect_all(3, WEIR_ERROR_REMOTE, "rank 1 has destroyed its communicator after 1 operations, and rank");
}

/* One waits for a message, the other for a collective: a deadlock by the program. */
static weir_status wrong_order(member *m) {
  if (m->rank == 0)
    return reduce_once(m, 5);
  weir_status status = weir_nccl_recv(m->recv, 7, WEIR_INT8, 0, m->comm, m->stream);
  return status ? status : weir_nccl_synchronize(m->comm, m->stream);
}

TEST(wrong_order) {
  run_all(2, 2, 1, wrong_order);
  assert_int_equal(members[0].status, WEIR_ERROR_TIMEOUT);
  assert_string_equal(strstr(members[0].text, ": rank"), strstr(members[1].text, ": rank"));
  assert_non_null(strstr(members[0].text, "all_reduce of 5 float32 (sum)"));
  assert_non_null(strstr(members[0].text, "recv of 7 int8 from rank 0"));
}

/* One rank gives another number of ranks: all are told, whichever comes first. */
TEST(different_numbers_of_ranks) {
  wrong_ranks = 3;
  run_all(2, 2, 30, ring);
  wrong_ranks = 0;
  expect_all(2, WEIR_ERROR_INVALID_ARGUMENT, " ranks, and an earlier rank gave ");
  assert_string_equal(strstr(members[0].text, ": rank"), strstr(members[1].text, ": rank"));
}

TEST(missing_rank) {
  run_all(2, 3, 1, ring);
  expect_all(2, WEIR_ERROR_TIMEOUT, "rank 2 of 3 did not join within 1 s");
}

/* An abort ends the work of all ranks, which wait for a rank that does not come. */
static pthread_barrier_t enqueued;

static weir_status aborted(member *m) {
  if (m->rank == 0) {
    pthread_barrier_wait(&enqueued);
    weir_status status = weir_nccl_abort(m->comm);
    return status ? status : weir_nccl_async_error(m->comm);
  }
  weir_status status = weir_nccl_all_reduce(m->send, m->recv, 5, WEIR_FLOAT32, WEIR_NCCL_SUM, m->comm, m->stream);
  pthread_barrier_wait(&enqueued);
  return status ? status : weir_nccl_synchronize(m->comm, m->stream);
}

TEST(abort) {
  pthread_barrier_init(&enqueued, NULL, 3);
  run_all(3, 3, 30, aborted);
  pthread_barrier_destroy(&enqueued);
  expect_all(3, WEIR_ERROR_REMOTE, "rank 0 has aborted the communicator");
}

/* A rank that is destroyed does not wait for long for a rank that does nothing. */
static weir_status ends_with_work(member *m) {
  weir_status status = WEIR_OK;
  if (m->rank == 0) {
    status = weir_nccl_all_reduce(m->send, m->recv, 5, WEIR_FLOAT32, WEIR_NCCL_SUM, m->comm, m->stream);
    weir_nccl_destroy(m->comm);
    m->comm = NULL;
  }
  pthread_barrier_wait(&enqueued);
  return m->rank == 0 ? status : weir_nccl_async_error(m->comm);
}

TEST(destroyed_with_work) {
  pthread_barrier_init(&enqueued, NULL, 2);
  destroy_timeout_s = 0.1;
  run_all(2, 2, 30, ends_with_work);
  destroy_timeout_s = 0;
  pthread_barrier_destroy(&enqueued);
  assert_int_equal(members[0].status, WEIR_OK);
  members[0] = members[1];
  expect_all(
      2, WEIR_ERROR_TIMEOUT,
      "rank 0 was destroyed while it waited for rank 1 in operation 1, all_reduce of 5 float32 (sum); rank 1 has "
      "completed 0");
}

/* Two communicators of the same ranks, used in the same order by all. */
static weir_status two_communicators(member *m) {
  static weir_nccl_unique_id second;
  weir_nccl_comm *other;
  if (m->rank == 0) {
    weir_status status = weir_nccl_get_unique_id(&second);
    if (status)
      return status;
    memcpy(m->host, &second, sizeof second);
    status = weir_copy(m->send, m->host, sizeof second, m->stream);
    if (status)
      return status;
  }
  weir_status status = weir_nccl_broadcast(m->send, m->send, sizeof second, WEIR_UINT8, 0, m->comm, m->stream);
  if (!status)
    status = weir_copy(m->host, m->send, sizeof second, m->stream);
  if (!status)
    status = weir_nccl_init_rank((weir_nccl_unique_id *)m->host, m->ranks, m->ranks - 1 - m->rank, NULL, &other);
  if (status)
    return status;
  for (int round = 0; round < 20 && !status; round++)
    status =
        weir_nccl_all_reduce(m->send, m->recv, 1000, WEIR_INT32, WEIR_NCCL_SUM, round % 3 ? m->comm : other, m->stream);
  if (!status)
    status = weir_nccl_synchronize(other, m->stream);
  weir_nccl_destroy(other);
  return status;
}

TEST(two_communicators) {
  run_all(3, 3, 30, two_communicators);
  expect_all(3, WEIR_OK, "");
}
