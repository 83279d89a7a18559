/*
 * Plain memory, host memory, attributes of addresses, copies and fills.
 */
#include "driver/rules.h"

/* ---- Plain memory ---- */

FIXTURE(RULES)

TEST(alloc_and_free) {
  weir_cu_deviceptr p = 77, q;
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, &p, 0));
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &p, 1ull << 50));
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &p, SIZE_MAX));
  if (!is_cuda()) /* NVIDIA's driver writes 0 */
    assert_int_equal(p, 77);
  assert_cu(d->MemAlloc(d, &p, 1000));
  assert_cu(d->MemAlloc(d, &q, 1000));
  assert_true(p >= q + 1000 || q >= p + 1000);
  assert_int_equal(p % 256, 0);
  assert_int_equal(q % 256, 0);
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p + 512));
  assert_cu(d->MemFree(d, p));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p));
  assert_cu(d->MemFree(d, 0));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, nowhere));
  assert_cu(d->MemFree(d, q));
}

static size_t free_memory(void) {
  size_t free_bytes = 0, total = 0;
  assert_cu(d->MemGetInfo(d, &free_bytes, &total));
  assert_in_range(free_bytes, 0, total);
  return free_bytes;
}

/* NVIDIA's driver may keep some of the freed memory. */
static void assert_free_memory(size_t expected) {
  size_t slack = !is_cuda() ? 0 : 8 * MIB;
  assert_in_range(free_memory(), expected - slack, expected + slack);
}

TEST(memory_info) {
  size_t before = free_memory();
  weir_cu_deviceptr p = mem_new(64 * MIB);
  size_t with = free_memory();
  assert_in_range(before - with, 64 * MIB, 68 * MIB);
  weir_cu_deviceptr q = mem_new(3 * MIB);
  assert_in_range(with - free_memory(), 2 * MIB, 4 * MIB);
  assert_cu(d->MemFree(d, q));
  assert_cu(d->MemFree(d, p));
  assert_free_memory(before);
}

TEST_SETUP(capacity, device_setup_small, device_teardown) {
  size_t room = free_memory();
  weir_cu_deviceptr most, more = 77;
  assert_cu(d->MemAlloc(d, &most, room / 4 * 3));
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &more, room / 2));
  if (!is_cuda()) /* NVIDIA's driver writes 0 */
    assert_int_equal(more, 77);
  assert_cu(d->MemFree(d, most));
  assert_cu(d->MemAlloc(d, &more, room / 2));
  assert_cu(d->MemFree(d, more));
  assert_free_memory(room);
}

/* All kinds of device memory share one capacity. */
TEST_SETUP(capacity_is_shared, device_setup_small, device_teardown) {
  static const weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  size_t room = free_memory(), half = room / 2 / (2 * MIB) * (2 * MIB);
  weir_cu_mem_handle handle, second;
  weir_cu_deviceptr p;
  weir_cu_stream stream = stream_new();
  assert_cu(d->MemCreate(d, &handle, half, &prop, 0));
  assert_in_range(room - free_memory(), half, half + 8 * MIB);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &p, half + 8 * MIB));
  assert_cu_error(OUT_OF_MEMORY, d->MemCreate(d, &second, half + 8 * MIB, &prop, 0));
  assert_cu_error(OUT_OF_MEMORY, d->MemAllocAsync(d, &p, half + 8 * MIB, stream));
  assert_cu(d->MemRelease(d, handle));
  assert_free_memory(room);
  assert_cu(d->MemAlloc(d, &p, half + 8 * MIB));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(free_waits_for_the_device) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(64 * MIB);
  unsigned char *host = host_new(64);
  spin(stream, 30);
  assert_cu(d->MemsetD8Async(d, p, 5, 64, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 64, stream));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamQuery(d, stream));
  assert_filled(host, 64, 5);
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
}

