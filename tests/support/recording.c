#include "support/recording.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

weir_driver *ledger;
weir_allocator *recorded;
_Atomic int warnings;
char warning[512];
char folder[] = "/tmp/weir-test-recording-XXXXXX";

static void set(const char *name, const char *value) {
  if (value)
    setenv(name, value, 1);
}

void open_recording(const recording *how) {
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  options.bytes = how->bytes;
  if (how->devices)
    options.devices = how->devices;
  if (how->is_done)
    options.is_done = how->is_done;
  assert_ok(weir_driver_open_ledger(&options, &ledger));
  assert_cu(ledger->Init(ledger, 0));
  weir_allocator_options of;
  weir_allocator_options_init(&of);
  of.conf = how->conf ? how->conf : "";
  set("WEIR_RECORD", how->folder);
  set("WEIR_RECORD_MB", how->mb);
  set("WEIR_RECORD_STACKS", how->stacks);
  assert_ok(weir_allocator_create(ledger, &of, &recorded));
  unsetenv("WEIR_RECORD");
}

void close_recording(void) {
  weir_allocator_destroy(recorded);
  weir_driver_close(ledger);
  recorded = NULL;
  ledger = NULL;
}

void record_pairs(int count) {
  void *pointer;
  for (int i = 0; i < count; i++) {
    assert_ok(weir_allocator_alloc(recorded, 0, 512 + 512 * (size_t)(i % 7), NULL, &pointer));
    assert_ok(weir_allocator_free(recorded, pointer));
  }
}

int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

int remove_folder(void **state) {
  (void)state;
  remove_files();
  return rmdir(folder);
}

int recording_teardown(void **state) {
  (void)state;
  close_recording();
  weir_log_set_sink(NULL, NULL);
  remove_files();
  return 0;
}

static int remove_below(const char *path, const struct stat *info, int kind, struct FTW *at) {
  (void)info;
  (void)kind;
  return at->level ? remove(path) : 0;
}

void remove_files(void) { nftw(folder, remove_below, 8, FTW_DEPTH | FTW_PHYS); }

const char *path_in(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

const char *find_file(const char *part) {
  static char found[512];
  int count = 0;
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (struct dirent *e; (e = readdir(dir));)
    if (strstr(e->d_name, part)) {
      snprintf(found, sizeof found, "%s", path_in(e->d_name));
      count++;
    }
  closedir(dir);
  assert_true(count <= 1);
  return count ? found : NULL;
}

weir__recording *load_recording(const char *path) {
  weir__recording *s = NULL;
  assert_non_null(path);
  if (weir__recording_load(path, NULL, &s))
    fail_msg("%s: %s", path, weir_last_error());
  return s;
}

void count_warning(void *context, weir_log_level level, const char *message) {
  (void)context;
  if (level > WEIR_LOG_WARN)
    return;
  warnings++;
  snprintf(warning, sizeof warning, "%s", message);
}
