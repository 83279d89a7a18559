// Converts PyTorch's settings to Weir's.
#pragma once

#include <functional>
#include <string>

namespace weir_torch {

// Returns all current settings of PyTorch about device memory, in Weir's syntax.
std::string settings_of_torch();

// Calls `changed` whenever PyTorch has received new settings, even if it rejected some of them.
void follow_settings_of_torch(std::function<void()> changed);

} // namespace weir_torch
