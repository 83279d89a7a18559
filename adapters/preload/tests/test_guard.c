/*
 * Guard mode in a CUDA runtime program without any code for Weir, under LD_PRELOAD: planted bugs, each after its clean
 * twin, which must stay silent. WEIR_GUARD and WEIR_GUARD_REPORT are set by the environment.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "support/test.h"

static weir_driver *fake(void) {
  weir_driver *(*get)(void);
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *address = library ? dlsym(library, "fake_cuda_driver") : NULL;
  assert_non_null(address);
  memcpy(&get, &address, sizeof address);
  return get();
}

/* Writes with the driver, as a kernel would. */
static void write_bytes(void *to, int64_t offset, size_t count) {
  weir_driver *driver = fake();
  assert_int_equal(driver->MemsetD8Async(driver, (uint64_t)to + (uint64_t)offset, 7, count, NULL), 0);
  assert_int_equal(driver->StreamSynchronize(driver, NULL), 0);
}

static void *get(size_t bytes) {
  void *pointer = NULL;
  assert_int_equal(cudaMalloc(&pointer, bytes), 0);
  return pointer;
}

static void put(void *pointer) { assert_int_equal(cudaFree(pointer), 0); }

/* The report so far; the next allocation reads what checks have found. */
static const char *report(void) {
  static char text[64 * 1024];
  weir_driver *driver = fake();
  driver->StreamSynchronize(driver, NULL);
  put(get(1));
  FILE *file = fopen(getenv("WEIR_GUARD_REPORT"), "r");
  size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
  text[length] = '\0';
  if (file)
    fclose(file);
  return text;
}

static void assert_silent(void) {
  if (*report())
    fail_msg("a clean twin is not silent: %s", report());
}

static void assert_found(const char *kind, unsigned long long requested, long long offset) {
  char start[96], place[96];
  snprintf(start, sizeof start, "{\"kind\": \"%s\"", kind);
  snprintf(place, sizeof place, "\"requested\": %llu, \"offset\": %lld,", requested, offset);
  const char *found = report(), *line = strchr(found, '\n');
  if (strncmp(found, start, strlen(start)) != 0 || !strstr(found, place) || !line || line[1])
    fail_msg("%s and %s were expected in %s", start, place, found);
  if (!strstr(found, "\"alloc_stack\": [{"))
    fail_msg("no stack of the allocation: %s", found);
  remove(getenv("WEIR_GUARD_REPORT"));
}

static int setup(void **state) {
  (void)state;
  remove(getenv("WEIR_GUARD_REPORT"));
  return 0;
}

FIXTURE(.setup = setup)

static void past_end(bool bug) {
  void *p = get(1000);
  write_bytes(p, 0, bug ? 1004 : 1000);
  put(p);
}

static void after_free(bool bug) {
  void *p = get(5000);
  if (!bug)
    write_bytes(p, 40, 8);
  put(p);
  if (bug)
    write_bytes(p, 40, 8);
  for (int i = 0; i < 2; i++) { /* memory becomes short: the quarantine ends */
    void *q = NULL;
    cudaMalloc(&q, (size_t)1 << 40);
    cudaGetLastError();
  }
}

static void in_stream_order(bool bug) {
  void *p = NULL;
  assert_int_equal(cudaMallocAsync(&p, 3000, NULL), 0);
  write_bytes(p, bug ? 3000 : 2999, 1);
  assert_int_equal(cudaFreeAsync(p, NULL), 0);
}

static void freed_twice(bool bug) {
  void *p = get(2000);
  put(p);
  if (bug) {
    assert_int_not_equal(cudaFree(p), 0);
    cudaGetLastError();
  }
}

static void freed_inside(bool bug) {
  char *p = get(4096);
  if (bug) {
    assert_int_not_equal(cudaFree(p + 256), 0);
    cudaGetLastError();
  }
  put(p);
}

TEST(planted_bugs) {
  static const struct {
    void (*run)(bool bug);
    const char *kind;
    unsigned long long requested;
    long long offset;
  } bugs[] = {
      {past_end, "out_of_bounds", 1000, 1000},        {after_free, "use_after_free", 5000, 40},
      {in_stream_order, "out_of_bounds", 3000, 3000}, {freed_twice, "double_free", 2000, 0},
      {freed_inside, "interior_free", 4096, 256},
  };
  for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
    if (bugs[i].run == after_free && !strcmp(getenv("WEIR_GUARD"), "full"))
      continue; /* the driver refuses it: only its caller learns of that */
    bugs[i].run(false);
    assert_silent();
    bugs[i].run(true);
    assert_found(bugs[i].kind, bugs[i].requested, bugs[i].offset);
  }
}
