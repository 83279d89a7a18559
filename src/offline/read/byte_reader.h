/*
 * A buffer that moves along the bytes of an input: what an opcode needs is contiguous.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "offline/read/budget.h"
#include "offline/read/input.h"

/* Bytes beyond `end` that may be read, as zeros: code that reads no further may check for the end afterwards. */
enum { WEIR__BYTE_READER_SLACK = 512 };

typedef struct weir__byte_reader {
  weir__input *input;
  weir__budget *budget;
  uint64_t limit;  /* of all bytes */
  uint64_t memory; /* the most that the budget's limit may become */
  unsigned char *buffer;
  size_t capacity;
  unsigned char *begin;    /* of the current item: errors name it, and nothing before it is kept */
  unsigned char *at, *end; /* unread bytes of the buffer */
  uint64_t offset;         /* of the buffer's first byte in the input */
  bool has_ended;          /* the input has no more */
} weir__byte_reader;

/* What reading may take of the budget: WEIR__READER_MEMORY bytes, and WEIR__READER_FACTOR more for each byte read. */
#define WEIR__READER_MEMORY (16u << 20)
#define WEIR__READER_FACTOR 64u

/* From here on the budget's limit rises with the bytes read, up to its current value. */
weir_status weir__byte_reader_open(weir__byte_reader *reader, weir__input *input, weir__budget *budget, uint64_t limit);
void weir__byte_reader_close(weir__byte_reader *reader);

static inline uint64_t weir__byte_reader_offset(const weir__byte_reader *reader, const unsigned char *at) {
  return reader->offset + (uint64_t)(at - reader->buffer);
}

/* Returns the status of a failure in a form that tells compilers and analyzers that it is not WEIR_OK. */
static inline weir_status weir__not_ok(weir_status status) {
  return status == WEIR_ERROR_HOST_OUT_OF_MEMORY ? status : WEIR_ERROR_BAD_DATA;
}

/* "NAME: byte N: ...", where N is the offset of `begin`. */
weir_status weir__byte_reader_fail(const weir__byte_reader *reader, const char *format, ...) WEIR_PRINTF(2, 3);
weir_status weir__byte_reader_fail_args(const weir__byte_reader *reader, const char *format, va_list args)
    WEIR_PRINTF(2, 0);
weir_status weir__byte_reader_fail_memory(const weir__byte_reader *reader); /* the budget is used up */
weir_status weir__byte_reader_fail_end(const weir__byte_reader *reader);    /* the data end too early */

/* Reads until `wanted` bytes are in the buffer or the input ends. The buffer may move, and grows only as bytes arrive.
 * */
weir_status weir__byte_reader_fill(weir__byte_reader *reader, size_t wanted);

/* The next `size` bytes, valid until the next call. */
weir_status weir__byte_reader_take(weir__byte_reader *reader, size_t size, const unsigned char **bytes);

/* The rest of the line, without its end, which is skipped. */
weir_status weir__byte_reader_take_line(weir__byte_reader *reader, size_t longest, const char **line, size_t *size);
