#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "cli.h"
#include "help.h"
#include "sandbox.h"

enum { MAX_OPTIONS = 32, FIRST_VALUE = 256 /* of getopt_long, above all letters */, NAMES_SIZE = 256 };

static const weir_cli_option common[] = {{"help", 'h', .help = "print this text"}, {0}};

/* The command whose options are parsed, or that runs. */
static const weir_cli_command *current;

/* ---- Errors ---- */

int weir_cli_usage(const char *format, ...) {
  const char *space = current->name ? " " : "", *name = current->name ? current->name : "";
  char text[WEIR__TEXT_SIZE];
  va_list args;
  va_start(args, format);
  weir__format_text(text, sizeof text, format, args);
  va_end(args);
  weir__escape_message(text, sizeof text, false); /* it quotes the command line */
  fprintf(stderr, "weir%s%s: %s (see '", space, name, text);
  weir_cli_print_program(stderr);
  fprintf(stderr, "%s%s --help')\n", space, name);
  return WEIR_EXIT_USAGE;
}

int weir_cli_fail(const char *format, ...) {
  va_list args;
  fprintf(stderr, "weir %s: ", current->name);
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  putc('\n', stderr);
  return WEIR_EXIT_FAILED;
}

/* "json, csv or sqlite"; returns `text`. */
static const char *list_choices(const weir_cli_choice *choices, const char *last, char text[NAMES_SIZE]) {
  size_t length = 0;
  for (const weir_cli_choice *c = choices; c->name && length < NAMES_SIZE; c++)
    length += (size_t)snprintf(text + length, NAMES_SIZE - length, "%s%s",
                               c == choices ? ""
                               : c[1].name  ? ", "
                                            : last,
                               c->name);
  return text;
}

static int refuse(const weir_cli_option *o, const char *value) {
  char names[NAMES_SIZE], takes[NAMES_SIZE + 64];
  switch (o->read ? WEIR_CLI_TEXT : o->kind) {
  case WEIR_CLI_NUMBER:
    if (o->most == INT_MAX)
      snprintf(takes, sizeof takes, "a number");
    else
      snprintf(takes, sizeof takes, "a number from %lld to %lld", (long long)o->least, (long long)o->most);
    break;
  case WEIR_CLI_SIZE:
    snprintf(takes, sizeof takes, "a size such as 80GiB, up to %s", weir__format_bytes((uint64_t)o->most, names));
    break;
  case WEIR_CLI_FRACTION:
    snprintf(takes, sizeof takes, "a number above 0 and up to 1");
    break;
  case WEIR_CLI_CHOICE:
    snprintf(takes, sizeof takes, "%s", list_choices(o->choices, " or ", names));
    break;
  case WEIR_CLI_LIST:
    snprintf(takes, sizeof takes, "a comma-separated list of %s", list_choices(o->choices, " and ", names));
    break;
  default:
    snprintf(takes, sizeof takes, "%s", o->takes);
  }
  return weir_cli_usage("--%s takes %s (got '%s')", o->name, takes, value);
}

/* ---- Values ---- */

static bool read_number(const char *text, int64_t least, int64_t most, int *number) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  *number = (int)value;
  return end != text && !*end && !errno && value >= least && value <= most;
}

static bool read_size(const char *text, int64_t most, uint64_t *bytes) {
  unsigned long long value;
  if (!weir__parse_bytes(text, &value) || !value || value > (uint64_t)most)
    return false;
  *bytes = value;
  return true;
}

static bool read_fraction(const char *text, double *fraction) {
  char *end;
  *fraction = strtod(text, &end);
  return end != text && !*end && *fraction > 0 && *fraction <= 1;
}

/* -1 if the name is none of the choices. */
static int find_choice(const weir_cli_choice *choices, const char *name, size_t length) {
  for (int i = 0; choices[i].name; i++)
    if (strlen(choices[i].name) == length && memcmp(choices[i].name, name, length) == 0)
      return i;
  return -1;
}

static bool read_list(const weir_cli_choice *choices, const char *text, unsigned *bits) {
  *bits = 0;
  for (;; text++) {
    size_t length = strcspn(text, ",");
    int choice = find_choice(choices, text, length);
    if (choice < 0)
      return false;
    *bits |= 1u << choice;
    text += length;
    if (!*text)
      return true;
  }
}

