/*
 * WEIR_RECORD: the file has the recording however the process ends, and the program continues whatever happens to the
 * file.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/maintain.h"
#include "base/system.h"
#include "offline/read/ring_reader.h"
#include "offline/replay/replay.h"
#include "record/ring_file.h"
#include "record/stacks.h"
#include "support/recording.h"
#include "weir/history.h"
#include "weir/log.h"
#include "weir/snapshot.h"

/* ---- Fixture ---- */

static int is_done(void *context, weir_cu_stream stream) {
  (void)context;
  (void)stream;
  return 1;
}

static void open_recorded(const char *where, const char *mb, const char *stacks) {
  open_recording(&(recording){.bytes = GIB, .is_done = is_done, .folder = where, .mb = mb, .stacks = stacks});
}

static int teardown(void **state) {
  unsetenv("RANK");
  return recording_teardown(state);
}

FIXTURE(.begin = make_folder, .end = remove_folder, .teardown = teardown)

static void *take(size_t bytes, uintptr_t stream) {
  void *pointer;
  assert_int_equal(weir_allocator_alloc(recorded, 0, bytes, (weir_cu_stream)stream, &pointer), WEIR_OK);
  return pointer;
}

static void give(void *pointer) { assert_int_equal(weir_allocator_free(recorded, pointer), WEIR_OK); }

static void check_replay(const weir__recording *s) {
  weir__replay_options options = {.device = 0, .check = true};
  weir__replay_report report = {0};
  assert_int_equal(weir__replay(s, &options, &report), WEIR_OK);
  if (report.differences)
    fail_msg("%zu differences, the first: %s", report.differences, report.shown[0]);
  assert_true(report.allocations > 0);
}

/* ---- A process that is killed ---- */

enum { STREAMS = 3, HELD = 32 };

/* The work begun and finished on a stream, in memory shared with the parent. */
typedef struct progress {
  _Atomic long alloc_begun, alloc_done, free_begun, free_done;
} progress;

static progress *seen;

static bool is_alone; /* one thread works on all streams in turn */

static void *churn(void *argument) {
  uintptr_t thread = (uintptr_t)argument;
  struct {
    void *pointer;
    uintptr_t stream;
  } held[HELD] = {{0}};
  uint32_t random = 12345 + (uint32_t)thread;
  for (uintptr_t i = 0;; i++) {
    random = random * 1664525 + 1013904223;
    int k = (int)(random >> 16) % HELD;
    if (held[k].pointer) {
      progress *mine = &seen[held[k].stream];
      atomic_fetch_add(&mine->free_begun, 1);
      if (weir_allocator_free(recorded, held[k].pointer))
        _exit(3);
      held[k].pointer = NULL;
      atomic_fetch_add(&mine->free_done, 1);
    } else {
      held[k].stream = is_alone ? i % STREAMS : thread;
      progress *mine = &seen[held[k].stream];
      atomic_fetch_add(&mine->alloc_begun, 1);
      /* One size class, so that each stream is one arena. */
      if (weir_allocator_alloc(recorded, 0, 1 + random % 300000, (weir_cu_stream)(16 * (held[k].stream + 1)),
                               &held[k].pointer))
        _exit(4);
      atomic_fetch_add(&mine->alloc_done, 1);
    }
  }
  return NULL;
}

TEST(killed) {
  seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(seen, MAP_FAILED);
  for (int round = 0; round < 6; round++) {
    is_alone = round % 2;
    memset(seen, 0, 4096);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
      open_recorded(folder, "128", "none");
      pthread_t threads[STREAMS];
      for (uintptr_t i = 0; i < (is_alone ? 1 : STREAMS); i++)
        pthread_create(&threads[i], NULL, churn, (void *)i);
      pause();
      _exit(5);
    }
    for (int slept = 0; slept < 20000; slept++) {
      bool enough = true;
      for (int i = 0; i < STREAMS; i++)
        enough &= atomic_load(&seen[i].free_done) > 2000 * (round + 1);
      if (enough)
        break;
      usleep(1000);
    }
    kill(child, SIGKILL);
    assert_int_equal(child_outcome(child), -SIGKILL);

    weir__recording *s = load_recording(find_file(".ring"));
    long allocs[STREAMS] = {0}, requested[STREAMS] = {0}, completed[STREAMS] = {0};
    for (size_t i = 0; i < s->devices[0].event_count; i++) {
      const weir__recording_entry *e = &s->devices[0].events[i];
      int64_t stream = s->streams[e->stream] / 16 - 1;
      assert_in_range(stream, 0, STREAMS - 1);
      allocs[stream] += e->action == WEIR_TRACE_ALLOC;
      requested[stream] += e->action == WEIR_TRACE_FREE_REQUESTED;
      completed[stream] += e->action == WEIR_TRACE_FREE_COMPLETED;
    }
    for (int i = 0; i < STREAMS; i++) {
      assert_in_range(allocs[i], atomic_load(&seen[i].alloc_done), atomic_load(&seen[i].alloc_begun));
      assert_in_range(requested[i], atomic_load(&seen[i].free_done), atomic_load(&seen[i].free_begun));
      assert_in_range(completed[i], atomic_load(&seen[i].free_done), requested[i]);
    }
    check_replay(s);
    weir__recording_free(s);
    remove_files();
  }
  munmap(seen, 4096);
}

