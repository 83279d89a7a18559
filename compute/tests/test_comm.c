/*
 * Arrays of several devices: broadcast, scatter, gather and sums.
 */
#include "weir/compute/comm.h"

#include <stdlib.h>
#include <string.h>

#include "support/length.h"
#include "support/random.h"
#include "support/runtime.h"

enum { DEVICES = 4, MAX = 24 };

/* ---- Arrays with known elements ---- */

/* start, start + 1, ... */
static weir_array counting(weir_place place, weir_dtype dtype, int ndim, const int64_t *shape, int start) {
  weir_array array = {0};
  weir_stream stream = current_stream(place.kind == WEIR_PLACE_DEVICE ? place.device : -1);
  assert_ok(weir_array_empty(place, dtype, ndim, shape, stream, &array));
  assert_ok(weir_array_arange(&array, weir_scalar_int(start), weir_scalar_int(1), stream));
  return array;
}

static weir_array vector_of(int device, int64_t count, int start) {
  return counting(weir_place_device(device), WEIR_FLOAT32, 1, &count, start);
}

static double element(const weir_array *array, int64_t index) {
  weir_array host = {0};
  weir_stream stream = current_stream(array->place.kind == WEIR_PLACE_DEVICE ? array->place.device : -1);
  assert_ok(weir_array_to(array, weir_place_host(), WEIR_FLOAT64, stream, 0, &host));
  assert_true(index < weir_array_count(&host));
  double value = ((const double *)host.data)[index];
  weir_array_release(&host);
  return value;
}

/* The elements are start, start + step, ... */
static void check_elements(const weir_array *array, double start, double step) {
  for (int64_t i = 0; i < weir_array_count(array); i++)
    assert_float_equal(element(array, i), start + step * (double)i, 0);
}

static void release_all(weir_array *arrays, int count) {
  for (int i = 0; i < count; i++)
    weir_array_release(&arrays[i]);
}

#define NEED_DEVICES()                                                                                                 \
  do {                                                                                                                 \
    if (devices() < DEVICES)                                                                                           \
      WAIVE_TEST("needs four devices");                                                                                \
  } while (0)

static const int all_devices[DEVICES] = {0, 1, 2, 3};

/* ---- Broadcast ---- */

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup_four, .teardown = runtime_teardown)

TEST(broadcast) {
  NEED_DEVICES();
  weir_array results[DEVICES] = {{0}};
  weir_array a = vector_of(1, 1000, 5), host = counting(weir_place_host(), WEIR_INT16, 1, (int64_t[]){9}, 1);
  assert_ok(weir_comm_broadcast(&a, all_devices, DEVICES, results));
  for (int i = 0; i < DEVICES; i++) {
    assert_int_equal(results[i].place.device, i);
    assert_int_equal(results[i].dtype, WEIR_FLOAT32);
    check_elements(&results[i], 5, 1);
  }
  assert_ptr_equal(results[1].storage, a.storage);
  assert_error_says(INVALID_ARGUMENT, "results[0] is an array already",
                    weir_comm_broadcast(&a, all_devices, DEVICES, results));

  /* In place of what is there, with a conversion of the type. */
  weir_array outs[2] = {vector_of(2, 9, 0), vector_of(3, 9, 0)};
  assert_ok(weir_comm_broadcast_out(&host, outs, 2));
  check_elements(&outs[0], 1, 1);
  check_elements(&outs[1], 1, 1);

  weir_array none[1] = {{0}};
  assert_error_says(INVALID_ARGUMENT, "Expected non-negative device index, but got -1",
                    weir_comm_broadcast(&a, (const int[]){-1}, 1, none));
  assert_error(INVALID_DEVICE, weir_comm_broadcast(&a, (const int[]){77}, 1, none));
  assert_error_says(INVALID_ARGUMENT,
                    "Expected all output tensors to have same shape as the source tensor [1000], but output tensor at "
                    "index 0 has shape [9]",
                    weir_comm_broadcast_out(&a, outs, 2));
  assert_error_says(INVALID_ARGUMENT,
                    "Expected all output tensors to be CUDA tensors, but output tensor at index 0 has device 'cpu'",
                    weir_comm_broadcast_out(&host, &host, 1));
  release_all(results, DEVICES);
  release_all(outs, 2);
  weir_array_release(&a);
  weir_array_release(&host);
}

