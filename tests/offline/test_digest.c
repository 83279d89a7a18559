/*
 * Digests: what they say about a recording, their reader and writer, unions and redaction.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/digest_make.h"
#include "offline/analyse/summary.h"
#include "offline/read/recording_stream.h"
#include "offline/render/digest_merge.h"
#include "support/check.h"
#include "support/random.h"
#include "support/test.h"

enum { MAX_FILES = 128 };

static char *paths[MAX_FILES];
static size_t path_count;
static weir__digest_line line;

static void add_folder(const char *name) {
  char folder[512], path[1024];
  snprintf(folder, sizeof folder, "%s/%s", WEIR_TEST_DATA, name);
  DIR *open = opendir(folder);
  assert_non_null(open);
  for (struct dirent *e; (e = readdir(open)) && path_count < MAX_FILES;)
    if (strstr(e->d_name, ".zst")) {
      snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
      paths[path_count++] = strdup(path);
    }
  closedir(open);
}

static int find_files(void **state) {
  (void)state;
  add_folder("histories");
  add_folder("rings");
  return 0;
}

static int forget_files(void **state) {
  (void)state;
  for (size_t i = 0; i < path_count; i++)
    free(paths[i]);
  weir__digest_line_clear(&line);
  return 0;
}

FIXTURE(.begin = find_files, .end = forget_files)

static weir__digest digest_of(const char *path) {
  const weir__digest_options options = {.rank = -1, .spool = -1};
  weir__digests made;
  assert_ok(weir__digest_make(path, &options, &made));
  assert_true(made.count >= 1);
  weir__digest first = made.items[0];
  made.items[0] = (weir__digest){0};
  weir__digests_clear(&made);
  return first;
}

typedef struct sums {
  uint64_t at_peak, end, allocations, total;
} sums;

static sums sum(const weir__digest_list *list) {
  sums s = {0};
  const weir__digest_holder *items = list->items;
  for (size_t i = 0; i < list->count; i++) {
    s.at_peak += items[i].at_peak;
    s.end += items[i].end;
    s.allocations += items[i].allocations;
    s.total += items[i].total;
    assert_true(items[i].peak >= items[i].at_peak && items[i].peak >= items[i].end);
  }
  return s;
}

/* ---- What they say ---- */

TEST(peaks_are_those_of_the_summary) {
  for (size_t i = 0; i < path_count; i++) {
    weir__digest d = digest_of(paths[i]);
    weir__recording *recording;
    weir__summary summary;
    assert_ok(weir__recording_load(paths[i], NULL, &recording));
    assert_ok(weir__summarize(recording, (int)d.device, &summary));
    assert_int_equal(d.memory.peak_allocated, summary.live.bytes);
    assert_int_equal(d.memory.peak_reserved, summary.reserved.bytes);
    assert_int_equal(d.history.allocations, summary.actions[WEIR_TRACE_ALLOC]);
    assert_int_equal(d.failure.count, summary.actions[WEIR_TRACE_OOM]);
    weir__recording_free(recording);
    weir__digest_clear(&d);
  }
}

TEST(holders_add_up_to_the_whole) {
  for (size_t i = 0; i < path_count; i++) {
    weir__digest d = digest_of(paths[i]);
    uint64_t allocations = 0, total = 0;
    for (size_t k = 0; k < d.sizes.count; k++) {
      const weir__digest_size *s = (const weir__digest_size *)d.sizes.items + k;
      allocations += s->allocations;
      total += s->total;
    }
    assert_int_equal(allocations, d.history.allocations);
    assert_int_equal(d.lost.stacks + d.lost.streams, 0);
    const weir__digest_list *const lists[] = {&d.stacks, &d.streams};
    for (size_t k = 0; k < WEIR_COUNT_OF(lists); k++) {
      sums s = sum(lists[k]);
      assert_int_equal(s.at_peak, d.memory.peak_allocated);
      assert_int_equal(s.end, d.memory.end_allocated);
      assert_int_equal(s.allocations, allocations);
      assert_int_equal(s.total, total);
    }
    weir__digest_clear(&d);
  }
}

