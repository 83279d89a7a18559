/*
 * How long a tag takes to fall asleep and to wake.
 *
 *     WEIR_DRIVER=cuda build/bench/sleep [GiB] [rounds] [rounds with work in flight]
 *
 * Blocks of 16 to 128 MiB fill so many GiB, 31.2 by default on a GPU, and then 30 % of them are freed. Every block has
 * its own contents, which are checked. The lines:
 *
 *   cold        the first sleep, before any host memory is pinned, and the wake after it
 *   warm        the median and the longest of the later ones
 *   discard     a quarter of the bytes, which are not kept
 *   100,000 blocks   as many live bytes in small blocks
 *   other stream     the longest time that a small piece of work of another stream takes meanwhile
 *   in flight   sleeps of 64 MiB that begin while a stream writes to the memory
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checked.h"
#include "weir/weir.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static weir_driver *driver;
static weir_cu_context context;
static weir_cu_stream stream;

/* ---- A model: blocks with contents ---- */

typedef struct model {
  weir_allocator *allocator;
  weir_tag *tag;
  void **blocks; /* NULL where one was freed */
  uint64_t *sizes;
  size_t count;
  uint64_t live;
} model;

static uint32_t random_state = 12345;
static uint32_t next_random(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}

static void make(model *m, uint64_t bytes, uint64_t least, uint64_t most) {
  size_t room = (size_t)(bytes / least + 2);
  *m = (model){.blocks = calloc(room, sizeof *m->blocks), .sizes = calloc(room, sizeof *m->sizes)};
  CHECK(weir_allocator_create(driver, NULL, &m->allocator));
  CHECK(weir_tag_open(m->allocator, 0, "model", &m->tag));
  CHECK(weir_tag_begin(m->tag));
  for (uint64_t sum = 0; sum < bytes && m->blocks && m->sizes; sum += m->sizes[m->count++]) {
    m->sizes[m->count] = (least + (uint64_t)next_random() * 64 % (most - least + 1)) / 512 * 512;
    CHECK(weir_allocator_alloc(m->allocator, 0, m->sizes[m->count], stream, &m->blocks[m->count]));
  }
  CHECK(weir_tag_end(m->tag));
}

/* Frees three of ten blocks, spread evenly. */
static void thin(model *m) {
  for (size_t i = 0; i < m->count; i++)
    if (i % 10 == 1 || i % 10 == 4 || i % 10 == 7) {
      CHECK(weir_allocator_free(m->allocator, m->blocks[i]));
      m->blocks[i] = NULL;
    } else
      m->live += m->sizes[i];
}

static uint32_t word_of(size_t i, uint32_t round) { return (uint32_t)i * 2654435761u + round; }

static void write_all(const model *m, uint32_t round) {
  for (size_t i = 0; i < m->count; i++)
    if (m->blocks[i])
      CHECK_DRIVER(
          driver->MemsetD32Async(driver, (weir_cu_deviceptr)m->blocks[i], word_of(i, round), m->sizes[i] / 4, stream));
}

/* Reads the first, the middle and the last words of each block. */
static void check_all(const model *m, uint32_t round) {
  enum { WORDS = 64 };
  uint32_t words[WORDS];
  for (size_t i = 0; i < m->count; i++)
    for (int k = 0; k < 3 && m->blocks[i]; k++) {
      uint64_t at = k == 0 ? 0 : k == 1 ? m->sizes[i] / 2 / 512 * 512 : m->sizes[i] - sizeof words;
      CHECK_DRIVER(driver->Memcpy(driver, (weir_cu_deviceptr)(uintptr_t)words, (weir_cu_deviceptr)m->blocks[i] + at,
                                  sizeof words));
      for (int w = 0; w < WORDS; w++)
        if (words[w] != word_of(i, round))
          fail("check_all", "a block has other contents after the wake");
    }
}