TEST(broadcast_coalesced) {
  NEED_DEVICES();
  /* Types alternate, one array has no dimension, one no element, and one is not contiguous. */
  weir_array arrays[6] = {{0}}, results[6 * DEVICES] = {{0}};
  arrays[0] = vector_of(0, 10, 1);
  arrays[1] = counting(weir_place_device(0), WEIR_INT64, 2, (int64_t[]){3, 4}, 100);
  arrays[2] = counting(weir_place_device(0), WEIR_FLOAT32, 0, NULL, 7);
  arrays[3] = vector_of(0, 0, 0);
  arrays[4] = counting(weir_place_device(0), WEIR_FLOAT32, 2, (int64_t[]){5, 2}, 0);
  assert_ok(weir_array_slice(&arrays[4], 1, 0, 1, 1, &arrays[4]));
  arrays[5] = counting(weir_place_device(0), WEIR_INT64, 1, (int64_t[]){2}, 3);
  for (size_t limit = 1; limit <= WEIR_COMM_BUFFER_BYTES; limit *= 32) {
    assert_ok(weir_comm_broadcast_coalesced(arrays, 6, all_devices, DEVICES, limit, results));
    for (int i = 0; i < 6; i++)
      assert_ptr_equal(results[i].storage, arrays[i].storage);
    for (int d = 1; d < DEVICES; d++) {
      const weir_array *there = &results[d * 6];
      for (int i = 0; i < 6; i++) {
        assert_int_equal(there[i].place.device, d);
        assert_int_equal(there[i].dtype, arrays[i].dtype);
        assert_int_equal(there[i].ndim, arrays[i].ndim);
        assert_memory_equal(there[i].shape, arrays[i].shape, (size_t)arrays[i].ndim * sizeof(int64_t));
      }
      check_elements(&there[0], 1, 1);
      check_elements(&there[1], 100, 1);
      check_elements(&there[2], 7, 1);
      check_elements(&there[4], 0, 2);
      check_elements(&there[5], 3, 1);
      if (limit > 1000)
        assert_ptr_equal(there[0].storage, there[4].storage);
    }
    release_all(results, 6 * DEVICES);
  }
  assert_error_says(INVALID_ARGUMENT, "All tensors must be on devices[0]: 1",
                    weir_comm_broadcast_coalesced(arrays, 6, (const int[]){1, 0}, 2, 100, results));
  assert_ok(weir_comm_broadcast_coalesced(NULL, 0, all_devices, DEVICES, 100, NULL));
  release_all(arrays, 6);
}

/* ---- Scatter and gather ---- */

