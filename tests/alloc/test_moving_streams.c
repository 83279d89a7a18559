/*
 * Pages that move and streams: when the pages of another stream are taken, and when an old mapping is unmapped. Time is
 * stepped, so that each order of events is certain. The software device reports an unmap of memory that work in a
 * stream still uses, and the end of each test fails if there was one.
 */
#include <string.h>

#include "alloc/moving_fixture.h"
#include "support/length.h"

/* ---- Other streams ---- */

static weir_cu_stream one, other;

/* The pages of a block that was freed while work of `one` uses them. */
static void leave_pages(const char *conf) {
  alloc_open(conf, GIB);
  one = work_stream();
  other = work_stream();
  void *p = get(40 * MIB, one);
  fill(p, 1, 40 * MIB, one);
  put(p);
}

FIXTURE(.teardown = alloc_teardown)

TEST(idle_stream_lends_pages) {
  leave_pages("moving_pages:True");
  soft_step_all();
  void *q = get(40 * MIB, other);
  assert_int_equal(reserved(), 40 * (int64_t)MIB);
  assert_int_equal(waiting_calls(), 0);
  assert_int_equal(calls(WEIR_CALL_StreamWaitEvent), 0);
  put(q);
  alloc_close();
}

TEST(busy_stream_does_not) {
  leave_pages("moving_pages:True");
  void *q = get(40 * MIB, other);
  assert_int_equal(reserved(), 80 * (int64_t)MIB);
  assert_int_equal(stats_of(0).moving_pages_moved, 0);
  assert_int_equal(stats_of(0).moving_unmovable_busy_bytes, 40 * (int64_t)MIB);
  fill(q, 2, 40 * MIB, other);
  soft_step_all();
  assert_fill(q, 2, 40 * MIB);
  put(q);
  alloc_close();
}

/* The stream that gets the pages waits, on the device, for the one that gives them. */
TEST(across_streams_behind_a_wait) {
  leave_pages("moving_pages:True,moving_pages_across_streams:True");
  void *q = get(40 * MIB, other);
  assert_int_equal(reserved(), 40 * (int64_t)MIB);
  assert_int_equal(waiting_calls(), 0);
  assert_true(calls(WEIR_CALL_StreamWaitEvent) > 0);
  fill(q, 2, 40 * MIB, other);
  assert_int_equal(soft_step(other, 10), 0); /* waits */
  soft_step(one, 10);
  soft_step(other, 10);
  assert_fill(q, 2, 40 * MIB);
  put(q);
  alloc_close();
}

/* Later work of the stream that gave the pages does not hold up the other. */
TEST(across_streams_waits_for_earlier_work_only) {
  leave_pages("moving_pages:True,moving_pages_across_streams:True");
  void *q = get(40 * MIB, other);
  work(one);
  fill(q, 2, 40 * MIB, other);
  soft_step(one, 2); /* the fill and the record */
  assert_int_equal(soft_pending(one), 1);
  soft_step(other, 10);
  assert_fill(q, 2, 40 * MIB);
  soft_step_all();
  put(q);
  alloc_close();
}

/* A wait that cannot be made: the pages stay, and new ones are made. */
TEST(across_streams_without_an_event) {
  static const weir_driver_call failing[] = {WEIR_CALL_EventRecord, WEIR_CALL_StreamWaitEvent};
  for (size_t i = 0; i < WEIR_COUNT_OF(failing); i++) {
    leave_pages("moving_pages:True,moving_pages_across_streams:True");
    assert_ok(weir_fault_nth(faults, failing[i], 1, WEIR_CU_UNKNOWN, 0));
    void *q = get(40 * MIB, other);
    assert_int_equal(reserved(), 80 * (int64_t)MIB);
    assert_int_equal(stats_of(0).moving_pages_moved, 0);
    put(q);
    alloc_close();
  }
}

TEST(completed_only) {
  alloc_open("moving_pages:True,moving_pages_completed_only:True,moving_pages_across_streams:True", GIB);
  one = work_stream();
  other = work_stream();
  holes h = make_holes(one);
  int64_t before = reserved();
  fill(h.kept[0], 1, 100, one);
  void *p = get(72 * MIB, one);
  assert_true(reserved() >= before + 70 * (int64_t)MIB); /* its own stream is busy */
  put(p);
  before = reserved();
  p = get(160 * MIB, other);
  assert_true(reserved() >= before + 160 * (int64_t)MIB);
  assert_int_equal(calls(WEIR_CALL_StreamWaitEvent), 0);
  assert_int_equal(stats_of(0).moving_pages_moved, 0);
  soft_step_all();
  put(p);
  before = reserved();
  p = get(180 * MIB, one);
  assert_true(stats_of(0).moving_pages_moved > 0);
  assert_true(reserved() < before + 180 * (int64_t)MIB);
  put(p);
  end_holes(&h);
  alloc_close();
}

