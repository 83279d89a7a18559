/*
 * Random operations, compared with a simple, slow model.
 *
 * Two kinds of properties are checked. The first hold for any allocator: live blocks never overlap, memory that a
 * stream has yet to use is not handed out, and reads find what was written, in the order of the streams. They also
 * hold while driver calls fail at random. The second are the policy of this allocator: support/model.h predicts for
 * each call the resulting address, the memory taken from and returned to the driver, and every statistic.
 *
 * The walker runs every few operations, and the segments are compared with the memory of the device. A failing run
 * prints its seed:
 *
 *     WEIR_TEST_SEED=17 build/debug/tests/test_alloc_model          runs only that seed
 *     WEIR_TEST_SEED=17 WEIR_TEST_TRACE=1 ...                       prints each operation
 *     WEIR_TEST_OPS=5000000 ...                                     the number of operations, over several seeds
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/alloc.h"
#include "support/length.h"
#include "support/model.h"

enum { STREAMS = 4, POOLS = 5, OWN_POOL = 4, MAX = 400, EDGE = 64, STEPS = 4000, CHECKPOINTS = 2 };
#define OWN_BYTES (32 * MIB)
#define OWN_SPACE (17 * OWN_BYTES) /* enough address space to find a free run in any state */

/* ---- One round per seed ---- */

static bool exact;  /* the policy is compared; otherwise driver calls fail at random */
static bool traced; /* WEIR_TEST_TRACE */
static unsigned long long device_bytes;
static int most_live;
static unsigned long step_number;
static model *m;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
  if (!traced)
    return;
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%lu: ", step_number);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
}

static void check_model(void) {
  if (m && m->wrong[0]) {
    print_error("operation %lu: %s\n", step_number, m->wrong);
    fail();
  }
}

/* ---- The trace ---- */

static weir_trace_entry *trace;
static size_t trace_count, trace_room;

static void record(void *context, const weir_trace_entry *entry) {
  (void)context;
  if (trace_count == trace_room) {
    trace_room = 2 * trace_room + 256;
    trace = realloc(trace, trace_room * sizeof *trace);
    if (!trace)
      abort();
  }
  trace[trace_count++] = *entry;
}

/* ---- Work of streams on memory ---- */

typedef struct piece_of_work {
  int stream;
  unsigned long number; /* the sequence number in its stream */
  char *memory;         /* NULL for work without memory */
  size_t bytes;
  uint8_t pattern;
  bool writes; /* writes the pattern, or checks it */
} piece_of_work;

static weir_cu_stream streams[STREAMS];
static unsigned long issued[STREAMS], done[STREAMS]; /* pieces of work */
static unsigned long queued[STREAMS];                /* everything enqueued in a stream, including events and waits */
static unsigned long spoiled;                        /* reads that did not find the written pattern */

/* The first and the last bytes of a block stand for the whole block. */
static void run_piece(void *data) {
  piece_of_work *w = data;
  size_t edge = w->bytes < EDGE ? w->bytes : EDGE;
  for (size_t i = 0; w->memory && i < edge; i++) {
    char *ends[] = {w->memory + i, w->memory + w->bytes - 1 - i};
    for (int k = 0; k < 2; k++)
      if (w->writes)
        *ends[k] = (char)w->pattern;
      else
        spoiled += (uint8_t)*ends[k] != w->pattern;
  }
  done[w->stream] = w->number;
  free(w);
}

static void issue(int stream, bool writes, char *memory, size_t bytes, uint8_t pattern) {
  piece_of_work *w = malloc(sizeof *w);
  assert_non_null(w);
  *w = (piece_of_work){stream, ++issued[stream], memory, bytes, pattern, writes};
  assert_cu(d->LaunchHostFunc(d, streams[stream], run_piece, w));
  queued[stream]++;
}

/* Later work of `stream` comes after all current work of `first`. */
static void wait_for(int stream, int first) {
  weir_cu_event event = soft_event();
  unsigned long before = soft_pending(streams[stream]);
  assert_cu(d->EventRecord(d, event, streams[first]));
  queued[first]++;
  assert_cu(d->StreamWaitEvent(d, streams[stream], event, 0));
  queued[stream] += soft_pending(streams[stream]) - before;
  assert_cu(d->EventDestroy(d, event));
}

/* The position of each stream, counted like `queued`. */
static void get_passed(unsigned long passed[MODEL_STREAMS]) {
  memset(passed, 0, MODEL_STREAMS * sizeof *passed);
  for (int i = 0; i < STREAMS; i++)
    passed[i] = queued[i] - soft_pending(streams[i]);
}

static int index_of(weir_cu_stream stream) {
  int i = 0;
  while (streams[i] != stream)
    i++;
  return i;
}

/* ---- Live memory, and freed memory in use by streams ---- */

