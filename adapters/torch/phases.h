// Phases of Weir's history from the ranges that PyTorch marks: Optimizer.step#SGD.step, next of a data loader,
// record_function.
#pragma once

namespace weir_torch {

// Makes each range the phase of its thread while it lasts (weir_history_enter_phase), and shares it with threads
// without Python frames, such as autograd's. Takes effect once for the process. Only ranges of the program have a cost.
void follow_ranges();

} // namespace weir_torch
