/*
 * weir top: what the processes with Weir hold, live.
 */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/system.h"
#include "cli.h"
#include "json.h"
#include "live.h"
#include "top_screen.h"

static bool once, json, shows_pools, shows_cards = true, shows_help;
static int interval = 1;
static int64_t wanted; /* the process; 0 for all */

typedef enum order { BY_RESERVED, BY_ALLOCATED, BY_GROWTH, BY_PID, ORDERS } order;
static order sorted_by;
static const char *const order_names[] = {"reserved", "allocated", "growth", "pid"};

/* ---- Parts of a line ---- */

static bool is_utf8(void) {
  locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
  bool is_utf8 = locale && strcasecmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
  if (locale)
    freelocale(locale);
  return is_utf8;
}

/* A count of bytes in ten columns, "-" if it is not known. */
static const char *bytes_of(const weir__page_row *row, weir__page_count count) {
  return weir_cli_knows(row, count) ? weir_cli_bytes(row->count[count]) : "-";
}

static const char *share_text(bool is_known, uint64_t part, uint64_t whole, char text[8]) {
  if (!is_known || !whole)
    return "-";
  snprintf(text, 8, "%d%%", (int)(100.0 * (double)part / (double)whole + 0.5));
  return text;
}

/* 1 - peak allocated / peak reserved; of a pool, whose peaks are not known apart, free memory in segments in use. */
static const char *fragmentation(const weir__page_row *row, char text[8]) {
  if (row->kind == WEIR__PAGE_DEVICE) {
    uint64_t peak = row->count[WEIR__PAGE_PEAK_RESERVED], used = row->count[WEIR__PAGE_PEAK_ALLOCATED];
    bool is_known = weir_cli_knows(row, WEIR__PAGE_PEAK_ALLOCATED) && weir_cli_knows(row, WEIR__PAGE_PEAK_RESERVED);
    return share_text(is_known, peak > used ? peak - used : 0, peak, text);
  }
  return "-";
}

static const char *number_text(const weir__page_row *row, weir__page_count count, char text[16]) {
  uint64_t n = row->count[count];
  if (!weir_cli_knows(row, count))
    return "-";
  if (n < 100000)
    snprintf(text, 16, "%llu", (unsigned long long)n);
  else if (n < 100000000)
    snprintf(text, 16, "%lluk", (unsigned long long)n / 1000);
  else
    snprintf(text, 16, "%lluM", (unsigned long long)n / 1000000);
  return text;
}

/* "3 min", "2.5 h". */
static const char *span_text(double seconds, char text[32]) {
  if (seconds < 100)
    snprintf(text, 32, "%.0f s", seconds);
  else if (seconds < 6000)
    snprintf(text, 32, "%.0f min", seconds / 60);
  else if (seconds < 360000)
    snprintf(text, 32, "%.1f h", seconds / 3600);
  else
    snprintf(text, 32, "%.0f days", seconds / 86400);
  return text;
}

/* "14:21", or with the day if it is another one. */
static const char *clock_text(int64_t unix_s, int64_t now_s, char text[32]) {
  struct tm at, today;
  time_t then = (time_t)unix_s, now = (time_t)now_s;
  localtime_r(&then, &at);
  localtime_r(&now, &today);
  strftime(text, 32, at.tm_yday == today.tm_yday && at.tm_year == today.tm_year ? "%H:%M" : "%b %d %H:%M", &at);
  return text;
}

