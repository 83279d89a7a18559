#!/bin/sh
# profiler.sh ADAPTERS: the adapter's fast check for an active profiler, with a stand-in for PyTorch that keeps the
# pushed state where PyTorch does: in thread-local memory of a library.
set -eu
adapters=$1
if ! command -v g++ >/dev/null; then
  echo "waived: there is no g++"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/c10/macros" "$work/c10/util"

cat >"$work/c10/macros/Macros.h" <<'END'
#pragma once
#define C10_UNLIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 0))
END
cat >"$work/c10/util/ThreadLocalDebugInfo.h" <<'END'
#pragma once
#include <memory>
namespace c10 {
enum class DebugInfoKind { PROFILER_STATE, PARAM_COMMS_INFO, TEST_INFO };
struct DebugInfoBase {
  virtual ~DebugInfoBase() = default;
};
struct ThreadLocalDebugInfo {
  static DebugInfoBase *get(DebugInfoKind kind);
  static std::shared_ptr<ThreadLocalDebugInfo> current();
  static void _push(DebugInfoKind kind, std::shared_ptr<DebugInfoBase> info);
  static std::shared_ptr<DebugInfoBase> _pop(DebugInfoKind kind);
  std::shared_ptr<DebugInfoBase> info;
  DebugInfoKind kind;
  std::shared_ptr<ThreadLocalDebugInfo> below;
};
}
END
cat >"$work/straw.cpp" <<'END'
#include <c10/util/ThreadLocalDebugInfo.h>
namespace c10 {
thread_local long others[5] = {1, 2, 3, 4, 5};
static thread_local std::shared_ptr<ThreadLocalDebugInfo> top;
#ifdef TWICE
thread_local
#endif
    ThreadLocalDebugInfo *again;
long asked;
DebugInfoBase *ThreadLocalDebugInfo::get(DebugInfoKind kind) {
  asked++;
  auto *at = top.get();
  while (at && at->kind != kind)
    at = at->below.get();
  return at ? at->info.get() : nullptr;
}
std::shared_ptr<ThreadLocalDebugInfo> ThreadLocalDebugInfo::current() { return top; }
void ThreadLocalDebugInfo::_push(DebugInfoKind kind, std::shared_ptr<DebugInfoBase> info) {
  auto made = std::make_shared<ThreadLocalDebugInfo>();
  *made = {std::move(info), kind, top};
  top = made;
  again = top.get();
}
std::shared_ptr<DebugInfoBase> ThreadLocalDebugInfo::_pop(DebugInfoKind) {
  auto gone = top->info;
  top = std::shared_ptr<ThreadLocalDebugInfo>(top->below);
  again = top.get();
  return gone;
}
}
END
cat >"$work/main.cpp" <<'END'
#include <c10/util/ThreadLocalDebugInfo.h>
#include <cstdio>
#include <thread>
#include "profiler.h"
using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;
namespace c10 {
extern long asked;
}
static int wrong;
#define CHECK(what) \
  if (!(what)) \
  wrong++, std::printf("line %d: %s\n", __LINE__, #what)

static void one_thread(bool short_way) {
  using weir_torch::is_profiled;
  CHECK(!is_profiled());
  long before = c10::asked;
  for (int i = 0; i < 1000; i++)
    CHECK(!is_profiled());
  CHECK(short_way ? c10::asked == before : c10::asked == before + 1000);
  ThreadLocalDebugInfo::_push(DebugInfoKind::PARAM_COMMS_INFO, std::make_shared<c10::DebugInfoBase>());
  CHECK(!is_profiled()); // of another kind
  ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, std::make_shared<c10::DebugInfoBase>());
  CHECK(is_profiled());
  std::thread([] { CHECK(!weir_torch::is_profiled()); }).join(); // not of this thread
  ThreadLocalDebugInfo::_pop(DebugInfoKind::PROFILER_STATE);
  CHECK(!is_profiled());
  ThreadLocalDebugInfo::_pop(DebugInfoKind::PARAM_COMMS_INFO);
  CHECK(!is_profiled());
  CHECK(weir_torch::knows_pushed_place() == short_way);
}

extern "C" int run(int, char **argv) {
  bool short_way = argv[1][0] == 's', begins_with_one = argv[1][1] == '1';
  if (begins_with_one) // the first that asks has something pushed already
    std::thread([] {
      ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, std::make_shared<c10::DebugInfoBase>());
      CHECK(weir_torch::is_profiled() && weir_torch::is_profiled());
      ThreadLocalDebugInfo::_pop(DebugInfoKind::PROFILER_STATE);
      CHECK(!weir_torch::is_profiled());
    }).join();
  one_thread(short_way);
  for (int i = 0; i < 8; i++)
    std::thread(one_thread, short_way).join();
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
END

# PyTorch is loaded while threads run, which allocate its thread-local memory on first use.
cat >"$work/load.cpp" <<'END'
#include <dlfcn.h>
#include <cstdio>
#include <future>
#include <thread>
int main(int argc, char **argv) {
  std::promise<int (*)(int, char **)> found;
  int code = 1;
  std::thread early([&] { code = found.get_future().get()(argc - 1, argv + 1); });
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library)
    return std::puts(dlerror()), 1;
  found.set_value(reinterpret_cast<int (*)(int, char **)>(dlsym(library, "run")));
  early.join();
  return code;
}
END
g++ -std=c++17 -pthread "$work/load.cpp" -o "$work/load" -ldl

# try NAME FLAGS ARGUMENT
try() {
  # shellcheck disable=SC2086
  g++ -std=c++17 -fPIC -shared $2 "-I$work" "$work/straw.cpp" -o "$work/libstraw_$1.so"
  g++ -std=c++17 -fPIC -shared -pthread "-I$work" "-I$adapters/torch" "$work/main.cpp" "$adapters/torch/profiler.cpp" \
    -o "$work/$1.so" "-L$work" "-lstraw_$1" "-Wl,-rpath,$work"
  "$work/load" "$work/$1.so" "$3"
  LD_PRELOAD="$work/libstraw_$1.so" "$work/load" "$work/$1.so" "$3" # loaded from the start
}
try plain "" s
try begins_with_one "" s1
try twice -DTWICE a # two candidates, so neither is used and every thread asks PyTorch
