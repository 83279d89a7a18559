/*
 * What a program or library on disk says about its functions: its build ID, and the symbol around an address. Only ELF files of
 * 64 bits and of this machine's byte order are read. No bytes of the file are trusted.
 */
#ifndef WEIR_OFFLINE_ELF_H
#define WEIR_OFFLINE_ELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weir__elf weir__elf;

/* NULL if it is not a regular file, not such an ELF file, or cannot be read. */
weir__elf *weir__elf_open(const char *path);
void weir__elf_close(weir__elf *elf); /* NULL is allowed */

/* NULL if it has none. */
const unsigned char *weir__elf_build_id(const weir__elf *elf, size_t *bytes);

/* The function that has an address of the file, from .symtab or else .dynsym. NULL if there is none. Valid until the close. */
const char *weir__elf_function(weir__elf *elf, uint64_t address);

#endif