/* The peaks of all stacks in a group of steps are together at least that of the group, and none is above the whole. */
TEST(peaks_of_stacks_cover_those_of_steps) {
  for (size_t i = 0; i < path_count; i++) {
    weir__digest d = digest_of(paths[i]);
    uint64_t peaks[WEIR__DIGEST_GROUPS] = {0};
    for (size_t k = 0; k < d.stacks.count; k++) {
      const weir__digest_holder *h = (const weir__digest_holder *)d.stacks.items + k;
      assert_int_equal(h->peaks.count, d.steps.peak.count);
      for (size_t g = 0; g < h->peaks.count; g++) {
        assert_true(weir__digest_number(&h->peaks, g) <= h->peak);
        peaks[g] += weir__digest_number(&h->peaks, g);
      }
    }
    for (size_t g = 0; g < d.steps.peak.count; g++) {
      assert_true(peaks[g] >= weir__digest_number(&d.steps.peak, g));
      assert_true(weir__digest_number(&d.steps.peak, g) >= weir__digest_number(&d.steps.level, g));
      assert_true(weir__digest_number(&d.steps.peak, g) <= d.memory.peak_allocated);
    }
    weir__digest_clear(&d);
  }
}

TEST(free_memory_is_at_least_its_largest_piece) {
  for (size_t i = 0; i < path_count; i++) {
    weir__digest d = digest_of(paths[i]);
    assert_true(d.time.hole.count > 0 && d.time.hole.count <= WEIR__DIGEST_INTERVALS + 1);
    for (size_t k = 0; k < d.time.hole.count; k++)
      assert_true(weir__digest_number(&d.time.hole, k) <= weir__digest_number(&d.time.free, k));
    weir__digest_clear(&d);
  }
}

/* ---- Reading and writing ---- */

TEST(a_digest_that_is_read_is_written_as_it_was) {
  weir__digest_line again = {0};
  for (size_t i = 0; i < path_count; i++) {
    weir__digest d = digest_of(paths[i]), read;
    assert_ok(weir__digest_write(&d, &line));
    assert_true(line.size <= WEIR__DIGEST_BYTES);
    assert_ok(weir__digest_parse("it", 1, line.text, line.size, &read));
    assert_ok(weir__digest_write(&read, &again));
    assert_string_equal(again.text, line.text);
    weir__digest_clear(&read);
    weir__digest_clear(&d);
  }
  weir__digest_line_clear(&again);
}

TEST(spaces_and_the_order_of_members_do_not_matter) {
  weir__digest d = digest_of(paths[0]), read;
  assert_ok(weir__digest_write(&d, &line));
  char *text = malloc(2 * line.size), *to = text;
  bool is_text = false;
  for (const char *at = line.text; *at; at++) {
    is_text ^= *at == '"' && at[-1] != '\\';
    *to++ = *at;
    if (!is_text && strchr(",:[", *at))
      *to++ = ' ';
  }
  assert_ok(weir__digest_parse("it", 1, text, (size_t)(to - text), &read));
  weir__digest_line again = {0};
  assert_ok(weir__digest_write(&read, &again));
  assert_string_equal(again.text, line.text);
  weir__digest_line_clear(&again);
  weir__digest_clear(&read);
  weir__digest_clear(&d);
  free(text);
}

static void refuse(const char *text, const char *says) {
  weir__digest read;
  assert_int_equal(weir__digest_parse("it", 7, text, strlen(text), &read), WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_last_error(), says));
}

TEST(other_documents_are_refused_with_a_reason) {
  refuse("", "it: line 7, byte 0: not a digest: expected a line of 'weir digest'");
  refuse("[1]", "not a digest");
  refuse("{\"a\":1}", "not a digest: expected 'weir_digest' first");
  refuse("{\"weir_digest\":2,\"more\":[]}", "a digest of version 2, this program reads version 1");
  refuse("{\"weir_digest\":1,\"more\":[]}", "a member that a digest of version 1 does not have");
  refuse("{\"weir_digest\":1,\"rank\":1,\"rank\":1}", "'rank' for the second time");
  refuse("{\"weir_digest\":1,\"rank\":1}", "'id' is missing");
  refuse("{\"weir_digest\":1,\"rank\":1.5}", "expected '}'");
  refuse("{\"weir_digest\":1,\"device\":-1}", "expected a whole number");
  refuse("{\"weir_digest\":1,\"device\":9223372036854775808}", "a number above 9223372036854775807");
  refuse("{\"weir_digest\":1,\"id\":\"0123456789ABCDEF\"}", "expected 16 hexadecimal digits, in lower case");
  refuse("{\"weir_digest\":1,\"verdict\":\"good\"}", "a word that is not known here");
  refuse("{\"weir_digest\":1,\"names\":[{\"name\":\"0123456789abcdef\",\"text\":\"a\\u0000b\"}]}",
         "a text that is not printable UTF-8");
}

