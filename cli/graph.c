#include "graph.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "cli.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/levels.h"

enum { ROWS = 12, LABEL = 12, INDENT = 4 };

/* The most of a column; columns without entries have what was there before. */
typedef struct column {
  int64_t used, reserved;
  bool is_oom;
} column;

typedef struct glyphs {
  const char *parts[9]; /* of a cell that is in use, from nothing to all */
  const char *reserved, *peak, *oom, *axis, *corner, *line;
} glyphs;

static const glyphs unicode = {{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, "░", "▼", "✗", "┤", "└", "─"};
static const glyphs ascii = {{" ", "_", "_", "_", "_", "#", "#", "#", "#"}, ".", "v", "X", "|", "+", "-"};

static bool is_utf8(void) {
  locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
  bool is_utf8 = locale && strcasecmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
  if (locale)
    freelocale(locale);
  return is_utf8;
}

static size_t column_of(const weir__recording_device *d, const weir__summary *s, size_t entry, size_t count) {
  double x = (double)entry / (double)d->event_count;
  int64_t time = d->events[entry].time_us;
  if (s->first_us && s->last_us > s->first_us)
    x = time > s->first_us ? (double)(time - s->first_us) / (double)(s->last_us - s->first_us) : 0;
  size_t column = (size_t)(x * (double)count);
  return column < count ? column : count - 1;
}

static void fill(const weir__recording_device *d, const weir__summary *s, column *columns, size_t count) {
  weir__levels levels = {(int64_t)s->live_before, (int64_t)s->reserved_before};
  size_t at = 0;
  columns[0] = (column){levels.allocated, levels.reserved, false};
  for (size_t i = 0; i < d->event_count; i++) {
    for (size_t to = column_of(d, s, i, count); at < to;)
      columns[++at] = (column){levels.allocated, levels.reserved, false};
    weir__levels_move(&levels, &d->events[i]);
    column *c = &columns[at];
    c->used = levels.allocated > c->used ? levels.allocated : c->used;
    c->reserved = levels.reserved > c->reserved ? levels.reserved : c->reserved;
    c->is_oom |= d->events[i].action == WEIR_TRACE_OOM;
  }
  while (at + 1 < count)
    columns[++at] = (column){levels.allocated, levels.reserved, false};
}

static void indent(int columns) { printf("%*s", INDENT + columns, ""); }

/* The marks above, with a text beside each kind. */
static void print_marks(const glyphs *g, const column *columns, size_t count, size_t peak, const weir__summary *s) {
  char text[2][64], bytes[32];
  snprintf(text[0], sizeof text[0], "peak %s", weir__format_bytes(s->live.bytes, bytes));
  snprintf(text[1], sizeof text[1], "out of memory%s", s->actions[WEIR_TRACE_OOM] > 1 ? ", first" : "");
  for (int line = 0; line < 2; line++) {
    size_t first = line ? count : peak;
    for (size_t i = count; line && i-- > 0;)
      first = columns[i].is_oom ? i : first;
    if (first == count)
      continue;
    size_t length = strlen(text[line]);
    bool is_left = first + 2 + length > count && first > length; /* of the mark */
    size_t i = 0;
    weir_cli_keep_line();
    indent(LABEL);
    for (; is_left && i + length + 1 < first; i++)
      putchar(' ');
    if (is_left) {
      printf("%s ", text[line]);
      i += length + 1;
    }
    for (; i < count; i++) {
      bool is_mark = line ? columns[i].is_oom : i == peak;
      fputs(is_mark ? line ? g->oom : g->peak : " ", stdout);
      if (is_mark && i == first && !is_left) {
        printf(" %s", text[line]);
        i += length + 1;
      }
      if (i >= first && !line)
        break;
    }
    putchar('\n');
  }
}

static void print_row(const glyphs *g, const column *columns, size_t count, int row, double most) {
  char bytes[32];
  double low = most * row / ROWS, high = most * (row + 1) / ROWS;
  weir_cli_keep_line();
  indent(0);
  if (row == ROWS - 1 || row == ROWS / 2 - 1 || row == 0)
    printf("%*s %s", LABEL - 2, row ? weir__format_bytes((uint64_t)high, bytes) : "0 bytes", g->axis);
  else
    printf("%*s %s", LABEL - 2, "", g->axis);
  for (size_t i = 0; i < count; i++) {
    double used = (double)columns[i].used;
    int part = used >= high ? 8 : used > low ? (int)((used - low) / (high - low) * 8 + 0.5) : 0;
    bool is_reserved = (double)columns[i].reserved > low + (high - low) / 4;
    fputs(part ? g->parts[part] : is_reserved ? g->reserved : " ", stdout);
  }
  putchar('\n');
}

static void print_axis(const glyphs *g, const weir__recording_device *d, const weir__summary *s, size_t count) {
  char text[64], span[32];
  weir_cli_keep_line();
  indent(LABEL - 1);
  fputs(g->corner, stdout);
  for (size_t i = 0; i < count; i++)
    fputs(g->line, stdout);
  if (s->first_us && s->last_us > s->first_us)
    snprintf(text, sizeof text, "%s", weir__describe_span(s->last_us - s->first_us, span));
  else
    snprintf(text, sizeof text, "%s", weir_cli_count(d->event_count, "entry"));
  putchar('\n');
  weir_cli_keep_line();
  indent(LABEL);
  printf("%-*s%s\n", (int)(count > strlen(text) ? count - strlen(text) : 1), "0", text);
  weir_cli_keep_line();
  indent(LABEL);
  printf("%s in use   %s reserved\n", g->parts[8], g->reserved);
}

weir_status weir_cli_print_graph(const weir__recording *recording, int device, const weir__summary *summary) {
  const weir__recording_device *d = &recording->devices[device];
  const glyphs *g = is_utf8() ? &unicode : &ascii;
  int width = weir_cli_width() > 200 ? 200 : weir_cli_width();
  size_t count = (size_t)(width - LABEL - INDENT - 1);
  column *columns = calloc(count, sizeof *columns);
  if (!columns)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  fill(d, summary, columns, count);
  double most = 1;
  for (size_t i = 0; i < count; i++) {
    most = (double)columns[i].used > most ? (double)columns[i].used : most;
    most = (double)columns[i].reserved > most ? (double)columns[i].reserved : most;
  }
  print_marks(g, columns, count, column_of(d, summary, summary->live.event, count), summary);
  for (int row = ROWS - 1; row >= 0; row--)
    print_row(g, columns, count, row, most);
  print_axis(g, d, summary, count);
  free(columns);
  return WEIR_OK;
}
