#include "tuned.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/tuning_file.h"
#include "cli.h"
#include "offline/analyse/sha256.h"
#include "offline/read/input.h"
#include "options.h"
#include "weir/device.h"
#include "weir/runtime.h"

enum { DIGEST_TEXT = 2 * WEIR__SHA256_SIZE + 1, PARAMS_SIZE = 128 };
static const char plain_op[] = "AllocatorSettings", moving_op[] = "AllocatorSettingsMoving";

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
  const char *choice = getenv("WEIR_DRIVER");
  int version;
  if (weir_get_driver(&driver))
    return;
  bool counts = (driver->capabilities & WEIR_DRIVER_NVIDIA) || (choice && *choice && strcmp(choice, "auto") != 0);
  if (counts && !weir_device_name(device < 0 ? 0 : device, machine.name, sizeof machine.name) &&
      !driver->DriverGetVersion(driver, &version)) {
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

static int find_validators(const weir_cli_tuned_for *purpose, weir__tuning_file *found) {
  char digest[DIGEST_TEXT];
  weir__tuning_file_set(found, "WEIR_VERSION", weir_version());
  if (purpose->pytorch)
    weir__tuning_file_set(found, "PT_VERSION", purpose->pytorch);
  if (machine.is_known) {
    weir__tuning_file_set(found, "DEVICE", machine.name);
    weir__tuning_file_set(found, "DRIVER_VERSION", machine.driver);
  }
  int code = WEIR_EXIT_OK;
  if (purpose->file_count) {
    code = hash_files(purpose->files, purpose->file_count, digest);
    if (!code)
      weir__tuning_file_set(found, "RECORDING_SHA256", digest);
  }
  if (!code && purpose->costs) {
    char *costs = (char *)(uintptr_t)purpose->costs;
    code = hash_files(&costs, 1, digest);
    if (!code)
      weir__tuning_file_set(found, "COSTS_SHA256", digest);
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

static bool add_settings(weir__tuning_file *file, const char *op, const char *params, const char *conf, double ns) {
  char text[WEIR__CONF_TEXT];
  snprintf(text, sizeof text, "%s", *conf ? conf : "defaults");
  exchange(text, ',', ';');
  return weir__tuning_file_add(file, op, params, text, ns / 1e6);
}

int weir_cli_tuned_save(const char *path, const weir_cli_tuned_for *purpose, const weir_cli_tuned *tuned) {
  weir__tuning_file file = {0};
  char params[PARAMS_SIZE];
  format_params(purpose, params);
  int code = find_validators(purpose, &file);
  if (!code && (!add_settings(&file, plain_op, params, tuned->conf, tuned->cost_ns) ||
                (tuned->has_moving && !add_settings(&file, moving_op, params, tuned->moving, tuned->moving_cost_ns))))
    code = weir_cli_fail("out of host memory");
  if (!code && weir__tuning_file_write("--save", path, &file))
    code = weir_cli_fail("%s", weir_last_error());
  weir__tuning_file_clear(&file);
  return code;
}

/* ---- Loading ---- */

/* Settings come from a file and go to a shell, so only those that the allocator understands are accepted. */
static int read_settings(const char *path, const weir__tuning_row *row, char conf[WEIR__CONF_TEXT]) {
  weir__settings settings;
  if (strlen(row->solution) >= WEIR__CONF_TEXT)
    return weir_cli_fail("%s: the settings of %s are too long", path, row->op);
  snprintf(conf, WEIR__CONF_TEXT, "%s", strcmp(row->solution, "defaults") ? row->solution : "");
  exchange(conf, ';', ',');
  weir__settings_default(&settings);
  if (weir__settings_parse(NULL, conf, &settings) || strpbrk(conf, "'\"\\`$\n"))
    return weir_cli_fail("%s: the settings of %s are invalid: %.200s", path, row->op, conf);
  return WEIR_EXIT_OK;
}

/* A file need not say for which GPU, driver and PyTorch it was made; what it says must be so. Recordings are compared
 * if they are given. */
static int check_validators(const char *path, const weir_cli_tuned_for *purpose, const weir__tuning_file *file,
                            weir__tuning_file *here) {
  static const struct {
    const char *key, *missing;
  } optional[] = {{"DEVICE", "this machine has no GPU"},
                  {"DRIVER_VERSION", "this machine has no GPU"},
                  {"PT_VERSION", "say with --pytorch which version runs here"}};
  weir__tuning_file compared = {0}, given = {0};
  int code = WEIR_EXIT_OK;
  for (size_t i = 0; i < WEIR_COUNT_OF(optional) && !code; i++) {
    const char *value = weir__tuning_file_find(file, optional[i].key);
    if (value && !weir__tuning_file_find(here, optional[i].key))
      code = weir_cli_fail("the results in %s are for %s \"%.100s\": %s", path, optional[i].key, value,
                           optional[i].missing);
  }
  for (size_t i = 0; i < here->validator_count; i++) {
    const weir__tuning_validator *own = &here->validators[i];
    bool is_optional = false;
    for (size_t k = 0; k < WEIR_COUNT_OF(optional); k++)
      is_optional |= !strcmp(own->key, optional[k].key);
    if (!is_optional || weir__tuning_file_find(file, own->key))
      weir__tuning_file_set(&compared, own->key, own->value);
  }
  for (size_t i = 0; i < file->validator_count; i++)
    if (purpose->file_count || strcmp(file->validators[i].key, "RECORDING_SHA256") != 0)
      weir__tuning_file_set(&given, file->validators[i].key, file->validators[i].value);
  if (!code && weir__tuning_file_check("weir tune", path, &given, &compared)) {
    const char *text = weir_last_error(), *colon = strstr(text, ": ");
    code = file->validator_count ? weir_cli_fail("%s; run 'weir tune --save' again", colon ? colon + 2 : text)
                                 : weir_cli_fail("%s: not a file of 'weir tune --save'", weir_cli_escaped(path));
  }
  weir__tuning_file_clear(&compared);
  weir__tuning_file_clear(&given);
  return code;
}

int weir_cli_tuned_load(const char *path, const weir_cli_tuned_for *purpose, weir_cli_tuned *tuned) {
  weir__tuning_file file = {0}, here = {0};
  char params[PARAMS_SIZE];
  bool is_found = false;
  format_params(purpose, params);
  *tuned = (weir_cli_tuned){0};
  int code = WEIR_EXIT_OK;
  if (weir__tuning_file_read("weir tune", path, &file)) {
    const char *text = weir_last_error(), *colon = strstr(text, ": ");
    code = weir_cli_fail("%s", colon ? colon + 2 : text);
  }
  if (!code && file.skipped)
    code = weir_cli_fail("%s: line %zu is damaged", path, file.first_skipped);
  if (!code)
    code = find_validators(purpose, &here);
  if (!code)
    code = check_validators(path, purpose, &file, &here);
  for (size_t i = 0; i < file.row_count && !code; i++) {
    const weir__tuning_row *row = &file.rows[i];
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
  weir__tuning_file_clear(&file);
  weir__tuning_file_clear(&here);
  return code;
}
