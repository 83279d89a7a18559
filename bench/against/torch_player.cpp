// The contestants of bench/all that are PyTorch's allocator, or Weir in its place. python_player.py compiles this
// against PyTorch as a shared library, and calls it for each request of bench/all (see player.c). The patterns are
// those of patterns.h.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "patterns.h"

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

namespace {

// The streams that PyTorch has for each priority.
enum { TORCH_STREAMS = 32 };

// Without the stack that c10 appends to the first line.
void report(const std::exception &error) { fprintf(stderr, "%.*s\n", (int)strcspn(error.what(), "\n"), error.what()); }

void *take(void *allocator, size_t bytes, void *stream) {
  try {
    return static_cast<CUDAAllocator *>(allocator)->raw_alloc_with_stream(bytes, (cudaStream_t)stream);
  } catch (const std::exception &error) {
    report(error);
    return nullptr;
  }
}

void give(void *allocator, void *pointer) { static_cast<CUDAAllocator *>(allocator)->raw_delete(pointer); }

BENCH_PLAYER(device_player, take, give);

// Frees pinned memory by its context; bench_begin asks the allocator for it once, so that a pair has no other costs.
c10::DeleterFnPtr pinned_deleter;

void *take_pinned(void *allocator, size_t bytes, void *) {
  try {
    return static_cast<at::HostAllocator *>(allocator)->allocate(bytes).release_context();
  } catch (const std::exception &error) {
    report(error);
    return nullptr;
  }
}

void give_pinned(void *, void *context) { pinned_deleter(context); }

BENCH_PLAYER(pinned_player, take_pinned, give_pinned);

const bench_player *player;
bench_work work;
std::vector<void *> blocks;
void *streams[BENCH_MAX_THREADS];
cpu_set_t all_cores;
bool can_stay;

const bench_pattern *find(const char *name) {
  for (const bench_pattern &pattern : bench_patterns)
    if (strcmp(pattern.name, name) == 0 && !(pattern.kind == BENCH_OWN_STREAMS && pattern.threads > TORCH_STREAMS))
      return &pattern;
  return nullptr;
}

} // namespace

// host is PyTorch's or Weir's allocator of pinned memory, for the pinned patterns; null for device memory.
extern "C" int bench_begin(const char *name, long warm_steps, int core, void *host) {
  const bench_pattern *pattern = find(name);
  if (!pattern)
    return 0;
  try {
    if (!streams[0]) {
      for (int i = 0; i < TORCH_STREAMS; i++)
        streams[i] = (void *)c10::cuda::getStreamFromPool(false, 0).stream();
      can_stay = !sched_getaffinity(0, sizeof all_cores, &all_cores);
    }
    if (host)
      pinned_deleter = static_cast<c10::Allocator *>(host)->allocate(512).get_deleter();
  } catch (const std::exception &error) {
    report(error);
    return 0;
  }
  if (can_stay)
    bench_stay_on(core, &all_cores);
  player = host ? &pinned_player : &device_player;
  void *allocator = host ? static_cast<at::HostAllocator *>(static_cast<c10::Allocator *>(host))
                         : static_cast<void *>(c10::cuda::CUDACachingAllocator::get());
  blocks.assign((size_t)pattern->live + (size_t)pattern->threads, nullptr);
  work = {pattern, allocator, streams, blocks.data(), warm_steps, core, {0}};
  return player->begin(&work);
}

extern "C" double bench_round(long pairs) { return player ? player->round(&work, pairs) : -1; }

extern "C" void bench_end() {
  if (can_stay)
    bench_stay_on(-1, &all_cores);
  if (player)
    player->end(&work);
  player = nullptr;
  try {
    c10::cuda::CUDACachingAllocator::emptyCache();
  } catch (const std::exception &error) {
    report(error);
  }
}
