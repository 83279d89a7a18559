/*
 * Errors of the C++ interface: weir::error, which is thrown, and weir::result<T>, which is returned.
 *
 * Every operation that can fail exists twice. `f()` throws weir::error; `try_f()` is noexcept and returns a
 * weir::result, which holds the value or the error. Without exceptions (-fno-exceptions), only the functions with
 * try_ can be used: a call of another one is an error at compile time. If the C++ library has no memory for a value or
 * for the text of an error, that is an error, too; without exceptions it ends the program.
 *
 * The other headers of the interface include this one. It needs no library.
 */
#ifndef WEIR_ERROR_HPP
#define WEIR_ERROR_HPP

#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#if __cplusplus > 202002L && __has_include(<expected>)
#include <expected>
#endif

#include "weir/status.h"

namespace weir {

// "WEIR_ERROR_OUT_OF_MEMORY"; "WEIR_ERROR_UNKNOWN" for an invalid number.
constexpr const char *status_name(weir_status status) noexcept {
  switch (status) {
#define X(number, name, text)                                                                                          \
  case WEIR_##name:                                                                                                    \
    return "WEIR_" #name;
    WEIR_STATUS_MAP(X)
#undef X
  }
  return "WEIR_ERROR_UNKNOWN";
}

// A failure: its status, and as what() the name of the status and the text of weir_last_error(). Copies share the text.
// Without memory for the text, what() is the name of the status alone.
class error : public std::runtime_error {
public:
  error(weir_status status, const char *text) noexcept : std::runtime_error(described(status, text)), status_(status) {}

  weir_status status() const noexcept { return status_; }
  const char *what() const noexcept override {
    const char *text = std::runtime_error::what();
    return *text ? text : status_name(status_);
  }

  // True if a device or the host has no more memory. The program can continue.
  bool is_out_of_memory() const noexcept {
    return status_ == WEIR_ERROR_OUT_OF_MEMORY || status_ == WEIR_ERROR_HOST_OUT_OF_MEMORY;
  }

private:
  // Empty if there is no memory for the text. libstdc++ needs none for an empty text, libc++ a few bytes.
  static std::runtime_error described(weir_status status, const char *text) noexcept {
#if defined(__cpp_exceptions)
    try {
      return std::runtime_error(std::string(status_name(status)) + ": " + text);
    } catch (...) {
      return std::runtime_error("");
    }
#else
    return std::runtime_error(std::string(status_name(status)) + ": " + text);
#endif
  }