/* Writes by another device are not ordered with an alias: pages that a peer can reach move only when it is certain that
 * nothing uses them. */
TEST(peers) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "moving_pages:True,moving_pages_across_streams:True");
  holes h = make_holes(NULL);
  void *early = get(72 * MIB, NULL);
  assert_true(alias_count() > 0);
  put(early);
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 1));
  assert_valid();
  work(NULL);
  int64_t before = reserved(), moved = stats_of(0).moving_pages_moved;
  void *p = get(120 * MIB, NULL);
  assert_true(reserved() > before);
  assert_int_equal(stats_of(0).moving_pages_moved, moved);
  soft_step_all();
  put(p);
  p = get(160 * MIB, NULL);
  /* The other device may access all of it, wherever its pages come from. */
  soft_use(1);
  weir_cu_stream there = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  fill(p, 7, 160 * MIB, there);
  soft_step_all();
  assert_fill(p, 7, 160 * MIB);
  assert_cu(d->StreamDestroy(d, there));
  soft_use(0);
  put(p);
  end_holes(&h);
  alloc_close();
}

/* The pattern that strands memory in servers: each stream works once, and then has nothing to do. */
TEST(many_streams_that_go_idle) {
  alloc_open("moving_pages:True", 8 * GIB);
  for (int i = 0; i < usual_or_long(10, 32); i++) {
    weir_cu_stream stream = work_stream();
    void *p[24];
    for (int k = 0; k < 24; k++) {
      size_t bytes = (size_t)(1 + (k * 7 + i) % 13) * MIB + 4096;
      p[k] = get(bytes, stream);
      fill(p[k], i, bytes, stream);
    }
    for (int k = 0; k < 24; k++)
      put(p[k]);
    soft_step_all();
  }
  /* Six times the slack: such a job moves more often than its allocations earn. */
  assert_true((double)reserved() <= 1.06 * (double)stats_of(0).allocated_bytes[WEIR_STAT_ALL].peak);
  assert_int_equal(waiting_calls(), 0);
  alloc_close();
}

/* ---- Aliases are retired ---- */

/* Pending work uses the old address: it is unmapped after that, and not before. */
TEST(retired_after_the_work) {
  alloc_open("moving_pages:True,moving_pages_max_aliases:0", 4 * GIB);
  weir_cu_stream stream = work_stream();
  holes h = make_holes(stream);
  void *a = get(40 * MIB, stream), *b = get(40 * MIB, stream);
  fill(a, 1, 40 * MIB, stream);
  fill(b, 1, 40 * MIB, stream);
  put(a);
  put(b);
  void *p = get(72 * MIB, stream);
  fill(p, 2, 72 * MIB, stream);
  size_t aliases = alias_count();
  assert_true(aliases > 0);
  assert_true(is_mapped_at(a) || is_mapped_at(b));
  void *more[4];
  for (int i = 0; i < 4; i++) /* requests that grow do not change that */
    more[i] = get((size_t)(90 + i) * MIB, stream);
  assert_int_equal(stats_of(0).moving_aliases_unmapped, 0);
  assert_true(alias_count() >= aliases);
  soft_step(stream, 1);
  void *last = get(100 * MIB, stream);
  assert_int_equal(stats_of(0).moving_aliases_unmapped, 0);
  soft_step_all();
  void *now = get(110 * MIB, stream);
  assert_true(stats_of(0).moving_aliases_unmapped >= (int64_t)aliases);
  assert_false(is_mapped_at(a) && is_mapped_at(b));
  assert_int_equal(waiting_calls(), 0);
  assert_fill(p, 2, 72 * MIB);
  for (int i = 0; i < 4; i++)
    put(more[i]);
  put(last);
  put(now);
  put(p);
  end_holes(&h);
  alloc_close();
}

