/*
 * Counters by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"
#include "weir/snapshot.h"

#define KINDS(X, group)                                                                                                \
  X(group, all, WEIR_STAT_ALL) X(group, small_pool, WEIR_STAT_SMALL_POOL) X(group, large_pool, WEIR_STAT_LARGE_POOL)
#define EVERY_GROUP(X)                                                                                                 \
  KINDS(X, allocation)                                                                                                 \
  KINDS(X, segment)                                                                                                    \
  KINDS(X, active)                                                                                                     \
  KINDS(X, inactive_split)                                                                                             \
  KINDS(X, allocated_bytes)                                                                                            \
  KINDS(X, reserved_bytes)                                                                                             \
  KINDS(X, active_bytes)                                                                                               \
  KINDS(X, inactive_split_bytes)                                                                                       \
  KINDS(X, requested_bytes)

static int64_t value_of(const weir_allocator_stats *stats, const char *name) {
  int64_t value = -77;
  assert_ok(weir_stats_value(stats, name, &value));
  return value;
}

static void check_four(const weir_allocator_stats *stats, const char *group, const weir_stat *stat) {
  static const char *const metrics[] = {"current", "peak", "allocated", "freed"};
  const int64_t values[] = {stat->current, stat->peak, stat->allocated, stat->freed};
  for (int i = 0; i < 4; i++) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", group, metrics[i]);
    assert_int_equal(value_of(stats, name), values[i]);
  }
}

/* Each field has a different value, and each name returns the value of its field. */
TEST(every_name_leads_to_its_field) {
  weir_allocator_stats stats;
  int64_t *words = (int64_t *)&stats;
  for (size_t i = 0; i < sizeof stats / sizeof *words; i++)
    words[i] = 1000 + (int64_t)i;
  stats.size = sizeof stats;
#define X(group, kind, number) check_four(&stats, #group "." #kind, &stats.group[number]);
  EVERY_GROUP(X)
#undef X
  check_four(&stats, "oversize_allocations", &stats.oversize_allocations);
  check_four(&stats, "oversize_segments", &stats.oversize_segments);
  assert_int_equal(value_of(&stats, "num_alloc_retries"), stats.num_alloc_retries);
  assert_int_equal(value_of(&stats, "num_ooms"), stats.num_ooms);
  assert_int_equal(value_of(&stats, "num_oom_rejections"), stats.num_oom_rejections);
  assert_int_equal(value_of(&stats, "max_split_size"), stats.max_split_size);
  assert_int_equal(value_of(&stats, "num_sync_all_streams"), stats.num_sync_all_streams);
  assert_int_equal(value_of(&stats, "num_device_alloc"), stats.num_device_alloc);
  assert_int_equal(value_of(&stats, "num_device_free"), stats.num_device_free);
#define MOVING(name) assert_int_equal(value_of(&stats, "moving." #name), stats.moving_##name)
  MOVING(pages_made);
  MOVING(pages_moved);
  MOVING(moved_bytes);
  MOVING(pages_returned);
  MOVING(aliases);
  MOVING(aliases_peak);
  MOVING(aliases_unmapped);
  MOVING(unmovable_partial_bytes);
  MOVING(unmovable_fixed_bytes);
  MOVING(unmovable_busy_bytes);
  MOVING(unmovable_pool_bytes);
#undef MOVING
}

/* There are as many names as fields; with the test above, none is missing. */
TEST(the_list_of_names) {
  weir_allocator_stats stats = {.size = sizeof stats};
  size_t count = sizeof stats / sizeof(int64_t) - 1;
  assert_null(weir_stats_name(count));
  for (size_t i = 0; i < count; i++) {
    value_of(&stats, weir_stats_name(i));
    if (i)
      assert_true(strcmp(weir_stats_name(i - 1), weir_stats_name(i)) < 0);
  }
  assert_string_equal(weir_stats_name(0), "active.all.allocated");
  assert_string_equal(weir_stats_name(count - 1), "segment.small_pool.peak");
  assert_null(weir_stats_name(count));
}

