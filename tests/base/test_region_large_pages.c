/*
 * The region on a kernel whose pages are larger than a piece, as on some machines. The linker redirects these two
 * functions.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/region.h"
#include "support/check.h"

enum { PAGE = 64 << 10, PIECE = 8 << 10, COUNT = 32 };

long __wrap_sysconf(int name);
long __real_sysconf(int name);
int __wrap_madvise(void *memory, size_t bytes, int advice);
int __real_madvise(void *memory, size_t bytes, int advice);

long __wrap_sysconf(int name) { return name == _SC_PAGESIZE ? PAGE : __real_sysconf(name); }

/* Sizes are rounded up to whole pages. */
int __wrap_madvise(void *memory, size_t bytes, int advice) {
  if ((uintptr_t)memory % PAGE) {
    errno = EINVAL;
    return -1;
  }
  return __real_madvise(memory, (bytes + PAGE - 1) / PAGE * PAGE, advice);
}

TEST(neighbours_are_untouched) {
  unsigned char *pieces[COUNT];
  for (int i = 0; i < COUNT; i++) {
    pieces[i] = weir__region_alloc(PIECE);
    assert_non_null(pieces[i]);
    memset(pieces[i], i + 1, PIECE);
    memset(weir__cold_of(pieces[i]), i + 1, PIECE / 2);
  }
  bool is_kept[COUNT] = {false};
  for (int i = 0; i < COUNT; i++) {
    is_kept[i] = (uintptr_t)pieces[i] % PAGE && (uintptr_t)weir__cold_of(pieces[i]) % PAGE;
    if (!is_kept[i])
      weir__region_free(pieces[i], PIECE);
  }
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(pieces[i][PIECE - 1], is_kept[i] ? i + 1 : 0);
    assert_int_equal(*(unsigned char *)weir__cold_of(pieces[i]), is_kept[i] ? i + 1 : 0);
  }
  unsigned char *again = weir__region_alloc(PIECE);
  for (int i = 0; i < PIECE; i++)
    assert_int_equal(again[i], 0);
}