typedef struct block {
  char *memory;
  size_t bytes; /* as requested */
  int stream;
  unsigned used_by; /* one bit for each other stream */
  uint8_t pattern;
  bool uncached;
} block;

static block live[MAX];
static int live_count;

/* Freed memory that other streams have yet to use: it must not be handed out before they are done. */
typedef struct shadow {
  char *memory;
  size_t bytes;
  unsigned long until[STREAMS];
} shadow;
static shadow shadows[4 * MAX];
static int shadow_count;

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

static void forget_shadows_that_are_over(void) {
  for (int i = 0; i < shadow_count;) {
    bool over = true;
    for (int s = 0; s < STREAMS; s++)
      over &= done[s] >= shadows[i].until[s];
    if (over)
      shadows[i] = shadows[--shadow_count];
    else
      i++;
  }
}

static void begin_life(char *memory, size_t bytes, int stream, bool uncached) {
  assert_true(live_count < MAX);
  if (!uncached)
    assert_int_equal((uint64_t)memory % 512, 0);
  for (int i = 0; i < live_count; i++)
    if (overlap(memory, bytes, live[i].memory, live[i].bytes)) {
      print_error("operation %lu: %p is given out, and lies in the live block %p\n", step_number, (void *)memory,
                  (void *)live[i].memory);
      fail();
    }
  forget_shadows_that_are_over();
  for (int i = 0; i < shadow_count; i++)
    if (overlap(memory, bytes, shadows[i].memory, shadows[i].bytes)) {
      print_error("operation %lu: %p is given out, and another stream still uses it\n", step_number, (void *)memory);
      fail();
    }
  block b = {memory, bytes, stream, 0, (uint8_t)soft_random(256), uncached};
  live[live_count++] = b;
  issue(stream, true, memory, bytes, b.pattern);
}

static void end_life(int i) {
  block b = live[i];
  live[i] = live[--live_count];
  if (b.used_by) {
    shadow s = {b.memory, b.bytes, {0}};
    for (int k = 0; k < STREAMS; k++)
      if (b.used_by >> k & 1)
        s.until[k] = issued[k];
    forget_shadows_that_are_over();
    assert_true(shadow_count < (int)WEIR_COUNT_OF(shadows));
    shadows[shadow_count++] = s;
  }
}

static int find_live(const void *memory) {
  for (int i = 0; i < live_count; i++)
    if (live[i].memory == memory)
      return i;
  return -1;
}

/* ---- Allocating ---- */

/* At, before or after a size at which the policy changes. */
static size_t boundary(void) {
  const uint64_t split = m && m->settings.max_split != MODEL_UNLIMITED ? m->settings.max_split : 40 * MIB;
  const uint64_t segment = m ? m->settings.large_segment : 20 * MIB;
  const uint64_t sizes[] = {512,
                            1024,
                            2 * KIB,
                            256 * KIB,
                            512 * KIB,
                            MIB - 512,
                            MIB,
                            MIB + MIB / 4,
                            2 * MIB,
                            2 * MIB - MIB,
                            10 * MIB,
                            10 * MIB - 512,
                            segment,
                            segment - MIB,
                            segment + 2 * MIB,
                            split,
                            split - 512,
                            split + segment,
                            split + split / 4,
                            9 * MIB,
                            64 * MIB,
                            48 * MIB};
  uint64_t size = sizes[soft_random(WEIR_COUNT_OF(sizes))];
  const int64_t by[] = {0, 0, 1, -1, 511, -511, 512, -512, 513};
  return size + (uint64_t)by[soft_random(size > 1024 ? WEIR_COUNT_OF(by) : 4)];
}

static size_t new_bytes(void) {
  switch (soft_random(10)) {
  case 0:
    return 1 + soft_random(600);
  case 1:
  case 2:
    return 1 + soft_random(64 * KIB);
  case 3:
    return 1 + soft_random(MIB);
  case 4:
  case 5:
    return MIB + soft_random(9 * MIB);
  case 6:
    return (1 + soft_random(60)) * MIB;
  case 7:
    return soft_random(20) ? MIB + soft_random(120 * MIB) : device_bytes / 2 + soft_random(device_bytes);
  default:
    return boundary();
  }
}

/* Programs request the same sizes repeatedly, so that blocks of equal size compete. */
static size_t usual[6];

static size_t some_bytes(void) {
  size_t *one = &usual[soft_random(WEIR_COUNT_OF(usual))];
  if (soft_random(60) == 0)
    *one = new_bytes();
  return soft_random(5) < 2 ? *one : new_bytes();
}

static const uint64_t page_mib[] = {12, 20, 20, 32}; /* large_segment_size_mb */

