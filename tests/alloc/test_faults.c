/*
 * Each driver call of the allocator fails once. Afterwards the allocator is valid, its segments account for the memory
 * of the device, the next allocation succeeds, and at the end no memory is leaked.
 *
 * A scenario runs once to count its calls, and then once for each call on a fresh device.
 */
#include <stdio.h>
#include <string.h>

#include "support/alloc.h"
#include "support/length.h"
#include "support/valid.h"

typedef struct scenario {
  const char *conf;
  int devices;
  void (*prepare)(void); /* without faults; may be NULL */
  void (*act)(void);     /* a driver call fails here */
  bool is_long;          /* each call fails with one code instead of with each */
} scenario;

/* ---- Functions for scenarios ---- */

static weir_cu_stream mine, other, third;

static void *take(size_t bytes, weir_cu_stream stream) { return get_live(0, bytes, stream); }

/* A call that may fail. */
static void may_fail(weir_status status) { (void)status; }

/* ---- The sweep ---- */

static void open(const scenario *s) {
  alloc_open_on(WEIR_SOFT_STEPPED, s->devices ? s->devices : 1, GIB, s->conf);
  mine = work_stream();
  other = work_stream();
  third = work_stream();
  if (s->prepare)
    s->prepare();
}

static void check_recovery(void) {
  assert_ok(weir_fault_clear(faults));
  assert_valid();
  weir_cu_stream streams[] = {mine, other, NULL};
  for (int i = 0; i < 3; i++) {
    put(get(512, streams[i]));
    put(get(3 * MIB, streams[i]));
    put(get(45 * MIB, streams[i]));
  }
  put_all_live();
  soft_step_all();
  empty_cache();
  assert_int_equal(soft_census().device_bytes, 0);
  assert_int_equal(soft_census().handles, 0);
  assert_int_equal(soft_census().reservations, 0);
  for (int i = 0; i < allocator->heap_count; i++) {
    assert_int_equal(stats_of(i).reserved_bytes[WEIR_STAT_ALL].current, 0);
    assert_int_equal(stats_of(i).active[WEIR_STAT_ALL].current, 0);
  }
  alloc_close();
}

/* The number of calls of a kind, and how many of them failed. */
static unsigned long made(weir_driver_call call, unsigned long *failed) {
  unsigned long calls = 0, faulty = 0;
  assert_ok(weir_fault_counts(faults, call, &calls, &faulty));
  if (failed)
    *failed = faulty;
  return calls;
}

static struct {
  weir_driver_call call;
  unsigned long nth;
  weir_cu_result result;
} under_way; /* printed when a test fails */

static int say_what(void **state) {
  if (allocator && under_way.nth)
    print_error("call %lu of %s failed with %d\n", under_way.nth, weir_driver_call_name(under_way.call),
                under_way.result);
  under_way.nth = 0;
  return alloc_teardown(state);
}

FIXTURE(.teardown = say_what)

static void fail_call(weir_driver_call call, unsigned long nth, weir_cu_result result) {
  under_way.call = call;
  under_way.nth = nth;
  under_way.result = result;
  assert_ok(weir_fault_nth(faults, call, nth, result, 0));
}

static void run_with(const scenario *s, weir_driver_call call, unsigned long nth, weir_cu_result result) {
  unsigned long failed = 0;
  open(s);
  fail_call(call, nth, result);
  s->act();
  made(call, &failed);
  if (failed != 1) {
    print_error("call %lu of %s was not made to fail\n", nth, weir_driver_call_name(call));
    fail();
  }
  check_recovery();
}

/* Counts the calls of each kind in the scenario; a fault may be set already. */
static void count_calls(const scenario *s, unsigned long count[WEIR_CALL_COUNT]) {
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    count[c] = made(c, NULL);
  s->act();
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    count[c] = made(c, NULL) - count[c];
}

