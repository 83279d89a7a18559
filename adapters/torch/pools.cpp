// Private pools of graphs and of MemPool: scopes, allocators and checkpoints.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "allocator.h"
#include "errors.h"

namespace weir_torch {

namespace {

weir_pool_id id_of(MempoolId_t pool) { return {pool.first, pool.second}; }

struct Checkpoint : cca::AllocatorState {
  Checkpoint(weir_checkpoint *state, weir_pool_id pool) : state(state), pool(pool) {}
  ~Checkpoint() override { weir_checkpoint_destroy(state); }
  weir_checkpoint *state;
  weir_pool_id pool;
};

// Weir calls it with a lock held, so no exception may escape.
int filter_stream(void *filter, weir_cu_stream stream) {
  try {
    return (*static_cast<std::function<bool(cudaStream_t)> *>(filter))(stream);
  } catch (const std::exception &error) {
    TORCH_WARN_ONCE("weir: the filter of a pool failed: ", error.what());
    return 0;
  }
}

} // namespace

// ---- Scopes ----

static thread_local bool next_is_of_thread = false;

void next_scope_is_of_thread(bool is) { next_is_of_thread = is; }

// PyTorch gives a scope a function of the stream, which does not state what it selects by. That of a thread's scope is
// known by the call that opens it (weir_torch_next_scope): then Weir needs neither the function nor a lock. All others
// keep their function.
//
// PyTorch before 2.13 does not state which scopes are captures. A graph opens its scope before its capture begins, for
// streams in the capture: such a scope does not accept the current stream yet, while others accept their own thread's.
void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) {
  check_device(device);
  auto scope = std::make_unique<Scope>();
  scope->key = {device, pool};
  scope->filter = std::move(filter);
  scope->thread = std::this_thread::get_id();
  scope->is_of_thread = next_is_of_thread;
#if WEIR_TORCH_2_13
  scope->is_capture = false;
#else
  scope->is_capture = !scope->is_of_thread && !filter_stream(&scope->filter, c10::cuda::getCurrentCUDAStream(device));
#endif
  weir_status status =
      weir_pool_begin(weir_, device, id_of(pool), scope->is_of_thread ? nullptr : filter_stream, &scope->filter);
  TORCH_CHECK(status != WEIR_ERROR_BAD_STATE, "beginAllocateToPool: already recording to mempool_id");
  check(status);
  if (scope->is_capture && (status = weir_allocator_begin_capture(weir_, device))) {
    (void)weir_pool_end(weir_, device, id_of(pool)); // Weir must not call the filter of a destroyed scope
    (void)weir_pool_release(weir_, device, id_of(pool));
    throw_status(status);
  }
  std::lock_guard<std::mutex> lock(scopes_mutex_);
  scopes_.push_back(std::move(scope));
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  std::unique_ptr<Scope> scope; // destroyed after Weir has removed it
  PoolKey key{device, pool};
  {
    std::lock_guard<std::mutex> lock(scopes_mutex_);
    // Several threads may have a scope of one pool, and each closes its own.
    auto here = std::this_thread::get_id();
    auto at = std::find_if(scopes_.rbegin(), scopes_.rend(),
                           [&](const auto &s) { return s->key == key && (!s->is_of_thread || s->thread == here); });
    if (at == scopes_.rend())
      at = std::find_if(scopes_.rbegin(), scopes_.rend(), [&](const auto &s) { return s->key == key; });
    TORCH_CHECK(at != scopes_.rend(), "endAllocatePool: not currently recording to mempool_id");
    scope = std::move(*at);
    scopes_.erase(std::next(at).base());
  }
  weir_status status = weir_pool_end(weir_, device, id_of(pool));
  if (status != WEIR_ERROR_BAD_STATE || !scope->is_of_thread) // which may have ended, and its scope with it
    check(status);
  if (scope->is_capture)
    check(weir_allocator_end_capture(weir_, device));
}

#if WEIR_TORCH_2_13
void Allocator::markCaptureBegin(DeviceIndex device) {
  check_device(device);
  check(weir_allocator_begin_capture(weir_, device));
}

void Allocator::markCaptureEnd(DeviceIndex device) {
  check_device(device);
  check(weir_allocator_end_capture(weir_, device));
}
#endif

// ---- Uses and properties of a pool ----

void *Allocator::source_alloc(void *context, size_t bytes, int, weir_cu_stream) {
  auto *source = static_cast<Source *>(context);
  try {
    void *pointer = source->allocator->raw_alloc(bytes);
    if (pointer) {
      std::lock_guard<std::mutex> lock(source->owner->sources_mutex_);
      source->order[reinterpret_cast<uintptr_t>(pointer)] = source->next++;
    }
    return pointer;
  } catch (const std::exception &error) {
    TORCH_WARN("weir: the allocator of a pool failed to allocate: ", error.what());
    return nullptr;
  }
}

void Allocator::source_free(void *context, void *pointer, size_t, int, weir_cu_stream) {
  auto *source = static_cast<Source *>(context);
  try {
    source->allocator->raw_delete(pointer);
  } catch (const std::exception &error) {
    TORCH_WARN("weir: the allocator of a pool failed to free memory: ", error.what());
  }
  std::lock_guard<std::mutex> lock(source->owner->sources_mutex_);
  source->order.erase(reinterpret_cast<uintptr_t>(pointer));
}

