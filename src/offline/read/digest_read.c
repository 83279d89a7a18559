/*
 * Reads digests: one JSON document a line, whose members are exactly those of the tables, in any order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "offline/read/byte_reader.h"
#include "offline/read/digest.h"

/* A line may be written with more spaces and in more words than ours. */
enum { LONGEST_LINE = 4 * WEIR__DIGEST_BYTES, BUFFER = LONGEST_LINE + 1, LONGEST_KEY = 32 };

typedef struct parser {
  const char *name;
  uint64_t line;
  const char *text, *at, *end;
  weir__digest *digest;
  weir__budget budget;
  unsigned char *draft; /* the items of the lists that are being read */
  size_t draft_used, draft_room;
} parser;

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_)                                                                                                       \
      return status_;                                                                                                  \
  } while (0)

static weir_status bad(const parser *p, const char *format, ...) WEIR_PRINTF(2, 3);
static weir_status bad(const parser *p, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  weir__format_text(text, sizeof text, format, arguments);
  va_end(arguments);
  return weir__not_ok(weir__fail(WEIR_ERROR_BAD_DATA, "%s: line %llu, byte %llu: %s", p->name,
                                 (unsigned long long)p->line, (unsigned long long)(p->at - p->text), text));
}

static weir_status no_memory(const parser *p) {
  if (p->budget.is_over)
    return bad(p, "a digest that takes more than %llu bytes", (unsigned long long)p->budget.limit);
  return weir__not_ok(weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: the host has no memory for it", p->name));
}

static void skip_spaces(parser *p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r'))
    p->at++;
}

static weir_status expect(parser *p, char c) {
  skip_spaces(p);
  if (p->at == p->end || *p->at != c)
    return bad(p, "expected '%c'", c);
  p->at++;
  return WEIR_OK;
}

static bool follows(parser *p, char c) {
  skip_spaces(p);
  bool is = p->at < p->end && *p->at == c;
  p->at += is;
  return is;
}

static weir_status read_natural(parser *p, uint64_t most, uint64_t *number) {
  skip_spaces(p);
  const char *begin = p->at;
  uint64_t n = 0;
  for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
    unsigned digit = (unsigned)(*p->at - '0');
    if (n > (most - digit) / 10)
      return bad(p, "a number above %llu", (unsigned long long)most);
    n = 10 * n + digit;
  }
  if (p->at == begin || (*begin == '0' && p->at > begin + 1))
    return bad(p, "expected a whole number");
  *number = n;
  return WEIR_OK;
}

static weir_status read_integer(parser *p, int64_t *number) {
  skip_spaces(p);
  bool is_negative = follows(p, '-');
  uint64_t n;
  TRY(read_natural(p, INT64_MAX, &n));
  *number = is_negative ? -(int64_t)n : (int64_t)n;
  return WEIR_OK;
}

static int digit_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static weir_status read_hash(parser *p, uint64_t *hash) {
  TRY(expect(p, '"'));
  uint64_t n = 0;
  for (int i = 0; i < 16; i++, p->at++) {
    int digit = p->at < p->end ? digit_of(*p->at) : -1;
    if (digit < 0)
      return bad(p, "expected 16 hexadecimal digits, in lower case");
    n = n << 4 | (unsigned)digit;
  }
  *hash = n;
  if (p->at == p->end || *p->at++ != '"')
    return bad(p, "expected the end of 16 hexadecimal digits");
  return WEIR_OK;
}

/* A code of the form \uXXXX, whose digits follow. */
static bool read_code(parser *p, uint32_t *code) {
  *code = 0;
  for (int i = 0; i < 4; i++, p->at++) {
    char c = p->at < p->end ? *p->at : 0;
    int digit = digit_of(c >= 'A' && c <= 'F' ? (char)(c - 'A' + 'a') : c);
    if (digit < 0)
      return false;
    *code = *code << 4 | (unsigned)digit;
  }
  return true;
}

static size_t put_utf8(uint32_t code, char *to) {
  size_t more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
  to[0] = (char)(first[more] | code >> 6 * more);
  for (size_t i = 1; i <= more; i++)
    to[i] = (char)(0x80 | (code >> 6 * (more - i) & 0x3f));
  return more + 1;
}

