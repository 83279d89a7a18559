/*
 * A report exists once: its rows, which JSON and the page have, and sentences about them, which are the text.
 *
 * Rows are the items of the report's JSON (inspect/json.h), with units; what has a key that begins with an underscore
 * is for sentences alone. A sentence names the rows that it needs in braces. They are looked for where the sentence was
 * said, in the object that was open, then in those around it, once the whole report has been made.
 *
 *   WEIR__ROWS(r, JSON_OBJECT("limit"), ROW_BYTES("bytes", limit), JSON_CLOSE);
 *   weir__say(r, "  *limit*  {limit.bytes}, {blocks block}\n");
 *
 *   {limit.bytes}        a row of an object: "1.82 GiB" as its unit has it; "not known" if it is null
 *   {limit}              an object of "least" and "most", such as figures that were rounded: "1.04 to 1.08 GiB",
 *                        "up to 1.08 GiB"; {limit=} is its middle
 *   {blocks block}       "3 blocks"
 *   {least~most}         "1.04 to 1.08 GiB", the smaller first, or one of them if both read the same
 *   {least&most}         "between 1.04 and 1.08 GiB", likewise
 *   {bytes.$}            a row whose key is chosen by weir__say_of()
 *   {bytes:11} {by:+.1}  with the flags, width and digits of printf
 *   {_cells}             a list of texts, as a line of a table: each is aligned to the right, in a column that has room
 *                        for those of all lists with this key, and a blank follows
 *   *limit*              bold on a terminal; ** and {{ are the characters themselves
 */
#pragma once

#include <stdio.h>

#include "inspect/json.h"
#include "offline/analyse/rows.h"
#include "offline/analyse/summary.h"
#include "pattern/steps.h"

/* Rows with a unit; null if they are not known. */
#define ROW_NATURAL(is_known, name, value, in_unit)                                                                    \
  {                                                                                                                    \
    (is_known) ? WEIR__JSON_NATURAL : WEIR__JSON_NULL, name, 0, in_unit, { .natural = (uint64_t)(value) }              \
  }
#define ROW_REAL(is_known, name, value, places, in_unit)                                                               \
  {                                                                                                                    \
    (is_known) ? WEIR__JSON_REAL : WEIR__JSON_NULL, name, places, in_unit, { .real = (value) }                         \
  }
#define ROW_US(is_known, name, value)                                                                                  \
  {                                                                                                                    \
    (is_known) ? WEIR__JSON_INTEGER : WEIR__JSON_NULL, name, 0, WEIR__UNIT_US, { .integer = (value) }                  \
  }
#define ROW_TEXT(name, value, in_unit)                                                                                 \
  {                                                                                                                    \
    WEIR__JSON_TEXT, name, 0, in_unit, { .text = (value) }                                                             \
  }
#define ROW_FILE(name, value) ROW_TEXT(name, value, WEIR__UNIT_FILE)
#define ROW_BYTES(name, value) ROW_NATURAL(true, name, value, WEIR__UNIT_BYTES)
#define ROW_BYTES_IF(is_known, name, value) ROW_NATURAL(is_known, name, value, WEIR__UNIT_BYTES)
#define ROW_ADDRESS(name, value) ROW_NATURAL(true, name, value, WEIR__UNIT_ADDRESS)

/* The key of an item of a list of which JSON has `listed` only: the others are for sentences. */
static inline const char *weir__item_key(size_t i, size_t listed) { return i < listed ? NULL : "_"; }

/* A line that has this is not folded. */
#define WEIR__KEEP_LINE "\001"

typedef struct weir__report_row {
  weir__json_item item; /* of a text: where it is in `texts` */
  size_t parent, end;   /* the object or list that it is in, and the first row after all in it */
} weir__report_row;

typedef struct weir__sentence {
  const char *format; /* NULL for a command line: three texts in the list `in` */
  const char *key;    /* for $ */
  size_t in;          /* the row of the object that was open */
} weir__sentence;

