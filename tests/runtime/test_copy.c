/*
 * Copies and fills: directions, kinds of memory, odd sizes, and ordering.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"
#include "weir/host.h"

static void make_pattern(uint8_t *bytes, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; i++)
    bytes[i] = (uint8_t)((i * 31 + seed * 7 + i / 251) & 0xff);
}

static void expect_pattern(const uint8_t *bytes, size_t count, unsigned seed, const char *file, int line) {
  for (size_t i = 0; i < count; i++) {
    uint8_t expected = (uint8_t)((i * 31 + seed * 7 + i / 251) & 0xff);
    if (bytes[i] != expected) {
      print_error("byte %zu of %zu is %u, not %u\n", i, count, bytes[i], expected);
      _fail(file, line);
    }
  }
}
#define assert_pattern(bytes, count, seed) expect_pattern((bytes), (count), (seed), __FILE__, __LINE__)

/* ---- Directions ---- */

enum { PAGEABLE, PINNED, DEVICE, OTHER_DEVICE, KINDS };

static void *make_memory(int kind, size_t bytes) {
  switch (kind) {
  case PAGEABLE:
    return malloc(bytes);
  case PINNED:
    return pinned_memory(bytes);
  default:
    return device_memory(kind == DEVICE ? 0 : 1, bytes);
  }
}

static void free_memory(int kind, void *memory) {
  switch (kind) {
  case PAGEABLE:
    free(memory);
    break;
  case PINNED:
    free_pinned_memory(memory);
    break;
  default:
    free_device_memory(kind == DEVICE ? 0 : 1, memory);
  }
}

static const size_t sizes[] = {1, 2, 3, 7, 64, 511, 513, 4096, 4097, 20001, 65537};

/* Copies a pattern between kinds of memory at odd offsets, and checks that adjacent bytes are unchanged. */
static void copy_between_kinds(int from_kind, int to_kind, bool wait, weir_stream stream) {
  enum { ROOM = 65537 + 16 };
  const size_t offset = 3;
  uint8_t *host = malloc(ROOM), *back = malloc(ROOM);
  uint8_t *from = make_memory(from_kind, ROOM), *to = make_memory(to_kind, ROOM);
  assert_non_null(host);
  assert_non_null(back);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    size_t bytes = sizes[i];
    make_pattern(host, bytes, (unsigned)i);
    memset(back, 0xee, bytes + 16);
    assert_ok(weir_copy(from + offset, host, bytes, stream));
    assert_ok(weir_copy(to, back, bytes + 16, stream));
    if (wait) {
      assert_ok(weir_copy(to + 5, from + offset, bytes, stream));
    } else {
      assert_ok(weir_copy_async(to + 5, from + offset, bytes, stream));
      assert_ok(weir_stream_synchronize(stream));
    }
    memset(back, 0, bytes + 16);
    assert_ok(weir_copy(back, to, bytes + 16, stream));
    for (int j = 0; j < 5; j++)
      assert_int_equal(back[j], 0xee);
    assert_pattern(back + 5, bytes, (unsigned)i);
    for (size_t j = bytes + 5; j < bytes + 16; j++)
      assert_int_equal(back[j], 0xee);
  }
  free_memory(from_kind, from);
  free_memory(to_kind, to);
  free(host);
  free(back);
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(all_directions) {
  weir_stream stream = new_stream(0);
  for (int from = PAGEABLE; from <= DEVICE; from++)
    for (int to = PAGEABLE; to <= DEVICE; to++) {
      copy_between_kinds(from, to, true, stream);
      copy_between_kinds(from, to, false, default_stream(0));
    }
}

TEST(all_directions_with_two_devices) {
  NEED_TWO_DEVICES();
  weir_stream zero = new_stream(0), one = new_stream(1);
  for (int kind = PAGEABLE; kind < KINDS; kind++) {
    copy_between_kinds(kind, OTHER_DEVICE, true, zero);
    copy_between_kinds(OTHER_DEVICE, kind, true, zero);
    copy_between_kinds(kind, OTHER_DEVICE, false, one);
    copy_between_kinds(OTHER_DEVICE, kind, false, one);
  }
}

