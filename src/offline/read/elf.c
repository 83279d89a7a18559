#include "offline/read/elf.h"

#ifndef __wasi__

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_map.h"

typedef struct function {
  uint64_t begin, bytes;
  const char *name; /* in the mapped file, NUL-terminated */
} function;

struct weir__elf {
  const unsigned char *map;
  size_t bytes;
  Elf64_Ehdr header;
  function *functions; /* by address */
  size_t count;
  bool has_functions; /* they were searched for */
};

/* A part of the file; NULL if it exceeds the file. */
static const void *part_of(const weir__elf *elf, uint64_t at, uint64_t bytes) {
  return at <= elf->bytes && bytes <= elf->bytes - at ? elf->map + at : NULL;
}

static bool is_readable(const Elf64_Ehdr *h) {
  static const uint16_t one = 1;
  unsigned char first;
  memcpy(&first, &one, 1);
  return memcmp(h->e_ident, ELFMAG, SELFMAG) == 0 && h->e_ident[EI_CLASS] == ELFCLASS64 &&
         h->e_ident[EI_DATA] == (first ? ELFDATA2LSB : ELFDATA2MSB) && (h->e_type == ET_EXEC || h->e_type == ET_DYN);
}

/* Does not block: the path may be that of a FIFO. */
static int open_regular(const char *path, size_t *bytes) {
  struct stat about;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0)
    return -1;
  if (fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode) && (size_t)about.st_size >= sizeof(Elf64_Ehdr)) {
    *bytes = (size_t)about.st_size;
    return descriptor;
  }
  close(descriptor);
  return -1;
}

weir__elf *weir__elf_open(const char *path) {
  weir__elf *elf = calloc(1, sizeof *elf);
  int descriptor = elf ? open_regular(path, &elf->bytes) : -1;
  const void *map = descriptor < 0 ? NULL : weir__map_file(descriptor, elf->bytes);
  if (descriptor >= 0)
    close(descriptor);
  if (!map) {
    free(elf);
    return NULL;
  }
  elf->map = map;
  memcpy(&elf->header, map, sizeof elf->header);
  if (is_readable(&elf->header))
    return elf;
  weir__elf_close(elf);
  return NULL;
}

void weir__elf_close(weir__elf *elf) {
  if (!elf)
    return;
  weir__unmap(elf->map, elf->bytes);
  free(elf->functions);
  free(elf);
}

/* ---- The build ID ---- */

static uint64_t padded(uint64_t bytes) { return (bytes + 3) & ~(uint64_t)3; }

static const unsigned char *id_in_notes(const unsigned char *notes, uint64_t bytes, size_t *id_bytes) {
  Elf64_Nhdr note;
  for (uint64_t at = 0; bytes - at >= sizeof note;) {
    memcpy(&note, notes + at, sizeof note);
    at += sizeof note;
    uint64_t name = at, id = name + padded(note.n_namesz), end = id + padded(note.n_descsz);
    if (end > bytes)
      return NULL;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes + name, "GNU", 4) == 0) {
      *id_bytes = note.n_descsz;
      return notes + id;
    }
    at = end;
  }
  return NULL;
}

const unsigned char *weir__elf_build_id(const weir__elf *elf, size_t *bytes) {
  const unsigned char *found = NULL;
  for (unsigned i = 0; i < elf->header.e_phnum && !found; i++) {
    Elf64_Phdr part;
    const void *at = part_of(elf, elf->header.e_phoff + (uint64_t)i * sizeof part, sizeof part);
    if (!at || elf->header.e_phentsize != sizeof part)
      return NULL;
    memcpy(&part, at, sizeof part);
    const void *notes = part.p_type == PT_NOTE ? part_of(elf, part.p_offset, part.p_filesz) : NULL;
    if (notes)
      found = id_in_notes(notes, part.p_filesz, bytes);
  }
  return found && *bytes ? found : NULL;
}

/* ---- Functions ---- */

static bool section_at(const weir__elf *elf, uint64_t number, Elf64_Shdr *section) {
  const void *at = number < elf->header.e_shnum && elf->header.e_shentsize == sizeof *section
                       ? part_of(elf, elf->header.e_shoff + number * sizeof *section, sizeof *section)
                       : NULL;
  if (at)
    memcpy(section, at, sizeof *section);
  return at != NULL;
}

static bool find_table(const weir__elf *elf, uint32_t type, Elf64_Shdr *table) {
  for (uint64_t i = 0; i < elf->header.e_shnum; i++)
    if (section_at(elf, i, table) && table->sh_type == type)
      return true;
  return false;
}

static int by_address(const void *a, const void *b) {
  const function *x = a, *y = b;
  return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
                              : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void read_functions(weir__elf *elf) {
  Elf64_Shdr table, names;
  elf->has_functions = true;
  if (!find_table(elf, SHT_SYMTAB, &table) && !find_table(elf, SHT_DYNSYM, &table))
    return;
  const unsigned char *symbols = part_of(elf, table.sh_offset, table.sh_size);
  if (!symbols || table.sh_entsize != sizeof(Elf64_Sym) || !section_at(elf, table.sh_link, &names))
    return;
  const char *texts = part_of(elf, names.sh_offset, names.sh_size);
  if (!texts || !names.sh_size || texts[names.sh_size - 1]) /* each text ends in the section */
    return;
  size_t count = table.sh_size / sizeof(Elf64_Sym);
  elf->functions = malloc((count + 1) * sizeof *elf->functions);
  for (size_t i = 0; elf->functions && i < count; i++) {
    Elf64_Sym symbol;
    memcpy(&symbol, symbols + i * sizeof symbol, sizeof symbol);
    unsigned type = ELF64_ST_TYPE(symbol.st_info);
    if ((type == STT_FUNC || type == STT_GNU_IFUNC) && symbol.st_shndx != SHN_UNDEF && symbol.st_size &&
        symbol.st_name < names.sh_size && texts[symbol.st_name])
      elf->functions[elf->count++] = (function){symbol.st_value, symbol.st_size, texts + symbol.st_name};
  }
  if (elf->count)
    qsort(elf->functions, elf->count, sizeof *elf->functions, by_address);
}

const char *weir__elf_function(weir__elf *elf, uint64_t address) {
  if (!elf->has_functions)
    read_functions(elf);
  size_t low = 0, high = elf->count; /* the last that begins at or before the address */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (elf->functions[middle].begin <= address)
      low = middle + 1;
    else
      high = middle;
  }
  const function *f = low ? &elf->functions[low - 1] : NULL;
  return f && address - f->begin < f->bytes ? f->name : NULL;
}

#else

#include <stddef.h>

/* WASI has no elf.h, and a page has no files of programs: nothing is found. */
weir__elf *weir__elf_open(const char *path) {
  (void)path;
  return NULL;
}

void weir__elf_close(weir__elf *elf) { (void)elf; }

const unsigned char *weir__elf_build_id(const weir__elf *elf, size_t *bytes) {
  (void)elf;
  *bytes = 0;
  return NULL;
}

const char *weir__elf_function(weir__elf *elf, uint64_t address) {
  (void)elf;
  (void)address;
  return NULL;
}

#endif
