/*
 * Compares differences of synthetic jobs with a plain computation, and tests what must not make a difference:
 * addresses, folders, line numbers, the number of steps.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/diff.h"
#include "offline/leak_jobs.h"
#include "offline/load.h"
#include "support/length.h"

static weir__diff compare(const weir__recording *a, const weir__recording *b, double fail_above) {
  weir__diff diff;
  weir__diff_options options = {.device = {-1, -1}, .file = {"a", "b"}, .fail_above = fail_above};
  if (weir__diff_make(a, b, &options, &diff))
    fail_msg("%s", weir_last_error());
  return diff;
}

static void make_job(synthetic *s, job *j, uint64_t seed, traits is, size_t steps) {
  *j = (job){.random = seed};
  s->is = is;
  job_synthesize(s, j, steps);
  job_recording(j);
}

static void assert_near(double value, double expected) {
  double by = value - expected;
  if ((by < 0 ? -by : by) > 1 + 1e-9 * expected)
    fail_msg("%f is not %f", value, expected);
}

/* ---- A plain computation ---- */

/* Bytes of one stack or size that are in use after an entry, by looking at all entries up to it. */
static double plain(const job *j, size_t after, bool by_stack, uint64_t key) {
  double bytes = 0;
  for (size_t i = 0; i <= after; i++) {
    const weir__recording_entry *e = &j->entries[i];
    if (e->action != WEIR_TRACE_ALLOC || (by_stack ? e->stack : e->size) != key)
      continue;
    bool is_freed = false; /* addresses are not used again in these jobs */
    for (size_t k = i + 1; k <= after && !is_freed; k++)
      is_freed = j->entries[k].action == WEIR_TRACE_FREE_REQUESTED && j->entries[k].address == e->address;
    bytes += is_freed ? 0 : (double)e->size;
  }
  return bytes;
}

/* The entry after which most is in use, among [from, to). */
static size_t peak_in(const job *j, size_t from, size_t to) {
  int64_t used = 0, most = INT64_MIN;
  size_t at = from;
  for (size_t i = 0; i < to; i++) {
    const weir__recording_entry *e = &j->entries[i];
    used += e->action == WEIR_TRACE_ALLOC            ? (int64_t)e->size
            : e->action == WEIR_TRACE_FREE_REQUESTED ? -(int64_t)e->size
                                                     : 0;
    if (i >= from && used > most) {
      most = used;
      at = i;
    }
  }
  return at;
}

static void check_row(const job *j, const weir__diff_side *side, const weir__diff_row *row, int which, bool by_stack,
                      uint64_t key, bool has_steps) {
  const weir__steps *steps = &side->steps;
  double expected[WEIR__DIFF_MOMENTS] = {plain(j, peak_in(j, 0, j->count), by_stack, key),
                                         plain(j, j->count - 1, by_stack, key)};
  size_t first = steps->warm_up < steps->count ? steps->warm_up : 0;
  for (size_t k = first; k < steps->count && has_steps; k++)
    expected[WEIR__DIFF_STEP] +=
        plain(j, peak_in(j, steps->begin[k], steps->begin[k + 1]), by_stack, key) / (double)(steps->count - first);
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++)
    assert_near(row->of[which].bytes[i], expected[i]);
}

TEST(plain) {
  for (uint64_t seed = 0; seed < (uint64_t)repetitions(4, 100); seed++) {
    static synthetic s[2];
    job j[2];
    traits is = {.has_stacks = true, .varies = seed & 1, .fills_cache = true, .prefetches = seed & 2};
    make_job(&s[0], &j[0], seed, is, 6);
    is.evicts = true;
    make_job(&s[1], &j[1], seed + 1000, is, 9);
    weir__diff d = compare(&j[0].recording, &j[1].recording, -1);
    for (size_t i = 0; i < d.by[WEIR__DIFF_STACK].count; i++)
      for (int which = 0; which < 2; which++)
        if (d.by[WEIR__DIFF_STACK].items[i].stack[which])
          check_row(&j[which], &d.side[which], &d.by[WEIR__DIFF_STACK].items[i], which, true,
                    d.by[WEIR__DIFF_STACK].items[i].stack[which], d.has_steps);
    /* The rows of each key add up to the totals. */
    for (int key = 0; key < WEIR__DIFF_KEYS; key++)
      for (int which = 0; which < 2; which++)
        for (int m = 0; m < WEIR__DIFF_MOMENTS; m++) {
          double sum = 0, total = d.side[which].allocated[m];
          for (size_t i = 0; i < d.by[key].count; i++)
            sum += d.by[key].items[i].of[which].bytes[m];
          if (m != WEIR__DIFF_STEP || d.has_steps)
            assert_near(sum, total);
        }
    weir__diff_clear(&d);
    job_free(&j[0]);
    job_free(&j[1]);
  }
}

