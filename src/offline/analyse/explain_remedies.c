/*
 * What would have helped: each remedy is replayed within the same limit, up to the request.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/replay_port.h"
#include "base/base.h"
#include "base/parallel.h"
#include "offline/analyse/explain_remedies.h"
#include "offline/analyse/predict.h"

typedef struct watch {
  size_t target, empty_after; /* events; WEIR__NO_ENTRY if the cache is not emptied */
  size_t allowed;             /* failures before the target: with more, the run ends */
  bool has_begun, is_emptied, is_seen;
  size_t failures;      /* so far */
  size_t failed_before; /* the target */
  bool served;
  uint64_t reserved;
} watch;

static bool look(void *context, weir_allocator *allocator, size_t event, const weir__replay_report *report) {
  watch *w = context;
  if (!w->has_begun)
    w->failures = report->unplaced;
  w->has_begun = true;
  if (event >= w->target) {
    w->is_seen = true;
    w->failed_before = w->failures;
    w->served = report->failures == w->failures;
    weir_allocator_stats stats = {.size = sizeof stats};
    weir_allocator_get_stats(allocator, 0, &stats);
    w->reserved = (uint64_t)stats.reserved_bytes[WEIR_STAT_ALL].peak;
    return false;
  }
  w->failures = report->failures;
  if (w->failures > w->allowed) {
    w->failed_before = w->failures;
    return false;
  }
  if (!w->is_emptied && event >= w->empty_after) {
    w->is_emptied = true;
    weir_allocator_empty_cache(allocator);
  }
  return true;
}

/* The capacity at the failure. Other processes may have used a part of the device. */
static weir_status capacity_for(const weir__trial_options *o, const weir__settings *settings,
                                weir__capacity *capacity) {
  weir_status status = weir__replayer_capacity_of(o->replayer, settings, o->memory, o->fraction, capacity);
  if (!status && o->most != UINT64_MAX && (!capacity->memory || capacity->memory > o->most))
    capacity->memory = o->most;
  return status;
}

/* Of a range, the worse end counts; *differs, which may be NULL, becomes whether the other end serves the request. */
static weir_status run_in(const weir__trial_options *o, const weir__settings *settings, const weir__capacity *capacity,
                          size_t empty_after, size_t allowed, watch *w, bool *differs) {
  weir__replay_report report;
  weir__capacity busy = *capacity;
  watch other = {.target = o->event, .empty_after = empty_after, .allowed = allowed};
  *w = other;
  busy.is_busy = true;
  weir_status status = weir__replayer_run(o->replayer, settings, capacity, &(weir__replay_callback){look, w}, &report);
  if (status || !weir__replayer_is_range(o->replayer, settings))
    return status;
  status = weir__replayer_run(o->replayer, settings, &busy, &(weir__replay_callback){look, &other}, &report);
  bool is_worse = w->served && (!other.served || other.failed_before > w->failed_before);
  if (!status && differs)
    *differs = is_worse;
  if (!status && (is_worse || (w->served && other.reserved > w->reserved)))
    *w = other;
  return status;
}

/* One trial in all orders of addresses. */
typedef struct trial_run {
  const weir__trial_options *options;
  const weir__settings *settings; /* NULL for the recorded ones */
  weir__capacity capacity;
  size_t empty_after, recorded; /* failures before the request in the recording */
  unsigned first;               /* order */
} trial_run;

typedef struct outcome {
  weir_status status;
  bool works, differs;
  watch seen;
} outcome;

static void run_order(void *context, size_t index, void *result) {
  const trial_run *t = context;
  weir__capacity capacity = t->capacity;
  outcome *to = result;
  capacity.order = t->first + (unsigned)index;
  to->status = run_in(t->options, t->settings, &capacity, t->empty_after, capacity.order ? t->recorded : SIZE_MAX,
                      &to->seen, &to->differs);
  to->works = !to->status && to->seen.is_seen && to->seen.served && to->seen.failed_before <= t->recorded;
}

