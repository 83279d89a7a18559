#!/bin/sh
# pinned.sh ADAPTERS LIBRARY INCLUDE: the adapter for pinned memory, with a stand-in for PyTorch's interface (2.11, and
# 2.14 for the history) on the software device.
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
#ifndef TORCH_VERSION_MINOR
#define TORCH_VERSION_MINOR 11
#endif
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
cat >"$work/c10/util/ApproximateClock.h" <<'END'
#pragma once
#include <cstdint>
#include <ctime>
#include <functional>
namespace c10 {
using approx_time_t = int64_t;
inline approx_time_t getApproximateTime() {
  static approx_time_t now = 0;
  return ++now;
}
struct ApproximateClockToUnixTimeConverter {
  std::function<time_t(approx_time_t)> makeConverter() {
    return [](approx_time_t time) { return time * 1000000; };
  }
};
}
END
cat >"$work/c10/core/CachingDeviceAllocator.h" <<'END'
#pragma once
#include <ATen/core/CachingHostAllocator.h>
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
  static size_t pinned_max_round_threshold() { return static_cast<size_t>(-1); }
  static size_t pinned_max_cached_size() { return static_cast<size_t>(-1); }
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
  static bool throw_on_cudamalloc_oom() { return false; }
  static bool pinned_free_catch_all() { return false; }
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
#include <c10/util/ApproximateClock.h>
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
namespace c10 {
struct GatheredContext {
  virtual ~GatheredContext() = default;
};
namespace CachingDeviceAllocator {
using CreateContextFn = std::shared_ptr<GatheredContext> (*)();
enum struct RecordContext { NEVER, STATE, ALLOC, ALL };
struct HostSegmentInfo {
  size_t address = 0, size = 0;
  bool allocated = false, active = false;
  MempoolId_t owner_private_pool_id = {0, 0};
  std::shared_ptr<GatheredContext> context_when_allocated;
};
struct TraceEntry {
  enum Action { ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE };
  TraceEntry(Action action, int device, size_t address, size_t size, void *stream, MempoolId_t pool, approx_time_t time,
             std::shared_ptr<GatheredContext> context = nullptr)
      : action_(action), device_(device), addr_(address), context_(std::move(context)), stream_(stream), size_(size),
        mempool_(pool) {
    time_.approx_t_ = time;
  }
  Action action_;
  int device_;
  size_t addr_;
  std::shared_ptr<GatheredContext> context_;
  void *stream_;
  size_t size_;
  MempoolId_t mempool_;
  union {
    time_t t_;
    approx_time_t approx_t_;
  } time_;
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
#if TORCH_VERSION_MINOR >= 14
  virtual void record_history(bool, c10::CachingDeviceAllocator::CreateContextFn, size_t,
                              c10::CachingDeviceAllocator::RecordContext, bool) {}
  virtual bool is_history_enabled() const { return false; }
  virtual std::vector<c10::CachingDeviceAllocator::HostSegmentInfo> get_segments() { return {}; }
  virtual std::vector<c10::CachingDeviceAllocator::TraceEntry> get_traces() { return {}; }
  virtual void record_external_register(void *, size_t) {}
  virtual void record_external_unregister(void *) {}
#endif
};
inline HostAllocator *registered = nullptr;
inline HostAllocator *getHostAllocator(DeviceType) { return registered; }
inline void setHostAllocator(DeviceType, HostAllocator *allocator, uint8_t) { registered = allocator; }
}
END
cat >"$work/common.h" <<'END'
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
END
cat >"$work/main.cpp" <<'END'
#include "common.h"

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
cat >"$work/history.cpp" <<'END'
#include "common.h"
#include <thread>

using weir_torch::PinnedHistory;
using Action = PinnedHistory::TraceEntry;

struct Here : c10::GatheredContext {
  explicit Here(int number) : number(number) {}
  int number;
};
static int contexts;
static std::shared_ptr<c10::GatheredContext> here() { return std::make_shared<Here>(++contexts); }
static int number_of(const std::shared_ptr<c10::GatheredContext> &context) {
  return context ? static_cast<Here *>(context.get())->number : 0;
}

struct Native final : at::HostAllocator {
  at::DataPtr allocate(size_t) override { std::abort(); }
  void copy_data(void *, const void *, std::size_t) const override { std::abort(); }
  bool record_event(void *, void *, c10::Stream) override { std::abort(); }
  void empty_cache() override {}
  at::HostStats get_stats() override { std::abort(); }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  bool is_on = false;
  void record_history(bool enabled, PinnedHistory::CreateContextFn, size_t, PinnedHistory::RecordContext, bool) override {
    is_on = enabled;
  }
  std::vector<PinnedHistory::Segment> get_segments() override { return std::vector<PinnedHistory::Segment>(1); }
};

// "alloc 4096 c1 p0; ": the action, the bytes, the context and the pool of each entry.
static std::string traces(weir_torch::PinnedAllocator &pinned) {
  static const char *const names[] = {"alloc", "requested", "completed", "segment", "gone"};
  std::ostringstream out;
  long long before = 0;
  for (const auto &entry : pinned.get_traces()) {
    EXPECT(entry.device_ == -1 && !entry.stream_ && entry.time_.t_ > before);
    before = entry.time_.t_;
    out << names[entry.action_] << ' ' << entry.size_ << " c" << number_of(entry.context_) << " p"
        << entry.mempool_.second << "; ";
  }
  return out.str();
}

// The same of the segments: whether they are allocated (a), active (+) or neither (-).
static std::string segments(weir_torch::PinnedAllocator &pinned) {
  std::ostringstream out;
  auto all = pinned.get_segments();
  EXPECT(all.size() >= 1 && !all[0].address); // that of the allocator from before
  for (size_t i = 1; i < all.size(); i++)
    out << all[i].size << (all[i].allocated ? 'a' : all[i].active ? '+' : '-') << " c"
        << number_of(all[i].context_when_allocated) << "; ";
  return out.str();
}

static void expect_text(int line, const std::string &got, const char *expected) {
  if (got != expected) {
    std::printf("line %d: %s\n    expected: %s\n", line, got.c_str(), expected);
    failed = 1;
  }
}
#define EXPECT_TEXT(got, expected) expect_text(__LINE__, got, expected)

int main() {
  using Level = PinnedHistory::RecordContext;
  Native native;
  at::registered = &native;
  weir_torch::PinnedAllocator &pinned = weir_torch::the_pinned_allocator();
  pinned.install();
  EXPECT(!pinned.is_history_enabled());

  // Turned on before there is any memory; each level has the stacks of those before it.
  pinned.record_history(true, here, 100, Level::ALL, true);
  EXPECT(pinned.is_history_enabled() && native.is_on && !driver);
  { at::DataPtr a = pinned.allocate(4000); }
  EXPECT_TEXT(traces(pinned), "segment 4096 c1 p0; alloc 4096 c1 p0; requested 4096 c2 p0; completed 4096 c2 p0; ");
  EXPECT_TEXT(segments(pinned), "4096- c0; ");
  pinned.record_history(true, here, 100, Level::ALLOC, true);
  {
    at::DataPtr a = pinned.allocate(4000);
    EXPECT_TEXT(segments(pinned), "4096a c3; ");
  }
  EXPECT_TEXT(traces(pinned), "alloc 4096 c3 p0; requested 4096 c3 p0; completed 4096 c3 p0; ");
  pinned.record_history(true, here, 2, Level::STATE, true);
  {
    at::DataPtr a = pinned.allocate(4000);
    EXPECT_TEXT(segments(pinned), "4096a c4; ");
  }
  pinned.empty_cache();
  EXPECT_TEXT(traces(pinned), "completed 4096 c0 p0; gone 4096 c0 p0; "); // the last two
  EXPECT_TEXT(segments(pinned), "");

  // While it is off, nothing is seen. When it is turned on, what there is has no stack.
  pinned.record_history(false, nullptr, 0, Level::NEVER, true);
  EXPECT(!pinned.is_history_enabled() && !native.is_on);
  at::DataPtr kept = pinned.allocate(1000);
  void *reused = pinned.allocate(2000).get();
  EXPECT(pinned.allocate(2000).get() == reused);
  EXPECT_TEXT(traces(pinned), "");
  pinned.record_history(true, here, 100, Level::ALL, false);
  EXPECT_TEXT(traces(pinned), "");
  std::string now = segments(pinned);
  EXPECT(now == "1024a c0; 2048- c0; " || now == "2048- c0; 1024a c0; ");
  contexts = 0;
  kept.context.reset();
  EXPECT_TEXT(traces(pinned), "requested 1024 c1 p0; completed 1024 c1 p0; ");
  pinned.empty_cache();

  // Memory of a capture: the adapter keeps it for the pool, so that Weir does not see these frees.
  pinned.record_history(true, here, 100, Level::ALL, true);
  contexts = 0;
  pinned.begin_allocate_to_pool({0, 7}, [](c10::Stream) { return true; });
  { at::DataPtr a = pinned.allocate(4096); }
  { at::DataPtr a = pinned.allocate(4096); }
  pinned.end_allocate_to_pool({0, 7});
  EXPECT_TEXT(traces(pinned), "segment 4096 c1 p7; alloc 4096 c1 p7; requested 4096 c2 p7; completed 4096 c2 p7; "
                              "alloc 4096 c3 p7; requested 4096 c4 p7; completed 4096 c4 p7; ");
  pinned.record_history(false, nullptr, 0, Level::NEVER, true);
  pinned.record_history(true, here, 100, Level::ALL, true);
  EXPECT_TEXT(segments(pinned), "4096- c0; "); // kept, although it is allocated from Weir
  pinned.release_pool({0, 7});
  EXPECT_TEXT(traces(pinned), "");
  pinned.empty_cache();
  EXPECT_TEXT(traces(pinned), "gone 4096 c0 p0; ");

  // Memory that a stream uses is completed later, by the thread that finds it free.
  pinned.record_history(true, here, 100, Level::ALL, true);
  contexts = 0;
  c10::Stream stream;
  weir_cu_context context;
  EXPECT(!driver->DevicePrimaryCtxRetain(driver, &context, 0) && !driver->CtxSetCurrent(driver, context));
  EXPECT(!driver->StreamCreateWithPriority(driver, reinterpret_cast<weir_cu_stream *>(&stream.raw), 1, 0));
  weir_cu_deviceptr there;
  EXPECT(!driver->MemAlloc(driver, &there, 4096));
  {
    at::DataPtr a = pinned.allocate(4096);
    EXPECT(!driver->MemcpyAsync(driver, there, reinterpret_cast<uintptr_t>(a.get()), 4096,
                                static_cast<weir_cu_stream>(stream.raw)));
    EXPECT(pinned.record_event(a.get(), a.context.get(), stream));
  }
  EXPECT_TEXT(traces(pinned), "segment 4096 c1 p0; alloc 4096 c1 p0; requested 4096 c2 p0; ");
  EXPECT_TEXT(segments(pinned), "4096+ c1; ");
  EXPECT(!weir_soft_step_all(driver, nullptr));
  pinned.empty_cache();
  EXPECT_TEXT(traces(pinned), "segment 4096 c1 p0; alloc 4096 c1 p0; requested 4096 c2 p0; completed 4096 c1 p0; "
                              "gone 4096 c0 p0; ");

  // Memory that the program has registered.
  pinned.record_history(true, here, 100, Level::ALL, true);
  contexts = 0;
  int mine;
  pinned.record_external_register(&mine, 4);
  EXPECT_TEXT(segments(pinned), "4a c1; ");
  pinned.record_external_unregister(&mine);
  pinned.record_external_unregister(&mine);
  EXPECT_TEXT(segments(pinned), "");
  EXPECT_TEXT(traces(pinned), "segment 4 c0 p0; alloc 4 c1 p0; requested 4 c2 p0; completed 4 c1 p0; gone 4 c0 p0; ");

  // Threads, while it is turned on and off.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&] {
      for (int round = 0; round < 500; round++)
        at::DataPtr a = pinned.allocate(1000);
    });
  for (int round = 0; round < 50; round++)
    pinned.record_history(round % 2, here, 1000, Level::ALL, false);
  for (std::thread &thread : threads)
    thread.join();
  EXPECT(pinned.is_history_enabled());
  for (const auto &segment : pinned.get_segments())
    EXPECT(!segment.allocated && !segment.active);
  return failed;
}
END
build() {
  program=$1
  shift
  g++ -std=c++17 -Wall -Wextra -rdynamic "-I$work" "-I$adapters/torch" "-I$include" "$@" "$work/$program.cpp" \
    "$adapters/torch/pinned.cpp" "$adapters/torch/pinned_history.cpp" "$adapters/torch/settings.cpp" "$library" \
    "-Wl,-rpath,$(dirname "$library")" -lpthread -o "$work/$program"
}
build main
WEIR_LOG=error "$work/main"
build history -DTORCH_VERSION_MINOR=14
WEIR_LOG=error "$work/history"
