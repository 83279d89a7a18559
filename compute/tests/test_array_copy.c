/*
 * Copies between all places and types, operations in captured graphs, and failing driver calls.
 */
#include <stdlib.h>

#include "support/length.h"
#include "support/runtime.h"
#include "tests/numbers.h"
#include "weir/compute/blas.h"

static weir_stream stream;

static int setup(void **state) {
  int result = runtime_setup(state);
  stream = new_stream(0);
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

/* ---- Copies ---- */

enum { ROWS = 5, COLUMNS = 9, COUNT = ROWS * COLUMNS };

typedef struct layout {
  const char *name;
  bool is_transposed;
  int step;
} layout;
static const layout layouts[] = {{"contiguous", false, 1}, {"transposed", true, 1}, {"every second", false, 2}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* An array of ROWS x COLUMNS in a place, as a view with a layout. */
static weir_array make(weir_place place, weir_dtype dtype, const layout *layout) {
  weir_array a = {0};
  int64_t shape[] = {layout->is_transposed ? COLUMNS : ROWS, (layout->is_transposed ? ROWS : COLUMNS) * layout->step};
  weir_stream on = place.kind == WEIR_PLACE_DEVICE && place.device ? current_stream(place.device) : stream;
  assert_ok(weir_array_empty(place, dtype, 2, shape, on, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_int(0), on));
  assert_ok(weir_array_slice(&a, 1, 0, INT64_MAX, layout->step, &a));
  if (layout->is_transposed)
    assert_ok(weir_array_transpose(&a, 0, 1, &a));
  return a;
}

static number value_at(weir_dtype dtype, int i) { return small_number(dtype, (uint64_t)i * 0x9e3779b97f4a7c15 >> 20); }

static void fill_host(weir_array *a) {
  for (int i = 0; i < COUNT; i++)
    write_element(a->dtype, element_of(a, 2, a->shape, i), value_at(a->dtype, i));
}

/* From the host to `from`, on to `to` with another type and layout, and back. Returns whether all elements arrived. */
static void check_path(weir_place from, weir_dtype from_type, const layout *from_layout, weir_place to,
                       weir_dtype to_type, const layout *to_layout, int non_blocking) {
  static const layout plain = {"contiguous", false, 1};
  weir_array host = make(weir_place_host(), from_type, &plain), result = make(weir_place_host(), to_type, &plain);
  weir_array source = make(from, from_type, from_layout), target = make(to, to_type, to_layout);
  weir_stream from_stream = from.device ? current_stream(from.device) : stream;
  weir_stream to_stream = to.device ? current_stream(to.device) : stream;
  fill_host(&host);
  assert_ok(weir_array_copy(&source, &host, from_stream, 0));
  weir_stream on = to.kind == WEIR_PLACE_DEVICE ? to_stream : from_stream;
  assert_ok(weir_array_copy(&target, &source, on, non_blocking));
  if (non_blocking)
    assert_ok(weir_stream_synchronize(on));
  assert_ok(weir_array_copy(&result, &target, to_stream, 0));
  for (int i = 0; i < COUNT; i++) {
    number expected = rounded_to(to_type, value_at(from_type, i), from_type);
    number found = read_element(to_type, element_of(&result, 2, result.shape, i));
    if (!is_close(to_type, found, expected, 0))
      fail_msg("%s %s (place %d) to %s %s (place %d), element %d: %lld %g in place of %lld %g", from_layout->name,
               weir_dtype_name(from_type), (int)from.kind, to_layout->name, weir_dtype_name(to_type), (int)to.kind, i,
               (long long)found.integer, found.real, (long long)expected.integer, expected.real);
  }
  weir_array_release(&host);
  weir_array_release(&result);
  weir_array_release(&source);
  weir_array_release(&target);
}

/* Every pair of types and of places. The layouts alternate. */
TEST(all_paths) {
  weir_driver *driver;
  weir_host_allocator *host;
  assert_ok(weir_get_driver(&driver));
  assert_ok(weir_host_allocator_create(driver, NULL, &host));
  assert_ok(weir_array_use_host_allocator(host));
  weir_place places[] = {weir_place_host(), weir_place_pinned(), weir_place_device(0), weir_place_device(1)};
  int place_count = devices() > 1 ? 4 : 3;
  unsigned at = 0;
  for (int f = 0; f < place_count; f++)
    for (int t = 0; t < place_count; t++)
      for (int x = 0; x < DTYPES; x++)
        for (int y = 0; y < DTYPES; y++, at++) {
          if (at % 3 && x != y && !usual_or_long(0, 1))
            continue;
          check_path(places[f], all_dtypes[x], &layouts[at / 3 % LAYOUTS], places[t], all_dtypes[y],
                     &layouts[at / 9 % LAYOUTS], at / 3 % 2);
        }
  assert_ok(weir_array_use_host_allocator(NULL));
  weir_host_allocator_destroy(host);
}

/* Without an allocator of the program for pinned memory. */
TEST(default_pinned_memory) {
  check_path(weir_place_host(), WEIR_INT16, &layouts[1], weir_place_device(0), WEIR_FLOAT64, &layouts[2], 0);
  check_path(weir_place_device(0), WEIR_FLOAT32, &layouts[2], weir_place_host(), WEIR_FLOAT16, &layouts[1], 0);
  check_path(weir_place_pinned(), WEIR_FLOAT32, &layouts[0], weir_place_device(0), WEIR_FLOAT32, &layouts[0], 1);
}

TEST(broadcast) {
  weir_array a = {0}, row = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_INT32, 2, (int64_t[]){2, 3}, stream, &a));
  int32_t values[] = {4, 5, 6};
  assert_ok(weir_array_from_memory(values, weir_place_host(), WEIR_INT32, 1, (int64_t[]){3}, NULL, NULL, NULL, &row));
  assert_ok(weir_array_copy(&a, &row, stream, 0));
  weir_scalar item;
  weir_array last = {0};
  assert_ok(weir_array_select(&a, 0, 1, &last));
  assert_ok(weir_array_select(&last, 0, 2, &last));
  assert_ok(weir_array_item(&last, stream, &item));
  assert_int_equal(item.integer, 6);
  weir_array_release(&last);
  assert_error_says(INVALID_ARGUMENT, "output with shape [3] doesn't match the broadcast shape [2, 3]",
                    weir_array_copy(&row, &a, stream, 0));
  weir_array_release(&a);
  weir_array_release(&row);
}

