#include "offline/analyse/diff.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "base/text.h"
#include "offline/analyse/classes.h"
#include "offline/analyse/levels.h"
#include "offline/analyse/lives.h"
#include "offline/analyse/phases.h"
#include "offline/analyse/summary.h"

/* ---- One recording ---- */

typedef struct side {
  const weir__recording *recording;
  const weir__recording_device *device;
  weir__diff_side *out;
  weir__lives lives;
  uint32_t *alike;
  weir__classes classes;
  uint16_t *stream_rank; /* of each stream: the order of first use; 0 for the default stream */
  uint32_t peak, *step_peak;
  size_t first_step; /* after warm-up */
  uint32_t *phases;  /* of each block */
} side;

static bool rank_streams(side *s) {
  size_t count = s->recording->stream_count + 1;
  uint16_t next = 1;
  s->stream_rank = calloc(count, sizeof *s->stream_rank);
  for (size_t i = 0; i < s->lives.block_count && s->stream_rank; i++) {
    uint16_t stream = s->lives.blocks[i].stream;
    if (stream && !s->stream_rank[stream])
      s->stream_rank[stream] = next++;
  }
  return s->stream_rank != NULL;
}

/* The phase in which a block was allocated. Numbers as in "ProfilerStep#7" are left out. Returns `text`, or "" for
 * none. */
static const char *phase_of(const side *s, size_t block, char text[WEIR__DESCRIBE_TEXT]) {
  const char *name = s->phases[block] == WEIR__NO_PHASE ? "" : s->recording->strings.items[s->phases[block]].text;
  weir__escape_text(name, strlen(name), text, WEIR__DESCRIBE_TEXT);
  char *number = strrchr(text, '#');
  if (number && number[1] && strspn(number + 1, "0123456789") == strlen(number + 1))
    *number = 0;
  return text;
}

/* The levels at the peak, at the end and at the peaks of steps. */
static weir_status measure(side *s) {
  weir__diff_side *out = s->out;
  const weir__steps *steps = &out->steps;
  weir__summary summary;
  weir__levels levels;
  weir_status status = weir__summarize(s->recording, out->device, &summary);
  if (!status)
    status = weir__levels_begin(s->recording, out->device, &levels);
  if (status)
    return status;
  weir__levels end = levels;
  for (size_t i = 0; i < s->device->event_count; i++)
    weir__levels_move(&end, &s->device->events[i]);
  out->is_known = !summary.is_unknown && s->device->event_count;
  out->has_end = out->is_known;
  s->peak = (uint32_t)summary.live.event;
  s->first_step = steps->warm_up < steps->count ? steps->warm_up : 0;
  s->step_peak = calloc(steps->count + 1, sizeof *s->step_peak);
  out->step_peaks = calloc(steps->count + 1, sizeof *out->step_peaks);
  if (!s->step_peak || !out->step_peaks)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory to compare recordings");
  double reserved = 0, sums[2] = {0};
  for (size_t i = 0, k = 0; i < s->device->event_count && k < steps->count; i++) {
    weir__levels_move(&levels, &s->device->events[i]);
    if (i < steps->begin[k])
      continue;
    bool is_first = i == steps->begin[k];
    if (is_first || (double)levels.allocated > out->step_peaks[k]) {
      out->step_peaks[k] = (double)levels.allocated;
      s->step_peak[k] = (uint32_t)i;
    }
    reserved = is_first || (double)levels.reserved > reserved ? (double)levels.reserved : reserved;
    if (i + 1 == steps->begin[k + 1]) {
      sums[1] += k >= s->first_step ? reserved : 0;
      k++;
    }
  }
  for (size_t k = s->first_step; k < steps->count; k++)
    sums[0] += out->step_peaks[k];
  double n = steps->count ? (double)(steps->count - s->first_step) : 1;
  out->allocated[WEIR__DIFF_PEAK] = (double)summary.live.bytes;
  out->reserved[WEIR__DIFF_PEAK] = (double)summary.reserved.bytes;
  out->allocated[WEIR__DIFF_END] = (double)end.allocated;
  out->reserved[WEIR__DIFF_END] = (double)end.reserved;
  out->allocated[WEIR__DIFF_STEP] = sums[0] / n;
  out->reserved[WEIR__DIFF_STEP] = sums[1] / n;
  return WEIR_OK;
}

