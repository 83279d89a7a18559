/*
 * A CUDA runtime program without any code for Weir, under LD_PRELOAD, on stand-ins for the runtime and the driver. The
 * environment sets up two devices of 256 MiB with a limit of 128 MiB each; tests use the first device unless they say
 * otherwise.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "support/test.h"

#define MIB ((size_t)1 << 20)
enum { VERSION = 13000, LEGACY = 1, PER_THREAD = 2 };

/* ---- Helpers ---- */

static void *library(void) {
  static void *handle;
  if (!handle)
    handle = dlopen("libcuda.so.1", RTLD_NOW);
  assert_non_null(handle);
  return handle;
}

/* The stand-in is found only with dlsym: the program is not linked to it. */
#define FIND(function, name)                                                                                           \
  do {                                                                                                                 \
    void *address = dlsym(library(), name);                                                                            \
    assert_non_null(address);                                                                                          \
    memcpy(&(function), &address, sizeof address);                                                                     \
  } while (0)

static weir_driver *fake(void) {
  weir_driver *(*get)(void);
  FIND(get, "fake_cuda_driver");
  return get();
}

static unsigned long calls(const char *symbol) {
  unsigned long (*count)(const char *);
  FIND(count, "fake_cuda_calls");
  return count(symbol);
}

static void break_device(weir_cu_result result) {
  void (*set)(weir_cu_result);
  FIND(set, "fake_cuda_break");
  set(result);
}

static void *entry(const char *name, int version, unsigned flags) {
  void *function = NULL;
  assert_int_equal(cudaGetDriverEntryPointByVersion(name, &function, (unsigned)version, flags), 0);
  assert_non_null(function);
  return function;
}

#define ENTRY(type, variable, name)                                                                                    \
  weir_cu_result(*variable) type;                                                                                      \
  do {                                                                                                                 \
    void *found_ = entry(name, VERSION, LEGACY);                                                                       \
    memcpy(&variable, &found_, sizeof variable);                                                                       \
  } while (0)

static void *get(size_t bytes) {
  void *pointer = NULL;
  assert_int_equal(cudaMalloc(&pointer, bytes), 0);
  assert_non_null(pointer);
  return pointer;
}

static void *get_async(size_t bytes, weir_cu_stream stream) {
  void *pointer = NULL;
  assert_int_equal(cudaMallocAsync(&pointer, bytes, stream), 0);
  assert_non_null(pointer);
  return pointer;
}

static weir_cu_stream new_stream(void) {
  weir_cu_stream stream;
  void *pointer = get(1); /* makes a context current on the thread */
  assert_int_equal(cudaFree(pointer), 0);
  assert_int_equal(fake()->StreamCreateWithPriority(fake(), &stream, WEIR_CU_STREAM_NON_BLOCKING, 0), 0);
  return stream;
}

static void wait_for(weir_cu_stream stream) { assert_int_equal(fake()->StreamSynchronize(fake(), stream), 0); }

static void end_stream(weir_cu_stream stream) {
  ENTRY((weir_cu_stream), destroy, "cuStreamDestroy");
  assert_int_equal(destroy(stream), 0);
}

