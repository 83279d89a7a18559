#include "driver/model/handles.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

void weir__handles_init(weir__handles *table, unsigned kind, size_t object_size) {
  *table = (weir__handles){.tag = (uint64_t)kind << WEIR__HANDLE_KIND_SHIFT, .size = object_size};
}

static bool add_chunk(weir__handles *table) {
  uint32_t count = table->made / WEIR__HANDLES_CHUNK;
  if (!WEIR__RESERVE(table->chunks, table->room, (size_t)count + 1))
    return false;
  /* Zeroed, since a slot's count of uses starts at 0. */
  table->chunks[count] = calloc(WEIR__HANDLES_CHUNK, table->size);
  return table->chunks[count] != NULL;
}

void *weir__handles_make(weir__handles *table) {
  weir__handle *head;
  uint32_t index;
  if (table->spare != 0) {
    index = table->spare - 1;
    head = weir__handles_slot(table, index);
    table->spare = head->link;
    memset(head + 1, 0, table->size - sizeof *head);
  } else {
    if (table->made % WEIR__HANDLES_CHUNK == 0 &&
        (table->made >> (table->tag ? WEIR__HANDLE_SLOT_BITS : 31) || !add_chunk(table)))
      return NULL;
    index = table->made++;
    head = weir__handles_slot(table, index);
  }
  head->link = index;
  head->uses++;
  return head;
}

void weir__handles_drop(weir__handles *table, void *object) {
  weir__handle *head = object;
  uint32_t index = head->link;
  head->uses++;
  head->link = table->spare;
  table->spare = index + 1;
}

void weir__handles_clear(weir__handles *table) {
  for (uint32_t chunk = 0; chunk * WEIR__HANDLES_CHUNK < table->made; chunk++)
    free(table->chunks[chunk]);
  free(table->chunks);
  table->chunks = NULL;
  table->room = 0;
  table->made = table->spare = 0;
}

void *weir__handles_next(const weir__handles *table, uint32_t *index) {
  while (*index < table->made) {
    weir__handle *head = weir__handles_slot(table, (*index)++);
    if ((head->uses & 1) != 0)
      return head;
  }
  return NULL;
}

const char *weir__handles_fault(const weir__handles *table) {
  uint32_t dropped = 0, listed = 0;
  for (uint32_t index = 0; index < table->made; index++) {
    const weir__handle *head = weir__handles_slot(table, index);
    if (!(head->uses & 1))
      dropped++;
    else if (head->link != index)
      return "an object does not know its handle";
  }
  for (uint32_t at = table->spare; at;) {
    if (at > table->made || ++listed > dropped)
      return "the free list goes in a circle, or has a slot in use";
    at = ((const weir__handle *)weir__handles_slot(table, at - 1))->link;
  }
  return listed == dropped ? NULL : "free slots are missing from the free list";
}
