/*
 * Reads a recording from a pickle, in two steps. While the pickle is read, hooks convert what there is most of, the
 * dicts of events and frames and the lists of stacks, as soon as each is complete. Then the tree of the schema is
 * walked with the rest as values.
 */
#include "offline/read/recording.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "offline/read/byte_reader.h"

/* All known keys. They are the first texts of the reader, so a text's number is its key. */
#define KEY_MAP(X)                                                                                                     \
  X(ACTION, "action")                                                                                                  \
  X(ADDR, "addr")                                                                                                      \
  X(DEVICE_FREE, "device_free")                                                                                        \
  X(SIZE, "size")                                                                                                      \
  X(STREAM, "stream")                                                                                                  \
  X(TIME_US, "time_us")                                                                                                \
  X(COMPILE_CONTEXT, "compile_context")                                                                                \
  X(USER_METADATA, "user_metadata")                                                                                    \
  X(PHASE, "phase")                                                                                                    \
  X(PHASE_BEGINS, "phase_begins")                                                                                      \
  X(REASON, "reason")                                                                                                  \
  X(POOL_ID, "pool_id")                                                                                                \
  X(FRAMES, "frames")                                                                                                  \
  X(NAME, "name")                                                                                                      \
  X(FILENAME, "filename")                                                                                              \
  X(LINE, "line")                                                                                                      \
  X(DEVICE, "device")                                                                                                  \
  X(ADDRESS, "address")                                                                                                \
  X(TOTAL_SIZE, "total_size")                                                                                          \
  X(ALLOCATED_SIZE, "allocated_size")                                                                                  \
  X(ACTIVE_SIZE, "active_size")                                                                                        \
  X(REQUESTED_SIZE, "requested_size")                                                                                  \
  X(SEGMENT_TYPE, "segment_type")                                                                                      \
  X(SEGMENT_POOL_ID, "segment_pool_id")                                                                                \
  X(IS_EXPANDABLE, "is_expandable")                                                                                    \
  X(BLOCKS, "blocks")                                                                                                  \
  X(STATE, "state")                                                                                                    \
  X(STAGE, "stage")                                                                                                    \
  X(SEGMENTS, "segments")                                                                                              \
  X(DEVICE_TRACES, "device_traces")                                                                                    \
  X(ALLOCATOR_SETTINGS, "allocator_settings")                                                                          \
  X(EXTERNAL_ANNOTATIONS, "external_annotations")                                                                      \
  X(HOST_SEGMENTS, "host_segments")                                                                                    \
  X(HOST_TRACES, "host_traces")

enum key {
#define X(name, text) KEY_##name,
  KEY_MAP(X)
#undef X
      KEY_COUNT
};

static const char *const key_texts[] = {
#define X(name, text) text,
    KEY_MAP(X)
#undef X
};

/* The texts after the keys are the actions, the states of blocks, and a few others. */
static const struct {
  uint8_t action;
  const char *text;
} actions[] = {
#define X(name, number, text) {number, text},
    WEIR_TRACE_ACTION_MAP(X)
#undef X
};

enum word {
  WORD_STATES = KEY_COUNT + WEIR_COUNT_OF(actions),
  WORD_NONE = WORD_STATES + WEIR_BLOCK_STATES,
  WORD_EMPTY,
  WORD_SMALL
};

static const char *const word_texts[] = {"N/A", "", "small"};

#define BIT(name) (1ull << KEY_##name)
#define EVENT_NEEDS (BIT(ACTION) | BIT(SIZE) | BIT(STREAM))
#define EVENT_KEYS                                                                                                     \
  (EVENT_NEEDS | BIT(ADDR) | BIT(DEVICE_FREE) | BIT(TIME_US) | BIT(COMPILE_CONTEXT) | BIT(USER_METADATA) |             \
   BIT(PHASE) | BIT(PHASE_BEGINS) | BIT(REASON) | BIT(POOL_ID) | BIT(FRAMES))
#define FRAME_NEEDS (BIT(NAME) | BIT(FILENAME) | BIT(LINE))
#define BLOCK_KEYS (BIT(ADDRESS) | BIT(SIZE) | BIT(REQUESTED_SIZE) | BIT(STATE) | BIT(FRAMES))
#define SEGMENT_KEYS                                                                                                   \
  (BIT(DEVICE) | BIT(ADDRESS) | BIT(TOTAL_SIZE) | BIT(ALLOCATED_SIZE) | BIT(ACTIVE_SIZE) | BIT(REQUESTED_SIZE) |       \
   BIT(STREAM) | BIT(SEGMENT_TYPE) | BIT(SEGMENT_POOL_ID) | BIT(IS_EXPANDABLE) | BIT(FRAMES) | BIT(BLOCKS))
#define ANNOTATION_KEYS (BIT(NAME) | BIT(STAGE) | BIT(DEVICE) | BIT(TIME_US))
#define TOP_KEYS                                                                                                       \
  (BIT(SEGMENTS) | BIT(DEVICE_TRACES) | BIT(ALLOCATOR_SETTINGS) | BIT(EXTERNAL_ANNOTATIONS) | BIT(HOST_SEGMENTS) |     \
   BIT(HOST_TRACES))

enum { MAX_DEVICES = 1024, MAX_STREAMS = UINT16_MAX, MAX_IGNORED = 64 };

/* A value of a pickle can be referred to from many places, at two bytes each. So every visit counts as a step: at most
 * this many for each byte of the file, and FREE_STEPS in any case. */
enum { STEPS = 4, FREE_STEPS = 1 << 20 };

typedef weir__pickle_value value;

/* Where a dict has the values of known keys. */
typedef struct fields {
  uint64_t mask; /* which keys it has */
  size_t others; /* unknown keys */
  const value *pairs;
  uint32_t at[KEY_COUNT];
} fields;

