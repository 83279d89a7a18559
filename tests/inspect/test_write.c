/*
 * Writing snapshots: CPython and Weir's own reader read every snapshot, and writing takes a bounded amount of memory.
 */
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inspect/recorded.h"
#include "offline/read/recording.h"
#include "support/alloc.h"
#include "support/length.h"
#include "weir/snapshot.h"

static char folder[] = "/tmp/weir-test-snapshot-XXXXXX";
static char path_text[4][128];

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  char command[160];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command); /* NOLINT(cert-env33-c): the path belongs to the test */
}

FIXTURE(.begin = make_folder, .end = remove_folder, .teardown = alloc_teardown)

/* The path of a file in the test's folder, valid for the next three calls. */
static const char *path_of(const char *name) {
  static int turn;
  char *text = path_text[turn++ % 4];
  snprintf(text, sizeof path_text[0], "%s/%s", folder, name);
  return text;
}

static bool has_python(void) {
  return system("python3 -c 'import pickle, json, pickletools' >/dev/null 2>&1") == 0; /* NOLINT(cert-env33-c) */
}

#define NEED_PYTHON()                                                                                                  \
  do {                                                                                                                 \
    if (!has_python())                                                                                                 \
      WAIVE_TEST("there is no python3");                                                                               \
  } while (0)

static void run(const char *command) {
  if (system(command) != 0) /* NOLINT(cert-env33-c): the command belongs to the test */
    fail_msg("failed: %s", command);
}

static weir_snapshot *take_from(recorded *r) {
  weir__history_source source = recorded_source(r);
  weir_snapshot *snapshot = NULL;
  assert_ok(weir__snapshot_collect("test", allocator, NULL, &source, &snapshot));
  return snapshot;
}

static void save(const weir_snapshot *snapshot) {
  assert_ok(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, path_of("s.pickle")));
  assert_ok(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, path_of("s.json")));
}

/* The expected values for check_snapshot.py. */
static void write_expected(const weir_snapshot *snapshot, const recorded *r) {
  FILE *file = fopen(path_of("expected"), "w");
  assert_non_null(file);
  const weir_snapshot_segment *s;
  size_t count;
  assert_ok(weir_snapshot_segments(snapshot, &s, &count));
  for (size_t i = 0; i < count; i++) {
    fprintf(file, "segment %d %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIi64 " %s", s[i].device,
            s[i].address, s[i].bytes, s[i].allocated, s[i].active, s[i].requested, (int64_t)(uintptr_t)s[i].stream,
            s[i].is_large ? "large" : "small");
    fprintf(file, " %" PRIu64 " %" PRIu64 " %d %zu\n", s[i].pool.first, s[i].pool.second, s[i].is_expandable,
            s[i].block_count);
    for (size_t k = 0; k < s[i].block_count; k++)
      fprintf(file, "block %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", s[i].blocks[k].address, s[i].blocks[k].bytes,
              s[i].blocks[k].requested, weir_block_state_name(s[i].blocks[k].state));
  }
  for (size_t i = 0; i < r->event_count; i++) {
    const weir__entry *e = &r->events[i];
    fprintf(file, "event %s %" PRIu64 " %" PRIu64 " %" PRIi64 " %" PRIi64 " %" PRIu64 " %" PRIu64 " %d\n",
            weir_trace_action_name(e->action), e->address, e->bytes, (int64_t)e->stream, (int64_t)e->time,
            r->pools[e->pool].first, r->pools[e->pool].second, e->stack ? (int)r->stacks[e->stack].count : -1);
  }
  assert_int_equal(fclose(file), 0);
}

static void check_in_python(const weir_snapshot *snapshot, const recorded *r) {
  char command[1024];
  save(snapshot);
  write_expected(snapshot, r);
  snprintf(command, sizeof command, "python3 '%s/../inspect/check_snapshot.py' '%s' '%s' '%s'", WEIR_TEST_DATA,
           path_of("s.pickle"), path_of("s.json"), path_of("expected"));
  run(command);
}

/* ---- A recorder with one of everything ---- */

