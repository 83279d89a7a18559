/*
 * Tags that sleep and wake: bytes, addresses, counts of what the driver does, and what is refused meanwhile.
 */
#include <stdlib.h>
#include <string.h>

#include "moving_fixture.h"
#include "weir/guard.h"
#include "weir/ipc.h"
#include "weir/tag.h"

static weir_tag *tag;

static void open_tag(const char *conf, unsigned long long bytes) {
  alloc_open(conf, bytes);
  assert_ok(weir_tag_open(allocator, 0, "weights", &tag));
}

static void *get_tagged(size_t bytes, weir_cu_stream stream) {
  assert_ok(weir_tag_begin(tag));
  void *p = get(bytes, stream);
  assert_ok(weir_tag_end(tag));
  return p;
}

static weir_tag_info info(void) {
  weir_tag_info of;
  weir_tag_info_init(&of);
  assert_ok(weir_tag_get_info(tag, &of));
  return of;
}

static void fall_asleep(weir_tag_content content) {
  assert_ok(weir_tag_sleep(tag, content, NULL));
  assert_valid();
  assert_int_equal(info().state, WEIR_TAG_ASLEEP);
}

static void wake_up(void) {
  assert_ok(weir_tag_wake(tag, NULL));
  assert_valid();
  assert_int_equal(info().state, WEIR_TAG_AWAKE);
}

static uint64_t device_bytes(void) {
  weir_soft_census census;
  weir_soft_census_init(&census);
  assert_ok(weir_soft_get_census(d, &census));
  return census.device_bytes;
}

static uint64_t unmaps_in_use(void) {
  weir_soft_census census;
  weir_soft_census_init(&census);
  assert_ok(weir_soft_get_census(d, &census));
  return census.unmaps_in_use;
}

/* Each block has bytes of its own: word i of block n is n * 2^32 + i. */
static void write_words(void *p, size_t bytes, uint64_t n) {
  for (size_t i = 0; i < bytes / 8; i++)
    ((uint64_t *)p)[i] = n << 32 | i;
}
static void assert_words(const void *p, size_t bytes, uint64_t n) {
  for (size_t i = 0; i < bytes / 8; i++)
    if (((const uint64_t *)p)[i] != (n << 32 | i))
      fail_msg("word %zu of block %d is %llx", i, (int)n, (unsigned long long)((const uint64_t *)p)[i]);
}

FIXTURE(.teardown = alloc_teardown_runtime)

TEST(bytes_come_back_to_their_addresses) {
  open_tag(NULL, 512 * MIB);
  void *outside = get(10 * MIB, NULL);
  uint64_t before = device_bytes();
  void *large = get_tagged(100 * MIB, NULL), *small = get_tagged(3000, NULL), *middle = get_tagged(5 * MIB, NULL);
  write_words(outside, 10 * MIB, 1);
  write_words(large, 100 * MIB, 2);
  write_words(small, 3000, 3);
  write_words(middle, 5 * MIB, 4);
  uint64_t full = device_bytes();
  assert_true(full > before + 105 * MIB);
  fall_asleep(WEIR_TAG_KEEP);
  assert_int_equal(device_bytes(), before);
  assert_int_equal(info().reserved_bytes, 0);
  assert_int_equal(info().asleep_bytes, full - before);
  assert_int_equal(info().allocated_bytes, 105 * MIB + 3072);
  assert_int_equal(info().kept_bytes, 105 * MIB + 3072); /* live bytes, and no others */
  assert_int_equal(reserved(), 10 * MIB);
  assert_words(outside, 10 * MIB, 1);
  wake_up();
  assert_int_equal(device_bytes(), full);
  assert_words(large, 100 * MIB, 2);
  assert_words(small, 3000, 3);
  assert_words(middle, 5 * MIB, 4);
  assert_int_equal(info().kept_bytes, 0);
  assert_int_equal(info().copied_bytes, 2 * (105 * MIB + 3072));
  assert_int_equal(unmaps_in_use(), 0);
  put(large), put(small), put(middle), put(outside);
  alloc_close();
}

