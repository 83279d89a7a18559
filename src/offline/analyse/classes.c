#include "offline/analyse/classes.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"

/* Fewer blocks that are freed in a row are not taken for gradients. */
enum { MIN_GRADIENTS = 4 };
/* A block that lives for less than this part of its step is temporary. */
enum { SHORT_PART = 8 };
/* The gradient of the loss is one number. */
enum { SCALAR_BYTES = 8 };

static const char *const class_names[] = {
#define X(name, text) text,
    WEIR__CLASS_MAP(X)
#undef X
};

const char *weir__class_name(weir__class number) { return number < WEIR__CLASSES ? class_names[number] : "unknown"; }

/* Where an allocation comes from, by its phase or its stack. */
typedef enum origin { NOWHERE, MODEL, FORWARD, RECOMPUTED, BACKWARD, OPTIMIZER, ZERO_GRAD } origin;

/* Entries from `begin` to before `end`. */
typedef struct range {
  uint32_t begin, end;
} range;

typedef struct ranges {
  range *items;
  size_t count, room;
} ranges;

/* The time of one set of gradients: up to the row of frees that ends them, by which they are recognized. The steps of a
 * job (pattern/steps.h) answer another question. They say where the program's iterations begin, which a profiler may
 * mark between a backward pass and the frees of its gradients: then each gradient would be allocated in one step and
 * freed in the next, as what survives a step is. */
typedef struct step {
  uint32_t begin, end;     /* entries; it ends after the frees of its gradients, */
  uint32_t frees;          /* which begin here */
  uint32_t first_gradient; /* the entry that allocates it; `end` if there is none */
  uint32_t last_gradient;
  uint32_t turn; /* where the backward pass begins: the gradient of the loss, or else the first gradient */
} step;

typedef struct steps {
  step *items; /* the last one is what follows the last complete step */
  size_t count, room;
} steps;

typedef struct finder {
  const weir__recording *recording;
  const weir__recording_device *device;
  int number; /* of the device */
  const weir__lives *lives;
  uint8_t *of;
  uint8_t *stack_origins;  /* by stack */
  uint8_t *remark_origins; /* by remark */
  uint32_t *freed;         /* by entry: the life + 1 whose free it requests */
  ranges optimizer, zero_grad;
  weir__hash_map sizes; /* of gradients */
  steps steps;
  uint32_t complete; /* steps */
} finder;

typedef struct size_count {
  uint64_t size; /* + 1 */
  size_t count, used;
} size_count;

/* ---- Origins ---- */

static const char *text_of(const weir__recording *recording, uint32_t id) {
  return id < recording->strings.count ? recording->strings.items[id].text : "";
}

/* Phases have the names that PyTorch or the program gave. */
static origin origin_of_phase(const char *name) {
  if (strcasestr(name, "zero_grad"))
    return ZERO_GRAD;
  if (strcasestr(name, "optimizer") || strcasestr(name, "optim.step"))
    return OPTIMIZER;
  if (strcasestr(name, "backward"))
    return BACKWARD;
  if (strcasestr(name, "forward"))
    return FORWARD;
  if (strcasestr(name, "weights") || strcasestr(name, "load_state_dict"))
    return MODEL;
  return NOWHERE;
}

static bool is_one_of(const char *name, const char *const *names) {
  for (; *names; names++)
    if (strcmp(name, *names) == 0)
      return true;
  return false;
}

static origin origin_of_frame(const char *name, const char *file) {
  static const char *const model[] = {"to",
                                      "_apply",
                                      "convert",
                                      "cuda",
                                      "half",
                                      "bfloat16",
                                      "load_state_dict",
                                      "_load_from_state_dict",
                                      "reset_parameters",
                                      NULL};
  static const char *const recompute[] = {"unpack_hook", "recompute_fn", "backward", NULL};
  bool is_module = strstr(file, "nn/modules/") || strstr(file, "/nnx/") || strstr(file, "/nn/module");
  if (strstr(file, "utils/checkpoint.py") && is_one_of(name, recompute))
    return RECOMPUTED;
  if (strcmp(name, "zero_grad") == 0)
    return ZERO_GRAD;
  if (strstr(name, "Optimizer.step") || (strcmp(name, "step") == 0 && (strstr(file, "optim") || strstr(file, "Optim"))))
    return OPTIMIZER;
  if (strcmp(name, "backward") == 0 || strcmp(name, "_engine_run_backward") == 0 || strcmp(name, "_make_grads") == 0 ||
      strstr(name, "torch::autograd::Engine::"))
    return BACKWARD;
  if (is_module && is_one_of(name, model))
    return MODEL;
  if (strcmp(name, "forward") == 0 || (is_module && strcmp(name, "_call_impl") == 0))
    return FORWARD;
  return NOWHERE;
}

