/*
 * The index of free blocks, the tree of unmapped blocks and the table of live blocks, each compared with a plain list.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/index.h"
#include "support/soft.h"
#include "support/valid.h"

enum { BLOCKS = 600 };

static weir__block *blocks; /* in the region, like the blocks of an arena */
static bool is_in[BLOCKS];

static int take_blocks(void **state) {
  (void)state;
  blocks = weir__region_alloc(BLOCKS * sizeof *blocks);
  return blocks ? 0 : -1;
}

static int give_blocks(void **state) {
  (void)state;
  weir__region_free(blocks, BLOCKS * sizeof *blocks);
  return 0;
}

FIXTURE(.begin = take_blocks, .end = give_blocks)

/* As a block becomes free: without marks. */
static void insert(weir__index *index, weir__block *block) {
  block->head = 0;
  weir__index_insert(index, block);
}

static bool before(const weir__block *a, const weir__block *b) {
  return a->units != b->units ? a->units < b->units : a->address < b->address;
}

/* The first block in the order of the index that is not before the key, or that is after it if `after` is set. */
static weir__block *expected_from(const weir__block *key, bool after) {
  weir__block *best = NULL;
  for (int i = 0; i < BLOCKS; i++)
    if (is_in[i] && !(after ? !before(key, &blocks[i]) : before(&blocks[i], key)) &&
        (!best || before(&blocks[i], best)))
      best = &blocks[i];
  return best;
}

static weir__block *expected_before(const weir__block *key) {
  weir__block *best = NULL;
  for (int i = 0; i < BLOCKS; i++)
    if (is_in[i] && before(&blocks[i], key) && (!best || before(best, &blocks[i])))
      best = &blocks[i];
  return best;
}

/* Sizes around the borders of bins, and equal sizes. */
static uint32_t some_units(void) {
  uint64_t units;
  switch (soft_random(4)) {
  case 0:
    units = 1 + soft_random(130);
    break;
  case 1:
    units = (1ull << soft_random(32)) + soft_random(3);
    break;
  case 2:
    units = (64 + soft_random(64)) << soft_random(25);
    break;
  default:
    units = 1 + soft_random(1ull << (1 + soft_random(31)));
  }
  return (uint32_t)units;
}

/* Inserts or removes a block. */
static void toggle(weir__index *index, int i, size_t *count) {
  if (is_in[i])
    weir__index_remove(index, &blocks[i]);
  else
    insert(index, &blocks[i]);
  is_in[i] = !is_in[i];
  *count += is_in[i] ? 1 : (size_t)-1;
}

static void check_index(weir__index *index, size_t count) {
  assert_int_equal(weir__index_count(index), count);
  weir__block least = {0}, most = {.units = UINT32_MAX, .address = UINT64_MAX};
  assert_ptr_equal(weir__index_first(index), expected_from(&least, false));
  assert_ptr_equal(weir__index_last(index), expected_before(&most));
}

TEST_SETUP(index, NULL, soft_teardown) {
  int rounds = 10;
  for (uint64_t seed = soft_first_seed(&rounds); rounds-- > 0; seed++) {
    soft_seed(seed);
    weir__index index = {0};
    size_t count = 0;
    memset(is_in, 0, sizeof is_in);
    assert_true(weir__index_prepare(&index, weir__max_units * WEIR__UNIT));
    for (int i = 0; i < BLOCKS; i++)
      blocks[i] = (weir__block){.address = (1 + soft_random(1 << 20)) << 9 | 1ull << 40, .units = some_units()};
    for (int i = 0; i < BLOCKS; i++) /* all addresses differ */
      blocks[i].address += (uint64_t)i << 30;
    for (int step = 0; step < 3000; step++) {
      int i = (int)soft_random(BLOCKS);
      assert_int_equal(weir__index_has(&index, &blocks[i]), is_in[i]);
      toggle(&index, i, &count);
      weir__block key = {.units = some_units()};
      assert_ptr_equal(weir__index_at_least(&index, (uint64_t)key.units * WEIR__UNIT), expected_from(&key, false));
      if (is_in[i]) {
        assert_ptr_equal(weir__index_next(&index, &blocks[i]), expected_from(&blocks[i], true));
        assert_ptr_equal(weir__index_previous(&index, &blocks[i]), expected_before(&blocks[i]));
      }
      if (step % 50 == 0)
        check_index(&index, count);
    }
    check_index(&index, count);
    weir__index_clear(&index);
  }
  soft_seed(0);
}

