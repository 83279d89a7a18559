/*
 * Where values are written piece by piece, in a format such as JSON, and through a buffer. The first error is kept, and
 * output after it is dropped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "weir/output.h"
#include "weir/status.h"

typedef struct weir__sink weir__sink;

/* A format. A dict is open, then a key and a value for each item, then close; a list is open, values, close. A memo
 * starts at 0; texts with a memo that is not NULL are written once and referred to afterwards, if the format has
 * references. */
typedef struct weir__sink_format {
  void (*begin)(weir__sink *sink);
  void (*end)(weir__sink *sink);
  void (*open)(weir__sink *sink, bool is_dict);
  void (*close)(weir__sink *sink);
  void (*key)(weir__sink *sink, const char *text, uint32_t *memo);
  void (*text)(weir__sink *sink, const char *text, uint32_t *memo);
  void (*integer)(weir__sink *sink, int64_t value);
  void (*natural)(weir__sink *sink, uint64_t value);
  void (*real)(weir__sink *sink, double value);
  void (*boolean)(weir__sink *sink, bool value);
  void (*pair)(weir__sink *sink, uint64_t first, uint64_t second);
  void (*null)(weir__sink *sink);

  /* Whole values: keep is called after one and remembers it, again refers to it. NULL if the format has no
   * references. */
  void (*again)(weir__sink *sink, uint32_t memo);
  void (*keep)(weir__sink *sink, uint32_t *memo);
} weir__sink_format;

enum { WEIR__SINK_DEPTH = 16, WEIR__SINK_BUFFER = 64 * 1024 };

struct weir__sink {
  const weir__sink_format *format;
  weir_write_fn write;
  void *context;
  int error;      /* an errno, or 0 */
  size_t used;    /* bytes of the buffer */
  int line_depth; /* JSON: up to this depth, items of lists and of the outermost dict go on lines of their own */
  int depth;
  struct {
    bool is_dict;
    uint32_t count; /* values so far; in a pickle, since the last batch */
  } open[WEIR__SINK_DEPTH];
  uint32_t memos; /* in use */
  unsigned char buffer[WEIR__SINK_BUFFER];
};

/* `write` gets the bytes with its context. */
void weir__sink_begin(weir__sink *sink, const weir__sink_format *format, weir_write_fn write, void *context);

/* Fails with WEIR_ERROR_SYSTEM if anything was not written. `caller` is the public call for the error text, or NULL. */
weir_status weir__sink_end(weir__sink *sink, const char *caller);

void weir__sink_flush(weir__sink *sink);
void weir__sink_put_long(weir__sink *sink, const void *bytes, size_t length);

static inline void weir__sink_put(weir__sink *sink, const void *bytes, size_t length) {
  if (length > WEIR__SINK_BUFFER - sink->used) {
    weir__sink_put_long(sink, bytes, length);
    return;
  }
  memcpy(sink->buffer + sink->used, bytes, length);
  sink->used += length;
}

static inline void weir__sink_put_byte(weir__sink *sink, unsigned char byte) {
  if (sink->used == WEIR__SINK_BUFFER)
    weir__sink_flush(sink);
  sink->buffer[sink->used++] = byte;
}

/* ---- Values ---- */

static inline void weir__write_open_dict(weir__sink *sink) { sink->format->open(sink, true); }
static inline void weir__write_open_list(weir__sink *sink) { sink->format->open(sink, false); }
static inline void weir__write_close(weir__sink *sink) { sink->format->close(sink); }
