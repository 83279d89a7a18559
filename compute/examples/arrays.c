/*
 * Typed arrays: a linear model is fitted to points by gradient descent. There is no autograd, so the program computes
 * the gradient, and then runs one step as a captured graph.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir/compute/array.h>
#include <weir/compute/blas.h>
#include <weir/compute/random.h>
#include <weir/weir.h>

enum { POINTS = 200, FEATURES = 3, STEPS = 100 };

static void check(weir_status status) {
  if (status == WEIR_OK)
    return;
  fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
  exit(1);
}

static weir_stream stream;
static weir_array x, x_turned, y, weights, loss; /* y is about x @ weights */

/* One step of gradient descent: the gradient of the mean squared error is 2 / POINTS * x' (x w - y). */
static void step(void) {
  weir_array predicted = {0}, error = {0}, squares = {0}, gradient = {0};
  check(weir_array_matmul(&x, &weights, stream, &predicted));
  check(weir_array_binary(WEIR_BINARY_SUB, &predicted, &y, stream, &error));
  check(weir_array_unary(WEIR_UNARY_SQUARE, &error, stream, &squares));
  check(weir_array_reduce(WEIR_REDUCE_MEAN, &squares, NULL, 0, 0, stream, &loss));
  check(weir_array_matmul(&x_turned, &error, stream, &gradient));
  check(weir_array_add_scaled(&weights, &gradient, weir_scalar_float(-0.3 * 2 / POINTS), stream, &weights));
  weir_array_release(&predicted);
  weir_array_release(&error);
  weir_array_release(&squares);
  weir_array_release(&gradient);
}

static double value_of(const weir_array *array) {
  weir_scalar scalar;
  check(weir_array_item(array, stream, &scalar));
  return scalar.real;
}

int main(void) {
  static const float truth[FEATURES] = {1.5f, -2, 0.5f};
  weir_place device = weir_place_device(0);
  weir_generator *generator;
  check(weir_stream_create(0, 0, &stream));
  check(weir_stream_set_current(stream));
  check(weir_generator_default(0, &generator));
  check(weir_generator_manual_seed(generator, 7));

  check(weir_array_empty(device, WEIR_FLOAT32, 2, (int64_t[]){POINTS, FEATURES}, stream, &x));
  check(weir_random_normal(generator, x.data, POINTS * FEATURES, WEIR_FLOAT32, 0, 1, stream));
  check(weir_array_transpose(&x, 0, 1, &x_turned)); /* a view */

  weir_array true_weights = {0}, on_host = {0};
  check(weir_array_from_memory((void *)truth, weir_place_host(), WEIR_FLOAT32, 1, (int64_t[]){FEATURES}, NULL, NULL,
                               NULL, &on_host));
  check(weir_array_to(&on_host, device, WEIR_FLOAT32, stream, 0, &true_weights));
  check(weir_array_matmul(&x, &true_weights, stream, &y));

  check(weir_array_empty(device, WEIR_FLOAT32, 1, (int64_t[]){FEATURES}, stream, &weights));
  check(weir_array_fill(&weights, weir_scalar_int(0), stream));
  check(weir_array_empty(device, WEIR_FLOAT32, 0, NULL, stream, &loss));
  step();
  double first = value_of(&loss);

  weir_graph *graph;
  check(weir_graph_create(&graph));
  check(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  step();
  check(weir_graph_end_capture(graph));
  for (int i = 1; i < STEPS; i++)
    check(weir_graph_replay(graph));

  double last = value_of(&loss), largest_error = 0;
  weir_array result = {0};
  check(weir_array_to(&weights, weir_place_host(), WEIR_FLOAT64, stream, 0, &result));
  for (int i = 0; i < FEATURES; i++) {
    double error = ((double *)result.data)[i] - truth[i];
    error = error < 0 ? -error : error;
    largest_error = error > largest_error ? error : largest_error;
  }
  printf("the loss fell from %.3f to %s\n", first, last < 1e-6 ? "less than 0.000001" : "too large a value");
  printf("the weights are %.3f %.3f %.3f\n", ((double *)result.data)[0], ((double *)result.data)[1],
         ((double *)result.data)[2]);

  weir_graph_destroy(graph);
  weir_array *all[] = {&x, &x_turned, &y, &weights, &loss, &true_weights, &on_host, &result};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    weir_array_release(all[i]);
  check(weir_blas_clear_workspaces());
  check(weir_shutdown());
  return last >= 1e-6 || largest_error > 1e-3;
}
