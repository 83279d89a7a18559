/*
 * weir bench alloc: PyTorch's allocator as a contestant, if PyTorch is installed.
 *
 * Weir is not linked to PyTorch. python3 reports where its PyTorch is, bench_torch.cpp is compiled against it in a
 * temporary folder, and runs in a process of its own, which waits for its turns. Any failure is a reason why PyTorch
 * is absent.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "bench.h"
#include "bench_torch_source.h"

enum { OUTPUT_SIZE = 1 << 16, ARGUMENTS_MAX = 64 };

/* Starts a program with these descriptors as its stdin (-1 for ours) and stdout; stderr goes to the file `errors`. */
static bool start(char *const argv[], int in, int out, const char *errors, pid_t *child) {
  posix_spawn_file_actions_t actions;
  if (posix_spawn_file_actions_init(&actions))
    return false;
  bool started = (in < 0 || posix_spawn_file_actions_adddup2(&actions, in, 0) == 0) &&
                 posix_spawn_file_actions_adddup2(&actions, out, 1) == 0 &&
                 posix_spawn_file_actions_addopen(&actions, 2, errors, O_WRONLY | O_CREAT | O_TRUNC, 0600) == 0 &&
                 posix_spawnp(child, argv[0], &actions, NULL, argv, environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  return started;
}

/* Runs a program and reads its stdout; stderr goes to the file `errors`. Returns the exit code, or -1. */
static int capture(char *const argv[], const char *errors, char output[OUTPUT_SIZE]) {
  int ends[2], status;
  pid_t child;
  output[0] = 0;
  if (pipe2(ends, O_CLOEXEC))
    return -1;
  bool started = start(argv, -1, ends[1], errors, &child);
  close(ends[1]);
  if (!started) {
    close(ends[0]);
    return -1;
  }
  /* Output beyond the buffer is read as well, or the child would block. */
  char rest[512] = {0};
  size_t length = 0;
  for (;;) {
    size_t room = OUTPUT_SIZE - 1 - length;
    ssize_t got = read(ends[0], room ? output + length : rest, room ? room : sizeof rest);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      break;
    length += room ? (size_t)got : 0;
  }
  output[length] = 0;
  close(ends[0]);
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool write_file(const char *path, const unsigned char *bytes, size_t count) {
  FILE *file = fopen(path, "we");
  if (!file)
    return false;
  bool is_written = fwrite(bytes, 1, count, file) == count;
  return fclose(file) == 0 && is_written;
}

/* "what: the first line of the file that contains an error, or its last line". */
static void explain(const char *what, const char *errors, char reason[WEIR_BENCH_REASON]) {
  char line[512], kept[512] = "";
  FILE *file = fopen(errors, "re");
  while (file && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (line[0])
      memcpy(kept, line, sizeof kept);
    if (strstr(line, "error"))
      break;
  }
  if (file)
    fclose(file);
  snprintf(reason, WEIR_BENCH_REASON, "%s%s%.120s", what, kept[0] ? ": " : "", kept);
}

/* Splits a text into lines; returns how many. */
static int split_lines(char *text, char **lines, int room) {
  int count = 0;
  char *rest = text;
  for (char *line; count < room && (line = strsep(&rest, "\n"));)
    if (*line)
      lines[count++] = line;
  return count;
}

/* The files of the temporary folder. */
typedef struct work_files {
  char folder[256], script[300], source[300], header[300], program[300], errors[300];
} work_files;

static bool make_folder(work_files *files) {
  const char *above = getenv("TMPDIR");
  int length = snprintf(files->folder, sizeof files->folder, "%s/weir-bench-XXXXXX", above && *above ? above : "/tmp");
  if (length >= (int)sizeof files->folder || !mkdtemp(files->folder))
    return false;
  snprintf(files->script, sizeof files->script, "%s/bench_torch.py", files->folder);
  snprintf(files->source, sizeof files->source, "%s/bench_torch.cpp", files->folder);
  snprintf(files->header, sizeof files->header, "%s/bench_patterns.h", files->folder);
  snprintf(files->program, sizeof files->program, "%s/bench_torch", files->folder);
  snprintf(files->errors, sizeof files->errors, "%s/errors", files->folder);
  return true;
}

static void remove_folder(const work_files *files) {
  unlink(files->script);
  unlink(files->source);
  unlink(files->header);
  unlink(files->program);
  unlink(files->errors);
  rmdir(files->folder);
}

static bool compile(work_files *files, char **flags, int flag_count, char output[OUTPUT_SIZE],
                    char reason[WEIR_BENCH_REASON]) {
  const char *compiler = getenv("CXX");
  if (!compiler || !*compiler)
    compiler = "g++";
  char *argv[ARGUMENTS_MAX] = {
      (char *)compiler, "-std=c++20", "-O2", "-w", "-pthread", "-Wl,--allow-shlib-undefined", "-o",
      files->program,   files->source};
  int argc = 9;
  for (int i = 0; i < flag_count && argc < ARGUMENTS_MAX - 1; i++)
    argv[argc++] = flags[i];
  if (!write_file(files->source, bench_torch_cpp, sizeof bench_torch_cpp) ||
      !write_file(files->header, patterns_h, sizeof patterns_h)) {
    snprintf(reason, WEIR_BENCH_REASON, "cannot write to %.120s", files->folder);
    return false;
  }
  int code = capture(argv, files->errors, output);
  if (code == 0)
    return true;
  if (code < 0 || code == 127)
    snprintf(reason, WEIR_BENCH_REASON, "cannot run the C++ compiler %.100s", compiler);
  else
    explain("does not compile", files->errors, reason);
  return false;
}

/* Finds PyTorch, and compiles the program against it. */
static bool make_program(work_files *files, char version[64], char reason[WEIR_BENCH_REASON]) {
  char *flags[ARGUMENTS_MAX];
  bool is_made = false;
  /* The flags point into the answer until the compiler has run; its output follows. */
  char *answer = calloc(2, OUTPUT_SIZE);
  if (!answer) {
    snprintf(reason, WEIR_BENCH_REASON, "out of host memory");
    return false;
  }
  char *ask[] = {"python3", files->script, NULL};
  bool is_written = write_file(files->script, bench_torch_py, sizeof bench_torch_py);
  int code = is_written ? capture(ask, files->errors, answer) : -1;
  int flag_count = split_lines(answer, flags, ARGUMENTS_MAX);
  if (code < 0 || code == 127)
    snprintf(reason, WEIR_BENCH_REASON, is_written ? "python3 is not installed" : "cannot write a temporary file");
  else if (flag_count && strncmp(flags[0], "absent ", 7) == 0)
    snprintf(reason, WEIR_BENCH_REASON, "%s", flags[0] + 7);
  else if (code || !flag_count || strncmp(flags[0], "torch ", 6) != 0)
    explain("python3 did not report where PyTorch is", files->errors, reason);
  else {
    snprintf(version, 64, "%.63s", flags[0] + 6);
    is_made = compile(files, flags + 1, flag_count - 1, answer + OUTPUT_SIZE, reason);
  }
  free(answer);
  return is_made;
}

/* ---- The process ---- */

static struct {
  work_files files;
  pid_t child;
  int socket; /* both its stdin and its stdout */
  FILE *answers;
} torch;

static bool start_process(void) {
  int ends[2];
  char *argv[] = {torch.files.program, NULL};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
    return false;
  bool started = start(argv, ends[1], ends[1], torch.files.errors, &torch.child);
  close(ends[1]);
  torch.socket = ends[0];
  torch.answers = started ? fdopen(ends[0], "r") : NULL;
  if (!torch.answers)
    close(ends[0]);
  return torch.answers != NULL;
}

bool weir_bench_torch_start(char version[64], char reason[WEIR_BENCH_REASON]) {
  /* The defaults are measured, not the settings in the environment. */
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  unsetenv("PYTORCH_ALLOC_CONF");
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  if (!make_folder(&torch.files)) {
    snprintf(reason, WEIR_BENCH_REASON, "cannot make a temporary folder: %s", strerror(errno));
    return false;
  }
  bool is_made = make_program(&torch.files, version, reason);
  if (is_made && start_process())
    return true;
  if (is_made)
    snprintf(reason, WEIR_BENCH_REASON, "its process cannot be started: %s", strerror(errno));
  remove_folder(&torch.files);
  return false;
}

void weir_bench_torch_stop(char reason[WEIR_BENCH_REASON]) {
  int status = 0;
  fclose(torch.answers); /* the process then ends */
  while (waitpid(torch.child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status))
    explain("its run failed", torch.files.errors, reason);
  remove_folder(&torch.files);
}

/* A negative number if the process has ended. */
static double request(const char *question) {
  char answer[64];
  size_t length = strlen(question);
  if (send(torch.socket, question, length, MSG_NOSIGNAL) != (ssize_t)length ||
      !fgets(answer, sizeof answer, torch.answers))
    return -1;
  return strtod(answer, NULL);
}

static int torch_begin(bench_work *work) {
  char question[128];
  snprintf(question, sizeof question, "begin %s %ld %d\n", work->pattern->name, work->warm_steps, work->core);
  return request(question) == 1;
}

static double torch_round(bench_work *work, long pairs) {
  char question[64];
  (void)work;
  snprintf(question, sizeof question, "round %ld\n", pairs);
  return request(question);
}

static void torch_end(bench_work *work) {
  (void)work;
  request("end\n");
}

const bench_player weir_bench_torch_player = {torch_begin, torch_round, torch_end};
