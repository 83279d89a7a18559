#include "offline/render/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/text.h"
#include "offline/analyse/describe.h"

static bool is_container(const weir__report_row *row) {
  return row->item.kind == WEIR__JSON_OBJECT || row->item.kind == WEIR__JSON_LIST;
}

void weir__report_begin(weir__report *r) {
  *r = (weir__report){0};
  WEIR__ROWS(r, JSON_OBJECT(NULL));
}

void weir__report_clear(weir__report *r) {
  free(r->rows);
  free(r->sentences);
  free(r->texts);
  *r = (weir__report){0};
}

weir_status weir__report_status(const weir__report *r) {
  return r->has_failed ? weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory") : WEIR_OK;
}

/* Where the copy of a text begins. */
static size_t keep_text(weir__report *r, const char *text, size_t length) {
  const size_t at = r->text_used;
  if (WEIR__RESERVE(r->texts, r->text_room, at + length + 1)) {
    memcpy(r->texts + at, text, length);
    r->texts[at + length] = 0;
    r->text_used += length + 1;
  } else
    r->has_failed = true;
  return at;
}

static void add(weir__report *r, const weir__json_item *item) {
  if (r->has_failed || !WEIR__RESERVE(r->rows, r->room, r->count + 1)) {
    r->has_failed = true;
    return;
  }
  if (item->kind == WEIR__JSON_CLOSE) {
    r->rows[r->open].end = r->count;
    r->open = r->rows[r->open].parent;
    return;
  }
  weir__report_row *row = &r->rows[r->count];
  *row = (weir__report_row){*item, r->open, r->count + 1};
  if (item->kind == WEIR__JSON_TEXT && item->text)
    row->item.natural = keep_text(r, item->text, strlen(item->text));
  else if (item->kind == WEIR__JSON_TEXT)
    row->item.kind = WEIR__JSON_NULL;
  if (is_container(row)) {
    row->end = SIZE_MAX;
    r->open = r->count;
  }
  r->count++;
}

void weir__report_add(weir__report *r, const weir__json_item *items, size_t count) {
  for (size_t i = 0; i < count; i++)
    add(r, &items[i]);
}

void weir__report_add_part(weir__report *r, const char *key, const char *text, size_t length) {
  const size_t at = keep_text(r, text, length);
  WEIR__ROWS(r, JSON_TEXT(key, ""));
  if (!r->has_failed)
    r->rows[r->count - 1].item.natural = at;
}

void weir__say_of(weir__report *r, const char *key, const char *format) {
  if (r->is_silent)
    return;
  if (r->has_failed || !WEIR__RESERVE(r->sentences, r->sentence_room, r->sentence_count + 1))
    r->has_failed = true;
  else
    r->sentences[r->sentence_count++] = (weir__sentence){format, key, r->scope ? r->scope : r->open};
}

void weir__say(weir__report *r, const char *format) { weir__say_of(r, "", format); }

void weir__say_command(weir__report *r, const char *command, const char *options, const char *file) {
  WEIR__ROWS(r, JSON_LIST("_command"), JSON_TEXT(NULL, command), JSON_TEXT(NULL, options), JSON_TEXT(NULL, file));
  const size_t scope = r->scope;
  r->scope = r->open;
  weir__say(r, NULL);
  r->scope = scope;
  WEIR__ROWS(r, JSON_CLOSE);
}

/* ---- JSON ---- */

/* Returns the row after it. */
static size_t write_row(const weir__report *r, size_t at, weir__sink *sink) {
  weir__json_item item = r->rows[at].item;
  size_t end = r->rows[at].end < r->count ? r->rows[at].end : r->count;
  if (item.key && *item.key == '_')
    return end;
  if (item.kind == WEIR__JSON_TEXT)
    item.text = r->texts + item.natural;
  weir__json_write(sink, &item, 1);
  if (is_container(&r->rows[at])) {
    for (at++; at < end;)
      at = write_row(r, at, sink);
    WEIR__JSON(sink, JSON_CLOSE);
  }
  return end;
}

void weir__report_json_members(const weir__report *r, weir__sink *sink) {
  for (size_t at = 1; at < r->count;)
    at = write_row(r, at, sink);
}

void weir__report_json(const weir__report *r, weir__sink *sink, const char *key) {
  WEIR__JSON(sink, JSON_OBJECT(key));
  weir__report_json_members(r, sink);
  WEIR__JSON(sink, JSON_CLOSE);
}

