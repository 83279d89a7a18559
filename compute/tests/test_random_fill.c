/*
 * Fills with random numbers, compared with a plain model of PyTorch's kernels: one loop over the elements, with its own
 * Philox.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/length.h"
#include "support/runtime.h"
#include "weir/compute/random.h"

/* ---- The model ---- */

/* An H200, and a device with few threads. */
static const struct geometry { int multiprocessors, threads; } h200 = {132, 2048}, small = {1, 512};

/* Philox with the loop unrolled over the key schedule: all keys are computed first. */
static void model_philox(uint64_t seed, uint64_t thread, uint64_t block, uint32_t out[4]) {
  uint32_t keys[10][2] = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
  for (int i = 1; i < 10; i++) {
    keys[i][0] = keys[i - 1][0] + 2654435769u;
    keys[i][1] = keys[i - 1][1] + 3144134277u;
  }
  uint32_t at[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)thread, (uint32_t)(thread >> 32)};
  for (int i = 0; i < 10; i++) {
    uint64_t a = at[0] * (uint64_t)3528531795u, b = at[2] * (uint64_t)3449720151u;
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ at[1] ^ keys[i][0], (uint32_t)b, (uint32_t)(a >> 32) ^ at[3] ^ keys[i][1],
                        (uint32_t)a};
    memcpy(at, next, sizeof at);
  }
  memcpy(out, at, sizeof at);
}

static uint64_t blocks_of(struct geometry geometry, uint64_t count) {
  uint64_t most = (uint64_t)geometry.multiprocessors * (uint64_t)(geometry.threads / 256), all = (count + 255) / 256;
  return all < most ? all : most;
}

/* The four numbers from which element `index` is made, and its place among the `per` elements that they make. */
static int model_numbers(struct geometry geometry, uint64_t seed, uint64_t offset, uint64_t count, uint64_t index,
                         int per, uint32_t numbers[4]) {
  uint64_t threads = 256 * blocks_of(geometry, count), row = index / threads;
  model_philox(seed, index % threads, offset / 4 + row / (unsigned)per, numbers);
  return (int)(row % (unsigned)per);
}

static uint32_t model_word(struct geometry geometry, uint64_t seed, uint64_t offset, uint64_t count, uint64_t index) {
  uint32_t numbers[4];
  int place = model_numbers(geometry, seed, offset, count, index, 4, numbers);
  return numbers[place];
}

static uint64_t model_long(struct geometry geometry, uint64_t seed, uint64_t offset, uint64_t count, uint64_t index) {
  uint32_t numbers[4];
  int place = model_numbers(geometry, seed, offset, count, index, 2, numbers);
  return (uint64_t)numbers[2 * place] * 4294967296u + numbers[2 * place + 1];
}

static float model_float(uint32_t word) { return (float)((double)(float)word / 4294967296.0 + 0.5 / 4294967296.0); }

static double model_double(uint32_t low, uint32_t high) {
  uint64_t bits = low ^ (uint64_t)high * 2097152;
  return (double)(((long double)bits + 0.5L) / 9007199254740992.0L);
}

/* The numbers per thread that a fill uses. */
static uint64_t model_advance(struct geometry geometry, uint64_t count, int per) {
  uint64_t each = 256 * blocks_of(geometry, count) * (unsigned)per;
  return 4 * ((count + each - 1) / each);
}

static float half_value(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent ? ldexpf(1024 + (float)fraction, exponent - 25) : ldexpf((float)fraction, -24);
  return bits & 0x8000 ? -size : size;
}

