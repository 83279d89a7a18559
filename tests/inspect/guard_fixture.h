/*
 * Planted bugs, each with a clean twin that must stay silent: a bug and its twin are one function, which does the wrong
 * thing only if `bug` is set. Stepped time makes every order of work certain.
 */
#pragma once

#include <string.h>

#include "support/alloc.h"
#include "weir/guard.h"
#include "weir/history.h"

/* ---- Findings, read back from JSON ---- */

static char json[256 * 1024];
static size_t json_length;

static inline int keep_json(void *context, const void *bytes, size_t length) {
  (void)context;
  assert_true(json_length + length < sizeof json);
  memcpy(json + json_length, bytes, length);
  json_length += length;
  json[json_length] = '\0';
  return 0;
}

static inline const char *findings(void) {
  json_length = 0;
  *json = '\0';
  assert_ok(weir_guard_write(allocator, WEIR_GUARD_JSON, keep_json, NULL));
  return json;
}

static inline unsigned long long found(void) {
  uint64_t count = 0;
  assert_ok(weir_guard_check(allocator, &count));
  return count;
}

/* Fails unless the JSON has the item, as in has("offset", "1000"). */
static inline void assert_has(const char *key, int64_t value) {
  char item[96];
  snprintf(item, sizeof item, "\"%s\": %lld", key, (long long)value);
  if (!strstr(json, item))
    fail_msg("%s is missing in %s", item, json);
}

static inline void assert_kind(const char *kind) {
  char item[96];
  snprintf(item, sizeof item, "\"kind\": \"%s\"", kind);
  if (!strstr(json, item))
    fail_msg("%s is missing in %s", item, json);
}

/* The stacks of these tests have one frame, whose function is where the test is. */
static const char *here;

static inline size_t stack_hook(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  if (room)
    frames[0] = (weir_stack_frame){weir_history_text("test.c"), weir_history_text(here), 1};
  return 1;
}

static inline void assert_stack(const char *key, const char *function) {
  char item[96];
  snprintf(item, sizeof item, "\"%s\": [{\"name\": \"%s\"", key, function);
  if (!strstr(json, item))
    fail_msg("%s is missing in %s", item, json);
}

/* Allocations and frees have a stack each. */
static inline void *get_here(size_t bytes, weir_cu_stream stream) {
  here = "allocating";
  void *p = get(bytes, stream);
  here = "elsewhere";
  return p;
}

static inline void put_here(void *pointer) {
  here = "freeing";
  put(pointer);
  here = "elsewhere";
}
#define get get_here
#define put put_here

/* ---- Work ---- */

/* A kernel of the program that writes `count` bytes from an address on. */
static inline void write_bytes(const void *to, int64_t offset, unsigned count, weir_cu_stream stream) {
  assert_int_equal(d->MemsetD8Async(d, (uint64_t)to + (uint64_t)offset, 7, count, stream), 0);
}

static inline void open_guarded(const char *mode, const char *conf) {
  char text[256];
  here = "elsewhere";
  weir_stack_set_hook(stack_hook, NULL);
  snprintf(text, sizeof text, "guard:%s%s%s", mode, *conf ? "," : "", conf);
  alloc_open(text, GIB);
}

#define put_wrong(pointer) assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, pointer))

/* ---- A bug and its twin ---- */

typedef struct planted {
  const char *kind;
  void (*run)(bool bug);
  int64_t offset;    /* that has to be named */
  bool is_freed;     /* the stack of the free has to be named, too */
  bool has_no_block; /* there is no block to name */
  bool breaks;       /* the context is lost */
  const char *conf;
} planted;

static inline void run_planted(const char *mode, const planted *p, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (int bug = 0; bug <= 1; bug++) {
      open_guarded(mode, p[i].conf ? p[i].conf : "");
      p[i].run(bug);
      unsigned long long n = found();
      findings();
      if (!bug && n)
        fail_msg("%s %zu: the clean twin is not silent: %s", p[i].kind, i, json);
      if (bug && n != 1)
        fail_msg("%s %zu: found %llu times: %s", p[i].kind, i, n, json);
      if (bug) {
        assert_kind(p[i].kind);
        assert_has("offset", p[i].offset);
        if (!p[i].has_no_block)
          assert_stack("alloc_stack", "allocating");
        if (p[i].is_freed)
          assert_stack("free_stack", "freeing");
      }
      if (bug && p[i].breaks)
        alloc_teardown(NULL);
      else
        alloc_close();
    }
}
