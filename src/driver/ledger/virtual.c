/*
 * Virtual memory: address space, physical memory, and which of the one lies behind which of the other.
 */
#include "driver/ledger/ledger.h"

#include <stdlib.h>

static bool whole_units(uint64_t bytes) { return bytes != 0 && bytes % LEDGER_GRANULARITY == 0; }

/* ---- Address space ---- */

/* Where the caller would like a reservation, if that can be; else 0. */
static uint64_t grant_wish(const ledger *l, uint64_t wish, uint64_t bytes, uint64_t alignment) {
  bool can = wish % alignment == 0 && bytes - 1 <= UINT64_MAX - wish && weir__ledger_overlap(l, wish, bytes) == NULL;
  return can ? wish : 0;
}

static weir_cu_result MemAddressReserve(weir_driver *self, weir_cu_deviceptr *pointer, size_t bytes, size_t alignment,
                                        weir_cu_deviceptr wish, unsigned long long flags) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  bool power_of_two = (alignment & (alignment - 1)) == 0; /* 0 passes too */
  if (pointer == NULL || !whole_units(bytes) || !power_of_two || flags != 0)
    return WEIR_CU_INVALID_VALUE;
  if (alignment < LEDGER_GRANULARITY)
    alignment = LEDGER_GRANULARITY;

  uint64_t address = 0;
  if (l->options.place != NULL)
    address = l->options.place(l->options.place_context, WEIR_CALL_MemAddressReserve, bytes);
  if (address % LEDGER_GRANULARITY != 0)
    return WEIR_CU_INVALID_VALUE;
  if (address == 0 && wish != 0)
    address = grant_wish(l, wish, bytes, alignment);
  ledger_range *range;
  weir_cu_result result = weir__ledger_add_range(l, LEDGER_RANGE_RESERVATION, address, bytes, alignment, NULL, &range);
  if (result == WEIR_CU_SUCCESS)
    *pointer = range->base;
  return result;
}

static weir_cu_result MemAddressFree(weir_driver *self, weir_cu_deviceptr pointer, size_t bytes) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_range *range = weir__ledger_range_at(l, pointer);
  if (range == NULL || range->kind != LEDGER_RANGE_RESERVATION || range->bytes != bytes || range->mappings != 0)
    return WEIR_CU_INVALID_VALUE;
  weir__ledger_drop_tables(l, range);
  weir__ledger_drop_range(l, range);
  return WEIR_CU_SUCCESS;
}

/* ---- Physical memory ---- */

static weir_cu_result MemCreate(weir_driver *self, weir_cu_mem_handle *handle, size_t bytes,
                                const weir_cu_mem_prop *prop, unsigned long long flags) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (handle == NULL || prop == NULL || !whole_units(bytes) || flags != 0)
    return WEIR_CU_INVALID_VALUE;
  if (prop->type != WEIR_CU_ALLOCATION_PINNED || prop->location.type != WEIR_CU_LOCATION_DEVICE)
    return WEIR_CU_INVALID_VALUE;
  ledger_device *device = weir__ledger_device(l, prop->location.id);
  if (device == NULL)
    return WEIR_CU_INVALID_DEVICE;
  if (prop->handle_types != WEIR_CU_HANDLE_NONE)
    return WEIR_CU_NOT_SUPPORTED;

  if (!weir__ledger_take_bytes(l, device, bytes))
    return WEIR_CU_OUT_OF_MEMORY;
  ledger_memory *memory = weir__handles_make(&l->memories);
  if (memory == NULL) {
    device->used -= bytes;
    return WEIR_CU_OUT_OF_MEMORY;
  }
  memory->device = device;
  memory->bytes = bytes;
  *handle = weir__handle_of(&l->memories, memory);
  return WEIR_CU_SUCCESS;
}

static void drop_if_unused(ledger *l, ledger_memory *memory) {
  if (!memory->released || memory->mappings != 0)
    return;
  memory->device->used -= memory->bytes;
  weir__handles_drop(&l->memories, memory);
}

/* The memory of a handle that was not released yet, or NULL. */
static ledger_memory *held(const ledger *l, weir_cu_mem_handle handle) {
  ledger_memory *memory = weir__handles_get(&l->memories, handle);
  return memory != NULL && !memory->released ? memory : NULL;
}

