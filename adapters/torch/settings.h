// Converts PyTorch's settings to Weir's.
#pragma once

#include <functional>
#include <string>

namespace weir_torch {

// Returns all current settings of PyTorch about device memory, in Weir's syntax.
std::string settings_of_torch();

// Returns the settings of `now` that differ from those of `before`, in the same syntax; empty if none do. Both are
// texts of settings_of_torch. Weir gets only what PyTorch has changed, so that WEIR_ALLOC_CONF remains in effect: with
// moving_pages:True, which implies expandable segments, PyTorch's own expandable_segments is still False.
std::string changed_settings(const std::string &before, const std::string &now);

// Whether such a text contains this setting.
bool has_setting(const std::string &text, const std::string &setting);

// Calls `changed` whenever PyTorch has received new settings, even if it rejected some of them.
void follow_settings_of_torch(std::function<void()> changed);

} // namespace weir_torch
