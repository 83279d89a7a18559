/*
 * The loader of NVIDIA's driver, with a fake library: every function of the list has a distinct result and records its
 * arguments.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/cuda.h"
#include "support/check.h"

/* The arguments of the latest call. */
static struct {
  weir_driver_call call;
  int count;
  struct {
    size_t size;
    unsigned char bytes[64];
  } args[11];
} noted;

static void note(const void *value, size_t size) {
  assert_in_range(noted.count, 0, 10);
  assert_in_range(size, 1, sizeof noted.args[0].bytes);
  noted.args[noted.count].size = size;
  memcpy(noted.args[noted.count].bytes, value, size);
  noted.count++;
}

#define assert_noted(index, value)                                                                                     \
  do {                                                                                                                 \
    assert_int_equal(noted.args[index].size, sizeof(value));                                                           \
    assert_memory_equal(noted.args[index].bytes, &(value), sizeof(value));                                             \
  } while (0)

static weir_cu_result result_of(weir_driver_call call) { return 1000 + (int)call; }

/* NOTE(a, b, c) records each argument. */
#define NOTE(...) PICK_12(__VA_ARGS__, N11, N10, N9, N8, N7, N6, N5, N4, N3, N2, N1, ~)(__VA_ARGS__)
#define PICK_12(a, b, c, d, e, f, g, h, i, j, k, picked, ...) picked
#define N1(a) note(&(a), sizeof(a))
#define N2(a, ...) N1(a), N1(__VA_ARGS__)
#define N3(a, ...) N1(a), N2(__VA_ARGS__)
#define N4(a, ...) N1(a), N3(__VA_ARGS__)
#define N5(a, ...) N1(a), N4(__VA_ARGS__)
#define N6(a, ...) N1(a), N5(__VA_ARGS__)
#define N7(a, ...) N1(a), N6(__VA_ARGS__)
#define N8(a, ...) N1(a), N7(__VA_ARGS__)
#define N9(a, ...) N1(a), N8(__VA_ARGS__)
#define N10(a, ...) N1(a), N9(__VA_ARGS__)
#define N11(a, ...) N1(a), N10(__VA_ARGS__)

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result fake_##name params {                                                                           \
    noted.call = WEIR_CALL_##name;                                                                                     \
    noted.count = 0;                                                                                                   \
    NOTE args;                                                                                                         \
    return result_of(WEIR_CALL_##name);                                                                                \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result fake_##name(void) {                                                                            \
    noted.call = WEIR_CALL_##name;                                                                                     \
    noted.count = 0;                                                                                                   \
    return result_of(WEIR_CALL_##name);                                                                                \
  }
#include "weir/driver_entries.h"

enum { OPTIONAL, REQUIRED };
typedef void (*any_fn)(void);

static const struct entry {
  const char *symbol, *params, *args;
  int since, need;
  any_fn fake;
  size_t offset; /* in the table */
} entries[] = {
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  {#symbol, #params, #args, since, need, (any_fn)fake_##name, offsetof(weir_driver, name)},
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  {#symbol, "()", "()", since, need, (any_fn)fake_##name, offsetof(weir_driver, name)},
#include "weir/driver_entries.h"
};
enum { ALL = WEIR_CALL_COUNT };

/* The fake library: what it exports, and which lookups were made. */
static struct {
  bool get_v2, get_v1;
  weir_cu_result get_result; /* result of both; on an error they find nothing */
  bool exports;              /* functions can be found by their exported names too */
  bool missing[ALL];
  int version; /* result of DriverGetVersion; 0 makes it fail */
  int got_v2[ALL], got_v1[ALL], looked_up[ALL];
} library;

static weir_cu_result get_version(int *version) {
  if (library.version == 0)
    return WEIR_CU_STUB_LIBRARY;
  *version = library.version;
  return WEIR_CU_SUCCESS;
}

static void *as_data(any_fn fn) {
  void *address;
  memcpy(&address, &fn, sizeof address);
  return address;
}

static void *address_of(int i) {
  if (library.missing[i])
    return NULL;
  if (i == WEIR_CALL_DriverGetVersion)
    return as_data((any_fn)get_version);
  return as_data(entries[i].fake);
}

/* As in NVIDIA's driver, names have no suffix, and the version selects the variant. */
static weir_cu_result get(const char *name, void **address, int version, uint64_t flags, int *asked) {
  assert_int_equal(flags, 1);
  assert_null(strstr(name, "_v"));
  for (int i = 0; i < ALL; i++) {
    size_t length = strlen(name);
    const char *rest = entries[i].symbol + length;
    if (strncmp(entries[i].symbol, name, length) != 0 || (strcmp(rest, "") != 0 && strcmp(rest, "_v2") != 0))
      continue;
    asked[i]++;
    assert_int_equal(version, entries[i].since);
    /* A failed lookup leaves an address that must not be used. */
    *address = library.get_result == WEIR_CU_SUCCESS ? address_of(i) : &library;
    return library.get_result;
  }
  fail_msg("asked for %s, which is not in the list", name);
  return WEIR_CU_NOT_FOUND;
}

static weir_cu_result get_v2(const char *name, void **address, int version, uint64_t flags, int *status) {
  assert_non_null(status);
  *status = 0;
  return get(name, address, version, flags, library.got_v2);
}

static weir_cu_result get_v1(const char *name, void **address, int version, uint64_t flags) {
  return get(name, address, version, flags, library.got_v1);
}

static void *lookup(void *handle, const char *symbol) {
  assert_ptr_equal(handle, &library);
  if (strcmp(symbol, "cuGetProcAddress_v2") == 0)
    return library.get_v2 ? as_data((any_fn)get_v2) : NULL;
  if (strcmp(symbol, "cuGetProcAddress") == 0)
    return library.get_v1 ? as_data((any_fn)get_v1) : NULL;
  for (int i = 0; i < ALL; i++) {
    if (strcmp(symbol, entries[i].symbol) != 0)
      continue;
    library.looked_up[i]++;
    return library.exports ? address_of(i) : NULL;
  }
  fail_msg("looked up %s, which is not in the list", symbol);
  return NULL;
}

static int setup(void **state) {
  (void)state;
  memset(&library, 0, sizeof library);
  memset(&noted, 0, sizeof noted);
  library.exports = true;
  library.version = 12040;
  return 0;
}

static char reason[WEIR__CUDA_REASON];

static weir_driver *load(void) {
  weir_driver *driver = NULL;
  reason[0] = '\0';
  weir_status status = weir__cuda_load(lookup, &library, "libfake.so", reason, &driver);
  assert_string_equal(reason, "");
  assert_int_equal(status, WEIR_OK);
  assert_non_null(driver);
  return driver;
}

static void refuse(void) {
  weir_driver *driver = (weir_driver *)&library;
  reason[0] = '\0';
  assert_status(WEIR_ERROR_NO_DRIVER, weir__cuda_load(lookup, &library, "libfake.so", reason, &driver));
  assert_ptr_equal(driver, &library);
}

static bool has(const weir_driver *driver, int i) {
  any_fn fn;
  memcpy(&fn, (const char *)driver + entries[i].offset, sizeof fn);
  return fn != NULL;
}

static void assert_count_each(const int *counts, int each) {
  for (int i = 0; i < ALL; i++)
    if (counts[i] != each)
      fail_msg("%s was asked for %d times, not %d", entries[i].symbol, counts[i], each);
}

/* ---- Symbol lookup ---- */

static void prepare(void) {
  /* Ignore the environment of the user. */
  unsetenv("WEIR_CUDA_LIBRARY");
}

FIXTURE(.prepare = prepare, .setup = setup)

TEST(takes_the_newer_get_proc_address) {
  library.get_v2 = library.get_v1 = true;
  weir_driver *driver = load();
  assert_count_each(library.got_v2, 1);
  assert_count_each(library.got_v1, 0);
  assert_count_each(library.looked_up, 0);
  weir_driver_close(driver);
}

TEST(takes_the_older_get_proc_address) {
  library.get_v1 = true;
  weir_driver *driver = load();
  assert_count_each(library.got_v1, 1);
  assert_count_each(library.looked_up, 0);
  weir_driver_close(driver);
}

TEST(takes_exported_names) {
  weir_driver *driver = load();
  assert_count_each(library.looked_up, 1);
  weir_driver_close(driver);
}

/* As a stub library does. */
TEST(takes_exported_names_where_get_proc_address_fails) {
  library.get_v2 = library.get_v1 = true;
  library.get_result = WEIR_CU_STUB_LIBRARY;
  weir_driver *driver = load();
  assert_count_each(library.got_v2, 1);
  assert_count_each(library.looked_up, 1);
  weir_driver_close(driver);
}

TEST(needs_no_exported_names) {
  library.exports = false;
  library.get_v2 = true;
  weir_driver_close(load());
}

/* ---- What is in the table ---- */

TEST(table_is_complete) {
  weir_driver *driver = load();
  assert_int_equal(driver->size, sizeof(weir_driver));
  assert_string_equal(driver->name, "cuda");
  assert_non_null(driver->destroy);
  for (int i = 0; i < ALL; i++)
    if (!has(driver, i))
      fail_msg("%s is not in the table", entries[i].symbol);
  weir_driver_close(driver);
}

TEST(each_required_symbol_is_required) {
  for (int way = 0; way < 3; way++) {
    library.get_v1 = way >= 1;
    library.get_v2 = way >= 2;
    for (int i = 0; i < ALL; i++) {
      if (entries[i].need != REQUIRED)
        continue;
      library.missing[i] = true;
      refuse();
      assert_non_null(strstr(reason, entries[i].symbol));
      assert_non_null(strstr(reason, "libfake.so"));
      library.missing[i] = false;
    }
  }
}

TEST(each_optional_symbol_is_optional) {
  int optional = 0;
  for (int i = 0; i < ALL; i++) {
    if (entries[i].need != OPTIONAL)
      continue;
    optional++;
    library.missing[i] = true;
    weir_driver *driver = load();
    for (int j = 0; j < ALL; j++)
      if (has(driver, j) != (j != i))
        fail_msg("without %s, %s is %s", entries[i].symbol, entries[j].symbol, has(driver, j) ? "there" : "missing");
    weir_driver_close(driver);
    library.missing[i] = false;
  }
  assert_in_range(optional, 1, ALL);
}

TEST(reason_says_what_is_missing_and_what_to_do) {
  library.version = 11020;
  library.missing[WEIR_CALL_MemAlloc] = true;
  library.missing[WEIR_CALL_StreamGetCaptureInfo] = true;
  library.missing[WEIR_CALL_MemAllocAsync] = true;
  refuse();
  assert_string_equal(
      reason, "libfake.so, a driver for CUDA 11.2, lacks cuMemAlloc_v2, cuStreamGetCaptureInfo_v2; a driver for "
              "CUDA 11.4 or newer is required: update NVIDIA's driver, or choose the software device with "
              "WEIR_DRIVER=soft");
}

TEST(reason_stays_readable) {
  library.version = 0;
  int required = 0;
  for (int i = 0; i < ALL; i++) {
    library.missing[i] = i != WEIR_CALL_DriverGetVersion;
    required += entries[i].need == REQUIRED && library.missing[i];
  }
  refuse();
  char end[64];
  snprintf(end, sizeof end, "cuDeviceGetUuid_v2, cuDeviceGetPCIBusId and %d more; ", required - 8);
  assert_non_null(strstr(reason, "a driver of unknown version, lacks cuInit, cuGetErrorName, "));
  assert_non_null(strstr(reason, end));

  library.missing[WEIR_CALL_DriverGetVersion] = true;
  refuse();
  assert_non_null(strstr(reason, "of unknown version"));
  assert_non_null(strstr(reason, "WEIR_DRIVER=soft"));
}

/* ---- What the entries do ---- */

/* 0 is valid for every parameter except a struct. */
#define ZEROS(...) PICK_12(__VA_ARGS__, Z11, Z10, Z9, Z8, Z7, Z6, Z5, Z4, Z3, Z2, Z1, ~)
#define Z1 0
#define Z2 0, Z1
#define Z3 0, Z2
#define Z4 0, Z3
#define Z5 0, Z4
#define Z6 0, Z5
#define Z7 0, Z6
#define Z8 0, Z7
#define Z9 0, Z8
#define Z10 0, Z9
#define Z11 0, Z10

/* The list ARGS_name if it exists, else zeros. */
#define ARGS(name, args) SECOND(ARGS_##name, (ZEROS args), ~)
#define SECOND(...) SECOND_(__VA_ARGS__)
#define SECOND_(first, second, ...) UNWRAP second
#define UNWRAP(...) __VA_ARGS__
#define ARGS_IpcOpenMemHandle ~, (NULL, (weir_cu_ipc_mem_handle){{0}}, 0)
#define ARGS_IpcOpenEventHandle ~, (NULL, (weir_cu_ipc_event_handle){{0}})

#define assert_reached(entry, result)                                                                                  \
  do {                                                                                                                 \
    assert_int_equal(result, result_of(entry));                                                                        \
    assert_string_equal(weir_driver_call_name(noted.call), weir_driver_call_name(entry));                              \
  } while (0)

static weir_cu_result reach_DriverGetVersion(weir_driver *driver) {
  int version = 0;
  assert_cu(driver->DriverGetVersion(driver, &version));
  assert_int_equal(version, library.version);
  noted.call = WEIR_CALL_DriverGetVersion;
  return result_of(WEIR_CALL_DriverGetVersion);
}

TEST(each_entry_reaches_its_function) {
  weir_driver *driver = load();
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  if (WEIR_CALL_##name == WEIR_CALL_DriverGetVersion)                                                                  \
    assert_reached(WEIR_CALL_##name, reach_DriverGetVersion(driver));                                                  \
  else                                                                                                                 \
    assert_reached(WEIR_CALL_##name, driver->name(driver, ARGS(name, args)));
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) assert_reached(WEIR_CALL_##name, driver->name(driver));
#include "weir/driver_entries.h"
  weir_driver_close(driver);
}

/* The last word of a parameter is its name. */
static void names_of(const char *params, char names[256]) {
  size_t length = 0, word = 0;
  for (const char *p = params; *p; p++) {
    bool in_word = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_';
    if (in_word) {
      word++;
    } else {
      if (*p == ',' || *p == ')') {
        memcpy(names + length, p - word, word);
        length += word;
        names[length++] = *p;
      }
      word = 0;
    }
  }
  names[length] = '\0';
}

TEST(arguments_are_in_the_order_of_parameters) {
  for (int i = 0; i < ALL; i++) {
    char params[256], args[256];
    names_of(entries[i].params, params);
    names_of(entries[i].args, args);
    assert_string_equal(params, args);
  }
}

TEST(launch_passes_its_eleven_arguments) {
  weir_driver *driver = load();
  void *params[1], *extra[1];
  weir_cu_function function = (weir_cu_function)0x1234567890;
  weir_cu_stream stream = (weir_cu_stream)0x2345678901;
  assert_reached(WEIR_CALL_LaunchKernel,
                 driver->LaunchKernel(driver, function, 1, 2, 3, 4, 5, 6, 0xfedcba98, stream, params, extra));
  assert_int_equal(noted.count, 11);
  assert_noted(0, function);
  for (unsigned i = 1; i <= 6; i++)
    assert_noted(i, i);
  unsigned shared_bytes = 0xfedcba98;
  void **params_pointer = params, **extra_pointer = extra;
  assert_noted(7, shared_bytes);
  assert_noted(8, stream);
  assert_noted(9, params_pointer);
  assert_noted(10, extra_pointer);
  weir_driver_close(driver);
}

TEST(peer_copy_passes_its_arguments) {
  weir_driver *driver = load();
  weir_cu_deviceptr to = 0xfedcba9876543210, from = 0x0123456789abcdef;
  weir_cu_context to_context = (weir_cu_context)0x11, from_context = (weir_cu_context)0x22;
  size_t bytes = (size_t)5 << 33;
  weir_cu_stream stream = WEIR_CU_STREAM_PER_THREAD;
  assert_reached(WEIR_CALL_MemcpyPeerAsync,
                 driver->MemcpyPeerAsync(driver, to, to_context, from, from_context, bytes, stream));
  assert_int_equal(noted.count, 6);
  assert_noted(0, to);
  assert_noted(1, to_context);
  assert_noted(2, from);
  assert_noted(3, from_context);
  assert_noted(4, bytes);
  assert_noted(5, stream);
  weir_driver_close(driver);
}

TEST(struct_is_passed_by_value) {
  weir_driver *driver = load();
  weir_cu_ipc_mem_handle handle;
  for (int i = 0; i < 64; i++)
    handle.reserved[i] = (char)(i + 1);
  weir_cu_deviceptr pointer, *output = &pointer;
  unsigned flags = WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
  assert_reached(WEIR_CALL_IpcOpenMemHandle, driver->IpcOpenMemHandle(driver, output, handle, flags));
  assert_int_equal(noted.count, 3);
  assert_noted(0, output);
  assert_noted(1, handle);
  assert_noted(2, flags);
  weir_driver_close(driver);
}

TEST(byte_is_passed_as_a_byte) {
  weir_driver *driver = load();
  weir_cu_deviceptr to = 0x7000000000;
  unsigned char value = 0xab;
  size_t count = (size_t)3 << 32;
  weir_cu_stream stream = (weir_cu_stream)0x33;
  assert_reached(WEIR_CALL_MemsetD8Async, driver->MemsetD8Async(driver, to, value, count, stream));
  assert_int_equal(noted.count, 4);
  assert_noted(0, to);
  assert_noted(1, value);
  assert_noted(2, count);
  assert_noted(3, stream);
  weir_driver_close(driver);
}

TEST(call_without_arguments) {
  weir_driver *driver = load();
  assert_reached(WEIR_CALL_CtxSynchronize, driver->CtxSynchronize(driver));
  assert_int_equal(noted.count, 0);
  weir_driver_close(driver);
}

/* ---- Whole libraries ---- */

TEST(no_library) {
  weir_driver *driver = (weir_driver *)&library;
  assert_int_equal(setenv("WEIR_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1), 0);
  assert_status(WEIR_ERROR_NO_DRIVER, weir_driver_open_cuda(&driver));
  unsetenv("WEIR_CUDA_LIBRARY");
  assert_ptr_equal(driver, &library);
  const char *start = "weir_driver_open_cuda: /nowhere/libcuda.so.1 cannot be loaded (";
  assert_int_equal(strncmp(weir_last_error(), start, strlen(start)), 0);
  assert_non_null(strstr(weir_last_error(), "install NVIDIA's driver"));
  assert_int_equal(weir_last_driver_result(), 0);
}

TEST(library_without_driver) {
  weir_driver *driver = (weir_driver *)&library;
  assert_int_equal(setenv("WEIR_CUDA_LIBRARY", "libc.so.6", 1), 0);
  assert_status(WEIR_ERROR_NO_DRIVER, weir_driver_open_cuda(&driver));
  unsetenv("WEIR_CUDA_LIBRARY");
  assert_ptr_equal(driver, &library);
  assert_non_null(
      strstr(weir_last_error(), "libc.so.6, a driver of unknown version, lacks cuInit, cuDriverGetVersion"));
}

TEST(null_is_refused) {
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open_cuda(NULL));
  assert_string_equal(weir_last_error(), "weir_driver_open_cuda: driver is NULL");
}

/* NVIDIA's library, if it is installed, with or without a GPU. */
TEST(library_of_this_machine) {
  weir_driver *driver = NULL;
  weir_status status = weir_driver_open_cuda(&driver);
  if (status != WEIR_OK) {
    assert_int_equal(status, WEIR_ERROR_NO_DRIVER);
    assert_null(driver);
    assert_non_null(strstr(weir_last_error(), "libcuda.so.1"));
    print_message("waived in part: %s\n", weir_last_error());
    return;
  }
  for (int i = 0; i < ALL; i++)
    if (!has(driver, i)) {
      assert_int_equal(entries[i].need, OPTIONAL);
      print_message("no %s\n", entries[i].symbol);
    }
  int version = 0;
  weir_cu_result result = driver->DriverGetVersion(driver, &version);
  if (result == WEIR_CU_STUB_LIBRARY) {
    assert_false(weir__cuda_has_device(driver, reason));
    print_message("waived in part: %s\n", reason);
    weir_driver_close(driver);
    return;
  }
  assert_int_equal(result, WEIR_CU_SUCCESS);
  assert_in_range(version, 11040, 99990);
  const char *name = NULL;
  assert_cu(driver->GetErrorName(driver, WEIR_CU_OUT_OF_MEMORY, &name));
  assert_string_equal(name, "CUDA_ERROR_OUT_OF_MEMORY");
  bool usable = weir__cuda_has_device(driver, reason);
  print_message("CUDA %d.%d, %s\n", version / 1000, version % 1000 / 10, usable ? "with a device" : reason);
  weir_driver_close(driver);

  /* The library stays loaded and can be opened again. */
  assert_ok(weir_driver_open_cuda(&driver));
  assert_cu(driver->DriverGetVersion(driver, &version));
  weir_driver_close(driver);
}
