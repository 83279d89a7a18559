/*
 * What a process can still do in the sandbox of the program. Each case is a process of its own, since a sandbox is for
 * life. Waived where the kernel or a container has neither Landlock nor seccomp filters.
 */
#include "../../cli/sandbox.c" /* NOLINT(bugprone-suspicious-include): its parts are static */

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "support/check.h"
#include "support/sanitized.h"

/* Of cli/, which the part of sandbox.c that is about commands calls. */
bool weir_cli_takes_recordings(const weir_cli_command *command) { return command->argument != NULL; }
const weir_cli_option *weir_cli_option_at(const weir_cli_command *command, size_t index) {
  return command->options && command->options[index].name ? &command->options[index] : NULL;
}
bool weir_cli_names_input(const weir_cli_option *option) { return strcmp(option->value, "FILE") == 0; }

static char folder[64], input[96], output[96], other[96];
static int parts; /* of the sandbox that this machine has */

/* Runs a case in a process, and fails unless it exits with 0. The number is the line of the check that failed. */
static void in_process(void (*body)(void)) {
  int status;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status))
    fail_msg("killed by signal %d", WTERMSIG(status));
  if (WEXITSTATUS(status))
    fail_msg("the check number %d of the process failed", WEXITSTATUS(status));
}

static int checks;
static void check(bool holds) {
  checks++;
  if (!holds)
    _exit(checks);
}

static bool is_denied(long result) { return result == -1 && (errno == EPERM || errno == EACCES); }

static void enter(const weir_cli_access *access) { check(weir_cli_sandbox_enter(access) == parts); }

static void *add_one(void *number) {
  ++*(int *)number;
  return NULL;
}

static bool can_open(const char *path, int flags) {
  int file = open(path, flags | O_CLOEXEC, 0600);
  if (file >= 0)
    close(file);
  return file >= 0;
}

static bool is_refused(const char *path, int flags) { return !can_open(path, flags) && is_denied(-1); }

static void read_only(void) {
  const char *reads[] = {input};
  char *const arguments[] = {(char *)"true", NULL};
  int before = open(other, O_WRONLY), number = 0;
  pthread_t thread;
  enter(&(weir_cli_access){.reads = reads, .read_count = 1});
  check(can_open(input, O_RDONLY));
  check(write(before, "x", 1) == 1); /* what is open stays so */
  check(pthread_create(&thread, NULL, add_one, &number) == 0 && pthread_join(thread, NULL) == 0 && number == 1);
  check(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
  check(is_refused(input, O_WRONLY));
  check(is_refused(input, O_RDWR));
  check(is_refused(output, O_WRONLY | O_CREAT));
  check(is_refused(folder, O_TMPFILE | O_RDWR));
  check(is_denied(execve("/bin/true", arguments, NULL)));
  if (parts & WEIR_CLI_SANDBOX_FILES) {
    check(is_refused(other, O_RDONLY));
    check(is_denied(unlink(other)));
    check(is_denied(mkdir(output, 0700)));
  }
  if (parts & WEIR_CLI_SANDBOX_CALLS) {
    check(is_denied(socket(AF_INET, SOCK_STREAM, 0)));
    check(is_denied(socket(AF_UNIX, SOCK_STREAM, 0)));
    check(is_denied(fork()));
    check(is_denied(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL)));
    check(is_denied(kill(getppid(), SIGCONT)));
    check(is_denied(syscall(SYS_tgkill, getppid(), getppid(), 0)));
    check(is_denied(syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0)));
    check(is_denied(syscall(SYS_unshare, 0)));
    check(is_denied(ioctl(STDIN_FILENO, TIOCSTI, "x")));
    check(raise(0) == 0);
  }
}

/* The program can be read, but not the folders that it is in: they may be those of the user. */
static void own_folder(void) {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  check(length > 0);
  path[length] = 0;
  enter(&(weir_cli_access){0});
  if (!(parts & WEIR_CLI_SANDBOX_FILES))
    return;
  check(can_open(path, O_RDONLY));
  for (int up = 0; up < 2; up++) {
    *strrchr(path, '/') = 0;
    check(is_refused(path, O_RDONLY | O_DIRECTORY));
  }
}

