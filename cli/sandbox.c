#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "base/environment.h"
#include "help.h"
#include "record/ring_file.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1 /* the leak sanitizer traces the process at its end, from another one */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

/* ---- Landlock. Its declarations are ours: the kernel's headers may be older than the kernel. ---- */

enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, GET_VERSION = 1, RULE_PATH_BENEATH = 1 };

enum {
  FS_EXECUTE = 1 << 0,
  FS_WRITE_FILE = 1 << 1,
  FS_READ_FILE = 1 << 2,
  FS_READ_DIR = 1 << 3,
  FS_REMOVE_FILE = 1 << 5,
  FS_MAKE_REG = 1 << 8,
  FS_REFER = 1 << 13,    /* from version 2 of the interface on */
  FS_TRUNCATE = 1 << 14, /* from version 3 on */
  FS_FIRST_VERSION = (1 << 13) - 1,
  FS_READ = FS_READ_FILE | FS_READ_DIR,
  FS_WRITE = FS_READ | FS_WRITE_FILE | FS_REMOVE_FILE | FS_MAKE_REG | FS_REFER | FS_TRUNCATE,
  FS_OF_FILES = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE
};

enum { NET_BIND = 1 << 0, NET_CONNECT = 1 << 1 }; /* TCP, from version 4 on */

typedef struct ruleset_attributes {
  uint64_t files, net, scoped;
} ruleset_attributes;

typedef struct __attribute__((packed)) path_attributes {
  uint64_t allowed;
  int32_t parent;
} path_attributes;

/* `allowed` beneath a path. What does not exist, and what cannot be restricted, as a pipe, is left out. */
static void allow(int ruleset, uint64_t handled, const char *path, uint64_t allowed) {
  struct stat about;
  int file = open(path, O_PATH | O_CLOEXEC);
  if (file < 0)
    return;
  if (fstat(file, &about) == 0) {
    const path_attributes rule = {allowed & handled & (S_ISDIR(about.st_mode) ? UINT64_MAX : FS_OF_FILES), file};
    syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, &rule, 0);
  }
  close(file);
}

/* A file that is written, and the folder in which it is replaced. */
static void allow_output(int ruleset, uint64_t handled, const char *path) {
  char target[PATH_MAX];
  if (strcmp(path, "-") == 0)
    return;
  if (!realpath(path, target)) /* it does not exist yet */
    snprintf(target, sizeof target, "%s", path);
  else
    allow(ruleset, handled, target, FS_WRITE);
  char *slash = strrchr(target, '/');
  if (strncmp(target, "/dev/", 5) == 0 || strncmp(target, "/proc/", 6) == 0)
    return;
  if (slash)
    slash[slash == target] = 0;
  allow(ruleset, handled, slash ? target : ".", FS_WRITE);
}

