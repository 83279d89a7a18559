/*
 * Private pools: scopes, holders, and the lifetime of their memory.
 */
#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"
#include "weir/adapter.h"
#include "weir/snapshot.h"

static const weir_pool_id pool_a = {0, 11}, pool_b = {0, 12}, graph_pool = {13, 0};

static void begin(weir_pool_id id) { assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL)); }
static void end(weir_pool_id id) { assert_ok(weir_pool_end(allocator, 0, id)); }

static void release(weir_pool_id id) {
  assert_ok(weir_pool_release(allocator, 0, id));
  assert_valid();
}

static int holders(weir_pool_id id) {
  int count = -1;
  assert_ok(weir_pool_use_count(allocator, 0, id, &count));
  return count;
}

static bool exists(weir_pool_id id) {
  int count;
  return weir_pool_use_count(allocator, 0, id, &count) == WEIR_OK;
}

#define assert_in_pool(p, id)                                                                                          \
  do {                                                                                                                 \
    weir_pool_id found = pool_of(p);                                                                                   \
    assert_int_equal(found.first, (id).first);                                                                         \
    assert_int_equal(found.second, (id).second);                                                                       \
  } while (0)
static const weir_pool_id default_pool = {0, 0};

static int segments_of(weir_pool_id id) {
  int count = 0;
  for (const weir__segment *s = allocator->heaps[0].segments; s; s = s->next) {
    const weir__private_pool *owner = s->arena->pool->owner;
    count += owner && owner->id.first == id.first && owner->id.second == id.second;
  }
  return count;
}

/* ---- Scopes ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(scope_of_a_thread) {
  alloc_open(NULL, GIB);
  void *before = get(512, NULL);
  put(before);
  begin(pool_a);
  void *in = get(512, NULL);
  assert_in_pool(in, pool_a);
  assert_ptr_not_equal(in, before); /* blocks cached outside the pool are not used */
  end(pool_a);
  put(in);
  void *after = get(512, NULL);
  assert_ptr_equal(after, before); /* nor the reverse */
  assert_in_pool(after, default_pool);
  begin(pool_a);
  assert_ptr_equal(get(512, NULL), in);
  end(pool_a);
  put(after);
  alloc_close();
}

static void *alloc_on_thread(void *out) {
  weir_allocator_alloc(allocator, 0, 512, NULL, out);
  return NULL;
}

/* PyTorch's test_mempool_ctx_multithread: a scope without a filter applies only to its thread. */
TEST(scope_does_not_apply_to_other_threads) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  void *mine = get(512, NULL), *theirs = NULL;
  on_thread(alloc_on_thread, &theirs);
  end(pool_a);
  assert_in_pool(mine, pool_a);
  assert_in_pool(theirs, default_pool);
  alloc_close();
}

static weir_cu_stream wanted;
static int is_wanted(void *context, weir_cu_stream stream) {
  assert_string_equal(context, "context");
  return stream == wanted;
}

TEST(scope_with_a_filter) {
  alloc_open(NULL, GIB);
  static char context[] = "context";
  weir_cu_stream other = work_stream();
  wanted = work_stream();
  assert_ok(weir_pool_begin(allocator, 0, pool_a, is_wanted, context));
  assert_in_pool(get(512, wanted), pool_a);
  assert_in_pool(get(512, other), default_pool);
  assert_in_pool(get(512, NULL), default_pool);
  void *theirs = NULL;
  wanted = NULL;
  on_thread(alloc_on_thread, &theirs); /* on any thread */
  assert_in_pool(theirs, pool_a);
  end(pool_a);
  assert_in_pool(get(512, wanted), default_pool);
  alloc_close();
}

/* A scope applies to one device. */
TEST(scope_of_a_device) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  assert_ok(weir_pool_begin(allocator, 1, pool_a, NULL, NULL));
  assert_in_pool(get_on(0, 512, NULL), default_pool);
  assert_in_pool(get_on(1, 512, NULL), pool_a);
  assert_ok(weir_pool_end(allocator, 1, pool_a));
  alloc_close();
}

