/*
 * Devices: counting, the current device, properties, peers.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

static int current_device(void) {
  int device = -1;
  assert_ok(weir_device_get_current(&device));
  return device;
}

static int has_context(int device) {
  int has = -1;
  assert_ok(weir_device_has_primary_context(device, &has));
  return has;
}

static int driver_device(void) {
  weir_cu_device device = -1;
  assert_cu(d->CtxGetDevice(d, &device));
  return device;
}

/* ---- Counting ---- */

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(count) {
  int before = -1, after = -1;
  assert_ok(weir_device_count(&before));
  assert_ok(weir_init());
  assert_ok(weir_device_count(&after));
  assert_int_equal(before, after);
  assert_int_equal(weir_device_is_available(), 1);
  if (is_soft())
    assert_int_equal(after, 2);
}

/* ---- The current device ---- */

TEST(current_is_0_until_set) {
  assert_int_equal(current_device(), 0);
  int last = devices() - 1;
  assert_ok(weir_device_set_current(last));
  assert_int_equal(current_device(), last);
}

TEST(set_makes_the_context) {
  assert_ok(weir_init());
  assert_int_equal(has_context(0), 0);
  assert_ok(weir_device_set_current(0));
  assert_int_equal(has_context(0), 1);
  assert_int_equal(driver_device(), 0);
  if (devices() > 1)
    assert_int_equal(has_context(1), 0);
}

TEST(set_of_invalid_device_changes_nothing) {
  int count = devices();
  assert_ok(weir_device_set_current(count - 1));
  assert_error(INVALID_DEVICE, weir_device_set_current(count));
  assert_error(INVALID_DEVICE, weir_device_set_current(1000));
  assert_error(INVALID_DEVICE, weir_device_set_current(-1));
  assert_error(INVALID_DEVICE, weir_device_set_current(-2));
  assert_int_equal(current_device(), count - 1);
}

static void *device_of_new_thread(void *data) {
  int *result = data;
  int last = result[1];
  if (weir_device_get_current(&result[0]) != WEIR_OK || weir_device_set_current(last) != WEIR_OK ||
      weir_device_get_current(&result[1]) != WEIR_OK)
    result[0] = -9;
  return NULL;
}

TEST(current_is_per_thread) {
  NEED_TWO_DEVICES();
  assert_ok(weir_device_set_current(1));
  int result[] = {-1, 1};
  on_thread(device_of_new_thread, result);
  assert_int_equal(result[0], 0);
  assert_int_equal(result[1], 1);

  assert_ok(weir_device_set_current(0));
  on_thread(device_of_new_thread, result);
  assert_int_equal(current_device(), 0);
}

TEST(exchange) {
  NEED_TWO_DEVICES();
  int previous = -7;
  assert_ok(weir_device_exchange(1, &previous));
  assert_int_equal(previous, 0);
  assert_int_equal(current_device(), 1);
  assert_int_equal(has_context(1), 1);
  assert_int_equal(driver_device(), 1);
  assert_ok(weir_device_exchange(1, &previous));
  assert_int_equal(previous, 1);
  assert_ok(weir_device_exchange(0, &previous));
  assert_int_equal(previous, 1);
  assert_int_equal(current_device(), 0);
  assert_int_equal(driver_device(), 0);
}

TEST(exchange_with_a_negative_number_does_nothing) {
  int previous = 7;
  assert_ok(weir_device_exchange(-1, &previous));
  assert_int_equal(previous, -1);
  previous = 7;
  assert_ok(weir_device_maybe_exchange(-5, &previous));
  assert_int_equal(previous, -1);
  assert_ok(weir_init());
  assert_int_equal(current_device(), 0);
  assert_int_equal(has_context(0), 0);
}

TEST(exchange_with_invalid_device_changes_nothing) {
  int count = devices(), previous = 7;
  assert_error(INVALID_DEVICE, weir_device_exchange(count, &previous));
  assert_error(INVALID_DEVICE, weir_device_maybe_exchange(1000, &previous));
  assert_int_equal(previous, 7);
  assert_int_equal(current_device(), 0);
}

