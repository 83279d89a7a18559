#include "inspect/symbols.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "base/library.h"
#include "base/thread.h"
#include "inspect/snapshot.h"

/* ---- The part of libdw that is used; layouts and numbers are those of its stable ABI ---- */

typedef struct dw_die {
  void *address, *unit, *abbreviation;
  long padding;
} dw_die;

typedef struct dw_attribute {
  unsigned code, form;
  unsigned char *value;
  void *unit;
} dw_attribute;

typedef struct dw_callbacks {
  void *find_elf, *find_debuginfo, *section_address;
  char **debuginfo_path;
} dw_callbacks;

enum { TAG_ENTRY_POINT = 0x03, TAG_INLINED_SUBROUTINE = 0x1d, TAG_SUBPROGRAM = 0x2e };
enum { AT_CALL_FILE = 0x58, AT_CALL_LINE = 0x59, AT_LINKAGE_NAME = 0x6e };

typedef struct libdw {
  void *library; /* NULL if not found */
  void *find_elf, *find_debuginfo;
  void *(*begin)(const dw_callbacks *callbacks);
  void (*end)(void *session);
  void (*report_begin)(void *session);
  int (*proc_report)(void *session, pid_t pid);
  void *(*report_elf)(void *session, const char *name, const char *path, int descriptor, uint64_t base, bool add_vaddr);
  int (*report_end)(void *session, void *removed, void *argument);
  void *(*module_at)(void *session, uint64_t address);
  const char *(*name_at)(void *module, uint64_t address);
  void *(*line_at)(void *module, uint64_t address);
  const char *(*line_info)(void *line, uint64_t *address, int *number, int *column, uint64_t *time, uint64_t *length);
  dw_die *(*unit_at)(void *module, uint64_t address, uint64_t *bias);
  int (*scopes_at)(dw_die *unit, uint64_t address, dw_die **scopes);
  int (*scopes_of)(dw_die *die, dw_die **scopes);
  int (*tag)(dw_die *die);
  const char *(*name)(dw_die *die);
  dw_attribute *(*attribute)(dw_die *die, unsigned name, dw_attribute *result);
  int (*number)(dw_attribute *attribute, uint64_t *value);
  const char *(*string)(dw_attribute *attribute);
  int (*files)(dw_die *unit, void **files, size_t *count);
  const char *(*file)(void *files, size_t index, uint64_t *time, uint64_t *length);
} libdw;

static const struct symbol {
  size_t slot;
  const char *name;
} names[] = {
    {offsetof(libdw, find_elf), "dwfl_linux_proc_find_elf"},
    {offsetof(libdw, find_debuginfo), "dwfl_standard_find_debuginfo"},
    {offsetof(libdw, begin), "dwfl_begin"},
    {offsetof(libdw, end), "dwfl_end"},
    {offsetof(libdw, report_begin), "dwfl_report_begin"},
    {offsetof(libdw, proc_report), "dwfl_linux_proc_report"},
    {offsetof(libdw, report_elf), "dwfl_report_elf"},
    {offsetof(libdw, report_end), "dwfl_report_end"},
    {offsetof(libdw, module_at), "dwfl_addrmodule"},
    {offsetof(libdw, name_at), "dwfl_module_addrname"},
    {offsetof(libdw, line_at), "dwfl_module_getsrc"},
    {offsetof(libdw, line_info), "dwfl_lineinfo"},
    {offsetof(libdw, unit_at), "dwfl_module_addrdie"},
    {offsetof(libdw, scopes_at), "dwarf_getscopes"},
    {offsetof(libdw, scopes_of), "dwarf_getscopes_die"},
    {offsetof(libdw, tag), "dwarf_tag"},
    {offsetof(libdw, name), "dwarf_diename"},
    {offsetof(libdw, attribute), "dwarf_attr_integrate"},
    {offsetof(libdw, number), "dwarf_formudata"},
    {offsetof(libdw, string), "dwarf_formstring"},
    {offsetof(libdw, files), "dwarf_getsrcfiles"},
    {offsetof(libdw, file), "dwarf_filesrc"},
};

