#include "alloc/memory/pages.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/base.h"

/* The test that explores all states defines this, to check that it finds each fault that is planted. */
#ifndef WEIR__PLANTED
#define WEIR__PLANTED(fault) false
#endif

void weir__pages_begin(weir__pages *pages, weir_driver *driver, int device, bool is_shared) {
  int can_map = 0, rdma = 0;
  uint64_t granularity = 0;
  if (driver->DeviceGetAttribute(driver, &rdma, WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED, device))
    rdma = 0;
  *pages = (weir__pages){.driver = driver, .device = device};
  /* Lets network cards access the pages (GPUDirect RDMA), where the device supports it. */
  pages->prop = (weir_cu_mem_prop){.type = WEIR_CU_ALLOCATION_PINNED,
                                   .handle_types = is_shared ? WEIR_CU_HANDLE_POSIX_FD : WEIR_CU_HANDLE_NONE,
                                   .location = {.type = WEIR_CU_LOCATION_DEVICE, .id = device},
                                   .flags.gpu_direct_rdma = rdma != 0};
  /* A table of the program may lack some of these entries, although the device below it supports them. */
  bool has_entries = driver->MemAddressReserve && driver->MemAddressFree && driver->MemCreate && driver->MemRelease &&
                     driver->MemMap && driver->MemUnmap && driver->MemSetAccess && driver->MemGetAllocationGranularity;
  if (has_entries && !driver->DeviceGetAttribute(driver, &can_map, WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED, device) &&
      can_map && !driver->MemGetAllocationGranularity(driver, &granularity, &pages->prop, WEIR_CU_GRANULARITY_MINIMUM))
    pages->granularity = granularity;
}

void weir__pages_end(weir__pages *pages) {
  weir__release_orphans(pages);
  free(pages->orphans);
  weir__slab_clear(&pages->pages);
  weir__slab_clear(&pages->mappings);
}

bool weir__pages_ok(weir__pages *pages, weir_cu_result result, const char *call) {
  if (result && !pages->failure) {
    pages->failure = result == WEIR_CU_OUT_OF_MEMORY ? WEIR_CU_SUCCESS : result;
    pages->failed_call = call;
  }
  return !result;
}

weir_cu_result weir__pages_failure(const weir__pages *pages) {
  return pages->failure ? pages->failure : WEIR_CU_OUT_OF_MEMORY;
}

/* ---- Slots: a reservation's table of mappings ---- */

static size_t slot_of(const weir__reservation *reservation, uint64_t address) {
  return (size_t)((address - reservation->base) / reservation->slot);
}

static void set_slots(weir__reservation *reservation, uint64_t address, uint64_t bytes, weir__mapping *mapping) {
  for (size_t i = slot_of(reservation, address), end = slot_of(reservation, address + bytes); i < end; i++)
    reservation->slots[i] = mapping;
}

/* Makes room for the slots up to an address. Usually only a small part of a reservation is ever mapped. */
static bool make_room(weir__reservation *reservation, uint64_t end) {
  size_t slots = slot_of(reservation, end);
  if (slots <= reservation->room)
    return true;
  size_t all = slot_of(reservation, reservation->base + reservation->bytes), twice = 2 * reservation->room;
  size_t room = twice > all ? all : twice > slots ? twice : slots;
  weir__mapping **grown = realloc(reservation->slots, room * sizeof(weir__mapping *));
  if (!grown)
    return false;
  memset(grown + reservation->room, 0, (room - reservation->room) * sizeof *grown);
  reservation->slots = grown;
  reservation->room = room;
  return true;
}

/* ---- Pages ---- */

/* Keeps physical memory that the driver refuses to release, so that a later call can try again. */
static void release_handle(weir__pages *pages, weir_cu_mem_handle handle) {
  if (!pages->driver->MemRelease(pages->driver, handle))
    return;
  if (WEIR__RESERVE(pages->orphans, pages->orphan_room, pages->orphan_count + 1))
    pages->orphans[pages->orphan_count++] = handle;
  else
    weir__log(WEIR_LOG_ERROR, "device %d: a page is leaked: the driver refused to release it", pages->device);
}

void weir__release_orphans(weir__pages *pages) {
  weir_driver *driver = pages->driver;
  while (pages->orphan_count && !driver->MemRelease(driver, pages->orphans[pages->orphan_count - 1]))
    pages->orphan_count--;
}

