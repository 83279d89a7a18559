/*
 * Gradient scaling, compared with a plain model: division by the scale, the check for infinities, the update of the
 * scale, and scalers.
 */
#include "weir/compute/amp.h"

#include <float.h>
#include <stdlib.h>

#include "support/length.h"
#include "support/random.h"
#include "support/runtime.h"
#include "tests/numbers.h"

static const weir_dtype floats[] = {WEIR_FLOAT16, WEIR_BFLOAT16, WEIR_FLOAT32, WEIR_FLOAT64};

static weir_stream stream;

static int setup(void **state) {
  int result = runtime_setup_fault(state);
  stream = new_stream(0);
  return result;
}

/* ---- Single elements ---- */

static weir_array scalar_array(weir_place place, weir_dtype dtype, double value) {
  weir_array array = {0};
  assert_ok(weir_array_empty(place, dtype, 0, NULL, stream, &array));
  assert_ok(weir_array_fill(&array, weir_scalar_float(value), stream));
  return array;
}

static double value_of(const weir_array *array) {
  weir_scalar scalar;
  assert_ok(weir_array_item(array, stream, &scalar));
  return scalar.kind == WEIR_SCALAR_INT ? (double)scalar.integer : scalar.real;
}

static weir_array filled(weir_place place, weir_dtype dtype, int64_t count, double value) {
  weir_array array = {0};
  assert_ok(weir_array_empty(place, dtype, 1, &count, stream, &array));
  assert_ok(weir_array_fill(&array, weir_scalar_float(value), stream));
  return array;
}

/* ---- Division by the scale ---- */

typedef enum layout { WHOLE, SHIFTED, TRANSPOSED, STEPPED, COLUMNS, LAYOUTS } layout;

/* An array, the memory around it, and what the memory shall contain. */
typedef struct gradient {
  weir_array base, view;
  layout layout;
  int64_t count, width, shift; /* of the base; of a row; of the first element */
  char *expected;
} gradient;

/* Whether element i of the base belongs to the view. */
static bool is_in_view(const gradient *g, int64_t i) {
  switch (g->layout) {
  case SHIFTED:
    return i >= g->shift;
  case STEPPED:
    return i >= g->shift && (i - g->shift) % 3 == 0;
  case COLUMNS:
    return i % g->width >= 1;
  default:
    return true;
  }
}

static void make_view(gradient *g) {
  int64_t shape[] = {g->count / g->width, g->width};
  switch (g->layout) {
  case SHIFTED:
    assert_ok(weir_array_slice(&g->base, 0, g->shift, g->count, 1, &g->view));
    break;
  case STEPPED:
    assert_ok(weir_array_slice(&g->base, 0, g->shift, g->count, 3, &g->view));
    break;
  case TRANSPOSED:
    assert_ok(weir_array_view(&g->base, 2, shape, &g->view));
    assert_ok(weir_array_transpose(&g->view, 0, 1, &g->view));
    break;
  case COLUMNS:
    assert_ok(weir_array_view(&g->base, 2, shape, &g->view));
    assert_ok(weir_array_slice(&g->view, 1, 1, g->width, 1, &g->view));
    break;
  default:
    assert_ok(weir_array_share(&g->base, &g->view));
  }
}

/* A random number in the range of a type, with zeros and subnormal numbers. */
static number random_number(weir_dtype dtype, uint64_t *seed) {
  int least = dtype == WEIR_FLOAT16 ? -30 : -140, largest = dtype == WEIR_FLOAT16 ? 0 : 100;
  uint64_t random = next_random(seed);
  int exponent = least + (int)(random % (unsigned)(largest - least + 1));
  double value = ldexp((double)(int64_t)(random >> 12 & 0xffff) - 32768, exponent);
  return rounded_to(dtype, (number){.real = random % 50 ? value : 0}, WEIR_FLOAT64);
}