TEST(unknown_names) {
  static const char *const wrong[] = {"",
                                      ".",
                                      "num_oom",
                                      "num_ooms.",
                                      "num_ooms.current",
                                      "allocated",
                                      "allocated.all.current",
                                      "allocated_bytes",
                                      "allocated_bytes.all",
                                      "allocated_bytes.all.",
                                      "allocated_bytes.all.currents",
                                      "allocated_bytes.all.current.",
                                      "allocated_bytes.all.current.peak",
                                      "allocated_bytes.current",
                                      "allocated_bytes..current",
                                      "oversize_segments.all.current",
                                      "reserved_bytes_by_private_pools.0_1.all.current",
                                      "size"};
  weir_allocator_stats stats = {.size = sizeof stats};
  int64_t value = 5;
  for (size_t i = 0; i < WEIR_COUNT_OF(wrong); i++)
    assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, wrong[i], &value));
  assert_int_equal(value, 5);
  assert_error(INVALID_ARGUMENT, weir_stats_value(NULL, "num_ooms", &value));
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, NULL, &value));
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, "num_ooms", NULL));
}

/* A program compiled against an older struct with fewer counters. */
TEST(a_struct_of_an_older_program) {
  weir_allocator_stats stats = {.size = offsetof(weir_allocator_stats, segment)};
  int64_t value;
  value_of(&stats, "allocation.large_pool.freed");
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, "segment.all.current", &value));
  assert_error(INVALID_ARGUMENT, weir_stats_value(&stats, "num_ooms", &value));
}

/* ---- Allocators ---- */

static int64_t now_of(const char *name) {
  int64_t value = -77;
  assert_ok(weir_allocator_stat(allocator, 0, name, &value));
  return value;
}

TEST_SETUP(of_an_allocator, NULL, alloc_teardown) {
  alloc_open("max_split_size_mb:32", 256 * MIB);
  void *p = get(700, NULL);
  assert_int_equal(now_of("requested_bytes.all.current"), 700);
  assert_int_equal(now_of("allocated_bytes.small_pool.current"), 1024);
  assert_int_equal(now_of("reserved_bytes.all.current"), 2 * MIB);
  assert_int_equal(now_of("max_split_size"), 32 * MIB);
  put(p);
  assert_int_equal(now_of("allocated_bytes.all.current"), 0);
  assert_int_equal(now_of("allocated_bytes.all.peak"), 1024);
  assert_int_equal(now_of("allocated_bytes.all.freed"), 1024);
  assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
  assert_int_equal(now_of("allocated_bytes.all.peak"), 0);
  assert_ok(weir_allocator_reset_accumulated_stats(allocator, 0));
  assert_int_equal(now_of("allocated_bytes.all.freed"), 0);
  int64_t value;
  assert_error(INVALID_ARGUMENT, weir_allocator_stat(allocator, 0, "nothing", &value));
  assert_error(INVALID_DEVICE, weir_allocator_stat(allocator, 1, "num_ooms", &value));
  assert_error(INVALID_ARGUMENT, weir_allocator_stat(NULL, 0, "num_ooms", &value));
  alloc_close();
}

TEST_SETUP(private_pools, NULL, alloc_teardown) {
  static const weir_pool_id pool = {0, 11}, graph_pool = {12, 0};
  alloc_open(NULL, 256 * MIB);
  weir_pool_id ids[2] = {{0, 0}};
  size_t count = 9;
  assert_ok(weir_allocator_pools(allocator, 0, 0, NULL, 0, &count));
  assert_int_equal(count, 0);
  assert_ok(weir_pool_begin(allocator, 0, pool, NULL, NULL));
  void *p = get(512, NULL), *q = get(2 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, pool));
  assert_ok(weir_pool_create(allocator, 0, graph_pool, NULL));
  assert_ok(weir_allocator_pools(allocator, 0, 0, ids, 1, &count));
  assert_int_equal(count, 2);
  assert_int_equal(ids[1].first | ids[1].second, 0); /* there was no room for it */
  assert_int_equal(now_of("reserved_bytes_by_private_pools.0_11.all.current"), 22 * MIB);
  assert_int_equal(now_of("reserved_bytes_by_private_pools.0_11.small_pool.peak"), 2 * MIB);
  assert_int_equal(now_of("reserved_bytes_by_private_pools.12_0.large_pool.allocated"), 0);
  static const char *const wrong[] = {"reserved_bytes_by_private_pools",
                                      "reserved_bytes_by_private_pools.0_11",
                                      "reserved_bytes_by_private_pools.0_11.",
                                      "reserved_bytes_by_private_pools.0_11.all",
                                      "reserved_bytes_by_private_pools. 0_11.all.current",
                                      "reserved_bytes_by_private_pools.00_11.all.current",
                                      "reserved_bytes_by_private_pools.0_+11.all.current",
                                      "reserved_bytes_by_private_pools.0_12.all.current"};
  int64_t value;
  for (size_t i = 0; i < WEIR_COUNT_OF(wrong); i++)
    assert_error(INVALID_ARGUMENT, weir_allocator_stat(allocator, 0, wrong[i], &value));
  assert_error(INVALID_ARGUMENT, weir_allocator_pools(allocator, 0, 0, NULL, 1, &count));
  put(p);
  put(q);
  assert_ok(weir_pool_release(allocator, 0, pool));
  assert_ok(weir_pool_release(allocator, 0, graph_pool));
  alloc_close();
}