static int read_value(const weir_cli_option *o, const char *text) {
  bool is_valid = true;
  if (o->read) {
    int code = o->read(text);
    return code == WEIR_EXIT_USAGE ? refuse(o, text) : code;
  }
  switch (o->kind) {
  case WEIR_CLI_FLAG:
    *(bool *)o->target = true;
    break;
  case WEIR_CLI_TEXT:
  case WEIR_CLI_PATH:
    *(const char **)o->target = text;
    break;
  case WEIR_CLI_NUMBER:
    is_valid = read_number(text, o->least, o->most, o->target);
    break;
  case WEIR_CLI_SIZE:
    is_valid = read_size(text, o->most, o->target);
    break;
  case WEIR_CLI_FRACTION:
    is_valid = read_fraction(text, o->target);
    break;
  case WEIR_CLI_CHOICE:
    *(int *)o->target = find_choice(o->choices, text, strlen(text));
    is_valid = *(int *)o->target >= 0;
    break;
  case WEIR_CLI_LIST:
    is_valid = read_list(o->choices, text, o->target);
    break;
  }
  return is_valid ? WEIR_EXIT_OK : refuse(o, text);
}

/* ---- The command line ---- */

const weir_cli_option *weir_cli_option_at(const weir_cli_command *command, size_t index) {
  const weir_cli_option *tables[] = {command->options, command->shared, common};
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
    for (const weir_cli_option *o = tables[i]; o && o->name; o++)
      if (!index--)
        return o;
  return NULL;
}

const char *weir_cli_word(const weir_cli_command *command) {
  const char *space = strrchr(command->name, ' ');
  return space ? space + 1 : command->name;
}

static bool is_given(const bool *given, const char *name) {
  const weir_cli_option *o;
  for (size_t i = 0; (o = weir_cli_option_at(current, i)); i++)
    if (given[i] && strcmp(o->name, name) == 0)
      return true;
  return false;
}

/* What getopt_long did not understand. */
static int refuse_option(int option, char **argv) {
  char letter[] = {'-', (char)optopt, '\0'};
  const char *word = optopt > 0 && optopt < FIRST_VALUE ? letter : argv[optind - 1];
  if (option == ':')
    return weir_cli_usage("%s needs a value", word);
  if (optopt >= FIRST_VALUE)
    return weir_cli_usage("--%s takes no value (got '%s')",
                          weir_cli_option_at(current, (size_t)(optopt - FIRST_VALUE))->name, word);
  return weir_cli_usage("unknown option '%s'", word);
}

static int check_options(const bool *given) {
  const weir_cli_option *o;
  char names[NAMES_SIZE];
  for (size_t i = 0; (o = weir_cli_option_at(current, i)); i++) {
    if (given[i] && o->needs && !is_given(given, o->needs))
      return weir_cli_usage("--%s needs --%s", o->name, o->needs);
    if (!given[i] && o->is_required)
      return o->choices ? weir_cli_usage("--%s is missing: %s", o->name, list_choices(o->choices, " or ", names))
                        : weir_cli_usage("--%s %s is missing", o->name, o->value);
  }
  return WEIR_EXIT_OK;
}

static int check_arguments(int count, char **arguments) {
  const char *name = current->argument;
  if (!name && count)
    return weir_cli_usage("takes no arguments (got '%s')", arguments[0]);
  if (!name || current->topics)
    return WEIR_EXIT_OK;
  const bool is_optional = *name == '[';
  name += is_optional;
  const int length = (int)strcspn(name, ". ]");
  if (!count && !is_optional)
    return weir_cli_usage("%.*s is missing", length, name);
  if (count > 1 && (!name[length] || name[length] == ']')) /* a command that takes two counts them itself */
    return weir_cli_usage("takes only one %.*s (got '%s' as well)", length, name, arguments[1]);
  return WEIR_EXIT_OK;
}

bool weir_cli_names_input(const weir_cli_option *option) {
  static const char *const names[] = {"FILE", "IN", "HTML"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(option->value, names[i]) == 0)
      return true;
  return false;
}

/* The path given for an option; NULL if it was not given, or the option takes no path. */
static const char *path_of(const weir_cli_option *o) {
  return o->kind == WEIR_CLI_PATH && o->target ? *(const char **)o->target : NULL;
}

static bool is_same_file(const char *input, const struct stat *output) {
  struct stat about;
  bool is_known = (strcmp(input, "-") == 0 ? fstat(STDIN_FILENO, &about) : stat(input, &about)) == 0;
  return is_known && about.st_dev == output->st_dev && about.st_ino == output->st_ino;
}

static bool is_input(const struct stat *output, int count, char **arguments) {
  const weir_cli_option *o;
  bool reads = weir_cli_takes_recordings(current) || current->reads_arguments;
  for (int i = 0; i < count && reads; i++)
    if (is_same_file(arguments[i], output))
      return true;
  for (size_t i = 0; (o = weir_cli_option_at(current, i)); i++)
    if (path_of(o) && weir_cli_names_input(o) && is_same_file(path_of(o), output))
      return true;
  return false;
}

