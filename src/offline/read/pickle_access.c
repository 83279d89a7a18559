/*
 * Opening and closing, errors, and access to values.
 */
#include <stdlib.h>
#include <string.h>

#include "offline/read/pickle_machine.h"

weir_status weir__pickle_fail(weir__pickle *p, const char *format, ...) {
  va_list args;
  va_start(args, format);
  weir_status status = weir__byte_reader_fail_args(&p->in, format, args);
  va_end(args);
  return status;
}

weir_status weir__pickle_fail_memory(weir__pickle *p) { return weir__byte_reader_fail_memory(&p->in); }

static const char *const kinds[] = {
    [WEIR__PICKLE_NOTHING] = "nothing", [WEIR__PICKLE_NONE] = "None",       [WEIR__PICKLE_BOOL] = "a bool",
    [WEIR__PICKLE_INT] = "an int",      [WEIR__PICKLE_WIDE_INT] = "an int", [WEIR__PICKLE_WIDE_UINT] = "an int",
    [WEIR__PICKLE_FLOAT] = "a float",   [WEIR__PICKLE_STR] = "a str",       [WEIR__PICKLE_BYTES] = "bytes",
    [WEIR__PICKLE_OBJECT] = "a record", [WEIR__PICKLE_LIST] = "a list",     [WEIR__PICKLE_TUPLE] = "a tuple",
    [WEIR__PICKLE_DICT] = "a dict",     [WEIR__PICKLE_SET] = "a set",       [WEIR__PICKLE_FROZENSET] = "a frozenset"};

const char *weir__pickle_kind(weir__pickle_value v) {
  weir__pickle_tag tag = weir__pickle_tag_of(v);
  return tag < WEIR_COUNT_OF(kinds) ? kinds[tag] : "nothing";
}

weir_status weir__pickle_open(weir__input *source, const weir__pickle_limits *limits, weir__pickle **out) {
  weir__pickle *p = calloc(1, sizeof *p);
  if (!p)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", weir__input_name(source));
  if (limits)
    p->limits = *limits;
  if (p->limits.input == 0)
    p->limits.input = 1ull << 36;
  if (p->limits.memory == 0)
    p->limits.memory = 1ull << 32;
  if (p->limits.objects == 0)
    p->limits.objects = (size_t)1 << 27;
  if (p->limits.string == 0)
    p->limits.string = (size_t)1 << 26;
  if (p->limits.depth == 0)
    p->limits.depth = 100;
  if (p->limits.depth > UINT16_MAX)
    p->limits.depth = UINT16_MAX;
  p->budget.limit = p->limits.memory;
  p->strings.seed = weir__hash_seed();
  weir_status status = weir__byte_reader_open(&p->in, source, &p->budget, p->limits.input);
  if (status) {
    weir__pickle_close(p);
    return status;
  }
  *out = p;
  return WEIR_OK;
}

void weir__pickle_close(weir__pickle *p) {
  if (!p)
    return;
  for (size_t i = 0; i < p->box_count; i++)
    if (p->boxes[i].capacity >= HEAP_ITEMS)
      weir__drop(p->boxes[i].items);
  weir__chunks_clear(&p->items);
  weir__strings_clear(&p->strings);
  weir__drop(p->scratch);
  weir__drop(p->wide);
  weir__drop(p->boxes);
  weir__drop(p->memo);
  weir__drop(p->marks);
  weir__drop(p->stack);
  weir__byte_reader_close(&p->in);
  free(p);
}

weir__budget *weir__pickle_budget(weir__pickle *p) { return &p->budget; }

uint64_t weir__pickle_size(const weir__pickle *p) { return weir__byte_reader_offset(&p->in, p->in.end); }

weir__strings *weir__pickle_strings(weir__pickle *p) { return &p->strings; }

weir_status weir__pickle_intern(weir__pickle *p, const char *text, uint32_t *id) {
  size_t length = strlen(text);
  uint32_t hash = weir__strings_hash(&p->strings, text, length);
  *id = weir__strings_find(&p->strings, hash, text, length);
  return *id != WEIR__TABLE_END ? WEIR_OK : weir__pickle_add_str(p, hash, text, length, id);
}

bool weir__pickle_int64_slow(const weir__pickle *p, weir__pickle_value v, int64_t *out) {
  switch (weir__pickle_tag_of(v)) {
  case WEIR__PICKLE_BOOL:
    *out = (int64_t)weir__pickle_payload(v);
    return true;
  case WEIR__PICKLE_WIDE_INT:
    *out = (int64_t)p->wide[weir__pickle_payload(v)];
    return true;
  default:
    return false;
  }
}

bool weir__pickle_uint64_slow(const weir__pickle *p, weir__pickle_value v, uint64_t *out) {
  int64_t number;
  if (weir__pickle_tag_of(v) == WEIR__PICKLE_WIDE_UINT) {
    *out = p->wide[weir__pickle_payload(v)];
    return true;
  }
  if (!weir__pickle_int64(p, v, &number) || number < 0)
    return false;
  *out = (uint64_t)number;
  return true;
}

bool weir__pickle_double(const weir__pickle *p, weir__pickle_value v, double *out) {
  int64_t number;
  switch (weir__pickle_tag_of(v)) {
  case WEIR__PICKLE_FLOAT:
    memcpy(out, &p->wide[weir__pickle_payload(v)], sizeof *out);
    return true;
  case WEIR__PICKLE_WIDE_UINT:
    *out = (double)p->wide[weir__pickle_payload(v)];
    return true;
  default:
    if (!weir__pickle_int64(p, v, &number))
      return false;
    *out = (double)number;
    return true;
  }
}

weir__string weir__pickle_string(const weir__pickle *p, weir__pickle_value v) {
  return p->strings.items[weir__pickle_payload(v)];
}

const weir__pickle_value *weir__pickle_items(const weir__pickle *p, weir__pickle_value v, size_t *count) {
  const box *b = box_of(p, v);
  *count = b->count;
  return b->items;
}

void weir__pickle_set_list_hook(weir__pickle *p, weir__pickle_hook hook) { p->list_hook = hook; }

uint32_t *weir__pickle_note(weir__pickle *p, weir__pickle_value v) { return &box_of(p, v)->note; }