/* ---- Many blocks of one size ---- */

/* Distributions of addresses, each of which is hard for partitions in a different way. */
typedef enum lie { SPREAD, NEAR, CLUSTERS, POWERS, LIES } lie;

static uint64_t some_address(lie lie) {
  switch (lie) {
  case SPREAD:
    return soft_random(1ull << 37) * 512;
  case NEAR:
    return (1ull << 40) + soft_random(4 * BLOCKS) * 512;
  case CLUSTERS:
    return (soft_random(5) << 42) + soft_random(BLOCKS) * 512;
  default:
    return (512ull << soft_random(38)) + soft_random(64) * 512;
  }
}

static bool is_taken(uint64_t address, int count) {
  for (int i = 0; i < count; i++)
    if (blocks[i].address == address)
      return true;
  return false;
}

/* A few sizes with many blocks each; now and then the lowest block is taken. `walks` also asks for the full order,
 * which dissolves partitions; without it they stay for long. */
static void check_many(lie lie, bool walks) {
  static const uint32_t sizes[] = {1, 7, 4095, 4096};
  weir__index index = {0};
  size_t count = 0;
  memset(is_in, 0, sizeof is_in);
  assert_true(weir__index_prepare(&index, weir__max_units * WEIR__UNIT));
  for (int i = 0; i < BLOCKS; i++) {
    uint64_t address = some_address(lie);
    while (is_taken(address, i))
      address = some_address(lie);
    blocks[i] = (weir__block){.address = address, .units = sizes[soft_random(4)]};
  }
  for (int step = 0; step < 6000; step++) {
    int i = (int)soft_random(BLOCKS);
    bool grows = step / 1000 % 2 == 0; /* then shrinks almost to nothing */
    if (is_in[i] == grows && soft_random(8))
      continue;
    toggle(&index, i, &count);
    if (soft_random(4) == 0) {
      weir__block key = {.units = sizes[soft_random(4)]};
      weir__block *found = weir__index_at_least(&index, (uint64_t)key.units * WEIR__UNIT);
      assert_ptr_equal(found, expected_from(&key, false));
      if (found && soft_random(2))
        toggle(&index, (int)(found - blocks), &count);
    }
    if (step % 16 == 0) {
      assert_int_equal(weir__index_count(&index), count);
      for (int k = 0; k < BLOCKS; k++)
        assert_int_equal(weir__index_has(&index, &blocks[k]), is_in[k]);
    }
    if (walks && is_in[i] && step % 64 == 0) {
      assert_ptr_equal(weir__index_previous(&index, &blocks[i]), expected_before(&blocks[i]));
      assert_ptr_equal(weir__index_next(&index, &blocks[i]), expected_from(&blocks[i], true));
      check_index(&index, count);
    }
  }
  check_index(&index, count);
  weir__index_clear(&index);
}

TEST_SETUP(many_of_one_size, NULL, soft_teardown) {
  int rounds = 2;
  for (uint64_t seed = soft_first_seed(&rounds); rounds-- > 0; seed++)
    for (int lie = 0; lie < LIES; lie++)
      for (int walks = 0; walks < 2; walks++) {
        soft_seed(seed);
        check_many((enum lie)lie, walks);
      }
  soft_seed(0);
}

/* Blocks arrive in descending and in ascending order, each beyond all before, with searches in between. */
TEST(monotonic_addresses) {
  for (int down = 0; down < 2; down++) {
    weir__index index = {0};
    assert_true(weir__index_prepare(&index, 4096));
    for (int i = 0; i < BLOCKS; i++) {
      blocks[i] = (weir__block){.address = (1ull << 45) + (uint64_t)(down ? BLOCKS - i : i) * 4096, .units = 8};
      insert(&index, &blocks[i]);
      assert_ptr_equal(weir__index_at_least(&index, 4096), down ? &blocks[i] : &blocks[0]);
    }
    assert_int_equal(weir__index_count(&index), BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
      weir__block *lowest = weir__index_at_least(&index, 4096);
      assert_ptr_equal(lowest, &blocks[down ? BLOCKS - 1 - i : i]);
      weir__index_remove(&index, lowest);
    }
    assert_null(weir__index_at_least(&index, 4096));
    assert_null(weir__index_last(&index));
    assert_int_equal(weir__index_count(&index), 0);
    weir__index_clear(&index);
  }
}

