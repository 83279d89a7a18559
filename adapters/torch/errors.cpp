#include "errors.h"

#include <c10/util/Exception.h>

namespace weir_torch {

std::string last_error() {
  std::string text = weir_last_error();
  size_t colon = text.find(": ");
  bool named = colon != std::string::npos && text.compare(0, 5, "weir_") == 0 && text.find(' ') > colon;
  return named ? text.substr(colon + 2) : text;
}

void throw_status(weir_status status) {
  std::string text = last_error();
  if (text.empty())
    text = weir_status_string(status);
  if (status == WEIR_ERROR_OUT_OF_MEMORY)
    TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  TORCH_CHECK(false, text);
}

} // namespace weir_torch
