/*
 * A digest: what one device of one recording had, in at most WEIR__DIGEST_BYTES bytes of JSON on one line. Integers
 * and hashes; all texts are in one list, `names`, by hash, so that a digest without that list has none.
 *
 * Tables describe the document. They are all that its reader, its writer (offline/render/digest_json.h), its redaction
 * and its JSON Schema know about it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/read/budget.h"
#include "offline/read/input.h"

enum { WEIR__DIGEST_VERSION = 1, WEIR__DIGEST_BYTES = 100000, WEIR__DIGEST_TEXT = 160 };

/* uint64_t, or structs of below: as the table says. */
typedef struct weir__digest_list {
  void *items;
  size_t count;
} weir__digest_list;

static inline uint64_t weir__digest_number(const weir__digest_list *list, size_t i) {
  return i < list->count ? ((const uint64_t *)list->items)[i] : 0;
}

/* What holds memory: a stack, a phase, a pool, a stream, a text of the program. Bytes are requested ones. */
typedef struct weir__digest_holder {
  uint64_t name;
  uint64_t allocations, total; /* requests, and the sum of their bytes */
  uint64_t peak, at_peak, end; /* its own peak; at the peak of all; at the end */
  weir__digest_list peaks;     /* its peak in each group of steps; stacks only */
} weir__digest_holder;

typedef struct weir__digest_size {
  uint64_t least; /* a power of two: requests from here on, up to the next one */
  uint64_t allocations, total;
} weir__digest_size;

typedef struct weir__digest_name {
  uint64_t name; /* the hash of the text */
  const char *text;
} weir__digest_name;

typedef enum weir__digest_end {
  WEIR__DIGEST_END_UNKNOWN,
  WEIR__DIGEST_CLOSED,
  WEIR__DIGEST_EXITED,
  WEIR__DIGEST_KILLED,
  WEIR__DIGEST_ENDS
} weir__digest_end;

typedef enum weir__digest_verdict {
  WEIR__DIGEST_FITS,
  WEIR__DIGEST_GROWS, /* the level rises from step to step up to the end */
  WEIR__DIGEST_RAN_OUT,
  WEIR__DIGEST_NO_HISTORY, /* what was there before the first entry is not known */
  WEIR__DIGEST_VERDICTS
} weir__digest_verdict;

typedef struct weir__digest {
  uint64_t id;  /* of the rest of the document */
  int64_t rank; /* -1 if not known */
  uint64_t device;
  uint64_t host, role, file; /* names; 0 if not known, as all names */
  uint64_t pid;
  uint64_t settings; /* a name: the text of the settings */
  uint64_t verdict;  /* weir__digest_verdict */
  struct {
    uint64_t entries, allocations, frees;
    uint64_t unknown_frees;     /* of what was allocated before the first entry */
    uint64_t dropped, lost;     /* older entries that made room; entries for which there was no room */
    uint64_t is_complete;       /* 0 or 1: the state before the first entry is known */
    uint64_t ended;             /* weir__digest_end */
    uint64_t first_us, last_us; /* since 1970; 0 if not recorded */
  } history;
  struct {
    uint64_t device, limit;                 /* bytes that there are, and that may be reserved; 0 if not recorded */
    uint64_t outside, peak_outside;         /* of the process, in no allocator */
    uint64_t peak_allocated, peak_reserved; /* requested bytes; bytes of segments */
    uint64_t peak_entry, peak_step;         /* of peak_allocated */
    uint64_t reserved_at_peak;              /* when peak_allocated was reached */
    uint64_t end_allocated, end_reserved;
    uint64_t segments_allocated, segments_released; /* entries: how often the driver was asked */
  } memory;
  struct {
    uint64_t bytes, first_step; /* by which the level rose, and since when; 0 if it did not */
  } growth;
  struct {
    uint64_t count;                /* requests that ran out of memory; the rest is about the first */
    uint64_t entry, step, time_us; /* step: 0 before the first */
    uint64_t bytes, free;          /* requested, and what the device had */
    uint64_t stack;                /* a name */
  } failure;
  struct {
    uint64_t source;                  /* weir__steps_source */
    uint64_t name;                    /* a name: what marks them */
    uint64_t confidence;              /* in thousandths */
    uint64_t count;                   /* complete steps; what comes after the last is one more if it has entries */
    uint64_t width;                   /* steps in a group, a power of two; the lists have an item for each group */
    uint64_t setup;                   /* entries before the first step */
    weir__digest_list entry, time_us; /* its first entry; the time of that */
    weir__digest_list peak, level, reserved; /* bytes: the most in use, those in use at its end, the most reserved */
    weir__digest_list requests;
    /* At its end, hashes of all that happened since the first entry: allocations with their sizes, and frees; and
     * without sizes. What different pools and streams do at the same time may be in any order. */
    weir__digest_list sequence, shape;
  } steps;
  struct {
    uint64_t width;                        /* entries in an interval; the lists have an item for each interval */
    weir__digest_list allocated, reserved; /* bytes: the most in the interval */
    weir__digest_list free, hole;          /* at its end: reserved and not in use, and the largest such piece */
  } time;
  weir__digest_list sizes;                                 /* of weir__digest_size, in ascending order */
  weir__digest_list stacks, phases, texts, pools, streams; /* of weir__digest_holder, by name */
  weir__digest_list names;                                 /* of weir__digest_name, by name */
  struct { /* what the limit of size left out: items of those lists, the smallest */
    uint64_t stacks, phases, texts, pools, streams, names, intervals;
    uint64_t bytes; /* of the stacks that were left out, at the peak: at most so many each */
  } lost;
  weir__chunks memory_of; /* the lists and texts */
} weir__digest;

