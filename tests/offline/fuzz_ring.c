/*
 * A libFuzzer target, see scripts/fuzz: recordings of WEIR_RECORD with arbitrary checkpoints. What can be read is
 * replayed, checked, or summarized and explained.
 *
 * An input is a small recording: a header, a log, the area of the checkpoints and one chunk; missing bytes are zero.
 * The layout in the header is fixed up, and so are checksums of checkpoints, to spend the mutations on their content.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz_report.h"
#include "offline/analyse/explain.h"
#include "offline/analyse/summary.h"
#include "offline/read/ring_reader.h"
#include "offline/read/ring_v3.h"
#include "offline/render/explain_report.h"
#include "offline/replay/replay.h"
#include "record/ring_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
  HEAD = sizeof(weir__ring_file_area),
  LOG_AT = WEIR__RING_HEADER,
  LOG = HEAD + 128,
  STATES_AT = LOG_AT + LOG,
  STATES = HEAD + 4096,
  CHUNKS_AT = STATES_AT + STATES,
  CHUNKS = HEAD + (int)sizeof(weir__chunk),
  BYTES = CHUNKS_AT + CHUNKS
};

static void set_area(uint8_t *file, uint64_t at, uint32_t kind, uint64_t bytes) {
  weir__ring_file_area *area = (weir__ring_file_area *)(void *)(file + at);
  area->kind = kind;
  area->bytes = bytes;
  area->used = area->used % 2 ? 0 : area->used % (bytes - HEAD + 1) / 8 * 8;
}

/* Devices, a clock, and whether events were dropped may be anything; where the parts lie may not. */
static void set_header(uint8_t *file) {
  weir__ring_file_header *h = (weir__ring_file_header *)(void *)file;
  h->version = WEIR__RING_VERSION;
  h->header_bytes = WEIR__RING_HEADER;
  h->event_bytes = sizeof(weir__entry);
  h->chunk_bytes = sizeof(weir__chunk);
  h->device_count = 1 + (h->device_count & 1);
  h->file_bytes = BYTES;
  h->slots_at = STATES_AT + HEAD;
  h->first = (weir__clock_point){0, 0, 0};
  h->last[0] = h->last[1] = (weir__clock_point){1 << 20, 1 << 20, 1 << 20};
  set_area(file, LOG_AT, WEIR__RING_LOG, LOG);
  set_area(file, STATES_AT, WEIR__RING_STATES, STATES);
  set_area(file, CHUNKS_AT, WEIR__RING_CHUNKS, CHUNKS);
}

/* The same parts, of which version 3 had no heads. */
static void set_old_header(uint8_t *file) {
  weir__ring_v3_header *h = (weir__ring_v3_header *)(void *)file;
  h->version = 3;
  h->event_bytes = sizeof(weir__entry);
  h->chunk_bytes = sizeof(weir__chunk);
  h->device_count = 1 + (h->device_count & 1);
  h->file_bytes = BYTES;
  h->log_at = LOG_AT;
  h->log_bytes = LOG;
  h->log_used = h->log_used % 2 ? 0 : h->log_used % (LOG + 1) / 8 * 8;
  h->checkpoints_at = STATES_AT;
  h->checkpoint_bytes = STATES;
  h->chunks_at = CHUNKS_AT;
  h->chunk_count = 1;
  h->first = (weir__clock_point){0, 0, 0};
  h->last[0] = h->last[1] = (weir__clock_point){1 << 20, 1 << 20, 1 << 20};
}

static void set_checkpoints(uint8_t *file, int devices, uint64_t slots_at) {
  weir__ring_file_slot *slots = (weir__ring_file_slot *)(void *)(file + slots_at);
  for (int i = 0; i < devices * WEIR__RING_CHECKPOINTS; i++) {
    weir__ring_file_slot *s = &slots[i];
    if (s->at < STATES_AT || s->at > CHUNKS_AT || s->bytes > CHUNKS_AT - s->at)
      continue;
    s->checksum = weir__ring_file_checksum(s->sequence, s->at, file + s->at, s->bytes);
  }
}

static void use(const weir__recording *s, uint8_t way) {
  weir__replay_report report;
  weir__summary summary;
  weir__explanation x;
  int device = (int)(way % s->device_count);
  if (weir__summarize(s, device, &summary) != WEIR_OK)
    abort();
  if (way % 2 && !weir__explain(s, &(weir__explain_options){.device = device, .no_trials = true}, &x)) {
    weir__report text;
    weir__explain_report(&text, "fuzz", s, &x);
    fuzz_report(&text);
  } else if (way % 2 == 0)
    weir__replay(s, &(weir__replay_options){.device = device, .check = way % 4 == 0, .memory = 1ull << 32}, &report);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int file = -1;
  static uint8_t bytes[BYTES];
  char path[32];
  if (file < 0)
    file = memfd_create("ring", MFD_CLOEXEC);
  if (file < 0)
    abort();
  memset(bytes, 0, sizeof bytes);
  memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
  memcpy(bytes, WEIR__RING_MAGIC, sizeof WEIR__RING_MAGIC - 1);
  if (size && data[size - 1] % 8 == 7) {
    set_old_header(bytes);
    set_checkpoints(bytes, ((const weir__ring_v3_header *)(const void *)bytes)->device_count, STATES_AT);
  } else {
    set_header(bytes);
    set_checkpoints(bytes, ((const weir__ring_file_header *)(const void *)bytes)->device_count, STATES_AT + HEAD);
  }
  if (pwrite(file, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
    abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const weir__recording_limits limits = {.memory = 16 << 20};
  weir__recording *s;
  if (weir__ring_file_load(path, &limits, &s) == WEIR_OK) {
    use(s, size ? data[size - 1] : 0);
    weir__recording_free(s);
  }
  return 0;
}