/* The program, and the libraries in PREFIX of PREFIX/bin/weir. Not all of PREFIX, which is $HOME for ~/bin/weir. */
static void allow_installation(int ruleset, uint64_t handled) {
  static const char *const folders[] = {"lib", "lib64"};
  char path[PATH_MAX], library[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  allow(ruleset, handled, path, FS_READ);
  for (int up = 0; up < 2; up++) {
    char *slash = strrchr(path, '/');
    if (!slash)
      return;
    *slash = 0;
  }
  for (size_t i = 0; i < WEIR_COUNT_OF(folders); i++)
    if ((size_t)snprintf(library, sizeof library, "%s/%s", path, folders[i]) < sizeof library)
      allow(ruleset, handled, library, FS_READ);
}

/* Libraries that are loaded when they are needed: of the system, of the program's installation, and LD_LIBRARY_PATH. */
static void allow_libraries(int ruleset, uint64_t handled) {
  static const char *const folders[] = {"/usr", "/lib", "/lib64", "/nix/store", "/gnu/store"};
  char path[PATH_MAX];
  for (size_t i = 0; i < WEIR_COUNT_OF(folders); i++)
    allow(ruleset, handled, folders[i], FS_READ);
  allow_installation(ruleset, handled);
  const char *at = weir__env_text(WEIR__ENV_LIBRARY_PATH);
  for (size_t n; at && *at; at += n + (at[n] == ':')) {
    n = strcspn(at, ":");
    if (n && (size_t)snprintf(path, sizeof path, "%.*s", (int)n, at) < sizeof path)
      allow(ruleset, handled, path, FS_READ);
  }
}

static bool restrict_files(const weir_cli_access *access) {
  static const char *const read_only[] = {"/etc/ld.so.cache", "/etc/localtime", "/proc/meminfo",
                                          "/proc/self",       "/sys/fs/cgroup", "/sys/devices/system/cpu"};
  long version = syscall(CREATE_RULESET, NULL, 0, GET_VERSION);
  if (version < 1)
    return false;
  ruleset_attributes attributes = {.files = FS_FIRST_VERSION};
  attributes.files |= (version >= 2 ? FS_REFER : 0) | (version >= 3 ? FS_TRUNCATE : 0);
  attributes.net = version >= 4 ? (access->listens ? NET_CONNECT : NET_BIND | NET_CONNECT) : 0;
  size_t size = version >= 4 ? offsetof(ruleset_attributes, scoped) : offsetof(ruleset_attributes, net);
  int ruleset = (int)syscall(CREATE_RULESET, &attributes, size, 0);
  if (ruleset < 0)
    return false;
  const uint64_t handled = attributes.files;
  for (size_t i = 0; i < WEIR_COUNT_OF(read_only); i++)
    allow(ruleset, handled, read_only[i], FS_READ);
  allow(ruleset, handled, "/dev/null", FS_READ_FILE | FS_WRITE_FILE);
  allow_libraries(ruleset, handled);
  if (access->reads_all)
    allow(ruleset, handled, "/", FS_READ);
  for (size_t i = 0; i < access->read_count; i++)
    allow(ruleset, handled, access->reads[i], FS_READ);
  for (size_t i = 0; i < access->write_count; i++)
    allow_output(ruleset, handled, access->writes[i]);
  if (access->write_count) { /* for contents that are sorted, or copied when they are complete */
    const char *folder = weir__env_value(WEIR__ENV_TEMPORARY);
    allow(ruleset, handled, folder ? folder : "/tmp", FS_WRITE);
    if (!folder)
      allow(ruleset, handled, "/var/tmp", FS_WRITE);
  }
  bool is_restricted = syscall(RESTRICT_SELF, ruleset, 0) == 0;
  close(ruleset);
  return is_restricted;
}

/* ---- Seccomp ---- */

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#if defined(ARCHITECTURE) && defined(SYS_seccomp)

enum { MAX_INSTRUCTIONS = 512 };

/* The same numbers on all architectures. The C library may use a call that the headers of the kernel do not name. */
enum { CALL_CLONE3 = 435, CALL_CLOSE_RANGE = 436, CALL_OPENAT2 = 437, CALL_FACCESSAT2 = 439, NEWEST = CALL_FACCESSAT2 };

typedef struct filter {
  struct sock_filter code[MAX_INSTRUCTIONS];
  unsigned short count;
} filter;

#define LOW(i) ((uint32_t)offsetof(struct seccomp_data, args[i])) /* both architectures are little-endian */
#define HIGH(i) (LOW(i) + 4)
#define ERROR(number) (SECCOMP_RET_ERRNO | (number))

static void put(filter *f, uint16_t code, uint32_t k, uint8_t if_true, uint8_t if_false) {
  if (f->count < MAX_INSTRUCTIONS)
    f->code[f->count++] = (struct sock_filter)BPF_JUMP(code, k, if_true, if_false);
}

static void put_load(filter *f, uint32_t offset) { put(f, BPF_LD | BPF_W | BPF_ABS, offset, 0, 0); }
static void put_return(filter *f, uint32_t result) { put(f, BPF_RET | BPF_K, result, 0, 0); }
static void put_number(filter *f) { put_load(f, offsetof(struct seccomp_data, nr)); }

/* Returns `result` for a system call. The number of the call is loaded, and stays so. */
static void on_call(filter *f, long call, uint32_t result) {
  put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
  put_return(f, result);
}

/* Allows a call if the low word of an argument, masked, is a value; otherwise it fails. */
static void on_argument(filter *f, long call, int argument, uint32_t mask, uint32_t value) {
  put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 5);
  put_load(f, LOW(argument));
  put(f, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
  put(f, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
  put_return(f, SECCOMP_RET_ALLOW);
  put_return(f, ERROR(EPERM));
}

/* Allows a call if an argument, a pointer, is NULL. */
static void on_null(filter *f, long call, int argument) {
  put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 6);
  put_load(f, LOW(argument));
  put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3);
  put_load(f, HIGH(argument));
  put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
  put_return(f, SECCOMP_RET_ALLOW);
  put_return(f, ERROR(EPERM));
}

