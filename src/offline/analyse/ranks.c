#include "offline/analyse/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "offline/analyse/ranks_features.h"
#include "offline/analyse/ranks_roles.h"

enum { SAMPLE = 33 };

typedef struct comparison {
  weir__ranks *r;
  const weir__ranks_options *options;
  weir__rank_features *features; /* by digest */
} comparison;

static weir_status no_memory(void) { return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory to compare ranks"); }

/* ---- Classes ---- */

/* Each digest joins the class whose leader is nearest, if that is within the distance, or leads another one. */
static weir_status form_classes(comparison *c) {
  weir__ranks *r = c->r;
  size_t room = 0;
  for (size_t i = 0; i < r->count; i++) {
    double nearest = c->options->distance;
    size_t class = SIZE_MAX;
    for (size_t k = 0; k < r->class_count; k++) {
      double distance = weir__rank_distance(&c->features[i], &c->features[r->classes[k].members[0]], nearest);
      if (distance < nearest || (class == SIZE_MAX && distance <= nearest)) {
        nearest = distance;
        class = k;
      }
    }
    if (class == SIZE_MAX) {
      if (!WEIR__RESERVE(r->classes, room, r->class_count + 1))
        return no_memory();
      class = r->class_count++;
      r->classes[class] =
          (weir__rank_class){.members = malloc(sizeof(size_t)), .least = UINT64_MAX, .least_reserved = UINT64_MAX};
      if (!r->classes[class].members)
        return no_memory();
      r->classes[class].members[0] = i;
    }
    r->class_of[i] = class;
    r->classes[class].count++;
  }
  return WEIR_OK;
}

static int by_usual(const void *a, const void *b) {
  const weir__rank_class *x = a, *y = b;
  if (x->is_usual != y->is_usual)
    return x->is_usual ? -1 : 1;
  return (x->members[0] > y->members[0]) - (x->members[0] < y->members[0]);
}

/* A class is usual if it has half the root of all ranks, and two. */
static void find_usual(weir__ranks *r) {
  for (size_t k = 0; k < r->class_count; k++) {
    r->classes[k].is_usual = r->classes[k].count >= 2 && 4 * r->classes[k].count >= r->count / r->classes[k].count;
    r->usual_count += r->classes[k].is_usual;
  }
}

/* Sorts classes, and lists their members. */
static weir_status list_members(weir__ranks *r) {
  size_t *leaders = calloc(r->class_count + 1, sizeof *leaders);
  if (!leaders)
    return no_memory();
  for (size_t k = 0; k < r->class_count; k++)
    leaders[k] = r->classes[k].members[0];
  qsort(r->classes, r->class_count, sizeof *r->classes, by_usual);
  for (size_t i = 0; i < r->count; i++) /* the leader, until all classes have their new numbers */
    r->class_of[i] = leaders[r->class_of[i]];
  free(leaders);
  size_t *number_of = calloc(r->count + 1, sizeof *number_of);
  bool ok = number_of != NULL;
  for (size_t k = 0; k < r->class_count && ok; k++) {
    weir__rank_class *class = &r->classes[k];
    size_t leader = class->members[0], *grown = realloc(class->members, class->count * sizeof *grown);
    number_of[leader] = k;
    ok = grown != NULL;
    class->members = ok ? grown : class->members;
    class->count = 0;
  }
  for (size_t i = 0; i < r->count && ok; i++) {
    weir__rank_class *class = &r->classes[number_of[r->class_of[i]]];
    const weir__digest *d = &r->digests[i];
    class->members[class->count++] = i;
    class->least = d->memory.peak_allocated < class->least ? d->memory.peak_allocated : class->least;
    class->most = d->memory.peak_allocated > class->most ? d->memory.peak_allocated : class->most;
    class->least_reserved =
        d->memory.peak_reserved < class->least_reserved ? d->memory.peak_reserved : class->least_reserved;
    class->most_reserved =
        d->memory.peak_reserved > class->most_reserved ? d->memory.peak_reserved : class->most_reserved;
    r->class_of[i] = (size_t)(class - r->classes);
  }
  free(number_of);
  return ok ? WEIR_OK : no_memory();
}

/* ---- Outliers ---- */

static int by_number(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The members of a class that stand for it: at most SAMPLE, evenly chosen. */
static size_t sample(const weir__rank_class *class, size_t chosen[SAMPLE]) {
  size_t count = class->count < SAMPLE ? class->count : SAMPLE;
  for (size_t i = 0; i < count; i++)
    chosen[i] = class->members[i * class->count / count];
  return count;
}

static uint64_t usual_value(const comparison *c, const weir__rank_class *class, uint64_t key) {
  size_t chosen[SAMPLE], count = sample(class, chosen);
  uint64_t values[SAMPLE];
  for (size_t i = 0; i < count; i++) {
    const weir__feature *f = weir__rank_feature(&c->features[chosen[i]], key);
    values[i] = f ? f->value : 0;
  }
  qsort(values, count, sizeof *values, by_number);
  return values[count / 2];
}

static const weir__digest_holder *stack_of(const weir__digest *d, uint64_t name) {
  const weir__digest_holder *items = d->stacks.items;
  for (size_t i = 0; i < d->stacks.count; i++)
    if (items[i].name == name)
      return &items[i];
  return NULL;
}

/* The peak of a stack, or of all, in a group of steps of `width`; that of the digest's own groups is a divisor. */
static uint64_t peak_in(const weir__digest *d, uint64_t stack, uint64_t group, uint64_t width) {
  const weir__digest_holder *h = stack ? stack_of(d, stack) : NULL;
  const weir__digest_list *peaks = stack ? h ? &h->peaks : NULL : &d->steps.peak;
  uint64_t each = width / d->steps.width, peak = 0;
  for (size_t g = (size_t)(group * each); peaks && g < (group + 1) * each && g < peaks->count; g++)
    peak = weir__digest_number(peaks, g) > peak ? weir__digest_number(peaks, g) : peak;
  return peak;
}

/* The group of steps from which on a stack, or the whole, differs from what is usual, up to the end. */
static void find_since(const comparison *c, const weir__digest *d, const weir__rank_class *class,
                       weir__rank_difference *of) {
  size_t chosen[SAMPLE], count = sample(class, chosen);
  uint64_t width = d->steps.width, values[SAMPLE], last = 0; /* of the group that was looked at last, an earlier one */
  size_t groups = weir__rank_groups(d);
  of->first_step = 1;
  of->last_step = 0;
  for (size_t i = 0; i < count; i++)
    width = c->r->digests[chosen[i]].steps.width > width ? c->r->digests[chosen[i]].steps.width : width;
  if (!groups || !d->steps.width)
    return;
  uint64_t each = width / d->steps.width, falls = 0, seen = 0, at_end = 0;
  for (uint64_t g = groups / each; g-- > 0;) {
    size_t known = 0;
    for (size_t i = 0; i < count; i++) {
      const weir__digest *other = &c->r->digests[chosen[i]];
      if (other->steps.width && (g + 1) * (width / other->steps.width) <= weir__rank_groups(other))
        values[known++] = peak_in(other, of->stack, g, width);
    }
    if (!known)
      continue;
    qsort(values, known, sizeof *values, by_number);
    uint64_t usual = values[known / 2], value = peak_in(d, of->stack, g, width);
    if (weir__value_distance(value, usual) <= c->options->distance)
      break;
    of->first_step = g * width;
    falls += seen && value > last;
    at_end = seen ? at_end : value;
    last = value;
    seen++;
  }
  if (!seen)
    return;
  of->last_step = of->first_step + width - 1;
  of->grows = seen >= 4 && 10 * falls <= seen && 10 * at_end > 11 * last && of->value > of->usual;
}

static int by_difference(const void *a, const void *b) {
  const weir__rank_difference *x = a, *y = b;
  bool x_is_stack = x->stack != 0, y_is_stack = y->stack != 0;
  if (x_is_stack != y_is_stack) /* a stack is the reason for the sums */
    return x_is_stack ? -1 : 1;
  uint64_t p = x->value > x->usual ? x->value - x->usual : x->usual - x->value;
  uint64_t q = y->value > y->usual ? y->value - y->usual : y->usual - y->value;
  return p != q ? (p < q) - (p > q) : (x->stack > y->stack) - (x->stack < y->stack);
}

static void add_difference(weir__rank_outlier *o, const weir__rank_difference *d) {
  for (size_t i = 0; i < o->difference_count; i++)
    if (o->differences[i].stack && o->differences[i].stack == d->stack) { /* of both kinds the larger */
      if (by_difference(d, &o->differences[i]) < 0)
        o->differences[i] = *d;
      return;
    }
  if (o->difference_count < WEIR__RANKS_DIFFERENCES)
    o->differences[o->difference_count++] = *d;
  else if (by_difference(d, &o->differences[WEIR__RANKS_DIFFERENCES - 1]) < 0)
    o->differences[WEIR__RANKS_DIFFERENCES - 1] = *d;
  else
    return;
  qsort(o->differences, o->difference_count, sizeof *o->differences, by_difference);
}

/* Compares a feature of the outlier, or one that it lacks, with what is usual. */
static void compare_feature(const comparison *c, weir__rank_outlier *o, const weir__feature *f, uint64_t value) {
  const weir__rank_class *class = &c->r->classes[o->class];
  uint64_t usual = usual_value(c, class, f->key), most = usual > value ? usual : value;
  if (weir__value_distance(value, usual) <= c->options->distance || (f->stack && most < c->features[o->member].floor))
    return;
  weir__rank_difference d = {
      f->kind == WEIR__FEATURE_STACK_LATE ? WEIR__FEATURE_STACK : f->kind, f->stack, value, usual, 1, 0, false};
  if (f->kind != WEIR__FEATURE_REQUESTS && f->kind != WEIR__FEATURE_RESERVED)
    find_since(c, &c->r->digests[o->member], class, &d);
  add_difference(o, &d);
}

static void explain_outlier(const comparison *c, weir__rank_outlier *o) {
  const weir__rank_features *own = &c->features[o->member];
  const weir__rank_features *leader = &c->features[c->r->classes[o->class].members[0]];
  for (size_t i = 0; i < own->count; i++)
    compare_feature(c, o, &own->items[i], own->items[i].value);
  for (size_t i = 0; i < leader->count && !own->is_cut; i++)
    if (leader->items[i].stack && !weir__rank_feature(own, leader->items[i].key))
      compare_feature(c, o, &leader->items[i], 0);
}

/* The usual class from which it differs in the fewest features. */
static size_t most_alike(const comparison *c, size_t member) {
  size_t best = 0, least = SIZE_MAX;
  for (size_t k = 0; k < c->r->usual_count; k++) {
    size_t count =
        weir__rank_differing(&c->features[member], &c->features[c->r->classes[k].members[0]], c->options->distance);
    if (count < least) {
      least = count;
      best = k;
    }
  }
  return best;
}

static weir_status find_outliers(comparison *c) {
  weir__ranks *r = c->r;
  size_t count = 0;
  for (size_t i = 0; i < r->count; i++)
    count += r->class_of[i] >= r->usual_count;
  if (!r->usual_count || !count)
    return WEIR_OK;
  r->outliers = calloc(count, sizeof *r->outliers);
  if (!r->outliers)
    return no_memory();
  for (size_t i = 0; i < r->count; i++) {
    if (r->class_of[i] < r->usual_count)
      continue;
    weir__rank_outlier *o = &r->outliers[r->outlier_count++];
    o->member = i;
    o->class = most_alike(c, i);
    if (r->outlier_count <= WEIR__RANKS_EXPLAINED)
      explain_outlier(c, o);
  }
  return WEIR_OK;
}

/* ---- Failures, and what is missing ---- */

typedef struct moment {
  uint64_t time_us;
  size_t member;
} moment;

static int by_time(const void *a, const void *b) {
  const moment *x = a, *y = b;
  return x->time_us != y->time_us ? (x->time_us > y->time_us) - (x->time_us < y->time_us)
                                  : (x->member > y->member) - (x->member < y->member);
}

static weir_status list_moments(moment *moments, size_t count, size_t **members) {
  if (count)
    qsort(moments, count, sizeof *moments, by_time);
  *members = malloc((count + 1) * sizeof **members);
  for (size_t i = 0; i < count && *members; i++)
    (*members)[i] = moments[i].member;
  return *members ? WEIR_OK : no_memory();
}

static weir_status find_failures(weir__ranks *r) {
  moment *moments = malloc((r->count + 1) * sizeof *moments);
  uint64_t first = UINT64_MAX;
  if (!moments)
    return no_memory();
  for (size_t i = 0; i < r->count; i++)
    if (r->digests[i].failure.count) {
      uint64_t time = r->digests[i].failure.time_us;
      moments[r->failure_count++] = (moment){time, i};
      first = time && time < first ? time : first;
    }
  weir_status status = list_moments(moments, r->failure_count, &r->failures);
  for (size_t i = 0; i < r->count && !status && first != UINT64_MAX; i++)
    if (!r->digests[i].failure.count && r->digests[i].history.last_us >= first)
      moments[r->follower_count++] = (moment){r->digests[i].history.last_us, i};
  if (!status)
    status = list_moments(moments, r->follower_count, &r->followers);
  free(moments);
  return status;
}

static weir_status find_missing(weir__ranks *r, size_t expected) {
  int64_t most = expected ? (int64_t)expected : r->digests[r->count - 1].rank + 1, next = 0;
  if (most > (int64_t)WEIR__RANKS_MAX)
    most = WEIR__RANKS_MAX;
  r->missing = malloc((size_t)(most > 0 ? most + 1 : 1) * sizeof *r->missing);
  if (!r->missing)
    return no_memory();
  for (size_t i = 0; i <= r->count; i++) {
    int64_t rank = i < r->count ? r->digests[i].rank : most;
    for (; next < rank && next < most; next++)
      r->missing[r->missing_count++] = next;
    next = rank >= next ? rank + 1 : next;
  }
  return WEIR_OK;
}

static void find_largest(weir__ranks *r) {
  uint64_t reserved = 0, allocated = 0;
  for (size_t i = 0; i < r->count; i++) {
    const weir__digest *d = &r->digests[i];
    if (d->memory.peak_reserved + d->memory.peak_outside > reserved) {
      reserved = d->memory.peak_reserved + d->memory.peak_outside;
      r->most_reserved = i;
    }
    if (d->memory.peak_allocated + d->memory.peak_outside > allocated) {
      allocated = d->memory.peak_allocated + d->memory.peak_outside;
      r->most_allocated = i;
    }
  }
}

/* ---- All together ---- */

weir_status weir__ranks_compare(const weir__digest *digests, size_t count, const weir__ranks_options *options,
                                weir__ranks *out) {
  weir__ranks r = {.digests = digests, .count = count, .class_of = malloc(count * sizeof *r.class_of)};
  comparison c = {.r = &r, .options = options, .features = calloc(count, sizeof *c.features)};
  weir_status status = r.class_of && c.features ? WEIR_OK : no_memory();
  for (size_t i = 0; i < count && !status; i++)
    status = weir__rank_features_make(&digests[i], &c.features[i]) ? WEIR_OK : no_memory();
  if (!status)
    status = form_classes(&c);
  if (!status) {
    find_usual(&r);
    status = list_members(&r);
  }
  if (!status)
    status = weir__ranks_find_roles(&r, c.features);
  if (!status)
    status = find_outliers(&c);
  if (!status)
    status = weir__ranks_find_partings(&r);
  if (!status)
    status = find_failures(&r);
  if (!status)
    status = find_missing(&r, options->expected);
  find_largest(&r);
  for (size_t i = 0; i < count && c.features; i++)
    free(c.features[i].items);
  free(c.features);
  if (status) {
    weir__ranks_clear(&r);
    return status;
  }
  *out = r;
  return WEIR_OK;
}

void weir__ranks_clear(weir__ranks *r) {
  for (size_t i = 0; i < r->class_count; i++)
    free(r->classes[i].members);
  free(r->classes);
  free(r->class_of);
  free(r->outliers);
  free(r->partings);
  free(r->failures);
  free(r->followers);
  free(r->missing);
  *r = (weir__ranks){0};
}

const char *weir__ranks_name(const weir__ranks *r, uint64_t name, char text[WEIR__DIGEST_TEXT + 1]) {
  const char *found = NULL;
  for (size_t i = 0; i < r->count && !found; i++)
    found = weir__digest_text(&r->digests[i], name);
  if (found)
    snprintf(text, WEIR__DIGEST_TEXT + 1, "%s", found);
  else
    snprintf(text, WEIR__DIGEST_TEXT + 1, "%016" PRIx64, name);
  return text;
}

/* How many of the next members have ranks at one distance, which is written to *step. */
static size_t count_run(const weir__ranks *r, const size_t *members, size_t count, int64_t *step) {
  size_t run = 1;
  *step = 1;
  for (; run < count; run++) {
    int64_t next = r->digests[members[run]].rank - r->digests[members[run - 1]].rank;
    if (run == 1)
      *step = next;
    else if (next != *step)
      break;
  }
  return *step < 1 || (run == 2 && *step > 1) ? 1 : run;
}

const char *weir__ranks_list(const weir__ranks *r, const size_t *members, size_t count, char *text, size_t size) {
  size_t length = 0;
  *text = 0;
  for (size_t i = 0, run; i < count; i += run) {
    int64_t step, first = r->digests[members[i]].rank;
    run = count_run(r, members + i, count - i, &step);
    int64_t last = r->digests[members[i + run - 1]].rank;
    char part[96], every[32] = "";
    if (step > 1)
      snprintf(every, sizeof every, "/%" PRId64, step);
    if (run > 1)
      snprintf(part, sizeof part, "%s%" PRId64 "-%" PRId64 "%s", length ? "," : "", first, last, every);
    else
      snprintf(part, sizeof part, "%s%" PRId64, length ? "," : "", first);
    if (length + strlen(part) + sizeof ",..." > size) {
      snprintf(text + length, size - length, ",...");
      break;
    }
    length += (size_t)snprintf(text + length, size - length, "%s", part);
  }
  return text;
}
