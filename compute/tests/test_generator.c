/*
 * Generators: seeds, offsets and states, and what they do in captured graphs.
 */
#include <pthread.h>
#include <string.h>

#include "support/runtime.h"
#include "weir/compute/compute.h"
#include "weir/compute/random.h"

static const weir_pool_id own_pool = {0, 0};

static weir_generator *new_generator(void) {
  weir_generator *generator = NULL;
  assert_ok(weir_generator_create(0, &generator));
  return generator;
}

static weir_generator *default_generator(int device) {
  weir_generator *generator = NULL;
  assert_ok(weir_generator_default(device, &generator));
  return generator;
}

static uint64_t seed_of(const weir_generator *generator) {
  uint64_t seed = 0;
  assert_ok(weir_generator_initial_seed(generator, &seed));
  return seed;
}

static uint64_t offset_of(const weir_generator *generator) {
  uint64_t offset = 0;
  assert_ok(weir_generator_get_offset(generator, &offset));
  return offset;
}

static weir_philox_state advance(weir_generator *generator, uint64_t increment, weir_stream stream) {
  weir_philox_state state;
  memset(&state, 0xee, sizeof state);
  assert_ok(weir_generator_advance(generator, increment, stream, &state));
  return state;
}

static void begin(weir_graph *graph, weir_stream stream) {
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
}

static void end(weir_graph *graph) {
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_stream_set_current(default_stream(-1)));
}

static weir_graph *new_graph(void) {
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  return graph;
}

/* A 64-bit number in device memory. */
static uint64_t number_at(uint64_t address, weir_stream stream) {
  uint64_t number = 0;
  assert_ok(weir_copy(&number, (void *)(uintptr_t)address, sizeof number, stream));
  return number;
}

