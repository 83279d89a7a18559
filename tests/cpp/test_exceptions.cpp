/*
 * weir.hpp and offline.hpp with exceptions, on the software device.
 */
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <new>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>
#if __has_include(<span>)
#include <span>
#endif

#include "check.hpp"
#include "weir/offline.h"
#include "weir/weir.hpp"

// The C++ library has no memory after this number of allocations. Not inlined, because GCC warns about a mismatch when
// it inlines one of a pair.
namespace test {
inline std::size_t allocations_left = SIZE_MAX;
}
[[gnu::noinline]] void *operator new(std::size_t size) {
  void *pointer = test::allocations_left ? std::malloc(size ? size : 1) : nullptr;
  if (!pointer)
    throw std::bad_alloc();
  test::allocations_left--;
  return pointer;
}
[[gnu::noinline]] void operator delete(void *pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void *pointer, std::size_t) noexcept { std::free(pointer); }

// offline.hpp with functions that note in which order recordings (c) and replayers (r) are destroyed.
namespace test {

inline std::string destroyed;

inline void destroy_recording(weir_offline_recording *recording) {
  destroyed += "c";
  weir_offline_recording_destroy(recording);
}
inline void destroy_replayer(weir_offline_replayer *replayer) {
  destroyed += "r";
  weir_offline_replayer_destroy(replayer);
}

} // namespace test

#define weir_offline_recording_destroy test::destroy_recording
#define weir_offline_replayer_destroy test::destroy_replayer
#include "weir/offline.hpp"
#undef weir_offline_recording_destroy
#undef weir_offline_replayer_destroy

