/*
 * How much of a test is run. WEIR_TEST_LONG=1, which `make test-all` sets, asks for the long form of those that repeat something
 * with other numbers, or make every single call fail.
 */
#ifndef WEIR_TEST_LENGTH_H
#define WEIR_TEST_LENGTH_H

#include <stdlib.h>
#include <string.h>

/* The usual number of repetitions, or that of the long form. */
static inline int usual_or_long(int usual, int in_long_form) {
  const char *text = getenv("WEIR_TEST_LONG");
  return text && strcmp(text, "1") == 0 ? in_long_form : usual;
}

#endif
