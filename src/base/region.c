#include "base/region.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pieces are multiples of this, so that their asides are whole pages. */
enum { STEP = 8 << 10, SIZES = WEIR__REGION_PIECE / STEP };

static const size_t most_bytes = (size_t)1 << 32;
static const size_t least_bytes = (size_t)64 << 20;
static const size_t ready_step = (size_t)1 << 20; /* for so much the kernel is asked at once */

char *weir__region_base, *weir__region_asides;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *begin, *asides;          /* guarded by the lock, as all below */
static size_t page;                   /* of the system; set with these */
static size_t reserved, ready, taken; /* bytes from the beginning */
static void *pieces[SIZES];           /* that came back, by their size, linked through their first word */

/* A leak checker, if there is one in the process: it does not look into mapped memory unless it is told to, and the index has
 * pointers to allocated memory there. */
extern void __lsan_register_root_region(const void *memory, size_t bytes) __attribute__((weak));

/* A child finds the region as it was between two calls. */
static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }

/* Address space costs nothing, but there may be a limit to it: then it is far less, as others need some too. What begins at a
 * multiple of its size, a power of two, does not go over a multiple of 4 GiB, wherever the kernel puts it. */
static bool reserve(void) {
  for (size_t bytes = most_bytes; bytes >= least_bytes; bytes /= 8) {
    size_t all = bytes + bytes + bytes / 2;
    char *space = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
      continue;
    size_t before = -(uintptr_t)space & (bytes - 1), behind = bytes - before;
    if (before)
      munmap(space, before);
    munmap(space + all - behind, behind);
    begin = space + before;
    asides = begin + bytes;
    reserved = bytes;
    taken = STEP; /* the first place is nobody's */
    size_t offset = (uintptr_t)begin & (most_bytes - 1);
    weir__region_base = begin - offset;
    weir__region_asides = asides - offset / 2;
    page = (size_t)sysconf(_SC_PAGESIZE);
    if (__lsan_register_root_region)
      __lsan_register_root_region(begin, reserved);
    pthread_atfork(hold, let_go, let_go);
    return true;
  }
  return false;
}

static bool make_ready(size_t until) {
  if (until <= ready)
    return true;
  size_t end = (until + ready_step - 1) / ready_step * ready_step;
  if (end > reserved || mprotect(begin + ready, end - ready, PROT_READ | PROT_WRITE) ||
      mprotect(asides + ready / 2, (end - ready) / 2, PROT_READ | PROT_WRITE))
    return false;
  ready = end;
  return true;
}

void *weir__region_take(size_t bytes) {
  size_t steps = (bytes + STEP - 1) / STEP;
  void *piece = NULL;
  if (!steps || steps > SIZES)
    return NULL;
  pthread_mutex_lock(&lock);
  if (pieces[steps - 1]) {
    piece = pieces[steps - 1];
    pieces[steps - 1] = *(void **)piece;
    *(void **)piece = NULL;
  } else if ((reserved || reserve()) && make_ready(taken + steps * STEP)) {
    piece = begin + taken;
    taken += steps * STEP;
  }
  pthread_mutex_unlock(&lock);
  return piece;
}

/* The kernel takes the memory back, and has zeros there the next time; but not when the program has locked all of its own, and
 * only whole pages of its own, which may be larger than a piece: it would take the rest of the page as well. */
static void wipe(void *memory, size_t bytes) {
  if (((uintptr_t)memory | bytes) % page || madvise(memory, bytes, MADV_DONTNEED))
    memset(memory, 0, bytes);
}

void weir__region_give(void *piece, size_t bytes) {
  size_t steps = (bytes + STEP - 1) / STEP;
  wipe(piece, steps * STEP);
  wipe(weir__aside_of(piece), steps * STEP / 2);
  pthread_mutex_lock(&lock);
  *(void **)piece = pieces[steps - 1];
  pieces[steps - 1] = piece;
  pthread_mutex_unlock(&lock);
}
