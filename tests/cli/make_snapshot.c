/*
 * make_snapshot FILE.pickle: writes a Weir snapshot with every feature: history with stacks, phases, marks and
 * metadata, annotations, an out of memory, private pools, a graph's pool, expandable segments and pinned host memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

#define MIB ((size_t)1 << 20)

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "make_snapshot: %s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static size_t frames_of_a_language(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  if (room < 2)
    return 0;
  frames[0] = (weir_stack_frame){weir_history_text("model.py"), weir_history_text("forward"), 41};
  frames[1] = (weir_stack_frame){weir_history_text("train.py"), weir_history_text("main"), 7};
  return 2;
}

static void *take(weir_allocator *allocator, size_t bytes, weir_cu_stream stream) {
  void *pointer;
  check(weir_allocator_alloc(allocator, 0, bytes, stream, &pointer));
  return pointer;
}

/* Memory of a live graph. */
static weir_graph *capture(weir_allocator *allocator, weir_stream stream) {
  weir_cu_stream raw;
  weir_graph *graph;
  check(weir_stream_raw(stream, &raw));
  check(weir_graph_use_allocator(allocator));
  check(weir_graph_create(&graph));
  check(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_THREAD_LOCAL));
  void *inside = take(allocator, 3 * MIB, raw);
  check(weir_fill32_async(inside, 1, 1024, stream));
  check(weir_allocator_free(allocator, inside));
  check(weir_graph_end_capture(graph));
  return graph;
}

static void annotate(weir_allocator *allocator, const char *stage) {
  const char *const pairs[] = {"name", "step", "stage", stage, "epoch", "3"};
  check(weir_history_annotate(allocator, 0, pairs, 3));
}

int main(int argc, char **argv) {
  weir_driver *driver;
  weir_allocator *allocator;
  weir_host_allocator *host;
  weir_snapshot *snapshot;
  weir_stream stream, other;
  weir_cu_stream raw;
  void *pinned, *refused;
  if (argc != 2) {
    fputs("usage: make_snapshot FILE.pickle\n", stderr);
    return 2;
  }
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_allocator_create(driver, NULL, &allocator));
  check(weir_host_allocator_create(driver, NULL, &host));
  check(weir_stream_create(0, 0, &stream));
  check(weir_stream_create(0, 0, &other));
  check(weir_stream_set_current(stream));
  check(weir_stream_raw(other, &raw));
  weir_stack_set_hook(frames_of_a_language, NULL);
  check(weir_history_record(allocator, NULL));

  check(weir_host_alloc(host, 3 * MIB, &pinned));
  check(weir_history_set_metadata(allocator, 0, "run 5"));
  annotate(allocator, "START");
  uint32_t phase = weir_history_enter_phase("forward"), compile = weir_history_enter_compile("0/1");
  void *small = take(allocator, 1000, NULL), *large = take(allocator, 30 * MIB, NULL),
       *gone = take(allocator, 12 * MIB, NULL);
  check(weir_history_mark(allocator, 0, "between"));
  check(weir_history_mark_pointer(allocator, large, "the large one"));
  check(weir_allocator_record_stream(allocator, gone, raw));
  check(weir_allocator_free(allocator, gone));
  weir_history_leave_compile(compile);
  weir_history_leave_phase(phase);

  weir_pool_id pool = weir_graph_pool_handle();
  check(weir_pool_create(allocator, 0, pool, NULL));
  check(weir_pool_begin(allocator, 0, pool, NULL, NULL));
  void *in_pool = take(allocator, 5 * MIB, NULL);
  check(weir_pool_end(allocator, 0, pool));
  weir_graph *graph = capture(allocator, stream);

  if (weir_allocator_alloc(allocator, 0, (size_t)1 << 50, NULL, &refused) == WEIR_OK) {
    fputs("make_snapshot: memory did not run out\n", stderr);
    return 1;
  }
  annotate(allocator, "END");
  check(weir_snapshot_take(allocator, NULL, &snapshot));
  check(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, argv[1]));
  weir_snapshot_destroy(snapshot);

  check(weir_graph_reset(graph));
  weir_graph_destroy(graph);
  void *const left[] = {small, large, in_pool};
  for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
    check(weir_allocator_free(allocator, left[i]));
  check(weir_pool_release(allocator, 0, pool));
  check(weir_host_free(host, pinned));
  weir_host_allocator_destroy(host);
  weir_allocator_destroy(allocator);
  weir_stack_set_hook(NULL, NULL);
  check(weir_shutdown());
  return 0;
}