static void hold(void *semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

static sem_t semaphores[16];
static int semaphore_count; /* the number of semaphores in use */

/* Blocks the stream until the semaphore is posted. */
static sem_t *block(weir_cu_stream stream) {
  assert_in_range(semaphore_count, 0, 15);
  sem_t *semaphore = &semaphores[semaphore_count++];
  sem_init(semaphore, 0, 0);
  assert_int_equal(fake()->LaunchHostFunc(fake(), stream, hold, semaphore), 0);
  return semaphore;
}

/* Releases everything that a failed test left blocked. */
static int release_all(void **state) {
  (void)state;
  while (semaphore_count > 0)
    sem_post(&semaphores[--semaphore_count]);
  return fake()->CtxSynchronize(fake());
}

/* Runs a call on another thread, to check that it waits. */
typedef struct waiter {
  void (*call)(void *argument);
  void *argument;
  atomic_bool is_done;
  pthread_t thread;
} waiter;

static void *run_waiter(void *argument) {
  waiter *w = argument;
  w->call(w->argument);
  atomic_store(&w->is_done, true);
  return NULL;
}

/* Checks that the call returns only after the semaphore is posted. */
static void assert_waits(void (*call)(void *), void *argument, sem_t *semaphore) {
  waiter w = {.call = call, .argument = argument};
  assert_int_equal(pthread_create(&w.thread, NULL, run_waiter, &w), 0);
  usleep(50000);
  bool was_early = atomic_load(&w.is_done);
  sem_post(semaphore);
  pthread_join(w.thread, NULL);
  assert_false(was_early);
}

/* ---- Serving ---- */

TEST(small_allocations_share_a_segment) {
  void *pointers[64];
  pointers[0] = get(1000);
  unsigned long before = calls("cuMemAlloc_v2"), frees = calls("cuMemFree_v2");
  for (int i = 1; i < 64; i++)
    pointers[i] = get(1000);
  for (int i = 0; i < 64; i++) {
    assert_int_equal((uintptr_t)pointers[i] % 512, 0);
    memset(pointers[i], i, 1000);
  }
  for (int i = 0; i < 64; i++)
    assert_int_equal(((unsigned char *)pointers[i])[999], i);
  for (int i = 0; i < 64; i++)
    assert_int_equal(cudaFree(pointers[i]), 0);
  assert_int_equal(calls("cuMemAlloc_v2"), before);
  assert_int_equal(calls("cuMemFree_v2"), frees);
}

TEST(odd_arguments_are_answered_by_the_driver) {
  void *pointer = &pointer;
  assert_int_equal(cudaMalloc(&pointer, 0), WEIR_CU_INVALID_VALUE);
  assert_int_equal(cudaGetLastError(), WEIR_CU_INVALID_VALUE);
  assert_int_equal(cudaFree(NULL), 0);
  assert_int_equal(cudaFree((void *)0x1234500), WEIR_CU_INVALID_VALUE);
  assert_int_equal(cudaGetLastError(), WEIR_CU_INVALID_VALUE);
}

TEST(foreign_memory_is_freed_by_the_driver) {
  weir_cu_deviceptr others;
  void *mine = get(1);
  assert_int_equal(fake()->MemAlloc(fake(), &others, MIB), 0);
  unsigned long before = calls("cuMemFree_v2");
  assert_int_equal(cudaFree((void *)(uintptr_t)others), 0);
  assert_int_equal(calls("cuMemFree_v2"), before + 1);
  assert_int_equal(cudaFree(mine), 0);
  assert_int_equal(calls("cuMemFree_v2"), before + 1);
}

TEST(a_double_free_is_refused) {
  void *pointer = get(20 * MIB); /* a whole segment, so the driver knows this address */
  unsigned long before = calls("cuMemFree_v2");
  assert_int_equal(cudaFree(pointer), 0);
  assert_int_equal(cudaFree(pointer), WEIR_CU_INVALID_VALUE);
  assert_int_equal(cudaFreeAsync(pointer, NULL), WEIR_CU_INVALID_VALUE);
  assert_int_equal(calls("cuMemFree_v2"), before);
  assert_int_equal(cudaGetLastError(), WEIR_CU_INVALID_VALUE);
}

TEST(rows_are_padded) {
  void *pointer;
  size_t pitch = 0;
  assert_int_equal(cudaMallocPitch(&pointer, &pitch, 1000, 10), 0);
  assert_int_equal(pitch, 1024);
  memset(pointer, 1, pitch * 10);
  assert_int_equal(cudaFree(pointer), 0);
  assert_int_equal(cudaMallocPitch(&pointer, &pitch, (size_t)-5, 10), WEIR_CU_OUT_OF_MEMORY);
  assert_int_equal(cudaGetLastError(), WEIR_CU_OUT_OF_MEMORY);
}

TEST(the_limit_holds) {
  size_t free_bytes, total_bytes;
  void *first = get(100 * MIB), *second = NULL;
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), 0);
  assert_int_equal(total_bytes, 128 * MIB);
  assert_in_range(free_bytes, 27 * MIB, 28 * MIB);
  assert_int_equal(cudaMalloc(&second, 64 * MIB), WEIR_CU_OUT_OF_MEMORY);
  assert_null(second);
  assert_int_equal(cudaGetLastError(), WEIR_CU_OUT_OF_MEMORY);
  assert_int_equal(cudaGetLastError(), 0);
  assert_int_equal(cudaFree(first), 0);
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), 0);
  assert_in_range(free_bytes, 127 * MIB, 128 * MIB); /* cached memory counts as free */
  second = get(64 * MIB);
  assert_int_equal(cudaFree(second), 0);
}