static void sweep(const scenario *s) {
  static const weir_cu_result results[] = {WEIR_CU_OUT_OF_MEMORY, WEIR_CU_UNKNOWN};
  unsigned long count[WEIR_CALL_COUNT], total = 0;
  open(s);
  count_calls(s, count);
  check_recovery();
  for (size_t r = 0; r < WEIR_COUNT_OF(results); r++)
    for (int c = 0; c < WEIR_CALL_COUNT; c++)
      for (unsigned long nth = 1; nth <= count[c]; nth++, total++)
        if (!s->is_long || nth % 2 == r)
          run_with(s, c, nth, results[r]);
  assert_true(total > 0);
}

/* Calls that undo others, and calls that are tried instead. */
static const weir_driver_call second_calls[] = {
    WEIR_CALL_MemUnmap,          WEIR_CALL_MemRelease,     WEIR_CALL_MemAddressFree, WEIR_CALL_MemFree,
    WEIR_CALL_StreamSynchronize, WEIR_CALL_CtxSynchronize, WEIR_CALL_CtxSetCurrent,  WEIR_CALL_MemGetInfo};

/* Each call fails, together with each of the calls that handle its failure. Pages that could not be unmapped stay until
 * their address range is needed again, so only the walker is checked at once; at the end everything is released. */
static void sweep_pairs(const scenario *s) {
  unsigned long count[WEIR_CALL_COUNT], then[WEIR_CALL_COUNT], total = 0;
  open(s);
  count_calls(s, count);
  check_recovery();
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    for (unsigned long nth = 1; nth <= count[c]; nth++) {
      open(s);
      fail_call(c, nth, WEIR_CU_OUT_OF_MEMORY);
      count_calls(s, then);
      check_recovery();
      for (size_t k = 0; k < WEIR_COUNT_OF(second_calls); k++)
        for (unsigned long second = 1; second <= then[second_calls[k]] && (int)second_calls[k] != c;
             second++, total++) {
          open(s);
          assert_ok(weir_fault_nth(faults, second_calls[k], second, WEIR_CU_UNKNOWN, 0));
          fail_call(c, nth, WEIR_CU_OUT_OF_MEMORY);
          s->act();
          assert_ok(weir_fault_clear(faults));
          assert_true(weir__allocator_is_valid(allocator));
          void *p = NULL;
          assert_ok(weir_allocator_alloc(allocator, 0, 60 * MIB, mine, &p));
          assert_ok(weir_allocator_free(allocator, p));
          while (live_block_count)
            assert_ok(weir_allocator_free(allocator, live_blocks[--live_block_count]));
          soft_step_all();
          assert_ok(weir_allocator_empty_cache(allocator));
          assert_true(weir__allocator_is_valid(allocator));
          weir_allocator_destroy(allocator);
          allocator = NULL;
          alloc_close(); /* checks for leaks */
        }
    }
  assert_true(total > 0);
}

/* ---- Fixed segments ---- */

static void first_allocations(void) {
  take(512, mine);
  take(3 * MIB, mine);
  take(30 * MIB, other);
  take(30 * MIB, NULL);
}

TEST(first_allocations) {
  sweep(&(scenario){.act = first_allocations});
  sweep(&(scenario){.act = first_allocations, .conf = "release_lock_on_cudamalloc:True"});
  sweep(&(scenario){.act = first_allocations, .conf = "expandable_segments:True"});
}

static void cache_some(void) {
  void *p[] = {get(512, mine), get(3 * MIB, mine), get(30 * MIB, other), get(30 * MIB, NULL), get(70 * MIB, mine)};
  take(2 * MIB, mine);
  take(512, other);
  for (size_t i = 0; i < WEIR_COUNT_OF(p); i++)
    put(p[i]);
}

static void empty(void) { may_fail(weir_allocator_empty_cache(allocator)); }

TEST(emptying) {
  sweep(&(scenario){.prepare = cache_some, .act = empty});
  sweep(&(scenario){.prepare = cache_some, .act = empty, .conf = "expandable_segments:True"});
}

/* ---- Expandable segments ---- */