TEST(nothing_to_copy) {
  weir_stream stream = new_stream(0);
  uint8_t byte = 7;
  void *memory = device_memory(0, 16);
  assert_ok(weir_fill_async(memory, 1, 16, stream));
  assert_ok(weir_copy_async(memory, &byte, 0, stream));
  assert_ok(weir_copy(memory, &byte, 0, stream));
  assert_ok(weir_copy(&byte, memory, 0, stream));
  assert_ok(weir_copy_peer_async(memory, 0, memory, 0, 0, stream));
  assert_ok(weir_fill_async(memory, 9, 0, stream));
  assert_ok(weir_fill32_async(memory, 9, 0, stream));
  assert_ok(weir_copy_async(NULL, NULL, 0, stream));
  assert_ok(weir_copy(NULL, NULL, 0, stream));
  assert_ok(weir_fill_async(NULL, 9, 0, stream));
  assert_ok(weir_fill32_async(NULL, 9, 0, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(byte, 7);
  assert_filled(0, memory, 1, 16);
  free_device_memory(0, memory);
}

TEST(within_one_allocation) {
  enum { HALF = 100000 };
  weir_stream stream = new_stream(0);
  uint8_t *memory = device_memory(0, 2 * HALF);
  assert_ok(weir_fill_async(memory, 1, HALF, stream));
  assert_ok(weir_fill_async(memory + HALF, 2, HALF, stream));
  assert_ok(weir_copy_async(memory + HALF, memory, HALF, stream));
  assert_filled(0, memory, 1, 2 * HALF);
  free_device_memory(0, memory);
}

/* ---- Fills ---- */

TEST(fill) {
  weir_stream stream = new_stream(0);
  uint8_t *memory = device_memory(0, 70000);
  for (size_t i = 0; i < 10; i++) {
    size_t bytes = sizes[i];
    assert_ok(weir_fill_async(memory, 0, 70000, stream));
    assert_ok(weir_fill_async(memory + 1, (uint8_t)(200 + i), bytes, stream));
    assert_filled(0, memory, 0, 1);
    assert_filled(0, memory + 1, (uint8_t)(200 + i), bytes);
    assert_filled(0, memory + 1 + bytes, 0, 100);
  }
  free_device_memory(0, memory);
}

TEST(fill32) {
  enum { WORDS = 10001 };
  weir_stream stream = new_stream(0);
  uint32_t *memory = device_memory(0, (WORDS + 2) * 4), *host = malloc((WORDS + 2) * 4);
  assert_non_null(host);
  assert_ok(weir_fill_async(memory, 0xff, (WORDS + 2) * 4, stream));
  assert_ok(weir_fill32_async(memory + 1, 0x12345678, WORDS, stream));
  assert_ok(weir_copy(host, memory, (WORDS + 2) * 4, stream));
  assert_int_equal(host[0], 0xffffffff);
  for (int i = 1; i <= WORDS; i++)
    assert_int_equal(host[i], 0x12345678);
  assert_int_equal(host[WORDS + 1], 0xffffffff);
  for (int i = 1; i < 4; i++)
    assert_error(INVALID_ARGUMENT, weir_fill32_async((char *)memory + i, 1, 1, stream));
  assert_error(INVALID_ARGUMENT, weir_fill32_async(memory, 1, SIZE_MAX / 4 + 2, stream));
  assert_ok(weir_copy(host, memory, 4, stream));
  assert_int_equal(host[0], 0xffffffff);
  free(host);
  free_device_memory(0, memory);
}

/* ---- Order ---- */

TEST(copies_are_in_the_streams_order) {
  enum { BYTES = 1 << 20 };
  weir_stream a = new_stream(0), b = new_stream(0);
  uint8_t *pinned = pinned_memory(3 * BYTES);
  void *memory = device_memory(0, BYTES);
  memset(pinned, 1, BYTES);
  memset(pinned + BYTES, 2, BYTES);
  struct held *gate = hold(a);
  assert_ok(weir_copy_async(memory, pinned, BYTES, a));
  assert_ok(weir_stream_wait_stream(b, a));
  assert_ok(weir_copy_async(pinned + 2 * BYTES, memory, BYTES, b)); /* sees 1 */
  assert_ok(weir_stream_wait_stream(a, b));
  assert_ok(weir_copy_async(memory, pinned + BYTES, BYTES, a));
  assert_not_ready(weir_stream_query(b));
  unblock(gate);
  assert_ok(weir_stream_synchronize(a));
  for (int i = 0; i < BYTES; i++)
    if (pinned[2 * BYTES + i] != 1)
      assert_int_equal(pinned[2 * BYTES + i], 1);
  assert_filled(0, memory, 2, BYTES);
  free_device_memory(0, memory);
  free_pinned_memory(pinned);
}

/* PyTorch's test_copy_non_blocking: a copy followed by an event, also from the middle of an allocation. */
TEST(copy_non_blocking) {
  enum { BYTES = 10000000 };
  weir_stream stream = current_stream(0);
  uint8_t *pinned = pinned_memory(BYTES), *memory = device_memory(0, BYTES);
  weir_event *event;
  assert_ok(weir_event_create(0, &event));

  memset(pinned, 5, BYTES);
  assert_ok(weir_fill_async(memory, 1, BYTES, stream));
  assert_ok(weir_copy_async(memory, pinned, BYTES, stream));
  assert_ok(weir_event_record(event, stream));
  assert_ok(weir_event_synchronize(event));
  assert_filled(0, memory, 5, BYTES);

  assert_ok(weir_fill_async(memory, 1, BYTES, stream));
  memset(pinned, 0, BYTES);
  assert_ok(weir_copy_async(pinned + 1, memory, BYTES - 1, stream));
  assert_ok(weir_event_record(event, stream));
  assert_ok(weir_event_synchronize(event));
  assert_int_equal(pinned[0], 0);
  for (int i = 1; i < BYTES; i++)
    if (pinned[i] != 1)
      assert_int_equal(pinned[i], 1);
  weir_event_destroy(event);
  free_device_memory(0, memory);
  free_pinned_memory(pinned);
}

/* PyTorch's test_to_non_blocking: after a non-blocking copy the stream is still busy, after a blocking one it is idle.
 * Both directions, page-locked memory. */
TEST(to_non_blocking) {
  enum { BYTES = 4000000 };
  weir_stream stream = current_stream(0);
  uint8_t *pinned = pinned_memory(BYTES), *memory = device_memory(0, BYTES);
  for (int to_device = 0; to_device < 2; to_device++) {
    void *to = to_device ? memory : pinned, *from = to_device ? pinned : memory;
    assert_ok(weir_device_synchronize(0));
    struct held *gate = hold(stream);
    assert_ok(weir_copy_async(to, from, BYTES, stream));
    assert_not_ready(weir_stream_query(stream));
    unblock(gate);
    assert_ok(weir_stream_synchronize(stream));

    assert_ok(weir_stream_spin(stream, cycles_of(5)));
    mark(stream, to_device);
    assert_ok(weir_copy(to, from, BYTES, stream));
    assert_ok(weir_stream_query(stream));
    assert_int_equal(place_of_mark(to_device), to_device);
  }
  free_device_memory(0, memory);
  free_pinned_memory(pinned);
}

/* PyTorch's test_to_cpu_blocking_by_default: into pageable memory, behind a busy stream. */
TEST(to_cpu_blocking) {
  enum { BYTES = 4000000 };
  weir_stream stream = current_stream(0);
  uint8_t *host = malloc(BYTES), *memory = device_memory(0, BYTES);
  assert_non_null(host);
  memset(host, 0, BYTES);
  assert_ok(weir_stream_spin(stream, cycles_of(10)));
  assert_ok(weir_fill_async(memory, 77, BYTES, stream));
  assert_ok(weir_copy(host, memory, BYTES, stream));
  assert_ok(weir_stream_query(stream));
  for (int i = 0; i < BYTES; i++)
    if (host[i] != 77)
      assert_int_equal(host[i], 77);
  free(host);
  free_device_memory(0, memory);
}

/* An asynchronous copy has read pageable memory when it returns, so the program may overwrite it. */
TEST(pageable_memory_may_be_overwritten) {
  enum { BYTES = 60000 };
  weir_stream stream = new_stream(0);
  uint8_t *host = malloc(BYTES);
  void *memory = device_memory(0, BYTES);
  assert_non_null(host);
  memset(host, 3, BYTES);
  assert_ok(weir_copy_async(memory, host, BYTES, stream));
  memset(host, 4, BYTES);
  assert_ok(weir_stream_synchronize(stream));
  assert_filled(0, memory, 3, BYTES);
  free(host);
  free_device_memory(0, memory);
}

/* ---- Registered host memory: PyTorch's test_cudart_register ---- */

TEST(registered_memory) {
  enum { BYTES = 1 << 16 };
  weir_stream stream = new_stream(0);
  void *host, *memory = device_memory(0, BYTES);
  assert_int_equal(posix_memalign(&host, 4096, BYTES), 0);
  unsigned type = 0;
  weir_cu_deviceptr address = (weir_cu_deviceptr)(uintptr_t)host;
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address));
  assert_cu(d->MemHostRegister(d, host, BYTES, 0));
  assert_cu(d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address));
  assert_int_equal(type, WEIR_CU_MEMORY_TYPE_HOST);
  assert_ok(weir_fill_async(memory, 6, BYTES, stream));
  struct held *gate = hold(stream);
  assert_ok(weir_copy_async(host, memory, BYTES, stream)); /* does not wait */
  assert_not_ready(weir_stream_query(stream));
  unblock(gate);
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(((uint8_t *)host)[0], 6);
  assert_int_equal(((uint8_t *)host)[BYTES - 1], 6);
  assert_cu(d->MemHostUnregister(d, host));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address));
  free(host);
  free_device_memory(0, memory);
}

