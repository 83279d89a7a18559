/*
 * Compiled code on disk: damage, other writers, the limit.
 */
#include "src/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/check.h"
#include "weir/compute/kernel.h"

static char folder[64];

static int setup(void **state) {
  (void)state;
  strcpy(folder, "/tmp/weir-cache-XXXXXX");
  assert_non_null(mkdtemp(folder));
  setenv("WEIR_CACHE_DIR", folder, 1);
  unsetenv("WEIR_CACHE_SIZE");
  return 0;
}

/* Calls each(path) for every file in the folder, and returns their number. */
static int each_file(void (*each)(const char *path)) {
  DIR *listing = opendir(folder);
  int count = 0;
  assert_non_null(listing);
  for (struct dirent *entry; (entry = readdir(listing));) {
    char path[512];
    if (*entry->d_name == '.')
      continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    count++;
    if (each)
      each(path);
  }
  closedir(listing);
  return count;
}

static void delete_file(const char *path) { assert_int_equal(unlink(path), 0); }

static int teardown(void **state) {
  (void)state;
  each_file(delete_file);
  return rmdir(folder);
}

FIXTURE(.setup = setup, .teardown = teardown)

static weir__bytes key_of(const char *text) {
  weir__bytes key = {0};
  weir__bytes_add_text(&key, text);
  return key;
}

static void put(const char *key, const char *data) {
  weir__bytes k = key_of(key);
  weir__cache_write(&k, data, strlen(data));
  weir__bytes_end(&k);
}

/* The contents, or NULL. */
static char *get(const char *key) {
  static char text[256];
  weir__bytes k = key_of(key);
  unsigned char *data;
  size_t count;
  bool found = weir__cache_read(&k, &data, &count);
  weir__bytes_end(&k);
  if (!found)
    return NULL;
  snprintf(text, sizeof text, "%.*s", (int)count, (char *)data);
  free(data);
  return text;
}

TEST(write_and_read) {
  assert_null(get("a"));
  put("a", "code of a");
  put("b", "");
  assert_string_equal(get("a"), "code of a");
  assert_string_equal(get("b"), "");
  assert_null(get("c"));
  put("a", "other code");
  assert_string_equal(get("a"), "other code");
  assert_int_equal(each_file(NULL), 2);
}

static off_t damaged_at;

static void flip_byte(const char *path) {
  int fd = open(path, O_RDWR);
  unsigned char byte;
  assert_int_equal(pread(fd, &byte, 1, damaged_at), 1);
  byte ^= 1;
  assert_int_equal(pwrite(fd, &byte, 1, damaged_at), 1);
  close(fd);
}

static void cut(const char *path) { assert_int_equal(truncate(path, damaged_at), 0); }

/* Every byte that changes, and every length, is noticed, and the entry is replaced. */
TEST(damage) {
  put("key", "contents");
  struct stat info;
  weir__bytes key = key_of("key");
  (void)info;
  size_t bytes = 24 + 3 * 8 + key.count + strlen("contents");
  weir__bytes_end(&key);
  for (damaged_at = 0; damaged_at < (off_t)bytes; damaged_at++) {
    each_file(flip_byte);
    assert_null(get("key"));
    put("key", "contents");
    assert_string_equal(get("key"), "contents");
    each_file(cut);
    assert_null(get("key"));
    put("key", "contents");
  }
  assert_string_equal(get("key"), "contents");
}

static void make_writable(const char *path) { assert_int_equal(chmod(path, 0666), 0); }

/* The code would run in this process. */
TEST(files_of_others_are_ignored) {
  put("key", "contents");
  each_file(make_writable);
  assert_null(get("key"));
  put("key", "contents");
  assert_string_equal(get("key"), "contents");
}

TEST(two_processes) {
  enum { PROCESSES = 4, ROUNDS = 300 };
  pid_t children[PROCESSES];
  for (int i = 0; i < PROCESSES; i++)
    if (!(children[i] = fork())) {
      for (int round = 0; round < ROUNDS; round++) {
        const char *text = i % 2 ? "a text of one length" : "another";
        put("shared", text);
        const char *got = get("shared");
        if (!got || (strcmp(got, "another") && strcmp(got, "a text of one length")))
          _exit(1);
      }
      _exit(0);
    }
  for (int i = 0; i < PROCESSES; i++)
    assert_int_equal(child_outcome(children[i]), 0);
  assert_int_equal(each_file(NULL), 1);
}

TEST(limit) {
  setenv("WEIR_CACHE_SIZE", "1000", 1);
  char key[16], text[101];
  memset(text, 'x', 100);
  text[100] = 0;
  for (int i = 0; i < 20; i++) {
    snprintf(key, sizeof key, "%d", i);
    put(key, text);
    usleep(2000); /* the order of their use is the order of their times */
    assert_non_null(get("0"));
    usleep(2000);
  }
  assert_in_range(each_file(NULL), 2, 6);
  assert_non_null(get("0"));  /* used all the time */
  assert_non_null(get("19")); /* new */
  assert_null(get("1"));
}

/* A cache that cannot be used costs time only. */
TEST(no_folder) {
  char path[256];
  setenv("WEIR_CACHE_DIR", "/proc/nowhere", 1);
  put("key", "contents");
  assert_null(get("key"));
  unsetenv("WEIR_CACHE_DIR");
  setenv("XDG_CACHE_HOME", "/x", 1);
  assert_true(weir__cache_folder(path, sizeof path));
  assert_string_equal(path, "/x/weir");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/y", 1);
  assert_true(weir__cache_folder(path, sizeof path));
  assert_string_equal(path, "/home/y/.cache/weir");
  unsetenv("HOME");
  assert_false(weir__cache_folder(path, sizeof path));
}