/* Requires all functions; every libdw in use has them. */
static bool libdw_open(libdw *dw, const char *name) {
  dw->library = weir__library_open(name ? name : "libdw.so.1");
  for (size_t i = 0; dw->library && i < WEIR_COUNT_OF(names); i++) {
    void *address = weir__library_symbol(dw->library, names[i].name);
    memcpy((char *)dw + names[i].slot, &address, sizeof address);
    if (!address) {
      weir__library_close(dw->library);
      dw->library = NULL;
    }
  }
  return dw->library != NULL;
}

/* ---- Resolved symbols ---- */

/* A resolved address. */
typedef struct known {
  uint64_t address;
  size_t first, count;
} known;

typedef char *(*demangle_fn)(const char *name, char *buffer, size_t *length, int *status);

struct weir__symbols {
  const char *library_name;
  const char *path; /* of a file outside this process, or NULL for this process */
  uint64_t base;
  bool is_open; /* opening was attempted */
  libdw dw;
  dw_callbacks callbacks;
  char *debuginfo_path;
  void *session;        /* or NULL */
  demangle_fn demangle; /* of the C++ library, or NULL */
  weir__symbol *symbols;
  size_t count, room;
  weir__text_set texts;
  weir__hash_map known; /* by address */
};

weir__symbols *weir__symbols_new(const char *library) {
  weir__symbols *symbols = calloc(1, sizeof *symbols);
  if (symbols)
    symbols->library_name = library;
  return symbols;
}

weir__symbols *weir__symbols_new_for(const char *library, const char *path, uint64_t base) {
  weir__symbols *symbols = weir__symbols_new(library);
  if (symbols) {
    symbols->path = path;
    symbols->base = base;
  }
  return symbols;
}

void weir__symbols_delete(weir__symbols *symbols) {
  if (!symbols)
    return;
  if (symbols->session)
    symbols->dw.end(symbols->session);
  if (symbols->dw.library)
    weir__library_close(symbols->dw.library);
  weir__text_set_clear(&symbols->texts);
  free(symbols->symbols);
  weir__hash_map_clear(&symbols->known);
  free(symbols);
}

/* A C program may read the recording of a C++ program: then the C++ library is loaded, and stays loaded. */
static void find_demangler(weir__symbols *s) {
  void *demangle = weir__library_symbol(NULL, "__cxa_demangle");
  if (!demangle && s->path) {
    void *library = weir__library_open("libstdc++.so.6");
    demangle = library ? weir__library_symbol(library, "__cxa_demangle") : NULL;
  }
  memcpy(&s->demangle, &demangle, sizeof demangle);
}

static void start(weir__symbols *s) {
  s->is_open = true;
  find_demangler(s);
  if (!libdw_open(&s->dw, s->library_name))
    return;
  s->callbacks = (dw_callbacks){s->dw.find_elf, s->dw.find_debuginfo, NULL, &s->debuginfo_path};
  s->session = s->dw.begin(&s->callbacks);
  if (!s->session)
    return;
  s->dw.report_begin(s->session);
  bool reported = s->path ? s->dw.report_elf(s->session, s->path, s->path, -1, s->base, true) != NULL
                          : s->dw.proc_report(s->session, weir__process_id()) == 0;
  if (s->dw.report_end(s->session, NULL, NULL) != 0 || !reported) {
    s->dw.end(s->session);
    s->session = NULL;
  }
}

static uint32_t add_name(weir__symbols *s, const char *symbol) {
  int status = -1;
  char *plain = s->demangle && !strncmp(symbol, "_Z", 2) ? s->demangle(symbol, NULL, NULL, &status) : NULL;
  uint32_t name = weir__text_set_add(&s->texts, plain ? plain : symbol);
  free(plain);
  return name;
}

const char *weir__symbols_name(weir__symbols *s, const char *symbol) {
  if (!s->is_open)
    start(s);
  uint32_t name = add_name(s, symbol);
  return name == WEIR__NO_TEXT ? symbol : s->texts.at[name];
}