/* Host memory can be freed while a copy is pending: the copy completes first. */
TEST(host_memory_in_use) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(MIB);
  unsigned char *pinned = host_new(MIB), *own = calloc(1, MIB);
  assert_non_null(own);
  assert_cu(d->MemHostRegister(d, own, MIB, 0));
  spin(stream, 20);
  assert_cu(d->MemsetD8Async(d, p, 5, MIB, stream));
  assert_cu(d->MemcpyAsync(d, address_of(own), p, MIB, stream));
  assert_cu(d->MemHostUnregister(d, own));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_filled(own, MIB, 5);
  spin(stream, 20);
  assert_cu(d->MemcpyAsync(d, address_of(pinned), p, MIB, stream));
  assert_cu(d->MemFreeHost(d, pinned));
  assert_cu(d->StreamSynchronize(d, stream));
  free(own);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Addresses ---- */

TEST(address_range) {
  weir_cu_deviceptr base = 0, p = mem_new(MIB);
  size_t bytes = 0;
  int local = 0;
  assert_cu(d->MemGetAddressRange(d, &base, &bytes, p + 100));
  assert_int_equal(base, p);
  assert_int_equal(bytes, MIB);
  bytes = 0;
  assert_cu(d->MemGetAddressRange(d, NULL, &bytes, p + MIB - 1));
  assert_int_equal(bytes, MIB);
  assert_cu(d->MemGetAddressRange(d, &base, NULL, p));
  assert_int_equal(base, p);
  assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, &bytes, nowhere));
  assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, &bytes, address_of(&local)));
  void *host = host_new(4096);
  assert_cu(d->MemGetAddressRange(d, &base, &bytes, address_of(host)));
  assert_int_equal(base, address_of(host));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
}

TEST(attributes_of_device_memory) {
  weir_cu_deviceptr p = mem_new(MIB), q = mem_new(MIB), at = 0;
  weir_cu_context context = NULL;
  unsigned type = 0;
  int ordinal = 7, value = 0;
  size_t bytes = 0;
  unsigned long long id = 0, other = 0, mapped = 0x0a0b0c00;
  void *host;
  assert_cu(d->PointerGetAttribute(d, &context, WEIR_CU_POINTER_ATTR_CONTEXT, p));
  assert_ptr_equal(context, ctx);
  assert_cu(d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, p + 100));
  assert_int_equal(type, WEIR_CU_MEMORY_TYPE_DEVICE);
  assert_cu(d->PointerGetAttribute(d, &at, WEIR_CU_POINTER_ATTR_DEVICE_POINTER, p + 100));
  assert_int_equal(at, p + 100);
  assert_cu(d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, p));
  assert_int_equal(ordinal, 0);
  assert_cu(d->PointerGetAttribute(d, &at, WEIR_CU_POINTER_ATTR_RANGE_START, p + 100));
  assert_int_equal(at, p);
  assert_cu(d->PointerGetAttribute(d, &bytes, WEIR_CU_POINTER_ATTR_RANGE_SIZE, p + 100));
  assert_int_equal(bytes, MIB);
  assert_cu(d->PointerGetAttribute(d, &mapped, WEIR_CU_POINTER_ATTR_MAPPED, p));
  assert_int_equal(mapped & 0xff, 1);
  if (!is_cuda()) /* a boolean: one byte */
    assert_int_equal(mapped >> 8, 0x0a0b0c);
  assert_cu(d->PointerGetAttribute(d, &id, WEIR_CU_POINTER_ATTR_BUFFER_ID, p));
  assert_cu(d->PointerGetAttribute(d, &other, WEIR_CU_POINTER_ATTR_BUFFER_ID, p + 100));
  assert_int_equal(id, other);
  assert_cu(d->PointerGetAttribute(d, &other, WEIR_CU_POINTER_ATTR_BUFFER_ID, q));
  assert_int_not_equal(id, other);
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &host, WEIR_CU_POINTER_ATTR_HOST_POINTER, p));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &value, 999, p));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
}

