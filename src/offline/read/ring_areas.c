#include "offline/read/ring_areas.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_map.h"
#include "base/text.h"
#include "offline/read/byte_reader.h"
#include "offline/read/ring_v3.h"

weir_status weir__ring_bad(const weir__ring_areas *file, uint64_t at, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  weir__format_text(text, sizeof text, format, arguments);
  va_end(arguments);
  return weir__not_ok(weir__fail(WEIR_ERROR_BAD_DATA, "%s: byte %llu: %s", file->path, (unsigned long long)at, text));
}

weir_status weir__ring_no_memory(const weir__ring_areas *file) {
  if (file->budget.is_over)
    return weir__not_ok(weir__fail(WEIR_ERROR_BAD_DATA, "%s: reading it would take more than %llu bytes", file->path,
                                   (unsigned long long)file->budget.limit));
  return weir__not_ok(weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: the host has no memory for it", file->path));
}

static weir_status read_part(weir__ring_areas *file, int descriptor, uint64_t from, uint64_t to) {
  while (from < to) {
    ssize_t got = pread(descriptor, file->data + from, (size_t)(to - from), (off_t)from);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return weir__not_ok(weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot be read: %s", file->path, strerror(errno)));
    if (got == 0)
      return weir__ring_bad(file, from, "the file ends here");
    from += (uint64_t)got;
  }
  return WEIR_OK;
}

/* Memory grows with the bytes that arrive, not with what the header promises. */
static weir_status read_source(weir__ring_areas *file) {
  size_t room = 0, got = 0;
  do {
    unsigned char *grown = weir__grow(&file->budget, file->data, &room, (size_t)file->size + WEIR__RING_HEADER, 1);
    if (!grown)
      return weir__ring_no_memory(file);
    file->data = grown;
    TRY(weir__input_read(file->source, file->data + file->size, room - (size_t)file->size, &got));
    file->size += got;
  } while (got);
  if (file->size < WEIR__RING_HEADER)
    return weir__ring_bad(file, file->size, "the data end in the header of a recording, which has %d bytes",
                          (int)WEIR__RING_HEADER);
  return WEIR_OK;
}

/* The header is read twice: a running process makes the file longer, and what it says last is what it has dropped
 * meanwhile. */
static weir_status read_open(weir__ring_areas *file, int descriptor) {
  struct stat about;
  weir__ring_file_header first;
  if (fstat(descriptor, &about) != 0)
    return weir__not_ok(weir__fail(WEIR_ERROR_SYSTEM, "%s: %s", file->path, strerror(errno)));
  file->size = (uint64_t)about.st_size;
  if (file->size < WEIR__RING_HEADER)
    return weir__ring_bad(file, file->size, "the file ends in the header of a recording, which has %d bytes",
                          (int)WEIR__RING_HEADER);
  ssize_t got = pread(descriptor, &first, sizeof first, 0);
  if (got != (ssize_t)sizeof first || fstat(descriptor, &about) != 0) /* it is at least as long as the header says */
    return weir__not_ok(weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot be read: %s", file->path, strerror(errno)));
  file->size = (uint64_t)about.st_size;
  size_t room = 0;
  file->data = file->size > SIZE_MAX ? NULL : weir__grow(&file->budget, NULL, &room, (size_t)file->size, 1);
  if (!file->data)
    return weir__ring_no_memory(file);
  uint64_t bytes = first.version == WEIR__RING_VERSION ? atomic_load(&first.file_bytes) : file->size;
  if (bytes < file->size)
    file->size = bytes > WEIR__RING_HEADER ? bytes : WEIR__RING_HEADER;
  TRY(read_part(file, descriptor, WEIR__RING_HEADER, file->size));
  TRY(read_part(file, descriptor, 0, WEIR__RING_HEADER));
  if (bytes == file->size && first.version == WEIR__RING_VERSION)
    memcpy(file->data + offsetof(weir__ring_file_header, file_bytes), &bytes, sizeof bytes);
  return WEIR_OK;
}

static weir_status read_all(weir__ring_areas *file) {
  int descriptor = open(file->path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return weir__not_ok(weir__fail(WEIR_ERROR_SYSTEM, "%s: %s", file->path, strerror(errno)));
  weir_status status = read_open(file, descriptor);
  close(descriptor);
  return status;
}

static weir_status read_charged(weir__ring_areas *file, uint64_t from, uint64_t to) {
  return weir__budget_take(&file->budget, to - from) ? read_part(file, *file->chunkless, from, to)
                                                     : weir__ring_no_memory(file);
}

/* Address space is reserved for the whole file, and memory taken for what is read. The rest reads as zero. */
static weir_status read_chunkless(weir__ring_areas *file) {
  struct stat about;
  weir__ring_file_header first;
  if (fstat(*file->chunkless, &about) != 0)
    return weir__not_ok(weir__fail(WEIR_ERROR_SYSTEM, "%s: %s", file->path, strerror(errno)));
  file->size = (uint64_t)about.st_size;
  if (file->size < WEIR__RING_HEADER)
    return weir__ring_bad(file, file->size, "the file ends in the header of a recording, which has %d bytes",
                          (int)WEIR__RING_HEADER);
  if (pread(*file->chunkless, &first, sizeof first, 0) != (ssize_t)sizeof first)
    return weir__not_ok(weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot be read: %s", file->path, strerror(errno)));
  uint64_t bytes = atomic_load(&first.file_bytes);
  if (bytes >= WEIR__RING_HEADER && bytes < file->size)
    file->size = bytes;
  file->mapped = file->size > SIZE_MAX / 2 ? 0 : (size_t)weir__round_up(file->size, weir__map_page_size());
  file->data = file->mapped ? weir__map_reserve(file->mapped, weir__map_page_size()) : NULL;
  if (!file->data || !weir__map_commit(file->data, file->mapped))
    return weir__ring_no_memory(file);
  TRY(read_charged(file, 0, WEIR__RING_HEADER));
  if (bytes == file->size) /* a running process may have made it longer meanwhile */
    memcpy(file->data + offsetof(weir__ring_file_header, file_bytes), &bytes, sizeof bytes);
  for (uint64_t at = first.header_bytes; at >= WEIR__RING_HEADER && at % 64 == 0 && at < file->size;) {
    weir__ring_file_area area;
    uint64_t left = file->size - at, head = left < sizeof area ? left : sizeof area;
    TRY(read_charged(file, at, at + head));
    memcpy(&area, file->data + at, sizeof area);
    if (area.bytes < sizeof area || area.bytes > left) /* check_header refuses it */
      break;
    if (area.kind != WEIR__RING_CHUNKS)
      TRY(read_charged(file, at, at + area.bytes));
    at += area.bytes;
  }
  return WEIR_OK;
}

static bool is_time(int64_t ns) { return ns >= 0 && ns <= WEIR__RING_MAX_NS; }

#define AT(field) offsetof(weir__ring_file_header, field)

static weir_status add_area(weir__ring_areas *file, weir__ring_area made) {
  weir__ring_area *grown = weir__grow(&file->budget, file->areas, &file->room, file->count + 1, sizeof *grown);
  if (!grown)
    return weir__ring_no_memory(file);
  file->areas = grown;
  file->areas[file->count++] = made;
  return WEIR_OK;
}

/* Version 3 has three areas without heads. */
static weir_status convert_header(weir__ring_areas *file) {
  const weir__ring_v3_header *old = (const weir__ring_v3_header *)(const void *)file->data;
  weir__ring_file_header *h = &file->converted;
  uint64_t after_log = old->log_at + old->log_bytes;
  if (old->file_bytes != file->size)
    return weir__ring_bad(file, file->size, "the file ends here, the recording has %llu bytes",
                          (unsigned long long)old->file_bytes);
  if (old->log_at != WEIR__RING_HEADER || old->log_bytes > file->size - old->log_at || old->log_bytes % 64)
    return weir__ring_bad(file, offsetof(weir__ring_v3_header, log_at), "the log is not in the file");
  if (old->checkpoints_at != after_log || old->checkpoint_bytes > file->size - after_log || old->checkpoint_bytes % 64)
    return weir__ring_bad(file, offsetof(weir__ring_v3_header, checkpoints_at), "the checkpoints are not in the file");
  if (old->chunks_at != after_log + old->checkpoint_bytes ||
      old->chunk_count > (file->size - old->chunks_at) / sizeof(weir__chunk))
    return weir__ring_bad(file, offsetof(weir__ring_v3_header, chunks_at), "the entries are not in the file");
  if (old->log_used > old->log_bytes)
    return weir__ring_bad(file, offsetof(weir__ring_v3_header, log_used),
                          "the log has more bytes than there is room for");
  *h = (weir__ring_file_header){.version = old->version,
                                .header_bytes = WEIR__RING_HEADER,
                                .event_bytes = old->event_bytes,
                                .chunk_bytes = old->chunk_bytes,
                                .device_count = old->device_count,
                                .pid = old->pid,
                                .rank = old->rank,
                                .first = old->first,
                                .last = {old->last[0], old->last[1]},
                                .newest = old->newest,
                                .ended = old->is_closed,
                                .max_bytes = old->file_bytes,
                                .file_bytes = old->file_bytes,
                                .lost = old->lost,
                                .log_lost = old->log_lost};
  if (old->checkpoint_bytes)
    h->slots_at = old->checkpoints_at;
  memcpy(h->host, old->host, sizeof h->host);
  memcpy(h->devices, old->devices, sizeof h->devices);
  memcpy(h->outside, old->outside, sizeof h->outside);
  file->header = h;
  TRY(add_area(file, (weir__ring_area){WEIR__RING_LOG, old->log_at, old->log_used}));
  TRY(add_area(file, (weir__ring_area){WEIR__RING_STATES, old->checkpoints_at, old->checkpoint_bytes}));
  return add_area(file, (weir__ring_area){WEIR__RING_CHUNKS, old->chunks_at, old->chunk_count * sizeof(weir__chunk)});
}

static weir_status find_areas(weir__ring_areas *file) {
  const weir__ring_file_header *h = file->header;
  const uint64_t head = sizeof(weir__ring_file_area), end = h->file_bytes;
  if (end > file->size)
    return weir__ring_bad(file, file->size, "the file ends here, the recording has %llu bytes",
                          (unsigned long long)end);
  if (h->header_bytes < sizeof *h || h->header_bytes > end || h->header_bytes % 64)
    return weir__ring_bad(file, AT(header_bytes), "a header of %u bytes", h->header_bytes);
  for (uint64_t at = h->header_bytes; at < end;) {
    weir__ring_file_area a;
    if (end - at < head)
      return weir__ring_bad(file, at, "the file ends in the head of an area");
    memcpy(&a, file->data + at, sizeof a);
    if (a.bytes < head || a.bytes > end - at || a.bytes % 64)
      return weir__ring_bad(file, at, "an area of %llu bytes, the file has %llu more", (unsigned long long)a.bytes,
                            (unsigned long long)(end - at));
    if (a.kind == WEIR__RING_LOG && a.used > a.bytes - head)
      return weir__ring_bad(file, at, "a log of %llu bytes, there is room for %llu", (unsigned long long)a.used,
                            (unsigned long long)(a.bytes - head));
    TRY(add_area(file, (weir__ring_area){a.kind, at + head, a.kind == WEIR__RING_LOG ? a.used : a.bytes - head}));
    at += a.bytes;
  }
  return WEIR_OK;
}

static weir_status check_header(weir__ring_areas *file) {
  const weir__ring_file_header *h = file->header = (const weir__ring_file_header *)(const void *)file->data;
  if (memcmp(h->magic, WEIR__RING_MAGIC, sizeof h->magic) != 0)
    return weir__ring_bad(file, 0, "this is no recording");
  if (h->version < WEIR__RING_OLDEST_VERSION || h->version > WEIR__RING_VERSION)
    return weir__ring_bad(file, AT(version), "a recording of version %u, this program reads %d to %d", h->version,
                          (int)WEIR__RING_OLDEST_VERSION, (int)WEIR__RING_VERSION);
  TRY(h->version == WEIR__RING_VERSION ? find_areas(file) : convert_header(file));
  h = file->header;
  if (h->event_bytes != sizeof(weir__entry))
    return weir__ring_bad(file, AT(event_bytes), "entries of %u bytes, expected %zu", h->event_bytes,
                          sizeof(weir__entry));
  if (h->chunk_bytes != sizeof(weir__chunk))
    return weir__ring_bad(file, AT(chunk_bytes), "chunks of %u bytes, expected %zu", h->chunk_bytes,
                          sizeof(weir__chunk));
  if (h->device_count < 1 || h->device_count > WEIR__RING_DEVICES)
    return weir__ring_bad(file, AT(device_count), "%d devices, expected 1 to %d", h->device_count,
                          (int)WEIR__RING_DEVICES);
  const weir__clock_point *last = &h->last[h->newest & 1];
  if (!is_time(h->first.monotonic_ns) || !is_time(h->first.unix_ns))
    return weir__ring_bad(file, AT(first), "the clock's first point is none");
  if (!is_time(last->monotonic_ns) || !is_time(last->unix_ns))
    return weir__ring_bad(file, AT(last), "the clock's last point is none");
  return WEIR_OK;
}

weir_status weir__ring_areas_read(weir__ring_areas *file) {
  TRY(file->chunkless ? read_chunkless(file) : file->source ? read_source(file) : read_all(file));
  return check_header(file);
}

void weir__ring_areas_clear(weir__ring_areas *file) {
  if (file->mapped && file->data)
    weir__unmap(file->data, file->mapped);
  else if (!file->mapped)
    weir__drop(file->data);
  weir__drop(file->areas);
}
