/*
 * Data in pages that move. Kernels fill each block with a pattern, and kernels check it later, on the block's stream
 * and on others. Little memory is allowed, so that most requests need pages of other places. In stepped time the
 * streams are anywhere behind the host; in real time they run as they like.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moving_fixture.h"
#include "support/length.h"

enum { STREAMS = 3, MAX = 64, LIMIT_MIB = 400 };

typedef struct block {
  unsigned char *memory;
  uint64_t bytes;
  int stream;
  uint32_t pattern;
} block;

static weir_cu_stream streams[STREAMS];
static weir_cu_function mark_function, check_function;
static block live[MAX];
static int live_count;
static uint64_t live_bytes;
static atomic_ulong checked, spoiled;

/* ---- Kernels: 8 bytes in each 256 KiB, and at the end, stand for all of them ---- */

static uint64_t value_at(uint32_t pattern, uint64_t at) { return (uint64_t)pattern << 32 | at >> 3; }

static uint64_t next_place(uint64_t at, uint64_t bytes) {
  uint64_t last = bytes - 8;
  return at == last ? bytes : at + 256 * KIB < last ? at + 256 * KIB : last;
}

static weir_cu_result mark_block(const weir_soft_launch *launch) {
  unsigned char *memory = *(unsigned char **)launch->params[0];
  uint64_t bytes = *(uint64_t *)launch->params[1];
  for (uint64_t at = 0; at < bytes; at = next_place(at, bytes)) {
    uint64_t value = value_at(*(uint32_t *)launch->params[2], at);
    memcpy(memory + at, &value, sizeof value);
  }
  return WEIR_CU_SUCCESS;
}

static weir_cu_result check_block(const weir_soft_launch *launch) {
  const unsigned char *memory = *(unsigned char **)launch->params[0];
  uint64_t bytes = *(uint64_t *)launch->params[1];
  for (uint64_t at = 0; at < bytes; at = next_place(at, bytes)) {
    uint64_t value;
    memcpy(&value, memory + at, sizeof value);
    if (value != value_at(*(uint32_t *)launch->params[2], at))
      atomic_fetch_add(&spoiled, 1);
  }
  atomic_fetch_add(&checked, 1);
  return WEIR_CU_SUCCESS;
}

static void load_kernels(void) {
  static const size_t bytes[] = {sizeof(void *), sizeof(uint64_t), sizeof(uint32_t)};
  weir_cu_module module;
  assert_ok(weir_soft_register_kernel(d, "mark", mark_block, 3, bytes));
  assert_ok(weir_soft_register_kernel(d, "check", check_block, 3, bytes));
  assert_cu(d->ModuleLoadData(d, &module, ".version 6.0\n.entry mark()\n.entry check()\n"));
  assert_cu(d->ModuleGetFunction(d, &mark_function, module, "mark"));
  assert_cu(d->ModuleGetFunction(d, &check_function, module, "check"));
}

static void launch(weir_cu_function function, block *b, int stream) {
  void *params[] = {&b->memory, &b->bytes, &b->pattern};
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, streams[stream], params, NULL));
}

/* ---- Operations ---- */

static void drop(int i) {
  block b = live[i];
  launch(check_function, &b, b.stream);
  live[i] = live[--live_count];
  live_bytes -= b.bytes;
  assert_ok(weir_allocator_free(allocator, b.memory));
}

/* Multiples of 8, so that the places of a pattern do not overlap. Small and large blocks take turns: most of the free
 * memory is in holes that are too small for the large ones. */
static uint64_t some_bytes(void) {
  static unsigned long number;
  uint64_t kind = soft_random(12);
  bool is_large_turn = number++ % 60 >= 45;
  if (number % 60 == 45)
    for (int i = live_count / 2; i > 0; i--)
      drop((int)soft_random((uint64_t)live_count));
  if (kind == 0)
    return 8 + soft_random(MIB / 8) * 8;
  if (kind == 1)
    return MIB + 8 + soft_random(MIB / 2) * 8;
  return is_large_turn ? (20 + soft_random(40)) * MIB : (2 + soft_random(4)) * MIB;
}

