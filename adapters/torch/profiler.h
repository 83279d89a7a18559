// Whether a profiler tracks memory: every allocation and every free checks this.
#pragma once

#include <c10/macros/Macros.h>

namespace weir_torch {

// The address of the word in which PyTorch keeps the calling thread's debug info; NULL until it was looked up. The word
// is usually null, since nothing has been pushed.
extern __thread const void *const *pushed_place __attribute__((tls_model("initial-exec"), visibility("hidden")));

// Calls PyTorch's check. It resolves thread-local storage twice, and takes about as long as an allocation by Weir.
bool ask_for_profiler();

inline bool is_profiled() {
  const void *const *place = pushed_place;
  return C10_UNLIKELY(!place || *place) && ask_for_profiler();
}

// Whether is_profiled() knows the address, and can avoid the call.
bool knows_pushed_place();

} // namespace weir_torch