/* What can be done with an open file, except choosing the process that gets a signal when it is ready. A terminal
 * chooses its foreground processes as soon as O_ASYNC is set. */
static void put_fcntl(filter *f) {
  put(f, BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 9);
  put_load(f, LOW(1));
  put(f, BPF_JMP | BPF_JEQ | BPF_K, F_SETOWN, 6, 0);
  put(f, BPF_JMP | BPF_JEQ | BPF_K, F_SETOWN_EX, 5, 0);
  put(f, BPF_JMP | BPF_JEQ | BPF_K, F_SETSIG, 4, 0);
  put(f, BPF_JMP | BPF_JEQ | BPF_K, F_SETFL, 0, 2);
  put_load(f, LOW(2));
  put(f, BPF_JMP | BPF_JSET | BPF_K, O_ASYNC, 1, 0);
  put_return(f, SECCOMP_RET_ALLOW);
  put_return(f, ERROR(EPERM));
}

/* The same for ioctl(), and everything that a terminal can do, except putting characters into its input, which the
 * shell would run. */
static void put_ioctl(filter *f) {
  static const uint32_t refused[] = {TIOCSTI, TIOCLINUX, TIOCSPGRP, FIOSETOWN, SIOCSPGRP, FIOASYNC};
  enum { COUNT = WEIR_COUNT_OF(refused) };
  put(f, BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, COUNT + 3);
  put_load(f, LOW(1));
  for (int i = 0; i < COUNT; i++)
    put(f, BPF_JMP | BPF_JEQ | BPF_K, refused[i], (uint8_t)(COUNT - i), 0);
  put_return(f, SECCOMP_RET_ALLOW);
  put_return(f, ERROR(EPERM));
}

/* Calls that read, compute, wait, or work on what is open. */
static const long allowed[] = {
    SYS_read,
    SYS_write,
    SYS_futex,
    SYS_mmap,
    SYS_munmap,
    SYS_madvise,
    SYS_mprotect,
    SYS_brk,
    SYS_mremap,
    SYS_clock_gettime,
    SYS_sched_yield,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_lseek,
    SYS_close,
    SYS_fstat,
    SYS_fstatfs,
    SYS_statfs,
    SYS_getdents64,
    SYS_readlinkat,
    SYS_faccessat,
    SYS_getcwd,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_flock,
    SYS_fsync,
    SYS_fdatasync,
    SYS_fadvise64,
    SYS_readahead,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_sendfile,
    SYS_copy_file_range,
    SYS_splice,
    SYS_msync,
    SYS_mincore,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getpid,
    SYS_gettid,
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getrandom,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigpending,
    SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_exit,
    SYS_exit_group,
    SYS_ppoll,
    SYS_pselect6,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_uname,
    SYS_umask,
    SYS_times,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_getcpu,
    SYS_getpriority,
    SYS_membarrier,
    SYS_prctl,
    SYS_memfd_create,
#if defined(__x86_64__)
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_readlink,
    SYS_access,
    SYS_poll,
    SYS_select,
    SYS_dup2,
    SYS_pipe,
    SYS_arch_prctl,
    SYS_time,
    SYS_getrlimit,
    SYS_newfstatat,
#elif defined(SYS_newfstatat)
    SYS_newfstatat,
#endif
#ifdef SYS_statx
    SYS_statx,
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
    CALL_CLOSE_RANGE,
    CALL_FACCESSAT2,
};