static weir_cu_result MemRelease(weir_driver *self, weir_cu_mem_handle handle) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_memory *memory = held(l, handle);
  if (memory == NULL)
    return WEIR_CU_INVALID_VALUE;
  memory->released = true;
  drop_if_unused(l, memory);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemGetAllocationGranularity(weir_driver *self, size_t *bytes, const weir_cu_mem_prop *prop,
                                                  int option) {
  if (!weir__ledger_of(self)->ready)
    return WEIR_CU_NOT_INITIALIZED;
  bool known = option == WEIR_CU_GRANULARITY_MINIMUM || option == WEIR_CU_GRANULARITY_RECOMMENDED;
  if (bytes == NULL || prop == NULL || !known)
    return WEIR_CU_INVALID_VALUE;
  *bytes = LEDGER_GRANULARITY;
  return WEIR_CU_SUCCESS;
}

/* ---- Mappings ---- */

static size_t table_count(const ledger_range *reservation) {
  uint64_t pages = reservation->bytes / LEDGER_GRANULARITY;
  return (pages + LEDGER_PAGES_IN_TABLE - 1) / LEDGER_PAGES_IN_TABLE;
}

void weir__ledger_drop_tables(ledger *l, ledger_range *reservation) {
  if (reservation->tables == NULL)
    return;
  for (size_t i = 0; i < table_count(reservation); i++)
    if (reservation->tables[i] != NULL)
      weir__slab_give(&l->table_slab, reservation->tables[i], sizeof(ledger_page_table));
  free(reservation->tables);
  reservation->tables = NULL;
}

/* Makes the page table reach over [first, last]; false when the host has no memory. */
static bool make_tables(ledger *l, ledger_range *reservation, uint64_t first, uint64_t last) {
  if (reservation->tables == NULL) {
    reservation->tables = calloc(table_count(reservation), sizeof *reservation->tables);
    if (reservation->tables == NULL)
      return false;
  }
  for (uint64_t i = first / LEDGER_PAGES_IN_TABLE; i <= last / LEDGER_PAGES_IN_TABLE; i++) {
    if (reservation->tables[i] != NULL)
      continue;
    reservation->tables[i] = weir__slab_take(&l->table_slab, sizeof(ledger_page_table));
    if (reservation->tables[i] == NULL)
      return false;
    *reservation->tables[i] = (ledger_page_table){0};
  }
  return true;
}

/* Writes a mapping, or NULL, to each of its pages. */
static void set_pages(ledger_range *reservation, uint64_t base, uint64_t bytes, ledger_mapping *mapping) {
  uint64_t page = (base - reservation->base) / LEDGER_GRANULARITY, end = page + bytes / LEDGER_GRANULARITY;
  for (; page < end; page++)
    reservation->tables[page / LEDGER_PAGES_IN_TABLE]->pages[page % LEDGER_PAGES_IN_TABLE] = mapping;
}

/* The reservation that all of [pointer, pointer + bytes) lies in, or NULL. */
static ledger_range *reservation_of(const ledger *l, uint64_t pointer, uint64_t bytes) {
  ledger_range *range = weir__ledger_find_range(l, pointer);
  bool inside =
      range != NULL && range->kind == LEDGER_RANGE_RESERVATION && bytes <= range->bytes - (pointer - range->base);
  return inside ? range : NULL;
}

static weir_cu_result MemMap(weir_driver *self, weir_cu_deviceptr pointer, size_t bytes, size_t offset,
                             weir_cu_mem_handle handle, unsigned long long flags) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_memory *memory = held(l, handle);
  if (memory == NULL || flags != 0 || pointer % LEDGER_GRANULARITY != 0 || !whole_units(bytes))
    return WEIR_CU_INVALID_VALUE;
  /* A part of a handle is refused with this code by NVIDIA's driver too. */
  if (offset != 0 || bytes != memory->bytes)
    return WEIR_CU_NOT_SUPPORTED;
  ledger_range *reservation = reservation_of(l, pointer, bytes);
  if (reservation == NULL)
    return WEIR_CU_INVALID_VALUE;

  uint64_t first = (pointer - reservation->base) / LEDGER_GRANULARITY;
  if (!make_tables(l, reservation, first, first + bytes / LEDGER_GRANULARITY - 1))
    return WEIR_CU_OUT_OF_MEMORY;
  for (uint64_t at = pointer; at - pointer < bytes; at += LEDGER_GRANULARITY)
    if (weir__ledger_mapping(reservation, at) != NULL)
      return WEIR_CU_INVALID_VALUE;

  ledger_mapping *mapping = weir__slab_take(&l->mapping_slab, sizeof *mapping);
  if (mapping == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  *mapping = (ledger_mapping){.base = pointer, .bytes = bytes, .memory = memory, .id = ++l->last_id};
  set_pages(reservation, pointer, bytes, mapping);
  reservation->mappings++;
  memory->mappings++;
  return WEIR_CU_SUCCESS;
}

