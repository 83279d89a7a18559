/*
 * Interned strings: from many threads, of any length, and up to a limit.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/intern.h"
#include "support/runtime.h"

enum { THREADS = 4, STRINGS = 20000 };

static weir__intern table;
static uint32_t numbers[THREADS][STRINGS];

static size_t make(int i, char text[64]) { return (size_t)snprintf(text, 64, "%0*d", 1 + i % 40, i); }

/* All threads intern the same strings, each in a different order. */
static void *put_all(void *data) {
  int thread = (int)(intptr_t)data;
  for (int k = 0; k < STRINGS; k++) {
    int i = thread % 2 ? k : STRINGS - 1 - k;
    char text[64];
    size_t length = make(i, text);
    numbers[thread][i] = weir__intern_put(&table, text, length);
  }
  return NULL;
}

TEST(same_number_everywhere) {
  table = (weir__intern){.max_bytes = 64u << 20};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, put_all, (void *)(intptr_t)i), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(atomic_load(&table.count), STRINGS);
  assert_int_equal(atomic_load(&table.lost), 0);
  for (int i = 0; i < STRINGS; i++) {
    char text[64];
    size_t length = make(i, text), found;
    for (int thread = 1; thread < THREADS; thread++)
      assert_int_equal(numbers[thread][i], numbers[0][i]);
    const char *stored = weir__intern_get(&table, numbers[0][i], &found);
    assert_non_null(stored);
    assert_int_equal(found, length);
    assert_string_equal(stored, text);
    assert_int_equal((uintptr_t)stored % 8, 0);
  }
  weir__intern_clear(&table);
}

TEST(lengths) {
  static weir__intern own = {.max_bytes = 64u << 20};
  static const size_t lengths[] = {1, 7, 8, 9, 4096, 65535, 65536, 1000000};
  char *bytes = calloc(1, 1000000);
  assert_non_null(bytes);
  size_t found = 1;
  assert_int_equal(weir__intern_put(&own, bytes, 0), 0);
  assert_null(weir__intern_get(&own, 0, &found));
  assert_int_equal(found, 0);
  for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
    /* All zeros: the strings differ only in length. */
    assert_int_equal(weir__intern_put(&own, bytes, lengths[i]), i + 1);
  for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    assert_int_equal(weir__intern_put(&own, bytes, lengths[i]), i + 1);
    assert_memory_equal(weir__intern_get(&own, i + 1, &found), bytes, lengths[i]);
    assert_int_equal(found, lengths[i]);
  }
  assert_null(weir__intern_get(&own, 100, &found));
  weir__intern_clear(&own);
  free(bytes);
}

/* A string that does not fit gets no number, and the others are preserved. */
TEST(limit) {
  static weir__intern own = {.max_bytes = 1u << 20};
  uint32_t last = 0;
  unsigned long refused = 0;
  for (int i = 0; i < 100000; i++) {
    char text[64];
    snprintf(text, sizeof text, "a text that takes some room %d", i);
    uint32_t number = weir__intern_put(&own, text, strlen(text));
    refused += !number;
    if (number) {
      assert_int_equal(number, last + 1);
      last = number;
    }
  }
  assert_true(refused > 0 && last > 0);
  assert_int_equal(atomic_load(&own.lost), refused);
  assert_true(atomic_load(&own.bytes) <= 1u << 20);
  assert_int_equal(weir__intern_put(&own, "a text that takes some room 0", 29), 1);
  weir__intern_clear(&own);
  size_t length;
  assert_null(weir__intern_get(&own, 1, &length));
  assert_int_equal(atomic_load(&own.bytes), 0);
  assert_int_equal(weir__intern_put(&own, "another", 7), 1);
  assert_int_equal(own.max_bytes, 1u << 20);
  weir__intern_clear(&own);
}
