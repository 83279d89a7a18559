#include "offline/read/recording_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_map.h"
#include "base/system.h"
#include "offline/read/byte_reader.h"
#include "offline/read/ring_reader.h"
#include "record/entry.h"

enum { BUFFER = 1 << 20, AHEAD = 128 };

/* A chunk of the file that has entries. */
typedef struct place {
  uint64_t time; /* of its first entry */
  uint64_t at;
} place;

/* A chunk that is being read. */
typedef struct open_chunk {
  uint64_t at;
  unsigned next, count;
  weir__entry entries[WEIR__CHUNK_ENTRIES];
} open_chunk;

struct weir__recording_stream {
  char *name; /* for errors */
  int descriptor;
  bool owns_descriptor;
  weir__ring_loader *loader;
  weir__recording *whole; /* or the recording, if it is not a ring file */
  uint64_t entries;
  bool forgets;
  size_t device, event; /* of `whole`: the next one */

  /* The chunks, in the order in which they begin: as they lie in the file, or `places`. */
  size_t area;
  uint64_t at; /* in the area */
  place *places;
  size_t place_count, place_room, place;

  /* Those that are being read: a heap by the time of the next entry. Chunks of several threads overlap in time. */
  open_chunk *chunks;
  unsigned heap[AHEAD], heap_count, vacant[AHEAD], vacant_count;

  unsigned char *buffer; /* a part of the file */
  uint64_t buffer_at;
  size_t buffer_size;
};

/* ---- The file ---- */

static weir_status no_memory(const char *name) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: the host has no memory for it", name);
}

/* The bytes of the file at an offset, of which there are at most BUFFER; valid until the next call. */
static weir_status look(weir__recording_stream *s, uint64_t at, size_t bytes, const unsigned char **to) {
  if (at < s->buffer_at || at + bytes > s->buffer_at + s->buffer_size) {
    s->buffer_at = at;
    s->buffer_size = 0;
    while (s->buffer_size < bytes) {
      ssize_t got =
          pread(s->descriptor, s->buffer + s->buffer_size, BUFFER - s->buffer_size, (off_t)(at + s->buffer_size));
      if (got < 0 && errno == EINTR)
        continue;
      if (got < 0)
        return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot be read: %s", s->name, strerror(errno));
      if (got == 0)
        return weir__fail(WEIR_ERROR_BAD_DATA, "%s: byte %llu: the file ends here", s->name,
                          (unsigned long long)(at + s->buffer_size));
      s->buffer_size += (size_t)got;
    }
  }
  *to = s->buffer + (at - s->buffer_at);
  return WEIR_OK;
}

static weir_status write_at(int descriptor, uint64_t at, const unsigned char *bytes, size_t size, const char *name) {
  while (size) {
    ssize_t put = pwrite(descriptor, bytes, size, (off_t)at);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return weir__fail(WEIR_ERROR_SYSTEM, "%s: no room for a copy: %s", name, strerror(errno));
    bytes += put;
    at += (uint64_t)put;
    size -= (size_t)put;
  }
  return WEIR_OK;
}

static weir_status copy(weir__input *input, int descriptor) {
  unsigned char *buffer = malloc(BUFFER);
  uint64_t size = 0;
  size_t got = 0;
  weir_status status = buffer ? WEIR_OK : no_memory(weir__input_name(input));
  if (!status && ftruncate(descriptor, 0) != 0)
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: no room for a copy: %s", weir__input_name(input), strerror(errno));
  while (!status) {
    status = weir__input_read(input, buffer, BUFFER, &got);
    if (status || !got)
      break;
    status = write_at(descriptor, size, buffer, got, weir__input_name(input));
    size += got;
  }
  free(buffer);
  return status;
}

/* ---- The order of chunks ---- */

