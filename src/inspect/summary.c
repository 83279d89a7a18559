/*
 * Summaries for people: the table, the log line, the list of processes.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "alloc/cache/heap.h"
#include "driver/nvml.h"
#include "inspect/stat_names.h"

/* A buffer that may be too small; the length is counted in full, as snprintf does. */
typedef struct output {
  char *text;
  size_t size, length;
} output;

static void print(output *out, const char *format, ...) WEIR_PRINTF(2, 3);
static void print(output *out, const char *format, ...) {
  size_t room = out->length < out->size ? out->size - out->length : 0;
  char *to = room ? out->text + out->length : NULL;
  va_list args;
  va_start(args, format);
  int length = vsnprintf(to, room, format, args); /* NOLINT(clang-analyzer-valist.Uninitialized): started above */
  va_end(args);
  out->length += length > 0 ? (size_t)length : 0;
}

/* ---- The table ---- */

enum { WIDTH = 75 };

static void rule(output *out, char c) {
  char line[WIDTH + 1];
  memset(line, c, WIDTH);
  line[WIDTH] = 0;
  print(out, "|%s|\n", line);
}

/* Division that rounds down, as in Python, in case a counter is negative. */
static int64_t floor_divide(int64_t value, int64_t by) { return value / by - (value % by < 0); }

/* The unit fits the value in the first line of the metric, so that its lines can be compared. */
static void print_size(output *out, int64_t bytes, int64_t measure) {
  static const char *const units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  double of = (double)measure;
  while (unit + 1 < WEIR_COUNT_OF(units) && of >= 768 * 1024) {
    unit++;
    bytes = floor_divide(bytes, 1024);
    of /= 1024;
  }
  print(out, "%6lld %s", (long long)bytes, units[unit]);
}

static void print_count(output *out, int64_t count, int64_t measure) {
  static const char units[] = " KM";
  size_t unit = 0;
  double of = (double)measure;
  while (unit + 1 < sizeof units - 1 && of >= 750 * 1000) {
    unit++;
    count = floor_divide(count, 1000);
    of /= 1000;
  }
  print(out, "%7lld %c ", (long long)count, units[unit]);
}

typedef struct metric {
  const char *group; /* of counters */
  const char *title;
  void (*print)(output *out, int64_t value, int64_t measure);
} metric;

static const metric metrics[] = {{"allocated_bytes", "Allocated memory", print_size},
                                 {"active_bytes", "Active memory", print_size},
                                 {"requested_bytes", "Requested memory", print_size},
                                 {"reserved_bytes", "GPU reserved memory", print_size},
                                 {"inactive_split_bytes", "Non-releasable memory", print_size},
                                 {"allocation", "Allocations", print_count},
                                 {"active", "Active allocs", print_count},
                                 {"segment", "GPU reserved segments", print_count},
                                 {"inactive_split", "Non-releasable allocs", print_count},
                                 {"oversize_allocations", "Oversize allocations", print_count},
                                 {"oversize_segments", "Oversize GPU segments", print_count}};

static const weir__stat_group *group_of(const metric *m) {
  const weir__stat_group *group = weir__stat_groups;
  while (strcmp(group->name, m->group))
    group++;
  return group;
}

static void print_row(output *out, const metric *m, const char *title, const weir_stat *row, const weir_stat *measure) {
  print(out, "| %-21s | ", title);
  m->print(out, row->current, measure->current);
  print(out, " | ");
  m->print(out, row->peak, measure->peak);
  print(out, " | ");
  m->print(out, row->allocated, measure->allocated);
  print(out, " | ");
  m->print(out, row->freed, measure->freed);
  print(out, " |\n");
}

