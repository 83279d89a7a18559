/*
 * Generators, their states, and the part that states take in captured graphs.
 *
 * A generator points to a state, which other generators may share. Graphs register states, not generators: each graph
 * has a list of states with the numbers that its capture used of each. One lock guards all of it; no memory is
 * allocated and no code of the program runs under it.
 */
#include "src/generator.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "src/compute.h"
#include "src/hash_map.h"
#include "src/memory.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/memory.h"
#include "weir/runtime.h"

/* Threads advance together, and a call of the generator gives each of them four numbers. */
enum { NUMBERS_PER_CALL = 4 };

typedef struct generator_state {
  size_t references; /* of generators and graphs */
  int device;
  uint64_t seed, offset;
  uint64_t offset_intragraph; /* numbers used by the captures under way */
  int captures;               /* under way with this state */
  size_t graphs;              /* that have registered it */

  /* Device memory for one 64-bit number each while a graph has registered it. */
  weir__device_memory seed_memory, offset_memory;
  weir_stream memory_stream; /* for which it was allocated */
  weir_stream noted_stream;  /* the last other stream that was reported to the allocator */
  bool is_written;           /* the next three are valid */
  weir_stream written_on;    /* the stream of the last write */
  uint64_t written_seed, written_offset;
} generator_state;

struct weir_generator {
  generator_state *state;
  int device;
  int multiprocessors, threads_per_multiprocessor; /* 0 for the device's */
  bool is_default;
};

typedef struct registration {
  generator_state *state;
  uint64_t increment; /* numbers that one replay uses */
  bool takes_part;    /* in the capture under way: it was registered before */
} registration;

typedef struct graph_states {
  uint64_t graph; /* the address of the weir_graph; first, as hash_map.h requires */
  registration *items;
  size_t count, room;
} graph_states;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below, and all generators and states */
static weir_generator *defaults[WEIR_MAX_DEVICES];
static weir__hash_map graphs; /* of graph_states */
static bool has_hooks;

/* ---- Errors ---- */

/* Fails if the current stream is capturing. Also the check for a fork: it comes before the lock is acquired. */
static weir_status check_not_capturing(const char *caller, const char *attempt) {
  int capturing;
  weir_status status = weir_current_stream_is_capturing(&capturing);
  if (!status && capturing)
    return weir__fail(WEIR_ERROR_CAPTURE, "%s: %s during CUDA graph capture.", caller, attempt);
  return status;
}

static weir_status no_host_memory(const char *caller) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the generator", caller);
}

static weir_status check_offset(const char *caller, uint64_t offset) {
  if (offset % NUMBERS_PER_CALL == 0)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: offset must be a multiple of 4", caller);
}

/* ---- Hooks of graphs ---- */

static weir_status on_begin(void *context, weir_graph *graph, weir_stream stream);
static void on_end(void *context, weir_graph *graph, int captured);
static weir_status on_replay(void *context, weir_graph *graph, weir_stream stream);
static void on_destroy(void *context, weir_graph *graph);

/* The lock is held. */
static weir_status install_hooks(void) {
  if (has_hooks)
    return WEIR_OK;
  weir_graph_hooks hooks;
  weir_graph_hooks_init(&hooks);
  hooks.begin = on_begin;
  hooks.end = on_end;
  hooks.replay = on_replay;
  hooks.destroy = on_destroy;
  weir_status status = weir_graph_set_hooks(&hooks);
  has_hooks = !status;
  return status;
}

/* ---- Creating and destroying ---- */

/* The lock is held. `state` NULL makes a new one. */
static weir_status make_generator(const char *caller, int device, generator_state *state, weir_generator **generator) {
  weir_status status = install_hooks();
  if (status)
    return status;
  weir_generator *made = calloc(1, sizeof *made);
  generator_state *fresh = state ? NULL : calloc(1, sizeof *fresh);
  if (!made || (!state && !fresh)) {
    free(made);
    free(fresh);
    return no_host_memory(caller);
  }
  if (fresh) {
    *fresh = (generator_state){.device = device, .seed = WEIR_GENERATOR_DEFAULT_SEED};
    state = fresh;
  }
  state->references++;
  *made = (weir_generator){.state = state, .device = device};
  *generator = made;
  return WEIR_OK;
}

/* The lock is held. */
static void drop_state(generator_state *state) {
  if (--state->references == 0)
    free(state); /* no graph has registered it, so it has no device memory */
}

