/*
 * Trackers and observers, together with the recorder.
 */
#include "inspect/history.h"

static int seen_count, nested;
static weir_trace_action seen_actions[64];

static void allocating_tracker(void *context, const weir_trace_entry *entry) {
  (void)context;
  void *p;
  if (seen_count < 64)
    seen_actions[seen_count] = entry->action;
  seen_count++;
  /* Takes locks of every kind: another size, another stream, driver memory, the whole cache. */
  assert_ok(weir_allocator_alloc(allocator, 0, 3 * MIB, work_stream(), &p));
  assert_ok(weir_allocator_free(allocator, p));
  assert_ok(weir_allocator_alloc(allocator, 0, 512, entry->stream, &p));
  assert_ok(weir_allocator_free(allocator, p));
  if (entry->action == WEIR_TRACE_SEGMENT_FREE)
    assert_ok(weir_allocator_empty_cache(allocator));
  nested++;
}

FIXTURE(.teardown = history_teardown)

TEST(tracker_may_allocate) {
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = allocating_tracker)));
  seen_count = nested = 0;
  void *p;
  assert_ok(weir_allocator_alloc(allocator, 0, 40 * MIB, NULL, &p));
  assert_ok(weir_allocator_free(allocator, p));
  assert_ok(weir_allocator_empty_cache(allocator));
  assert_true(seen_count >= 5);
  assert_int_equal(nested, seen_count);
  assert_int_equal(seen_actions[0], WEIR_TRACE_SEGMENT_ALLOC);
  assert_int_equal(seen_actions[1], WEIR_TRACE_ALLOC);
  assert_int_equal(seen_actions[2], WEIR_TRACE_FREE_REQUESTED);
  assert_int_equal(seen_actions[3], WEIR_TRACE_FREE_COMPLETED);
  for (int i = 4; i < seen_count; i++)
    assert_int_equal(seen_actions[i], WEIR_TRACE_SEGMENT_FREE);
  alloc_close();
}

static void count_entry(void *context, const weir_trace_entry *entry) {
  (void)entry;
  ++*(int *)context;
}

TEST(trackers_get_skipped_entries) {
  alloc_open(NULL, GIB);
  int entries = 0;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = count_entry, .context = &entries)));
  weir_history_options options;
  weir_history_options_init(&options);
  options.skip = (1u << WEIR_TRACE_ACTIONS) - 1;
  assert_ok(weir_history_record(allocator, &options));
  put(get(512, NULL));
  assert_int_equal(entries, 4);
  read_events(0);
  assert_int_equal(event_count, 0);
  record_off();
  put(get(512, NULL));
  assert_int_equal(entries, 7);
  alloc_close();
}

/* PyTorch's test_notifies_oom: the observer is called once, after the entry was recorded, and may read and allocate. */
static int oom_calls;

static void observe_oom(void *context, const weir_shortage *shortage) {
  (void)context;
  oom_calls++;
  assert_int_equal(shortage->device, 0);
  assert_int_equal(shortage->wanted, 4 * GIB);
  assert_int_equal(shortage->limit, GIB);
  assert_true(shortage->device_free <= GIB);
  read_events(0);
  assert_int_equal(events[event_count - 1].action, WEIR_TRACE_OOM);
  assert_int_equal(seen_actions[seen_count - 1], WEIR_TRACE_OOM);
  void *p;
  assert_ok(weir_allocator_alloc(allocator, 0, 512, NULL, &p));
  assert_ok(weir_allocator_free(allocator, p));
  assert_ok(weir_allocator_empty_cache(allocator));
}

static void note_action(void *context, const weir_trace_entry *entry) {
  (void)context;
  if (seen_count < 64)
    seen_actions[seen_count++] = entry->action;
}

TEST(notifies_oom) {
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL, 1000);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = observe_oom)));
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = note_action)));
  oom_calls = seen_count = 0;
  void *p;
  assert_int_equal(try_get(4 * GIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(oom_calls, 1);
  alloc_close();
}
