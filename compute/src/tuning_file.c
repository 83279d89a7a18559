#include "src/tuning_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BYTES = 64 << 20, MAX_FIELDS = 4, MAX_VALIDATORS = 1000, SHOWN = 200 };

/* Fields are printable ASCII without commas. */
static bool is_separator(char c) { return c == ',' || c < ' ' || c > '~'; }

bool weir__tuning_text_is_valid(const char *text) {
  if (!*text)
    return false;
  while (*text)
    if (is_separator(*text++))
      return false;
  return true;
}

static weir__tuning_validator *find(const weir__tuning_file *file, const char *key) {
  for (size_t i = 0; i < file->validator_count; i++)
    if (!strcmp(file->validators[i].key, key))
      return &file->validators[i];
  return NULL;
}

const char *weir__tuning_file_find(const weir__tuning_file *file, const char *key) {
  const weir__tuning_validator *validator = find(file, key);
  return validator ? validator->value : NULL;
}

static char *copy_field(const char *text) {
  char *copy = strdup(text);
  for (char *c = copy; c && *c; c++)
    if (is_separator(*c))
      *c = ' ';
  return copy;
}

bool weir__tuning_file_set(weir__tuning_file *file, const char *key, const char *value) {
  weir__tuning_validator made = {copy_field(key), copy_field(value)}, *there = find(file, key);
  if (!made.key || !made.value ||
      (!there && !WEIR__RESERVE(file->validators, file->validator_room, file->validator_count + 1))) {
    free(made.key);
    free(made.value);
    return false;
  }
  if (there) {
    free(there->key);
    free(there->value);
    *there = made;
  } else
    file->validators[file->validator_count++] = made;
  return true;
}

bool weir__tuning_file_add(weir__tuning_file *file, const char *op, const char *params, const char *solution,
                           double milliseconds) {
  weir__tuning_row row = {strdup(op), strdup(params), strdup(solution), milliseconds};
  if (row.op && row.params && row.solution && WEIR__RESERVE(file->rows, file->row_room, file->row_count + 1)) {
    file->rows[file->row_count++] = row;
    return true;
  }
  free(row.op);
  free(row.params);
  free(row.solution);
  return false;
}

void weir__tuning_file_clear(weir__tuning_file *file) {
  for (size_t i = 0; i < file->validator_count; i++) {
    free(file->validators[i].key);
    free(file->validators[i].value);
  }
  for (size_t i = 0; i < file->row_count; i++) {
    free(file->rows[i].op);
    free(file->rows[i].params);
    free(file->rows[i].solution);
  }
  free(file->validators);
  free(file->rows);
  *file = (weir__tuning_file){0};
}

/* ---- Reading ---- */

/* "0.033" or "1e-05". strtod would expect the decimal point of the program's locale. */
static bool parse_time(const char *text, double *milliseconds) {
  double value = 0;
  int exponent = 0, digits = 0;
  for (; *text >= '0' && *text <= '9'; text++, digits++)
    value = value * 10 + (*text - '0');
  if (*text == '.')
    for (text++; *text >= '0' && *text <= '9'; text++, digits++, exponent--)
      value = value * 10 + (*text - '0');
  if (digits && (*text == 'e' || *text == 'E')) {
    bool is_negative = text[1] == '-';
    int given = 0, count = 0;
    for (text += 1 + (text[1] == '-' || text[1] == '+'); *text >= '0' && *text <= '9' && given < 10000; text++, count++)
      given = given * 10 + (*text - '0');
    if (!count)
      return false;
    exponent += is_negative ? -given : given;
  }
  for (; exponent > 0 && value < 1e300; exponent--) /* without libm */
    value *= 10;
  for (; exponent < 0 && value > 0; exponent++)
    value /= 10;
  if (!digits || *text || value >= 1e300)
    return false;
  *milliseconds = value;
  return true;
}