static weir_status open_side(side *s) {
  weir__diff_side *out = s->out;
  weir_status status = weir__lives_make(s->recording, out->device, &s->lives);
  out->entries = s->device->event_count;
  out->settings = s->recording->conf;
  if (!status)
    status = weir__job_steps_find(s->recording, out->device, &s->lives, &out->steps);
  if (!status)
    status = weir__describe_alike(s->recording, &s->alike);
  if (!status)
    status = weir__classes_make(s->recording, out->device, &s->lives, &s->classes);
  if (!status)
    status = weir__phases_of(s->recording, out->device, &s->lives, &s->phases);
  if (!status)
    status = measure(s);
  if (!status && !rank_streams(s))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory to compare recordings");
  return status;
}

static void close_side(side *s) {
  weir__lives_clear(&s->lives);
  weir__classes_clear(&s->classes);
  free(s->alike);
  free(s->stream_rank);
  free(s->step_peak);
  free(s->phases);
}

/* The steps after warm-up at whose peaks a block is in use. */
static size_t steps_of(const side *s, const weir__life *b) {
  const size_t count = s->out->steps.count;
  size_t from = s->first_step, to = count;
  if (!b->is_before) {
    int64_t step = weir__steps_at(&s->out->steps, b->begin);
    if (step > (int64_t)from)
      from = (size_t)step;
    if (from < count && s->step_peak[from] < b->begin)
      from++;
  }
  if (b->freed != WEIR__LIFE_OPEN) {
    int64_t step = weir__steps_at(&s->out->steps, b->freed);
    to = step < 0 ? 0 : (size_t)step < count ? (size_t)step : count;
    if (to < count && s->step_peak[to] < b->freed)
      to++;
  }
  return to > from ? to - from : 0;
}

/* What a block contributes; false if nothing. */
static bool weigh(const side *s, bool has_steps, const weir__life *b, weir__diff_sums *sums) {
  size_t steps = has_steps ? steps_of(s, b) : 0;
  bool at_peak = weir__life_spans(b, s->peak), at_end = b->freed == WEIR__LIFE_OPEN;
  if (!at_peak && !at_end && !steps)
    return false;
  double size = (double)b->size, n = (double)(s->out->steps.count - s->first_step);
  sums->bytes[WEIR__DIFF_PEAK] = at_peak ? size : 0;
  sums->bytes[WEIR__DIFF_END] = at_end ? size : 0;
  sums->bytes[WEIR__DIFF_STEP] = steps ? size * (double)steps / n : 0;
  sums->count = at_peak;
  return true;
}

static void add(weir__diff_sums *to, const weir__diff_sums *by) {
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++)
    to->bytes[i] += by->bytes[i];
  to->count += by->count;
}

/* ---- Rows ---- */

typedef struct row_slot {
  uint64_t key;
  uint32_t row; /* + 1 */
} row_slot;

static weir__diff_row *row_of(weir__diff_rows *rows, weir__hash_map *map, uint64_t key, bool *is_new) {
  row_slot *slot = weir__hash_map_put(map, sizeof *slot, key ? key : 1);
  *is_new = slot && !slot->row;
  if (!slot || (*is_new && !WEIR__RESERVE(rows->items, rows->room, rows->count + 1)))
    return NULL;
  if (*is_new) {
    rows->items[rows->count++] = (weir__diff_row){0};
    slot->row = (uint32_t)rows->count;
  }
  return &rows->items[slot->row - 1];
}

static uint64_t text_key(const char *text) { return weir__hash_bytes(0, text, strlen(text)); }

/* Texts with a line number that differ elsewhere do not have the same key: ":147" becomes ":". */
static void without_lines(const char *text, char out[WEIR__DESCRIBE_TEXT]) {
  size_t n = 0;
  for (bool after_colon = false; *text && n + 1 < WEIR__DESCRIBE_TEXT; text++) {
    if (after_colon && isdigit((unsigned char)*text))
      continue;
    after_colon = *text == ':';
    out[n++] = *text;
  }
  out[n] = 0;
}

