/*
 * Philox4x32-10, a counter-based random generator, and the way in which cuRAND and PyTorch address its output.
 *
 * Kernels include this file (CUDA C++ and the software device), and so does host code in C. It therefore has no
 * includes and uses only types of the language.
 *
 * The output is a function of a 64-bit key, the seed, and a 128-bit counter. The upper half of the counter is the
 * subsequence, which is the number of a thread; the lower half counts blocks of four 32-bit words in it. An offset
 * counts words, and is a multiple of 4 everywhere in Weir, so a block is never read across two counters.
 */
#ifndef WEIR_COMPUTE_PHILOX_H
#define WEIR_COMPUTE_PHILOX_H

#if defined(__CUDACC__)
#define WEIR__PHILOX_FUNCTION static __device__ __forceinline__
#else
#define WEIR__PHILOX_FUNCTION static inline
#endif

enum { WEIR__POISSON_BLOCKS = 24 }; /* of four words, for each number of a Poisson distribution */

typedef struct weir__philox_block {
  unsigned words[4];
} weir__philox_block;

/* The bijection itself: ten rounds, in which the key advances by two constants (the golden ratio and sqrt(3) - 1). */
WEIR__PHILOX_FUNCTION weir__philox_block weir__philox4x32(weir__philox_block counter, unsigned key0, unsigned key1) {
  unsigned c0 = counter.words[0], c1 = counter.words[1], c2 = counter.words[2], c3 = counter.words[3];
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int round = 0; round < 10; round++) {
    unsigned long long product0 = 0xD2511F53ull * c0, product2 = 0xCD9E8D57ull * c2;
    c0 = (unsigned)(product2 >> 32) ^ c1 ^ key0;
    c2 = (unsigned)(product0 >> 32) ^ c3 ^ key1;
    c1 = (unsigned)product2;
    c3 = (unsigned)product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  weir__philox_block result = {{c0, c1, c2, c3}};
  return result;
}

/* Four words of a subsequence, from the offset on, which is a multiple of 4. */
WEIR__PHILOX_FUNCTION weir__philox_block weir__philox_at(unsigned long long seed, unsigned long long subsequence,
                                                         unsigned long long offset) {
  unsigned long long block = offset / 4;
  weir__philox_block counter = {
      {(unsigned)block, (unsigned)(block >> 32), (unsigned)subsequence, (unsigned)(subsequence >> 32)}};
  return weir__philox4x32(counter, (unsigned)seed, (unsigned)(seed >> 32));
}

/* Two words as one of 64 bits; the first is the upper half. */
WEIR__PHILOX_FUNCTION unsigned long long weir__philox_long(unsigned first, unsigned second) {
  return (unsigned long long)first << 32 | second;
}

/* A word in (0, 1]: the center of its interval of 2^-32, rounded. The product is exact. */
WEIR__PHILOX_FUNCTION float weir__philox_float(unsigned word) {
  return (float)word * 2.3283064365386963e-10f + 1.1641532182693481e-10f;
}

/* The same with 53 bits of two words, which overlap by 11 bits. */
WEIR__PHILOX_FUNCTION double weir__philox_double(unsigned low, unsigned high) {
  return (double)(low ^ (unsigned long long)high << 21) * 1.1102230246251565e-16 + 5.551115123125783e-17;
}

#endif
