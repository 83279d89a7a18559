/*
 * All states of pages and mappings: an explorer on the software device in stepped time.
 *
 * It enumerates sequences of operations breadth first, up to a depth, and visits each state once. From each state it
 * tries every operation, without a failure, with each of the operation's driver calls failing, and with a failure that
 * cannot be undone. Work that is pending, the order in which streams run it, and the fences that have passed are part
 * of the state. After every operation these must hold:
 *
 *   - the walker of pages finds nothing;
 *   - an operation without a failure succeeds, and one that fails changes nothing but what its contract says;
 *   - every byte of a page can be read where the page belongs and through its aliases, and is what was written last;
 *   - work runs without a fault: nothing is unmapped while work may use it;
 *   - the device holds the memory of the pages that are known, and no more; at the end it holds none.
 *
 * The module is compiled into the test, so that faults can be planted in it: each of them must be found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/length.h"
#include "support/soft.h"

enum planted {
  nothing,
  no_access,            /* none -> owner: made, but not accessible */
  owns_import,          /* none -> owner: imported, and its handle, which is the caller's, is released with it */
  two_owners,           /* owner -> alias: the page moves on, but the old mapping stays its owner too */
  stays_alias,          /* alias -> owner: it stays in the list of aliases */
  retires_in_use,       /* alias -> retiring: work that was not waited for uses it */
  keeps_fence,          /* retiring -> owner: the page returns, but its mapping still waits for the fence */
  ignores_fences,       /* retiring -> none: too early */
  keeps_home,           /* alias -> none: its page still has it as where it came from */
  leaves_aliases,       /* owner -> none: its other mappings stay */
  keeps_handle,         /* page -> none: its memory is not released */
  skips_undo,           /* a failed transaction leaves its mappings behind */
  forgets_stuck,        /* ... and what could not be undone is used again */
  keeps_stuck,          /* stuck -> none: it stays mapped */
  sleeps_with_aliases,  /* owner -> asleep: its other mappings stay */
  sleeps_with_memory,   /* owner -> asleep: its memory is not released */
  leaves_half_asleep,   /* a failed sleep leaves pages asleep */
  wakes_without_access, /* asleep -> owner: not accessible */
  skips_undo_of_wake,   /* a failed wake leaves its mappings and its memory behind */
  plants
};
static enum planted planted;
#define WEIR__PLANTED(fault) (planted == (fault))
#include "alloc/memory/pages.c"  /* NOLINT(bugprone-suspicious-include): with the faults planted */
#include "alloc/memory/retire.c" /* NOLINT(bugprone-suspicious-include) */
#include "support/valid.h"

#define SLOT ((uint64_t)2 << 20)
enum { RESERVATIONS = 2, SLOTS = 3, MAX_PAGES = 3, MAX_PENDING = 2, MAX_OPS = 96, MAX_DEPTH = 10 };

/* ---- Operations ---- */

typedef enum kind {
  MAKE,
  MAKE_TWO,
  MAKE_LARGE,
  IMPORT,
  MOVE,
  MOVE_AND_MAKE,
  RETURN,
  RELEASE,
  CLEAR,
  SLEEP,
  SLEEP_TWO,
  WAKE,
  WAKE_TWO,
  FORGET,
  RETIRE,
  POLL,
  WORK,
  STEP
} kind;
static const char *const kind_names[] = {"make",     "make_two", "make_large", "import", "move",      "move_and_make",
                                         "return",   "release",  "clear",      "sleep",  "sleep_two", "wake",
                                         "wake_two", "forget",   "retire",     "poll",   "work",      "step"};

/* `from` and `to` are slots of all reservations, or streams. Call number `fault` of the driver fails, or, if that is
 * UNDO_FAILS, cuMemSetAccess and then cuMemUnmap, or in a sleep the reverse; that call alone with UNMAP_FAILS, and the
 * second one with UNMAP_2_FAILS: the numbers do not count it. */
typedef struct op {
  uint8_t kind, from, to, fault;
} op;
enum { NO_FAULT = 0, UNMAP_FAILS = 253, UNMAP_2_FAILS = 254, UNDO_FAILS = 255 };

/* ---- The world: what is tried, and what should be ---- */

typedef struct write_work {
  uint64_t address;
  uint8_t value;
} write_work;

static struct world {
  weir_cu_stream streams[RESERVATIONS]; /* of the reservations */
  weir__pages pages;
  weir__reservation reservations[RESERVATIONS];
  weir__retirement retirement;
  struct {
    weir__page *page; /* NULL if the entry is not in use */
    uint8_t value;    /* of its first byte */
  } known[16];
  write_work pending[RESERVATIONS][MAX_PENDING]; /* and markers of the events among them, with address 0 */
  int pending_count[RESERVATIONS];
  uint8_t next_value;
  bool is_broken;
  char why[160];
} w;

