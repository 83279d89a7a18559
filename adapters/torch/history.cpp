#include "history.h"

#include <c10/util/Exception.h>

namespace weir_torch {

namespace {

thread_local const Operation *current_operation = nullptr;
thread_local std::vector<std::string> compile_contexts;
thread_local std::string user_metadata;

TraceEntry::Action action_of(weir_trace_action action) {
  switch (action) {
  case WEIR_TRACE_ALLOC:
    return TraceEntry::ALLOC;
  case WEIR_TRACE_FREE_REQUESTED:
    return TraceEntry::FREE_REQUESTED;
  case WEIR_TRACE_FREE_COMPLETED:
    return TraceEntry::FREE_COMPLETED;
  case WEIR_TRACE_SEGMENT_ALLOC:
    return TraceEntry::SEGMENT_ALLOC;
  case WEIR_TRACE_SEGMENT_FREE:
    return TraceEntry::SEGMENT_FREE;
  case WEIR_TRACE_SEGMENT_MAP:
    return TraceEntry::SEGMENT_MAP;
  case WEIR_TRACE_SEGMENT_UNMAP:
    return TraceEntry::SEGMENT_UNMAP;
  default: // the others are not events of an allocator
    return TraceEntry::OOM;
  }
}

// PyTorch's own segments lose their context when they are first split, and programs rely on this: with the context
// "state", the stack of an allocation is gone once it was freed.
bool is_cut(uint64_t segment, uint64_t requested) {
  constexpr uint64_t unit = 512, small_most = 1 << 20;
  uint64_t rest = segment > requested ? segment - requested : 0;
  return requested <= small_most ? rest >= unit : rest > small_most;
}

} // namespace

Operation::Operation(Context context, Frees frees)
    : context_(std::move(context)), frees_(frees), outer_(current_operation) {
  current_operation = this;
}

Operation::~Operation() { current_operation = outer_; }

const Operation *Operation::current() { return current_operation; }

void History::push_compile_context(std::string text) { compile_contexts.push_back(std::move(text)); }

void History::pop_compile_context() {
  if (!compile_contexts.empty())
    compile_contexts.pop_back();
}

void History::set_metadata(std::string text) { user_metadata = std::move(text); }

std::string History::metadata() { return user_metadata; }

void History::init(weir_allocator *allocator, int device_count) {
  std::lock_guard<std::mutex> lock(control_);
  allocator_ = allocator;
  while (static_cast<int>(devices_.size()) < device_count)
    devices_.push_back(std::make_unique<Device>());
  for (auto &device : devices_)
    device->ring.limit(most_);
  watch();
}

// An observer makes Weir leave the fast path, so one is registered only while it is needed. After the first time,
// segment actions are always observed, since stored contexts of segments end with them. The control lock is held.
void History::watch() {
  bool wanted = on_.load() || trackers_.load();
  was_watched_ = was_watched_ || wanted;
  if (!was_watched_)
    return;
  watched_.store(wanted);
  remembers_.store(!wanted);
  if (allocator_)
    weir_allocator_set_witness(allocator_, witness, this, wanted ? WEIR_WITNESS_ALL : WEIR_WITNESS_SEGMENTS);
}

void History::forget(const void *pointer) {
  bool any = false;
  for (auto &device : devices_) {
    Context context; // destroyed outside of the lock
    std::lock_guard<std::mutex> lock(device->mutex);
    auto at = device->blocks.find(reinterpret_cast<uintptr_t>(pointer));
    if (at != device->blocks.end()) {
      context = std::move(at->second);
      device->blocks.erase(at);
    }
    any = any || !device->blocks.empty();
  }
  if (!any && !is_watched())
    remembers_.store(false);
}

void History::record(bool on, CreateContextFn recorder, size_t most, RecordContext when, bool clear, unsigned skip) {
  std::lock_guard<std::mutex> lock(control_);
  recorder_.store(on ? recorder : nullptr, std::memory_order_release);
  when_.store(on ? when : RecordContext::NEVER);
  skip_.store(skip);
  on_.store(on);
  most_ = most;
  watch();
  {
    std::lock_guard<std::mutex> annotations(annotation_mutex_);
    annotations_.limit(most);
    if (!on || clear)
      annotations_.clear();
  }
  for (auto &device : devices_) {
    std::lock_guard<std::mutex> entries(device->mutex);
    device->ring.limit(most);
    if (!on || clear)
      device->ring.clear();
  }
}

void History::attach(AllocatorTraceTracker tracker) {
  std::lock_guard<std::mutex> lock(control_);
  const auto *before = trackers_.load();
  auto *now = before ? new std::vector<AllocatorTraceTracker>(*before) : new std::vector<AllocatorTraceTracker>();
  now->push_back(std::move(tracker));
  trackers_.store(now, std::memory_order_release);
  watch();
}

void History::annotate(int device, const std::vector<std::pair<std::string, std::string>> &pairs) {
  if (!is_on())
    return;
  AnnotationEntry entry(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
  for (const auto &pair : pairs)
    entry.recordUserMetadata(pair.first, pair.second);
  std::lock_guard<std::mutex> lock(annotation_mutex_);
  annotations_.add(std::move(entry));
}

void History::witness(void *self, const weir_trace_entry *entry) {
  // Weir is C, and its locks are held: no exception may pass through it.
  try {
    static_cast<History *>(self)->see(*entry);
  } catch (const std::exception &error) {
    TORCH_WARN_ONCE("weir: a history entry was lost: ", error.what());
  }
}

// Returns the context of a history entry, and updates the contexts stored for blocks and segments.
Context History::context_of(Device &device, const weir_trace_entry &entry) {
  const Operation *operation = Operation::current();
  Context context = operation && is_watched() ? operation->context() : nullptr;
  bool is_free = entry.action == WEIR_TRACE_FREE_REQUESTED || entry.action == WEIR_TRACE_FREE_COMPLETED;
  if (is_free && operation && operation->are_frees_apart() && when_.load() < RecordContext::ALL)
    context = nullptr;
  std::lock_guard<std::mutex> lock(device.mutex);
  switch (entry.action) {
  case WEIR_TRACE_ALLOC: {
    auto at = device.segments.find(entry.address);
    if (at != device.segments.end() && is_cut(at->second.bytes, entry.bytes))
      device.segments.erase(at);
    if (context)
      device.blocks[entry.address] = context;
    break;
  }
  case WEIR_TRACE_FREE_REQUESTED: {
    auto at = device.blocks.find(entry.address);
    if (!context && at != device.blocks.end())
      context = at->second;
    break;
  }
  case WEIR_TRACE_FREE_COMPLETED: {
    auto at = device.blocks.find(entry.address);
    if (at != device.blocks.end()) {
      if (!context)
        context = std::move(at->second);
      device.blocks.erase(at);
    }
    break;
  }
  case WEIR_TRACE_SEGMENT_ALLOC:
  case WEIR_TRACE_SEGMENT_MAP:
    if (context)
      device.segments[entry.address] = {entry.bytes, context};
    break;
  case WEIR_TRACE_SEGMENT_FREE:
  case WEIR_TRACE_SEGMENT_UNMAP: {
    auto at = device.segments.lower_bound(entry.address);
    if (!context && at != device.segments.end() && at->first == entry.address)
      context = at->second.context;
    while (at != device.segments.end() && at->first < entry.address + entry.bytes)
      at = device.segments.erase(at);
    break;
  }
  default:
    break;
  }
  return context;
}

void History::see(const weir_trace_entry &entry) {
  if (static_cast<size_t>(entry.device) >= devices_.size())
    return;
  Context context = context_of(*devices_[static_cast<size_t>(entry.device)], entry);
  note(action_of(entry.action), entry.device, entry.address, entry.bytes, entry.stream,
       {entry.pool.first, entry.pool.second}, std::move(context));
}

void History::note(TraceEntry::Action action, int device, uint64_t address, uint64_t bytes, void *stream,
                   c10::MempoolId_t pool, Context context) {
  if (!is_watched())
    return;
  if (when_.load(std::memory_order_relaxed) < RecordContext::ALLOC)
    context = nullptr;
#if WEIR_TORCH_2_11
  void *handle = stream;
#else
  auto handle = static_cast<cudaStream_t>(stream);
#endif
  write(TraceEntry(action, static_cast<c10::DeviceIndex>(device), address, bytes, handle, pool,
                   c10::getApproximateTime(), std::move(context),
                   compile_contexts.empty() ? "N/A" : compile_contexts.back(), user_metadata));
}

void History::write(TraceEntry entry) {
  if (const auto *trackers = trackers_.load(std::memory_order_acquire))
    for (const auto &tracker : *trackers)
      tracker(entry);
  if (!is_on() || (skip_.load(std::memory_order_relaxed) >> entry.action_ & 1))
    return;
  Device &device = *devices_[static_cast<size_t>(entry.device_)];
  std::lock_guard<std::mutex> lock(device.mutex);
  device.ring.add(std::move(entry));
}

Context History::of_block(int device, uintptr_t address) {
  Device &of = *devices_[static_cast<size_t>(device)];
  std::lock_guard<std::mutex> lock(of.mutex);
  auto at = of.blocks.find(address);
  return at == of.blocks.end() ? nullptr : at->second;
}

Context History::of_segment(int device, uintptr_t address) {
  Device &of = *devices_[static_cast<size_t>(device)];
  std::lock_guard<std::mutex> lock(of.mutex);
  auto at = of.segments.find(address);
  return at == of.segments.end() ? nullptr : at->second.context;
}

std::vector<TraceEntry> History::entries(int device) {
  Device &of = *devices_[static_cast<size_t>(device)];
  std::lock_guard<std::mutex> lock(of.mutex);
  return of.ring.entries();
}

std::vector<AnnotationEntry> History::annotations() {
  std::lock_guard<std::mutex> lock(annotation_mutex_);
  return annotations_.entries();
}

} // namespace weir_torch
