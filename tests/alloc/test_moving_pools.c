/*
 * Pages that stay: those of graphs and private pools, pages that are fixed in place, and pages that other processes
 * have. And captures, which must stay valid.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/moving_fixture.h"
#include "weir/ipc.h"

static const weir_pool_id id = {0, 8};

static void begin(void) { assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL)); }
static void end(void) { assert_ok(weir_pool_end(allocator, 0, id)); }

static void release(void) {
  assert_ok(weir_pool_release(allocator, 0, id));
  assert_valid();
}

static void create(int moves) {
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.moving_pages = moves;
  assert_ok(weir_pool_create(allocator, 0, id, &options));
}

/* ---- Private pools ---- */

FIXTURE(.teardown = alloc_teardown)

/* A pool takes pages of the default pool, when these are certainly unused, and keeps them. */
TEST(pool_takes_and_does_not_lend) {
  alloc_open("moving_pages:True", GIB);
  put(get(40 * MIB, NULL));
  begin();
  void *p = get(40 * MIB, NULL);
  assert_int_equal(reserved(), 40 * (int64_t)MIB);
  holes h = make_holes(NULL);
  end();
  int64_t before = reserved();
  void *q = get(40 * MIB, NULL); /* nothing of the pool's holes */
  assert_int_equal(reserved(), before + 40 * (int64_t)MIB);
  assert_true(stats_of(0).moving_unmovable_pool_bytes >= 80 * (int64_t)MIB);
  begin();
  void *r = get(60 * MIB, NULL); /* and not within the pool */
  assert_true(reserved() >= before + 100 * (int64_t)MIB);
  end();
  put(p);
  put(q);
  put(r);
  end_holes(&h);
  release();
  release();
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}

TEST(pool_does_not_take_busy_pages) {
  alloc_open("moving_pages:True,moving_pages_across_streams:True", GIB);
  void *p = get(40 * MIB, NULL);
  fill(p, 1, 40 * MIB, NULL);
  put(p);
  begin();
  void *q = get(30 * MIB, NULL);
  end();
  fill(q, 2, 30 * MIB, NULL);
  soft_step_all();
  assert_fill(q, 2, 30 * MIB);
  put(q);
  release();
  alloc_close();
}

