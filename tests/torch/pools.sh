#!/bin/sh
# pools.sh ADAPTERS LIBRARY INCLUDE: scopes of threads and of captures, in PyTorch's order; and the end of a MemPool, as
# its destructor calls the adapter: beside another pool that is in use, beside a capture, after a fork, and on a device
# that has failed. A stand-in for PyTorch has what the adapter calls.
set -eu
adapters=$1 library=$2 include=$3
if ! command -v g++ >/dev/null; then
  echo "waived: there is no g++"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/c10/cuda" "$work/c10/util"
: >"$work/c10/cuda/CUDAFunctions.h"
: >"$work/c10/util/Exception.h"
cat >"$work/allocator.h" <<'END'
#pragma once
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>
#include "weir/weir.h"

inline int warnings;
#define TORCH_WARN(...) (void)warnings++
#define TORCH_WARN_ONCE(...) (void)warnings++
#define TORCH_CHECK(condition, text)                                                                                   \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      throw std::runtime_error(text);                                                                                  \
  } while (0)
typedef weir_cu_stream cudaStream_t;

namespace c10 {
using DeviceIndex = int;
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;
enum class DeviceType { CUDA };
struct Device {
  Device(DeviceType, int) {}
};
namespace cuda {
inline cudaStream_t current_stream;
inline cudaStream_t getCurrentCUDAStream(int) { return current_stream; }
}
}
namespace cca {
struct AllocatorState {
  virtual ~AllocatorState() = default;
};
struct Pointer {
  Pointer(void *, void *, void (*)(void *), c10::Device) {}
};
struct CheckpointDelta {
  std::vector<void *> ptrs_freed;
  std::vector<Pointer> dataptrs_allocd;
};
}
namespace weir_torch {
using c10::DeviceIndex;
using c10::MempoolId_t;
[[noreturn]] inline void throw_status(weir_status) { throw std::runtime_error(weir_last_error()); }
inline std::string last_error() { return weir_last_error(); }
enum class RecordContext { STATE, ALL };
struct History {
  int gather(RecordContext) { return 0; }
  bool remembers() { return false; }
  void forget(void *) {}
};
struct Operation {
  enum { frees_apart };
  explicit Operation(int, int = 0) {}
  ~Operation() {}
};
struct Raw {
  void *raw_alloc(size_t) { return nullptr; }
  void raw_delete(void *) {}
};
using PoolAllocator = std::shared_ptr<Raw>;
void next_scope_is_of_thread(bool is);
struct Allocator {
  using PoolKey = std::pair<int, MempoolId_t>;
  struct Scope {
    PoolKey key;
    std::function<bool(cudaStream_t)> filter;
    std::thread::id thread;
    bool is_of_thread;
    bool is_capture;
  };
  struct Source {
    PoolAllocator allocator;
    std::unordered_map<uintptr_t, int32_t> order;
    int32_t next = 0;
    PoolKey key;
    Allocator *owner = nullptr;
  };
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter);
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool);
  void releasePool(DeviceIndex device, MempoolId_t pool);
  void emptyCache(MempoolId_t pool);
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool);
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, PoolAllocator allocator = nullptr);
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom);
  void setNoSplit(DeviceIndex device, MempoolId_t pool);
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool, const std::unordered_set<void *> &expected);
  std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool);
  cca::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<cca::AllocatorState> state);
  void check(weir_status status) const {
    if (status)
      throw_status(status);
  }
  void check_device(DeviceIndex) const {}
  int32_t order_of(int device, MempoolId_t pool, uintptr_t address);
  static void delete_pointer(void *) {}
  static void source_end(void *source);
  static void *source_alloc(void *source, size_t bytes, int device, weir_cu_stream stream);
  static void source_free(void *source, void *pointer, size_t bytes, int device, weir_cu_stream stream);
  weir_allocator *weir_ = nullptr;
  History history_;
  std::mutex scopes_mutex_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::mutex sources_mutex_;
  std::map<PoolKey, Source *> sources_;
};
}
END
cat >"$work/errors.h" <<'END'
END
cat >"$work/main.cpp" <<'END'
#include <sys/wait.h>
#include <unistd.h>
#include "allocator.h"
using namespace weir_torch;
static unsigned long long reserved();
static void expect(bool is_true, int line) {
  if (!is_true) {
    std::printf("line %d: %s (%llu MiB reserved)\n", line, weir_last_error(), reserved());
    std::exit(1);
  }
}
#define EXPECT(condition) expect(condition, __LINE__)