/* ---- The contents of the file ---- */

static const char *text_at(const weir__recording *s, uint32_t string) { return s->strings.items[string].text; }

/* The file agrees with a snapshot of the same allocator. */
TEST(same_as_snapshot) {
  open_recorded(folder, "4", "all");
  weir_pool_id id = {0, 7};
  assert_int_equal(weir_pool_create(recorded, 0, id, NULL), WEIR_OK);
  for (int i = 0; i < 300; i++) {
    if (i == 100)
      assert_int_equal(weir_history_set_metadata(recorded, 0, "epoch 3"), WEIR_OK);
    uint32_t before = i % 3 ? 0 : weir_history_enter_compile("0/1");
    uint32_t phase = i % 5 ? 0 : weir_history_enter_phase(i % 2 ? "forward" : "backward");
    const char *step[] = {"name", "step", "stage", i % 10 ? "END" : "START", "loss", "1.5"};
    if (i % 10 == 0 || i % 10 == 9)
      assert_int_equal(weir_history_annotate(recorded, 0, step, 3), WEIR_OK);
    if (i == 200)
      assert_int_equal(weir_pool_begin(recorded, 0, id, NULL, NULL), WEIR_OK);
    void *p = take(1000 * (size_t)(1 + i), (uintptr_t)(i % 4) * 8);
    give(p);
    if (i % 3 == 0)
      weir_history_leave_compile(before);
    if (i % 5 == 0)
      weir_history_leave_phase(phase);
  }
  assert_int_equal(weir_pool_end(recorded, 0, id), WEIR_OK);
  assert_int_equal(weir_history_mark(recorded, 0, "a mark"), WEIR_OK);

  weir__recording *file = load_recording(find_file(".ring"));
  weir_snapshot *taken;
  assert_int_equal(weir_snapshot_take(recorded, NULL, &taken), WEIR_OK);
  char pickle[512];
  snprintf(pickle, sizeof pickle, "%s", path_in("taken.pickle"));
  assert_int_equal(weir_snapshot_save(taken, WEIR_SNAPSHOT_PICKLE, pickle), WEIR_OK);
  weir_snapshot_destroy(taken);
  weir__recording *other = load_recording(pickle);
  assert_int_equal(file->device_count, other->device_count);
  assert_int_equal(file->devices[0].event_count, other->devices[0].event_count);
  assert_int_equal(file->event_count, other->event_count);
  assert_int_equal(file->setting_count, other->setting_count);
  assert_int_equal(file->stream_count, other->stream_count);
  assert_int_equal(file->pool_count, other->pool_count);
  assert_true(file->has_history);
  size_t phases = 0;
  assert_int_equal(file->annotation_count, 60);
  assert_int_equal(file->annotation_count, other->annotation_count);
  for (size_t i = 0; i < file->annotation_count; i++) {
    const weir__recording_annotation *a = &file->annotations[i], *b = &other->annotations[i];
    assert_string_equal(text_at(file, a->name), "step");
    assert_string_equal(text_at(file, a->stage), i % 2 ? "END" : "START");
    assert_string_equal(text_at(file, a->name), text_at(other, b->name));
    assert_string_equal(text_at(file, a->stage), text_at(other, b->stage));
    assert_int_equal(a->device, b->device);
    assert_true(llabs((long long)(a->time_us - b->time_us)) < 50000);
  }
  for (size_t i = 0; i < file->event_count; i++) {
    const weir__recording_entry *a = &file->devices[0].events[i], *b = &other->devices[0].events[i];
    assert_int_equal(a->action, b->action);
    assert_int_equal(a->address, b->address);
    assert_int_equal(a->size, b->size);
    assert_int_equal(file->streams[a->stream], other->streams[b->stream]);
    assert_memory_equal(&file->pools[a->pool], &other->pools[b->pool], sizeof file->pools[0]);
    assert_string_equal(text_at(file, file->remarks[a->remark].compile_context),
                        text_at(other, other->remarks[b->remark].compile_context));
    assert_string_equal(text_at(file, file->remarks[a->remark].user_metadata),
                        text_at(other, other->remarks[b->remark].user_metadata));
    assert_string_equal(text_at(file, file->remarks[a->remark].phase), text_at(other, other->remarks[b->remark].phase));
    phases += file->remarks[a->remark].phase != file->remarks[0].phase;
    assert_int_equal(a->stack != 0, b->stack != 0);
    assert_true(llabs((long long)(a->time_us - b->time_us)) < 50000);
  }
  assert_true(phases >= 60 * 3);
  const weir__recording_entry *last = &file->devices[0].events[file->event_count - 1];
  if (weir__stacks_start()) { /* this function is in the stack */
    const weir__recording_stack *stack = &file->stacks[last->stack];
    bool found = false;
    for (size_t i = 0; i < stack->count; i++)
      found |=
          strstr(text_at(file, file->frames[file->stack_frames[stack->first + i]].filename), "record_file") != NULL;
    assert_true(found);
  }
  weir__recording_free(file);
  weir__recording_free(other);
}

