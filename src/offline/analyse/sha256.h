/*
 * SHA-256 (FIPS 180-4).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { WEIR__SHA256_SIZE = 32, WEIR__SHA256_BLOCK = 64 };

typedef struct weir__sha256 {
  uint32_t state[8];
  uint64_t size; /* bytes so far */
  unsigned char block[WEIR__SHA256_BLOCK];
} weir__sha256;

void weir__sha256_begin(weir__sha256 *sha);
void weir__sha256_add(weir__sha256 *sha, const void *bytes, size_t size);
void weir__sha256_end(weir__sha256 *sha, unsigned char digest[WEIR__SHA256_SIZE]);
