#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/outfile.h"
#include "support/check.h"

static char folder[] = "/tmp/weir_outfile_XXXXXX";

static const char *path_of(const char *name) {
  static char paths[4][512];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static int make_folder(void **state) {
  (void)state;
  strcpy(folder, "/tmp/weir_outfile_XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}

/* Every test leaves only its own files in the folder, and no temporary file. */
static int remove_folder(void **state) {
  (void)state;
  DIR *directory = opendir(folder);
  int parts = 0;
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    parts += strstr(entry->d_name, ".part") != NULL;
    if (unlink(path_of(entry->d_name)) != 0)
      rmdir(path_of(entry->d_name));
  }
  if (directory)
    closedir(directory);
  return rmdir(folder) || parts;
}

static void put(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void check_contents(const char *path, const char *text) {
  char got[256] = "";
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  got[fread(got, 1, sizeof got - 1, file)] = 0;
  fclose(file);
  assert_string_equal(got, text);
}

/* Opens, writes and commits. Returns an errno value. */
static int write_to(const char *path, weir__outfile_use use, const char *text) {
  weir__outfile out;
  int error = weir__outfile_open(&out, path, use);
  if (error)
    return error;
  int fd = use == WEIR__OUTFILE_BY_PATH ? open(weir__outfile_contents(&out), O_WRONLY | O_CLOEXEC) : out.fd;
  assert_true(fd >= 0);
  if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
    error = errno;
  if (use == WEIR__OUTFILE_BY_PATH)
    close(fd);
  if (!error && use == WEIR__OUTFILE_REREAD)
    check_contents(weir__outfile_contents(&out), text);
  if (!error)
    error = weir__outfile_keep(&out);
  weir__outfile_end(&out);
  return error;
}

static const weir__outfile_use uses[] = {WEIR__OUTFILE_WRITE, WEIR__OUTFILE_REREAD, WEIR__OUTFILE_BY_PATH};

#define EACH_USE(use) for (const weir__outfile_use *use = uses; use < uses + 3; use++)

FIXTURE(.setup = make_folder, .teardown = remove_folder)

TEST(a_new_file) {
  struct stat about;
  mode_t mask = umask(027);
  EACH_USE(use) {
    assert_int_equal(write_to(path_of("new"), *use, "text"), 0);
    check_contents(path_of("new"), "text");
    assert_int_equal(stat(path_of("new"), &about), 0);
    assert_int_equal(about.st_mode & 07777, 0640);
    unlink(path_of("new"));
  }
  umask(mask);
  char name[256]; /* the maximum length of a name */
  memset(name, 'n', 255);
  name[255] = 0;
  EACH_USE(use) {
    assert_int_equal(write_to(path_of(name), *use, "text"), 0);
    check_contents(path_of(name), "text");
  }
}

TEST(no_file_before_the_commit) {
  weir__outfile out;
  put(path_of("old"), "old");
  EACH_USE(use) {
    assert_int_equal(weir__outfile_open(&out, path_of("new"), *use), 0);
    assert_int_not_equal(access(path_of("new"), F_OK), 0);
    weir__outfile_end(&out);
    assert_int_not_equal(access(path_of("new"), F_OK), 0);
    assert_int_equal(weir__outfile_open(&out, path_of("old"), *use), 0);
    weir__outfile_end(&out);
    check_contents(path_of("old"), "old");
  }
}

TEST(permissions_are_kept) {
  static const mode_t modes[] = {0600, 0644, 0755, 0464, 0666};
  struct stat before, after;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    EACH_USE(use) {
      put(path_of("file"), "a longer text than the one that comes");
      assert_int_equal(chmod(path_of("file"), modes[i]), 0);
      assert_int_equal(stat(path_of("file"), &before), 0);
      assert_int_equal(write_to(path_of("file"), *use, "text"), 0);
      assert_int_equal(stat(path_of("file"), &after), 0);
      assert_int_equal(after.st_mode, before.st_mode);
      assert_int_not_equal(after.st_ino, before.st_ino); /* replaced, not overwritten */
      assert_int_equal(chmod(path_of("file"), 0600), 0);
      check_contents(path_of("file"), "text");
    }
  if (geteuid() != 0)
    return;
  assert_int_equal(chown(path_of("file"), 12, 34), 0);
  assert_int_equal(write_to(path_of("file"), WEIR__OUTFILE_WRITE, "text"), 0);
  assert_int_equal(stat(path_of("file"), &after), 0);
  assert_int_equal(after.st_uid, 12);
  assert_int_equal(after.st_gid, 34);
}

static void check_is_link(const char *path, const char *to) {
  char got[256] = "";
  assert_true(readlink(path, got, sizeof got - 1) > 0);
  assert_string_equal(got, to);
}

TEST(links_are_followed) {
  char absolute[512];
  snprintf(absolute, sizeof absolute, "%s", path_of("file"));
  assert_int_equal(mkdir(path_of("deeper"), 0700), 0);
  assert_int_equal(symlink("file", path_of("relative")), 0);
  assert_int_equal(symlink(absolute, path_of("deeper/absolute")), 0);
  assert_int_equal(symlink("deeper/absolute", path_of("chain")), 0);
  static const char *const names[] = {"relative", "deeper/absolute", "chain"};
  for (int is_there = 0; is_there < 2; is_there++) /* in the first round the links are dangling */
    for (size_t i = 0; i < 3; i++)
      EACH_USE(use) {
        if (is_there)
          put(path_of("file"), "old");
        else
          unlink(path_of("file"));
        assert_int_equal(write_to(path_of(names[i]), *use, "text"), 0);
        check_contents(path_of("file"), "text");
      }
  check_is_link(path_of("relative"), "file");
  check_is_link(path_of("deeper/absolute"), absolute);
  check_is_link(path_of("chain"), "deeper/absolute");
  struct stat about;
  assert_int_equal(lstat(path_of("file"), &about), 0);
  assert_true(S_ISREG(about.st_mode));
  unlink(path_of("deeper/absolute"));
}

TEST(unwritable_paths) {
  assert_int_equal(mkdir(path_of("folder"), 0700), 0);
  assert_int_equal(symlink("folder", path_of("to_folder")), 0);
  assert_int_equal(symlink("loop", path_of("loop")), 0);
  assert_int_equal(symlink("none/file", path_of("nowhere")), 0);
  put(path_of("file"), "old");
  EACH_USE(use) {
    assert_int_equal(write_to(path_of("folder"), *use, ""), EISDIR);
    assert_int_equal(write_to(path_of("folder/"), *use, ""), EISDIR);
    assert_int_equal(write_to(path_of("new/"), *use, ""), EISDIR);
    assert_int_equal(write_to(path_of("to_folder"), *use, ""), EISDIR);
    assert_int_equal(write_to(path_of("loop"), *use, ""), ELOOP);
    assert_int_equal(write_to(path_of("none/file"), *use, ""), ENOENT);
    assert_int_equal(write_to(path_of("nowhere"), *use, ""), ENOENT);
    assert_int_equal(write_to(path_of("file/file"), *use, ""), ENOTDIR);
    assert_int_equal(write_to("", *use, ""), ENOENT);
  }
  check_is_link(path_of("loop"), "loop");
}

TEST(a_full_disk) {
  const char *full = "/dev/full"; /* only root can replace it */
  if (geteuid() == 0 && mknod(full = path_of("device"), S_IFCHR | 0666, makedev(1, 7)) != 0)
    skip();
  int probe = open(full, O_WRONLY | O_CLOEXEC);
  if (probe < 0)
    skip();
  close(probe);
  char device[512];
  snprintf(device, sizeof device, "%s", full);
  assert_int_equal(symlink(device, path_of("full")), 0);
  EACH_USE(use) {
    assert_int_equal(write_to(device, *use, "text"), ENOSPC);
    assert_int_equal(write_to(path_of("full"), *use, "text"), ENOSPC);
  }
  check_is_link(path_of("full"), device);
  struct stat about;
  assert_int_equal(lstat(device, &about), 0);
  assert_true(S_ISCHR(about.st_mode));
}

TEST(a_fifo) {
  struct stat about;
  assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
  EACH_USE(use) {
    char got[16] = "";
    int reader = open(path_of("fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    assert_int_equal(write_to(path_of("fifo"), *use, "text"), 0);
    assert_int_equal(read(reader, got, sizeof got), 4);
    assert_string_equal(got, "text");
    close(reader);
  }
  assert_int_equal(lstat(path_of("fifo"), &about), 0);
  assert_true(S_ISFIFO(about.st_mode));
}

/* Creates a device node, so that the device of the machine is not touched. */
TEST(a_device) {
  struct stat about;
  if (mknod(path_of("null"), S_IFCHR | 0666, makedev(1, 3)) != 0)
    skip();
  int probe = open(path_of("null"), O_WRONLY | O_CLOEXEC);
  if (probe < 0) /* the file system may be mounted with nodev */
    skip();
  close(probe);
  assert_int_equal(symlink("null", path_of("link")), 0);
  EACH_USE(use) {
    assert_int_equal(write_to(path_of("null"), *use, "text"), 0);
    assert_int_equal(write_to(path_of("link"), *use, "text"), 0);
  }
  assert_int_equal(lstat(path_of("null"), &about), 0);
  assert_true(S_ISCHR(about.st_mode));
  assert_int_equal(about.st_rdev, makedev(1, 3));
  check_is_link(path_of("link"), "null");
}

/* A file that is already open is continued at its current offset, not replaced. */
TEST(an_open_descriptor) {
  char by_fd[64], by_proc[64];
  int fd = open(path_of("file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, "before ", 7), 7);
  snprintf(by_fd, sizeof by_fd, "/dev/fd/%d", fd);
  snprintf(by_proc, sizeof by_proc, "/proc/self/fd/%d", fd);
  assert_int_equal(symlink(by_proc, path_of("out")), 0); /* like /dev/stdout */
  if (access(by_fd, F_OK) != 0)
    skip();
  EACH_USE(use) {
    assert_int_equal(write_to(by_fd, *use, "1 "), 0);
    assert_int_equal(write_to(path_of("out"), *use, "2 "), 0);
  }
  assert_int_equal(write(fd, "after", 5), 5);
  close(fd);
  check_contents(path_of("file"), "before 1 2 1 2 1 2 after");
  check_is_link(path_of("out"), by_proc);
}

TEST(the_standard_output) {
  fflush(stdout);
  int saved = dup(STDOUT_FILENO), fd = open(path_of("file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  assert_true(saved >= 0 && fd >= 0);
  dup2(fd, STDOUT_FILENO);
  int errors[3], i = 0;
  EACH_USE(use) errors[i++] = write_to(NULL, *use, "text");
  dup2(saved, STDOUT_FILENO);
  close(saved);
  close(fd);
  for (i = 0; i < 3; i++)
    assert_int_equal(errors[i], 0);
  check_contents(path_of("file"), "texttexttext");
}

/* In a read-only folder an existing file is rewritten in place, and a new one is refused. */
TEST(a_folder_that_is_read_only) {
  put(path_of("file"), "a longer text than the one that comes");
  put(path_of("closed"), "old");
  assert_int_equal(chmod(path_of("file"), 0666), 0);
  assert_int_equal(chmod(path_of("closed"), 0444), 0);
  assert_int_equal(chmod(folder, 0555), 0);
  pid_t child = fork();
  if (child == 0) { /* root ignores permissions */
    if (geteuid() == 0 && (setgroups(0, NULL) || setgid(65534) || setuid(65534)))
      _exit(77);
    int wrong = 0;
    EACH_USE(use) {
      wrong |= write_to(path_of("file"), *use, "text") != 0;
      wrong |= (write_to(path_of("new"), *use, "text") != EACCES) << 1;
      wrong |= (write_to(path_of("closed"), *use, "text") != EACCES) << 2;
    }
    _exit(wrong);
  }
  int outcome = child_outcome(child);
  assert_int_equal(chmod(folder, 0755), 0);
  if (outcome == 77)
    skip();
  assert_int_equal(outcome, 0);
  check_contents(path_of("file"), "text");
  check_contents(path_of("closed"), "old");
}

/* The name of a .part file in the folder, or NULL. */
static const char *find_part(void) {
  static char name[300];
  DIR *directory = opendir(folder);
  *name = 0;
  for (struct dirent *entry; directory && (entry = readdir(directory));)
    if (strstr(entry->d_name, ".part"))
      snprintf(name, sizeof name, "%s", entry->d_name);
  if (directory)
    closedir(directory);
  return *name ? name : NULL;
}

TEST(named_parts_are_abandoned) {
  weir__outfile out;
  assert_int_equal(weir__outfile_open(&out, path_of("file"), WEIR__OUTFILE_BY_PATH), 0);
  assert_non_null(find_part());
  pid_t child = fork(); /* the child must not remove the temporary file of its parent */
  if (child == 0) {
    weir__outfile_abandon_all();
    _exit(0);
  }
  assert_int_equal(child_outcome(child), 0);
  assert_non_null(find_part());
  weir__outfile_abandon_all();
  assert_null(find_part());
  weir__outfile_end(&out);
}

/* With two writers of one file, the later commit wins and the file is complete. */
TEST(two_at_once) {
  weir__outfile one, other;
  assert_int_equal(weir__outfile_open(&one, path_of("file"), WEIR__OUTFILE_WRITE), 0);
  assert_int_equal(weir__outfile_open(&other, path_of("file"), WEIR__OUTFILE_WRITE), 0);
  assert_int_equal(write(one.fd, "one", 3), 3);
  assert_int_equal(write(other.fd, "other", 5), 5);
  assert_int_equal(weir__outfile_keep(&one), 0);
  check_contents(path_of("file"), "one");
  assert_int_equal(weir__outfile_keep(&other), 0);
  check_contents(path_of("file"), "other");
  weir__outfile_end(&one);
  weir__outfile_end(&other);
}
