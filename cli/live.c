#include "live.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli.h"
#include "driver/nvml.h"
#include "json.h"
#include "pattern/trend.h"

enum { MAX_PAGES = 4096, MAX_PROCESSES = 1024 };

/* ---- Reading the pages ---- */

/* "python3 train.py": the program and the first argument that is no option, without their folders. */
static void name_command(const weir__page_view *view, char *name, size_t size) {
  char path[64], text[512];
  *name = '\0';
  if (view->is_elsewhere)
    return;
  snprintf(path, sizeof path, "/proc/%lld/cmdline", (long long)view->pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
  if (file >= 0)
    close(file);
  if (length <= 0)
    return;
  text[length] = '\0';
  const char *end = text + length, *slash = strrchr(text, '/');
  size_t used = (size_t)snprintf(name, size, "%s", slash ? slash + 1 : text);
  for (const char *word = text + strlen(text) + 1; word < end && used < size; word += strlen(word) + 1)
    if (*word && *word != '-') {
      slash = strrchr(word, '/');
      snprintf(name + used, size - used, " %s", slash ? slash + 1 : word);
      return;
    }
}

static weir_cli_process *add_process(weir_cli_process **items, size_t *count, size_t *room) {
  if (*count == *room) {
    size_t more = *room ? 2 * *room : 16;
    weir_cli_process *grown = realloc(*items, more * sizeof *grown);
    if (!grown)
      return NULL;
    *items = grown;
    *room = more;
  }
  weir_cli_process *made = &(*items)[(*count)++];
  memset(made, 0, sizeof *made);
  return made;
}

typedef struct reading {
  weir_cli_live *live;
  int64_t pid;
  bool is_short;
} reading;

static void read_one(void *context, const char *path) {
  reading *r = context;
  weir_cli_live *live = r->live;
  weir__page_view view;
  if (live->process_count == MAX_PROCESSES) {
    live->left_out++;
    return;
  }
  weir__page_read(path, &view);
  bool is_valid = view.life == WEIR__PAGE_ALIVE, is_wanted = !r->pid || view.pid == r->pid;
  weir_cli_process *made = NULL;
  if (is_valid && is_wanted)
    made = add_process(&live->processes, &live->process_count, &live->process_room);
  else if (view.life == WEIR__PAGE_INVALID && !r->pid)
    made = add_process(&live->invalid, &live->invalid_count, &live->invalid_room);
  r->is_short |= is_valid && is_wanted && !made;
  if (!made) {
    weir__page_view_clear(&view);
    return;
  }
  made->view = view;
  if (is_valid)
    name_command(&view, made->command, sizeof made->command);
}

static uint64_t held_by(const weir_cli_process *process) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < process->view.copy.row_count; i++)
    if (process->view.rows[i].kind == WEIR__PAGE_DEVICE)
      bytes += process->view.rows[i].count[WEIR__PAGE_RESERVED];
  return bytes;
}

static int by_size(const void *a, const void *b) {
  const weir_cli_process *x = a, *y = b;
  uint64_t m = held_by(x), n = held_by(y);
  return m != n ? (m < n) - (m > n) : (x->view.pid > y->view.pid) - (x->view.pid < y->view.pid);
}

bool weir_cli_live_read(weir_cli_live *live, int64_t pid) {
  reading r = {.live = live, .pid = pid};
  *live = (weir_cli_live){0};
  weir__pages_visit(MAX_PAGES, read_one, &r);
  live->unix_ns = (int64_t)weir__realtime_ns();
  for (size_t i = 0; i < live->process_count; i++) {
    weir_cli_process *p = &live->processes[i];
    int64_t age = (live->unix_ns - p->view.copy.unix_ns) / 1000000;
    p->age_ms = age > 0 ? age : 0; /* the clock may have been set */
  }
  if (live->process_count)
    qsort(live->processes, live->process_count, sizeof *live->processes, by_size);
  return !r.is_short;
}

