/*
 * weir metrics: what running processes hold, for Prometheus.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/outfile.h"
#include "cli.h"
#include "live.h"
#include "view_serve.h"
#include "weir/runtime.h"

enum { DEFAULT_PORT = 9471, MAX_SHOWN = 256, DEFAULT_INTERVAL = 15 };

static bool once;
static const char *socket_path, *textfile;
static int port = DEFAULT_PORT, interval = DEFAULT_INTERVAL;

/* ---- The text ---- */

/* One format is a subset of the other but for the names of counters and the end. */
typedef struct page {
  FILE *out;
  bool is_openmetrics;
  const weir_cli_live *live;
  size_t shown; /* processes */
} page;

/* In quotes, a backslash, a quote and the end of a line are escaped; control characters have been before. */
static void put_label(FILE *out, const char *name, const char *value, bool is_first) {
  fprintf(out, "%s%s=\"", is_first ? "" : ",", name);
  for (const char *c = weir_cli_escaped(value); *c; c++)
    if (*c == '\\' || *c == '"')
      fprintf(out, "\\%c", *c);
    else
      putc(*c, out);
  putc('"', out);
}

/* Begins a family. `name` has no "_total"; `unit` is that at its end, or "". */
static void family(const page *p, const char *name, const char *unit, bool is_counter, const char *help) {
  const char *total = is_counter && !p->is_openmetrics ? "_total" : "";
  fprintf(p->out, "# HELP %s%s %s.\n# TYPE %s%s %s\n", name, total, help, name, total,
          is_counter ? "counter" : "gauge");
  if (p->is_openmetrics && *unit)
    fprintf(p->out, "# UNIT %s %s\n", name, unit);
}

static void begin_sample(const page *p, const char *name, bool is_counter) {
  fprintf(p->out, "%s%s{", name, is_counter ? "_total" : "");
}

static void put_process(const page *p, const weir_cli_process *process) {
  char pid[32];
  snprintf(pid, sizeof pid, "%lld", (long long)process->view.pid);
  put_label(p->out, "pid", pid, true);
}

static void put_device(const page *p, const weir_cli_process *process, uint32_t device) {
  char number[16];
  put_process(p, process);
  snprintf(number, sizeof number, "%u", device);
  put_label(p->out, "device", number, false);
}

static void end_natural(const page *p, uint64_t value) { fprintf(p->out, "} %llu\n", (unsigned long long)value); }
static void end_real(const page *p, double value) { fprintf(p->out, "} %.6g\n", value); }

/* ---- Accounts ---- */

typedef struct count_info {
  const char *name, *unit, *help;
  bool is_counter;
} count_info;

static const count_info counts[] = {
#define X(id, name, is_total, unit, help) {#name, unit, help, is_total},
    WEIR__PAGE_COUNTS(X)
#undef X
};

/* The sum over the allocators of a process; for limits, the lowest. False if none of them knows it. */
static bool sum_of(const weir_cli_process *process, uint32_t device, weir__page_count count, uint64_t *value) {
  bool is_limit = count == WEIR__PAGE_SOFT_LIMIT || count == WEIR__PAGE_HARD_LIMIT, is_known = false;
  *value = is_limit ? UINT64_MAX : 0;
  for (uint32_t i = 0; i < process->view.copy.row_count; i++) {
    const weir__page_row *row = &process->view.rows[i];
    if (row->kind != WEIR__PAGE_DEVICE || row->device != device || !weir_cli_knows(row, count))
      continue;
    is_known = true;
    if (!is_limit)
      *value += row->count[count];
    else if (row->count[count] < *value)
      *value = row->count[count];
  }
  return is_known;
}

static bool is_used(const weir_cli_process *process, uint32_t device) {
  for (uint32_t i = 0; i < process->view.copy.row_count; i++)
    if (process->view.rows[i].device == device)
      return true;
  return false;
}

static void put_device_count(const page *p, weir__page_count count) {
  const count_info *of = &counts[count];
  char name[96];
  snprintf(name, sizeof name, "weir_%s%s%s", of->name, *of->unit ? "_" : "", of->unit);
  family(p, name, of->unit, of->is_counter, of->help);
  for (size_t i = 0; i < p->shown; i++) {
    const weir_cli_process *process = &p->live->processes[i];
    for (uint32_t d = 0; d < process->view.copy.device_count; d++) {
      uint64_t value;
      if (!sum_of(process, d, count, &value))
        continue;
      begin_sample(p, name, of->is_counter);
      put_device(p, process, d);
      end_natural(p, value);
    }
  }
}

