// Times an allocation and its free through PyTorch's allocator interface, for stacks.py, which calls this from nested
// Python functions: a recorder captures the stack of the caller.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstdio>
#include <exception>

// Returns the nanoseconds of a pair, or a negative number if a call failed.
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