/* The rest of a partly used segment cannot become another segment. */
TEST(free_memory_can_be_allocated) {
  enum { COUNT = 50 };
  size_t free_bytes, total_bytes;
  void *pointers[COUNT];
  for (int i = 0; i < COUNT; i++)
    pointers[i] = get(2 * MIB);
  for (int i = 0; i < COUNT; i++)
    if (i % 10)
      assert_int_equal(cudaFree(pointers[i]), 0);
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), 0);
  assert_in_range(free_bytes, 20 * MIB, 30 * MIB);
  assert_int_equal(cudaFree(get(free_bytes / (2 * MIB) * (2 * MIB))), 0);
  for (int i = 0; i < COUNT; i += 10)
    assert_int_equal(cudaFree(pointers[i]), 0);
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), 0);
  assert_in_range(free_bytes, 127 * MIB, 128 * MIB);
}

TEST(cached_memory_is_released_for_the_driver) {
  void *array;
  size_t bytes = 200 * MIB;
  assert_int_equal(cudaFree(get(100 * MIB)), 0);
  ENTRY((void **, const void *), create, "cuArrayCreate");
  assert_int_equal(create(&array, &bytes), 0);
  assert_int_equal(cudaFree(array), 0); /* arrays of the stand-in are plain memory */
  assert_int_equal(cudaFree(get(100 * MIB)), 0);
  ENTRY((void **, const void *, unsigned), create_levels, "cuMipmappedArrayCreate");
  assert_int_equal(create_levels(&array, &bytes, 3), 0);
  assert_int_equal(cudaFree(array), 0);
}

/* A failed device reports its error instead of out of memory. */
TEST(device_errors_are_reported) {
  void *pointer;
  break_device(WEIR_CU_ILLEGAL_ADDRESS);
  assert_int_equal(cudaMalloc(&pointer, 40 * MIB), WEIR_CU_ILLEGAL_ADDRESS);
  break_device(WEIR_CU_SUCCESS);
  assert_int_equal(cudaGetLastError(), WEIR_CU_ILLEGAL_ADDRESS);
  assert_int_equal(cudaFree(get(40 * MIB)), 0);
}

/* ---- Streams ---- */

static void call_free(void *pointer) { assert_int_equal(cudaFree(pointer), 0); }

TEST(free_waits_for_the_device) {
  weir_cu_stream stream = new_stream();
  void *pointer = get(MIB);
  sem_t *semaphore = block(stream);
  assert_waits(call_free, pointer, semaphore);
  end_stream(stream);
}

TEST(a_stream_reuses_its_memory_at_once) {
  weir_cu_stream first = new_stream(), second = new_stream();
  void *pointer = get_async(3 * MIB, first);
  sem_t *semaphore = block(first);
  assert_int_equal(cudaFreeAsync(pointer, first), 0);
  void *again = get_async(3 * MIB, first);
  assert_ptr_equal(again, pointer);
  assert_int_equal(cudaFreeAsync(again, first), 0);
  void *others = get_async(3 * MIB, second), *anyones = get(3 * MIB);
  assert_ptr_not_equal(others, pointer);
  assert_ptr_not_equal(anyones, pointer);
  sem_post(semaphore);
  assert_int_equal(cudaFreeAsync(others, second), 0);
  assert_int_equal(cudaFree(anyones), 0);
  end_stream(first);
  end_stream(second);
}

TEST(memory_waits_for_the_stream_that_freed_it) {
  weir_cu_stream first = new_stream(), second = new_stream();
  void *pointer = get_async(3 * MIB, first);
  sem_t *semaphore = block(second);
  assert_int_equal(cudaFreeAsync(pointer, second), 0);
  void *other = get_async(3 * MIB, first);
  assert_ptr_not_equal(other, pointer);
  sem_post(semaphore);
  wait_for(second);
  void *again = get_async(3 * MIB, first);
  assert_ptr_equal(again, pointer);
  assert_int_equal(cudaFreeAsync(other, first), 0);
  assert_int_equal(cudaFreeAsync(again, first), 0);
  end_stream(first);
  end_stream(second);
}

TEST(memory_of_no_stream_waits_for_the_one_that_freed_it) {
  weir_cu_stream stream = new_stream();
  void *pointer = get(7 * MIB);
  sem_t *semaphore = block(stream);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  void *other = get(7 * MIB);
  assert_ptr_not_equal(other, pointer);
  sem_post(semaphore);
  wait_for(stream);
  void *again = get(7 * MIB);
  assert_ptr_equal(again, pointer);
  assert_int_equal(cudaFree(other), 0);
  assert_int_equal(cudaFree(again), 0);
  end_stream(stream);
}