void weir_cli_live_clear(weir_cli_live *live) {
  for (size_t i = 0; i < live->process_count; i++)
    weir__page_view_clear(&live->processes[i].view);
  for (size_t i = 0; i < live->invalid_count; i++)
    weir__page_view_clear(&live->invalid[i].view);
  for (size_t i = 0; i < live->card_count; i++)
    free(live->cards[i].rows);
  free(live->processes);
  free(live->invalid);
  free(live->cards);
  *live = (weir_cli_live){0};
}

/* ---- Cards ---- */

/* A software device belongs to its process, and others may have one with the same UUID. */
static bool is_of(const weir_cli_card *card, const weir_cli_process *process, const weir__page_device *device) {
  return strcmp(card->uuid, device->uuid) == 0 && (device->is_shared ? !card->pid : card->pid == process->view.pid);
}

const weir_cli_card *weir_cli_card_of(const weir_cli_live *live, const weir_cli_process *process, uint32_t device) {
  for (size_t i = 0; i < live->card_count; i++)
    if (is_of(&live->cards[i], process, &process->view.devices[device]))
      return &live->cards[i];
  return NULL;
}

static weir_cli_card *add_card(weir_cli_live *live) {
  if (live->card_count == live->card_room) {
    size_t more = live->card_room ? 2 * live->card_room : 8;
    weir_cli_card *grown = realloc(live->cards, more * sizeof *grown);
    if (!grown)
      return NULL;
    live->cards = grown;
    live->card_room = more;
  }
  weir_cli_ledger_row *rows = calloc(WEIR_CLI_CARD_ROWS, sizeof *rows);
  if (!rows)
    return NULL;
  weir_cli_card *made = &live->cards[live->card_count++];
  *made = (weir_cli_card){.rows = rows};
  return made;
}

static void add_row(weir_cli_card *card, weir_cli_ledger_row row) {
  if (card->row_count < WEIR_CLI_CARD_ROWS)
    card->rows[card->row_count++] = row;
}

#define ROW(...)                                                                                                       \
  (weir_cli_ledger_row) { __VA_ARGS__ }

static uint64_t count_of(const weir_cli_process *process, uint32_t device, weir__page_count count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < process->view.copy.row_count; i++) {
    const weir__page_row *row = &process->view.rows[i];
    if (row->kind == WEIR__PAGE_DEVICE && row->device == device)
      sum += row->count[count];
  }
  return sum;
}

/* The rows of a process with Weir; what they sum up to. `by_nvml` is the process's memory as NVIDIA's library reports
 * it, UINT64_MAX if it does not. */
static uint64_t add_process_rows(weir_cli_card *card, const weir_cli_process *p, uint32_t device, uint64_t by_nvml) {
  uint64_t reserved = count_of(p, device, WEIR__PAGE_RESERVED), outside = count_of(p, device, WEIR__PAGE_OUTSIDE);
  weir_cli_ledger_row row = {.pid = p->view.pid, .bytes = reserved, .method = "the accounts of its allocators"};
  snprintf(row.what, sizeof row.what, "pools of Weir");
  add_row(card, row);
  for (uint32_t i = 0; i < p->view.copy.row_count; i++) {
    const weir__page_row *of = &p->view.rows[i];
    if (of->kind != WEIR__PAGE_POOL || of->device != device || !*of->tag)
      continue;
    row.bytes = of->count[WEIR__PAGE_RESERVED];
    row.is_part = true;
    snprintf(row.what, sizeof row.what, "%.60s", of->tag);
    add_row(card, row);
  }
  if (outside)
    add_row(card, ROW(.what = "other libraries, as reported", .pid = p->view.pid, .bytes = outside,
                      .method = "their owners in the process"));
  uint64_t named = reserved + outside;
  if (by_nvml == UINT64_MAX)
    add_row(card, ROW(.what = "its context, modules and libraries", .pid = p->view.pid, .precision = WEIR_CLI_UNKNOWN,
                      .method = "NVIDIA's library does not report this process"));
  else if (by_nvml > named) {
    add_row(card, ROW(.what = "its context, modules and libraries", .pid = p->view.pid, .bytes = by_nvml - named,
                      .precision = WEIR_CLI_REST, .method = "NVIDIA's library, less the rows above"));
    named = by_nvml;
  }
  return named;
}

