/*
 * The settings, results and files of tunable operations. weir__tunable_run (tunable_op.c) times them.
 */
#include "src/tunable.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/blas.h"
#include "src/environment.h"
#include "src/hash_map.h"
#include "src/tuning_file.h"

enum { NAME_SIZE = 4096, MEGABYTE = 1 << 20 };

/* ---- The environment ---- */

typedef struct number {
  bool is_set;
  int value;
} number;

static struct environment {
  bool enables, forbids_tuning, records_untuned;
  number max_duration, max_iterations, max_warmup_duration, max_warmup_iterations, rotating, verbose;
  bool has_check, checks;
  double atol, rtol;
  char *filename, *untuned, *messages; /* NULL if not set */
} environment;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

static number read_number(weir__variable variable) {
  double value = 0;
  bool is_set = weir__compute_env(variable) != NULL;
  if (weir__compute_env_number(variable, &value) && (int)value == value)
    return (number){is_set, (int)value};
  weir__compute_env_ignore(variable, "it is ignored");
  return (number){0};
}

static void read_check(void) {
  char *end = NULL;
  const char *text = weir__compute_env(WEIR__ENV_TUNABLE_CHECK);
  if (!text)
    return;
  struct environment *e = &environment;
  e->has_check = true;
  e->atol = e->rtol = 1e-5;
  e->checks = strcmp(text, "0") != 0;
  if (!e->checks || !strcmp(text, "1"))
    return;
  e->atol = strtod(text, &end);
  if (end > text && *end == '_') {
    text = end + 1;
    e->rtol = strtod(text, &end);
  }
  if (end == text || *end || !(e->atol > 0) || !(e->rtol > 0)) {
    weir__compute_env_ignore(WEIR__ENV_TUNABLE_CHECK, "it is ignored");
    e->has_check = false;
  }
}

static char *read_name(weir__variable variable) {
  const char *text = weir__compute_env(variable);
  return text ? strdup(text) : NULL;
}

static void read_environment(void) {
  struct environment *e = &environment;
  e->enables = weir__compute_env_is(WEIR__ENV_TUNABLE_ENABLED, "1");
  e->forbids_tuning = weir__compute_env_is(WEIR__ENV_TUNABLE_TUNING, "0");
  e->records_untuned = weir__compute_env_is(WEIR__ENV_TUNABLE_RECORD_UNTUNED, "1");
  e->max_duration = read_number(WEIR__ENV_TUNABLE_MAX_DURATION);
  e->max_iterations = read_number(WEIR__ENV_TUNABLE_MAX_ITERATIONS);
  e->max_warmup_duration = read_number(WEIR__ENV_TUNABLE_MAX_WARMUP_DURATION);
  e->max_warmup_iterations = read_number(WEIR__ENV_TUNABLE_MAX_WARMUP_ITERATIONS);
  e->rotating = read_number(WEIR__ENV_TUNABLE_ROTATING);
  e->verbose = read_number(WEIR__ENV_TUNABLE_VERBOSE);
  e->filename = read_name(WEIR__ENV_TUNABLE_FILENAME);
  e->untuned = read_name(WEIR__ENV_TUNABLE_UNTUNED_FILENAME);
  e->messages = read_name(WEIR__ENV_TUNABLE_VERBOSE_FILENAME);
  read_check();
}

static const struct environment *get_environment(void) {
  pthread_once(&environment_once, read_environment);
  return &environment;
}

/* ---- Settings ---- */

static atomic_bool enabled, is_tuning = true, records_untuned, writes = true;
static atomic_int max_duration = 30, max_iterations = 100, max_warmup_duration, max_warmup_iterations, rotating = -1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static struct check {
  int on;
  double atol, rtol;
} check = {0, 1e-5, 1e-5};
static char *filename; /* NULL for the default */
static bool inserts_ordinal;

void weir_tunable_set_enabled(int on) {
  weir__tunable_log(1, "%s TunableOp", on ? "Enable" : "Disable");
  atomic_store(&enabled, on != 0);
}
int weir_tunable_is_enabled(void) { return get_environment()->enables || atomic_load(&enabled); }