/* The key of a block, other than its stack, and its name. */
static uint64_t key_of(const weir__diff *diff, weir__diff_key by, const side *s, size_t block,
                       char text[WEIR__DESCRIBE_TEXT]) {
  const weir__life *b = &s->lives.blocks[block];
  uint64_t number;
  switch (by) {
  case WEIR__DIFF_SIZE:
    if (diff->sizes > WEIR__DIFF_SIZES) {
      number = weir__size_class(b->size);
      weir__describe_size_class(number, text);
      return number;
    }
    weir__format_bytes(b->size, text);
    return b->size + 1;
  case WEIR__DIFF_STREAM:
    number = s->stream_rank[b->stream];
    if (!number)
      snprintf(text, WEIR__DESCRIBE_TEXT, "the default stream");
    else
      snprintf(text, WEIR__DESCRIBE_TEXT, "side stream %llu", (unsigned long long)number);
    return number + 1;
  case WEIR__DIFF_CLASS:
    snprintf(text, WEIR__DESCRIBE_TEXT, "%s", weir__class_name((weir__class)s->classes.of[block]));
    return s->classes.of[block] + 1u;
  default:
    if (!*phase_of(s, block, text))
      snprintf(text, WEIR__DESCRIBE_TEXT, "outside of phases");
    return text_key(text);
  }
}

/* Adds to the row of a key. `stack` is 0 for other keys. */
static bool add_to(weir__diff_rows *rows, weir__hash_map *map, uint64_t key, const char *text, uint32_t stack,
                   int which, const weir__diff_sums *sums) {
  bool is_new;
  weir__diff_row *row = row_of(rows, map, key, &is_new);
  if (!row)
    return false;
  if (is_new)
    snprintf(row->name, sizeof row->name, "%s", text);
  if (!row->stack[which])
    row->stack[which] = stack;
  add(&row->of[which], sums);
  return true;
}

/* Descriptions of stacks are made once for each group: blocks are first summed up by stack. */
static bool collect(weir__diff *diff, weir__hash_map maps[WEIR__DIFF_KEYS], const side *s, int which) {
  const size_t stacks = s->recording->stack_count + 1;
  weir__diff_sums *by_stack = calloc(stacks, sizeof *by_stack);
  bool *is_seen = calloc(stacks, sizeof *is_seen), ok = by_stack && is_seen;
  char text[WEIR__DESCRIBE_TEXT];
  for (size_t i = 0; i < s->lives.block_count && ok; i++) {
    const weir__life *b = &s->lives.blocks[i];
    weir__diff_sums sums = {0};
    if (!weigh(s, diff->has_steps, b, &sums))
      continue;
    uint32_t stack = b->stack < s->recording->stack_count ? s->alike[b->stack] : 0;
    add(&by_stack[stack], &sums);
    is_seen[stack] = true;
    diff->has_classes |= s->classes.of[i] != WEIR__CLASS_UNKNOWN;
    diff->has_phases |= *phase_of(s, i, text) != 0;
    for (int k = WEIR__DIFF_SIZE; k < WEIR__DIFF_KEYS && ok; k++) {
      uint64_t key = key_of(diff, (weir__diff_key)k, s, i, text);
      ok = add_to(&diff->by[k], &maps[k], key, text, 0, which, &sums);
    }
  }
  for (size_t i = 0; i + 1 < stacks + (stacks == 1) && ok; i++)
    if (is_seen[i]) {
      if (!*weir__describe_stack(s->recording, (uint32_t)i, text))
        snprintf(text, sizeof text, "without a stack");
      ok = add_to(&diff->by[WEIR__DIFF_STACK], &maps[WEIR__DIFF_STACK], text_key(text), text, (uint32_t)i, which,
                  &by_stack[i]);
    }
  free(by_stack);
  free(is_seen);
  return ok;
}

/* ---- What the other recording has at other moments ---- */

