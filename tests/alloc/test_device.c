/*
 * The allocator on each device, including NVIDIA's: memory that is really written, streams that really run, and graphs.
 *
 * Each test runs with fixed and with expandable segments.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/length.h"
#include "support/runtime.h"
#include "support/sanitized.h"
#include "support/soft.h"

#define MIB (1024ull * 1024)

static weir_allocator *allocator;

static void start(const char *conf) {
  weir_driver *driver = NULL;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf;
  assert_ok(weir_get_driver(&driver));
  assert_ok(weir_device_set_current(0));
  assert_ok(weir_allocator_create(driver, &options, &allocator));
}

static void stop(void) {
  assert_ok(weir_device_synchronize(0));
  weir_allocator_destroy(allocator);
  allocator = NULL;
}

static void with_each_setting(void (*test)(void)) {
  static const char *const settings[] = {"", "expandable_segments:True"};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    start(settings[i]);
    test();
    stop();
  }
}

static void *take(size_t bytes, weir_stream stream) {
  void *memory = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, bytes, raw_of(stream), &memory));
  assert_non_null(memory);
  return memory;
}

static void give(void *memory) { assert_ok(weir_allocator_free(allocator, memory)); }

static int64_t stat(const char *name) {
  int64_t value = -1;
  assert_ok(weir_allocator_stat(allocator, 0, name, &value));
  return value;
}

/* ---- Data ---- */

enum { STREAMS = 3, BLOCKS = 60, EDGE = 32 };
#ifdef SANITIZED
static const size_t LARGEST = 12 * MIB; /* the thread sanitizer keeps several times as much for what is filled */
#else
static const size_t LARGEST = 30 * MIB;
#endif

typedef struct piece {
  uint8_t *memory;
  size_t bytes;
  uint8_t value;
  int stream;
} piece;

static void fill(piece *p, const weir_stream *streams) {
  const size_t most[] = {2000, 300 * 1024, 3 * MIB, LARGEST};
  p->stream = (int)soft_random(STREAMS);
  p->bytes = 1 + soft_random(most[soft_random(4)]);
  p->value = (uint8_t)soft_random(256);
  p->memory = take(p->bytes, streams[p->stream]);
  assert_ok(weir_fill_async(p->memory, p->value, p->bytes, streams[p->stream]));
}

static void check(const piece *p, const weir_stream *streams) {
  uint8_t edges[2 * EDGE];
  size_t edge = p->bytes < EDGE ? p->bytes : EDGE;
  assert_ok(weir_copy(edges, p->memory, edge, streams[p->stream]));
  assert_ok(weir_copy(edges + edge, p->memory + p->bytes - edge, edge, streams[p->stream]));
  for (size_t i = 0; i < 2 * edge; i++)
    assert_int_equal(edges[i], p->value);
}

static void use_data(void) {
  weir_stream streams[STREAMS] = {default_stream(0), new_stream(0), new_stream(0)};
  piece pieces[BLOCKS];
  for (int i = 0; i < BLOCKS; i++)
    fill(&pieces[i], streams);
  for (int i = 0; i < repetitions(300, 6000); i++) {
    piece *p = &pieces[soft_random(BLOCKS)];
    check(p, streams);
    give(p->memory);
    fill(p, streams);
  }
  for (int i = 0; i < BLOCKS; i++) {
    check(&pieces[i], streams);
    give(pieces[i].memory);
  }
  assert_int_equal(stat("allocated_bytes.all.current"), 0);
  assert_ok(weir_allocator_empty_cache(allocator));
  assert_int_equal(stat("reserved_bytes.all.current"), 0);
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(data) {
  soft_seed(11);
  with_each_setting(use_data);
}

/* ---- Streams ---- */

/* All memory that is needed while a stream is held is allocated before: no call may wait for the held stream. */
static void use_two_streams(void) {
  weir_stream own = new_stream(0), other = new_stream(0);
  size_t bytes = 4 * MIB;
  void *memory = take(bytes, own), *second = take(bytes, own);
  assert_ok(weir_stream_synchronize(own));
  void *low = memory < second ? memory : second, *high = memory < second ? second : memory;
  give(high);
  struct held *held = hold(other);
  assert_ok(weir_fill_async(low, 7, bytes, other));
  assert_ok(weir_allocator_record_stream(allocator, low, raw_of(other)));
  give(low);
  assert_int_equal(stat("active.all.current"), 1);
  assert_ptr_equal(take(bytes, own), high); /* the lower block would fit better, but is still in use */
  unblock(held);
  assert_ok(weir_stream_synchronize(other));
  assert_ptr_equal(take(bytes, own), low);
  assert_filled(0, low, 7, bytes);
  give(low);
  give(high);
}

TEST(two_streams) { with_each_setting(use_two_streams); }

enum { THREADS = 4, TURNS = 200 };

static void *use_a_stream(void *data) {
  weir_cu_stream stream = *(weir_cu_stream *)data;
  void *kept[8] = {0};
  for (unsigned i = 0; i < TURNS; i++) {
    void **place = &kept[i * 5 % 8];
    if (weir_allocator_free(allocator, *place) ||
        weir_allocator_alloc(allocator, 0, 1 + i * 7919 % (2 * MIB), stream, place))
      return "failed";
  }
  for (int i = 0; i < 8; i++)
    if (weir_allocator_free(allocator, kept[i]))
      return "failed";
  return NULL;
}

static void use_threads(void) {
  pthread_t threads[THREADS];
  weir_cu_stream streams[THREADS];
  for (int i = 0; i < THREADS; i++)
    streams[i] = raw_of(new_stream(0));
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, use_a_stream, &streams[i]), 0);
  for (int i = 0; i < THREADS; i++) {
    void *result = NULL;
    pthread_join(threads[i], &result);
    assert_null(result);
  }
  assert_int_equal(stat("allocated_bytes.all.current"), 0);
}

