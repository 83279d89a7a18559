#include "format.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/text.h"
#include "offline/render/report.h"

enum { DEFAULT_WIDTH = 120, MIN_WIDTH = 40, MAX_WIDTH = 10000 };

int weir_cli_width(void) {
  struct winsize size;
  long width = DEFAULT_WIDTH;
  int64_t columns = 0;
  if (weir__env_integer(WEIR__ENV_COLUMNS, &columns) && columns)
    return columns < MIN_WIDTH ? MIN_WIDTH : columns > MAX_WIDTH ? MAX_WIDTH : (int)columns;
  if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    width = size.ws_col;
  return width < MIN_WIDTH ? MIN_WIDTH : (int)width;
}

enum { ESCAPED_COPIES = 8, LONGEST_ESCAPE = 6 };

const char *weir_cli_escaped_part(const char *text, size_t length) {
  static char *copies[ESCAPED_COPIES];
  static unsigned next;
  char **copy = &copies[next++ % ESCAPED_COPIES];
  size_t size = LONGEST_ESCAPE * length + 1;
  char *room = realloc(*copy, size);
  if (!room)
    return "(out of host memory)";
  *copy = room;
  weir__escape_text(text, length, room, size);
  return room;
}

const char *weir_cli_escaped(const char *text) { return weir_cli_escaped_part(text, strlen(text)); }

const char *weir_cli_input_name(const char *path) {
  return strcmp(path, "-") == 0 ? "standard input" : weir_cli_escaped(path);
}

/* ---- Numbers ---- */

enum { NUMBERS = 16, NUMBER_TEXT = WEIR__ROW_TEXT };

static char *number_text(void) {
  static char texts[NUMBERS][NUMBER_TEXT];
  static unsigned next;
  return texts[next++ % NUMBERS];
}

const char *weir_cli_bytes(uint64_t bytes) { return weir__format_bytes(bytes, number_text()); }

const char *weir_cli_ns(double ns) { return weir__unit_text(WEIR__UNIT_NS, ns, number_text()); }

const char *weir_cli_range(const char *least, const char *to, const char *most) {
  return weir__range_text(least, to, most, number_text());
}

const char *weir_cli_count(uint64_t count, const char *noun) { return weir__count_text(count, noun, number_text()); }

/* Output that goes to a text. */
static struct capture {
  FILE *out; /* the real standard output; NULL while nothing is captured */
  char *text;
  size_t size;
} capture;

static bool wants_bold(void) {
  const char *term = weir__env_text(WEIR__ENV_TERMINAL);
  return !capture.out && isatty(STDOUT_FILENO) && !weir__env_value(WEIR__ENV_NO_COLOR) && term &&
         strcmp(term, "dumb") != 0;
}

const char *weir_cli_bold(void) { return wants_bold() ? "\033[1m" : ""; }
const char *weir_cli_plain(void) { return wants_bold() ? "\033[0m" : ""; }

/* ---- Folding ---- */

typedef struct line {
  char *text; /* without its newline */
  size_t length, room;
} line;

static struct fold {
  FILE *out; /* the real standard output; NULL while output is not folded */
  int width;
  line line; /* the one being written */
} fold;

static bool append(line *l, const char *text, size_t length) {
  if (l->length + length + 1 > l->room) {
    size_t room = 2 * (l->length + length + 1);
    char *grown = realloc(l->text, room);
    if (!grown)
      return false;
    l->text = grown;
    l->room = room;
  }
  memcpy(l->text + l->length, text, length);
  l->length += length;
  l->text[l->length] = '\0';
  return true;
}

/* The bytes of one character, and its columns: 0 for an escape sequence such as that for bold. */
static size_t character(const char *text, const char *end, int *columns) {
  size_t length = 1;
  *columns = 1;
  if (*text == '\033' && text + 1 < end && text[1] == '[') {
    *columns = 0;
    for (length = 2; text + length < end && !isalpha((unsigned char)text[length]);)
      length++;
    return text + length < end ? length + 1 : length;
  }
  while (text + length < end && ((unsigned char)text[length] & 0xc0) == 0x80)
    length++;
  return length;
}

static int columns_of(const char *text, const char *end) {
  int columns = 0, one;
  while (text < end) {
    text += character(text, end, &one);
    columns += one;
  }
  return columns;
}

