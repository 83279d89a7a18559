/*
 * The page that a process publishes: what it says, when it is there, and what a reader makes of pages that are stale,
 * cut off, forged, or of a process that dies in the middle of writing.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/maintain.h"
#include "inspect/publish.h"
#include "record/live_page.h"
#include "support/alloc.h"
#include "support/check.h"

static char folder[] = "/tmp/weir-page-XXXXXX";
static char path[WEIR__PAGE_PATH]; /* of the page that was seen last */
static weir__page_view seen;

static void remove_all(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  assert_int_equal(system(command), 0);
}

static int begin(void **state) {
  (void)state;
  strcpy(folder, "/tmp/weir-page-XXXXXX");
  assert_non_null(mkdtemp(folder));
  setenv("WEIR_STATS_PAGE", folder, 1);
  return 0;
}

static int end(void **state) {
  weir__page_view_clear(&seen);
  int code = alloc_teardown(state);
  remove_all();
  return code;
}

FIXTURE(.setup = begin, .teardown = end)

static void note_path(void *context, const char *file) {
  (*(int *)context)++;
  snprintf(path, sizeof path, "%s", file);
}

static int page_files(void) {
  int count = 0;
  weir__pages_visit(5000, note_path, &count);
  return count;
}

/* Writes the page of this process and reads it. */
static const weir__page_row *look(void) {
  weir__publish_now();
  weir__page_view_clear(&seen);
  assert_int_equal(page_files(), 1);
  weir__page_read(path, &seen);
  assert_int_equal(seen.life, WEIR__PAGE_ALIVE);
  assert_true(seen.copy.row_count > 0);
  return seen.rows;
}

static bool knows(const weir__page_row *row, weir__page_count count) { return row->known >> count & 1; }

/* ---- What it says ---- */

TEST(counts_of_a_device) {
  alloc_open(NULL, 64 * MIB);
  void *p = get(3 * MIB, NULL), *q = get(1000, NULL);
  const weir__page_row *row = look();
  assert_int_equal(row->kind, WEIR__PAGE_DEVICE);
  assert_int_equal(row->count[WEIR__PAGE_ALLOCATED], 3 * MIB + 1024);
  assert_int_equal(row->count[WEIR__PAGE_REQUESTED], 3 * MIB + 1000);
  assert_int_equal(row->count[WEIR__PAGE_RESERVED], reserved());
  assert_int_equal(row->count[WEIR__PAGE_BLOCKS], 2);
  assert_int_equal(row->count[WEIR__PAGE_ALLOCATIONS], 2);
  assert_int_equal(row->count[WEIR__PAGE_DRIVER_ALLOCATIONS], 2);
  assert_false(knows(row, WEIR__PAGE_HARD_LIMIT));
  assert_int_equal(seen.devices[0].total, 64 * MIB);
  assert_int_equal(seen.pid, getpid());
  assert_string_equal(seen.devices[0].name, "Weir Software Device");
  put(p);
  put(q);
  row = look();
  assert_int_equal(row->count[WEIR__PAGE_ALLOCATED], 0);
  assert_true(row->count[WEIR__PAGE_PEAK_ALLOCATED] >= 3 * MIB + 1024);
  alloc_close();
  assert_int_equal(page_files(), 0);
}

/* The cached path publishes nothing: an arena's own counts are read. */
TEST(steady_state_is_seen) {
  alloc_open(NULL, 256 * MIB);
  void *p[8];
  for (int i = 0; i < 8; i++)
    p[i] = get(2 * MIB, NULL);
  for (int i = 0; i < 8; i++)
    put(p[i]);
  weir_allocator_stats before = stats_of(0); /* revokes the quota; the next operation claims one for all eight */
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < 8; i++) {
      p[i] = get(2 * MIB, NULL);
      assert_int_equal(look()->count[WEIR__PAGE_ALLOCATED], (uint64_t)(i + 1) * 2 * MIB);
      if (i == 7)
        for (int k = 0; k < 8; k++) {
          put(p[k]);
          assert_int_equal(look()->count[WEIR__PAGE_ALLOCATED], (uint64_t)(7 - k) * 2 * MIB);
        }
    }
  assert_int_equal(look()->count[WEIR__PAGE_ALLOCATIONS], 8 + 3 * 8);
  assert_int_equal(stats_of(0).num_device_alloc, before.num_device_alloc);
  alloc_close();
}