TEST(scatter) {
  NEED_DEVICES();
  weir_array a = counting(weir_place_device(0), WEIR_INT32, 2, (int64_t[]){10, 3}, 0), parts[DEVICES] = {{0}};
  int count = 0;
  assert_ok(weir_comm_scatter(&a, all_devices, DEVICES, NULL, 0, NULL, parts, &count));
  assert_int_equal(count, 4); /* 3, 3, 3, 1 */
  for (int i = 0; i < count; i++) {
    assert_int_equal(parts[i].shape[0], i == 3 ? 1 : 3);
    assert_int_equal(parts[i].place.device, i);
    check_elements(&parts[i], 9 * i, 1);
  }
  assert_ptr_equal(parts[0].storage, a.storage); /* a view */
  release_all(parts, DEVICES);
  assert_ok(weir_comm_scatter(&a, all_devices, DEVICES, NULL, -1, NULL, parts, &count));
  assert_int_equal(count, 3); /* three columns */
  check_elements(&parts[2], 2, 3);
  release_all(parts, DEVICES);

  /* Given sizes and streams, from the host. */
  weir_array host = counting(weir_place_pinned(), WEIR_FLOAT32, 1, (int64_t[]){10}, 0);
  const int64_t sizes[] = {1, 0, 9};
  weir_stream stream = new_stream(3);
  const weir_stream *streams[] = {NULL, NULL, &stream};
  const int targets[] = {1, 2, 3};
  assert_ok(weir_comm_scatter(&host, targets, 3, sizes, 0, streams, parts, &count));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(count, 3);
  assert_int_equal(weir_array_count(&parts[1]), 0);
  check_elements(&parts[2], 1, 1);

  weir_array outs[2] = {vector_of(2, 4, 0), vector_of(0, 6, 0)};
  assert_ok(weir_comm_scatter_out(&host, outs, 2, 0, NULL));
  check_elements(&outs[0], 0, 1);
  check_elements(&outs[1], 4, 1);

  weir_array none[4] = {{0}};
  assert_error_says(INVALID_ARGUMENT, "Expected at least one device to scatter to",
                    weir_comm_scatter(&a, NULL, 0, NULL, 0, NULL, none, &count));
  assert_error_says(INVALID_ARGUMENT,
                    "split_with_sizes expects split_sizes to sum exactly to 10 (input tensor's size at dimension 0), "
                    "but got split_sizes=[1, 2]",
                    weir_comm_scatter(&a, targets, 2, (const int64_t[]){1, 2}, 0, NULL, none, &count));
  assert_error_says(
      INVALID_ARGUMENT, "to sum exactly to 10 ",
      weir_comm_scatter(&a, targets, 3, (const int64_t[]){INT64_MAX, INT64_MAX, 12}, 0, NULL, none, &count));
  assert_error_says(INVALID_ARGUMENT, "only non-negative entries",
                    weir_comm_scatter(&a, targets, 2, (const int64_t[]){-1, 11}, 0, NULL, none, &count));
  streams[0] = &stream;
  assert_error_says(INVALID_ARGUMENT,
                    "Expected the device associated with the stream at index 0 (was 3) to match the device supplied at "
                    "that index (expected 1)",
                    weir_comm_scatter(&host, targets, 3, sizes, 0, streams, none, &count));
  assert_error_says(INVALID_ARGUMENT, "Expected at least one output tensor to scatter to",
                    weir_comm_scatter_out(&host, outs, 0, 0, NULL));
  assert_error_says(INVALID_ARGUMENT,
                    "Total size for output tensors along scatter dim 0 does not match the source tensor size at dim 0. "
                    "Expected 10, but got total size 4",
                    weir_comm_scatter_out(&host, outs, 1, 0, NULL));
  assert_error_says(INVALID_ARGUMENT,
                    "Output tensor at index 0 has incorrect shape: [4]. Expected same shape except for scatter dim 0 "
                    "as the source tensor: [10, 3]",
                    weir_comm_scatter_out(&a, outs, 2, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_comm_scatter(&a, targets, 2, NULL, 2, NULL, none, &count));
  release_all(parts, DEVICES);
  release_all(outs, 2);
  weir_array_release(&a);
  weir_array_release(&host);
}

TEST(gather) {
  NEED_DEVICES();
  weir_array parts[DEVICES] = {{0}}, whole = {0}, host = {0};
  for (int i = 0; i < DEVICES; i++)
    parts[i] = counting(weir_place_device(i), WEIR_FLOAT32, 2, (int64_t[]){i + 1, 2}, i * (i + 1));
  assert_ok(weir_comm_gather(parts, DEVICES, 0, weir_place_device(2), &whole));
  assert_int_equal(whole.place.device, 2);
  assert_int_equal(whole.shape[0], 10);
  check_elements(&whole, 0, 1);
  /* In memory of the host the result is complete at once. */
  assert_ok(weir_comm_gather(parts, DEVICES, -2, weir_place_pinned(), &host));
  for (int i = 0; i < 20; i++)
    assert_float_equal(((float *)host.data)[i], i, 0);
  weir_array_release(&host);
  assert_ok(weir_comm_gather(parts, DEVICES, -2, weir_place_host(), &host));
  for (int i = 0; i < 20; i++)
    assert_float_equal(((float *)host.data)[i], i, 0);
  assert_ok(weir_array_fill(&whole, weir_scalar_int(0), current_stream(2)));
  assert_ok(weir_comm_gather_out(parts, DEVICES, 0, &whole));
  check_elements(&whole, 0, 1);

  weir_array none = {0}, flat = vector_of(0, 3, 0);
  assert_error_says(INVALID_ARGUMENT, "Expected at least one tensor to gather from",
                    weir_comm_gather(NULL, 0, 0, weir_place_device(0), &none));
  assert_error_says(INVALID_ARGUMENT, "tensor at index 0 has device 'cpu'",
                    weir_comm_gather(&host, 1, 0, weir_place_device(0), &none));
  assert_error_says(INVALID_ARGUMENT, "Input tensor at index 1 has invalid shape [2, 2], but expected [1, 2]",
                    weir_comm_gather(parts, 2, 1, weir_place_device(0), &none));
  weir_array mixed[2] = {parts[0], flat};
  assert_error_says(INVALID_ARGUMENT, "tensor at index 1 has 1 dimensions, (expected 2)",
                    weir_comm_gather(mixed, 2, 0, weir_place_device(0), &none));
  assert_error_says(INVALID_ARGUMENT, "Expected out tensor to have shape [3, 2], but got [10, 2]",
                    weir_comm_gather_out(parts, 2, 0, &whole));
  assert_null(none.storage);
  release_all(parts, DEVICES);
  weir_array_release(&flat);
  weir_array_release(&whole);
  weir_array_release(&host);
}

/* ---- Sums ---- */

TEST(reduce_add) {
  NEED_DEVICES();
  weir_array parts[DEVICES] = {{0}}, sum = {0};
  for (int i = 0; i < DEVICES; i++)
    parts[i] = vector_of(i, 50, i * 10);
  assert_ok(weir_comm_reduce_add(parts, DEVICES, 2, &sum));
  assert_int_equal(sum.place.device, 2);
  check_elements(&sum, 60, 4);
  check_elements(&parts[2], 20, 1); /* the inputs are as they were */
  weir_array_release(&sum);
  assert_ok(weir_comm_reduce_add(&parts[1], 1, 1, &sum));
  assert_ptr_equal(sum.storage, parts[1].storage);
  weir_array_release(&sum);

  assert_error_says(INVALID_ARGUMENT, "reduce_add expects destination to be on the same GPU with one of the tensors",
                    weir_comm_reduce_add(parts, 2, 3, &sum));
  weir_array others[2] = {parts[0], counting(weir_place_device(1), WEIR_FLOAT32, 2, (int64_t[]){2, 3}, 0)};
  assert_error_says(INVALID_ARGUMENT, "input 1 has invalid size: got 2x3, but expected 50",
                    weir_comm_reduce_add(others, 2, 0, &sum));
  weir_array host = counting(weir_place_host(), WEIR_FLOAT32, 1, (int64_t[]){50}, 0);
  assert_error_says(INVALID_ARGUMENT, "reduce_add expects all inputs to be on GPUs, but input 0 is on CPU",
                    weir_comm_reduce_add(&host, 1, 0, &sum));
  assert_error(INVALID_ARGUMENT, weir_comm_reduce_add(parts, 0, 0, &sum));
  weir_array_release(&others[1]);
  weir_array_release(&host);
  release_all(parts, DEVICES);
}

TEST(reduce_add_coalesced) {
  NEED_DEVICES();
  weir_array inputs[DEVICES * 3] = {{0}}, sums[3] = {{0}};
  for (int d = 0; d < DEVICES; d++) {
    inputs[d * 3] = vector_of(d, 10, d);
    inputs[d * 3 + 1] = counting(weir_place_device(d), WEIR_INT64, 2, (int64_t[]){2, 2}, d * 100);
    inputs[d * 3 + 2] = vector_of(d, 7, -d);
  }
  for (size_t limit = 1; limit <= WEIR_COMM_BUFFER_BYTES; limit *= 64) {
    assert_ok(weir_comm_reduce_add_coalesced(inputs, DEVICES, 3, 1, limit, sums));
    check_elements(&sums[0], 6, 4);
    check_elements(&sums[1], 600, 4);
    check_elements(&sums[2], -6, 4);
    for (int i = 0; i < 3; i++) {
      assert_int_equal(sums[i].place.device, 1);
      assert_int_equal(sums[i].dtype, inputs[i].dtype);
      assert_int_equal(sums[i].ndim, inputs[i].ndim);
    }
    release_all(sums, 3);
  }
  weir_array swapped[4] = {inputs[0], inputs[1], inputs[4], inputs[3]};
  assert_error_says(INVALID_ARGUMENT, "tensor 0 of input 1 differs",
                    weir_comm_reduce_add_coalesced(swapped, 2, 2, 0, 100, sums));
  release_all(inputs, DEVICES * 3);
}

/* ---- Streams ---- */

/* The host does not wait: the source is not even computed yet. */
TEST(no_wait) {
  NEED_DEVICES();
  weir_array a = vector_of(0, 100, 0), results[DEVICES] = {{0}}, parts[DEVICES] = {{0}}, sum = {0}, whole = {0};
  weir_stream stream = new_stream(0);
  weir_stream_scope scope;
  int count;
  assert_ok(weir_device_synchronize(0));
  assert_ok(weir_stream_scope_enter(stream, &scope));
  /* The first round allocates: memory comes from the driver, which may wait. */
  for (int round = 0; round < 2; round++) {
    struct held *held = round ? hold(stream) : NULL;
    if (round)
      assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_ERROR));
    assert_ok(weir_array_arange(&a, weir_scalar_int(round), weir_scalar_int(1), stream));
    assert_ok(weir_comm_broadcast(&a, all_devices, DEVICES, results));
    assert_ok(weir_comm_reduce_add(results, DEVICES, 0, &sum));
    assert_ok(weir_comm_scatter(&sum, all_devices, DEVICES, NULL, 0, NULL, parts, &count));
    assert_ok(weir_comm_gather(parts, count, 0, weir_place_device(0), &whole));
    assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_DEFAULT));
    if (held)
      unblock(held);
    check_elements(&whole, round * 4, 4);
    check_elements(&results[3], round, 1);
    release_all(results, DEVICES);
    release_all(parts, DEVICES);
    weir_array_release(&sum);
    weir_array_release(&whole);
  }
  weir_array_release(&a);
  assert_ok(weir_stream_scope_leave(&scope));
}

