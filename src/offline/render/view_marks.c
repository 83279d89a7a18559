#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash_map.h"
#include "offline/analyse/phases.h"
#include "offline/render/view_parts.h"

/* Phases, and what is marked on the axis of time. A phase is what a thread of the program said that it was doing, or
 * else the innermost range that the program marked around that time. */

enum { DEEPEST = 32, TIMES = 4096, MAX_PHASES = 65535 };

static const char *text_of(const weir__recording *recording, uint32_t string) {
  return string < recording->strings.count ? recording->strings.items[string].text : "";
}

static bool is_start(const weir__recording *recording, const weir__recording_annotation *a) {
  return strcmp(text_of(recording, a->stage), "START") == 0;
}

static bool is_of(const weir__view *view, const weir__recording_annotation *a) {
  return a->device < 0 || a->device == view->number;
}

/* ---- The phase of each block ---- */

typedef struct phase_number {
  uint64_t key; /* the string + 1 */
  uint16_t number;
} phase_number;

/* The number of a phase; 0 if there are too many. */
static bool number_phase(weir__view *view, weir__hash_map *known, uint32_t name, uint16_t *number) {
  phase_number *found = weir__hash_map_put(known, sizeof *found, (uint64_t)name + 1);
  if (!found)
    return false;
  if (!found->number && *text_of(view->recording, name) && view->phase_count < MAX_PHASES) {
    if (!WEIR__RESERVE(view->phase_names, view->phase_room, view->phase_count + 1))
      return false;
    view->phase_names[view->phase_count] = name;
    found->number = (uint16_t)view->phase_count++;
  }
  *number = found->number;
  return true;
}

weir_status weir__view_find_phases(weir__view *view) {
  const weir__recording *recording = view->recording;
  weir__hash_map known = {0};
  uint32_t *phases = NULL;
  weir_status status = weir__phases_of(recording, view->number, &view->lives, &phases);
  if (status)
    return status;
  view->phase = calloc(view->lives.block_count + 1, sizeof *view->phase);
  bool ok = view->phase && WEIR__RESERVE(view->phase_names, view->phase_room, 1);
  if (ok) {
    view->phase_names[0] = UINT32_MAX; /* no phase */
    view->phase_count = 1;
  }
  uint32_t last_name = UINT32_MAX;
  uint16_t last_number = 0;
  for (size_t i = 0; i < view->lives.block_count && ok; i++) {
    uint32_t name = phases[i];
    if (name == WEIR__NO_PHASE)
      continue;
    if (name != last_name)
      ok = number_phase(view, &known, name, &last_number);
    last_name = name;
    view->phase[i] = last_number;
  }
  weir__hash_map_clear(&known);
  free(phases);
  return ok ? WEIR_OK : weir__view_no_memory();
}

/* ---- Times ---- */

weir_status weir__view_write_times(weir__view *view) {
  size_t entries = view->device->event_count, count = entries < TIMES ? entries : TIMES;
  struct {
    uint32_t count, zero;
    double us[TIMES];
  } *times = malloc(sizeof *times);
  if (!view->summary.first_us || !count) {
    free(times);
    return WEIR_OK;
  }
  if (!times)
    return weir__view_no_memory();
  unsigned char *bytes = (unsigned char *)times;
  double last = 0;
  for (size_t i = 0; i < count; i++) {
    size_t entry = count > 1 ? (size_t)((double)i * (double)(entries - 1) / (double)(count - 1) + 0.5) : 0;
    int64_t time = view->device->events[entry < entries ? entry : entries - 1].time_us;
    if (time)
      last = (double)time - (double)view->summary.first_us;
    memcpy(bytes + 4 + i * sizeof last, &last, sizeof last);
  }
  uint32_t written = (uint32_t)count;
  memcpy(bytes, &written, sizeof written);
  WEIR__JSON(view->index, JSON_OBJECT("times"));
  weir_status status = weir__view_add_chunk(view, "t", 0, bytes, 4 + count * sizeof last);
  WEIR__JSON(view->index, JSON_CLOSE);
  free(times);
  return status;
}

/* ---- Marks ---- */

typedef struct mark {
  const char *kind;
  const char *name;
  size_t entry, end; /* end: 0 if it is a moment */
  uint64_t bytes;
} mark;

typedef struct marks {
  mark *items;
  size_t count, room;
} marks;

static bool add(marks *m, mark item) {
  if (!WEIR__RESERVE(m->items, m->room, m->count + 1))
    return false;
  m->items[m->count++] = item;
  return true;
}