static void page_delete(weir__pages *pages, weir__page *page) {
  weir__page_withdraw(page);
  if (page->handle && !WEIR__PLANTED(keeps_handle))
    release_handle(pages, page->handle);
  weir__slab_free(&pages->pages, page, sizeof *page);
}

weir__page_answer weir__pins_permit(unsigned pins, weir__page_use use) {
  /* Bytes that a graph works on are live, so they sleep with their page; the caller sees that no graph is launched. */
  static const struct {
    unsigned pin;
    weir__page_answer answers[3]; /* to move, to sleep, to guard */
  } rules[] = {
      {WEIR__PIN_FIXED, {WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT}},
      {WEIR__PIN_EXPORTED, {WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT}},
      {WEIR__PIN_RECEIVED, {WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT}},
      {WEIR__PIN_GRAPH, {WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_IF_IDLE, WEIR__PAGE_MAY_NOT}},
      {WEIR__PIN_PEERS, {WEIR__PAGE_MAY_IF_IDLE, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT}},
  };
  weir__page_answer answer = WEIR__PAGE_MAY;
  for (size_t i = 0; i < WEIR_COUNT_OF(rules); i++)
    if (pins & rules[i].pin && rules[i].answers[use] < answer)
      answer = rules[i].answers[use];
  return answer;
}

unsigned weir__page_pins(const weir__pages *pages, const weir__page *page) {
  return page->pins | (page->owner ? page->owner->reservation->pins : 0) | (pages->peers ? WEIR__PIN_PEERS : 0);
}

/* ---- Aliases ---- */

static void alias_add(weir__pages *pages, weir__mapping *mapping) {
  mapping->state = WEIR__MAPPING_ALIAS;
  mapping->number = ++pages->aliases.made;
  mapping->older = pages->aliases.newest;
  mapping->newer = NULL;
  *(mapping->older ? &mapping->older->newer : &pages->aliases.oldest) = mapping;
  pages->aliases.newest = mapping;
  pages->aliases.count++;
}

void weir__mapping_retire(weir__pages *pages, weir__mapping *mapping, uint8_t fence) {
  if (mapping->fence) {
    pages->aliases.waiting[mapping->fence]--;
    pages->aliases.retiring--;
  }
  mapping->fence = fence;
  mapping->state = fence ? WEIR__MAPPING_RETIRING : WEIR__MAPPING_ALIAS;
  if (fence) {
    pages->aliases.waiting[fence]++;
    pages->aliases.retiring++;
  }
}

static void alias_remove(weir__pages *pages, weir__mapping *mapping) {
  if (!weir__is_alias(mapping))
    return;
  if (!WEIR__PLANTED(keeps_fence))
    weir__mapping_retire(pages, mapping, 0);
  *(mapping->older ? &mapping->older->newer : &pages->aliases.oldest) = mapping->newer;
  *(mapping->newer ? &mapping->newer->older : &pages->aliases.newest) = mapping->older;
  pages->aliases.count--;
}

/* ---- Mappings ---- */

static void attach(weir__mapping *mapping) {
  weir__page *page = mapping->page;
  set_slots(mapping->reservation, mapping->address, page->bytes, mapping);
  mapping->next = page->mappings;
  page->mappings = mapping;
}

static size_t slots_of(const weir__mapping *mapping) {
  return (size_t)(mapping->page->bytes / mapping->reservation->slot);
}

static void disown(weir__mapping *mapping) {
  if (!weir__is_asleep(mapping))
    mapping->reservation->owned -= slots_of(mapping);
  mapping->page->owner = NULL;
}

/* Makes a mapping of a page, which is attached and accessible, its owner; the old one becomes an alias. */
static void belong(weir__pages *pages, weir__mapping *mapping) {
  weir__page *page = mapping->page;
  weir__mapping *old = page->owner;
  if (!WEIR__PLANTED(stays_alias))
    alias_remove(pages, mapping);
  page->home = old;
  if (old) {
    disown(old);
    if (!WEIR__PLANTED(two_owners))
      alias_add(pages, old);
  }
  page->owner = mapping;
  mapping->state = WEIR__MAPPING_OWNER;
  mapping->reservation->owned += slots_of(mapping);
}

/* Forgets a mapping that the driver has none of any more, and the page with its last mapping. */
static void detach(weir__pages *pages, weir__mapping *mapping) {
  weir__page *page = mapping->page;
  weir__mapping **at = &page->mappings;
  alias_remove(pages, mapping);
  set_slots(mapping->reservation, mapping->address, page->bytes, NULL);
  while (*at != mapping)
    at = &(*at)->next;
  *at = mapping->next;
  if (page->owner == mapping)
    disown(mapping);
  if (page->home == mapping && !WEIR__PLANTED(keeps_home))
    page->home = NULL;
  weir__slab_free(&pages->mappings, mapping, sizeof *mapping);
  if (!page->mappings)
    page_delete(pages, page);
}

