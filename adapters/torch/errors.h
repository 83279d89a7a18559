// Weir's statuses as PyTorch's exceptions.
#pragma once

#include <string>

#include "weir/status.h"

namespace weir_torch {

// The text of the calling thread's last failure, without the name of the C function in front: PyTorch's callers know which of
// PyTorch's methods they called.
std::string last_error();

[[noreturn]] void throw_status(weir_status status);

} // namespace weir_torch