/* What the kernel makes of an element. */
static number unscaled(weir_dtype dtype, number n, float factor) {
  double product = dtype == WEIR_FLOAT64 ? n.real * factor : (double)((float)n.real * factor);
  return factor == 1 ? n : rounded_to(dtype, (number){.real = product}, WEIR_FLOAT64);
}

/* bad: 1 puts an infinity and 2 a NaN somewhere in the view, 3 one outside of it. *is_bad if one is in the view. */
static void make_gradient(weir_place place, int64_t count, float factor, int bad, uint64_t *seed, gradient *g,
                          bool *is_bad) {
  weir_dtype dtype = floats[next_random(seed) % 4];
  size_t size = weir_dtype_size(dtype);
  weir_array host = {0};
  *g = (gradient){.layout = (layout)(next_random(seed) % LAYOUTS)};
  g->width = count > 3 ? 2 + (int64_t)(next_random(seed) % 7) : 1;
  g->count = count / g->width * g->width;
  g->shift = g->count ? (int64_t)(next_random(seed) % (uint64_t)(g->count < 9 ? g->count : 9)) : 0;
  assert_ok(weir_array_empty(weir_place_host(), dtype, 1, &g->count, stream, &host));
  g->expected = malloc((size_t)g->count * size + 1);
  assert_non_null(g->expected);
  int64_t at = bad && g->count ? (int64_t)(next_random(seed) % (uint64_t)g->count) : -1;
  while (at >= 0 && at < g->count && is_in_view(g, at) != (bad != 3))
    at++;
  for (int64_t i = 0; i < g->count; i++) {
    number n = random_number(dtype, seed);
    if (i == at)
      n.real = bad == 2 ? NAN : next_random(seed) % 2 ? INFINITY : -INFINITY;
    if (i == at && bad != 3)
      *is_bad = true;
    write_element(dtype, (char *)host.data + (size_t)i * size, n);
    write_element(dtype, g->expected + (size_t)i * size, is_in_view(g, i) ? unscaled(dtype, n, factor) : n);
  }
  assert_ok(weir_array_to(&host, place, dtype, stream, 0, &g->base));
  make_view(g);
  weir_array_release(&host);
}

static void check_gradient(const gradient *g) {
  weir_array host = {0};
  size_t size = weir_dtype_size(g->base.dtype);
  assert_ok(weir_array_to(&g->base, weir_place_host(), g->base.dtype, stream, 0, &host));
  for (int64_t i = 0; i < g->count; i++) {
    double found = read_element(g->base.dtype, (char *)host.data + (size_t)i * size).real;
    double expected = read_element(g->base.dtype, g->expected + (size_t)i * size).real;
    if (found != expected && !(isnan(found) && isnan(expected)))
      fail_msg("element %lld of %lld of %s (layout %d) is %g, expected %g", (long long)i, (long long)g->count,
               weir_dtype_name(g->base.dtype), (int)g->layout, found, expected);
  }
  weir_array_release(&host);
}

