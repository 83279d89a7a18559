/*
 * Graphs: the result of a capture, and launching it.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "driver/rules.h"

static weir_cu_graph_exec instantiate(weir_cu_graph graph) {
  weir_cu_graph_exec exec;
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  return exec;
}

static size_t node_count(weir_cu_graph graph) {
  size_t count = 99;
  assert_cu(d->GraphGetNodes(d, graph, NULL, &count));
  return count;
}

/* ---- Creating and destroying ---- */

FIXTURE(RULES)

TEST(empty_graph) {
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph = NULL;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_int_equal(node_count(graph), 0);
  weir_cu_graph_exec exec = instantiate(graph);
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(bad_arguments) {
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph;
  weir_cu_graph_exec exec = NULL;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu_error(INVALID_VALUE, d->GraphInstantiate(d, &exec, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->GraphLaunch(d, NULL, stream));
  assert_cu_error(INVALID_VALUE, d->GraphInstantiate(d, &exec, graph, 1 << 20));
  assert_null(exec);
  assert_cu_error(OPERATING_SYSTEM, d->GraphDebugDotPrint(d, graph, "/nonexistent/x.dot", 0));
  assert_cu_error(INVALID_VALUE, d->GraphDestroy(d, NULL));
  assert_cu_error(INVALID_VALUE, d->GraphExecDestroy(d, NULL));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Replay ---- */

TEST(nothing_runs_in_a_capture) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(100);
  weir_cu_graph graph;
  assert_cu(d->MemsetD8Async(d, p, 1, 100, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemsetD8Async(d, p, 2, 100, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->CtxSynchronize(d));
  assert_device_filled(p, 100, 1);
  weir_cu_graph_exec exec = instantiate(graph);
  assert_cu(d->CtxSynchronize(d));
  assert_device_filled(p, 100, 1);
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_device_filled(p, 100, 2);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(replay_with_new_input) {
  enum { bytes = 10000 };
  weir_cu_stream stream = stream_new(), other = stream_new();
  weir_cu_deviceptr p = mem_new(bytes), q = mem_new(bytes);
  unsigned char *in = host_new(bytes), *out = host_new(bytes);
  weir_cu_graph graph;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemcpyAsync(d, p, address_of(in), bytes, stream));
  assert_cu(d->MemcpyAsync(d, q, p, bytes, stream));
  assert_cu(d->MemsetD32Async(d, q, 0x01020304, 1, stream));
  assert_cu(d->MemcpyAsync(d, address_of(out), q, bytes, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_int_equal(node_count(graph), 4);
  weir_cu_graph_exec exec = instantiate(graph);
  for (int round = 1; round <= 10; round++) {
    /* On a stream that was not part of the capture too. */
    weir_cu_stream launched = round % 2 ? stream : other;
    memset(in, round, bytes);
    memset(out, 0, bytes);
    assert_cu(d->GraphLaunch(d, exec, launched));
    assert_cu(d->StreamSynchronize(d, launched));
    uint32_t word;
    memcpy(&word, out, 4);
    assert_int_equal(word, 0x01020304);
    assert_filled(out + 4, bytes - 4, (unsigned char)round);
  }
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
  assert_cu(d->MemFreeHost(d, in));
  assert_cu(d->MemFreeHost(d, out));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamDestroy(d, other));
}

/* A captured copy reads pageable memory at the launch, not at the capture. */
TEST(replay_from_pageable_memory) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(4096);
  unsigned char *in = malloc(4096), *out = malloc(4096);
  weir_cu_graph graph;
  assert_non_null(in);
  assert_non_null(out);
  memset(in, 1, 4096);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemcpyAsync(d, p, address_of(in), 4096, stream));
  assert_cu(d->MemcpyAsync(d, address_of(out), p, 4096, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  weir_cu_graph_exec exec = instantiate(graph);
  for (unsigned char round = 2; round < 5; round++) {
    memset(in, round, 4096);
    assert_cu(d->GraphLaunch(d, exec, stream));
    assert_cu(d->StreamSynchronize(d, stream));
    assert_filled(out, 4096, round);
  }
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  free(in);
  free(out);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

/* A launch is ordered in its stream like any other work. */
TEST(launch_between_other_work) {
  weir_cu_stream stream = stream_new(), other = stream_new();
  weir_cu_event event = event_new(0);
  weir_cu_deviceptr p = mem_new(100), q = mem_new(100);
  unsigned char *host = host_new(200);
  weir_cu_graph graph;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemcpyAsync(d, q, p, 100, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  weir_cu_graph_exec exec = instantiate(graph);
  struct gate *gate = gate_close(stream);
  assert_cu(d->MemsetD8Async(d, p, 1, 100, stream));
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->MemsetD8Async(d, p, 2, 100, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host), q, 100, stream));
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->StreamWaitEvent(d, other, event, 0));
  assert_cu(d->MemcpyAsync(d, address_of(host) + 100, q, 100, other));
  assert_cu_error(NOT_READY, d->EventQuery(d, event));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, other));
  assert_filled(host, 100, 1);
  assert_filled(host + 100, 100, 2);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamDestroy(d, other));
}

TEST(launch_in_default_streams) {
  weir_cu_stream stream = stream_new(), blocking = stream_new_blocking();
  weir_cu_deviceptr p = mem_new(100);
  weir_cu_graph graph;
  unsigned char *host = host_new(100);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemsetD8Async(d, p, 6, 100, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  weir_cu_graph_exec exec = instantiate(graph);
  assert_cu(d->GraphUpload(d, exec, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  weir_cu_stream streams[] = {NULL, WEIR_CU_STREAM_PER_THREAD};
  for (int i = 0; i < 2; i++) {
    assert_cu(d->MemsetD8Async(d, p, 0, 100, streams[i]));
    assert_cu(d->GraphLaunch(d, exec, streams[i]));
    assert_cu(d->StreamSynchronize(d, streams[i]));
    assert_device_filled(p, 100, 6);
  }
  /* A blocking stream waits for a graph on the legacy stream. */
  assert_cu(d->MemsetD8Async(d, p, 0, 100, NULL));
  spin(NULL, 10);
  assert_cu(d->GraphLaunch(d, exec, NULL));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 100, blocking));
  assert_cu(d->StreamSynchronize(d, blocking));
  assert_filled(host, 100, 6);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamDestroy(d, blocking));
}

/* ---- Shape ---- */

static int by_size(const void *a, const void *b) {
  size_t x = *(const size_t *)a, y = *(const size_t *)b;
  return (x > y) - (x < y);
}

TEST(fork_and_join) {
  weir_cu_stream first = stream_new(), second = stream_new(), other = stream_new();
  weir_cu_event fork = event_new(0), join = event_new(WEIR_CU_EVENT_DISABLE_TIMING);
  weir_cu_deviceptr p = mem_new(400);
  unsigned char *in = host_new(100), *out = host_new(200);
  weir_cu_graph graph;
  assert_cu(d->StreamBeginCapture(d, first, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemcpyAsync(d, p, address_of(in), 100, first));
  assert_cu(d->EventRecord(d, fork, first));
  assert_cu(d->StreamWaitEvent(d, second, fork, 0));
  assert_cu(d->MemcpyAsync(d, p + 100, p, 100, second));
  assert_cu(d->MemcpyAsync(d, p + 200, p, 100, first));
  assert_cu(d->EventRecord(d, join, second));
  assert_cu(d->StreamWaitEvent(d, first, join, 0));
  assert_cu(d->MemcpyAsync(d, address_of(out), p + 100, 200, first));
  assert_cu(d->StreamEndCapture(d, first, &graph));
  assert_int_equal(capture_status(second), WEIR_CU_CAPTURE_STATUS_NONE);

  /* Records and waits are edges, not nodes. */
  weir_cu_graph_node nodes[10], from[10];
  size_t count = 10, edges[4], few = 2;
  assert_cu(d->GraphGetNodes(d, graph, nodes, &count));
  assert_int_equal(count, 4);
  for (int i = 0; i < 4; i++) {
    assert_cu(d->GraphNodeGetDependencies(d, nodes[i], NULL, &edges[i]));
    size_t room = 10;
    assert_cu(d->GraphNodeGetDependencies(d, nodes[i], from, &room));
    assert_int_equal(room, edges[i]);
    for (size_t k = 0; k < room; k++)
      assert_true(from[k] == nodes[0] || from[k] == nodes[1] || from[k] == nodes[2] || from[k] == nodes[3]);
  }
  qsort(edges, 4, sizeof *edges, by_size);
  assert_int_equal(edges[0], 0);
  assert_int_equal(edges[1], 1);
  assert_int_equal(edges[2], 1);
  assert_int_equal(edges[3], 2);
  assert_cu(d->GraphGetNodes(d, graph, nodes, &few));
  assert_int_equal(few, 2);

  weir_cu_graph_exec exec = instantiate(graph);
  weir_cu_stream streams[] = {first, second, other};
  for (int i = 0; i < 6; i++) {
    memset(in, 10 + i, 100);
    assert_cu(d->GraphLaunch(d, exec, streams[i % 3]));
    assert_cu(d->StreamSynchronize(d, streams[i % 3]));
    assert_filled(out, 200, (unsigned char)(10 + i));
  }
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->EventDestroy(d, fork));
  assert_cu(d->EventDestroy(d, join));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, in));
  assert_cu(d->MemFreeHost(d, out));
  for (int i = 0; i < 3; i++)
    assert_cu(d->StreamDestroy(d, streams[i]));
}

