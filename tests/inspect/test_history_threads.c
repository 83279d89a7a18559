/*
 * Threads that allocate while others change, clear and read the history.
 */
#include <stdlib.h>
#include <string.h>

#include "record/recorder.h"
#include "record/stacks.h"
#include "support/alloc.h"
#include "weir/history.h"

enum { THREADS = 4, PAIRS = 3000, LIMIT = 1000 };

static atomic_int running;
static weir_cu_stream streams[THREADS];

static void *allocate(void *data) {
  int number = (int)(intptr_t)data;
  char phase[16];
  void *live[8] = {NULL};
  snprintf(phase, sizeof phase, "thread %d", number);
  weir_history_enter_phase(number % 2 ? phase : NULL);
  for (int i = 0; i < PAIRS; i++) {
    void **slot = &live[i % 8];
    weir_allocator_free(allocator, *slot);
    *slot = NULL;
    /* Every other thread shares a stream with its neighbour. */
    if (weir_allocator_alloc(allocator, 0, 512 * (1 + (size_t)i % 9), streams[number / 2], slot))
      break;
    if (i % 64 == 0)
      weir_history_mark(allocator, 0, phase);
    if (i % 500 == 0)
      weir_allocator_empty_cache(allocator);
  }
  for (int i = 0; i < 8; i++)
    weir_allocator_free(allocator, live[i]);
  weir_history_leave_phase(0);
  atomic_fetch_sub(&running, 1);
  return NULL;
}

static size_t one_frame(void *context, weir_stack_frame *frames, size_t room) {
  (void)context, (void)room;
  frames[0] = (weir_stack_frame){weir_history_text("file"), weir_history_text("function"), rand() % 50};
  return 1;
}

/* The entries of one address are in the order of its life cycle. */
static void check_events(const weir__entry *events, size_t count, bool is_whole) {
  for (size_t i = 0; i < count; i++) {
    assert_true(events[i].action < WEIR_TRACE_ACTIONS && !weir__action_is_for_file(events[i].action));
    assert_true(!i || events[i - 1].time <= events[i].time);
    if (!is_whole || events[i].action != WEIR_TRACE_ALLOC)
      continue;
    for (size_t k = i + 1; k < count; k++)
      if (events[k].address == events[i].address && events[k].action <= WEIR_TRACE_FREE_COMPLETED) {
        assert_int_equal(events[k].action, WEIR_TRACE_FREE_REQUESTED);
        assert_int_equal(events[k].bytes, events[i].bytes);
        break;
      }
  }
}

static void read_and_check(bool is_whole) {
  weir__entry *events;
  size_t count;
  uint64_t dropped;
  assert_true(
      weir__ring_read(&atomic_load(&allocator->history)->devices[0].ring, UINT64_MAX, &events, &count, &dropped));
  assert_true(count <= LIMIT);
  check_events(events, count, is_whole);
  free(events);
}

static void run(void (*meanwhile)(int round)) {
  pthread_t threads[THREADS];
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, NULL);
  for (int i = 0; i < THREADS; i++)
    streams[i] = work_stream();
  atomic_store(&running, THREADS);
  meanwhile(0);
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, allocate, (void *)(intptr_t)i), 0);
  for (int round = 1; atomic_load(&running); round++)
    meanwhile(round);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  weir_stack_set_hook(NULL, NULL);
  weir_history_options off;
  weir_history_options_init(&off);
  off.mode = WEIR_HISTORY_OFF;
  assert_ok(weir_history_record(allocator, &off));
  alloc_close();
}

static void set(weir_history_mode mode, weir_history_context context) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.mode = mode;
  options.context = context;
  options.stacks = WEIR_STACKS_LANGUAGE;
  options.max_entries = LIMIT;
  assert_ok(weir_history_record(allocator, &options));
}

static void read_while(int round) {
  if (round == 0) {
    weir_stack_set_hook(one_frame, NULL);
    set(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  } else
    read_and_check(true);
}

FIXTURE(.teardown = alloc_teardown)

TEST(reading) { run(read_while); }

static void change_while(int round) {
  weir_stack_set_hook(round % 3 ? one_frame : NULL, NULL);
  set((weir_history_mode)(round % 3), (weir_history_context)(round / 3 % 4));
  const char *const pairs[] = {"name", "x"};
  assert_ok(weir_history_annotate(allocator, 0, pairs, 1));
  assert_ok(weir_history_set_metadata(allocator, 0, round % 2 ? "text" : NULL));
  if (round % 5 == 0)
    assert_ok(weir_history_clear(allocator));
  read_and_check(false);
}

TEST(changing) { run(change_while); }

static atomic_int tracked;

static void tracker(void *context, const weir_trace_entry *entry) {
  (void)context;
  void *p;
  atomic_fetch_add(&tracked, 1);
  if (weir_allocator_alloc(allocator, 0, 512, entry->stream, &p) == WEIR_OK)
    weir_allocator_free(allocator, p);
}

static void track_while(int round) {
  if (round == 0) {
    set(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE);
    assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = tracker)));
  }
  read_and_check(true);
}

TEST(trackers_that_allocate) {
  atomic_store(&tracked, 0);
  run(track_while);
  assert_true(atomic_load(&tracked) >= THREADS * PAIRS * 3);
}