/* Out of memory is correct: a segment of that size, or whole pages, do not fit. */
static void check_refusal(size_t bytes) {
  uint64_t size = model_round(&m->settings, bytes), wanted = model_segment_bytes(&m->settings, size);
  uint64_t allowed = m->limit < m->device_bytes ? m->limit : m->device_bytes;
  /* The page sizes of older segments. */
  for (size_t i = 0; i < WEIR_COUNT_OF(page_mib) && m->settings.expandable; i++) {
    uint64_t page = page_mib[i] * MIB, pages = (size + page - 1) / page * page;
    wanted = pages > wanted ? pages : wanted;
  }
  if (m->settings.throw_on_oom && m->settings.rejection_fraction * (double)m->device_bytes < (double)allowed)
    allowed = (uint64_t)(m->settings.rejection_fraction * (double)m->device_bytes);
  bool other_reason = m->settings.expandable && size > model_reserve_bytes(m, size <= MIB);
  for (int i = 0; i < m->scope_count; i++)
    other_reason |= m->scopes[i].pool->own_memory;
  if (!other_reason && m->reserved + wanted <= allowed && m->used + wanted <= m->device_bytes) {
    print_error("operation %lu: %zu bytes are refused, with %" PRIu64 " of %" PRIu64 " reserved and %" PRIu64
                " wanted\n",
                step_number, bytes, m->reserved, allowed, wanted);
    fail();
  }
}

static void op_alloc(void) {
  if (live_count >= most_live)
    return;
  int stream = (int)soft_random(STREAMS);
  size_t bytes = some_bytes();
  unsigned long passed[MODEL_STREAMS];
  get_passed(passed);
  say("alloc %zu on %d", bytes, stream);
  void *memory = NULL;
  trace_count = 0;
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, streams[stream], &memory);
  if (exact) {
    uint64_t expected = 0;
    model_begin(m, trace, trace_count);
    weir_status as_said = model_alloc(m, bytes, stream, passed, &expected);
    model_end(m);
    if (status != as_said || (!status && (uint64_t)memory != expected)) {
      print_error("operation %lu: %zu bytes on stream %d: the model says %s %" PRIx64 ", the allocator %s %" PRIx64
                  "; %s\n",
                  step_number, bytes, stream, weir_status_name(as_said), expected, weir_status_name(status),
                  (uint64_t)memory, m->wrong);
      fail();
    }
    check_model();
  }
  if (status == WEIR_OK) {
    begin_life(memory, bytes, stream, false);
    return;
  }
  assert_null(memory);
  if (!exact)
    return;
  assert_int_equal(status, WEIR_ERROR_OUT_OF_MEMORY);
  check_refusal(bytes);
}

/* The software device hands out whole pages. */
static uint64_t charged(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

/* Without the cache, one. */
static void op_uncached(void) {
  if (live_count >= most_live)
    return;
  int stream = (int)soft_random(STREAMS);
  size_t bytes = some_bytes();
  void *memory = NULL;
  say("alloc %zu without the cache", bytes);
  trace_count = 0;
  assert_ok(weir_allocator_set_caching(allocator, 0));
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, streams[stream], &memory);
  assert_ok(weir_allocator_set_caching(allocator, 1));
  assert_int_equal(trace_count, 0);
  if (exact) {
    assert_int_equal(status, charged(bytes) > m->device_bytes - m->used ? WEIR_ERROR_OUT_OF_MEMORY : WEIR_OK);
    if (!status)
      m->used += charged(bytes);
  }
  if (!status)
    begin_life(memory, bytes, stream, true);
}

static void free_live(int i) {
  block b = live[i];
  unsigned long before[STREAMS], until[MODEL_STREAMS] = {0};
  issue(b.stream, false, b.memory, b.bytes, b.pattern);
  say("free %p of %zu", (void *)b.memory, b.bytes);
  for (int k = 0; k < STREAMS; k++)
    before[k] = soft_pending(streams[k]);
  trace_count = 0;
  weir_status status = weir_allocator_free(allocator, b.memory);
  if (status && !exact && b.uncached)
    return; /* the driver refused it */
  assert_ok(status);
  if (b.uncached) {
    assert_int_equal(trace_count, 0);
    if (exact)
      m->used -= charged(b.bytes);
    b.used_by = live[i].used_by = 0; /* the driver waits for all streams */
  } else {
    for (int k = 0; k < STREAMS; k++)
      if (b.used_by && soft_pending(streams[k]) > before[k])
        queued[k] += soft_pending(streams[k]) - before[k];
    for (int k = 0; k < STREAMS; k++)
      until[k] = queued[k];
    if (exact) {
      model_begin(m, trace, trace_count);
      model_free(m, (uint64_t)b.memory, until);
      model_end(m);
      check_model();
    }
  }
  end_life(i);
}

static void op_free(void) {
  if (live_count)
    free_live((int)soft_random((uint64_t)live_count));
}