void weir_tunable_set_tuning(int on) {
  weir__tunable_log(1, "%s Tuning for TunableOp", on ? "Enable" : "Disable");
  atomic_store(&is_tuning, on != 0);
}
int weir_tunable_is_tuning(void) { return !get_environment()->forbids_tuning && atomic_load(&is_tuning); }

void weir_tunable_set_record_untuned(int on) {
  weir__tunable_log(1, "%s Record Untuned for TunableOp", on ? "Enable" : "Disable");
  atomic_store(&records_untuned, on != 0);
}
int weir_tunable_is_recording_untuned(void) {
  return get_environment()->records_untuned || atomic_load(&records_untuned);
}

static int natural(int value) { return value < 0 ? 0 : value; }
static int choose(number given, const atomic_int *own) {
  return given.is_set ? natural(given.value) : atomic_load(own);
}

void weir_tunable_set_max_duration(int milliseconds) { atomic_store(&max_duration, natural(milliseconds)); }
int weir_tunable_get_max_duration(void) { return choose(get_environment()->max_duration, &max_duration); }
void weir_tunable_set_max_iterations(int iterations) { atomic_store(&max_iterations, natural(iterations)); }
int weir_tunable_get_max_iterations(void) { return choose(get_environment()->max_iterations, &max_iterations); }
void weir_tunable_set_max_warmup_duration(int milliseconds) {
  atomic_store(&max_warmup_duration, natural(milliseconds));
}
int weir_tunable_get_max_warmup_duration(void) {
  return choose(get_environment()->max_warmup_duration, &max_warmup_duration);
}
void weir_tunable_set_max_warmup_iterations(int iterations) {
  atomic_store(&max_warmup_iterations, natural(iterations));
}
int weir_tunable_get_max_warmup_iterations(void) {
  return choose(get_environment()->max_warmup_iterations, &max_warmup_iterations);
}

void weir_tunable_set_rotating_buffer_size(int mebibytes) { atomic_store(&rotating, mebibytes); }

weir_status weir_tunable_get_rotating_buffer_size(int device, uint64_t *bytes) {
  WEIR__CHECK_ARGUMENT(bytes);
  const struct environment *e = get_environment();
  int size = e->rotating.is_set ? e->rotating.value : atomic_load(&rotating);
  if (size < 0) {
    weir_device_properties properties;
    weir_device_properties_init(&properties);
    weir_status status = weir_device_get_properties(device, &properties);
    if (status)
      return weir__fail_as(__func__, status);
    *bytes = (uint64_t)natural(properties.l2_cache_size);
  } else
    *bytes = (uint64_t)size * MEGABYTE;
  return WEIR_OK;
}

