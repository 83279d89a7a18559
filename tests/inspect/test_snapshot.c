/*
 * Taking snapshots: their contents, that they show a single moment, and how long they take.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/recorded.h"
#include "support/alloc.h"
#include "weir/host.h"
#include "weir/snapshot.h"

static const weir_pool_id pool_a = {0, 11}, pool_b = {7, 0};

static weir_snapshot *take(const weir_snapshot_options *options) {
  weir_snapshot *snapshot = NULL;
  assert_ok(weir_snapshot_take(allocator, options, &snapshot));
  return snapshot;
}

static weir_snapshot_options options_of(int device, weir_pool_id pool) {
  weir_snapshot_options options;
  weir_snapshot_options_init(&options);
  options.device = device;
  options.pool = pool;
  return options;
}

static size_t list(const weir_snapshot *snapshot, const weir_snapshot_segment **segments) {
  size_t count = 0;
  assert_ok(weir_snapshot_segments(snapshot, segments, &count));
  return count;
}

/* Blocks cover their segment, segments are ordered and disjoint, and sums equal the values of the blocks. Returns the
 * number of blocks. */
static size_t check_shape(const weir_snapshot *snapshot) {
  const weir_snapshot_segment *s;
  size_t count = list(snapshot, &s), blocks = 0;
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(s[i].size, sizeof *s);
    assert_ptr_equal(weir_snapshot_segment_at(s, i), &s[i]);
    uint64_t at = s[i].address, allocated_sum = 0, active_sum = 0, requested_sum = 0;
    for (size_t k = 0; k < s[i].block_count; k++) {
      const weir_snapshot_block *b = weir_snapshot_block_at(&s[i], k);
      assert_int_equal(b->size, sizeof *b);
      assert_ptr_equal(b, &s[i].blocks[k]);
      assert_int_equal(b->address, at);
      assert_true(b->bytes > 0 && b->requested <= b->bytes);
      if (k && b->state == WEIR_BLOCK_INACTIVE)
        assert_int_not_equal(b[-1].state, WEIR_BLOCK_INACTIVE); /* free neighbours would have merged */
      assert_int_equal(b->requested != 0, b->state != WEIR_BLOCK_INACTIVE);
      at += b->bytes;
      allocated_sum += b->state == WEIR_BLOCK_ACTIVE_ALLOCATED ? b->bytes : 0;
      active_sum += b->state != WEIR_BLOCK_INACTIVE ? b->bytes : 0;
      requested_sum += b->requested;
    }
    assert_int_equal(at, s[i].address + s[i].bytes);
    assert_int_equal(s[i].allocated, allocated_sum);
    assert_int_equal(s[i].active, active_sum);
    assert_int_equal(s[i].requested, requested_sum);
    if (i && s[i].device == s[i - 1].device)
      assert_true(s[i].address >= s[i - 1].address + s[i - 1].bytes);
    else if (i)
      assert_true(s[i].device > s[i - 1].device);
    blocks += s[i].block_count;
  }
  return blocks;
}

/* The sums of a snapshot agree with the counters of the device. */
static void check_sums(int device) {
  weir_snapshot_options options = options_of(device, (weir_pool_id){0, 0});
  weir_snapshot *snapshot = take(&options);
  check_shape(snapshot);
  const weir_snapshot_segment *s;
  size_t count = list(snapshot, &s);
  int64_t bytes = 0, allocated_sum = 0, active_sum = 0, requested_sum = 0, blocks = 0, fixed = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += (int64_t)s[i].bytes;
    allocated_sum += (int64_t)s[i].allocated;
    active_sum += (int64_t)s[i].active;
    requested_sum += (int64_t)s[i].requested;
    fixed += !s[i].is_expandable;
    for (size_t k = 0; k < s[i].block_count; k++)
      blocks += s[i].blocks[k].state != WEIR_BLOCK_INACTIVE;
  }
  weir_allocator_stats stats = stats_of(device);
  assert_int_equal(bytes, stats.reserved_bytes[WEIR_STAT_ALL].current);
  assert_int_equal(allocated_sum, stats.allocated_bytes[WEIR_STAT_ALL].current);
  assert_int_equal(active_sum, stats.active_bytes[WEIR_STAT_ALL].current);
  assert_int_equal(requested_sum, stats.requested_bytes[WEIR_STAT_ALL].current);
  assert_int_equal(blocks, stats.active[WEIR_STAT_ALL].current);
  assert_int_equal(fixed, stats.segment[WEIR_STAT_ALL].current);
  weir_snapshot_destroy(snapshot);
}