/* Runs the orders that were not tried yet, up to `count`. */
static weir_status run_orders(trial_run *t, unsigned count, weir__trial *trial) {
  outcome outcomes[WEIR__TRIAL_ORDERS];
  t->first = trial->orders;
  weir__parallel_run(&(weir__parallel){0}, count - t->first, run_order, t, outcomes, sizeof *outcomes);
  for (unsigned i = 0; i < count - t->first; i++) {
    const outcome *one = &outcomes[i];
    const uint64_t reserved = one->seen.reserved;
    if (one->status)
      return weir__fail(one->status, "a replay failed: %s", weir_status_string(one->status));
    if (!trial->orders++) {
      trial->depends = one->differs;
      trial->failed_before = one->seen.failed_before;
      trial->reserved = trial->reserved_most = reserved;
    }
    if (!one->works)
      continue;
    bool is_first = !trial->orders_served++;
    trial->reserved = is_first || reserved < trial->reserved ? reserved : trial->reserved;
    trial->reserved_most = is_first || reserved > trial->reserved_most ? reserved : trial->reserved_most;
  }
  trial->works = trial->orders_served == trial->orders;
  return WEIR_OK;
}

/* Tries a remedy with the addresses of the ledger, and in the other orders where they matter. What fails is tried first
 * with the highest limit that the recording allows: if it works there, the limit decides, and the orders need not. */
static weir_status try_remedy(const weir__trial_options *o, const weir__settings *settings, size_t empty_after,
                              size_t recorded, bool has_orders, const weir__explanation *x, weir__trial *trial) {
  trial_run t = {.options = o, .settings = settings, .empty_after = empty_after, .recorded = recorded};
  weir__trial higher = {.remedy = trial->remedy};
  bool is_open = x->limit_is_inferred && !x->limit_is_device && x->limit_max != UINT64_MAX && x->limit_max > x->limit;
  weir_status status = capacity_for(o, settings, &t.capacity);
  has_orders = has_orders && weir__replayer_depends_on_order(o->replayer, settings);
  if (!status)
    status = run_orders(&t, has_orders && x->orders_served ? WEIR__TRIAL_ORDERS : 1, trial);
  if (!status && !trial->orders_served && is_open) {
    trial_run with_more = t;
    with_more.capacity.limit = x->limit_max;
    status = run_orders(&with_more, 1, &higher);
    trial->depends_on_limit = higher.works;
  }
  if (status || !has_orders || trial->depends_on_limit)
    return status;
  return run_orders(&t, WEIR__TRIAL_ORDERS, trial);
}

static const weir__recording_entry *events_of(const weir__trial_options *o) {
  return o->recording->devices[o->options->device].events;
}

/* The last event that does not belong to the request: neither a release for it nor a block that it waited for. */
static size_t before_request(const weir__trial_options *o) {
  const weir__recording_entry *events = events_of(o);
  size_t i = o->event;
  while (i > 0 && events[i - 1].action >= WEIR_TRACE_FREE_COMPLETED && events[i - 1].action <= WEIR_TRACE_SEGMENT_UNMAP)
    i--;
  return i ? i - 1 : 0;
}

/* Sums may wrap around, since a file may contain any number. */
static uint64_t change_of(const weir__recording_entry *e) {
  return e->action == WEIR_TRACE_ALLOC ? e->size : e->action == WEIR_TRACE_FREE_REQUESTED ? 0 - e->size : 0;
}

/* The last event of the second half of the history at which about the least was in use: the end of the last step. */
static size_t quiet_event(const weir__trial_options *o) {
  const weir__recording_entry *events = events_of(o);
  const weir__state *start = weir__replayer_start(o->replayer);
  uint64_t live = 0;
  int64_t least = INT64_MAX;
  size_t quiet = WEIR__NO_ENTRY;
  for (size_t i = 0; i < start->block_count; i++)
    live += start->blocks[i].state == WEIR_BLOCK_ACTIVE_ALLOCATED ? start->blocks[i].requested : 0;
  for (size_t i = 0; i < o->event; i++) {
    live += change_of(&events[i]);
    if (i >= o->event / 2 && (int64_t)live < least)
      least = (int64_t)live;
  }
  for (size_t i = o->event; i-- > 0 && quiet == WEIR__NO_ENTRY && least < INT64_MAX;) {
    if ((double)(int64_t)live <= 1.05 * (double)least)
      quiet = i;
    live -= change_of(&events[i]);
  }
  return quiet;
}

static size_t failures_before(const weir__trial_options *o) {
  size_t count = 0;
  for (size_t i = 0; i < o->event; i++)
    count += events_of(o)[i].action == WEIR_TRACE_OOM;
  return count;
}

