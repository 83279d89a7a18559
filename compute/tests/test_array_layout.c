/*
 * Layouts for which the kernels of arrays have different paths: aligned or not, rows with and without a rest, broadcast
 * rows and columns, and offsets beyond 31 bits.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "support/runtime.h"
#include "tests/numbers.h"

static weir_stream stream;
static uint64_t seed;

static int setup(void **state) {
  int result = runtime_setup(state);
  stream = new_stream(0);
  seed = 11;
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

/* Contiguous random elements that begin `offset` elements behind an aligned address, and a copy on the host. */
static weir_array make(weir_dtype dtype, int ndim, const int64_t *shape, int64_t offset, weir_array *host) {
  int64_t count = 1;
  for (int d = 0; d < ndim; d++)
    count *= shape[d];
  weir_array base = {0}, made = {0}, part = {0};
  int64_t whole = count + offset, size = (int64_t)weir_dtype_size(dtype);
  *host = (weir_array){0};
  assert_ok(weir_array_empty(weir_place_host(), dtype, ndim, shape, stream, host));
  for (int64_t i = 0; i < count; i++)
    write_element(dtype, (char *)host->data + i * size, small_number(dtype, next_random(&seed)));
  assert_ok(weir_array_empty(weir_place_device(0), dtype, 1, &whole, stream, &base));
  assert_ok(weir_array_slice(&base, 0, offset, INT64_MAX, 1, &part));
  assert_ok(weir_array_view(&part, ndim, shape, &made));
  assert_ptr_equal(made.data, (char *)base.data + offset * size);
  assert_ok(weir_array_copy(&made, host, stream, 0));
  weir_array_release(&part);
  weir_array_release(&base);
  return made;
}

static number number_at(const weir_array *host, int64_t i) {
  return read_element(host->dtype, (char *)host->data + i * (int64_t)weir_dtype_size(host->dtype));
}

static bool are_equal(weir_dtype dtype, number a, number b) {
  return is_whole(dtype) ? a.integer == b.integer : a.real == b.real && a.imag == b.imag;
}

/* From each type to each. */
TEST(conversions) {
  static const int64_t sizes[] = {1, 6, 64, 1027};
  for (int from = 0; from < DTYPES; from++)
    for (int to = 0; to < DTYPES; to++)
      for (int variant = 0; variant < 16; variant++) {
        weir_dtype source = all_dtypes[from], target = all_dtypes[to];
        int64_t count = sizes[variant / 4];
        weir_array host_a, unused, a = make(source, 1, &count, variant & 1, &host_a);
        weir_array out = make(target, 1, &count, variant >> 1 & 1, &unused), host_out = {0};
        assert_ok(weir_array_copy(&out, &a, stream, 1));
        assert_ok(weir_array_to(&out, weir_place_host(), target, stream, 0, &host_out));
        for (int64_t i = 0; i < count; i++) {
          number expected = rounded_to(target, number_at(&host_a, i), source), found = number_at(&host_out, i);
          if (!are_equal(target, expected, found))
            fail_msg("%s to %s, element %lld of %lld: %g, expected %g", weir_dtype_name(source),
                     weir_dtype_name(target), (long long)i, (long long)count, found.real, expected.real);
        }
        weir_array *all[] = {&host_a, &unused, &a, &out, &host_out};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
          weir_array_release(all[i]);
      }
}

/* A row, a column or a single element, from which a matrix is subtracted or the other way round. The elements are small
 * integers. */
TEST(rows_and_columns) {
  static const int64_t widths[] = {1, 3, 4, 16, 1000, 1001};
  static const weir_dtype types[] = {WEIR_INT8, WEIR_INT32, WEIR_FLOAT16, WEIR_FLOAT32, WEIR_FLOAT64, WEIR_BFLOAT16};
  for (size_t t = 0; t < sizeof types / sizeof *types; t++)
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
      for (int variant = 0; variant < 24; variant++) {
        enum { ROW, COLUMN, ONE };
        int kind = variant >> 3;
        bool is_first = variant & 1;
        int64_t width = widths[w], shape[] = {7, width};
        int64_t repeated_shape[] = {kind == COLUMN ? 7 : 1, kind == ROW ? width : 1};
        weir_array host_a, host_b, a = make(types[t], 2, shape, variant >> 1 & 1, &host_a);
        weir_array b = make(types[t], 2, repeated_shape, variant >> 2 & 1, &host_b);
        weir_array out = {0}, host_out = {0};
        assert_ok(weir_array_binary(WEIR_BINARY_SUB, is_first ? &b : &a, is_first ? &a : &b, stream, &out));
        assert_ok(weir_array_to(&out, weir_place_host(), types[t], stream, 0, &host_out));
        for (int64_t i = 0; i < 7 * width; i++) {
          number x = number_at(&host_a, i), y = number_at(&host_b, kind == ROW      ? i % width
                                                                   : kind == COLUMN ? i / width
                                                                                    : 0);
          int sign = is_first ? -1 : 1;
          number expected = {sign * (x.integer - y.integer), sign * (x.real - y.real), 0},
                 found = number_at(&host_out, i);
          if (!are_equal(types[t], rounded_to(types[t], expected, types[t]), found))
            fail_msg("%s, width %lld, variant %d, element %lld: %g, expected %g", weir_dtype_name(types[t]),
                     (long long)width, variant, (long long)i, found.real, expected.real);
        }
        weir_array *all[] = {&host_a, &host_b, &a, &b, &out, &host_out};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
          weir_array_release(all[i]);
      }
}