TEST(dot_text) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(100);
  weir_cu_graph graph;
  char path[] = "/tmp/weir-dot-XXXXXX", text[16384];
  int fd = mkstemp(path);
  assert_int_not_equal(fd, -1);
  close(fd);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemsetD8Async(d, p, 1, 100, stream));
  assert_cu(d->MemcpyAsync(d, p, p + 50, 50, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphDebugDotPrint(d, graph, path, 0));
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  unlink(path);
  assert_non_null(strstr(text, "digraph"));
  assert_non_null(strstr(text, "->"));
  if (!is_cuda()) { /* the rest of the output of NVIDIA's driver is unspecified */
    assert_null(strstr(strstr(text, "->") + 2, "->"));
    assert_non_null(strstr(text, "MEMSET"));
    assert_non_null(strstr(text, "MEMCPY"));
  }
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Lifetimes ---- */

/* An executable depends neither on the graph nor on the streams and events of the capture. */
TEST(exec_outlives_what_made_it) {
  weir_cu_stream first = stream_new(), second = stream_new(), other = stream_new();
  weir_cu_event event = event_new(0), back = event_new(0);
  weir_cu_deviceptr p = mem_new(200);
  weir_cu_graph graph;
  assert_cu(d->StreamBeginCapture(d, first, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemsetD8Async(d, p, 4, 100, first));
  assert_cu(d->EventRecord(d, event, first));
  assert_cu(d->StreamWaitEvent(d, second, event, 0));
  assert_cu(d->MemcpyAsync(d, p + 100, p, 100, second));
  assert_cu(d->EventRecord(d, back, second));
  assert_cu(d->StreamWaitEvent(d, first, back, 0));
  assert_cu(d->StreamEndCapture(d, first, &graph));
  weir_cu_graph_exec exec = instantiate(graph), again = instantiate(graph);
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->EventDestroy(d, back));
  assert_cu(d->StreamDestroy(d, first));
  assert_cu(d->StreamDestroy(d, second));
  weir_cu_graph_exec execs[] = {exec, again};
  for (int i = 0; i < 2; i++) {
    assert_cu(d->MemsetD8Async(d, p, 0, 200, other));
    assert_cu(d->GraphLaunch(d, execs[i], other));
    assert_cu(d->StreamSynchronize(d, other));
    assert_device_filled(p, 200, 4);
    assert_cu(d->GraphExecDestroy(d, execs[i]));
  }
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, other));
}

