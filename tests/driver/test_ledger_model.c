/*
 * Compares the ledger with a simple model: arrays that are searched linearly. Both get the same random calls, valid and
 * invalid ones, and must return the same results. A failure prints the seed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "support/ledger.h"

enum { MAX = 256, STEPS = 1500, SEEDS = 600 };

typedef enum kind { PLAIN, POOLED, HOST, RESERVED } kind;

typedef struct range {
  uint64_t base, bytes;
  kind is;
} range;

typedef struct memory {
  weir_cu_mem_handle handle;
  uint64_t bytes;
  int mappings;
  bool released;
} memory;

typedef struct mapping {
  uint64_t base, bytes;
  int memory; /* index */
  int access;
} mapping;

typedef struct model {
  weir_driver *d;
  uint64_t seed, random;
  int step;
  const char *op;
  uint64_t capacity, used, pool_used, pool_reserved;
  uint64_t place; /* the result of the placement callback */
  bool places;    /* placement is used in this run */
  range ranges[MAX];
  memory memories[MAX];
  mapping mappings[MAX];
  int range_count, memory_count, mapping_count;
} model;

static uint64_t pick(model *m, uint64_t below) { return next_random(&m->random) % below; }

static void expect(const model *m, weir_cu_result expected, weir_cu_result result) {
  if (result != expected)
    fail_msg("seed %llu, step %d: %s answers %d, not %d", (unsigned long long)m->seed, m->step, m->op, result,
             expected);
}

static void require(const model *m, bool holds, const char *what) {
  if (!holds)
    fail_msg("seed %llu, step %d: %s: %s", (unsigned long long)m->seed, m->step, m->op, what);
}

/* ---- The model ---- */

