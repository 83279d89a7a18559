/*
 * Expandable segments: one reservation per pool and stream, into which pages are mapped as needed.
 *
 * The device has 1 GiB, so the reservation of the large pool is 1160 MiB (9/8, in pages of 20 MiB), and that of the
 * small pool 1152 MiB.
 */
#include <string.h>

#include "support/alloc.h"

static void open(void) { alloc_open("expandable_segments:True", GIB); }

/* ---- Growing ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(grows_at_the_tail) {
  open();
  void *a = get(30 * MIB, NULL);
  assert_layout(a, "30M* 10M 1120M-");
  assert_int_equal(reserved(), 40 * MIB);
  void *b = get(10 * MIB, NULL);
  assert_layout(a, "30M* 10M* 1120M-");
  void *c = get(5 * MIB, NULL);
  assert_layout(a, "30M* 10M* 5M* 15M 1100M-");
  assert_ptr_equal(b, (char *)a + 30 * MIB);
  assert_ptr_equal(c, (char *)b + 10 * MIB);
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.segment[WEIR_STAT_ALL].current, 0);        /* expandable segments do not count as segments, */
  assert_int_equal(s.inactive_split[WEIR_STAT_ALL].current, 0); /* their free parts do not count as split, */
  assert_int_equal(s.num_device_alloc, 2);                      /* and each mapping counts as an allocation */
  assert_int_equal(soft_census().reservations, 1);
  alloc_close();
}

TEST(free_tail_is_used_first) {
  open();
  void *a = get(30 * MIB, NULL);
  void *b = get(25 * MIB, NULL);
  assert_layout(a, "30M* 25M* 5M 1100M-"); /* 15 MiB from 10 free ones and one new page */
  assert_int_equal(reserved(), 60 * MIB);
  put(a);
  put(b);
  assert_layout(a, "60M 1100M-");
  void *c = get(70 * MIB, NULL);
  assert_ptr_equal(c, a);
  assert_layout(a, "70M* 10M 1080M-");
  alloc_close();
}

TEST(small_pool_has_small_pages) {
  open();
  void *a = get(512, NULL), *b = get(MIB, NULL), *c = get(MIB, NULL);
  assert_layout(a, "512* 1M* 1M* 2096640 1148M-");
  void *large = get(MIB + 512, NULL);
  assert_layout(large, "1049088* 19922432 1140M-");
  assert_int_equal(reserved(), 24 * MIB);
  put(a);
  put(b);
  put(c);
  put(large);
  alloc_close();
}

TEST(each_stream_has_its_own) {
  open();
  void *a = get(2 * MIB, work_stream()), *b = get(2 * MIB, work_stream());
  assert_layout(a, "2M* 18M 1140M-");
  assert_layout(b, "2M* 18M 1140M-");
  assert_int_equal(soft_census().reservations, 2);
  alloc_close();
}

/* A remainder of 512 bytes or more becomes a block, in the large pool as well; a split limit has no effect. */
TEST(splits_to_the_last_unit) {
  alloc_open("expandable_segments:True,max_split_size_mb:20", GIB);
  void *a = get(19 * MIB + 512 * KIB, NULL);
  assert_layout(a, "19968K* 512K 1140M-");
  void *b = get(40 * MIB, NULL);
  assert_layout(a, "19968K* 40M* 512K 1100M-");
  put(a);
  put(b);
  alloc_close();
}

/* The block at the growing end counts with the size that it can grow to: a larger block that cannot grow fits better.
 * */
TEST(growing_end_is_used_last) {
  open();
  void *hole = get(15 * MIB, NULL), *wall = get(15 * MIB, NULL);
  assert_layout(hole, "15M* 15M* 10M 1120M-");
  put(hole);
  assert_layout(hole, "15M 15M* 10M 1120M-");
  assert_ptr_equal(get(8 * MIB, NULL), hole);
  assert_layout(hole, "8M* 7M 15M* 10M 1120M-");
  put(wall);
  alloc_close();
}

/* ---- Unmapping ---- */

TEST(everything_is_released) {
  open();
  void *a = get(30 * MIB, NULL), *b = get(512, NULL);
  put(a);
  put(b);
  empty_cache();
  assert_int_equal(reserved(), 0);
  weir_soft_census census = soft_census();
  assert_int_equal(census.reservations, 0);
  assert_int_equal(census.handles, 0);
  assert_int_equal(stats_of(0).num_device_free, 2);
  assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, a));
  void *c = get(30 * MIB, NULL);
  put(c);
  alloc_close();
}

