/*
 * Stacks in the file of WEIR_RECORD, read after the process has ended: they begin at the code that called Weir and have
 * names, frames of a language runtime come first, and threads without such frames have the phase that another thread
 * shares.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inspect/symbols.h"
#include "offline/read/code.h"
#include "offline/read/elf.h"
#include "record/ring_file.h"
#include "record/stacks.h"
#include "support/recording.h"
#include "weir/history.h"
#include "weir/log.h"

static bool has_libdw;

static int teardown(void **state) {
  close_recording();
  weir_stack_set_hook(NULL, NULL);
  weir_history_share_phase(0);
  return recording_teardown(state);
}

static void need_libunwind(void) {
  if (!weir__stacks_start()) {
    puts("waived: there is no libunwind");
    skip();
  }
}

static void open_recorded(const char *stacks) {
  open_recording(&(recording){.bytes = GIB, .folder = folder, .mb = "4", .stacks = stacks});
}

/* ---- Callers, none of which may become a tail call ---- */

static int inner_line, outer_line;

static __attribute__((noinline)) void *inner_caller(size_t bytes) {
  void *pointer = NULL;
  inner_line = __LINE__ + 1;
  assert_ok(weir_allocator_alloc(recorded, 0, bytes, NULL, &pointer));
  __asm__ volatile("" : : : "memory");
  return pointer;
}

static __attribute__((noinline)) void outer_caller(size_t bytes) {
  outer_line = __LINE__ + 1;
  assert_ok(weir_allocator_free(recorded, inner_caller(bytes)));
  __asm__ volatile("" : : : "memory");
}

/* Runs in a child that has exited when the file is read. */
static void record_in_child(const char *stacks, void (*work)(void)) {
  int lines[2], pipes[2];
  assert_int_equal(pipe(pipes), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    open_recorded(stacks);
    work();
    lines[0] = inner_line;
    lines[1] = outer_line;
    _exit(write(pipes[1], lines, sizeof lines) == sizeof lines ? 0 : 1);
  }
  assert_int_equal(child_outcome(child), 0);
  assert_int_equal(read(pipes[0], lines, sizeof lines), sizeof lines);
  inner_line = lines[0];
  outer_line = lines[1];
  close(pipes[0]);
  close(pipes[1]);
}

static void work_small(void) {
  for (int i = 0; i < 4; i++)
    outer_caller(512);
}

static void work_large(void) { outer_caller(30 * MIB); }

static const char *text_of(const weir__recording *s, uint32_t string) { return s->strings.items[string].text; }

static const weir__recording_frame *frame_of(const weir__recording *s, const weir__recording_entry *e, size_t depth) {
  const weir__recording_stack *stack = &s->stacks[e->stack];
  if (depth >= stack->count)
    fail_msg("there is no frame %zu, the stack has %zu", depth, (size_t)stack->count);
  return &s->frames[s->stack_frames[stack->first + depth]];
}

static const weir__recording_entry *event_of(const weir__recording *s, int action, int nth) {
  for (size_t i = 0; i < s->event_count; i++)
    if (s->events[i].action == action && nth-- == 0)
      return &s->events[i];
  fail_msg("there is no such event");
  return NULL;
}

static void check_frame(const weir__recording *s, const weir__recording_entry *e, size_t depth, const char *name,
                        int line) {
  const weir__recording_frame *f = frame_of(s, e, depth);
  assert_string_equal(text_of(s, f->name), name);
  if (has_libdw) {
    assert_non_null(strstr(text_of(s, f->filename), "test_record_stacks.c"));
    assert_int_equal(f->line, line);
  } else {
    assert_non_null(strstr(text_of(s, f->filename), "test_inspect_record_stacks"));
    assert_int_equal(f->line, 0);
  }
}

/* ---- Native frames ---- */