/* A line without its end. Returns false if it is none of the format, and sets *has_memory. */
static bool read_line(weir__tuning_file *file, char *line, bool *has_memory) {
  char *fields[MAX_FIELDS] = {line};
  size_t count = 1;
  for (char *c = line; *c; c++)
    if (*c == ',') {
      *c = 0;
      if (count == MAX_FIELDS)
        break;
      fields[count++] = c + 1;
    }
  for (size_t i = 0; i < count; i++)
    if (!weir__tuning_text_is_valid(fields[i]))
      return false;
  double milliseconds = 0;
  if (count < 3 || (count > 3 && strcmp(fields[0], "Validator") != 0 && !parse_time(fields[3], &milliseconds)))
    return false;
  bool is_validator = !strcmp(fields[0], "Validator");
  if (is_validator && file->validator_count >= MAX_VALIDATORS && !find(file, fields[1]))
    return false; /* they are searched one by one: a file of nothing else would take minutes */
  if (is_validator)
    *has_memory = weir__tuning_file_set(file, fields[1], fields[2]);
  else
    *has_memory = weir__tuning_file_add(file, fields[0], fields[1], fields[2], milliseconds);
  return true;
}

static weir_status read_text(const char *caller, const char *path, char *text, size_t bytes, weir__tuning_file *file) {
  bool has_memory = true;
  size_t number = 1;
  if (memchr(text, 0, bytes))
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: %s is not a text, so not a file of tuning results", caller, path);
  for (char *line = text, *end; line < text + bytes && has_memory; line = end + 1, number++) {
    end = strchr(line, '\n');
    if (!end)
      end = text + bytes;
    *end = 0;
    if (end > line && end[-1] == '\r')
      end[-1] = 0;
    if (*line && !read_line(file, line, &has_memory) && !file->skipped++)
      file->first_skipped = number;
  }
  return has_memory
             ? WEIR_OK
             : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the results in %s", caller, path);
}

weir_status weir__tuning_file_read(const char *caller, const char *path, weir__tuning_file *file) {
  struct stat about;
  FILE *stream = fopen(path, "rbe");
  if (!stream || fstat(fileno(stream), &about)) {
    int error = errno;
    if (stream)
      fclose(stream);
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot read %s: %s", caller, path, strerror(error));
  }
  weir_status status = WEIR_OK;
  char *text = NULL;
  size_t room = 0, bytes = 0;
  if (S_ISDIR(about.st_mode))
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot read %s: %s", caller, path, strerror(EISDIR));
  for (size_t got = 1; !status && got; bytes += got) {
    if (bytes > MAX_BYTES)
      status = weir__fail(WEIR_ERROR_BAD_DATA, "%s: %s is larger than 64 MiB, so not a file of tuning results", caller,
                          path);
    else if (!WEIR__RESERVE(text, room, bytes + (1 << 16) + 1))
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for %s", caller, path);
    got = status ? 0 : fread(text + bytes, 1, room - bytes - 1, stream);
  }
  if (!status && ferror(stream))
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot read %s: %s", caller, path, strerror(errno));
  fclose(stream);
  if (!status) {
    text[bytes] = 0;
    status = read_text(caller, path, text, bytes, file);
  }
  free(text);
  return status;
}

/* ---- Writing ---- */

/* To the nanosecond, without trailing zeros; printf would use the decimal point of the program's locale. */
static void print_time(FILE *stream, double milliseconds) {
  if (!(milliseconds >= 0 && milliseconds < 1e12))
    milliseconds = 0;
  unsigned long long ns = (unsigned long long)(milliseconds * 1e6 + 0.5);
  char decimals[8];
  snprintf(decimals, sizeof decimals, "%06llu", ns % 1000000);
  size_t length = 6;
  while (length && decimals[length - 1] == '0')
    length--;
  fprintf(stream, "%llu%s%.*s", ns / 1000000, length ? "." : "", (int)length, decimals);
}

