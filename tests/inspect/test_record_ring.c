/*
 * Files of WEIR_RECORD whose ring has wrapped many times: with the checkpoints, the entries that are left replay
 * without a difference and end in the state of the allocator.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "offline/analyse/explain.h"
#include "offline/analyse/summary.h"
#include "offline/read/recording.h"
#include "record/ring_file.h"
#include "support/length.h"
#include "support/ring.h"
#include "weir/history.h"
#include "weir/snapshot.h"

/* ---- A job ---- */

enum { HELD = 256, STREAMS = 4, POOLS = 3 };

typedef struct job {
  const char *name, *conf, *mb;
  int devices;
  bool pools;     /* some allocations go to private pools, which are released and created again */
  bool records;   /* blocks are used by other streams too */
  bool empties;   /* the cache is emptied now and then */
  bool changes;   /* settings and limits change during the job */
  uint64_t limit; /* 0 for none */
  size_t largest;
} job;

static void *held[HELD];
static uint32_t random_state;
static uint32_t bits(void) {
  random_state = random_state * 1664525 + 1013904223;
  return random_state >> 8;
}

static uint64_t polled;
static int is_done(void *context, weir_cu_stream stream) {
  (void)context;
  (void)stream;
  return ++polled % 3 == 0;
}

static void open_job(const job *j, const char *mb) {
  random_state = 1;
  memset(held, 0, sizeof held);
  polled = 0;
  open_recording(&(recording){.bytes = 16 * GIB,
                              .is_done = is_done,
                              .conf = j->conf,
                              .folder = folder,
                              .mb = mb,
                              .stacks = "none",
                              .devices = j->devices});
  if (j->limit)
    assert_ok(weir_allocator_set_limit(recorded, 0, j->limit));
}

static weir__ring_file *file_of_recorded(void) { return atomic_load(&recorded->history)->file; }

static void change_something(void) {
  static const char *const confs[] = {"roundup_power2_divisions:4", "expandable_segments:True", "max_split_size_mb:32",
                                      "expandable_segments:False", "roundup_power2_divisions:1"};
  if (bits() % 2)
    assert_ok(weir_allocator_configure(recorded, confs[bits() % WEIR_COUNT_OF(confs)]));
  else
    assert_ok(weir_allocator_set_limit(recorded, 0, (4 + bits() % 4) * GIB));
}

static void churn(const job *j, int operations) {
  weir_pool_id in = {0, 0};
  for (int i = 0; i < operations; i++) {
    uint32_t r = bits();
    int k = (int)(r % HELD), device = j->devices > 1 && r % 5 == 0;
    uintptr_t stream = 16 * (bits() % STREAMS);
    if (j->pools && bits() % 97 == 0) {
      if (in.second) {
        assert_ok(weir_pool_end(recorded, 0, in));
        assert_ok(weir_pool_release(recorded, 0, in));
        in.second = 0;
      } else {
        in.second = 1 + bits() % POOLS;
        assert_ok(weir_pool_begin(recorded, 0, in, NULL, NULL));
      }
    }
    if (j->empties && bits() % 1499 == 0)
      assert_ok(weir_allocator_empty_cache(recorded));
    if (j->changes && bits() % 3001 == 0)
      change_something();
    if (held[k]) {
      if (j->records && bits() % 5 == 0)
        assert_ok(weir_allocator_record_stream(recorded, held[k], (weir_cu_stream)(stream + 8)));
      assert_ok(weir_allocator_free(recorded, held[k]));
      held[k] = NULL;
      continue;
    }
    size_t largest = bits() % 4 ? j->largest / 64 : j->largest;
    weir_status status = weir_allocator_alloc(recorded, device, 1 + bits() % largest, (weir_cu_stream)stream, &held[k]);
    if (status)
      held[k] = NULL;
  }
  if (in.second) {
    assert_ok(weir_pool_end(recorded, 0, in));
    assert_ok(weir_pool_release(recorded, 0, in));
  }
}

/* ---- Rings that have wrapped ---- */

