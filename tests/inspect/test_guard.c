/*
 * Guard mode on the software device: planted bugs, each with a clean twin that must stay silent.
 *
 * Stepped time makes every order of work certain. A bug and its twin are one function, which does the wrong thing only
 * if `bug` is set.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guard_fixture.h"
#include "inspect/json.h"
#include "offline/render/explain_report.h"
#include "weir/copy.h"
#include "weir/event.h"
#include "weir/graph.h"
#include "weir/history.h"
#include "weir/host.h"
#include "weir/offline.h"
#include "weir/snapshot.h"

FIXTURE(.teardown = alloc_teardown)

/* ---- Out of bounds ---- */

static void one_byte_behind(bool bug) {
  void *p = get(1000, NULL);
  write_bytes(p, 0, bug ? 1001 : 1000, NULL);
  put(p);
}

static void four_bytes_behind_a_unit(bool bug) {
  void *p = get(512, NULL);
  write_bytes(p, bug ? 512 : 508, 4, NULL);
  put(p);
}

static void never_freed(bool bug) {
  void *p = get(100, NULL);
  write_bytes(p, 0, bug ? 104 : 100, NULL);
}

static void at_a_step(bool bug) {
  void *p = get(4096, NULL);
  write_bytes(p, bug ? 4100 : 0, 1, NULL);
  const char *pairs[] = {"name", "ProfilerStep#1", "stage", "START"};
  assert_ok(weir_history_annotate(allocator, 0, pairs, 2));
  soft_step_all();
  put(p);
}

static void on_another_stream(bool bug) {
  weir_cu_stream stream = work_stream();
  void *p = get(3000, stream);
  write_bytes(p, 0, bug ? 3010 : 3000, stream);
  put(p);
}

static void large_block(bool bug) {
  void *p = get(11 * MIB, NULL);
  write_bytes(p, bug ? 11 * MIB : 0, 64, NULL);
  put(p);
}

static void large_block_whose_size_is_rounded(bool bug) {
  void *p = get(3 * MIB + 17, NULL);
  write_bytes(p, 3 * MIB, bug ? 18 : 17, NULL);
  put(p);
}

static void far_behind(bool bug) {
  void *p = get(1, NULL);
  write_bytes(p, bug ? 600 : 0, 1, NULL);
  put(p);
}

static void in_expandable_segment(bool bug) {
  void *p = get(5 * MIB, NULL), *q = get(100, NULL);
  write_bytes(p, 5 * MIB - 8, bug ? 16 : 8, NULL);
  put(p);
  put(q);
}

static void in_a_private_pool(bool bug) {
  weir_pool_id id = {0, 9};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *p = get(2000, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  write_bytes(p, 0, bug ? 2001 : 2000, NULL);
  put(p);
  assert_ok(weir_pool_release(allocator, 0, id));
}

/* The offset is that from the second of two blocks side by side. */
static void in_front(bool bug) {
  void *before = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, 3000, NULL, &before));
  void *p = get(3000, NULL);
  assert_true((char *)before < (char *)p);
  write_bytes(p, bug ? -4 : 0, 4, NULL);
  put(p);
  assert_ok(weir_allocator_free(allocator, before));
}

static void minus_one(bool bug) {
  void *p = get(1001, NULL);
  assert_cu(d->MemsetD8Async(d, (uint64_t)p, 0xff, bug ? 1002 : 1001, NULL));
  put(p);
}

static void before_another_stream_is_done(bool bug) {
  weir_cu_stream other = work_stream();
  void *p = get(2048, NULL);
  work(other);
  also_used_by(p, other);
  write_bytes(p, 0, bug ? 2050 : 2048, other);
  put(p);
  soft_step_all();
  put(get(1, NULL)); /* polls */
}