/* The text to set: the recorded text with the change, if it can be parsed, or else the recorded settings with it. */
static bool export_text(const weir__recording *recording, const weir__settings *recorded, const char *change,
                        char text[WEIR__TRIAL_TEXT]) {
  weir__settings settings;
  if (weir__settings_parse(NULL, recording->conf ? recording->conf : "", &settings))
    settings = *recorded;
  if (weir__settings_parse(&settings, change, &settings))
    return false;
  if (settings.moving_pages)
    settings.expandable_segments = false; /* implied */
  return weir__settings_format(&settings, text, WEIR__TRIAL_TEXT) < WEIR__TRIAL_TEXT;
}

static const char *const changes[] = {
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:default",
    "expandable_segments:False",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:default",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "max_split_size_mb:1024",
    "roundup_power2_divisions:default",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:default",
    "moving_pages:True", /* not a key of PyTorch, so it comes last */
};

enum { CHANGES = sizeof changes / sizeof *changes };

static void keep(const weir__trial *trial, weir__explanation *x) {
  if (x->trial_count < WEIR__TRIALS)
    x->trials[x->trial_count++] = *trial;
}

static void progress(const weir__trial_options *o, size_t done) {
  if (o->options->progress)
    o->options->progress(o->options->progress_context, done, CHANGES + 3);
}

/* Right before the request, emptying the cache does what the allocator does itself before it fails: orders in which it
 * helps would be among those in which the recorded settings serve the request. */
static weir_status try_emptying(const weir__trial_options *o, size_t recorded, weir__explanation *x) {
  const size_t when[] = {before_request(o), quiet_event(o)};
  for (size_t i = 0; i < 2; i++) {
    weir__trial trial = {.remedy = WEIR__REMEDY_EMPTY, .event = when[i], .is_early = i == 1};
    if (when[i] == WEIR__NO_ENTRY)
      continue;
    weir_status status = try_remedy(o, NULL, when[i], recorded, i == 1 || x->orders_served, x, &trial);
    if (status)
      return status;
    keep(&trial, x);
    progress(o, 2 + i);
  }
  return WEIR_OK;
}

static bool is_known(const weir__explanation *x, const char *conf) {
  for (size_t i = 0; i < x->trial_count; i++)
    if (x->trials[i].remedy == WEIR__REMEDY_SETTING && strcmp(x->trials[i].conf, conf) == 0)
      return true;
  return false;
}

static weir_status try_settings(const weir__trial_options *o, size_t recorded, weir__explanation *x) {
  const weir__settings *known = weir__replayer_settings(o->replayer);
  if (weir__replayer_start(o->replayer)->segment_count) {
    weir__trial anew = {.remedy = WEIR__REMEDY_SETTING};
    weir_status status = try_remedy(o, known, WEIR__NO_ENTRY, recorded, true, x, &anew);
    if (status)
      return status;
    x->is_served_anew = anew.orders_served > 0;
  }
  for (size_t i = 0; i < CHANGES; i++) {
    weir__settings settings;
    weir__trial trial = {.remedy = WEIR__REMEDY_SETTING};
    progress(o, 3 + i);
    /* Whether equivalent settings were tried before. */
    if (weir__settings_parse(known, changes[i], &settings) || weir__settings_equal(&settings, known) ||
        !export_text(o->recording, known, changes[i], trial.conf) || is_known(x, trial.conf))
      continue;
    snprintf(trial.change, sizeof trial.change, "%s", changes[i]);
    trial.is_weir_only = settings.moving_pages;
    weir_status status = try_remedy(o, &settings, WEIR__NO_ENTRY, recorded, true, x, &trial);
    if (status)
      return status;
    keep(&trial, x);
  }
  return WEIR_OK;
}

/* Whether the request, and all requests of the recording, are served with `steps` of memory: of the limit if there is
 * one, or else of the device. */
