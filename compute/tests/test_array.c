/*
 * Arrays: types, creation, storages and views.
 */
#include <stdlib.h>

#include "support/length.h"
#include "support/runtime.h"
#include "support/sanitized.h"
#include "tests/numbers.h"
#include "weir/compute/array.h"

static weir_stream stream;

static int setup(void **state) {
  int result = runtime_setup(state);
  stream = new_stream(0);
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

/* ---- Types ---- */

/* The rows and columns are uint8, int8, int16, int32, int64, float16, float32, float64, complex64, complex128, bool,
 * bfloat16; PyTorch's table. */
TEST(promotion) {
  enum { U1, I1, I2, I4, I8, F2, F4, F8, C4, C8, B1, BF };
  static const int table[DTYPES][DTYPES] = {
      {U1, I2, I2, I4, I8, F2, F4, F8, C4, C8, U1, BF}, {I2, I1, I2, I4, I8, F2, F4, F8, C4, C8, I1, BF},
      {I2, I2, I2, I4, I8, F2, F4, F8, C4, C8, I2, BF}, {I4, I4, I4, I4, I8, F2, F4, F8, C4, C8, I4, BF},
      {I8, I8, I8, I8, I8, F2, F4, F8, C4, C8, I8, BF}, {F2, F2, F2, F2, F2, F2, F4, F8, C4, C8, F2, F4},
      {F4, F4, F4, F4, F4, F4, F4, F8, C4, C8, F4, F4}, {F8, F8, F8, F8, F8, F8, F8, F8, C8, C8, F8, F8},
      {C4, C4, C4, C4, C4, C4, C4, C8, C4, C8, C4, C4}, {C8, C8, C8, C8, C8, C8, C8, C8, C8, C8, C8, C8},
      {U1, I1, I2, I4, I8, F2, F4, F8, C4, C8, B1, BF}, {BF, BF, BF, BF, BF, F4, F4, F8, C4, C8, BF, BF}};
  for (int a = 0; a < DTYPES; a++)
    for (int b = 0; b < DTYPES; b++)
      if (weir_dtype_promote(all_dtypes[a], all_dtypes[b]) != all_dtypes[table[a][b]])
        fail_msg("%s and %s give %s", weir_dtype_name(all_dtypes[a]), weir_dtype_name(all_dtypes[b]),
                 weir_dtype_name(weir_dtype_promote(all_dtypes[a], all_dtypes[b])));
  assert_string_equal(weir_dtype_title(WEIR_COMPLEX64), "ComplexFloat");
  assert_null(weir_dtype_title((weir_dtype)8));
  assert_null(weir_dtype_title((weir_dtype)99));
}

static weir_dtype type_with(weir_dtype dtype, int ndim, weir_scalar scalar) {
  weir_array a = {0};
  weir_dtype result;
  assert_ok(weir_array_empty(weir_place_host(), dtype, ndim, (int64_t[]){2}, stream, &a));
  assert_ok(weir_array_result_type((const weir_array *[]){&a}, 1, &scalar, &result));
  weir_array_release(&a);
  return result;
}

TEST(result_types) {
  assert_int_equal(type_with(WEIR_UINT8, 1, weir_scalar_int(3)), WEIR_UINT8);
  assert_int_equal(type_with(WEIR_BOOL, 1, weir_scalar_int(3)), WEIR_INT64);
  assert_int_equal(type_with(WEIR_INT32, 1, weir_scalar_float(3)), WEIR_FLOAT32);
  assert_int_equal(type_with(WEIR_FLOAT16, 1, weir_scalar_float(3)), WEIR_FLOAT16);
  assert_int_equal(type_with(WEIR_FLOAT64, 1, weir_scalar_complex(3, 1)), WEIR_COMPLEX128);
  assert_int_equal(type_with(WEIR_FLOAT32, 1, weir_scalar_complex(3, 1)), WEIR_COMPLEX64);
  assert_int_equal(type_with(WEIR_UINT8, 0, weir_scalar_int(3)), WEIR_UINT8);
  weir_array vector = {0}, single = {0};
  weir_dtype result;
  assert_ok(weir_array_empty(weir_place_host(), WEIR_FLOAT32, 1, (int64_t[]){2}, stream, &vector));
  assert_ok(weir_array_empty(weir_place_host(), WEIR_FLOAT64, 0, NULL, stream, &single));
  assert_ok(weir_array_result_type((const weir_array *[]){&single, &vector}, 2, NULL, &result));
  assert_int_equal(result, WEIR_FLOAT32);
  weir_array_release(&vector);
  weir_array_release(&single);
}

/* ---- Creation ---- */

TEST(empty) {
  weir_array a = {0};
  const weir_place places[] = {weir_place_host(), weir_place_pinned(), weir_place_device(0)};
  for (int p = 0; p < 3; p++) {
    assert_ok(weir_array_empty(places[p], WEIR_INT16, 3, (int64_t[]){2, 0, 3}, stream, &a));
    assert_int_equal(weir_array_count(&a), 0);
    assert_non_null(a.storage);
    weir_array_release(&a);
    assert_null(a.storage);
    assert_ok(weir_array_empty(places[p], WEIR_INT16, 3, (int64_t[]){2, 4, 3}, stream, &a));
    assert_int_equal(weir_array_count(&a), 24);
    assert_int_equal(a.strides[0], 12);
    assert_int_equal(a.strides[2], 1);
    assert_int_equal(weir_storage_bytes(a.storage), 48);
    assert_int_equal(weir_storage_place(a.storage).kind, places[p].kind);
    assert_true(weir_array_is_contiguous(&a));
    assert_ok(weir_array_record_stream(&a, new_stream(0)));
    weir_array_release(&a);
  }
  assert_error_says(INVALID_ARGUMENT, "Trying to create tensor with negative dimension -1: [2, -1]",
                    weir_array_empty(weir_place_host(), WEIR_INT8, 2, (int64_t[]){2, -1}, stream, &a));
  assert_error_says(INVALID_ARGUMENT, "Storage size calculation overflowed with sizes=[9223372036854775807, 2]",
                    weir_array_empty(weir_place_host(), WEIR_INT8, 2, (int64_t[]){INT64_MAX, 2}, stream, &a));
  assert_error_says(INVALID_ARGUMENT, "17 dimensions; expected 0 to 16",
                    weir_array_empty(weir_place_host(), WEIR_INT8, 17, (int64_t[17]){0}, stream, &a));
  assert_error_says(INVALID_ARGUMENT, "dtype is 8",
                    weir_array_empty(weir_place_host(), (weir_dtype)8, 0, NULL, stream, &a));
  assert_error(OUT_OF_MEMORY, weir_array_empty(weir_place_device(0), WEIR_INT8, 1, (int64_t[]){1ll << 50}, stream, &a));
#ifndef SANITIZED /* it ends the program */
  assert_error(HOST_OUT_OF_MEMORY,
               weir_array_empty(weir_place_host(), WEIR_INT8, 1, (int64_t[]){1ll << 60}, stream, &a));
#endif
  if (devices() > 1)
    assert_error_says(INVALID_ARGUMENT, "the stream belongs to device 0; expected one of device 1",
                      weir_array_empty(weir_place_device(1), WEIR_INT8, 0, NULL, stream, &a));
  assert_null(a.storage);
}

static int deleted;
static void count_deletion(void *context) { deleted += *(int *)context; }

TEST(finalizer) {
  weir_storage *storage;
  int weight = 2;
  deleted = 0;
  assert_error_says(INVALID_ARGUMENT, "storage is NULL", weir_storage_set_finalizer(NULL, count_deletion, &weight));
  assert_ok(weir_storage_create(weir_place_host(), 8, stream, &storage));
  assert_ok(weir_storage_set_finalizer(storage, count_deletion, &weight));
  weir_storage_retain(storage);
  weir_storage_release(storage);
  assert_int_equal(deleted, 0);
  weir_storage_release(storage);
  assert_int_equal(deleted, 2);
  assert_ok(weir_storage_create(weir_place_host(), 8, stream, &storage));
  assert_ok(weir_storage_set_finalizer(storage, count_deletion, &weight));
  assert_ok(weir_storage_set_finalizer(storage, NULL, NULL));
  weir_storage_release(storage);
  assert_int_equal(deleted, 2);
}

TEST(ownership) {
  weir_storage *first, *second;
  int weight = 3;
  deleted = 0;
  assert_error_says(INVALID_ARGUMENT, "storage is NULL", weir_storage_set_owned(NULL, 1));
  assert_ok(weir_storage_create(weir_place_host(), 8, stream, &first));
  assert_error_says(BAD_STATE, "expected memory that this process has on a device", weir_storage_set_owned(first, 0));
  weir_storage_release(first);

  assert_ok(weir_storage_create(weir_place_device(0), 5 << 20, stream, &first));
  void *memory = weir_storage_data(first);
  assert_ok(weir_storage_set_owned(first, 1));
  assert_false(weir_storage_is_borrowed(first));
  assert_ok(weir_storage_set_owned(first, 0));
  assert_true(weir_storage_is_borrowed(first));
  assert_ptr_equal(weir_storage_data(first), memory);
  weir_storage_release(first);

  assert_ok(weir_storage_borrow(memory, 5 << 20, weir_place_device(0), count_deletion, &weight, &second));
  assert_ok(weir_storage_set_owned(second, 1));
  assert_int_equal(deleted, 3);
  weir_storage_release(second); /* frees the memory: the next of this size has its place */
  assert_int_equal(deleted, 3);
  assert_ok(weir_storage_create(weir_place_device(0), 5 << 20, stream, &first));
  assert_ptr_equal(weir_storage_data(first), memory);
  weir_storage_release(first);
}

TEST(borrowed_memory) {
  float values[12];
  int weight = 5;
  weir_array a = {0}, view = {0};
  deleted = 0;
  assert_ok(weir_array_from_memory(values, weir_place_host(), WEIR_FLOAT32, 2, (int64_t[]){2, 3}, (int64_t[]){1, 4},
                                   count_deletion, &weight, &a));
  assert_int_equal(weir_storage_bytes(a.storage), 10 * 4);
  assert_true(weir_storage_is_borrowed(a.storage));
  assert_ok(weir_array_select(&a, 0, 1, &view));
  assert_ptr_equal(view.data, values + 1);
  assert_int_equal(weir_array_offset(&view), 1);
  assert_int_equal(weir_storage_references(a.storage), 2);
  weir_array_release(&a);
  assert_int_equal(deleted, 0);
  weir_array_release(&view);
  assert_int_equal(deleted, 5);
  assert_error_says(INVALID_ARGUMENT, "is not aligned for float32",
                    weir_array_from_memory((char *)values + 1, weir_place_host(), WEIR_FLOAT32, 0, NULL, NULL,
                                           count_deletion, &weight, &a));
  assert_error_says(INVALID_ARGUMENT, "Negative strides",
                    weir_array_from_memory(values, weir_place_host(), WEIR_FLOAT32, 1, (int64_t[]){2}, (int64_t[]){-1},
                                           count_deletion, &weight, &a));
  assert_int_equal(deleted, 5);
}

TEST(storages) {
  weir_storage *storage;
  weir_array a = {0}, b = {0};
  assert_ok(weir_storage_create(weir_place_device(-1), 64, stream, &storage));
  assert_int_equal(weir_storage_place(storage).device, 0);
  assert_ok(weir_array_in_storage(storage, WEIR_INT32, 2, 1, (int64_t[]){4}, NULL, &a));
  assert_ok(weir_array_in_storage(storage, WEIR_INT64, 1, 2, (int64_t[]){2, 2}, (int64_t[]){1, 3}, &b));
  assert_int_equal(weir_array_offset(&a), 2);
  assert_error_says(INVALID_ARGUMENT, "out of bounds for storage of size 64",
                    weir_array_in_storage(storage, WEIR_INT32, 2, 1, (int64_t[]){15}, NULL, &a));
  assert_error_says(INVALID_ARGUMENT, "invalid storage offset -1",
                    weir_array_in_storage(storage, WEIR_INT32, -1, 1, (int64_t[]){1}, NULL, &a));
  weir_storage_release(storage);
  weir_array_release(&a);
  weir_array_release(&b);

  const weir_place places[] = {weir_place_host(), weir_place_pinned(), weir_place_device(0)};
  for (int p = 0; p < 3; p++) {
    assert_ok(weir_array_empty(places[p], WEIR_INT32, 1, (int64_t[]){4}, stream, &a));
    assert_ok(weir_array_fill(&a, weir_scalar_int(7), stream));
    assert_ok(weir_storage_resize(a.storage, 32, stream));
    assert_int_equal(weir_storage_bytes(a.storage), 32);
    a.data = weir_storage_data(a.storage);
    weir_scalar item;
    weir_array last = {0};
    assert_ok(weir_array_select(&a, 0, -1, &last));
    assert_ok(weir_array_item(&last, stream, &item));
    assert_int_equal(item.integer, 7);
    weir_array_release(&last);
    assert_ok(weir_storage_resize(a.storage, 0, stream));
    assert_null(weir_storage_data(a.storage));
    weir_array_release(&a);
  }
}

/* Pinned memory of the program's own allocator, which keeps it. */
TEST(host_allocator) {
  weir_driver *driver;
  weir_host_allocator *host;
  weir_array a = {0};
  assert_ok(weir_get_driver(&driver));
  assert_ok(weir_host_allocator_create(driver, NULL, &host));
  assert_ok(weir_array_use_host_allocator(host));
  assert_ok(weir_array_empty(weir_place_pinned(), WEIR_INT32, 1, (int64_t[]){1000}, stream, &a));
  int owns;
  assert_ok(weir_host_owns(host, a.data, &owns));
  assert_true(owns);
  void *first = a.data;
  weir_array_release(&a);
  assert_ok(weir_array_empty(weir_place_pinned(), WEIR_INT32, 1, (int64_t[]){1000}, stream, &a));
  assert_ptr_equal(a.data, first);
  weir_array_release(&a);
  assert_ok(weir_array_use_host_allocator(NULL));
  weir_host_allocator_destroy(host);
}

/* ---- Views ---- */

/* An int64 array with elements 0, 1, ... on the host. */
static weir_array counted(int ndim, const int64_t *shape) {
  weir_array a = {0};
  assert_ok(weir_array_empty(weir_place_host(), WEIR_INT64, ndim, shape, stream, &a));
  for (int64_t i = 0; i < weir_array_count(&a); i++)
    ((int64_t *)a.data)[i] = i;
  return a;
}

#define assert_elements(array, ...)                                                                                    \
  do {                                                                                                                 \
    const int64_t expected[] = {__VA_ARGS__};                                                                          \
    assert_int_equal(weir_array_count(array), sizeof expected / sizeof *expected);                                     \
    for (int64_t i = 0; i < weir_array_count(array); i++)                                                              \
      assert_int_equal(*(int64_t *)element_of(array, (array)->ndim, (array)->shape, i), expected[i]);                  \
  } while (0)

TEST(views) {
  weir_array a = counted(2, (int64_t[]){2, 3}), v = {0};
  assert_ok(weir_array_transpose(&a, 0, -1, &v));
  assert_elements(&v, 0, 3, 1, 4, 2, 5);
  assert_false(weir_array_is_contiguous(&v));
  assert_error_says(INVALID_ARGUMENT, "view size is not compatible with input tensor's size and stride",
                    weir_array_view(&v, 1, (int64_t[]){6}, &v));
  assert_ok(weir_array_reshape(&v, 1, (int64_t[]){-1}, stream, &v));
  assert_elements(&v, 0, 3, 1, 4, 2, 5);
  weir_array_release(&v);
  assert_ok(weir_array_view(&a, 3, (int64_t[]){3, 1, -1}, &v));
  assert_elements(&v, 0, 1, 2, 3, 4, 5);
  assert_int_equal(v.shape[2], 2);
  assert_ok(weir_array_squeeze_all(&v, &v));
  assert_int_equal(v.ndim, 2);
  assert_ok(weir_array_unsqueeze(&v, -1, &v));
  assert_int_equal(v.shape[2], 1);
  assert_ok(weir_array_squeeze(&v, 2, &v));
  assert_ok(weir_array_squeeze(&v, 0, &v)); /* of size 3: nothing happens */
  assert_int_equal(v.ndim, 2);
  weir_array_release(&v);
  assert_ok(weir_array_slice(&a, 1, -2, INT64_MAX, 1, &v));
  assert_elements(&v, 1, 2, 4, 5);
  assert_ok(weir_array_slice(&v, 0, 5, 9, 1, &v));
  assert_int_equal(weir_array_count(&v), 0);
  weir_array_release(&v);
  assert_ok(weir_array_slice(&a, 1, 0, 3, 2, &v));
  assert_elements(&v, 0, 2, 3, 5);
  weir_array_release(&v);
  assert_ok(weir_array_select(&a, 1, -1, &v));
  assert_elements(&v, 2, 5);
  assert_ok(weir_array_expand(&v, 2, (int64_t[]){2, -1}, &v));
  assert_elements(&v, 2, 5, 2, 5);
  assert_ok(weir_array_contiguous(&v, stream, &v));
  assert_true(weir_array_is_contiguous(&v));
  assert_elements(&v, 2, 5, 2, 5);
  weir_array_release(&v);
  assert_ok(weir_array_as_strided(&a, 1, 2, (int64_t[]){2, 2}, (int64_t[]){1, 2}, &v));
  assert_elements(&v, 1, 3, 2, 4);
  weir_array_release(&v);
  assert_ok(weir_array_permute(&a, (int[]){1, 0}, &v));
  assert_elements(&v, 0, 3, 1, 4, 2, 5);
  weir_array_release(&v);

  assert_error_says(INVALID_ARGUMENT, "shape '[4]' is invalid for input of size 6",
                    weir_array_view(&a, 1, (int64_t[]){4}, &v));
  assert_error_says(INVALID_ARGUMENT, "only one dimension can be inferred",
                    weir_array_view(&a, 2, (int64_t[]){-1, -1}, &v));
  assert_error_says(INVALID_ARGUMENT, "Dimension out of range (expected to be in range of [-2, 1], but got 2)",
                    weir_array_transpose(&a, 0, 2, &v));
  assert_error_says(INVALID_ARGUMENT, "duplicate dims are not allowed", weir_array_permute(&a, (int[]){1, 1}, &v));
  assert_error_says(INVALID_ARGUMENT, "slice step must be positive", weir_array_slice(&a, 0, 0, 1, 0, &v));
  assert_error_says(INVALID_ARGUMENT, "index 2 is out of bounds for dimension 0 with size 2",
                    weir_array_select(&a, 0, 2, &v));
  assert_error_says(INVALID_ARGUMENT,
                    "The expanded size of the tensor (4) must match the existing size (3) at non-singleton dimension 1",
                    weir_array_expand(&a, 2, (int64_t[]){2, 4}, &v));
  assert_error_says(INVALID_ARGUMENT, "must be greater or equal to the number of dimensions",
                    weir_array_expand(&a, 1, (int64_t[]){3}, &v));
  assert_int_equal(weir_storage_references(a.storage), 1);
  weir_array_release(&a);
}

/* Views of random shapes: reshape gives the elements in order, whether it copies or not. */
TEST(random_views) {
  uint64_t seed = 3;
  for (int round = 0; round < repetitions(2000, 50000); round++) {
    int64_t shape[4], wanted[4];
    for (int d = 0; d < 4; d++)
      shape[d] = 1 + (int64_t)(next_random(&seed) % 4);
    weir_array a = counted(4, shape), v = {0}, r = {0};
    int x = (int)(next_random(&seed) % 4), y = (int)(next_random(&seed) % 4);
    assert_ok(weir_array_transpose(&a, x, y, &v));
    if (next_random(&seed) % 2)
      assert_ok(weir_array_slice(&v, x, 1, INT64_MAX, 1, &v));
    int64_t count = weir_array_count(&v), rest = count;
    if (count) {
      for (int d = 0; d < 3; d++) {
        wanted[d] = 1 + (int64_t)(next_random(&seed) % 6);
        if (rest % wanted[d])
          wanted[d] = 1;
        rest /= wanted[d];
      }
      wanted[3] = rest;
      assert_ok(weir_array_reshape(&v, 4, wanted, stream, &r));
      for (int64_t i = 0; i < count; i++)
        assert_int_equal(*(int64_t *)element_of(&r, 4, wanted, i), *(int64_t *)element_of(&v, 4, v.shape, i));
      weir_array direct = {0};
      if (!weir_array_view(&v, 4, wanted, &direct)) {
        assert_ptr_equal(direct.storage, v.storage);
        assert_ptr_equal(direct.storage, r.storage);
      } else
        assert_ptr_not_equal(r.storage, v.storage);
      weir_array_release(&direct);
    }
    weir_array_release(&r);
    weir_array_release(&v);
    weir_array_release(&a);
  }
}

TEST(view_as_another_type) {
  weir_array a = counted(2, (int64_t[]){2, 3}), v = {0};
  assert_ok(weir_array_view_dtype(&a, WEIR_INT16, &v));
  assert_int_equal(v.shape[1], 12);
  assert_int_equal(((int16_t *)v.data)[4], 1);
  assert_ok(weir_array_view_dtype(&v, WEIR_INT64, &v));
  assert_elements(&v, 0, 1, 2, 3, 4, 5);
  assert_ok(weir_array_view_dtype(&v, WEIR_FLOAT64, &v));
  assert_error(INVALID_ARGUMENT, weir_array_view_dtype(&v, WEIR_COMPLEX128, &v));
  assert_ok(weir_array_transpose(&v, 0, 1, &v));
  assert_error_says(INVALID_ARGUMENT, "self.stride(-1) must be 1 to view Double as Byte",
                    weir_array_view_dtype(&v, WEIR_UINT8, &v));
  weir_array_release(&v);
  weir_array_release(&a);
}

/* ---- A forked child ---- */

static void child(void *data) {
  (void)data;
  weir_array a = {0}, b = {0};
  weir_scalar item = {0};
  child_assert(weir_array_empty(weir_place_device(0), WEIR_INT8, 1, (int64_t[]){4}, stream, &a) == WEIR_ERROR_BAD_FORK);
  child_assert(weir_array_empty(weir_place_pinned(), WEIR_INT8, 1, (int64_t[]){4}, stream, &a) == WEIR_ERROR_BAD_FORK);
  child_assert(weir_array_use_host_allocator(NULL) == WEIR_ERROR_BAD_FORK);
  child_assert(!weir_array_empty(weir_place_host(), WEIR_FLOAT32, 1, (int64_t[]){4}, stream, &a));
  child_assert(!weir_array_fill(&a, weir_scalar_float(1.5), stream));
  child_assert(!weir_array_reduce(WEIR_REDUCE_SUM, &a, NULL, 0, 0, stream, &b));
  child_assert(!weir_array_item(&b, stream, &item));
  child_assert(item.real == 6);
  weir_array_release(&a);
  weir_array_release(&b);
}

TEST(fork) {
  NEED_SOFT("NVIDIA's driver does not support fork");
  weir_array a = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_INT8, 1, (int64_t[]){4}, stream, &a));
  in_process(child, NULL);
  weir_array_release(&a);
}
