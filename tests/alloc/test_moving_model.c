/*
 * Random operations with pages that move, compared with a plain model.
 *
 * The model does not know the policy: where blocks are placed, and which pages move, is free. It knows what must hold
 * whatever the policy is. It keeps a list of the driver's handles and mappings, from the calls that the allocator
 * makes, and a list of the ranges that the books count, from its trace:
 *
 *   - reserved bytes are those of the pages that were made and not released, and those of the ranges;
 *   - each page lies in exactly one range, at one of its mappings; the others are aliases, as many as are counted;
 *   - no live block overlaps another, and each lies in the ranges, so that no two share memory;
 *   - aliases are unmapped down to their bound once the streams have passed;
 *   - a request fails only if the pages in use leave no room for it under the limit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moving_fixture.h"
#include "support/length.h"

enum { STREAMS = 3, POOLS = 3, MAX = 40, MAX_PAGES = 4096, SLOT = 2 << 20, UNMAPS_AT_ONCE = 64 };

typedef struct range {
  uint64_t address, bytes;
} range;

/* ---- The driver's pages ---- */

typedef struct page {
  weir_cu_mem_handle handle;
  uint64_t bytes;
} page;

typedef struct mapping {
  uint64_t address, bytes;
  weir_cu_mem_handle handle;
  bool is_accessible;
} mapping;

static page pages[MAX_PAGES];
static mapping mappings[MAX_PAGES];
static size_t page_count, mapping_count;
static weir_driver real;

static weir_cu_result create(weir_driver *self, weir_cu_mem_handle *handle, size_t bytes, const weir_cu_mem_prop *prop,
                             unsigned long long flags) {
  weir_cu_result r = real.MemCreate(self, handle, bytes, prop, flags);
  assert_true(page_count < MAX_PAGES);
  if (!r)
    pages[page_count++] = (page){*handle, bytes};
  return r;
}

static weir_cu_result release(weir_driver *self, weir_cu_mem_handle handle) {
  weir_cu_result r = real.MemRelease(self, handle);
  for (size_t i = 0; !r && i < page_count; i++)
    if (pages[i].handle == handle)
      pages[i] = pages[--page_count];
  for (size_t i = 0; !r && i < mapping_count; i++)
    assert_true(mappings[i].handle != handle); /* it would count as given back while it is not */
  return r;
}

static weir_cu_result map(weir_driver *self, weir_cu_deviceptr address, size_t bytes, size_t offset,
                          weir_cu_mem_handle handle, unsigned long long flags) {
  weir_cu_result r = real.MemMap(self, address, bytes, offset, handle, flags);
  assert_true(mapping_count < MAX_PAGES);
  if (!r)
    mappings[mapping_count++] = (mapping){address, bytes, handle, false};
  return r;
}

static bool is_inside(uint64_t address, uint64_t bytes, uint64_t of, uint64_t of_bytes) {
  return address >= of && address + bytes <= of + of_bytes;
}

static weir_cu_result set_access(weir_driver *self, weir_cu_deviceptr address, size_t bytes,
                                 const weir_cu_mem_access *access, size_t count) {
  weir_cu_result r = real.MemSetAccess(self, address, bytes, access, count);
  for (size_t i = 0; !r && i < mapping_count; i++)
    mappings[i].is_accessible |= is_inside(mappings[i].address, mappings[i].bytes, address, bytes);
  return r;
}

static weir_cu_result unmap(weir_driver *self, weir_cu_deviceptr address, size_t bytes) {
  weir_cu_result r = real.MemUnmap(self, address, bytes);
  for (size_t i = 0; !r && i < mapping_count;)
    if (is_inside(mappings[i].address, mappings[i].bytes, address, bytes))
      mappings[i] = mappings[--mapping_count];
    else
      i++;
  return r;
}

static void watch_driver(void) {
  real = *faults;
  page_count = mapping_count = 0;
  faults->MemCreate = create;
  faults->MemRelease = release;
  faults->MemMap = map;
  faults->MemSetAccess = set_access;
  faults->MemUnmap = unmap;
}

/* ---- The ranges of the books, slot by slot ---- */

static uint64_t owned[MAX_PAGES]; /* addresses of slots */
static size_t owned_count;

static size_t find_owned(uint64_t address) {
  size_t i = 0;
  while (i < owned_count && owned[i] != address)
    i++;
  return i;
}

static void follow_books(void *context, const weir_trace_entry *entry) {
  (void)context;
  if (entry->action != WEIR_TRACE_SEGMENT_MAP && entry->action != WEIR_TRACE_SEGMENT_UNMAP)
    return;
  assert_int_equal(entry->bytes % SLOT, 0);
  for (uint64_t at = entry->address; at < entry->address + entry->bytes; at += SLOT) {
    size_t i = find_owned(at);
    if (entry->action == WEIR_TRACE_SEGMENT_MAP) {
      assert_int_equal(i, owned_count); /* it was not there */
      assert_true(owned_count < MAX_PAGES);
      owned[owned_count++] = at;
    } else {
      assert_true(i < owned_count);
      owned[i] = owned[--owned_count];
    }
  }
}

