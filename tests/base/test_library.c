/*
 * Shared libraries.
 */
#include <string.h>

#include "base/library.h"
#include "support/check.h"

TEST(open) {
  void *library = weir__library_open("libm.so.6");
  assert_non_null(library);
  double (*square_root)(double);
  *(void **)&square_root = weir__library_symbol(library, "sqrt");
  assert_non_null(square_root);
  assert_true(square_root(9.0) == 3.0);
  assert_null(weir__library_symbol(library, "no_such_symbol"));
  assert_non_null(weir__library_symbol(NULL, "malloc"));
  const char *function = NULL, *file = NULL;
  assert_true(weir__library_at((uint64_t)(uintptr_t)weir__library_symbol(library, "cbrt"), &function, &file));
  assert_non_null(strstr(function, "cbrt")); /* glibc has several names for it */
  assert_non_null(strstr(file, "libm"));
  assert_false(weir__library_at(16, &function, &file));
  weir__library_close(library);
  assert_null(weir__library_open("libweir-does-not-exist.so"));
  assert_non_null(strstr(weir__library_error(), "libweir-does-not-exist.so"));
}

typedef struct found {
  int programs, libraries, ids;
  bool contains_this;
} found;

static void look_at(void *context, const weir__image *image) {
  found *f = context;
  uint64_t here = (uint64_t)(uintptr_t)&look_at;
  bool is_program = !*image->path && here >= image->code_begin && here < image->code_end;
  f->programs += is_program;
  f->contains_this |= is_program && here >= image->begin && here < image->end;
  f->libraries += strstr(image->path, "libc.so") != NULL;
  f->ids += image->build_id != NULL && image->build_id_bytes >= 8;
}

TEST(images) {
  found f = {0};
  weir__images_each(look_at, &f);
  assert_int_equal(f.programs, 1);
  assert_int_equal(f.libraries, 1);
  assert_true(f.contains_this && f.ids);
  unsigned long long before = weir__images_loaded();
  assert_true(before > 1);
  assert_int_equal(weir__images_loaded(), before);
}
