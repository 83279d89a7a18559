// Memory: allocation and free, limits, statistics, and out of memory.
#include "allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "errors.h"
#include "phases.h"
#include "profiler.h"
#include "settings.h"

namespace weir_torch {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

namespace {

// A deleter is a plain function, so it gets the allocator from here.
Allocator *instance = nullptr;

// Runs PyTorch's callbacks that free memory when it runs short, such as memory that other processes have returned.
int run_free_callbacks(void *, int) {
  bool freed = false;
  for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    try {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    } catch (const std::exception &error) {
      TORCH_WARN("weir: the callback ", name, " to free memory failed: ", error.what());
    }
  }
  return freed;
}

bool is_bypassed() {
  const char *value = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  return value && std::strcmp(value, "1") == 0;
}

c10::Device device_of(int index) { return {c10::DeviceType::CUDA, static_cast<DeviceIndex>(index)}; }

Stat stat_of(const weir_stat &from) {
  Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

StatArray stats_of(const weir_stat (&from)[WEIR_STAT_KINDS]) {
  return {stat_of(from[WEIR_STAT_ALL]), stat_of(from[WEIR_STAT_SMALL_POOL]), stat_of(from[WEIR_STAT_LARGE_POOL])};
}

// After a call of the CUDA runtime, the thread has a current context: that of its device. Libraries such as cuBLAS rely
// on this, and with PyTorch's own allocator every thread that gets memory from the driver has a context. Weir calls the
// driver directly, which would leave a thread without one. So before Weir queries the context, the runtime sets it.
bool has_one_device = false;
thread_local int device_of_thread = -1; // the device of its last allocation if there are several; -1 if there was none

// A thread that has not chosen a device is on the first one, but may only free memory of another. An unused context
// takes hundreds of megabytes. So a context is created only for allocations, and otherwise used only if it exists.
bool may_have_context(DeviceIndex device) {
  return has_one_device || device == device_of_thread || c10::cuda::hasPrimaryContext(device);
}

int set_context(void *) {
  try { // Weir is C: no exception may pass through it
    DeviceIndex device = 0;
    if (!c10::cuda::GetDevice(&device) && may_have_context(device) && !cudaSetDevice(device))
      return 1;
    (void)cudaGetLastError(); // Weir's call fails then, and reports the error
  } catch (const std::exception &) {
  }
  return 0;
}

bool is_set(weir_allocator *allocator, const char *key) {
  char value[8] = "";
  return !weir_allocator_setting(allocator, key, value, sizeof value, nullptr) && !std::strcmp(value, "True");
}

// The end of out-of-memory texts, as PyTorch's allocator writes it.
constexpr char advice[] =
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";

} // namespace

Allocator::Allocator() {
  instance = this;
  follow_settings_of_torch([this] { apply_settings(); });
}

Allocator &the_allocator() {
  static Allocator *allocator = new Allocator();
  return *allocator;
}

// ---- Start and settings ----

void Allocator::init(int device_count) {
  std::lock_guard<std::mutex> lock(init_mutex_);
  if (weir_ || device_count < 1) {
    TORCH_CHECK(device_count <= device_count_, "weir: the allocator was initialized for ", device_count_,
                " devices, and cannot be initialized again for ", device_count);
    return;
  }
  weir_driver *driver = nullptr;
  weir_allocator *allocator = nullptr;
  check(weir_driver_open_cuda(&driver));
  weir_cu_result r = driver->Init(driver, 0);
  TORCH_CHECK(r == WEIR_CU_SUCCESS, "weir: cuInit: ", weir_cu_result_string(r));
  if (const char *timing = std::getenv("WEIR_DRIVER_TIMING"); timing && *timing) {
    check(weir_driver_open_timing(driver, &timing_));
    driver = timing_;
  }
  has_one_device = device_count == 1;
  check(weir_driver_open_contexts(driver, set_context, nullptr, &driver));

  weir_allocator_options options;
  weir_allocator_options_init(&options);
  std::string conf = settings_of_torch();
  options.conf = conf.c_str();
  options.devices = device_count;
  options.ipc_version = WEIR_TORCH_2_13 ? 3 : 2;
  options.owner = "PyTorch";
  options.advice = advice;
  options.scopes_as_pytorch = 1;
  check(weir_allocator_create(driver, &options, &allocator));
  weir_observer observer;
  weir_observer_init(&observer);
  observer.free_memory = run_free_callbacks;
  check(weir_allocator_attach(allocator, &observer));
  check(weir_allocator_set_caching(allocator, wants_caching_ && !is_bypassed()));
  if (const char *more = std::getenv("WEIR_ALLOC_CONF"))
    check(weir_allocator_configure(allocator, more));
  {
    std::lock_guard<std::mutex> settings(settings_mutex_);
    settings_ = seen_settings_ = conf;
    moves_pages_ = is_set(allocator, "moving_pages");
  }
  max_split_size_ = static_cast<int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
  history_.init(allocator, device_count);
  int is_recorded = 0;
  check(weir_history_is_on(allocator, &is_recorded));
  if (is_recorded) // WEIR_RECORD
    follow_ranges();
  driver_ = driver;
  device_count_ = device_count;
  weir_ = allocator;
}

bool Allocator::initialized() { return weir_ != nullptr; }

// What WEIR_ALLOC_CONF says remains in effect until PyTorch changes the same key. If it says moving_pages:True, turning
// PyTorch's expandable segments off turns that off too, and turning them on again restores it.
void Allocator::apply_settings() {
  if (!weir_)
    return;
  std::string conf = settings_of_torch();
  std::lock_guard<std::mutex> lock(settings_mutex_);
  if (conf == seen_settings_)
    return;
  seen_settings_ = conf;
  std::string changed = changed_settings(settings_, conf);
  if (moves_pages_ && has_setting(changed, "expandable_segments:True"))
    changed += ",moving_pages:True";
  if (changed.empty() || !weir_allocator_configure(weir_, changed.c_str()))
    settings_ = conf;
  else {
    TORCH_WARN("weir: ", weir_last_error(), ". The previous settings remain in effect.");
  }
}

bool Allocator::uses_expandable_segments() const {
  return weir_ ? is_set(weir_, "expandable_segments")
               : c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
}

double Allocator::getMemoryFraction(DeviceIndex device) {
  check_device(device);
  double fraction = 1;
  check(weir_allocator_get_fraction(weir_, device, &fraction));
  return fraction;
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex device) {
  check_device(device);
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
  check(weir_allocator_set_fraction(weir_, device, fraction));
}

void Allocator::enable(bool value) {
  wants_caching_ = value;
  if (weir_)
    check(weir_allocator_set_caching(weir_, value && !is_bypassed()));
}

bool Allocator::isEnabled() const {
  int is_caching = wants_caching_ && !is_bypassed();
  if (weir_)
    check(weir_allocator_is_caching(weir_, &is_caching));
  return is_caching != 0;
}

// Much of PyTorch checks this name to know what an allocator supports. This one supports what the native one does.
std::string Allocator::name() { return "native"; }

// ---- Errors ----

void Allocator::check(weir_status status) const {
  if (C10_UNLIKELY(status))
    throw_status(status);
}

void Allocator::check_device(DeviceIndex device) const {
  TORCH_CHECK(0 <= device && device < device_count_, "Invalid device argument ", static_cast<int>(device),
              ": did you call init?");
}

void Allocator::fail_alloc(weir_status status, DeviceIndex device, size_t bytes) {
  TORCH_CHECK(weir_, "Allocator not initialized for device ", static_cast<int>(device), ": did you call init?");
  if (status != WEIR_ERROR_OUT_OF_MEMORY)
    throw_status(status);
  std::string text = last_error();
  weir_shortage shortage;
  weir_shortage_init(&shortage);
  bool is_known = !weir_last_shortage(&shortage);
  if (is_profiled()) {
    DeviceStats stats = getDeviceStats(device);
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), static_cast<size_t>(stats.allocated_bytes[0].current),
                                     static_cast<size_t>(stats.reserved_bytes[0].current), device_of(device));
  }
  if (is_known && shortage.is_rejection)
    notify_of_rejection(shortage);
  else if (is_known)
    for (const auto &observer : copy_of(observers_))
      observer(device, shortage.wanted, shortage.limit, shortage.device_free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

void Allocator::attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> lock(observers_mutex_);
  observers_.push_back(std::move(observer));
}