/* What the pools of a process add up to: by tag, the default pool, and all others. So there are as many series as tags,
 * however many pools a program makes. */
static bool same_series(const weir__page_row *a, const weir__page_row *b) {
  bool a_default = !a->pool[0] && !a->pool[1] && a->kind == WEIR__PAGE_POOL;
  bool b_default = !b->pool[0] && !b->pool[1] && b->kind == WEIR__PAGE_POOL;
  return a->device == b->device && a_default == b_default && strcmp(a->tag, b->tag) == 0;
}

static void put_pools(const page *p, const char *name, const weir_cli_process *process, weir__page_count count) {
  const weir__page_row *rows = process->view.rows;
  uint32_t number = process->view.copy.row_count;
  for (uint32_t i = 0; i < number; i++) {
    bool is_limit = count == WEIR__PAGE_SOFT_LIMIT || count == WEIR__PAGE_HARD_LIMIT; /* the lowest, and no sum */
    uint64_t sum = is_limit ? UINT64_MAX : 0;
    bool is_first = rows[i].kind != WEIR__PAGE_DEVICE, is_known = false;
    for (uint32_t k = 0; is_first && k < number; k++) {
      if (rows[k].kind == WEIR__PAGE_DEVICE || !same_series(&rows[k], &rows[i]))
        continue;
      is_first = k >= i;
      if (!weir_cli_knows(&rows[k], count))
        continue;
      is_known = true;
      if (!is_limit)
        sum += rows[k].count[count];
      else if (rows[k].count[count] < sum)
        sum = rows[k].count[count];
    }
    if (!is_first || !is_known)
      continue;
    bool is_default = rows[i].kind == WEIR__PAGE_POOL && !rows[i].pool[0] && !rows[i].pool[1];
    begin_sample(p, name, false);
    put_device(p, process, rows[i].device);
    put_label(p->out, "pool", is_default ? "default" : "private", false);
    put_label(p->out, "tag", rows[i].tag, false);
    end_natural(p, sum);
  }
}

static void put_pool_count(const page *p, weir__page_count count) {
  const count_info *of = &counts[count];
  char name[96], help[160];
  snprintf(name, sizeof name, "weir_pool_%s%s%s", of->name, *of->unit ? "_" : "", of->unit);
  snprintf(help, sizeof help, "%s, by pool and tag", of->help);
  family(p, name, of->unit, false, help);
  for (size_t i = 0; i < p->shown; i++)
    put_pools(p, name, &p->live->processes[i], count);
}

/* ---- What is computed ---- */

typedef bool (*value_fn)(const page *p, const weir_cli_process *process, uint32_t device, double *value);

static bool fragmentation_of(const page *p, const weir_cli_process *process, uint32_t device, double *value) {
  uint64_t used, peak;
  (void)p;
  bool is_known = sum_of(process, device, WEIR__PAGE_PEAK_ALLOCATED, &used) &&
                  sum_of(process, device, WEIR__PAGE_PEAK_RESERVED, &peak) && peak;
  if (is_known)
    *value = used < peak ? 1 - (double)used / (double)peak : 0;
  return is_known;
}

static bool growth_of(const page *p, const weir_cli_process *process, uint32_t device, double *value) {
  weir_cli_trend trend = weir_cli_trend_of(p->live, process, device);
  *value = trend.bytes_per_second;
  return trend.is_known;
}

static bool time_left_of(const page *p, const weir_cli_process *process, uint32_t device, double *value) {
  weir_cli_trend trend = weir_cli_trend_of(p->live, process, device);
  *value = trend.fails_in_s;
  return trend.is_known && trend.grows;
}

static void put_computed(const page *p, const char *name, const char *unit, const char *help, value_fn compute) {
  family(p, name, unit, false, help);
  for (size_t i = 0; i < p->shown; i++) {
    const weir_cli_process *process = &p->live->processes[i];
    for (uint32_t d = 0; d < process->view.copy.device_count; d++) {
      double value;
      if (!is_used(process, d) || !compute(p, process, d, &value) || !isfinite(value))
        continue;
      begin_sample(p, name, false);
      put_device(p, process, d);
      end_real(p, value);
    }
  }
}

