#include "offline/read/ring_reader.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system.h"
#include "base/text.h"
#include "inspect/setting_list.h"
#include "offline/read/byte_reader.h"
#include "offline/read/code.h"
#include "offline/read/ring_areas.h"
#include "offline/read/ring_state.h"
#include "offline/read/ring_v3.h"
#include "record/entry.h"
#include "record/operations.h"
#include "record/ring_file.h"
#include "record/stacks.h"

/* All modules are logged again when one is loaded; older ones are of no use, and would be searched for every frame. */
enum { MAX_MODULES = 4096 };

/* A text, a pool, a context or a stack of the log. */
typedef struct entry {
  uint64_t at; /* offset in the file */
  uint32_t length;
} entry;

typedef struct module {
  weir__ring_file_module where;
  uint32_t path;     /* a string */
  uint64_t id_at;    /* offset of its build ID */
  uint32_t id_bytes; /* 0 if it has none */
  bool is_open;      /* opening it was tried */
  weir__code *code;  /* NULL if its names are not known */
} module;

/* A change of settings or of a limit in the log. */
typedef struct change {
  uint64_t time; /* ticks */
  int device;    /* -1 for all */
  uint32_t conf; /* a string; for settings only */
  uint64_t limit;
  double fraction;
} change;

typedef struct weir__ring_loader {
  weir__ring_areas file;
  int descriptor; /* of a file whose entries the caller reads */
  weir__recording *s;
  entry *texts, *stacks; /* [0] is unused */
  size_t text_count, text_room, stack_count, stack_room;
  module *modules, *last_module; /* the last one found */
  size_t module_count, module_room;
  uint64_t settings_at; /* offset of the latest; 0 if there are none */
  uint32_t settings_length;
  change *changes;
  size_t change_count, change_room;
  weir__entry *annotations; /* of all devices */
  size_t annotation_count, annotation_room;
  uint8_t *threads; /* by number in entries; 0 if not numbered yet */
  uint8_t thread_count;
  size_t recorded_stack_room, frame_room, stack_frame_room, remark_room, pool_room, tag_room, stream_room,
      snapshot_change_room, snapshot_annotation_room, pair_room, work_room, early_room;
  weir__table frame_table, stream_table, pool_table;
  uint32_t last_pool;  /* nearly always the next one, too */
  uint32_t *remark_of; /* by number of a text; 0 if not known yet, or the usual one */
  weir__clock_line clock;
  struct {
    uint64_t after; /* entries up to this time were dropped, or cleared */
    uint64_t start; /* the state before the first entry includes those up to this one; 0 if it is not known */
  } times[WEIR__RING_DEVICES];
} loader;

static weir_status no_memory(const loader *l) { return weir__ring_no_memory(&l->file); }

/* Makes room for `more` items in an array. */
#define ROOM(l, array, count, room, more)                                                                              \
  do {                                                                                                                 \
    void *grown_ = weir__grow(&(l)->file.budget, (array), &(room), (count) + (more), sizeof *(array));                 \
    if (!grown_)                                                                                                       \
      return no_memory(l);                                                                                             \
    (array) = grown_;                                                                                                  \
  } while (0)

/* ---- The file ---- */