static void end(model *m) {
  for (size_t i = 0; i < m->count; i++)
    if (m->blocks[i])
      CHECK(weir_allocator_free(m->allocator, m->blocks[i]));
  weir_allocator_destroy(m->allocator);
  free(m->blocks);
  free(m->sizes);
}

/* ---- Times ---- */

typedef struct times {
  double *sleep, *wake;
  int count;
} times;

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void cycle(const model *m, weir_tag_content content, double *slept, double *woken) {
  double begin = now();
  CHECK(weir_tag_sleep(m->tag, content, NULL));
  *slept = now() - begin;
  begin = now();
  CHECK(weir_tag_wake(m->tag, NULL));
  *woken = now() - begin;
}

static void print(const char *name, double *slept, double *woken, int count) {
  qsort(slept, (size_t)count, sizeof *slept, by_value);
  qsort(woken, (size_t)count, sizeof *woken, by_value);
  printf("%-34s sleep %8.1f ms (longest %8.1f)   wake %8.1f ms (longest %8.1f)\n", name, slept[count / 2] * 1e3,
         slept[count - 1] * 1e3, woken[count / 2] * 1e3, woken[count - 1] * 1e3);
  fflush(stdout);
}

static void rounds_of(const char *name, const model *m, weir_tag_content content, int rounds) {
  double *slept = calloc((size_t)rounds, sizeof *slept), *woken = calloc((size_t)rounds, sizeof *woken);
  if (!slept || !woken)
    fail("calloc", "out of memory");
  for (int i = 0; i < rounds; i++) {
    if (content == WEIR_TAG_KEEP)
      write_all(m, (uint32_t)i);
    CHECK_DRIVER(driver->StreamSynchronize(driver, stream));
    cycle(m, content, &slept[i], &woken[i]);
    if (content == WEIR_TAG_KEEP)
      check_all(m, (uint32_t)i);
  }
  print(name, slept, woken, rounds);
  free(slept);
  free(woken);
}

/* ---- Another stream ---- */

typedef struct other {
  atomic_bool is_over;
  double longest;
  unsigned long count;
} other;

static void *use_other_stream(void *argument) {
  other *o = argument;
  weir_cu_stream mine;
  weir_cu_deviceptr memory;
  CHECK_DRIVER(driver->CtxSetCurrent(driver, context));
  CHECK_DRIVER(driver->StreamCreateWithPriority(driver, &mine, WEIR_CU_STREAM_NON_BLOCKING, 0));
  CHECK_DRIVER(driver->MemAlloc(driver, &memory, MIB));
  while (!atomic_load(&o->is_over)) {
    double begin = now();
    CHECK_DRIVER(driver->MemsetD8Async(driver, memory, 1, MIB, mine));
    CHECK_DRIVER(driver->StreamSynchronize(driver, mine));
    double took = now() - begin;
    o->longest = took > o->longest ? took : o->longest;
    o->count++;
  }
  CHECK_DRIVER(driver->MemFree(driver, memory));
  CHECK_DRIVER(driver->StreamDestroy(driver, mine));
  return NULL;
}

static void beside_other_stream(const model *m, int rounds) {
  other alone = {.longest = 0}, beside = {.longest = 0};
  other *both[2] = {&alone, &beside};
  double slept, woken;
  for (int i = 0; i < 2; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, use_other_stream, both[i]) != 0)
      fail("pthread_create", "no thread");
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    for (int k = 0; k < rounds && i; k++)
      cycle(m, WEIR_TAG_KEEP, &slept, &woken);
    atomic_store(&both[i]->is_over, true);
    pthread_join(thread, NULL);
  }
  printf("%-34s longest %8.2f ms beside %d warm rounds, %lu pieces of work; %.2f ms alone\n", "other stream",
         beside.longest * 1e3, rounds, beside.count, alone.longest * 1e3);
}

/* ---- Work in flight ---- */