static int write_all(int file, const char *text, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t written = write(file, text + done, bytes - done);
    if (written >= 0)
      done += (size_t)written;
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

/* Replaces a regular file as a whole, so that no reader sees a part of it, and writes to a device or FIFO. Returns an
 * errno value. */
static int write_file(const char *path, const char *text, size_t bytes) {
  static atomic_uint number;
  struct stat about = {0};
  char *real = realpath(path, NULL), *part = NULL; /* of a link: the file itself is replaced */
  bool exists = stat(path, &about) == 0, replaces = !exists || S_ISREG(about.st_mode);
  if (!replaces)
    part = strdup(path);
  else if (asprintf(&part, "%s.part-%d-%u", real ? real : path, (int)getpid(), atomic_fetch_add(&number, 1)) < 0)
    part = NULL;
  int file = part ? open(part, replaces ? O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC : O_WRONLY | O_CLOEXEC, 0666) : -1;
  int error = file >= 0 ? 0 : part ? errno : ENOMEM;
  if (!error && exists && replaces && fchmod(file, about.st_mode & 0777))
    error = errno;
  if (!error)
    error = write_all(file, text, bytes);
  if (file >= 0 && close(file) && !error)
    error = errno;
  if (!error && replaces && rename(part, real ? real : path))
    error = errno;
  if (error && replaces && file >= 0)
    unlink(part);
  free(part);
  free(real);
  return error;
}

weir_status weir__tuning_file_write(const char *caller, const char *path, const weir__tuning_file *file) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&text, &bytes);
  if (!stream)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory to write %s", caller, path);
  for (size_t i = 0; i < file->validator_count; i++)
    fprintf(stream, "Validator,%s,%s\n", file->validators[i].key, file->validators[i].value);
  for (size_t i = 0; i < file->row_count; i++) {
    fprintf(stream, "%s,%s,%s,", file->rows[i].op, file->rows[i].params, file->rows[i].solution);
    print_time(stream, file->rows[i].milliseconds);
    fputc('\n', stream);
  }
  int error = fclose(stream) ? ENOMEM : write_file(path, text, bytes);
  free(text);
  return error ? weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot write %s: %s", caller, path, strerror(error)) : WEIR_OK;
}

/* ---- Locks ---- */

bool weir__tuning_file_exists(const char *path) {
  struct stat about;
  return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

static const uint64_t longest_wait_ns = 10000000000;
enum { POLL_NS = 1000000 };

/* Opens the file of a lock. A file of another user may admit reading only, which suffices on a local file system. */
static int open_lock(const char *path) {
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0 && errno == EACCES)
    file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  return file;
}

/* Whether the file is still the one at `path`: the process that held the lock before has removed it. */
static bool is_at(int file, const char *path) {
  struct stat own, there;
  return fstat(file, &own) == 0 && stat(path, &there) == 0 && own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

weir__tuning_lock weir__tuning_file_lock(const char *path) {
  weir__tuning_lock lock = {.file = -1};
  struct stat about;
  if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
    return lock; /* a device or FIFO is not replaced */
  char *real = realpath(path, NULL);
  if (asprintf(&lock.path, "%s.weir-lock", real ? real : path) < 0)
    lock.path = NULL;
  free(real);
  uint64_t start = weir__monotonic_ns();
  while (lock.path && lock.file < 0 && (lock.file = open_lock(lock.path)) >= 0) {
    while (flock(lock.file, LOCK_EX | LOCK_NB) != 0) {
      if ((errno != EWOULDBLOCK && errno != EINTR) || weir__monotonic_ns() - start > longest_wait_ns) {
        close(lock.file);
        lock.file = -1;
        return lock;
      }
      nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    if (!is_at(lock.file, lock.path)) {
      close(lock.file);
      lock.file = -1;
    }
  }
  return lock;
}

void weir__tuning_file_unlock(weir__tuning_lock *lock) {
  if (lock->file >= 0) {
    unlink(lock->path);
    flock(lock->file, LOCK_UN); /* a child of a fork may have the same open file */
    close(lock->file);
  }
  free(lock->path);
  *lock = (weir__tuning_lock){.file = -1};
}

/* ---- Validators ---- */

weir_status weir__tuning_file_check(const char *caller, const char *path, const weir__tuning_file *file,
                                    const weir__tuning_file *expected) {
  for (size_t i = 0; i < expected->validator_count; i++) {
    const weir__tuning_validator *own = &expected->validators[i];
    const char *value = weir__tuning_file_find(file, own->key);
    if (!value)
      return weir__fail(WEIR_ERROR_BAD_STATE,
                        "%s: the results in %s are stale: the validator %.*s, here \"%.*s\", is not in the file",
                        caller, path, SHOWN, own->key, SHOWN, own->value);
    if (strcmp(value, own->value) != 0)
      return weir__fail(WEIR_ERROR_BAD_STATE,
                        "%s: the results in %s are stale: the validator %.*s is \"%.*s\" in the file and \"%.*s\" here",
                        caller, path, SHOWN, own->key, SHOWN, value, SHOWN, own->value);
  }
  for (size_t i = 0; i < file->validator_count; i++) {
    const weir__tuning_validator *given = &file->validators[i];
    if (!find(expected, given->key))
      return weir__fail(
          WEIR_ERROR_BAD_STATE,
          "%s: the results in %s are stale: the validator %.*s, \"%.*s\" in the file, does not exist here", caller,
          path, SHOWN, given->key, SHOWN, given->value);
  }
  return WEIR_OK;
}