bool weir__ring_file_is(const char *path) {
  struct stat about;
  char magic[8];
  if (stat(path, &about) != 0 || !S_ISREG(about.st_mode))
    return false;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  bool is = descriptor >= 0 && pread(descriptor, magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
            memcmp(magic, WEIR__RING_MAGIC, sizeof magic) == 0;
  if (descriptor >= 0)
    close(descriptor);
  return is;
}

bool weir__ring_file_begins(const void *bytes, size_t size) {
  return size >= 8 && memcmp(bytes, WEIR__RING_MAGIC, 8) == 0;
}

/* ---- The log ---- */

static weir_status add_string(loader *l, const char *text, size_t length, uint32_t *number) {
  weir__strings *strings = &l->s->strings;
  uint32_t hash = weir__strings_hash(strings, text, length);
  *number = weir__strings_find(strings, hash, text, length);
  if (*number == WEIR__TABLE_END)
    *number = weir__strings_add(strings, &l->file.budget, hash, text, length, true);
  return *number == WEIR__TABLE_END || !strings->items ? no_memory(l) : WEIR_OK;
}

static weir_status add_numbered(loader *l, entry **list, size_t *count, size_t *room, const weir__ring_file_record *e,
                                uint64_t at) {
  if (e->number != *count)
    return weir__ring_bad(&l->file, at, "entry of number %u, expected %zu", e->number, *count);
  ROOM(l, *list, *count, *room, 1);
  (*list)[(*count)++] = (entry){at + sizeof *e, e->length};
  return WEIR_OK;
}

static weir_status add_module(loader *l, const weir__ring_file_record *e, uint64_t at) {
  module made = {.is_open = false};
  if (e->length < sizeof made.where)
    return weir__ring_bad(&l->file, at, "a module of %u bytes", e->length);
  memcpy(&made.where, l->file.data + at + sizeof *e, sizeof made.where);
  uint64_t path_at = at + sizeof *e + sizeof made.where;
  size_t room = e->length - sizeof made.where, length = strnlen((const char *)l->file.data + path_at, room);
  TRY(add_string(l, (const char *)l->file.data + path_at, length, &made.path));
  if (length + 1 < room) {
    made.id_at = path_at + length + 1;
    made.id_bytes = (uint32_t)(room - length - 1);
  }
  ROOM(l, l->modules, l->module_count, l->module_room, 1);
  l->modules[l->module_count++] = made;
  return WEIR_OK;
}

static weir_status add_change(loader *l, const change *made) {
  ROOM(l, l->changes, l->change_count, l->change_room, 1);
  l->changes[l->change_count++] = *made;
  return WEIR_OK;
}

/* The first pass only looks for the latest. */
static weir_status add_settings(loader *l, const weir__ring_file_record *e, uint64_t at) {
  change made = {.device = -1};
  if (e->length < sizeof made.time)
    return weir__ring_bad(&l->file, at, "settings of %u bytes", e->length);
  memcpy(&made.time, l->file.data + at + sizeof *e, sizeof made.time);
  l->settings_at = at + sizeof *e + sizeof made.time;
  l->settings_length = e->length - (uint32_t)sizeof made.time;
  if (!l->s)
    return WEIR_OK;
  TRY(add_string(l, (const char *)l->file.data + l->settings_at, l->settings_length, &made.conf));
  return add_change(l, &made);
}

static weir_status add_limit(loader *l, const weir__ring_file_record *e, uint64_t at) {
  weir__ring_file_limit limit = {0};
  size_t bytes = l->file.header->version < 4 ? offsetof(weir__ring_file_limit, fraction) : sizeof limit;
  if (e->length != bytes)
    return weir__ring_bad(&l->file, at, "a limit of %u bytes", e->length);
  memcpy(&limit, l->file.data + at + sizeof *e, bytes);
  if (limit.device < 0 || limit.device >= l->file.header->device_count)
    return weir__ring_bad(&l->file, at, "a limit of device %lld, there are %d", (long long)limit.device,
                          l->file.header->device_count);
  return l->s ? add_change(l, &(change){limit.time, (int)limit.device, 0, limit.bytes, limit.fraction}) : WEIR_OK;
}

static weir_status add_tag(loader *l, const weir__ring_file_record *e, uint64_t at) {
  weir__ring_file_tag tag;
  if (e->length < sizeof tag)
    return weir__ring_bad(&l->file, at, "a tag of %u bytes", e->length);
  memcpy(&tag, l->file.data + at + sizeof *e, sizeof tag);
  if (tag.device < 0 || tag.device >= l->file.header->device_count)
    return weir__ring_bad(&l->file, at, "a tag of device %lld, there are %d", (long long)tag.device,
                          l->file.header->device_count);
  weir__recording_tag made = {(int)tag.device, {(int64_t)tag.pool[0], (int64_t)tag.pool[1]}, 0};
  TRY(add_string(l, (const char *)l->file.data + at + sizeof *e + sizeof tag, e->length - sizeof tag, &made.name));
  ROOM(l, l->s->tags, l->s->tag_count, l->tag_room, 1);
  l->s->tags[l->s->tag_count++] = made;
  return WEIR_OK;
}

static weir_status read_log_area(loader *l, uint64_t at, uint64_t end) {
  while (at < end) {
    weir__ring_file_record e;
    if (end - at < sizeof e)
      return weir__ring_bad(&l->file, at, "the log ends in an entry");
    memcpy(&e, l->file.data + at, sizeof e);
    if (e.length > end - at - sizeof e)
      return weir__ring_bad(&l->file, at, "an entry of %u bytes, the log has %llu more", e.length,
                            (unsigned long long)(end - at - sizeof e));
    switch (e.kind) {
    case WEIR__RING_TEXT:
      if (l->s)
        TRY(add_numbered(l, &l->texts, &l->text_count, &l->text_room, &e, at));
      break;
    case WEIR__RING_STACK:
      if (l->s)
        TRY(add_numbered(l, &l->stacks, &l->stack_count, &l->stack_room, &e, at));
      break;
    case WEIR__RING_MODULE:
      if (l->s)
        TRY(add_module(l, &e, at));
      break;
    case WEIR__RING_SETTINGS:
      TRY(add_settings(l, &e, at));
      break;
    case WEIR__RING_LIMIT:
      TRY(add_limit(l, &e, at));
      break;
    case WEIR__RING_TAG:
      if (l->s)
        TRY(add_tag(l, &e, at));
      break;
    default: /* of a newer program */
      if (l->file.header->version < 4)
        return weir__ring_bad(&l->file, at, "an entry of kind %u, which is not known", e.kind);
    }
    uint64_t whole = weir__round_up(sizeof e + e.length, 8);
    if (whole > end - at)
      return weir__ring_bad(&l->file, at, "the log ends in an entry");
    at += whole;
  }
  return WEIR_OK;
}

/* Two passes: the first finds the settings, with which a recording begins. */
static weir_status read_log(loader *l) {
  for (size_t i = 0; i < l->file.count; i++)
    if (l->file.areas[i].kind == WEIR__RING_LOG)
      TRY(read_log_area(l, l->file.areas[i].at, l->file.areas[i].at + l->file.areas[i].bytes));
  return WEIR_OK;
}

static weir_status add_settings_list(loader *l) {
  weir__recording *s = l->s;
  weir__recording_setting list[WEIR__SETTING_LIST];
  size_t room = 0;
  uint32_t conf;
  const char *text = (const char *)l->file.data + l->settings_at;
  TRY(add_string(l, text, strnlen(text, l->settings_length), &conf));
  s->conf = s->strings.items[conf].text;
  if (weir__setting_list_parse(s->conf, list))
    return weir__ring_bad(&l->file, l->settings_at, "the settings: %s", weir_last_error());
  ROOM(l, s->settings, 0, room, WEIR__SETTING_LIST);
  for (; s->setting_count < WEIR__SETTING_LIST; s->setting_count++) {
    s->settings[s->setting_count] = list[s->setting_count];
    if (list[s->setting_count].kind != WEIR__SETTING_FLOAT) /* as readers of pickles have it */
      s->settings[s->setting_count].real = (double)list[s->setting_count].integer;
  }
  return WEIR_OK;
}

/* Begins with the settings, and with the usual case of everything as number 0. */
static weir_status begin_recording(loader *l) {
  weir__recording *s = l->s = calloc(1, sizeof *s);
  uint32_t empty, none;
  if (!s)
    return no_memory(l);
  s->device_count = (size_t)l->file.header->device_count;
  s->devices = calloc(s->device_count, sizeof *s->devices);
  if (!s->devices)
    return no_memory(l);
  s->has_history = s->has_host = s->is_events_only = s->has_causes = true;
  s->is_cut_off = l->file.header->ended != WEIR__RING_CLOSED;
  s->was_killed = l->file.header->ended == WEIR__RING_KILLED;
  s->rank = l->file.header->rank;
  s->pid = l->file.header->pid;
  memcpy(s->host_name, l->file.header->host, sizeof s->host_name - 1);
  s->strings.seed = weir__hash_seed();
  TRY(add_string(l, "", 0, &empty));
  TRY(add_string(l, "N/A", strlen("N/A"), &none));
  TRY(add_settings_list(l));
  ROOM(l, s->remarks, 0, l->remark_room, 1);
  s->remarks[s->remark_count++] = (weir__recording_remark){none, empty, empty, empty};
  ROOM(l, s->pools, 0, l->pool_room, 1);
  s->pools[s->pool_count++] = (weir__recording_pool){{0, 0}};
  ROOM(l, s->streams, 0, l->stream_room, 1);
  s->streams[s->stream_count++] = 0;
  ROOM(l, s->stacks, 0, l->recorded_stack_room, 1);
  s->stacks[s->stack_count++] = (weir__recording_stack){0, 0};
  return WEIR_OK;
}

/* ---- What numbers mean ---- */

/* Finds `entry` in an array of the recording, or appends it. */
#define INTERN(l, index, array, count, room, entry, id)                                                                \
  do {                                                                                                                 \
    void *grown_ = weir__table_intern(&(index), &(l)->file.budget, (l)->s->strings.seed, (array), &(count), &(room),   \
                                      &(entry), sizeof(entry), &(id));                                                 \
    if (!grown_)                                                                                                       \
      return no_memory(l);                                                                                             \
    (array) = grown_;                                                                                                  \
  } while (0)

/* The text of a number. false if there is none. */
static bool text_of(const loader *l, uint32_t number, const char **text, size_t *length) {
  bool known = number && number < l->text_count;
  *text = known ? (const char *)l->file.data + l->texts[number].at : "";
  *length = known ? strnlen(*text, l->texts[number].length) : 0;
  return known;
}

static weir_status string_of(loader *l, uint32_t number, uint32_t *string) {
  const char *text;
  size_t length;
  text_of(l, number, &text, &length);
  return add_string(l, text, length, string);
}

static module *module_of(loader *l, uint64_t address) {
  module *recent = l->last_module;
  if (recent && address >= recent->where.begin &&
      address < recent->where.end) /* frames of a stack are mostly of one module */
    return recent;
  size_t last = l->module_count > MAX_MODULES ? l->module_count - MAX_MODULES : 0;
  for (size_t i = l->module_count; i-- > last;) /* the latest one, since another library may have been there before */
    if (address >= l->modules[i].where.begin && address < l->modules[i].where.end)
      return l->last_module = &l->modules[i];
  return NULL;
}

/* Interns a frame. */
static weir_status add_frame(loader *l, uint32_t name, uint32_t file, int line, uint32_t *number) {
  weir__recording *s = l->s;
  weir__recording_frame made;
  memset(&made, 0, sizeof made);
  made.name = name;
  made.filename = file;
  made.line = line;
  INTERN(l, l->frame_table, s->frames, s->frame_count, l->frame_room, made, *number);
  return WEIR_OK;
}

/* The file of a module, if it is still the recorded one. */
static weir__code *code_of(const loader *l, module *in) {
  if (!in->is_open) {
    char host[sizeof l->file.header->host] = "";
    weir__host_name(host, sizeof host);
    weir__code_origin origin = {.path = l->s->strings.items[in->path].text,
                                .base = in->where.base,
                                .build_id = l->file.data + in->id_at,
                                .build_id_bytes = in->id_bytes,
                                .recorded_ns = l->file.header->first.unix_ns,
                                .is_this_host = strncmp(host, l->file.header->host, sizeof host) == 0};
    in->is_open = true;
    in->code = weir__code_open(&origin);
  }
  return in->code;
}

/* Appends the frames of an address: one, and those that were inlined there. If the names are not known, a frame has the
 * module and the offset in it. */
static weir_status add_native(loader *l, uint64_t address, size_t *used) {
  enum { MAX_INLINED = 32 };
  weir__code_name names[MAX_INLINED];
  module *in = module_of(l, address);
  weir__code *code = in ? code_of(l, in) : NULL;
  size_t count = code ? weir__code_names(code, address, names, MAX_INLINED) : 0;
  char place[32];
  if (!count) {
    snprintf(place, sizeof place, "0x%llx", (unsigned long long)(address - (in ? in->where.base : 0)));
    names[count++] = (weir__code_name){place, in ? l->s->strings.items[in->path].text : "??", 0};
  }
  for (size_t i = 0; i < count; i++) {
    uint32_t name, file;
    TRY(add_string(l, names[i].function, strlen(names[i].function), &name));
    TRY(add_string(l, names[i].file, strlen(names[i].file), &file));
    ROOM(l, l->s->stack_frames, *used, l->stack_frame_room, 1);
    TRY(add_frame(l, name, file, names[i].line, &l->s->stack_frames[*used]));
    ++*used;
  }
  return WEIR_OK;
}

static weir_status add_language(loader *l, const weir__frame *frame, size_t *used) {
  uint32_t name, file;
  TRY(string_of(l, frame->function, &name));
  TRY(string_of(l, frame->file, &file));
  ROOM(l, l->s->stack_frames, *used, l->stack_frame_room, 1);
  TRY(add_frame(l, name, file, frame->line, &l->s->stack_frames[*used]));
  ++*used;
  return WEIR_OK;
}

static bool frame_begins(const weir__recording *s, uint32_t frame, const char *prefix) {
  return strncmp(s->strings.items[s->frames[frame].name].text, prefix, strlen(prefix)) == 0;
}

/* The number of native frames that are Weir's own, as in a program with libweir.a: a stack begins with them, and the
 * last is the public function that the program called. */
static size_t count_own(const weir__recording *s, const uint32_t *frames, size_t count) {
  enum { DEEPEST = 24 };
  size_t own = 0;
  for (size_t i = 0; i < count && i < DEEPEST && !own; i++)
    if (frame_begins(s, frames[i], "weir_") && !frame_begins(s, frames[i], "weir__"))
      own = i + 1;
  while (own < count && frame_begins(s, frames[own], "weir_"))
    own++;
  return own;
}

/* Reads all stacks; they keep the numbers that they have in entries. */
static weir_status read_stacks(loader *l) {
  weir__recording *s = l->s;
  size_t used = 0;
  for (size_t i = 1; i < l->stack_count; i++) {
    size_t words = l->stacks[i].length / sizeof(uint64_t), first = used;
    const unsigned char *at = l->file.data + l->stacks[i].at;
    size_t native = SIZE_MAX; /* where native frames begin */
    for (size_t k = 0; k < words;) {
      uint64_t pair[2] = {0, 0};
      bool has_two = k + 1 < words;
      memcpy(pair, at + k * sizeof pair[0], (has_two ? 2 : 1) * sizeof pair[0]);
      weir__frame frame;
      k += weir__stack_frame_of(pair, has_two ? 2 : 1, &frame);
      if (frame.address && native == SIZE_MAX)
        native = used;
      TRY(frame.address ? add_native(l, frame.address, &used) : add_language(l, &frame, &used));
    }
    size_t own = native == SIZE_MAX ? 0 : count_own(s, s->stack_frames + native, used - native);
    if (own) {
      used -= own;
      memmove(s->stack_frames + native, s->stack_frames + native + own, (used - native) * sizeof *s->stack_frames);
    }
    ROOM(l, s->stacks, s->stack_count, l->recorded_stack_room, 1);
    s->stacks[s->stack_count++] = (weir__recording_stack){first, used - first};
  }
  return WEIR_OK;
}

static weir_status remark_of(loader *l, uint32_t context, uint32_t *remark) {
  weir__recording *s = l->s;
  *remark = 0;
  if (!context || context >= l->text_count)
    return WEIR_OK;
  *remark = l->remark_of[context];
  weir__entry_context of;
  if (*remark || !weir__context_of_bytes(l->file.data + l->texts[context].at, l->texts[context].length, &of))
    return WEIR_OK;
  weir__recording_remark made = s->remarks[0];
  if (of.compile)
    TRY(string_of(l, of.compile, &made.compile_context));
  if (of.metadata)
    TRY(string_of(l, of.metadata, &made.user_metadata));
  if (of.phase)
    TRY(string_of(l, of.phase, &made.phase));
  ROOM(l, s->remarks, s->remark_count, l->remark_room, 1);
  *remark = l->remark_of[context] = (uint32_t)s->remark_count;
  s->remarks[s->remark_count++] = made;
  return WEIR_OK;
}

static weir_status pool_of(loader *l, uint32_t number, uint32_t *pool) {
  weir__recording *s = l->s;
  *pool = 0;
  weir_pool_id id;
  if (!number || (!weir__pool_is_direct(number, &id) &&
                  (number >= l->text_count ||
                   !weir__pool_of_bytes(l->file.data + l->texts[number].at, l->texts[number].length, &id))))
    return WEIR_OK;
  weir__recording_pool made = {{(int64_t)id.first, (int64_t)id.second}};
  if (memcmp(&s->pools[l->last_pool], &made, sizeof made) == 0) {
    *pool = l->last_pool;
    return WEIR_OK;
  }
  INTERN(l, l->pool_table, s->pools, s->pool_count, l->pool_room, made, *pool);
  l->last_pool = *pool;
  return WEIR_OK;
}

static weir_status stream_of(loader *l, uint64_t raw, uint64_t at, uint16_t *stream) {
  weir__recording *s = l->s;
  int64_t made = (int64_t)raw;
  uint32_t id = 0;
  if (raw)
    INTERN(l, l->stream_table, s->streams, s->stream_count, l->stream_room, made, id);
  if (id >= UINT16_MAX)
    return weir__ring_bad(&l->file, at, "there are more than %d streams", UINT16_MAX);
  *stream = (uint16_t)id;
  return WEIR_OK;
}

/* ---- Events ---- */

typedef struct place {
  uint64_t sequence, at;
} place;

static int by_sequence(const void *a, const void *b) {
  const place *x = a, *y = b;
  return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

static unsigned count_at(const loader *l, uint64_t at) {
  unsigned count;
  memcpy(&count, l->file.data + at + offsetof(weir__chunk, count), sizeof count);
  return count;
}

/* Finds the chunks that have entries, in the order of their sequence numbers. */
static weir_status find_chunks_in(loader *l, const weir__ring_area *in, place **places, size_t *count, size_t *room,
                                  size_t *events) {
  for (uint64_t i = 0; i < in->bytes / sizeof(weir__chunk); i++) {
    place p = {0, in->at + i * sizeof(weir__chunk)};
    unsigned has = count_at(l, p.at);
    if (has > WEIR__CHUNK_ENTRIES)
      return weir__ring_bad(&l->file, p.at, "a chunk of %u entries, there is room for %d", has,
                            (int)WEIR__CHUNK_ENTRIES);
    if (!has)
      continue;
    memcpy(&p.sequence, l->file.data + p.at + offsetof(weir__chunk, sequence), sizeof p.sequence);
    ROOM(l, *places, *count, *room, 1);
    (*places)[(*count)++] = p;
    *events += has;
  }
  return WEIR_OK;
}

static weir_status find_chunks(loader *l, place **places, size_t *count, size_t *events) {
  size_t room = 0;
  *events = 0;
  for (size_t i = 0; i < l->file.count && !l->file.chunkless; i++)
    if (l->file.areas[i].kind == WEIR__RING_CHUNKS)
      TRY(find_chunks_in(l, &l->file.areas[i], places, count, &room, events));
  if (*count)
    qsort(*places, *count, sizeof **places, by_sequence);
  return WEIR_OK;
}

typedef enum use { IS_USED, IS_IN_START, IS_DROPPED } use;

/* Whether an entry is one of the history. Those before the checkpoint count as dropped. */
static weir_status check_entry(const loader *l, const weir__entry *e, uint64_t at, use *use) {
  if (e->device >= l->file.header->device_count || e->action >= WEIR_TRACE_ACTIONS)
    return weir__ring_bad(&l->file, at, "an entry of device %u with action %u, which is not known", e->device,
                          e->action);
  if (e->time <= l->times[e->device].after)
    *use = IS_DROPPED;
  else
    *use = e->action != WEIR__ACTION_PAIRS && e->time <= l->times[e->device].start ? IS_IN_START : IS_USED;
  return WEIR_OK;
}

/* Gathers the entries of a device from all chunks, in order. */
static weir_status gather(loader *l, int device, const place *places, size_t count, weir__entry *to, weir__entry *spare,
                          size_t *found) {
  *found = 0;
  for (size_t i = 0; i < count; i++)
    for (unsigned k = 0, has = count_at(l, places[i].at); k < has; k++) {
      uint64_t at = places[i].at + offsetof(weir__chunk, entries) + k * sizeof(weir__entry);
      weir__entry e;
      use use = IS_DROPPED;
      memcpy(&e, l->file.data + at, sizeof e);
      if (l->file.header->version < 4)
        e.thread = weir__ring_v3_thread(e.thread);
      TRY(check_entry(l, &e, at, &use));
      if (e.device != device || use == IS_DROPPED)
        continue;
      if (use == IS_IN_START)
        l->s->devices[device].dropped++;
      else if (e.action != WEIR__ACTION_PAIRS)
        to[(*found)++] = e;
      else {
        ROOM(l, l->annotations, l->annotation_count, l->annotation_room, 1);
        l->annotations[l->annotation_count++] = e;
      }
    }
  weir__entries_sort(to, spare, *found);
  return WEIR_OK;
}

/* Microseconds since 1970; 0, which is "not recorded", for ticks that are out of range. */
static int64_t time_of(const loader *l, uint64_t ticks) {
  double ns = (double)(int64_t)(ticks - l->clock.ticks) * l->clock.ns_per_tick;
  return ns > -(double)WEIR__RING_MAX_NS && ns < (double)WEIR__RING_MAX_NS
             ? weir__recording_time((l->clock.unix_ns + (int64_t)ns) / 1000)
             : 0;
}

/* Renumbers threads from 1 on. */
static uint8_t thread_of(loader *l, uint16_t number) {
  uint8_t *thread = &l->threads[number & WEIR__ENTRY_MAX_THREADS];
  if ((number & WEIR__ENTRY_MAX_THREADS) == WEIR__ENTRY_MAX_THREADS)
    *thread = WEIR__RECORDING_MANY_THREADS;
  if (!*thread && (number & WEIR__ENTRY_MAX_THREADS))
    *thread = l->thread_count < WEIR__RECORDING_MANY_THREADS - 1 ? ++l->thread_count : WEIR__RECORDING_MANY_THREADS;
  return *thread;
}

static weir_status convert(loader *l, const weir__entry *e, weir__recording_entry *to) {
  *to = (weir__recording_entry){.address = e->address,
                                .size = e->bytes,
                                .time_us = time_of(l, e->time),
                                .stack = e->stack < l->s->stack_count ? e->stack : 0,
                                .action = e->action,
                                .thread = thread_of(l, e->thread) & WEIR__RECORDING_MANY_THREADS,
                                .reason = weir__entry_reason(e) & 7,
                                .phase_begins = (e->thread & WEIR__ENTRY_PHASE_BEGINS) != 0,
                                .is_for_request = weir__entry_is_for_request(e)};
  TRY(remark_of(l, e->context, &to->remark));
  TRY(pool_of(l, e->pool, &to->pool));
  return stream_of(l, e->stream, 0, &to->stream);
}

static weir_status add_placed(loader *l, const weir__recording_change *made) {
  ROOM(l, l->s->changes, l->s->change_count, l->snapshot_change_room, 1);
  l->s->changes[l->s->change_count++] = *made;
  return WEIR_OK;
}

/* The fraction as which the limit at a checkpoint was set. */
static double fraction_of(const loader *l, int device, const weir__ring_file_start *start) {
  double fraction = 0;
  for (size_t i = 0; i < l->change_count; i++)
    if (l->changes[i].device == device && l->changes[i].time <= start->of.settings_time)
      fraction = l->changes[i].limit == start->of.limit ? l->changes[i].fraction : 0;
  return fraction;
}

/* Finds between which events of a device its settings and its limit changed. A checkpoint, where there is one, has the
 * first of each, whatever the log had room for before it. */
static weir_status place_changes(loader *l, int device, const weir__ring_file_start *start, const weir__entry *events,
                                 size_t count) {
  weir__recording *s = l->s;
  size_t first = s->change_count, read = 0, at = 0;
  if (start->is_known) {
    uint32_t conf;
    TRY(add_string(l, start->conf, start->of.conf_bytes, &conf));
    TRY(add_placed(l, &(weir__recording_change){device, 0, s->strings.items[conf].text, 0, 0}));
    TRY(add_placed(l, &(weir__recording_change){device, 0, NULL, start->of.limit, fraction_of(l, device, start)}));
  }
  for (size_t i = 0; i < l->change_count; i++) {
    const change *c = &l->changes[i];
    if ((c->device >= 0 && c->device != device) || (start->is_known && c->time <= start->of.settings_time))
      continue;
    while (read < count && events[read].time <= c->time) /* taking a block is no event of a recording */
      at += events[read++].action != WEIR__ACTION_TAKEN;
    weir__recording_change made = {device, at, c->device < 0 ? s->strings.items[c->conf].text : NULL, c->limit,
                                   c->fraction};
    size_t same = first;
    while (same < s->change_count && (at || !s->changes[same].conf != !made.conf))
      same++;
    if (same == s->change_count)
      TRY(add_placed(l, &made));
    else
      s->changes[same] = made;
  }
  return WEIR_OK;
}

static weir_status find_early(loader *l, int device, weir__entry *events, size_t *count) {
  weir__recording *s = l->s;
  size_t most = 0, found = 0, room = 0;
  for (size_t i = 0; i < *count; i++)
    most += events[i].action == WEIR__ACTION_TAKEN || events[i].action == WEIR_TRACE_SEGMENT_MAP;
  weir__early *early = weir__grow(&l->file.budget, NULL, &room, most + 1, sizeof *early);
  if (!early)
    return no_memory(l);
  *count = weir__entries_take_early(events, *count, early, &found);
  weir__recording_early *grown =
      weir__grow(&l->file.budget, s->early, &l->early_room, s->early_count + found + 1, sizeof *grown);
  if (grown) {
    s->early = grown;
    for (size_t i = 0; i < found; i++)
      grown[s->early_count++] = (weir__recording_early){device, early[i].entry, early[i].request};
  }
  weir__drop(early);
  return grown ? WEIR_OK : no_memory(l);
}

/* Reads the state before the first event of a device. Stacks for which the log had no room are 0. */
static weir_status read_start(loader *l, int device, weir__ring_file_start *start) {
  weir__recording_device *d = &l->s->devices[device];
  uint64_t at;
  const char *why;
  weir_status status =
      weir__ring_file_start_read(l->file.data, l->file.size, l->file.header, device, &l->file.budget, start, &at, &why);
  if (status)
    return why ? weir__ring_bad(&l->file, at, "%s", why) : no_memory(l);
  d->lacks_start = !start->is_known && (d->dropped || start->is_missing);
  if (!start->is_known)
    return WEIR_OK;
  d->start = start->state;
  d->peak_allocated = start->of.peak_allocated;
  d->peak_reserved = start->of.peak_reserved;
  for (size_t i = 0; i < d->start->block_count; i++)
    if (d->start->blocks[i].stack >= l->s->stack_count)
      d->start->blocks[i].stack = 0;
  return WEIR_OK;
}

static void note_times(loader *l, int device, const weir__ring_file_start *start) {
  const weir__ring_file_device *d = &l->file.header->devices[device];
  l->times[device].after = d->dropped_until > d->cleared_until ? d->dropped_until : d->cleared_until;
  l->times[device].start = start->is_known ? start->of.time : 0;
}

static weir_status read_events(loader *l) {
  weir__recording *s = l->s;
  weir__ring_file_start start;
  place *places = NULL;
  weir__entry *all = NULL;
  size_t count = 0, total = 0, found = 0, room = 0, spare = 0;
  weir_status status = find_chunks(l, &places, &count, &total);
  if (!status) {
    all = weir__grow(&l->file.budget, NULL, &spare, 2 * total + 1, sizeof *all);
    s->events = weir__grow(&l->file.budget, NULL, &room, total + 1, sizeof *s->events);
    status = all && s->events ? WEIR_OK : no_memory(l);
  }
  for (int d = 0; d < l->file.header->device_count && !status; d++) {
    s->devices[d].events = s->events + s->event_count;
    s->devices[d].dropped = l->file.header->devices[d].dropped;
    s->devices[d].memory = l->file.header->devices[d].memory;
    s->devices[d].outside = l->file.header->outside[d].bytes;
    s->devices[d].peak_outside = l->file.header->outside[d].peak;
    found = 0;
    status = read_start(l, d, &start);
    note_times(l, d, &start);
    if (!status)
      status = gather(l, d, places, count, all, all + total, &found);
    if (!status)
      status = place_changes(l, d, &start, all, found);
    if (!status) {
      weir__entries_join(all, found, true);
      status = find_early(l, d, all, &found);
    }
    for (size_t i = 0; i < found && all && !status; i++)
      status = convert(l, &all[i], &s->events[s->event_count + i]);
    s->devices[d].event_count = found;
    s->event_count += found;
  }
  weir__drop(places);
  weir__drop(all);
  return status;
}

static weir_status add_pair(loader *l, const char *key, const char *value) {
  weir__recording *s = l->s;
  weir__recording_pair pair;
  TRY(add_string(l, key, strlen(key), &pair.key));
  TRY(add_string(l, value, strlen(value), &pair.value));
  ROOM(l, s->pairs, s->pair_count, l->pair_room, 1);
  s->pairs[s->pair_count++] = pair;
  return WEIR_OK;
}

static weir_status add_number(loader *l, const char *key, uint64_t number) {
  char text[24];
  snprintf(text, sizeof text, "%llu", (unsigned long long)number);
  return add_pair(l, key, text);
}

/* The numbers of work are in the entry: see record/entry.h. */
static weir_status add_work_numbers(loader *l, const weir__entry *e) {
  TRY(add_number(l, "stream", e->stream));
  TRY(add_number(l, "start_ns", e->address));
  TRY(add_number(l, "duration_ns", (uint64_t)e->pool << 32 | e->stack));
  return add_number(l, "bytes", e->bytes);
}

/* Adds an annotation, or work, to the recording. */
static weir_status read_annotation(loader *l, const weir__entry *e) {
  weir__recording *s = l->s;
  const char *text = NULL;
  size_t count = 0;
  if (e->context >= l->text_count ||
      !weir__pairs_of_bytes(l->file.data + l->texts[e->context].at, l->texts[e->context].length, &text, &count))
    return WEIR_OK; /* the log had no room for it */
  weir__recording_annotation made = {.device = e->device, .time_us = time_of(l, e->time), .first_pair = s->pair_count};
  TRY(add_string(l, "", 0, &made.name));
  made.stage = made.name;
  for (size_t k = 0; k < count; k++) {
    const char *key = text, *value = key + strlen(key) + 1;
    if (strcmp(key, "name") == 0)
      TRY(add_string(l, value, strlen(value), &made.name));
    else if (strcmp(key, "stage") == 0)
      TRY(add_string(l, value, strlen(value), &made.stage));
    else
      TRY(add_pair(l, key, value));
    text = value + strlen(value) + 1;
  }
  if (e->address)
    TRY(add_work_numbers(l, e));
  made.pair_count = s->pair_count - made.first_pair;
  weir__recording_work work;
  if (weir__recording_work_of(&s->strings, s->pairs, &made, &work)) {
    ROOM(l, s->works, s->work_count, l->work_room, 1);
    s->works[s->work_count++] = work;
    return WEIR_OK;
  }
  ROOM(l, s->annotations, s->annotation_count, l->snapshot_annotation_room, 1);
  s->annotations[s->annotation_count++] = made;
  return WEIR_OK;
}

static weir_status read_annotations(loader *l) {
  size_t room = 0;
  weir__entry *spare = weir__grow(&l->file.budget, NULL, &room, l->annotation_count + 1, sizeof *spare);
  if (!spare)
    return no_memory(l);
  weir__entries_sort(l->annotations, spare, l->annotation_count);
  weir__drop(spare);
  for (size_t i = 0; i < l->annotation_count; i++)
    TRY(read_annotation(l, &l->annotations[i]));
  return WEIR_OK;
}

/* ---- The whole ---- */

static weir_status begin_numbers(loader *l) {
  size_t remarks = 0, threads = 0;
  l->remark_of = weir__grow(&l->file.budget, NULL, &remarks, l->text_count, sizeof *l->remark_of);
  l->threads = weir__grow(&l->file.budget, NULL, &threads, WEIR__ENTRY_MAX_THREADS + 1, sizeof *l->threads);
  if (!l->remark_of || !l->threads)
    return no_memory(l);
  memset(l->threads, 0, WEIR__ENTRY_MAX_THREADS + 1);
  memset(l->remark_of, 0, l->text_count * sizeof *l->remark_of);
  return WEIR_OK;
}

static weir_status load(loader *l) {
  TRY(weir__ring_areas_read(&l->file));
  TRY(read_log(l));
  TRY(begin_recording(l));
  ROOM(l, l->texts, 0, l->text_room, 1);
  ROOM(l, l->stacks, 0, l->stack_room, 1);
  l->texts[0] = l->stacks[0] = (entry){0, 0};
  l->text_count = l->stack_count = 1;
  TRY(read_log(l));
  TRY(begin_numbers(l));
  TRY(read_stacks(l));
  l->clock = weir__clock_through(&l->file.header->first, &l->file.header->last[l->file.header->newest & 1]);
  TRY(read_events(l));
  TRY(read_annotations(l));
  return weir__recording_check_size(l->s, l->file.path, l->file.size);
}

static void warn(const loader *l) {
  const weir__ring_file_header *h = l->file.header;
  if (h->failure)
    weir__log(WEIR_LOG_WARN, "%s: the recording could not grow beyond %llu KiB: %s", l->file.path,
              (unsigned long long)h->file_bytes >> 10, strerror((int)h->failure));
  if (h->lost)
    weir__log(WEIR_LOG_WARN,
              "%s: %llu entries are missing: there was no room for all streams; WEIR_RECORD_MB makes it larger",
              l->file.path, (unsigned long long)h->lost);
}

/* Frees everything but the recording. */
static void clear(loader *l) {
  weir__ring_areas_clear(&l->file);
  weir__drop(l->texts);
  weir__drop(l->stacks);
  for (size_t i = 0; i < l->module_count; i++)
    weir__code_close(l->modules[i].code);
  weir__drop(l->modules);
  weir__drop(l->remark_of);
  weir__drop(l->threads);
  weir__drop(l->changes);
  weir__drop(l->annotations);
  weir__table_clear(&l->frame_table);
  weir__table_clear(&l->stream_table);
  weir__table_clear(&l->pool_table);
}

static weir__budget budget_of(const weir__recording_limits *limits) {
  return (weir__budget){.limit = limits && limits->memory ? limits->memory : 64ull << 30};
}

static weir_status load_from(const char *path, weir__input *source, const weir__recording_limits *limits,
                             weir__recording **out) {
  loader l = {.file = {.path = path, .source = source, .budget = budget_of(limits)}};
  weir_status status = load(&l);
  if (!status)
    warn(&l);
  clear(&l);
  if (status) {
    weir__recording_free(l.s);
    return status;
  }
  *out = l.s;
  return WEIR_OK;
}

weir_status weir__ring_file_load(const char *path, const weir__recording_limits *limits, weir__recording **out) {
  return load_from(path, NULL, limits, out);
}

weir_status weir__ring_file_read(weir__input *source, const weir__recording_limits *limits, weir__recording **out) {
  return load_from(weir__input_name(source), source, limits, out);
}

/* ---- Without the entries ---- */

weir_status weir__ring_loader_open(const char *path, int descriptor, const weir__recording_limits *limits,
                                   weir__ring_loader **out) {
  loader *l = calloc(1, sizeof *l);
  if (!l)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: the host has no memory for it", path);
  l->descriptor = descriptor;
  l->file = (weir__ring_areas){.path = path, .chunkless = &l->descriptor, .budget = budget_of(limits)};
  weir_status status = load(l);
  if (status) {
    weir__ring_loader_close(l);
    return status;
  }
  warn(l);
  *out = l;
  return WEIR_OK;
}

void weir__ring_loader_close(weir__ring_loader *l) {
  if (!l)
    return;
  clear(l);
  weir__recording_free(l->s);
  free(l);
}

weir__ring_areas *weir__ring_loader_file(weir__ring_loader *l) { return &l->file; }

weir__recording *weir__ring_loader_recording(weir__ring_loader *l) { return l->s; }

weir_status weir__ring_loader_convert(weir__ring_loader *l, const weir__entry *e, uint64_t at,
                                      weir__recording_entry *to, bool *is_used) {
  use use = IS_DROPPED;
  TRY(check_entry(l, e, at, &use));
  *is_used = use == IS_USED && e->action != WEIR__ACTION_TAKEN;
  if (use == IS_IN_START)
    l->s->devices[e->device].dropped++;
  if (!*is_used)
    return WEIR_OK;
  if (e->action != WEIR__ACTION_PAIRS)
    return convert(l, e, to);
  size_t before = l->s->annotation_count;
  TRY(read_annotation(l, e));
  *is_used = l->s->annotation_count > before;
  *to = (weir__recording_entry){.action = WEIR__ACTION_PAIRS, .time_us = time_of(l, e->time)};
  to->remark = (uint32_t)before;
  return WEIR_OK;
}