static bool unmap(weir__pages *pages, weir__mapping *mapping) {
  weir_driver *driver = pages->driver;
  if (!weir__pages_ok(pages, driver->MemUnmap(driver, mapping->address, mapping->page->bytes), "cuMemUnmap"))
    return false;
  detach(pages, mapping);
  return true;
}

/* ---- Reservations ---- */

weir_cu_result weir__reservation_open(weir__pages *pages, weir__reservation *reservation, uint64_t bytes,
                                      uint64_t slot) {
  weir_driver *driver = pages->driver;
  weir_cu_deviceptr base;
  weir_cu_result r = driver->MemAddressReserve(driver, &base, bytes, 0, 0, 0);
  if (r)
    return r;
  *reservation = (weir__reservation){.base = base, .bytes = bytes, .slot = slot};
  WEIR__LIST_ADD(pages->reservations, reservation);
  return WEIR_CU_SUCCESS;
}

static void forget(weir__pages *pages, weir__reservation *reservation) {
  WEIR__LIST_REMOVE(pages->reservations, reservation);
  free(reservation->slots);
  reservation->slots = NULL;
  reservation->room = 0;
}

weir_cu_result weir__reservation_close(weir__pages *pages, weir__reservation *reservation) {
  weir_driver *driver = pages->driver;
  if (!weir__pages_clear(pages, reservation, reservation->base, reservation->room * reservation->slot))
    return weir__pages_failure(pages);
  weir_cu_result r = driver->MemAddressFree(driver, reservation->base, reservation->bytes);
  if (!r)
    forget(pages, reservation);
  return r;
}

void weir__reservation_end(weir__pages *pages, weir__reservation *reservation) {
  weir_driver *driver = pages->driver;
  for (size_t i = 0; i < reservation->room; i++)
    if (reservation->slots[i]) {
      weir__mapping *mapping = reservation->slots[i];
      bool is_mapped = !weir__is_asleep(mapping) || mapping->page->stays_mapped;
      if (is_mapped && driver->MemUnmap(driver, mapping->address, mapping->page->bytes))
        mapping->page->handle = 0; /* it is still mapped: the handle is leaked with it */
      detach(pages, mapping);
    }
  driver->MemAddressFree(driver, reservation->base, reservation->bytes);
  forget(pages, reservation);
}

/* ---- Access ---- */

/* The devices that may access pages: this one and its peers. Returns their number. */
static size_t list_access(const weir__pages *pages, weir_cu_mem_access access[64]) {
  size_t count = 0;
  for (int i = 0; i < 64; i++)
    if (i == pages->device || pages->peers >> i & 1)
      access[count++] =
          (weir_cu_mem_access){.location = {WEIR_CU_LOCATION_DEVICE, i}, .flags = WEIR_CU_ACCESS_READWRITE};
  return count;
}