static weir__partitions *partitions_at(weir__ref sentinel) {
  return (weir__partitions *)((char *)weir__at(sentinel) - WEIR__SENTINEL);
}

static int count_partitions(weir__ref list) {
  while (list && !(list & WEIR__SENTINEL))
    list = ((weir__block *)weir__at(list))->after;
  int count = list != 0;
  for (int i = 0; list && i < 64; i++)
    count += count_partitions(partitions_at(list)->list[i]);
  return count;
}

/* Enough blocks of one size for partitions, which a search creates. */
static void insert_some(weir__index *index, uint64_t address, uint32_t units) {
  for (int i = 0; i < 9; i++) {
    blocks[i] = (weir__block){.address = address + (uint64_t)i * 4096, .units = units};
    insert(index, &blocks[i]);
  }
  assert_ptr_equal(weir__index_at_least(index, (uint64_t)units * WEIR__UNIT), &blocks[0]);
}

static void remove_some(weir__index *index) {
  for (int i = 0; i < 9; i++)
    weir__index_remove(index, &blocks[i]);
}

/* Empty partitions that no search has visited since, in many bins and in one. */
TEST(empty_partitions) {
  weir__index index = {0};
  assert_true(weir__index_prepare(&index, 128ull << 20));
  for (uint32_t units = 100000; units > 0; units--) {
    insert_some(&index, 1ull << 40, units);
    remove_some(&index);
  }
  assert_null(weir__index_at_least(&index, 512));
  assert_int_equal(index.groups, 0);

  blocks[10] = (weir__block){.address = 1ull << 45, .units = 8};
  insert(&index, &blocks[10]);
  for (uint64_t i = 1; i < 20000; i++) { /* each below all before */
    insert_some(&index, (1ull << 45) - (i << 16), 8);
    remove_some(&index);
    assert_in_range(count_partitions(index.group[0]->list[8]), 0, 100);
  }
  assert_ptr_equal(weir__index_at_least(&index, 4096), &blocks[10]);
  weir__index_clear(&index);
}

/* Outliers that come and go do not move the other blocks each time. */
TEST(outliers) {
  weir__index index = {0};
  assert_true(weir__index_prepare(&index, 4096));
  insert_some(&index, 1ull << 45, 8);
  weir__partitions seen = {0};
  for (int i = 0; i < 8; i++) {
    blocks[10] =
        (weir__block){.address = i % 2 ? (1ull << 45) + (1ull << 36) : (1ull << 45) - (1ull << 37), .units = 8};
    insert(&index, &blocks[10]);
    assert_ptr_equal(weir__index_at_least(&index, 4096), &blocks[i % 2 ? 0 : 10]);
    const weir__partitions *now = partitions_at(index.group[0]->list[8]);
    if (i > 1) {
      assert_int_equal(now->base, seen.base);
      assert_int_equal(now->shift, seen.shift);
    }
    seen = *now;
    weir__index_remove(&index, &blocks[10]);
  }
  weir__index_clear(&index);
}

TEST(empty_index) {
  weir__index index = {0};
  assert_null(weir__index_first(&index));
  assert_null(weir__index_last(&index));
  assert_null(weir__index_at_least(&index, 512));
  assert_null(weir__index_at_least(&index, 1ull << 60));
  assert_false(weir__index_prepare(&index, (weir__max_units + 1) * WEIR__UNIT));
  weir__index_clear(&index);
  assert_int_equal(weir__index_count(&index), 0);
  assert_false(weir__index_has(&index, &(weir__block){.units = 1}));
}

