#include "offline/analyse/versions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static const struct since {
  const char *key;
  weir__pytorch_version version;
} since[] = {{"roundup_power2_divisions", {1, 12}},
             {"garbage_collection_threshold", {1, 12}},
             {"backend", {2, 0}},
             {"expandable_segments", {2, 1}},
             {"max_non_split_rounding_mb", {2, 6}},
             {"graph_capture_record_stream_reuse", {2, 9}},
             {"per_process_memory_fraction", {2, 10}},
             {"pinned_reserve_segment_size_mb", {2, 10}},
             {"large_segment_size_mb", {2, 11}},
             {"throw_on_cudamalloc_oom", {2, 12}},
             {"pinned_free_catch_all", {2, 12}},
             {"pinned_max_round_threshold_mb", {2, 13}},
             {"pinned_max_cached_size_mb", {2, 13}},
             {"expandable_segments_reserve", {2, 15}},
             {"expandable_segments_reserve_by_class", {2, 15}}};

bool weir__version_parse(const char *text, weir__pytorch_version *version) {
  char *end;
  weir__pytorch_version read = {0};
  if (*text < '0' || *text > '9')
    return false;
  long major = strtol(text, &end, 10);
  if (*end != '.' || end[1] < '0' || end[1] > '9' || major > 999)
    return false;
  long minor = strtol(end + 1, &end, 10);
  if ((*end && !strchr(".+ab-rd", *end)) || minor > 999)
    return false;
  read.major = (int)major;
  read.minor = (int)minor;
  *version = read;
  return true;
}

static const struct since *find(const char *key) {
  for (size_t i = 0; i < WEIR_COUNT_OF(since); i++)
    if (strcmp(since[i].key, key) == 0)
      return &since[i];
  return NULL;
}

weir__pytorch_version weir__key_since(const char *key) {
  const struct since *found = find(key);
  return found ? found->version : (weir__pytorch_version){0};
}

/* The keys are those of the text: a list in brackets has none. */
weir__pytorch_version weir__settings_since(const weir__settings *settings, const char **key) {
  enum { TEXT = 4096 };
  char text[TEXT];
  weir__pytorch_version newest = {0};
  int depth = 0;
  if (key)
    *key = NULL;
  weir__settings_format(settings, text, sizeof text);
  for (char *at = text, *word = text; *at; at++) {
    depth += (*at == '[') - (*at == ']');
    if (*at == ',' && !depth)
      word = at + 1;
    if (*at != ':' || depth)
      continue;
    *at = 0;
    const struct since *found = find(word);
    if (!found || !weir__version_is_before(newest, found->version))
      continue;
    newest = found->version;
    if (key)
      *key = found->key;
  }
  return newest;
}
