#!/bin/sh
# settings.sh ADAPTERS LIBRARY INCLUDE: what the adapter tells Weir when PyTorch's settings change. A stand-in for
# PyTorch has the settings.
set -eu
adapters=$1 library=$2 include=$3
if ! command -v g++ >/dev/null; then
  echo "waived: there is no g++"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/c10/core" "$work/c10/cuda" "$work/torch/headeronly"

cat >"$work/torch/headeronly/version.h" <<'END'
#define TORCH_VERSION_MAJOR 2
#define TORCH_VERSION_MINOR 11
END
cat >"$work/c10/core/AllocatorConfig.h" <<'END'
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>
struct Given {
  size_t max_split = static_cast<size_t>(-1);
  double threshold = 0, fraction = 1;
  bool expandable = false;
};
inline Given given;
namespace c10::CachingAllocator {
struct AcceleratorAllocatorConfig {
  static size_t large_segment_size() { return 20 << 20; }
  static size_t max_split_size() { return given.max_split; }
  static size_t max_non_split_rounding_size() { return 20 << 20; }
  static double garbage_collection_threshold() { return given.threshold; }
  static std::vector<size_t> roundup_power2_divisions() { return std::vector<size_t>(16, 0); }
  static bool use_expandable_segments() { return given.expandable; }
  static std::function<void(const std::string &)> &getConfigParserHook() {
    static std::function<void(const std::string &)> hook;
    return hook;
  }
};
}
END
cat >"$work/c10/cuda/CUDAAllocatorConfig.h" <<'END'
#pragma once
#include <c10/core/AllocatorConfig.h>
namespace c10::cuda::CUDACachingAllocator {
struct CUDAAllocatorConfig {
  static bool release_lock_on_cudamalloc() { return false; }
  static bool graph_capture_record_stream_reuse() { return false; }
  static double per_process_memory_fraction() { return given.fraction; }
};
}
END
cat >"$work/main.cpp" <<'END'
#include "settings.h"
#include <c10/core/AllocatorConfig.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "weir/weir.h"
using namespace weir_torch;
static weir_allocator *allocator;
static int failed;
static void equal(const std::string &got, const std::string &wanted, int line) {
  if (got != wanted) {
    std::printf("line %d: expected \"%s\", got \"%s\"\n", line, wanted.c_str(), got.c_str());
    failed = 1;
  }
}
#define EQUAL(got, wanted) equal(got, wanted, __LINE__)
static std::string now() {
  char text[4096];
  size_t length;
  if (weir_allocator_settings(allocator, text, sizeof text, &length))
    std::printf("%s\n", weir_last_error());
  return text;
}
static void configure(const std::string &text) {
  if (weir_allocator_configure(allocator, text.c_str())) {
    std::printf("%s\n", weir_last_error());
    std::exit(1);
  }
}
int main() {
  EQUAL(changed_settings("a:1,b:[1:2,4:8],c:x", "a:1,b:[1:2,4:8],c:x"), "");
  EQUAL(changed_settings("a:1,b:[1:2,4:8],c:x", "a:2,b:[1:2,4:8],c:y"), "a:2,c:y");
  EQUAL(changed_settings("a:1,b:[1:2,4:8],c:x", "a:1,b:[1:2,4:4],c:x"), "b:[1:2,4:4]");
  EQUAL(has_setting("aa:1,b:[1:2,aa:2]", "a:1") || has_setting("b:[1:2,aa:2]", "aa:2") ? "yes" : "no", "no");
  EQUAL(has_setting("b:[1:2,3:4],c:5", "c:5") ? "yes" : "no", "yes");

  // As the adapter starts: PyTorch's settings, and then WEIR_ALLOC_CONF.
  weir_driver *driver;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  std::string before = settings_of_torch();
  options.conf = before.c_str();
  if (weir_device_set_current(0) || weir_get_driver(&driver) || weir_allocator_create(driver, &options, &allocator))
    return 1;
  EQUAL(now(), "max_non_split_rounding_mb:20");
  configure("moving_pages:True");
  EQUAL(now(), "max_non_split_rounding_mb:20,expandable_segments:True,moving_pages:True");

  // Another key: moving pages stay on, although expandable_segments is False in PyTorch.
  given.threshold = 0.5;
  std::string changed = changed_settings(before, settings_of_torch());
  EQUAL(changed, "garbage_collection_threshold:0.5");
  configure(changed);
  EQUAL(now(), "max_non_split_rounding_mb:20,garbage_collection_threshold:0.5,expandable_segments:True,moving_pages:True");

  // On and off in PyTorch.
  before = settings_of_torch();
  given.expandable = true;
  EQUAL(changed_settings(before, settings_of_torch()), "expandable_segments:True");
  before = settings_of_torch();
  given.expandable = false;
  changed = changed_settings(before, settings_of_torch());
  EQUAL(changed, "expandable_segments:False");
  configure(changed);
  EQUAL(now(), "max_non_split_rounding_mb:20,garbage_collection_threshold:0.5");
  configure("expandable_segments:True,moving_pages:True");
  EQUAL(now(), "max_non_split_rounding_mb:20,garbage_collection_threshold:0.5,expandable_segments:True,moving_pages:True");
  weir_allocator_destroy(allocator);
  return failed;
}
END
g++ -std=c++17 -Wall -Wextra "-I$work" "-I$adapters/torch" "-I$include" "$work/main.cpp" "$adapters/torch/settings.cpp" \
  "$library" "-Wl,-rpath,$(dirname "$library")" -o "$work/main"
WEIR_DRIVER=soft WEIR_LOG=error "$work/main"
