/*
 * Weir for C++17 and later: the C interface with types that own what they hold. Header-only, for libweir.
 *
 *     weir::stream stream = weir::stream::create();
 *     weir::buffer<float> values(1 << 20, stream);   // freed at the end of the scope, in the stream's order
 *     weir::fill_async(values, 1.0f, stream);
 *     std::vector<float> copy(values.size());
 *     weir::copy(copy, values, stream);
 *
 * - A call that fails throws weir::error; its twin with the prefix try_ returns a weir::result (weir/error.hpp).
 * - Types that own something can be moved and not copied. get() is the C object, release() gives it away, and
 *   adopt() takes one over. Names that end in _ref, and weir::stream, own nothing and are passed by value.
 * - Destructors do not report failures. Call the function that ends the object (free, end) to see them.
 * - All rules of the C headers apply: threads, forked children, and what must outlive what.
 */
#ifndef WEIR_WEIR_HPP
#define WEIR_WEIR_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif

#include "weir/error.hpp"
#include "weir/weir.h"

namespace weir {

namespace detail {

// The failure of the last C call of this thread.
[[gnu::cold, gnu::noinline]] inline error failure(weir_status status) noexcept {
  return error(status, weir_last_error());
}

inline void check(weir_status status) {
  if (__builtin_expect(status != WEIR_OK, 0))
    raise(status, weir_last_error());
}

inline result<void> attempt(weir_status status) noexcept {
  if (__builtin_expect(status != WEIR_OK, 0))
    return failure(status);
  return {};
}

// The value, if the call that wrote it succeeded.
template <class T> T checked(weir_status status, T &value) {
  check(status);
  return std::move(value);
}
template <class T> result<T> attempted(weir_status status, T &value) noexcept {
  if (__builtin_expect(status != WEIR_OK, 0))
    return failure(status);
  return std::move(value);
}

// WEIR_ERROR_NOT_READY is no failure of a query.
inline bool checked_query(weir_status status) {
  if (status != WEIR_ERROR_NOT_READY)
    check(status);
  return status == WEIR_OK;
}
inline result<bool> attempted_query(weir_status status) noexcept {
  if (status != WEIR_OK && status != WEIR_ERROR_NOT_READY)
    return failure(status);
  return status == WEIR_OK;
}

// A size that does not fit becomes one that no device has, which the C call refuses with its own text.
template <class T> constexpr std::uint64_t bytes_of(std::size_t count) noexcept {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return count > most / sizeof(T) ? most : std::uint64_t{count} * sizeof(T);
}

} // namespace detail

// ---- The runtime ----

// The version of the running library, such as "1.0.0".
inline const char *version() noexcept { return weir_version(); }
// Starts the runtime. Does nothing if it has started.
inline void init() { detail::check(weir_init()); }
inline result<void> try_init() noexcept { return detail::attempt(weir_init()); }
// Ends the runtime. Everything below must be destroyed before, except streams.
inline void shutdown() { detail::check(weir_shutdown()); }
inline result<void> try_shutdown() noexcept { return detail::attempt(weir_shutdown()); }

// ---- Devices ----

// The number of a device; -1 is the current one.
class device {
public:
  constexpr device(int number = -1) noexcept : number_(number) {}
  constexpr int number() const noexcept { return number_; }

  static bool is_available() noexcept { return weir_device_is_available() != 0; }
  static int count() {
    int count = 0;
    return detail::checked(weir_device_count(&count), count);
  }
  static result<int> try_count() noexcept {
    int count = 0;
    return detail::attempted(weir_device_count(&count), count);
  }
  static device current() {
    int number = 0;
    detail::check(weir_device_get_current(&number));
    return number;
  }
  static result<device> try_current() noexcept {
    device current(0);
    return detail::attempted(weir_device_get_current(&current.number_), current);
  }

  void make_current() const { detail::check(weir_device_set_current(number_)); }
  result<void> try_make_current() const noexcept { return detail::attempt(weir_device_set_current(number_)); }
  void synchronize() const { detail::check(weir_device_synchronize(number_)); }
  result<void> try_synchronize() const noexcept { return detail::attempt(weir_device_synchronize(number_)); }

  weir_device_properties properties() const {
    weir_device_properties properties;
    weir_device_properties_init(&properties);
    return detail::checked(weir_device_get_properties(number_, &properties), properties);
  }
  result<weir_device_properties> try_properties() const noexcept {
    weir_device_properties properties;
    weir_device_properties_init(&properties);
    return detail::attempted(weir_device_get_properties(number_, &properties), properties);
  }

