/*
 * Random numbers: generators with PyTorch's state, and fills of device memory with PyTorch's numbers. Part of
 * libweir_compute.
 *
 * A generator is a seed and an offset of the counter-based generator Philox4x32-10. Each fill reads the numbers at the
 * offset and advances it, so the numbers follow from the seed and the order of the calls. Elements are assigned to
 * threads as PyTorch does: with the same seed, offset and device geometry the results are PyTorch's, on a GPU and on
 * the software device (compute/docs/random.md says how exactly).
 *
 *     weir_generator *generator;
 *     weir_generator_default(-1, &generator);
 *     weir_generator_manual_seed(generator, 2);
 *     weir_random_uniform(generator, pointer, count, WEIR_FLOAT32, 0, 1, stream);
 *
 * All calls may be made from any thread. A forked child cannot use them: WEIR_ERROR_BAD_FORK.
 */
#ifndef WEIR_RANDOM_H
#define WEIR_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "weir/compute/dtype.h"
#include "weir/graph.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Generators ---- */

typedef struct weir_generator weir_generator;

enum { WEIR_GENERATOR_STATE_BYTES = 16 };

/* The seed of a new generator. */
#define WEIR_GENERATOR_DEFAULT_SEED 67280421310721ull

/* A generator of a device, with the default seed and offset 0; device -1 is the current one. */
weir_status weir_generator_create(int device, weir_generator **generator);

/* NULL is allowed, and default generators are ignored. */
void weir_generator_destroy(weir_generator *generator);

/* The default generator of a device; -1 is the current one. It lives as long as the process. The first use gives it a
 * random seed. */
weir_status weir_generator_default(int device, weir_generator **generator);

/* The device of the generator. */
weir_status weir_generator_device(const weir_generator *generator, int *device);

/* Sets the seed, and the offset to 0. During a capture of the current stream only the same seed is allowed, and the
 * call does nothing. */
weir_status weir_generator_manual_seed(weir_generator *generator, uint64_t seed);

/* Sets a random seed of 53 bits from the operating system; seed may be NULL. */
weir_status weir_generator_seed(weir_generator *generator, uint64_t *seed);
weir_status weir_generator_initial_seed(const weir_generator *generator, uint64_t *seed);

/* The offset counts 32-bit numbers per thread, and is a multiple of 4. */
weir_status weir_generator_get_offset(const weir_generator *generator, uint64_t *offset);
weir_status weir_generator_set_offset(weir_generator *generator, uint64_t offset);

/* PyTorch's state: the seed and the offset, 8 bytes each in the order of the machine. 8 bytes set the seed alone. */
weir_status weir_generator_get_state(const weir_generator *generator, unsigned char state[WEIR_GENERATOR_STATE_BYTES]);
weir_status weir_generator_set_state(weir_generator *generator, const void *state, size_t bytes);

/* A new generator with a copy of the state (clone_state), or one that shares it (graphsafe_get_state): then each sees
 * what the other does. */
weir_status weir_generator_clone(const weir_generator *generator, weir_generator **clone);
weir_status weir_generator_share(const weir_generator *generator, weir_generator **sharing);

/* From now on the generator shares the state of another one of the same device (graphsafe_set_state). Unlike
 * weir_generator_set_state it is of use with graphs, which register states. */
weir_status weir_generator_share_state_of(weir_generator *generator, const weir_generator *other);

/* The multiprocessors and threads per multiprocessor by which fills assign elements to threads; 0 is the device's. A
 * software device with 132 and 2048 makes the numbers of an H200. */
weir_status weir_generator_set_geometry(weir_generator *generator, int multiprocessors, int threads_per_multiprocessor);

/* ---- The default generators, as torch.cuda.random ----
 *
 * Seeding before the start of the runtime is deferred until then. Of several calls for the current device, and of
 * several for all devices, the last one counts. */

/* Sets the seed of the current device, or of all devices. */
weir_status weir_random_manual_seed(uint64_t seed);
weir_status weir_random_manual_seed_all(uint64_t seed);

/* Random seeds; _all gives all devices the same one. These start the runtime. */
weir_status weir_random_seed(void);
weir_status weir_random_seed_all(void);

/* ---- Graphs ----
 *
 * A captured graph does not contain the seed and the offset: its kernels read them from device memory, two allocations
 * per state, which each replay updates. So a replay makes new numbers, and advances the generator by what the capture
 * used. The default generator of the captured device takes part in each capture; others are registered with the graph
 * before its capture, and until the graph is destroyed.
 *
 * Graphs that share a generator must not be replayed on several streams at once without synchronization. The memory is
 * freed with the last graph, so weir_shutdown needs the graphs to be destroyed first. */

/* Registers a generator with a graph, before its capture. */
weir_status weir_graph_register_generator(weir_graph *graph, weir_generator *generator);

/* ---- For kernels of the program ---- */

/* The position from which a kernel reads. In a captured graph, `seed` and `offset` are addresses of 64-bit numbers in
 * device memory, and the kernel adds offset_intragraph to the offset that it finds there. */
typedef struct weir_philox_state {
  uint64_t seed;
  uint64_t offset;
  uint64_t offset_intragraph;
  int captured;
} weir_philox_state;

/* Reserves `increment` numbers per thread, rounded up to a multiple of 4, for a kernel on the stream. */
weir_status weir_generator_advance(weir_generator *generator, uint64_t increment, weir_stream stream,
                                   weir_philox_state *state);

/* ---- Fills ----
 *
 * Each fills `count` elements of device memory in the stream's order, and can be captured. generator NULL is the
 * default generator of the stream's device. count 0 does nothing. */

/* Raw bits. Types of 64 bits take two 32-bit numbers each, smaller types the low bits of one. The types are integers
 * and bool, which takes the lowest bit. */
weir_status weir_random_bits(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                             weir_stream stream);

/* Integers as torch.Tensor.random_() draws them: [0, the largest of the type], or [0, 2^digits] for floats. */
weir_status weir_random_integers(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                 weir_stream stream);

/* Integers in [low, high), as random_(low, high). For floats the bounds are first moved to values of the type. */
weir_status weir_random_randint(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype, int64_t low,
                                int64_t high, weir_stream stream);

/* Floats in [low, high), as uniform_(low, high). */
weir_status weir_random_uniform(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype, double low,
                                double high, weir_stream stream);

/* Floats with a normal distribution, as normal_(mean, deviation). */
weir_status weir_random_normal(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype, double mean,
                               double deviation, weir_stream stream);

/* 1 with the given probability, otherwise 0, as bernoulli_(probability). */
weir_status weir_random_bernoulli(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                  double probability, weir_stream stream);

/* Replaces rates, floats from 0 on, by numbers of their Poisson distributions, as torch.poisson. Another rate breaks
 * the device, as a failed assertion in a kernel does. The generator advances by 96 numbers for each element of a
 * thread. */
weir_status weir_random_poisson(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                weir_stream stream);

/* A permutation of 0 to count - 1, as torch.randperm. Types are the integers except bool, and floats that can represent
 * all of the numbers. Needs temporary device memory of about 24 bytes per element. */
weir_status weir_random_permutation(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                    weir_stream stream);

#ifdef __cplusplus
}
#endif
#endif