/* Everything that has device memory only, into new arrays and into those of an earlier round. */
static void use_all(weir_array *a, weir_array *outs, weir_array *whole) {
  weir_array results[DEVICES] = {{0}}, copies[2 * DEVICES] = {{0}}, parts[DEVICES] = {{0}}, sums[2] = {{0}}, sum = {0},
             joined = {0};
  int count;
  assert_ok(weir_comm_broadcast(a, all_devices, DEVICES, results));
  assert_ok(weir_comm_broadcast_out(a, outs, DEVICES));
  assert_ok(weir_comm_broadcast_coalesced((weir_array[]){*a, *whole}, 2, all_devices, DEVICES, 100, copies));
  assert_ok(weir_comm_reduce_add(results, DEVICES, 0, &sum));
  assert_ok(weir_comm_reduce_add_coalesced(copies, DEVICES, 2, 0, 1 << 20, sums));
  assert_ok(weir_comm_scatter(&sum, all_devices, DEVICES, NULL, 0, NULL, parts, &count));
  assert_ok(weir_comm_gather(parts, count, 0, weir_place_device(0), &joined));
  assert_ok(weir_comm_gather_out(parts, count, 0, whole));
  assert_ok(weir_comm_scatter_out(whole, parts, count, 0, NULL));
  release_all(results, DEVICES);
  release_all(copies, 2 * DEVICES);
  release_all(parts, DEVICES);
  release_all(sums, 2);
  weir_array_release(&sum);
  weir_array_release(&joined);
}

