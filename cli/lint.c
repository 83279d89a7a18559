/*
 * weir lint: what a configuration string does, and what in it is wrong, hurts or has no effect.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "cli.h"
#include "json.h"
#include "offline/analyse/predict.h" /* weir__settings */
#include "offline/analyse/versions.h"
#include "report.h"

typedef enum severity { ERROR, HURTS, NOTHING, NOTE } severity;

enum { MAX = 48, TEXT = WEIR__TEXT_SIZE };

typedef struct finding {
  severity severity;
  char text[TEXT];
} finding;

typedef struct piece {
  const char *text; /* "key:value", without blanks around it */
  size_t length, key_length;
  const char *help; /* NULL if there is no such key */
  const char *name;
} piece;

typedef struct lint {
  const char *text;
  finding findings[MAX];
  size_t finding_count;
  piece pieces[MAX];
  size_t piece_count;
  weir__settings settings; /* valid if there is no error */
} lint;

static void add(lint *l, severity severity, const char *format, ...) WEIR_PRINTF(3, 4);
static void add(lint *l, severity severity, const char *format, ...) {
  if (l->finding_count == MAX)
    return;
  finding *f = &l->findings[l->finding_count++];
  va_list args;
  va_start(args, format);
  vsnprintf(f->text, sizeof f->text, format, args);
  va_end(args);
  f->severity = severity;
}

/* ---- Parsing ---- */

/* Splits the text at commas that are not in lists. */
static void split(lint *l) {
  const char *at = l->text;
  while (*at && l->piece_count < MAX) {
    int depth = 0;
    const char *end = at;
    while (*end && (*end != ',' || depth > 0)) {
      depth += *end == '[' ? 1 : *end == ']' ? -1 : 0;
      end++;
    }
    const char *first = at, *last = end;
    while (first < last && strchr(" \t\n", *first))
      first++;
    while (last > first && strchr(" \t\n", last[-1]))
      last--;
    if (first < last) {
      piece *p = &l->pieces[l->piece_count++];
      *p = (piece){.text = first, .length = (size_t)(last - first)};
      p->key_length = strcspn(first, ": \t\n,");
      if (p->key_length > p->length)
        p->key_length = p->length;
      p->help = weir__settings_key_help(first, p->key_length, &p->name);
    }
    at = *end ? end + 1 : end;
  }
}

/* The column of an error counts from the start of the text that was parsed, which is at an offset in the whole. */
static void add_error(lint *l, size_t offset) {
  const char *text = weir_last_error();
  unsigned long column = 0;
  int skipped = 0;
  if (sscanf(text, "settings: column %lu: %n", &column, &skipped) == 1 && skipped > 0)
    add(l, ERROR, "column %lu: %s", column + (unsigned long)offset, text + skipped);
  else
    add(l, ERROR, "%s", text);
}

/* Finds all errors and not only the first: parses each piece alone, and the whole if every piece is valid. */
static void check_text(lint *l) {
  if (!weir__settings_parse(NULL, l->text, &l->settings))
    return;
  for (size_t i = 0; i < l->piece_count; i++) {
    const piece *p = &l->pieces[i];
    char *alone = strndup(p->text, p->length);
    weir__settings settings;
    if (alone && weir__settings_parse(NULL, alone, &settings))
      add_error(l, (size_t)(p->text - l->text));
    free(alone);
  }
  if (!l->finding_count) {
    weir__settings_parse(NULL, l->text, &l->settings);
    add_error(l, 0);
  }
}

static bool has_key(const lint *l, const char *name) {
  for (size_t i = 0; i < l->piece_count; i++)
    if (l->pieces[i].help && strcmp(l->pieces[i].name, name) == 0)
      return true;
  return false;
}

/* ---- Combinations ---- */

static void check_backend(lint *l) {
  if (l->settings.backend != WEIR__BACKEND_CUDA_MALLOC_ASYNC)
    return;
  for (size_t i = 0; i < l->piece_count; i++)
    if (strcmp(l->pieces[i].name, "backend") != 0 && strncmp(l->pieces[i].name, "pinned_", 7) != 0)
      add(l, NOTHING, "%s: backend:cudaMallocAsync ignores it: the driver's allocator has no such setting",
          l->pieces[i].name);
}