/* Random arrays of all types, sizes and layouts, in one call. */
static void check_round(weir_place place, int count, int64_t most, uint64_t *seed) {
  static const float factors[] = {0.25F, 1.0F / 65536, 1, 3, 1.0F / 3};
  float factor = factors[next_random(seed) % 5];
  bool is_bad = false;
  gradient *gradients = calloc((size_t)count + 1, sizeof *gradients);
  weir_array *views = calloc((size_t)count + 1, sizeof *views);
  assert_true(gradients && views);
  int which = count && next_random(seed) % 2 ? (int)(next_random(seed) % (uint64_t)count) : -1;
  for (int i = 0; i < count; i++) {
    int64_t elements = next_random(seed) % 8 ? (int64_t)(next_random(seed) % (uint64_t)most) : (int64_t)(i % 3);
    make_gradient(place, elements, factor, i == which ? 1 + (int)(next_random(seed) % 3) : 0, seed, &gradients[i],
                  &is_bad);
    views[i] = gradients[i].view;
  }
  weir_array found = scalar_array(place, WEIR_FLOAT32, 0), inverse = scalar_array(place, WEIR_FLOAT32, factor);
  assert_ok(weir_amp_unscale(views, count, &found, &inverse, stream));
  assert_true(value_of(&found) == (is_bad ? 1 : 0));
  for (int i = 0; i < count; i++) {
    check_gradient(&gradients[i]);
    weir_array_release(&gradients[i].view);
    weir_array_release(&gradients[i].base);
    free(gradients[i].expected);
  }
  weir_array_release(&found);
  weir_array_release(&inverse);
  free(views);
  free(gradients);
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

TEST(unscale) {
  uint64_t seed = 1;
  weir_place places[] = {weir_place_device(0), weir_place_host(), weir_place_pinned()};
  for (int round = 0; round < usual_or_long(12, 200); round++)
    for (int i = 0; i < 3; i++) {
      check_round(places[i], (int)(next_random(&seed) % 12), 300, &seed);
      check_round(places[i], 1, 70000, &seed);
    }
  /* More than one launch takes. */
  check_round(places[0], 191, 20, &seed);
  check_round(places[0], 192, 20, &seed);
  check_round(places[0], 700, 20, &seed);
  check_round(places[0], 20, 40000, &seed);
}

/* An infinity in any position of arrays around the size of a chunk. */
TEST(found_anywhere) {
  static const int64_t sizes[] = {1, 7, 8, 9, 255, 16383, 16384, 16385, 40001};
  weir_array found = scalar_array(weir_place_device(0), WEIR_FLOAT32, 0);
  weir_array inverse = scalar_array(weir_place_device(0), WEIR_FLOAT32, 0.5);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
    for (int t = 0; t < 4; t++) {
      weir_array arrays[2] = {filled(weir_place_device(0), floats[t], 3, 2),
                              filled(weir_place_device(0), floats[t], sizes[s], 2)};
      int64_t positions[] = {0, sizes[s] / 2, sizes[s] - 1};
      for (int p = 0; p < 3; p++) {
        weir_array one = {0};
        assert_ok(weir_array_select(&arrays[1], 0, positions[p], &one));
        assert_ok(weir_array_fill(&one, weir_scalar_float(p == 1 ? NAN : INFINITY), stream));
        assert_ok(weir_array_fill(&found, weir_scalar_float(0), stream));
        assert_ok(weir_amp_unscale(arrays, 2, &found, &inverse, stream));
        assert_true(value_of(&found) == 1);
        assert_ok(weir_array_fill(&one, weir_scalar_float(2), stream));
        weir_array_release(&one);
        /* What was found stays. */
        assert_ok(weir_amp_unscale(arrays, 1, &found, &inverse, stream));
        assert_true(value_of(&found) == 1);
        assert_ok(weir_array_fill(&found, weir_scalar_float(0), stream));
        assert_ok(weir_amp_unscale(arrays, 2, &found, &inverse, stream));
        assert_true(value_of(&found) == 0);
      }
      weir_array_release(&arrays[0]);
      weir_array_release(&arrays[1]);
    }
  /* A double that float32 cannot represent is finite. */
  weir_array large = filled(weir_place_device(0), WEIR_FLOAT64, 5, 1e300);
  assert_ok(weir_amp_unscale(&large, 1, &found, &inverse, stream));
  assert_true(value_of(&found) == 0);
  weir_array_release(&large);
  weir_array_release(&found);
  weir_array_release(&inverse);
}

TEST(refused) {
  weir_place device = weir_place_device(0);
  weir_array a = filled(device, WEIR_FLOAT32, 4, 1), ints = filled(device, WEIR_INT32, 4, 1), wide = {0};
  weir_array two = filled(device, WEIR_FLOAT32, 2, 0), found = scalar_array(device, WEIR_FLOAT32, 0);
  weir_array inverse = scalar_array(device, WEIR_FLOAT32, 2),
             on_host = scalar_array(weir_place_host(), WEIR_FLOAT32, 2);
  weir_array half = scalar_array(device, WEIR_FLOAT16, 1), tracker = scalar_array(device, WEIR_INT32, 0), none = {0};
  weir_array host = filled(weir_place_host(), WEIR_FLOAT32, 4, 1);
  assert_ok(weir_array_expand(&inverse, 1, (const int64_t[]){5}, &wide));
  assert_error_says(INVALID_ARGUMENT, "count is -1", weir_amp_unscale(&a, -1, &found, &inverse, stream));
  assert_error_says(INVALID_ARGUMENT, "gradients is NULL", weir_amp_unscale(NULL, 1, &found, &inverse, stream));
  assert_error_says(INVALID_ARGUMENT, "a gradient is not an array",
                    weir_amp_unscale(&none, 1, &found, &inverse, stream));
  assert_error_says(INVALID_ARGUMENT, "inv_scale must be a 1-element tensor.",
                    weir_amp_unscale(&a, 1, &found, &two, stream));
  assert_error_says(INVALID_ARGUMENT, "found_inf must be a 1-element tensor.",
                    weir_amp_unscale(&a, 1, &two, &inverse, stream));
  assert_error_says(INVALID_ARGUMENT, "inv_scale must be a float tensor.",
                    weir_amp_unscale(&a, 1, &found, &half, stream));
  assert_error_says(INVALID_ARGUMENT, "found_inf must be a float tensor.",
                    weir_amp_unscale(&a, 1, &half, &inverse, stream));
  assert_error_says(INVALID_ARGUMENT, "inv_scale must be a CUDA tensor.",
                    weir_amp_unscale(&a, 1, &found, &on_host, stream));
  assert_error_says(INVALID_ARGUMENT, "inv_scale must be a CPU tensor.",
                    weir_amp_unscale(&host, 1, &found, &inverse, stream));
  assert_error_says(NOT_SUPPORTED, "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'Int'",
                    weir_amp_unscale(&ints, 1, &found, &inverse, stream));
  assert_error_says(INVALID_ARGUMENT,
                    "more than one element of the written-to tensor refers to a single memory location",
                    weir_amp_unscale(&wide, 1, &found, &inverse, stream));
  assert_error_says(INVALID_ARGUMENT, "Expected all tensors to be on the same device",
                    weir_amp_unscale((weir_array[]){a, host}, 2, &found, &inverse, stream));
  assert_ok(weir_amp_unscale(NULL, 0, NULL, NULL, stream));

  assert_error(INVALID_ARGUMENT, weir_amp_update_scale(NULL, &tracker, &found, 2, 0.5, 1, stream));
  assert_error_says(INVALID_ARGUMENT, "growth_tracker must be an int tensor.",
                    weir_amp_update_scale(&inverse, &found, &found, 2, 0.5, 1, stream));
  assert_error_says(INVALID_ARGUMENT, "current_scale must be a float tensor.",
                    weir_amp_update_scale(&half, &tracker, &found, 2, 0.5, 1, stream));
  assert_error_says(INVALID_ARGUMENT, "found_inf must be a CUDA tensor.",
                    weir_amp_update_scale(&inverse, &tracker, &on_host, 2, 0.5, 1, stream));
  if (devices() > 1) {
    assert_error_says(INVALID_ARGUMENT, "the stream belongs to device 1",
                      weir_amp_unscale(&a, 1, &found, &inverse, current_stream(1)));
    assert_error_says(INVALID_ARGUMENT, "the stream belongs to device 1",
                      weir_amp_update_scale(&inverse, &tracker, &found, 2, 0.5, 1, current_stream(1)));
  }
  assert_true(value_of(&inverse) == 2 && value_of(&found) == 0);
  weir_array *all[] = {&a, &ints, &wide, &two, &found, &inverse, &on_host, &half, &tracker, &host};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    weir_array_release(all[i]);
}

/* ---- The update ---- */

static void update_model(float *scale, int *tracker, bool found, double growth, double backoff, int interval) {
  if (found) {
    *scale = (float)(*scale * backoff);
    *tracker = 0;
  } else if (++*tracker == interval) {
    float grown = (float)(*scale * growth);
    *scale = isfinite(grown) ? grown : *scale;
    *tracker = 0;
  }
}

TEST(update_scale) {
  uint64_t seed = 3;
  weir_place places[] = {weir_place_device(0), weir_place_host()};
  for (int p = 0; p < 2; p++) {
    float scale = 0x1p120F;
    int tracker = 0;
    weir_array s = scalar_array(places[p], WEIR_FLOAT32, scale), t = scalar_array(places[p], WEIR_INT32, 0);
    weir_array found = scalar_array(places[p], WEIR_FLOAT32, 0);
    for (int i = 0; i < 200; i++) {
      bool is_found = i >= 100 && next_random(&seed) % 3 == 0;
      double growth = i % 2 ? 2 : 1.3, backoff = i % 2 ? 0.5 : 0.7;
      int interval = 1 + (int)(next_random(&seed) % 3);
      assert_ok(weir_array_fill(&found, weir_scalar_float(is_found ? 2 : 0), stream));
      assert_ok(weir_amp_update_scale(&s, &t, &found, growth, backoff, interval, stream));
      update_model(&scale, &tracker, is_found, growth, backoff, interval);
      assert_true(value_of(&s) == (double)scale);
      assert_true(value_of(&t) == tracker);
      assert_true(value_of(&found) == (is_found ? 2 : 0));
    }
    weir_array_release(&s);
    weir_array_release(&t);
    weir_array_release(&found);
  }
}

/* ---- Scalers ---- */

static weir_grad_scaler_state state_of(weir_grad_scaler *scaler) {
  weir_grad_scaler_state state;
  weir_grad_scaler_state_init(&state);
  assert_ok(weir_grad_scaler_get_state(scaler, stream, &state));
  return state;
}

TEST(scaler) {
  weir_place places[] = {weir_place_device(0), weir_place_host()};
  for (int p = 0; p < 2; p++) {
    weir_grad_scaler_state params;
    weir_grad_scaler_state_init(&params);
    params.scale = 8;
    params.growth_interval = 2;
    weir_grad_scaler *scaler;
    assert_ok(weir_grad_scaler_create(places[p], &params, stream, &scaler));
    float scale = 8;
    int tracker = 0;
    for (int i = 0; i < 20; i++) {
      bool is_bad = i % 7 == 5;
      int found;
      weir_array gradients[2] = {filled(places[p], WEIR_FLOAT32, 100, 3), {0}}, loss = {0};
      assert_ok(weir_grad_scaler_scale(scaler, &gradients[0], stream, &loss));
      assert_ok(weir_array_to(&loss, places[p], is_bad ? WEIR_FLOAT16 : WEIR_FLOAT32, stream, 0, &gradients[1]));
      assert_ok(weir_array_binary_scalar(WEIR_BINARY_MUL, &gradients[1], weir_scalar_float(is_bad ? 60000 : 2), 0,
                                         stream, &gradients[1]));
      /* In two calls: what the first one finds stays. */
      assert_ok(weir_grad_scaler_unscale(scaler, &gradients[1], 1, stream));
      assert_ok(weir_grad_scaler_unscale(scaler, &gradients[0], 1, stream));
      assert_ok(weir_grad_scaler_has_found_inf(scaler, stream, &found));
      assert_int_equal(found, is_bad);
      weir_array flag = {0}, last = {0};
      assert_ok(weir_grad_scaler_found_inf_array(scaler, &flag));
      assert_true(value_of(&flag) == found);
      assert_ok(weir_array_select(&gradients[1], 0, 99, &last));
      if (!is_bad)
        assert_true(value_of(&last) == 6);
      assert_ok(weir_grad_scaler_update(scaler, stream));
      update_model(&scale, &tracker, is_bad, 2, 0.5, 2);
      params = state_of(scaler);
      assert_true(params.scale == (double)scale && params.growth_tracker == tracker);
      assert_true(params.growth_factor == 2 && params.backoff_factor == 0.5 && params.growth_interval == 2);
      assert_true(value_of(&flag) == 0);
      weir_array *all[] = {&gradients[0], &gradients[1], &loss, &flag, &last};
      for (int k = 0; k < 5; k++)
        weir_array_release(all[k]);
    }

    /* A state goes on elsewhere. */
    weir_grad_scaler *other;
    params = state_of(scaler);
    params.scale = 1024, params.growth_tracker = 1, params.growth_factor = 4;
    assert_ok(weir_grad_scaler_create(places[1 - p], NULL, stream, &other));
    assert_true(state_of(other).scale == 65536 && state_of(other).growth_interval == 2000);
    assert_ok(weir_grad_scaler_set_state(other, &params, stream));
    assert_ok(weir_grad_scaler_update(other, stream));
    assert_true(state_of(other).scale == 4096);
    weir_grad_scaler_destroy(other);
    weir_grad_scaler_destroy(scaler);
  }
  weir_grad_scaler_destroy(NULL);
}

TEST(scaler_refused) {
  weir_grad_scaler *scaler = NULL;
  weir_grad_scaler_state params, wrong;
  weir_grad_scaler_state_init(&params);
  weir_grad_scaler_state_init(NULL);
  int found = 5;
  weir_array a = filled(weir_place_host(), WEIR_FLOAT32, 4, 1), out = {0};
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_create(weir_place_device(0), &params, stream, NULL));
  wrong = params, wrong.size = 3;
  assert_error_says(INVALID_ARGUMENT, "state->size is 3",
                    weir_grad_scaler_create(weir_place_device(0), &wrong, stream, &scaler));
  wrong = params, wrong.growth_factor = 1;
  assert_error_says(INVALID_ARGUMENT, "The growth factor must be > 1.0.",
                    weir_grad_scaler_create(weir_place_device(0), &wrong, stream, &scaler));
  wrong = params, wrong.backoff_factor = 1;
  assert_error_says(INVALID_ARGUMENT, "The backoff factor must be < 1.0.",
                    weir_grad_scaler_create(weir_place_device(0), &wrong, stream, &scaler));
  wrong = params, wrong.scale = DBL_MAX;
  assert_error_says(INVALID_ARGUMENT, "no finite float32",
                    weir_grad_scaler_create(weir_place_device(0), &wrong, stream, &scaler));
  assert_null(scaler);
  assert_ok(weir_grad_scaler_create(weir_place_device(0), NULL, stream, &scaler));
  assert_error_says(INVALID_ARGUMENT, "Expected all tensors to be on the same device",
                    weir_grad_scaler_unscale(scaler, &a, 1, stream));
  assert_error_says(INVALID_ARGUMENT, "Expected all tensors to be on the same device",
                    weir_grad_scaler_scale(scaler, &a, stream, &out));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_scale(NULL, &a, stream, &out));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_scale(scaler, &a, stream, NULL));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_unscale(NULL, &a, 1, stream));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_unscale(scaler, NULL, 1, stream));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_has_found_inf(NULL, stream, &found));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_has_found_inf(scaler, stream, NULL));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_found_inf_array(NULL, &out));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_found_inf_array(scaler, NULL));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_update(NULL, stream));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_get_state(NULL, stream, &params));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_get_state(scaler, stream, NULL));
  wrong.size = 0;
  assert_error_says(INVALID_ARGUMENT, "state->size is 0", weir_grad_scaler_get_state(scaler, stream, &wrong));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_set_state(NULL, &params, stream));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_set_state(scaler, NULL, stream));
  assert_error(INVALID_ARGUMENT, weir_grad_scaler_set_state(scaler, &wrong, stream));
  if (devices() > 1) {
    assert_error(INVALID_ARGUMENT, weir_grad_scaler_update(scaler, current_stream(1)));
    assert_error(INVALID_ARGUMENT, weir_grad_scaler_set_state(scaler, &params, current_stream(1)));
  }
  assert_int_equal(found, 5);
  assert_null(out.storage);
  weir_array_release(&a);
  weir_grad_scaler_destroy(scaler);
}