TEST(writes_past_the_end) {
  static const planted bugs[] = {
      {.kind = "out_of_bounds", .run = one_byte_behind, .offset = 1000, .is_freed = true},
      {.kind = "out_of_bounds", .run = four_bytes_behind_a_unit, .offset = 512, .is_freed = true},
      {.kind = "out_of_bounds", .run = never_freed, .offset = 100},
      {.kind = "out_of_bounds", .run = at_a_step, .offset = 4100},
      {.kind = "out_of_bounds", .run = on_another_stream, .offset = 3000, .is_freed = true},
      {.kind = "out_of_bounds", .run = large_block, .offset = 11 * MIB, .is_freed = true},
      {.kind = "out_of_bounds", .run = large_block_whose_size_is_rounded, .offset = 3 * MIB + 17, .is_freed = true},
      {.kind = "out_of_bounds", .run = far_behind, .offset = 600, .is_freed = true},
      {.kind = "out_of_bounds",
       .run = in_expandable_segment,
       .offset = 5 * MIB,
       .is_freed = true,
       .conf = "expandable_segments:True"},
      {.kind = "out_of_bounds", .run = in_a_private_pool, .offset = 2000, .is_freed = true},
      {.kind = "out_of_bounds", .run = in_front, .offset = -4},
      {.kind = "out_of_bounds", .run = minus_one, .offset = 1001, .is_freed = true},
      {.kind = "out_of_bounds", .run = before_another_stream_is_done, .offset = 2048, .is_freed = true},
  };
  run_planted("light", bugs, WEIR_COUNT_OF(bugs));
}

/* ---- Use after free ---- */

static void written_after_free(bool bug) {
  void *p = get(1000, NULL);
  if (!bug)
    write_bytes(p, 10, 4, NULL);
  put(p);
  if (bug)
    write_bytes(p, 10, 4, NULL);
}

static void written_late_by_its_stream(bool bug) {
  weir_cu_stream stream = work_stream();
  void *p = get(MIB, stream);
  work(stream);
  if (!bug)
    write_bytes(p, MIB - 1, 1, stream);
  put(p);
  if (bug)
    write_bytes(p, MIB - 1, 1, stream);
}

static void found_when_the_cache_is_emptied(bool bug) {
  void *p = get(8 * MIB, NULL);
  if (!bug)
    write_bytes(p, 5 * MIB, 100, NULL);
  put(p);
  if (bug)
    write_bytes(p, 5 * MIB, 100, NULL);
  assert_ok(weir_allocator_empty_cache(allocator));
}

static void found_when_memory_is_short(bool bug) {
  void *p = get(21 * MIB, NULL);
  if (!bug)
    write_bytes(p, 0, 1, NULL);
  put(p);
  if (bug)
    write_bytes(p, 0, 1, NULL);
  put(get(1010 * MIB, NULL));
}

/* In the middle of a large block, a part of each page counts. */
static void in_a_large_block(bool bug) {
  void *p = get(18 * MIB, NULL);
  if (!bug)
    write_bytes(p, 9 * MIB + 100, 8192, NULL);
  put(p);
  if (bug)
    write_bytes(p, 9 * MIB + 100, 8192, NULL);
}

static void at_the_end_of_a_large_block(bool bug) {
  void *p = get(18 * MIB + 5, NULL);
  put(p);
  if (bug)
    write_bytes(p, 18 * MIB + 4, 1, NULL);
}

