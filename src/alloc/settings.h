/*
 * The settings of an allocator, and their text form: "key:value,key:value".
 */
#ifndef WEIR_ALLOC_SETTINGS_H
#define WEIR_ALLOC_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "weir/status.h"

enum {
  WEIR__ROUNDUP_INTERVALS = 16,
  WEIR__RESERVE_CLASSES = 16,
  WEIR__RESERVE_CLASS_NAME = 32 /* with its NUL */
};

typedef enum weir__backend_choice { WEIR__BACKEND_NATIVE, WEIR__BACKEND_CUDA_MALLOC_ASYNC } weir__backend_choice;

/* How much address space an expandable segment reserves: so many bytes, or a part of the device's memory. One of the
 * two is not 0, or the reserve is not set. */
typedef struct weir__reserve {
  uint64_t bytes;
  double fraction;
} weir__reserve;

typedef struct weir__reserve_class {
  char name[WEIR__RESERVE_CLASS_NAME]; /* zeros behind the text, so that equal names are equal bytes */
  weir__reserve reserve;
} weir__reserve_class;

/* Sizes are in bytes and whole MiB. Once an allocator uses it, a set of settings is not changed but replaced. */
typedef struct weir__settings weir__settings;
struct weir__settings {
  uint64_t max_split_size; /* UINT64_MAX: unlimited */
  uint64_t max_non_split_rounding;
  uint64_t large_segment_size;
  double garbage_collection_threshold; /* 0: off */
  bool max_non_split_rounding_set;     /* false: max_non_split_rounding follows large_segment_size */
  bool expandable_segments;
  bool release_lock_on_malloc;
  bool graph_capture_record_stream_reuse;
  bool throw_on_oom;
  weir__backend_choice backend;
  double memory_fraction;
  uint8_t roundup_divisions[WEIR__ROUNDUP_INTERVALS]; /* log2 + 1 of the divisions; 0 and 1: none */

  /* Pinned host memory. */
  bool pinned_use_host_register;
  bool pinned_use_background_threads;
  bool pinned_free_catch_all;
  uint64_t pinned_num_register_threads;
  uint64_t pinned_reserve_segment_size; /* 0: off */
  uint64_t pinned_max_round_threshold;  /* UINT64_MAX: unlimited */
  uint64_t pinned_max_cached_size;      /* UINT64_MAX: unlimited */

  weir__reserve expandable_segments_reserve;                                       /* not set: 9/8 of the device */
  weir__reserve_class expandable_segments_reserve_by_class[WEIR__RESERVE_CLASSES]; /* ends where a name is empty */

  weir__settings *older; /* what it replaced, kept for those who still read it */
};

void weir__settings_default(weir__settings *settings);

/* Reads a text over `base`: keys that it does not have stay as they are there. base NULL: the defaults. `out` may be
 * `base`; its `older` becomes NULL. Any error is WEIR_ERROR_INVALID_ARGUMENT with a text that names the key, the column
 * (bytes, from 1) and what is allowed, and leaves `out` as it was. */
weir_status weir__settings_parse(const weir__settings *base, const char *text, weir__settings *out);

/* Reads the first of WEIR_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF and PYTORCH_ALLOC_CONF that is
 * set, also to "". *source becomes its name, or NULL when none is set; source may be NULL. */
weir_status weir__settings_from_env(weir__settings *out, const char **source);

/* Writes what differs from the defaults, as a text that weir__settings_parse reads to an equal set. As snprintf: at
 * most `size` bytes with the NUL, and the whole length comes back. */
size_t weir__settings_format(const weir__settings *settings, char *text, size_t size);

/* `older` does not count. */
bool weir__settings_equal(const weir__settings *a, const weir__settings *b);

/* What a key does; NULL: there is no such key. `key` has `length` bytes; *name, which may be NULL, becomes the key's first name. */
const char *weir__settings_key_help(const char *key, size_t length, const char **name);

typedef enum weir__help_form { WEIR__HELP_TEXT, WEIR__HELP_MARKDOWN } weir__help_form;

/* Every key with its default, what it takes and what it does, made from the table that parses it. */
void weir__settings_help(FILE *file, weir__help_form form);

#endif