static weir_status resolve_device(const char *caller, int device, int *resolved) {
  int count;
  weir_status status = device == -1 ? weir_device_get_current(resolved) : weir_device_count(&count);
  if (status || device == -1)
    return status;
  if (device < 0 || device >= count || device >= WEIR_MAX_DEVICES)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: The device_index is invalid. (%d; there %s %d device%s)", caller,
                      device, count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
  *resolved = device;
  return WEIR_OK;
}

weir_status weir_generator_create(int device, weir_generator **generator) {
  WEIR__CHECK_ARGUMENT(generator);
  int resolved;
  weir_status status = check_not_capturing(__func__, "Cannot construct a new CUDAGeneratorImpl");
  if (!status)
    status = resolve_device(__func__, device, &resolved);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  status = make_generator(__func__, resolved, NULL, generator);
  pthread_mutex_unlock(&lock);
  return status;
}

void weir_generator_destroy(weir_generator *generator) {
  if (!generator || generator->is_default || weir_is_in_bad_fork())
    return;
  pthread_mutex_lock(&lock);
  drop_state(generator->state);
  pthread_mutex_unlock(&lock);
  free(generator);
}

/* 53 bits, which a double represents exactly. Sets 0 if it fails. */
static weir_status random_seed(const char *caller, uint64_t *seed) {
  uint64_t bits = 0;
  bool has_bits = getrandom(&bits, sizeof bits, 0) == sizeof bits;
  *seed = has_bits ? bits >> 11 : 0;
  return has_bits ? WEIR_OK : weir__fail(WEIR_ERROR_SYSTEM, "%s: the operating system has no random numbers", caller);
}

weir_status weir_generator_default(int device, weir_generator **generator) {
  WEIR__CHECK_ARGUMENT(generator);
  int resolved = 0;
  uint64_t seed = 0;
  weir_status status = resolve_device(__func__, device, &resolved);
  if (!status && weir_is_in_bad_fork())
    status = weir_device_get_current(&resolved); /* fails with the text about the fork */
  if (!status)
    status = random_seed(__func__, &seed);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  if (!defaults[resolved]) {
    weir_generator *made = NULL;
    status = make_generator(__func__, resolved, NULL, &made);
    if (made) {
      made->is_default = true;
      made->state->seed = seed;
      defaults[resolved] = made;
    }
  }
  if (!status)
    *generator = defaults[resolved];
  pthread_mutex_unlock(&lock);
  return status;
}

weir_status weir_generator_device(const weir_generator *generator, int *device) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(device);
  *device = generator->device;
  return WEIR_OK;
}

