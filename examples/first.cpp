/*
 * The first program in C++: allocates device memory, fills it, and reads it back.
 */
#include <cstdint>
#include <cstdio>
#include <vector>
#include <weir/weir.hpp>

int main() {
  try {
    std::vector<std::uint32_t> words(1 << 20);
    {
      const weir::stream stream = weir::stream::create(0); // on device 0
      weir::buffer<std::uint32_t> memory(words.size(), stream);
      weir::fill_async(memory, 42, stream);
      weir::copy(words, memory, stream);
    } // the memory is freed here
    std::printf("word 0 is %u, word %zu is %u\n", words.front(), words.size() - 1, words.back());
    weir::shutdown();
    return words.front() == 42 && words.back() == 42 ? 0 : 1;
  } catch (const weir::error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