static weir_status try_steps(const weir__trial_options *o, bool is_limit, uint64_t steps, bool whole, size_t recorded,
                             bool *works) {
  weir__capacity capacity = {.limit = UINT64_MAX};
  *(is_limit ? &capacity.limit : &capacity.memory) = steps * WEIR__FIT_STEP;
  if (whole) {
    weir__replay_report report;
    weir_status status = weir__replayer_run(o->replayer, NULL, &capacity, NULL, &report);
    *works = !status && !report.failures;
    return status;
  }
  watch w;
  weir_status status = run_in(o, NULL, &capacity, WEIR__NO_ENTRY, SIZE_MAX, &w, NULL);
  *works = !status && w.is_seen && w.served && w.failed_before <= recorded;
  return status;
}

/* The least number of steps above `least` that works; 0 if there is none. */
static weir_status find_fit(const weir__trial_options *o, bool is_limit, uint64_t least, uint64_t guess, bool whole,
                            size_t recorded, uint64_t *found) {
  uint64_t most = guess > least ? guess : least + 1;
  bool works = false;
  weir_status status;
  *found = 0;
  while (!(status = try_steps(o, is_limit, most, whole, recorded, &works)) && !works) {
    least = most;
    most += most / 8 + 1;
    if (most > WEIR__REPLAY_ENOUGH_MEMORY / WEIR__FIT_STEP)
      return WEIR_OK;
  }
  while (!status && most - least > 1) {
    uint64_t middle = least + (most - least) / 2;
    status = try_steps(o, is_limit, middle, whole, recorded, &works);
    *(works ? &most : &least) = middle;
  }
  *found = status ? 0 : most;
  return status;
}

/* How much memory would have been enough: more than at the failure. */
static weir_status find_fits(const weir__trial_options *o, size_t recorded, weir__explanation *x) {
  weir__capacity capacity;
  weir_status status = capacity_for(o, NULL, &capacity);
  if (status)
    return status;
  uint64_t limit = capacity.is_recorded ? weir__replayer_limit_at(o->replayer, o->event) : capacity.limit;
  bool is_limit = !capacity.memory || limit < capacity.memory, works = false;
  uint64_t failed = is_limit ? limit : capacity.memory, found = 0;
  if (x->wanted > WEIR__REPLAY_ENOUGH_MEMORY || failed > WEIR__REPLAY_ENOUGH_MEMORY)
    return WEIR_OK;
  uint64_t guess = (x->reserved + x->wanted + WEIR__FIT_STEP - 1) / WEIR__FIT_STEP;
  status = find_fit(o, is_limit, failed / WEIR__FIT_STEP, guess, false, recorded, &found);
  x->fit_request = found * WEIR__FIT_STEP;
  if (!status && found)
    status = try_steps(o, is_limit, found, true, recorded, &works);
  if (!status && found && !works)
    status = find_fit(o, is_limit, found, found + 1, true, recorded, &found);
  x->fit_recording = status ? 0 : found * WEIR__FIT_STEP;
  return status;
}

weir_status weir__try_remedies(const weir__trial_options *o, weir__explanation *x) {
  x->least_possible = weir__replayer_least(o->replayer, o->event);
  size_t recorded = failures_before(o);
  weir__trial same = {.remedy = WEIR__REMEDY_WAIT};
  trial_run t = {.options = o, .empty_after = WEIR__NO_ENTRY, .recorded = SIZE_MAX};
  progress(o, 1);
  if (o->was_rescued)
    same = (weir__trial){
        .remedy = WEIR__REMEDY_WAIT, .works = true, .reserved = x->reserved, .reserved_most = x->reserved};
  else {
    weir_status status = capacity_for(o, NULL, &t.capacity);
    if (!status)
      status = run_orders(&t, weir__replayer_depends_on_order(o->replayer, NULL) ? WEIR__TRIAL_ORDERS : 1, &same);
    if (status)
      return status;
    x->orders = same.orders;
    x->orders_served = same.orders_served;
    /* With the recorded addresses it fails, as a checked replay has shown. */
    if (same.works && !weir__replayer_depends_on_order(o->replayer, NULL))
      return WEIR_OK;
    /* The allocator waits for all streams and searches again before it fails, so waiting does not help. */
    same = (weir__trial){.remedy = WEIR__REMEDY_WAIT};
  }
  x->is_proven = true;
  keep(&same, x);
  weir_status status = try_emptying(o, recorded, x);
  if (!status)
    status = try_settings(o, recorded, x);
  return status || o->was_rescued || x->orders_served ? status : find_fits(o, recorded, x);
}
