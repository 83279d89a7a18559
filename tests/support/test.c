#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct test *tests; /* in the order of the file: constructors run in an order that the compiler chooses */
static size_t count;

void test_register(struct test *test) {
  struct test **link = &tests;
  while (*link && (*link)->line <= test->line)
    link = &(*link)->next;
  test->next = *link;
  *link = test;
  count++;
}

const char *test_module(void) {
  static char name[64];
  const char *slash = strrchr(tests->file, '/');
  const char *file = slash ? slash + 1 : tests->file;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(file + strlen("test_"), "."), file + strlen("test_"));
  return name;
}

bool test_exists(const char *name) {
  const struct test *t = tests;
  while (t && strcmp(t->name, name))
    t = t->next;
  return t;
}

int main(int argc, char **argv) {
  if (!tests) {
    fputs("the program has no tests\n", stderr);
    return 1;
  }
  /* A test decides itself when a page is written, and by which thread: those of the live page turn it on. */
  setenv("WEIR_STATS_PAGE", "0", 0);
  const struct test_fixture *fixture = tests->fixture;
  int code = argc > 1 && fixture->role ? fixture->role(argc, argv) : RUN_TESTS;
  if (code != RUN_TESTS)
    return code;
  if (fixture->prepare)
    fixture->prepare();

  struct CMUnitTest *list = calloc(count, sizeof *list);
  size_t n = 0;
  for (const struct test *t = tests; t; t = t->next)
    if (!fixture->omits || !fixture->omits(t->name))
      list[n++] = (struct CMUnitTest){.name = t->name,
                                      .test_func = t->run,
                                      .setup_func = t->has_setup ? t->setup : fixture->setup,
                                      .teardown_func = t->has_setup ? t->teardown : fixture->teardown};
  int failed = n ? _cmocka_run_group_tests(test_module(), list, n, fixture->begin, fixture->end) : WAIVED;
  free(list);
  return failed;
}
