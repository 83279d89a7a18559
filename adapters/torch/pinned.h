// Weir as PyTorch's allocator of pinned host memory: implements HostAllocator with Weir's C functions.
#pragma once

#include "version.h"

#if WEIR_TORCH_2_11
#include <ATen/core/CachingHostAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pinned_history.h"
#include "weir/host.h"

namespace weir_torch {

class PinnedAllocator final : public at::HostAllocator {
public:
  at::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void *to, const void *from, std::size_t bytes) const override;

  // Memory of the allocator from before is passed on to it.
  bool record_event(void *pointer, void *context, c10::Stream stream) override;
  void empty_cache() override;

  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  void begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override;
  void end_allocate_to_pool(c10::MempoolId_t pool) override;
  void release_pool(c10::MempoolId_t pool) override;
#if WEIR_TORCH_2_14
  void record_history(bool enabled, PinnedHistory::CreateContextFn recorder, size_t most,
                      PinnedHistory::RecordContext when, bool clear) override;
  bool is_history_enabled() const override;
  std::vector<PinnedHistory::Segment> get_segments() override;
  std::vector<PinnedHistory::TraceEntry> get_traces() override;
  void record_external_register(void *pointer, size_t bytes) override;
  void record_external_unregister(void *pointer) override;
#endif

  // Makes PyTorch use it. Further calls do nothing.
  void install();
  bool is_installed() const;

private:
  // Memory of a graph, which may use it at every replay, so it serves only captures into the same pool.
  struct Pool {
    int uses = 0;                               // captures that began, and were not released
    std::map<size_t, std::vector<void *>> free; // by rounded size
  };
  struct Pooled {
    std::shared_ptr<Pool> pool;
    size_t size;
    bool is_used; // by a stream: Weir knows when it can be reused
  };
  struct Capture {
    c10::MempoolId_t pool;
    std::function<bool(c10::Stream)> filter;
  };

  weir_host_allocator *start(); // the host allocator, created on first use
  weir_host_allocator *create();
  void choose_path();
  void follow_settings();
  void *alloc(size_t bytes);
  void *alloc_generic(size_t bytes);
  void *alloc_pooled(size_t bytes, bool &is_pooled);
  bool free_pooled(void *pointer);
  // Constant before 2.14, which has no history of pinned memory.
  static bool is_recorded() { return WEIR_TORCH_2_14 && records_history_.load(std::memory_order_relaxed); }
  void free_recorded(void *pointer);
  static void delete_pointer(void *pointer);

  // Static, because a deleter gets nothing but the pointer. Never destroyed: tensors may be freed until the process
  // exits.
  static inline std::atomic<weir_host_allocator *> host_{nullptr};
  // NULL also while a capture is underway, and while history is recorded.
  static inline std::atomic<weir_host_allocator *> fast_host_{nullptr};
  at::HostAllocator *before_ = nullptr;
  std::mutex start_mutex_;
  std::string settings_; // of PyTorch, as Weir has them; guarded by start_mutex_

#if WEIR_TORCH_2_14
  PinnedHistory history_;
#endif
  static inline std::atomic<bool> records_history_{false};
  static inline std::atomic<bool> is_forked_{false}; // this is the child of a fork
  static inline std::atomic<bool> has_pools_{false}; // whether `pooled_` is not empty; written under the mutex
  std::mutex pools_mutex_;                           // guards the following
  std::vector<Capture> underway_;
  std::map<void *, Pooled> pooled_; // by address
  std::map<c10::MempoolId_t, std::shared_ptr<Pool>> pools_;
};

// The allocator of the process. It is created at the first call, and never destroyed.
PinnedAllocator &the_pinned_allocator();

} // namespace weir_torch
#endif
