/*
 * Live blocks with data: each has a pattern, which is written in stream order. For one file of tests.
 */
#pragma once

#include "alloc/moving_fixture.h"

enum { MAX_DATA = 64 };
static struct data {
  void *memory;
  size_t bytes;
  weir_cu_stream stream;
  int pattern;
} data[MAX_DATA];
static int data_count, last_pattern;

/* A few bytes of each MiB stand for all of it: every page is at least that large. */
static inline void write_pattern(const struct data *block) {
  for (size_t at = 0; at < block->bytes; at += MIB)
    fill((char *)block->memory + at, block->pattern, block->bytes - at < 64 ? block->bytes - at : 64, block->stream);
}

/* NULL if the request fails. */
static inline void *take(size_t bytes, weir_cu_stream stream) {
  void *p = NULL;
  if (weir_allocator_alloc(allocator, 0, bytes, stream, &p))
    return NULL;
  assert_true(data_count < MAX_DATA);
  data[data_count] = (struct data){p, bytes, stream, ++last_pattern % 255 + 1};
  write_pattern(&data[data_count++]);
  return p;
}

static inline void give(void *p) {
  int i = 0;
  if (!p)
    return;
  while (data[i].memory != p)
    i++;
  data[i] = data[--data_count];
  assert_ok(weir_allocator_free(allocator, p));
}

static inline void check_data(void) {
  soft_step_all();
  for (int i = 0; i < data_count; i++)
    for (size_t at = 0; at < data[i].bytes; at += MIB)
      assert_int_equal(((unsigned char *)data[i].memory)[at], data[i].pattern);
}