static void take(void) {
  static uint32_t last_pattern;
  block b = {.bytes = some_bytes(), .stream = (int)soft_random(STREAMS), .pattern = ++last_pattern};
  while (live_count && (live_count == MAX || live_bytes + b.bytes > LIMIT_MIB * MIB / 2))
    drop((int)soft_random((uint64_t)live_count));
  void *p = NULL;
  while (weir_allocator_alloc(allocator, 0, b.bytes, streams[b.stream], &p)) {
    assert_true(live_count > 0);
    drop((int)soft_random((uint64_t)live_count));
  }
  b.memory = p;
  launch(mark_function, &b, b.stream);
  live_bytes += b.bytes;
  live[live_count++] = b;
}

/* Another stream reads the block. */
static void use(block *b) {
  int user = (int)soft_random(STREAMS);
  weir_cu_event event;
  if (user == b->stream)
    return;
  assert_cu(d->EventCreate(d, &event, WEIR_CU_EVENT_DISABLE_TIMING));
  assert_cu(d->EventRecord(d, event, streams[b->stream]));
  assert_cu(d->StreamWaitEvent(d, streams[user], event, 0));
  assert_cu(d->EventDestroy(d, event));
  launch(check_function, b, user);
  assert_ok(weir_allocator_record_stream(allocator, b->memory, streams[user]));
}

/* Whether pages have moved, and aliases were then used again or unmapped. How many operations that takes in real time
 * depends on how far the streams are behind. */
static bool has_moved(int64_t moves) {
  weir_allocator_stats stats = stats_of(0);
  return stats.moving_pages_moved >= moves && stats.moving_aliases_unmapped + stats.moving_pages_returned > 0;
}

static void run(const char *conf, weir_soft_clock clock, int64_t moves) {
  alloc_open_on(clock, 1, GIB, conf);
  assert_ok(weir_allocator_set_limit(allocator, 0, LIMIT_MIB * MIB));
  load_kernels();
  for (int i = 0; i < STREAMS; i++)
    streams[i] = work_stream();
  live_count = 0;
  live_bytes = 0;
  atomic_store(&checked, 0);
  atomic_store(&spoiled, 0);
  for (int64_t i = 0; !has_moved(moves) || atomic_load(&checked) <= 100; i++) {
    assert_true(i < 1000 * moves);
    uint64_t what = soft_random(100);
    if (what < 70)
      take();
    else if (what < 80 && live_count)
      drop((int)soft_random((uint64_t)live_count));
    else if (what < 90 && live_count)
      use(&live[soft_random((uint64_t)live_count)]);
    if (clock == WEIR_SOFT_STEPPED)
      soft_step(streams[soft_random(STREAMS)], soft_random(6));
    if (i % 1000 == 999) {
      assert_valid();
      assert_int_equal(atomic_load(&spoiled), 0);
    }
    if (i % 5000 == 4999)
      empty_cache();
  }
  while (live_count)
    drop(live_count - 1);
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(atomic_load(&spoiled), 0);
  empty_cache();
  assert_int_equal(reserved(), 0);
  assert_int_equal(soft_census().unmaps_in_use, 0);
  alloc_close();
}

static const char *const confs[] = {"moving_pages:True,moving_pages_max_aliases:40",
                                    "moving_pages:True,moving_pages_max_aliases:0",
                                    "moving_pages:True,moving_pages_max_aliases:400,moving_pages_across_streams:True",
                                    "moving_pages:True,moving_pages_max_aliases:40,moving_pages_completed_only:True"};

/* A million moves over all tests in the long form. */
static void run_all(weir_soft_clock clock) {
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    soft_seed(i + 1);
    run(confs[i], clock, repetitions(500, 125000));
  }
}

FIXTURE(.teardown = alloc_teardown)

TEST(stepped) { run_all(WEIR_SOFT_STEPPED); }

TEST(real_time) { run_all(WEIR_SOFT_THREADS); }
