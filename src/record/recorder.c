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

_Thread_local weir__this_thread_state weir__this_thread __attribute__((tls_model("initial-exec")));

/* ---- Stacks of blocks ---- */

typedef struct stack_entry {
  uint64_t address;
  uint32_t stack;
} stack_entry;

static void put_stack(weir__hash_map *stacks, uint64_t address, uint32_t stack) {
  stack_entry *entry = weir__hash_map_put(stacks, sizeof *entry, address);
  if (entry)
    entry->stack = stack;
}

static uint32_t find_stack(const weir__hash_map *stacks, uint64_t address) {
  const stack_entry *entry = weir__hash_map_find(stacks, sizeof *entry, address);
  return entry ? entry->stack : 0;
}

static uint32_t take_stack(weir__hash_map *stacks, uint64_t address) {
  stack_entry *entry = weir__hash_map_find(stacks, sizeof *entry, address);
  uint32_t stack = entry ? entry->stack : 0;
  if (entry)
    weir__hash_map_remove(stacks, sizeof *entry, entry);
  return stack;
}

/* ---- Numbers ---- */

/* Pools, contexts and annotations are interned as structs, and differ from texts in their first byte. */
enum { POOL_MARK = 1, CONTEXT_MARK = 2, PAIRS_MARK = 3 };

typedef struct marked_pool {
  uint64_t mark;
  weir_pool_id id;
} marked_pool;

typedef struct marked_context {
  uint32_t mark;
  weir__entry_context context;
} marked_context;

static uint32_t pool_number(weir_pool_id id) {
  if (!id.first && id.second < WEIR__POOL_DIRECT)
    return (uint32_t)id.second | (id.second ? WEIR__POOL_SECOND : 0);
  if (!id.second && id.first < WEIR__POOL_DIRECT)
    return (uint32_t)id.first | WEIR__POOL_FIRST;
  marked_pool pool = {POOL_MARK, id};
  return weir__intern_put(&weir__texts, &pool, sizeof pool);
}

bool weir__pool_of_bytes(const void *bytes, size_t length, weir_pool_id *id) {
  marked_pool pool;
  if (!bytes || length != sizeof pool)
    return false;
  memcpy(&pool, bytes, sizeof pool);
  *id = pool.id;
  return pool.mark == POOL_MARK;
}

bool weir__pool_is_direct(uint32_t number, weir_pool_id *id) {
  uint32_t value = number % WEIR__POOL_DIRECT;
  *id = number & WEIR__POOL_FIRST ? (weir_pool_id){value, 0} : (weir_pool_id){0, value};
  return !number || number >= WEIR__POOL_DIRECT;
}

weir_pool_id weir__pool_of_number(uint32_t number) {
  size_t length;
  weir_pool_id direct;
  if (weir__pool_is_direct(number, &direct))
    return direct;
  const void *bytes = weir__intern_get(&weir__texts, number, &length);
  weir_pool_id id;
  return weir__pool_of_bytes(bytes, length, &id) ? id : (weir_pool_id){0, 0};
}

static uint32_t context_number(weir__entry_context context) {
  if (!(context.phase | context.compile | context.metadata))
    return 0;
  marked_context marked = {CONTEXT_MARK, context};
  return weir__intern_put(&weir__texts, &marked, sizeof marked);
}

bool weir__context_of_bytes(const void *bytes, size_t length, weir__entry_context *context) {
  marked_context marked;
  if (!bytes || length != sizeof marked)
    return false;
  memcpy(&marked, bytes, sizeof marked);
  *context = marked.context;
  return marked.mark == CONTEXT_MARK;
}

weir__entry_context weir__context_of_number(uint32_t number) {
  size_t length;
  const void *bytes = weir__intern_get(&weir__texts, number, &length);
  weir__entry_context context;
  return weir__context_of_bytes(bytes, length, &context) ? context : (weir__entry_context){0, 0, 0};
}

/* Annotations repeat, and each is interned once. */
typedef struct marked_pairs {
  uint32_t mark, count;
  char texts[];
} marked_pairs;

static uint32_t pairs_number(const weir__annotation *annotation, size_t bytes) {
  marked_pairs *marked = malloc(sizeof *marked + bytes);
  if (!marked)
    return 0;
  marked->mark = PAIRS_MARK;
  marked->count = annotation->pair_count;
  memcpy(marked->texts, annotation->texts, bytes);
  uint32_t number = weir__intern_put(&weir__texts, marked, sizeof *marked + bytes);
  free(marked);
  return number;
}

