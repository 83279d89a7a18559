#include "offline/analyse/ranks_recordings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/predict.h"
#include "offline/read/recording_stream.h"

enum { BATCH = 4096 };

static weir_status no_memory(void) { return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory to compare ranks"); }

/* The path of a member's recording; false if there is none. */
static bool path_of(const weir__ranks *r, const char *folder, size_t member, char *path, size_t size) {
  const weir__digest *d = &r->digests[member];
  const char *name = d->file ? weir__digest_text(d, d->file) : NULL;
  if (!name || !*name || strchr(name, '/'))
    return false;
  FILE *file = (size_t)snprintf(path, size, "%s/%s", folder, name) < size ? fopen(path, "rb") : NULL;
  if (file)
    fclose(file);
  return file != NULL;
}

/* ---- Requests ---- */

/* An allocation or a free in a part of a history. What happens in one pool on one stream is a lane, and in order. */
typedef struct event {
  uint64_t lane, shape; /* of two events with the same shape nothing but the size may differ */
  uint64_t entry, bytes;
  uint32_t stack;
  bool is_free;
} event;

typedef struct live_block {
  uint64_t address; /* the key */
  uint64_t lane, bytes;
  bool is_freed;
} live_block;

typedef struct part {
  weir__recording_stream *source;
  uint64_t from, to; /* entries */
  uint64_t entry;
  weir__hash_map live;
  event *events;
  size_t count, room;
} part;

static bool add_event(part *p, uint64_t lane, uint64_t bytes, uint32_t stack, bool is_free) {
  char text[WEIR__DESCRIBE_TEXT];
  if (p->entry < p->from)
    return true;
  if (!WEIR__RESERVE(p->events, p->room, p->count + 1))
    return false;
  const weir__recording *r = weir__recording_stream_recording(p->source);
  bool has_stack = !is_free && stack && stack < r->stack_count && r->stacks[stack].count;
  uint64_t name = has_stack ? weir__digest_hash(weir__describe_stack(r, stack, text)) : 0;
  p->events[p->count++] = (event){lane, name ^ is_free, p->entry, bytes, has_stack ? stack : 0, is_free};
  return true;
}

static bool take_alloc(part *p, const weir__recording_entry *e) {
  if (!e->address)
    return true;
  live_block *b = weir__hash_map_put(&p->live, sizeof *b, e->address);
  uint64_t lane = (uint64_t)e->pool << 16 | e->stream;
  if (!b)
    return false;
  if (b->bytes && !b->is_freed && !add_event(p, b->lane, b->bytes, 0, true))
    return false;
  *b = (live_block){e->address, lane, e->size, false};
  return add_event(p, lane, e->size, e->stack, false);
}

static bool take_free(part *p, const weir__recording_entry *e) {
  live_block *b = e->address ? weir__hash_map_find(&p->live, sizeof *b, e->address) : NULL;
  if (!b)
    return true;
  bool ok = b->is_freed || add_event(p, b->lane, b->bytes, 0, true);
  b->is_freed = true;
  if (e->action == WEIR_TRACE_FREE_COMPLETED)
    weir__hash_map_remove(&p->live, sizeof *b, b);
  return ok;
}

static int by_lane(const void *a, const void *b) {
  const event *x = a, *y = b;
  return x->lane != y->lane ? (x->lane > y->lane) - (x->lane < y->lane) : (x->entry > y->entry) - (x->entry < y->entry);
}

/* Reads the events of a device from one entry to another, by lane. */
static weir_status read_part(part *p, const char *path, uint64_t device, uint64_t from, uint64_t to) {
  size_t count = 1;
  weir_status status = weir__recording_stream_open(path, -1, NULL, &p->source);
  if (status)
    return status;
  weir__streamed_entry *batch = malloc(BATCH * sizeof *batch);
  status = batch ? WEIR_OK : no_memory();
  p->from = from;
  p->to = to;
  while (!status && p->entry < to && count) {
    status = weir__recording_stream_read(p->source, batch, BATCH, &count);
    for (size_t i = 0; i < count && !status && p->entry < to; i++) {
      const weir__recording_entry *e = &batch[i].entry;
      if ((uint64_t)batch[i].device != device || e->action == WEIR__ACTION_PAIRS)
        continue;
      bool ok = true;
      if (e->action == WEIR_TRACE_ALLOC)
        ok = take_alloc(p, e);
      else if (e->action == WEIR_TRACE_FREE_REQUESTED || e->action == WEIR_TRACE_FREE_COMPLETED)
        ok = take_free(p, e);
      status = ok ? WEIR_OK : no_memory();
      p->entry++;
    }
  }
  free(batch);
  if (p->count)
    qsort(p->events, p->count, sizeof *p->events, by_lane);
  return status;
}

static void clear_part(part *p) {
  weir__recording_stream_close(p->source);
  weir__hash_map_clear(&p->live);
  free(p->events);
}

static void describe(const part *p, const event *e, weir__rank_request *to) {
  char text[WEIR__DESCRIBE_TEXT] = "";
  *to = (weir__rank_request){.is_there = e != NULL};
  if (!e)
    return;
  if (e->stack)
    weir__describe_stack(weir__recording_stream_recording(p->source), e->stack, text);
  to->is_free = e->is_free;
  to->entry = e->entry;
  to->bytes = e->bytes;
  snprintf(to->stack, sizeof to->stack, "%s", text);
}

/* In each lane, the first event that differs; of these, the one that comes first. */
static bool find_difference(const part *a, const part *b, const event **own, const event **usual) {
  uint64_t first = UINT64_MAX;
  for (size_t i = 0, k = 0; i < a->count || k < b->count;) {
    const event *x = i < a->count ? &a->events[i] : NULL, *y = k < b->count ? &b->events[k] : NULL;
    if (x && y && x->lane == y->lane && x->shape == y->shape) {
      i++;
      k++;
      continue;
    }
    uint64_t lane = x && (!y || x->lane <= y->lane) ? x->lane : y->lane;
    x = x && x->lane == lane ? x : NULL;
    y = y && y->lane == lane ? y : NULL;
    uint64_t at = x ? x->entry : y->entry - b->from + a->from;
    if (at < first) {
      first = at;
      *own = x;
      *usual = y;
    }
    for (; i < a->count && a->events[i].lane == lane; i++)
      ;
    for (; k < b->count && b->events[k].lane == lane; k++)
      ;
  }
  return first != UINT64_MAX;
}

static weir_status find_request(const weir__ranks *r, const char *path, const char *other, weir__rank_parting *of) {
  part a = {0}, b = {0};
  const event *own = NULL, *usual = NULL;
  weir_status status = read_part(&a, path, r->digests[of->member].device, of->first_entry, of->last_entry);
  if (!status)
    status = read_part(&b, other, r->digests[of->other].device, of->other_first_entry, of->other_last_entry);
  if (!status && find_difference(&a, &b, &own, &usual)) {
    of->has_requests = true;
    describe(&a, own, &of->own);
    describe(&b, usual, &of->usual);
  }
  clear_part(&a);
  clear_part(&b);
  return status;
}

/* ---- Settings ---- */

static weir_status replay(const char *path, int device, const weir__settings *settings, weir__rank_needs *needs) {
  weir__recording *recording;
  weir__replayer *replayer = NULL;
  weir__prediction prediction = {0};
  weir__costs costs;
  weir__fit fit = {0};
  const weir__capacity least = {.limit = WEIR__FIT_STEP};
  weir__costs_default(&costs);
  weir_status status = weir__recording_load(path, NULL, &recording);
  if (status)
    return status;
  status = weir__replayer_open(recording, device, 0, 0, &replayer);
  for (int i = 0; i < (settings ? 2 : 1) && !status; i++) {
    const weir__settings *tried = i ? settings : NULL;
    weir__capacity capacity = {.limit = UINT64_MAX};
    status = weir__predict(replayer, tried, &capacity, &costs, &prediction);
    if (!status && weir__predict_fit(replayer, tried, &least, &fit))
      fit = (weir__fit){0};
    *(i ? &needs->predicted : &needs->recorded) = prediction.peak_reserved;
    *(i ? &needs->predicted_fit : &needs->recorded_fit) = fit.bytes;
    needs->failures = prediction.failures;
  }
  weir__replayer_close(replayer);
  weir__recording_free(recording);
  return status;
}

/* ---- Both ---- */

static void count_unread(weir_status status, size_t *unread, char why[WEIR__RANKS_WHY]) {
  if (!status)
    return;
  ++*unread;
  snprintf(why, WEIR__RANKS_WHY, "%s", weir_last_error());
}

weir_status weir__ranks_look_into(weir__ranks *r, const char *folder, const weir__settings *settings, size_t most,
                                  size_t *unread, char why[WEIR__RANKS_WHY]) {
  char path[4096], other[4096];
  *unread = 0;
  *why = 0;
  for (size_t i = 0; i < r->parting_count && i < most; i++) {
    weir__rank_parting *p = &r->partings[i];
    if (!path_of(r, folder, p->member, path, sizeof path) || !path_of(r, folder, p->other, other, sizeof other))
      continue;
    weir_status status = find_request(r, path, other, p);
    if (status == WEIR_ERROR_HOST_OUT_OF_MEMORY)
      return status;
    count_unread(status, unread, why);
  }
  for (size_t k = 0; k < r->usual_count && most; k++) {
    weir__rank_class *class = &r->classes[k];
    size_t at = 0;
    while (at < class->count && !path_of(r, folder, class->members[at], path, sizeof path))
      at++;
    if (at == class->count)
      continue;
    class->needs.member = class->members[at];
    weir_status status = replay(path, (int)r->digests[class->members[at]].device, settings, &class->needs);
    if (status == WEIR_ERROR_HOST_OUT_OF_MEMORY)
      return status;
    class->has_needs = !status;
    count_unread(status, unread, why);
  }
  return WEIR_OK;
}
