/*
 * Decompression of zstd frames (RFC 8878) without libzstd: for the WebAssembly module, and for builds that have no
 * libzstd. Frames that need a dictionary are refused. Checksums are verified. It takes memory in proportion to the
 * frame's window, which is at most WEIR__ZSTD_MAX_WINDOW.
 *
 * The caller gives it the bytes of a file in pieces of the size that it asks for, and takes the output away before the
 * next piece.
 */
#ifndef WEIR_OFFLINE_READ_ZSTD_DECODE_H
#define WEIR_OFFLINE_READ_ZSTD_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEIR__ZSTD_MAX_WINDOW (1u << 27) /* as libzstd's default */

enum { WEIR__ZSTD_MAX_WANTED = 128 * 1024 };

typedef struct weir__zstd weir__zstd;

typedef enum weir__zstd_result {
  WEIR__ZSTD_OK,
  WEIR__ZSTD_NO_MEMORY,
  WEIR__ZSTD_BAD /* weir__zstd_error says why */
} weir__zstd_result;

/* NULL if out of host memory. */
weir__zstd *weir__zstd_new(void);
void weir__zstd_delete(weir__zstd *zstd); /* NULL is allowed */

/* The size of the next piece: 1 to WEIR__ZSTD_MAX_WANTED bytes. */
size_t weir__zstd_wanted(const weir__zstd *zstd);

/* Whether it is at the end of a frame, or before the first: the data may end here. */
bool weir__zstd_is_between_frames(const weir__zstd *zstd);

/* Takes the next piece, of the size that is wanted. */
weir__zstd_result weir__zstd_feed(weir__zstd *zstd, const unsigned char *bytes);

/* Copies at most `room` bytes of output. 0 if there is none: the next piece is needed. */
size_t weir__zstd_take(weir__zstd *zstd, void *to, size_t room);

const char *weir__zstd_error(const weir__zstd *zstd);

#endif
