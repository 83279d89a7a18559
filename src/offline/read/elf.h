/*
 * The build ID of a program or library on disk, and the symbol around an address. Only 64-bit ELF files in this
 * machine's byte order are read. Nothing in the file is trusted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weir__elf weir__elf;

/* NULL if it is not a regular file, not such an ELF file, or cannot be read. */
weir__elf *weir__elf_open(const char *path);
void weir__elf_close(weir__elf *elf); /* NULL is allowed */

/* NULL if it has none. */
const unsigned char *weir__elf_build_id(const weir__elf *elf, size_t *bytes);

/* The function around an address of the file, from .symtab or else .dynsym. NULL if there is none. Valid until the
 * close. */
const char *weir__elf_function(weir__elf *elf, uint64_t address);
