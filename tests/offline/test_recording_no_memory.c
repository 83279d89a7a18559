/*
 * Reading when the host has no memory: each allocation fails once. The call says so, and leaves nothing behind.
 *
 * The test stands in for malloc and its like, which the sanitizers do as well: there it is waived.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "offline/offline_data.h"
#include "offline/read/recording.h"
#include "support/no_memory.h"
#include "support/test.h"

#ifndef NO_MEMORY_WAIVED

void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  if (fails())
    return MAP_FAILED;
  long mapped = syscall(SYS_mmap, address, size, protection, flags, file, offset);
  live += mapped != -1;
  return (void *)mapped;
}

void *mremap(void *old, size_t old_size, size_t size, int flags, ...) {
  return fails() ? MAP_FAILED : (void *)syscall(SYS_mremap, old, old_size, size, flags);
}

int munmap(void *address, size_t size) {
  live--;
  return (int)syscall(SYS_munmap, address, size);
}

/* Fails each allocation in turn, until there are no more to fail. */
static void check_file(const char *name, unsigned long at_least, size_t events) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", WEIR_TEST_DATA, name);
  for (fail_at = 1;; fail_at++) {
    weir__recording *s = NULL;
    long before = live;
    made = 0;
    did_fail = false;
    counting = true;
    weir_status status = weir__recording_load(path, NULL, &s);
    counting = false;
    if (!did_fail) {
      assert_int_equal(status, WEIR_OK);
      assert_int_equal(s->event_count, events);
      weir__recording_free(s);
      assert_int_equal(live, before);
      break;
    }
    assert_int_equal(status, WEIR_ERROR_HOST_OUT_OF_MEMORY);
    assert_null(s);
    assert_int_equal(live, before);
  }
  assert_true(fail_at > at_least);
}

FIXTURE(.begin = make_room_for_errors)

TEST(plain) { check_file("small_snapshot.pickle", 40, 40); }

#ifdef WEIR_HAVE_ZSTD
TEST(compressed) { check_file("traces/llama_oom.pickle.zst", 60, 14531); }
#endif

#endif
