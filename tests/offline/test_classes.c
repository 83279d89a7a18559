/*
 * The classes of blocks, on recorded jobs whose models are known: the true bytes of weights, gradients and optimizer
 * states follow from the number of parameters.
 */
#include "offline/analyse/classes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/summary.h"
#include "offline/load.h"

typedef struct found {
  uint64_t peak[WEIR__CLASSES];  /* bytes in use at the peak */
  uint64_t total[WEIR__CLASSES]; /* bytes of all blocks of the history */
  size_t steps;
} found;

static found classify(const weir__recording *recording) {
  weir__lives lives;
  weir__classes classes;
  weir__summary summary;
  found f = {0};
  int device = weir__recording_first_device(recording);
  assert_int_equal(weir__lives_make(recording, device, &lives), WEIR_OK);
  assert_int_equal(weir__classes_make(recording, device, &lives, &classes), WEIR_OK);
  assert_int_equal(weir__summarize(recording, device, &summary), WEIR_OK);
  assert_int_equal(classes.count, lives.block_count);
  weir__classes_sum(&lives, &classes, summary.live.event, f.peak);
  f.steps = classes.steps;
  uint64_t sum = 0;
  bool is_known = false;
  for (size_t i = 0; i < WEIR__CLASSES; i++)
    sum += f.peak[i];
  for (size_t i = 0; i < lives.block_count; i++) {
    f.total[classes.of[i]] += lives.blocks[i].size;
    is_known |= classes.of[i] != WEIR__CLASS_UNKNOWN;
  }
  assert_int_equal(sum, summary.live.bytes); /* every byte has a class */
  assert_int_equal(is_known, classes.is_known);
  weir__classes_clear(&classes);
  weir__lives_clear(&lives);
  return f;
}

/* Parameters, their bytes, what lies beside them in buffers of the modules, and how many states of the same size the
 * optimizer has for each that is trained. */
typedef struct job {
  const char *name;
  size_t steps;
  uint64_t parameters, trained, bytes, buffers, states;
} job;

/* LlamaConfig of the jobs: two embeddings, and for each layer q, k, v, o, three matrices of the MLP and two norms. */
#define LLAMA(h, layers, kv, inter, vocab)                                                                             \
  (2ull * (vocab) * (h) + (layers) * (2ull * (h) * (h) + 2ull * (kv) * (h) + 3ull * (h) * (inter) + 2ull * (h)) + (h))
/* Rank 16, on q and o (h to h) and on k and v (h to kv). */
#define LORA(h, layers, kv) ((layers)*16ull * (2ull * 2 * (h) + 2ull * ((h) + (kv))))
#define GPT2(h, layers, vocab, positions)                                                                              \
  (((vocab) + (positions)) * (uint64_t)(h) + (layers) * (12ull * (h) * (h) + 13ull * (h)) + 2ull * (h))
/* Normalization: two averages for each channel and one count for each layer. */
#define NORMS(channels, layers) ((channels)*2ull * 4 + (layers)*8ull)

static const job jobs[] = {
    /* AdamW, two states */
    {"traces/llama_varlen", 25, LLAMA(1024, 8, 512, 2816, 32000), LLAMA(1024, 8, 512, 2816, 32000), 2, 128, 2},
    {"traces/llama_varlen_expandable", 25, LLAMA(1024, 8, 512, 2816, 32000), LLAMA(1024, 8, 512, 2816, 32000), 2, 128,
     2},
    {"traces/llama_oom", 4, LLAMA(1024, 8, 512, 2816, 32000), LLAMA(1024, 8, 512, 2816, 32000), 2, 128, 2},
    {"traces/gpt2_fixed", 5, GPT2(1024, 12, 50257, 1024), GPT2(1024, 12, 50257, 1024), 4, 0, 2},
    {"traces/llama_lora_ckpt", 15, LLAMA(2048, 12, 1024, 5632, 32000) + LORA(2048, 12, 1024), LORA(2048, 12, 1024), 2,
     256, 2},
    /* SGD with and without momentum */
    {"traces/resnet_multiscale", 25, 25557032, 25557032, 4, NORMS(26560, 53), 1},
    {"traces/resnet_stacks", 4, 25557032, 25557032, 4, NORMS(26560, 53), 1},
    {"traces/streams_prefetch", 40, 21797672, 21797672, 4, NORMS(8512, 36), 0},
};