/* The innermost frame that says something decides, but what a backward pass calls belongs to it. */
static origin origin_of_stack(const weir__recording *recording, uint32_t number) {
  const weir__recording_stack *s = &recording->stacks[number];
  origin found = NOWHERE;
  for (size_t i = 0; i < s->count; i++) {
    const weir__recording_frame *f = &recording->frames[recording->stack_frames[s->first + i]];
    origin o = origin_of_frame(text_of(recording, f->name), text_of(recording, f->filename));
    if (o == RECOMPUTED && found == FORWARD)
      return RECOMPUTED;
    if (o == BACKWARD && found == FORWARD)
      return BACKWARD;
    found = found == NOWHERE ? o == RECOMPUTED ? BACKWARD : o : found;
  }
  return found;
}

static bool find_origins(finder *f) {
  const weir__recording *r = f->recording;
  f->stack_origins = calloc(r->stack_count + 1, 1);
  f->remark_origins = calloc(r->remark_count + 1, 1);
  if (!f->stack_origins || !f->remark_origins)
    return false;
  for (size_t i = 1; i < r->stack_count; i++)
    f->stack_origins[i] = (uint8_t)origin_of_stack(r, (uint32_t)i);
  for (size_t i = 0; i < r->remark_count; i++)
    f->remark_origins[i] = (uint8_t)origin_of_phase(text_of(r, r->remarks[i].phase));
  return true;
}

static origin origin_of(const finder *f, const weir__life *life) {
  origin o = life->stack < f->recording->stack_count ? f->stack_origins[life->stack] : NOWHERE;
  if (o == NOWHERE && life->remark < f->recording->remark_count)
    o = f->remark_origins[life->remark];
  return o;
}

/* ---- Ranges of the optimizer ---- */

/* Ranges are in order, and do not overlap. */
static bool add_range(ranges *r, uint32_t begin, uint32_t end) {
  if (r->count && begin < r->items[r->count - 1].end)
    begin = r->items[r->count - 1].end;
  if (begin >= end)
    return true;
  if (!WEIR__RESERVE(r->items, r->room, r->count + 1))
    return false;
  r->items[r->count++] = (range){begin, end};
  return true;
}

/* The first entry at or after a time. */
static uint32_t entry_at(const weir__recording_device *d, int64_t time) {
  size_t low = 0, high = d->event_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (d->events[middle].time_us < time)
      low = middle + 1;
    else
      high = middle;
  }
  return (uint32_t)low;
}

static bool find_annotated(finder *f) {
  int64_t since[2] = {0, 0};
  for (size_t i = 0; i < f->recording->annotation_count; i++) {
    const weir__recording_annotation *a = &f->recording->annotations[i];
    origin o = origin_of_phase(text_of(f->recording, a->name));
    if ((a->device >= 0 && a->device != f->number) || (o != OPTIMIZER && o != ZERO_GRAD))
      continue;
    int64_t *begun = &since[o == ZERO_GRAD];
    if (strcmp(text_of(f->recording, a->stage), "START") == 0)
      *begun = a->time_us;
    else if (*begun && a->time_us >= *begun) {
      if (!add_range(o == ZERO_GRAD ? &f->zero_grad : &f->optimizer, entry_at(f->device, *begun),
                     entry_at(f->device, a->time_us + 1)))
        return false;
      *begun = 0;
    }
  }
  return true;
}

