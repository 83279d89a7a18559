/*
 * Summaries: the table equals that of torch.cuda.memory_summary(), character by character.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/stat_names.h"
#include "support/alloc.h"
#include "weir/snapshot.h"

/* In the order of the table. */
static weir_stat *metric_of(weir_allocator_stats *s, int metric, int kind) {
  weir_stat *const groups[] = {
      s->allocated_bytes,   s->active_bytes, s->requested_bytes, s->reserved_bytes, s->inactive_split_bytes,
      s->allocation,        s->active,       s->segment,         s->inactive_split, &s->oversize_allocations,
      &s->oversize_segments};
  assert_true(metric >= 0 && metric < (int)(sizeof groups / sizeof *groups));
  bool has_kinds = groups[metric] != &s->oversize_allocations && groups[metric] != &s->oversize_segments;
  return groups[metric] + (has_kinds ? kind : 0);
}

/* These two are in tests/data/make_summaries.py as well. */
static int64_t grown(int metric, int kind, int column) {
  int64_t value = kind == WEIR_STAT_ALL ? 7 : kind == WEIR_STAT_SMALL_POOL ? 2 : 5;
  for (int i = 0; i < 2 * metric + column + 1; i++)
    value *= 3;
  return value;
}

static int64_t edge(int metric, int kind, int column) {
  int64_t value = metric < 5 ? 768 * 1024 : 750 * 1000;
  for (int i = 0; i < metric % 4; i++)
    value *= metric < 5 ? 1024 : 1000;
  return value - (kind + column + metric) % 2;
}

static weir_allocator_stats stats_by(int64_t (*value)(int metric, int kind, int column)) {
  weir_allocator_stats stats = {.size = sizeof stats};
  for (int metric = 0; metric < 11; metric++)
    for (int kind = 0; kind < (metric < 9 ? WEIR_STAT_KINDS : 1); kind++)
      *metric_of(&stats, metric, kind) =
          (weir_stat){value(metric, kind, 0), value(metric, kind, 1), value(metric, kind, 2), value(metric, kind, 3)};
  return stats;
}

static void check_text(const weir_allocator_stats *stats, int device, weir_summary_form form, const char *name) {
  char path[512], *expected = calloc(1, 65536), *found = calloc(1, 65536);
  assert_non_null(expected);
  assert_non_null(found);
  snprintf(path, sizeof path, "%s/%s", WEIR_TEST_DATA, name);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  size_t length = fread(expected, 1, 65535, file);
  fclose(file);
  assert_int_equal(length_of_summary(stats, device, form, found, 65536), length);
  assert_string_equal(found, expected);
  assert_int_equal(length_of_summary(stats, device, form, NULL, 0), length);

  memset(found, 'x', 65536); /* a truncated text ends in NUL, and nothing is written after it */
  assert_int_equal(length_of_summary(stats, device, form, found, 100), length);
  assert_memory_equal(found, expected, 99);
  assert_int_equal(found[99], 0);
  assert_int_equal(found[100], 'x');
  free(expected);
  free(found);
}

TEST(the_table) {
  weir_allocator_stats stats = stats_by(grown);
  stats.num_ooms = 2;
  stats.num_alloc_retries = 12345678;
  check_text(&stats, 3, WEIR_SUMMARY_FULL, "summary_full.txt");
  check_text(&stats, 3, WEIR_SUMMARY_ABBREVIATED, "summary_abbreviated.txt");
}

TEST(where_units_change) {
  weir_allocator_stats stats = stats_by(edge);
  check_text(&stats, 0, WEIR_SUMMARY_FULL, "summary_edges.txt");
}

TEST(zero) {
  weir_allocator_stats stats = {.size = sizeof stats};
  check_text(&stats, 15, WEIR_SUMMARY_FULL, "summary_zero.txt");
  stats = (weir_allocator_stats){.size = sizeof stats.size, .num_ooms = 9}; /* a caller whose struct has no counters */
  check_text(&stats, 15, WEIR_SUMMARY_FULL, "summary_zero.txt");
}