/* ---- Peers ---- */

/* With and without peer access, on a stream of either device. */
TEST(peer_copies) {
  NEED_TWO_DEVICES();
  enum { BYTES = 100003 };
  uint8_t *host = malloc(BYTES), *back = malloc(BYTES);
  uint8_t *a = device_memory(0, BYTES), *b = device_memory(1, BYTES);
  assert_non_null(host);
  assert_non_null(back);
  for (unsigned round = 0; round < 3; round++) {
    if (round == 1)
      assert_ok(weir_device_enable_peer_access(0, 1));
    if (round == 2)
      assert_ok(weir_device_enable_peer_access(1, 0));
    for (int on = 0; on < 2; on++) {
      weir_stream stream = new_stream(on);
      make_pattern(host, BYTES, 10 * round + (unsigned)on);
      assert_ok(weir_copy(a, host, BYTES, default_stream(0)));
      assert_ok(weir_copy_peer_async(b, 1, a, 0, BYTES, stream));
      assert_ok(weir_stream_synchronize(stream));
      assert_ok(weir_fill_async(a, 0, BYTES, default_stream(0)));
      assert_ok(weir_device_synchronize(0));
      assert_ok(weir_copy_peer_async(a, 0, b, 1, BYTES, stream));
      assert_ok(weir_stream_synchronize(stream));
      memset(back, 0, BYTES);
      assert_ok(weir_copy(back, a, BYTES, default_stream(0)));
      assert_pattern(back, BYTES, 10 * round + (unsigned)on);
      /* Without naming the devices. */
      assert_ok(weir_fill_async(b, 0, BYTES, new_stream(1)));
      assert_ok(weir_device_synchronize(1));
      assert_ok(weir_copy_async(b, a, BYTES, stream));
      assert_ok(weir_stream_synchronize(stream));
      memset(back, 0, BYTES);
      assert_ok(weir_copy(back, b, BYTES, default_stream(1)));
      assert_pattern(back, BYTES, 10 * round + (unsigned)on);
    }
  }
  free(host);
  free(back);
  free_device_memory(0, a);
  free_device_memory(1, b);
}

