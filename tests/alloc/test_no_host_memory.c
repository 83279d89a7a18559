/*
 * The allocator when the host has no memory: each allocation of a script fails once. The call that needed it fails or
 * does without, the allocator stays valid, and at the end all memory of the device is free.
 *
 * The tests run on the ledger, which survives this too. They replace malloc, as the sanitizers do; with a sanitizer
 * they are waived.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/alloc.h"
#include "support/ledger.h"
#include "support/length.h"
#include "support/no_memory.h"
#include "support/valid.h"

#ifndef NO_MEMORY_WAIVED

/* ---- The script ---- */

static weir_driver *ledger;
static weir_cu_stream streams[3];

static int since_failure; /* calls of valid() */

/* Walks the allocator. Until the failure, a script does the same as in the run without failures, where every step is
 * walked. After the failure the next steps are walked, and then some of the rest; run() walks at the end. */
static void valid(void) {
  bool is_soon = did_fail && (++since_failure <= 8 || since_failure % 16 == 0);
  if (fail_at && !is_soon && !usual_or_long(false, true))
    return;
  bool was = counting;
  counting = false;
  assert_true(weir__allocator_is_valid(allocator));
  counting = was;
}

static void *take(size_t bytes, int stream) {
  void *p = NULL;
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, streams[stream], &p);
  if (status != WEIR_OK) {
    assert_null(p);
    assert_true(status == WEIR_ERROR_HOST_OUT_OF_MEMORY || status == WEIR_ERROR_OUT_OF_MEMORY);
  }
  valid();
  return p;
}

static void drop(void *p) {
  assert_int_equal(weir_allocator_free(allocator, p), WEIR_OK);
  valid();
}

static void use(void *p, int stream) {
  if (p)
    weir_allocator_record_stream(allocator, p, streams[stream]);
}

static void use_cache(void) {
  enum { MANY = 150 }; /* more than one chunk of any container */
  static const size_t sizes[] = {512, 70000, 3 * MIB, 30 * MIB};
  void *p[MANY];
  for (int i = 0; i < MANY; i++)
    p[i] = take(sizes[i % 4], i % 3);
  for (int i = 0; i < MANY; i++) {
    use(p[i], (i + 1) % 3);
    use(p[i], (i + 2) % 3);
  }
  for (int i = 0; i < MANY; i += 2)
    drop(p[i]);
  weir_allocator_empty_cache(allocator);
  valid();
  void *large = take(1500 * MIB, 0);
  drop(large);
  for (int i = 1; i < MANY; i += 2)
    drop(p[i]);
  weir_allocator_empty_cache(allocator);
  valid();
}

/* With partitions or without, the lowest of many free blocks is used. */
static void use_many_of_one_size(void) {
  enum { PAIRS = 40 };
  void *p[PAIRS], *apart[PAIRS];
  for (int i = 0; i < PAIRS; i++) {
    p[i] = take(2 * KIB, 0);
    apart[i] = take(512, 0);
  }
  for (int i = 0; i < PAIRS; i++) {
    drop(p[i]);
    p[i] = NULL;
  }
  for (int i = 0; i < PAIRS; i++) {
    p[i] = take(2 * KIB, 0);
    if (p[i] && i && p[i - 1])
      assert_true(p[i] > p[i - 1]);
  }
  for (int i = 0; i < PAIRS; i++) {
    drop(p[i]);
    drop(apart[i]);
  }
}

