#include "offline/analyse/redact.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/config/settings.h"
#include "base/base.h"
#include "base/system.h"
#include "offline/analyse/sha256.h"
#include "offline/analyse/sites.h"

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

weir_status weir__redact(weir__recording *recording, const weir__redact_options *options, weir__redaction *redaction) {
  hider h = {.s = recording, .budget = {.limit = UINT64_MAX}};
  weir__redaction r = {0};
  size_t count = recording->strings.count;
  TRY(add_salt(&h.salted, options->salt));
  weir__recording_clean_texts(recording);
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