/* Consecutive entries of such a phase are a range, where there are no annotations. */
static bool find_phases(finder *f) {
  const weir__recording_device *d = f->device;
  bool has_optimizer = f->optimizer.count, has_zero_grad = f->zero_grad.count;
  uint32_t begin = 0;
  origin now = NOWHERE;
  bool is_any = false;
  for (size_t i = 0; i < f->recording->remark_count; i++)
    is_any |= f->remark_origins[i] == OPTIMIZER || f->remark_origins[i] == ZERO_GRAD;
  for (size_t i = 0; is_any && i <= d->event_count; i++) {
    origin o = i < d->event_count ? f->remark_origins[d->events[i].remark] : NOWHERE;
    if (o == now)
      continue;
    if ((now == OPTIMIZER && !has_optimizer && !add_range(&f->optimizer, begin, (uint32_t)i)) ||
        (now == ZERO_GRAD && !has_zero_grad && !add_range(&f->zero_grad, begin, (uint32_t)i)))
      return false;
    now = o;
    begin = (uint32_t)i;
  }
  return true;
}

/* The first range that ends after an entry; NULL if there is none. */
static const range *range_after(const ranges *r, uint32_t entry) {
  size_t low = 0, high = r->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (r->items[middle].end <= entry)
      low = middle + 1;
    else
      high = middle;
  }
  return low < r->count ? &r->items[low] : NULL;
}

static bool is_within(const ranges *r, uint32_t entry) {
  const range *found = range_after(r, entry);
  return found && found->begin <= entry;
}

/* ---- Steps ---- */

static size_count *count_of(weir__hash_map *map, uint64_t size) {
  return weir__hash_map_put(map, sizeof(size_count), size + !(size + 1) * (uint64_t)-1 + 1);
}

static const size_count *find_count(const weir__hash_map *map, uint64_t size) {
  return weir__hash_map_find(map, sizeof(size_count), size + 1);
}

static bool map_frees(finder *f) {
  f->freed = calloc(f->device->event_count + 1, sizeof *f->freed);
  if (!f->freed)
    return false;
  for (size_t i = 0; i < f->lives->block_count; i++) {
    const weir__life *life = &f->lives->blocks[i];
    if (life->freed < f->device->event_count && f->device->events[life->freed].action == WEIR_TRACE_FREE_REQUESTED)
      f->freed[life->freed] = (uint32_t)i + 1;
  }
  return true;
}

static bool end_step(finder *f, uint32_t frees, uint32_t end) {
  steps *s = &f->steps;
  if (!WEIR__RESERVE(s->items, s->room, s->count + 1))
    return false;
  s->items[s->count] =
      (step){.begin = s->count ? s->items[s->count - 1].end : 0, .end = end, .frees = frees, .first_gradient = end};
  s->count++;
  return true;
}

/* Whether a block that is freed in a step was allocated in it. */
static bool is_young(const finder *f, const weir__life *life) {
  uint32_t begin = f->steps.count ? f->steps.items[f->steps.count - 1].end : 0;
  return life->is_before ? begin == 0 : life->begin >= begin;
}

