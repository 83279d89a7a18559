#include "offline/read/recording.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "offline/read/byte_reader.h"
#include "offline/read/ring_reader.h"
#include "record/entry.h"
#include "record/state.h"

/* Whether a file begins as the pickle of a dict: with the number of its protocol or, in protocols 0 and 1, with the
 * dict. */
static bool begins_as_pickle(const unsigned char *begin, size_t size) {
  enum { PROTOCOL = 0x80 };
  return size && (begin[0] == PROTOCOL || (size > 1 && (!memcmp(begin, "(d", 2) || !memcmp(begin, "}q", 2))));
}

/* A pickle or a ring file, whichever the first bytes say. */
weir_status weir__recording_load_input(weir__input *input, const weir__recording_limits *limits,
                                       weir__recording **out) {
  unsigned char begin[WEIR__INPUT_PEEK];
  size_t size = 0;
  weir_status status = weir__input_peek(input, begin, sizeof begin, &size);
  if (!status && weir__ring_file_begins(begin, size))
    status = weir__ring_file_read(input, limits, out);
  else if (!status)
    status = weir__recording_read(input, limits, out);
  if (status == WEIR_ERROR_BAD_DATA && size && !begins_as_pickle(begin, size) && !weir__ring_file_begins(begin, size))
    status = weir__fail(status,
                        "%s: not a recording: expected a file of torch.cuda.memory._dump_snapshot() or of WEIR_RECORD",
                        weir__input_name(input));
  weir__input_close(input);
  return status;
}

weir_status weir__recording_load(const char *path, const weir__recording_limits *limits, weir__recording **out) {
  weir__input *input;
  if (strcmp(path, "-") != 0 && weir__ring_file_is(path))
    return weir__ring_file_load(path, limits, out);
  weir_status status = weir__input_open(path, &input);
  return status ? status : weir__recording_load_input(input, limits, out);
}

weir_status weir__recording_load_memory(const char *name, const void *bytes, size_t size,
                                        const weir__recording_limits *limits, weir__recording **out) {
  weir__input *input;
  weir_status status = weir__input_open_memory(name, bytes, size, &input);
  return status ? status : weir__recording_load_input(input, limits, out);
}

void weir__recording_free(weir__recording *s) {
  if (!s)
    return;
  weir__strings_clear(&s->strings);
  for (size_t i = 0; s->devices && i < s->device_count; i++)
    if (s->devices[i].start) {
      weir__state_clear(s->devices[i].start);
      free(s->devices[i].start);
    }
  free(s->devices);
  weir__drop(s->settings);
  weir__drop(s->annotations);
  weir__drop(s->pairs);
  weir__drop(s->works);
  weir__drop(s->changes);
  weir__drop(s->tags);
  weir__drop(s->early);
  weir__drop(s->streams);
  weir__drop(s->pools);
  weir__drop(s->remarks);
  weir__drop(s->frames);
  weir__drop(s->stacks);
  weir__drop(s->stack_frames);
  weir__drop(s->ignored);
  weir__drop(s->host_segments);
  weir__drop(s->events);
  weir__drop(s->segments);
  weir__drop(s->blocks);
  free(s);
}

/* The number of the string that is the value of a key, or -1. */
static int64_t value_of(const weir__strings *strings, const weir__recording_pair *pairs,
                        const weir__recording_annotation *a, const char *key) {
  for (size_t i = a->first_pair; i < a->first_pair + a->pair_count; i++)
    if (strcmp(strings->items[pairs[i].key].text, key) == 0)
      return pairs[i].value;
  return -1;
}

const char *weir__recording_pair_of(const weir__recording *s, const weir__recording_annotation *a, const char *key) {
  int64_t value = value_of(&s->strings, s->pairs, a, key);
  return value < 0 ? NULL : s->strings.items[value].text;
}

bool weir__recording_work_of(const weir__strings *strings, const weir__recording_pair *pairs,
                             const weir__recording_annotation *a, weir__recording_work *work) {
  static const char *const keys[] = {"stream", "start_ns", "duration_ns", "bytes"};
  uint64_t numbers[WEIR_COUNT_OF(keys)];
  if (strcmp(strings->items[a->stage].text, WEIR__STAGE_WORK) != 0)
    return false;
  for (size_t i = 0; i < WEIR_COUNT_OF(keys); i++) {
    int64_t value = value_of(strings, pairs, a, keys[i]);
    const char *text = value < 0 ? "" : strings->items[value].text;
    char *end;
    if (*text < '0' || *text > '9' || strlen(text) > 20)
      return false;
    numbers[i] = strtoull(text, &end, 10);
    if (*end)
      return false;
  }
  int64_t kind = value_of(strings, pairs, a, "kind");
  if (kind < 0 || numbers[1] > INT64_MAX)
    return false;
  *work = (weir__recording_work){.annotation = *a,
                                 .kind = (uint32_t)kind,
                                 .stream = numbers[0],
                                 .start_ns = (int64_t)numbers[1],
                                 .duration_ns = numbers[2],
                                 .bytes = numbers[3]};
  return true;
}

