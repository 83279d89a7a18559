/*
 * Typed arrays: a two-layer perceptron is trained with gradients written by hand. The first step is checked against
 * plain loops on the host.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/compute/array.h>
#include <weir/compute/blas.h>
#include <weir/compute/random.h>
#include <weir/weir.h>

enum { POINTS = 128, INPUTS = 4, HIDDEN = 8, STEPS = 300 };
static const double RATE = 0.3;

static void check(weir_status status) {
  if (status == WEIR_OK)
    return;
  fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
  exit(1);
}

static weir_stream stream;
static weir_array x, y, w1, w2; /* y is about tanh(x w1) w2 */

static weir_array empty(int64_t rows, int64_t columns) {
  weir_array made = {0};
  check(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, (int64_t[]){rows, columns}, stream, &made));
  return made;
}

static weir_array turned(const weir_array *a) {
  weir_array view = {0};
  check(weir_array_transpose(a, 0, 1, &view));
  return view;
}

/* Releases both operands and returns the product. */
static weir_array product(weir_array a, weir_array b) {
  weir_array made = {0};
  check(weir_array_matmul(&a, &b, stream, &made));
  weir_array_release(&a);
  weir_array_release(&b);
  return made;
}

static weir_array shared(const weir_array *a) {
  weir_array other = {0};
  check(weir_array_share(a, &other));
  return other;
}

/* One step of gradient descent. Returns the mean squared error before it. */
static double step(void) {
  weir_array hidden = product(shared(&x), shared(&w1)), loss = {0}, slope = {0}, squares = {0};
  check(weir_array_unary(WEIR_UNARY_TANH, &hidden, stream, &hidden)); /* in place */
  weir_array error = product(shared(&hidden), shared(&w2));
  check(weir_array_binary(WEIR_BINARY_SUB, &error, &y, stream, &error));
  check(weir_array_unary(WEIR_UNARY_SQUARE, &error, stream, &squares));
  check(weir_array_reduce(WEIR_REDUCE_MEAN, &squares, NULL, 0, 0, stream, &loss));

  /* The derivative of tanh(z) is 1 - tanh(z)^2. */
  weir_array back = product(shared(&error), turned(&w2));
  check(weir_array_unary(WEIR_UNARY_SQUARE, &hidden, stream, &slope));
  check(weir_array_binary_scalar(WEIR_BINARY_SUB, &slope, weir_scalar_int(1), 1, stream, &slope));
  check(weir_array_binary(WEIR_BINARY_MUL, &back, &slope, stream, &back));
  weir_array gradient1 = product(turned(&x), back), gradient2 = product(turned(&hidden), error);
  weir_scalar rate = weir_scalar_float(-RATE * 2 / POINTS);
  check(weir_array_add_scaled(&w1, &gradient1, rate, stream, &w1));
  check(weir_array_add_scaled(&w2, &gradient2, rate, stream, &w2));

  weir_scalar value;
  check(weir_array_item(&loss, stream, &value));
  weir_array *all[] = {&hidden, &loss, &slope, &squares, &gradient1, &gradient2};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    weir_array_release(all[i]);
  return value.real;
}

/* The elements as doubles, in memory of malloc. */
static double *on_host(const weir_array *a) {
  weir_array host = {0};
  size_t bytes = (size_t)weir_array_count(a) * sizeof(double);
  double *values = malloc(bytes);
  check(weir_array_to(a, weir_place_host(), WEIR_FLOAT64, stream, 0, &host));
  for (size_t i = 0; values && i < bytes / sizeof *values; i++)
    values[i] = ((double *)host.data)[i];
  weir_array_release(&host);
  return values;
}

/* The same step by plain loops: updates the weights and returns the loss. */
static double plain_step(const double *px, const double *py, double *p1, double *p2) {
  double d1[INPUTS * HIDDEN] = {0}, d2[HIDDEN] = {0}, loss = 0;
  for (int n = 0; n < POINTS; n++) {
    double hidden[HIDDEN], error = -py[n];
    for (int h = 0; h < HIDDEN; h++) {
      double sum = 0;
      for (int i = 0; i < INPUTS; i++)
        sum += px[n * INPUTS + i] * p1[i * HIDDEN + h];
      hidden[h] = tanh(sum);
      error += hidden[h] * p2[h];
    }
    loss += error * error / POINTS;
    for (int h = 0; h < HIDDEN; h++) {
      d2[h] += hidden[h] * error;
      for (int i = 0; i < INPUTS; i++)
        d1[i * HIDDEN + h] += px[n * INPUTS + i] * error * p2[h] * (1 - hidden[h] * hidden[h]);
    }
  }
  for (int i = 0; i < INPUTS * HIDDEN; i++)
    p1[i] -= RATE * 2 / POINTS * d1[i];
  for (int h = 0; h < HIDDEN; h++)
    p2[h] -= RATE * 2 / POINTS * d2[h];
  return loss;
}

static double difference(const weir_array *a, const double *expected) {
  double *values = on_host(a), largest = 0;
  for (int64_t i = 0; i < weir_array_count(a); i++)
    largest = fmax(largest, fabs(values[i] - expected[i]));
  free(values);
  return largest;
}

int main(void) {
  weir_generator *generator;
  check(weir_stream_create(0, 0, &stream));
  check(weir_stream_set_current(stream));
  check(weir_generator_default(0, &generator));
  check(weir_generator_manual_seed(generator, 3));
  x = empty(POINTS, INPUTS);
  w1 = empty(INPUTS, HIDDEN);
  w2 = empty(HIDDEN, 1);
  check(weir_random_normal(generator, x.data, POINTS * INPUTS, WEIR_FLOAT32, 0, 1, stream));
  check(weir_random_normal(generator, w1.data, INPUTS * HIDDEN, WEIR_FLOAT32, 0, 0.5, stream));
  check(weir_random_normal(generator, w2.data, HIDDEN, WEIR_FLOAT32, 0, 0.5, stream));
  /* The target is the sine of the sum of the inputs, which no linear model fits. */
  int last = 1;
  check(weir_array_reduce(WEIR_REDUCE_SUM, &x, &last, 1, 1, stream, &y));
  check(weir_array_unary(WEIR_UNARY_SIN, &y, stream, &y));

  double *px = on_host(&x), *py = on_host(&y), *p1 = on_host(&w1), *p2 = on_host(&w2);
  double expected = plain_step(px, py, p1, p2), first = step(), end = first;
  double largest = fmax(fabs(first - expected), fmax(difference(&w1, p1), difference(&w2, p2)));
  printf("the first step differs from plain loops by %s\n", largest < 1e-5 ? "less than 0.00001" : "too much");
  for (int i = 1; i < STEPS; i++)
    end = step();
  printf("the loss fell from %.3f to %.3f\n", first, end);

  free(px), free(py), free(p1), free(p2);
  weir_array *all[] = {&x, &y, &w1, &w2};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    weir_array_release(all[i]);
  check(weir_blas_clear_workspaces());
  check(weir_shutdown());
  return largest >= 1e-5 || end > first / 2;
}
