/*
 * Files of WEIR_RECORD written by several threads: each replays without a difference.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offline/read/recording.h"
#include "offline/replay/replay.h"
#include "record/ring_file.h"
#include "support/length.h"
#include "support/ring.h"
#include "support/sanitized.h"
#include "weir/history.h"
#include "weir/pool.h"
#include "weir/snapshot.h"

#ifdef SANITIZED
enum { ROUNDS = 1, OPS = 1500 };
#else
enum { ROUNDS = 3, OPS = 6000 };
#endif
enum { MAX_THREADS = 8, HELD = 48, SHARED = 64 };

/* The behaviour of the threads in a test. */
typedef struct plan {
  const char *name, *conf;
  int threads;
  bool one_stream;   /* all threads use the same stream */
  bool pools;        /* some allocations go to private pools, one for each thread */
  bool hand_over;    /* a thread may free the memory of another */
  bool empties;      /* one thread empties the cache now and then */
  bool records;      /* blocks are used by other streams too */
  uint64_t limit;    /* 0 for none */
  size_t largest;    /* the largest request */
  bool may_fail;     /* requests may fail */
  bool wraps;        /* the file is so small that most entries are dropped */
  uint64_t interval; /* chunks between checkpoints, or 0 for the default */
} plan;

static const plan *doing;
static _Atomic(void *) shared[SHARED];
static _Atomic uint64_t asked;

/* Now and then the streams complete their work. */
static int is_done(void *context, weir_cu_stream stream) {
  (void)context;
  (void)stream;
  return atomic_fetch_add(&asked, 1) % 3 == 0;
}

static void give_up(void *pointer, uint32_t random, uintptr_t stream) {
  if (doing->records && random % 5 == 0)
    assert_ok(weir_allocator_record_stream(recorded, pointer, (weir_cu_stream)(stream + 8)));
  assert_ok(weir_allocator_free(recorded, pointer));
}

static void *allocate(void *argument) {
  uintptr_t thread = (uintptr_t)argument, stream = doing->one_stream ? 16 : 16 * (thread + 1);
  weir_pool_id id = {0, 100 + thread};
  void *held[HELD] = {0};
  uint32_t random = 77 + (uint32_t)thread;
  bool in_pool = false;
  for (int i = 0; i < (doing->wraps ? 3 : 1) * OPS; i++) {
    random = random * 1664525 + 1013904223;
    uint32_t bits = random >> 12;
    int k = (int)(bits % HELD);
    if (doing->pools && bits % 61 == 0) {
      if (in_pool)
        assert_ok(weir_pool_end(recorded, 0, id));
      else
        assert_ok(weir_pool_begin(recorded, 0, id, NULL, NULL));
      in_pool = !in_pool;
    }
    if (doing->empties && thread == 0 && bits % 401 == 0)
      assert_ok(weir_allocator_empty_cache(recorded));
    if (held[k]) {
      void *pointer = held[k];
      held[k] = NULL;
      if (doing->hand_over && bits % 3 == 0)
        pointer = atomic_exchange(&shared[bits % SHARED], pointer);
      if (pointer)
        give_up(pointer, bits, stream);
      continue;
    }
    size_t bytes = 1 + bits % (bits % 4 ? doing->largest / 64 : doing->largest);
    weir_status status = weir_allocator_alloc(recorded, 0, bytes, (weir_cu_stream)stream, &held[k]);
    if (status) {
      assert_true(doing->may_fail);
      assert_int_equal(status, WEIR_ERROR_OUT_OF_MEMORY);
      held[k] = NULL;
    }
  }
  if (in_pool)
    assert_ok(weir_pool_end(recorded, 0, id));
  for (int k = 0; k < HELD; k++)
    if (held[k])
      assert_ok(weir_allocator_free(recorded, held[k]));
  return NULL;
}

static void open_recorded(void) {
  open_recording(&(recording){
      .bytes = 16 * GIB, .is_done = is_done, .conf = doing->conf, .folder = folder, .mb = doing->wraps ? "1" : "16"});
  weir__ring_file *file = atomic_load(&recorded->history)->file;
  weir__lock_acquire(&file->lock);
  file->interval = doing->interval;
  weir__lock_release(&file->lock);
  if (doing->limit)
    assert_ok(weir_allocator_set_limit(recorded, 0, doing->limit));
}

static void check(const char *path, size_t *raced) {
  weir__recording *s = load_recording(path);
  weir__replay_options options = {.device = 0, .check = true};
  weir__replay_report report = {0};
  assert_ok(weir__replay(s, &options, &report));
  if (report.differences) {
    char kept[600];
    snprintf(kept, sizeof kept, "/tmp/weir-test-record-threads-failed-%s", strrchr(path, '/') + 1);
    if (getenv("WEIR_TEST_KEEP"))
      rename(path, kept);
    for (size_t i = 0; i < report.differences && i < 3; i++)
      print_error("%s\n", report.shown[i]);
    fail_msg("%s: %zu differences", doing->name, report.differences);
  }
  assert_true(report.allocations > OPS);
  *raced = report.raced;
  weir__recording_free(s);
}

static void end(void) {
  close_recording();
  remove_files();
}

static int teardown(void **state) {
  (void)state;
  end();
  return 0;
}

FIXTURE(.begin = make_folder, .end = remove_folder, .teardown = teardown)