/* The next chunk of the file that has entries; *count is 0 after the last. */
static weir_status next_in_file(weir__recording_stream *s, uint64_t *at, unsigned *count, uint64_t *time) {
  const weir__ring_areas *file = weir__ring_loader_file(s->loader);
  const unsigned char *bytes;
  for (; s->area < file->count; s->area++, s->at = 0) {
    const weir__ring_area *area = &file->areas[s->area];
    while (area->kind == WEIR__RING_CHUNKS && area->bytes - s->at >= sizeof(weir__chunk)) {
      *at = area->at + s->at;
      s->at += sizeof(weir__chunk);
      TRY(look(s, *at, sizeof(weir__chunk), &bytes));
      memcpy(count, bytes + offsetof(weir__chunk, count), sizeof *count);
      memcpy(time, bytes + offsetof(weir__chunk, entries) + offsetof(weir__entry, time), sizeof *time);
      if (*count > WEIR__CHUNK_ENTRIES)
        return weir__ring_bad(file, *at, "a chunk of %u entries, there is room for %d", *count,
                              (int)WEIR__CHUNK_ENTRIES);
      if (*count)
        return WEIR_OK;
    }
  }
  *count = 0;
  return WEIR_OK;
}

static void rewind_chunks(weir__recording_stream *s) {
  s->area = 0;
  s->at = 0;
}

static int by_time(const void *a, const void *b) {
  const place *x = a, *y = b;
  return x->time != y->time ? (x->time > y->time) - (x->time < y->time) : (x->at > y->at) - (x->at < y->at);
}

/* Counts the entries. Chunks that do not begin in the order of the file are listed. */
static weir_status find_order(weir__recording_stream *s) {
  weir__budget *budget = &weir__ring_loader_file(s->loader)->budget;
  uint64_t at, time, last = 0;
  unsigned count;
  bool is_ordered = true;
  for (;;) {
    TRY(next_in_file(s, &at, &count, &time));
    if (!count)
      break;
    s->entries += count;
    is_ordered &= time >= last;
    last = time;
  }
  rewind_chunks(s);
  while (!is_ordered) {
    TRY(next_in_file(s, &at, &count, &time));
    if (!count)
      break;
    place *grown = weir__grow(budget, s->places, &s->place_room, s->place_count + 1, sizeof *grown);
    if (!grown)
      return weir__ring_no_memory(weir__ring_loader_file(s->loader));
    s->places = grown;
    s->places[s->place_count++] = (place){time, at};
  }
  if (s->place_count)
    qsort(s->places, s->place_count, sizeof *s->places, by_time);
  rewind_chunks(s);
  return WEIR_OK;
}

/* ---- The heap ---- */

static uint64_t time_of(const weir__recording_stream *s, unsigned chunk) {
  return s->chunks[chunk].entries[s->chunks[chunk].next].time;
}

/* Of the same time, the chunk that comes first in the file. */
static bool is_before(const weir__recording_stream *s, unsigned a, unsigned b) {
  uint64_t x = time_of(s, a), y = time_of(s, b);
  return x != y ? x < y : s->chunks[a].at < s->chunks[b].at;
}

static void sink(weir__recording_stream *s, unsigned at) {
  for (;;) {
    unsigned least = at;
    for (unsigned child = 2 * at + 1; child <= 2 * at + 2 && child < s->heap_count; child++)
      if (is_before(s, s->heap[child], s->heap[least]))
        least = child;
    if (least == at)
      return;
    unsigned swapped = s->heap[at];
    s->heap[at] = s->heap[least];
    s->heap[least] = swapped;
    at = least;
  }
}

static void rise(weir__recording_stream *s, unsigned at) {
  for (unsigned above; at && is_before(s, s->heap[at], s->heap[above = (at - 1) / 2]); at = above) {
    unsigned swapped = s->heap[at];
    s->heap[at] = s->heap[above];
    s->heap[above] = swapped;
  }
}

