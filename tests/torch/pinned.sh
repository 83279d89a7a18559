#!/bin/sh
# pinned.sh ADAPTERS LIBRARY INCLUDE: the adapter for pinned memory, with a stand-in for PyTorch's interface (2.11) on
# the software device.
set -eu
adapters=$1 library=$2 include=$3
if ! command -v g++ >/dev/null; then
  echo "waived: there is no g++"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/ATen/core" "$work/c10/core" "$work/c10/cuda" "$work/c10/util" "$work/torch/headeronly"

cat >"$work/torch/headeronly/version.h" <<'END'
#define TORCH_VERSION_MAJOR 2
#define TORCH_VERSION_MINOR 11
END
cat >"$work/c10/util/Exception.h" <<'END'
#pragma once
#include <cstdio>
#include <sstream>
#include <stdexcept>
#define C10_LIKELY(x) __builtin_expect(static_cast<bool>(x), 1)
#define C10_UNLIKELY(x) __builtin_expect(static_cast<bool>(x), 0)
#define C10_NOINLINE __attribute__((noinline))
template <class... Parts> std::string joined(const Parts &...parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
#define TORCH_CHECK(condition, ...)                                                                                    \
  do                                                                                                                   \
    if (!(condition))                                                                                                  \
      throw std::runtime_error(joined(__VA_ARGS__));                                                                   \
  while (0)
#define TORCH_WARN(...) std::printf("warning: %s\n", joined(__VA_ARGS__).c_str())
END
cat >"$work/c10/core/AllocatorConfig.h" <<'END'
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>
struct Given {
  bool registers = false;
};
inline Given given;
namespace c10::CachingAllocator {
struct AcceleratorAllocatorConfig {
  static size_t large_segment_size() { return 20 << 20; }
  static size_t max_split_size() { return static_cast<size_t>(-1); }
  static size_t max_non_split_rounding_size() { return 20 << 20; }
  static double garbage_collection_threshold() { return 0; }
  static std::vector<size_t> roundup_power2_divisions() { return std::vector<size_t>(16, 0); }
  static bool use_expandable_segments() { return false; }
  static bool pinned_use_background_threads() { return false; }
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
  static double per_process_memory_fraction() { return 1; }
  static bool pinned_use_cuda_host_register() { return given.registers; }
  static size_t pinned_num_register_threads() { return 1; }
  static size_t pinned_reserve_segment_size_mb() { return 0; }
};
}
END
cat >"$work/c10/cuda/CUDAStream.h" <<'END'
#pragma once
#include <ATen/core/CachingHostAllocator.h>
typedef struct CUstream_st *cudaStream_t;
namespace c10::cuda {
struct CUDAStream {
  explicit CUDAStream(c10::Stream stream) : stream_(stream) {}
  int device_index() const { return 0; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.raw); }
  c10::Stream unwrap() const { return stream_; }
  c10::Stream stream_;
};
inline c10::Stream current_stream;
inline CUDAStream getCurrentCUDAStream() { return CUDAStream(current_stream); }
}
END
cat >"$work/ATen/core/CachingHostAllocator.h" <<'END'
#pragma once
#include <c10/util/Exception.h>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>
namespace c10 {
enum class DeviceType { CPU, CUDA };
constexpr DeviceType kCUDA = DeviceType::CUDA;
struct Device {
  Device(DeviceType type) : type(type) {}
  DeviceType type;
};
struct Stream {
  void *raw = nullptr;
};
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;
using DeleterFnPtr = void (*)(void *);
namespace CachingAllocator {
struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};
struct DurationStat {
  int64_t total = 0, max = 0, min = 0, count = 0;
};
}
}
namespace at {
using c10::Device;
using c10::DeviceType;
struct DataPtr {
  DataPtr(void *data, void *context, c10::DeleterFnPtr deleter, Device) : data(data), context(context, deleter) {}
  void *get() const { return data; }
  void *data;
  std::unique_ptr<void, c10::DeleterFnPtr> context;
};
struct Allocator {
  virtual ~Allocator() = default;
  virtual DataPtr allocate(size_t) = 0;
  virtual c10::DeleterFnPtr raw_deleter() const { return nullptr; }
  virtual void copy_data(void *to, const void *from, std::size_t bytes) const = 0;
  void default_copy_data(void *to, const void *from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
};
struct HostStats {
  c10::CachingAllocator::Stat active_requests, active_bytes, allocations, allocated_bytes;
  c10::CachingAllocator::DurationStat host_alloc_time, host_free_time;
  int64_t num_host_alloc = 0, num_host_free = 0;
};
struct HostAllocator : Allocator {
  virtual bool record_event(void *, void *, c10::Stream) = 0;
  virtual void empty_cache() = 0;
  virtual HostStats get_stats() = 0;
  virtual void reset_accumulated_stats() = 0;
  virtual void reset_peak_stats() = 0;
  virtual void begin_allocate_to_pool(c10::MempoolId_t, std::function<bool(c10::Stream)>) {}
  virtual void end_allocate_to_pool(c10::MempoolId_t) {}
  virtual void release_pool(c10::MempoolId_t) {}
};
inline HostAllocator *registered = nullptr;
inline HostAllocator *getHostAllocator(DeviceType) { return registered; }
inline void setHostAllocator(DeviceType, HostAllocator *allocator, uint8_t) { registered = allocator; }
}
END
cat >"$work/main.cpp" <<'END'
#include "pinned.h"
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include "errors.h"
#include "weir/soft.h"
#include "weir/weir.h"

static int failed;
#define EXPECT(condition)                                                                                              \
  do                                                                                                                   \
    if (!(condition)) {                                                                                                \
      std::printf("line %d: %s\n", __LINE__, #condition);                                                              \
      failed = 1;                                                                                                      \
    }                                                                                                                  \
  while (0)

static weir_driver *driver;

// The adapter opens the driver by this name: the program's definition comes before the library's.
extern "C" weir_status weir_driver_open_cuda(weir_driver **made) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.clock = WEIR_SOFT_STEPPED;
  weir_status status = weir_driver_open_soft(&options, made);
  driver = *made;
  return status;
}

namespace weir_torch {
std::string last_error() { return weir_last_error(); }
void throw_status(weir_status) { throw std::runtime_error(weir_last_error()); }
}

struct Before final : at::HostAllocator {
  int records = 0, emptied = 0;
  at::DataPtr allocate(size_t) override { std::abort(); }
  void copy_data(void *, const void *, std::size_t) const override { std::abort(); }
  bool record_event(void *, void *, c10::Stream) override { return ++records; }
  void empty_cache() override { emptied++; }
  at::HostStats get_stats() override { std::abort(); }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  // It knows the pool 9.
  int ended = 0, released = 0;
  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    TORCH_CHECK(pool.second == 9, "endAllocatePool: not currently recording to mempool_id");
    ended++;
  }
  void release_pool(c10::MempoolId_t pool) override {
    TORCH_CHECK(pool.second == 9, "at");
    released++;
  }
};