weir_status weir_tunable_set_numerical_check(int on, double atol, double rtol) {
  if (!(atol > 0) || !(rtol > 0))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Numerical check tolerances must be positive", __func__);
  pthread_mutex_lock(&lock);
  check = (struct check){on != 0, atol, rtol};
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

void weir_tunable_get_numerical_check(int *on, double *atol, double *rtol) {
  const struct environment *e = get_environment();
  pthread_mutex_lock(&lock);
  struct check now = e->has_check ? (struct check){e->checks, e->atol, e->rtol} : check;
  pthread_mutex_unlock(&lock);
  if (on)
    *on = now.on;
  if (atol)
    *atol = now.atol;
  if (rtol)
    *rtol = now.rtol;
}

void weir__tunable_log(int level, const char *format, ...) {
  const struct environment *e = get_environment();
  if (e->verbose.value < level)
    return;
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  bool is_file = e->messages && strcmp(e->messages, "err") != 0 && strcmp(e->messages, "out") != 0;
  FILE *out = is_file ? fopen(e->messages, "ae") : e->messages && !strcmp(e->messages, "out") ? stdout : stderr;
  if (!out)
    return;
  fprintf(out, "%s\n", text);
  if (is_file)
    fclose(out);
}

/* ---- File names ---- */

/* The number replaces the first "%d", or stands before the last dot of the file's own name. */
static bool insert_ordinal(const char *name, int device, char *text, size_t size) {
  const char *slash = strrchr(name, '/'), *token = strstr(name, "%d"), *dot = strrchr(slash ? slash : name, '.');
  size_t length = strlen(name), at = token ? (size_t)(token - name) : dot ? (size_t)(dot - name) : length;
  int written = snprintf(text, size, "%.*s%d%s", (int)at, name, device, name + at + (token ? 2 : 0));
  return written >= 0 && (size_t)written < size;
}

weir_status weir_tunable_set_filename(const char *name, int insert) {
  char *copy = NULL;
  if (name && strlen(name) > NAME_SIZE - 16)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the name is longer than %d bytes", __func__, NAME_SIZE - 16);
  if (name && *name && !(copy = strdup(name)))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the name", __func__);
  pthread_mutex_lock(&lock);
  free(filename);
  filename = copy;
  inserts_ordinal = insert != 0;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

/* Whether the name depends on the device. */
static bool is_name_of_device(void) {
  pthread_mutex_lock(&lock);
  bool is = !filename || inserts_ordinal;
  pthread_mutex_unlock(&lock);
  return is;
}

static bool name_for(int device, char *text, size_t size) {
  const struct environment *e = get_environment();
  pthread_mutex_lock(&lock);
  const char *name = filename ? filename : e->filename ? e->filename : "tunableop_results.csv";
  bool fits = !filename || inserts_ordinal ? insert_ordinal(name, device, text, size)
                                           : (size_t)snprintf(text, size, "%s", name) < size;
  pthread_mutex_unlock(&lock);
  return fits;
}

/* A valid number of a device, for -1 or a number of the caller's. Starts the runtime. */
static weir_status resolve(const char *caller, int device, int *found) {
  int count;
  weir_status status = weir_device_count(&count);
  if (!status && device < 0)
    status = weir_device_get_current(&device);
  if (status)
    return weir__fail_as(caller, status);
  if (device >= count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: there is no device %d, there are %d", caller, device, count);
  *found = device;
  return WEIR_OK;
}

weir_status weir_tunable_get_filename(int device, char *text, size_t size, size_t *length) {
  if (size && !text)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the text is NULL", __func__);
  char name[NAME_SIZE];
  int found = 0;
  weir_status status = is_name_of_device() ? resolve(__func__, device, &found) : WEIR_OK;
  if (status)
    return status;
  if (!name_for(found, name, sizeof name))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the name has more than %zu bytes", __func__, sizeof name - 1);
  return weir__return_text(name, text, size, length);
}

/* ---- Results ---- */

typedef struct result result;
struct result {
  result *next; /* with the same hash */
  char *op, *params, *solution;
  double milliseconds;
};

typedef struct slot {
  uint64_t hash;
  result *first;
} slot;

typedef struct table {
  weir__hash_map map; /* of slots */
  result **list;      /* in the order of addition */
  size_t count, room;
} table;

static struct device_state {
  table results, untuned;
  table given_up;               /* operations that could not be tuned */
  bool has_read, is_dirty;      /* its file; results that are not in it */
  bool has_validators;          /* `validators` are known */
  weir__tuning_file validators; /* of the device, without those of the program */
} states[WEIR_MAX_DEVICES];
static weir__tuning_file program_validators;

/* Held while the file of a device is read for the first time, so that no thread tunes what is in it. */
static pthread_mutex_t file_locks[WEIR_MAX_DEVICES];
static pthread_once_t file_locks_once = PTHREAD_ONCE_INIT;

static void make_file_locks(void) {
  for (int i = 0; i < WEIR_MAX_DEVICES; i++)
    pthread_mutex_init(&file_locks[i], NULL);
}

static uint64_t hash_of(const char *op, const char *params) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char *c = op; *c; c++)
    hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
  hash = (hash ^ ',') * 0x100000001b3u;
  for (const char *c = params; *c; c++)
    hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
  return hash ? hash : 1;
}

static const result *table_find(const table *t, const char *op, const char *params) {
  const slot *s = weir__hash_map_find(&t->map, sizeof *s, hash_of(op, params));
  const result *r = s ? s->first : NULL;
  while (r && (strcmp(r->op, op) != 0 || strcmp(r->params, params) != 0))
    r = r->next;
  return r;
}

static void free_result(result *r) {
  if (!r)
    return;
  free(r->op);
  free(r->params);
  free(r->solution);
  free(r);
}

/* Returns whether it was added: not if it is there, or if the host has no memory. */
static bool table_add(table *t, const char *op, const char *params, const char *solution, double milliseconds) {
  if (table_find(t, op, params))
    return false;
  result *made = calloc(1, sizeof *made);
  slot *s = NULL;
  if (made) {
    *made = (result){
        .op = strdup(op), .params = strdup(params), .solution = strdup(solution), .milliseconds = milliseconds};
    if (made->op && made->params && made->solution && WEIR__RESERVE(t->list, t->room, t->count + 1))
      s = weir__hash_map_put(&t->map, sizeof *s, hash_of(op, params));
  }
  if (!s) {
    free_result(made);
    return false;
  }
  made->next = s->first;
  s->first = made;
  t->list[t->count++] = made;
  return true;
}

static void table_clear(table *t) {
  for (size_t i = 0; i < t->count; i++)
    free_result(t->list[i]);
  free(t->list);
  weir__hash_map_clear(&t->map);
  *t = (table){0};
}

static void forget(struct device_state *state) {
  table_clear(&state->results);
  table_clear(&state->untuned);
  table_clear(&state->given_up);
  weir__tuning_file_clear(&state->validators);
  *state = (struct device_state){0};
}

/* ---- Validators ---- */

static weir_status no_memory(const char *caller) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the results", caller);
}