// A pool's allocator lives as long as the pool has memory from it, which may be long after the last use of the pool.
void Allocator::source_end(void *context) {
  auto *source = static_cast<Source *>(context);
  {
    std::lock_guard<std::mutex> lock(source->owner->sources_mutex_);
    auto at = source->owner->sources_.find(source->key);
    if (at != source->owner->sources_.end() && at->second == source)
      source->owner->sources_.erase(at);
  }
  delete source;
}

void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool, PoolAllocator allocator) {
  check_device(device);
  if (!allocator) {
    check(weir_pool_create(weir_, device, id_of(pool), nullptr));
    return;
  }
  auto source = std::make_unique<Source>();
  source->allocator = std::move(allocator);
  source->key = {device, pool};
  source->owner = this;
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = source_alloc;
  options.free = source_free;
  options.destroy = source_end;
  options.context = source.get();
  check(weir_pool_create(weir_, device, id_of(pool), &options));
  std::lock_guard<std::mutex> lock(sources_mutex_);
  sources_[source->key] = source.get();
  source.release(); // source_end deletes it
}

// The order of creation of a segment from a pool's own allocator; -1 for all others.
int32_t Allocator::order_of(int device, MempoolId_t pool, uintptr_t address) {
  std::lock_guard<std::mutex> lock(sources_mutex_);
  auto source = sources_.find({device, pool});
  if (source == sources_.end())
    return -1;
  auto at = source->second->order.find(address);
  return at == source->second->order.end() ? -1 : at->second;
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  weir_status status = weir_pool_release(weir_, device, id_of(pool));
  if (status != WEIR_ERROR_BAD_FORK) // the exit of a forked child releases the pool; destructors call this
    check(status);
}

// The destructor of a MemPool calls this for the pool, also in a forked child, and an exception there would end the
// process.
void Allocator::emptyCache(MempoolId_t pool) {
  if (!weir_)
    return;
  Operation operation(history_.gather(RecordContext::ALL));
  weir_status status = weir_allocator_empty_pool(weir_, id_of(pool));
  if (!pool.first && !pool.second)
    check(status);
  else if (status && status != WEIR_ERROR_BAD_FORK)
    TORCH_WARN("weir: cached memory of a pool was not released: ", last_error());
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  int count = 0;
  return weir_pool_use_count(weir_, device, id_of(pool), &count) ? 0 : count;
}

// PyTorch resets this at the end of every MemPool, even if the pool no longer exists.
void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) {
  check_device(device);
  weir_status status = weir_pool_set_use_on_oom(weir_, device, id_of(pool), use_on_oom);
  if (use_on_oom)
    check(status);
}

void Allocator::setNoSplit(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(weir_pool_set_no_split(weir_, device, id_of(pool), 1));
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                         const std::unordered_set<void *> &expected) {
  check_device(device);
  std::vector<void *> pointers(expected.begin(), expected.end());
  int equal = 0;
  check(weir_pool_has_exactly(weir_, device, id_of(pool), pointers.data(), pointers.size(), &equal));
  return equal != 0;
}

// ---- Checkpoints ----

// A checkpoint can be taken or restored only while no other stream uses the pool's blocks. PyTorch's own allocator
// drops the uses recorded while allocations went to a pool; here they are waited for.
template <typename Call>
static weir_status when_others_are_done(weir_allocator *weir, int device, weir_pool_id pool, Call call) {
  weir_status status = call();
  return status == WEIR_ERROR_BAD_STATE && !weir_pool_wait(weir, device, pool) ? call() : status;
}

std::shared_ptr<cca::AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  weir_checkpoint *state = nullptr;
  weir_pool_id id = id_of(pool);
  check(when_others_are_done(weir_, device, id, [&] { return weir_pool_checkpoint(weir_, device, id, &state); }));
  return std::make_shared<Checkpoint>(state, id);
}

cca::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) {
  check_device(device);
  auto *checkpoint = dynamic_cast<Checkpoint *>(state.get());
  TORCH_CHECK(checkpoint, "Expected PrivatePoolState");
  weir_checkpoint_delta changed;
  weir_checkpoint_delta_init(&changed);
  {
    Operation operation(history_.gather(RecordContext::STATE), Operation::frees_apart);
    check(when_others_are_done(weir_, device, checkpoint->pool,
                               [&] { return weir_pool_restore(weir_, checkpoint->state, &changed); }));
  }
  cca::CheckpointDelta delta;
  delta.ptrs_freed.assign(changed.freed, changed.freed + changed.freed_count);
  if (history_.remembers())
    for (void *pointer : delta.ptrs_freed)
      history_.forget(pointer);
  for (size_t i = 0; i < changed.allocated_count; i++)
    delta.dataptrs_allocd.emplace_back(changed.allocated[i], changed.allocated[i], &delete_pointer,
                                       c10::Device(c10::DeviceType::CUDA, device));
  weir_checkpoint_delta_clear(&changed);
  return delta;
}

} // namespace weir_torch