/* As PyTorch's device guard: enter with exchange, leave with maybe_exchange. */
TEST(maybe_exchange_makes_no_context) {
  NEED_TWO_DEVICES();
  int previous = -7;
  assert_ok(weir_device_exchange(1, &previous));
  assert_int_equal(previous, 0);
  assert_ok(weir_device_maybe_exchange(previous, &previous));
  assert_int_equal(previous, 1);
  assert_int_equal(current_device(), 0);
  assert_int_equal(has_context(0), 0);

  /* If there is a context it is a plain exchange. */
  assert_ok(weir_device_maybe_exchange(1, &previous));
  assert_int_equal(driver_device(), 1);
  /* The device is current nevertheless. */
  assert_ok(weir_device_maybe_exchange(0, &previous));
  assert_int_equal(current_stream(-1).device, 0);
  assert_ok(weir_device_synchronize(-1));
  assert_int_equal(has_context(0), 1);
}

/* Calls for another device change neither the current device nor the current context of the program. */
TEST(calls_for_other_devices_keep_the_current_one) {
  NEED_TWO_DEVICES();
  assert_ok(weir_device_set_current(0));
  size_t free_bytes, total_bytes;
  int number;
  weir_stream stream;
  assert_ok(weir_device_memory_info(1, &free_bytes, &total_bytes));
  assert_int_equal(driver_device(), 0);
  assert_ok(weir_device_synchronize(1));
  assert_int_equal(driver_device(), 0);
  assert_ok(weir_stream_create(1, 0, &stream));
  assert_int_equal(driver_device(), 0);
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_stream_priority(stream, &number));
  assert_ok(weir_stream_wait_stream(stream, default_stream(0)));
  assert_ok(weir_stream_wait_stream(default_stream(0), stream));
  assert_ok(weir_device_can_access_peer(1, 0, &number));
  assert_ok(weir_stream_spin(stream, 100));
  assert_int_equal(driver_device(), 0);
  assert_int_equal(current_device(), 0);
}

/* The program may change the current context without the runtime. */
TEST(context_set_by_the_program) {
  void *memory = device_memory(0, 64);
  assert_cu(d->CtxSetCurrent(d, NULL));
  assert_ok(weir_fill_async(memory, 3, 64, new_stream(0)));
  assert_ok(weir_device_synchronize(0));
  assert_filled(0, memory, 3, 64);
  assert_int_equal(current_device(), 0);
  assert_ok(weir_device_set_current(0));
  free_device_memory(0, memory);
}

/* ---- Contexts ---- */

TEST(has_primary_context_before_the_start) {
  int has = -1, count;
  assert_ok(weir_device_count(&count));
  for (int i = 0; i < count; i++)
    assert_int_equal(has_context(i), 0);
  assert_error(INVALID_DEVICE, weir_device_has_primary_context(count, &has));
  assert_error(INVALID_DEVICE, weir_device_has_primary_context(-2, &has));
  assert_int_equal(has, -1);
  assert_int_equal(weir_is_initialized(), 0);
  assert_ok(weir_init());
  assert_error(INVALID_DEVICE, weir_device_has_primary_context(count, &has));
  assert_int_equal(has, -1);
}

/* A context that other code created counts too, before and after the start. */
TEST(has_primary_context_of_other_code) {
  weir_cu_context context;
  assert_cu(d->Init(d, 0));
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_int_equal(has_context(0), 1);
  assert_int_equal(weir_is_initialized(), 0);
  assert_ok(weir_init());
  assert_int_equal(has_context(0), 1);
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_int_equal(has_context(0), 0);
}

/* ---- Properties ---- */

