/*
 * Sixteen threads use streams, events, graphs and all kinds of memory, private and shared. Each checks the data that it
 * moves, and nothing leaks. The thread sanitizer checks the rest.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB, THREADS = 16, OPERATIONS = 200, STREAMS = 3, BYTES = 3000, SHARED = 4 };

static weir_cu_stream shared_streams[2][SHARED];
static weir_cu_event shared_events[2][SHARED];
static atomic_long shared_count;

/* The first failure; assertions work on the main thread only. */
static atomic_bool failed;
static char failure[256];

struct thread {
  pthread_t id;
  uint64_t random;
  int device;
  weir_cu_stream streams[STREAMS];
  weir_cu_event event;
  weir_cu_deviceptr a, b; /* BYTES each */
  unsigned char *host;    /* page-locked, BYTES */
  long shared;            /* work on shared streams */
};

static bool report(int line, const char *what, const char *why) {
  if (!atomic_exchange(&failed, true))
    snprintf(failure, sizeof failure, "line %d: %s: %s", line, what, why);
  return false;
}

#define thread_cu(call)                                                                                                \
  do {                                                                                                                 \
    weir_cu_result try_result = (call);                                                                                \
    if (try_result)                                                                                                    \
      return report(__LINE__, #call, weir_cu_result_name(try_result));                                                 \
  } while (0)
#define thread_check(condition)                                                                                        \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      return report(__LINE__, #condition, "no");                                                                       \
  } while (0)

static uint64_t below(struct thread *t, uint64_t limit) { return soft_random_r(&t->random, limit); }
static weir_cu_stream some_stream(struct thread *t) { return t->streams[below(t, STREAMS)]; }
static unsigned char some_value(struct thread *t) { return (unsigned char)(1 + below(t, 255)); }

static bool is_filled(const unsigned char *bytes, unsigned char value) {
  for (int i = 0; i < BYTES; i++)
    if (bytes[i] != value)
      return false;
  return true;
}

static void count_up(void *counter) { atomic_fetch_add((atomic_long *)counter, 1); }

/* ---- Operations ---- */

static bool fill_and_read(struct thread *t) {
  unsigned char value = some_value(t);
  weir_cu_stream s = some_stream(t);
  thread_cu(d->MemsetD8Async(d, t->a, value, BYTES, s));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)t->host, t->a, BYTES, s));
  thread_cu(d->StreamSynchronize(d, s));
  thread_check(is_filled(t->host, value));
  return true;
}

/* From one stream to another, synchronized by the device, the event or the host. */
static bool hand_over(struct thread *t) {
  unsigned char value = some_value(t), pageable[BYTES];
  weir_cu_stream s = some_stream(t), other = some_stream(t);
  thread_cu(d->MemsetD8Async(d, t->a, value, BYTES, s));
  thread_cu(d->EventRecord(d, t->event, s));
  thread_cu(d->StreamWaitEvent(d, other, t->event, 0));
  thread_cu(d->MemcpyAsync(d, t->b, t->a, BYTES, other));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)pageable, t->b, BYTES, other)); /* waits */
  thread_check(is_filled(pageable, value));
  thread_cu(d->EventQuery(d, t->event));
  memset(pageable, value ^ 1, BYTES);
  thread_cu(d->MemcpyAsync(d, t->a, (uintptr_t)pageable, BYTES, s)); /* read before it returns */
  memset(pageable, value, BYTES);
  thread_cu(d->EventRecord(d, t->event, s));
  thread_cu(d->EventSynchronize(d, t->event));
  thread_check(is_filled((unsigned char *)(uintptr_t)t->a, value ^ 1));
  return true;
}

static bool plain_memory(struct thread *t) {
  weir_cu_deviceptr p, none;
  unsigned char value = some_value(t);
  thread_cu(d->MemAlloc(d, &p, 1 + below(t, 5 * MIB) + BYTES));
  thread_check(is_filled((unsigned char *)(uintptr_t)p, 0));
  thread_cu(d->MemsetD8Async(d, p, value, BYTES, some_stream(t)));
  if (below(t, 2))
    thread_check(d->MemAlloc(d, &none, 1ull << 41) == WEIR_CU_OUT_OF_MEMORY);
  thread_cu(d->MemFree(d, p)); /* waits for the copy */
  return true;
}