static void check_block(const weir_snapshot_segment *segment, size_t k, uint64_t bytes, uint64_t requested,
                        weir_block_state state) {
  assert_true(k < segment->block_count);
  assert_int_equal(segment->blocks[k].bytes, bytes);
  assert_int_equal(segment->blocks[k].requested, requested);
  assert_int_equal(segment->blocks[k].state, state);
}

/* ---- Contents ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(an_allocator_without_memory) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, 64 * MIB, NULL);
  weir_snapshot *snapshot = take(NULL);
  const weir_snapshot_segment *s;
  assert_int_equal(list(snapshot, &s), 0);
  uint64_t count = 1, dropped = 1;
  assert_ok(weir_snapshot_entries(snapshot, 1, &count, &dropped));
  assert_int_equal(count, 0);
  assert_int_equal(dropped, 0);
  weir_snapshot_destroy(snapshot);
  alloc_close();
}

TEST(small_and_large) {
  alloc_open(NULL, 64 * MIB);
  weir_cu_stream stream = work_stream();
  void *small = get(1000, NULL), *large = get(3 * MIB, stream);
  weir_snapshot *snapshot = take(NULL);
  check_shape(snapshot);
  const weir_snapshot_segment *s;
  assert_int_equal(list(snapshot, &s), 2);
  const weir_snapshot_segment *of_small = s[0].address == (uint64_t)small ? &s[0] : &s[1];
  const weir_snapshot_segment *of_large = s[0].address == (uint64_t)small ? &s[1] : &s[0];
  assert_int_equal(of_small->bytes, 2 * MIB);
  assert_int_equal(of_small->is_large, 0);
  assert_null(of_small->stream);
  assert_int_equal(of_small->block_count, 2);
  check_block(of_small, 0, 1024, 1000, WEIR_BLOCK_ACTIVE_ALLOCATED);
  check_block(of_small, 1, 2 * MIB - 1024, 0, WEIR_BLOCK_INACTIVE);
  assert_int_equal(of_large->address, (uint64_t)large);
  assert_int_equal(of_large->bytes, 20 * MIB);
  assert_int_equal(of_large->is_large, 1);
  assert_ptr_equal(of_large->stream, stream);
  assert_int_equal(of_large->is_expandable, 0);
  assert_int_equal(of_large->pool.first | of_large->pool.second, 0);
  check_block(of_large, 0, 3 * MIB, 3 * MIB, WEIR_BLOCK_ACTIVE_ALLOCATED);
  put(small);
  put(large);
  check_block(of_small, 0, 1024, 1000, WEIR_BLOCK_ACTIVE_ALLOCATED); /* it is a copy */
  weir_snapshot_destroy(snapshot);
  alloc_close();
}

/* A block that was freed without waiting keeps its size for the next request; a snapshot shows it as free. */
TEST(a_block_that_was_just_freed) {
  alloc_open(NULL, 64 * MIB);
  void *p = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, 512, NULL, &p));
  assert_ok(weir_allocator_free(allocator, p));
  assert_ok(weir_allocator_alloc(allocator, 0, 512, NULL, &p));
  assert_ok(weir_allocator_free(allocator, p));
  weir_snapshot *snapshot = take(NULL);
  const weir_snapshot_segment *s;
  assert_int_equal(list(snapshot, &s), 1);
  assert_int_equal(s->block_count, 1);
  check_block(s, 0, 2 * MIB, 0, WEIR_BLOCK_INACTIVE);
  weir_snapshot_destroy(snapshot);
  alloc_close();
}

TEST(a_block_that_waits) {
  alloc_open(NULL, 64 * MIB);
  weir_cu_stream other = work_stream();
  void *p = get(700, NULL);
  work(other);
  also_used_by(p, other);
  put(p);
  weir_snapshot *snapshot = take(NULL);
  check_shape(snapshot);
  const weir_snapshot_segment *s;
  assert_int_equal(list(snapshot, &s), 1);
  check_block(s, 0, 1024, 700, WEIR_BLOCK_ACTIVE_PENDING_FREE);
  assert_int_equal(s->allocated, 0);
  assert_int_equal(s->active, 1024);
  assert_int_equal(s->requested, 700);
  weir_snapshot_destroy(snapshot);
  check_sums(0);
  soft_step_all();
  alloc_close();
}