  struct memory {
    std::uint64_t free, total; // bytes
  };
  memory memory_info() const {
    memory info{};
    return detail::checked(weir_device_memory_info(number_, &info.free, &info.total), info);
  }
  result<memory> try_memory_info() const noexcept {
    memory info{};
    return detail::attempted(weir_device_memory_info(number_, &info.free, &info.total), info);
  }

private:
  int number_;
};

// Makes a device current until the end of the scope.
class device_scope {
public:
  explicit device_scope(device device) { detail::check(weir_device_exchange(device.number(), &previous_)); }
  static result<device_scope> try_enter(device device) noexcept {
    int previous = -1;
    if (weir_status status = weir_device_exchange(device.number(), &previous))
      return detail::failure(status);
    return device_scope(previous, 0);
  }
  device_scope(device_scope &&other) noexcept : previous_(std::exchange(other.previous_, -1)) {}
  device_scope &operator=(device_scope &&) = delete;
  ~device_scope() {
    int ignored = 0;
    (void)weir_device_maybe_exchange(previous_, &ignored);
  }

private:
  device_scope(int previous, int) noexcept : previous_(previous) {}
  int previous_ = -1;
};

// ---- Streams ----

class event;

// A queue of work on a device. A value that owns nothing: streams come from pools of the runtime and live until its
// shutdown. It converts to and from weir_stream, for calls of the C interface.
class stream {
public:
  constexpr stream() noexcept : stream_{0, 0, WEIR_DEVICE_TYPE_GPU} {} // the default stream of device 0
  constexpr stream(weir_stream value) noexcept : stream_(value) {}
  constexpr operator weir_stream() const noexcept { return stream_; }

  // One of the pool's streams for a priority: numbers below 0 are more urgent.
  static stream create(weir::device device = {}, int priority = 0) {
    stream made;
    return detail::checked(weir_stream_create(device.number(), priority, &made.stream_), made);
  }
  static result<stream> try_create(weir::device device = {}, int priority = 0) noexcept {
    stream made;
    return detail::attempted(weir_stream_create(device.number(), priority, &made.stream_), made);
  }

  // The default stream of a device.
  static stream of_device(weir::device device) {
    stream found;
    return detail::checked(weir_stream_default(device.number(), &found.stream_), found);
  }
  static result<stream> try_of_device(weir::device device) noexcept {
    stream found;
    return detail::attempted(weir_stream_default(device.number(), &found.stream_), found);
  }

  static stream current(weir::device device = {}) {
    stream found;
    return detail::checked(weir_stream_get_current(device.number(), &found.stream_), found);
  }
  static result<stream> try_current(weir::device device = {}) noexcept {
    stream found;
    return detail::attempted(weir_stream_get_current(device.number(), &found.stream_), found);
  }

  // The stream of a CUstream, which stays the caller's.
  static stream external(weir_cu_stream raw, weir::device device = {}) {
    stream found;
    return detail::checked(weir_stream_external(device.number(), raw, &found.stream_), found);
  }
  static result<stream> try_external(weir_cu_stream raw, weir::device device = {}) noexcept {
    stream found;
    return detail::attempted(weir_stream_external(device.number(), raw, &found.stream_), found);
  }

  // The CUstream; NULL for the default stream.
  weir_cu_stream raw() const {
    weir_cu_stream raw = nullptr;
    return detail::checked(weir_stream_raw(stream_, &raw), raw);
  }
  result<weir_cu_stream> try_raw() const noexcept {
    weir_cu_stream raw = nullptr;
    return detail::attempted(weir_stream_raw(stream_, &raw), raw);
  }

  weir::device device() const noexcept { return stream_.device; }

  // True if all of its work is done.
  bool query() const { return detail::checked_query(weir_stream_query(stream_)); }
  result<bool> try_query() const noexcept { return detail::attempted_query(weir_stream_query(stream_)); }
  void synchronize() const { detail::check(weir_stream_synchronize(stream_)); }
  result<void> try_synchronize() const noexcept { return detail::attempt(weir_stream_synchronize(stream_)); }

  // Later work waits for the work that the other stream has now.
  void wait(stream other) const { detail::check(weir_stream_wait_stream(stream_, other)); }
  result<void> try_wait(stream other) const noexcept {
    return detail::attempt(weir_stream_wait_stream(stream_, other));
  }
  // Later work waits for the event.
  void wait(const event &event) const;
  result<void> try_wait(const event &event) const noexcept;

  void make_current() const { detail::check(weir_stream_set_current(stream_)); }
  result<void> try_make_current() const noexcept { return detail::attempt(weir_stream_set_current(stream_)); }

