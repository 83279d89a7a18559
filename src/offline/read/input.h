/*
 * Input from memory, a file or a function, plain or compressed with zstd or gzip (recognised by the first bytes, not by
 * the name).
 * Compressed data may become WEIR__INPUT_RATIO times as long, and WEIR__INPUT_FREE bytes in any case: a small file that
 * unpacks to more is refused.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "weir/status.h"

#define WEIR__INPUT_RATIO 1024u
#define WEIR__INPUT_FREE (64u << 20)

typedef struct weir__input weir__input;

/* Opens a file, a pipe or a device. "-" is the standard input. */
weir_status weir__input_open(const char *path, weir__input **input);

/* Opens `data`, plain or compressed, which must outlive the input. `name` is for errors. */
weir_status weir__input_open_memory(const char *name, const void *data, size_t size, weir__input **input);

/* Reads at most `room` bytes of a file into `to`. Returns their number, which is 0 only at the end. */
typedef size_t weir__input_source(void *context, void *to, size_t room);

/* Opens what a function reads, plain or compressed. `name` is for errors. */
weir_status weir__input_open_source(const char *name, weir__input_source *source, void *context, weir__input **input);

void weir__input_close(weir__input *input);

/* What errors call it. */
const char *weir__input_name(const weir__input *input);

/* Copies the next `room` bytes, at most WEIR__INPUT_PEEK, without consuming them. *got is less only at the end. */
enum { WEIR__INPUT_PEEK = 16 };
weir_status weir__input_peek(weir__input *input, void *to, size_t room, size_t *got);

/* Reads at most `room` bytes. *got is 0 only at the end. */
weir_status weir__input_read(weir__input *input, void *to, size_t room, size_t *got);
