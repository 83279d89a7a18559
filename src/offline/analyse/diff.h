/*
 * Compares two recordings: which bytes grew, shrank, appeared or disappeared, by stack, size, stream, phase and class.
 *
 * Three moments are compared: the peak of the bytes in use, the end of the history, and the peaks of steps, of which
 * the mean is taken, so that the number of steps does not matter. Warm-up is left out of it. Addresses do not matter
 * either.
 *
 * Stacks are the same if the function, the name of the file without its folder, and the line are the same for the
 * frames that describe them (offline/analyse/describe.h). The others are matched by functions and files alone, in the
 * order of their lines: these have moved. Streams other than the default one are matched in the order of their first
 * use.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/describe.h"
#include "offline/analyse/job_steps.h"
#include "offline/analyse/rows.h"
#include "offline/read/recording.h"

typedef enum weir__diff_key {
  WEIR__DIFF_STACK,
  WEIR__DIFF_SIZE,
  WEIR__DIFF_STREAM,
  WEIR__DIFF_PHASE,
  WEIR__DIFF_CLASS, /* what blocks are for: see offline/analyse/classes.h */
  WEIR__DIFF_KEYS
} weir__diff_key;

typedef enum weir__diff_moment {
  WEIR__DIFF_PEAK,
  WEIR__DIFF_END,
  WEIR__DIFF_STEP, /* 0 unless both have steps */
  WEIR__DIFF_MOMENTS
} weir__diff_moment;

typedef enum weir__diff_change {
  WEIR__DIFF_SAME,
  WEIR__DIFF_GREW,
  WEIR__DIFF_SHRANK,
  WEIR__DIFF_APPEARED,
  WEIR__DIFF_DISAPPEARED
} weir__diff_change;

enum { WEIR__DIFF_SIZES = 256 };

/* Bytes in use of one recording or row. */
typedef struct weir__diff_sums {
  double bytes[WEIR__DIFF_MOMENTS];
  double count; /* blocks at the peak */
} weir__diff_sums;

typedef struct weir__diff_row {
  char name[WEIR__DESCRIBE_TEXT];
  uint32_t stack[2]; /* 0 if there is none */
  weir__diff_sums of[2];
  weir__diff_change change;
  double difference; /* the largest of the moments', with its sign */
  bool has_moved;    /* a stack whose lines differ */
  bool is_noise;
  bool is_made[2]; /* a block of it is allocated in the recording, at one of the moments or not */
} weir__diff_row;

typedef struct weir__diff_rows {
  weir__diff_row *items; /* the largest difference first */
  size_t count, room;
} weir__diff_rows;

/* One of the two recordings. */
typedef struct weir__diff_side {
  const char *file, *settings;
  int device;
  size_t entries;
  weir__steps steps;
  bool is_known; /* the state before the history, and so the totals */
  bool has_end;  /* and the state at its end */
  double allocated[WEIR__DIFF_MOMENTS], reserved[WEIR__DIFF_MOMENTS];
  double *step_peaks; /* bytes in use, of each step */
} weir__diff_side;

typedef struct weir__diff {
  weir__diff_side side[2];
  weir__diff_rows by[WEIR__DIFF_KEYS];
  bool has_steps;               /* in both */
  size_t sizes;                 /* different ones in both; above WEIR__DIFF_SIZES their rows are powers of two */
  double noise;                 /* bytes: a smaller difference means nothing */
  bool has_phases, has_classes; /* in either */
  size_t stacks_same, stacks_moved, stacks_only[2];
  double fail_above; /* percent; below 0 if not given */
  double grew;       /* the most that a total grew by, in percent */
  const char *what;  /* the label of that total; NULL if none grew */
  bool has_failed;
} weir__diff;

typedef struct weir__diff_options {
  int device[2]; /* -1 for the one that weir__recording_first_device() chooses */
  const char *file[2];
  double fail_above; /* percent; below 0 for no limit */
} weir__diff_options;

weir_status weir__diff_make(const weir__recording *a, const weir__recording *b, const weir__diff_options *options,
                            weir__diff *diff);
void weir__diff_clear(weir__diff *diff);

/* Whether anything is compared at a moment, and by a key. */
bool weir__diff_has_moment(const weir__diff *diff, weir__diff_moment moment);
bool weir__diff_has_key(const weir__diff *diff, weir__diff_key key);

/* The totals at a moment, in use and reserved: those of the first recording, and of the other. */
enum { WEIR__DIFF_TOTALS = 2 };
void weir__diff_totals(const weir__diff *diff, weir__diff_moment moment, weir__row rows[WEIR__DIFF_TOTALS]);

/* "peak" in JSON, and "at the peak" for people. */
const char *weir__diff_moment_name(weir__diff_moment moment);
const char *weir__diff_moment_text(weir__diff_moment moment);
const char *weir__diff_key_name(weir__diff_key key);
const char *weir__diff_change_name(weir__diff_change change);