/* The rows whose blocks a recording allocates, be it at none of the moments. Stacks are known by their texts. */
static void note_made(weir__diff *diff, weir__hash_map maps[WEIR__DIFF_KEYS], const side *s, int which) {
  for (size_t i = 0; i < s->lives.block_count; i++)
    for (int k = WEIR__DIFF_SIZE; k < WEIR__DIFF_KEYS; k++) {
      char text[WEIR__DESCRIBE_TEXT];
      uint64_t key = key_of(diff, (weir__diff_key)k, s, i, text);
      const row_slot *slot = weir__hash_map_find(&maps[k], sizeof *slot, key ? key : 1);
      if (slot)
        diff->by[k].items[slot->row - 1].is_made[which] = true;
    }
  for (size_t i = 0; i < s->recording->stack_count; i++) {
    char text[WEIR__DESCRIBE_TEXT];
    if (s->alike[i] != i)
      continue;
    weir__describe_stack(s->recording, (uint32_t)i, text);
    const row_slot *slot = *text ? weir__hash_map_find(&maps[WEIR__DIFF_STACK], sizeof *slot, text_key(text)) : NULL;
    if (slot)
      diff->by[WEIR__DIFF_STACK].items[slot->row - 1].is_made[which] = true;
  }
}

static bool count_sizes(weir__diff *diff, const side sides[2]) {
  weir__hash_map seen = {0};
  bool ok = true;
  for (int which = 0; which < 2 && ok; which++)
    for (size_t i = 0; i < sides[which].lives.block_count && ok; i++)
      ok = weir__hash_map_put(&seen, sizeof(row_slot), sides[which].lives.blocks[i].size + 1);
  diff->sizes = seen.count;
  weir__hash_map_clear(&seen);
  return ok;
}

/* ---- Stacks that have moved ---- */

typedef struct moved {
  char text[WEIR__DESCRIBE_TEXT];
  long lines[2];
  uint32_t row;
  int which;
} moved;

static bool is_only(const weir__diff_row *row, int which) {
  bool has_other = false;
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++)
    has_other |= row->of[!which].bytes[i] != 0;
  return !has_other && row->stack[which] && !row->stack[!which];
}

static int by_text(const void *a, const void *b) {
  const moved *x = a, *y = b;
  int order = strcmp(x->text, y->text);
  for (int i = 0; i < 2 && !order; i++)
    order = (x->lines[i] > y->lines[i]) - (x->lines[i] < y->lines[i]);
  return order ? order : x->which - y->which;
}

static void read_lines(const char *text, long lines[2]) {
  lines[0] = lines[1] = 0;
  for (int i = 0; i < 2 && (text = strchr(text, ':')); i++)
    lines[i] = strtol(++text, NULL, 10);
}

/* Joins rows that only one recording has and that differ in line numbers alone: the first with the first, and so on. */
static bool join_moved(weir__diff *diff) {
  weir__diff_rows *rows = &diff->by[WEIR__DIFF_STACK];
  moved *list = malloc((rows->count + 1) * sizeof *list);
  size_t count = 0, kept = 0;
  if (!list)
    return false;
  for (size_t i = 0; i < rows->count; i++)
    for (int which = 0; which < 2; which++)
      if (is_only(&rows->items[i], which)) {
        moved *m = &list[count++];
        *m = (moved){.row = (uint32_t)i, .which = which};
        without_lines(rows->items[i].name, m->text);
        read_lines(rows->items[i].name, m->lines);
      }
  qsort(list, count, sizeof *list, by_text);
  for (size_t i = 0, next; i < count; i = next) {
    for (next = i; next < count && strcmp(list[next].text, list[i].text) == 0; next++)
      ;
    for (size_t a = i, b = i;; a++, b++) {
      while (a < next && list[a].which)
        a++;
      while (b < next && !list[b].which)
        b++;
      if (a >= next || b >= next)
        break;
      weir__diff_row *to = &rows->items[list[b].row], *from = &rows->items[list[a].row];
      to->of[0] = from->of[0];
      to->stack[0] = from->stack[0];
      to->is_made[0] |= from->is_made[0];
      to->has_moved = true;
      from->name[0] = 0; /* to be removed */
    }
  }
  for (size_t i = 0; i < rows->count; i++)
    if (rows->items[i].name[0])
      rows->items[kept++] = rows->items[i];
  rows->count = kept;
  free(list);
  return true;
}

/* ---- Results ---- */