/* A free range of a pool whose pages serve another request is no memory. */
TEST(text_counts_no_memory_twice) {
  alloc_open("moving_pages:True", GIB);
  create(1);
  begin();
  holes h = make_holes(NULL);
  void *p = get(80 * MIB, NULL); /* in the pages of both holes */
  assert_int_equal(reserved(), 84 * (int64_t)MIB);
  end();
  void *q = NULL;
  assert_int_equal(weir_allocator_alloc(allocator, 0, 2 * GIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  assert_non_null(strstr(weir_last_error(), "Of the allocated memory 84.00 MiB is allocated by Weir, and 0 bytes is"));
  begin();
  put(p);
  end();
  end_holes(&h);
  release();
  release();
  alloc_close();
}

TEST(pool_that_moves) {
  static const char *const confs[] = {"moving_pages:True", ""};
  for (int i = 0; i < 2; i++) {
    alloc_open(confs[i], GIB);
    create(1);
    begin();
    holes h = make_holes(NULL);
    int64_t before = reserved();
    void *p = get(72 * MIB, NULL);
    assert_int_equal(reserved(), before);
    assert_int_equal(pool_of(p).second, id.second);
    end();
    put(p);
    p = get(40 * MIB, NULL); /* its pages stay in the pool */
    assert_true(reserved() >= before + 40 * (int64_t)MIB);
    put(p);
    end_holes(&h);
    release();
    release();
    empty_cache();
    assert_int_equal(reserved(), 0);
    assert_int_equal(soft_census().reservations, 0);
    alloc_close();
  }
}

/* The reserved bytes of the pool's statistics follow the pages. */
TEST(pool_statistics) {
  alloc_open("moving_pages:True", GIB);
  put(get(40 * MIB, NULL));
  begin();
  void *p = get(30 * MIB, NULL);
  end();
  weir_stat stats[WEIR_STAT_KINDS];
  assert_ok(weir_pool_reserved_bytes(allocator, 0, id, stats));
  assert_true(stats[WEIR_STAT_ALL].current >= 30 * (int64_t)MIB && stats[WEIR_STAT_ALL].current <= 40 * (int64_t)MIB);
  assert_int_equal(reserved(), 40 * (int64_t)MIB);
  put(p);
  release();
  empty_cache();
  assert_ok(weir_pool_reserved_bytes(allocator, 0, id, stats));
  assert_int_equal(stats[WEIR_STAT_ALL].current, 0);
  alloc_close();
}

/* ---- Checkpoints ---- */

/* Restoring fails, and changes nothing, if pages of the checkpoint have moved; it works if they have not. */
TEST(checkpoints) {
  alloc_open("moving_pages:True", GIB);
  create(1);
  begin();
  holes h = make_holes(NULL);
  weir_checkpoint *checkpoint = NULL;
  void *hole = get(40 * MIB, NULL);
  assert_ok(weir_pool_checkpoint(allocator, 0, id, &checkpoint));
  weir_checkpoint_delta delta = {.size = sizeof delta};
  void *p = get(30 * MIB, NULL);
  assert_ok(weir_pool_restore(allocator, checkpoint, &delta));
  assert_valid();
  assert_int_equal(delta.freed_count, 4);
  assert_int_equal(delta.allocated_count, 3);
  weir_checkpoint_delta_clear(&delta);
  put(hole);
  p = get(72 * MIB, NULL); /* takes the pages of the holes */
  int64_t before = allocated();
  assert_error_says(BAD_STATE, "has changed since the checkpoint", weir_pool_restore(allocator, checkpoint, &delta));
  assert_valid();
  assert_int_equal(allocated(), before);
  weir_checkpoint_destroy(checkpoint);
  end();
  put(p);
  end_holes(&h);
  release();
  release();
  alloc_close();
}

/* Pages of a usual pool stay, so that every checkpoint can be restored. */
TEST(checkpoint_of_a_pool_whose_pages_stay) {
  alloc_open("moving_pages:True", GIB);
  begin();
  holes h = make_holes(NULL);
  weir_checkpoint *checkpoint = NULL;
  assert_ok(weir_pool_checkpoint(allocator, 0, id, &checkpoint));
  void *p = get(72 * MIB, NULL);
  end();
  void *q = get(72 * MIB, NULL);
  weir_checkpoint_delta delta = {.size = sizeof delta};
  assert_ok(weir_pool_restore(allocator, checkpoint, &delta));
  assert_valid();
  assert_int_equal(delta.freed_count, 3);
  assert_ptr_equal(delta.freed[0] == p || delta.freed[1] == p || delta.freed[2] == p ? p : NULL, p);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  put(q);
  end_holes(&h);
  release();
  alloc_close();
}

/* ---- Captures ---- */

static weir_graph *begin_capture(weir_stream stream) {
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  return graph;
}

static void end_capture(const weir_graph *graph) {
  assert_ok(weir_graph_end_capture((weir_graph *)graph));
  assert_valid();
}

/* Idle pages go into the graph's pool; nothing is put on a stream, and nothing waits. Afterwards they stay. */
TEST_SETUP(capture_takes_idle_pages, NULL, alloc_teardown_runtime) {
  alloc_open_runtime("moving_pages:True,moving_pages_across_streams:True");
  weir_stream stream = new_stream(0), other = new_stream(0);
  put(get(40 * MIB, raw_of(other)));
  soft_step_all();
  unsigned long records = calls(WEIR_CALL_EventRecord), waits = calls(WEIR_CALL_StreamWaitEvent);
  unsigned long syncs = waiting_calls();
  weir_graph *graph = begin_capture(stream);
  void *p = get(40 * MIB, raw_of(stream));
  assert_int_equal(reserved(), 40 * (int64_t)MIB);
  assert_ok(weir_fill_async(p, 5, 40 * MIB, stream));
  put(p);
  void *q = get(50 * MIB, raw_of(stream)); /* a free block of the pool and a hole: pages of the pool stay */
  assert_ok(weir_fill_async(q, 6, 50 * MIB, stream));
  end_capture(graph);
  assert_int_equal(calls(WEIR_CALL_EventRecord), records);
  assert_int_equal(calls(WEIR_CALL_StreamWaitEvent), waits);
  assert_int_equal(waiting_calls(), syncs);
  put(q);
  int64_t moved = stats_of(0).moving_pages_moved;
  void *r = get(60 * MIB, raw_of(stream)), *s = get(60 * MIB, raw_of(other));
  assert_int_equal(stats_of(0).moving_pages_moved, moved); /* the graph writes there whenever it is launched */
  assert_ok(weir_fill_async(r, 1, 60 * MIB, stream));
  assert_ok(weir_fill_async(s, 2, 60 * MIB, other));
  assert_ok(weir_graph_replay(graph));
  soft_step_all();
  assert_fill(r, 1, 60 * MIB);
  assert_fill(s, 2, 60 * MIB);
  assert_fill(q, 6, 50 * MIB);
  put(r);
  put(s);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* Pages whose last use is not known to have completed stay out of the graph's pool. */
TEST_SETUP(capture_does_not_take_busy_pages, NULL, alloc_teardown_runtime) {
  alloc_open_runtime("moving_pages:True,moving_pages_across_streams:True");
  weir_stream stream = new_stream(0), other = new_stream(0);
  void *a = get(40 * MIB, raw_of(other)), *b = get(40 * MIB, raw_of(stream));
  fill(a, 1, 40 * MIB, raw_of(other));
  fill(b, 1, 40 * MIB, raw_of(stream));
  put(a);
  put(b);
  weir_graph *graph = begin_capture(stream);
  void *p = get(40 * MIB, raw_of(stream));
  assert_ok(weir_fill_async(p, 5, 40 * MIB, stream));
  assert_int_equal(reserved(), 120 * (int64_t)MIB);
  assert_int_equal(stats_of(0).moving_pages_moved, 0);
  end_capture(graph);
  soft_step_all();
  put(p);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* A pool whose pages move keeps them once a capture has used it. */
TEST_SETUP(pool_stays_after_a_capture, NULL, alloc_teardown_runtime) {
  alloc_open_runtime("moving_pages:True");
  weir_stream stream = new_stream(0);
  create(1);
  begin();
  holes h = make_holes(raw_of(stream));
  end();
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, id, WEIR_CAPTURE_GLOBAL));
  void *p = get(30 * MIB, raw_of(stream));
  assert_ok(weir_fill_async(p, 5, 30 * MIB, stream));
  end_capture(graph);
  put(p);
  int64_t before = reserved(), moved = stats_of(0).moving_pages_moved;
  begin();
  p = get(72 * MIB, raw_of(stream));
  end();
  assert_true(reserved() > before);
  assert_int_equal(stats_of(0).moving_pages_moved, moved);
  put(p);
  end_holes(&h);
  weir_graph_destroy(graph);
  release();
  release();
  release();
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close_runtime();
}

/* Aliases that are to be retired wait for the end of the capture, on whichever stream the request is. */
TEST_SETUP(retiring_is_postponed_in_a_capture, NULL, alloc_teardown_runtime) {
  alloc_open_runtime("moving_pages:True,moving_pages_max_aliases:0");
  weir_stream stream = new_stream(0), other = new_stream(0);
  holes h = make_holes(raw_of(stream)), g = make_holes(raw_of(other));
  work(raw_of(stream));
  work(raw_of(other));
  void *p = get(72 * MIB, raw_of(stream)); /* its aliases begin to retire */
  assert_true(alias_count() > 0);
  weir_graph *graph = begin_capture(stream);
  unsigned long records = calls(WEIR_CALL_EventRecord);
  void *q = get(80 * MIB, raw_of(stream));
  assert_ok(weir_fill_async(q, 5, 80 * MIB, stream));
  soft_step(raw_of(other), 10);
  void *r = get(90 * MIB, raw_of(stream));
  assert_ok(weir_fill_async(r, 5, 80 * MIB, stream));
  assert_int_equal(calls(WEIR_CALL_EventRecord), records);
  void *s = get(72 * MIB, raw_of(other)), *t = get(100 * MIB, raw_of(other));
  end_capture(graph);
  soft_step_all();
  assert_ok(weir_graph_replay(graph));
  soft_step_all();
  void *u = get(110 * MIB, raw_of(stream));
  soft_step_all();
  void *v = get(120 * MIB, raw_of(stream));
  soft_step_all();
  void *w = get(130 * MIB, raw_of(stream));
  assert_true(stats_of(0).moving_aliases_unmapped > 0);
  void *all[] = {p, q, r, s, t, u, v, w};
  for (size_t i = 0; i < WEIR_COUNT_OF(all); i++)
    put(all[i]);
  end_holes(&h);
  end_holes(&g);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* A capture of another stream: requests elsewhere move pages as usual, and it stays valid. */
TEST_SETUP(moving_beside_a_capture, NULL, alloc_teardown_runtime) {
  static const char *const confs[] = {"moving_pages:True", "moving_pages:True,moving_pages_max_aliases:0",
                                      "moving_pages:True,moving_pages_across_streams:True,moving_pages_max_aliases:0",
                                      "moving_pages:True,moving_pages_completed_only:True"};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    alloc_open_runtime(confs[i]);
    weir_stream stream = new_stream(0), other = new_stream(0), third = new_stream(0);
    holes h = make_holes(raw_of(other)), g = make_holes(raw_of(third));
    weir_graph *graph = begin_capture(stream);
    work(raw_of(third));
    void *p = get(72 * MIB, raw_of(other)), *q = get(100 * MIB, raw_of(other));
    assert_true(stats_of(0).moving_pages_moved > 0);
    fill(p, 1, 72 * MIB, raw_of(other));
    void *in = get(20 * MIB, raw_of(stream));
    assert_ok(weir_fill_async(in, 5, 20 * MIB, stream));
    end_capture(graph);
    assert_ok(weir_graph_replay(graph));
    soft_step_all();
    assert_fill(in, 5, 20 * MIB);
    assert_fill(p, 1, 72 * MIB);
    put(p);
    put(q);
    put(in);
    end_holes(&h);
    end_holes(&g);
    weir_graph_destroy(graph);
    alloc_close_runtime();
  }
}

/* ---- Fixed and exported pages ---- */

TEST(fixed_pages_stay) {
  alloc_open("moving_pages:True", GIB);
  void *a = get(40 * MIB, NULL), *kept = get(2 * MIB, NULL);
  assert_ok(weir_allocator_fix_pages(allocator, a));
  put(a);
  int64_t before = reserved();
  void *p = get(60 * MIB, NULL);
  assert_int_equal(reserved(), before + 60 * (int64_t)MIB);
  assert_int_equal(stats_of(0).moving_pages_moved, 0);
  assert_int_equal(stats_of(0).moving_unmovable_fixed_bytes, 40 * (int64_t)MIB);
  assert_ptr_equal(get(40 * MIB, NULL), a); /* it still serves requests in its place */
  put(a);
  put(p);
  put(kept);
  empty_cache(); /* new pages are not fixed */
  holes h = make_holes(NULL);
  before = reserved();
  put(get(72 * MIB, NULL));
  assert_int_equal(reserved(), before);
  end_holes(&h);
  assert_error(INVALID_ARGUMENT, weir_allocator_fix_pages(allocator, (char *)a + 512));
  alloc_close();
}

/* Fixing a block in the middle of a page fixes that page. */
TEST(fixing_small_blocks) {
  alloc_open("moving_pages:True", GIB);
  void *a = get(4096, NULL);
  assert_ok(weir_allocator_fix_pages(allocator, a));
  put(a);
  int64_t before = reserved();
  void *p = get(2 * MIB, NULL);
  assert_true(reserved() >= before + 2 * (int64_t)MIB);
  put(p);
  alloc_close();
}

TEST(exported_pages_stay) {
  alloc_open("moving_pages:True", GIB);
  void *a = get(2 * MIB, NULL), *kept = get(2 * MIB, NULL);
  weir_ipc_handle handle = {.size = sizeof handle};
  assert_ok(weir_ipc_share(allocator, a, &handle));
  put(a);
  int64_t before = reserved();
  void *p = get(8 * MIB, NULL);
  assert_true(reserved() >= before + 8 * (int64_t)MIB);
  assert_int_equal(stats_of(0).moving_pages_moved, 0);
  assert_int_equal(stats_of(0).moving_unmovable_fixed_bytes, 2 * (int64_t)MIB);
  put(p);
  put(kept);
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* A page that has moved, and is exported where it is now: its aliases stay too, and it does not return to them. */
TEST(exported_after_a_move) {
  alloc_open("moving_pages:True", GIB);
  weir_cu_stream one = work_stream(), other = work_stream();
  void *a = get(2 * MIB, one);
  put(a);
  void *b = get(2 * MIB, other);
  assert_int_equal(reserved(), 2 * (int64_t)MIB);
  fill(b, 3, 2 * MIB, other);
  soft_step_all();
  weir_ipc_handle handle = {.size = sizeof handle};
  assert_ok(weir_ipc_share(allocator, b, &handle));
  put(b);
  void *c = get(2 * MIB, one);
  assert_int_equal(reserved(), 4 * (int64_t)MIB);
  fill(c, 4, 2 * MIB, one);
  soft_step_all();
  assert_fill(b, 3, 2 * MIB); /* as the other process sees it */
  assert_ptr_equal(c, a);     /* with another page */
  put(c);
  alloc_close();
}

/* What another thread may do while a miss has released the heap's lock: move pages in the pool. */
static int gather_once(void *context, int device) {
  void **gathered = context;
  (void)device;
  if (!*gathered) {
    *gathered = context; /* the allocation is a miss too */
    begin();
    *gathered = get(72 * MIB, NULL);
    end();
  }
  return 0;
}

TEST(moving_during_a_miss) {
  alloc_open("", GIB);
  void *gathered = NULL;
  create(1);
  begin();
  holes h = make_holes(NULL);
  end();
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = gather_once, .context = &gathered)));
  void *p = get(40 * MIB, NULL);
  weir_allocator_stats before = stats_of(0);
  assert_true(before.moving_pages_moved > 0);
  put(p);
  put(gathered);
  begin();
  assert_ptr_equal(get(72 * MIB, NULL), gathered); /* of the cache: it keeps its pages */
  put(gathered);
  end();
  assert_int_equal(stats_of(0).moving_pages_returned, before.moving_pages_returned);
  assert_int_equal(stats_of(0).moving_pages_moved, before.moving_pages_moved);
  end_holes(&h);
  release();
  alloc_close();
}

/* ---- A forked child ---- */

TEST(fork) {
  alloc_open("moving_pages:True", GIB);
  holes h = make_holes(NULL);
  void *p = get(72 * MIB, NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    void *q = NULL;
    child_assert(weir_allocator_alloc(allocator, 0, 50 * MIB, NULL, &q) != WEIR_OK && !q);
    child_assert(weir_allocator_free(allocator, p) != WEIR_OK);
    child_assert(weir_allocator_fix_pages(allocator, p) != WEIR_OK);
    weir_allocator_destroy(allocator);
    _exit(0);
  }
  assert_int_equal(child_outcome(child), 0);
  fill(p, 1, 72 * MIB, NULL);
  soft_step_all();
  assert_fill(p, 1, 72 * MIB);
  put(p);
  p = get(80 * MIB, NULL);
  put(p);
  end_holes(&h);
  alloc_close();
}
