/*
 * Memory: capacity in pages, a device far larger than the machine, and host memory that is returned.
 */
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/soft/soft.h"
#include "support/soft.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };
static const unsigned long long GIB = 1ull << 30;

static volatile unsigned char *at(weir_cu_deviceptr pointer) { return (volatile unsigned char *)(uintptr_t)pointer; }

static size_t free_bytes(void) {
  size_t left, total;
  assert_cu(d->MemGetInfo(d, &left, &total));
  return left;
}

/* Host memory in use for device 0. */
static unsigned long long host_bytes(void) {
  int fd = ((struct soft *)d)->devices[0].fd;
  struct stat st;
  assert_int_equal(fstat(fd, &st), 0);
  return (unsigned long long)st.st_blocks * 512;
}

static void touch(weir_cu_deviceptr pointer, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 4096)
    *at(pointer + i) = 1;
}

static const weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
static const weir_cu_mem_access access_0 = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};

/* ---- A large device ---- */

FIXTURE(.teardown = soft_teardown)

TEST(eighty_gigabytes) {
  soft_open(WEIR_SOFT_THREADS, 1, 80 * GIB);
  size_t left, total;
  assert_cu(d->MemGetInfo(d, &left, &total));
  assert_int_equal(total, 80 * GIB);
  assert_int_equal(left, 80 * GIB);
  assert_cu(d->DeviceTotalMem(d, &total, 0));
  assert_int_equal(total, 80 * GIB);

  weir_cu_deviceptr p = soft_alloc(79 * GIB), q, none;
  assert_int_equal(free_bytes(), GIB);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, GIB + 1));
  assert_cu(d->MemAlloc(d, &q, GIB));
  assert_int_equal(free_bytes(), 0);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 1));

  /* At both ends, accessed by the program and by the device. */
  static const unsigned long long places[] = {0, 1, 4 * GIB - 1, 4 * GIB, 40 * GIB + 12345, 79 * GIB - 1};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    assert_int_equal(*at(p + places[i]), 0);
    *at(p + places[i]) = (unsigned char)(i + 1);
  }
  assert_cu(d->MemsetD8Async(d, p + 20 * GIB, 9, 1 * MIB, NULL));
  assert_cu(d->MemcpyAsync(d, p + 60 * GIB, p + 20 * GIB, 1 * MIB, NULL));
  assert_cu(d->CtxSynchronize(d));
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    assert_int_equal(*at(p + places[i]), i + 1);
  assert_int_equal(*at(p + 60 * GIB + MIB - 1), 9);
  assert_int_equal(*at(p + 60 * GIB + MIB), 0);
  assert_true(host_bytes() < 64 * MIB); /* only what was touched */
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
  assert_int_equal(free_bytes(), 80 * GIB);
  assert_int_equal(host_bytes(), 0);
  soft_close();
}

TEST(address_space_is_not_memory) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_deviceptr va, va2;
  assert_cu(d->MemAddressReserve(d, &va, 1024 * GIB, 0, 0, 0));
  assert_cu(d->MemAddressReserve(d, &va2, 512 * GIB, 0, 0, 0));
  assert_int_equal(free_bytes(), 64 * MIB);
  weir_cu_mem_handle handle;
  assert_cu(d->MemCreate(d, &handle, 2 * MIB, &prop, 0));
  assert_cu(d->MemMap(d, va + 1000 * GIB, 2 * MIB, 0, handle, 0));
  assert_cu(d->MemMap(d, va2, 2 * MIB, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, va + 1000 * GIB, 2 * MIB, &access_0, 1));
  assert_cu(d->MemSetAccess(d, va2, 2 * MIB, &access_0, 1));
  *at(va + 1000 * GIB + 77) = 7;
  assert_int_equal(*at(va2 + 77), 7); /* the same memory at two addresses */
  assert_int_equal(free_bytes(), 62 * MIB);
  assert_cu(d->MemUnmap(d, va + 1000 * GIB, 2 * MIB));
  assert_cu(d->MemUnmap(d, va2, 2 * MIB));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, va, 1024 * GIB));
  assert_cu(d->MemAddressFree(d, va2, 512 * GIB));
  soft_close();
}

/* ---- Capacity ---- */

TEST(capacity_counts_pages) {
  enum { PAGES = 512 };
  soft_open(WEIR_SOFT_STEPPED, 1, PAGES * 4 * KIB);
  weir_cu_deviceptr p[PAGES], none = 77;
  for (int i = 0; i < PAGES; i++) {
    p[i] = soft_alloc(i % 2 ? 1 : 4096);
    assert_int_equal(free_bytes(), (PAGES - 1 - i) * 4096);
  }
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 1));
  assert_int_equal(none, 77);
  assert_cu(d->MemFree(d, p[PAGES / 2]));
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 4097));
  p[PAGES / 2] = soft_alloc(4096);
  for (int i = 0; i < PAGES; i++)
    assert_cu(d->MemFree(d, p[i * 7 % PAGES]));
  assert_int_equal(free_bytes(), PAGES * 4096);
  soft_close();
}

