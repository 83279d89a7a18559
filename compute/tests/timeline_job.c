/*
 * timeline_job FILE.pickle: runs work on two streams of the software device, inside ranges of two threads, while it is
 * profiled, and saves a snapshot. WEIR_RECORD records it as well.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/compute/nvtx.h>
#include <weir/weir.h>

enum { BYTES = 1 << 16 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "timeline_job: %s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static void *second_thread(void *data) {
  weir_stream *stream = data;
  weir_nvtx_range_push("second thread");
  check(weir_stream_spin(*stream, 200000));
  check(weir_stream_synchronize(*stream));
  weir_nvtx_range_pop();
  return NULL;
}

int main(int argc, char **argv) {
  weir_allocator *allocator;
  weir_driver *driver;
  weir_stream first, second;
  weir_cu_stream raw;
  weir_snapshot *snapshot;
  void *a, *b;
  pthread_t thread;
  if (argc != 2) {
    fputs("usage: timeline_job FILE.pickle\n", stderr);
    return 2;
  }
  char *host = malloc(BYTES);
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_allocator_create(driver, NULL, &allocator));
  check(weir_history_record(allocator, NULL));
  check(weir_stream_create(0, 0, &first));
  check(weir_stream_create(0, 0, &second));
  weir_nvtx_range_push("step");
  check(weir_stream_raw(first, &raw));
  check(weir_allocator_alloc(allocator, 0, BYTES, raw, &a));
  check(weir_allocator_alloc(allocator, 0, BYTES, raw, &b));
  check(weir_profiler_start());
  check(weir_fill_async(a, 7, BYTES, first));
  weir_nvtx_range_push("copy back");
  check(weir_copy(host, a, BYTES, first));
  weir_nvtx_range_pop();
  weir_nvtx_mark("copied");
  uint64_t range = weir_nvtx_range_start("across threads");
  pthread_create(&thread, NULL, second_thread, &second);
  check(weir_copy_async(b, a, BYTES / 2, first));
  check(weir_stream_synchronize(first));
  pthread_join(thread, NULL);
  weir_nvtx_range_end(range);
  check(weir_profiler_stop());
  check(weir_fill_async(a, 9, BYTES, first)); /* not part of the timeline */
  check(weir_stream_synchronize(first));
  weir_nvtx_range_pop();
  check(weir_allocator_free(allocator, a));
  check(weir_allocator_free(allocator, b));
  check(weir_snapshot_take(allocator, NULL, &snapshot));
  check(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, argv[1]));
  weir_snapshot_destroy(snapshot);
  weir_allocator_destroy(allocator);
  free(host);
  check(weir_shutdown());
  return 0;
}
