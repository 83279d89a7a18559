/*
 * weir help: the help of a command, from the table that parses its command line.
 */
#include "help.h"

#include <string.h>

#include "cli.h"
#include "offline/predict.h"

enum { LABEL_SIZE = 64 };

static const char recording_text[] =
    "FILE is a snapshot as torch.cuda.memory._dump_snapshot() writes it, plain or compressed with zstd or gzip, or a "
    "recording made with WEIR_RECORD. - is the standard input.";

static const char environment_text[] =
    "These environment variables are read by the library, the adapters and the program weir.";

static bool takes_recordings(const weir_cli_command *c) { return c->argument && strncmp(c->argument, "FILE", 4) == 0; }

/* "-o, --output FILE"; returns `label`. */
static const char *label_of(const weir_cli_option *o, char label[LABEL_SIZE]) {
  char letter[] = {'-', o->letter, ',', ' ', '\0'};
  snprintf(label, LABEL_SIZE, "%s--%s%s%s", o->letter ? letter : "", o->name, o->value ? " " : "",
           o->value ? o->value : "");
  return label;
}

/* ---- Text ---- */

void weir_cli_print_usage(FILE *out, const weir_cli_command *command) {
  const weir_cli_option *o;
  const char *argument = command->argument ? command->argument : "";
  fprintf(out, "weir%s%s", command->name ? " " : "", command->name ? command->name : "");
  if (command->topics)
    fprintf(out, " %s", argument);
  for (size_t i = 0; (o = weir_cli_option_at(command, i)); i++)
    if (o->is_required)
      fprintf(out, " --%s %s", o->name, o->value);
  fprintf(out, " [OPTION...]%s%s\n", *argument && !command->topics ? " " : "", command->topics ? "" : argument);
}

static void print_paragraphs(const char *text) {
  for (; *text; putchar(*text++))
    if (*text == '\n')
      putchar('\n');
}

static void print_topics(const weir_cli_command *command) {
  for (const weir_cli_command *const *t = command->topics; t && *t; t++) {
    if ((*t)->group || t == command->topics)
      printf("\n%s:\n", (*t)->group ? (*t)->group : "Topics");
    printf("  %-9s%s\n", weir_cli_word(*t), (*t)->summary);
  }
}

static void print_options(const weir_cli_command *command) {
  const weir_cli_option *o;
  char label[LABEL_SIZE];
  int width = 0;
  for (size_t i = 0; (o = weir_cli_option_at(command, i)); i++) {
    int length = (int)strlen(label_of(o, label));
    width = length > width ? length : width;
  }
  puts("\nOptions:");
  for (size_t i = 0; (o = weir_cli_option_at(command, i)); i++) {
    printf("  %-*s  %s\n", width, label_of(o, label), o->help);
    for (const weir_cli_choice *c = o->choices; c && c->name; c++)
      if (c->help)
        printf("  %*s    %-9s %s\n", width, "", c->name, c->help);
  }
}

void weir_cli_print_help(const weir_cli_command *command) {
  weir_cli_fold_begin();
  fputs("Usage: ", stdout);
  weir_cli_print_usage(stdout, command);
  putchar('\n');
  print_paragraphs(command->description);
  if (takes_recordings(command))
    printf("\n\n%s", recording_text);
  putchar('\n');
  print_topics(command);
  print_options(command);
  printf("\nExit codes: 0 %s; 1 %s; 2 invalid usage", command->exit[0], command->exit[1]);
  printf(command->exit[3] ? "; 3 %s.\n" : ".\n", command->exit[3]);
}

static void print_environment(void) {
  weir_cli_fold_begin();
  puts(environment_text);
  for (const weir_cli_variable *v = weir_cli_environment; v->names; v++) {
    if (v->group)
      printf("\n%s:\n", v->group);
    printf("  %s\n      %s\n      Values: %s.", v->names, v->help, v->values);
    printf(v->preset ? " Default: %s.\n" : "\n", v->preset);
  }
}

/* ---- The command ---- */

static int run(int count, char **arguments) {
  const weir_cli_command *command = &weir_cmd;
  if (count == 1 && strcmp(arguments[0], "environment") == 0) {
    print_environment();
    return WEIR_EXIT_OK;
  }
  if (count == 1 && strcmp(arguments[0], "settings") == 0) {
    weir__settings_help(stdout, WEIR__HELP_TEXT);
    return WEIR_EXIT_OK;
  }
  for (int i = 0; i < count; i++) {
    const weir_cli_command *topic = weir_cli_find_topic(command, arguments[i]);
    if (!topic)
      return weir_cli_unknown_topic(command, arguments[i]);
    command = topic;
  }
  weir_cli_print_help(command);
  return WEIR_EXIT_OK;
}

const weir_cli_command weir_cmd_help = {
    .name = "help",
    .group = "Help",
    .summary = "print the help of a command, the environment variables or the allocator's settings",
    .description = "Print the help of weir or of a COMMAND. 'weir help environment' lists the environment variables, "
                   "'weir help settings' the keys of WEIR_ALLOC_CONF.",
    .argument = "[COMMAND]",
    .most = 2,
    .exit = {"done", "the output cannot be written"},
    .run = run};
