/*
 * Virtual memory: address space, physical memory, and which of the one lies behind which of the other.
 */
#include "driver/model/model.h"

#include <stdlib.h>

static bool whole_units(uint64_t bytes) { return bytes && bytes % MODEL_GRANULARITY == 0; }

/* ---- Address space ---- */

weir_cu_result weir__model_MemAddressReserve(model *m, weir_cu_deviceptr *pointer, uint64_t bytes, uint64_t alignment,
                                             weir_cu_deviceptr wish, unsigned long long flags) {
  model_range *range;
  if (!pointer || !whole_units(bytes) || alignment & (alignment - 1) || flags)
    return WEIR_CU_INVALID_VALUE;
  if (alignment < MODEL_GRANULARITY)
    alignment = MODEL_GRANULARITY;
  weir_cu_result r =
      m->hooks->new_range(m, &(model_request){MODEL_RANGE_RESERVATION, NULL, bytes, alignment, wish}, &range);
  if (!r)
    *pointer = range->base;
  return r;
}

weir_cu_result weir__model_MemAddressFree(model *m, weir_cu_deviceptr pointer, uint64_t bytes) {
  model_range *range = weir__model_range_at(m, pointer);
  if (!range || range->kind != MODEL_RANGE_RESERVATION || range->bytes != bytes || range->mappings)
    return WEIR_CU_INVALID_VALUE;
  weir__model_free_range(m, range);
  return WEIR_CU_SUCCESS;
}

/* ---- Physical memory ---- */

weir_cu_result weir__model_MemCreate(model *m, weir_cu_mem_handle *handle, uint64_t bytes, const weir_cu_mem_prop *prop,
                                     unsigned long long flags) {
  if (!handle || !prop || !whole_units(bytes) || flags || prop->win32_metadata)
    return WEIR_CU_INVALID_VALUE;
  if (prop->type != WEIR_CU_ALLOCATION_PINNED || prop->location.type != WEIR_CU_LOCATION_DEVICE)
    return WEIR_CU_INVALID_VALUE;
  model_device *device = weir__model_device(m, prop->location.id);
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  if (prop->handle_types != WEIR_CU_HANDLE_NONE && (prop->handle_types != WEIR_CU_HANDLE_POSIX_FD || !m->hooks->shares))
    return WEIR_CU_NOT_SUPPORTED;

  if (!weir__model_take_bytes(m, device, bytes))
    return WEIR_CU_OUT_OF_MEMORY;
  model_memory *memory = weir__handles_make(&m->memories);
  if (!memory) {
    device->used -= bytes;
    return WEIR_CU_OUT_OF_MEMORY;
  }
  memory->device = device;
  memory->bytes = bytes;
  weir_cu_result r = m->hooks->new_memory ? m->hooks->new_memory(m, memory, prop->handle_types) : WEIR_CU_SUCCESS;
  if (r) {
    device->used -= bytes;
    weir__handles_drop(&m->memories, memory);
    return r;
  }
  *handle = weir__handle_of(&m->memories, memory);
  return WEIR_CU_SUCCESS;
}

void weir__model_drop_memory(model *m, model_memory *memory) {
  if (!memory->released || memory->mappings)
    return;
  if (!memory->imported)
    memory->device->used -= memory->bytes;
  if (m->hooks->end_memory)
    m->hooks->end_memory(m, memory);
  weir__handles_drop(&m->memories, memory);
}