typedef struct loader {
  weir__pickle *pickle;
  weir__budget *budget;
  const char *name; /* of the file */
  weir__recording *s;
  size_t events, segments, host_segments, blocks, annotations, pairs, works,
      settings; /* what the arrays of `s` have room for */
  size_t streams, pools, remarks, frames, stacks, stack_frames, devices, ignored;
  weir__table stream_table, pool_table, remark_table, frame_table, stack_table;
  uint64_t steps;     /* taken so far */
  size_t event_count; /* in the array; the recording counts those of devices */
  uint64_t seed;
  const char *where; /* what is being read, for errors; NULL inside the hooks */
  char path[96];
  uint16_t last_stream; /* nearly always the next one, too */
  uint32_t last_remark;
  fields event_fields; /* of the last event, and its keys; key_count 0 if there is none yet */
  value keys[16];
  size_t key_count;
  struct slice {
    size_t first, count;
  } device_events[MAX_DEVICES], host_events;
} loader;

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_)                                                                                                       \
      return status_;                                                                                                  \
  } while (0)

/* Makes room for one more item in an array of the recording. */
#define ROOM_FOR(l, array, count, capacity)                                                                            \
  do {                                                                                                                 \
    void *grown_ = weir__grow((l)->budget, (array), &(capacity), (count) + 1, sizeof *(array));                        \
    if (!grown_)                                                                                                       \
      return NO_MEMORY(l);                                                                                             \
    (array) = grown_;                                                                                                  \
  } while (0)

/* ---- Errors ---- */

/* Errors name the byte while the pickle is read, and the path afterwards. */
static weir_status bad(loader *l, const char *format, ...) WEIR_PRINTF(2, 3);
static weir_status bad(loader *l, const char *format, ...) {
  char text[WEIR__TEXT_SIZE / 4];
  va_list args;
  va_start(args, format);
  weir__format_text(text, sizeof text, format, args);
  va_end(args);
  if (!l->where)
    return weir__pickle_fail(l->pickle, "%s", text);
  return weir__fail(WEIR_ERROR_BAD_DATA, "%s: %s: %s", l->name, l->where, text);
}

#define BAD(l, ...) weir__not_ok(bad(l, __VA_ARGS__))
#define NO_MEMORY(l) weir__not_ok(weir__pickle_fail_memory((l)->pickle))

static weir_status bad_kind(loader *l, enum key key, value v, const char *wanted) {
  return BAD(l, "'%s' is %s, not %s", key_texts[key], weir__pickle_kind(v), wanted);
}

/* Counts visits of values. */
static weir_status take_steps(loader *l, uint64_t count) {
  l->steps += count;
  if (l->steps <= FREE_STEPS || (l->steps - FREE_STEPS) / STEPS <= weir__pickle_size(l->pickle))
    return WEIR_OK;
  return BAD(
      l, "the same values are used in so many places that there are more than %d to visit for each byte of the file",
      STEPS);
}

/* ---- Fields ---- */

static bool is_str(value v) { return weir__pickle_tag_of(v) == WEIR__PICKLE_STR; }

static uint32_t str_of(value v) { return (uint32_t)weir__pickle_payload(v); }

static void scan(const value *pairs, size_t count, fields *f) {
  f->mask = 0;
  f->others = 0;
  f->pairs = pairs;
  for (size_t i = 0; i < count; i++) {
    value key = pairs[2 * i];
    if (is_str(key) && weir__pickle_payload(key) < KEY_COUNT) {
      f->at[weir__pickle_payload(key)] = (uint32_t)(2 * i + 1);
      f->mask |= 1ull << weir__pickle_payload(key);
    } else {
      f->others++;
    }
  }
}

static value field(const fields *f, enum key key) { return f->pairs[f->at[key]]; }

static bool has(const fields *f, uint64_t bit) { return (f->mask & bit) != 0; }

/* Where ignored keys were found. */
static const char in_snapshot[] = "snapshot", in_event[] = "event", in_frame[] = "frame", in_segment[] = "segment",
                  in_block[] = "block", in_setting[] = "setting", in_annotation[] = "annotation";

static weir_status ignore(loader *l, const char *where, const char *key) {
  weir__recording *s = l->s;
  for (size_t i = 0; i < s->ignored_count; i++)
    if (s->ignored[i].where == where && s->ignored[i].key == key) {
      s->ignored[i].count++;
      return WEIR_OK;
    }
  if (s->ignored_count == MAX_IGNORED)
    return WEIR_OK;
  ROOM_FOR(l, s->ignored, s->ignored_count, l->ignored);
  s->ignored[s->ignored_count++] = (weir__recording_ignored){where, key, 1};
  return WEIR_OK;
}

/* Lists the unknown keys of a dict. */
static weir_status ignore_others(loader *l, const char *where, const value *pairs, size_t count, uint64_t known) {
  for (size_t i = 0; i < count; i++) {
    value key = pairs[2 * i];
    if (!is_str(key)) /* kinds are static texts, so they can be compared by address, too */
      TRY(ignore(l, where, weir__pickle_kind(key)));
    else if (weir__pickle_payload(key) >= KEY_COUNT || !(known & 1ull << weir__pickle_payload(key)))
      TRY(ignore(l, where, weir__pickle_string(l->pickle, key).text));
  }
  return WEIR_OK;
}

static weir_status get_fields(loader *l, value v, const char *what, uint64_t known, fields *f) {
  if (weir__pickle_tag_of(v) != WEIR__PICKLE_DICT)
    return BAD(l, "it is %s, not a dict", weir__pickle_kind(v));
  size_t count;
  const value *pairs = weir__pickle_items(l->pickle, v, &count);
  TRY(take_steps(l, 1 + count / 2));
  scan(pairs, count / 2, f);
  return f->others != 0 || (f->mask & ~known) ? ignore_others(l, what, pairs, count / 2, known) : WEIR_OK;
}

static weir_status need(loader *l, const fields *f, uint64_t bits) {
  uint64_t missing = bits & ~f->mask;
  return missing == 0 ? WEIR_OK : BAD(l, "there is no key '%s'", key_texts[__builtin_ctzll(missing)]);
}

