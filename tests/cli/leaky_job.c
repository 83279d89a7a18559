/*
 * leaky_job STEPS LEAK LIMIT: a training loop of so many steps with phases that keeps LEAK bytes in each, until LIMIT
 * bytes are reserved. Record it with WEIR_RECORD. Sizes of activations differ from step to step. Prints the number of
 * complete steps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

#define KIB ((size_t)1 << 10)

enum { LAYERS = 6 };

static weir_allocator *allocator;

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "leaky_job: %s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static void *take(size_t bytes) {
  void *pointer;
  return weir_allocator_alloc(allocator, 0, bytes, NULL, &pointer) == WEIR_OK ? pointer : NULL;
}

static void give(void **pointer) {
  if (*pointer)
    check(weir_allocator_free(allocator, *pointer));
  *pointer = NULL;
}

/* Returns 0 when memory runs out. */
static int step(long number, size_t leak) {
  static void *state[LAYERS];
  void *activations[LAYERS] = {NULL}, *gradients[LAYERS] = {NULL}, *kept = NULL;
  size_t batch = 1 + (size_t)(number * 7 % 5);
  int ok = 1;
  uint32_t before = weir_history_enter_phase("forward");
  for (int i = 0; i < LAYERS && ok; i++)
    ok = (activations[i] = take(256 * KIB * batch)) != NULL;
  if (ok && leak)
    ok = (kept = take(leak)) != NULL;
  weir_history_leave_phase(before);
  before = weir_history_enter_phase("backward");
  for (int i = LAYERS; i-- > 0;) {
    ok = ok && (gradients[i] = take(512 * KIB)) != NULL;
    give(&activations[i]);
  }
  weir_history_leave_phase(before);
  before = weir_history_enter_phase("optimizer");
  for (int i = 0; i < LAYERS && ok && !state[i]; i++)
    ok = (state[i] = take(1024 * KIB)) != NULL;
  for (int i = 0; i < LAYERS; i++)
    give(&gradients[i]);
  weir_history_leave_phase(before);
  return ok;
}

int main(int argc, char **argv) {
  weir_driver *driver;
  if (argc != 4) {
    fputs("usage: leaky_job STEPS LEAK LIMIT\n", stderr);
    return 2;
  }
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_allocator_create(driver, NULL, &allocator));
  check(weir_allocator_set_limit(allocator, 0, strtoull(argv[3], NULL, 10)));
  for (int i = 0; i < LAYERS; i++)
    if (!take(512 * KIB))
      return 1;
  long done = 0;
  while (done < atol(argv[1]) && step(done, strtoull(argv[2], NULL, 10)))
    done++;
  printf("%ld\n", done);
  weir_allocator_destroy(allocator);
  check(weir_shutdown());
  return 0;
}
