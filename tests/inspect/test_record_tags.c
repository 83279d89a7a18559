/*
 * Recordings of tags: which pools belong to them, what each held, and a replay that differs nowhere.
 */
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/summary.h"
#include "support/ring.h"
#include "weir/tag.h"

FIXTURE(.begin = make_folder, .end = remove_folder, .teardown = recording_teardown)

static void *get_recorded(weir_tag *tag, uint64_t bytes) {
  void *p = NULL;
  if (tag)
    assert_ok(weir_tag_begin(tag));
  assert_ok(weir_allocator_alloc(recorded, 0, bytes, NULL, &p));
  if (tag)
    assert_ok(weir_tag_end(tag));
  return p;
}

static void put_recorded(void *p) { assert_ok(weir_allocator_free(recorded, p)); }

TEST(tags_are_recorded_and_replayed) {
  enum { BLOCKS = 12 };
  const weir_pool_id inner = {0, 9};
  weir_tag *weights, *cache;
  void *p[BLOCKS];
  open_recording(&(recording){.bytes = 4 * GIB, .folder = folder});
  assert_ok(weir_tag_open(recorded, 0, "weights", &weights));
  assert_ok(weir_tag_open(recorded, 0, "cache", &cache));
  void *outside = get_recorded(NULL, 3 * MIB);
  for (int i = 0; i < BLOCKS; i++)
    p[i] = get_recorded(weights, (uint64_t)(i + 1) * 5 * MIB);
  assert_ok(weir_tag_begin(cache));
  assert_ok(weir_pool_begin(recorded, 0, inner, NULL, NULL));
  void *in_pool = get_recorded(NULL, 40 * MIB);
  assert_ok(weir_pool_end(recorded, 0, inner));
  assert_ok(weir_tag_end(cache));
  for (int i = 0; i < BLOCKS; i += 3)
    put_recorded(p[i]);
  assert_ok(weir_tag_sleep(weights, WEIR_TAG_DISCARD, NULL)); /* releases what is free */
  put_recorded(in_pool);
  assert_ok(weir_tag_wake(weights, NULL));
  for (int i = 0; i < BLOCKS; i += 3)
    p[i] = get_recorded(weights, (uint64_t)(i + 1) * 5 * MIB);
  for (int i = 0; i < BLOCKS; i++)
    put_recorded(p[i]);
  put_recorded(outside);
  assert_ok(weir_pool_release(recorded, 0, inner));
  close_recording();

  weir__recording *read = load_recording(find_file("weir-"));
  assert_int_equal(read->tag_count, 3);
  assert_string_equal(weir__recording_tag_of(read, 0, (const int64_t[]){0, 9}), "cache");
  assert_null(weir__recording_tag_of(read, 0, (const int64_t[]){0, 0}));
  weir__summary summary;
  weir__summary_tag *tags = NULL;
  size_t count = 0;
  assert_ok(weir__summarize(read, 0, &summary));
  assert_ok(weir__summarize_tags(read, 0, &summary, &tags, &count));
  assert_int_equal(count, 2);
  assert_string_equal(tags[0].name, "weights");
  assert_int_equal(tags[0].peak, BLOCKS * (BLOCKS + 1) / 2 * 5 * MIB);
  assert_int_equal(tags[0].at_peak, tags[0].peak);
  assert_int_equal(tags[0].at_end, 0);
  assert_string_equal(tags[1].name, "cache");
  assert_int_equal(tags[1].at_peak, 40 * MIB);
  free(tags);
  assert_true(check_loaded(read, 0, NULL) > 40);
  weir__recording_free(read);
}