static int64_t active_blocks(int64_t *bytes) {
  weir_allocator_stats stats;
  weir_allocator_stats_init(&stats);
  assert_ok(weir_memory_get_stats(0, &stats));
  *bytes = stats.active_bytes[WEIR_STAT_ALL].current;
  return stats.active[WEIR_STAT_ALL].current;
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(seed_and_offset) {
  weir_generator *generator = new_generator();
  assert_int_equal(seed_of(generator), 67280421310721ull);
  assert_int_equal(offset_of(generator), 0);
  assert_ok(weir_generator_set_offset(generator, 40));
  assert_int_equal(offset_of(generator), 40);
  assert_error_says(INVALID_ARGUMENT, "offset must be a multiple of 4", weir_generator_set_offset(generator, 41));
  assert_int_equal(offset_of(generator), 40);
  assert_ok(weir_generator_manual_seed(generator, UINT64_MAX));
  assert_int_equal(seed_of(generator), UINT64_MAX);
  assert_int_equal(offset_of(generator), 0);

  uint64_t seeds[2];
  for (int i = 0; i < 2; i++) {
    assert_ok(weir_generator_set_offset(generator, 4));
    assert_ok(weir_generator_seed(generator, &seeds[i]));
    assert_int_equal(seed_of(generator), seeds[i]);
    assert_true(seeds[i] < 1ull << 53);
    assert_int_equal(offset_of(generator), 0);
  }
  assert_int_not_equal(seeds[0], seeds[1]);
  int device = -1;
  assert_ok(weir_generator_device(generator, &device));
  assert_int_equal(device, 0);
  weir_generator_destroy(generator);
  weir_generator_destroy(NULL);
  assert_error(INVALID_DEVICE, weir_generator_create(1000, &generator));
  assert_error(INVALID_DEVICE, weir_generator_default(1000, &generator));
  assert_error(INVALID_ARGUMENT, weir_generator_create(0, NULL));
}

/* The state has PyTorch's layout: the seed and the offset, 8 bytes each. */
TEST(state) {
  weir_generator *generator = new_generator(), *other = new_generator();
  unsigned char bytes[16];
  uint64_t numbers[2] = {7, 88};
  assert_ok(weir_generator_set_state(generator, numbers, sizeof numbers));
  assert_int_equal(seed_of(generator), 7);
  assert_int_equal(offset_of(generator), 88);
  assert_ok(weir_generator_get_state(generator, bytes));
  assert_memory_equal(bytes, numbers, 16);
  assert_ok(weir_generator_set_state(other, bytes, 16));
  assert_int_equal(offset_of(other), 88);
  /* 8 bytes are a seed. */
  assert_ok(weir_generator_set_state(other, bytes, 8));
  assert_int_equal(seed_of(other), 7);
  assert_int_equal(offset_of(other), 0);
  assert_error_says(INVALID_ARGUMENT, "RNG state is wrong size", weir_generator_set_state(other, bytes, 12));
  numbers[1] = 2;
  assert_error_says(INVALID_ARGUMENT, "multiple of 4", weir_generator_set_state(other, numbers, 16));
  assert_int_equal(offset_of(other), 0);
  weir_generator_destroy(generator);
  weir_generator_destroy(other);
}

/* An increment is rounded up to a multiple of 4. */
TEST(advance) {
  weir_generator *generator = new_generator();
  weir_stream stream = default_stream(0);
  assert_ok(weir_generator_manual_seed(generator, 5));
  weir_philox_state first = advance(generator, 1, stream), second = advance(generator, 9, stream);
  assert_int_equal(first.seed, 5);
  assert_int_equal(first.offset, 0);
  assert_int_equal(first.captured, 0);
  assert_int_equal(second.offset, 4);
  assert_int_equal(offset_of(generator), 16);
  /* NULL is the default generator. */
  assert_ok(weir_generator_manual_seed(default_generator(0), 6));
  assert_int_equal(advance(NULL, 4, stream).seed, 6);
  assert_int_equal(offset_of(default_generator(0)), 4);
  weir_generator_destroy(generator);
}

TEST(generator_of_another_device) {
  NEED_TWO_DEVICES();
  weir_generator *other = NULL;
  weir_philox_state into;
  assert_ok(weir_generator_create(1, &other));
  assert_error_says(INVALID_ARGUMENT, "Expected a 'cuda:0' generator device but found 'cuda:1'",
                    weir_generator_advance(other, 4, default_stream(0), &into));
  weir_generator *here = new_generator();
  assert_error(INVALID_ARGUMENT, weir_generator_share_state_of(here, other));
  weir_generator_destroy(here);
  weir_generator_destroy(other);
}

TEST(default_generators) {
  NEED_TWO_DEVICES();
  weir_generator *here = default_generator(0), *there = default_generator(1);
  assert_ptr_not_equal(here, there);
  assert_ptr_equal(here, default_generator(-1));
  weir_generator_destroy(here); /* ignored */
  assert_ok(weir_random_manual_seed_all(3));
  assert_int_equal(seed_of(here), 3);
  assert_int_equal(seed_of(there), 3);
  assert_ok(weir_device_set_current(1));
  assert_ok(weir_random_manual_seed(4));
  assert_int_equal(seed_of(here), 3);
  assert_int_equal(seed_of(there), 4);
  assert_ok(weir_random_seed_all());
  assert_int_equal(seed_of(here), seed_of(there));
  assert_int_not_equal(seed_of(here), 3);
  assert_ok(weir_random_seed());
  assert_int_not_equal(seed_of(here), seed_of(there));
}

/* Seeding does not start the runtime, and the last seed wins. */
TEST(seeds_before_the_start) {
  assert_ok(weir_random_manual_seed_all(1));
  assert_ok(weir_random_manual_seed(2));
  assert_ok(weir_random_manual_seed(3));
  assert_int_equal(weir_is_initialized(), 0);
  assert_int_equal(seed_of(default_generator(-1)), 3);
  if (devices() > 1)
    assert_int_equal(seed_of(default_generator(1)), 1);
  shut_down_clean();
  assert_ok(weir_random_manual_seed(2));
  assert_ok(weir_random_manual_seed_all(5));
  assert_int_equal(weir_is_initialized(), 0);
  assert_ok(weir_init());
  for (int device = 0; device < devices(); device++)
    assert_int_equal(seed_of(default_generator(device)), 5);
}

TEST(clone_and_share) {
  weir_generator *generator = new_generator(), *clone = NULL, *sharing = NULL;
  weir_stream stream = default_stream(0);
  assert_ok(weir_generator_manual_seed(generator, 9));
  advance(generator, 4, stream);
  assert_ok(weir_generator_clone(generator, &clone));
  assert_ok(weir_generator_share(generator, &sharing));
  advance(generator, 4, stream);
  assert_int_equal(offset_of(clone), 4);
  assert_int_equal(offset_of(sharing), 8);
  assert_ok(weir_generator_manual_seed(sharing, 10));
  assert_int_equal(seed_of(generator), 10);
  assert_int_equal(seed_of(clone), 9);

  assert_ok(weir_generator_share_state_of(generator, clone));
  assert_int_equal(seed_of(generator), 9);
  assert_int_equal(seed_of(sharing), 10);
  advance(generator, 4, stream);
  assert_int_equal(offset_of(clone), 8);
  assert_ok(weir_generator_share_state_of(generator, generator));
  weir_generator_destroy(clone);
  assert_int_equal(offset_of(generator), 8);
  weir_generator_destroy(generator);
  weir_generator_destroy(sharing);
}

/* The default generator takes part in each capture. Its kernels read seed and offset from device memory. */
TEST(capture) {
  weir_stream stream = new_stream(0), replay_stream = default_stream(0);
  weir_generator *generator = default_generator(0);
  weir_graph *graph = new_graph();
  assert_ok(weir_generator_manual_seed(generator, 0x1234567890ull));
  advance(generator, 4, stream);
  begin(graph, stream);
  weir_philox_state first = advance(generator, 4, stream), second = advance(NULL, 5, stream);
  mark(stream, 1);
  end(graph);
  assert_int_equal(first.captured, 1);
  assert_int_equal(first.offset_intragraph, 0);
  assert_int_equal(second.offset_intragraph, 4);
  assert_int_equal(first.seed, second.seed);
  assert_int_equal(first.offset, second.offset);
  /* The capture itself does not advance the generator. */
  assert_int_equal(offset_of(generator), 4);

  for (uint64_t i = 0; i < 3; i++) {
    assert_ok(weir_graph_replay(graph));
    assert_int_equal(number_at(first.seed, replay_stream), 0x1234567890ull);
    assert_int_equal(number_at(first.offset, replay_stream), 4 + 12 * i);
    assert_int_equal(offset_of(generator), 4 + 12 * (i + 1));
  }
  /* A new seed, and an offset of more than 32 bits. */
  assert_ok(weir_generator_manual_seed(generator, 2));
  assert_ok(weir_generator_set_offset(generator, 0x300000004ull));
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(number_at(first.seed, replay_stream), 2);
  assert_int_equal(number_at(first.offset, replay_stream), 0x300000004ull);
  /* Another stream writes both. */
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_stream_wait_stream(stream, replay_stream));
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(number_at(first.offset, stream), 0x300000010ull);
  assert_ok(weir_stream_set_current(default_stream(-1)));
  assert_ok(weir_device_synchronize(0));
  weir_graph_destroy(graph);
  assert_ok(weir_memory_empty_cache());
}

