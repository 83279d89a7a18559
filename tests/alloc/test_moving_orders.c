/*
 * A page has moved while work still writes to it through its old address. What may follow: that work completes, the old
 * address retires, it is wanted again, a block is freed that another stream uses, a capture allocates, a block is
 * exported. Every order of these runs in stepped time; the usual form of the test runs a part of them. In the end all
 * data is intact, and no memory was unmapped under work that uses it.
 */
#include <stdio.h>
#include <string.h>

#include "alloc/moving_data.h"
#include "support/length.h"
#include "weir/ipc.h"

enum { ACTS = 6 };

static weir_stream stream, other;
static void *moved, *shared, *exported, *captured;
static weir_graph *graph;

/* ---- The acts ---- */

static void complete(void) { soft_step(raw_of(stream), 1000); }

static void retire(void) { assert_non_null(take(100 * MIB, raw_of(stream))); }

/* The pages move back, or on. */
static void want_again(void) {
  give(moved);
  assert_non_null(take(40 * MIB, raw_of(stream)));
  assert_non_null(take(40 * MIB, raw_of(stream)));
}

static void free_while_used(void) {
  give(shared);
  assert_non_null(take(26 * MIB, raw_of(stream)));
}

static void capture(void) {
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  captured = get(30 * MIB, raw_of(stream));
  assert_ok(weir_fill_async(captured, 77, 4096, stream));
  assert_ok(weir_graph_end_capture(graph));
}

static bool is_exported(void) {
  const weir__segment *s = weir__segment_at(&allocator->heaps[0], (uint64_t)exported);
  const weir__mapping *m = s ? weir__mapping_at(&s->memory, (uint64_t)exported) : NULL;
  return weir__is_owner(m) && m->page->file;
}

/* The block is freed. Its address may serve another request, but its pages stay there: another process has them. */
static void export(void) {
  weir_ipc_handle handle = {.size = sizeof handle};
  assert_ok(weir_ipc_share(allocator, exported, &handle));
  put(exported);
}

static void (*const acts[ACTS])(void) = {complete, retire, want_again, free_while_used, capture, export};
static const char letters[] = "cravge";
static char order[ACTS + 1]; /* printed when a test fails */

static int say_order(void **state) {
  if (allocator)
    print_error("in the order %s\n", order);
  return alloc_teardown_runtime(state);
}

FIXTURE(.teardown = say_order)

/* ---- One order ---- */

static void run(const char *conf, const int sequence[ACTS]) {
  data_count = last_pattern = 0;
  for (int i = 0; i < ACTS; i++)
    order[i] = letters[sequence[i]];
  alloc_open_runtime(conf);
  stream = new_stream(0);
  other = new_stream(0);
  weir_cu_stream raw = raw_of(stream);
  void *a = take(40 * MIB, raw);
  take(2 * MIB, raw);
  void *b = take(40 * MIB, raw);
  shared = take(24 * MIB, raw);
  exported = get(2 * MIB, raw);
  assert_ok(weir_allocator_record_stream(allocator, shared, raw_of(other)));
  fill(shared, 50, 64, raw_of(other));
  give(a); /* what writes to it has not begun */
  give(b);
  moved = take(72 * MIB, raw);
  assert_true(stats_of(0).moving_pages_moved > 0);

  for (int i = 0; i < ACTS; i++) {
    acts[sequence[i]]();
    assert_valid();
    assert_int_equal(soft_census().unmaps_in_use, 0);
  }
  check_data();
  assert_true(is_exported());
  assert_ok(weir_graph_replay(graph));
  for (int i = 0; i < 3; i++) { /* what retires now does so while the graph runs */
    take((size_t)(50 + 10 * i) * MIB, raw);
    take((size_t)(50 + 10 * i) * MIB, raw_of(other));
  }
  check_data();
  assert_fill(captured, 77, 4096);
  assert_true(is_exported());
  put(captured);
  while (data_count)
    give(data[data_count - 1].memory);
  weir_graph_destroy(graph);
  graph = NULL;
  soft_step_all();
  empty_cache();
  assert_int_equal(reserved(), 0);
  assert_int_equal(alias_count(), 0);
  alloc_close_runtime();
}

/* Calls run for each order of the acts from `from` on; for some of them in the usual form. */
static void permute(const char *conf, int sequence[ACTS], int from) {
  static int number;
  if (from == ACTS && number++ % usual_or_long(23, 1) == 0)
    run(conf, sequence);
  for (int i = from; i < ACTS; i++) {
    int was[ACTS];
    memcpy(was, sequence, sizeof was);
    sequence[from] = was[i];
    sequence[i] = was[from];
    permute(conf, sequence, from + 1);
    memcpy(sequence, was, sizeof was);
  }
}

static void run_orders(const char *conf) {
  int sequence[ACTS] = {0, 1, 2, 3, 4, 5};
  permute(conf, sequence, 0);
}

TEST(no_aliases_are_kept) { run_orders("moving_pages:True,moving_pages_max_aliases:0"); }

TEST(aliases_are_kept) { run_orders("moving_pages:True"); }

TEST(across_streams) { run_orders("moving_pages:True,moving_pages_max_aliases:2,moving_pages_across_streams:True"); }