typedef struct weir__report {
  weir__report_row *rows; /* the first is the report itself */
  size_t count, room;
  size_t open;  /* the innermost object or list */
  size_t scope; /* if not 0, the row in which sentences are said meanwhile; the maker of a report sets it */
  weir__sentence *sentences;
  size_t sentence_count, sentence_room;
  char *texts;
  size_t text_used, text_room;
  bool has_failed; /* out of host memory */
  bool is_silent;  /* sentences are left out meanwhile; the maker of a report sets it */
  int line_depth;  /* of its JSON: see weir__sink; the maker of a report sets it */
} weir__report;

/* Memory that runs out while a report is made is noticed at its end, by weir__report_status(). */
void weir__report_begin(weir__report *report);
void weir__report_clear(weir__report *report);
weir_status weir__report_status(const weir__report *report);

/* Adds rows. Texts are copied, keys are not. */
#define WEIR__ROWS(report, ...)                                                                                        \
  weir__report_add(report, (const weir__json_item[]){__VA_ARGS__},                                                     \
                   sizeof((const weir__json_item[]){__VA_ARGS__}) / sizeof(weir__json_item))
void weir__report_add(weir__report *report, const weir__json_item *items, size_t count);

/* Adds a part of a text. */
void weir__report_add_part(weir__report *report, const char *key, const char *text, size_t length);

/* Adds a sentence, or a part of one, which is not copied. In the second, $ in braces stands for a key. */
void weir__say(weir__report *report, const char *format);
void weir__say_of(weir__report *report, const char *key, const char *format);

/* The row behind another one and all in it: from a list, items that are said more about once others have been added are
 * found by weir__report_first() and weir__report_next(). */
static inline size_t weir__report_first(size_t list) { return list + 1; }
static inline size_t weir__report_next(const weir__report *report, size_t item) {
  return report->has_failed ? item : report->rows[item].end;
}

/* Adds a command line of this program for a file, to be pasted into a shell. */
void weir__say_command(weir__report *report, const char *command, const char *options, const char *file);

/* Writes the rows as an object, and as its members alone. */
void weir__report_json(const weir__report *report, weir__sink *sink, const char *key);
void weir__report_json_members(const weir__report *report, weir__sink *sink);

/* How a text is written. */
typedef struct weir__report_style {
  const char *bold, *plain, *keep_line;                                        /* "" where they are of no use */
  void (*command)(const char *command, const char *options, const char *file); /* writes one, with a newline */
} weir__report_style;

/* Writes the sentences. false if one names a row that the report does not have, which is a defect of its maker. */
bool weir__report_text(const weir__report *report, FILE *out, const weir__report_style *style);

/* ---- Parts that several reports have ---- */

/* The steps of a job: the object "steps", {"source", "name", "confidence", "count", "warm_up", "boundaries"}; and "60,
 * from phase 'forward'". */
void weir__steps_rows(weir__report *report, const weir__steps *steps);
void weir__steps_say(weir__report *report, const weir__steps *steps);

/* Memory that the program created itself, if there is any: the object "outside", {"end", "peak"}, and a line. */
void weir__outside_rows(weir__report *report, const weir__recording_device *device);
void weir__outside_say(weir__report *report, const char *label, const weir__recording_device *device);

/* How a holder of memory reads: the row that is open has "bytes", "count", "size" and, at `stack`, its description. */
void weir__holder_say(weir__report *report, const char *indent, const weir__holder *holder, const char *stack);

/* After "history": the file has none. */
#define WEIR__NO_HISTORY "none: whether memory ran out, and its peak, are not known\n"

/* Why a recording with moving_pages may not be reproduced. */
#define WEIR__MOVING_NOTE                                                                                              \
  "pages moved in this job, which depends on how far its streams were: that is not recorded, so a difference does "    \
  "not mean that the file or the replay is wrong"

/* How to record a history, with a newline. */
extern const char weir__record_advice[];

/* What records stacks as well, where the recording was made. */
const char *weir__stacks_option(const weir__recording *recording);