constexpr size_t mib = size_t{1} << 20;
static Allocator adapter;
static weir_driver *driver;

// Like PyTorch's: a pool that exists as long as this does.
struct MemPool {
  MempoolId_t id;
  explicit MemPool(unsigned long long number) : id{0, number} { adapter.createOrIncrefPool(0, id); }
  ~MemPool() {
    adapter.setUseOnOOM(0, id, false);
    adapter.releasePool(0, id);
    adapter.emptyCache(id);
  }
};

// torch.cuda.use_mem_pool, and what a graph does.
struct Use {
  MempoolId_t id;
  explicit Use(const MemPool &pool, bool is_capture = false) : id(pool.id) {
    adapter.beginAllocateToPool(0, id, [=](cudaStream_t) { return !is_capture; });
  }
  ~Use() {
    adapter.endAllocateToPool(0, id);
    adapter.releasePool(0, id);
  }
};

static void *get() {
  void *pointer;
  EXPECT(!weir_allocator_alloc(adapter.weir_, 0, 30 * mib, nullptr, &pointer));
  return pointer;
}

static unsigned long long reserved() {
  weir_allocator_stats stats;
  stats.size = sizeof stats;
  EXPECT(!weir_allocator_get_stats(adapter.weir_, 0, &stats));
  return (unsigned long long)stats.reserved_bytes[WEIR_STAT_ALL].current / mib;
}

static std::unique_ptr<MemPool> filled(unsigned long long number) {
  auto pool = std::make_unique<MemPool>(number);
  Use use(*pool);
  EXPECT(!weir_allocator_free(adapter.weir_, get()));
  return pool;
}

/* The scope that torch._C._cuda_beginAllocateCurrentThreadToPool opens. */
static int asked;
static void begin_of_thread(const MemPool &pool) {
  auto thread = std::this_thread::get_id();
  struct Guard {
    Guard() { next_scope_is_of_thread(true); }
    ~Guard() { next_scope_is_of_thread(false); }
  } guard;
  adapter.beginAllocateToPool(0, pool.id, [=](cudaStream_t) {
    asked++;
    return std::this_thread::get_id() == thread;
  });
}

static void end(const MemPool &pool) {
  adapter.endAllocateToPool(0, pool.id);
  adapter.releasePool(0, pool.id);
}

/* Allocations of this thread come from the pool; NULL stands for the default one. */
static bool selects(const MemPool *pool, cudaStream_t stream = nullptr) {
  void *pointer;
  weir_pointer_info info;
  info.size = sizeof info;
  EXPECT(!weir_allocator_alloc(adapter.weir_, 0, 512, stream, &pointer));
  EXPECT(!weir_allocator_describe(adapter.weir_, pointer, &info));
  EXPECT(!weir_allocator_free(adapter.weir_, pointer));
  return info.pool.second == (pool ? pool->id.second : 0);
}

static void in_another_thread(void (*run)(const MemPool &), const MemPool &pool) {
  std::thread thread([&] { run(pool); });
  thread.join();
}

static bool is_refused(void (*call)(const MemPool &), const MemPool &pool) {
  try {
    call(pool);
    return false;
  } catch (const std::runtime_error &) {
    return true;
  }
}

