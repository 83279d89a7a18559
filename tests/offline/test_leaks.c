/*
 * Leaks that are planted into real histories and into synthetic jobs are found, and none are invented without them.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/leaks.h"
#include "offline/leak_jobs.h"
#include "offline/load.h"
#include "support/length.h"

/* The first ones differ most from each other, and the rest are for the long form. */
static const char *const real[] = {"traces/cuda_graphs",
                                   "traces/gpt2_fixed",
                                   "traces/llama_lora_ckpt",
                                   "traces/llama_oom",
                                   "traces/llama_varlen",
                                   "traces/llm_generate_small",
                                   "traces/resnet_multiscale",
                                   "traces/resnet_stacks",
                                   "traces/streams_prefetch",
                                   "traces/llama_varlen_expandable_capped",
                                   "traces/cuda_graphs_expandable",
                                   "traces/llama_lora_gc",
                                   "traces/llama_varlen_capped",
                                   "traces/llama_varlen_expandable",
                                   "traces/llama_varlen_split200",
                                   "traces/llama_varlen_split200_capped",
                                   "traces/resnet_roundup",
                                   "traces/streams_prefetch_expandable"};
enum { REAL = sizeof real / sizeof *real, USUAL = 10 };

/* Added to every seed: WEIR_TEST_SEED=5000 tries histories that no rule was made for. */
static uint64_t first_seed(void) {
  const char *text = getenv("WEIR_TEST_SEED");
  return text ? strtoull(text, NULL, 10) : 0;
}

static weir__leaks find(const weir__recording *recording) {
  weir__leaks leaks;
  if (weir__leaks_find(recording, 0, NULL, &leaks))
    fail_msg("%s", weir_last_error());
  return leaks;
}

static void print_leaks(const weir__leaks *l) {
  print_message("  steps: %zu %s, warm-up %zu\n", l->steps.count, weir__steps_source_name(l->steps.source),
                l->steps.warm_up);
  for (size_t i = 0; i < l->leak_count && i < 5; i++)
    print_message("  leak of stack %u, size %llu: %llu bytes in %llu blocks, steps %lld to %lld, every %.2f%s\n",
                  l->leaks[i].stack, (unsigned long long)l->leaks[i].size, (unsigned long long)l->leaks[i].bytes,
                  (unsigned long long)l->leaks[i].count, (long long)l->leaks[i].first_step,
                  (long long)l->leaks[i].last_step, l->leaks[i].every, l->leaks[i].is_joint ? ", joint" : "");
  for (size_t i = 0; i < l->growing_count && i < 5; i++)
    print_message("  growing (%d) of stack %u, size %llu: %llu bytes in %llu blocks, steps %lld to %lld\n",
                  l->growing[i].kind, l->growing[i].stack, (unsigned long long)l->growing[i].size,
                  (unsigned long long)l->growing[i].bytes, (unsigned long long)l->growing[i].count,
                  (long long)l->growing[i].first_step, (long long)l->growing[i].last_step);
}

/* Whether a leak was found, of about the size that was planted. A cache with the same stack may be counted too. */
static bool is_found(const weir__leaks *l, uint64_t bytes, bool has_cache) {
  double planted = (double)bytes, found = (double)l->bytes;
  return l->verdict == WEIR__LEAKS_FOUND && found > 0.5 * planted && (has_cache || found < 1.4 * planted);
}

static uint64_t bytes_of(const job *j) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < j->count; i++)
    bytes += j->entries[i].action == WEIR_TRACE_ALLOC ? j->entries[i].size : 0;
  return bytes;
}

/* ---- Real histories ---- */

TEST(clean) {
  size_t alarms = 0;
  for (size_t i = 0; i < (size_t)usual_or_long(USUAL, REAL); i++) {
    weir__recording *recording = load(real[i]);
    for (int form = 0; form < 6; form++) { /* as it is, and repeated; with and without annotations */
      static const size_t least[] = {0, 12, 40};
      if ((form + (int)i) % 2 && usual_or_long(1, 0)) /* every other one */
        continue;
      job j = {.random = i};
      job_repeat(&j, recording, least[form / 2], form % 2);
      weir__leaks l = find(job_recording(&j));
      if (l.verdict == WEIR__LEAKS_FOUND) {
        alarms++;
        print_message("%s, form %d\n", real[i], form);
        print_leaks(&l);
      }
      weir__leaks_clear(&l);
      job_free(&j);
    }
    weir__recording_free(recording);
  }
  assert_int_equal(alarms, 0);
}

