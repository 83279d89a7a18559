/*
 * Random numbers: an estimate of pi from points in a square, and the same numbers again from a saved state.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir/compute/random.h>
#include <weir/weir.h>

enum { POINTS = 100000 };

static void check(weir_status status) {
  if (status == WEIR_OK)
    return;
  fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
  exit(1);
}

int main(void) {
  static float points[2 * POINTS], again[2 * POINTS];
  unsigned char state[WEIR_GENERATOR_STATE_BYTES];
  weir_generator *generator;
  weir_stream stream;
  void *memory;
  check(weir_stream_default(0, &stream));
  check(weir_malloc(sizeof points, stream, &memory));

  check(weir_generator_default(0, &generator));
  check(weir_generator_manual_seed(generator, 2));
  check(weir_generator_get_state(generator, state));
  check(weir_random_uniform(generator, memory, 2 * POINTS, WEIR_FLOAT32, 0, 1, stream));
  check(weir_copy(points, memory, sizeof points, stream));
  int inside = 0;
  for (int i = 0; i < POINTS; i++)
    inside += points[2 * i] * points[2 * i] + points[2 * i + 1] * points[2 * i + 1] < 1;
  printf("pi is about %.3f\n", 4.0 * inside / POINTS);

  check(weir_generator_set_state(generator, state, sizeof state));
  check(weir_random_uniform(generator, memory, 2 * POINTS, WEIR_FLOAT32, 0, 1, stream));
  check(weir_copy(again, memory, sizeof again, stream));
  int different = 0;
  for (int i = 0; i < 2 * POINTS; i++)
    different += points[i] != again[i];
  printf("the saved state gives %s numbers\n", different ? "other" : "the same");
  check(weir_free(memory));
  check(weir_shutdown());
  return different || abs(inside - 78540) > 1000;
}