/* Frees many blocks at once, like the end of a training step. */
static void op_free_many(void) {
  for (uint64_t n = soft_random(60); n > 0 && live_count; n--)
    op_free();
}

/* ---- Streams ---- */

/* Another stream reads the block after it was written. */
static void op_use(void) {
  if (!live_count)
    return;
  block *b = &live[soft_random((uint64_t)live_count)];
  int stream = (int)soft_random(STREAMS);
  say("use %p on %d", (void *)b->memory, stream);
  assert_ok(weir_allocator_record_stream(allocator, b->memory, streams[stream]));
  if (stream != b->stream) {
    wait_for(stream, b->stream);
    b->used_by |= 1u << stream;
  }
  if (exact)
    model_record_stream(m, (uint64_t)b->memory, stream);
  issue(stream, false, b->memory, b->bytes, b->pattern);
}

static void op_work(void) { issue((int)soft_random(STREAMS), false, NULL, 0, 0); }

static void op_step(void) {
  if (soft_random(20) == 0)
    soft_step_all();
  else
    soft_step(streams[soft_random(STREAMS)], soft_random(30));
}

/* ---- The cache, limits and settings ---- */

static const weir_pool_id pool_ids[POOLS] = {{0, 1}, {7, 0}, {0, 3}, {9, 9}, {0, 5}};

static void empty(weir_pool_id id) {
  say("empty {%d, %d}", (int)id.first, (int)id.second);
  trace_count = 0;
  weir_status status = !id.first && !id.second && soft_random(2) ? weir_allocator_empty_cache(allocator)
                                                                 : weir_allocator_empty_pool(allocator, id);
  if (!exact)
    return;
  assert_int_equal(status, WEIR_OK);
  model_begin(m, trace, trace_count);
  model_empty(m, id);
  model_end(m);
  check_model();
}

static void op_empty(void) { empty(soft_random(2) ? (weir_pool_id){0, 0} : pool_ids[soft_random(POOLS)]); }

static void op_limit(void) {
  double fraction = soft_random(3) ? 1 : 0.3 + (double)soft_random(700) / 1000, now = -1;
  say("fraction %g", fraction);
  assert_ok(weir_allocator_set_fraction(allocator, 0, fraction));
  assert_ok(weir_allocator_get_fraction(allocator, 0, &now));
  assert_true(now == fraction);
  if (exact)
    model_set_fraction(m, fraction);
}

static void set_divisions(uint64_t first, uint64_t second, uint64_t rest) {
  for (int i = 0; i < MODEL_INTERVALS; i++)
    m->settings.divisions[i] = i == 0 ? first : i == 1 ? 0 : i == 2 ? second : rest;
}

/* One key with a value that is valid with the other keys. */
static void op_configure(void) {
  static const double parts[] = {0.1, 0.2, 0.5, 0.8};
  model_settings *s = &m->settings;
  char text[128] = "";
  uint64_t value, a, b, c;
  switch (soft_random(11)) {
  case 0:
  case 1:
  case 2:
    s->expandable = soft_random(2);
    snprintf(text, sizeof text, "expandable_segments:%s", s->expandable ? "True" : "False");
    break;
  case 3:
    value = 20 + soft_random(100);
    if (soft_random(3) == 0 || value * MIB < s->large_segment) {
      s->max_split = MODEL_UNLIMITED;
      strcpy(text, "max_split_size_mb:default");
    } else {
      s->max_split = value * MIB;
      snprintf(text, sizeof text, "max_split_size_mb:%" PRIu64, value);
    }
    break;
  case 4:
    value = 20 + soft_random(60);
    if (soft_random(2) || value * MIB < s->large_segment) {
      s->max_non_split = 0;
      strcpy(text, "max_non_split_rounding_mb:default");
    } else {
      s->max_non_split = value * MIB;
      snprintf(text, sizeof text, "max_non_split_rounding_mb:%" PRIu64, value);
    }
    break;
  case 5:
    value = page_mib[soft_random(WEIR_COUNT_OF(page_mib))];
    if (value * MIB > s->max_split || (s->max_non_split && value * MIB > s->max_non_split))
      return;
    s->large_segment = value * MIB;
    snprintf(text, sizeof text, "large_segment_size_mb:%" PRIu64, value);
    break;
  case 6:
    s->collect_above = soft_random(3) ? parts[soft_random(WEIR_COUNT_OF(parts))] : 0;
    if (s->collect_above > 0)
      snprintf(text, sizeof text, "garbage_collection_threshold:%.1f", s->collect_above);
    else
      strcpy(text, "garbage_collection_threshold:default");
    break;
  case 7:
    a = 1ull << soft_random(5), b = 1ull << soft_random(5), c = 1ull << soft_random(5);
    if (soft_random(2)) {
      set_divisions(a, b, c);
      snprintf(text, sizeof text, "roundup_power2_divisions:[1:%" PRIu64 ",4:%" PRIu64 ",>:%" PRIu64 "]", a, b, c);
    } else {
      set_divisions(a, a, a);
      s->divisions[1] = a;
      snprintf(text, sizeof text, "roundup_power2_divisions:%" PRIu64, a);
    }
    break;
  case 8:
    s->throw_on_oom = soft_random(4) == 0;
    s->rejection_fraction = parts[soft_random(WEIR_COUNT_OF(parts))];
    snprintf(text, sizeof text, "throw_on_cudamalloc_oom:%s,per_process_memory_fraction:%.1f",
             s->throw_on_oom ? "True" : "False", s->rejection_fraction);
    break;
  case 9:
    s->reserve = soft_random(3) ? parts[soft_random(WEIR_COUNT_OF(parts))] : 0;
    if (s->reserve > 0)
      snprintf(text, sizeof text, "expandable_segments_reserve:%.1f", s->reserve);
    else
      strcpy(text, "expandable_segments_reserve:default");
    break;
  default:
    snprintf(text, sizeof text, "release_lock_on_cudamalloc:%s", soft_random(2) ? "True" : "False");
  }
  say("configure %s", text);
  configure(text);
}

