#include "phases.h"

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "weir/history.h"

namespace weir_torch {

namespace {

thread_local const char this_thread = 0; // its address identifies the thread

struct Range final : at::ObserverContext {
  uint32_t before = 0; // the enclosing phase
  const char *thread = &this_thread;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction &range) {
  auto context = std::make_unique<Range>();
  context->before = weir_history_enter_phase(range.name());
  weir_history_share_phase(weir_history_text(range.name()));
  return context;
}

// A range may end on another thread than it began on, with a future. The first thread then keeps the phase until the
// enclosing range ends.
void end(const at::RecordFunction &, at::ObserverContext *context) {
  const auto *range = static_cast<const Range *>(context);
  if (!range || range->thread != &this_thread)
    return;
  weir_history_leave_phase(range->before);
  weir_history_share_phase(range->before);
}

} // namespace

void follow_ranges() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::addGlobalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::USER_SCOPE}));
  });
}

} // namespace weir_torch
