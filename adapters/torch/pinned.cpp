#include "pinned.h"

#if WEIR_TORCH_2_11
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "errors.h"
#include "settings.h"
#include "weir/driver.h"

namespace weir_torch {

using Generic = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
using c10::CachingAllocator::DurationStat;
using c10::CachingAllocator::Stat;

// Many compilers add a check of the stack to every function with a local variable whose address is taken. The fast path
// does without it, as that of the library does.
#if defined(__has_attribute)
#if __has_attribute(no_stack_protector)
#define WITHOUT_STACK_PROTECTOR __attribute__((no_stack_protector))
#endif
#endif
#ifndef WITHOUT_STACK_PROTECTOR
#define WITHOUT_STACK_PROTECTOR
#endif

namespace {

inline void check(weir_status status) {
  if (C10_UNLIKELY(status))
    throw_status(status);
}

const char *flag(bool on) { return on ? "True" : "False"; }

#if WEIR_TORCH_2_13
void add_size(std::ostream &out, const char *key, size_t bytes) {
  out << ',' << key << ':';
  if (bytes >> 20 >= size_t{1} << 43)
    out << "default";
  else
    out << (bytes >> 20);
}
#endif

// PyTorch's settings of pinned memory, in Weir's syntax.
std::string pinned_settings_of_torch() {
  std::ostringstream out;
  out << "pinned_use_cuda_host_register:" << flag(Cuda::pinned_use_cuda_host_register())
      << ",pinned_num_register_threads:" << Cuda::pinned_num_register_threads()
      << ",pinned_use_background_threads:" << flag(Generic::pinned_use_background_threads())
      << ",pinned_reserve_segment_size_mb:";
  if (Cuda::pinned_reserve_segment_size_mb() > 0)
    out << Cuda::pinned_reserve_segment_size_mb();
  else
    out << "default";
#if WEIR_TORCH_2_12
  out << ",pinned_free_catch_all:" << flag(Cuda::pinned_free_catch_all());
#endif
#if WEIR_TORCH_2_13
  add_size(out, "pinned_max_round_threshold_mb", Generic::pinned_max_round_threshold());
  add_size(out, "pinned_max_cached_size_mb", Generic::pinned_max_cached_size());
#endif
  return out.str();
}

// PyTorch's copies must not cross two registrations, so there is one for each block, whatever WEIR_ALLOC_CONF says.
const char one_registration[] = "pinned_register_piece_mb:default";

size_t round_up(size_t bytes) {
  size_t size = 1;
  while (size < bytes)
    size *= 2;
  return size;
}

Stat stat_of(const weir_stat &from) {
  Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

DurationStat time_of(const weir_host_time &from) {
  DurationStat to;
  to.total = from.total;
  to.max = from.max;
  to.min = from.min;
  to.count = from.count;
  return to;
}

} // namespace

PinnedAllocator &the_pinned_allocator() {
  static PinnedAllocator *allocator = new PinnedAllocator();
  return *allocator;
}

// ---- Start and settings ----

void PinnedAllocator::install() {
  at::HostAllocator *current = at::getHostAllocator(c10::kCUDA);
  if (current == this)
    return;
  before_ = current;
  follow_settings_of_torch([this] { follow_settings(); });
  // In the child of a fork pools_mutex_ may stay locked forever, and memory of the parent cannot be used there.
  pthread_atfork(nullptr, nullptr, [] {
    is_forked_.store(true, std::memory_order_relaxed);
    has_pools_.store(false, std::memory_order_relaxed);
    fast_host_.store(host_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  });
  at::setHostAllocator(c10::kCUDA, this, 1); // PyTorch registers its own with priority 0
}

bool PinnedAllocator::is_installed() const { return at::getHostAllocator(c10::kCUDA) == this; }

weir_host_allocator *PinnedAllocator::create() {
  weir_driver *driver = nullptr;
  weir_host_allocator *host = nullptr;
  check(weir_driver_open_cuda(&driver));
  try {
    weir_cu_result r = driver->Init(driver, 0);
    TORCH_CHECK(r == WEIR_CU_SUCCESS, "weir: cuInit: ", weir_cu_result_string(r));
    settings_ = pinned_settings_of_torch();
    weir_host_allocator_options options;
    weir_host_allocator_options_init(&options);
    options.conf = settings_.c_str();
    check(weir_host_allocator_create(driver, &options, &host));
    if (const char *more = std::getenv("WEIR_ALLOC_CONF"))
      check(weir_host_configure(host, more));
    check(weir_host_configure(host, one_registration));
  } catch (...) { // the next allocation tries again
    weir_host_allocator_destroy(host);
    weir_driver_close(driver);
    throw;
  }
  return host;
}

weir_host_allocator *PinnedAllocator::start() {
  weir_host_allocator *host = host_.load(std::memory_order_acquire);
  if (C10_LIKELY(host != nullptr))
    return host;
  std::lock_guard<std::mutex> lock(start_mutex_);
  host = host_.load(std::memory_order_relaxed);
  if (!host) {
    host = create();
#if WEIR_TORCH_2_14
    check(history_.follow(host, {}));
#endif
    host_.store(host, std::memory_order_release);
    std::lock_guard<std::mutex> pools_lock(pools_mutex_);
    choose_path();
  }
  return host;
}

// Called when what it depends on has changed, with pools_mutex_ held.
void PinnedAllocator::choose_path() {
  bool is_fast = underway_.empty() && !is_recorded();
  fast_host_.store(is_fast ? host_.load(std::memory_order_relaxed) : nullptr, std::memory_order_release);
}

// As for device memory, what WEIR_ALLOC_CONF says remains in effect until PyTorch changes the same key.
void PinnedAllocator::follow_settings() {
  weir_host_allocator *host = host_.load(std::memory_order_acquire);
  if (!host)
    return;
  std::lock_guard<std::mutex> lock(start_mutex_);
  std::string now = pinned_settings_of_torch(), changed = changed_settings(settings_, now);
  if (changed.empty() || !weir_host_configure(host, changed.c_str()))
    settings_ = now;
  else
    TORCH_WARN("weir: ", weir_last_error(), ". The previous settings of pinned memory remain in effect.");
}

// ---- Memory ----

void *PinnedAllocator::alloc(size_t bytes) {
  void *pointer = nullptr;
  check(weir_host_alloc(start(), bytes, &pointer));
  return pointer;
}

// The first allocation, or one during a capture or while history is recorded.
C10_NOINLINE void *PinnedAllocator::alloc_generic(size_t bytes) {
  start();
#if WEIR_TORCH_2_14
  PinnedHistory::Call call(history_, PinnedHistory::RecordContext::STATE);
#endif
  bool is_pooled = false, captures = !fast_host_.load(std::memory_order_relaxed);
  void *pointer = captures && bytes ? alloc_pooled(bytes, is_pooled) : nullptr;
  return is_pooled ? pointer : alloc(bytes);
}

WITHOUT_STACK_PROTECTOR at::DataPtr PinnedAllocator::allocate(size_t bytes) {
  void *pointer = nullptr;
  weir_host_allocator *host = fast_host_.load(std::memory_order_acquire);
  if (C10_LIKELY(host != nullptr))
    check(weir_host_alloc(host, bytes, &pointer));
  else
    pointer = alloc_generic(bytes);
  return {pointer, pointer, delete_pointer, at::Device(at::DeviceType::CPU)};
}

c10::DeleterFnPtr PinnedAllocator::raw_deleter() const { return delete_pointer; }

void PinnedAllocator::copy_data(void *to, const void *from, std::size_t bytes) const {
  default_copy_data(to, from, bytes);
}

// A deleter must not throw. In a forked child the memory belongs to the parent.
static C10_NOINLINE void warn_of(weir_status status) {
  if (status != WEIR_ERROR_BAD_FORK)
    TORCH_WARN("weir: pinned memory was not freed: ", last_error());
}

// While history is recorded.
void PinnedAllocator::free_recorded([[maybe_unused]] void *pointer) {
#if WEIR_TORCH_2_14
  PinnedHistory::Call call(history_, PinnedHistory::RecordContext::ALL);
  if (has_pools_.load(std::memory_order_relaxed) && free_pooled(pointer))
    return;
  if (weir_status status = weir_host_free(host_.load(std::memory_order_relaxed), pointer))
    warn_of(status);
#endif
}

void PinnedAllocator::delete_pointer(void *pointer) {
  if (C10_UNLIKELY(pointer && is_recorded())) {
    the_pinned_allocator().free_recorded(pointer);
    return;
  }
  if (!pointer ||
      (C10_UNLIKELY(has_pools_.load(std::memory_order_relaxed)) && the_pinned_allocator().free_pooled(pointer)))
    return;
  weir_status status = weir_host_free(host_.load(std::memory_order_relaxed), pointer);
  if (C10_UNLIKELY(status))
    warn_of(status);
}

bool PinnedAllocator::record_event(void *pointer, void *context, c10::Stream stream) {
  weir_host_allocator *host = host_.load(std::memory_order_acquire);
  int owns = 0;
  if (host)
    check(weir_host_owns(host, pointer, &owns));
  if (!owns)
    return before_ && before_->record_event(pointer, context, stream);
  c10::cuda::CUDAStream used(stream);
  if (C10_UNLIKELY(has_pools_.load(std::memory_order_relaxed))) {
    std::lock_guard<std::mutex> lock(pools_mutex_);
    // The context is the beginning of the memory, unless something else owns it, such as a NumPy array.
    auto next = pooled_.upper_bound(pointer);
    if (next != pooled_.begin()) {
      auto &[start, block] = *std::prev(next);
      if (static_cast<char *>(pointer) < static_cast<char *>(start) + block.size)
        block.is_used = true;
    }
  }
  check(weir_host_record_stream(host, pointer, static_cast<int>(used.device_index()),
                                reinterpret_cast<weir_cu_stream>(used.stream())));
  return true;
}

void PinnedAllocator::empty_cache() {
  if (before_)
    before_->empty_cache();
  if (weir_host_allocator *host = host_.load(std::memory_order_acquire))
    check(weir_host_empty_cache(host));
}

// ---- Graphs ----

void PinnedAllocator::begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) {
  std::lock_guard<std::mutex> lock(pools_mutex_);
  for (const Capture &capture : underway_)
    TORCH_CHECK(capture.pool != pool, "beginAllocateToPool: already recording to mempool_id");
  std::shared_ptr<Pool> &known = pools_[pool];
  if (!known)
    known = std::make_shared<Pool>();
  known->uses++;
  underway_.push_back({pool, std::move(filter)});
  choose_path();
}

void PinnedAllocator::end_allocate_to_pool(c10::MempoolId_t pool) {
  {
    std::lock_guard<std::mutex> lock(pools_mutex_);
    for (auto capture = underway_.begin(); capture != underway_.end(); ++capture)
      if (capture->pool == pool) {
        underway_.erase(capture);
        choose_path();
        return;
      }
  }
  TORCH_CHECK(before_, "endAllocatePool: not currently recording to mempool_id");
  before_->end_allocate_to_pool(pool); // began with that one, or is an error there as well
}

// The pool of the calling thread's capture serves the request, if there is one.
void *PinnedAllocator::alloc_pooled(size_t bytes, bool &is_pooled) {
  c10::Stream stream = c10::cuda::getCurrentCUDAStream().unwrap();
  std::lock_guard<std::mutex> lock(pools_mutex_);
  for (const Capture &capture : underway_) {
    if (!capture.filter(stream))
      continue;
    std::shared_ptr<Pool> pool = pools_.at(capture.pool);
    size_t size = round_up(bytes);
    std::vector<void *> &free = pool->free[size];
    void *pointer;
    if (free.empty()) {
#if WEIR_TORCH_2_14
      PinnedHistory::Call::serve(capture.pool);
#endif
      pointer = alloc(size);
      pooled_.insert({pointer, {pool, size, false}});
      has_pools_.store(true, std::memory_order_relaxed);
    } else {
      pointer = free.back();
      free.pop_back();
#if WEIR_TORCH_2_14
      history_.pooled_alloc(pointer, capture.pool);
#endif
    }
    is_pooled = true;
    return pointer;
  }
  return nullptr;
}

// Returns false for memory that Weir has to free: no pool has it, its pool is gone, or a stream uses it. Weir keeps
// what a graph uses until the graph is gone.
bool PinnedAllocator::free_pooled(void *pointer) {
  std::lock_guard<std::mutex> lock(pools_mutex_);
  auto found = pooled_.find(pointer);
  if (found == pooled_.end())
    return false;
  Pooled &block = found->second;
  if (block.pool->uses > 0 && !block.is_used) {
    block.pool->free[block.size].push_back(pointer);
#if WEIR_TORCH_2_14
    history_.pooled_free(pointer);
#endif
    return true;
  }
  pooled_.erase(found);
  has_pools_.store(!pooled_.empty(), std::memory_order_relaxed);
  return false;
}

void PinnedAllocator::release_pool(c10::MempoolId_t pool) {
  if (is_forked_.load(std::memory_order_relaxed))
    return;
  std::vector<void *> unused;
  bool is_known;
  {
    std::lock_guard<std::mutex> lock(pools_mutex_);
    auto found = pools_.find(pool);
    is_known = found != pools_.end();
    if (is_known && --found->second->uses > 0)
      return;
    if (is_known) {
      for (auto &[size, free] : found->second->free)
        unused.insert(unused.end(), free.begin(), free.end());
      for (void *pointer : unused)
        pooled_.erase(pointer);
      found->second->free.clear();
      pools_.erase(found);
      has_pools_.store(!pooled_.empty(), std::memory_order_relaxed);
    }
  }
  if (!is_known && before_)
    try { // which throws if it does not know the pool either, and destructors call this
      before_->release_pool(pool);
    } catch (const std::exception &) {
    }
  for (void *pointer : unused)
    delete_pointer(pointer);
}

// ---- History ----

#if WEIR_TORCH_2_14
// The allocator from before records the memory that it still has.
void PinnedAllocator::record_history(bool enabled, PinnedHistory::CreateContextFn recorder, size_t most,
                                     PinnedHistory::RecordContext when, bool clear) {
  if (before_)
    before_->record_history(enabled, recorder, most, when, clear);
  std::lock_guard<std::mutex> lock(start_mutex_);
  history_.record(enabled, recorder, most, when, clear);
  records_history_.store(enabled, std::memory_order_relaxed);
  std::lock_guard<std::mutex> pools_lock(pools_mutex_);
  std::vector<void *> kept;
  for (const auto &[id, pool] : pools_)
    for (const auto &[size, free] : pool->free)
      kept.insert(kept.end(), free.begin(), free.end());
  if (weir_host_allocator *host = host_.load(std::memory_order_acquire))
    check(history_.follow(host, kept));
  choose_path();
}

bool PinnedAllocator::is_history_enabled() const { return history_.is_on(); }

std::vector<PinnedHistory::Segment> PinnedAllocator::get_segments() {
  std::vector<PinnedHistory::Segment> all = before_ ? before_->get_segments() : std::vector<PinnedHistory::Segment>();
  for (PinnedHistory::Segment &segment : history_.segments())
    all.push_back(std::move(segment));
  return all;
}

std::vector<PinnedHistory::TraceEntry> PinnedAllocator::get_traces() {
  std::vector<PinnedHistory::TraceEntry> all =
      before_ ? before_->get_traces() : std::vector<PinnedHistory::TraceEntry>();
  for (PinnedHistory::TraceEntry &entry : history_.traces())
    all.push_back(std::move(entry));
  std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.time_.t_ < b.time_.t_; });
  return all;
}