/* What a file that is written or replaced takes as well. Landlock restricts where names are made and removed. It does
 * not restrict modes and owners, so they are changed through an open file alone: the calls that take a path would reach
 * every file of the user. */
static const long allowed_for_output[] = {SYS_linkat,   SYS_renameat, SYS_unlinkat, SYS_fchmod, SYS_fchown,
#if defined(__x86_64__)
                                          SYS_link,     SYS_rename,   SYS_unlink,
#endif
#ifdef SYS_renameat2
                                          SYS_renameat2
#endif
};

static void put_opens(filter *f, bool writes) {
  const uint32_t flags = O_ACCMODE | O_CREAT | O_TRUNC;
  if (writes) {
    on_call(f, SYS_openat, SECCOMP_RET_ALLOW);
    return;
  }
#if defined(__x86_64__)
  on_argument(f, SYS_open, 1, flags, O_RDONLY);
#endif
  on_argument(f, SYS_openat, 2, flags, O_RDONLY);
}

/* TCP sockets that accept connections, and no connection of its own. */
static void put_server(filter *f) {
  static const long calls[] = {SYS_bind,     SYS_listen,   SYS_accept4,    SYS_setsockopt,
                               SYS_recvfrom, SYS_shutdown, SYS_getsockname};
  for (size_t i = 0; i < WEIR_COUNT_OF(calls); i++)
    on_call(f, calls[i], SECCOMP_RET_ALLOW);
  on_null(f, SYS_sendto, 4); /* without an address */
  put(f, BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 9);
  put_load(f, LOW(0));
  put(f, BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 0, 6);
  put_load(f, LOW(1));
  put(f, BPF_ALU | BPF_AND | BPF_K, 0xf, 0, 0);
  put(f, BPF_JMP | BPF_JEQ | BPF_K, SOCK_STREAM, 0, 3);
  put_load(f, LOW(2));
  put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1); /* the default protocol: not SCTP or MPTCP */
  put_return(f, SECCOMP_RET_ALLOW);
  put_return(f, ERROR(EPERM));
}

