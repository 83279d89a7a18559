/*
 * Writes digests: always the same bytes for the same digest, which identify it.
 */
#pragma once

#include <stdio.h>

#include "offline/read/digest.h"
#include "weir/status.h"

/* A line, without its newline. All zero is empty. */
typedef struct weir__digest_line {
  char *text;
  size_t size, room;
} weir__digest_line;

/* Writes a digest as a line, from scratch. Its id is what the line says, not what the digest had. */
weir_status weir__digest_write(const weir__digest *digest, weir__digest_line *line);

/* The same, of at most WEIR__DIGEST_BYTES: the digest loses its smallest holders until it fits. */
weir_status weir__digest_write_fitting(weir__digest *digest, weir__digest_line *line);
void weir__digest_line_clear(weir__digest_line *line);

/* Removes all names, and replaces hashes by others: equal ones by equal ones if the salt is the same. */
void weir__digest_redact(weir__digest *digest, const void *salt, size_t salt_size);

/* Writes the JSON Schema of digests. */
void weir__digest_schema(FILE *file);