const weir__recording_setting *weir__recording_find_setting(const weir__recording *s, const char *key,
                                                            const char *sub) {
  for (size_t i = s->setting_count; i-- > 0;) { /* a repeated key replaces the earlier one */
    const weir__recording_setting *setting = &s->settings[i];
    if (strcmp(setting->key, key) == 0 && (!sub ? !setting->sub : setting->sub && strcmp(setting->sub, sub) == 0))
      return setting;
  }
  return NULL;
}

static bool has_failure(const weir__recording_device *device) {
  for (size_t i = 0; i < device->event_count; i++)
    if (device->events[i].action == WEIR_TRACE_OOM)
      return true;
  return false;
}

weir_status weir__recording_check_device(const weir__recording *recording, const char *file, int device) {
  if (device >= 0 && (size_t)device < recording->device_count)
    return WEIR_OK;
  const char *colon = file ? ": " : "";
  file = file ? file : "";
  if (!recording->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s%sthere is no device %d: nothing was recorded", file, colon,
                      device);
  if (recording->device_count == 1)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s%sthere is no device %d; valid: 0", file, colon, device);
  return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s%sthere is no device %d; valid: 0 to %zu", file, colon, device,
                    recording->device_count - 1);
}

int weir__recording_first_device(const weir__recording *s) {
  for (size_t i = 0; i < s->device_count; i++)
    if (has_failure(&s->devices[i]))
      return (int)i;
  for (size_t i = 0; i < s->device_count; i++)
    if (s->devices[i].event_count)
      return (int)i;
  for (size_t i = 0; i < s->device_count; i++)
    if (s->devices[i].segment_count)
      return (int)i;
  return 0;
}

/* ---- Proportion ---- */

/* Stacks and texts are stored once, and walked or written with every event that has them. A hostile file may have a few
 * that are in very many places: at most these factors for each byte of the file, and FREE in any case. */
enum { STACK_FACTOR = 32, TEXT_FACTOR = 1024, FREE = 1 << 20 };

/* Whether `count` is within `factor` for each byte. */
static bool is_within(uint64_t count, uint64_t factor, uint64_t bytes) {
  return count <= FREE || (count - FREE) / factor <= bytes;
}

static size_t remark_length(const weir__recording *s, uint32_t remark) {
  const weir__recording_remark *r = &s->remarks[remark];
  const weir__string *texts = s->strings.items;
  return (size_t)texts[r->action].length + texts[r->compile_context].length + texts[r->user_metadata].length +
         texts[r->phase].length;
}

/* Counts the frames and texts of all records, each as often as it would be written. */
static void count_all(const weir__recording *s, uint64_t *frames, uint64_t *texts) {
  *frames = *texts = 0;
  for (size_t d = 0; d < s->device_count; d++)
    for (size_t i = 0; i < s->devices[d].event_count; i++) {
      const weir__recording_entry *e = &s->devices[d].events[i];
      *frames += s->stacks[e->stack].count;
      *texts += e->remark ? remark_length(s, e->remark) : 0;
    }
  for (size_t i = 0; i < s->segment_count; i++) {
    *frames += s->stacks[s->segments[i].stack].count;
    for (size_t k = 0; k < s->segments[i].block_count; k++)
      *frames += s->stacks[s->segments[i].blocks[k].stack].count;
  }
}

weir_status weir__recording_check_size(const weir__recording *s, const char *name, uint64_t bytes) {
  uint64_t deepest = 0, longest = 0, frames, texts;
  for (size_t i = 0; i < s->stack_count; i++)
    deepest = s->stacks[i].count > deepest ? s->stacks[i].count : deepest;
  for (size_t i = 1; i < s->remark_count; i++)
    longest = remark_length(s, (uint32_t)i) > longest ? remark_length(s, (uint32_t)i) : longest;
  /* An upper bound is nearly always enough. */
  if (is_within(deepest * (s->event_count + s->segment_count + s->block_count), STACK_FACTOR, bytes) &&
      is_within(longest * s->event_count, TEXT_FACTOR, bytes))
    return WEIR_OK;
  count_all(s, &frames, &texts);
  if (!is_within(frames, STACK_FACTOR, bytes))
    return weir__not_ok(
        weir__fail(WEIR_ERROR_BAD_DATA,
                   "%s: its stacks, counted with every entry that has them, are more than %d frames for "
                   "each byte of the file",
                   name, STACK_FACTOR));
  if (!is_within(texts, TEXT_FACTOR, bytes))
    return weir__not_ok(weir__fail(WEIR_ERROR_BAD_DATA,
                                   "%s: its texts, counted with every entry that has them, are more than %d times the "
                                   "size of the file",
                                   name, TEXT_FACTOR));
  return WEIR_OK;
}

