#include "offline/analyse/digest_steps.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/text.h"

enum { WINDOWS = 128 };

static const char *text_of(const weir__recording *r, uint32_t string) {
  return string < r->strings.count ? r->strings.items[string].text : "";
}

void weir__digest_steps_begin(weir__digest_steps *s, weir__steps *found, bool is_all, uint64_t entries) {
  s->found = *found;
  *found = (weir__steps){0};
  s->is_all = is_all;
  if (s->found.source == WEIR__STEPS_NONE) {
    s->found.source = WEIR__STEPS_WINDOWS;
    for (s->period = 1; s->period < entries / WINDOWS; s->period *= 2)
      ;
    return;
  }
  /* The last boundary may be there only because the first part ends. */
  s->usable = is_all ? s->found.count + 1 : s->found.count;
}

/* ---- Marks ---- */

/* Texts that differ in digits only are one kind. */
static bool is_alike(const char *a, const char *b) {
  while (*a && *b) {
    if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
      while (isdigit((unsigned char)*a))
        a++;
      while (isdigit((unsigned char)*b))
        b++;
    } else if (*a++ != *b++)
      return false;
  }
  return !*a && !*b;
}

/* Whether a string is the mark. Its name was escaped, and cut to a length. */
static bool is_mark(weir__digest_steps *s, const weir__recording *r, uint32_t string) {
  char name[WEIR__STEPS_NAME];
  if (string >= s->match_count) {
    if (!WEIR__RESERVE(s->matches, s->match_room, string + 1))
      return false;
    memset(s->matches + s->match_count, 0, string + 1 - s->match_count);
    s->match_count = string + 1;
  }
  if (!s->matches[string]) {
    const char *text = text_of(r, string);
    weir__escape_text(text, strlen(text), name, sizeof name);
    s->matches[string] = *text && is_alike(name, s->found.name) ? 2 : 1;
  }
  return s->matches[string] == 2;
}

static void mark(weir__digest_steps *s, int kind, uint64_t entry) {
  s->is_pending[kind] = true;
  s->marked[kind] = entry + 1;
}

void weir__digest_steps_annotation(weir__digest_steps *s, const weir__recording *r, size_t annotation, uint64_t entry) {
  if (s->found.source != WEIR__STEPS_ANNOTATIONS || annotation >= r->annotation_count)
    return;
  const weir__recording_annotation *a = &r->annotations[annotation];
  if (is_mark(s, r, a->name))
    mark(s, strcmp(text_of(r, a->stage), "END") == 0, entry);
}

/* An allocation where a thread enters a phase, or where its phase or its metadata changes. */
static void look_at_phase(weir__digest_steps *s, const weir__recording *r, const weir__recording_entry *e,
                          uint64_t entry) {
  const weir__recording_remark *remark = &r->remarks[e->remark];
  if (is_mark(s, r, remark->phase)) {
    s->has_begins |= e->phase_begins;
    if (s->has_begins ? e->phase_begins : s->last[e->thread] != remark->phase)
      mark(s, 0, entry);
    s->last[e->thread] = remark->phase;
  } else if (is_mark(s, r, remark->user_metadata)) {
    if (s->last[e->thread] != remark->user_metadata)
      mark(s, 1, entry);
    s->last[e->thread] = remark->user_metadata;
  } else
    s->last[e->thread] = remark->phase;
}

/* ---- Boundaries ---- */

static bool begin(weir__digest_steps *s, uint64_t entry) {
  s->number += s->has_begun;
  s->first_entry = s->has_begun ? s->first_entry : entry;
  s->first_at = s->has_begun ? s->first_at : s->allocations;
  s->has_begun = true;
  s->last_at = s->allocations;
  s->is_pending[0] = s->is_pending[1] = false;
  return true;
}

/* A boundary that was found. */
static bool begin_found(weir__digest_steps *s, uint64_t entry) {
  s->next++;
  s->votes[s->marked[1] > s->marked[0]]++;
  begin(s, entry);
  if (s->next == s->usable && s->next > 1)
    s->period = (s->last_at - s->first_at) / (s->next - 1);
  return true;
}

bool weir__digest_steps_entry(weir__digest_steps *s, const weir__recording *r, const weir__recording_entry *e,
                              uint64_t entry) {
  bool is_alloc = e->action == WEIR_TRACE_ALLOC, begins = false;
  if (is_alloc && s->found.source == WEIR__STEPS_PHASES)
    look_at_phase(s, r, e, entry);
  if (s->next < s->usable)
    begins = s->found.begin[s->next] <= entry && begin_found(s, entry);
  else if (is_alloc && !s->is_all) {
    bool is_marked = s->found.source == WEIR__STEPS_ANNOTATIONS || s->found.source == WEIR__STEPS_PHASES;
    bool is_due = is_marked ? s->is_pending[s->votes[1] > s->votes[0]]
                            : !s->has_begun || (s->period && s->allocations - s->last_at >= s->period);
    begins = is_due && begin(s, entry);
  } else if (is_alloc && s->found.source == WEIR__STEPS_WINDOWS)
    begins = (!s->has_begun || s->allocations - s->last_at >= s->period) && begin(s, entry);
  s->allocations += is_alloc;
  return begins;
}

uint64_t weir__digest_steps_count(const weir__digest_steps *s) {
  return s->is_all && s->found.source != WEIR__STEPS_WINDOWS ? s->found.count : s->number;
}

void weir__digest_steps_clear(weir__digest_steps *s) {
  weir__steps_clear(&s->found);
  free(s->matches);
  *s = (weir__digest_steps){0};
}
