#include "record/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "record/ring_file.h"
#include "record/stacks.h"
#include "record/texts.h"
#include "record/this_thread.h"

/* ---- All recorders ---- */

atomic_int weir__recorders_on;

static weir__recorder *all;
static weir__mutex all_lock = WEIR__MUTEX_INIT;

static void lock_all(void) { weir__mutex_lock(&all_lock); }
static void unlock_all(void) { weir__mutex_unlock(&all_lock); }

static void count_on(void) {
  int on = 0;
  for (const weir__recorder *history = all; history; history = history->next)
    on += weir__recorder_is_on(history);
  atomic_store_explicit(&weir__recorders_on, on, memory_order_relaxed);
}

static void list_add(weir__recorder *history) {
  lock_all();
  history->next = all;
  all = history;
  unlock_all();
}

static void list_remove(weir__recorder *history) {
  lock_all();
  weir__recorder **at = &all;
  while (*at != history)
    at = &(*at)->next;
  *at = history->next;
  count_on();
  unlock_all();
}

/* ---- Recording ---- */

weir__recorder *weir__recorder_new(int devices) {
  size_t bytes = sizeof(weir__recorder) + (size_t)devices * sizeof(weir__recorder_device);
  weir__recorder *history = calloc(1, bytes);
  if (!history)
    return NULL;
  weir__clock_start();
  weir__mutex_init(&history->lock);
  history->limit = 1;
  history->annotations_end = &history->annotations;
  history->device_count = devices;
  for (int i = 0; i < devices; i++)
    history->devices[i].marks = (weir__writer){
        .rings = &history->rings, .ring = &history->devices[i].ring, .rules = WEIR__NO_RULES, .device = i};
  list_add(history);
  return history;
}

static void drop_annotations(weir__recorder *history, size_t keep) {
  weir__annotation *oldest;
  while (history->annotation_count > keep && (oldest = history->annotations)) {
    history->annotations = oldest->next;
    if (!oldest->next)
      history->annotations_end = &history->annotations;
    free(oldest);
    history->annotation_count--;
  }
}

/* ---- The file, and forks ---- */

/* The file belongs to the parent. A new generation makes every writer ask for a new chunk; the old ones are ignored. */
static void in_child(void) {
  for (weir__recorder *history = all; history; history = history->next) {
    if (!history->file)
      continue;
    if (!weir__ring_file_detach(history->file))
      atomic_store(&history->mode, WEIR_HISTORY_OFF);
    for (int i = 0; i < history->device_count; i++)
      weir__ring_leave_file(&history->devices[i].ring);
    weir__rules rules = weir__rings_rules(&history->rings);
    rules.generation++;
    atomic_store(&history->rings.rules, rules.word);
  }
  unlock_all();
}

WEIR__AT_LOAD(WEIR__LOAD_LISTS) void watch_forks(void) { weir__at_fork(lock_all, unlock_all, in_child); }

void weir__recorder_set_file(weir__recorder *history, weir__ring_file *file) {
  lock_all();
  history->file = file;
  for (int i = 0; i < history->device_count; i++) {
    history->devices[i].ring.file = file;
    history->devices[i].ring.device = i;
  }
  unlock_all();
}

void weir__recorder_delete(weir__recorder *history) {
  if (!history)
    return;
  list_remove(history);
  drop_annotations(history, 0);
  for (int i = 0; i < history->device_count; i++) {
    weir__writer_end(&history->devices[i].marks);
    weir__ring_end(&history->devices[i].ring);
  }
  weir__ring_file_close(history->file);
  weir__mutex_destroy(&history->lock);
  free(history);
}

static void clear(weir__recorder *history) {
  drop_annotations(history, 0);
  history->annotations_dropped = 0;
  for (int i = 0; i < history->device_count; i++)
    weir__ring_clear(&history->devices[i].ring);
}

void weir__recorder_clear(weir__recorder *history) {
  weir__mutex_lock(&history->lock);
  clear(history);
  weir__mutex_unlock(&history->lock);
}