/* Changes of settings and limits are recorded at their position, and a replay follows them. */
TEST(changes) {
  void *held[40];
  open_recorded(folder, "4", "none");
  assert_int_equal(weir_allocator_set_limit(recorded, 0, 700 * MIB),
                   WEIR_OK); /* before the first entry: part of the initial state */
  assert_int_equal(weir_allocator_set_limit(recorded, 0, 800 * MIB), WEIR_OK);
  static const char *const confs[] = {"roundup_power2_divisions:4", "max_split_size_mb:32", "expandable_segments:True",
                                      "expandable_segments:False,roundup_power2_divisions:1"};
  for (size_t c = 0; c < WEIR_COUNT_OF(confs); c++) {
    for (size_t i = 0; i < WEIR_COUNT_OF(held); i++)
      held[i] = take((i % 3 ? 300 * KIB : 9 * MIB) + 7777 * i * (c + 1), 8 * (i % 2));
    for (size_t i = 0; i < WEIR_COUNT_OF(held); i += 2)
      give(held[i]);
    for (size_t i = 0; i < WEIR_COUNT_OF(held); i += 2)
      held[i] = take(40 * KIB * (i + 1), 8 * (i % 2));
    for (size_t i = 0; i < WEIR_COUNT_OF(held); i++)
      give(held[i]);
    assert_int_equal(weir_allocator_configure(recorded, confs[c]), WEIR_OK);
    if (c == 1)
      assert_int_equal(weir_allocator_set_fraction(recorded, 0, 0.25), WEIR_OK);
    if (c == 2)
      assert_int_equal(weir_allocator_set_limit(recorded, 0, SIZE_MAX), WEIR_OK);
  }
  give(take(5 * MIB, 0));
  weir__recording *s = load_recording(find_file(".ring"));
  assert_int_equal(s->devices[0].memory, GIB);
  /* Settings and limit at the beginning, then four settings and two limits. */
  static const uint64_t limits[] = {800 * MIB, GIB / 4, UINT64_MAX};
  size_t settings = 0, limit = 0;
  for (size_t i = 0; i < s->change_count; i++) {
    const weir__recording_change *change = &s->changes[i];
    assert_int_equal(change->device, 0);
    assert_true(i < 2 ? change->event == 0 : change->event > s->changes[i - 1].event || i > 2);
    if (change->conf)
      settings++;
    else
      assert_int_equal(change->limit, limits[limit++]);
  }
  assert_int_equal(settings, 1 + WEIR_COUNT_OF(confs));
  assert_int_equal(limit, WEIR_COUNT_OF(limits));
  assert_string_equal(s->conf, s->changes[s->change_count - 1].conf);
  check_replay(s);
  /* Without the changes the replay differs. */
  s->change_count = 2;
  weir__replay_options options = {.device = 0, .check = true};
  weir__replay_report report = {0};
  assert_int_equal(weir__replay(s, &options, &report), WEIR_OK);
  assert_true(report.differences > 0);
  weir__recording_free(s);
}