static void check(const job *j, const found *f, uint64_t tolerance) {
  const uint64_t *peak = f->peak;
  if (f->steps != j->steps)
    fail_msg("%s: %zu steps, expected %zu", j->name, f->steps, j->steps);
  const struct {
    const char *what;
    uint64_t got, expected;
  } cases[] = {{"weights", peak[WEIR__CLASS_WEIGHTS], j->parameters * j->bytes + j->buffers},
               {"optimizer state", peak[WEIR__CLASS_OPTIMIZER], j->trained * j->bytes * j->states},
               {"gradients of a step", f->total[WEIR__CLASS_GRADIENTS] / f->steps, j->trained * j->bytes}};
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    uint64_t more =
        cases[i].got > cases[i].expected ? cases[i].got - cases[i].expected : cases[i].expected - cases[i].got;
    if (more > tolerance)
      fail_msg("%s: %s: %llu bytes, expected %llu", j->name, cases[i].what, (unsigned long long)cases[i].got,
               (unsigned long long)cases[i].expected);
  }
  /* The rest are activations and temporary memory, but for what libraries keep and for the batch. */
  uint64_t all = 0;
  for (size_t i = 0; i < WEIR__CLASSES; i++)
    all += peak[i];
  if (peak[WEIR__CLASS_UNKNOWN] > all / 20)
    fail_msg("%s: %llu of %llu bytes are unknown", j->name, (unsigned long long)peak[WEIR__CLASS_UNKNOWN],
             (unsigned long long)all);
}

/* PyTorch's annotations of Optimizer.step and Optimizer.zero_grad give the true bytes, exactly. */
TEST(jobs) {
  for (size_t i = 0; i < WEIR_COUNT_OF(jobs); i++) {
    weir__recording *recording = load(jobs[i].name);
    found f = classify(recording);
    check(&jobs[i], &f, 0);
    weir__recording_free(recording);
  }
}

/* Without annotations, steps follow from the frees of gradients, and the bytes are the same. */
TEST(life_only) {
  for (size_t i = 0; i < WEIR_COUNT_OF(jobs); i++) {
    weir__recording *recording = load(jobs[i].name);
    recording->annotation_count = 0;
    found f = classify(recording);
    check(&jobs[i], &f, 0);
    weir__recording_free(recording);
  }
}

/* Jobs that do not train, and random requests: nothing is invented. */
TEST(unknown) {
  static const char *const names[] = {
      "traces/llm_generate_small", "traces/cuda_graphs",          "histories/pools",
      "histories/capped_oom",      "histories/emptied",           "histories/collected",
      "histories/capped_streams",  "late/cuda_graphs_expandable", "histories/split_capped"};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    weir__recording *recording = load(names[i]);
    found f = classify(recording);
    for (size_t k = WEIR__CLASS_UNKNOWN + 1; k < WEIR__CLASSES; k++)
      if (f.total[k])
        fail_msg("%s: %llu bytes of %s", names[i], (unsigned long long)f.total[k], weir__class_name((weir__class)k));
    assert_int_equal(f.steps, 0);
    weir__recording_free(recording);
  }
}

/* A recording that begins late has weights and optimizer state from before, which only stacks could tell apart. */
TEST(late) {
  weir__recording *recording = load("late/llama_oom");
  found f = classify(recording);
  assert_int_equal(f.steps, 2);
  assert_int_equal(f.peak[WEIR__CLASS_WEIGHTS], 0);
  assert_int_equal(f.peak[WEIR__CLASS_OPTIMIZER], 0);
  assert_true(f.peak[WEIR__CLASS_UNKNOWN] > 3 * 319850496);
  assert_true(f.peak[WEIR__CLASS_ACTIVATIONS] > 7000000000);
  weir__recording_free(recording);
}

