#include <stdlib.h>

#include "base/rangemap.h"
#include "support/check.h"
#include "support/random.h"

#define LAST UINT64_MAX

/* ---- A simple, slow model ---- */

enum { MODEL_MAX = 512 };

typedef struct range {
  uint64_t base, last;
  void *value;
} range;

typedef struct model {
  range ranges[MODEL_MAX]; /* unordered */
  size_t count;
} model;

static const range *model_lowest(const model *m, uint64_t from, uint64_t to, bool by_base) {
  const range *best = NULL;
  for (size_t i = 0; i < m->count; i++) {
    const range *r = &m->ranges[i];
    bool match = by_base ? r->base >= from : r->base <= to && r->last >= from;
    if (match && (best == NULL || r->base < best->base))
      best = r;
  }
  return best;
}

static void *model_remove(model *m, uint64_t base) {
  for (size_t i = 0; i < m->count; i++) {
    if (m->ranges[i].base != base)
      continue;
    void *value = m->ranges[i].value;
    m->ranges[i] = m->ranges[--m->count];
    return value;
  }
  return NULL;
}

/* Addresses of several kinds: a dense range, pages, both ends of the address space, and random ones. */
static uint64_t some_address(uint64_t *state, unsigned kind) {
  uint64_t r = next_random(state);
  switch (kind) {
  case 0:
    return r % 2000;
  case 1:
    return (uint64_t)0x7f0000000000 + ((r % 400) << 21);
  case 2:
    return LAST - r % 3000;
  case 3:
    return r;
  default:
    return (r >> 8) << (r % 60); /* few low bits set */
  }
}

static void check_answer(const char *what, unsigned seed, const range *expected, void *value, uint64_t base,
                         uint64_t size) {
  if (value != (expected == NULL ? NULL : expected->value))
    fail_msg("%s differs, seed %u", what, seed);
  if (expected == NULL)
    return;
  if (base != expected->base || size != expected->last - expected->base + 1)
    fail_msg("%s finds another range, seed %u", what, seed);
}

static void random_walk(unsigned seed) {
  weir__rangemap map = {0};
  model m = {.count = 0};
  uint64_t state = seed;
  unsigned kind = seed % 6;
  for (int step = 0; step < 3000; step++) {
    unsigned k = kind == 5 ? next_random(&state) % 5 : kind;
    uint64_t address = some_address(&state, k), size = 1 + next_random(&state) % (k == 1 ? 5 << 21 : 12);
    if (k == 1)
      size = (size + (1 << 21) - 1) >> 21 << 21;
    uint64_t base = 0, found = 0;
    switch (next_random(&state) % 6) {
    case 0:
    case 1: {
      void *value = (void *)(uintptr_t)(step + 1);
      bool wraps = address + size - 1 < address;
      bool fits = !wraps && model_lowest(&m, address, address + size - 1, false) == NULL;
      if (m.count == MODEL_MAX)
        break;
      if (weir__rangemap_insert(&map, address, size, value) != fits)
        fail_msg("insert differs, seed %u", seed);
      if (fits)
        m.ranges[m.count++] = (range){address, address + size - 1, value};
      break;
    }
    case 2: {
      /* Half of the time an existing base. */
      if (m.count > 0 && next_random(&state) % 2)
        address = m.ranges[next_random(&state) % m.count].base;
      if (weir__rangemap_remove(&map, address) != model_remove(&m, address))
        fail_msg("remove differs, seed %u", seed);
      break;
    }
    case 3: {
      void *value = weir__rangemap_find(&map, address, &base, &found);
      check_answer("find", seed, model_lowest(&m, address, address, false), value, base, found);
      break;
    }
    case 4: {
      uint64_t end = size - 1 > LAST - address ? LAST : address + size - 1;
      void *value = weir__rangemap_overlap(&map, address, size, &base, &found);
      check_answer("overlap", seed, model_lowest(&m, address, end, false), value, base, found);
      break;
    }
    case 5: {
      void *value = weir__rangemap_at_or_after(&map, address, &base, &found);
      check_answer("at_or_after", seed, model_lowest(&m, address, 0, true), value, base, found);
      break;
    }
    }
    if (weir__rangemap_count(&map) != m.count)
      fail_msg("count differs, seed %u", seed);
    if (step % 16 == 0 && !weir__rangemap_is_valid(&map))
      fail_msg("the map is broken, seed %u", seed);
  }
  weir__rangemap_clear(&map);
}

TEST(random_operations_match_a_plain_model) {
  for (unsigned seed = 0; seed < 300; seed++)
    random_walk(seed);
}