static float bfloat16_value(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* ---- Running a fill ---- */

enum { SEED = 1234567 };
static weir_generator *generator;
static weir_stream stream;
static void *memory;
static void *host;

static void open_memory(struct geometry geometry, size_t bytes) {
  stream = new_stream(0);
  assert_ok(weir_generator_create(0, &generator));
  assert_ok(weir_generator_set_geometry(generator, geometry.multiprocessors, geometry.threads));
  assert_ok(weir_generator_manual_seed(generator, SEED));
  assert_ok(weir_generator_set_offset(generator, 12));
  memory = device_memory(0, bytes);
  host = malloc(bytes);
  assert_non_null(host);
}

static void close_memory(void) {
  weir_generator_destroy(generator);
  assert_ok(weir_stream_synchronize(stream));
  free_device_memory(0, memory);
  free(host);
}

static void fetch(size_t bytes) { assert_ok(weir_copy(host, memory, bytes, stream)); }

static uint64_t offset_now(void) {
  uint64_t offset = 0;
  assert_ok(weir_generator_get_offset(generator, &offset));
  return offset;
}

static void rewind_generator(void) { assert_ok(weir_generator_set_offset(generator, 12)); }

static const uint64_t sizes[] = {1, 255, 257, 4097, 1 << 20};
#define FOR_EACH_SIZE(count)                                                                                           \
  for (size_t size_at = 0; size_at < sizeof sizes / sizeof *sizes; size_at++)                                          \
    for (uint64_t count = sizes[size_at], once = 1; once; once = 0)

/* Large results are compared in part: the model is slow. */
static uint64_t step_of(uint64_t count) { return count > 100000 ? (uint64_t)usual_or_long(13, 1) : 1; }

/* ---- Tests ---- */

static void check_bits(struct geometry geometry) {
  open_memory(geometry, 8 << 20);
  FOR_EACH_SIZE(count) {
    rewind_generator();
    assert_ok(weir_random_bits(generator, memory, count, WEIR_INT32, stream));
    assert_int_equal(offset_now(), 12 + model_advance(geometry, count, 4));
    fetch(count * 4);
    for (uint64_t i = 0; i < count; i += step_of(count))
      if (((uint32_t *)host)[i] != model_word(geometry, SEED, 12, count, i))
        fail_msg("element %d of %d", (int)i, (int)count);
    rewind_generator();
    assert_ok(weir_random_bits(generator, memory, count, WEIR_INT64, stream));
    assert_int_equal(offset_now(), 12 + model_advance(geometry, count, 2));
    fetch(count * 8);
    for (uint64_t i = 0; i < count; i += step_of(count))
      if (((uint64_t *)host)[i] != model_long(geometry, SEED, 12, count, i))
        fail_msg("element %d of %d", (int)i, (int)count);
  }
  close_memory();
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(bits) {
  check_bits(h200);
  check_bits(small);
}

/* Small types have the low bits, and random_() without bounds the range of PyTorch. */
TEST(integers) {
  enum { COUNT = 5000 };
  open_memory(small, COUNT * 8);
  assert_ok(weir_random_bits(generator, memory, COUNT, WEIR_UINT8, stream));
  fetch(COUNT);
  for (int i = 0; i < COUNT; i++)
    assert_int_equal(((uint8_t *)host)[i], model_word(small, SEED, 12, COUNT, i) & 255);
  static const struct {
    weir_dtype dtype;
    uint64_t modulus;
  } cases[] = {{WEIR_UINT8, 256},        {WEIR_INT8, 128},
               {WEIR_INT16, 32768},      {WEIR_INT32, 1u << 31},
               {WEIR_BOOL, 2},           {WEIR_FLOAT16, 2049},
               {WEIR_BFLOAT16, 257},     {WEIR_FLOAT32, 16777217},
               {WEIR_INT64, 1ull << 63}, {WEIR_FLOAT64, 9007199254740993ull}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    rewind_generator();
    weir_dtype dtype = cases[c].dtype;
    assert_ok(weir_random_integers(generator, memory, COUNT, dtype, stream));
    fetch(COUNT * weir_dtype_size(dtype));
    for (int i = 0; i < COUNT; i++) {
      bool wide = dtype == WEIR_INT64 || dtype == WEIR_FLOAT64;
      uint64_t expected =
          (wide ? model_long(small, SEED, 12, COUNT, i) : model_word(small, SEED, 12, COUNT, i)) % cases[c].modulus;
      double found = 0;
      switch (dtype) {
      case WEIR_UINT8:
      case WEIR_INT8:
      case WEIR_BOOL:
        found = ((uint8_t *)host)[i];
        break;
      case WEIR_INT16:
        found = ((int16_t *)host)[i];
        break;
      case WEIR_INT32:
        found = ((int32_t *)host)[i];
        break;
      case WEIR_INT64:
        assert_int_equal(((uint64_t *)host)[i], expected);
        found = (double)expected;
        break;
      case WEIR_FLOAT16:
        found = half_value(((uint16_t *)host)[i]);
        break;
      case WEIR_BFLOAT16:
        found = bfloat16_value(((uint16_t *)host)[i]);
        expected -= expected == 257; /* unreachable: 256 is the largest */
        break;
      case WEIR_FLOAT32:
        found = ((float *)host)[i];
        break;
      default:
        found = ((double *)host)[i];
      }
      if (found != (double)expected)
        fail_msg("%s, element %d: %g in place of %g", weir_dtype_name(dtype), i, found, (double)expected);
    }
  }
  close_memory();
}

/* Ranges from 2^28 on use 64-bit numbers. */
TEST(randint) {
  open_memory(h200, 8 << 20);
  static const struct {
    int64_t low, high;
  } ranges[] = {{0, 10},
                {-5, 6},
                {0, (1 << 28) - 1},
                {0, 1 << 28},
                {-7, 1ll << 33},
                {1ll << 40, 1ll << 62},
                {INT64_MIN, INT64_MAX}};
  FOR_EACH_SIZE(count) for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
    int64_t low = ranges[r].low, high = ranges[r].high;
    uint64_t range = (uint64_t)high - (uint64_t)low;
    bool wide = range >= 1 << 28;
    rewind_generator();
    assert_ok(weir_random_randint(generator, memory, count, WEIR_INT64, low, high, stream));
    assert_int_equal(offset_now(), 12 + model_advance(h200, count, wide ? 2 : 4));
    fetch(count * 8);
    for (uint64_t i = 0; i < count; i += step_of(count)) {
      uint64_t number = wide ? model_long(h200, SEED, 12, count, i) : model_word(h200, SEED, 12, count, i);
      int64_t expected = (int64_t)((uint64_t)low + number % range), found = ((int64_t *)host)[i];
      if (found != expected)
        fail_msg("element %d of %d in range %d", (int)i, (int)count, (int)r);
    }
  }
  close_memory();
}

/* For floats the bounds move to values of the type: the largest element stays below the bound. */
TEST(randint_of_floats) {
  enum { COUNT = 20000 };
  open_memory(small, COUNT * 4);
  assert_ok(weir_random_randint(generator, memory, COUNT, WEIR_FLOAT16, 0, 65504, stream));
  fetch(COUNT * 2);
  for (int i = 0; i < COUNT; i++)
    assert_true(half_value(((uint16_t *)host)[i]) < 65504);
  rewind_generator();
  assert_ok(weir_random_randint(generator, memory, COUNT, WEIR_BFLOAT16, 0, 1 << 20, stream));
  fetch(COUNT * 2);
  for (int i = 0; i < COUNT; i++)
    assert_true(bfloat16_value(((uint16_t *)host)[i]) < 1 << 20);
  rewind_generator();
  assert_ok(weir_random_randint(generator, memory, COUNT, WEIR_FLOAT32, -3, 4, stream));
  fetch(COUNT * 4);
  for (int i = 0; i < COUNT; i++)
    assert_true(((float *)host)[i] == (float)(model_word(small, SEED, 12, COUNT, i) % 7) - 3);
  close_memory();
}

TEST(uniform) {
  open_memory(h200, 8 << 20);
  FOR_EACH_SIZE(count) {
    rewind_generator();
    assert_ok(weir_random_uniform(generator, memory, count, WEIR_FLOAT32, 0, 1, stream));
    assert_int_equal(offset_now(), 12 + model_advance(h200, count, 4));
    fetch(count * 4);
    for (uint64_t i = 0; i < count; i += step_of(count)) {
      float expected = model_float(model_word(h200, SEED, 12, count, i));
      if (((float *)host)[i] != (expected == 1 ? 0 : expected))
        fail_msg("element %d of %d", (int)i, (int)count);
    }
    rewind_generator();
    assert_ok(weir_random_uniform(generator, memory, count, WEIR_FLOAT32, -2.5, 0.1, stream));
    fetch(count * 4);
    for (uint64_t i = 0; i < count; i += step_of(count)) {
      float range = 0.1f - -2.5f;
      /* One rounding, as a fused multiply-add has. */
      float made = (float)((long double)model_float(model_word(h200, SEED, 12, count, i)) * (long double)range + -2.5L);
      if (((float *)host)[i] != (made == 0.1f ? -2.5f : made))
        fail_msg("element %d of %d", (int)i, (int)count);
    }
    rewind_generator();
    assert_ok(weir_random_uniform(generator, memory, count, WEIR_FLOAT64, 0, 1, stream));
    assert_int_equal(offset_now(), 12 + model_advance(h200, count, 2));
    fetch(count * 8);
    for (uint64_t i = 0; i < count; i += step_of(count)) {
      uint32_t numbers[4];
      int place = model_numbers(h200, SEED, 12, count, i, 2, numbers);
      double expected = model_double(numbers[2 * place], numbers[2 * place + 1]);
      if (((double *)host)[i] != (expected == 1 ? 0 : expected))
        fail_msg("element %d of %d", (int)i, (int)count);
    }
  }
  close_memory();
}

/* The nearest value with so many digits, ties to even. */
static float round_to(float value, int digits) {
  int exponent;
  frexpf(value, &exponent);
  double unit = ldexp(1, exponent - digits), scaled = value / unit, low = floor(scaled);
  double rest = scaled - low;
  return (float)((rest > 0.5 || (rest == 0.5 && fmod(low, 2) != 0) ? low + 1 : low) * unit);
}

TEST(uniform_of_16_bits) {
  enum { COUNT = 100000 };
  open_memory(small, COUNT * 2);
  for (int is_half = 0; is_half < 2; is_half++) {
    int zeros = 0;
    rewind_generator();
    assert_ok(weir_random_uniform(generator, memory, COUNT, is_half ? WEIR_FLOAT16 : WEIR_BFLOAT16, 0, 1, stream));
    fetch(COUNT * 2);
    for (int i = 0; i < COUNT; i++) {
      uint16_t bits = ((uint16_t *)host)[i];
      float found = is_half ? half_value(bits) : bfloat16_value(bits),
            exact = model_float(model_word(small, SEED, 12, COUNT, i));
      float expected = is_half && exact < 0x1p-14f ? round_to(exact + 1, 25) - 1 : round_to(exact, is_half ? 11 : 8);
      zeros += found == 0;
      if (expected == 1)
        expected = 0; /* the bounds are reversed */
      if (is_half && exact < 0x1p-14f)
        assert_true(fabsf(found - exact) <= 0x1p-25f);
      else if (found != expected)
        fail_msg("element %d: %.9g in place of %.9g", i, (double)found, (double)expected);
      assert_true(found < 1);
    }
    assert_true(zeros > 0);
  }
  close_memory();
}

TEST(bernoulli) {
  open_memory(h200, 8 << 20);
  FOR_EACH_SIZE(count) {
    rewind_generator();
    assert_ok(weir_random_bernoulli(generator, memory, count, WEIR_FLOAT32, 0.3, stream));
    assert_int_equal(offset_now(), 12 + model_advance(h200, count, 4));
    fetch(count * 4);
    for (uint64_t i = 0; i < count; i += step_of(count))
      if (((float *)host)[i] != (model_float(model_word(h200, SEED, 12, count, i)) < 0.3f))
        fail_msg("element %d of %d", (int)i, (int)count);
    rewind_generator();
    assert_ok(weir_random_bernoulli(generator, memory, count, WEIR_BOOL, 0.5, stream));
    fetch(count);
    for (uint64_t i = 0; i < count; i += step_of(count))
      assert_int_equal(((uint8_t *)host)[i], model_float(model_word(h200, SEED, 12, count, i)) < 0.5f);
    rewind_generator();
    assert_ok(weir_random_bernoulli(generator, memory, count, WEIR_FLOAT64, 0.3, stream));
    assert_int_equal(offset_now(), 12 + model_advance(h200, count, 2));
    fetch(count * 8);
    for (uint64_t i = 0; i < count; i += step_of(count)) {
      uint32_t numbers[4];
      int place = model_numbers(h200, SEED, 12, count, i, 2, numbers);
      assert_true(((double *)host)[i] == (model_double(numbers[2 * place], numbers[2 * place + 1]) < 0.3));
    }
  }
  close_memory();
}

/* The distance in units of the last place of the expected value. */
static double ulps(double found, long double expected, int digits) {
  int exponent;
  frexpl(expected, &exponent);
  return (double)(fabsl(found - expected) / ldexpl(1, exponent - digits));
}

/* The Box-Muller transform in more digits. compute/docs/random.md states the bound for the software device. */
TEST(normal) {
  NEED_SOFT("a GPU has sines of its own; PyTorch's are compared there");
  enum { COUNT = 200000 };
  open_memory(h200, COUNT * 8);
  double worst = 0, sum = 0, squares = 0;
  assert_ok(weir_random_normal(generator, memory, COUNT, WEIR_FLOAT32, 0, 1, stream));
  assert_int_equal(offset_now(), 12 + model_advance(h200, COUNT, 4));
  fetch(COUNT * 4);
  const float turn = 2.3283064e-10f * 6.2831855f;
  for (int i = 0; i < COUNT; i++) {
    uint32_t numbers[4];
    int place = model_numbers(h200, SEED, 12, COUNT, i, 4, numbers), pair = place / 2 * 2;
    long double length = sqrtl(-2 * logl(model_float(numbers[pair])));
    float angle = (float)((long double)(float)numbers[pair + 1] * turn + turn / 2);
    long double expected = length * (place % 2 ? cosl(angle) : sinl(angle));
    double found = ((float *)host)[i], off = ulps(found, expected, 24);
    worst = off > worst ? off : worst;
    sum += found;
    squares += found * found;
  }
  print_message("float32: at most %.2f ULP\n", worst);
  assert_true(worst <= 4);
  assert_true(fabs(sum / COUNT) < 0.02);
  assert_true(fabs(squares / COUNT - 1) < 0.02);

  worst = 0;
  rewind_generator();
  assert_ok(weir_random_normal(generator, memory, COUNT, WEIR_FLOAT64, 0, 1, stream));
  fetch(COUNT * 8);
  for (int i = 0; i < COUNT; i++) {
    uint32_t numbers[4];
    int place = model_numbers(h200, SEED, 12, COUNT, i, 2, numbers);
    long double length = sqrtl(-2 * logl(model_double(numbers[0], numbers[1])));
    double turns = 2 * model_double(numbers[2], numbers[3]);
    long double angle = 3.14159265358979323846264338327950288L * turns;
    long double expected = length * (place ? cosl(angle) : sinl(angle));
    if (fabsl(expected) < 1e-3L)
      continue; /* the model has too few digits of pi there */
    double off = ulps(((double *)host)[i], expected, 53);
    worst = off > worst ? off : worst;
  }
  print_message("float64: at most %.2f ULP\n", worst);
  assert_true(worst <= 4);

  /* Mean and deviation. */
  sum = squares = 0;
  rewind_generator();
  assert_ok(weir_random_normal(generator, memory, COUNT, WEIR_BFLOAT16, 3, 2, stream));
  fetch(COUNT * 2);
  for (int i = 0; i < COUNT; i++) {
    double found = bfloat16_value(((uint16_t *)host)[i]) - 3;
    sum += found;
    squares += found * found;
  }
  assert_true(fabs(sum / COUNT) < 0.05);
  assert_true(fabs(squares / COUNT - 4) < 0.1);
  close_memory();
}

/* ---- Permutations ---- */

typedef struct keyed {
  uint64_t key;
  uint32_t index;
} keyed;

static int by_key(const void *a, const void *b) {
  const keyed *x = a, *y = b;
  if (x->key != y->key)
    return x->key < y->key ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

/* PyTorch's algorithm with qsort. */
static void model_permutation(struct geometry geometry, uint64_t count, uint32_t *into, uint64_t *advance) {
  keyed *items = malloc(count * sizeof *items);
  assert_non_null(items);
  double n = (double)count;
  int bits = (int)ceil(log2(n - (6 * n * n + 1) / (log(0.9) * 12)));
  assert_true(bits < 64);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t number = model_long(geometry, SEED, 12, count, i);
    uint64_t key = bits <= 32 ? number % 0xFFFFFFFFu + 0xFFFFFFFF80000000u : number % UINT64_MAX + (1ull << 63);
    key &= (1ull << bits) - 1;
    if (bits == 32)
      key ^= 1ull << 31; /* signed keys: negative ones come first */
    items[i] = (keyed){key, (uint32_t)i};
  }
  qsort(items, count, sizeof *items, by_key);
  uint64_t offset = 12 + model_advance(geometry, count, 2);
  for (uint64_t first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && items[end].key == items[first].key;)
      end++;
    for (uint64_t last = end - first - 1, used = 0; last > 0; last--, used++) {
      uint32_t numbers[4];
      model_philox(SEED, first, offset / 4 + used / 4, numbers);
      uint64_t other = numbers[used % 4] % (last + 1);
      uint32_t kept = items[first + last].index;
      items[first + last].index = items[first + other].index;
      items[first + other].index = kept;
    }
  }
  for (uint64_t i = 0; i < count; i++)
    into[i] = items[i].index;
  *advance = offset + (count + 3) / 4 * 4;
  free(items);
}

