// Snapshots and history: fills PyTorch's structs from Weir's.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "allocator.h"

namespace weir_torch {

using Generic = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Cuda = cca::CUDAAllocatorConfig;

namespace {

// A snapshot of Weir's allocator.
class Copy {
public:
  Copy(weir_allocator *allocator, int device, MempoolId_t pool, weir_status *status) {
    weir_snapshot_options options;
    weir_snapshot_options_init(&options);
    options.device = device;
    options.traces = 0;
    options.pool = {pool.first, pool.second};
    *status = weir_snapshot_take(allocator, &options, &snapshot_);
    if (!*status)
      *status = weir_snapshot_segments(snapshot_, &segments_, &count_);
  }
  ~Copy() { weir_snapshot_destroy(snapshot_); }
  Copy(const Copy &) = delete;
  Copy &operator=(const Copy &) = delete;
  size_t size() const { return count_; }
  const weir_snapshot_segment &operator[](size_t index) const { return *weir_snapshot_segment_at(segments_, index); }

private:
  weir_snapshot *snapshot_ = nullptr;
  const weir_snapshot_segment *segments_ = nullptr;
  size_t count_ = 0;
};

} // namespace

void Allocator::fill_segments(SnapshotInfo &result, MempoolId_t pool, bool note) {
  weir_status status;
  Copy copy(weir_, -1, pool, &status);
  check(status);
  std::vector<uint64_t> active(static_cast<size_t>(device_count_));
  for (size_t s = 0; s < copy.size(); s++) {
    const weir_snapshot_segment &from = copy[s];
    cca::SegmentInfo to;
    to.device = static_cast<DeviceIndex>(from.device);
    to.address = from.address;
    to.total_size = from.bytes;
    to.requested_size = from.requested;
    to.allocated_size = from.allocated;
    to.active_size = from.active;
    to.stream = from.stream;
    to.is_large = from.is_large != 0;
    to.is_expandable = from.is_expandable != 0;
    to.owner_private_pool_id = {from.pool.first, from.pool.second};
#if WEIR_TORCH_2_11
    to.registration_counter = order_of(from.device, to.owner_private_pool_id, from.address);
#endif
    to.context_when_allocated = history_.of_segment(from.device, from.address);
    to.blocks.resize(from.block_count);
    for (size_t i = 0; i < from.block_count; i++) {
      const weir_snapshot_block &block = *weir_snapshot_block_at(&from, i);
      to.blocks[i].size = block.bytes;
      to.blocks[i].requested_size = block.requested;
      to.blocks[i].allocated = block.state == WEIR_BLOCK_ACTIVE_ALLOCATED;
      to.blocks[i].active = block.state != WEIR_BLOCK_INACTIVE;
      if (to.blocks[i].active)
        to.blocks[i].context_when_allocated = history_.of_block(from.device, block.address);
    }
    active[static_cast<size_t>(from.device)] += from.active;
    result.segments.push_back(std::move(to));
  }
  for (int device = 0; note && device < device_count_; device++)
    history_.note(TraceEntry::SNAPSHOT, device, 0, active[static_cast<size_t>(device)], nullptr, pool, nullptr);
}

void Allocator::fill_config(cca::AllocatorConfigInfo &config) const {
  config.garbage_collection_threshold = Generic::garbage_collection_threshold();
  config.max_split_size = Generic::max_split_size();
  config.pinned_num_register_threads = Cuda::pinned_num_register_threads();
  config.expandable_segments = uses_expandable_segments();
  config.release_lock_on_malloc = Cuda::release_lock_on_cudamalloc();
  config.pinned_use_host_register = Cuda::pinned_use_cuda_host_register();
  config.graph_capture_record_stream_reuse = Cuda::graph_capture_record_stream_reuse();
  config.last_allocator_settings = Generic::last_allocator_settings();
  config.roundup_power2_divisions = Generic::roundup_power2_divisions();
#if WEIR_TORCH_2_13
  config.max_round_threshold = Generic::pinned_max_round_threshold();
  config.max_cached_size = Generic::pinned_max_cached_size();
#endif
}

// The history is read first: taking the snapshot adds an entry too, which belongs to the next one.
#if WEIR_TORCH_2_11
SnapshotInfo Allocator::snapshot(MempoolId_t pool, bool include_traces) {
#else
SnapshotInfo Allocator::snapshot(MempoolId_t pool) {
  constexpr bool include_traces = true;
#endif
  SnapshotInfo result;
  fill_config(result.config_metadata);
  if (!weir_)
    return result;
  apply_settings();
  if (include_traces) {
    auto to_ns = clock_.makeConverter();
    result.external_annotations = history_.annotations();
    for (auto &entry : result.external_annotations)
      entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    for (int device = 0; device < device_count_; device++) {
      result.device_traces.push_back(history_.entries(device));
      for (auto &entry : result.device_traces.back())
        entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    }
  }
  fill_segments(result, pool, true);
  return result;
}

std::vector<cca::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex device) {
  check_device(device);
  std::vector<weir_expandable_segment> segments;
  size_t count = 0;
  do { // their number may have grown
    segments.resize(count);
    weir_expandable_segment_init(segments.data());
    check(weir_allocator_expandable_segments(weir_, device, segments.data(), segments.size(), &count));
  } while (count > segments.size());
  std::vector<cca::StreamSegmentSize> result;
  for (size_t i = 0; i < count; i++)
    result.emplace_back(segments[i].stream, segments[i].is_small != 0, segments[i].bytes);
  return result;
}

// If the caller passes 0, the free memory of the device counts too; otherwise only cached blocks do.
void Allocator::cacheInfo(DeviceIndex device, size_t *largest) {
  check_device(device);
  if (*largest == 0) {
    check(weir_allocator_largest_block(weir_, device, largest));
    return;
  }
  weir_status status;
  Copy copy(weir_, device, {0, 0}, &status);
  check(status);
  for (size_t s = 0; s < copy.size(); s++)
    for (size_t i = 0; i < copy[s].block_count; i++) {
      const weir_snapshot_block *block = weir_snapshot_block_at(&copy[s], i);
      if (block->state == WEIR_BLOCK_INACTIVE)
        *largest = std::max(*largest, static_cast<size_t>(block->bytes));
    }
}

// ---- History ----

bool Allocator::isHistoryEnabled() { return history_.is_on(); }

#if WEIR_TORCH_2_11
void Allocator::recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
                              const std::vector<std::string> &skip_actions) {
  unsigned skip = 0;
  for (const auto &name : skip_actions)
    skip |= 1u << c10::CachingDeviceAllocator::parseTraceEntryAction(name);
#else
void Allocator::recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) {
  unsigned skip = 0;
#endif
  TORCH_CHECK(when == RecordContext::NEVER || recorder);
  history_.record(enabled, recorder, most, when, clear, skip);
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &pairs) {
  if (!history_.is_on())
    return;
  history_.annotate(current_device(), pairs);
}

