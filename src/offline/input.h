/*
 * Where bytes come from: memory, or a file, plain or compressed with zstd or gzip (recognised by the first bytes, not by the
 * name). Compressed data may become WEIR__SOURCE_RATIO times as long, and WEIR__SOURCE_FREE bytes in any case: a small file
 * that unpacks to more is refused.
 */
#ifndef WEIR_OFFLINE_INPUT_H
#define WEIR_OFFLINE_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "weir/status.h"

#define WEIR__SOURCE_RATIO 1024u
#define WEIR__SOURCE_FREE (64u << 20)

typedef struct weir__input weir__input;

/* Reads a file, a pipe or a device from where it stands, to its end. "-" is the standard input. */
weir_status weir__input_open(const char *path, weir__input **input);

/* Reads `data`, which stays the caller's; compressed data are recognised here too. `name` is for errors. */
weir_status weir__input_open_memory(const char *name, const void *data, size_t size, weir__input **input);

void weir__input_close(weir__input *input);

/* What errors call it. */
const char *weir__input_name(const weir__input *input);

/* Copies the next `room` bytes, at most WEIR__SOURCE_PEEK, which are read again afterwards. *got is less at the end only. */
enum { WEIR__INPUT_PEEK = 16 };
weir_status weir__input_peek(weir__input *input, void *to, size_t room, size_t *got);

/* Writes at most `room` bytes. *got is 0 at the end only. */
weir_status weir__input_read(weir__input *input, void *to, size_t room, size_t *got);

#endif
