#include "profiler.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace weir_torch {

using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;

__thread const void *const *pushed_place = nullptr;

namespace {

// The place if it is not known: it is never null, so every call asks.
const void *const nowhere = &nowhere;

constexpr size_t unknown = SIZE_MAX;

// The calling thread's thread-local storage of the library that has ThreadLocalDebugInfo.
struct ThreadMemory {
  const char *begin = nullptr;
  size_t bytes = 0;
};

int find_thread_memory(dl_phdr_info *library, size_t size, void *found) {
  auto code = reinterpret_cast<uintptr_t>(&ThreadLocalDebugInfo::get);
  bool is_it = false;
  size_t bytes = 0;
  for (int i = 0; i < library->dlpi_phnum; i++) {
    const auto &part = library->dlpi_phdr[i];
    uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD)
      is_it = is_it || (code >= begin && code - begin < part.p_memsz);
    if (part.p_type == PT_TLS)
      bytes = part.p_memsz;
  }
  if (is_it && size >= offsetof(dl_phdr_info, dlpi_tls_data) + sizeof library->dlpi_tls_data && library->dlpi_tls_data)
    *static_cast<ThreadMemory *>(found) = {static_cast<const char *>(library->dlpi_tls_data), bytes};
  return is_it;
}

ThreadMemory thread_memory() {
  ThreadMemory memory;
  dl_iterate_phdr(find_thread_memory, &memory);
  return memory;
}

const void *const *word_at(const ThreadMemory &memory, size_t offset) {
  return reinterpret_cast<const void *const *>(memory.begin + offset);
}

// PyTorch does not export the address, but it can be found: after something is pushed, exactly one word must point to
// it, and that word must have its previous value after the pop.
size_t find_offset() {
  const void *before = ThreadLocalDebugInfo::current().get();
  ThreadLocalDebugInfo::_push(DebugInfoKind::TEST_INFO, std::make_shared<c10::DebugInfoBase>());
  const void *pushed = ThreadLocalDebugInfo::current().get();
  ThreadMemory memory = thread_memory();
  size_t found = unknown;
  int count = 0;
  for (size_t at = 0; at + sizeof pushed <= memory.bytes; at += sizeof pushed)
    if (*word_at(memory, at) == pushed) {
      found = at;
      count++;
    }
  ThreadLocalDebugInfo::_pop(DebugInfoKind::TEST_INFO);
  return count == 1 && *word_at(memory, found) == before ? found : unknown;
}

size_t offset() {
  static const size_t found = find_offset(); // the same in all threads
  return found;
}

} // namespace

bool ask_for_profiler() {
  bool is_there = ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE) != nullptr; // allocates the thread's storage
  if (!pushed_place) {
    ThreadMemory memory = thread_memory();
    pushed_place = memory.begin && offset() != unknown ? word_at(memory, offset()) : &nowhere;
  }
  return is_there;
}

bool knows_pushed_place() {
  ask_for_profiler();
  return pushed_place != &nowhere;
}

} // namespace weir_torch