TEST(peer_copy_on_one_device) {
  uint8_t *memory = device_memory(0, 2000);
  weir_stream stream = new_stream(0);
  assert_ok(weir_fill_async(memory, 1, 1000, stream));
  assert_ok(weir_fill_async(memory + 1000, 2, 1000, stream));
  assert_ok(weir_copy_peer_async(memory, 0, memory + 1000, 0, 1000, stream));
  assert_filled(0, memory, 2, 2000);
  free_device_memory(0, memory);
}

TEST(peer_copy_is_in_order) {
  NEED_TWO_DEVICES();
  void *a = device_memory(0, 100), *b = device_memory(1, 100);
  weir_stream zero = new_stream(0), one = new_stream(1);
  assert_ok(weir_fill_async(b, 9, 100, one));
  assert_ok(weir_stream_synchronize(one));
  struct held *gate = hold(zero);
  assert_ok(weir_fill_async(a, 1, 100, zero));
  assert_ok(weir_copy_peer_async(b, 1, a, 0, 100, zero));
  assert_ok(weir_stream_wait_stream(one, zero));
  mark(one, 1);
  assert_not_ready(weir_stream_query(one));
  unblock(gate);
  assert_ok(weir_stream_synchronize(one));
  assert_filled(1, b, 1, 100);
  int device = -1;
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
  free_device_memory(0, a);
  free_device_memory(1, b);
}

