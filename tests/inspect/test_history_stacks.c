/*
 * Which stacks history entries keep in which mode, and where the stacks come from.
 */
#include "inspect/history.h"

/* ---- The stack that each mode keeps ---- */

FIXTURE(.teardown = history_teardown)

/* PyTorch's test_memory_plots_free_stack. */
TEST(stacks_of_frees) {
  static const struct {
    weir_history_context context;
    const char *alloc, *requested, *completed, *block;
  } cases[] = {
      {WEIR_CONTEXT_NONE, "-", "-", "-", ""},
      {WEIR_CONTEXT_STATE, "-", "-", "-", "thealloc"},
      {WEIR_CONTEXT_ALLOC, "thealloc", "thealloc", "thealloc", "thealloc"},
      {WEIR_CONTEXT_ALL, "thealloc", "thefree", "thefree", "thealloc"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    alloc_open(NULL, GIB);
    record_named(WEIR_HISTORY_ALL, cases[i].context);
    void *p = get_in("thealloc", 12, NULL);
    assert_string_equal(block_name(p), cases[i].block);
    put_in("thefree", p);
    read_events(0);
    assert_string_equal(names_of(WEIR_TRACE_SEGMENT_ALLOC), cases[i].alloc);
    assert_string_equal(names_of(WEIR_TRACE_ALLOC), cases[i].alloc);
    assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), cases[i].requested);
    assert_string_equal(names_of(WEIR_TRACE_FREE_COMPLETED), cases[i].completed);
    alloc_close();
  }
}

/* Restoring a checkpoint: blocks that it allocates again have its stack; blocks that it frees, like any free. */
TEST(stacks_of_a_checkpoint) {
  const weir_pool_id id = {0, 3};
  static const struct {
    weir_history_context context;
    const char *alloc, *free, *block;
  } cases[] = {
      {WEIR_CONTEXT_NONE, "- -", "-", ""},
      {WEIR_CONTEXT_STATE, "- -", "-", "restoring"},
      {WEIR_CONTEXT_ALLOC, "thealloc restoring", "thealloc", "restoring"},
      {WEIR_CONTEXT_ALL, "thealloc restoring", "restoring", "restoring"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    alloc_open(NULL, GIB);
    record_named(WEIR_HISTORY_ALL, cases[i].context);
    assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
    void *p = get_in("thealloc", 12 * MIB, NULL);
    assert_ok(weir_pool_end(allocator, 0, id));
    weir_checkpoint *checkpoint = NULL;
    weir_checkpoint_delta delta = {.size = sizeof delta};
    assert_ok(weir_pool_checkpoint(allocator, 0, id, &checkpoint));
    current_function = "restoring";
    assert_ok(weir_pool_restore(allocator, checkpoint, &delta));
    current_function = NULL;
    assert_string_equal(block_name(p), cases[i].block);
    read_events(0);
    assert_string_equal(names_of(WEIR_TRACE_ALLOC), cases[i].alloc);
    assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), cases[i].free);
    assert_string_equal(names_of(WEIR_TRACE_FREE_COMPLETED), cases[i].free);
    weir_checkpoint_delta_clear(&delta);
    weir_checkpoint_destroy(checkpoint);
    put(p);
    assert_ok(weir_pool_release(allocator, 0, id));
    alloc_close();
  }
}

/* The stack of the only segment, as a snapshot has it. */
static const char *segment_name(void) {
  weir_snapshot *snapshot;
  const weir_snapshot_segment *segments;
  size_t count;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_segments(snapshot, &segments, &count));
  assert_int_equal(count, 1);
  uint32_t stack = segments[0].stack;
  weir_snapshot_destroy(snapshot);
  return name_of(stack);
}

