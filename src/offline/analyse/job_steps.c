#include "offline/analyse/job_steps.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"

static const char *text_of(const weir__recording *r, uint32_t string) {
  return string < r->strings.count ? r->strings.items[string].text : "";
}

static bool add(weir__step_marks *marks, weir__step_mark mark) {
  if (!WEIR__RESERVE(marks->items, marks->room, marks->count + 1))
    return false;
  marks->items[marks->count++] = mark;
  return true;
}

static bool mark_annotations(const weir__recording *r, int device, const weir__recording_device *d,
                             weir__step_marks *marks) {
  size_t entry = 0;
  for (size_t i = 0; i < r->annotation_count && d->event_count; i++) {
    const weir__recording_annotation *a = &r->annotations[i];
    if ((a->device >= 0 && a->device != device) || !a->time_us)
      continue;
    while (entry < d->event_count && d->events[entry].time_us < a->time_us)
      entry++;
    if (!d->events[entry < d->event_count ? entry : entry - 1].time_us)
      return true; /* entries without times cannot be placed */
    weir__step_mark mark = {.entry = (uint32_t)entry, .text = text_of(r, a->name)};
    mark.is_end = strcmp(text_of(r, a->stage), "END") == 0;
    if (entry > 0 && !add(marks, mark))
      return false;
  }
  return true;
}

/* The phases, by string, of which the recording has the beginnings: where the last one ends, or 0. Others may be shared
 * among threads. NULL if the host has no memory. */
static uint32_t *ends_of_phases(const weir__recording *r, const weir__recording_device *d) {
  uint32_t *ends = calloc(r->strings.count + 1, sizeof *ends);
  for (size_t i = 0; i < d->event_count && ends; i++) {
    const weir__recording_entry *e = &d->events[i];
    uint32_t phase = r->remarks[e->remark].phase;
    if (phase < r->strings.count && (e->phase_begins || ends[phase]))
      ends[phase] = (uint32_t)i + 1;
  }
  return ends;
}

/* A mark where a thread enters a phase, or else where the phase or the metadata of its entries changes. Only texts with
 * numbers that change, such as "step 7", count as metadata. The last entry of a phase that has beginnings ends it. */
static bool mark_phases(const weir__recording *r, const weir__recording_device *d, bool is_metadata,
                        weir__step_marks *marks) {
  uint32_t last[WEIR__RECORDING_MANY_THREADS + 1] = {0};
  if (!r->remark_count)
    return true;
  uint32_t *ends = ends_of_phases(r, d);
  bool ok = ends != NULL;
  for (size_t i = 0; i < d->event_count && ok; i++) {
    const weir__recording_entry *e = &d->events[i];
    const weir__recording_remark *remark = &r->remarks[e->remark];
    uint32_t string = is_metadata ? remark->user_metadata : remark->phase;
    bool is_known = !is_metadata && string < r->strings.count && ends[string];
    if (e->action != WEIR_TRACE_ALLOC || (is_known ? !e->phase_begins : string == last[e->thread]))
      continue;
    last[e->thread] = string;
    if (*text_of(r, string))
      ok = add(marks, (weir__step_mark){.entry = (uint32_t)i, .text = text_of(r, string)});
  }
  for (uint32_t i = 0; i < r->strings.count && !is_metadata && ok; i++)
    if (ends[i])
      ok = add(marks, (weir__step_mark){.entry = ends[i], .text = text_of(r, i), .closes = true});
  free(ends);
  return ok;
}

static weir__sequence sequence_of(const weir__lives *lives) {
  return (weir__sequence){
      .blocks = lives->blocks, .block_count = lives->block_count, .entry_count = (uint32_t)lives->entry_count};
}

weir_status weir__job_steps_find(const weir__recording *recording, int device, const weir__lives *lives,
                                 weir__steps *steps) {
  const weir__recording_device *d = device < 0 ? &recording->host : &recording->devices[device];
  weir__step_marks marks[] = {{.source = WEIR__STEPS_ANNOTATIONS},
                              {.source = WEIR__STEPS_PHASES},
                              {.source = WEIR__STEPS_PHASES, .needs_numbers = true}};
  bool ok = mark_annotations(recording, device, d, &marks[0]) && mark_phases(recording, d, false, &marks[1]) &&
            mark_phases(recording, d, true, &marks[2]);
  weir__sequence sequence = sequence_of(lives);
  sequence.marks = marks;
  sequence.mark_kinds = WEIR_COUNT_OF(marks);
  weir_status status = ok ? weir__steps_find(&sequence, steps)
                          : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the steps of a job");
  for (size_t i = 0; i < WEIR_COUNT_OF(marks); i++)
    free(marks[i].items);
  return status;
}

weir_status weir__job_steps_windows(const weir__lives *lives, size_t count, weir__steps *steps) {
  weir__sequence sequence = sequence_of(lives);
  return weir__steps_windows(&sequence, count, steps);
}
