/*
 * weir help: the help of a command, from the table that parses its command line.
 */
#include "help.h"

#include <string.h>

#include "cli.h"
#include "offline/analyse/predict.h"

const char weir_cli_recording_text[] =
    "FILE is a snapshot as torch.cuda.memory._dump_snapshot() writes it, plain or compressed with zstd or gzip, or a "
    "recording made with WEIR_RECORD. - is the standard input.";

const char weir_cli_environment_text[] =
    "These environment variables are read by the library, the adapters and the program weir.";

bool weir_cli_takes_recordings(const weir_cli_command *c) {
  return c->argument && strncmp(c->argument + (*c->argument == '['), "FILE", 4) == 0;
}

const char *weir_cli_option_label(const weir_cli_option *o, char label[WEIR_CLI_LABEL_SIZE]) {
  char letter[] = {'-', o->letter, ',', ' ', '\0'};
  snprintf(label, WEIR_CLI_LABEL_SIZE, "%s--%s%s%s", o->letter ? letter : "", o->name, o->value ? " " : "",
           o->value ? o->value : "");
  return label;
}

bool weir_cli_has_described_choices(const weir_cli_option *o) { return o->choices && o->choices->help; }

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

void weir_cli_print_topics(FILE *out, const weir_cli_command *command) {
  for (const weir_cli_command *const *t = command->topics; t && *t; t++) {
    if ((*t)->group || t == command->topics)
      fprintf(out, "\n%s:\n", (*t)->group ? (*t)->group : "Topics");
    fprintf(out, "  %-9s%s\n", weir_cli_word(*t), (*t)->summary);
  }
}

/* Those without a description are listed by the help of their option. */
static void print_choices(const weir_cli_option *o, int indent) {
  int width = 0;
  if (!weir_cli_has_described_choices(o))
    return;
  for (const weir_cli_choice *c = o->choices; c->name; c++)
    width = (int)strlen(c->name) > width ? (int)strlen(c->name) : width;
  for (const weir_cli_choice *c = o->choices; c->name; c++)
    printf("  %*s    %-*s  %s\n", indent, "", width, c->name, c->help);
}

static void print_options(const weir_cli_command *command) {
  const weir_cli_option *o;
  char label[WEIR_CLI_LABEL_SIZE];
  int width = 0;
  for (size_t i = 0; (o = weir_cli_option_at(command, i)); i++) {
    int length = (int)strlen(weir_cli_option_label(o, label));
    width = length > width ? length : width;
  }
  puts("\nOptions:");
  for (size_t i = 0; (o = weir_cli_option_at(command, i)); i++) {
    printf("  %-*s  %s\n", width, weir_cli_option_label(o, label), o->help);
    print_choices(o, width);
  }
}

static void print_examples(const char *lines) {
  puts("\nExamples:");
  for (size_t length; *lines; lines += length + 1) {
    length = strcspn(lines, "\n");
    weir_cli_keep_line();
    printf("  %.*s\n", (int)length, lines);
  }
}

void weir_cli_print_help(const weir_cli_command *command) {
  weir_cli_fold_begin();
  fputs("Usage: ", stdout);
  weir_cli_print_usage(stdout, command);
  putchar('\n');
  print_paragraphs(command->description);
  if (weir_cli_takes_recordings(command))
    printf("\n\n%s", weir_cli_recording_text);
  putchar('\n');
  weir_cli_print_topics(stdout, command);
  print_options(command);
  printf("\nExit codes: 0 %s; 1 %s; 2 invalid usage", command->exit[0], command->exit[1]);
  printf(command->exit[3] ? "; 3 %s.\n" : ".\n", command->exit[3]);
  if (command->examples)
    print_examples(command->examples);
}

static void print_environment(void) {
  weir_cli_fold_begin();
  puts(weir_cli_environment_text);
  for (const weir_cli_variable *v = weir_cli_environment; v->group || v->names; v++) {
    char names[WEIR_CLI_NAMES_SIZE];
    if (v->group) {
      printf("\n%s:\n", v->group);
      continue;
    }
    printf("  %s\n      %s\n      Values: %s.", weir_cli_variable_names(v, names, sizeof names), v->help, v->values);
    printf(v->preset ? " Default: %s.\n" : "\n", v->preset);
  }
}

/* ---- The command ---- */

static struct {
  bool man;
  const char *man_pages;
  int completion; /* -1 if not asked for */
} options = {.completion = -1};

static int help_with(int count, char **arguments) {
  const weir_cli_command *command = &weir_cmd;
  if (count == 1 && strcmp(arguments[0], "environment") == 0) {
    options.man ? weir_cli_print_environment_page(stdout) : print_environment();
    return WEIR_EXIT_OK;
  }
  if (count == 1 && strcmp(arguments[0], "settings") == 0 && !options.man) {
    weir__settings_help(stdout, WEIR__HELP_TEXT);
    return WEIR_EXIT_OK;
  }
  for (int i = 0; i < count; i++) {
    const weir_cli_command *topic = weir_cli_find_topic(command, arguments[i]);
    if (!topic)
      return weir_cli_unknown_topic(command, arguments[i]);
    command = topic;
  }
  options.man ? weir_cli_print_page(stdout, command) : weir_cli_print_help(command);
  return WEIR_EXIT_OK;
}

static int run(int count, char **arguments) {
  if (!options.man_pages && options.completion < 0)
    return help_with(count, arguments);
  if (count)
    return weir_cli_usage("takes no arguments with this option (got '%s')", arguments[0]);
  if (options.completion >= 0)
    weir_cli_print_completion();
  return options.man_pages ? weir_cli_write_pages(options.man_pages) : WEIR_EXIT_OK;
}

static const weir_cli_choice shells[] = {{"bash", NULL}, {0}};

static const weir_cli_option option_table[] = {
    {"man", .target = &options.man, .help = "print the manual page, for man -l"},
    {"man-pages", .kind = WEIR_CLI_PATH, .value = "FOLDER", .target = &options.man_pages,
     .help = "write all manual pages to an existing folder"},
    {"completion", .kind = WEIR_CLI_CHOICE, .value = "SHELL", .target = &options.completion, .choices = shells,
     .help = "print a completion script for a shell: bash"},
    {0}};

const weir_cli_command weir_cmd_help = {
    .name = "help",
    .group = "Help",
    .summary = "print the help of a command, the environment variables or the allocator's settings",
    .description = "Print the help of weir or of a COMMAND. 'weir help environment' lists the environment variables, "
                   "'weir help settings' the keys of WEIR_ALLOC_CONF.",
    .argument = "[COMMAND...]",
    .options = option_table,
    .exit = {"done", "the output cannot be written"},
    .run = run};