static const recorded_frame inner_frames[] = {{0, "forward", "model.py", 12}, {0, "step", "train.py", 7}};
static const recorded_frame outer_frames[] = {{0, "step", "train.py", 7}};
static const recorded_stack stacks[] = {{NULL, 0}, {inner_frames, 2}, {outer_frames, 1}, {NULL, 0}};
static const weir_pool_id pools[] = {{0, 0}, {0, 11}, {UINT64_MAX, 1ull << 33}};
static const weir__recorded_context text_sets[] = {{NULL, NULL, NULL},
                                                   {"forward", "compiled/0", "batch=3"},
                                                   {NULL, NULL, "\"quoted\" \\ \n\x01 \xff\xc3\xa9 \xed\xa0\x80"}};
static const weir__entry events[] = {
    {.address = 0x7f0000000000, .bytes = 2 << 20, .action = WEIR_TRACE_SEGMENT_ALLOC, .time = 1700000000000000},
    {.address = 0x7f0000000000, .bytes = 1000, .action = WEIR_TRACE_ALLOC, .stack = 1, .context = 1, .stream = 5},
    {.address = 0x7f0000000400, .bytes = 255, .action = WEIR_TRACE_ALLOC, .stack = 1, .pool = 1},
    {.address = 0x7f0000000600, .bytes = 256, .action = WEIR_TRACE_ALLOC, .stack = 2, .pool = 2, .context = 2},
    {.address = 0x7f0000000800, .bytes = 65535, .action = WEIR_TRACE_FREE_REQUESTED, .stream = UINT64_MAX},
    {.address = 0x7f0000000a00, .bytes = 65536, .action = WEIR_TRACE_FREE_COMPLETED, .stream = 1ull << 63},
    {.address = 0x80000000, .bytes = 0x7fffffff, .action = WEIR_TRACE_SEGMENT_MAP},
    {.address = UINT64_MAX, .bytes = 0xffffffff, .action = WEIR_TRACE_SEGMENT_UNMAP},
    {.address = 1ull << 39, .bytes = 1ull << 40, .action = WEIR_TRACE_SEGMENT_FREE},
    {.address = 0, .bytes = INT64_MAX, .action = WEIR_TRACE_OOM, .stack = 3},
    {.address = 0, .bytes = 12345, .action = WEIR_TRACE_SNAPSHOT},
    {.address = 0x7f0000000400, .bytes = 255, .action = WEIR_TRACE_ANNOTATE, .context = 1, .time = 1700000000000001},
    {.address = 0, .bytes = 0, .action = WEIR_TRACE_USER_DEFINED, .context = 1, .time = 1700000000000002},
};
static const recorded_pair start_pairs[] = {{"name", "step 1"}, {"stage", "START"}};
static const recorded_pair end_pairs[] = {{"name", "step 1"}, {"stage", "END"}};
static const recorded_annotation annotations[] = {{start_pairs, 2, 0, 1700000000000000},
                                                  {end_pairs, 2, 0, 1700000000000009}};

static recorded one_of_everything(void) {
  return (recorded){.events = events,
                    .event_count = WEIR_COUNT_OF(events),
                    .dropped = 3,
                    .stacks = stacks,
                    .pools = pools,
                    .contexts = text_sets,
                    .annotations = annotations,
                    .annotation_count = WEIR_COUNT_OF(annotations),
                    .block_stack = 1,
                    .segment_stack = 2};
}

/* An allocator with blocks in all states, small and large, of two streams and a private pool. */
static void open_with_blocks(const char *conf) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, conf);
  weir_cu_stream other = work_stream();
  void *middle = NULL, *waits;
  get(1000, NULL);
  middle = get(3000, NULL);
  waits = get(5000, NULL);
  get(7 * MIB, other);
  get_on(1, 25 * MIB, NULL);
  put(middle);
  work(other);
  also_used_by(waits, other);
  put(waits);
  assert_ok(weir_pool_begin(allocator, 0, (weir_pool_id){0, 11}, NULL, NULL));
  get(600, NULL);
  assert_ok(weir_pool_end(allocator, 0, (weir_pool_id){0, 11}));
}

