/*
 * Shutting the runtime down while allocators are alive: the call is refused, and they continue to work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

static weir_allocator *new_allocator(const char *conf) {
  weir_driver *driver;
  weir_allocator *made = NULL;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf;
  assert_ok(weir_get_driver(&driver));
  assert_ok(weir_allocator_create(driver, &options, &made));
  return made;
}

static weir_host_allocator *new_host(void) {
  weir_driver *driver;
  weir_host_allocator *made = NULL;
  assert_ok(weir_get_driver(&driver));
  assert_ok(weir_host_allocator_create(driver, HOST_CONF(""), &made));
  return made;
}

static void use(weir_allocator *allocator) {
  void *pointer = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, 3 << 20, NULL, &pointer));
  memset(pointer, 1, 3 << 20); /* memory of the software device is host memory */
  assert_ok(weir_allocator_free(allocator, pointer));
  assert_ok(weir_allocator_empty_cache(allocator));
}

static bool says(const char *format, const void *object) {
  char words[128];
  snprintf(words, sizeof words, format, object); /* cppcheck-suppress wrongPrintfScanfArgNum */
  return strstr(weir_last_error(), words) != NULL;
}

static int setup(void **state) {
  setenv("WEIR_DRIVER", "soft", 1);
  setenv("WEIR_SOFT_MEMORY", "1GiB", 1);
  return runtime_setup_none(state);
}

FIXTURE(.setup = setup, .teardown = runtime_teardown)

/* The runtime opened its driver and would close it. */
TEST(refused_while_an_allocator_is_alive) {
  weir_allocator *first = new_allocator("");
  use(first);
  assert_error_says(BAD_STATE, "1 allocator still uses", weir_shutdown());
  assert_true(says("%p (device memory, back end native, 1 device)", first));
  assert_int_equal(weir_is_initialized(), 1);
  use(first);

  weir_allocator *second = new_allocator("backend:cudaMallocAsync");
  weir_host_allocator *host = new_host();
  void *pinned = NULL;
  assert_ok(weir_host_alloc(host, 1000, &pinned));
  assert_error_says(BAD_STATE, "3 allocators still use", weir_shutdown());
  assert_true(says("%p (device memory, back end native, 1 device)", first));
  assert_true(says("%p (device memory, back end cudaMallocAsync, 1 device)", second));
  assert_true(says("%p (pinned host memory)", host));

  weir_allocator_destroy(first);
  weir_allocator_destroy(second);
  assert_error_says(BAD_STATE, "1 allocator still uses", weir_shutdown());
  assert_ok(weir_host_free(host, pinned));
  weir_host_allocator_destroy(host);
  assert_ok(weir_shutdown());
  assert_int_equal(weir_is_initialized(), 0);

  /* A new runtime ignores destroyed allocators. */
  assert_ok(weir_init());
  assert_ok(weir_shutdown());
}

TEST(several_allocators_are_counted) {
  weir_allocator *all[7];
  for (int i = 0; i < 7; i++)
    all[i] = new_allocator("");
  assert_error_says(BAD_STATE, "7 allocators still use", weir_shutdown());
  assert_true(says(" and 3 more", NULL));
  for (int i = 0; i < 7; i++)
    weir_allocator_destroy(all[i]);
  assert_ok(weir_shutdown());
}

/* A failed creation leaves no allocator behind, and an allocator on another driver does not count. */
TEST(others_do_not_matter) {
  weir_driver *driver, *other;
  weir_allocator *made = NULL;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "no_such_setting:1";
  assert_ok(weir_get_driver(&driver));
  assert_error(INVALID_ARGUMENT, weir_allocator_create(driver, &options, &made));
  assert_ok(weir_driver_open("soft", &other));
  assert_int_equal(other->Init(other, 0), WEIR_CU_SUCCESS);
  assert_ok(weir_allocator_create(other, NULL, &made));
  assert_ok(weir_shutdown());
  use(made);
  weir_allocator_destroy(made);
  weir_driver_close(other);
}

/* A driver of the program stays open, and so do the allocators on it. */
TEST(outlives_the_runtime_on_its_own_driver) {
  weir_driver *own;
  weir_allocator *allocator = NULL;
  assert_ok(weir_driver_open("soft", &own));
  assert_ok(weir_use_driver(own));
  assert_ok(weir_init());
  assert_ok(weir_allocator_create(own, NULL, &allocator));
  use(allocator);
  assert_ok(weir_shutdown());
  use(allocator);
  weir_allocator_destroy(allocator);
  assert_ok(weir_use_driver(NULL));
  weir_driver_close(own);
}

/* The graphs of the runtime hold memory of the allocator. */
TEST(with_a_graph) {
  weir_allocator *allocator = new_allocator("");
  weir_graph *graph;
  weir_stream stream;
  weir_stream_scope scope;
  assert_ok(weir_graph_use_allocator(allocator));
  assert_ok(weir_stream_create(0, 0, &stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_scope_enter(stream, &scope));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  void *pointer;
  weir_cu_stream raw;
  assert_ok(weir_stream_raw(stream, &raw));
  assert_ok(weir_allocator_alloc(allocator, 0, 1000, raw, &pointer));
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_stream_scope_leave(&scope));
  assert_error_says(BAD_STATE, "1 allocator still uses", weir_shutdown());
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_allocator_free(allocator, pointer));
  weir_graph_destroy(graph);
  weir_allocator_destroy(allocator);
  assert_ok(weir_shutdown());
}