/* Histories that begin late and end in the middle of a step, as those of rings and of jobs that were killed do. */
TEST(cut) {
  size_t alarms = 0, cuts = 0;
  for (size_t i = 0; i < (size_t)usual_or_long(USUAL, REAL); i++) {
    weir__recording *recording = load(real[i]);
    const weir__recording_device whole = recording->devices[0];
    const size_t annotations = recording->annotation_count;
    uint64_t random = first_seed() * 100 + i;
    for (int n = 0; n < usual_or_long(2, 100); n++) {
      /* A part of a step may look like anything, so there are at least two of them. */
      size_t least = whole.event_count / (annotations > 0 && annotations < 40 ? 2 : 5);
      size_t from = n % 3 == 0 ? 0 : next_random(&random) % (whole.event_count - least);
      size_t to = from + least + next_random(&random) % (whole.event_count - from - least);
      recording->devices[0] =
          (weir__recording_device){.events = whole.events + from, .event_count = to - from, .lacks_start = from > 0};
      recording->annotation_count = n % 2 ? annotations : 0;
      weir__leaks l = find(recording);
      cuts++;
      if (l.verdict == WEIR__LEAKS_FOUND) {
        alarms++;
        print_message("%s, entries %zu to %zu of %zu%s\n", real[i], from, to, whole.event_count,
                      n % 2 ? "" : ", without annotations");
        print_leaks(&l);
      }
      weir__leaks_clear(&l);
    }
    recording->devices[0] = whole;
    recording->annotation_count = annotations;
    weir__recording_free(recording);
  }
  print_message("%zu false alarms in %zu cut histories\n", alarms, cuts);
  assert_int_equal(alarms, 0);
}

/* A part whose last backward pass looks like steps: its layers recur, and gradients grow from one to the next, while
 * the activations of one layer after the other are freed. */
TEST(backward_pass) {
  const size_t from = 59296, to = 83435;
  weir__recording *recording = load("traces/llama_lora_ckpt");
  const weir__recording_device whole = recording->devices[0];
  const size_t annotations = recording->annotation_count;
  recording->devices[0] =
      (weir__recording_device){.events = whole.events + from, .event_count = to - from, .lacks_start = true};
  recording->annotation_count = 0;
  weir__leaks l = find(recording);
  assert_int_not_equal(l.verdict, WEIR__LEAKS_FOUND);
  weir__leaks_clear(&l);
  recording->devices[0] = whole;
  recording->annotation_count = annotations;
  weir__recording_free(recording);
}

/* A short history does not tell which streams are idle. */
TEST(one_entry) {
  int64_t streams[2] = {0, 0x77};
  weir__recording_pool pool = {0};
  weir__recording_remark remark = {0};
  weir__recording_stack stack = {0};
  weir__string text = {"", 0};
  weir__recording_entry entries[100] = {0};
  weir__recording_device device = {.events = entries};
  weir__recording recording = {.devices = &device,
                               .device_count = 1,
                               .streams = streams,
                               .stream_count = 2,
                               .pools = &pool,
                               .pool_count = 1,
                               .remarks = &remark,
                               .remark_count = 1,
                               .stacks = &stack,
                               .stack_count = 1,
                               .has_history = true,
                               .strings = {.items = &text, .count = 1}};
  for (size_t i = 0; i < 100; i++) /* a segment of a stream that is not used again */
    entries[i] = (weir__recording_entry){.action = i ? WEIR_TRACE_ALLOC : WEIR_TRACE_SEGMENT_ALLOC,
                                         .address = i ? 0x700000000000 + i * 4096 : 0x600000000000,
                                         .size = i ? 4096 : 20 << 20,
                                         .stream = i == 0,
                                         .pool = WEIR__RECORDING_NO_POOL};
  for (size_t count = 1; count <= 100; count += 99) {
    device.event_count = count;
    weir__leaks l = find(&recording);
    assert_int_equal(l.verdict, WEIR__LEAKS_UNKNOWN);
    assert_int_equal(l.idle_count, count > 1);
    weir__leaks_clear(&l);
  }
}

TEST(planted) {
  size_t planted = 0, found = 0, exact = 0;
  int seeds = usual_or_long(1, 20);
  for (size_t i = 0; i < (size_t)usual_or_long(USUAL, REAL); i++) {
    weir__recording *recording = load(real[i]);
    for (int n = 0; n < PLANT_KINDS * seeds; n++) {
      if ((n + (int)i) % 2 && usual_or_long(1, 0)) /* every other one */
        continue;
      plant_kind kind = (plant_kind)(n % PLANT_KINDS);
      job j = {.random = (first_seed() + (uint64_t)n) * 100 + i};
      size_t nth = kind == PLANT_EVERY_NTH ? 2 + job_below(&j, 3) : 1;
      job_repeat(&j, recording, nth > 2 ? 4 * nth + 3 : 12, n / PLANT_KINDS % 2 == 0);
      if (j.begin_count < 10) {
        job_free(&j);
        continue;
      }
      uint64_t before = bytes_of(&j);
      size_t steps = j.begin_count - 1, from = n % 3 == 2 && steps > 22 ? steps - 12 - job_below(&j, 10) : 0;
      job_plant(&j, kind, nth, 0.001, from);
      uint64_t bytes = bytes_of(&j) - before;
      weir__leaks l = find(job_recording(&j));
      planted++;
      found += l.verdict == WEIR__LEAKS_FOUND;
      if (is_found(&l, bytes, strstr(real[i], "graphs"))) /* each graph keeps memory, as a cache does */
        exact++;
      else {
        print_message("%s, %s (%zu), seed %d, from step %zu of %zu: %llu bytes planted, %llu found\n", real[i],
                      plant_names[kind], nth, n, from, steps, (unsigned long long)bytes, (unsigned long long)l.bytes);
        print_leaks(&l);
      }
      weir__leaks_clear(&l);
      job_free(&j);
    }
    weir__recording_free(recording);
  }
  print_message("%zu of %zu found in real histories, %zu of them in the right size\n", found, planted, exact);
  /* No leak may be missed. Its size may be off where blocks of the setup have the same stack. */
  assert_int_equal(found, planted);
  assert_true(200 * (planted - exact) <= planted);
}

