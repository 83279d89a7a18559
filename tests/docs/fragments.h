/*
 * Runs fragments of the documentation. Each one runs on a thread of its own, because the error text belongs to a
 * thread: the fragments do not check what calls return, so a text at the end means that a call has failed.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weir/weir.h>

/* The code is the reader's: it may leave things unused. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wdeclaration-after-statement"

typedef struct fragment {
  const char *name;
  void (*run)(void);
} fragment;

#define FRAGMENT(name)                                                                                                 \
  { #name, name }

static inline _Noreturn void fail(const char *what) {
  fprintf(stderr, "%s\n%s\n", what, weir_last_error());
  exit(1);
}
#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      fail(#condition);                                                                                                \
  } while (0)

static inline void *run_fragment(void *argument) {
  const fragment *f = argument;
  f->run();
  if (*weir_last_error()) {
    fprintf(stderr, "%s: %s\n", f->name, weir_last_error());
    exit(1);
  }
  return NULL;
}

static inline int run_fragments(const fragment *fragments, size_t count) {
  for (size_t i = 0; i < count; i++) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, run_fragment, (void *)&fragments[i]) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    printf("%s\n", fragments[i].name);
  }
  MUST(weir_shutdown() == WEIR_OK);
  return 0;
}