/* An output must not replace an input, under any name. */
static int check_outputs(int count, char **arguments) {
  const weir_cli_option *o;
  for (size_t i = 0; (o = weir_cli_option_at(current, i)); i++) {
    struct stat output;
    const char *path = path_of(o);
    if (!path || weir_cli_names_input(o) || strcmp(path, "-") == 0 || stat(path, &output) != 0)
      continue;
    if (S_ISREG(output.st_mode) && is_input(&output, count, arguments))
      return weir_cli_fail("%s: the output would overwrite the input", weir_cli_escaped(path));
  }
  return WEIR_EXIT_OK;
}

static bool is_digits(const char *text) { return *text && !text[strspn(text, "0123456789")]; }

int weir_cli_run(const weir_cli_command *command, int argc, char **argv) {
  struct option long_options[MAX_OPTIONS + 1] = {{0}};
  char letters[3 * MAX_OPTIONS] = ":";
  const weir_cli_option *o;
  bool given[MAX_OPTIONS] = {false};
  int code = WEIR_EXIT_OK;
  current = command;
  if (command->topics)
    strcpy(letters, "+:"); /* options end at the topic, which has its own */
  for (size_t i = 0; (o = weir_cli_option_at(command, i)); i++) {
    size_t length = strlen(letters);
    int takes = o->is_optional ? optional_argument : o->value ? required_argument : no_argument;
    long_options[i] = (struct option){o->name, takes, NULL, FIRST_VALUE + (int)i};
    if (o->letter)
      snprintf(letters + length, sizeof letters - length, "%c%s", o->letter, o->value ? ":" : "");
  }
  opterr = 0;
  optind = 0; /* glibc starts anew */
  for (int option; !code && (option = getopt_long(argc, argv, letters, long_options, NULL)) != -1;) {
    if (option == ':' || option == '?')
      return refuse_option(option, argv);
    size_t i = 0;
    for (; (o = weir_cli_option_at(command, i)); i++)
      if (option == o->letter || option == FIRST_VALUE + (int)i)
        break;
    if (!o || o == common) {
      weir_cli_print_help(command);
      return WEIR_EXIT_OK;
    }
    given[i] = true;
    if (o->is_optional && !optarg && optind < argc && is_digits(argv[optind]))
      optarg = argv[optind++];
    code = o->is_optional && !optarg ? o->read(NULL) : read_value(o, optarg);
  }
  if (!code)
    code = check_options(given);
  if (!code)
    code = check_arguments(argc - optind, argv + optind);
  if (code)
    return code;
  if (command->prepare)
    command->prepare(argc - optind, argv + optind);
  code = check_outputs(argc - optind, argv + optind); /* some are named by prepare() */
  if (code)
    return code;
  weir_cli_sandbox_command(command, argc - optind, argv + optind);
  return command->run(argc - optind, argv + optind);
}

int weir_cli_for_each(int count, char **files, int (*run)(const char *file)) {
  int code = WEIR_EXIT_OK;
  for (int i = 0; i < count; i++) {
    int one = run(files[i]);
    if (one && code != WEIR_EXIT_FAILED)
      code = one;
  }
  return code;
}

/* ---- Topics ---- */

const weir_cli_command *weir_cli_find_topic(const weir_cli_command *command, const char *name) {
  for (const weir_cli_command *const *topic = command->topics; topic && *topic; topic++)
    if (strcmp(weir_cli_word(*topic), name) == 0)
      return *topic;
  return NULL;
}

int weir_cli_unknown_topic(const weir_cli_command *command, const char *name) {
  const char *what = command->name ? "topic" : "command";
  char names[NAMES_SIZE] = "";
  size_t length = 0;
  weir__nearest nearest = {.word = name, .length = strlen(name)};
  for (const weir_cli_command *const *t = command->topics; t && *t && length < sizeof names; t++) {
    length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "", weir_cli_word(*t));
    weir__nearest_compare(&nearest, weir_cli_word(*t));
  }
  if (nearest.name)
    return weir_cli_usage("unknown %s '%s'; did you mean '%s'?", what, name, nearest.name);
  return weir_cli_usage("unknown %s '%s'; %ss: %s", what, name, what, length ? names : "none");
}

int weir_cli_run_topic(const weir_cli_command *command, int argc, char **argv) {
  const weir_cli_command *topic = weir_cli_find_topic(command, argv[0]);
  return topic ? weir_cli_run(topic, argc, argv) : weir_cli_unknown_topic(command, argv[0]);
}
