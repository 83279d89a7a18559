/*
 * Limits of the parts of a device: pools, tags and all of it. What is refused names the part; what is only over a soft
 * limit is told to the program first.
 */
#include <stdio.h>
#include <string.h>

#include "support/alloc.h"
#include "support/check.h"
#include "weir/tag.h"

FIXTURE(.teardown = alloc_teardown)

static weir_tag *open_tag(const char *name) {
  weir_tag *tag;
  assert_ok(weir_tag_open(allocator, 0, name, &tag));
  return tag;
}

static weir_status try_in(weir_tag *tag, uint64_t bytes, void **p) {
  assert_ok(weir_tag_begin(tag));
  weir_status status = try_get(bytes, NULL, p);
  assert_ok(weir_tag_end(tag));
  return status;
}

static weir_status try_in_pool(weir_pool_id id, uint64_t bytes, void **p) {
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  weir_status status = try_get(bytes, NULL, p);
  assert_ok(weir_pool_end(allocator, 0, id));
  return status;
}

/* ---- Hard limits ---- */

TEST(hard_limit_of_a_tag) {
  alloc_open(NULL, 256 * MIB);
  weir_tag *cache = open_tag("cache"), *weights = open_tag("weights");
  void *p, *q, *r;
  assert_ok(weir_tag_set_limits(cache, UINT64_MAX, 32 * MIB));
  assert_ok(try_in(cache, 20 * MIB, &p));
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_in(cache, 20 * MIB, &q));
  assert_non_null(strstr(weir_last_error(), "The limit of tag 'cache' is 32.00 MiB, of which 20.00 MiB is taken."));
  assert_ok(try_in(weights, 100 * MIB, &q)); /* others have limits of their own */
  r = get(60 * MIB, NULL);
  put(p);
  assert_ok(try_in(cache, 30 * MIB, &p)); /* what the tag only cached made room */
  void *s;
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_in(cache, 8 * MIB, &s));
  assert_ok(weir_tag_set_limits(cache, UINT64_MAX, UINT64_MAX));
  assert_ok(try_in(cache, 8 * MIB, &s));
  put(p);
  put(q);
  put(r);
  put(s);
  alloc_close();
}

/* A second pool that was created in the tag's scope counts against the same limit. */
TEST(hard_limit_of_a_tag_with_two_pools) {
  alloc_open(NULL, 256 * MIB);
  weir_tag *tag = open_tag("graphs");
  const weir_pool_id id = {0, 5};
  void *p, *q;
  assert_ok(weir_tag_begin(tag));
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_ok(try_in_pool(id, 20 * MIB, &p));
  assert_ok(weir_tag_set_limits(tag, UINT64_MAX, 32 * MIB));
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(20 * MIB, NULL, &q));
  assert_non_null(strstr(weir_last_error(), "tag 'graphs' is 32.00 MiB"));
  assert_ok(try_get(8 * MIB, NULL, &q));
  assert_ok(weir_tag_end(tag));
  weir_tag_info info;
  weir_tag_info_init(&info);
  assert_ok(weir_tag_get_info(tag, &info));
  assert_true(info.reserved_bytes <= 32 * MIB);
  put(p);
  put(q);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

TEST(hard_limit_of_a_pool) {
  alloc_open(NULL, 256 * MIB);
  const weir_pool_id id = {0, 5};
  void *p, *q;
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_ok(weir_pool_set_limits(allocator, 0, id, UINT64_MAX, 24 * MIB));
  assert_ok(try_in_pool(id, 20 * MIB, &p));
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_in_pool(id, 20 * MIB, &q));
  assert_non_null(strstr(weir_last_error(), "The limit of pool {0, 5} is 24.00 MiB"));
  put(p);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

TEST(hard_limit_of_the_default_pool) {
  alloc_open(NULL, 256 * MIB);
  const weir_pool_id none = {0, 0}, id = {0, 5};
  void *p, *q;
  assert_ok(weir_pool_set_limits(allocator, 0, none, UINT64_MAX, 24 * MIB));
  p = get(20 * MIB, NULL);
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(20 * MIB, NULL, &q));
  assert_non_null(strstr(weir_last_error(), "The limit of pool {0, 0} is 24.00 MiB"));
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_ok(try_in_pool(id, 100 * MIB, &q));
  put(p);
  put(q);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* ---- Soft limits ---- */

static struct told {
  int times;
  char account[64];
  uint64_t limit, bytes, wanted;
  void *to_free; /* NULL once it is freed */
} told;

