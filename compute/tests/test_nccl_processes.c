/*
 * Collectives with a process for each rank, on the software device: results, ranks that are killed at each step, ranks
 * that stop, and ranks that come late. The program runs itself as a rank: "rank ID RANKS RANK SIGNAL STEP SECONDS".
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/nccl_ranks.h"
#include "support/length.h"
#include "support/runtime.h"
#include "tests/nccl_model.h"
#include "weir/compute/nccl.h"

enum { RANKS = 3, ROOM = 1 << 20, RANDOM_ROUNDS = 40 };

/* ---- A rank ---- */

static int fatal_signal, fatal_step;

static void on_step(void) {
  if (--fatal_step == 0)
    kill(getpid(), fatal_signal);
}

static weir_status check_result(const operation *o, int rank, void *host, const void *recv, weir_stream stream) {
  weir_status status = WEIR_OK;
  if (recv_count(o))
    status = weir_copy(host, recv, recv_count(o) * weir_dtype_size(o->dtype), stream);
  if (!status && first_wrong(o, rank, host) >= 0)
    status = weir_report_error(WEIR_ERROR_BAD_DATA, "test: a result is wrong");
  return status;
}

static weir_status run_one(const operation *o, weir_nccl_comm *comm, int rank, void *host, void *send, void *recv,
                           weir_stream stream) {
  weir_status status = WEIR_OK;
  fill_send(o, rank, host);
  if (send_count(o))
    status = weir_copy_async(send, host, send_count(o) * weir_dtype_size(o->dtype), stream);
  if (!status)
    status = enqueue(o, send, recv, comm, stream);
  if (!status)
    status = weir_nccl_synchronize(comm, stream);
  return status ? status : check_result(o, rank, host, recv, stream);
}

/* A collective of two pieces, a message to each neighbour of two pieces, and in the long form random collectives. */
static weir_status work(weir_nccl_comm *comm, int ranks, int rank, int is_random) {
  static char host[ROOM];
  weir_stream stream;
  void *send = NULL, *recv = NULL;
  weir_status status = weir_stream_create(0, 0, &stream);
  if (!status)
    status = weir_malloc(ROOM, stream, &send);
  if (!status)
    status = weir_malloc(ROOM, stream, &recv);
  operation o = {ALL_REDUCE, WEIR_FLOAT32, WEIR_NCCL_SUM, 80000, 0, ranks, 1};
  if (!status)
    status = run_one(&o, comm, rank, host, send, recv, stream);
  if (!status)
    status = weir_nccl_group_start();
  if (!status)
    status = weir_nccl_send(send, 20000, WEIR_FLOAT32, (rank + 1) % ranks, comm, stream);
  if (!status)
    status = weir_nccl_recv(recv, 20000, WEIR_FLOAT32, (rank + ranks - 1) % ranks, comm, stream);
  if (!status)
    status = weir_nccl_group_end();
  if (!status)
    status = weir_nccl_synchronize(comm, stream);
  o = (operation){BROADCAST, WEIR_FLOAT32, WEIR_NCCL_SUM, 20000, (rank + ranks - 1) % ranks, ranks, 1};
  if (!status)
    status = check_result(&o, rank, host, recv, stream);
  uint64_t random = 11;
  for (int i = 0; is_random && i < RANDOM_ROUNDS && !status; i++) {
    o = random_operation(&random, ranks, ROOM / 16 / RANKS);
    status = run_one(&o, comm, rank, host, send, recv, stream);
  }
  if (send)
    weir_free(send);
  if (recv)
    weir_free(recv);
  return status;
}

static void ignore(void *context, weir_log_level level, const char *message) {
  (void)context;
  (void)level;
  (void)message;
}

