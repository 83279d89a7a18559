/*
 * Limits of recording: full disks, rings of one entry and rings that have wrapped, very many pools, very deep stacks,
 * and the rank in a file's name.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "offline/analyse/summary.h"
#include "offline/replay/replay.h"
#include "record/ring_file.h"
#include "record/stacks.h"
#include "support/length.h"
#include "support/recording.h"
#include "support/sanitized.h"
#include "weir/history.h"
#include "weir/log.h"
#include "weir/pool.h"
#include "weir/snapshot.h"

#ifdef SANITIZED
enum { MAX_MORE_KIB = 1 << 20 }; /* the sanitizer delays frees */
#else
enum { MAX_MORE_KIB = 8192 };
#endif

/* Without a file if `mb` is NULL. */
static void open_recorded(const char *mb, const char *stacks, unsigned long long bytes) {
  open_recording(&(recording){.bytes = bytes, .folder = mb ? folder : NULL, .mb = mb, .stacks = stacks});
}

/* ---- Disks ---- */

/* Runs `what` in a child. Returns its exit code, or minus the signal that ended it. */
static int in_child(int (*what)(void)) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child)
    _exit(what());
  return child_outcome(child);
}

/* Called in a child: mounts a disk of a given size on the folder, visible only to the child. */
static bool mount_disk(const char *options) {
  uid_t user = geteuid();
  if (unshare(user ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) != 0)
    return false;
  mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
  return mount("tmpfs", folder, "tmpfs", 0, options) == 0;
}

/* The ring has what fits onto the disk, and says so. */
static int disk_too_small(void) {
  if (!mount_disk("size=1m"))
    return WAIVED;
  weir_log_set_sink(count_warning, NULL);
  open_recorded("8", "none", GIB);
  record_pairs(60000);
  for (int i = 0; i < 1000 && !warnings; i++) /* another thread warns */
    usleep(10000);
  bool ok = warnings == 1 && strstr(warning, "cannot grow beyond") && strstr(warning, strerror(ENOSPC));
  weir__recording *s = load_recording(find_file(".ring"));
  ok = ok && s->event_count > 1000 && s->devices[0].dropped > 100000 && s->devices[0].start;
  weir__recording_free(s);
  close_recording();
  if (!ok)
    fprintf(stderr, "%d warnings, the last: %s\n", warnings, warning);
  return !ok;
}

static bool fill_disk(void) {
  static char junk[65536];
  FILE *file = fopen(path_in("junk"), "w");
  if (!file)
    return false;
  setvbuf(file, NULL, _IONBF, 0);
  while (fwrite(junk, 1, sizeof junk, file) == sizeof junk) {
  }
  fclose(file);
  struct statvfs about;
  return statvfs(folder, &about) == 0 && about.f_bavail * about.f_bsize < 65536;
}

/* What the file has is its own, so the ring keeps wrapping on a full disk. A snapshot next to it fails with a
 * warning. */
static int disk_full_later(void) {
  if (!mount_disk("size=4m"))
    return WAIVED;
  weir_log_set_sink(count_warning, NULL);
  open_recorded("2", "all", GIB);
  record_pairs(1000);
  if (warnings || !fill_disk())
    return 2;
  record_pairs(60000);
  for (int i = 0; i < 1000 && !warnings; i++) /* another thread warns */
    usleep(10000);
  if (warnings != 1 || !strstr(warning, "cannot grow beyond") || !strstr(warning, strerror(ENOSPC)))
    return 6;
  void *none;
  if (weir_allocator_alloc(recorded, 0, 2 * GIB, NULL, &none) != WEIR_ERROR_OUT_OF_MEMORY)
    return 3;
  if (warnings != 2 || !strstr(warning, "cannot write a snapshot") || !strstr(warning, strerror(ENOSPC)) ||
      find_file(".pickle")) {
    fprintf(stderr, "%d warnings, the last: %s\n", warnings, warning);
    return 4;
  }
  record_pairs(1000);
  weir__recording *s = load_recording(find_file(".ring"));
  bool ok = s->event_count > 1000 && s->devices[0].dropped > 100000 && s->devices[0].start;
  weir__recording_free(s);
  close_recording();
  return ok ? 0 : 5;
}

