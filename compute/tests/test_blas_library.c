/*
 * Products by libcublas, with a stand-in for it, on a software device that runs no kernels of the host: every call of
 * the library fails once.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"
#include "tests/fake_cublas.h"
#include "weir/compute/array.h"
#include "weir/compute/blas.h"
#include "weir/memory.h"

static fake_cublas_state *fake;
static weir_stream stream;

static int setup(void **state) {
  if (is_cuda())
    waived("uses a stand-in for cuBLAS");
  if (runtime_setup(state))
    return -1;
  collect_messages();
  d->capabilities &= ~(uint64_t)WEIR_DRIVER_HOST_KERNELS;
  setenv("WEIR_CUBLAS_LIBRARY", WEIR_TEST_CUBLAS, 1);
  void *library = dlopen(WEIR_TEST_CUBLAS, RTLD_NOW);
  assert_non_null(library);
  fake = dlsym(library, "fake_cublas");
  assert_non_null(fake);
  int live = fake->live;
  *fake = (fake_cublas_state){.fail_at = -1, .live = live};
  stream = new_stream(0);
  return 0;
}

static int teardown(void **state) {
  assert_ok(weir_blas_clear_workspaces());
  int result = runtime_teardown(state); /* which shuts the runtime down */
  assert_int_equal(fake->live, 0);
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = teardown)

/* 1, 2, 3, ... in memory of the device. */
static weir_status numbers(int ndim, const int64_t *shape, weir_array *array) {
  weir_status status = weir_array_empty(weir_place_device(0), WEIR_FLOAT32, ndim, shape, stream, array);
  if (!status) {
    assert_ok(weir_stream_synchronize(stream));
    for (int64_t i = 0; i < weir_array_count(array); i++)
      ((float *)array->data)[i] = (float)(i + 1);
  }
  return status;
}

/* One product and a batch of two, with the calls of cuBLAS in every case. */
static weir_status use_all(void) {
  weir_array a = {0}, b = {0}, product = {0}, batch_a = {0}, batch_b = {0}, batch = {0};
  void *handle;
  weir_status status = numbers(2, (int64_t[]){2, 3}, &a);
  if (!status)
    status = numbers(2, (int64_t[]){3, 2}, &b);
  if (!status)
    status = weir_array_matmul(&a, &b, stream, &product);
  if (!status) {
    const float expected[] = {22, 28, 49, 64};
    assert_memory_equal(product.data, expected, sizeof expected);
  } else
    assert_null(product.storage);
  if (!status)
    status = numbers(3, (int64_t[]){2, 1, 2}, &batch_a);
  if (!status)
    status = numbers(3, (int64_t[]){2, 2, 1}, &batch_b);
  if (!status)
    status = weir_array_matmul(&batch_a, &batch_b, stream, &batch);
  if (!status) {
    const float expected[] = {5, 25};
    assert_memory_equal(batch.data, expected, sizeof expected);
  } else
    assert_null(batch.storage);
  if (!status)
    status = weir_blas_handle(stream, &handle);
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&product);
  weir_array_release(&batch_a);
  weir_array_release(&batch_b);
  weir_array_release(&batch);
  return status;
}

static int64_t allocated_bytes(void) {
  weir_allocator *allocator;
  weir_allocator_stats stats = {.size = sizeof stats};
  assert_ok(weir_default_allocator(&allocator));
  assert_ok(weir_allocator_get_stats(allocator, 0, &stats));
  return stats.allocated_bytes[WEIR_STAT_ALL].current;
}

TEST(results) {
  assert_ok(use_all());
  assert_int_equal(fake->live, 1);
  assert_non_null(fake->workspace);
  assert_true((size_t)allocated_bytes() >= fake->workspace_bytes);
  assert_ok(weir_blas_clear_workspaces());
  assert_int_equal(allocated_bytes(), 0);
  assert_ok(use_all());
  assert_int_equal(fake->live, 1); /* the handle of the thread serves again */
}

/* Every call fails once, with two results: nothing is lost, and the next attempt works. */
TEST(failing_calls) {
  static const struct {
    int result;
    weir_status status;
    const char *text;
  } failures[] = {{13, WEIR_ERROR_DRIVER, "CUBLAS_STATUS_EXECUTION_FAILED (13) when calling `cublas"},
                  {3, WEIR_ERROR_OUT_OF_MEMORY, "CUBLAS_STATUS_ALLOC_FAILED (3) when calling `cublas"}};
  bool is_seen[4] = {false};
  for (size_t f = 0; f < sizeof failures / sizeof *failures; f++) {
    int n = 0;
    for (weir_status status = WEIR_ERROR_DRIVER; status; n++) {
      assert_ok(weir_blas_clear_workspaces());
      shut_down_clean(); /* the next use creates a handle */
      assert_int_equal(fake->live, 0);
      *fake = (fake_cublas_state){.fail_at = n, .fail_with = failures[f].result};
      stream = new_stream(0);
      clear_last_error();
      status = use_all();
      if (status) {
        assert_int_equal(status, failures[f].status);
        assert_non_null(strstr(weir_last_error(), failures[f].text));
        is_seen[0] |= !strcmp(fake->last, "cublasCreate_v2");
        is_seen[1] |= !strcmp(fake->last, "cublasSetWorkspace_v2");
        is_seen[2] |= !strcmp(fake->last, "cublasGemmEx");
        is_seen[3] |= !strcmp(fake->last, "cublasGemmStridedBatchedEx");
        assert_ok(use_all());
        assert_int_equal(fake->live, 1);
      }
      fake->fail_at = -1;
      assert_ok(weir_blas_clear_workspaces());
      assert_int_equal(allocated_bytes(), 0);
    }
    assert_in_range(n, 12, 30);
  }
  assert_true(is_seen[0] && is_seen[1] && is_seen[2] && is_seen[3]);
  /* A handle that cannot be destroyed. */
  fake->fail_at = fake->calls;
  fake->fail_with = 14;
  shut_down_clean();
  assert_string_equal(fake->last, "cublasDestroy_v2");
  assert_int_equal(fake->live, 0);
  assert_int_equal(messages_with(WEIR_LOG_ERROR, "cublasDestroy"), 1);
  fake->fail_at = -1;
}