/* A copy from pinned memory does not wait if it must not, and waits otherwise. */
TEST(non_blocking) {
  NEED_SOFT("holds a stream");
  weir_array pinned = {0}, device = {0}, pageable = {0};
  int64_t count = 1000;
  assert_ok(weir_array_empty(weir_place_pinned(), WEIR_FLOAT32, 1, &count, stream, &pinned));
  assert_ok(weir_array_empty(weir_place_host(), WEIR_FLOAT32, 1, &count, stream, &pageable));
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, &count, stream, &device));
  assert_ok(weir_array_fill(&pinned, weir_scalar_int(3), stream));
  weir_array half = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT16, 1, &count, stream, &half));
  assert_ok(weir_array_copy(&half, &pinned, stream, 0)); /* loads the kernels, and caches memory for the next one */
  struct held *held = hold(stream);
  assert_ok(weir_array_copy(&device, &pinned, stream, 1));
  assert_int_equal(weir_stream_query(stream), WEIR_ERROR_NOT_READY);
  unblock(held);
  assert_ok(weir_array_copy(&pageable, &device, stream, 1)); /* pageable: waits all the same */
  assert_true(((float *)pageable.data)[999] == 3);
  weir_array_release(&half);
  weir_array_release(&pinned);
  weir_array_release(&pageable);
  weir_array_release(&device);
}

/* ---- Graphs ---- */

/* A chain of operations with temporary arrays, which a graph repeats with new inputs. */
TEST(capture) {
  int64_t shape[] = {4, 300};
  weir_array x = {0}, y = {0}, z = {0}, sum = {0}, result = {0}, pinned = {0};
  weir_graph *graph;
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, shape, stream, &x));
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT16, 0, NULL, stream, &result));
  assert_ok(weir_array_empty(weir_place_pinned(), WEIR_FLOAT16, 0, NULL, stream, &pinned));
  assert_ok(weir_array_fill(&x, weir_scalar_int(1), stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  weir_array turned = {0};
  assert_ok(weir_array_transpose(&x, 0, 1, &turned));
  assert_ok(weir_array_contiguous(&turned, stream, &y));
  assert_ok(weir_array_binary_scalar(WEIR_BINARY_MUL, &y, weir_scalar_float(0.5), 0, stream, &z));
  assert_ok(weir_array_binary(WEIR_BINARY_ADD, &z, &y, stream, &z));
  assert_ok(weir_array_reduce(WEIR_REDUCE_SUM, &z, NULL, 0, 0, stream, &sum));
  assert_ok(weir_array_copy(&result, &sum, stream, 1));
  assert_ok(weir_array_copy(&pinned, &result, stream, 1));
  weir_array_release(&turned);
  weir_array_release(&y);
  weir_array_release(&z);
  weir_array_release(&sum);
  assert_ok(weir_graph_end_capture(graph));
  for (int round = 1; round <= 3; round++) {
    assert_ok(weir_array_fill(&x, weir_scalar_int(round), stream));
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_stream_synchronize(stream));
    assert_true(read_element(WEIR_FLOAT16, pinned.data).real == 1800.0 * round);
  }
  weir_graph_destroy(graph);
  weir_array_release(&x);
  weir_array_release(&result);
  weir_array_release(&pinned);
}

