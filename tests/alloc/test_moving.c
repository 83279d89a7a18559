/*
 * Pages that move: what a request does, and what the books say, on one stream.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/moving_fixture.h"
#include "support/length.h"

/* ---- The trace ---- */

static uint64_t traced_bytes[WEIR_TRACE_ACTIONS];

static void add_entry(void *context, const weir_trace_entry *entry) {
  (void)context;
  traced_bytes[entry->action] += entry->bytes;
}

/* ---- Moving ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(pages_of_holes_move) {
  alloc_open("moving_pages:True", GIB);
  holes h = make_holes(NULL);
  int64_t before = reserved(), peak = stats_of(0).reserved_bytes[WEIR_STAT_ALL].peak;
  unsigned long made = calls(WEIR_CALL_MemCreate);
  memset(traced_bytes, 0, sizeof traced_bytes);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = add_entry)));
  void *p = get(72 * MIB, NULL);
  weir_allocator_stats stats = stats_of(0);
  assert_int_equal(reserved(), before);
  assert_int_equal(stats.reserved_bytes[WEIR_STAT_ALL].peak, peak); /* a page that moves is not counted twice */
  assert_int_equal(calls(WEIR_CALL_MemCreate), made);
  assert_int_equal(calls(WEIR_CALL_MemUnmap), 0); /* the old mappings stay */
  assert_true(p != h.first && p != h.second);
  assert_true(stats.moving_pages_moved > 0);
  assert_true(stats.moving_moved_bytes > 0 && stats.moving_moved_bytes <= 80 * (int64_t)MIB);
  assert_int_equal(stats.moving_aliases, alias_count());
  assert_int_equal(stats.moving_aliases, stats.moving_pages_moved);
  assert_true(stats.moving_aliases_peak >= stats.moving_aliases);
  assert_int_equal(traced_bytes[WEIR_TRACE_SEGMENT_MAP], stats.moving_moved_bytes);
  assert_int_equal(traced_bytes[WEIR_TRACE_SEGMENT_UNMAP], stats.moving_moved_bytes);
  put(p);
  end_holes(&h);
  alloc_close();
}

/* Without the setting, nothing of it happens. */
TEST(off_by_default) {
  alloc_open("expandable_segments:True", GIB);
  holes h = make_holes(NULL);
  int64_t before = reserved();
  put(get(72 * MIB, NULL));
  assert_true(reserved() > before);
  weir_allocator_stats none = {0}, stats = stats_of(0);
  const size_t from = offsetof(weir_allocator_stats, moving_pages_made);
  const size_t to = offsetof(weir_allocator_stats, ipc_references);
  assert_memory_equal((const char *)&stats + from, (const char *)&none + from, to - from);
  end_holes(&h);
  alloc_close();
}

/* The large and the small blocks of a stream share pages, as far as their sizes allow. */
TEST(pages_move_between_large_and_small_blocks) {
  alloc_open("moving_pages:True", GIB);
  void *parts[20];
  for (int i = 0; i < 20; i++)
    parts[i] = get(2 * MIB, NULL);
  int64_t before = reserved();
  for (int i = 0; i < 20; i++)
    put(parts[i]);
  void *small[30];
  for (int i = 0; i < 30; i++)
    small[i] = get(MIB, NULL);
  assert_int_equal(reserved(), before);
  assert_true(stats_of(0).reserved_bytes[WEIR_STAT_SMALL_POOL].current >= 30 * (int64_t)MIB);
  for (int i = 0; i < 30; i++)
    put(small[i]);
  assert_int_equal(stats_of(0).moving_pages_moved, 15);
  put(get(40 * MIB, NULL));
  assert_int_equal(reserved(), before);
  assert_int_equal(stats_of(0).moving_pages_returned, 15);
  alloc_close();
}

/* A page that is partly in use stays. */
TEST(partly_used_pages_stay) {
  alloc_open("moving_pages:True", GIB);
  void *small[40];
  for (int i = 0; i < 40; i++)
    small[i] = get(MIB, NULL);
  for (int i = 0; i < 40; i += 2)
    put(small[i]);
  int64_t before = reserved();
  void *p = get(16 * MIB, NULL);
  assert_int_equal(stats_of(0).moving_pages_moved, 0);
  assert_true(reserved() >= before + 16 * (int64_t)MIB);
  assert_true(stats_of(0).moving_unmovable_partial_bytes >= 16 * (int64_t)MIB);
  for (int i = 1; i < 40; i += 2)
    put(small[i]);
  put(p);
  alloc_close();
}