/* ---- Synthetic jobs ---- */

static traits random_traits(uint64_t *random) {
  uint64_t bits = next_random(random);
  bits &= next_random(random); /* a quarter of them is set */
  return (traits){.has_stacks = next_random(random) & 1,
                  .varies = next_random(random) & 1,
                  .prefetches = bits & 1,
                  .fills_cache = bits >> 1 & 1,
                  .hits_cache = bits >> 2 & 1,
                  .evicts = bits >> 3 & 1,
                  .accumulates = bits >> 4 & 1,
                  .evaluates = bits >> 5 & 1,
                  .generates = bits >> 6 & 1,
                  .churns = bits >> 7 & 1};
}

TEST(synthetic) {
  size_t planted = 0, found = 0, exact = 0, clean = 0, alarms = 0;
  for (int n = 0; n < repetitions(160, 4000); n++) {
    job j = {.random = first_seed() + (uint64_t)n};
    synthetic *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->is = random_traits(&j.random);
    size_t steps = 40 + job_below(&j, 60);
    job_synthesize(s, &j, steps);
    uint64_t before = bytes_of(&j);
    bool is_clean = n % 2 == 0;
    plant_kind kind = (plant_kind)(n / 2 % PLANT_KINDS);
    size_t nth = kind == PLANT_EVERY_NTH ? 2 + job_below(&j, 4) : 1;
    if (!is_clean)
      job_plant(&j, kind, nth, 0.001, job_below(&j, 2) ? 0 : job_below(&j, steps / 2));
    uint64_t bytes = bytes_of(&j) - before;
    weir__leaks l = find(job_recording(&j));
    bool ok = is_clean ? l.verdict != WEIR__LEAKS_FOUND
                       : is_found(&l, bytes, s->is.fills_cache || s->is.hits_cache || s->is.evicts || s->is.churns);
    bool is_reported = l.verdict == WEIR__LEAKS_FOUND;
    *(is_clean ? &clean : &planted) += 1;
    *(is_clean ? &alarms : &found) += is_reported;
    exact += !is_clean && ok;
    if (!ok) {
      const traits *t = &s->is;
      print_message("seed %d, %s (%zu), %zu steps:%s%s%s%s%s%s%s%s%s%s, %llu bytes planted, %llu found\n", n,
                    is_clean ? "clean" : plant_names[kind], nth, steps, t->has_stacks ? " stacks" : "",
                    t->varies ? " varies" : "", t->prefetches ? " prefetches" : "", t->fills_cache ? " fills" : "",
                    t->hits_cache ? " hits" : "", t->evicts ? " evicts" : "", t->accumulates ? " accumulates" : "",
                    t->evaluates ? " evaluates" : "", t->generates ? " generates" : "", t->churns ? " churns" : "",
                    (unsigned long long)bytes, (unsigned long long)l.bytes);
      print_leaks(&l);
    }
    weir__leaks_clear(&l);
    job_free(&j);
    free(s);
  }
  print_message(
      "%zu of %zu found in synthetic jobs, %zu of them in the right size, %zu false alarms in %zu clean ones\n", found,
      planted, exact, alarms, clean);
  /*
   * All steps are inferred here, and traits are combined at random. A leak of 0.1 % of the peak may be missed among
   * blocks of random size and life, of which more come and go than leak ("churns"), and its size is uncertain where
   * several steps are taken for one. In seven ranges of 4000 jobs each, some of them run before the last changes of the
   * detector and of this generator, at most 1.5 % of the leaks were missed, 1.9 % were missed or had the wrong size,
   * and 0.1 % of the clean jobs raised an alarm. The usual form allows none of these.
   */
  assert_true(1000 * (planted - found) <= 15 * planted);
  assert_true(1000 * (planted - exact) <= 25 * planted);
  assert_true(1000 * alarms <= clean);
  if (usual_or_long(1, 0))
    assert_int_equal(exact, planted);
}
