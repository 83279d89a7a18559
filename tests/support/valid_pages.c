/*
 * The walker of a set of pages.
 */
#include "alloc/memory/pages.h"
#include "base/base.h"
#include "support/valid.h"

typedef struct walk {
  const weir__pages *pages;
  bool is_valid;
  size_t aliases, retiring;
} walk;

#define WRONG(w, format, ...)                                                                                          \
  (weir__log(WEIR_LOG_ERROR, "the pages of device %d are not valid: " format, (w)->pages->device, __VA_ARGS__),        \
   (void)((w)->is_valid = false))

/* Its page lists a mapping, and has an owner unless all of its mappings are stuck. */
static void check_mapping(walk *w, const weir__mapping *m) {
  unsigned long long at = m->address;
  const weir__page *page = m->page;
  bool is_listed = false, has_owner = false, has_home = false, is_usable = false;
  for (const weir__mapping *other = page->mappings; other; other = other->next) {
    is_listed |= other == m;
    has_owner |= other == page->owner;
    has_home |= other == page->home;
    is_usable |= other->state != WEIR__MAPPING_STUCK;
    if (other->page != page)
      WRONG(w, "the page at %llx lists a mapping of another page", at);
  }
  if (!is_listed)
    WRONG(w, "the page at %llx does not list this mapping", at);
  bool is_received = m->reservation->pins & WEIR__PIN_RECEIVED; /* the driver keeps its handle */
  bool is_asleep = weir__is_asleep(m);
  if (is_asleep ? page->mappings != m || m->next || (page->stays_mapped && !page->handle) : page->stays_mapped)
    WRONG(w, "the page at %llx is asleep and has other mappings, or none and is awake", at);
  if ((!page->handle != is_received && !is_asleep) || !page->bytes || page->bytes % m->reservation->slot)
    WRONG(w, "the page at %llx has handle %llx and %llu bytes", at, (unsigned long long)page->handle,
          (unsigned long long)page->bytes);
  if (page->home && (!has_home || !weir__is_alias(page->home)))
    WRONG(w, "the page at %llx has a home that is not an alias of it", at);
  if (page->owner ? !has_owner : is_usable)
    WRONG(w, "the page at %llx belongs to no address", at);
  if ((weir__is_owner(m) || is_asleep) != (page->owner == m))
    WRONG(w, "the mapping at %llx is in state %d, which its page contradicts", at, m->state);
  if ((m->state == WEIR__MAPPING_RETIRING) != (m->fence != 0))
    WRONG(w, "the mapping at %llx is in state %d, and waits for fence %d", at, m->state, m->fence);
  if (!(page->pins & WEIR__PIN_EXPORTED) != !page->file)
    WRONG(w, "the page at %llx has the pins %x and the file %d", at, page->pins, page->file - 1);
  w->aliases += weir__is_alias(m);
  w->retiring += m->state == WEIR__MAPPING_RETIRING;
}

static void check_slots(walk *w, const weir__reservation *reservation) {
  size_t owned = 0;
  for (size_t i = 0; i < reservation->room; i++) {
    const weir__mapping *m = reservation->slots[i];
    unsigned long long at = reservation->base + i * reservation->slot;
    if (!m)
      continue;
    owned += weir__is_owner(m);
    if (m->reservation != reservation || at - m->address >= m->page->bytes || m->address < reservation->base)
      WRONG(w, "slot %llx has a mapping of another address", at);
    else if (m->address == at) {
      for (uint64_t a = at; a < weir__mapping_end(m); a += reservation->slot)
        if (weir__mapping_at(reservation, a) != m)
          WRONG(w, "the mapping at %llx is not in slot %llx", at, (unsigned long long)a);
      check_mapping(w, m);
    } else if (reservation->slots[i - 1] != m)
      WRONG(w, "slot %llx has a mapping that the slot before does not have", at);
  }
  if (owned != reservation->owned)
    WRONG(w, "%zu slots of the reservation at %llx have a page that belongs there, but %zu are counted", owned,
          (unsigned long long)reservation->base, reservation->owned);
}

static void check_aliases(walk *w) {
  const weir__mapping *before = NULL;
  size_t listed = 0, waiting[WEIR__ALIAS_FENCES + 1] = {0};
  const size_t count = w->pages->aliases.count, retiring = w->pages->aliases.retiring;
  for (const weir__mapping *m = w->pages->aliases.oldest; m && listed <= count; before = m, m = m->newer, listed++) {
    if (m->older != before || !weir__is_alias(m) || weir__mapping_at(m->reservation, m->address) != m)
      WRONG(w, "the alias at %llx is not linked in the list of aliases", (unsigned long long)m->address);
    if (m->fence > WEIR__ALIAS_FENCES)
      WRONG(w, "the alias at %llx waits for fence %d", (unsigned long long)m->address, m->fence);
    else if (m->fence)
      waiting[m->fence]++;
  }
  if (before != w->pages->aliases.newest)
    WRONG(w, "%s", "the list of aliases does not end with the newest");
  if (listed != count || w->aliases != count)
    WRONG(w, "%zu aliases are counted, but %zu are listed and %zu are in slots", count, listed, w->aliases);
  if (w->retiring != retiring)
    WRONG(w, "%zu aliases are counted as retiring, but %zu are", retiring, w->retiring);
  for (int i = 1; i <= WEIR__ALIAS_FENCES; i++)
    if (waiting[i] != w->pages->aliases.waiting[i])
      WRONG(w, "%zu aliases wait for fence %d, but %zu are counted", waiting[i], i, w->pages->aliases.waiting[i]);
}

bool weir__pages_is_valid(const weir__pages *pages) {
  walk w = {.pages = pages, .is_valid = true};
  const weir__reservation *before = NULL;
  for (const weir__reservation *r = pages->reservations; r; before = r, r = r->next) {
    if (r->previous != before)
      WRONG(&w, "the reservation at %llx is not linked in its list", (unsigned long long)r->base);
    check_slots(&w, r);
  }
  if (w.is_valid)
    check_aliases(&w);
  return w.is_valid;
}
