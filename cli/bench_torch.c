/*
 * weir bench alloc: the same patterns through PyTorch's allocator, where there is one.
 *
 * Weir is not linked to PyTorch. python3 is asked where its PyTorch is, bench_torch.cpp is compiled against it in a
 * temporary folder, and what it prints is read. Whatever fails on the way is a reason, and no number is made up.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "bench.h"
#include "bench_torch_source.h"

enum { OUTPUT_SIZE = 1 << 16, ARGUMENTS_MAX = 64 + BENCH_PATTERN_COUNT };

/* Says in the first line "absent" and why, or "torch" and the version; then an argument for the compiler on each line. */
static const char ask_torch[] =
    "import sys\n"
    "def absent(why):\n"
    "    print('absent', ' '.join(str(why).split())[:120]); sys.exit(0)\n"
    "try:\n"
    "    import torch\n"
    "except Exception as error:\n"
    "    absent('no PyTorch for python3' if isinstance(error, ImportError) else error)\n"
    "if not torch.cuda.is_available():\n"
    "    absent('PyTorch finds no GPU')\n"
    "import glob, os, shutil\n"
    "here = os.path.dirname(torch.__file__)\n"
    "wheels = os.path.join(os.path.dirname(here), 'nvidia', '*')\n"
    "nvcc = shutil.which('nvcc')\n"
    "homes = [os.environ.get('CUDA_HOME'), os.environ.get('CUDA_PATH'),\n"
    "         nvcc and os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), '/usr/local/cuda']\n"
    "homes = [home for home in homes if home]\n"
    "headers = [home + '/include' for home in homes] + sorted(glob.glob(wheels + '/include'))\n"
    "headers = [path for path in headers if os.path.exists(path + '/cuda_runtime_api.h')]\n"
    "if not headers:\n"
    "    absent('there is no cuda_runtime_api.h')\n"
    "headers.sort(key=lambda path: not os.path.exists(path + '/crt/host_defines.h'))\n"
    "libraries = [here + '/lib'] + sorted(glob.glob(wheels + '/lib'))\n"
    "print('torch', torch.__version__)\n"
    "print('-D_GLIBCXX_USE_CXX11_ABI=%d' % int(torch._C._GLIBCXX_USE_CXX11_ABI))\n"
    "print('-isystem' + here + '/include')\n"
    "print('-isystem' + headers[0])\n"
    "for path in libraries:\n"
    "    print('-L' + path); print('-Wl,-rpath,' + path)\n"
    "print('-lc10_cuda'); print('-lc10')\n"
    "runtime = [file for path in libraries + [home + '/lib64' for home in homes]\n"
    "           for file in sorted(glob.glob(path + '/libcudart.so*'))]\n"
    "if runtime:\n"
    "    print(runtime[0])\n";

