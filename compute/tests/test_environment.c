/*
 * The table of environment variables, and how their values are read.
 */
#include "src/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "weir/log.h"

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define WEIR__GROUP(heading)
#define WEIR__VARIABLE(id, names, from, to, values, preset, help) {NAMES names, from, to, values, preset, help},
static const struct {
  const char *const *names;
  double from, to;
  const char *values, *preset, *help;
} table[] = {
#include "src/environment_table.h"
};

static char warning[300];

static void keep(void *context, weir_log_level level, const char *text) {
  (void)context;
  assert_int_equal(level, WEIR_LOG_WARN);
  snprintf(warning, sizeof warning, "%s", text);
}

TEST(every_name_is_found_in_its_order) {
  for (weir__variable i = 0; i < WEIR__ENV_COUNT; i++) {
    size_t count = 0;
    while (table[i].names[count])
      count++;
    char *saved = getenv(table[i].names[0]) ? strdup(getenv(table[i].names[0])) : NULL;
    for (size_t n = count; n-- > 0;) { /* an earlier name is preferred to those that are set */
      char value[32];
      snprintf(value, sizeof value, "%zu", n);
      setenv(table[i].names[n], value, 1);
      assert_string_equal(weir__compute_env(i), value);
      assert_string_equal(weir__compute_env_name(i), table[i].names[n]);
      assert_true(weir__compute_env_is(i, value));
      assert_false(weir__compute_env_is(i, "other"));
    }
    for (size_t n = 0; n < count; n++) {
      setenv(table[i].names[n], "", 1); /* counts as not set */
      assert_true(n + 1 == count ? !weir__compute_env(i)
                                 : strcmp(weir__compute_env_name(i), table[i].names[n + 1]) == 0);
    }
    for (size_t n = 0; n < count; n++)
      unsetenv(table[i].names[n]);
    if (saved)
      setenv(table[i].names[0], saved, 1);
    free(saved);
  }
}

TEST(numbers_have_the_range_of_the_table) {
  for (weir__variable i = 0; i < WEIR__ENV_COUNT; i++) {
    if (table[i].from == table[i].to)
      continue;
    double value = 42, ends[] = {table[i].from, table[i].to};
    for (size_t k = 0; k < 2; k++) {
      char text[32];
      snprintf(text, sizeof text, "%.17g", ends[k]);
      setenv(table[i].names[0], text, 1);
      assert_true(weir__compute_env_number(i, &value));
      assert_true(value == ends[k]);
      snprintf(text, sizeof text, "%.17g", k ? ends[k] * 1.1 : ends[k] - 1);
      setenv(table[i].names[0], text, 1);
      assert_false(weir__compute_env_number(i, &value));
      assert_true(value == ends[k]);
    }
    setenv(table[i].names[0], "soon", 1);
    assert_false(weir__compute_env_number(i, &value));
    unsetenv(table[i].names[0]);
    assert_true(weir__compute_env_number(i, &value));
  }
}

TEST(sizes_and_messages) {
  uint64_t bytes = 7;
  char text[WEIR__TEXT_SIZE];
  assert_true(weir__compute_env_bytes(WEIR__ENV_CACHE_SIZE, &bytes));
  assert_int_equal(bytes, 7);
  setenv("WEIR_CACHE_SIZE", "2MiB", 1);
  assert_true(weir__compute_env_bytes(WEIR__ENV_CACHE_SIZE, &bytes));
  assert_int_equal(bytes, 2 << 20);
  setenv("WEIR_CACHE_SIZE", "much", 1);
  assert_false(weir__compute_env_bytes(WEIR__ENV_CACHE_SIZE, &bytes));
  assert_int_equal(bytes, 2 << 20);
  assert_string_equal(weir__compute_env_expected(WEIR__ENV_CACHE_SIZE, text),
                      "WEIR_CACHE_SIZE=much: expected a size such as 500MB");
  weir_log_set_sink(keep, NULL);
  weir__compute_env_ignore(WEIR__ENV_CACHE_SIZE, "the limit is 1 GiB");
  weir_log_set_sink(NULL, NULL);
  assert_string_equal(warning, "invalid WEIR_CACHE_SIZE=much: expected a size such as 500MB; the limit is 1 GiB");
  unsetenv("WEIR_CACHE_SIZE");
}
