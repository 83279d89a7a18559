/*
 * Registration of tests. A test program has no main of its own: support/test.c runs all tests in the order of the file.
 *
 *     FIXTURE(.setup = open_device, .teardown = close_device)
 *
 *     TEST(a_stream_is_idle_at_first) {
 *       assert_ok(weir_stream_query(stream));
 *     }
 *
 *     TEST_SETUP(a_stream_that_is_broken, break_device, close_device) {
 *
 * A file has at most one FIXTURE, for all its tests but those with TEST_SETUP. The parameter of a test is cmocka's
 * `state`.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RUN_TESTS = -1, WAIVED = 77 };

struct test_fixture {
  /* Called with the program's arguments if there are any, as by a test that starts the program again in another role.
   * Returns the program's exit code, or RUN_TESTS. */
  int (*role)(int argc, char **argv);
  /* Called before the first test. To waive all of them, it prints "waived: " with the reason, and exits with WAIVED. */
  void (*prepare)(void);
  bool (*omits)(const char *test);   /* does not run the test */
  CMFixtureFunction begin, end;      /* around all tests */
  CMFixtureFunction setup, teardown; /* around each test */
};

/* The fixture of the file: all members are optional. Without FIXTURE, all are NULL. */
static const struct test_fixture test_fixture __attribute__((unused));
#define FIXTURE(...) static const struct test_fixture test_fixture = {__VA_ARGS__};

struct test {
  const char *name, *file;
  int line;
  CMUnitTestFunction run;
  const struct test_fixture *fixture;
  bool has_setup; /* the next two replace those of the fixture */
  CMFixtureFunction setup, teardown;
  struct test *next;
};
void test_register(struct test *test);

/* The name of the test file without test_ and .c. */
const char *test_module(void);

/* Whether the file has a test with this name, which begins with test_. */
bool test_exists(const char *name);

/* Another run of a function that is a test, with its own name, setup and teardown. */
#define TEST_AGAIN(id, name, function, setup, teardown)                                                                \
  __attribute__((constructor)) static void register_##id(void) {                                                       \
    static struct test test = {name, __FILE__, __LINE__, function, &test_fixture, true, setup, teardown, NULL};        \
    test_register(&test);                                                                                              \
  }

#define TEST_SETUP(name, setup, teardown)                                                                              \
  static void test_##name(void **state);                                                                               \
  TEST_AGAIN(name, "test_" #name, test_##name, setup, teardown)                                                        \
  static void test_##name(__attribute__((unused)) void **state)

#define TEST(name)                                                                                                     \
  static void test_##name(void **state);                                                                               \
  __attribute__((constructor)) static void register_##name(void) {                                                     \
    static struct test test = {                                                                                        \
        "test_" #name, __FILE__, __LINE__, test_##name, &test_fixture, false, NULL, NULL, NULL};                       \
    test_register(&test);                                                                                              \
  }                                                                                                                    \
  static void test_##name(__attribute__((unused)) void **state)