#if WEIR_TORCH_2_12
void Allocator::attachOomRejectionObserver(cca::OomRejectionObserver observer) {
  if (!weir_) // PyTorch's own allocator passes it to the existing devices, of which there are none yet
    return;
  std::lock_guard<std::mutex> lock(observers_mutex_);
  rejection_observers_.push_back(std::move(observer));
}
#endif

void Allocator::notify_of_rejection([[maybe_unused]] const weir_shortage &shortage) {
#if WEIR_TORCH_2_12
  for (const auto &observer : copy_of(rejection_observers_))
    try {
      observer(static_cast<DeviceIndex>(shortage.device), shortage.wanted, shortage.reserved, shortage.total);
    } catch (const std::exception &error) {
      TORCH_WARN("weir: an observer of rejected allocations failed: ", error.what());
    }
#endif
}

// ---- Allocating ----

static inline void tell_python(void *pointer) {
  const c10::impl::PyInterpreter *python = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(python && pointer))
    (*python)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

// With one device there is no need to query it.
DeviceIndex Allocator::current_device() const {
  DeviceIndex device = 0;
  if (C10_UNLIKELY(device_count_ != 1))
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

inline DeviceIndex Allocator::device_to_use() const {
  DeviceIndex device = current_device();
  if (C10_UNLIKELY(device_count_ != 1))
    device_of_thread = device;
  return device;
}

inline void *Allocator::alloc(DeviceIndex device, size_t bytes, cudaStream_t stream) {
  void *pointer = nullptr;
  if (C10_UNLIKELY(history_.is_watched() || is_profiled()))
    return alloc_watched(device, bytes, stream);
  weir_status status = weir_allocator_alloc(weir_, device, bytes, stream, &pointer);
  if (C10_UNLIKELY(status))
    fail_alloc(status, device, bytes);
  tell_python(pointer);
  return pointer;
}

void *Allocator::alloc_watched(DeviceIndex device, size_t bytes, cudaStream_t stream) {
  void *pointer = nullptr;
  weir_status status;
  {
    Operation operation(bytes ? history_.gather(RecordContext::STATE) : nullptr);
    status = weir_allocator_alloc(weir_, device, bytes, stream, &pointer);
  }
  if (C10_UNLIKELY(status))
    fail_alloc(status, device, bytes);
  tell_profiler(pointer);
  tell_python(pointer);
  return pointer;
}

// Of a new block; NULL if there is none.
void Allocator::tell_profiler(void *pointer) {
  weir_pointer_info block;
  block.size = sizeof block;
  if (pointer && is_profiled() && !weir_allocator_describe(weir_, pointer, &block))
    report_to_profiler(pointer, block.device, static_cast<int64_t>(block.bytes));
}

void Allocator::report_to_profiler(void *pointer, int device, int64_t bytes) {
  weir_allocator_stats stats;
  stats.size = sizeof stats;
  check(weir_allocator_get_stats(weir_, device, &stats));
  c10::reportMemoryUsageToProfiler(pointer, bytes, static_cast<size_t>(stats.allocated_bytes[WEIR_STAT_ALL].current),
                                   static_cast<size_t>(stats.reserved_bytes[WEIR_STAT_ALL].current), device_of(device));
}

void *Allocator::raw_alloc(size_t bytes) {
  DeviceIndex device = device_to_use();
  return alloc(device, bytes, c10::cuda::getCurrentCUDAStream(device));
}

void *Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return alloc(device_to_use(), bytes, stream);
}