/* A launch completes even if its executable is destroyed. */
TEST(destroy_exec_in_flight) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(100);
  unsigned char *host = host_new(100);
  weir_cu_graph graph;
  weir_cu_function function = spin_function();
  uint64_t cycles = 1000;
  void *params[] = {&cycles};
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  assert_cu(d->MemsetD8Async(d, p, 4, 100, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 100, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  weir_cu_graph_exec exec = instantiate(graph);
  assert_cu(d->GraphDestroy(d, graph));
  spin(stream, 30);
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_filled(host, 100, 4);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- User objects ---- */

static void end_object(void *ended) { atomic_fetch_add((atomic_int *)ended, 1); }

static weir_cu_user_object object_new(atomic_int *ended, unsigned count) {
  weir_cu_user_object object;
  atomic_store(ended, 0);
  assert_cu(d->UserObjectCreate(d, &object, ended, end_object, count, WEIR_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  return object;
}

/* NVIDIA's driver may call the destructor later, on a thread of its own. */
static void assert_ended(atomic_int *ended) {
  for (int i = 0; is_cuda() && i < 5000 && !atomic_load(ended); i++)
    usleep(1000);
  assert_int_equal(atomic_load(ended), 1);
}

static weir_cu_graph graph_being_captured(weir_cu_stream stream) {
  weir_cu_graph graph = NULL;
  int status;
  assert_cu(d->StreamGetCaptureInfo(d, stream, &status, NULL, &graph, NULL, NULL));
  assert_non_null(graph);
  return graph;
}

#define NEED_USER_OBJECTS()                                                                                            \
  do {                                                                                                                 \
    if (!d->UserObjectCreate)                                                                                          \
      WAIVE_TEST("needs user objects");                                                                                \
  } while (0)

TEST(user_object_of_the_program) {
  NEED_USER_OBJECTS();
  atomic_int ended;
  weir_cu_user_object object = object_new(&ended, 3);
  assert_cu(d->UserObjectRelease(d, object, 2));
  assert_int_equal(ended, 0);
  assert_cu(d->UserObjectRelease(d, object, 1));
  assert_ended(&ended);
  assert_cu_error(INVALID_VALUE, d->UserObjectCreate(d, &object, &ended, end_object, 1, 0));
  assert_cu_error(INVALID_VALUE, d->UserObjectCreate(d, &object, &ended, end_object, 0, 1));
}

/* The graph, each executable, and each launch keep it. */
TEST(user_object_of_a_graph) {
  NEED_USER_OBJECTS();
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(100);
  weir_cu_graph graph;
  atomic_int ended;
  weir_cu_user_object object = object_new(&ended, 1);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemsetD8Async(d, p, 4, 100, stream));
  assert_cu(d->GraphRetainUserObject(d, graph_being_captured(stream), object, 1, WEIR_CU_GRAPH_USER_OBJECT_MOVE));
  assert_cu(d->MemsetD8Async(d, p, 5, 100, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  weir_cu_graph_exec first = instantiate(graph), second = instantiate(graph);
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->GraphLaunch(d, first, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->GraphExecDestroy(d, first));
  assert_int_equal(ended, 0);
  struct gate *gate = is_ledger() ? NULL : gate_close(stream); /* on the ledger work is done at once */
  assert_cu(d->GraphLaunch(d, second, stream));
  assert_cu(d->GraphExecDestroy(d, second));
  if (gate) {
    assert_int_equal(ended, 0);
    gate_open(gate);
  }
  assert_cu(d->StreamSynchronize(d, stream));
  assert_ended(&ended);
  assert_device_filled(p, 100, 5);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

/* A graph without nodes, and one whose capture fails. */
TEST(user_object_without_launches) {
  NEED_USER_OBJECTS();
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph;
  atomic_int ended;
  weir_cu_user_object object = object_new(&ended, 1);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->GraphRetainUserObject(d, graph_being_captured(stream), object, 1, 0));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->UserObjectRelease(d, object, 1));
  weir_cu_graph_exec exec = instantiate(graph);
  assert_cu(d->GraphDestroy(d, graph));
  assert_int_equal(ended, 0);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_ended(&ended);

  object = object_new(&ended, 1);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->GraphRetainUserObject(d, graph_being_captured(stream), object, 1, WEIR_CU_GRAPH_USER_OBJECT_MOVE));
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamSynchronize(d, stream));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, stream, &graph));
  assert_ended(&ended);
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Host functions ---- */

struct turnstile {
  pthread_mutex_t lock;
  int inside, most, passed;
};

static void go_in(void *data) {
  struct turnstile *t = data;
  pthread_mutex_lock(&t->lock);
  if (++t->inside > t->most)
    t->most = t->inside;
  pthread_mutex_unlock(&t->lock);
}

static void go_out(void *data) {
  struct turnstile *t = data;
  pthread_mutex_lock(&t->lock);
  t->inside--;
  t->passed++;
  pthread_mutex_unlock(&t->lock);
}

/* Launches of one executable never overlap, on any streams. */
TEST(launches_do_not_overlap) {
  enum { streams = 4, launches = 12 };
  weir_cu_stream stream[streams];
  weir_cu_graph graph;
  weir_cu_function function = spin_function();
  struct turnstile turnstile = {.lock = PTHREAD_MUTEX_INITIALIZER};
  int khz;
  assert_cu(d->DeviceGetAttribute(d, &khz, WEIR_CU_ATTR_CLOCK_RATE, 0));
  uint64_t cycles = (uint64_t)khz * 2; /* two milliseconds */
  void *params[] = {&cycles};
  for (int i = 0; i < streams; i++)
    stream[i] = stream_new();
  assert_cu(d->StreamBeginCapture(d, stream[0], WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->LaunchHostFunc(d, stream[0], go_in, &turnstile));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream[0], params, NULL));
  assert_cu(d->LaunchHostFunc(d, stream[0], go_out, &turnstile));
  assert_cu(d->StreamEndCapture(d, stream[0], &graph));
  assert_int_equal(node_count(graph), 3);
  weir_cu_graph_exec exec = instantiate(graph);
  for (int i = 0; i < launches; i++)
    assert_cu(d->GraphLaunch(d, exec, stream[i % streams]));
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(turnstile.passed, launches);
  assert_int_equal(turnstile.most, 1);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  for (int i = 0; i < streams; i++)
    assert_cu(d->StreamDestroy(d, stream[i]));
}

