#include "offline/analyse/sha256.h"

#include <string.h>

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void take_block(weir__sha256 *sha, const unsigned char *block) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (int i = 16; i < 64; i++)
    w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
           (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
  memcpy(v, sha->state, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t first = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) +
                     constants[i] + w[i];
    uint32_t second =
        (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += first;
    v[0] = first + second;
  }
  for (int i = 0; i < 8; i++)
    sha->state[i] += v[i];
}

void weir__sha256_begin(weir__sha256 *sha) {
  *sha = (weir__sha256){
      .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void weir__sha256_add(weir__sha256 *sha, const void *bytes, size_t size) {
  for (const unsigned char *from = bytes; size;) {
    size_t used = sha->size % WEIR__SHA256_BLOCK;
    size_t part = WEIR__SHA256_BLOCK - used < size ? WEIR__SHA256_BLOCK - used : size;
    memcpy(sha->block + used, from, part);
    sha->size += part;
    from += part;
    size -= part;
    if (used + part == WEIR__SHA256_BLOCK)
      take_block(sha, sha->block);
  }
}

void weir__sha256_end(weir__sha256 *sha, unsigned char digest[WEIR__SHA256_SIZE]) {
  static const unsigned char padding[WEIR__SHA256_BLOCK] = {0x80};
  unsigned char bits[8];
  for (int i = 0; i < 8; i++)
    bits[i] = (unsigned char)(sha->size * 8 >> (56 - 8 * i));
  size_t used = sha->size % WEIR__SHA256_BLOCK;
  weir__sha256_add(sha, padding, used < 56 ? 56 - used : 120 - used);
  weir__sha256_add(sha, bits, sizeof bits);
  for (int i = 0; i < WEIR__SHA256_SIZE; i++)
    digest[i] = (unsigned char)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}