/* ---- Returning ---- */

/* A range whose pages have moved to two other places, from which they are free to return. */
static void *make_return(void *kept[3]) {
  void *a = get(40 * MIB, NULL);
  kept[0] = get(2 * MIB, NULL);
  put(a);
  void *low = get(20 * MIB, NULL);
  assert_ptr_equal(low, a);
  void *b = get(30 * MIB, NULL); /* pages of the rest, and new ones */
  kept[1] = get(16 * MIB, NULL); /* more than what is left of a page */
  put(low);
  void *c = get(30 * MIB, NULL); /* pages of `low`, and new ones */
  kept[2] = get(16 * MIB, NULL);
  put(b);
  put(c);
  return a;
}

static void put_kept(void *kept[3]) {
  for (int i = 0; i < 3; i++)
    put(kept[i]);
}

TEST(return_maps_nothing) {
  alloc_open("moving_pages:True", GIB);
  void *kept[3], *a = make_return(kept), *p = NULL;
  int64_t before = reserved(), returned = stats_of(0).moving_pages_returned;
  unsigned long made = memory_calls();
  assert_ok(weir_allocator_alloc(allocator, 0, 40 * MIB, NULL, &p));
  assert_int_equal(memory_calls(), made);
  assert_valid();
  assert_ptr_equal(p, a);
  assert_int_equal(reserved(), before);
  assert_true(stats_of(0).moving_pages_returned > returned);
  put(p);
  put_kept(kept);
  alloc_close();
}

/* The same, while work through the other addresses is still in flight. */
TEST(return_under_work) {
  alloc_open("moving_pages:True", GIB);
  void *kept[3], *a = make_return(kept);
  void *b = get(30 * MIB, NULL), *c = get(30 * MIB, NULL);
  fill(b, 1, 30 * MIB, NULL);
  fill(c, 2, 30 * MIB, NULL);
  put(b);
  put(c);
  void *p = get(40 * MIB, NULL);
  assert_ptr_equal(p, a);
  fill(p, 3, 40 * MIB, NULL);
  soft_step_all();
  assert_fill(p, 3, 40 * MIB);
  put(p);
  put_kept(kept);
  alloc_close();
}

/* ---- A step that repeats ---- */

static void run_step(void) {
  holes h = make_holes(NULL);
  void *p = get(72 * MIB, NULL), *q = get(10 * MIB, NULL);
  put(p);
  end_holes(&h);
  put(get(50 * MIB, NULL));
  put(q);
}

TEST(repeated_step_makes_no_memory_calls) {
  alloc_open("moving_pages:True", GIB);
  for (int i = 0; i < 3; i++)
    run_step();
  unsigned long before = memory_calls();
  for (int i = 0; i < 10; i++)
    run_step();
  assert_int_equal(memory_calls(), before);
  alloc_close();
}

/* Blocks of one size, a larger one that takes the pages of the holes between them, and everything is freed. Addresses
 * do not depend on pages, so each round is the same: its pages go back and forth between aliases. */
static void run_round(void) {
  void *p[16];
  for (int i = 0; i < 16; i++)
    p[i] = get(24 * MIB, NULL);
  for (int i = 0; i < 16; i += 2)
    put(p[i]);
  put(get(192 * MIB, NULL));
  for (int i = 1; i < 16; i += 2)
    put(p[i]);
}

TEST(pages_go_back_and_forth) {
  alloc_open("moving_pages:True", GIB);
  run_round();
  run_round();
  unsigned long before = memory_calls();
  int64_t returned = stats_of(0).moving_pages_returned;
  for (int i = 0; i < 10; i++)
    run_round();
  assert_int_equal(memory_calls(), before);
  assert_true(stats_of(0).moving_pages_returned > returned);
  alloc_close();
}

/* They stay while their stream may still use them in ways that the driver gives no guarantee for. */
TEST(pages_stay_with_completed_only) {
  alloc_open("moving_pages:True,moving_pages_completed_only:True", GIB);
  holes h = make_holes(NULL);
  void *p = get(72 * MIB, NULL); /* the stream is idle: pages move */
  assert_true(stats_of(0).moving_pages_moved > 0);
  fill(p, 1, 72 * MIB, NULL);
  put(p);
  assert_ptr_equal(get(72 * MIB, NULL), p); /* of the cache */
  soft_step_all();
  put(p);
  end_holes(&h);
  alloc_close();
}

