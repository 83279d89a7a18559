/*
 * The table of environment variables, and how their values are read.
 */
#include "base/environment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "weir/log.h"

enum kind { TEXT, SECURE, CHOICE, NUMBER, BYTES };
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define WEIR__GROUP(heading)
#define WEIR__VARIABLE(id, names, kind, from, to, values, preset, help)                                                \
  {WEIR__ENV_##id, NAMES names, kind, from, to, values, preset, help},
static const struct {
  weir__variable variable;
  const char *const *names;
  enum kind kind;
  double from, to;
  const char *values, *preset, *help;
} table[] = {
#include "base/environment_table.h"
};

static char warning[300];

static void keep(void *context, weir_log_level level, const char *text) {
  (void)context;
  assert_int_equal(level, WEIR_LOG_WARN);
  snprintf(warning, sizeof warning, "%s", text);
}

TEST(names_are_unique_and_found_in_their_order) {
  for (size_t i = 0; i < WEIR__ENV_COUNT; i++) {
    const char *name;
    assert_int_equal(table[i].variable, i);
    for (size_t n = 0; table[i].names[n]; n++) {
      (void)weir__env_named(table[i].variable, n, &name);
      assert_string_equal(name, table[i].names[n]);
      for (size_t k = i + 1; k < WEIR__ENV_COUNT; k++)
        for (size_t m = 0; table[k].names[m]; m++)
          assert_string_not_equal(name, table[k].names[m]);
    }
  }
  setenv("PYTORCH_ALLOC_CONF", "third", 1);
  assert_string_equal(weir__env_text(WEIR__ENV_PYTORCH_ALLOC_CONF), "third");
  setenv("PYTORCH_CUDA_ALLOC_CONF", "", 1);
  assert_string_equal(weir__env_text(WEIR__ENV_PYTORCH_ALLOC_CONF), "");
  assert_null(weir__env_value(WEIR__ENV_PYTORCH_ALLOC_CONF));
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  unsetenv("PYTORCH_ALLOC_CONF");
  assert_null(weir__env_text(WEIR__ENV_PYTORCH_ALLOC_CONF));
}

/* Whether the value is accepted, by the reader of its kind. */
static bool accepts(size_t i, const char *value) {
  const char *before = getenv(table[i].names[0]);
  char *saved = before ? strdup(before) : NULL;
  int choice = -1;
  int64_t integer = 0;
  double number = 0;
  unsigned long long bytes = 0;
  setenv(table[i].names[0], value, 1);
  bool accepted = table[i].kind == CHOICE      ? weir__env_choice(table[i].variable, &choice)
                  : table[i].kind == BYTES     ? weir__env_bytes(table[i].variable, &bytes)
                  : table[i].from == -HUGE_VAL ? weir__env_number(table[i].variable, &number)
                                               : weir__env_integer(table[i].variable, &integer);
  if (saved)
    setenv(table[i].names[0], saved, 1);
  else
    unsetenv(table[i].names[0]);
  free(saved);
  return accepted;
}

/* What the table says is accepted: each choice, the preset, and both ends of "FROM to TO", but nothing beyond. */
TEST(values_are_those_of_the_table) {
  size_t choices = 0, ranges = 0;
  for (size_t i = 0; i < WEIR__ENV_COUNT; i++) {
    char values[200], from[40], to[40], text[60];
    if (table[i].kind == TEXT || table[i].kind == SECURE)
      continue;
    snprintf(values, sizeof values, "%s", table[i].values);
    assert_true(accepts(i, ""));
    assert_false(accepts(i, "garbage"));
    if (table[i].kind == CHOICE) {
      for (char * or = strstr(values, " or "); or ; or = NULL)
        memcpy(or, ", \n ", 4);
      for (char *choice = strtok(values, ", \n"); choice; choice = strtok(NULL, ", \n"), choices++)
        assert_true(accepts(i, choice));
    } else if (table[i].variable != WEIR__ENV_COLUMNS &&
               (sscanf(values, "a number from %39s to %39s", from, to) == 2 ||
                sscanf(values, "a size from %39s to %39[^,]", from, to) == 2 ||
                sscanf(values, "%39[0-9] to %39s", from, to) == 2)) {
      ranges++;
      assert_true(accepts(i, from));
      assert_true(accepts(i, to));
      snprintf(text, sizeof text, "%s0", to);
      assert_false(accepts(i, table[i].kind == BYTES ? "17TiB" : text));
      assert_false(accepts(i, strcmp(from, "0") ? "0" : "-1"));
      assert_false(accepts(i, "1.5x"));
    }
    if (table[i].preset && strspn(table[i].preset, "0123456789") == strlen(table[i].preset))
      assert_true(accepts(i, table[i].preset));
  }
  assert_int_equal(choices, 3 + 4 + 2 + 3 + 2 + 5 + 3);
  assert_int_equal(ranges, 7);
}

TEST(readers_give_the_value_or_leave_it) {
  int choice = 7;
  int64_t integer = 7;
  double number = 7;
  unsigned long long bytes = 7;
  unsetenv("WEIR_LOG");
  assert_true(weir__env_choice(WEIR__ENV_LOG, &choice));
  setenv("WEIR_SOFT_DEVICES", "65", 1);
  assert_false(weir__env_integer(WEIR__ENV_SOFT_DEVICES, &integer));
  assert_int_equal(choice, 7);
  assert_int_equal(integer, 7);
  setenv("WEIR_LOG", "info", 1);
  assert_true(weir__env_choice(WEIR__ENV_LOG, &choice));
  assert_int_equal(choice, WEIR_LOG_INFO);
  setenv("WEIR_SOFT_DEVICES", "64", 1);
  assert_true(weir__env_integer(WEIR__ENV_SOFT_DEVICES, &integer));
  assert_int_equal(integer, 64);
  setenv("WEIR_IPC_TIMEOUT", "-2.5", 1);
  assert_true(weir__env_number(WEIR__ENV_IPC_TIMEOUT, &number));
  assert_true(number == -2.5);
  setenv("WEIR_SOFT_MEMORY", "3GiB", 1);
  assert_true(weir__env_bytes(WEIR__ENV_SOFT_MEMORY, &bytes));
  assert_true(bytes == 3ull << 30);
}

TEST(messages_name_the_value_and_what_is_expected) {
  setenv("WEIR_SOFT_CLOCK", "fast", 1);
  assert_int_equal(weir__env_refuse(WEIR__ENV_SOFT_CLOCK), WEIR_ERROR_INVALID_ARGUMENT);
  assert_string_equal(weir_last_error(), "WEIR_SOFT_CLOCK=fast: expected threads or stepped");
  weir_log_set_sink(keep, NULL);
  weir__env_ignore(WEIR__ENV_SOFT_CLOCK, "time is real");
  weir_log_set_sink(NULL, NULL);
  assert_string_equal(warning, "invalid WEIR_SOFT_CLOCK=fast: expected threads or stepped; time is real");
}