/* Each run of mapped pages is a segment; address space that is only reserved is not. */
TEST(expandable_segments) {
  alloc_open("expandable_segments:True", GIB);
  void *low = get(40 * MIB, NULL), *middle = get(60 * MIB, NULL), *high = get(30 * MIB, NULL);
  weir_snapshot *snapshot = take(NULL);
  const weir_snapshot_segment *s;
  check_shape(snapshot);
  assert_int_equal(list(snapshot, &s), 1);
  assert_int_equal(s->is_expandable, 1);
  assert_int_equal(s->address, (uint64_t)low);
  assert_int_equal(s->bytes, 140 * MIB); /* pages of 20 MiB */
  assert_int_equal(s->block_count, 4);
  weir_snapshot_destroy(snapshot);

  put(middle);
  empty_cache();
  snapshot = take(NULL);
  check_shape(snapshot);
  assert_int_equal(list(snapshot, &s), 2);
  assert_int_equal(s[0].address, (uint64_t)low);
  assert_int_equal(s[0].bytes, 40 * MIB);
  assert_int_equal(s[1].address, (uint64_t)high);
  assert_int_equal(s[1].bytes, 40 * MIB); /* whole pages */
  weir_snapshot_destroy(snapshot);
  check_sums(0);
  put(low);
  put(high);
  empty_cache();
  check_sums(0);
  alloc_close();
}

TEST(pools) {
  alloc_open(NULL, 256 * MIB);
  void *outside = get(512, NULL);
  assert_ok(weir_pool_begin(allocator, 0, pool_a, NULL, NULL));
  void *inside = get(512, NULL), *more = get(5 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, pool_a));
  const weir_snapshot_segment *s;
  weir_snapshot *snapshot = take(NULL);
  assert_int_equal(list(snapshot, &s), 3);
  check_shape(snapshot);
  weir_snapshot_destroy(snapshot);
  check_sums(0);

  weir_snapshot_options options = options_of(-1, pool_a);
  snapshot = take(&options);
  assert_int_equal(list(snapshot, &s), 2);
  for (int i = 0; i < 2; i++) {
    assert_true(s[i].address == (uint64_t)inside || s[i].address == (uint64_t)more);
    assert_int_equal(s[i].pool.first, pool_a.first);
    assert_int_equal(s[i].pool.second, pool_a.second);
  }
  weir_snapshot_destroy(snapshot);

  options = options_of(-1, pool_b);
  snapshot = take(&options);
  assert_int_equal(list(snapshot, &s), 0);
  weir_snapshot_destroy(snapshot);
  put(outside);
  put(inside);
  put(more);
  assert_ok(weir_pool_release(allocator, 0, pool_a));
  alloc_close();
}

TEST(devices) {
  alloc_open_on(WEIR_SOFT_STEPPED, 3, 64 * MIB, NULL);
  void *p = get_on(0, 512, NULL), *q = get_on(2, 2 * MIB, NULL);
  const weir_snapshot_segment *s;
  weir_snapshot *snapshot = take(NULL);
  assert_int_equal(list(snapshot, &s), 2);
  assert_int_equal(s[0].device, 0);
  assert_int_equal(s[1].device, 2);
  check_shape(snapshot);
  weir_snapshot_destroy(snapshot);
  for (int i = 0; i < 3; i++)
    check_sums(i);
  weir_snapshot_options options = options_of(2, (weir_pool_id){0, 0});
  snapshot = take(&options);
  assert_int_equal(list(snapshot, &s), 1);
  assert_int_equal(s->device, 2);
  weir_snapshot_destroy(snapshot);
  put(p);
  put(q);
  alloc_close();
}