static bool copy_validators(const weir__tuning_file *from, weir__tuning_file *to) {
  bool has_memory = true;
  for (size_t i = 0; i < from->validator_count && has_memory; i++)
    has_memory = weir__tuning_file_set(to, from->validators[i].key, from->validators[i].value);
  return has_memory;
}

static weir_status find_validators(const char *caller, int device, weir__tuning_file *found) {
  weir__on_device on;
  weir_device_properties device_facts;
  char text[64];
  int version;
  weir_status status = weir__compute_enter(caller, device, &on);
  if (status)
    return status;
  weir_device_properties_init(&device_facts);
  status = weir__fail_as(caller, weir_device_get_properties(device, &device_facts));
  if (!status)
    status = WEIR__CALL_FOR(caller, on.driver, DriverGetVersion(on.driver, &version));
  if (!status) {
    snprintf(text, sizeof text, "%s %d.%d", on.driver->name, version / 1000, version % 1000 / 10);
    if (!weir__tuning_file_set(found, "WEIR_VERSION", weir_version()) ||
        !weir__tuning_file_set(found, "DRIVER_VERSION", text) ||
        !weir__tuning_file_set(found, "DEVICE", device_facts.name) ||
        (weir__blas_version(on.driver, text, sizeof text) && !weir__tuning_file_set(found, "CUBLAS_VERSION", text)))
      status = no_memory(caller);
  }
  weir__compute_leave(&on);
  return status;
}

/* All validators of a device. Those of the device itself are found once. */
static weir_status get_validators(const char *caller, int device, weir__tuning_file *validators) {
  struct device_state *state = &states[device];
  weir__tuning_file found = {0};
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&lock);
  while (!status && !state->has_validators) { /* another thread may forget them meanwhile */
    pthread_mutex_unlock(&lock);
    weir__tuning_file_clear(&found);
    found = (weir__tuning_file){0};
    status = find_validators(caller, device, &found);
    pthread_mutex_lock(&lock);
    if (!status && !state->has_validators) {
      state->validators = found;
      state->has_validators = true;
      found = (weir__tuning_file){0};
    }
  }
  if (!status &&
      (!copy_validators(&state->validators, validators) || !copy_validators(&program_validators, validators)))
    status = no_memory(caller);
  pthread_mutex_unlock(&lock);
  weir__tuning_file_clear(&found);
  return status;
}