TEST(free_memory_is_not_copied_and_serves_again) {
  open_tag(NULL, 1 * GIB);
  void *p[40];
  for (int i = 0; i < 40; i++)
    write_words(p[i] = get_tagged(3 * MIB + 512, NULL), 3 * MIB, (uint64_t)i);
  for (int i = 0; i < 40; i += 3)
    put(p[i]);
  for (int round = 0; round < 3; round++) {
    fall_asleep(WEIR_TAG_KEEP);
    assert_int_equal(info().kept_bytes, 26 * (3 * MIB + 512));
    wake_up();
    for (int i = 0; i < 40; i++)
      if (i % 3)
        assert_words(p[i], 3 * MIB, (uint64_t)i);
  }
  uint64_t made = calls(WEIR_CALL_MemCreate);
  for (int i = 0; i < 40; i += 3)
    write_words(p[i] = get_tagged(3 * MIB + 512, NULL), 3 * MIB, (uint64_t)i);
  assert_int_equal(calls(WEIR_CALL_MemCreate), made); /* holes of the same size are there again */
  for (int i = 0; i < 40; i++) {
    assert_words(p[i], 3 * MIB, (uint64_t)i);
    put(p[i]);
  }
  alloc_close();
}

TEST(discarded_memory_costs_no_copy) {
  open_tag(NULL, 512 * MIB);
  void *p = get_tagged(200 * MIB, NULL);
  uint64_t copies = calls(WEIR_CALL_MemcpyAsync);
  fall_asleep(WEIR_TAG_DISCARD);
  assert_int_equal(info().kept_bytes, 0);
  void *other = get(400 * MIB, NULL); /* the memory is there for others */
  put(other);
  wake_up(); /* which releases what is only cached */
  memset(p, 1, 200 * MIB);
  assert_int_equal(calls(WEIR_CALL_MemcpyAsync), copies);
  assert_int_equal(info().copied_bytes, 0);
  fall_asleep(WEIR_TAG_KEEP);
  assert_int_equal(info().kept_bytes, 200 * MIB);
  assert_error_says(BAD_STATE, "the tag 'weights' is asleep", weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL));
  fall_asleep(WEIR_TAG_DISCARD);
  assert_int_equal(info().kept_bytes, 0);
  wake_up();
  assert_error_says(BAD_STATE, "the tag 'weights' is awake", weir_tag_wake(tag, NULL));
  put(p);
  alloc_close();
}

/* One call of the driver for what lies side by side, one copy for neighbours, one kernel for small blocks, one wait. */
TEST(calls_are_few) {
  enum { SMALL = 500 };
  static void *p[SMALL], *holes[SMALL];
  open_tag(NULL, 1 * GIB);
  void *large = get_tagged(128 * MIB, NULL), *next = get_tagged(64 * MIB, NULL);
  write_words(large, 128 * MIB, 1000);
  write_words(next, 64 * MIB, 1001);
  for (int i = 0; i < SMALL; i++) {
    write_words(p[i] = get_tagged(8 * KIB, NULL), 8 * KIB, (uint64_t)i);
    holes[i] = get_tagged(512, NULL);
  }
  for (int i = 0; i < SMALL; i++)
    put(holes[i]);
  for (int round = 0; round < 2; round++) {
    uint64_t copies = calls(WEIR_CALL_MemcpyAsync), kernels = calls(WEIR_CALL_LaunchKernel),
             unmaps = calls(WEIR_CALL_MemUnmap), accesses = calls(WEIR_CALL_MemSetAccess), waits = waiting_calls(),
             registered = calls(WEIR_CALL_MemHostRegister);
    fall_asleep(WEIR_TAG_KEEP);
    assert_int_equal(calls(WEIR_CALL_MemcpyAsync) - copies, 1);
    assert_int_equal(calls(WEIR_CALL_LaunchKernel) - kernels, 1);
    assert_in_range(calls(WEIR_CALL_MemUnmap) - unmaps, 2, 3); /* two segments, and pages that were free */
    assert_int_equal(waiting_calls() - waits, 2);
    assert_int_equal(calls(WEIR_CALL_MemHostRegister) - registered, !round); /* the second time it is pinned */
    wake_up();
    assert_int_equal(calls(WEIR_CALL_MemcpyAsync) - copies, 2);
    assert_int_equal(calls(WEIR_CALL_LaunchKernel) - kernels, 2);
    assert_int_equal(calls(WEIR_CALL_MemSetAccess) - accesses, 2);
    assert_int_equal(waiting_calls() - waits, 3);
  }
  assert_words(large, 128 * MIB, 1000);
  assert_words(next, 64 * MIB, 1001);
  for (int i = 0; i < SMALL; i++) {
    assert_words(p[i], 8 * KIB, (uint64_t)i);
    put(p[i]);
  }
  put(large), put(next);
  assert_int_equal(unmaps_in_use(), 0);
  alloc_close();
}