/* Only whole pages can be unmapped. */
TEST(partial_pages_stay) {
  open();
  void *a = get(10 * MIB, NULL), *b = get(40 * MIB, NULL), *c = get(2 * MIB, NULL);
  assert_layout(a, "10M* 40M* 2M* 8M 1100M-");
  put(b);
  empty_cache();
  assert_layout(a, "10M* 10M 20M- 10M 2M* 8M 1100M-"); /* of [10, 50) only [20, 40) is a whole page */
  assert_int_equal(reserved(), 40 * MIB);
  empty_cache();
  assert_int_equal(reserved(), 40 * MIB);
  put(a);
  put(c);
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}

TEST(tail_is_unmapped_and_grows_again) {
  open();
  void *a = get(20 * MIB, NULL), *b = get(40 * MIB, NULL);
  put(b);
  empty_cache();
  assert_layout(a, "20M* 1140M-");
  void *c = get(40 * MIB, NULL);
  assert_ptr_equal(c, b);
  alloc_close();
}

/* ---- Holes ---- */

/* Four blocks of one page each; the first and the third are unmapped: 20M- 20M* 20M- 20M* 1080M- */
static void make_holes(void *page[4]) {
  for (int i = 0; i < 4; i++)
    page[i] = get(20 * MIB, NULL);
  put(page[0]);
  put(page[2]);
  empty_cache();
  assert_layout(page[1], "20M- 20M* 20M- 20M* 1080M-");
  assert_int_equal(reserved(), 40 * MIB);
}

TEST(holes_lowest_first) {
  open();
  void *page[4];
  make_holes(page);
  assert_ptr_equal(get(20 * MIB, NULL), page[0]);
  assert_ptr_equal(get(2 * MIB, NULL), page[2]);
  assert_layout(page[0], "20M* 20M* 2M* 18M 20M* 1080M-");
  alloc_close();
}

TEST(small_hole_is_skipped) {
  open();
  void *page[4];
  make_holes(page);
  void *p = get(30 * MIB, NULL);
  assert_ptr_equal(p, (char *)page[0] + 80 * MIB);
  assert_layout(page[1], "20M- 20M* 20M- 20M* 30M* 10M 1040M-");
  alloc_close();
}

TEST(hole_with_the_free_block_before_it) {
  open();
  void *x = get(10 * MIB, NULL), *y = get(10 * MIB, NULL), *b = get(20 * MIB, NULL), *c = get(20 * MIB, NULL);
  put(y);
  put(b);
  empty_cache();
  assert_layout(x, "10M* 10M 20M- 20M* 1100M-");
  void *p = get(30 * MIB, NULL);
  assert_ptr_equal(p, y);
  assert_layout(x, "10M* 30M* 20M* 1100M-");
  put(c);
  alloc_close();
}

/* A request can fill several holes together with the free blocks between them. */
TEST(run_over_several_holes) {
  open();
  void *page[4];
  make_holes(page);
  put(page[1]);
  assert_layout(page[1], "20M- 20M 20M- 20M* 1080M-");
  unsigned long maps = calls(WEIR_CALL_MemMap);
  void *p = get(60 * MIB, NULL);
  assert_ptr_equal(p, page[0]);
  assert_layout(p, "60M* 20M* 1080M-");
  assert_int_equal(calls(WEIR_CALL_MemMap), maps + 2);
  put(p);
  put(page[3]);
  assert_layout(p, "80M 1080M-");
  alloc_close();
}

/* Very many holes: every other page is one. */
TEST(run_over_very_many_holes) {
  enum { PAGES = 300 };
  alloc_open("expandable_segments:True,large_segment_size_mb:12", 8 * GIB);
  void *page[PAGES];
  for (int i = 0; i < PAGES; i++)
    page[i] = get(12 * MIB, NULL);
  void *end = get(12 * MIB, NULL);
  for (int i = 0; i < PAGES; i += 2)
    assert_ok(weir_allocator_free(allocator, page[i]));
  empty_cache();
  for (int i = 1; i < PAGES; i += 2)
    assert_ok(weir_allocator_free(allocator, page[i]));
  assert_int_equal(reserved(), (PAGES / 2 + 1) * 12 * MIB);
  assert_ptr_equal(get(PAGES * 12 * MIB, NULL), page[0]);
  assert_int_equal(stats_of(0).num_alloc_retries, 0);
  put(end);
  alloc_close();
}

/* ---- Limits ---- */