/* ---- Live blocks ---- */

typedef struct block {
  char *memory;
  size_t bytes;
  int stream;
  weir_pool_id pool;
} block;

static block live[MAX];
static int live_count;
static block used[8 * MAX]; /* freed, but possibly still in use by another stream */
static int used_count;
static weir_cu_stream streams[STREAMS];
static int in_scope; /* number of the pool; 0 if none is in scope */
static bool has_pool[POOLS + 1];
static uint64_t limit;
static bool moves; /* the setting */
static unsigned long step_number, refusals;

static weir_pool_id id_of(int pool) { return (weir_pool_id){0, (uint64_t)pool + 10}; }

static void wrong(const char *what) {
  print_error("operation %lu: %s\n", step_number, what);
  fail();
}

/* ---- The comparison ---- */

static bool is_owner(const mapping *m) { return find_owned(m->address) < owned_count; }

static void compare(void) {
  uint64_t made = 0;
  size_t aliases = 0;
  for (size_t i = 0; i < page_count; i++) {
    size_t owners = 0;
    made += pages[i].bytes;
    for (size_t k = 0; k < mapping_count; k++)
      if (mappings[k].handle == pages[i].handle) {
        if (!mappings[k].is_accessible)
          wrong("a mapping is not accessible");
        owners += is_owner(&mappings[k]);
        aliases += !is_owner(&mappings[k]);
      }
    if (owners != 1)
      wrong("a page does not have exactly one owner");
  }
  if (made != (uint64_t)reserved() || owned_count * (uint64_t)SLOT != made)
    wrong("reserved bytes are not those of the pages");
  if ((int64_t)aliases != stats_of(0).moving_aliases)
    wrong("the aliases are not as many as counted");
  for (int i = 0; i < live_count; i++) {
    uint64_t first = (uint64_t)live[i].memory / SLOT * SLOT, end = (uint64_t)live[i].memory + live[i].bytes;
    for (uint64_t at = first; at < end; at += SLOT)
      if (find_owned(at) == owned_count)
        wrong("a live block is not in the books");
    for (int k = 0; k < i; k++)
      if (live[i].memory < live[k].memory + live[k].bytes && live[k].memory < live[i].memory + live[i].bytes)
        wrong("live blocks overlap");
  }
}

/* The bytes of pages that blocks are in, with those that may be in use by other streams. */
static uint64_t bytes_in_use(void) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < mapping_count; i++) {
    bool is_used = false;
    const mapping *m = &mappings[i];
    for (int k = 0; k < live_count + used_count; k++) {
      const block *b = k < live_count ? &live[k] : &used[k - live_count];
      is_used |= (uint64_t)b->memory < m->address + m->bytes && m->address < (uint64_t)b->memory + b->bytes;
    }
    bytes += is_used && is_owner(m) ? m->bytes : 0;
  }
  return bytes;
}

/* ---- Operations ---- */

static size_t some_bytes(void) {
  switch (soft_random(8)) {
  case 0:
    return 1 + soft_random(64 * KIB);
  case 1:
    return 1 + soft_random(2 * MIB);
  case 2:
    return (10 + soft_random(40)) * MIB;
  default:
    return 1 + soft_random(12 * MIB);
  }
}

static void op_alloc(void) {
  size_t bytes = some_bytes();
  int stream = (int)soft_random(STREAMS);
  void *p = NULL;
  if (live_count == MAX)
    return;
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, streams[stream], &p);
  if (!status) {
    live[live_count++] = (block){p, bytes, stream, id_of(in_scope)};
    return;
  }
  if (status != WEIR_ERROR_OUT_OF_MEMORY)
    wrong("a request failed for another reason");
  refusals++;
  for (int i = 1; i <= POOLS; i++)
    if (has_pool[i])
      return;                              /* a pool keeps its free memory */
  uint64_t unit = moves ? SLOT : 20 * MIB; /* a page of a segment whose pages stay */
  if (bytes_in_use() + (bytes + unit - 1) / unit * unit <= limit)
    wrong("a request was refused although there is room");
}

static void op_free(void) {
  if (!live_count)
    return;
  int i = (int)soft_random((uint64_t)live_count);
  block b = live[i];
  live[i] = live[--live_count];
  assert_true(used_count < (int)WEIR_COUNT_OF(used));
  used[used_count++] = b;
  assert_ok(weir_allocator_free(allocator, b.memory));
}

static void op_use(void) {
  if (!live_count)
    return;
  const block *b = &live[soft_random((uint64_t)live_count)];
  int stream = (int)soft_random(STREAMS);
  work(streams[stream]);
  assert_ok(weir_allocator_record_stream(allocator, b->memory, streams[stream]));
}