weir_cu_result weir__model_MemRelease(model *m, weir_cu_mem_handle handle) {
  model_memory *memory = weir__model_memory(m, handle);
  if (!memory)
    return WEIR_CU_INVALID_VALUE;
  memory->released = true;
  weir__model_drop_memory(m, memory);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemGetAllocationGranularity(model *m, uint64_t *bytes, const weir_cu_mem_prop *prop,
                                                       int option) {
  (void)m;
  if (!bytes || !prop || (option != WEIR_CU_GRANULARITY_MINIMUM && option != WEIR_CU_GRANULARITY_RECOMMENDED))
    return WEIR_CU_INVALID_VALUE;
  *bytes = MODEL_GRANULARITY;
  return WEIR_CU_SUCCESS;
}

/* ---- Page tables ---- */

static size_t table_count(const model_range *reservation) {
  uint64_t pages = reservation->bytes / MODEL_GRANULARITY;
  return (size_t)((pages + MODEL_PAGES_IN_TABLE - 1) / MODEL_PAGES_IN_TABLE);
}

/* Makes the page table reach over the pages [first, last]; false if the host has no memory. */
static bool make_tables(model *m, model_range *reservation, uint64_t first, uint64_t last) {
  if (!reservation->tables) {
    reservation->tables = calloc(table_count(reservation), sizeof *reservation->tables);
    if (!reservation->tables)
      return false;
  }
  for (uint64_t i = first / MODEL_PAGES_IN_TABLE; i <= last / MODEL_PAGES_IN_TABLE; i++) {
    if (reservation->tables[i])
      continue;
    reservation->tables[i] = weir__slab_alloc(&m->table_slab, sizeof(model_page_table));
    if (!reservation->tables[i])
      return false;
    *reservation->tables[i] = (model_page_table){0};
  }
  return true;
}

/* Writes a mapping, or NULL, to each of its pages. */
static void set_pages(model_range *reservation, uint64_t base, uint64_t bytes, model_mapping *mapping) {
  uint64_t page = (base - reservation->base) / MODEL_GRANULARITY, end = page + bytes / MODEL_GRANULARITY;
  for (; page < end; page++)
    reservation->tables[page / MODEL_PAGES_IN_TABLE]->pages[page % MODEL_PAGES_IN_TABLE] = mapping;
}

/* ---- Mappings ---- */

/* The reservation that all of [pointer, pointer + bytes), in whole units, lies in, or NULL. */
static model_range *reservation_of(const model *m, uint64_t pointer, uint64_t bytes) {
  model_range *range = weir__model_find_range(m, pointer);
  bool inside = range && range->kind == MODEL_RANGE_RESERVATION && bytes <= range->bytes - (pointer - range->base);
  return inside && whole_units(bytes) && pointer % MODEL_GRANULARITY == 0 ? range : NULL;
}

weir_cu_result weir__model_MemMap(model *m, weir_cu_deviceptr pointer, uint64_t bytes, uint64_t offset,
                                  weir_cu_mem_handle handle, unsigned long long flags) {
  model_memory *memory = weir__model_memory(m, handle);
  if (!memory || flags || pointer % MODEL_GRANULARITY || !whole_units(bytes))
    return WEIR_CU_INVALID_VALUE;
  /* A part of a handle is refused with this code by NVIDIA's driver too. */
  if (offset || bytes != memory->bytes)
    return WEIR_CU_NOT_SUPPORTED;
  model_range *reservation = reservation_of(m, pointer, bytes);
  if (!reservation)
    return WEIR_CU_INVALID_VALUE;

  uint64_t first = (pointer - reservation->base) / MODEL_GRANULARITY;
  if (!make_tables(m, reservation, first, first + bytes / MODEL_GRANULARITY - 1))
    return WEIR_CU_OUT_OF_MEMORY;
  for (uint64_t at = pointer; at - pointer < bytes; at += MODEL_GRANULARITY)
    if (weir__model_mapping(reservation, at))
      return WEIR_CU_INVALID_VALUE;

  model_mapping *mapping = weir__slab_alloc(&m->mapping_slab, sizeof *mapping);
  if (!mapping)
    return WEIR_CU_OUT_OF_MEMORY;
  *mapping = (model_mapping){.base = pointer, .bytes = bytes, .memory = memory, .id = ++m->last_id};
  weir_cu_result r = m->hooks->map ? m->hooks->map(m, mapping) : WEIR_CU_SUCCESS;
  if (r) {
    weir__slab_free(&m->mapping_slab, mapping, sizeof *mapping);
    return r;
  }
  set_pages(reservation, pointer, bytes, mapping);
  reservation->mappings++;
  memory->mappings++;
  return WEIR_CU_SUCCESS;
}

/* The reservation in which [pointer, pointer + bytes) is made of whole mappings without a gap, or NULL. */
static model_range *whole_mappings(const model *m, uint64_t pointer, uint64_t bytes) {
  model_range *reservation = reservation_of(m, pointer, bytes);
  uint64_t at = pointer;
  while (reservation && at - pointer < bytes) {
    const model_mapping *mapping = weir__model_mapping(reservation, at);
    if (!mapping || mapping->base != at)
      return NULL;
    at += mapping->bytes;
  }
  return at - pointer == bytes ? reservation : NULL;
}

/* Whether no mapping reaches over either end of [pointer, pointer + bytes). */
static bool cuts_none(const model_range *reservation, uint64_t pointer, uint64_t bytes) {
  uint64_t last = pointer + (bytes - 1);
  const model_mapping *head = weir__model_mapping(reservation, pointer);
  const model_mapping *tail = weir__model_mapping(reservation, last);
  return (!head || head->base == pointer) && (!tail || tail->base + (tail->bytes - 1) == last);
}

static void drop_mapping(model *m, model_range *reservation, model_mapping *mapping) {
  set_pages(reservation, mapping->base, mapping->bytes, NULL);
  reservation->mappings--;
  mapping->memory->mappings--;
  weir__model_drop_memory(m, mapping->memory);
  weir__slab_free(&m->mapping_slab, mapping, sizeof *mapping);
}

model_mapping *weir__model_next_mapping(const model_range *reservation, uint64_t *at, uint64_t end) {
  uint64_t page = (*at - reservation->base) / MODEL_GRANULARITY, stop = (end - reservation->base) / MODEL_GRANULARITY;
  while (reservation->mappings && page < stop) {
    const model_page_table *table = reservation->tables[page / MODEL_PAGES_IN_TABLE];
    model_mapping *mapping = table ? table->pages[page % MODEL_PAGES_IN_TABLE] : NULL;
    if (mapping) {
      *at = mapping->base + mapping->bytes;
      return mapping;
    }
    page = table ? page + 1 : (page / MODEL_PAGES_IN_TABLE + 1) * MODEL_PAGES_IN_TABLE;
  }
  return NULL;
}

static void drop_mappings(model *m, model_range *reservation, uint64_t at, uint64_t bytes) {
  uint64_t end = at + bytes;
  for (model_mapping *mapping; at < end && (mapping = weir__model_next_mapping(reservation, &at, end));)
    drop_mapping(m, reservation, mapping);
}

weir_cu_result weir__model_MemUnmap(model *m, weir_cu_deviceptr pointer, uint64_t bytes) {
  model_range *reservation = reservation_of(m, pointer, bytes);
  if (!reservation || !cuts_none(reservation, pointer, bytes))
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = m->hooks->unmap ? m->hooks->unmap(m, pointer, bytes) : WEIR_CU_SUCCESS;
  if (!r)
    drop_mappings(m, reservation, pointer, bytes);
  return r;
}

void weir__model_end_reservation(model *m, model_range *reservation) {
  if (!reservation->tables)
    return;
  drop_mappings(m, reservation, reservation->base, reservation->bytes);
  for (size_t i = 0; i < table_count(reservation); i++)
    if (reservation->tables[i])
      weir__slab_free(&m->table_slab, reservation->tables[i], sizeof(model_page_table));
  free(reservation->tables);
  reservation->tables = NULL;
}

weir_cu_result weir__model_MemSetAccess(model *m, weir_cu_deviceptr pointer, uint64_t bytes,
                                        const weir_cu_mem_access *access, size_t count) {
  if (!access || !count)
    return WEIR_CU_INVALID_VALUE;
  uint64_t named = 0, readers = 0, writers = 0;
  for (size_t i = 0; i < count; i++) {
    const model_device *device = weir__model_device(m, access[i].location.id);
    int flags = access[i].flags;
    if (access[i].location.type != WEIR_CU_LOCATION_DEVICE || !device ||
        (flags != WEIR_CU_ACCESS_NONE && flags != WEIR_CU_ACCESS_READ && flags != WEIR_CU_ACCESS_READWRITE))
      return WEIR_CU_INVALID_VALUE;
    uint64_t bit = weir__model_bit(device);
    named |= bit;
    readers = flags == WEIR_CU_ACCESS_NONE ? readers & ~bit : readers | bit;
    writers = flags == WEIR_CU_ACCESS_READWRITE ? writers | bit : writers & ~bit;
  }
  const model_range *reservation = whole_mappings(m, pointer, bytes);
  if (!reservation)
    return WEIR_CU_INVALID_VALUE;
  for (uint64_t at = pointer; at - pointer < bytes;) {
    model_mapping *mapping = weir__model_mapping(reservation, at);
    uint64_t new_readers = (mapping->readers & ~named) | readers, new_writers = (mapping->writers & ~named) | writers;
    weir_cu_result r = m->hooks->protect ? m->hooks->protect(m, mapping, new_readers, new_writers) : WEIR_CU_SUCCESS;
    if (r)
      return r;
    mapping->readers = new_readers;
    mapping->writers = new_writers;
    at += mapping->bytes;
  }
  return WEIR_CU_SUCCESS;
}