/* ---- Graphs, streams and failures ---- */

/* A whole iteration in a graph: the scale changes from replay to replay, and nothing waits for it. */
TEST(capture) {
  weir_grad_scaler_state params;
  weir_grad_scaler_state_init(&params);
  params.scale = 4;
  params.growth_interval = 3;
  weir_grad_scaler *scaler;
  weir_graph *graph;
  weir_array input = filled(weir_place_device(0), WEIR_FLOAT32, 300, 1);
  weir_array result = filled(weir_place_device(0), WEIR_FLOAT32, 300, 0);
  assert_ok(weir_grad_scaler_create(weir_place_device(0), &params, stream, &scaler));
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  weir_array narrow = {0}, scaled = {0}, gradient = {0}, strided = {0};
  assert_ok(weir_array_to(&input, weir_place_device(0), WEIR_FLOAT16, stream, 1, &narrow));
  assert_ok(weir_grad_scaler_scale(scaler, &narrow, stream, &scaled));
  assert_ok(weir_array_to(&scaled, weir_place_device(0), WEIR_FLOAT32, stream, 1, &gradient));
  weir_array_release(&narrow);
  assert_ok(weir_array_slice(&gradient, 0, 0, 150, 1, &narrow));
  assert_ok(weir_array_slice(&gradient, 0, 150, 300, 2, &strided));
  assert_ok(weir_grad_scaler_unscale(scaler, (weir_array[]){narrow, strided}, 2, stream));
  assert_ok(weir_array_copy(&result, &gradient, stream, 1));
  assert_ok(weir_grad_scaler_update(scaler, stream));
  weir_array *all[] = {&narrow, &scaled, &gradient, &strided};
  for (int i = 0; i < 4; i++)
    weir_array_release(all[i]);
  assert_ok(weir_graph_end_capture(graph));

  static const double values[] = {5, 20000, 5, 40000, 5, 5, 5};
  float scale = 4;
  int tracker = 0;
  for (int i = 0; i < 7; i++) {
    bool is_found = values[i] * (double)scale > 65504;
    assert_ok(weir_array_fill(&input, weir_scalar_float(values[i]), stream));
    assert_ok(weir_graph_replay(graph));
    weir_array one = {0};
    assert_ok(weir_array_select(&result, 0, 298, &one));
    assert_true(value_of(&one) == (is_found ? INFINITY : values[i]));
    weir_array_release(&one);
    update_model(&scale, &tracker, is_found, 2, 0.5, 3);
    assert_true(state_of(scaler).scale == (double)scale);
    assert_int_equal(state_of(scaler).growth_tracker, tracker);
  }
  assert_true(scale == 2);
  weir_graph_destroy(graph);
  weir_grad_scaler_destroy(scaler);
  weir_array_release(&input);
  weir_array_release(&result);
}

