#include "src/environment.h"

#include "weir/alloc.h"

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define WEIR__GROUP(heading)
#define WEIR__VARIABLE(id, names, from, to, values, preset, help) {NAMES names, from, to, values},
static const struct {
  const char *const *names;
  double from, to;
  const char *values;
} table[] = {
#include "src/environment_table.h"
};

static const char *find(weir__variable variable, const char **name) {
  for (const char *const *at = table[variable].names; (*name = *at); at++) {
    const char *text = secure_getenv(*at);
    if (text && *text)
      return text;
  }
  return NULL;
}

const char *weir__compute_env(weir__variable variable) {
  const char *name;
  return find(variable, &name);
}

const char *weir__compute_env_name(weir__variable variable) {
  const char *name;
  return find(variable, &name) ? name : table[variable].names[0];
}

bool weir__compute_env_is(weir__variable variable, const char *text) {
  const char *value = weir__compute_env(variable);
  return value && !strcmp(value, text);
}

bool weir__compute_env_number(weir__variable variable, double *value) {
  const char *text = weir__compute_env(variable);
  char *end;
  double number = text ? strtod(text, &end) : *value;
  if (text && (*end || end == text || !(number >= table[variable].from && number <= table[variable].to)))
    return false;
  *value = number;
  return true;
}

bool weir__compute_env_bytes(weir__variable variable, uint64_t *value) {
  const char *text = weir__compute_env(variable);
  return !text || !weir_bytes_parse(text, value);
}

const char *weir__compute_env_expected(weir__variable variable, char text[WEIR__TEXT_SIZE]) {
  const char *name, *value = find(variable, &name);
  snprintf(text, WEIR__TEXT_SIZE, "%s=%s: expected %s", name, value, table[variable].values);
  return text;
}

void weir__compute_env_ignore(weir__variable variable, const char *instead) {
  char text[WEIR__TEXT_SIZE];
  weir__log(WEIR_LOG_WARN, "invalid %s; %s", weir__compute_env_expected(variable, text), instead);
}
