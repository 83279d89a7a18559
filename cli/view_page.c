#include "view_page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* Puts the bytes of a file between two symbols, without a copy of it in C. */
#define EMBED(name, file)                                                                                              \
  __asm__(".pushsection .rodata,\"a\"\n" #name ":\n.incbin \"" file "\"\n" #name "_end:\n.byte 0\n.popsection\n");     \
  extern const char name[] __attribute__((visibility("hidden")));                                                      \
  extern const char name##_end[] __attribute__((visibility("hidden")))

#ifdef WEIR_PAGE_FILE
EMBED(weir_embedded_page, WEIR_PAGE_FILE);
#endif
#ifdef WEIR_WASM_FILE
EMBED(weir_embedded_wasm, WEIR_WASM_FILE);
#endif

/* ---- The template ---- */

static weir_status read_page(const char *path, weir_cli_page *page) {
  size_t size = 0, room = 1 << 20, got;
  char *text = malloc(room + 1);
  FILE *file = fopen(path, "rb");
  if (!file || !text) {
    weir_status status = text ? weir__fail(WEIR_ERROR_SYSTEM, "%s: it cannot be read: %s", path, strerror(errno))
                              : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %s", path);
    if (file)
      fclose(file);
    free(text);
    return status;
  }
  while ((got = fread(text + size, 1, room - size, file))) {
    size += got;
    char *grown = size < room ? text : realloc(text, 2 * room + 1);
    if (!grown)
      break;
    room *= size < room ? 1 : 2;
    text = grown;
  }
  bool ok = feof(file) && !ferror(file);
  fclose(file);
  text[size] = 0;
  if (!ok) {
    free(text);
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: it cannot be read whole", path);
  }
  *page = (weir_cli_page){.text = text, .size = size, .owned = text};
  return WEIR_OK;
}

/* The last place of a tag in the page: scripts in it may contain the same text before. NULL if it has none. */
static const char *find_last(const weir_cli_page *page, const char *tag) {
  size_t length = strlen(tag);
  for (const char *at = page->text + page->size; at >= page->text + length; at--)
    if (memcmp(at - length, tag, length) == 0)
      return at - length;
  return NULL;
}

weir_status weir_cli_page_open(const char *path, weir_cli_page *page) {
  weir_cli_page found = {0};
  if (path) {
    weir_status status = read_page(path, &found);
    if (status)
      return status;
  } else {
#ifdef WEIR_PAGE_FILE
    found = (weir_cli_page){.text = weir_embedded_page,
                            .size = (uintptr_t)weir_embedded_page_end - (uintptr_t)weir_embedded_page};
#else
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "this build of Weir has no page: install esbuild (the Debian package has that name) and build "
                      "again. --data writes the data without it");
#endif
  }
  if (!found.text || !find_last(&found, "</body>") || !strstr(found.text, "</head>")) {
    weir_cli_page_close(&found);
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: it is no HTML page with </head> and </body>",
                      path ? path : "the built-in page");
  }
  *page = found;
  return WEIR_OK;
}

void weir_cli_page_close(weir_cli_page *page) {
  free(page->owned);
  *page = (weir_cli_page){0};
}

/* ---- Writing ---- */

static void write_base64(FILE *file, const unsigned char *bytes, size_t size) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char out[4096];
  size_t length = 0;
  for (size_t i = 0; i < size; i += 3) {
    size_t left = size - i;
    uint32_t three = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                     (left > 2 ? (uint32_t)bytes[i + 2] : 0);
    out[length++] = digits[three >> 18];
    out[length++] = digits[three >> 12 & 63];
    out[length++] = left > 1 ? digits[three >> 6 & 63] : '=';
    out[length++] = left > 2 ? digits[three & 63] : '=';
    if (length == sizeof out) {
      fwrite(out, 1, length, file);
      length = 0;
    }
  }
  if (length)
    fwrite(out, 1, length, file);
}

