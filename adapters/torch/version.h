// What differs between the PyTorch versions that the adapter builds against, 2.10 to 2.14, has a name here. Everything else in
// this folder asks for these names only.
#pragma once

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>
#endif

#define WEIR_TORCH_AT_LEAST(minor)                                                                                     \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

#if !WEIR_TORCH_AT_LEAST(10)
#error "PyTorch 2.10 or newer is needed"
#endif

// snapshot() may leave the traces out, recordHistory() may skip actions, a pool owns its allocator, large_segment_size_mb.
#define WEIR_TORCH_2_11 WEIR_TORCH_AT_LEAST(11)
// setNoSplit, and the last parameter of setUseOnOOM, came in the days in which 2.10 was cut: it may have them or not.
#if WEIR_TORCH_2_11
#define WEIR_TORCH_2_11_OVERRIDE override
#else
#define WEIR_TORCH_2_11_OVERRIDE
#endif
// getContextForPointer, attachOomRejectionObserver, throw_on_cudamalloc_oom, num_oom_rejections.
#define WEIR_TORCH_2_12 WEIR_TORCH_AT_LEAST(12)
// markCaptureBegin/End, allocateWithAddress, reserved_bytes_by_private_pools, thresholds of pinned memory in snapshots.
#define WEIR_TORCH_2_13 WEIR_TORCH_AT_LEAST(13)
// supportsUserMetadata, annotateMemory and its action in the history.
#define WEIR_TORCH_2_14 WEIR_TORCH_AT_LEAST(14)
