/*
 * What the program gives up before it reads a file of unknown origin: an error in a reader shall not become access to
 * the user's files, to the network or to other programs.
 *
 * Landlock restricts which files can be opened: for writing, outputs and their folder; for reading, inputs, libraries
 * and a few files of the system. A seccomp filter restricts system calls: no new program or process, no connection, no
 * signal to or look into another process, and without an output no file that is opened for writing. A call that is not
 * allowed fails with EPERM; one that is newer than the filter fails with ENOSYS, so that the C library uses an older
 * one. Either is left out where the kernel does not have it or a container forbids it; and nothing
 * is given up with WEIR_SANDBOX=off.
 */
#pragma once

#include "options.h"

/* What is still needed. */
typedef struct weir_cli_access {
  const char *const *reads; /* files and folders that are read; those that do not exist are left out */
  size_t read_count;
  const char *const *writes; /* files that are replaced or created */
  size_t write_count;
  bool reads_all; /* any file may be read: a ring file names the libraries whose symbols it needs */
  bool listens;   /* a server accepts connections */
} weir_cli_access;

/* What was restricted, as bits. */
enum { WEIR_CLI_SANDBOX_FILES = 1, WEIR_CLI_SANDBOX_CALLS = 2 };

/* Restricts this process for the rest of its life. */
int weir_cli_sandbox_enter(const weir_cli_access *access);

/* The same for a command whose options have been read, if it reads recordings or settings. */
void weir_cli_sandbox_command(const weir_cli_command *command, int count, char **arguments);
