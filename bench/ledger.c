/*
 * The speed of the ledger: nanoseconds per call of each kind, with 10, 1,000 and 100,000 live objects.
 *
 * A round selects some of the live objects at random, frees them in that order, and creates as many new ones. Each kind
 * of call has its own row. The cost of reading the clock is measured and subtracted.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "weir/driver.h"

enum { CALLS = 1 << 21, BATCH_MAX = 1000, MANY = 100000, LEVELS = 3 };
#define PAGE ((size_t)2 << 20)
#define CHECK(call) check((call), #call)

static const int levels[LEVELS] = {10, 1000, MANY};

typedef struct row {
  const char *name;
  double ns[LEVELS];
} row;

typedef struct bench {
  weir_driver *d;
  int live, batch, level;
  int order[MANY]; /* a permutation of the live objects; a round works on the first `batch` of it */
  uint64_t random;
  double clock_ns; /* the cost of one reading of the clock */
  weir_cu_deviceptr pointers[MANY];
  weir_cu_mem_handle handles[MANY];
  weir_cu_event events[MANY];
} bench;

static void check(weir_cu_result result, const char *call) {
  if (result == WEIR_CU_SUCCESS)
    return;
  fprintf(stderr, "bench: %s: %s\n", call, weir_cu_result_name(result));
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The minimum of many tries, since disturbances only make a try longer. */
static double cost_of_clock(void) {
  double least = 1e9;
  for (int try = 0; try < 1000; try++) {
    double start = now(), end = start;
    for (int i = 0; i < 100; i++)
      end = now();
    if ((end - start) / 100 < least)
      least = (end - start) / 100;
  }
  return least;
}

static unsigned pick(bench *b, unsigned below) {
  b->random = b->random * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)((b->random >> 33) % below);
}

static void shuffle(bench *b) {
  for (int i = 0; i < b->batch; i++) {
    int k = i + (int)pick(b, (unsigned)(b->live - i)), t = b->order[i];
    b->order[i] = b->order[k];
    b->order[k] = t;
  }
}

/* Adds the time of `call` for each object i of the batch to a row. */
#define TIMED(r, call)                                                                                                 \
  do {                                                                                                                 \
    double start = now();                                                                                              \
    for (int n = 0, i; n < b->batch; n++) {                                                                            \
      i = b->order[n];                                                                                                 \
      (void)i;                                                                                                         \
      CHECK(b->d->call);                                                                                               \
    }                                                                                                                  \
    (r)->ns[b->level] += now() - start - b->clock_ns;                                                                  \
  } while (0)

static void finish(bench *b, row *rows, int count, int rounds) {
  for (int i = 0; i < count; i++)
    rows[i].ns[b->level] /= (double)rounds * b->batch;
}

static void plain(bench *b, row *rows) {
  for (int i = 0; i < b->live; i++)
    CHECK(b->d->MemAlloc(b->d, &b->pointers[i], PAGE));
  weir_cu_deviceptr base;
  size_t bytes, total;
  int rounds = CALLS / b->batch;
  for (int round = 0; round < rounds; round++) {
    shuffle(b);
    TIMED(&rows[2], MemGetAddressRange(b->d, &base, &bytes, b->pointers[i] + 4096));
    TIMED(&rows[1], MemFree(b->d, b->pointers[i]));
    TIMED(&rows[0], MemAlloc(b->d, &b->pointers[i], (size_t)(1 + (i & 7)) * PAGE));
    TIMED(&rows[3], MemGetInfo(b->d, &bytes, &total));
  }
  for (int i = 0; i < b->live; i++)
    CHECK(b->d->MemFree(b->d, b->pointers[i]));
  finish(b, rows, 4, rounds);
}

/* Places new allocations at the freed addresses, the most recent first, as the replay of a recording does. */
typedef struct places {
  weir_cu_deviceptr free[MANY];
  int count;
} places;

static weir_cu_deviceptr next_place(void *context, weir_driver_call call, uint64_t bytes) {
  places *p = context;
  (void)bytes;
  return call == WEIR_CALL_MemAlloc && p->count > 0 ? p->free[--p->count] : 0;
}

static void placed(bench *b, places *p, row *rows) {
  for (p->count = 0; p->count < b->live; p->count++)
    p->free[p->count] = 0x7f0000000000 + (weir_cu_deviceptr)p->count * 8 * PAGE;
  for (int i = 0; i < b->live; i++)
    CHECK(b->d->MemAlloc(b->d, &b->pointers[i], PAGE));
  int rounds = CALLS / b->batch;
  for (int round = 0; round < rounds; round++) {
    shuffle(b);
    for (int n = 0; n < b->batch; n++)
      p->free[p->count++] = b->pointers[b->order[n]];
    TIMED(&rows[1], MemFree(b->d, b->pointers[i]));
    TIMED(&rows[0], MemAlloc(b->d, &b->pointers[i], (size_t)(1 + (i & 7)) * PAGE));
  }
  for (int i = 0; i < b->live; i++)
    CHECK(b->d->MemFree(b->d, b->pointers[i]));
  finish(b, rows, 2, rounds);
}