static void make_holes(void) {
  void *page[5];
  for (int i = 0; i < 5; i++)
    page[i] = get(20 * MIB, mine);
  put(page[0]);
  put(page[2]);
  empty_cache();
  put(page[1]);
  keep_live(page[3]);
  keep_live(page[4]);
  assert_layout(page[1], "20M- 20M 20M- 20M* 20M* 1060M-");
}

static void take_the_run(void) { take(60 * MIB, mine); }

TEST(growing_over_holes) {
  sweep(&(scenario){.prepare = make_holes, .act = take_the_run, .conf = "expandable_segments:True"});
}

static void grow_and_shrink(void) {
  void *a = take(50 * MIB, mine), *b = take(50 * MIB, mine), *c = take(500 * KIB, mine);
  put_live(b);
  empty();
  void *e = take(90 * MIB, mine);
  put_live(a);
  put_live(c);
  empty();
  take(30 * MIB, mine);
  put_live(e);
}

TEST(growing_and_shrinking) { sweep(&(scenario){.act = grow_and_shrink, .conf = "expandable_segments:True"}); }

/* ---- Out of memory ---- */

static void fill_other_stream(void) {
  put(get(600 * MIB, other));
  take(2 * MIB, other);
}

static void take_600(void) { take(600 * MIB, mine); }

TEST(releasing_and_retrying) {
  sweep(&(scenario){.prepare = fill_other_stream, .act = take_600});
  sweep(&(scenario){.prepare = fill_other_stream, .act = take_600, .conf = "expandable_segments:True"});
}

static void fill_oversize(void) {
  void *p[] = {get(100 * MIB, mine), get(90 * MIB, mine), get(80 * MIB, mine)};
  take(GIB - 270 * MIB, other);
  for (int i = 0; i < 3; i++)
    put(p[i]);
}

static void take_180(void) { take(180 * MIB, mine); }

TEST(releasing_oversize) {
  sweep(&(scenario){.prepare = fill_oversize, .act = take_180, .conf = "max_split_size_mb:40"});
}

static void fill_for_collection(void) {
  void *p[] = {get(100 * MIB, mine), get(110 * MIB, mine), get(120 * MIB, mine)};
  assert_ok(weir_allocator_set_fraction(allocator, 0, 1));
  for (int i = 0; i < 3; i++)
    put(p[i]);
}

TEST(collecting) {
  sweep(&(scenario){.prepare = fill_for_collection, .act = take_180, .conf = "garbage_collection_threshold:0.1"});
}

static void take_too_much(void) {
  assert_null(take(2 * GIB, mine));
  take(10 * MIB, mine);
}

TEST(out_of_memory) {
  sweep(&(scenario){.prepare = cache_some, .act = take_too_much});
  sweep(&(scenario){.prepare = cache_some, .act = take_too_much, .conf = "expandable_segments:True"});
}

/* ---- Other streams ---- */

static void *shared_block;

static void use_on_three_streams(void) {
  shared_block = take(512, mine);
  forget_live(shared_block);
  assert_ok(weir_allocator_record_stream(allocator, shared_block, other));
  assert_ok(weir_allocator_record_stream(allocator, shared_block, third));
}

/* Whatever fails, the block is not reused while one of the streams has work that uses it. */
static void free_and_take(void) {
  work(other);
  work(third);
  assert_ok(weir_allocator_free(allocator, shared_block));
  for (int i = 0; i < 4; i++) {
    void *p = take(512, mine);
    if (p == shared_block) {
      assert_int_equal(soft_pending(other), 0);
      assert_int_equal(soft_pending(third), 0);
    }
    if (i == 1)
      soft_step(other, 2);
    if (i == 2)
      soft_step(third, 2);
  }
}

TEST(events) {
  sweep(&(scenario){.prepare = use_on_three_streams, .act = free_and_take});
  sweep(&(scenario){.prepare = use_on_three_streams, .act = free_and_take, .conf = "expandable_segments:True"});
}

static void free_and_empty(void) {
  work(other);
  work(third);
  assert_ok(weir_allocator_free(allocator, shared_block));
  empty();
  if (soft_pending(other) || soft_pending(third)) /* the block could not be released then */
    assert_int_equal(stats_of(0).active[WEIR_STAT_ALL].current, 1);
}