static int read_only_disk(void) {
  if (!mount_disk("size=4m,ro"))
    return WAIVED;
  weir_log_set_sink(count_warning, NULL);
  open_recorded("1", "none", GIB);
  record_pairs(100);
  return !(warnings == 1 && strstr(warning, strerror(EROFS)));
}

FIXTURE(.begin = make_folder, .end = remove_folder, .teardown = recording_teardown)

TEST(disks) {
  int (*const disks[])(void) = {disk_too_small, disk_full_later, read_only_disk};
  for (size_t i = 0; i < WEIR_COUNT_OF(disks); i++) {
    int code = in_child(disks[i]);
    if (code == WAIVED) {
      puts("waived: this user may not mount a disk");
      skip();
    }
    assert_int_equal(code, 0);
  }
}

/* A limit on file sizes that is set later: writing a snapshot next to the recording would raise a signal that kills the
 * program. */
static int files_limited_later(void) {
  weir_log_set_sink(count_warning, NULL);
  open_recorded("4", "none", GIB);
  record_pairs(20000);
  struct rlimit little = {1 << 16, 1 << 16};
  void *none;
  if (setrlimit(RLIMIT_FSIZE, &little) != 0)
    return 2;
  if (weir_allocator_alloc(recorded, 0, 2 * GIB, NULL, &none) != WEIR_ERROR_OUT_OF_MEMORY)
    return 3;
  record_pairs(20000);
  bool ok = warnings == 1 && strstr(warning, strerror(EFBIG)) && !find_file(".pickle");
  if (!ok)
    fprintf(stderr, "%d warnings, the last: %s\n", warnings, warning);
  sigset_t pending;
  sigpending(&pending);
  return ok && !sigismember(&pending, SIGXFSZ) ? 0 : 4;
}

TEST(files_limited_later) { assert_int_equal(in_child(files_limited_later), 0); }

/* ---- Rings ---- */

TEST(ring_of_one) {
  open_recorded(NULL, NULL, GIB);
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = WEIR_CONTEXT_NONE;
  options.max_entries = 1;
  assert_ok(weir_history_record(recorded, &options));
  void *pointer;
  for (int i = 1; i <= 1000; i++) {
    assert_ok(weir_allocator_alloc(recorded, 0, 512 * (size_t)i, NULL, &pointer));
    weir__entry *events;
    size_t count;
    uint64_t dropped;
    assert_true(
        weir__ring_read(&atomic_load(&recorded->history)->devices[0].ring, UINT64_MAX, &events, &count, &dropped));
    assert_int_equal(count, 1);
    assert_int_equal(events[0].action, WEIR_TRACE_ALLOC);
    assert_int_equal(events[0].bytes, 512 * i);
    free(events);
    assert_ok(weir_allocator_free(recorded, pointer));
  }
  weir_history_info info = {.size = sizeof info};
  assert_ok(weir_history_get_info(recorded, 0, &info));
  assert_int_equal(info.kept, 1);
  assert_true(info.dropped >= 3000 - 1);
  weir_snapshot *taken;
  assert_ok(weir_snapshot_take(recorded, NULL, &taken));
  weir_snapshot_destroy(taken);
}

