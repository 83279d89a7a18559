// Phases of Weir's history from the ranges that PyTorch marks: Optimizer.step#SGD.step, a data loader's next, record_function.
#pragma once

namespace weir_torch {

// From now on each range is the phase of its thread while it lasts (weir_history_enter_phase), and is shared with threads that have no
// Python frames, such as autograd's. Once, for the process; other ranges than a program's own cost nothing.
void follow_ranges();

} // namespace weir_torch