TEST(begins_at_the_caller) {
  need_libunwind();
  record_in_child("all", work_small);
  weir__recording *s = load_recording(find_file(".ring"));
  for (int i = 0; i < 4; i++) {
    const weir__recording_entry *e = event_of(s, WEIR_TRACE_ALLOC, i);
    check_frame(s, e, 0, "inner_caller", inner_line);
    check_frame(s, e, 1, "outer_caller", outer_line);
    check_frame(s, event_of(s, WEIR_TRACE_FREE_REQUESTED, i), 0, "outer_caller", outer_line);
  }
  weir__recording_free(s);
}

/* On the slow path, with the frames of a segment's allocation. */
TEST(slow_path_begins_at_the_caller) {
  need_libunwind();
  record_in_child("alloc", work_large);
  weir__recording *s = load_recording(find_file(".ring"));
  check_frame(s, event_of(s, WEIR_TRACE_SEGMENT_ALLOC, 0), 0, "inner_caller", inner_line);
  check_frame(s, event_of(s, WEIR_TRACE_ALLOC, 0), 0, "inner_caller", inner_line);
  weir__recording_free(s);
}

/* The file of this program, with another build ID in the recording, as after a rebuild. */
TEST(other_build) {
  need_libunwind();
  weir__elf *elf = weir__elf_open("/proc/self/exe");
  assert_non_null(elf);
  size_t bytes = 0;
  const unsigned char *id = weir__elf_build_id(elf, &bytes);
  if (!id) {
    weir__elf_close(elf);
    puts("waived: the linker gives no build IDs");
    skip();
  }
  record_in_child("alloc", work_small);
  int descriptor = open(find_file(".ring"), O_RDWR);
  assert_true(descriptor >= 0);
  const size_t size = (size_t)lseek(descriptor, 0, SEEK_END);
  unsigned char *log = malloc(size);
  assert_int_equal(pread(descriptor, log, size, 0), size);
  size_t found = 0;
  for (size_t i = 0; i + bytes <= size; i++)
    if (memcmp(log + i, id, bytes) == 0) {
      log[i] ^= 0xff;
      assert_int_equal(pwrite(descriptor, log + i, 1, (off_t)i), 1);
      found++;
    }
  assert_true(found > 0);
  free(log);
  close(descriptor);
  weir__elf_close(elf);
  weir__recording *s = load_recording(find_file(".ring"));
  const weir__recording_frame *f = frame_of(s, event_of(s, WEIR_TRACE_ALLOC, 0), 0);
  assert_int_equal(strncmp(text_of(s, f->name), "0x", 2), 0);
  assert_non_null(strstr(text_of(s, f->filename), "test_inspect_record_stacks"));
  assert_int_equal(f->line, 0);
  weir__recording_free(s);
}

static uint64_t address_in_file(void) { /* of inner_caller, without the load address */
  Dl_info info;
  uintptr_t address;
  void *(*function)(size_t) = inner_caller;
  memcpy(&address, &function, sizeof address);
  assert_int_not_equal(dladdr((void *)address, &info), 0);
  return address - (uintptr_t)info.dli_fbase;
}

TEST_SETUP(symbol_tables, NULL, NULL) {
  weir__elf *elf = weir__elf_open("/proc/self/exe");
  assert_non_null(elf);
  assert_string_equal(weir__elf_function(elf, address_in_file()), "inner_caller");
  assert_string_equal(weir__elf_function(elf, address_in_file() + 1), "inner_caller");
  assert_null(weir__elf_function(elf, 0));
  assert_null(weir__elf_function(elf, UINT64_MAX));
  weir__elf_close(elf);
  assert_null(weir__elf_open("/proc/self/maps"));
  assert_null(weir__elf_open("/dev/null"));
  assert_null(weir__elf_open("/nonexistent"));
  assert_null(weir__elf_open(WEIR_TEST_DATA "/make_big.py"));
}