static void put_processes(const page *p) {
  family(p, "weir_process_info", "", false, "A process with Weir that says what it holds");
  for (size_t i = 0; i < p->shown; i++) {
    const weir_cli_process *process = &p->live->processes[i];
    char rank[32] = "";
    if (process->view.rank >= 0)
      snprintf(rank, sizeof rank, "%lld", (long long)process->view.rank);
    begin_sample(p, "weir_process_info", false);
    put_process(p, process);
    put_label(p->out, "command", process->command, false);
    put_label(p->out, "rank", rank, false);
    end_natural(p, 1);
  }
  family(p, "weir_device_info", "", false, "A device that such a process uses");
  for (size_t i = 0; i < p->shown; i++) {
    const weir_cli_process *process = &p->live->processes[i];
    for (uint32_t d = 0; d < process->view.copy.device_count; d++)
      if (is_used(process, d)) {
        begin_sample(p, "weir_device_info", false);
        put_device(p, process, d);
        put_label(p->out, "uuid", process->view.devices[d].uuid, false);
        put_label(p->out, "name", process->view.devices[d].name, false);
        end_natural(p, 1);
      }
  }
  family(p, "weir_page_age_seconds", "seconds", false, "How old the figures of a process are");
  for (size_t i = 0; i < p->shown; i++) {
    begin_sample(p, "weir_page_age_seconds", false);
    put_process(p, &p->live->processes[i]);
    end_real(p, (double)p->live->processes[i].age_ms / 1000);
  }
}

static void put_cards(const page *p) {
  static const struct {
    const char *name, *help;
    bool is_used;
  } of[] = {{"weir_card_total_bytes", "The memory of a card", false},
            {"weir_card_used_bytes", "What of it is used, by NVIDIA's library", true}};
  for (int k = 0; k < 2; k++) {
    family(p, of[k].name, "bytes", false, of[k].help);
    for (size_t i = 0; i < p->live->card_count; i++) {
      const weir_cli_card *card = &p->live->cards[i];
      if (card->pid || (of[k].is_used && !card->knows_used)) /* a software device is its process's */
        continue;
      begin_sample(p, of[k].name, false);
      put_label(p->out, "uuid", card->uuid, true);
      end_natural(p, of[k].is_used ? card->used : card->total);
    }
  }
  family(p, "weir_card_unexplained_bytes", "bytes", false, "What is used of a card and has no row in its ledger");
  for (size_t i = 0; i < p->live->card_count; i++) {
    const weir_cli_card *card = &p->live->cards[i];
    if (!card->knows_used || !card->row_count)
      continue;
    begin_sample(p, "weir_card_unexplained_bytes", false);
    put_label(p->out, "uuid", card->uuid, true);
    end_natural(p, card->rows[card->row_count - 1].bytes);
  }
}

static void put_self(const page *p) {
  family(p, "weir_build_info", "", false, "The version of the program that makes these figures");
  begin_sample(p, "weir_build_info", false);
  put_label(p->out, "version", weir_version(), true);
  end_natural(p, 1);
  static const char *const names[] = {"weir_processes", "weir_processes_left_out", "weir_pages_invalid"};
  static const char *const helps[] = {"Processes with Weir that say what they hold",
                                      "Those of them that have no figures here, since there are too many",
                                      "Files among their pages that cannot be read"};
  const size_t values[] = {p->live->process_count + p->live->left_out,
                           p->live->process_count - p->shown + p->live->left_out, p->live->invalid_count};
  for (int i = 0; i < 3; i++) {
    family(p, names[i], "", false, helps[i]);
    fprintf(p->out, "%s %zu\n", names[i], values[i]);
  }
}

/* NULL without host memory. */
static char *make_text(bool is_openmetrics, size_t *size) {
  static const weir__page_count of_pools[] = {WEIR__PAGE_ALLOCATED,  WEIR__PAGE_RESERVED,   WEIR__PAGE_SPLIT,
                                              WEIR__PAGE_SOFT_LIMIT, WEIR__PAGE_HARD_LIMIT, WEIR__PAGE_BLOCKS};
  weir_cli_live live;
  char *text = NULL;
  FILE *out = open_memstream(&text, size);
  if (!out)
    return NULL;
  bool is_whole = weir_cli_live_read(&live, 0);
  weir_cli_live_add_cards(&live);
  page p = {.out = out, .is_openmetrics = is_openmetrics, .live = &live};
  p.shown = live.process_count < MAX_SHOWN ? live.process_count : MAX_SHOWN;
  put_self(&p);
  put_processes(&p);
  for (int c = 0; c < WEIR__PAGE_COUNT_COUNT; c++)
    if (c != WEIR__PAGE_RATE) /* which the counter of allocations has */
      put_device_count(&p, (weir__page_count)c);
  for (size_t i = 0; i < WEIR_COUNT_OF(of_pools); i++)
    put_pool_count(&p, of_pools[i]);
  put_computed(&p, "weir_fragmentation_ratio", "ratio", "1 - peak allocated / peak reserved", fragmentation_of);
  put_computed(&p, "weir_growth_bytes_per_second", "", "By how much the least in use grows, 0 if it does not",
               growth_of);
  put_computed(&p, "weir_time_to_failure_seconds", "seconds", "When memory runs out if it goes on growing",
               time_left_of);
  put_cards(&p);
  if (is_openmetrics)
    fputs("# EOF\n", out);
  weir_cli_live_clear(&live);
  if (fclose(out) || !is_whole) {
    free(text);
    return NULL;
  }
  return text;
}