/* The default stream is ordered; memory of cudaMalloc is not. */
TEST(memory_of_the_default_stream_is_ordered) {
  void *pointer = get_async(5 * MIB, NULL);
  sem_t *semaphore = block(NULL);
  assert_int_equal(cudaFreeAsync(pointer, NULL), 0);
  void *again = get_async(5 * MIB, NULL);
  assert_ptr_equal(again, pointer);
  assert_int_equal(cudaFreeAsync(again, WEIR_CU_STREAM_LEGACY), 0);
  void *other = get(5 * MIB);
  assert_ptr_not_equal(other, pointer);
  sem_post(semaphore);
  assert_int_equal(cudaFree(other), 0);
}

static void *free_on_own_default_stream(void *argument) {
  sem_t **semaphore = argument;
  void *pointer = NULL;
  assert_int_equal(cudaMallocAsync_ptsz(&pointer, 9 * MIB, NULL), 0);
  *semaphore = block(WEIR_CU_STREAM_PER_THREAD);
  assert_int_equal(cudaFreeAsync_ptsz(pointer, NULL), 0);
  return pointer;
}

TEST(default_streams_of_threads_are_independent) {
  sem_t *semaphore;
  pthread_t thread;
  void *theirs, *mine = NULL;
  cudaFree(get(1));
  assert_int_equal(pthread_create(&thread, NULL, free_on_own_default_stream, &semaphore), 0);
  pthread_join(thread, &theirs);
  assert_int_equal(cudaMallocAsync_ptsz(&mine, 9 * MIB, NULL), 0);
  assert_ptr_not_equal(mine, theirs);
  sem_post(semaphore);
  assert_int_equal(cudaFreeAsync_ptsz(mine, NULL), 0);
}

static void call_end_stream(void *stream) { end_stream(stream); }

/* A new stream may get the handle of a destroyed stream, together with its memory. */
TEST(destroying_a_stream_waits_for_its_work) {
  weir_cu_stream stream = new_stream();
  void *pointer = get_async(MIB, stream);
  sem_t *semaphore = block(stream);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_waits(call_end_stream, stream, semaphore);
}

/* ---- Captures ---- */

TEST(captured_memory_belongs_to_the_graph) {
  ENTRY((weir_cu_stream, int), begin, "cuStreamBeginCapture");
  ENTRY((weir_cu_stream, weir_cu_graph *), end, "cuStreamEndCapture");
  weir_cu_stream stream = new_stream();
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  void *anyones = get(MIB), *freed = get(6 * MIB);
  assert_int_equal(begin(stream, WEIR_CU_CAPTURE_RELAXED), 0);
  unsigned long allocs = calls("cuMemAllocAsync"), frees = calls("cuMemFreeAsync");
  void *node = get_async(MIB, stream);
  assert_int_equal(calls("cuMemAllocAsync"), allocs + 1);
  assert_int_equal(cudaFreeAsync(node, stream), 0);
  assert_int_equal(calls("cuMemFreeAsync"), frees + 1);
  assert_int_equal(cudaFreeAsync(anyones, stream), WEIR_CU_INVALID_VALUE);
  /* The device cannot be synchronized now, so the memory is freed later. */
  assert_int_equal(cudaFree(freed), 0);
  void *other = get(6 * MIB);
  assert_ptr_not_equal(other, freed);
  assert_int_equal(end(stream, &graph), 0);
  assert_int_equal(fake()->GraphInstantiate(fake(), &exec, graph, 0), 0);
  assert_int_equal(fake()->GraphLaunch(fake(), exec, stream), 0);
  wait_for(stream);
  void *again = get(6 * MIB);
  assert_ptr_equal(again, freed);
  assert_int_equal(cudaFree(again), 0);
  assert_int_equal(cudaFree(other), 0);
  assert_int_equal(cudaFree(anyones), 0);
  assert_int_equal(fake()->GraphExecDestroy(fake(), exec), 0);
  assert_int_equal(fake()->GraphDestroy(fake(), graph), 0);
  assert_int_equal(cudaGetLastError(), WEIR_CU_INVALID_VALUE);
  end_stream(stream);
}

TEST(a_failed_capture_ends) {
  ENTRY((weir_cu_stream, int), begin, "cuStreamBeginCapture");
  ENTRY((weir_cu_stream, weir_cu_graph *), end, "cuStreamEndCapture");
  weir_cu_stream stream = new_stream();
  weir_cu_graph graph;
  assert_int_equal(begin(stream, WEIR_CU_CAPTURE_GLOBAL), 0);
  assert_int_equal(fake()->StreamSynchronize(fake(), stream), WEIR_CU_STREAM_CAPTURE_UNSUPPORTED);
  assert_int_equal(end(stream, &graph), WEIR_CU_STREAM_CAPTURE_INVALIDATED);
  void *pointer = get(6 * MIB);
  assert_int_equal(cudaFree(pointer), 0);
  assert_ptr_equal(get(6 * MIB), pointer); /* free at once, because no capture is active */
  assert_int_equal(cudaFree(pointer), 0);
  end_stream(stream);
}

