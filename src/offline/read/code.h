/*
 * Symbols for the native frames of a recording. The process is gone, but the program and its libraries may still be on
 * disk; if they are the same files, they have the function, file and line of an address. libdw reads their debug
 * information where it is installed; otherwise the symbol tables have the function (offline/read/elf.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A module as the recording describes it. */
typedef struct weir__code_origin {
  const char *path;
  uint64_t base; /* the load address minus that in the file */
  const unsigned char *build_id;
  size_t build_id_bytes; /* 0 if it has none, or it was not recorded */
  int64_t recorded_ns;   /* when recording began, Unix time */
  bool is_this_host;     /* recorded on the machine that reads it */
} weir__code_origin;

typedef struct weir__code_name {
  const char *function, *file;
  int line; /* 0 if not known */
} weir__code_name;

typedef struct weir__code weir__code;

/* NULL if the file is missing or was replaced: its build ID differs, or, if the recording has none, it was changed
 * since, or is on another machine. */
weir__code *weir__code_open(const weir__code_origin *origin);
void weir__code_close(weir__code *code); /* NULL is allowed */

/* The functions at a return address, inlined ones first. Writes at most `room` and returns how many; 0 if nothing is
 * known. The names stay valid. */
size_t weir__code_names(weir__code *code, uint64_t address, weir__code_name *names, size_t room);