/* ---- Nothing waits ---- */

static weir_cu_result refuse_stream(weir_driver *self, weir_cu_stream stream) {
  (void)self, (void)stream;
  return WEIR_CU_UNKNOWN;
}
static weir_cu_result refuse_event(weir_driver *self, weir_cu_event event) {
  (void)self, (void)event;
  return WEIR_CU_UNKNOWN;
}
static weir_cu_result refuse(weir_driver *self) {
  (void)self;
  return WEIR_CU_UNKNOWN;
}

/* Random requests on two streams that are never idle, under every call that waits failing. */
TEST(nothing_waits) {
  static const char *const confs[] = {"moving_pages:True", "moving_pages:True,moving_pages_max_aliases:10",
                                      "moving_pages:True,moving_pages_across_streams:True",
                                      "moving_pages:True,moving_pages_completed_only:True"};
  for (size_t conf = 0; conf < WEIR_COUNT_OF(confs); conf++) {
    alloc_open(confs[conf], 4 * GIB);
    weir_cu_stream streams[] = {work_stream(), work_stream()};
    weir_driver was = *faults;
    faults->StreamSynchronize = refuse_stream;
    faults->EventSynchronize = refuse_event;
    faults->CtxSynchronize = refuse;
    soft_seed(conf + 1);
    void *live[24] = {0};
    for (int i = 0; i < usual_or_long(500, 5000); i++) {
      void **at = &live[soft_random(24)];
      weir_cu_stream stream = streams[soft_random(2)];
      if (*at)
        put(*at);
      size_t bytes = soft_random(8) ? (1 + soft_random(20)) * MIB : (1 + soft_random(60)) * MIB;
      *at = get(bytes, stream);
      fill(*at, i, bytes > 4096 ? 4096 : bytes, stream);
      fill((char *)*at + bytes - 100, i, 100, stream);
      if (i % 10 == 9)
        for (int k = 0; k < 2; k++)
          soft_step(streams[k], soft_pending(streams[k]) - 1);
    }
    assert_true(stats_of(0).moving_pages_moved > 0 || conf == 3);
    assert_int_equal(stats_of(0).num_sync_all_streams, 0);
    for (int i = 0; i < 24; i++)
      if (live[i])
        put(live[i]);
    soft_step_all();
    faults->StreamSynchronize = was.StreamSynchronize;
    faults->EventSynchronize = was.EventSynchronize;
    faults->CtxSynchronize = was.CtxSynchronize;
    empty_cache();
    assert_int_equal(reserved(), 0);
    alloc_close();
  }
}

/* ---- Giving back ---- */

/* A page counts as given back when its last mapping is gone. */
TEST(emptying_unmaps_aliases) {
  alloc_open("moving_pages:True", GIB);
  holes h = make_holes(NULL);
  void *p = get(72 * MIB, NULL);
  assert_true(alias_count() > 0);
  empty_cache(); /* pages that are in use stay, with their aliases */
  assert_true(reserved() >= 76 * (int64_t)MIB && reserved() < 80 * (int64_t)MIB);
  put(p);
  empty_cache();
  assert_int_equal(reserved(), 4 * (int64_t)MIB);
  assert_int_equal(soft_census().device_bytes, 4 * MIB);
  assert_int_equal(alias_count(), 0);
  assert_int_equal(stats_of(0).moving_aliases, 0);
  end_holes(&h);
  empty_cache();
  assert_int_equal(soft_census().reservations, 0);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* All pages of a stream have moved to another: its address space is given back too. */
TEST(emptying_frees_address_space_without_pages) {
  alloc_open("moving_pages:True", GIB);
  weir_cu_stream one = work_stream(), other = work_stream();
  put(get(40 * MIB, one));
  void *p = get(40 * MIB, other);
  assert_int_equal(reserved(), 40 * (int64_t)MIB);
  assert_int_equal(soft_census().reservations, 2);
  empty_cache();
  assert_int_equal(soft_census().reservations, 1);
  put(p);
  empty_cache();
  assert_int_equal(soft_census().reservations, 0);
  alloc_close();
}

/* ---- Limits ---- */

TEST(moved_pages_do_not_count_against_the_limit) {
  alloc_open("moving_pages:True", GIB);
  assert_ok(weir_allocator_set_limit(allocator, 0, 84 * MIB));
  holes h = make_holes(NULL);
  void *p = get(72 * MIB, NULL), *q;
  assert_int_equal(stats_of(0).num_alloc_retries, 0);
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(20 * MIB, NULL, &q)); /* what is left is less, at any address */
  put(p);
  p = get(80 * MIB, NULL);
  put(p);
  end_holes(&h);
  put(get(84 * MIB, NULL));
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(85 * MIB, NULL, &q));
  alloc_close();
}