/* ---- Edge cases ---- */

TEST(empty_map_answers_nothing) {
  weir__rangemap map = {0};
  assert_null(weir__rangemap_find(&map, 0, NULL, NULL));
  assert_null(weir__rangemap_overlap(&map, 0, LAST, NULL, NULL));
  assert_null(weir__rangemap_at_or_after(&map, 0, NULL, NULL));
  assert_null(weir__rangemap_remove(&map, 0));
  assert_int_equal(weir__rangemap_count(&map), 0);
  assert_true(weir__rangemap_is_valid(&map));
  weir__rangemap_clear(&map);
}

TEST(insert_refuses_invalid_ranges) {
  weir__rangemap map = {0};
  int value;
  assert_false(weir__rangemap_insert(&map, 100, 0, &value));
  assert_false(weir__rangemap_insert(&map, LAST, 2, &value));
  assert_false(weir__rangemap_insert(&map, 1, LAST, NULL));
  assert_int_equal(weir__rangemap_count(&map), 0);
  weir__rangemap_clear(&map);
}

TEST(ranges_reach_both_ends_of_the_address_space) {
  weir__rangemap map = {0};
  int low, high, middle;
  assert_true(weir__rangemap_insert(&map, 0, 1, &low));
  assert_true(weir__rangemap_insert(&map, LAST, 1, &high));
  assert_true(weir__rangemap_insert(&map, 1, LAST - 1, &middle));
  assert_false(weir__rangemap_insert(&map, LAST, 1, &high));
  assert_ptr_equal(weir__rangemap_find(&map, 0, NULL, NULL), &low);
  assert_ptr_equal(weir__rangemap_find(&map, LAST - 1, NULL, NULL), &middle);
  assert_ptr_equal(weir__rangemap_find(&map, LAST, NULL, NULL), &high);
  assert_ptr_equal(weir__rangemap_overlap(&map, LAST, LAST, NULL, NULL), &high);
  assert_true(weir__rangemap_is_valid(&map));
  weir__rangemap_clear(&map);
}

TEST(neighbours_touch_but_do_not_overlap) {
  weir__rangemap map = {0};
  int left, right;
  assert_true(weir__rangemap_insert(&map, 4096, 4096, &left));
  assert_true(weir__rangemap_insert(&map, 8192, 4096, &right));
  assert_false(weir__rangemap_insert(&map, 8191, 1, &left));
  assert_false(weir__rangemap_insert(&map, 4000, 97, &left));
  assert_false(weir__rangemap_insert(&map, 0, 100000, &left));
  assert_true(weir__rangemap_insert(&map, 4000, 96, &left));

  uint64_t base = 7, size = 7;
  assert_ptr_equal(weir__rangemap_find(&map, 8192, &base, &size), &right);
  assert_int_equal(base, 8192);
  assert_int_equal(size, 4096);
  assert_null(weir__rangemap_find(&map, 12288, &base, &size));
  assert_int_equal(base, 8192); /* a miss leaves the outputs unchanged */
  weir__rangemap_clear(&map);
}

TEST(walk_in_order_while_removing) {
  enum { COUNT = 100000 };
  weir__rangemap map = {0};
  /* 7919 is coprime to the count, so every index occurs once, in a scattered order. */
  for (uint64_t i = 0; i < COUNT; i++) {
    uint64_t place = i * 7919 % COUNT;
    assert_true(weir__rangemap_insert(&map, place << 21, 1 << 21, (void *)(uintptr_t)(place + 1)));
  }
  assert_int_equal(weir__rangemap_count(&map), COUNT);
  assert_true(weir__rangemap_is_valid(&map));

  uint64_t seen = 0, base = 0, size = 0;
  for (uint64_t at = 0;; at = base + size, seen++) {
    void *value = weir__rangemap_at_or_after(&map, at, &base, &size);
    if (value == NULL)
      break;
    assert_int_equal(base, seen << 21);
    assert_int_equal((uintptr_t)value, seen + 1);
    if (seen % 2)
      assert_ptr_equal(weir__rangemap_remove(&map, base), value);
  }
  assert_int_equal(seen, COUNT);
  assert_int_equal(weir__rangemap_count(&map), COUNT / 2);
  assert_true(weir__rangemap_is_valid(&map));
  weir__rangemap_clear(&map);
  assert_int_equal(weir__rangemap_count(&map), 0);
  assert_true(weir__rangemap_insert(&map, 1, 1, &map)); /* a cleared map can be used again */
  weir__rangemap_clear(&map);
}