static void in_flight(int rounds) {
  model m;
  make(&m, 64 * MIB, 4 * MIB, 4 * MIB);
  double begin = now();
  for (int i = 0; i < rounds; i++) {
    write_all(&m, (uint32_t)i);
    CHECK(weir_tag_sleep(m.tag, WEIR_TAG_KEEP, NULL));
    CHECK(weir_tag_wake(m.tag, NULL));
    check_all(&m, (uint32_t)i);
  }
  printf("%-34s %d rounds of 64 MiB, contents right, %.1f ms each\n", "in flight", rounds,
         (now() - begin) * 1e3 / rounds);
  end(&m);
}

/* The machine's memory may grow as it is used: touched once, it is there. */
static void touch_host(uint64_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    fail("mmap", "out of memory");
  for (uint64_t i = 0; i < bytes; i += 4096)
    ((volatile char *)memory)[i] = 1;
  munmap(memory, bytes);
}

int main(int argc, char **argv) {
  CHECK(weir_init());
  CHECK(weir_get_driver(&driver));
  CHECK_DRIVER(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  CHECK_DRIVER(driver->CtxSetCurrent(driver, context));
  CHECK_DRIVER(driver->StreamCreateWithPriority(driver, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  bool is_gpu = driver->capabilities & WEIR_DRIVER_NVIDIA;
  double gib = argc > 1 ? strtod(argv[1], NULL) : is_gpu ? 31.2 : 0.5;
  int rounds = argc > 2 ? atoi(argv[2]) : is_gpu ? 20 : 3, flights = argc > 3 ? atoi(argv[3]) : is_gpu ? 10000 : 20;
  uint64_t bytes = (uint64_t)(gib * 1024) * MIB;
  if (bytes < 256 * MIB || rounds < 1 || flights < 1)
    fail("usage", "sleep [GiB, at least 0.25] [rounds] [rounds with work in flight]");

  model m;
  double slept, woken;
  make(&m, bytes, 16 * MIB, 128 * MIB);
  thin(&m);
  printf("%.1f GiB live in %.1f GiB, in %zu blocks, on %s\n", (double)m.live / (double)GIB, gib, m.count, driver->name);
  touch_host(m.live + m.live / 8);
  write_all(&m, 77);
  CHECK_DRIVER(driver->StreamSynchronize(driver, stream));
  cycle(&m, WEIR_TAG_KEEP, &slept, &woken);
  check_all(&m, 77);
  print("cold", &slept, &woken, 1);
  weir_tag_info info;
  weir_tag_info_init(&info);
  CHECK(weir_tag_get_info(m.tag, &info));
  printf("%-34s %.4f x the live bytes; %.1f GiB stay pinned\n", "copied each way",
         (double)info.copied_bytes / 2 / (double)m.live, (double)info.pinned_bytes / (double)GIB);
  uint64_t live = m.live;
  rounds_of("warm", &m, WEIR_TAG_KEEP, rounds);
  beside_other_stream(&m, 3);
  end(&m);

  make(&m, bytes / 4, 16 * MIB, 128 * MIB);
  rounds_of("discard, a quarter of the bytes", &m, WEIR_TAG_DISCARD, rounds);
  end(&m);

  uint64_t small = live / 100000 / 512 * 512; /* with 30 % of the blocks freed again */
  small = small < 1024 ? 1024 : small;
  make(&m, live / 7 * 10, small, small);
  thin(&m);
  printf("%.1f GiB live in %zu small blocks\n", (double)m.live / (double)GIB, m.count / 10 * 7);
  write_all(&m, 5);
  CHECK_DRIVER(driver->StreamSynchronize(driver, stream));
  cycle(&m, WEIR_TAG_KEEP, &slept, &woken);
  print("small blocks, cold", &slept, &woken, 1);
  rounds_of("small blocks, warm", &m, WEIR_TAG_KEEP, rounds < 5 ? rounds : 5);
  end(&m);

  in_flight(flights);
  CHECK_DRIVER(driver->StreamDestroy(driver, stream));
  CHECK_DRIVER(driver->DevicePrimaryCtxRelease(driver, 0));
  return 0;
}