static double magnitude(double x) { return x < 0 ? -x : x; }

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void judge(weir__diff_row *row, double noise) {
  bool has[2] = {row->is_made[0], row->is_made[1]};
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    double difference = row->of[1].bytes[i] - row->of[0].bytes[i];
    has[0] |= row->of[0].bytes[i] > 0;
    has[1] |= row->of[1].bytes[i] > 0;
    if (magnitude(difference) > magnitude(row->difference) + 0.5)
      row->difference = difference;
  }
  row->change = !has[0]               ? WEIR__DIFF_APPEARED
                : !has[1]             ? WEIR__DIFF_DISAPPEARED
                : row->difference > 0 ? WEIR__DIFF_GREW
                : row->difference < 0 ? WEIR__DIFF_SHRANK
                                      : WEIR__DIFF_SAME;
  row->is_noise = magnitude(row->difference) < noise;
}

/* How much the peaks of steps of a recording differ, half of them at least. */
static double spread_of(const side *s) {
  const size_t count = s->out->steps.count - s->first_step;
  double *peaks = count > 1 ? malloc(count * sizeof *peaks) : NULL, spread = 0;
  if (peaks) {
    memcpy(peaks, s->out->step_peaks + s->first_step, count * sizeof *peaks);
    qsort(peaks, count, sizeof *peaks, by_value);
    spread = peaks[3 * count / 4] - peaks[count / 4];
  }
  free(peaks);
  return spread;
}

static double noise_of(const side sides[2]) {
  double noise = 0;
  for (int i = 0; i < 2; i++) {
    double spread = sides[i].out->steps.count ? spread_of(&sides[i]) : 0;
    double least = 1e-3 * sides[i].out->allocated[WEIR__DIFF_PEAK];
    noise = spread > noise ? spread : noise;
    noise = least > noise ? least : noise;
  }
  return noise;
}

static int by_difference(const void *a, const void *b) {
  const weir__diff_row *x = a, *y = b;
  double dx = magnitude(x->difference), dy = magnitude(y->difference);
  if (dx != dy)
    return dx < dy ? 1 : -1;
  double bx = x->of[0].bytes[0] + x->of[1].bytes[0], by = y->of[0].bytes[0] + y->of[1].bytes[0];
  return bx != by ? (bx < by ? 1 : -1) : strcmp(x->name, y->name);
}

static void finish(weir__diff *diff) {
  for (int k = 0; k < WEIR__DIFF_KEYS; k++) {
    weir__diff_rows *rows = &diff->by[k];
    for (size_t i = 0; i < rows->count; i++)
      judge(&rows->items[i], diff->noise);
    if (rows->count)
      qsort(rows->items, rows->count, sizeof *rows->items, by_difference);
  }
  for (size_t i = 0; i < diff->by[WEIR__DIFF_STACK].count; i++) {
    const weir__diff_row *row = &diff->by[WEIR__DIFF_STACK].items[i];
    if (!row->stack[0] && !row->stack[1])
      continue;
    diff->stacks_moved += row->has_moved;
    diff->stacks_same += !row->has_moved && row->stack[0] && row->stack[1];
    diff->stacks_only[0] += !row->stack[1];
    diff->stacks_only[1] += !row->stack[0];
  }
}

/* What is in use at the end is compared only if it is more than a rest of the peak. */
static void check_growth(weir__diff *diff) {
  const weir__diff_side *a = &diff->side[0], *b = &diff->side[1];
  weir__row rows[WEIR__DIFF_TOTALS];
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    weir__diff_totals(diff, (weir__diff_moment)i, rows);
    for (int k = 0; k < WEIR__DIFF_TOTALS && weir__diff_has_moment(diff, (weir__diff_moment)i); k++) {
      const double from = rows[k].value, to = rows[k].other;
      bool is_rest = i == WEIR__DIFF_END && from < 0.01 * a->allocated[WEIR__DIFF_PEAK] &&
                     to < 0.01 * b->allocated[WEIR__DIFF_PEAK];
      double percent = from > 0 ? 100 * (to - from) / from : 1e9;
      if (is_rest || to <= from || percent <= diff->grew)
        continue;
      diff->grew = percent;
      diff->what = rows[k].label;
    }
  }
  diff->has_failed = diff->fail_above >= 0 && diff->grew > diff->fail_above;
}

