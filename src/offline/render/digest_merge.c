#include "offline/render/digest_merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"

weir_status weir__digest_union_add(weir__digest_union *all, const weir__digest *digest) {
  weir_status status = weir__digest_write(digest, &all->line);
  if (status)
    return status;
  char *copy = malloc(all->line.size + 1);
  if (!copy || !WEIR__RESERVE(all->items, all->room, all->count + 1)) {
    free(copy);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for %zu digests", all->count + 1);
  }
  memcpy(copy, all->line.text, all->line.size + 1);
  all->items[all->count++] = (weir__digest_document){digest->rank, digest->device, copy, all->line.size};
  return WEIR_OK;
}

static int by_rank(const void *a, const void *b) {
  const weir__digest_document *x = a, *y = b;
  if (x->rank != y->rank)
    return (x->rank > y->rank) - (x->rank < y->rank);
  if (x->device != y->device)
    return (x->device > y->device) - (x->device < y->device);
  return strcmp(x->text, y->text);
}

void weir__digest_union_finish(weir__digest_union *all) {
  size_t kept = 0;
  if (all->count)
    qsort(all->items, all->count, sizeof *all->items, by_rank);
  for (size_t i = 0; i < all->count; i++)
    if (kept && by_rank(&all->items[kept - 1], &all->items[i]) == 0)
      free(all->items[i].text);
    else
      all->items[kept++] = all->items[i];
  all->count = kept;
}

void weir__digest_union_clear(weir__digest_union *all) {
  for (size_t i = 0; i < all->count; i++)
    free(all->items[i].text);
  free(all->items);
  weir__digest_line_clear(&all->line);
  *all = (weir__digest_union){0};
}