/* Each leaves *out as it is if there is no such key. */
static inline weir_status get_size(loader *l, const fields *f, enum key key, uint64_t *out) {
  if (!has(f, 1ull << key) || weir__pickle_uint64(l->pickle, field(f, key), out))
    return WEIR_OK;
  return bad_kind(l, key, field(f, key), "an int from 0 to 2^64 - 1");
}

static inline weir_status get_int(loader *l, const fields *f, enum key key, int64_t *out) {
  if (!has(f, 1ull << key) || weir__pickle_int64(l->pickle, field(f, key), out))
    return WEIR_OK;
  return bad_kind(l, key, field(f, key), "an int of 64 bits");
}

/* Some versions write an address as a signed integer, others as an unsigned one. */
static inline weir_status get_address(loader *l, const fields *f, enum key key, uint64_t *out) {
  int64_t number;
  if (!has(f, 1ull << key) || weir__pickle_uint64(l->pickle, field(f, key), out))
    return WEIR_OK;
  if (!weir__pickle_int64(l->pickle, field(f, key), &number))
    return bad_kind(l, key, field(f, key), "an int of 64 bits");
  *out = (uint64_t)number;
  return WEIR_OK;
}

static inline weir_status get_str(loader *l, const fields *f, enum key key, uint32_t *out) {
  if (!has(f, 1ull << key))
    return WEIR_OK;
  if (!is_str(field(f, key)))
    return bad_kind(l, key, field(f, key), "a str");
  *out = str_of(field(f, key));
  return WEIR_OK;
}

static weir_status get_list(loader *l, const fields *f, enum key key, const value **items, size_t *count) {
  *items = NULL;
  *count = 0;
  if (!has(f, 1ull << key))
    return WEIR_OK;
  if (weir__pickle_tag_of(field(f, key)) != WEIR__PICKLE_LIST)
    return bad_kind(l, key, field(f, key), "a list");
  *items = weir__pickle_items(l->pickle, field(f, key), count);
  return WEIR_OK;
}

/* ---- What is kept once ---- */

/* Finds `entry` in an array of the recording, or appends it. */
#define INTERN(l, index, array, count, capacity, entry, id)                                                            \
  do {                                                                                                                 \
    void *grown_ = weir__table_intern(&(index), (l)->budget, (l)->seed, (array), &(count), &(capacity), &(entry),      \
                                      sizeof(entry), &(id));                                                           \
    if (!grown_)                                                                                                       \
      return NO_MEMORY(l);                                                                                             \
    (array) = grown_;                                                                                                  \
  } while (0)

static weir_status intern_stream(loader *l, int64_t raw, uint16_t *stream) {
  weir__recording *s = l->s;
  uint32_t id;
  INTERN(l, l->stream_table, s->streams, s->stream_count, l->streams, raw, id);
  if (id >= MAX_STREAMS)
    return BAD(l, "there are more than %d streams", MAX_STREAMS);
  *stream = l->last_stream = (uint16_t)id;
  return WEIR_OK;
}

static inline weir_status get_stream(loader *l, const fields *f, uint16_t *stream) {
  int64_t raw = 0;
  uint64_t address = 0;
  if (weir__pickle_int64(l->pickle, field(f, KEY_STREAM), &raw) && raw == l->s->streams[l->last_stream]) {
    *stream = l->last_stream;
    return WEIR_OK;
  }
  TRY(get_address(l, f, KEY_STREAM, &address));
  return intern_stream(l, (int64_t)address, stream);
}

/* A pool's id is a pair. The number is kept as a note of the tuple; not of a list, which might be a stack, too. */
static weir_status get_pool(loader *l, const fields *f, enum key key, uint32_t *pool) {
  if (!has(f, 1ull << key) || weir__pickle_tag_of(field(f, key)) == WEIR__PICKLE_NONE)
    return WEIR_OK;
  value v = field(f, key);
  bool is_tuple = weir__pickle_tag_of(v) == WEIR__PICKLE_TUPLE;
  size_t count = 0;
  const value *items = NULL;
  if (is_tuple || weir__pickle_tag_of(v) == WEIR__PICKLE_LIST)
    items = weir__pickle_items(l->pickle, v, &count);
  uint32_t *note = is_tuple ? weir__pickle_note(l->pickle, v) : NULL;
  if (note && *note != 0) {
    *pool = *note - 1;
    return WEIR_OK;
  }
  weir__recording *s = l->s;
  weir__recording_pool entry = {{0, 0}};
  if (count != 2 || !weir__pickle_int64(l->pickle, items[0], &entry.id[0]) ||
      !weir__pickle_int64(l->pickle, items[1], &entry.id[1]))
    return BAD(l, "'%s' is not a pair of ints", key_texts[key]);
  INTERN(l, l->pool_table, s->pools, s->pool_count, l->pools, entry, *pool);
  if (note)
    *note = *pool + 1;
  return WEIR_OK;
}

static weir_status intern_remark(loader *l, const weir__recording_remark *entry, uint32_t *remark) {
  weir__recording *s = l->s;
  INTERN(l, l->remark_table, s->remarks, s->remark_count, l->remarks, *entry, *remark);
  l->last_remark = *remark;
  return WEIR_OK;
}

/* Objects: the number of an event, of a frame or of a stack. */
enum object { EVENT, FRAME, STACK };

static value make_object(size_t index, enum object kind) {
  return weir__pickle_make(WEIR__PICKLE_OBJECT, (uint64_t)index << 2 | kind);
}

static bool is_object(value v, enum object kind) {
  return weir__pickle_tag_of(v) == WEIR__PICKLE_OBJECT && (weir__pickle_payload(v) & 3) == kind;
}

static size_t object_index(value v) { return (size_t)(weir__pickle_payload(v) >> 2); }

static weir_status intern_frame(loader *l, const fields *f, uint32_t *frame) {
  weir__recording *s = l->s;
  weir__recording_frame entry = {0};
  TRY(get_str(l, f, KEY_NAME, &entry.name));
  TRY(get_str(l, f, KEY_FILENAME, &entry.filename));
  TRY(get_int(l, f, KEY_LINE, &entry.line));
  INTERN(l, l->frame_table, s->frames, s->frame_count, l->frames, entry, *frame);
  return WEIR_OK;
}