/* PyTorch's test_memory_stats_of_multiple_generators_and_graphs. */
static void count_memory(int graph_count, int generator_count) {
  weir_graph *list[10];
  weir_generator *generators[20];
  int64_t bytes, more_bytes, blocks = active_blocks(&bytes);
  for (int i = 0; i < graph_count; i++)
    list[i] = new_graph();
  assert_ok(weir_generator_share(default_generator(0), &generators[0]));
  for (int i = 1; i < generator_count; i++)
    assert_ok(weir_generator_clone(default_generator(0), &generators[i]));
  for (int i = 0; i < graph_count; i++) {
    for (int g = 0; g < generator_count; g++)
      assert_ok(weir_graph_register_generator(list[i], generators[g]));
    weir_stream stream = new_stream(0);
    begin(list[i], stream);
    advance(NULL, 4, stream);
    mark(stream, 1);
    end(list[i]);
    assert_ok(weir_stream_wait_stream(default_stream(0), stream));
    assert_ok(weir_graph_replay(list[i]));
  }
  assert_int_equal(active_blocks(&more_bytes) - blocks, 2 * generator_count);
  assert_int_equal(more_bytes - bytes, 2 * 512 * generator_count);
  while (graph_count > 0)
    weir_graph_destroy(list[--graph_count]);
  assert_ok(weir_memory_empty_cache());
  assert_int_equal(active_blocks(&more_bytes), blocks);
  assert_int_equal(more_bytes, bytes);
  for (int g = 0; g < generator_count; g++)
    weir_generator_destroy(generators[g]);
}