bool weir__pairs_of_bytes(const void *bytes, size_t length, const char **texts, size_t *count) {
  marked_pairs marked;
  if (!bytes || length < sizeof marked)
    return false;
  memcpy(&marked, bytes, sizeof marked);
  const char *at = (const char *)bytes + sizeof marked, *end = (const char *)bytes + length;
  *texts = at;
  *count = 0;
  for (int key = 1; at < end; key = !key) {
    size_t room = (size_t)(end - at), used = strnlen(at, room);
    if (used == room)
      return false;
    at += used + 1;
    *count += !key;
  }
  return marked.mark == PAIRS_MARK && *count == marked.count;
}

static inline uint32_t compile_here(void) { return weir__this_thread.compile & ~WEIR__COMPILE_HAS_METADATA; }

/* The thread caches the last context: neither phases nor metadata change often. */
static __attribute__((noinline)) uint32_t context_here(uint32_t phase, uint32_t metadata) {
  weir__this_thread_state *here = &weir__this_thread;
  if (here->own_metadata)
    metadata = here->own_metadata;
  if (!here->context || here->metadata != metadata || here->context_phase != phase) {
    here->context = context_number((weir__entry_context){phase, compile_here(), metadata});
    here->metadata = metadata;
    here->context_phase = phase;
  }
  return here->context;
}

static _Atomic uint32_t shared_phase;

void weir_history_share_phase(uint32_t phase) { atomic_store_explicit(&shared_phase, phase, memory_order_relaxed); }

/* The calling thread's phase. A thread whose language has no frames takes the shared phase instead. */
static inline uint32_t phase_here(void) {
  uint32_t phase = weir__this_thread.phase & ~WEIR__PHASE_FRESH;
  return phase || !weir__this_thread.lacks_frames ? phase : atomic_load_explicit(&shared_phase, memory_order_relaxed);
}

uint32_t weir_history_enter_phase(const char *name) {
  uint32_t before = weir__this_thread.phase, number = weir__text_number(name);
  weir_history_leave_phase(number ? number | WEIR__PHASE_FRESH : 0);
  return before;
}

void weir_history_leave_phase(uint32_t before) {
  weir__this_thread.phase = before;
  weir__this_thread.context = 0;
}

uint32_t weir_history_enter_compile(const char *name) {
  uint32_t before = compile_here();
  weir_history_leave_compile(weir__text_number(name));
  return before;
}

void weir_history_leave_compile(uint32_t before) {
  uint32_t flag = weir__this_thread.own_metadata ? WEIR__COMPILE_HAS_METADATA : 0;
  weir__this_thread.compile = before | flag;
  weir__this_thread.context = 0;
}

uint32_t weir_history_exchange_metadata(uint32_t text) {
  uint32_t before = weir__this_thread.own_metadata;
  weir__this_thread.own_metadata = text;
  weir_history_leave_compile(compile_here());
  return before;
}

/* ---- Names ---- */

static const char *const action_names[] = {
#define X(name, number, text) [number] = text,
    WEIR_TRACE_ACTION_MAP(X)
#undef X
};
_Static_assert((int)WEIR__ACTION_TAKEN < (int)WEIR_TRACE_ACTIONS &&
                   (int)WEIR__ACTION_UNKNOWN == (int)WEIR_TRACE_ACTIONS,
               "internal actions fill the gap, or follow the public ones");

const char *weir_trace_action_name(weir_trace_action action) {
  return (unsigned)action < WEIR_TRACE_ACTIONS && action_names[action] ? action_names[action] : "unknown";
}

weir_status weir_history_action(const char *name, unsigned *bit) {
  WEIR__CHECK_ARGUMENT(name);
  WEIR__CHECK_ARGUMENT(bit);
  for (unsigned i = 0; i < WEIR_TRACE_ACTIONS; i++)
    if (action_names[i] && strcmp(name, action_names[i]) == 0) {
      *bit = 1u << i;
      return WEIR_OK;
    }
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Unknown TraceEntry action: %s", __func__, name);
}

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
    history->devices[i].marks = (weir__writer){.history = history, .rules = WEIR__NO_RULES, .device = i};
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