/* One page more than the device has: nothing of it stays mapped, and a smaller request succeeds. */
TEST(more_than_there_is) {
  open();
  void *a = get(500 * MIB, NULL), *p;
  assert_int_equal(try_get(600 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_layout(a, "500M* 660M-");
  void *b = get(500 * MIB, NULL);
  put(a);
  put(b);
  alloc_close();
}

TEST(more_than_the_reservation) {
  open();
  void *p;
  assert_int_equal(try_get(1161 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(soft_census().reservations, 0);
  alloc_close();
}

/* The first growth of a stream fails and removes its reservation too. */
TEST(failed_reservation_is_released) {
  open();
  void *p;
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.5));
  assert_int_equal(try_get(520 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(soft_census().reservations, 0);
  assert_ok(weir_allocator_set_fraction(allocator, 0, 1));
  void *big = get(1000 * MIB, NULL);
  assert_int_equal(try_get(100 * MIB, work_stream(), &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(soft_census().reservations, 1);
  put(big);
  alloc_close();
}

/* Cached pages of one stream are unmapped for a request of another. */
TEST(pages_move_to_another_stream) {
  open();
  weir_cu_stream one = work_stream(), two = work_stream();
  void *a = get(600 * MIB, one);
  put(a);
  void *b = get(600 * MIB, two);
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  assert_int_equal(reserved(), 600 * MIB);
  put(b);
  alloc_close();
}

/* Pages are unmapped only when the work of their stream is done, because it may still use them. */
TEST(unmapping_waits_for_the_stream) {
  open();
  weir_cu_stream stream = work_stream();
  void *a = get(20 * MIB, stream);
  assert_cu(d->MemsetD8Async(d, (weir_cu_deviceptr)a, 1, 20 * MIB, stream));
  put(a);
  assert_int_equal(soft_pending(stream), 1);
  empty_cache();
  assert_int_equal(soft_pending(stream), 0);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* Streams without pages to release are not waited for; here a page is only partly free. */
TEST(no_wait_without_pages_to_unmap) {
  open();
  weir_cu_stream stream = work_stream();
  void *a = get(10 * MIB, stream);
  assert_layout(a, "10M* 10M 1140M-");
  assert_cu(d->MemsetD8Async(d, (weir_cu_deviceptr)a, 1, 10 * MIB, stream));
  empty_cache();
  assert_int_equal(soft_pending(stream), 1);
  assert_layout(a, "10M* 10M 1140M-");
  put(a);
  alloc_close();
}

/* ---- Turning them off and on ---- */

TEST(turned_off_and_on) {
  open();
  void *a = get(10 * MIB, NULL);
  put(a);
  assert_layout(a, "20M 1140M-");
  configure("expandable_segments:False");
  void *b = get(10 * MIB, NULL); /* pages mapped before are not used */
  assert_layout(b, "10M*");
  assert_int_equal(segments(), 1);
  put(b);
  void *c = get(10 * MIB, NULL);
  assert_ptr_equal(c, b);
  configure("expandable_segments:True");
  void *e = get(10 * MIB, NULL); /* now they are used again */
  assert_ptr_equal(e, a);
  put(c);
  void *f = get(9 * MIB, NULL); /* a fixed block is used as well: the smallest that fits */
  assert_ptr_equal(f, c);
  assert_layout(f, "9M* 1M");
  put(e);
  put(f);
  configure("expandable_segments:False");
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* A live block outlives the switch and is freed correctly. */
TEST(freed_after_the_switch) {
  open();
  void *a = get(10 * MIB, NULL);
  configure("expandable_segments:False");
  put(a);
  assert_layout(a, "20M 1140M-");
  configure("expandable_segments:True");
  void *b = get(20 * MIB, NULL);
  assert_ptr_equal(a, b);
  configure("expandable_segments:False");
  put(b);
  alloc_close();
}

TEST(driver_without_virtual_memory) {
  collect_messages();
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  faults->MemAddressReserve = NULL;
  allocator = alloc_create("expandable_segments:True");
  assert_int_equal(messages_with(WEIR_LOG_WARN, "expandable_segments not supported on this platform"), 1);
  void *a = get(10 * MIB, NULL);
  assert_layout(a, "10M*");
  configure("expandable_segments:True");
  assert_int_equal(messages_with(WEIR_LOG_WARN, "expandable_segments not supported on this platform"), 2);
  put(a);
  alloc_close();
}

/* A table of a program may leave out some of the optional entries. */
TEST(driver_with_some_virtual_memory) {
  for (int missing = 0; missing < 7; missing++) {
    collect_messages();
    alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
    switch (missing) {
    case 0:
      faults->MemAddressFree = NULL;
      break;
    case 1:
      faults->MemCreate = NULL;
      break;
    case 2:
      faults->MemRelease = NULL;
      break;
    case 3:
      faults->MemMap = NULL;
      break;
    case 4:
      faults->MemUnmap = NULL;
      break;
    case 5:
      faults->MemSetAccess = NULL;
      break;
    default:
      faults->MemGetAllocationGranularity = NULL;
      break;
    }
    allocator = alloc_create("expandable_segments:True");
    assert_int_equal(messages_with(WEIR_LOG_WARN, "expandable_segments not supported on this platform"), 1);
    void *a = get(10 * MIB, NULL);
    assert_layout(a, "10M*");
    put(a);
    alloc_close();
  }
}

/* ---- Other devices ---- */

/* Records the driver calls that set access to memory. */
static struct {
  weir_cu_deviceptr pointer;
  size_t bytes;
  int devices;
} access_calls[64];
static int access_count;
static weir_cu_result (*inner_set_access)(weir_driver *, weir_cu_deviceptr, size_t, const weir_cu_mem_access *, size_t);

static weir_cu_result note_access(weir_driver *self, weir_cu_deviceptr pointer, size_t bytes,
                                  const weir_cu_mem_access *access, size_t count) {
  assert_true(access_count < 64);
  access_calls[access_count].pointer = pointer;
  access_calls[access_count].bytes = bytes;
  access_calls[access_count].devices = 0;
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(access[i].flags, WEIR_CU_ACCESS_READWRITE);
    access_calls[access_count].devices |= 1 << access[i].location.id;
  }
  access_count++;
  return inner_set_access(self, pointer, bytes, access, count);
}

TEST(peers) {
  alloc_open_on(WEIR_SOFT_STEPPED, 3, GIB, "expandable_segments:True");
  inner_set_access = faults->MemSetAccess;
  faults->MemSetAccess = note_access;
  access_count = 0;
  void *a = get_on(0, 30 * MIB, NULL);
  assert_int_equal(access_count, 1); /* one call for all pages of a range */
  assert_int_equal(access_calls[0].bytes, 40 * MIB);
  assert_int_equal(access_calls[0].devices, 1);
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 2));
  unsigned long long shared = 0;
  for (int i = 1; i < access_count; i++) {
    assert_int_equal(access_calls[i].devices, 1 << 2);
    shared += access_calls[i].bytes;
  }
  assert_int_equal(shared, 40 * MIB);
  int before = access_count;
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 2)); /* the second call has nothing to do */
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 0));
  assert_int_equal(access_count, before);
  void *b = get_on(0, 20 * MIB, NULL); /* pages mapped later are shared from the start */
  assert_int_equal(access_count, before + 1);
  assert_int_equal(access_calls[before].devices, 1 | 1 << 2);
  void *c = get_on(1, 20 * MIB, NULL); /* memory of other devices is not shared */
  assert_int_equal(access_calls[before + 1].devices, 1 << 1);
  put(a);
  put(b);
  put(c);
  alloc_close();
}

/* ---- Properties of the pages ---- */

static int attributes[256]; /* attributes to report instead of those of the device; -1 for no change */
static weir_cu_mem_prop made_of;
static weir_driver of_soft;

static weir_cu_result told_attribute(weir_driver *self, int *value, int attribute, weir_cu_device device) {
  if (attribute < 256 && attributes[attribute] >= 0) {
    *value = attributes[attribute];
    return WEIR_CU_SUCCESS;
  }
  return of_soft.DeviceGetAttribute(self, value, attribute, device);
}

static weir_cu_result eight_mib(weir_driver *self, size_t *bytes, const weir_cu_mem_prop *prop, int option) {
  (void)self, (void)prop, (void)option;
  *bytes = 8 * MIB;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result see_prop(weir_driver *self, weir_cu_mem_handle *handle, size_t bytes,
                               const weir_cu_mem_prop *prop, unsigned long long flags) {
  weir_cu_mem_prop plain = *prop;
  made_of = *prop;
  plain.flags.gpu_direct_rdma = 0; /* the software device does not support it */
  return of_soft.MemCreate(self, handle, bytes, &plain, flags);
}

static void open_told(void) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  memset(attributes, -1, sizeof attributes);
  of_soft = *faults;
  faults->DeviceGetAttribute = told_attribute;
  faults->MemCreate = see_prop;
}

TEST(page_sizes) {
  open_told();
  faults->MemGetAllocationGranularity = eight_mib;
  allocator = alloc_create("expandable_segments:True");
  void *p = get(512, NULL);
  assert_int_equal(reserved(), 8 * MIB); /* for a request of 2 MiB */
  put(p);
  p = get(30 * MIB, NULL);
  assert_int_equal(reserved(), 56 * MIB); /* plus two pages for 20 MiB */
  put(p);
  alloc_close();
}

TEST(device_without_virtual_memory) {
  open_told();
  attributes[WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED] = 0;
  allocator = alloc_create("expandable_segments:True");
  put(get(30 * MIB, NULL));
  configure("expandable_segments:True");
  put(get(50 * MIB, NULL));
  assert_int_equal(calls(WEIR_CALL_MemCreate), 0);
  assert_int_equal(reserved(), 80 * MIB);
  alloc_close();
}

/* GPUDirect RDMA is enabled for the pages if the device supports it. */
TEST(pages_for_network_cards) {
  for (int has = 0; has < 2; has++) {
    open_told();
    attributes[WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED] = has;
    allocator = alloc_create("expandable_segments:True");
    put(get(512, NULL));
    assert_int_equal(made_of.flags.gpu_direct_rdma, has);
    alloc_close();
  }
}
