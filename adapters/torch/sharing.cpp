// Memory that is shared with other processes and other devices.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

#include "allocator.h"
#include "errors.h"

namespace weir_torch {

namespace {

// PyTorch's own allocator has no handles of pages that differ in size, and ends with an internal assertion when it gets
// one. The processes that a program starts have Weir if the variable selects it.
void warn_of_receivers_without_weir(const weir_ipc_handle &handle) {
  constexpr unsigned char varied_pages = 'v';
  const char *selected = std::getenv("WEIR_TORCH");
  if (handle.length > 1 && handle.bytes[1] == varied_pages && !(selected && std::string(selected) == "1")) {
    TORCH_WARN_ONCE("weir: memory of moving pages is sent to another process, which can open it only if it uses Weir "
                    "too. Set WEIR_TORCH=1 for all processes, or leave moving_pages off where memory is sent");
  }
}

} // namespace

// Weir writes handles in PyTorch's format, so a process with Weir and one without can share memory, except for pages
// that differ in size.
cca::ShareableHandle Allocator::shareIpcHandle(void *pointer) {
  weir_ipc_handle handle;
  handle.size = sizeof handle;
  check(weir_ipc_share(weir_, pointer, &handle));
  warn_of_receivers_without_weir(handle);
  return {static_cast<ptrdiff_t>(handle.offset),
          std::string(reinterpret_cast<const char *>(handle.bytes), handle.length)};
}

// Weir opens a handle once, even if it is requested several times.
std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  void *base = nullptr;
  check(weir_ipc_open(weir_, c10::cuda::current_device(), handle.data(), handle.size(), &base));
  return std::shared_ptr<void>(base, [this](void *memory) {
    if (weir_ipc_close(weir_, memory))
      TORCH_WARN("weir: ", weir_last_error());
  });
}

void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex device_to_access) {
  check_device(device);
  check_device(device_to_access);
  c10::cuda::CUDAGuard guard(device);
  cudaError_t error = cudaDeviceEnablePeerAccess(device_to_access, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();
  else
    C10_CUDA_CHECK(error);
  check(weir_allocator_enable_peer_access(weir_, device_to_access, device));
}

cudaError_t Allocator::memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                   cudaStream_t stream, bool peer_access) {
  if (!weir_allocator_copy_async(weir_, to, to_device, from, from_device, bytes, stream, peer_access))
    return cudaSuccess;
  int result = weir_last_driver_result(); // the runtime numbers errors as the driver does
  return result ? static_cast<cudaError_t>(result) : cudaErrorUnknown;
}

} // namespace weir_torch