/* ---- Text ---- */

/* The row of an object with that key; 0 if it has none. */
static size_t find_in(const weir__report *r, size_t object, const char *key, size_t length) {
  for (size_t at = object + 1; at < r->count && at < r->rows[object].end; at = r->rows[at].end) {
    const char *name = r->rows[at].item.key;
    if (name && strncmp(name, key, length) == 0 && !name[length])
      return at;
  }
  return 0;
}

/* The row of a path such as "limit.bytes", which ends before one of the characters that follow a path in braces; 0 if
 * there is none. */
static size_t find(const weir__report *r, const weir__sentence *sentence, const char **path) {
  size_t at = 0, in = sentence->in;
  for (;; ++*path) {
    size_t length = strcspn(*path, ".~&=: }");
    const char *key = **path == '$' ? sentence->key : *path;
    size_t key_length = **path == '$' ? strlen(key) : length;
    size_t found = find_in(r, at ? at : in, key, key_length);
    while (!at && !found && in) {
      in = r->rows[in].parent;
      found = find_in(r, in, key, key_length);
    }
    at = found;
    *path += length;
    if (**path != '.' || !at)
      return at;
  }
}

typedef struct value_form {
  const char *noun; /* NULL if there is none; ends before a brace */
  bool is_middle;   /* of "least" and "most" */
  bool has_sign;
  int width;    /* below 0: to the left */
  int decimals; /* below 0 if not given */
} value_form;

typedef struct value_text {
  char number[WEIR__ROW_TEXT];
  char *escaped; /* free() it */
} value_text;

static const char *natural_text(uint64_t value, weir__unit unit, const value_form *form, value_text *to) {
  char noun[WEIR__ROW_TEXT];
  if (unit == WEIR__UNIT_BYTES)
    return weir__format_bytes(value, to->number);
  if (form->noun) {
    snprintf(noun, sizeof noun, "%.*s", (int)strcspn(form->noun, "}"), form->noun);
    return weir__count_text(value, noun, to->number);
  }
  if (unit == WEIR__UNIT_THOUSANDTHS) {
    snprintf(to->number, sizeof to->number, "%.*f", form->decimals < 0 ? 1 : form->decimals, (double)value / 1000);
    return to->number;
  }
  snprintf(to->number, sizeof to->number, unit == WEIR__UNIT_ADDRESS ? "0x%llx" : "%llu", (unsigned long long)value);
  return to->number;
}

static const char *real_text(double value, weir__unit unit, const value_form *form, value_text *to) {
  if (unit == WEIR__UNIT_BYTES) {
    char bytes[32];
    const char *sign = !form->has_sign ? "" : value >= 0.5 ? "+" : value <= -0.5 ? "-" : "";
    const double size = *sign == '-' ? -value : value;
    snprintf(to->number, sizeof to->number, "%s%s", sign,
             weir__format_bytes((uint64_t)(size > 0 ? size + 0.5 : 0), bytes));
    return to->number;
  }
  if (unit == WEIR__UNIT_NS)
    return weir__unit_text(unit, value, to->number);
  if (unit == WEIR__UNIT_SECONDS)
    return weir__describe_span((int64_t)(value * 1e6 < 9e18 ? value * 1e6 + 0.5 : 9e18), to->number);
  if (unit == WEIR__UNIT_SHARE)
    snprintf(to->number, sizeof to->number, "%.*f %%", form->decimals < 0 ? 1 : form->decimals, 100 * value);
  else if (form->decimals < 0)
    snprintf(to->number, sizeof to->number, "%g", value);
  else
    snprintf(to->number, sizeof to->number, form->has_sign ? "%+.*f" : "%.*f", form->decimals, value);
  return to->number;
}

/* Two ends that both are bytes: a range, unless they read alike. */
static const char *figure_text(const weir__report *r, size_t object, const value_form *form, value_text *to) {
  uint64_t least = r->rows[find_in(r, object, "least", 5)].item.natural;
  uint64_t most = r->rows[find_in(r, object, "most", 4)].item.natural;
  char low[WEIR__ROW_TEXT], high[WEIR__ROW_TEXT];
  if (form->is_middle)
    return weir__format_bytes(least + (most - least) / 2, to->number);
  weir__format_bytes(least, low);
  weir__format_bytes(most, high);
  return weir__range_text(least <= 1 && strcmp(low, high) != 0 ? "up" : low, " to ", high, to->number);
}