static bool pool_memory(struct thread *t) {
  weir_cu_deviceptr p, q;
  unsigned char value = some_value(t);
  weir_cu_stream s = some_stream(t);
  weir_cu_mempool pool = NULL;
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, t->device}};
  if (below(t, 3) == 0) {
    thread_cu(d->MemPoolCreate(d, &pool, &props));
    thread_cu(d->MemAllocFromPoolAsync(d, &p, BYTES, pool, s));
    thread_cu(d->MemPoolDestroy(d, pool)); /* allocated memory stays valid */
  } else
    thread_cu(d->MemAllocAsync(d, &p, BYTES + below(t, 3 * MIB), s));
  thread_cu(d->MemsetD8Async(d, p, value, BYTES, s));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)t->host, p, BYTES, s));
  thread_cu(d->MemFreeAsync(d, p, s));
  thread_cu(d->MemAllocAsync(d, &q, BYTES, s));
  thread_cu(d->MemsetD8Async(d, q, value ^ 1, BYTES, s));
  thread_cu(d->MemFreeAsync(d, q, s));
  thread_cu(d->StreamSynchronize(d, s));
  thread_check(is_filled(t->host, value));
  return true;
}

static bool virtual_memory(struct thread *t) {
  weir_cu_deviceptr va;
  weir_cu_mem_handle handle;
  unsigned char value = some_value(t);
  weir_cu_stream s = some_stream(t);
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, t->device}};
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, t->device}, WEIR_CU_ACCESS_READWRITE};
  if (below(t, 2))
    prop.handle_types = WEIR_CU_HANDLE_POSIX_FD;
  thread_cu(d->MemAddressReserve(d, &va, 4 * G, 0, 0, 0));
  thread_cu(d->MemCreate(d, &handle, G, &prop, 0));
  if (prop.handle_types) {
    int fd;
    weir_cu_mem_handle again;
    thread_cu(d->MemExportToShareableHandle(d, &fd, handle, WEIR_CU_HANDLE_POSIX_FD, 0));
    weir_cu_result r = d->MemImportFromShareableHandle(d, &again, (void *)(intptr_t)fd, WEIR_CU_HANDLE_POSIX_FD);
    close(fd);
    thread_cu(r);
    thread_cu(d->MemRelease(d, handle));
    handle = again;
  }
  thread_cu(d->MemMap(d, va, G, 0, handle, 0));
  thread_cu(d->MemMap(d, va + 2 * G, G, 0, handle, 0));
  thread_cu(d->MemRelease(d, handle));
  thread_cu(d->MemSetAccess(d, va, G, &access, 1));
  thread_cu(d->MemSetAccess(d, va + 2 * G, G, &access, 1));
  thread_cu(d->MemsetD8Async(d, va + 5, value, BYTES, s));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)t->host, va + 2 * G + 5, BYTES, s));
  thread_cu(d->StreamSynchronize(d, s));
  thread_check(is_filled(t->host, value));
  thread_cu(d->MemUnmap(d, va, 4 * G));
  thread_cu(d->MemAddressFree(d, va, 4 * G));
  return true;
}

static bool graphs(struct thread *t) {
  unsigned char value = some_value(t);
  weir_cu_stream s = t->streams[0], other = t->streams[1]; /* not the blocking stream */
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  atomic_long ran = 0;
  weir_cu_deviceptr p = 0;
  bool own_memory = below(t, 2);
  thread_cu(d->StreamBeginCapture(d, s, below(t, 2) ? WEIR_CU_CAPTURE_RELAXED : WEIR_CU_CAPTURE_THREAD_LOCAL));
  if (own_memory)
    thread_cu(d->MemAllocAsync(d, &p, BYTES, s));
  thread_cu(d->MemsetD8Async(d, own_memory ? p : t->a, value, BYTES, s));
  thread_cu(d->EventRecord(d, t->event, s));
  thread_cu(d->StreamWaitEvent(d, other, t->event, 0));
  thread_cu(d->LaunchHostFunc(d, other, count_up, &ran));
  thread_cu(d->MemcpyAsync(d, t->b, own_memory ? p : t->a, BYTES, s));
  if (own_memory)
    thread_cu(d->MemFreeAsync(d, p, s));
  thread_cu(d->EventRecord(d, t->event, other));
  thread_cu(d->StreamWaitEvent(d, s, t->event, 0));
  thread_cu(d->StreamEndCapture(d, s, &graph));
  thread_cu(d->GraphInstantiate(d, &exec, graph, 0));
  thread_cu(d->GraphDestroy(d, graph));
  thread_cu(d->GraphLaunch(d, exec, s));
  thread_cu(d->GraphLaunch(d, exec, t->streams[2]));
  thread_cu(d->GraphLaunch(d, exec, other));
  thread_cu(d->GraphExecDestroy(d, exec));
  thread_cu(d->StreamSynchronize(d, s));
  thread_cu(d->StreamSynchronize(d, t->streams[2]));
  thread_cu(d->StreamSynchronize(d, other));
  thread_check(ran == 3);
  thread_check(is_filled((unsigned char *)(uintptr_t)t->b, value));
  return true;
}

