// PyTorch's caching allocator as a contestant of `weir bench alloc`. This source and bench_patterns.h are embedded in
// the program, which compiles them if PyTorch is installed (bench_torch.c), and sends one line for each call of a
// bench_player:
//
//   begin PATTERN WARM_STEPS CORE   1, or 0 if it does not take part
//   round PAIRS                     ns for each pair, or a negative number
//   end                             1
//
// Failures are reported on stderr, and make the exit code 1.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "bench_patterns.h"

namespace allocator = c10::cuda::CUDACachingAllocator;

// c10 throws unless this hook is set, which PyTorch's main library does. Nothing else of that library is needed, so
// this program does not load it; its only device is in use from the start.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

// The streams that PyTorch has for each priority; further ones repeat these.
enum { TORCH_STREAMS = 32 };

// Without the stack that c10 appends to the first line.
static void report(const std::exception &error) {
  fprintf(stderr, "%.*s\n", (int)strcspn(error.what(), "\n"), error.what());
}

static void *take(void *, size_t bytes, void *stream) {
  try {
    return allocator::raw_alloc_with_stream(bytes, (cudaStream_t)stream);
  } catch (const std::exception &error) {
    report(error);
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

// Serves requests until the end of the input. Returns 1 if something failed.
static int serve(void *const *streams) {
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
    return serve(streams);
  } catch (const std::exception &error) {
    report(error);
    return 1;
  }
}
