/*
 * Permutations, as torch.randperm makes them on a GPU: indices are sorted by random keys, and where keys are equal
 * their indices are shuffled. The sort is stable, and so is PyTorch's, so the result does not depend on how it is done.
 */
#include <math.h>

#include "src/base.h"
#include "src/builtin.h"
#include "src/generator.h"
#include "src/memory.h"

/* As in kernels/random.cu. */
enum { DIGITS = 16, DIGIT_BITS = 4, TILE_THREADS = 256, TILE = TILE_THREADS * 8, SCAN_THREADS = 512 };
enum { COUNT_BYTES = DIGITS * TILE_THREADS * 2, SCAN_BYTES = SCAN_THREADS * 4, SHUFFLE_THREADS = 512 };

/* The bits of the keys, so many that with a probability of 0.9 all are different. */
static int key_bits(uint64_t count) {
  double n = (double)count;
  double bits = ceil(log2(n - (6 * n * n + 1) / (log(0.9) * 12)));
  return bits > 64 ? 64 : (int)bits;
}

static weir_status check_count(const char *caller, uint64_t count, weir_dtype dtype) {
  uint64_t largest = UINT64_MAX;
  const char *text = NULL;
  switch (dtype) {
  case WEIR_FLOAT16:
    if (count > 2049)
      text = "n cannot be greater than 2049 for Half type.";
    break;
  case WEIR_FLOAT32:
    if (count > (1u << 24) + 1)
      text = "n cannot be greater than 2^24+1 for Float type.";
    break;
  case WEIR_UINT8:
    largest = UINT8_MAX;
    break;
  case WEIR_INT8:
    largest = INT8_MAX;
    break;
  case WEIR_INT16:
    largest = INT16_MAX;
    break;
  case WEIR_INT32:
  case WEIR_INT64:
  case WEIR_FLOAT64:
    break;
  default:
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: \"randperm_out_cuda\" not implemented for %s", caller,
                      weir_dtype_name(dtype) ? weir_dtype_name(dtype) : "this type");
  }
  if (text)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s", caller, text);
  if (count > 0 && count - 1 > largest)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: n is too large for result tensor type: '%s'", caller,
                      weir_dtype_name(dtype));
  /* With 64 bits PyTorch's mask of the key is wrong, and so are its permutations. */
  if (count > INT32_MAX || (count > 0 && key_bits(count) >= 64))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: permutations have at most 1394115657 elements", caller);
  return WEIR_OK;
}

/* Temporary memory in the order of the stream. The arrays change places in each pass. */
typedef struct sort {
  const char *caller;
  weir_stream stream;
  weir_cu_stream raw;
  unsigned count, tiles;
  weir__device_memory keys[2], indices[2], totals;
} sort;

static weir_status allocate(sort *sort) {
  uint64_t count = sort->count;
  const struct {
    weir__device_memory *memory;
    uint64_t bytes;
  } wanted[] = {{&sort->keys[0], count * sizeof(uint64_t)},
                {&sort->keys[1], count * sizeof(uint64_t)},
                {&sort->indices[0], count * sizeof(uint32_t)},
                {&sort->indices[1], count * sizeof(uint32_t)},
                {&sort->totals, (uint64_t)sort->tiles * DIGITS * sizeof(uint32_t)}};
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < WEIR_COUNT_OF(wanted) && !status; i++)
    status = weir__compute_alloc(wanted[i].bytes, sort->stream, wanted[i].memory);
  return status;
}

static void release(sort *sort) {
  weir__compute_free(&sort->totals);
  for (int i = 1; i >= 0; i--) {
    weir__compute_free(&sort->indices[i]);
    weir__compute_free(&sort->keys[i]);
  }
}

static weir_status launch(const sort *sort, weir__builtin *kernel, unsigned grid, unsigned block, unsigned shared_bytes,
                          void **params) {
  weir_launch_dims dims = {.grid = {grid}, .block = {block}, .shared_bytes = shared_bytes};
  return weir__builtin_launch(sort->caller, kernel, sort->stream.device, sort->raw, dims, params);
}

