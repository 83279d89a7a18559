#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 4 };

bool weir__array_grow(void *items, size_t *room, size_t needed, size_t item_size) {
  size_t more = *room > SIZE_MAX / 2 ? needed : *room ? 2 * *room : FIRST_ROOM;
  if (more < needed)
    more = needed;
  void *old;
  memcpy(&old, items, sizeof old); /* a pointer of any type */
  void *grown = more > SIZE_MAX / item_size ? NULL : realloc(old, more * item_size);
  if (!grown)
    return false;
  memcpy(items, &grown, sizeof grown);
  *room = more;
  return true;
}