/* A launch is ordered after earlier launches, and so after what they wait for. */
TEST(launches_are_in_order) {
  weir_cu_stream first = stream_new(), second = stream_new();
  weir_cu_deviceptr p = mem_new(200);
  unsigned char *host = host_new(100);
  weir_cu_graph graph;
  assert_cu(d->StreamBeginCapture(d, first, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemcpyAsync(d, p + 100, p, 100, first));
  assert_cu(d->StreamEndCapture(d, first, &graph));
  weir_cu_graph_exec exec = instantiate(graph);
  assert_cu(d->MemsetD8Async(d, p, 1, 200, first));
  assert_cu(d->StreamSynchronize(d, first));
  spin(first, 20);
  assert_cu(d->MemsetD8Async(d, p, 2, 100, first));
  assert_cu(d->GraphLaunch(d, exec, first));
  assert_cu(d->GraphLaunch(d, exec, second));
  assert_cu(d->MemcpyAsync(d, address_of(host), p + 100, 100, second));
  assert_cu(d->StreamSynchronize(d, second));
  assert_filled(host, 100, 2);
  assert_cu(d->StreamSynchronize(d, first));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, first));
  assert_cu(d->StreamDestroy(d, second));
}

/* ---- Freed memory ---- */

TEST(launch_without_its_memory) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver finds out on the device, and the context is lost");
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(MIB), q = mem_new(MIB);
  weir_cu_graph fills, copies;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, p, 1, MIB, stream));
  assert_cu(d->StreamEndCapture(d, stream, &fills));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, q, 1, MIB, stream));
  assert_cu(d->MemsetD8Async(d, nowhere, 1, 1, stream));
  assert_cu(d->StreamEndCapture(d, stream, &copies));
  weir_cu_graph_exec fill = instantiate(fills), copy = instantiate(copies);
  assert_cu(d->MemFree(d, p));
  assert_cu_error(INVALID_VALUE, d->GraphLaunch(d, fill, stream));
  assert_cu_error(INVALID_VALUE, d->GraphLaunch(d, copy, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_device_filled(q, MIB, 0); /* all or nothing */
  assert_cu(d->GraphExecDestroy(d, fill));
  assert_cu(d->GraphExecDestroy(d, copy));
  assert_cu(d->GraphDestroy(d, fills));
  assert_cu(d->GraphDestroy(d, copies));
  assert_cu(d->MemFree(d, q));
  assert_cu(d->StreamDestroy(d, stream));
}

/* A graph belongs to the capture until that ends. */
TEST(destroy_graph_in_capture) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver forbids it, and does not look");
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph, info;
  int status;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamGetCaptureInfo(d, stream, &status, NULL, &info, NULL, NULL));
  assert_cu_error(INVALID_VALUE, d->GraphDestroy(d, info));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->StreamDestroy(d, stream));
}

