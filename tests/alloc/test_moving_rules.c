/*
 * Moving pages: captures, checkpoints, limits, and devices and pools without pages.
 */
#include <string.h>

#include "support/alloc.h"

/* Two blocks with a hole of 24 MiB before each; *large is a block that got the pages of both holes. */
static void *move_into(weir_cu_stream stream, void *kept[2]) {
  void *holes[2];
  for (int i = 0; i < 2; i++) {
    holes[i] = get(24 * MIB, stream);
    kept[i] = get(24 * MIB, stream);
  }
  put(holes[0]);
  put(holes[1]);
  int64_t before = stats_of(0).moving_pages_moved;
  void *large = get(40 * MIB, stream);
  assert_true(stats_of(0).moving_pages_moved > before);
  return large;
}

/* ---- Captures ---- */

FIXTURE(.teardown = alloc_teardown)

/* An event must not be queried during a capture, which would become invalid. */
TEST_SETUP(retiring_waits_for_captures, NULL, alloc_teardown_runtime) {
  alloc_open_runtime("moving_pages:True,moving_pages_max_aliases:0");
  weir_stream stream = new_stream(0), captured = new_stream(0);
  void *kept[2], *large = move_into(raw_of(stream), kept);
  assert_true(stats_of(0).moving_aliases > 0);
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(captured));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  void *in_graph = get(4 * MIB, raw_of(captured));
  assert_ok(weir_fill_async(in_graph, 1, 4 * MIB, captured));
  void *outside = get(200 * MIB, raw_of(stream));
  assert_ok(weir_graph_end_capture(graph));
  put(outside);
  void *later = get(300 * MIB, raw_of(stream)); /* a miss, in which the aliases are unmapped */
  assert_ok(weir_stream_synchronize(stream));
  put(get(400 * MIB, raw_of(stream)));
  assert_true(stats_of(0).moving_aliases_unmapped > 0);
  put(later);
  put(large);
  put(kept[0]);
  put(kept[1]);
  put(in_graph);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* ---- Pools ---- */

static weir_pool_id begin_pool(int moving) {
  weir_pool_id id = {7, 0};
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.moving_pages = moving;
  assert_ok(weir_pool_create(allocator, 0, id, &options));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  return id;
}

static void end_pool(weir_pool_id id) {
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
}

/* A checkpoint of a pool fails cleanly once pages have left, and works if they stay. */
TEST(checkpoints) {
  for (int moving = 0; moving < 2; moving++) {
    alloc_open("moving_pages:True", GIB);
    weir_pool_id id = begin_pool(moving);
    void *hole = get(40 * MIB, NULL), *kept = get(40 * MIB, NULL);
    weir_checkpoint *checkpoint = NULL;
    weir_checkpoint_delta delta = {.size = sizeof delta};
    assert_ok(weir_pool_checkpoint(allocator, 0, id, &checkpoint));
    put(hole);
    void *large = get(60 * MIB, NULL);
    assert_int_equal(stats_of(0).moving_pages_moved > 0, moving);
    int64_t before = allocated();
    weir_status status = weir_pool_restore(allocator, checkpoint, &delta);
    if (moving) {
      assert_int_equal(status, WEIR_ERROR_BAD_STATE);
      assert_non_null(strstr(weir_last_error(), "has changed since the checkpoint"));
      assert_int_equal(allocated(), before);
      put(large);
    } else {
      assert_ok(status);
      weir_checkpoint_delta_clear(&delta);
      put(hole);
    }
    put(kept);
    weir_checkpoint_destroy(checkpoint);
    end_pool(id);
    alloc_close();
  }
}

/* ---- Devices and pools that have no pages ---- */

