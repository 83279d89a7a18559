/*
 * The system's C++ compiler, for the software device. Source, headers and result are files in a temporary folder.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_texts.h" /* generated: soft_cuda_h and soft_cuda_functions_h */
#include "src/compile.h"
#include "src/environment.h"

/* ---- The compiler ---- */

static bool is_program(const char *path) {
  struct stat info;
  return !stat(path, &info) && S_ISREG(info.st_mode) && !access(path, X_OK);
}

/* The file of a command: a path, or a name on PATH. */
static bool find_program(const char *command, char path[PATH_MAX]) {
  if (strchr(command, '/'))
    return (size_t)snprintf(path, PATH_MAX, "%s", command) < PATH_MAX && is_program(path);
  const char *at = weir__compute_env(WEIR__ENV_PATH);
  for (at = at ? at : "/usr/local/bin:/usr/bin:/bin"; *at;) {
    size_t length = strcspn(at, ":");
    if (length && (size_t)snprintf(path, PATH_MAX, "%.*s/%s", (int)length, at, command) < PATH_MAX && is_program(path))
      return true;
    at += length + (at[length] == ':');
  }
  return false;
}

static weir_status find_compiler(const char *caller, char path[PATH_MAX]) {
  const char *named = weir__compute_env(WEIR__ENV_CXX);
  if (named) {
    if (find_program(named, path))
      return WEIR_OK;
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: WEIR_CXX=%s is not a program", caller, named);
  }
  static const char *const names[] = {"c++", "g++", "clang++"};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++)
    if (find_program(names[i], path))
      return WEIR_OK;
  return weir__fail(
      WEIR_ERROR_NOT_SUPPORTED,
      "%s: the software device compiles source with the system's C++ compiler, and there is none; install "
      "g++ or clang (for example: apt install g++), or name one with WEIR_CXX",
      caller);
}

/* A compiler is identified by its file, so that none has to be started for code in the cache. */
weir_status weir__soft_key(const char *caller, weir__bytes *key) {
  char path[PATH_MAX], real[PATH_MAX], text[PATH_MAX + 96];
  struct stat info;
  weir_status status = find_compiler(caller, path);
  if (status)
    return status;
  if (!realpath(path, real) || stat(real, &info))
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: %s: %s", caller, path, strerror(errno));
  snprintf(text, sizeof text, "host %s %lld %lld.%ld", real, (long long)info.st_size, (long long)info.st_mtim.tv_sec,
           info.st_mtim.tv_nsec);
  weir__bytes_add_text(key, text);
  uint64_t hash = weir__hash_bytes(0, soft_cuda_h, sizeof soft_cuda_h);
  hash = weir__hash_bytes(hash, soft_cuda_functions_h, sizeof soft_cuda_functions_h);
  weir__bytes_add(key, &hash, sizeof hash);
  return WEIR_OK;
}

/* ---- Files ---- */

static bool write_file(const char *path, const void *data, size_t bytes) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool done = fd >= 0;
  for (size_t at = 0; done && at < bytes;) {
    ssize_t put = write(fd, (const char *)data + at, bytes - at);
    if (put < 0 && errno == EINTR)
      continue;
    done = put > 0;
    at += done ? (size_t)put : 0;
  }
  return fd >= 0 && !close(fd) && done;
}

/* A file as a whole with a NUL behind it; NULL if it cannot be read. */
static unsigned char *read_file(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rbe");
  struct stat info;
  if (!file)
    return NULL;
  size_t size = fstat(fileno(file), &info) ? 0 : (size_t)info.st_size;
  unsigned char *data = calloc(1, size + 1);
  if (data && fread(data, 1, size, file) != size) {
    free(data);
    data = NULL;
  }
  fclose(file);
  *bytes = size;
  return data;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
  (void)info;
  (void)kind;
  (void)at;
  return remove(path);
}

typedef struct folder {
  char path[1024];
} folder;

static bool make_folder(folder *f) {
  const char *root = weir__compute_env(WEIR__ENV_TEMPORARY);
  return (size_t)snprintf(f->path, sizeof f->path, "%s/weir-XXXXXX", root ? root : "/tmp") < sizeof f->path &&
         mkdtemp(f->path);
}