/* The most that was allocated in each window, from the level of nothing to the highest. */
static const char *sparkline(const weir__page_device *device, char text[4 * WEIR__PAGE_SAMPLES + 1]) {
  static const char *const unicode[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static const char *const ascii[] = {"_", ".", "-", "=", "+", "*", "#", "@"};
  const char *const *glyphs = is_utf8() ? unicode : ascii;
  uint64_t most = 1;
  size_t length = 0;
  for (uint32_t i = 0; i < device->sample_count; i++)
    most = device->samples[i].most > most ? device->samples[i].most : most;
  text[0] = '\0';
  for (uint32_t i = 0; i < device->sample_count; i++) {
    double level = (double)device->samples[i].most / (double)most * 7.999;
    length += (size_t)snprintf(text + length, 5, "%s", glyphs[(int)level]);
  }
  return text;
}

/* ---- The frame ---- */

static void add_card(weir_cli_frame *f, const weir_cli_live *live, const weir_cli_card *card) {
  char pid[32] = "";
  if (card->pid)
    snprintf(pid, sizeof pid, " of %lld", (long long)card->pid);
  if (card->knows_used)
    weir_cli_frame_line(f, true, "%s  %s  %s used of %s", weir_cli_escaped(card->name), *card->bus ? card->bus : "",
                        weir_cli_bytes(card->used), weir_cli_bytes(card->total));
  else
    weir_cli_frame_line(f, true, "%s%s  %s", weir_cli_escaped(card->name), pid, weir_cli_bytes(card->total));
  (void)live;
  for (size_t i = 0; i < card->row_count; i++) {
    const weir_cli_ledger_row *row = &card->rows[i];
    static const char *const notes[] = {"", "  (rest)", ""};
    snprintf(pid, sizeof pid, "%lld", (long long)row->pid);
    weir_cli_frame_line(f, false, "%7s %s%-*s %12s%s", row->pid ? pid : "", row->is_part ? "  " : "",
                        row->is_part ? 42 : 44, weir_cli_escaped(row->what),
                        row->precision == WEIR_CLI_UNKNOWN ? "not known" : weir_cli_bytes(row->bytes),
                        notes[row->precision]);
  }
}

static void add_row(weir_cli_frame *f, const weir_cli_process *p, const weir__page_row *row, bool is_first) {
  char pid[32] = "", what[32], name[128], split[16], rate[16], retries[16], fragments[8], device[8] = "";
  if (row->kind == WEIR__PAGE_DEVICE) {
    if (is_first)
      snprintf(pid, sizeof pid, "%lld%s", (long long)p->view.pid, p->view.is_elsewhere ? "*" : "");
    snprintf(what, sizeof what, "%.31s", is_first ? weir_cli_escaped(*p->command ? p->command : p->view.host) : "");
    snprintf(device, sizeof device, "%u", row->device);
  } else
    snprintf(what, sizeof what, "  %.29s", weir_cli_escaped(*row->tag ? row->tag : weir_cli_row_name(row, name)));
  snprintf(split, sizeof split, "%s", bytes_of(row, WEIR__PAGE_SPLIT));
  weir_cli_frame_line(f, row->kind == WEIR__PAGE_DEVICE, "%8s %-16.16s %3s %10s %10s %10s %5s %6s %5s", pid, what,
                      device, bytes_of(row, WEIR__PAGE_ALLOCATED), bytes_of(row, WEIR__PAGE_RESERVED), split,
                      fragmentation(row, fragments), number_text(row, WEIR__PAGE_RATE, rate),
                      number_text(row, WEIR__PAGE_RETRIES, retries));
}

/* The sparkline and the trend of a device, and what a reader has to know of the figures. */
static void add_notes(weir_cli_frame *f, const weir_cli_live *live, const weir_cli_process *p, uint32_t device) {
  char line[4 * WEIR__PAGE_SAMPLES + 1], span[3][32], at[32];
  const weir__page_device *on = &p->view.devices[device];
  weir_cli_trend trend = weir_cli_trend_of(live, p, device);
  if (on->sample_count > 1)
    weir_cli_frame_line(f, false, "%8s %s %s", "", sparkline(on, line),
                        span_text(on->sample_count * (WEIR__PAGE_WINDOW_MS / 1000.0), span[0]));
  if (trend.grows) {
    int64_t now = live->unix_ns / 1000000000;
    weir_cli_frame_line(f, true, "%8s grows by %s/s for %s: %s is reached in %s, at %s", "",
                        weir_cli_bytes((uint64_t)trend.bytes_per_second), span_text(trend.grows_for_s, span[0]),
                        trend.limited_by, span_text(trend.fails_in_s, span[1]),
                        trend.fails_in_s < 1e8 ? clock_text(now + (int64_t)trend.fails_in_s, now, at) : "-");
  }
}

static void add_process(weir_cli_frame *f, const weir_cli_live *live, const weir_cli_process *p) {
  bool is_first = true;
  uint32_t ooms = 0;
  char span[32];
  for (uint32_t i = 0; i < p->view.copy.row_count; i++) {
    const weir__page_row *row = &p->view.rows[i];
    bool is_device = row->kind == WEIR__PAGE_DEVICE;
    if (is_device || shows_pools || *row->tag)
      add_row(f, p, row, is_first);
    ooms += is_device ? (uint32_t)row->count[WEIR__PAGE_OOMS] : 0;
    is_first = is_first && !is_device;
    bool is_last = i + 1 == p->view.copy.row_count || p->view.rows[i + 1].device != row->device;
    if (is_last)
      add_notes(f, live, p, row->device);
  }
  if (!p->view.copy.row_count)
    weir_cli_frame_line(f, true, "%7lld %-16.16s nothing was allocated yet", (long long)p->view.pid,
                        weir_cli_escaped(p->command));
  if (ooms)
    weir_cli_frame_line(f, true, "%8s out of memory: %s", "", weir_cli_count(ooms, "request"));
  if (weir_cli_is_stale(p))
    weir_cli_frame_line(f, true, "%8s these figures are %s old: the process is stopped, or has no worker", "",
                        span_text((double)p->age_ms / 1000, span));
  if (p->view.is_elsewhere)
    weir_cli_frame_line(f, false, "%8s * of another namespace, as a container has: the id is valid there", "");
}

static double growth_of(const weir_cli_live *live, const weir_cli_process *p) {
  double sum = 0;
  for (uint32_t d = 0; d < p->view.copy.device_count; d++)
    sum += weir_cli_trend_of(live, p, d).bytes_per_second;
  return sum;
}

static double key_of(const weir_cli_live *live, const weir_cli_process *p) {
  double sum = 0;
  if (sorted_by == BY_PID)
    return -(double)p->view.pid;
  if (sorted_by == BY_GROWTH)
    return growth_of(live, p);
  for (uint32_t i = 0; i < p->view.copy.row_count; i++)
    if (p->view.rows[i].kind == WEIR__PAGE_DEVICE)
      sum += (double)p->view.rows[i].count[sorted_by == BY_RESERVED ? WEIR__PAGE_RESERVED : WEIR__PAGE_ALLOCATED];
  return sum;
}

static int by_key(const void *a, const void *b, void *live) {
  double x = key_of(live, a), y = key_of(live, b);
  return (x < y) - (x > y);
}

enum { FIXED_LINES = 2 };

static void draw(weir_cli_frame *f, weir_cli_live *live, bool is_screen) {
  char at[32];
  time_t now = (time_t)(live->unix_ns / 1000000000);
  struct tm local;
  localtime_r(&now, &local);
  strftime(at, sizeof at, "%H:%M:%S", &local);
  weir_cli_frame_line(f, true, "weir top  %s  %s, %s%s%s", at, weir_cli_count(live->process_count, "process"),
                      weir_cli_count(live->card_count, "device"), is_screen ? "  by " : "",
                      is_screen ? order_names[sorted_by] : "");
  weir_cli_frame_line(f, true, "%8s %-16s %3s %10s %10s %10s %5s %6s %5s", "PID", "COMMAND", "DEV", "ALLOCATED",
                      "RESERVED", "SPLIT", "FRAG", "ALLOC/S", "RETRY");
  if (live->process_count)
    weir__sort(live->processes, live->process_count, sizeof *live->processes, by_key, live);
  for (size_t i = 0; i < live->process_count; i++)
    add_process(f, live, &live->processes[i]);
  if (!live->process_count)
    weir_cli_frame_line(f, false,
                        "No process of yours has Weir and a page: a program with WEIR_STATS_PAGE=0 has none.");
  if (live->left_out)
    weir_cli_frame_line(f, true, "%s more", weir_cli_count(live->left_out, "page"));
  for (size_t i = 0; shows_cards && i < live->card_count; i++) {
    weir_cli_frame_line(f, false, "%s", "");
    add_card(f, live, &live->cards[i]);
  }
  for (size_t i = 0; i < live->invalid_count; i++)
    weir_cli_frame_line(f, false, "%s cannot be read: %s", weir_cli_escaped(live->invalid[i].view.path),
                        live->invalid[i].view.fault);
  if (!is_screen)
    return;
  if (shows_help)
    weir_cli_frame_line(f, true, "SPLIT: free in segments in use  FRAG: 1 - peak allocated / peak reserved");
  weir_cli_frame_line(f, true, "q quit  s sort  p pools  c cards  space pause  arrows scroll  h help");
}

/* ---- JSON ---- */

static void row_json(const weir__page_row *row) {
  static const char *const kinds[] = {"device", "pool", "other_pools"};
  WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_TEXT("kind", kinds[row->kind]), JSON_NATURAL("device", row->device),
                JSON_NATURAL("allocator", row->allocator));
  if (row->kind == WEIR__PAGE_POOL)
    WEIR_CLI_JSON(JSON_LIST("pool"), JSON_NATURAL(NULL, row->pool[0]), JSON_NATURAL(NULL, row->pool[1]), JSON_CLOSE,
                  JSON_TEXT("tag", *row->tag ? row->tag : NULL));
  for (int c = 0; c < WEIR__PAGE_COUNT_COUNT; c++)
    if (weir_cli_knows(row, (weir__page_count)c))
      WEIR_CLI_JSON(JSON_NATURAL(weir_cli_count_name((weir__page_count)c), row->count[c]));
  WEIR_CLI_JSON(JSON_INTEGER("age_ms", row->age_ms), JSON_CLOSE);
}