static const weir__nvml_process *find_process(const weir__nvml_process *processes, int count, int64_t pid) {
  for (int i = 0; i < count; i++)
    if (processes[i].pid == (uint64_t)pid && processes[i].bytes != ~0ull)
      return &processes[i];
  return NULL;
}

/* The rows of a card, with NVIDIA's library if it is loaded. */
static void fill_card(weir_cli_live *live, weir_cli_card *card, const weir__nvml *nvml) {
  enum { most = 1024 };
  static weir__nvml_process processes[most];
  weir__nvml_memory memory;
  int count = -1;
  bool is_seen[most] = {false};
  uint64_t named = 0;
  bool has_unknown = false;
  if (nvml->library && !card->pid && *card->bus && weir__nvml_card(nvml, card->bus, &memory, processes, most, &count)) {
    card->total = memory.total;
    card->used = memory.used;
    card->free = memory.free;
    card->knows_used = true;
    if (memory.reserved)
      add_row(card, ROW(.what = "kept by the driver, beside what is used", .bytes = memory.reserved, .is_part = true,
                        .method = "NVIDIA's library"));
  }
  for (size_t i = 0; i < live->process_count; i++) {
    const weir_cli_process *p = &live->processes[i];
    for (uint32_t d = 0; d < p->view.copy.device_count; d++) {
      if (!is_of(card, p, &p->view.devices[d]))
        continue;
      const weir__nvml_process *by_nvml = p->view.is_elsewhere ? NULL : find_process(processes, count, p->view.pid);
      if (by_nvml)
        is_seen[by_nvml - processes] = true;
      has_unknown |= !by_nvml;
      named += add_process_rows(card, p, d, by_nvml ? by_nvml->bytes : UINT64_MAX);
    }
  }
  for (int i = 0; i < count; i++) {
    if (is_seen[i])
      continue;
    bool is_known = processes[i].bytes != ~0ull;
    add_row(card,
            ROW(.what = "a process without a page", .pid = processes[i].pid, .bytes = is_known ? processes[i].bytes : 0,
                .precision = is_known ? WEIR_CLI_EXACT : WEIR_CLI_UNKNOWN, .method = "NVIDIA's library"));
    has_unknown |= !is_known;
    named += is_known ? processes[i].bytes : 0;
  }
  if (card->knows_used)
    add_row(card, ROW(.what = "not explained", .bytes = card->used > named ? card->used - named : 0,
                      .precision = WEIR_CLI_REST, .method = "what is used, less the rows above"));
  else if (card->pid && !has_unknown)
    card->knows_used = false;
}

static bool has_card(const weir_cli_live *live, const char *uuid) {
  for (size_t i = 0; i < live->card_count; i++)
    if (!live->cards[i].pid && strcmp(live->cards[i].uuid, uuid) == 0)
      return true;
  return false;
}

void weir_cli_live_add_cards(weir_cli_live *live) {
  weir__nvml nvml = {0};
  for (size_t i = 0; i < live->process_count; i++) {
    const weir_cli_process *p = &live->processes[i];
    for (uint32_t d = 0; d < p->view.copy.device_count; d++) {
      const weir__page_device *device = &p->view.devices[d];
      bool is_used = false;
      for (uint32_t r = 0; r < p->view.copy.row_count; r++)
        is_used |= p->view.rows[r].device == d;
      if (!is_used || (device->is_shared && has_card(live, device->uuid)))
        continue;
      weir_cli_card *card = add_card(live);
      if (!card)
        return;
      snprintf(card->name, sizeof card->name, "%s", device->name);
      snprintf(card->uuid, sizeof card->uuid, "%s", device->uuid);
      snprintf(card->bus, sizeof card->bus, "%s", device->bus);
      card->pid = device->is_shared ? 0 : p->view.pid;
      card->total = device->total;
    }
  }
  bool needs_nvml = false;
  for (size_t i = 0; i < live->card_count; i++)
    needs_nvml |= !live->cards[i].pid;
  if (needs_nvml)
    weir__nvml_open(&nvml);
  for (size_t i = 0; i < live->card_count; i++)
    fill_card(live, &live->cards[i], &nvml);
  if (nvml.library)
    weir__nvml_close(&nvml);
}