weir_cu_result weir__pages_share(weir__pages *pages, int device) {
  weir_driver *driver = pages->driver;
  weir_cu_mem_access access = {.location = {WEIR_CU_LOCATION_DEVICE, device}, .flags = WEIR_CU_ACCESS_READWRITE};
  for (const weir__reservation *reservation = pages->reservations; reservation; reservation = reservation->next)
    for (size_t i = 0; i < reservation->room; i++) {
      const weir__mapping *m = reservation->slots[i];
      if (!m || m->state == WEIR__MAPPING_STUCK || weir__is_asleep(m) || slot_of(reservation, m->address) != i)
        continue;
      weir_cu_result r = driver->MemSetAccess(driver, m->address, m->page->bytes, &access, 1);
      if (r)
        return r;
    }
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__page_export(weir__pages *pages, weir__page *page, int *file) {
  static _Atomic uint32_t exports;
  int made;
  if (!page->file) {
    weir_cu_result r =
        pages->driver->MemExportToShareableHandle(pages->driver, &made, page->handle, WEIR_CU_HANDLE_POSIX_FD, 0);
    if (r)
      return r;
    page->file = made + 1;
    page->pins |= WEIR__PIN_EXPORTED;
    page->export_number = atomic_fetch_add_explicit(&exports, 1, memory_order_relaxed) + 1;
  }
  *file = page->file - 1;
  return WEIR_CU_SUCCESS;
}

void weir__page_withdraw(weir__page *page) {
  if (page->file)
    close(page->file - 1);
  page->file = 0;
  page->pins &= ~(unsigned)WEIR__PIN_EXPORTED;
}

/* ---- The transaction ---- */

static bool makes_page(const weir__page_change *c) {
  return c->action == WEIR__PAGE_MAKE || c->action == WEIR__PAGE_IMPORT;
}
static bool makes_mapping(const weir__page_change *c) { return makes_page(c) || c->action == WEIR__PAGE_MOVE; }

/* Host memory for all that is new. A new mapping is stuck until it is accessible. */
static bool prepare(weir__pages *pages, weir__page_change *changes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    weir__page_change *c = &changes[i];
    if (!makes_mapping(c))
      continue;
    c->mapping = NULL;
    if (makes_page(c))
      c->page = NULL;
  }
  for (size_t i = 0; i < count; i++) {
    weir__page_change *c = &changes[i];
    if (!makes_mapping(c))
      continue;
    if (!make_room(c->reservation, c->address + c->bytes))
      return false;
    if (makes_page(c)) {
      c->page = weir__slab_alloc(&pages->pages, sizeof *c->page);
      if (!c->page)
        return false;
      *c->page = (weir__page){.bytes = c->bytes, .handle = WEIR__PLANTED(owns_import) ? c->handle : 0};
    }
    c->mapping = weir__slab_alloc(&pages->mappings, sizeof *c->mapping);
    if (!c->mapping)
      return false;
    *c->mapping = (weir__mapping){
        .page = c->page, .reservation = c->reservation, .address = c->address, .state = WEIR__MAPPING_STUCK};
  }
  return true;
}

/* The end of the run of new mappings that begins at change `i` and has no gap. */
static size_t run_end(const weir__page_change *changes, size_t count, size_t i) {
  size_t end = i + 1;
  while (end < count && makes_mapping(&changes[end]) && changes[end].reservation == changes[i].reservation &&
         changes[end].address == changes[end - 1].address + changes[end - 1].bytes)
    end++;
  return end;
}

static uint64_t run_bytes(const weir__page_change *changes, size_t i, size_t end) {
  return changes[end - 1].address + changes[end - 1].bytes - changes[i].address;
}

static bool create(weir__pages *pages, weir__page_change *changes, size_t count) {
  weir_driver *driver = pages->driver;
  weir__release_orphans(pages);
  for (size_t i = 0; i < count; i++)
    if (changes[i].action == WEIR__PAGE_MAKE &&
        !weir__pages_ok(pages, driver->MemCreate(driver, &changes[i].page->handle, changes[i].bytes, &pages->prop, 0),
                        "cuMemCreate"))
      return false;
  return true;
}

/* Maps the new mappings; *mapped becomes the number of changes that are done. */
static bool map(weir__pages *pages, weir__page_change *changes, size_t count, size_t *mapped) {
  weir_driver *driver = pages->driver;
  weir_cu_mem_access access[64];
  size_t accesses = list_access(pages, access);
  for (; *mapped < count; ++*mapped) {
    const weir__page_change *c = &changes[*mapped];
    weir_cu_mem_handle handle = c->action == WEIR__PAGE_IMPORT ? c->handle : makes_mapping(c) ? c->page->handle : 0;
    if (makes_mapping(c) &&
        !weir__pages_ok(pages, driver->MemMap(driver, c->address, c->bytes, 0, handle, 0), "cuMemMap"))
      return false;
  }
  for (size_t i = 0, end; i < count; i = end) {
    end = i + 1;
    if (!makes_mapping(&changes[i]))
      continue;
    end = run_end(changes, count, i);
    if (!WEIR__PLANTED(no_access) &&
        !weir__pages_ok(pages,
                        driver->MemSetAccess(driver, changes[i].address, run_bytes(changes, i, end), access, accesses),
                        "cuMemSetAccess"))
      return false;
  }
  return true;
}