void weir__recorder_set(weir__recorder *history, const weir_history_options *options) {
  static const unsigned file_only = 1u << WEIR__ACTION_PAIRS | 1u << WEIR__ACTION_TAKEN;
  bool on = options->mode != WEIR_HISTORY_OFF;
  if (on && options->context != WEIR_CONTEXT_NONE && options->stacks != WEIR_STACKS_LANGUAGE)
    weir__stacks_start_for(options->stacks);
  weir__mutex_lock(&history->lock);
  history->limit = options->mode == WEIR_HISTORY_ALL && options->max_entries ? options->max_entries : 1;
  for (int i = 0; i < history->device_count; i++) {
    weir__ring *ring = &history->devices[i].ring;
    weir__lock_acquire(&ring->lock);
    ring->limit = history->limit;
    weir__lock_release(&ring->lock);
  }
  atomic_store(&history->stacks, options->stacks);
  bool was_on = weir__recorder_is_on(history);
  weir__rules rules = {.generation = weir__rings_rules(&history->rings).generation + (!on && was_on),
                       .skip = (uint16_t)(options->skip & ~file_only),
                       .context = on ? (uint8_t)options->context : WEIR_CONTEXT_NONE,
                       .has_texts = weir__rings_rules(&history->rings).has_texts};
  atomic_store(&history->rings.rules, rules.word);
  if (!on || !was_on || options->clear) /* also what a thread wrote before it noticed the end */
    clear(history);
  atomic_store(&history->mode, options->mode);
  size_t before = history->annotation_count;
  drop_annotations(history, history->limit);
  history->annotations_dropped += before - history->annotation_count;
  weir__mutex_unlock(&history->lock);
  lock_all();
  count_on();
  unlock_all();
}

void weir__recorder_stop(weir__recorder *history) {
  weir__mutex_lock(&history->lock);
  weir__rules rules = weir__rings_rules(&history->rings);
  rules.generation++;
  rules.context = WEIR_CONTEXT_NONE;
  atomic_store(&history->rings.rules, rules.word);
  atomic_store(&history->mode, WEIR_HISTORY_OFF);
  weir__mutex_unlock(&history->lock);
  lock_all();
  count_on();
  unlock_all();
}

void weir__recorder_set_metadata(weir__recorder *history, int device, uint32_t text) {
  weir__mutex_lock(&history->lock);
  atomic_store(&history->devices[device].ring.metadata, text);
  weir__rules rules = weir__rings_rules(&history->rings);
  rules.has_texts = 0;
  for (int i = 0; i < history->device_count; i++)
    rules.has_texts |= atomic_load(&history->devices[i].ring.metadata) != 0;
  atomic_store(&history->rings.rules, rules.word);
  weir__mutex_unlock(&history->lock);
}

static void mark(weir__recorder *history, int number, unsigned action, uint64_t address, uint64_t bytes, uint32_t text,
                 uint32_t stack) {
  weir__recorder_device *device = &history->devices[number];
  uint32_t phase = weir__this_thread.phase & ~WEIR__PHASE_FRESH;
  weir__entry_context context = {phase, weir__compile_here(), text};
  weir__lock_acquire(&device->lock);
  weir__writer_mark(&device->marks, action, address, bytes, stack, text ? weir__context_number(context) : 0, NULL);
  weir__lock_release(&device->lock);
}

void weir__recorder_mark(weir__recorder *history, int number, unsigned action, uint64_t address, uint64_t bytes,
                         uint32_t text) {
  if (!weir__recorder_is_on(history))
    return;
  bool is_users = action == WEIR_TRACE_ANNOTATE || action == WEIR_TRACE_USER_DEFINED;
  mark(history, number, action, address, bytes, text, is_users ? weir__recorder_stack(history, WEIR_CONTEXT_ALL) : 0);
}

/* ---- Annotations ---- */