TEST(attributes_of_host_memory) {
  int local = 0, value = 0;
  unsigned type = 0;
  assert_cu_error(INVALID_VALUE,
                  d->PointerGetAttribute(d, &value, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(&local)));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &value, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, 0));
  char *host = host_new(4096);
  void *at = NULL;
  weir_cu_deviceptr device_at = 0;
  assert_cu(d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(host)));
  assert_int_equal(type, WEIR_CU_MEMORY_TYPE_HOST);
  assert_cu(d->PointerGetAttribute(d, &at, WEIR_CU_POINTER_ATTR_HOST_POINTER, address_of(host) + 100));
  assert_ptr_equal(at, host + 100);
  assert_cu(d->PointerGetAttribute(d, &device_at, WEIR_CU_POINTER_ATTR_DEVICE_POINTER, address_of(host) + 100));
  assert_int_equal(device_at, address_of(host) + 100);
  assert_cu(d->MemFreeHost(d, host));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(host)));
}

/* ---- Host memory ---- */

TEST(host_memory) {
  void *p = NULL;
  weir_cu_deviceptr at = 0;
  assert_cu(d->MemHostAlloc(d, &p, 0, 0));
  if (p)
    assert_cu(d->MemFreeHost(d, p));
  assert_cu_error(INVALID_VALUE, d->MemHostAlloc(d, &p, 10, 64));
  p = host_new(4096);
  assert_cu_error(INVALID_VALUE, d->MemFreeHost(d, (char *)p + 8));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, address_of(p)));
  assert_cu(d->MemHostGetDevicePointer(d, &at, p, 0));
  assert_int_equal(at, address_of(p));
  assert_cu_error(INVALID_VALUE, d->MemHostGetDevicePointer(d, &at, p, 1));
  assert_cu(d->MemFreeHost(d, p));
  assert_cu_error(INVALID_VALUE, d->MemFreeHost(d, p));
  assert_cu(d->MemFreeHost(d, NULL));
  static const unsigned flags[] = {WEIR_CU_MEMHOSTALLOC_PORTABLE, WEIR_CU_MEMHOSTALLOC_DEVICEMAP,
                                   WEIR_CU_MEMHOSTALLOC_WRITECOMBINED, 7};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    assert_cu(d->MemHostAlloc(d, &p, 100, flags[i]));
    if (!is_ledger())
      memset(p, 1, 100);
    assert_cu(d->MemFreeHost(d, p));
  }
}

TEST(registered_memory) {
  static _Alignas(4096) char memory[16384];
  weir_cu_deviceptr at = 0;
  unsigned type = 0;
  assert_cu_error(INVALID_VALUE, d->MemHostRegister(d, memory, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemHostRegister(d, NULL, 4096, 0));
  assert_cu_error(INVALID_VALUE, d->MemHostGetDevicePointer(d, &at, memory, 0));
  assert_cu(d->MemHostRegister(d, memory, 8192, 0));
  assert_cu_error(HOST_MEMORY_ALREADY_REGISTERED, d->MemHostRegister(d, memory, 8192, 0));
  assert_cu_error(HOST_MEMORY_ALREADY_REGISTERED, d->MemHostRegister(d, memory + 4096, 8192, 0));
  assert_cu(d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(memory + 100)));
  assert_int_equal(type, WEIR_CU_MEMORY_TYPE_HOST);
  assert_cu_error(INVALID_VALUE,
                  d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(memory + 8192)));
  assert_cu_error(INVALID_VALUE, d->MemHostUnregister(d, memory + 4096));
  assert_cu_error(INVALID_VALUE, d->MemFreeHost(d, memory));
  assert_cu(d->MemHostUnregister(d, memory));
  assert_cu_error(HOST_MEMORY_NOT_REGISTERED, d->MemHostUnregister(d, memory));
  assert_cu(d->MemHostRegister(d, memory + 100, 200, 0));
  assert_cu(d->MemHostUnregister(d, memory + 100));
  assert_cu_error(INVALID_VALUE,
                  d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(memory)));
}