/* Small blocks of different alignment, each with its own bytes, across pieces of the kernel. */
TEST(many_sizes) {
  enum { BLOCKS = 400 };
  static void *p[BLOCKS];
  static size_t sizes[BLOCKS];
  open_tag(NULL, 2 * GIB);
  srand(7);
  for (int i = 0; i < BLOCKS; i++) {
    sizes[i] = (size_t)(rand() % (i % 10 ? 300000 : 5000000)) + 8;
    write_words(p[i] = get_tagged(sizes[i], NULL), sizes[i], (uint64_t)i);
  }
  for (int i = 0; i < BLOCKS; i += 2)
    put(p[i]);
  for (int round = 0; round < 2; round++) {
    fall_asleep(WEIR_TAG_KEEP);
    wake_up();
  }
  for (int i = 1; i < BLOCKS; i += 2) {
    assert_words(p[i], sizes[i], (uint64_t)i);
    put(p[i]);
  }
  alloc_close();
}

TEST(waits_for_work_that_was_submitted) {
  open_tag(NULL, 512 * MIB);
  weir_cu_stream a = work_stream(), b = work_stream();
  unsigned char *p = get_tagged(4 * MIB, a), *q = get_tagged(4 * MIB, b);
  fill(p, 7, 4 * MIB, a);
  fill(q, 8, 4 * MIB, b);
  fall_asleep(WEIR_TAG_KEEP);
  wake_up();
  assert_fill(p, 7, 4 * MIB);
  assert_fill(q, 8, 4 * MIB);
  weir_tag_sleep_options options;
  weir_tag_sleep_options_init(&options);
  options.streams = &a;
  options.stream_count = 1;
  void *outside = get(MIB, b);
  fill(p, 9, 4 * MIB, a);
  fill(outside, 1, MIB, b);
  assert_ok(weir_tag_sleep(tag, WEIR_TAG_KEEP, &options)); /* does not wait for the other stream */
  unsigned long pending = 0;
  assert_ok(weir_soft_pending(d, b, &pending));
  assert_true(pending > 0);
  wake_up();
  assert_fill(p, 9, 4 * MIB);
  assert_int_equal(unmaps_in_use(), 0);
  put(p), put(q), put(outside);
  alloc_close();
}