static const job jobs[] = {
    {.name = "plain", .largest = 40 * MIB},
    {.name = "small blocks", .largest = 800 * KIB},
    {.name = "expandable", .conf = "expandable_segments:True", .largest = 40 * MIB, .empties = true},
    {.name = "small reserves",
     .conf = "expandable_segments:True,expandable_segments_reserve:0.02",
     .largest = 40 * MIB,
     .empties = true},
    {.name = "pools", .largest = 20 * MIB, .pools = true, .empties = true},
    {.name = "expandable pools",
     .conf = "expandable_segments:True",
     .largest = 20 * MIB,
     .pools = true,
     .records = true,
     .empties = true},
    {.name = "other streams", .largest = 40 * MIB, .records = true},
    {.name = "a limit", .largest = 60 * MIB, .records = true, .limit = 2 * GIB},
    {.name = "collection", .conf = "garbage_collection_threshold:0.6", .largest = 60 * MIB, .limit = 3 * GIB},
    {.name = "a split limit", .conf = "max_split_size_mb:32", .largest = 60 * MIB, .limit = 3 * GIB},
    {.name = "changes", .largest = 40 * MIB, .changes = true, .empties = true},
};

FIXTURE(.begin = make_folder, .end = remove_folder, .teardown = recording_teardown)

TEST(window) {
  weir_log_set_sink(count_warning, NULL);
  for (size_t i = 0; i < WEIR_COUNT_OF(jobs); i++) {
    print_message("  %s\n", jobs[i].name);
    open_job(&jobs[i], "1");
    uint64_t capacity = weir__ring_file_capacity(file_of_recorded());
    for (int round = 0; round < 8; round++) {
      churn(&jobs[i], (int)capacity / 3);
      size_t events = check_window(find_file(".ring"), 0, recorded);
      if (round > 4)
        assert_in_range(events, capacity / 3, capacity);
    }
    assert_true(file_of_recorded()->header->devices[0].dropped > 2 * capacity);
    close_recording();
    remove_files();
  }
}

/* One device is busy, the other rarely used: its entries stay, and its first checkpoint with them. */
TEST(two_devices) {
  const job j = {.name = "two devices", .devices = 2, .largest = 30 * MIB};
  open_job(&j, "1");
  void *kept;
  assert_ok(weir_allocator_alloc(recorded, 1, 3 * MIB, NULL, &kept));
  churn(&(job){.largest = 30 * MIB}, 60000);
  weir__recording *s = load_recording(find_file(".ring"));
  assert_int_equal(s->devices[1].event_count, 2);
  assert_int_equal(s->devices[1].dropped, 0);
  check_loaded(s, 0, recorded);
  check_loaded(s, 1, recorded);
  weir__recording_free(s);
  for (int round = 0; round < 8; round++) {
    churn(&j, 20000);
    check_window(find_file(".ring"), 0, recorded);
    check_window(find_file(".ring"), 1, recorded);
  }
}

/* ---- Reports on wrapped rings ---- */

static void explain_oom(const char *mb, weir__explanation *x, weir__summary *summary, uint64_t *dropped) {
  const job j = {.largest = 30 * MIB, .limit = 3 * GIB};
  void *none;
  open_job(&j, mb);
  churn(&j, 60000);
  for (int i = 0; i < HELD; i += 2)
    if (held[i]) {
      assert_ok(weir_allocator_free(recorded, held[i]));
      held[i] = NULL;
    }
  assert_int_equal(weir_allocator_alloc(recorded, 0, 2900 * MIB, NULL, &none), WEIR_ERROR_OUT_OF_MEMORY);
  weir__recording *s = load_recording(find_file(".ring"));
  const weir__explain_options options = {.device = 0, .no_trials = true};
  assert_ok(weir__explain(s, &options, x));
  assert_ok(weir__summarize(s, 0, summary));
  *dropped = s->devices[0].dropped;
  weir__recording_free(s);
  close_recording();
  remove_files();
}