TEST(permutation) {
  static const uint64_t counts[] = {1, 2, 3, 255, 257, 4097, 28000, 30000, 31000, 200000};
  open_memory(h200, 200000 * 8);
  uint32_t *expected = malloc(200000 * sizeof *expected);
  assert_non_null(expected);
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    uint64_t count = counts[c], offset;
    model_permutation(h200, count, expected, &offset);
    rewind_generator();
    assert_ok(weir_random_permutation(generator, memory, count, WEIR_INT64, stream));
    assert_int_equal(offset_now(), offset);
    fetch(count * 8);
    for (uint64_t i = 0; i < count; i++)
      if (((int64_t *)host)[i] != expected[i])
        fail_msg("element %d of %d", (int)i, (int)count);
  }
  free(expected);
  rewind_generator();
  assert_ok(weir_random_permutation(generator, memory, 2049, WEIR_FLOAT16, stream));
  fetch(2049 * 2);
  char seen[2049] = {0};
  for (int i = 0; i < 2049; i++)
    seen[(int)half_value(((uint16_t *)host)[i])]++;
  for (int i = 0; i < 2049; i++)
    assert_int_equal(seen[i], 1);
  close_memory();
  assert_ok(weir_memory_empty_cache());
}

/* ---- Graphs, generators, errors ---- */

