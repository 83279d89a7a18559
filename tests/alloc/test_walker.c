/*
 * The walker detects damage: each test corrupts one value and restores it.
 */
#include "support/alloc.h"
#include "support/valid.h"

static weir__segment *segment_of(const void *p) { return segment_at(p); }

static weir__block *block_of(const void *p) {
  weir__block *b = segment_of(p)->first;
  while (b->address != (uint64_t)p)
    b = weir__block_next(b);
  return b;
}

/* Expects one error that contains these words. */
static void expect_wrong(const char *words) {
  collect_messages();
  bool is_valid = weir__allocator_is_valid(allocator);
  if (messages_with(WEIR_LOG_ERROR, words) == 0)
    print_error("no message contains \"%s\"\n", words);
  assert_false(is_valid);
  assert_true(messages_with(WEIR_LOG_ERROR, words) > 0);
  assert_true(messages_with(WEIR_LOG_ERROR, "the allocator of device 0 is not valid") > 0);
}

/* Sets a field, expects an error of the walker, and restores the field. */
#define SPOIL(field, value, words)                                                                                     \
  do {                                                                                                                 \
    __typeof__(field) was = (field);                                                                                   \
    (field) = (value);                                                                                                 \
    expect_wrong(words);                                                                                               \
    (field) = was;                                                                                                     \
    assert_true(weir__allocator_is_valid(allocator));                                                                  \
  } while (0)

FIXTURE(.teardown = alloc_teardown)

TEST(blocks) {
  alloc_open(NULL, GIB);
  void *a = get(4096, NULL), *b = get(4096, NULL), *c = get(4096, NULL);
  put(b);
  weir__block *live = block_of(a), *idle = block_of(b);
  weir__segment *segment = segment_of(a);
  SPOIL(live->units, 9, "expected at");
  SPOIL(live->units, 0, "bytes");
  SPOIL(segment->first, idle, "does not begin with its first block");
  SPOIL(idle->previous, 0, "does not link back to it");
  SPOIL(live->paged, 1, "belongs to another segment");
  SPOIL(live->requested, 5000, "bytes for a request of 5000");
  SPOIL(live->requested, 0, "bytes for a request of 0");
  SPOIL(live->state, WEIR__FREE, "is not in the index");
  SPOIL(idle->state, WEIR__ALLOCATED, "is in use but not in the live table");
  SPOIL(live->state, WEIR__UNMAPPED, "unmapped in a fixed segment");
  SPOIL(live->state, WEIR__WAITING, "waits for nothing");
  SPOIL(segment->memory.bytes, 4 * MIB, "not covered by its blocks");
  weir__arena *arena = segment->arena;
  weir__index_remove(&arena->free, idle);
  expect_wrong("not in the index");
  weir__index_insert(&arena->free, idle);
  SPOIL(arena->free.groups, 0, "out of order");
  SPOIL(arena->free.group[0]->nil.state, WEIR__FREE, "out of order");
  weir__rangemap *by_address = &allocator->heaps[0].segments_by_address;
  assert_true(weir__rangemap_insert(by_address, 512, 512, segment));
  expect_wrong("1 segments are listed, but 2 are found by address");
  assert_ptr_equal(weir__rangemap_remove(by_address, 512), segment);
  SPOIL(arena->live.count, 7, "has 7 live blocks");
  put(a);
  put(c);
  alloc_close();
}

/* Two free neighbours. */
TEST(unmerged) {
  alloc_open(NULL, GIB);
  void *a = get(4096, NULL), *b = get(4096, NULL), *c = get(4096, NULL);
  put(a);
  weir__block *second = block_of(b);
  weir__arena *arena = segment_of(b)->arena;
  weir__live_place place;
  assert_ptr_equal(weir__live_find(&arena->live, second->address, &place), second);
  weir__live_remove(&arena->live, second->address, place);
  second->state = WEIR__FREE;
  weir__index_insert(&arena->free, second);
  expect_wrong("are not merged");
  weir__index_remove(&arena->free, second);
  second->state = WEIR__ALLOCATED;
  second->requested = 4096;
  second->marks = 0;
  weir__live_insert(&arena->live, second, weir__live_hash(second->address));
  put(b);
  put(c);
  alloc_close();
}