static unsigned long calls_of(weir_driver_call call) {
  unsigned long calls, faults;
  assert_ok(weir_fault_counts(fault, call, &calls, &faults));
  return calls;
}

/* Uses the peer copy of the driver without peer access, and a plain copy with it. */
TEST_SETUP(peer_or_plain_copy, runtime_setup_fault, runtime_teardown) {
  NEED_TWO_DEVICES();
  void *a = device_memory(0, 100), *b = device_memory(1, 100);
  weir_stream stream = new_stream(0);
  unsigned long peer = calls_of(WEIR_CALL_MemcpyPeerAsync), direct = calls_of(WEIR_CALL_MemcpyAsync);
  assert_ok(weir_copy_async(b, a, 100, stream));
  assert_int_equal(calls_of(WEIR_CALL_MemcpyPeerAsync), peer + 1);
  assert_int_equal(calls_of(WEIR_CALL_MemcpyAsync), direct);
  assert_ok(weir_device_enable_peer_access(0, 1));
  assert_ok(weir_copy_async(b, a, 100, stream));
  assert_int_equal(calls_of(WEIR_CALL_MemcpyPeerAsync), peer + 1);
  assert_int_equal(calls_of(WEIR_CALL_MemcpyAsync), direct + 1);
  free_device_memory(0, a);
  free_device_memory(1, b);
}

/* ---- Invalid arguments ---- */

