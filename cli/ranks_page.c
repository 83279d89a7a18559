#include "ranks_page.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/render/output_file.h"
#include "offline/render/ranks_report.h"
#include "view_page.h"

/* The map: a row for each digest, a column for each group of `steps` steps. A byte is the peak of allocated memory, as
 * a part of `most`; 0 if the rank has no such steps. */
typedef struct map {
  size_t columns;
  uint64_t steps, most;
  unsigned char *bytes;
} map;

static size_t columns_of(const weir__digest *d, uint64_t steps) {
  uint64_t each = d->steps.width ? steps / d->steps.width : 0;
  return each ? (size_t)((d->steps.peak.count + each - 1) / each) : 0;
}

static bool make_map(const weir__ranks *r, map *made) {
  map m = {.steps = 1, .most = 1};
  for (size_t i = 0; i < r->count; i++) {
    const weir__digest *d = &r->digests[i];
    m.steps = d->steps.width > m.steps ? d->steps.width : m.steps;
    m.most = d->memory.peak_allocated > m.most ? d->memory.peak_allocated : m.most;
  }
  for (size_t i = 0; i < r->count; i++) {
    size_t columns = columns_of(&r->digests[i], m.steps);
    m.columns = columns > m.columns ? columns : m.columns;
  }
  m.bytes = calloc(r->count * m.columns + 1, 1);
  if (!m.bytes)
    return false;
  for (size_t i = 0; i < r->count; i++) {
    const weir__digest *d = &r->digests[i];
    uint64_t each = d->steps.width ? m.steps / d->steps.width : 1;
    for (size_t g = 0; g < d->steps.peak.count; g++) {
      unsigned char *to = &m.bytes[i * m.columns + (size_t)(g / each)];
      double part = (double)weir__digest_number(&d->steps.peak, g) / (double)m.most;
      unsigned char value = (unsigned char)(1 + 254 * (part < 1 ? part : 1));
      *to = value > *to ? value : *to;
    }
  }
  *made = m;
  return true;
}

static void write_map(weir__sink *sink, const weir__ranks *r, const map *m) {
  WEIR__JSON(sink, JSON_OBJECT("map"), JSON_NATURAL("columns", m->columns), JSON_NATURAL("steps", m->steps),
             JSON_NATURAL("most", m->most), JSON_LIST("rows"));
  for (size_t i = 0; i < r->count; i++) {
    const weir__digest *d = &r->digests[i];
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_INTEGER("rank", d->rank), JSON_NATURAL("class", r->class_of[i]),
               JSON_TEXT("host", weir__digest_text(d, d->host)), JSON_TEXT("file", weir__digest_text(d, d->file)),
               JSON_NATURAL("allocated", d->memory.peak_allocated), JSON_NATURAL("reserved", d->memory.peak_reserved),
               JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
}

static weir_status write_page(const weir_cli_page *page, const weir__ranks *r, const weir__report *report, const map *m,
                              FILE *file) {
  char *json = NULL;
  size_t size = 0;
  FILE *memory = open_memstream(&json, &size);
  if (!memory)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the page");
  weir__sink sink;
  weir__sink_begin(&sink, &weir__json_format, weir_write_file, memory);
  weir__write_open_dict(&sink);
  weir__report_json_members(report, &sink);
  write_map(&sink, r, m);
  weir__write_close(&sink);
  weir__sink_end(&sink, NULL);
  bool ok = !ferror(memory) && !sink.error && !weir__report_status(report);
  ok = fclose(memory) == 0 && ok;
  weir_status status = ok ? weir_cli_page_write_ranks(page, json, size, m->bytes, r->count * m->columns, file)
                          : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the page");
  free(json);
  return status;
}

int weir_cli_ranks_page(const weir__ranks *r, const weir__report *report, const char *path) {
  weir_cli_page page = {0};
  weir__output_file output;
  map m = {0};
  weir_status status = weir_cli_page_open(NULL, &page);
  if (!status && !make_map(r, &m))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the page");
  if (!status && !(status = weir__output_file_begin(&output, path, WEIR__OUTFILE_WRITE))) {
    status = weir__output_file_open(&output);
    if (!status)
      status = write_page(&page, r, report, &m, output.file);
    if (!status)
      status = weir__output_file_close(&output);
    if (!status)
      status = weir__output_file_keep(&output);
    weir__output_file_end(&output);
  }
  free(m.bytes);
  weir_cli_page_close(&page);
  return status ? weir_cli_fail("%s", weir_last_error()) : WEIR_EXIT_OK;
}