/* The results of a sum have the same bits wherever the elements are, and those of integers are exact. */
TEST(reductions) {
  static const int64_t shapes[][2] = {{1, 9}, {3, 130}, {5, 1000}, {300, 17}, {1, 20001}, {2001, 3}};
  static const int ops[] = {WEIR_REDUCE_SUM, WEIR_REDUCE_MIN, WEIR_REDUCE_MAX, WEIR_REDUCE_ALL, WEIR_REDUCE_ANY};
  for (int t = 0; t < DTYPES; t++)
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
      for (int variant = 0; variant < 15; variant++) {
        weir_dtype dtype = all_dtypes[t];
        if (weir_dtype_is_complex(dtype))
          continue;
        int op = ops[variant % 5], dim = variant / 5; /* 2 is both */
        uint64_t kept = seed;
        weir_array host, same, aligned = make(dtype, 2, shapes[s], 0, &host);
        seed = kept;
        weir_array shifted = make(dtype, 2, shapes[s], 1, &same), results[2] = {{0}, {0}}, found[2] = {{0}, {0}};
        for (int i = 0; i < 2; i++) {
          assert_ok(
              weir_array_reduce((weir_reduce_op)op, i ? &shifted : &aligned, &dim, dim < 2, 0, stream, &results[i]));
          assert_ok(weir_array_to(&results[i], weir_place_host(), results[i].dtype, stream, 0, &found[i]));
        }
        size_t outputs = (size_t)weir_array_count(&found[0]);
        assert_memory_equal(found[0].data, found[1].data, outputs * weir_dtype_size(found[0].dtype));
        int64_t rows = shapes[s][0], columns = shapes[s][1];
        for (size_t o = 0; o < outputs; o++) {
          number r = {0, 0, 0};
          double size = 0;
          int64_t first = dim == 1 ? (int64_t)o * columns : dim == 0 ? (int64_t)o : 0;
          int64_t count = dim == 0 ? rows : dim == 1 ? columns : rows * columns, step = dim == 0 ? columns : 1;
          for (int64_t i = 0; i < count; i++) {
            number x = number_at(&host, first + i * step);
            double value = is_whole(dtype) ? (double)x.integer : x.real;
            size += fabs(value);
            if (op == WEIR_REDUCE_SUM)
              r.real += value;
            else if (op == WEIR_REDUCE_ALL || op == WEIR_REDUCE_ANY)
              r.real = i == 0 ? value != 0 : op == WEIR_REDUCE_ALL ? r.real && value != 0 : r.real || value != 0;
            else if (i == 0 || (op == WEIR_REDUCE_MIN ? value < r.real : value > r.real))
              r.real = value;
          }
          number got = number_at(&found[0], (int64_t)o);
          double value = is_whole(found[0].dtype) ? (double)got.integer : got.real;
          double tolerance = dtype == WEIR_BFLOAT16 ? 0x1p-8 : dtype == WEIR_FLOAT16 ? 0x1p-11 : 0x1p-20;
          if (op != WEIR_REDUCE_SUM || is_whole(dtype))
            assert_true(value == r.real);
          else if (isfinite(value) || fabs(r.real) < 60000)
            assert_true(fabs(value - r.real) <= tolerance * size);
        }
        weir_array *all[] = {&host, &same, &aligned, &shifted, &results[0], &results[1], &found[0], &found[1]};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
          weir_array_release(all[i]);
      }
}

/* Few elements of a large array. Only the pages that they are on have memory; malloc of the address sanitizer would
 * write an eighth of that to its own. */
TEST(large_offsets) {
  weir_array whole = {0}, part = {0}, out = {0};
  int64_t shape[] = {3, (int64_t)5 << 29};
  size_t bytes = 3 * ((size_t)5 << 29);
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(memory, MAP_FAILED);
  assert_ok(weir_array_from_memory(memory, weir_place_host(), WEIR_UINT8, 2, shape, NULL, NULL, NULL, &whole));
  for (int width = 5; width <= 8; width += 3) {
    assert_ok(weir_array_slice(&whole, 1, 0, width, 1, &part));
    assert_ok(weir_array_arange(&part, weir_scalar_int(3), weir_scalar_int(2), stream));
    assert_ok(weir_array_binary_scalar(WEIR_BINARY_MUL, &part, weir_scalar_int(2), 0, stream, &part));
    assert_ok(weir_array_to(&part, weir_place_host(), WEIR_FLOAT64, stream, 0, &out));
    for (int i = 0; i < 3 * width; i++)
      assert_true(((double *)out.data)[i] == 2 * (3 + 2 * i));
    weir_array_release(&out);
    weir_array_release(&part);
  }
  weir_array_release(&whole);
  munmap(memory, bytes);
}