/* ---- What makes no difference ---- */

static void assert_same(const weir__diff *d) {
  for (int key = 0; key < WEIR__DIFF_KEYS; key++)
    for (size_t i = 0; i < d->by[key].count; i++)
      if (d->by[key].items[i].change != WEIR__DIFF_SAME)
        fail_msg("%s %s %s by %f", weir__diff_key_name((weir__diff_key)key), d->by[key].items[i].name,
                 weir__diff_change_name(d->by[key].items[i].change), d->by[key].items[i].difference);
}

TEST(same) {
  static synthetic s[2];
  job j[2];
  traits is = {.has_stacks = true, .varies = true, .evaluates = true};
  make_job(&s[0], &j[0], 5, is, 20);
  make_job(&s[1], &j[1], 5, is, 20);
  for (size_t i = 0; i < j[1].count; i++) /* other addresses */
    j[1].entries[i].address = j[1].entries[i].address * 3 + 0x1000;
  weir__diff d = compare(&j[0].recording, &j[1].recording, 0);
  assert_same(&d);
  assert_false(d.has_failed);
  assert_int_equal(d.stacks_moved, 0);
  size_t stacks = d.stacks_same;
  assert_true(stacks > 10);
  weir__diff_clear(&d);

  s[1].strings[1] = (weir__string){"/other/folder/train.py", 22};
  d = compare(&j[0].recording, &j[1].recording, 0);
  assert_same(&d);
  assert_int_equal(d.stacks_same, stacks);
  weir__diff_clear(&d);

  for (size_t i = 0; i < SYNTHETIC_STACKS; i++) /* lines were inserted above */
    s[1].frames[i].line += 7;
  d = compare(&j[0].recording, &j[1].recording, 0);
  assert_same(&d);
  assert_int_equal(d.stacks_moved, stacks);
  assert_int_equal(d.stacks_same + d.stacks_only[0] + d.stacks_only[1], 0);
  weir__diff_clear(&d);

  s[1].strings[1] = (weir__string){"/other/folder/eval.py", 21}; /* another file is another stack */
  d = compare(&j[0].recording, &j[1].recording, 0);
  assert_int_equal(d.stacks_only[0], stacks);
  assert_int_equal(d.stacks_only[1], stacks);
  weir__diff_clear(&d);
  job_free(&j[0]);
  job_free(&j[1]);
}

/* Two sites in one function: the first is matched with the first, and the second with the second. */
TEST(moved_in_order) {
  static synthetic s[2];
  job j[2];
  for (int i = 0; i < 2; i++) {
    j[i] = (job){.random = 1};
    s[i].is = (traits){.has_stacks = true};
    synthetic_begin(&s[i], &j[i]);
    for (size_t k = 0; k < SYNTHETIC_STACKS; k++) {
      s[i].frames[k].name = 2;
      s[i].frames[k].line = 100 + 10 * (int64_t)k + 3 * i;
    }
    take(&s[i], &j[i], 1 << 20, 0);
    take(&s[i], &j[i], i ? 5 << 20 : 2 << 20, 1);
    job_recording(&j[i]);
  }
  weir__diff d = compare(&j[0].recording, &j[1].recording, 2);
  const weir__diff_rows *rows = &d.by[WEIR__DIFF_STACK];
  assert_int_equal(rows->count, 2);
  assert_string_equal(rows->items[0].name, "f0 (train.py:113)");
  assert_int_equal(rows->items[0].change, WEIR__DIFF_GREW);
  assert_near(rows->items[0].difference, 3 << 20);
  assert_int_equal(rows->items[1].change, WEIR__DIFF_SAME);
  assert_int_equal(d.stacks_moved, 2);
  assert_true(d.has_failed);
  assert_near(d.grew, 100);
  weir__diff_clear(&d);
  d = compare(&j[1].recording, &j[0].recording, 2); /* less is no failure */
  assert_false(d.has_failed);
  weir__diff_clear(&d);
  job_free(&j[0]);
  job_free(&j[1]);
}

/* The number of steps does not matter to what is in use in a step. */
TEST(steps) {
  static synthetic s[2];
  job j[2];
  traits is = {.has_stacks = true};
  make_job(&s[0], &j[0], 5, is, 20);
  make_job(&s[1], &j[1], 5, is, 50);
  weir__diff d = compare(&j[0].recording, &j[1].recording, 0);
  assert_true(d.has_steps);
  assert_same(&d);
  assert_false(d.has_failed);
  weir__diff_clear(&d);
  job_free(&j[0]);
  job_free(&j[1]);
}