static weir_driver *faults; /* wraps d */
static bool prints;
static bool imports;            /* the second reservation is for imported pages, and the first one for others */
static int slots_of_second = 1; /* reservation: fewer than SLOTS save time */
static unsigned long runs, seen_pairs[2][2][5];

static void broken(const char *format, ...) WEIR_PRINTF(1, 2);
static void broken(const char *format, ...) {
  if (w.is_broken)
    return;
  va_list args;
  va_start(args, format);
  vsnprintf(w.why, sizeof w.why, format, args);
  va_end(args);
  w.is_broken = true;
}

static weir__reservation *reservation_of(int slot) { return &w.reservations[slot / SLOTS]; }
static uint64_t address_of(int slot) { return reservation_of(slot)->base + (uint64_t)(slot % SLOTS) * SLOT; }
static weir__mapping *mapping_of(int slot) { return weir__mapping_at(reservation_of(slot), address_of(slot)); }
static bool begins(int slot) { return mapping_of(slot) && mapping_of(slot)->address == address_of(slot); }
static bool is_clean(int slot, int slots) {
  for (int i = 0; i < slots; i++)
    if (slot % SLOTS + i >= (slot < SLOTS ? SLOTS : slots_of_second) || mapping_of(slot + i))
      return false;
  return true;
}
static bool is_idle(int stream) { return !w.pending_count[stream]; }
static int stream_of(const weir__reservation *reservation) { return (int)(reservation - w.reservations); }

/* A page may be used by another stream once its own has passed the last use. */
static bool may_pass(const weir__page *page, const weir__reservation *to) {
  return weir__pins_permit(weir__page_pins(&w.pages, page), WEIR__PAGE_TO_MOVE) == WEIR__PAGE_MAY &&
         (page->owner->reservation == to || is_idle(stream_of(page->owner->reservation)));
}

static int page_count(void) {
  int count = 0;
  for (int slot = 0; slot < RESERVATIONS * SLOTS; slot++)
    count += begins(slot) && weir__is_owner(mapping_of(slot));
  return count;
}

/* The operations that the module's contract permits now. */
static int list_ops(op ops[MAX_OPS]) {
  int count = 0, made = page_count();
#define ADD(...) (ops[count++] = (op){__VA_ARGS__})
  for (int to = 0; to < RESERVATIONS * SLOTS; to++) {
    bool is_received = reservation_of(to)->pins & WEIR__PIN_RECEIVED;
    if (made < MAX_PAGES && is_clean(to, 1))
      ADD(is_received ? IMPORT : MAKE, 0, (uint8_t)to, 0);
    if (made < MAX_PAGES - 1 && !is_received && is_clean(to, 2))
      ADD(MAKE_TWO, 0, (uint8_t)to, 0);
    if (made < MAX_PAGES && !is_received && is_clean(to, 2))
      ADD(MAKE_LARGE, 0, (uint8_t)to, 0);
    weir__mapping *m = begins(to) ? mapping_of(to) : NULL;
    if (m && weir__is_alias(m) && may_pass(m->page, m->reservation))
      ADD(RETURN, 0, (uint8_t)to, 0);
    if (m && weir__is_owner(m) && is_idle(stream_of(m->reservation)))
      ADD(RELEASE, 0, (uint8_t)to, 0);
    if (is_received)
      m = NULL;
    bool can_sleep = is_idle(0) && is_idle(1);
    int second = m ? to + (int)(m->page->bytes / SLOT) : 0;
    bool has_second = m && second % SLOTS && begins(second);
    if (m && can_sleep && weir__is_owner(m))
      ADD(SLEEP, 0, (uint8_t)to, 0);
    if (m && can_sleep && weir__is_owner(m) && has_second && weir__is_owner(mapping_of(second)))
      ADD(SLEEP_TWO, 0, (uint8_t)to, 0);
    if (m && weir__is_asleep(m)) {
      ADD(WAKE, 0, (uint8_t)to, 0);
      ADD(FORGET, 0, (uint8_t)to, 0);
      if (has_second && weir__is_asleep(mapping_of(second)))
        ADD(WAKE_TWO, 0, (uint8_t)to, 0);
    }
    m = begins(to) ? mapping_of(to) : NULL;
    if (m && weir__is_owner(m) && w.pending_count[stream_of(m->reservation)] < MAX_PENDING)
      ADD(WORK, 0, (uint8_t)to, 0);
    if (m && m->state == WEIR__MAPPING_STUCK)
      ADD(CLEAR, 0, (uint8_t)to, 0);
    for (int from = 0; from < RESERVATIONS * SLOTS && !is_received; from++) {
      const weir__mapping *owner = begins(from) ? mapping_of(from) : NULL;
      if (!owner || !weir__is_owner(owner) || !may_pass(owner->page, reservation_of(to)) ||
          !is_clean(to, (int)(owner->page->bytes / SLOT)))
        continue;
      ADD(MOVE, (uint8_t)from, (uint8_t)to, 0);
      if (made < MAX_PAGES && owner->page->bytes == SLOT && is_clean(to, 2))
        ADD(MOVE_AND_MAKE, (uint8_t)from, (uint8_t)to, 0);
    }
  }
  for (int s = 0; s < RESERVATIONS; s++) {
    if (w.pages.aliases.count > w.pages.aliases.retiring && w.pending_count[s] < MAX_PENDING)
      ADD(RETIRE, 0, (uint8_t)s, 0);
    if (w.pending_count[s])
      ADD(STEP, 0, (uint8_t)s, 0);
  }
  if (w.pages.aliases.retiring)
    ADD(POLL, 0, 0, 0);
#undef ADD
  assert_true(count <= MAX_OPS);
  return count;
}

