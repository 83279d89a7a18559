#include "offline/render/redact.h"
#include "offline/analyse/describe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/system.h"
#include "offline/render/export.h"
#include "offline/render/output_file.h"
#include "offline/render/rewrite.h"

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_)                                                                                                       \
      return status_;                                                                                                  \
  } while (0)

/* ---- Texts ---- */

/* A text gets a different hash in each role, so that the hash of one does not reveal another. */
enum role { FUNCTION, FILE_NAME, REMARK, ANNOTATION, SETTING };

typedef struct hider {
  weir__recording *s;
  weir__budget budget; /* for new texts; unlimited, as there are no more than old ones */
  weir__sha256 salted; /* the beginning of every hash */
} hider;

enum { HASH_BYTES = 8, LONGEST = 48 };

static weir_status out_of_memory(void) { return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory"); }

/* The ending is kept: the language is useful and reveals no name. */
static const char *ending_of(const weir__string *text) {
  static const char *const endings[] = {".py", ".pyx", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".so"};
  const char *dot = strrchr(text->text, '.');
  for (size_t i = 0; dot && i < WEIR_COUNT_OF(endings); i++)
    if (strcmp(dot, endings[i]) == 0)
      return endings[i];
  return "";
}

/* Reports show the innermost frame outside libraries, so hidden names keep this property. */
static const char *place_of(const weir__string *text) {
  return weir__lies_in_library(text->text) ? "/site-packages/" : "";
}

static void hide_text(hider *h, enum role role, const weir__string *text, char hidden[LONGEST]) {
  static const char *const before[] = {"f_", "file_", "r_", "a_", "s_"};
  unsigned char digest[WEIR__SHA256_SIZE], kind = (unsigned char)role;
  weir__sha256 sha = h->salted;
  weir__sha256_add(&sha, &kind, 1);
  weir__sha256_add(&sha, text->text, text->length);
  weir__sha256_end(&sha, digest);
  int at = snprintf(hidden, LONGEST, "%s%s", role == FILE_NAME ? place_of(text) : "", before[role]);
  for (int i = 0; i < HASH_BYTES; i++)
    at += snprintf(hidden + at, LONGEST - (size_t)at, "%02x", digest[i]);
  snprintf(hidden + at, LONGEST - (size_t)at, "%s", role == FILE_NAME ? ending_of(text) : "");
}

static weir_status new_string(hider *h, const char *text, uint32_t *string) {
  weir__strings *strings = &h->s->strings;
  size_t length = strlen(text);
  uint32_t hash = weir__strings_hash(strings, text, length);
  *string = weir__strings_find(strings, hash, text, length);
  if (*string == WEIR__TABLE_END)
    *string = weir__strings_add(strings, &h->budget, hash, text, length, true);
  return *string != WEIR__TABLE_END ? WEIR_OK : out_of_memory();
}

/* The replacement of each text in one role. */
typedef struct hidden {
  uint32_t *of; /* by text: a text + 1, or 0 if there is none yet */
  size_t count; /* of the array: the texts of the file */
  enum role role;
  size_t *counter; /* counts different texts */
} hidden;

static weir_status hide(hider *h, hidden *all, uint32_t *string) {
  if (*string >= all->count)
    return WEIR_OK;
  if (!all->of[*string]) {
    char text[LONGEST];
    uint32_t number;
    hide_text(h, all->role, &h->s->strings.items[*string], text);
    TRY(new_string(h, text, &number));
    all->of[*string] = number + 1;
    ++*all->counter;
  }
  *string = all->of[*string] - 1;
  return WEIR_OK;
}

static bool is_one_of(const weir__recording *s, uint32_t string, const char *const *texts) {
  for (; *texts; texts++)
    if (strcmp(s->strings.items[string].text, *texts) == 0)
      return true;
  return false;
}

/* Texts that mean "none" or "unknown" stay. */
static const char *const nothing[] = {"", "N/A", "??", NULL};

static weir_status hide_frames(hider *h, bool keep_functions, hidden *names, hidden *files) {
  for (size_t i = 0; i < h->s->frame_count; i++) {
    weir__recording_frame *f = &h->s->frames[i];
    if (!keep_functions && !is_one_of(h->s, f->name, nothing))
      TRY(hide(h, names, &f->name));
    if (!is_one_of(h->s, f->filename, nothing))
      TRY(hide(h, files, &f->filename));
  }
  return WEIR_OK;
}

static weir_status hide_remarks(hider *h, hidden *remarks) {
  for (size_t i = 0; i < h->s->remark_count; i++) {
    weir__recording_remark *r = &h->s->remarks[i];
    uint32_t *const texts[] = {&r->compile_context, &r->user_metadata, &r->action, &r->phase};
    for (size_t k = 0; k < WEIR_COUNT_OF(texts); k++)
      if (!is_one_of(h->s, *texts[k], nothing))
        TRY(hide(h, remarks, texts[k]));
  }
  return WEIR_OK;
}

/* Numbers and the kind of work stay. A file may have other pairs. */
static weir_status hide_work(hider *h, hidden *annotations, weir__recording_annotation *a) {
  static const char *const kept[] = {"stream", "start_ns", "duration_ns", "bytes", NULL};
  static const char *const kinds[] = {"kernel", "copy", "fill", "host", NULL};
  static const char *const kind[] = {"kind", NULL};
  TRY(hide(h, annotations, &a->name));
  for (size_t k = a->first_pair; k < a->first_pair + a->pair_count; k++) {
    weir__recording_pair *pair = &h->s->pairs[k];
    if (is_one_of(h->s, pair->key, kept) || (is_one_of(h->s, pair->key, kind) && is_one_of(h->s, pair->value, kinds)))
      continue;
    TRY(hide(h, annotations, &pair->key));
    TRY(hide(h, annotations, &pair->value));
  }
  return WEIR_OK;
}

static weir_status hide_annotations(hider *h, hidden *annotations) {
  static const char *const stages[] = {"", "START", "END", NULL};
  for (size_t i = 0; i < h->s->annotation_count; i++) {
    weir__recording_annotation *a = &h->s->annotations[i];
    TRY(hide(h, annotations, &a->name));
    if (!is_one_of(h->s, a->stage, stages))
      TRY(hide(h, annotations, &a->stage));
    for (size_t k = a->first_pair; k < a->first_pair + a->pair_count; k++) {
      TRY(hide(h, annotations, &h->s->pairs[k].key));
      TRY(hide(h, annotations, &h->s->pairs[k].value));
    }
  }
  for (size_t i = 0; i < h->s->work_count; i++)
    TRY(hide_work(h, annotations, &h->s->works[i].annotation));
  return WEIR_OK;
}

/* ---- Settings ---- */

/* An item of a configuration ends at a comma outside brackets. */
static size_t item_length(const char *conf) {
  int depth = 0;
  size_t length = 0;
  for (; conf[length] && (depth > 0 || conf[length] != ','); length++)
    depth += (conf[length] == '[') - (conf[length] == ']');
  return length;
}

/* Valid items are kept, since a replay reads them and they contain no names. */
static weir_status clean_conf(hider *h, const char *conf, const char **kept, size_t *dropped) {
  weir__settings parsed;
  if (weir__settings_parse(NULL, conf, &parsed) == WEIR_OK) {
    *kept = conf;
    return WEIR_OK;
  }
  size_t size = strlen(conf) + 1, at = 0;
  char *text = calloc(1, size), *item = malloc(size);
  if (!text || !item) {
    free(text);
    free(item);
    return out_of_memory();
  }
  for (size_t length; *conf; conf += length + (conf[length] == ',')) {
    length = item_length(conf);
    memcpy(item, conf, length);
    item[length] = 0;
    if (weir__settings_parse(NULL, item, &parsed) != WEIR_OK)
      ++*dropped;
    else
      at += (size_t)snprintf(text + at, size - at, "%s%s", at ? "," : "", item);
  }
  uint32_t string = 0;
  weir_status status = new_string(h, text, &string);
  if (!status)
    *kept = h->s->strings.items[string].text;
  free(text);
  free(item);
  return status;
}

static weir_status hide_settings(hider *h, size_t *dropped) {
  for (size_t i = 0; i < h->s->setting_count; i++) {
    weir__recording_setting *s = &h->s->settings[i];
    if (s->kind != WEIR__SETTING_TEXT)
      continue;
    if (!s->sub && strcmp(s->key, "PYTORCH_CUDA_ALLOC_CONF") == 0) {
      TRY(clean_conf(h, s->text, &s->text, dropped));
      h->s->conf = s->text;
      continue;
    }
    if (!*s->text)
      continue;
    char text[LONGEST];
    uint32_t string;
    hide_text(h, SETTING, &(weir__string){s->text, (uint32_t)strlen(s->text)}, text);
    TRY(new_string(h, text, &string));
    s->text = h->s->strings.items[string].text;
    ++*dropped;
  }
  return WEIR_OK;
}

/* ---- All of it ---- */

static weir_status add_salt(weir__sha256 *sha, const char *salt) {
  unsigned char random[WEIR__SHA256_SIZE];
  uint64_t length = salt ? strlen(salt) : sizeof random;
  if (!salt && !weir__random_bytes(random, sizeof random))
    return weir__fail(WEIR_ERROR_SYSTEM, "cannot get random numbers: %s; use --salt", strerror(errno));
  weir__sha256_begin(sha);
  weir__sha256_add(sha, &length, sizeof length);
  weir__sha256_add(sha, salt ? (const void *)salt : random, (size_t)length);
  return WEIR_OK;
}

weir_status weir__redact(weir__recording *snapshot, const weir__redact_options *options, weir__redaction *redaction) {
  hider h = {.s = snapshot, .budget = {.limit = UINT64_MAX}};
  weir__redaction r = {0};
  size_t count = snapshot->strings.count;
  TRY(add_salt(&h.salted, options->salt));
  weir__export_clean(snapshot);
  hidden roles[] = {{NULL, count, FUNCTION, &r.functions},
                    {NULL, count, FILE_NAME, &r.files},
                    {NULL, count, REMARK, &r.remarks},
                    {NULL, count, ANNOTATION, &r.annotations}};
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < WEIR_COUNT_OF(roles) && !status; i++) {
    roles[i].of = calloc(count + 1, sizeof(uint32_t));
    if (!roles[i].of)
      status = out_of_memory();
  }
  if (!status)
    status = hide_frames(&h, options->keep_functions, &roles[FUNCTION], &roles[FILE_NAME]);
  if (!status)
    status = hide_remarks(&h, &roles[REMARK]);
  if (!status)
    status = hide_annotations(&h, &roles[ANNOTATION]);
  if (!status)
    status = hide_settings(&h, &r.settings);
  for (size_t i = 0; i < WEIR_COUNT_OF(roles); i++)
    free(roles[i].of);
  if (!status)
    *redaction = r;
  return status;
}

