/*
 * A libFuzzer target, see scripts/fuzz: what can be read as a snapshot is replayed, unchecked under the recorded
 * settings and under others, and checked; or it is summed up and explained. Whatever a file claims, that ends, and says
 * so or goes on.
 *
 * An input is a pickle; or, when its first byte is odd, a history in eight bytes for each event, of which a pickle is
 * made, so that chance is spent on what a history says and not on how it is written.
 */
#include <stdlib.h>
#include <string.h>

#include "offline/explain.h"
#include "offline/replay.h"
#include "offline/summary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- A pickle of our own ---- */

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

static void put_history(writer *w, const uint8_t *data, size_t size) {
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

/* ---- Replaying ---- */

static void explain(const weir__recording *recording, int device, uint8_t way) {
  weir__summary summary;
  weir__explanation x;
  const weir__explain_options options = {.device = device,
                                         .moment = (weir__moment)(way % 5),
                                         .event = way,
                                         .memory = way & 1 ? 1ull << 30 : 0,
                                         .no_trials = way % 8 != 0};
  if (weir__summarize(recording, device, &summary) != WEIR_OK)
    abort();
  if (weir__explain(recording, &options, &x) == WEIR_OK && x.event > recording->devices[device].event_count)
    abort();
}

/* One way for each input, by its last byte: making an allocator costs more than most histories. */
static void replay(const weir__recording *recording, uint8_t way) {
  const uint64_t gib = 1ull << 30;
  const weir__replay_options ways[] = {{.memory = 4 * gib},
                                       {.memory = gib, .conf = "expandable_segments:True"},
                                       {.memory = 4 * gib, .fraction = 0.25, .check = true},
                                       {.check = true},
                                       {.conf = "large_segment_size_mb:64,expandable_segments:True"}};
  weir__replay_report report;
  const int count = sizeof ways / sizeof *ways;
  weir__replay_options options = ways[way % count];
  options.device = recording->device_count ? way / count % (int)recording->device_count : 0;
  if (way >= 128 && recording->device_count) {
    explain(recording, options.device, (uint8_t)(way - 128));
    return;
  }
  if (weir__replay(recording, &options, &report) != WEIR_OK)
    return;
  int64_t requested = report.stats.requested_bytes[WEIR_STAT_ALL].current;
  int64_t active = report.stats.active_bytes[WEIR_STAT_ALL].current;
  if (report.events == 0 || requested < 0 || requested > active ||
      active > report.stats.reserved_bytes[WEIR_STAT_ALL].current)
    abort();
}

/* false if it is no recording. */
static bool read_and_replay(const uint8_t *data, size_t size, uint8_t way) {
  const weir__pickle_limits limits = {.memory = 8 << 20, .input = 1 << 20};
  weir__input *source;
  weir__recording *recording;
  if (weir__input_open_memory("fuzz", data, size, &source) != WEIR_OK)
    return false;
  bool is_snapshot = weir__recording_read(source, &limits, &recording) == WEIR_OK;
  if (is_snapshot) {
    replay(recording, way);
    weir__recording_free(recording);
  }
  weir__input_close(source);
  return is_snapshot;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 10 || data[0] % 2 == 0) {
    read_and_replay(data, size, size ? data[size - 1] : 0);
    return 0;
  }
  writer w = {0};
  put_history(&w, data, size);
  if (!read_and_replay(w.data, w.size, data[size - 1]))
    abort(); /* what is written here can be read */
  free(w.data);
  return 0;
}