/* A surrogate takes three bytes, as U+FFFD does. Other invalid bytes, as in a recording of a C program, have room for
 * one character each. */
void weir__recording_clean_texts(weir__recording *recording) {
  static const unsigned char replacement[] = {0xef, 0xbf, 0xbd};
  uint32_t code;
  for (size_t i = 0; i < recording->strings.count; i++) {
    char *text = (char *)recording->strings.items[i].text;
    const size_t length = recording->strings.items[i].length;
    for (size_t k = 0, bytes; k < length; k += bytes) {
      bytes = text[k] ? weir__utf8_length(text + k, &code) : 0;
      if (bytes)
        continue;
      bytes = 1;
      if ((unsigned char)text[k] == 0xed && k + 2 < length && (unsigned char)text[k + 1] >= 0xa0 &&
          (text[k + 2] & 0xc0) == 0x80) {
        memcpy(text + k, replacement, sizeof replacement);
        bytes = 3;
      } else
        text[k] = '?';
    }
  }
}

/* ---- States ---- */

weir_status weir__state_of_file(const weir__recording *recording, const weir__recording_device *device,
                                weir__state *state) {
  size_t blocks = 0;
  for (size_t i = 0; i < device->segment_count; i++)
    blocks += device->segments[i].block_count;
  weir_status status = weir__state_make(device->segment_count, blocks, 0, state);
  if (status)
    return status;
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__recording_segment *from = &device->segments[i];
    const int64_t *pool = recording->pools[from->pool].id;
    state->segments[state->segment_count++] = (weir__state_segment){.address = from->address,
                                                                    .size = from->size,
                                                                    .stream = recording->streams[from->stream],
                                                                    .pool = {pool[0], pool[1]},
                                                                    .first = state->block_count,
                                                                    .count = from->block_count,
                                                                    .is_small = !from->is_large,
                                                                    .is_expandable = from->is_expandable};
    state->reserved += from->size;
    for (size_t k = 0; k < from->block_count; k++) {
      const weir__recording_block *b = &from->blocks[k];
      bool is_active = b->state != WEIR_BLOCK_INACTIVE;
      state->blocks[state->block_count++] = (weir__state_block){.address = b->address,
                                                                .size = b->size,
                                                                .requested = is_active ? b->requested : 0,
                                                                .event = WEIR__NO_ENTRY,
                                                                .stack = b->stack,
                                                                .state = b->state};
    }
  }
  status = weir__state_sort(state);
  if (status)
    weir__state_clear(state);
  return status;
}

void weir__state_find_events(weir__state *state, const weir__recording_entry *events, size_t last) {
  size_t missing = 0;
  for (size_t i = 0; i < state->block_count; i++)
    missing += weir__state_is_active(&state->blocks[i]);
  for (size_t i = last + 1; i-- > 0 && missing;) {
    if (events[i].action != WEIR_TRACE_ALLOC)
      continue;
    weir__state_block *b = weir__state_find_block(state, events[i].address);
    if (!b || !weir__state_is_active(b) || b->event != WEIR__NO_ENTRY)
      continue;
    b->event = i;
    if (events[i].stack)
      b->stack = events[i].stack;
    missing--;
  }
}

void weir__state_take_stacks(weir__state *state, const weir__state *from) {
  for (size_t i = 0; i < state->block_count; i++) {
    weir__state_block *b = &state->blocks[i];
    const weir__state_block *known =
        weir__state_is_active(b) && b->event == WEIR__NO_ENTRY ? weir__state_find_block(from, b->address) : NULL;
    if (known)
      b->stack = known->stack;
  }
}

/* The last one counts: the number of a pool that is gone may be used again. */
const char *weir__recording_tag_of(const weir__recording *recording, int device, const int64_t pool[2]) {
  for (size_t i = recording->tag_count; i--;) {
    const weir__recording_tag *tag = &recording->tags[i];
    if (tag->device == device && tag->pool[0] == pool[0] && tag->pool[1] == pool[1])
      return recording->strings.items[tag->name].text;
  }
  return NULL;
}
