#include "settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include <algorithm>
#include <locale>
#include <sstream>
#include <vector>

#include "version.h"

namespace weir_torch {

using Generic = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

namespace {

constexpr size_t mib = size_t{1} << 20;
constexpr size_t most_mib = (size_t{1} << 43) - 1; // Weir's maximum; PyTorch's "unlimited" is more

const char *flag(bool on) { return on ? "True" : "False"; }

void add_size(std::ostream &out, const char *key, size_t bytes) {
  out << key << ':';
  if (bytes / mib > most_mib)
    out << "default";
  else
    out << bytes / mib;
}

// Splits a text at its commas, except those within brackets.
std::vector<std::string> split(const std::string &text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (char c : text) {
    depth += (c == '[') - (c == ']');
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

bool contains(const std::vector<std::string> &parts, const std::string &part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

} // namespace

std::string changed_settings(const std::string &before, const std::string &now) {
  std::vector<std::string> known = split(before);
  std::string changed;
  for (const std::string &part : split(now))
    if (!contains(known, part))
      changed += (changed.empty() ? "" : ",") + part;
  return changed;
}

bool has_setting(const std::string &text, const std::string &setting) { return contains(split(text), setting); }

std::string settings_of_torch() {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(17);
#if WEIR_TORCH_2_11
  add_size(out, "large_segment_size_mb", Generic::large_segment_size());
  out << ',';
#endif
  add_size(out, "max_split_size_mb", Generic::max_split_size());
  add_size(out, ",max_non_split_rounding_mb", Generic::max_non_split_rounding_size());
  double threshold = Generic::garbage_collection_threshold();
  out << ",garbage_collection_threshold:";
  if (threshold > 0)
    out << threshold;
  else
    out << "default";
  out << ",roundup_power2_divisions:[";
  size_t boundary = 1;
  for (size_t divisions : Generic::roundup_power2_divisions()) {
    out << (boundary > 1 ? "," : "") << boundary << ':' << divisions;
    boundary *= 2;
  }
  out << "],expandable_segments:" << flag(Generic::use_expandable_segments());
  out << ",release_lock_on_cudamalloc:" << flag(Cuda::release_lock_on_cudamalloc());
  out << ",graph_capture_record_stream_reuse:" << flag(Cuda::graph_capture_record_stream_reuse());
  out << ",per_process_memory_fraction:" << Cuda::per_process_memory_fraction();
#if WEIR_TORCH_2_12
  out << ",throw_on_cudamalloc_oom:" << flag(Cuda::throw_on_cudamalloc_oom());
#endif
  return out.str();
}

// PyTorch has one hook for a parser of device settings, which its own CUDA code uses. It is called last for every
// change, so this wraps the existing hook. Allocations need not check for changes.
void follow_settings_of_torch(std::function<void()> changed) {
  auto &place = Generic::getConfigParserHook();
  place = [theirs = place, changed = std::move(changed)](const std::string &text) {
    struct Follow {
      const std::function<void()> &changed;
      ~Follow() { changed(); }
    } follow{changed};
    if (theirs)
      theirs(text);
  };
}

} // namespace weir_torch
