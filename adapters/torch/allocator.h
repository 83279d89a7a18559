// Weir as PyTorch's allocator of device memory: implements CUDAAllocator with Weir's C functions.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "history.h"
#include "version.h"
#include "weir/weir.h"

namespace weir_torch {

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

#if WEIR_TORCH_2_11
using PoolAllocator = std::shared_ptr<cca::CUDAAllocator>;
#else
using PoolAllocator = cca::CUDAAllocator *;
#endif

// Whether the scope of a pool that this thread opens next selects the thread.
void next_scope_is_of_thread(bool is);

class Allocator final : public cca::CUDAAllocator {
public:
  Allocator();

  // ---- Memory ----
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void *to, const void *from, std::size_t bytes) const override;
  void *raw_alloc(size_t bytes) override;
  void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void *pointer) override;
  void recordStream(const c10::DataPtr &pointer, c10::cuda::CUDAStream stream) override;
  using cca::CUDAAllocator::recordStream;
  void emptyCache(MempoolId_t pool = {0, 0}) override;
  void *getBaseAllocation(void *pointer, size_t *bytes) override;
  void cacheInfo(DeviceIndex device, size_t *largest) override;

  // ---- Start, limits, switches ----
  void init(int device_count) override;
  bool initialized() override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override;
  std::string name() override;

  // ---- Statistics and snapshots ----
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
#if WEIR_TORCH_2_11
  SnapshotInfo snapshot(MempoolId_t pool = {0, 0}, bool include_traces = true) override;
#else
  SnapshotInfo snapshot(MempoolId_t pool = {0, 0}) override;
#endif

  // ---- Pools ----
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
#if WEIR_TORCH_2_13
  c10::DataPtr allocateWithAddress(size_t bytes, void *address) override;
  void markCaptureBegin(DeviceIndex device) override;
  void markCaptureEnd(DeviceIndex device) override;
#endif
  void releasePool(DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, PoolAllocator allocator = nullptr) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) WEIR_TORCH_2_11_OVERRIDE;
  void setNoSplit(DeviceIndex device, MempoolId_t pool) WEIR_TORCH_2_11_OVERRIDE;
#if !WEIR_TORCH_2_11
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) { setUseOnOOM(device, pool, true); }
#endif
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void *> &expected) override;
  std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override;
  cca::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) override;

  // ---- Other processes, other devices ----
  cca::ShareableHandle shareIpcHandle(void *pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex device_to_access) override;
  cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peer_access) override;

  // ---- History ----
  bool isHistoryEnabled() override;
#if WEIR_TORCH_2_11
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
                     const std::vector<std::string> &skip_actions) override;
#else
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) override;
#endif
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &pairs) override;
  void pushCompileContext(std::string &text) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string &text) override;
  std::string getUserMetadata() override;
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override;
#if WEIR_TORCH_2_12
  Context getContextForPointer(const void *pointer) override;
  void attachOomRejectionObserver(cca::OomRejectionObserver observer) override;
#endif
#if WEIR_TORCH_2_14
  bool supportsUserMetadata() override;
  void annotateMemory(const void *pointer, const std::string &text) override;
#endif

  weir_allocator *weir() const { return weir_; }
  weir_driver *timing() const { return timing_; } // the table of WEIR_DRIVER_TIMING, or nullptr

private:
  using PoolKey = std::pair<int, MempoolId_t>;

  // A scope that routes allocations to a pool. Its address must not change, since Weir calls its filter.
  struct Scope {
    PoolKey key;
    std::function<bool(cudaStream_t)> filter;
    std::thread::id thread; // that opened it
    bool is_of_thread;      // it selects that thread
    bool is_capture;
  };

  // The allocator that provides a pool's memory instead of the driver.
  struct Source {
    PoolAllocator allocator;
    std::unordered_map<uintptr_t, int32_t> order; // of creation of its segments; guarded by sources_mutex_
    int32_t next = 0;
    PoolKey key;
    Allocator *owner = nullptr;
  };

  DeviceIndex current_device() const;
  DeviceIndex device_to_use() const; // the current device, on which the thread allocates
  void *alloc(DeviceIndex device, size_t bytes, cudaStream_t stream);
  void *alloc_watched(DeviceIndex device, size_t bytes, cudaStream_t stream);
  void tell_profiler(void *pointer);
  void report_to_profiler(void *pointer, int device, int64_t bytes);
  void free(void *pointer);
  void free_watched(void *pointer);
  [[noreturn]] void fail_alloc(weir_status status, DeviceIndex device, size_t bytes);
  void notify_of_rejection(const weir_shortage &shortage);
  template <typename T> std::vector<T> copy_of(const std::vector<T> &observers) {
    std::lock_guard<std::mutex> lock(observers_mutex_);
    return observers;
  }
  void check(weir_status status) const;
  void fail_free(weir_status status) const;
  void check_device(DeviceIndex device) const;
  void apply_settings();
  bool uses_expandable_segments() const; // by PyTorch's settings or by WEIR_ALLOC_CONF
  int32_t order_of(int device, MempoolId_t pool, uintptr_t address);
  void fill_segments(SnapshotInfo &result, MempoolId_t pool, bool note);
  void fill_config(cca::AllocatorConfigInfo &config) const;
  static void delete_pointer(void *pointer);
  static void source_end(void *source);
  static void *source_alloc(void *source, size_t bytes, int device, weir_cu_stream stream);
  static void source_free(void *source, void *pointer, size_t bytes, int device, weir_cu_stream stream);

  weir_driver *driver_ = nullptr;
  weir_driver *timing_ = nullptr;
  weir_allocator *weir_ = nullptr; // never destroyed: tensors may be freed until the process exits
  int device_count_ = 0;
  bool wants_caching_ = true;   // the argument of an enable() before the start
  int64_t max_split_size_ = -1; // at the start; PyTorch's statistics do not reflect later changes of the setting
  History history_;
  c10::ApproximateClockToUnixTimeConverter clock_;
  std::mutex init_mutex_;
  std::mutex settings_mutex_;
  // Guarded by settings_mutex_: PyTorch's settings that Weir has, those seen last, and whether WEIR_ALLOC_CONF says
  // moving_pages:True.
  std::string settings_, seen_settings_;
  bool moves_pages_ = false;
  std::mutex scopes_mutex_;
  std::vector<std::unique_ptr<Scope>> scopes_; // the innermost is the last
  std::mutex sources_mutex_;
  std::map<PoolKey, Source *> sources_; // destroyed with their pools
  std::mutex observers_mutex_;
  std::vector<cca::OutOfMemoryObserver> observers_; // guarded by observers_mutex_, as the next
#if WEIR_TORCH_2_12
  std::vector<cca::OomRejectionObserver> rejection_observers_;
#endif
};

// The allocator of the process. It is created at the first call, and never destroyed.
Allocator &the_allocator();

} // namespace weir_torch