namespace {

using weir::buffer;
using weir::stream;

template <class T>
constexpr bool is_owner = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> &&
                          std::is_nothrow_move_constructible_v<T> && std::is_nothrow_destructible_v<T>;
static_assert(is_owner<weir::event> && std::is_nothrow_move_assignable_v<weir::event>);
static_assert(is_owner<weir::graph> && std::is_nothrow_move_assignable_v<weir::graph>);
static_assert(is_owner<buffer<float>> && std::is_nothrow_move_assignable_v<buffer<float>>);
static_assert(is_owner<weir::allocator> && std::is_nothrow_move_assignable_v<weir::allocator>);
static_assert(is_owner<weir::pinned_allocator> && is_owner<weir::pool>);
static_assert(is_owner<weir::pinned_buffer<int>> && is_owner<weir::allocator_buffer<int>>);
static_assert(is_owner<weir::device_scope> && is_owner<weir::stream_scope> && is_owner<weir::capture>);
static_assert(is_owner<weir::offline::replayer> && std::is_nothrow_move_assignable_v<weir::offline::replayer>);
static_assert(std::is_copy_constructible_v<weir::offline::recording>);
static_assert(std::is_trivially_copyable_v<stream> && std::is_trivially_copyable_v<weir::allocator_ref>);
static_assert(sizeof(stream) == sizeof(weir_stream) && sizeof(weir::event) == sizeof(void *));
static_assert(sizeof(buffer<float>) == sizeof(void *) + sizeof(std::size_t));
static_assert(std::is_convertible_v<buffer<int> &, weir::device_span<const int>>);
static_assert(!std::is_convertible_v<const buffer<int> &, weir::device_span<int>>);
#if defined(__cpp_lib_span)
static_assert(std::is_constructible_v<std::span<int>, weir::pinned_buffer<int> &>);
static_assert(!std::is_constructible_v<std::span<int>, buffer<int> &>, "the host cannot access device memory");
#endif

// The error that a call throws; status WEIR_OK if it throws none.
template <class Call> weir::error thrown(Call call) {
  try {
    call();
  } catch (const weir::error &error) {
    return error;
  }
  return weir::error(WEIR_OK, "");
}

void test_buffers() {
  CHECK(weir::device::is_available() && weir::device::count() == 2);
  const stream first = stream::create(0);
  buffer<std::uint32_t> words(1000, first);
  CHECK(words.size() == 1000 && words.size_bytes() == 4000 && words.data() && !words.empty());
  weir::fill_async(words, 7u, first);
  std::vector<std::uint32_t> host(1000);
  std::iota(host.begin(), host.end(), 0u);
  weir::copy_async(words.span().first(10), std::vector<std::uint32_t>(host.begin(), host.begin() + 10), first);
  weir::copy(host, words, first);
  CHECK(host[0] == 0 && host[9] == 9 && host[10] == 7 && host[999] == 7);

  buffer<float> numbers(4, first);
  weir::fill_async(numbers, 1.5f, first);
  std::array<float, 2> two{};
  weir::copy(two, numbers.span().last(2), first);
  CHECK(two[0] == 1.5f && two[1] == 1.5f);

  // The owner moves with its memory, and frees it once.
  std::uint32_t *const data = words.data();
  buffer<std::uint32_t> other = std::move(words);
  // NOLINTBEGIN(bugprone-use-after-move): a buffer is empty then
  CHECK(other.data() == data && words.data() == nullptr && words.empty());
  words = std::move(other);
  CHECK(words.data() == data && other.data() == nullptr);
  // NOLINTEND(bugprone-use-after-move)
  std::uint32_t *const released = words.release();
  buffer<std::uint32_t> adopted = buffer<std::uint32_t>::adopt(released, 1000);
  adopted.free();
  CHECK(adopted.empty());
  buffer<std::uint32_t> again(1000, first);
  CHECK(again.data() == data); // reused in the stream's order, without a wait
  again.reset();
  CHECK(buffer<int>(0, first).data() == nullptr);
  CHECK(weir::default_allocator().stats().allocation[WEIR_STAT_ALL].current == 1); // numbers
}

// A buffer without memory is freed and recorded without an error, whether it has an allocator or not.
template <class Buffer> void check_empty(Buffer buffer, stream stream) {
  CHECK(buffer.data() == nullptr && buffer.empty());
  CHECK(thrown([&] { buffer.record_stream(stream); }).status() == WEIR_OK && buffer.try_record_stream(stream));
  CHECK(thrown([&] { buffer.free(); }).status() == WEIR_OK && buffer.try_free());
  buffer.reset();
}

void test_empty_buffers() {
  const stream first = stream::create(0);
  weir::allocator own;
  weir::pinned_allocator pinned;
  check_empty(buffer<int>(), first);
  check_empty(buffer<int>(0, first), first);
  check_empty(weir::allocator_buffer<int>(), first);
  check_empty(own.allocate<int>(0, first), first);
  check_empty(weir::pinned_buffer<int>(), first);
  check_empty(pinned.allocate<int>(0), first);
  auto freed = pinned.allocate<int>(10);
  freed.free();
  check_empty(std::move(freed), first);
}

void test_adopt() {
  const stream first = stream::create(0);
  weir::allocator own;
  weir::pinned_allocator pinned;

  auto released = own.allocate<int>(10, first);
  int *data = released.release();
  weir::allocator_buffer<int> memory = weir::allocator_buffer<int>::adopt(data, 10, own);
  CHECK(memory.data() == data && memory.size() == 10);
  memory.free();
  data = own.allocate<int>(10, first).release();
  memory = weir::allocator_buffer<int>::adopt(data, 10, {own.get()});
  memory.free();
  CHECK(own.stats().allocation[WEIR_STAT_ALL].current == 0);

  auto staged = pinned.allocate<int>(10);
  staged[9] = 5;
  data = staged.release();
  weir::pinned_buffer<int> adopted = weir::pinned_buffer<int>::adopt(data, 10, pinned);
  CHECK(adopted.data() == data && adopted.size() == 10 && adopted[9] == 5);
  adopted.free();
  pinned.empty_cache();
  CHECK(pinned.stats().allocated_bytes.current == 0);
}

void test_record_stream() {
  const stream first = stream::create(0), second = stream::create(0);
  CHECK(first != second && first == stream(first));
  const void *address = nullptr;
  {
    buffer<char> used(1 << 20, first);
    address = used.data();
    weir_stream_spin(second, 1000);
    used.record_stream(second);
  }
  CHECK(!second.query());
  buffer<char> early(1 << 20, first);
  CHECK(early.data() != address);
  second.synchronize();
  CHECK(second.query());
  buffer<char> late(1 << 20, first);
  CHECK(late.data() == address);
}

void test_errors() {
  const stream first = stream::create(0);
  try {
    buffer<char> all(2ull << 30, first);
    CHECK(false);
  } catch (const weir::out_of_memory &error) {
    CHECK(error.status() == WEIR_ERROR_OUT_OF_MEMORY && error.is_out_of_memory());
    CHECK(test::contains(error.what(), "WEIR_ERROR_OUT_OF_MEMORY: "));
    CHECK(test::contains(error.what(), weir_last_error()));
  }
  CHECK(thrown([&] { buffer<double> all(SIZE_MAX / 4, first); }).status() == WEIR_ERROR_OUT_OF_MEMORY);
  CHECK(thrown([] { weir::device(5).make_current(); }).status() == WEIR_ERROR_INVALID_DEVICE);
  const weir::error sizes = thrown([&] { weir::copy(std::array<int, 3>{}, buffer<int>(4, first), first); });
  CHECK(sizes.status() == WEIR_ERROR_INVALID_ARGUMENT && test::contains(sizes.what(), "differ in size"));

  // Every call of the driver fails once. Nothing is lost, and the next try succeeds.
  const auto body = [&] {
    buffer<char> large(64 << 20, first);
    weir::event event(weir::event_flags::timing);
    event.record(first);
    stream::create(0).wait(event);
    large.record_stream(stream::create(0));
    first.synchronize();
  };
  int failed = 0;
  for (unsigned long n = 1, before = 0, faults = 0, calls = 0;; n++) {
    test::need(weir_memory_empty_cache());
    weir_fault_nth_any(test::fault, n, WEIR_CU_UNKNOWN);
    const weir::error error = thrown(body);
    weir_fault_counts(test::fault, WEIR_CALL_COUNT, &calls, &faults);
    weir_fault_clear(test::fault);
    if (std::exchange(before, faults) == faults)
      break;                                                                 // past the last call
    CHECK(error.status() == WEIR_ERROR_DRIVER || error.status() == WEIR_OK); // some failures have no consequence
    failed += error.status() != WEIR_OK;
  }
  CHECK(failed >= 3);
  body();

  // A copy of an error shares its text, and outlives the next failure.
  const weir::error kept = thrown([] { weir::device(7).make_current(); });
  const std::string text = kept.what();
  CHECK(thrown([] { weir::device(8).make_current(); }).what() != text && kept.what() == text);
}

// Calls a function that is noexcept and allocates, with memory for 0, 1, 2... allocations, until it succeeds. Returns
// how often it failed.
template <class Call> int failures_without_memory(Call call) {
  for (std::size_t n = 0;; n++) {
    test::allocations_left = n;
    const auto got = call();
    test::allocations_left = SIZE_MAX;
    if (got)
      return static_cast<int>(n);
    CHECK(got.error().status() == WEIR_ERROR_HOST_OUT_OF_MEMORY && got.error().is_out_of_memory());
  }
}

void test_no_memory() {
  // An error without memory for its text keeps its status.
  for (const std::size_t n : {0u, 1u}) {
    test::allocations_left = n;
    const auto wrong = weir::device(9).try_make_current();
    const auto sizes = weir::try_copy(std::array<int, 3>{}, std::array<int, 4>{}, stream());
    const auto missing = weir::offline::recording::try_load("/no/such/file");
    test::allocations_left = SIZE_MAX;
    CHECK(!wrong && wrong.error().status() == WEIR_ERROR_INVALID_DEVICE);
    CHECK(std::string(wrong.error().what()) == "WEIR_ERROR_INVALID_DEVICE");
    CHECK(!sizes && std::string(sizes.error().what()) == "WEIR_ERROR_INVALID_ARGUMENT");
    CHECK(!missing && std::string(missing.error().what()) == "WEIR_ERROR_SYSTEM");
  }
  test::allocations_left = 0;
  const weir::error error = thrown([] { weir::device(9).make_current(); });
  test::allocations_left = SIZE_MAX;
  CHECK(error.status() == WEIR_ERROR_INVALID_DEVICE && std::string(error.what()) == "WEIR_ERROR_INVALID_DEVICE");
  static_assert(std::is_nothrow_constructible_v<weir::error, weir_status, const char *>);
  static_assert(!std::is_nothrow_constructible_v<weir::result<std::string>, const char *>);
  static_assert(std::is_nothrow_constructible_v<weir::result<std::string>, std::string>);

#if defined(WEIR_HAVE_ZSTD)
  const std::string path = std::string(WEIR_TEST_DATA) + "/histories/capped_oom.pickle.zst";
  test::destroyed.clear();
  CHECK(failures_without_memory([&] { return weir::offline::recording::try_load(path.c_str()); }) > 0);
  CHECK(test::destroyed == "cc"); // also the one that has no owner
  const weir::offline::recording recording(path);
  CHECK(failures_without_memory([&] { return recording.try_devices(); }) > 0);
  CHECK(failures_without_memory([&] { return recording.try_plot(); }) > 0);
#endif
}

void test_streams_and_events() {
  const stream first = stream::create(0), side = stream::create(1, -1);
  CHECK(first.device().number() == 0 && side.device().number() == 1);
  CHECK(stream::external(first.raw(), 0) == first);
  CHECK(stream::of_device(0) == stream() && stream::of_device(0).raw() == nullptr);
  {
    weir::stream_scope scope(side);
    CHECK(stream::current(1) == side && weir::device::current().number() == 1);
    weir::device_scope device(0);
    CHECK(weir::device::current().number() == 0);
  }
  CHECK(weir::device::current().number() == 0 && stream::current(1) == stream::of_device(1));

  weir::event start(weir::event_flags::timing), end(weir::event_flags::timing | weir::event_flags::blocking);
  CHECK(start.query() && start.raw() == nullptr);
  start.record(first);
  weir_stream_spin(first, 5000000); // 5 ms at 1 GHz
  end.record(first);
  side.wait(end);
  CHECK(!end.query());
  end.synchronize();
  CHECK(end.query() && end.since(start).count() > 4.9 && end.since(start) < std::chrono::seconds(1));
  weir_event *const raw = start.release();
  CHECK(start.get() == nullptr && weir::event::adopt(raw).get() == raw);
  CHECK(weir::device(1).properties().major == 9 && weir::device(0).memory_info().total == 1u << 30);
  side.synchronize();
  weir::device(0).synchronize();
}

void test_allocators_and_pools() {
  const stream first = stream::create(0);
  weir::allocator own("max_split_size_mb:64");
  CHECK(own.settings() == "max_split_size_mb:64");
  own.configure("max_split_size_mb:128");
  {
    auto memory = own.allocate<double>(100, first);
    weir::allocator moved = std::move(own);
    own = std::move(moved);
    CHECK(own.stats().allocated_bytes[WEIR_STAT_ALL].current == 1024);
    weir::pool pool(own);
    weir_pointer_info info;
    weir_pointer_info_init(&info);
    {
      weir::pool_scope scope(pool);
      auto apart = own.allocate<char>(100, first);
      CHECK(weir_allocator_describe(own.get(), apart.data(), &info) == WEIR_OK && info.pool.second == pool.id().second);
    }
    CHECK(weir_allocator_describe(own.get(), memory.data(), &info) == WEIR_OK && info.pool.second == 0);
    int uses = 0;
    CHECK(weir_pool_use_count(own.get(), 0, pool.id(), &uses) == WEIR_OK && uses == 1);
  }
  own.set_fraction(0.01);
  CHECK(thrown([&] { own.allocate<char>(100 << 20, first); }).is_out_of_memory());
  own.empty_cache();
  CHECK(own.stats().reserved_bytes[WEIR_STAT_ALL].current == 0);
  const weir::error error = thrown([] { weir::allocator bad("no_such_key:1"); });
  CHECK(error.status() == WEIR_ERROR_INVALID_ARGUMENT && test::contains(error.what(), "no_such_key"));
}

void test_pinned() {
  weir::device(0).make_current();
  weir::pinned_allocator pinned;
  const stream first = stream::create(0);
  buffer<int> device(1000, first);
  const void *address = nullptr;
  {
    auto staged = pinned.allocate<int>(1000);
    std::iota(staged.begin(), staged.end(), 5);
    address = staged.data();
    weir_stream_spin(first, 1000);
    weir::copy_async(device, staged, first);
    staged.record_stream(first);
  } // the copy has not run yet
  auto next = pinned.allocate<int>(1000);
  CHECK(next.data() != address);
  weir::copy_async(next, device, first);
  first.synchronize();
  CHECK(next[0] == 5 && next[999] == 1004);

  // The same through a container of the standard library.
  weir::pinned_memory_resource resource(pinned);
  {
    std::pmr::vector<int> values(1000, 3, &resource);
    address = values.data();
    weir_stream_spin(first, 1000);
    weir::copy_async(device, values, first);
    resource.record_stream(values.data(), first);
  }
  {
    std::pmr::vector<int> values(1000, 4, &resource);
    CHECK(values.data() != address);
  }
  weir::copy(next, device, first);
  CHECK(next[500] == 3);
  CHECK(resource.is_equal(resource) && !resource.is_equal(*std::pmr::get_default_resource()));
  void *const nothing = resource.allocate(0);
  CHECK(nothing != nullptr);
  resource.deallocate(nothing, 0);
  CHECK(thrown([&] { (void)resource.allocate(64, std::size_t{1} << 31); }).status() == WEIR_ERROR_NOT_SUPPORTED);
  weir_fault_random(test::fault, 1, 1000000, WEIR_CU_OUT_OF_MEMORY);
  try {
    std::pmr::vector<char> large(64 << 20, &resource);
    CHECK(false);
  } catch (const weir::out_of_memory &error) {
    CHECK(error.status() == WEIR_ERROR_HOST_OUT_OF_MEMORY);
  }
  weir_fault_clear(test::fault);
  next.reset();
  pinned.empty_cache();
  CHECK(pinned.stats().allocated_bytes.current == 0);
}

void test_graphs() {
  const stream first = stream::create(0);
  buffer<std::uint8_t> bytes(16, first);
  weir::fill_async(bytes, 1, first);
  weir::graph graph;
  {
    weir::capture capture(graph, first);
    weir::fill_async(bytes, 2, first);
    capture.end();
  }
  CHECK(graph.node_count() == 1);
  std::array<std::uint8_t, 16> host{};
  weir::copy(host, bytes, first);
  CHECK(host[15] == 1);
  graph.replay(first);
  weir::copy(host, bytes, first);
  CHECK(host[15] == 2);

  // An exception abandons the capture; the stream and the graph are usable again.
  graph.reset();
  const weir::error error = thrown([&] {
    weir::capture capture(graph, first);
    weir::fill_async(bytes, 3, first);
    weir::copy(host, bytes, first); // waits, which a capture forbids
  });
  CHECK(error.status() == WEIR_ERROR_CAPTURE);
  CHECK(stream::current(0) == stream::of_device(0));
  {
    weir::capture capture(graph, first);
    weir::fill_async(bytes, 4, first);
    capture.end();
  }
  graph.replay(first);
  weir::copy(host, bytes, first);
  CHECK(host[0] == 4);
  CHECK(thrown([&] { weir::capture on_default(graph, stream()); }).status() != WEIR_OK);
}

void test_offline() {
  const weir::error missing = thrown([] { weir::offline::recording recording("/no/such/file"); });
  CHECK(missing.status() == WEIR_ERROR_SYSTEM && test::contains(missing.what(), "/no/such/file"));
  const weir::error garbage = thrown([] { weir::offline::recording recording("garbage", 7); });
  CHECK(garbage.status() == WEIR_ERROR_BAD_DATA);

#if defined(WEIR_HAVE_ZSTD)
  const std::string path = std::string(WEIR_TEST_DATA) + "/histories/capped_oom.pickle.zst";
  weir_offline_explain_options quick = weir::offline::explain_options();
  quick.no_remedies = 1;
  auto replayer = [&] {
    const weir::offline::recording recording(path);
    std::uint64_t events = 0;
    for (const weir_offline_info &info : recording.devices())
      events += info.events;
    CHECK(events == recording.info().events && events > 0);
    CHECK(recording.explain(quick).cause != WEIR_OFFLINE_CAUSE_NONE);
    weir_offline_plot_options plot = weir::offline::plot_options();
    plot.by = WEIR_OFFLINE_BY_SIZE;
    CHECK(test::contains(recording.plot(plot).c_str(), "</svg>"));
    return weir::offline::replayer(recording);
  }(); // it keeps the recording
  CHECK(replayer.check().is_exact && replayer.check().ooms > 0);
  CHECK(replayer.predict("expandable_segments:True").events == replayer.check().events);
  CHECK(thrown([&] { (void)replayer.predict("nonsense"); }).status() == WEIR_ERROR_INVALID_ARGUMENT);

  // A replayer that is assigned goes before its recording, as one at the end of its scope does.
  test::destroyed.clear();
  {
    weir::offline::replayer other{weir::offline::recording(path)};
    const weir_offline_replayer *const kept = replayer.get();
    other = std::move(replayer);
    CHECK(test::destroyed == "rc" && other.get() == kept && other.check().is_exact);
    replayer = std::move(other); // NOLINT(bugprone-use-after-move): assigned again
    CHECK(test::destroyed == "rc");
    const weir::offline::replayer end{weir::offline::recording(path)};
  }
  CHECK(test::destroyed == "rcrc" && replayer.check().is_exact);
#endif
}

} // namespace

int main() {
  test::run("buffers", test_buffers);
  test::run("empty buffers", test_empty_buffers);
  test::run("adopt", test_adopt);
  test::run("record_stream", test_record_stream);
  test::run("errors", test_errors);
  test::run("no memory", test_no_memory);
  test::run("streams and events", test_streams_and_events);
  test::run("allocators and pools", test_allocators_and_pools);
  test::run("pinned memory", test_pinned);
  test::run("graphs", test_graphs);
  test::run("offline", test_offline);
  return test::failures != 0;
}