static void device_json(const weir_cli_live *live, const weir_cli_process *p, uint32_t d) {
  const weir__page_device *on = &p->view.devices[d];
  weir_cli_trend t = weir_cli_trend_of(live, p, d);
  WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_TEXT("name", on->name), JSON_TEXT("uuid", on->uuid),
                JSON_NATURAL("total", on->total), JSON_NATURAL("window_ms", WEIR__PAGE_WINDOW_MS),
                JSON_LIST("samples"));
  for (uint32_t i = 0; i < on->sample_count; i++)
    WEIR_CLI_JSON(JSON_LIST(NULL), JSON_NATURAL(NULL, on->samples[i].least), JSON_NATURAL(NULL, on->samples[i].most),
                  JSON_NATURAL(NULL, on->samples[i].reserved), JSON_CLOSE);
  WEIR_CLI_JSON(JSON_CLOSE, JSON_OBJECT("trend"), JSON_BOOL("known", t.is_known), JSON_BOOL("grows", t.grows),
                JSON_REAL("bytes_per_second", t.bytes_per_second, 1),
                JSON_REAL_IF(t.grows, "fails_in_s", t.fails_in_s, 1),
                JSON_TEXT("limited_by", t.grows ? t.limited_by : NULL), JSON_CLOSE, JSON_CLOSE);
}