TEST(what_is_refused_while_asleep) {
  const weir_pool_id id = {0, 5};
  open_tag(NULL, 512 * MIB);
  weir_cu_stream other = work_stream();
  void *p = get_tagged(6 * MIB, NULL), *q = NULL;
  assert_ok(weir_tag_begin(tag));
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_ok(weir_tag_end(tag));
  fall_asleep(WEIR_TAG_KEEP);
  assert_ok(weir_tag_begin(tag));
  for (int i = 0; i < 4; i++) {
    assert_int_equal(try_get(i % 2 ? MIB : 512, i / 2 ? other : NULL, &q), WEIR_ERROR_BAD_STATE);
    assert_non_null(strstr(weir_last_error(), "the tag 'weights' is asleep; wake it first"));
  }
  assert_ok(weir_tag_end(tag));
  void *outside = get(6 * MIB, NULL); /* others are served */
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  assert_int_equal(try_get(512, NULL, &q), WEIR_ERROR_BAD_STATE);
  assert_ok(weir_pool_end(allocator, 0, id));
  weir_checkpoint *checkpoint = NULL;
  assert_error_says(BAD_STATE, "asleep", weir_pool_checkpoint(allocator, 0, info().pool, &checkpoint));
  empty_cache();
  wake_up();
  put(p), put(outside);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

TEST(blocks_are_freed_while_asleep) {
  open_tag(NULL, 512 * MIB);
  weir_cu_stream other = work_stream();
  void *p[6];
  for (int i = 0; i < 6; i++)
    write_words(p[i] = get_tagged(16 * MIB, NULL), 16 * MIB, (uint64_t)i);
  void *small[3] = {get_tagged(512, NULL), get_tagged(512, NULL), get_tagged(512, NULL)};
  also_used_by(p[3], other);
  uint64_t full = info().reserved_bytes;
  fall_asleep(WEIR_TAG_KEEP);
  put(p[1]), put(p[2]), put(p[3]), put(small[1]);
  assert_valid();
  assert_int_equal(info().allocated_bytes, 3 * 16 * MIB + 2 * 512);
  empty_cache();
  wake_up();
  assert_true(info().reserved_bytes <= full - 32 * MIB); /* pages without live bytes were not made again */
  for (int i = 0; i < 6; i += i ? 3 - (i == 4) * 2 : 4)
    assert_words(p[i], 16 * MIB, (uint64_t)i);
  write_words(small[1] = get_tagged(512, NULL), 512, 9);
  assert_words(small[1], 512, 9);
  fall_asleep(WEIR_TAG_DISCARD);
  put(p[0]), put(p[4]), put(p[5]);
  for (int i = 0; i < 3; i++)
    put(small[i]);
  wake_up();
  assert_int_equal(info().allocated_bytes, 0);
  assert_int_equal(info().reserved_bytes, 0);
  alloc_close();
}

TEST(a_tag_without_memory) {
  open_tag(NULL, 64 * MIB);
  fall_asleep(WEIR_TAG_KEEP);
  wake_up();
  void *p = get_tagged(MIB, NULL);
  put(p);
  fall_asleep(WEIR_TAG_KEEP);
  assert_int_equal(device_bytes(), 0);
  wake_up();
  alloc_close();
}

/* An allocator may end while a tag sleeps. */
TEST(ends_asleep) {
  open_tag(NULL, 256 * MIB);
  void *p = get_tagged(30 * MIB, NULL), *q = get_tagged(512, NULL);
  fall_asleep(WEIR_TAG_KEEP);
  put(q);
  (void)p;
  alloc_close();
}

TEST(two_models_take_turns) {
  open_tag(NULL, 256 * MIB);
  weir_tag *weights = tag, *other;
  assert_ok(weir_tag_open(allocator, 0, "other", &other));
  void *p = get_tagged(200 * MIB, NULL);
  write_words(p, 200 * MIB, 1);
  fall_asleep(WEIR_TAG_KEEP);
  tag = other;
  void *q = get_tagged(150 * MIB, NULL);
  write_words(q, 150 * MIB, 2);
  for (int round = 0; round < 3; round++) {
    uint64_t registered = calls(WEIR_CALL_MemHostRegister);
    tag = weights;
    assert_error_says(OUT_OF_MEMORY, "the tag 'weights' needs 200.00 MiB to wake", weir_tag_wake(tag, NULL));
    assert_int_equal(info().state, WEIR_TAG_ASLEEP);
    assert_valid();
    tag = other;
    fall_asleep(WEIR_TAG_KEEP);
    tag = weights;
    wake_up();
    assert_words(p, 200 * MIB, 1);
    fall_asleep(WEIR_TAG_KEEP);
    tag = other;
    wake_up();
    assert_words(q, 150 * MIB, 2);
    assert_true(calls(WEIR_CALL_MemHostRegister) - registered <= (round ? 0 : 2));
  }
  put(q);
  tag = weights;
  assert_ok(weir_allocator_empty_cache(allocator));
  wake_up();
  assert_words(p, 200 * MIB, 1);
  put(p);
  alloc_close();
}

TEST(limits_hold_for_a_wake) {
  open_tag(NULL, 512 * MIB);
  void *p = get_tagged(100 * MIB, NULL);
  fall_asleep(WEIR_TAG_KEEP);
  assert_ok(weir_allocator_set_limit(allocator, 0, 120 * MIB));
  void *q = get(30 * MIB, NULL);
  assert_error_says(OUT_OF_MEMORY, "the limit of device 0 leaves 90.00 MiB", weir_tag_wake(tag, NULL));
  put(q);
  wake_up();
  put(p);
  alloc_close();
}

TEST(pages_that_must_stay) {
  open_tag(NULL, 256 * MIB);
  void *p = get_tagged(6 * MIB, NULL);
  assert_ok(weir_allocator_fix_pages(allocator, p));
  assert_error_says(NOT_SUPPORTED, "fixed in place", weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL));
  assert_int_equal(info().state, WEIR_TAG_AWAKE);
  put(p);
  empty_cache();
  p = get_tagged(6 * MIB, NULL);
  fall_asleep(WEIR_TAG_KEEP);
  wake_up();
  put(p);
  alloc_close();
}

