#include "offline/analyse/ranks_roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"

enum { MAX_SHARDS = 1024 };

static weir_status no_memory(void) { return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory to compare ranks"); }

/* ---- Roles ---- */

/* Classes whose ranks lie between each other's. */
typedef struct band {
  size_t first, count; /* in the list of classes by their lowest rank */
  int64_t begin, end;  /* ranks */
  size_t shards;       /* rank % shards says which class it is; 0 if no number does */
} band;

typedef struct span {
  int64_t begin, end;
  size_t class;
} span;

static int by_begin(const void *a, const void *b) {
  const span *x = a, *y = b;
  return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
                              : (x->class > y->class) - (x->class < y->class);
}

static int64_t rank_of(const weir__ranks *r, size_t member) { return r->digests[member].rank; }

/* Whether ranks with the same remainder are of one class. */
static bool divides(const weir__ranks *r, const band *b, const span *spans, size_t shards,
                    size_t class_of[MAX_SHARDS]) {
  for (size_t i = 0; i < shards; i++)
    class_of[i] = SIZE_MAX;
  for (size_t k = b->first; k < b->first + b->count; k++) {
    const weir__rank_class *class = &r->classes[spans[k].class];
    for (size_t i = 0; i < class->count; i++) {
      size_t *of = &class_of[(size_t)(rank_of(r, class->members[i]) % (int64_t)shards)];
      if (*of != SIZE_MAX && *of != spans[k].class)
        return false;
      *of = spans[k].class;
    }
  }
  return true;
}

static void find_shards(const weir__ranks *r, band *b, const span *spans, size_t class_of[MAX_SHARDS]) {
  size_t most = (size_t)(b->end - b->begin) / 2;
  for (size_t shards = b->count; shards <= most && shards <= MAX_SHARDS && !b->shards; shards++)
    if (divides(r, b, spans, shards, class_of))
      b->shards = shards;
  if (b->shards)
    divides(r, b, spans, b->shards, class_of);
}

/* The stack of which two classes' leaders hold most different amounts. */
static uint64_t find_differing(const weir__rank_features *a, const weir__rank_features *b) {
  uint64_t most = 0, name = 0;
  for (size_t i = 0; i < a->count; i++) {
    const weir__feature *x = &a->items[i], *y = weir__rank_feature(b, x->key);
    uint64_t value = y ? y->value : 0, difference = x->value > value ? x->value - value : value - x->value;
    if (x->kind == WEIR__FEATURE_STACK && difference > most) {
      most = difference;
      name = x->stack;
    }
  }
  for (size_t i = 0; i < b->count; i++)
    if (b->items[i].kind == WEIR__FEATURE_STACK && b->items[i].value > most &&
        !weir__rank_feature(a, b->items[i].key)) {
      most = b->items[i].value;
      name = b->items[i].stack;
    }
  return name;
}

static bool is_of_experts(const weir__ranks *r, uint64_t name) {
  char text[WEIR__DIGEST_TEXT + 1];
  weir__ranks_name(r, name, text);
  return strstr(text, "expert") || strstr(text, "Expert") || strstr(text, "moe") || strstr(text, "MoE");
}

static void name_shard(weir__ranks *r, const band *b, size_t class, const size_t class_of[MAX_SHARDS], char *to,
                       size_t room) {
  const char *what = is_of_experts(r, r->classes[class].differs) ? "expert" : "tensor";
  size_t length = (size_t)snprintf(to, room, "%s shard ", what), listed = 0;
  for (size_t i = 0; i < b->shards && length + 24 < room; i++)
    if (class_of[i] == class) {
      if (listed++ == 4) {
        length += (size_t)snprintf(to + length, room - length, ",...");
        break;
      }
      length += (size_t)snprintf(to + length, room - length, "%s%zu", listed > 1 ? "," : "", i);
    }
  if (length < room)
    snprintf(to + length, room - length, " of %zu", b->shards);
}

static void name_band(weir__ranks *r, const weir__rank_features *features, band *bands, size_t band_count,
                      size_t number, const span *spans) {
  band *b = &bands[number];
  size_t class_of[MAX_SHARDS];
  if (b->count > 1)
    find_shards(r, b, spans, class_of);
  for (size_t k = b->first; k < b->first + b->count; k++) {
    size_t class = spans[k].class, room = WEIR__RANKS_ROLE;
    size_t other = b->count > 1     ? spans[k == b->first ? k + 1 : b->first].class
                   : band_count > 1 ? spans[bands[number ? number - 1 : 1].first].class
                                    : class;
    char *to = r->classes[class].role;
    if (other != class)
      r->classes[class].differs =
          find_differing(&features[r->classes[class].members[0]], &features[r->classes[other].members[0]]);
    if (band_count > 1) {
      size_t length =
          (size_t)snprintf(to, room, "pipeline stage %zu of %zu%s", number, band_count, b->count > 1 ? ", " : "");
      to += length;
      room -= length;
    }
    if (b->shards)
      name_shard(r, b, class, class_of, to, room);
    else if (b->count > 1)
      snprintf(to, room, "kind %zu of %zu", k - b->first, b->count);
  }
}

/* Roles that the user gave. */
static bool take_given(weir__ranks *r) {
  bool any = false;
  char text[WEIR__DIGEST_TEXT + 1];
  for (size_t k = 0; k < r->class_count; k++) {
    uint64_t role = r->digests[r->classes[k].members[0]].role;
    if (role)
      snprintf(r->classes[k].role, WEIR__RANKS_ROLE, "%.*s", WEIR__RANKS_ROLE - 1, weir__ranks_name(r, role, text));
    any |= role != 0;
  }
  return any;
}

weir_status weir__ranks_find_roles(weir__ranks *r, const weir__rank_features *features) {
  if (take_given(r) || r->usual_count < 2)
    return WEIR_OK;
  span *spans = malloc(r->usual_count * sizeof *spans);
  band *bands = calloc(r->usual_count, sizeof *bands);
  size_t band_count = 0;
  bool is_known = true;
  if (spans && bands) {
    for (size_t k = 0; k < r->usual_count; k++) {
      const weir__rank_class *class = &r->classes[k];
      spans[k] = (span){rank_of(r, class->members[0]), rank_of(r, class->members[class->count - 1]) + 1, k};
      is_known &= spans[k].begin >= 0;
    }
    qsort(spans, r->usual_count, sizeof *spans, by_begin);
    for (size_t k = 0; k < r->usual_count; k++) {
      if (!band_count || spans[k].begin >= bands[band_count - 1].end)
        bands[band_count++] = (band){.first = k, .begin = spans[k].begin, .end = spans[k].end};
      band *b = &bands[band_count - 1];
      b->count++;
      b->end = spans[k].end > b->end ? spans[k].end : b->end;
    }
    for (size_t i = 0; i < band_count && is_known; i++)
      name_band(r, features, bands, band_count, i, spans);
  }
  bool ok = spans && bands;
  free(spans);
  free(bands);
  return ok ? WEIR_OK : no_memory();
}

/* ---- Partings ---- */

typedef struct chain {
  uint64_t shape; /* at the end of the group that is looked at */
  size_t member;
} chain;

static int by_shape(const void *a, const void *b) {
  const chain *x = a, *y = b;
  return x->shape != y->shape ? (x->shape > y->shape) - (x->shape < y->shape)
                              : (x->member > y->member) - (x->member < y->member);
}

/* The hash at the end of a group of steps of `width`. */
static uint64_t shape_at(const weir__digest *d, size_t group, uint64_t width) {
  uint64_t each = width / d->steps.width;
  return weir__digest_number(&d->steps.shape, (size_t)((group + 1) * each - 1));
}

static size_t groups_of(const weir__digest *d, uint64_t width) {
  return d->steps.width ? (size_t)(weir__rank_groups(d) / (width / d->steps.width)) : 0;
}

/* Where a group begins, or the first part of the entries behind the last one. */
static uint64_t entry_at(const weir__digest *d, uint64_t group, uint64_t width) {
  uint64_t at = group * (width / d->steps.width);
  return at < d->steps.entry.count ? weir__digest_number(&d->steps.entry, (size_t)at) : d->history.entries;
}

static weir_status add_parting(weir__ranks *r, size_t *room, size_t class, size_t member, size_t other, size_t group,
                               uint64_t width) {
  const weir__digest *d = &r->digests[member], *o = &r->digests[other];
  if (!WEIR__RESERVE(r->partings, *room, r->parting_count + 1))
    return no_memory();
  r->partings[r->parting_count++] = (weir__rank_parting){.member = member,
                                                         .class = class,
                                                         .other = other,
                                                         .first_step = group * width,
                                                         .last_step = (group + 1) * width - 1,
                                                         .first_entry = entry_at(d, group, width),
                                                         .last_entry = entry_at(d, group + 1, width),
                                                         .other_first_entry = entry_at(o, group, width),
                                                         .other_last_entry = entry_at(o, group + 1, width)};
  return WEIR_OK;
}

/* Follows what most members do, group by group, and drops those that do something else. */
static weir_status follow(weir__ranks *r, size_t number, chain *chains, size_t *room) {
  weir__rank_class *class = &r->classes[number];
  size_t count = 0;
  uint64_t width = 1;
  for (size_t i = 0; i < class->count; i++) {
    const weir__digest *d = &r->digests[class->members[i]];
    width = d->steps.width > width ? d->steps.width : width;
    if (d->steps.width)
      chains[count++].member = class->members[i];
  }
  for (size_t group = 0; count >= 2; group++) {
    size_t left = 0, begin = 0, best = 0, best_count = 0;
    for (size_t i = 0; i < count; i++)
      if (group < groups_of(&r->digests[chains[i].member], width)) {
        chains[left] = chains[i];
        chains[left].shape = shape_at(&r->digests[chains[i].member], group, width);
        left++;
      }
    count = left;
    if (count < 2)
      break;
    qsort(chains, count, sizeof *chains, by_shape);
    for (size_t i = 1; i <= count; i++)
      if (i == count || chains[i].shape != chains[begin].shape) {
        best = i - begin > best_count ? begin : best;
        best_count = i - begin > best_count ? i - begin : best_count;
        begin = i;
      }
    if (2 * best_count <= count) {
      class->is_uneven = true;
      return WEIR_OK;
    }
    for (size_t i = 0; i < count; i++)
      if (i < best || i >= best + best_count) {
        weir_status status = add_parting(r, room, number, chains[i].member, chains[best].member, group, width);
        if (status)
          return status;
      }
    memmove(chains, chains + best, best_count * sizeof *chains);
    count = best_count;
  }
  return WEIR_OK;
}

static int by_member(const void *a, const void *b) {
  const weir__rank_parting *x = a, *y = b;
  return (x->member > y->member) - (x->member < y->member);
}

weir_status weir__ranks_find_partings(weir__ranks *r) {
  chain *chains = malloc(r->count * sizeof *chains);
  size_t room = 0;
  weir_status status = chains ? WEIR_OK : no_memory();
  for (size_t k = 0; k < r->usual_count && !status; k++)
    status = follow(r, k, chains, &room);
  free(chains);
  if (r->parting_count)
    qsort(r->partings, r->parting_count, sizeof *r->partings, by_member);
  return status;
}