static weir_status read_escape(parser *p, char *to, size_t *length) {
  static const char from[] = "\"\\/";
  char c = p->at < p->end ? *p->at++ : 0;
  uint32_t code = 0, low = 0;
  if (c && strchr(from, c)) {
    to[0] = c;
    *length = 1;
    return WEIR_OK;
  }
  if (c != 'u' || !read_code(p, &code))
    return bad(p, "an escape that is not known");
  if (code >= 0xd800 && code < 0xdc00) {
    if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u')
      return bad(p, "half of a character");
    p->at += 2;
    if (!read_code(p, &low) || low < 0xdc00 || low >= 0xe000)
      return bad(p, "half of a character");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  *length = put_utf8(code, to);
  return WEIR_OK;
}

/* Reads a string of at most `room` - 1 bytes. */
static weir_status read_string(parser *p, char *to, size_t room, size_t *length) {
  TRY(expect(p, '"'));
  *length = 0;
  while (p->at < p->end && *p->at != '"') {
    char piece[4];
    size_t size = 1;
    piece[0] = *p->at++;
    if (piece[0] == '\\')
      TRY(read_escape(p, piece, &size));
    if (*length + size >= room)
      return bad(p, "a text of more than %zu bytes", room - 1);
    memcpy(to + *length, piece, size);
    *length += size;
  }
  to[*length] = 0;
  return expect(p, '"');
}

/* Texts are printed: they have no control characters, and are UTF-8. */
static bool is_clean(const char *text, size_t length) {
  for (size_t at = 0; at < length;) {
    uint32_t code;
    size_t step = weir__utf8_length(text + at, &code);
    if (!step || !weir__is_printable(code))
      return false;
    at += step;
  }
  return true;
}

static weir_status read_text(parser *p, const char **to) {
  char text[WEIR__DIGEST_TEXT + 1];
  size_t length;
  TRY(read_string(p, text, sizeof text, &length));
  if (strlen(text) != length || !is_clean(text, length))
    return bad(p, "a text that is not printable UTF-8");
  char *copy = weir__chunks_take(&p->digest->memory_of, &p->budget, length + 1, 1);
  if (!copy)
    return no_memory(p);
  memcpy(copy, text, length + 1);
  *to = copy;
  return WEIR_OK;
}

static weir_status read_word(parser *p, const char *const *words, uint64_t *number) {
  char text[LONGEST_KEY];
  size_t length;
  TRY(read_string(p, text, sizeof text, &length));
  for (uint64_t i = 0; words[i]; i++)
    if (strcmp(words[i], text) == 0 && strlen(text) == length) {
      *number = i;
      return WEIR_OK;
    }
  return bad(p, "a word that is not known here");
}

static weir_status read_object(parser *p, const weir__digest_field *fields, unsigned char *to);

/* Appends an item to the list that is being read. */
static weir_status append(parser *p, const void *item, size_t size) {
  unsigned char *grown = weir__grow(&p->budget, p->draft, &p->draft_room, p->draft_used + size, 1);
  if (!grown)
    return no_memory(p);
  p->draft = grown;
  memcpy(p->draft + p->draft_used, item, size);
  p->draft_used += size;
  return WEIR_OK;
}

static weir_status read_item(parser *p, const weir__digest_field *f) {
  uint64_t number = 0;
  unsigned char item[sizeof(weir__digest_holder)] = {0}; /* the largest of all */
  if (f->kind == WEIR__DIGEST_OBJECTS) {
    TRY(read_object(p, f->of, item));
    return append(p, item, f->item_size);
  }
  TRY(f->kind == WEIR__DIGEST_HASHES ? read_hash(p, &number) : read_natural(p, INT64_MAX, &number));
  return append(p, &number, sizeof number);
}

/* A list inside an item is read behind the items that the list around it has so far. */
static weir_status read_list(parser *p, const weir__digest_field *f, weir__digest_list *list) {
  const size_t begin = p->draft_used;
  *list = (weir__digest_list){NULL, 0};
  TRY(expect(p, '['));
  for (bool more = !follows(p, ']'); more;) {
    TRY(read_item(p, f));
    more = follows(p, ',');
    if (!more)
      TRY(expect(p, ']'));
  }
  size_t bytes = p->draft_used - begin;
  p->draft_used = begin;
  if (!bytes)
    return WEIR_OK;
  list->items = weir__chunks_take(&p->digest->memory_of, &p->budget, bytes, 8);
  if (!list->items)
    return no_memory(p);
  memcpy(list->items, p->draft + begin, bytes);
  list->count = bytes / f->item_size;
  return WEIR_OK;
}

static weir_status read_value(parser *p, const weir__digest_field *f, unsigned char *to) {
  uint64_t number = 0;
  int64_t integer = 0;
  weir__digest_list list;
  const char *text = NULL;
  switch (f->kind) {
  case WEIR__DIGEST_NATURAL:
    TRY(read_natural(p, f->most ? f->most : INT64_MAX, &number));
    break;
  case WEIR__DIGEST_HASH:
    TRY(read_hash(p, &number));
    break;
  case WEIR__DIGEST_WORD:
    TRY(read_word(p, f->words, &number));
    break;
  case WEIR__DIGEST_INTEGER:
    TRY(read_integer(p, &integer));
    memcpy(to + f->offset, &integer, sizeof integer);
    return WEIR_OK;
  case WEIR__DIGEST_STRING:
    TRY(read_text(p, &text));
    memcpy(to + f->offset, &text, sizeof text);
    return WEIR_OK;
  case WEIR__DIGEST_OBJECT:
    return read_object(p, f->of, to);
  default:
    TRY(read_list(p, f, &list));
    memcpy(to + f->offset, &list, sizeof list);
    return WEIR_OK;
  }
  memcpy(to + f->offset, &number, sizeof number);
  return WEIR_OK;
}

/* Reads what follows the brace, or what the caller has read of it: `seen` has a bit for each field. */
static weir_status read_members(parser *p, const weir__digest_field *fields, unsigned char *to, uint64_t seen) {
  char key[LONGEST_KEY];
  size_t length;
  do {
    TRY(read_string(p, key, sizeof key, &length));
    size_t i = 0;
    while (fields[i].name && strcmp(fields[i].name, key) != 0)
      i++;
    if (!fields[i].name)
      return bad(p, "a member that a digest of version %d does not have", (int)WEIR__DIGEST_VERSION);
    if (seen >> i & 1)
      return bad(p, "'%s' for the second time", key);
    seen |= 1ull << i;
    TRY(expect(p, ':'));
    TRY(read_value(p, &fields[i], to));
  } while (follows(p, ','));
  TRY(expect(p, '}'));
  for (size_t i = 0; fields[i].name; i++)
    if (!(seen >> i & 1))
      return bad(p, "'%s' is missing", fields[i].name);
  return WEIR_OK;
}

static weir_status read_object(parser *p, const weir__digest_field *fields, unsigned char *to) {
  TRY(expect(p, '{'));
  return read_members(p, fields, to, 0);
}

/* ---- The document ---- */

/* Lists that have an item for each of the same things. */
static weir_status check_lengths(const parser *p) {
  const weir__digest *d = p->digest;
  const weir__digest_list *const of_steps[] = {&d->steps.time_us,  &d->steps.peak,     &d->steps.level,
                                               &d->steps.reserved, &d->steps.requests, &d->steps.sequence,
                                               &d->steps.shape};
  const weir__digest_list *const of_time[] = {&d->time.reserved, &d->time.free, &d->time.hole};
  for (size_t i = 0; i < WEIR_COUNT_OF(of_steps); i++)
    if (of_steps[i]->count != d->steps.entry.count)
      return bad(p, "lists of steps that are not of one length");
  for (size_t i = 0; i < WEIR_COUNT_OF(of_time); i++)
    if (of_time[i]->count != d->time.allocated.count)
      return bad(p, "lists of intervals that are not of one length");
  if (d->steps.entry.count && (!d->steps.width || d->steps.width & (d->steps.width - 1)))
    return bad(p, "groups of %llu steps, expected a power of two", (unsigned long long)d->steps.width);
  for (size_t i = 0; i < d->stacks.count; i++) {
    const weir__digest_holder *h = (const weir__digest_holder *)d->stacks.items + i;
    if (h->peaks.count != d->steps.entry.count)
      return bad(p, "a stack whose list is not as long as those of steps");
  }
  return WEIR_OK;
}

/* Lists that are in the order of a number, without equals. */
static weir_status check_order(const parser *p) {
  const weir__digest *d = p->digest;
  const struct {
    const weir__digest_list *list;
    size_t size;
  } lists[] = {{&d->sizes, sizeof(weir__digest_size)},    {&d->stacks, sizeof(weir__digest_holder)},
               {&d->phases, sizeof(weir__digest_holder)}, {&d->texts, sizeof(weir__digest_holder)},
               {&d->pools, sizeof(weir__digest_holder)},  {&d->streams, sizeof(weir__digest_holder)},
               {&d->names, sizeof(weir__digest_name)}}; /* each item begins with the number */
  for (size_t i = 0; i < WEIR_COUNT_OF(lists); i++)
    for (size_t k = 1; k < lists[i].list->count; k++) {
      const unsigned char *item = (const unsigned char *)lists[i].list->items + k * lists[i].size;
      uint64_t before, number;
      memcpy(&before, item - lists[i].size, sizeof before);
      memcpy(&number, item, sizeof number);
      if (number <= before)
        return bad(p, "a list that is not in order");
    }
  return WEIR_OK;
}

/* The version comes first, so that nothing else is read of a document of another one. */
static weir_status read_document(parser *p) {
  char key[LONGEST_KEY];
  size_t length;
  uint64_t version = 0;
  skip_spaces(p);
  if (p->at == p->end || *p->at != '{')
    return bad(p, "not a digest: expected a line of 'weir digest'");
  p->at++;
  if (read_string(p, key, sizeof key, &length) || strcmp(key, "weir_digest") != 0)
    return bad(p, "not a digest: expected 'weir_digest' first");
  TRY(expect(p, ':'));
  TRY(read_natural(p, INT64_MAX, &version));
  if (version != WEIR__DIGEST_VERSION)
    return bad(p, "a digest of version %llu, this program reads version %d", (unsigned long long)version,
               (int)WEIR__DIGEST_VERSION);
  TRY(expect(p, ','));
  TRY(read_members(p, weir__digest_fields, (unsigned char *)p->digest, 0));
  skip_spaces(p);
  if (p->at != p->end)
    return bad(p, "something follows the document");
  TRY(check_lengths(p));
  return check_order(p);
}

weir_status weir__digest_parse(const char *name, uint64_t line, const char *text, size_t size, weir__digest *digest) {
  weir__digest read = {0};
  parser p = {.name = name,
              .line = line,
              .text = text,
              .at = text,
              .end = text + size,
              .digest = &read,
              .budget = {.limit = 64 * (uint64_t)LONGEST_LINE}};
  weir_status status = read_document(&p);
  weir__drop(p.draft);
  if (status) {
    weir__digest_clear(&read);
    return status;
  }
  *digest = read;
  return WEIR_OK;
}

/* ---- A file ---- */

weir_status weir__digest_reader_open(weir__digest_reader *reader, const char *path) {
  *reader = (weir__digest_reader){.name = strcmp(path, "-") == 0 ? "standard input" : path};
  weir_status status = weir__input_open(path, &reader->input);
  if (status)
    return status;
  reader->buffer = malloc(BUFFER);
  if (reader->buffer)
    return WEIR_OK;
  weir__digest_reader_close(reader);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: the host has no memory for it", path);
}

void weir__digest_reader_close(weir__digest_reader *reader) {
  weir__input_close(reader->input);
  free(reader->buffer);
  *reader = (weir__digest_reader){0};
}

/* The end of the first line in the buffer; NULL if it is not complete yet. */
static char *find_end(const weir__digest_reader *r, size_t from) {
  return r->end > from ? memchr(r->buffer + from, '\n', r->end - from) : NULL;
}

static weir_status fill(weir__digest_reader *r, char **end) {
  size_t from = r->begin, got = 0;
  while (!(*end = find_end(r, from)) && !r->has_ended) {
    if (r->begin) {
      memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
      r->end -= r->begin;
      r->begin = 0;
    }
    from = r->end;
    if (r->end == BUFFER)
      return weir__fail(WEIR_ERROR_BAD_DATA, "%s: line %llu: it has more than %d bytes, which no digest has", r->name,
                        (unsigned long long)r->line, (int)LONGEST_LINE);
    weir_status status = weir__input_read(r->input, r->buffer + r->end, BUFFER - r->end, &got);
    if (status)
      return status;
    r->end += got;
    r->has_ended = got == 0;
  }
  return WEIR_OK;
}

weir_status weir__digest_reader_next(weir__digest_reader *r, weir__digest *digest, bool *is_end) {
  char *end;
  *is_end = false;
  r->line++;
  weir_status status = fill(r, &end);
  if (status)
    return status;
  if (!end && r->begin == r->end) {
    *is_end = true;
    return WEIR_OK;
  }
  if (!end)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: line %llu: it has no end: the file is incomplete", r->name,
                      (unsigned long long)r->line);
  const char *line = r->buffer + r->begin;
  r->begin = (size_t)(end - r->buffer) + 1;
  return weir__digest_parse(r->name, r->line, line, (size_t)(end - line), digest);
}