TEST(memory_of_generators_and_graphs) {
  void *memory;
  assert_ok(weir_malloc(1, default_stream(0), &memory)); /* creates the allocator */
  assert_ok(weir_free(memory));
  count_memory(1, 1);
  count_memory(3, 2);
  count_memory(10, 20);
}

TEST(registered_generators) {
  weir_stream stream = new_stream(0);
  weir_generator *registered = new_generator(), *other = new_generator();
  weir_philox_state into;
  weir_graph *graph = new_graph();
  assert_ok(weir_graph_register_generator(graph, registered));
  assert_ok(weir_graph_register_generator(graph, registered));
  begin(graph, stream);
  weir_philox_state seen = advance(registered, 8, stream);
  assert_error_says(CAPTURE, "Attempt to increase offset for a CUDA generator not in capture mode.",
                    weir_generator_advance(other, 4, stream, &into));
  mark(stream, 1);
  end(graph);
  assert_int_not_equal(seen.seed, 0);
  assert_ok(weir_generator_set_offset(registered, 400));
  /* The graph keeps the state, even without a generator. */
  weir_generator *sharing;
  assert_ok(weir_generator_share(registered, &sharing));
  weir_generator_destroy(registered);
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(number_at(seen.offset, default_stream(0)), 400);
  assert_int_equal(offset_of(sharing), 408);
  weir_generator_destroy(sharing);
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(number_at(seen.offset, default_stream(0)), 408);
  assert_ok(weir_device_synchronize(0));
  /* After a reset the graph captures again, with the same registrations. */
  assert_ok(weir_graph_reset(graph));
  begin(graph, stream);
  advance(NULL, 4, stream);
  mark(stream, 1);
  end(graph);
  weir_graph_destroy(graph);
  weir_generator_destroy(other);
  assert_ok(weir_memory_empty_cache());
}

TEST(calls_in_a_capture) {
  weir_stream stream = new_stream(0), other_stream = new_stream(0);
  weir_generator *generator = default_generator(0), *made = NULL;
  weir_philox_state into;
  unsigned char bytes[16];
  uint64_t number;
  assert_ok(weir_generator_manual_seed(generator, 8));
  weir_graph *graph = new_graph();
  begin(graph, stream);
  assert_error_says(CAPTURE, "Cannot construct a new CUDAGeneratorImpl during CUDA graph capture.",
                    weir_generator_create(0, &made));
  assert_error_says(CAPTURE, "Cannot call CUDAGeneratorImpl::clone_impl", weir_generator_clone(generator, &made));
  assert_error_says(CAPTURE, "Cannot call CUDAGeneratorImpl::seed", weir_generator_seed(generator, NULL));
  assert_error_says(CAPTURE, "Cannot call CUDAGeneratorImpl::get_offset",
                    weir_generator_get_offset(generator, &number));
  assert_error_says(CAPTURE, "Cannot call CUDAGeneratorImpl::set_offset", weir_generator_set_offset(generator, 4));
  assert_error_says(CAPTURE, "Cannot register the state during capturing stage.",
                    weir_graph_register_generator(graph, generator));
  assert_ok(weir_generator_manual_seed(generator, 8));
  assert_error_says(CAPTURE, "only if new seed is the same as the original seed.",
                    weir_generator_manual_seed(generator, 9));
  assert_error_says(CAPTURE, "Offset increment outside graph capture encountered unexpectedly.",
                    weir_generator_advance(generator, 4, other_stream, &into));
  /* The state has the offset in the capture. */
  advance(generator, 12, stream);
  assert_ok(weir_generator_get_state(generator, bytes));
  memcpy(&number, bytes + 8, 8);
  assert_int_equal(number, 12);
  assert_ok(weir_generator_set_state(generator, (uint64_t[]){8, 24}, 16));
  assert_int_equal(advance(generator, 4, stream).offset_intragraph, 24);
  mark(stream, 1);
  end(graph);
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(offset_of(generator), 28);
  assert_ok(weir_device_synchronize(0));
  weir_graph_destroy(graph);
  assert_ok(weir_memory_empty_cache());
}