/* Runs a program and reads its stdout. What it wrote on stderr goes to the file `errors`. The exit code, or -1. */
static int capture(char *const argv[], const char *errors, char output[OUTPUT_SIZE]) {
  int ends[2], status;
  pid_t child;
  posix_spawn_file_actions_t actions;
  output[0] = 0;
  if (pipe2(ends, O_CLOEXEC))
    return -1;
  bool started = posix_spawn_file_actions_init(&actions) == 0 &&
                 posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0 &&
                 posix_spawn_file_actions_addopen(&actions, 2, errors, O_WRONLY | O_CREAT | O_TRUNC, 0600) == 0 &&
                 posix_spawnp(&child, argv[0], &actions, NULL, argv, environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (!started) {
    close(ends[0]);
    return -1;
  }
  /* What is too much is read all the same, or the child would wait. */
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

/* "what: the first line of the file that speaks of an error, or its last one". */
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

/* The lines of a text, ended each; how many of them there are in `lines`. */
static int split_lines(char *text, char **lines, int room) {
  int count = 0;
  char *rest = text;
  for (char *line; count < room && (line = strsep(&rest, "\n"));)
    if (*line)
      lines[count++] = line;
  return count;
}

static void read_results(char *output, const bench_pattern *patterns, int count, weir_bench_result *results) {
  char *lines[BENCH_PATTERN_COUNT];
  int line_count = split_lines(output, lines, BENCH_PATTERN_COUNT);
  for (int i = 0; i < line_count; i++) {
    char name[64];
    weir_bench_result r = {.is_there = true};
    if (sscanf(lines[i], "{\"pattern\": \"%63[^\"]\", \"ns\": %lf, \"least\": %lf, \"most\": %lf}", name, &r.median,
               &r.least, &r.most) != 4)
      continue;
    for (int p = 0; p < count; p++)
      if (strcmp(patterns[p].name, name) == 0)
        results[p] = r;
  }
}

/* The files of the temporary folder. */
typedef struct work_files {
  char folder[256], source[300], header[300], program[300], errors[300];
} work_files;

static bool make_folder(work_files *files) {
  const char *above = getenv("TMPDIR");
  int length = snprintf(files->folder, sizeof files->folder, "%s/weir-bench-XXXXXX", above && *above ? above : "/tmp");
  if (length >= (int)sizeof files->folder || !mkdtemp(files->folder))
    return false;
  snprintf(files->source, sizeof files->source, "%s/bench_torch.cpp", files->folder);
  snprintf(files->header, sizeof files->header, "%s/bench_patterns.h", files->folder);
  snprintf(files->program, sizeof files->program, "%s/bench_torch", files->folder);
  snprintf(files->errors, sizeof files->errors, "%s/errors", files->folder);
  return true;
}

static void remove_folder(const work_files *files) {
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
      !write_file(files->header, bench_patterns_h, sizeof bench_patterns_h)) {
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

bool weir_bench_torch(const bench_pattern *patterns, const bool *wanted, int count, const bench_scale *scale,
                      weir_bench_result *results, char version[64], char reason[WEIR_BENCH_REASON]) {
  work_files files = {0};
  char rounds[32], pairs[32], most_ns[32];
  char *flags[ARGUMENTS_MAX];
  bool is_done = false;
  /* Its defaults are measured, whatever this run's environment has for other jobs. */
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  unsetenv("PYTORCH_ALLOC_CONF");
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  /* The flags lie in the answer until the compiler has them; then its room is used for the next one. */
  char *answer = malloc(2 * OUTPUT_SIZE);
  if (!answer || !make_folder(&files)) {
    snprintf(reason, WEIR_BENCH_REASON, "cannot make a temporary folder: %s", strerror(errno));
    free(answer);
    return false;
  }
  char *output = answer + OUTPUT_SIZE;

  char *ask[] = {"python3", "-c", (char *)ask_torch, NULL};
  int code = capture(ask, files.errors, answer);
  int flag_count = split_lines(answer, flags, ARGUMENTS_MAX);
  if (code < 0 || code == 127) {
    snprintf(reason, WEIR_BENCH_REASON, "no python3");
    goto remove;
  }
  if (flag_count && strncmp(flags[0], "absent ", 7) == 0) {
    snprintf(reason, WEIR_BENCH_REASON, "%s", flags[0] + 7);
    goto remove;
  }
  if (code || !flag_count || strncmp(flags[0], "torch ", 6) != 0) {
    explain("python3 did not say where PyTorch is", files.errors, reason);
    goto remove;
  }
  snprintf(version, 64, "%.63s", flags[0] + 6);
  if (!compile(&files, flags + 1, flag_count - 1, output, reason))
    goto remove;

  snprintf(rounds, sizeof rounds, "%d", scale->rounds);
  snprintf(pairs, sizeof pairs, "%ld", scale->pairs);
  snprintf(most_ns, sizeof most_ns, "%.0f", scale->most_ns);
  char *argv[ARGUMENTS_MAX] = {files.program, rounds, pairs, most_ns};
  int argc = 4;
  for (int i = 0; i < count; i++)
    if (wanted[i])
      argv[argc++] = (char *)patterns[i].name;
  argv[argc] = NULL;
  code = capture(argv, files.errors, output);
  read_results(output, patterns, count, results);
  is_done = code == 0;
  if (!is_done)
    explain("its run failed", files.errors, reason);
remove:
  remove_folder(&files);
  free(answer);
  return is_done;
}
