/*
 * Reads view data back, as the page does.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "offline/render/view_data.h"
#include "support/test.h"

/* ---- JSON: a value is a pointer to its text ---- */

static inline const char *json_space(const char *at) { return at + strspn(at, " \n"); }

static inline const char *json_end(const char *at) {
  int depth = 0;
  bool in_text = false;
  for (; *(at += strcspn(at, in_text ? "\"\\" : "\"{}[],")); at++) {
    if (in_text) {
      at += *at == '\\';
      in_text = *at != '"';
    } else if (*at == '"')
      in_text = true;
    else if (*at == '{' || *at == '[')
      depth++;
    else if (*at == '}' || *at == ']') {
      if (!depth--)
        return at;
    } else if (*at == ',' && !depth)
      return at;
  }
  return at;
}

/* A member of an object; NULL if there is none. */
static inline const char *json_find(const char *object, const char *key) {
  size_t length = strlen(key);
  assert_int_equal(*object, '{');
  for (const char *at = json_space(object + 1); *at == '"';) {
    const char *name = at + 1, *end = name;
    for (; *end != '"'; end++)
      end += *end == '\\';
    const char *value = json_space(end + 2);
    if ((size_t)(end - name) == length && memcmp(name, key, length) == 0)
      return value;
    at = json_end(value);
    at = *at == ',' ? json_space(at + 1) : at;
  }
  return NULL;
}

static inline const char *json_get(const char *object, const char *key) {
  const char *value = json_find(object, key);
  if (!value)
    fail_msg("no member %s in %.80s", key, object);
  return value;
}

/* The first item of a list, then the next ones; NULL at the end. */
static inline const char *json_first(const char *list) {
  assert_int_equal(*list, '[');
  list = json_space(list + 1);
  return *list == ']' ? NULL : list;
}

static inline const char *json_next(const char *item) {
  item = json_end(item);
  return *item == ',' ? json_space(item + 1) : NULL;
}

static inline size_t json_count(const char *list) {
  size_t count = 0;
  for (const char *item = json_first(list); item; item = json_next(item))
    count++;
  return count;
}

static inline uint64_t json_number(const char *value) {
  char *end;
  uint64_t number = strtoull(value, &end, 10);
  assert_true(end > value);
  return number;
}

static inline uint64_t number_of(const char *object, const char *key) { return json_number(json_get(object, key)); }

static inline bool json_is(const char *value, const char *text) {
  size_t length = strlen(text);
  return *value == '"' && memcmp(value + 1, text, length) == 0 && value[1 + length] == '"';
}

/* ---- Chunks ---- */

static inline const char *recording_of(const weir__view_data *data, size_t number) {
  const char *item = json_first(json_get(data->index, "recordings"));
  while (number--)
    item = json_next(item);
  return item;
}

/* The bytes of the chunk that an object names. The data are raw. */
static inline const unsigned char *chunk_of(const weir__view_data *data, const char *object, size_t *size) {
  const char *name = json_get(object, "chunk");
  for (size_t i = 0; i < data->count; i++)
    if (json_is(name, data->table[i].name)) {
      assert_false(data->table[i].is_deflated);
      *size = data->table[i].bytes;
      return data->chunks + data->table[i].offset;
    }
  fail_msg("no chunk %.16s", name);
  return NULL;
}

static inline uint64_t get_number(const unsigned char *bytes, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; i++)
    value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

static inline double get_double(const unsigned char *bytes, size_t index) {
  double value;
  memcpy(&value, bytes + index * sizeof value, sizeof value);
  return value;
}

/* ---- Blocks ---- */

typedef struct drawn_block {
  uint32_t x0, duration, pending, y, units, slack, stack;
  uint16_t stream, pool, phase;
  uint8_t class, flags;
  size_t level, depth, index; /* of its tile */
} drawn_block;

/* All that are stored, tile by tile. free() it. */
static inline drawn_block *read_blocks(const weir__view_data *data, const char *recording, size_t *count) {
  static const size_t sizes[] = {4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 1, 1};
  const char *blocks = json_get(recording, "blocks");
  size_t stored = number_of(blocks, "stored"), done = 0;
  drawn_block *list = calloc(stored + 1, sizeof *list);
  assert_non_null(list);
  for (const char *tile = json_first(json_get(blocks, "tiles")); tile; tile = json_next(tile)) {
    size_t size = 0, n = number_of(tile, "count");
    const unsigned char *bytes = chunk_of(data, tile, &size), *at = bytes + number_of(tile, "at");
    uint32_t x0 = 0;
    assert_true(done + n <= stored);
    assert_true(at + 36 * n <= bytes + size);
    for (size_t i = 0; i < n; i++) {
      uint64_t values[12];
      const unsigned char *array = at;
      for (size_t k = 0; k < 12; k++) {
        values[k] = get_number(array + i * sizes[k], sizes[k]);
        array += n * sizes[k];
      }
      x0 += (uint32_t)values[0];
      list[done++] = (drawn_block){x0,
                                   (uint32_t)values[1],
                                   (uint32_t)values[2],
                                   (uint32_t)values[3],
                                   (uint32_t)values[4],
                                   (uint32_t)values[5],
                                   (uint32_t)values[6],
                                   (uint16_t)values[7],
                                   (uint16_t)values[8],
                                   (uint16_t)values[9],
                                   (uint8_t)values[10],
                                   (uint8_t)values[11],
                                   number_of(tile, "level"),
                                   number_of(tile, "depth"),
                                   number_of(tile, "index")};
    }
  }
  assert_int_equal(done, stored);
  *count = done;
  return list;
}

/* The address of a y. */
static inline uint64_t address_of_y(const char *recording, uint32_t y) {
  for (const char *span = json_first(json_get(recording, "spans")); span; span = json_next(span)) {
    uint64_t first = number_of(span, "y");
    if (y >= first && y < first + number_of(span, "units"))
      return number_of(span, "address") + (y - first) * 512;
  }
  fail_msg("y %u is in no span", y);
  return 0;
}

/* The view of one recording, with raw chunks. weir__view_clear() it. */
static inline weir__view_data make_view(const weir__recording *recording, size_t most_blocks) {
  weir__view_data data;
  weir__view_source source = {.recording = recording, .device = 0, .name = "test", .no_explain = true};
  if (weir__view_make(&source, 1, &(weir__view_options){.is_raw = true, .most_blocks = most_blocks}, &data))
    fail_msg("%s", weir_last_error());
  return data;
}