/* ---- Running ---- */

static bool has_passed(void *context, weir_cu_stream stream) {
  (void)context;
  return is_idle(stream == w.streams[1]);
}

static void know(weir__page *page) {
  for (size_t i = 0; i < WEIR_COUNT_OF(w.known); i++)
    if (!w.known[i].page) {
      w.known[i].page = page;
      w.known[i].value = 0; /* new memory of the software device is zero */
      return;
    }
}

static int known_index(const weir__page *page) {
  for (int i = 0; i < (int)WEIR_COUNT_OF(w.known); i++)
    if (w.known[i].page == page)
      return i;
  return -1;
}

static void forget_unmapped(void) {
  for (size_t i = 0; i < WEIR_COUNT_OF(w.known); i++) {
    bool is_mapped = false;
    for (int slot = 0; slot < RESERVATIONS * SLOTS; slot++)
      is_mapped |= mapping_of(slot) && mapping_of(slot)->page == w.known[i].page;
    if (!is_mapped)
      w.known[i].page = NULL;
  }
}

static bool change(weir__page_change *changes, size_t count) {
  bool done = weir__pages_change(&w.pages, changes, count);
  for (size_t i = 0; done && i < count; i++)
    if (changes[i].action == WEIR__PAGE_MAKE || changes[i].action == WEIR__PAGE_IMPORT)
      know(changes[i].page);
  return done;
}

static weir__page_change change_at(weir__page_action action, int slot, uint64_t bytes) {
  return (weir__page_change){action, reservation_of(slot), address_of(slot), bytes, .page = NULL};
}

/* The page that is mapped at an address: its index in w.known, or -1. */
static int known_at(uint64_t address) {
  for (int slot = 0; slot < RESERVATIONS * SLOTS; slot++)
    if (address_of(slot) == address)
      return mapping_of(slot) ? known_index(mapping_of(slot)->page) : -1;
  return -1;
}

static void step(int s) {
  write_work work = w.pending[s][0];
  if (weir_soft_step(d, w.streams[s], 1, NULL))
    broken("stream %d cannot be stepped: %s", s, weir_last_error());
  w.pending_count[s]--;
  memmove(w.pending[s], w.pending[s] + 1, sizeof *w.pending[s] * (size_t)w.pending_count[s]);
  if (work.address)
    w.known[known_at(work.address)].value = work.value;
}