weir_status weir_tunable_set_validator(const char *key, const char *value) {
  WEIR__CHECK_ARGUMENT(key);
  if (!weir__tuning_text_is_valid(key) || (value && !weir__tuning_text_is_valid(value)))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: a key or value must not be empty, and has no commas or control characters", __func__);
  weir_status status = WEIR_OK;
  weir__tuning_file *own = &program_validators;
  pthread_mutex_lock(&lock);
  if (value) {
    if (!weir__tuning_file_set(own, key, value))
      status = no_memory(__func__);
  } else
    for (size_t i = 0; i < own->validator_count; i++)
      if (!strcmp(own->validators[i].key, key)) {
        free(own->validators[i].key);
        free(own->validators[i].value);
        own->validators[i] = own->validators[--own->validator_count];
        break;
      }
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- Files ---- */

static weir_status read_into(const char *caller, int device, const char *path) {
  weir__tuning_file file = {0}, expected = {0};
  weir_status status = get_validators(caller, device, &expected);
  weir__tunable_log(1, "reading tuning results from %s", path);
  if (!status)
    status = weir__tuning_file_read(caller, path, &file);
  if (!status && file.skipped)
    weir__log(WEIR_LOG_WARN, "%s: %zu line%s skipped, from line %zu on: expected operation,parameters,solution,time",
              path, file.skipped, file.skipped > 1 ? "s were" : " was", file.first_skipped);
  if (!status)
    status = weir__tuning_file_check(caller, path, &file, &expected);
  if (!status) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < file.row_count; i++)
      if (strlen(file.rows[i].solution) < WEIR__TUNABLE_NAME)
        table_add(&states[device].results, file.rows[i].op, file.rows[i].params, file.rows[i].solution,
                  file.rows[i].milliseconds);
    pthread_mutex_unlock(&lock);
  }
  weir__tuning_file_clear(&file);
  weir__tuning_file_clear(&expected);
  return status;
}

static weir_status add_rows(const char *caller, const table *from, const table *except, weir__tuning_file *file) {
  for (size_t i = 0; i < from->count; i++) {
    const result *r = from->list[i];
    if ((!except || !table_find(except, r->op, r->params)) &&
        !weir__tuning_file_add(file, r->op, r->params, r->solution, r->milliseconds))
      return no_memory(caller);
  }
  return WEIR_OK;
}

static bool same_validators(const struct device_state *a, const struct device_state *b) {
  if (!a->has_validators || !b->has_validators || a->validators.validator_count != b->validators.validator_count)
    return false;
  for (size_t i = 0; i < a->validators.validator_count; i++) {
    const char *value = weir__tuning_file_find(&b->validators, a->validators.validators[i].key);
    if (!value || strcmp(value, a->validators.validators[i].value) != 0)
      return false;
  }
  return true;
}

/* Reads the rows of other processes that a file has, with the validators that are expected. A file that cannot be read
 * or is stale has none: it is replaced. */
static weir_status read_others(const char *caller, const char *path, const weir__tuning_file *expected,
                               weir__tuning_file *others) {
  weir_status status = WEIR_OK;
  if (weir__tuning_file_exists(path)) {
    status = weir__tuning_file_read(caller, path, others);
    if (status || weir__tuning_file_check(caller, path, others, expected))
      weir__tuning_file_clear(others);
  }
  return status == WEIR_ERROR_HOST_OUT_OF_MEMORY ? status : WEIR_OK;
}

/* Adds the rows of other processes to a file that has all rows of this one. */
static weir_status add_others(const char *caller, const weir__tuning_file *others, weir__tuning_file *file) {
  table known = {0};
  bool has_memory = true;
  for (size_t i = 0; i < file->row_count && others->row_count && has_memory; i++)
    has_memory = table_find(&known, file->rows[i].op, file->rows[i].params) ||
                 table_add(&known, file->rows[i].op, file->rows[i].params, "", 0);
  for (size_t i = 0; i < others->row_count && has_memory; i++) {
    const weir__tuning_row *row = &others->rows[i];
    if (strlen(row->solution) < WEIR__TUNABLE_NAME && !table_find(&known, row->op, row->params))
      has_memory = table_add(&known, row->op, row->params, "", 0) &&
                   weir__tuning_file_add(file, row->op, row->params, row->solution, row->milliseconds);
  }
  table_clear(&known);
  return has_memory ? WEIR_OK : no_memory(caller);
}

/* A file that devices share has the results of all that are alike. One that is updated keeps the results of other
 * processes, which have been added since this one read it. */