TEST(random_states) {
  static const char *const confs[] = {"", "expandable_segments:True",
                                      "max_split_size_mb:32,roundup_power2_divisions:4"};
  for (size_t c = 0; c < WEIR_COUNT_OF(confs); c++) {
    alloc_open(confs[c], 4 * GIB);
    soft_seed(c + 1);
    weir_cu_stream streams[3] = {NULL, work_stream(), work_stream()};
    void *live[200] = {0};
    for (int step = 0; step < 2000; step++) {
      size_t at = soft_random(WEIR_COUNT_OF(live));
      if (live[at]) {
        if (soft_random(8) == 0)
          assert_ok(weir_allocator_record_stream(allocator, live[at], streams[soft_random(3)]));
        assert_ok(weir_allocator_free(allocator, live[at]));
        live[at] = NULL;
      } else {
        size_t bytes = 1 + soft_random(soft_random(4) ? 100 * KIB : 30 * MIB);
        assert_ok(weir_allocator_alloc(allocator, 0, bytes, streams[soft_random(3)], &live[at]));
      }
      if (step % 100 == 0)
        check_sums(0);
      if (step % 500 == 499)
        empty_cache();
    }
    for (size_t i = 0; i < WEIR_COUNT_OF(live); i++)
      assert_ok(weir_allocator_free(allocator, live[i]));
    check_sums(0);
    soft_step_all();
    alloc_close();
  }
}

/* ---- One moment ---- */

static int looks, all_locked;

/* Every lock of the device is held. */
static void look_at_locks(int device) {
  weir__heap *heap = &allocator->heaps[device];
  bool locked = pthread_mutex_trylock(&heap->lock) == EBUSY;
  for (const weir__segment *s = heap->segments; s; s = s->next) {
    weir__biased_lock *lock = &s->arena->lock;
    locked = locked && (atomic_load(&lock->word.word) || atomic_load(&weir__this_lock_owner->holds) == lock);
  }
  looks++;
  all_locked += locked;
}

TEST(the_cut_is_at_one_moment) {
  alloc_open(NULL, 64 * MIB);
  void *p = get(512, NULL), *q = get(2 * MIB, work_stream());
  recorded r = {
      .while_copying = look_at_locks, .stacks = (recorded_stack[3]){{0}}, .block_stack = 1, .segment_stack = 2};
  weir__history_source source = recorded_source(&r);
  weir_snapshot *snapshot = NULL;
  assert_ok(weir__snapshot_collect("test", allocator, NULL, &source, &snapshot));
  assert_int_equal(r.cuts, 1);
  assert_int_equal(looks, 3); /* two blocks and the cut */
  assert_int_equal(all_locked, looks);
  assert_int_equal(r.active, 512 + 2 * MIB);
  const weir_snapshot_segment *s;
  assert_int_equal(list(snapshot, &s), 2);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(s[i].stack, 2);
    assert_int_equal(s[i].blocks[0].stack, 1);
    assert_int_equal(s[i].blocks[1].stack, 0); /* it is free */
  }
  weir_snapshot_destroy(snapshot);
  put(p); /* all locks were released */
  put(q);
  alloc_close();
}

/* ---- Time ---- */

TEST(a_hundred_thousand_blocks) {
  enum { BLOCKS = 100000 };
  alloc_open(NULL, 16 * GIB);
  void **live = calloc(BLOCKS, sizeof *live);
  assert_non_null(live);
  for (size_t i = 0; i < BLOCKS; i++)
    assert_ok(weir_allocator_alloc(allocator, 0, 512, NULL, &live[i]));
  for (size_t i = 0; i < BLOCKS; i += 2)
    assert_ok(weir_allocator_free(allocator, live[i]));
  double best = 1e9;
  for (int round = 0; round < 5; round++) {
    double start = soft_milliseconds();
    weir_snapshot *snapshot = take(NULL);
    double took = (soft_milliseconds() - start) / 1e3;
    best = took < best ? took : best;
    assert_true(check_shape(snapshot) >= BLOCKS);
    weir_snapshot_destroy(snapshot);
  }
  printf("a snapshot of %d blocks: %.2f ms\n", BLOCKS, best * 1e3);
  /* Detects a defect, not a slow machine; the limit for optimised builds is in docs/c/snapshots.md. */
  assert_true(best < 1);
  for (size_t i = 1; i < BLOCKS; i += 2)
    assert_ok(weir_allocator_free(allocator, live[i]));
  free(live);
  alloc_close();
}

/* ---- Invalid arguments ---- */

/* ---- Pinned memory ---- */

/* The host segments of a snapshot in JSON, or "" if there are none; freed with free(). */
static char *host_segments(const weir_snapshot *snapshot) {
  char *text = NULL;
  size_t length = 0;
  FILE *file = open_memstream(&text, &length);
  assert_non_null(file);
  assert_ok(weir_snapshot_write(snapshot, WEIR_SNAPSHOT_JSON, weir_write_file, file));
  assert_int_equal(fclose(file), 0);
  char *begin = strstr(text, "\"host_segments\""), *end = strstr(text, "\"host_traces\"");
  assert_true(begin && end && begin < end);
  *end = '\0';
  char *part = strdup(begin);
  free(text);
  assert_non_null(part);
  return part;
}