static void close_with_blocks(void) {
  soft_step_all();
  alloc_close();
}

/* ---- CPython ---- */

TEST(cpython_reads_it) {
  NEED_PYTHON();
  static const char *const confs[] = {
      "", "expandable_segments:True",
      "max_split_size_mb:64,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,512:2,>:8]"};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    open_with_blocks(confs[i]);
    recorded r = one_of_everything();
    weir_snapshot *snapshot = take_from(&r);
    check_in_python(snapshot, &r);
    weir_snapshot_destroy(snapshot);
    close_with_blocks();
  }
}

TEST(cpython_reads_nothing) {
  NEED_PYTHON();
  alloc_open(NULL, 64 * MIB);
  weir_snapshot *snapshot = NULL;
  recorded r = {0};
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  check_in_python(snapshot, &r);
  weir_snapshot_destroy(snapshot);
  alloc_close();
}

/* Lists are written in batches: lengths of a batch, one more and one less. */
TEST(cpython_reads_long_lists) {
  NEED_PYTHON();
  static const size_t lengths[] = {999, 1000, 1001, 2000, 5001};
  alloc_open(NULL, 64 * MIB);
  weir__entry *many = calloc(5001, sizeof *many);
  assert_non_null(many);
  for (uint32_t i = 0; i < 5001; i++)
    many[i] = (weir__entry){.address = (uint64_t)i << 9, .bytes = i, .stack = i % 3, .context = i % 3, .pool = i % 3};
  for (size_t i = 0; i < WEIR_COUNT_OF(lengths); i++) {
    recorded r = one_of_everything();
    r.events = many;
    r.event_count = lengths[i];
    weir_snapshot *snapshot = take_from(&r);
    check_in_python(snapshot, &r);
    weir_snapshot_destroy(snapshot);
  }
  free(many);
  alloc_close();
}

/* ---- PyTorch's test_cpp_memory_snapshot_pickle ---- */

static __attribute__((noinline)) size_t the_script_fn(void **addresses, size_t room) {
  size_t count = (size_t)backtrace(addresses, (int)room);
  __asm__ volatile("" ::: "memory"); /* a tail call would leave no frame */
  return count;
}

TEST(cpp_memory_snapshot_pickle) {
  NEED_PYTHON();
  void *libdw = dlopen("libdw.so.1", RTLD_NOW);
  if (!libdw)
    WAIVE_TEST("needs libdw.so.1: the dynamic linker does not know the functions of a program");
  dlclose(libdw);
  for (int with_stacks = 0; with_stacks < 2; with_stacks++) {
    alloc_open(NULL, 64 * MIB);
    void *addresses[32];
    size_t count = the_script_fn(addresses, WEIR_COUNT_OF(addresses));
    recorded_frame frames[33] = {{0, "rand", "case.py", 3}};
    for (size_t i = 0; i < count; i++)
      frames[1 + i].address = (uintptr_t)addresses[i];
    void *p = get(311 * 411 * 4, NULL);
    weir__entry event = {.address = (uint64_t)p, .bytes = 311 * 411 * 4, .stack = with_stacks != 0};
    recorded_stack both[] = {{NULL, 0}, {frames, 1 + count}};
    recorded r = {.events = &event,
                  .event_count = 1,
                  .stacks = both,
                  .pools = pools,
                  .contexts = text_sets,
                  .block_stack = with_stacks != 0};
    weir_snapshot *snapshot = take_from(&r);
    save(snapshot);
    FILE *script = fopen(path_of("case.py"), "w");
    assert_non_null(script);
    fprintf(script,
            "import pickle\n"
            "mem = pickle.load(open('%s', 'rb'))\n"
            "blocks = [b for s in mem['segments'] for b in s['blocks'] if b['state'] == 'active_allocated'\n"
            "          and b['requested_size'] == 311 * 411 * 4]\n"
            "assert len(blocks) == 1, blocks\n"
            "last = mem['device_traces'][0][-1]\n"
            "assert last['action'] == 'alloc', last\n"
            "if %d:\n"
            "    for frames in blocks[0]['frames'], last['frames']:\n"
            "        names = [f['name'] for f in frames]\n"
            "        assert names[0] == 'rand' and 'case.py' in frames[0]['filename'], frames\n"
            "        assert any(n.startswith('the_script_fn') for n in names) and 'main' in names, names\n"
            "else:\n"
            "    assert blocks[0]['frames'] == [] and 'frames' not in last\n",
            path_of("s.pickle"), with_stacks);
    assert_int_equal(fclose(script), 0);
    char command[160];
    snprintf(command, sizeof command, "python3 '%s'", path_of("case.py"));
    run(command);
    weir_snapshot_destroy(snapshot);
    put(p);
    alloc_close();
  }
}

