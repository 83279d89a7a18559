#!/bin/sh
# sharing.sh ADAPTERS LIBRARY INCLUDE: when the adapter warns that only a process with Weir can open what it shares. A
# stand-in for PyTorch has what the adapter calls.
set -eu
adapters=$1 library=$2 include=$3
if ! command -v g++ >/dev/null; then
  echo "waived: there is no g++"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/c10/cuda" "$work/c10/util"
: >"$work/c10/cuda/CUDAException.h"
: >"$work/c10/cuda/CUDAGuard.h"
cat >"$work/c10/util/Exception.h" <<'END'
#pragma once
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
inline int warnings;
#define TORCH_WARN_ONCE(text)                                                                                          \
  do {                                                                                                                 \
    static bool was_said;                                                                                              \
    warnings += !was_said;                                                                                             \
    was_said = true;                                                                                                   \
  } while (0)
#define TORCH_WARN(...) std::abort()
#define C10_CUDA_CHECK(call) ((void)(call))
typedef int cudaError_t;
typedef weir_cu_stream cudaStream_t;
enum { cudaSuccess = 0, cudaErrorUnknown = 999, cudaErrorPeerAccessAlreadyEnabled = 704 };
inline cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
namespace c10::cuda {
inline int current_device() { return 0; }
struct CUDAGuard {
  explicit CUDAGuard(int) {}
  ~CUDAGuard() {}
};
}
END
cat >"$work/allocator.h" <<'END'
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include "weir/weir.h"
namespace cca {
struct ShareableHandle {
  ptrdiff_t offset;
  std::string handle;
};
}
namespace weir_torch {
using DeviceIndex = int;
struct Allocator {
  weir_allocator *weir_;
  void check_device(DeviceIndex) {}
  cca::ShareableHandle shareIpcHandle(void *pointer);
  std::shared_ptr<void> getIpcDevPtr(std::string handle);
  void enablePeerAccess(DeviceIndex device, DeviceIndex device_to_access);
  cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                          cudaStream_t stream, bool peer_access);
};
}
END
cat >"$work/errors.h" <<'END'
#pragma once
namespace weir_torch {
inline void check(weir_status status) {
  if (status) {
    std::printf("%s\n", weir_last_error());
    std::exit(1);
  }
}
}
END
cat >"$work/main.cpp" <<'END'
#include "weir/weir.h"
#include <c10/util/Exception.h>
#include "allocator.h"
using namespace weir_torch;
static void expect(bool is_true, int line) {
  if (!is_true) {
    std::printf("line %d\n", line);
    std::exit(1);
  }
}
#define EXPECT(condition) expect(condition, __LINE__)
int main() {
  constexpr size_t mib = size_t{1} << 20;
  weir_driver *driver;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "moving_pages:True";
  Allocator adapter;
  if (weir_device_set_current(0) || weir_get_driver(&driver) || weir_allocator_create(driver, &options, &adapter.weir_))
    return 1;
  void *equal, *varied = nullptr;
  EXPECT(!weir_allocator_alloc(adapter.weir_, 0, 2 * mib, nullptr, &equal));
  EXPECT(adapter.shareIpcHandle(equal).handle[1] == 'e');
  EXPECT(!weir_allocator_free(adapter.weir_, equal));
  weir_allocator_empty_cache(adapter.weir_);
  std::string handle = "  ";
  setenv("WEIR_TORCH", "1", 1);
  for (size_t bytes = 22 * mib; bytes < 200 * mib && handle[1] != 'v'; bytes += 2 * mib) {
    if (varied)
      EXPECT(!weir_allocator_free(adapter.weir_, varied));
    EXPECT(!weir_allocator_alloc(adapter.weir_, 0, bytes, nullptr, &varied));
    weir_ipc_handle bare;
    bare.size = sizeof bare;
    EXPECT(!weir_ipc_send(adapter.weir_, varied, nullptr, nullptr, &bare)); /* does not fix the pages for good */
    handle = std::string(reinterpret_cast<char *>(bare.bytes + 136), 2);
    weir_ipc_cancel(adapter.weir_, bare.bytes, bare.length);
    weir_ipc_collect(adapter.weir_, nullptr);
  }
  EXPECT(handle[1] == 'v');
  EXPECT(adapter.shareIpcHandle(varied).handle[1] == 'v');
  EXPECT(warnings == 0); /* the processes that it starts have Weir too */
  unsetenv("WEIR_TORCH");
  EXPECT(adapter.shareIpcHandle(varied).handle[1] == 'v');
  EXPECT(adapter.shareIpcHandle(varied).handle[1] == 'v');
  EXPECT(warnings == 1);
  weir_allocator_destroy(adapter.weir_);
  return 0;
}
END
cp "$adapters/torch/sharing.cpp" "$work"
g++ -std=c++17 -Wall -Wextra "-I$work" "-I$include" -include weir/weir.h "$work/main.cpp" "$work/sharing.cpp" \
  "$library" "-Wl,-rpath,$(dirname "$library")" -o "$work/main"
WEIR_DRIVER=soft WEIR_LOG=error "$work/main"