static void op_bad_free(void) {
  char *p = live_count ? live[soft_random((uint64_t)live_count)].memory + 1 + soft_random(3) * 511 : (char *)&p;
  if (find_live(p) >= 0)
    return;
  size_t bytes;
  void *base;
  assert_int_equal(weir_allocator_free(allocator, p), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir_allocator_record_stream(allocator, p, NULL), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir_allocator_base(allocator, p, &base, &bytes), WEIR_ERROR_INVALID_ARGUMENT);
}

/* Calls that only query. */
static void op_look(void) {
  if (!exact)
    return;
  size_t bytes = 0;
  void *base = NULL;
  assert_ok(weir_allocator_largest_block(allocator, 0, &bytes));
  assert_int_equal(bytes, model_largest(m));
  if (!live_count)
    return;
  const block *b = &live[soft_random((uint64_t)live_count)];
  const model_block *expected = b->uncached ? NULL : model_find(m, (uint64_t)b->memory);
  weir_status status = weir_allocator_base(allocator, b->memory, &base, &bytes);
  if (expected && expected->segment->page) {
    assert_int_equal(status, WEIR_ERROR_NOT_SUPPORTED);
    return;
  }
  assert_ok(status);
  assert_int_equal((uint64_t)base, expected ? expected->segment->base : (uint64_t)b->memory);
  assert_int_equal(bytes, expected ? expected->segment->bytes : b->bytes);
}

static void op_reset_stats(void) {
  if (soft_random(2)) {
    assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
    if (exact)
      model_reset_peaks(m);
  } else {
    assert_ok(weir_allocator_reset_accumulated_stats(allocator, 0));
    if (exact)
      model_reset_accumulated(m);
  }
}

/* ---- Pools ---- */

static int held[POOLS];       /* number of holders */
static int scopes[POOLS + 1]; /* the pools of the open scopes, innermost last */
static int scope_count;

/* Memory from a pool's own functions, whose segments begin in the middle of a unit of the page map. */
static char *own_memory;
static bool own_taken[OWN_SPACE / MIB];
static uint64_t own_used;

static void *own_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)device, (void)stream;
  size_t need = (bytes + MIB - 1) / MIB, run = 0;
  if (bytes > OWN_BYTES - own_used)
    return NULL;
  for (size_t i = 0; i < OWN_SPACE / MIB; i++) {
    run = own_taken[i] ? 0 : run + 1;
    if (run == need) {
      memset(&own_taken[i + 1 - need], true, need);
      own_used += bytes;
      return own_memory + (i + 1 - need) * MIB;
    }
  }
  abort();
}

static void own_free(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)device, (void)stream;
  assert_cu(d->CtxSynchronize(d)); /* the allocator does not synchronize here; see weir_pool_options */
  memset(&own_taken[((char *)pointer - own_memory) / (ptrdiff_t)MIB], false, (bytes + MIB - 1) / MIB);
  own_used -= bytes;
}

static int is_in_mask(void *context, weir_cu_stream stream) { return *(unsigned *)context >> index_of(stream) & 1; }

