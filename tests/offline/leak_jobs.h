/*
 * Histories with and without leaks, from a seed: real recordings whose steps are repeated and into which leaks are
 * planted, and synthetic jobs.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "offline/analyse/job_steps.h"
#include "offline/analyse/lives.h"
#include "support/random.h"

/* Entries that are put together, with the annotations of a recording. */
typedef struct job {
  weir__recording recording; /* borrows everything but entries, annotations and the device */
  weir__recording_device *devices;
  weir__recording_entry *entries;
  size_t count, room;
  weir__recording_annotation *annotations;
  size_t annotation_count, annotation_room;
  uint32_t *begin; /* where steps begin, and where the last one ends */
  size_t begin_count, begin_room;
  uint64_t random;
  int64_t now; /* the time of the next entry */
  uint64_t peak;
  uint64_t next_address; /* for blocks that are added */
} job;

static inline void job_add(job *j, const weir__recording_entry *e) {
  if (!WEIR__RESERVE(j->entries, j->room, j->count + 1))
    abort();
  j->entries[j->count++] = *e;
}

static inline void job_begin_step(job *j) {
  if (!WEIR__RESERVE(j->begin, j->begin_room, j->begin_count + 1))
    abort();
  j->begin[j->begin_count++] = (uint32_t)j->count;
}

static inline void job_annotate(job *j, const weir__recording_annotation *a, int64_t time_us) {
  if (!WEIR__RESERVE(j->annotations, j->annotation_room, j->annotation_count + 1))
    abort();
  j->annotations[j->annotation_count] = *a;
  j->annotations[j->annotation_count++].time_us = time_us;
}

/* Makes the recording refer to what was added. */
static inline const weir__recording *job_recording(job *j) {
  if (!j->devices)
    j->devices = calloc(1, sizeof *j->devices);
  if (!j->devices)
    abort();
  j->devices[0].events = j->entries;
  j->devices[0].event_count = j->count;
  j->recording.devices = j->devices;
  j->recording.device_count = 1;
  j->recording.annotations = j->annotations;
  j->recording.annotation_count = j->annotation_count;
  return &j->recording;
}

static inline void job_free(job *j) {
  free(j->devices);
  free(j->entries);
  free(j->annotations);
  free(j->begin);
  *j = (job){0};
}

static inline uint64_t job_below(job *j, uint64_t limit) { return next_random(&j->random) % limit; }

/* ---- Real recordings, repeated ---- */

/* A block that is freed in another repetition than it was allocated in. */
typedef struct crossing {
  uint64_t address, size;
  size_t entry; /* that allocates it */
} crossing;

/* The time of an entry in a repetition. */
static inline int64_t shifted(const weir__recording_entry *e, int64_t by) { return e->time_us ? e->time_us + by : 0; }

/*
 * Copies a recording and repeats its steps [first, last) so often that there are at least `least` of them. What a
 * repetition frees that was allocated before it is what the one before it has left, of the same size if there is such a
 * block; what else it left is freed at its end. With `least` 0, the history is as it was.
 */
