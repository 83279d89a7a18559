#include "alloc/memory/pages.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/cache/heap.h"
#include "alloc/cache/uses.h"
#include "alloc/ipc/ipc.h"
#include "base/array.h"

void weir__pages_prepare(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  int can_map = 0, rdma = 0, major = 0, minor = 0;
  uint64_t granularity = 0;
  if (driver->DeviceGetAttribute(driver, &rdma, WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED, heap->device))
    rdma = 0;
  /* Lets network cards access the pages (GPUDirect RDMA), where the device supports it. */
  heap->page_prop =
      (weir_cu_mem_prop){.type = WEIR_CU_ALLOCATION_PINNED,
                         .handle_types = heap->shares_pages ? WEIR_CU_HANDLE_POSIX_FD : WEIR_CU_HANDLE_NONE,
                         .location = {.type = WEIR_CU_LOCATION_DEVICE, .id = heap->device},
                         .flags.gpu_direct_rdma = rdma != 0};
  /* A table of the program may lack some of these entries, although the device below it supports them. */
  bool has_entries = driver->MemAddressReserve && driver->MemAddressFree && driver->MemCreate && driver->MemRelease &&
                     driver->MemMap && driver->MemUnmap && driver->MemSetAccess && driver->MemGetAllocationGranularity;
  if (has_entries &&
      !driver->DeviceGetAttribute(driver, &can_map, WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED, heap->device) && can_map &&
      !driver->MemGetAllocationGranularity(driver, &granularity, &heap->page_prop, WEIR_CU_GRANULARITY_MINIMUM))
    heap->granularity = granularity;
  if (!driver->DeviceGetAttribute(driver, &major, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, heap->device) &&
      !driver->DeviceGetAttribute(driver, &minor, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR, heap->device) && major > 0)
    heap->capability = (uint64_t)major * 10 + (uint64_t)minor;
}

/* ---- Slots: a segment's table of mappings ---- */

static size_t slot_of(const weir__segment *segment, uint64_t address) {
  return (size_t)((address - segment->base) / segment->page);
}

weir__mapping *weir__mapping_at(const weir__segment *segment, uint64_t address) {
  size_t slot = slot_of(segment, address);
  return slot < segment->room ? segment->slots[slot] : NULL;
}

bool weir__is_owner(const weir__mapping *mapping) { return mapping && mapping->page->owner == mapping; }

static void set_slots(weir__segment *segment, uint64_t address, uint64_t bytes, weir__mapping *mapping) {
  for (size_t i = slot_of(segment, address), end = i + (size_t)(bytes / segment->page); i < end; i++)
    segment->slots[i] = mapping;
}

/* Makes room for the slots up to an address. Usually only a small part of a reservation is ever mapped. */
static bool make_room(weir__segment *segment, uint64_t end) {
  size_t slots = slot_of(segment, end);
  if (slots <= segment->room)
    return true;
  size_t all = (size_t)(segment->bytes / segment->page), twice = 2 * segment->room;
  size_t room = twice > all ? all : twice > slots ? twice : slots;
  weir__mapping **grown = realloc(segment->slots, room * sizeof(weir__mapping *));
  if (!grown)
    return false;
  memset(grown + segment->room, 0, (room - segment->room) * sizeof *grown);
  segment->slots = grown;
  segment->room = room;
  return true;
}

/* ---- Pages ---- */

/* Keeps physical memory that the driver refuses to release, so that a later call can try again. */
static void release_handle(weir__heap *heap, weir_cu_mem_handle handle) {
  weir_driver *driver = heap->allocator->driver;
  if (!driver->MemRelease(driver, handle))
    return;
  if (WEIR__RESERVE(heap->orphans, heap->orphan_room, heap->orphan_count + 1))
    heap->orphans[heap->orphan_count++] = handle;
  else
    weir__log(WEIR_LOG_ERROR, "device %d: a page is leaked: the driver refused to release it", heap->device);
}

void weir__release_orphans(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  while (heap->orphan_count && !driver->MemRelease(driver, heap->orphans[heap->orphan_count - 1]))
    heap->orphan_count--;
}

static void page_delete(weir__heap *heap, weir__page *page) {
  weir__ipc_forget_page(page);
  if (page->handle)
    release_handle(heap, page->handle);
  weir__slab_free(&heap->pages, page, sizeof *page);
}

/* ---- Aliases ---- */

static void alias_add(weir__heap *heap, weir__mapping *mapping) {
  weir__aliases *aliases = &heap->aliases;
  mapping->is_alias = true;
  mapping->older = aliases->newest;
  mapping->newer = NULL;
  *(mapping->older ? &mapping->older->newer : &aliases->oldest) = mapping;
  aliases->newest = mapping;
  heap->stats.moving.aliases = (int64_t)++aliases->count;
}

