#include "inspect/snapshot_texts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/text.h"

/* A copy that is valid UTF-8, or NULL if out of host memory. */
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

typedef struct numbered {
  uint64_t hash;
  uint32_t number; /* + 1 */
} numbered;

uint32_t weir__text_set_add(weir__text_set *texts, const char *text) {
  char *copy = WEIR__RESERVE(texts->at, texts->room, texts->count + 1) ? copy_valid(text ? text : "") : NULL;
  if (!copy)
    return WEIR__NO_TEXT;
  for (uint64_t hash = hash_of(copy) | 1;; hash += 2) { /* texts with the same hash get the next ones; 0 is no key */
    numbered *found = weir__hash_map_put(&texts->numbers, sizeof *found, hash);
    if (found && !found->number) {
      texts->at[texts->count] = copy;
      found->number = (uint32_t)++texts->count;
      return found->number - 1;
    }
    if (!found || !strcmp(texts->at[found->number - 1], copy)) {
      free(copy);
      return found ? found->number - 1 : WEIR__NO_TEXT;
    }
  }
}

void weir__text_set_clear(weir__text_set *texts) {
  for (size_t i = 0; i < texts->count; i++)
    free(texts->at[i]);
  free(texts->at);
  weir__hash_map_clear(&texts->numbers);
  *texts = (weir__text_set){0};
}