static void in_a_pool_after_free(bool bug) {
  weir_pool_id id = {0, 9};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *p = get(2000, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  put(p);
  if (bug)
    write_bytes(p, 1999, 1, NULL);
  found();
  assert_ok(weir_pool_release(allocator, 0, id));
}

TEST(writes_after_free) {
  static const planted bugs[] = {
      {.kind = "use_after_free", .run = written_after_free, .offset = 10, .is_freed = true},
      {.kind = "use_after_free", .run = written_late_by_its_stream, .offset = MIB - 1, .is_freed = true},
      {.kind = "use_after_free", .run = found_when_the_cache_is_emptied, .offset = 5 * MIB, .is_freed = true},
      {.kind = "use_after_free", .run = found_when_memory_is_short, .offset = 0, .is_freed = true},
      {.kind = "use_after_free", .run = in_a_large_block, .offset = 9 * MIB + 4096, .is_freed = true},
      {.kind = "use_after_free", .run = at_the_end_of_a_large_block, .offset = 18 * MIB + 4, .is_freed = true},
      {.kind = "use_after_free", .run = in_a_pool_after_free, .offset = 1999, .is_freed = true},
  };
  run_planted("light", bugs, WEIR_COUNT_OF(bugs));
}

/* ---- Frees ---- */

static void freed_twice(bool bug) {
  void *p = get(1000, NULL);
  put(p);
  if (bug)
    put_wrong(p);
}

static void freed_twice_later(bool bug) {
  void *p = get(1000, NULL);
  put(p);
  assert_ok(weir_allocator_empty_cache(allocator)); /* the memory has gone */
  if (bug)
    put_wrong(p);
}

static void freed_twice_while_another_stream_uses_it(bool bug) {
  weir_cu_stream other = work_stream();
  void *p = get(1000, NULL);
  work(other);
  also_used_by(p, other);
  put(p);
  if (bug)
    put_wrong(p);
  soft_step_all();
}

static void freed_in_the_middle(bool bug) {
  char *p = get(4096, NULL);
  if (bug)
    put_wrong(p + 1024);
  put(p);
}

static void freed_in_the_middle_of_a_freed_block(bool bug) {
  char *p = get(4096, NULL);
  put(p);
  if (bug)
    put_wrong(p + 512);
}

static void freed_one_past_the_end(bool bug) {
  char *p = get(1024, NULL);
  if (bug)
    put_wrong(p + 1024);
  put(p);
}

static void freed_host_memory(bool bug) {
  int local = 0;
  if (bug)
    put_wrong(&local);
}

static void freed_by_another_allocator(bool bug) {
  weir_allocator *other = alloc_create("guard:off");
  void *p;
  assert_ok(weir_allocator_alloc(other, 0, 100, NULL, &p));
  if (bug)
    put_wrong(p);
  assert_ok(weir_allocator_free(other, p));
  weir_allocator_destroy(other);
}

static void freed_pinned_memory(bool bug) {
  weir_host_allocator *host;
  void *p;
  assert_ok(weir_host_allocator_create(d, NULL, &host));
  assert_ok(weir_host_alloc(host, 4096, &p));
  if (bug)
    put_wrong(p);
  assert_ok(weir_host_free(host, p));
  weir_host_allocator_destroy(host);
}

static void freed_nothing(bool bug) {
  put(NULL);
  if (bug)
    put_wrong((void *)0x1000);
}

TEST(wrong_frees) {
  static const planted bugs[] = {
      {.kind = "double_free", .run = freed_twice, .offset = 0, .is_freed = true},
      {.kind = "double_free", .run = freed_twice_later, .offset = 0, .is_freed = true},
      {.kind = "double_free", .run = freed_twice_while_another_stream_uses_it, .offset = 0, .is_freed = true},
      {.kind = "interior_free", .run = freed_in_the_middle, .offset = 1024},
      {.kind = "interior_free", .run = freed_in_the_middle_of_a_freed_block, .offset = 512, .is_freed = true},
      {.kind = "interior_free", .run = freed_one_past_the_end, .offset = 1024},
      {.kind = "foreign_free", .run = freed_host_memory, .offset = 0, .has_no_block = true},
      {.kind = "wrong_allocator", .run = freed_by_another_allocator, .offset = 0, .has_no_block = true},
      {.kind = "wrong_allocator", .run = freed_pinned_memory, .offset = 0, .has_no_block = true},
      {.kind = "foreign_free", .run = freed_nothing, .offset = 0, .has_no_block = true},
  };
  run_planted("light", bugs, WEIR_COUNT_OF(bugs));
}

/* ---- Streams ---- */

/* Frees a block after another stream has got work on it; the twin does what it takes to be right. */
typedef enum remedy { RECORD_STREAM, WAIT_ON_DEVICE, WAIT_ON_HOST } remedy;

static void order(void *p, weir_cu_stream mine, weir_cu_stream other, remedy by) {
  weir_cu_event event;
  switch (by) {
  case RECORD_STREAM:
    also_used_by(p, other);
    break;
  case WAIT_ON_DEVICE:
    assert_int_equal(d->EventCreate(d, &event, 0), 0);
    assert_int_equal(d->EventRecord(d, event, other), 0);
    assert_int_equal(d->StreamWaitEvent(d, mine, event, 0), 0);
    assert_int_equal(d->EventDestroy(d, event), 0);
    break;
  case WAIT_ON_HOST:
    assert_int_equal(d->StreamSynchronize(d, other), 0);
    break;
  }
}

static void freed_while_written(bool bug, size_t bytes, bool is_default, remedy by) {
  weir_cu_stream mine = is_default ? NULL : work_stream(), other = work_stream();
  void *p = get(bytes, mine);
  work(other);
  write_bytes(p, 0, (unsigned)bytes, other);
  if (!bug)
    order(p, mine, other, by);
  put(p);
  soft_step(mine, 100);
  soft_step_all();
  put(get(bytes, mine));
  soft_step_all();
}

static void small_recorded(bool bug) { freed_while_written(bug, 100, true, RECORD_STREAM); }
static void small_device_waits(bool bug) { freed_while_written(bug, 100, true, WAIT_ON_DEVICE); }
static void small_host_waits(bool bug) { freed_while_written(bug, 100, true, WAIT_ON_HOST); }
static void large_recorded(bool bug) { freed_while_written(bug, 4 * MIB, true, RECORD_STREAM); }
static void large_device_waits(bool bug) { freed_while_written(bug, 4 * MIB, false, WAIT_ON_DEVICE); }
static void other_recorded(bool bug) { freed_while_written(bug, 70000, false, RECORD_STREAM); }
static void other_host_waits(bool bug) { freed_while_written(bug, 70000, false, WAIT_ON_HOST); }

/* Reads count too. */
static void freed_while_read(bool bug) {
  weir_cu_stream other = work_stream();
  void *p = get(256, NULL), *to = get(256, other);
  work(other);
  assert_int_equal(d->MemcpyAsync(d, (uint64_t)to, (uint64_t)p, 256, other), 0);
  if (!bug)
    also_used_by(p, other);
  put(p);
  soft_step(NULL, 100);
  soft_step_all();
  put(to);
}

/* A part of the block, as a view would have it. */
static void freed_while_a_part_is_copied(bool bug) {
  weir_cu_stream other = work_stream();
  char *p = get(8192, NULL), *q = get(512, other);
  work(other);
  assert_int_equal(d->MemcpyAsync(d, (uint64_t)q, (uint64_t)(p + 4096), 512, other), 0);
  if (!bug)
    also_used_by(p, other);
  put(p);
  soft_step(NULL, 100);
  soft_step_all();
  put(q);
}

static void one_of_two_streams(bool bug) {
  weir_cu_stream other[2] = {work_stream(), work_stream()};
  void *p = get(8192, NULL);
  for (int i = 0; i < 2; i++) {
    work(other[i]);
    d->MemcpyAsync(d, (uint64_t)p, (uint64_t)p + 4096, 128, other[i]);
  }
  also_used_by(p, other[0]);
  if (!bug)
    also_used_by(p, other[1]);
  put(p);
  if (bug)
    soft_step(other[0], 100);
  else
    soft_step_all();
  put(get(1, NULL)); /* polls: the block is checked now */
  soft_step(NULL, 100);
  soft_step_all();
}

TEST(frees_while_another_stream_works) {
  static const planted bugs[] = {
      {.kind = "stream", .run = small_recorded, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = small_device_waits, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = small_host_waits, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = large_recorded, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = large_device_waits, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = other_recorded, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = other_host_waits, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = freed_while_read, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = one_of_two_streams, .offset = 0, .is_freed = true},
      {.kind = "stream", .run = freed_while_a_part_is_copied, .offset = 0, .is_freed = true},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(bugs); i++)
    for (int bug = 0; bug <= 1; bug++) {
      open_guarded("light", "");
      bugs[i].run(bug);
      unsigned long long n = found();
      findings();
      if (!bug && n)
        fail_msg("%zu: the clean twin is not silent: %s", i, json);
      if (bug && !n)
        fail_msg("%zu: not found", i);
      if (bug) { /* what the other stream writes then is found too */
        assert_kind("stream");
        assert_stack("alloc_stack", "allocating");
        assert_stack("free_stack", "freeing");
      }
      alloc_close();
    }
}

/* ---- What was destroyed ---- */

static weir_cu_stream own_stream(void) { return soft_stream(WEIR_CU_STREAM_NON_BLOCKING); }

static void end_stream(weir_cu_stream stream) {
  soft_step_all();
  assert_cu(d->StreamDestroy(d, stream));
}

static void allocated_on_a_destroyed_stream(bool bug) {
  weir_cu_stream stream = own_stream();
  void *p = NULL;
  if (!bug)
    put(get(100, stream));
  assert_ok(weir_allocator_empty_cache(allocator));
  end_stream(stream);
  if (bug)
    assert_error(INVALID_HANDLE, weir_allocator_alloc(allocator, 0, 100, stream, &p));
}

static void recorded_for_a_destroyed_stream(bool bug) {
  weir_cu_stream stream = own_stream();
  void *p = get(100, NULL);
  if (!bug)
    also_used_by(p, stream);
  end_stream(stream);
  if (bug)
    assert_error(INVALID_HANDLE, weir_allocator_record_stream(allocator, p, stream));
  put(p);
  soft_step_all();
}

static void freed_after_its_stream_was_destroyed(bool bug) {
  weir_cu_stream stream = own_stream();
  void *p = get(1000, stream);
  if (bug)
    end_stream(stream);
  put(p);
  assert_ok(weir_allocator_empty_cache(allocator));
  if (!bug)
    end_stream(stream);
}

TEST(destroyed_streams) {
  static const planted bugs[] = {
      {.kind = "destroyed", .run = allocated_on_a_destroyed_stream, .has_no_block = true},
      {.kind = "destroyed", .run = recorded_for_a_destroyed_stream, .has_no_block = true},
      {.kind = "destroyed", .run = freed_after_its_stream_was_destroyed},
  };
  run_planted("light", bugs, WEIR_COUNT_OF(bugs));
  run_planted("full", bugs, WEIR_COUNT_OF(bugs));
}

static void recorded_after_its_end(bool bug) {
  weir_event *event;
  weir_stream stream;
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_stream_default(0, &stream));
  if (!bug)
    assert_ok(weir_event_record(event, stream));
  weir_event_destroy(event);
  if (bug)
    assert_error(INVALID_HANDLE, weir_event_record(event, stream));
}