/* Each replay makes the numbers that the same calls would have made. */
TEST(captured_fills) {
  enum { COUNT = 3000 };
  open_memory(small, COUNT * 4);
  uint32_t *expected = malloc(COUNT * 8);
  assert_non_null(expected);
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_register_generator(graph, generator));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_random_bits(generator, memory, COUNT / 2, WEIR_INT32, stream));
  assert_ok(weir_random_bits(generator, (uint32_t *)memory + COUNT / 2, COUNT / 2, WEIR_INT32, stream));
  assert_ok(weir_graph_end_capture(graph));
  assert_int_equal(offset_now(), 12);
  for (int round = 0; round < 3; round++) {
    uint64_t offset = offset_now(), half = COUNT / 2;
    assert_ok(weir_graph_replay(graph));
    fetch(COUNT * 4);
    for (uint64_t i = 0; i < half; i++) {
      assert_int_equal(((uint32_t *)host)[i], model_word(small, SEED, offset, half, i));
      assert_int_equal(((uint32_t *)host)[half + i],
                       model_word(small, SEED, offset + model_advance(small, half, 4), half, i));
    }
    assert_int_equal(offset_now(), offset + 2 * model_advance(small, half, 4));
  }
  weir_graph_destroy(graph);
  free(expected);
  close_memory();
  assert_ok(weir_stream_set_current(default_stream(-1)));
  assert_ok(weir_memory_empty_cache());
}

