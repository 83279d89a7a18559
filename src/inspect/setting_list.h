/*
 * Settings as PyTorch's schema lists them. Readers of files include this too: it shows nothing of an allocator.
 */
#pragma once

#include <stdint.h>

#include "weir/status.h"

typedef enum weir__setting_kind {
  WEIR__SETTING_BOOL,
  WEIR__SETTING_INT,
  WEIR__SETTING_FLOAT,
  WEIR__SETTING_TEXT
} weir__setting_kind;

/* One key of allocator_settings. A dict in it (roundup_power2_divisions) is a run of settings with the same key, one
 * for each of its own keys. */
typedef struct weir__snapshot_setting {
  const char *key;
  const char *sub; /* NULL for a plain setting */
  weir__setting_kind kind;
  int64_t integer; /* BOOL and INT */
  double real;     /* BOOL, INT and FLOAT */
  const char *text;
} weir__snapshot_setting;

enum { WEIR__SETTING_LIST = 26 };

struct weir__settings;

/* Lists settings under the keys that PyTorch has for them. `conf` is their text; it must outlive the list. */
void weir__setting_list_make(const struct weir__settings *settings, const char *conf,
                             weir__snapshot_setting list[WEIR__SETTING_LIST]);

/* The same for a text. Errors are those of weir__settings_parse. */
weir_status weir__setting_list_parse(const char *conf, weir__snapshot_setting list[WEIR__SETTING_LIST]);