static const char *at_column(const char *text, const char *end, int column) {
  for (int one; text < end && (column > 0 || *text == '\033'); column -= one)
    text += character(text, end, &one);
  return text;
}

static int indent_of(const line *l) { return (int)strspn(l->text, " "); }

/* Two or more blanks separate the columns of a line: a label and its text, or the cells of a table. */
typedef struct columns {
  int count; /* of separators */
  int text;  /* where the text after the label begins; the indentation if there is no label */
  int last;  /* where the last column begins */
} columns;

/* The text after a label begins at column `most` or before. */
static columns find_columns(const line *l, int most) {
  int at = indent_of(l), one;
  columns found = {.text = at, .last = at};
  const char *end = l->text + l->length;
  for (const char *c = l->text + at; c < end; c += character(c, end, &one), at += one) {
    character(c, end, &one);
    if (c - l->text < found.text + 3 || c[-1] != ' ' || c[-2] != ' ' || *c == ' ')
      continue;
    found.count++;
    found.last = at;
    if (at <= most)
      found.text = at;
  }
  return found;
}

/* Whether `blank` separates a number from its unit. */
static bool is_before_unit(const char *text, const char *blank, const char *end) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "us", "ms", "s", "%"};
  if (blank == text || !isdigit((unsigned char)blank[-1]))
    return false;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    const char *after = blank + 1 + strlen(units[i]);
    if (after <= end && memcmp(blank + 1, units[i], strlen(units[i])) == 0 &&
        (after == end || !isalnum((unsigned char)*after)))
      return true;
  }
  return false;
}

/* Where to break the text so that it is at most `columns` wide: before a blank, or after a comma if one word is too
 * wide. NULL if it cannot be broken. */
static const char *break_before(const char *text, const char *end, int columns) {
  const char *blank = NULL, *comma = NULL;
  int at = 0, one;
  for (const char *c = text; c < end; c += character(c, end, &one)) {
    if (*c == ' ' && c > text && !is_before_unit(text, c, end))
      blank = c;
    character(c, end, &one);
    at += one;
    if (at > columns)
      return blank ? blank : comma;
    if (*c == ',' && c + 1 < end)
      comma = c + 1;
  }
  return end;
}

/* Writes the text from `at` to `end`. It begins in column `indent` and continues in column `hang`. */
static void write_folded(const char *at, const char *end, int indent, int hang) {
  bool is_first = true;
  while (columns_of(at, end) > fold.width - indent) {
    /* Never break between a label and its text. */
    const char *text = is_first && hang > indent ? at_column(at, end, hang - indent) : at;
    const char *stop = break_before(text, end, fold.width - (text > at ? hang : indent));
    if (!stop)
      stop = text + strcspn(text, " ");
    if (stop >= end)
      break;
    const char *last = stop;
    while (last > at && last[-1] == ' ')
      last--;
    fprintf(fold.out, "%*s%.*s\n", indent, "", (int)(last - at), at);
    at = stop + strspn(stop, " ");
    indent = hang;
    is_first = false;
  }
  while (end > at && end[-1] == ' ')
    end--;
  fprintf(fold.out, "%*s%.*s\n", at < end ? indent : 0, "", (int)(end - at), at);
}

static void write_line(const line *l) {
  const char *at = l->text, *end = l->text + l->length;
  if (memchr(at, *WEIR__KEEP_LINE, l->length)) {
    for (; at < end; at++)
      if (*at != *WEIR__KEEP_LINE)
        putc(*at, fold.out);
    putc('\n', fold.out);
    return;
  }
  enum { TABLE_COLUMNS = 3, TABLE_INDENT = 6, TABLE_ROOM = 40 };
  const columns of = find_columns(l, fold.width * 2 / 5);
  int indent = 0, hang = of.text;
  if (of.count >= TABLE_COLUMNS) {
    hang = fold.width - of.last >= TABLE_ROOM ? of.last : TABLE_INDENT;
    if (hang == TABLE_INDENT && columns_of(at, end) > fold.width) {
      const char *last = at_column(at, end, of.last);
      write_folded(at, last, 0, indent_of(l));
      at = last;
      indent = hang;
    }
  }
  write_folded(at, end, indent, hang);
}

