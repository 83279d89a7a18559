/*
 * The search for settings: the result follows the rules, and does not depend on the distribution of the work.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/tune.h"
#include "support/test.h"

enum { MAX_FILES = 4 };

typedef struct files {
  size_t count;
  weir__recording *snapshots[MAX_FILES];
  const weir__replayer *histories[MAX_FILES];
} files;

static weir__costs costs;

static void prepare(void) { weir__costs_default(&costs); }

FIXTURE(.prepare = prepare)

static void add_file(files *f, const char *name) {
#ifndef WEIR_HAVE_ZSTD
  print_message("waived: %s: built without libzstd\n", name);
  skip();
#endif
  char path[1024];
  weir__replayer *history = NULL;
  snprintf(path, sizeof path, "%s/%s.pickle.zst", WEIR_TEST_DATA, name);
  if (weir__recording_load(path, NULL, &f->snapshots[f->count]) ||
      weir__replayer_open(f->snapshots[f->count], 0, 0, 0, &history))
    fail_msg("%s", weir_last_error());
  f->histories[f->count++] = history;
}

static void close_files(files *f) {
  for (size_t i = 0; i < f->count; i++) {
    weir__replayer_close((weir__replayer *)f->histories[i]);
    weir__recording_free(f->snapshots[i]);
  }
}

static weir__tune_options options_for(const files *f) {
  return (weir__tune_options){.histories = f->histories, .history_count = f->count, .costs = &costs};
}

static void tune(const weir__tune_options *options, weir__tune_result *result) {
  if (weir__tune(options, result))
    fail_msg("%s", weir_last_error());
}

static const char *text_of(const weir__tune_result *r, size_t candidate) {
  static char text[4096];
  weir__settings_format(&r->candidates[candidate].settings, text, sizeof text);
  return text;
}

static void assert_same(const weir__tune_result *a, const weir__tune_result *b, size_t histories) {
  assert_int_equal(a->candidate_count, b->candidate_count);
  for (size_t i = 0; i < a->candidate_count; i++) {
    assert_true(weir__settings_equal(&a->candidates[i].settings, &b->candidates[i].settings));
    assert_memory_equal(&a->candidates[i].score, &b->candidates[i].score, sizeof a->candidates[i].score);
    assert_memory_equal(a->candidates[i].of, b->candidates[i].of, histories * sizeof *a->candidates[i].of);
  }
  assert_int_equal(a->best, b->best);
  assert_int_equal(a->front_count, b->front_count);
  assert_memory_equal(a->front, b->front, a->front_count * sizeof *a->front);
  assert_memory_equal(&a->fit_recorded, &b->fit_recorded, sizeof a->fit_recorded);
  assert_memory_equal(&a->fit_best, &b->fit_best, sizeof a->fit_best);
}

/* ---- The same answer ---- */

TEST(any_number_of_threads) {
  files f = {0};
  add_file(&f, "histories/collected");
  weir__tune_options options = options_for(&f);
  weir__tune_result one, many;
  options.fit = true;
  options.parallel.threads = 1;
  tune(&options, &one);
  assert_true(one.candidate_count >= 200);
  options.parallel.threads = 7;
  tune(&options, &many);
  assert_same(&one, &many, f.count);
  weir__tune_clear(&many);
  weir__tune_clear(&one);
  close_files(&f);
}

/* ---- The right answer ---- */

/* The front is what nothing beats, and the best is one of it. `skip_first`: candidate 0 cannot be chosen. */
static void assert_front(const weir__tune_candidate *candidates, size_t count, bool skip_first, const size_t *front,
                         size_t front_count, size_t best) {
  bool has_best = false;
  assert_true(front_count > 0);
  for (size_t k = 0; k < front_count; k++) {
    const weir__tune_candidate *c = &candidates[front[k]];
    assert_true(front[k] >= skip_first);
    has_best |= front[k] == best;
    if (k > 0)
      assert_true(candidates[front[k - 1]].score.peak <= c->score.peak);
    for (size_t i = skip_first; i < count; i++) {
      const weir__tune_score *s = &candidates[i].score;
      assert_false(weir__tune_beats(&candidates[i], c));
      assert_false(s->failures <= c->score.failures && s->peak < c->score.peak && s->cost < c->score.cost &&
                   s->total < c->score.total && candidates[i].keys <= c->keys);
    }
  }
  assert_true(has_best);
  for (size_t i = skip_first; i < count; i++) {
    bool is_covered = false;
    for (size_t k = 0; k < front_count; k++) {
      const weir__tune_candidate *c = &candidates[front[k]];
      const weir__tune_score *a = &c->score, *b = &candidates[i].score;
      is_covered |= weir__tune_beats(c, &candidates[i]) ||
                    (a->peak == b->peak && a->cost == b->cost && a->total == b->total && c->keys == candidates[i].keys);
    }
    assert_true(is_covered);
  }
}