/* A permutation in a graph takes its temporary memory from the graph's pool. */
TEST(captured_permutation) {
  enum { COUNT = 5000 };
  open_memory(small, COUNT * 8);
  void *first;
  assert_ok(weir_malloc(1, stream, &first)); /* not in a capture */
  assert_ok(weir_free(first));
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_register_generator(graph, generator));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_random_permutation(generator, memory, COUNT, WEIR_INT64, stream));
  assert_ok(weir_graph_end_capture(graph));
  uint32_t *expected = malloc(COUNT * sizeof *expected);
  assert_non_null(expected);
  uint64_t offset;
  model_permutation(small, COUNT, expected, &offset);
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(offset_now(), offset);
  fetch(COUNT * 8);
  for (int i = 0; i < COUNT; i++)
    assert_int_equal(((int64_t *)host)[i], expected[i]);
  free(expected);
  weir_graph_destroy(graph);
  close_memory();
  assert_ok(weir_stream_set_current(default_stream(-1)));
  assert_ok(weir_memory_empty_cache());
}

/* NULL is the default generator, with the geometry of the device. */
TEST(default_generator) {
  open_memory(small, 4096);
  weir_generator *standard;
  assert_ok(weir_generator_default(0, &standard));
  assert_ok(weir_generator_manual_seed(standard, 2));
  assert_ok(weir_random_uniform(NULL, memory, 16, WEIR_FLOAT32, 0, 1, stream));
  fetch(64);
  for (int i = 0; i < 16; i++)
    assert_true(((float *)host)[i] == model_float(model_word(small, 2, 0, 16, (uint64_t)i)));
  uint64_t offset;
  assert_ok(weir_generator_get_offset(standard, &offset));
  assert_int_equal(offset, 4);
  close_memory();
}