static void op_scope(void) {
  static unsigned masks[POOLS];
  int pool = (int)soft_random(POOLS);
  bool is_open = false;
  for (int i = 0; i < scope_count; i++)
    is_open |= scopes[i] == pool;
  say("%s pool %d", is_open ? "end" : "begin", pool);
  if (!is_open) {
    bool filtered = soft_random(2);
    masks[pool] = filtered ? (unsigned)soft_random(1u << STREAMS) : MODEL_ALL_STREAMS;
    assert_ok(
        weir_pool_begin(allocator, 0, pool_ids[pool], filtered ? is_in_mask : NULL, filtered ? &masks[pool] : NULL));
    if (exact)
      assert_int_equal(model_pool_begin(m, pool_ids[pool], masks[pool]), WEIR_OK);
    scopes[scope_count++] = pool;
    held[pool]++;
    assert_error(BAD_STATE, weir_pool_begin(allocator, 0, pool_ids[pool], NULL, NULL));
    return;
  }
  assert_ok(weir_pool_end(allocator, 0, pool_ids[pool]));
  if (exact)
    assert_int_equal(model_pool_end(m, pool_ids[pool]), WEIR_OK);
  int i = 0;
  while (scopes[i] != pool)
    i++;
  scope_count--;
  memmove(&scopes[i], &scopes[i + 1], (size_t)(scope_count - i) * sizeof *scopes);
}

static void op_create_pool(void) {
  int pool = (int)soft_random(POOLS);
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.use_on_oom = (int)soft_random(2);
  options.no_split = soft_random(4) == 0;
  if (pool == OWN_POOL) {
    options.alloc = own_alloc;
    options.free = own_free;
  }
  say("create pool %d", pool);
  weir_status status = weir_pool_create(allocator, 0, pool_ids[pool], &options);
  if (pool == OWN_POOL && status) {
    assert_int_equal(status, WEIR_ERROR_BAD_STATE); /* it exists */
    if (exact)
      assert_non_null(model_pool_find(m, pool_ids[pool]));
    return;
  }
  assert_ok(status);
  held[pool]++;
  if (exact)
    model_pool_create(m, pool_ids[pool], &options);
}

static void op_release_pool(void) {
  int pool = (int)soft_random(POOLS);
  say("release pool %d", pool);
  weir_status status = weir_pool_release(allocator, 0, pool_ids[pool]);
  assert_int_equal(status, held[pool] ? WEIR_OK : WEIR_ERROR_INVALID_ARGUMENT);
  held[pool] -= held[pool] > 0;
  if (exact)
    assert_int_equal(model_pool_release(m, pool_ids[pool]), status);
}

static void op_look_at_pool(void) {
  int pool = (int)soft_random(POOLS), count = -1, equal = -1;
  weir_stat stats[WEIR_STAT_KINDS];
  weir_status status = weir_pool_use_count(allocator, 0, pool_ids[pool], &count);
  if (held[pool])
    assert_int_equal(count, held[pool]);
  if (!exact)
    return;
  const model_pool *expected = model_pool_find(m, pool_ids[pool]);
  assert_int_equal(status, expected ? WEIR_OK : WEIR_ERROR_INVALID_ARGUMENT);
  const model_pool_stats *known = model_pool_stats_find(m, pool_ids[pool]);
  const weir_stat *all = known ? &known->reserved_bytes[WEIR_STAT_ALL] : NULL;
  if (expected || (all && (all->peak || all->allocated || all->freed))) { /* statistics of others may be dropped */
    assert_ok(weir_pool_reserved_bytes(allocator, 0, pool_ids[pool], stats));
    assert_memory_equal(stats, known->reserved_bytes, sizeof stats);
  }
  if (!expected)
    return;
  void *pointers[MAX];
  size_t pointer_count = 0;
  for (const model_segment *s = m->segments; s; s = s->next)
    for (const model_block *b = s->first; b && s->pool == expected; b = b->next)
      if (b->state == MODEL_ALLOCATED)
        pointers[pointer_count++] = (void *)b->address;
  assert_ok(weir_pool_has_exactly(allocator, 0, pool_ids[pool], pointers, pointer_count, &equal));
  assert_int_equal(equal, 1);
  if (pointer_count) {
    assert_ok(weir_pool_has_exactly(allocator, 0, pool_ids[pool], pointers, pointer_count - 1, &equal));
    assert_int_equal(equal, 0);
  }
}

static void op_lend(void) {
  int pool = (int)soft_random(POOLS), use = (int)soft_random(2);
  weir_status status = weir_pool_set_use_on_oom(allocator, 0, pool_ids[pool], use);
  if (!exact)
    return;
  model_pool *expected = model_pool_find(m, pool_ids[pool]);
  assert_int_equal(status, expected ? WEIR_OK : WEIR_ERROR_INVALID_ARGUMENT);
  if (expected)
    expected->use_on_oom = use;
}

/* ---- Checkpoints ---- */

static struct {
  weir_checkpoint *theirs;
  model_checkpoint *mine;
} checkpoints[CHECKPOINTS];