/* ---- Phases of the program, as memory_phase() records them ---- */

enum { NO_PHASE, WEIGHTS, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, PHASES };

typedef struct script {
  weir__recording_entry entries[64];
  size_t count;
} script;

static void put(script *s, uint8_t action, uint64_t address, uint64_t size, uint32_t phase) {
  s->entries[s->count] = (weir__recording_entry){.address = address, .size = size, .action = action, .remark = phase};
  s->entries[s->count].pool = WEIR__RECORDING_NO_POOL;
  s->count++;
}

static void put_alloc(script *s, uint64_t address, uint64_t size, uint32_t phase) {
  put(s, WEIR_TRACE_ALLOC, address, size, phase);
}

static void put_free(script *s, uint64_t address, uint64_t size, uint32_t phase) {
  put(s, WEIR_TRACE_FREE_REQUESTED, address, size, phase);
  put(s, WEIR_TRACE_FREE_COMPLETED, address, size, phase);
}

TEST(phases) {
  static const char *const names[PHASES] = {"", "load weights", "forward", "Backward", "optimizer.step", "zero_grad"};
  weir__string strings[PHASES];
  weir__recording_remark remarks[PHASES] = {{0}};
  script s = {.count = 0};
  for (uint32_t i = 0; i < PHASES; i++) {
    strings[i] = (weir__string){.text = (char *)names[i], .length = (uint32_t)strlen(names[i])};
    remarks[i].phase = i;
  }
  put_alloc(&s, 0x1000, 1000, WEIGHTS);
  for (uint64_t step = 0; step < 2; step++) {
    put_alloc(&s, 0x2000, 300, FORWARD); /* kept for the backward pass */
    put_alloc(&s, 0x3000, 70, FORWARD);  /* not kept */
    put_free(&s, 0x3000, 70, FORWARD);
    put_alloc(&s, 0x4000, 4, BACKWARD);
    put_alloc(&s, 0x5000, 1000, BACKWARD); /* the gradient */
    put_free(&s, 0x4000, 4, BACKWARD);
    put_free(&s, 0x2000, 300, BACKWARD);
    if (!step)
      put_alloc(&s, 0x6000, 2000, OPTIMIZER);
    put_alloc(&s, 0x7000, 500, OPTIMIZER); /* not kept */
    put_free(&s, 0x7000, 500, OPTIMIZER);
    put_free(&s, 0x5000, 1000, ZERO_GRAD);
  }
  put_alloc(&s, 0x8000, 40, NO_PHASE);
  weir__recording_device device = {.events = s.entries, .event_count = s.count};
  weir__recording_stack stack = {0};
  int64_t stream = 0;
  weir__recording recording = {.devices = &device,
                               .device_count = 1,
                               .events = s.entries,
                               .event_count = s.count,
                               .is_events_only = true,
                               .has_history = true,
                               .remarks = remarks,
                               .remark_count = PHASES,
                               .stacks = &stack,
                               .stack_count = 1,
                               .streams = &stream,
                               .stream_count = 1,
                               .strings = {.items = strings, .count = PHASES}};
  found f = classify(&recording);
  assert_int_equal(f.steps, 2);
  assert_int_equal(f.total[WEIR__CLASS_WEIGHTS], 1000);
  assert_int_equal(f.total[WEIR__CLASS_ACTIVATIONS], 2 * 300);
  assert_int_equal(f.total[WEIR__CLASS_GRADIENTS], 2 * 1000);
  assert_int_equal(f.total[WEIR__CLASS_OPTIMIZER], 2000);
  assert_int_equal(f.total[WEIR__CLASS_TEMPORARY], 2 * (70 + 4 + 500));
  assert_int_equal(f.total[WEIR__CLASS_UNKNOWN], 40); /* of a step that has just begun */
}
