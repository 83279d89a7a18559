// PyTorch's history of pinned memory (2.14 and later), filled from the entries of Weir's host allocator.
#pragma once

#include "version.h"

#if WEIR_TORCH_2_14
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ring.h"
#include "weir/adapter.h"

namespace weir_torch {

class PinnedHistory {
public:
  using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;
  using RecordContext = c10::CachingDeviceAllocator::RecordContext;
  using CreateContextFn = c10::CachingDeviceAllocator::CreateContextFn;
  using Segment = c10::CachingDeviceAllocator::HostSegmentInfo;

  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void record(bool on, CreateContextFn recorder, size_t most, RecordContext when, bool clear);
  // Called after each change, and when the host allocator is created; not by two threads at once. `kept` is memory that
  // is allocated from Weir, and free for PyTorch.
  weir_status follow(weir_host_allocator *host, const std::vector<void *> &kept);

  std::vector<Segment> segments();
  std::vector<TraceEntry> traces();

  // Memory that the adapter keeps for a pool, which Weir does not see: handed out again, or freed.
  void pooled_alloc(void *pointer, c10::MempoolId_t pool);
  void pooled_free(void *pointer);

  // Memory that the program has registered itself.
  void add_external(void *pointer, size_t bytes);
  void remove_external(void *pointer);

  // A call of the allocator. The entries that it causes have the caller's stack, if the level requires one. No lock may
  // be held when it begins, because the recorder may need the GIL.
  class Call {
  public:
    Call(const PinnedHistory &history, RecordContext level);
    ~Call();
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
    static void serve(c10::MempoolId_t pool); // the pool that the calling thread's allocation is for
  };

private:
  using Context = std::shared_ptr<c10::GatheredContext>;

  static void witness(void *self, const weir_trace_entry *entry);
  void see(TraceEntry::Action action, uintptr_t address, size_t bytes); // these two need mutex_
  void write(TraceEntry::Action action, const Segment &segment, Context context);

  std::atomic<bool> on_{false};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<CreateContextFn> recorder_{nullptr};
  c10::ApproximateClockToUnixTimeConverter clock_;
  bool follows_ = false; // whether it is the witness
  std::mutex mutex_;     // guards the following
  Ring<TraceEntry> ring_;
  std::map<uintptr_t, Segment> segments_, external_; // by address
};

} // namespace weir_torch
#endif