/* A process that is made the owner of a file gets a signal when the file is ready. */
static void no_signals(void) {
  int ends[2], pid = getppid(), yes = 1;
  struct f_owner_ex owner = {F_OWNER_PID, pid};
  check(pipe2(ends, O_CLOEXEC) == 0);
  enter(&(weir_cli_access){0});
  if (!(parts & WEIR_CLI_SANDBOX_CALLS))
    return;
  check(is_denied(fcntl(ends[0], F_SETOWN, pid)));
  check(is_denied(fcntl(ends[0], F_SETOWN_EX, &owner)));
  check(is_denied(fcntl(ends[0], F_SETSIG, SIGKILL)));
  check(is_denied(fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK)));
  check(is_denied(ioctl(ends[0], FIOSETOWN, &pid)));
  check(is_denied(ioctl(ends[0], SIOCSPGRP, &pid)));
  check(is_denied(ioctl(ends[0], FIOASYNC, &yes)));
  check(is_denied(ioctl(ends[0], TIOCSPGRP, &pid)));
  check(is_denied(ioctl(ends[0], TIOCLINUX, &yes)));
  check(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && (fcntl(ends[0], F_GETFL) & O_NONBLOCK));
  check(fcntl(ends[0], F_GETFD) == FD_CLOEXEC && fcntl(ends[0], F_DUPFD_CLOEXEC, 0) >= 0);
  check(ioctl(ends[0], FIONREAD, &yes) == 0 && yes == 0);
}

static bool is_missing(long result) { return result == -1 && errno == ENOSYS; }

/* Calls for which the C library has older ones if the kernel does not have them; others are refused. */
static void newer_calls(void) {
  enter(&(weir_cli_access){0});
  if (!(parts & WEIR_CLI_SANDBOX_CALLS))
    return;
  check(is_missing(syscall(435, NULL, 0)));                    /* clone3 */
  check(is_missing(syscall(437, AT_FDCWD, "/", NULL, 0)));     /* openat2 */
  check(is_missing(syscall(452, AT_FDCWD, "/nowhere", 0, 0))); /* fchmodat2 */
  check(is_missing(syscall(1000)));                            /* none yet */
  check(is_denied(syscall(434, getppid(), 0)));                /* pidfd_open */
  check(is_denied(syscall(438, -1, 0, 0)));                    /* pidfd_getfd */
  check(!is_denied(syscall(436, 1000, 1000, 0)));              /* close_range */
  check(!is_denied(syscall(439, AT_FDCWD, "/usr", F_OK, 0)));  /* faccessat2 */
}

static int started[2]; /* a pipe */

/* Waits until the sandbox has been entered. Returns NULL if it restricts this thread. */
static void *try_socket(void *context) {
  char byte;
  bool is_restricted = read(started[0], &byte, 1) == 1 && is_denied(socket(AF_INET, SOCK_STREAM, 0));
  return is_restricted ? NULL : context;
}

static void earlier_threads(void) {
  pthread_t thread;
  void *result;
  check(pipe2(started, O_CLOEXEC) == 0 && pthread_create(&thread, NULL, try_socket, started) == 0);
  enter(&(weir_cli_access){0});
  check(write(started[1], "x", 1) == 1 && pthread_join(thread, &result) == 0);
  check(!(parts & WEIR_CLI_SANDBOX_CALLS) || !result);
}

/* Modes, owners and times, which Landlock does not restrict: those of an open file alone. */
static void no_changes_by_path(void) {
  const char *writes[] = {output};
  const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  int file = open(other, O_RDONLY | O_CLOEXEC);
  enter(&(weir_cli_access){.writes = writes, .write_count = 1});
  if (!(parts & WEIR_CLI_SANDBOX_CALLS))
    return;
  check(fchmod(file, 0600) == 0 && fchown(file, (uid_t)-1, (gid_t)-1) == 0);
  check(is_denied(fchmodat(AT_FDCWD, other, 0640, 0)));
  check(is_denied(fchownat(AT_FDCWD, other, (uid_t)-1, (gid_t)-1, 0)));
  check(is_denied(utimensat(AT_FDCWD, other, times, 0)));
  check(is_denied(futimens(file, times)));
#if defined(__x86_64__)
  check(is_denied(syscall(SYS_chmod, other, 0640)));
  check(is_denied(syscall(SYS_chown, other, -1, -1)));
  check(is_denied(syscall(SYS_lchown, other, -1, -1)));
  check(is_denied(syscall(SYS_utime, other, NULL)));
  check(is_denied(syscall(SYS_utimes, other, NULL)));
  check(is_denied(syscall(SYS_futimesat, AT_FDCWD, other, NULL)));
#endif
}

static void with_output(void) {
  const char *reads[] = {input}, *writes[] = {output};
  enter(&(weir_cli_access){.reads = reads, .read_count = 1, .writes = writes, .write_count = 1});
  check(can_open(input, O_RDONLY));
  check(can_open(output, O_WRONLY | O_CREAT | O_TRUNC));
  check(rename(output, other) == 0 && unlink(other) == 0); /* in the folder of the output */
  if (parts & WEIR_CLI_SANDBOX_FILES) {
    check(is_refused("/dev/shm/weir-sandbox-test", O_WRONLY | O_CREAT));
    check(is_refused("/etc/passwd", O_RDONLY));
    check(is_refused("/etc/passwd", O_WRONLY));
  }
  if (parts & WEIR_CLI_SANDBOX_CALLS)
    check(is_denied(socket(AF_INET, SOCK_STREAM, 0)));
}