/* The validity check detects damage. */
TEST(index_out_of_order) {
  weir__index index = {0};
  assert_true(weir__index_prepare(&index, 1ull << 30));
  memset(blocks, 0, BLOCKS * sizeof *blocks);
  for (int i = 0; i < 20; i++) {
    blocks[i] = (weir__block){.address = (uint64_t)(i + 1) << 12, .units = 2};
    insert(&index, &blocks[i]);
  }
  assert_int_equal(weir__index_count(&index), 20);
  blocks[7].units = 4;
  assert_int_equal(weir__index_count(&index), -1);
  blocks[7].units = 2;
  index.group[0]->used[0] = 0;
  assert_int_equal(weir__index_count(&index), -1);
  index.group[0]->used[0] = 1 << 2;
  assert_int_equal(weir__index_count(&index), 20);

  /* Also in partitions. */
  assert_ptr_equal(weir__index_at_least(&index, 1024), &blocks[0]);
  assert_int_equal(weir__index_count(&index), 20);
  weir__partitions *partitions = partitions_at(index.group[0]->list[2]);
  uint64_t used = partitions->used;
  partitions->used &= partitions->used - 1;
  assert_int_equal(weir__index_count(&index), -1);
  partitions->used = used;
  blocks[7].link++;
  assert_int_equal(weir__index_count(&index), -1);
  blocks[7].link--;
  blocks[7].address += 1ull << 30; /* in the wrong partition */
  assert_false(weir__index_has(&index, &blocks[7]));
  weir__index_clear(&index);
}

/* Taking a block out of the index, before it is handed out, clears its links. */
TEST(held) {
  weir__index index = {0};
  assert_true(weir__index_prepare(&index, 4096));
  for (int i = 0; i < 2; i++) {
    blocks[i] = (weir__block){.address = (uint64_t)(i + 1) << 12, .units = 8};
    insert(&index, &blocks[i]);
  }
  weir__block *block = weir__index_at_least(&index, 4096);
  weir__index_remove(&index, block);
  weir__block_hold(block);
  assert_int_equal(block->state, WEIR__ALLOCATED);
  assert_int_equal(block->requested, 0);
  assert_null(weir__block_uses(block));
  weir__index_clear(&index);
}

TEST_SETUP(tree, NULL, soft_teardown) {
  soft_seed(3);
  weir__ref root = 0;
  memset(is_in, 0, sizeof is_in);
  for (int i = 0; i < BLOCKS; i++)
    blocks[i] = (weir__block){.address = (uint64_t)(i + 1) << 21};
  for (int step = 0; step < 5000; step++) {
    int i = (int)soft_random(BLOCKS), k = (int)soft_random(BLOCKS);
    if (is_in[i])
      weir__tree_remove(&root, &blocks[i]);
    else
      weir__tree_insert(&root, &blocks[i]);
    is_in[i] = !is_in[i];
    int next = k + 1;
    while (next < BLOCKS && !is_in[next])
      next++;
    assert_ptr_equal(weir__tree_after(root, blocks[k].address), next < BLOCKS ? &blocks[next] : NULL);
    assert_ptr_equal(weir__tree_after(root, blocks[k].address - 1), is_in[k]        ? &blocks[k]
                                                                    : next < BLOCKS ? &blocks[next]
                                                                                    : NULL);
  }
  soft_seed(0);
}

/* Addresses that collide in the table, removed in every order. */
TEST_SETUP(live, NULL, soft_teardown) {
  soft_seed(4);
  weir__live live = {0};
  size_t count = 0;
  memset(is_in, 0, sizeof is_in);
  weir__live_place place;
  assert_null(weir__live_find(&live, 512, &place));
  for (int i = 0; i < BLOCKS; i++)
    blocks[i] = (weir__block){.address = ((uint64_t)(i + 1) << (i % 2 ? 9 : 29)) + (i % 5 == 0 ? 1ull << 45 : 0)};
  for (int step = 0; step < 20000; step++) {
    int i = (int)soft_random(BLOCKS);
    if (is_in[i]) {
      assert_ptr_equal(weir__live_find(&live, blocks[i].address, &place), &blocks[i]);
      weir__live_remove(&live, blocks[i].address, place);
    } else {
      assert_true(weir__live_prepare(&live));
      weir__live_insert(&live, &blocks[i], weir__live_hash(blocks[i].address));
    }
    is_in[i] = !is_in[i];
    count += is_in[i] ? 1 : (size_t)-1;
    assert_int_equal(live.count, count);
    int k = (int)soft_random(BLOCKS);
    assert_ptr_equal(weir__live_find(&live, blocks[k].address, &place), is_in[k] ? &blocks[k] : NULL);
  }
  for (int i = 0; i < BLOCKS; i++)
    assert_ptr_equal(weir__live_find(&live, blocks[i].address, &place), is_in[i] ? &blocks[i] : NULL);
  weir__live_clear(&live);
  soft_seed(0);
}