/* A dict that the hook did not take may be referred to from many places. A note says what it was read as, so it is read
 * once. */
enum memory { AS_FRAME = 1, AS_EVENT, AS_BLOCK, AS_ANNOTATION };

static bool recall(loader *l, value v, enum memory kind, uint32_t *index) {
  if (weir__pickle_tag_of(v) != WEIR__PICKLE_DICT)
    return false;
  uint32_t note = *weir__pickle_note(l->pickle, v);
  *index = note >> 3;
  return (note & 7) == kind;
}

static void remember(loader *l, value v, enum memory kind, size_t index) {
  if (index < UINT32_MAX >> 3)
    *weir__pickle_note(l->pickle, v) = (uint32_t)index << 3 | kind;
}

/* A frame that the hook did not take. */
static weir_status read_frame(loader *l, size_t number, value v, uint32_t *frame) {
  fields f = {0};
  if (recall(l, v, AS_FRAME, frame))
    return WEIR_OK;
  if (weir__pickle_tag_of(v) != WEIR__PICKLE_DICT)
    return BAD(l, "frame %zu of a stack is %s, not a dict", number, weir__pickle_kind(v));
  TRY(get_fields(l, v, in_frame, FRAME_NEEDS, &f));
  TRY(need(l, &f, FRAME_NEEDS));
  TRY(intern_frame(l, &f, frame));
  remember(l, v, AS_FRAME, *frame);
  return WEIR_OK;
}

/* Interns a list of frames: it is written behind all other stacks, and kept only if it is new. */
static weir_status intern_stack(loader *l, const value *items, size_t count, uint32_t *stack) {
  weir__recording *s = l->s;
  const weir__recording_stack *last = &s->stacks[s->stack_count - 1];
  size_t first = last->first + last->count;
  uint32_t *grown = weir__grow(l->budget, s->stack_frames, &l->stack_frames, first + count, sizeof *s->stack_frames);
  if (!grown)
    return NO_MEMORY(l);
  s->stack_frames = grown;
  for (size_t i = 0; i < count; i++) {
    if (is_object(items[i], FRAME))
      grown[first + i] = (uint32_t)object_index(items[i]);
    else
      TRY(read_frame(l, i, items[i], &grown[first + i]));
  }
  uint32_t hash = weir__hash_end(weir__hash_bytes(l->seed, grown + first, count * sizeof *grown));
  size_t cursor = weir__table_begin(&l->stack_table, hash);
  for (uint32_t id; (id = weir__table_next(&l->stack_table, hash, &cursor)) != WEIR__TABLE_END;) {
    const weir__recording_stack *other = &s->stacks[id];
    if (other->count == count && memcmp(grown + other->first, grown + first, count * sizeof *grown) == 0) {
      *stack = id;
      return WEIR_OK;
    }
  }
  ROOM_FOR(l, s->stacks, s->stack_count, l->stacks);
  if (!weir__table_add(&l->stack_table, l->budget, hash, (uint32_t)s->stack_count))
    return NO_MEMORY(l);
  s->stacks[s->stack_count] = (weir__recording_stack){first, count};
  *stack = (uint32_t)s->stack_count++;
  return WEIR_OK;
}

static weir_status get_stack(loader *l, const fields *f, uint32_t *stack) {
  const value *items;
  size_t count;
  if (!has(f, BIT(FRAMES)) || weir__pickle_tag_of(field(f, KEY_FRAMES)) == WEIR__PICKLE_NONE)
    return WEIR_OK;
  if (is_object(field(f, KEY_FRAMES), STACK)) {
    *stack = (uint32_t)object_index(field(f, KEY_FRAMES));
    return WEIR_OK;
  }
  TRY(get_list(l, f, KEY_FRAMES, &items, &count));
  if (count == 0)
    return WEIR_OK;
  uint32_t *note = weir__pickle_note(l->pickle, field(f, KEY_FRAMES));
  if (*note == 0) {
    uint32_t id = 0;
    TRY(intern_stack(l, items, count, &id));
    *note = id;
  }
  *stack = *note;
  return WEIR_OK;
}

/* ---- Events ---- */

static bool is_event(const fields *f) {
  return (f->mask & EVENT_NEEDS) == EVENT_NEEDS && has(f, BIT(ADDR) | BIT(DEVICE_FREE));
}

/* Interns the texts of an event, unless they are those of the event before. */
static weir_status get_remark(loader *l, const fields *f, uint32_t action, weir__recording_entry *event) {
  weir__recording_remark entry = {WORD_NONE, WORD_EMPTY, WORD_EMPTY, WORD_EMPTY};
  TRY(get_str(l, f, KEY_COMPILE_CONTEXT, &entry.compile_context));
  TRY(get_str(l, f, KEY_USER_METADATA, &entry.user_metadata));
  TRY(get_str(l, f, KEY_PHASE, &entry.phase));
  if (event->action == WEIR__ACTION_UNKNOWN)
    entry.action = action;
  event->remark = l->last_remark;
  const weir__recording_remark *last = &l->s->remarks[l->last_remark];
  if (entry.compile_context == last->compile_context && entry.user_metadata == last->user_metadata &&
      entry.action == last->action && entry.phase == last->phase)
    return WEIR_OK;
  return intern_remark(l, &entry, &event->remark);
}

static weir_status get_marks(loader *l, const fields *f, weir__recording_entry *event) {
  int64_t begins = 0;
  uint32_t name = WORD_EMPTY;
  TRY(get_int(l, f, KEY_PHASE_BEGINS, &begins));
  TRY(get_str(l, f, KEY_REASON, &name));
  event->phase_begins = begins != 0;
  for (unsigned i = WEIR__REASON_UNKNOWN + 1; i < WEIR__REASONS && name != WORD_EMPTY; i++)
    if (strcmp(weir__pickle_strings(l->pickle)->items[name].text, weir__reason_name((weir__reason)i)) == 0)
      event->reason = i & 7;
  return WEIR_OK;
}