/* JSON in a script element: "<" would end it, or begin a comment. */
static void write_index(FILE *file, const char *id, const char *json, size_t size) {
  fprintf(file, "<script type=\"application/json\" id=\"%s\">", id);
  while (size) {
    const char *less = memchr(json, '<', size);
    size_t plain = less ? (size_t)(less - json) : size;
    fwrite(json, 1, plain, file);
    if (less)
      fputs("\\u003c", file);
    json += plain + (less != NULL);
    size -= plain + (less != NULL);
  }
  fputs("</script>\n", file);
}

static void write_chunk(FILE *file, const weir__view_data *data, const weir__view_chunk *chunk) {
  fprintf(file, "<script type=\"text/plain\" class=\"weir-chunk\" data-chunk=\"%s\">", chunk->name);
  write_base64(file, data->chunks + chunk->offset, chunk->stored);
  fputs("</script>\n", file);
}

#ifdef WEIR_WASM_FILE

/* Bytes that the page unpacks, in an element of its own. */
static void write_packed(FILE *file, const char *id, const weir__view_data *packed) {
  fprintf(file, "<script type=\"text/plain\" id=\"%s\" data-encoding=\"%s\">", id,
          packed->table[0].is_deflated ? "deflate" : "raw");
  write_base64(file, packed->chunks, packed->table[0].stored);
  fputs("</script>\n", file);
}

/* The WebAssembly module, for what-if and for files that are dropped on the page, and the recording for it. */
static weir_status write_whatif(const weir__view_data *recording, FILE *file) {
  weir__view_data packed = {0};
  weir_status status = weir__view_pack(&packed, "wasm", false, weir_embedded_wasm,
                                       (uintptr_t)weir_embedded_wasm_end - (uintptr_t)weir_embedded_wasm);
  if (status)
    return status;
  write_packed(file, "weir-wasm", &packed);
  weir__view_clear(&packed);
  if (recording->count)
    write_packed(file, "weir-recording", recording);
  return WEIR_OK;
}

#else

static weir_status write_whatif(const weir__view_data *recording, FILE *file) {
  (void)file, (void)recording;
  return WEIR_OK;
}

#endif

static weir_status end(FILE *file, weir_status status) {
  if (status || !ferror(file))
    return status;
  return weir__fail(WEIR_ERROR_SYSTEM, "the page was not written whole: %s", strerror(errno));
}

weir_status weir_cli_page_write(const weir_cli_page *page, const weir__view_data *data,
                                const weir__view_data *recording, FILE *file) {
  const char *body = find_last(page, "</body>");
  fwrite(page->text, 1, (size_t)(body - page->text), file);
  write_index(file, "weir-index", data->index, data->index_size);
  for (size_t i = 0; i < data->count && !ferror(file); i++)
    write_chunk(file, data, &data->table[i]);
  weir_status status = write_whatif(recording, file);
  fwrite(body, 1, page->size - (size_t)(body - page->text), file);
  return end(file, status);
}

weir_status weir_cli_page_write_remote(const weir_cli_page *page, const char *address, const weir__view_data *recording,
                                       FILE *file) {
  const char *head = strstr(page->text, "</head>"), *body = find_last(page, "</body>");
  fwrite(page->text, 1, (size_t)(head - page->text), file);
  fprintf(file, "<meta name=\"weir-data\" content=\"%s\">\n", address);
  fwrite(head, 1, (size_t)(body - head), file);
  weir_status status = write_whatif(recording, file);
  fwrite(body, 1, page->size - (size_t)(body - page->text), file);
  return end(file, status);
}

weir_status weir_cli_page_write_ranks(const weir_cli_page *page, const char *json, size_t size,
                                      const unsigned char *map, size_t map_size, FILE *file) {
  const char *body = find_last(page, "</body>");
  fwrite(page->text, 1, (size_t)(body - page->text), file);
  write_index(file, "weir-ranks", json, size);
  fputs("<script type=\"text/plain\" id=\"weir-ranks-map\">", file);
  write_base64(file, map, map_size);
  fputs("</script>\n", file);
  fwrite(body, 1, page->size - (size_t)(body - page->text), file);
  return end(file, WEIR_OK);
}