static size_t occurrences(const char *text, const char *word) {
  size_t count = 0;
  for (; (text = strstr(text, word)); text++)
    count++;
  return count;
}

TEST(pinned_memory) {
  weir_host_allocator *host = NULL;
  void *used = NULL, *cached = NULL, *waiting = NULL;
  alloc_open(NULL, 64 * MIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(""), &host));
  weir_snapshot *snapshot = take(NULL);
  const weir_snapshot_segment *segments;
  size_t before = list(snapshot, &segments);
  assert_error(INVALID_ARGUMENT, weir_snapshot_add_host(NULL, host));
  assert_error(INVALID_ARGUMENT, weir_snapshot_add_host(snapshot, NULL));
  assert_ok(weir_snapshot_add_host(snapshot, host));
  char *text = host_segments(snapshot);
  assert_int_equal(occurrences(text, "\"state\""), 0);
  free(text);

  assert_ok(weir_host_alloc(host, 5000, &used));
  assert_ok(weir_host_alloc(host, 100000, &cached));
  assert_ok(weir_host_alloc(host, 300000, &waiting));
  weir_cu_stream stream = work_stream();
  work(stream);
  assert_ok(weir_host_record_stream(host, waiting, 0, stream));
  assert_ok(weir_host_free(host, waiting));
  assert_ok(weir_host_free(host, cached));
  for (int i = 0; i < 2; i++) { /* the second call replaces the blocks of the first */
    assert_ok(weir_snapshot_add_host(snapshot, host));
    text = host_segments(snapshot);
    assert_int_equal(occurrences(text, "\"state\""), 3);
    assert_int_equal(occurrences(text, "active_allocated"), 1);
    assert_int_equal(occurrences(text, "active_pending_free"), 1);
    assert_int_equal(occurrences(text, "\"inactive\""), 1);
    free(text);
  }
  assert_int_equal(list(snapshot, &segments), before); /* memory of devices is apart */
  weir_snapshot_destroy(snapshot);
  soft_step_all();
  assert_ok(weir_host_free(host, used));
  weir_host_allocator_destroy(host);
  alloc_close();
}

TEST(bad_calls) {
  alloc_open(NULL, 64 * MIB);
  weir_snapshot *snapshot = NULL;
  const weir_snapshot_segment *segments_out;
  size_t count;
  uint64_t events, dropped;
  weir_snapshot_options options = options_of(1, (weir_pool_id){0, 0});
  assert_error(INVALID_ARGUMENT, weir_snapshot_take(NULL, NULL, &snapshot));
  assert_error(INVALID_ARGUMENT, weir_snapshot_take(allocator, NULL, NULL));
  assert_error(INVALID_DEVICE, weir_snapshot_take(allocator, &options, &snapshot));
  options.device = -2;
  assert_error(INVALID_DEVICE, weir_snapshot_take(allocator, &options, &snapshot));
  assert_null(snapshot);
  /* A caller whose struct has no fields. */
  options = (weir_snapshot_options){.size = sizeof options.size, .device = 77};
  assert_ok(weir_snapshot_take(allocator, &options, &snapshot));
  assert_error(INVALID_ARGUMENT, weir_snapshot_segments(NULL, &segments_out, &count));
  assert_error(INVALID_ARGUMENT, weir_snapshot_segments(snapshot, NULL, &count));
  assert_error(INVALID_DEVICE, weir_snapshot_entries(snapshot, 1, &events, &dropped));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entries(snapshot, 0, NULL, &dropped));
  assert_error(INVALID_ARGUMENT, weir_snapshot_write(snapshot, WEIR_SNAPSHOT_JSON, NULL, stdout));
  assert_error(INVALID_ARGUMENT, weir_snapshot_write(NULL, WEIR_SNAPSHOT_JSON, weir_write_file, stdout));
  assert_error_says(INVALID_ARGUMENT, "format 5",
                    weir_snapshot_write(snapshot, (weir_snapshot_format)5, weir_write_file, stdout));
  assert_error(INVALID_ARGUMENT, weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, NULL));
  weir_snapshot_destroy(snapshot);
  weir_snapshot_destroy(NULL);
  alloc_close();
}