static void print_metric(output *out, const metric *m, const weir_allocator_stats *stats, bool abbreviated) {
  const weir__stat_group *group = group_of(m);
  const weir_stat *all = weir__stat_at(stats, group, WEIR_STAT_ALL);
  rule(out, '-');
  print_row(out, m, m->title, all, all);
  if (abbreviated || group->kinds == 1)
    return;
  print_row(out, m, "      from large pool", weir__stat_at(stats, group, WEIR_STAT_LARGE_POOL), all);
  print_row(out, m, "      from small pool", weir__stat_at(stats, group, WEIR_STAT_SMALL_POOL), all);
}

/* Present only if pages have moved, so that the table of a program without moving pages is PyTorch's. */
static void print_moving(output *out, const weir_allocator_stats *stats) {
  char line[192], bytes[32];
  if (!stats->moving_pages_moved && !stats->moving_pages_returned)
    return;
  snprintf(line, sizeof line, "Pages: %lld made, %lld moved (%s), %lld returned", (long long)stats->moving_pages_made,
           (long long)stats->moving_pages_moved,
           weir__format_bytes_as_pytorch((unsigned long long)stats->moving_moved_bytes, bytes),
           (long long)stats->moving_pages_returned);
  print(out, "| %-*.*s |\n", WIDTH - 2, WIDTH - 2, line);
  snprintf(line, sizeof line, "Old mappings: %lld kept (at most %lld), %lld unmapped", (long long)stats->moving_aliases,
           (long long)stats->moving_aliases_peak, (long long)stats->moving_aliases_unmapped);
  print(out, "| %-*.*s |\n", WIDTH - 2, WIDTH - 2, line);
  rule(out, '=');
}

/* Present only if other processes have memory of this one. */
static void print_ipc(output *out, const weir_allocator_stats *stats) {
  char line[192], bytes[32];
  if (!stats->ipc_references)
    return;
  snprintf(line, sizeof line, "Sent to other processes: %lld references, %lld blocks (%s) in limbo",
           (long long)stats->ipc_references, (long long)stats->ipc_limbo_blocks,
           weir__format_bytes_as_pytorch((unsigned long long)stats->ipc_limbo_bytes, bytes));
  print(out, "| %-*.*s |\n", WIDTH - 2, WIDTH - 2, line);
  rule(out, '=');
}

static void print_table(output *out, const weir_allocator_stats *stats, int device, bool abbreviated) {
  rule(out, '=');
  print(out, "| %16s Weir CUDA memory summary, device ID %-20d |\n", "", device);
  rule(out, '-');
  print(out, "|  %9s CUDA OOMs: %-12lld | %6s cudaMalloc retries: %-8lld  |\n", "", (long long)stats->num_ooms, "",
        (long long)stats->num_alloc_retries);
  rule(out, '=');
  print(out, "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n");
  for (size_t i = 0; i < WEIR_COUNT_OF(metrics); i++)
    print_metric(out, &metrics[i], stats, abbreviated);
  rule(out, '=');
  print_moving(out, stats);
  print_ipc(out, stats);
}

static void print_owner(void *context, const weir_outside_memory *memory) {
  output *out = context;
  char line[192], bytes[32];
  snprintf(line, sizeof line, "%.87s: %s%s", memory->owner,
           weir__format_bytes_as_pytorch((unsigned long long)memory->bytes, bytes),
           memory->is_exact ? "" : " (estimated)");
  print(out, "| %-*.*s |\n", WIDTH - 2, WIDTH - 2, line);
}

/* Present only if there is any, for the same reason. */
static void print_outside(output *out, int device) {
  size_t before = out->length;
  weir_outside_memory_visit(device, print_owner, out);
  if (out->length > before)
    rule(out, '=');
}

/* ---- The line ---- */