/* Everything but reading is enqueued behind a stream that is blocked. */
TEST(no_wait) {
  weir_grad_scaler *scaler;
  weir_array gradient = filled(weir_place_device(0), WEIR_FLOAT32, 1000, 65536);
  assert_ok(weir_grad_scaler_create(weir_place_device(0), NULL, stream, &scaler));
  weir_grad_scaler_state params = state_of(scaler);
  for (int round = 0; round < 2; round++) { /* the first round loads the kernels */
    struct held *held = round ? hold(stream) : NULL;
    assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_ERROR));
    assert_ok(weir_array_fill(&gradient, weir_scalar_float(65536), stream));
    assert_ok(weir_grad_scaler_set_state(scaler, &params, stream));
    assert_ok(weir_grad_scaler_unscale(scaler, &gradient, 1, stream));
    assert_ok(weir_grad_scaler_update(scaler, stream));
    assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_DEFAULT));
    if (held)
      unblock(held);
    assert_int_equal(state_of(scaler).growth_tracker, 1);
    weir_array one = {0};
    assert_ok(weir_array_select(&gradient, 0, 999, &one));
    assert_true(value_of(&one) == 1);
    weir_array_release(&one);
  }
  weir_array_release(&gradient);
  weir_grad_scaler_destroy(scaler);
}

