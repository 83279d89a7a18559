/*
 * Addresses. The model's own space has a region for each size of slots, powers of two. A range that the model places
 * takes a slot of the next size up, or a larger one where those are all taken. An address therefore says by itself
 * which slot it lies in, the same calls always get the same addresses, and a slot that was freed is used again first.
 * Unused parts of a slot cost nothing.
 *
 * Ranges whose address is given (all ranges of the software device; on the ledger options.place, a wish, and registered
 * memory) are in an ordered map. They may lie anywhere, the model's own space included, where they block the slots that
 * they touch.
 */
#include "driver/model/model.h"

#include <string.h>

static uint64_t slot_size(int order) { return (uint64_t)MODEL_GRANULARITY << order; }
static uint64_t region_of(int order) { return MODEL_SPACE_BEGIN + (uint64_t)order * MODEL_REGION; }

/* The order of the smallest slot that holds `bytes`. */
static int order_for(uint64_t bytes) {
  uint64_t units = (bytes - 1) / MODEL_GRANULARITY;
  return units == 0 ? 0 : 64 - __builtin_clzll(units);
}

/* The range in a slot, or NULL when the slot is not used or blocked. */
static model_range *slot(const model *m, int order, uint64_t index) {
  model_range *range = weir__handles_live(&m->slots[order], (uint32_t)index);
  return range && range->kind != MODEL_RANGE_BLOCKED ? range : NULL;
}

/* ---- Finding ---- */

static model_range *find_in_slots(const model *m, uint64_t address) {
  uint64_t offset = address - MODEL_SPACE_BEGIN;
  if (offset >= MODEL_SPACE_END - MODEL_SPACE_BEGIN)
    return NULL;
  int order = (int)(offset / MODEL_REGION);
  model_range *range = slot(m, order, offset % MODEL_REGION / slot_size(order));
  return range && address - range->base < range->bytes ? range : NULL;
}

model_range *weir__model_find_range(const model *m, uint64_t address) {
  model_range *range = find_in_slots(m, address);
  if (range)
    return range;
  range = weir__rangemap_find(&m->placed, address, NULL, NULL);
  return range && address - range->base < range->bytes ? range : NULL; /* what is behind `bytes` is room only */
}

/* A range in a slot of one size that has an address in common with [first, last], or NULL. */
static model_range *overlap_in_region(const model *m, int order, uint64_t first, uint64_t last) {
  uint64_t begin = region_of(order), end = begin + (MODEL_REGION - 1);
  if (last < begin || first > end)
    return NULL;
  uint64_t from = first > begin ? (first - begin) / slot_size(order) : 0;
  uint64_t to = ((last < end ? last : end) - begin) / slot_size(order);
  for (uint64_t index = from; index <= to && index < m->slots[order].made; index++) {
    model_range *range = slot(m, order, index);
    if (range && range->base <= last && range->base + (range->bytes - 1) >= first)
      return range;
  }
  return NULL;
}

model_range *weir__model_overlap(const model *m, uint64_t address, uint64_t bytes) {
  uint64_t last = bytes - 1 > UINT64_MAX - address ? UINT64_MAX : address + (bytes - 1);
  model_range *range = weir__rangemap_overlap(&m->placed, address, bytes, NULL, NULL);
  if (last < MODEL_SPACE_BEGIN || address >= MODEL_SPACE_END)
    return range;
  for (int order = 0; !range && order < MODEL_ORDERS; order++)
    range = overlap_in_region(m, order, address, last);
  return range;
}

/* ---- Adding and dropping ---- */

/* A slot that holds `bytes`, aligned as asked; NULL when there is no address or the host has no memory. */
static model_range *choose(model *m, uint64_t bytes, uint64_t alignment) {
  int order = order_for(bytes > alignment ? bytes : alignment);
  while (order < MODEL_ORDERS) {
    model_range *range = weir__handles_make(&m->slots[order]);
    if (!range)
      return NULL;
    uint64_t offset = range->head.link * slot_size(order);
    if (offset >= MODEL_REGION) {
      weir__handles_drop(&m->slots[order], range);
      order++;
      continue;
    }
    range->base = region_of(order) + offset;
    range->order = order;
    if (!weir__rangemap_overlap(&m->placed, range->base, bytes, NULL, NULL))
      return range;
    range->kind = MODEL_RANGE_BLOCKED;
  }
  return NULL;
}

static weir_cu_result place(model *m, uint64_t address, uint64_t room, model_range **range) {
  bool wraps = room - 1 > UINT64_MAX - address;
  if (wraps || weir__model_overlap(m, address, room))
    return WEIR_CU_INVALID_VALUE;
  model_range *r = weir__slab_alloc(&m->placed_slab, m->hooks->range_size);
  if (!r)
    return WEIR_CU_OUT_OF_MEMORY;
  if (!weir__rangemap_insert(&m->placed, address, room, r)) {
    weir__slab_free(&m->placed_slab, r, m->hooks->range_size);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  memset(r, 0, m->hooks->range_size);
  r->base = address;
  r->order = -1;
  *range = r;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_add_range(model *m, const model_request *request, uint64_t address, uint64_t room,
                                     model_range **range) {
  model_range *r;
  if (!address) {
    r = choose(m, request->bytes, request->alignment);
    if (!r)
      return WEIR_CU_OUT_OF_MEMORY;
  } else {
    weir_cu_result result = place(m, address, room, &r);
    if (result)
      return result;
  }
  r->bytes = request->bytes;
  r->room = room;
  r->kind = request->kind;
  r->device = request->device;
  r->id = ++m->last_id;
  *range = r;
  return WEIR_CU_SUCCESS;
}

void weir__model_free_range(model *m, model_range *range) {
  if (range->kind == MODEL_RANGE_RESERVATION)
    weir__model_end_reservation(m, range);
  m->hooks->end_range(m, range);
  if (range->order >= 0) {
    weir__handles_drop(&m->slots[range->order], range);
    return;
  }
  weir__rangemap_remove(&m->placed, range->base);
  weir__slab_free(&m->placed_slab, range, m->hooks->range_size);
}

void weir__model_each_range(model *m, void (*visit)(model *m, model_range *range, void *data), void *data) {
  for (int order = 0; order < MODEL_ORDERS; order++) {
    for (uint32_t index = 0; index < m->slots[order].made; index++) {
      model_range *range = slot(m, order, index);
      if (range)
        visit(m, range, data);
    }
  }
  uint64_t base = 0, bytes = 0;
  do {
    model_range *range = weir__rangemap_at_or_after(&m->placed, base + bytes, &base, &bytes);
    if (!range)
      return;
    visit(m, range, data);
  } while (base + bytes != 0);
}
