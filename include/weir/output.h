/*
 * Output of any length, to a function of the program.
 *
 *     weir_snapshot_write(snapshot, WEIR_SNAPSHOT_JSON, weir_write_file, stdout);
 */
#ifndef WEIR_OUTPUT_H
#define WEIR_OUTPUT_H

#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Takes the next bytes. Returns 0, or a number of errno that ends the output: with WEIR_ERROR_HOST_OUT_OF_MEMORY for
 * ENOMEM, and WEIR_ERROR_SYSTEM for all others. */
typedef int (*weir_write_fn)(void *context, const void *bytes, size_t length);

/* Writes to a FILE. */
static inline int weir_write_file(void *file, const void *bytes, size_t length) {
  errno = 0;
  if (!file)
    return EINVAL;
  if (fwrite(bytes, 1, length, (FILE *)file) == length && fflush((FILE *)file) == 0)
    return 0;
  return errno ? errno : EIO;
}

#ifdef __cplusplus
}
#endif
#endif
