/*
 * weir.hpp and offline.hpp without exceptions and without run-time type information: the functions with
 * try_, which return a weir::result.
 */
#include <array>
#include <string>
#include <vector>

#include "check.hpp"
#include "weir/offline.hpp"
#include "weir/weir.hpp"

#if defined(__cpp_exceptions)
#error "compile this file with -fno-exceptions"
#endif

namespace {

using weir::result;
using weir::stream;

// A function that passes errors on.
result<weir::buffer<float>> ones(std::size_t count, stream stream) {
  auto buffer = weir::buffer<float>::try_allocate(count, stream);
  if (!buffer)
    return buffer;
  if (auto filled = weir::try_fill_async(*buffer, 1.0f, stream); !filled)
    return filled.error();
  return buffer;
}

void test_results() {
  CHECK(weir::try_init() && weir::device::try_count().value_or(0) == 2);
  const auto first = stream::try_create(0);
  if (!CHECK(first.has_value()))
    return;
  auto buffer = ones(100, *first);
  if (!CHECK(buffer.has_value()))
    return;
  std::array<float, 100> host{};
  CHECK(weir::try_copy(host, *buffer, *first) && host[99] == 1.0f);

  const auto failed = ones(1 << 29, *first); // 2 GiB on a device of 1 GiB
  CHECK(!failed && failed.error().is_out_of_memory() && test::contains(failed.error().what(), "out of memory"));
  CHECK(!weir::buffer<double>::try_allocate(SIZE_MAX, *first));
  auto sizes = weir::try_copy(host, buffer->span().first(3), *first);
  CHECK(!sizes && sizes.error().status() == WEIR_ERROR_INVALID_ARGUMENT);

  // A result that is assigned ends what it had.
  buffer = ones(1 << 29, *first);
  CHECK(!buffer && weir::try_default_allocator()->try_stats()->allocation[WEIR_STAT_ALL].current == 0);
  buffer = ones(10, *first);
  CHECK(buffer && buffer->size() == 10 && buffer->try_record_stream(*stream::try_create(0)) && buffer->try_free());
  result<void> nothing = weir::device(9).try_make_current();
  CHECK(!nothing && nothing.error().status() == WEIR_ERROR_INVALID_DEVICE);
  nothing = result<void>();
  CHECK(nothing.has_value());

#if defined(__cpp_lib_expected)
  std::expected<weir::event, weir::error> expected = weir::event::try_create();
  CHECK(expected && expected->get());
  std::expected<void, weir::error> refused = weir::device(9).try_make_current();
  CHECK(!refused && refused.error().status() == WEIR_ERROR_INVALID_DEVICE);
#endif
}

void test_objects() {
  const stream first = *stream::try_create(0);
  CHECK(*stream::try_external(*first.try_raw(), 0) == first && *stream::try_of_device(0) == stream());
  CHECK(first.device().try_memory_info()->total == 1u << 30 && weir::device(1).try_properties()->major == 9);
  {
    auto scope = weir::stream_scope::try_enter(*stream::try_create(1));
    CHECK(scope && weir::device::try_current()->number() == 1);
    auto inner = weir::device_scope::try_enter(0);
    CHECK(inner && weir::device::try_current()->number() == 0);
    CHECK(!weir::device_scope::try_enter(9) && !weir::stream_scope::try_enter(weir_stream{77, 0, 1}));
  }
  CHECK(weir::device::try_current()->number() == 0 && *stream::try_current(1) == *stream::try_of_device(1));

  auto event = weir::event::try_create(weir::event_flags::timing);
  auto later = weir::event::try_create(weir::event_flags::timing);
  CHECK(event && later && event->try_record(first) && later->try_record(first) && first.try_wait(*later));
  CHECK(!*event->try_query() && later->try_synchronize() && *event->try_query() && first.try_synchronize() &&
        *first.try_query());
  CHECK(later->try_since(*event)->count() >= 0 && !later->try_since(*weir::event::try_create()));

  auto graph = weir::graph::try_create();
  auto buffer = weir::buffer<unsigned char>::try_allocate(8, first);
  {
    auto capture = weir::capture::try_begin(*graph, first);
    CHECK(capture && weir::try_fill_async(*buffer, 5, first) && capture->try_end());
  }
  CHECK(*graph->try_node_count() == 1 && graph->try_replay(first) && graph->try_reset());
  CHECK(!weir::capture::try_begin(*graph, stream()) && !graph->try_replay(first));
  {
    auto abandoned = weir::capture::try_begin(*graph, first);
    CHECK(abandoned && weir::try_fill_async(*buffer, 6, first));
  }
  std::array<unsigned char, 8> host{};
  CHECK(weir::try_copy(host, *buffer, first) && host[7] == 5);

  auto own = weir::allocator::try_create("max_split_size_mb:64");
  CHECK(own && own->try_configure("max_split_size_mb:128") && own->try_set_fraction(0.5));
  CHECK(!weir::allocator::try_create("nonsense") && !own->try_configure("nonsense"));
  {
    auto pool = weir::pool::try_create(*own);
    auto scope = weir::pool_scope::try_enter(*pool);
    CHECK(pool && scope && own->try_allocate<int>(100, first));
  }
  CHECK(own->try_empty_cache() && own->try_stats()->reserved_bytes[WEIR_STAT_ALL].current == 0);
  CHECK(!weir::pool::try_create(*own, 9));

  auto pinned = weir::pinned_allocator::try_create();
  {
    auto staged = pinned->try_allocate<int>(10);
    CHECK(staged && ((*staged)[9] = 4) == 4 && staged->try_record_stream(first));
    weir_fault_random(test::fault, 1, 1000000, WEIR_CU_OUT_OF_MEMORY);
    CHECK(pinned->try_allocate<char>(64 << 20).error().status() == WEIR_ERROR_HOST_OUT_OF_MEMORY);
    weir_fault_clear(test::fault);
  }
  CHECK(first.try_synchronize() && pinned->try_empty_cache() && pinned->try_stats()->allocated_bytes.current == 0);
}

void test_offline() {
  auto missing = weir::offline::recording::try_load("/no/such/file");
  CHECK(!missing && missing.error().status() == WEIR_ERROR_SYSTEM);
  CHECK(weir::offline::recording::try_load("garbage", 7).error().status() == WEIR_ERROR_BAD_DATA);
#if defined(WEIR_HAVE_ZSTD)
  const std::string path = std::string(WEIR_TEST_DATA) + "/histories/capped_oom.pickle.zst";
  auto recording = weir::offline::recording::try_load(path.c_str());
  CHECK(recording && recording->try_devices()->size() == 1 && !recording->try_info(9));
  auto replayer = weir::offline::replayer::try_create(*recording);
  CHECK(replayer && replayer->try_check()->is_exact && replayer->try_predict("expandable_segments:True"));
  CHECK(replayer->try_predict("nonsense").error().status() == WEIR_ERROR_INVALID_ARGUMENT);
#endif
}

} // namespace

int main() {
  test::run("results", test_results);
  test::run("objects", test_objects);
  test::run("offline", test_offline);
  return test::failures != 0;
}