TEST(segments_and_pools) {
  alloc_open(NULL, GIB);
  const weir_pool_id id = {0, 4};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *a = get(4096, NULL), *b = get(4096, work_stream());
  weir__heap *heap = &allocator->heaps[0];
  weir__private_pool *pool = heap->private_pools;
  SPOIL(pool->segments, 1, "has 2 segments but counts 1");
  SPOIL(heap->segments->arena->segments, 3, "segments but counts 3");
  SPOIL(pool->is_released, true, "has 1 uses and is released");
  SPOIL(pool->uses, 0, "has 0 uses and is not released");
  SPOIL(heap->private_pools, NULL, "an arena that no longer exists");
  SPOIL(segment_of(a)->previous, segment_of(a), "not linked in its list");
  atomic_fetch_add(&heap->captures, 1);
  expect_wrong("0 scopes are captures, but 1 are counted");
  atomic_fetch_sub(&heap->captures, 1);
  weir__private_pool gone = {.id = {0, 99}};
  SPOIL(heap->thread_scopes->pool, &gone, "a scope refers to a pool that no longer exists");
  SPOIL(heap->thread_scopes, NULL, "threads have scopes, but that is not a reason");
  assert_ok(weir_pool_end(allocator, 0, id));
  put(a);
  put(b);
  alloc_close();
}

TEST(pages) {
  alloc_open("expandable_segments:True", GIB);
  void *a = get(30 * MIB, NULL);
  weir__segment *segment = segment_of(a);
  weir__block *unmapped = weir__block_next(weir__block_next(segment->first));
  assert_int_equal(unmapped->state, WEIR__UNMAPPED);
  /* Bins are sized for the mapped memory, not for the reserved address space: there may be thousands of arenas. */
  assert_non_null(segment->arena->free.group[20]);
  assert_null(segment->arena->free.group[21]);
  SPOIL(segment->memory.slots[1], NULL, "has no memory at");
  SPOIL(segment->memory.owned, 3, "has 3 pages");
  SPOIL(unmapped->state, WEIR__FREE, "does not map");
  SPOIL(weir__block_next(segment->first)->paged, WEIR__PAGED, "is not marked although an unmapped one follows");
  weir__tree_remove(&segment->arena->unmapped, unmapped);
  expect_wrong("is not in the tree of unmapped blocks");
  weir__tree_insert(&segment->arena->unmapped, unmapped);
  put(a);
  alloc_close();
}