/* Undoes everything. A mapping that cannot be unmapped stays attached to its page, stuck. */
static void undo(weir__pages *pages, weir__page_change *changes, size_t count, size_t mapped) {
  weir_driver *driver = pages->driver;
  for (size_t i = 0, end; i < mapped; i = end) {
    end = i + 1;
    if (!makes_mapping(&changes[i]))
      continue;
    end = run_end(changes, mapped, i);
    if (WEIR__PLANTED(skips_undo) || !driver->MemUnmap(driver, changes[i].address, run_bytes(changes, i, end)))
      continue;
    for (size_t k = i; k < end; k++) {
      if (WEIR__PLANTED(forgets_stuck))
        continue;
      attach(changes[k].mapping);
      changes[k].mapping = NULL;
      changes[k].page = NULL;
    }
  }
  for (size_t i = count; i-- > 0;) {
    weir__page_change *c = &changes[i];
    if (!makes_mapping(c))
      continue;
    if (c->mapping)
      weir__slab_free(&pages->mappings, c->mapping, sizeof *c->mapping);
    if (makes_page(c) && c->page)
      page_delete(pages, c->page);
  }
}

/* Releases the pages that belong to a range: their other mappings go first, which nothing relies on. */
static bool release(weir__pages *pages, const weir__page_change *c) {
  weir_driver *driver = pages->driver;
  uint64_t end = c->address + c->bytes;
  for (uint64_t at = c->address; at < end; at = weir__mapping_end(weir__mapping_at(c->reservation, at)))
    for (weir__mapping *m = weir__mapping_at(c->reservation, at)->page->mappings, *next; m; m = next) {
      next = m->next;
      if (!weir__is_owner(m) && !WEIR__PLANTED(leaves_aliases) && !unmap(pages, m))
        return false;
    }
  if (!weir__pages_ok(pages, driver->MemUnmap(driver, c->address, c->bytes), "cuMemUnmap"))
    return false;
  for (uint64_t at = c->address, next; at < end; at = next) {
    weir__mapping *mapping = weir__mapping_at(c->reservation, at);
    next = weir__mapping_end(mapping);
    detach(pages, mapping);
  }
  return true;
}

/* ---- Sleep and wake ---- */

/* The pages that belong to the range of a change, in order: for (m = first_of(c); m; m = next_of(c, m)). */
static weir__mapping *first_of(const weir__page_change *c) { return weir__mapping_at(c->reservation, c->address); }
static weir__mapping *next_of(const weir__page_change *c, const weir__mapping *m) {
  uint64_t end = weir__mapping_end(m);
  return end < c->address + c->bytes ? weir__mapping_at(c->reservation, end) : NULL;
}

static void fall_asleep(weir__mapping *m) {
  m->reservation->owned -= slots_of(m);
  m->state = WEIR__MAPPING_ASLEEP;
}

static void wake_up(weir__mapping *m) {
  m->reservation->owned += slots_of(m);
  m->state = WEIR__MAPPING_OWNER;
  m->page->stays_mapped = false;
}

/* Makes a range of pages that are asleep and have memory accessible again. */
static bool map_asleep(weir__pages *pages, const weir__page_change *c) {
  weir_driver *driver = pages->driver;
  weir_cu_mem_access access[64];
  size_t accesses = list_access(pages, access);
  for (weir__mapping *m = first_of(c); m; m = next_of(c, m)) {
    if (!m->page->stays_mapped &&
        !weir__pages_ok(pages, driver->MemMap(driver, m->address, m->page->bytes, 0, m->page->handle, 0), "cuMemMap"))
      return false;
    m->page->stays_mapped = true;
  }
  return WEIR__PLANTED(wakes_without_access) ||
         weir__pages_ok(pages, driver->MemSetAccess(driver, c->address, c->bytes, access, accesses), "cuMemSetAccess");
}

/* The reverse, also after a part of it; memory that cannot be unmapped stays until the pages wake. */
static void unmap_asleep(weir__pages *pages, const weir__page_change *c) {
  weir_driver *driver = pages->driver;
  for (weir__mapping *m = first_of(c); m; m = next_of(c, m)) {
    if (!m->page->handle)
      continue;
    if (m->page->stays_mapped &&
        (WEIR__PLANTED(skips_undo_of_wake) || driver->MemUnmap(driver, m->address, m->page->bytes)))
      continue;
    m->page->stays_mapped = false;
    release_handle(pages, m->page->handle);
    m->page->handle = 0;
  }
}

static bool unmap_others(weir__pages *pages, const weir__page *page) {
  for (weir__mapping *m = page->mappings, *next; m; m = next) {
    next = m->next;
    if (m != page->owner && !WEIR__PLANTED(sleeps_with_aliases) && !unmap(pages, m))
      return false;
  }
  return true;
}

