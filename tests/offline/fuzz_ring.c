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

#include "offline/analyse/explain.h"
#include "offline/analyse/summary.h"
#include "offline/read/ring_reader.h"
#include "offline/replay/replay.h"
#include "record/ring_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
  LOG = 128,
  CHECKPOINTS = 4096,
  CHUNKS_AT = WEIR__RING_HEADER + LOG + CHECKPOINTS,
  BYTES = CHUNKS_AT + (int)sizeof(weir__chunk)
};

/* Devices, a clock, and whether events were dropped may be anything; where the parts lie may not. */
static void set_header(weir__ring_file_header *h) {
  memcpy(h->magic, WEIR__RING_MAGIC, sizeof h->magic);
  h->version = h->version % 2 ? 2 : 3;
  h->event_bytes = sizeof(weir__entry);
  h->chunk_bytes = sizeof(weir__chunk);
  h->device_count = 1 + (h->device_count & 1);
  h->file_bytes = BYTES;
  h->log_at = WEIR__RING_HEADER;
  h->log_bytes = h->version > 2 ? LOG : LOG + CHECKPOINTS;
  h->log_used = h->log_used % 2 ? 0 : h->log_used % (LOG + 1) / 8 * 8;
  h->checkpoints_at = h->log_at + LOG;
  h->checkpoint_bytes = CHECKPOINTS;
  h->chunks_at = CHUNKS_AT;
  h->chunk_count = 1;
  h->first = (weir__clock_point){0, 0, 0};
  h->last[0] = h->last[1] = (weir__clock_point){1 << 20, 1 << 20, 1 << 20};
}

static void set_checkpoints(uint8_t *file) {
  const weir__ring_file_header *h = (const weir__ring_file_header *)(const void *)file;
  weir__ring_file_slot *slots = (weir__ring_file_slot *)(void *)(file + h->checkpoints_at);
  for (int i = 0; i < h->device_count * WEIR__RING_CHECKPOINTS; i++) {
    uint64_t begin = h->checkpoints_at, end = begin + CHECKPOINTS;
    weir__ring_file_slot *s = &slots[i];
    if (s->at < begin || s->at > end || s->bytes > end - s->at)
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
  if (way % 2)
    weir__explain(s, &(weir__explain_options){.device = device, .no_trials = true}, &x);
  else
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
  set_header((weir__ring_file_header *)(void *)bytes);
  if (((const weir__ring_file_header *)(const void *)bytes)->version > 2)
    set_checkpoints(bytes);
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