/* Files with random bytes changed. */
TEST(damaged_files) {
  char path[512], copy[512];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  assert_true(length > 0);
  path[length] = 0;
  snprintf(copy, sizeof copy, "%s/copy", folder);
  int from = open(path, O_RDONLY), to = open(copy, O_RDWR | O_CREAT | O_TRUNC, 0700);
  assert_true(from >= 0 && to >= 0);
  enum { PART = 1 << 16 };
  static unsigned char part[PART];
  off_t size = 0;
  for (ssize_t got; (got = read(from, part, PART)) > 0; size += got)
    assert_int_equal(write(to, part, (size_t)got), got);
  close(from);
  uint32_t random = 7;
  for (int i = 0; i < 300; i++) {
    random = random * 1664525 + 1013904223;
    /* Mostly in the headers; those of sections are at the end of the file. */
    off_t at = i % 3 == 0   ? (off_t)((random >> 8) % 1024)
               : i % 3 == 1 ? size - 1 - (off_t)((random >> 8) % 4096)
                            : size - 1;
    unsigned char byte = (unsigned char)(random >> 24), before;
    assert_int_equal(pread(to, &before, 1, at), 1);
    assert_int_equal(pwrite(to, &byte, 1, at), 1);
    weir__elf *elf = weir__elf_open(copy);
    if (elf) {
      size_t bytes;
      weir__elf_build_id(elf, &bytes);
      weir__elf_function(elf, address_in_file());
      weir__elf_close(elf);
    }
    assert_int_equal(pwrite(to, &before, 1, at), 1);
    if (i % 10 == 9) /* truncated at a random place */
      assert_int_equal(ftruncate(to, size = size - size / 20), 0);
  }
  close(to);
}

/* A file without a build ID is trusted if it is on this machine and has not changed since. */
TEST_SETUP(without_build_id, NULL, NULL) {
  char path[512];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  assert_true(length > 0);
  path[length] = 0;
  weir__code_origin origin = {.path = path, .recorded_ns = INT64_MAX, .is_this_host = true};
  weir__code *code = weir__code_open(&origin);
  assert_non_null(code);
  weir__code_name names[4];
  assert_true(weir__code_names(code, address_in_file() + 8, names, 4) > 0);
  assert_string_equal(names[0].function, "inner_caller");
  assert_int_equal(weir__code_names(code, 1, names, 4), 0);
  weir__code_close(code);
  origin.recorded_ns = 1000000000;
  assert_null(weir__code_open(&origin)); /* changed later */
  origin.recorded_ns = INT64_MAX;
  origin.is_this_host = false;
  assert_null(weir__code_open(&origin));
  origin.path = "relative";
  assert_null(weir__code_open(&origin));
}

/* ---- Frames of a language runtime ---- */

static _Thread_local bool has_frames = true;

static size_t two_frames(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  if (!has_frames || room < 2)
    return 0;
  frames[0] = (weir_stack_frame){weir_history_text("train.py"), weir_history_text("forward"), 42};
  frames[1] = (weir_stack_frame){weir_history_text("train.py"), weir_history_text("<module>"), 7};
  return 2;
}

static void check_language(const weir__recording *s, const weir__recording_entry *e) {
  const weir__recording_frame *f = frame_of(s, e, 0);
  assert_string_equal(text_of(s, f->name), "forward");
  assert_string_equal(text_of(s, f->filename), "train.py");
  assert_int_equal(f->line, 42);
  assert_string_equal(text_of(s, frame_of(s, e, 1)->name), "<module>");
}

TEST(language_frames_alone) {
  weir_stack_set_hook(two_frames, NULL);
  record_in_child("alloc", work_small);
  weir__recording *s = load_recording(find_file(".ring"));
  const weir__recording_entry *e = event_of(s, WEIR_TRACE_ALLOC, 0);
  check_language(s, e);
  assert_int_equal(s->stacks[e->stack].count, 2);
  weir__recording_free(s);
}