static void print_line(output *out, const weir_allocator_stats *stats, int device) {
  char text[4][32];
  const weir_stat *allocated = &stats->allocated_bytes[WEIR_STAT_ALL], *held = &stats->reserved_bytes[WEIR_STAT_ALL];
  const weir_stat *active = &stats->active_bytes[WEIR_STAT_ALL];
  int64_t idle = held->current - active->current;
  print(out, "device %d: allocated %s (peak %s), reserved %s (peak %s), ", device,
        weir__format_bytes_as_pytorch((unsigned long long)allocated->current, text[0]),
        weir__format_bytes_as_pytorch((unsigned long long)allocated->peak, text[1]),
        weir__format_bytes_as_pytorch((unsigned long long)held->current, text[2]),
        weir__format_bytes_as_pytorch((unsigned long long)held->peak, text[3]));
  print(out, "idle %.1f%%, %lld retries, %lld OOMs", held->current ? 100.0 * (double)idle / (double)held->current : 0.0,
        (long long)stats->num_alloc_retries, (long long)stats->num_ooms);
}

/* ---- The calls ---- */

static weir_status check_call(const char *caller, weir_summary_form form, const char *text, size_t size) {
  if (size && !text)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the text is NULL", caller);
  if (form == WEIR_SUMMARY_FULL || form == WEIR_SUMMARY_ABBREVIATED || form == WEIR_SUMMARY_LINE)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: form %d: expected WEIR_SUMMARY_FULL, _ABBREVIATED or _LINE",
                    caller, (int)form);
}

static void print_stats(output *out, const weir_allocator_stats *stats, int device, weir_summary_form form) {
  if (form == WEIR_SUMMARY_LINE)
    print_line(out, stats, device);
  else
    print_table(out, stats, device, form == WEIR_SUMMARY_ABBREVIATED);
}

weir_status weir_stats_summary(const weir_allocator_stats *given, int device, weir_summary_form form, char *text,
                               size_t size, size_t *length) {
  weir_allocator_stats stats = {.size = sizeof stats};
  output out = {.text = text, .size = size};
  WEIR__CHECK_ARGUMENT(given);
  weir_status status = check_call(__func__, form, text, size);
  if (status)
    return status;
  weir__copy_sized(&stats, sizeof stats, given, given->size); /* fields that the caller does not know are 0 */
  print_stats(&out, &stats, device, form);
  if (length)
    *length = out.length;
  return WEIR_OK;
}

weir_status weir_allocator_summary(weir_allocator *allocator, int device, weir_summary_form form, char *text,
                                   size_t size, size_t *length) {
  weir_allocator_stats stats = {.size = sizeof stats};
  output out = {.text = text, .size = size};
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_status status = check_call(__func__, form, text, size);
  if (status)
    return status;
  if (!weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  status = weir_allocator_get_stats(allocator, device, &stats);
  if (status)
    return status;
  print_stats(&out, &stats, device, form);
  if (form != WEIR_SUMMARY_LINE)
    print_outside(&out, device);
  if (length)
    *length = out.length;
  return WEIR_OK;
}

/* ---- Processes ---- */

weir_status weir_allocator_processes(weir_allocator *allocator, int device, char *text, size_t size, size_t *length) {
  enum { most = 1024 };
  static const double mib = 1024.0 * 1024.0;
  weir__nvml_process processes[most];
  unsigned count = most;
  output out = {.text = text, .size = size};
  WEIR__CHECK_ALLOCATOR(allocator);
  if (size && !text)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the text is NULL", __func__);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  const char *why = weir__nvml_list_processes(allocator->driver, heap->device, processes, &count);
  if (why)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: cannot list the processes of device %d: %s", __func__, device,
                      why);
  print(&out, "GPU:%d", device);
  if (!count)
    print(&out, "\nno processes are running");
  for (unsigned i = 0; i < count && i < most; i++)
    if (processes[i].bytes == ~0ull) /* not available, as in a virtual machine */
      print(&out, "\nprocess %10u uses %12s MB GPU memory", processes[i].pid, "unknown");
    else
      print(&out, "\nprocess %10u uses %12.3f MB GPU memory", processes[i].pid, (double)processes[i].bytes / mib);
  if (length)
    *length = out.length;
  return WEIR_OK;
}