static void begin_capture(weir_cu_stream stream) {
  ENTRY((weir_cu_stream, int), begin, "cuStreamBeginCapture");
  assert_int_equal(begin(stream, WEIR_CU_CAPTURE_RELAXED), 0);
}

static void end_capture(weir_cu_stream stream) {
  ENTRY((weir_cu_stream, weir_cu_graph *), end, "cuStreamEndCapture");
  weir_cu_graph graph;
  assert_int_equal(end(stream, &graph), 0);
  assert_int_equal(fake()->GraphDestroy(fake(), graph), 0);
}

/* Freed memory is reused at once exactly if no capture is active. */
static bool is_free_at_once(void) {
  void *pointer = get(6 * MIB);
  assert_int_equal(cudaFree(pointer), 0);
  void *again = get(6 * MIB);
  assert_int_equal(cudaFree(again), 0);
  return again == pointer;
}

static void *capture_and_go(void *unused) {
  weir_cu_result (*begin)(weir_cu_stream, int);
  void *found = entry("cuStreamBeginCapture", VERSION, PER_THREAD);
  memcpy(&begin, &found, sizeof begin);
  assert_int_equal(begin(NULL, WEIR_CU_CAPTURE_RELAXED), 0);
  assert_false(is_free_at_once());
  return unused;
}

TEST(a_capture_ends_with_its_stream) {
  weir_cu_stream stream = new_stream();
  begin_capture(stream);
  assert_false(is_free_at_once());
  end_stream(stream);
  assert_true(is_free_at_once());

  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, capture_and_go, NULL), 0);
  pthread_join(thread, NULL);
  assert_true(is_free_at_once());

  begin_capture(new_stream());
  assert_int_equal(cudaDeviceReset(), 0);
  assert_true(is_free_at_once());
}

TEST(each_capture_counts) {
  ENTRY((weir_cu_stream, int), begin, "cuStreamBeginCapture");
  ENTRY((weir_cu_stream, weir_cu_graph *), end, "cuStreamEndCapture");
  weir_cu_stream first = new_stream(), second = new_stream(), third = new_stream();
  weir_cu_graph graph;
  begin_capture(first);
  begin_capture(second);
  assert_int_equal(begin(second, WEIR_CU_CAPTURE_RELAXED), WEIR_CU_ILLEGAL_STATE);
  end_capture(first);
  assert_int_not_equal(end(third, &graph), 0);
  end_stream(third);
  assert_false(is_free_at_once());
  end_capture(second);
  assert_true(is_free_at_once());
  end_stream(first);
  end_stream(second);
}

static void call_get_6(void *pointer) { *(void **)pointer = get(6 * MIB); }

TEST(frees_deferred_by_a_capture_wait_for_the_device) {
  weir_cu_stream stream = new_stream(), other = new_stream();
  void *freed = get(6 * MIB), *again;
  sem_t *semaphore = block(other);
  begin_capture(stream);
  assert_int_equal(cudaFree(freed), 0);
  assert_int_equal(cudaFree(freed), WEIR_CU_INVALID_VALUE);
  end_capture(stream);
  assert_waits(call_get_6, &again, semaphore);
  assert_ptr_equal(again, freed);
  assert_int_equal(cudaFree(again), 0);
  end_stream(stream);
  end_stream(other);
  assert_int_equal(cudaGetLastError(), WEIR_CU_INVALID_VALUE);
}

/* NVIDIA's driver would crash. */
TEST(destroyed_streams_are_not_queried) {
  weir_cu_stream captured = new_stream(), own = new_stream(), other = new_stream();
  void *freed = get_async(6 * MIB, own);
  begin_capture(captured);
  assert_int_equal(cudaFreeAsync(freed, other), 0); /* its event cannot be queried now */
  end_stream(other);
  end_capture(captured);
  unsigned long records = calls("cuEventRecord"), waits = calls("cuStreamSynchronize");
  void *again = get_async(6 * MIB, own);
  assert_ptr_equal(again, freed);
  assert_int_equal(calls("cuEventRecord"), records);
  assert_int_equal(calls("cuStreamSynchronize"), waits);
  assert_int_equal(cudaFreeAsync(again, own), 0);
  end_stream(own);
  end_stream(captured);
}

