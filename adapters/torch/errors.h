// Converts Weir's statuses to PyTorch's exceptions.
#pragma once

#include <string>

#include "weir/status.h"

namespace weir_torch {

// The text of the calling thread's last failure, without the leading name of the C function: PyTorch's callers know
// which method they called.
std::string last_error();

[[noreturn]] void throw_status(weir_status status);

} // namespace weir_torch
