#include "base/outfile.h"
#include "base/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system.h"
#include "base/thread.h"

#ifndef __wasi__

#include <limits.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum { MAX_LINKS = 40, MAX_NAMES = 100, SLOTS = 8, COPY_SIZE = 64 * 1024 };

/* ---- Temporary files with a name, for the signal handler of a program ---- */

/* A slot's path is complete while `owner` is a process id; a signal handler ignores all others. */
static struct {
  atomic_int owner; /* 0: free; -1: being filled */
  char path[PATH_MAX];
} slots[SLOTS];

static int register_part(const char *path) {
  size_t size = strlen(path) + 1;
  for (int i = 0; i < SLOTS && size <= PATH_MAX; i++) {
    int free_slot = 0;
    if (!atomic_compare_exchange_strong(&slots[i].owner, &free_slot, -1))
      continue;
    memcpy(slots[i].path, path, size);
    atomic_store(&slots[i].owner, weir__process_id());
    return i;
  }
  return -1;
}

static void forget_part(weir__outfile *out) {
  if (out->slot >= 0)
    atomic_store(&slots[out->slot].owner, 0);
  out->slot = -1;
  free(out->part);
  out->part = NULL;
}

void weir__outfile_abandon_all(void) {
  int self = weir__process_id(); /* the child of a fork has its parent's slots too */
  for (int i = 0; i < SLOTS; i++)
    if (atomic_load(&slots[i].owner) == self)
      unlink(slots[i].path);
}

/* ---- Paths ---- */

static size_t directory_length(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
}

/* The directory that holds the last component; NULL if the host has no memory. */
static char *directory_of(const char *path) {
  size_t length = directory_length(path);
  return length ? strndup(path, length) : strdup(".");
}

/* The descriptor that a link in /proc/self/fd stands for; -1 if the link is not there. */
static int descriptor_of(const char *directory, const char *path) {
  char here[PATH_MAX], there[PATH_MAX];
  const char *name = path + directory_length(path), *end = name + strspn(name, "/");
  if (!realpath("/proc/self/fd", here) || !realpath(directory, there) || strcmp(here, there) != 0)
    return -1;
  char *last;
  long number = strtol(end, &last, 10);
  return *end >= '0' && *end <= '9' && !*last && number <= INT_MAX ? (int)number : -1;
}

/* Replaces *path by what the link there points to. */
static int follow_link(char **path, const char *directory) {
  char text[PATH_MAX];
  ssize_t length = readlink(*path, text, sizeof text - 1);
  if (length < 0)
    return errno;
  text[length] = 0;
  char *next = NULL;
  if (*text == '/')
    next = strdup(text);
  else if (asprintf(&next, "%s/%s", directory, text) < 0)
    next = NULL;
  if (!next)
    return ENOMEM;
  free(*path);
  *path = next;
  return 0;
}