TEST(properties) {
  for (int i = 0; i < devices(); i++) {
    weir_device_properties p;
    weir_device_properties_init(&p);
    assert_int_equal(p.size, sizeof p);
    assert_string_equal(p.name, "");
    assert_ok(weir_device_get_properties(i, &p));
    assert_int_equal(p.size, sizeof p);

    int major, minor;
    size_t free_bytes, total_bytes;
    assert_ok(weir_device_capability(i, &major, &minor));
    assert_ok(weir_device_memory_info(i, &free_bytes, &total_bytes));
    assert_true(strlen(p.name) > 0);
    assert_int_equal(p.major, major);
    assert_int_equal(p.minor, minor);
    assert_true(p.total_memory >= total_bytes);
    assert_true(total_bytes > 0);
    assert_true(free_bytes <= total_bytes);

    unsigned domain, bus, slot, function;
    int length;
    assert_int_equal(sscanf(p.pci_bus_id, "%x:%x:%x.%x%n", &domain, &bus, &slot, &function, &length), 4);
    assert_int_equal(length, strlen(p.pci_bus_id));
    assert_in_range(p.major, 1, 99);
    assert_true(p.multiprocessor_count > 0);
    assert_true(p.clock_khz > 0);
    assert_int_equal(p.warp_size, 32);
    assert_in_range(p.max_threads_per_block, 32, 1024);
    assert_true(p.max_threads_per_multiprocessor >= p.max_threads_per_block);
    assert_true(p.regs_per_multiprocessor > 0);
    assert_true(p.shared_memory_per_block > 0);
    assert_true(p.shared_memory_per_block_optin >= p.shared_memory_per_block);
    assert_true(p.shared_memory_per_multiprocessor >= p.shared_memory_per_block);
    assert_true(p.l2_cache_size > 0);
    assert_in_range(p.is_integrated, 0, 1);
    assert_in_range(p.is_multi_gpu_board, 0, 1);
    assert_in_range(p.virtual_memory, 0, 1);
    assert_in_range(p.memory_pools, 0, 1);
  }
}

TEST_SETUP(properties_are_those_of_the_options, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("the device is what it is");
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.capability_major = 7;
  options.capability_minor = 5;
  options.clock_khz = 1234567;
  options.bytes = 3ull << 30;
  options.devices = 3;
  soft = d = device_open_bare(&options);
  assert_ok(weir_use_driver(d));
  weir_device_properties p;
  weir_device_properties_init(&p);
  assert_ok(weir_device_get_properties(2, &p));
  assert_int_equal(devices(), 3);
  assert_int_equal(p.major, 7);
  assert_int_equal(p.minor, 5);
  assert_int_equal(p.clock_khz, 1234567);
  assert_int_equal(p.total_memory, 3ull << 30);
  assert_int_equal(p.virtual_memory, 1);
  assert_int_equal(p.memory_pools, 1);
  shut_down_clean();
  assert_ok(weir_use_driver(NULL));
  device_close(soft);
  soft = d = NULL;
}

/* A program that was built with an older header passes a smaller struct. */
TEST(properties_of_an_older_program) {
  struct {
    weir_device_properties p;
    char guard[16];
  } box;
  memset(&box, 0x5a, sizeof box);
  size_t size = offsetof(weir_device_properties, clock_khz);
  box.p.size = size;
  assert_ok(weir_device_get_properties(0, &box.p));
  assert_int_equal(box.p.size, size);
  assert_true(strlen(box.p.name) > 0);
  assert_true(box.p.multiprocessor_count > 0);
  for (size_t i = size; i < sizeof box; i++)
    assert_int_equal(((unsigned char *)&box)[i], 0x5a);
  /* A program that was built with a newer header passes a larger one, whose unknown fields are unchanged. */
  memset(&box, 0x5a, sizeof box);
  box.p.size = sizeof box;
  assert_ok(weir_device_get_properties(0, &box.p));
  assert_true(box.p.clock_khz > 0);
  for (size_t i = 0; i < sizeof box.guard; i++)
    assert_int_equal((unsigned char)box.guard[i], 0x5a);
}