static void event_destroyed_twice(bool bug) {
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  weir_event_destroy(event);
  if (bug)
    weir_event_destroy(event);
}

static void replayed_after_its_end(bool bug) {
  weir_graph *graph;
  assert_ok(weir_graph_create(&graph));
  if (!bug)
    weir_graph_replay(graph); /* there is no capture */
  weir_graph_destroy(graph);
  if (bug)
    assert_error(INVALID_HANDLE, weir_graph_replay(graph));
}

TEST(destroyed_events_and_graphs) {
  static void (*const bugs[])(bool bug) = {recorded_after_its_end, event_destroyed_twice, replayed_after_its_end};
  for (size_t i = 0; i < WEIR_COUNT_OF(bugs); i++)
    for (int bug = 0; bug <= 1; bug++) {
      here = "elsewhere";
      weir_stack_set_hook(stack_hook, NULL);
      alloc_open_runtime("guard:light");
      here = "using";
      bugs[i](bug);
      assert_int_equal(found(), bug);
      findings();
      if (bug) {
        assert_kind("destroyed");
        assert_stack("free_stack", "using");
        assert_stack("here_stack", "using");
      }
      alloc_close_runtime();
    }
}

/* ---- The guard itself ---- */

TEST(quarantine_keeps_a_block_until_its_budget_is_used_up) {
  setenv("WEIR_GUARD_QUARANTINE", "8KiB", 1);
  open_guarded("light", "");
  unsetenv("WEIR_GUARD_QUARANTINE");
  void *p = get(3000, NULL);
  put(p);
  for (int i = 0; i < 2; i++) {
    void *q = get(3000, NULL);
    assert_ptr_not_equal(q, p);
    put(q);
  }
  assert_int_equal(found(), 0);
  assert_int_equal(active(), 2 * 3584ll); /* the third one made the first leave */
  assert_ptr_equal(get(3000, NULL), p);
  assert_int_equal(found(), 0);
  alloc_close();
}

