#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/hash_map.h"
#include "inspect/json.h"
#include "offline/analyse/classes.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/moment.h"
#include "offline/render/export.h"
#include "weir/runtime.h"

/* Memory in use of one stack; without a stack, of one class and size. */
typedef struct sum {
  uint64_t key; /* + 1 */
  uint64_t bytes;
  uint64_t size;
  uint32_t stack;
  uint8_t class;
} sum;

typedef struct sums {
  int device;
  sum *items; /* by stack, class and size */
  size_t count;
  uint64_t bytes;
  char moment[64];
  bool has_classes;
} sums;

static int by_key(const void *a, const void *b) {
  const sum *x = a, *y = b;
  if (x->stack != y->stack)
    return (x->stack > y->stack) - (x->stack < y->stack);
  if (x->class != y->class)
    return x->class - y->class;
  return (x->size < y->size) - (x->size > y->size);
}

static bool sort(const weir__hash_map *map, sums *s) {
  size_t next = 0;
  s->items = malloc((map->count + 1) * sizeof *s->items);
  for (const sum *found; s->items && (found = weir__hash_map_next(map, sizeof *found, &next));)
    s->items[s->count++] = *found;
  if (s->items)
    qsort(s->items, s->count, sizeof *s->items, by_key);
  return s->items != NULL;
}

static weir_status add_all(const weir__recording *r, int device, size_t entry, const weir__lives *lives,
                           const weir__classes *classes, sums *s) {
  weir__hash_map map = {0};
  bool has_history = r->devices[device].event_count > 0, ok = true;
  for (size_t i = 0; i < lives->block_count && ok; i++) {
    const weir__life *life = &lives->blocks[i];
    if (has_history ? !weir__life_spans(life, entry) : life->freed != WEIR__LIFE_OPEN)
      continue;
    uint32_t stack = life->stack < r->stack_count && r->stacks[life->stack].count ? life->stack : 0;
    uint64_t key = stack ? stack : (1ull << 63 | ((life->size * WEIR__CLASSES + classes->of[i]) & ~(3ull << 62)));
    sum *found = weir__hash_map_put(&map, sizeof *found, key + 1);
    ok = found != NULL;
    if (!ok)
      break;
    found->stack = stack;
    found->size = stack ? 0 : life->size;
    found->class = stack ? 0 : classes->of[i];
    found->bytes += life->size;
    s->bytes += life->size;
  }
  s->has_classes = classes->is_known;
  ok = ok && sort(&map, s);
  weir__hash_map_clear(&map);
  return ok ? WEIR_OK
            : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the stacks of %zu blocks",
                         lives->block_count);
}

/* Sums up what is in use on a device at a moment. */
static weir_status find_sums(const weir__recording *r, int device, weir_offline_moment moment, size_t event, sums *s) {
  weir__summary summary;
  weir__lives lives = {0};
  weir__classes classes = {0};
  size_t entry;
  *s = (sums){.device = device};
  weir_status status = weir__summarize(r, device, &summary);
  if (!status)
    status = weir__moment_find(r, device, &summary, moment, event, &entry);
  if (!status)
    status = weir__lives_make(r, device, &lives);
  if (!status)
    status = weir__classes_make(r, device, &lives, &classes);
  if (!status)
    status = add_all(r, device, entry, &lives, &classes, s);
  if (!status)
    weir__moment_describe(&summary, moment, entry, s->moment);
  weir__classes_clear(&classes);
  weir__lives_clear(&lives);
  return status;
}

static void clear_all(sums *all, size_t count) {
  for (size_t i = 0; i < count; i++)
    free(all[i].items);
  free(all);
}

/* The sums of each device that has the moment. */
static weir_status find_all(const weir__recording *r, int device, weir_offline_moment moment, size_t event, sums **all,
                            size_t *count) {
  weir_status status = WEIR_OK;
  sums *found = malloc((r->device_count + 1) * sizeof *found);
  size_t n = 0;
  if (!found)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu devices", r->device_count);
  for (size_t d = 0; d < r->device_count && status != WEIR_ERROR_HOST_OUT_OF_MEMORY; d++) {
    if (device >= 0 ? (size_t)device != d : !r->devices[d].event_count && !r->devices[d].segment_count)
      continue;
    weir_status one = find_sums(r, (int)d, moment, event, &found[n]);
    status = one ? one : status;
    n += !one;
  }
  if (!n && !status)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "the recording has no memory in use");
  if (status && (!n || status == WEIR_ERROR_HOST_OUT_OF_MEMORY)) {
    clear_all(found, n);
    return status;
  }
  *all = found;
  *count = n;
  return WEIR_OK;
}

/* ---- Collapsed ---- */

/* ";" separates frames, and a line ends a stack. */
static void put_name(FILE *file, const char *text) {
  for (; *text; text++)
    fputc(*text == ';' ? ':' : (unsigned char)*text < ' ' ? '?' : *text, file);
}