/* PyTorch's test_cuda_get_device_name and test_cuda_get_device_capability: no device means the current one. */
TEST(minus_one_is_the_current_one) {
  int last = devices() - 1;
  assert_ok(weir_device_set_current(last));
  int major[2], minor[2], has[2], can;
  size_t free_bytes[2], total_bytes[2];
  weir_device_properties p[2];
  weir_stream stream[2];
  for (int i = 0; i < 2; i++) {
    int device = i ? -1 : last;
    weir_device_properties_init(&p[i]);
    assert_ok(weir_device_capability(device, &major[i], &minor[i]));
    assert_ok(weir_device_memory_info(device, &free_bytes[i], &total_bytes[i]));
    assert_ok(weir_device_get_properties(device, &p[i]));
    assert_ok(weir_device_has_primary_context(device, &has[i]));
    assert_ok(weir_device_synchronize(device));
    assert_ok(weir_device_can_access_peer(device, device, &can));
    assert_ok(weir_stream_default(device, &stream[i]));
    assert_int_equal(can, 0);
  }
  assert_string_equal(p[0].name, p[1].name);
  assert_int_equal(major[0], major[1]);
  assert_int_equal(minor[0], minor[1]);
  assert_int_equal(total_bytes[0], total_bytes[1]);
  assert_string_equal(p[0].uuid, p[1].uuid);
  assert_int_equal(has[0], has[1]);
  assert_stream_equal(stream[0], stream[1]);
}

TEST(uuid_text) {
  weir_device_properties p, other;
  const char *text = p.uuid;
  weir_device_properties_init(&p);
  weir_device_properties_init(&other);
  for (int i = 0; i < devices(); i++) {
    assert_ok(weir_device_get_properties(i, &p));
    assert_int_equal(strlen(text), 40);
    assert_memory_equal(text, "GPU-", 4);
    for (int c = 4; c < 40; c++) {
      if (c == 12 || c == 17 || c == 22 || c == 27)
        assert_int_equal(text[c], '-');
      else
        assert_true(isxdigit((unsigned char)text[c]) && !isupper((unsigned char)text[c]));
    }
    for (int j = 0; j < i; j++) {
      assert_ok(weir_device_get_properties(j, &other));
      assert_string_not_equal(text, other.uuid);
    }
  }
}

TEST(uuid_matches_the_driver) {
  weir_cu_uuid uuid;
  weir_device_properties p;
  const char *text = p.uuid;
  weir_device_properties_init(&p);
  assert_ok(weir_device_get_properties(0, &p));
  assert_cu(d->DeviceGetUuid(d, &uuid, 0));
  unsigned byte;
  assert_int_equal(sscanf(text + 4, "%2x", &byte), 1);
  assert_int_equal(byte, (unsigned char)uuid.bytes[0]);
  assert_int_equal(sscanf(text + 38, "%2x", &byte), 1);
  assert_int_equal(byte, (unsigned char)uuid.bytes[15]);
}

TEST(memory_info_follows_allocations) {
  size_t before, during, after, total;
  assert_ok(weir_device_memory_info(0, &before, &total));
  void *memory = device_memory(0, 64 << 20);
  assert_ok(weir_device_memory_info(0, &during, &total));
  free_device_memory(0, memory);
  assert_ok(weir_device_memory_info(0, &after, &total));
  if (!is_soft()) /* other processes count */
    WAIVE_TEST("others may use the device");
  assert_int_equal(before - during, 64 << 20);
  assert_int_equal(after, before);
  assert_int_equal(total, 1 << 30);
}

/* ---- Synchronize ---- */

TEST(synchronize_waits_for_all_streams) {
  weir_stream streams[4];
  for (int i = 0; i < 4; i++)
    streams[i] = i ? new_stream(0) : default_stream(0);
  for (int i = 0; i < 4; i++) {
    assert_ok(weir_stream_spin(streams[i], cycles_of(5)));
    mark(streams[i], i);
  }
  assert_ok(weir_device_synchronize(0));
  assert_int_equal(mark_count(), 4);
  for (int i = 0; i < 4; i++)
    assert_ok(weir_stream_query(streams[i]));
}

