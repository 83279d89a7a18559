/*
 * A driver table of the program's own: it wraps another one, gives the program a budget of memory, and logs the calls
 * that allocate. docs/inside/guide-driver.md explains it step by step.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { MIB = 1 << 20 };

typedef struct budget_driver {
  weir_driver table; /* first, so that a weir_driver * can be cast to a budget_driver * */
  weir_driver *inner;
  uint64_t limit;
  _Atomic uint64_t used;
} budget_driver;

/* One function for each entry that passes the call on. */
#define AND(...) , __VA_ARGS__
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result pass_##name(weir_driver *self AND params) {                                                    \
    weir_driver *inner = ((budget_driver *)self)->inner;                                                               \
    return inner->name(inner AND args);                                                                                \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result pass_##name(weir_driver *self) {                                                               \
    weir_driver *inner = ((budget_driver *)self)->inner;                                                               \
    return inner->name(inner);                                                                                         \
  }
#include <weir/driver_entries.h>

/* Entries that differ. They may be called from any thread, so the budget is taken before the memory. */
static weir_cu_result budget_MemAlloc(weir_driver *self, weir_cu_deviceptr *pointer, uint64_t bytes) {
  budget_driver *d = (budget_driver *)self;
  weir_cu_result result = WEIR_CU_OUT_OF_MEMORY;
  if (atomic_fetch_add(&d->used, bytes) + bytes <= d->limit)
    result = pass_MemAlloc(self, pointer, bytes);
  if (result != WEIR_CU_SUCCESS)
    atomic_fetch_sub(&d->used, bytes);
  printf("  MemAlloc of %llu MiB: %s\n", (unsigned long long)bytes / MIB, weir_cu_result_name(result));
  return result;
}

static weir_cu_result budget_MemFree(weir_driver *self, weir_cu_deviceptr pointer) {
  budget_driver *d = (budget_driver *)self;
  weir_cu_deviceptr base;
  uint64_t bytes = 0;
  weir_cu_result result = pass_MemGetAddressRange(self, &base, &bytes, pointer);
  if (result == WEIR_CU_SUCCESS)
    result = pass_MemFree(self, pointer);
  if (result == WEIR_CU_SUCCESS)
    atomic_fetch_sub(&d->used, bytes);
  return result;
}

/* What the entries above enforce, these report. */
static weir_cu_result budget_MemGetInfo(weir_driver *self, uint64_t *free_bytes, uint64_t *total) {
  budget_driver *d = (budget_driver *)self;
  weir_cu_result result = pass_MemGetInfo(self, free_bytes, total);
  if (result != WEIR_CU_SUCCESS)
    return result;
  uint64_t used = atomic_load(&d->used), left = used < d->limit ? d->limit - used : 0;
  *free_bytes = *free_bytes < left ? *free_bytes : left;
  *total = *total < d->limit ? *total : d->limit;
  return WEIR_CU_SUCCESS;
}

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static void open_budget(budget_driver *d, weir_driver *inner, uint64_t limit) {
  weir_driver_init(&d->table);
  d->inner = inner;
  d->limit = limit;
  atomic_init(&d->used, 0);
  d->table.name = "budget";
  d->table.capabilities = inner->capabilities;
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) d->table.name = inner->name ? pass_##name : NULL;
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) d->table.name = inner->name ? pass_##name : NULL;
#include <weir/driver_entries.h>
  d->table.MemAlloc = budget_MemAlloc;
  d->table.MemFree = budget_MemFree;
  d->table.MemGetInfo = budget_MemGetInfo;
  /* Virtual memory and the driver's pools would go around the budget. Both are optional. */
  d->table.MemCreate = NULL;
  d->table.MemAllocAsync = NULL;
  d->table.MemAllocFromPoolAsync = NULL;
}

int main(void) {
  budget_driver driver;
  weir_driver *inner;
  weir_stream stream;
  void *blocks[8];
  int count = 0;
  weir_status status = WEIR_OK;

  check(weir_driver_open(NULL, &inner));
  open_budget(&driver, inner, 128ull * MIB);
  check(weir_use_driver(&driver.table)); /* before the runtime starts */

  check(weir_stream_create(0, 0, &stream));
  while (count < 8 && (status = weir_malloc(40ull * MIB, stream, &blocks[count])) == WEIR_OK)
    count++;
  printf("%d blocks of 40 MiB fit into the budget, then: %s\n", count, weir_status_name(status));
  int ok = count == 3 && status == WEIR_ERROR_OUT_OF_MEMORY;

  while (count)
    check(weir_free(blocks[--count]));
  check(weir_shutdown()); /* returns all memory; the table must live until then */
  ok = ok && atomic_load(&driver.used) == 0;
  weir_driver_close(inner);
  return ok ? 0 : 1;
}