static void run(const plan *what) {
  doing = what;
  for (int round = 0; round < ROUNDS; round++) {
    pthread_t threads[MAX_THREADS];
    memset((void *)shared, 0, sizeof shared);
    open_recorded();
    for (uintptr_t i = 0; i < (uintptr_t)what->threads; i++)
      assert_int_equal(pthread_create(&threads[i], NULL, allocate, (void *)i), 0);
    for (int i = 0; i < what->threads; i++)
      assert_int_equal(pthread_join(threads[i], NULL), 0);
    size_t raced = 0;
    if (what->wraps) {
      assert_true(atomic_load(&recorded->history)->file->header->devices[0].dropped > 0);
      check_window(find_file(".ring"), 0, recorded);
    } else
      check(find_file(".ring"), &raced);
    if (!what->one_stream && !what->hand_over && !what->records)
      assert_int_equal(raced, 0);
    end();
  }
}

TEST(own_streams) {
  run(&(plan){.name = "own streams", .threads = 6, .largest = 30 * MIB});
  run(&(plan){.name = "expandable", .conf = "expandable_segments:True", .threads = 4, .largest = 30 * MIB});
}

TEST(pools) {
  run(&(plan){.name = "pools", .threads = 8, .pools = true, .largest = 8 * MIB});
  run(&(plan){.name = "pools of one stream", .threads = 5, .pools = true, .one_stream = true, .largest = 8 * MIB});
}

TEST(one_stream) {
  run(&(plan){.name = "one stream", .threads = 8, .one_stream = true, .largest = 30 * MIB});
  run(&(plan){.name = "one stream, small", .threads = 8, .one_stream = true, .largest = MIB});
  run(&(plan){.name = "one stream, expandable",
              .conf = "expandable_segments:True",
              .threads = 6,
              .one_stream = true,
              .largest = 30 * MIB});
}

TEST(handed_over) { run(&(plan){.name = "handed over", .threads = 6, .hand_over = true, .largest = 30 * MIB}); }

TEST(other_streams) { run(&(plan){.name = "other streams", .threads = 4, .records = true, .largest = 30 * MIB}); }

TEST(emptied) {
  run(&(plan){.name = "emptied", .threads = 4, .empties = true, .largest = 30 * MIB});
  run(&(plan){.name = "emptied, expandable",
              .conf = "expandable_segments:True",
              .threads = 4,
              .empties = true,
              .largest = 30 * MIB});
}

TEST(limited) {
  run(&(plan){.name = "limited", .threads = 4, .limit = 1500 * MIB, .largest = 60 * MIB, .may_fail = true});
}

/* Checkpoints are taken by the service thread, or by allocating threads if it is late. */
TEST(rings) {
  for (uint64_t interval = 0; interval < (uint64_t)usual_or_long(2, 3); interval++) {
    run(&(plan){.name = "ring", .threads = 6, .largest = 8 * MIB, .wraps = true, .interval = interval});
    run(&(plan){.name = "ring of one stream",
                .threads = 6,
                .largest = 8 * MIB,
                .one_stream = true,
                .wraps = true,
                .interval = interval});
    run(&(plan){.name = "ring, expandable",
                .conf = "expandable_segments:True",
                .threads = 5,
                .empties = true,
                .largest = 30 * MIB,
                .wraps = true,
                .interval = interval});
    run(&(plan){.name = "ring, handed over",
                .threads = 5,
                .hand_over = true,
                .largest = 30 * MIB,
                .wraps = true,
                .interval = interval});
    run(&(plan){.name = "ring, pools",
                .threads = 5,
                .pools = true,
                .records = true,
                .largest = 8 * MIB,
                .wraps = true,
                .interval = interval});
    run(&(plan){.name = "ring, limited",
                .threads = 4,
                .limit = 1500 * MIB,
                .largest = 60 * MIB,
                .may_fail = true,
                .wraps = true,
                .interval = interval});
  }
}

/* ---- Texts of stacks ---- */

static _Thread_local uint32_t newest_text;
static atomic_int not_logged;

static size_t one_frame(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  frames[0] = (weir_stack_frame){newest_text, newest_text, 1};
  return room ? 1 : 0;
}

/* Every allocation has a stack with a text of its own. */
static void *allocate_with_new_texts(void *argument) {
  const weir__ring_file *file = atomic_load(&recorded->history)->file;
  uintptr_t thread = (uintptr_t)argument;
  for (int i = 0; i < OPS; i++) {
    char text[32];
    snprintf(text, sizeof text, "%d of thread %d", i, (int)thread);
    newest_text = weir_history_text(text);
    void *pointer;
    assert_ok(weir_allocator_alloc(recorded, 0, 512, (weir_cu_stream)(16 * (thread + 1)), &pointer));
    if (atomic_load(&file->texts_logged) < newest_text)
      atomic_fetch_add(&not_logged, 1);
    assert_ok(weir_allocator_free(recorded, pointer));
  }
  return NULL;
}

/* An entry that can be read has its stack and texts in the log, also while other threads add some. */
TEST(texts_are_logged_before_entries) {
  pthread_t threads[4];
  weir_stack_set_hook(one_frame, NULL);
  open_recording(&(recording){.bytes = GIB, .is_done = is_done, .folder = folder, .mb = "64", .stacks = "alloc"});
  for (uintptr_t i = 0; i < WEIR_COUNT_OF(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, allocate_with_new_texts, (void *)i), 0);
  for (size_t i = 0; i < WEIR_COUNT_OF(threads); i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  weir_stack_set_hook(NULL, NULL);
  assert_int_equal(atomic_load(&atomic_load(&recorded->history)->file->header->log_lost), 0);
  assert_int_equal(atomic_load(&not_logged), 0);
}
