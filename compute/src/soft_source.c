/*
 * Prepares CUDA C++ source for the host's compiler. The source is read as a sequence of tokens, without a preprocessor:
 * a kernel that a macro declares is not seen, and has to be named in the options.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "src/compile.h"

/* A pair of braces that is open. */
typedef struct scope {
  bool is_outside;         /* a namespace or extern "C": not the body of a function or class */
  bool is_c;               /* extern "C" */
  size_t name, name_bytes; /* of a namespace, in the source; empty if it has none */
} scope;

typedef struct scan {
  const char *text, *at;
  weir__bytes *out;
  weir__bytes entries; /* lines that list the kernels */
  scope *scopes;
  size_t depth, room;
  /* Of the statement that is being read. */
  bool has_template, has_c, has_namespace;
  const char *name; /* the last name behind `namespace` */
  size_t name_bytes;
} scan;

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

static size_t name_length(const char *at) {
  size_t length = 0;
  while (is_name(at[length]))
    length++;
  return length;
}

static bool is_word(const char *at, size_t length, const char *word) {
  return strlen(word) == length && !strncmp(at, word, length);
}

/* Behind a literal or a comment that begins here; `at` if none does. */
static const char *skip_literal(const char *at) {
  if (at[0] == '/' && at[1] == '/') {
    while (*at && *at != '\n')
      at += at[0] == '\\' && at[1] ? 2 : 1;
    return at;
  }
  if (at[0] == '/' && at[1] == '*') {
    const char *end = strstr(at + 2, "*/");
    return end ? end + 2 : at + strlen(at);
  }
  if (*at == '"' || *at == '\'') {
    const char quote = *at++;
    while (*at && *at != quote && *at != '\n')
      at += at[0] == '\\' && at[1] ? 2 : 1;
    return *at == quote ? at + 1 : at;
  }
  return at;
}

/* Behind white space and comments. */
static const char *skip_space(const char *at) {
  for (;;) {
    while (isspace((unsigned char)*at))
      at++;
    const char *next = *at == '/' ? skip_literal(at) : at;
    if (next == at)
      return at;
    at = next;
  }
}

/* Behind a group in parentheses that begins here. */
static const char *skip_group(const char *at) {
  int depth = 0;
  while (*at) {
    const char *next = skip_literal(at);
    if (next != at) {
      at = next;
      continue;
    }
    depth += *at == '(';
    depth -= *at == ')';
    at++;
    if (!depth)
      return at;
  }
  return at;
}

static void add(weir__bytes *to, const char *text) { weir__bytes_add(to, text, strlen(text)); }

static void add_entry(weir__bytes *to, const char *text, const char *expression, size_t length) {
  add(to, "WEIR_SOFT_ENTRY(\"");
  for (const char *c = text; c < text + length; c++) {
    if (*c == '"' || *c == '\\')
      weir__bytes_add(to, "\\", 1);
    weir__bytes_add(to, c, 1);
  }
  add(to, "\", &");
  add(to, expression);
  add(to, ")\n");
}

static bool is_outside(const scan *s) {
  for (size_t i = 0; i < s->depth; i++)
    if (!s->scopes[i].is_outside)
      return false;
  return true;
}

static bool has_c_linkage(const scan *s) {
  bool has = s->has_c;
  for (size_t i = 0; i < s->depth; i++)
    has |= s->scopes[i].is_c;
  return has;
}

/* Lists the kernel whose declaration continues at `at`, unless it was listed before. */
static void see_kernel(scan *s, const char *at) {
  const char *name = NULL;
  size_t length = 0;
  for (at = skip_space(at); *at && *at != ';' && *at != '{'; at = skip_space(at)) {
    if (is_name(*at)) {
      name = at;
      length = name_length(at);
      at += length;
    } else if (*at != '(') {
      at++;
    } else if (name && !is_word(name, length, "__launch_bounds__") && !is_word(name, length, "__attribute__")) {
      break;
    } else {
      at = skip_group(at);
    }
  }
  if (*at != '(' || !name || s->has_template || !has_c_linkage(s) || !is_outside(s))
    return;
  weir__bytes expression = {0}, line = {0};
  for (size_t i = 0; i < s->depth; i++)
    if (s->scopes[i].name_bytes) {
      weir__bytes_add(&expression, s->text + s->scopes[i].name, s->scopes[i].name_bytes);
      add(&expression, "::");
    }
  weir__bytes_add(&expression, name, length);
  weir__bytes_add(&expression, "", 1);
  if (!expression.failed)
    add_entry(&line, name, (const char *)expression.data, length);
  weir__bytes_add(&line, "", 1);
  weir__bytes_add(&s->entries, "", 1);
  if (!line.failed && !s->entries.failed && !strstr((const char *)s->entries.data, (const char *)line.data)) {
    s->entries.count--;
    add(&s->entries, (const char *)line.data);
  } else if (!s->entries.failed) {
    s->entries.count--;
  }
  s->entries.failed |= line.failed || expression.failed;
  weir__bytes_end(&expression);
  weir__bytes_end(&line);
}

/* `extern __shared__ T name[];` at `at`: writes its replacement and returns what is behind it, or returns NULL if it is
 * not that. */
