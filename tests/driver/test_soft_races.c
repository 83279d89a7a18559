/*
 * Calls that wait release the lock of the device. Changes by other threads meanwhile must be noticed: each case blocks
 * the device at a gate while several calls wait, then opens it.
 */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB };

struct waiter {
  pthread_t id;
  weir_cu_result (*call)(void *data);
  void *data;
};

static void *run_waiter(void *data) {
  struct waiter *w = data;
  weir_cu_result r = d->CtxSetCurrent(d, ctx);
  return (void *)(intptr_t)(r ? r : w->call(w->data));
}

/* Long enough for a thread to start waiting; if it is not, the case tests less. */
static void start(struct waiter *w, weir_cu_result (*call)(void *data), void *data) {
  w->call = call;
  w->data = data;
  assert_int_equal(pthread_create(&w->id, NULL, run_waiter, w), 0);
  nanosleep(&(struct timespec){0, 20000000}, NULL);
}

static weir_cu_result result(struct waiter *w) {
  void *r;
  assert_int_equal(pthread_join(w->id, &r), 0);
  return (weir_cu_result)(intptr_t)r;
}

static weir_cu_result free_memory(void *p) { return d->MemFree(d, *(weir_cu_deviceptr *)p); }
static weir_cu_result free_host(void *p) { return d->MemFreeHost(d, p); }
static weir_cu_result unregister(void *p) { return d->MemHostUnregister(d, p); }
static weir_cu_result unload(void *module) { return d->ModuleUnload(d, module); }
static weir_cu_result release(void *data) {
  (void)data;
  return d->DevicePrimaryCtxRelease(d, 0);
}

/* Of three calls that free the same memory, one succeeds. */
static void expect_one(weir_cu_result (*call)(void *data), void *data, weir_cu_stream busy, weir_cu_result refusal) {
  struct waiter w[3];
  int done = 0;
  struct gate *gate = gate_close(busy);
  for (int i = 0; i < 3; i++)
    start(&w[i], call, data);
  gate_open(gate);
  for (int i = 0; i < 3; i++) {
    weir_cu_result r = result(&w[i]);
    if (r)
      assert_cu_result(refusal, r);
    done += r == WEIR_CU_SUCCESS;
  }
  assert_int_equal(done, 1);
}

FIXTURE(.teardown = soft_teardown)

TEST(freed_by_several) {
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr p = soft_alloc(100);
  expect_one(free_memory, &p, s, WEIR_CU_INVALID_VALUE);

  /* From a pool that keeps it: the range stays, free. */
  weir_cu_mempool pool;
  uint64_t all = UINT64_MAX, used;
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  assert_cu(d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
  assert_cu(d->MemAllocAsync(d, &p, 100, s));
  expect_one(free_memory, &p, s, WEIR_CU_INVALID_VALUE);
  assert_cu(d->MemPoolGetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, &used));
  assert_int_equal(used, 0);

  void *host;
  static char own[100];
  assert_cu(d->MemHostAlloc(d, &host, 100, 0));
  expect_one(free_host, host, s, WEIR_CU_INVALID_VALUE);
  assert_cu(d->MemHostRegister(d, own, 100, 0));
  expect_one(unregister, own, s, WEIR_CU_HOST_MEMORY_NOT_REGISTERED);
  weir_cu_module module;
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  expect_one(unload, module, s, WEIR_CU_INVALID_HANDLE);
  soft_close();
}

/* Freed by a waiting call, and meanwhile freed on a stream and reused: it no longer belongs to the waiting call. */
TEST(freed_and_handed_out_again) {
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  int refused = 0;
  for (int i = 0; i < 5; i++) {
    weir_cu_deviceptr p, q;
    struct waiter w;
    assert_cu(d->MemAllocAsync(d, &p, 100, s));
    struct gate *gate = gate_close(s);
    start(&w, free_memory, &p);
    assert_cu(d->MemFreeAsync(d, p, s));
    assert_cu(d->MemAllocAsync(d, &q, 100, s));
    assert_int_equal(p, q);
    gate_open(gate);
    weir_cu_result r = result(&w);
    if (r) { /* otherwise it came too late, and freed the new one */
      assert_cu_result(WEIR_CU_INVALID_VALUE, r);
      assert_cu(d->MemsetD8Async(d, q, 1, 100, s));
      assert_cu(d->MemFreeAsync(d, q, s));
      refused++;
    }
    assert_cu(d->StreamSynchronize(d, s));
  }
  assert_true(refused > 0);
  soft_close();
}

static weir_cu_mempool pool;
static weir_cu_stream other_stream;

static weir_cu_result alloc_from_pool(void *p) { return d->MemAllocFromPoolAsync(d, p, 8 * MIB, pool, other_stream); }

/* An allocation that waits for memory from a pool that is destroyed. */
TEST(pool_destroyed_meanwhile) {
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  soft_open(WEIR_SOFT_THREADS, 1, 8 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  other_stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr p, q;
  struct waiter w;
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  assert_cu(d->MemAllocFromPoolAsync(d, &p, 8 * MIB, pool, s));
  struct gate *gate = gate_close(s);
  assert_cu(d->MemFreeAsync(d, p, s));
  start(&w, alloc_from_pool, &q);
  assert_cu(d->MemPoolDestroy(d, pool));
  gate_open(gate);
  weir_cu_result r = result(&w);
  assert_true(r == WEIR_CU_OUT_OF_MEMORY || r == WEIR_CU_INVALID_VALUE); /* the latter if it came too late */
  assert_cu(d->StreamSynchronize(d, s));
  assert_int_equal(soft_census().device_bytes, 0);

  /* The same without destroying the pool: it gets the freed memory. */
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  assert_cu(d->MemAllocFromPoolAsync(d, &p, 8 * MIB, pool, s));
  gate = gate_close(s);
  assert_cu(d->MemFreeAsync(d, p, s));
  start(&w, alloc_from_pool, &q);
  gate_open(gate);
  assert_cu(result(&w));
  assert_cu(d->MemFree(d, q));
  soft_close();
}

static weir_cu_result copy_back(void *host) {
  return d->MemcpyAsync(d, (uintptr_t)host, ((weir_cu_deviceptr *)host)[1], 8, other_stream);
}

/* Destroys a stream, and releases a context, while a copy to pageable memory waits. */
TEST(stream_destroyed_meanwhile) {
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_deviceptr host[2] = {0, soft_alloc(8)};
  other_stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  assert_cu(d->MemsetD8Async(d, host[1], 5, 8, other_stream));
  struct waiter copy, end;
  struct gate *gate = gate_close(other_stream);
  start(&copy, copy_back, host);
  assert_cu(d->StreamDestroy(d, other_stream));
  start(&end, release, NULL); /* waits for the work too */
  gate_open(gate);
  weir_cu_result r = result(&copy);
  if (r) /* it came too late, and the stream or the context was gone */
    assert_true(r == WEIR_CU_INVALID_HANDLE || r == WEIR_CU_CONTEXT_IS_DESTROYED);
  else
    assert_int_equal(host[0], 0x0505050505050505);
  assert_cu(result(&end));
  soft_check_nothing();
  assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[0], 0));
  soft_close();
}

/* Retained while the last release waits: the context stays. */
TEST(context_retained_meanwhile) {
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_context context;
  struct waiter w;
  struct gate *gate = gate_close(s);
  start(&w, release, NULL);
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_ptr_equal(context, contexts[0]);
  gate_open(gate);
  assert_cu(result(&w));
  assert_cu(d->StreamSynchronize(d, s)); /* nothing has changed */
  assert_cu(d->StreamDestroy(d, s));
  soft_close();
}