static void test_scopes() {
  MemPool outer(11), graph(12), inner(13);
  weir_cu_stream stream;
  weir_cu_graph made;
  begin_of_thread(outer);
  EXPECT(selects(&outer) && asked == 0);
  EXPECT(is_refused(begin_of_thread, outer));
  in_another_thread([](const MemPool &) { EXPECT(selects(nullptr)); }, outer);
  in_another_thread( /* two threads have a scope of one pool, and each closes its own */
      [](const MemPool &pool) {
        begin_of_thread(pool);
        EXPECT(selects(&pool));
        end(pool);
        EXPECT(selects(nullptr));
      },
      outer);
  EXPECT(selects(&outer));

  /* A graph in the scope of a thread, and a scope of the thread in the graph: the newest counts. */
  EXPECT(!driver->StreamCreateWithPriority(driver, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  adapter.beginAllocateToPool(0, graph.id, [=](cudaStream_t s) {
    int status = WEIR_CU_CAPTURE_STATUS_NONE;
    return !driver->StreamIsCapturing(driver, s, &status) && status == WEIR_CU_CAPTURE_STATUS_ACTIVE;
  });
  EXPECT(!driver->StreamBeginCapture(driver, stream, WEIR_CU_CAPTURE_GLOBAL));
  EXPECT(selects(&graph, stream) && selects(&outer));
  begin_of_thread(inner);
  EXPECT(selects(&inner, stream) && selects(&inner));
  end(inner);
  EXPECT(selects(&graph, stream));
  EXPECT(!driver->StreamEndCapture(driver, stream, &made));
  end(graph);
  EXPECT(selects(&outer, stream) && asked == 0);
  EXPECT(!driver->GraphDestroy(driver, made) && !driver->StreamDestroy(driver, stream));

  in_another_thread(end, outer); /* any thread may close a scope */
  EXPECT(selects(nullptr));
  EXPECT(is_refused(end, outer));
  in_another_thread(begin_of_thread, inner); /* and close one whose thread has ended */
  EXPECT(selects(nullptr));
  end(inner);
  EXPECT(!weir_allocator_empty_cache(adapter.weir_));
}

int main() {
  weir_driver *soft;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  options.scopes_as_pytorch = 1;
  if (weir_device_set_current(0) || weir_get_driver(&soft) || weir_driver_open_fault(soft, &driver) ||
      weir_allocator_create(driver, &options, &adapter.weir_))
    return 1;
  test_scopes();
  {
    auto first = filled(1);
    MemPool second(2);
    Use use(second);
    EXPECT(!weir_allocator_free(adapter.weir_, get()));
    EXPECT(reserved() == 60);
    first.reset();
    EXPECT(reserved() == 30);
  }
  EXPECT(reserved() == 0);

  { /* a stream of the driver is captured, in the strictest mode */
    auto first = filled(3);
    MemPool graph(4);
    weir_cu_stream stream;
    weir_cu_graph made;
    EXPECT(!driver->StreamCreateWithPriority(driver, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
    {
      Use use(graph, true);
      EXPECT(!driver->StreamBeginCapture(driver, stream, WEIR_CU_CAPTURE_GLOBAL));
      first.reset();
      EXPECT(reserved() == 0);
      EXPECT(!driver->StreamEndCapture(driver, stream, &made));
    }
    EXPECT(!driver->GraphDestroy(driver, made) && !driver->StreamDestroy(driver, stream));
  }
  EXPECT(warnings == 0);

  fflush(stdout);
  auto last = filled(5);
  pid_t child = fork();
  if (!child) {
    last.reset();
    _exit(warnings);
  }
  int code;
  EXPECT(waitpid(child, &code, 0) == child && code == 0);
  EXPECT(reserved() == 30);

  /* A device that has failed. */
  EXPECT(!weir_fault_nth(driver, WEIR_CALL_MemFree, 1, WEIR_CU_ILLEGAL_ADDRESS, 1));
  last.reset();
  EXPECT(warnings == 1);
  EXPECT(!weir_fault_clear(driver));
  weir_allocator_destroy(adapter.weir_);
  return 0;
}
END
cp "$adapters/torch/pools.cpp" "$work"
cat >"$work/version.h" <<'END'
END
g++ -std=c++17 -pthread -Wall -Wextra "-I$work" "-I$include" "$work/main.cpp" "$work/pools.cpp" \
  "$library" "-Wl,-rpath,$(dirname "$library")" -o "$work/main"
WEIR_DRIVER=soft WEIR_LOG=error "$work/main"
