#include "weir/dtype.h"

size_t weir_dtype_size(weir_dtype dtype) {
  switch ((int)dtype) {
#define X(number, name, text, bytes)                                                                                   \
  case number:                                                                                                         \
    return bytes;
    WEIR_DTYPE_MAP(X)
#undef X
  }
  return 0;
}

const char *weir_dtype_name(weir_dtype dtype) {
  switch ((int)dtype) {
#define X(number, name, text, bytes)                                                                                   \
  case number:                                                                                                         \
    return text;
    WEIR_DTYPE_MAP(X)
#undef X
  }
  return NULL;
}
