#include "offline/render/tune_report.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "offline/render/predict_report.h"

/* How many rows a table has. */
enum { LISTED = 12 };

/* Where the rows of a candidate are. */
typedef struct candidate_rows {
  size_t object, files;
} candidate_rows;

typedef struct context {
  weir__report *r;
  const weir__tuned *t;
  const weir__tune_result *result;
  size_t file_count;
  candidate_rows recorded, best, expandable;
} context;

static const weir__tune_score *score_of(const context *c, size_t candidate) {
  return &c->result->candidates[candidate].score;
}

/* ---- Candidates ---- */

/* The part of the recorded peak that is saved, in percent. */
static double saved(uint64_t before, uint64_t after) {
  double percent = before ? 100 * ((double)before - (double)after) / (double)before : 0;
  return percent < 0 && percent > -0.05 ? 0 : percent; /* no "-0.0" */
}

static const char *conf_of(const context *c, size_t candidate, char text[WEIR__CONF_TEXT]) {
  return weir__conf_text(&c->result->candidates[candidate].settings, text);
}

static candidate_rows add_candidate(const context *c, const char *key, size_t candidate) {
  const weir__tune_candidate *of = &c->result->candidates[candidate];
  const bool is_mixed = candidate == 0 && c->result->is_mixed;
  char conf[WEIR__CONF_TEXT];
  conf_of(c, candidate, conf);
  candidate_rows rows = {.object = c->r->count};
  WEIR__ROWS(c->r, JSON_OBJECT(key), ROW_TEXT("conf", is_mixed ? NULL : conf, WEIR__UNIT_PLAIN),
             ROW_TEXT("_name",
                      is_mixed ? "those of each file"
                      : *conf  ? conf
                               : "(defaults)",
                      WEIR__UNIT_PLAIN),
             JSON_BOOL("recorded", !candidate), ROW_BYTES("peak_reserved", of->score.peak),
             JSON_REAL("_saved", saved(score_of(c, 0)->peak, of->score.peak), 1),
             ROW_REAL(true, "cost_ns", of->score.cost, 0, WEIR__UNIT_NS), JSON_NATURAL("calls", of->score.calls),
             JSON_NATURAL("retries", of->score.retries), JSON_NATURAL("failures", of->score.failures),
             JSON_LIST("files"));
  rows.files = c->r->open;
  for (size_t i = 0; i < c->file_count; i++) {
    const weir__tuned_file *file = &c->t->files[i];
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("file", file->file), ROW_TEXT("_name", file->name, WEIR__UNIT_PLAIN),
               JSON_INTEGER("device", file->device));
    weir__prediction_rows_add(c->r, &of->of[i]);
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_CLOSE);
  return rows;
}

#define FIGURES "{peak_reserved:12} {_saved:6.1} % {cost_ns:10} {calls:8} {retries:8}  "

static void say_candidate(const context *c, size_t candidate, size_t object) {
  const weir__tune_result *of = c->result;
  c->r->scope = object;
  if (of->moving && candidate == of->moving)
    weir__say(c->r, "*" FIGURES "{_name}   <- best with Weir's allocator*\n");
  else if (candidate == of->best)
    weir__say(c->r, candidate ? "*" FIGURES "{_name}   <- best*\n" : "*" FIGURES "recorded: {_name}   <- best*\n");
  else
    weir__say(c->r, candidate ? FIGURES "{_name}\n" : FIGURES "recorded: {_name}\n");
  c->r->scope = 0;
}

/* ---- The table ---- */

static void add_front(const context *c, const char *key, const char *more, const size_t *front, size_t count) {
  WEIR__ROWS(c->r, JSON_LIST(key));
  for (size_t i = 0; i < count; i++) {
    const size_t object = add_candidate(c, NULL, front[i]).object;
    if (i < LISTED)
      say_candidate(c, front[i], object);
  }
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_NATURAL(more, count - LISTED));
  if (count > LISTED)
    weir__say_of(c->r, more, "             and {$} more that need more memory: see --json\n");
}

static bool is_in_table(const context *c, size_t candidate) {
  for (size_t i = 0; i < c->result->front_count && i < LISTED; i++)
    if (c->result->front[i] == candidate)
      return true;
  return false;
}

/* What the table does not have, and readers look for. */
static void say_others(const context *c) {
  const weir__tune_result *of = c->result;
  const struct {
    size_t candidate, object;
    bool is_wanted;
  } others[] = {{of->best, c->best.object, of->best != 0},
                {of->expandable, c->expandable.object, of->expandable && of->expandable != of->best},
                {0, c->recorded.object, true}};
  bool is_first = true;
  for (size_t i = 0; i < WEIR_COUNT_OF(others); i++) {
    if (!others[i].is_wanted || is_in_table(c, others[i].candidate))
      continue;
    weir__say(c->r, is_first ? "\n" : "");
    say_candidate(c, others[i].candidate, others[i].object);
    is_first = false;
  }
}

