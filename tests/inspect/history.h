/*
 * Recording and reading the history of the test's allocator.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "record/recorder.h"
#include "record/stacks.h"
#include "record/texts.h"
#include "support/alloc.h"
#include "weir/history.h"

static inline void record(weir_history_mode mode, weir_history_context context, size_t entries) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.mode = mode;
  options.context = context;
  options.max_entries = entries;
  assert_ok(weir_history_record(allocator, &options));
}

static inline void record_off(void) { record(WEIR_HISTORY_OFF, WEIR_CONTEXT_NONE, 1); }

/* ---- Reading ---- */

static weir__entry *events;
static size_t event_count;
static uint64_t dropped;

static inline void read_events(int device) {
  free(events);
  events = NULL;
  assert_true(weir__ring_read(&atomic_load(&allocator->history)->devices[device].ring, UINT64_MAX, &events,
                              &event_count, &dropped));
  for (size_t i = 1; i < event_count; i++)
    assert_true(events[i - 1].time <= events[i].time);
}

static inline void expect(size_t at, weir_trace_action action, const void *address, uint64_t bytes,
                          weir_cu_stream stream) {
  assert_true(at < event_count);
  assert_string_equal(weir_trace_action_name(events[at].action), weir_trace_action_name(action));
  assert_int_equal(events[at].address, (uint64_t)address);
  assert_int_equal(events[at].bytes, bytes);
  assert_int_equal(events[at].stream, (uint64_t)(uintptr_t)stream);
}

/* ---- Stacks that tests can distinguish: the hook reports one frame, in the function that the test has set ---- */

static const char *current_function;
static int hook_calls;

static inline size_t hook_one_frame(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  hook_calls++;
  if (!current_function || !room)
    return 0;
  frames[0] = (weir_stack_frame){weir_history_text("program.py"), weir_history_text(current_function), 7};
  return 1;
}

static inline void record_named(weir_history_mode mode, weir_history_context context) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.mode = mode;
  options.context = context;
  options.stacks = WEIR_STACKS_LANGUAGE;
  weir_stack_set_hook(hook_one_frame, NULL);
  assert_ok(weir_history_record(allocator, &options));
}

static inline const char *name_of(uint32_t stack) {
  weir__frame frame = {0};
  size_t count = weir__stack_frames(stack, &frame, 1);
  assert_true(count <= 1);
  if (count) {
    assert_string_equal(weir__text_of_number(frame.file), "program.py");
    assert_int_equal(frame.line, 7);
    assert_int_equal(frame.address, 0);
  }
  return weir__text_of_number(frame.function);
}

/* The functions of the stacks of all events of an action: "a b - c". */
static inline const char *names_of(weir_trace_action action) {
  static char text[512];
  text[0] = 0;
  for (size_t i = 0; i < event_count; i++)
    if (events[i].action == action) {
      const char *name = name_of(events[i].stack);
      snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "", *name ? name : "-");
    }
  return text;
}

static inline void *get_in(const char *function, size_t bytes, weir_cu_stream stream) {
  current_function = function;
  void *p = get(bytes, stream);
  current_function = NULL;
  return p;
}

static inline void put_in(const char *function, void *p) {
  current_function = function;
  put(p);
  current_function = NULL;
}

static inline void empty_in(const char *function) {
  current_function = function;
  empty_cache();
  current_function = NULL;
}

/* The function that allocated a block in use. */
static inline const char *block_name(const void *p) {
  weir__arena *arena = segment_at(p)->arena;
  return name_of(weir__writer_stack(arena->writer, (uint64_t)p));
}

static inline int history_teardown(void **state) {
  weir_stack_set_hook(NULL, NULL);
  weir_history_leave_phase(0);
  weir_history_leave_compile(0);
  free(events);
  events = NULL;
  return alloc_teardown(state);
}