static const char *text_of(const char *text, weir__unit unit, value_text *to) {
  const size_t length = strlen(text), size = 6 * length + 1;
  if (unit == WEIR__UNIT_FILE && strcmp(text, "-") == 0)
    return "standard input";
  if (unit == WEIR__UNIT_PLAIN)
    return text;
  to->escaped = malloc(size);
  if (!to->escaped)
    return "(out of host memory)";
  weir__escape_text(text, length, to->escaped, size);
  return to->escaped;
}

static const char *text_of_row(const weir__report *r, size_t at, const value_form *form, value_text *to) {
  const weir__json_item *item = &r->rows[at].item;
  const weir__unit unit = (weir__unit)item->unit;
  switch (item->kind) {
  case WEIR__JSON_NATURAL:
    return natural_text(item->natural, unit, form, to);
  case WEIR__JSON_INTEGER:
    if (unit == WEIR__UNIT_US)
      return weir__describe_span(item->integer, to->number);
    snprintf(to->number, sizeof to->number, "%lld", (long long)item->integer);
    return to->number;
  case WEIR__JSON_REAL:
    return real_text(item->real, unit, form, to);
  case WEIR__JSON_TEXT:
    return text_of(r->texts + item->natural, unit, to);
  case WEIR__JSON_OBJECT:
    return figure_text(r, at, form, to);
  default:
    return "not known";
  }
}

/* The columns that the texts at a place need in all lists with a key. */
static int column_width(const weir__report *r, const char *key, size_t place) {
  size_t width = 0;
  for (size_t at = 1; at < r->count; at++) {
    const weir__report_row *list = &r->rows[at];
    const size_t cell = at + 1 + place;
    if (list->item.kind != WEIR__JSON_LIST || !list->item.key || strcmp(list->item.key, key) != 0 || cell >= list->end)
      continue;
    size_t length = strlen(r->texts + r->rows[cell].item.natural);
    width = length > width ? length : width;
  }
  return (int)width;
}

static void write_cells(const weir__report *r, size_t list, FILE *out) {
  for (size_t at = list + 1; at < r->rows[list].end; at++)
    fprintf(out, "%*s ", column_width(r, r->rows[list].item.key, at - list - 1), r->texts + r->rows[at].item.natural);
}

static double number_of(const weir__json_item *item) {
  return item->kind == WEIR__JSON_NATURAL   ? (double)item->natural
         : item->kind == WEIR__JSON_INTEGER ? (double)item->integer
         : item->kind == WEIR__JSON_REAL    ? item->real
                                            : 0;
}

/* Writes what is in braces, from the character after the first brace. Returns the character after the last. *is_found
 * becomes false if the report does not have a row. */
static const char *write_value(const weir__report *r, const weir__sentence *sentence, const char *at, FILE *out,
                               bool *is_found) {
  value_form form = {.decimals = -1};
  value_text one = {.escaped = NULL}, two = {.escaped = NULL};
  const char *begin = at, *end = strchr(at, '}');
  char range[WEIR__ROW_TEXT], joined = 0;
  size_t other = 0, row = find(r, sentence, &at);
  if (*at == '~' || *at == '&') {
    joined = *at++;
    other = find(r, sentence, &at);
  }
  form.is_middle = *at == '=';
  at += form.is_middle;
  if (*at == ':') {
    form.has_sign = at[1] == '+';
    form.width = (int)strtol(at + 1 + form.has_sign, (char **)&at, 10);
    if (*at == '.')
      form.decimals = (int)strtol(at + 1, (char **)&at, 10);
  }
  form.noun = *at == ' ' ? at + 1 : NULL;
  if (!row || (joined && !other)) {
    fprintf(out, "{%.*s}", (int)(end - begin), begin);
    *is_found = false;
    return end + 1;
  }
  if (r->rows[row].item.kind == WEIR__JSON_LIST) {
    write_cells(r, row, out);
    return end + 1;
  }
  if (joined == '~' && number_of(&r->rows[other].item) < number_of(&r->rows[row].item)) {
    const size_t least = other;
    other = row;
    row = least;
  }
  const char *text = text_of_row(r, row, &form, &one);
  if (joined) {
    const char *most = text_of_row(r, other, &form, &two);
    fputs(joined == '&' && strcmp(text, most) != 0 ? "between " : "", out);
    text = weir__range_text(text, joined == '&' ? " and " : " to ", most, range);
  }
  fprintf(out, "%*s", form.width, text);
  free(one.escaped);
  free(two.escaped);
  return end + 1;
}

