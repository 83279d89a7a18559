/*
 * Pinned memory that is touched and registered: sizes, pieces, threads, and a driver that refuses.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/memory_map.h"
#include "driver/pieces.h"
#include "support/alloc.h"
#include "weir/host.h"

static weir_host_allocator *host;

static void open_host(const char *conf) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(conf), &host));
}

static int host_teardown(void **state) {
  if (faults)
    weir_fault_clear(faults);
  weir_host_allocator_destroy(host);
  host = NULL;
  return alloc_teardown(state);
}

FIXTURE(.teardown = host_teardown)

static void close_host(void) {
  weir_host_allocator_destroy(host);
  host = NULL;
  assert_int_equal(soft_census().registrations, 0);
  assert_int_equal(soft_census().host_allocations, 0);
  assert_int_equal(atomic_load(&weir__pieced_ranges), 0);
  alloc_close();
}

static void *take(size_t bytes) {
  char *p = NULL;
  assert_ok(weir_host_alloc(host, bytes, (void **)&p));
  memset(p, 1, bytes);
  return p;
}

static void give(void *p) { assert_ok(weir_host_free(host, p)); }

static unsigned long registrations(void) { return soft_census().registrations; }

TEST(large_memory_is_registered) {
  open_host("pinned_register_min_mb:4,pinned_num_register_threads:4");
  void *small = take(2 * MIB);
  assert_int_equal(registrations(), 0);
  assert_int_equal(soft_census().host_allocations, 1);
  void *large = take(4 * MIB), *larger = take(70 * MIB);
  assert_int_equal(registrations(), 2);
  assert_int_equal(soft_census().host_allocations, 1);
  assert_int_equal((uintptr_t)large % (2 * MIB), 0); /* for large pages */
  give(large);
  assert_ptr_equal(take(3 * MIB), large); /* cached like any other */
  give(large);
  give(larger);
  give(small);
  assert_ok(weir_host_empty_cache(host));
  assert_int_equal(registrations(), 0);
  close_host();
}

/* The driver has other reasons to refuse than memory, such as a system that does not support it. */
TEST(refused_registration) {
  open_host("pinned_register_min_mb:4");
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemHostRegister, 1, WEIR_CU_NOT_SUPPORTED, 0));
  void *large = take(4 * MIB);
  assert_int_equal(registrations(), 0);
  assert_int_equal(soft_census().host_allocations, 1);
  give(large);
  close_host();

  open_host("pinned_use_cuda_host_register:True"); /* an order, not a choice */
  void *p = NULL;
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemHostRegister, 1, WEIR_CU_NOT_SUPPORTED, 0));
  assert_int_not_equal(weir_host_alloc(host, 4 * MIB, &p), WEIR_OK);
  assert_null(p);
  close_host();
}

/* More than the machine has is left to the driver, which refuses it: touching it would end the process. */
TEST(more_than_there_is) {
  open_host("pinned_register_min_mb:4,pinned_max_round_threshold_mb:1");
  void *p = NULL;
  assert_int_equal(weir_host_alloc(host, 1ull << 50, &p), WEIR_ERROR_HOST_OUT_OF_MEMORY);
  assert_null(p);
  assert_int_equal(registrations(), 0);
  close_host();
}

static const char pieces[] = "pinned_register_min_mb:4,pinned_register_piece_mb:4,pinned_max_round_threshold_mb:1";

TEST(pieces) {
  open_host(pieces);
  void *one = take(4 * MIB);
  assert_int_equal(registrations(), 1);
  assert_int_equal(atomic_load(&weir__pieced_ranges), 0); /* a single piece has no seam */
  char *p = take(10 * MIB + 100);
  assert_int_equal(registrations(), 1 + 3);
  assert_int_equal(atomic_load(&weir__pieced_ranges), 1);
  assert_int_equal(weir__pieces_run(p, 10 * MIB), 4 * MIB);
  assert_int_equal(weir__pieces_run(p, 4 * MIB), 4 * MIB);
  assert_int_equal(weir__pieces_run(p + 4 * MIB - 3, 100), 3);
  assert_int_equal(weir__pieces_run(p + 8 * MIB, 2 * MIB + 100), 2 * MIB + 100);
  assert_int_equal(weir__pieces_run(one, 100 * MIB), 100 * MIB);
  int owns = 0;
  assert_ok(weir_host_owns(host, p + 9 * MIB, &owns));
  assert_true(owns);
  give(p);
  assert_ptr_equal(take(10 * MIB), p);
  give(p);
  give(one);
  assert_ok(weir_host_empty_cache(host));
  assert_int_equal(registrations(), 0);
  assert_int_equal(weir__pieces_run(p, 10 * MIB), 10 * MIB);
  close_host();
}