static int by_begin(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* Marks the gradients that entries of a range free, and ends the step. With `like`, the first of each size are meant,
 * as many as it counts: what the optimizer allocates later may be freed with them. */
static bool end_step_with(finder *f, range r, const weir__hash_map *like) {
  uint32_t first = r.end, last = 0, *young = malloc((r.end - r.begin + 1) * sizeof *young);
  size_t count = 0;
  bool ok = young != NULL;
  for (uint32_t i = r.begin; i < r.end && ok; i++)
    if (f->freed[i] && is_young(f, &f->lives->blocks[f->freed[i] - 1]))
      young[count++] = f->freed[i] - 1; /* lives are by their begin */
  if (ok)
    qsort(young, count, sizeof *young, by_begin);
  for (size_t i = 0; i < count && ok; i++) {
    const weir__life *life = &f->lives->blocks[young[i]];
    size_count *limit = like ? (size_count *)find_count(like, life->size) : NULL, *c;
    if (like && (!limit || limit->used >= limit->count))
      continue;
    if (limit)
      limit->used++;
    f->of[young[i]] = WEIR__CLASS_GRADIENTS;
    c = count_of(&f->sizes, life->size);
    ok = c != NULL;
    if (c)
      c->count++;
    first = life->begin < first ? life->begin : first;
    last = life->begin > last ? life->begin : last;
  }
  for (size_t i = 0; i < count && like && ok; i++) {
    size_count *limit = (size_count *)find_count(like, f->lives->blocks[young[i]].size);
    if (limit)
      limit->used = 0;
  }
  free(young);
  if (!ok || !end_step(f, r.begin, r.end))
    return false;
  f->steps.items[f->steps.count - 1].first_gradient = first;
  f->steps.items[f->steps.count - 1].last_gradient = last;
  return true;
}

static bool has_frees(const finder *f, range r) {
  for (uint32_t i = r.begin; i < r.end; i++)
    if (f->freed[i])
      return true;
  return false;
}

static bool steps_of_zero_grad(finder *f) {
  for (size_t i = 0; i < f->zero_grad.count; i++)
    if (has_frees(f, f->zero_grad.items[i]) && !end_step_with(f, f->zero_grad.items[i], NULL))
      return false;
  return true;
}

/* Whether a block lives through the middle half of the history. */
static bool is_long(const finder *f, const weir__life *life) {
  uint32_t quarter = (uint32_t)(f->device->event_count / 4);
  return (life->is_before || life->begin < quarter) && life->freed > 3 * quarter;
}

/* Counts those that were allocated before an entry, by size. */
static bool count_long(const finder *f, uint32_t before, weir__hash_map *sizes) {
  for (size_t i = 0; i < f->lives->block_count; i++) {
    const weir__life *life = &f->lives->blocks[i];
    if (!is_long(f, life) || life->begin >= before)
      continue;
    size_count *c = count_of(sizes, life->size);
    if (!c)
      return false;
    c->count++;
  }
  return true;
}

/* How many of the blocks that are freed in a range have the size of a long-lived one of their own. `first` is the entry
 * that allocated the first of them. */
static size_t matches(const finder *f, range r, const weir__hash_map *sizes, size_t *frees, uint32_t *first) {
  size_t matched = 0;
  *frees = 0;
  *first = r.end;
  for (uint32_t i = r.begin; i < r.end; i++) {
    const weir__life *life = f->freed[i] ? &f->lives->blocks[f->freed[i] - 1] : NULL;
    if (!life || is_long(f, life))
      continue;
    ++*frees;
    size_count *c = (size_count *)find_count(sizes, life->size);
    if (c && c->used < c->count) {
      c->used++;
      matched++;
      *first = life->begin < *first ? life->begin : *first;
    }
  }
  for (uint32_t i = r.begin; i < r.end; i++) {
    size_count *c = f->freed[i] ? (size_count *)find_count(sizes, f->lives->blocks[f->freed[i] - 1].size) : NULL;
    if (c)
      c->used = 0;
  }
  return matched;
}

/* Without phases: rows of frees of blocks that have the sizes of long-lived ones. The largest of them, which free about
 * as many, are those of gradients. */
static bool steps_of_rows(finder *f) {
  const weir__recording_device *d = f->device;
  weir__hash_map sizes = {0}, weights = {0};
  ranges rows = {0};
  size_t most = 0, frees = 0, kept = 0, all;
  uint32_t begin = 0, first, first_gradient = 0;
  bool ok = count_long(f, UINT32_MAX, &sizes);
  for (size_t i = 0; i <= d->event_count && ok && sizes.count; i++) {
    if (i < d->event_count && d->events[i].action != WEIR_TRACE_ALLOC) {
      frees += f->freed[i] != 0;
      continue;
    }
    range row = {begin, (uint32_t)i};
    if (frees >= MIN_GRADIENTS) {
      size_t matched = matches(f, row, &sizes, &all, &first);
      if (matched >= MIN_GRADIENTS && 2 * matched >= all) {
        most = matched > most ? matched : most;
        ok = add_range(&rows, row.begin, row.end);
      }
    }
    begin = (uint32_t)i + 1;
    frees = 0;
  }
  for (size_t i = 0; i < rows.count && ok; i++)
    if (2 * matches(f, rows.items[i], &sizes, &all, &first) >= most) {
      first_gradient = kept ? first_gradient : first;
      rows.items[kept++] = rows.items[i];
    }
  if (kept >= 2) {
    ok = ok && count_long(f, first_gradient, &weights);
    for (size_t i = 0; i < kept && ok; i++)
      ok = end_step_with(f, rows.items[i], &weights);
  }
  weir__hash_map_clear(&sizes);
  weir__hash_map_clear(&weights);
  free(rows.items);
  return ok;
}

/* What follows the last step may be a step that failed. Its gradients have the sizes of others and stay to the end;
 * without any, what is in use when memory runs out, or at the last allocation, stands for what the backward pass
 * needs. */
static bool end_steps(finder *f) {
  const weir__recording_device *d = f->device;
  uint32_t begin = f->steps.items[f->steps.count - 1].end, end = (uint32_t)d->event_count, moment = begin;
  size_t count = 0, all = 0;
  for (uint32_t i = begin; i < end; i++) {
    if (d->events[i].action == WEIR_TRACE_OOM) {
      moment = i;
      break;
    }
    if (d->events[i].action == WEIR_TRACE_ALLOC)
      moment = i;
  }
  f->complete = (uint32_t)f->steps.count;
  if (!end_step(f, end, end))
    return false;
  step *s = &f->steps.items[f->steps.count - 1];
  size_t low = 0, high = f->lives->block_count;
  while (low < high) { /* the first life of the step */
    size_t middle = low + (high - low) / 2;
    const weir__life *life = &f->lives->blocks[middle];
    if (life->is_before || life->begin < begin)
      low = middle + 1;
    else
      high = middle;
  }
  for (size_t i = 0; i < f->sizes.room && f->sizes.count; i++)
    all += ((const size_count *)(void *)f->sizes.slots)[i].size ? ((const size_count *)(void *)f->sizes.slots)[i].count
                                                                : 0;
  s->first_gradient = moment;
  uint32_t first = moment;
  for (size_t i = low; i < f->lives->block_count; i++) {
    const weir__life *life = &f->lives->blocks[i];
    if (life->freed > moment && find_count(&f->sizes, life->size)) {
      first = life->begin < first ? life->begin : first;
      count++;
    }
  }
  if (count < MIN_GRADIENTS || (uint64_t)count * 8 * f->complete < all)
    return true;
  s->first_gradient = first;
  for (size_t i = low; i < f->lives->block_count; i++)
    if (f->lives->blocks[i].freed > moment && find_count(&f->sizes, f->lives->blocks[i].size))
      f->of[i] = WEIR__CLASS_GRADIENTS;
  return true;
}

static bool find_steps(finder *f) {
  if (!find_annotated(f) || !find_phases(f) || !map_frees(f) || !steps_of_zero_grad(f))
    return false;
  if (!f->steps.count && !steps_of_rows(f))
    return false;
  if (f->steps.count >= 2)
    return end_steps(f);
  f->steps.count = 0;
  weir__hash_map_clear(&f->sizes);
  memset(f->of, WEIR__CLASS_UNKNOWN, f->lives->block_count);
  return true;
}

static const step *step_of(const finder *f, uint32_t entry) {
  size_t low = 0, high = f->steps.count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (f->steps.items[middle].end <= entry)
      low = middle + 1;
    else
      high = middle;
  }
  return low < f->steps.count ? &f->steps.items[low] : NULL;
}