static inline void job_repeat(job *j, const weir__recording *from, size_t least, bool keeps_annotations) {
  const weir__recording_device *d = &from->devices[0];
  weir__lives lives;
  weir__steps steps;
  if (weir__lives_make(from, 0, &lives) || weir__job_steps_find(from, 0, &lives, &steps))
    abort();
  j->recording = *from;
  j->next_address = 0x100000000000;
  size_t first = 0, last = steps.count, times = 1;
  if (steps.count && least > steps.count) {
    /* Late ones are in the steady state. The last one is not repeated: where no allocation follows, it may end before
     * its gradients are freed, and a repetition would keep them for longer than the job does. */
    last = steps.count > 2 ? steps.count - 1 : steps.count;
    first = last > 4 ? last - 3 : last > 1 ? 1 : 0;
    times = 1 + (least - last + (last - first) - 1) / (last - first);
  }
  uint32_t from_entry = steps.count ? steps.begin[first] : 0;
  uint32_t to_entry = steps.count ? steps.begin[last] : (uint32_t)d->event_count;
  uint32_t after = to_entry < d->event_count ? to_entry : (uint32_t)d->event_count - 1;
  int64_t span = d->events[after].time_us - d->events[from_entry].time_us + (after != to_entry);
  crossing *out = malloc((lives.block_count + 1) * sizeof *out);
  uint64_t *freed_outside = calloc(d->event_count + 1, sizeof *freed_outside); /* 1 + the order of such a free */
  size_t out_count = 0, in_count = 0;
  if (!out || !freed_outside)
    abort();
  for (size_t i = 0; i < from_entry; i++) {
    for (size_t k = 0; k < steps.count && k < first; k++)
      if (steps.begin[k] == i)
        job_begin_step(j);
    job_add(j, &d->events[i]);
  }
  for (size_t i = 0; i < lives.block_count; i++) {
    const weir__life *b = &lives.blocks[i];
    if (!b->is_before && b->begin >= from_entry && b->begin < to_entry &&
        (b->freed == WEIR__LIFE_OPEN || b->freed >= to_entry))
      out[out_count++] = (crossing){b->address, b->size, b->begin};
    if ((b->is_before || b->begin < from_entry) && b->freed >= from_entry && b->freed < to_entry)
      freed_outside[b->freed] = ++in_count;
  }
  for (size_t n = 0; n < times; n++) {
    size_t taken = 0;
    uint64_t offset = n << 44, before = (n - 1) << 44;
    for (size_t i = from_entry, step = first; i < to_entry; i++) {
      weir__recording_entry e = d->events[i];
      e.time_us = shifted(&e, (int64_t)n * span);
      if (step <= last && steps.count && steps.begin[step] == i) {
        job_begin_step(j);
        step++;
      }
      if (n == 0) {
        job_add(j, &e);
        continue;
      }
      if (e.action == WEIR_TRACE_FREE_REQUESTED && freed_outside[i]) {
        size_t like = taken;
        while (like < out_count && out[like].size != e.size)
          like++;
        if (like < out_count) {
          crossing found = out[like];
          memmove(out + taken + 1, out + taken, (like - taken) * sizeof *out);
          out[taken] = found;
        }
        if (taken < out_count) {
          e.address = out[taken].address + before;
          e.size = out[taken++].size;
          job_add(j, &e);
          e.action = WEIR_TRACE_FREE_COMPLETED;
          job_add(j, &e);
        }
        continue;
      }
      bool is_block = e.action == WEIR_TRACE_ALLOC || e.action == WEIR_TRACE_FREE_REQUESTED ||
                      e.action == WEIR_TRACE_FREE_COMPLETED;
      if (!is_block)
        continue;
      e.address += offset;
      job_add(j, &e);
    }
    for (size_t k = taken; n > 0 && k < out_count; k++) {
      weir__recording_entry e = {.action = WEIR_TRACE_FREE_REQUESTED,
                                 .address = out[k].address + before,
                                 .size = out[k].size,
                                 .time_us = j->entries[j->count - 1].time_us,
                                 .pool = WEIR__RECORDING_NO_POOL};
      job_add(j, &e);
      e.action = WEIR_TRACE_FREE_COMPLETED;
      job_add(j, &e);
    }
    for (size_t i = 0; keeps_annotations && i < from->annotation_count; i++) {
      const weir__recording_annotation *a = &from->annotations[i];
      int64_t begin = d->events[from_entry].time_us;
      if (n == 0 ? a->time_us < begin + span : a->time_us >= begin && a->time_us < begin + span)
        job_annotate(j, a, a->time_us + (int64_t)n * span);
    }
  }
  if (steps.count)
    job_begin_step(j); /* the end of the last one */
  for (size_t i = to_entry; i < d->event_count && times == 1; i++)
    job_add(j, &d->events[i]);
  for (size_t i = 0; times == 1 && keeps_annotations && i < from->annotation_count; i++)
    if (from->annotations[i].time_us >= d->events[from_entry].time_us + span)
      job_annotate(j, &from->annotations[i], from->annotations[i].time_us);
  int64_t used = 0, peak = 0;
  for (size_t i = 0; i < j->count; i++) {
    if (j->entries[i].action == WEIR_TRACE_ALLOC)
      used += (int64_t)j->entries[i].size;
    else if (j->entries[i].action == WEIR_TRACE_FREE_REQUESTED)
      used -= (int64_t)j->entries[i].size;
    peak = used > peak ? used : peak;
  }
  j->peak = (uint64_t)peak;
  free(out);
  free(freed_outside);
  weir__steps_clear(&steps);
  weir__lives_clear(&lives);
}

/* ---- Planted leaks ---- */

typedef enum plant_kind {
  PLANT_SMALL,
  PLANT_LARGE,
  PLANT_ONE_STACK,
  PLANT_MANY_STACKS,
  PLANT_EVERY_NTH,
  PLANT_KINDS
} plant_kind;
static const char *const plant_names[] = {"small", "large", "one stack", "many stacks", "every n-th"};

/* Adds blocks that are never freed to a job, `share` of the peak per step on average, at a random place in each step.
 * Sizes and stacks are partly those of other blocks. */