/* PyTorch's test_memory_plots_free_segment_stack. */
TEST(stacks_of_segments) {
  static const char *const confs[] = {"", "expandable_segments:True"};
  static const char *const expected[] = {"-", "-", "thealloc", "empty"};
  for (size_t c = 0; c < WEIR_COUNT_OF(confs); c++)
    for (int context = WEIR_CONTEXT_NONE; context <= WEIR_CONTEXT_ALL; context++) {
      alloc_open(confs[c], GIB);
      record_named(WEIR_HISTORY_ALL, (weir_history_context)context);
      void *p = get_in("thealloc", 12, NULL);
      assert_string_equal(segment_name(), context >= WEIR_CONTEXT_STATE ? "thealloc" : "");
      put_in("thefree", p);
      /* With the stacks of allocated memory alone, a free segment has none. */
      assert_string_equal(segment_name(), context > WEIR_CONTEXT_STATE ? "thealloc" : "");
      empty_in("empty");
      read_events(0);
      assert_string_equal(names_of(c ? WEIR_TRACE_SEGMENT_UNMAP : WEIR_TRACE_SEGMENT_FREE), expected[context]);
      alloc_close();
    }
}

/* PyTorch's test_memory_plots_history_context: the context changes while recording, and earlier entries stay. */
TEST(context_changes) {
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  void *a = get_in("should_capture1", 64, NULL);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE);
  void *b = get_in("should_not_capture", 48, NULL);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  void *c = get_in("should_capture2", 64, NULL);
  read_events(0);
  assert_string_equal(names_of(WEIR_TRACE_ALLOC), "should_capture1 - should_capture2");
  put(a);
  put(b);
  put(c);
  alloc_close();
}

/* A waiting block is freed by the next request for memory, and gets the stack of that request. */
TEST(stacks_of_waiting_blocks) {
  for (int context = WEIR_CONTEXT_STATE; context <= WEIR_CONTEXT_ALL; context++) {
    alloc_open(NULL, GIB);
    record_named(WEIR_HISTORY_ALL, (weir_history_context)context);
    weir_cu_stream stream = work_stream(), other = work_stream();
    void *p = get_in("thealloc", 512, stream);
    work(other);
    also_used_by(p, other);
    put_in("thefree", p);
    soft_step_all();
    void *q = get_in("next", 1024, stream);
    read_events(0);
    bool kept = context >= WEIR_CONTEXT_ALLOC;
    assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), !kept                         ? "-"
                                                             : context == WEIR_CONTEXT_ALL ? "thefree"
                                                                                           : "thealloc");
    assert_string_equal(names_of(WEIR_TRACE_FREE_COMPLETED), kept ? "next" : "-");
    put(q);
    alloc_close();
  }
}

TEST(stack_of_oom) {
  alloc_open(NULL, 64 * MIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALLOC);
  void *p;
  current_function = "greedy";
  assert_int_equal(try_get(GIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  current_function = NULL;
  read_events(0);
  assert_string_equal(names_of(WEIR_TRACE_OOM), "greedy");
  alloc_close();
}

/* ---- Native stacks ---- */

static bool has_native(void) {
  if (weir__stacks_start())
    return true;
  print_message("there is no libunwind: native stacks are absent\n");
  return false;
}

static __attribute__((noinline)) void *get_deep(int depth, size_t bytes) {
  void *p = depth ? get_deep(depth - 1, bytes) : get(bytes, NULL);
  __asm__ volatile("" : : : "memory");
  return p;
}

TEST(native_stacks) {
  if (!has_native())
    return;
  static weir__frame frames[2][WEIR__MAX_FRAMES];
  static const int depths[] = {0, 3, 200, 1000, 3000, 10000};
  size_t base = 0;
  alloc_open(NULL, GIB);
  put(get(512, NULL)); /* the first one takes the slow path */
  for (size_t i = 0; i < WEIR_COUNT_OF(depths); i++) {
    record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL, 1000);
    assert_ok(weir_history_clear(allocator));
    void *p = get_deep(depths[i], 512);
    read_events(0);
    uint32_t stack = events[event_count - 1].stack;
    size_t count = weir__stack_frames(stack, frames[0], WEIR__MAX_FRAMES);
    if (!i)
      base = count;
    size_t expected = base + (size_t)depths[i];
    if (expected < WEIR__MAX_FRAMES - 64)
      assert_int_equal(count, expected);
    else
      assert_true(count > WEIR__MAX_FRAMES - 8 && count <= WEIR__MAX_FRAMES);
    put(p);
  }
  alloc_close();
}

TEST(stacks_are_stored_once) {
  if (!has_native())
    return;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALLOC, 1000);
  put(get(512, NULL)); /* the first one takes the slow path */
  void *pointers[50];
  for (int i = 0; i < 50; i++)
    pointers[i] = get_deep(5, 512);
  read_events(0);
  uint32_t stack = events[event_count - 1].stack;
  assert_int_not_equal(stack, 0);
  size_t same = 0;
  for (size_t i = 0; i < event_count; i++)
    same += events[i].action == WEIR_TRACE_ALLOC && events[i].stack == stack;
  assert_int_equal(same, 50);
  for (int i = 0; i < 50; i++)
    put(pointers[i]);
  alloc_close();
}