static bool run(op o) {
  int to = o.to;
  weir__mapping *m = mapping_of(to);
  weir__page_change changes[2];
  switch ((kind)o.kind) {
  case MAKE:
  case MAKE_LARGE:
    changes[0] = change_at(WEIR__PAGE_MAKE, to, o.kind == MAKE ? SLOT : 2 * SLOT);
    return change(changes, 1);
  case IMPORT: {
    changes[0] = change_at(WEIR__PAGE_IMPORT, to, SLOT);
    assert_cu(d->MemCreate(d, &changes[0].handle, SLOT, &w.pages.prop, 0));
    bool done = change(changes, 1);
    assert_cu(d->MemRelease(d, changes[0].handle));
    return done;
  }
  case MAKE_TWO:
    changes[0] = change_at(WEIR__PAGE_MAKE, to, SLOT);
    changes[1] = change_at(WEIR__PAGE_MAKE, to + 1, SLOT);
    return change(changes, 2);
  case MOVE:
  case MOVE_AND_MAKE:
    changes[0] = change_at(WEIR__PAGE_MOVE, to, mapping_of(o.from)->page->bytes);
    changes[0].page = mapping_of(o.from)->page;
    if (o.kind == MOVE_AND_MAKE)
      changes[1] = change_at(WEIR__PAGE_MAKE, to + 1, SLOT);
    return change(changes, o.kind == MOVE ? 1 : 2);
  case RETURN:
    changes[0] = (weir__page_change){.action = WEIR__PAGE_RETURN, .mapping = m};
    return change(changes, 1);
  case RELEASE:
    changes[0] = change_at(WEIR__PAGE_RELEASE, to, m->page->bytes);
    return change(changes, 1);
  case CLEAR:
    if (!weir__pages_clear(&w.pages, m->reservation, m->address, m->page->bytes))
      return false;
    if (mapping_of(to))
      broken("slot %d is mapped after a clear", to);
    return true;
  case SLEEP:
  case WAKE:
  case FORGET:
    changes[0] = change_at(o.kind == SLEEP  ? WEIR__PAGE_SLEEP
                           : o.kind == WAKE ? WEIR__PAGE_WAKE
                                            : WEIR__PAGE_FORGET,
                           to, m->page->bytes);
    return change(changes, 1);
  case SLEEP_TWO:
  case WAKE_TWO: {
    int second = to + (int)(m->page->bytes / SLOT);
    weir__page_action action = o.kind == SLEEP_TWO ? WEIR__PAGE_SLEEP : WEIR__PAGE_WAKE;
    changes[0] = change_at(action, to, m->page->bytes);
    changes[1] = change_at(action, second, mapping_of(second)->page->bytes);
    return change(changes, 2);
  }
  case RETIRE: {
    unsigned long pending = 0; /* with an event, if one was recorded */
    weir__aliases_retire(&w.pages, &w.retirement, w.streams[to], 0, has_passed, NULL);
    assert_ok(weir_soft_pending(d, w.streams[to], &pending));
    while (w.pending_count[to] < (int)pending)
      w.pending[to][w.pending_count[to]++] = (write_work){0};
    return true;
  }
  case POLL:
    weir__retired_unmap(&w.pages, &w.retirement);
    return !w.pages.failure;
  case WORK:
    w.pending[stream_of(m->reservation)][w.pending_count[stream_of(m->reservation)]++] =
        (write_work){m->address, ++w.next_value};
    return !d->MemsetD8Async(d, m->address, w.next_value, 1, w.streams[stream_of(m->reservation)]);
  case STEP:
    step(to);
    return true;
  }
  return false;
}

/* ---- Invariants ---- */

static uint64_t used_bytes(void) {
  uint64_t free_bytes = 0, total = 0;
  if (d->MemGetInfo(d, &free_bytes, &total))
    broken("%s", "the context is broken: work used memory that is not mapped");
  return total - free_bytes;
}

static void check(uint64_t baseline) {
  uint64_t bytes = 0;
  forget_unmapped();
  if (!weir__pages_is_valid(&w.pages))
    broken("%s", "the walker found damage");
  for (int s = 0; s < RESERVATIONS; s++)
    for (int i = 0; i < w.pending_count[s]; i++)
      if (w.pending[s][i].address && known_at(w.pending[s][i].address) < 0)
        broken("nothing is mapped any more at %llx, where work will write",
               (unsigned long long)w.pending[s][i].address);
  for (int slot = 0; slot < RESERVATIONS * SLOTS && !w.is_broken; slot++) {
    const weir__mapping *m = begins(slot) ? mapping_of(slot) : NULL;
    uint8_t value = 0;
    if (!m)
      continue;
    bool is_first = true; /* mapping of the page, so that it is counted once */
    for (int other = 0; other < slot; other++)
      is_first &= !begins(other) || mapping_of(other)->page != m->page;
    bytes += is_first && (!weir__is_asleep(m) || m->page->handle) ? m->page->bytes : 0;
    seen_pairs[m->page->owner != NULL][m->page->bytes > SLOT][m->state]++;
    int known = known_index(m->page);
    if (weir__is_asleep(m) && !m->page->handle && known >= 0)
      w.known[known].value = 0; /* of the memory that it will get */
    if (m->state == WEIR__MAPPING_STUCK || weir__is_asleep(m))
      continue;
    if (d->Memcpy(d, (weir_cu_deviceptr)(uintptr_t)&value, m->address, 1))
      broken("the memory of slot %d cannot be read", slot);
    else if (known < 0 || value != w.known[known].value)
      broken("slot %d has the value %d, expected %d", slot, value, known < 0 ? -1 : w.known[known].value);
  }
  uint64_t used = used_bytes() - baseline, orphans = w.pages.orphan_count;
  if (!w.is_broken && (used < bytes + orphans * SLOT || used > bytes + orphans * 2 * SLOT))
    broken("the device holds %llu bytes of %llu bytes of pages and %llu orphans", (unsigned long long)used,
           (unsigned long long)bytes, (unsigned long long)orphans);
}

/* ---- Transitions, as docs/inside/pages.md has them ---- */