/* A capacity that is not a multiple of a page. */
TEST(an_odd_capacity) {
  soft_open(WEIR_SOFT_STEPPED, 1, 5 * MIB + 4095);
  weir_cu_deviceptr p, none;
  assert_int_equal(free_bytes(), 5 * MIB + 4095);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 5 * MIB + 4095)); /* whole pages do not fit */
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 5 * MIB + 1));
  assert_cu(d->MemAlloc(d, &p, 5 * MIB));
  assert_int_equal(free_bytes(), 4095);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 1));
  assert_cu(d->MemFree(d, p));
  soft_close();
}

/* All kinds of memory share the capacity. */
TEST(all_kinds_share_the_capacity) {
  soft_open(WEIR_SOFT_STEPPED, 2, 16 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr plain = soft_alloc(4 * MIB), chunk, of_graph, none;
  weir_cu_mem_handle handle, shareable, second;
  weir_cu_mem_prop share = prop;
  share.handle_types = WEIR_CU_HANDLE_POSIX_FD;
  assert_cu(d->MemAllocAsync(d, &chunk, 1, s)); /* a granule */
  assert_int_equal(free_bytes(), 10 * MIB);
  assert_cu(d->MemCreate(d, &handle, 2 * MIB, &prop, 0));
  assert_cu(d->MemCreate(d, &shareable, 2 * MIB, &share, 0));
  assert_int_equal(free_bytes(), 6 * MIB);
  weir_cu_graph graph;
  assert_cu(d->StreamBeginCapture(d, s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemAllocAsync(d, &of_graph, 4 * MIB, s));
  assert_cu(d->StreamEndCapture(d, s, &graph));
  assert_int_equal(free_bytes(), 2 * MIB); /* memory of a graph counts from the capture on */
  void *host;
  assert_cu(d->MemHostAlloc(d, &host, 32 * MIB, 0)); /* host memory */
  assert_int_equal(free_bytes(), 2 * MIB);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 2 * MIB + 1));
  assert_cu_error(OUT_OF_MEMORY, d->MemCreate(d, &second, 4 * MIB, &prop, 0));
  assert_cu_error(OUT_OF_MEMORY, d->MemAllocAsync(d, &none, 2 * MIB + 1, s));
  assert_int_equal(soft_census().device_bytes, 14 * MIB);
  soft_use(1);
  assert_int_equal(free_bytes(), 16 * MIB); /* each device has its own capacity */
  soft_use(0);

  assert_cu(d->GraphDestroy(d, graph));
  assert_int_equal(free_bytes(), 6 * MIB);
  assert_cu(d->MemRelease(d, shareable));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemFreeAsync(d, chunk, s));
  assert_int_equal(free_bytes(), 10 * MIB);
  assert_cu(d->StreamSynchronize(d, s)); /* releases what the pool does not keep */
  assert_int_equal(free_bytes(), 12 * MIB);
  assert_cu(d->MemFree(d, plain));
  assert_int_equal(free_bytes(), 16 * MIB);
  assert_cu(d->MemFreeHost(d, host));
  soft_close();
}

/* Mapped memory lives, and counts, until the last mapping is removed. */
TEST(released_memory_counts_while_it_is_mapped) {
  soft_open(WEIR_SOFT_STEPPED, 1, 16 * MIB);
  weir_cu_deviceptr va;
  weir_cu_mem_handle handle;
  assert_cu(d->MemAddressReserve(d, &va, 8 * MIB, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, 4 * MIB, &prop, 0));
  assert_cu(d->MemMap(d, va, 4 * MIB, 0, handle, 0));
  assert_cu(d->MemMap(d, va + 4 * MIB, 4 * MIB, 0, handle, 0));
  assert_int_equal(free_bytes(), 12 * MIB); /* once, although mapped twice */
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemUnmap(d, va, 4 * MIB));
  assert_int_equal(free_bytes(), 12 * MIB);
  assert_cu(d->MemUnmap(d, va + 4 * MIB, 4 * MIB));
  assert_int_equal(free_bytes(), 16 * MIB);
  assert_cu(d->MemAddressFree(d, va, 8 * MIB));
  soft_close();
}