/* ---- Copies ---- */

enum { copy_room = 200 * KIB + 64 };

enum place { PAGEABLE, PINNED, REGISTERED, DEVICE, PLACES };

static const char *const place_names[] = {"pageable", "pinned", "registered", "device"};

struct places {
  unsigned char *host[DEVICE];
  weir_cu_deviceptr at[PLACES];
};

static void places_open(struct places *p) {
  p->host[PAGEABLE] = malloc(copy_room);
  p->host[PINNED] = host_new(copy_room);
  p->host[REGISTERED] = malloc(copy_room);
  assert_non_null(p->host[PAGEABLE]);
  assert_non_null(p->host[REGISTERED]);
  assert_cu(d->MemHostRegister(d, p->host[REGISTERED], copy_room, 0));
  for (int i = PAGEABLE; i < DEVICE; i++)
    p->at[i] = address_of(p->host[i]);
  p->at[DEVICE] = mem_new(copy_room);
}

static void places_close(struct places *p) {
  assert_cu(d->MemFree(d, p->at[DEVICE]));
  assert_cu(d->MemHostUnregister(d, p->host[REGISTERED]));
  assert_cu(d->MemFreeHost(d, p->host[PINNED]));
  free(p->host[PAGEABLE]);
  free(p->host[REGISTERED]);
}

/* A pattern whose period is far from a page. */
static unsigned char pattern(size_t i, unsigned seed) { return (unsigned char)(i * 31 + (i >> 8) * 7 + seed); }

static void put(const struct places *p, enum place place, size_t offset, size_t bytes, unsigned seed) {
  unsigned char *values = malloc(bytes);
  assert_non_null(values);
  for (size_t i = 0; i < bytes; i++)
    values[i] = pattern(i, seed);
  if (place == DEVICE) {
    assert_cu(d->Memcpy(d, p->at[DEVICE] + offset, address_of(values), bytes));
    assert_cu(d->CtxSynchronize(d)); /* the values were read, but may not have been written */
  } else
    memcpy(p->host[place] + offset, values, bytes);
  free(values);
}

static void assert_has(const struct places *p, enum place place, size_t offset, size_t bytes, unsigned seed) {
  unsigned char *copy = malloc(bytes);
  assert_non_null(copy);
  if (place == DEVICE)
    assert_cu(d->Memcpy(d, address_of(copy), p->at[DEVICE] + offset, bytes));
  else
    memcpy(copy, p->host[place] + offset, bytes);
  for (size_t i = 0; i < bytes; i++)
    if (copy[i] != pattern(i, seed)) {
      print_error("byte %zu of %zu in %s memory is %#x, expected %#x\n", i, bytes, place_names[place], copy[i],
                  pattern(i, seed));
      free(copy);
      fail();
    }
  free(copy);
}

/* Between all kinds of memory, at odd addresses and with odd sizes, blocking and on a stream. */
TEST(copy_everywhere) {
  struct places from, to;
  places_open(&from);
  places_open(&to);
  weir_cu_stream stream = stream_new();
  static const size_t sizes[] = {1, 7, 4096, 4097, 65536 + 5, 200 * KIB};
  unsigned seed = 0;
  for (enum place a = PAGEABLE; a < PLACES; a++)
    for (enum place b = PAGEABLE; b < PLACES; b++)
      for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t offset = i * 3;
        put(&from, a, offset, sizes[i], ++seed);
        assert_cu(d->Memcpy(d, to.at[b] + 2 * offset, from.at[a] + offset, sizes[i]));
        assert_has(&to, b, 2 * offset, sizes[i], seed);
        put(&from, a, offset, sizes[i], ++seed);
        assert_cu(d->MemcpyAsync(d, to.at[b] + 2 * offset, from.at[a] + offset, sizes[i], stream));
        assert_cu(d->StreamSynchronize(d, stream));
        assert_has(&to, b, 2 * offset, sizes[i], seed);
      }
  assert_cu(d->StreamDestroy(d, stream));
  places_close(&to);
  places_close(&from);
}

