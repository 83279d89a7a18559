// The patterns of `weir bench alloc` through PyTorch's caching allocator. The program carries this source and
// bench_patterns.h along, and compiles them where there is a PyTorch: bench_torch.c does.
//
//   bench_torch ROUNDS PAIRS MOST_NS PATTERN...
//
// writes a line for each pattern, and a text on stderr when something fails.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "bench_patterns.h"

namespace allocator = c10::cuda::CUDACachingAllocator;

// PyTorch's own main library answers this question, and without an answer c10 throws. Nothing else of it is needed here, so
// this program does not load it; its one device is in use from the start.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

// PyTorch has so many streams of a priority; the next one is the first again.
enum { TORCH_STREAMS = 32 };

// Without the stack that c10 puts behind the first line.
static void tell(const std::exception &error) {
  fprintf(stderr, "%.*s\n", (int)strcspn(error.what(), "\n"), error.what());
}

static void *take(void *, size_t bytes, void *stream) {
  try {
    return allocator::raw_alloc_with_stream(bytes, (cudaStream_t)stream);
  } catch (const std::exception &error) {
    tell(error);
    return nullptr;
  }
}

static void give(void *, void *pointer) { allocator::raw_delete(pointer); }

BENCH_PLAYER(player, take, give);

static bool run(const bench_pattern &pattern, void *const *streams, const bench_scale &scale) {
  std::vector<void *> blocks((size_t)pattern.live + (size_t)pattern.threads);
  double rounds[BENCH_MAX_ROUNDS];
  bench_work work = {&pattern, nullptr, streams, blocks.data(), bench_warm_steps(&scale), {0}};
  long pairs = player.begin(&work) ? bench_choose_pairs(&player, &work, &scale) : -1;
  bool good = pairs > 0;
  for (int i = 0; good && i < scale.rounds; i++)
    good = (rounds[i] = player.round(&work, pairs)) >= 0;
  player.end(&work);
  allocator::emptyCache();
  if (!good)
    return false;
  double median = bench_median(rounds, scale.rounds);
  printf("{\"pattern\": \"%s\", \"ns\": %.3f, \"least\": %.3f, \"most\": %.3f}\n", pattern.name, median, rounds[0],
         rounds[scale.rounds - 1]);
  fflush(stdout);
  return true;
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  bench_scale scale = {atoi(argv[1]), atol(argv[2]), atof(argv[3])};
  if (scale.rounds < 1 || scale.rounds > BENCH_MAX_ROUNDS || scale.pairs < 1 || !(scale.most_ns > 0))
    return 2;
  try {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    allocator::init(1);
    void *streams[BENCH_MAX_THREADS];
    for (int i = 0; i < BENCH_MAX_THREADS; i++)
      streams[i] = i < TORCH_STREAMS ? (void *)c10::cuda::getStreamFromPool(false, 0).stream() : nullptr;
    for (const bench_pattern &pattern : bench_patterns)
      for (int i = 4; i < argc; i++)
        if (strcmp(argv[i], pattern.name) == 0 &&
            !(pattern.kind == BENCH_OWN_STREAMS && pattern.threads > TORCH_STREAMS) && !run(pattern, streams, scale))
          return 1;
  } catch (const std::exception &error) {
    tell(error);
    return 1;
  }
  return 0;
}