/* ---- The command ---- */

static char *answer(const char *accept, size_t length, size_t *size, const char **type) {
  static const char wanted[] = "application/openmetrics-text";
  bool is_openmetrics = accept && memmem(accept, length, wanted, sizeof wanted - 1);
  *type = is_openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                         : "text/plain; version=0.0.4; charset=utf-8";
  return make_text(is_openmetrics, size);
}

static void print_address(const char *address) {
  printf("%s\n", address);
  fflush(stdout);
}

static int serve(void) {
  const weir_cli_served files[] = {{.name = "metrics", .make = answer}};
  const weir_cli_serving serving = {
      .files = files, .count = WEIR_COUNT_OF(files), .port = port, .socket = socket_path, .is_open = true};
  return weir_cli_serve(&serving, print_address) ? weir_cli_fail("%s", weir_last_error()) : WEIR_EXIT_OK;
}

static volatile sig_atomic_t is_over;

static void on_signal(int number) {
  (void)number;
  is_over = 1;
}

/* The file is replaced as a whole, so that a reader never sees a part of it. */
static int write_file(void) {
  size_t size = 0;
  char *text = make_text(false, &size);
  if (!text)
    return weir_cli_fail("out of host memory");
  weir__outfile out;
  int error = weir__outfile_open(&out, textfile, WEIR__OUTFILE_WRITE);
  if (!error) {
    for (size_t sent = 0; sent < size && !error;) {
      ssize_t n = write(out.fd, text + sent, size - sent);
      if (n >= 0)
        sent += (size_t)n;
      else if (errno != EINTR)
        error = errno;
    }
    if (!error)
      error = weir__outfile_keep(&out);
    weir__outfile_end(&out);
  }
  free(text);
  return error ? weir_cli_fail("%s: cannot write it: %s", weir_cli_escaped(textfile), strerror(error)) : WEIR_EXIT_OK;
}

static int write_files(void) {
  struct sigaction action = {.sa_handler = on_signal};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  int code = write_file();
  while (!code && !is_over) {
    nanosleep(&(struct timespec){.tv_sec = interval}, NULL); /* a signal ends it */
    code = is_over ? WEIR_EXIT_OK : write_file();
  }
  return code;
}

static int run(int count, char **arguments) {
  (void)count, (void)arguments;
  if (textfile)
    return once ? write_file() : write_files();
  if (!once)
    return serve();
  size_t size = 0;
  char *text = make_text(false, &size);
  if (!text)
    return weir_cli_fail("out of host memory");
  fwrite(text, 1, size, stdout);
  free(text);
  return WEIR_EXIT_OK;
}

static const weir_cli_option option_table[] = {
    {"once", .target = &once, .help = "print the figures, or write the file, and end"},
    {"port", .kind = WEIR_CLI_NUMBER, .value = "PORT", .target = &port, .least = 1, .most = 65535,
     .help = "the port of the loopback interface (default: 9471)"},
    {"socket", .kind = WEIR_CLI_TEXT, .value = "PATH", .target = &socket_path,
     .help = "serve on a unix socket that only you can connect to"},
    {"textfile", .kind = WEIR_CLI_PATH, .value = "OUT.prom", .target = &textfile,
     .help = "serve nothing, but replace a file for the textfile collector of node_exporter"},
    {"interval", .kind = WEIR_CLI_NUMBER, .value = "SECONDS", .target = &interval, .least = 1, .most = 3600,
     .needs = "textfile", .help = "how often it is replaced (default: 15)"},
    {0}};

const weir_cli_command weir_cmd_metrics = {
    .name = "metrics",
    .summary = "serve these figures to Prometheus",
    .description =
        "Serve what your running processes with Weir hold as http://localhost:9471/metrics, in the text format of "
        "Prometheus, or in OpenMetrics for a scraper that asks for it. Every user of this machine can read what is "
        "served on the loopback interface; --socket serves you alone.",
    .options = option_table,
    .examples = "weir metrics\nweir metrics --once\nweir metrics --textfile /var/lib/node_exporter/weir.prom\n",
    .exit = {"done, or ended by a signal", "it cannot be served or written"},
    .run = run};
