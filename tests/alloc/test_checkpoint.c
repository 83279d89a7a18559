/*
 * Checkpoints of a private pool, which are restored exactly. The scenarios are those of PyTorch's
 * TestBlockStateAbsorption.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"

enum { MIN_BLOCK = 512, SMALL = 1024 * 1024, SMALL_SEGMENT = 2 * SMALL, LARGE_SEGMENT = 20 * SMALL };

static const weir_pool_id id = {21, 0};
static const char *conf; /* each test runs with fixed and with expandable segments */

static int open_fixed(void **state) {
  (void)state;
  conf = NULL;
  return 0;
}

static int open_expandable(void **state) {
  (void)state;
  conf = "expandable_segments:True";
  return 0;
}

#define BOTH(name)                                                                                                     \
  static void test_##name(void **state);                                                                               \
  TEST_AGAIN(name##_expandable, "test_" #name "_expandable", test_##name, open_expandable, alloc_teardown)             \
  TEST_SETUP(name, open_fixed, alloc_teardown)

static void open(void) {
  alloc_open(conf, GIB);
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
}

static void close_pool(void) {
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* The whole pool as text: the address, stream and blocks of each segment. */
static char *describe(char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (const weir__segment *s = allocator->heaps[0].segments; s; s = s->next)
    if (s->arena->pool->owner)
      used += (size_t)snprintf(text + used, size - used, "%llx %p: %s\n", (unsigned long long)s->memory.base,
                               (void *)s->arena->stream, layout((void *)s->first->address));
  assert_true(used < size);
  return text;
}

static weir_checkpoint *take(void) {
  weir_checkpoint *checkpoint = NULL;
  assert_ok(weir_pool_checkpoint(allocator, 0, id, &checkpoint));
  return checkpoint;
}

static weir_checkpoint_delta restore(const weir_checkpoint *checkpoint) {
  weir_checkpoint_delta delta = {.size = sizeof delta};
  assert_ok(weir_pool_restore(allocator, checkpoint, &delta));
  assert_valid();
  return delta;
}

static int live(void) {
  int count = 0;
  for (const weir__segment *s = allocator->heaps[0].segments; s; s = s->next)
    for (const weir__block *b = s->first; b; b = weir__block_next(b))
      count += b->state == WEIR__ALLOCATED;
  return count;
}

static bool lists(void **pointers, size_t count, const void *p) {
  for (size_t i = 0; i < count; i++)
    if (pointers[i] == p)
      return true;
  return false;
}

/* Restores a checkpoint that was just taken, which changes nothing; PyTorch's checkFunction. */
static void check_restored_at_once(void) {
  char before[2048], after[2048];
  weir_allocator_stats was = stats_of(0), is;
  describe(before, sizeof before);
  weir_checkpoint *checkpoint = take();
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_string_equal(describe(after, sizeof after), before);
  assert_int_equal(delta.freed_count, live());
  assert_int_equal(delta.allocated_count, live());
  for (size_t i = 0; i < delta.freed_count; i++)
    assert_true(lists(delta.allocated, delta.allocated_count, delta.freed[i]));
  is = stats_of(0);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    assert_int_equal(is.allocated_bytes[kind].current, was.allocated_bytes[kind].current);
    assert_int_equal(is.active_bytes[kind].current, was.active_bytes[kind].current);
    /* Restored blocks count in full. */
    assert_int_equal(is.requested_bytes[kind].current, was.allocated_bytes[kind].current);
    assert_int_equal(is.inactive_split_bytes[kind].current, was.inactive_split_bytes[kind].current);
  }
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
}

/* x + x as in a framework: the result is allocated before the operand is freed. */
static void *add(void *x, size_t bytes) {
  void *result = get(bytes, NULL);
  put(x);
  return result;
}

BOTH(simple) {
  open();
  add(get(SMALL * 8, NULL), SMALL * 8);
  void *a = get(SMALL, NULL), *b = get(SMALL, NULL), *ab = get(SMALL, NULL);
  put(a);
  put(b);
  void *c = get(SMALL, NULL), *x1 = get(SMALL, NULL);
  put(ab);
  put(c);
  void *e = get(SMALL, NULL);
  get(SMALL, NULL);
  put(e);
  get(SMALL, NULL);
  put(x1);
  assert_int_equal(live(), 3);
  check_restored_at_once();
  close_pool();
}

/* Allocates eleven blocks of the smallest size and frees the others. */
static void keep_of_eleven(const int *kept, int count) {
  void *p[11];
  for (int i = 0; i < 11; i++)
    p[i] = get(MIN_BLOCK, NULL);
  for (int i = 0; i < 11; i++) {
    bool keep = false;
    for (int k = 0; k < count; k++)
      keep |= kept[k] == i;
    if (!keep)
      put(p[i]);
  }
}

BOTH(allocated_in_middle_of_segment) {
  open();
  keep_of_eleven((const int[]){5}, 1);
  check_restored_at_once();
  close_pool();
}

BOTH(multiple_middle_allocations) {
  open();
  keep_of_eleven((const int[]){5, 8}, 2);
  check_restored_at_once();
  close_pool();
}

BOTH(middle_allocations_contiguous) {
  open();
  keep_of_eleven((const int[]){5, 6}, 2);
  check_restored_at_once();
  close_pool();
}

BOTH(many_shapes) {
  open();
  weir_cu_stream streams[3] = {NULL, work_stream(), work_stream()};
  soft_seed(7);
  void *p[60];
  for (int i = 0; i < 60; i++)
    p[i] = get(1 + soft_random(i % 3 ? 300 * KIB : 15 * MIB), streams[soft_random(3)]);
  for (int i = 0; i < 60; i++)
    if (soft_random(2))
      put(p[i]);
  check_restored_at_once();
  close_pool();
}

BOTH(additional_free_following_checkpoint) {
  open();
  void *first = get(MIN_BLOCK, NULL);
  char before[512], after[512];
  describe(before, sizeof before);
  weir_checkpoint *checkpoint = take();
  void *second = get(MIN_BLOCK, NULL);
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_string_equal(describe(after, sizeof after), before);
  assert_int_equal(delta.freed_count, 2);
  assert_true(lists(delta.freed, 2, first) && lists(delta.freed, 2, second));
  assert_int_equal(delta.allocated_count, 1);
  assert_ptr_equal(delta.allocated[0], first);
  assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, second));
  put(first);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