/* ---- The tables ---- */

typedef enum weir__digest_kind {
  WEIR__DIGEST_NATURAL, /* 0 to INT64_MAX */
  WEIR__DIGEST_INTEGER,
  WEIR__DIGEST_HASH, /* 16 hexadecimal digits */
  WEIR__DIGEST_WORD, /* an index into `words` */
  WEIR__DIGEST_STRING,
  WEIR__DIGEST_OBJECT,
  WEIR__DIGEST_NATURALS, /* lists */
  WEIR__DIGEST_HASHES,
  WEIR__DIGEST_OBJECTS
} weir__digest_kind;

typedef struct weir__digest_field {
  const char *name; /* NULL after the last */
  weir__digest_kind kind;
  size_t offset;
  const char *const *words;            /* end with NULL */
  const struct weir__digest_field *of; /* of an object, or of the objects of a list */
  size_t item_size;                    /* of these */
  const char *help;                    /* for the schema */
  uint64_t most;                       /* NATURAL: 0 stands for INT64_MAX */
} weir__digest_field;

extern const weir__digest_field weir__digest_fields[];

/* The hash that stands for a text. */
uint64_t weir__digest_hash(const char *text);

/* The text of a name; NULL if the digest does not have it. */
const char *weir__digest_text(const weir__digest *digest, uint64_t name);

void weir__digest_clear(weir__digest *digest);

/* ---- Reading ---- */

/* Reads a document from a line. WEIR_ERROR_BAD_DATA says what is wrong at which byte, after `name` and `line`. */
weir_status weir__digest_parse(const char *name, uint64_t line, const char *text, size_t size, weir__digest *digest);

/* The lines of a file. */
typedef struct weir__digest_reader {
  weir__input *input;
  const char *name;
  uint64_t line; /* of the document that was read */
  char *buffer;
  size_t begin, end; /* bytes of the buffer that were not used yet */
  bool has_ended;
} weir__digest_reader;

/* Opens a file of digests, plain or compressed; "-" is the standard input. */
weir_status weir__digest_reader_open(weir__digest_reader *reader, const char *path);

/* Reads the next document. *is_end after the last. After an error, nothing else can be read. */
weir_status weir__digest_reader_next(weir__digest_reader *reader, weir__digest *digest, bool *is_end);
void weir__digest_reader_close(weir__digest_reader *reader);
