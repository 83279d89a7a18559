/*
 * Text in buffers of fixed size.
 */
#ifndef WEIR_BASE_TEXT_H
#define WEIR_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>

#include "base/base.h"

/* The longest error or message that is kept whole, with its NUL. Room for an error that quotes another one. */
enum { WEIR__TEXT_SIZE = 2048 };

/* vsnprintf, but a text that had to be cut ends in "...", so that nobody takes it for the whole. size is at least 4. */
void weir__format_text(char *text, size_t size, const char *format, va_list args) WEIR_PRINTF(3, 0);

#endif
