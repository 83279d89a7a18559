// Whether a profiler wants to know of memory: every allocation and every free asks.
#pragma once

#include <c10/macros/Macros.h>

namespace weir_torch {

// Where PyTorch keeps, for the calling thread, what profilers and others have pushed; NULL until it was looked for. The word there
// is null where nobody has pushed anything, as a rule.
extern __thread const void *const *pushed_place __attribute__((tls_model("initial-exec"), visibility("hidden")));

// PyTorch's own question. It looks for its thread's memory twice, and takes about as long as an allocation of ours.
bool ask_for_profiler();

inline bool is_profiled() {
  const void *const *place = pushed_place;
  return C10_UNLIKELY(!place || *place) && ask_for_profiler();
}

// Whether is_profiled() knows the place, and need not ask each time.
bool knows_pushed_place();

} // namespace weir_torch