enum { PAGE, MAPPING, OBJECTS, NONE = 0, STATES = 6, OUTCOMES = 2 };
static const char *const object_names[OBJECTS] = {"page", "mapping"};
static const char *const state_names[OBJECTS][STATES] = {{"none", "owned", "asleep", "left"},
                                                         {"none", "owner", "alias", "retiring", "stuck", "asleep"}};

/* The operations that lead from a state to another one: without a failed call, and with one. */
static uint32_t edges[OUTCOMES][OBJECTS][STATES][STATES];

static int state_of_page(const weir__page *page) { return !page->owner ? 3 : weir__is_asleep(page->owner) ? 2 : 1; }

typedef struct view {
  const weir__page *pages[RESERVATIONS * SLOTS]; /* by slot, with their states, and those of the mappings */
  int page_states[RESERVATIONS * SLOTS], mapping_states[RESERVATIONS * SLOTS];
} view;

static view look(void) {
  view v = {0};
  for (int slot = 0; slot < RESERVATIONS * SLOTS; slot++)
    if (mapping_of(slot)) {
      v.pages[slot] = mapping_of(slot)->page;
      v.page_states[slot] = state_of_page(v.pages[slot]);
      v.mapping_states[slot] = (int)mapping_of(slot)->state + 1;
    }
  return v;
}

static int page_state_in(const view *v, const weir__page *page) {
  for (int slot = 0; slot < RESERVATIONS * SLOTS; slot++)
    if (v->pages[slot] == page)
      return v->page_states[slot];
  return NONE;
}

static void note_edges(const view *from, const view *to, int kind, bool failed) {
  for (int slot = 0; slot < RESERVATIONS * SLOTS; slot++) {
    bool is_other = from->pages[slot] != to->pages[slot]; /* what was there went, and another one came */
    int was = from->mapping_states[slot], is = to->mapping_states[slot];
    if (was && is && is_other)
      edges[failed][MAPPING][was][NONE] |= 1u << kind, was = NONE;
    if (was != is)
      edges[failed][MAPPING][was][is] |= 1u << kind;
    const weir__page *pages[] = {from->pages[slot], to->pages[slot]};
    for (int i = 0; i < 2; i++) {
      int page_was = page_state_in(from, pages[i]), page_is = page_state_in(to, pages[i]);
      if (pages[i] && page_was != page_is)
        edges[failed][PAGE][page_was][page_is] |= 1u << kind;
    }
  }
}

static void write_edge(char *text, size_t size, int failed, int object, int was, int is) {
  int at = snprintf(text, size, "%-8s %-8s -> %-8s", object_names[object], state_names[object][was],
                    state_names[object][is]);
  const char *between = failed ? " when a call fails: " : " ";
  for (int kind = 0; kind <= STEP; kind++)
    if (edges[failed][object][was][is] >> kind & 1) {
      at += snprintf(text + at, size - (size_t)at, "%s%s", between, kind_names[kind]);
      between = ", ";
    }
}

/* ---- States ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

/* Whether the next poll passes the fence of a batch. */
static bool fence_is_passed(const weir__alias_batch *batch) {
  for (const weir__fence_queue *queue = w.retirement.fences.first; queue; queue = queue->next)
    for (const weir__fence *fence = queue->first; fence; fence = fence->next)
      if (fence->waiter == batch)
        return d->EventQuery(d, fence->event) == WEIR_CU_SUCCESS;
  return false;
}

/* Pages are numbered in the order of their first slot, so that states that differ in names only are one. */
static uint64_t state_hash(void) {
  const weir__page *pages[RESERVATIONS * SLOTS] = {0};
  uint64_t hash = 0;
  int count = 0;
#define NUMBER(p, n)                                                                                                   \
  for (n = 0; n < count && pages[n] != (p); n++)                                                                       \
    continue;
  for (int slot = 0; slot < RESERVATIONS * SLOTS; slot++) {
    const weir__mapping *m = mapping_of(slot);
    int n = 15;
    if (m) {
      NUMBER(m->page, n)
      if (n == count)
        pages[count++] = m->page;
    }
    hash = mix(hash, m ? (uint64_t)n | (uint64_t)m->state << 4 | (uint64_t)m->fence << 8 |
                             (uint64_t)(m->page->home == m) << 16 | (uint64_t)begins(slot) << 17 |
                             (uint64_t)(m->page->handle != 0) << 18 | (uint64_t)m->page->stays_mapped << 19
                       : 15);
  }
  for (const weir__mapping *m = w.pages.aliases.oldest; m; m = m->newer)
    hash = mix(hash, m->address - m->reservation->base + (uint64_t)stream_of(m->reservation) * SLOT / 2);
  for (int s = 0; s < RESERVATIONS; s++) {
    hash = mix(hash, 77);
    for (int i = 0; i < w.pending_count[s]; i++)
      hash = mix(hash, w.pending[s][i].address ? w.pending[s][i].address - w.reservations[s].base : 1);
  }
  for (int i = 0; i < WEIR__ALIAS_FENCES; i++)
    if (w.retirement.batches[i].is_used)
      hash = mix(hash, (uint64_t)i << 2 | (uint64_t)(w.retirement.batches[i].stream == w.streams[1]) << 1 |
                           (w.retirement.batches[i].has_passed || fence_is_passed(&w.retirement.batches[i])));
  return mix(hash, w.pages.orphan_count);
}