TEST(a_digest_that_is_cut_anywhere_is_refused) {
  weir__digest d = digest_of(paths[0]), read;
  assert_ok(weir__digest_write(&d, &line));
  for (size_t size = 0; size < line.size; size++)
    assert_int_equal(weir__digest_parse("it", 1, line.text, size, &read), WEIR_ERROR_BAD_DATA);
  weir__digest_clear(&d);
}

/* Whatever is accepted is written as something that is accepted, and is then the same. */
TEST(damaged_digests_are_refused_or_become_others) {
  weir__digest d = digest_of(paths[1]), read;
  weir__digest_line once = {0}, twice = {0};
  uint64_t random = 1;
  size_t accepted = 0;
  assert_ok(weir__digest_write(&d, &line));
  for (int i = 0; i < 20000; i++) {
    size_t at = next_random(&random) % line.size;
    char old = line.text[at];
    line.text[at] = i % 2 ? "0123456789,:[]{}\"-\\ az"[next_random(&random) % 22] : (char)next_random(&random);
    if (!weir__digest_parse("it", 1, line.text, line.size, &read)) {
      accepted++;
      assert_ok(weir__digest_write(&read, &once));
      weir__digest_clear(&read);
      assert_ok(weir__digest_parse("it", 1, once.text, once.size, &read));
      assert_ok(weir__digest_write(&read, &twice));
      assert_string_equal(once.text, twice.text);
      weir__digest_clear(&read);
    }
    line.text[at] = old;
  }
  assert_true(accepted > 100);
  weir__digest_line_clear(&once);
  weir__digest_line_clear(&twice);
  weir__digest_clear(&d);
}

/* ---- The limit of size ---- */

TEST(a_digest_keeps_to_its_limit_and_says_what_it_lost) {
  enum { COUNT = 400 };
  static weir__digest_holder stacks[COUNT];
  static weir__digest_name names[COUNT];
  static char texts[COUNT][WEIR__DIGEST_TEXT + 1];
  static uint64_t peaks[WEIR__DIGEST_GROUPS];
  weir__digest d = digest_of(paths[0]), read;
  for (uint64_t i = 0; i < WEIR__DIGEST_GROUPS; i++)
    peaks[i] = 1000000000000000 + i;
  for (uint64_t i = 0; i < COUNT; i++) {
    memset(texts[i], 'x', WEIR__DIGEST_TEXT);
    names[i] = (weir__digest_name){i + 1, texts[i]};
    stacks[i] = (weir__digest_holder){.name = i + 1, .peak = i + 1, .at_peak = i + 1, .end = 1};
    stacks[i].peaks = (weir__digest_list){peaks, d.steps.level.count};
  }
  d.stacks = (weir__digest_list){stacks, COUNT};
  d.names = (weir__digest_list){names, COUNT};
  assert_ok(weir__digest_write_fitting(&d, &line));
  assert_true(line.size <= WEIR__DIGEST_BYTES);
  assert_ok(weir__digest_parse("it", 1, line.text, line.size, &read));
  assert_true(read.stacks.count >= 16);
  assert_int_equal(read.stacks.count + read.lost.stacks, COUNT);
  assert_int_equal(read.lost.bytes, COUNT - read.stacks.count);
  assert_int_equal(((const weir__digest_holder *)read.stacks.items)[0].name, COUNT - read.stacks.count + 1);
  weir__digest_clear(&read);
  weir__digest_clear(&d);
}