/* A ring file gets the first `file_count` pairs, which repeat, and the numbers of `work`, if it is not NULL. */
static bool annotate(weir__recorder *history, int device, const char *const *pairs, size_t pair_count,
                     size_t file_count, const weir__recorded_work *work) {
  if (!weir__recorder_is_on(history))
    return true;
  size_t bytes = 0, file_bytes = 0;
  for (size_t i = 0; i < 2 * pair_count; i++) {
    bytes += strlen(pairs[i]) + 1;
    if (i < 2 * file_count)
      file_bytes = bytes;
  }
  weir__annotation *made = malloc(sizeof *made + bytes);
  if (!made)
    return false;
  *made = (weir__annotation){.device = device, .pair_count = (uint32_t)file_count};
  char *at = made->texts;
  for (size_t i = 0; i < 2 * pair_count; i++) {
    size_t length = strlen(pairs[i]) + 1;
    memcpy(at, pairs[i], length);
    at += length;
  }
  if (history->file) {
    weir__recorder_device *of = &history->devices[device];
    uint32_t number = weir__pairs_number(made->texts, file_bytes, made->pair_count);
    weir__lock_acquire(&of->lock);
    if (number)
      weir__writer_mark(&of->marks, WEIR__ACTION_PAIRS, work ? (uint64_t)work->start_ns : 0, work ? work->bytes : 0, 0,
                        number, work);
    weir__lock_release(&of->lock);
  }
  made->pair_count = (uint32_t)pair_count;
  weir__mutex_lock(&history->lock);
  made->time = weir__clock_ticks();
  *history->annotations_end = made;
  history->annotations_end = &made->next;
  history->annotation_count++;
  if (history->annotation_count > history->limit) {
    drop_annotations(history, history->limit);
    history->annotations_dropped++;
  }
  weir__mutex_unlock(&history->lock);
  return true;
}

bool weir__recorder_annotate(weir__recorder *history, int device, const char *const *pairs, size_t pair_count) {
  return annotate(history, device, pairs, pair_count, pair_count, NULL);
}

static int device_in(const weir__recorder *history, int device) {
  return device >= 0 && device < history->device_count ? device : 0;
}

bool weir__recorders_annotate(int device, const char *const *pairs, size_t pair_count) {
  bool done = true;
  lock_all();
  for (weir__recorder *history = all; history; history = history->next)
    done = weir__recorder_annotate(history, device_in(history, device), pairs, pair_count) && done;
  unlock_all();
  return done;
}

/* Without a stack: its hook must not be called under a lock. */
void weir__recorders_mark(int device, uint32_t text) {
  lock_all();
  for (weir__recorder *history = all; history; history = history->next)
    if (weir__recorder_is_on(history))
      mark(history, device_in(history, device), WEIR_TRACE_USER_DEFINED, 0, 0, text, 0);
  unlock_all();
}

void weir__recorders_add_work(const weir__recorded_work *work) {
  char stream[24], start[24], duration[24], bytes[24];
  snprintf(stream, sizeof stream, "%llu", (unsigned long long)work->stream);
  snprintf(start, sizeof start, "%lld", (long long)work->start_ns);
  snprintf(duration, sizeof duration, "%llu", (unsigned long long)work->duration_ns);
  snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)work->bytes);
  const char *const pairs[] = {"stage", WEIR__STAGE_WORK, "name", work->name,    "kind",   work->kind, "stream",
                               stream,  "start_ns",       start,  "duration_ns", duration, "bytes",    bytes};
  lock_all();
  for (weir__recorder *history = all; history; history = history->next)
    if (!annotate(history, device_in(history, work->device), pairs, WEIR_COUNT_OF(pairs) / 2, 3, work))
      atomic_fetch_add_explicit(&history->rings.lost, 1, memory_order_relaxed);
  unlock_all();
}

void weir__recorder_annotations(weir__recorder *history,
                                void (*each)(void *context, const weir__annotation *annotation), void *context) {
  weir__mutex_lock(&history->lock);
  for (const weir__annotation *a = history->annotations; a; a = a->next)
    each(context, a);
  weir__mutex_unlock(&history->lock);
}