TEST(invalid_addresses) {
  weir_stream stream = new_stream(0);
  uint8_t *memory = device_memory(0, 4096), host[64] = {0};
  assert_ok(weir_fill_async(memory, 1, 4096, stream));
  assert_error(INVALID_ARGUMENT, weir_copy_async(NULL, memory, 10, stream));
  assert_error(INVALID_ARGUMENT, weir_copy_async(memory, NULL, 10, stream));
  assert_error(INVALID_ARGUMENT, weir_copy(NULL, memory, 10, stream));
  assert_error(INVALID_ARGUMENT, weir_copy(host, NULL, 10, stream));
  assert_error(INVALID_ARGUMENT, weir_copy_peer_async(NULL, 0, memory, 0, 10, stream));
  assert_error(INVALID_ARGUMENT, weir_copy_peer_async(memory, 0, NULL, 0, 10, stream));
  assert_error(INVALID_ARGUMENT, weir_fill_async(NULL, 1, 10, stream));
  assert_error(INVALID_ARGUMENT, weir_fill32_async(NULL, 1, 10, stream));
  assert_error(INVALID_DEVICE, weir_copy_peer_async(memory, 1000, memory, 0, 10, stream));
  assert_error(INVALID_DEVICE, weir_copy_peer_async(memory, 0, memory, 1000, 10, stream));
  assert_error(INVALID_DEVICE, weir_copy_peer_async(memory, -2, memory, 0, 10, stream));
  /* Past the end, and addresses that are not device memory: the driver reports them. */
  assert_error(INVALID_ARGUMENT, weir_fill_async(memory, 1, 1ull << 40, stream));
  assert_error(INVALID_ARGUMENT, weir_fill_async(host, 1, sizeof host, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_filled(0, memory, 1, 4096);
  assert_int_equal(host[0], 0);
  free_device_memory(0, memory);
}

/* ---- Failing driver calls ---- */

static weir_status copy_everything(void) {
  static uint8_t host[5000];
  weir_stream zero, one;
  weir_driver *driver = NULL;
  weir_cu_deviceptr a = 0, b = 0;
  weir_status status = weir_get_driver(&driver);
  if (status == WEIR_OK)
    status = weir_stream_create(1, 0, &one);
  if (status == WEIR_OK)
    status = weir_stream_create(0, 0, &zero);
  /* Memory that is allocated without the fault table. */
  if (status == WEIR_OK) {
    status = weir_device_set_current(1);
    if (status == WEIR_OK)
      assert_cu(soft->MemAlloc(soft, &b, sizeof host));
  }
  if (status == WEIR_OK) {
    status = weir_device_set_current(0);
    if (status == WEIR_OK)
      assert_cu(soft->MemAlloc(soft, &a, sizeof host));
  }
  void *pa = (void *)(uintptr_t)a, *pb = (void *)(uintptr_t)b;
  if (status == WEIR_OK)
    status = weir_fill_async(pa, 7, sizeof host, zero);
  if (status == WEIR_OK)
    status = weir_fill32_async(pa, 0x08080808, sizeof host / 4, zero);
  if (status == WEIR_OK)
    status = weir_copy_async(pb, pa, sizeof host, zero);
  if (status == WEIR_OK)
    status = weir_copy_peer_async(pb, 1, pa, 0, sizeof host, zero);
  if (status == WEIR_OK)
    status = weir_stream_wait_stream(one, zero);
  memset(host, 0, sizeof host);
  if (status == WEIR_OK)
    status = weir_copy(host, pb, sizeof host, one);
  if (status == WEIR_OK)
    for (size_t i = 0; i < sizeof host; i++)
      assert_int_equal(host[i], 8);
  only_giving_back();
  if (a)
    assert_cu(soft->MemFree(soft, a));
  if (b)
    assert_cu(soft->MemFree(soft, b));
  return status;
}

TEST_SETUP(every_driver_call_fails_once, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("the driver cannot be asked for what is left");
  sweep_faults(copy_everything);
}

/* A copy or fill of the driver fails at the seam of two registrations; Weir's go on behind it. */
TEST(memory_registered_in_pieces) {
  enum { PIECE = 2 << 20, BYTES = 3 * PIECE + 12345 };
  weir_driver *driver;
  weir_host_allocator *host;
  uint8_t *pinned = NULL;
  assert_ok(weir_get_driver(&driver));
  assert_ok(
      weir_host_allocator_create(driver, HOST_CONF("pinned_register_min_mb:2,pinned_register_piece_mb:2"), &host));
  assert_ok(weir_host_alloc(host, BYTES, (void **)&pinned));
  weir_stream stream = default_stream(0);
  uint8_t *there = device_memory(0, BYTES);
  make_pattern(pinned, BYTES, 5);

  weir_cu_stream raw;
  weir_cu_context before = NULL;
  assert_ok(weir_stream_raw(stream, &raw));
  assert_cu(driver->CtxGetCurrent(driver, &before));
  if (before)
    assert_int_not_equal(driver->MemcpyAsync(driver, (uintptr_t)there, (uintptr_t)pinned + PIECE - 100, 200, raw),
                         WEIR_CU_SUCCESS);

  assert_ok(weir_copy(there, pinned, BYTES, stream));
  memset(pinned, 0, BYTES);
  assert_ok(weir_copy_async(pinned + 1, there + 1, BYTES - 2, stream)); /* its seams differ from those of the target */
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(pinned[0], 0);
  pinned[0] = 35; /* byte 0 of the pattern */
  assert_pattern(pinned, BYTES - 1, 5);

  assert_ok(weir_fill_async(pinned + 10, 9, BYTES - 20, stream));
  assert_ok(weir_fill32_async(pinned + PIECE - 8, 0x01020304, 4, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(pinned[10], 9);
  assert_int_equal(pinned[BYTES - 11], 9);
  assert_int_equal(pinned[2 * PIECE], 9);
  assert_int_equal(pinned[PIECE - 9], 9);
  assert_int_equal(pinned[PIECE - 1], 1);
  assert_int_equal(pinned[PIECE], 4);
  assert_int_equal(pinned[PIECE + 8], 9);
  free_device_memory(0, there);
  assert_ok(weir_host_free(host, pinned));
  weir_host_allocator_destroy(host);
}