static weir_status write_results(const char *caller, int device, const char *path, bool is_shared, bool updates) {
  weir__tuning_file file = {0}, others = {0};
  weir_status status = get_validators(caller, device, &file);
  weir__tuning_lock path_lock = {.file = -1};
  if (!status && updates) {
    path_lock = weir__tuning_file_lock(path);
    status = read_others(caller, path, &file, &others);
  }
  pthread_mutex_lock(&lock);
  struct device_state *own = &states[device];
  bool was_dirty = own->is_dirty;
  own->is_dirty = was_dirty && !updates; /* a thread that adds a result from here on writes it */
  if (!status)
    status = add_rows(caller, &own->results, NULL, &file);
  for (int i = 0; i < WEIR_MAX_DEVICES && is_shared && !status; i++)
    if (i != device && same_validators(own, &states[i]))
      status = add_rows(caller, &states[i].results, &own->results, &file);
  pthread_mutex_unlock(&lock);
  if (!status)
    status = add_others(caller, &others, &file);
  if (!status)
    status = weir__tuning_file_write(caller, path, &file);
  weir__tuning_file_unlock(&path_lock);
  if (status && was_dirty) {
    pthread_mutex_lock(&lock);
    own->is_dirty = true;
    pthread_mutex_unlock(&lock);
  }
  weir__tuning_file_clear(&others);
  weir__tuning_file_clear(&file);
  return status;
}

/* Reads the file of a device once, if it exists. */
static void read_once(int device) {
  char path[NAME_SIZE];
  pthread_mutex_lock(&lock);
  bool has_read = states[device].has_read;
  pthread_mutex_unlock(&lock);
  if (has_read)
    return;
  pthread_once(&file_locks_once, make_file_locks);
  pthread_mutex_lock(&file_locks[device]);
  pthread_mutex_lock(&lock);
  has_read = states[device].has_read;
  pthread_mutex_unlock(&lock);
  if (!has_read) {
    if (!weir_tunable_is_recording_untuned() && name_for(device, path, sizeof path) && access(path, F_OK) == 0 &&
        read_into(__func__, device, path))
      weir__log(WEIR_LOG_WARN, "tuning results are not used: %s", weir__last_reason());
    pthread_mutex_lock(&lock);
    states[device].has_read = true;
    pthread_mutex_unlock(&lock);
  }
  pthread_mutex_unlock(&file_locks[device]);
}

weir_status weir_tunable_read_file(int device, const char *name) {
  char path[NAME_SIZE];
  weir_status status = resolve(__func__, device, &device);
  if (status)
    return status;
  if (!name && !name_for(device, path, sizeof path))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the name of the file is too long", __func__);
  return read_into(__func__, device, name ? name : path);
}

weir_status weir_tunable_write_file(int device, const char *name) {
  char path[NAME_SIZE];
  weir_status status = resolve(__func__, device, &device);
  if (status)
    return status;
  if (!name && !name_for(device, path, sizeof path))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the name of the file is too long", __func__);
  read_once(device);
  return write_results(__func__, device, name ? name : path, !name && !is_name_of_device(), !name);
}

/* Writes results that are not in the file. A failure is reported once, and tried again later. */
static void write_if_dirty(int device) {
  static atomic_bool has_warned;
  char path[NAME_SIZE];
  pthread_mutex_lock(&lock);
  bool is_dirty = states[device].is_dirty;
  pthread_mutex_unlock(&lock);
  if (!is_dirty || !atomic_load(&writes) || weir_tunable_is_recording_untuned() || !name_for(device, path, sizeof path))
    return;
  if (write_results(__func__, device, path, !is_name_of_device(), true) && !atomic_exchange(&has_warned, true))
    weir__log(WEIR_LOG_WARN, "tuning results are not saved: %s", weir__last_reason());
}

void weir_tunable_set_write_results(int on) {
  atomic_store(&writes, on != 0);
  for (int i = 0; i < WEIR_MAX_DEVICES && on; i++)
    write_if_dirty(i);
}

/* ---- For the timing ---- */

bool weir__tunable_find(int device, const char *op, const char *params, char solution[WEIR__TUNABLE_NAME]) {
  read_once(device);
  pthread_mutex_lock(&lock);
  const result *r = table_find(&states[device].results, op, params);
  if (!r)
    r = table_find(&states[device].given_up, op, params);
  if (r)
    snprintf(solution, WEIR__TUNABLE_NAME, "%s", r->solution);
  pthread_mutex_unlock(&lock);
  return r != NULL;
}

