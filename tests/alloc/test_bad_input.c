/*
 * Invalid arguments to every call of alloc.h, pool.h, history.h, host.h, ipc.h, snapshot.h, adapter.h, log.h,
 * maintain.h and guard.h: the call returns a status, sets an error text that begins with its name, leaves its outputs
 * untouched and changes nothing. tests/library/bad_input.sh checks that no call is missing.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/alloc.h"
#include "weir/adapter.h"
#include "weir/guard.h"
#include "weir/history.h"
#include "weir/host.h"
#include "weir/ipc.h"
#include "weir/snapshot.h"

static const weir_pool_id pool = {0, 5}, no_pool = {0, 99}, default_pool = {0, 0};
static const int no_devices[] = {1, 2, -1, -2, INT_MAX, INT_MIN};
static weir_cu_stream bad_stream; /* destroyed */

#define FOR_EACH_BAD_DEVICE(device)                                                                                    \
  for (size_t at_device = 0; at_device < WEIR_COUNT_OF(no_devices); at_device++)                                       \
    for (int device = no_devices[at_device], once = 1; once; once = 0)

static void open_all(void) {
  alloc_open("", GIB);
  assert_ok(weir_pool_create(allocator, 0, pool, NULL));
  assert_cu(d->StreamCreateWithPriority(d, &bad_stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  assert_cu(d->StreamDestroy(d, bad_stream));
}

static void close_all(void) {
  assert_ok(weir_pool_release(allocator, 0, pool));
  assert_int_equal(allocated(), 0);
  alloc_close();
}

static void *pool_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)context;
  (void)bytes;
  (void)device;
  (void)stream;
  return NULL;
}

/* Whether all bytes of a struct after its size are 0x5a. */
static bool is_untouched(const void *data, size_t size) {
  const unsigned char *bytes = data;
  for (size_t i = sizeof(size_t); i < size; i++)
    if (bytes[i] != 0x5a)
      return false;
  return true;
}
#define SPOIL(thing) (memset(&(thing), 0x5a, sizeof(thing)), (thing).size = sizeof(thing))

/* ---- The structs ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(init_functions) {
#define INIT(type)                                                                                                     \
  do {                                                                                                                 \
    type made;                                                                                                         \
    memset(&made, 0x5a, sizeof made);                                                                                  \
    type##_init(NULL);                                                                                                 \
    type##_init(&made);                                                                                                \
    assert_int_equal(made.size, sizeof made);                                                                          \
  } while (0)
  INIT(weir_allocator_options);
  INIT(weir_backend);
  INIT(weir_pointer_info);
  INIT(weir_soft_limit);
  INIT(weir_allocator_stats);
  INIT(weir_pool_options);
  INIT(weir_history_options);
  INIT(weir_history_info);
  INIT(weir_host_stats);
  INIT(weir_guard_finding);
  INIT(weir_ipc_handle);
  INIT(weir_ipc_send_options);
  INIT(weir_snapshot_options);
  INIT(weir_snapshot_entry);
  INIT(weir_snapshot_annotation);
  INIT(weir_soft_options);
  INIT(weir_soft_census);
  INIT(weir_ledger_options);
  INIT(weir_device_properties);
  INIT(weir_graph_memory_hooks);
  weir_allocator_options_init(NULL);
  weir_backend_init(NULL);
  weir_pointer_info_init(NULL);
  weir_soft_limit_init(NULL);
  weir_allocator_stats_init(NULL);
  weir_observer_init(NULL);
  weir_host_allocator_options_init(NULL);
  weir_shortage_init(NULL);
  weir_trace_entry_init(NULL);
  weir_pool_options_init(NULL);
  weir_checkpoint_delta_init(NULL);
  weir_history_options_init(NULL);
  weir_history_info_init(NULL);
  weir_host_stats_init(NULL);
  weir_guard_finding_init(NULL);
  weir_ipc_handle_init(NULL);
  weir_ipc_send_options_init(NULL);
  weir_snapshot_options_init(NULL);
  weir_snapshot_segment_init(NULL);
  weir_snapshot_block_init(NULL);
  weir_expandable_segment_init(NULL);
  weir_snapshot_entry_init(NULL);
  weir_snapshot_annotation_init(NULL);
  weir_allocator_stats stats;
  weir_allocator_stats_init(&stats);
  assert_int_equal(stats.num_oom_rejections, 0);
  weir_pointer_info info;
  weir_pointer_info_init(&info);
  assert_int_equal(info.is_expandable, 0);
}

/* ---- alloc.h ---- */

TEST(create) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  weir_allocator *made = (weir_allocator *)state;
  weir_allocator_options options;
  weir_backend backend;
  weir_allocator_options_init(&options);
  weir_backend_init(&backend);
  assert_error_says(INVALID_ARGUMENT, "driver is NULL", weir_allocator_create(NULL, &options, &made));
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL", weir_allocator_create(d, &options, NULL));
  options.size = 0;
  assert_error_says(INVALID_ARGUMENT, "the size of options is not set", weir_allocator_create(d, &options, &made));
  weir_allocator_options_init(&options);
  options.devices = 2;
  assert_error(INVALID_ARGUMENT, weir_allocator_create(d, &options, &made));
  options.devices = INT_MIN;
  assert_error(INVALID_ARGUMENT, weir_allocator_create(d, &options, &made));
  options.devices = 0;
  options.conf = "backend:none_such";
  assert_error(INVALID_ARGUMENT, weir_allocator_create(d, &options, &made));
  options.conf = "";
  options.backend = &backend;
  assert_error_says(INVALID_ARGUMENT, "both alloc and free", weir_allocator_create(d, &options, &made));
  backend.alloc = pool_alloc;
  assert_error_says(INVALID_ARGUMENT, "both alloc and free", weir_allocator_create(d, &options, &made));
  backend.size = 0;
  assert_error_says(INVALID_ARGUMENT, "the size of the back end", weir_allocator_create(d, &options, &made));
  assert_ptr_equal(made, state);
  weir_allocator_destroy(NULL);
  assert_error(INVALID_ARGUMENT, weir_allocator_backend(NULL, NULL, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_backend(allocator, NULL, 1, NULL));
  alloc_close();
}