TEST(time_ends_the_quarantine) {
  setenv("WEIR_GUARD_SECONDS", "0", 1);
  open_guarded("light", "");
  unsetenv("WEIR_GUARD_SECONDS");
  void *p = get(3000, NULL);
  put(p);
  assert_ptr_equal(get(3000, NULL), p);
  assert_int_equal(found(), 0);
  alloc_close();
}

TEST(one_of_n_is_guarded) {
  setenv("WEIR_GUARD_SAMPLE", "4", 1);
  open_guarded("light", "");
  unsetenv("WEIR_GUARD_SAMPLE");
  void *p[8];
  for (int i = 0; i < 8; i++) {
    p[i] = get(1000, NULL);
    write_bytes(p[i], 1000, 1, NULL);
  }
  assert_int_equal(found(), 2);
  findings();
  assert_stack("alloc_stack", "allocating");
  for (int i = 0; i < 8; i++)
    put(p[i]);
  assert_int_equal(found(), 2);
  assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, p[1])); /* it was not guarded */
  findings();
  assert_kind("double_free");
  assert_stack("here_stack", "elsewhere");
  alloc_close();
}

TEST(a_bug_is_reported_once_with_a_count) {
  open_guarded("light", "");
  for (int i = 0; i < 5; i++) {
    void *p = get(1000, NULL);
    write_bytes(p, 1000, 1, NULL);
    put(p);
  }
  assert_int_equal(found(), 5);
  findings();
  assert_has("count", 5);
  assert_null(strstr(strstr(json, "\"kind\"") + 1, "\"kind\""));
  alloc_close();
}

