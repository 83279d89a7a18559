/*
 * Memory of expandable segments that is shared with other processes: many pages, pages of different sizes, and pages
 * that stay in place only as long as they are shared.
 */
#include <sys/resource.h>

#include "alloc/ipc_fixture.h"
#include "alloc/moving_fixture.h"

#define PAGE (20 * MIB)

static struct rlimit files_before;

static void limit_files(rlim_t most) {
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &files_before), 0);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, files_before.rlim_max}), 0);
}

static int teardown(void **state) {
  struct rlimit now;
  if (!getrlimit(RLIMIT_NOFILE, &now) && files_before.rlim_cur)
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){files_before.rlim_cur, now.rlim_max});
  return ipc_teardown(state);
}

/* ---- There ---- */

/* Compares the first byte of every page. */
static void child_reads(void) {
  uint64_t pages = hear_any(), size = 0;
  const weir_ipc_handle *handle = hear_handle();
  void *a = NULL;
  assert_ok(weir_ipc_receive(allocator, 0, handle->bytes, handle->length, NULL, &a, &size));
  say(size);
  for (uint64_t i = 0; i < pages; i++)
    assert_int_equal(((unsigned char *)a)[i * (size / pages)], i % 251);
  assert_ok(weir_ipc_release(allocator, a, NULL));
  say('d');
}

/* The word that a block with this seed has at an offset. */
static uint64_t word_at(uint64_t seed, uint64_t offset) { return (seed << 40 | offset) * 0x9e3779b97f4a7c15u; }

static void write_words(char *block, uint64_t bytes, uint64_t seed) {
  for (uint64_t at = 0; at < bytes; at += 32 * KIB)
    *(uint64_t *)(block + at) = word_at(seed, at);
}

static void compare_words(const char *block, uint64_t bytes, uint64_t seed) {
  for (uint64_t at = 0; at < bytes; at += 32 * KIB)
    assert_int_equal(*(const uint64_t *)(block + at), word_at(seed, at));
}

enum { SLOTS = 8 }; /* for what the other process holds */

typedef struct message {
  uint64_t slot, bytes, seed, offset;
  enum { end, release_slot, receive_in_slot, open_and_close } act;
} message;

typedef struct held {
  char *at;
  uint64_t bytes, seed;
} held;

static void release_held(held *h) {
  if (h->at)
    release(h->at);
  h->at = NULL;
}

/* Compares what it is sent, and again before each answer all that it holds. */
static void child_compares(void) {
  held slots[SLOTS] = {{0}};
  for (message m = {.act = release_slot}; m.act;) {
    hear_bytes(&m, sizeof m);
    held *h = &slots[m.slot];
    if (m.act == receive_in_slot) {
      uint64_t size = 0;
      void *a = NULL;
      const weir_ipc_handle *handle = hear_handle();
      release_held(h);
      assert_ok(weir_ipc_receive(allocator, 0, handle->bytes, handle->length, NULL, &a, &size));
      assert_true(size >= m.bytes);
      *h = (held){a, m.bytes, m.seed};
    } else if (m.act == open_and_close) {
      void *base = NULL;
      const weir_ipc_handle *handle = hear_handle();
      assert_ok(weir_ipc_open(allocator, 0, handle->bytes, handle->length, &base));
      compare_words((char *)base + m.offset, m.bytes, m.seed);
      assert_ok(weir_ipc_close(allocator, base));
    } else
      release_held(h);
    for (int i = 0; i < SLOTS; i++)
      if (slots[i].at)
        compare_words(slots[i].at, slots[i].bytes, slots[i].seed);
    say('d');
  }
  for (int i = 0; i < SLOTS; i++)
    release_held(&slots[i]);
}

/* ---- Here ---- */

static void send_pages(char *a, uint64_t bytes, uint64_t pages) {
  for (uint64_t i = 0; i < pages; i++)
    a[i * (bytes / pages)] = (char)(i % 251);
  say(pages);
  say_handle(send_memory(a));
  assert_int_equal(hear_any(), bytes);
  hear('d');
  peer_end();
}

/* 50 GB within a limit of 1024 files, which both processes raise. */
TEST(2500_pages) {
  enum { PAGES = 2500 };
  struct rlimit now;
  limit_files(1024);
  if (files_before.rlim_max < 3 * PAGES)
    WAIVE_TEST("the hard limit of open files is %llu", (unsigned long long)files_before.rlim_max);
  alloc_open_on(WEIR_SOFT_THREADS, 1, 64 * GIB, "expandable_segments:True");
  peer_start(SOCK_STREAM, "reads", "expandable_segments:True");
  char *a = get(PAGES * PAGE, NULL);
  send_pages(a, PAGES * PAGE, PAGES);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
  assert_true(now.rlim_cur > 1024 && now.rlim_cur <= files_before.rlim_max);
  assert_true(open_files() > 2 * PAGES);
  put(a);
  assert_true(open_files() < PAGES + 100); /* exported pages have a descriptor only while they are sent */
  empty_cache();
  alloc_close();
}