/* ---- A run: a path of operations from the empty state ---- */

static void begin_world(void) {
  weir_cu_stream streams[RESERVATIONS];
  memcpy(streams, w.streams, sizeof streams);
  w = (struct world){0};
  memcpy(w.streams, streams, sizeof streams);
  weir__pages_begin(&w.pages, faults, 0, false);
  for (int i = 0; i < RESERVATIONS; i++) {
    assert_cu(weir__reservation_open(&w.pages, &w.reservations[i], SLOTS * SLOT, SLOT));
    w.reservations[i].stream = w.streams[i];
    w.reservations[i].pins = i && imports ? WEIR__PIN_RECEIVED : 0;
  }
}

/* An event that a poll may return to the idle ones is queried no more, so that all of them can be destroyed. */
static void end_world(uint64_t baseline) {
  if (w.is_broken) { /* the work that is pending may fault: only host memory is released */
    for (int i = 0; i < RESERVATIONS; i++)
      free(w.reservations[i].slots);
    weir__slab_clear(&w.pages.pages);
    weir__slab_clear(&w.pages.mappings);
    free(w.pages.orphans);
    weir__retirement_end(&w.pages, &w.retirement);
    return;
  }
  weir_soft_step_all(d, NULL);
  weir__retirement_end(&w.pages, &w.retirement);
  for (int i = 0; i < RESERVATIONS; i++)
    weir__reservation_end(&w.pages, &w.reservations[i]);
  weir__pages_end(&w.pages);
  if (!w.is_broken && used_bytes() != baseline)
    broken("%llu bytes are left at the end", (unsigned long long)(used_bytes() - baseline));
}

/* Runs one operation with its fault, and checks. Returns whether its fault happened. */
static bool apply(op o, uint64_t baseline) {
  unsigned long before = 0, after = 0;
  uint64_t hash = state_hash();
  int pages = page_count();
  assert_ok(weir_fault_counts(faults, WEIR_CALL_COUNT, NULL, &before));
  if (o.fault == UNDO_FAILS) { /* that of a sleep follows the second cuMemUnmap */
    assert_ok(weir_fault_nth(faults, WEIR_CALL_MemSetAccess, 1, WEIR_CU_UNKNOWN, 0));
    assert_ok(weir_fault_nth(faults, WEIR_CALL_MemUnmap, o.kind == SLEEP_TWO ? 2 : 1, WEIR_CU_UNKNOWN, 0));
  } else if (o.fault >= UNMAP_FAILS)
    assert_ok(weir_fault_nth(faults, WEIR_CALL_MemUnmap, o.fault == UNMAP_FAILS ? 1 : 2, WEIR_CU_UNKNOWN, 0));
  else if (o.fault)
    assert_ok(weir_fault_nth_any(faults, o.fault, WEIR_CU_UNKNOWN));
  w.pages.failure = WEIR_CU_SUCCESS;
  const view before_it = look();
  bool done = run(o);
  assert_ok(weir_fault_clear(faults));
  assert_ok(weir_fault_counts(faults, WEIR_CALL_COUNT, NULL, &after));
  bool failed = after > before;
  if (!done && !failed)
    broken("%s fails, although no call of the driver was made to fail", kind_names[o.kind]);
  bool may_lose_aliases = o.kind == RELEASE || o.kind == SLEEP || o.kind == SLEEP_TWO;
  if (!done && o.kind < RETIRE && !may_lose_aliases && o.fault != UNDO_FAILS && !w.pages.orphan_count &&
      state_hash() != hash)
    broken("a failed %s changed something", kind_names[o.kind]);
  if (!done && may_lose_aliases && o.fault != UNDO_FAILS && page_count() != pages)
    broken("a failed %s changed a page", kind_names[o.kind]);
  const view after_it = look();
  if (planted == nothing)
    note_edges(&before_it, &after_it, o.kind, failed);
  check(baseline);
  return failed;
}

typedef struct path {
  uint8_t length;
  bool has_failed; /* one failure is enough for a path */
  op ops[MAX_DEPTH];
} path;

