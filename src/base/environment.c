#include "base/environment.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/system.h"

enum kind { TEXT, SECURE, CHOICE, NUMBER, BYTES };

static const struct {
  const char *const *names;
  enum kind kind;
  double from, to;
  const char *values;
} table[] = {
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define WEIR__GROUP(heading)
#define WEIR__VARIABLE(id, names, kind, from, to, values, preset, help) {NAMES names, kind, from, to, values},
#include "base/environment_table.h"
};

const char *weir__env_named(weir__variable variable, size_t n, const char **name) {
  *name = table[variable].names[n];
  return !*name ? NULL : table[variable].kind == SECURE ? weir__secure_getenv(*name) : getenv(*name);
}

static const char *find(weir__variable variable, const char **name) {
  const char *text = NULL;
  size_t n = 0;
  do
    text = weir__env_named(variable, n++, name);
  while (!text && *name);
  return text;
}

const char *weir__env_text(weir__variable variable) {
  const char *name;
  return find(variable, &name);
}

const char *weir__env_value(weir__variable variable) {
  const char *text = weir__env_text(variable);
  return text && *text ? text : NULL;
}

/* The choices are in the text of the table: "auto, cuda or soft". */
bool weir__env_choice(weir__variable variable, int *value) {
  const char *text = weir__env_value(variable), *at = table[variable].values;
  if (!text)
    return true;
  for (int i = 0; *at; i++) {
    size_t length = strcspn(at, ", ");
    if (strlen(text) == length && !strncmp(text, at, length)) {
      *value = i;
      return true;
    }
    at += length;
    at += strspn(at, ", ");
    at += strncmp(at, "or ", 3) ? 0 : 3;
  }
  return false;
}

bool weir__env_number(weir__variable variable, double *value) {
  const char *text = weir__env_value(variable);
  char *end;
  if (!text)
    return true;
  double number = strtod(text, &end);
  if (*end || end == text || !(number >= table[variable].from && number <= table[variable].to))
    return false;
  *value = number;
  return true;
}

bool weir__env_integer(weir__variable variable, int64_t *value) {
  const char *text = weir__env_value(variable);
  char *end;
  if (!text)
    return true;
  errno = 0;
  long long number = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : 0;
  if (!isdigit((unsigned char)*text) || *end || errno || (double)number < table[variable].from ||
      (double)number > table[variable].to)
    return false;
  *value = number;
  return true;
}

bool weir__env_bytes(weir__variable variable, unsigned long long *value) {
  const char *text = weir__env_value(variable);
  unsigned long long bytes;
  if (!text)
    return true;
  if (!weir__parse_bytes(text, &bytes) || (double)bytes < table[variable].from || (double)bytes > table[variable].to)
    return false;
  *value = bytes;
  return true;
}

weir_status weir__env_refuse(weir__variable variable) {
  const char *name, *text = find(variable, &name);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s=%s: expected %s", name, text, table[variable].values);
}

void weir__env_ignore(weir__variable variable, const char *instead) {
  const char *name, *text = find(variable, &name);
  weir__log(WEIR_LOG_WARN, "invalid %s=%s: expected %s; %s", name, text, table[variable].values, instead);
}
