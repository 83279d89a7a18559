/*
 * A program that is linked to the driver, run under LD_PRELOAD. Its argument selects one of several ways to exit;
 * linked.sh runs it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

weir_cu_result cuInit(unsigned flags);
weir_cu_result cuDevicePrimaryCtxRetain(weir_cu_context *context, weir_cu_device device);
weir_cu_result cuCtxSetCurrent(weir_cu_context context);
weir_cu_result cuMemAlloc_v2(weir_cu_deviceptr *pointer, size_t bytes);
weir_cu_result cuMemFree_v2(weir_cu_deviceptr pointer);
weir_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
weir_cu_result cuMemCreate(weir_cu_mem_handle *handle, size_t bytes, const weir_cu_mem_prop *prop,
                           unsigned long long flags);
weir_cu_result cuMemRelease(weir_cu_mem_handle handle);
weir_cu_result cuMemAddressReserve(weir_cu_deviceptr *pointer, size_t bytes, size_t alignment, weir_cu_deviceptr wanted,
                                   unsigned long long flags);
weir_cu_result cuMemMap(weir_cu_deviceptr pointer, size_t bytes, size_t offset, weir_cu_mem_handle handle,
                        unsigned long long flags);
weir_cu_result cuMemUnmap(weir_cu_deviceptr pointer, size_t bytes);

enum { COUNT = 100 };

static weir_cu_deviceptr left;

/* Runs after the exit handlers of libraries that were loaded later. */
__attribute__((destructor)) static void free_at_the_end(void) {
  if (left)
    printf("at the end: %d\n", cuMemFree_v2(left));
}

static void free_at_exit(void) { printf("at exit: %d\n", cuMemFree_v2(left)); }

/* Memory in pages of its own, as frameworks have it: 40 MiB are left, after 60 MiB. */
static bool create_pages(void) {
  enum { PAGES = 6, KEPT = 4, PAGE = 10 << 20 };
  const weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mem_handle handle;
  weir_cu_deviceptr base;
  if (cuMemAddressReserve(&base, PAGES * PAGE, 0, 0, 0))
    return false;
  for (int i = 0; i < PAGES; i++)
    if (cuMemCreate(&handle, PAGE, &prop, 0) || cuMemMap(base + (size_t)i * PAGE, PAGE, 0, handle, 0) ||
        cuMemRelease(handle))
      return false;
  return !cuMemUnmap(base + KEPT * PAGE, (PAGES - KEPT) * PAGE);
}

int main(int argc, char **argv) {
  const char *ending = argc > 1 ? argv[1] : "";
  weir_cu_context context;
  weir_cu_deviceptr pointers[COUNT];
  size_t free_bytes, total_bytes;
  if (strcmp(ending, "early") == 0) {
    printf("early: %d\n", cuMemAlloc_v2(pointers, 1000));
    return 0;
  }
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
    return 2;
  if (strncmp(ending, "created", 7) == 0 && !create_pages())
    return 6;
  if (strcmp(ending, "created_only") == 0)
    return 0;
  for (int i = 0; i < COUNT; i++)
    if (cuMemAlloc_v2(&pointers[i], 4096))
      return 3;
  if (cuMemGetInfo_v2(&free_bytes, &total_bytes))
    return 4;
  printf("total %zu MiB, the driver was called %lu times\n", total_bytes >> 20, fake_cuda_calls("cuMemAlloc_v2"));
  for (int i = 1; i < COUNT; i++)
    if (cuMemFree_v2(pointers[i]))
      return 5;
  left = pointers[0];
  if (strcmp(ending, "atexit") == 0)
    atexit(free_at_exit);
  if (strcmp(ending, "_exit") == 0) {
    fflush(stdout);
    _Exit(0);
  }
  return 0;
}