static inline void job_plant(job *j, plant_kind kind, size_t nth, double share, size_t from_step) {
  size_t steps = j->begin_count - 1, old_count = j->count;
  weir__recording_entry *old = j->entries;
  uint64_t per_step = (uint64_t)(share * (double)j->peak);
  uint32_t *other = malloc((old_count + 1) * sizeof *other); /* entries that allocate */
  size_t others = 0, at = 0;
  if (!other)
    abort();
  for (size_t i = 0; i < old_count; i++)
    if (old[i].action == WEIR_TRACE_ALLOC)
      other[others++] = (uint32_t)i;
  weir__recording_entry like = old[other[job_below(j, others)]];
  bool is_new_size = job_below(j, 2);
  j->entries = NULL;
  j->count = j->room = 0;
  for (size_t k = from_step; k < steps; k++) {
    if (nth > 1 && k % nth != from_step % nth)
      continue;
    size_t place = j->begin[k] + job_below(j, j->begin[k + 1] - j->begin[k]);
    for (; at < place; at++)
      job_add(j, &old[at]);
    uint64_t left = per_step * (nth ? nth : 1), unit = left;
    if (kind == PLANT_SMALL)
      unit = left / 64 < 512 ? 512 : left / 64 > 1 << 20 ? 1 << 20 : left / 64;
    else if (kind == PLANT_MANY_STACKS)
      unit = left / 7 + 1;
    else if (kind == PLANT_ONE_STACK && !is_new_size && like.size && left / like.size < 1000)
      unit = like.size;
    for (uint64_t done = 0; done < left; done += unit) {
      weir__recording_entry e = like;
      if (kind == PLANT_MANY_STACKS) {
        e = old[other[job_below(j, others)]];
        unit = left / 14 + job_below(j, left / 7 + 1) + 1;
      }
      e.size = unit;
      e.address = j->next_address += 1ull << 24;
      e.time_us = old[place].time_us;
      job_add(j, &e);
    }
  }
  for (; at < old_count; at++)
    job_add(j, &old[at]);
  free(old);
  free(other);
}

/* ---- Synthetic jobs ---- */

enum { SYNTHETIC_STACKS = 400 };

/* What a job without a leak may have. */
typedef struct traits {
  bool has_stacks, varies, prefetches, fills_cache, hits_cache, evicts, accumulates, evaluates, generates, churns;
} traits;

typedef struct synthetic {
  weir__string strings[SYNTHETIC_STACKS + 2];
  char names[SYNTHETIC_STACKS][16];
  weir__recording_frame frames[SYNTHETIC_STACKS];
  weir__recording_stack stacks[SYNTHETIC_STACKS + 1];
  uint32_t stack_frames[SYNTHETIC_STACKS];
  weir__recording_remark remark;
  int64_t stream;
  weir__recording_pool pool;
  traits is;
  int layers;
  uint64_t width; /* bytes of a layer's weights */
} synthetic;

static inline void synthetic_begin(synthetic *s, job *j) {
  s->strings[0] = (weir__string){"", 0};
  s->strings[1] = (weir__string){"/home/me/train.py", 17};
  for (uint32_t i = 0; i < SYNTHETIC_STACKS; i++) {
    int length = snprintf(s->names[i], sizeof s->names[i], "f%u", i);
    s->strings[i + 2] = (weir__string){s->names[i], (uint32_t)length};
    s->frames[i] = (weir__recording_frame){.name = i + 2, .filename = 1, .line = i + 10};
    s->stack_frames[i] = i;
    s->stacks[i + 1] = (weir__recording_stack){.first = i, .count = 1};
  }
  j->recording = (weir__recording){.streams = &s->stream,
                                   .stream_count = 1,
                                   .pools = &s->pool,
                                   .pool_count = 1,
                                   .remarks = &s->remark,
                                   .remark_count = 1,
                                   .frames = s->frames,
                                   .frame_count = SYNTHETIC_STACKS,
                                   .stacks = s->stacks,
                                   .stack_count = SYNTHETIC_STACKS + 1,
                                   .stack_frames = s->stack_frames,
                                   .has_history = true};
  j->recording.strings.items = s->strings;
  j->recording.strings.count = SYNTHETIC_STACKS + 2;
  j->next_address = 0x100000000000;
  j->now = 1700000000000000;
}

typedef struct held {
  uint64_t address, size;
} held;

static inline held take(synthetic *s, job *j, uint64_t size, uint32_t site) {
  held h = {j->next_address += 1ull << 32, size ? size : 1};
  job_add(j, &(weir__recording_entry){.action = WEIR_TRACE_ALLOC,
                                      .address = h.address,
                                      .size = h.size,
                                      .time_us = j->now += 10,
                                      .stack = s->is.has_stacks ? 1 + site % SYNTHETIC_STACKS : 0,
                                      .pool = WEIR__RECORDING_NO_POOL});
  return h;
}

static inline void give(job *j, held *h) {
  if (!h->address)
    return;
  for (int i = 0; i < 2; i++)
    job_add(j, &(weir__recording_entry){.action = i ? WEIR_TRACE_FREE_COMPLETED : WEIR_TRACE_FREE_REQUESTED,
                                        .address = h->address,
                                        .size = h->size,
                                        .time_us = j->now += 5,
                                        .pool = WEIR__RECORDING_NO_POOL});
  *h = (held){0};
}