/* A full pool releases its free memory before it fails, including memory that other streams have yet to free. */
TEST(full_pool_releases_cached_memory) {
  soft_open(WEIR_SOFT_STEPPED, 1, 16 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr p[4], q;
  weir_cu_mempool pool;
  uint64_t all = UINT64_MAX;
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  assert_cu(d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all)); /* keeps everything */
  for (int i = 0; i < 4; i++)
    assert_cu(d->MemAllocAsync(d, &p[i], 4 * MIB, a));
  for (int i = 0; i < 4; i++)
    assert_cu(d->MemFreeAsync(d, p[i], a));
  assert_cu(d->MemAllocAsync(d, &q, 16 * MIB, b)); /* too large for any of them: waits for `a`, and releases all four */
  assert_int_equal(soft_pending(a), 0);
  assert_int_equal(soft_census().allocations, 1);
  assert_cu(d->MemFreeAsync(d, q, b));
  assert_cu(d->StreamSynchronize(d, b));
  assert_int_equal(free_bytes(), 0); /* it is kept */
  assert_cu(d->MemPoolTrimTo(d, pool, 0));
  assert_int_equal(free_bytes(), 16 * MIB);
  soft_close();
}

/* ---- Host memory ---- */

TEST(host_memory_is_returned) {
  enum { BYTES = 32 * MIB };
  soft_open(WEIR_SOFT_STEPPED, 1, 256 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr p = soft_alloc(BYTES), va;
  assert_int_equal(host_bytes(), 0);
  touch(p, BYTES);
  assert_true(host_bytes() >= BYTES);
  assert_cu(d->MemFree(d, p));
  assert_int_equal(host_bytes(), 0);

  assert_cu(d->MemAllocAsync(d, &p, BYTES, s));
  touch(p, BYTES);
  assert_cu(d->MemFreeAsync(d, p, s));
  assert_cu(d->StreamSynchronize(d, s));
  assert_int_equal(host_bytes(), 0);

  weir_cu_mem_handle handle;
  assert_cu(d->MemAddressReserve(d, &va, BYTES, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, BYTES, &prop, 0));
  assert_cu(d->MemMap(d, va, BYTES, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, va, BYTES, &access_0, 1));
  touch(va, BYTES);
  assert_cu(d->MemRelease(d, handle));
  assert_true(host_bytes() >= BYTES);
  assert_cu(d->MemUnmap(d, va, BYTES));
  assert_int_equal(host_bytes(), 0);
  assert_cu(d->MemAddressFree(d, va, BYTES));
  soft_close();
}

/* A device that hands out a thousand times its capacity over time. */
TEST(reused_memory_is_zero) {
  soft_open(WEIR_SOFT_STEPPED, 1, 4 * MIB);
  for (int i = 0; i < 1000; i++) {
    weir_cu_deviceptr p = soft_alloc(4 * MIB);
    assert_int_equal(*at(p), 0);
    assert_int_equal(*at(p + 4 * MIB - 1), 0);
    *at(p) = 1;
    *at(p + 4 * MIB - 1) = 1;
    assert_cu(d->MemFree(d, p));
  }
  soft_close();
}

/* ---- Kept memory: with threads, freed memory stays mapped for a while ---- */

static void start_worker(void) {
  weir_cu_deviceptr p = soft_alloc(4096);
  assert_cu(d->MemsetD8Async(d, p, 1, 4096, NULL));
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->MemFree(d, p));
}

/* Host memory is returned once the device has been idle for a second, and work puts that off. */
TEST(kept_memory_is_returned) {
  enum { BYTES = 32 * MIB };
  soft_open(WEIR_SOFT_THREADS, 1, 256 * MIB);
  start_worker();
  weir_cu_deviceptr p = soft_alloc(BYTES);
  touch(p, BYTES);
  assert_cu(d->MemFree(d, p));
  assert_int_equal(free_bytes(), 256 * MIB);
  assert_in_range(host_bytes(), BYTES, BYTES + 2 * MIB); /* kept, and free all the same */
  for (int waited = 0; host_bytes() > 0; waited++) {
    assert_true(waited < 30000);
    usleep(1000);
  }
  soft_close();
}

/* The bound is an eighth of the memory: what is freed beyond it returns the oldest. */
TEST(kept_memory_is_bounded) {
  soft_open(WEIR_SOFT_THREADS, 1, 256 * MIB);
  start_worker();
  weir_cu_deviceptr p[8], large = soft_alloc(64 * MIB);
  for (int i = 0; i < 8; i++) {
    p[i] = soft_alloc(8 * MIB);
    touch(p[i], 8 * MIB);
  }
  touch(large, 64 * MIB);
  for (int i = 0; i < 8; i += 2)
    assert_cu(d->MemFree(d, p[i]));
  for (int i = 1; i < 8; i += 2)
    assert_cu(d->MemFree(d, p[i]));
  assert_true(host_bytes() <= (64 + 32 + 2) * MIB);
  assert_cu(d->MemFree(d, large)); /* more than the bound by itself */
  assert_true(host_bytes() <= (32 + 2) * MIB);
  soft_close();
}

