/*
 * Settings as text, and the help about them.
 */
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/config/settings_table.h"

/* The shortest text that reads back to the same number, but "40" rather than "4e+01". */
static void write_double(double number, char text[32]) {
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  locale_t before = uselocale(c);
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, 32, "%.*g", digits, number);
    if (strtod(text, NULL) == number)
      break;
  }
  uselocale(before);
  if (c != (locale_t)0)
    freelocale(c);
}

void weir__setting_put(struct weir__setting_text *writer, const char *format, ...) {
  bool room = writer->length < writer->size;
  char *at = room ? writer->text + writer->length : NULL;
  size_t left = room ? writer->size - writer->length : 0;
  va_list args;
  va_start(args, format);
  int length =
      vsnprintf(at, left, format, args); /* NOLINT(clang-analyzer-valist.Uninitialized): false positive of clang 14 */
  va_end(args);
  writer->length += (size_t)length;
}

static unsigned long long divisions_of(uint8_t log_plus_one) {
  return log_plus_one == 0 ? 0 : 1ull << (log_plus_one - 1);
}

/* One number if all intervals are equal; else a list from the end of the first run of equal values to the start of the
 * last. */
static void put_roundup(struct weir__setting_text *writer, const uint8_t *divisions) {
  unsigned first = 0, last = WEIR__ROUNDUP_INTERVALS - 1;
  while (first < last && divisions[first + 1] == divisions[0])
    first++;
  if (first == last) {
    weir__setting_put(writer, "%llu", divisions_of(divisions[0]));
    return;
  }
  while (divisions[last - 1] == divisions[last])
    last--;
  for (unsigned i = first; i < last; i++)
    weir__setting_put(writer, "%s%u:%llu", i == first ? "[" : ",", 1u << i, divisions_of(divisions[i]));
  weir__setting_put(writer, ",>:%llu]", divisions_of(divisions[last]));
}

static void put_reserve(struct weir__setting_text *writer, const weir__reserve *reserve) {
  char text[32];
  write_double(reserve->bytes != 0 ? (double)reserve->bytes / (double)(1ull << 30) : reserve->fraction, text);
  weir__setting_put(writer, "%s%s", text, reserve->bytes != 0 ? "G" : "");
}

static void put_value(struct weir__setting_text *writer, const struct weir__option *option,
                      const weir__settings *settings) {
  const void *field = weir__option_field(option, settings);
  char text[32];
  switch (option->kind) {
  case KIND_FLAG:
    weir__setting_put(writer, "%s", *(const bool *)field ? "True" : "False");
    break;
  case KIND_MIB:
    weir__setting_put(writer, "%llu", (unsigned long long)(*(const uint64_t *)field >> 20));
    break;
  case KIND_POWER:
  case KIND_NUMBER:
    weir__setting_put(writer, "%llu", (unsigned long long)*(const uint64_t *)field);
    break;
  case KIND_FRACTION:
    write_double(*(const double *)field, text);
    weir__setting_put(writer, "%s", text);
    break;
  case KIND_CHOICE:
    weir__setting_put(writer, "%s", option->choices[*(const unsigned *)field]);
    break;
  case KIND_ROUNDUP:
    put_roundup(writer, field);
    break;
  case KIND_RESERVE:
    put_reserve(writer, field);
    break;
  case KIND_CLASSES: {
    const weir__reserve_class *classes = field;
    weir__setting_put(writer, "[");
    for (size_t i = 0; i < WEIR__RESERVE_CLASSES && classes[i].name[0] != '\0'; i++) {
      weir__setting_put(writer, "%s%s:", i == 0 ? "" : ",", classes[i].name);
      put_reserve(writer, &classes[i].reserve);
    }
    weir__setting_put(writer, "]");
    break;
  }
  }
}

bool weir__setting_format(const weir__settings *settings, const char *key, char *text, size_t size, size_t *length) {
  struct weir__setting_text writer = {.text = text, .size = size};
  const struct weir__option *option = weir__options;
  while (option < weir__options + OPTIONS && strcmp(option->name, key))
    option++;
  if (option == weir__options + OPTIONS)
    return false;
  put_value(&writer, option, settings);
  *length = writer.length;
  return true;
}

size_t weir__settings_format(const weir__settings *settings, char *text, size_t size) {
  struct weir__setting_text writer = {.text = text, .size = size};
  weir__settings defaults;
  weir__settings_default(&defaults);
  if (size > 0)
    text[0] = '\0';
  for (size_t i = 0; i < OPTIONS; i++) {
    bool is_default = i == MAX_NON_SPLIT_ROUNDING ? !settings->max_non_split_rounding_set
                                                  : weir__option_is_equal(&weir__options[i], settings, &defaults);
    if (is_default)
      continue;
    weir__setting_put(&writer, "%s%s:", writer.length > 0 ? "," : "", weir__options[i].name);
    put_value(&writer, &weir__options[i], settings);
  }
  return writer.length;
}