/* Of the recording that needs most, as the peaks in the table are. */
static uint64_t least_possible(const context *c) {
  uint64_t most = 0;
  for (size_t i = 0; i < c->file_count; i++) {
    uint64_t least = weir__replayer_least(c->t->options->histories[i], SIZE_MAX);
    most = least > most ? least : most;
  }
  return most;
}

static void add_table(const context *c) {
  const weir__tune_result *of = c->result;
  weir__say(c->r, "{tried} settings tried. The best trade-offs between peak memory, cost and number of keys:\n\n"
                  "    reserved    saved       cost    calls  retries  settings\n");
  add_front(c, "front", "_more", of->front, of->front_count);
  say_others(c);
  if (of->moving)
    weir__say(c->r, "\nWith Weir's allocator under PyTorch, whose key moving_pages PyTorch itself rejects:\n\n");
  add_front(c, "front_moving", "_more_moving", of->front_moving, of->moving ? of->front_moving_count : 0);
  WEIR__ROWS(c->r, ROW_BYTES("least_possible", least_possible(c)));
  weir__say(c->r, "\n" WEIR__LOWER_BOUND);
  weir__say(c->r,
            "\nThe best has the fewest failures, and then the least peak memory; within 1 % of that, the lowest "
            "cost of driver calls, of which half a percent of the job's time does not matter, and then the fewest "
            "keys.\n");
}

/* ---- The verdict ---- */

static void say_failures(const context *c, size_t candidate, size_t files, const char *sentence) {
  size_t row = weir__report_first(files);
  for (size_t i = 0; i < c->file_count; i++, row = weir__report_next(c->r, row)) {
    c->r->scope = row;
    if (c->result->candidates[candidate].of[i].failures)
      weir__say(c->r, sentence);
  }
  c->r->scope = 0;
}

static void say_no_failures(const context *c, size_t candidate) {
  if (score_of(c, 0)->failures && !score_of(c, candidate)->failures)
    weir__say(c->r, "Memory no longer runs out.\n");
}

static void say_best(const context *c) {
  const size_t best = c->result->best;
  const uint64_t before = score_of(c, 0)->peak, after = score_of(c, best)->peak;
  char conf[WEIR__CONF_TEXT];
  if (!best) {
    weir__say(c->r, "No settings were found that are better than the recorded ones.\n");
    return;
  }
  WEIR__ROWS(c->r, ROW_BYTES("_less", before - after));
  weir__say(c->r, *conf_of(c, best, conf) ? "*The best:*\n" WEIR__KEEP_LINE
                                            "  export PYTORCH_CUDA_ALLOC_CONF='{best.conf}'\n"
                                          : "*The best are the defaults:*\n  unset PYTORCH_CUDA_ALLOC_CONF\n");
  weir__say(c->r, after <= before ? "Peak reserved memory is {best.peak_reserved} instead of {recorded.peak_reserved}: "
                                    "{_less} less, {best._saved:.1} %."
                                  : "Peak reserved memory is {best.peak_reserved}; under the recorded settings it was "
                                    "{recorded.peak_reserved}.");
  weir__say(c->r, " Driver calls cost {best.cost_ns} instead of {recorded.cost_ns}.\n");
}

/* From which version of PyTorch on the settings are known, unless the user has stated one. */
static void say_version(const context *c) {
  const char *key;
  weir__pytorch_version since = weir__settings_since(&c->result->candidates[c->result->best].settings, &key);
  if (c->t->pytorch || !weir__version_is_before(WEIR__VERSION_IN_USE, since))
    return;
  WEIR__ROWS(c->r, JSON_TEXT("_key", key), JSON_INTEGER("_major", since.major), JSON_INTEGER("_minor", since.minor));
  weir__say(c->r, c->result->best
                      ? "{_key} needs PyTorch {_major}.{_minor} or newer: --pytorch VERSION leaves out what "
                        "a version does not know.\n"
                      : "{_key} needs PyTorch {_major}.{_minor} or newer.\n");
}