TEST(waiting_for_events) { sweep(&(scenario){.prepare = use_on_three_streams, .act = free_and_empty}); }

/* ---- Pools ---- */

static const weir_pool_id pool = {0, 31};

static void use_a_pool(void) {
  assert_ok(weir_pool_begin(allocator, 0, pool, NULL, NULL));
  void *a = take(3 * MIB, mine), *b = take(45 * MIB, mine);
  assert_ok(weir_pool_end(allocator, 0, pool));
  put_live(b);
  assert_ok(weir_pool_release(allocator, 0, pool));
  empty();
  put_live(a);
  may_fail(weir_allocator_empty_pool(allocator, pool));
}

TEST(pools) {
  sweep(&(scenario){.act = use_a_pool});
  sweep(&(scenario){.act = use_a_pool, .conf = "expandable_segments:True"});
}

/* A capture changes which calls are allowed and which are deferred. The runtime has a separate table without faults. */
static void use_in_a_capture(void) {
  weir_stream stream = new_stream(0);
  weir_cu_stream raw = raw_of(stream);
  weir_graph *graph = NULL;
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  void *a = take(3 * MIB, raw), *b = take(45 * MIB, other);
  if (a) {
    assert_ok(weir_fill_async(a, 1, 512, stream));
    assert_ok(weir_allocator_record_stream(allocator, a, third));
  }
  put_live(a);
  put_live(b);
  empty();
  assert_ok(weir_fill_async((void *)shared_block, 1, 512, stream));
  assert_ok(weir_graph_end_capture(graph)); /* the capture is still valid */
  take(512, raw);
  weir_graph_destroy(graph);
}

static void prepare_capture(void) {
  shared_block = get(512, mine);
  keep_live(shared_block);
  assert_ok(weir_use_driver(d));
  assert_ok(weir_init());
  assert_ok(weir_graph_use_allocator(allocator));
}

static void end_capture(void) {
  soft_step_all();
  assert_ok(weir_graph_use_allocator(NULL));
  assert_ok(weir_stream_set_current(default_stream(0)));
  assert_ok(weir_shutdown());
  assert_ok(weir_use_driver(NULL));
}

static void capture_and_end(void) {
  use_in_a_capture();
  end_capture();
}

/* A stream joins the capture and is joined back: blocks that it used are reused within the capture. */
static void fork_in_a_capture(void) {
  weir_stream first = new_stream(0), second = new_stream(0);
  weir_graph *graph = NULL;
  assert_ok(weir_stream_set_current(first));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  void *a = take(3 * MIB, raw_of(first));
  assert_ok(weir_stream_wait_stream(second, first));
  if (a) {
    assert_ok(weir_fill_async(a, 1, 512, second));
    assert_ok(weir_allocator_record_stream(allocator, a, raw_of(second)));
  }
  put_live(a);
  take(3 * MIB, raw_of(first));
  assert_ok(weir_stream_wait_stream(first, second));
  void *b = take(3 * MIB, raw_of(first)), *c = take(45 * MIB, raw_of(second));
  put_live(b);
  put_live(c);
  assert_ok(weir_fill_async((void *)shared_block, 1, 512, first));
  assert_ok(weir_graph_end_capture(graph));
  take(512, raw_of(first));
  weir_graph_destroy(graph);
}

static void fork_and_end(void) {
  fork_in_a_capture();
  end_capture();
}

TEST(captures_that_reuse) {
  static const char conf[] = "graph_capture_record_stream_reuse:True";
  sweep(&(scenario){.prepare = prepare_capture, .act = fork_and_end, .conf = conf});
  sweep(&(scenario){.prepare = prepare_capture, .act = fork_and_end});
}

TEST(captures) {
  sweep(&(scenario){.prepare = prepare_capture, .act = capture_and_end});
  sweep(&(scenario){.prepare = prepare_capture, .act = capture_and_end, .conf = "expandable_segments:True"});
}

