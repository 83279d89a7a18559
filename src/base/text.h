/*
 * Text in buffers of fixed size.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* The size of the longest error or message, with its NUL. It has room for an error that quotes another one. */
enum { WEIR__TEXT_SIZE = 2048 };

/* vsnprintf, but a text that had to be cut ends in "...", so that it is not mistaken for the whole. `size` is at least
 * 4. */
void weir__format_text(char *text, size_t size, const char *format, va_list args) WEIR_PRINTF(3, 0);

/* The bytes of the UTF-8 character at `text`, which ends in a NUL, and its code; 0 if there is none, as with forms that
 * are longer than needed, surrogates, and codes above U+10FFFF. */
size_t weir__utf8_length(const char *text, uint32_t *code);

/* Whether a character is shown where it stands. Not so are control characters, which a terminal may obey, line and
 * paragraph separators, and those that change the direction of what follows. */
bool weir__is_printable(uint32_t code);

/* Copies `length` bytes of `text`, with escapes in the place of what is not printable or not UTF-8: "\n", "\x1b",
 * "\u202e". What does not fit is cut off, after a whole character or escape. Returns the length of what was written,
 * without the NUL. */
size_t weir__escape_text(const char *text, size_t length, char *out, size_t size);

/* Which of several names a word probably misspells. It begins with `word` and `length`; after the last name, `name` is
 * the nearest one, or NULL if none is near enough. */
typedef struct weir__nearest {
  const char *word;
  size_t length;
  const char *name;
  size_t distance; /* of `name` */
} weir__nearest;

/* Compares the word with a name in lower case, ignoring the case of the word. The name must outlive `nearest`. */
void weir__nearest_compare(weir__nearest *nearest, const char *name);

/* Escapes a text in place, or, with `keeps_lines`, all of it but newlines. */
void weir__escape_message(char *text, size_t size, bool keeps_lines);
