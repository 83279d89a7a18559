// Compiled and run by compile.sh as C++23: what std::expected makes of a result. error.hpp needs no library.
#include <cstdio>
#include <type_traits>
#include <utility>

#include "weir/error.hpp"

#if !defined(__cpp_lib_expected)
int main() { return 77; }
#else

namespace {

template <class T> using expected = std::expected<T, weir::error>;

// bool(result) says whether there is a value. If std::expected<bool> could take that for the value, a failure would
// become a success with the value false.
static_assert(!std::is_constructible_v<bool, weir::result<bool>> &&
              !std::is_constructible_v<bool, weir::result<bool> &> &&
              !std::is_constructible_v<bool, const weir::result<bool> &>);
static_assert(!std::is_constructible_v<expected<bool>, weir::result<bool> &> &&
                  !std::is_constructible_v<expected<bool>, const weir::result<bool> &>,
              "a conversion takes the value away");
static_assert(std::is_constructible_v<bool, weir::result<int>> && std::is_constructible_v<bool, weir::result<void>>);

int failures = 0;

void check(bool is_true, const char *text) {
  if (!is_true) {
    std::printf("expected.cpp: failed: %s\n", text);
    failures++;
  }
}

template <class T> weir::result<T> failed() { return weir::error(WEIR_ERROR_DRIVER, "a text"); }

template <class T> void check_error(const expected<T> &converted, const char *text) {
  check(!converted && converted.error().status() == WEIR_ERROR_DRIVER, text);
}

template <class T> expected<T> returned(weir::result<T> result) { return result; }

template <class T> void test_failure(const char *text) {
  check_error(expected<T>(failed<T>()), text);
  check_error(expected<T>{failed<T>()}, text);
  check_error(static_cast<expected<T>>(failed<T>()), text);
  expected<T> copied = failed<T>();
  check_error(copied, text);
  expected<T> assigned{};
  assigned = failed<T>();
  check_error(assigned, text);
  check_error(returned(failed<T>()), text);
}

} // namespace

int main() {
  test_failure<bool>("bool");
  test_failure<int>("int");
  test_failure<void>("void");
  for (const bool value : {false, true}) {
    const expected<bool> direct(weir::result<bool>{value});
    check(direct && *direct == value, "a bool, initialized directly");
    const expected<bool> copied = weir::result<bool>(value);
    check(copied && *copied == value, "a bool, copied");
  }
  const expected<int> number(weir::result<int>(7));
  check(number && *number == 7, "a number");
  check(expected<void>(weir::result<void>()).has_value(), "nothing");
  return failures != 0;
}

#endif