/* Counts for a rate against the distribution: each with ten or more expected is within five standard deviations. */
static void check_poisson(double rate, weir_dtype dtype) {
  enum { COUNT = 100000, MOST = 1200 };
  static int counts[MOST];
  double sum = 0, squares = 0, probability = exp(-rate);
  memset(counts, 0, sizeof counts);
  size_t bytes = weir_dtype_size(dtype);
  for (int i = 0; i < COUNT; i++)
    if (dtype == WEIR_FLOAT64)
      ((double *)host)[i] = rate;
    else
      ((float *)host)[i] = (float)rate;
  assert_ok(weir_copy(memory, host, COUNT * bytes, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_random_poisson(generator, memory, COUNT, dtype, stream));
  fetch(COUNT * bytes);
  for (int i = 0; i < COUNT; i++) {
    double n = dtype == WEIR_FLOAT64 ? ((double *)host)[i] : (double)((float *)host)[i];
    assert_true(n >= 0 && n < MOST && n == floor(n));
    counts[(int)n]++;
    sum += n;
    squares += (n - rate) * (n - rate);
  }
  assert_true(fabs(sum / COUNT - rate) <= 5 * sqrt(rate / COUNT));
  assert_true(fabs(squares / COUNT - rate) <= 5 * sqrt((2 * rate * rate + rate) / COUNT));
  for (int n = 0; n < MOST && rate < 100; probability *= rate / ++n) {
    double expected = COUNT * probability;
    if (expected >= 10 && fabs(counts[n] - expected) > 5 * sqrt(expected))
      fail_msg("rate %g: %d times %d, expected %.1f", rate, counts[n], n, expected);
  }
}

TEST(poisson) {
  open_memory(small, 100000 * 8);
  static const double rates[] = {0, 0.3, 1, 4.5, 9.99, 10, 12, 31.5, 80, 900};
  for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
    rewind_generator();
    check_poisson(rates[i], i % 2 ? WEIR_FLOAT32 : WEIR_FLOAT64);
  }
  /* An element does not depend on its neighbours, and the next call has other numbers. */
  enum { COUNT = 600 };
  float first[COUNT];
  for (int call = 0; call < 3; call++) {
    for (int i = 0; i < COUNT; i++)
      ((float *)host)[i] = call == 2 && i % 2 ? 3 : 20;
    assert_ok(weir_copy(memory, host, COUNT * sizeof(float), stream));
    assert_ok(weir_stream_synchronize(stream));
    if (call != 1)
      rewind_generator();
    uint64_t offset = offset_now();
    assert_ok(weir_random_poisson(generator, memory, COUNT, WEIR_FLOAT32, stream));
    assert_int_equal(offset_now(), offset + 24 * model_advance(small, COUNT, 1));
    fetch(COUNT * sizeof(float));
    int equal = 0;
    for (int i = 0; i < COUNT; i += 2)
      equal += ((float *)host)[i] == first[i];
    if (call == 0)
      memcpy(first, host, sizeof first);
    else
      assert_true(call == 1 ? equal < COUNT / 8 : equal == COUNT / 2);
  }
  close_memory();
}