/* A free that waits neither delays nor invalidates a capture. */
TEST(a_capture_begins_while_a_free_waits) {
  weir_cu_stream stream = new_stream(), busy = new_stream();
  waiter w = {.call = call_free, .argument = get(MIB)};
  sem_t *semaphore = block(busy);
  assert_int_equal(pthread_create(&w.thread, NULL, run_waiter, &w), 0);
  usleep(50000);
  begin_capture(stream);
  assert_false(atomic_load(&w.is_done));
  end_capture(stream);
  sem_post(semaphore);
  pthread_join(w.thread, NULL);
  end_stream(stream);
  end_stream(busy);
}

/* ---- Pools, devices, processes ---- */

TEST(plain_pools_are_served) {
  ENTRY((weir_cu_mempool *, const weir_cu_mempool_props *), create, "cuMemPoolCreate");
  ENTRY((weir_cu_mempool, const weir_cu_mem_access *, size_t), set_access, "cuMemPoolSetAccess");
  ENTRY((weir_cu_mempool), destroy, "cuMemPoolDestroy");
  ENTRY((weir_cu_mempool *, weir_cu_device), get_default, "cuDeviceGetDefaultMemPool");
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED,
                                 .location = {.type = WEIR_CU_LOCATION_DEVICE, .id = 0}};
  weir_cu_mem_access access = {.location = props.location, .flags = WEIR_CU_ACCESS_READWRITE};
  weir_cu_mempool plain, shared, usual;
  weir_cu_stream stream = new_stream();
  void *pointer;
  assert_int_equal(get_default(&usual, 0), 0);
  assert_int_equal(create(&plain, &props), 0);
  assert_int_equal(create(&shared, &props), 0);
  assert_int_equal(set_access(shared, &access, 1), 0);
  unsigned long before = calls("cuMemAllocFromPoolAsync");
  assert_int_equal(cudaMallocFromPoolAsync(&pointer, MIB, usual, stream), 0);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_int_equal(cudaMallocFromPoolAsync(&pointer, MIB, plain, stream), 0);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_int_equal(calls("cuMemAllocFromPoolAsync"), before);
  assert_int_equal(cudaMallocFromPoolAsync(&pointer, MIB, shared, stream), 0);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_int_equal(calls("cuMemAllocFromPoolAsync"), before + 1);

  /* Pools with special properties are left to the driver. */
  weir_cu_mempool limited, special;
  props.max_size = 64 * MIB;
  assert_int_equal(create(&limited, &props), 0);
  props.max_size = 0;
  props.usage = 2;
  assert_int_equal(create(&special, &props), 0);
  assert_int_equal(cudaMallocFromPoolAsync(&pointer, MIB, limited, stream), 0);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_int_equal(calls("cuMemAllocFromPoolAsync"), before + 2);
  assert_int_equal(cudaMallocFromPoolAsync(&pointer, MIB, special, stream), 0);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_int_equal(calls("cuMemAllocFromPoolAsync"), before + 3);
  wait_for(stream);
  assert_int_equal(destroy(limited), 0);
  assert_int_equal(destroy(special), 0);

  /* The same for the default pool of the device. */
  assert_int_equal(fake()->DeviceSetMemPool(fake(), 0, shared), 0);
  unsigned long asyncs = calls("cuMemAllocAsync");
  pointer = get_async(MIB, stream);
  assert_int_equal(calls("cuMemAllocAsync"), asyncs + 1);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_int_equal(fake()->DeviceSetMemPool(fake(), 0, usual), 0);
  pointer = get_async(MIB, stream);
  assert_int_equal(calls("cuMemAllocAsync"), asyncs + 1);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  wait_for(stream);
  assert_int_equal(destroy(plain), 0);
  assert_int_equal(destroy(shared), 0);
  end_stream(stream);
}

TEST(a_part_of_a_segment_is_not_shared) {
  ENTRY((weir_cu_ipc_mem_handle *, weir_cu_deviceptr), share, "cuIpcGetMemHandle");
  weir_cu_ipc_mem_handle handle;
  void *first = get(1000), *second = get(1000), *whole = get(20 * MIB);
  void *part = (uintptr_t)first % (2 * MIB) ? first : second;
  assert_int_equal(share(&handle, (uintptr_t)whole), 0);
  assert_int_equal(share(&handle, (uintptr_t)part), WEIR_CU_NOT_SUPPORTED);
  assert_int_equal(share(&handle, (uintptr_t)whole + MIB), WEIR_CU_NOT_SUPPORTED);
  assert_int_equal(cudaFree(first), 0);
  assert_int_equal(cudaFree(second), 0);
  assert_int_equal(cudaFree(whole), 0);
  assert_int_equal(share(&handle, (uintptr_t)whole), 0); /* the segment still exists */
  assert_int_equal(share(&handle, (uintptr_t)whole + MIB), WEIR_CU_NOT_SUPPORTED);
}

