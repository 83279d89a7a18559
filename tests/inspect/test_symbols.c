/*
 * Resolving addresses. The test looks up its own functions, whose lines it knows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "inspect/symbols.h"
#include "support/check.h"

static void *caller;
static int inner_line, middle_line, outer_line;

/* Prevents a tail call, which would leave no frame. */
#define STAY() __asm__ volatile("" ::: "memory")

static __attribute__((noinline)) void gather(void) {
  caller = __builtin_return_address(0);
  STAY();
}

static inline __attribute__((always_inline)) void inlined_inner(void) {
  gather(), inner_line = __LINE__;
  STAY();
}

static inline __attribute__((always_inline)) void inlined_middle(void) {
  inlined_inner(), middle_line = __LINE__;
  STAY();
}

static __attribute__((noinline)) void outer_function(void) {
  inlined_middle(), outer_line = __LINE__;
  STAY();
}

static const char *name_at(const weir__symbols *s, size_t i) {
  return weir__symbols_text(s, weir__symbols_at(s, i)->function);
}

static uintptr_t caller_of_gather(void) {
  outer_function();
  return (uintptr_t)caller;
}

static bool has_libdw(void) {
  weir__symbols *s = weir__symbols_new(NULL);
  assert_non_null(s);
  size_t first, count = weir__symbols_of(s, caller_of_gather(), &first);
  bool found = count > 0 && weir__symbols_at(s, first)->line > 0;
  weir__symbols_delete(s);
  return found;
}

static void check_place(const weir__symbols *s, size_t i, const char *name, int line) {
  const weir__symbol *symbol = weir__symbols_at(s, i);
  const char *file = weir__symbols_text(s, symbol->file);
  assert_string_equal(name_at(s, i), name);
  assert_non_null(strstr(file, "test_symbols.c"));
  assert_int_equal(symbol->line, line);
}

TEST(inlined_functions) {
  if (!has_libdw()) {
    puts("test_inlined_functions: waived: libdw.so.1 or the program's debug information is not there");
    skip();
  }
  weir__symbols *s = weir__symbols_new(NULL);
  size_t first, again;
  assert_int_equal(weir__symbols_of(s, caller_of_gather(), &first), 3);
  check_place(s, first, "inlined_inner", inner_line);
  check_place(s, first + 1, "inlined_middle", middle_line);
  check_place(s, first + 2, "outer_function", outer_line);

  assert_int_equal(weir__symbols_of(s, caller_of_gather(), &again), 3); /* from the table */
  assert_int_equal(again, first);
  weir__symbols_delete(s);
}

/* The dynamic linker knows exported functions, and at least the file of all others. */
TEST(without_libdw) {
  weir__symbols *s = weir__symbols_new("/nonexistent/libdw.so.1");
  assert_non_null(s);
  size_t first;
  void *(*function)(size_t) = malloc;
  uintptr_t address;
  memcpy(&address, &function, sizeof address);
  assert_int_equal(weir__symbols_of(s, address + 1, &first), 1);
  assert_string_not_equal(name_at(s, first), "??");
  assert_int_equal(weir__symbols_at(s, first)->line, 0);
  assert_int_equal(weir__symbols_of(s, caller_of_gather(), &first), 1);
  assert_non_null(strstr(weir__symbols_text(s, weir__symbols_at(s, first)->file), "test_inspect_symbols"));
  weir__symbols_delete(s);
}

TEST(invalid_addresses) {
  static const uintptr_t nowhere[] = {1, 2, 4096, (uintptr_t)1 << 63, UINTPTR_MAX};
  for (int without = 0; without < 2; without++) {
    weir__symbols *s = weir__symbols_new(without ? "/nonexistent/libdw.so.1" : NULL);
    assert_non_null(s);
    for (size_t i = 0; i < WEIR_COUNT_OF(nowhere); i++) {
      size_t first;
      assert_int_equal(weir__symbols_of(s, nowhere[i], &first), 1);
      assert_string_equal(name_at(s, first), "??");
      assert_string_equal(weir__symbols_text(s, weir__symbols_at(s, first)->file), "??");
    }
    weir__symbols_delete(s);
  }
  weir__symbols_delete(NULL);
}

TEST(many_addresses) {
  weir__symbols *s = weir__symbols_new("/nonexistent/libdw.so.1");
  assert_non_null(s);
  size_t first, again;
  for (uintptr_t i = 1; i <= 5000; i++)
    assert_int_equal(weir__symbols_of(s, i, &first), 1);
  assert_int_equal(first, 4999);
  assert_int_equal(weir__symbols_of(s, 17, &again), 1);
  assert_int_equal(again, 16);
  weir__symbols_delete(s);
}