static void print_json(const weir_cli_live *live) {
  weir_cli_json_begin(2);
  WEIR_CLI_JSON(JSON_NATURAL("time_ms", live->unix_ns / 1000000), JSON_LIST("processes"));
  for (size_t i = 0; i < live->process_count; i++) {
    const weir_cli_process *p = &live->processes[i];
    WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_NATURAL("pid", p->view.pid), JSON_TEXT("command", p->command),
                  JSON_TEXT("host", p->view.host), JSON_BOOL("elsewhere", p->view.is_elsewhere),
                  JSON_NATURAL_IF(p->view.rank >= 0, "rank", p->view.rank), JSON_INTEGER("age_ms", p->age_ms),
                  JSON_BOOL("stale", weir_cli_is_stale(p)), JSON_BOOL("recording", p->view.copy.is_recording),
                  JSON_LIST("devices"));
    for (uint32_t d = 0; d < p->view.copy.device_count; d++)
      device_json(live, p, d);
    WEIR_CLI_JSON(JSON_CLOSE, JSON_LIST("accounts"));
    for (uint32_t r = 0; r < p->view.copy.row_count; r++)
      row_json(&p->view.rows[r]);
    WEIR_CLI_JSON(JSON_CLOSE, JSON_CLOSE);
  }
  WEIR_CLI_JSON(JSON_CLOSE, JSON_LIST("cards"));
  for (size_t i = 0; i < live->card_count; i++)
    weir_cli_card_json(&live->cards[i]);
  WEIR_CLI_JSON(JSON_CLOSE, JSON_LIST("invalid"));
  for (size_t i = 0; i < live->invalid_count; i++)
    WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_TEXT("path", live->invalid[i].view.path),
                  JSON_TEXT("fault", live->invalid[i].view.fault), JSON_CLOSE);
  WEIR_CLI_JSON(JSON_CLOSE, JSON_NATURAL("left_out", live->left_out));
  weir_cli_json_end();
}

/* ---- The command ---- */

static bool look(weir_cli_live *live) {
  bool is_whole = weir_cli_live_read(live, wanted);
  weir_cli_live_add_cards(live);
  return is_whole;
}

static int fail_without_page(void) {
  if (kill((pid_t)wanted, 0) && errno == ESRCH)
    return weir_cli_fail("there is no process %lld", (long long)wanted);
  return weir_cli_fail("process %lld publishes nothing: it has no Weir, is another user's, or has WEIR_STATS_PAGE=0",
                       (long long)wanted);
}