  weir_status status_;
};

// Thrown in place of a plain error if is_out_of_memory().
class out_of_memory : public error {
public:
  using error::error;
  explicit out_of_memory(const error &other) : error(other) {}
};

namespace detail {

#if defined(__cpp_exceptions)
[[noreturn, gnu::cold, gnu::noinline]] inline void raise(const error &failure) {
  if (failure.is_out_of_memory())
    throw out_of_memory(failure);
  throw failure;
}
[[noreturn, gnu::cold, gnu::noinline]] inline void raise(weir_status status, const char *text) {
  raise(error(status, text));
}
#else
// Declared and not defined: the compiler reports a use.
[[noreturn, gnu::error("this Weir function throws, and exceptions are off: call the one with try_")]] void
raise(const error &failure);
[[noreturn, gnu::error("this Weir function throws, and exceptions are off: call the one with try_")]] void
raise(weir_status status, const char *text);
#endif

// Returns what a function returns that allocates, or the error if it has no memory.
template <class Call> auto allocating(Call call) noexcept -> decltype(call()) {
#if defined(__cpp_exceptions)
  try {
    return call();
  } catch (const std::bad_alloc &) {
    return error(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for the value that the call returns");
  }
#else
  return call();
#endif
}

} // namespace detail

// A value or an error, with the interface of std::expected<T, weir::error> as far as it goes. It is the same type in
// every version of C++, so that libraries can return it; where std::expected exists, a result converts to it.
template <class T> class [[nodiscard]] result {
  static_assert(std::is_nothrow_move_constructible_v<T>, "a result can be returned without exceptions");

public:
  using value_type = T;
  using error_type = weir::error;

  template <class U = T,
            class = std::enable_if_t<std::is_convertible_v<U, T> && !std::is_base_of_v<weir::error, std::decay_t<U>> &&
                                     !std::is_same_v<result, std::decay_t<U>>>>
  result(U &&value) noexcept(std::is_nothrow_constructible_v<T, U>)
      : value_(std::forward<U>(value)), has_value_(true) {}
  result(weir::error failure) noexcept : error_(std::move(failure)), has_value_(false) {}
  result(result &&other) noexcept : has_value_(other.has_value_) {
    if (has_value_)
      ::new (static_cast<void *>(&value_)) T(std::move(other.value_));
    else
      ::new (static_cast<void *>(&error_)) weir::error(std::move(other.error_));
  }
  result &operator=(result &&other) noexcept {
    if (this != &other) {
      this->~result();
      ::new (static_cast<void *>(this)) result(std::move(other));
    }
    return *this;
  }
  ~result() {
    if (has_value_)
      value_.~T();
    else
      error_.~error_type();
  }

  bool has_value() const noexcept { return has_value_; }
  // has_value(). A result<bool> does not have it, so that it cannot be mistaken for the value:
  // std::expected<bool, weir::error>(result) would take it for that.
  template <class U = T, class = std::enable_if_t<!std::is_same_v<std::remove_cv_t<U>, bool>>>
  explicit operator bool() const noexcept {
    return has_value_;
  }

  // Undefined behaviour without a value.
  T &operator*() &noexcept { return value_; }
  const T &operator*() const &noexcept { return value_; }
  T &&operator*() &&noexcept { return std::move(value_); }
  T *operator->() noexcept { return &value_; }
  const T *operator->() const noexcept { return &value_; }

  // Undefined behaviour with a value.
  const weir::error &error() const noexcept { return error_; }

  // The value; throws the error if there is none.
  T &value() & {
    if (!has_value_)
      detail::raise(error_);
    return value_;
  }
  const T &value() const & {
    if (!has_value_)
      detail::raise(error_);
    return value_;
  }
  T value() && {
    if (!has_value_)
      detail::raise(error_);
    return std::move(value_);
  }

  template <class U> T value_or(U &&other) && {
    return has_value_ ? std::move(value_) : static_cast<T>(std::forward<U>(other));
  }

#if defined(__cpp_lib_expected)
  operator std::expected<T, weir::error>() && {
    if (has_value_)
      return std::move(value_);
    return std::unexpected(error_);
  }
#endif

private:
  union {
    T value_;
    weir::error error_;
  };
  bool has_value_;
};

// Success or an error.
template <> class [[nodiscard]] result<void> {
public:
  using value_type = void;
  using error_type = weir::error;

  result() noexcept : has_value_(true) {}
  result(weir::error failure) noexcept : error_(std::move(failure)), has_value_(false) {}
  result(result &&other) noexcept : has_value_(other.has_value_) {
    if (!has_value_)
      ::new (static_cast<void *>(&error_)) weir::error(std::move(other.error_));
  }
  result &operator=(result &&other) noexcept {
    if (this != &other) {
      this->~result();
      ::new (static_cast<void *>(this)) result(std::move(other));
    }
    return *this;
  }
  ~result() {
    if (!has_value_)
      error_.~error_type();
  }

  bool has_value() const noexcept { return has_value_; }
  explicit operator bool() const noexcept { return has_value_; }
  const weir::error &error() const noexcept { return error_; }
  void value() const {
    if (!has_value_)
      detail::raise(error_);
  }

#if defined(__cpp_lib_expected)
  operator std::expected<void, weir::error>() && {
    if (has_value_)
      return {};
    return std::unexpected(error_);
  }
#endif

private:
  union {
    weir::error error_;
  };
  bool has_value_;
};

namespace detail {

// Owns an object of the C interface that Destroy destroys; NULL for none.
template <class Object, void (*Destroy)(Object *)> class handle {
public:
  constexpr handle() noexcept = default;
  constexpr explicit handle(Object *object) noexcept : object_(object) {}
  handle(handle &&other) noexcept : object_(other.release()) {}
  handle &operator=(handle &&other) noexcept {
    reset(other.release());
    return *this;
  }
  ~handle() {
    if (object_)
      Destroy(object_);
  }

  Object *get() const noexcept { return object_; }
  Object *release() noexcept { return std::exchange(object_, nullptr); }
  void reset(Object *object = nullptr) noexcept {
    if (Object *old = std::exchange(object_, object))
      Destroy(old);
  }

private:
  Object *object_ = nullptr;
};

} // namespace detail
} // namespace weir

#endif