TEST(memory) {
  open_all();
  char *live = get(4096, NULL);
  void *p = state, *base = state;
  size_t bytes = 77;
  weir_pointer_info info;
  SPOIL(info);
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL", weir_allocator_alloc(NULL, 0, 512, NULL, &p));
  assert_error_says(INVALID_ARGUMENT, "pointer is NULL", weir_allocator_alloc(allocator, 0, 512, NULL, NULL));
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, SIZE_MAX, NULL, &p));
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 2 * GIB, NULL, &p));
  assert_error_says(INVALID_HANDLE, "is not a stream", weir_allocator_alloc(allocator, 0, 512, bad_stream, &p));
  assert_error_says(INVALID_HANDLE, "is not a stream", weir_allocator_alloc(allocator, 0, 512, (weir_cu_stream)16, &p));
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL", weir_allocator_free(NULL, live));
  assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, state));
  assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, live + 1));
  assert_error(INVALID_ARGUMENT, weir_allocator_record_stream(NULL, live, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_record_stream(allocator, state, NULL));
  assert_error_says(INVALID_HANDLE, "is not a stream", weir_allocator_record_stream(allocator, live, bad_stream));
  assert_error_says(INVALID_HANDLE, "is not a stream",
                    weir_allocator_record_stream(allocator, live, (weir_cu_stream)16));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(NULL, live, &base, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(allocator, NULL, &base, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(allocator, state, &base, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(allocator, live, NULL, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(allocator, live, &base, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(NULL, live, &info));
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, NULL, &info));
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, state, &info));
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, live, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_fix_pages(NULL, live));
  assert_error(INVALID_ARGUMENT, weir_allocator_fix_pages(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_fix_pages(allocator, state));
  assert_ok(weir_allocator_fix_pages(allocator, live));
  assert_true(is_untouched(&info, sizeof info));
  info.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_allocator_describe(allocator, live, &info));
  assert_error(INVALID_ARGUMENT, weir_allocator_alloc_at(NULL, 0, 512, NULL, live));
  assert_error(INVALID_ARGUMENT, weir_allocator_alloc_at(allocator, 0, 0, NULL, live));
  assert_error(INVALID_ARGUMENT, weir_allocator_alloc_at(allocator, 0, SIZE_MAX, NULL, live));
  assert_error(INVALID_ARGUMENT, weir_allocator_alloc_at(allocator, 0, 512, NULL, live + 1));
  assert_error(BAD_STATE, weir_allocator_alloc_at(allocator, 0, 512, NULL, live));
  assert_error(BAD_STATE, weir_allocator_alloc_at(allocator, 0, 512, NULL, NULL));
  assert_error(BAD_STATE, weir_allocator_alloc_at(allocator, 0, 512, bad_stream, live));
  assert_error(INVALID_ARGUMENT, weir_allocator_empty_cache(NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_empty_pool(NULL, pool));
  assert_ok(weir_allocator_empty_pool(allocator, no_pool)); /* nothing to empty */
  FOR_EACH_BAD_DEVICE(device) {
    assert_error(INVALID_DEVICE, weir_allocator_alloc(allocator, device, 512, NULL, &p));
    assert_error(INVALID_DEVICE, weir_allocator_alloc_at(allocator, device, 512, NULL, live));
  }
  assert_ptr_equal(p, state);
  assert_ptr_equal(base, state);
  assert_int_equal(bytes, 77);
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].current, 1);
  put(live);
  close_all();
}