/* A training or generation job of so many steps. */
static inline void job_synthesize(synthetic *s, job *j, size_t steps) {
  enum { LAYERS = 24, CACHE = 96, CHURN = 40 };
  held state[LAYERS] = {0}, grads[LAYERS] = {0}, cache[CACHE] = {0}, churn[CHURN] = {0}, prefetched = {0}, loss = {0};
  held kv[LAYERS] = {0};
  uint64_t kv_size = 0, turn = 0, keys = 8 + job_below(j, CACHE - 8);
  size_t until = 0, filled = 0, accumulate = s->is.accumulates ? 2 + job_below(j, 4) : 1;
  size_t evaluate = 3 + job_below(j, 8);
  synthetic_begin(s, j);
  s->layers = 2 + (int)job_below(j, LAYERS - 2);
  s->width = 1ull << (14 + job_below(j, 12));
  for (int i = 0; i < s->layers; i++)
    take(s, j, s->width * (1 + i % 3), (uint32_t)i);
  for (size_t step = 0; step < steps; step++) {
    job_begin_step(j);
    uint64_t scale = s->is.varies ? 1 + job_below(j, 64) : 16;
    held input = {0}, kept[LAYERS];
    if (s->is.prefetches) {
      input = prefetched;
      prefetched = take(s, j, s->width / 8 * scale, 100);
    } else
      input = take(s, j, s->width / 8 * scale, 100);
    for (int i = 0; i < s->layers; i++) {
      held workspace = take(s, j, 4096 + 512 * job_below(j, s->is.varies ? 20 : 1), 110);
      kept[i] = take(s, j, s->width / 4 * scale, 120 + (uint32_t)i);
      give(j, &workspace);
      if (s->is.generates) { /* each token's cache replaces the one before */
        held old = kv[i];
        kv[i] = take(s, j, s->width / 16 + kv_size, 160 + (uint32_t)i);
        give(j, &old);
      }
    }
    if (s->is.generates && step >= until) {
      for (int i = 0; i < s->layers; i++)
        give(j, &kv[i]);
      until = step + 3 + job_below(j, 20);
      kv_size = 0;
    } else
      kv_size += s->width / 16;
    held old_loss = loss;
    loss = take(s, j, 4, 200);
    give(j, &old_loss);
    for (int i = s->layers; i-- > 0;) {
      if (!grads[i].address)
        grads[i] = take(s, j, s->width * (1 + (uint64_t)i % 3), 210 + (uint32_t)i);
      give(j, &kept[i]);
    }
    give(j, &input);
    for (int i = 0; i < s->layers && !state[i].address; i++) /* of the optimizer, in the first step */
      state[i] = take(s, j, 2 * s->width * (1 + (uint64_t)i % 3), 240 + (uint32_t)i);
    if (step % accumulate == accumulate - 1)
      for (int i = 0; i < s->layers; i++)
        give(j, &grads[i]);
    if (s->is.fills_cache && filled < keys / 4 && step % 2 == 0 && step < steps / 2)
      cache[filled++] = take(s, j, s->width / 2, 280);
    if (s->is.hits_cache) /* each key is looked up with the same probability, several in a step */
      for (int i = 0; i < 4; i++) {
        uint64_t key = job_below(j, keys / 4 + 1);
        if (!cache[key + CACHE / 2].address)
          cache[key + CACHE / 2] = take(s, j, s->width / 4, 281);
      }
    if (s->is.evicts) {
      held *oldest = &cache[40 + turn++ % 5];
      give(j, oldest);
      *oldest = take(s, j, s->width / 2, 282);
    }
    if (s->is.churns)
      for (int i = 0; i < 6; i++) {
        held *h = &churn[job_below(j, CHURN)];
        give(j, h);
        if (job_below(j, 2))
          *h = take(s, j, 512 * (1 + job_below(j, 500)), 283 + (uint32_t)job_below(j, 10));
      }
    if (s->is.evaluates && step % evaluate == evaluate - 1) {
      held eval[8];
      for (int i = 0; i < 8; i++)
        eval[i] = take(s, j, s->width * (1 + job_below(j, 4)), 300 + (uint32_t)i);
      for (int i = 0; i < 8; i++)
        give(j, &eval[i]);
    }
  }
  job_begin_step(j);
  int64_t used = 0, peak = 0;
  for (size_t i = 0; i < j->count; i++) {
    used += j->entries[i].action == WEIR_TRACE_ALLOC            ? (int64_t)j->entries[i].size
            : j->entries[i].action == WEIR_TRACE_FREE_REQUESTED ? -(int64_t)j->entries[i].size
                                                                : 0;
    peak = used > peak ? used : peak;
  }
  j->peak = (uint64_t)peak;
}
