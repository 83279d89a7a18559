/*
 * weir demo: a linear model is trained by gradient descent on the mean squared error. The gradient is written by hand,
 * and the same steps are done by plain loops on the host.
 */
#include "demo.h"

#ifdef WEIR_HAVE_COMPUTE

#include <math.h>
#include <string.h>

#include "weir/compute/array.h"
#include "weir/compute/blas.h"
#include "weir/compute/compute.h"
#include "weir/compute/kernel.h"

enum { POINTS = 256, FEATURES = 8, STEPS = 60 };
static const double RATE = 0.2;

typedef struct problem {
  float x[POINTS][FEATURES], y[POINTS];
} problem;

/* y is a sum of the features, with noise that no weights explain. */
static void make_problem(problem *p) {
  uint32_t random = 1;
  for (int i = 0; i < POINTS; i++) {
    p->y[i] = 0;
    for (int j = 0; j <= FEATURES; j++) {
      random = random * 1664525u + 1013904223u;
      float value = (float)(random >> 8) / (float)(1 << 23) - 1; /* in [-1, 1) */
      if (j < FEATURES) {
        p->x[i][j] = value;
        p->y[i] += value * (float)(j + 1);
      } else
        p->y[i] += 0.01f * value;
    }
  }
}

static void learn_on_host(const problem *p, double weights[FEATURES]) {
  memset(weights, 0, FEATURES * sizeof *weights);
  for (int step = 0; step < STEPS; step++) {
    double gradient[FEATURES] = {0};
    for (int i = 0; i < POINTS; i++) {
      double error = -p->y[i];
      for (int j = 0; j < FEATURES; j++)
        error += p->x[i][j] * weights[j];
      for (int j = 0; j < FEATURES; j++)
        gradient[j] += 2 * error * p->x[i][j] / POINTS;
    }
    for (int j = 0; j < FEATURES; j++)
      weights[j] -= RATE * gradient[j];
  }
}

typedef struct model {
  weir_stream stream;
  weir_array x, x_turned, y, weights;
} model;

static weir_status upload(const void *data, int ndim, const int64_t *shape, weir_stream stream, weir_array *array) {
  weir_array host = {0};
  weir_status status =
      weir_array_from_memory((void *)data, weir_place_host(), WEIR_FLOAT32, ndim, shape, NULL, NULL, NULL, &host);
  if (!status)
    status = weir_array_to(&host, weir_place_device(0), WEIR_FLOAT32, stream, 0, array);
  weir_array_release(&host);
  return status;
}

/* A step of gradient descent, unless `loss` is given, which then gets the mean squared error. */
static weir_status run_step(model *m, double *loss) {
  weir_array error = {0}, result = {0}, mean = {0};
  weir_scalar value = {0};
  weir_status status = weir_array_matmul(&m->x, &m->weights, m->stream, &error);
  if (!status)
    status = weir_array_binary(WEIR_BINARY_SUB, &error, &m->y, m->stream, &error);
  if (!status && loss) {
    status = weir_array_unary(WEIR_UNARY_SQUARE, &error, m->stream, &result);
    if (!status)
      status = weir_array_reduce(WEIR_REDUCE_MEAN, &result, NULL, 0, 0, m->stream, &mean);
    if (!status)
      status = weir_array_item(&mean, m->stream, &value);
    if (!status)
      *loss = value.real;
  } else if (!status) {
    status = weir_array_matmul(&m->x_turned, &error, m->stream, &result);
    if (!status)
      status =
          weir_array_add_scaled(&m->weights, &result, weir_scalar_float(-2 * RATE / POINTS), m->stream, &m->weights);
  }
  weir_array_release(&error);
  weir_array_release(&result);
  weir_array_release(&mean);
  return status;
}

static weir_status learn(model *m, const problem *p, weir_cli_learned *learned) {
  double expected[FEATURES];
  weir_array result = {0};
  weir_status status = upload(p->x, 2, (int64_t[]){POINTS, FEATURES}, m->stream, &m->x);
  if (!status)
    status = upload(p->y, 1, (int64_t[]){POINTS}, m->stream, &m->y);
  if (!status)
    status = weir_array_transpose(&m->x, 0, 1, &m->x_turned);
  if (!status)
    status = weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, (int64_t[]){FEATURES}, m->stream, &m->weights);
  if (!status)
    status = weir_array_fill(&m->weights, weir_scalar_int(0), m->stream);
  if (!status)
    status = run_step(m, &learned->first);
  for (int step = 0; step < STEPS && !status; step++)
    status = run_step(m, NULL);
  if (!status)
    status = run_step(m, &learned->last);
  if (!status)
    status = weir_array_to(&m->weights, weir_place_host(), WEIR_FLOAT64, m->stream, 0, &result);
  if (!status) {
    learn_on_host(p, expected);
    for (int j = 0; j < FEATURES; j++)
      learned->difference = fmax(learned->difference, fabs(((double *)result.data)[j] - expected[j]));
    learned->steps = STEPS;
  }
  weir_array *all[] = {&m->x, &m->x_turned, &m->y, &m->weights, &result};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    weir_array_release(all[i]);
  return status;
}

weir_status weir_cli_learn(weir_allocator *allocator, weir_stream stream, weir_cli_learned *learned) {
  char path[1024];
  const char *how;
  weir_driver *driver;
  problem p;
  model m = {.stream = stream};
  weir_status status = weir_get_driver(&driver);
  if (status)
    return status;
  *learned = (weir_cli_learned){0};
  if (strcmp(driver->name, "soft") != 0 && weir_library_find("cublas", path, sizeof path, &how)) {
    learned->left_out = "cuBLAS was not found";
    return WEIR_OK;
  }
  make_problem(&p);
  status = weir_compute_use_allocator(allocator);
  if (!status)
    status = learn(&m, &p, learned);
  weir_status cleared = weir_blas_clear_workspaces();
  return status ? status : cleared;
}

#else

weir_status weir_cli_learn(weir_allocator *allocator, weir_stream stream, weir_cli_learned *learned) {
  (void)allocator, (void)stream;
  *learned = (weir_cli_learned){.left_out = "this build has no arrays"};
  return WEIR_OK;
}

#endif