/* ---- Help ---- */

void weir__setting_put_allowed(struct weir__setting_text *writer, const struct weir__option *option) {
  char text[32];
  switch (option->kind) {
  case KIND_FLAG:
    weir__setting_put(writer, "True or False");
    break;
  case KIND_MIB:
    weir__setting_put(writer, "a whole number of MiB, ");
    if (option->not_below_segment)
      weir__setting_put(writer, "at least large_segment_size_mb and at most %llu",
                        (unsigned long long)option->most.number);
    else
      weir__setting_put(writer, "%llu to %llu", (unsigned long long)option->least.number,
                        (unsigned long long)option->most.number);
    break;
  case KIND_POWER:
    weir__setting_put(writer, "a power of two, %llu to %llu", (unsigned long long)option->least.number,
                      (unsigned long long)option->most.number);
    break;
  case KIND_NUMBER:
    weir__setting_put(writer, "a whole number, %llu to %llu", (unsigned long long)option->least.number,
                      (unsigned long long)option->most.number);
    break;
  case KIND_FRACTION:
    write_double(option->least.fraction, text);
    weir__setting_put(writer, option->open ? "a number greater than %s" : "a number from %s", text);
    write_double(option->most.fraction, text);
    weir__setting_put(writer, option->open ? " and less than %s" : " to %s", text);
    break;
  case KIND_CHOICE:
    for (const char *const *choice = option->choices; *choice != NULL; choice++)
      weir__setting_put(writer, "%s%s", choice == option->choices ? "" : choice[1] ? ", " : " or ", *choice);
    break;
  case KIND_ROUNDUP:
    weir__setting_put(writer,
                      "0 or a power of two up to %llu, or a list of those by powers of two in MiB such as "
                      "[256:1,512:2,1024:4,>:8]",
                      MAX_DIVISIONS);
    break;
  case KIND_RESERVE:
    weir__setting_put(writer, "a part of the device's memory such as 0.5, or GiB such as 40G");
    break;
  case KIND_CLASSES:
    weir__setting_put(writer, "a list such as [prefetch:0.25,graphs:40G], of at most %d names of at most %d bytes",
                      WEIR__RESERVE_CLASSES, WEIR__RESERVE_CLASS_NAME - 1);
    break;
  }
}

static void put_wrapped(FILE *file, const char *indent, const char *text) {
  enum { WIDTH = 92 }; /* without the indentation */
  while (*text != '\0') {
    size_t length = strlen(text);
    if (length > WIDTH) {
      length = WIDTH;
      while (length > 0 && text[length] != ' ')
        length--;
      if (length == 0)
        length = WIDTH;
    }
    fprintf(file, "%s%.*s\n", indent, (int)length, text);
    text += length;
    text += *text == ' ';
  }
}

void weir__settings_help(FILE *file, weir__help_form form) {
  weir__settings defaults;
  weir__settings_default(&defaults);
  if (form == WEIR__HELP_MARKDOWN)
    fprintf(file, "| key | default | allowed | what it does |\n|---|---|---|---|\n");
  for (size_t i = 0; i < OPTIONS; i++) {
    const struct weir__option *option = &weir__options[i];
    char preset[64] = "", allowed[256] = "", facts[512];
    struct weir__setting_text preset_writer = {.text = preset, .size = sizeof preset};
    struct weir__setting_text allowed_writer = {.text = allowed, .size = sizeof allowed};
    if (option->unset != NULL)
      weir__setting_put(&preset_writer, "%s", option->unset);
    else
      put_value(&preset_writer, option, &defaults);
    weir__setting_put_allowed(&allowed_writer, option);
    if (form == WEIR__HELP_MARKDOWN) {
      fprintf(file, "| `%s`", option->name);
      if (option->alias != NULL)
        fprintf(file, " or `%s`", option->alias);
      fprintf(file, " | %s | %s | %s |\n", preset, allowed, option->help);
    } else {
      fprintf(file, "%s%s", i == 0 ? "" : "\n", option->name);
      if (option->alias != NULL)
        fprintf(file, " or %s", option->alias);
      fprintf(file, "\n");
      put_wrapped(file, "    ", option->help);
      snprintf(facts, sizeof facts, "Default: %s. Allowed: %s.", preset, allowed);
      put_wrapped(file, "    ", facts);
    }
  }
}