BOTH(tensor_dies_after_checkpoint) {
  open();
  void *p = get(MIN_BLOCK, NULL), *q = get(MIN_BLOCK, NULL);
  weir_checkpoint *checkpoint = take();
  put(p);
  put(q);
  assert_int_equal(live(), 0);
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_int_equal(delta.freed_count, 0);
  assert_int_equal(live(), 2);
  put(p);
  assert_int_equal(live(), 1);
  put(q);
  assert_int_equal(live(), 0);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* The contents of the memory are not touched. */
BOTH(assigning_back) {
  open();
  char *p[3] = {get(SMALL_SEGMENT, NULL), get(SMALL_SEGMENT, NULL), get(LARGE_SEGMENT, NULL)};
  for (int i = 0; i < 3; i++)
    memset(p[i], 2 + i, SMALL_SEGMENT);
  weir_checkpoint *checkpoint = take();
  assert_int_equal(live(), 3);
  for (int i = 0; i < 3; i++)
    put(p[i]);
  assert_int_equal(live(), 0);
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_int_equal(live(), 3);
  for (int i = 0; i < 3; i++) {
    assert_true(lists(delta.allocated, delta.allocated_count, p[i]));
    assert_int_equal(p[i][SMALL_SEGMENT - 1], 2 + i);
    put(p[i]);
    assert_int_equal(live(), 2 - i);
  }
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* Back and forth between two states, as with a tree of graphs. */
BOTH(two_checkpoints) {
  open();
  char one[1024], two[1024], now[1024];
  void *a = get(3 * SMALL, NULL), *b = get(MIN_BLOCK, NULL);
  describe(one, sizeof one);
  weir_checkpoint *first = take();
  put(b);
  void *c = get(5 * SMALL, NULL), *e = get(7 * SMALL, NULL);
  put(a);
  describe(two, sizeof two);
  weir_checkpoint *second = take();
  put(c);
  put(e);
  for (int i = 0; i < 4; i++) {
    weir_checkpoint_delta delta = restore(i % 2 ? first : second);
    assert_string_equal(describe(now, sizeof now), i % 2 ? one : two);
    assert_int_equal(live(), 2);
    weir_checkpoint_delta_clear(&delta);
  }
  weir_checkpoint_destroy(first);
  weir_checkpoint_destroy(second);
  close_pool();
}

/* A segment created since the checkpoint stays, and is free. */
BOTH(new_segments_stay) {
  open();
  void *a = get(MIN_BLOCK, NULL);
  weir_checkpoint *checkpoint = take();
  void *b = get(30 * SMALL, work_stream());
  int64_t was = reserved();
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_int_equal(reserved(), was);
  assert_int_equal(live(), 1);
  assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, b));
  put(a);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* PyTorch's test_expandable_segment_checkpoint_growth: the segment has grown since. */
TEST_SETUP(expandable_segment_growth, open_expandable, alloc_teardown) {
  open();
  void *p = get(2 * MIB, NULL);
  assert_layout(p, "2M* 18M 1140M-");
  weir_checkpoint *checkpoint = take();
  put(p);
  void *q = get(32 * MIB, NULL);
  assert_ptr_equal(q, p);
  assert_layout(q, "32M* 8M 1120M-");
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_layout(p, "2M* 38M 1120M-");
  assert_int_equal(delta.freed_count, 1);
  assert_int_equal(delta.allocated_count, 1);
  put(p);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* The current split rules do not matter. */
TEST_SETUP(settings_changed_meanwhile, open_fixed, alloc_teardown) {
  open();
  void *a = get(100 * MIB, NULL);
  put(a);
  a = get(60 * MIB, NULL);
  char before[512], after[512];
  describe(before, sizeof before);
  weir_checkpoint *checkpoint = take();
  put(a);
  configure("max_split_size_mb:40");
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_string_equal(describe(after, sizeof after), before);
  put(a);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* Other streams have used blocks, one of which is live: a caller that has waited for them can continue. */
BOTH(wait) {
  open();
  weir_cu_stream other = work_stream();
  void *a = get(MIN_BLOCK, NULL), *b = get(MIN_BLOCK, NULL);
  weir_checkpoint *checkpoint = take();
  weir_checkpoint_delta delta = {.size = sizeof delta};
  work(other);
  also_used_by(a, other);
  also_used_by(b, other);
  put(b);
  assert_error_says(BAD_STATE, "Events should have synchronized", weir_pool_restore(allocator, checkpoint, &delta));
  assert_ok(weir_pool_wait(allocator, 0, id));
  assert_valid();
  assert_int_equal(live(), 1);
  delta = restore(checkpoint);
  assert_int_equal(delta.freed_count, 1);
  assert_int_equal(delta.allocated_count, 2);
  put(a);
  put(b);
  assert_int_equal(live(), 0);
  assert_error_says(INVALID_ARGUMENT, "Could not find pool", weir_pool_wait(allocator, 0, (weir_pool_id){99, 0}));
  assert_error(INVALID_DEVICE, weir_pool_wait(allocator, 7, id));
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* ---- Refused calls ---- */

/* While a block waits for another stream, both calls are refused and change nothing. */
BOTH(waiting_block) {
  open();
  weir_cu_stream other = work_stream();
  void *a = get(MIN_BLOCK, NULL), *b = get(MIN_BLOCK, NULL), *c = get(MIN_BLOCK, NULL);
  weir_checkpoint *checkpoint = take(), *refused = NULL;
  weir_checkpoint_delta delta = {.size = sizeof delta};
  char before[512], after[512];
  work(other);
  also_used_by(b, other);
  describe(before, sizeof before);
  assert_error_says(BAD_STATE, "Events should have synchronized", weir_pool_restore(allocator, checkpoint, &delta));
  put(b);
  assert_error_says(BAD_STATE, "Events should have synchronized", weir_pool_restore(allocator, checkpoint, &delta));
  assert_error_says(BAD_STATE, "Events should have synchronized when checkpointing block",
                    weir_pool_checkpoint(allocator, 0, id, &refused));
  assert_null(refused);
  assert_null(delta.freed);
  assert_valid();
  assert_int_equal(live(), 2); /* a and c are still live */
  soft_step_all();
  put(get(MIN_BLOCK, NULL)); /* polls the events */
  delta = restore(checkpoint);
  assert_string_equal(describe(after, sizeof after), before);
  put(a);
  put(b);
  put(c);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

BOTH(destroyed_pool) {
  open();
  void *a = get(MIN_BLOCK, NULL);
  weir_checkpoint *checkpoint = take(), *refused = NULL;
  weir_checkpoint_delta delta = {.size = sizeof delta};
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  assert_error_says(BAD_STATE, "Not expected to checkpoint freeable graph",
                    weir_pool_checkpoint(allocator, 0, id, &refused));
  assert_error_says(INVALID_ARGUMENT, "Could not find private pool id",
                    weir_pool_restore(allocator, checkpoint, &delta));
  put(a);
  empty_cache();
  assert_error_says(INVALID_ARGUMENT, "Could not find private pool id {21, 0}",
                    weir_pool_restore(allocator, checkpoint, &delta));
  /* A new pool with the same id is a different pool: the segments of the checkpoint do not exist. */
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *elsewhere = get(30 * MIB, NULL);
  assert_error_says(BAD_STATE, "could not find", weir_pool_restore(allocator, checkpoint, &delta));
  assert_valid();
  assert_int_equal(live(), 1);
  put(elsewhere);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* Pages were unmapped since, so blocks of the checkpoint have no memory. */
TEST_SETUP(unmapped_pages, open_expandable, alloc_teardown) {
  open();
  void *a = get(20 * MIB, NULL), *b = get(20 * MIB, NULL);
  weir_checkpoint *checkpoint = take();
  weir_checkpoint_delta delta = {.size = sizeof delta};
  put(a);
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  empty_cache();
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  assert_layout(b, "20M- 20M* 1120M-");
  assert_error_says(BAD_STATE, "has changed", weir_pool_restore(allocator, checkpoint, &delta));
  assert_layout(b, "20M- 20M* 1120M-");
  weir_checkpoint *with_hole = take();
  delta = restore(with_hole);
  assert_layout(b, "20M- 20M* 1120M-");
  weir_checkpoint_delta_clear(&delta);
  void *again = get(20 * MIB, NULL); /* fills the hole, so the piece after it no longer begins a run */
  assert_ptr_equal(again, a);
  assert_error_says(BAD_STATE, "has changed", weir_pool_restore(allocator, with_hole, &delta));
  assert_layout(b, "20M* 20M* 1120M-");
  weir_checkpoint_destroy(checkpoint);
  weir_checkpoint_destroy(with_hole);
  close_pool();
}

BOTH(empty_pool) {
  open();
  weir_checkpoint *checkpoint = take();
  void *a = get(MIN_BLOCK, NULL);
  weir_checkpoint_delta delta = restore(checkpoint);
  assert_int_equal(delta.freed_count, 1);
  assert_ptr_equal(delta.freed[0], a);
  assert_int_equal(delta.allocated_count, 0);
  weir_checkpoint_delta_clear(&delta);
  assert_null(delta.freed);
  weir_checkpoint_destroy(checkpoint);
  close_pool();
}

/* Memory from a pool's own functions, which return the same address each time. */
static char *place;

static void *place_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)device, (void)stream;
  return bytes <= LARGE_SEGMENT ? place : NULL;
}

static void place_free(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)pointer, (void)bytes, (void)device, (void)stream;
}

static void use_place(void) {
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = place_alloc;
  options.free = place_free;
  assert_ok(weir_pool_create(allocator, 0, id, &options));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
}

static void leave_place(void) {
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
}

/* The pool was destroyed and created again, and its segment has the address of an earlier one, but belongs to another
 * stream. The work of that stream is not ordered with the work that used the blocks of the checkpoint. */
BOTH(segment_of_another_stream_at_the_address) {
  assert_int_equal(posix_memalign((void **)&place, SMALL_SEGMENT, LARGE_SEGMENT), 0);
  alloc_open(conf, GIB);
  weir_cu_stream first = work_stream(), second = work_stream();
  use_place();
  void *a = get(3 * SMALL, first);
  weir_checkpoint *checkpoint = take();
  put(a);
  leave_place();
  empty_cache();
  use_place();
  void *b = get(3 * SMALL, second);
  assert_ptr_equal(b, a);
  weir_checkpoint_delta delta = {.size = sizeof delta};
  assert_error_says(BAD_STATE, "was freed", weir_pool_restore(allocator, checkpoint, &delta));
  put(b);
  leave_place();
  weir_checkpoint_destroy(checkpoint);
  alloc_close();
  free(place);
}
