/*
 * Tags: which pool serves a request in their scopes, which pools belong to them, and the pages that they grow by.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/alloc.h"
#include "weir/tag.h"

static weir_tag *open_tag(const char *name) {
  weir_tag *tag = NULL;
  assert_ok(weir_tag_open(allocator, 0, name, &tag));
  return tag;
}

static weir_tag_info info_of(weir_tag *tag) {
  weir_tag_info info;
  weir_tag_info_init(&info);
  assert_ok(weir_tag_get_info(tag, &info));
  return info;
}

static bool is_of(const void *p, weir_tag *tag) {
  weir_tag *found = NULL;
  assert_ok(weir_pool_tag(allocator, 0, pool_of(p), &found));
  return found == tag;
}

FIXTURE(.teardown = alloc_teardown_runtime)

TEST(a_name_is_one_tag) {
  alloc_open(NULL, 256 * MIB);
  weir_tag *weights = open_tag("weights"), *cache = open_tag("cache"), *tags[2];
  assert_ptr_equal(open_tag("weights"), weights);
  assert_ptr_not_equal(weights, cache);
  size_t count = 0;
  assert_ok(weir_allocator_tags(allocator, 0, tags, 1, &count));
  assert_int_equal(count, 2);
  assert_ptr_equal(tags[0], weights);
  assert_ok(weir_allocator_tags(allocator, 0, tags, 2, &count));
  assert_ptr_equal(tags[1], cache);
  weir_tag_info info = info_of(cache);
  assert_string_equal(info.name, "cache");
  assert_int_equal(info.state, WEIR_TAG_AWAKE);
  assert_int_equal(info.pools, 1);
  assert_int_equal(info.reserved_bytes, 0);
  alloc_close();
}

TEST(innermost_scope_counts) {
  alloc_open(NULL, 256 * MIB);
  weir_tag *a = open_tag("a"), *b = open_tag("b");
  void *outside = get(MIB, NULL);
  assert_ok(weir_tag_begin(a));
  void *in_a = get(MIB, NULL);
  assert_ok(weir_tag_begin(b));
  assert_ok(weir_tag_begin(b));
  void *in_b = get(4 * MIB, NULL);
  assert_ok(weir_tag_end(b));
  void *still_in_b = get(512, NULL);
  assert_ok(weir_tag_end(b));
  void *again_in_a = get(3 * MIB, NULL);
  assert_ok(weir_tag_end(a));
  void *after = get(512, NULL);
  assert_true(is_of(outside, NULL) && is_of(after, NULL));
  assert_true(is_of(in_a, a) && is_of(again_in_a, a));
  assert_true(is_of(in_b, b) && is_of(still_in_b, b));
  assert_int_equal(info_of(a).allocated_bytes, 4 * MIB);
  assert_int_equal(info_of(b).allocated_bytes, 4 * MIB + 512);
  put(in_a), put(in_b), put(still_in_b), put(again_in_a), put(outside), put(after);
  assert_error_says(BAD_STATE, "not in the scope of the tag 'a'", weir_tag_end(a));
  alloc_close();
}

static void *get_in_thread(void *unused) {
  (void)unused;
  return get(MIB, NULL);
}

static void *begin_in_thread(void *tag) {
  assert_ok(weir_tag_begin(tag));
  return NULL;
}

TEST(threads_have_their_own_scopes) {
  alloc_open(NULL, 256 * MIB);
  weir_tag *tag = open_tag("weights");
  pthread_t thread;
  void *p = NULL;
  assert_ok(weir_tag_begin(tag));
  assert_int_equal(pthread_create(&thread, NULL, get_in_thread, NULL), 0);
  pthread_join(thread, &p);
  assert_true(is_of(p, NULL));
  put(p);
  assert_ok(weir_tag_end(tag));
  assert_int_equal(pthread_create(&thread, NULL, begin_in_thread, tag), 0); /* its scope ends with it */
  pthread_join(thread, NULL);
  p = get(MIB, NULL);
  assert_true(is_of(p, NULL));
  put(p);
  alloc_close();
}

