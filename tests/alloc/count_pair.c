/*
 * count_pair CASE PAIRS: warms up, then makes PAIRS pairs of an allocation and a free on the cached path, in the
 * function counted_pairs, whose instructions instructions.sh counts; this program only checks that the calls succeed.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "patterns.h"
#include "weir/weir.h"
#include "weir_calls.h"

static const struct count_case {
  const char *name, *conf;
  bool in_scope; /* of a private pool */
  bench_pattern pattern;
} cases[] = {
    {"small_pair", "", false, {.kind = BENCH_PAIR, .bytes = 512, .threads = 1}},
    {"large_pair", "", false, {.kind = BENCH_PAIR, .bytes = 8 * BENCH_MIB, .threads = 1}},
    {"expandable_pair", "expandable_segments:True", false, {.kind = BENCH_PAIR, .bytes = 512, .threads = 1}},
    {"moving_pair", "moving_pages:True", false, {.kind = BENCH_PAIR, .bytes = 512, .threads = 1}},
    {"scoped_pair", "", true, {.kind = BENCH_PAIR, .bytes = 512, .threads = 1}},
    {"replace_1000", "", false, {.kind = BENCH_REPLACE, .bytes = BENCH_MIB, .live = 1000, .threads = 1}},
    {"moving_1000",
     "moving_pages:True",
     false,
     {.kind = BENCH_REPLACE, .bytes = BENCH_MIB, .live = 1000, .threads = 1}},
};

BENCH_PLAYER(player, take_from_weir, give_to_weir);
BENCH_PLAYER(pinned_player, take_pinned, give_pinned);

static int failed(const char *what) {
  fprintf(stderr, "count_pair: %s: %s\n", what, weir_last_error());
  return 1;
}

static const bench_player *counted; /* not an argument, for which a compiler may make a copy with another name */

__attribute__((noinline)) static double counted_pairs(bench_work *work, long pairs) {
  return counted->round(work, pairs);
}

static int run(const struct count_case *c, long pairs) {
  static void *blocks[2000];
  void *streams[1] = {NULL};
  weir_driver *driver;
  weir_allocator *allocator;
  weir_allocator_options options;
  weir_allocator_stats before = {.size = sizeof before}, after = {.size = sizeof after};
  weir_allocator_options_init(&options);
  options.conf = c->conf;
  if (weir_driver_open_ledger(NULL, &driver) || driver->Init(driver, 0) ||
      weir_allocator_create(driver, &options, &allocator))
    return failed("no allocator");
  if (c->in_scope && weir_pool_begin(allocator, 0, (weir_pool_id){0, 1}, NULL, NULL))
    return failed(c->name);
  bench_work work = {.pattern = &c->pattern,
                     .context = allocator,
                     .streams = streams,
                     .blocks = blocks,
                     .warm_steps = 2 * BENCH_WARM_STEPS};
  counted = &player;
  if (!player.begin(&work) || weir_allocator_get_stats(allocator, 0, &before) || counted_pairs(&work, pairs) < 0 ||
      weir_allocator_get_stats(allocator, 0, &after))
    return failed(c->name);
  player.end(&work);
  weir_allocator_destroy(allocator);
  weir_driver_close(driver);
  if (after.num_device_alloc == before.num_device_alloc && after.num_device_free == before.num_device_free)
    return 0;
  fprintf(stderr, "count_pair: %s: the driver was called, so this is not the cached path\n", c->name);
  return 1;
}

static int run_pinned(long pairs) {
  static const bench_pattern pattern = {.kind = BENCH_PAIR, .bytes = 4096, .threads = 1};
  void *streams[1] = {NULL}, *blocks[1] = {NULL};
  weir_driver *driver;
  weir_host_allocator *host;
  if (weir_driver_open_ledger(NULL, &driver) || driver->Init(driver, 0) ||
      weir_host_allocator_create(
          driver, &(const weir_host_allocator_options){.size = sizeof(weir_host_allocator_options), .conf = ""}, &host))
    return failed("no allocator of pinned memory");
  bench_work work = {.pattern = &pattern, .context = host, .streams = streams, .blocks = blocks};
  counted = &pinned_player;
  if (!pinned_player.begin(&work) || counted_pairs(&work, pairs) < 0)
    return failed("pinned_pair");
  pinned_player.end(&work);
  weir_host_allocator_destroy(host);
  weir_driver_close(driver);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "pinned_pair") == 0)
    return run_pinned(atol(argv[2]));
  for (size_t i = 0; argc == 3 && i < sizeof cases / sizeof cases[0]; i++)
    if (strcmp(argv[1], cases[i].name) == 0)
      return run(&cases[i], atol(argv[2]));
  fputs("usage: count_pair CASE PAIRS\n", stderr);
  return 2;
}