static void alias_remove(weir__heap *heap, weir__mapping *mapping) {
  weir__aliases *aliases = &heap->aliases;
  if (!mapping->is_alias)
    return;
  *(mapping->older ? &mapping->older->newer : &aliases->oldest) = mapping->newer;
  *(mapping->newer ? &mapping->newer->older : &aliases->newest) = mapping->older;
  heap->stats.moving.aliases = (int64_t)--aliases->count;
  if (mapping->batch) {
    aliases->batches[mapping->batch - 1].count--;
    aliases->retiring--;
  }
  mapping->is_alias = false;
  mapping->batch = 0;
}

void weir__page_belong(weir__heap *heap, weir__mapping *mapping) {
  weir__page *page = mapping->page;
  alias_remove(heap, mapping);
  page->home = page->owner != mapping ? page->owner : NULL;
  if (page->home)
    alias_add(heap, page->home);
  page->owner = mapping;
}

/* ---- Mappings ---- */

static weir__mapping *mapping_new(weir__heap *heap, weir__segment *segment, weir__page *page, uint64_t address) {
  weir__mapping *mapping = weir__slab_alloc(&heap->mappings, sizeof *mapping);
  if (mapping)
    *mapping = (weir__mapping){.page = page, .segment = segment, .address = address};
  return mapping;
}

static void attach(weir__mapping *mapping) {
  weir__page *page = mapping->page;
  set_slots(mapping->segment, mapping->address, page->bytes, mapping);
  mapping->next = page->mappings;
  page->mappings = mapping;
}

/* Forgets a mapping that the driver has none of any more, and the page with its last mapping. */
static void detach(weir__heap *heap, weir__mapping *mapping) {
  weir__page *page = mapping->page;
  weir__mapping **at = &page->mappings;
  alias_remove(heap, mapping);
  set_slots(mapping->segment, mapping->address, page->bytes, NULL);
  while (*at != mapping)
    at = &(*at)->next;
  *at = mapping->next;
  if (page->owner == mapping)
    page->owner = NULL;
  if (page->home == mapping)
    page->home = NULL;
  weir__slab_free(&heap->mappings, mapping, sizeof *mapping);
  if (!page->mappings)
    page_delete(heap, page);
}

static bool unmap(weir__heap *heap, weir__mapping *mapping) {
  weir_driver *driver = heap->allocator->driver;
  if (!weir__heap_ok(heap, driver->MemUnmap(driver, mapping->address, mapping->page->bytes), "cuMemUnmap"))
    return false;
  detach(heap, mapping);
  return true;
}

bool weir__pages_clear(weir__heap *heap, weir__segment *segment, uint64_t address, uint64_t bytes) {
  for (uint64_t at = address; at < address + bytes; at += segment->page) {
    weir__mapping *mapping = weir__mapping_at(segment, at);
    if (mapping && !weir__is_owner(mapping) && !unmap(heap, mapping))
      return false;
  }
  return true;
}

bool weir__pages_release(weir__heap *heap, weir__segment *segment, uint64_t address, uint64_t bytes) {
  weir_driver *driver = heap->allocator->driver;
  for (uint64_t at = address; at < address + bytes; at += weir__mapping_at(segment, at)->page->bytes)
    for (weir__mapping *m = weir__mapping_at(segment, at)->page->mappings, *next; m; m = next) {
      next = m->next;
      if (!weir__is_owner(m) && !unmap(heap, m))
        return false;
    }
  if (!weir__heap_ok(heap, driver->MemUnmap(driver, address, bytes), "cuMemUnmap"))
    return false;
  for (uint64_t at = address, next; at < address + bytes; at = next) {
    weir__mapping *mapping = weir__mapping_at(segment, at);
    next = at + mapping->page->bytes;
    detach(heap, mapping);
  }
  return true;
}

void weir__pages_end(weir__heap *heap, weir__segment *segment) {
  weir_driver *driver = heap->allocator->driver;
  for (size_t i = 0; i < segment->room; i++)
    if (segment->slots[i]) {
      weir__mapping *mapping = segment->slots[i];
      if (driver->MemUnmap(driver, mapping->address, mapping->page->bytes))
        mapping->page->handle = 0; /* it is still mapped: the handle is leaked with it */
      detach(heap, mapping);
    }
}

void weir__pages_finish(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  weir__release_orphans(heap);
  free(heap->orphans);
  for (size_t i = 0; i < WEIR_COUNT_OF(heap->aliases.batches); i++)
    if (heap->aliases.batches[i].passed)
      driver->EventDestroy(driver, heap->aliases.batches[i].passed); /* heap->events is cleared already */
  weir__slab_clear(&heap->pages);
  weir__slab_clear(&heap->mappings);
}

/* ---- Mapping ---- */