/* An out-of-memory error at the end of a long job is explained as if all entries had been kept. */
TEST(explain) {
  weir__explanation small, large;
  weir__summary small_summary, large_summary;
  uint64_t dropped;
  weir_log_set_sink(count_warning, NULL);
  explain_oom("1", &small, &small_summary, &dropped);
  assert_true(dropped > 60000);
  explain_oom("16", &large, &large_summary, &dropped);
  assert_int_equal(dropped, 0);
  assert_int_equal(small.moment, WEIR_OFFLINE_AT_OOM);
  assert_int_equal(small.differences, 0);
  assert_false(small.is_from_file);
  assert_int_equal(small.cause, large.cause);
  assert_int_equal(small.reserved, large.reserved);
  assert_int_equal(small.limit, 3 * GIB);
  assert_int_equal(small.limit, large.limit);
  assert_memory_equal(small.bytes, large.bytes, sizeof small.bytes);
  assert_memory_equal(small.blocks, large.blocks, sizeof small.blocks);
  assert_int_equal(small.largest_hole, large.largest_hole);
  assert_int_equal(small.holder_count, large.holder_count);
  for (size_t i = 0; i < small.holder_count; i++) {
    assert_int_equal(small.holders[i].bytes, large.holders[i].bytes);
    assert_int_equal(small.holders[i].count, large.holders[i].count);
  }
  assert_true(small.reserved > 100 * MIB);

  assert_true(small_summary.is_end_told && large_summary.is_end_told);
  assert_int_equal(small_summary.end_reserved, large_summary.end_reserved);
  assert_int_equal(small_summary.end_requested, large_summary.end_requested);
  assert_int_equal(small_summary.at_end_count, large_summary.at_end_count);
  for (size_t i = 0; i < small_summary.at_end_count; i++)
    assert_int_equal(small_summary.at_end[i].bytes, large_summary.at_end[i].bytes);
  assert_int_equal(small_summary.end_requested, small.bytes[WEIR__USE_LIVE]);
  assert_int_equal(small_summary.end_reserved, small.reserved);
}

/* The numbers equal the statistics of the allocator. */
TEST(summary) {
  const job j = {.largest = 30 * MIB};
  open_job(&j, "1");
  churn(&j, 80000);
  weir_allocator_stats stats = {.size = sizeof stats};
  assert_ok(weir_allocator_get_stats(recorded, 0, &stats));
  weir__recording *s = load_recording(find_file(".ring"));
  weir__summary summary;
  assert_ok(weir__summarize(s, 0, &summary));
  assert_int_equal(summary.completeness, WEIR__HISTORY_WRAPPED);
  assert_int_equal(summary.end_reserved, stats.reserved_bytes[WEIR_STAT_ALL].current);
  assert_int_equal(summary.end_requested, stats.requested_bytes[WEIR_STAT_ALL].current);
  assert_int_equal(summary.unknown_frees, 0);
  uint64_t peak =
      summary.reserved.bytes > s->devices[0].peak_reserved ? summary.reserved.bytes : s->devices[0].peak_reserved;
  assert_int_equal(peak, stats.reserved_bytes[WEIR_STAT_ALL].peak);
  assert_in_range(s->devices[0].peak_allocated, 1, stats.allocated_bytes[WEIR_STAT_ALL].peak);
  weir__recording_free(s);
}

/* Blocks from before the first entry have the stacks that allocated them. */
TEST(stacks) {
  open_recording(&(recording){.bytes = GIB, .is_done = is_done, .folder = folder, .mb = "1", .stacks = "state"});
  void *kept;
  assert_ok(weir_allocator_alloc(recorded, 0, 5 * MIB, NULL, &kept));
  for (int i = 0; i < 60000; i++) {
    void *p;
    assert_ok(weir_allocator_alloc(recorded, 0, 512, NULL, &p));
    assert_ok(weir_allocator_free(recorded, p));
  }
  weir__recording *s = load_recording(find_file(".ring"));
  const weir__recording_device *d = &s->devices[0];
  assert_true(d->dropped > 10000);
  assert_non_null(d->start);
  size_t found = 0;
  for (size_t i = 0; i < d->start->block_count; i++)
    if (d->start->blocks[i].address == (uint64_t)(uintptr_t)kept) {
      found++;
      if (s->stack_count > 1) /* with libunwind */
        assert_true(s->stacks[d->start->blocks[i].stack].count > 0);
    }
  assert_int_equal(found, 1);
  weir__recording_free(s);
}

