#include "pinned_history.h"

#if WEIR_TORCH_2_14
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

namespace weir_torch {

namespace {

thread_local std::shared_ptr<c10::GatheredContext> context_of_call;
thread_local c10::MempoolId_t pool_of_call{0, 0};
thread_local bool is_listing = false; // the witness gets what was there before

} // namespace

PinnedHistory::Call::Call(const PinnedHistory &history, RecordContext level) {
  if (C10_LIKELY(history.when_.load(std::memory_order_acquire) < level))
    return;
  if (CreateContextFn recorder = history.recorder_.load(std::memory_order_relaxed))
    context_of_call = recorder();
}

PinnedHistory::Call::~Call() {
  context_of_call.reset();
  pool_of_call = {0, 0};
}

void PinnedHistory::Call::serve(c10::MempoolId_t pool) { pool_of_call = pool; }

void PinnedHistory::record(bool on, CreateContextFn recorder, size_t most, RecordContext when, bool clear) {
  recorder_.store(on ? recorder : nullptr, std::memory_order_relaxed);
  when_.store(on ? when : RecordContext::NEVER, std::memory_order_release);
  on_.store(on);
  std::lock_guard<std::mutex> lock(mutex_);
  if (on)
    ring_.limit(most);
  if (clear)
    ring_.clear();
}

weir_status PinnedHistory::follow(weir_host_allocator *host, const std::vector<void *> &kept) {
  if (is_on() == follows_)
    return WEIR_OK;
  is_listing = true;
  if (!follows_) {
    std::lock_guard<std::mutex> lock(mutex_);
    segments_.clear();
  }
  weir_status status = weir_host_set_witness(host, follows_ ? nullptr : witness, this);
  follows_ = status ? follows_ : !follows_;
  for (void *pointer : kept)
    pooled_free(pointer);
  is_listing = false;
  return status;
}

// Weir is C, and its lock is held: no exception may pass through it.
void PinnedHistory::witness(void *self, const weir_trace_entry *entry) {
  auto *history = static_cast<PinnedHistory *>(self);
  try {
    std::lock_guard<std::mutex> lock(history->mutex_);
    history->see(static_cast<TraceEntry::Action>(entry->action), entry->address, entry->bytes);
  } catch (const std::exception &error) {
    TORCH_WARN("weir: an entry of the history of pinned memory was lost: ", error.what());
  }
}

static_assert(static_cast<int>(WEIR_TRACE_ALLOC) == c10::CachingDeviceAllocator::TraceEntry::ALLOC &&
                  static_cast<int>(WEIR_TRACE_SEGMENT_FREE) == c10::CachingDeviceAllocator::TraceEntry::SEGMENT_FREE,
              "the actions have PyTorch's numbers");

void PinnedHistory::see(TraceEntry::Action action, uintptr_t address, size_t bytes) {
  Segment &segment = segments_[address];
  Context context = context_of_call;
  // The adapter has reported memory as free that it kept for a pool, and now frees.
  if ((action == TraceEntry::FREE_REQUESTED && !segment.allocated) ||
      (action == TraceEntry::FREE_COMPLETED && !segment.active))
    return;
  switch (action) {
  case TraceEntry::SEGMENT_ALLOC:
    segment = Segment();
    segment.address = address;
    segment.size = bytes;
    segment.owner_private_pool_id = pool_of_call;
    break;
  case TraceEntry::ALLOC:
    segment.allocated = segment.active = true;
    segment.owner_private_pool_id = pool_of_call;
    segment.context_when_allocated = context;
    break;
  case TraceEntry::FREE_REQUESTED:
    segment.allocated = false;
    context = context ? context : segment.context_when_allocated;
    break;
  case TraceEntry::FREE_COMPLETED:
    segment.active = false;
    context = context ? context : segment.context_when_allocated;
    segment.context_when_allocated.reset();
    break;
  default:
    context.reset();
    break;
  }
  if (!is_listing)
    write(action, segment, std::move(context));
  if (action == TraceEntry::SEGMENT_FREE)
    segments_.erase(address);
}

void PinnedHistory::write(TraceEntry::Action action, const Segment &segment, Context context) {
  if (when_.load(std::memory_order_relaxed) < RecordContext::ALLOC)
    context.reset();
  ring_.add(TraceEntry(action, -1, segment.address, segment.size, nullptr, segment.owner_private_pool_id,
                       c10::getApproximateTime(), std::move(context)));
}

void PinnedHistory::pooled_alloc(void *pointer, c10::MempoolId_t pool) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_on() || !segments_.count(address))
    return;
  Call::serve(pool);
  see(TraceEntry::ALLOC, address, 0);
}

void PinnedHistory::pooled_free(void *pointer) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_on() || !segments_.count(address))
    return;
  see(TraceEntry::FREE_REQUESTED, address, 0);
  see(TraceEntry::FREE_COMPLETED, address, 0);
}

void PinnedHistory::add_external(void *pointer, size_t bytes) {
  if (!is_on())
    return;
  Call call(*this, RecordContext::STATE);
  auto address = reinterpret_cast<uintptr_t>(pointer);
  Segment segment;
  segment.address = address;
  segment.size = bytes;
  segment.allocated = segment.active = true;
  segment.context_when_allocated = context_of_call;
  std::lock_guard<std::mutex> lock(mutex_);
  write(TraceEntry::SEGMENT_ALLOC, segment, nullptr);
  write(TraceEntry::ALLOC, segment, context_of_call);
  external_[address] = std::move(segment);
}

void PinnedHistory::remove_external(void *pointer) {
  Call call(*this, RecordContext::ALL);
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = external_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == external_.end())
    return;
  if (is_on()) {
    write(TraceEntry::FREE_REQUESTED, found->second, context_of_call);
    write(TraceEntry::FREE_COMPLETED, found->second, found->second.context_when_allocated);
    write(TraceEntry::SEGMENT_FREE, found->second, nullptr);
  }
  external_.erase(found);
}

std::vector<PinnedHistory::Segment> PinnedHistory::segments() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Segment> all;
  for (const auto *from : {&segments_, &external_})
    for (const auto &[address, segment] : *from)
      all.push_back(segment);
  return all;
}

std::vector<PinnedHistory::TraceEntry> PinnedHistory::traces() {
  auto to_ns = clock_.makeConverter();
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TraceEntry> all = ring_.entries();
  for (TraceEntry &entry : all)
    entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
  return all;
}

} // namespace weir_torch
#endif