TEST(rows_of_pools) {
  alloc_open(NULL, 256 * MIB);
  const weir_pool_id id = {0, 7};
  void *p = get(1 * MIB, NULL), *q;
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  q = get(30 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  const weir__page_row *rows = look();
  assert_int_equal(seen.copy.row_count, 3);
  assert_int_equal(rows[0].kind, WEIR__PAGE_DEVICE);
  assert_int_equal(rows[1].pool[1], 7); /* the largest first */
  assert_int_equal(rows[1].count[WEIR__PAGE_ALLOCATED], 30 * MIB);
  assert_int_equal(rows[2].pool[1], 0);
  assert_int_equal(rows[2].count[WEIR__PAGE_ALLOCATED], 1 * MIB);
  assert_int_equal(rows[0].count[WEIR__PAGE_RESERVED],
                   rows[1].count[WEIR__PAGE_RESERVED] + rows[2].count[WEIR__PAGE_RESERVED]);
  put(p);
  put(q);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

TEST(tags_of_pools) {
  weir_tag *tag;
  alloc_open(NULL, 256 * MIB);
  assert_ok(weir_tag_open(allocator, 0, "weights", &tag));
  assert_ok(weir_tag_begin(tag));
  void *p = get(3 * MIB, NULL);
  assert_ok(weir_tag_end(tag));
  const weir__page_row *rows = look();
  assert_int_equal(seen.copy.row_count, 2);
  assert_string_equal(rows[1].tag, "weights");
  assert_int_equal(rows[1].count[WEIR__PAGE_ALLOCATED], 3 * MIB);
  assert_false(knows(&rows[1], WEIR__PAGE_SOFT_LIMIT));
  assert_ok(weir_tag_set_limits(tag, 8 * MIB, 16 * MIB));
  rows = look();
  assert_int_equal(rows[1].count[WEIR__PAGE_SOFT_LIMIT], 8 * MIB);
  assert_int_equal(rows[1].count[WEIR__PAGE_HARD_LIMIT], 16 * MIB);
  assert_false(knows(&rows[0], WEIR__PAGE_HARD_LIMIT));
  put(p);
  alloc_close();
}

/* Those that have no row of their own are in one. */
TEST(many_pools) {
  enum { POOLS = 3 * WEIR__PAGE_POOLS };
  alloc_open(NULL, 4 * GIB);
  void *p[POOLS];
  for (uint64_t i = 0; i < POOLS; i++) {
    assert_ok(weir_pool_create(allocator, 0, (weir_pool_id){0, i + 1}, NULL));
    assert_ok(weir_pool_begin(allocator, 0, (weir_pool_id){0, i + 1}, NULL, NULL));
    assert_ok(try_get(1000, NULL, &p[i]));
    assert_ok(weir_pool_end(allocator, 0, (weir_pool_id){0, i + 1}));
  }
  const weir__page_row *rows = look();
  assert_int_equal(seen.copy.row_count, WEIR__PAGE_POOLS + 2);
  uint64_t sum = 0;
  for (uint32_t i = 1; i < seen.copy.row_count; i++)
    sum += rows[i].count[WEIR__PAGE_ALLOCATED];
  assert_int_equal(rows[seen.copy.row_count - 1].kind, WEIR__PAGE_OTHER_POOLS);
  assert_int_equal(sum, rows[0].count[WEIR__PAGE_ALLOCATED]);
  for (uint64_t i = 0; i < POOLS; i++) {
    assert_ok(weir_allocator_free(allocator, p[i]));
    assert_ok(weir_pool_release(allocator, 0, (weir_pool_id){0, i + 1}));
  }
  alloc_close();
}

TEST(retries_and_failures) {
  alloc_open(NULL, 32 * MIB);
  void *p;
  put(get(20 * MIB, NULL));
  put(get(24 * MIB, NULL)); /* after the cache was given back */
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, try_get(60 * MIB, NULL, &p));
  const weir__page_row *row = look();
  assert_int_equal(row->count[WEIR__PAGE_RETRIES], 2);
  assert_int_equal(row->count[WEIR__PAGE_OOMS], 1);
  alloc_close();
}

/* Its holder may be waiting for the device: the page says how old these counts are, and the others are new. */
TEST(heap_that_is_busy) {
  alloc_open(NULL, 64 * MIB);
  void *p = get(1 * MIB, NULL);
  assert_int_equal(look()->age_ms, 0);
  weir__mutex_lock(&allocator->heaps[0].lock);
  usleep(30000);
  const weir__page_row *row = look();
  assert_in_range(row->age_ms, 20, 20000);
  assert_int_equal(row->count[WEIR__PAGE_DRIVER_ALLOCATIONS], 1);
  assert_int_equal(row->count[WEIR__PAGE_ALLOCATED], 1 * MIB);
  weir__mutex_unlock(&allocator->heaps[0].lock);
  put(p);
  alloc_close();
}

TEST(nothing_is_counted_without_a_cache) {
  alloc_open(NULL, 64 * MIB);
  put(get(1000, NULL));
  assert_ok(weir_allocator_set_caching(allocator, 0));
  const weir__page_row *row = look();
  assert_false(knows(row, WEIR__PAGE_ALLOCATED));
  assert_true(knows(row, WEIR__PAGE_RESERVED));
  alloc_close();
}

/* ---- When it is there ---- */

TEST(off) {
  setenv("WEIR_STATS_PAGE", "0", 1);
  alloc_open(NULL, 64 * MIB);
  put(get(1000, NULL));
  assert_null(weir__publish_path());
  assert_null(allocator->unpublish);
  alloc_close();
}

TEST(folder_of_others_is_refused) {
  chmod(folder, 0755);
  alloc_open(NULL, 64 * MIB);
  put(get(1000, NULL));
  assert_null(weir__publish_path());
  assert_int_equal(page_files(), 0);
  alloc_close();
}

TEST(two_allocators) {
  alloc_open(NULL, 64 * MIB);
  weir_allocator *other = alloc_create(NULL);
  void *p = get(1 * MIB, NULL), *q;
  assert_ok(weir_allocator_alloc(other, 0, 2 * MIB, NULL, &q));
  const weir__page_row *rows = look();
  assert_int_equal(seen.copy.row_count, 4);
  assert_int_equal(seen.copy.device_count, 1);
  assert_int_equal(rows[2].allocator, rows[0].allocator + 1);
  assert_int_equal(rows[2].count[WEIR__PAGE_ALLOCATED], 2 * MIB);
  assert_ok(weir_allocator_free(other, q));
  weir_allocator_destroy(other);
  look();
  assert_int_equal(seen.copy.row_count, 2);
  put(p);
  alloc_close();
}

/* A child with a page of its own: it ends in one of several ways once it is told. */
typedef enum ending { BY_KILL, BY_EXIT, BY_QUICK_EXIT } ending;

static pid_t start_job(ending how, int *told) {
  int ready[2], go[2];
  assert_int_equal(pipe(ready), 0);
  assert_int_equal(pipe(go), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    weir_driver *driver;
    weir_allocator *made;
    void *p;
    char byte;
    close(go[1]); /* else it would wait for itself */
    child_assert_ok(weir_driver_open_soft(NULL, &driver));
    child_assert(!driver->Init(driver, 0));
    child_assert_ok(weir_allocator_create(driver, NULL, &made));
    child_assert_ok(weir_allocator_alloc(made, 0, 5 * MIB, NULL, &p));
    weir__publish_now();
    child_assert(write(ready[1], "r", 1) == 1);
    child_assert(read(go[0], &byte, 1) >= 0);
    if (how == BY_EXIT)
      exit(0);
    _exit(how == BY_QUICK_EXIT ? 0 : 3);
  }
  char byte;
  assert_int_equal(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  close(go[0]);
  *told = go[1];
  return child;
}

static weir__page_life life_of(const char *file) {
  weir__page_view_clear(&seen);
  weir__page_read(file, &seen);
  return seen.life;
}

TEST(killed) {
  int told;
  pid_t child = start_job(BY_KILL, &told);
  assert_int_equal(page_files(), 1);
  assert_int_equal(life_of(path), WEIR__PAGE_ALIVE);
  assert_int_equal(seen.pid, child);
  assert_int_equal(seen.rows->count[WEIR__PAGE_ALLOCATED], 5 * MIB);
  kill(child, SIGKILL);
  siginfo_t how;
  waitid(P_PID, (id_t)child, &how, WEXITED | WNOWAIT); /* it is a zombie now */
  assert_int_equal(life_of(path), WEIR__PAGE_ENDED);
  waitpid(child, NULL, 0);
  assert_int_equal(life_of(path), WEIR__PAGE_ENDED);
  close(told);
  alloc_open(NULL, 64 * MIB); /* the next one cleans up */
  put(get(1000, NULL));
  look();
  assert_int_equal(seen.pid, getpid());
  alloc_close();
}

TEST(exit_removes_it) {
  int told;
  pid_t child = start_job(BY_EXIT, &told);
  assert_int_equal(page_files(), 1);
  close(told);
  assert_int_equal(child_outcome(child), 0);
  assert_int_equal(page_files(), 0);
}

TEST(quick_exit_leaves_a_page_that_has_ended) {
  int told;
  pid_t child = start_job(BY_QUICK_EXIT, &told);
  assert_int_equal(page_files(), 1);
  close(told);
  assert_int_equal(child_outcome(child), 0);
  assert_int_equal(life_of(path), WEIR__PAGE_ENDED);
}

/* The child neither writes the page of its parent nor ends it, and keeps no lock on it. */
TEST(fork_of_a_process_with_a_page) {
  alloc_open(NULL, 64 * MIB);
  void *p = get(1 * MIB, NULL);
  look();
  pid_t child = fork();
  if (!child) {
    weir__publish_now();
    child_assert(!weir__publish_path());
    exit(0);
  }
  assert_int_equal(child_outcome(child), 0);
  look();
  assert_int_equal(seen.pid, getpid());
  put(p);
  alloc_close();
}

/* As a daemon does. It is locked again with the next writing. */
TEST(descriptors_that_are_closed) {
  alloc_open(NULL, 64 * MIB);
  void *p = get(1 * MIB, NULL);
  look();
  for (int i = 3; i < 64; i++)
    close(i);
  assert_int_equal(life_of(path), WEIR__PAGE_ALIVE); /* by its id and start */
  weir__publish_now();
  int descriptor = open(path, O_RDONLY);
  assert_true(weir__file_is_locked(descriptor));
  close(descriptor);
  put(p);
  alloc_close();
}

/* ---- Pages that are not as they should be ---- */

static char *bytes;
static size_t size;

/* The bytes of a good page of this process. */
static void load_page(void) {
  struct stat about;
  alloc_open(NULL, 256 * MIB);
  void *p = get(3 * MIB, NULL);
  look();
  weir__publish_now(); /* both copies are written */
  int descriptor = open(path, O_RDONLY);
  assert_int_equal(fstat(descriptor, &about), 0);
  size = (size_t)about.st_size;
  bytes = malloc(size);
  assert_int_equal(read(descriptor, bytes, size), size);
  close(descriptor);
  put(p);
}

static void unload_page(void) {
  free(bytes);
  alloc_close();
}

static weir__page_life parse(const void *data, size_t length) {
  weir__page_view_clear(&seen);
  weir__page_parse(data, length, &seen);
  return seen.life;
}

static uint64_t slots_at(void) {
  const weir__ring_file_area *requests = (const void *)(bytes + WEIR__RING_HEADER);
  return WEIR__RING_HEADER + requests->bytes + sizeof *requests;
}

TEST(process_that_died_while_writing) {
  load_page();
  weir__page_slot *slots = (weir__page_slot *)(void *)(bytes + slots_at());
  assert_int_equal(parse(bytes, size), WEIR__PAGE_ALIVE);
  int64_t newer = seen.copy.unix_ns;
  int newest = atomic_load(&slots[1].sequence) > atomic_load(&slots[0].sequence);
  atomic_store(&slots[newest].sequence, 0); /* as at the beginning of writing */
  assert_int_equal(parse(bytes, size), WEIR__PAGE_ALIVE);
  assert_true(seen.copy.unix_ns <= newer);
  int64_t older = seen.copy.unix_ns;
  atomic_store(&slots[newest].sequence, 1000); /* or in its middle, seen out of order */
  assert_int_equal(parse(bytes, size), WEIR__PAGE_ALIVE);
  assert_int_equal(seen.copy.unix_ns, older);
  bytes[slots[!newest].at] ^= 1;
  assert_int_equal(parse(bytes, size), WEIR__PAGE_INVALID);
  unload_page();
}

TEST(page_that_is_cut_off) {
  load_page();
  for (size_t length = 0; length < size; length += length < 4200 ? 97 : 1009)
    assert_int_not_equal(parse(bytes, length), WEIR__PAGE_ALIVE);
  unload_page();
}

/* With checksums that fit, as a forger would write them. */
static void reseal(weir__page_slot *slot) {
  slot->checksum = weir__ring_file_checksum(atomic_load(&slot->sequence), slot->at, bytes + slot->at, slot->bytes);
}

TEST(page_that_is_forged) {
  load_page();
  weir__page_slot *slots = (weir__page_slot *)(void *)(bytes + slots_at()), *slot = &slots[1], good = slots[1];
  atomic_store(&slots[0].sequence, 0);
  weir__page_copy *copy = (weir__page_copy *)(void *)(bytes + slot->at), good_copy = *copy;
  weir__page_device *device = (weir__page_device *)(void *)(copy + 1);
  weir__page_row *row = (weir__page_row *)(void *)(device + copy->device_count);
  assert_int_equal(parse(bytes, size), WEIR__PAGE_ALIVE);
#define FORGED(...)                                                                                                    \
  do {                                                                                                                 \
    __VA_ARGS__;                                                                                                       \
    if (slot->at < size && slot->bytes <= size - slot->at)                                                             \
      reseal(slot);                                                                                                    \
    assert_int_equal(parse(bytes, size), WEIR__PAGE_INVALID);                                                          \
    memcpy(slot, &good, sizeof good);                                                                                  \
    *copy = good_copy;                                                                                                 \
  } while (0)
  FORGED(copy->device_count = 0);
  FORGED(copy->device_count = UINT32_MAX);
  FORGED(copy->row_count = UINT32_MAX);
  FORGED(copy->row_count++);
  FORGED(slot->at = size - 8);
  FORGED(slot->at = UINT64_MAX - 7);
  FORGED(slot->at += 4);
  FORGED(slot->bytes = UINT64_MAX - 7);
  FORGED(slot->bytes = 8);
  FORGED(row->device = 7);
  row->device = 0;
  FORGED(row->kind = 9);
  row->kind = 0;
  FORGED(device->sample_count = 1000);
  device->sample_count = 0;
  memset(device->name, 'x', sizeof device->name); /* texts end in any case */
  memset(row->tag, 'y', sizeof row->tag);
  row->known = 0;
  reseal(slot);
  assert_int_equal(parse(bytes, size), WEIR__PAGE_ALIVE);
  assert_int_equal(strlen(seen.devices[0].name), sizeof device->name - 1);
  assert_int_equal(strlen(seen.rows[0].tag), sizeof row->tag - 1);
  assert_int_equal(seen.rows[0].count[WEIR__PAGE_ALLOCATED], 0); /* not known */
  weir__ring_file_header *h = (weir__ring_file_header *)(void *)bytes;
  h->version++;
  assert_int_equal(parse(bytes, size), WEIR__PAGE_INVALID);
  assert_non_null(strstr(seen.fault, "version"));
  unload_page();
}

TEST(page_with_random_damage) {
  load_page();
  char *copy = malloc(size);
  uint64_t random = 5;
  for (int i = 0; i < 2000; i++) {
    memcpy(copy, bytes, size);
    for (uint64_t n = 1 + soft_random_r(&random, 6); n; n--)
      copy[soft_random_r(&random, soft_random_r(&random, 2) ? (unsigned)size : 5000)] ^=
          (char)(1 << soft_random_r(&random, 8));
    parse(copy, size); /* under the address sanitizer */
  }
  free(copy);
  unload_page();
}

static void write_file(const char *name, const void *data, size_t length, mode_t mode) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
  assert_true(descriptor >= 0);
  assert_int_equal(write(descriptor, data, length), length);
  close(descriptor);
}

/* A page says that it is of this process, which has another page and did not start then. */
TEST(page_of_an_id_that_is_used_again) {
  load_page();
  weir__ring_file_header *h = (weir__ring_file_header *)(void *)bytes;
  h->process_start++;
  write_file("old.page", bytes, size, 0600);
  assert_int_equal(life_of(path), WEIR__PAGE_ENDED);
  unload_page();
}

/* Only its lock says whether a process of another namespace is alive. */
TEST(page_of_a_container) {
  load_page();
  weir__ring_file_header *h = (weir__ring_file_header *)(void *)bytes;
  h->pid_namespace++;
  write_file("there.page", bytes, size, 0600);
  assert_int_equal(life_of(path), WEIR__PAGE_ENDED);
  assert_true(seen.is_elsewhere);
  int descriptor = open(path, O_RDWR);
  assert_true(weir__file_lock(descriptor));
  assert_int_equal(life_of(path), WEIR__PAGE_ALIVE);
  close(descriptor);
  unload_page();
}

TEST(files_that_are_no_pages) {
  load_page();
  write_file("a.page", "", 0, 0600);
  assert_int_equal(life_of(path), WEIR__PAGE_STARTING);
  write_file("b.page", "#!/bin/sh\n", 10, 0600);
  assert_int_equal(life_of(path), WEIR__PAGE_STARTING); /* shorter than a header */
  write_file("c.page", bytes, size, 0600);
  chmod(path, 0666);
  assert_int_equal(life_of(path), WEIR__PAGE_INVALID);
  snprintf(path, sizeof path, "%s/d.page", folder);
  assert_int_equal(symlink("/etc/passwd", path), 0);
  assert_int_equal(life_of(path), WEIR__PAGE_INVALID);
  snprintf(path, sizeof path, "%s/e.page", folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(life_of(path), WEIR__PAGE_INVALID); /* and does not wait */
  snprintf(path, sizeof path, "%s/f.page", folder);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_int_equal(life_of(path), WEIR__PAGE_INVALID);
  snprintf(path, sizeof path, "%s/none.page", folder);
  assert_int_equal(life_of(path), WEIR__PAGE_ENDED);
  memset(bytes, 'z', size);
  assert_int_equal(parse(bytes, size), WEIR__PAGE_INVALID);
  unload_page();
}

/* Those that have ended go with the next page, others stay. */
TEST(thousand_pages) {
  char name[32];
  load_page();
  weir__ring_file_header *h = (weir__ring_file_header *)(void *)bytes;
  h->process_start++;
  for (int i = 0; i < 1000; i++) {
    snprintf(name, sizeof name, "%d.page", i);
    write_file(name, bytes, size, 0600);
  }
  write_file("damaged.page", bytes, size - 9000, 0600);
  assert_int_equal(page_files(), 1002);
  unload_page();
  assert_int_equal(page_files(), 1001);
  alloc_open(NULL, 64 * MIB);
  put(get(1000, NULL));
  assert_int_equal(page_files(), 2);
  alloc_close();
}
