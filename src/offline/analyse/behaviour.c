#include "offline/analyse/behaviour.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static void add_number(weir__sha256 *sha, uint64_t number) { weir__sha256_add(sha, &number, sizeof number); }

static void add_pool(weir__sha256 *sha, const weir__recording *s, uint32_t pool) {
  add_number(sha, pool != WEIR__RECORDING_NO_POOL);
  if (pool != WEIR__RECORDING_NO_POOL)
    weir__sha256_add(sha, s->pools[pool].id, sizeof s->pools[pool].id);
}

static void add_stack(weir__sha256 *sha, const weir__recording *s, uint32_t stack) {
  add_number(sha, s->stacks[stack].count);
  for (size_t i = 0; i < s->stacks[stack].count; i++)
    add_number(sha, (uint64_t)s->frames[s->stack_frames[s->stacks[stack].first + i]].line);
}

static void add_segment(weir__sha256 *sha, const weir__recording *s, const weir__recording_segment *segment) {
  const uint64_t numbers[] = {
      segment->address,   segment->size,         segment->allocated,        segment->active,
      segment->requested, segment->block_count,  (uint64_t)segment->device, (uint64_t)s->streams[segment->stream],
      segment->is_large,  segment->is_expandable};
  weir__sha256_add(sha, numbers, sizeof numbers);
  add_pool(sha, s, segment->pool);
  add_stack(sha, s, segment->stack);
  for (size_t i = 0; i < segment->block_count; i++) {
    const weir__recording_block *b = &segment->blocks[i];
    const uint64_t of_block[] = {b->address, b->size, b->requested, b->state};
    weir__sha256_add(sha, of_block, sizeof of_block);
    add_stack(sha, s, b->stack);
  }
}

static void add_event(weir__sha256 *sha, const weir__recording *s, const weir__recording_entry *e) {
  const uint64_t numbers[] = {e->address, e->size, (uint64_t)e->time_us, (uint64_t)s->streams[e->stream], e->action};
  weir__sha256_add(sha, numbers, sizeof numbers);
  add_pool(sha, s, e->pool);
  add_stack(sha, s, e->stack);
}

static void digest_numbers(const weir__recording *s, unsigned char digest[WEIR__SHA256_SIZE]) {
  weir__sha256 sha;
  weir__sha256_begin(&sha);
  for (size_t i = 0; i < s->segment_count; i++)
    add_segment(&sha, s, &s->segments[i]);
  for (size_t d = 0; d < s->device_count; d++) {
    add_number(&sha, s->devices[d].event_count);
    for (size_t i = 0; i < s->devices[d].event_count; i++)
      add_event(&sha, s, &s->devices[d].events[i]);
  }
  for (size_t i = 0; i < s->host.segment_count; i++)
    add_segment(&sha, s, &s->host.segments[i]);
  for (size_t i = 0; i < s->host.event_count; i++)
    add_event(&sha, s, &s->host.events[i]);
  for (size_t i = 0; i < s->setting_count; i++) {
    weir__sha256_add(&sha, s->settings[i].key, strlen(s->settings[i].key) + 1);
    add_number(&sha, (uint64_t)s->settings[i].integer);
    weir__sha256_add(&sha, &s->settings[i].real, sizeof s->settings[i].real);
  }
  for (size_t i = 0; i < s->annotation_count; i++) {
    add_number(&sha, (uint64_t)s->annotations[i].device);
    add_number(&sha, (uint64_t)s->annotations[i].time_us);
  }
  for (size_t i = 0; i < s->work_count; i++) {
    add_number(&sha, s->works[i].stream);
    add_number(&sha, (uint64_t)s->works[i].start_ns);
    add_number(&sha, s->works[i].duration_ns);
    add_number(&sha, s->works[i].bytes);
  }
  weir__sha256_end(&sha, digest);
}

weir_status weir__behaviour_of(const weir__recording *recording, weir__behaviour *behaviour) {
  *behaviour = (weir__behaviour){.devices = calloc(recording->device_count + 1, sizeof *behaviour->devices)};
  if (!behaviour->devices)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  digest_numbers(recording, behaviour->numbers);
  for (size_t d = 0; d < recording->device_count; d++) {
    if (!recording->devices[d].event_count)
      continue;
    struct weir__behaviour_device *one = &behaviour->devices[behaviour->device_count++];
    one->device = (int)d;
    one->status = weir__replay(recording, &(weir__replay_options){.device = (int)d, .check = true}, &one->report);
    if (one->status == WEIR_ERROR_HOST_OUT_OF_MEMORY) {
      weir__behaviour_free(behaviour);
      return WEIR_ERROR_HOST_OUT_OF_MEMORY;
    }
  }
  return WEIR_OK;
}

void weir__behaviour_free(weir__behaviour *behaviour) {
  free(behaviour->devices);
  *behaviour = (weir__behaviour){0};
}

/* NULL if the reports agree. */
static const char *differing(const weir__replay_report *a, const weir__replay_report *b) {
  if (a->events != b->events)
    return "the number of entries";
  if (a->allocations != b->allocations || a->failures != b->failures || a->first_failure != b->first_failure ||
      a->rescued != b->rescued || a->unknown_frees != b->unknown_frees)
    return "which allocations are made";
  if (a->differences != b->differences || a->first_difference != b->first_difference)
    return "the differences that a checked replay finds";
  if (a->limit != b->limit || a->limit_is_inferred != b->limit_is_inferred)
    return "the limit";
  if (memcmp(&a->stats, &b->stats, sizeof a->stats) != 0)
    return "the counters at the end";
  if (memcmp(&a->calls, &b->calls, sizeof a->calls) != 0)
    return "the calls of the driver";
  return NULL;
}

weir_status weir__behaviour_compare(const weir__behaviour *before, const weir__behaviour *after) {
  const char *what = NULL;
  int device = 0;
  if (before->device_count != after->device_count)
    return weir__fail(WEIR_ERROR_BAD_DATA, "the copy has a different number of devices");
  for (size_t i = 0; i < before->device_count && !what; i++) {
    const struct weir__behaviour_device *a = &before->devices[i], *b = &after->devices[i];
    device = a->device;
    if (a->device != b->device || a->status != b->status)
      what = "whether it can be replayed";
    else if (!a->status)
      what = differing(&a->report, &b->report);
  }
  if (what)
    return weir__fail(WEIR_ERROR_BAD_DATA, "the copy behaves differently on device %d: %s", device, what);
  if (memcmp(before->numbers, after->numbers, sizeof before->numbers) != 0)
    return weir__fail(WEIR_ERROR_BAD_DATA, "the copy has different numbers");
  return WEIR_OK;
}