static ssize_t fold_write(void *cookie, const char *text, size_t length) {
  (void)cookie;
  for (size_t done = 0; done < length;) {
    const char *newline = memchr(text + done, '\n', length - done);
    size_t part = newline ? (size_t)(newline - text) - done : length - done;
    if (!append(&fold.line, text + done, part))
      return 0;
    if (newline) {
      write_line(&fold.line);
      fold.line.length = 0;
    }
    done += part + (newline != NULL);
  }
  return (ssize_t)length;
}

void weir_cli_fold_begin(void) {
  if (fold.out || capture.out)
    return;
  FILE *folded = fopencookie(NULL, "w", (cookie_io_functions_t){.write = fold_write});
  if (!folded)
    return;
  if (isatty(STDOUT_FILENO))
    setvbuf(folded, NULL, _IOLBF, 0);
  fold.out = stdout;
  fold.width = weir_cli_width();
  stdout = folded; /* glibc allows it; see "Standard Streams" in its manual */
}

const char *weir_cli_keep_mark(void) { return fold.out ? WEIR__KEEP_LINE : ""; }

void weir_cli_keep_line(void) { fputs(weir_cli_keep_mark(), stdout); }

void weir_cli_fold_end(void) {
  if (!fold.out)
    return;
  FILE *folded = stdout;
  bool ok = fclose(folded) == 0;
  if (fold.line.length)
    write_line(&fold.line);
  stdout = fold.out;
  free(fold.line.text);
  fold = (struct fold){0};
  if (!ok)
    fputs("weir: out of host memory for the output\n", stderr);
}

/* ---- Capturing ---- */

bool weir_cli_capture_begin(void) {
  FILE *text = open_memstream(&capture.text, &capture.size);
  if (!text)
    return false;
  capture.out = stdout;
  stdout = text;
  return true;
}

char *weir_cli_capture_end(void) {
  char *text = fclose(stdout) ? NULL : capture.text;
  stdout = capture.out;
  if (!text)
    free(capture.text);
  capture = (struct capture){0};
  return text;
}

/* ---- Commands for the shell ---- */

static const char *program = "weir";

void weir_cli_set_program(const char *argv0) {
  if (argv0 && *argv0)
    program = argv0;
}

/* Whether a shell finds the file at `path` under `name` alone. */
static bool is_on_path(const char *name, const char *path) {
  struct stat here, there;
  const char *folders = weir__env_text(WEIR__ENV_PATH);
  if (!folders || stat(path, &here) != 0)
    return false;
  for (size_t length; *folders; folders += length + (folders[length] == ':')) {
    char candidate[4096];
    length = strcspn(folders, ":");
    int written = snprintf(candidate, sizeof candidate, "%.*s/%s", (int)length, folders, name);
    if (!length || written < 0 || (size_t)written >= sizeof candidate || access(candidate, X_OK) != 0)
      continue;
    return stat(candidate, &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino;
  }
  return false;
}

/* Writes a word quoted for a shell. Control characters are escaped. */
static void print_quoted(FILE *out, const char *word) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
  if (*word && !word[strspn(word, plain)]) {
    fputs(word, out);
    return;
  }
  bool is_escaped = strcmp(weir_cli_escaped(word), word) != 0; /* it has control characters, or is not UTF-8 */
  fputs(is_escaped ? "$'" : "'", out);
  for (const char *c = word; *c; c++) {
    if (is_escaped && (iscntrl((unsigned char)*c) || (unsigned char)*c >= 0x80))
      fprintf(out, "\\%03o", (unsigned)(unsigned char)*c);
    else if (is_escaped && (*c == '\'' || *c == '\\'))
      fprintf(out, "\\%c", *c);
    else if (*c == '\'')
      fputs("'\\''", out);
    else
      putc(*c, out);
  }
  putc('\'', out);
}

void weir_cli_print_program(FILE *out) {
  const char *slash = strrchr(program, '/');
  if (!slash || is_on_path(slash + 1, program))
    fputs(slash ? slash + 1 : program, out);
  else
    print_quoted(out, program);
}

void weir_cli_print_command(const char *command, const char *options, const char *file) {
  weir_cli_keep_line();
  weir_cli_print_program(stdout);
  printf(" %s%s%s ", command, *options ? " " : "", options);
  if (file[0] == '-' && file[1]) /* neither an option nor standard input */
    fputs("./", stdout);
  print_quoted(stdout, file);
  putchar('\n');
}