static weir_status add_event(loader *l, const fields *f, size_t *index) {
  weir__recording *s = l->s;
  uint32_t action = 0;
  weir__recording_entry event = {.pool = WEIR__RECORDING_NO_POOL};
  TRY(get_str(l, f, KEY_ACTION, &action));
  event.action =
      action - KEY_COUNT < WEIR_COUNT_OF(actions) ? actions[action - KEY_COUNT].action : WEIR__ACTION_UNKNOWN;
  if (event.action == WEIR_TRACE_OOM && has(f, BIT(DEVICE_FREE)))
    TRY(get_address(l, f, KEY_DEVICE_FREE, &event.address));
  else if (has(f, BIT(ADDR)))
    TRY(get_address(l, f, KEY_ADDR, &event.address));
  else
    return BAD(l, "there is no key 'addr'");
  TRY(get_size(l, f, KEY_SIZE, &event.size));
  TRY(get_stream(l, f, &event.stream));
  TRY(get_int(l, f, KEY_TIME_US, &event.time_us));
  event.time_us = weir__recording_time(event.time_us);
  TRY(get_remark(l, f, action, &event));
  if (has(f, BIT(PHASE_BEGINS) | BIT(REASON)))
    TRY(get_marks(l, f, &event));
  TRY(get_pool(l, f, KEY_POOL_ID, &event.pool));
  TRY(get_stack(l, f, &event.stack));
  ROOM_FOR(l, s->events, l->event_count, l->events);
  s->events[l->event_count] = event;
  *index = l->event_count++;
  return WEIR_OK;
}

/* Finds the keys in `pairs`. All events of a file have the same keys in the same order, so the last result is reused.
 * */
static const fields *scan_again(loader *l, const value *pairs, size_t count, fields *f) {
  value differ = count ^ l->key_count;
  for (size_t i = 0; i < l->key_count && differ == 0; i++)
    differ = pairs[2 * i] ^ l->keys[i];
  if (differ == 0) {
    l->event_fields.pairs = pairs;
    return &l->event_fields;
  }
  scan(pairs, count, f);
  if (is_event(f) && count <= WEIR_COUNT_OF(l->keys)) {
    l->event_fields = *f;
    l->key_count = count;
    for (size_t i = 0; i < count; i++)
      l->keys[i] = pairs[2 * i];
  }
  return f;
}

static weir_status hook(void *context, weir__pickle *pickle, const value *pairs, size_t count, value *taken) {
  loader *l = context;
  fields scanned;
  const fields *f = scan_again(l, pairs, count, &scanned);
  (void)pickle;
  if (is_event(f)) {
    size_t index;
    if (f->others != 0 || (f->mask & ~EVENT_KEYS))
      TRY(ignore_others(l, in_event, pairs, count, EVENT_KEYS));
    TRY(add_event(l, f, &index));
    *taken = make_object(index, EVENT);
  } else if ((f->mask & FRAME_NEEDS) == FRAME_NEEDS && !has(f, BIT(TIME_US))) {
    uint32_t frame;
    if (f->others != 0 || (f->mask & ~FRAME_NEEDS))
      TRY(ignore_others(l, in_frame, pairs, count, FRAME_NEEDS));
    TRY(intern_frame(l, f, &frame));
    *taken = make_object(frame, FRAME);
  }
  return WEIR_OK;
}

static weir_status list_hook(void *context, weir__pickle *pickle, const value *items, size_t count, value *taken) {
  loader *l = context;
  uint32_t stack = 0;
  (void)pickle;
  for (size_t i = 0; i < count; i++)
    if (!is_object(items[i], FRAME))
      return WEIR_OK;
  TRY(intern_stack(l, items, count, &stack));
  *taken = make_object(stack, STACK);
  return WEIR_OK;
}

/* A history is a list of events. Events that the hook took are adjacent in the array, in the list's order; other lists
 * are copied to the end of the array. */
static weir_status read_history(loader *l, const char *where, value v, struct slice *slice) {
  weir__recording *s = l->s;
  l->where = l->path;
  snprintf(l->path, sizeof l->path, "%s", where);
  if (weir__pickle_tag_of(v) != WEIR__PICKLE_LIST)
    return BAD(l, "it is %s, not a list", weir__pickle_kind(v));
  size_t count;
  const value *items = weir__pickle_items(l->pickle, v, &count);
  *slice = (struct slice){count > 0 && is_object(items[0], EVENT) ? object_index(items[0]) : 0, count};
  size_t in_order = 0;
  while (in_order < count && items[in_order] == make_object(slice->first + in_order, EVENT))
    in_order++;
  TRY(take_steps(l, count));
  if (in_order == count)
    return WEIR_OK;
  slice->first = l->event_count;
  for (size_t i = 0; i < count; i++) {
    uint32_t known = 0;
    if (is_object(items[i], EVENT) || recall(l, items[i], AS_EVENT, &known)) {
      ROOM_FOR(l, s->events, l->event_count, l->events);
      s->events[l->event_count++] = s->events[is_object(items[i], EVENT) ? object_index(items[i]) : known];
      continue;
    }
    fields f = {0};
    size_t index;
    snprintf(l->path, sizeof l->path, "%s[%zu]", where, i);
    TRY(get_fields(l, items[i], in_event, EVENT_KEYS, &f));
    TRY(need(l, &f, EVENT_NEEDS));
    TRY(add_event(l, &f, &index));
    remember(l, items[i], AS_EVENT, index);
  }
  return WEIR_OK;
}

static weir_status read_histories(loader *l, const fields *top) {
  const value *items;
  size_t count;
  TRY(get_list(l, top, KEY_DEVICE_TRACES, &items, &count));
  l->s->has_history = has(top, BIT(DEVICE_TRACES));
  if (count > MAX_DEVICES)
    return BAD(l, "'device_traces' has more than %d devices", MAX_DEVICES);
  for (size_t i = 0; i < count; i++) {
    char where[40];
    snprintf(where, sizeof where, "device_traces[%zu]", i);
    TRY(read_history(l, where, items[i], &l->device_events[i]));
    l->s->event_count += l->device_events[i].count;
  }
  if (l->s->device_count < count)
    l->s->device_count = count;
  return WEIR_OK;
}

