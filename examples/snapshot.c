/*
 * Counters by name, the summary, and a snapshot for PyTorch's viewer and for weir replay. `snapshot FILE` keeps the
 * snapshot; without a name it is written to a temporary file.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { TENSORS = 6 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

int main(int argc, char **argv) {
  static const size_t sizes[TENSORS] = {1000, 60000, 3 << 20, 12 << 20, 700, 5 << 20};
  weir_driver *driver;
  weir_allocator *allocator;
  weir_snapshot *snapshot;
  void *tensors[TENSORS];
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_allocator_create(driver, NULL, &allocator));
  for (int i = 0; i < TENSORS; i++)
    check(weir_allocator_alloc(allocator, 0, sizes[i], NULL, &tensors[i]));
  check(weir_allocator_free(allocator, tensors[1]));
  check(weir_allocator_free(allocator, tensors[2]));

  int64_t requested;
  char line[256], table[8192];
  check(weir_allocator_stat(allocator, 0, "requested_bytes.all.current", &requested));
  check(weir_allocator_summary(allocator, 0, WEIR_SUMMARY_LINE, line, sizeof line, NULL));
  check(weir_allocator_summary(allocator, 0, WEIR_SUMMARY_ABBREVIATED, table, sizeof table, NULL));
  printf("%" PRId64 " bytes were asked for\n%s\n%s", requested, line, table);

  const weir_snapshot_segment *segments;
  size_t count;
  check(weir_snapshot_take(allocator, NULL, &snapshot));
  check(weir_snapshot_segments(snapshot, &segments, &count));
  for (size_t i = 0; i < count; i++) {
    const weir_snapshot_segment *segment = weir_snapshot_segment_at(segments, i);
    printf("segment of %" PRIu64 " KiB: %zu blocks, %" PRIu64 " KiB in use\n", segment->bytes >> 10,
           segment->block_count, segment->allocated >> 10);
  }

  const char *path = argc > 1 ? argv[1] : "weir_example_snapshot.pickle";
  check(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, path));
  if (argc == 1)
    remove(path);
  weir_snapshot_destroy(snapshot);
  weir_allocator_destroy(allocator);
  check(weir_shutdown());
  return 0;
}