TEST(abandoned_capture) {
  weir_stream stream = new_stream(0);
  weir_generator *generator = default_generator(0);
  weir_graph *graph = new_graph();
  assert_ok(weir_generator_manual_seed(generator, 1));
  begin(graph, stream);
  advance(generator, 4, stream);
  assert_ok(weir_graph_reset(graph));
  /* The generator is usable outside of captures again. */
  assert_int_equal(advance(generator, 4, stream).captured, 0);
  assert_int_equal(offset_of(generator), 4);
  assert_ok(weir_stream_set_current(default_stream(-1)));
  weir_graph_destroy(graph);
  assert_ok(weir_memory_empty_cache());
}

/* A graph that uses no numbers does not advance the generator. */
TEST(graph_without_numbers) {
  weir_stream stream = new_stream(0);
  weir_generator *generator = default_generator(0);
  weir_graph *graph = new_graph();
  assert_ok(weir_generator_manual_seed(generator, 1));
  begin(graph, stream);
  mark(stream, 1);
  end(graph);
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(offset_of(generator), 0);
  assert_ok(weir_device_synchronize(0));
  weir_graph_destroy(graph);
  assert_ok(weir_memory_empty_cache());
}

enum { THREADS = 4, ROUNDS = 500 };

static void *advance_often(void *data) {
  weir_generator *generator = data;
  weir_stream stream;
  weir_philox_state into;
  if (weir_stream_default(0, &stream))
    return data;
  for (int i = 0; i < ROUNDS; i++)
    if (weir_generator_advance(generator, 4, stream, &into))
      return data;
  return NULL;
}

TEST(threads) {
  weir_generator *generator = new_generator();
  pthread_t threads[THREADS];
  void *failed;
  assert_ok(weir_init());
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, advance_often, generator), 0);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], &failed), 0);
    assert_null(failed);
  }
  assert_int_equal(offset_of(generator), 4ull * THREADS * ROUNDS);
  weir_generator_destroy(generator);
}

static void use_in_child(void *data) {
  weir_generator *generator = data;
  uint64_t number;
  child_assert(weir_generator_get_offset(generator, &number) == WEIR_ERROR_BAD_FORK);
  child_assert(weir_generator_manual_seed(generator, 1) == WEIR_ERROR_BAD_FORK);
  child_assert(weir_generator_default(0, &generator) == WEIR_ERROR_BAD_FORK);
  child_assert(weir_random_manual_seed(1) == WEIR_ERROR_BAD_FORK);
  weir_generator_destroy(data);
}

TEST(fork) {
  weir_generator *generator = new_generator();
  assert_ok(weir_init());
  assert_ok(weir_device_synchronize(0));
  in_process(use_in_child, generator);
  weir_generator_destroy(generator);
}

TEST(geometry) {
  weir_generator *generator = new_generator();
  assert_ok(weir_generator_set_geometry(generator, 132, 2048));
  assert_ok(weir_generator_set_geometry(generator, 0, 0));
  assert_error(INVALID_ARGUMENT, weir_generator_set_geometry(generator, -1, 2048));
  weir_generator_destroy(generator);
}
