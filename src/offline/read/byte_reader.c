#include "offline/read/byte_reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { BUFFER_SIZE = 128 * 1024, SLACK = WEIR__BYTE_READER_SLACK };

/* The limit follows the number of bytes read. */
static void raise_budget(weir__byte_reader *w, uint64_t bytes) {
  uint64_t allowed = WEIR__READER_MEMORY + (bytes < UINT64_MAX / 128 ? bytes : UINT64_MAX / 128) * WEIR__READER_FACTOR;
  w->budget->limit = allowed < w->memory ? allowed : w->memory;
}

weir_status weir__byte_reader_open(weir__byte_reader *w, weir__input *input, weir__budget *budget, uint64_t limit) {
  *w = (weir__byte_reader){.input = input, .budget = budget, .limit = limit, .memory = budget->limit};
  raise_budget(w, 0);
  w->buffer = weir__grow(budget, NULL, &w->capacity, BUFFER_SIZE + SLACK, 1);
  if (!w->buffer)
    return weir__byte_reader_fail_memory(w);
  w->begin = w->at = w->end = w->buffer;
  memset(w->buffer, 0, SLACK);
  return WEIR_OK;
}

void weir__byte_reader_close(weir__byte_reader *w) {
  weir__drop(w->buffer);
  *w = (weir__byte_reader){0};
}

weir_status weir__byte_reader_fail_args(const weir__byte_reader *w, const char *format, va_list args) {
  char text[WEIR__TEXT_SIZE / 2];
  weir__format_text(text, sizeof text, format, args);
  return weir__fail(WEIR_ERROR_BAD_DATA, "%s: byte %llu: %s", weir__input_name(w->input),
                    (unsigned long long)weir__byte_reader_offset(w, w->begin), text);
}

weir_status weir__byte_reader_fail(const weir__byte_reader *w, const char *format, ...) {
  va_list args;
  va_start(args, format);
  weir_status status = weir__byte_reader_fail_args(w, format, args);
  va_end(args);
  return status;
}

weir_status weir__byte_reader_fail_memory(const weir__byte_reader *w) {
  char limit[32];
  if (w->budget->is_over && w->budget->limit < w->memory)
    return weir__byte_reader_fail(w, "reading it takes more memory than %u bytes for each byte of it, and %s",
                                  WEIR__READER_FACTOR, weir__format_bytes(WEIR__READER_MEMORY, limit));
  if (w->budget->is_over)
    return weir__byte_reader_fail(w, "reading it takes more memory than the limit of %s",
                                  weir__format_bytes(w->budget->limit, limit));
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: byte %llu: the host has no memory left to read it",
                    weir__input_name(w->input), (unsigned long long)weir__byte_reader_offset(w, w->begin));
}

weir_status weir__byte_reader_fail_end(const weir__byte_reader *w) {
  if (w->begin >= w->end && !weir__byte_reader_offset(w, w->begin))
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the file is empty", weir__input_name(w->input));
  if (w->begin >= w->end)
    return weir__byte_reader_fail(
        w, "the data end here, before the pickle does: the file is incomplete; copy or record it again");
  return weir__byte_reader_fail(w,
                                "the data end at byte %llu, in the middle of this opcode's argument: the file is "
                                "incomplete; copy or record it again",
                                (unsigned long long)weir__byte_reader_offset(w, w->end));
}

weir_status weir__byte_reader_fill(weir__byte_reader *w, size_t wanted) {
  size_t kept = (size_t)(w->end - w->begin), ahead = (size_t)(w->at - w->begin);
  if (w->begin > w->buffer) {
    w->offset += (uint64_t)(w->begin - w->buffer);
    memmove(w->buffer, w->begin, kept);
    w->begin = w->buffer;
  }
  weir_status status = WEIR_OK;
  while (!status && !w->has_ended && kept < ahead + wanted) {
    if (kept + SLACK >= w->capacity) {
      unsigned char *grown = weir__grow(w->budget, w->buffer, &w->capacity, w->capacity + 1, 1);
      if (!grown) {
        status = weir__byte_reader_fail_memory(w);
        break;
      }
      w->buffer = w->begin = grown;
    }
    /* Even if a long text has enlarged the buffer, no more than usual is read ahead. */
    size_t got = 0, missing = ahead + wanted - kept, room = w->capacity - kept - SLACK;
    size_t most = missing > BUFFER_SIZE ? missing : BUFFER_SIZE;
    status = weir__input_read(w->input, w->buffer + kept, room < most ? room : most, &got);
    kept += got;
    w->has_ended = got == 0;
    raise_budget(w, w->offset + kept);
  }
  w->at = w->begin + ahead;
  w->end = w->begin + kept;
  memset(w->end, 0, SLACK);
  if (!status && w->offset + kept > w->limit)
    return weir__byte_reader_fail(w, "there are more bytes than the limit of %llu", (unsigned long long)w->limit);
  return status;
}

weir_status weir__byte_reader_take(weir__byte_reader *w, size_t size, const unsigned char **bytes) {
  if ((size_t)(w->end - w->at) < size) {
    weir_status status = weir__byte_reader_fill(w, size);
    if (status)
      return status;
    if ((size_t)(w->end - w->at) < size)
      return weir__byte_reader_fail_end(w);
  }
  *bytes = w->at;
  w->at += size;
  return WEIR_OK;
}

weir_status weir__byte_reader_take_line(weir__byte_reader *w, size_t longest, const char **line, size_t *size) {
  size_t searched = 0;
  for (;;) {
    size_t there = (size_t)(w->end - w->at);
    const unsigned char *end = memchr(w->at + searched, '\n', there - searched);
    size_t length = end ? (size_t)(end - w->at) : there;
    if (length > longest)
      return weir__byte_reader_fail(w, "a line of more than %zu bytes", longest);
    if (end) {
      *line = (const char *)w->at;
      *size = length;
      w->at += length + 1;
      return WEIR_OK;
    }
    if (w->has_ended)
      return weir__byte_reader_fail_end(w);
    searched = there;
    weir_status status = weir__byte_reader_fill(w, there + 1);
    if (status)
      return status;
  }
}
