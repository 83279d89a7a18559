/*
 * A shipped history, for a test of cmocka's.
 */
#pragma once

#include <stdio.h>

#include "offline/read/recording.h"
#include "support/test.h"

/* weir__recording_free() it. `name` is below tests/data, without ".pickle.zst". Without libzstd the test is waived. */
static inline weir__recording *load(const char *name) {
#ifndef WEIR_HAVE_ZSTD
  print_message("waived: %s: built without libzstd\n", name);
  skip();
#endif
  char path[1024];
  snprintf(path, sizeof path, "%s/%s.pickle.zst", WEIR_TEST_DATA, name);
  weir__recording *recording = NULL;
  if (weir__recording_load(path, NULL, &recording) != WEIR_OK)
    fail_msg("%s", weir_last_error());
  return recording;
}