TEST(synchronize_is_of_one_device) {
  NEED_TWO_DEVICES();
  weir_stream other = new_stream(1);
  struct held *gate = hold(other);
  mark(other, 1);
  mark(new_stream(0), 0);
  assert_ok(weir_device_synchronize(0));
  assert_marks(0);
  assert_not_ready(weir_stream_query(other));
  unblock(gate);
  assert_ok(weir_device_synchronize(1));
  assert_marks(0, 1);
}

/* ---- Peers ---- */

TEST(peers) {
  int can = -1, count = devices();
  assert_ok(weir_device_can_access_peer(0, 0, &can));
  assert_int_equal(can, 0);
  can = -1;
  assert_error(INVALID_DEVICE, weir_device_can_access_peer(0, count, &can));
  assert_error(INVALID_DEVICE, weir_device_can_access_peer(count, 0, &can));
  assert_int_equal(can, -1);
  NEED_TWO_DEVICES();
  assert_ok(weir_device_can_access_peer(0, 1, &can));
  if (is_soft())
    assert_int_equal(can, 1);
  if (!can)
    WAIVE_TEST("the devices are no peers");
  assert_ok(weir_device_enable_peer_access(0, 1));
  assert_ok(weir_device_enable_peer_access(0, 1));
  assert_ok(weir_device_enable_peer_access(1, 0));
}

/* The program or a library may have enabled it before. */
TEST(peers_that_are_enabled_already) {
  NEED_TWO_DEVICES();
  int can;
  assert_ok(weir_device_can_access_peer(0, 1, &can));
  if (!can)
    WAIVE_TEST("the devices are no peers");
  weir_cu_context peer;
  assert_ok(weir_device_set_current(1));
  assert_cu(d->CtxGetCurrent(d, &peer));
  assert_ok(weir_device_set_current(0));
  assert_cu(d->CtxEnablePeerAccess(d, peer, 0));
  assert_ok(weir_device_enable_peer_access(0, 1));
}

TEST(device_is_not_its_own_peer) {
  assert_ok(weir_init());
  clear_last_error();
  assert_int_not_equal(weir_device_enable_peer_access(0, 0), WEIR_OK);
  assert_memory_equal(weir_last_error(), "weir_device_enable_peer_access: ", 32);
}

/* ---- Failing driver calls ---- */

static weir_status use_devices(void) {
  int number;
  size_t a, b;
  weir_status status = weir_device_exchange(1, &number);
  if (status == WEIR_OK)
    status = weir_device_maybe_exchange(0, &number);
  if (status == WEIR_OK)
    status = weir_device_capability(1, &number, &number);
  if (status == WEIR_OK)
    status = weir_device_memory_info(1, &a, &b);
  if (status == WEIR_OK)
    status = weir_device_memory_info(0, &a, &b);
  if (status == WEIR_OK)
    status = weir_device_can_access_peer(0, 1, &number);
  if (status == WEIR_OK)
    status = weir_device_enable_peer_access(0, 1);
  if (status == WEIR_OK)
    status = weir_device_synchronize(1);
  if (status == WEIR_OK)
    status = weir_device_has_primary_context(1, &number);
  return status;
}

TEST_SETUP(every_driver_call_fails_once, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("the driver cannot be asked for what is left");
  sweep_faults(use_devices);
}

TEST_SETUP(a_failing_set_changes_nothing, runtime_setup_fault, runtime_teardown) {
  NEED_TWO_DEVICES();
  assert_ok(weir_device_set_current(0));
  assert_ok(weir_fault_nth(fault, WEIR_CALL_DevicePrimaryCtxRetain, 1, WEIR_CU_OUT_OF_MEMORY, 0));
  assert_error_says(OUT_OF_MEMORY, "PrimaryCtxRetain", weir_device_set_current(1));
  assert_int_equal(current_device(), 0);
  assert_int_equal(driver_device(), 0);
  assert_ok(weir_device_set_current(1));
}