TEST(language_and_native_frames) {
  need_libunwind();
  weir_stack_set_hook(two_frames, NULL);
  record_in_child("alloc,native", work_small);
  weir__recording *s = load_recording(find_file(".ring"));
  const weir__recording_entry *e = event_of(s, WEIR_TRACE_ALLOC, 0);
  check_language(s, e);
  check_frame(s, e, 2, "inner_caller", inner_line);
  check_frame(s, e, 3, "outer_caller", outer_line);
  weir__recording_free(s);
}

static void work_without_frames(void) {
  has_frames = false;
  work_small();
}

TEST(native_frames_as_fallback) {
  need_libunwind();
  weir_stack_set_hook(two_frames, NULL);
  record_in_child("alloc", work_without_frames);
  weir__recording *s = load_recording(find_file(".ring"));
  check_frame(s, event_of(s, WEIR_TRACE_ALLOC, 0), 0, "inner_caller", inner_line);
  weir__recording_free(s);
}

TEST(invalid_settings) {
  static const char *const wrong[] = {"alloc,", "alloc,all", "native", ",native", "alloc,native,"};
  for (size_t i = 0; i < WEIR_COUNT_OF(wrong); i++) {
    warnings = 0;
    weir_log_set_sink(count_warning, NULL);
    open_recorded(wrong[i]);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warning, "WEIR_RECORD_STACKS"));
    weir_history_info info = {.size = sizeof info};
    assert_ok(weir_history_get_info(recorded, 0, &info));
    assert_int_equal(info.context, WEIR_CONTEXT_NONE);
    close_recording();
  }
}

/* ---- Shared phases ---- */

static void *work_thread(void *frames) {
  has_frames = frames != NULL;
  work_small();
  uint32_t before = weir_history_enter_phase("its own");
  work_small();
  weir_history_leave_phase(before);
  work_small();
  return NULL;
}

static const char *phase_of(const weir__recording *s, const weir__recording_entry *e) {
  return text_of(s, s->remarks[e->remark].phase);
}

static void run_thread(bool frames) {
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, work_thread, frames ? &thread : NULL), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

TEST(shared_phase) {
  weir_stack_set_hook(two_frames, NULL);
  open_recorded("alloc");
  has_frames = true;
  uint32_t before = weir_history_enter_phase("Optimizer.step#SGD.step");
  weir_history_share_phase(weir_history_text("Optimizer.step#SGD.step"));
  work_small();
  run_thread(false);
  run_thread(true);
  weir_history_leave_phase(before);
  weir_history_share_phase(before);
  run_thread(false);
  weir__recording *s = load_recording(find_file(".ring"));
  static const char *const expected[] = {"Optimizer.step#SGD.step",
                                         "Optimizer.step#SGD.step",
                                         "its own",
                                         "Optimizer.step#SGD.step",
                                         "",
                                         "its own",
                                         "",
                                         "",
                                         "its own",
                                         ""};
  for (int i = 0; i < (int)WEIR_COUNT_OF(expected); i++)
    for (int k = 0; k < 4; k++) {
      assert_string_equal(phase_of(s, event_of(s, WEIR_TRACE_ALLOC, 4 * i + k)), expected[i]);
      assert_string_equal(phase_of(s, event_of(s, WEIR_TRACE_FREE_COMPLETED, 4 * i + k)), expected[i]);
    }
  weir__recording_free(s);
}

static bool find_libdw(void) {
  weir__symbols *symbols = weir__symbols_new(NULL);
  size_t first;
  uintptr_t address;
  void (*function)(void **) = test_shared_phase;
  memcpy(&address, &function, sizeof address);
  bool found = symbols && weir__symbols_of(symbols, address + 8, &first) && weir__symbols_at(symbols, first)->line > 0;
  weir__symbols_delete(symbols);
  return found;
}

static void prepare(void) { has_libdw = find_libdw(); }

FIXTURE(.prepare = prepare, .begin = make_folder, .end = remove_folder, .teardown = teardown)