static int be_rank(char **arguments) {
  weir_nccl_unique_id id;
  for (size_t i = 0; i < sizeof id; i++) {
    unsigned byte = 0;
    sscanf(arguments[0] + 2 * i, "%2x", &byte);
    id.bytes[i] = (char)byte;
  }
  int ranks = atoi(arguments[1]), rank = atoi(arguments[2]);
  fatal_signal = atoi(arguments[3]);
  fatal_step = atoi(arguments[4]);
  if (fatal_signal) {
    if (!fatal_step)
      kill(getpid(), fatal_signal);
    weir__nccl_on_step = on_step;
  }
  weir_log_set_sink(ignore, NULL);
  weir_nccl_options options;
  weir_nccl_options_init(&options);
  options.timeout_s = atof(arguments[5]);
  weir_nccl_comm *comm = NULL;
  weir_status status = weir_nccl_init_rank(&id, ranks, rank, &options, &comm);
  if (!status)
    status = work(comm, ranks, rank, !fatal_signal);
  if (status)
    printf("%s", weir_last_error());
  fflush(stdout);
  weir_nccl_destroy(comm);
  weir_status ended = weir_shutdown();
  return (int)(status ? status : ended);
}

/* ---- Starting ranks ---- */

typedef struct child {
  pid_t pid;
  int output;
  int outcome; /* the exit code, or minus the signal */
  char text[1024];
} child;