/* A backward pass begins with the gradient of the loss: a scalar that is allocated before the gradients of parameters,
 * when what the forward pass keeps is in use. Later ones belong to what the backward pass computes again, so it is the
 * last one with at least half of the memory in use that there is at any of them. A step that failed may not have come
 * to its backward pass: there it must lie in the second half. */
static void find_turns(finder *f) {
  const weir__recording_device *d = f->device;
  for (size_t k = 0; k < f->steps.count; k++) {
    step *s = &f->steps.items[k];
    int64_t now = 0, most = INT64_MIN;
    s->turn = s->first_gradient;
    uint32_t from = k == f->complete ? s->begin + (s->first_gradient - s->begin) / 2 : s->begin;
    for (int pass = 0; pass < 2; pass++) {
      now = 0;
      for (uint32_t i = s->begin; i < s->first_gradient; i++) {
        const weir__recording_entry *e = &d->events[i];
        bool is_alloc = e->action == WEIR_TRACE_ALLOC;
        if (is_alloc || e->action == WEIR_TRACE_FREE_REQUESTED)
          now = (int64_t)((uint64_t)now + (is_alloc ? e->size : 0 - e->size));
        if (!is_alloc || e->size > SCALAR_BYTES || i < from)
          continue;
        if (!pass)
          most = now > most ? now : most;
        else if (now >= most / 2)
          s->turn = i;
      }
    }
  }
}

