#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "offline/render/view_parts.h"

#ifdef WEIR_HAVE_ZLIB
#include <zlib.h>
#endif

enum { ALIGN = 8 };

weir_status weir__view_no_memory(void) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a view");
}

void weir__view_step(const weir__view *view, size_t percent) {
  if (view->options->step)
    view->options->step(view->options->step_context, percent, 100);
}

#ifdef WEIR_HAVE_ZLIB
/* Level 6 takes five times as long as level 4 for the arrays of large recordings, and saves 3 %. */
enum { FAST_LEVEL = 4, SMALL_LEVEL = 6, SMALL = 1 << 16 };

/* The size of what was written; 0 if it would be no smaller. */
static size_t deflate_into(unsigned char *to, size_t room, const void *bytes, size_t size) {
  uLongf length = room;
  return compress2(to, &length, bytes, size, size < SMALL ? SMALL_LEVEL : FAST_LEVEL) == Z_OK && length < size ? length
                                                                                                               : 0;
}
#else
static size_t deflate_into(unsigned char *to, size_t room, const void *bytes, size_t size) {
  (void)to, (void)room, (void)bytes, (void)size;
  return 0;
}
#endif

weir_status weir__view_pack(weir__view_data *data, const char *name, bool is_raw, const void *bytes, size_t size) {
  size_t at = (data->chunk_bytes + ALIGN - 1) / ALIGN * ALIGN;
  if (!WEIR__RESERVE(data->chunks, data->chunk_room, at + size + ALIGN) ||
      !WEIR__RESERVE(data->table, data->room, data->count + 1))
    return weir__view_no_memory();
  memset(data->chunks + data->chunk_bytes, 0, at - data->chunk_bytes);
  size_t stored = is_raw || !size ? 0 : deflate_into(data->chunks + at, size, bytes, size);
  weir__view_chunk chunk = {.offset = at, .stored = stored ? stored : size, .bytes = size, .is_deflated = stored != 0};
  if (!stored && size)
    memcpy(data->chunks + at, bytes, size);
  snprintf(chunk.name, sizeof chunk.name, "%s", name);
  data->table[data->count++] = chunk;
  data->chunk_bytes = at + chunk.stored;
  return WEIR_OK;
}

weir_status weir__view_add_chunk(weir__view *view, const char *letter, size_t number, const void *bytes, size_t size) {
  char name[WEIR__VIEW_NAME];
  snprintf(name, sizeof name, "%d%s%zu", view->part, letter, number);
  WEIR__JSON(view->index, JSON_TEXT("chunk", name));
  return weir__view_pack(view->data, name, view->options->is_raw, bytes, size);
}