/* The information about entries that are no longer in the file. */
TEST(wrapped) {
  open_recorded("1", "none", GIB);
  void *early[10], *pointer;
  for (int i = 0; i < 10; i++)
    assert_ok(weir_allocator_alloc(recorded, 0, 3 * MIB, NULL, &early[i]));
  assert_ok(weir_allocator_configure(recorded, "roundup_power2_divisions:8"));
  record_pairs(20000);
  for (int i = 0; i < 4; i++)
    assert_ok(weir_allocator_free(recorded, early[i]));
  assert_ok(weir_allocator_alloc(recorded, 0, 3 * MIB, NULL, &pointer));
  weir__recording *s = load_recording(find_file(".ring"));
  weir__entry *events;
  size_t count;
  uint64_t dropped;
  assert_true(
      weir__ring_read(&atomic_load(&recorded->history)->devices[0].ring, UINT64_MAX, &events, &count, &dropped));
  free(events);
  /* Entries that the checkpoint covers are left out too, and older ones in a chunk that is still being written. */
  uint64_t left_away = dropped + count - s->event_count;
  assert_in_range(s->event_count, count / 3, count);
  assert_in_range(s->devices[0].dropped, left_away - WEIR__CHUNK_ENTRIES, left_away);
  weir__summary summary;
  assert_ok(weir__summarize(s, 0, &summary));
  assert_int_equal(summary.completeness, WEIR__HISTORY_WRAPPED);
  assert_int_equal(summary.unknown_frees, 0);
  assert_in_range(summary.live_before, 30 * MIB, 30 * MIB + 8 * 512); /* one of the pairs may be in use */
  assert_true(summary.is_end_told);
  assert_int_equal(summary.end_requested, 21 * MIB);
  /* The settings are those in force at the first entry. */
  assert_int_equal(s->change_count, 2);
  assert_int_equal(s->changes[0].event, 0);
  assert_non_null(strstr(s->changes[0].conf, "roundup_power2_divisions"));
  weir__recording_free(s);
  assert_ok(weir_allocator_free(recorded, pointer));
}

/* ---- Pools ---- */