/* The reservation in which [pointer, pointer + bytes) is made of whole mappings without a gap, or NULL. */
static ledger_range *whole_mappings(const ledger *l, uint64_t pointer, uint64_t bytes) {
  ledger_range *reservation = reservation_of(l, pointer, bytes);
  if (reservation == NULL || bytes == 0)
    return NULL;
  uint64_t at = pointer;
  while (at - pointer < bytes) {
    const ledger_mapping *mapping = weir__ledger_mapping(reservation, at);
    if (mapping == NULL || mapping->base != at)
      return NULL;
    at += mapping->bytes;
  }
  return at - pointer == bytes ? reservation : NULL;
}

static void unmap(ledger *l, ledger_range *reservation, ledger_mapping *mapping) {
  set_pages(reservation, mapping->base, mapping->bytes, NULL);
  reservation->mappings--;
  mapping->memory->mappings--;
  drop_if_unused(l, mapping->memory);
  weir__slab_give(&l->mapping_slab, mapping, sizeof *mapping);
}

/* Whether no mapping reaches over either end of [pointer, pointer + bytes). */
static bool cuts_none(const ledger_range *reservation, uint64_t pointer, uint64_t bytes) {
  uint64_t last = pointer + (bytes - 1);
  const ledger_mapping *head = weir__ledger_mapping(reservation, pointer);
  const ledger_mapping *tail = weir__ledger_mapping(reservation, last);
  return (head == NULL || head->base == pointer) && (tail == NULL || tail->base + (tail->bytes - 1) == last);
}

static weir_cu_result MemUnmap(weir_driver *self, weir_cu_deviceptr pointer, size_t bytes) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_range *reservation = reservation_of(l, pointer, bytes);
  if (reservation == NULL || pointer % LEDGER_GRANULARITY != 0 || !whole_units(bytes) ||
      !cuts_none(reservation, pointer, bytes))
    return WEIR_CU_INVALID_VALUE;
  if (reservation->mappings == 0)
    return WEIR_CU_SUCCESS;

  uint64_t page = (pointer - reservation->base) / LEDGER_GRANULARITY, end = page + bytes / LEDGER_GRANULARITY;
  while (page < end) {
    const ledger_page_table *table = reservation->tables[page / LEDGER_PAGES_IN_TABLE];
    if (table == NULL) {
      page = (page / LEDGER_PAGES_IN_TABLE + 1) * LEDGER_PAGES_IN_TABLE;
      continue;
    }
    ledger_mapping *mapping = table->pages[page % LEDGER_PAGES_IN_TABLE];
    page += mapping != NULL ? mapping->bytes / LEDGER_GRANULARITY : 1;
    if (mapping != NULL)
      unmap(l, reservation, mapping);
  }
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemSetAccess(weir_driver *self, weir_cu_deviceptr pointer, size_t bytes,
                                   const weir_cu_mem_access *access, size_t count) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (access == NULL || count == 0)
    return WEIR_CU_INVALID_VALUE;
  uint64_t named = 0, readers = 0, writers = 0;
  for (size_t i = 0; i < count; i++) {
    const ledger_device *device = weir__ledger_device(l, access[i].location.id);
    if (access[i].location.type != WEIR_CU_LOCATION_DEVICE || device == NULL)
      return WEIR_CU_INVALID_VALUE;
    uint64_t bit = weir__ledger_bit(device);
    named |= bit;
    readers &= ~bit;
    writers &= ~bit;
    switch (access[i].flags) {
    case WEIR_CU_ACCESS_NONE:
      break;
    case WEIR_CU_ACCESS_READ:
      readers |= bit;
      break;
    case WEIR_CU_ACCESS_READWRITE:
      readers |= bit, writers |= bit;
      break;
    default:
      return WEIR_CU_INVALID_VALUE;
    }
  }
  ledger_range *reservation = whole_mappings(l, pointer, bytes);
  if (reservation == NULL)
    return WEIR_CU_INVALID_VALUE;
  for (uint64_t at = pointer; at - pointer < bytes;) {
    ledger_mapping *mapping = weir__ledger_mapping(reservation, at);
    mapping->readers = (mapping->readers & ~named) | readers;
    mapping->writers = (mapping->writers & ~named) | writers;
    at += mapping->bytes;
  }
  return WEIR_CU_SUCCESS;
}

void weir__ledger_add_virtual(weir_driver *table) {
  table->MemAddressReserve = MemAddressReserve;
  table->MemAddressFree = MemAddressFree;
  table->MemCreate = MemCreate;
  table->MemRelease = MemRelease;
  table->MemMap = MemMap;
  table->MemUnmap = MemUnmap;
  table->MemSetAccess = MemSetAccess;
  table->MemGetAllocationGranularity = MemGetAllocationGranularity;
}
