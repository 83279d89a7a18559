/*
 * The table of NVIDIA's driver, loaded at run time: no CUDA header or library is needed to build Weir.
 *
 * The list in driver_entries.h makes three things here: the symbols to find, a function for each that drops the table
 * from the arguments, and the assignments that fill the table.
 */
#include "driver/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Any function; cast back to its true type before the call. */
typedef void (*any_fn)(void);

typedef struct cuda_driver {
  weir_driver table;          /* first, so that a pointer to it is a pointer to all */
  any_fn fn[WEIR_CALL_COUNT]; /* the library's functions; NULL for an optional one that it lacks */
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
  weir_driver_call slot; /* where its function goes in cuda_driver.fn */
  const char *name;      /* as the library exports it */
  int since;             /* the CUDA version whose signature we declare */
  enum need need;
} symbols[] = {
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) {WEIR_CALL_##name, #symbol, since, need},
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) {WEIR_CALL_##name, #symbol, since, need},
#include "weir/driver_entries.h"
};

/* cuGetProcAddress took on a fifth parameter, and the suffix, with CUDA 12. */
typedef weir_cu_result (*get_v2_fn)(const char *symbol, void **address, int version, uint64_t flags, int *status);
typedef weir_cu_result (*get_v1_fn)(const char *symbol, void **address, int version, uint64_t flags);
enum { LEGACY_DEFAULT_STREAM = 1 };

/* Where symbols come from. */
typedef struct source {
  weir__cuda_lookup lookup;
  void *library;
  get_v2_fn get_v2; /* NULL before CUDA 12 */
  get_v1_fn get_v1; /* NULL before CUDA 11.3 */
} source;

/* A data pointer to a function pointer: C has no cast for it, POSIX says that the bytes are the same. */
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

/* cuGetProcAddress goes first, as NVIDIA's own way to a function: it knows it by its name without "_v2", and picks the
 * variant that was current in the version asked for. The flag keeps stream NULL the legacy one. A stub library has
 * cuGetProcAddress too, but it finds nothing there: then the exported name decides. */
static any_fn find(const source *source, const struct symbol *symbol) {
  const char *suffix = strstr(symbol->name, "_v");
  char base[64];
  snprintf(base, sizeof base, "%.*s", suffix ? (int)(suffix - symbol->name) : (int)strlen(symbol->name), symbol->name);

  void *address = NULL;
  weir_cu_result result = WEIR_CU_NOT_FOUND;
  int status; /* says why there is no address; we only need to know that */
  if (source->get_v2)
    result = source->get_v2(base, &address, symbol->since, LEGACY_DEFAULT_STREAM, &status);
  else if (source->get_v1)
    result = source->get_v1(base, &address, symbol->since, LEGACY_DEFAULT_STREAM);
  if (result || !address)
    address = source->lookup(source->library, symbol->name);
  return as_function(address);
}

/* The oldest CUDA that has all we require. */
static int oldest_version(void) {
  int oldest = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(symbols); i++)
    if (symbols[i].need == REQUIRED && symbols[i].since > oldest)
      oldest = symbols[i].since;
  return oldest;
}

/* Names as many of the missing symbols as a person wants to read. */
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
      "%.256s, a driver %s, lacks %s; a driver for CUDA %d.%d or newer is needed: update NVIDIA's driver, or choose "
      "the software device with WEIR_DRIVER=soft",
      name, version, list, oldest / 1000, oldest % 1000 / 10);
}

/* The library stays loaded. NVIDIA's driver has threads and exit handlers of its own once it has started, which would
 * run in memory that is gone; and another part of the program may be using it. */
static void destroy(weir_driver *self) { free(self); }

weir_status weir__cuda_load(weir__cuda_lookup lookup, void *library, const char *name, char reason[WEIR__CUDA_REASON],
                            weir_driver **driver) {
  cuda_driver *cuda = calloc(1, sizeof *cuda);
  if (!cuda) {
    snprintf(reason, WEIR__CUDA_REASON, "no host memory for the table");
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

/* NULL if none was named. Not from the environment of a program that runs with more rights than its user. */
static const char *named_library(void) {
  const char *name = secure_getenv("WEIR_CUDA_LIBRARY");
  return name && *name ? name : NULL;
}

void weir__cuda_log_fallback(const char *caller, const char *reason) {
  bool is_named = named_library();
  weir__log(is_named ? WEIR_LOG_WARN : WEIR_LOG_INFO, "%s: auto takes the software device%s: %s", caller,
            is_named ? ", although WEIR_CUDA_LIBRARY is set" : "", reason);
}

weir_status weir__cuda_open(char reason[WEIR__CUDA_REASON], weir_driver **driver) {
  const char *name = named_library();
  if (!name)
    name = "libcuda.so.1";

  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    /* Names what is missing, which may be a library that this one needs. */
    const char *why = dlerror();
    snprintf(reason, WEIR__CUDA_REASON,
             "%.256s cannot be loaded (%.512s); install NVIDIA's driver, or choose the software device with "
             "WEIR_DRIVER=soft",
             name, why ? why : "no reason given");
    return WEIR_ERROR_NO_DRIVER;
  }
  weir_status status = weir__cuda_load(dlsym, library, name, reason, driver);
  if (status)
    dlclose(library);
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