/* ---- Off, on and cleared ---- */

TEST(off_and_on) {
  const job j = {.largest = 30 * MIB, .pools = true};
  weir_history_options off, on;
  weir_history_options_init(&off);
  weir_history_options_init(&on);
  off.mode = WEIR_HISTORY_OFF;
  on.context = WEIR_CONTEXT_NONE;
  on.max_entries = SIZE_MAX;
  open_job(&j, "1");
  for (int i = 0; i < 6; i++) {
    churn(&j, 5000 * (i + 1));
    check_window(find_file(".ring"), 0, recorded);
    if (i % 3 == 0) {
      assert_ok(weir_history_record(recorded, &off));
      churn(&j, 3000);
      assert_ok(weir_history_record(recorded, &on));
    } else if (i % 3 == 1)
      assert_ok(weir_history_clear(recorded));
    weir__recording *s = load_recording(find_file(".ring"));
    if (i % 3 < 2) {
      assert_int_equal(s->devices[0].event_count, 0);
      assert_true(s->devices[0].start->segment_count > 0);
    }
    weir__recording_free(s);
    churn(&j, 500);
    check_window(find_file(".ring"), 0, recorded);
  }
}

/* The child of a fork does not write to the file: its calls are refused. */
TEST(fork) {
  const job j = {.largest = 30 * MIB};
  open_job(&j, "1");
  churn(&j, 30000);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    void *pointer;
    weir_status status = weir_allocator_alloc(recorded, 0, 512, NULL, &pointer);
    weir_history_clear(recorded);
    _exit(status == WEIR_ERROR_BAD_FORK ? 0 : 1);
  }
  assert_int_equal(child_outcome(child), 0);
  check_window(find_file(".ring"), 0, recorded);
  churn(&j, 30000);
  check_window(find_file(".ring"), 0, recorded);
}

static _Atomic bool is_over;

static void *churn_apart(void *stream) {
  void *kept[64] = {0};
  uint32_t random = (uint32_t)(uintptr_t)stream;
  while (!atomic_load(&is_over)) {
    random = random * 1664525 + 1013904223;
    void **at = &kept[(random >> 8) % WEIR_COUNT_OF(kept)];
    if (*at)
      assert_ok(weir_allocator_free(recorded, *at));
    if (*at || weir_allocator_alloc(recorded, 0, 1 + (random >> 4) % MIB, stream, at))
      *at = NULL;
  }
  return NULL;
}

/* The service thread, allocating threads and forks do not deadlock. */
TEST(forks_meanwhile) {
  enum { threads = 2, blocks = 2000 };
  const job j = {.largest = 30 * MIB};
  pthread_t others[threads];
  void *kept;
  open_job(&j, "1");
  for (int i = 0; i < blocks; i++) /* enough that the service thread takes the checkpoint */
    assert_ok(weir_allocator_alloc(recorded, 0, 512, NULL, &kept));
  atomic_store(&is_over, false);
  for (uintptr_t i = 0; i < threads; i++)
    assert_int_equal(pthread_create(&others[i], NULL, churn_apart, (void *)(16 * (i + 1))), 0);
  for (int i = 0; i < usual_or_long(80, 400); i++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
      _exit(0);
    child_outcome(child);
  }
  atomic_store(&is_over, true);
  for (int i = 0; i < threads; i++)
    pthread_join(others[i], NULL);
  check_window(find_file(".ring"), 0, recorded);
}

/* ---- Processes that are killed ---- */

TEST(killed) {
  const job j = {.largest = 8 * MIB, .pools = true, .records = true};
  _Atomic long *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(done, MAP_FAILED);
  for (int round = 0; round < 16; round++) {
    atomic_store(done, 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
      open_job(&j, "1");
      file_of_recorded()->interval = round % 2 ? 1 : 0; /* almost nothing but checkpoints */
      for (;;) {
        churn(&j, 100);
        atomic_fetch_add(done, 1);
      }
    }
    for (int slept = 0; atomic_load(done) < 300 && slept < 200000; slept++)
      usleep(100);
    usleep(37 * (useconds_t)round);
    kill(child, SIGKILL);
    child_outcome(child);
    weir__recording *s = load_recording(find_file(".ring"));
    assert_non_null(s->devices[0].start);
    assert_true(s->devices[0].dropped > 0);
    check_loaded(s, 0, NULL);
    weir__recording_free(s);
    remove_files();
  }
  munmap((void *)done, 4096);
}