/* All driver calls by which a host waits fail: none is made. */
TEST(no_synchronizing_call) {
  NEED_SOFT("calls of NVIDIA's driver are not made to fail");
  static const weir_driver_call waits[] = {WEIR_CALL_CtxSynchronize, WEIR_CALL_StreamSynchronize,
                                           WEIR_CALL_EventSynchronize};
  weir_array a = vector_of(0, 100, 0), outs[DEVICES] = {{0}}, whole = vector_of(0, 100, 0);
  for (int i = 0; i < DEVICES; i++)
    outs[i] = vector_of(i, 100, 0);
  for (int round = 0; round < 3; round++) { /* the first takes memory from the driver */
    unsigned long calls[3], after, faults;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
      assert_ok(weir_fault_counts(fault, waits[i], &calls[i], &faults));
      if (round)
        assert_ok(weir_fault_nth(fault, waits[i], 1, WEIR_CU_UNKNOWN, 0));
    }
    use_all(&a, outs, &whole);
    assert_ok(weir_fault_clear(fault));
    for (size_t i = 0; i < sizeof waits / sizeof *waits && round; i++) {
      assert_ok(weir_fault_counts(fault, waits[i], &after, &faults));
      assert_int_equal(after, calls[i]);
    }
  }
  check_elements(&whole, 0, 4);
  check_elements(&outs[3], 0, 1);
  release_all(outs, DEVICES);
  weir_array_release(&a);
  weir_array_release(&whole);
}