c10::DataPtr Allocator::allocate(size_t bytes) {
  DeviceIndex device = device_to_use();
  void *pointer = alloc(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  return {pointer, pointer, &delete_pointer, device_of(device)};
}

#if WEIR_TORCH_2_13
c10::DataPtr Allocator::allocateWithAddress(size_t bytes, void *address) {
  constexpr uintptr_t unit = 512;
  TORCH_CHECK(reinterpret_cast<uintptr_t>(address) % unit == 0, "The address ", address,
              " of an allocation must be aligned to kMinBlockSize, which is ", unit, " bytes");
  DeviceIndex device = device_to_use();
  weir_status status;
  {
    Operation operation(history_.gather(RecordContext::STATE));
    status = weir_allocator_alloc_at(weir_, device, bytes, c10::cuda::getCurrentCUDAStream(device), address);
  }
  TORCH_CHECK(status != WEIR_ERROR_BAD_STATE, "Could not allocate CUDA storage at exact address ", address);
  check(status);
  tell_profiler(address);
  tell_python(address);
  return {address, address, &delete_pointer, device_of(device)};
}
#endif

c10::DeleterFnPtr Allocator::raw_deleter() const { return &delete_pointer; }

void Allocator::copy_data(void *to, const void *from, std::size_t bytes) const {
  C10_CUDA_CHECK(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c10::cuda::getCurrentCUDAStream(current_device())));
}

// ---- Freeing ----

inline void Allocator::free(void *pointer) {
  if (C10_UNLIKELY(!pointer))
    return;
  const c10::impl::PyInterpreter *python = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(python))
    (*python)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
  if (C10_UNLIKELY(history_.is_watched() || is_profiled())) {
    free_watched(pointer);
    return;
  }
  if (C10_UNLIKELY(history_.remembers()))
    history_.forget(pointer);
  weir_status status = weir_allocator_free(weir_, pointer);
  if (C10_UNLIKELY(status))
    fail_free(status);
}

