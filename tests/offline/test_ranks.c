/*
 * The comparison of ranks, on digests that are made here.
 */
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/ranks.h"
#include "support/check.h"
#include "support/random.h"
#include "support/test.h"

enum { RANKS = 24, STACKS = 3, GROUPS = 8, MIB = 1 << 20 };

/* A job of ranks that do the same: each needs MIB of three stacks, in 8 groups of `width` steps. */
static struct rank {
  weir__digest_holder stacks[STACKS];
  uint64_t peaks[STACKS][GROUPS], entry[GROUPS], peak[GROUPS], requests[GROUPS], shape[GROUPS], zero[GROUPS];
} ranks[RANKS];
static weir__digest digests[RANKS];

static weir__digest_list list(void *items, size_t count) { return (weir__digest_list){items, count}; }

static int make_job(void **state) {
  (void)state;
  memset(ranks, 0, sizeof ranks);
  memset(digests, 0, sizeof digests);
  for (size_t i = 0; i < RANKS; i++) {
    struct rank *r = &ranks[i];
    weir__digest *d = &digests[i];
    d->rank = (int64_t)i;
    d->id = i + 1;
    d->memory.peak_allocated = STACKS * 100 * MIB;
    d->memory.peak_reserved = 400 * MIB;
    d->history.last_us = 1000 + i;
    d->history.entries = 10000;
    d->steps.count = 2 * (GROUPS + 1);
    d->steps.width = 2;
    for (size_t g = 0; g < GROUPS; g++) {
      r->entry[g] = 100 * g;
      r->peak[g] = d->memory.peak_allocated;
      r->requests[g] = 200;
      r->shape[g] = 77 + g;
      for (size_t s = 0; s < STACKS; s++)
        r->peaks[s][g] = 100 * MIB;
    }
    for (size_t s = 0; s < STACKS; s++) {
      r->stacks[s] = (weir__digest_holder){.name = s + 1, .peak = 100 * MIB, .at_peak = 100 * MIB};
      r->stacks[s].peaks = list(r->peaks[s], GROUPS);
    }
    d->stacks = list(r->stacks, STACKS);
    d->steps.entry = list(r->entry, GROUPS);
    d->steps.peak = list(r->peak, GROUPS);
    d->steps.level = d->steps.reserved = d->steps.time_us = d->steps.sequence = list(r->zero, GROUPS);
    d->steps.requests = list(r->requests, GROUPS);
    d->steps.shape = list(r->shape, GROUPS);
  }
  return 0;
}

static weir__ranks result;

static int clear_result(void **state) {
  (void)state;
  weir__ranks_clear(&result);
  return 0;
}

FIXTURE(.setup = make_job, .teardown = clear_result)

static void compare(double distance) {
  const weir__ranks_options options = {.distance = distance};
  assert_ok(weir__ranks_compare(digests, RANKS, &options, &result));
}

/* One stack of a rank needs so many percent of the usual from a group on. */
static void change(size_t rank, size_t stack, size_t from, uint64_t percent) {
  ranks[rank].stacks[stack].peak = percent > 100 ? percent * MIB : 100 * MIB;
  for (size_t g = from; g < GROUPS; g++)
    ranks[rank].peaks[stack][g] = percent * MIB;
}

TEST(ranks_that_do_the_same_are_one_class) {
  compare(0.05);
  assert_int_equal(result.class_count, 1);
  assert_int_equal(result.usual_count, 1);
  assert_int_equal(result.classes[0].count, RANKS);
  assert_int_equal(result.outlier_count + result.parting_count + result.failure_count + result.missing_count, 0);
  assert_string_equal(result.classes[0].role, "");
}

TEST(the_distance_is_what_the_options_say) {
  change(5, 1, 0, 110);
  compare(0.05);
  assert_int_equal(result.outlier_count, 1);
  assert_int_equal(result.outliers[0].member, 5);
  weir__ranks_clear(&result);
  compare(0.12);
  assert_int_equal(result.outlier_count, 0);
}