static int print_once(void) {
  weir_cli_live live;
  int code = WEIR_EXIT_OK;
  bool is_whole = look(&live);
  if (!is_whole)
    code = weir_cli_fail("out of host memory");
  else if (wanted && !live.process_count)
    code = fail_without_page();
  else if (json)
    print_json(&live);
  else {
    weir_cli_frame frame = {.width = weir_cli_width(), .is_bold = *weir_cli_bold() != '\0'};
    draw(&frame, &live, false);
    fputs(frame.text ? frame.text : "", stdout);
    weir_cli_frame_clear(&frame);
  }
  weir_cli_live_clear(&live);
  return code;
}

/* Whether to go on. */
static bool obey(int key, int *from, bool *is_paused) {
  const int page = 10;
  switch (key) {
  case 'q':
  case WEIR_CLI_KEY_END:
    return false;
  case 's':
    sorted_by = (order)((sorted_by + 1) % ORDERS);
    break;
  case 'p':
    shows_pools = !shows_pools;
    break;
  case 'c':
    shows_cards = !shows_cards;
    break;
  case 'h':
  case '?':
    shows_help = !shows_help;
    break;
  case ' ':
    *is_paused = !*is_paused;
    break;
  case 'j':
  case WEIR_CLI_KEY_DOWN:
    ++*from;
    break;
  case 'k':
  case WEIR_CLI_KEY_UP:
    --*from;
    break;
  case WEIR_CLI_KEY_PAGE_DOWN:
    *from += page;
    break;
  case WEIR_CLI_KEY_PAGE_UP:
    *from -= page;
    break;
  default:
    break;
  }
  return true;
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Pages are read once in an interval; a key, or another size of the terminal, draws them again. */
static int watch(void) {
  weir_cli_live live = {0};
  bool is_paused = false, has_bold = *weir_cli_bold() != '\0', is_whole = true, has_ended = false;
  int from = 0, rows, key = WEIR_CLI_KEY_NONE;
  int64_t next = 0;
  if (!weir_cli_screen_begin())
    return weir_cli_usage("standard input and output are no terminal: --once or --json print one moment");
  do {
    int64_t now = now_ms();
    if (now >= next && !is_paused) {
      weir_cli_live_clear(&live);
      is_whole = look(&live);
      next = now + 1000 * (int64_t)interval;
      has_ended = wanted && !live.process_count;
    }
    weir_cli_frame frame = {.is_bold = has_bold};
    weir_cli_screen_size(&frame.width, &rows);
    draw(&frame, &live, true);
    int most = frame.lines - 1 - FIXED_LINES - (rows - 1 - FIXED_LINES);
    from = from > most ? most : from;
    from = from < 0 ? 0 : from;
    weir_cli_screen_show(&frame, FIXED_LINES, from);
    weir_cli_frame_clear(&frame);
    now = now_ms();
    key = weir_cli_screen_key(is_paused ? 1000 * interval : now < next ? (int)(next - now) : 0);
  } while (is_whole && !has_ended && obey(key, &from, &is_paused));
  weir_cli_screen_end();
  weir_cli_live_clear(&live);
  if (!is_whole)
    return weir_cli_fail("out of host memory");
  return has_ended ? fail_without_page() : WEIR_EXIT_OK;
}

static int run(int count, char **arguments) {
  if (count) {
    char *end;
    errno = 0;
    wanted = strtoll(arguments[0], &end, 10);
    if (*end || errno || wanted <= 0 || wanted > INT32_MAX)
      return weir_cli_usage("expected the id of a process, got '%s'", weir_cli_escaped(arguments[0]));
    shows_pools = true;
  }
  return json || once ? print_once() : watch();
}

static const weir_cli_option option_table[] = {
    {"once", .target = &once, .help = "print one moment, and end"},
    {"json", .target = &json, .help = "print one moment as JSON"},
    {"pools", .target = &shows_pools, .help = "show each pool; those with a tag are always shown"},
    {"interval", .kind = WEIR_CLI_NUMBER, .value = "SECONDS", .target = &interval, .least = 1, .most = 3600,
     .help = "read the pages this often (default: 1)"},
    {0}};

const weir_cli_command weir_cmd_top = {
    .name = "top",
    .group = "Watch",
    .summary = "show what running processes hold, live",
    .description =
        "Show what your running processes with Weir hold, by device, pool and tag, whether it grows and when it will "
        "fail if it goes on, and what the memory of each card is used for. A process publishes its figures once a "
        "second; "
        "with WEIR_STATS_PAGE=0 it does not.",
    .argument = "[PID]",
    .options = option_table,
    .examples = "weir top\nweir top 4711\nweir top --json | jq '.processes[].accounts[0].reserved'\n",
    .exit = {"done", "there is no such process, or it publishes nothing"},
    .run = run};
