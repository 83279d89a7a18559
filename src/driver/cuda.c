/*
 * NVIDIA's driver, loaded at run time: Weir is built without a CUDA header or library.
 *
 * The list in driver_entries.h is expanded three times: into the symbols to look up, into a function per entry that
 * drops the table from the arguments, and into the assignments that fill the table.
 */
#include "driver/cuda.h"
#include "base/environment.h"
#include "base/library.h"
#include "base/system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function of any type; cast back before the call. */
typedef void (*any_fn)(void);

typedef struct cuda_driver {
  weir_driver table;          /* first, so that a weir_driver * can be cast to a cuda_driver * */
  any_fn fn[WEIR_CALL_COUNT]; /* NULL for an optional function that the library lacks */
} cuda_driver;

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result call_##name(weir_driver *self WEIR__AND params) {                                              \
    return ((weir_cu_result(*) params)((cuda_driver *)self)->fn[WEIR_CALL_##name])args;                                \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result call_##name(weir_driver *self) {                                                               \
    return ((weir_cu_result(*)(void))((cuda_driver *)self)->fn[WEIR_CALL_##name])();                                   \
  }
#include "weir/driver_entries.h"

enum need { OPTIONAL, REQUIRED };

static const struct symbol {
  weir_driver_call slot; /* index in cuda_driver.fn */
  const char *name;      /* the exported name */
  int since;             /* the CUDA version whose signature driver_entries.h declares */
  enum need need;
} symbols[] = {
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) {WEIR_CALL_##name, #symbol, since, need},
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) {WEIR_CALL_##name, #symbol, since, need},
#include "weir/driver_entries.h"
};

/* CUDA 12 gave cuGetProcAddress a fifth parameter and the suffix. */
typedef weir_cu_result (*get_v2_fn)(const char *symbol, void **address, int version, uint64_t flags, int *status);
typedef weir_cu_result (*get_v1_fn)(const char *symbol, void **address, int version, uint64_t flags);
enum { LEGACY_DEFAULT_STREAM = 1 };

typedef struct source {
  weir__cuda_lookup lookup;
  void *library;
  get_v2_fn get_v2; /* NULL before CUDA 12 */
  get_v1_fn get_v1; /* NULL before CUDA 11.3 */
} source;

/* Converts a data pointer to a function pointer. C has no cast for it; POSIX guarantees the same representation. */
static any_fn as_function(void *address) {
  any_fn fn;
  memcpy(&fn, &address, sizeof fn);
  return fn;
}

static source source_init(weir__cuda_lookup lookup, void *library) {
  return (source){.lookup = lookup,
                  .library = library,
                  .get_v2 = (get_v2_fn)as_function(lookup(library, "cuGetProcAddress_v2")),
                  .get_v1 = (get_v1_fn)as_function(lookup(library, "cuGetProcAddress"))};
}

/* Tries cuGetProcAddress first, as NVIDIA recommends: it takes the name without "_v2", and returns the variant that was
 * current in the given CUDA version. The flag keeps stream NULL the legacy stream. In a stub library it finds nothing,
 * and the exported name decides. */
static any_fn find(const source *source, const struct symbol *symbol) {
  const char *suffix = strstr(symbol->name, "_v");
  char base[64];
  snprintf(base, sizeof base, "%.*s", suffix ? (int)(suffix - symbol->name) : (int)strlen(symbol->name), symbol->name);

  void *address = NULL;
  weir_cu_result result = WEIR_CU_NOT_FOUND;
  int status; /* the reason for a missing address; not used */
  if (source->get_v2)
    result = source->get_v2(base, &address, symbol->since, LEGACY_DEFAULT_STREAM, &status);
  else if (source->get_v1)
    result = source->get_v1(base, &address, symbol->since, LEGACY_DEFAULT_STREAM);
  if (result || !address)
    address = source->lookup(source->library, symbol->name);
  return as_function(address);
}

/* The oldest CUDA version that has all required functions. */
static int oldest_version(void) {
  int oldest = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(symbols); i++)
    if (symbols[i].need == REQUIRED && symbols[i].since > oldest)
      oldest = symbols[i].since;
  return oldest;
}

/* Lists the first few missing symbols. */
static void explain_missing(cuda_driver *cuda, const char *name, char reason[WEIR__CUDA_REASON]) {
  enum { NAMED = 8 };
  char list[NAMED * 64] = "";
  size_t length = 0;
  int missing = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(symbols); i++)
    if (symbols[i].need == REQUIRED && !cuda->fn[symbols[i].slot] && missing++ < NAMED)
      length += (size_t)snprintf(list + length, sizeof list - length, "%s%s", length ? ", " : "", symbols[i].name);
  if (missing > NAMED)
    snprintf(list + length, sizeof list - length, " and %d more", missing - NAMED);

  char version[32] = "of unknown version";
  int number = 0;
  if (cuda->fn[WEIR_CALL_DriverGetVersion] && !call_DriverGetVersion(&cuda->table, &number))
    snprintf(version, sizeof version, "for CUDA %d.%d", number / 1000, number % 1000 / 10);
  int oldest = oldest_version();
  snprintf(
      reason, WEIR__CUDA_REASON,
      "%.256s, a driver %s, lacks %s; a driver for CUDA %d.%d or newer is required: update NVIDIA's driver, or choose "
      "the software device with WEIR_DRIVER=soft",
      name, version, list, oldest / 1000, oldest % 1000 / 10);
}

/* The library stays loaded: once started, the driver has threads and exit handlers that would run in unmapped memory,
 * and other parts of the program may use it. */
static void destroy(weir_driver *self) { free(self); }

weir_status weir__cuda_load(weir__cuda_lookup lookup, void *library, const char *name, char reason[WEIR__CUDA_REASON],
                            weir_driver **driver) {
  cuda_driver *cuda = calloc(1, sizeof *cuda);
  if (!cuda) {
    snprintf(reason, WEIR__CUDA_REASON, "out of host memory for the table");
    return WEIR_ERROR_HOST_OUT_OF_MEMORY;
  }

  source source = source_init(lookup, library);
  bool complete = true;
  for (size_t i = 0; i < WEIR_COUNT_OF(symbols); i++) {
    any_fn fn = find(&source, &symbols[i]);
    cuda->fn[symbols[i].slot] = fn;
    if (!fn && symbols[i].need == REQUIRED)
      complete = false;
  }
  if (!complete) {
    explain_missing(cuda, name, reason);
    free(cuda);
    return WEIR_ERROR_NO_DRIVER;
  }

  cuda->table.size = sizeof cuda->table;
  cuda->table.name = "cuda";
  cuda->table.capabilities = WEIR_DRIVER_FILTERS_VISIBLE | WEIR_DRIVER_NVIDIA;
  cuda->table.destroy = destroy;
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  if (cuda->fn[WEIR_CALL_##name])                                                                                      \
    cuda->table.name = call_##name;
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) WEIR_DRIVER_ENTRY(name, symbol, since, need, , )
#include "weir/driver_entries.h"
  *driver = &cuda->table;
  return WEIR_OK;
}

void weir__cuda_log_fallback(const char *caller, const char *reason) {
  bool is_named = weir__env_value(WEIR__ENV_CUDA_LIBRARY);
  weir__log(is_named ? WEIR_LOG_WARN : WEIR_LOG_INFO, "%s: auto selects the software device%s: %s", caller,
            is_named ? ", although WEIR_CUDA_LIBRARY is set" : "", reason);
}

weir_status weir__cuda_open(char reason[WEIR__CUDA_REASON], weir_driver **driver) {
  const char *name = weir__env_value(WEIR__ENV_CUDA_LIBRARY);
  if (!name)
    name = "libcuda.so.1";

  void *library = weir__library_open(name);
  if (!library) {
    /* Names the missing library, which may be a dependency of this one. */
    const char *why = weir__library_error();
    snprintf(reason, WEIR__CUDA_REASON,
             "%.256s cannot be loaded (%.512s); install NVIDIA's driver, or choose the software device with "
             "WEIR_DRIVER=soft",
             name, why ? why : "no reason given");
    return WEIR_ERROR_NO_DRIVER;
  }
  weir_status status = weir__cuda_load(weir__library_symbol, library, name, reason, driver);
  if (status)
    weir__library_close(library);
  return status;
}

bool weir__cuda_has_device(weir_driver *driver, char reason[WEIR__CUDA_REASON]) {
  int count = 0;
  const char *call = "cuInit";
  weir_cu_result result = driver->Init(driver, 0);
  if (!result) {
    call = "cuDeviceGetCount";
    result = driver->DeviceGetCount(driver, &count);
  }
  if (result)
    snprintf(reason, WEIR__CUDA_REASON, "%s failed: %s (%d): %s", call, weir_cu_result_name(result), result,
             weir_cu_result_string(result));
  else if (count == 0)
    snprintf(reason, WEIR__CUDA_REASON, "the driver has no device");
  return !result && count > 0;
}

weir_status weir_driver_open_cuda(weir_driver **driver) {
  WEIR__CHECK_ARGUMENT(driver);
  char reason[WEIR__CUDA_REASON];
  weir_status status = weir__cuda_open(reason, driver);
  return status ? weir__fail(status, "%s: %s", __func__, reason) : WEIR_OK;
}