static unsigned long registrations() {
  weir_soft_census census = {};
  census.size = sizeof census;
  weir_soft_get_census(driver, &census);
  return census.registrations;
}

int main() {
  Before before;
  at::registered = &before;
  setenv("WEIR_ALLOC_CONF", "pinned_register_min_mb:some", 1);
  weir_torch::PinnedAllocator &pinned = weir_torch::the_pinned_allocator();
  EXPECT(!pinned.is_installed());
  EXPECT(pinned.get_stats().num_host_alloc == 0);
  EXPECT(!driver);
  pinned.install();
  pinned.install();
  EXPECT(pinned.is_installed() && at::registered == &pinned);

  // Every allocation tries again with the settings of that moment.
  try {
    pinned.allocate(1000);
    EXPECT(!"expected an exception");
  } catch (const std::exception &error) {
    EXPECT(std::strstr(error.what(), "pinned_register_min_mb"));
  }
  setenv("WEIR_ALLOC_CONF", "pinned_register_min_mb:4,pinned_register_piece_mb:2", 1);

  void *first;
  {
    at::DataPtr a = pinned.allocate(1000), b = pinned.allocate(1000);
    first = a.get();
    EXPECT(a.get() != b.get() && a.get() == a.context.get());
    EXPECT(pinned.raw_deleter() == a.context.get_deleter());
    std::memset(a.get(), 7, 1000);
    pinned.copy_data(b.get(), a.get(), 1000);
    EXPECT(std::memcmp(a.get(), b.get(), 1000) == 0);
    EXPECT(pinned.get_stats().active_requests.current == 2 && pinned.get_stats().allocated_bytes.current == 2048);
    b.context.reset();
  }
  EXPECT(pinned.allocate(1024).get() == first);
  EXPECT(pinned.allocate(0).get() == nullptr);
  EXPECT(pinned.get_stats().num_host_alloc == 2 && pinned.get_stats().active_requests.peak == 2);
  pinned.reset_peak_stats();
  EXPECT(pinned.get_stats().active_requests.peak == 0);
  pinned.reset_accumulated_stats();
  EXPECT(pinned.get_stats().num_host_alloc == 0);

  // Large memory has one registration, although the environment asks for pieces.
  {
    at::DataPtr large = pinned.allocate(16 << 20);
    EXPECT(registrations() == 1);
  }
  pinned.empty_cache();
  EXPECT(registrations() == 0 && before.emptied == 1);
  EXPECT(pinned.get_stats().allocated_bytes.current == 0);

  // Memory that a stream uses is not reused before the stream is done, and that of others is passed on.
  c10::Stream stream;
  int elsewhere;
  EXPECT(pinned.record_event(&elsewhere, &elsewhere, stream) && before.records == 1);
  weir_cu_context context;
  weir_cu_deviceptr there;
  EXPECT(!driver->DevicePrimaryCtxRetain(driver, &context, 0) && !driver->CtxSetCurrent(driver, context));
  EXPECT(!driver->StreamCreateWithPriority(driver, reinterpret_cast<weir_cu_stream *>(&stream.raw), 1, 0));
  EXPECT(!driver->MemAlloc(driver, &there, 4096));
  {
    at::DataPtr a = pinned.allocate(4096);
    first = a.get();
    EXPECT(!driver->MemcpyAsync(driver, there, reinterpret_cast<uintptr_t>(first), 4096,
                                static_cast<weir_cu_stream>(stream.raw)));
    EXPECT(pinned.record_event(static_cast<char *>(first) + 100, a.context.get(), stream));
  }
  EXPECT(before.records == 1);
  EXPECT(pinned.allocate(4096).get() != first);
  EXPECT(!weir_soft_step_all(driver, nullptr));
  at::DataPtr again = pinned.allocate(4096), other = pinned.allocate(4096);
  EXPECT(again.get() == first || other.get() == first);
  again.context.reset();
  other.context.reset();

  // Memory of a capture serves that pool alone, until the pool is released.
  c10::cuda::current_stream = stream;
  void *in_pool;
  pinned.begin_allocate_to_pool({0, 1}, [&](c10::Stream s) { return s.raw == stream.raw; });
  try {
    pinned.begin_allocate_to_pool({0, 1}, [](c10::Stream) { return true; });
    EXPECT(!"expected an exception");
  } catch (const std::exception &error) {
    EXPECT(std::strstr(error.what(), "already recording"));
  }
  {
    at::DataPtr a = pinned.allocate(3000);
    in_pool = a.get();
  }
  EXPECT(pinned.allocate(4096).get() == in_pool); // by the same capture
  c10::cuda::current_stream.raw = nullptr;
  EXPECT(pinned.allocate(4096).get() != in_pool); // the filter does not match
  pinned.end_allocate_to_pool({0, 1});
  {
    at::DataPtr a = pinned.allocate(4096), b = pinned.allocate(4096), c = pinned.allocate(4096);
    EXPECT(a.get() != in_pool && b.get() != in_pool && c.get() != in_pool);
  }
  try {
    pinned.end_allocate_to_pool({0, 1});
    EXPECT(!"expected an exception");
  } catch (const std::exception &error) {
    EXPECT(std::strstr(error.what(), "not currently recording"));
  }
  pinned.release_pool({0, 1});
  EXPECT(pinned.allocate(4096).get() == in_pool); // freed last

  // Pools of the allocator from before.
  pinned.end_allocate_to_pool({0, 9});
  pinned.release_pool({0, 9});
  EXPECT(before.ended == 1 && before.released == 1);
  pinned.release_pool({0, 8});

  // Memory that outlives its pool.
  {
    c10::cuda::current_stream = stream;
    pinned.begin_allocate_to_pool({0, 2}, [](c10::Stream) { return true; });
    at::DataPtr a = pinned.allocate(50000);
    pinned.end_allocate_to_pool({0, 2});
    pinned.release_pool({0, 2});
  }
  EXPECT(pinned.get_stats().active_requests.current == 0);

  // Memory that a graph uses is reused when the graph is gone.
  {
    auto raw = static_cast<weir_cu_stream>(stream.raw);
    weir_cu_graph graph = nullptr;
    void *used;
    pinned.begin_allocate_to_pool({0, 3}, [](c10::Stream) { return true; });
    EXPECT(!driver->StreamBeginCapture(driver, raw, WEIR_CU_CAPTURE_RELAXED));
    {
      at::DataPtr a = pinned.allocate(100000);
      used = a.get();
      EXPECT(!driver->MemcpyAsync(driver, there, reinterpret_cast<uintptr_t>(used), 4096, raw));
      EXPECT(pinned.record_event(static_cast<char *>(used) + 8, &elsewhere, stream)); // through another owner
    }
    EXPECT(pinned.allocate(100000).get() != used); // by the same capture
    EXPECT(!driver->StreamEndCapture(driver, raw, &graph));
    pinned.end_allocate_to_pool({0, 3});
    EXPECT(pinned.allocate(100000).get() != used);
    pinned.release_pool({0, 3});
    EXPECT(pinned.allocate(100000).get() != used);
    EXPECT(!driver->GraphDestroy(driver, graph));
    at::DataPtr a = pinned.allocate(100000), b = pinned.allocate(100000), c = pinned.allocate(100000);
    EXPECT(a.get() == used || b.get() == used || c.get() == used);
  }
  EXPECT(pinned.get_stats().active_requests.current == 0);

  // A filter is called with the adapter's lock held. In the child of a fork then, memory and pools can still be dropped,
  // and an allocation fails.
  {
    at::DataPtr kept = pinned.allocate(0);
    pid_t child = -1;
    int outcome = 1;
    pinned.begin_allocate_to_pool({0, 4}, [&](c10::Stream) {
      if (kept.get() && child < 0 && (child = fork()) == 0) {
        alarm(5);
        kept.context.reset();
        pinned.release_pool({0, 4});
        try {
          pinned.allocate(4096);
        } catch (const std::exception &) {
          _exit(0);
        }
        _exit(1);
      }
      return true;
    });
    kept = pinned.allocate(4096);
    pinned.allocate(4096);
    EXPECT(waitpid(child, &outcome, 0) == child && outcome == 0);
    pinned.end_allocate_to_pool({0, 4});
    pinned.release_pool({0, 4});
  }

  // PyTorch's settings are followed.
  given.registers = true;
  auto &hook = c10::CachingAllocator::AcceleratorAllocatorConfig::getConfigParserHook();
  hook("pinned_use_cuda_host_register:True");
  pinned.empty_cache();
  at::DataPtr small = pinned.allocate(100);
  EXPECT(registrations() == 1);
  return failed;
}
END
g++ -std=c++17 -Wall -Wextra -rdynamic "-I$work" "-I$adapters/torch" "-I$include" "$work/main.cpp" \
  "$adapters/torch/pinned.cpp" "$adapters/torch/settings.cpp" "$library" "-Wl,-rpath,$(dirname "$library")" -lpthread \
  -o "$work/main"
WEIR_LOG=error "$work/main"
