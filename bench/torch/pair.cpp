// The patterns of patterns.h through PyTorch's allocator interface: PyTorch's allocator and Weir take turns in
// one process. bench/torch/side_by_side.py builds this as a shared library, loads it into a process that uses PyTorch's
// own allocator, and passes Weir's allocator to bench_torch_run.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "patterns.h"

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// The streams that PyTorch has for each priority; further ones repeat these.
enum { TORCH_STREAMS = 32, CONTESTANTS = 2 };

// Without the stack that c10 appends to the first line.
static void report(const std::exception &error) {
  fprintf(stderr, "%.*s\n", (int)strcspn(error.what(), "\n"), error.what());
}

// Both are called through virtual functions of the interface, as PyTorch calls the installed allocator.
static void *take(void *allocator, size_t bytes, void *stream) {
  try {
    return static_cast<CUDAAllocator *>(allocator)->raw_alloc_with_stream(bytes, (cudaStream_t)stream);
  } catch (const std::exception &error) {
    report(error);
    return nullptr;
  }
}

static void give(void *allocator, void *pointer) { static_cast<CUDAAllocator *>(allocator)->raw_delete(pointer); }

BENCH_PLAYER(player, take, give);

static bool run(const bench_pattern &pattern, CUDAAllocator *const *allocators, void *const *streams,
                const bench_scale &scale) {
  static const char *const names[CONTESTANTS] = {"native", "weir"};
  std::vector<void *> blocks[CONTESTANTS];
  bench_work work[CONTESTANTS];
  double rounds[CONTESTANTS][BENCH_MAX_ROUNDS];
  long pairs[CONTESTANTS];
  cpu_set_t cores;
  int core = bench_choose_core(&pattern, &cores);
  bool good = true;
  if (core >= 0)
    bench_stay_on(core, &cores);
  for (int c = 0; c < CONTESTANTS; c++) {
    blocks[c].resize((size_t)pattern.live + (size_t)pattern.threads);
    work[c] = {&pattern, allocators[c], streams, blocks[c].data(), bench_warm_steps(&scale), core, {0}};
    pairs[c] = good && player.begin(&work[c]) ? bench_choose_pairs(&player, &work[c], &scale) : -1;
    good = good && pairs[c] > 0;
  }
  for (int i = 0; good && i < scale.rounds; i++)
    for (int c = 0; good && c < CONTESTANTS; c++)
      good = (rounds[c][i] = player.round(&work[c], pairs[c])) >= 0;
  for (int c = 0; c < CONTESTANTS; c++) {
    player.end(&work[c]);
    allocators[c]->emptyCache({0, 0});
  }
  if (core >= 0)
    bench_stay_on(-1, &cores);
  if (!good)
    return false;
  double ratios[BENCH_MAX_ROUNDS]; // of adjacent rounds, since the speed of the machine varies over time
  for (int i = 0; i < scale.rounds; i++)
    ratios[i] = rounds[0][i] / rounds[1][i];
  printf("{\"pattern\": \"%s\", \"title\": \"%s\", \"ratio\": %.3f", pattern.name, pattern.title,
         bench_median(ratios, scale.rounds));
  for (int c = 0; c < CONTESTANTS; c++) {
    double median = bench_median(rounds[c], scale.rounds);
    printf(", \"%s\": {\"ns\": %.3f, \"least\": %.3f, \"most\": %.3f, \"pairs\": %ld}", names[c], median, rounds[c][0],
           rounds[c][scale.rounds - 1], pairs[c]);
  }
  printf("}\n");
  fflush(stdout);
  return true;
}

// Runs the patterns listed in `names`, each followed by a space. Returns 1 if all of them ran, or else 0.
extern "C" int bench_torch_run(void *weir, int rounds, long pairs, double most_ns, const char *names) {
  bench_scale scale = {rounds, pairs, most_ns};
  if (rounds < 1 || rounds > BENCH_MAX_ROUNDS)
    return 0;
  try {
    CUDAAllocator *allocators[CONTESTANTS] = {c10::cuda::CUDACachingAllocator::get(),
                                              static_cast<CUDAAllocator *>(weir)};
    if (allocators[0] == allocators[1]) {
      fprintf(stderr, "expected PyTorch's own allocator to be installed, found Weir\n");
      return 0;
    }
    allocators[1]->init(1);
    void *streams[BENCH_MAX_THREADS];
    for (int i = 0; i < BENCH_MAX_THREADS; i++)
      streams[i] = i < TORCH_STREAMS ? (void *)c10::cuda::getStreamFromPool(false, 0).stream() : nullptr;
    for (const bench_pattern &pattern : bench_patterns) {
      char name[64];
      snprintf(name, sizeof name, "%s ", pattern.name);
      if (strstr(names, name) && !(pattern.kind == BENCH_OWN_STREAMS && pattern.threads > TORCH_STREAMS) &&
          !run(pattern, allocators, streams, scale))
        return 0;
    }
  } catch (const std::exception &error) {
    report(error);
    return 0;
  }
  return 1;
}