/* A pool made before any tag has none, and a tag's pools are its own; both names are in the error. */
TEST(pools_belong_to_the_tag_they_were_created_in) {
  const weir_pool_id none = {0, 1}, of_a = {0, 2};
  alloc_open(NULL, 256 * MIB);
  weir_tag *a = open_tag("actor"), *b = open_tag("critic");
  assert_ok(weir_pool_create(allocator, 0, none, NULL));
  assert_ok(weir_tag_begin(a));
  assert_ok(weir_pool_begin(allocator, 0, of_a, NULL, NULL));
  void *p = get(MIB, NULL);
  assert_true(is_of(p, a));
  assert_ok(weir_pool_end(allocator, 0, of_a));
  assert_error_says(BAD_STATE, "created outside of tags and is selected in the scope of the tag 'actor'",
                    weir_pool_begin(allocator, 0, none, NULL, NULL));
  assert_ok(weir_tag_end(a));
  assert_ok(weir_tag_begin(b));
  assert_error_says(BAD_STATE,
                    "pool {0, 2} belongs to the tag 'actor' and is selected in the scope of the tag 'critic'",
                    weir_pool_begin(allocator, 0, of_a, NULL, NULL));
  assert_error_says(BAD_STATE, "tag 'actor'", weir_pool_create(allocator, 0, of_a, NULL));
  assert_ok(weir_tag_end(b));
  assert_ok(weir_pool_begin(allocator, 0, of_a, NULL, NULL)); /* outside of tags it can be used */
  void *q = get(MIB, NULL);
  assert_true(is_of(q, a));
  assert_ok(weir_pool_end(allocator, 0, of_a));
  assert_int_equal(info_of(a).pools, 2);
  assert_int_equal(info_of(a).allocated_bytes, 2 * MIB);
  assert_error_says(BAD_STATE, "that of the tag 'actor'", weir_pool_release(allocator, 0, info_of(a).pool));
  put(p), put(q);
  for (int i = 0; i < 3; i++)
    assert_ok(weir_pool_release(allocator, 0, i ? of_a : none));
  alloc_close();
}

/* A capture's pool comes before the tag's own, which would give memory that a graph uses to other requests. */
TEST(a_capture_in_a_tag_has_its_own_pool) {
  alloc_open_runtime(NULL);
  weir_tag *tag = open_tag("model");
  weir_stream stream = new_stream(0);
  weir_cu_stream cu = raw_of(stream);
  weir_graph *graph = NULL;
  assert_ok(weir_tag_begin(tag));
  void *eager = get(MIB, cu), *captured = NULL;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  captured = get(MIB, cu);
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_tag_end(tag));
  assert_true(is_of(eager, tag) && is_of(captured, tag));
  assert_true(pool_of(eager).second != pool_of(captured).second);
  assert_int_equal(info_of(tag).pools, 2);
  put(eager);
  put(captured);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

static unsigned long made(void) { return calls(WEIR_CALL_MemCreate); }

/* One large page for a large request, and an eighth of what is there for small ones. */
TEST(pages_are_large) {
  alloc_open(NULL, 2 * GIB);
  weir_tag *tag = open_tag("weights");
  assert_ok(weir_tag_begin(tag));
  void *large = get(150 * MIB, NULL), *p[300];
  assert_int_equal(made(), 3); /* 64, 64 and 22 MiB */
  assert_int_equal(info_of(tag).reserved_bytes, 150 * MIB);
  for (int i = 0; i < 300; i++)
    p[i] = get(MIB, NULL);
  assert_in_range(made(), 4, 60); /* 150 pages of 2 MiB otherwise */
  assert_in_range(info_of(tag).reserved_bytes, 450 * MIB, 450 * MIB + 300 * MIB / 8);
  assert_ok(weir_tag_end(tag));
  for (int i = 0; i < 300; i++)
    put(p[i]);
  void *small = get(MIB, NULL); /* of the default pool */
  empty_cache();
  assert_int_equal(info_of(tag).reserved_bytes, 150 * MIB);
  put(small), put(large);
  empty_cache();
  assert_int_equal(info_of(tag).reserved_bytes, 0);
  alloc_close();
}

