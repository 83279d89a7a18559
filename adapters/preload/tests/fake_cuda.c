/*
 * A stand-in for libcuda.so.1: the driver's functions on Weir's software device, as far as the tests of the preload
 * library need them.
 */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "weir/soft.h"

static weir_driver *driver;

static void open_driver(void) {
  weir_soft_options options;
  weir_driver *soft;
  weir_soft_options_init(&options);
  if (weir_soft_options_from_env(&options) || weir_driver_open_soft(&options, &soft) ||
      weir_driver_open_fault(soft, &driver))
    abort();
}

weir_driver *fake_cuda_driver(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_driver);
  return driver;
}

void fake_cuda_break(weir_cu_result result) {
  if (result ? weir_fault_nth(fake_cuda_driver(), WEIR_CALL_MemAlloc, 1, result, 1) : weir_fault_clear(driver))
    abort();
}

/* ---- The calls of the table, under the names that the library exports ---- */

static atomic_ulong calls[WEIR_CALL_COUNT];

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  weir_cu_result symbol params;                                                                                        \
  weir_cu_result symbol params {                                                                                       \
    atomic_fetch_add(&calls[WEIR_CALL_##name], 1);                                                                     \
    return fake_cuda_driver()->name(driver WEIR__AND args);                                                            \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  weir_cu_result symbol(void);                                                                                         \
  weir_cu_result symbol(void) {                                                                                        \
    atomic_fetch_add(&calls[WEIR_CALL_##name], 1);                                                                     \
    return fake_cuda_driver()->name(driver);                                                                           \
  }
#include "weir/driver_entries.h"

/* ---- Calls that are not in the table ---- */

static weir_cu_stream of_thread(weir_cu_stream stream) { return stream ? stream : WEIR_CU_STREAM_PER_THREAD; }

#define PLAIN(symbol, ...)                                                                                             \
  weir_cu_result symbol(__VA_ARGS__);                                                                                  \
  weir_cu_result symbol(__VA_ARGS__)

PLAIN(cuMemAllocAsync_ptsz, weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  return cuMemAllocAsync(pointer, bytes, of_thread(stream));
}
PLAIN(cuMemFreeAsync_ptsz, weir_cu_deviceptr pointer, weir_cu_stream stream) {
  return cuMemFreeAsync(pointer, of_thread(stream));
}
PLAIN(cuStreamBeginCapture_v2_ptsz, weir_cu_stream stream, int mode) {
  return cuStreamBeginCapture_v2(of_thread(stream), mode);
}
PLAIN(cuStreamEndCapture_ptsz, weir_cu_stream stream, weir_cu_graph *graph) {
  return cuStreamEndCapture(of_thread(stream), graph);
}
PLAIN(cuMemAllocPitch_v2, weir_cu_deviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
  (void)element;
  *pitch = width;
  return cuMemAlloc_v2(pointer, width * height);
}
PLAIN(cuArrayCreate_v2, void **array, const void *description) {
  return cuMemAlloc_v2((weir_cu_deviceptr *)array, *(const size_t *)description);
}
PLAIN(cuMipmappedArrayCreate, void **array, const void *description, unsigned levels) {
  (void)levels;
  return cuArrayCreate_v2(array, description);
}
PLAIN(cuDevicePrimaryCtxReset_v2, weir_cu_device device) {
  while (!cuDevicePrimaryCtxRelease_v2(device)) {
  }
  return WEIR_CU_SUCCESS;
}

/* ---- cuGetProcAddress ---- */

typedef void (*any_fn)(void);
PLAIN(cuGetProcAddress_v2, const char *name, void **function, int version, uint64_t flags, int *status);

static const struct {
  const char *symbol;
  any_fn function;
} symbols[] = {
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) {#symbol, (any_fn)symbol},
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) {#symbol, (any_fn)symbol},
#include "weir/driver_entries.h"
    {"cuMemAllocAsync_ptsz", (any_fn)cuMemAllocAsync_ptsz},
    {"cuMemFreeAsync_ptsz", (any_fn)cuMemFreeAsync_ptsz},
    {"cuStreamBeginCapture_v2_ptsz", (any_fn)cuStreamBeginCapture_v2_ptsz},
    {"cuStreamEndCapture_ptsz", (any_fn)cuStreamEndCapture_ptsz},
    {"cuMemAllocPitch_v2", (any_fn)cuMemAllocPitch_v2},
    {"cuArrayCreate_v2", (any_fn)cuArrayCreate_v2},
    {"cuMipmappedArrayCreate", (any_fn)cuMipmappedArrayCreate},
    {"cuDevicePrimaryCtxReset_v2", (any_fn)cuDevicePrimaryCtxReset_v2},
    {"cuGetProcAddress_v2", (any_fn)cuGetProcAddress_v2},
};

weir_cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  static const char *const endings[] = {"_v2_ptsz", "_ptsz", "_v2", ""};
  (void)version;
  (void)status;
  size_t length = strlen(name);
  for (size_t e = flags & 2 ? 0 : 2; e < sizeof endings / sizeof *endings; e++)
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
      if (strncmp(symbols[i].symbol, name, length) == 0 && strcmp(symbols[i].symbol + length, endings[e]) == 0) {
        memcpy(function, &symbols[i].function, sizeof *function);
        return WEIR_CU_SUCCESS;
      }
  *function = NULL;
  return WEIR_CU_NOT_FOUND;
}

unsigned long fake_cuda_calls(const char *symbol) {
  unsigned long sum = 0;
  for (int i = 0; i < WEIR_CALL_COUNT; i++)
    sum += calls[i];
  if (!symbol)
    return sum;
#define WEIR_DRIVER_ENTRY(name, symbol_, since, need, params, args)                                                    \
  if (strcmp(symbol, #symbol_) == 0)                                                                                   \
    return calls[WEIR_CALL_##name];
#define WEIR_DRIVER_ENTRY0(name, symbol_, since, need) WEIR_DRIVER_ENTRY(name, symbol_, since, need, , )
#include "weir/driver_entries.h"
  abort();
}
