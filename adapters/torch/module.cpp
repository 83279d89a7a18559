// What Python calls, through ctypes: plain C functions, so that one build serves every Python.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <exception>
#include <memory>
#include <string>

#include "allocator.h"
#include "profiler.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cca = c10::cuda::CUDACachingAllocator;

static thread_local std::string problem;

// NULL when Weir serves PyTorch from here on; else what is wrong, until the thread's next call.
EXPORT const char *weir_torch_install(void) {
  try {
    cca::CUDAAllocator *current = cca::get();
    weir_torch::Allocator &allocator = weir_torch::the_allocator();
    if (current == &allocator)
      return nullptr;
    if (current->initialized()) {
      problem =
          "CUDA has been started already, and PyTorch's allocator has given out memory. Install Weir before anything"
          " touches the device: right after `import torch`, or with WEIR_TORCH=1 in the environment.";
      return problem.c_str();
    }
    if (current->name() != "native") {
      problem = "PyTorch uses the allocator \"" + current->name() + "\" already; Weir takes the place of \"native\".";
      return problem.c_str();
    }
    // It never ends, so nobody may delete it.
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
        std::shared_ptr<cca::CUDAAllocator>(&allocator, [](cca::CUDAAllocator *) {}));
    // torch.accelerator asks this registry, which changeCurrentAllocator leaves alone.
    c10::SetAllocator(c10::kCUDA, &allocator, 1);
    return nullptr;
  } catch (const std::exception &error) {
    problem = error.what();
    return problem.c_str();
  }
}

EXPORT int weir_torch_is_installed(void) {
  return cca::get() == static_cast<cca::CUDAAllocator *>(&weir_torch::the_allocator());
}

// The weir_allocator behind it, for whoever wants to call Weir's own functions on it; NULL before CUDA has started.
EXPORT void *weir_torch_allocator(void) { return weir_torch::the_allocator().weir(); }

// As a c10::cuda::CUDACachingAllocator::CUDAAllocator, also where it is not installed: for a comparison in one process.
EXPORT void *weir_torch_as_cuda_allocator(void) {
  return static_cast<cca::CUDAAllocator *>(&weir_torch::the_allocator());
}

// Whether an allocation finds out without a call that no profiler listens: for tests.
EXPORT int weir_torch_knows_pushed_place(void) { return weir_torch::knows_pushed_place(); }

EXPORT const char *weir_torch_built_for(void) { return TORCH_VERSION; }
