/*
 * Output files. A regular file is replaced as a whole: the new contents are written to a temporary file in the same
 * directory, which takes the target's name when it is complete, so a reader never sees half a file. Symbolic links are
 * followed and stay; mode and, where the process may set them, owner and group of a replaced file are kept.
 *
 * Only a regular file can be replaced. Devices, FIFOs and open descriptors (/dev/stdout, /dev/fd/N) are written
 * straight through. A file whose directory does not admit a temporary file, but which is itself writable, is rewritten
 * in place.
 *
 * The temporary file has no name where the file system supports that (O_TMPFILE), so nothing is left behind however the
 * process ends. Elsewhere it is named .weir-PID-N.part; a program that handles signals calls weir__outfile_abandon_all.
 *
 * On WASI, which has none of this, files are written in place.
 *
 * Functions return 0 or an errno value, for the caller to report. One thread at a time may use an outfile.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* What happens to the contents before they are kept. */
typedef enum weir__outfile_use {
  WEIR__OUTFILE_WRITE,  /* written once, in order, to `fd` */
  WEIR__OUTFILE_REREAD, /* written to `fd`, then read at weir__outfile_contents */
  WEIR__OUTFILE_BY_PATH /* written to weir__outfile_contents by a library that opens a path; `fd` is -1 */
} weir__outfile_use;

typedef struct weir__outfile {
  int fd;         /* for the contents; -1 if they are written by path */
  char *target;   /* where the contents belong, links followed; NULL if they go to `through` */
  int through;    /* a device, FIFO or descriptor that receives the contents; -1 if a file is replaced */
  bool is_direct; /* `fd` is `through`: nothing is left to do when the contents are complete */
  bool in_place;  /* `target` is rewritten, not replaced */
  bool is_kept;
  char *part;       /* the name of the temporary file; NULL if it has none */
  char fd_path[32]; /* its name in /proc if it has no other */
  int slot;         /* of `part` among the files that weir__outfile_abandon_all removes; -1 if none */
  bool replaces;    /* there is a file at `target`, with: */
  mode_t mode;
  uid_t owner;
  gid_t group;
} weir__outfile;

/* A NULL path is the standard output. On failure *out needs no weir__outfile_end. */
int weir__outfile_open(weir__outfile *out, const char *path, weir__outfile_use use);

/* The path at which the contents can be opened until they are kept. NULL for WEIR__OUTFILE_WRITE. */
const char *weir__outfile_contents(const weir__outfile *out);

/* Puts the complete contents where they belong. */
int weir__outfile_keep(weir__outfile *out);

/* Removes what was not kept. */
void weir__outfile_end(weir__outfile *out);

/* Removes the named temporary files of this process. Async-signal-safe; the process is expected to end. */
void weir__outfile_abandon_all(void);