static const char *see_dynamic(scan *s, const char *at) {
  at = skip_space(at + strlen("extern"));
  if (!is_word(at, name_length(at), "__shared__"))
    return NULL;
  const char *type = skip_space(at + strlen("__shared__")), *end = strchr(type, ';'), *bracket = strchr(type, '[');
  while (is_word(type, name_length(type), "__align__") || is_word(type, name_length(type), "alignas") ||
         is_word(type, name_length(type), "__attribute__"))
    type = skip_space(skip_group(skip_space(type + name_length(type))));
  if (!end || !bracket || bracket > end)
    return NULL;
  const char *name = bracket;
  while (name > type && isspace((unsigned char)name[-1]))
    name--;
  const char *name_end = name;
  while (name > type && is_name(name[-1]))
    name--;
  if (name == type || name == name_end)
    return NULL;
  const char *type_end = name;
  while (type_end > type && isspace((unsigned char)type_end[-1]))
    type_end--;
  weir__bytes *out = s->out;
  if (is_outside(s)) {
    add(out, "static const weir_soft::dynamic_array<");
    weir__bytes_add(out, type, (size_t)(type_end - type));
    add(out, "> ");
    weir__bytes_add(out, name, (size_t)(name_end - name));
    add(out, "{}");
  } else {
    weir__bytes_add(out, type, (size_t)(type_end - type));
    add(out, " *const ");
    weir__bytes_add(out, name, (size_t)(name_end - name));
    add(out, " = reinterpret_cast<");
    weir__bytes_add(out, type, (size_t)(type_end - type));
    add(out, " *>(weir_soft::current().dynamic)");
  }
  for (const char *c = at; c < end; c++)
    if (*c == '\n' && (c < type || c >= name_end))
      weir__bytes_add(out, "\n", 1);
  return end; /* the semicolon is copied */
}

static void end_statement(scan *s) { s->has_template = s->has_c = s->has_namespace = false; }

static void see_brace(scan *s, char c) {
  if (c == '{') {
    if (!WEIR__RESERVE(s->scopes, s->room, s->depth + 1)) {
      s->out->failed = true;
      return;
    }
    bool opens_c = s->has_c && !s->has_namespace && s->at > s->text;
    const char *before = s->at;
    while (before > s->text && isspace((unsigned char)before[-1]))
      before--;
    opens_c = opens_c && before > s->text && before[-1] == '"'; /* extern "C" { */
    s->scopes[s->depth++] = (scope){.is_outside = s->has_namespace || opens_c,
                                    .is_c = opens_c,
                                    .name = s->has_namespace && s->name ? (size_t)(s->name - s->text) : 0,
                                    .name_bytes = s->has_namespace && s->name ? s->name_bytes : 0};
  } else if (s->depth) {
    s->depth--;
  }
  end_statement(s);
}

static void see_word(scan *s, size_t length) {
  const char *behind = s->at + length;
  if (is_word(s->at, length, "template")) {
    s->has_template = true;
  } else if (is_word(s->at, length, "namespace")) {
    s->has_namespace = true;
    s->name = skip_space(behind);
    s->name_bytes = 0;
    while (is_name(s->name[s->name_bytes]) || s->name[s->name_bytes] == ':')
      s->name_bytes++;
  } else if (is_word(s->at, length, "extern") && !strncmp(skip_space(behind), "\"C\"", 3)) {
    s->has_c = true;
  } else if (is_word(s->at, length, "__global__")) {
    see_kernel(s, behind);
  }
}

void weir__soft_source(const char *source, const weir_compile_options *options, weir__bytes *text) {
  scan s = {.text = source, .at = source, .out = text};
  bool at_line = true; /* only white space before on this line */
  add(text, "#line 1 \"");
  add(text, options->file_name ? options->file_name : "kernel.cu");
  add(text, "\"\n");
  while (*s.at && !text->failed) {
    const char *next = skip_literal(s.at);
    if (next == s.at && *s.at == '#' && at_line) { /* a directive, to the end of its last line */
      while (*next && *next != '\n') {
        const char *comment = next[0] == '/' && next[1] == '*' ? skip_literal(next) : next;
        next = comment != next ? comment : next + (next[0] == '\\' && next[1] ? 2 : 1);
      }
    } else if (next == s.at && is_name(*s.at)) {
      size_t length = name_length(s.at);
      next = is_word(s.at, length, "extern") ? see_dynamic(&s, s.at) : NULL;
      if (next) {
        s.at = next;
        continue;
      }
      see_word(&s, length);
      next = s.at + length;
    } else if (next == s.at) {
      if (*s.at == '{' || *s.at == '}')
        see_brace(&s, *s.at);
      else if (*s.at == ';')
        end_statement(&s);
      next = s.at + 1;
    }
    weir__bytes_add(text, s.at, (size_t)(next - s.at));
    at_line = next[-1] == '\n' || (at_line && isspace((unsigned char)next[-1]));
    s.at = next;
  }
  add(text, "\n#line 1 \"kernels\"\n");
  weir__bytes_add(text, s.entries.data, s.entries.count);
  for (int i = 0; i < options->name_count; i++)
    add_entry(text, options->names[i], options->names[i] + (*options->names[i] == '&'), strlen(options->names[i]));
  text->failed |= s.entries.failed;
  weir__bytes_end(&s.entries);
  free(s.scopes);
}