/* The first entry that is not before a time. */
static size_t entry_at(const weir__recording_device *device, int64_t time_us) {
  size_t low = 0, high = device->event_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (device->events[middle].time_us < time_us)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The ranges that the program marked. Those that never end, end with the history. */
static bool add_ranges(const weir__view *view, marks *m) {
  const weir__recording *recording = view->recording;
  struct {
    size_t mark;
    uint32_t name;
  } open[DEEPEST];
  size_t depth = 0;
  if (!view->summary.first_us)
    return true;
  for (size_t i = 0; i < recording->annotation_count; i++) {
    const weir__recording_annotation *a = &recording->annotations[i];
    if (!is_of(view, a))
      continue;
    size_t entry = entry_at(view->device, a->time_us);
    if (is_start(recording, a)) {
      if (depth < DEEPEST) {
        open[depth].mark = m->count;
        open[depth++].name = a->name;
        if (!add(m, (mark){"phase", text_of(recording, a->name), entry, view->width, 0}))
          return false;
      }
      continue;
    }
    for (size_t k = depth; k-- > 0;)
      if (open[k].name == a->name) {
        m->items[open[k].mark].end = entry;
        depth = k;
        break;
      }
  }
  return true;
}

/* The phases of the program's threads: runs of entries with the same one. */
static bool add_phases(const weir__view *view, marks *m) {
  const weir__recording *recording = view->recording;
  uint32_t last = UINT32_MAX;
  size_t current = SIZE_MAX;
  if (recording->remark_count < 2)
    return true;
  for (size_t i = 0; i < view->device->event_count; i++) {
    uint32_t remark = view->device->events[i].remark;
    uint32_t phase = remark < recording->remark_count ? recording->remarks[remark].phase : 0;
    if (phase == last)
      continue;
    last = phase;
    if (current != SIZE_MAX)
      m->items[current].end = i;
    current = SIZE_MAX;
    if (!*text_of(recording, phase))
      continue;
    current = m->count;
    if (!add(m, (mark){"phase", text_of(recording, phase), i, view->width, 0}))
      return false;
  }
  return true;
}

static bool add_moments(const weir__view *view, marks *m) {
  bool ok = true;
  for (size_t i = 0; i < view->device->event_count && ok && view->summary.actions[WEIR_TRACE_OOM]; i++)
    if (view->device->events[i].action == WEIR_TRACE_OOM)
      ok = add(m, (mark){"oom", "out of memory", i, 0, view->device->events[i].size});
  if (!view->summary.is_unknown && view->device->event_count)
    ok = ok && add(m, (mark){"peak", "most allocated", view->summary.live.event, 0, view->summary.live.bytes});
  return ok;
}

/* Moments first, then the longest ranges. */
static int by_weight(const void *a, const void *b) {
  const mark *x = a, *y = b;
  size_t long_x = x->end ? x->end - x->entry : SIZE_MAX, long_y = y->end ? y->end - y->entry : SIZE_MAX;
  if (long_x != long_y)
    return (long_x < long_y) - (long_x > long_y);
  return (x->entry > y->entry) - (x->entry < y->entry);
}

static int by_entry(const void *a, const void *b) {
  const mark *x = a, *y = b;
  if (x->entry != y->entry)
    return (x->entry > y->entry) - (x->entry < y->entry);
  return (x->end < y->end) - (x->end > y->end);
}

weir_status weir__view_write_marks(weir__view *view) {
  marks m = {0};
  bool ok = add_ranges(view, &m) && add_phases(view, &m) && add_moments(view, &m);
  size_t total = 0;
  for (size_t i = 0; i < m.count; i++) /* ranges without an entry cannot be shown */
    if (!m.items[i].end || m.items[i].end > m.items[i].entry)
      m.items[total++] = m.items[i];
  size_t shown = total < WEIR__VIEW_MARKS ? total : WEIR__VIEW_MARKS;
  if (shown < total)
    qsort(m.items, total, sizeof *m.items, by_weight);
  if (shown)
    qsort(m.items, shown, sizeof *m.items, by_entry);
  WEIR__JSON(view->index, JSON_LIST("marks"));
  for (size_t i = 0; i < shown && ok; i++) {
    const mark *k = &m.items[i];
    WEIR__JSON(view->index, JSON_OBJECT(NULL), JSON_NATURAL("entry", k->entry), JSON_TEXT("kind", k->kind),
               JSON_TEXT("name", k->name));
    if (k->end)
      WEIR__JSON(view->index, JSON_NATURAL("end", k->end));
    if (k->bytes)
      WEIR__JSON(view->index, JSON_NATURAL("bytes", k->bytes));
    WEIR__JSON(view->index, JSON_CLOSE);
  }
  WEIR__JSON(view->index, JSON_CLOSE, JSON_NATURAL("marks_total", total));
  free(m.items);
  return ok ? WEIR_OK : weir__view_no_memory();
}