/* Opens the next chunk; *is_end if there is none. */
static weir_status open_next(weir__recording_stream *s, bool *is_end) {
  uint64_t at = 0, time;
  unsigned count = 0;
  const unsigned char *bytes = NULL;
  if (!s->places)
    TRY(next_in_file(s, &at, &count, &time));
  else if (s->place < s->place_count)
    at = s->places[s->place++].at;
  *is_end = s->places ? !at : !count;
  if (*is_end)
    return WEIR_OK;
  TRY(look(s, at, sizeof(weir__chunk), &bytes));
  memcpy(&count, bytes + offsetof(weir__chunk, count), sizeof count);
  if (!count || count > WEIR__CHUNK_ENTRIES) /* it was reused since it was found */
    return WEIR_OK;
  unsigned slot = s->vacant[--s->vacant_count];
  open_chunk *c = &s->chunks[slot];
  c->at = at;
  c->next = 0;
  c->count = count;
  memcpy(c->entries, bytes + offsetof(weir__chunk, entries), count * sizeof *c->entries);
  s->heap[s->heap_count++] = slot;
  rise(s, s->heap_count - 1);
  return WEIR_OK;
}

static weir_status fill_heap(weir__recording_stream *s) {
  for (bool is_end = false; s->vacant_count && !is_end;)
    TRY(open_next(s, &is_end));
  return WEIR_OK;
}

static weir_status read_ring(weir__recording_stream *s, weir__streamed_entry *to, size_t room, size_t *count) {
  while (*count < room) {
    TRY(fill_heap(s));
    if (!s->heap_count)
      return WEIR_OK;
    /* As long as no other chunk has an earlier entry, the heap stays as it is. */
    open_chunk *c = &s->chunks[s->heap[0]];
    uint64_t until = UINT64_MAX;
    for (unsigned child = 1; child <= 2 && child < s->heap_count; child++)
      until = time_of(s, s->heap[child]) < until ? time_of(s, s->heap[child]) : until;
    do {
      const weir__entry *e = &c->entries[c->next];
      uint64_t at = c->at + offsetof(weir__chunk, entries) + c->next * sizeof *e;
      bool is_used;
      TRY(weir__ring_loader_convert(s->loader, e, at, &to[*count].entry, &is_used));
      to[*count].device = e->device;
      *count += is_used;
      c->next++;
    } while (c->next < c->count && c->entries[c->next].time < until && *count < room);
    if (c->next == c->count) {
      s->vacant[s->vacant_count++] = s->heap[0];
      s->heap[0] = s->heap[--s->heap_count];
    }
    sink(s, 0);
  }
  return WEIR_OK;
}

/* ---- The stream ---- */

static weir_status open_ring(weir__recording_stream *s, const weir__recording_limits *limits) {
  s->chunks = malloc(AHEAD * sizeof *s->chunks);
  s->buffer = malloc(BUFFER);
  if (!s->chunks || !s->buffer)
    return no_memory(s->name);
  for (unsigned i = 0; i < AHEAD; i++)
    s->vacant[s->vacant_count++] = i;
  weir_status status = weir__ring_loader_open(s->name, s->descriptor, limits, &s->loader);
  return status ? status : find_order(s);
}

/* A ring file of version 3 is read as a whole. */
static bool is_streamable(int descriptor) {
  weir__ring_file_header header;
  return pread(descriptor, &header, sizeof header, 0) == (ssize_t)sizeof header &&
         weir__ring_file_begins(&header, sizeof header) && header.version == WEIR__RING_VERSION;
}

static weir_status load_whole(weir__recording_stream *s, const char *path, const weir__recording_limits *limits) {
  weir_status status = weir__recording_load(path, limits, &s->whole);
  for (size_t i = 0; !status && i < s->whole->device_count; i++)
    s->entries += s->whole->devices[i].event_count;
  return status;
}

/* A file that is read from its beginning, wherever its offset is. */
typedef struct copied {
  int descriptor;
  uint64_t at;
} copied;

static size_t read_copied(void *context, void *to, size_t room) {
  copied *c = context;
  ssize_t got;
  do
    got = pread(c->descriptor, to, room, (off_t)c->at);
  while (got < 0 && errno == EINTR);
  c->at += got > 0 ? (uint64_t)got : 0;
  return got > 0 ? (size_t)got : 0;
}