static void tell(void *context, const weir_soft_limit *limit) {
  struct told *t = context;
  t->times++;
  snprintf(t->account, sizeof t->account, "%s", limit->account);
  t->limit = limit->limit;
  t->bytes = limit->bytes;
  t->wanted = limit->wanted;
  if (t->to_free && !weir_allocator_free(allocator, t->to_free))
    t->to_free = NULL;
}

TEST(soft_limit_gives_back_what_is_cached) {
  alloc_open(NULL, 256 * MIB);
  assert_ok(weir_allocator_set_soft_limit(allocator, 0, 60 * MIB));
  void *p = get(20 * MIB, NULL), *q = get(24 * MIB, NULL), *r;
  put(p);
  assert_int_equal(reserved(), 44 * MIB);
  r = get(30 * MIB, NULL); /* 74 MiB would be too much, and 20 MiB are only cached */
  assert_int_equal(reserved(), 54 * MIB);
  p = get(50 * MIB, NULL); /* nothing is refused */
  assert_int_equal(reserved(), 104 * MIB);
  put(p);
  put(q);
  put(r);
  alloc_close();
}

TEST(soft_limit_is_told) {
  alloc_open(NULL, 256 * MIB);
  const weir_observer *observer = OBSERVER(.soft_limit = tell, .context = &told);
  told = (struct told){0};
  assert_ok(weir_allocator_attach(allocator, observer));
  assert_ok(weir_allocator_set_soft_limit(allocator, 0, 60 * MIB));
  void *p = get(40 * MIB, NULL), *q;
  assert_int_equal(told.times, 0);
  told.to_free = p;
  q = get(40 * MIB, NULL); /* what the program frees serves the request */
  assert_int_equal(told.times, 1);
  assert_string_equal(told.account, "device 0");
  assert_int_equal(told.limit, 60 * MIB);
  assert_int_equal(told.bytes, 40 * MIB);
  assert_int_equal(told.wanted, 40 * MIB);
  assert_ptr_equal(p, q);
  assert_int_equal(reserved(), 40 * MIB);
  p = get(40 * MIB, NULL); /* and if it frees nothing, the request is served all the same */
  assert_int_equal(told.times, 2);
  assert_int_equal(reserved(), 80 * MIB);
  assert_ok(weir_allocator_detach(allocator, observer));
  put(get(50 * MIB, NULL));
  assert_int_equal(told.times, 2);
  put(p);
  put(q);
  alloc_close();
}

TEST(soft_limit_of_a_tag) {
  alloc_open(NULL, 512 * MIB);
  const weir_observer *observer = OBSERVER(.soft_limit = tell, .context = &told);
  weir_tag *tag = open_tag("cache");
  void *p, *q, *other = get(40 * MIB, NULL);
  told = (struct told){0};
  assert_ok(weir_allocator_attach(allocator, observer));
  assert_ok(weir_tag_set_limits(tag, 60 * MIB, 200 * MIB));
  put(other); /* the cache of others is not the tag's */
  assert_ok(try_in(tag, 40 * MIB, &p));
  assert_int_equal(told.times, 0);
  put(p);
  assert_ok(try_in(tag, 44 * MIB, &p));
  assert_ok(try_in(tag, 40 * MIB, &q));
  assert_true(told.times > 0);
  assert_string_equal(told.account, "tag 'cache'");
  assert_true(reserved() >= 40 * (int64_t)MIB + 84 * (int64_t)MIB);
  put(p);
  put(q);
  assert_ok(weir_allocator_detach(allocator, observer));
  alloc_close();
}

TEST(limits_that_are_refused) {
  alloc_open(NULL, 64 * MIB);
  weir_tag *tag = open_tag("cache");
  assert_error_says(INVALID_ARGUMENT, "the soft limit, 2 bytes, is above the hard one, 1",
                    weir_tag_set_limits(tag, 2, 1));
  assert_error_says(INVALID_ARGUMENT, "there is no pool {7, 7}",
                    weir_pool_set_limits(allocator, 0, (weir_pool_id){7, 7}, 1, 2));
  assert_ok(weir_allocator_set_limit(allocator, 0, 10 * MIB));
  assert_error_says(INVALID_ARGUMENT, "is above the hard one", weir_allocator_set_soft_limit(allocator, 0, 20 * MIB));
  assert_ok(weir_allocator_set_soft_limit(allocator, 0, UINT64_MAX));
  alloc_close();
}