/* ---- Files without a valid checkpoint ---- */

static unsigned char *read_whole(const char *path, size_t *size) {
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  fseek(f, 0, SEEK_END);
  *size = (size_t)ftell(f);
  rewind(f);
  unsigned char *data = malloc(*size);
  assert_int_equal(fread(data, 1, *size, f), *size);
  fclose(f);
  return data;
}

static const char *write_whole(const char *name, const void *data, size_t size) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, size, f), size);
  assert_int_equal(fclose(f), 0);
  return path;
}

static void expect_unknown(const char *path) {
  weir__recording *s = load_recording(path);
  weir__replayer *history = NULL;
  weir__explanation x;
  weir__summary summary;
  assert_null(s->devices[0].start);
  assert_true(s->devices[0].lacks_start);
  assert_int_equal(weir__replayer_open(s, 0, 0, 0, &history), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "is not known"));
  assert_ok(weir__summarize(s, 0, &summary));
  assert_false(summary.is_end_told);
  assert_true(summary.is_unknown);
  assert_ok(weir__explain(s, &(weir__explain_options){.device = 0}, &x));
  assert_true(x.is_unknown);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_NONE);
  assert_int_equal(weir__explain(s, &(weir__explain_options){.device = 0, .moment = WEIR_OFFLINE_AT_PEAK}, &x),
                   WEIR_ERROR_INVALID_ARGUMENT);
  weir__recording_free(s);
}

/* Recordings that an earlier version of this program wrote. */
TEST(version_3) {
#ifndef WEIR_HAVE_ZSTD
  skip();
#endif
  static const struct {
    const char *name;
    size_t entries, allocs;
    bool is_cut_off, has_wrapped, has_stacks;
  } files[] = {{"closed", 1502, 532, false, false, true},
               {"killed", 1096, 365, true, false, false},
               {"wrapped", 14100, 4676, true, true, false}};
  for (size_t i = 0; i < WEIR_COUNT_OF(files); i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/rings/v3_%s.ring.zst", WEIR_TEST_DATA, files[i].name);
    weir__recording *s = load_recording(path);
    size_t allocs = 0, releases = 0, unknown = 0;
    for (size_t k = 0; k < s->event_count; k++) {
      const weir__recording_entry *e = &s->events[k];
      allocs += e->action == WEIR_TRACE_ALLOC;
      releases += e->action == WEIR_TRACE_SEGMENT_FREE;
      unknown += e->action == WEIR_TRACE_SEGMENT_FREE && e->reason == WEIR__REASON_UNKNOWN;
      assert_int_equal(e->thread, 1);
      assert_false(e->phase_begins);
    }
    assert_int_equal(s->event_count, files[i].entries);
    assert_int_equal(allocs, files[i].allocs);
    assert_int_equal(unknown, releases); /* all were the program's, and version 3 did not say so */
    assert_int_equal(s->is_cut_off, files[i].is_cut_off);
    assert_false(s->devices[0].lacks_start);
    assert_int_equal(s->devices[0].dropped > 0, files[i].has_wrapped);
    assert_int_equal(s->stack_count > 1, files[i].has_stacks);
    weir__recording_free(s);
    check_window(path, 0, NULL);
  }
}

static weir__ring_file_slot *slots_of(unsigned char *data) {
  return (weir__ring_file_slot *)(void *)(data + ((weir__ring_file_header *)(void *)data)->slots_at);
}