static bool write_sentence(const weir__report *r, const weir__sentence *sentence, FILE *out,
                           const weir__report_style *style) {
  bool is_bold = false, is_found = true;
  for (const char *at = sentence->format; *at;) {
    bool is_doubled = (*at == '*' || *at == '{') && at[1] == *at;
    if (*at == '{' && !is_doubled) {
      at = write_value(r, sentence, at + 1, out, &is_found);
      continue;
    }
    if (*at == '*' && !is_doubled) {
      is_bold = !is_bold;
      fputs(is_bold ? style->bold : style->plain, out);
    } else if (*at == *WEIR__KEEP_LINE)
      fputs(style->keep_line, out);
    else
      putc(*at, out);
    at += 1 + is_doubled;
  }
  return is_found;
}

bool weir__report_text(const weir__report *r, FILE *out, const weir__report_style *style) {
  bool is_found = true;
  for (size_t i = 0; i < r->sentence_count; i++) {
    const weir__sentence *sentence = &r->sentences[i];
    const weir__report_row *words = r->rows + sentence->in + 1; /* of a command */
    if (sentence->format)
      is_found &= write_sentence(r, sentence, out, style);
    else
      style->command(r->texts + words[0].item.natural, r->texts + words[1].item.natural,
                     r->texts + words[2].item.natural);
  }
  return is_found;
}

/* ---- Parts that several reports have ---- */

void weir__steps_rows(weir__report *r, const weir__steps *steps) {
  WEIR__ROWS(r, JSON_OBJECT("steps"), JSON_TEXT("source", weir__steps_source_name(steps->source)),
             JSON_TEXT("name", *steps->name ? steps->name : NULL),
             ROW_REAL(true, "confidence", steps->confidence, 3, WEIR__UNIT_SHARE), JSON_NATURAL("count", steps->count),
             JSON_NATURAL("warm_up", steps->warm_up), JSON_LIST("boundaries"));
  for (size_t i = 0; steps->count && i <= steps->count && steps->count <= WEIR__STEPS_LISTED; i++)
    WEIR__ROWS(r, JSON_NATURAL(NULL, steps->begin[i]));
  WEIR__ROWS(r, JSON_CLOSE, JSON_CLOSE);
}

void weir__steps_say(weir__report *r, const weir__steps *steps) {
  static const char *const sentences[] = {
      [WEIR__STEPS_NONE] = "none found",
      [WEIR__STEPS_WINDOWS] = "none found; the history is divided into {steps.count} windows",
      [WEIR__STEPS_INFERRED] = "{steps.count}, inferred from the history, confidence {steps.confidence:.0}",
      [WEIR__STEPS_PHASES] = "{steps.count}, from phase '{steps.name}'",
      [WEIR__STEPS_ANNOTATIONS] = "{steps.count}, from annotation '{steps.name}'"};
  weir__say(r, sentences[steps->source]);
}

void weir__outside_rows(weir__report *r, const weir__recording_device *device) {
  if (device->peak_outside)
    WEIR__ROWS(r, JSON_OBJECT("outside"), ROW_BYTES("end", device->outside), ROW_BYTES("peak", device->peak_outside),
               JSON_CLOSE);
}

void weir__outside_say(weir__report *r, const char *label, const weir__recording_device *device) {
  if (!device->peak_outside)
    return;
  weir__say(r, label);
  weir__say(r,
            "{outside.end} at the end of the recording and {outside.peak} at most are in no figure here: the program "
            "created them itself (cuMemCreate)\n");
}

void weir__holder_say(weir__report *r, const char *indent, const weir__holder *holder, const char *stack) {
  weir__say(r, indent);
  weir__say(r, "{bytes:11}  {count block} ");
  weir__say_of(r, stack, holder->size ? "of {size}\n" : holder->stack ? "{$}\n" : "without a stack\n");
}

const char weir__record_advice[] =
    "record a history: call torch.cuda.memory._record_memory_history(stacks=\"python\") before the work and "
    "_dump_snapshot(\"job.pickle\") after it; for a program on Weir, set WEIR_RECORD=FOLDER\n";

const char *weir__stacks_option(const weir__recording *recording) {
  return recording->is_events_only ? "WEIR_RECORD_STACKS=alloc" : "_record_memory_history(stacks=\"python\")";
}