/* The limit is recorded at the position where it was set: memory was released for it there. */
TEST(limit_set_later) {
  open_recorded(folder, "4", "none");
  void *held[10], *none;
  for (size_t i = 0; i < 10; i++)
    held[i] = take(20 * MIB, 0);
  for (size_t i = 0; i < 10; i += 2)
    give(held[i]);
  assert_int_equal(weir_allocator_set_limit(recorded, 0, 210 * MIB), WEIR_OK);
  void *large = take(60 * MIB, 0); /* releases the free segments */
  assert_int_equal(weir_allocator_alloc(recorded, 0, 100 * MIB, NULL, &none), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(weir_allocator_set_limit(recorded, 0, SIZE_MAX), WEIR_OK);
  give(take(400 * MIB, 0));
  give(large);
  assert_int_equal(weir_allocator_empty_cache(recorded), WEIR_OK);
  give(take(30 * MIB, 0));
  weir__recording *s = load_recording(find_file(".ring"));
  check_replay(s);
  weir__recording_free(s);
}

/* Released pools return their memory, together or alone, and some are created again. */
TEST(released_pools) {
  open_recorded(folder, "4", "none");
  give(take(9 * MIB, 0));
  for (uint64_t i = 0; i < 12; i++) {
    weir_pool_id id = {0, 50 + i % 4};
    assert_int_equal(weir_pool_create(recorded, 0, id, NULL), WEIR_OK);
    assert_int_equal(weir_pool_begin(recorded, 0, id, NULL, NULL), WEIR_OK);
    void *a = take(300 * KIB, 8), *b = take(30 * MIB + i, 0);
    assert_int_equal(weir_pool_end(recorded, 0, id), WEIR_OK);
    give(a);
    give(b);
    assert_int_equal(weir_pool_release(recorded, 0, id), WEIR_OK);
    assert_int_equal(weir_pool_release(recorded, 0, id), WEIR_OK); /* the holder of the scope */
    if (i % 3 == 0)
      assert_int_equal(weir_allocator_empty_pool(recorded, id), WEIR_OK);
    if (i % 3 == 1)
      assert_int_equal(weir_allocator_empty_cache(recorded), WEIR_OK);
    give(take(2 * MIB, 0));
  }
  assert_int_equal(weir_allocator_empty_cache(recorded), WEIR_OK);
  weir__recording *s = load_recording(find_file(".ring"));
  check_replay(s);
  /* A file without the causes of segments can be explained too. */
  s->has_causes = false;
  check_replay(s);
  weir__recording_free(s);
}

TEST(names) {
  char host[64] = "", name[160];
  gethostname(host, sizeof host - 1);
  setenv("RANK", "3", 1);
  open_recorded(folder, "1", "none");
  weir_allocator *first = recorded;
  weir_driver *first_driver = ledger;
  open_recorded(folder, "1", "none");
  snprintf(name, sizeof name, "weir-%s-rank3-%ld.ring", host, (long)getpid());
  assert_int_equal(access(path_in(name), F_OK), 0);
  snprintf(name, sizeof name, "weir-%s-rank3-%ld-2.ring", host, (long)getpid());
  assert_int_equal(access(path_in(name), F_OK), 0);
  weir_allocator_destroy(first);
  weir_driver_close(first_driver);
}

/* ---- Full rings ---- */

TEST(full) {
  open_recorded(folder, "1", "none");
  uint64_t capacity = weir__ring_file_capacity(atomic_load(&recorded->history)->file);
  record_pairs((int)capacity);
  weir__recording *s = load_recording(find_file(".ring"));
  weir__entry *events;
  size_t count;
  uint64_t dropped;
  assert_true(
      weir__ring_read(&atomic_load(&recorded->history)->devices[0].ring, UINT64_MAX, &events, &count, &dropped));
  assert_in_range(count, capacity - 2 * WEIR__CHUNK_ENTRIES, capacity);
  assert_int_equal(count + dropped, 3 * capacity + 1);
  /* The recording read from the file begins with a checkpoint. */
  size_t first = count - s->event_count;
  assert_in_range(s->event_count, capacity / 3, count);
  assert_int_equal(s->devices[0].dropped, dropped + first);
  for (size_t i = 0; i < s->event_count; i++) {
    assert_int_equal(s->events[i].address, events[first + i].address);
    assert_int_equal(s->events[i].size, events[first + i].bytes);
  }
  check_replay(s);
  free(events);
  weir__recording_free(s);
}

/* A file with room for one chunk, and two writers. */
TEST(one_chunk) {
  int why;
  char path[512];
  snprintf(path, sizeof path, "%s", path_in("one.ring"));
  weir__recorder *history = weir__recorder_new(1);
  weir__ring_file *file = weir__ring_file_create(path, 4096 + 2048 + 4096, 1, "host", -1, &why);
  assert_non_null(file);
  assert_int_equal(file->chunks_most, 1);
  weir__ring_file_log_settings(file, "");
  weir__recorder_set_file(history, file);
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = WEIR_CONTEXT_NONE;
  weir__recorder_set(history, &options);
  weir__writer *writer = weir__recorder_writer(history, 0, (weir_pool_id){0, 0}, 0);
  weir__writer *other = weir__recorder_writer(history, 0, (weir_pool_id){0, 0}, 8);
  for (uint64_t i = 1; i <= 1000; i++)
    weir__writer_write(writer, WEIR_TRACE_ALLOC, 512 * i, i, 0);
  weir__writer_write(other, WEIR_TRACE_ALLOC, 512, 1, 0);
  assert_int_equal(atomic_load(&history->rings.lost), 1);
  assert_int_equal(atomic_load(&file->header->lost), 1);
  weir__recording *s = load_recording(path);
  assert_int_equal(s->event_count, 1000 % WEIR__CHUNK_ENTRIES);
  for (size_t i = 0; i < s->event_count; i++)
    assert_int_equal(s->events[i].size, 1000 - s->event_count + 1 + i);
  weir__recording_free(s);
  weir__writer_delete(writer);
  weir__writer_delete(other);
  weir__recorder_delete(history);
}

TEST(clear) {
  open_recorded(folder, "1", "none");
  record_pairs(1000);
  assert_int_equal(weir_history_clear(recorded), WEIR_OK);
  record_pairs(5);
  weir__recording *s = load_recording(find_file(".ring"));
  assert_int_equal(s->event_count, 15);
  weir__recording_free(s);
}

/* ---- No file ---- */

/* Returns 0 if the program continued and one warning gave the reason for the missing recording. */
static int continues_without_file(const char *where, const char *mb, const char *why) {
  weir_log_set_sink(count_warning, NULL);
  warnings = 0;
  open_recorded(where, mb, "none");
  record_pairs(100);
  weir_history_info info = {.size = sizeof info};
  bool ok = weir_history_get_info(recorded, 0, &info) == WEIR_OK && info.mode == WEIR_HISTORY_OFF;
  close_recording();
  bool heard = warnings == 1 && strstr(warning, why) && strstr(warning, "WEIR_RECORD=");
  if (!ok || !heard)
    fprintf(stderr, "%d warnings, the last: %s\n", warnings, warning);
  return !ok || !heard;
}

TEST(no_folder) {
  fclose(fopen(path_in("plain"), "w"));
  char under[512];
  snprintf(under, sizeof under, "%s/x", path_in("plain"));
  assert_int_equal(continues_without_file(under, "1", strerror(ENOTDIR)), 0);
  assert_int_equal(continues_without_file("/proc/nonexistent/folder", "1", strerror(ENOENT)), 0);
}

TEST(folders_above_are_created) {
  char under[512];
  struct stat info;
  const char *const names[] = {"a", "a/b", "a/b/", "a/b/c//d/", "a/e"};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    snprintf(under, sizeof under, "%s/%s", folder, names[i]);
    open_recorded(under, "1", "none");
    assert_true(is_recording(recorded));
    close_recording();
    assert_int_equal(stat(under, &info), 0);
    assert_int_equal(info.st_mode, S_IFDIR | 0700);
  }
}