static void make_filter(filter *f, const weir_cli_access *access) {
  put_load(f, offsetof(struct seccomp_data, arch));
  put(f, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
  put_return(f, ERROR(EPERM));
  put_number(f);
  /* Calls that are newer than this list, for which the C library has older ones, and those of x32. */
  put(f, BPF_JMP | BPF_JGT | BPF_K, NEWEST, 0, 1);
  put_return(f, ERROR(ENOSYS));
  put_opens(f, access->write_count > 0); /* ahead of SYS_open, which is in the list */
  for (size_t i = 0; i < WEIR_COUNT_OF(allowed); i++)
    on_call(f, allowed[i], SECCOMP_RET_ALLOW);
  for (size_t i = 0; access->write_count && i < WEIR_COUNT_OF(allowed_for_output); i++)
    on_call(f, allowed_for_output[i], SECCOMP_RET_ALLOW);
  if (access->listens)
    put_server(f);
  on_argument(f, SYS_tgkill, 0, UINT32_MAX, (uint32_t)getpid());
  on_argument(f, SYS_clone, 0, CLONE_THREAD, CLONE_THREAD); /* threads, not processes */
  on_argument(f, SYS_prlimit64, 0, UINT32_MAX, 0);          /* of this process */
  on_call(f, CALL_CLONE3, ERROR(ENOSYS));                   /* its flags are in memory: libc falls back to clone */
  on_call(f, CALL_OPENAT2, ERROR(ENOSYS));                  /* likewise */
  put_fcntl(f);
  put_ioctl(f);
  put_return(f, ERROR(EPERM));
}

static bool restrict_calls(const weir_cli_access *access) {
  static filter f;
  f.count = 0;
  make_filter(&f, access);
  if (f.count == MAX_INSTRUCTIONS)
    return false;
  const struct sock_fprog program = {.len = f.count, .filter = f.code};
  /* For all threads: a library may have started some. */
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

#else

static bool restrict_calls(const weir_cli_access *access) {
  (void)access;
  return false;
}

#endif

/* ---- Both ---- */

int weir_cli_sandbox_enter(const weir_cli_access *access) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return 0;
  int restricted = restrict_files(access) ? WEIR_CLI_SANDBOX_FILES : 0;
  return restricted | (restrict_calls(access) ? WEIR_CLI_SANDBOX_CALLS : 0);
}

/* ---- A command ---- */

/* A ring file names libraries. */
static bool needs_symbols(const char *path) {
  char magic[sizeof WEIR__RING_MAGIC - 1];
  struct stat about;
  if (stat(path, &about) != 0 || !S_ISREG(about.st_mode))
    return false; /* a pipe would lose what is read here */
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  bool is_ring = file >= 0 && read(file, magic, sizeof magic) == (ssize_t)sizeof magic &&
                 memcmp(magic, WEIR__RING_MAGIC, sizeof magic) == 0;
  if (file >= 0)
    close(file);
  return is_ring;
}

static bool is_off(void) {
  const char *choice = weir__env_text(WEIR__ENV_SANDBOX);
  return choice && (strcmp(choice, "off") == 0 || strcmp(choice, "0") == 0);
}

/* Valgrind does not know Landlock, and makes system calls of its own in this process. */
static bool is_under_valgrind(void) {
  const char *preloaded = weir__env_text(WEIR__ENV_PRELOAD);
  return preloaded && strstr(preloaded, "/vgpreload_");
}

void weir_cli_sandbox_command(const weir_cli_command *command, int count, char **arguments) {
  enum { MAX_PATHS = 64 };
  const char *writes[MAX_PATHS];
  weir_cli_access access = {.writes = writes, .listens = command->listens && *command->listens};
  const weir_cli_option *o;
  bool is_reader = weir_cli_takes_recordings(command) || command->reads_arguments;
  if (IS_SANITIZED || is_off() || is_under_valgrind() || !(is_reader || command->is_confined))
    return;
  const char **reads = calloc((size_t)count + MAX_PATHS, sizeof *reads);
  if (!reads)
    return;
  for (int i = 0; is_reader && i < count; i++)
    reads[access.read_count++] = arguments[i];
  for (size_t i = 0; (o = weir_cli_option_at(command, i)) && access.write_count + 1 < MAX_PATHS; i++) {
    const char *path = o->kind == WEIR_CLI_PATH && o->target ? *(const char **)o->target : NULL;
    if (o->kind == WEIR_CLI_PATH && !path && !access.listens && strcmp(o->name, "output") == 0)
      path = command->writes_here ? "./-" : "-"; /* a file whose name is not known yet, or the standard output */
    if (!path)
      continue;
    if (weir_cli_names_input(o))
      reads[access.read_count++] = path;
    else
      writes[access.write_count++] = path;
  }
  for (size_t i = 0; i < access.read_count && !access.reads_all; i++)
    access.reads_all = needs_symbols(reads[i]);
  access.reads = reads;
  weir_cli_sandbox_enter(&access);
  free(reads);
}
