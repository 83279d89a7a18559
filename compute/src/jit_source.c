#include "src/jit_source.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_space(const char *at) {
  while (isspace((unsigned char)*at))
    at++;
  return at;
}

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The last "template" that is not within braces: the code may define several functions, of which the last one is
 * called. NULL if the code begins with something else. */
static const char *last_template(const char *code) {
  const char *found = NULL;
  int depth = 0;
  if (strncmp(skip_space(code), "template", 8) != 0)
    return NULL;
  for (const char *at = code; *at; at++) {
    depth += *at == '{';
    depth -= *at == '}';
    if (!depth && !strncmp(at, "template", 8) && !is_word(at[8]) && (at == code || !is_word(at[-1])))
      found = at;
  }
  return found;
}

char *weir__jit_parse_name(const char *code) {
  const char *at = last_template(code);
  if (!at || *(at = skip_space(at + 8)) != '<')
    return NULL;
  int depth = 0;
  do {
    depth += *at == '<';
    depth -= *at == '>';
    at++;
  } while (*at && depth);
  const char *type = at = skip_space(at); /* the type of the result, which is one word */
  while (is_word(*at))
    at++;
  const char *name = skip_space(at), *end = name;
  while (is_word(*end))
    end++;
  const char *open = skip_space(end), *close = strchr(open, ')');
  if (at == type || name == at || end == name || *open != '(' || !close || !strchr(close, '{') || !strchr(close, '}'))
    return NULL;
  return strndup(name, (size_t)(end - name));
}