/* Follows links to `target`, or sets `through` where what is at the end cannot be replaced. */
static int find_target(weir__outfile *out, const char *path) {
  struct stat about;
  size_t length = strlen(path);
  if (!length)
    return ENOENT;
  char *at = strdup(path);
  int error = at ? 0 : ENOMEM;
  for (int links = 0; !error; links++) {
    if (lstat(at, &about) != 0) {
      error = errno == ENOENT ? 0 : errno; /* a new file; also where the last link points to none */
      if (!error && at[strlen(at) - 1] == '/')
        error = EISDIR;
      break;
    }
    if (!S_ISLNK(about.st_mode)) {
      if (S_ISREG(about.st_mode)) {
        out->replaces = true;
        out->mode = about.st_mode & 07777;
        out->owner = about.st_uid;
        out->group = about.st_gid;
      } else if (S_ISDIR(about.st_mode))
        error = EISDIR;
      else if ((out->through = open(at, O_WRONLY | O_CLOEXEC | O_NOCTTY)) < 0)
        error = errno;
      break;
    }
    char *directory = directory_of(at);
    struct statfs system;
    if (!directory)
      error = ENOMEM;
    else if (links == MAX_LINKS)
      error = ELOOP;
    else if (statfs(directory, &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
      /* An open file, which has its own position and perhaps no name any more. */
      int descriptor = descriptor_of(directory, at);
      out->through = descriptor >= 0 ? weir__descriptor_copy(descriptor) : open(at, O_WRONLY | O_CLOEXEC | O_NOCTTY);
      error = out->through < 0 ? errno : 0;
      free(directory);
      break;
    } else
      error = follow_link(&at, directory);
    free(directory);
  }
  if (error || out->through >= 0)
    free(at);
  else
    out->target = at;
  return error;
}

/* ---- Temporary files ---- */

static bool has_proc(void) {
  static atomic_int known; /* 1: yes, -1: no */
  int is = atomic_load(&known);
  if (!is) {
    is = access("/proc/self/fd", X_OK) == 0 ? 1 : -1;
    atomic_store(&known, is);
  }
  return is > 0;
}

/* A name in `directory` that this process has not used; NULL if the host has no memory. */
static char *part_name(const char *directory) {
  static atomic_uint count;
  char *name;
  return asprintf(&name, "%s/.weir-%d-%u.part", directory, weir__process_id(), atomic_fetch_add(&count, 1)) < 0 ? NULL
                                                                                                                : name;
}

/* Tries names until `make` has one of its own. They are registered first: a signal may come at any time. */
static int make_name(weir__outfile *out, const char *directory, int (*make)(weir__outfile *out, const char *name)) {
  int error = EEXIST;
  for (int i = 0; error == EEXIST && i < MAX_NAMES; i++) { /* an earlier process of the same number may have left one */
    out->part = part_name(directory);
    if (!out->part)
      return ENOMEM;
    out->slot = register_part(out->part);
    error = make(out, out->part);
    if (error)
      forget_part(out);
  }
  return error;
}

static int create(weir__outfile *out, const char *name) {
  out->fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return out->fd < 0 ? errno : 0;
}

static int link_nameless(weir__outfile *out, const char *name) {
  return linkat(AT_FDCWD, out->fd_path, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
}

static int make_part(weir__outfile *out, const char *directory, weir__outfile_use use) {
  if (use != WEIR__OUTFILE_BY_PATH && has_proc()) {
    out->fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (out->fd >= 0) {
      snprintf(out->fd_path, sizeof out->fd_path, "/proc/self/fd/%d", out->fd);
      return 0;
    }
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) /* what a file system without them says */
      return errno;
  }
  return make_name(out, directory, create);
}

/* For contents that are copied to their target when they are complete. */
static int make_spool(weir__outfile *out, weir__outfile_use use) {
  const char *directory = weir__env_value(WEIR__ENV_TEMPORARY);
  return make_part(out, directory ? directory : "/tmp", use);
}

static int make_contents(weir__outfile *out, weir__outfile_use use) {
  if (out->through >= 0 && use == WEIR__OUTFILE_WRITE) {
    out->fd = out->through;
    out->is_direct = true;
    return 0;
  }
  if (out->through >= 0)
    return make_spool(out, use);
  char *directory = directory_of(out->target);
  if (!directory)
    return ENOMEM;
  int error = make_part(out, directory, use);
  free(directory);
  if ((error == EACCES || error == EPERM || error == EROFS) && out->replaces && access(out->target, W_OK) == 0) {
    out->in_place = true;
    error = make_spool(out, use);
  }
  return error;
}

int weir__outfile_open(weir__outfile *out, const char *path, weir__outfile_use use) {
  *out = (weir__outfile){.fd = -1, .through = -1, .slot = -1};
  int error = 0;
  if (path)
    error = find_target(out, path);
  else if ((out->through = weir__descriptor_copy(STDOUT_FILENO)) < 0)
    error = errno;
  if (!error)
    error = make_contents(out, use);
  if (!error && use == WEIR__OUTFILE_BY_PATH) {
    close(out->fd);
    out->fd = -1;
  }
  if (error)
    weir__outfile_end(out);
  return error;
}

const char *weir__outfile_contents(const weir__outfile *out) {
  return out->is_direct ? NULL : out->part ? out->part : out->fd_path;
}

/* ---- Keeping ---- */

static int write_all(int to, const char *bytes, size_t size) {
  while (size) {
    ssize_t written = write(to, bytes, size);
    if (written < 0 && errno != EINTR)
      return errno;
    if (written > 0) {
      bytes += written;
      size -= (size_t)written;
    }
  }
  return 0;
}

/* Copies the contents to `to`, which is closed. */
static int copy_to(weir__outfile *out, int to) {
  int from = open(weir__outfile_contents(out), O_RDONLY | O_CLOEXEC), error = from < 0 ? errno : 0;
  char *buffer = malloc(COPY_SIZE);
  if (out->part)
    unlink(out->part); /* `to` may be a pipe without a reader, whose signal ends the process */
  while (!error) {
    ssize_t got = buffer ? read(from, buffer, COPY_SIZE) : -1;
    if (got == 0)
      break;
    if (got < 0)
      error = buffer ? errno : ENOMEM;
    else
      error = write_all(to, buffer, (size_t)got);
    if (error == EINTR)
      error = 0;
  }
  free(buffer);
  if (from >= 0)
    close(from);
  if (close(to) != 0 && !error)
    error = errno;
  return error;
}

static int rewrite_in_place(weir__outfile *out) {
  int to = open(out->target, O_WRONLY | O_TRUNC | O_CLOEXEC);
  return to < 0 ? errno : copy_to(out, to);
}

/* Gives the temporary file the permissions of the file that it replaces. A group that cannot be set must not gain what
 * the old one had, so its bits become those of others. The file is open for that: in a sandbox, the calls that take a
 * path may be refused, since they reach files that cannot be opened. */
static int set_permissions(const weir__outfile *out, int fd) {
  struct stat about;
  if (fstat(fd, &about) != 0)
    return errno;
  mode_t mode = out->mode;
  if (about.st_uid != out->owner && fchown(fd, out->owner, (gid_t)-1) != 0)
    mode &= ~(mode_t)S_ISUID;
  if (about.st_gid != out->group && fchown(fd, (uid_t)-1, out->group) != 0)
    mode = (mode & ~(mode_t)(S_ISGID | S_IRWXG)) | (mode & S_IRWXO) << 3;
  return fchmod(fd, mode) != 0 ? errno : 0;
}

static int take_permissions(const weir__outfile *out) {
  if (!out->replaces)
    return 0;
  if (out->fd >= 0)
    return set_permissions(out, out->fd);
  int fd = open(out->part, O_RDONLY | O_CLOEXEC | O_NOFOLLOW); /* written by path */
  if (fd < 0)
    return errno;
  int error = set_permissions(out, fd);
  close(fd);
  return error;
}

/* A new file can get its name at once; a link cannot replace one that is there, so another name comes first. */
static int name_part(weir__outfile *out) {
  if (out->part)
    return 0;
  if (!out->replaces && link_nameless(out, out->target) == 0) {
    out->is_kept = true;
    return 0;
  }
  char *directory = directory_of(out->target);
  int error = directory ? make_name(out, directory, link_nameless) : ENOMEM;
  free(directory);
  return error;
}

int weir__outfile_keep(weir__outfile *out) {
  int error = 0;
  if (out->through >= 0 && !out->is_direct) {
    error = copy_to(out, out->through);
    out->through = -1;
  } else if (out->in_place)
    error = rewrite_in_place(out);
  else if (!out->is_direct) {
    error = take_permissions(out);
    if (!error)
      error = name_part(out);
    if (!error && !out->is_kept && rename(out->part, out->target) != 0)
      error = errno;
    else if (!error)
      out->is_kept = true;
    /* A mount of a single file, or another user's file in a directory like /tmp. */
    if ((error == EBUSY || error == EPERM || error == EACCES) && out->replaces && access(out->target, W_OK) == 0)
      error = rewrite_in_place(out);
  }
  return error;
}

void weir__outfile_end(weir__outfile *out) {
  if (out->part && !out->is_kept)
    unlink(out->part);
  forget_part(out);
  if (out->through >= 0)
    close(out->through);
  if (out->fd >= 0 && !out->is_direct)
    close(out->fd);
  free(out->target);
  *out = (weir__outfile){.fd = -1, .through = -1, .slot = -1};
}

#else

/* Without links, owners and unnamed files, the contents are written in place. */
int weir__outfile_open(weir__outfile *out, const char *path, weir__outfile_use use) {
  *out = (weir__outfile){.fd = STDOUT_FILENO, .through = -1, .slot = -1, .is_direct = true};
  if (!path)
    return use == WEIR__OUTFILE_WRITE ? 0 : ENOSYS;
  if (!(out->target = strdup(path)))
    return ENOMEM;
  out->fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
  out->is_direct = false;
  int error = out->fd < 0 ? errno : 0;
  if (error)
    weir__outfile_end(out);
  return error;
}

const char *weir__outfile_contents(const weir__outfile *out) { return out->target; }

int weir__outfile_keep(weir__outfile *out) {
  out->is_kept = true;
  return 0;
}

void weir__outfile_end(weir__outfile *out) {
  if (out->fd >= 0 && !out->is_direct)
    close(out->fd);
  if (out->target && !out->is_kept)
    unlink(out->target);
  free(out->target);
  *out = (weir__outfile){.fd = -1, .through = -1, .slot = -1};
}

void weir__outfile_abandon_all(void) {}

#endif