static bool new_stream(struct thread *t, int i) {
  unsigned flags = i == 2 ? WEIR_CU_STREAM_DEFAULT : WEIR_CU_STREAM_NON_BLOCKING;
  thread_cu(d->StreamCreateWithPriority(d, &t->streams[i], flags, -(int)below(t, 6)));
  return true;
}

static bool destroy_while_busy(struct thread *t) {
  int i = (int)below(t, STREAMS);
  unsigned char value = some_value(t);
  weir_cu_event e;
  thread_cu(d->EventCreate(d, &e, below(t, 2) ? WEIR_CU_EVENT_DISABLE_TIMING | WEIR_CU_EVENT_INTERPROCESS : 0));
  for (int k = 0; k < 5; k++)
    thread_cu(d->MemsetD8Async(d, t->a, value, BYTES, t->streams[i]));
  thread_cu(d->EventRecord(d, e, t->streams[i]));
  thread_cu(d->StreamDestroy(d, t->streams[i]));
  if (!new_stream(t, i))
    return false;
  thread_cu(d->StreamWaitEvent(d, t->streams[i], e, 0));
  if (below(t, 2))
    thread_cu(d->EventSynchronize(d, e));
  thread_cu(d->EventDestroy(d, e));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)t->host, t->a, BYTES, t->streams[i]));
  thread_cu(d->StreamSynchronize(d, t->streams[i]));
  thread_check(is_filled(t->host, value));
  return true;
}

/* Streams and events that all threads share. */
static bool shared_work(struct thread *t) {
  weir_cu_stream s = shared_streams[t->device][below(t, SHARED)];
  weir_cu_event e = shared_events[t->device][below(t, SHARED)];
  thread_cu(d->LaunchHostFunc(d, s, count_up, &shared_count));
  t->shared++;
  thread_cu(d->EventRecord(d, e, s));
  thread_cu(d->StreamWaitEvent(d, shared_streams[1 - t->device][below(t, SHARED)], e, 0));
  thread_cu(d->StreamWaitEvent(d, some_stream(t), shared_events[1 - t->device][below(t, SHARED)], 0));
  weir_cu_result r = d->EventQuery(d, e);
  thread_check(r == WEIR_CU_SUCCESS || r == WEIR_CU_NOT_READY);
  if (below(t, 2))
    thread_cu(d->EventSynchronize(d, e));
  if (below(t, 8) == 0)
    thread_cu(d->StreamSynchronize(d, s));
  return true;
}

static bool host_memory(struct thread *t) {
  unsigned char own[BYTES], value = some_value(t);
  void *other;
  weir_cu_stream s = some_stream(t);
  thread_cu(d->MemHostRegister(d, own, BYTES, 0));
  thread_cu(d->MemHostAlloc(d, &other, BYTES, 0));
  thread_cu(d->MemsetD8Async(d, t->a, value, BYTES, s));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)own, t->a, BYTES, s));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)other, (uintptr_t)own, BYTES, s));
  thread_cu(d->StreamSynchronize(d, s));
  thread_check(is_filled(own, value));
  thread_check(is_filled(other, value));
  thread_cu(d->MemHostUnregister(d, own));
  thread_cu(d->MemFreeHost(d, other));
  return true;
}

static bool legacy(struct thread *t) {
  unsigned char value = some_value(t), pageable[BYTES];
  thread_cu(d->MemsetD8Async(d, t->a, value, BYTES, t->streams[2])); /* blocking: in order with the legacy stream */
  thread_cu(d->Memcpy(d, (uintptr_t)pageable, t->a, BYTES));
  thread_check(is_filled(pageable, value));
  thread_cu(d->MemsetD8Async(d, t->a, value ^ 1, BYTES, NULL));
  thread_cu(d->MemcpyAsync(d, (uintptr_t)t->host, t->a, BYTES, t->streams[2]));
  thread_cu(d->StreamSynchronize(d, t->streams[2]));
  thread_check(is_filled(t->host, value ^ 1));
  return true;
}

static bool ask(struct thread *t) {
  size_t left, total;
  int value;
  unsigned long pieces;
  weir_soft_census census = {.size = sizeof census};
  weir_cu_deviceptr base;
  thread_cu(d->MemGetInfo(d, &left, &total));
  thread_check(left <= total);
  thread_cu(d->MemGetAddressRange(d, &base, &total, t->a + 5));
  thread_check(base == t->a && total == BYTES);
  thread_cu(d->PointerGetAttribute(d, &value, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, t->b));
  thread_check(value == t->device);
  thread_cu(d->StreamIsCapturing(d, some_stream(t), &value));
  thread_check(value == WEIR_CU_CAPTURE_STATUS_NONE);
  thread_check(weir_soft_pending(d, some_stream(t), &pieces) == WEIR_OK);
  thread_check(weir_soft_get_census(d, &census) == WEIR_OK);
  thread_check(census.streams >= 2 * SHARED + STREAMS);
  weir_cu_ipc_mem_handle handle;
  thread_cu(d->IpcGetMemHandle(d, &handle, t->a));
  thread_cu(d->ThreadExchangeStreamCaptureMode(d, &(int){WEIR_CU_CAPTURE_RELAXED}));
  return true;
}

