#include "tuned.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/outfile.h"
#include "base/text.h"
#include "cli.h"
#include "offline/analyse/sha256.h"
#include "offline/read/input.h"
#include "options.h"
#include "weir/device.h"
#include "weir/runtime.h"

enum {
  DIGEST_TEXT = 2 * WEIR__SHA256_SIZE + 1,
  PARAMS_SIZE = 128,
  FILE_SIZE = 64 * 1024, /* a result has a few hundred bytes */
  MAX_VALIDATORS = 16,
  VALUE_SIZE = 256
};
static const char plain_op[] = "AllocatorSettings", moving_op[] = "AllocatorSettingsMoving";

/* ---- The file ---- */

/* Lines of fields that are separated by commas, without quotes: first those that say what the result depends on, then
 * the results with their cost in milliseconds.
 *
 *     Validator,WEIR_VERSION,1.0.0
 *     AllocatorSettings,memory_4294967296,expandable_segments:True,0.82
 */
typedef struct validators {
  size_t count;
  struct {
    char key[32], value[VALUE_SIZE];
  } all[MAX_VALIDATORS];
} validators;

static const char *find(const validators *in, const char *key) {
  for (size_t i = 0; i < in->count; i++)
    if (!strcmp(in->all[i].key, key))
      return in->all[i].value;
  return NULL;
}

/* Commas and control characters become spaces. False if it does not fit. */
static bool add(validators *to, const char *key, const char *value) {
  size_t key_size = strlen(key) + 1, value_size = strlen(value) + 1;
  if (to->count == MAX_VALIDATORS || key_size > sizeof to->all[0].key || value_size > VALUE_SIZE)
    return false;
  memcpy(to->all[to->count].key, key, key_size);
  char *at = memcpy(to->all[to->count++].value, value, value_size);
  for (; *at; at++)
    if (*at == ',' || *at < ' ' || *at > '~')
      *at = ' ';
  return true;
}

typedef struct result {
  const char *op, *params, *settings;
  double milliseconds;
} result;

typedef struct result_file {
  char text[FILE_SIZE]; /* the fields of the results point into it */
  validators validators;
  result results[MAX_VALIDATORS];
  size_t result_count;
} result_file;

/* Ends the field at *text, which is printable and not empty, and moves *text to the next one; NULL if there is none. */
static char *next_field(char **text) {
  char *field = *text, *end = field ? strchr(field, ',') : NULL;
  *text = end ? end + 1 : NULL;
  if (end)
    *end = 0;
  for (char *c = field; c && *c; c++)
    if (*c < ' ' || *c > '~')
      return NULL;
  return field && *field ? field : NULL;
}

static bool read_line(result_file *file, char *line) {
  char *op = next_field(&line), *params = next_field(&line), *settings = next_field(&line), *end = NULL;
  if (!op || !params || !settings)
    return false;
  if (!strcmp(op, "Validator"))
    return !find(&file->validators, params) && add(&file->validators, params, settings);
  double milliseconds = line ? strtod(line, &end) : -1;
  if (!(milliseconds >= 0) || end == line || *end || file->result_count == WEIR_COUNT_OF(file->results))
    return false;
  file->results[file->result_count++] = (result){op, params, settings, milliseconds};
  return true;
}

static int read_file(const char *path, result_file *file) {
  weir__input *input = NULL;
  size_t bytes = 0, got = 1, number = 1;
  weir_status status = weir__input_open(path, &input);
  for (; !status && got && bytes < FILE_SIZE; bytes += got)
    status = weir__input_read(input, file->text + bytes, FILE_SIZE - bytes, &got);
  if (input)
    weir__input_close(input);
  if (status)
    return weir_cli_fail("%s", weir_last_error());
  if (bytes == FILE_SIZE || memchr(file->text, 0, bytes))
    return weir_cli_fail("%s is not a text, so not a file of 'weir tune --save'", weir_cli_escaped(path));
  for (char *line = file->text, *end; *line; line = end, number++) {
    end = line + strcspn(line, "\n");
    if (*end)
      *end++ = 0;
    line[strcspn(line, "\r")] = 0;
    if (*line && !read_line(file, line))
      return weir_cli_fail("%s: line %zu is damaged", weir_cli_escaped(path), number);
  }
  return WEIR_EXIT_OK;
}

