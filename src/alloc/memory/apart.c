#include "alloc/memory/apart.h"

#include "base/base.h"

/* So many times as many addresses as memory, and at least LEAST. */
enum { ADDRESSES_PER_BYTE = 16 };
static const uint64_t LEAST = 256ull << 30;

static bool open_space(weir__pages *pages, weir__apart *apart, uint64_t memory) {
  uint64_t bytes = weir__round_up(memory, pages->granularity) * ADDRESSES_PER_BYTE;
  weir_cu_result r = WEIR_CU_OUT_OF_MEMORY;
  if (apart->space.base)
    return true;
  for (bytes = bytes < LEAST ? LEAST : bytes; r && bytes >= memory; bytes /= 2)
    r = weir__reservation_open(pages, &apart->space, weir__round_up(bytes, pages->granularity), pages->granularity);
  apart->next = pages->granularity;
  if (!r) {
    apart->bytes = apart->space.bytes;
    atomic_store(&apart->base, apart->space.base);
  }
  return weir__pages_ok(pages, r, "cuMemAddressReserve");
}

/* Finds `bytes` of whole slots between two more, all without pages, in [from, to): the offset of the first of them. */
static bool find_gap(const weir__apart *apart, uint64_t from, uint64_t to, uint64_t bytes, uint64_t *offset) {
  const weir__reservation *space = &apart->space;
  uint64_t begin = from; /* of the gap so far; the slot before it is empty too, or belongs to its margin */
  for (uint64_t at = from; at + space->slot <= to;) {
    const weir__mapping *mapping = weir__mapping_at(space, space->base + at);
    at = mapping ? weir__mapping_end(mapping) - space->base : at + space->slot;
    if (mapping)
      begin = at;
    else if (at - begin >= bytes + 2 * space->slot) {
      *offset = begin + space->slot;
      return true;
    }
  }
  return false;
}

bool weir__apart_get(weir__pages *pages, weir__apart *apart, uint64_t memory, uint64_t bytes,
                     weir_cu_deviceptr *address) {
  uint64_t pages_bytes = weir__round_up(bytes, pages->granularity), offset;
  if (!open_space(pages, apart, memory))
    return false;
  /* The addresses that were unmapped first come first, so that those of freed blocks stay unmapped for long. */
  uint64_t from = apart->next - apart->space.slot;
  if (!find_gap(apart, from, apart->space.bytes, pages_bytes, &offset) &&
      !find_gap(apart, 0, apart->space.bytes, pages_bytes, &offset))
    return weir__pages_ok(pages, WEIR_CU_OUT_OF_MEMORY, "cuMemAddressReserve");
  weir__page_change change = {WEIR__PAGE_MAKE, &apart->space, apart->space.base + offset, pages_bytes, .page = NULL};
  if (!weir__pages_change(pages, &change, 1))
    return false;
  apart->next = offset + pages_bytes + apart->space.slot;
  *address = apart->space.base + offset + pages_bytes - bytes;
  return true;
}

bool weir__apart_give(weir__pages *pages, weir__apart *apart, uint64_t address, uint64_t bytes) {
  uint64_t pages_bytes = weir__round_up(bytes, pages->granularity);
  weir__page_change change = {WEIR__PAGE_RELEASE, &apart->space, address + bytes - pages_bytes, pages_bytes,
                              .page = NULL};
  return weir__pages_change(pages, &change, 1);
}

void weir__apart_end(weir__pages *pages, weir__apart *apart) {
  if (apart->space.base)
    weir__reservation_end(pages, &apart->space);
  apart->space = (weir__reservation){0};
  atomic_store(&apart->base, 0);
}