TEST(read_only_folder) {
  assert_int_equal(chmod(folder, 0555), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    if (geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0))
      _exit(2);
    _exit(continues_without_file(folder, "1", strerror(EACCES)));
  }
  int code = child_outcome(child);
  assert_int_equal(chmod(folder, 0755), 0);
  assert_int_equal(code, 0);
}

/* Files may not have the size that the recording would have: it keeps the last entries. */
static int records_within_limit(void) {
  struct rlimit little = {1 << 20, 1 << 20};
  if (setrlimit(RLIMIT_FSIZE, &little) != 0)
    return 2;
  weir_log_set_sink(count_warning, NULL);
  warnings = 0;
  open_recorded(folder, "64", "none");
  record_pairs(60000);
  for (int i = 0; i < 1000 && !warnings; i++) /* another thread warns */
    usleep(10000);
  bool ok = warnings == 1 && strstr(warning, "cannot grow beyond") && strstr(warning, strerror(EFBIG));
  struct stat about;
  weir__recording *s = load_recording(find_file(".ring"));
  ok = ok && s->devices[0].dropped > 100000 && s->event_count > 1000 && s->devices[0].start &&
       stat(find_file(".ring"), &about) == 0 && about.st_size <= 1 << 20;
  weir__recording_free(s);
  close_recording();
  if (!ok)
    fprintf(stderr, "%d warnings, the last: %s\n", warnings, warning);
  return ok ? 0 : 3;
}