TEST(hook_comes_first) {
  if (!has_native())
    return;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL, 1000);
  weir_stack_set_hook(hook_one_frame, NULL);
  void *p = get_in("script", 512, NULL);
  read_events(0);
  weir__frame frames[64];
  size_t count = weir__stack_frames(events[event_count - 1].stack, frames, WEIR_COUNT_OF(frames));
  assert_true(count > 2);
  assert_string_equal(weir__text_of_number(frames[0].function), "script");
  for (size_t i = 1; i < count && i < WEIR_COUNT_OF(frames); i++)
    assert_true(frames[i].address != 0);
  put(p);
  alloc_close();
}

static size_t many_frames(void *context, weir_stack_frame *frames, size_t room) {
  size_t wanted = *(size_t *)context;
  for (size_t i = 0; i < wanted && i < room; i++)
    frames[i] = (weir_stack_frame){weir_history_text("f"), weir_history_text("g"), (int)i};
  return wanted < room ? wanted : room;
}

TEST(hook_with_a_thousand_frames) {
  static weir__frame frames[2000];
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALLOC);
  static size_t wanted[] = {1, 79, 80, 81, 1000};
  for (size_t i = 0; i < WEIR_COUNT_OF(wanted); i++) {
    weir_stack_set_hook(many_frames, &wanted[i]);
    void *p = get(512, NULL);
    read_events(0);
    assert_int_equal(weir__stack_frames(events[event_count - 1].stack, frames, WEIR_COUNT_OF(frames)), wanted[i]);
    for (size_t k = 0; k < wanted[i]; k++)
      assert_int_equal(frames[k].line, k);
    put(p);
  }
  alloc_close();
}

static size_t allocating_hook(void *context, weir_stack_frame *frames, size_t room) {
  (void)context, (void)room;
  void *p;
  hook_calls++;
  assert_ok(weir_allocator_alloc(allocator, 0, 4096, NULL, &p));
  assert_ok(weir_allocator_free(allocator, p));
  frames[0] = (weir_stack_frame){weir_history_text("program.py"), weir_history_text("hooked"), 7};
  return 1;
}

static int keyed_calls;
static uint64_t keyed_by; /* 0 for no key */

static size_t hook_keyed_frame(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  assert_true(room > 0);
  keyed_calls++;
  frames[0] = (weir_stack_frame){weir_history_text("keyed.py"), weir_history_text("keyed"), (int)keyed_by % 1000};
  return 1;
}

static int hook_key(void *context, uint64_t *key) {
  (void)context;
  *key = keyed_by * 0x9e3779b97f4a7c15u;
  return keyed_by != 0;
}

static uint32_t stack_of_alloc(void) {
  void *pointer;
  weir_pointer_info info;
  weir_pointer_info_init(&info);
  assert_ok(weir_allocator_alloc(allocator, 0, 512, NULL, &pointer));
  assert_ok(weir_allocator_describe(allocator, pointer, &info));
  assert_ok(weir_allocator_free(allocator, pointer));
  return info.stack;
}

/* The hook is not called for a stack whose key is known; without a key, or with native frames after its own, it is
 * always called. */