/* ---- Weir's own reader ---- */

static const char *text_at(const weir__recording *read, uint32_t number) { return read->strings.items[number].text; }

static void check_stack(const weir__recording *read, uint32_t number, const recorded_stack *expected) {
  const weir__recording_stack *stack = &read->stacks[number];
  assert_int_equal(stack->count, expected->count);
  for (size_t i = 0; i < stack->count; i++) {
    const weir__recording_frame *f = &read->frames[read->stack_frames[stack->first + i]];
    assert_string_equal(text_at(read, f->name), expected->frames[i].function);
    assert_string_equal(text_at(read, f->filename), expected->frames[i].file);
    assert_int_equal(f->line, expected->frames[i].line);
  }
}

static void check_read_segment(const weir__recording *read, const weir__recording_segment *a,
                               const weir_snapshot_segment *b) {
  static const uint8_t state_of[] = {WEIR_BLOCK_INACTIVE, WEIR_BLOCK_ACTIVE_ALLOCATED, WEIR_BLOCK_ACTIVE_PENDING_FREE};
  assert_int_equal(a->address, b->address);
  assert_int_equal(a->size, b->bytes);
  assert_int_equal(a->allocated, b->allocated);
  assert_int_equal(a->active, b->active);
  assert_int_equal(a->requested, b->requested);
  assert_int_equal(read->streams[a->stream], (int64_t)(uintptr_t)b->stream);
  assert_int_equal(read->pools[a->pool].id[0], b->pool.first);
  assert_int_equal(read->pools[a->pool].id[1], b->pool.second);
  assert_int_equal(a->is_large, b->is_large);
  assert_int_equal(a->is_expandable, b->is_expandable);
  check_stack(read, a->stack, &stacks[2]);
  assert_int_equal(a->block_count, b->block_count);
  for (size_t k = 0; k < a->block_count; k++) {
    assert_int_equal(a->blocks[k].address, b->blocks[k].address);
    assert_int_equal(a->blocks[k].size, b->blocks[k].bytes);
    assert_int_equal(a->blocks[k].requested, b->blocks[k].requested);
    assert_int_equal(a->blocks[k].state, state_of[b->blocks[k].state]);
    check_stack(read, a->blocks[k].stack, &stacks[b->blocks[k].state == WEIR_BLOCK_INACTIVE ? 0 : 1]);
  }
}