size_t weir__list_access(const weir__heap *heap, weir_cu_mem_access access[64]) {
  size_t count = 0;
  for (int i = 0; i < 64; i++)
    if (i == heap->device || heap->peers >> i & 1)
      access[count++] =
          (weir_cu_mem_access){.location = {WEIR_CU_LOCATION_DEVICE, i}, .flags = WEIR_CU_ACCESS_READWRITE};
  return count;
}

weir_cu_result weir__pages_share(weir__heap *heap, int device) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_mem_access access = {.location = {WEIR_CU_LOCATION_DEVICE, device}, .flags = WEIR_CU_ACCESS_READWRITE};
  for (weir__segment *s = heap->segments; s; s = s->next)
    for (size_t i = 0; i < s->room; i++) {
      const weir__mapping *m = s->slots[i];
      if (!m || m->is_stuck || slot_of(s, m->address) != i)
        continue;
      weir_cu_result r = driver->MemSetAccess(driver, m->address, m->page->bytes, &access, 1);
      if (r)
        return r;
    }
  return WEIR_CU_SUCCESS;
}

/* Host memory for all that the pieces lack. What is new has no handle yet, and is not attached. */
static bool prepare_pieces(weir__heap *heap, weir__segment *segment, weir__piece *pieces, size_t count) {
  if (!make_room(segment, pieces[count - 1].address + pieces[count - 1].bytes))
    return false;
  for (size_t i = 0; i < count; i++) {
    weir__piece *p = &pieces[i];
    if (p->mapping)
      continue;
    if (!p->page) {
      p->page = weir__slab_alloc(&heap->pages, sizeof *p->page);
      if (!p->page)
        return false;
      *p->page = (weir__page){.bytes = p->bytes};
    }
    p->mapping = mapping_new(heap, segment, p->page, p->address);
    if (!p->mapping)
      return false;
    p->mapping->is_stuck = true; /* until it is accessible */
  }
  return true;
}

/* Whether a mapping of a piece was made by weir__pages_map, and whether its page was. */
static bool is_new(const weir__piece *piece) { return piece->mapping && piece->mapping->is_stuck; }
static bool has_new_page(const weir__piece *piece) { return piece->page && !piece->page->mappings; }

/* The end of the run of new mappings that begins at piece `i` and has no gap. */
static size_t run_end(const weir__piece *pieces, size_t count, size_t i) {
  size_t end = i + 1;
  while (end < count && is_new(&pieces[end]) && pieces[end].address == pieces[end - 1].address + pieces[end - 1].bytes)
    end++;
  return end;
}

static uint64_t run_bytes(const weir__piece *pieces, size_t i, size_t end) {
  return pieces[end - 1].address + pieces[end - 1].bytes - pieces[i].address;
}

static bool make_pages(weir__heap *heap, weir__piece *pieces, size_t count) {
  weir_driver *driver = heap->allocator->driver;
  for (size_t i = 0; i < count; i++)
    if (is_new(&pieces[i]) && has_new_page(&pieces[i]) &&
        !weir__heap_ok(heap, driver->MemCreate(driver, &pieces[i].page->handle, pieces[i].bytes, &heap->page_prop, 0),
                       "cuMemCreate"))
      return false;
  return true;
}

/* Maps the new mappings; *mapped becomes the number of pieces that are done. */
static bool map_pieces(weir__heap *heap, weir__piece *pieces, size_t count, size_t *mapped) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_mem_access access[64];
  size_t accesses = weir__list_access(heap, access);
  for (; *mapped < count; ++*mapped) {
    weir__piece *p = &pieces[*mapped];
    if (is_new(p) &&
        !weir__heap_ok(heap, driver->MemMap(driver, p->address, p->bytes, 0, p->page->handle, 0), "cuMemMap"))
      return false;
  }
  for (size_t i = 0, end; i < count; i = end) {
    end = i + 1;
    if (!is_new(&pieces[i]))
      continue;
    end = run_end(pieces, count, i);
    uint64_t bytes = run_bytes(pieces, i, end);
    if (!weir__heap_ok(heap, driver->MemSetAccess(driver, pieces[i].address, bytes, access, accesses),
                       "cuMemSetAccess"))
      return false;
  }
  return true;
}

/* Undoes everything. A mapping that cannot be unmapped stays attached to its page, stuck. */
static void undo_pieces(weir__heap *heap, weir__piece *pieces, size_t count, size_t mapped) {
  weir_driver *driver = heap->allocator->driver;
  for (size_t i = 0, end; i < mapped; i = end) {
    end = i + 1;
    if (!is_new(&pieces[i]))
      continue;
    end = run_end(pieces, mapped, i);
    if (!driver->MemUnmap(driver, pieces[i].address, run_bytes(pieces, i, end)))
      continue;
    for (size_t k = i; k < end; k++) {
      attach(pieces[k].mapping);
      pieces[k] = (weir__piece){0};
    }
  }
  for (size_t i = count; i-- > 0;) {
    if (is_new(&pieces[i]))
      weir__slab_free(&heap->mappings, pieces[i].mapping, sizeof *pieces[i].mapping);
    if (has_new_page(&pieces[i]))
      page_delete(heap, pieces[i].page);
  }
}