/* What a capture cannot contain is an error. */
TEST(refused_captures) {
  weir_array x = {0}, host = {0};
  weir_graph *graph;
  int64_t shape[] = {4, 30};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, shape, stream, &x));
  assert_ok(weir_array_empty(weir_place_pinned(), WEIR_FLOAT32, 2, shape, stream, &host));
  assert_ok(weir_array_slice(&host, 1, 0, 30, 2, &host));
  assert_ok(weir_array_slice(&x, 1, 0, 30, 2, &x));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_RELAXED));
  assert_error_says(CAPTURE, "a copy from host memory that is not contiguous cannot be captured",
                    weir_array_copy(&x, &host, stream, 1));
  assert_ok(weir_array_fill(&x, weir_scalar_int(1), stream));
  assert_ok(weir_graph_end_capture(graph));
  weir_graph_destroy(graph);
  weir_array_release(&x);
  weir_array_release(&host);
}

/* ---- Memory ---- */

/* Everything that operations allocate is freed, and temporary memory comes from the allocator. */
static int64_t allocated(void) {
  weir_allocator_stats stats;
  weir_allocator_stats_init(&stats);
  assert_ok(weir_memory_get_stats(0, &stats));
  return stats.allocated_bytes[0].current;
}

TEST(memory) {
  int64_t before = allocated();
  weir_array a = {0}, out = {0}, view = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, (int64_t[]){100, 1000}, stream, &a));
  assert_int_equal(allocated() - before, 400384); /* rounded up to 512 */
  assert_ok(weir_array_fill(&a, weir_scalar_int(1), stream));
  assert_ok(weir_array_reduce(WEIR_REDUCE_SUM, &a, NULL, 0, 0, stream, &out));
  assert_int_equal(allocated() - before, 400384 + 512);
  assert_ok(weir_array_transpose(&a, 0, 1, &view));
  weir_array_release(&a);
  assert_int_equal(allocated() - before, 400384 + 512);
  weir_array_release(&view);
  weir_array_release(&out);
  assert_int_equal(allocated(), before);
}

/* ---- Failing driver calls ---- */

static weir_status use_everything(void) {
  weir_stream on;
  weir_array a = {0}, b = {0}, c = {0}, out = {0}, host = {0}, other = {0}, view = {0}, product = {0};
  int64_t shape[] = {20, 1500};
  weir_status status = weir_stream_create(0, 0, &on);
  if (!status)
    status = weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, shape, on, &a);
  if (!status)
    status = weir_array_fill(&a, weir_scalar_int(1), on);
  if (!status)
    status = weir_array_transpose(&a, 0, 1, &b);
  if (!status)
    status = weir_array_to(&b, weir_place_host(), WEIR_FLOAT64, on, 0, &host);
  if (!status)
    status = weir_array_slice(&host, 1, 0, 20, 2, &view);
  if (!status)
    status = weir_array_to(&view, weir_place_device(0), WEIR_INT32, on, 0, &c);
  if (!status)
    status = weir_array_copy(&view, &c, on, 1);
  if (!status)
    status = weir_array_to(&c, weir_place_device(1), WEIR_INT64, on, 0, &other);
  if (!status)
    status = weir_array_reduce(WEIR_REDUCE_SUM, &a, NULL, 0, 0, on, &out);
  if (!status)
    status = weir_array_matmul(&a, &b, on, &product);
  void *handle;
  if (!status)
    status = weir_blas_handle(on, &handle);
  weir_scalar item = {0};
  if (!status)
    status = weir_array_item(&out, on, &item);
  if (!status)
    assert_true(item.real == 30000);
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&c);
  weir_array_release(&out);
  weir_array_release(&host);
  weir_array_release(&other);
  weir_array_release(&view);
  weir_array_release(&product);
  weir_blas_clear_workspaces();
  return status;
}

TEST(failing_driver_calls) {
  NEED_SOFT("makes calls of the software device fail");
  assert_int_equal(runtime_teardown(state), 0);
  bool has_failed = true;
  unsigned long n;
  for (n = 1; has_failed; n += (unsigned long)usual_or_long(3, 1)) {
    assert_int_equal(runtime_setup_fault(state), 0);
    collect_messages();
    /* A failing call that frees memory leaks it, so pinned memory is freed after the faults. */
    weir_driver *driver;
    weir_host_allocator *host;
    assert_ok(weir_get_driver(&driver));
    assert_ok(weir_host_allocator_create(driver, NULL, &host));
    assert_ok(weir_array_use_host_allocator(host));
    has_failed = fails_at(n, use_everything);
    assert_ok(use_everything());
    assert_ok(weir_array_use_host_allocator(NULL));
    weir_host_allocator_destroy(host);
    assert_int_equal(runtime_teardown(state), 0);
  }
  assert_in_range(n, 50, 10000);
  assert_int_equal(setup(state), 0);
}