static void check_read_events(const weir__recording *read, const recorded *r) {
  assert_int_equal(read->devices[0].event_count, r->event_count);
  for (size_t i = 0; i < r->event_count; i++) {
    const weir__recording_entry *a = &read->devices[0].events[i];
    const weir__entry *b = &events[i];
    assert_string_equal(weir_trace_action_name(a->action), weir_trace_action_name(b->action));
    assert_int_equal(a->address, b->address);
    assert_int_equal(a->size, b->bytes);
    assert_int_equal(a->time_us, b->time);
    assert_int_equal(read->streams[a->stream], b->stream);
    assert_int_equal(read->pools[a->pool].id[0], r->pools[b->pool].first);
    assert_int_equal(read->pools[a->pool].id[1], r->pools[b->pool].second);
    check_stack(read, a->stack, &stacks[b->stack]);
    const weir__recording_remark *remark = &read->remarks[a->remark];
    const char *context = text_sets[b->context].compile_context;
    assert_string_equal(text_at(read, remark->compile_context), context ? context : "N/A");
    if (b->context == 2)
      assert_string_equal(text_at(read, remark->user_metadata),
                          "\"quoted\" \\ \n\x01 \xef\xbf\xbd\xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    else
      assert_string_equal(text_at(read, remark->user_metadata), b->context ? text_sets[b->context].user_metadata : "");
  }
}

TEST(weir_reads_it) {
  open_with_blocks("expandable_segments:True,max_split_size_mb:64");
  recorded r = one_of_everything();
  r.pools = (const weir_pool_id[]){{0, 0}, {0, 11}, {INT64_MAX, 1ull << 33}}; /* its ids are signed */
  weir_snapshot *snapshot = take_from(&r);
  save(snapshot);
  weir__recording *read = NULL;
  assert_ok(weir__recording_load(path_of("s.pickle"), NULL, &read));
  const weir_snapshot_segment *s;
  size_t count;
  assert_ok(weir_snapshot_segments(snapshot, &s, &count));
  assert_int_equal(read->segment_count, count);
  assert_int_equal(read->device_count, 2);
  for (size_t d = 0, i = 0; d < 2; d++)
    for (size_t k = 0; k < read->devices[d].segment_count; k++, i++) {
      assert_int_equal(s[i].device, d);
      check_read_segment(read, &read->devices[d].segments[k], &s[i]);
    }
  check_read_events(read, &r);
  assert_string_equal(read->conf, "max_split_size_mb:64,expandable_segments:True");
  const weir__recording_setting *setting = weir__recording_find_setting(read, "max_split_size", NULL);
  assert_non_null(setting);
  assert_int_equal(setting->integer, 64 * MIB);
  assert_int_equal(read->annotation_count, 2);
  assert_string_equal(text_at(read, read->annotations[1].name), "step 1");
  assert_string_equal(text_at(read, read->annotations[1].stage), "END");
  assert_int_equal(read->annotations[1].time_us, 1700000000000009);
  weir__recording_free(read);
  weir_snapshot_destroy(snapshot);
  close_with_blocks();
}

/* ---- Many entries, deep stacks, long texts ---- */

/* A line of /proc/self/status, in KiB, or 0. */
static long status_of(const char *key) {
  char line[256];
  long value = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file))
    if (!strncmp(line, key, strlen(key)))
      value = strtol(line + strlen(key) + 1, NULL, 10);
  if (file)
    fclose(file);
  return value;
}

static void reset_peak_memory(void) {
  FILE *file = fopen("/proc/self/clear_refs", "w");
  if (file) {
    fputs("5", file);
    fclose(file);
  }
}

TEST(a_million_events) {
  enum { STACKS = 1000 };
  const size_t events = (size_t)repetitions(250000, 1000000);
  alloc_open(NULL, 64 * MIB);
  weir__entry *many = calloc(events, sizeof *many);
  recorded_stack *known = calloc(STACKS, sizeof *known);
  assert_non_null(many);
  assert_non_null(known);
  for (size_t i = 1; i < STACKS; i++)
    known[i] = stacks[1 + i % 2];
  for (size_t i = 0; i < events; i++)
    many[i] = (weir__entry){.address = 0x7f0000000000 + (i % 4096) * 512,
                            .bytes = i % 1000000,
                            .time = 1700000000000000 + i,
                            .stack = (uint32_t)(i % STACKS),
                            .action = (uint8_t)(i % 3)};
  recorded r = {.events = many, .event_count = events, .stacks = known, .pools = pools, .contexts = text_sets};
  weir_snapshot *snapshot = take_from(&r);
  free(many);
  for (int format = 0; format < 2; format++) {
    FILE *file = fopen("/dev/null", "w");
    assert_non_null(file);
    reset_peak_memory();
    long before = status_of("VmRSS:");
    double start = soft_milliseconds();
    assert_ok(weir_snapshot_write(snapshot, (weir_snapshot_format)format, weir_write_file, file));
    double took = (soft_milliseconds() - start) / 1e3;
    long more = status_of("VmHWM:") - before;
    fclose(file);
    printf("%zu events as %s: %.0f ms, %ld KiB\n", events, format ? "JSON" : "a pickle", took * 1e3, more);
    assert_true(took < 20);
    if (before > 0)
      assert_true(more < 4096);
  }
  weir_snapshot_destroy(snapshot);
  free(known);
  alloc_close();
}