/* ---- Other calls ---- */

static void use_without_cache(void) {
  assert_ok(weir_allocator_set_caching(allocator, 0));
  void *a = take(512, mine);
  take(30 * MIB, mine);
  put_live(a);
  assert_ok(weir_allocator_set_caching(allocator, 1));
}

TEST(uncached) { sweep(&(scenario){.act = use_without_cache}); }

static void use_two_devices(void) {
  get_live(0, 50 * MIB, NULL);
  may_fail(weir_allocator_enable_peer_access(allocator, 0, 1));
  void *a = get_live(0, 50 * MIB, NULL), *b = get_live(1, 50 * MIB, NULL);
  if (a && b)
    may_fail(weir_allocator_copy_async(allocator, b, 1, a, 0, MIB, NULL, 0));
  soft_step_all();
  size_t largest;
  may_fail(weir_allocator_largest_block(allocator, 1, &largest));
}

TEST(devices) {
  sweep(&(scenario){.act = use_two_devices, .devices = 2});
  sweep(&(scenario){.act = use_two_devices, .devices = 2, .conf = "expandable_segments:True"});
}

/* Peer access is enabled before and after the memory is allocated. */
static void share_and_grow(void) {
  get_live(0, 30 * MIB, mine);
  get_live(0, 512, mine);
  may_fail(weir_allocator_enable_peer_access(allocator, 0, 1));
  may_fail(weir_allocator_enable_peer_access(allocator, 0, 1));
  void *a = get_live(0, 70 * MIB, mine), *b = get_live(1, 512, NULL);
  if (a && b) {
    may_fail(weir_allocator_copy_async(allocator, b, 1, a, 0, 512, mine, 1));
    may_fail(weir_allocator_copy_async(allocator, a, 0, b, 1, 512, mine, 0));
    may_fail(weir_allocator_copy_async(allocator, a, 0, (char *)a + MIB, 0, 512, mine, 0));
  }
  soft_step_all();
  put_live(a);
  empty();
}

TEST(peers) {
  sweep(&(scenario){.act = share_and_grow, .devices = 2});
  sweep(&(scenario){.act = share_and_grow, .devices = 2, .conf = "expandable_segments:True"});
}

/* ---- Checkpoints ---- */

/* A refused restore changes nothing; a successful one restores exactly the live blocks of the checkpoint. */
static void checkpoint_and_restore(void) {
  weir_checkpoint *checkpoint = NULL;
  weir_checkpoint_delta delta = {.size = sizeof delta};
  assert_ok(weir_pool_begin(allocator, 0, pool, NULL, NULL));
  void *a = take(3 * MIB, mine), *b = take(45 * MIB, mine);
  take(512, other);
  weir_status status = weir_pool_checkpoint(allocator, 0, pool, &checkpoint);
  put_live(a);
  take(12 * MIB, mine);
  put_live(b);
  take(90 * MIB, mine);
  empty();
  if (!status && !weir_pool_restore(allocator, checkpoint, &delta)) {
    for (size_t i = 0; i < delta.freed_count; i++) {
      forget_live(delta.freed[i]);
    }
    for (size_t i = 0; i < delta.allocated_count; i++)
      keep_live(delta.allocated[i]);
  }
  assert_valid();
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  take(512, mine);
  assert_ok(weir_pool_end(allocator, 0, pool));
  assert_ok(weir_pool_release(allocator, 0, pool));
}

TEST(checkpoints) {
  sweep(&(scenario){.act = checkpoint_and_restore});
  sweep(&(scenario){.act = checkpoint_and_restore, .conf = "expandable_segments:True"});
}

/* ---- A mixture of all calls, in a program that ignores failures ---- */

static uint64_t mixture;