/* A capture may span devices. */
TEST_SETUP(graph_of_two_devices, device_setup_two, device_teardown) {
  if (device_count() < 2)
    WAIVE_TEST("there is one device");
  weir_cu_context other;
  weir_cu_graph graph;
  weir_cu_stream here = stream_new();
  weir_cu_event fork = event_new(0);
  weir_cu_deviceptr p = mem_new(100);
  assert_cu(d->DevicePrimaryCtxRetain(d, &other, 1));
  assert_cu(d->CtxSetCurrent(d, other));
  weir_cu_stream there = stream_new();
  weir_cu_event join = event_new(0);
  weir_cu_deviceptr q = mem_new(100);
  assert_cu(d->StreamBeginCapture(d, here, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemsetD8Async(d, p, 1, 100, here));
  assert_cu(d->EventRecord(d, fork, here));
  assert_cu(d->StreamWaitEvent(d, there, fork, 0));
  assert_cu(d->MemsetD8Async(d, q, 2, 100, there));
  assert_cu(d->EventRecord(d, join, there));
  assert_cu(d->StreamWaitEvent(d, here, join, 0));
  assert_cu(d->StreamEndCapture(d, here, &graph));
  assert_int_equal(node_count(graph), 2);
  assert_cu(d->CtxSetCurrent(d, ctx));
  weir_cu_graph_exec exec = instantiate(graph);
  assert_cu(d->GraphLaunch(d, exec, here));
  assert_cu(d->StreamSynchronize(d, here));
  assert_device_filled(p, 100, 1);
  assert_cu(d->CtxSetCurrent(d, other));
  assert_device_filled(q, 100, 2);
  assert_cu(d->MemFree(d, q));
  assert_cu(d->EventDestroy(d, join));
  assert_cu(d->StreamDestroy(d, there));
  assert_cu(d->CtxSetCurrent(d, ctx));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->EventDestroy(d, fork));
  assert_cu(d->StreamDestroy(d, here));
}