static void say_files(const context *c) {
  for (size_t i = 0; i < c->file_count && c->file_count > 1; i++) {
    uint64_t before = c->result->candidates[0].of[i].peak_reserved;
    uint64_t after = c->result->candidates[c->result->best].of[i].peak_reserved;
    WEIR__ROWS(c->r, JSON_OBJECT("_"), ROW_TEXT("name", c->t->files[i].name, WEIR__UNIT_PLAIN),
               ROW_BYTES("before", before), ROW_BYTES("after", after));
    weir__say(c->r, after > before ? "  {name}: {after} instead of {before}, which is more\n"
                                   : "  {name}: {after} instead of {before}\n");
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
}

/* The best settings with moving_pages, a key that PyTorch itself does not know. */
static void say_moving(const context *c) {
  if (!c->result->moving)
    return;
  weir__say(c->r,
            "*The best with Weir's allocator under PyTorch* (moving_pages is a key that PyTorch does not know: see "
            "docs/python/torch.md):\n" WEIR__KEEP_LINE "  export WEIR_ALLOC_CONF='{best_moving.conf}'\n"
            "Peak reserved memory is {best_moving.peak_reserved}, {best_moving._saved:.1} % less than recorded. Driver "
            "calls cost {best_moving.cost_ns}.\n");
  say_no_failures(c, c->result->moving);
}

static void add_fit(const context *c, const char *key, const weir__fit *fit, bool is_said, const char *sentence) {
  char least[32], bytes[32];
  weir__fit_rows(c->r, key, fit);
  if (!is_said)
    return;
  bool is_range = strcmp(weir__format_bytes(fit->least, least), weir__format_bytes(fit->bytes, bytes)) != 0;
  weir__say_of(c->r, key, fit->bytes ? "  {$.bytes} " : "  none ");
  weir__say(c->r, sentence);
  if (fit->bytes)
    weir__say_of(c->r, key, ", with {$.retries retry}");
  if (fit->bytes && is_range)
    weir__say_of(c->r, key, "; {$.bytes_if_streams_idle} if streams have always done their work when they are asked");
  weir__say(c->r, "\n");
}

static void add_fits(const context *c) {
  const weir__tune_result *of = c->result;
  if (!c->t->options->fit)
    return;
  weir__say(c->r, c->file_count > 1 ? "The least memory in which all jobs run:\n"
                                    : "The least memory in which the job runs:\n");
  add_fit(c, "fit_recorded", &of->fit_recorded, true, "under the recorded settings");
  add_fit(c, "fit_best", &of->fit_best, of->best != 0, "under the best settings");
  add_fit(c, "fit_moving", &of->fit_moving, of->moving != 0, "under the best settings with Weir's allocator");
}

static void say_verdict(const context *c) {
  weir__say(c->r, "\n");
  say_failures(c, 0, c->recorded.files,
               "{_name}: under the recorded settings memory runs out {failures time}; first at " WEIR__FIRST_FAILURE
               ".\n");
  if (c->result->best)
    say_failures(c, c->result->best, c->best.files,
                 "{_name}: under the best settings memory runs out {failures time}; first at " WEIR__FIRST_FAILURE
                 ".\n");
  say_best(c);
  say_no_failures(c, c->result->best);
  say_version(c);
  say_files(c);
  say_moving(c);
}

/* ---- The whole ---- */

/* Replays use other addresses than the recording, and do not repeat races between threads. */
static void say_recorded_peak(const context *c, const weir__replay_report *check, uint64_t recorded,
                              uint64_t replayed) {
  if (c->t->options->memory || check->differences || recorded == replayed)
    return;
  WEIR__ROWS(c->r, ROW_BYTES("_replayed", replayed));
  weir__say(c->r,
            "  The recording itself reserved {_recorded} at its peak. Its settings, replayed like all others, reserve "
            "{_replayed}: ");
  weir__say(c->r, check->raced ? "races between threads are not repeated.\n" : "segments have other addresses.\n");
}

static void say_file(const context *c, size_t i) {
  const weir__replayer *history = c->t->options->histories[i];
  const weir__replay_report *check = weir__replayer_check(history);
  const uint64_t recorded = (uint64_t)check->stats.reserved_bytes[WEIR_STAT_ALL].peak;
  WEIR__ROWS(c->r, JSON_OBJECT("_"), JSON_NATURAL("events", check->events), ROW_BYTES("_recorded", recorded));
  weir__check_say(c->r, check, c->t->files[i].name, c->t->options->memory != 0);
  weir__start_rows(c->r, history);
  if (weir__replayer_start(history)->segment_count)
    weir__say(c->r,
              "  began late: " WEIR__EXISTED_BEFORE
              ".\n  Their order is not known, so they are allocated again in order of address in every row below: "
              "compare these with each other. The recording itself reserved {_recorded} at its peak.\n");
  else
    say_recorded_peak(c, check, recorded, c->result->candidates[0].of[i].peak_reserved);
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* null stands for no candidate. */
static candidate_rows add_found(const context *c, const char *key, size_t candidate) {
  if (candidate)
    return add_candidate(c, key, candidate);
  WEIR__ROWS(c->r, JSON_NULL(key));
  return (candidate_rows){0};
}

void weir__tune_report(weir__report *r, const weir__tuned *t) {
  context of = {.r = r, .t = t, .result = t->result, .file_count = t->options->history_count}, *c = &of;
  weir__report_begin(r);
  WEIR__ROWS(r, JSON_NATURAL("files", c->file_count), JSON_NATURAL("tried", c->result->candidate_count));
  for (size_t i = 0; i < c->file_count; i++)
    say_file(c, i);
  c->recorded = add_candidate(c, "recorded", 0);
  c->best = add_candidate(c, "best", c->result->best);
  add_found(c, "best_moving", c->result->moving);
  c->expandable = add_found(c, "expandable", c->result->expandable);
  add_table(c);
  WEIR__ROWS(r, JSON_TEXT("pytorch", t->pytorch));
  say_verdict(c);
  add_fits(c);
}