/* A piece that the driver does not register: the others are given back, and the driver allocates instead. */
TEST(refused_piece) {
  open_host(pieces);
  for (unsigned nth = 1; nth <= 3; nth++) {
    assert_ok(weir_fault_nth(faults, WEIR_CALL_MemHostRegister, nth, WEIR_CU_UNKNOWN, 0));
    void *p = take(12 * MIB);
    assert_int_equal(registrations(), 0);
    assert_int_equal(atomic_load(&weir__pieced_ranges), 0);
    give(p);
    assert_ok(weir_host_empty_cache(host));
    assert_int_equal(soft_census().host_allocations, 0);
  }
  close_host();
}

/* A piece that the driver does not unregister: the memory stays whole and in the cache. */
TEST(kept_piece) {
  open_host(pieces);
  for (unsigned nth = 1; nth <= 3; nth++) {
    char *p = take(12 * MIB);
    give(p);
    assert_ok(weir_fault_nth(faults, WEIR_CALL_MemHostUnregister, nth, WEIR_CU_UNKNOWN, 0));
    assert_int_equal(weir_host_empty_cache(host), WEIR_ERROR_DRIVER);
    assert_int_equal(registrations(), 3);
    assert_int_equal(weir__pieces_run(p, 12 * MIB), 4 * MIB);
    assert_ptr_equal(take(12 * MIB), p);
    give(p);
    assert_ok(weir_host_empty_cache(host));
    assert_int_equal(registrations(), 0);
  }
  close_host();
}

static weir_cu_result (*inner_register)(weir_driver *, void *, uint64_t, unsigned);
static uint64_t largest_registration;

/* The driver's lock is held in this call, so no page may be left for the system to provide. */
static weir_cu_result register_touched(weir_driver *driver, void *pointer, uint64_t bytes, unsigned flags) {
  static unsigned char resident[16 * MIB / 4096];
  size_t page = weir__map_page_size(), pages = (bytes + page - 1) / page;
  assert_in_range(pages, 1, sizeof resident);
  assert_int_equal(mincore(pointer, bytes, resident), 0);
  for (size_t i = 0; i < pages; i++)
    if (!(resident[i] & 1))
      fail_msg("page %zu of %zu was not touched", i, pages);
  if (bytes > largest_registration)
    largest_registration = bytes;
  return inner_register(driver, pointer, bytes, flags);
}

TEST(touched_before_registered) {
  static const char *const confs[] = {"pinned_register_min_mb:2", pieces,
                                      "pinned_use_cuda_host_register:True,pinned_num_register_threads:8"};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    open_host(confs[i]);
    inner_register = faults->MemHostRegister;
    faults->MemHostRegister = register_touched;
    largest_registration = 0;
    void *p = NULL;
    assert_ok(weir_host_alloc(host, 15 * MIB + 5, &p));
    assert_int_equal(largest_registration, confs[i] == pieces ? 4 * MIB : 16 * MIB);
    give(p);
    faults->MemHostRegister = inner_register;
    close_host();
  }
}

TEST_SETUP(populate, NULL, NULL) {
  char *memory = weir__map_aligned_memory(6 * MIB, 2 * MIB);
  assert_non_null(memory);
  assert_int_equal((uintptr_t)memory % (2 * MIB), 0);
  memory[5 * MIB] = 7;
  (void)weir__map_populate(memory, 6 * MIB); /* false on an old kernel */
  assert_int_equal(memory[5 * MIB], 7);
  assert_int_equal(memory[6 * MIB - 1], 0);
  weir__unmap(memory, 6 * MIB);
  assert_null(weir__map_aligned_memory(SIZE_MAX / 2, 2 * MIB));
}