/* Lines about pages follow the table once pages have moved. */
TEST(moved_pages) {
  static const char expected[] = "| Pages: 64 made, 32 moved (320.00 MiB), 5 returned                         |\n"
                                 "| Old mappings: 30 kept (at most 32), 2 unmapped                            |\n"
                                 "|===========================================================================|\n";
  char without[8192], with[8192];
  weir_allocator_stats stats = stats_by(grown);
  stats.moving_pages_made = 64;
  size_t length = length_of_summary(&stats, 0, WEIR_SUMMARY_FULL, without, sizeof without);
  stats.moving_pages_moved = 32;
  stats.moving_moved_bytes = 320 * MIB;
  stats.moving_pages_returned = 5;
  stats.moving_aliases = 30;
  stats.moving_aliases_peak = 32;
  stats.moving_aliases_unmapped = 2;
  length_of_summary(&stats, 0, WEIR_SUMMARY_FULL, with, sizeof with);
  assert_memory_equal(with, without, length);
  assert_string_equal(with + length, expected);
  stats.moving_pages_moved = stats.moving_moved_bytes = INT64_MAX; /* too long for a line: the frame stays straight */
  stats.moving_pages_made = stats.moving_pages_returned = INT64_MAX;
  length_of_summary(&stats, 0, WEIR_SUMMARY_FULL, with, sizeof with);
  assert_int_equal(strcspn(with + length, "\n"), strcspn(with, "\n"));
}

TEST(the_line) {
  char text[256];
  weir_allocator_stats stats = {.size = sizeof stats, .num_alloc_retries = 3, .num_ooms = 1};
  length_of_summary(&stats, 0, WEIR_SUMMARY_LINE, text, sizeof text);
  assert_string_equal(text, "device 0: allocated 0 bytes (peak 0 bytes), reserved 0 bytes (peak 0 bytes), idle 0.0%, 3 "
                            "retries, 1 OOMs");
  stats.allocated_bytes[WEIR_STAT_ALL] = (weir_stat){.current = 3 * GIB, .peak = 4 * GIB};
  stats.active_bytes[WEIR_STAT_ALL] = (weir_stat){.current = 3 * GIB + 512 * MIB, .peak = 4 * GIB};
  stats.reserved_bytes[WEIR_STAT_ALL] = (weir_stat){.current = 7 * GIB, .peak = 8 * GIB};
  size_t length = length_of_summary(&stats, 1, WEIR_SUMMARY_LINE, text, sizeof text);
  assert_string_equal(text, "device 1: allocated 3.00 GiB (peak 4.00 GiB), reserved 7.00 GiB (peak 8.00 GiB), idle "
                            "50.0%, 3 retries, 1 OOMs");
  assert_int_equal(length, strlen(text));
}

