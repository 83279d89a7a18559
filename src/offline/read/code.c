#include "offline/read/code.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/thread.h"
#include "inspect/symbols.h"
#include "offline/read/elf.h"

/* A program or library on disk. It stays open, since the recordings of many ranks have the same ones. */
typedef struct code_file {
  struct code_file *next;
  char *path;
  struct stat about;
  weir__elf *elf;
  weir__symbols *symbols; /* with the addresses of the file */
} code_file;

struct weir__code {
  code_file *file;
  uint64_t base;
};

static code_file *files;
static weir__mutex lock = WEIR__MUTEX_INIT; /* of the list, and of all symbols in it */

static bool is_unchanged(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
         a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* The lock is held. NULL if it is missing or cannot be read. */
static code_file *file_of(const char *path) {
  struct stat about;
  if (*path != '/' || stat(path, &about) != 0)
    return NULL;
  for (code_file *f = files; f; f = f->next)
    if (strcmp(f->path, path) == 0 && is_unchanged(&f->about, &about))
      return f;
  code_file *made = calloc(1, sizeof *made);
  if (!made)
    return NULL;
  made->about = about;
  made->elf = weir__elf_open(path);
  made->path = made->elf ? strdup(path) : NULL;
  made->symbols = made->path ? weir__symbols_new_for(NULL, made->path, 0) : NULL;
  if (!made->symbols) {
    weir__elf_close(made->elf);
    free(made->path);
    free(made);
    return NULL;
  }
  made->next = files;
  return files = made;
}

static bool is_recorded_one(const code_file *file, const weir__code_origin *origin) {
  size_t bytes = 0;
  const unsigned char *id = weir__elf_build_id(file->elf, &bytes);
  if (origin->build_id_bytes)
    return id && bytes == origin->build_id_bytes && memcmp(id, origin->build_id, bytes) == 0;
  return origin->is_this_host && file->about.st_mtim.tv_sec <= origin->recorded_ns / 1000000000;
}

weir__code *weir__code_open(const weir__code_origin *origin) {
  weir__mutex_lock(&lock);
  code_file *file = file_of(origin->path);
  weir__mutex_unlock(&lock);
  weir__code *code = file && is_recorded_one(file, origin) ? malloc(sizeof *code) : NULL;
  if (code)
    *code = (weir__code){file, origin->base};
  return code;
}

void weir__code_close(weir__code *code) { free(code); }

static bool is_known(const char *text) { return strcmp(text, "??") != 0; }

/* The lock is held. */
static size_t look_up(code_file *file, uint64_t address, weir__code_name *names, size_t room) {
  size_t first = 0, count = weir__symbols_of(file->symbols, (uintptr_t)address, &first), written = 0;
  for (size_t i = 0; i < count && written < room; i++) {
    const weir__symbol *symbol = weir__symbols_at(file->symbols, first + i);
    weir__code_name name = {weir__symbols_text(file->symbols, symbol->function),
                            weir__symbols_text(file->symbols, symbol->file), symbol->line};
    if (!is_known(name.function)) {
      const char *plain = weir__elf_function(file->elf, address - 1); /* of the call itself */
      name.function = plain ? weir__symbols_name(file->symbols, plain) : NULL;
    }
    if (!is_known(name.file))
      name.file = file->path;
    if (name.function)
      names[written++] = name;
  }
  return written;
}

size_t weir__code_names(weir__code *code, uint64_t address, weir__code_name *names, size_t room) {
  if (address == code->base) /* the file begins with its header */
    return 0;
  weir__mutex_lock(&lock);
  size_t count = look_up(code->file, address - code->base, names, room);
  weir__mutex_unlock(&lock);
  return count;
}