TEST(a_reset_restarts_the_allocator) {
  void *pointer = get(10 * MIB);
  memset(pointer, 1, 100);
  assert_int_equal(cudaDeviceReset(), 0);
  assert_int_equal(fake()->MemGetInfo(fake(), &(size_t){0}, &(size_t){0}), WEIR_CU_CONTEXT_IS_DESTROYED);
  size_t free_bytes, total_bytes;
  pointer = get(10 * MIB);
  memset(pointer, 1, 100);
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), 0);
  assert_int_equal(total_bytes, 128 * MIB);
  assert_int_equal(cudaFree(pointer), 0);
}

static void use_second_device(void) {
  weir_cu_context context;
  assert_int_equal(fake()->DevicePrimaryCtxRetain(fake(), &context, 1), 0);
  assert_int_equal(fake()->CtxSetCurrent(fake(), context), 0);
}

typedef struct elsewhere {
  weir_cu_result (*free_async)(weir_cu_deviceptr, weir_cu_stream);
  weir_cu_stream stream;
  void *pointer;
} elsewhere;

static void call_free_elsewhere(void *argument) {
  elsewhere *e = argument;
  assert_int_equal(e->free_async((uintptr_t)e->pointer, e->stream), 0);
}

TEST(memory_is_freed_in_a_stream_of_another_device) {
  elsewhere e = {.pointer = get(7 * MIB)};
  ENTRY((weir_cu_deviceptr, weir_cu_stream), free_async, "cuMemFreeAsync");
  weir_cu_context first;
  e.free_async = free_async;
  assert_int_equal(fake()->CtxGetCurrent(fake(), &first), 0);
  use_second_device();
  assert_int_equal(fake()->StreamCreateWithPriority(fake(), &e.stream, WEIR_CU_STREAM_NON_BLOCKING, 0), 0);
  sem_t *semaphore = block(e.stream);
  assert_waits(call_free_elsewhere, &e, semaphore);
  end_stream(e.stream);
  assert_int_equal(fake()->CtxSetCurrent(fake(), first), 0);
  void *again = get(7 * MIB);
  assert_ptr_equal(again, e.pointer);
  assert_int_equal(cudaFree(again), 0);
}

static void *reset_second_device(void *is_over) {
  ENTRY((weir_cu_deviceptr *, size_t), alloc, "cuMemAlloc");
  ENTRY((weir_cu_device), reset, "cuDevicePrimaryCtxReset");
  for (int i = 0; i < 300; i++) {
    weir_cu_deviceptr pointer;
    use_second_device();
    assert_int_equal(alloc(&pointer, MIB), 0);
    assert_int_equal(reset(1), 0);
  }
  atomic_store((atomic_bool *)is_over, true);
  return NULL;
}

TEST(a_reset_does_not_disturb_other_devices) {
  atomic_bool is_over = false;
  pthread_t thread;
  size_t too_much = 1000 * MIB;
  void *array;
  ENTRY((void **, const void *), create, "cuArrayCreate");
  assert_int_equal(pthread_create(&thread, NULL, reset_second_device, &is_over), 0);
  while (!atomic_load(&is_over)) {
    void *pointer = get(1000);
    assert_int_equal(cudaFree(pointer), 0);
    assert_int_equal(cudaFree((void *)0x1234500), WEIR_CU_INVALID_VALUE);
    assert_int_equal(create(&array, &too_much), WEIR_CU_OUT_OF_MEMORY); /* all cached memory is released */
  }
  pthread_join(thread, NULL);
  assert_int_equal(cudaGetLastError(), WEIR_CU_INVALID_VALUE);
}

