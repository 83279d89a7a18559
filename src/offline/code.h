/*
 * Native frames of a recording to names: the process is gone, but the program and the libraries that it had loaded may still be on
 * disk, and if they are the same files, they say which function, file and line an address was. libdw reads their debug information
 * where it is installed; else the symbol tables give the function (offline/elf.h).
 */
#ifndef WEIR_OFFLINE_CODE_H
#define WEIR_OFFLINE_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A module as the recording describes it. */
typedef struct weir__code_origin {
  const char *path;
  uint64_t base; /* what is added to the addresses of the file */
  const unsigned char *build_id;
  size_t build_id_bytes; /* 0: it has none, or it was not recorded */
  int64_t recorded_ns;   /* when recording began, Unix time */
  bool is_this_host;     /* recorded on the machine that reads it */
} weir__code_origin;

typedef struct weir__code_name {
  const char *function, *file;
  int line; /* 0: not known */
} weir__code_name;

typedef struct weir__code weir__code;

/* NULL if the file is not there or is another one than it was: its build ID differs; or, where the recording has none, it was
 * changed since, or is of another machine. */
weir__code *weir__code_open(const weir__code_origin *origin);
void weir__code_close(weir__code *code); /* NULL is allowed */

/* The functions at an address to which a call returns, those that were inlined there first. At most `room` are written; returns
 * how many. 0: nothing is known. The names stay valid. */
size_t weir__code_names(weir__code *code, uint64_t address, weir__code_name *names, size_t room);

#endif
