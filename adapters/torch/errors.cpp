#include "errors.h"

#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>

namespace weir_torch {

std::string last_error() {
  std::string text = weir_last_error();
  size_t colon = text.find(": ");
  bool named = colon != std::string::npos && text.compare(0, 5, "weir_") == 0 && text.find(' ') > colon;
  return named ? text.substr(colon + 2) : text;
}

void throw_status(weir_status status) {
  // Driver errors are raised as PyTorch raises them, with CUDA's text, since programs check the type and the text.
  bool is_the_drivers =
      status == WEIR_ERROR_DEVICE_FAULT || status == WEIR_ERROR_DRIVER || status == WEIR_ERROR_CAPTURE;
  if (is_the_drivers)
    C10_CUDA_CHECK(static_cast<cudaError_t>(weir_last_driver_result()));
  std::string text = last_error();
  if (text.empty())
    text = weir_status_string(status);
  if (status == WEIR_ERROR_OUT_OF_MEMORY)
    TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  TORCH_CHECK(false, text);
}

} // namespace weir_torch
