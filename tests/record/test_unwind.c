/*
 * Stacks walked with cached unwind information equal the stacks that libunwind finds, through frames of all shapes,
 * including functions whose frame size changes from call to call.
 */
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record/stacks.h"
#include "record/unwind.h"
#include "support/alloc.h"
#include "support/sanitized.h"

enum { ROOM = 1500 };

static int (*backtrace_native)(void **, int);
static _Atomic int walked, asked;

/* The innermost function of each stack: unwinds both ways from the same frame. */
static __attribute__((noinline)) void compare(void) {
  static _Thread_local uint64_t mine[ROOM], theirs[ROOM];
  size_t count = weir__unwind_walk(__builtin_frame_address(0), mine, ROOM);
  int native = backtrace_native((void **)theirs, ROOM);
  assert_in_range(native, 2, ROOM - 1);
  asked++;
  if (!count)
    weir__unwind_learn((size_t)native + 2);
  else {
    walked++;
    assert_int_equal(count, native - 1); /* the first frame of libunwind is this function */
    assert_memory_equal(mine, theirs + 1, count * sizeof mine[0]);
  }
  __asm__ volatile("" : : : "memory");
}

/* ---- Frames ---- */

typedef struct way {
  uint32_t random;
  int left; /* number of frames still to call */
} way;

static void go_on(way *w);

static uint32_t next_of(way *w) { return (w->random = w->random * 1664525 + 1013904223) >> 12; }

static __attribute__((noinline)) void plain(way *w) {
  go_on(w);
  __asm__ volatile("" : : : "memory");
}

static __attribute__((noinline)) void with_room(way *w) {
  volatile char some[333];
  some[w->left % 333] = 1;
  go_on(w);
  __asm__ volatile("" : : "r"(some) : "memory");
}

static __attribute__((noinline)) void with_alloca(way *w) {
  /* cppcheck-suppress allocaCalled ; alloca is under test */
  char *some = alloca(16 + next_of(w) % 5000);
  some[0] = 1;
  go_on(w);
  __asm__ volatile("" : : "r"(some) : "memory");
}

static __attribute__((noinline)) void with_array(way *w) {
  size_t count = 1 + next_of(w) % 700;
  volatile int some[count];
  some[count - 1] = 1;
  go_on(w);
  __asm__ volatile("" : : "r"(some) : "memory");
}

/* Aligns its frame dynamically. */
static __attribute__((noinline)) void aligned(way *w) {
  _Alignas(256) volatile char some[256];
  some[w->left % 256] = 1;
  go_on(w);
  __asm__ volatile("" : : "r"(some) : "memory");
}

static __attribute__((noinline)) long with_arguments(way *w, long a, long b, long c, long d, long e, long f, long g,
                                                     long h) {
  go_on(w);
  __asm__ volatile("" : : : "memory");
  return a + b + c + d + e + f + g + h;
}

/* Clobbers all callee-saved registers, including the frame pointer. */
static __attribute__((noinline)) void with_registers(way *w) {
  long a = w->left, b = a * 3, c = a * 5, d = a * 7, e = a * 11, f = a * 13;
  for (int i = 0; i < 2; i++) {
    __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
    if (i)
      go_on(w);
  }
  __asm__ volatile("" : : "r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f) : "memory");
}

static _Thread_local way *sorted;

static int through_libc(const void *a, const void *b) {
  way *w = sorted;
  sorted = NULL; /* print it only once */
  if (w)
    go_on(w);
  return *(const int *)a - *(const int *)b;
}

static __attribute__((noinline)) void with_sorting(way *w) {
  int numbers[] = {3, 1, 2};
  sorted = w;
  qsort(numbers, WEIR_COUNT_OF(numbers), sizeof numbers[0], through_libc);
  assert_int_equal(numbers[0], 1);
}

static void go_on(way *w) {
  if (w->left-- <= 0) {
    compare();
    return;
  }
  switch (next_of(w) % 8) {
  case 0:
    with_room(w);
    break;
  case 1:
    with_alloca(w);
    break;
  case 2:
    with_array(w);
    break;
  case 3:
    assert_int_equal(with_arguments(w, 1, 2, 3, 4, 5, 6, 7, 8), 36);
    break;
  case 4:
    with_registers(w);
    break;
  case 5:
    with_sorting(w);
    break;
  case 6:
    if (next_of(w) % 4 == 0) {
      aligned(w);
      break;
    }
    /* fall through */
  default:
    plain(w);
  }
}

static void *many(void *argument) {
  for (uint32_t i = 0; i < 3000; i++) {
    way w = {.random = i * 77 + (uint32_t)(uintptr_t)argument, .left = (int)(i % 12)};
    go_on(&w);
  }
  return NULL;
}

static void prepare(void) {
  if (!weir__stacks_start()) {
    puts("waived: there is no libunwind");
    exit(WAIVED);
  }
  void *library = dlopen("libunwind.so.8", RTLD_NOW);
  if (library)
    *(void **)&backtrace_native = dlsym(library, "unw_backtrace");
  if (!backtrace_native || !weir__unwind_start(library)) {
    puts("waived: only libunwind walks stacks here");
    exit(WAIVED);
  }
}

FIXTURE(.prepare = prepare)

TEST(shapes) {
  walked = asked = 0;
  many((void *)1);
#ifndef SANITIZED
  if (walked < asked / 2)
    fail_msg("%d of %d stacks were walked", walked, asked);
#endif
}

TEST(deep) {
  for (int i = 0; i < 10; i++) {
    way w = {.random = 99, .left = 300};
    go_on(&w);
  }
}

TEST(threads) {
#ifdef __SANITIZE_THREAD__
  puts("waived: libunwind takes a lock at thread exit, when the sanitizer has already forgotten the thread");
  skip();
#endif
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, many, (void *)(i + 5)), 0);
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* A gathered stack is the same with either unwinder. */
static __attribute__((noinline)) uint32_t gather_here(void) {
  uint32_t stack = weir__stack_gather(WEIR_STACKS_ALL);
  __asm__ volatile("" : : : "memory");
  return stack;
}

TEST(same_number) {
  uint32_t numbers[50];
  for (int i = 0; i < 50; i++)
    numbers[i] = gather_here();
  assert_int_not_equal(numbers[0], 0);
  for (int i = 1; i < 50; i++)
    assert_int_equal(numbers[i], numbers[0]);
}