TEST(threads) { with_each_setting(use_threads); }

/* ---- Limits ---- */

static void run_short(void) {
  weir_stream stream = new_stream(0);
  void *memory = NULL;
  assert_ok(weir_allocator_set_limit(allocator, 0, 64 * MIB));
  void *first = take(40 * MIB, stream);
  assert_error_says(OUT_OF_MEMORY, "40.00 MiB", weir_allocator_alloc(allocator, 0, 40 * MIB, raw_of(stream), &memory));
  assert_null(memory);
  assert_int_equal(stat("num_ooms"), 1);
  give(first);
  give(take(40 * MIB, stream));
  assert_ok(weir_allocator_set_limit(allocator, 0, SIZE_MAX));
}

TEST(limit) { with_each_setting(run_short); }

/* Other code uses nearly all of the device. */
static void share_the_device(void) {
  weir_stream stream = new_stream(0);
  size_t free_bytes = 0, total = 0, left = 600 * MIB;
  give(take(MIB, stream)); /* creates the context */
  assert_ok(weir_device_memory_info(0, &free_bytes, &total));
  assert_true(free_bytes > left);
  weir_cu_deviceptr others = 0;
  assert_cu(d->MemAlloc(d, &others, free_bytes - left));
  void *memory = NULL;
  assert_error_says(OUT_OF_MEMORY, "GiB", weir_allocator_alloc(allocator, 0, 2048 * MIB, raw_of(stream), &memory));
  void *fits = take(100 * MIB, stream);
  assert_ok(weir_fill_async(fits, 3, 100 * MIB, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_cu(d->MemFree(d, others));
  give(fits);
  give(take(700 * MIB, stream));
}

TEST(shared_device) { with_each_setting(share_the_device); }

/* ---- Pools and graphs ---- */

static void use_pool(void) {
  weir_stream stream = new_stream(0);
  weir_pool_id id = weir_graph_pool_handle();
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *kept = take(3 * MIB, stream);
  assert_ok(weir_fill_async(kept, 5, 3 * MIB, stream));
  assert_ok(weir_pool_end(allocator, 0, id));
  weir_checkpoint *checkpoint = NULL;
  assert_ok(weir_pool_checkpoint(allocator, 0, id, &checkpoint));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *later = take(2 * MIB, stream);
  assert_ok(weir_pool_end(allocator, 0, id));
  give(kept);

  weir_checkpoint_delta delta = {.size = sizeof delta};
  assert_ok(weir_pool_restore(allocator, checkpoint, &delta));
  assert_int_equal(delta.freed_count, 1);
  assert_ptr_equal(delta.freed[0], later);
  assert_int_equal(delta.allocated_count, 1);
  assert_ptr_equal(delta.allocated[0], kept);
  weir_checkpoint_delta_clear(&delta);
  weir_checkpoint_destroy(checkpoint);
  assert_filled(0, kept, 5, 3 * MIB);
  give(kept);
  for (int i = 0; i < 3; i++) /* one for create, one for each begin */
    assert_ok(weir_pool_release(allocator, 0, id));
  assert_ok(weir_allocator_empty_cache(allocator));
}

TEST(pool) { with_each_setting(use_pool); }

enum { WORDS = 4096 };

/* Memory allocated during a capture belongs to the graph: other allocations do not get it, and each replay finds it
 * unchanged. */
static void use_graph(void) {
  weir_stream stream = new_stream(0);
  weir_graph *graph = NULL;
  uint32_t host[WORDS];
  load_add(0);
  uint32_t *in = take(sizeof host, stream), *out = take(sizeof host, stream);
  assert_ok(weir_graph_use_allocator(allocator));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  uint32_t *between = take(sizeof host, stream);
  assert_cu(launch_add(between, in, 10, WORDS, stream));
  assert_cu(launch_add(out, between, 100, WORDS, stream));
  give(between);
  assert_ok(weir_graph_end_capture(graph));
  uint32_t *outside = take(sizeof host, stream);
  assert_ptr_not_equal(outside, between);
  for (uint32_t turn = 1; turn <= 3; turn++) {
    assert_ok(weir_fill32_async(in, turn, WORDS, stream));
    assert_ok(weir_fill32_async(outside, 99, WORDS, stream));
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_copy(host, out, sizeof host, stream));
    for (int i = 0; i < WORDS; i++)
      assert_int_equal(host[i], turn + 110);
    assert_ok(weir_copy(host, outside, sizeof host, stream));
    assert_int_equal(host[WORDS - 1], 99);
  }
  weir_graph_destroy(graph);
  assert_ok(weir_stream_set_current(default_stream(0)));
  assert_ok(weir_graph_use_allocator(NULL));
  give(in);
  give(out);
  give(outside);
}

TEST(graph) { with_each_setting(use_graph); }

/* ---- History ---- */

TEST(history) {
  start("");
  weir_stream stream = new_stream(0);
  weir_history_options options;
  weir_history_options_init(&options);
  assert_ok(weir_history_record(allocator, &options));
  for (int i = 0; i < 10; i++)
    give(take(1000, stream));
  weir_history_info info = {.size = sizeof info};
  assert_ok(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.kept, 31); /* three for each pair, and one for the segment */
  stop();
}

/* ---- The driver's stream-ordered memory ---- */

static void use_recorded(void) {
  weir_stream own = new_stream(0), other = new_stream(0);
  size_t bytes = 4 * MIB;
  uint8_t *memory = take(bytes, own), edge[EDGE];
  assert_ok(weir_fill_async(memory, 1, bytes, own));
  assert_ok(weir_stream_synchronize(own));
  struct held *held = hold(other);
  assert_ok(weir_fill_async(memory, 7, bytes, other));
  assert_ok(weir_allocator_record_stream(allocator, memory, raw_of(other)));
  give(memory);
  uint8_t *second = take(bytes, own); /* not the block that the held stream still uses */
  assert_ok(weir_fill_async(second, 9, bytes, own));
  unblock(held);
  assert_ok(weir_stream_synchronize(other));
  assert_ok(weir_copy(edge, second, EDGE, own));
  for (int i = 0; i < EDGE; i++)
    assert_int_equal(edge[i], 9);
  give(second);
}

TEST(stream_ordered) {
  soft_seed(12);
  start("backend:cudaMallocAsync");
  char name[32];
  assert_ok(weir_allocator_backend(allocator, name, sizeof name, NULL));
  assert_string_equal(name, "cudaMallocAsync");
  use_data();
  use_recorded();
  stop();
}

/* ---- A thread without a context ---- */

static void *copy_without_a_context(void *blocks) {
  weir_driver *driver = NULL;
  weir_cu_context context = NULL;
  char **block = blocks;
  if (weir_get_driver(&driver) || driver->CtxSetCurrent(driver, NULL))
    return "there is no driver";
  void *own = NULL;
  if (weir_allocator_alloc(allocator, 0, 4096, NULL, &own))
    return "it did not get memory";
  if (weir_allocator_copy_async(allocator, own, 0, block[0], 0, 4096, NULL, 0) ||
      weir_allocator_copy_async(allocator, block[1], 0, own, 0, 4096, NULL, 0))
    return "it did not copy";
  if (weir_allocator_free(allocator, own))
    return "it did not free";
  return driver->CtxGetCurrent(driver, &context) || context ? "it has a context now" : NULL;
}

static void check_without_a_context(void) {
  weir_stream stream = default_stream(0);
  char *blocks[2] = {take(4096, stream), take(4096, stream)}, got[4096];
  for (int i = 0; i < 2; i++)
    assert_ok(weir_fill_async(blocks[i], (uint8_t)('a' + i), 4096, stream));
  pthread_t thread;
  void *problem;
  assert_int_equal(pthread_create(&thread, NULL, copy_without_a_context, blocks), 0);
  pthread_join(thread, &problem);
  if (problem)
    fail_msg("%s", (char *)problem);
  assert_ok(weir_copy(got, blocks[1], sizeof got, stream));
  assert_int_equal(got[0], 'a');
  assert_int_equal(got[4095], 'a');
  give(blocks[0]);
  give(blocks[1]);
}

TEST(without_a_context) { with_each_setting(check_without_a_context); }