/* An allocator can be destroyed while scopes are open. */
TEST(destroyed_with_an_open_scope) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  begin(pool_b);
  get(512, NULL);
  alloc_close();
}

/* ---- Holders ---- */

TEST(use_counts) {
  alloc_open(NULL, GIB);
  assert_ok(weir_pool_create(allocator, 0, pool_a, NULL));
  assert_int_equal(holders(pool_a), 1);
  begin(pool_a);
  assert_int_equal(holders(pool_a), 2);
  end(pool_a);
  assert_int_equal(holders(pool_a), 2); /* closing a scope does not release the pool */
  assert_ok(weir_pool_create(allocator, 0, pool_a, NULL));
  assert_int_equal(holders(pool_a), 3);
  release(pool_a);
  release(pool_a);
  assert_int_equal(holders(pool_a), 1);
  release(pool_a);
  assert_int_equal(holders(pool_a), 0);
  empty_cache();
  assert_false(exists(pool_a));
  alloc_close();
}

/* A pool is listed while it is held or has memory. A released pool without memory is not listed, even before the cache
 * is emptied. */
TEST(listed_pools) {
  alloc_open(NULL, GIB);
  size_t count;
  begin(pool_a);
  void *p = get(30 * MIB, NULL);
  end(pool_a);
  assert_ok(weir_pool_create(allocator, 0, pool_b, NULL));
  assert_ok(weir_allocator_pools(allocator, 0, 0, NULL, 0, &count));
  assert_int_equal(count, 2);
  release(pool_b);
  release(pool_a);
  weir_pool_id known;
  assert_ok(weir_allocator_pools(allocator, 0, 0, &known, 1, &count));
  assert_int_equal(count, 1);
  assert_int_equal(known.second, pool_a.second);
  char *text = NULL;
  size_t size;
  FILE *file = open_memstream(&text, &size);
  assert_non_null(file);
  put(p);
  assert_ok(weir_allocator_write_stats(allocator, 0, WEIR_STATS_FLAT, weir_write_file, file));
  empty_cache();
  assert_ok(weir_allocator_write_stats(allocator, 0, WEIR_STATS_FLAT, weir_write_file, file));
  assert_int_equal(fclose(file), 0);
  char *first = strstr(text, "by_private_pools");
  char *second = strchr(strchr(text, '}'), '{');
  assert_true(first && first < second);
  assert_null(strstr(second, "by_private_pools"));
  free(text);
  assert_ok(weir_allocator_pools(allocator, 0, 0, NULL, 0, &count));
  assert_int_equal(count, 0);
  alloc_close();
}

/* The statistics of a pool outlive it, and continue when it is created again. */
TEST(statistics_outlive_the_pool) {
  alloc_open(NULL, GIB);
  weir_stat stats[WEIR_STAT_KINDS];
  for (int round = 1; round <= 2; round++) {
    begin(pool_a);
    void *p = get(30 * MIB, NULL);
    end(pool_a);
    put(p);
    release(pool_a);
    empty_cache();
    assert_false(exists(pool_a));
    assert_ok(weir_pool_reserved_bytes(allocator, 0, pool_a, stats));
    assert_int_equal(stats[WEIR_STAT_ALL].current, 0);
    assert_int_equal(stats[WEIR_STAT_ALL].peak, 30 * MIB);
    assert_int_equal(stats[WEIR_STAT_LARGE_POOL].allocated, 30 * MIB * round);
  }
  size_t count;
  weir_pool_id known;
  assert_ok(weir_allocator_pools(allocator, 0, 0, &known, 1, &count));
  assert_int_equal(count, 0); /* only available by its id */
  assert_ok(weir_allocator_pools(allocator, 0, 1, &known, 1, &count));
  assert_int_equal(count, 1);
  assert_int_equal(known.second, pool_a.second);
  alloc_close();
}

