#include "base/library.h"

#ifndef __wasi__

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "base/base.h"

void *weir__library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

const char *weir__library_error(void) { return dlerror(); }

void *weir__library_symbol(void *library, const char *name) { return dlsym(library ? library : RTLD_DEFAULT, name); }

void weir__library_close(void *library) { dlclose(library); }

bool weir__library_at(uint64_t address, const char **function, const char **file) {
  Dl_info info;
  if (!dladdr((void *)(uintptr_t)address, &info))
    return false;
  *function = info.dli_sname;
  *file = info.dli_fname;
  return true;
}

static void find_build_id(weir__image *image, const unsigned char *notes, size_t left) {
  for (ElfW(Nhdr) note; left >= sizeof note;) {
    memcpy(&note, notes, sizeof note);
    uint64_t id = sizeof note + weir__round_up(note.n_namesz, 4), end = id + weir__round_up(note.n_descsz, 4);
    if (end > left)
      return;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes + sizeof note, "GNU", 4) == 0) {
      image->build_id = notes + id;
      image->build_id_bytes = note.n_descsz;
      return;
    }
    notes += end;
    left -= end;
  }
}

static void extend(uint64_t *begin, uint64_t *end, uint64_t from, uint64_t to) {
  *begin = from < *begin ? from : *begin;
  *end = to > *end ? to : *end;
}

typedef struct visit {
  void (*each)(void *context, const weir__image *image);
  void *context;
} visit;

static int visit_image(struct dl_phdr_info *info, size_t size, void *context) {
  const visit *v = context;
  (void)size;
  weir__image image = {info->dlpi_name ? info->dlpi_name : "", info->dlpi_addr, UINT64_MAX, 0, UINT64_MAX, 0, NULL, 0};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    uint64_t begin = info->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;
    if (part->p_type == PT_LOAD)
      extend(&image.begin, &image.end, begin, end);
    if (part->p_type == PT_LOAD && part->p_flags & PF_X)
      extend(&image.code_begin, &image.code_end, begin, end);
    if (part->p_type == PT_NOTE && !image.build_id)
      find_build_id(&image, (const unsigned char *)(uintptr_t)begin, part->p_memsz);
  }
  v->each(v->context, &image);
  return 0;
}

void weir__images_each(void (*each)(void *context, const weir__image *image), void *context) {
  visit v = {each, context};
  dl_iterate_phdr(visit_image, &v);
}

static int read_count(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  *(unsigned long long *)context = info->dlpi_adds;
  return 1;
}

unsigned long long weir__images_loaded(void) {
  unsigned long long count = 0;
  dl_iterate_phdr(read_count, &count);
  return count;
}

#else

#pragma GCC diagnostic ignored "-Wunused-parameter" /* most of these do nothing */

void *weir__library_open(const char *name) { return NULL; }
const char *weir__library_error(void) { return "this system has no shared libraries"; }
void *weir__library_symbol(void *library, const char *name) { return NULL; }
void weir__library_close(void *library) {}
bool weir__library_at(uint64_t address, const char **function, const char **file) { return false; }
void weir__images_each(void (*each)(void *context, const weir__image *image), void *context) {}
unsigned long long weir__images_loaded(void) { return 0; }

#endif