TEST(the_neighbour_is_named) {
  open_guarded("light", "");
  void *p = get(1000, NULL), *q = get(2000, NULL);
  write_bytes(p, 1200, 8, NULL);
  assert_int_equal(found(), 1);
  findings();
  assert_has("neighbour", (uint64_t)q);
  assert_has("neighbour_requested", 2000);
  assert_has("past_end", 200);
  assert_has("bytes", 8);
  assert_stack("neighbour_stack", "allocating");
  put(p);
  put(q);
  alloc_close();
}

TEST(a_finding_can_fail_a_call) {
  setenv("WEIR_GUARD_ACTION", "error", 1);
  open_guarded("light", "");
  unsetenv("WEIR_GUARD_ACTION");
  void *p = get(1000, NULL), *q;
  write_bytes(p, 1000, 1, NULL);
  assert_error(BAD_STATE, weir_guard_check(allocator, NULL));
  assert_ok(weir_allocator_alloc(allocator, 0, 10, NULL, &q)); /* one call fails */
  put(p);
  put(q);
  alloc_close();
}

TEST(invalid_variables_are_refused) {
  static const char *const bad[][2] = {{"WEIR_GUARD", "heavy"},        {"WEIR_GUARD_ACTION", "panic"},
                                       {"WEIR_GUARD_SAMPLE", "0"},     {"WEIR_GUARD_QUARANTINE", "lots"},
                                       {"WEIR_GUARD_SECONDS", "-1"},   {"WEIR_GUARD_FILL", "300"},
                                       {"WEIR_GUARD_FILL", "infinite"}};
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  setenv("WEIR_GUARD", "light", 1);
  for (size_t i = 0; i < WEIR_COUNT_OF(bad); i++) {
    weir_allocator *made;
    setenv(bad[i][0], bad[i][1], 1);
    assert_error(INVALID_ARGUMENT, weir_allocator_create(faults, NULL, &made));
    assert_non_null(strstr(weir_last_error(), bad[i][0]));
    unsetenv(bad[i][0]);
    setenv("WEIR_GUARD", "light", 1);
  }
  unsetenv("WEIR_GUARD");
  alloc_close();
}

static int refuse_output(void *context, const void *bytes, size_t length) {
  (void)context, (void)bytes, (void)length;
  return ENOSPC;
}