static void print_path(const path *p, op last) {
  for (int i = 0; i <= p->length; i++) {
    op o = i < p->length ? p->ops[i] : last;
    fprintf(stderr, "%s %d -> %d%s", i ? ";" : "  path:", o.from, o.to, i == p->length ? "\n" : "");
    fprintf(stderr, " (%s, fault %d)%s", kind_names[o.kind], o.fault, i == p->length ? "\n" : "");
  }
}

/* Runs a path and then `last`; false if the world broke. *failed: its fault happened; *hash: the state it leads to. */
static bool run_path(const path *p, op last, bool *failed, uint64_t *hash, op ops[MAX_OPS], int *op_count) {
  uint64_t baseline = used_bytes();
  begin_world();
  runs++;
  for (int i = 0; i < p->length && !w.is_broken; i++)
    apply(p->ops[i], baseline);
  if (!w.is_broken && last.kind <= STEP)
    *failed = apply(last, baseline);
  if (!w.is_broken) {
    *hash = state_hash();
    if (ops)
      *op_count = list_ops(ops);
  }
  end_world(baseline);
  if (w.is_broken && prints) {
    fprintf(stderr, "%s\n", w.why);
    print_path(p, last);
  }
  return !w.is_broken;
}

/* ---- The exploration ---- */

typedef struct states {
  uint64_t *hashes;
  size_t count, room;
} states;

static bool add_state(states *s, uint64_t hash) {
  if (2 * s->count >= s->room) {
    states grown = {calloc(s->room ? 2 * s->room : 1024, sizeof(uint64_t)), 0, s->room ? 2 * s->room : 1024};
    for (size_t i = 0; i < s->room; i++)
      if (s->hashes[i])
        add_state(&grown, s->hashes[i]);
    free(s->hashes);
    *s = grown;
  }
  hash |= !hash;
  size_t at = hash % s->room;
  while (s->hashes[at] && s->hashes[at] != hash)
    at = (at + 1) % s->room;
  if (s->hashes[at])
    return false;
  s->hashes[at] = hash;
  s->count++;
  return true;
}

typedef struct exploration {
  states known;
  path *queue;
  size_t count, room;
  size_t transitions;
  int depth;
  bool has_faults;
} exploration;

/* Runs a path and one operation more, and queues the state that it leads to if that is new. *happened: the operation
 * has no fault, or its fault happened. */
static bool try_op(exploration *e, path p, op o, bool *happened) {
  uint64_t hash = 0;
  bool failed = false;
  if (!run_path(&p, o, &failed, &hash, NULL, NULL))
    return false;
  *happened = !o.fault || failed;
  e->transitions += *happened;
  p.has_failed |= o.fault != NO_FAULT;
  if (!*happened || !add_state(&e->known, mix(hash, p.has_failed)) || p.length + 1 >= e->depth)
    return true;
  if (!WEIR__RESERVE(e->queue, e->room, e->count + 1))
    fail_msg("%s", "out of host memory");
  p.ops[p.length++] = o;
  e->queue[e->count++] = p;
  return true;
}

/* Visits all states up to `depth` operations from the empty one. Returns false with the first violation. */
static bool explore(exploration *e, int depth, bool has_faults) {
  static const op none = {.kind = STEP + 1};
  *e = (exploration){.depth = depth, .has_faults = has_faults};
  bool is_sound = WEIR__RESERVE(e->queue, e->room, 1), unused;
  e->queue[e->count++] = (path){0};
  for (size_t at = 0; is_sound && at < e->count; at++) {
    path p = e->queue[at];
    op ops[MAX_OPS];
    int op_count = 0;
    uint64_t hash;
    is_sound = run_path(&p, none, &unused, &hash, ops, &op_count);
    for (int i = 0; is_sound && i < op_count; i++) {
      op o = ops[i];
      bool happened = true;
      is_sound = try_op(e, p, o, &happened);
      if (o.kind >= WORK || p.has_failed || !e->has_faults) /* the calls of WORK and STEP are the test's */
        continue;
      for (o.fault = 1; is_sound && happened; o.fault++)
        is_sound = try_op(e, p, o, &happened);
      o.fault = UNDO_FAILS;
      if (is_sound && (o.kind <= MOVE_AND_MAKE || (o.kind >= SLEEP_TWO && o.kind <= WAKE_TWO)))
        is_sound = try_op(e, p, o, &happened);
      for (o.fault = UNMAP_FAILS; is_sound && o.kind >= SLEEP && o.kind <= FORGET && o.fault < UNDO_FAILS; o.fault++)
        is_sound = try_op(e, p, o, &happened);
    }
  }
  free(e->known.hashes);
  free(e->queue);
  return is_sound;
}

static int open_device(void **state) {
  (void)state;
  soft_open(WEIR_SOFT_STEPPED, 1, 64 << 20);
  assert_ok(weir_driver_open_fault(d, &faults));
  for (int i = 0; i < RESERVATIONS; i++)
    w.streams[i] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  return 0;
}

