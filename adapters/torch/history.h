// What happened, and who asked for it: PyTorch's history, filled from Weir's events.
//
// A context is what PyTorch's recorder makes of the caller's stack. It is gathered before Weir is called, with no lock held,
// because the recorder may want Python's lock. While the call lasts the thread carries it (Operation); the events that the call
// causes are told by Weir in the middle of it (weir_allocator_set_witness), so that those of an address are in order.
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

// The newest entries, the oldest first to go.
template <typename T> class Ring {
public:
  void limit(size_t most) {
    if (most < 1)
      most = 1;
    if (most != most_) {
      std::vector<T> kept = entries();
      if (kept.size() > most)
        kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(most));
      entries_ = std::move(kept);
      next_ = 0;
      most_ = most;
    }
  }

  void add(T entry) {
    if (entries_.size() < most_) {
      entries_.push_back(std::move(entry));
    } else {
      entries_[next_] = std::move(entry);
      next_ = next_ + 1 == most_ ? 0 : next_ + 1;
    }
  }

  void clear() {
    std::vector<T>().swap(entries_);
    next_ = 0;
  }

  std::vector<T> entries() const {
    std::vector<T> all;
    all.reserve(entries_.size());
    all.insert(all.end(), entries_.begin() + static_cast<std::ptrdiff_t>(next_), entries_.end());
    all.insert(all.end(), entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(next_));
    return all;
  }

private:
  std::vector<T> entries_;
  size_t next_ = 0; // the oldest, once it is full
  size_t most_ = 1;
};

class History {
public:
  // Once, before anything else.
  void init(weir_allocator *allocator, int device_count);

  // Somebody wants to know what happens: history is on, or there are trackers. One load, for the short way of an allocation.
  bool is_watched() const { return watched_.load(std::memory_order_relaxed); }
  // History was turned off, and blocks that are still in use keep their contexts, as PyTorch's own do: whoever frees one says so.
  bool remembers() const { return remembers_.load(std::memory_order_relaxed); }
  void forget(const void *pointer);
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  void record(bool on, CreateContextFn recorder, size_t most, RecordContext when, bool clear, unsigned skip);
  void attach(AllocatorTraceTracker tracker);
  void annotate(int device, const std::vector<std::pair<std::string, std::string>> &pairs);

  // The caller's context, where the level asks for one. No lock may be held.
  Context gather(RecordContext level) const {
    if (when_.load(std::memory_order_relaxed) < level)
      return nullptr;
    CreateContextFn recorder = recorder_.load(std::memory_order_acquire);
    return recorder ? recorder() : nullptr;
  }

  // Where a live block, or the segment that begins at an address, was asked for.
  Context of_block(int device, uintptr_t address);
  Context of_segment(int device, uintptr_t address);

  // An event of no block, with the calling thread's texts.
  void note(TraceEntry::Action action, int device, uint64_t address, uint64_t bytes, void *stream,
            c10::MempoolId_t pool, Context context);

  std::vector<TraceEntry> entries(int device);
  std::vector<AnnotationEntry> annotations();

  // Of the calling thread.
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
    std::mutex mutex; // of all that follows; nothing is called with it held but the destructors of contexts
    Ring<TraceEntry> ring;
    std::unordered_map<uintptr_t, Context> blocks; // of blocks in use
    std::map<uintptr_t, SegmentContext> segments;  // by the address of what was allocated or mapped in one go
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
  std::mutex control_;       // of who watches
  bool was_watched_ = false; // at any time; guarded by control_
  size_t most_ = 1;          // entries of each device; guarded by control_
  std::vector<std::unique_ptr<Device>> devices_;
  std::mutex annotation_mutex_;
  Ring<AnnotationEntry> annotations_;
  // Replaced whole, so that it is read without a lock; the old ones stay, there are few.
  std::atomic<const std::vector<AllocatorTraceTracker> *> trackers_{nullptr};
};

// A call of the allocator's: the context that its events carry. They nest: what is freed on the way to a larger allocation is a
// call of its own.
class Operation {
public:
  // Most calls lend their context to all that happens in them. Restoring a checkpoint is many calls in one: what it frees has a
  // context only where a free of its own would have one.
  enum Frees { frees_with_it, frees_apart };

  explicit Operation(Context context, Frees frees = frees_with_it);
  ~Operation();
  Operation(const Operation &) = delete;
  Operation &operator=(const Operation &) = delete;

  // The thread's innermost; nullptr: none.
  static const Operation *current();
  const Context &context() const { return context_; }
  bool are_frees_apart() const { return frees_ == frees_apart; }

private:
  Context context_;
  Frees frees_;
  const Operation *outer_;
};

} // namespace weir_torch