static bool touch(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

static bool range_overlaps(const model *m, uint64_t base, uint64_t bytes) {
  for (int i = 0; i < m->range_count; i++)
    if (touch(base, bytes, m->ranges[i].base, m->ranges[i].bytes))
      return true;
  return false;
}

static int range_at(const model *m, uint64_t base) {
  for (int i = 0; i < m->range_count; i++)
    if (m->ranges[i].base == base)
      return i;
  return -1;
}

static int range_holding(const model *m, uint64_t address, uint64_t bytes) {
  for (int i = 0; i < m->range_count; i++) {
    const range *r = &m->ranges[i];
    if (address - r->base < r->bytes && bytes <= r->bytes - (address - r->base))
      return i;
  }
  return -1;
}

static int mapping_holding(const model *m, uint64_t address) {
  for (int i = 0; i < m->mapping_count; i++)
    if (address - m->mappings[i].base < m->mappings[i].bytes)
      return i;
  return -1;
}

/* Whether [base, base + bytes) consists of whole mappings of one reservation. */
static bool whole_mappings(const model *m, uint64_t base, uint64_t bytes) {
  uint64_t sum = 0;
  int in = range_holding(m, base, bytes);
  if (bytes == 0 || in < 0 || m->ranges[in].is != RESERVED)
    return false;
  for (int i = 0; i < m->mapping_count; i++) {
    const mapping *p = &m->mappings[i];
    if (!touch(base, bytes, p->base, p->bytes))
      continue;
    if (p->base < base || p->base + p->bytes > base + bytes)
      return false;
    sum += p->bytes;
  }
  return sum == bytes;
}

/* Whether the range lies in one reservation and cuts no mapping. It may have no mapping. */
static bool can_unmap(const model *m, uint64_t base, uint64_t bytes) {
  int in = range_holding(m, base, bytes);
  if (bytes == 0 || bytes % PAGE != 0 || base % PAGE != 0 || in < 0 || m->ranges[in].is != RESERVED)
    return false;
  for (int i = 0; i < m->mapping_count; i++) {
    const mapping *p = &m->mappings[i];
    if (touch(base, bytes, p->base, p->bytes) && (p->base < base || p->base + p->bytes > base + bytes))
      return false;
  }
  return true;
}

static void add_range(model *m, kind is, uint64_t base, uint64_t bytes, bool placed) {
  require(m, !range_overlaps(m, base, bytes), "the range overlaps another");
  require(m, placed ? base == m->place : base % PAGE == 0, "the range is at a wrong place");
  m->ranges[m->range_count++] = (range){base, bytes, is};
}

static void drop_range(model *m, int i) { m->ranges[i] = m->ranges[--m->range_count]; }

static void drop_memory_if_unused(model *m, int i) {
  memory *x = &m->memories[i];
  if (x->released && x->mappings == 0 && x->bytes != 0) {
    m->used -= x->bytes;
    x->bytes = 0; /* the entry is kept: its handle must not work any more */
  }
}

static void trim_pool(model *m, uint64_t keep) {
  if (keep < m->pool_used)
    keep = m->pool_used;
  if (m->pool_reserved > keep) {
    m->used -= m->pool_reserved - keep;
    m->pool_reserved = keep;
  }
}

/* ---- Arguments, mostly valid ---- */

static uint64_t some_bytes(model *m) {
  switch (pick(m, 8)) {
  case 0:
    return 0;
  case 1:
    return 1 + pick(m, 3 * PAGE);
  case 2:
    return m->capacity - m->used + pick(m, 3) - 1; /* all free bytes, or one less or more; if full, 2^64 - 1 */
  default:
    return (1 + pick(m, 6)) * PAGE;
  }
}

static uint64_t some_address(model *m) {
  if (pick(m, 20) == 0)
    return pick(m, 3) * 0x1234000;
  if (m->range_count == 0)
    return 0;
  const range *r = &m->ranges[pick(m, (uint64_t)m->range_count)];
  switch (pick(m, 8)) {
  case 0:
    return r->base + pick(m, r->bytes);
  case 1:
    return r->base + r->bytes;
  case 2:
    return r->base + pick(m, r->bytes / PAGE + 1) * PAGE;
  case 3:
    return r->base - 1;
  default:
    return r->base;
  }
}

static uint64_t some_mapped_address(model *m) {
  if (m->mapping_count == 0 || pick(m, 5) == 0)
    return some_address(m);
  const mapping *p = &m->mappings[pick(m, (uint64_t)m->mapping_count)];
  return pick(m, 8) == 0 ? p->base + PAGE : p->base;
}

/* A length that usually matches the mapping. */
static uint64_t some_mapped_bytes(model *m, uint64_t address) {
  uint64_t at = address;
  for (uint64_t count = 1 + pick(m, 3); count > 0; count--) {
    int i = mapping_holding(m, at);
    if (i < 0)
      break;
    at = m->mappings[i].base + m->mappings[i].bytes;
  }
  return pick(m, 8) == 0 ? some_bytes(m) : at - address;
}

/* ---- The calls ---- */

static void choose_place(model *m, uint64_t unit) {
  m->place = 0;
  if (!m->places || pick(m, 4) == 0)
    return;
  /* Dense, so that ranges collide; some in the space that the ledger itself uses. */
  m->place = pick(m, 5) == 0 ? ((uint64_t)1 << 48) + pick(m, 30) * PAGE
                             : (uint64_t)0x7f0000000000 + pick(m, 64 * PAGE / unit) * unit;
}

static void op_alloc(model *m) {
  m->op = "MemAlloc";
  uint64_t bytes = some_bytes(m);
  weir_cu_deviceptr p = 0;
  choose_place(m, 512);
  weir_cu_result expected = bytes == 0                           ? WEIR_CU_INVALID_VALUE
                            : bytes > m->capacity - m->used      ? WEIR_CU_OUT_OF_MEMORY
                            : m->place == 0                      ? WEIR_CU_SUCCESS
                            : range_overlaps(m, m->place, bytes) ? WEIR_CU_INVALID_VALUE
                                                                 : WEIR_CU_SUCCESS;
  expect(m, expected, m->d->MemAlloc(m->d, &p, bytes));
  if (expected != WEIR_CU_SUCCESS)
    return;
  add_range(m, PLAIN, p, bytes, m->place != 0);
  m->used += bytes;
}

static void op_alloc_async(model *m) {
  m->op = "MemAllocAsync";
  uint64_t bytes = some_bytes(m), unused = m->pool_reserved - m->pool_used;
  if (bytes == 0)
    return;
  uint64_t more = bytes > unused ? bytes - unused : 0;
  weir_cu_deviceptr p = 0;
  bool fits = more <= m->capacity - m->used;
  expect(m, fits ? WEIR_CU_SUCCESS : WEIR_CU_OUT_OF_MEMORY, m->d->MemAllocAsync(m->d, &p, bytes, NULL));
  if (!fits)
    return;
  add_range(m, POOLED, p, bytes, false);
  m->used += more;
  m->pool_reserved += more;
  m->pool_used += bytes;
}

static void op_free(model *m, bool async) {
  m->op = async ? "MemFreeAsync" : "MemFree";
  uint64_t p = some_address(m);
  int i = range_at(m, p);
  bool is_one = i >= 0 && (m->ranges[i].is == PLAIN || m->ranges[i].is == POOLED);
  expect(m, is_one || p == 0 ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE,
         async ? m->d->MemFreeAsync(m->d, p, NULL) : m->d->MemFree(m->d, p));
  if (!is_one)
    return;
  if (m->ranges[i].is == PLAIN) {
    m->used -= m->ranges[i].bytes;
  } else {
    m->pool_used -= m->ranges[i].bytes;
    if (!async)
      trim_pool(m, 0);
  }
  drop_range(m, i);
}

static void op_settle(model *m) {
  m->op = "settle";
  if (pick(m, 2)) {
    expect(m, WEIR_CU_SUCCESS, m->d->CtxSynchronize(m->d));
    trim_pool(m, 0);
    return;
  }
  weir_cu_mempool pool;
  uint64_t keep = some_bytes(m);
  expect(m, WEIR_CU_SUCCESS, m->d->DeviceGetMemPool(m->d, &pool, 0));
  expect(m, WEIR_CU_SUCCESS, m->d->MemPoolTrimTo(m->d, pool, keep));
  trim_pool(m, keep);
}

static void op_host(model *m) {
  m->op = "host memory";
  if (pick(m, 2)) {
    uint64_t bytes = 1 + pick(m, 9 * PAGE);
    void *p = NULL;
    expect(m, WEIR_CU_SUCCESS, m->d->MemHostAlloc(m->d, &p, bytes, 0));
    add_range(m, HOST, (uintptr_t)p, bytes, false);
    return;
  }
  uint64_t p = some_address(m);
  int i = range_at(m, p);
  bool is_one = i >= 0 && m->ranges[i].is == HOST;
  expect(m, is_one || p == 0 ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE, m->d->MemFreeHost(m->d, (void *)(uintptr_t)p));
  if (is_one)
    drop_range(m, i);
}

static void op_reserve(model *m) {
  m->op = "MemAddressReserve";
  uint64_t bytes = pick(m, 10) == 0 ? some_bytes(m) : (1 + pick(m, 600)) * PAGE;
  weir_cu_deviceptr p = 0;
  choose_place(m, PAGE);
  bool good = bytes != 0 && bytes % PAGE == 0 && (m->place == 0 || !range_overlaps(m, m->place, bytes));
  expect(m, good ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE, m->d->MemAddressReserve(m->d, &p, bytes, 0, 0, 0));
  if (good)
    add_range(m, RESERVED, p, bytes, m->place != 0);
}

static void op_unreserve(model *m) {
  m->op = "MemAddressFree";
  uint64_t p = some_address(m);
  int i = range_at(m, p);
  uint64_t bytes = i >= 0 && pick(m, 5) ? m->ranges[i].bytes : some_bytes(m);
  bool good = i >= 0 && m->ranges[i].is == RESERVED && m->ranges[i].bytes == bytes;
  for (int k = 0; good && k < m->mapping_count; k++)
    good = !touch(p, bytes, m->mappings[k].base, m->mappings[k].bytes);
  expect(m, good ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE, m->d->MemAddressFree(m->d, p, bytes));
  if (good)
    drop_range(m, i);
}

static void op_create(model *m) {
  m->op = "MemCreate";
  if (m->memory_count == MAX)
    return;
  uint64_t bytes = some_bytes(m);
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_handle handle = 0;
  weir_cu_result expected = bytes == 0 || bytes % PAGE != 0 ? WEIR_CU_INVALID_VALUE
                            : bytes > m->capacity - m->used ? WEIR_CU_OUT_OF_MEMORY
                                                            : WEIR_CU_SUCCESS;
  expect(m, expected, m->d->MemCreate(m->d, &handle, bytes, &prop, 0));
  if (expected != WEIR_CU_SUCCESS)
    return;
  for (int i = 0; i < m->memory_count; i++)
    require(m, m->memories[i].handle != handle, "the handle was used before");
  m->memories[m->memory_count++] = (memory){handle, bytes, 0, false};
  m->used += bytes;
}

static void op_release(model *m) {
  m->op = "MemRelease";
  if (m->memory_count == 0)
    return;
  int i = (int)pick(m, (uint64_t)m->memory_count);
  bool good = !m->memories[i].released;
  expect(m, good ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE, m->d->MemRelease(m->d, m->memories[i].handle));
  m->memories[i].released = true;
  drop_memory_if_unused(m, i);
}

static void op_map(model *m) {
  m->op = "MemMap";
  if (m->memory_count == 0 || m->mapping_count == MAX)
    return;
  int i = (int)pick(m, (uint64_t)m->memory_count);
  memory *x = &m->memories[i];
  uint64_t p = some_address(m), bytes = pick(m, 6) ? x->bytes : some_bytes(m);
  if (pick(m, 2) && m->range_count > 0) {
    const range *r = &m->ranges[pick(m, (uint64_t)m->range_count)];
    p = r->base + pick(m, 8) * PAGE;
  } else if (m->mapping_count > 0) { /* adjacent to another, so that several are contiguous */
    const mapping *before = &m->mappings[pick(m, (uint64_t)m->mapping_count)];
    p = before->base + before->bytes;
  }
  int in = range_holding(m, p, bytes);
  weir_cu_result expected = WEIR_CU_SUCCESS;
  if (x->released || p % PAGE != 0 || bytes == 0 || bytes % PAGE != 0)
    expected = WEIR_CU_INVALID_VALUE;
  else if (bytes != x->bytes)
    expected = WEIR_CU_NOT_SUPPORTED;
  else if (in < 0 || m->ranges[in].is != RESERVED)
    expected = WEIR_CU_INVALID_VALUE;
  for (int k = 0; expected == WEIR_CU_SUCCESS && k < m->mapping_count; k++)
    if (touch(p, bytes, m->mappings[k].base, m->mappings[k].bytes))
      expected = WEIR_CU_INVALID_VALUE;
  expect(m, expected, m->d->MemMap(m->d, p, bytes, 0, x->handle, 0));
  if (expected != WEIR_CU_SUCCESS)
    return;
  m->mappings[m->mapping_count++] = (mapping){p, bytes, i, WEIR_CU_ACCESS_NONE};
  x->mappings++;
}

static void op_unmap(model *m) {
  m->op = "MemUnmap";
  uint64_t p = some_mapped_address(m), bytes = some_mapped_bytes(m, p);
  if (pick(m, 8) == 0)
    bytes = (1 + pick(m, 40)) * PAGE;
  bool good = can_unmap(m, p, bytes);
  expect(m, good ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE, m->d->MemUnmap(m->d, p, bytes));
  for (int i = 0; good && i < m->mapping_count;) {
    if (!touch(p, bytes, m->mappings[i].base, m->mappings[i].bytes)) {
      i++;
      continue;
    }
    int of = m->mappings[i].memory;
    m->mappings[i] = m->mappings[--m->mapping_count];
    m->memories[of].mappings--;
    drop_memory_if_unused(m, of);
  }
}

static void op_access(model *m) {
  m->op = "MemSetAccess";
  static const int flags[] = {WEIR_CU_ACCESS_NONE, WEIR_CU_ACCESS_READ, WEIR_CU_ACCESS_READWRITE,
                              WEIR_CU_ACCESS_READWRITE};
  uint64_t p = some_mapped_address(m), bytes = some_mapped_bytes(m, p);
  weir_cu_mem_access access = access_of(0, flags[pick(m, 4)]);
  bool good = whole_mappings(m, p, bytes);
  expect(m, good ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE, m->d->MemSetAccess(m->d, p, bytes, &access, 1));
  for (int i = 0; good && i < m->mapping_count; i++)
    if (touch(p, bytes, m->mappings[i].base, m->mappings[i].bytes))
      m->mappings[i].access = access.flags;
}

static void op_fill(model *m) {
  m->op = "MemsetD8Async";
  uint64_t p = some_mapped_address(m), bytes = 1 + pick(m, 5 * PAGE);
  int in = range_holding(m, p, bytes);
  bool good = in >= 0;
  if (good && m->ranges[in].is == RESERVED) {
    for (uint64_t at = p; good && at < p + bytes;) {
      int i = mapping_holding(m, at);
      good = i >= 0 && m->mappings[i].access == WEIR_CU_ACCESS_READWRITE;
      if (good)
        at = m->mappings[i].base + m->mappings[i].bytes;
    }
  }
  expect(m, good ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE, m->d->MemsetD8Async(m->d, p, 0, bytes, NULL));
}

static void op_look(model *m) {
  m->op = "MemGetAddressRange";
  uint64_t p = some_mapped_address(m), base = 0, bytes = 0;
  int i = range_holding(m, p, 1);
  bool found = i >= 0;
  if (found && m->ranges[i].is == RESERVED) {
    int k = mapping_holding(m, p);
    found = k >= 0;
    base = found ? m->mappings[k].base : 0;
    bytes = found ? m->mappings[k].bytes : 0;
  } else if (found) {
    base = m->ranges[i].base;
    bytes = m->ranges[i].bytes;
  }
  weir_cu_deviceptr got_base = 0;
  size_t got_bytes = 0;
  expect(m, found ? WEIR_CU_SUCCESS : WEIR_CU_NOT_FOUND, m->d->MemGetAddressRange(m->d, &got_base, &got_bytes, p));
  require(m, got_base == base && got_bytes == bytes, "another range was found");
}

static weir_cu_deviceptr answer_place(void *context, weir_driver_call call, uint64_t bytes) {
  (void)call, (void)bytes;
  return ((model *)context)->place;
}

static void run(uint64_t seed) {
  model *m = calloc(1, sizeof *m);
  m->seed = m->random = seed;
  m->capacity = 40 * PAGE + pick(m, 2 * PAGE);
  m->places = seed % 2 == 1;
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  options.bytes = m->capacity;
  options.place = m->places ? answer_place : NULL;
  options.place_context = m;
  assert_ok(weir_driver_open_ledger(&options, &m->d));
  weir_cu_context context;
  assert_cu(m->d->Init(m->d, 0));
  assert_cu(m->d->DevicePrimaryCtxRetain(m->d, &context, 0));
  assert_cu(m->d->CtxSetCurrent(m->d, context));

  for (m->step = 0; m->step < STEPS; m->step++) {
    bool room = m->range_count < MAX - 1;
    switch (pick(m, 20)) {
    case 0:
    case 1:
      if (room)
        op_alloc(m);
      break;
    case 2:
    case 3:
      op_free(m, pick(m, 4) == 0);
      break;
    case 4:
      if (room)
        op_alloc_async(m);
      break;
    case 5:
      op_settle(m);
      break;
    case 6:
      if (room)
        op_host(m);
      break;
    case 7:
      if (room)
        op_reserve(m);
      break;
    case 8:
      op_unreserve(m);
      break;
    case 9:
    case 10:
      op_create(m);
      break;
    case 11:
      op_release(m);
      break;
    case 12:
    case 13:
    case 14:
      op_map(m);
      break;
    case 15:
      op_unmap(m);
      break;
    case 16:
    case 17:
      op_access(m);
      break;
    case 18:
      op_fill(m);
      break;
    case 19:
      op_look(m);
      break;
    }
    require(m, free_bytes(m->d) == m->capacity - m->used, "the free memory differs");
  }
  weir_driver_close(m->d);
  free(m);
}

TEST(random_calls_match_the_model) {
  for (uint64_t seed = 0; seed < SEEDS; seed++)
    run(seed);
}