// In a forked child memory belongs to the parent. The native allocator's free succeeds there without freeing anything
// for the parent, and a deleter that throws would end the process.
void Allocator::fail_free(weir_status status) const {
  if (status != WEIR_ERROR_BAD_FORK)
    throw_status(status);
}

void Allocator::free_watched(void *pointer) {
  weir_pointer_info block;
  block.size = sizeof block;
  bool reports = is_profiled() && !weir_allocator_describe(weir_, pointer, &block);
  {
    Operation operation(history_.gather(RecordContext::ALL));
    weir_status status = weir_allocator_free(weir_, pointer);
    if (C10_UNLIKELY(status))
      fail_free(status);
  }
  if (reports)
    report_to_profiler(pointer, block.device, -static_cast<int64_t>(block.bytes));
}

void Allocator::delete_pointer(void *pointer) { instance->free(pointer); }

void Allocator::raw_delete(void *pointer) { free(pointer); }

// Memory that is owned elsewhere (by another process or library) has its own deleter, and is ignored here.
void Allocator::recordStream(const c10::DataPtr &pointer, c10::cuda::CUDAStream stream) {
  if (!pointer.get() || pointer.get_deleter() != &delete_pointer)
    return;
  check(weir_allocator_record_stream(weir_, pointer.get(), stream.stream()));
}

void *Allocator::getBaseAllocation(void *pointer, size_t *bytes) {
  void *base = nullptr;
  size_t size = 0;
  weir_status status = weir_allocator_base(weir_, pointer, &base, &size);
  TORCH_CHECK(status != WEIR_ERROR_NOT_SUPPORTED,
              "Tensors allocated with expandable_segments:True cannot be shared between processes. Consider using"
              " expandable_segments:False in data loading workers via"
              " torch.cuda.memory._set_allocator_settings('expandable_segments:False')");
  check(status);
  if (bytes)
    *bytes = size;
  return base;
}

// ---- Statistics ----

DeviceStats Allocator::getDeviceStats(DeviceIndex device) {
  check_device(device);
  weir_allocator_stats from;
  from.size = sizeof from;
  check(weir_allocator_get_stats(weir_, device, &from));
  DeviceStats to;
  to.allocation = stats_of(from.allocation);
  to.segment = stats_of(from.segment);
  to.active = stats_of(from.active);
  to.inactive_split = stats_of(from.inactive_split);
  to.allocated_bytes = stats_of(from.allocated_bytes);
  to.reserved_bytes = stats_of(from.reserved_bytes);
  to.active_bytes = stats_of(from.active_bytes);
  to.inactive_split_bytes = stats_of(from.inactive_split_bytes);
  to.requested_bytes = stats_of(from.requested_bytes);
  to.num_alloc_retries = from.num_alloc_retries;
  to.num_ooms = from.num_ooms;
  to.oversize_allocations = stat_of(from.oversize_allocations);
  to.oversize_segments = stat_of(from.oversize_segments);
  to.num_sync_all_streams = from.num_sync_all_streams;
  to.num_device_alloc = from.num_device_alloc;
  to.num_device_free = from.num_device_free;
  to.max_split_size = max_split_size_;
#if WEIR_TORCH_2_12
  to.num_oom_rejections = from.num_oom_rejections;
#endif
#if WEIR_TORCH_2_13
  size_t count = 0;
  check(weir_allocator_pools(weir_, device, 1, nullptr, 0, &count));
  std::vector<weir_pool_id> pools(count);
  check(weir_allocator_pools(weir_, device, 1, pools.data(), pools.size(), &count));
  pools.resize(std::min(count, pools.size()));
  for (const weir_pool_id &pool : pools) {
    weir_stat reserved[WEIR_STAT_KINDS];
    if (!weir_pool_reserved_bytes(weir_, device, pool, reserved))
      to.reserved_bytes_by_private_pools[{pool.first, pool.second}] = stats_of(reserved);
  }
#endif
  return to;
}

void Allocator::resetAccumulatedStats(DeviceIndex device) {
  check_device(device);
  check(weir_allocator_reset_accumulated_stats(weir_, device));
}

void Allocator::resetPeakStats(DeviceIndex device) {
  check_device(device);
  check(weir_allocator_reset_peak_stats(weir_, device));
}

} // namespace weir_torch
