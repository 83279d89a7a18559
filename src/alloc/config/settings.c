/*
 * The settings. One table of all keys drives parsing, checks, output and help (settings_write.c).
 */
#include "alloc/config/settings_table.h"

#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/environment.h"
#include "base/text.h"

static const char *const backends[] = {
    [WEIR__BACKEND_NATIVE] = "native", [WEIR__BACKEND_CUDA_MALLOC_ASYNC] = "cudaMallocAsync", NULL};
static const char *const guards[] = {
    [WEIR__GUARD_OFF] = "off", [WEIR__GUARD_LIGHT] = "light", [WEIR__GUARD_FULL] = "full", NULL};

const struct weir__option weir__options[OPTIONS] = {
#define OPTION(id, key, type, field, ...)                                                                              \
  [id] = {.name = key, .kind = KIND_##type, .offset = offsetof(weir__settings, field), __VA_ARGS__},
#include "alloc/config/settings_list.h"
};

static const size_t field_sizes[] = {
    [KIND_FLAG] = sizeof(bool),
    [KIND_MIB] = sizeof(uint64_t),
    [KIND_POWER] = sizeof(uint64_t),
    [KIND_NUMBER] = sizeof(uint64_t),
    [KIND_FRACTION] = sizeof(double),
    [KIND_CHOICE] = sizeof(unsigned),
    [KIND_ROUNDUP] = sizeof(((weir__settings *)0)->roundup_divisions),
    [KIND_RESERVE] = sizeof(weir__reserve),
    [KIND_CLASSES] = sizeof(((weir__settings *)0)->expandable_segments_reserve_by_class),
};

_Static_assert(sizeof(weir__backend_choice) == sizeof(unsigned) && sizeof(weir__guard_mode) == sizeof(unsigned),
               "choices are one type");

static void *field_of(const struct weir__option *option, weir__settings *settings) {
  return (char *)settings + option->offset;
}

/* ---- The table ---- */

static uint64_t mib_to_bytes(uint64_t mib) { return mib == UNLIMITED ? UNLIMITED : mib << 20; }

static void set_default(const struct weir__option *option, weir__settings *settings) {
  void *field = field_of(option, settings);
  if (option == &weir__options[MAX_NON_SPLIT_ROUNDING])
    settings->max_non_split_rounding_set = false;
  memset(field, 0, field_sizes[option->kind]);
  if (option->kind == KIND_MIB)
    *(uint64_t *)field = mib_to_bytes(option->preset.number);
  else if (option->kind < KIND_CHOICE) /* the others have no preset */
    memcpy(field, &option->preset, field_sizes[option->kind]);
}

void weir__settings_default(weir__settings *settings) {
  memset(settings, 0, sizeof *settings);
  for (size_t i = 0; i < OPTIONS; i++)
    set_default(&weir__options[i], settings);
}

bool weir__option_is_equal(const struct weir__option *option, const weir__settings *a, const weir__settings *b) {
  return memcmp(weir__option_field(option, a), weir__option_field(option, b), field_sizes[option->kind]) == 0;
}

bool weir__settings_equal(const weir__settings *a, const weir__settings *b) {
  for (size_t i = 0; i < OPTIONS; i++) {
    if (!weir__option_is_equal(&weir__options[i], a, b))
      return false;
  }
  return a->max_non_split_rounding_set == b->max_non_split_rounding_set;
}

/* ---- Numbers, independent of the locale ---- */

static double read_double(const char *text) {
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  locale_t before = uselocale(c);
  double number = strtod(text, NULL);
  uselocale(before);
  if (c != (locale_t)0)
    freelocale(c);
  return number;
}

/* ---- Parsing ---- */

/* A run of bytes that are neither blank nor , : [ ]. */
struct word {
  const char *text;
  size_t length;
};

struct parser {
  const char *source; /* name of the text in errors */
  const char *text;
  const char *at;
  const struct weir__option *option; /* whose value is being parsed; NULL at a key */
  const char *key;                   /* as spelled in the text */
  const char *values[OPTIONS];       /* where the value of each key is; NULL if the text does not have it */
  weir__settings settings;
};

/* Fails at a position of the text; with `allowed`, followed by the values that the option allows. */
static weir_status refuse(const struct parser *parser, const char *at, bool allowed, const char *format, ...)
    WEIR_PRINTF(4, 5);
#define REFUSE(parser, at, ...) refuse(parser, at, false, __VA_ARGS__)
#define REFUSE_VALUE(parser, at, ...) refuse(parser, at, true, __VA_ARGS__)

static weir_status refuse(const struct parser *parser, const char *at, bool allowed, const char *format, ...) {
  char why[1100], what[256] = "";
  struct weir__setting_text writer = {.text = what, .size = sizeof what};
  va_list args;
  va_start(args, format);
  weir__format_text(why, sizeof why, format, args);
  va_end(args);
  if (allowed)
    weir__setting_put_allowed(&writer, parser->option);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: column %zu: %s%s%s%s%s", parser->source,
                    (size_t)(at - parser->text) + 1, parser->option != NULL ? parser->key : "",
                    parser->option != NULL ? ": " : "", why, allowed ? "; allowed: " : "", what);
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_in_word(char c) { return c != '\0' && !is_blank(c) && strchr(",:[]", c) == NULL; }

/* Quotes text for a message: shortened, and with escapes for all that is not printable ASCII. */
static const char *quote(struct word word, char text[48]) {
  enum { SHOWN = 40 };
  char whole[SHOWN + 8]; /* up to the escape that is too much */
  size_t length = 0, cut = 0;
  for (size_t i = 0; i < word.length && length <= SHOWN; i++) {
    length += weir__escape_text(word.text + i, 1, whole + length, sizeof whole - length);
    if (length <= SHOWN - 3)
      cut = length;
  }
  bool is_whole = length <= SHOWN;
  snprintf(text, 48, "'%.*s%s'", (int)(is_whole ? length : cut), whole, is_whole ? "" : "...");
  return text;
}

/* Quotes what is at the parser's position: a word, a separator, or the end. */
static const char *quote_next(const struct parser *parser, char text[48]) {
  struct word next = {parser->at, 0};
  while (is_in_word(next.text[next.length]))
    next.length++;
  if (next.length == 0 && *next.text != '\0')
    next.length = 1;
  return next.length == 0 ? "the end" : quote(next, text);
}

static void skip_blanks(struct parser *parser) {
  while (is_blank(*parser->at))
    parser->at++;
}

/* Reads the word at the parser's position, which may be empty, and the blanks around it. */
static struct word read_word(struct parser *parser) {
  skip_blanks(parser);
  struct word word = {parser->at, 0};
  while (is_in_word(*parser->at))
    parser->at++;
  word.length = (size_t)(parser->at - word.text);
  skip_blanks(parser);
  return word;
}

static bool word_is(struct word word, const char *text) {
  return word.length == strlen(text) && memcmp(word.text, text, word.length) == 0;
}

static weir_status expect(struct parser *parser, char separator) {
  char text[48];
  skip_blanks(parser);
  if (*parser->at != separator)
    return REFUSE(parser, parser->at, "'%c' is missing before %s", separator, quote_next(parser, text));
  parser->at++;
  skip_blanks(parser);
  return WEIR_OK;
}

/* Numbers above 64 bits become UINT64_MAX, which no option allows. */
static bool read_whole(struct word word, uint64_t *number) {
  uint64_t n = 0;
  for (size_t i = 0; i < word.length; i++) {
    if (!is_digit(word.text[i]))
      return false;
    unsigned digit = (unsigned)(word.text[i] - '0');
    n = n > (UINT64_MAX - digit) / 10 ? UINT64_MAX : n * 10 + digit;
  }
  *number = n;
  return word.length > 0;
}

/* Digits with an optional point and exponent. Signs, hexadecimal and infinity, which strtod would accept, are errors.
 * */
static bool read_decimal(struct word word, double *number) {
  size_t at = 0, digits = 0;
  for (; at < word.length && is_digit(word.text[at]); at++)
    digits++;
  if (at < word.length && word.text[at] == '.') {
    for (at++; at < word.length && is_digit(word.text[at]); at++)
      digits++;
  }
  if (digits == 0)
    return false;
  if (at < word.length && (word.text[at] == 'e' || word.text[at] == 'E')) {
    at++;
    if (at < word.length && (word.text[at] == '+' || word.text[at] == '-'))
      at++;
    size_t exponent = at;
    while (at < word.length && is_digit(word.text[at]))
      at++;
    if (at == exponent)
      return false;
  }
  if (at != word.length)
    return false;
  *number = read_double(word.text); /* stops at the end of the word */
  return true;
}

static bool is_power_of_two(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

static uint8_t log2_of(uint64_t power) { return (uint8_t)(63 - __builtin_clzll(power)); }

/* ---- Parsing values by kind ---- */

static weir_status parse_flag(struct parser *parser, struct word word, bool *flag) {
  char text[48];
  if (!word_is(word, "True") && !word_is(word, "False"))
    return REFUSE_VALUE(parser, word.text, "%s is not a boolean", quote(word, text));
  *flag = word_is(word, "True");
  return WEIR_OK;
}

static weir_status parse_choice(struct parser *parser, struct word word, unsigned *choice) {
  char text[48];
  for (unsigned i = 0; parser->option->choices[i] != NULL; i++) {
    if (word_is(word, parser->option->choices[i])) {
      *choice = i;
      return WEIR_OK;
    }
  }
  return REFUSE_VALUE(parser, word.text, "there is no %s %s", parser->option->name, quote(word, text));
}

static weir_status parse_number(struct parser *parser, struct word word, uint64_t *number) {
  const struct weir__option *option = parser->option;
  char text[48];
  uint64_t n;
  if (!read_whole(word, &n))
    return REFUSE_VALUE(parser, word.text, "%s is not a whole number", quote(word, text));
  if (n < option->least.number || n > option->most.number)
    return REFUSE_VALUE(parser, word.text, "%s is out of range", quote(word, text));
  if (option->kind == KIND_POWER && !is_power_of_two(n))
    return REFUSE_VALUE(parser, word.text, "%s is not a power of two", quote(word, text));
  *number = option->kind == KIND_MIB ? mib_to_bytes(n) : n;
  return WEIR_OK;
}

static weir_status parse_fraction(struct parser *parser, struct word word, double *fraction) {
  const struct weir__option *option = parser->option;
  double least = option->least.fraction, most = option->most.fraction, n;
  char text[48];
  if (!read_decimal(word, &n))
    return REFUSE_VALUE(parser, word.text, "%s is not a number", quote(word, text));
  if (option->open ? n <= least || n >= most : n < least || n > most)
    return REFUSE_VALUE(parser, word.text, "%s is out of range", quote(word, text));
  *fraction = n;
  return WEIR_OK;
}

static weir_status parse_reserve(struct parser *parser, struct word word, weir__reserve *reserve) {
  bool is_size = word.length > 0 && word.text[word.length - 1] == 'G';
  char text[48];
  double n;
  if (!read_decimal((struct word){word.text, word.length - is_size}, &n))
    return REFUSE_VALUE(parser, word.text, "%s is neither a number nor GiB", quote(word, text));
  double bytes = is_size ? n * (double)(1ull << 30) : 0;
  if (is_size ? bytes < 1 || bytes >= 0x1p63 : n <= 0 || n > 0x1.fffffffffffffp1023)
    return REFUSE_VALUE(parser, word.text, "%s is out of range", quote(word, text));
  *reserve = (weir__reserve){0};
  if (is_size)
    reserve->bytes = (uint64_t)bytes;
  else
    reserve->fraction = n;
  return WEIR_OK;
}

static weir_status parse_divisions(struct parser *parser, struct word word, uint8_t *log_plus_one) {
  char text[48];
  uint64_t n;
  if (!read_whole(word, &n) || (n != 0 && !is_power_of_two(n)) || n > MAX_DIVISIONS)
    return REFUSE_VALUE(parser, word.text, "%s cannot be the number of divisions", quote(word, text));
  *log_plus_one = n == 0 ? 0 : (uint8_t)(log2_of(n) + 1);
  return WEIR_OK;
}

/* One "name:value" of a list. */
struct entry {
  struct word name, value;
};

/* Reads the next entry of a list, after its '[' or another entry. At the closing ']', which is consumed, the name is
 * empty. */
static weir_status next_entry(struct parser *parser, bool first, struct entry *entry) {
  char text[48];
  weir_status status;
  *entry = (struct entry){0};
  skip_blanks(parser);
  if (!first && *parser->at != ']' && (status = expect(parser, ',')) != WEIR_OK)
    return status;
  if (*parser->at == ']') {
    parser->at++;
    return WEIR_OK;
  }
  entry->name = read_word(parser);
  if (entry->name.length == 0)
    return REFUSE_VALUE(parser, parser->at, "an entry or ']' is missing before %s", quote_next(parser, text));
  if ((status = expect(parser, ':')) != WEIR_OK)
    return status;
  entry->value = read_word(parser);
  if (entry->value.length == 0)
    return REFUSE_VALUE(parser, parser->at, "a value is missing before %s", quote_next(parser, text));
  return WEIR_OK;
}

/* The first boundary also stands for all intervals below it, and '>' for all above the last. Intervals between two
 * boundaries that are not listed are not rounded. */
static weir_status parse_roundup_list(struct parser *parser, uint8_t *divisions) {
  unsigned listed = 0, last = 0; /* one bit per interval; the most recent interval */
  bool closed = false;           /* by '>' */
  char text[48];
  weir_status status;
  struct entry entry;
  memset(divisions, 0, WEIR__ROUNDUP_INTERVALS);
  for (bool first = true;; first = false) {
    if ((status = next_entry(parser, first, &entry)) != WEIR_OK || entry.name.length == 0)
      return status;
    if (closed)
      return REFUSE_VALUE(parser, entry.name.text, "'>' must come last");
    uint8_t number;
    if ((status = parse_divisions(parser, entry.value, &number)) != WEIR_OK)
      return status;
    if (word_is(entry.name, ">")) {
      if (first)
        return REFUSE_VALUE(parser, entry.name.text, "'>' must follow a boundary");
      closed = true;
      memset(divisions + last + 1, number, WEIR__ROUNDUP_INTERVALS - last - 1);
      continue;
    }
    uint64_t boundary;
    if (!read_whole(entry.name, &boundary) || !is_power_of_two(boundary))
      return REFUSE_VALUE(parser, entry.name.text, "the boundary %s is not a power of two", quote(entry.name, text));
    last = log2_of(boundary);
    if (last >= WEIR__ROUNDUP_INTERVALS)
      last = WEIR__ROUNDUP_INTERVALS - 1;
    if (listed & 1u << last)
      return REFUSE(parser, entry.name.text, "the list has the interval of %s already", quote(entry.name, text));
    listed |= 1u << last;
    if (first)
      memset(divisions, number, last);
    divisions[last] = number;
  }
}

static weir_status parse_classes(struct parser *parser, weir__reserve_class *classes) {
  char text[48];
  weir_status status;
  struct entry entry;
  memset(classes, 0, field_sizes[KIND_CLASSES]);
  for (size_t count = 0;; count++) {
    if ((status = next_entry(parser, count == 0, &entry)) != WEIR_OK || entry.name.length == 0)
      return status;
    if (count == WEIR__RESERVE_CLASSES)
      return REFUSE_VALUE(parser, entry.name.text, "%s is one name too many", quote(entry.name, text));
    if (entry.name.length >= WEIR__RESERVE_CLASS_NAME)
      return REFUSE_VALUE(parser, entry.name.text, "the name %s is too long", quote(entry.name, text));
    for (size_t i = 0; i < count; i++) {
      if (word_is(entry.name, classes[i].name))
        return REFUSE(parser, entry.name.text, "the list has %s already", quote(entry.name, text));
    }
    memcpy(classes[count].name, entry.name.text, entry.name.length);
    if ((status = parse_reserve(parser, entry.value, &classes[count].reserve)) != WEIR_OK)
      return status;
  }
}

static weir_status parse_value(struct parser *parser, void *field) {
  enum kind kind = parser->option->kind;
  char text[48];
  if (*parser->at == '[' && (kind == KIND_ROUNDUP || kind == KIND_CLASSES)) {
    parser->at++;
    return kind == KIND_ROUNDUP ? parse_roundup_list(parser, field) : parse_classes(parser, field);
  }
  struct word word = read_word(parser);
  if (word.length == 0)
    return REFUSE_VALUE(parser, parser->at, "a value is missing before %s", quote_next(parser, text));
  if (word_is(word, "default")) {
    set_default(parser->option, &parser->settings);
    return WEIR_OK;
  }
  switch (kind) {
  case KIND_FLAG:
    return parse_flag(parser, word, field);
  case KIND_MIB:
  case KIND_POWER:
  case KIND_NUMBER:
    return parse_number(parser, word, field);
  case KIND_FRACTION:
    return parse_fraction(parser, word, field);
  case KIND_CHOICE:
    return parse_choice(parser, word, field);
  case KIND_RESERVE:
    return parse_reserve(parser, word, field);
  case KIND_ROUNDUP: {
    uint8_t number = 0;
    weir_status status = parse_divisions(parser, word, &number);
    if (status == WEIR_OK)
      memset(field, number, WEIR__ROUNDUP_INTERVALS);
    return status;
  }
  case KIND_CLASSES:
    break;
  }
  return REFUSE_VALUE(parser, word.text, "%s is not a list", quote(word, text));
}

/* ---- Parsing the text ---- */

static const struct weir__option *find_option(struct word word, const char **key) {
  for (size_t i = 0; i < OPTIONS; i++) {
    const char *names[] = {weir__options[i].name, weir__options[i].alias};
    for (size_t j = 0; j < WEIR_COUNT_OF(names); j++) {
      if (names[j] != NULL && word_is(word, names[j])) {
        *key = names[j];
        return &weir__options[i];
      }
    }
  }
  return NULL;
}

static weir_status refuse_key(const struct parser *parser, struct word word) {
  weir__nearest nearest = {.word = word.text, .length = word.length};
  char text[48];
  for (size_t i = 0; i < OPTIONS; i++) {
    weir__nearest_compare(&nearest, weir__options[i].name);
    if (weir__options[i].alias != NULL)
      weir__nearest_compare(&nearest, weir__options[i].alias);
  }
  if (nearest.name == NULL) {
    char keys[1000] = "";
    struct weir__setting_text writer = {.text = keys, .size = sizeof keys};
    for (size_t i = 0; i < OPTIONS; i++)
      weir__setting_put(&writer, "%s%s", i ? ", " : "", weir__options[i].name);
    return REFUSE(parser, word.text, "there is no key %s; allowed: %s", quote(word, text), keys);
  }
  return REFUSE(parser, word.text, "there is no key %s; did you mean '%s'?", quote(word, text), nearest.name);
}

/* Parses one "key:value". */
static weir_status parse_pair(struct parser *parser) {
  char text[48];
  struct word word = read_word(parser);
  parser->option = NULL;
  if (word.length == 0)
    return REFUSE(parser, parser->at, "a key is missing before %s", quote_next(parser, text));
  const struct weir__option *option = find_option(word, &parser->key);
  if (option == NULL)
    return refuse_key(parser, word);
  parser->option = option;
  if (parser->values[option - weir__options] != NULL)
    return REFUSE(parser, word.text, "the text has this key already, with its value at column %zu",
                  (size_t)(parser->values[option - weir__options] - parser->text) + 1);
  weir_status status = expect(parser, ':');
  if (status != WEIR_OK)
    return status;
  parser->values[option - weir__options] = parser->at;
  if (option == &weir__options[MAX_NON_SPLIT_ROUNDING])
    parser->settings.max_non_split_rounding_set = true;
  return parse_value(parser, field_of(option, &parser->settings));
}

/* Checks keys against each other, and derives max_non_split_rounding. This comes last, so that the order of keys does
 * not matter. */
static weir_status settle(struct parser *parser) {
  weir__settings *settings = &parser->settings;
  uint64_t segment = settings->large_segment_size;
  const char *segment_at = parser->values[LARGE_SEGMENT_SIZE];
  if (!settings->max_non_split_rounding_set)
    settings->max_non_split_rounding = segment;
  if (settings->moving_pages && !settings->expandable_segments) { /* the one implies the other: the text decides */
    if (parser->values[MOVING_PAGES] != NULL && parser->values[EXPANDABLE_SEGMENTS] != NULL) {
      parser->option = &weir__options[MOVING_PAGES];
      parser->key = parser->option->name;
      return REFUSE(parser, parser->values[MOVING_PAGES], "it implies expandable_segments:True");
    }
    settings->moving_pages = settings->expandable_segments = parser->values[EXPANDABLE_SEGMENTS] == NULL;
  }

  for (size_t i = 0; i < OPTIONS; i++) {
    uint64_t number =
        weir__options[i].not_below_segment ? *(uint64_t *)field_of(&weir__options[i], settings) : UINT64_MAX;
    if (number >= segment)
      continue;
    bool here = parser->values[i] != NULL;
    parser->option = &weir__options[here ? i : LARGE_SEGMENT_SIZE];
    parser->key = parser->option->name;
    if (here)
      return REFUSE_VALUE(parser, parser->values[i], "%llu is less than large_segment_size_mb, which is %llu",
                          (unsigned long long)(number >> 20), (unsigned long long)(segment >> 20));
    return REFUSE(parser, segment_at != NULL ? segment_at : parser->text, "%llu is more than %s, which is %llu",
                  (unsigned long long)(segment >> 20), weir__options[i].name, (unsigned long long)(number >> 20));
  }
  if (settings->expandable_segments && segment % EXPANDABLE_UNIT != 0) {
    parser->option = &weir__options[LARGE_SEGMENT_SIZE];
    parser->key = parser->option->name;
    const char *at = segment_at != NULL ? segment_at : parser->values[EXPANDABLE_SEGMENTS];
    return REFUSE(parser, at != NULL ? at : parser->text,
                  "%llu is odd, and expandable_segments:True maps memory in units of 2 MiB",
                  (unsigned long long)(segment >> 20));
  }
  return WEIR_OK;
}

static weir_status parse(const char *source, const weir__settings *base, const char *text, weir__settings *out) {
  struct parser parser = {.source = source, .text = text, .at = text};
  weir_status status;
  if (base != NULL)
    parser.settings = *base;
  else
    weir__settings_default(&parser.settings);
  parser.settings.older = NULL;
  skip_blanks(&parser);
  while (*parser.at != '\0') {
    if ((status = parse_pair(&parser)) != WEIR_OK)
      return status;
    skip_blanks(&parser);
    if (*parser.at != '\0' && (status = expect(&parser, ',')) != WEIR_OK)
      return status;
  }
  if ((status = settle(&parser)) != WEIR_OK)
    return status;
  *out = parser.settings;
  return WEIR_OK;
}

const char *weir__settings_key_help(const char *key, size_t length, const char **name) {
  const char *spelling;
  const struct weir__option *option = find_option((struct word){key, length}, &spelling);
  if (option != NULL && name != NULL)
    *name = option->name;
  return option != NULL ? option->help : NULL;
}

weir_status weir__settings_parse(const weir__settings *base, const char *text, weir__settings *out) {
  return parse("settings", base, text, out);
}

weir_status weir__settings_from_env(weir__settings *out, const char **source) {
  const char *name, *text = weir__env_named(WEIR__ENV_ALLOC_CONF, 0, &name);
  for (size_t i = 0; text == NULL && (i == 0 || name != NULL); i++)
    text = weir__env_named(WEIR__ENV_PYTORCH_ALLOC_CONF, i, &name);
  weir_status status = parse(text != NULL ? name : "settings", NULL, text != NULL ? text : "", out);
  if (status == WEIR_OK && source != NULL)
    *source = text != NULL ? name : NULL;
  return status;
}