void Allocator::pushCompileContext(std::string &text) {
  if (history_.is_on())
    History::push_compile_context(text);
}

void Allocator::popCompileContext() {
  if (history_.is_on())
    History::pop_compile_context();
}

void Allocator::setUserMetadata(const std::string &text) { History::set_metadata(text); }

std::string Allocator::getUserMetadata() { return History::metadata(); }

void Allocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker) { history_.attach(std::move(tracker)); }

#if WEIR_TORCH_2_12
Context Allocator::getContextForPointer(const void *pointer) {
  weir_pointer_info block;
  block.size = sizeof block;
  if (!weir_ || weir_allocator_describe(weir_, pointer, &block))
    return nullptr;
  return history_.of_block(block.device, reinterpret_cast<uintptr_t>(pointer));
}
#endif

#if WEIR_TORCH_2_14
bool Allocator::supportsUserMetadata() { return true; }

void Allocator::annotateMemory(const void *pointer, const std::string &text) {
  weir_pointer_info block;
  block.size = sizeof block;
  TORCH_CHECK(weir_ && !weir_allocator_describe(weir_, pointer, &block),
              "annotateMemory: no live allocation found at pointer ", pointer);
  std::string before = History::metadata();
  History::set_metadata(text);
  history_.note(TraceEntry::ANNOTATE, block.device, reinterpret_cast<uint64_t>(pointer), block.requested, block.stream,
                {block.pool.first, block.pool.second},
                history_.of_block(block.device, reinterpret_cast<uintptr_t>(pointer)));
  History::set_metadata(before);
}
#endif

} // namespace weir_torch