static void use_pools(void) {
  const weir_pool_id id = {0, 3};
  weir_checkpoint *checkpoint = NULL;
  weir_checkpoint_delta delta = {.size = sizeof delta};
  bool is_in = weir_pool_begin(allocator, 0, id, NULL, NULL) == WEIR_OK;
  void *a = take(512, 0), *b = take(30 * MIB, 0), *c = NULL;
  if (is_in && weir_pool_checkpoint(allocator, 0, id, &checkpoint) == WEIR_OK) {
    c = take(512, 1);
    drop(a);
    a = NULL;
    weir_status status = weir_pool_restore(allocator, checkpoint, &delta);
    valid();
    counting = false;
    if (status == WEIR_OK) {
      c = NULL;
      for (size_t i = 0; i < delta.allocated_count; i++)
        if (delta.allocated[i] != b)
          a = delta.allocated[i];
    } else {
      /* The restore may be incomplete: the pool knows which blocks are live. */
      void *candidates[] = {a, b, c};
      for (int i = 0; i < 3; i++)
        if (candidates[i])
          weir_allocator_free(allocator, candidates[i]);
      a = b = c = NULL;
    }
    counting = true;
  }
  drop(a);
  drop(b);
  drop(c);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  if (is_in) {
    assert_int_equal(weir_pool_end(allocator, 0, id), WEIR_OK);
    assert_int_equal(weir_pool_release(allocator, 0, id), WEIR_OK);
  }
  weir_allocator_empty_cache(allocator);
  valid();
}

static void use_the_rest(void) {
  weir_allocator_configure(allocator, "max_split_size_mb:40");
  void *a = take(100 * MIB, 0);
  weir_allocator_configure(allocator, "max_split_size_mb:4096");
  weir_allocator_set_caching(allocator, 0);
  void *b = take(100 * MIB, 0);
  weir_allocator_set_caching(allocator, 1);
  size_t largest;
  weir_allocator_largest_block(allocator, 0, &largest);
  void *c = take(64 * GIB, 0);
  assert_null(c);
  drop(a);
  drop(b);
}

static bool make(const char *conf) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf;
  allocator = NULL;
  weir_status status = weir_allocator_create(ledger, &options, &allocator);
  if (status != WEIR_OK)
    assert_int_equal(status, WEIR_ERROR_HOST_OUT_OF_MEMORY);
  return status == WEIR_OK;
}

static void check_all_back(void) { assert_int_equal(free_bytes(ledger), 4 * GIB); }

static void run(const char *conf, void (*script)(void)) {
  ledger = open_ledger(1, 4 * GIB);
  for (int i = 0; i < 3; i++)
    streams[i] = make_stream(ledger, WEIR_CU_STREAM_NON_BLOCKING);
  made = 0;
  did_fail = false;
  since_failure = 0;
  counting = true;
  if (make(conf)) {
    script();
    counting = false;
    void *p = NULL; /* the allocator still works */
    assert_ok(weir_allocator_alloc(allocator, 0, 30 * MIB, streams[0], &p));
    assert_ok(weir_allocator_free(allocator, p));
    assert_ok(weir_allocator_empty_cache(allocator));
    assert_true(weir__allocator_is_valid(allocator));
    weir_allocator_destroy(allocator);
    allocator = NULL;
  }
  counting = false;
  check_all_back();
  weir_driver_close(ledger);
}

static void sweep(const char *conf, void (*script)(void)) {
  fail_at = 0;
  run(conf, script);
  unsigned long all = made;
  assert_true(all > 0);
  for (fail_at = 1; fail_at <= all; fail_at++) {
    long before = live;
    run(conf, script);
    assert_int_equal(live, before);
  }
}

/* An error whose text cannot be stored still has a text. The first error of a thread allocates memory for its text,
 * once. */
TEST(error_text) {
  assert_string_equal(weir_last_error(), "");
  counting = true;
  made = 0;
  fail_at = 1;
  weir_status status = weir_allocator_free(NULL, &made);
  counting = false;
  assert_int_equal(status, WEIR_ERROR_INVALID_ARGUMENT);
  assert_string_equal(weir_last_error(), weir_status_string(status));
  assert_int_equal(weir_allocator_free(NULL, &made), status);
  assert_string_not_equal(weir_last_error(), weir_status_string(status));
}

TEST(cache) {
  sweep("", use_cache);
  sweep("expandable_segments:True", use_cache);
}

TEST(many_of_one_size) {
  sweep("", use_many_of_one_size);
  sweep("expandable_segments:True", use_many_of_one_size);
}

TEST(pools) {
  sweep("", use_pools);
  sweep("expandable_segments:True", use_pools);
}

TEST(other_calls) {
  sweep("", use_the_rest);
  sweep("expandable_segments:True", use_the_rest);
}

#endif
