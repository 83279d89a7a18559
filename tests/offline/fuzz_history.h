/*
 * A history in eight bytes for each entry, written as a pickle: mutations are then spent on what a history says, not on
 * how it is encoded. data[0] is not used, and data[1] selects the settings and the number of segments.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "offline/read/recording.h"

typedef struct writer {
  uint8_t *data;
  size_t size, room;
} writer;

static void put(writer *w, const void *data, size_t size) {
  if (w->size + size > w->room) {
    w->room = 2 * (w->size + size);
    w->data = realloc(w->data, w->room);
    if (!w->data)
      abort();
  }
  memcpy(w->data + w->size, data, size);
  w->size += size;
}

static void put_op(writer *w, char op) { put(w, &op, 1); }

static void put_text(writer *w, const char *text) {
  uint8_t length[4] = {(uint8_t)strlen(text)};
  put_op(w, 'X');
  put(w, length, 4);
  put(w, text, length[0]);
}

/* Nine bytes, the highest 0: never negative. */
static void put_number(writer *w, uint64_t number) {
  const uint8_t head[] = {0x8a, 9}, zero = 0;
  put(w, head, 2);
  put(w, &number, 8);
  put(w, &zero, 1);
}

static void put_field(writer *w, const char *key, uint64_t number) {
  put_text(w, key);
  put_number(w, number);
}

static void put_event(writer *w, const uint8_t *e) {
  static const char *const actions[] = {"alloc",          "alloc",         "alloc",        "free_requested",
                                        "free_completed", "segment_alloc", "segment_free", "oom",
                                        "segment_map",    "segment_unmap", "snapshot"};
  static const uint64_t streams[] = {0, 1, 2, 1ull << 60, (1ull << 60) + 9, (1ull << 63) - 1};
  uint64_t size = e[3] % 64 < 58 ? (uint64_t)e[2] << e[3] % 64 : UINT64_MAX - e[2];
  uint64_t address = e[5] == 255 ? UINT64_MAX / 2 - e[1] : ((uint64_t)e[1] << 21) + ((uint64_t)e[5] << 9);
  put(w, "}(", 2);
  put_text(w, "action");
  put_text(w, actions[e[0] % (sizeof actions / sizeof *actions)]);
  put_field(w, "addr", address);
  put_field(w, "size", size);
  put_field(w, "stream", streams[e[4] % (sizeof streams / sizeof *streams)]);
  if (e[6] % 4 == 1) {
    put_text(w, "pool_id");
    put_number(w, 0);
    put_number(w, e[6] / 4);
    put_op(w, (char)0x86);
  }
  put_text(w, "frames");
  put_op(w, ']');
  put_op(w, 'u');
}

/* A segment with up to three blocks. */
static void put_segment(writer *w, const uint8_t *e) {
  static const char *const states[] = {"inactive", "active_allocated", "active_pending_free"};
  uint64_t address = (uint64_t)e[1] << 21, size = e[2] == 255 ? UINT64_MAX - e[3] : (uint64_t)(e[2] + 1) << 21;
  put(w, "}(", 2);
  put_field(w, "device", 0);
  put_field(w, "address", address);
  put_field(w, "total_size", size);
  put_field(w, "stream", e[4] % 3);
  put_text(w, "segment_type");
  put_text(w, e[3] % 2 ? "small" : "large");
  put_text(w, "is_expandable");
  put_op(w, (char)(e[3] % 16 == 15 ? 0x88 : 0x89));
  put_text(w, "blocks");
  put(w, "](", 2);
  for (int i = 5; i < 8; i++) {
    put(w, "}(", 2);
    put_field(w, "address", address);
    put_field(w, "size", (uint64_t)e[i] << 14);
    put_field(w, "requested_size", ((uint64_t)e[i] << 14) - e[0]);
    put_text(w, "state");
    put_text(w, states[e[i] % 3]);
    put_op(w, 'u');
    address += (uint64_t)e[i] << 14;
  }
  put(w, "eu", 2);
}

static inline void put_history(writer *w, const uint8_t *data, size_t size) {
  size_t first = 2;
  put(w, "\x80\x02}(", 4);
  put_text(w, "segments");
  put(w, "](", 2);
  for (size_t count = data[1] >> 4; count && first + 8 <= size; count--, first += 8)
    put_segment(w, data + first);
  put_op(w, 'e');
  put_text(w, "device_traces");
  put(w, "](](", 4);
  for (size_t i = first; i + 8 <= size; i += 8)
    put_event(w, data + i);
  put(w, "ee", 2);
  put_text(w, "allocator_settings");
  put(w, "}(", 2);
  put_field(w, "expandable_segments", data[1] & 1);
  if (data[1] & 2)
    put_field(w, "max_split_size", (uint64_t)data[1] << 18);
  if (data[1] & 4) {
    put_text(w, "garbage_collection_threshold");
    put(w, "G\x3f\xe0\0\0\0\0\0\0", 9); /* 0.5 */
  }
  put(w, "uu.", 3);
}

/* Reads a pickle, or, if the first byte of an input is odd, a history as above. NULL if it is no recording. */
static inline weir__recording *read_fuzzed(const uint8_t *data, size_t size) {
  const weir__pickle_limits limits = {.memory = 8 << 20, .input = 1 << 20};
  weir__input *source;
  weir__recording *recording = NULL;
  writer w = {0};
  bool is_history = size >= 10 && data[0] % 2;
  if (is_history)
    put_history(&w, data, size);
  if (weir__input_open_memory("fuzz", is_history ? w.data : data, is_history ? w.size : size, &source) == WEIR_OK) {
    if (weir__recording_read(source, &limits, &recording) != WEIR_OK)
      recording = NULL;
    weir__input_close(source);
  }
  free(w.data);
  if (is_history && !recording)
    abort(); /* what is written here can be read */
  return recording;
}