void weir_cli_card_json(const weir_cli_card *card) {
  static const char *const precisions[] = {"exact", "rest", "not known"};
  WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_TEXT("name", card->name), JSON_TEXT("uuid", card->uuid),
                JSON_TEXT("bus", card->bus), JSON_NATURAL_IF(card->pid, "pid", card->pid),
                JSON_NATURAL("total", card->total), JSON_NATURAL_IF(card->knows_used, "used", card->used),
                JSON_LIST("ledger"));
  for (size_t i = 0; i < card->row_count; i++) {
    const weir_cli_ledger_row *row = &card->rows[i];
    WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_TEXT("what", row->what), JSON_NATURAL_IF(row->pid, "pid", row->pid),
                  JSON_NATURAL_IF(row->precision != WEIR_CLI_UNKNOWN, "bytes", row->bytes),
                  JSON_TEXT("precision", precisions[row->precision]), JSON_TEXT("method", row->method),
                  JSON_BOOL("part", row->is_part), JSON_CLOSE);
  }
  WEIR_CLI_JSON(JSON_CLOSE, JSON_CLOSE);
}

/* ---- Trends ---- */

weir_cli_trend weir_cli_trend_of(const weir_cli_live *live, const weir_cli_process *process, uint32_t device) {
  const weir__page_device *on = &process->view.devices[device];
  weir_cli_trend trend = {.is_known = on->sample_count >= WEIR__TREND_FEWEST};
  const double window_s = WEIR__PAGE_WINDOW_MS / 1000.0;
  uint64_t least[WEIR__PAGE_SAMPLES];
  int64_t since;
  for (uint32_t i = 0; i < on->sample_count; i++)
    least[i] = on->samples[i].least;
  trend.bytes_per_second = weir__level_slope(least, on->sample_count, &since) / window_s;
  if (trend.bytes_per_second <= 0)
    return trend;
  trend.grows = true;
  trend.grows_for_s = (double)since * window_s;
  uint64_t allocated = 0, reserved = 0, limit = UINT64_MAX;
  for (uint32_t i = 0; i < process->view.copy.row_count; i++) {
    const weir__page_row *row = &process->view.rows[i];
    if (row->kind != WEIR__PAGE_DEVICE || row->device != device)
      continue;
    allocated += row->count[WEIR__PAGE_ALLOCATED];
    reserved += row->count[WEIR__PAGE_RESERVED];
    if (weir_cli_knows(row, WEIR__PAGE_HARD_LIMIT) && row->count[WEIR__PAGE_HARD_LIMIT] < limit)
      limit = row->count[WEIR__PAGE_HARD_LIMIT];
  }
  const weir_cli_card *card = weir_cli_card_of(live, process, device);
  uint64_t cached = reserved > allocated ? reserved - allocated : 0;
  trend.room = card && card->knows_used ? card->free + cached : on->total > allocated ? on->total - allocated : 0;
  trend.limited_by = "the card";
  if (limit != UINT64_MAX && (limit > allocated ? limit - allocated : 0) < trend.room) {
    trend.room = limit > allocated ? limit - allocated : 0;
    trend.limited_by = "the limit";
  }
  trend.fails_in_s = (double)trend.room / trend.bytes_per_second;
  return trend;
}

/* ---- Names ---- */

const char *weir_cli_count_name(weir__page_count count) {
  static const char *const names[] = {
#define X(id, name, ...) #name,
      WEIR__PAGE_COUNTS(X)
#undef X
  };
  return names[count];
}

const char *weir_cli_row_name(const weir__page_row *row, char text[128]) {
  char pool[48];
  snprintf(pool, sizeof pool, "pool %llu,%llu", (unsigned long long)row->pool[0], (unsigned long long)row->pool[1]);
  if (row->kind == WEIR__PAGE_DEVICE)
    strcpy(text, "all pools");
  else if (row->kind == WEIR__PAGE_OTHER_POOLS)
    strcpy(text, "other pools");
  else if (!row->pool[0] && !row->pool[1])
    strcpy(text, "default pool");
  else if (*row->tag)
    snprintf(text, 128, "%s (%s)", row->tag, pool);
  else
    strcpy(text, pool);
  return text;
}