static void write_collapsed(const weir__recording *r, const sums *s, FILE *file) {
  char text[48];
  for (size_t i = 0; i < s->count; i++) {
    const sum *of = &s->items[i];
    const weir__recording_stack *stack = &r->stacks[of->stack];
    fprintf(file, "device %d", s->device);
    for (size_t k = stack->count; of->stack && k-- > 0;) {
      const weir__recording_frame *f = &r->frames[r->stack_frames[stack->first + k]];
      const char *name = r->strings.items[f->filename].text, *slash = strrchr(name, '/');
      fputc(';', file);
      put_name(file, r->strings.items[f->name].text);
      fputs(" (", file);
      put_name(file, slash ? slash + 1 : name);
      fprintf(file, ":%lld)", (long long)f->line);
    }
    if (!of->stack) {
      fputs(";no stack recorded", file);
      if (s->has_classes)
        fprintf(file, ";%s", weir__class_name((weir__class)of->class));
      fprintf(file, ";blocks of %s", weir__format_bytes(of->size, text));
    }
    fprintf(file, " %llu\n", (unsigned long long)of->bytes);
  }
}

weir_status weir__export_collapsed(const weir__recording *recording, int device, weir_offline_moment moment,
                                   size_t event, FILE *file) {
  sums *all;
  size_t count;
  weir_status status = find_all(recording, device, moment, event, &all, &count);
  if (status)
    return status;
  for (size_t i = 0; i < count; i++)
    write_collapsed(recording, &all[i], file);
  clear_all(all, count);
  return ferror(file) ? weir__fail(WEIR_ERROR_SYSTEM, "cannot write it") : WEIR_OK;
}

/* ---- speedscope ---- */

/* Frames are those of the recording, then "no stack recorded", the classes, and a frame for each size. */
static size_t first_extra(const weir__recording *r) { return r->frame_count; }
static size_t first_size(const weir__recording *r) { return r->frame_count + 1 + WEIR__CLASSES; }

/* The frames of sizes, in the order of the samples. */
static void write_sizes(const sums *s, weir__sink *sink) {
  char name[64], text[48];
  for (size_t i = 0; i < s->count; i++)
    if (!s->items[i].stack) {
      snprintf(name, sizeof name, "blocks of %s", weir__format_bytes(s->items[i].size, text));
      WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("name", name), JSON_CLOSE);
    }
}

/* `sizes` counts those that samples have used so far. */
static void write_profile(const weir__recording *r, const sums *s, size_t *sizes, weir__sink *sink) {
  char name[160];
  snprintf(name, sizeof name, "device %d: memory in use at %s", s->device, s->moment);
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("type", "sampled"), JSON_TEXT("name", name), JSON_TEXT("unit", "bytes"),
             JSON_NATURAL("startValue", 0), JSON_NATURAL("endValue", s->bytes), JSON_LIST("samples"));
  for (size_t i = 0; i < s->count; i++) {
    const sum *of = &s->items[i];
    const weir__recording_stack *stack = &r->stacks[of->stack];
    WEIR__JSON(sink, JSON_LIST(NULL));
    for (size_t k = stack->count; of->stack && k-- > 0;)
      WEIR__JSON(sink, JSON_NATURAL(NULL, r->stack_frames[stack->first + k]));
    if (!of->stack) {
      WEIR__JSON(sink, JSON_NATURAL(NULL, first_extra(r)));
      if (s->has_classes)
        WEIR__JSON(sink, JSON_NATURAL(NULL, first_extra(r) + 1 + of->class));
      WEIR__JSON(sink, JSON_NATURAL(NULL, first_size(r) + *sizes));
      ++*sizes;
    }
    WEIR__JSON(sink, JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE, JSON_LIST("weights"));
  for (size_t i = 0; i < s->count; i++)
    WEIR__JSON(sink, JSON_NATURAL(NULL, s->items[i].bytes));
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
}

static void write_frames(const weir__recording *r, weir__sink *sink) {
  for (size_t i = 0; i < r->frame_count; i++) {
    const weir__recording_frame *f = &r->frames[i];
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("name", r->strings.items[f->name].text),
               JSON_TEXT("file", r->strings.items[f->filename].text), JSON_INTEGER("line", f->line), JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("name", "no stack recorded"), JSON_CLOSE);
  for (int i = 0; i < WEIR__CLASSES; i++)
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("name", weir__class_name((weir__class)i)), JSON_CLOSE);
}

weir_status weir__export_speedscope(const weir__recording *recording, int device, weir_offline_moment moment,
                                    size_t event, FILE *file) {
  char exporter[48];
  sums *all;
  size_t count, sizes = 0;
  weir_status status = find_all(recording, device, moment, event, &all, &count);
  if (status)
    return status;
  weir__sink *sink = malloc(sizeof *sink);
  if (!sink) {
    clear_all(all, count);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  }
  snprintf(exporter, sizeof exporter, "weir %d.%d.%d", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
  weir__sink_begin(sink, &weir__json_format, weir_write_file, file);
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("$schema", "https://www.speedscope.app/file-format-schema.json"),
             JSON_TEXT("exporter", exporter), JSON_NATURAL("activeProfileIndex", 0), JSON_OBJECT("shared"),
             JSON_LIST("frames"));
  write_frames(recording, sink);
  for (size_t i = 0; i < count; i++)
    write_sizes(&all[i], sink);
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE, JSON_LIST("profiles"));
  for (size_t i = 0; i < count; i++)
    write_profile(recording, &all[i], &sizes, sink);
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
  status = weir__sink_end(sink, NULL);
  free(sink);
  clear_all(all, count);
  return status;
}