TEST(errors) {
  open_memory(small, 4096);
  assert_error_says(NOT_SUPPORTED, "\"poisson_cuda\" not implemented for 'Int'",
                    weir_random_poisson(generator, memory, 1, WEIR_INT32, stream));
  assert_error_says(NOT_SUPPORTED, "not implemented for 'Int'",
                    weir_random_uniform(generator, memory, 1, WEIR_INT32, 0, 1, stream));
  assert_error_says(NOT_SUPPORTED, "\"normal_kernel_cuda\" not implemented for 'Long'",
                    weir_random_normal(generator, memory, 1, WEIR_INT64, 0, 1, stream));
  assert_error_says(INVALID_ARGUMENT, "normal expects std >= 0.0, but found std -1",
                    weir_random_normal(generator, memory, 1, WEIR_FLOAT32, 0, -1, stream));
  assert_error_says(INVALID_ARGUMENT, "bernoulli_ expects p to be in [0, 1], but got p=2",
                    weir_random_bernoulli(generator, memory, 1, WEIR_FLOAT32, 2, stream));
  assert_error(INVALID_ARGUMENT, weir_random_bernoulli(generator, memory, 1, WEIR_FLOAT32, NAN, stream));
  assert_error_says(INVALID_ARGUMENT, "random_ expects 'from' to be less than 'to', but got from=5 >= to=5",
                    weir_random_randint(generator, memory, 1, WEIR_INT32, 5, 5, stream));
  assert_error_says(INVALID_ARGUMENT, "to - 1 is out of bounds for uint8",
                    weir_random_randint(generator, memory, 1, WEIR_UINT8, 0, 257, stream));
  assert_error_says(INVALID_ARGUMENT, "from is out of bounds for uint8",
                    weir_random_randint(generator, memory, 1, WEIR_UINT8, -1, 5, stream));
  assert_error_says(INVALID_ARGUMENT, "found from=1 > to=0",
                    weir_random_uniform(generator, memory, 1, WEIR_FLOAT32, 1, 0, stream));
  assert_error_says(INVALID_ARGUMENT, "to is out of bounds for float16",
                    weir_random_uniform(generator, memory, 1, WEIR_FLOAT16, 0, 1e6, stream));
  assert_error_says(INVALID_ARGUMENT, "n cannot be greater than 2049 for Half type.",
                    weir_random_permutation(generator, memory, 2050, WEIR_FLOAT16, stream));
  assert_error_says(INVALID_ARGUMENT, "n is too large for result tensor type",
                    weir_random_permutation(generator, memory, 257, WEIR_UINT8, stream));
  assert_error(NOT_SUPPORTED, weir_random_permutation(generator, memory, 2, WEIR_BOOL, stream));
  assert_error(NOT_SUPPORTED, weir_random_bits(generator, memory, 2, WEIR_FLOAT32, stream));
  assert_error(INVALID_ARGUMENT, weir_random_bits(generator, memory, 2, (weir_dtype)8, stream));
  assert_error(INVALID_ARGUMENT, weir_random_bits(generator, NULL, 2, WEIR_INT32, stream));
  assert_error(INVALID_ARGUMENT, weir_random_bits(generator, (char *)memory + 2, 2, WEIR_INT32, stream));
  assert_error(INVALID_ARGUMENT, weir_random_bits(generator, memory, UINT64_MAX, WEIR_INT32, stream));
  assert_ok(weir_generator_set_geometry(generator, 1, 255));
  assert_error(INVALID_ARGUMENT, weir_random_bits(generator, memory, 2, WEIR_INT32, stream));
  /* Nothing is drawn for an error, or for nothing. */
  assert_ok(weir_random_bits(generator, NULL, 0, WEIR_INT32, stream));
  assert_ok(weir_random_permutation(generator, NULL, 0, WEIR_INT64, stream));
  assert_int_equal(offset_now(), 12);
  close_memory();
}

