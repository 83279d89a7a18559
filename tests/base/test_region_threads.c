/*
 * The region with little address space, with several threads, and in a child.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/region.h"
#include "support/check.h"

/* The size of the address space in use; 0 if unknown. */
static size_t mapped(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file && fscanf(file, "%lu", &pages) != 1)
    pages = 0;
  if (file)
    fclose(file);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Runs before any piece is taken: with little address space the region is small and runs out. */
TEST(little_address_space) {
  pid_t child = fork();
  if (child == 0) {
    struct rlimit limit;
    size_t used = mapped(), taken = 0;
    if (!used || getrlimit(RLIMIT_AS, &limit))
      _exit(2);
    limit.rlim_cur = used + ((size_t)700 << 20);
    if (setrlimit(RLIMIT_AS, &limit))
      _exit(3);
    for (unsigned char *piece; (piece = weir__region_alloc(WEIR__REGION_PIECE)); taken += WEIR__REGION_PIECE)
      if (weir__at(weir__ref_of(piece)) != piece || piece[WEIR__REGION_PIECE - 1] ||
          *(unsigned char *)weir__cold_of(piece + WEIR__REGION_PIECE - 2))
        _exit(4);
    _exit(taken >= (size_t)60 << 20 && taken < (size_t)200 << 20 ? 0 : 5);
  }
  assert_int_equal(child_outcome(child), 0);
}

static void *take_and_give(void *data) {
  intptr_t wrong = 0;
  for (int i = 0; i < 300; i++) {
    size_t bytes = (size_t)(1 + i % 5) * 8192;
    unsigned char *piece = weir__region_alloc(bytes);
    if (!piece || piece[0] || piece[bytes - 1])
      return (void *)-1;
    memset(piece, (int)(intptr_t)data, bytes);
    wrong += piece[bytes / 2] != (unsigned char)(intptr_t)data;
    weir__region_free(piece, bytes);
  }
  return (void *)wrong;
}

TEST(threads) {
  pthread_t threads[8];
  for (intptr_t i = 0; i < 8; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, (void *)(i + 1)), 0);
  for (int i = 0; i < 8; i++) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    assert_null(wrong);
  }
}

TEST(child) {
  unsigned char *piece = weir__region_alloc(8192);
  piece[0] = 7;
  pid_t child = fork();
  if (child == 0) {
    unsigned char *other = weir__region_alloc(8192);
    int good = other && other != piece && piece[0] == 7;
    piece[0] = 8;
    _exit(good ? 0 : 1);
  }
  assert_int_equal(child_outcome(child), 0);
  assert_int_equal(piece[0], 7);
  weir__region_free(piece, 8192);
}