/* Statistics are kept for live pools and for the newest of those that had memory. */
TEST(statistics_of_many_pools) {
  alloc_open(NULL, GIB);
  enum { COUNT = 3000 };
  weir_stat stats[WEIR_STAT_KINDS];
  size_t count;
  assert_ok(weir_pool_create(allocator, 0, pool_a, NULL));
  for (uint64_t i = 0; i < COUNT; i++) {
    weir_pool_id id = {i + 1000, 0};
    begin(id);
    void *p = i % 3 ? get(512, NULL) : NULL;
    end(id);
    put(p);
    release(id);
    if (i % 3)
      empty_cache();
  }
  assert_ok(weir_allocator_pools(allocator, 0, 0, NULL, 0, &count));
  assert_int_equal(count, 1); /* destroyed pools do not slow down reading all statistics */
  assert_ok(weir_allocator_pools(allocator, 0, 1, NULL, 0, &count));
  assert_in_range(count, 101, 600);
  assert_ok(weir_pool_reserved_bytes(allocator, 0, pool_a, stats));
  for (uint64_t i = COUNT - 100; i < COUNT; i++)
    if (i % 3) {
      assert_ok(weir_pool_reserved_bytes(allocator, 0, (weir_pool_id){i + 1000, 0}, stats));
      assert_int_equal(stats[WEIR_STAT_ALL].allocated, 2 * MIB);
    }
  assert_error(INVALID_ARGUMENT, weir_pool_reserved_bytes(allocator, 0, (weir_pool_id){1001, 0}, stats));
  release(pool_a);
  alloc_close();
}

TEST(held_pool_keeps_its_memory) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  void *p = get(30 * MIB, NULL);
  end(pool_a);
  put(p);
  empty_cache();
  assert_int_equal(reserved(), 30 * MIB);
  assert_ok(weir_allocator_empty_pool(allocator, pool_a));
  assert_int_equal(reserved(), 30 * MIB);
  release(pool_a);
  assert_int_equal(reserved(), 30 * MIB); /* it can be freed now, but only on request */
  empty_cache();
  assert_int_equal(reserved(), 0);
  assert_false(exists(pool_a));
  alloc_close();
}

/* PyTorch's test_graph_memory_stats_and_use_result_after_destroy_graph: memory in use outlives its pool. */
TEST(memory_in_use_outlives_the_holders) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open(expandable ? "expandable_segments:True" : NULL, GIB);
    begin(pool_a);
    char *p = get(30 * MIB, NULL), *q = get(512, NULL), *unused = get(30 * MIB, NULL);
    end(pool_a);
    memset(p, 5, 30 * MIB);
    put(unused);
    release(pool_a);
    empty_cache();
    assert_true(exists(pool_a));
    assert_int_equal(p[30 * MIB - 1], 5);
    put(p);
    empty_cache();
    assert_true(exists(pool_a));
    put(q);
    assert_int_equal(reserved(), 2 * MIB);
    empty_cache();
    assert_int_equal(reserved(), 0);
    assert_false(exists(pool_a));
    alloc_close();
  }
}

TEST(held_again_before_release) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  void *p = get(30 * MIB, NULL);
  end(pool_a);
  put(p);
  release(pool_a);
  begin(pool_a);
  assert_int_equal(holders(pool_a), 1);
  assert_ptr_equal(get(30 * MIB, NULL), p);
  end(pool_a);
  empty_cache();
  assert_int_equal(reserved(), 30 * MIB);
  alloc_close();
}

/* A pool released inside its scope is used until the scope is closed. */
TEST(released_inside_the_scope) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  put(get(512, NULL));
  release(pool_a);
  empty_cache();
  assert_int_equal(reserved(), 0);
  void *p = get(512, NULL);
  assert_in_pool(p, pool_a);
  put(p);
  end(pool_a);
  empty_cache();
  assert_false(exists(pool_a));
  alloc_close();
}

