// Times pinned memory through PyTorch's interface of host allocators, for pinned.py, which passes the allocators.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void pairs(at::HostAllocator *allocator, long count, size_t bytes) {
  for (long i = 0; i < count; i++)
    (void)allocator->allocate(bytes);
}

void replaced(at::HostAllocator *allocator, long count, size_t bytes) {
  std::vector<c10::DataPtr> kept(100);
  for (long i = 0; i < count; i++)
    kept[static_cast<size_t>(i) % 100] = allocator->allocate(bytes);
}

void recorded(at::HostAllocator *allocator, long count, size_t bytes) {
  c10::Stream stream = c10::cuda::getCurrentCUDAStream().unwrap();
  for (long i = 0; i < count; i++) {
    c10::DataPtr memory = allocator->allocate(bytes);
    allocator->record_event(memory.get(), memory.get_context(), stream);
  }
}

// Returns the nanoseconds of a call in all threads together, divided by their number of calls.
template <class Work> double measure(int threads, long count, const Work &work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; i++)
    workers.emplace_back([&] {
      ready++;
      while (!go)
        std::this_thread::yield();
      work();
    });
  while (ready < threads - 1)
    std::this_thread::yield();
  auto begin = Clock::now();
  go = true;
  work();
  for (std::thread &worker : workers)
    worker.join();
  std::chrono::duration<double, std::nano> spent = Clock::now() - begin;
  return spent.count() / static_cast<double>(count) / threads;
}

} // namespace

// way: 0 for pairs, 1 for the replacement of one of 100, 2 for pairs that a stream used. Negative if a call failed.
extern "C" double bench_pinned(void *allocator, int way, int threads, long count, size_t bytes) {
  static void (*const ways[])(at::HostAllocator *, long, size_t) = {pairs, replaced, recorded};
  auto *host = static_cast<at::HostAllocator *>(static_cast<c10::Allocator *>(allocator));
  try {
    ways[way](host, 1000, bytes);
    return measure(threads, count, [=] { ways[way](host, count, bytes); });
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}

// The seconds of one allocation, which is freed and returned to the driver afterwards.
extern "C" double bench_pin_once(void *allocator, size_t bytes) {
  auto *host = static_cast<at::HostAllocator *>(static_cast<c10::Allocator *>(allocator));
  try {
    auto begin = Clock::now();
    c10::DataPtr memory = host->allocate(bytes);
    std::chrono::duration<double> spent = Clock::now() - begin;
    return spent.count();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}