TEST(no_virtual_memory) {
  char text[64];
  collect_messages();
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  faults->MemAddressReserve = NULL;
  allocator = alloc_create("moving_pages:True");
  assert_int_equal(messages_with(WEIR_LOG_WARN, "expandable_segments not supported on this platform"), 1);
  assert_int_equal(weir_allocator_settings(allocator, text, sizeof text, NULL), 0); /* all defaults */
  void *a = get(20 * MIB, NULL);
  assert_layout(a, "20M*");
  put(a);
  void *b = get(20 * MIB - MIB / 2, NULL);
  assert_layout(b, "20M*"); /* split as a fixed segment */
  put(b);
  weir_pool_id id = begin_pool(1);
  a = get(20 * MIB, NULL);
  put(a);
  b = get(20 * MIB - MIB / 2, NULL);
  assert_layout(b, "20M*");
  put(b);
  end_pool(id);
  alloc_close();
}

/* Whether pages move with some settings on the device, which has compute capability 9.0: in the default pool, and in a
 * private one that asks for it. */
static void assert_moves(const char *conf, bool moves) {
  char text[128];
  collect_messages();
  alloc_open(conf, GIB);
  assert_int_equal(messages_with(WEIR_LOG_WARN, "device 0 has compute capability 9.0"), !moves);
  weir_allocator_settings(allocator, text, sizeof text, NULL);
  assert_int_equal(strstr(text, "moving_pages:True") != NULL, moves);
  assert_non_null(strstr(text, "expandable_segments:True"));
  for (int pool = 0; pool < 2; pool++) {
    weir_pool_id id = {0, 0};
    if (pool)
      id = begin_pool(1);
    int64_t before = stats_of(0).moving_pages_moved;
    void *hole = get(24 * MIB, NULL), *kept = get(24 * MIB, NULL);
    put(hole);
    void *large = get(40 * MIB, NULL);
    assert_int_equal(stats_of(0).moving_pages_moved > before, moves);
    put(large);
    put(kept);
    if (pool)
      end_pool(id);
  }
  alloc_close();
}

TEST(compute_capability) {
  assert_moves("moving_pages:True", true);
  assert_moves("moving_pages:True,moving_pages_min_capability:90", true);
  assert_moves("moving_pages:True,moving_pages_min_capability:91", false);
}

/* ---- Limits ---- */

/* A request that fits under the limit exactly is served: its last page is not larger than needed. */
TEST(exactly_the_limit) {
  for (uint64_t bytes = 2 * MIB; bytes <= 90 * MIB; bytes += 2 * MIB) {
    alloc_open("moving_pages:True", GIB);
    assert_ok(weir_allocator_set_limit(allocator, 0, bytes));
    put(get(bytes, NULL));
    assert_int_equal(stats_of(0).reserved_bytes[0].current, bytes);
    alloc_close();
  }
}

/* ---- Moves are earned ---- */

/* A stream that works once and goes idle: its pages move from the one before. */
static void work_once(void) {
  put(get(64 * MIB, work_stream()));
  soft_step_all();
}

/* One move by each page that is made and by 200 allocations; then the slack is six times as large, and not more. */
TEST(moves_are_earned) {
  alloc_open("moving_pages:True", 4 * GIB);
  void *kept = get(960 * MIB, NULL);
  work_once();
  const int64_t made = stats_of(0).moving_pages_made;
  assert_int_equal(made, 30 + 2);
  int64_t moved = 0;
  for (; moved <= made; moved += 2) { /* the last ones with the credit that is just not used up */
    assert_int_equal(stats_of(0).moving_pages_moved, moved);
    work_once();
  }
  assert_int_equal(stats_of(0).moving_pages_moved, moved);
  assert_int_equal(stats_of(0).moving_pages_made, made);
  for (int i = 0; i < 400; i++)
    put(get(1024, NULL));
  work_once(); /* they have earned it */
  moved += 2;
  assert_int_equal(stats_of(0).moving_pages_moved, moved);
  int64_t peak = stats_of(0).allocated_bytes[WEIR_STAT_ALL].peak;
  for (int i = 0; i < 8; i++)
    work_once();
  assert_true(stats_of(0).moving_pages_made > made);
  assert_true((double)reserved() <= 1.06 * (double)peak);
  configure("moving_pages_slack:0");
  int64_t now = stats_of(0).moving_pages_made;
  for (int i = 0; i < 8; i++)
    work_once();
  assert_int_equal(stats_of(0).moving_pages_made, now);
  put(kept);
  alloc_close();
}