static void mix(void) {
  weir_cu_stream streams[] = {mine, other, third, NULL};
  const weir_pool_id pools[] = {{0, 31}, {0, 32}};
  bool is_open[2] = {false, false};
  soft_seed(mixture);
  for (int i = 0; i < 90; i++) {
    weir_cu_stream stream = streams[soft_random(4)];
    uint64_t what = soft_random(100), k = soft_random(2);
    void *p = live_block_count ? live_blocks[soft_random((uint64_t)live_block_count)] : NULL;
    if (what < 40 && live_block_count < MAX_LIVE_BLOCKS - 1)
      take(soft_random(2) ? 1 + soft_random(MIB) : MIB + soft_random(60 * MIB), stream);
    else if (what < 65)
      put_live(p);
    else if (what < 75 && p) {
      may_fail(weir_allocator_record_stream(allocator, p, stream));
      work(stream);
    } else if (what < 80)
      soft_step(stream, 3);
    else if (what < 84)
      empty();
    else if (what < 88)
      configure(soft_random(2) ? "expandable_segments:True" : "expandable_segments:False");
    else if (what < 91)
      assert_ok(weir_allocator_set_fraction(allocator, 0, 0.2 + (double)soft_random(8) / 10));
    else if (what < 93)
      configure(soft_random(2) ? "max_split_size_mb:30,garbage_collection_threshold:0.3" : "max_split_size_mb:default");
    else {
      if (is_open[k]) {
        assert_ok(weir_pool_end(allocator, 0, pools[k]));
        assert_ok(weir_pool_release(allocator, 0, pools[k]));
      } else
        assert_ok(weir_pool_begin(allocator, 0, pools[k], NULL, NULL));
      is_open[k] = !is_open[k];
    }
  }
  for (int k = 0; k < 2; k++)
    if (is_open[k]) {
      assert_ok(weir_pool_end(allocator, 0, pools[k]));
      assert_ok(weir_pool_release(allocator, 0, pools[k]));
    }
  assert_ok(weir_allocator_set_fraction(allocator, 0, 1));
  soft_seed(0);
}

TEST(mixtures) {
  for (mixture = 1; mixture <= (uint64_t)usual_or_long(1, 4); mixture++)
    sweep(&(scenario){.act = mix, .is_long = true});
}

/* From some call on every call fails, as after a kernel has broken the context. Calls fail or work without the driver;
 * none crashes, and the statistics stay correct. */
TEST(broken_device) {
  for (unsigned long nth = 1; nth <= 60; nth += 4) {
    open(&(scenario){.conf = nth % 8 == 1 ? "expandable_segments:True" : ""});
    mixture = nth;
    assert_ok(weir_fault_nth(faults, WEIR_CALL_CtxGetCurrent, nth, WEIR_CU_LAUNCH_FAILED, 1));
    mix();
    assert_true(weir__allocator_is_valid(allocator));
    void *p = NULL;
    if (calls(WEIR_CALL_CtxGetCurrent) >= nth)
      assert_int_not_equal(weir_allocator_alloc(allocator, 0, 900 * MIB, third, &p), WEIR_OK);
    while (live_block_count)
      assert_ok(weir_allocator_free(allocator, live_blocks[--live_block_count]));
    may_fail(weir_allocator_empty_cache(allocator));
    assert_true(weir__allocator_is_valid(allocator));
    weir_allocator_destroy(allocator);
    allocator = NULL;
    alloc_teardown(state);
  }
}

/* ---- Several failures ---- */

TEST(pairs) {
  sweep_pairs(&(scenario){.act = first_allocations, .conf = "expandable_segments:True"});
  sweep_pairs(&(scenario){.prepare = make_holes, .act = take_the_run, .conf = "expandable_segments:True"});
  sweep_pairs(&(scenario){.prepare = use_on_three_streams, .act = free_and_empty});
}

/* A driver that cannot even undo: after a failed mapping the unmap fails too. The address range is cleaned up when it
 * is needed again. */
TEST(second_failure) {
  alloc_open("expandable_segments:True", GIB);
  void *a = get(20 * MIB, NULL), *p = NULL;
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemSetAccess, 1, WEIR_CU_UNKNOWN, 0));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemUnmap, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuMemSetAccess", weir_allocator_alloc(allocator, 0, 60 * MIB, NULL, &p));
  assert_ok(weir_fault_clear(faults));
  void *b = get(60 * MIB, NULL);
  put(a);
  put(b);
  empty_cache();
  assert_int_equal(soft_census().device_bytes, 0);
  alloc_close();
}