/* A page returns to an address that is about to be unmapped: that address stays. */
TEST(wanted_again_while_it_retires) {
  alloc_open("moving_pages:True,moving_pages_max_aliases:0", 4 * GIB);
  weir_cu_stream stream = work_stream();
  other = work_stream();
  void *a = get(40 * MIB, stream);
  put(a);
  void *b = get(40 * MIB, other); /* `stream` is idle; its pages move, and their aliases begin to retire */
  assert_true(alias_count() > 0);
  fill(b, 1, 40 * MIB, other);
  put(b);
  soft_step_all();
  size_t retiring = allocator->heaps[0].pages.aliases.retiring;
  void *again = get(40 * MIB, stream);
  if (retiring)
    assert_true(again == a || stats_of(0).moving_aliases_unmapped > 0);
  fill(again, 2, 40 * MIB, stream);
  void *more = get(90 * MIB, other), *last = get(95 * MIB, stream);
  soft_step_all();
  void *now = get(100 * MIB, stream);
  assert_fill(again, 2, 40 * MIB);
  put(again);
  put(more);
  put(last);
  put(now);
  alloc_close();
}

/* Back and forth between two addresses of one stream, under work that never completes. */
TEST(back_and_forth_under_work) {
  for (int bound = 0; bound < 2; bound++) {
    alloc_open(bound ? "moving_pages:True,moving_pages_max_aliases:3" : "moving_pages:True", 4 * GIB);
    weir_cu_stream stream = work_stream();
    holes h = make_holes(stream);
    for (int i = 0; i < 40; i++) {
      void *p = get((size_t)(50 + i % 3 * 10) * MIB, stream);
      fill(p, i, 50 * MIB, stream);
      put(p);
      void *q = get(24 * MIB, stream), *r = get(24 * MIB, stream), *s = get(24 * MIB, stream);
      fill(q, i + 1, 24 * MIB, stream);
      fill(r, i + 2, 24 * MIB, stream);
      fill(s, i + 3, 24 * MIB, stream);
      if (i % 8 == 7) {
        soft_step_all();
        assert_fill(q, i + 1, 24 * MIB);
        assert_fill(r, i + 2, 24 * MIB);
        assert_fill(s, i + 3, 24 * MIB);
      }
      put(i % 2 ? q : s);
      put(r);
      put(i % 2 ? s : q);
    }
    soft_step_all();
    assert_int_equal(waiting_calls(), 0);
    end_holes(&h);
    alloc_close();
  }
}

/* Retired aliases are as many as the bound says, once the stream has passed. */
TEST(aliases_are_bounded) {
  alloc_open("moving_pages:True,moving_pages_slack:0,moving_pages_max_aliases:5", 4 * GIB);
  weir_cu_stream stream = work_stream();
  soft_seed(3);
  void *live[16] = {0};
  for (int i = 0; i < repetitions(300, 1000) || stats_of(0).moving_aliases_unmapped <= 50; i++) {
    assert_true(i < 10000);
    void **at = &live[soft_random(16)];
    if (*at)
      put(*at);
    *at = get((1 + soft_random(40)) * MIB, stream);
    if (i % 4 == 0)
      soft_step_all();
  }
  soft_step_all();
  void *p[4];
  for (int i = 0; i < 4; i++) { /* what became an alias meanwhile */
    p[i] = get((size_t)(100 + i * 20) * MIB, stream);
    soft_step_all();
  }
  assert_true(alias_count() <= 5 + 64);
  for (int i = 0; i < 4; i++)
    put(p[i]);
  for (int i = 0; i < 16; i++)
    if (live[i])
      put(live[i]);
  alloc_close();
}

/* A stream that is stalled does not keep another from retiring its aliases. */
TEST(stalled_stream_holds_up_no_other) {
  alloc_open("moving_pages:True,moving_pages_max_aliases:0", 4 * GIB);
  weir_cu_stream stalled = work_stream(), stream = work_stream();
  holes h = make_holes(stalled), g = make_holes(stream);
  work(stalled);
  void *p = get(72 * MIB, stalled); /* its aliases wait for the stalled stream */
  size_t of_stalled = alias_count();
  void *q = get(72 * MIB, stream);
  size_t of_both = alias_count();
  int64_t unmapped = stats_of(0).moving_aliases_unmapped;
  assert_true(of_both > of_stalled);
  soft_step(stream, 10);
  void *r = get(90 * MIB, stream);
  assert_true(stats_of(0).moving_aliases_unmapped > unmapped);
  assert_true(is_mapped_at(h.first) || is_mapped_at(h.second));
  soft_step_all();
  void *s = get(100 * MIB, stream);
  assert_true(stats_of(0).moving_aliases_unmapped >= (int64_t)of_both);
  put(p);
  put(q);
  put(r);
  put(s);
  end_holes(&h);
  end_holes(&g);
  alloc_close();
}