TEST(empty_one_pool) {
  alloc_open(NULL, GIB);
  void *outside = get(30 * MIB, NULL);
  begin(pool_a);
  void *a = get(40 * MIB, NULL);
  end(pool_a);
  begin(pool_b);
  void *b = get(50 * MIB, NULL);
  end(pool_b);
  put(outside);
  put(a);
  put(b);
  release(pool_a);
  release(pool_b);
  assert_ok(weir_allocator_empty_pool(allocator, pool_a));
  assert_valid();
  assert_int_equal(reserved(), 80 * MIB);
  assert_ok(weir_allocator_empty_pool(allocator, pool_a)); /* destroyed: nothing to do */
  assert_ok(weir_allocator_empty_pool(allocator, default_pool));
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* A block of the pool that waits for another stream is waited for. */
TEST(empty_one_pool_waits_for_its_events) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  begin(pool_a);
  void *a = get(40 * MIB, NULL);
  end(pool_a);
  work(other);
  also_used_by(a, other);
  put(a);
  release(pool_a);
  assert_ok(weir_allocator_empty_pool(allocator, pool_a));
  assert_int_equal(reserved(), 0);
  assert_int_equal(soft_pending(other), 0);
  alloc_close();
}

/* An expandable segment of a pool is counted once, however it was mapped and however many pieces are unmapped. */
TEST(expandable_pool_is_unmapped_in_pieces) {
  alloc_open("expandable_segments:True", GIB);
  begin(pool_a);
  void *p = get(60 * MIB, NULL); /* one mapping of three pages */
  put(p);
  void *page[3];
  for (int i = 0; i < 3; i++)
    page[i] = get(20 * MIB, NULL);
  assert_ptr_equal(page[0], p);
  end(pool_a);
  put(page[0]);
  put(page[2]);
  release(pool_a);
  empty_cache(); /* two holes */
  assert_int_equal(reserved(), 20 * MIB);
  assert_true(exists(pool_a));
  assert_int_equal(segments_of(pool_a), 1);
  begin(pool_a); /* fills both holes with three mappings */
  void *a = get(20 * MIB, NULL), *b = get(20 * MIB, NULL);
  end(pool_a);
  put(a);
  put(b);
  put(page[1]);
  release(pool_a);
  empty_cache();
  assert_false(exists(pool_a));
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* Its first growth failed, and nothing is left that could outlive the pool. */
TEST(expandable_pool_that_never_grew) {
  alloc_open("expandable_segments:True", GIB);
  void *big = get(1000 * MIB, NULL), *p;
  begin(pool_a);
  assert_int_equal(try_get(100 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  end(pool_a);
  release(pool_a);
  empty_cache();
  assert_false(exists(pool_a));
  put(big);
  put(get(100 * MIB, NULL));
  alloc_close();
}

/* ---- Options ---- */

static void create(weir_pool_id id, int use_on_oom, int no_split) {
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.use_on_oom = use_on_oom;
  options.no_split = no_split;
  assert_ok(weir_pool_create(allocator, 0, id, &options));
}

/* PyTorch's test_mempool_limited_memory_with_allocator: a free block of the pool serves others as a last resort. */
TEST(use_on_oom) {
  alloc_open(NULL, GIB);
  create(pool_a, 1, 0);
  begin(pool_a);
  void *p = get(600 * MIB, NULL);
  end(pool_a);
  put(p);
  void *q = get(600 * MIB, NULL);
  assert_ptr_equal(q, p);
  assert_int_equal(stats_of(0).num_alloc_retries, 0); /* before anything is released */
  put(q);
  assert_in_pool(q, pool_a); /* it returns to its pool */
  assert_int_equal(reserved(), 600 * MIB);

  void *other_stream; /* the pool does not grow for others, and its arenas stay with their streams */
  assert_int_equal(try_get(600 * MIB, work_stream(), &other_stream), WEIR_ERROR_OUT_OF_MEMORY);
  begin(pool_b); /* private pools do not borrow */
  assert_int_equal(try_get(600 * MIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  end(pool_b);

  assert_ok(weir_pool_set_use_on_oom(allocator, 0, pool_a, 0));
  assert_int_equal(try_get(600 * MIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  assert_ok(weir_pool_set_use_on_oom(allocator, 0, pool_a, 1));
  q = get(500 * MIB, NULL);
  assert_layout(q, "500M* 100M");
  put(q);
  alloc_close();
}

/* The block that could be lent waits for another stream: the allocator waits, and searches again. */
TEST(use_on_oom_after_the_events) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  create(pool_a, 1, 0);
  begin(pool_a);
  void *p = get(600 * MIB, NULL);
  end(pool_a);
  work(other);
  also_used_by(p, other);
  put(p);
  assert_ptr_equal(get(600 * MIB, NULL), p);
  assert_int_equal(stats_of(0).num_ooms, 0);
  alloc_close();
}

/* With a split limit, large blocks are released one by one when memory is short, except those of a held pool, which
 * graphs write to. */
TEST(held_pool_keeps_oversize_blocks) {
  alloc_open("max_split_size_mb:40", GIB);
  begin(pool_a);
  void *p = get(600 * MIB, NULL), *q;
  put(p);
  assert_int_equal(try_get(500 * MIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(reserved(), 600 * MIB);
  assert_ptr_equal(get(590 * MIB, NULL), p);
  end(pool_a);
  alloc_close();
}

/* PyTorch's test_deleted_mempool_not_used_on_oom: memory of a released pool is released like any other. */
TEST(use_on_oom_ends_with_the_holders) {
  alloc_open(NULL, GIB);
  create(pool_a, 1, 0);
  begin(pool_a);
  void *p = get(600 * MIB, NULL);
  end(pool_a);
  put(p);
  release(pool_a);
  release(pool_a);
  void *q = get(600 * MIB, NULL);
  assert_in_pool(q, default_pool);
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  put(q);
  alloc_close();
}

TEST(no_split) {
  alloc_open(NULL, GIB);
  create(pool_a, 0, 1);
  begin(pool_a);
  void *a = get(512, NULL), *b = get(512, NULL), *c = get(2 * MIB, NULL);
  end(pool_a);
  assert_layout(a, "2M*");
  assert_layout(b, "2M*");
  assert_layout(c, "20M*");
  assert_int_equal(segments_of(pool_a), 3);
  assert_int_equal(allocated(), 24 * MIB);
  put(a);
  put(b);
  put(c);
  release(pool_a);
  release(pool_a); /* "no_split erased on release" */
  begin(pool_a);
  a = get(512, NULL);
  assert_layout(a, "512* 2096640");
  end(pool_a);
  put(a);
  alloc_close();
}

/* A block that is freed and reused at once was allocated under the previous rule. Nothing else inspects it here. */
TEST(no_split_ends_between_a_pair) {
  for (int by_release = 0; by_release < 2; by_release++) {
    void *p = NULL, *q = NULL;
    alloc_open(NULL, GIB);
    create(pool_a, 0, 1);
    begin(pool_a);
    put(get(3 * MIB, NULL));
    assert_ok(weir_allocator_alloc(allocator, 0, 3 * MIB, NULL, &p));
    for (int i = 0; by_release && i < 2; i++)
      assert_ok(weir_pool_release(allocator, 0, pool_a));
    if (!by_release)
      assert_ok(weir_pool_set_no_split(allocator, 0, pool_a, 0));
    assert_ok(weir_allocator_free(allocator, p));
    assert_ok(weir_allocator_alloc(allocator, 0, 3 * MIB, NULL, &q));
    assert_ptr_equal(q, p);
    assert_layout(q, "3M* 17M");
    put(q);
    end(pool_a);
    alloc_close();
  }
}

TEST(options_are_for_a_new_pool) {
  alloc_open(NULL, GIB);
  create(pool_a, 0, 0);
  create(pool_a, 0, 1);
  begin(pool_a);
  void *a = get(512, NULL);
  assert_layout(a, "512* 2096640");
  end(pool_a);
  put(a);
  alloc_close();
}

/* ---- Pools with their own functions ---- */

enum { BORROWED = 16 };
static struct {
  int allocs, frees, device, refuse;
  weir_cu_stream stream;
  size_t bytes;
  size_t skew; /* offset of its memory from a 2 MiB border */
  struct {
    char *whole, *given;
    size_t bytes;
  } out[BORROWED];
} own;

static void *own_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  assert_ptr_equal(context, &own);
  if (own.refuse)
    return NULL;
  own.device = device;
  own.stream = stream;
  own.bytes = bytes;
  assert_true(own.allocs < BORROWED);
  char *whole = NULL;
  assert_int_equal(posix_memalign((void **)&whole, 2 * MIB, bytes + 2 * MIB), 0);
  own.out[own.allocs].whole = whole;
  own.out[own.allocs].given = whole + own.skew;
  own.out[own.allocs].bytes = bytes;
  return own.out[own.allocs++].given;
}

static void own_free(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  assert_ptr_equal(context, &own);
  int i = 0;
  while (i < own.allocs && own.out[i].given != pointer)
    i++;
  assert_true(i < own.allocs);
  assert_int_equal(own.out[i].bytes, bytes);
  assert_int_equal(device, own.device);
  assert_ptr_equal(stream, own.stream);
  free(own.out[i].whole);
  own.out[i].given = NULL;
  own.frees++;
}

static void create_own(weir_pool_id id, int use_on_oom) {
  memset(&own, 0, sizeof own);
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = own_alloc;
  options.free = own_free;
  options.context = &own;
  options.use_on_oom = use_on_oom;
  assert_ok(weir_pool_create(allocator, 0, id, &options));
}

/* PyTorch's test_mempool_with_allocator. */
TEST(own_memory) {
  alloc_open("expandable_segments:True", GIB); /* not used by such a pool */
  weir_cu_stream stream = work_stream();
  create_own(pool_a, 0);
  begin(pool_a);
  char *p = get(2 * MIB, stream), *q = get(2 * MIB, stream);
  end(pool_a);
  assert_int_equal(own.allocs, 1); /* cached and split as usual */
  assert_int_equal(own.bytes, 20 * MIB);
  assert_int_equal(own.device, 0);
  assert_ptr_equal(own.stream, stream);
  assert_ptr_equal(p, own.out[0].given);
  assert_layout(p, "2M* 2M* 16M");
  memset(q, 3, 2 * MIB);
  assert_int_equal(reserved(), 20 * MIB);
  put(p);
  put(q);
  empty_cache();
  assert_int_equal(own.frees, 0);
  release(pool_a);
  release(pool_a);
  empty_cache();
  assert_int_equal(own.frees, 1);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

TEST(own_memory_is_refused) {
  alloc_open(NULL, GIB);
  create_own(pool_a, 0);
  own.refuse = 1;
  void *p;
  begin(pool_a);
  assert_int_equal(try_get(2 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  own.refuse = 0;
  p = get(2 * MIB, NULL);
  end(pool_a);
  put(p);
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = own_alloc;
  options.free = own_free;
  assert_error_says(BAD_STATE, "exists", weir_pool_create(allocator, 0, pool_a, &options));
  assert_int_equal(holders(pool_a), 2);
  alloc_close();
  assert_int_equal(own.frees, 1); /* freed with the allocator at the latest */
}

/* A pool's function may ask the allocator for the base of a pointer. Memory that is already in use is refused, and is
 * not passed to the free function either. */
static void *strange_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)bytes, (void)device, (void)stream;
  void *base = NULL;
  size_t all;
  assert_ok(weir_allocator_base(allocator, context, &base, &all));
  return base;
}

static void strange_free(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)pointer, (void)bytes, (void)device, (void)stream;
  fail();
}

TEST(own_memory_that_is_in_use) {
  alloc_open(NULL, GIB);
  void *first = get(4096, NULL), *p;
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = strange_alloc;
  options.free = strange_free;
  options.context = first;
  assert_ok(weir_pool_create(allocator, 0, pool_a, &options));
  begin(pool_a);
  collect_messages();
  assert_int_equal(try_get(2 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_true(messages_with(WEIR_LOG_ERROR, "is already in use") > 0);
  end(pool_a);
  assert_valid();
  put(first);
  alloc_close();
}

/* Memory from a pool's functions may begin at any address: segments then share units of the page map. */
TEST(own_memory_unaligned) {
  alloc_open(NULL, GIB);
  create_own(pool_a, 0);
  own.skew = MIB + 512;
  begin(pool_a);
  void *p[8];
  for (int i = 0; i < 8; i++)
    p[i] = get(12 * MIB, NULL);
  end(pool_a);
  for (int i = 0; i < 8; i++)
    memset(p[i], i, 12 * MIB);
  for (int i = 0; i < 8; i++)
    put(p[7 - i]);
  release(pool_a);
  release(pool_a);
  empty_cache();
  assert_int_equal(own.frees, 8);
  alloc_close();
}

/* Two adjacent segments in one piece of memory: the unit that contains their border leads to both. */
static char *arena_start;
static size_t arena_used;
static void *slice_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)device, (void)stream;
  char *p = arena_start + arena_used;
  arena_used += bytes;
  return p;
}
static void slice_free(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)pointer, (void)bytes, (void)device, (void)stream;
}

TEST(segments_that_share_a_unit) {
  alloc_open(NULL, GIB);
  char *whole = NULL;
  assert_int_equal(posix_memalign((void **)&whole, 2 * MIB, 64 * MIB), 0);
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = slice_alloc;
  options.free = slice_free;
  assert_ok(weir_pool_create(allocator, 0, pool_a, &options));
  for (int round = 0; round < 3; round++) {
    arena_start = whole + 1536 * KIB; /* borders in the middle of units */
    arena_used = 0;
    begin(pool_a);
    char *p[4], *s[4];
    for (int i = 0; i < 4; i++) {
      p[i] = get(12 * MIB, NULL);
      s[i] = get(MIB, work_stream()); /* a segment of 2 MiB, the size of a unit */
    }
    end(pool_a);
    for (int i = 0; i < 4; i++) {
      assert_layout(p[i], "12M*");
      assert_layout(p[i] + 12 * MIB - 1, "12M*");
      assert_layout(s[i], "1M* 1M");
      assert_layout(s[i] + 2 * MIB - 1, "1M* 1M");
      assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, p[i] + 2 * MIB));
    }
    static const int order[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++) {
      put(p[order[(i + round) % 4]]);
      put(s[order[i]]);
    }
    assert_ok(weir_pool_release(allocator, 0, pool_a));
    assert_ok(weir_pool_release(allocator, 0, pool_a));
    empty_cache();
    assert_int_equal(reserved(), 0);
    assert_ok(weir_pool_create(allocator, 0, pool_a, &options));
  }
  alloc_close();
  free(whole);
}

/* ---- Out of memory in a scope ---- */

/* PyTorch's test_mempool_oom_recovery_releases_cached_blocks: a scope is not a capture, so all cached memory can be
 * released. */
TEST(cached_memory_is_released_for_a_pool) {
  alloc_open(NULL, GIB);
  void *cached = get(800 * MIB, NULL);
  put(cached);
  begin(pool_a);
  void *p = get(800 * MIB, NULL);
  end(pool_a);
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  put(p);
  alloc_close();
}

/* PyTorch's test_mempool_block_free_not_deferred: a free in a scope is not deferred. */
TEST(free_in_a_scope_gets_its_events) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  begin(pool_a);
  void *p = get(512, NULL);
  also_used_by(p, other);
  put(p);
  assert_int_equal(calls(WEIR_CALL_EventRecord), 1);
  soft_step_all();
  assert_ptr_equal(get(512, NULL), p);
  end(pool_a);
  alloc_close();
}

/* ---- Live allocations ---- */

static int is_live_set(weir_pool_id id, void *const *pointers, size_t count) {
  int equal = -1;
  assert_ok(weir_pool_has_exactly(allocator, 0, id, pointers, count, &equal));
  return equal;
}

/* PyTorch's test_check_pool_live_allocations. */
TEST(check_live) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  void *p = get(16, NULL), *q = get(30 * MIB, work_stream());
  end(pool_a);
  void *outside = get(16, NULL);
  assert_true(is_live_set(pool_a, (void *[]){p, q}, 2));
  assert_true(is_live_set(pool_a, (void *[]){q, p}, 2));
  assert_true(is_live_set(pool_a, (void *[]){q, p, q, q, p}, 5)); /* order and duplicates do not matter */
  assert_false(is_live_set(pool_a, (void *[]){p}, 1));
  assert_false(is_live_set(pool_a, (void *[]){p, q, NULL}, 3));
  assert_false(is_live_set(pool_a, (void *[]){p, outside}, 2));
  assert_false(is_live_set(pool_a, (void *[]){p, (char *)q + 512}, 2));
  assert_false(is_live_set(pool_a, NULL, 0));
  put(p);
  assert_true(is_live_set(pool_a, (void *[]){q}, 1));
  weir_cu_stream other = work_stream();
  work(other);
  also_used_by(q, other);
  put(q); /* waiting, so not live */
  assert_true(is_live_set(pool_a, NULL, 0));
  soft_step_all();
  put(outside);
  alloc_close();
}

/* ---- Threads ---- */

static void *use_pool(void *stream) {
  weir_pool_begin(allocator, 0, graph_pool, NULL, NULL);
  for (int i = 0; i < 10; i++) {
    void *p[3];
    for (int k = 0; k < 3; k++)
      weir_allocator_alloc(allocator, 0, 20 * MIB, stream, &p[k]);
    for (int k = 0; k < 3; k++)
      weir_allocator_free(allocator, p[k]);
  }
  weir_pool_end(allocator, 0, graph_pool);
  weir_pool_release(allocator, 0, graph_pool);
  return NULL;
}

static void *use_no_pool(void *stream) {
  for (int i = 0; i < 10; i++) {
    void *p[2];
    for (int k = 0; k < 2; k++)
      weir_allocator_alloc(allocator, 0, 20 * MIB, stream, &p[k]);
    for (int k = 0; k < 2; k++)
      weir_allocator_free(allocator, p[k]);
  }
  return NULL;
}

/* PyTorch's test_allocate_in_thread_to_pool: three segments of the thread and the existing one, or two expandable ones.
 * */
TEST(seed_allocate_in_thread_to_pool) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open(expandable ? "expandable_segments:True" : NULL, GIB);
    weir_cu_stream first = work_stream(), second = work_stream();
    assert_ok(weir_pool_create(allocator, 0, graph_pool, NULL));
    begin(graph_pool);
    put(get(16, first));
    end(graph_pool);
    release(graph_pool);
    assert_int_equal(segments_of(graph_pool), 1);
    pthread_t with, without;
    assert_int_equal(pthread_create(&with, NULL, use_pool, second), 0);
    assert_int_equal(pthread_create(&without, NULL, use_no_pool, NULL), 0);
    pthread_join(with, NULL);
    pthread_join(without, NULL);
    assert_valid();
    assert_int_equal(segments_of(graph_pool), expandable ? 2 : 4);
    release(graph_pool);
    empty_cache();
    assert_int_equal(segments_of(graph_pool), 0);
    alloc_close();
  }
}
