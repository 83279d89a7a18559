#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "offline/analyse/behaviour.h"
#include "offline/offline_data.h"
#include "offline/render/redact_file.h"
#include "offline/render/rewrite.h"
#include "support/test.h"

static weir__recording *load(void) {
  weir__recording *recording;
  assert_int_equal(weir__recording_load(WEIR_TEST_DATA "/small_snapshot.pickle", NULL, &recording), WEIR_OK);
  return recording;
}

/* ---- SHA-256 ---- */

static void assert_digest(const char *text, size_t times, size_t piece, const char *expected) {
  weir__sha256 sha;
  unsigned char digest[WEIR__SHA256_SIZE];
  char hex[2 * WEIR__SHA256_SIZE + 1];
  size_t length = strlen(text);
  weir__sha256_begin(&sha);
  for (size_t i = 0; i < times; i++)
    for (size_t at = 0; at < length; at += piece)
      weir__sha256_add(&sha, text + at, length - at < piece ? length - at : piece);
  weir__sha256_end(&sha, digest);
  for (int i = 0; i < WEIR__SHA256_SIZE; i++)
    snprintf(hex + 2 * i, 3, "%02x", digest[i]);
  assert_string_equal(hex, expected);
}

/* The examples of the standard, whole and in pieces. */
TEST(sha256) {
  static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  assert_digest("", 1, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  assert_digest("abc", 1, 64, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  assert_digest("abc", 1, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  for (size_t piece = 1; piece < 60; piece += 7)
    assert_digest(two_blocks, 1, piece, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  assert_digest("aaaaaaaaaa", 100000, 10, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* ---- Texts ---- */

static const char *text_of(const weir__recording *s, uint32_t string) { return s->strings.items[string].text; }

static void redact(weir__recording *s, const char *salt, bool keep_functions, weir__redaction *redaction) {
  const weir__redact_options options = {.salt = salt, .keep_functions = keep_functions};
  assert_int_equal(weir__redact(s, &options, redaction), WEIR_OK);
}

TEST(all_texts_are_hidden) {
  weir__recording *plain = load(), *s = load();
  weir__redaction redaction;
  redact(s, "salt", false, &redaction);
  assert_int_equal(redaction.functions, 11);
  assert_int_equal(redaction.files, 7);
  assert_int_equal(redaction.annotations, 2);
  assert_int_equal(s->frame_count, plain->frame_count);
  for (size_t i = 0; i < s->frame_count; i++) {
    const char *name = text_of(s, s->frames[i].name), *file = text_of(s, s->frames[i].filename);
    const char *old = text_of(plain, plain->frames[i].filename);
    assert_int_equal(strncmp(name, "f_", 2), 0);
    assert_int_equal(strlen(name), 18);
    bool is_library = strstr(old, "/torch/") != NULL;
    assert_int_equal(strncmp(file, is_library ? "/site-packages/file_" : "file_", is_library ? 20 : 5), 0);
    assert_string_equal(file + strlen(file) - 3, ".py");
    assert_int_equal(s->frames[i].line, plain->frames[i].line);
    for (size_t k = 0; k < i; k++) { /* equal where they were equal, and only there */
      assert_int_equal(s->frames[i].name == s->frames[k].name, plain->frames[i].name == plain->frames[k].name);
      assert_int_equal(s->frames[i].filename == s->frames[k].filename,
                       plain->frames[i].filename == plain->frames[k].filename);
    }
  }
  for (size_t i = 0; i < s->annotation_count; i++) {
    assert_int_equal(strncmp(text_of(s, s->annotations[i].name), "a_", 2), 0);
    assert_string_equal(text_of(s, s->annotations[i].stage), i % 2 ? "END" : "START");
  }
  weir__recording_free(plain);
  weir__recording_free(s);
}

TEST(salts) {
  static const char *const salts[] = {"one", "one", "other", NULL, NULL};
  weir__recording *s[5];
  const char *names[5];
  weir__redaction redaction;
  for (int i = 0; i < 5; i++) {
    s[i] = load();
    redact(s[i], salts[i], false, &redaction);
    names[i] = text_of(s[i], s[i]->frames[0].name);
  }
  assert_string_equal(names[0], names[1]);
  for (int i = 1; i < 5; i++)
    for (int k = 1; k < i; k++)
      assert_string_not_equal(names[i], names[k]);
  for (int i = 0; i < 5; i++)
    weir__recording_free(s[i]);
}

TEST(functions_can_be_kept) {
  weir__recording *plain = load(), *s = load();
  weir__redaction redaction;
  redact(s, "salt", true, &redaction);
  assert_int_equal(redaction.functions, 0);
  assert_int_equal(redaction.files, 7);
  for (size_t i = 0; i < s->frame_count; i++) {
    assert_string_equal(text_of(s, s->frames[i].name), text_of(plain, plain->frames[i].name));
    assert_string_not_equal(text_of(s, s->frames[i].filename), text_of(plain, plain->frames[i].filename));
  }
  weir__recording_free(plain);
  weir__recording_free(s);
}

/* Of a configuration only items are kept that the allocator understands; another text is hidden. */
TEST(settings) {
  weir__recording *s = load();
  weir__redaction redaction;
  weir__recording_setting texts[] = {
      {.key = "PYTORCH_CUDA_ALLOC_CONF",
       .kind = WEIR__SETTING_TEXT,
       .text = "expandable_segments:True,secret:/home/me,roundup_power2_divisions:[256:1,>:2],max_split_size_mb:64"},
      {.key = "last_allocator_settings", .kind = WEIR__SETTING_TEXT, .text = "/home/me/settings"},
      {.key = "max_split_size", .kind = WEIR__SETTING_INT, .integer = 7, .real = 7}};
  weir__recording_setting *before = s->settings;
  size_t count = s->setting_count;
  s->settings = texts;
  s->setting_count = 3;
  redact(s, "salt", false, &redaction);
  assert_int_equal(redaction.settings, 2);
  assert_string_equal(s->conf, "expandable_segments:True,roundup_power2_divisions:[256:1,>:2],max_split_size_mb:64");
  assert_ptr_equal(s->conf, texts[0].text);
  assert_int_equal(strncmp(texts[1].text, "s_", 2), 0);
  assert_int_equal(texts[2].integer, 7);
  s->settings = before;
  s->setting_count = count;
  weir__recording_free(s);
}

/* ---- Behaviour ---- */

static void assert_differs(weir__recording *changed, const weir__behaviour *before, const char *expected) {
  weir__behaviour after;
  assert_int_equal(weir__behaviour_of(changed, &after), WEIR_OK);
  assert_int_equal(weir__behaviour_compare(before, &after), WEIR_ERROR_BAD_DATA);
  if (!strstr(weir_last_error(), expected))
    fail_msg("'%s' does not say '%s'", weir_last_error(), expected);
  weir__behaviour_free(&after);
}

TEST(what_differs_is_found) {
  weir__recording *s = load();
  weir__behaviour before, after;
  assert_int_equal(weir__behaviour_of(s, &before), WEIR_OK);
  assert_int_equal(before.device_count, 1);
  assert_int_equal(weir__behaviour_of(s, &after), WEIR_OK);
  assert_int_equal(weir__behaviour_compare(&before, &after), WEIR_OK);
  weir__behaviour_free(&after);

  weir__recording_entry *e = &s->events[1];
  e->size += 1; /* rounding hides it from the addresses, not from the counters */
  assert_differs(s, &before, "counters");
  e->size -= 1;
  e->address += 512;
  assert_differs(s, &before, "differently on device 0");
  e->address -= 512;
  e->time_us++;
  assert_differs(s, &before, "different numbers");
  e->time_us--;
  s->frames[0].line++;
  assert_differs(s, &before, "different numbers");
  s->frames[0].line--;
  s->devices[0].event_count--;
  assert_differs(s, &before, "device 0");
  s->devices[0].event_count++;
  weir__behaviour_free(&before);
  weir__recording_free(s);
}

/* ---- Files ---- */

TEST(files) {
  char folder[] = "/tmp/weir_redact_XXXXXX", to[64];
  const char *from = WEIR_TEST_DATA "/small_snapshot.pickle";
  const weir__redact_options options = {.salt = "salt"};
  weir__redact_report report;
  assert_non_null(mkdtemp(folder));
  snprintf(to, sizeof to, "%s/copy.pickle", folder);
  assert_int_equal(weir__redact_file(from, to, &options, &report), WEIR_OK);
  assert_int_equal(report.events, 40);
  assert_int_equal(report.devices, 1);
  assert_int_equal(report.unchecked, 0);

  /* The copy is not made of itself. */
  assert_int_equal(weir__redact_file(to, to, &options, &report), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(access(to, F_OK), 0);
  unlink(to);

  /* Where it cannot be given its name, nothing is left. */
  assert_int_equal(mkdir(to, 0700), 0);
  assert_int_equal(weir__redact_file(from, to, &options, &report), WEIR_ERROR_SYSTEM);
  rmdir(to);
  assert_int_equal(rmdir(folder), 0); /* empty: no temporary file either */
}