/* Any results, with many ties and near ties: the recommendation is never one that another beats. */
TEST(random_results) {
  enum { MAX = 40 };
  weir__tune_candidate candidates[MAX];
  size_t front[MAX], best;
  srand(7);
  for (int round = 0; round < 20000; round++) {
    size_t count = 2 + (size_t)rand() % (MAX - 1);
    int values = 1 + rand() % 12;
    bool skip_first = rand() % 3 == 0, is_one_file = rand() % 2;
    for (size_t i = 0; i < count; i++) {
      candidates[i] = (weir__tune_candidate){.keys = (unsigned)(rand() % 4)};
      weir__tune_score *s = &candidates[i].score;
      s->failures = rand() % 8 ? 0 : (uint64_t)(rand() % 3);
      s->peak = 1000 + (uint64_t)(rand() % values) * (uint64_t)(1 + rand() % 8);
      s->total = is_one_file ? s->peak : s->peak + (uint64_t)(rand() % values) * 10;
      s->cost = (double)(rand() % values) * 1e7;
    }
    size_t front_count = weir__tune_choose(candidates, count, skip_first, 50e6, front, &best);
    assert_front(candidates, count, skip_first, front, front_count, best);
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < front_count; i++)
      least = candidates[front[i]].score.peak < least ? candidates[front[i]].score.peak : least;
    assert_true((double)candidates[best].score.peak <= 1.01 * (double)least);
  }
}

static void assert_sound(const weir__tune_result *r) {
  /* The best has keys of PyTorch only, and nothing that is listed costs memory. */
  const weir__tune_score *recorded = &r->candidates[0].score;
  for (int moving = 0; moving < 2; moving++)
    for (size_t i = 0; i < (moving ? r->front_moving_count : r->front_count); i++) {
      const weir__tune_candidate *c = &r->candidates[moving ? r->front_moving[i] : r->front[i]];
      assert_int_equal(c->settings.moving_pages, moving);
      assert_true(c->score.failures < recorded->failures || c->score.peak <= recorded->peak);
      for (size_t k = r->is_mixed; k < r->candidate_count; k++)
        assert_false(r->candidates[k].settings.moving_pages == moving && weir__tune_beats(&r->candidates[k], c));
    }
  assert_true(r->front_count > 0);
  assert_false(r->candidates[r->best].settings.moving_pages);
  assert_ptr_equal(strstr(text_of(r, r->expandable), "expandable_segments:True"), text_of(r, r->expandable));
  for (int moving = 0; moving < 2; moving++) {
    uint64_t failures = UINT64_MAX, least = UINT64_MAX;
    const weir__tune_candidate *best = &r->candidates[moving ? r->moving : r->best];
    if (moving && !r->moving)
      continue;
    assert_int_equal(best->settings.moving_pages, moving);
    for (size_t i = r->is_mixed; i < r->candidate_count; i++)
      if (r->candidates[i].settings.moving_pages == moving && r->candidates[i].score.failures < failures)
        failures = r->candidates[i].score.failures;
    for (size_t i = r->is_mixed; i < r->candidate_count; i++)
      if (r->candidates[i].settings.moving_pages == moving && r->candidates[i].score.failures == failures &&
          r->candidates[i].score.peak < least)
        least = r->candidates[i].score.peak;
    assert_int_equal(best->score.failures, failures);
    assert_true((double)best->score.peak <= 1.01 * (double)least);
  }
  for (size_t i = 1; i < r->candidate_count; i++) { /* the text of each can be exported */
    weir__settings read;
    if (weir__settings_parse(NULL, text_of(r, i), &read))
      fail_msg("%s", weir_last_error());
    assert_true(weir__settings_equal(&read, &r->candidates[i].settings));
    for (size_t k = i + 1; k < r->candidate_count; k++)
      assert_false(weir__settings_equal(&r->candidates[i].settings, &r->candidates[k].settings));
  }
}

/* The job ran out of memory; another setting would have served it within the same limit. */
TEST(out_of_memory) {
  files f = {0};
  add_file(&f, "traces/llama_oom");
  weir__tune_options options = options_for(&f);
  weir__tune_result r;
  options.fit = true;
  tune(&options, &r);
  assert_sound(&r);
  assert_true(r.is_limited);
  assert_false(r.is_mixed);
  assert_int_equal(r.candidates[0].score.failures, 1);
  assert_int_equal(r.candidates[r.best].score.failures, 0);
  assert_string_equal(text_of(&r, r.best), "expandable_segments:True");
  assert_true(r.fit_best.bytes <= weir__replayer_check(f.histories[0])->limit);
  assert_true(r.fit_recorded.bytes > weir__replayer_check(f.histories[0])->limit);
  bool has_threshold = false;
  for (size_t i = 1; i < r.candidate_count; i++)
    has_threshold |= r.candidates[i].settings.garbage_collection_threshold > 0;
  assert_true(has_threshold);
  weir__tune_clear(&r);
  close_files(&f);
}