/* A failure other than out of memory is reported at once: nothing is emptied, and no out of memory is counted, since
 * freeing memory and retrying would not help. */
TEST(other_failures_are_not_out_of_memory) {
  static const struct {
    const char *conf, *name;
    weir_driver_call call;
  } cases[] = {
      {"", "cuMemAlloc", WEIR_CALL_MemAlloc},
      {"release_lock_on_cudamalloc:True", "cuMemAlloc", WEIR_CALL_MemAlloc},
      {"max_split_size_mb:40", "cuMemAlloc", WEIR_CALL_MemAlloc},
      {"expandable_segments:True", "cuMemAddressReserve", WEIR_CALL_MemAddressReserve},
      {"expandable_segments:True", "cuMemCreate", WEIR_CALL_MemCreate},
      {"expandable_segments:True", "cuMemMap", WEIR_CALL_MemMap},
      {"expandable_segments:True", "cuMemSetAccess", WEIR_CALL_MemSetAccess},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    alloc_open(cases[i].conf, GIB);
    put(get(50 * MIB, NULL));
    int64_t before = reserved();
    void *p = NULL;
    assert_ok(weir_fault_nth(faults, cases[i].call, 1, WEIR_CU_ILLEGAL_ADDRESS, 0));
    assert_error_says(DEVICE_FAULT, cases[i].name, weir_allocator_alloc(allocator, 0, 90 * MIB, work_stream(), &p));
    assert_int_equal(weir_last_driver_result(), WEIR_CU_ILLEGAL_ADDRESS);
    assert_int_equal(stats_of(0).num_ooms, 0);
    assert_int_equal(stats_of(0).num_alloc_retries, 0);
    assert_int_equal(reserved(), before);
    put(get(90 * MIB, NULL));
    alloc_close();
  }
}

/* The last attempt fails for another reason, after an out of memory. */
TEST(other_failure_after_out_of_memory) {
  alloc_open(NULL, GIB);
  void *p = NULL;
  put(get(600 * MIB, NULL));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemAlloc, 2, WEIR_CU_LAUNCH_FAILED, 0));
  assert_error(DEVICE_FAULT, weir_allocator_alloc(allocator, 0, 700 * MIB, NULL, &p));
  assert_int_equal(stats_of(0).num_ooms, 0);
  assert_int_equal(reserved(), 0);
  /* The reverse: a failed release is not reported if there is no memory afterwards. */
  put(get(50 * MIB, NULL));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemFree, 1, WEIR_CU_UNKNOWN, 0));
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 2 * GIB, NULL, &p));
  alloc_close();
}

/* What another thread may do while a request has released the lock: a call of the driver fails. */
static void *fail_elsewhere(void *context, uint64_t bytes, int device, weir_cu_stream stream) {
  weir_status *elsewhere = context;
  (void)bytes, (void)device, (void)stream;
  if (*elsewhere) /* the request is tried again */
    return NULL;
  weir_fault_nth(faults, WEIR_CALL_MemFree, 1, WEIR_CU_UNKNOWN, 0);
  *elsewhere = weir_allocator_empty_cache(allocator);
  return NULL;
}

static void free_nothing(void *context, void *pointer, uint64_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)pointer, (void)bytes, (void)device, (void)stream;
}

/* The failure belongs to the other thread; this one is out of memory. */
TEST(failure_of_another_thread) {
  const weir_pool_id id = {0, 77};
  alloc_open("release_lock_on_cudamalloc:True", GIB);
  put(get(40 * MIB, NULL));
  weir_status elsewhere = WEIR_OK;
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = fail_elsewhere;
  options.free = free_nothing;
  options.context = &elsewhere;
  void *p = NULL;
  assert_ok(weir_pool_create(allocator, 0, id, &options));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 40 * MIB, NULL, &p));
  assert_int_equal(elsewhere, WEIR_ERROR_DRIVER);
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