static child start(const weir_nccl_unique_id *id, int ranks, int rank, int signal, int step, double seconds) {
  char hex[2 * sizeof *id + 1], numbers[4][16], limit[16];
  for (size_t i = 0; i < sizeof *id; i++)
    snprintf(hex + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
  snprintf(numbers[0], 16, "%d", ranks);
  snprintf(numbers[1], 16, "%d", rank);
  snprintf(numbers[2], 16, "%d", signal);
  snprintf(numbers[3], 16, "%d", step);
  snprintf(limit, sizeof limit, "%g", seconds);
  int ends[2];
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  child made = {.pid = fork(), .output = ends[0]};
  assert_true(made.pid >= 0);
  if (!made.pid) {
    dup2(ends[1], 1);
    execl("/proc/self/exe", "test", "rank", hex, numbers[0], numbers[1], numbers[2], numbers[3], limit, NULL);
    _exit(99);
  }
  close(ends[1]);
  return made;
}

static void finish(child *c) {
  size_t length = 0;
  for (ssize_t got; (got = read(c->output, c->text + length, sizeof c->text - 1 - length)) > 0;)
    length += (size_t)got;
  c->text[length] = 0;
  close(c->output);
  c->outcome = child_outcome(c->pid);
}

static weir_nccl_unique_id new_id(void) {
  weir_nccl_unique_id id;
  assert_ok(weir_nccl_get_unique_id(&id));
  return id;
}

static int setup(void **state) {
  if (is_cuda())
    waived("needs several GPUs; several ranks are tested on the software device");
  setenv("WEIR_DRIVER", "soft", 1);
  setenv("WEIR_SOFT_CLOCK", is_stepped() ? "stepped" : "threads", 1);
  return runtime_setup(state);
}

static int role(int count, char **arguments) {
  if (count == 8 && !strcmp(arguments[1], "rank"))
    return be_rank(arguments + 2);
  return RUN_TESTS;
}

FIXTURE(.role = role, .prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

/* ---- Tests ---- */

TEST(results) {
  weir_nccl_unique_id id = new_id();
  child children[RANKS];
  for (int i = 0; i < RANKS; i++)
    children[i] = start(&id, RANKS, i, 0, 0, 30);
  for (int i = 0; i < RANKS; i++) {
    finish(&children[i]);
    assert_string_equal(children[i].text, "");
    assert_int_equal(children[i].outcome, 0);
  }
}

TEST(late_rank) {
  weir_nccl_unique_id id = new_id();
  child children[RANKS];
  for (int i = 0; i < RANKS; i++) {
    if (i == RANKS - 1)
      usleep(300000);
    children[i] = start(&id, RANKS, i, 0, 0, 30);
  }
  for (int i = 0; i < RANKS; i++) {
    finish(&children[i]);
    assert_int_equal(children[i].outcome, 0);
  }
}

/* Runs ranks of which one is killed or stopped at a step. True if it came to that step. */
static bool run_with_casualty(int casualty, int signal, int step, double seconds, weir_status expected) {
  weir_nccl_unique_id id = new_id();
  child children[RANKS];
  char text[64];
  for (int i = 0; i < RANKS; i++)
    children[i] = start(&id, RANKS, i, i == casualty ? signal : SIGKILL, i == casualty ? step : 1 << 30, seconds);
  snprintf(text, sizeof text, expected == WEIR_ERROR_REMOTE ? "rank %d has died (process %d)" : " %d", casualty,
           (int)children[casualty].pid);
  bool is_hit = false, has_failed = false;
  for (int i = 0; i < RANKS; i++) {
    if (i == casualty)
      continue;
    finish(&children[i]);
    if (!children[i].outcome) /* it needed the other no more */
      continue;
    has_failed = true;
    if (children[i].outcome != (int)expected || !strstr(children[i].text, text))
      print_error("step %d: rank %d ends with %d: %s\n", step, i, children[i].outcome, children[i].text);
    assert_int_equal(children[i].outcome, expected);
    assert_non_null(strstr(children[i].text, text));
  }
  if (signal == SIGSTOP)
    kill(children[casualty].pid, SIGKILL);
  finish(&children[casualty]);
  is_hit = children[casualty].outcome == -SIGKILL;
  if (!is_hit)
    assert_int_equal(children[casualty].outcome, 0);
  assert_true(is_hit || !has_failed);
  return is_hit;
}

TEST(killed_at_each_step) {
  for (int casualty = 0; casualty < usual_or_long(1, RANKS); casualty++) {
    int step = 1;
    while (run_with_casualty(casualty, SIGKILL, step, 30, WEIR_ERROR_REMOTE))
      step++;
    assert_in_range(step, 15, 100); /* it has that many steps */
  }
}

TEST(never_comes) { assert_true(run_with_casualty(1, SIGKILL, 0, 1.5, WEIR_ERROR_TIMEOUT)); }

TEST(stops) {
  for (int step = 4; step < 14; step += usual_or_long(9, 1))
    assert_true(run_with_casualty(step % RANKS, SIGSTOP, step, 1.5, WEIR_ERROR_TIMEOUT));
}

/* At any moment, in the middle of whatever it does. */
TEST(killed_at_any_time) {
  uint64_t random = 17;
  for (int round = 0; round < repetitions(5, 200); round++) {
    weir_nccl_unique_id id = new_id();
    child children[RANKS];
    for (int i = 0; i < RANKS; i++)
      children[i] = start(&id, RANKS, i, 0, 0, 2);
    usleep((useconds_t)(next_random(&random) % 60000));
    int casualty = (int)(next_random(&random) % RANKS);
    kill(children[casualty].pid, SIGKILL);
    for (int i = 0; i < RANKS; i++) {
      finish(&children[i]);
      if (i == casualty || !children[i].outcome)
        continue;
      if (children[i].outcome == WEIR_ERROR_TIMEOUT) /* it was killed before it came; not waited for here */
        continue;
      assert_int_equal(children[i].outcome, WEIR_ERROR_REMOTE);
      assert_non_null(strstr(children[i].text, "has died"));
    }
  }
}

/* The process that made the id has ended. */
static void make_id(void *data) {
  weir_nccl_unique_id id;
  int out = *(int *)data;
  child_assert_ok(weir_nccl_get_unique_id(&id));
  child_assert(write(out, &id, sizeof id) == sizeof id);
}

TEST(id_of_dead_process) {
  int ends[2];
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  in_process(make_id, &ends[1]);
  weir_nccl_unique_id id;
  assert_int_equal(read(ends[0], &id, sizeof id), sizeof id);
  close(ends[0]);
  close(ends[1]);
  weir_nccl_comm *comm;
  assert_error_says(REMOTE, "which made the id, has ended", weir_nccl_init_rank(&id, 2, 0, NULL, &comm));
}