static weir_status open_spooled(weir__recording_stream *s, const char *path, int spool,
                                const weir__recording_limits *limits) {
  unsigned char begin[WEIR__INPUT_PEEK];
  size_t size = 0;
  weir__input *input;
  weir_status status = weir__input_open(path, &input);
  if (status)
    return status;
  status = weir__input_peek(input, begin, sizeof begin, &size);
  if (!status && !weir__ring_file_begins(begin, size)) {
    status = weir__recording_load_input(input, limits, &s->whole);
    for (size_t i = 0; !status && i < s->whole->device_count; i++)
      s->entries += s->whole->devices[i].event_count;
    return status;
  }
  s->descriptor = spool >= 0 ? spool : weir__map_memory_file("weir-recording", 0);
  s->owns_descriptor = spool < 0;
  if (!status && s->descriptor < 0)
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: no room for a copy: %s", s->name, strerror(errno));
  if (!status)
    status = copy(input, s->descriptor);
  weir__input_close(input);
  if (status)
    return status;
  if (is_streamable(s->descriptor))
    return open_ring(s, limits);
  copied from = {s->descriptor, 0};
  status = weir__input_open_source(s->name, read_copied, &from, &input);
  if (!status)
    status = weir__recording_load_input(input, limits, &s->whole);
  for (size_t i = 0; !status && i < s->whole->device_count; i++)
    s->entries += s->whole->devices[i].event_count;
  return status;
}

weir_status weir__recording_stream_open(const char *path, int spool, const weir__recording_limits *limits,
                                        weir__recording_stream **out) {
  bool is_standard = strcmp(path, "-") == 0;
  weir__recording_stream *s = calloc(1, sizeof *s);
  weir_status status = WEIR_OK;
  if (!s || !(s->name = strdup(is_standard ? "standard input" : path))) {
    free(s);
    return no_memory(path);
  }
  s->descriptor = -1;
  if (!is_standard && weir__ring_file_is(path)) {
    s->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    s->owns_descriptor = true;
    if (s->descriptor < 0)
      status = weir__fail(WEIR_ERROR_SYSTEM, "%s: %s", path, strerror(errno));
    else
      status = is_streamable(s->descriptor) ? open_ring(s, limits) : load_whole(s, path, limits);
  } else
    status = open_spooled(s, path, spool, limits);
  if (status) {
    weir__recording_stream_close(s);
    return status;
  }
  *out = s;
  return WEIR_OK;
}

void weir__recording_stream_close(weir__recording_stream *s) {
  if (!s)
    return;
  weir__drop(s->places);
  weir__ring_loader_close(s->loader);
  weir__recording_free(s->whole);
  if (s->owns_descriptor && s->descriptor >= 0)
    close(s->descriptor);
  free(s->chunks);
  free(s->buffer);
  free(s->name);
  free(s);
}

weir__recording *weir__recording_stream_recording(weir__recording_stream *s) {
  return s->whole ? s->whole : weir__ring_loader_recording(s->loader);
}

uint64_t weir__recording_stream_entries(const weir__recording_stream *s) { return s->entries; }

uint64_t weir__recording_stream_lost(weir__recording_stream *s) {
  return s->loader ? weir__ring_loader_file(s->loader)->header->lost : 0;
}

bool weir__recording_stream_is_whole(const weir__recording_stream *s) { return s->whole != NULL; }

void weir__recording_stream_forget(weir__recording_stream *s) { s->forgets = true; }

static void read_whole(weir__recording_stream *s, weir__streamed_entry *to, size_t room, size_t *count) {
  for (; s->device < s->whole->device_count; s->device++, s->event = 0) {
    const weir__recording_device *d = &s->whole->devices[s->device];
    for (; s->event < d->event_count && *count < room; s->event++)
      to[(*count)++] = (weir__streamed_entry){d->events[s->event], (int)s->device};
    if (*count == room)
      return;
  }
}

weir_status weir__recording_stream_read(weir__recording_stream *s, weir__streamed_entry *to, size_t room,
                                        size_t *count) {
  *count = 0;
  if (s->whole) {
    read_whole(s, to, room, count);
    return WEIR_OK;
  }
  if (s->forgets) {
    weir__recording *r = weir__ring_loader_recording(s->loader);
    r->annotation_count = r->pair_count = r->work_count = 0;
  }
  return read_ring(s, to, room, count);
}