bool weir__pages_map(weir__heap *heap, weir__segment *segment, weir__piece *pieces, size_t count) {
  size_t mapped = 0;
  if (!count)
    return false;
  weir__release_orphans(heap);
  if (!prepare_pieces(heap, segment, pieces, count) || !make_pages(heap, pieces, count) ||
      !map_pieces(heap, pieces, count, &mapped)) {
    undo_pieces(heap, pieces, count, mapped);
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    weir__mapping *mapping = pieces[i].mapping;
    if (!mapping->is_stuck)
      continue;
    attach(mapping);
    mapping->is_stuck = false;
    if (mapping->page->owner)
      alias_add(heap, mapping);
    else
      mapping->page->owner = mapping;
  }
  return true;
}

/* ---- Retiring aliases ---- */

enum { UNMAPS_AT_ONCE = 64 }; /* a request waits for them */

static void batch_end(weir__heap *heap, weir__alias_batch *batch) {
  weir__event_release(&heap->events, heap->allocator->driver, batch->passed);
  *batch = (weir__alias_batch){0};
}

/* Unmaps the aliases of batches whose streams have passed. */
static void unmap_retired(weir__heap *heap) {
  weir__aliases *aliases = &heap->aliases;
  weir_driver *driver = heap->allocator->driver;
  int left = UNMAPS_AT_ONCE;
  for (size_t i = 0; i < WEIR_COUNT_OF(aliases->batches); i++) {
    weir__alias_batch *batch = &aliases->batches[i];
    if (!batch->passed || driver->EventQuery(driver, batch->passed))
      continue;
    for (weir__mapping *m = aliases->oldest, *next; m && batch->count && left; m = next) {
      next = m->newer;
      if (m->batch != i + 1)
        continue;
      if (!unmap(heap, m))
        return;
      heap->stats.moving.aliases_unmapped++;
      left--;
    }
    if (!batch->count)
      batch_end(heap, batch);
  }
}

/* A batch for a stream that has none yet, with an event. NULL if there is no room, or if the driver fails. */
static weir__alias_batch *batch_begin(weir__heap *heap, weir_cu_stream stream) {
  weir__alias_batch *batches = heap->aliases.batches, *made = NULL;
  for (size_t i = 0; i < WEIR_COUNT_OF(heap->aliases.batches); i++) {
    if (batches[i].passed && batches[i].stream == stream)
      return NULL;
    if (!batches[i].passed && !made)
      made = &batches[i];
  }
  if (!made || weir__event_acquire(&heap->events, heap->allocator->driver, &made->passed))
    return NULL;
  made->stream = stream;
  return made;
}

void weir__aliases_retire(weir__heap *heap, weir_cu_stream stream, uint64_t most) {
  weir__aliases *aliases = &heap->aliases;
  weir_driver *driver = heap->allocator->driver;
  int mode;
  if (!aliases->retiring && aliases->count <= most)
    return;
  if (atomic_load(&heap->captures) || weir__is_in_capture(heap, stream) || !weir__capture_relax(heap, &mode))
    return; /* querying an event would invalidate a capture, and an event recorded in one would never complete */
  unmap_retired(heap);
  weir__capture_restore(heap, mode);
  if (aliases->count - aliases->retiring <= most)
    return;
  weir__alias_batch *batch = batch_begin(heap, stream);
  if (!batch)
    return;
  if (driver->EventRecord(driver, batch->passed, stream)) {
    batch_end(heap, batch);
    return;
  }
  /* An alias was last used by the stream of its segment, before it became one: a request of another stream took its
   * page only behind that use. A stream that may have ended cannot be queried. */
  size_t excess = aliases->count - aliases->retiring - (size_t)most;
  weir_cu_stream queried = stream;
  bool has_passed = true;
  for (weir__mapping *m = aliases->oldest; m && excess; m = m->newer) {
    weir_cu_stream user = m->segment->arena->stream;
    if (m->batch)
      continue;
    if (user != queried)
      has_passed = user == stream || (!heap->allocator->streams_may_end && weir__stream_is_idle(heap, user));
    queried = user;
    if (!has_passed)
      continue;
    m->batch = (uint8_t)(batch - aliases->batches + 1);
    batch->count++;
    aliases->retiring++;
    excess--;
  }
  if (!batch->count)
    batch_end(heap, batch);
}