TEST(jitter_within_half_the_distance_is_no_difference) {
  uint64_t random = 9;
  for (int round = 0; round < 50; round++) {
    make_job(NULL);
    for (size_t i = 0; i < RANKS; i++)
      for (size_t s = 0; s < STACKS; s++) {
        uint64_t jitter = next_random(&random) % (2 * MIB);
        ranks[i].stacks[s].peak += jitter;
        for (size_t g = 0; g < GROUPS; g++)
          ranks[i].peaks[s][g] += next_random(&random) % (2 * MIB);
      }
    compare(0.05);
    assert_int_equal(result.class_count, 1);
    weir__ranks_clear(&result);
  }
}

TEST(an_outlier_has_its_stack_and_the_step_since_which_it_differs) {
  change(7, 2, 3, 180);
  compare(0.05);
  assert_int_equal(result.outlier_count, 1);
  const weir__rank_difference *d = &result.outliers[0].differences[0];
  assert_int_equal(d->stack, 3);
  assert_int_equal(d->usual, 100 * MIB);
  assert_int_equal(d->value, 180 * MIB);
  assert_int_equal(d->first_step, 6);
  assert_int_equal(d->last_step, 7);
  assert_false(d->grows);
}

TEST(an_outlier_that_grows_is_said_to) {
  for (size_t g = 2; g < GROUPS; g++)
    ranks[7].peaks[0][g] = (100 + 30 * (g - 1)) * MIB;
  ranks[7].stacks[0].peak = ranks[7].peaks[0][GROUPS - 1];
  compare(0.05);
  assert_int_equal(result.outlier_count, 1);
  assert_int_equal(result.outliers[0].differences[0].first_step, 4);
  assert_true(result.outliers[0].differences[0].grows);
}

TEST(a_rank_that_needs_less_is_an_outlier_too) {
  change(0, 1, 0, 40); /* the first rank, which leads a class */
  ranks[0].stacks[1].peak = 40 * MIB;
  compare(0.05);
  assert_int_equal(result.outlier_count, 1);
  assert_int_equal(result.outliers[0].member, 0);
  assert_int_equal(result.outliers[0].differences[0].value, 40 * MIB);
}

TEST(stacks_that_a_digest_lost_are_no_difference) {
  digests[3].stacks.count = 2;
  digests[3].lost.stacks = 1;
  digests[3].lost.bytes = 100 * MIB;
  compare(0.05);
  assert_int_equal(result.class_count, 1);
  weir__ranks_clear(&result);
  digests[3].lost.stacks = 0;
  compare(0.05);
  assert_int_equal(result.outlier_count, 1);
}

TEST(stages_and_shards_are_roles) {
  for (size_t i = 0; i < RANKS; i++) {
    if (i >= RANKS / 2)
      change(i, 0, 0, 200);
    if (i % 3 == 1)
      change(i, 1, 0, 300);
  }
  compare(0.05);
  assert_int_equal(result.usual_count, 4);
  assert_string_equal(result.classes[0].role, "pipeline stage 0 of 2, tensor shard 0,2 of 3");
  assert_string_equal(result.classes[1].role, "pipeline stage 0 of 2, tensor shard 1 of 3");
  assert_string_equal(result.classes[2].role, "pipeline stage 1 of 2, tensor shard 0,2 of 3");
  assert_int_equal(result.classes[0].differs, 2);
  assert_int_equal(result.outlier_count, 0);
}

TEST(ranks_are_compared_within_the_role_that_the_user_gave) {
  for (size_t i = 0; i < RANKS; i++)
    digests[i].role = 1000 + i / 12;
  compare(0.05);
  assert_int_equal(result.class_count, 2);
  assert_int_equal(result.classes[0].count, 12);
  assert_int_equal(result.outlier_count, 0);
}