/* ---- JSON ---- */

static char *json_of(weir_stats_form form) {
  char *text = NULL;
  size_t size;
  FILE *file = open_memstream(&text, &size);
  assert_non_null(file);
  assert_ok(weir_allocator_write_stats(allocator, 0, form, weir_write_file, file));
  fclose(file);
  return text;
}

/* The paths of the nested form are the names of the flat one. Skipped without Python. */
static void check_same(const char *nested, const char *flat) {
  if (system("command -v python3 >/dev/null") != 0) /* NOLINT(cert-env33-c) */
    return;
  /* NOLINTNEXTLINE(cert-env33-c) */
  FILE *check = popen("python3 -c '\n"
                      "import json, sys\n"
                      "nested, flat = [json.loads(line) for line in sys.stdin]\n"
                      "def paths(value, path):\n"
                      "    if isinstance(value, dict):\n"
                      "        for key, v in value.items():\n"
                      "            yield from paths(v, path + [key])\n"
                      "    else:\n"
                      "        yield \".\".join(path), value\n"
                      "assert dict(paths(nested, [])) == flat\n'",
                      "w");
  assert_non_null(check);
  fputs(nested, check);
  fputs(flat, check);
  assert_int_equal(pclose(check), 0);
}

TEST_SETUP(as_json, NULL, alloc_teardown) {
  alloc_open(NULL, 256 * MIB);
  assert_ok(weir_pool_begin(allocator, 0, (weir_pool_id){0, 1}, NULL, NULL));
  void *p = get(512, NULL);
  assert_ok(weir_pool_end(allocator, 0, (weir_pool_id){0, 1}));
  char *nested = json_of(WEIR_STATS_NESTED), *flat = json_of(WEIR_STATS_FLAT);
  assert_non_null(strstr(nested, "\"active_bytes\": {\"all\": {\"current\": 512, \"peak\": 512, \"allocated\": 512, "
                                 "\"freed\": 0}, \"small_pool\": "));
  assert_non_null(strstr(nested, "\"reserved_bytes_by_private_pools\": {\"0_1\": {\"all\": {\"current\": 2097152,"));
  assert_non_null(strstr(flat, "\"reserved_bytes_by_private_pools.0_1.all.current\": 2097152"));
  for (size_t i = 0; weir_stats_name(i); i++) {
    char expected[128];
    snprintf(expected, sizeof expected, "\"%s\": %lld", weir_stats_name(i), (long long)now_of(weir_stats_name(i)));
    if (!strstr(flat, expected))
      fail_msg("%s is not in %s", expected, flat);
  }
  check_same(nested, flat);
  free(nested);
  free(flat);
  assert_error(INVALID_ARGUMENT, weir_allocator_write_stats(allocator, 0, WEIR_STATS_FLAT, NULL, stdout));
  assert_error(INVALID_ARGUMENT, weir_allocator_write_stats(NULL, 0, WEIR_STATS_FLAT, weir_write_file, stdout));
  assert_error(INVALID_ARGUMENT, weir_allocator_write_stats(allocator, 0, (weir_stats_form)7, weir_write_file, stdout));
  assert_error(INVALID_DEVICE, weir_allocator_write_stats(allocator, 3, WEIR_STATS_FLAT, weir_write_file, stdout));
  put(p);
  assert_ok(weir_pool_release(allocator, 0, (weir_pool_id){0, 1}));
  alloc_close();
}