/* Everything that makes driver calls, with whatever fails. Returns the first error. */
static weir_status use_everything(void) {
  weir_generator *made = NULL;
  weir_graph *graph = NULL;
  weir_stream on;
  void *pointer = NULL;
  weir_status status = weir_stream_create(0, 0, &on);
  if (!status)
    status = weir_generator_create(0, &made);
  if (!status)
    status = weir_malloc(8000, on, &pointer);
  if (!status)
    status = weir_random_permutation(made, pointer, 1000, WEIR_INT64, on);
  if (!status)
    status = weir_graph_create(&graph);
  if (!status)
    status = weir_graph_register_generator(graph, made);
  if (!status)
    status = weir_stream_set_current(on);
  if (!status)
    status = weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL);
  if (!status) {
    status = weir_random_normal(made, pointer, 1000, WEIR_FLOAT32, 0, 1, on);
    weir_status ended = weir_graph_end_capture(graph);
    status = status ? status : ended;
  }
  if (!status)
    status = weir_graph_replay(graph);
  if (!status)
    status = weir_stream_synchronize(on);
  weir_graph_destroy(graph);
  weir_status freed = weir_free(pointer);
  weir_generator_destroy(made);
  return status ? status : freed;
}

/* If a driver call fails, nothing is left behind, and the same calls work afterwards. */
TEST(failing_driver_calls) {
  NEED_SOFT("needs a driver that can be made to fail");
  unsigned long n;
  bool has_failed = true;
  runtime_teardown(state);
  for (n = 1; has_failed; n++) {
    assert_int_equal(runtime_setup_fault(state), 0);
    collect_messages(); /* a launch that failed leaves the graph empty */
    has_failed = fails_at(n, use_everything);
    int capturing = 0;
    if (!weir_current_stream_is_capturing(&capturing) && !capturing)
      assert_ok(use_everything());
    assert_ok(weir_memory_empty_cache());
    assert_int_equal(runtime_teardown(state), 0);
  }
  assert_in_range(n, 50, 10000);
  assert_int_equal(runtime_setup(state), 0);
}

/* Sizes that a GPU is measured with; on the software device in the long form only. */
TEST(many_elements) {
  uint64_t count = 64ull << 20;
  if (is_soft() && !usual_or_long(0, 1))
    WAIVE_TEST("takes a while on the software device; set WEIR_TEST_LONG=1");
  open_memory(h200, count * 4);
  assert_ok(weir_random_uniform(generator, memory, count, WEIR_FLOAT32, 0, 1, stream));
  fetch(count * 4);
  for (uint64_t i = 0; i < count; i += 1009) {
    float expected = model_float(model_word(h200, SEED, 12, count, i));
    if (((float *)host)[i] != (expected == 1 ? 0 : expected))
      fail_msg("element %d", (int)i);
  }
  close_memory();
}