static void drop_checkpoint(int i) {
  weir_checkpoint_destroy(checkpoints[i].theirs);
  model_checkpoint_delete(checkpoints[i].mine);
  checkpoints[i].theirs = NULL;
  checkpoints[i].mine = NULL;
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void compare_lists(const char *what, void *const *theirs, size_t their_count, uint64_t *mine, size_t count) {
  uint64_t *sorted = malloc((their_count + 1) * sizeof *sorted);
  assert_non_null(sorted);
  if (their_count)
    memcpy(sorted, theirs, their_count * sizeof *sorted);
  qsort(sorted, their_count, sizeof *sorted, by_value);
  qsort(mine, count, sizeof *mine, by_value);
  bool equal = count == their_count && !memcmp(sorted, mine, count * sizeof *mine);
  free(sorted);
  if (!equal) {
    print_error("operation %lu: a restored checkpoint has %s %zu blocks, the model %zu, or others\n", step_number, what,
                their_count, count);
    fail();
  }
}

static void op_checkpoint(void) {
  int i = (int)soft_random(CHECKPOINTS), pool = (int)soft_random(POOLS);
  drop_checkpoint(i);
  say("checkpoint %d of pool %d", i, pool);
  weir_status status = weir_pool_checkpoint(allocator, 0, pool_ids[pool], &checkpoints[i].theirs);
  if (exact)
    assert_int_equal(status, model_checkpoint_take(m, pool_ids[pool], &checkpoints[i].mine));
  else if (status && held[pool])
    assert_int_equal(status, WEIR_ERROR_BAD_STATE); /* a block waits */
}

/* The restore counts its allocations for a moment, so the accumulated values differ from those before. */
static void forget_sums(void) {
  assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
  assert_ok(weir_allocator_reset_accumulated_stats(allocator, 0));
  if (exact) {
    model_reset_peaks(m);
    model_reset_accumulated(m);
  }
}

static uint64_t requested_at(const void *memory) {
  const model_block *b = exact ? model_find(m, (uint64_t)memory) : NULL;
  return b ? b->requested : 512;
}

static int stream_at(const void *memory) {
  const model_block *b = exact ? model_find(m, (uint64_t)memory) : NULL;
  return b ? b->segment->stream : 0;
}

static void op_restore(void) {
  int at = (int)soft_random(CHECKPOINTS);
  if (!checkpoints[at].theirs || !exact) /* without the model the restored blocks are not known */
    return;
  weir_checkpoint_delta delta = {.size = sizeof delta};
  size_t room = model_block_count(m) + checkpoints[at].mine->count + 1, freed_count = 0, allocated_count = 0;
  uint64_t *freed = calloc(room, sizeof *freed), *allocated = calloc(room, sizeof *allocated);
  assert_true(freed && allocated);
  say("restore %d", at);
  if (live_count + checkpoints[at].mine->count > MAX)
    goto free_lists;
  trace_count = 0;
  weir_status status = weir_pool_restore(allocator, checkpoints[at].theirs, &delta);
  model_begin(m, trace, trace_count);
  assert_int_equal(status, model_restore(m, checkpoints[at].mine, freed, &freed_count, allocated, &allocated_count));
  for (size_t i = 0; i < trace_count; i++)
    assert_in_range(trace[i].action, WEIR_TRACE_ALLOC, WEIR_TRACE_FREE_COMPLETED);
  if (status)
    goto free_lists;
  compare_lists("freed", delta.freed, delta.freed_count, freed, freed_count);
  compare_lists("allocated", delta.allocated, delta.allocated_count, allocated, allocated_count);
  for (size_t i = 0; i < delta.freed_count; i++) {
    int k = find_live(delta.freed[i]);
    assert_true(k >= 0);
    assert_int_equal(live[k].used_by, 0);
    issue(live[k].stream, false, live[k].memory, live[k].bytes, live[k].pattern);
    end_life(k);
  }
  for (size_t i = 0; i < delta.allocated_count; i++)
    begin_life(delta.allocated[i], requested_at(delta.allocated[i]), stream_at(delta.allocated[i]), false);
  forget_sums();

free_lists:
  weir_checkpoint_delta_clear(&delta);
  free(freed);
  free(allocated);
}

/* ---- The run ---- */

static const struct {
  void (*run)(void);
  unsigned weight;
} ops[] = {{op_alloc, 400}, {op_free, 250},      {op_free_many, 6},   {op_use, 60},          {op_work, 40},
           {op_step, 90},   {op_empty, 10},      {op_limit, 6},       {op_configure, 12},    {op_bad_free, 8},
           {op_look, 10},   {op_scope, 20},      {op_create_pool, 8}, {op_release_pool, 14}, {op_look_at_pool, 12},
           {op_lend, 6},    {op_checkpoint, 10}, {op_restore, 14},    {op_reset_stats, 4},   {op_uncached, 4}};

static void check_books(void) {
  assert_valid();
  assert_int_equal(spoiled, 0);
  if (exact)
    assert_int_equal(soft_census().device_bytes, m->used);
}

static void check_counts(void) {
  weir_allocator_stats s = stats_of(0);
  int64_t requested = 0, count = 0;
  for (int i = 0; i < live_count; i++)
    if (!live[i].uncached) {
      requested += (int64_t)live[i].bytes;
      count++;
    }
  assert_int_equal(s.allocation[WEIR_STAT_ALL].current, count);
  assert_true(s.requested_bytes[WEIR_STAT_ALL].current >= requested);
  assert_true(s.allocated_bytes[WEIR_STAT_ALL].current >= requested);
  if (exact) {
    model_compare_stats(m, &s);
    check_model();
  }
}

static void begin_round(uint64_t seed) {
  static const unsigned long long sizes[] = {160 * MIB, 640 * MIB, 640 * MIB, 3 * GIB};
  soft_seed(seed);
  device_bytes = sizes[soft_random(WEIR_COUNT_OF(sizes))];
  most_live = soft_random(3) ? 150 : 20 + (int)soft_random(MAX - 20);
  alloc_open("", device_bytes);
  live_count = shadow_count = scope_count = 0;
  memset(held, 0, sizeof held);
  memset(issued, 0, sizeof issued);
  memset(done, 0, sizeof done);
  memset(queued, 0, sizeof queued);
  memset(own_taken, 0, sizeof own_taken);
  own_used = spoiled = 0;
  streams[0] = NULL;
  for (int i = 1; i < STREAMS; i++)
    streams[i] = work_stream();
  m = model_new(device_bytes, OWN_BYTES);
  for (int i = 0; i < STREAMS; i++)
    m->raw[i] = streams[i];
  for (size_t i = 0; i < WEIR_COUNT_OF(usual); i++)
    usual[i] = new_bytes();
  own_memory = mmap(NULL, OWN_SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(own_memory, MAP_FAILED);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = record)));
  if (!exact)
    assert_ok(weir_fault_random(faults, seed, 30000, soft_random(2) ? WEIR_CU_OUT_OF_MEMORY : WEIR_CU_UNKNOWN));
}

