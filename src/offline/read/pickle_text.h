/*
 * The texts inside a pickle: UTF-8, and what protocols before 1 write as lines.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* UTF-8 as Python writes it, with lone surrogates, which file names with undecodable bytes need. */
bool weir__utf8_is_valid(const char *text, size_t size);

bool weir__ascii_is_valid(const char *text, size_t size);

#define WEIR__TEXT_BAD SIZE_MAX

/* Each writes at most 2 * `size` bytes and returns how many, or WEIR__TEXT_BAD. */
size_t weir__raw_unicode_decode(const char *text, size_t size, char *out); /* Latin-1 with \uXXXX and \UXXXXXXXX */
size_t weir__repr_decode(const char *text, size_t size, char *out);        /* 'quoted', with C-like escapes */

typedef enum weir__number { WEIR__NUMBER_OK, WEIR__NUMBER_BAD, WEIR__NUMBER_WIDE } weir__number;

/* A decimal integer from -2^63 to 2^64 - 1: the bits, and whether it is negative. WIDE if it does not fit. */
weir__number weir__integer_decode(const char *text, size_t size, uint64_t *bits, bool *is_negative);

/* What Python's repr(float) writes, in any locale. */
weir__number weir__float_decode(const char *text, size_t size, double *value);