/* ---- Segments ---- */

static weir_status read_block(loader *l, value v, uint64_t address) {
  weir__recording *s = l->s;
  fields f = {0};
  weir__recording_block block = {.address = address};
  uint32_t state = 0, known;
  if (recall(l, v, AS_BLOCK, &known)) {
    TRY(take_steps(l, 1));
    ROOM_FOR(l, s->blocks, s->block_count, l->blocks);
    s->blocks[s->block_count++] = s->blocks[known];
    return WEIR_OK;
  }
  TRY(get_fields(l, v, in_block, BLOCK_KEYS, &f));
  TRY(need(l, &f, BIT(SIZE) | BIT(STATE)));
  TRY(get_address(l, &f, KEY_ADDRESS, &block.address));
  TRY(get_size(l, &f, KEY_SIZE, &block.size));
  block.requested = block.size;
  TRY(get_size(l, &f, KEY_REQUESTED_SIZE, &block.requested));
  TRY(get_str(l, &f, KEY_STATE, &state));
  TRY(get_stack(l, &f, &block.stack));
  if (state - WORD_STATES >= WEIR_BLOCK_STATES)
    return BAD(l, "'state' is \"%.100s\", which is not known",
               weir__pickle_string(l->pickle, field(&f, KEY_STATE)).text);
  block.state = (uint8_t)(state - WORD_STATES);
  ROOM_FOR(l, s->blocks, s->block_count, l->blocks);
  if (has(&f, BIT(ADDRESS))) /* without an address, its place depends on the block before */
    remember(l, v, AS_BLOCK, s->block_count);
  s->blocks[s->block_count++] = block;
  return WEIR_OK;
}

static weir_status read_segment(loader *l, bool is_host, size_t number, value v) {
  weir__recording *s = l->s;
  const char *list = is_host ? "host_segments" : "segments";
  l->where = l->path;
  snprintf(l->path, sizeof l->path, "%s[%zu]", list, number);
  fields f = {0};
  TRY(get_fields(l, v, in_segment, SEGMENT_KEYS, &f));
  TRY(need(l, &f, BIT(DEVICE) | BIT(ADDRESS) | BIT(TOTAL_SIZE) | BIT(STREAM) | BIT(BLOCKS)));
  weir__recording_segment segment = {0};
  int64_t device = 0, expandable = 0;
  uint32_t type = WORD_EMPTY;
  TRY(get_int(l, &f, KEY_DEVICE, &device));
  if (is_host)
    device = -1;
  else if (device < 0 || device >= MAX_DEVICES)
    return BAD(l, "'device' is %lld, not 0 to %d", (long long)device, MAX_DEVICES - 1);
  segment.device = (int)device;
  TRY(get_address(l, &f, KEY_ADDRESS, &segment.address));
  TRY(get_size(l, &f, KEY_TOTAL_SIZE, &segment.size));
  TRY(get_size(l, &f, KEY_ALLOCATED_SIZE, &segment.allocated));
  TRY(get_size(l, &f, KEY_ACTIVE_SIZE, &segment.active));
  TRY(get_size(l, &f, KEY_REQUESTED_SIZE, &segment.requested));
  TRY(get_stream(l, &f, &segment.stream));
  TRY(get_str(l, &f, KEY_SEGMENT_TYPE, &type));
  segment.is_large = type != WORD_SMALL;
  TRY(get_pool(l, &f, KEY_SEGMENT_POOL_ID, &segment.pool));
  TRY(get_int(l, &f, KEY_IS_EXPANDABLE, &expandable));
  segment.is_expandable = expandable != 0;
  TRY(get_stack(l, &f, &segment.stack));

  const value *items;
  TRY(get_list(l, &f, KEY_BLOCKS, &items, &segment.block_count));
  uint64_t address = segment.address;
  for (size_t i = 0; i < segment.block_count; i++) {
    snprintf(l->path, sizeof l->path, "%s[%zu].blocks[%zu]", list, number, i);
    TRY(read_block(l, items[i], address));
    address = s->blocks[s->block_count - 1].address + s->blocks[s->block_count - 1].size;
  }
  if (is_host) {
    ROOM_FOR(l, s->host_segments, s->host.segment_count, l->host_segments);
    s->host_segments[s->host.segment_count++] = segment;
    return WEIR_OK;
  }
  ROOM_FOR(l, s->segments, s->segment_count, l->segments);
  s->segments[s->segment_count++] = segment;
  if (s->device_count <= (size_t)device)
    s->device_count = (size_t)device + 1;
  return WEIR_OK;
}

/* ---- The rest ---- */

static weir_status read_setting(loader *l, value key, const char *parent, value v) {
  weir__recording *s = l->s;
  uint64_t bits;
  TRY(take_steps(l, 1));
  if (!is_str(key))
    return BAD(l, "a key is %s, not a str", weir__pickle_kind(key));
  weir__recording_setting setting = {.key = weir__pickle_string(l->pickle, key).text};
  if (parent)
    setting = (weir__recording_setting){.key = parent, .sub = setting.key};
  switch (weir__pickle_tag_of(v)) {
  case WEIR__PICKLE_BOOL:
  case WEIR__PICKLE_INT:
  case WEIR__PICKLE_WIDE_INT:
  case WEIR__PICKLE_WIDE_UINT:
    setting.kind = weir__pickle_tag_of(v) == WEIR__PICKLE_BOOL ? WEIR__SETTING_BOOL : WEIR__SETTING_INT;
    if (!weir__pickle_int64(l->pickle, v, &setting.integer) && weir__pickle_uint64(l->pickle, v, &bits))
      setting.integer = (int64_t)bits; /* all bits set is how "unlimited" is written: -1 in either form */
    weir__pickle_double(l->pickle, v, &setting.real);
    break;
  case WEIR__PICKLE_FLOAT:
    setting.kind = WEIR__SETTING_FLOAT;
    weir__pickle_double(l->pickle, v, &setting.real);
    break;
  case WEIR__PICKLE_STR:
    setting.kind = WEIR__SETTING_TEXT;
    setting.text = weir__pickle_string(l->pickle, v).text;
    break;
  default:
    return ignore(l, in_setting, weir__pickle_string(l->pickle, key).text);
  }
  ROOM_FOR(l, s->settings, s->setting_count, l->settings);
  s->settings[s->setting_count++] = setting;
  return WEIR_OK;
}

