/*
 * The settings of an allocator, and their text form: "key:value,key:value".
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "weir/status.h"

enum {
  WEIR__ROUNDUP_INTERVALS = 16,
  WEIR__RESERVE_CLASSES = 16,
  WEIR__RESERVE_CLASS_NAME = 32 /* including the NUL */
};

typedef enum weir__backend_choice { WEIR__BACKEND_NATIVE, WEIR__BACKEND_CUDA_MALLOC_ASYNC } weir__backend_choice;

/* How misuse of memory is searched for (cache/guard_port.h). */
typedef enum weir__guard_mode { WEIR__GUARD_OFF, WEIR__GUARD_LIGHT, WEIR__GUARD_FULL } weir__guard_mode;

/* The address space that an expandable segment reserves: a number of bytes, or a fraction of the device's memory. Both
 * are 0 if it is not set. */
typedef struct weir__reserve {
  uint64_t bytes;
  double fraction;
} weir__reserve;

typedef struct weir__reserve_class {
  char name[WEIR__RESERVE_CLASS_NAME]; /* padded with zeros, so that equal names have equal bytes */
  weir__reserve reserve;
} weir__reserve_class;

/* Sizes are in bytes, and whole MiB. A set that an allocator uses is never changed, only replaced. */
typedef struct weir__settings weir__settings;
struct weir__settings {
  uint64_t max_split_size; /* UINT64_MAX if unlimited */
  uint64_t max_non_split_rounding;
  uint64_t large_segment_size;
  double garbage_collection_threshold; /* 0 if off */
  bool max_non_split_rounding_set;     /* if false, max_non_split_rounding follows large_segment_size */
  bool expandable_segments;
  bool moving_pages; /* implies expandable_segments */
  bool moving_pages_completed_only;
  bool moving_pages_across_streams;
  uint64_t moving_pages_max_aliases;
  uint64_t moving_pages_min_capability; /* ten times the compute capability */
  double moving_pages_slack;            /* a fraction of the peak of live bytes */
  bool release_lock_on_malloc;
  bool graph_capture_record_stream_reuse;
  bool throw_on_oom;
  weir__backend_choice backend;
  weir__guard_mode guard;
  double memory_fraction;
  uint8_t roundup_divisions[WEIR__ROUNDUP_INTERVALS]; /* log2 + 1 of the divisions; 0 and 1 mean none */

  /* Pinned host memory. */
  bool pinned_use_host_register;
  bool pinned_use_background_threads;
  bool pinned_free_catch_all;
  uint64_t pinned_num_register_threads;
  uint64_t pinned_register_min_size;    /* UINT64_MAX if no size is registered for its size */
  uint64_t pinned_register_piece_size;  /* 0 for one registration */
  uint64_t pinned_reserve_segment_size; /* 0 if there is none */
  uint64_t pinned_max_round_threshold;  /* UINT64_MAX if unlimited */
  uint64_t pinned_max_cached_size;      /* UINT64_MAX if unlimited */

  weir__reserve expandable_segments_reserve; /* if not set, 9/8 of the device's memory */
  weir__reserve_class expandable_segments_reserve_by_class[WEIR__RESERVE_CLASSES]; /* up to the first empty name */

  weir__settings *older; /* the set that this one replaced, kept because readers may still use it */
};

void weir__settings_default(weir__settings *settings);

/* Parses a text. Keys that it does not contain keep their values of `base`, or their defaults if base is NULL. `out`
 * may be `base`; its `older` becomes NULL. Every error is WEIR_ERROR_INVALID_ARGUMENT with a text that names the key,
 * the column (in bytes, from 1) and what is allowed; `out` is then unchanged. */
weir_status weir__settings_parse(const weir__settings *base, const char *text, weir__settings *out);

/* Parses the first of WEIR_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF and PYTORCH_ALLOC_CONF that is
 * set, even if to "". *source, unless source is NULL, becomes its name, or NULL if none is set. */
weir_status weir__settings_from_env(weir__settings *out, const char **source);

/* Writes the values that differ from the defaults, as a text that weir__settings_parse reads back. Like snprintf,
 * writes at most `size` bytes including the NUL, and returns the length of the whole text. */
size_t weir__settings_format(const weir__settings *settings, char *text, size_t size);

/* The value of one setting. False if there is no such key. */
bool weir__setting_format(const weir__settings *settings, const char *key, char *text, size_t size, size_t *length);

/* Ignores `older`. */
bool weir__settings_equal(const weir__settings *a, const weir__settings *b);

/* The help text of a key; NULL if there is no such key. `key` has `length` bytes. *name, unless name is NULL, becomes
 * the key's primary name. */
const char *weir__settings_key_help(const char *key, size_t length, const char **name);

typedef enum weir__help_form { WEIR__HELP_TEXT, WEIR__HELP_MARKDOWN } weir__help_form;

/* Prints every key with its default, allowed values and help. */
void weir__settings_help(FILE *file, weir__help_form form);