/* The address of the page's first life, in a stream that has new work now, does not retire before that work. */
TEST(alias_of_a_busy_stream_stays) {
  alloc_open("moving_pages:True,moving_pages_max_aliases:0", 4 * GIB);
  one = work_stream();
  other = work_stream();
  put(get(40 * MIB, one));
  work(other);
  void *b = get(40 * MIB, other); /* from `one`, which is idle */
  size_t aliases = alias_count();
  assert_true(aliases > 0);
  work(one);
  void *c = get(50 * MIB, other);
  assert_int_equal(alias_count(), aliases);
  soft_step(other, 100);
  void *e = get(60 * MIB, other);
  soft_step_all();
  void *f = get(70 * MIB, other);
  soft_step_all();
  void *g = get(80 * MIB, other);
  assert_int_equal(alias_count(), 0);
  put(b);
  put(c);
  put(e);
  put(f);
  put(g);
  alloc_close();
}

/* ---- Freed on another stream ---- */

/* A block that another stream uses is not free, and its pages stay, until that stream has passed. */
TEST(used_by_another_stream) {
  alloc_open("moving_pages:True,moving_pages_max_aliases:0", 4 * GIB);
  weir_cu_stream stream = work_stream();
  other = work_stream();
  holes h = make_holes(stream);
  void *a = get(40 * MIB, stream), *b = get(40 * MIB, stream);
  also_used_by(a, other);
  fill(a, 1, 40 * MIB, other);
  put(a);
  put(b);
  int64_t before = reserved();
  void *p = get(72 * MIB, stream);
  assert_true(reserved() > before);
  fill(p, 2, 72 * MIB, stream);
  soft_step(stream, 100);
  assert_fill(p, 2, 72 * MIB);
  soft_step(other, 100); /* writes to `a` */
  assert_fill(p, 2, 72 * MIB);
  assert_fill(a, 1, 40 * MIB);
  before = reserved();
  void *q = get(42 * MIB, stream);
  fill(q, 3, 42 * MIB, stream);
  soft_step_all();
  assert_fill(p, 2, 72 * MIB);
  assert_true(reserved() <= before + 8 * (int64_t)MIB);
  put(p);
  put(q);
  end_holes(&h);
  alloc_close();
}

/* The same where the other stream uses a block that the page has moved to. */
TEST(moved_and_used_by_another_stream) {
  alloc_open("moving_pages:True,moving_pages_max_aliases:0", 4 * GIB);
  weir_cu_stream stream = work_stream();
  other = work_stream();
  holes h = make_holes(stream);
  void *p = get(72 * MIB, stream);
  also_used_by(p, other);
  fill(p, 1, 72 * MIB, other);
  put(p);
  void *q = get(60 * MIB, stream); /* new pages */
  fill(q, 2, 60 * MIB, stream);
  soft_step(stream, 100);
  soft_step(other, 100);
  assert_fill(q, 2, 60 * MIB);
  assert_fill(p, 1, 72 * MIB);
  put(q);
  end_holes(&h);
  alloc_close();
}

/* ---- Streams that end ---- */

/* A stream that was destroyed is neither queried nor waited for. */
TEST(streams_that_end) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "moving_pages:True";
  options.streams_may_end = 1;
  alloc_open_with(&options);
  weir_cu_stream ended = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), stream = work_stream();
  holes h = make_holes(ended);
  void *p = get(72 * MIB, ended);
  assert_true(alias_count() > 0);
  fill(p, 1, 72 * MIB, ended);
  soft_step_all();
  put(p);
  end_holes(&h);
  assert_cu(d->StreamDestroy(d, ended));
  configure("moving_pages:True,moving_pages_max_aliases:0");
  unsigned long queries = calls(WEIR_CALL_StreamQuery), captures = calls(WEIR_CALL_StreamIsCapturing);
  h = make_holes(stream);
  p = get(72 * MIB, stream);
  assert_int_equal(calls(WEIR_CALL_StreamQuery), queries);
  assert_true(calls(WEIR_CALL_StreamIsCapturing) <= captures + 20);
  put(p);
  end_holes(&h);
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}
