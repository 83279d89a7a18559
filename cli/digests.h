/*
 * What commands that read digests share: the documents of files and folders.
 */
#pragma once

#include "offline/read/digest.h"

/* Calls `use` for each document of the files and folders; the digest is its own then. Reports the files that cannot be
 * read to their end, and goes on with the others. Returns an exit code. `use` returns one too, and all ends if it is
 * not WEIR_EXIT_OK. */
int weir_cli_digests_read(int count, char **arguments, int (*use)(void *context, weir__digest *digest), void *context);