static void virtual_memory(bench *b, row *rows) {
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};
  weir_cu_deviceptr base;
  CHECK(b->d->MemAddressReserve(b->d, &base, (size_t)b->live * PAGE, 0, 0, 0));
#define AT(i) (base + (weir_cu_deviceptr)(i)*PAGE)
  for (int i = 0; i < b->live; i++) {
    CHECK(b->d->MemCreate(b->d, &b->handles[i], PAGE, &prop, 0));
    CHECK(b->d->MemMap(b->d, AT(i), PAGE, 0, b->handles[i], 0));
  }
  int rounds = CALLS / b->batch;
  for (int round = 0; round < rounds; round++) {
    shuffle(b);
    TIMED(&rows[3], MemUnmap(b->d, AT(i), PAGE));
    TIMED(&rows[4], MemRelease(b->d, b->handles[i]));
    TIMED(&rows[0], MemCreate(b->d, &b->handles[i], PAGE, &prop, 0));
    TIMED(&rows[1], MemMap(b->d, AT(i), PAGE, 0, b->handles[i], 0));
    TIMED(&rows[2], MemSetAccess(b->d, AT(i), PAGE, &access, 1));
  }
  CHECK(b->d->MemUnmap(b->d, base, (size_t)b->live * PAGE));
  for (int i = 0; i < b->live; i++)
    CHECK(b->d->MemRelease(b->d, b->handles[i]));
  CHECK(b->d->MemAddressFree(b->d, base, (size_t)b->live * PAGE));
#undef AT
  finish(b, rows, 5, rounds);
}

static void events(bench *b, row *rows) {
  for (int i = 0; i < b->live; i++)
    CHECK(b->d->EventCreate(b->d, &b->events[i], WEIR_CU_EVENT_DISABLE_TIMING));
  weir_cu_stream stream;
  CHECK(b->d->StreamCreateWithPriority(b->d, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  int rounds = CALLS / b->batch;
  for (int round = 0; round < rounds; round++) {
    shuffle(b);
    TIMED(&rows[3], EventDestroy(b->d, b->events[i]));
    TIMED(&rows[0], EventCreate(b->d, &b->events[i], WEIR_CU_EVENT_DISABLE_TIMING));
    TIMED(&rows[1], EventRecord(b->d, b->events[i], stream));
    TIMED(&rows[2], EventQuery(b->d, b->events[i]));
  }
  for (int i = 0; i < b->live; i++)
    CHECK(b->d->EventDestroy(b->d, b->events[i]));
  CHECK(b->d->StreamDestroy(b->d, stream));
  finish(b, rows, 4, rounds);
}

int main(void) {
  static bench all;
  static places free_places;
  bench *b = &all;
  places *p = &free_places;
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  options.bytes = 4ull << 40;
  options.place = next_place;
  options.place_context = p;
  if (weir_driver_open_ledger(&options, &b->d) != WEIR_OK) {
    fprintf(stderr, "bench: %s\n", weir_last_error());
    return 1;
  }
  weir_cu_context context;
  CHECK(b->d->Init(b->d, 0));
  CHECK(b->d->DevicePrimaryCtxRetain(b->d, &context, 0));
  CHECK(b->d->CtxSetCurrent(b->d, context));

  b->clock_ns = cost_of_clock();

  row rows[] = {{"MemAlloc", {0}},     {"MemFree", {0}},          {"MemGetAddressRange", {0}}, {"MemGetInfo", {0}},
                {"MemCreate", {0}},    {"MemMap", {0}},           {"MemSetAccess", {0}},       {"MemUnmap", {0}},
                {"MemRelease", {0}},   {"EventCreate", {0}},      {"EventRecord", {0}},        {"EventQuery", {0}},
                {"EventDestroy", {0}}, {"MemAlloc, placed", {0}}, {"MemFree, placed", {0}}};
  for (b->level = 0; b->level < LEVELS; b->level++) {
    b->live = levels[b->level];
    b->batch = b->live < BATCH_MAX ? b->live : BATCH_MAX;
    for (int i = 0; i < b->live; i++)
      b->order[i] = i;
    plain(b, rows);
    virtual_memory(b, rows + 4);
    events(b, rows + 9);
    placed(b, p, rows + 13);
  }

  printf("%-20s %10s %10s %10s\n", "ns per call, live:", "10", "1,000", "100,000");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    printf("%-20s %10.1f %10.1f %10.1f\n", rows[i].name, rows[i].ns[0], rows[i].ns[1], rows[i].ns[2]);
  weir_driver_close(b->d);
  return 0;
}