/* Files with different settings, and keys that are not searched. */
TEST(several) {
  files f = {0};
  add_file(&f, "traces/cuda_graphs");
  add_file(&f, "traces/cuda_graphs_expandable");
  weir__settings base;
  weir__tune_options options = options_for(&f);
  weir__tune_result r;
  assert_int_equal(weir__settings_parse(NULL, "pinned_num_register_threads:8,max_split_size_mb:300", &base), WEIR_OK);
  options.base = &base;
  tune(&options, &r);
  assert_sound(&r);
  assert_true(r.is_mixed);
  assert_false(r.is_limited);
  assert_int_not_equal(r.best, 0);
  for (size_t i = 1; i < r.candidate_count; i++) {
    const weir__tune_candidate *c = &r.candidates[i];
    uint64_t peak = 0, total = 0;
    for (size_t k = 0; k < f.count; k++) {
      const weir__prediction *p = &c->of[k]; /* the worse end of a range counts */
      uint64_t of = p->busy.peak_reserved > p->peak_reserved ? p->busy.peak_reserved : p->peak_reserved;
      peak = of > peak ? of : peak;
      total += of;
    }
    assert_int_equal(c->score.peak, peak);
    assert_int_equal(c->score.total, total);
    assert_int_equal(c->settings.pinned_num_register_threads, 8);
    assert_int_equal(c->settings.garbage_collection_threshold > 0, 0); /* there is no limit that it could look at */
  }
  weir__tune_clear(&r);
  close_files(&f);
}

/* Nothing helps: the best fails too, and says so. */
TEST(too_little) {
  files f = {0};
  add_file(&f, "traces/cuda_graphs");
  weir__tune_options options = options_for(&f);
  weir__tune_result r;
  options.memory = 400 << 20;
  tune(&options, &r);
  assert_sound(&r);
  assert_true(r.candidates[r.best].score.failures > 0);
  weir__tune_clear(&r);
  close_files(&f);
}

/* A recording that cannot be replayed ends the search, and nothing is leaked. */
TEST(refused) {
  files f = {0};
  add_file(&f, "traces/cuda_graphs");
  weir__settings base;
  weir__tune_options options = options_for(&f);
  weir__tune_result r;
  weir__settings_default(&base);
  base.memory_fraction = 0.5; /* of what? */
  options.base = &base;
  assert_int_equal(weir__tune(&options, &r), WEIR_ERROR_INVALID_ARGUMENT);
  assert_null(r.candidates);
  assert_int_equal(r.candidate_count, 0);
  close_files(&f);
}

/* The version of PyTorch leaves out the keys that it does not know, in every candidate. */
TEST(versions_of_pytorch) {
  static const struct {
    const char *version;
    bool has_segment, has_rounding, has_expandable;
  } cases[] = {{"2.11.0", true, true, true},
               {"2.10", false, true, true},
               {"2.5.1+cu124", false, false, true},
               {"2.0", false, false, false}};
  files f = {0};
  add_file(&f, "traces/cuda_graphs");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weir__tune_options options = options_for(&f);
    weir__tune_result r;
    bool has_segment = false, has_rounding = false, has_expandable = false;
    assert_true(weir__version_parse(cases[i].version, &options.pytorch));
    tune(&options, &r);
    for (size_t k = 0; k < r.candidate_count; k++) {
      const weir__settings *s = &r.candidates[k].settings;
      has_segment |= s->large_segment_size != 20 << 20;
      has_rounding |= s->max_non_split_rounding_set;
      has_expandable |= s->expandable_segments && !s->moving_pages;
      if (k)
        assert_false(weir__version_is_before(options.pytorch, weir__settings_since(s, NULL)));
    }
    assert_int_equal(has_segment, cases[i].has_segment);
    assert_int_equal(has_rounding, cases[i].has_rounding);
    assert_int_equal(has_expandable, cases[i].has_expandable);
    assert_int_equal(r.expandable != 0, cases[i].has_expandable);
    weir__tune_clear(&r);
  }
  close_files(&f);
  weir__pytorch_version version;
  assert_false(weir__version_parse("", &version) || weir__version_parse("2", &version) ||
               weir__version_parse("2.", &version) || weir__version_parse("two", &version) ||
               weir__version_parse("2.5x", &version));
}