static long resident_kib(void) {
  long pages = 0, all;
  FILE *file = fopen("/proc/self/statm", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%ld %ld", &all, &pages), 2);
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void use_pool(uint64_t number) {
  weir_pool_id id = {0, number};
  void *pointer;
  assert_ok(weir_pool_begin(recorded, 0, id, NULL, NULL));
  assert_ok(weir_allocator_alloc(recorded, 0, 1000, NULL, &pointer));
  assert_ok(weir_pool_end(recorded, 0, id));
  assert_ok(weir_allocator_free(recorded, pointer));
  assert_ok(weir_pool_release(recorded, 0, id));
}

TEST(pools_without_end) {
  const uint64_t pools = (uint64_t)repetitions(200000, 1000000), used = pools / 50;
  open_recorded("2", "none", 256 * MIB); /* released pools make room for others */
  long before = 0;
  for (uint64_t i = 1; i <= pools; i++) {
    weir_pool_id id = {0, i};
    if (i % (pools / used) == 0)
      use_pool(i);
    else {
      assert_ok(weir_pool_create(recorded, 0, id, NULL));
      assert_ok(weir_pool_release(recorded, 0, id));
    }
    if (i == pools / 10)
      before = resident_kib();
  }
  long more = resident_kib() - before;
  if (more > MAX_MORE_KIB)
    fail_msg("%ld KiB more after nine tenths of %" PRIu64 " pools", more, pools);
  weir__recording *s = load_recording(find_file(".ring"));
  assert_true(s->event_count > 1000);
  assert_true(s->pool_count > 300); /* the most recent, of which the ring has entries */
  const weir__recording_entry *last = &s->events[s->event_count - 1];
  assert_int_equal(s->pools[last->pool].id[1], pools);
  weir__recording_free(s);
}

/* Many live pools: each has a separate chunk in the file, and without one its entries are counted as lost. */
TEST(many_pools_alive) {
  enum { ALIVE = 5000 };
  open_recorded("8", "none", 64 * GIB);
  static void *held[ALIVE];
  for (uint64_t i = 0; i < ALIVE; i++) {
    weir_pool_id id = {i + 1, 0};
    assert_ok(weir_pool_begin(recorded, 0, id, NULL, NULL));
    assert_ok(weir_allocator_alloc(recorded, 0, 1000, NULL, &held[i]));
    assert_ok(weir_pool_end(recorded, 0, id));
  }
  weir_history_info info = {.size = sizeof info};
  assert_ok(weir_history_get_info(recorded, 0, &info));
  weir__recorder *history = atomic_load(&recorded->history);
  uint64_t chunks = history->file->chunks_most;
  assert_int_equal(info.kept, 2 * chunks);
  assert_int_equal(info.lost, 2 * (ALIVE - chunks));
  assert_int_equal(atomic_load(&history->file->header->lost), info.lost);
  weir_log_set_sink(count_warning, NULL);
  warnings = 0;
  weir__recording *s = load_recording(find_file(".ring"));
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(warning, "WEIR_RECORD_MB makes it larger"));
  /* A checkpoint may have been taken meanwhile; then the recording begins there. */
  assert_int_equal(s->devices[0].dropped + s->event_count, 2 * chunks);
  weir__recording_free(s);
  for (int i = 0; i < ALIVE; i++)
    assert_ok(weir_allocator_free(recorded, held[i]));
}

/* ---- Stacks ---- */

static __attribute__((noinline)) void *deep(int levels) {
  void *pointer = NULL;
  if (levels)
    pointer = deep(levels - 1);
  else
    assert_ok(weir_allocator_alloc(recorded, 0, 512, NULL, &pointer));
  __asm__ volatile("" : : : "memory");
  return pointer;
}

TEST(deep_stacks) {
  if (!weir__stacks_start()) {
    puts("waived: there is no libunwind");
    skip();
  }
  open_recorded("4", "all", GIB);
  static const int depths[] = {0, 10, 1000, 6000};
  for (size_t i = 0; i < WEIR_COUNT_OF(depths); i++)
    assert_ok(weir_allocator_free(recorded, deep(depths[i])));
  weir__recording *s = load_recording(find_file(".ring"));
  size_t found = 0;
  for (size_t i = 0; i < s->event_count; i++) {
    if (s->events[i].action != WEIR_TRACE_ALLOC)
      continue;
    size_t frames = s->stacks[s->events[i].stack].count;
    int depth = depths[found++];
    if (depth < WEIR__MAX_FRAMES)
      assert_in_range(frames, depth + 2, depth + 40);
    else
      /* The outermost frames are dropped, and on reading also those of Weir at the inner end. */
      assert_in_range(frames, WEIR__MAX_FRAMES - 12, WEIR__MAX_FRAMES);
  }
  assert_int_equal(found, WEIR_COUNT_OF(depths));
  weir__recording_free(s);
}

/* ---- Ranks ---- */

static void expect_rank(const char *part, int64_t rank) {
  open_recorded("1", "none", GIB);
  assert_int_equal(atomic_load(&recorded->history)->file->header->rank, rank);
  if (!find_file(part))
    fail_msg("no file has %s in its name, as %s", part, find_file(".ring"));
  close_recording();
  remove_files();
}

TEST(ranks) {
  static const char *const names[] = {"FLUX_TASK_RANK",       "MV2_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                      "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",        "RANK"};
  char part[64];
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++)
    unsetenv(names[i]);
  expect_rank("weir-", -1);
  assert_null(find_file("-rank"));
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) { /* each takes precedence over those before it */
    char value[8];
    snprintf(value, sizeof value, "%zu", i + 3);
    setenv(names[i], value, 1);
    snprintf(part, sizeof part, "-rank%zu-", i + 3);
    expect_rank(part, (int64_t)i + 3);
  }
  setenv("RANK", "first", 1); /* not a number: the next variable is used */
  expect_rank("-rank8-", 8);
  setenv("RANK", "99999999999999999999", 1);
  expect_rank("-rank8-", 8);
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++)
    unsetenv(names[i]);
}

/* ---- Reasons ---- */

static void take_and_give(size_t bytes) {
  void *pointer;
  assert_ok(weir_allocator_alloc(recorded, 0, bytes, NULL, &pointer));
  assert_ok(weir_allocator_free(recorded, pointer));
}