static void *provide(void *context, uint64_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)device, (void)stream;
  return aligned_alloc(4096, (size_t)bytes);
}
static void take_back(void *context, void *pointer, uint64_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)bytes, (void)device, (void)stream;
  free(pointer);
}

TEST(memory_of_the_program_cannot_sleep) {
  const weir_pool_id id = {0, 5};
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = provide;
  options.free = take_back;
  open_tag(NULL, 256 * MIB);
  assert_ok(weir_tag_begin(tag));
  assert_ok(weir_pool_create(allocator, 0, id, &options));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *p = get(MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_tag_end(tag));
  assert_error_says(NOT_SUPPORTED, "pool {0, 5} has memory without pages, from functions of the program",
                    weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL));
  put(p);
  for (int i = 0; i < 2; i++)
    assert_ok(weir_pool_release(allocator, 0, id));
  empty_cache();
  fall_asleep(WEIR_TAG_KEEP);
  wake_up();
  alloc_close();
}

static void note_progress(void *context, uint64_t done, uint64_t bytes) {
  uint64_t *last = context;
  assert_true(done > last[0] && done <= bytes);
  last[0] = done;
  last[1] = bytes;
}

TEST(progress_is_told) {
  uint64_t last[2] = {0, 0};
  weir_tag_sleep_options options;
  weir_tag_sleep_options_init(&options);
  options.progress = note_progress;
  options.context = last;
  open_tag(NULL, 256 * MIB);
  void *p = get_tagged(20 * MIB, NULL);
  assert_ok(weir_tag_sleep(tag, WEIR_TAG_KEEP, &options));
  assert_int_equal(last[0], 20 * MIB);
  assert_int_equal(last[1], 20 * MIB);
  last[0] = 0;
  assert_ok(weir_tag_wake(tag, &options));
  assert_int_equal(last[0], 20 * MIB);
  put(p);
  alloc_close();
}

TEST(prepared_memory_is_pinned) {
  open_tag(NULL, 256 * MIB);
  void *p = get_tagged(20 * MIB, NULL);
  assert_ok(weir_tag_prepare(tag));
  assert_int_equal(info().pinned_bytes, 20 * MIB);
  uint64_t registered = calls(WEIR_CALL_MemHostRegister);
  fall_asleep(WEIR_TAG_KEEP);
  assert_int_equal(calls(WEIR_CALL_MemHostRegister), registered);
  wake_up();
  put(p);
  alloc_close();
}

TEST(budget) {
  setenv("WEIR_SLEEP_PINNED", "8MiB", 1);
  open_tag(NULL, 256 * MIB);
  unsetenv("WEIR_SLEEP_PINNED");
  void *p = get_tagged(20 * MIB, NULL);
  assert_error_says(HOST_OUT_OF_MEMORY, "8.00 MiB may stay pinned", weir_tag_prepare(tag));
  fall_asleep(WEIR_TAG_KEEP);
  assert_int_equal(info().pinned_bytes, 20 * MIB);
  wake_up();
  assert_int_equal(info().pinned_bytes, 0);
  put(p);
  alloc_close();
}

/* ---- Other processes, other devices, and guard ---- */