/* Either checkpoint is sufficient if it is complete. */
TEST(damaged_checkpoints) {
  const job j = {.largest = 30 * MIB};
  size_t size, windows[WEIR__RING_CHECKPOINTS] = {0}, used = 0;
  open_job(&j, "1");
  churn(&j, 60000);
  unsigned char *good = read_whole(find_file(".ring"), &size), *bad = malloc(size);
  assert_non_null(bad);
  for (int kept = -1; kept < WEIR__RING_CHECKPOINTS; kept++) {
    memcpy(bad, good, size);
    weir__ring_file_slot *slots = slots_of(bad);
    for (int i = 0; i < WEIR__RING_CHECKPOINTS; i++)
      if (i != kept && slots[i].sequence)
        bad[slots[i].at + 8 * (bits() % (slots[i].bytes / 8))] ^= 1;
    const char *path = write_whole("damaged", bad, size);
    weir__recording *s = load_recording(path);
    bool is_known = s->devices[0].start != NULL;
    weir__recording_free(s);
    assert_false(is_known && kept < 0);
    if (is_known)
      windows[used++] = check_window(path, 0, NULL);
    else
      expect_unknown(path);
  }
  assert_true(used >= 2);
  size_t all = check_window(write_whole("good", good, size), 0, NULL), longest = 0;
  for (size_t i = 0; i < used; i++)
    longest = windows[i] > longest ? windows[i] : longest;
  assert_int_equal(longest, all);
  free(good);
  free(bad);
}

/* Random checkpoints with a valid checksum are either refused or replayed. */
TEST(hostile_checkpoints) {
  const job j = {.largest = 30 * MIB, .conf = "expandable_segments:True", .empties = true};
  size_t size, refused = 0, read = 0;
  open_job(&j, "1");
  churn(&j, 30000);
  unsigned char *good = read_whole(find_file(".ring"), &size), *bad = malloc(size);
  assert_non_null(bad);
  for (int i = 0; i < 150; i++) {
    memcpy(bad, good, size);
    weir__ring_file_slot *slots = slots_of(bad);
    for (int k = 0; k < WEIR__RING_CHECKPOINTS; k++) {
      if (!slots[k].sequence)
        continue;
      for (uint32_t flips = 1 + bits() % 3; flips > 0; flips--) {
        uint64_t from = bits() % 3 ? sizeof(weir__ring_file_state) : 0, length = slots[k].bytes - from;
        bad[slots[k].at + from + bits() % (bits() % 2 ? length : 64)] ^= (unsigned char)(1u << bits() % 8);
      }
      if (bits() % 8 == 0)
        slots[k].bytes -= 8 * (bits() % 4);
      slots[k].checksum = weir__ring_file_checksum(slots[k].sequence, slots[k].at, bad + slots[k].at, slots[k].bytes);
    }
    weir__recording *s = NULL;
    weir_status status = weir__recording_load(write_whole("hostile", bad, size), NULL, &s);
    if (status) {
      assert_int_equal(status, WEIR_ERROR_BAD_DATA);
      assert_non_null(strstr(weir_last_error(), ": byte "));
      refused++;
      continue;
    }
    weir__replay_report report;
    weir__replay(s, &(weir__replay_options){.check = true, .memory = 16 * GIB}, &report);
    weir__recording_free(s);
    read++;
  }
  assert_true(refused > 10 && read > 10);
  free(good);
  free(bad);
}

/* More blocks than the file has room for: one warning, and the file says that the state is unknown. */
TEST(no_room) {
  enum { many = 20000 };
  const job j = {.largest = 30 * MIB};
  open_job(&j, "1");
  weir_log_set_sink(count_warning, NULL);
  warnings = 0;
  void **all = calloc(many, sizeof *all);
  assert_non_null(all);
  for (int i = 0; i < many; i++)
    assert_ok(weir_allocator_alloc(recorded, 0, 1024, NULL, &all[i]));
  churn(&j, 40000);
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(warning, "a checkpoint of "));
  assert_non_null(strstr(warning, "WEIR_RECORD_MB"));
  expect_unknown(find_file(".ring"));
  /* With fewer blocks the state is known again. */
  for (int i = 0; i < many; i++)
    assert_ok(weir_allocator_free(recorded, all[i]));
  churn(&j, 40000);
  assert_int_equal(warnings, 1);
  check_window(find_file(".ring"), 0, recorded);
  free(all);
}
