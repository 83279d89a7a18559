/*
 * qsort in place of wasi-libc's, which is slow (smoothsort) and not stable. This is a merge sort, as glibc's is: the
 * module and the program put equal items into the same order.
 */
#include <stdlib.h>
#include <string.h>

typedef int compare_function(const void *a, const void *b);

enum { RUN = 8 }; /* items that are sorted by insertion */

/* `size` is constant in every caller, so that copies are loads and stores. */
static inline __attribute__((always_inline)) void insertion_sort(char *items, size_t count, size_t size,
                                                                 compare_function *compare, char *spare) {
  for (size_t i = 1; i < count; i++) {
    size_t at = i;
    while (at && compare(items + (at - 1) * size, items + i * size) > 0)
      at--;
    if (at == i)
      continue;
    memcpy(spare, items + i * size, size);
    memmove(items + (at + 1) * size, items + at * size, (i - at) * size);
    memcpy(items + at * size, spare, size);
  }
}

/* Merges two sorted runs, the first `left` and the next `right` items of `from`, into `to`. */
static inline __attribute__((always_inline)) void merge(const char *from, size_t left, size_t right, size_t size,
                                                        char *to, compare_function *compare) {
  const char *a = from, *a_end = from + left * size, *b = a_end, *b_end = b + right * size;
  if (!right || compare(b - size, b) <= 0) { /* in order already */
    memcpy(to, from, (left + right) * size);
    return;
  }
  while (a < a_end && b < b_end) {
    const char **next = compare(a, b) <= 0 ? &a : &b;
    memcpy(to, *next, size);
    *next += size;
    to += size;
  }
  memcpy(to, a, (size_t)(a_end - a));
  memcpy(to + (a_end - a), b, (size_t)(b_end - b));
}

static inline __attribute__((always_inline)) void merge_sort(char *items, size_t count, size_t size,
                                                             compare_function *compare, char *other) {
  char *from = items, *to = other;
  for (size_t at = 0; at < count; at += RUN)
    insertion_sort(items + at * size, count - at < RUN ? count - at : RUN, size, compare, other);
  for (size_t run = RUN; run < count; run *= 2) {
    for (size_t at = 0; at < count; at += 2 * run) {
      size_t left = count - at < run ? count - at : run, rest = count - at - left;
      merge(from + at * size, left, rest < run ? rest : run, size, to + at * size, compare);
    }
    char *sorted = to;
    to = from;
    from = sorted;
  }
  if (from != items)
    memcpy(items, from, count * size);
}

void qsort(void *items, size_t count, size_t size, compare_function *compare) {
  char *other = count > 1 && size ? malloc(count * size) : NULL;
  if (!other) {
    if (count > 1 && size)
      abort(); /* out of memory, which the page reports */
    return;
  }
  switch (size) {
  case 4:
    merge_sort(items, count, 4, compare, other);
    break;
  case 8:
    merge_sort(items, count, 8, compare, other);
    break;
  case 16:
    merge_sort(items, count, 16, compare, other);
    break;
  default:
    merge_sort(items, count, size, compare, other);
  }
  free(other);
}