TEST(files_limited) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child)
    _exit(records_within_limit());
  assert_int_equal(child_outcome(child), 0);
}

/* ---- Growth ---- */

static struct stat about_file(void) {
  struct stat about;
  assert_int_equal(stat(find_file(".ring"), &about), 0);
  return about;
}

/* The file has what is needed, and all of its disk space. */
TEST(grows) {
  open_recorded(folder, "16", "none");
  off_t before = about_file().st_size;
  assert_true(before < 512 << 10);
  for (int i = 0; i < 6; i++) {
    record_pairs(20000);
    struct stat about = about_file();
    assert_true(about.st_size > before || i >= 3);
    assert_true(about.st_size <= 16 << 20);
    assert_true((about.st_blocks + 8) * 512 >= about.st_size); /* a file system may keep a small tail elsewhere */
    before = about.st_size;
  }
  weir__recording *s = load_recording(find_file(".ring"));
  assert_in_range(s->event_count, 200000, 400000);
  check_replay(s);
  weir__recording_free(s);
}

static void *record_more(void *finished) {
  record_pairs(100000);
  atomic_store((atomic_bool *)finished, true);
  return NULL;
}

/* What is read at any moment is complete up to there. */
TEST(read_while_it_grows) {
  atomic_bool finished = false;
  pthread_t thread;
  size_t before = 0, reads = 0;
  open_recorded(folder, "64", "none");
  record_pairs(1);
  assert_int_equal(pthread_create(&thread, NULL, record_more, &finished), 0);
  for (bool is_last = false; !is_last; reads++) {
    is_last = atomic_load(&finished);
    weir__recording *s = load_recording(find_file(".ring"));
    assert_true(s->event_count >= before);
    assert_int_equal(s->devices[0].dropped, 0);
    before = s->event_count;
    weir__recording_free(s);
  }
  pthread_join(thread, NULL);
  assert_int_equal(before, 3 * 100001 + 1);
  assert_true(reads > 3);
}

/* The header alone says which process it is about. */
TEST(header_alone) {
  int why;
  char path[512];
  uint64_t started = 0;
  snprintf(path, sizeof path, "%s", path_in("alone.ring"));
  weir__ring_file *file = weir__ring_file_create(path, 1 << 20, 2, "host", 7, &why);
  assert_non_null(file);
  assert_int_equal(about_file().st_size, WEIR__RING_HEADER);
  assert_true(weir__process_start_time((int)getpid(), &started));
  assert_int_equal(file->header->pid, getpid());
  assert_int_equal(file->header->process_start, started);
  assert_true(file->header->pid_namespace != 0);
  assert_int_equal(file->header->rank, 7);
  assert_string_equal(file->header->host, "host");
  weir__recording *s = load_recording(path);
  assert_int_equal(s->event_count, 0);
  assert_int_equal(s->device_count, 2);
  assert_true(s->is_cut_off);
  weir__recording_free(s);
  weir__ring_file_close(file);
  assert_int_equal(about_file().st_size, WEIR__RING_HEADER);
}

