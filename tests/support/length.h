/*
 * The length of a test run. WEIR_TEST_LONG=1, which `make test-all` sets, selects the long form of tests that repeat a
 * case with different numbers, or that make every single call fail.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

/* The number of repetitions in the usual or in the long form. */
static inline int usual_or_long(int usual, int in_long_form) {
  const char *text = getenv("WEIR_TEST_LONG");
  return text && strcmp(text, "1") == 0 ? in_long_form : usual;
}

/* For a number of repetitions: with a sanitizer, which takes several times as long for each, the usual form has half of
 * them, and the long form a tenth. */
static inline int repetitions(int usual, int in_long_form) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  in_long_form = in_long_form / 10 > usual ? in_long_form / 10 : usual;
  usual = (usual + 1) / 2;
#endif
  return usual_or_long(usual, in_long_form);
}