TEST(requests_part_in_a_group_of_steps) {
  for (size_t g = 4; g < GROUPS; g++)
    ranks[9].shape[g] = 1;
  compare(0.05);
  assert_int_equal(result.parting_count, 1);
  const weir__rank_parting *p = &result.partings[0];
  assert_int_equal(p->member, 9);
  assert_int_equal(p->first_step, 8);
  assert_int_equal(p->last_step, 9);
  assert_int_equal(p->first_entry, 400);
  assert_int_equal(p->last_entry, 500);
}

/* A rank with more steps has longer groups: only their ends that all have are compared. */
TEST(groups_of_other_lengths_are_compared_at_common_ends) {
  digests[2].steps.width = 4;
  digests[2].steps.count = 4 * (GROUPS + 1);
  for (size_t g = 0; g < GROUPS; g++) {
    ranks[2].shape[g] = 77 + 2 * g + 1;
    ranks[2].requests[g] *= 2;
  }
  compare(0.05);
  assert_int_equal(result.parting_count, 0);
  weir__ranks_clear(&result);
  ranks[2].shape[2] = 1;
  compare(0.05);
  assert_int_equal(result.parting_count, 1);
  assert_int_equal(result.partings[0].first_step, 8);
  assert_int_equal(result.partings[0].last_step, 11);
}

TEST(a_rank_that_ended_early_does_not_part) {
  digests[4].steps.count = 2 * 3;
  compare(0.05);
  assert_int_equal(result.parting_count, 0);
}

TEST(ranks_that_all_part_are_an_uneven_class) {
  for (size_t i = 0; i < RANKS; i++)
    for (size_t g = 0; g < GROUPS; g++)
      ranks[i].shape[g] = 1000 * i + g;
  compare(0.05);
  assert_int_equal(result.parting_count, 0);
  assert_true(result.classes[0].is_uneven);
}

TEST(failures_are_in_the_order_of_time_and_the_others_follow) {
  digests[8].failure.count = 2;
  digests[8].failure.time_us = 500;
  digests[3].failure.count = 1;
  digests[3].failure.time_us = 900;
  digests[5].history.last_us = 400; /* it had ended before */
  compare(0.05);
  assert_int_equal(result.failure_count, 2);
  assert_int_equal(result.failures[0], 8);
  assert_int_equal(result.failures[1], 3);
  assert_int_equal(result.follower_count, RANKS - 3);
  assert_int_equal(result.followers[0], 0);
}

TEST(missing_ranks_are_named) {
  const weir__ranks_options options = {.distance = 0.05, .expected = RANKS + 2};
  digests[0].rank = 1; /* rank 0 is not there, and rank 1 twice */
  assert_ok(weir__ranks_compare(digests, RANKS, &options, &result));
  assert_int_equal(result.missing_count, 3);
  assert_int_equal(result.missing[0], 0);
  assert_int_equal(result.missing[1], RANKS);
}

TEST(ranks_without_steps_or_stacks_can_be_compared) {
  for (size_t i = 0; i < RANKS; i++) {
    digests[i].steps.width = 0;
    digests[i].steps.entry.count = digests[i].steps.shape.count = digests[i].steps.requests.count = 0;
    digests[i].stacks.count = 0;
  }
  digests[6].memory.peak_allocated *= 2;
  compare(0.05);
  assert_int_equal(result.outlier_count, 1);
  assert_int_equal(result.outliers[0].differences[0].kind, WEIR__FEATURE_ALLOCATED);
}

TEST(lists_of_ranks_are_short) {
  char text[64];
  static const size_t members[] = {0, 2, 4, 6, 9, 10, 11, 20, 23};
  compare(0.05);
  assert_string_equal(weir__ranks_list(&result, members, 9, text, sizeof text), "0-6/2,9-11,20,23");
  assert_string_equal(weir__ranks_list(&result, members, 9, text, 12), "0-6/2,...");
  assert_string_equal(weir__ranks_list(&result, members, 1, text, sizeof text), "0");
}