static void check_expandable(lint *l) {
  const weir__settings *s = &l->settings;
  if (s->expandable_segments && s->max_split_size != UINT64_MAX)
    add(l, HURTS,
        "max_split_size_mb with expandable_segments:True: blocks are split nevertheless, and free blocks of this size "
        "and above do not serve smaller requests, so memory grows; leave max_split_size_mb out");
  if (s->expandable_segments && s->garbage_collection_threshold > 0)
    add(l, NOTHING,
        "garbage_collection_threshold with expandable_segments:True: only fixed segments are collected, and there are "
        "none");
  if (!s->expandable_segments && has_key(l, "expandable_segments_reserve"))
    add(l, NOTHING, "expandable_segments_reserve: without expandable_segments:True nothing is reserved");
  if (!s->expandable_segments && has_key(l, "expandable_segments_reserve_by_class"))
    add(l, NOTHING, "expandable_segments_reserve_by_class: without expandable_segments:True nothing is reserved");
}

static void check_weirs_own(lint *l) {
  static const char *const needing[] = {"moving_pages_max_aliases", "moving_pages_completed_only",
                                        "moving_pages_across_streams", "moving_pages_min_capability",
                                        "moving_pages_slack"};
  for (size_t i = 0; i < WEIR_COUNT_OF(needing) && !l->settings.moving_pages; i++)
    if (has_key(l, needing[i]))
      add(l, NOTHING, "%s: without moving_pages:True no page moves", needing[i]);
  if (l->settings.moving_pages)
    add(l, NOTE,
        "moving_pages: only Weir's allocator knows it, and PyTorch's own rejects the whole text: set it in "
        "WEIR_ALLOC_CONF");
  static const char *const pinned[] = {"pinned_register_min_mb", "pinned_register_piece_mb"};
  for (size_t i = 0; i < WEIR_COUNT_OF(pinned); i++)
    if (has_key(l, pinned[i]))
      add(l, NOTE,
          "%s: only Weir's allocator knows it, and PyTorch's own rejects the whole text: set it in WEIR_ALLOC_CONF",
          pinned[i]);
}

static void check_limit(lint *l) {
  const weir__settings *s = &l->settings;
  bool has_limit = s->memory_fraction < 1;
  if (s->garbage_collection_threshold > 0 && !s->expandable_segments && !has_limit)
    add(l, NOTHING,
        "garbage_collection_threshold: it is a fraction of the memory limit, and there is none; it has an effect only "
        "with per_process_memory_fraction below 1, or after torch.cuda.set_per_process_memory_fraction()");
  if (s->throw_on_oom && !has_limit)
    add(l, NOTHING,
        "throw_on_cudamalloc_oom: it refuses requests beyond the memory fraction, which is the whole device; set "
        "per_process_memory_fraction below 1");
  if (s->throw_on_oom && has_limit)
    add(l, HURTS,
        "throw_on_cudamalloc_oom: a request beyond the fraction fails at once, even if releasing cached memory would "
        "have served it");
  if (s->memory_fraction == 0)
    add(l, HURTS, "per_process_memory_fraction:0 allows no memory at all: every request fails");
}

static void check_split(lint *l) {
  const weir__settings *s = &l->settings;
  if (has_key(l, "max_non_split_rounding_mb") && s->max_split_size == UINT64_MAX)
    add(l, NOTHING, "max_non_split_rounding_mb: it applies to blocks of max_split_size_mb and above, which is not set");
  if (s->max_split_size != UINT64_MAX && !s->expandable_segments)
    add(l, NOTE,
        "max_split_size_mb:%llu: every request of this size and above gets a segment of its own, which only requests "
        "of nearly the same size reuse; a job with many sizes may need a multiple of the memory. Try it on a recording "
        "first: weir replay --conf",
        (unsigned long long)(s->max_split_size >> 20));
  uint8_t most = 0;
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++)
    most = s->roundup_divisions[i] > most ? s->roundup_divisions[i] : most;
  if (has_key(l, "roundup_power2_divisions") && most <= 1)
    add(l, NOTHING, "roundup_power2_divisions: 0 and 1 both mean no divisions");
  else if (most == 2)
    add(l, HURTS, "roundup_power2_divisions:2 rounds up by as much as half: up to a third of the memory is rounding");
}