/* ---- Unions ---- */

static char *text_of(weir__digest_union *all) {
  size_t size = 1;
  weir__digest_union_finish(all);
  for (size_t i = 0; i < all->count; i++)
    size += all->items[i].size + 1;
  char *text = malloc(size), *to = text;
  for (size_t i = 0; i < all->count; i++)
    to += sprintf(to, "%s\n", all->items[i].text);
  *to = 0;
  return text;
}

static void add_text(weir__digest_union *all, const char *text) {
  for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
    weir__digest read;
    assert_ok(weir__digest_parse("it", 1, text, (size_t)(end - text), &read));
    assert_ok(weir__digest_union_add(all, &read));
    weir__digest_clear(&read);
  }
}

/* Merges two of the texts at random until one is left. */
static char *merge_at_random(char **texts, size_t count, uint64_t *random) {
  while (count > 1) {
    weir__digest_union both = {0};
    size_t a = next_random(random) % count;
    char *one = texts[a];
    texts[a] = texts[--count];
    size_t b = next_random(random) % count;
    add_text(&both, one);
    add_text(&both, texts[b]);
    free(one);
    free(texts[b]);
    texts[b] = text_of(&both);
    weir__digest_union_clear(&both);
  }
  return texts[0];
}

TEST(unions_are_the_same_over_any_tree) {
  enum { COUNT = 24 };
  char *texts[2 * COUNT], *expected = NULL;
  uint64_t random = 3;
  weir__digest d = digest_of(paths[0]);
  for (int tree = 0; tree < 20; tree++) {
    for (int i = 0; i < 2 * COUNT; i++) { /* each of them twice */
      weir__digest_union one = {0};
      d.rank = i % COUNT / 2; /* some ranks have two documents */
      d.memory.peak_allocated = (uint64_t)(i % COUNT);
      assert_ok(weir__digest_union_add(&one, &d));
      texts[i] = text_of(&one);
      weir__digest_union_clear(&one);
    }
    char *merged = merge_at_random(texts, 2 * COUNT, &random);
    size_t lines = 0;
    for (const char *at = merged; *at; at++)
      lines += *at == '\n';
    assert_int_equal(lines, COUNT);
    if (!expected)
      expected = merged;
    else {
      assert_string_equal(merged, expected);
      free(merged);
    }
  }
  free(expected);
  weir__digest_clear(&d);
}

/* ---- Redaction ---- */

TEST(a_redacted_digest_has_no_texts_and_equal_hashes_stay_equal) {
  char *secret = paths[0];
  weir__digest a = digest_of(secret), b = digest_of(secret), c = digest_of(secret), read;
  const weir__digest_name *names = a.names.items;
  size_t count = a.names.count;
  assert_true(count > 0);
  char **texts = calloc(count, sizeof *texts);
  for (size_t i = 0; i < count; i++)
    texts[i] = strdup(names[i].text);
  uint64_t plain = ((const weir__digest_holder *)a.stacks.items)[0].name;
  weir__digest_redact(&a, "one", 3);
  weir__digest_redact(&b, "one", 3);
  weir__digest_redact(&c, "two", 3);
  assert_ok(weir__digest_write(&a, &line));
  for (size_t i = 0; i < count; i++) {
    assert_null(strstr(line.text, texts[i]));
    free(texts[i]);
  }
  free(texts);
  assert_int_equal(a.lost.names, count);
  assert_ok(weir__digest_parse("it", 1, line.text, line.size, &read));
  weir__digest_line other = {0};
  assert_ok(weir__digest_write(&b, &other));
  assert_string_equal(other.text, line.text);
  assert_ok(weir__digest_write(&c, &other));
  assert_string_not_equal(other.text, line.text);
  assert_true(sum(&a.stacks).at_peak == sum(&c.stacks).at_peak);
  for (size_t i = 0; i < a.stacks.count; i++)
    assert_true(((const weir__digest_holder *)a.stacks.items)[i].name != plain);
  weir__digest_line_clear(&other);
  weir__digest_clear(&read);
  weir__digest_clear(&a);
  weir__digest_clear(&b);
  weir__digest_clear(&c);
}