/* Pages that have moved, and the aliases that they left behind. */
TEST(moved_pages) {
  alloc_open("moving_pages:True", GIB);
  void *a = get(40 * MIB, NULL), *between = get(2 * MIB, NULL), *b = get(40 * MIB, NULL), *end = get(2 * MIB, NULL);
  uint64_t old[] = {(uint64_t)a, (uint64_t)b};
  put(a);
  put(b);
  void *c = get(80 * MIB, NULL);
  weir__heap *heap = &allocator->heaps[0];
  weir__segment *segment = segment_of(between);
  weir__mapping *owner = weir__mapping_at(&segment_of(c)->memory, (uint64_t)c), *alias = heap->pages.aliases.oldest;
  assert_non_null(alias);
  assert_true(alias->address - old[0] < 40 * MIB || alias->address - old[1] < 40 * MIB);
  weir__page *page = owner->page;
  SPOIL(page->owner, NULL, "belongs to no address");
  SPOIL(page->owner, weir__mapping_at(&segment->memory, (uint64_t)between), "belongs to no address");
  SPOIL(page->home, owner, "has a home that is not an alias of it");
  SPOIL(page->handle, 0, "has handle 0");
  SPOIL(page->bytes, 3 * MIB, "has handle");
  SPOIL(page->pins, WEIR__PIN_EXPORTED, "and the file -1");
  SPOIL(page->mappings, page->mappings->next, "does not list this mapping");
  SPOIL(page->mappings->page, weir__mapping_at(&segment->memory, (uint64_t)between)->page,
        "does not list this mapping");
  SPOIL(owner->state, WEIR__MAPPING_ALIAS, "has no memory at");
  SPOIL(owner->state, WEIR__MAPPING_STUCK, "has no memory at");
  SPOIL(alias->state, WEIR__MAPPING_STUCK, "has a home that is not an alias of it");
  SPOIL(alias->state, WEIR__MAPPING_OWNER, "is not noted as it is");
  SPOIL(alias->state, WEIR__MAPPING_RETIRING, "and waits for fence 0");
  SPOIL(alias->page->owner, alias, "which its page contradicts");
  SPOIL(alias->address, alias->address + 2 * MIB, "a mapping of another address");
  SPOIL(alias->reservation, NULL, "a mapping of another address");
  SPOIL(segment->growth, WEIR__GROWTH_EXPANDABLE, "whose pages stay");
  SPOIL(alias->newer, NULL, "aliases");
  SPOIL(heap->pages.aliases.oldest, alias->newer, "not linked in the list of aliases");
  SPOIL(heap->pages.aliases.newest, NULL, "does not end with the newest");
  SPOIL(heap->pages.aliases.count, 0, "0 aliases are counted");
  SPOIL(heap->pages.aliases.retiring, 1, "1 aliases are counted as retiring, but 0 are");
  SPOIL(heap->pages.reservations->previous, heap->pages.reservations, "not linked in its list");
  SPOIL(alias->fence, 1, "and waits for fence 1");
  alias->state = WEIR__MAPPING_RETIRING;
  alias->fence = 1;
  expect_wrong("0 aliases are counted as retiring, but 1 are");
  heap->pages.aliases.retiring = 1;
  expect_wrong("1 aliases wait for fence 1, but 0 are counted");
  alias->fence = 200;
  expect_wrong("waits for fence 200");
  alias->fence = 1;
  heap->pages.aliases.waiting[1] = 1;
  expect_wrong("1 aliases wait for no event");
  weir__mapping_retire(&heap->pages, alias, 0);
  weir__page *large = NULL; /* one with several slots */
  for (size_t i = 0; i < segment->memory.room && !large; i++)
    if (segment->memory.slots[i] && segment->memory.slots[i]->page->bytes > segment->memory.slot)
      large = segment->memory.slots[i]->page;
  if (large) {
    weir__mapping **second =
        &large->owner->reservation->slots[(large->owner->address - segment->memory.base) / segment->memory.slot + 1];
    SPOIL(*second, NULL, "is not in slot");
  }
  put(between);
  put(end);
  put(c);
  alloc_close();
}

TEST(statistics) {
  alloc_open("max_split_size_mb:40", GIB);
  weir_cu_stream other = work_stream();
  void *a = get(4096, NULL), *b = get(50 * MIB, NULL), *c = get(4096, NULL);
  also_used_by(c, other);
  put(c);
  weir_allocator_stats *s = &allocator->heaps[0].stats;
  weir__accounts *accounts = &allocator->heaps[0].accounts;
  static const char *const names[] = {"allocation",     "allocated_bytes",      "requested_bytes",
                                      "inactive_split", "inactive_split_bytes", "active",
                                      "active_bytes",   "oversize_allocations"};
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    for (size_t i = 0; i < WEIR_COUNT_OF(names); i++)
      if (i != 7 || kind == WEIR_STAT_ALL)
        SPOIL(accounts->device.published[kind].at[i], 12345, names[i]);
    SPOIL(accounts->device.segments[kind].current, 12345, "segment");
    SPOIL(accounts->device.reserved[kind].current, 12345, "reserved_bytes");
  }
  SPOIL(s->oversize_segments.current, 0, "oversize_segments");
  SPOIL(accounts->peak[0].at[0], 0, "above its peak");
  SPOIL(accounts->default_pool.reserved[0].current, 5, "the account of pool {0, 0} has 5 bytes, its arenas");
  SPOIL(accounts->default_pool.published[0].of.waiting, 7, "the account of pool {0, 0} counts");
  SPOIL(accounts->device.promised, 5, "5 bytes are still promised");
  SPOIL(allocator->heaps[0].pending, 2, "1 events and blocks are pending, but 2 are counted");
  weir__slow_reason_set(&allocator->heaps[0], WEIR__SLOW_PENDING, false);
  expect_wrong("1 events and blocks are pending, and allocations do not poll");
  weir__slow_reason_set(&allocator->heaps[0], WEIR__SLOW_PENDING, true);
  SPOIL(weir__block_cold_of(block_of(c))->events, 2,
        "1 events are queued, 0 blocks are in limbo and 0 in quarantine, but blocks wait for 2");
  soft_step_all();
  put(a);
  put(b);
  alloc_close();
}