TEST(failed_release_and_out_of_memory) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open(expandable ? "expandable_segments:True" : NULL, GIB);
    put(get(50 * MIB, NULL));
    int64_t before = reserved();
    assert_ok(
        weir_fault_nth(faults, expandable ? WEIR_CALL_MemUnmap : WEIR_CALL_MemFree, 1, WEIR_CU_ILLEGAL_ADDRESS, 0));
    assert_error_says(DEVICE_FAULT, expandable ? "cuMemUnmap" : "cuMemFree", weir_allocator_empty_cache(allocator));
    assert_int_equal(reserved(), before);
    empty_cache();
    assert_int_equal(reserved(), 0);
    alloc_close();
  }
}

/* Neither the event nor the wait succeeds when the block is freed: it stays in use until one does. */
TEST(no_event_and_no_wait) {
  open(&(scenario){.prepare = use_on_three_streams});
  work(other);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_EventRecord, 1, WEIR_CU_UNKNOWN, 0));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_StreamSynchronize, 1, WEIR_CU_UNKNOWN, 0));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_CtxSynchronize, 1, WEIR_CU_UNKNOWN, 0));
  assert_ok(weir_allocator_free(allocator, shared_block));
  assert_ok(weir_fault_clear(faults));
  assert_valid();
  assert_layout(shared_block, "512~ 2096640");
  soft_step_all(); /* the existing event */
  assert_ptr_not_equal(take(512, mine), shared_block);
  soft_step_all(); /* the event that was recorded then */
  assert_ptr_equal(take(512, mine), shared_block);
  check_recovery();
}

/* ---- Creation and destruction ---- */

TEST(creation) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 2, GIB);
  weir_allocator *made_one = NULL;
  assert_ok(weir_fault_nth(faults, WEIR_CALL_DeviceGetCount, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuDeviceGetCount", weir_allocator_create(faults, NULL, &made_one));
  for (unsigned long nth = 1; nth <= 2; nth++) {
    assert_ok(weir_fault_nth(faults, WEIR_CALL_DeviceTotalMem, nth, WEIR_CU_UNKNOWN, 0));
    assert_error_says(DRIVER, "cuDeviceTotalMem", weir_allocator_create(faults, NULL, &made_one));
  }
  assert_null(made_one);
  alloc_close();
}

static void prepare_destruction(void) {
  open(&(scenario){.conf = "expandable_segments:True"});
  take(50 * MIB, mine);
  use_on_three_streams();
  assert_ok(weir_allocator_free(allocator, shared_block));
  configure("expandable_segments:False");
  take(50 * MIB, other);
  take(512, other);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  take(3 * MIB, mine);
}

/* Destruction cannot report a failure. It releases everything that the driver accepts, except the object of the failed
 * call, and leaks nothing of the host's, which the address sanitizer checks. */
TEST(destruction) {
  unsigned long before[WEIR_CALL_COUNT], total = 0;
  prepare_destruction();
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    before[c] = made(c, NULL);
  weir_allocator_destroy(allocator);
  allocator = NULL;
  unsigned long count[WEIR_CALL_COUNT];
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    count[c] = made(c, NULL) - before[c];
  alloc_close(); /* checks for leaks */
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    for (unsigned long nth = 1; nth <= count[c]; nth++, total++) {
      prepare_destruction();
      assert_ok(weir_fault_nth(faults, c, nth, WEIR_CU_UNKNOWN, 0));
      weir_allocator_destroy(allocator);
      allocator = NULL;
      weir_soft_census left = soft_census();
      assert_in_range(left.allocations + left.handles, 0, 1);
      assert_in_range(left.mappings, 0, left.handles);
      assert_in_range(left.reservations, 0, 1);
      assert_in_range(left.events, 0, 1);
      assert_in_range(left.device_bytes, 0, 50 * MIB);
      alloc_teardown(state);
    }
  assert_true(total > 0);
}