void weir__tunable_add(int device, const char *op, const char *params, const char *solution, double milliseconds) {
  pthread_mutex_lock(&lock);
  if (table_add(&states[device].results, op, params, solution, milliseconds))
    states[device].is_dirty = true;
  pthread_mutex_unlock(&lock);
  write_if_dirty(device);
}

void weir__tunable_give_up(int device, const char *op, const char *params) {
  pthread_mutex_lock(&lock);
  table_add(&states[device].given_up, op, params, "Default", 0);
  pthread_mutex_unlock(&lock);
}

void weir__tunable_record_untuned(int device, const char *op, const char *params) {
  static atomic_bool has_warned;
  const char *name = get_environment()->untuned ? get_environment()->untuned : "tunableop_untuned.csv";
  char path[NAME_SIZE];
  bool has_failed = false;
  pthread_mutex_lock(&lock);
  if (table_add(&states[device].untuned, op, params, "", 0) && insert_ordinal(name, device, path, sizeof path)) {
    FILE *file = fopen(path, "ae");
    has_failed = !file || fprintf(file, "%s,%s\n", op, params) < 0;
    has_failed |= file && fclose(file) != 0;
  }
  int reason = errno;
  pthread_mutex_unlock(&lock);
  if (has_failed && !atomic_exchange(&has_warned, true))
    weir__log(WEIR_LOG_WARN, "untuned operations are not saved: cannot write %s: %s", path, strerror(reason));
}

void weir__tunable_end(void) {
  for (int i = 0; i < WEIR_MAX_DEVICES; i++) {
    write_if_dirty(i);
    pthread_mutex_lock(&lock);
    forget(&states[i]);
    pthread_mutex_unlock(&lock);
  }
}

/* ---- Lists ---- */

void weir_tunable_free(void *list) { free(list); }

/* Copies a text behind a list, and moves on. */
static const char *append(char **at, const char *text) {
  char *copy = *at;
  size_t bytes = strlen(text) + 1;
  memcpy(copy, text, bytes);
  *at += bytes;
  return copy;
}

weir_status weir_tunable_list_results(int device, weir_tunable_result **results, size_t *count) {
  WEIR__CHECK_ARGUMENT(results);
  WEIR__CHECK_ARGUMENT(count);
  weir_status status = resolve(__func__, device, &device);
  if (status)
    return status;
  read_once(device);
  pthread_mutex_lock(&lock);
  const table *t = &states[device].results;
  size_t bytes = (t->count + 1) * sizeof **results;
  for (size_t i = 0; i < t->count; i++)
    bytes += strlen(t->list[i]->op) + strlen(t->list[i]->params) + strlen(t->list[i]->solution) + 3;
  weir_tunable_result *list = malloc(bytes);
  if (list) {
    char *at = (char *)(list + t->count + 1);
    for (size_t i = 0; i < t->count; i++) {
      const result *r = t->list[i];
      list[i] =
          (weir_tunable_result){append(&at, r->op), append(&at, r->params), append(&at, r->solution), r->milliseconds};
    }
    *results = list;
    *count = t->count;
  } else
    status = no_memory(__func__);
  pthread_mutex_unlock(&lock);
  return status;
}

weir_status weir_tunable_list_validators(int device, weir_tunable_validator **validators, size_t *count) {
  WEIR__CHECK_ARGUMENT(validators);
  WEIR__CHECK_ARGUMENT(count);
  weir__tuning_file all = {0};
  weir_status status = resolve(__func__, device, &device);
  if (!status)
    status = get_validators(__func__, device, &all);
  size_t bytes = (all.validator_count + 1) * sizeof **validators;
  for (size_t i = 0; i < all.validator_count; i++)
    bytes += strlen(all.validators[i].key) + strlen(all.validators[i].value) + 2;
  weir_tunable_validator *list = status ? NULL : malloc(bytes);
  if (list) {
    char *at = (char *)(list + all.validator_count + 1);
    for (size_t i = 0; i < all.validator_count; i++)
      list[i] = (weir_tunable_validator){append(&at, all.validators[i].key), append(&at, all.validators[i].value)};
    *validators = list;
    *count = all.validator_count;
  } else if (!status)
    status = no_memory(__func__);
  weir__tuning_file_clear(&all);
  return status;
}

weir_status weir_tunable_forget(int device) {
  weir_status status = resolve(__func__, device, &device);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  forget(&states[device]);
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}