/* Pages that cannot move are released before a request fails: those of another stream that is busy at first. */
/* A request is rejected only if pages would have to be made beyond the fraction. */
TEST(rejection) {
  alloc_open("moving_pages:True,throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.125", GIB);
  holes h = make_holes(NULL); /* 84 of 128 MiB */
  void *p = get(72 * MIB, NULL), *q;
  put(p);
  assert_error_says(OUT_OF_MEMORY, "preemptively rejected", weir_allocator_alloc(allocator, 0, 140 * MIB, NULL, &q));
  assert_int_equal(stats_of(0).num_oom_rejections, 1);
  end_holes(&h);
  alloc_close();
}

TEST(release_and_retry) {
  alloc_open("moving_pages:True", GIB);
  assert_ok(weir_allocator_set_limit(allocator, 0, 100 * MIB));
  weir_cu_stream busy = work_stream(), mine = work_stream();
  void *p = get(60 * MIB, busy);
  fill(p, 1, 60 * MIB, busy);
  put(p);
  p = get(60 * MIB, mine);
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  assert_true(waiting_calls() > 0);
  assert_true(reserved() <= 100 * (int64_t)MIB);
  put(p);
  alloc_close();
}

static void *to_free;

static int free_one(void *context, int device) {
  (void)context, (void)device;
  assert_ok(weir_allocator_free(allocator, to_free));
  to_free = NULL;
  return 1;
}

static int ooms;
static void count_oom(void *context, const weir_shortage *shortage) {
  (void)context, (void)shortage;
  ooms++;
}

/* Memory that a callback frees moves at once. */
TEST(callbacks_and_observers) {
  alloc_open("moving_pages:True", GIB);
  assert_ok(weir_allocator_set_limit(allocator, 0, 84 * MIB));
  void *a = get(40 * MIB, NULL), *kept = get(4 * MIB, NULL), *q;
  to_free = get(40 * MIB, NULL);
  put(a);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = free_one)));
  void *p = get(80 * MIB, NULL);
  assert_null(to_free);
  assert_int_equal(reserved(), 84 * (int64_t)MIB);
  put(p);
  to_free = kept;
  ooms = 0;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = count_oom)));
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(90 * MIB, NULL, &q));
  assert_int_equal(ooms, 1);
  alloc_close();
}

/* The device, not a limit, is full. */
TEST(full_device) {
  alloc_open("moving_pages:True", 128 * MIB);
  void *p[16], *q;
  for (int i = 0; i < 16; i++)
    p[i] = get(8 * MIB, NULL);
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(2 * MIB, NULL, &q));
  for (int i = 0; i < 16; i += 2)
    put(p[i]);
  unsigned long made = calls(WEIR_CALL_MemCreate);
  q = get(64 * MIB, NULL);
  assert_int_equal(calls(WEIR_CALL_MemCreate), made);
  put(q);
  for (int i = 1; i < 16; i += 2)
    put(p[i]);
  put(get(128 * MIB, NULL));
  alloc_close();
}

/* ---- With other settings ---- */

/* A free block that max_split_size keeps from a small request lies before the unmapped address space. */
TEST(with_max_split_size) {
  alloc_open("moving_pages:True,max_split_size_mb:40", GIB);
  void *large = get(100 * MIB, NULL);
  put(large);
  void *p = get(10 * MIB, NULL), *q = get(30 * MIB, NULL), *r = get(60 * MIB, NULL);
  assert_true(reserved() <= 200 * (int64_t)MIB);
  put(p);
  put(q);
  put(r);
  put(get(100 * MIB, NULL));
  alloc_close();
}