/* A daemon closes all descriptors, and opens other files under their numbers: these must stay as they are. */
TEST(descriptors_closed) {
  open_recorded(folder, "8", "none");
  record_pairs(100);
  int number = atomic_load(&recorded->history)->file->descriptor;
  FILE *other = tmpfile();
  assert_non_null(other);
  assert_int_equal(dup2(fileno(other), number), number);
  record_pairs(50000);
  struct stat about;
  assert_int_equal(fstat(number, &about), 0);
  assert_int_equal(about.st_size, 0);
  assert_true(about_file().st_size > 4 << 20);
  close_recording();
  assert_int_equal(fstat(number, &about), 0); /* it was not the recording's to close */
  weir__recording *s = load_recording(find_file(".ring"));
  assert_true(s->event_count > 50000);
  weir__recording_free(s);
  close(number);
  fclose(other);
}

/* ---- Forks ---- */

TEST(fork) {
  open_recorded(folder, "1", "none");
  record_pairs(100);
  void *held = take(4096, 0);
  int there[2], back[2];
  assert_int_equal(pipe(there) | pipe(back), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    char byte;
    void *pointer;
    weir_history_info info = {.size = sizeof info};
    if (weir_allocator_free(recorded, held) != WEIR_ERROR_BAD_FORK)
      _exit(2);
    if (write(back[1], "x", 1) != 1 || read(there[0], &byte, 1) != 1)
      _exit(3);
    if (weir_allocator_alloc(recorded, 0, 512, NULL, &pointer) != WEIR_ERROR_BAD_FORK ||
        weir_history_get_info(recorded, 0, &info) != WEIR_ERROR_BAD_FORK)
      _exit(4);
    close_recording();
    _exit(0);
  }
  char byte;
  assert_int_equal(read(back[0], &byte, 1), 1);
  record_pairs(10);
  assert_int_equal(write(there[1], "x", 1), 1);
  assert_int_equal(child_outcome(child), 0);
  record_pairs(10);
  give(held);
  weir__recording *s = load_recording(find_file(".ring"));
  assert_int_equal(s->event_count, 1 + 3 * 120 + 3);
  check_replay(s);
  weir__recording_free(s);
  for (int i = 0; i < 2; i++) {
    close(there[i]);
    close(back[i]);
  }
}

/* ---- Out of memory ---- */

TEST(out_of_memory) {
  open_recorded(folder, "1", "none");
  void *p = take(100 * MIB, 0), *none;
  weir_log_set_sink(count_warning, NULL);
  for (int i = 0; i < 5; i++)
    assert_int_equal(weir_allocator_alloc(recorded, 0, 2 * GIB, NULL, &none), WEIR_ERROR_OUT_OF_MEMORY);
  assert_non_null(find_file("-oom-1.pickle"));
  assert_non_null(find_file("-oom-3.pickle"));
  assert_null(find_file("-oom-4.pickle"));
  weir__recording *s = load_recording(find_file("-oom-1.pickle"));
  assert_int_equal(s->segment_count, 1);
  assert_int_equal(s->events[s->event_count - 1].action, WEIR_TRACE_OOM);
  weir__recording_free(s);
  give(p);
}

/* ---- Signals ---- */

TEST(abort_and_signal) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    signal(SIGABRT, SIG_DFL);
    weir_log_set_sink(count_warning, NULL);
    warnings = 0;
    setenv("WEIR_RECORD_SIGNAL", "SIGUSR2", 1);
    open_recorded(folder, "1", "none");
    record_pairs(100);
    take(3 * MIB, 0);
    raise(SIGUSR2);
    for (int i = 0; i < 1000 && !warnings; i++)
      usleep(10000);
    record_pairs(1);
    abort();
  }
  assert_int_equal(child_outcome(child), -SIGABRT);
  weir__recording *first = load_recording(find_file("-signal-1.pickle"));
  weir__recording *last = load_recording(find_file("-abort-2.pickle"));
  assert_int_equal(first->segment_count, 2);
  assert_true(last->event_count > first->event_count);
  weir__recording_free(first);
  weir__recording_free(last);
}

static uint64_t never_returns(void *context, uint64_t now) {
  atomic_bool *is_stuck = context;
  atomic_store(is_stuck, true);
  while (atomic_load(is_stuck))
    pause();
  return now;
}