TEST(keys_of_stacks) {
  alloc_open(NULL, GIB);
  enum { STACKS = 20000 };
  static uint32_t numbers[STACKS];
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = WEIR_CONTEXT_ALLOC;
  options.stacks = WEIR_STACKS_LANGUAGE;
  assert_ok(weir_history_record(allocator, &options));
  weir_stack_set_hook(hook_keyed_frame, NULL);
  weir_stack_set_key(hook_key);
  keyed_calls = 0;
  for (keyed_by = 1; keyed_by < 500; keyed_by++)
    numbers[keyed_by] = stack_of_alloc();
  int first = keyed_calls;
  assert_int_equal(first, 499);
  for (keyed_by = 1; keyed_by < 500; keyed_by++)
    assert_int_equal(stack_of_alloc(), numbers[keyed_by]);
  assert_true(keyed_calls - first < 100);             /* except for a few that share a slot */
  for (keyed_by = 500; keyed_by < STACKS; keyed_by++) /* more than there are slots */
    stack_of_alloc();
  weir_stack_frame frame;
  for (keyed_by = 1; keyed_by < 500; keyed_by++) {
    assert_int_equal(weir_history_frames(stack_of_alloc(), &frame, 1), 1);
    assert_int_equal(frame.line, keyed_by);
  }
  keyed_by = 0;
  keyed_calls = 0;
  stack_of_alloc();
  stack_of_alloc();
  assert_int_equal(keyed_calls, 2);
  keyed_by = 7;
  weir_stack_set_hook(hook_keyed_frame, NULL); /* setting a hook removes the key */
  stack_of_alloc();
  assert_int_equal(keyed_calls, 3);
  weir_stack_set_hook(NULL, NULL);
}

TEST(hook_may_allocate) {
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  weir_stack_set_hook(allocating_hook, NULL);
  hook_calls = 0;
  void *p = get(512, NULL);
  assert_int_equal(hook_calls, 1);
  read_events(0);
  assert_string_equal(names_of(WEIR_TRACE_ALLOC), "- hooked");
  put(p);
  alloc_close();
}

/* ---- Stacks on request ---- */

typedef struct visited {
  int frames, native, stop_after;
  char first[64];
  bool found; /* this file's function */
} visited;

static int note_frame(void *context, const char *function, const char *file, int line, int is_native) {
  visited *seen = context;
  if (!seen->frames++)
    snprintf(seen->first, sizeof seen->first, "%s %s %d", function, file, line);
  seen->native += is_native;
  seen->found |= is_native && strstr(function, "captures_a_stack");
  return seen->frames == seen->stop_after;
}

__attribute__((noinline)) static uint32_t captures_a_stack(weir_history_stacks kind) {
  uint32_t stack = 77;
  assert_ok(weir_stack_capture(kind, &stack));
  return stack;
}

static size_t hook_asking_frame(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  assert_true(room > 0);
  frames[0] = (weir_stack_frame){weir_history_text("a.py"), weir_history_text("asks"), 12};
  return 1;
}

/* PyTorch's test_direct_traceback: without an allocator and without a recording. */
TEST_SETUP(stack_on_request, NULL, NULL) {
  weir_stack_set_hook(NULL, NULL);
  assert_int_equal(captures_a_stack(WEIR_STACKS_LANGUAGE), 0);
  weir_stack_set_hook(hook_asking_frame, NULL);
  uint32_t stack = captures_a_stack(WEIR_STACKS_LANGUAGE);
  visited seen = {0};
  assert_ok(weir_stack_visit(stack, note_frame, &seen));
  assert_int_equal(seen.frames, 1);
  assert_int_equal(seen.native, 0);
  assert_string_equal(seen.first, "asks a.py 12");
  weir_stack_frame frame;
  assert_int_equal(weir_history_frames(stack, &frame, 1), 1);
  assert_int_equal(captures_a_stack(WEIR_STACKS_LANGUAGE), stack);

  seen = (visited){0};
  assert_ok(weir_stack_visit(captures_a_stack(WEIR_STACKS_ALL), note_frame, &seen));
  assert_string_equal(seen.first, "asks a.py 12");
  if (seen.frames == 1) {
    print_message("waived: no native stacks here (libunwind)\n");
    skip();
  }
  assert_int_equal(seen.native, seen.frames - 1);
  assert_true(seen.found);
  seen = (visited){.stop_after = 2};
  assert_ok(weir_stack_visit(captures_a_stack(WEIR_STACKS_ALL), note_frame, &seen));
  assert_int_equal(seen.frames, 2);
  weir_stack_set_hook(NULL, NULL);
}