/* Scatter and gather are inverse, for random shapes. */
TEST(random) {
  NEED_DEVICES();
  uint64_t random = 3;
  for (int round = 0; round < repetitions(40, 1000); round++) {
    int ndim = 1 + (int)(next_random(&random) % 3), dim = (int)(next_random(&random) % (uint64_t)ndim), count;
    int64_t shape[3];
    for (int i = 0; i < ndim; i++)
      shape[i] = (int64_t)(next_random(&random) % 5) + (i == dim);
    weir_place place =
        next_random(&random) % 2 ? weir_place_device((int)(next_random(&random) % DEVICES)) : weir_place_host();
    weir_array a = counting(place, WEIR_INT32, ndim, shape, round), parts[DEVICES] = {{0}}, whole = {0};
    assert_ok(
        weir_comm_scatter(&a, all_devices, 1 + (int)(next_random(&random) % DEVICES), NULL, dim, NULL, parts, &count));
    assert_ok(weir_comm_gather(parts, count, dim - ndim, weir_place_device(-1), &whole));
    assert_int_equal(whole.place.device, 0);
    assert_memory_equal(whole.shape, shape, (size_t)ndim * sizeof *shape);
    check_elements(&whole, round, 1);
    release_all(parts, DEVICES);
    weir_array_release(&a);
    weir_array_release(&whole);
  }
}

/* ---- Failing driver calls ---- */

static weir_status scenario(void) {
  weir_array a = {0}, results[2] = {{0}}, parts[2] = {{0}}, sums[1] = {{0}}, whole = {0};
  const int pair[] = {0, 1};
  int count = 0;
  weir_stream stream;
  weir_status status = weir_stream_get_current(0, &stream);
  if (!status)
    status = weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, (int64_t[]){100}, stream, &a);
  if (!status)
    status = weir_comm_broadcast_coalesced(&a, 1, pair, 2, 100, results);
  if (!status)
    status = weir_comm_reduce_add_coalesced(results, 2, 1, 1, 100, sums);
  if (!status)
    status = weir_comm_scatter(&sums[0], pair, 2, NULL, 0, NULL, parts, &count);
  if (!status)
    status = weir_comm_gather(parts, count, 0, weir_place_device(0), &whole);
  if (status) { /* results of a call that failed */
    assert_true(!whole.storage);
    assert_true(!parts[0].storage == !parts[1].storage);
  }
  weir_array_release(&a);
  release_all(results, 2);
  release_all(parts, 2);
  release_all(sums, 1);
  weir_array_release(&whole);
  return status;
}

/* Each call fails once: the next attempt works, and no array is left. */
TEST(failing_calls) {
  NEED_SOFT("calls of NVIDIA's driver are not made to fail");
  collect_messages();
  assert_ok(scenario());
  bool has_failed = true;
  for (unsigned long n = 1; has_failed; n++) {
    assert_ok(weir_memory_empty_cache());
    has_failed = fails_at(n, scenario);
    assert_ok(scenario());
  }
}
