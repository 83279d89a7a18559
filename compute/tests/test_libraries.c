/*
 * Where NVIDIA's libraries are looked for.
 */
#include "src/libraries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/check.h"
#include "weir/compute/kernel.h"

static int forget(void **state) {
  (void)state;
  weir__libraries_forget();
  unsetenv("WEIR_NCCL_LIBRARY");
  return 0;
}

FIXTURE(.teardown = forget)

TEST(named) {
  char path[256] = "untouched";
  const char *how = NULL;
  setenv("WEIR_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
  assert_error_says(NOT_SUPPORTED, "/nowhere/libnccl.so, which WEIR_NCCL_LIBRARY names, cannot be loaded",
                    weir_library_find("nccl", path, sizeof path, NULL, &how));
  assert_string_equal(path, "untouched");
  weir__libraries_forget();
  setenv("WEIR_NCCL_LIBRARY", "libm.so.6", 1);
  assert_ok(weir_library_find("nccl", path, sizeof path, NULL, &how));
  assert_non_null(strstr(path, "/libm.so.6"));
  assert_string_equal(how, "named by the environment");
}

TEST(bad_arguments) {
  char path[16];
  const char *how;
  assert_error_says(INVALID_ARGUMENT, "expected nvrtc, cublas or nccl",
                    weir_library_find("other", path, sizeof path, NULL, &how));
  assert_error(INVALID_ARGUMENT, weir_library_find(NULL, path, sizeof path, NULL, &how));
  assert_error(INVALID_ARGUMENT, weir_library_add_folder(NULL));
}

/* A library that is not loaded yet stands for NCCL, where a Python package would have it. */
TEST(python_packages) {
  static const char *const below[] = {"", "/nvidia", "/nvidia/nccl", "/nvidia/nccl/lib"};
  char folder[64] = "/tmp/weir-packages-XXXXXX", file[256], path[256];
  const char *how;
  assert_non_null(mkdtemp(folder));
  for (int i = 1; i < 4; i++) {
    snprintf(file, sizeof file, "%s%s", folder, below[i]);
    assert_int_equal(mkdir(file, 0700), 0);
  }
  snprintf(file, sizeof file, "%s/nvidia/nccl/lib/libnccl.so.2", folder);
  assert_int_equal(symlink(WEIR_TEST_LIBRARY, file), 0);
  if (weir_library_find("nccl", path, sizeof path, NULL, &how)) { /* else the machine has one */
    assert_non_null(strstr(weir_last_error(), "WEIR_NCCL_LIBRARY"));
    assert_ok(weir_library_add_folder(folder)); /* it is looked for again */
    assert_ok(weir_library_find("nccl", path, sizeof path, NULL, &how));
    assert_string_equal(path, file);
    assert_string_equal(how, "in a Python package");
    /* Now it is loaded. */
    weir__libraries_forget();
    assert_ok(weir_library_find("nccl", path, sizeof path, NULL, &how));
    assert_string_equal(how, "already loaded");
  }
  assert_int_equal(unlink(file), 0);
  for (int i = 3; i >= 0; i--) {
    snprintf(file, sizeof file, "%s%s", folder, below[i]);
    assert_int_equal(rmdir(file), 0);
  }
}