/* 192 arrays take one launch, whatever their types, and empty ones none. */
TEST(launches) {
  NEED_SOFT("counts calls of the software device");
  enum { MAX = 400 };
  static const int counts[] = {1, 192, 193, 384, MAX};
  weir_array found = scalar_array(weir_place_device(0), WEIR_FLOAT32, 0);
  weir_array inverse = scalar_array(weir_place_device(0), WEIR_FLOAT32, 0.5);
  weir_array *arrays = calloc(MAX + 1, sizeof *arrays);
  assert_non_null(arrays);
  for (int i = 0; i <= MAX; i++)
    arrays[i] = filled(weir_place_device(0), floats[i % 4], i == MAX ? 0 : 1 + i % 5, 2);
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    unsigned long before, after, faults;
    assert_ok(weir_fault_counts(fault, WEIR_CALL_LaunchKernel, &before, &faults));
    assert_ok(weir_amp_unscale(arrays, counts[i], &found, &inverse, stream));
    assert_ok(weir_amp_unscale(&arrays[MAX], 1, &found, &inverse, stream));
    assert_ok(weir_fault_counts(fault, WEIR_CALL_LaunchKernel, &after, &faults));
    assert_int_equal(after - before, (counts[i] + 191) / 192);
  }
  for (int i = 0; i <= MAX; i++)
    weir_array_release(&arrays[i]);
  free(arrays);
  weir_array_release(&found);
  weir_array_release(&inverse);
}

