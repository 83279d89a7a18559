/*
 * Files of test data, and random numbers to spoil them with.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef WEIR_TEST_DATA
#error "the build says where tests/data is"
#endif

typedef struct bytes {
  unsigned char *data;
  size_t size;
} bytes;

/* free() it. `name` is below tests/data. */
static inline bytes read_test_file(const char *name) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", WEIR_TEST_DATA, name);
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    abort();
  }
  bytes all = {NULL, 0};
  for (size_t capacity = 1 << 16;; capacity *= 2) {
    all.data = realloc(all.data, capacity);
    if (all.data == NULL)
      abort();
    all.size += fread(all.data + all.size, 1, capacity - all.size, file);
    if (all.size < capacity)
      break;
  }
  fclose(file);
  return all;
}

/* Memory with nothing behind it that could be read unnoticed. */
static inline bytes exact_copy(const void *data, size_t size) {
  bytes copy = {malloc(size > 0 ? size : 1), size};
  if (copy.data == NULL)
    abort();
  if (size > 0)
    memcpy(copy.data, data, size);
  return copy;
}

static inline uint64_t next_random(uint64_t *state) {
  *state += 0x9e3779b97f4a7c15;
  uint64_t z = *state;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

/* Changes, moves, adds or takes away a few bytes. `data` has room for 64 more. */
static inline void spoil(unsigned char *data, size_t *size, uint64_t *random) {
  for (size_t changes = 1 + next_random(random) % 4; changes > 0 && *size > 0; changes--) {
    size_t at = next_random(random) % *size, n = 1 + next_random(random) % 8;
    switch (next_random(random) % 6) {
    case 0:
      data[at] = (unsigned char)next_random(random);
      break;
    case 1:
      data[at] ^= (unsigned char)(1u << next_random(random) % 8);
      break;
    case 2: { /* a byte that occurs is likely to be an opcode */
      size_t from = next_random(random) % *size;
      data[at] = data[from];
      break;
    }
    case 3:
      if (n <= *size - at) {
        memmove(data + at, data + at + n, *size - at - n);
        *size -= n;
      }
      break;
    case 4:
      memmove(data + at + n, data + at, *size - at);
      *size += n;
      break;
    default:
      data[at] = (unsigned char)(next_random(random) % 2 ? 0xff : 0);
    }
  }
}