TEST(copy_stays_within_bounds) {
  unsigned char values[300], back[300];
  weir_cu_deviceptr p = mem_new(300);
  memset(values, 9, sizeof values);
  assert_cu(d->MemsetD8Async(d, p, 1, 300, NULL));
  assert_cu(d->Memcpy(d, p + 100, address_of(values), 100));
  assert_cu(d->Memcpy(d, address_of(back), p, 300));
  assert_filled(back, 100, 1);
  assert_filled(back + 100, 100, 9);
  assert_filled(back + 200, 100, 1);
  assert_cu(d->MemFree(d, p));
}

TEST(pageable_memory_is_read_by_the_call) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(4096);
  unsigned char *values = malloc(4096);
  assert_non_null(values);
  memset(values, 1, 4096);
  spin(stream, 20);
  assert_cu(d->MemcpyAsync(d, p, address_of(values), 4096, stream));
  memset(values, 2, 4096);
  assert_cu(d->StreamSynchronize(d, stream));
  assert_device_filled(p, 4096, 1);

  /* A copy to pageable memory is complete when the call returns. */
  spin(stream, 20);
  assert_cu(d->MemcpyAsync(d, address_of(values), p, 4096, stream));
  assert_filled(values, 4096, 1);
  free(values);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(pinned_memory_is_read_by_the_device) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(4096);
  unsigned char *values = host_new(4096);
  struct gate *gate = gate_close(stream);
  memset(values, 1, 4096);
  assert_cu(d->MemcpyAsync(d, p, address_of(values), 4096, stream));
  memset(values, 2, 4096);
  assert_cu_error(NOT_READY, d->StreamQuery(d, stream));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, stream));
  assert_device_filled(p, 4096, 2);
  assert_cu(d->MemFreeHost(d, values));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(bad_copies) {
  weir_cu_deviceptr p = mem_new(MIB), q = mem_new(MIB);
  char *host = host_new(4096), local[100];
  if (!is_ledger())
    memset(host, 3, 100);
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, p, q, 64 * MIB));
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->Memcpy(d, address_of(local), address_of(host), 100));
  assert_filled(local, 100, 3);
  assert_cu(d->Memcpy(d, 0, 0, 0));
  assert_cu(d->MemcpyAsync(d, p, q, 0, NULL));
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
}

/* Addresses that NVIDIA's driver would dereference. */
TEST(out_of_bounds_copies) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver takes such an address for one of the host's, and crashes");
  weir_cu_deviceptr p = mem_new(100), q = mem_new(100);
  weir_cu_stream stream = stream_new();
  char local[100];
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, 0, p, 100));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, p, 0, 100));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, p + 1, q, 100)); /* one byte past the end */
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, p, q + 1, 100));
  static char memory[300];
  assert_cu(d->MemHostRegister(d, memory + 100, 100, 0));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, address_of(memory + 99), p, 10)); /* begins before the allocation */
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, address_of(memory + 99), p, 102));
  assert_cu(d->MemHostUnregister(d, memory + 100));
  assert_cu_error(INVALID_CONTEXT, d->MemcpyPeerAsync(d, p, NULL, q, ctx, 100, stream));
  assert_cu_error(INVALID_CONTEXT, d->MemcpyPeerAsync(d, p, ctx, q, NULL, 100, stream));
  assert_cu_error(INVALID_VALUE, d->MemcpyPeerAsync(d, p + 1, ctx, q, ctx, 100, stream));
  assert_cu_error(INVALID_VALUE, d->MemcpyPeerAsync(d, p, ctx, q + 1, ctx, 100, stream));
  assert_cu_error(INVALID_VALUE, d->MemcpyPeerAsync(d, p, ctx, address_of(local), ctx, 100, stream));
  assert_cu_error(INVALID_VALUE, d->MemcpyPeerAsync(d, address_of(local), ctx, p, ctx, 100, stream));
  assert_cu(d->MemcpyPeerAsync(d, p, ctx, q, ctx, 0, stream));
  assert_cu(d->StreamQuery(d, stream)); /* none of them was enqueued */
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
  assert_cu(d->StreamDestroy(d, stream));
}