static bool add(weir__symbols *s, const char *function, const char *file, int line) {
  uint32_t name = add_name(s, function ? function : "??");
  uint32_t path = weir__text_set_add(&s->texts, file ? file : "??");
  if (name == WEIR__NO_TEXT || path == WEIR__NO_TEXT || !WEIR__RESERVE(s->symbols, s->room, s->count + 1))
    return false;
  s->symbols[s->count++] = (weir__symbol){name, path, line > 0 ? line : 0};
  return true;
}

/* ---- Looking up ---- */

/* The linkage name, which has the types of a C++ function, or else the plain name. */
static const char *name_of(const libdw *dw, dw_die *die) {
  dw_attribute attribute;
  const char *name = dw->attribute(die, AT_LINKAGE_NAME, &attribute) ? dw->string(&attribute) : NULL;
  return name ? name : dw->name(die);
}

static uint64_t number_of(const libdw *dw, dw_die *die, unsigned attribute_name) {
  dw_attribute attribute;
  uint64_t value = 0;
  if (!dw->attribute(die, attribute_name, &attribute) || dw->number(&attribute, &value))
    return 0;
  return value;
}

/* Walks the scopes around an address that are functions: inlined ones, then the real one. The location in each is where
 * the next inner one was called. */
static bool add_inlined(weir__symbols *s, void *module, uint64_t address, const char **file, int *line,
                        const char **function) {
  const libdw *dw = &s->dw;
  uint64_t bias = 0;
  dw_die *unit = dw->unit_at(module, address, &bias), *scopes = NULL, *around = NULL;
  void *files = NULL;
  size_t file_count = 0;
  bool done = true;
  /* scopes_at finds the innermost scope, but its parents are those of its definition; scopes_of finds the parents at
   * this place. */
  int count = unit ? dw->scopes_at(unit, address - bias, &scopes) : 0;
  count = count > 0 ? dw->scopes_of(&scopes[0], &around) : 0;
  if (count > 0 && dw->files(unit, &files, &file_count) != 0)
    files = NULL;
  for (int i = 0; done && i < count; i++) {
    int tag = dw->tag(&around[i]);
    const char *name = name_of(dw, &around[i]);
    if (tag == TAG_SUBPROGRAM || tag == TAG_ENTRY_POINT) {
      *function = name ? name : *function;
      break;
    }
    if (tag != TAG_INLINED_SUBROUTINE)
      continue;
    done = add(s, name, *file, *line);
    uint64_t number = number_of(dw, &around[i], AT_CALL_FILE);
    *file = files && number < file_count ? dw->file(files, (size_t)number, NULL, NULL) : NULL;
    *line = (int)number_of(dw, &around[i], AT_CALL_LINE);
  }
  free(scopes);
  free(around);
  return done;
}

static bool look_up(weir__symbols *s, uint64_t address) {
  const char *function = NULL, *file = NULL;
  int line = 0;
  void *module = s->session ? s->dw.module_at(s->session, address) : NULL;
  if (module) {
    void *at = s->dw.line_at(module, address);
    file = at ? s->dw.line_info(at, NULL, &line, NULL, NULL, NULL) : NULL;
    function = s->dw.name_at(module, address);
    if (at && !add_inlined(s, module, address, &file, &line, &function))
      return false;
  }
  const char *name, *path;
  if ((!function || !file) && !s->path && weir__library_at(address, &name, &path)) {
    function = function ? function : name;
    file = file ? file : path;
  }
  return add(s, function, file, line);
}

size_t weir__symbols_of(weir__symbols *s, uintptr_t address, size_t *first) {
  const known *k = weir__hash_map_find(&s->known, sizeof *k, address);
  if (!k) {
    size_t before = s->count;
    if (!s->is_open)
      start(s);
    known *made = look_up(s, address - 1) /* the call instruction itself */
                      ? weir__hash_map_put(&s->known, sizeof *made, address)
                      : NULL;
    if (!made)
      return 0;
    *made = (known){address, before, s->count - before};
    k = made;
  }
  *first = k->first;
  return k->count;
}

const weir__symbol *weir__symbols_at(const weir__symbols *s, size_t number) { return &s->symbols[number]; }
const char *weir__symbols_text(const weir__symbols *s, uint32_t text) { return s->texts.at[text]; }