TEST_SETUP(of_an_allocator, NULL, alloc_teardown) {
  alloc_open(NULL, 64 * MIB);
  char text[8192];
  size_t length = 0;
  void *p = get(3 * MIB, NULL);
  assert_ok(weir_allocator_summary(allocator, 0, WEIR_SUMMARY_FULL, text, sizeof text, &length));
  assert_int_equal(length, strlen(text));
  assert_non_null(strstr(text, "| Allocated memory      |   3072 KiB |   3072 KiB |   3072 KiB |      0 B   |\n"));
  assert_non_null(strstr(text, "| GPU reserved segments |       1    |       1    |       1    |       0    |\n"));
  put(p);
  assert_ok(weir_allocator_summary(allocator, 0, WEIR_SUMMARY_LINE, text, sizeof text, NULL));
  assert_string_equal(text, "device 0: allocated 0 bytes (peak 3.00 MiB), reserved 20.00 MiB (peak 20.00 MiB), idle "
                            "100.0%, 0 retries, 0 OOMs");
  assert_error(INVALID_DEVICE, weir_allocator_summary(allocator, 1, WEIR_SUMMARY_LINE, text, sizeof text, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_summary(NULL, 0, WEIR_SUMMARY_LINE, text, sizeof text, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_summary(allocator, 0, WEIR_SUMMARY_LINE, NULL, 1, NULL));
  alloc_close();
}

/* ---- Processes ---- */

static void ask(const char *mode, const char *expected) {
  char text[512] = "";
  size_t length = 0;
  setenv("WEIR_FAKE_NVML", mode, 1);
  assert_ok(weir_allocator_processes(allocator, 0, text, sizeof text, &length));
  assert_string_equal(text, expected);
  assert_int_equal(length, strlen(expected));
}

TEST_SETUP(processes, NULL, alloc_teardown) {
  char text[64];
  alloc_open(NULL, 64 * MIB);
  assert_error_says(NOT_SUPPORTED, "not an NVIDIA device",
                    weir_allocator_processes(allocator, 0, text, sizeof text, NULL));
  faults->capabilities |= WEIR_DRIVER_NVIDIA;
  setenv("WEIR_NVML_LIBRARY", "/nonexistent/libnvml.so", 1);
  assert_error_says(NOT_SUPPORTED, "cannot be loaded", weir_allocator_processes(allocator, 0, text, sizeof text, NULL));
  setenv("WEIR_NVML_LIBRARY", WEIR_TEST_NVML, 1);
  ask("none", "GPU:0\nno processes are running");
  ask("two", "GPU:0\nprocess       4711 uses     1536.000 MB GPU memory\nprocess 1234567890 uses      unknown MB GPU "
             "memory");
  assert_ok(weir_allocator_processes(allocator, 0, text, 10, NULL));
  assert_string_equal(text, "GPU:0\npro");
  setenv("WEIR_FAKE_NVML", "broken", 1);
  assert_error_says(NOT_SUPPORTED, "does not report", weir_allocator_processes(allocator, 0, text, sizeof text, NULL));
  assert_error(INVALID_DEVICE, weir_allocator_processes(allocator, 9, text, sizeof text, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_processes(NULL, 0, text, sizeof text, NULL));
  unsetenv("WEIR_NVML_LIBRARY");
  faults->capabilities &= ~(uint64_t)WEIR_DRIVER_NVIDIA;
  alloc_close();
}

/* The text of out of memory names this process, wherever it is in the list. */
TEST_SETUP(processes_when_memory_is_out, NULL, alloc_teardown) {
  static const char *const modes[] = {"none", "many", "container"};
  static const char *const expected[] = {
      "is free. Of the allocated",
      "is free. Including non-Weir memory, this process has 1024.00 MiB memory in use. Process 2000000019 has 20.00 "
      "GiB "
      "memory in use. Process 2000000018 has 19.00 GiB",
      "is free. This process, perhaps under another number, has 20.00 MiB at least. Process 2000000019 has 20.00 GiB"};
  static const char *const rest[] = {"",
                                     "Process 2000000013 has 14.00 GiB memory in use. 12 other processes have 80.00 "
                                     "GiB. Of the allocated",
                                     "12 other processes have 78.00 GiB. Of the allocated"};
  alloc_open(NULL, 64 * MIB);
  void *a = get(5 * MIB, NULL), *b = NULL;
  faults->capabilities |= WEIR_DRIVER_NVIDIA;
  setenv("WEIR_NVML_LIBRARY", WEIR_TEST_NVML, 1);
  for (size_t i = 0; i < WEIR_COUNT_OF(modes); i++) {
    setenv("WEIR_FAKE_NVML", modes[i], 1);
    assert_int_equal(try_get(GIB, NULL, &b), WEIR_ERROR_OUT_OF_MEMORY);
    if (!strstr(weir_last_error(), expected[i]) || !strstr(weir_last_error(), rest[i]))
      fail_msg("%s", weir_last_error());
  }
  unsetenv("WEIR_NVML_LIBRARY");
  faults->capabilities &= ~(uint64_t)WEIR_DRIVER_NVIDIA;
  put(a);
  alloc_close();
}