TEST(bad_arguments) {
  open_guarded("light", "");
  assert_error(INVALID_ARGUMENT, weir_guard_check(NULL, NULL));
  assert_ok(weir_guard_check(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_guard_write(NULL, WEIR_GUARD_TEXT, keep_json, NULL));
  assert_error(INVALID_ARGUMENT, weir_guard_write(allocator, WEIR_GUARD_TEXT, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_guard_write(allocator, (weir_guard_format)2, keep_json, NULL));
  void *p = get(1000, NULL);
  write_bytes(p, 1000, 1, NULL);
  assert_int_equal(found(), 1);
  assert_error(SYSTEM, weir_guard_write(allocator, WEIR_GUARD_TEXT, refuse_output, NULL));
  assert_error(SYSTEM, weir_guard_write(allocator, WEIR_GUARD_JSON, refuse_output, NULL));
  json_length = 0;
  assert_ok(weir_guard_write(allocator, WEIR_GUARD_TEXT, keep_json, NULL));
  assert_non_null(strstr(json, "write past the end of a block\n"));
  assert_non_null(strstr(json, "1 byte changed between offset 1000 and 1000, starting 0 bytes past the end\n"));
  put(p);
  alloc_close();
}

TEST(the_mode_is_fixed) {
  open_guarded("light", "");
  assert_error(NOT_SUPPORTED, weir_allocator_configure(allocator, "guard:off"));
  alloc_close();
}

TEST(without_guard_nothing_is_found) {
  alloc_open(NULL, GIB);
  void *p = get(1000, NULL);
  write_bytes(p, 1000, 8, NULL);
  assert_int_equal(found(), 0);
  assert_string_equal(findings(), "[]\n");
  put(p);
  alloc_close();
}

TEST(new_memory_is_filled) {
  unsigned char bytes[16];
  setenv("WEIR_GUARD_FILL", "nan", 1);
  open_guarded("light", "");
  void *p = get(1000, NULL);
  assert_int_equal(d->MemcpyAsync(d, (uint64_t)bytes, (uint64_t)p, sizeof bytes, NULL), 0);
  soft_step_all();
  float value;
  memcpy(&value, bytes, sizeof value);
  assert_true(value != value);
  put(p);
  alloc_close();
  setenv("WEIR_GUARD_FILL", "0x5a", 1);
  open_guarded("light", "");
  unsetenv("WEIR_GUARD_FILL");
  p = get(1000, NULL);
  assert_int_equal(d->MemcpyAsync(d, (uint64_t)bytes, (uint64_t)p + 984, sizeof bytes, NULL), 0);
  soft_step_all();
  assert_int_equal(bytes[0], 0x5a);
  assert_int_equal(bytes[15], 0x5a);
  assert_int_equal(found(), 0);
  put(p);
  alloc_close();
}

/* A capture gets no work of the guard, and what its graph writes to between replays is left alone. */
TEST(captures_are_left_alone) {
  open_guarded("light", "");
  weir_cu_stream stream = work_stream();
  weir_pool_id id = {0, 3};
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  void *before = get(1000, stream);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  assert_int_equal(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL), 0);
  void *p = get(1000, stream);
  write_bytes(p, 0, 1000, stream);
  put(p);
  put(before);
  assert_error(CAPTURE, weir_guard_check(allocator, NULL));
  assert_int_equal(d->StreamEndCapture(d, stream, &graph), 0);
  size_t nodes = 0;
  assert_int_equal(d->GraphGetNodes(d, graph, NULL, &nodes), 0);
  assert_int_equal(nodes, 1); /* the write, and nothing of the guard */
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_int_equal(d->GraphInstantiate(d, &exec, graph, 0), 0);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(d->GraphLaunch(d, exec, stream), 0);
    assert_int_equal(found(), 0);
  }
  assert_int_equal(d->GraphExecDestroy(d, exec), 0);
  assert_int_equal(d->GraphDestroy(d, graph), 0);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* The program need not tell the allocator of a capture. */
TEST(unknown_captures_are_left_alone) {
  open_guarded("light", "");
  weir_cu_stream stream = work_stream();
  weir_cu_graph graph;
  void *before = get(1000, stream), *other = get(1000, NULL);
  write_bytes(other, 1000, 1, NULL);
  soft_step_all();
  assert_int_equal(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL), 0);
  void *p = get(1000, stream);
  write_bytes(p, 0, 1000, stream);
  put(p);
  put(before);
  put(other); /* the bug is found meanwhile */
  assert_int_equal(d->StreamEndCapture(d, stream, &graph), 0);
  size_t nodes = 0;
  assert_int_equal(d->GraphGetNodes(d, graph, NULL, &nodes), 0);
  assert_int_equal(nodes, 1);
  assert_int_equal(d->GraphDestroy(d, graph), 0);
  assert_int_equal(found(), 1);
  alloc_close();
}

