// PyTorch's settings, as Weir reads them.
#pragma once

#include <functional>
#include <string>

namespace weir_torch {

// All settings of PyTorch's that concern device memory, as they are now, in Weir's syntax.
std::string settings_of_torch();

// Calls `changed` whenever PyTorch has been given new settings, also when it refused some of them.
void follow_settings_of_torch(std::function<void()> changed);

} // namespace weir_torch