/* Unmaps everything before it releases anything: until then, all of it can be undone without a loss. */
static bool sleep_all(weir__pages *pages, const weir__page_change *changes, size_t count) {
  weir_driver *driver = pages->driver;
  size_t done = 0;
  for (size_t i = 0; i < count; i++)
    for (const weir__mapping *m = first_of(&changes[i]); m; m = next_of(&changes[i], m))
      if (!unmap_others(pages, m->page))
        return false;
  for (; done < count; done++) {
    const weir__page_change *c = &changes[done];
    if (!weir__pages_ok(pages, driver->MemUnmap(driver, c->address, c->bytes), "cuMemUnmap"))
      break;
    for (weir__mapping *m = first_of(c); m; m = next_of(c, m))
      fall_asleep(m);
  }
  if (done == count) {
    for (size_t i = 0; i < count; i++)
      for (weir__mapping *m = first_of(&changes[i]); m; m = next_of(&changes[i], m)) {
        if (!WEIR__PLANTED(sleeps_with_memory))
          release_handle(pages, m->page->handle);
        m->page->handle = 0;
      }
    return true;
  }
  for (size_t i = 0; i < done; i++)
    if (!WEIR__PLANTED(leaves_half_asleep) && map_asleep(pages, &changes[i]))
      for (weir__mapping *m = first_of(&changes[i]); m; m = next_of(&changes[i], m))
        wake_up(m);
  return false;
}

static bool create_asleep(weir__pages *pages, const weir__page_change *c) {
  weir_driver *driver = pages->driver;
  for (weir__mapping *m = first_of(c); m; m = next_of(c, m))
    if (!m->page->handle &&
        !weir__pages_ok(pages, driver->MemCreate(driver, &m->page->handle, m->page->bytes, &pages->prop, 0),
                        "cuMemCreate"))
      return false;
  return true;
}

/* All memory is made before any of it is mapped, so that a lack of it costs little. */
static bool wake_all(weir__pages *pages, const weir__page_change *changes, size_t count) {
  bool can = true;
  weir__release_orphans(pages);
  for (size_t i = 0; can && i < count; i++)
    can = create_asleep(pages, &changes[i]);
  for (size_t i = 0; can && i < count; i++)
    can = map_asleep(pages, &changes[i]);
  for (size_t i = 0; i < count; i++) {
    if (!can)
      unmap_asleep(pages, &changes[i]);
    for (weir__mapping *m = can ? first_of(&changes[i]) : NULL; m; m = next_of(&changes[i], m))
      wake_up(m);
  }
  return can;
}

static bool forget_asleep(weir__pages *pages, const weir__page_change *c) {
  weir_driver *driver = pages->driver;
  for (weir__mapping *m = first_of(c), *next; m; m = next) {
    next = next_of(c, m);
    if (m->page->stays_mapped &&
        !weir__pages_ok(pages, driver->MemUnmap(driver, m->address, m->page->bytes), "cuMemUnmap"))
      return false;
    detach(pages, m);
  }
  return true;
}

bool weir__pages_change(weir__pages *pages, weir__page_change *changes, size_t count) {
  size_t mapped = 0;
  bool is_new = false;
  if (count && changes[0].action == WEIR__PAGE_SLEEP)
    return sleep_all(pages, changes, count);
  if (count && changes[0].action == WEIR__PAGE_WAKE)
    return wake_all(pages, changes, count);
  for (size_t i = 0; i < count; i++)
    is_new |= makes_mapping(&changes[i]);
  if (is_new &&
      (!prepare(pages, changes, count) || !create(pages, changes, count) || !map(pages, changes, count, &mapped))) {
    undo(pages, changes, count, mapped);
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    weir__page_change *c = &changes[i];
    if (makes_mapping(c))
      attach(c->mapping);
    if (makes_mapping(c) || c->action == WEIR__PAGE_RETURN)
      belong(pages, c->mapping);
    else if (c->action == WEIR__PAGE_RELEASE  ? !release(pages, c)
             : c->action == WEIR__PAGE_FORGET ? !forget_asleep(pages, c)
                                              : !unmap(pages, c->mapping))
      return false;
  }
  return true;
}

bool weir__pages_clear(weir__pages *pages, weir__reservation *reservation, uint64_t address, uint64_t bytes) {
  for (uint64_t at = address; at < address + bytes; at += reservation->slot) {
    weir__mapping *mapping = weir__mapping_at(reservation, at);
    if (mapping && !weir__is_owner(mapping) && !weir__is_asleep(mapping) && !WEIR__PLANTED(keeps_stuck) &&
        !unmap(pages, mapping))
      return false;
  }
  return true;
}