static void *use_own_stream(void *data) {
  struct thread *t = data;
  weir_cu_result r = d->CtxSetCurrent(d, contexts[t->device]);
  if (!r)
    r = d->MemsetD8Async(d, t->a, 77, BYTES, WEIR_CU_STREAM_PER_THREAD);
  if (!r)
    r = d->EventRecord(d, t->event, WEIR_CU_STREAM_PER_THREAD);
  return (void *)(intptr_t)r;
}

static bool another_thread(struct thread *t) {
  pthread_t id;
  void *result;
  thread_check(!pthread_create(&id, NULL, use_own_stream, t));
  pthread_join(id, &result);
  thread_cu((weir_cu_result)(intptr_t)result);
  thread_cu(d->EventSynchronize(d, t->event));
  thread_check(is_filled((unsigned char *)(uintptr_t)t->a, 77));
  return true;
}

static bool begin(struct thread *t) {
  void *host;
  thread_cu(d->CtxSetCurrent(d, contexts[t->device]));
  for (int i = 0; i < STREAMS; i++)
    if (!new_stream(t, i))
      return false;
  thread_cu(d->EventCreate(d, &t->event, 0));
  thread_cu(d->MemAlloc(d, &t->a, BYTES));
  thread_cu(d->MemAlloc(d, &t->b, BYTES));
  thread_cu(d->MemHostAlloc(d, &host, BYTES, 0));
  t->host = host;
  return true;
}

static bool end(struct thread *t) {
  for (int i = 0; i < STREAMS; i++)
    thread_cu(d->StreamDestroy(d, t->streams[i]));
  thread_cu(d->EventDestroy(d, t->event));
  thread_cu(d->MemFree(d, t->a));
  thread_cu(d->MemFree(d, t->b));
  thread_cu(d->MemFreeHost(d, t->host));
  return true;
}

static void *run_thread(void *data) {
  static bool (*const operations[])(struct thread *) = {
      fill_and_read, hand_over,   plain_memory, pool_memory, virtual_memory, graphs, destroy_while_busy, shared_work,
      shared_work,   host_memory, legacy,       ask,         another_thread};
  struct thread *t = data;
  bool good = begin(t);
  for (int i = 0; good && !failed && i < OPERATIONS; i++)
    good = operations[below(t, sizeof operations / sizeof *operations)](t);
  if (good)
    end(t);
  return NULL;
}

FIXTURE(.teardown = soft_teardown)

TEST(sixteen_threads) {
  static struct thread threads[THREADS];
  int rounds = 2;
  for (uint64_t seed = soft_first_seed(&rounds), r = 0; r < (uint64_t)rounds; r++, seed++) {
    soft_open(WEIR_SOFT_THREADS, 2, 1ull << 40);
    soft_seed(seed);
    shared_count = 0;
    for (int i = 0; i < 2; i++) {
      soft_use(i);
      for (int k = 0; k < SHARED; k++) {
        shared_streams[i][k] = soft_stream(k ? WEIR_CU_STREAM_NON_BLOCKING : WEIR_CU_STREAM_DEFAULT);
        shared_events[i][k] = soft_event();
      }
    }
    for (int i = 0; i < THREADS; i++) {
      threads[i] = (struct thread){.random = soft_random(UINT64_MAX), .device = i % 2};
      assert_int_equal(pthread_create(&threads[i].id, NULL, run_thread, &threads[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
      pthread_join(threads[i].id, NULL);
    if (failed)
      fail_msg("%s", failure);
    long expected = 0;
    for (int i = 0; i < THREADS; i++)
      expected += threads[i].shared;
    for (int i = 0; i < 2; i++) {
      soft_use(i);
      assert_cu(d->CtxSynchronize(d));
      for (int k = 0; k < SHARED; k++) {
        assert_cu(d->StreamDestroy(d, shared_streams[i][k]));
        assert_cu(d->EventDestroy(d, shared_events[i][k]));
      }
    }
    assert_int_equal(shared_count, expected);
    weir_soft_census census = soft_census();
    assert_int_equal(census.streams + census.events + census.graphs + census.graph_execs + census.allocations +
                         census.host_allocations + census.registrations + census.reservations + census.mappings +
                         census.handles + census.pools,
                     0);
    assert_int_equal(census.device_bytes, 0);
    soft_close();
  }
}
