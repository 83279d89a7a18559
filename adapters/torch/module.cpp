// The functions that Python calls through ctypes: plain C, so that one build works with every version of Python.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <exception>
#include <memory>
#include <string>

#include "allocator.h"
#include "pinned.h"
#include "profiler.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cca = c10::cuda::CUDACachingAllocator;

static thread_local std::string problem;

// Returns NULL if PyTorch uses Weir from now on, or else a description of the problem, valid until the thread's next
// call.
EXPORT const char *weir_torch_install(void) {
  try {
    cca::CUDAAllocator *current = cca::get();
    weir_torch::Allocator &allocator = weir_torch::the_allocator();
    if (current == &allocator)
      return nullptr;
    if (current->initialized()) {
      problem =
          "CUDA is already initialized, and PyTorch's allocator has allocated memory. Install Weir before anything"
          " uses the device: right after `import torch`, or with WEIR_TORCH=1 in the environment.";
      return problem.c_str();
    }
    if (current->name() != "native") {
      problem = "PyTorch already uses the allocator \"" + current->name() + "\"; Weir can only replace \"native\".";
      return problem.c_str();
    }
    // The allocator is never destroyed, so it must not be deleted.
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
        std::shared_ptr<cca::CUDAAllocator>(&allocator, [](cca::CUDAAllocator *) {}));
    // torch.accelerator uses this registry, which changeCurrentAllocator does not update.
    c10::SetAllocator(c10::kCUDA, &allocator, 1);
    return nullptr;
  } catch (const std::exception &error) {
    problem = error.what();
    return problem.c_str();
  }
}

// Whether the scope of a pool that this thread opens next selects the thread.
EXPORT void weir_torch_next_scope(int is_of_thread) { weir_torch::next_scope_is_of_thread(is_of_thread != 0); }

EXPORT int weir_torch_is_installed(void) {
  return cca::get() == static_cast<cca::CUDAAllocator *>(&weir_torch::the_allocator());
}

// The same for pinned host memory.
EXPORT const char *weir_torch_install_pinned(void) {
#if WEIR_TORCH_2_11
  try {
    weir_torch::the_pinned_allocator().install();
    return nullptr;
  } catch (const std::exception &error) {
    problem = error.what();
    return problem.c_str();
  }
#else
  problem = "pinned memory needs PyTorch 2.11 or later, but this is " TORCH_VERSION;
  return problem.c_str();
#endif
}

EXPORT int weir_torch_pinned_is_installed(void) {
#if WEIR_TORCH_2_11
  return weir_torch::the_pinned_allocator().is_installed();
#else
  return 0;
#endif
}

// As an at::HostAllocator, installed or not, for comparisons in one process; NULL if PyTorch is too old.
EXPORT void *weir_torch_as_host_allocator(void) {
#if WEIR_TORCH_2_11
  return static_cast<at::HostAllocator *>(&weir_torch::the_pinned_allocator());
#else
  return nullptr;
#endif
}

// The underlying weir_allocator, for direct calls of Weir's functions; NULL before CUDA is initialized.
EXPORT void *weir_torch_allocator(void) { return weir_torch::the_allocator().weir(); }

// The driver table that counts and times calls (WEIR_DRIVER_TIMING); NULL without it, or before CUDA is initialized.
EXPORT void *weir_torch_timing(void) { return weir_torch::the_allocator().timing(); }

// The same as a c10::cuda::CUDACachingAllocator::CUDAAllocator, installed or not, for comparisons in one process.
EXPORT void *weir_torch_as_cuda_allocator(void) {
  return static_cast<cca::CUDAAllocator *>(&weir_torch::the_allocator());
}

// Whether an allocation can check for profilers without a call; for tests.
EXPORT int weir_torch_knows_pushed_place(void) { return weir_torch::knows_pushed_place(); }

EXPORT const char *weir_torch_built_for(void) { return TORCH_VERSION; }
