/*
 * Manual pages, from the tables that parse the command line and that list the environment.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "help.h"
#include "weir/runtime.h"

enum { PATH_SIZE = 4096 };

/* Text for roff. A newline ends a paragraph. */
static void print_roff(FILE *out, const char *text) {
  bool is_start = true;
  for (; *text; text++) {
    if (is_start && (*text == '.' || *text == '\''))
      fputs("\\&", out);
    is_start = *text == '\n';
    if (*text == '\\' || *text == '-')
      fputs(*text == '-' ? "\\-" : "\\e", out);
    else if (*text == '\n')
      fputs("\n.PP\n", out);
    else
      putc(*text, out);
  }
  putc('\n', out);
}

/* A term in bold, and what it means. */
static void print_term(FILE *out, const char *term, const char *meaning) {
  fputs(".TP\n.B ", out);
  print_roff(out, term);
  print_roff(out, meaning);
}

static void print_title(FILE *out, const char *name, int section, const char *summary) {
  char title[WEIR_CLI_LABEL_SIZE] = "";
  for (size_t i = 0; name[i] && i + 1 < sizeof title; i++)
    title[i] = (char)toupper((unsigned char)name[i]);
  fprintf(out, ".TH %s %d \"\" \"Weir %s\" \"Weir\"\n.SH NAME\n%s \\- ", title, section, weir_version(), name);
  print_roff(out, summary);
}

/* "weir-replay"; returns `name`. */
static const char *page_name(const weir_cli_command *command, char name[WEIR_CLI_LABEL_SIZE]) {
  snprintf(name, WEIR_CLI_LABEL_SIZE, "weir%s%s", command->name ? "-" : "", command->name ? command->name : "");
  for (char *c = name; *c; c++)
    *c = *c == ' ' ? '-' : *c;
  return name;
}

static void print_man_topics(FILE *out, const weir_cli_command *command) {
  char name[WEIR_CLI_LABEL_SIZE], term[WEIR_CLI_LABEL_SIZE + 8];
  fprintf(out, ".SH %s\n", command->name ? "TOPICS" : "COMMANDS");
  for (const weir_cli_command *const *t = command->topics; *t; t++) {
    if ((*t)->group)
      fprintf(out, ".SS %s\n", (*t)->group);
    snprintf(term, sizeof term, "%s(1)", page_name(*t, name));
    print_term(out, term, (*t)->summary);
  }
}

static void print_man_options(FILE *out, const weir_cli_command *command) {
  const weir_cli_option *o;
  char label[WEIR_CLI_LABEL_SIZE];
  fputs(".SH OPTIONS\n", out);
  for (size_t i = 0; (o = weir_cli_option_at(command, i)); i++) {
    print_term(out, weir_cli_option_label(o, label), o->help);
    if (!weir_cli_has_described_choices(o))
      continue;
    fputs(".RS\n", out);
    for (const weir_cli_choice *c = o->choices; c->name; c++)
      print_term(out, c->name, c->help);
    fputs(".RE\n", out);
  }
}

static void print_man_examples(FILE *out, const char *lines) {
  fputs(".SH EXAMPLES\n.nf\n", out);
  for (char line[PATH_SIZE]; *lines;) {
    size_t length = strcspn(lines, "\n");
    snprintf(line, sizeof line, "%.*s", (int)length, lines);
    print_roff(out, line);
    lines += length + 1;
  }
  fputs(".fi\n", out);
}

void weir_cli_print_page(FILE *out, const weir_cli_command *command) {
  char name[WEIR_CLI_LABEL_SIZE];
  print_title(out, page_name(command, name), 1, command->summary);
  fputs(".SH SYNOPSIS\n.B ", out);
  weir_cli_print_usage(out, command);
  fputs(".SH DESCRIPTION\n", out);
  print_roff(out, command->description);
  if (weir_cli_takes_recordings(command)) {
    fputs(".PP\n", out);
    print_roff(out, weir_cli_recording_text);
  }
  if (command->topics)
    print_man_topics(out, command);
  print_man_options(out, command);
  fputs(".SH \"EXIT STATUS\"\n", out);
  for (int i = 0; i < 4; i++)
    if (i == WEIR_EXIT_USAGE || command->exit[i])
      print_term(out, (char[]){(char)('0' + i), '\0'}, i == WEIR_EXIT_USAGE ? "invalid usage" : command->exit[i]);
  if (command->examples)
    print_man_examples(out, command->examples);
  fprintf(out, ".SH \"SEE ALSO\"\n%s.BR weir\\-environment (7)\n", command->name ? ".BR weir (1),\n" : "");
}

void weir_cli_print_environment_page(FILE *out) {
  print_title(out, "weir-environment", 7, "environment variables that Weir reads");
  fputs(".SH DESCRIPTION\n", out);
  print_roff(out, weir_cli_environment_text);
  for (const weir_cli_variable *v = weir_cli_environment; v->group || v->names; v++) {
    char names[WEIR_CLI_NAMES_SIZE];
    if (v->group) {
      fprintf(out, ".SH \"%s\"\n", v->group);
      continue;
    }
    print_term(out, weir_cli_variable_names(v, names, sizeof names), v->help);
    fputs(".br\nValues: ", out);
    print_roff(out, v->values);
    fputs(v->preset ? ".br\nDefault: " : "", out);
    if (v->preset)
      print_roff(out, v->preset);
  }
  fputs(".SH \"SEE ALSO\"\n.BR weir (1)\n", out);
}

/* The page of a command, or of the environment if it is NULL. An exit code. */
static int write_page(const char *folder, const weir_cli_command *command) {
  char path[PATH_SIZE], name[WEIR_CLI_LABEL_SIZE];
  if (command)
    snprintf(path, sizeof path, "%s/%s.1", folder, page_name(command, name));
  else
    snprintf(path, sizeof path, "%s/weir-environment.7", folder);
  FILE *out = fopen(path, "we");
  if (out) {
    command ? weir_cli_print_page(out, command) : weir_cli_print_environment_page(out);
    bool failed = ferror(out);
    if (fclose(out) == 0 && !failed)
      return WEIR_EXIT_OK;
  }
  return weir_cli_fail("%s: cannot write it: %s", weir_cli_escaped(path), strerror(errno));
}

/* Of a command and its topics. */
static int write_pages(const char *folder, const weir_cli_command *command) {
  int code = write_page(folder, command);
  for (const weir_cli_command *const *t = command->topics; t && *t && !code; t++)
    code = write_pages(folder, *t);
  return code;
}

int weir_cli_write_pages(const char *folder) {
  int code = write_pages(folder, &weir_cmd);
  return code ? code : write_page(folder, NULL);
}