/* Where a share of an eighth has no room, what is needed is enough. */
TEST(growth_stays_within_the_limit) {
  alloc_open(NULL, 256 * MIB);
  weir_tag *tag = open_tag("weights");
  assert_ok(weir_allocator_set_limit(allocator, 0, 102 * MIB));
  assert_ok(weir_tag_begin(tag));
  void *large = get(100 * MIB, NULL), *one = get(2 * MIB, NULL), *two = NULL;
  assert_int_equal(info_of(tag).reserved_bytes, 102 * MIB);
  assert_int_equal(try_get(2 * MIB, NULL, &two), WEIR_ERROR_OUT_OF_MEMORY);
  assert_ok(weir_tag_end(tag));
  put(large), put(one);
  alloc_close();
}

TEST(out_of_memory_names_the_tags) {
  alloc_open(NULL, 256 * MIB);
  weir_tag *weights = open_tag("weights"), *cache = open_tag("cache");
  open_tag("unused");
  void *p = NULL;
  assert_ok(weir_tag_begin(weights));
  void *a = get(100 * MIB, NULL);
  assert_ok(weir_tag_end(weights));
  assert_ok(weir_tag_begin(cache));
  void *b = get(50 * MIB, NULL);
  assert_ok(weir_tag_end(cache));
  assert_int_equal(try_get(120 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_non_null(
      strstr(weir_last_error(), " Reserved are 100.00 MiB of the tag 'weights', 50.00 MiB of the tag 'cache'."));
  put(a), put(b);
  alloc_close();
}

/* As many as there is room for; the text stays whole. */
TEST(out_of_memory_names_some_of_many_tags) {
  enum { TAGS = 12 };
  char name[64];
  void *kept[TAGS], *p = NULL;
  alloc_open(NULL, 256 * MIB);
  for (int i = 0; i < TAGS; i++) {
    snprintf(name, sizeof name, "%063d", i);
    weir_tag *tag = open_tag(name);
    assert_ok(weir_tag_begin(tag));
    kept[i] = get(2 * MIB, NULL);
    assert_ok(weir_tag_end(tag));
  }
  assert_int_equal(try_get(250 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  const char *text = weir_last_error();
  assert_non_null(strstr(text, "0000001'"));
  assert_null(strstr(text, "000011'"));
  assert_non_null(strstr(text, "'. If reserved but unallocated"));
  for (int i = 0; i < TAGS; i++)
    put(kept[i]);
  alloc_close();
}

/* Free pages of a tag are given back before a request fails. */
TEST(cached_memory_of_a_tag_serves_others) {
  alloc_open(NULL, 128 * MIB);
  weir_tag *tag = open_tag("weights");
  assert_ok(weir_tag_begin(tag));
  void *p = get(100 * MIB, NULL);
  assert_ok(weir_tag_end(tag));
  put(p);
  assert_int_equal(info_of(tag).reserved_bytes, 100 * MIB);
  p = get(100 * MIB, NULL);
  assert_int_equal(info_of(tag).reserved_bytes, 0);
  put(p);
  alloc_close();
}

static weir_tag *faulty;
static weir_cu_stream other_stream;
static void open_faulty(const void *conf) {
  alloc_open(conf, 512 * MIB);
  faulty = open_tag("weights");
  other_stream = work_stream();
  get_live(0, MIB, NULL); /* creates the context */
}
static void act_faulty(void) {
  assert_ok(weir_tag_begin(faulty));
  void *p = get_live(0, 70 * MIB, NULL), *q = get_live(0, 3 * MIB, NULL);
  get_live(0, 9 * MIB, NULL);
  assert_ok(weir_tag_end(faulty));
  put_live(p);
  put_live(q);
  weir_allocator_empty_cache(allocator);
  assert_ok(weir_tag_begin(faulty));
  for (int i = 0; i < 6; i++)
    get_live(0, (uint64_t)(i + 1) * 5 * MIB, i % 2 ? other_stream : NULL);
  assert_ok(weir_tag_end(faulty));
}
static void close_faulty(void) {
  put_all_live();
  alloc_close();
}

TEST(each_driver_call_may_fail) {
  const fault_sweep sweep = {open_faulty, act_faulty, close_faulty, NULL};
  sweep_driver_calls(&sweep);
}
