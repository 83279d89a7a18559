/*
 * The port that replays of recordings use.
 */
#include "alloc/replay_port.h"

#include <stdlib.h>

#include "support/alloc.h"

FIXTURE(.teardown = alloc_teardown)

TEST(settings) {
  weir__settings settings;
  alloc_open("", 256 * MIB);
  weir__settings_default(&settings);
  settings.max_split_size = 20 * MIB;
  assert_int_equal(weir__port_set_settings(allocator, &settings), WEIR_OK);
  void *large = get(32 * MIB, NULL);
  put(large);
  void *other = get(12 * MIB, NULL); /* a block of 32 MiB is not split for it */
  assert_ptr_not_equal(other, large);
  put(other);
  settings.backend = WEIR__BACKEND_CUDA_MALLOC_ASYNC;
  assert_int_equal(weir__port_set_settings(allocator, &settings), WEIR_ERROR_NOT_SUPPORTED);
  alloc_close();
}

TEST_SETUP(sizes, NULL, NULL) {
  weir__settings settings;
  weir__settings_default(&settings);
  assert_int_equal(weir__port_round(&settings, 1), WEIR__STATE_UNIT);
  assert_int_equal(weir__port_round(&settings, UINT64_MAX), UINT64_MAX);
  assert_int_equal(weir__port_segment_bytes(&settings, WEIR__PORT_SMALL_MAX), WEIR__PORT_SMALL_SEGMENT);
  assert_int_equal(weir__port_segment_bytes(&settings, WEIR__PORT_SMALL_MAX + 1), settings.large_segment_size);
  assert_int_equal(weir__port_segment_bytes(&settings, WEIR__STATE_MAX_REQUEST), WEIR__STATE_MAX_REQUEST);
}

/* A taken block is not in the cache until it has been handed out and freed. */
TEST(take) {
  uint64_t pointer = 0;
  alloc_open("", 256 * MIB);
  weir__block *block = weir__port_take(allocator, NULL, 4 * MIB, NULL);
  assert_non_null(block);
  assert_false(weir__port_is_cached(allocator, NULL, 4 * MIB, NULL));
  assert_int_equal(weir__port_hand_out(allocator, block, 4 * MIB, &pointer), WEIR_OK);
  assert_true(weir__port_is_cached(allocator, NULL, 4 * MIB, NULL)); /* the rest of the segment */
  put((void *)pointer);
  assert_null(weir__port_take(allocator, NULL, 512 * MIB, NULL));
  assert_valid();
  alloc_close();
}

