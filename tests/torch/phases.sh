#!/bin/sh
# phases.sh ADAPTERS LIBRARY INCLUDE WEIR: ranges that PyTorch marks become phases of a recording. A stand-in for
# PyTorch provides the callbacks of RecordFunction.
set -eu
adapters=$1 library=$2 include=$3 weir=$4
if ! command -v g++ >/dev/null; then
  echo "waived: there is no g++"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/ATen"

cat >"$work/ATen/record_function.h" <<'END'
#pragma once
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>
namespace at {
enum class RecordScope { FUNCTION, BACKWARD_FUNCTION, USER_SCOPE };
struct ObserverContext {
  virtual ~ObserverContext() = default;
protected:
  ObserverContext() = default;
};
struct RecordFunction {
  RecordFunction(const char *name, RecordScope scope);
  void end();
  ~RecordFunction() { end(); }
  const char *name() const { return text.c_str(); }
  std::string text;
  RecordScope scope;
  std::vector<std::unique_ptr<ObserverContext>> contexts;
  bool has_ended = false;
};
struct RecordFunctionCallback {
  using Start = std::unique_ptr<ObserverContext> (*)(const RecordFunction &);
  using End = void (*)(const RecordFunction &, ObserverContext *);
  explicit RecordFunctionCallback(Start start, End end = nullptr) : start(start), end(end) {}
  RecordFunctionCallback &scopes(const std::unordered_set<RecordScope> &given) { return wanted = given, *this; }
  Start start;
  End end;
  std::unordered_set<RecordScope> wanted;
};
inline std::vector<RecordFunctionCallback> callbacks;
inline int addGlobalCallback(RecordFunctionCallback callback) { return callbacks.push_back(std::move(callback)), 1; }
inline RecordFunction::RecordFunction(const char *name, RecordScope scope) : text(name), scope(scope) {
  for (auto &callback : callbacks)
    if (callback.wanted.count(scope))
      contexts.push_back(callback.start(*this));
}
inline void RecordFunction::end() {
  if (has_ended)
    return;
  has_ended = true;
  size_t i = 0;
  for (auto &callback : callbacks)
    if (callback.wanted.count(scope))
      callback.end(*this, contexts[i++].get());
}
}
END
cat >"$work/main.cpp" <<'END'
#include <ATen/record_function.h>
#include <cstdlib>
#include <thread>
#include "phases.h"
#include "weir/weir.h"
using at::RecordFunction;
using at::RecordScope;
static weir_allocator *allocator;
static thread_local bool has_frames;
static size_t frames(void *, weir_stack_frame *to, size_t) {
  *to = {weir_history_text("train.py"), weir_history_text("step"), 7};
  return has_frames;
}
static void pair(size_t bytes) {
  void *pointer;
  if (weir_allocator_alloc(allocator, 0, bytes, nullptr, &pointer) || weir_allocator_free(allocator, pointer))
    std::exit(1);
}
int main() {
  weir_driver *driver;
  weir_stack_set_hook(frames, nullptr);
  if (weir_device_set_current(0) || weir_get_driver(&driver) || weir_allocator_create(driver, nullptr, &allocator))
    return 1;
  weir_torch::follow_ranges();
  weir_torch::follow_ranges(); // once only
  if (at::callbacks.size() != 1)
    return 1;
  has_frames = true;
  pair(512 * 1);
  {
    RecordFunction step("Optimizer.step#SGD.step", RecordScope::USER_SCOPE);
    pair(512 * 2);
    {
      RecordFunction inner("inner", RecordScope::USER_SCOPE);
      RecordFunction node("aten::mm", RecordScope::FUNCTION); // an operation is no phase
      pair(512 * 3);
      std::thread([] { pair(512 * 4); }).join(); // as autograd's: no frames, and no range of its own
      std::thread([] {
        has_frames = true;
        pair(512 * 5); // a thread of Python's explains itself
      }).join();
      std::thread([&] { inner.end(); }).join(); // in another thread
    }
    pair(512 * 6);
  }
  pair(512 * 7);
  std::thread([] { pair(512 * 8); }).join();
}
END
g++ -std=c++17 -Wall -Wextra -pthread "-I$work" "-I$adapters/torch" "-I$include" "$work/main.cpp" "$adapters/torch/phases.cpp" \
  "$library" "-Wl,-rpath,$(dirname "$library")" -o "$work/main"
WEIR_DRIVER=soft WEIR_RECORD="$work/record" WEIR_RECORD_MB=4 WEIR_RECORD_STACKS=alloc WEIR_LOG=error "$work/main"
"$weir" export --to csv "$work/record"/*.ring | tr -d '\r' >"$work/events.csv"
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
  $at["action"] == "alloc" { print $at["size"] / 512, $at["phase"] }' "$work/events.csv" >"$work/phases"
cat >"$work/expected" <<'END'
1 ""
2 Optimizer.step#SGD.step
3 inner
4 inner
5 ""
6 inner
7 ""
8 ""
END
diff "$work/expected" "$work/phases"
