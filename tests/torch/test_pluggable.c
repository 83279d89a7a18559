/*
 * The pluggable allocator for PyTorch on the software device: scopes of graphs and of private pools.
 */
#include <pthread.h>

#include "support/runtime.h"
#include "support/soft.h"
#include "weir/weir.h"

/* Replaces NVIDIA's driver by the device of the test. */
static weir_status open_soft(weir_driver **driver) {
  *driver = d;
  return WEIR_OK;
}
#define weir_driver_open_cuda open_soft
#include "../../adapters/torch/pluggable.c" /* NOLINT(bugprone-suspicious-include) */
#undef weir_driver_open_cuda

#define MIB (1024ull * 1024)

static weir_cu_stream work;

static int open_all(void **state) {
  (void)state;
  soft_open(WEIR_SOFT_STEPPED, 1, 256 * MIB);
  work = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_torch_init(1);
  return !allocator;
}

static int close_all(void **state) {
  (void)state;
  weir_allocator_destroy(allocator);
  assert_cu(d->StreamDestroy(d, work));
  soft_close();
  return 0;
}

FIXTURE(.begin = open_all, .end = close_all)

static void *get(size_t bytes) {
  void *pointer = weir_torch_alloc((ssize_t)bytes, 0, work);
  assert_non_null(pointer);
  return pointer;
}

static void put(void *pointer) { weir_torch_free(pointer, 0, 0, work); }

static unsigned long long reserved_by(weir_pool_id pool) {
  weir_stat stats[WEIR_STAT_KINDS];
  assert_ok(weir_pool_reserved_bytes(allocator, 0, pool, stats));
  return (unsigned long long)stats[0].current;
}

/* Whether cached memory is released for a request: only outside of a capture. */
static bool gives_cache_back(void) {
  put(get(150 * MIB));
  void *pointer = weir_torch_alloc(160 * MIB, 0, work);
  bool given = pointer != NULL;
  if (pointer)
    put(pointer);
  weir_torch_reset();
  return given;
}

static void begin_driver_capture(void) { assert_cu(d->StreamBeginCapture(d, work, WEIR_CU_CAPTURE_GLOBAL)); }

/* The capture is still valid. */
static void end_driver_capture(void) {
  int status = 0;
  weir_cu_graph graph = NULL;
  assert_cu(d->StreamIsCapturing(d, work, &status));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_cu(d->StreamEndCapture(d, work, &graph));
  assert_cu(d->GraphDestroy(d, graph));
}

static void assert_no_capture(void) {
  assert_int_equal(weir_allocator_end_capture(allocator, 0), WEIR_ERROR_BAD_STATE);
  assert_true(gives_cache_back());
}

static void *get_in_thread(void *bytes) { return weir_torch_alloc(*(ssize_t *)bytes, 0, work); }

TEST(pool_of_the_program) {
  weir_pool_id pool = {0, 1};
  put(get(150 * MIB));
  weir_torch_begin_pool(0, pool, NULL);
  void *mine = get(160 * MIB); /* replaces the cached segment */
  assert_int_equal(reserved_by(pool), 160 * MIB);
  ssize_t bytes = 20 * MIB;
  void *theirs = NULL;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, get_in_thread, &bytes), 0);
  assert_int_equal(pthread_join(thread, &theirs), 0);
  assert_non_null(theirs);
  assert_int_equal(reserved_by(pool), 160 * MIB);
  weir_torch_end_pool(0, pool);
  put(get(20 * MIB));
  assert_int_equal(reserved_by(pool), 160 * MIB);
  put(mine);
  put(theirs);
  weir_torch_release_pool(0, pool);
  weir_torch_reset();
  assert_no_capture();
}

/* PyTorch opens the scope before it begins the capture. */
TEST(graph) {
  weir_pool_id pool = {2, 0};
  weir_torch_begin_pool(0, pool, NULL);
  assert_false(gives_cache_back());
  void *before = get(20 * MIB);
  assert_int_equal(reserved_by(pool), 0);
  begin_driver_capture();
  void *inside = get(30 * MIB);
  assert_int_equal(reserved_by(pool), 30 * MIB);
  end_driver_capture();
  weir_torch_end_pool(0, pool);
  put(before);
  put(inside);
  weir_torch_release_pool(0, pool);
  weir_torch_reset();
  assert_no_capture();
}

TEST(graph_in_a_pool_of_the_program) {
  weir_pool_id pool = {0, 3};
  weir_torch_begin_pool(0, pool, NULL);
  begin_driver_capture();
  void *first = get(30 * MIB), *second = get(30 * MIB);
  assert_int_equal(reserved_by(pool), 60 * MIB);
  assert_null(weir_torch_alloc(250 * MIB, 0, work));
  end_driver_capture();
  weir_torch_end_pool(0, pool);
  put(first);
  put(second);
  weir_torch_release_pool(0, pool);
  weir_torch_reset();
  assert_no_capture();
}

/* The capture belongs to the inner scope and ends with it. */
TEST(graph_within_a_scope) {
  weir_pool_id outer = {0, 4}, inner = {4, 0};
  weir_torch_begin_pool(0, outer, NULL);
  weir_torch_begin_pool(0, inner, NULL);
  begin_driver_capture();
  void *inside = get(30 * MIB);
  assert_int_equal(reserved_by(inner), 30 * MIB);
  end_driver_capture();
  weir_torch_end_pool(0, inner);
  put(inside);
  weir_torch_release_pool(0, inner);
  weir_torch_reset();
  assert_int_equal(weir_allocator_end_capture(allocator, 0), WEIR_ERROR_BAD_STATE);
  void *after = get(20 * MIB);
  assert_int_equal(reserved_by(outer), 20 * MIB);
  put(after);
  weir_torch_end_pool(0, outer);
  weir_torch_release_pool(0, outer);
  weir_torch_reset();
  assert_no_capture();
}

/* Ending a scope that failed to open closes neither the open scope of that pool nor a capture. */
TEST(begin_fails) {
  weir_pool_id graph = {5, 0}, program = {0, 5};
  weir_torch_begin_pool(0, graph, NULL);
  weir_torch_begin_pool(0, graph, NULL);
  weir_torch_end_pool(0, graph);
  assert_false(gives_cache_back());
  weir_torch_end_pool(0, graph);
  weir_torch_release_pool(0, graph);
  assert_no_capture();

  weir_torch_begin_pool(0, program, NULL);
  weir_torch_begin_pool(0, program, NULL);
  weir_torch_end_pool(0, program);
  void *pointer = get(20 * MIB);
  assert_int_equal(reserved_by(program), 20 * MIB);
  assert_ok(weir_allocator_begin_capture(allocator, 0)); /* begun by other code */
  weir_torch_end_pool(0, program);
  weir_torch_end_pool(0, program); /* never opened */
  assert_ok(weir_allocator_end_capture(allocator, 0));
  put(pointer);
  weir_torch_release_pool(0, program);
  weir_torch_reset();
  assert_no_capture();
}
