/*
 * The table of settings, for the files that read and write them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/config/settings.h"
#include "base/base.h"

#define UNLIMITED UINT64_MAX
#define MAX_MIB ((1ull << 43) - 1)   /* so that the bytes fit in an int64_t, and the sum of two in a uint64_t */
#define MAX_DIVISIONS (1ull << 30)   /* 512 bytes times this exceeds the memory of any device */
#define EXPANDABLE_UNIT (2ull << 20) /* devices map memory in units of 2 MiB */

enum kind {
  KIND_FLAG,     /* bool */
  KIND_MIB,      /* uint64_t, bytes; MiB in the text */
  KIND_POWER,    /* uint64_t, a power of two */
  KIND_NUMBER,   /* uint64_t */
  KIND_FRACTION, /* double */
  KIND_CHOICE,   /* unsigned, the index of the choice; from here on all zero is the default */
  KIND_ROUNDUP,  /* roundup_divisions */
  KIND_RESERVE,  /* weir__reserve */
  KIND_CLASSES   /* expandable_segments_reserve_by_class */
};

/* Values of KIND_MIB are in MiB here. */
union value {
  bool flag;
  uint64_t number;
  double fraction;
};

struct weir__option {
  const char *name;
  const char *alias; /* another spelling, or NULL */
  const char *unset; /* text for a default that cannot be written as a value; else NULL */
  const char *help;
  size_t offset;              /* of the field in weir__settings */
  union value preset;         /* of the kinds before KIND_CHOICE */
  union value least, most;    /* MIB, POWER, NUMBER, FRACTION */
  const char *const *choices; /* CHOICE: their names, and a NULL */
  enum kind kind;
  bool open;              /* FRACTION: neither least nor most is allowed */
  bool not_below_segment; /* MIB: at least large_segment_size_mb */
};

enum {
#define OPTION(id, ...) id,
#include "alloc/config/settings_list.h"
  OPTIONS
};

extern const struct weir__option weir__options[OPTIONS];

static inline const void *weir__option_field(const struct weir__option *option, const weir__settings *settings) {
  return (const char *)settings + option->offset;
}

bool weir__option_is_equal(const struct weir__option *option, const weir__settings *a, const weir__settings *b);

/* ---- Writing ---- */

struct weir__setting_text {
  char *text;
  size_t size;
  size_t length; /* of the whole text, whether it fits or not */
};

void weir__setting_put(struct weir__setting_text *writer, const char *format, ...) WEIR_PRINTF(2, 3);

/* The values that an option may have, in words. */
void weir__setting_put_allowed(struct weir__setting_text *writer, const struct weir__option *option);
