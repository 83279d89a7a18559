/*
 * Which keys of the settings a version of PyTorch knows. It rejects a text with any other, as a whole.
 */
#pragma once

#include <stdbool.h>

#include "alloc/config/settings.h"

/* Both 0 stand for any version. */
typedef struct weir__pytorch_version {
  int major, minor;
} weir__pytorch_version;

/* People are told of keys that came later than this. */
#define WEIR__VERSION_IN_USE ((weir__pytorch_version){2, 8})

/* Reads "2.5", "2.5.1" or "2.11.0+cu130". false if it is none of these. */
bool weir__version_parse(const char *text, weir__pytorch_version *version);

static inline bool weir__version_is_before(weir__pytorch_version a, weir__pytorch_version b) {
  return a.major != b.major ? a.major < b.major : a.minor < b.minor;
}

/* The first version of PyTorch that knows a key; both 0 for keys that all versions know, and for those that none
 * does. */
weir__pytorch_version weir__key_since(const char *key);

/* The first version that knows all keys of the settings, apart from Weir's own. `key`, which may be NULL, becomes one
 * that no older version knows; NULL if there is none. */
weir__pytorch_version weir__settings_since(const weir__settings *settings, const char **key);