static int write_file(const char *path, const char *text) {
  weir__outfile out;
  int error = weir__outfile_open(&out, path, WEIR__OUTFILE_WRITE);
  if (!error) {
    FILE *stream = fdopen(dup(out.fd), "w");
    error = stream && fputs(text, stream) >= 0 ? 0 : errno;
    if (stream && fclose(stream) && !error)
      error = errno;
    if (!error)
      error = weir__outfile_keep(&out);
    weir__outfile_end(&out);
  }
  return error ? weir_cli_fail("--save: cannot write %s: %s", weir_cli_escaped(path), strerror(error)) : WEIR_EXIT_OK;
}

/* ---- What the result depends on ---- */

/* The contents, uncompressed, so that a recording may be compressed later. */
static weir_status add_file(const char *path, weir__sha256 *sha) {
  weir__input *input = NULL;
  char *bytes = malloc(1 << 16);
  size_t got = 1;
  weir_status status = bytes ? weir__input_open(path, &input)
                             : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", path);
  while (!status && got) {
    status = weir__input_read(input, bytes, 1 << 16, &got);
    if (!status)
      weir__sha256_add(sha, bytes, got);
  }
  if (input)
    weir__input_close(input);
  free(bytes);
  return status;
}

static int compare_digests(const void *a, const void *b) { return memcmp(a, b, WEIR__SHA256_SIZE); }

/* A hash of the contents of all files, in any order. */
static int hash_files(char **files, int count, char text[DIGEST_TEXT]) {
  unsigned char(*digests)[WEIR__SHA256_SIZE] = calloc((size_t)count, sizeof *digests);
  weir__sha256 sha;
  if (!digests)
    return weir_cli_fail("out of host memory");
  for (int i = 0; i < count; i++) {
    weir__sha256_begin(&sha);
    weir_status status = strcmp(files[i], "-") == 0
                             ? weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "-: the standard input cannot be read twice; "
                                                                       "--save and --load need files")
                             : add_file(files[i], &sha);
    if (status) {
      free(digests);
      return weir_cli_fail("%s", weir_last_error());
    }
    weir__sha256_end(&sha, digests[i]);
  }
  if (count > 1) {
    qsort(digests, (size_t)count, sizeof *digests, compare_digests);
    weir__sha256_begin(&sha);
    weir__sha256_add(&sha, digests, (size_t)count * sizeof *digests);
    weir__sha256_end(&sha, digests[0]);
  }
  for (int i = 0; i < WEIR__SHA256_SIZE; i++)
    snprintf(text + 2 * i, 3, "%02x", digests[0][i]);
  free(digests);
  return WEIR_EXIT_OK;
}

/* This machine, if it has a GPU, or if WEIR_DRIVER names the driver. */
static struct {
  bool is_known;
  char name[256], driver[64];
} machine;

static void look_at_machine(int device) {
  weir_driver *driver;
  const char *choice = weir__env_value(WEIR__ENV_DRIVER);
  int version;
  if (weir_get_driver(&driver))
    return;
  bool counts = (driver->capabilities & WEIR_DRIVER_NVIDIA) || (choice && strcmp(choice, "auto") != 0);
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  if (counts && !weir_device_get_properties(device < 0 ? 0 : device, &properties) &&
      !driver->DriverGetVersion(driver, &version)) {
    snprintf(machine.name, sizeof machine.name, "%s", properties.name);
    snprintf(machine.driver, sizeof machine.driver, "%s %d.%d", driver->name, version / 1000, version % 1000 / 10);
    machine.is_known = true;
  }
  weir_shutdown();
}

