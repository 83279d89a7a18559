/*
 * A window on a source's bytes that moves on: what an opcode needs of them lies in one piece.
 */
#ifndef WEIR_OFFLINE_BYTE_READER_H
#define WEIR_OFFLINE_BYTE_READER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "offline/budget.h"
#include "offline/input.h"

/* Bytes behind `end` that may be read, as zeros: who knows how far it reads may look at the end afterwards. */
enum { WEIR__BYTE_READER_SLACK = 512 };

typedef struct weir__byte_reader {
  weir__input *input;
  weir__budget *budget;
  uint64_t limit;  /* on the bytes in all */
  uint64_t memory; /* what the budget's limit may rise to */
  unsigned char *buffer;
  size_t capacity;
  unsigned char *begin;    /* of what is being read now: the place that errors name, and nothing before it is kept */
  unsigned char *at, *end; /* what is in the buffer and not read */
  uint64_t offset;         /* of the buffer's first byte in the source */
  bool has_ended;          /* the source has no more */
} weir__byte_reader;

/* What reading may take of the budget: so much at first, and so much more for each byte that came. */
#define WEIR__WINDOW_MEMORY (16u << 20)
#define WEIR__WINDOW_FACTOR 64u

/* From here on the budget's limit rises with the bytes that come, up to what it is now. */
weir_status weir__byte_reader_open(weir__byte_reader *reader, weir__input *input, weir__budget *budget, uint64_t limit);
void weir__byte_reader_close(weir__byte_reader *reader);

static inline uint64_t weir__byte_reader_offset(const weir__byte_reader *reader, const unsigned char *at) {
  return reader->offset + (uint64_t)(at - reader->buffer);
}

/* The status of what has failed here, in a form that shows the compiler, and the analyzer, that it is not WEIR_OK. */
static inline weir_status weir__not_ok(weir_status status) {
  return status == WEIR_ERROR_HOST_OUT_OF_MEMORY ? status : WEIR_ERROR_BAD_DATA;
}

/* "NAME: byte N: ...", where N is the offset of `begin`. */
weir_status weir__byte_reader_fail(const weir__byte_reader *reader, const char *format, ...) WEIR_PRINTF(2, 3);
weir_status weir__byte_reader_fail_args(const weir__byte_reader *reader, const char *format, va_list args)
    WEIR_PRINTF(2, 0);
weir_status weir__byte_reader_fail_memory(const weir__byte_reader *reader); /* when the budget had no room */
weir_status weir__byte_reader_fail_end(const weir__byte_reader *reader);    /* when the data end too early */

/* Reads until `wanted` bytes are ahead or the source has no more. The buffer moves, and grows as bytes come, not as they
 * are promised. */
weir_status weir__byte_reader_fill(weir__byte_reader *reader, size_t wanted);

/* The next `size` bytes, which stay valid until the next call. */
weir_status weir__byte_reader_take(weir__byte_reader *reader, size_t size, const unsigned char **bytes);

/* The rest of the line, without its end, which is read too. */
weir_status weir__byte_reader_take_line(weir__byte_reader *reader, size_t longest, const char **line, size_t *size);

#endif