/* In a process of its own, because a hard limit cannot be raised again. */
static void child_has_few_files(void) {
  static weir_ipc_handle handle;
  char *a = get(60 * PAGE, NULL);
  handle.size = sizeof handle;
  int before = open_files();
  rlim_t limit = (rlim_t)before + 30;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit}), 0);
  assert_error_says(SYSTEM, "a file descriptor is needed for each of 60 pages",
                    weir_ipc_send(allocator, a, NULL, NULL, &handle));
  assert_int_equal(open_files(), before + 1); /* that of the references */
  assert_int_equal(stats_of(0).ipc_references, 0);
  assert_error_says(SYSTEM, "ulimit -Hn", weir_ipc_share(allocator, a, &handle));
  put(a);
  empty_cache();
  say('d');
}

TEST(few_files) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, "");
  peer_start(SOCK_STREAM, "few", "expandable_segments:True");
  hear('d');
  peer_end();
  alloc_close();
}

/* A release needs no descriptor. */
TEST(release_without_files) {
  alloc_open("", GIB);
  void *a = get(1000, NULL), *b = receive(send_memory(a)), *c = receive(send_memory(a));
  put(a);
  limit_files(0);
  release(b);
  release(c);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &files_before), 0);
  assert_int_equal(collect(), 1);
  empty_cache();
  alloc_close();
}

/* A handle says which size it needs, and a smaller struct is enough for most. */
TEST(sizes_of_handles) {
  alloc_open("expandable_segments:True", 64 * GIB);
  static struct {
    weir_ipc_handle handle;
    unsigned char more[100000];
  } large;
  char *a = get(100 * PAGE, NULL), *b = get(100, NULL);
  large.handle.size = offsetof(weir_ipc_handle, bytes) + 300;
  assert_error_says(NOT_SUPPORTED, "takes 426 bytes, and there is room for 300",
                    weir_ipc_share(allocator, a, &large.handle));
  assert_error_says(NOT_SUPPORTED, "takes 562 bytes", weir_ipc_send(allocator, a, NULL, NULL, &large.handle));
  assert_int_equal(stats_of(0).ipc_references, 0);
  assert_ok(weir_ipc_share(allocator, b, &large.handle));
  large.handle.size = sizeof large;
  assert_ok(weir_ipc_share(allocator, a, &large.handle));
  put(a);
  put(b);
  alloc_close();
}

static bool has_varied_pages(const char *a, uint64_t bytes) {
  const weir__segment *segment = segment_at(a);
  uint64_t first = weir__mapping_at(&segment->memory, (uint64_t)a)->page->bytes;
  for (uint64_t at = 0; at < bytes; at += segment->memory.slot)
    if (weir__mapping_at(&segment->memory, (uint64_t)a + at)->page->bytes != first)
      return true;
  return false;
}

/* Pages that differ in size, which moving pages do. */
TEST(varied_pages) {
  const char *conf = "moving_pages:True";
  alloc_open_on(WEIR_SOFT_THREADS, 1, 4 * GIB, conf);
  uint64_t bytes = 22 * MIB;
  char *a = NULL;
  while (bytes < 200 * MIB && !has_varied_pages(a = get(bytes, NULL), bytes)) {
    put(a);
    bytes += 2 * MIB;
  }
  assert_true(bytes < 200 * MIB);
  peer_start(SOCK_STREAM, "reads", conf);
  send_pages(a, bytes, bytes / (2 * MIB));
  assert_int_equal(collect(), 0);
  put(a);
  empty_cache();
  alloc_close();
}

typedef enum shape { one_page, equal_pages, first_smallest, first_larger, shapes } shape;

static shape shape_of(const char *a, uint64_t bytes) {
  const weir__segment *segment = segment_at(a);
  const weir__mapping *first = weir__mapping_at(&segment->memory, (uint64_t)a);
  if (first->address + first->page->bytes >= (uint64_t)a + bytes)
    return one_page;
  if (!has_varied_pages(a, bytes))
    return equal_pages;
  return first->page->bytes == segment->memory.slot ? first_smallest : first_larger;
}

static weir_ipc_handle *share_memory(void *pointer) {
  static weir_ipc_handle handle;
  handle.size = sizeof handle;
  assert_ok(weir_ipc_share(allocator, pointer, &handle));
  return &handle;
}

/* Sends random blocks, each with contents of its own, which the other process holds while they are freed and their
 * pages would move. Whatever the sizes and the order of the pages and wherever a block begins in the first one, the
 * other process finds the same bytes until it releases them. */