/* Sizes and orders at random: new memory is zero, holds what is written, and shares no page with other memory. Half of
 * it is sparse, and clearing it does not make it dense. */
TEST(kept_memory_reads_as_zero) {
  enum { SLOTS = 12, ROUNDS = 500 };
  static struct {
    weir_cu_deviceptr at;
    size_t bytes;
    unsigned value;
  } slots[SLOTS];
  soft_open(WEIR_SOFT_THREADS, 1, 1 * GIB);
  start_worker();
  unsigned random = 1;
  for (int i = 0; i < ROUNDS; i++) {
    random = random * 1664525u + 1013904223u;
    int k = (int)(random >> 16) % SLOTS;
    if (slots[k].at) {
      for (size_t b = 0; b < slots[k].bytes; b += 512 * KIB)
        assert_int_equal(*(volatile unsigned *)at(slots[k].at + b), b % MIB ? 0 : slots[k].value);
      assert_cu(d->MemFree(d, slots[k].at));
      slots[k].at = 0;
      continue;
    }
    slots[k].bytes = (1 + (random >> 8) % 16) * (random & 64 ? MIB : 2 * MIB);
    slots[k].at = soft_alloc(slots[k].bytes);
    slots[k].value = (unsigned)i + 1;
    for (size_t b = 0; b < slots[k].bytes; b += 512 * KIB) {
      assert_int_equal(*(volatile unsigned *)at(slots[k].at + b), 0);
      if (b % MIB == 0)
        *(volatile unsigned *)at(slots[k].at + b) = slots[k].value;
    }
  }
  for (int k = 0; k < SLOTS; k++)
    if (slots[k].at)
      assert_cu(d->MemFree(d, slots[k].at));
  soft_close();
}

static void write_after_free(void *does_write) {
  soft_open(WEIR_SOFT_THREADS, 1, 256 * MIB);
  start_worker();
  weir_cu_deviceptr p = soft_alloc(8 * MIB);
  touch(p, 8 * MIB);
  assert_cu(d->MemFree(d, p));
  assert_true(host_bytes() >= 8 * MIB);
  if (*(bool *)does_write)
    *at(p) = 1;
  soft_close();
}

/* It is free: an access faults, as one to memory that was returned. */
TEST(kept_memory_is_not_accessible) {
  bool does_write = false;
  assert_int_equal(soft_in_child(write_after_free, &does_write), 0);
  does_write = true;
  int status = soft_in_child(write_after_free, &does_write);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), SIGSEGV);
}

/* Another process may have it mapped. */
TEST(exported_memory_is_not_kept) {
  soft_open(WEIR_SOFT_THREADS, 1, 256 * MIB);
  start_worker();
  weir_cu_deviceptr p = soft_alloc(8 * MIB);
  weir_cu_ipc_mem_handle handle;
  touch(p, 8 * MIB);
  assert_cu(d->IpcGetMemHandle(d, &handle, p));
  assert_cu(d->MemFree(d, p));
  assert_true(host_bytes() < 8 * MIB);
  soft_close();
}

TEST(alignment) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  static const size_t sizes[] = {1, 511, 4096, 4097, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 7 * MIB};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    weir_cu_deviceptr p = soft_alloc(sizes[i]), base;
    size_t bytes;
    assert_int_equal(p % (sizes[i] >= 2 * MIB ? 2 * MIB : 4096), 0);
    assert_cu(d->MemGetAddressRange(d, &base, &bytes, p + sizes[i] - 1));
    assert_int_equal(base, p);
    assert_int_equal(bytes, sizes[i]); /* as requested, not as rounded */
    assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, p, 1, sizes[i] + 1, NULL));
    assert_cu(d->MemsetD8Async(d, p, 1, sizes[i], NULL));
    assert_cu(d->MemFree(d, p));
  }
  soft_close();
}

/* Many allocations, freed in another order. */
TEST(many_allocations) {
  enum { COUNT = 1000 };
  static weir_cu_deviceptr p[COUNT];
  soft_open(WEIR_SOFT_THREADS, 1, 1 * GIB);
  for (int i = 0; i < COUNT; i++) {
    p[i] = soft_alloc(100 + (size_t)i);
    *(volatile int *)at(p[i]) = i;
  }
  assert_int_equal(soft_census().allocations, COUNT);
  for (int i = 0; i < COUNT; i++) {
    int k = i * 7 % COUNT;
    assert_int_equal(*(volatile int *)at(p[k]), k);
    assert_cu(d->MemFree(d, p[k]));
  }
  soft_close();
}