TEST(a_forked_child_calls_the_driver) {
  void *pointer = get(1000);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    unsigned long before = calls("cuMemFree_v2");
    cudaFree(pointer); /* ignores the result of the driver */
    _exit(calls("cuMemFree_v2") == before + 1 ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(cudaFree(pointer), 0);
}

static void *work(void *seed) {
  unsigned random = *(unsigned *)seed;
  weir_cu_stream stream = new_stream();
  for (int i = 0; i < 2000; i++) {
    random = random * 1664525 + 1013904223;
    size_t bytes = (random >> 8) % 100000 + 1;
    bool is_async = random & 1 << 30;
    unsigned char *pointer = is_async ? get_async(bytes, stream) : get(bytes);
    pointer[0] = (unsigned char)i;
    pointer[bytes - 1] = (unsigned char)i;
    assert_int_equal(pointer[0], (unsigned char)i);
    assert_int_equal(random & 1 << 29 ? cudaFree(pointer) : cudaFreeAsync(pointer, stream), 0);
  }
  end_stream(stream);
  return NULL;
}

TEST(threads_work_concurrently) {
  pthread_t threads[4];
  unsigned seeds[4] = {1, 2, 3, 4};
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, work, &seeds[i]), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
}

/* ---- Finding functions ---- */

TEST(every_lookup_finds_the_same_function) {
  void *found = entry("cuMemAlloc", VERSION, LEGACY);
  assert_ptr_equal(found, dlsym(library(), "cuMemAlloc_v2"));
  assert_ptr_equal(found, dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  assert_ptr_equal(found, entry("cuMemAlloc", 15000, LEGACY)); /* the driver has no newer version */
  assert_ptr_equal(entry("cuGetProcAddress", VERSION, LEGACY), dlsym(library(), "cuGetProcAddress_v2"));
  assert_ptr_equal(entry("cuMemFreeAsync", VERSION, LEGACY), dlsym(library(), "cuMemFreeAsync"));
  assert_ptr_equal(entry("cuMemFreeAsync", VERSION, PER_THREAD), dlsym(library(), "cuMemFreeAsync_ptsz"));
  assert_ptr_not_equal(dlsym(library(), "cuMemFreeAsync"), dlsym(library(), "cuMemFreeAsync_ptsz"));
  assert_null(dlsym(library(), "cuNoSuchFunction"));
  assert_non_null(dlerror());

  Dl_info info;
  assert_int_not_equal(dladdr(found, &info), 0);
  assert_non_null(strstr(info.dli_fname, "weir_preload"));
  assert_int_not_equal(dladdr(entry("cuInit", VERSION, LEGACY), &info), 0);
  assert_non_null(strstr(info.dli_fname, "libcuda.so.1"));
}

TEST(rtld_next_is_relative_to_the_caller) {
  assert_null(fake_next_marker());
  assert_non_null(dlsym(RTLD_DEFAULT, "malloc"));
  assert_non_null(dlsym(RTLD_NEXT, "malloc"));
}

/* ---- Expandable segments ---- */

TEST(out_of_memory_does_not_invalidate_a_capture) {
  weir_cu_stream stream = new_stream();
  void *pointer = get_async(60 * MIB, stream);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  begin_capture(stream);
  assert_int_equal(cudaMalloc(&pointer, 100 * MIB), WEIR_CU_OUT_OF_MEMORY);
  size_t bytes = 220 * MIB;
  void *array;
  ENTRY((void **, const void *), create, "cuArrayCreate");
  assert_int_equal(create(&array, &bytes), WEIR_CU_OUT_OF_MEMORY);
  end_capture(stream);
  assert_int_equal(create(&array, &bytes), 0);
  assert_int_equal(cudaFree(array), 0);
  pointer = get_async(60 * MIB, stream);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  assert_int_equal(cudaFree(get(100 * MIB)), 0);
  assert_int_equal(cudaGetLastError(), WEIR_CU_OUT_OF_MEMORY);
  end_stream(stream);
}

TEST(pages_of_a_destroyed_stream_are_released) {
  weir_cu_stream stream = new_stream();
  void *pointer = get_async(60 * MIB, stream);
  assert_int_equal(cudaFreeAsync(pointer, stream), 0);
  end_stream(stream);
  unsigned long waits = calls("cuStreamSynchronize");
  pointer = get(100 * MIB);
  assert_int_equal(calls("cuStreamSynchronize"), waits);
  assert_int_equal(cudaFree(pointer), 0);
}

/* With expandable segments only these run, and the first two only then. */
static bool omits(const char *test) {
  static const char *const expandable[] = {
      "test_out_of_memory_does_not_invalidate_a_capture", "test_pages_of_a_destroyed_stream_are_released",
      "test_frees_deferred_by_a_capture_wait_for_the_device", "test_destroyed_streams_are_not_queried"};
  size_t i = 0;
  while (i < 4 && strcmp(test, expandable[i]) != 0)
    i++;
  return getenv("WEIR_ALLOC_CONF") ? i == 4 : i < 2;
}

FIXTURE(.omits = omits, .teardown = release_all)