static void send_all_shapes(const char *conf, int version, int seen[shapes]) {
  enum { BLOCKS = 12, STEPS = 300, SHARES = 20 };
  held blocks[BLOCKS] = {{0}};
  alloc_open_devices(WEIR_SOFT_THREADS, 1, 4 * GIB);
  assert_ok(weir_allocator_create(
      d, &(weir_allocator_options){.size = sizeof(weir_allocator_options), .conf = conf, .ipc_version = version},
      &allocator));
  peer_start(SOCK_STREAM, "compares", conf);
  weir_cu_stream streams[] = {NULL, work_stream(), work_stream()};
  for (uint64_t step = 1; step <= STEPS; step++) {
    held *b = &blocks[soft_random(BLOCKS)];
    message m = {.slot = soft_random(SLOTS), .seed = step};
    if (b->at)
      put(b->at);
    b->bytes = 1 + (soft_random(4) ? soft_random(soft_random(2) ? 60 * MIB : 6 * MIB) : soft_random(MIB));
    b->at = get(b->bytes, streams[soft_random(WEIR_COUNT_OF(streams))]);
    b->seed = step;
    m.bytes = b->bytes - b->bytes % sizeof(uint64_t);
    m.act = !soft_random(5) ? release_slot : soft_random(SHARES) ? receive_in_slot : open_and_close;
    write_words(b->at, m.bytes, step);
    const weir_ipc_handle *handle = m.act == release_slot      ? NULL
                                    : m.act == receive_in_slot ? send_memory(b->at)
                                                               : share_memory(b->at);
    seen[shape_of(b->at, b->bytes)]++;
    m.offset = handle ? handle->offset : 0;
    say_bytes(&m, sizeof m);
    if (handle)
      say_handle(handle);
    hear('d');
    for (int i = 0; i < BLOCKS; i++)
      if (blocks[i].at)
        compare_words(blocks[i].at, blocks[i].bytes - blocks[i].bytes % sizeof(uint64_t), blocks[i].seed);
    if (soft_random(2))
      collect(); /* so that pages may move again */
  }
  say_bytes(&(message){.act = end}, sizeof(message));
  hear('d');
  peer_end();
  for (int i = 0; i < BLOCKS; i++)
    if (blocks[i].at)
      put(blocks[i].at);
  collect();
  close_all();
}

TEST(all_shapes) {
  static const char *const confs[] = {"moving_pages:True", "moving_pages:True,moving_pages_across_streams:True",
                                      "expandable_segments:True", "moving_pages:True,large_segment_size_mb:12"};
  soft_seed(44);
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    int seen[shapes] = {0}, version = 2 + (int)(i % 2);
    send_all_shapes(confs[i], version, seen);
    for (int shape = 0; shape < shapes; shape++)
      if (shape <= equal_pages || strstr(confs[i], "moving"))
        assert_true(seen[shape] > 5);
  }
}

static bool is_exported(const void *address) {
  const weir__segment *s = weir__segment_at(&allocator->heaps[0], (uint64_t)address);
  return weir__mapping_at(&s->memory, (uint64_t)address)->page->file != 0;
}

/* Pages that were sent stay where they are until the last reference has ended, and move again afterwards. */
TEST(pages_that_stay) {
  for (int sent = 0; sent < 2; sent++) {
    alloc_open("moving_pages:True", 4 * GIB);
    holes h;
    h.first = get(40 * MIB, NULL);
    h.kept[0] = get(2 * MIB, NULL);
    h.second = get(40 * MIB, NULL);
    h.kept[1] = get(2 * MIB, NULL);
    void *received[2] = {NULL, NULL};
    if (sent) {
      received[0] = receive(send_memory(h.first));
      received[1] = receive(send_memory(h.second));
      assert_true(is_exported(h.first));
    }
    put(h.first);
    put(h.second);
    void *a = get(60 * MIB, NULL);
    assert_int_equal(stats_of(0).moving_pages_moved > 0, !sent);
    if (sent) {
      release(received[0]);
      release(received[1]);
      assert_int_equal(collect(), 2);
      assert_false(is_exported(h.first));
      void *b = get(70 * MIB, NULL);
      assert_true(stats_of(0).moving_pages_moved > 0);
      put(b);
    }
    put(a);
    end_holes(&h);
    alloc_close();
  }
}

static int run_child(const char *role, const char *conf) {
  bool has_few_files = !strcmp(role, "few");
  alloc_open_on(WEIR_SOFT_THREADS, 1, has_few_files ? 4 * GIB : GIB, conf);
  if (has_few_files)
    child_has_few_files();
  else if (!strcmp(role, "reads"))
    child_reads();
  else
    child_compares();
  weir_allocator_destroy(allocator);
  allocator = NULL;
  alloc_close();
  return 0;
}

static int role(int argc, char **argv) {
  if (peer_is_child(argc, argv))
    return run_child(argv[2], argv[3]);
  return RUN_TESTS;
}

FIXTURE(.role = role, .teardown = teardown)
