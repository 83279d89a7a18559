// How long an allocation and its free take through PyTorch's allocator interface, for stacks.py, which calls it from Python functions
// within each other: the stack that a recorder finds is that of the caller.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstdio>
#include <exception>

// Nanoseconds of a pair; negative if something failed.
extern "C" double bench_pairs(long pairs, size_t bytes) {
  try {
    auto *allocator = c10::cuda::CUDACachingAllocator::get();
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    auto begin = std::chrono::steady_clock::now();
    for (long i = 0; i < pairs; i++)
      allocator->raw_delete(allocator->raw_alloc_with_stream(bytes, stream));
    std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    return spent.count() / static_cast<double>(pairs);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}