static weir_status read_settings(loader *l, const fields *top) {
  if (!has(top, BIT(ALLOCATOR_SETTINGS)))
    return WEIR_OK;
  value v = field(top, KEY_ALLOCATOR_SETTINGS);
  if (weir__pickle_tag_of(v) != WEIR__PICKLE_DICT)
    return bad_kind(l, KEY_ALLOCATOR_SETTINGS, v, "a dict");
  size_t count, inner_count;
  const value *pairs = weir__pickle_items(l->pickle, v, &count), *inner;
  l->where = "allocator_settings";
  for (size_t i = 0; i < count; i += 2) {
    if (!is_str(pairs[i]) || weir__pickle_tag_of(pairs[i + 1]) != WEIR__PICKLE_DICT) {
      TRY(read_setting(l, pairs[i], NULL, pairs[i + 1]));
      continue;
    }
    inner = weir__pickle_items(l->pickle, pairs[i + 1], &inner_count);
    for (size_t j = 0; j < inner_count; j += 2)
      TRY(read_setting(l, inner[j], weir__pickle_string(l->pickle, pairs[i]).text, inner[j + 1]));
  }
  const weir__recording_setting *conf = weir__recording_find_setting(l->s, "PYTORCH_CUDA_ALLOC_CONF", NULL);
  l->s->conf = conf ? conf->text : NULL;
  return WEIR_OK;
}

/* A program may give annotations any keys, with texts as values. */
static weir_status read_pairs(loader *l, value v, weir__recording_annotation *annotation, fields *f) {
  weir__recording *s = l->s;
  size_t count;
  if (weir__pickle_tag_of(v) != WEIR__PICKLE_DICT)
    return BAD(l, "it is %s, not a dict", weir__pickle_kind(v));
  const value *pairs = weir__pickle_items(l->pickle, v, &count);
  TRY(take_steps(l, 1 + count / 2));
  scan(pairs, count / 2, f);
  annotation->first_pair = s->pair_count;
  for (size_t i = 0; i < count; i += 2) {
    bool is_known =
        is_str(pairs[i]) && str_of(pairs[i]) < KEY_COUNT && (ANNOTATION_KEYS & 1ull << str_of(pairs[i])) != 0;
    if (is_known)
      continue;
    if (!is_str(pairs[i]) || !is_str(pairs[i + 1])) {
      TRY(ignore(l, in_annotation,
                 is_str(pairs[i]) ? weir__pickle_string(l->pickle, pairs[i]).text : weir__pickle_kind(pairs[i])));
      continue;
    }
    ROOM_FOR(l, s->pairs, s->pair_count, l->pairs);
    s->pairs[s->pair_count++] = (weir__recording_pair){str_of(pairs[i]), str_of(pairs[i + 1])};
  }
  annotation->pair_count = s->pair_count - annotation->first_pair;
  return WEIR_OK;
}

static weir_status read_annotations(loader *l, const fields *top) {
  weir__recording *s = l->s;
  const value *items;
  size_t count;
  TRY(get_list(l, top, KEY_EXTERNAL_ANNOTATIONS, &items, &count));
  l->where = l->path;
  for (size_t i = 0; i < count; i++) {
    fields f = {0};
    uint32_t known;
    if (recall(l, items[i], AS_ANNOTATION, &known)) {
      ROOM_FOR(l, s->annotations, s->annotation_count, l->annotations);
      s->annotations[s->annotation_count++] = s->annotations[known];
      continue;
    }
    snprintf(l->path, sizeof l->path, "external_annotations[%zu]", i);
    weir__recording_annotation annotation = {.name = WORD_EMPTY, .stage = WORD_EMPTY, .device = -1};
    int64_t device = -1;
    TRY(read_pairs(l, items[i], &annotation, &f));
    TRY(get_str(l, &f, KEY_NAME, &annotation.name));
    TRY(get_str(l, &f, KEY_STAGE, &annotation.stage));
    TRY(get_int(l, &f, KEY_TIME_US, &annotation.time_us));
    annotation.time_us = weir__recording_time(annotation.time_us);
    TRY(get_int(l, &f, KEY_DEVICE, &device));
    if (device >= -1 && device < MAX_DEVICES)
      annotation.device = (int)device;
    weir__recording_work work;
    if (weir__recording_work_of(weir__pickle_strings(l->pickle), s->pairs, &annotation, &work)) {
      ROOM_FOR(l, s->works, s->work_count, l->works);
      s->works[s->work_count++] = work;
      continue;
    }
    ROOM_FOR(l, s->annotations, s->annotation_count, l->annotations);
    remember(l, items[i], AS_ANNOTATION, s->annotation_count);
    s->annotations[s->annotation_count++] = annotation;
  }
  return WEIR_OK;
}

/* Pinned host memory, written by PyTorch 2.12 and later. Its blocks follow those of the devices. */
static weir_status read_host(loader *l, const fields *top) {
  const value *items;
  size_t count;
  l->s->has_host = has(top, BIT(HOST_SEGMENTS) | BIT(HOST_TRACES));
  TRY(get_list(l, top, KEY_HOST_SEGMENTS, &items, &count));
  for (size_t i = 0; i < count; i++)
    TRY(read_segment(l, true, i, items[i]));
  if (has(top, BIT(HOST_TRACES)))
    TRY(read_history(l, "host_traces", field(top, KEY_HOST_TRACES), &l->host_events));
  return WEIR_OK;
}

