#include "offline/render/digest_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "offline/analyse/digest_make.h"
#include "offline/analyse/sha256.h"

/* ---- Writing ---- */

/* Where the id is in a line: behind {"weir_digest":1,"id":" */
#define HEAD "{\"weir_digest\":1,\"id\":\""
enum { ID_AT = sizeof HEAD - 1 };

_Static_assert(WEIR__DIGEST_VERSION == 1, "HEAD says it");

static bool put_bytes(weir__digest_line *line, const char *text, size_t size) {
  if (!WEIR__RESERVE(line->text, line->room, line->size + size + 1))
    return false;
  memcpy(line->text + line->size, text, size);
  line->size += size;
  line->text[line->size] = 0;
  return true;
}

static bool put(weir__digest_line *line, const char *text) { return put_bytes(line, text, strlen(text)); }

static bool put_natural(weir__digest_line *line, uint64_t number) {
  char digits[24];
  size_t at = sizeof digits;
  number = number < INT64_MAX ? number : INT64_MAX;
  do
    digits[--at] = (char)('0' + number % 10);
  while (number /= 10);
  return put_bytes(line, digits + at, sizeof digits - at);
}

static bool put_integer(weir__digest_line *line, int64_t number) {
  return (number >= 0 || put(line, "-")) && put_natural(line, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

static void write_hash(char *to, uint64_t hash) {
  for (int i = 15; i >= 0; i--, hash >>= 4)
    to[i] = "0123456789abcdef"[hash & 15];
}

static bool put_hash(weir__digest_line *line, uint64_t hash) {
  char text[18] = "\"";
  write_hash(text + 1, hash);
  text[17] = '"';
  return put_bytes(line, text, sizeof text);
}

/* Texts of digests have no control characters. */
static bool put_text(weir__digest_line *line, const char *text) {
  bool ok = put(line, "\"");
  for (; *text && ok; text++)
    ok = ((*text != '"' && *text != '\\') || put(line, "\\")) && put_bytes(line, text, 1);
  return ok && put(line, "\"");
}

static bool put_object(weir__digest_line *line, const weir__digest_field *fields, const unsigned char *from);

static bool put_list(weir__digest_line *line, const weir__digest_field *f, const weir__digest_list *list) {
  bool ok = put(line, "[");
  for (size_t i = 0; i < list->count && ok; i++) {
    const unsigned char *item = (const unsigned char *)list->items + i * f->item_size;
    uint64_t number;
    ok = !i || put(line, ",");
    if (ok && f->kind == WEIR__DIGEST_OBJECTS)
      ok = put_object(line, f->of, item);
    else if (ok) {
      memcpy(&number, item, sizeof number);
      ok = f->kind == WEIR__DIGEST_HASHES ? put_hash(line, number) : put_natural(line, number);
    }
  }
  return ok && put(line, "]");
}

static bool put_value(weir__digest_line *line, const weir__digest_field *f, const unsigned char *from) {
  uint64_t number = 0;
  weir__digest_list list;
  const char *text;
  switch (f->kind) {
  case WEIR__DIGEST_OBJECT:
    return put_object(line, f->of, from);
  case WEIR__DIGEST_STRING:
    memcpy(&text, from + f->offset, sizeof text);
    return put_text(line, text);
  case WEIR__DIGEST_NATURALS:
  case WEIR__DIGEST_HASHES:
  case WEIR__DIGEST_OBJECTS:
    memcpy(&list, from + f->offset, sizeof list);
    return put_list(line, f, &list);
  default:
    memcpy(&number, from + f->offset, sizeof number);
  }
  return f->kind == WEIR__DIGEST_HASH      ? put_hash(line, number)
         : f->kind == WEIR__DIGEST_WORD    ? put_text(line, f->words[number])
         : f->kind == WEIR__DIGEST_INTEGER ? put_integer(line, (int64_t)number)
                                           : put_natural(line, number);
}

static bool put_members(weir__digest_line *line, const weir__digest_field *fields, const unsigned char *from) {
  bool ok = true;
  for (size_t i = 0; fields[i].name && ok; i++)
    ok =
        (!i || put(line, ",")) && put_text(line, fields[i].name) && put(line, ":") && put_value(line, &fields[i], from);
  return ok && put(line, "}");
}

static bool put_object(weir__digest_line *line, const weir__digest_field *fields, const unsigned char *from) {
  return put(line, "{") && put_members(line, fields, from);
}

weir_status weir__digest_write(const weir__digest *digest, weir__digest_line *line) {
  weir__digest copy = *digest;
  line->size = 0;
  copy.id = 0;
  if (!put(line, "{\"weir_digest\":1,") || !put_members(line, weir__digest_fields, (const unsigned char *)&copy))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for a digest");
  write_hash(line->text + ID_AT, weir__hash_bytes(0, line->text, line->size));
  return WEIR_OK;
}

weir_status weir__digest_write_fitting(weir__digest *digest, weir__digest_line *line) {
  weir_status status = weir__digest_write(digest, line);
  for (size_t most = digest->stacks.count / 2; !status && line->size > WEIR__DIGEST_BYTES && most; most /= 2) {
    weir__digest_trim(digest, most / 2);
    status = weir__digest_write(digest, line);
  }
  return status;
}

void weir__digest_line_clear(weir__digest_line *line) {
  free(line->text);
  *line = (weir__digest_line){0};
}

/* ---- Redaction ---- */

typedef struct salt {
  const void *bytes;
  size_t size;
} salt;

static uint64_t salted(const salt *salt, uint64_t hash) {
  unsigned char out[WEIR__SHA256_SIZE];
  uint64_t made;
  weir__sha256 state;
  if (!hash)
    return 0;
  weir__sha256_begin(&state);
  weir__sha256_add(&state, salt->bytes, salt->size);
  weir__sha256_add(&state, &hash, sizeof hash);
  weir__sha256_end(&state, out);
  memcpy(&made, out, sizeof made);
  return made ? made : 1;
}

static void salt_members(const salt *salt, const weir__digest_field *fields, unsigned char *of) {
  uint64_t number;
  weir__digest_list list;
  for (const weir__digest_field *f = fields; f->name; f++) {
    if (f->kind == WEIR__DIGEST_HASH) {
      memcpy(&number, of + f->offset, sizeof number);
      number = salted(salt, number);
      memcpy(of + f->offset, &number, sizeof number);
    } else if (f->kind == WEIR__DIGEST_OBJECT) {
      salt_members(salt, f->of, of);
    } else if (f->kind == WEIR__DIGEST_HASHES || f->kind == WEIR__DIGEST_OBJECTS) {
      memcpy(&list, of + f->offset, sizeof list);
      for (size_t i = 0; i < list.count; i++) {
        uint64_t *item = (uint64_t *)(void *)((unsigned char *)list.items + i * f->item_size);
        if (f->kind == WEIR__DIGEST_OBJECTS)
          salt_members(salt, f->of, (unsigned char *)item);
        else
          *item = salted(salt, *item);
      }
    }
  }
}

static int by_name(const void *a, const void *b) {
  const weir__digest_holder *x = a, *y = b;
  return (x->name > y->name) - (x->name < y->name);
}

void weir__digest_redact(weir__digest *d, const void *bytes, size_t size) {
  salt salt = {bytes, size};
  weir__digest_list *const lists[] = {&d->stacks, &d->phases, &d->texts, &d->pools, &d->streams};
  d->lost.names += d->names.count;
  d->names.count = 0;
  salt_members(&salt, weir__digest_fields, (unsigned char *)d);
  for (size_t i = 0; i < WEIR_COUNT_OF(lists); i++)
    if (lists[i]->count)
      qsort(lists[i]->items, lists[i]->count, sizeof(weir__digest_holder), by_name);
}

/* ---- The schema ---- */

static void write_schema(FILE *file, const weir__digest_field *fields, int depth, bool is_document);

static void write_kind(FILE *file, const weir__digest_field *f, int depth) {
  switch (f->kind) {
  case WEIR__DIGEST_NATURAL:
  case WEIR__DIGEST_NATURALS:
    fprintf(file, "\"type\": \"integer\", \"minimum\": 0, \"maximum\": %" PRIu64,
            f->most ? f->most : (uint64_t)INT64_MAX);
    break;
  case WEIR__DIGEST_INTEGER:
    fprintf(file, "\"type\": \"integer\", \"minimum\": %" PRId64 ", \"maximum\": %" PRId64, -INT64_MAX, INT64_MAX);
    break;
  case WEIR__DIGEST_HASH:
  case WEIR__DIGEST_HASHES:
    fputs("\"type\": \"string\", \"pattern\": \"^[0-9a-f]{16}$\"", file);
    break;
  case WEIR__DIGEST_STRING:
    fprintf(file, "\"type\": \"string\", \"maxLength\": %d", WEIR__DIGEST_TEXT);
    break;
  case WEIR__DIGEST_WORD:
    fputs("\"enum\": [", file);
    for (int i = 0; f->words[i]; i++)
      fprintf(file, "%s\"%s\"", i ? ", " : "", f->words[i]);
    fputc(']', file);
    break;
  case WEIR__DIGEST_OBJECT:
  case WEIR__DIGEST_OBJECTS:
    write_schema(file, f->of, depth, false);
  }
}

static void indent(FILE *file, int depth) { fprintf(file, "\n%*s", 2 * depth, ""); }

/* The members of an object, all of which are required. */
static void write_schema(FILE *file, const weir__digest_field *fields, int depth, bool is_document) {
  fputs("\"type\": \"object\", \"additionalProperties\": false,", file);
  indent(file, depth);
  fprintf(file, "\"required\": [%s", is_document ? "\"weir_digest\", " : "");
  for (size_t i = 0; fields[i].name; i++)
    fprintf(file, "%s\"%s\"", i ? ", " : "", fields[i].name);
  fputs("],", file);
  indent(file, depth);
  fputs("\"properties\": {", file);
  if (is_document) {
    indent(file, depth + 1);
    fprintf(file, "\"weir_digest\": {\"description\": \"the version of the format\", \"const\": %d},",
            WEIR__DIGEST_VERSION);
  }
  for (size_t i = 0; fields[i].name; i++) {
    bool is_list = fields[i].kind >= WEIR__DIGEST_NATURALS;
    indent(file, depth + 1);
    fprintf(file, "\"%s\": {\"description\": \"%s\", ", fields[i].name, fields[i].help);
    if (is_list)
      fputs("\"type\": \"array\", \"items\": {", file);
    write_kind(file, &fields[i], depth + 2);
    fprintf(file, "}%s%s", is_list ? "}" : "", fields[i + 1].name ? "," : "");
  }
  indent(file, depth);
  fputc('}', file);
}

void weir__digest_schema(FILE *file) {
  fputs("{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": \"A digest of weir digest\", ",
        file);
  write_schema(file, weir__digest_fields, 1, true);
  fputs("\n}\n", file);
}
