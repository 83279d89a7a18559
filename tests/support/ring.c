#include "support/ring.h"

#include <stdio.h>
#include <stdlib.h>

#include "alloc/replay_port.h"
#include "offline/replay/replay.h"
#include "weir/snapshot.h"

/* A mapped block, with the properties of its segment. */
typedef struct known {
  uint64_t address, size, requested, stream, pool[2], state, is_small, is_expandable, stack;
} known;

typedef struct view {
  const weir__recording *recording;
  size_t last;
  weir__state state;
} view;

static bool look(void *context, weir_allocator *allocator, size_t event, const weir__replay_report *report) {
  view *v = context;
  (void)report;
  if (event == v->last)
    assert_ok(weir__state_of_replay(v->recording, allocator, &v->state));
  return true;
}

static size_t list_replayed(const weir__state *state, known *to) {
  size_t count = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    const weir__state_segment *s = &state->segments[i];
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &state->blocks[k];
      if (b->state != WEIR__BLOCK_UNMAPPED)
        to[count++] = (known){b->address,
                              b->size,
                              b->requested,
                              (uint64_t)s->stream,
                              {(uint64_t)s->pool[0], (uint64_t)s->pool[1]},
                              b->state,
                              s->is_small,
                              s->is_expandable,
                              0};
    }
  }
  return count;
}

static size_t list_live(const weir_snapshot_segment *segments, size_t count, int device, known *to, size_t room) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    const weir_snapshot_segment *s = weir_snapshot_segment_at(segments, i);
    for (size_t k = 0; s->device == device && k < s->block_count; k++) {
      const weir_snapshot_block *b = weir_snapshot_block_at(s, k);
      if (found < room)
        to[found] = (known){b->address,
                            b->bytes,
                            b->requested,
                            (uint64_t)(uintptr_t)s->stream,
                            {s->pool.first, s->pool.second},
                            (uint64_t)b->state,
                            !s->is_large,
                            (uint64_t)s->is_expandable,
                            0};
      found++;
    }
  }
  return found;
}

static void compare_end(const weir__state *state, int device, weir_allocator *allocator) {
  weir_snapshot_options options;
  weir_snapshot *taken;
  const weir_snapshot_segment *segments;
  size_t count;
  weir_snapshot_options_init(&options);
  options.traces = 0;
  assert_ok(weir_snapshot_take(allocator, &options, &taken));
  assert_ok(weir_snapshot_segments(taken, &segments, &count));
  known *replayed = calloc(state->block_count + 1, sizeof *replayed),
        *live = calloc(state->block_count + 1, sizeof *live);
  assert_true(replayed && live);
  size_t a = list_replayed(state, replayed), b = list_live(segments, count, device, live, state->block_count);
  assert_int_equal(a, b);
  for (size_t i = 0; i < a; i++)
    if (memcmp(&replayed[i], &live[i], sizeof *live) != 0)
      fail_msg("block %zu of %zu: 0x%llx of %llu bytes in state %llu, the allocator has 0x%llx of %llu in %llu", i, a,
               (unsigned long long)replayed[i].address, (unsigned long long)replayed[i].size,
               (unsigned long long)replayed[i].state, (unsigned long long)live[i].address,
               (unsigned long long)live[i].size, (unsigned long long)live[i].state);
  free(replayed);
  free(live);
  weir_snapshot_destroy(taken);
}

size_t check_loaded(const weir__recording *s, int device, weir_allocator *allocator) {
  const weir__recording_device *d = &s->devices[device];
  weir__replayer *history = NULL;
  weir__replay_report report;
  if (!d->event_count) /* there is only the checkpoint */
    return 0;
  if (weir__replayer_open(s, device, 0, 0, &history))
    fail_msg("device %d: %s", device, weir_last_error());
  view v = {.recording = s, .last = d->event_count - 1};
  assert_ok(weir__replayer_recheck(history, &(weir__replay_callback){look, &v}, &report));
  for (size_t i = 0; i < report.differences && i < 4; i++)
    print_error("%s\n", report.shown[i]);
  assert_int_equal(report.differences, 0);
  assert_int_equal(weir__replayer_check(history)->differences, 0);
  if (allocator)
    compare_end(&v.state, device, allocator);
  weir__state_clear(&v.state);
  weir__replayer_close(history);
  return d->event_count;
}

size_t check_window(const char *path, int device, weir_allocator *allocator) {
  weir__recording *s = load_recording(path);
  size_t events = check_loaded(s, device, allocator);
  weir__recording_free(s);
  return events;
}