/* The snapshot does not wait for work that can wait, which may need a lock of the thread that aborts. */
TEST(abort_while_the_worker_is_stuck) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    static atomic_bool is_stuck;
    weir__task task = {.run = never_returns, .context = &is_stuck};
    signal(SIGABRT, SIG_DFL);
    weir_log_set_sink(count_warning, NULL);
    open_recorded(folder, "1", "none");
    record_pairs(100);
    if (!weir__task_add(&task))
      _exit(2);
    weir__task_wake(&task);
    while (!atomic_load(&is_stuck))
      usleep(1000);
    abort();
  }
  assert_int_equal(child_outcome(child), -SIGABRT);
  weir__recording *s = load_recording(find_file("-abort-1.pickle"));
  assert_true(s->event_count >= 300);
  weir__recording_free(s);
}

/* ---- Invalid files ---- */

static void write_file(const char *path, const void *data, size_t size) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, size, f), size);
  assert_int_equal(fclose(f), 0);
}

/* Areas and records of the log that a newer program may write. */
TEST(unknown_parts) {
  open_recorded(folder, "1", "none");
  record_pairs(300);
  close_recording();
  const size_t size = (size_t)about_file().st_size, more = 192;
  unsigned char *data = calloc(1, size + more);
  char path[512];
  FILE *f = fopen(find_file(".ring"), "r");
  assert_int_equal(fread(data, 1, size, f), size);
  fclose(f);
  weir__ring_file_header *h = (weir__ring_file_header *)(void *)data;
  weir__ring_file_area *added = (weir__ring_file_area *)(void *)(data + size);
  assert_int_equal(h->file_bytes, size);
  *added = (weir__ring_file_area){.kind = 77, .bytes = more};
  h->file_bytes += more;
  weir__ring_file_area *log = (weir__ring_file_area *)(void *)(data + h->header_bytes);
  assert_int_equal(log->kind, WEIR__RING_LOG);
  weir__ring_file_record record = {.kind = 78, .length = 24};
  memcpy((unsigned char *)(log + 1) + log->used, &record, sizeof record);
  log->used += sizeof record + 24;
  snprintf(path, sizeof path, "%s", path_in("newer"));
  write_file(path, data, size + more);
  weir__recording *s = load_recording(path);
  assert_int_equal(s->event_count, 3 * 300 + 1);
  check_replay(s);
  weir__recording_free(s);
  free(data);
}

TEST(broken) {
  open_recorded(folder, "1", "all");
  weir_history_set_metadata(recorded, 0, "text");
  record_pairs(300);
  close_recording();
  const size_t size = (size_t)about_file().st_size;
  unsigned char *good = malloc(size), *bad = malloc(size);
  char path[512];
  FILE *f = fopen(find_file(".ring"), "r");
  assert_int_equal(fread(good, 1, size, f), size);
  fclose(f);
  snprintf(path, sizeof path, "%s", path_in("broken"));
  weir__recording *s = NULL;
  const size_t sizes[] = {9, 100, 4095, 4096, 5000, size / 2, size - 1};
  for (size_t i = 0; i < WEIR_COUNT_OF(sizes); i++) {
    write_file(path, good, sizes[i]);
    assert_int_equal(weir__recording_load(path, NULL, &s), WEIR_ERROR_BAD_DATA);
    char byte[64];
    snprintf(byte, sizeof byte, ": byte %zu: ", sizes[i]);
    assert_non_null(strstr(weir_last_error(), byte));
  }
  soft_seed(5);
  int errors = 0;
  weir_log_set_sink(count_warning, NULL);
  for (int i = 0; i < 400; i++) {
    memcpy(bad, good, size);
    for (uint64_t flips = 1 + soft_random(8); flips > 0; flips--) {
      /* The header, and the starts of areas: of the log, of the checkpoints and of the chunks. */
      const size_t log = 64 << 10, states = 128 << 10;
      size_t base = (size_t[]){8, 4096, 4096 + log, 4096 + log + states}[soft_random(4)];
      bad[base + soft_random(base == 8 ? 400 : 4000)] ^= (unsigned char)(1u << soft_random(8));
    }
    write_file(path, bad, size);
    weir_status status = weir__recording_load(path, NULL, &s);
    if (!status) {
      weir__recording_free(s);
      continue;
    }
    errors++;
    assert_int_equal(status, WEIR_ERROR_BAD_DATA);
    assert_non_null(strstr(weir_last_error(), ": byte "));
  }
  soft_seed(0);
  assert_in_range(errors, 20, 399);
  free(good);
  free(bad);
}