/* Everything is read and arrays no longer move: sets the pointers of devices and segments. */
static weir_status settle(loader *l) {
  weir__recording *s = l->s;
  ROOM_FOR(l, s->events, l->event_count, l->events); /* so that an empty slice has an address, too */
  ROOM_FOR(l, s->blocks, s->block_count, l->blocks);
  s->devices = calloc(s->device_count > 0 ? s->device_count : 1, sizeof *s->devices);
  if (!s->devices)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: the host has no memory for it", l->name);
  size_t capacity = 0;
  weir__recording_segment *sorted = weir__grow(l->budget, NULL, &capacity, s->segment_count + 1, sizeof *sorted);
  if (!sorted)
    return NO_MEMORY(l);
  const weir__recording_block *blocks = s->blocks;
  for (size_t i = 0; i < s->segment_count; i++) {
    s->segments[i].blocks = blocks;
    blocks += s->segments[i].block_count;
    s->devices[s->segments[i].device].segment_count++;
  }
  for (size_t i = 0; i < s->host.segment_count; i++) {
    s->host_segments[i].blocks = blocks;
    blocks += s->host_segments[i].block_count;
  }
  s->host.segments = s->host_segments;
  s->host.events = s->events + l->host_events.first;
  s->host.event_count = l->host_events.count;
  size_t first = 0;
  for (size_t i = 0; i < s->device_count; i++) {
    weir__recording_device *device = &s->devices[i];
    device->events = s->events + l->device_events[i].first;
    device->event_count = l->device_events[i].count;
    device->segments = sorted + first;
    first += device->segment_count;
    device->segment_count = 0;
  }
  for (size_t i = 0; i < s->segment_count; i++) {
    weir__recording_device *device = &s->devices[s->segments[i].device];
    sorted[(size_t)(device->segments - sorted) + device->segment_count++] = s->segments[i];
  }
  weir__drop(s->segments);
  s->segments = sorted;
  return WEIR_OK;
}

/* A plain list is the segments, without a history. */
static weir_status read_top(loader *l, value root) {
  fields top = {0};
  const value *items;
  size_t count;
  l->where = "the snapshot";
  if (weir__pickle_tag_of(root) == WEIR__PICKLE_LIST) {
    top.mask = BIT(SEGMENTS);
    top.pairs = &root;
  } else {
    TRY(get_fields(l, root, in_snapshot, TOP_KEYS, &top));
    TRY(need(l, &top, BIT(SEGMENTS)));
  }
  TRY(get_list(l, &top, KEY_SEGMENTS, &items, &count));
  for (size_t i = 0; i < count; i++)
    TRY(read_segment(l, false, i, items[i]));
  l->where = "the snapshot";
  TRY(read_histories(l, &top));
  l->where = "the snapshot";
  TRY(read_settings(l, &top));
  l->where = "the snapshot";
  TRY(read_annotations(l, &top));
  l->where = "the snapshot";
  TRY(read_host(l, &top));
  return settle(l);
}

/* Interns the known texts in the order of the enums above, and the usual case of everything as number 0. */
static weir_status prepare(loader *l) {
  weir__recording *s = l->s;
  uint32_t id;
  for (size_t i = 0; i < KEY_COUNT; i++)
    TRY(weir__pickle_intern(l->pickle, key_texts[i], &id));
  for (size_t i = 0; i < WEIR_COUNT_OF(actions); i++)
    TRY(weir__pickle_intern(l->pickle, actions[i].text, &id));
  for (size_t i = 0; i < WEIR_BLOCK_STATES; i++)
    TRY(weir__pickle_intern(l->pickle, weir_block_state_name((weir_block_state)i), &id));
  for (size_t i = 0; i < WEIR_COUNT_OF(word_texts); i++)
    TRY(weir__pickle_intern(l->pickle, word_texts[i], &id));
  static const weir__recording_pool default_pool;
  static const weir__recording_remark nothing = {WORD_NONE, WORD_EMPTY, WORD_EMPTY, WORD_EMPTY};
  INTERN(l, l->pool_table, s->pools, s->pool_count, l->pools, default_pool, id);
  TRY(intern_remark(l, &nothing, &id));
  TRY(intern_stream(l, 0, &l->last_stream));
  ROOM_FOR(l, s->stacks, s->stack_count, l->stacks);
  s->stacks[s->stack_count++] = (weir__recording_stack){0, 0};
  return WEIR_OK;
}

weir_status weir__recording_read(weir__input *source, const weir__recording_limits *limits, weir__recording **out) {
  weir__pickle *pickle;
  TRY(weir__pickle_open(source, limits, &pickle));
  loader *l = calloc(1, sizeof *l);
  weir__recording *s = calloc(1, sizeof *s);
  /* rank set below */
  weir_status status;
  if (!l || !s) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", weir__input_name(source));
    goto close_pickle;
  }
  *l = (loader){.pickle = pickle,
                .budget = weir__pickle_budget(pickle),
                .name = weir__input_name(source),
                .seed = weir__hash_seed(),
                .s = s};
  value root = 0;
  s->rank = -1;
  weir__pickle_set_list_hook(pickle, list_hook);
  status = prepare(l);
  if (!status)
    status = weir__pickle_read(pickle, hook, l, &root);
  if (!status)
    status = read_top(l, root);
  weir__table_clear(&l->stream_table);
  weir__table_clear(&l->pool_table);
  weir__table_clear(&l->remark_table);
  weir__table_clear(&l->frame_table);
  weir__table_clear(&l->stack_table);
  s->strings = *weir__pickle_strings(pickle);
  *weir__pickle_strings(pickle) = (weir__strings){0};
  if (!status)
    status = weir__recording_check_size(s, l->name, weir__pickle_size(pickle));
  if (!status) {
    *out = s;
    s = NULL;
  }
close_pickle:
  weir__recording_free(s);
  free(l);
  weir__pickle_close(pickle);
  return status;
}