TEST(a_stack_of_a_thousand_frames) {
  NEED_PYTHON();
  enum { FRAMES = 1000 };
  static recorded_frame frames[FRAMES];
  char names[FRAMES][16];
  for (int i = 0; i < FRAMES; i++) {
    snprintf(names[i], sizeof names[i], "f%d", i);
    frames[i] = (recorded_frame){.function = names[i], .file = "deep.py", .line = i};
  }
  alloc_open(NULL, 64 * MIB);
  recorded_stack deep[] = {{NULL, 0}, {frames, FRAMES}};
  weir__entry event = {.stack = 1, .bytes = 512};
  recorded r = {.events = &event, .event_count = 1, .stacks = deep, .pools = pools, .contexts = text_sets};
  weir_snapshot *snapshot = take_from(&r);
  check_in_python(snapshot, &r);
  weir_snapshot_destroy(snapshot);
  alloc_close();
}

TEST(a_text_longer_than_the_buffer) {
  NEED_PYTHON();
  enum { BYTES = 300000 };
  char *longest = malloc(BYTES + 1);
  assert_non_null(longest);
  for (int i = 0; i < BYTES; i++)
    longest[i] = i % 1000 ? 'x' : '"';
  longest[BYTES] = 0;
  alloc_open(NULL, 64 * MIB);
  weir__recorded_context long_context[] = {{NULL, NULL, NULL}, {NULL, NULL, longest}};
  weir__entry event = {.context = 1, .bytes = 512};
  recorded r = {.events = &event, .event_count = 1, .stacks = stacks, .pools = pools, .contexts = long_context};
  weir_snapshot *snapshot = take_from(&r);
  check_in_python(snapshot, &r);
  weir_snapshot_destroy(snapshot);
  free(longest);
  alloc_close();
}

/* ---- Files ---- */

TEST(a_full_disk) {
  FILE *full = fopen("/dev/full", "w");
  if (!full)
    WAIVE_TEST("there is no /dev/full");
  open_with_blocks(NULL);
  weir_snapshot *snapshot = NULL;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_error_says(SYSTEM, "No space left",
                    weir_snapshot_write(snapshot, WEIR_SNAPSHOT_PICKLE, weir_write_file, full));
  fclose(full);
  weir_snapshot_destroy(snapshot);
  close_with_blocks();
}

TEST(files_are_written_atomically) {
  alloc_open(NULL, 64 * MIB);
  weir_snapshot *snapshot = NULL;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_error_says(SYSTEM, "No such file", weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, path_of("none/s.json")));
  assert_int_equal(mkdir(path_of("taken"), 0700), 0);
  assert_error(SYSTEM, weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, path_of("taken"))); /* it is a folder */
  for (int i = 0; i < 2; i++) /* the second call replaces the first file */
    assert_ok(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, path_of("again.json")));
  assert_int_equal(access(path_of("again.json"), F_OK), 0);

  /* A symbolic link stays a link, and its target keeps its permissions; a FIFO is written through. */
  struct stat about;
  assert_int_equal(chmod(path_of("again.json"), 0604), 0);
  assert_int_equal(symlink("again.json", path_of("link")), 0);
  assert_ok(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, path_of("link")));
  assert_int_equal(lstat(path_of("link"), &about), 0);
  assert_true(S_ISLNK(about.st_mode));
  assert_int_equal(lstat(path_of("again.json"), &about), 0);
  assert_int_equal(about.st_mode, S_IFREG | 0604);
  char begin[2] = "";
  assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
  int reader = open(path_of("fifo"), O_RDONLY | O_NONBLOCK);
  assert_ok(weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, path_of("fifo")));
  assert_int_equal(read(reader, begin, 2), 2);
  assert_memory_equal(begin, "\x80\2", 2);
  close(reader);
  assert_int_equal(lstat(path_of("fifo"), &about), 0);
  assert_true(S_ISFIFO(about.st_mode));
  weir_snapshot_destroy(snapshot);
  alloc_close();
}