static void release_writer(weir__writer *writer) {
  if (writer->chunk)
    weir__ring_close(&writer->history->devices[writer->device].ring, writer->chunk);
  weir__hash_map_clear(&writer->stacks);
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
    weir__rules rules = weir__recorder_rules(history);
    rules.generation++;
    atomic_store(&history->rules, rules.word);
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
    release_writer(&history->devices[i].marks);
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
  weir__rules rules = {.generation = weir__recorder_rules(history).generation + (!on && was_on),
                       .skip = (uint16_t)(options->skip & ~file_only),
                       .context = on ? (uint8_t)options->context : WEIR_CONTEXT_NONE,
                       .has_texts = weir__recorder_rules(history).has_texts};
  atomic_store(&history->rules, rules.word);
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

uint32_t weir__recorder_stack(const weir__recorder *history, weir_history_context level) {
  if ((unsigned)level > weir__recorder_rules(history).context)
    return 0;
  return weir__stack_gather((weir_history_stacks)atomic_load_explicit(&history->stacks, memory_order_relaxed));
}

/* ---- Writing ---- */

weir__writer *weir__writer_new(weir__recorder *history, int device, weir_pool_id pool, uint64_t stream) {
  weir__writer *writer = calloc(1, sizeof *writer);
  if (writer) {
    writer->history = history;
    writer->rules = WEIR__NO_RULES;
    writer->device = device;
    writer->pool = pool_number(pool);
    writer->stream = stream;
  }
  return writer;
}

void weir__writer_delete(weir__writer *writer) {
  if (!writer)
    return;
  release_writer(writer);
  free(writer);
}

/* What all entries of one moment have in common. */
typedef struct moment {
  uint64_t time;
  uint32_t context;
  weir__rules rules;
  const weir__recorded_work *work; /* of the entry; NULL for other entries */
} moment;

/* Numbers of threads are not reused, because entries of ended threads have them. */
static __attribute__((noinline)) void number_thread(void) {
  static atomic_uint threads;
  unsigned number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
  if (number >= WEIR__ENTRY_MAX_THREADS) {
    number = WEIR__ENTRY_MAX_THREADS;
    atomic_store_explicit(&threads, WEIR__ENTRY_MAX_THREADS, memory_order_relaxed);
  }
  weir__this_thread.thread = (uint16_t)number;
}

static inline moment begin(weir__writer *writer, uint64_t ticks) {
  weir__recorder *history = writer->history;
  if (!weir__this_thread.thread)
    number_thread();
  moment moment = {.rules = weir__recorder_rules(history), .time = weir__writer_time(writer, ticks)};
  if (writer->generation != moment.rules.generation) {
    weir__hash_map_clear(&writer->stacks); /* of a recording that is over */
    writer->generation = moment.rules.generation;
  }
  writer->rules = WEIR__NO_RULES;
  uint32_t metadata = atomic_load_explicit(&history->devices[writer->device].metadata, memory_order_relaxed);
  uint32_t phase = phase_here();
  if (weir__this_thread.texts | metadata | phase)
    moment.context = context_here(phase, metadata);
  return moment;
}

static void append(weir__writer *writer, const moment *moment, unsigned action, uint64_t address, uint64_t bytes,
                   uint32_t stack) {
  weir__recorder *history = writer->history;
  bool has_missed = weir__this_thread.has_missed && (action == WEIR_TRACE_ALLOC || action == WEIR_TRACE_OOM);
  if (has_missed)
    weir__this_thread.has_missed = false;
  if (moment->rules.skip >> action & 1)
    return;
  weir__ring *ring = &history->devices[writer->device].ring;
  weir__chunk *chunk = writer->chunk;
  if (chunk && weir__ring_has_left(ring, chunk))
    chunk = NULL;
  unsigned count = chunk ? atomic_load_explicit(&chunk->count, memory_order_relaxed) : WEIR__CHUNK_ENTRIES;
  if (count == WEIR__CHUNK_ENTRIES) {
    writer->chunk = chunk = weir__ring_next(ring, chunk);
    if (!chunk) {
      atomic_fetch_add_explicit(&history->lost, 1, memory_order_relaxed);
      return;
    }
    count = atomic_load_explicit(&chunk->count, memory_order_relaxed);
  }
  if (moment->rules.context < WEIR_CONTEXT_ALLOC)
    stack = 0;
  if (ring->file)
    weir__ring_file_need(ring->file, stack, moment->context, writer->pool < WEIR__POOL_DIRECT ? writer->pool : 0);
  weir__entry_fill(&chunk->entries[count], writer, action, address, bytes, moment->time, stack, moment->context);
  if (moment->work) {
    weir__entry *entry = &chunk->entries[count];
    entry->stream = moment->work->stream;
    entry->stack = (uint32_t)moment->work->duration_ns;
    entry->pool = (uint32_t)(moment->work->duration_ns >> 32);
  }
  bool is_of_segment = action >= WEIR_TRACE_SEGMENT_ALLOC && action <= WEIR_TRACE_SEGMENT_UNMAP;
  unsigned reason = is_of_segment                                ? weir__this_thread.reason
                    : has_missed || action == WEIR__ACTION_TAKEN ? WEIR__REASON_REQUEST
                                                                 : WEIR__REASON_UNKNOWN;
  chunk->entries[count].thread |= (uint16_t)(reason << WEIR__ENTRY_REASON_SHIFT);
  if (action == WEIR_TRACE_ALLOC && weir__this_thread.phase & WEIR__PHASE_FRESH) {
    chunk->entries[count].thread |= WEIR__ENTRY_PHASE_BEGINS;
    weir__this_thread.phase &= ~WEIR__PHASE_FRESH;
  }
  atomic_store_explicit(&chunk->count, count + 1, memory_order_release); /* counted entries are complete */
  if (!moment->rules.skip && !moment->rules.context && !moment->rules.has_texts && !writer->stacks.count)
    writer->rules = moment->rules.word;
}

void weir__recorder_write_at(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack,
                             uint64_t ticks) {
  moment moment = begin(writer, ticks);
  if (action == WEIR_TRACE_ALLOC && stack)
    put_stack(&writer->stacks, address, stack);
  else if (action == WEIR_TRACE_FREE_REQUESTED && !stack)
    stack = find_stack(&writer->stacks, address);
  else if (action == WEIR_TRACE_FREE_COMPLETED) {
    uint32_t of_alloc = take_stack(&writer->stacks, address);
    stack = stack ? stack : of_alloc;
  }
  append(writer, &moment, action, address, bytes, stack);
}

void weir__recorder_write(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack) {
  weir__recorder_write_at(writer, action, address, bytes, stack, weir__clock_ticks());
}

void weir__recorder_write_freed(weir__writer *writer, uint64_t address, uint64_t bytes, uint32_t stack,
                                uint64_t ticks) {
  moment moment = begin(writer, ticks);
  uint32_t of_alloc = take_stack(&writer->stacks, address);
  stack = stack ? stack : of_alloc;
  append(writer, &moment, WEIR_TRACE_FREE_REQUESTED, address, bytes, stack);
  append(writer, &moment, WEIR_TRACE_FREE_COMPLETED, address, bytes, stack);
}

void weir__recorder_set_metadata(weir__recorder *history, int device, uint32_t text) {
  weir__mutex_lock(&history->lock);
  atomic_store(&history->devices[device].metadata, text);
  weir__rules rules = weir__recorder_rules(history);
  rules.has_texts = 0;
  for (int i = 0; i < history->device_count; i++)
    rules.has_texts |= atomic_load(&history->devices[i].metadata) != 0;
  atomic_store(&history->rules, rules.word);
  weir__mutex_unlock(&history->lock);
}

uint32_t weir__writer_stack(const weir__recorder *history, const weir__writer *writer, uint64_t address) {
  if (!writer || writer->generation != weir__recorder_rules(history).generation)
    return 0;
  return find_stack(&writer->stacks, address);
}

static void mark(weir__recorder *history, int number, unsigned action, uint64_t address, uint64_t bytes, uint32_t text,
                 uint32_t stack) {
  weir__recorder_device *device = &history->devices[number];
  weir__lock_acquire(&device->lock);
  moment moment = begin(&device->marks, weir__clock_ticks());
  if (text)
    moment.context =
        context_number((weir__entry_context){weir__this_thread.phase & ~WEIR__PHASE_FRESH, compile_here(), text});
  append(&device->marks, &moment, action, address, bytes, stack);
  weir__lock_release(&device->lock);
}

void weir__recorder_mark(weir__recorder *history, int number, unsigned action, uint64_t address, uint64_t bytes,
                         uint32_t text) {
  if (!weir__recorder_is_on(history))
    return;
  bool is_users = action == WEIR_TRACE_ANNOTATE || action == WEIR_TRACE_USER_DEFINED;
  mark(history, number, action, address, bytes, text, is_users ? weir__recorder_stack(history, WEIR_CONTEXT_ALL) : 0);
}

bool weir__recorder_read_until(weir__recorder *history, int device, uint64_t until, weir__entry **entries,
                               size_t *count, uint64_t *dropped) {
  return weir__ring_read(&history->devices[device].ring, until, entries, count, dropped);
}

bool weir__recorder_read(weir__recorder *history, int device, weir__entry **entries, size_t *count, uint64_t *dropped) {
  return weir__recorder_read_until(history, device, UINT64_MAX, entries, count, dropped);
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
    uint32_t number = pairs_number(made, file_bytes);
    weir__lock_acquire(&of->lock);
    moment moment = begin(&of->marks, weir__clock_ticks());
    moment.context = number;
    moment.work = work;
    if (number)
      append(&of->marks, &moment, WEIR__ACTION_PAIRS, work ? (uint64_t)work->start_ns : 0, work ? work->bytes : 0, 0);
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
      atomic_fetch_add_explicit(&history->lost, 1, memory_order_relaxed);
  unlock_all();
}

void weir__recorder_annotations(weir__recorder *history,
                                void (*each)(void *context, const weir__annotation *annotation), void *context) {
  weir__mutex_lock(&history->lock);
  for (const weir__annotation *a = history->annotations; a; a = a->next)
    each(context, a);
  weir__mutex_unlock(&history->lock);
}