TEST(limits_and_settings) {
  open_all();
  size_t bytes = 77, count = 77;
  double fraction = 77;
  weir_expandable_segment segment = {.size = sizeof segment, .bytes = 77}, unset = {.bytes = 77};
  char name[200];
  memset(name, 'a', sizeof name - 1);
  name[sizeof name - 1] = 0;
  assert_error(INVALID_ARGUMENT, weir_allocator_largest_block(NULL, 0, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_largest_block(allocator, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_expandable_segments(NULL, 0, &segment, 1, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_expandable_segments(allocator, 0, NULL, 1, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_expandable_segments(allocator, 0, &segment, 1, NULL));
  assert_error_says(INVALID_ARGUMENT, "size", weir_allocator_expandable_segments(allocator, 0, &unset, 1, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_fraction(NULL, 0, 0.5));
  static const double wrong[] = {-0.1, 1.1, -INFINITY, INFINITY, NAN};
  for (size_t i = 0; i < WEIR_COUNT_OF(wrong); i++)
    assert_error(INVALID_ARGUMENT, weir_allocator_set_fraction(allocator, 0, wrong[i]));
  assert_error(INVALID_ARGUMENT, weir_allocator_get_fraction(NULL, 0, &fraction));
  assert_error(INVALID_ARGUMENT, weir_allocator_get_fraction(allocator, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_limit(NULL, 0, MIB));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_soft_limit(NULL, 0, MIB));
  assert_error(INVALID_ARGUMENT, weir_pool_set_limits(NULL, 0, (weir_pool_id){0, 0}, MIB, MIB));
  assert_error(INVALID_ARGUMENT, weir_tag_set_limits(NULL, MIB, MIB));
  assert_error(INVALID_ARGUMENT, weir_allocator_configure(NULL, ""));
  assert_error(INVALID_ARGUMENT, weir_allocator_configure(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_configure(allocator, "no_such_key:1"));
  assert_error(INVALID_ARGUMENT, weir_allocator_settings(NULL, name, sizeof name, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_settings(allocator, NULL, 100, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_setting(NULL, "moving_pages", name, sizeof name, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_setting(allocator, NULL, name, sizeof name, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_setting(allocator, "moving_pages", NULL, 100, &count));
  assert_error_says(INVALID_ARGUMENT, "moving", weir_allocator_setting(allocator, "moving", name, sizeof name, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_reserve_class(NULL, 0, NULL, "a"));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_reserve_class(allocator, 0, NULL, name));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_caching(NULL, 1));
  int answer = 77;
  assert_error(INVALID_ARGUMENT, weir_allocator_is_caching(NULL, &answer));
  assert_error(INVALID_ARGUMENT, weir_allocator_is_caching(allocator, NULL));
  assert_int_equal(answer, 77);
  FOR_EACH_BAD_DEVICE(device) {
    assert_error(INVALID_DEVICE, weir_allocator_largest_block(allocator, device, &bytes));
    assert_error(INVALID_DEVICE, weir_allocator_expandable_segments(allocator, device, &segment, 1, &count));
    assert_error(INVALID_DEVICE, weir_allocator_set_fraction(allocator, device, 0.5));
    assert_error(INVALID_DEVICE, weir_allocator_get_fraction(allocator, device, &fraction));
    assert_error(INVALID_DEVICE, weir_allocator_set_limit(allocator, device, MIB));
    assert_error(INVALID_DEVICE, weir_allocator_set_soft_limit(allocator, device, MIB));
    assert_error(INVALID_DEVICE, weir_pool_set_limits(allocator, device, (weir_pool_id){0, 0}, MIB, MIB));
    assert_error(INVALID_DEVICE, weir_allocator_set_reserve_class(allocator, device, NULL, "a"));
  }
  assert_int_equal(bytes, 77);
  assert_int_equal(count, 77);
  assert_int_equal(segment.bytes, 77);
  assert_true(fraction == 77);
  assert_ok(weir_allocator_get_fraction(allocator, 0, &fraction));
  assert_true(fraction == 1);
  assert_int_equal(is_caching(allocator), 1);
  put(get(900 * MIB, NULL));
  close_all();
}

TEST(devices_and_statistics) {
  open_all();
  char *live = get(4096, NULL);
  weir_allocator_stats stats;
  SPOIL(stats);
  assert_error(INVALID_ARGUMENT, weir_allocator_enable_peer_access(NULL, 0, 0));
  assert_error(INVALID_ARGUMENT, weir_allocator_copy_async(NULL, live, 0, live, 0, 1, NULL, 0));
  assert_int_not_equal(weir_allocator_copy_async(allocator, live, 0, live + 512, 0, 1, bad_stream, 0), WEIR_OK);
  assert_int_not_equal(weir_allocator_copy_async(allocator, NULL, 0, live, 0, 1, NULL, 0), WEIR_OK);
  assert_error(INVALID_ARGUMENT, weir_allocator_get_stats(NULL, 0, &stats));
  assert_error(INVALID_ARGUMENT, weir_allocator_get_stats(allocator, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_reset_peak_stats(NULL, 0));
  assert_error(INVALID_ARGUMENT, weir_allocator_reset_accumulated_stats(NULL, 0));
  FOR_EACH_BAD_DEVICE(device) {
    assert_error(INVALID_DEVICE, weir_allocator_enable_peer_access(allocator, device, 0));
    assert_error(INVALID_DEVICE, weir_allocator_enable_peer_access(allocator, 0, device));
    assert_error(INVALID_DEVICE, weir_allocator_copy_async(allocator, live, device, live, 0, 1, NULL, 0));
    assert_error(INVALID_DEVICE, weir_allocator_copy_async(allocator, live, 0, live, device, 1, NULL, 0));
    assert_error(INVALID_DEVICE, weir_allocator_get_stats(allocator, device, &stats));
    assert_error(INVALID_DEVICE, weir_allocator_reset_peak_stats(allocator, device));
    assert_error(INVALID_DEVICE, weir_allocator_reset_accumulated_stats(allocator, device));
  }
  assert_true(is_untouched(&stats, sizeof stats));
  stats.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_allocator_get_stats(allocator, 0, &stats));
  stats.size = offsetof(weir_allocator_stats, num_ooms); /* an older program: fields beyond its size are not written */
  assert_ok(weir_allocator_get_stats(allocator, 0, &stats));
  assert_int_equal((unsigned char)stats.num_ooms, 0x5a);

  assert_error(INVALID_ARGUMENT, weir_allocator_attach(NULL, OBSERVER(.entry = ignore_trace)));
  assert_error(INVALID_ARGUMENT, weir_allocator_attach(allocator, NULL));
  assert_error_says(INVALID_ARGUMENT, "all functions", weir_allocator_attach(allocator, OBSERVER(.context = &stats)));
  assert_error_says(INVALID_ARGUMENT, "size",
                    weir_allocator_attach(allocator, &(weir_observer){.entry = ignore_trace}));
  assert_error(INVALID_ARGUMENT, weir_allocator_detach(NULL, OBSERVER(.entry = ignore_trace)));
  assert_error(INVALID_ARGUMENT, weir_allocator_detach(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_detach(allocator, OBSERVER(.entry = ignore_trace)));
  assert_error_says(INVALID_ARGUMENT, "size", weir_allocator_detach(allocator, &(weir_observer){.context = NULL}));
  weir_shortage shortage = {.size = 0};
  assert_error(INVALID_ARGUMENT, weir_last_shortage(NULL));
  assert_error_says(INVALID_ARGUMENT, "size", weir_last_shortage(&shortage));
  put(live);
  soft_step_all();
  close_all();
}

/* ---- adapter.h ---- */

TEST(adapter) {
  open_all();
  uint64_t bytes = 77;
  assert_error(INVALID_ARGUMENT, weir_bytes_parse(NULL, &bytes));
  assert_error(INVALID_ARGUMENT, weir_bytes_parse("1", NULL));
  for (const char *const *text = (const char *const[]){"", "GiB", "1 bushel", "-1", "1GiB2", NULL}; *text; text++)
    assert_error_says(INVALID_ARGUMENT, "is not a size", weir_bytes_parse(*text, &bytes));
  assert_int_equal(bytes, 77);
  assert_ok(weir_bytes_parse("8GiB", &bytes));
  assert_int_equal(bytes, 8 * GIB);
  int owns = 77;
  assert_error(INVALID_ARGUMENT, weir_allocator_owns(NULL, &bytes, &owns));
  assert_error(INVALID_ARGUMENT, weir_allocator_owns(allocator, &bytes, NULL));
  assert_int_equal(owns, 77);
  size_t count = 77;
  weir_pool_id ids[2] = {{7, 7}, {7, 7}};
  assert_error(INVALID_ARGUMENT, weir_allocator_set_witness(NULL, ignore_trace, NULL, WEIR_WITNESS_ALL));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_witness(allocator, ignore_trace, NULL, (weir_witness_scope)2));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_witness(allocator, ignore_trace, NULL, (weir_witness_scope)-1));
  void *untouched = NULL; /* these leave the reason to the plain calls */
  assert_int_equal(weir_allocator_try_alloc(NULL, 0, 512, NULL, &untouched), WEIR_ERROR_NOT_READY);
  assert_int_equal(weir_allocator_try_alloc(allocator, 0, 512, NULL, NULL), WEIR_ERROR_NOT_READY);
  assert_int_equal(weir_allocator_try_free(NULL, &count), WEIR_ERROR_NOT_READY);
  assert_int_equal(weir_allocator_try_free(allocator, &count), WEIR_ERROR_NOT_READY);
  assert_null(untouched);
  assert_error(INVALID_ARGUMENT, weir_allocator_pools(NULL, 0, 1, ids, 2, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_pools(allocator, 0, 1, NULL, 2, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_pools(allocator, 0, 1, ids, 2, NULL));
  FOR_EACH_BAD_DEVICE(device)
  assert_error(INVALID_DEVICE, weir_allocator_pools(allocator, device, 1, ids, 2, &count));
  assert_int_equal(count, 77);
  assert_int_equal(ids[0].first, 7);
  close_all();
}

/* ---- pool.h ---- */

TEST(pools) {
  open_all();
  int count = 77, equal = 77;
  weir_stat stats[WEIR_STAT_KINDS] = {{.current = 77}};
  weir_checkpoint *checkpoint = (weir_checkpoint *)state, *taken = NULL;
  weir_checkpoint_delta delta = {.size = sizeof delta, .freed_count = 77};
  void *pointers[] = {state};
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = pool_alloc;
  assert_error_says(INVALID_ARGUMENT, "must be given together", weir_pool_create(allocator, 0, no_pool, &options));
  options.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_pool_create(allocator, 0, no_pool, &options));
  assert_ok(weir_pool_checkpoint(allocator, 0, pool, &taken));

#define POOL_CALLS(status, allocator, device, id)                                                                      \
  do {                                                                                                                 \
    assert_error(status, weir_pool_release(allocator, device, id));                                                    \
    assert_error(status, weir_pool_use_count(allocator, device, id, &count));                                          \
    assert_error(status, weir_pool_reserved_bytes(allocator, device, id, stats));                                      \
    assert_error(status, weir_pool_set_use_on_oom(allocator, device, id, 1));                                          \
    assert_error(status, weir_pool_set_no_split(allocator, device, id, 1));                                            \
    assert_error(status, weir_pool_has_exactly(allocator, device, id, pointers, 1, &equal));                           \
    assert_error(status, weir_pool_checkpoint(allocator, device, id, &checkpoint));                                    \
  } while (0)
  POOL_CALLS(INVALID_ARGUMENT, NULL, 0, pool);
  POOL_CALLS(INVALID_ARGUMENT, allocator, 0, no_pool);
  POOL_CALLS(INVALID_ARGUMENT, allocator, 0, default_pool);
  FOR_EACH_BAD_DEVICE(device) {
    POOL_CALLS(INVALID_DEVICE, allocator, device, pool);
    assert_error(INVALID_DEVICE, weir_pool_create(allocator, device, pool, NULL));
    assert_error(INVALID_DEVICE, weir_pool_begin(allocator, device, pool, NULL, NULL));
    assert_error(INVALID_DEVICE, weir_pool_end(allocator, device, pool));
    assert_error(INVALID_DEVICE, weir_pool_wait(allocator, device, pool));
    assert_error(INVALID_DEVICE, weir_allocator_begin_capture(allocator, device));
    assert_error(INVALID_DEVICE, weir_allocator_end_capture(allocator, device));
  }
  assert_error(INVALID_ARGUMENT, weir_pool_create(NULL, 0, pool, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_create(allocator, 0, default_pool, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_begin(NULL, 0, pool, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_begin(allocator, 0, default_pool, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_end(NULL, 0, pool));
  assert_error(BAD_STATE, weir_pool_end(allocator, 0, pool));
  assert_error(BAD_STATE, weir_pool_end(allocator, 0, no_pool));
  assert_error(INVALID_ARGUMENT, weir_pool_wait(NULL, 0, pool));
  assert_error(INVALID_ARGUMENT, weir_pool_wait(allocator, 0, no_pool));
  assert_error(INVALID_ARGUMENT, weir_allocator_begin_capture(NULL, 0));
  assert_error(INVALID_ARGUMENT, weir_allocator_end_capture(NULL, 0));
  assert_error(BAD_STATE, weir_allocator_end_capture(allocator, 0));
  assert_error(INVALID_ARGUMENT, weir_pool_use_count(allocator, 0, pool, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_reserved_bytes(allocator, 0, pool, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_has_exactly(allocator, 0, pool, NULL, 1, &equal));
  assert_error(INVALID_ARGUMENT, weir_pool_has_exactly(allocator, 0, pool, pointers, 1, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_checkpoint(allocator, 0, pool, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_restore(NULL, taken, &delta));
  assert_error(INVALID_ARGUMENT, weir_pool_restore(allocator, NULL, &delta));
  assert_error(INVALID_ARGUMENT, weir_pool_restore(allocator, taken, NULL));
  weir_checkpoint_delta unset = {.freed_count = 77};
  assert_error_says(INVALID_ARGUMENT, "size", weir_pool_restore(allocator, taken, &unset));
  weir_checkpoint_destroy(NULL);
  weir_checkpoint_delta_clear(NULL);
  assert_ok(weir_graph_use_allocator(NULL)); /* there is none to remove */
  assert_int_equal(count, 77);
  assert_int_equal(equal, 77);
  assert_int_equal(stats[0].current, 77);
  assert_int_equal(delta.freed_count, 77);
  assert_ptr_equal(checkpoint, state);
  assert_ok(weir_pool_use_count(allocator, 0, pool, &count));
  assert_int_equal(count, 1);
  weir_checkpoint_destroy(taken);
  close_all();
}

/* ---- history.h ---- */

static int no_frame(void *context, const char *function, const char *file, int line, int is_native) {
  (void)context, (void)file, (void)line, (void)is_native;
  fail_msg("visited %s", function);
  return 0;
}

TEST(history) {
  open_all();
  void *live = get(512, NULL);
  const char *const pairs[] = {"key", "value", "key", NULL};
  weir_history_info info;
  SPOIL(info);
  weir_history_options options;
  unsigned bit = 77;
  weir_stack_frame frame = {.line = 77};
  assert_error(INVALID_ARGUMENT, weir_history_record(NULL, NULL));
#define assert_bad_option(field, value)                                                                                \
  do {                                                                                                                 \
    weir_history_options_init(&options);                                                                               \
    options.field = value;                                                                                             \
    assert_error(INVALID_ARGUMENT, weir_history_record(allocator, &options));                                          \
  } while (0)
  assert_bad_option(size, 0);
  assert_bad_option(mode, (weir_history_mode)3);
  assert_bad_option(mode, (weir_history_mode)-1);
  assert_bad_option(context, (weir_history_context)4);
  assert_bad_option(stacks, (weir_history_stacks)3);
  assert_bad_option(skip, 1u << WEIR_TRACE_ACTIONS);
  assert_bad_option(skip, 1u << 31);
  assert_int_equal(is_recording(allocator), 0);
  int is_on = 77;
  assert_error(INVALID_ARGUMENT, weir_history_is_on(NULL, &is_on));
  assert_error(INVALID_ARGUMENT, weir_history_is_on(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_history_action(NULL, &bit));
  assert_error(INVALID_ARGUMENT, weir_history_action("alloc", NULL));
  assert_error(INVALID_ARGUMENT, weir_history_action("", &bit));
  assert_error(INVALID_ARGUMENT, weir_history_action("Alloc", &bit));
  static const int not_actions[] = {-1, 10, 11, WEIR_TRACE_ACTIONS, INT_MAX};
  for (size_t i = 0; i < WEIR_COUNT_OF(not_actions); i++)
    assert_string_equal(weir_trace_action_name((weir_trace_action)not_actions[i]), "unknown");
  assert_string_equal(weir_block_state_name((weir_block_state)-1), "unknown");
  assert_string_equal(weir_block_state_name(WEIR_BLOCK_STATES), "unknown");
  assert_int_equal(bit, 77);
  assert_error(INVALID_ARGUMENT, weir_history_clear(NULL));
  assert_ok(weir_history_record(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_history_get_info(NULL, 0, &info));
  assert_error(INVALID_ARGUMENT, weir_history_get_info(allocator, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_history_annotate(NULL, 0, pairs, 1));
  assert_error(INVALID_ARGUMENT, weir_history_annotate(allocator, 0, NULL, 1));
  assert_error_says(INVALID_ARGUMENT, "value of pair 1", weir_history_annotate(allocator, 0, pairs, 2));
  assert_error(INVALID_ARGUMENT, weir_history_annotate_all(0, NULL, 1));
  assert_error_says(INVALID_ARGUMENT, "value of pair 1", weir_history_annotate_all(0, pairs, 2));
  assert_error(INVALID_ARGUMENT, weir_history_mark(NULL, 0, "text"));
  assert_error(INVALID_ARGUMENT, weir_history_mark_pointer(NULL, live, "text"));
  assert_error(INVALID_ARGUMENT, weir_history_mark_pointer(allocator, NULL, "text"));
  assert_error(INVALID_ARGUMENT, weir_history_mark_pointer(allocator, state, "text"));
  assert_error(INVALID_ARGUMENT, weir_history_set_metadata(NULL, 0, "text"));
  FOR_EACH_BAD_DEVICE(device) {
    assert_error(INVALID_DEVICE, weir_history_get_info(allocator, device, &info));
    assert_error(INVALID_DEVICE, weir_history_annotate(allocator, device, pairs, 1));
    assert_error(INVALID_DEVICE, weir_history_mark(allocator, device, "text"));
    assert_error(INVALID_DEVICE, weir_history_set_metadata(allocator, device, "text"));
  }
  assert_true(is_untouched(&info, sizeof info));
  info.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_history_get_info(allocator, 0, &info));
  weir_history_info_init(&info);
  assert_ok(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.kept, 0);
  assert_int_equal(info.annotations, 0);
  FOR_EACH_BAD_DEVICE(device) { /* counts as the first */
    assert_ok(weir_history_annotate_all(device, pairs, 1));
    assert_ok(weir_history_mark_all(device, device % 2 ? "text" : NULL));
  }

  /* An empty text is not a phase; invalid numbers have no text and no frames. */
  uint32_t before = weir_history_enter_phase(NULL);
  weir_history_leave_phase(before);
  weir_history_share_phase(UINT32_MAX); /* not a text */
  assert_ok(weir_history_mark(allocator, 0, "with a phase that does not exist"));
  weir_history_share_phase(0);
  weir_history_exchange_metadata(UINT32_MAX);
  assert_string_equal(weir_history_text_of(weir_history_exchange_metadata(0)), "");
  before = weir_history_enter_compile(NULL);
  weir_history_leave_compile(before);
  assert_int_equal(weir_history_text(NULL), 0);
  assert_int_equal(weir_history_text(""), 0);
  assert_string_equal(weir_history_text_of(0), "");
  assert_string_equal(weir_history_text_of(UINT32_MAX), "");
  assert_int_equal(weir_history_frames(0, &frame, 1), 0);
  assert_int_equal(weir_history_frames(UINT32_MAX, &frame, 1), 0);
  assert_int_equal(weir_history_frames(1, NULL, 5), weir_history_frames(1, NULL, 0));
  assert_int_equal(frame.line, 77);
  uint32_t stack = 77;
  assert_error(INVALID_ARGUMENT, weir_stack_capture(WEIR_STACKS_ALL, NULL));
  assert_error(INVALID_ARGUMENT, weir_stack_capture((weir_history_stacks)3, &stack));
  assert_error(INVALID_ARGUMENT, weir_stack_capture((weir_history_stacks)-1, &stack));
  assert_int_equal(stack, 77);
  assert_error(INVALID_ARGUMENT, weir_stack_visit(0, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_stack_visit(UINT32_MAX, no_frame, NULL));
  assert_ok(weir_stack_visit(0, no_frame, NULL));
  weir_stack_set_key(NULL);
  weir_stack_set_hook(NULL, state);
  put(live);
  close_all();
}

/* ---- host.h ---- */

TEST(host) {
  open_all();
  weir_host_allocator *host = (weir_host_allocator *)state;
  void *p = state, *live;
  int owns = 77;
  weir_host_stats stats;
  SPOIL(stats);
  assert_error_says(INVALID_ARGUMENT, "driver is NULL", weir_host_allocator_create(NULL, HOST_CONF(""), &host));
  assert_error_says(INVALID_ARGUMENT, "host is NULL", weir_host_allocator_create(d, HOST_CONF(""), NULL));
  assert_error(INVALID_ARGUMENT, weir_host_allocator_create(d, HOST_CONF("no_such_key:1"), &host));
  assert_ptr_equal(host, state);
  assert_ok(weir_host_allocator_create(d, HOST_CONF(""), &host));
  assert_ok(weir_host_alloc(host, 1000, &live));
  assert_error_says(INVALID_ARGUMENT, "host is NULL", weir_host_set_witness(NULL, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_alloc(NULL, 512, &p));
  assert_error(INVALID_ARGUMENT, weir_host_alloc(host, 512, NULL));
  assert_error(HOST_OUT_OF_MEMORY, weir_host_alloc(host, SIZE_MAX, &p));
  assert_error(HOST_OUT_OF_MEMORY, weir_host_alloc(host, 1ull << 60, &p));
  assert_error(INVALID_ARGUMENT, weir_host_free(NULL, live));
  assert_error(INVALID_ARGUMENT, weir_host_free(host, state));
  assert_error(INVALID_ARGUMENT, weir_host_free(host, (char *)live + 1));
  assert_error(INVALID_ARGUMENT, weir_host_record_stream(NULL, live, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_record_stream(host, state, 0, NULL));
  assert_error(INVALID_HANDLE, weir_host_record_stream(host, live, 0, bad_stream));
  FOR_EACH_BAD_DEVICE(device)
  assert_error(INVALID_DEVICE, weir_host_record_stream(host, live, device, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_empty_cache(NULL));
  assert_error(INVALID_ARGUMENT, weir_host_configure(NULL, ""));
  assert_error(INVALID_ARGUMENT, weir_host_configure(host, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_configure(host, "pinned_use_cuda_host_register:perhaps"));
  assert_error(INVALID_ARGUMENT, weir_host_owns(NULL, live, &owns));
  assert_error(INVALID_ARGUMENT, weir_host_owns(host, live, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_get_stats(NULL, &stats));
  assert_error(INVALID_ARGUMENT, weir_host_get_stats(host, NULL));
  assert_true(is_untouched(&stats, sizeof stats));
  stats.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_host_get_stats(host, &stats));
  assert_error(INVALID_ARGUMENT, weir_host_reset_peak_stats(NULL));
  assert_error(INVALID_ARGUMENT, weir_host_reset_accumulated_stats(NULL));
  assert_ptr_equal(p, state);
  assert_int_equal(owns, 77);
  assert_ok(weir_host_free(host, live));
  assert_error(INVALID_ARGUMENT, weir_host_free(host, live));
  weir_host_allocator_destroy(host);
  weir_host_allocator_destroy(NULL);
  close_all();
}

/* ---- ipc.h ---- */

TEST(ipc) {
  open_all();
  void *live = get(4096, NULL), *base = state;
  weir_ipc_handle handle;
  SPOIL(handle);
  unsigned char bytes[WEIR_IPC_HANDLE_MAX] = {0};
  assert_error(INVALID_ARGUMENT, weir_ipc_share(NULL, live, &handle));
  assert_error(INVALID_ARGUMENT, weir_ipc_share(allocator, NULL, &handle));
  assert_error(INVALID_ARGUMENT, weir_ipc_share(allocator, state, &handle));
  assert_error(INVALID_ARGUMENT, weir_ipc_share(allocator, live, NULL));
  assert_true(is_untouched(&handle, sizeof handle));
  handle.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_ipc_share(allocator, live, &handle));
  assert_error(INVALID_ARGUMENT, weir_ipc_open(NULL, 0, bytes, 64, &base));
  assert_error(INVALID_ARGUMENT, weir_ipc_open(allocator, 0, NULL, 64, &base));
  assert_error(INVALID_ARGUMENT, weir_ipc_open(allocator, 0, bytes, 64, NULL));
  FOR_EACH_BAD_DEVICE(device)
  assert_error(INVALID_DEVICE, weir_ipc_open(allocator, device, bytes, 64, &base));
  static const size_t lengths[] = {0, 1, 25, 64, 65, 66, 67, 100, sizeof bytes};
  for (size_t i = 0; i < WEIR_COUNT_OF(lengths); i++) {
    clear_last_error();
    assert_int_not_equal(weir_ipc_open(allocator, 0, bytes, lengths[i], &base), WEIR_OK);
    assert_memory_equal(weir_last_error(), "weir_ipc_open: ", 15);
  }
  assert_error(INVALID_ARGUMENT, weir_ipc_close(NULL, state));
  assert_error(INVALID_ARGUMENT, weir_ipc_close(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_ipc_close(allocator, state));
  assert_error(INVALID_ARGUMENT, weir_ipc_close(allocator, live));
  assert_error(INVALID_ARGUMENT, weir_ipc_send(NULL, live, NULL, NULL, &handle));
  assert_error(INVALID_ARGUMENT, weir_ipc_receive(NULL, 0, bytes, 64, NULL, &base, NULL));
  for (size_t i = 0; i < WEIR_COUNT_OF(lengths); i++)
    assert_error(BAD_DATA, weir_ipc_receive(allocator, 0, bytes, lengths[i], NULL, &base, NULL));
  FOR_EACH_BAD_DEVICE(device)
  assert_error(INVALID_DEVICE, weir_ipc_receive(allocator, device, bytes, 64, NULL, &base, NULL));
  assert_error(INVALID_ARGUMENT, weir_ipc_release(NULL, live, NULL));
  assert_error(INVALID_ARGUMENT, weir_ipc_release(allocator, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_ipc_release(allocator, live, NULL));
  assert_error(INVALID_ARGUMENT, weir_ipc_cancel(NULL, bytes, 64));
  assert_error(INVALID_ARGUMENT, weir_ipc_cancel(allocator, NULL, 64));
  assert_error(BAD_DATA, weir_ipc_cancel(allocator, bytes, 64));
  assert_error(INVALID_ARGUMENT, weir_ipc_set_receiver(NULL, bytes, 64, 1));
  assert_error(INVALID_ARGUMENT, weir_ipc_set_receiver(allocator, NULL, 64, 1));
  assert_error(INVALID_ARGUMENT, weir_ipc_set_receiver(allocator, bytes, 64, 0));
  assert_error(BAD_DATA, weir_ipc_set_receiver(allocator, bytes, 64, 1));
  assert_error(INVALID_ARGUMENT, weir_ipc_collect(NULL, NULL));
  assert_ptr_equal(base, state);
  put(live);
  close_all();
}

/* ---- snapshot.h ---- */

TEST(snapshots) {
  open_all();
  assert_ok(weir_history_record(allocator, NULL));
  const char *const pairs[] = {"key", "value"};
  assert_ok(weir_history_annotate(allocator, 0, pairs, 1));
  void *live = get(512, NULL);
  weir_snapshot *snapshot = (weir_snapshot *)state;
  weir_snapshot_options options;
  assert_error(INVALID_ARGUMENT, weir_snapshot_take(NULL, NULL, &snapshot));
  assert_error(INVALID_ARGUMENT, weir_snapshot_add_host(NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_snapshot_take(allocator, NULL, NULL));
  weir_snapshot_options_init(&options);
  options.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_snapshot_take(allocator, &options, &snapshot));
  FOR_EACH_BAD_DEVICE(device) {
    weir_snapshot_options_init(&options);
    options.device = device;
    if (device != -1)
      assert_error(INVALID_DEVICE, weir_snapshot_take(allocator, &options, &snapshot));
  }
  assert_ptr_equal(snapshot, state);
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));

  const weir_snapshot_segment *segments = (const weir_snapshot_segment *)state;
  size_t count = 77;
  uint64_t events = 77, dropped = 77;
  weir_snapshot_entry event;
  weir_snapshot_annotation annotation;
  const char *key = "key", *value = "value";
  SPOIL(event);
  SPOIL(annotation);
  assert_error(INVALID_ARGUMENT, weir_snapshot_segments(NULL, &segments, &count));
  assert_error(INVALID_ARGUMENT, weir_snapshot_segments(snapshot, NULL, &count));
  assert_error(INVALID_ARGUMENT, weir_snapshot_segments(snapshot, &segments, NULL));
  weir_snapshot_segment empty;
  weir_snapshot_segment_init(&empty);
  assert_null(weir_snapshot_segment_at(NULL, 0));
  assert_null(weir_snapshot_block_at(NULL, 0));
  assert_null(weir_snapshot_block_at(&empty, 0));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entries(NULL, 0, &events, &dropped));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entries(snapshot, 0, NULL, &dropped));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entries(snapshot, 0, &events, NULL));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entry_at(NULL, 0, 0, &event));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entry_at(snapshot, 0, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entry_at(snapshot, 0, 2, &event));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entry_at(snapshot, 0, UINT64_MAX, &event));
  FOR_EACH_BAD_DEVICE(device) {
    assert_error(INVALID_DEVICE, weir_snapshot_entries(snapshot, device, &events, &dropped));
    assert_error(INVALID_DEVICE, weir_snapshot_entry_at(snapshot, device, 0, &event));
  }
  assert_true(is_untouched(&event, sizeof event));
  event.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_snapshot_entry_at(snapshot, 0, 0, &event));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotations(NULL, &count));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotations(snapshot, NULL));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_at(NULL, 0, &annotation));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_at(snapshot, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_at(snapshot, 1, &annotation));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_at(snapshot, SIZE_MAX, &annotation));
  assert_true(is_untouched(&annotation, sizeof annotation));
  annotation.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_snapshot_annotation_at(snapshot, 0, &annotation));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_pair(NULL, 0, 0, &key, &value));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_pair(snapshot, 0, 0, NULL, &value));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_pair(snapshot, 0, 0, &key, NULL));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_pair(snapshot, 0, 1, &key, &value));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_pair(snapshot, 1, 0, &key, &value));
  assert_string_equal(key, "key");
  assert_string_equal(value, "value");
  assert_int_equal(count, 77);
  assert_true(events == 77 && dropped == 77);
  assert_ptr_equal(segments, state);

  char path[] = "/tmp/weir-bad-input-XXXXXX";
  int file_number = mkstemp(path);
  assert_true(file_number >= 0);
  assert_int_equal(write(file_number, "before", 6), 6);
  FILE *file = fdopen(file_number, "r+");
  assert_non_null(file);
  assert_int_equal(weir_write_file(NULL, "", 1), EINVAL);
  assert_error(INVALID_ARGUMENT, weir_snapshot_write(NULL, WEIR_SNAPSHOT_JSON, weir_write_file, file));
  assert_error(INVALID_ARGUMENT, weir_snapshot_write(snapshot, WEIR_SNAPSHOT_JSON, NULL, stdout));
  assert_error(INVALID_ARGUMENT, weir_snapshot_write(snapshot, (weir_snapshot_format)2, weir_write_file, file));
  assert_error(INVALID_ARGUMENT, weir_snapshot_save(NULL, WEIR_SNAPSHOT_JSON, path));
  assert_error(INVALID_ARGUMENT, weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, NULL));
  assert_error(INVALID_ARGUMENT, weir_snapshot_save(snapshot, (weir_snapshot_format)-1, path));
  assert_error(SYSTEM, weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, "/nowhere/at/all"));
  assert_error(SYSTEM, weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, ""));
  assert_error(INVALID_ARGUMENT, weir_allocator_write_stats(NULL, 0, WEIR_STATS_FLAT, weir_write_file, file));
  assert_error(INVALID_ARGUMENT, weir_allocator_write_stats(allocator, 0, WEIR_STATS_FLAT, NULL, stdout));
  assert_error(INVALID_ARGUMENT, weir_allocator_write_stats(allocator, 0, (weir_stats_form)2, weir_write_file, file));
  FOR_EACH_BAD_DEVICE(device)
  assert_error(INVALID_DEVICE, weir_allocator_write_stats(allocator, device, WEIR_STATS_FLAT, weir_write_file, file));
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  assert_int_equal(ftell(file), 6);
  fclose(file);
  unlink(path);
  weir_snapshot_destroy(snapshot);
  weir_snapshot_destroy(NULL);
  put(live);
  close_all();
}

TEST(counters) {
  open_all();
  weir_allocator_stats stats = stats_of(0);
  int64_t value = 77;
  size_t count = 77;
  weir_stat stat = {.current = 77};
  weir_pool_id ids[2] = {{7, 7}, {7, 7}};
  char text[64] = "before";
  assert_null(weir_stats_name(SIZE_MAX));
  assert_null(weir_stats_name(SIZE_MAX));
  assert_error(INVALID_ARGUMENT, weir_stats_value(NULL, "num_ooms", &value));
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, NULL, &value));
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, "num_ooms", NULL));
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, "", &value));
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, "num_oom", &value));
  stats.size = sizeof stats.size;
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, "num_ooms", &value));
  stats.size = sizeof stats;
  assert_error(INVALID_ARGUMENT, weir_allocator_pools(NULL, 0, 0, ids, 2, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_pools(allocator, 0, 0, NULL, 2, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_pools(allocator, 0, 0, ids, 2, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_stat(NULL, 0, "num_ooms", &value));
  assert_error(INVALID_ARGUMENT, weir_allocator_stat(allocator, 0, NULL, &value));
  assert_error(INVALID_ARGUMENT, weir_allocator_stat(allocator, 0, "num_ooms", NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_stat(allocator, 0, "none", &value));
  assert_error(INVALID_ARGUMENT, weir_stats_summary(NULL, 0, WEIR_SUMMARY_FULL, text, sizeof text, &count));
  assert_error(INVALID_ARGUMENT, weir_stats_summary(&stats, 0, (weir_summary_form)3, text, sizeof text, &count));
  assert_error(INVALID_ARGUMENT, weir_stats_summary(&stats, 0, WEIR_SUMMARY_LINE, NULL, 100, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_summary(NULL, 0, WEIR_SUMMARY_LINE, text, sizeof text, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_summary(allocator, 0, WEIR_SUMMARY_LINE, NULL, 100, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_summary(allocator, 0, (weir_summary_form)3, text, sizeof text, &count));
  assert_error(INVALID_ARGUMENT,
               weir_allocator_summary(allocator, 0, (weir_summary_form)-1, text, sizeof text, &count));
  weir_outside_memory_init(NULL);
  assert_error(INVALID_ARGUMENT, weir_outside_memory_add(NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_outside_memory_remove(NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_outside_memory_visit(0, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_outside_memory_record(NULL, 0, 1));
  assert_error(INVALID_ARGUMENT, weir_allocator_processes(NULL, 0, text, sizeof text, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_processes(allocator, 0, NULL, 100, &count));
  assert_error(NOT_SUPPORTED, weir_allocator_processes(allocator, 0, text, sizeof text, &count));
  FOR_EACH_BAD_DEVICE(device) {
    assert_error(INVALID_DEVICE, weir_outside_memory_record(allocator, device, 1));
    assert_error(INVALID_DEVICE, weir_allocator_pools(allocator, device, 0, ids, 2, &count));
    assert_error(INVALID_DEVICE, weir_allocator_stat(allocator, device, "num_ooms", &value));
    assert_error(INVALID_DEVICE,
                 weir_allocator_summary(allocator, device, WEIR_SUMMARY_LINE, text, sizeof text, &count));
    assert_error(INVALID_DEVICE, weir_allocator_processes(allocator, device, text, sizeof text, &count));
  }
  assert_int_equal(value, 77);
  assert_int_equal(count, 77);
  assert_int_equal(stat.current, 77);
  assert_int_equal(ids[0].first, 7);
  assert_string_equal(text, "before");
  close_all();
}

/* ---- log.h ---- */

TEST(log) {
  weir_log_level before = weir_log_get_level();
  weir_log_set_level((weir_log_level)-7);
  assert_int_equal(weir_log_get_level(), WEIR_LOG_ERROR);
  weir_log_set_level((weir_log_level)99);
  assert_int_equal(weir_log_get_level(), WEIR_LOG_DEBUG);
  weir_log_set_sink(NULL, state);
  weir_log_message(WEIR_LOG_DEBUG, NULL);
  weir_log_message((weir_log_level)99, "a message of no level");
  weir_log_set_level(before);
}

/* ---- maintain.h ---- */

TEST(maintain) {
  weir_maintain_set_worker(-7); /* any number but 0 is on */
  assert_int_equal(weir_maintain(), UINT64_MAX);
  weir_maintain_set_worker(1);
}

/* ---- guard.h ---- */

TEST(guard) {
  uint64_t count = 42;
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL", weir_guard_check(NULL, &count));
  assert_int_equal(count, 42);
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL",
                    weir_guard_write(NULL, WEIR_GUARD_TEXT, weir_write_file, stdout));
  open_all();
  assert_error_says(INVALID_ARGUMENT, "write is NULL", weir_guard_write(allocator, WEIR_GUARD_TEXT, NULL, NULL));
  assert_error_says(INVALID_ARGUMENT, "expected text or JSON",
                    weir_guard_write(allocator, (weir_guard_format)7, weir_write_file, stdout));
  close_all();
}
/* ---- tag.h ---- */

TEST(tags) {
  weir_tag *tag = NULL, *tags[1];
  size_t count = 77;
  char long_name[65];
  weir_tag_info info;
  weir_tag_info_init(&info);
  memset(long_name, 'x', sizeof long_name);
  long_name[64] = 0;
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL", weir_tag_open(NULL, 0, "a", &tag));
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL", weir_allocator_tags(NULL, 0, tags, 1, &count));
  assert_error_says(INVALID_ARGUMENT, "allocator is NULL", weir_pool_tag(NULL, 0, (weir_pool_id){1, 1}, &tag));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_tag_begin(NULL));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_tag_end(NULL));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_tag_get_info(NULL, &info));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_tag_sleep(NULL, WEIR_TAG_KEEP, NULL));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_tag_wake(NULL, NULL));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_tag_prepare(NULL));
  assert_string_equal(weir_tag_state_name((weir_tag_state)-7), "unknown");
  assert_string_equal(weir_tag_state_name((weir_tag_state)99), "unknown");
  open_all();
  FOR_EACH_BAD_DEVICE(device) {
    assert_error(INVALID_DEVICE, weir_tag_open(allocator, device, "a", &tag));
    assert_error(INVALID_DEVICE, weir_allocator_tags(allocator, device, tags, 1, &count));
    assert_error(INVALID_DEVICE, weir_pool_tag(allocator, device, (weir_pool_id){1, 1}, &tag));
  }
  assert_error_says(INVALID_ARGUMENT, "name is NULL", weir_tag_open(allocator, 0, NULL, &tag));
  assert_error_says(INVALID_ARGUMENT, "0 bytes", weir_tag_open(allocator, 0, "", &tag));
  assert_error_says(INVALID_ARGUMENT, "expected 1 to 63", weir_tag_open(allocator, 0, long_name, &tag));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_tag_open(allocator, 0, "a", NULL));
  assert_error_says(INVALID_ARGUMENT, "tags is NULL", weir_allocator_tags(allocator, 0, NULL, 1, &count));
  assert_error_says(INVALID_ARGUMENT, "count is NULL", weir_allocator_tags(allocator, 0, tags, 1, NULL));
  assert_error_says(INVALID_ARGUMENT, "tag is NULL", weir_pool_tag(allocator, 0, (weir_pool_id){1, 1}, NULL));
  assert_error(INVALID_ARGUMENT, weir_pool_tag(allocator, 0, (weir_pool_id){1, 1}, &tag));
  assert_null(tag);
  assert_int_equal(count, 77);
  assert_ok(weir_tag_open(allocator, 0, "a", &tag));
  assert_error_says(INVALID_ARGUMENT, "info is NULL", weir_tag_get_info(tag, NULL));
  weir_tag_info unset = {.pools = 77};
  assert_error_says(INVALID_ARGUMENT, "size", weir_tag_get_info(tag, &unset));
  assert_int_equal(unset.pools, 77);
  assert_error_says(BAD_STATE, "not in the scope", weir_tag_end(tag));
  assert_error_says(INVALID_ARGUMENT, "content is 7", weir_tag_sleep(tag, (weir_tag_content)7, NULL));
  weir_tag_sleep_options options;
  weir_tag_sleep_options_init(&options);
  options.stream_count = 1;
  assert_error_says(INVALID_ARGUMENT, "streams is NULL", weir_tag_sleep(tag, WEIR_TAG_KEEP, &options));
  assert_error_says(INVALID_ARGUMENT, "streams is NULL", weir_tag_wake(tag, &options));
  options.size = 1;
  assert_error(INVALID_ARGUMENT, weir_tag_sleep(tag, WEIR_TAG_KEEP, &options));
  assert_error(BAD_STATE, weir_tag_wake(tag, NULL));
  close_all();
}