static void op_settings(void) {
  enum { MOVES_OFF = 8 };
  static const char *const confs[] = {"moving_pages_max_aliases:8192",
                                      "moving_pages_max_aliases:0",
                                      "moving_pages_max_aliases:10",
                                      "moving_pages_across_streams:True",
                                      "moving_pages_across_streams:False",
                                      "moving_pages_completed_only:True",
                                      "moving_pages_completed_only:False",
                                      "max_split_size_mb:30",
                                      "moving_pages:False",
                                      "moving_pages:True"};
  uint64_t i = soft_random(WEIR_COUNT_OF(confs));
  configure(confs[i]);
  moves = i == MOVES_OFF ? false : i == MOVES_OFF + 1 ? true : moves;
}

/* Opens or closes a scope, or ends the life of a pool. */
static void op_pool(void) {
  int pool = 1 + (int)soft_random(POOLS);
  if (in_scope) {
    assert_ok(weir_pool_end(allocator, 0, id_of(in_scope)));
    in_scope = 0;
  } else if (has_pool[pool] && soft_random(2)) {
    assert_ok(weir_pool_release(allocator, 0, id_of(pool)));
    has_pool[pool] = false;
  } else {
    if (!has_pool[pool]) {
      weir_pool_options options;
      weir_pool_options_init(&options);
      options.moving_pages = (int)soft_random(2);
      assert_ok(weir_pool_create(allocator, 0, id_of(pool), &options));
    } else
      assert_ok(weir_pool_create(allocator, 0, id_of(pool), NULL));
    assert_ok(weir_pool_begin(allocator, 0, id_of(pool), NULL, NULL));
    assert_ok(weir_pool_release(allocator, 0, id_of(pool)));
    if (has_pool[pool])
      assert_ok(weir_pool_release(allocator, 0, id_of(pool)));
    has_pool[pool] = true;
    in_scope = pool;
  }
}

/* All streams pass, and aliases are unmapped down to the bound. */
static void op_settle(void) {
  soft_step_all();
  used_count = 0;
  moves = true;
  configure("moving_pages:True,moving_pages_max_aliases:6");
  assert_ok(weir_allocator_set_limit(allocator, 0, 2 * GIB));
  int64_t before = stats_of(0).moving_aliases;
  void *p[12] = {0};
  int count = 0;
  for (; count < 12 && stats_of(0).moving_aliases > 6 + UNMAPS_AT_ONCE; count++) {
    assert_ok(weir_allocator_alloc(allocator, 0, (size_t)(52 + count) * MIB, streams[0], &p[count]));
    soft_step_all();
  }
  if (count == 12 && stats_of(0).moving_aliases > before)
    wrong("aliases are not unmapped");
  while (count-- > 0)
    assert_ok(weir_allocator_free(allocator, p[count]));
  assert_ok(weir_allocator_set_limit(allocator, 0, limit));
  empty_cache();
}

static void step(void) {
  uint64_t what = soft_random(1000);
  if (what < 500)
    op_alloc();
  else if (what < 780)
    op_free();
  else if (what < 850)
    op_use();
  else if (what < 950)
    soft_step(streams[soft_random(STREAMS)], soft_random(5));
  else if (what < 960)
    op_settings();
  else if (what < 980)
    op_pool();
  else if (what < 984 && live_count)
    assert_ok(weir_allocator_fix_pages(allocator, live[soft_random((uint64_t)live_count)].memory));
  else if (what < 988)
    assert_ok(weir_allocator_empty_cache(allocator));
  else if (what < 990)
    op_settle();
  else if (what < 994) {
    soft_step_all();
    used_count = 0;
  } else if (what < 996)
    for (int i = (int)soft_random(20); i > 0; i--)
      op_free();
  if (used_count > 6 * MAX) {
    soft_step_all();
    used_count = 0;
  }
}

static void run(uint64_t seed, int steps) {
  soft_seed(seed);
  alloc_open("moving_pages:True", 2 * GIB);
  watch_driver();
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = follow_books)));
  limit = soft_random(2) ? 150 * MIB : 400 * MIB;
  assert_ok(weir_allocator_set_limit(allocator, 0, limit));
  moves = true;
  owned_count = 0;
  live_count = used_count = in_scope = 0;
  memset(has_pool, 0, sizeof has_pool);
  for (int i = 0; i < STREAMS; i++)
    streams[i] = i ? work_stream() : NULL;
  for (step_number = 0; step_number < (unsigned long)steps; step_number++) {
    step();
    if (soft_random(4) == 0)
      compare();
    if (soft_random(20) == 0)
      assert_valid();
  }
  if (in_scope)
    assert_ok(weir_pool_end(allocator, 0, id_of(in_scope)));
  for (int i = 1; i <= POOLS; i++)
    if (has_pool[i])
      assert_ok(weir_pool_release(allocator, 0, id_of(i)));
  while (live_count)
    op_free();
  soft_step_all();
  used_count = 0;
  assert_true(stats_of(0).moving_pages_moved > 0);
  empty_cache();
  compare();
  assert_int_equal(page_count, 0);
  assert_int_equal(mapping_count, 0);
  assert_int_equal(owned_count, 0);
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(random_operations) {
  int rounds = repetitions(3, 200);
  for (uint64_t seed = soft_first_seed(&rounds), last = seed + (uint64_t)rounds; seed < last; seed++)
    run(seed, 3000);
}