static void check_pinned(lint *l) {
  const weir__settings *s = &l->settings;
  if (s->pinned_num_register_threads > 1 && !s->pinned_use_host_register)
    add(l, NOTHING,
        "pinned_num_register_threads: without pinned_use_cuda_host_register:True nothing is registered "
        "below pinned_register_min_mb");
  if (s->pinned_max_cached_size != UINT64_MAX && s->pinned_max_round_threshold != UINT64_MAX &&
      s->pinned_max_round_threshold > s->pinned_max_cached_size)
    add(l, NOTHING, "pinned_max_round_threshold_mb is above pinned_max_cached_size_mb, and the smaller of them counts");
}

/* An older PyTorch that does not know a key rejects the whole text. */
static void check_versions(lint *l) {
  for (size_t i = 0; i < l->piece_count; i++) {
    weir__pytorch_version since = weir__key_since(l->pieces[i].name);
    if (weir__version_is_before(WEIR__VERSION_IN_USE, since))
      add(l, NOTE, "%s: PyTorch before %d.%d does not know it, and rejects the whole text", l->pieces[i].name,
          since.major, since.minor);
  }
}

static void check(lint *l) {
  split(l);
  check_text(l);
  if (l->finding_count)
    return;
  weir__settings defaults;
  weir__settings_default(&defaults);
  if (l->piece_count && weir__settings_equal(&l->settings, &defaults))
    add(l, NOTHING, "all of it is the default");
  check_backend(l);
  check_expandable(l);
  check_weirs_own(l);
  check_limit(l);
  check_split(l);
  check_pinned(l);
  check_versions(l);
}

/* ---- Output ---- */

static const char *const severities[] = {"error", "hurts", "does nothing", "note"};

static void make_report(weir__report *r, const lint *l) {
  weir__report_begin(r);
  WEIR__ROWS(r, JSON_TEXT("text", l->text), JSON_LIST("keys"));
  if (!l->piece_count)
    weir__say(r, "nothing is set: the defaults apply\n");
  for (size_t i = 0; i < l->piece_count; i++) {
    const piece *p = &l->pieces[i];
    WEIR__ROWS(r, JSON_OBJECT(NULL));
    weir__report_add_part(r, "text", p->text, p->length);
    weir__report_add_part(r, "key", p->text, p->key_length);
    WEIR__ROWS(r, ROW_TEXT("does", p->help, WEIR__UNIT_PLAIN));
    weir__say(r, p->help ? "*{text}*\n    {does}\n" : "*{text}*\n");
    WEIR__ROWS(r, JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_CLOSE, JSON_LIST("findings"));
  for (size_t i = 0; i < l->finding_count; i++) {
    WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_TEXT("kind", severities[l->findings[i].severity]),
               ROW_TEXT("text", l->findings[i].text, WEIR__UNIT_PLAIN));
    weir__say(r, "*{kind}*\n    {text}\n");
    WEIR__ROWS(r, JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_CLOSE);
}

static bool json;

static int run(int count, char **arguments) {
  (void)count;
  lint *l = calloc(1, sizeof *l);
  if (!l)
    return weir_cli_fail("out of host memory");
  l->text = arguments[0];
  check(l);
  weir__report report;
  make_report(&report, l);
  int code = weir_cli_print_report(&report, NULL, json);
  for (size_t i = 0; i < l->finding_count; i++)
    if (l->findings[i].severity != NOTE)
      code = WEIR_EXIT_FAILED;
  free(l);
  return code;
}

static const weir_cli_option option_table[] = {
    {"json", .target = &json, .help = "print JSON"}, WEIR_CLI_JSON_FD_OPTION, {0}};

const weir_cli_command weir_cmd_lint = {
    .name = "lint",
    .summary = "check a configuration string, and show what it does",
    .description =
        "Check a configuration string of PYTORCH_CUDA_ALLOC_CONF or WEIR_ALLOC_CONF for unknown keys, values "
        "that are not allowed, and combinations that hurt or have no effect; and show what each key does. "
        "'weir help settings' lists all keys.",
    .argument = "STRING",
    .is_confined = true,
    .options = option_table,
    .exit = {"nothing is wrong with it", "a key or value is wrong, hurts or has no effect"},
    .run = run};