TEST(with_collection) {
  alloc_open("moving_pages:True,garbage_collection_threshold:0.5", GIB);
  assert_ok(weir_allocator_set_limit(allocator, 0, 100 * MIB));
  holes h = make_holes(NULL);
  put(get(72 * MIB, NULL));
  put(get(96 * MIB - 8 * MIB, NULL));
  end_holes(&h);
  put(get(96 * MIB, NULL));
  alloc_close();
}

/* An address range that is smaller than the request and the largest movable page together. */
TEST(small_reservations) {
  alloc_open("moving_pages:True,expandable_segments_reserve:0.25", GIB);
  holes h = make_holes(NULL);
  unsigned long before = soft_census().reservations;
  void *p = get(256 * MIB, NULL), *q;
  assert_true(soft_census().reservations <= before + 1);
  for (int i = 0; i < 5; i++)
    assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(261 * MIB, NULL, &q));
  assert_true(soft_census().reservations <= before + 1);
  put(p);
  end_holes(&h);
  alloc_close();
}

/* Requests that fail do not use up address space. */
TEST(failures_use_no_address_space) {
  alloc_open("moving_pages:True", 256 * MIB);
  void *p = get(100 * MIB, NULL), *q;
  for (int i = 0; i < 10; i++) {
    assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(200 * MIB, NULL, &q));
    assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(280 * MIB, NULL, &q));
  }
  assert_true(soft_census().reservations <= 2);
  put(p);
  alloc_close();
}

/* The setting changes at run time. */
TEST(turned_off_and_on) {
  alloc_open("moving_pages:True", GIB);
  holes h = make_holes(NULL);
  void *p = get(72 * MIB, NULL);
  int64_t moved = stats_of(0).moving_pages_moved, before = reserved();
  put(p);
  configure("moving_pages:False"); /* still expandable */
  p = get(120 * MIB, NULL);
  assert_int_equal(stats_of(0).moving_pages_moved, moved);
  assert_true(reserved() > before);
  void *q = get(30 * MIB, NULL); /* free blocks still serve */
  put(p);
  put(q);
  configure("moving_pages:True");
  before = reserved();
  p = get(82 * MIB, NULL); /* pages of segments that grew without moving stay */
  put(p);
  configure("expandable_segments:False");
  p = get(30 * MIB, NULL);
  assert_int_equal(segments(), 1);
  assert_true(reserved() > before);
  put(p);
  end_holes(&h);
  empty_cache();
  assert_int_equal(reserved(), 0);
  assert_int_equal(alias_count(), 0);
  configure("moving_pages:True");
  h = make_holes(NULL);
  before = reserved();
  put(get(72 * MIB, NULL));
  assert_int_equal(reserved(), before);
  end_holes(&h);
  alloc_close();
}

/* Memory of expandable segments whose pages stay serves requests, and never moves. */
TEST(turned_on_later) {
  alloc_open("expandable_segments:True", GIB);
  holes h = make_holes(NULL);
  configure("moving_pages:True");
  int64_t before = reserved();
  void *p = get(30 * MIB, NULL);
  assert_int_equal(reserved(), before);
  void *q = get(72 * MIB, NULL);
  assert_int_equal(stats_of(0).moving_pages_moved, 0);
  assert_true(reserved() > before);
  put(p);
  put(q);
  end_holes(&h);
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* ---- Devices and processes ---- */

TEST(several_devices) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "moving_pages:True");
  void *p[2][3];
  for (int i = 0; i < 2; i++) {
    p[i][0] = get_on(i, 40 * MIB, NULL);
    p[i][1] = get_on(i, 2 * MIB, NULL);
    p[i][2] = get_on(i, 40 * MIB, NULL);
    void *end = get_on(i, 2 * MIB, NULL);
    put(p[i][0]);
    put(p[i][2]);
    p[i][2] = end;
  }
  for (int i = 0; i < 2; i++) {
    p[i][0] = get_on(i, 72 * MIB, NULL);
    assert_int_equal(stats_of(i).reserved_bytes[WEIR_STAT_ALL].current, 84 * (int64_t)MIB);
    assert_true(stats_of(i).moving_pages_moved > 0);
    assert_int_equal(stats_of(1 - i).moving_pages_moved > 0, i == 1);
  }
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 3; k++)
      put(p[i][k]);
  alloc_close();
}