/* ---- Behaviour ---- */

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

weir_status weir__behaviour_of(const weir__recording *snapshot, weir__behaviour *behaviour) {
  *behaviour = (weir__behaviour){.devices = calloc(snapshot->device_count + 1, sizeof *behaviour->devices)};
  if (!behaviour->devices)
    return out_of_memory();
  digest_numbers(snapshot, behaviour->numbers);
  for (size_t d = 0; d < snapshot->device_count; d++) {
    if (!snapshot->devices[d].event_count)
      continue;
    struct weir__behaviour_device *one = &behaviour->devices[behaviour->device_count++];
    one->device = (int)d;
    one->status = weir__replay(snapshot, &(weir__replay_options){.device = (int)d, .check = true}, &one->report);
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

/* ---- Files ---- */

static weir_status check_names(const char *from, const char *to) {
  struct stat one, other;
  if (strcmp(from, "-") == 0 || strcmp(to, "-") == 0)
    return WEIR_OK;
  if (stat(from, &one) == 0 && stat(to, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the copy would overwrite the original", to);
  return WEIR_OK;
}

static weir_status write_copy(const char *from, const weir__redact_options *options, weir__output_file *target,
                              weir__behaviour *before, weir__redact_report *report) {
  weir__recording *snapshot;
  TRY(weir__recording_load(from, NULL, &snapshot));
  report->left_out = snapshot->ignored_count;
  weir_status status = weir__behaviour_of(snapshot, before);
  if (!status)
    status = weir__redact(snapshot, options, &report->hidden);
  if (!status)
    status = weir__output_file_open(target);
  if (!status)
    status = weir__rewrite(snapshot, -1, &weir__pickle_format, NULL, NULL, target->file);
  if (!status)
    status = weir__output_file_close(target);
  weir__recording_free(snapshot);
  return status;
}

static weir_status check_copy(const weir__output_file *target, const weir__behaviour *before) {
  weir__recording *copy;
  weir__behaviour after;
  TRY(weir__recording_load(weir__outfile_contents(&target->out), NULL, &copy));
  weir_status status = weir__behaviour_of(copy, &after);
  weir__recording_free(copy);
  if (status)
    return status;
  status = weir__behaviour_compare(before, &after);
  weir__behaviour_free(&after);
  return status;
}

weir_status weir__redact_file(const char *from, const char *to, const weir__redact_options *options,
                              weir__redact_report *report) {
  weir__output_file target;
  weir__behaviour before = {0};
  weir__redact_report r = {0};
  TRY(check_names(from, to));
  TRY(weir__output_file_begin(&target, to, WEIR__OUTFILE_REREAD));
  weir_status status = write_copy(from, options, &target, &before, &r);
  if (!status)
    status = check_copy(&target, &before);
  if (!status)
    status = weir__output_file_keep(&target);
  for (size_t i = 0; i < before.device_count; i++) {
    r.devices++;
    r.unchecked += before.devices[i].status != WEIR_OK;
    r.events += before.devices[i].report.events;
    r.allocations += before.devices[i].report.allocations;
    r.differences += before.devices[i].report.differences;
  }
  weir__behaviour_free(&before);
  weir__output_file_end(&target);
  if (!status)
    *report = r;
  return status;
}