/* ---- Classes by life ---- */

static weir__class class_in_step(const finder *f, const step *s, const weir__life *life) {
  bool is_short =
      life->freed != WEIR__LIFE_OPEN && (uint64_t)(life->freed - life->begin) * SHORT_PART <= s->end - s->begin;
  bool is_last = s == &f->steps.items[f->complete];
  if (life->begin >= s->turn)
    return is_short ? WEIR__CLASS_TEMPORARY : WEIR__CLASS_UNKNOWN;
  if (life->freed <= s->turn)
    return WEIR__CLASS_TEMPORARY;
  return life->freed < s->end || is_last ? WEIR__CLASS_ACTIVATIONS : WEIR__CLASS_UNKNOWN;
}

static bool is_optimizer_state(const finder *f, const step *s, const weir__life *life) {
  if (f->optimizer.count)
    return is_within(&f->optimizer, life->begin);
  return s->last_gradient && life->begin > s->last_gradient && find_count(&f->sizes, life->size);
}

static void classify_by_life(finder *f) {
  const step *first = &f->steps.items[0];
  find_turns(f);
  uint32_t last_end = f->steps.items[f->complete - 1].frees, first_activation = first->turn;
  /* A block that the first backward pass needs, and that does not stay. */
  for (size_t i = 0; i < f->lives->block_count; i++) {
    const weir__life *life = &f->lives->blocks[i];
    if (!life->is_before && life->begin < first_activation && life->freed > first->turn &&
        life->freed <= f->steps.items[1].end)
      first_activation = life->begin;
  }
  for (size_t i = 0; i < f->lives->block_count; i++) {
    const weir__life *life = &f->lives->blocks[i];
    const step *s = life->is_before ? NULL : step_of(f, life->begin);
    if (f->of[i] != WEIR__CLASS_UNKNOWN || !s)
      continue;
    bool outlives = life->freed >= s->end;
    if (life->begin < first_activation && life->freed >= last_end)
      f->of[i] = WEIR__CLASS_WEIGHTS;
    else if (outlives && (s + 1 >= f->steps.items + f->complete || life->freed >= s[1].frees) &&
             is_optimizer_state(f, s, life))
      f->of[i] = WEIR__CLASS_OPTIMIZER;
    else
      f->of[i] = (uint8_t)class_in_step(f, s, life);
  }
}

/* ---- Classes by origin ---- */

typedef struct moments {
  uint32_t *at; /* entries that allocate with an origin, in their order */
  size_t count;
} moments;

static bool find_moments(const finder *f, origin o, moments *m) {
  m->at = malloc((f->lives->block_count + 1) * sizeof *m->at);
  m->count = 0;
  for (size_t i = 0; i < f->lives->block_count && m->at; i++)
    if (!f->lives->blocks[i].is_before && origin_of(f, &f->lives->blocks[i]) == o)
      m->at[m->count++] = f->lives->blocks[i].begin;
  return m->at != NULL;
}

/* Whether a block is in use at the first such moment after it was allocated. */
static bool lives_until(const moments *m, const weir__life *life) {
  size_t low = 0, high = m->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (m->at[middle] <= life->begin && !life->is_before)
      low = middle + 1;
    else
      high = middle;
  }
  return low < m->count && m->at[low] < life->freed;
}