static void with_ring(void) {
  enter(&(weir_cli_access){.reads_all = true});
  check(can_open("/etc/passwd", O_RDONLY));
  check(is_refused(output, O_WRONLY | O_CREAT));
}

static void with_server(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  /* Before the sandbox: a socket that can send without a connection, and an address whose low 32 bits are 0. */
  int sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in *high =
      mmap((void *)0x100000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  enter(&(weir_cli_access){.listens = true});
  if (parts & WEIR_CLI_SANDBOX_CALLS) {
    address.sin_port = htons(9);
    check(is_denied(sendto(sender, "x", 1, 0, (struct sockaddr *)&address, sizeof address)));
    if (high == (void *)0x100000000) {
      *high = address;
      check(is_denied(sendto(sender, "x", 1, 0, (struct sockaddr *)high, sizeof address)));
    }
    check(send(sender, "x", 1, 0) == -1 && errno == EDESTADDRREQ);
    address.sin_port = 0;
  }
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(listener >= 0);
  check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
  check(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
  int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(is_denied(connect(client, (struct sockaddr *)&address, sizeof address)));
  if (parts & WEIR_CLI_SANDBOX_CALLS) {
    check(is_denied(socket(AF_INET, SOCK_DGRAM, 0)) && is_denied(socket(AF_UNIX, SOCK_STREAM, 0)));
    check(is_denied(socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP)) &&
          is_denied(socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP)));
  }
}

/* A command finds its inputs and outputs in its options. */
static void with_command(void) {
  const char *to = output;
  const weir_cli_option options[] = {{"output", .kind = WEIR_CLI_PATH, .value = "OUT", .target = &to}, {0}};
  const weir_cli_command command = {.name = "test", .argument = "FILE", .options = options};
  char *files[] = {input};
  weir_cli_sandbox_command(&command, 1, files);
  check(can_open(input, O_RDONLY));
  check(can_open(output, O_WRONLY | O_CREAT));
  check(is_denied(execl("/bin/true", "true", (char *)NULL)));
  if (parts & WEIR_CLI_SANDBOX_FILES)
    check(is_refused("/etc/passwd", O_RDONLY));
}

static void turned_off(void) {
  const weir_cli_command command = {.name = "test", .argument = "FILE"};
  char *files[] = {input};
  check(setenv("WEIR_SANDBOX", "off", 1) == 0);
  weir_cli_sandbox_command(&command, 1, files);
  execl("/bin/true", "true", (char *)NULL);
  check(false);
}

static void measure(void) {
  const char *reads[] = {input}, *writes[] = {output};
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  enter(&(weir_cli_access){.reads = reads, .read_count = 1, .writes = writes, .write_count = 1});
  clock_gettime(CLOCK_MONOTONIC, &end);
  double ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
  if (ms > 1)
    _exit(2);
}

TEST(read_only) { in_process(read_only); }
TEST(own_folder) { in_process(own_folder); }
TEST(no_signals) { in_process(no_signals); }
TEST(newer_calls) { in_process(newer_calls); }
TEST(earlier_threads) { in_process(earlier_threads); }
TEST(no_changes_by_path) { in_process(no_changes_by_path); }
TEST(with_output) { in_process(with_output); }
TEST(with_ring) { in_process(with_ring); }
TEST(with_server) { in_process(with_server); }
TEST(with_command) { in_process(with_command); }
TEST(turned_off) { in_process(turned_off); }

/* It takes less than a millisecond; the best of a few, since other processes run, too. */
TEST(cost) {
  int status = 1;
  for (int i = 0; i < 20 && status; i++) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
      measure();
      _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
  }
  assert_int_equal(status, 0);
}

static int find_parts(void) {
  int status = 0;
  pid_t child = fork();
  if (child == 0)
    _exit(weir_cli_sandbox_enter(&(weir_cli_access){0}));
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static int setup(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/var/tmp/weir-sandbox-XXXXXX");
  assert_non_null(mkdtemp(folder));
  snprintf(input, sizeof input, "%s/input", folder);
  snprintf(output, sizeof output, "%s/output", folder);
  snprintf(other, sizeof other, "%s/other", folder);
  assert_true(can_open(input, O_WRONLY | O_CREAT) && can_open(other, O_WRONLY | O_CREAT));
  return 0;
}

static int teardown(void **state) {
  (void)state;
  unlink(input);
  unlink(output);
  unlink(other);
  return rmdir(folder);
}

static void prepare(void) {
#ifdef SANITIZED
  puts("skipped: a sanitizer needs more than the program does");
  exit(WAIVED);
#endif
  parts = find_parts();
  if (!parts) {
    puts("skipped: this machine has neither Landlock nor seccomp filters");
    exit(WAIVED);
  }
}

FIXTURE(.prepare = prepare, .setup = setup, .teardown = teardown)