/* The setting stands in a recording, and a replay reproduces sizes, quarantine and reuse. */
static void record_and_replay(const char *mode) {
  char path[] = "/tmp/weir-guard-XXXXXX";
  void *blocks[32] = {NULL};
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  setenv("WEIR_GUARD_QUARANTINE", "4MiB", 1);
  open_guarded(mode, "");
  unsetenv("WEIR_GUARD_QUARANTINE");
  soft_seed(7);
  for (int i = 0; i < 400; i++) {
    size_t at = soft_random(WEIR_COUNT_OF(blocks));
    if (blocks[at])
      put(blocks[at]);
    blocks[at] = blocks[at] ? NULL : get(1 + soft_random(1ull << (8 + soft_random(13))), NULL);
  }
  assert_int_equal(found(), 0);
  weir_snapshot *snapshot;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, path));
  weir_snapshot_destroy(snapshot);
  alloc_close();

  weir_offline_recording *recording;
  weir_offline_replayer *replayer;
  weir_offline_result result;
  weir_offline_result_init(&result);
  assert_int_equal(weir_offline_recording_load(path, NULL, &recording), WEIR_OK);
  assert_int_equal(weir_offline_replayer_create(recording, NULL, &replayer), WEIR_OK);
  assert_int_equal(weir_offline_replayer_check(replayer, &result), WEIR_OK);
  if (result.differences)
    fail_msg("%s: %s", mode, result.first_difference);
  assert_true(result.allocations > 100);
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
  unlink(path);
}

TEST(a_recording_is_replayed_exactly) {
  record_and_replay("light");
  record_and_replay("full");
}

/* A snapshot has the findings, and weir explain shows them. */
TEST(explain_reads_findings) {
  char path[] = "/tmp/weir-guard-XXXXXX";
  weir__sink *sink = malloc(sizeof *sink);
  weir__explain_options options = {.device = 0};
  weir__explanation explanation;
  weir__recording *recording;
  weir__report report;
  weir_snapshot *snapshot;
  int file = mkstemp(path);
  assert_true(file >= 0 && sink);
  close(file);
  open_guarded("light", "");
  void *p = get(1000, NULL);
  write_bytes(p, 1000, 2, NULL);
  put(p);
  assert_int_equal(found(), 1);
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, path));
  weir_snapshot_destroy(snapshot);
  alloc_close();
  assert_ok(weir__recording_load(path, NULL, &recording));
  assert_ok(weir__explain(recording, &options, &explanation));
  json_length = 0;
  weir__sink_begin(sink, &weir__json_format, keep_json, NULL);
  weir__explain_report(&report, path, recording, &explanation);
  weir__report_json(&report, sink, NULL);
  weir__report_clear(&report);
  assert_ok(weir__sink_end(sink, NULL));
  assert_non_null(strstr(json, "\"guard\": [{\"kind\": \"out_of_bounds\", \"device\": 0, \"block\": \"0x"));
  assert_non_null(strstr(json, "\"offset\": \"1000\", \"requested\": \"1000\", \"text\": \"write past the end"));
  weir__recording_free(recording);
  free(sink);
  unlink(path);
}

/* ---- Every driver call fails once: nothing is found that is not there, and all memory can be freed ---- */

static void open_for_faults(const void *conf) { open_guarded("light", conf); }

static void act_on_faults(void) {
  weir_cu_stream stream = work_stream();
  void *p = get_live(0, 1000, NULL), *q = get_live(0, 3 * MIB, stream);
  if (p)
    write_bytes(p, 0, 1000, NULL);
  if (p && q)
    weir_allocator_record_stream(allocator, q, NULL);
  put_live(p);
  put_live(q);
  get_live(0, 1000, NULL);
  weir_guard_check(allocator, NULL);
  weir_allocator_empty_cache(allocator);
}

static void close_after_faults(void) {
  assert_ok(weir_fault_clear(faults));
  put_all_live();
  assert_int_equal(found(), 0);
  assert_valid();
  assert_ok(weir_allocator_empty_cache(allocator));
  assert_int_equal(reserved(), 0);
  alloc_close();
}

TEST(driver_faults) { sweep_driver_calls(&(fault_sweep){open_for_faults, act_on_faults, close_after_faults, ""}); }