static weir__class class_of(const finder *f, origin o, const weir__life *life, weir__class by_life,
                            const moments *backward, const moments *optimizer) {
  const step *s = f->steps.count && !life->is_before ? step_of(f, life->begin) : NULL;
  bool is_open = life->freed == WEIR__LIFE_OPEN;
  switch (o) {
  case MODEL:
    return life->is_before || is_open || life->freed - life->begin > f->device->event_count / 4 ? WEIR__CLASS_WEIGHTS
                                                                                                : WEIR__CLASS_TEMPORARY;
  case OPTIMIZER: {
    const range *r = range_after(&f->optimizer, life->begin);
    bool is_kept = life->is_before || is_open || (s ? life->freed >= s->end : r && life->freed >= r->end);
    return is_kept ? WEIR__CLASS_OPTIMIZER : WEIR__CLASS_TEMPORARY;
  }
  case RECOMPUTED:
    return by_life == WEIR__CLASS_GRADIENTS ? by_life : WEIR__CLASS_ACTIVATIONS;
  case BACKWARD:
    if (by_life == WEIR__CLASS_GRADIENTS || (optimizer->count && lives_until(optimizer, life)))
      return WEIR__CLASS_GRADIENTS;
    return is_open && !f->steps.count ? WEIR__CLASS_UNKNOWN : WEIR__CLASS_TEMPORARY;
  case FORWARD:
    if (by_life != WEIR__CLASS_UNKNOWN)
      return by_life;
    if (backward->count && lives_until(backward, life))
      return WEIR__CLASS_ACTIVATIONS;
    return is_open ? WEIR__CLASS_UNKNOWN : backward->count ? WEIR__CLASS_TEMPORARY : WEIR__CLASS_UNKNOWN;
  default:
    return by_life;
  }
}

static bool classify_by_origin(finder *f) {
  moments backward = {0}, optimizer = {0};
  bool ok = find_moments(f, BACKWARD, &backward) && find_moments(f, OPTIMIZER, &optimizer);
  for (size_t i = 0; i < f->lives->block_count && ok; i++) {
    const weir__life *life = &f->lives->blocks[i];
    f->of[i] = (uint8_t)class_of(f, origin_of(f, life), life, (weir__class)f->of[i], &backward, &optimizer);
  }
  free(backward.at);
  free(optimizer.at);
  return ok;
}

static bool has_origins(const finder *f) {
  for (size_t i = 0; i < f->recording->stack_count; i++)
    if (f->stack_origins[i])
      return true;
  for (size_t i = 0; i < f->recording->remark_count; i++)
    if (f->remark_origins[i])
      return true;
  return false;
}

weir_status weir__classes_make(const weir__recording *recording, int device, const weir__lives *lives,
                               weir__classes *classes) {
  finder f = {.recording = recording,
              .device = device < 0 ? &recording->host : &recording->devices[device],
              .number = device,
              .lives = lives,
              .of = calloc(lives->block_count + 1, 1)};
  bool ok = f.of && find_origins(&f) && find_steps(&f);
  if (ok && f.steps.count)
    classify_by_life(&f);
  if (ok && has_origins(&f))
    ok = classify_by_origin(&f);
  free(f.stack_origins);
  free(f.remark_origins);
  free(f.freed);
  free(f.optimizer.items);
  free(f.zero_grad.items);
  free(f.steps.items);
  weir__hash_map_clear(&f.sizes);
  if (!ok) {
    free(f.of);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the classes of %zu blocks",
                      lives->block_count);
  }
  bool is_known = false;
  for (size_t i = 0; i < lives->block_count && !is_known; i++)
    is_known = f.of[i] != WEIR__CLASS_UNKNOWN;
  *classes = (weir__classes){.of = f.of, .count = lives->block_count, .steps = f.complete, .is_known = is_known};
  return WEIR_OK;
}

void weir__classes_clear(weir__classes *classes) {
  free(classes->of);
  *classes = (weir__classes){0};
}

void weir__classes_sum(const weir__lives *lives, const weir__classes *classes, size_t entry,
                       uint64_t bytes[WEIR__CLASSES]) {
  memset(bytes, 0, WEIR__CLASSES * sizeof *bytes);
  for (size_t i = 0; i < lives->block_count; i++) {
    const weir__life *life = &lives->blocks[i];
    if (weir__life_spans(life, entry))
      bytes[classes->of[i]] += life->size;
  }
}