weir_status weir__diff_make(const weir__recording *a, const weir__recording *b, const weir__diff_options *options,
                            weir__diff *diff) {
  const weir__recording *recordings[2] = {a, b};
  weir__diff made = {.fail_above = options->fail_above};
  side sides[2] = {{.recording = a}, {.recording = b}};
  weir__hash_map maps[WEIR__DIFF_KEYS] = {0};
  weir_status status = WEIR_OK;
  for (int i = 0; i < 2 && !status; i++) {
    int device = options->device[i] >= 0 ? options->device[i] : weir__recording_first_device(recordings[i]);
    made.side[i] = (weir__diff_side){.file = options->file[i], .device = device};
    status = weir__recording_check_device(recordings[i], options->file[i], device);
    if (!status) {
      sides[i] = (side){.recording = recordings[i], .device = &recordings[i]->devices[device], .out = &made.side[i]};
      status = open_side(&sides[i]);
    }
  }
  if (!status) {
    made.has_steps = made.side[0].steps.count && made.side[1].steps.count;
    bool ok = count_sizes(&made, sides) && collect(&made, maps, &sides[0], 0) && collect(&made, maps, &sides[1], 1);
    for (int i = 0; i < 2 && ok; i++)
      note_made(&made, maps, &sides[i], i);
    ok = ok && join_moved(&made);
    if (ok) {
      made.noise = noise_of(sides);
      finish(&made);
      check_growth(&made);
    } else
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory to compare recordings");
  }
  for (int i = 0; i < WEIR__DIFF_KEYS; i++)
    weir__hash_map_clear(&maps[i]);
  for (int i = 0; i < 2; i++)
    close_side(&sides[i]);
  if (status)
    weir__diff_clear(&made);
  else
    *diff = made;
  return status;
}

void weir__diff_clear(weir__diff *diff) {
  for (int i = 0; i < WEIR__DIFF_KEYS; i++)
    free(diff->by[i].items);
  for (int i = 0; i < 2; i++) {
    weir__steps_clear(&diff->side[i].steps);
    free(diff->side[i].step_peaks);
  }
  *diff = (weir__diff){0};
}

bool weir__diff_has_moment(const weir__diff *diff, weir__diff_moment moment) {
  return diff->side[0].is_known && diff->side[1].is_known && (moment != WEIR__DIFF_STEP || diff->has_steps);
}

bool weir__diff_has_key(const weir__diff *diff, weir__diff_key key) {
  return (key != WEIR__DIFF_PHASE || diff->has_phases) && (key != WEIR__DIFF_CLASS || diff->has_classes);
}

void weir__diff_totals(const weir__diff *diff, weir__diff_moment moment, weir__row rows[WEIR__DIFF_TOTALS]) {
  static const char *const labels[WEIR__DIFF_MOMENTS][WEIR__DIFF_TOTALS] = {{"peak in use", "peak reserved"},
                                                                            {"in use at end", "reserved at end"},
                                                                            {"in use in a step", "reserved in a step"}};
  const weir__diff_side *a = &diff->side[0], *b = &diff->side[1];
  rows[0] = (weir__row){labels[moment][0], "allocated", WEIR__UNIT_BYTES, a->allocated[moment], b->allocated[moment]};
  rows[1] = (weir__row){labels[moment][1], "reserved", WEIR__UNIT_BYTES, a->reserved[moment], b->reserved[moment]};
}

const char *weir__diff_moment_name(weir__diff_moment moment) {
  static const char *const names[] = {"peak", "end", "step"};
  return names[moment];
}

const char *weir__diff_moment_text(weir__diff_moment moment) {
  static const char *const texts[] = {"at the peak", "at the end", "in a step"};
  return texts[moment];
}

const char *weir__diff_key_name(weir__diff_key key) {
  static const char *const names[] = {"stack", "size", "stream", "phase", "class"};
  return names[key];
}

const char *weir__diff_change_name(weir__diff_change change) {
  static const char *const names[] = {"same", "grew", "shrank", "appeared", "disappeared"};
  return names[change];
}
