/*
 * A tour of the C++ interface: errors as exceptions and as results, streams and events, pinned memory in a container of
 * the standard library, a graph, and an allocator with a private pool. docs/c/cpp.md shows these functions.
 */
#include <cstdio>
#include <memory_resource>
#include <vector>
#include <weir/weir.hpp>

// Freed memory needs no synchronization: a stream does its work in order, and record_stream names the others.
static void two_streams() {
  const weir::stream main_stream = weir::stream::create(), side_stream = weir::stream::create();
  weir::buffer<float> values(1000, main_stream);
  weir::fill_async(values, 1.5f, main_stream);
  side_stream.wait(main_stream); // the fill comes first
  std::vector<float> host(values.size());
  weir::copy_async(host, values, side_stream);
  values.record_stream(side_stream); // not reused before the copy is done
  values.reset();                    // or the end of the scope
  side_stream.synchronize();
  std::printf("two streams: the last value is %g\n", static_cast<double>(host.back()));
}

static void out_of_memory() {
  const weir::stream stream = weir::stream::create();
  try {
    weir::buffer<char> too_large(std::size_t{1} << 50, stream);
  } catch (const weir::out_of_memory &error) {
    std::printf("thrown: %s\n", weir::status_name(error.status())); // error.what() says where the memory is
  }
}

// The same without exceptions.
static weir::result<weir::buffer<float>> zeros(std::size_t count, weir::stream stream) {
  auto buffer = weir::buffer<float>::try_allocate(count, stream);
  if (!buffer)
    return buffer;
  if (auto filled = weir::try_fill_async(*buffer, 0.0f, stream); !filled)
    return filled.error();
  return buffer;
}

static void events() {
  const weir::stream stream = weir::stream::create();
  weir::event start(weir::event_flags::timing), end(weir::event_flags::timing);
  start.record(stream);
  weir::buffer<char> memory(1 << 20, stream);
  weir::fill_async(memory, 'x', stream);
  end.record(stream);
  end.synchronize();
  std::printf("events: the fill took %s\n", end.since(start).count() >= 0 ? "some time" : "no time");
}

static void pinned_vector() {
  const weir::stream stream = weir::stream::create();
  weir::pinned_allocator pinned;
  weir::pinned_memory_resource resource(pinned);
  weir::buffer<int> memory(1000, stream);
  {
    std::pmr::vector<int> staged(memory.size(), 7, &resource);
    weir::copy_async(memory, staged, stream);      // asynchronous: the vector's memory is pinned
    resource.record_stream(staged.data(), stream); // after its end, not reused before the copy is done
  }
  std::vector<int> host(memory.size());
  weir::copy(host, memory, stream);
  std::printf("pinned vector: the last value is %d\n", host.back());
}

static void graphs() {
  const weir::stream stream = weir::stream::create();
  weir::buffer<int> memory(10, stream);
  weir::graph graph;
  {
    weir::capture capture(graph, stream);
    weir::fill_async(memory, 3, stream);
    capture.end();
  }
  graph.replay(stream);
  std::vector<int> host(memory.size());
  weir::copy(host, memory, stream);
  std::printf("graph: %zu node, the last value is %d\n", graph.node_count(), host.back());
}

static void pools() {
  const weir::stream stream = weir::stream::create();
  weir::allocator allocator("expandable_segments:True");
  weir::pool pool(allocator);
  {
    weir::pool_scope scope(pool);
    auto apart = allocator.allocate<double>(1 << 20, stream); // from the pool
  }
  std::printf("allocator: %s, %lld bytes in use\n", allocator.settings().c_str(),
              static_cast<long long>(allocator.stats().allocated_bytes[WEIR_STAT_ALL].current));
}

// A CUstream of other code, and the CUstream of a Weir stream: the types are the same.
static void other_code(weir_cu_stream theirs) {
  const weir::stream stream = weir::stream::external(theirs, 0);
  weir::buffer<char> memory(100, stream);
  std::printf("other code: %s\n", stream.raw() == theirs ? "the same stream" : "another stream");
}

int main() {
  try {
    two_streams();
    out_of_memory();
    if (auto buffer = zeros(std::size_t{1} << 50, weir::stream()); !buffer)
      std::printf("returned: %s\n", weir::status_name(buffer.error().status()));
    events();
    pinned_vector();
    graphs();
    pools();
    other_code(weir::stream::create(0).raw());
    weir::shutdown();
  } catch (const weir::error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
