/*
 * Addresses. The ledger's own space has a region for each size of slots, powers of two, and a range that the ledger
 * places takes a slot of the next size up, or of a larger one where those are all taken. So an address says by itself which slot it lies in, the same calls always
 * get the same addresses, and a slot that was left is used again first. Addresses cost nothing: what of a slot is not
 * used is no loss.
 *
 * Ranges that somebody else placed (options.place, a wish, registered host memory) are in an ordered map. They may lie
 * anywhere, the ledger's own space included, where they block the slots that they touch.
 */
#include "driver/ledger/ledger.h"

static uint64_t slot_size(int order) { return (uint64_t)LEDGER_GRANULARITY << order; }
static uint64_t region_of(int order) { return LEDGER_SPACE_BEGIN + (uint64_t)order * LEDGER_REGION; }

/* The order of the smallest slot that holds `bytes`. */
static int order_for(uint64_t bytes) {
  uint64_t units = (bytes - 1) / LEDGER_GRANULARITY;
  return units == 0 ? 0 : 64 - __builtin_clzll(units);
}

/* The range in a slot, or NULL when the slot is not used or blocked. */
static ledger_range *slot(const ledger *l, int order, uint64_t index) {
  ledger_range *range = weir__handles_live(&l->slots[order], (uint32_t)index);
  return range != NULL && range->kind != LEDGER_RANGE_BLOCKED ? range : NULL;
}

/* ---- Finding ---- */

static ledger_range *find_in_slots(const ledger *l, uint64_t address) {
  uint64_t offset = address - LEDGER_SPACE_BEGIN;
  if (offset >= LEDGER_SPACE_END - LEDGER_SPACE_BEGIN)
    return NULL;
  int order = (int)(offset / LEDGER_REGION);
  ledger_range *range = slot(l, order, offset % LEDGER_REGION / slot_size(order));
  return range != NULL && address - range->base < range->bytes ? range : NULL;
}

ledger_range *weir__ledger_find_range(const ledger *l, uint64_t address) {
  ledger_range *range = find_in_slots(l, address);
  return range != NULL ? range : weir__rangemap_find(&l->placed, address, NULL, NULL);
}

/* A range in a slot of one size that has an address in common with [first, last], or NULL. */
static ledger_range *overlap_in_region(const ledger *l, int order, uint64_t first, uint64_t last) {
  uint64_t begin = region_of(order), end = begin + (LEDGER_REGION - 1);
  if (last < begin || first > end)
    return NULL;
  uint64_t from = first > begin ? (first - begin) / slot_size(order) : 0;
  uint64_t to = ((last < end ? last : end) - begin) / slot_size(order);
  for (uint64_t index = from; index <= to && index < l->slots[order].made; index++) {
    ledger_range *range = slot(l, order, index);
    if (range != NULL && range->base <= last && range->base + (range->bytes - 1) >= first)
      return range;
  }
  return NULL;
}

ledger_range *weir__ledger_overlap(const ledger *l, uint64_t address, uint64_t bytes) {
  uint64_t last = bytes - 1 > UINT64_MAX - address ? UINT64_MAX : address + (bytes - 1);
  ledger_range *range = weir__rangemap_overlap(&l->placed, address, bytes, NULL, NULL);
  if (last < LEDGER_SPACE_BEGIN || address >= LEDGER_SPACE_END)
    return range;
  for (int order = 0; range == NULL && order < LEDGER_ORDERS; order++)
    range = overlap_in_region(l, order, address, last);
  return range;
}

/* ---- Adding and dropping ---- */

/* A slot that holds `bytes`, aligned as asked; NULL when there is no address or the host has no memory. */
static ledger_range *choose(ledger *l, uint64_t bytes, uint64_t alignment) {
  int order = order_for(bytes > alignment ? bytes : alignment);
  while (order < LEDGER_ORDERS) {
    ledger_range *range = weir__handles_make(&l->slots[order]);
    if (range == NULL)
      return NULL;
    uint64_t offset = range->head.link * slot_size(order);
    if (offset >= LEDGER_REGION) {
      weir__handles_drop(&l->slots[order], range);
      order++;
      continue;
    }
    range->base = region_of(order) + offset;
    range->order = order;
    if (weir__rangemap_overlap(&l->placed, range->base, bytes, NULL, NULL) == NULL)
      return range;
    range->kind = LEDGER_RANGE_BLOCKED;
  }
  return NULL;
}

static weir_cu_result place(ledger *l, uint64_t address, uint64_t bytes, ledger_range **range) {
  bool wraps = bytes - 1 > UINT64_MAX - address;
  if (wraps || weir__ledger_overlap(l, address, bytes) != NULL)
    return WEIR_CU_INVALID_VALUE;
  ledger_range *r = weir__slab_take(&l->placed_slab, sizeof *r);
  if (r == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  if (!weir__rangemap_insert(&l->placed, address, bytes, r)) {
    weir__slab_give(&l->placed_slab, r, sizeof *r);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *r = (ledger_range){.base = address, .order = -1};
  *range = r;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__ledger_add_range(ledger *l, ledger_range_kind kind, uint64_t address, uint64_t bytes,
                                      uint64_t alignment, ledger_device *device, ledger_range **range) {
  ledger_range *r;
  if (address == 0) {
    r = choose(l, bytes, alignment);
    if (r == NULL)
      return WEIR_CU_OUT_OF_MEMORY;
  } else {
    weir_cu_result result = place(l, address, bytes, &r);
    if (result != WEIR_CU_SUCCESS)
      return result;
  }
  r->bytes = bytes;
  r->kind = kind;
  r->device = device;
  r->id = ++l->last_id;
  *range = r;
  return WEIR_CU_SUCCESS;
}

void weir__ledger_drop_range(ledger *l, ledger_range *range) {
  if (range->order >= 0) {
    weir__handles_drop(&l->slots[range->order], range);
    return;
  }
  weir__rangemap_remove(&l->placed, range->base);
  weir__slab_give(&l->placed_slab, range, sizeof *range);
}

void weir__ledger_each_range(ledger *l, void (*visit)(ledger *l, ledger_range *range, void *data), void *data) {
  for (int order = 0; order < LEDGER_ORDERS; order++) {
    for (uint32_t index = 0; index < l->slots[order].made; index++) {
      ledger_range *range = slot(l, order, index);
      if (range != NULL)
        visit(l, range, data);
    }
  }
  uint64_t base = 0, bytes = 0;
  do {
    ledger_range *range = weir__rangemap_at_or_after(&l->placed, base + bytes, &base, &bytes);
    if (range == NULL)
      return;
    visit(l, range, data);
  } while (base + bytes != 0);
}