/* Releases everything. */
static void end_round(void) {
  assert_ok(weir_fault_clear(faults));
  for (int i = 0; i < CHECKPOINTS; i++)
    drop_checkpoint(i);
  while (live_count)
    op_free();
  while (scope_count)
    op_scope();
  for (int i = 0; i < POOLS; i++)
    while (held[i]-- > 0) {
      assert_ok(weir_pool_release(allocator, 0, pool_ids[i]));
      if (exact)
        assert_int_equal(model_pool_release(m, pool_ids[i]), WEIR_OK);
    }
  soft_step_all();
  check_counts();
  empty((weir_pool_id){0, 0});
  assert_int_equal(reserved(), 0);
  assert_int_equal(soft_census().device_bytes, 0);
  check_books();
  assert_int_equal(own_used, 0);
  for (int i = 0; i < STREAMS; i++)
    assert_int_equal(done[i], issued[i]);
  alloc_close();
  munmap(own_memory, OWN_SPACE);
  model_delete(m);
  m = NULL;
}

static void run(uint64_t seed, unsigned long steps) {
  begin_round(seed);
  unsigned all = 0, until_walk = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(ops); i++)
    all += ops[i].weight;
  for (step_number = 0; step_number < steps; step_number++) {
    unsigned at = (unsigned)soft_random(all);
    size_t op = 0;
    while (at >= ops[op].weight)
      at -= ops[op++].weight;
    ops[op].run();
    check_counts();
    if (until_walk-- == 0) {
      check_books();
      until_walk = (unsigned)soft_random(24);
    }
  }
  end_round();
}

/* WEIR_TEST_OPS counts operations over all rounds; a given seed is the first. */
static void run_seeds(unsigned long operations) {
  int rounds = (int)((operations + STEPS - 1) / STEPS);
  uint64_t seed = soft_first_seed(&rounds);
  const char *text = getenv("WEIR_TEST_OPS");
  traced = getenv("WEIR_TEST_TRACE") != NULL;
  if (text && *text)
    rounds = (int)((strtoul(text, NULL, 10) + STEPS - 1) / STEPS);
  for (; rounds-- > 0; seed++)
    run(seed, STEPS);
}

TEST(policy) {
  exact = true;
  run_seeds((unsigned long)repetitions(60000, 400000));
}

TEST(failing_calls) {
  exact = false;
  run_seeds((unsigned long)repetitions(16000, 80000));
}

/* Frees the model of a failed round. */
static int teardown(void **state) {
  model_delete(m);
  m = NULL;
  memset(checkpoints, 0, sizeof checkpoints);
  return alloc_teardown(state);
}

FIXTURE(.teardown = teardown)