static void remove_folder(const folder *f) { nftw(f->path, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

static bool add_file(const folder *f, const char *name, const void *data, size_t bytes) {
  char path[2048];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", f->path, name) >= sizeof path)
    return false;
  for (char *at = path + strlen(f->path) + 1; (at = strchr(at, '/')); *at++ = '/') { /* the folders of "a/b.h" */
    *at = 0;
    if (mkdir(path, 0700) && errno != EEXIST)
      return false;
  }
  return write_file(path, data, bytes);
}

/* CUDA's headers, and those of C that soft_cuda.h replaces, are empty. */
static const char *const empty_headers[] = {"cuda_fp16.h", "cuda_bf16.h", "cuda_runtime.h", "math.h",
                                            "cmath",       "assert.h",    "cassert",        "math_constants.h"};

static bool write_files(const folder *f, const weir_compile_options *options, const weir__bytes *source) {
  bool done = add_file(f, "soft_cuda.h", soft_cuda_h, sizeof soft_cuda_h) &&
              add_file(f, "soft_cuda_functions.h", soft_cuda_functions_h, sizeof soft_cuda_functions_h) &&
              add_file(f, "source.cpp", source->data, source->count);
  for (size_t i = 0; done && i < WEIR_COUNT_OF(empty_headers); i++)
    done = add_file(f, empty_headers[i], "", 0);
  for (int i = 0; done && i < options->header_count; i++)
    done = add_file(f, options->header_names[i], options->headers[i], strlen(options->headers[i]));
  return done;
}

/* ---- Running it ---- */

typedef struct command {
  char **items;
  size_t count, room;
  bool failed;
} command;

static void add(command *c, const char *format, ...) {
  char *item = NULL;
  va_list args;
  va_start(args, format);
  if (vasprintf(&item, format, args) < 0)
    item = NULL;
  va_end(args);
  if (!item || !WEIR__RESERVE(c->items, c->room, c->count + 2)) {
    c->failed = true;
    free(item);
    return;
  }
  c->items[c->count++] = item;
  c->items[c->count] = NULL;
}

static void end_command(command *c) {
  for (size_t i = 0; i < c->count; i++)
    free(c->items[i]);
  free(c->items);
}

/* Options of NVRTC that the host's compiler has too. */
static void add_option(command *c, const char *option) {
  static const struct {
    const char *from, *to;
  } same[] = {{"--define-macro=", "-D"},
              {"--undefine-macro=", "-U"},
              {"--include-path=", "-I"},
              {"--std=", "-std="},
              {"-std=", "-std="},
              {"-D", "-D"},
              {"-U", "-U"},
              {"-I", "-I"},
              {"-O", "-O"}};
  for (size_t i = 0; i < WEIR_COUNT_OF(same); i++)
    if (!strncmp(option, same[i].from, strlen(same[i].from))) {
      add(c, "%s%s", same[i].to, option + strlen(same[i].from));
      return;
    }
}

static void make_command(command *c, const char *compiler, const folder *f, const weir_compile_options *options) {
  static const char *const flags[] = {"-std=c++17",
                                      "-O2",
                                      "-fPIC",
                                      "-shared",
                                      "-fno-exceptions",
                                      "-fno-rtti",
                                      "-fno-threadsafe-statics",
                                      "-fno-strict-aliasing",
                                      "-ffp-contract=off",
                                      "-fvisibility=hidden",
                                      "-w"};
  add(c, "%s", compiler);
  for (size_t i = 0; i < WEIR_COUNT_OF(flags); i++)
    add(c, "%s", flags[i]);
  for (int i = 0; i < options->option_count; i++)
    add_option(c, options->options[i]);
  add(c, "-I%s", f->path);
  add(c, "-include");
  add(c, "%s/soft_cuda.h", f->path);
  add(c, "-x");
  add(c, "c++");
  add(c, "%s/source.cpp", f->path);
  add(c, "-o");
  add(c, "%s/kernel.so", f->path);
  add(c, "-nodefaultlibs");
  add(c, "-lm");
  add(c, "-lc");
  add(c, "-lgcc");
}

/* Runs a command with its messages in a file. Returns 0, an errno value, or -1 if the command failed. */
static int run(const command *c, const char *messages) {
  posix_spawn_file_actions_t actions;
  pid_t process;
  int status, error = posix_spawn_file_actions_init(&actions);
  if (error)
    return error;
  error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (!error)
    error = posix_spawn_file_actions_addopen(&actions, 1, messages, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (!error)
    error = posix_spawn_file_actions_adddup2(&actions, 1, 2);
  if (!error)
    error = posix_spawn(&process, c->items[0], &actions, NULL, c->items, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error)
    return error;
  while (waitpid(process, &status, 0) < 0)
    if (errno != EINTR)
      return errno == ECHILD ? 0 : errno; /* the program ignores SIGCHLD: the object file is there or not */
  return status ? -1 : 0;
}

/* Cuts the name of the temporary folder out of the messages. */
static void shorten(char *log, const folder *f) {
  size_t length = strlen(f->path);
  for (char *at = log; (at = strstr(at, f->path));)
    memmove(at, at + length + (at[length] == '/'), strlen(at + length + (at[length] == '/')) + 1);
}

/* The lines with errors first: the last error has room for about 2000 characters. */
static char *errors_of(const char *log) {
  weir__bytes text = {0};
  for (int errors = 1; errors >= 0; errors--)
    for (const char *line = log; *line;) {
      size_t length = strcspn(line, "\n") + 1;
      if (!line[length - 1])
        length--;
      const char *error = strstr(line, "error:");
      if ((error && error < line + length) == errors)
        weir__bytes_add(&text, line, length);
      line += length;
    }
  weir__bytes_add(&text, "", 1);
  return (char *)text.data;
}

static weir_status check_headers(const char *caller, const weir_compile_options *options) {
  for (int i = 0; i < options->header_count; i++)
    if (*options->header_names[i] == '/' || strstr(options->header_names[i], ".."))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the header name \"%s\" is not a path below the source",
                        caller, options->header_names[i]);
  return WEIR_OK;
}

weir_status weir__soft_compile(const char *caller, const char *source, const weir_compile_options *options,
                               weir__binary *code) {
  char compiler[PATH_MAX], path[2048];
  folder f = {""};
  command c = {0};
  weir__bytes text = {0};
  weir_status status = find_compiler(caller, compiler);
  if (!status)
    status = check_headers(caller, options);
  if (status)
    return status;
  weir__soft_source(source, options, &text);
  if (text.failed) {
    weir__bytes_end(&text);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the source", caller);
  }
  if (!make_folder(&f)) {
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: no temporary folder can be made: %s", caller, strerror(errno));
    goto end_text;
  }
  make_command(&c, compiler, &f, options);
  snprintf(path, sizeof path, "%s/messages", f.path);
  if (c.failed || !write_files(&f, options, &text)) {
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: the source cannot be written to %s: %s", caller, f.path,
                        c.failed ? "out of host memory" : strerror(errno));
    goto remove_folder;
  }
  int result = run(&c, path);
  size_t bytes;
  code->log = (char *)read_file(path, &bytes);
  if (code->log)
    shorten(code->log, &f);
  if (result > 0) {
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: %s cannot be run: %s", caller, compiler, strerror(result));
  } else if (result) {
    char *errors = code->log ? errors_of(code->log) : NULL;
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the source does not compile:\n%s", caller,
                        errors ? errors : "the compiler gives no reason");
    free(errors);
  } else {
    snprintf(path, sizeof path, "%s/kernel.so", f.path);
    code->data = read_file(path, &code->bytes);
    if (!code->data)
      status = weir__fail(WEIR_ERROR_SYSTEM, "%s: the compiled object cannot be read: %s", caller, strerror(errno));
  }
  if (!status && !weir__binary_names(code, 0))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the names", caller);
remove_folder:
  remove_folder(&f);
end_text:
  end_command(&c);
  weir__bytes_end(&text);
  return status;
}

/* The loader identifies a library by its path, so each is loaded from a new one. The file is not needed any more
 * once it is mapped. */
void *weir__soft_open(const char *caller, const weir__binary *code) {
  folder f = {""};
  char path[1100];
  if (!make_folder(&f)) {
    weir__fail(WEIR_ERROR_SYSTEM, "%s: no temporary folder can be made: %s", caller, strerror(errno));
    return NULL;
  }
  snprintf(path, sizeof path, "%s/kernel.so", f.path);
  void *library = NULL;
  if (!write_file(path, code->data, code->bytes)) {
    weir__fail(WEIR_ERROR_SYSTEM, "%s: the compiled object cannot be written to %s: %s", caller, f.path,
               strerror(errno));
  } else if (!(library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
    const char *why = dlerror();
    weir__fail(WEIR_ERROR_SYSTEM, "%s: the compiled object cannot be loaded: %s", caller,
               why ? why : "no reason given");
  }
  remove_folder(&f);
  return library;
}
