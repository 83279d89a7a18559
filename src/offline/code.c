#include "offline/code.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "observe/symbols.h"
#include "offline/elf.h"

struct weir__code {
  char *path;
  uint64_t base;
  weir__elf *elf;
  weir__symbols *symbols;
};

static bool is_same_file(const weir__elf *elf, const weir__code_origin *origin) {
  size_t bytes = 0;
  const unsigned char *id = weir__elf_build_id(elf, &bytes);
  if (origin->build_id_bytes)
    return id && bytes == origin->build_id_bytes && memcmp(id, origin->build_id, bytes) == 0;
  struct stat about;
  return origin->is_this_host && stat(origin->path, &about) == 0 &&
         about.st_mtim.tv_sec <= origin->recorded_ns / 1000000000;
}

weir__code *weir__code_open(const weir__code_origin *origin) {
  weir__elf *elf = *origin->path == '/' ? weir__elf_open(origin->path) : NULL;
  weir__code *code = elf && is_same_file(elf, origin) ? calloc(1, sizeof *code) : NULL;
  if (!code) {
    weir__elf_close(elf);
    return NULL;
  }
  code->elf = elf;
  code->base = origin->base;
  code->path = strdup(origin->path);
  code->symbols = code->path ? weir__symbols_new_for(NULL, code->path, origin->base) : NULL;
  if (code->symbols)
    return code;
  weir__code_close(code);
  return NULL;
}

void weir__code_close(weir__code *code) {
  if (!code)
    return;
  weir__symbols_delete(code->symbols);
  weir__elf_close(code->elf);
  free(code->path);
  free(code);
}

static bool is_known(const char *text) { return strcmp(text, "??") != 0; }

size_t weir__code_names(weir__code *code, uint64_t address, weir__code_name *names, size_t room) {
  size_t first = 0, count = weir__symbols_of(code->symbols, address, &first), written = 0;
  for (size_t i = 0; i < count && written < room; i++) {
    const weir__symbol *symbol = weir__symbols_at(code->symbols, first + i);
    weir__code_name name = {weir__symbols_text(code->symbols, symbol->function),
                            weir__symbols_text(code->symbols, symbol->file), symbol->line};
    if (!is_known(name.function)) {
      const char *plain = weir__elf_function(code->elf, address - code->base - 1); /* of the call itself */
      name.function = plain ? weir__symbols_name(code->symbols, plain) : NULL;
    }
    if (!is_known(name.file))
      name.file = code->path;
    if (name.function)
      names[written++] = name;
  }
  return written;
}