TEST(uncached) {
  uint64_t pointer = 0;
  alloc_open("", 256 * MIB);
  put(get(4 * MIB, NULL));
  assert_int_equal(reserved(), 20 * MIB);
  assert_int_equal(weir__port_alloc_uncached(allocator, NULL, 4 * MIB, NULL, &pointer), WEIR_OK);
  assert_int_equal(reserved(), 40 * MIB);
  put((void *)pointer);
  weir__port_release_arena(allocator, 1); /* there are no segments */
  assert_int_equal(reserved(), 40 * MIB);
  weir__port_release_arena(allocator, pointer);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* A damaged recording may have requests for nothing: a block of no bytes would break the cache. */
TEST(no_bytes) {
  alloc_open("", GIB);
  put(get(MIB, NULL));
  uint64_t pointer;
  assert_int_equal(weir__port_alloc(allocator, NULL, 0, NULL, &pointer), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir__port_alloc_uncached(allocator, NULL, 0, NULL, &pointer), WEIR_ERROR_INVALID_ARGUMENT);
  assert_null(weir__port_take(allocator, NULL, 0, NULL));
  assert_valid();
  alloc_close();
}

TEST(pool) {
  const weir_pool_id id = {0, 7};
  uint64_t pointer = 0;
  alloc_open("", 256 * MIB);
  assert_null(weir__port_find_pool(allocator, id));
  assert_int_equal(weir_pool_create(allocator, 0, id, NULL), WEIR_OK);
  weir__private_pool *pool = weir__port_find_pool(allocator, id);
  assert_non_null(pool);
  weir__port_begin_capture(allocator, NULL);
  assert_int_equal(weir__port_alloc(allocator, pool, 512, NULL, &pointer), WEIR_OK);
  weir__port_end_capture(allocator);
  assert_true(weir__port_is_cached(allocator, pool, 512, NULL));
  assert_false(weir__port_is_cached(allocator, NULL, 512, NULL));
  put((void *)pointer);
  assert_int_equal(weir_pool_release(allocator, 0, id), WEIR_OK);
  empty_cache();
  assert_null(weir__port_find_pool(allocator, id));
  alloc_close();
}

/* ---- States ---- */

static weir__state read_state(void) {
  weir__state read = {0};
  size_t segments, blocks;
  weir__port_count_state(allocator, &segments, &blocks);
  read.segments = calloc(segments + 1, sizeof *read.segments);
  read.blocks = calloc(blocks + 1, sizeof *read.blocks);
  weir__port_read_state(allocator, &read);
  return read;
}

static void clear_state(weir__state *read) {
  free(read->segments);
  free(read->blocks);
}

/* An installed state is read back with the addresses of the device, including holes, free blocks and a pool. */
TEST(install) {
  weir__settings settings;
  weir__settings_default(&settings);
  uint64_t at = 64 * GIB, place = 1;
  weir__state_block blocks[] = {
      {.address = at, .size = MIB, .requested = MIB - 100, .state = WEIR_BLOCK_ACTIVE_ALLOCATED},
      {.address = at + MIB, .size = 3 * MIB, .state = WEIR_BLOCK_INACTIVE},
      {.address = at + 4 * MIB, .size = 16 * MIB, .requested = 1, .state = WEIR_BLOCK_ACTIVE_PENDING_FREE},
      {.address = 2 * at, .size = 40 * MIB, .state = WEIR__BLOCK_UNMAPPED},
      {.address = 2 * at + 40 * MIB, .size = 20 * MIB, .requested = 20 * MIB, .state = WEIR_BLOCK_ACTIVE_ALLOCATED}};
  weir__state_segment segments[] = {
      {.address = at, .size = 20 * MIB, .pool = {0, 3}, .first = 0, .count = 3},
      {.address = 2 * at, .size = 60 * MIB, .first = 3, .count = 2, .is_expandable = true, .page = 20 * MIB}};
  weir__state wanted = {.segments = segments, .segment_count = 2, .blocks = blocks, .block_count = 5};
  uint64_t pointers[3] = {0};
  assert_int_equal(weir__port_install_spare(&wanted), 40 * MIB);
  alloc_open("", 512 * MIB);
  assert_int_equal(weir__port_install_state(allocator, &settings, &wanted, &place, pointers), WEIR_OK);
  assert_int_equal(place, 0);
  assert_int_equal(reserved(), 40 * MIB);
  assert_non_null(weir__port_find_pool(allocator, (weir_pool_id){0, 3}));
  weir__state read = read_state();
  assert_int_equal(read.segment_count, 2);
  assert_int_equal(read.block_count, 5);
  assert_int_equal(read.reserved, 40 * MIB);
  for (size_t i = 0; i < 2; i++) {
    const weir__state_segment *s = &read.segments[i], *w = &segments[s->is_expandable];
    assert_int_equal(s->size, w->size);
    assert_memory_equal(s->pool, w->pool, sizeof s->pool);
    assert_int_equal(s->count, w->count);
    for (size_t k = 0; k < s->count; k++) {
      const weir__state_block *b = &read.blocks[s->first + k], *v = &blocks[w->first + k];
      assert_int_equal(b->address - s->address, v->address - w->address);
      assert_int_equal(b->size, v->size);
      assert_int_equal(b->requested, v->requested);
      /* The port does not create waiting blocks; the caller does. */
      assert_int_equal(b->state, weir__state_is_active(v) ? WEIR_BLOCK_ACTIVE_ALLOCATED : v->state);
    }
  }
  clear_state(&read);
  for (size_t i = 0; i < 3; i++)
    put((void *)pointers[i]);
  assert_int_equal(allocated(), 0);
  alloc_close();
}
