// PyTorch's caching allocator as a contestant of `weir bench alloc`. The program carries this source and bench_patterns.h along, and
// compiles them where there is a PyTorch: bench_torch.c does, and then asks, a line for each of the calls of a bench_player:
//
//   begin PATTERN WARM_STEPS CORE   1, or 0 when it does not take part
//   round PAIRS                     ns for each pair, or a negative number
//   end                             1
//
// What fails is told on stderr, and the exit code is 1 at the end.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
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

static const bench_pattern *find(const char *name) {
  for (const bench_pattern &pattern : bench_patterns)
    if (strcmp(pattern.name, name) == 0 && !(pattern.kind == BENCH_OWN_STREAMS && pattern.threads > TORCH_STREAMS))
      return &pattern;
  return nullptr;
}

// Until there is nothing more to do. 1: something failed.
static int play(void *const *streams) {
  std::vector<void *> blocks;
  bench_work work = {};
  int failed = 0;
  char line[128], name[64];
  long number;
  int core;
  cpu_set_t cores;
  bool stays = !sched_getaffinity(0, sizeof cores, &cores);
  while (fgets(line, sizeof line, stdin)) {
    double answer = 0;
    if (sscanf(line, "begin %63s %ld %d", name, &number, &core) == 3) {
      if (stays)
        bench_stay_on(core, &cores);
      if (const bench_pattern *pattern = find(name)) {
        blocks.assign((size_t)pattern->live + (size_t)pattern->threads, nullptr);
        work = {pattern, nullptr, streams, blocks.data(), number, core, {0}};
        answer = player.begin(&work);
        failed |= !answer;
      }
    } else if (sscanf(line, "round %ld", &number) == 1) {
      answer = player.round(&work, number);
      failed |= answer < 0;
    } else if (work.pattern) {
      player.end(&work);
      allocator::emptyCache();
      work = {};
      answer = 1;
    }
    printf("%.6f\n", answer);
    fflush(stdout);
  }
  return failed;
}

int main() {
  try {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    allocator::init(1);
    void *streams[BENCH_MAX_THREADS];
    for (int i = 0; i < BENCH_MAX_THREADS; i++)
      streams[i] = i < TORCH_STREAMS ? (void *)c10::cuda::getStreamFromPool(false, 0).stream() : nullptr;
    return play(streams);
  } catch (const std::exception &error) {
    tell(error);
    return 1;
  }
}