  friend bool operator==(stream a, stream b) noexcept { return weir_stream_equal(a, b) != 0; }
  friend bool operator!=(stream a, stream b) noexcept { return weir_stream_equal(a, b) == 0; }

private:
  weir_stream stream_;
};

// Makes a stream and its device current until the end of the scope.
class stream_scope {
public:
  explicit stream_scope(stream stream) { detail::check(weir_stream_scope_enter(stream, &scope_)); }
  static result<stream_scope> try_enter(stream stream) noexcept {
    weir_stream_scope scope;
    if (weir_status status = weir_stream_scope_enter(stream, &scope))
      return detail::failure(status);
    return stream_scope(scope);
  }
  stream_scope(stream_scope &&other) noexcept
      : scope_(other.scope_), is_entered_(std::exchange(other.is_entered_, false)) {}
  stream_scope &operator=(stream_scope &&) = delete;
  ~stream_scope() {
    if (is_entered_)
      (void)weir_stream_scope_leave(&scope_);
  }

private:
  explicit stream_scope(const weir_stream_scope &scope) noexcept : scope_(scope) {}
  weir_stream_scope scope_{};
  bool is_entered_ = true;
};

// ---- Events ----

// What an event is for, to be combined with |.
enum class event_flags : unsigned {
  none = 0,
  timing = WEIR_EVENT_TIMING,
  blocking = WEIR_EVENT_BLOCKING,
  interprocess = WEIR_EVENT_INTERPROCESS,
  external = WEIR_EVENT_EXTERNAL
};
constexpr event_flags operator|(event_flags a, event_flags b) noexcept {
  return static_cast<event_flags>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

// A point in a stream. The CUDA event is created by the first record.
class event {
public:
  using milliseconds = std::chrono::duration<double, std::milli>;

  explicit event(event_flags flags = event_flags::none) : event_(make(flags)) {}
  static result<event> try_create(event_flags flags = event_flags::none) noexcept {
    weir_event *made = nullptr;
    if (weir_status status = weir_event_create(static_cast<unsigned>(flags), &made))
      return detail::failure(status);
    return adopt(made);
  }
  static event adopt(weir_event *owned) noexcept { return event(owned); }
  weir_event *get() const noexcept { return event_.get(); }
  weir_event *release() noexcept { return event_.release(); }
  weir_cu_event raw() const noexcept { // NULL until the first record
    weir_cu_event raw = nullptr;
    weir_event_raw(get(), &raw);
    return raw;
  }

  void record(stream stream) { detail::check(weir_event_record(get(), stream)); }
  result<void> try_record(stream stream) noexcept { return detail::attempt(weir_event_record(get(), stream)); }

  // True if it has completed, or was never recorded.
  bool query() const { return detail::checked_query(weir_event_query(get())); }
  result<bool> try_query() const noexcept { return detail::attempted_query(weir_event_query(get())); }
  void synchronize() const { detail::check(weir_event_synchronize(get())); }
  result<void> try_synchronize() const noexcept { return detail::attempt(weir_event_synchronize(get())); }

  // The time from an earlier event to this one. Both have timing, and have completed.
  milliseconds since(const event &start) const {
    double time = 0;
    detail::check(weir_event_elapsed(start.get(), get(), &time));
    return milliseconds(time);
  }
  result<milliseconds> try_since(const event &start) const noexcept {
    double time = 0;
    if (weir_status status = weir_event_elapsed(start.get(), get(), &time))
      return detail::failure(status);
    return milliseconds(time);
  }

private:
  explicit event(weir_event *owned) noexcept : event_(owned) {}
  static weir_event *make(event_flags flags) {
    weir_event *made = nullptr;
    return detail::checked(weir_event_create(static_cast<unsigned>(flags), &made), made);
  }
  detail::handle<weir_event, weir_event_destroy> event_;
};

inline void stream::wait(const event &event) const { detail::check(weir_event_wait(event.get(), stream_)); }
inline result<void> stream::try_wait(const event &event) const noexcept {
  return detail::attempt(weir_event_wait(event.get(), stream_));
}

// ---- Allocators ----

template <class T, class Source> class basic_buffer;
class allocator_ref;

namespace detail {

// Calls on an allocator take the driver's stream.
template <class Call> weir_status with_raw(stream stream, Call call) noexcept {
  weir_cu_stream raw = nullptr;
  weir_status status = weir_stream_raw(stream, &raw);
  return status ? status : call(raw);
}

inline weir_status record_on(weir_host_allocator *host, const void *pointer, stream stream) noexcept {
  return with_raw(stream, [&](weir_cu_stream raw) {
    return weir_host_record_stream(host, const_cast<void *>(pointer), stream.device().number(), raw);
  });
}

// Where a buffer's memory comes from, and where it returns to.
struct default_source {
  weir_status alloc(std::uint64_t bytes, stream stream, void **pointer) const noexcept {
    return weir_malloc(bytes, stream, pointer);
  }
  weir_status free(void *pointer) const noexcept { return weir_free(pointer); }
  weir_status record(void *pointer, stream stream) const noexcept { return weir_memory_record_stream(pointer, stream); }
};

struct allocator_source {
  weir_allocator *allocator_ = nullptr;
  constexpr allocator_source() noexcept = default;
  constexpr allocator_source(allocator_ref allocator) noexcept;
  weir_status alloc(std::uint64_t bytes, stream stream, void **pointer) const noexcept {
    return with_raw(stream, [&](weir_cu_stream raw) {
      return weir_allocator_alloc(allocator_, stream.device().number(), bytes, raw, pointer);
    });
  }
  weir_status free(void *pointer) const noexcept { return weir_allocator_free(allocator_, pointer); }
  weir_status record(void *pointer, stream stream) const noexcept {
    return with_raw(stream, [&](weir_cu_stream raw) { return weir_allocator_record_stream(allocator_, pointer, raw); });
  }
};

struct pinned_source {
  weir_host_allocator *host_ = nullptr;
  weir_status alloc(std::uint64_t bytes, void **pointer) const noexcept {
    return weir_host_alloc(host_, bytes, pointer);
  }
  weir_status free(void *pointer) const noexcept { return weir_host_free(host_, pointer); }
  weir_status record(void *pointer, stream stream) const noexcept { return record_on(host_, pointer, stream); }
};

inline weir_driver *runtime_driver() {
  weir_driver *driver = nullptr;
  return checked(weir_get_driver(&driver), driver);
}

} // namespace detail

// Device memory of the process default allocator, of an allocator, and pinned host memory.
template <class T> using buffer = basic_buffer<T, detail::default_source>;
template <class T> using allocator_buffer = basic_buffer<T, detail::allocator_source>;
template <class T> class pinned_buffer;

// An allocator that something else owns.
class allocator_ref {
public:
  constexpr allocator_ref(weir_allocator *allocator) noexcept : allocator_(allocator) {}
  constexpr weir_allocator *get() const noexcept { return allocator_; }

  template <class T> allocator_buffer<T> allocate(std::size_t count, stream stream) const {
    return allocator_buffer<T>(count, stream, *this);
  }
  template <class T> result<allocator_buffer<T>> try_allocate(std::size_t count, stream stream) const noexcept {
    return allocator_buffer<T>::try_allocate(count, stream, *this);
  }

  void empty_cache() const { detail::check(weir_allocator_empty_cache(allocator_)); }
  result<void> try_empty_cache() const noexcept { return detail::attempt(weir_allocator_empty_cache(allocator_)); }

  weir_allocator_stats stats(device device = 0) const {
    weir_allocator_stats stats;
    weir_allocator_stats_init(&stats);
    return detail::checked(weir_allocator_get_stats(allocator_, device.number(), &stats), stats);
  }
  result<weir_allocator_stats> try_stats(device device = 0) const noexcept {
    weir_allocator_stats stats;
    weir_allocator_stats_init(&stats);
    return detail::attempted(weir_allocator_get_stats(allocator_, device.number(), &stats), stats);
  }

  // Limits the memory held from the driver to a fraction of the device's memory.
  void set_fraction(double fraction, device device = 0) const {
    detail::check(weir_allocator_set_fraction(allocator_, device.number(), fraction));
  }
  result<void> try_set_fraction(double fraction, device device = 0) const noexcept {
    return detail::attempt(weir_allocator_set_fraction(allocator_, device.number(), fraction));
  }

  // Changes settings, as "key:value,key:value".
  void configure(const char *conf) const { detail::check(weir_allocator_configure(allocator_, conf)); }
  result<void> try_configure(const char *conf) const noexcept {
    return detail::attempt(weir_allocator_configure(allocator_, conf));
  }
  // The settings that differ from their defaults.
  std::string settings() const {
    std::size_t length = 0;
    detail::check(weir_allocator_settings(allocator_, nullptr, 0, &length));
    std::string text(length, '\0');
    detail::check(weir_allocator_settings(allocator_, text.data(), length + 1, nullptr));
    return text;
  }

protected:
  weir_allocator *allocator_;
};

namespace detail {
constexpr allocator_source::allocator_source(allocator_ref allocator) noexcept : allocator_(allocator.get()) {}
} // namespace detail

// The allocator of the process, from which a weir::buffer takes its memory.
inline allocator_ref default_allocator() {
  weir_allocator *found = nullptr;
  return detail::checked(weir_default_allocator(&found), found);
}
inline result<allocator_ref> try_default_allocator() noexcept {
  weir_allocator *found = nullptr;
  if (weir_status status = weir_default_allocator(&found))
    return detail::failure(status);
  return allocator_ref(found);
}

// An allocator of its own. Its destructor returns all memory to the driver, so its buffers must be gone by then.
class allocator : public allocator_ref {
public:
  // On the driver of the runtime, with settings as "key:value,key:value"; NULL reads them from the environment.
  explicit allocator(const char *conf = nullptr) : allocator_ref(nullptr) {
    weir_allocator_options options;
    weir_allocator_options_init(&options);
    options.conf = conf;
    detail::check(weir_allocator_create(detail::runtime_driver(), &options, &allocator_));
  }
  allocator(weir_driver *driver, const weir_allocator_options &options) : allocator_ref(nullptr) {
    detail::check(weir_allocator_create(driver, &options, &allocator_));
  }
  static result<allocator> try_create(const char *conf = nullptr) noexcept {
    weir_driver *driver = nullptr;
    if (weir_status status = weir_get_driver(&driver))
      return detail::failure(status);
    weir_allocator_options options;
    weir_allocator_options_init(&options);
    options.conf = conf;
    return try_create(driver, options);
  }
  static result<allocator> try_create(weir_driver *driver, const weir_allocator_options &options) noexcept {
    weir_allocator *made = nullptr;
    if (weir_status status = weir_allocator_create(driver, &options, &made))
      return detail::failure(status);
    return adopt(made);
  }
  static allocator adopt(weir_allocator *owned) noexcept { return allocator(owned, 0); }
  weir_allocator *release() noexcept { return std::exchange(allocator_, nullptr); }

  allocator(allocator &&other) noexcept : allocator_ref(other.release()) {}
  allocator &operator=(allocator &&other) noexcept {
    weir_allocator_destroy(std::exchange(allocator_, other.release()));
    return *this;
  }
  ~allocator() { weir_allocator_destroy(allocator_); }

private:
  allocator(weir_allocator *owned, int) noexcept : allocator_ref(owned) {}
};

// A private pool of an allocator on a device: memory that is kept apart. Holds one use of the pool.
class pool {
public:
  explicit pool(allocator_ref allocator, weir::device device = 0, const weir_pool_options *options = nullptr)
      : pool(allocator, device, weir_graph_pool_handle()) {
    if (weir_status status = weir_pool_create(allocator_, device_, id_, options)) {
      allocator_ = nullptr;
      detail::check(status);
    }
  }
  static result<pool> try_create(allocator_ref allocator, weir::device device = 0,
                                 const weir_pool_options *options = nullptr) noexcept {
    const weir_pool_id id = weir_graph_pool_handle();
    if (weir_status status = weir_pool_create(allocator.get(), device.number(), id, options))
      return detail::failure(status);
    return pool(allocator, device, id);
  }
  pool(pool &&other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), device_(other.device_), id_(other.id_) {}
  pool &operator=(pool &&other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(device_, other.device_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~pool() {
    if (allocator_)
      (void)weir_pool_release(allocator_, device_, id_);
  }

  weir_pool_id id() const noexcept { return id_; }
  weir::device device() const noexcept { return device_; }
  allocator_ref allocator() const noexcept { return allocator_; }

private:
  pool(allocator_ref allocator, weir::device device, weir_pool_id id) noexcept
      : allocator_(allocator.get()), device_(device.number()), id_(id) {}
  weir_allocator *allocator_;
  int device_;
  weir_pool_id id_;
};

// Until the end of the scope, which is on the same thread, its allocations on the pool's device come from the pool.
class pool_scope {
public:
  explicit pool_scope(const pool &pool)
      : allocator_(pool.allocator().get()), device_(pool.device().number()), id_(pool.id()) {
    detail::check(weir_pool_begin(allocator_, device_, id_, nullptr, nullptr));
  }
  static result<pool_scope> try_enter(const pool &pool) noexcept {
    if (weir_status status =
            weir_pool_begin(pool.allocator().get(), pool.device().number(), pool.id(), nullptr, nullptr))
      return detail::failure(status);
    return pool_scope(pool, 0);
  }
  pool_scope(pool_scope &&other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), device_(other.device_), id_(other.id_) {}
  pool_scope &operator=(pool_scope &&) = delete;
  ~pool_scope() {
    if (!allocator_)
      return;
    (void)weir_pool_end(allocator_, device_, id_);
    (void)weir_pool_release(allocator_, device_, id_);
  }

private:
  pool_scope(const pool &pool, int) noexcept
      : allocator_(pool.allocator().get()), device_(pool.device().number()), id_(pool.id()) {}
  weir_allocator *allocator_;
  int device_;
  weir_pool_id id_;
};

// ---- Device memory ----

// A range of device memory. The host must not access it, so it has neither iterators nor operator[].
template <class T> class device_span {
public:
  using element_type = T;
  constexpr device_span() noexcept = default;
  constexpr device_span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
  constexpr device_span(device_span<U> other) noexcept : data_(other.data()), size_(other.size()) {}

  constexpr T *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  constexpr bool empty() const noexcept { return size_ == 0; }

  // Undefined behaviour beyond the end, as in std::span.
  constexpr device_span first(std::size_t count) const noexcept { return {data_, count}; }
  constexpr device_span last(std::size_t count) const noexcept { return {data_ + (size_ - count), count}; }
  constexpr device_span subspan(std::size_t offset, std::size_t count) const noexcept {
    return {data_ + offset, count};
  }

private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

// Owns `size` elements of memory from a source. Elements are not constructed; their type is trivially copyable. Work
// that is already in the stream of the allocation may still use the memory after its free, and other streams after
// record_stream: no synchronization is needed before the end of the scope.
template <class T, class Source> class basic_buffer : private Source {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "device memory is copied as bytes");

public:
  using value_type = T;
  using element_type = T;

  constexpr basic_buffer() noexcept : Source{} {}

  // Throws weir::out_of_memory if the device has no more memory. 0 elements give an empty buffer.
  basic_buffer(std::size_t count, stream stream, Source source = {}) : Source(source), size_(count) {
    void *pointer = nullptr;
    detail::check(this->alloc(detail::bytes_of<T>(count), stream, &pointer));
    data_ = static_cast<T *>(pointer);
  }
  static result<basic_buffer> try_allocate(std::size_t count, stream stream, Source source = {}) noexcept {
    void *pointer = nullptr;
    if (weir_status status = source.alloc(detail::bytes_of<T>(count), stream, &pointer))
      return detail::failure(status);
    return basic_buffer(static_cast<T *>(pointer), count, source);
  }
  // Takes over memory of the source: adopt(data, count) for a buffer, adopt(data, count, allocator) for an
  // allocator_buffer.
  static basic_buffer adopt(T *data, std::size_t count) noexcept {
    static_assert(std::is_empty_v<Source>, "the third argument is the allocator of the memory");
    return basic_buffer(data, count, {});
  }
  static basic_buffer adopt(T *data, std::size_t count, Source source) noexcept {
    return basic_buffer(data, count, source);
  }

  basic_buffer(basic_buffer &&other) noexcept
      : Source(other), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  basic_buffer &operator=(basic_buffer &&other) noexcept {
    if (this != &other) {
      reset();
      static_cast<Source &>(*this) = other;
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~basic_buffer() {
    if (data_)
      (void)Source::free(data_);
  }

  T *data() noexcept { return data_; }
  const T *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  bool empty() const noexcept { return size_ == 0; }

  device_span<T> span() noexcept { return {data_, size_}; }
  device_span<const T> span() const noexcept { return {data_, size_}; }
  operator device_span<T>() noexcept { return span(); }
  operator device_span<const T>() const noexcept { return span(); }

  // Says that another stream uses the memory too. Does nothing without memory.
  void record_stream(stream stream) { detail::check(record_if_any(stream)); }
  result<void> try_record_stream(stream stream) noexcept { return detail::attempt(record_if_any(stream)); }

  // Frees the memory now, and reports a failure. The buffer is empty in any case.
  void free() { detail::check(free_if_any()); }
  result<void> try_free() noexcept { return detail::attempt(free_if_any()); }
  void reset() noexcept {
    if (T *old = release())
      (void)Source::free(old);
  }
  T *release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

protected:
  basic_buffer(T *data, std::size_t count, Source source) noexcept : Source(source), data_(data), size_(count) {}

private:
  // A buffer that never had memory may have no allocator to call.
  weir_status record_if_any(stream stream) const noexcept { return data_ ? this->record(data_, stream) : WEIR_OK; }
  weir_status free_if_any() noexcept {
    T *old = release();
    return old ? Source::free(old) : WEIR_OK;
  }

  T *data_ = nullptr;
  std::size_t size_ = 0;
};

// ---- Pinned host memory ----

// A cache of pinned host memory that something else owns.
class pinned_allocator_ref {
public:
  constexpr pinned_allocator_ref(weir_host_allocator *host) noexcept : host_(host) {}
  weir_host_allocator *get() const noexcept { return host_; }

  template <class T> pinned_buffer<T> allocate(std::size_t count) const { return pinned_buffer<T>(count, *this); }
  template <class T> result<pinned_buffer<T>> try_allocate(std::size_t count) const noexcept {
    return pinned_buffer<T>::try_allocate(count, *this);
  }
  void empty_cache() const { detail::check(weir_host_empty_cache(host_)); }
  result<void> try_empty_cache() const noexcept { return detail::attempt(weir_host_empty_cache(host_)); }
  weir_host_stats stats() const {
    weir_host_stats stats;
    weir_host_stats_init(&stats);
    return detail::checked(weir_host_get_stats(host_, &stats), stats);
  }
  result<weir_host_stats> try_stats() const noexcept {
    weir_host_stats stats;
    weir_host_stats_init(&stats);
    return detail::attempted(weir_host_get_stats(host_, &stats), stats);
  }

protected:
  weir_host_allocator *host_;
};

// A cache of pinned host memory. Its destructor waits for the devices and returns all memory to the driver, so its
// buffers must be gone by then.
class pinned_allocator : public pinned_allocator_ref {
public:
  // On the driver of the runtime, with settings as "key:value,key:value"; NULL reads them from the environment.
  explicit pinned_allocator(const char *conf = nullptr) : pinned_allocator(detail::runtime_driver(), conf) {}
  pinned_allocator(weir_driver *driver, const char *conf) : pinned_allocator_ref(nullptr) {
    detail::check(create(driver, conf, &host_));
  }
  static result<pinned_allocator> try_create(const char *conf = nullptr) noexcept {
    weir_driver *driver = nullptr;
    weir_host_allocator *made = nullptr;
    weir_status status = weir_get_driver(&driver);
    if (status == WEIR_OK)
      status = create(driver, conf, &made);
    if (status != WEIR_OK)
      return detail::failure(status);
    return adopt(made);
  }
  static pinned_allocator adopt(weir_host_allocator *owned) noexcept { return pinned_allocator(owned, 0); }
  weir_host_allocator *release() noexcept { return std::exchange(host_, nullptr); }

  pinned_allocator(pinned_allocator &&other) noexcept : pinned_allocator_ref(other.release()) {}
  pinned_allocator &operator=(pinned_allocator &&other) noexcept {
    weir_host_allocator_destroy(std::exchange(host_, other.release()));
    return *this;
  }
  ~pinned_allocator() { weir_host_allocator_destroy(host_); }

private:
  static weir_status create(weir_driver *driver, const char *conf, weir_host_allocator **host) noexcept {
    weir_host_allocator_options options;
    weir_host_allocator_options_init(&options);
    options.conf = conf;
    return weir_host_allocator_create(driver, &options, host);
  }
  pinned_allocator(weir_host_allocator *owned, int) noexcept : pinned_allocator_ref(owned) {}
};

// Pinned memory, which the host accesses as an array. Copies from it and to it are asynchronous: call record_stream
// after the last one, and the memory is not reused before the stream has done it.
template <class T> class pinned_buffer : public basic_buffer<T, detail::pinned_source> {
  using base = basic_buffer<T, detail::pinned_source>;

public:
  constexpr pinned_buffer() noexcept = default;
  pinned_buffer(std::size_t count, pinned_allocator_ref host) : base(make(count, host), count, {host.get()}) {}
  static result<pinned_buffer> try_allocate(std::size_t count, pinned_allocator_ref host) noexcept {
    void *pointer = nullptr;
    if (weir_status status = weir_host_alloc(host.get(), detail::bytes_of<T>(count), &pointer))
      return detail::failure(status);
    return pinned_buffer(static_cast<T *>(pointer), count, host);
  }
  // Takes over memory of the allocator.
  static pinned_buffer adopt(T *data, std::size_t count, pinned_allocator_ref host) noexcept {
    return pinned_buffer(data, count, host);
  }

  T &operator[](std::size_t index) noexcept { return this->data()[index]; }
  const T &operator[](std::size_t index) const noexcept { return this->data()[index]; }
  T *begin() noexcept { return this->data(); }
  T *end() noexcept { return this->data() + this->size(); }
  const T *begin() const noexcept { return this->data(); }
  const T *end() const noexcept { return this->data() + this->size(); }

private:
  pinned_buffer(T *data, std::size_t count, pinned_allocator_ref host) noexcept : base(data, count, {host.get()}) {}
  static T *make(std::size_t count, pinned_allocator_ref host) {
    void *pointer = nullptr;
    detail::check(weir_host_alloc(host.get(), detail::bytes_of<T>(count), &pointer));
    return static_cast<T *>(pointer);
  }
};

#if defined(__cpp_lib_memory_resource)
// Pinned memory for the containers of std::pmr. A container that a stream reads or writes calls record_stream before
// it is destroyed or grows: the memory is then not reused before the stream has done that work. Needs exceptions,
// because a memory resource cannot report a failure otherwise.
class pinned_memory_resource : public std::pmr::memory_resource {
public:
  explicit pinned_memory_resource(pinned_allocator_ref host) noexcept : host_(host) {}
  pinned_allocator_ref allocator() const noexcept { return host_; }

  // A stream uses the memory that contains the address.
  void record_stream(const void *address, stream stream) const {
    detail::check(detail::record_on(host_.get(), address, stream));
  }
  result<void> try_record_stream(const void *address, stream stream) const noexcept {
    return detail::attempt(detail::record_on(host_.get(), address, stream));
  }

private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    void *pointer = nullptr;
    detail::check(weir_host_alloc(host_.get(), bytes ? bytes : 1, &pointer));
    if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
      (void)weir_host_free(host_.get(), pointer);
      detail::raise(WEIR_ERROR_NOT_SUPPORTED,
                    "the driver's pinned memory does not have the alignment that was asked for");
    }
    return pointer;
  }
  void do_deallocate(void *pointer, std::size_t, std::size_t) override { (void)weir_host_free(host_.get(), pointer); }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

  pinned_allocator_ref host_;
};
#endif

// ---- Copies and fills ----

namespace detail {

// The bytes of something contiguous: a buffer, a device_span, a vector, an array.
template <class Range> auto bytes_in(const Range &range) noexcept {
  using element = std::remove_pointer_t<decltype(range.data())>;
  static_assert(std::is_trivially_copyable_v<element>, "elements are copied as bytes");
  return std::uint64_t{range.size()} * sizeof(element);
}

template <class To, class From> result<void> copy_is_possible(const To &to, const From &from) noexcept {
  if (bytes_in(to) != bytes_in(from))
    return error(WEIR_ERROR_INVALID_ARGUMENT, "the two sides of a copy differ in size");
  return {};
}

template <class T> std::uint32_t word_of(const T &value) noexcept {
  std::uint32_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}

template <class To, class T> weir_status fill(To &to, const T &value, stream stream) noexcept {
  using element = std::remove_pointer_t<decltype(to.data())>;
  static_assert(sizeof(element) == 1 || sizeof(element) == 4, "a fill sets bytes or 32-bit words");
  const element converted = static_cast<element>(value);
  if constexpr (sizeof(element) == 1)
    return weir_fill_async(to.data(), static_cast<std::uint8_t>(word_of(converted)), to.size(), stream);
  else
    return weir_fill32_async(to.data(), word_of(converted), to.size(), stream);
}

} // namespace detail

// Copies all elements between host and devices, in the stream's order. Both sides are contiguous ranges (buffers,
// spans, vectors, arrays) of the same size in bytes; host memory must stay valid until the stream has done the copy.
template <class To, class From> void copy_async(To &&to, const From &from, stream stream) {
  detail::copy_is_possible(to, from).value();
  detail::check(weir_copy_async(to.data(), from.data(), detail::bytes_in(from), stream));
}
template <class To, class From> result<void> try_copy_async(To &&to, const From &from, stream stream) noexcept {
  if (auto possible = detail::copy_is_possible(to, from); !possible)
    return possible;
  return detail::attempt(weir_copy_async(to.data(), from.data(), detail::bytes_in(from), stream));
}

// The same, and waits until the copy is done.
template <class To, class From> void copy(To &&to, const From &from, stream stream) {
  detail::copy_is_possible(to, from).value();
  detail::check(weir_copy(to.data(), from.data(), detail::bytes_in(from), stream));
}
template <class To, class From> result<void> try_copy(To &&to, const From &from, stream stream) noexcept {
  if (auto possible = detail::copy_is_possible(to, from); !possible)
    return possible;
  return detail::attempt(weir_copy(to.data(), from.data(), detail::bytes_in(from), stream));
}

// Sets every element of device memory; elements have 1 or 4 bytes.
template <class To, class T> void fill_async(To &&to, const T &value, stream stream) {
  detail::check(detail::fill(to, value, stream));
}
template <class To, class T> result<void> try_fill_async(To &&to, const T &value, stream stream) noexcept {
  return detail::attempt(detail::fill(to, value, stream));
}

// ---- Graphs ----

// Which unsafe calls a capture forbids: those of any thread, those of its own, or none.
enum class capture_mode {
  global = WEIR_CAPTURE_GLOBAL,
  thread_local_only = WEIR_CAPTURE_THREAD_LOCAL,
  relaxed = WEIR_CAPTURE_RELAXED
};

// Work that is captured once (see weir::capture) and launched many times.
class graph {
public:
  graph() : graph_(make()) {}
  static result<graph> try_create() noexcept {
    weir_graph *made = nullptr;
    if (weir_status status = weir_graph_create(&made))
      return detail::failure(status);
    return adopt(made);
  }
  static graph adopt(weir_graph *owned) noexcept { return graph(owned); }
  weir_graph *get() const noexcept { return graph_.get(); }
  weir_graph *release() noexcept { return graph_.release(); }

  // Launches the graph on a stream.
  void replay(stream stream) {
    stream_scope scope(stream);
    detail::check(weir_graph_replay(get()));
  }
  result<void> try_replay(stream stream) noexcept {
    auto scope = stream_scope::try_enter(stream);
    if (!scope)
      return scope.error();
    return detail::attempt(weir_graph_replay(get()));
  }
  // Empties the graph, so that it can capture again.
  void reset() { detail::check(weir_graph_reset(get())); }
  result<void> try_reset() noexcept { return detail::attempt(weir_graph_reset(get())); }

  std::size_t node_count() const {
    std::size_t count = 0;
    return detail::checked(weir_graph_node_count(get(), &count), count);
  }
  result<std::size_t> try_node_count() const noexcept {
    std::size_t count = 0;
    return detail::attempted(weir_graph_node_count(get(), &count), count);
  }

private:
  explicit graph(weir_graph *owned) noexcept : graph_(owned) {}
  static weir_graph *make() {
    weir_graph *made = nullptr;
    return detail::checked(weir_graph_create(&made), made);
  }
  detail::handle<weir_graph, weir_graph_destroy> graph_;
};

// Captures the work of a stream into a graph until end(). A capture that ends with its scope instead, as an exception
// makes it, is abandoned: the graph is empty then.
class capture {
public:
  // A pool {0, 0} gives the graph a pool of its own. The graph must outlive the capture.
  capture(graph &graph, stream stream, weir_pool_id pool = {0, 0}, capture_mode mode = capture_mode::global)
      : scope_(stream) {
    detail::check(weir_graph_begin_capture(graph.get(), pool, static_cast<weir_capture_mode>(mode)));
    graph_ = graph.get();
  }
  static result<capture> try_begin(graph &graph, stream stream, weir_pool_id pool = {0, 0},
                                   capture_mode mode = capture_mode::global) noexcept {
    auto scope = stream_scope::try_enter(stream);
    if (!scope)
      return scope.error();
    if (weir_status status = weir_graph_begin_capture(graph.get(), pool, static_cast<weir_capture_mode>(mode)))
      return detail::failure(status);
    return capture(graph.get(), *std::move(scope));
  }
  capture(capture &&other) noexcept : scope_(std::move(other.scope_)), graph_(std::exchange(other.graph_, nullptr)) {}
  capture &operator=(capture &&) = delete;
  ~capture() {
    if (!graph_)
      return;
    (void)weir_graph_end_capture(graph_);
    (void)weir_graph_reset(graph_);
  }

  void end() { detail::check(weir_graph_end_capture(std::exchange(graph_, nullptr))); }
  result<void> try_end() noexcept { return detail::attempt(weir_graph_end_capture(std::exchange(graph_, nullptr))); }

private:
  capture(weir_graph *graph, stream_scope &&scope) noexcept : scope_(std::move(scope)), graph_(graph) {}
  stream_scope scope_;
  weir_graph *graph_ = nullptr;
};

} // namespace weir

#endif
