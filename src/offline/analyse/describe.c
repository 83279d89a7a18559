#include "offline/analyse/describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "offline/analyse/phases.h"
#include "offline/analyse/sites.h"

static const char *text_of(const weir__recording *recording, uint32_t id) {
  return id < recording->strings.count ? recording->strings.items[id].text : "";
}

/* Copies as much of a text as there is room for, without control characters. */
static const char *escaped(const char *text, char *out, size_t size) {
  weir__escape_text(text, strlen(text), out, size);
  return out;
}

static int put_frame(const weir__recording *recording, uint32_t frame, const char *before, char *text, size_t size) {
  const weir__recording_frame *f = &recording->frames[frame];
  const char *file = text_of(recording, f->filename), *slash = strrchr(file, '/');
  char name[49], base[41];
  return snprintf(text, size, "%s%s (%s:%lld)", before, escaped(text_of(recording, f->name), name, sizeof name),
                  escaped(slash ? slash + 1 : file, base, sizeof base), (long long)f->line);
}

static const char *put_site(const weir__recording *recording, const weir__site *site, char text[WEIR__DESCRIBE_TEXT]) {
  *text = 0;
  if (site->inner == WEIR__NO_FRAME)
    return text;
  int length = put_frame(recording, site->inner, "", text, WEIR__DESCRIBE_TEXT);
  if (site->own != WEIR__NO_FRAME && length > 0 && length < WEIR__DESCRIBE_TEXT)
    put_frame(recording, site->own, ", from ", text + length, WEIR__DESCRIBE_TEXT - (size_t)length);
  return text;
}

const char *weir__describe_stack(const weir__recording *recording, uint32_t stack, char text[WEIR__DESCRIBE_TEXT]) {
  weir__site site = weir__site_of(recording, stack, NULL);
  return put_site(recording, &site, text);
}

/* ---- Stacks that are described alike ---- */

/* Stacks by the frames that describe them, and by their texts. */
typedef struct described {
  weir__site site;
  uint32_t stack; /* + 1: the first such; 0 if it is empty */
} described;

static described *by_site(described *table, size_t room, const weir__site *site) {
  size_t slot = (size_t)weir__hash_bytes(0, site, sizeof *site) & (room - 1);
  while (table[slot].stack && memcmp(&table[slot].site, site, sizeof *site) != 0)
    slot = (slot + 1) & (room - 1);
  return &table[slot];
}

static described *by_text(const weir__recording *recording, described *table, size_t room, const weir__site *site) {
  char text[WEIR__DESCRIBE_TEXT] = "", other[WEIR__DESCRIBE_TEXT];
  put_site(recording, site, text);
  size_t slot = (size_t)weir__hash_bytes(0, text, strlen(text)) & (room - 1);
  while (table[slot].stack && strcmp(put_site(recording, &table[slot].site, other), text) != 0)
    slot = (slot + 1) & (room - 1);
  return &table[slot];
}

weir_status weir__describe_alike(const weir__recording *recording, uint32_t **alike) {
  size_t room = 64;
  while (room < 2 * recording->stack_count)
    room *= 2;
  described *sites = calloc(2 * room, sizeof *sites), *texts = sites ? sites + room : NULL;
  weir__file_place *places = calloc(recording->strings.count + 1, sizeof *places);
  uint32_t *result = malloc((recording->stack_count + 1) * sizeof *result);
  if (!sites || !places || !result) {
    free(sites);
    free(places);
    free(result);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu stacks", recording->stack_count);
  }
  result[0] = 0;
  for (size_t i = 0; i < recording->stack_count; i++) {
    weir__site site = weir__site_of(recording, (uint32_t)i, places);
    described *known = by_site(sites, room, &site);
    if (!known->stack) {
      described *first = by_text(recording, texts, room, &site);
      if (!first->stack)
        *first = (described){site, (uint32_t)i + 1};
      *known = (described){site, first->stack};
    }
    result[i] = known->stack - 1;
  }
  free(sites);
  free(places);
  *alike = result;
  return WEIR_OK;
}

const char *weir__describe_phase(const weir__recording *recording, int device, int64_t time_us,
                                 char text[WEIR__DESCRIBE_TEXT]) {
  weir__ranges ranges = weir__ranges_of(recording, device);
  char name[81];
  *text = 0;
  if (!time_us)
    return text;
  for (size_t i = 0; i < recording->annotation_count; i++)
    if (recording->annotations[i].time_us <= time_us)
      weir__ranges_add(&ranges, &recording->annotations[i]);
  if (ranges.depth)
    snprintf(text, WEIR__DESCRIBE_TEXT, "in %s",
             escaped(text_of(recording, weir__ranges_innermost(&ranges)), name, sizeof name));
  else if (ranges.last != WEIR__NO_PHASE)
    snprintf(text, WEIR__DESCRIBE_TEXT, "after %s", escaped(text_of(recording, ranges.last), name, sizeof name));
  return text;
}

const char *weir__describe_span(int64_t microseconds, char text[32]) {
  double us = (double)microseconds;
  if (us < 1e3)
    snprintf(text, 32, "%.0f us", us);
  else if (us < 1e6)
    snprintf(text, 32, "%.1f ms", us / 1e3);
  else if (us < 120e6)
    snprintf(text, 32, "%.2f s", us / 1e6);
  else if (us < 7200e6)
    snprintf(text, 32, "%.0f min", us / 60e6);
  else
    snprintf(text, 32, "%.1f h", us / 3600e6);
  return text;
}

const char *weir__describe_stream(const weir__recording *recording, uint16_t stream, char text[48]) {
  int64_t handle = stream < recording->stream_count ? recording->streams[stream] : 0;
  if (handle)
    snprintf(text, 48, "stream 0x%llx", (unsigned long long)handle);
  else
    snprintf(text, 48, "the default stream");
  return text;
}

const char *weir__describe_pool(const weir__recording *recording, uint32_t pool, char text[64]) {
  const int64_t *id = pool < recording->pool_count ? recording->pools[pool].id : NULL;
  if (!id)
    snprintf(text, 64, "pool not known");
  else if (id[0] || id[1])
    snprintf(text, 64, "private pool (%lld, %lld)", (long long)id[0], (long long)id[1]);
  else
    snprintf(text, 64, "default pool");
  return text;
}

const char *weir__describe_blocks(const weir__recording *recording, uint32_t stack, uint64_t size, char text[192]) {
  char part[WEIR__DESCRIBE_TEXT], bytes[32];
  if (stack)
    snprintf(text, 192, "%s", weir__describe_stack(recording, stack, part));
  else if (size)
    snprintf(text, 192, "blocks of %s", weir__format_bytes(size, bytes));
  else
    snprintf(text, 192, "all blocks together");
  return text;
}

uint64_t weir__size_class(uint64_t size) {
  uint64_t class = WEIR__SIZE_CLASS_MIN;
  while (class < size && class < 1ull << 62)
    class *= 2;
  return class;
}

const char *weir__describe_size_class(uint64_t class, char text[WEIR__DESCRIBE_TEXT]) {
  char from[32], to[32];
  if (class <= WEIR__SIZE_CLASS_MIN)
    snprintf(text, WEIR__DESCRIBE_TEXT, "up to %s", weir__format_bytes(class, to));
  else
    snprintf(text, WEIR__DESCRIBE_TEXT, "%s to %s", weir__format_bytes(class / 2, from), weir__format_bytes(class, to));
  return text;
}