/* Sorts by one digit, from the arrays `from` to the others. */
static weir_status pass(sort *sort, int from, int shift, int bits, bool is_signed) {
  static weir__builtin count_kernel = WEIR__BUILTIN("random", "weir_rng_sort_count");
  static weir__builtin scan_kernel = WEIR__BUILTIN("random", "weir_rng_sort_scan");
  static weir__builtin move_kernel = WEIR__BUILTIN("random", "weir_rng_sort_move");
  int digit_bits = bits - shift < DIGIT_BITS ? bits - shift : DIGIT_BITS;
  unsigned mask = (1u << digit_bits) - 1, count = sort->count, total_count = sort->tiles * DIGITS;
  unsigned flip = is_signed && shift + DIGIT_BITS >= bits ? 1u << (digit_bits - 1) : 0;
  void *keys = sort->keys[from].pointer, *keys_out = sort->keys[!from].pointer, *totals = sort->totals.pointer;
  void *indices = shift == 0 ? NULL : sort->indices[from].pointer, *indices_out = sort->indices[!from].pointer;

  void *count_params[] = {&keys, &count, &shift, &mask, &flip, &totals};
  weir_status status = launch(sort, &count_kernel, sort->tiles, TILE_THREADS, COUNT_BYTES, count_params);
  void *scan_params[] = {&totals, &total_count};
  if (!status)
    status = launch(sort, &scan_kernel, 1, SCAN_THREADS, SCAN_BYTES, scan_params);
  void *move_params[] = {&keys, &indices, &count, &shift, &mask, &flip, &totals, &keys_out, &indices_out};
  return status ? status : launch(sort, &move_kernel, sort->tiles, TILE_THREADS, COUNT_BYTES, move_params);
}

static weir_status permute(sort *sort, weir_generator *generator, void *pointer, weir_dtype dtype) {
  static weir__builtin shuffle_kernel = WEIR__BUILTIN("random", "weir_rng_shuffle_equal");
  static weir__builtin store_kernel = WEIR__BUILTIN("random", "weir_rng_store_indices");
  int bits = key_bits(sort->count), from = 0, type = (int)dtype;
  unsigned count = sort->count, blocks = (count + SHUFFLE_THREADS - 1) / SHUFFLE_THREADS;
  /* Keys of up to 32 bits are those of an int in PyTorch; here they are widened. */
  bool is_wide = bits > 32;
  weir_status status =
      weir_random_randint(generator, sort->keys[0].pointer, count, WEIR_INT64, is_wide ? INT64_MIN : INT32_MIN,
                          is_wide ? INT64_MAX : INT32_MAX, sort->stream);
  for (int shift = 0; shift < bits && !status; shift += DIGIT_BITS) {
    status = pass(sort, from, shift, bits, bits == 32);
    from = !from;
  }
  weir_philox_state state;
  if (!status)
    status = weir_generator_advance(generator, count, sort->stream, &state);
  if (status)
    return weir__fail_as(sort->caller, status);
  uint64_t mask = (1ull << bits) - 1;
  void *keys = sort->keys[from].pointer, *indices = sort->indices[from].pointer;
  void *shuffle_params[] = {
      &keys, &indices, &count, &mask, &state.seed, &state.offset, &state.offset_intragraph, &state.captured};
  status = launch(sort, &shuffle_kernel, blocks, SHUFFLE_THREADS, 0, shuffle_params);
  void *store_params[] = {&indices, &count, &pointer, &type};
  return status ? status : launch(sort, &store_kernel, blocks, SHUFFLE_THREADS, 0, store_params);
}

weir_status weir_random_permutation(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                    weir_stream stream) {
  weir_status status = check_count(__func__, count, dtype);
  if (status || count == 0)
    return status;
  WEIR__CHECK_ARGUMENT(pointer);
  sort sort = {.caller = __func__, .stream = stream, .count = (unsigned)count};
  sort.tiles = (unsigned)((count + TILE - 1) / TILE);
  status = weir__generator_resolve(__func__, stream, &generator);
  if (!status)
    status = weir_stream_raw(stream, &sort.raw);
  if (!status)
    status = allocate(&sort);
  if (!status)
    status = permute(&sort, generator, pointer, dtype);
  release(&sort);
  return weir__fail_as(__func__, status);
}