weir_status weir_generator_clone(const weir_generator *generator, weir_generator **clone) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(clone);
  weir_generator *made;
  weir_status status = check_not_capturing(__func__, "Cannot call CUDAGeneratorImpl::clone_impl");
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  status = make_generator(__func__, generator->device, NULL, &made);
  if (!status) {
    made->state->seed = generator->state->seed;
    made->state->offset = generator->state->offset;
    made->multiprocessors = generator->multiprocessors;
    made->threads_per_multiprocessor = generator->threads_per_multiprocessor;
    *clone = made;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

weir_status weir_generator_share(const weir_generator *generator, weir_generator **sharing) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(sharing);
  int capturing;
  weir_generator *made;
  weir_status status = weir_current_stream_is_capturing(&capturing); /* the check for a fork */
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  status = make_generator(__func__, generator->device, generator->state, &made);
  if (!status) {
    made->multiprocessors = generator->multiprocessors;
    made->threads_per_multiprocessor = generator->threads_per_multiprocessor;
    *sharing = made;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

weir_status weir_generator_share_state_of(weir_generator *generator, const weir_generator *other) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(other);
  if (generator->device != other->device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the generator is of device %d, the other one of device %d",
                      __func__, generator->device, other->device);
  int capturing;
  weir_status status = weir_current_stream_is_capturing(&capturing);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  other->state->references++;
  drop_state(generator->state);
  generator->state = other->state;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

/* ---- Seed, offset, state ---- */

/* The lock is held. */
static weir_status set_seed(const char *caller, generator_state *state, uint64_t seed, bool capturing) {
  if (!capturing) {
    state->seed = seed;
    state->offset = 0;
  } else if (state->seed != seed) {
    return weir__fail(WEIR_ERROR_CAPTURE,
                      "%s: CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is "
                      "the same as the original seed.",
                      caller);
  }
  return WEIR_OK;
}

weir_status weir_generator_manual_seed(weir_generator *generator, uint64_t seed) {
  WEIR__CHECK_ARGUMENT(generator);
  int capturing;
  weir_status status = weir_current_stream_is_capturing(&capturing);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  status = set_seed(__func__, generator->state, seed, capturing);
  pthread_mutex_unlock(&lock);
  return status;
}

weir_status weir_generator_seed(weir_generator *generator, uint64_t *seed) {
  WEIR__CHECK_ARGUMENT(generator);
  uint64_t made;
  weir_status status = check_not_capturing(__func__, "Cannot call CUDAGeneratorImpl::seed");
  if (!status)
    status = random_seed(__func__, &made);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  status = set_seed(__func__, generator->state, made, false);
  pthread_mutex_unlock(&lock);
  if (!status && seed)
    *seed = made;
  return status;
}

weir_status weir_generator_initial_seed(const weir_generator *generator, uint64_t *seed) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(seed);
  int capturing;
  weir_status status = weir_current_stream_is_capturing(&capturing);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  *seed = generator->state->seed;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

weir_status weir_generator_get_offset(const weir_generator *generator, uint64_t *offset) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(offset);
  weir_status status = check_not_capturing(__func__, "Cannot call CUDAGeneratorImpl::get_offset");
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  *offset = generator->state->offset;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

weir_status weir_generator_set_offset(weir_generator *generator, uint64_t offset) {
  WEIR__CHECK_ARGUMENT(generator);
  weir_status status = check_not_capturing(__func__, "Cannot call CUDAGeneratorImpl::set_offset");
  if (!status)
    status = check_offset(__func__, offset);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  generator->state->offset = offset;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

weir_status weir_generator_get_state(const weir_generator *generator, unsigned char state[WEIR_GENERATOR_STATE_BYTES]) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(state);
  int capturing;
  weir_status status = weir_current_stream_is_capturing(&capturing);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  const generator_state *from = generator->state;
  memcpy(state, &from->seed, 8);
  memcpy(state + 8, capturing ? &from->offset_intragraph : &from->offset, 8);
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

weir_status weir_generator_set_state(weir_generator *generator, const void *state, size_t bytes) {
  WEIR__CHECK_ARGUMENT(generator);
  WEIR__CHECK_ARGUMENT(state);
  uint64_t seed, offset = 0;
  if (bytes != sizeof seed && bytes != WEIR_GENERATOR_STATE_BYTES)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: RNG state is wrong size (%zu bytes; expected 16, or 8 for a seed)", __func__, bytes);
  memcpy(&seed, state, sizeof seed);
  if (bytes == WEIR_GENERATOR_STATE_BYTES)
    memcpy(&offset, (const char *)state + sizeof seed, sizeof offset);
  int capturing;
  weir_status status = weir_current_stream_is_capturing(&capturing);
  if (!status)
    status = check_offset(__func__, offset);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  status = set_seed(__func__, generator->state, seed, capturing);
  if (!status)
    *(capturing ? &generator->state->offset_intragraph : &generator->state->offset) = offset;
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- Advancing ---- */

/* The lock is held. */
static weir_status advance(const char *caller, generator_state *state, uint64_t increment, bool capturing) {
  if (capturing && state->captures == 0)
    return weir__fail(WEIR_ERROR_CAPTURE,
                      "%s: Attempt to increase offset for a CUDA generator not in capture mode. Register the generator "
                      "with the graph before its capture.",
                      caller);
  if (!capturing && state->captures > 0)
    return weir__fail(WEIR_ERROR_CAPTURE, "%s: Offset increment outside graph capture encountered unexpectedly.",
                      caller);
  uint64_t *offset = capturing ? &state->offset_intragraph : &state->offset;
  *offset += weir__round_up(increment, NUMBERS_PER_CALL);
  return WEIR_OK;
}

weir_status weir_generator_advance(weir_generator *generator, uint64_t increment, weir_stream stream,
                                   weir_philox_state *into) {
  WEIR__CHECK_ARGUMENT(into);
  int capturing;
  weir_status status = weir__generator_resolve(__func__, stream, &generator);
  if (!status)
    status = weir_stream_is_capturing(stream, &capturing);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  generator_state *state = generator->state;
  weir_philox_state before = {.seed = state->seed, .offset = state->offset};
  if (capturing)
    before = (weir_philox_state){.seed = (uintptr_t)state->seed_memory.pointer,
                                 .offset = (uintptr_t)state->offset_memory.pointer,
                                 .offset_intragraph = state->offset_intragraph,
                                 .captured = 1};
  status = advance(__func__, state, increment, capturing);
  pthread_mutex_unlock(&lock);
  if (!status)
    *into = before;
  return status;
}

weir_status weir__generator_resolve(const char *caller, weir_stream stream, weir_generator **generator) {
  if (!*generator)
    return weir_generator_default(stream.device, generator);
  if ((*generator)->device != stream.device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected a 'cuda:%d' generator device but found 'cuda:%d'",
                      caller, stream.device, (*generator)->device);
  return WEIR_OK;
}

weir_status weir_generator_set_geometry(weir_generator *generator, int multiprocessors,
                                        int threads_per_multiprocessor) {
  WEIR__CHECK_ARGUMENT(generator);
  if (multiprocessors < 0 || threads_per_multiprocessor < 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the numbers are %d and %d; they must not be negative", __func__,
                      multiprocessors, threads_per_multiprocessor);
  pthread_mutex_lock(&lock);
  generator->multiprocessors = multiprocessors;
  generator->threads_per_multiprocessor = threads_per_multiprocessor;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

/* The driver is asked each time: the calls are cheap, and a restarted runtime may have other devices. */
weir_status weir__generator_geometry(const char *caller, const weir_generator *generator, weir__geometry *geometry) {
  weir_driver *driver;
  weir_cu_device device;
  pthread_mutex_lock(&lock);
  weir__geometry found = {generator->multiprocessors, generator->threads_per_multiprocessor};
  pthread_mutex_unlock(&lock);
  weir_status status = WEIR_OK;
  if (!found.multiprocessors || !found.threads_per_multiprocessor) {
    status = weir_get_driver(&driver);
    if (status)
      return status;
    status = WEIR__CALL_FOR(caller, driver, DeviceGet(driver, &device, generator->device));
    if (!status && !found.multiprocessors)
      status =
          WEIR__CALL_FOR(caller, driver,
                         DeviceGetAttribute(driver, &found.multiprocessors, WEIR_CU_ATTR_MULTIPROCESSOR_COUNT, device));
    if (!status && !found.threads_per_multiprocessor)
      status = WEIR__CALL_FOR(caller, driver,
                              DeviceGetAttribute(driver, &found.threads_per_multiprocessor,
                                                 WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR, device));
    if (status)
      return status;
  }
  *geometry = found;
  return WEIR_OK;
}

/* ---- Graphs ---- */

/* The lock is held. Writes both numbers to device memory in the order of the stream. What the stream itself wrote last
 * is not written again, so a replay usually costs one write. */
static weir_status write_memory(generator_state *state, weir_stream stream, uint64_t seed, uint64_t offset) {
  const uint64_t values[] = {seed, offset}, written[] = {state->written_seed, state->written_offset};
  const weir__device_memory *memory[] = {&state->seed_memory, &state->offset_memory};
  bool is_known = state->is_written && weir_stream_equal(state->written_on, stream);
  weir_status status = WEIR_OK;
  /* The stream may still read the memory when the last graph is destroyed. */
  if (!weir_stream_equal(stream, state->memory_stream) && !weir_stream_equal(stream, state->noted_stream)) {
    for (int i = 0; i < 2 && !status; i++)
      status = weir__compute_record_stream(memory[i], stream);
    if (!status)
      state->noted_stream = stream;
  }
  state->is_written = false;
  for (int i = 0; i < 2 && !status; i++) {
    uint32_t words[] = {(uint32_t)values[i], (uint32_t)(values[i] >> 32)};
    uint32_t *to = memory[i]->pointer;
    if (is_known && written[i] == values[i])
      continue;
    if (words[0] == words[1]) {
      status = weir_fill32_async(to, words[0], 2, stream);
      continue;
    }
    status = weir_fill32_async(to, words[0], 1, stream);
    if (!status && !(is_known && written[i] >> 32 == words[1]))
      status = weir_fill32_async(to + 1, words[1], 1, stream);
  }
  if (!status) {
    state->is_written = true;
    state->written_on = stream;
    state->written_seed = seed;
    state->written_offset = offset;
  }
  return status;
}

static graph_states *states_of(const weir_graph *graph) {
  return weir__hash_map_find(&graphs, sizeof(graph_states), (uintptr_t)graph);
}

/* The lock is held. Adds the state to the graph's list, unless it is there. `memory` is taken if the state has none. */
static weir_status add_registration(const char *caller, const weir_graph *graph, generator_state *state,
                                    weir__device_memory memory[2], weir_stream stream) {
  graph_states *of = weir__hash_map_put(&graphs, sizeof *of, (uintptr_t)graph);
  if (!of)
    return no_host_memory(caller);
  for (size_t i = 0; i < of->count; i++) {
    if (of->items[i].state == state) {
      of->items[i].increment = 0;
      return WEIR_OK;
    }
  }
  if (!WEIR__RESERVE(of->items, of->room, of->count + 1))
    return no_host_memory(caller);
  of->items[of->count++] = (registration){.state = state};
  state->references++;
  state->graphs++;
  if (!state->seed_memory.pointer) {
    state->seed_memory = memory[0];
    state->offset_memory = memory[1];
    state->memory_stream = state->noted_stream = stream;
    state->is_written = false;
    memory[0] = memory[1] = (weir__device_memory){0};
  }
  return WEIR_OK;
}

static weir_status register_state(const char *caller, weir_graph *graph, weir_generator *generator) {
  weir__device_memory memory[2] = {{0}, {0}};
  weir_stream stream;
  weir_status status = weir_stream_get_current(generator->device, &stream);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  bool has_memory = generator->state->seed_memory.pointer;
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < 2 && !has_memory && !status; i++)
    status = weir__compute_alloc(sizeof(uint64_t), stream, &memory[i]);
  while (!status) {
    pthread_mutex_lock(&lock);
    /* The last graph that had registered it may have been destroyed meanwhile. */
    bool needs_memory = !generator->state->seed_memory.pointer && !memory[1].pointer;
    if (!needs_memory)
      status = add_registration(caller, graph, generator->state, memory, stream);
    pthread_mutex_unlock(&lock);
    if (!needs_memory)
      break;
    for (int i = 0; i < 2 && !status; i++)
      status = weir__compute_alloc(sizeof(uint64_t), stream, &memory[i]);
  }
  weir__compute_free(&memory[0]);
  weir__compute_free(&memory[1]);
  return status;
}

weir_status weir_graph_register_generator(weir_graph *graph, weir_generator *generator) {
  WEIR__CHECK_ARGUMENT(graph);
  WEIR__CHECK_ARGUMENT(generator);
  weir_status status = check_not_capturing(__func__, "Cannot register the state during capturing stage.");
  return status ? status : register_state(__func__, graph, generator);
}

/* The stream for work on the memory of a state: the given one, or the current stream of the state's device. */
static weir_status stream_for(const generator_state *state, weir_stream stream, weir_stream *into) {
  if (state->device != stream.device)
    return weir_stream_get_current(state->device, into);
  *into = stream;
  return WEIR_OK;
}

/* The kernels of the capture read nothing before the first replay, which writes the memory. */
static weir_status on_begin(void *context, weir_graph *graph, weir_stream stream) {
  (void)context;
  weir_generator *generator;
  weir_status status = weir_generator_default(stream.device, &generator);
  if (!status)
    status = register_state("weir_graph_begin_capture", graph, generator);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  graph_states *of = states_of(graph);
  for (size_t i = 0; i < of->count; i++) {
    /* Captures that overlap share one count, so that each uses numbers of its own. */
    if (of->items[i].state->captures++ == 0)
      of->items[i].state->offset_intragraph = 0;
    of->items[i].increment = 0;
    of->items[i].takes_part = true;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static void on_end(void *context, weir_graph *graph, int captured) {
  (void)context;
  pthread_mutex_lock(&lock);
  graph_states *of = states_of(graph);
  for (size_t i = 0; of && i < of->count; i++) {
    registration *item = &of->items[i];
    if (!item->takes_part)
      continue;
    item->takes_part = false;
    item->state->captures--;
    item->increment = captured ? item->state->offset_intragraph : 0;
  }
  pthread_mutex_unlock(&lock);
}

static weir_status on_replay(void *context, weir_graph *graph, weir_stream stream) {
  (void)context;
  static const char caller[] = "weir_graph_replay";
  weir_status status = WEIR_OK;
  int capturing = 0;
  pthread_mutex_lock(&lock);
  graph_states *of = states_of(graph);
  bool uses_numbers = false;
  for (size_t i = 0; of && i < of->count; i++)
    uses_numbers = uses_numbers || of->items[i].increment;
  if (uses_numbers)
    status = weir_stream_is_capturing(stream, &capturing);
  if (!status && capturing)
    status = weir__fail(WEIR_ERROR_CAPTURE, "%s: Cannot prepare for replay during capturing stage.", caller);
  for (size_t i = 0; uses_numbers && i < of->count && !status; i++) {
    generator_state *state = of->items[i].state;
    uint64_t offset = state->offset;
    weir_stream on = stream;
    if (!of->items[i].increment)
      continue;
    status = advance(caller, state, of->items[i].increment, false);
    if (!status)
      status = stream_for(state, stream, &on);
    if (!status)
      status = write_memory(state, on, state->seed, offset);
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static void on_destroy(void *context, weir_graph *graph) {
  (void)context;
  if (weir_is_in_bad_fork())
    return;
  pthread_mutex_lock(&lock);
  graph_states *of = states_of(graph);
  registration *items = of ? of->items : NULL;
  size_t count = of ? of->count : 0;
  if (of)
    weir__hash_map_remove(&graphs, sizeof *of, of);
  pthread_mutex_unlock(&lock);

  for (size_t i = 0; i < count; i++) {
    generator_state *state = items[i].state;
    weir__device_memory memory[2] = {{0}, {0}};
    pthread_mutex_lock(&lock);
    if (--state->graphs == 0) {
      memory[0] = state->seed_memory;
      memory[1] = state->offset_memory;
      state->seed_memory = state->offset_memory = (weir__device_memory){0};
    }
    drop_state(state);
    pthread_mutex_unlock(&lock);
    weir__compute_free(&memory[0]);
    weir__compute_free(&memory[1]);
  }
  free(items);
}

/* ---- The default generators together ---- */

/* Seeds that wait for the start; guarded by the lock. `order` says which came last. */
static struct {
  bool is_set;
  uint64_t seed;
  unsigned order;
} pending[2]; /* of the current device, of all devices */
static unsigned pending_order;
static bool is_queued;

static weir_status seed_devices(uint64_t seed, bool all) {
  int first, count;
  weir_status status = all ? weir_device_count(&count) : weir_device_get_current(&first);
  if (status)
    return status;
  if (all)
    first = 0;
  else
    count = first + 1;
  for (int device = first; device < count && !status; device++) {
    weir_generator *generator;
    status = weir_generator_default(device, &generator);
    if (!status)
      status = weir_generator_manual_seed(generator, seed);
  }
  return status;
}

static weir_status apply_pending(void *context) {
  (void)context;
  pthread_mutex_lock(&lock);
  is_queued = false;
  int first = pending[0].is_set && (!pending[1].is_set || pending[0].order < pending[1].order) ? 0 : 1;
  bool is_set[] = {pending[0].is_set, pending[1].is_set};
  uint64_t seeds[] = {pending[0].seed, pending[1].seed};
  pending[0].is_set = pending[1].is_set = false;
  pthread_mutex_unlock(&lock);
  weir_status status = WEIR_OK;
  for (int i = 0; i < 2 && !status; i++) {
    int kind = i == 0 ? first : 1 - first;
    if (is_set[kind])
      status = seed_devices(seeds[kind], kind == 1);
  }
  return status;
}

static weir_status seed_now_or_later(uint64_t seed, bool all) {
  if (weir_is_initialized() || weir_is_in_bad_fork())
    return seed_devices(seed, all);
  pthread_mutex_lock(&lock);
  pending[all].is_set = true;
  pending[all].seed = seed;
  pending[all].order = ++pending_order;
  bool queue = !is_queued;
  is_queued = true;
  pthread_mutex_unlock(&lock);
  return queue ? WEIR_LAZY_CALL(apply_pending, NULL) : WEIR_OK;
}

weir_status weir_random_manual_seed(uint64_t seed) { return seed_now_or_later(seed, false); }

weir_status weir_random_manual_seed_all(uint64_t seed) { return seed_now_or_later(seed, true); }

weir_status weir_random_seed(void) {
  weir_generator *generator;
  weir_status status = weir_generator_default(-1, &generator);
  return status ? status : weir_generator_seed(generator, NULL);
}

weir_status weir_random_seed_all(void) {
  uint64_t seed;
  weir_status status = random_seed(__func__, &seed);
  if (!status)
    status = weir_init();
  return status ? status : seed_devices(seed, true);
}