TEST(sent_memory_stays_until_no_receiver_has_it) {
  open_tag("expandable_segments:True", 256 * MIB);
  unsigned char *p = get_tagged(6 * MIB, NULL);
  memset(p, 4, 6 * MIB);
  weir_ipc_handle handle;
  weir_ipc_handle_init(&handle);
  assert_ok(weir_ipc_send(allocator, p, NULL, NULL, &handle));
  assert_error_says(NOT_SUPPORTED, "other processes use it, or may still receive it",
                    weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL));
  assert_int_equal(info().state, WEIR_TAG_AWAKE);
  assert_ok(weir_ipc_cancel(allocator, handle.bytes, handle.length));
  fall_asleep(WEIR_TAG_KEEP);
  assert_error_says(BAD_STATE, "the tag 'weights' is asleep", weir_ipc_send(allocator, p, NULL, NULL, &handle));
  wake_up();
  assert_int_equal(p[6 * MIB - 1], 4);
  put(p);
  alloc_close();
}

TEST(pages_that_other_devices_write_to_stay) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, 256 * MIB, NULL);
  assert_ok(weir_tag_open(allocator, 0, "weights", &tag));
  void *p = get_tagged(6 * MIB, NULL);
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 1));
  assert_error_says(NOT_SUPPORTED, "other devices have access to it", weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL));
  put(p);
  alloc_close();
}

/* What is asleep cannot be checked; a block that is freed then is not checked either. */
TEST(guard_leaves_sleeping_blocks_alone) {
  setenv("WEIR_GUARD", "light", 1);
  open_tag(NULL, 256 * MIB);
  unsetenv("WEIR_GUARD");
  uint64_t findings = 77;
  unsigned char *p = get_tagged(5 * MIB, NULL), *q = get_tagged(5 * MIB, NULL), *freed = get_tagged(5 * MIB, NULL);
  put(freed); /* waits in quarantine */
  memset(p, 1, 5 * MIB);
  fall_asleep(WEIR_TAG_KEEP);
  assert_ok(weir_guard_check(allocator, &findings));
  put(q);
  assert_ok(weir_guard_check(allocator, &findings));
  wake_up();
  assert_ok(weir_guard_check(allocator, &findings));
  assert_int_equal(findings, 0);
  assert_int_equal(p[5 * MIB - 1], 1);
  p[5 * MIB] = 2; /* it is guarded again */
  put(p);
  assert_ok(weir_guard_check(allocator, &findings));
  assert_int_equal(findings, 1);
  alloc_close();
}

/* ---- Graphs ---- */

TEST(a_graph_replays_after_the_wake) {
  alloc_open_runtime(NULL);
  assert_ok(weir_tag_open(allocator, 0, "weights", &tag));
  weir_stream stream = new_stream(0);
  weir_graph *graph = NULL;
  weir_cu_stream cu = raw_of(stream);
  unsigned char *in = get_tagged(2 * MIB, cu), *out = get_tagged(2 * MIB, cu);
  memset(in, 5, 2 * MIB);
  assert_ok(weir_tag_begin(tag));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_error(CAPTURE, weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL));
  unsigned char *between = get(2 * MIB, cu), *kept = get(512, cu);
  assert_cu(d->MemcpyAsync(d, (weir_cu_deviceptr)between, (weir_cu_deviceptr)in, 2 * MIB, cu));
  assert_cu(d->MemcpyAsync(d, (weir_cu_deviceptr)out, (weir_cu_deviceptr)between, 2 * MIB, cu));
  put(between); /* the graph uses it still */
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_tag_end(tag));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(between[MIB], 5);
  between[7] = 77; /* as if a backward graph were to read it */
  kept[1] = 66;
  fall_asleep(WEIR_TAG_KEEP);
  assert_in_range(info().kept_bytes, 6 * MIB + 512, 6 * MIB + 1024);
  wake_up();
  assert_int_equal(between[7], 77);
  assert_int_equal(kept[1], 66);
  assert_int_equal(out[2 * MIB - 1], 5);
  memset(in, 6, 2 * MIB);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(out[2 * MIB - 1], 6);
  put(in), put(out), put(kept);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}
