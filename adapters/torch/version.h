// Names for the differences between the supported PyTorch versions, 2.10 to 2.14. All other files in this folder test
// these names only.
#pragma once

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>
#endif

#define WEIR_TORCH_AT_LEAST(minor)                                                                                     \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

#if !WEIR_TORCH_AT_LEAST(10)
#error "PyTorch 2.10 or later is required"
#endif

// snapshot() can omit the traces, recordHistory() can skip actions, a pool owns its allocator, large_segment_size_mb.
#define WEIR_TORCH_2_11 WEIR_TORCH_AT_LEAST(11)
// setNoSplit and the last parameter of setUseOnOOM were added around the release of 2.10, which may or may not have
// them.
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