/* In a process of its own: a driver starts threads and opens devices, which the sandbox would not take away again. */
void weir_cli_tuned_prepare(int device) {
  int ends[2], status;
  if (pipe2(ends, O_CLOEXEC) != 0)
    return;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    look_at_machine(device);
    bool is_written = write(ends[1], &machine, sizeof machine) == (ssize_t)sizeof machine; /* less than PIPE_BUF */
    _exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  if (child > 0 && read(ends[0], &machine, sizeof machine) != (ssize_t)sizeof machine)
    memset(&machine, 0, sizeof machine); /* the driver has ended the process */
  close(ends[0]);
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
    continue;
}

static int find_validators(const weir_cli_tuned_for *purpose, validators *found) {
  char digest[DIGEST_TEXT];
  add(found, "WEIR_VERSION", weir_version());
  if (purpose->pytorch && !add(found, "PT_VERSION", purpose->pytorch))
    return weir_cli_fail("--pytorch: the version is too long");
  if (machine.is_known) {
    add(found, "DEVICE", machine.name);
    add(found, "DRIVER_VERSION", machine.driver);
  }
  int code = WEIR_EXIT_OK;
  if (purpose->file_count) {
    code = hash_files(purpose->files, purpose->file_count, digest);
    if (!code)
      add(found, "RECORDING_SHA256", digest);
  }
  if (!code && purpose->costs) {
    char *costs = (char *)(uintptr_t)purpose->costs;
    code = hash_files(&costs, 1, digest);
    if (!code)
      add(found, "COSTS_SHA256", digest);
  }
  return code;
}

/* The options, as the second field of a line. */
static void format_params(const weir_cli_tuned_for *purpose, char text[PARAMS_SIZE]) {
  int length = purpose->memory ? snprintf(text, PARAMS_SIZE, "memory_%llu", (unsigned long long)purpose->memory)
                               : snprintf(text, PARAMS_SIZE, "recorded");
  if (purpose->fraction > 0)
    length += snprintf(text + length, (size_t)(PARAMS_SIZE - length), "_fraction_%d", (int)(purpose->fraction * 1e6));
  if (purpose->device >= 0)
    snprintf(text + length, (size_t)(PARAMS_SIZE - length), "_device_%d", purpose->device);
}

/* ---- Saving ---- */

/* The format has no quotes, so a semicolon stands for each comma in settings. */
static void exchange(char *text, char from, char to) {
  for (; *text; text++)
    if (*text == from)
      *text = to;
}

/* Whole nanoseconds, which are written with a decimal point in every locale. */
static void print_result(FILE *stream, const char *op, const char *params, const char *conf, double ns) {
  char text[WEIR__CONF_TEXT];
  snprintf(text, sizeof text, "%s", *conf ? conf : "defaults");
  exchange(text, ',', ';');
  uint64_t whole = ns > 0 && ns < 1e18 ? (uint64_t)(ns + 0.5) : 0;
  fprintf(stream, "%s,%s,%s,%" PRIu64 ".%06" PRIu64 "\n", op, params, text, whole / 1000000, whole % 1000000);
}

int weir_cli_tuned_save(const char *path, const weir_cli_tuned_for *purpose, const weir_cli_tuned *tuned) {
  validators here = {0};
  char params[PARAMS_SIZE], *text = NULL;
  size_t bytes;
  format_params(purpose, params);
  int code = find_validators(purpose, &here);
  if (code)
    return code;
  FILE *stream = open_memstream(&text, &bytes);
  if (!stream)
    return weir_cli_fail("out of host memory");
  for (size_t i = 0; i < here.count; i++)
    fprintf(stream, "Validator,%s,%s\n", here.all[i].key, here.all[i].value);
  print_result(stream, plain_op, params, tuned->conf, tuned->cost_ns);
  if (tuned->has_moving)
    print_result(stream, moving_op, params, tuned->moving, tuned->moving_cost_ns);
  code = fclose(stream) ? weir_cli_fail("out of host memory") : write_file(path, text);
  free(text);
  return code;
}

/* ---- Loading ---- */

