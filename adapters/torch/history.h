// PyTorch's history and stacks of allocations, filled from Weir's history entries.
//
// A context is the caller's stack as PyTorch's recorder returns it. It is created before Weir is called, with no lock
// held, because the recorder may need the GIL. During the call the thread holds it in an Operation. Weir reports the
// actions of the call from within it (weir_allocator_set_witness), so that those of an address are in order.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "ring.h"
#include "version.h"
#include "weir/adapter.h"

namespace weir_torch {

using c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
using c10::cuda::CUDACachingAllocator::CreateContextFn;
using c10::cuda::CUDACachingAllocator::RecordContext;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;
using c10::cuda::CUDACachingAllocator::TraceEntry;
using AnnotationEntry = decltype(SnapshotInfo::external_annotations)::value_type;
using Context = std::shared_ptr<c10::GatheredContext>;

class History {
public:
  // Must be called once, before all other methods.
  void init(weir_allocator *allocator, int device_count);

  // Whether the history is on or there are trackers. A single load, for the fast path of an allocation.
  bool is_watched() const { return watched_.load(std::memory_order_relaxed); }
  // Whether the history was turned off while allocated blocks have contexts. As in PyTorch's own allocator, they keep
  // them; forget() must be called when one is freed.
  bool remembers() const { return remembers_.load(std::memory_order_relaxed); }
  void forget(const void *pointer);
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  void record(bool on, CreateContextFn recorder, size_t most, RecordContext when, bool clear, unsigned skip);
  void attach(AllocatorTraceTracker tracker);
  void annotate(int device, const std::vector<std::pair<std::string, std::string>> &pairs);

  // Returns the caller's context if the level requires one. No lock may be held.
  Context gather(RecordContext level) const {
    if (when_.load(std::memory_order_relaxed) < level)
      return nullptr;
    CreateContextFn recorder = recorder_.load(std::memory_order_acquire);
    return recorder ? recorder() : nullptr;
  }

  // The context in which a live block, or the segment at an address, was allocated.
  Context of_block(int device, uintptr_t address);
  Context of_segment(int device, uintptr_t address);

  // Records an entry that is not about a block, with the calling thread's metadata and compile context.
  void note(TraceEntry::Action action, int device, uint64_t address, uint64_t bytes, void *stream,
            c10::MempoolId_t pool, Context context);

  std::vector<TraceEntry> entries(int device);
  std::vector<AnnotationEntry> annotations();

  // These belong to the calling thread.
  static void push_compile_context(std::string text);
  static void pop_compile_context();
  static void set_metadata(std::string text);
  static std::string metadata();

private:
  struct SegmentContext {
    uint64_t bytes;
    Context context;
  };

  struct Device {
    std::mutex mutex; // guards the fields below; only destructors of contexts run while it is held
    Ring<TraceEntry> ring;
    std::unordered_map<uintptr_t, Context> blocks; // of allocated blocks
    std::map<uintptr_t, SegmentContext> segments;  // by the address of each allocated or mapped range
  };

  static void witness(void *self, const weir_trace_entry *entry);
  void see(const weir_trace_entry &entry);
  Context context_of(Device &device, const weir_trace_entry &entry);
  void write(TraceEntry entry);
  void watch();

  weir_allocator *allocator_ = nullptr;
  std::atomic<bool> watched_{false}, on_{false}, remembers_{false};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<CreateContextFn> recorder_{nullptr};
  std::atomic<unsigned> skip_{0};
  std::mutex control_;       // serializes changes of what is observed
  bool was_watched_ = false; // at any time in the past; guarded by control_
  size_t most_ = 1;          // the number of entries per device; guarded by control_
  std::vector<std::unique_ptr<Device>> devices_;
  std::mutex annotation_mutex_;
  Ring<AnnotationEntry> annotations_;
  // Replaced as a whole, so that it can be read without a lock. Old vectors are never freed; there are few.
  std::atomic<const std::vector<AllocatorTraceTracker> *> trackers_{nullptr};
};

// A call of the allocator, with the context for its history entries. Operations nest: memory that is freed during an
// allocation is freed by a call of its own.
class Operation {
public:
  // Most calls use their context for all entries they cause. Restoring a checkpoint combines many calls: memory that it
  // frees has a context only if a separate free would have one.
  enum Frees { frees_with_it, frees_apart };

  explicit Operation(Context context, Frees frees = frees_with_it);
  ~Operation();
  Operation(const Operation &) = delete;
  Operation &operator=(const Operation &) = delete;

  // The thread's innermost operation, or nullptr.
  static const Operation *current();
  const Context &context() const { return context_; }
  bool are_frees_apart() const { return frees_ == frees_apart; }

private:
  Context context_;
  Frees frees_;
  const Operation *outer_;
};

} // namespace weir_torch