/* The peer variant works within one device as well. */
TEST(peer_copy_on_one_device) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(4096), q = mem_new(4096);
  assert_cu(d->MemsetD8Async(d, p, 6, 4096, stream));
  assert_cu(d->MemsetD8Async(d, q, 0, 4096, stream));
  assert_cu(d->MemcpyPeerAsync(d, q, ctx, p, ctx, 4096, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_device_filled(q, 4096, 6);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST_SETUP(peer_copy, device_setup_two, device_teardown) {
  if (device_count() < 2)
    WAIVE_TEST("there is one device");
  weir_cu_context other;
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr here = mem_new(MIB);
  assert_cu(d->DevicePrimaryCtxRetain(d, &other, 1));
  assert_cu(d->CtxSetCurrent(d, other));
  weir_cu_deviceptr there = mem_new(MIB);
  int ordinal = -1;
  assert_cu(d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, there));
  assert_int_equal(ordinal, 1);
  assert_cu(d->CtxSetCurrent(d, ctx));
  assert_cu(d->MemsetD8Async(d, here, 7, MIB, stream));
  assert_cu(d->MemcpyPeerAsync(d, there, other, here, ctx, MIB, stream));
  assert_cu(d->MemsetD8Async(d, here, 1, MIB, stream));
  assert_cu(d->MemcpyPeerAsync(d, here + 4096, ctx, there + 4096, other, 4096, stream));
  assert_cu(d->MemcpyAsync(d, here + 12288, there + 4096, 4096, stream)); /* the addresses alone suffice */
  assert_cu(d->StreamSynchronize(d, stream));
  assert_device_filled(there, MIB, 7);
  assert_device_filled(here, 4096, 1);
  assert_device_filled(here + 4096, 4096, 7);
  assert_device_filled(here + 8192, 4096, 1);
  assert_device_filled(here + 12288, 4096, 7);
  assert_device_filled(here + 16384, MIB - 16384, 1);
  assert_cu(d->CtxSetCurrent(d, other));
  assert_cu(d->MemFree(d, there));
  assert_cu(d->CtxSetCurrent(d, ctx));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu(d->MemFree(d, here));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Fills ---- */

TEST(fills) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(4096);
  uint32_t words[1024];
  assert_cu(d->MemsetD8Async(d, p, 0xab, 4096, stream));
  assert_cu(d->MemsetD32Async(d, p + 4, 0x12345678, 3, stream));
  assert_cu(d->MemsetD8Async(d, p + 4095, 0xcd, 1, stream));
  assert_cu(d->MemsetD8Async(d, p, 0xff, 0, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->Memcpy(d, address_of(words), p, 4096));
  assert_int_equal(words[0], 0xabababab);
  assert_int_equal(words[1], 0x12345678);
  assert_int_equal(words[2], 0x12345678);
  assert_int_equal(words[3], 0x12345678);
  assert_filled(&words[4], 4095 - 16, 0xab);
  assert_int_equal(words[1023] >> 24, 0xcd);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(bad_fills) {
  weir_cu_deviceptr p = mem_new(MIB);
  char *pageable = malloc(4096), *host = host_new(4096);
  assert_non_null(pageable);
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, p, 0, 64 * MIB, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD32Async(d, p + 1, 0, 4, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, nowhere, 1, 10, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, address_of(pageable), 1, 10, NULL));
  assert_cu(d->MemsetD8Async(d, address_of(host), 1, 10, NULL));
  assert_cu(d->CtxSynchronize(d));
  assert_filled(host, 10, 1);
  assert_filled(host + 10, 1, 0);
  free(pageable);
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
}
