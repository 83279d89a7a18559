/*
 * Threads that allocate and free, within the tag and outside, while it sleeps and wakes.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "support/alloc.h"
#include "support/length.h"
#include "weir/tag.h"

enum { THREADS = 4, BLOCKS = 24 };
static weir_tag *tags[2];
static atomic_bool is_over;
static atomic_ulong served, refused;

typedef struct user {
  pthread_t thread;
  unsigned seed;
  weir_tag *tag; /* NULL for one that stays outside */
  weir_cu_stream stream;
  void *blocks[BLOCKS];
} user;

static unsigned next_of(user *u) { return (u->seed = u->seed * 1664525u + 1013904223u) >> 8; }

/* A thread cannot write to a block whose tag may sleep, so only those outside have contents. */
static void *use(void *argument) {
  user *u = argument;
  if (u->tag)
    assert_ok(weir_tag_begin(u->tag));
  while (!atomic_load(&is_over)) {
    void **slot = &u->blocks[next_of(u) % BLOCKS];
    size_t bytes = next_of(u) % 3 ? 512 + next_of(u) % 100000 : next_of(u) % (4 * MIB) + 1;
    if (*slot) {
      assert_int_equal(weir_allocator_free(allocator, *slot), WEIR_OK);
      *slot = NULL;
      continue;
    }
    weir_status status = weir_allocator_alloc(allocator, 0, bytes, u->stream, slot);
    if (status)
      *slot = NULL;
    assert_true(!status || (u->tag && status == WEIR_ERROR_BAD_STATE));
    atomic_fetch_add(status ? &refused : &served, 1);
    if (!u->tag && *slot)
      memset(*slot, 1, bytes);
  }
  if (u->tag)
    assert_ok(weir_tag_end(u->tag));
  return NULL;
}

static void *sleep_and_wake(void *tag) {
  int rounds = usual_or_long(16, 500);
  for (int i = 0; i < rounds; i++) {
    assert_int_equal(weir_tag_sleep(tag, i % 4 ? WEIR_TAG_KEEP : WEIR_TAG_DISCARD, NULL), WEIR_OK);
    weir_tag_info info;
    weir_tag_info_init(&info);
    assert_int_equal(weir_tag_get_info(tag, &info), WEIR_OK);
    assert_int_equal(weir_tag_wake(tag, NULL), WEIR_OK);
    if (i % 8 == 0)
      assert_int_equal(weir_allocator_empty_cache(allocator), WEIR_OK);
  }
  return NULL;
}

FIXTURE(.teardown = alloc_teardown)

TEST(tags_sleep_while_others_allocate) {
  static user users[THREADS];
  pthread_t sleepers[2];
  alloc_open_on(WEIR_SOFT_THREADS, 1, 2 * GIB, NULL);
  for (int i = 0; i < 2; i++)
    assert_ok(weir_tag_open(allocator, 0, i ? "cache" : "weights", &tags[i]));
  assert_ok(weir_tag_begin(tags[0]));
  unsigned char *kept = get(5 * MIB, NULL);
  assert_ok(weir_tag_end(tags[0]));
  for (int i = 0; i < THREADS; i++) {
    users[i] = (user){.seed = (unsigned)i, .tag = i < 3 ? tags[i % 2] : NULL, .stream = work_stream()};
    assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
  }
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&sleepers[i], NULL, sleep_and_wake, tags[i]), 0);
  for (int i = 0; i < 2; i++)
    pthread_join(sleepers[i], NULL);
  memset(kept, 3, 5 * MIB);
  assert_ok(weir_tag_sleep(tags[0], WEIR_TAG_KEEP, NULL));
  assert_ok(weir_tag_wake(tags[0], NULL));
  assert_int_equal(kept[5 * MIB - 1], 3);
  atomic_store(&is_over, true);
  for (int i = 0; i < THREADS; i++)
    pthread_join(users[i].thread, NULL);
  assert_valid();
  assert_true(served > 0 && refused > 0);
  for (int i = 0; i < THREADS; i++)
    for (int k = 0; k < BLOCKS; k++)
      if (users[i].blocks[k])
        put(users[i].blocks[k]);
  put(kept);
  alloc_close();
}