/* A device that a planted fault has broken stays open. */
static int close_device(void **state) {
  for (int i = 0; i < RESERVATIONS && !w.is_broken; i++)
    assert_cu(d->StreamDestroy(d, w.streams[i]));
  weir_driver_close(faults);
  if (!w.is_broken)
    soft_close();
  w.is_broken = false;
  return soft_teardown(state);
}

FIXTURE(.setup = open_device, .teardown = close_device)

TEST(all_states) {
  static const char *const states_of_mappings[] = {"owner", "alias", "retiring", "stuck", "asleep"};
  exploration e;
  int depth = 5;
  slots_of_second = usual_or_long(1, SLOTS);
  prints = true;
  runs = 0;
  memset(seen_pairs, 0, sizeof seen_pairs);
  assert_true(explore(&e, depth, true));
  printf("%zu states within %d operations, %zu transitions, %lu runs; pages by the state of a mapping:\n",
         e.known.count, depth, e.transitions, runs);
  for (int owned = 1; owned >= 0; owned--)
    for (int large = 0; large < 2; large++)
      for (int i = 0; i < 5; i++)
        if (seen_pairs[owned][large][i])
          printf("  %-9s %-8s %-8s %lu\n", owned ? "owned" : "not owned", large ? "2 slots" : "1 slot",
                 states_of_mappings[i], seen_pairs[owned][large][i]);
  for (int i = 0; i < 5; i++)
    assert_true(seen_pairs[i != WEIR__MAPPING_STUCK][0][i] > 0);
}

/* Pages of another process belong to a reservation of their own, which they do not leave. */
TEST(imported_pages) {
  exploration e;
  prints = imports = true;
  slots_of_second = 1;
  runs = 0;
  int depth = usual_or_long(4, 5);
  assert_true(explore(&e, depth, true));
  printf("%zu states within %d operations, %zu transitions, %lu runs\n", e.known.count, depth, e.transitions, runs);
  imports = false;
}

/* The page about pages shows the transitions that the explorer has seen, and no other ones. */
TEST(documented) {
  static char page[1 << 16];
  FILE *file = fopen(WEIR_TEST_DATA "/../../docs/inside/pages.md", "r");
  assert_non_null(file);
  page[fread(page, 1, sizeof page - 1, file)] = 0;
  fclose(file);
  size_t shown = 0, seen = 0;
  for (const char *line = page; (line = strstr(line, " -> ")); line++)
    shown++;
  for (int object = 0; object < OBJECTS; object++)
    for (int failed = 0; failed < OUTCOMES; failed++)
      for (int was = 0; was < STATES; was++)
        for (int is = 0; is < STATES; is++) {
          char text[512];
          if (!edges[failed][object][was][is])
            continue;
          write_edge(text, sizeof text, failed, object, was, is);
          puts(text);
          seen++;
          if (!usual_or_long(0, 1) && !strstr(page, text))
            fail_msg("docs/inside/pages.md does not have: %s", text);
        }
  assert_true(seen > 0);
  if (!usual_or_long(0, 1))
    assert_int_equal(shown, seen);
}

TEST(every_planted_fault_is_found) {
  prints = imports = false;
  for (int fault = nothing + 1; fault < plants; fault++) {
    exploration e;
    planted = (enum planted)fault;
    imports = fault == owns_import;
    if (explore(&e, fault == retires_in_use ? 6 : 5, false) && explore(&e, 5, true)) /* its event needs a step more */
      fail_msg("the explorer does not find fault %d", fault);
    planted = nothing;
    imports = false;
    close_device(NULL);
    open_device(NULL);
  }
}

TEST(pins) {
  static const struct {
    unsigned pins;
    weir__page_answer move, sleep, guard;
  } cases[] = {
      {0, WEIR__PAGE_MAY, WEIR__PAGE_MAY, WEIR__PAGE_MAY},
      {WEIR__PIN_FIXED, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT},
      {WEIR__PIN_EXPORTED, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT},
      {WEIR__PIN_RECEIVED, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT},
      {WEIR__PIN_GRAPH, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_IF_IDLE, WEIR__PAGE_MAY_NOT},
      {WEIR__PIN_PEERS, WEIR__PAGE_MAY_IF_IDLE, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT},
      {WEIR__PIN_PEERS | WEIR__PIN_GRAPH, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_NOT},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    assert_int_equal(weir__pins_permit(cases[i].pins, WEIR__PAGE_TO_MOVE), cases[i].move);
    assert_int_equal(weir__pins_permit(cases[i].pins, WEIR__PAGE_TO_SLEEP), cases[i].sleep);
    assert_int_equal(weir__pins_permit(cases[i].pins, WEIR__PAGE_TO_GUARD), cases[i].guard);
  }
}
