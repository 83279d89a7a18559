#include "inspect/snapshot_texts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* A copy that is valid UTF-8, or NULL if there is no host memory. */
static char *copy_valid(const char *text) {
  static const char replacement[] = "\xef\xbf\xbd";
  size_t bytes = 0;
  uint32_t code;
  for (const char *s = text; *s;) {
    size_t length = weir__utf8_length(s, &code);
    bytes += length ? length : sizeof replacement - 1;
    s += length ? length : 1;
  }
  char *copy = malloc(bytes + 1), *to = copy;
  if (!copy)
    return NULL;
  while (*text) {
    size_t length = weir__utf8_length(text, &code);
    memcpy(to, length ? text : replacement, length ? length : sizeof replacement - 1);
    to += length ? length : sizeof replacement - 1;
    text += length ? length : 1;
  }
  *to = 0;
  return copy;
}

static uint64_t hash_of(const char *text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *text; text++)
    h = (h ^ (unsigned char)*text) * 0x100000001b3u;
  return h ^ h >> 32;
}

/* Makes room for one more text; the table stays at most half full. */
static bool grow(weir__text_set *texts) {
  if (texts->count == texts->room) {
    size_t room = texts->room ? 2 * texts->room : 64;
    char **at = realloc(texts->at, room * sizeof *at);
    if (!at)
      return false;
    texts->at = at;
    texts->room = room;
  }
  if (2 * (texts->count + 1) <= texts->slot_count)
    return true;
  size_t slot_count = texts->slot_count ? 2 * texts->slot_count : 128;
  uint32_t *slots = calloc(slot_count, sizeof *slots);
  if (!slots)
    return false;
  for (size_t i = 0; i < texts->count; i++) {
    size_t slot = hash_of(texts->at[i]) & (slot_count - 1);
    while (slots[slot])
      slot = (slot + 1) & (slot_count - 1);
    slots[slot] = (uint32_t)i + 1;
  }
  free(texts->slots);
  texts->slots = slots;
  texts->slot_count = slot_count;
  return true;
}

uint32_t weir__text_set_add(weir__text_set *texts, const char *text) {
  char *copy = grow(texts) ? copy_valid(text ? text : "") : NULL;
  if (!copy)
    return WEIR__NO_TEXT;
  size_t slot = hash_of(copy) & (texts->slot_count - 1);
  for (; texts->slots[slot]; slot = (slot + 1) & (texts->slot_count - 1))
    if (!strcmp(texts->at[texts->slots[slot] - 1], copy)) {
      free(copy);
      return texts->slots[slot] - 1;
    }
  texts->at[texts->count] = copy;
  texts->slots[slot] = (uint32_t)++texts->count;
  return (uint32_t)texts->count - 1;
}

void weir__text_set_clear(weir__text_set *texts) {
  for (size_t i = 0; i < texts->count; i++)
    free(texts->at[i]);
  free(texts->at);
  free(texts->slots);
  *texts = (weir__text_set){0};
}
