/*
 * moving_job STREAMS COUNT FILE.pickle: allocates, uses and frees COUNT blocks of many sizes on several streams, and
 * then asks for more memory than there is. With 0 streams it frees every other block, and asks for a block that is
 * larger than each of the holes. Saves a snapshot with its history. WEIR_RECORD records it as well.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

#define MIB ((size_t)1 << 20)

enum { MAX_STREAMS = 8, HELD = 24 };

static weir_allocator *allocator;
static void *held[HELD];

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "moving_job: %s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

/* Returns the size of a request that must fail. */
static size_t make_holes(void) {
  for (size_t i = 0; i < 12; i++)
    check(weir_allocator_alloc(allocator, 0, 4 * MIB, NULL, &held[i]));
  for (size_t i = 0; i < 12; i += 2) {
    check(weir_allocator_free(allocator, held[i]));
    held[i] = NULL;
  }
  return 20 * MIB;
}

static size_t use_streams(int streams, long count) {
  weir_stream stream[MAX_STREAMS];
  weir_cu_stream raw[MAX_STREAMS];
  uint32_t random = 7;
  for (int i = 0; i < streams; i++) {
    check(weir_stream_create(0, 0, &stream[i]));
    check(weir_stream_raw(stream[i], &raw[i]));
  }
  for (long i = 0; i < count; i++) {
    random = random * 1664525 + 1013904223;
    size_t at = (random >> 8) % HELD, on = (random >> 16) % (size_t)streams;
    if (held[at]) {
      check(weir_allocator_free(allocator, held[at]));
      held[at] = NULL;
      continue;
    }
    size_t bytes = MIB + (random >> 4) % (15 * MIB);
    check(weir_allocator_alloc(allocator, 0, bytes, raw[on], &held[at]));
    check(weir_fill32_async(held[at], random, 16384, stream[on])); /* work that keeps the stream busy */
  }
  return (size_t)2 << 30;
}

int main(int argc, char **argv) {
  int streams = argc == 4 ? atoi(argv[1]) : -1;
  weir_driver *driver;
  weir_snapshot *snapshot;
  void *refused;
  if (streams < 0 || streams > MAX_STREAMS) {
    fputs("usage: moving_job STREAMS COUNT FILE.pickle\n", stderr);
    return 2;
  }
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_allocator_create(driver, NULL, &allocator));
  check(weir_history_record(allocator, NULL));
  size_t bytes = streams ? use_streams(streams, atol(argv[2])) : make_holes();
  if (weir_allocator_alloc(allocator, 0, bytes, NULL, &refused) == WEIR_OK) {
    fputs("moving_job: memory did not run out\n", stderr);
    return 1;
  }
  weir_allocator_stats stats = {.size = sizeof stats};
  check(weir_allocator_get_stats(allocator, 0, &stats));
  check(weir_snapshot_take(allocator, NULL, &snapshot));
  check(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, argv[3]));
  weir_snapshot_destroy(snapshot);
  printf("%lld pages moved\n", (long long)stats.moving_pages_moved);
  for (size_t i = 0; i < HELD; i++)
    if (held[i])
      check(weir_allocator_free(allocator, held[i]));
  weir_allocator_destroy(allocator);
  check(weir_shutdown());
  return 0;
}