/* The reasons of the releases of a recording, in order, as a text. */
static void read_reasons(char *text, size_t room) {
  weir__recording *s = load_recording(find_file(".ring"));
  size_t used = 0;
  for (size_t i = 0; i < s->devices[0].event_count; i++) {
    const weir__recording_entry *e = &s->devices[0].events[i];
    if (e->action == WEIR_TRACE_SEGMENT_FREE || e->action == WEIR_TRACE_SEGMENT_UNMAP) {
      const char *name = weir__reason_name((weir__reason)e->reason);
      used += (size_t)snprintf(text + used, room - used, "%s%s", used ? " " : "", name ? name : "unknown");
      assert_int_equal(e->is_for_request, e->reason != WEIR__REASON_PROGRAM);
    } else if (e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP)
      assert_int_equal(e->reason, WEIR__REASON_REQUEST);
  }
  weir__recording_free(s);
}

TEST(reasons_of_releases) {
  static const char *const confs[] = {NULL, "expandable_segments:True"};
  char text[256];
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    open_recording(&(recording){.bytes = 200 * MIB, .folder = folder, .mb = "1", .conf = confs[i]});
    take_and_give(40 * MIB);
    assert_ok(weir_allocator_empty_cache(recorded));
    take_and_give(120 * MIB);
    take_and_give(180 * MIB); /* the device is full */
    assert_ok(weir_allocator_set_limit(recorded, 0, 190 * MIB));
    void *small;
    assert_ok(weir_allocator_alloc(recorded, 0, 1000, (weir_cu_stream)16, &small));
    void *large;
    assert_ok(weir_allocator_alloc(recorded, 0, 20 * MIB, (weir_cu_stream)16, &large)); /* the limit is reached */
    assert_ok(weir_allocator_free(recorded, large));
    assert_ok(weir_allocator_free(recorded, small));
    close_recording();
    read_reasons(text, sizeof text);
    assert_string_equal(text, confs[i] ? "program limit" : "program request limit");
    remove_files();
  }
  open_recording(
      &(recording){.bytes = 200 * MIB, .folder = folder, .mb = "1", .conf = "garbage_collection_threshold:0.5"});
  assert_ok(weir_allocator_set_limit(recorded, 0, 190 * MIB));
  take_and_give(100 * MIB);
  take_and_give(120 * MIB);
  close_recording();
  read_reasons(text, sizeof text);
  assert_string_equal(text, "collection");
  remove_files();
  open_recording(&(recording){.bytes = 200 * MIB, .folder = folder, .mb = "1", .conf = "backend:cudaMallocAsync"});
  take_and_give(40 * MIB);
  take_and_give(50 * MIB);
  close_recording();
  read_reasons(text, sizeof text);
  assert_string_equal(text, "program program");
}

/* The fraction as which a limit was set is in the file, also when a checkpoint has taken the place of the change. */
TEST(fractions) {
  open_recorded("1", "none", GIB);
  assert_ok(weir_allocator_set_fraction(recorded, 0, 0.25));
  record_pairs(10);
  weir__recording *s = load_recording(find_file(".ring"));
  const weir__recording_change *c = &s->changes[s->change_count - 1];
  assert_int_equal(c->limit, GIB / 4);
  assert_true(c->fraction > 0.2499 && c->fraction < 0.2501);
  weir__recording_free(s);
  record_pairs(30000);
  s = load_recording(find_file(".ring"));
  assert_true(s->devices[0].dropped > 0);
  size_t limits = 0;
  for (size_t i = 0; i < s->change_count; i++)
    if (!s->changes[i].conf) {
      assert_true(s->changes[i].fraction > 0.2499 && s->changes[i].fraction < 0.2501);
      limits++;
    }
  assert_int_equal(limits, 1);
  weir__recording_free(s);
  assert_ok(weir_allocator_set_limit(recorded, 0, 100 * MIB));
  record_pairs(10);
  s = load_recording(find_file(".ring"));
  c = &s->changes[s->change_count - 1];
  assert_int_equal(c->limit, 100 * MIB);
  assert_true(c->fraction == 0);
  weir__recording_free(s);
}