/* Settings come from a file and go to a shell, so only those that the allocator understands are accepted. */
static int read_settings(const char *path, const result *row, char conf[WEIR__CONF_TEXT]) {
  weir__settings settings;
  if (strlen(row->settings) >= WEIR__CONF_TEXT)
    return weir_cli_fail("%s: the settings of %s are too long", path, row->op);
  snprintf(conf, WEIR__CONF_TEXT, "%s", strcmp(row->settings, "defaults") ? row->settings : "");
  exchange(conf, ';', ',');
  weir__settings_default(&settings);
  if (weir__settings_parse(NULL, conf, &settings) || strpbrk(conf, "'\"\\`$\n"))
    return weir_cli_fail("%s: the settings of %s are invalid: %.200s", path, row->op, conf);
  return WEIR_EXIT_OK;
}

/* A file need not say for which GPU, driver and PyTorch it was made; what it says must be so. Recordings are compared
 * if they are given. */
static int check_validators(const char *path, const weir_cli_tuned_for *purpose, const validators *file,
                            const validators *here) {
  static const struct {
    const char *key, *missing; /* why it is not known here; NULL for what the file must have */
  } known[] = {{"DEVICE", "this machine has no GPU"},
               {"DRIVER_VERSION", "this machine has no GPU"},
               {"PT_VERSION", "say with --pytorch which version runs here"},
               {"WEIR_VERSION", NULL},
               {"RECORDING_SHA256", NULL},
               {"COSTS_SHA256", NULL}};
  static const char again[] = "run 'weir tune --save' again";
  if (!file->count)
    return weir_cli_fail("%s: not a file of 'weir tune --save'", weir_cli_escaped(path));
  for (size_t i = 0; i < WEIR_COUNT_OF(known); i++) {
    const char *key = known[i].key, *own = find(here, key), *given = find(file, key);
    if (given && !own && known[i].missing)
      return weir_cli_fail("the results in %s are for %s \"%.100s\": %s", path, key, given, known[i].missing);
    if (own && !given && !known[i].missing)
      return weir_cli_fail("the results in %s are stale: the validator %s, here \"%s\", is not in the file; %s", path,
                           key, own, again);
    if (own && given && strcmp(own, given) != 0)
      return weir_cli_fail("the results in %s are stale: the validator %s is \"%s\" in the file and \"%s\" here; %s",
                           path, key, given, own, again);
    if (given && !own && (strcmp(key, "RECORDING_SHA256") != 0 || purpose->file_count))
      return weir_cli_fail("the results in %s are stale: the validator %s, \"%s\" in the file, does not exist here; %s",
                           path, key, given, again);
  }
  return WEIR_EXIT_OK;
}

int weir_cli_tuned_load(const char *path, const weir_cli_tuned_for *purpose, weir_cli_tuned *tuned) {
  validators here = {0};
  char params[PARAMS_SIZE];
  bool is_found = false;
  format_params(purpose, params);
  *tuned = (weir_cli_tuned){0};
  result_file *file = calloc(1, sizeof *file);
  if (!file)
    return weir_cli_fail("out of host memory");
  int code = read_file(path, file);
  if (!code)
    code = find_validators(purpose, &here);
  if (!code)
    code = check_validators(path, purpose, &file->validators, &here);
  for (size_t i = 0; !code && i < file->result_count; i++) {
    const result *row = &file->results[i];
    if (strcmp(row->params, params) != 0)
      continue;
    if (!strcmp(row->op, plain_op)) {
      code = read_settings(path, row, tuned->conf);
      tuned->cost_ns = row->milliseconds * 1e6;
      is_found = true;
    } else if (!strcmp(row->op, moving_op)) {
      code = read_settings(path, row, tuned->moving);
      tuned->moving_cost_ns = row->milliseconds * 1e6;
      tuned->has_moving = true;
    }
  }
  if (!code && !is_found)
    code = weir_cli_fail("%s has no settings for %s: it was saved with another --memory, --fraction or --device", path,
                         params);
  free(file);
  return code;
}