TEST(real) {
  weir__recording *a = load("traces/streams_prefetch"), *b = load("traces/streams_prefetch_expandable");
  weir__diff d = compare(a, b, 2);
  assert_same(&d); /* the handles of the streams differ */
  assert_int_equal(d.by[WEIR__DIFF_STREAM].count, 2);
  assert_true(d.has_steps);
  assert_false(d.has_failed);
  assert_int_equal(d.side[0].allocated[WEIR__DIFF_PEAK], 3302798423);
  assert_int_equal(d.side[0].reserved[WEIR__DIFF_PEAK], 6926893056);
  assert_int_equal(d.side[1].reserved[WEIR__DIFF_PEAK], 3391094784);
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++)
    assert_true(d.side[0].allocated[i] <= d.side[0].reserved[i]);
  weir__diff_clear(&d);
  weir__recording_free(a);
  weir__recording_free(b);
}

/* ---- What other moments have, and noise ---- */

static void make(job *j, uint64_t bytes, bool is_freed) {
  const uint64_t address = 0x1000000 * (j->count + 1);
  job_add(j, &(weir__recording_entry){.action = WEIR_TRACE_ALLOC, .address = address, .size = bytes});
  for (int i = 0; i < 2 && is_freed; i++)
    job_add(j, &(weir__recording_entry){.action = i ? WEIR_TRACE_FREE_COMPLETED : WEIR_TRACE_FREE_REQUESTED,
                                        .address = address,
                                        .size = bytes});
}

static void complete(job *j) {
  static int64_t streams[1];
  static weir__recording_stack stacks[1];
  static weir__recording_remark remarks[1];
  static weir__string strings[] = {{"", 0}};
  job_recording(j);
  j->recording.streams = streams;
  j->recording.stream_count = 1;
  j->recording.stacks = stacks;
  j->recording.stack_count = 1;
  j->recording.remarks = remarks;
  j->recording.remark_count = 1;
  j->recording.strings.items = strings;
  j->recording.strings.count = 1;
}

static const weir__diff_row *row_named(const weir__diff *d, const char *name) {
  for (size_t i = 0; i < d->by[WEIR__DIFF_SIZE].count; i++)
    if (strcmp(d->by[WEIR__DIFF_SIZE].items[i].name, name) == 0)
      return &d->by[WEIR__DIFF_SIZE].items[i];
  fail_msg("no row for %s", name);
  return NULL;
}

/* A size that the other recording allocates, be it at none of the moments, neither appears nor disappears. */
TEST(made_at_other_moments) {
  job a = {0}, b = {0};
  make(&a, 1 << 20, true);
  make(&a, 8 << 20, false);
  make(&a, 3 << 20, false);
  make(&b, 8 << 20, true);
  make(&b, 1 << 20, false);
  complete(&a);
  complete(&b);
  weir__diff d = compare(&a.recording, &b.recording, -1);
  assert_int_equal(row_named(&d, "1.00 MiB")->change, WEIR__DIFF_GREW);
  assert_int_equal(row_named(&d, "8.00 MiB")->change, WEIR__DIFF_SHRANK);
  assert_int_equal(row_named(&d, "3.00 MiB")->change, WEIR__DIFF_DISAPPEARED);
  weir__diff_clear(&d);
  job_free(&a);
  job_free(&b);
}

/* Sequences of any length: sizes are put together, and what differs by chance is noise. */
TEST(many_sizes) {
  job jobs[2] = {{.random = 1}, {.random = 2}};
  for (int i = 0; i < 2; i++) {
    for (int k = 0; k < 4000; k++) {
      make(&jobs[i], 512 * (1 + job_below(&jobs[i], 4000)), true);
      if (k % 10 == 0)
        make(&jobs[i], 300000 + 512 * job_below(&jobs[i], 64), false);
    }
    if (i)
      make(&jobs[i], 64 << 20, false);
    complete(&jobs[i]);
  }
  weir__diff d = compare(&jobs[0].recording, &jobs[1].recording, -1);
  assert_true(d.sizes > 2000);
  assert_true(d.by[WEIR__DIFF_SIZE].count < 20);
  assert_true(d.noise > 0);
  const weir__diff_row *grown = row_named(&d, "32.00 MiB to 64.00 MiB");
  assert_int_equal(grown->change, WEIR__DIFF_APPEARED);
  assert_false(grown->is_noise);
  for (size_t i = 0; i < d.by[WEIR__DIFF_SIZE].count; i++) {
    const weir__diff_row *r = &d.by[WEIR__DIFF_SIZE].items[i];
    assert_int_equal(r->is_noise, r->difference < d.noise && r->difference > -d.noise);
  }
  weir__diff_clear(&d);
  job_free(&jobs[0]);
  job_free(&jobs[1]);
}