void PinnedAllocator::record_external_register(void *pointer, size_t bytes) { history_.add_external(pointer, bytes); }

void PinnedAllocator::record_external_unregister(void *pointer) { history_.remove_external(pointer); }
#endif

// ---- Statistics ----

at::HostStats PinnedAllocator::get_stats() {
  at::HostStats to;
  weir_host_stats from;
  weir_host_stats_init(&from);
  weir_host_allocator *host = host_.load(std::memory_order_acquire);
  if (!host)
    return to;
  check(weir_host_get_stats(host, &from));
  to.active_requests = stat_of(from.active_requests);
  to.active_bytes = stat_of(from.active_bytes);
  to.allocations = stat_of(from.allocations);
  to.allocated_bytes = stat_of(from.allocated_bytes);
  to.host_alloc_time = time_of(from.host_alloc_time);
  to.host_free_time = time_of(from.host_free_time);
  to.num_host_alloc = from.num_host_alloc;
  to.num_host_free = from.num_host_free;
  return to;
}

void PinnedAllocator::reset_accumulated_stats() {
  if (weir_host_allocator *host = host_.load(std::memory_order_acquire))
    check(weir_host_reset_accumulated_stats(host));
}

void PinnedAllocator::reset_peak_stats() {
  if (weir_host_allocator *host = host_.load(std::memory_order_acquire))
    check(weir_host_reset_peak_stats(host));
}

} // namespace weir_torch
#endif