static weir_status scenario(void) {
  weir_grad_scaler *scaler = NULL;
  weir_array gradients[3] = {{0}}, strided = {0}, scaled = {0};
  int64_t shape[] = {9};
  weir_status status = weir_grad_scaler_create(weir_place_device(0), NULL, stream, &scaler);
  for (int i = 0; i < 3 && !status; i++) {
    status = weir_array_empty(weir_place_device(0), floats[i], 1, shape, stream, &gradients[i]);
    if (!status)
      status = weir_array_fill(&gradients[i], weir_scalar_int(2), stream);
  }
  if (!status)
    status = weir_grad_scaler_scale(scaler, &gradients[2], stream, &scaled);
  if (!status)
    status = weir_array_slice(&scaled, 0, 0, 9, 2, &strided);
  if (!status)
    status = weir_grad_scaler_unscale(scaler, gradients, 3, stream);
  if (!status)
    status = weir_grad_scaler_unscale(scaler, &strided, 1, stream);
  if (!status)
    status = weir_grad_scaler_update(scaler, stream);
  weir_grad_scaler_state state;
  weir_grad_scaler_state_init(&state);
  if (!status)
    status = weir_grad_scaler_get_state(scaler, stream, &state);
  if (!status)
    assert_true(state.scale == 65536 && state.growth_tracker == 1);
  for (int i = 0; i < 3; i++)
    weir_array_release(&gradients[i]);
  weir_array_release(&strided);
  weir_array_release(&scaled);
  weir_grad_scaler_destroy(scaler);
  return status;
}

TEST(failing_calls) {
  NEED_SOFT("calls of NVIDIA's driver are not made to fail");
  collect_messages();
  assert_ok(scenario());
  bool has_failed = true;
  for (unsigned long n = 1; has_failed; n++) {
    assert_ok(weir_memory_empty_cache());
    has_failed = fails_at(n, scenario);
    assert_ok(scenario());
  }
}
